//! The words of settings that are one of a few: nouns, or words of `tidegate-sys`, where a part of the program goes by them, and here where the configuration alone
//! has them.

pub use tidegate_message::words::{
    Cover, DatagramFormat, Durability, IngestKind, Originals, Overflow, Protocol, ProxyProtocol,
    RemoteVersion, RtspTransport, Transport,
};
pub use tidegate_sys::{bpf::Mode as XdpMode, datagram::Method as ReceiveMethod};

use super::value::{Value, quoted};

/// Settings that are one of a few words, each with what it is called where a word is none of them.
macro_rules! values {
    ($($name:ident is $what:literal,)+) => {$(
        impl Value for $name {
            fn read(text: &str) -> Result<Self, String> {
                let found = Self::WORDS.iter().find(|(word, _)| *word == text);
                found.map(|(_, known)| *known).ok_or_else(|| {
                    let words: Vec<&str> = Self::WORDS.iter().map(|(word, _)| *word).collect();
                    format!("{text:?} is not a valid {}; choose {}", $what, listed(&words))
                })
            }

            fn show(&self) -> Option<String> {
                Some(quoted(self.word()))
            }
        }
    )+};
}

values! {
    AtRest is "state at rest",
    Cover is "cover",
    DatagramFormat is "form of a datagram",
    Durability is "durability",
    IngestKind is "kind of listener",
    Join is "rule for members",
    LogFormat is "format of a log",
    OriginalRule is "rule for originals",
    Originals is "way to give originals",
    Overflow is "overflow policy",
    Policy is "policy",
    Protocol is "protocol",
    ProxyProtocol is "version of the PROXY protocol",
    ReceiveMethod is "way to receive",
    RemoteVersion is "version of MQTT",
    RtspTransport is "transport of a camera",
    SinkKind is "kind of sink",
    Transport is "transport",
    WorkerRuntime is "runtime",
    XdpMode is "mode",
}

/// `a, b or c`.
pub fn listed(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        words => words.concat(),
    }
}

tidegate_message::words! {
    /// Which program of ours looks at images.
    WorkerRuntime {
        /// The Python worker, with its own models.
        Python = "python",
        /// `tidegate worker`, with ONNX Runtime, for models of the user's alone.
        Native = "native",
    }

    /// How frames are on the disk.
    AtRest {
        /// As they are.
        Clear = "clear",
        /// Encrypted with the node's key.
        Sealed = "sealed",
    }

    /// Which nodes may be members of a fabric.
    Join {
        /// Those with a node's certificate of the site.
        Certificate = "certificate",
        /// Those that are listed.
        Listed = "listed",
    }

    /// How the program's own log is written.
    LogFormat {
        /// For people.
        Text = "text",
        /// For programs: an object a line.
        Json = "json",
    }

    /// When the untouched frame of a detection is fetched.
    OriginalRule {
        /// Never.
        Never = "never",
        /// When something was found.
        OnDetection = "on-detection",
    }

    /// When large messages start; the numbers of each policy have keys of their own.
    Policy {
        /// At once.
        None = "none",
        /// While they hold up small ones no longer than a budget, or their deadline is over.
        Deadline = "deadline",
        /// The paper's conservative policy.
        Conservative = "conservative",
        /// The paper's probabilistic policy.
        Probabilistic = "probabilistic",
        /// The paper's historic policy.
        Historic = "historic",
    }

    /// The kind of destination of a sink.
    SinkKind {
        /// A ring in memory.
        Memory = "memory",
        /// Parquet files in a folder or an object store.
        Parquet = "parquet",
        /// A table of PostgreSQL or TimescaleDB.
        Postgres = "postgres",
        /// A database that takes InfluxDB's line protocol over HTTP.
        Influx = "influx",
        /// A topic of Kafka.
        Kafka = "kafka",
        /// Another MQTT broker.
        Mqtt = "mqtt",
    }
}

/// Versions of MQTT, of which there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqttVersions([bool; 3]);

impl MqttVersions {
    const WORDS: [&str; 3] = ["3.1", "3.1.1", "5"];

    /// All.
    pub const ALL: Self = Self([true; 3]);

    /// Whether 3.1, 3.1.1 and 5 are spoken.
    pub fn spoken(self) -> [bool; 3] {
        self.0
    }
}

/// Words with commas between; `3` and `4` are other names of 3.1 and 3.1.1, as in Mosquitto's configuration.
impl std::str::FromStr for MqttVersions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut versions = Self([false; 3]);
        for word in text.split(',').map(str::trim) {
            let usual = match word {
                "3" => "3.1",
                "4" => "3.1.1",
                "5.0" => "5",
                word => word,
            };
            let found = Self::WORDS.iter().position(|known| *known == usual);
            let at = found.ok_or_else(|| {
                format!(
                    "{word:?} is not a version of MQTT; choose from 3.1, 3.1.1 and 5, with commas between"
                )
            })?;
            versions.0[at] = true;
        }
        Ok(versions)
    }
}

impl Value for MqttVersions {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

/// As it is read: `3.1, 3.1.1, 5`.
impl std::fmt::Display for MqttVersions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let spoken = Self::WORDS.iter().zip(self.0).filter(|(_, is_spoken)| *is_spoken);
        let words: Vec<&str> = spoken.map(|(word, _)| *word).collect();
        f.write_str(&words.join(", "))
    }
}
