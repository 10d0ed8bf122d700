//! A trace played to a broker at its own pace: rows of a file become messages, each when its time says.
//!
//! ```text
//!  file ─▶ rows ─▶ reading (columns, time) ─▶ schedule ─▶ topic by template, row as payload ─▶ broker
//!          (one)    (in memory, where several devices begin at places of their own)
//! ```
//!
//! [`play`] does all of it. The parts that cut rows, read columns and times, fill topics and say when are without I/O.
//!
//! Always true:
//! - a payload is its row byte for byte, without the end of its line;
//! - the nth message is due at a moment that follows from the trace, the pace and the start alone: one that left late makes none
//!   behind it late, and nothing waits for a time that has passed;
//! - rows go in the order of the file: one whose time is before that of an earlier row goes with it, and is counted;
//! - one device needs no more memory for a longer trace; several hold the trace, [`HELD_BYTES_MAX`] at most.

mod csv;
mod player;
mod reading;
mod rows;
mod schedule;
mod senml;
mod template;
mod time;

use std::{fmt, io, path::PathBuf, time::Duration};

use clap::ValueEnum;
use tidegate_wire::mqtt::{QoS, ReasonCode};

pub use self::{
    player::{Progress, play},
    template::{Column, Template, TemplateError},
    time::TimeUnit,
};
use self::{reading::Known, time::TimeFault};
use crate::client::ClientError;

/// Longest row.
pub const ROW_BYTES_MAX: usize = 1 << 20;
/// Most that is held of a trace which several devices play, or which comes from the standard input and is repeated: its rows and
/// 16 bytes for each.
pub const HELD_BYTES_MAX: usize = 1 << 30;
/// Most devices.
pub const DEVICES_MAX: u32 = 1_000_000;

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Comma-separated values (RFC 4180), with or without a line of names.
    Csv,
    /// SenML in JSON (RFC 8428), a pack a line; also RIoTBench's form of it, {"e":[…],"bt":…}.
    Senml,
    /// RIoTBench's sample rows: a time in milliseconds, a comma, and its form of SenML.
    Riotbench,
}

/// Treatment of a row that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnBad {
    /// The replay ends with an error that names it.
    #[default]
    Stop,
    /// It is left out, and counted.
    Skip,
}

/// Part of a row that becomes the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Payload {
    /// All of it.
    #[default]
    Row,
    /// Of RIoTBench's rows what stands behind the time; of others all.
    Message,
}

/// When messages leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As the trace's own times say, so many times as fast.
    Own(f64),
    /// So many a second, of all devices together, whatever the times say.
    Rate(f64),
    /// As fast as the broker takes them.
    Unpaced,
}

/// Where a trace comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trace {
    /// A file.
    File(PathBuf),
    /// The standard input.
    StandardInput,
}

/// How a trace is played.
#[derive(Clone, Debug)]
pub struct Options {
    /// How it is written. Default none: as it looks.
    pub format: Option<Format>,
    /// Whether CSV begins with a line of names. Default none: where no field of the first line is a number, a date or empty.
    pub header: Option<bool>,
    /// Delimiter between fields of CSV. Default a comma.
    pub delimiter: u8,
    /// The topic of each row. Default `replay/{device}`.
    pub topic: Template,
    /// The column with the time. Default none: the one that is called so, or looks so; in SenML the records' own times.
    pub time: Option<Column>,
    /// How times are written. Default none: as the first one looks.
    pub time_unit: Option<TimeUnit>,
    /// When messages leave. Default at the pace of the trace.
    pub pace: Pace,
    /// How many devices play the trace, each from a place of its own. Default 1, from its beginning.
    pub devices: u32,
    /// Says where devices begin. Default 1.
    pub seed: u64,
    /// Whether it begins again at its end. Default false.
    pub repeat: bool,
    /// Longest time to play. Default none: to the end.
    pub duration: Option<Duration>,
    /// Most messages. Default none.
    pub messages_max: Option<u64>,
    /// Quality of service. Default 0.
    pub qos: QoS,
    /// Messages of QoS 1 and 2 under way at a time. Default 1000.
    pub inflight: u16,
    /// Treatment of rows that cannot be read. Default [`OnBad::Stop`].
    pub on_bad: OnBad,
    /// Part of a row that is sent. Default [`Payload::Row`].
    pub payload: Payload,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            format: None,
            header: None,
            delimiter: b',',
            topic: "replay/{device}".parse().expect("it is a template"),
            time: None,
            time_unit: None,
            pace: Pace::Own(1.0),
            devices: 1,
            seed: 1,
            repeat: false,
            duration: None,
            messages_max: None,
            qos: QoS::AtMostOnce,
            inflight: 1000,
            on_bad: OnBad::default(),
            payload: Payload::default(),
        }
    }
}

impl Options {
    /// # Errors
    /// `Pace`, `Devices` and `SharedTopics` of [`ReplayError`].
    pub fn check(&self) -> Result<(), ReplayError> {
        if let Pace::Own(number) | Pace::Rate(number) = self.pace
            && !(number > 0.0 && number.is_finite())
        {
            return Err(ReplayError::Pace);
        }
        if !(1..=DEVICES_MAX).contains(&self.devices) {
            return Err(ReplayError::Devices { devices: self.devices });
        }
        if self.devices > 1 && !self.topic.names_device() {
            return Err(ReplayError::SharedTopics);
        }
        Ok(())
    }
}

/// Format and times of a trace, as they were recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// How it is written.
    pub format: Format,
    /// Whether it begins with a line of names.
    pub has_header: bool,
    /// Where times are and how they are written; none where they do not matter.
    pub time: Option<(String, TimeUnit)>,
}

/// Counts of messages that were played.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Messages that the kernel took or that are under way.
    pub messages: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Devices that sent.
    pub devices: u32,
    /// From the first to the last.
    pub elapsed: Duration,
    /// How late the latest left; none without a pace.
    pub latest: Option<Duration>,
    /// Rows of the trace that could not be read.
    pub bad_rows: u64,
    /// The first of them.
    pub first_bad: Option<String>,
    /// Rows of the trace whose time is before that of an earlier one.
    pub reordered_rows: u64,
    /// Messages of QoS 1 and 2 that the broker refused.
    pub refused: u64,
    /// Why it refused the first.
    pub refusal: Option<ReasonCode>,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

impl Summary {
    /// Messages a second; 0 where there was no time.
    pub fn per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.messages as f64 / seconds } else { 0.0 }
    }
}

/// Lines for people, without the end of the last.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages, {} bytes, in {:.3} s",
            self.messages,
            self.payload_bytes,
            self.elapsed.as_secs_f64()
        )?;
        // Of one moment there is no rate.
        if self.messages > 1 && !self.elapsed.is_zero() {
            write!(f, ", {:.1} a second", self.per_second())?;
        }
        if self.devices > 1 {
            write!(f, ", of {} devices", self.devices)?;
        }
        if self.is_stopped {
            write!(f, ", stopped before the end")?;
        }
        if let Some(latest) = self.latest {
            write!(f, "\nthe latest left {:.3} ms after its time", latest.as_secs_f64() * 1e3)?;
        }
        if self.reordered_rows > 0 {
            let rows = Rows(self.reordered_rows);
            write!(
                f,
                "\n{rows} with a time before that of an earlier row, sent in the order of the trace"
            )?;
        }
        if self.bad_rows > 0 {
            write!(f, "\n{} left out", Rows(self.bad_rows))?;
        }
        if let Some(first) = &self.first_bad {
            write!(f, ", the first: {first}")?;
        }
        if let Some(reason) = self.refusal {
            write!(f, "\n{} messages refused by the broker, the first: {reason}", self.refused)?;
        }
        Ok(())
    }
}

struct Rows(u64);

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "row" } else { "rows" })
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::StandardInput => f.write_str("the standard input"),
        }
    }
}

/// Why a row cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RowFault {
    /// It is too long.
    #[error("the row has more than {ROW_BYTES_MAX} bytes")]
    TooLong,
    /// A quote of CSV that nothing closes within the bound of a row.
    #[error("a quote is not closed")]
    OpenQuote,
    /// A bracket of JSON that nothing closes within the bound of a row.
    #[error("a bracket is not closed")]
    OpenBracket,
    /// A field of CSV that continues behind its quotes.
    #[error("column {column}: text stands behind its closing quote")]
    BehindQuote {
        /// Which column, from 1.
        column: usize,
    },
    /// A row that is too short, or a pack without the record.
    #[error("{column} is missing: the row has {columns}")]
    Missing {
        /// Which.
        column: Column,
        /// How many there are.
        columns: usize,
    },
    /// No time.
    #[error("{column}: {text:?} is not a time {}", unit.words())]
    NotTime {
        /// Where it stands.
        column: String,
        /// The text there, or its beginning.
        text: String,
        /// How times are written.
        unit: TimeUnit,
    },
    /// A time that cannot be kept.
    #[error("{column}: {text:?} lies, {}, beyond the years 1678 to 2261", unit.words())]
    TimeRange {
        /// Where it stands.
        column: String,
        /// The text there, or its beginning.
        text: String,
        /// How times are written.
        unit: TimeUnit,
    },
    /// SenML without any time.
    #[error("no record has a time (bt or t)")]
    NoRecordTime,
    /// A value that can be in no topic.
    #[error("{column} is not UTF-8, which a topic has to be")]
    NotText {
        /// Which.
        column: Column,
    },
    /// No SenML.
    #[error("the row is not a SenML pack in JSON")]
    Json {
        /// Its fault.
        #[source]
        source: serde_json::Error,
    },
    /// No row of RIoTBench's.
    #[error("the row is not a time, a comma, and an object in JSON")]
    NotRiotbench,
    /// A topic of nothing.
    #[error("the topic is empty")]
    EmptyTopic,
    /// A topic that MQTT cannot say.
    #[error("the topic has {bytes} bytes, more than 65535")]
    LongTopic {
        /// How many.
        bytes: usize,
    },
}

impl RowFault {
    fn of_time(column: impl fmt::Display, text: &[u8], unit: TimeUnit, fault: TimeFault) -> Self {
        let (column, text) = (column.to_string(), shown(text));
        match fault {
            TimeFault::Form => Self::NotTime { column, text, unit },
            TimeFault::Range => Self::TimeRange { column, text, unit },
        }
    }
}

/// The beginning of a field, for an error.
fn shown(text: &[u8]) -> String {
    const BYTES_MAX: usize = 60;
    let mut shown = String::from_utf8_lossy(&text[..text.len().min(BYTES_MAX)]).into_owned();
    if text.len() > BYTES_MAX {
        shown.push('…');
    }
    shown
}

/// Why a trace is not played, or not further.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// No rate, or no speed.
    #[error("a rate and a speed are numbers over 0")]
    Pace,
    /// None, or too many.
    #[error("{devices} devices: there are from 1 to {DEVICES_MAX}")]
    Devices {
        /// How many were asked for.
        devices: u32,
    },
    /// Devices would mix in one topic.
    #[error("several devices need topics of their own; put {{device}} into --topic")]
    SharedTopics,
    /// The trace cannot be read.
    #[error("{trace} cannot be read")]
    Read {
        /// Which.
        trace: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("{trace} has no row to play")]
    NoRow {
        /// Which.
        trace: String,
    },
    /// A name that no column has.
    #[error("{trace} has no {column}; there are {known}")]
    NoColumn {
        /// Which trace.
        trace: String,
        /// The column that was named.
        column: Column,
        /// Columns that could be named.
        known: Known,
    },
    /// A name where columns have none.
    #[error(
        "{trace} has no line of names, so there is no {column}; name columns by their numbers from 1, or say --header yes"
    )]
    NoNames {
        /// Which trace.
        trace: String,
        /// The column that was named.
        column: Column,
    },
    /// No column looks like a time.
    #[error(
        "no column of {trace} looks like a time; name it with --time, or give --rate or --speed max"
    )]
    NoTime {
        /// Which trace.
        trace: String,
    },
    /// Times that look like none.
    #[error(
        "line {line} of {trace}: {text:?} in {column} is not a time; name another column with --time, or its unit with --time-unit"
    )]
    UnknownUnit {
        /// Which trace.
        trace: String,
        /// Where.
        line: u64,
        /// Which column.
        column: String,
        /// The text there.
        text: String,
    },
    /// A row that cannot be read, where such rows are not left out.
    #[error(
        "line {line} of {trace} cannot be played; mend it, or leave such rows out with --on-bad skip"
    )]
    Bad {
        /// Which trace.
        trace: String,
        /// Which line, from 1.
        line: u64,
        /// Its fault.
        #[source]
        fault: RowFault,
    },
    /// A trace that several devices cannot hold.
    #[error(
        "{trace} is larger than the {HELD_BYTES_MAX} bytes that several devices, or a standard input that is repeated, may hold; \
         play a part of it, or a file with one device"
    )]
    TooLarge {
        /// Which trace.
        trace: String,
    },
    /// The broker, or the way there.
    #[error(transparent)]
    Client(#[from] ClientError),
}

#[cfg(test)]
mod tests;
