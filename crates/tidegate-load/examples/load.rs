//! A load from the command line: `load --target 127.0.0.1:1883 --pairs 1 --qos 0 --payload 100 --seconds 5 --format json`.

use std::{error::Error as _, io::IsTerminal as _, process::ExitCode, sync::atomic::AtomicBool};

use clap::Parser;
use tidegate_load::{
    Phase, Progress, Report,
    args::{Format, LoadArgs},
};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    load: LoadArgs,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The same as --format json
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let program = Program::parse();
    let shows = std::io::stderr().is_terminal();
    let progress = |progress: &Progress| {
        if shows {
            eprint!("\r{}\x1b[K", line(progress));
        }
    };
    let result = tidegate_load::run(&program.load.spec(), &AtomicBool::new(false), progress);
    if shows {
        eprint!("\r\x1b[K");
    }
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            let mut cause = error.source();
            eprint!("load: {error}");
            while let Some(source) = cause {
                eprint!(": {source}");
                cause = source.source();
            }
            eprintln!();
            return ExitCode::FAILURE;
        }
    };
    match if program.json { Format::Json } else { program.format } {
        Format::Table => println!("{report}"),
        Format::Csv => print!("{}\n{}", Report::CSV_HEAD, report.csv()),
        Format::Json => {
            println!("{}", serde_json::to_string_pretty(&report).expect("a report is valid JSON"));
        }
    }
    ExitCode::SUCCESS
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
