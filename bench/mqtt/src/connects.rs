//! Clients that come: how many a second, and a fleet that comes back all at once.
//!
//! Always true: each connection of the first part makes a whole TLS handshake where it makes one; each device of the second has a name
//! and a user of its own, waits [`PATIENCE`] for an answer and then tries again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tidegate_load::client::{Client, Options};

use crate::{
    Plan,
    broker::{Access, Broker, Kind, Programs, Setup, USERS},
};

/// Clients of the first part that come at once.
const AT_ONCE: u32 = 8;
/// How long a device waits for its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the network is away.
const OUTAGE: Duration = Duration::from_secs(1);
/// After which a fleet that is not in has failed.
const GIVE_UP: Duration = Duration::from_secs(180);
/// A device's stack: it only connects.
const STACK_BYTES: usize = 256 << 10;

/// Connections a second by each way in; then the fleet.
///
/// # Errors
/// Ours does not serve.
pub fn connects(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    report: &mut Report,
) -> anyhow::Result<()> {
    for (name, access) in
        [("plain", Access::Plain), ("TLS", Access::Tls), ("password", Access::Password)]
    {
        let sides: Vec<Kind> = contenders
            .iter()
            .copied()
            .filter(|kind| {
                access == Access::Plain || matches!(kind, Kind::Tidegate | Kind::Mosquitto)
            })
            .collect();
        let mut made: BTreeMap<Kind, Vec<Came>> = BTreeMap::new();
        let mut failed: BTreeMap<Kind, String> = BTreeMap::new();
        for turn in 0..plan.runs * sides.len() {
            let (run, turn) = (turn / sides.len(), turn % sides.len());
            let kind = sides[(run + turn) % sides.len()];
            match come(programs, kind, access, if plan.quick { 1.0 } else { 3.0 }) {
                Ok(came) => made.entry(kind).or_default().push(came),
                Err(error) if kind == Kind::Tidegate => return Err(error.context(name)),
                Err(error) => {
                    failed.insert(kind, format!("{}: {error:#}", kind.name()));
                }
            }
        }
        let of = |kind: Kind, pick: fn(&Came) -> f64| -> Vec<f64> {
            made.get(&kind).into_iter().flatten().map(pick).collect()
        };
        for peer in sides.iter().copied().filter(|kind| *kind != Kind::Tidegate) {
            let row = |measured: &str, unit: &str, pick: fn(&Came) -> f64| {
                let figure = Figure::new(
                    format!("connects, {name}, {measured}, beside {}", peer.name()),
                    unit,
                )
                .ours(of(Kind::Tidegate, pick))
                .peer(of(peer, pick))
                .peer_name(peer.name());
                match failed.get(&peer) {
                    Some(reason) => figure.note(reason),
                    None => figure,
                }
            };
            report.figure(row("connections", "/s", |came| came.per_second));
            report.figure(row("broker's CPU each", "µs", |came| came.cpu_us));
        }
    }
    report.configuration(
        "connects, password",
        "one user for each client in turn, of 3,000; each broker's own hash: Argon2id ours, PBKDF2 mosquitto's",
    );
    fleet(plan, programs, report)
}

struct Came {
    per_second: f64,
    cpu_us: f64,
}

/// Clients that connect, are answered and disconnect, [`AT_ONCE`] at a time, for so many seconds.
fn come(programs: &Programs, kind: Kind, access: Access, seconds: f64) -> anyhow::Result<Came> {
    let broker = programs.start(kind, &Setup { access, ..Setup::default() })?;
    let count = AtomicU32::new(0);
    let before = broker.usage()?.cpu;
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds);
    thread::scope(|scope| -> anyhow::Result<()> {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<()> {
                    while Instant::now() < until {
                        let number = count.fetch_add(1, Ordering::Relaxed);
                        let options = device(&broker, access, number % USERS);
                        Client::connect(options)?.disconnect()?;
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a client's thread panicked"))??;
        }
        Ok(())
    })?;
    let count = f64::from(count.into_inner());
    let seconds = began.elapsed().as_secs_f64();
    let cpu = broker.usage()?.cpu.saturating_sub(before).as_secs_f64();
    Ok(Came { per_second: count / seconds, cpu_us: cpu * 1e6 / count })
}

fn device(broker: &Broker, access: Access, number: u32) -> Options {
    let options = broker.options(&format!("device{number}"));
    let user = (access == Access::Password).then(|| format!("user{number}"));
    Options { username: user, timeout: PATIENCE, ..options }
}

/// Devices with Argon2id passwords that all come back at once: after the network was away, and after the node started over.
fn fleet(plan: &Plan, programs: &Programs, report: &mut Report) -> anyhow::Result<()> {
    let devices: u32 = if plan.quick { 300 } else { 2_000 };
    let setup = Setup { access: Access::Password, ..Setup::default() };
    let broker = programs.start(Kind::Tidegate, &setup)?;
    let hashes = hashes_a_second(&broker)?;
    let mut clients = Vec::new();
    let first = back(&broker, devices, &mut clients)?;
    drop(clients);
    thread::sleep(OUTAGE);
    let mut clients = Vec::new();
    let outage = back(&broker, devices, &mut clients)?;
    let port = broker.port();
    drop(broker);
    drop(clients);
    let broker = programs.start_on(Kind::Tidegate, &setup, port)?;
    let mut clients = Vec::new();
    let restart = back(&broker, devices, &mut clients)?;
    let name = |text: &str| format!("fleet, {devices} devices, {text}");
    let hashed = f64::from(devices) / hashes;
    report.figure(
        Figure::new(name("Argon2id hashes a second"), "/s")
            .ours([hashes])
            .note("four clients at once, each with a user that was not seen before"),
    );
    report.figure(
        Figure::new(name("all in after the network was away for 1 s"), "s")
            .ours([outage.all.as_secs_f64()])
            .target(Target::AtMost(30.0)),
    );
    for (when, back) in [("the first time", &first), ("after a restart", &restart)] {
        report.figure(
            Figure::new(name(&format!("all in {when}")), "s")
                .ours([back.all.as_secs_f64()])
                .target(Target::AtMost(1.2 * hashed))
                .note(format!("1.2 × devices ÷ hashes a second is {:.1} s", 1.2 * hashed)),
        );
    }
    for (when, back) in [("the outage", &outage), ("the restart", &restart)] {
        report.figure(
            Figure::new(name(&format!("slowest newcomer meanwhile, {when}")), "s")
                .ours([back.newcomer.as_secs_f64()])
                .target(Target::AtMost(1.0))
                .note(format!("{} newcomers with right passwords", back.newcomers)),
        );
    }
    report.samples("fleet, attempts that ran out of patience, restart", [f64::from(restart.lost)]);
    report.samples("fleet, attempts that ran out of patience, outage", [f64::from(outage.lost)]);
    Ok(())
}

/// Users beyond the fleet, who are not seen before: the first ones measure, the others are newcomers.
static UNSEEN: AtomicU32 = AtomicU32::new(0);

fn unseen(broker: &Broker) -> anyhow::Result<Options> {
    let number = USERS.checked_sub(1 + UNSEEN.fetch_add(1, Ordering::Relaxed));
    let number = number.filter(|number| *number >= 2_000).context("users are used up")?;
    Ok(Options { timeout: Duration::from_secs(30), ..device(broker, Access::Password, number) })
}

fn hashes_a_second(broker: &Broker) -> anyhow::Result<f64> {
    const EACH: u32 = 15;
    let began = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<()> {
                    for _ in 0..EACH {
                        Client::connect(unseen(broker)?)?.disconnect()?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| anyhow::anyhow!("a client's thread panicked"))?
        })
    })?;
    Ok(f64::from(4 * EACH) / began.elapsed().as_secs_f64())
}

struct Back {
    /// Until the last device was in.
    all: Duration,
    /// The longest that a newcomer waited.
    newcomer: Duration,
    newcomers: u32,
    /// Attempts that gave up.
    lost: u32,
}

/// Lets all devices come at once; they stay in `clients`.
fn back(broker: &Broker, devices: u32, clients: &mut Vec<Client>) -> anyhow::Result<Back> {
    let start = Arc::new(Barrier::new(devices as usize + 1));
    let lost = AtomicU32::new(0);
    let slowest = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..devices {
            let (start, lost) = (start.clone(), &lost);
            let options = device(broker, Access::Password, number);
            let worker =
                thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, move || {
                    let mut random = SmallRng::seed_from_u64(u64::from(number));
                    start.wait();
                    let began = Instant::now();
                    loop {
                        match Client::connect(options.clone()) {
                            Ok(client) => return Ok((client, began.elapsed())),
                            Err(error) if began.elapsed() > GIVE_UP => return Err(error),
                            Err(_) => lost.fetch_add(1, Ordering::Relaxed),
                        };
                        let pause = random.random_range(100..1_000);
                        thread::sleep(Duration::from_millis(pause));
                    }
                });
            workers.push(worker.context("starting a device")?);
        }
        let newcomers = scope.spawn(|| -> anyhow::Result<u32> {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                let client = Client::connect(unseen(broker)?).context("a newcomer")?;
                let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                slowest.fetch_max(took, Ordering::Relaxed);
                client.disconnect()?;
                count += 1;
                thread::sleep(Duration::from_millis(500));
            }
            Ok(count)
        });
        start.wait();
        let mut all = Duration::ZERO;
        let mut failed = None;
        for worker in workers {
            match worker.join() {
                Ok(Ok((client, took))) => {
                    all = all.max(took);
                    clients.push(client);
                }
                Ok(Err(error)) => failed = Some(anyhow::Error::from(error)),
                Err(_) => failed = Some(anyhow::anyhow!("a device's thread panicked")),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let newcomers =
            newcomers.join().map_err(|_| anyhow::anyhow!("the newcomers' thread panicked"))?;
        if let Some(error) = failed {
            return Err(error.context(format!("a device that was not in after {GIVE_UP:?}")));
        }
        let newcomers = newcomers?;
        ensure!(clients.len() == devices as usize, "a device is missing");
        Ok(Back {
            all,
            newcomer: Duration::from_nanos(slowest.load(Ordering::Relaxed)),
            newcomers,
            lost: lost.load(Ordering::Relaxed),
        })
    })
}
