//! `pub` and `sub` from the command line: flags, and what they do.

use std::{
    io::{self, BufRead, Write},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate_message::Backoff;
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};

use crate::{
    client::{Client, ClientError, Message, Outgoing},
    connect::{ConnectArgs, ConnectError},
    flag::qos,
};

/// How soon a stop is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Waits between tries to connect again: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Flags of `pub`.
#[derive(Args, Clone, Debug)]
pub struct PubArgs {
    /// The connection
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Topic to publish to
    #[arg(short, long, value_name = "TOPIC")]
    pub topic: String,
    /// The message
    #[arg(short, long, value_name = "TEXT", group = "what")]
    pub message: Option<String>,
    /// The message is this file
    #[arg(short, long, value_name = "FILE", group = "what")]
    pub file: Option<PathBuf>,
    /// Each line of the standard input is a message
    #[arg(short = 'l', long, group = "what")]
    pub stdin_line: bool,
    /// The message is the whole standard input
    #[arg(short, long, group = "what")]
    pub stdin_file: bool,
    /// The message is empty: with --retain, the broker deletes the retained message of the topic
    #[arg(short, long, group = "what")]
    pub null_message: bool,
    /// Quality of service
    #[arg(short, long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    pub qos: QoS,
    /// The broker keeps the message for later subscribers
    #[arg(short, long)]
    pub retain: bool,
    /// Publish so many times
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub repeat: u32,
    /// Seconds after which the broker drops the message (MQTT 5)
    #[arg(long, value_name = "SECONDS")]
    pub expiry: Option<u32>,
    /// User property of each message, may be repeated (MQTT 5)
    #[arg(short = 'D', long, value_name = "NAME=VALUE", value_parser = property)]
    pub user_property: Vec<(String, String)>,
}

/// Flags of `sub`.
#[derive(Args, Clone, Debug)]
pub struct SubArgs {
    /// The connection
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Filter to subscribe to, may be repeated
    #[arg(short, long, value_name = "FILTER", required = true)]
    pub topic: Vec<String>,
    /// Highest quality of service
    #[arg(short, long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    pub qos: QoS,
    /// End after so many messages
    #[arg(short = 'C', long, value_name = "N")]
    pub count: Option<u64>,
    /// End after so many seconds
    #[arg(short = 'W', long, value_name = "SECONDS")]
    pub within: Option<u32>,
    /// Do not print retained messages
    #[arg(short = 'R', long)]
    pub no_retained: bool,
    /// Parts of a message that are printed [default: payload]
    #[arg(short, long, value_enum, alias = "format", short_alias = 'F')]
    pub output: Option<MessageFormat>,
    /// Print topics before payloads, as --output topic
    #[arg(short, long, conflicts_with = "output")]
    pub verbose: bool,
    /// User property of the connection, may be repeated (MQTT 5)
    #[arg(short = 'D', long, value_name = "NAME=VALUE", value_parser = property)]
    pub user_property: Vec<(String, String)>,
}

/// Parts of a message that are printed, on a line of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MessageFormat {
    /// The payload.
    #[default]
    Payload,
    /// Topic, a space, and the payload.
    Topic,
    /// An object; a payload that is no text is in hexadecimal digits.
    Json,
}

impl PubArgs {
    /// Publishes what the flags say, `input` being the standard input. Returns how many messages went.
    ///
    /// # Errors
    /// Any of [`CommandError`].
    pub fn run(&self, mut input: impl BufRead) -> Result<u64, CommandError> {
        let payload = if let Some(text) = &self.message {
            Some(text.clone().into_bytes())
        } else if let Some(path) = &self.file {
            let failed = |source| CommandError::File { path: path.clone(), source };
            Some(std::fs::read(path).map_err(failed)?)
        } else if self.stdin_file {
            let mut whole = Vec::new();
            input.read_to_end(&mut whole).map_err(|source| CommandError::Input { source })?;
            Some(whole)
        } else if self.null_message {
            Some(Vec::new())
        } else if self.stdin_line {
            None
        } else {
            return Err(CommandError::NoMessage);
        };
        let mut client = Client::connect(self.connect.options(Vec::new())?)?;
        let mut messages = 0;
        let mut publish = |client: &mut Client, payload: &[u8]| {
            messages += 1;
            client.publish(&Outgoing {
                topic: &self.topic,
                payload,
                qos: self.qos,
                retain: self.retain,
                message_expiry: self.expiry,
                user_properties: &self.user_property,
            })
        };
        match payload {
            Some(payload) => {
                for _ in 0..self.repeat {
                    publish(&mut client, &payload)?;
                }
            }
            None => {
                // TODO when a pause between lines longer than the keep alive matters: ping while waiting for one.
                let mut line = Vec::new();
                let failed = |source| CommandError::Input { source };
                while input.read_until(b'\n', &mut line).map_err(failed)? > 0 {
                    publish(&mut client, line.strip_suffix(b"\n").unwrap_or(&line))?;
                    line.clear();
                }
            }
        }
        client.disconnect()?;
        Ok(messages)
    }
}

impl SubArgs {
    /// Prints messages to `output` until there were as many as asked for, the time is over, or `stop` is set. Returns how many. A
    /// connection that is lost is made again, and the standard error says so.
    ///
    /// # Errors
    /// Any of [`CommandError`]: the first connection fails, the client is not let in, or another has taken its place.
    pub fn run(&self, mut output: impl Write, stop: &AtomicBool) -> Result<u64, CommandError> {
        let until = self.within.map(|within| Instant::now() + Duration::from_secs(within.into()));
        let is_over = |messages: u64| {
            self.count.is_some_and(|count| messages >= count)
                || stop.load(Ordering::Relaxed)
                || until.is_some_and(|until| until <= Instant::now())
        };
        let format = match (self.output, self.verbose) {
            (Some(format), _) => format,
            (None, true) => MessageFormat::Topic,
            (None, false) => MessageFormat::Payload,
        };
        let mut client = self.begin()?;
        let mut messages = 0;
        while !is_over(messages) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let message = match client.receive(left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(error) if is_final(&error) => return Err(error.into()),
                Err(error) => match self.begin_again(&error, || is_over(messages))? {
                    Some(again) => {
                        client = again;
                        continue;
                    }
                    None => return Ok(messages),
                },
            };
            if message.retain && self.no_retained {
                continue;
            }
            messages += 1;
            let written = format.write(&message, &mut output).and_then(|()| output.flush());
            written.map_err(|source| CommandError::Output { source })?;
        }
        client.disconnect()?;
        Ok(messages)
    }

    /// Connects and subscribes.
    fn begin(&self) -> Result<Client, CommandError> {
        let mut client = Client::connect(self.connect.options(self.user_property.clone())?)?;
        let filter = |filter: &String| SubscribeFilter {
            filter: filter.clone(),
            maximum_qos: self.qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: if self.no_retained {
                RetainHandling::DoNotSend
            } else {
                RetainHandling::Send
            },
        };
        let filters: Vec<_> = self.topic.iter().map(filter).collect();
        let reasons = client.subscribe(&filters)?;
        if let Some((filter, &reason)) =
            self.topic.iter().zip(&reasons).find(|(_, reason)| reason.is_failure())
        {
            let peer = client.peer();
            return Err(ClientError::Subscribe { peer, filter: filter.clone(), reason }.into());
        }
        Ok(client)
    }

    /// The same after a connection was lost, until it works or is over; then none.
    fn begin_again(
        &self,
        lost: &ClientError,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<Client>, CommandError> {
        // Messages are printed also where standard error cannot be written to.
        let say = |text: &str| {
            let _ = writeln!(io::stderr(), "{text}");
        };
        say(&format!("{lost}; connecting again"));
        let mut waits = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            let wait = waits.next_wait();
            let from = Instant::now();
            while from.elapsed() < wait {
                if is_over() {
                    return Ok(None);
                }
                thread::sleep(LOOK_EVERY.min(wait));
            }
            match self.begin() {
                Ok(client) => {
                    say("connected again");
                    return Ok(Some(client));
                }
                Err(CommandError::Client(error)) if !is_final(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether another try would have the same end.
fn is_final(error: &ClientError) -> bool {
    match error {
        ClientError::Disconnected { reason, .. } | ClientError::Refused { reason, .. } => matches!(
            *reason,
            ReasonCode::SESSION_TAKEN_OVER
                | ReasonCode::BAD_USER_NAME_OR_PASSWORD
                | ReasonCode::NOT_AUTHORIZED
                | ReasonCode::BANNED
                | ReasonCode::ADMINISTRATIVE_ACTION
        ),
        ClientError::Subscribe { .. }
        | ClientError::ServerName { .. }
        | ClientError::Topic { .. } => true,
        _ => false,
    }
}

/// A message as JSON.
#[derive(Serialize)]
struct MessageJson<'a> {
    topic: &'a str,
    qos: u8,
    retain: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_expiry: Option<u32>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    user_properties: &'a [(String, String)],
}

impl MessageFormat {
    /// Writes a message and the end of its line.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write(self, message: &Message, output: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Payload => output.write_all(&message.payload)?,
            Self::Topic => {
                output.write_all(message.topic.as_bytes())?;
                output.write_all(b" ")?;
                output.write_all(&message.payload)?;
            }
            Self::Json => {
                let text = std::str::from_utf8(&message.payload).ok();
                let hex = || message.payload.iter().map(|byte| format!("{byte:02x}")).collect();
                let json = MessageJson {
                    topic: &message.topic,
                    qos: message.qos as u8,
                    retain: message.retain,
                    payload: text,
                    payload_hex: if text.is_none() { Some(hex()) } else { None },
                    message_expiry: message.message_expiry,
                    user_properties: &message.user_properties,
                };
                serde_json::to_writer(&mut *output, &json)?;
            }
        }
        output.write_all(b"\n")
    }
}

fn property(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("a user property is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Why `pub` or `sub` ended.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The client failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The flags make no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There is nothing to publish.
    #[error(
        "there is no message: give --message, --file, --stdin-line, --stdin-file or --null-message"
    )]
    NoMessage,
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The standard input cannot be read.
    #[error("the standard input cannot be read")]
    Input {
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The standard output is gone.
    #[error("messages cannot be printed")]
    Output {
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}
