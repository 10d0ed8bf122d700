//! `tidegate-lab bench mqtt`, `bench sensors` and `bench vision`: loads for a broker, and for a server that looks at images.

use std::io::{self, Write as _};

use clap::{Args, Subcommand};
use tidegate_api::ApiError;
use tidegate_cli::program::{aside, plain, print, shown};
use tidegate_load::{
    Phase, Progress, Report,
    args::{Format, LoadArgs},
    devices::{self, SensorArgs, SensorError, SensorReport},
    vision::{self, VisionError, VisionReport, args::VisionArgs},
};
use tidegate_message::Code;
use tokio_util::sync::CancellationToken;

/// Arguments of `tidegate-lab bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// The target of the load.
    #[command(subcommand)]
    pub what: BenchCommand,
}

/// The loads.
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Load an MQTT broker from many connections and report rates and latencies
    Mqtt(Box<MqttBenchArgs>),
    /// Simulate the sensors of four published applications, from a seed, and verify that their messages arrive
    Sensors(Box<SensorBenchArgs>),
    /// Send images to a detector from many clients; report full process, network only and server time, as multi_client.py does
    Vision(Box<VisionBenchArgs>),
}

/// Arguments of `tidegate-lab bench mqtt`.
#[derive(Args, Clone, Debug)]
pub struct MqttBenchArgs {
    /// The load
    #[command(flatten)]
    pub load: LoadArgs,
    /// How the report is printed
    #[arg(long, short, value_enum, default_value_t, alias = "format")]
    pub output: Format,
}

/// Arguments of `tidegate-lab bench sensors`.
#[derive(Args, Clone, Debug)]
pub struct SensorBenchArgs {
    /// The devices
    #[command(flatten)]
    pub sensors: SensorArgs,
    /// How the report is printed
    #[arg(long, short, value_enum, default_value_t, alias = "format")]
    pub output: Format,
}

/// Arguments of `tidegate-lab bench vision`.
#[derive(Args, Clone, Debug)]
pub struct VisionBenchArgs {
    /// The clients
    #[command(flatten)]
    pub vision: VisionArgs,
    /// How the report is printed
    #[arg(long, short, value_enum, default_value_t, alias = "format")]
    pub output: Format,
}

pub(super) async fn run(args: BenchArgs, stop: CancellationToken) -> Result<(), ApiError> {
    match args.what {
        BenchCommand::Mqtt(args) => bench_mqtt(*args, stop).await,
        BenchCommand::Sensors(args) => bench_sensors(*args, stop).await,
        BenchCommand::Vision(args) => bench_vision(*args, stop).await,
    }
}

async fn bench_mqtt(args: MqttBenchArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let spec = args.load.spec().map_err(|error| not_run(Code::CONFIG_INVALID, &error))?;
    aside(stop, move |stop| {
        let report =
            shown(|show| tidegate_load::run(&spec, stop, |progress| show(&line(progress))));
        let report = report.map_err(|error| not_run(Code::LINK_DOWN, &error))?;
        print(&match args.output {
            Format::Table => format!("{report}\n"),
            Format::Csv => format!("{}\n{}", Report::CSV_HEAD, report.csv()),
            Format::Json => json(&report),
        })
    })
    .await
}

async fn bench_sensors(args: SensorBenchArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let spec = args.sensors.spec().map_err(|error| not_run(Code::CONFIG_INVALID, &error))?;
    aside(stop, move |stop| {
        let report = shown(|show| {
            devices::run(&spec, stop, |progress| {
                let received = progress.received.map(|count| format!(" · {count} received"));
                let seconds = progress.elapsed.as_secs_f64();
                let received = received.unwrap_or_default();
                show(&format!("{seconds:.1} s · {} sent{received}", progress.sent));
            })
        });
        let report = report.map_err(|error| {
            let code = match &error {
                SensorError::Client(error) => error.code(),
                SensorError::Verify(_) => Code::LIMIT_REACHED,
                _ => Code::CONFIG_INVALID,
            };
            not_run(code, &error)
        })?;
        print(&match args.output {
            Format::Table => format!("{report}\n"),
            Format::Csv => format!("{}\n{}", SensorReport::CSV_HEAD, report.csv()),
            Format::Json => json(&report),
        })?;
        // The report is the answer; a script looks at the exit status.
        if report.is_whole() == Some(false) { std::process::exit(1) } else { Ok(()) }
    })
    .await
}

async fn bench_vision(args: VisionBenchArgs, stop: CancellationToken) -> Result<(), ApiError> {
    aside(stop, move |stop| {
        // Images are read here, for a video takes its time.
        let spec = args.vision.spec().map_err(|error| not_run(Code::CONFIG_INVALID, &error))?;
        let shows = args.vision.show_responses;
        let show = |line: &str| {
            if shows {
                let _ = writeln!(io::stderr(), "{}", plain(line)); // the report is what counts
            }
        };
        let report = vision::run(&spec, stop, &show).map_err(|error| {
            let code = match &error {
                VisionError::Unreachable { .. } => Code::LINK_DOWN,
                VisionError::Threads { .. } => Code::LIMIT_REACHED,
                _ => Code::CONFIG_INVALID,
            };
            not_run(code, &error)
        })?;
        print(&match args.output {
            Format::Table => format!("{report}\n"),
            Format::Csv => format!("{}\n{}", VisionReport::CSV_HEAD, report.csv()),
            Format::Json => json(&report),
        })?;
        // As with sensors: a script looks at the exit status.
        if report.is_whole() { Ok(()) } else { std::process::exit(1) }
    })
    .await
}

fn not_run(code: Code, cause: &(dyn std::error::Error + 'static)) -> ApiError {
    ApiError::new(code, "the load was not run").caused_by(tidegate_message::error_chain(cause))
}

fn json(report: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(report).expect("a report is valid JSON");
    format!("{text}\n")
}

fn line(progress: &Progress) -> String {
    let phase = match progress.phase {
        Phase::Connect => "connecting",
        Phase::WarmUp => "warming up",
        Phase::Measure => "measuring",
        Phase::Drain => "draining",
    };
    format!(
        "{phase} {:.1} s · {} connected · {} sent · {} received",
        progress.elapsed.as_secs_f64(),
        progress.connected,
        progress.sent,
        progress.received
    )
}
