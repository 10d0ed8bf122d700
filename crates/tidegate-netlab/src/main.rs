//! `tidegate-netlab`: emulate links between network namespaces.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use tidegate_netlab::{Lab, Options, control, selftest, sweep, sweep_prefix};
use tidegate_sim::medium::{FromText, PortId, Scenario};

#[derive(Parser)]
#[command(version, about = "Emulates WAN and Wi-Fi-like links between network namespaces")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Bring a scenario up, until a time is over, a command ends, or Ctrl-C.
    Up(Up),
    /// Remove namespaces that killed labs left behind.
    Down {
        /// Remove every namespace whose name begins so, in use or not.
        #[arg(long)]
        prefix: Option<String>,
    },
    /// Talk to a running lab: "set MEDIUM rate=… delay=… loss=… error=… factor=… port=…" or "stat".
    Ctl {
        /// Control socket of the lab, as given to `up --control`.
        socket: PathBuf,
        /// The command.
        #[arg(required = true)]
        command: Vec<String>,
    },
    /// Tell in ten seconds whether this machine emulates links faithfully.
    Selftest(Timing),
    /// Read a scenario, say what is in it, and run it in virtual time.
    Check {
        /// The scenario file.
        scenario: PathBuf,
        /// How much virtual time to run, all nodes sending all they can to the medium's first port.
        #[arg(long = "for", value_parser = duration, default_value = "10s")]
        time: Duration,
    },
}

#[derive(Args)]
struct Up {
    /// The scenario file.
    scenario: PathBuf,
    /// How long, such as 60s.
    #[arg(long = "for", value_parser = duration)]
    time: Option<Duration>,
    #[command(flatten)]
    timing: Timing,
    /// Prefix of namespace names, the node's name follows [default: unique].
    #[arg(long)]
    prefix: Option<String>,
    /// Path of a control socket to make.
    #[arg(long)]
    control: Option<PathBuf>,
    /// Seed instead of the scenario's.
    #[arg(long)]
    seed: Option<u64>,
    /// Command to run meanwhile, outside the namespaces, with NETLAB_PREFIX in its environment.
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct Timing {
    /// Real-time priority for the emulator, and no rest for idle processors; needed on a machine that does anything else,
    /// and on a virtual one.
    #[arg(long)]
    real_time: bool,
    /// How long to sleep while packets are due all the time, 0us to wake for each.
    #[arg(long, value_parser = duration, default_value = "100us")]
    tick: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    Duration::parse_text(text).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidegate-netlab: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Up(up) => bring_up(up),
        Verb::Down { prefix } => {
            let removed = match prefix {
                Some(prefix) => sweep_prefix(&prefix)?,
                None => sweep()?,
            };
            removed.iter().for_each(|name| println!("removed {name}"));
            Ok(ExitCode::SUCCESS)
        }
        Verb::Ctl { socket, command } => {
            print!("{}", control::ask(&socket, &command.join(" "))?);
            Ok(ExitCode::SUCCESS)
        }
        Verb::Selftest(timing) => {
            let Timing { real_time, tick } = timing;
            let options = Options { real_time, tick, ..Options::default() };
            let mut failed = 0;
            selftest::run(&options, |check| {
                failed += usize::from(!check.met);
                println!("{check}");
            })?;
            println!("{}", if failed == 0 { "verdict: met" } else { "verdict: FAILED" });
            Ok(ExitCode::from(u8::from(failed > 0)))
        }
        Verb::Check { scenario, time } => check(&load(&scenario)?, time),
    }
}

fn load(path: &Path) -> anyhow::Result<Scenario> {
    Scenario::load(path).with_context(|| path.display().to_string())
}

/// Exit status: that of the command if there is one, 3 if the run was invalid.
fn bring_up(up: Up) -> anyhow::Result<ExitCode> {
    let Up { scenario, time, timing: Timing { real_time, tick }, prefix, control, seed, command } =
        up;
    let scenario = load(&scenario)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let lab = Lab::up(&scenario, &Options { real_time, tick, prefix, control, seed })?;
    if let Some(warning) = lab.warning() {
        eprintln!("tidegate-netlab: {warning}");
    }
    for node in lab.nodes() {
        let devices =
            node.addresses().iter().map(|(device, address)| format!("{device} {address}"));
        eprintln!(
            "{:<12} {:<28} {}",
            node.name(),
            node.namespace(),
            devices.collect::<Vec<_>>().join(", ")
        );
    }
    let mut child = match &command[..] {
        [] => None,
        [program, arguments @ ..] => Some(spawn(&lab, program, arguments)?),
    };
    let ended = wait(child.as_mut(), time, &stop);
    let audit = lab.finish()?;
    eprint!("{audit}");
    match ended? {
        Some(code) if code != 0 => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        _ if !audit.flaws().is_empty() => Ok(ExitCode::from(3)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn spawn(lab: &Lab, program: &str, arguments: &[String]) -> anyhow::Result<Child> {
    let Some(node) = lab.nodes().first() else { bail!("the scenario has no node") };
    let prefix = node.namespace().strip_suffix(node.name()).unwrap_or_default();
    let mut command = Command::new(program);
    command.args(arguments).env("NETLAB_PREFIX", prefix);
    command.spawn().with_context(|| format!("cannot run {program}"))
}

/// Waits for the command, the time, or a signal; the command's exit status if it ended by itself.
fn wait(
    child: Option<&mut Child>,
    time: Option<Duration>,
    stop: &AtomicBool,
) -> anyhow::Result<Option<i32>> {
    let started = Instant::now();
    let mut child = child;
    while !stop.load(Ordering::Relaxed) && time.is_none_or(|time| started.elapsed() < time) {
        if let Some(child) = child.as_deref_mut()
            && let Some(status) = child.try_wait().context("cannot wait for the command")?
        {
            return Ok(Some(status.code().unwrap_or(1)));
        }
        thread::sleep(Duration::from_millis(20));
    }
    if let Some(child) = child {
        child.kill().context("cannot end the command")?;
        child.wait().context("cannot wait for the command")?;
    }
    Ok(None)
}

fn check(scenario: &Scenario, time: Duration) -> anyhow::Result<ExitCode> {
    let mut first_port = 0;
    for medium in &scenario.media {
        println!("{} ({} ports, {} steps)", medium.name, medium.ports.len(), medium.steps.len());
        let ports = 1..medium.ports.len();
        let pairs: Vec<(PortId, PortId)> =
            ports.map(|port| (PortId(first_port + port), PortId(first_port))).collect();
        let rates = selftest::forecast(scenario, scenario.seed, &pairs, time);
        let first = &medium.ports[0];
        println!("  {:<12} {}/{}", first.node, first.address.0, first.address.1);
        for (port, rate) in medium.ports[1..].iter().zip(&rates) {
            let (address, length) = port.address;
            println!(
                "  {:<12} {address}/{length:<4} {rate:>8.2} Mbit/s to {}",
                port.node, first.node
            );
        }
        println!(
            "  together {:.2} Mbit/s over {time:?} of virtual time",
            rates.iter().sum::<f64>()
        );
        first_port += medium.ports.len();
    }
    Ok(ExitCode::SUCCESS)
}
