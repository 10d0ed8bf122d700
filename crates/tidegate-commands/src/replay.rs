//! `tidegate replay`: a trace played to a broker at its own pace.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use clap::{Args, ValueEnum};
use tidegate_api::ApiError;
use tidegate_cli::program::{Output, aside, plain, print, shown};
use tidegate_load::{
    client::refusal_code,
    connect::ConnectArgs,
    flag::qos,
    replay::{
        Column, DEVICES_MAX, Format, OnBad, Options, Pace, Payload, Recognised, ReplayError,
        Summary, Template, TimeUnit, Trace, play,
    },
};
use tidegate_message::{Code, quantity};
use tidegate_wire::mqtt::QoS;
use tokio_util::sync::CancellationToken;

use crate::mqtt::failure;
/// Arguments of `tidegate replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The connection
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// The trace, a row a message; - for the standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How the trace is written [default: as it looks]
    #[arg(short = 'F', long, value_enum)]
    pub format: Option<Format>,
    /// Whether CSV begins with a line of names [default: if none of its fields is empty, a number or a date]
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    pub header: Option<bool>,
    /// The delimiter of the fields of CSV; tab for a tab
    #[arg(long, value_name = "CHARACTER", default_value = ",", value_parser = delimiter)]
    pub delimiter: u8,
    /// Topic of each row: {NAME} is what stands in that column, {2} in the second, {device} the number of the device
    #[arg(short, long, value_name = "TEMPLATE", default_value = "replay/{device}")]
    pub topic: Template,
    /// Column with the time, by name or by number from 1 [default: the one that is called or looks so; the time of SenML]
    #[arg(long, value_name = "COLUMN")]
    pub time: Option<Column>,
    /// How times are written [default: as the first one looks]
    #[arg(long, value_enum, value_name = "UNIT")]
    pub time_unit: Option<TimeUnit>,
    /// Play so many times as fast as the trace's own times say; max for as fast as the broker takes it
    #[arg(long, value_name = "X|max", default_value = "1", value_parser = speed)]
    pub speed: Pace,
    /// Messages a second of all devices together, whatever the trace's times say
    #[arg(
        long,
        value_name = "MESSAGES_PER_SECOND",
        conflicts_with_all = ["speed", "time", "time_unit"],
        value_parser = rate
    )]
    pub rate: Option<Pace>,
    /// Play the trace as N devices at a time, each on topics of its own and from another place of the trace
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(DEVICES_MAX))
    )]
    pub devices: u32,
    /// Seed of the places where devices begin
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Begin again at the end, with times that continue
    #[arg(long = "loop")]
    pub repeat: bool,
    /// Stop after this long
    #[arg(long = "for", value_name = "TIME", value_parser = quantity::duration)]
    pub duration: Option<Duration>,
    /// Stop after so many messages
    #[arg(long, value_name = "MESSAGES")]
    pub limit: Option<u64>,
    /// Quality of service
    #[arg(short, long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    pub qos: QoS,
    /// Unacknowledged messages at a time with QoS 1 and 2
    #[arg(
        long,
        value_name = "MESSAGES",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub inflight: u16,
    /// How to treat a row that cannot be read
    #[arg(long, value_enum, default_value_t)]
    pub on_bad: OnBad,
    /// The part of a row to send
    #[arg(long, value_enum, default_value_t)]
    pub payload: Payload,
    /// How to print what was played
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

impl ReplayArgs {
    fn trace(&self) -> Trace {
        if self.file == Path::new("-") {
            Trace::StandardInput
        } else {
            Trace::File(self.file.clone())
        }
    }

    fn options(&self) -> Options {
        Options {
            format: self.format,
            header: self.header,
            delimiter: self.delimiter,
            topic: self.topic.clone(),
            time: self.time.clone(),
            time_unit: self.time_unit,
            pace: self.rate.unwrap_or(self.speed),
            devices: self.devices,
            seed: self.seed,
            repeat: self.repeat,
            duration: self.duration,
            messages_max: self.limit,
            qos: self.qos,
            inflight: self.inflight,
            on_bad: self.on_bad,
            payload: self.payload,
        }
    }
}

fn object(summary: &Summary) -> serde_json::Value {
    serde_json::json!({
        "messages": summary.messages,
        "payload_bytes": summary.payload_bytes,
        "devices": summary.devices,
        "elapsed_s": summary.elapsed.as_secs_f64(),
        "messages_per_second": summary.per_second(),
        "latest_ms": summary.latest.map(|late| late.as_secs_f64() * 1e3),
        "bad_rows": summary.bad_rows,
        "first_bad": summary.first_bad,
        "reordered_rows": summary.reordered_rows,
        "refused": summary.refused,
        "refusal": summary.refusal.map(|reason| reason.to_string()),
        "is_stopped": summary.is_stopped,
    })
}

/// Plays a trace, until its end or `stop`.
///
/// # Errors
/// Why it cannot be played, with the code.
#[boxed(?Send)]
pub async fn run(args: ReplayArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let (trace, options) = (args.trace(), args.options());
    let broker = args.connect.options(Vec::new()).map_err(|error| {
        ApiError::new(Code::CONFIG_INVALID, "nothing was played")
            .caused_by(tidegate_message::error_chain(&error))
    })?;
    aside(stop, move |stop| {
        // Lines for people, who may look elsewhere.
        let recognised =
            |found: &Recognised| drop(writeln!(io::stderr(), "{}", line(&trace, found)));
        let played = shown(|show| {
            play(&trace, &options, &broker, stop, recognised, |progress| {
                show(&format!(
                    "{:.1} s · {} messages · {:.1} ms late",
                    progress.elapsed.as_secs_f64(),
                    progress.messages,
                    progress.late.as_secs_f64() * 1e3
                ));
            })
        });
        let (summary, failure) = played.map_err(replay_error)?;
        print(&match args.output {
            Output::Table => summary.to_string().lines().map(|line| plain(line) + "\n").collect(),
            Output::Json => format!("{:#}\n", object(&summary)),
        })?;
        if let Some(error) = failure {
            return Err(replay_error(error));
        }
        match summary.refusal {
            None => Ok(()),
            Some(reason) => {
                let text = format!("the broker refused {} messages: {reason}", summary.refused);
                Err(ApiError::new(refusal_code(reason), text))
            }
        }
    })
    .await
}

/// The recognised form of the trace.
fn line(trace: &Trace, found: &Recognised) -> String {
    let names = if found.has_header { " with a line of names" } else { "" };
    let format = match found.format {
        Format::Csv => format!("CSV{names}"),
        Format::Senml => "SenML, a pack a line".to_owned(),
        Format::Riotbench => "rows of RIoTBench".to_owned(),
    };
    let unit = |unit: TimeUnit| match unit {
        TimeUnit::Iso => "dates".to_owned(),
        unit => {
            let name = unit.to_possible_value();
            format!("in {}", name.as_ref().map_or("", |name| name.get_name()))
        }
    };
    let time = match &found.time {
        Some((place, written)) => format!("times {place}, {}", unit(*written)),
        None => "its times do not matter".to_owned(),
    };
    plain(&format!("{trace}: {format}; {time}"))
}

fn replay_error(error: ReplayError) -> ApiError {
    let code = match &error {
        ReplayError::Client(error) => error.code(),
        ReplayError::Read { .. } => Code::STORAGE_FAILED,
        _ => Code::CONFIG_INVALID,
    };
    failure(code, &error)
}

fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("it is yes or no"),
    }
}

fn delimiter(text: &str) -> Result<u8, &'static str> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        &[byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\r' | b'\n') => Ok(byte),
        _ => Err("it is one ASCII character other than a quote or the end of a line, or tab"),
    }
}

fn positive(text: &str) -> Option<f64> {
    text.parse().ok().filter(|&number: &f64| number > 0.0 && number.is_finite())
}

fn speed(text: &str) -> Result<Pace, &'static str> {
    if text == "max" {
        return Ok(Pace::Unpaced);
    }
    positive(text).map(Pace::Own).ok_or("a speed is a number over 0, or max")
}

fn rate(text: &str) -> Result<Pace, &'static str> {
    positive(text).map(Pace::Rate).ok_or("a rate is a number of messages a second, over 0")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(clap::Subcommand)]
    enum Command {
        Replay(Box<ReplayArgs>),
    }

    fn options(line: &str) -> Result<Options, clap::Error> {
        let words = format!("tidegate replay {line}");
        let Command::Replay(args) = Program::try_parse_from(words.split_whitespace())?.command;
        Ok(args.options())
    }

    #[test]
    fn flags_make_a_replay() {
        let plain = options("city.csv").unwrap();
        assert_eq!((plain.pace, plain.devices, plain.delimiter), (Pace::Own(1.0), 1, b','));
        let line = "- --speed 60 --time 2 --time-unit ms --devices 500 --topic a/{device}/{x} --loop --for 2min --delimiter tab";
        let all = options(line).unwrap();
        assert_eq!((all.pace, all.devices, all.delimiter), (Pace::Own(60.0), 500, b'\t'));
        assert_eq!((all.time, all.time_unit), (Some(Column::Number(2)), Some(TimeUnit::Ms)));
        assert_eq!((all.repeat, all.duration), (true, Some(Duration::from_secs(120))));
        assert_eq!(options("x --speed max").unwrap().pace, Pace::Unpaced);
        assert_eq!(options("x --rate 0.5 --header no").unwrap().pace, Pace::Rate(0.5));
    }

    #[test]
    fn wrong_flags_are_told_with_the_way_out() {
        for (line, expected) in [
            ("", "<FILE>"),
            ("x --speed 0", "a number over 0, or max"),
            ("x --speed NaN", "a number over 0, or max"),
            ("x --speed inf", "a number over 0, or max"),
            ("x --rate 1e309", "a number of messages a second"),
            ("x --rate 5 --speed 2", "cannot be used with"),
            ("x --rate 5 --time ts", "cannot be used with"),
            ("x --time 0", "they count from 1"),
            ("x --time-unit min", "[possible values: s, ms, us, ns, iso]"),
            ("x --topic a/#", "leave it out"),
            ("x --topic a/{", "is a brace itself"),
            ("x --devices 0", "0 is not in 1..=1000000"),
            ("x --delimiter ab", "one ASCII character"),
            ("x --header maybe", "yes or no"),
            ("x --format xml", "[possible values: csv, senml, riotbench]"),
            ("x --on-bad ignore", "[possible values: stop, skip]"),
            ("x --for 10", "is not a duration: a number with"),
            ("x --limit all", "invalid digit"),
            ("x --inflight 0", "0 is not in 1..=65535"),
        ] {
            let error = options(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn what_was_recognised_is_said() {
        let trace = Trace::File("city\x1b.csv".into());
        let time = Some(("column \"ts\"".to_owned(), TimeUnit::Ms));
        let found = Recognised { format: Format::Csv, has_header: true, time };
        let expected = "city\u{fffd}.csv: CSV with a line of names; times column \"ts\", in ms";
        assert_eq!(line(&trace, &found), expected);
    }
}
