//! `tidegate sinks`: messages that destinations of sinks refused for good, and their way back to the sinks.
//!
//! The command reads the files of the node, running or not, and writes none: for a replay it renames one, and the sink does the rest.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tidegate_api::ApiError;
use tidegate_cli::program::{Output, aligned, plain, print};
use tidegate_config::Config;
use tidegate_message::{Code, quantity};
use tidegate_sinks::{
    RefusedFile,
    refused::{self, Refused},
};

use crate::run::sinks;

/// How often it is looked whether the sink is done.
const LOOK: Duration = Duration::from_millis(100);
/// Characters of a payload in a table.
const PAYLOAD_SHOWN: usize = 60;

/// Arguments of `tidegate sinks`.
#[derive(Args, Debug)]
pub struct SinksArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the sinks of this node that keep refused messages
    List(ListArgs),
    /// Print the messages that the destination of a sink refused for good, and why
    Refused(RefusedArgs),
    /// Have a sink give its refused messages to its destination again, and wait until it has
    Replay(ReplayArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    /// How to print them
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct RefusedArgs {
    /// The sink, as in [sink.NAME]
    #[arg(value_name = "NAME")]
    sink: String,
    /// How to print them: json has payloads in full, in Base64
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct ReplayArgs {
    /// The sink, as in [sink.NAME]
    #[arg(value_name = "NAME")]
    sink: String,
    /// How long to wait for the sink
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = quantity::duration)]
    wait: Duration,
    /// How to print how many there were
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Lists, prints or replays refused messages.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] for a sink that there is not, [`Code::STORAGE_FAILED`] for a file that cannot be read, [`Code::LINK_DOWN`] if the
/// sink has not taken the messages in time.
pub(super) async fn run(config: &Config, args: &SinksArgs) -> Result<(), ApiError> {
    let folder = sinks::folder(config);
    match &args.what {
        What::List(args) => list(&folder, args.output),
        What::Refused(args) => {
            let file = file_of(config, &folder, &args.sink)?;
            print(&shown(&read(&file.refused())?, args.output))
        }
        What::Replay(args) => replay(config, &folder, args).await,
    }
}

fn failed(path: &Path, error: io::Error) -> ApiError {
    let text = format!("{} cannot be read or renamed", path.display());
    ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
}

/// The file of a sink that is configured, or of which messages are kept though it no longer is.
fn file_of(config: &Config, folder: &Path, sink: &str) -> Result<RefusedFile, ApiError> {
    let kept = refused::kept(folder).map_err(|error| failed(folder, error))?;
    if !config.sinks.contains_key(sink) && kept.iter().all(|kept| kept.sink != sink) {
        let names: Vec<&str> = config.sinks.keys().map(String::as_str).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let text = format!("there is no [sink.{sink}]; there are: {names}");
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    Ok(RefusedFile::new(folder, sink, 0))
}

/// The messages of a file; none where there is no file.
fn read(path: &Path) -> Result<Vec<Refused>, ApiError> {
    match refused::read(path).and_then(Iterator::collect) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| failed(path, error)),
    }
}

fn list(folder: &Path, output: Output) -> Result<(), ApiError> {
    let kept = refused::kept(folder).map_err(|error| failed(folder, error))?;
    let mut rows = Vec::new();
    for sink in kept {
        let file = RefusedFile::new(folder, &sink.sink, 0);
        let (waits, comes) = (read(&file.refused())?.len(), read(&file.replay())?.len());
        rows.push((sink.sink, waits, comes, sink.refused_bytes + sink.replay_bytes));
    }
    if output == Output::Json {
        let row = |(sink, refused, replayed, bytes)| json!({ "sink": sink, "refused": refused, "replayed": replayed, "bytes": bytes });
        let rows: Vec<Value> = rows.into_iter().map(row).collect();
        return print(&format!("{:#}\n", Value::from(rows)));
    }
    let row = |(sink, refused, replayed, bytes): (String, usize, usize, u64)| {
        [plain(&sink), refused.to_string(), replayed.to_string(), bytes.to_string()]
    };
    print(&aligned(["SINK", "REFUSED", "REPLAYED NOW", "BYTES"], rows.into_iter().map(row)))
}

fn shown(messages: &[Refused], output: Output) -> String {
    if output == Output::Json {
        let row = |Refused { record, reason }: &Refused| {
            json!({
                "received": record.time.as_nanos(),
                "topic": &*record.topic,
                "reason": reason,
                "qos": record.qos as u8,
                "id": record.id.as_deref(),
                "payload": BASE64_STANDARD.encode(&record.payload),
            })
        };
        let rows: Vec<Value> = messages.iter().map(row).collect();
        return format!("{:#}\n", Value::from(rows));
    }
    let row = |Refused { record, reason }: &Refused| {
        let payload = match std::str::from_utf8(&record.payload) {
            Ok(text) if text.chars().count() <= PAYLOAD_SHOWN => plain(text),
            Ok(text) => {
                format!("{}…", plain(&text.chars().take(PAYLOAD_SHOWN).collect::<String>()))
            }
            Err(_) => format!("{} bytes", record.payload.len()),
        };
        let time = record.time.to_string();
        [time, plain(&record.topic), plain(reason), payload]
    };
    aligned(["RECEIVED", "TOPIC", "REASON", "PAYLOAD"], messages.iter().map(row))
}

async fn replay(config: &Config, folder: &Path, args: &ReplayArgs) -> Result<(), ApiError> {
    let file = file_of(config, folder, &args.sink)?;
    let (refused, replay) = (file.refused(), file.replay());
    // One that is under way is waited for.
    if !replay.exists() {
        match fs::rename(&refused, &replay) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed.map_err(|error| failed(&refused, error))?,
        }
    }
    let count = read(&replay)?.len();
    let ends = Instant::now() + args.wait;
    while replay.exists() {
        if Instant::now() >= ends {
            let text = format!(
                "the sink {} has not given its {count} messages to its destination within {:?}: they wait in {}, and go as soon as the \
                 node runs and the destination takes them",
                args.sink,
                args.wait,
                replay.display()
            );
            return Err(ApiError::new(Code::LINK_DOWN, text));
        }
        tokio::time::sleep(LOOK).await;
    }
    let left = read(&refused)?.len();
    print(&match args.output {
        Output::Json => format!("{:#}\n", json!({ "replayed": count, "refused": left })),
        Output::Table => {
            format!("{count} given to the destination again; {left} are refused now\n")
        }
    })
}
