//! The command line.
//!
//! ```text
//!  tidegate [--config FILE] [--set section.key=value]… COMMAND
//! ```
//!
//! Always true: a failure is printed once, with its causes below it, and its stable code decides the exit
//! status; a closed output pipe is no failure.

mod acl;
mod args;
mod cameras;
mod characterize;
mod check;
mod config;
mod detect;
mod doctor;
mod enrol;
mod init;
mod revoke;
mod sinks;
mod tell;
mod worker;

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    sync::Arc,
};

use clap::{Parser, Subcommand};
use tidegate_api::ApiError;
use tidegate_cli::{
    fabric::{self, FabricArgs},
    fetch::{self, FetchArgs},
    logging,
    program::{self, Output, print, until},
    sessions::{self, SessionsArgs},
    subscribe::{self, SubscribeArgs},
};
use tidegate_commands::{
    flow::{self, FlowArgs},
    mqtt,
    password::{self, PasswdArgs},
    replay::{self, ReplayArgs},
};
use tidegate_config::Config;
use tidegate_load::command::{PubArgs, SubArgs};
use tidegate_message::Code;
use tidegate_process::{descriptors, step};
use tokio_util::sync::CancellationToken;

pub use self::{
    acl::AclArgs,
    args::{CameraArgs, CharacterizeArgs, NodeArgs},
    cameras::CamerasCommandArgs,
    config::{ConfigArgs, ConfigCommand},
    detect::DetectArgs,
    doctor::{DoctorArgs, KeyArgs},
    enrol::{InviteArgs, JoinArgs},
    init::InitArgs,
    revoke::RevokeArgs,
    sinks::SinksArgs,
    worker::WorkerArgs,
};
use crate::run;

/// Carries camera frames within bounds that an application names, and the messages of sensors by MQTT.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100, after_help = EXIT_STATUSES)]
pub struct Cli {
    /// Configuration file [default: $TIDEGATE_CONFIG, ./tidegate.toml, /etc/tidegate/tidegate.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting, over file and environment; may be repeated
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_STATUSES: &str = "\
Exit status: 0 done, 1 a fault of the program, 2 wrong request or configuration,
3 no such camera, frame or table, 4 not reachable or full now (try again), 5 not allowed,
6 bounds cannot be kept, 7 a file cannot be written.

Settings also come from TIDEGATE__SECTION__KEY; TIDEGATE_LOG sets what is logged, such as debug.
Demonstrations, simulations and loads are commands of tidegate-lab.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make the certificates, the configuration and the first user of a site
    Init(InitArgs),
    /// Invite another machine: prints a token that makes one certificate, once
    Invite(InviteArgs),
    /// Redeem an invitation: makes a key here and has it certified
    Join(JoinArgs),
    /// Revoke certificates: nodes that have the new list refuse them, and end their connections
    Revoke(RevokeArgs),
    /// Run an edge node: cameras connect to it, applications subscribe at it
    Node(NodeArgs),
    /// Run a camera node: frames from a source, sent when there is a subscriber
    Camera(CameraArgs),
    /// Measure what each knob setting costs in bytes and is worth to a detector, on your own footage
    Characterize(CharacterizeArgs),
    /// List the cameras of a node; add, remove, try and find cameras for its configuration
    Cameras(Box<CamerasCommandArgs>),
    /// Show the fabric of many nodes as one of them sees it, find members, forget one, or leave it
    Fabric(FabricArgs),
    /// List the sessions of MQTT clients at a node, and end them
    Sessions(SessionsArgs),
    /// List the messages that destinations of sinks refused for good, and have them given there again
    Sinks(SinksArgs),
    /// Receive frames within bounds and show how they are kept, one live line for each camera
    Subscribe(SubscribeArgs),
    /// Look at live frames with a detector of this machine, within one bound for network and detector
    Detect(DetectArgs),
    /// Fetch an untouched frame by its capture time
    Fetch(FetchArgs),
    /// Publish MQTT messages
    Pub(Box<PubArgs>),
    /// Subscribe to MQTT messages and print them
    Sub(Box<SubArgs>),
    /// Play a trace to a broker at its own pace: CSV, SenML or RIoTBench's rows, as one device or as many
    Replay(Box<ReplayArgs>),
    /// Check flows, run messages through them without a node, and learn their models
    Flow(FlowArgs),
    /// Add, change or remove a user in a password file; the password is typed without echo, or comes from the standard input
    Passwd(PasswdArgs),
    /// Inspect the data folder of a node, running or not: certificates, files, logs; changes nothing
    Doctor(DoctorArgs),
    /// Make the key that seals (encrypts) logs
    Key(KeyArgs),
    /// Explain the rules: the rights of users, and the rule for each
    Acl(AclArgs),
    /// Look at images by ONNX models, as a program of a node's pool (workers.runtime)
    Worker(WorkerArgs),
    /// Print the configuration in effect and where each setting comes from
    Config(ConfigArgs),
}

/// Runs the program and returns its exit status.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = program::begin() {
        return program::finish(Err(error));
    }
    // It has one thread, and reads no configuration.
    if let Command::Worker(args) = &cli.command {
        return program::finish(worker::run(args));
    }
    // Before there are threads: frames and messages are woken for many times a second, and each time there is little to do.
    if matches!(cli.command, Command::Node(_) | Command::Camera(_))
        && let Err(error) = tidegate_sys::sched::short_turns()
    {
        tracing::debug!(%error, "shorter scheduler turns were refused");
    }
    // A fleet has more connections than the usual limit of files.
    if matches!(cli.command, Command::Node(_) | Command::Camera(_))
        && let Err(error) = descriptors::raise_limit()
    {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let runtime = match &cli.command {
        // One source and one link are less than a processor's work, and waking a second thread for each step of it
        // costs more than the step. Its encoder has a thread of its own.
        Command::Camera(_) => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        _ => tokio::runtime::Builder::new_multi_thread().enable_all().build(),
    };
    program::run(runtime, |stop| run(cli, stop))
}

/// Keys of the node are in its memory.
fn keep_memory_private() {
    if let Err(error) = tidegate_sys::process::keep_memory_private() {
        tracing::warn!(%error, "core dumps of this process could not be disabled");
    }
}

async fn run(cli: Cli, stop: CancellationToken) -> Result<(), ApiError> {
    let load = || Config::load(cli.config.as_deref(), &cli.set);
    let mut file = PathBuf::new();
    let config = match &cli.command {
        // A configuration that is wrong is one more thing to be found.
        Command::Doctor(args) => return doctor::run(load(), args),
        // It reads the configuration to the end, whatever is wrong with it.
        Command::Config(ConfigArgs { what: Some(ConfigCommand::Check(_)), .. }) => {
            Config::default()
        }
        Command::Node(NodeArgs {}) => {
            step::begin("reading the configuration, certificates, users and rules");
            let (path, set) = (cli.config.clone(), cli.set.clone());
            tokio::task::spawn_blocking(move || crate::run::check::read(path.as_deref(), &set))
                .await
                .map_err(|error| {
                    let text = "the configuration was not read by a fault of the program";
                    ApiError::new(Code::INTERNAL, text).caused_by(error)
                })??
        }
        // They may be what writes it.
        Command::Init(_) | Command::Join(_) => {
            let (config, path) = Config::load_or_begin(cli.config.as_deref(), &cli.set)?;
            file = path;
            config
        }
        _ => load()?,
    };
    logging::set_format(config.log.format);
    match cli.command {
        Command::Init(args) => init::run(&config, &file, &cli.set, &args),
        Command::Invite(args) => enrol::invite(&config, &args),
        Command::Join(args) => until(stop, enrol::join(&config, &file, &cli.set, &args)).await,
        Command::Revoke(args) => until(stop, revoke::run(&config, &args)).await,
        Command::Node(NodeArgs {}) => {
            keep_memory_private();
            // The file that was read first is read again, also where it was found and not named: one that is gone is no other one.
            let path = cli.config.or_else(|| config.file().map(Path::to_owned));
            let set = cli.set;
            let reload = Arc::new(move || crate::run::check::read(path.as_deref(), &set));
            match config.is_mqtt_alone() {
                true => until_stopped(stop.clone(), run::mqtt_alone(&config, reload, stop)).await,
                false => until_stopped(stop.clone(), run::node(&config, reload, stop)).await,
            }
        }
        Command::Camera(args) => {
            keep_memory_private();
            let spec = args.spec()?;
            let edge = args.edge.as_deref();
            let camera = run::camera(&config, args.name, spec, edge, stop.clone());
            until_stopped(stop, camera).await
        }
        Command::Characterize(args) => until(stop, characterize::run(&config, args)).await,
        Command::Cameras(args) => until(stop.clone(), cameras::run(&config, &args, stop)).await,
        Command::Fabric(args) => until(stop, fabric::run(&config, &args)).await,
        Command::Sessions(args) => until(stop, sessions::run(&config, &args)).await,
        Command::Sinks(args) => until(stop, sinks::run(&config, &args)).await,
        Command::Subscribe(args) => subscribe::run(&config, args, stop).await,
        Command::Detect(args) => detect::run(&config, args, stop).await,
        Command::Fetch(args) => until(stop, fetch::run(&config, &args)).await,
        Command::Pub(args) => mqtt::publish(*args, stop).await,
        Command::Sub(args) => mqtt::subscribe(*args, stop).await,
        Command::Replay(args) => replay::run(*args, stop).await,
        Command::Flow(args) => tokio::task::block_in_place(|| flow::run(&args)),
        Command::Passwd(args) => password::passwd(&args, stop).await,
        Command::Key(args) => doctor::key(&args),
        Command::Doctor(args) => doctor::run(Ok(config), &args),
        Command::Acl(args) => acl::run(&config, &args),
        Command::Worker(args) => worker::run(&args),
        Command::Config(ConfigArgs { what: None, output: Output::Table }) => {
            print(&config.to_string())
        }
        Command::Config(ConfigArgs { what: None, output: Output::Json }) => {
            print(&config_json(&config)?)
        }
        Command::Config(ConfigArgs { what: Some(ConfigCommand::Check(args)), .. }) => {
            until(stop, check::run(cli.config.as_deref(), &cli.set, &args)).await
        }
        Command::Config(ConfigArgs { what: Some(ConfigCommand::Reload(args)), .. }) => {
            until(stop, check::reload(&config, &args)).await
        }
        Command::Config(ConfigArgs {
            what: Some(ConfigCommand::ImportMosquitto { file, secrets_dir }),
            ..
        }) => config::import(&file, &secrets_dir),
    }
}

/// A node: its log says when it is to stop, and when it has.
async fn until_stopped(
    stop: CancellationToken,
    node: impl Future<Output = Result<(), ApiError>>,
) -> Result<(), ApiError> {
    let mut node = pin!(node);
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        result = &mut node => Some(result),
    };
    let result = match ended {
        Some(result) => result,
        None => {
            tracing::info!("stopping");
            node.await
        }
    };
    if result.is_ok() {
        tracing::info!("stopped");
    }
    result
}

/// The configuration as JSON: the printed TOML, read again.
fn config_json(config: &Config) -> Result<String, ApiError> {
    let text = config.to_string();
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        ApiError::new(Code::INTERNAL, "the configuration is printed as no TOML").caused_by(error)
    })?;
    let json = serde_json::to_string_pretty(&table).map_err(|error| {
        ApiError::new(Code::INTERNAL, "the configuration is not JSON").caused_by(error)
    })?;
    Ok(json + "\n")
}

#[cfg(test)]
mod tests;
