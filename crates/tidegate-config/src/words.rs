//! The words of settings that are one of a few.
//!
//! Each has a type of its own here, whatever the part of the program calls it that it is for: the configuration knows no part, and
//! `run` says which word of it is which of theirs.

use super::value::{Value, quoted};

/// A setting that is one of a few words.
macro_rules! words {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident is $what:literal {
            $($(#[doc = $variant_doc:literal])+ $variant:ident = $word:literal,)+
        }
    )+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $variant_doc])+ $variant,)+
        }

        impl $name {
            /// Each with its word.
            pub const WORDS: &[(&'static str, Self)] = &[$(($word, Self::$variant)),+];

            /// Its word.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

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

/// `a, b or c`.
fn listed(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        words => words.concat(),
    }
}

words! {
    /// Which program of ours looks at images.
    WorkerRuntime is "runtime" {
        /// The Python worker, with its own models.
        Python = "python",
        /// `tidegate worker`, with ONNX Runtime, for models of the user's alone.
        Native = "native",
    }

    /// How frames are on the disk.
    AtRest is "state at rest" {
        /// As they are.
        Clear = "clear",
        /// Encrypted with the node's key.
        Sealed = "sealed",
    }

    /// How the packets of a network camera come.
    CameraTransport is "transport of a camera" {
        /// Over the connection by which it is asked.
        Tcp = "tcp",
        /// To ports of this machine.
        Udp = "udp",
    }

    /// How a region of a frame is covered.
    Cover is "cover" {
        /// One gray.
        Fill = "fill",
        /// At most 6 x 6 grays.
        Blur = "blur",
    }

    /// The format of a datagram.
    DatagramFormat is "form of a datagram" {
        /// A payload.
        Payload = "payload",
        /// A topic, the end of a line, and a payload.
        TopicPayload = "topic-payload",
        /// Lines of InfluxDB's line protocol.
        Line = "line",
    }

    /// The worst event that kept messages and frames survive.
    Durability is "durability" {
        /// Nothing.
        Memory = "memory",
        /// The end of the process, however it ends.
        Page = "page",
        /// A loss of power.
        Disk = "disk",
    }

    /// Protocol of an ingest listener.
    IngestKind is "kind of listener" {
        /// Datagrams.
        Udp = "udp",
        /// CoAP over UDP.
        Coap = "coap",
        /// HTTP/1.1.
        Http = "http",
        /// WebSocket.
        WebSocket = "websocket",
    }

    /// How the program's own log is written.
    LogFormat is "format of a log" {
        /// For people.
        Text = "text",
        /// For programs: an object a line.
        Json = "json",
    }

    /// When the untouched frame of a detection is fetched.
    OriginalRule is "rule for originals" {
        /// Never.
        Never = "never",
        /// When something was found.
        OnDetection = "on-detection",
    }

    /// How an original is given to who asks for it.
    Originals is "way to give originals" {
        /// In full quality, and covered.
        Covered = "covered",
        /// As it was captured.
        Clear = "clear",
    }

    /// The policy for a message to a subscriber whose queue is full.
    Overflow is "overflow policy" {
        /// The oldest waiting messages go, until it fits.
        DropOldest = "drop-oldest",
        /// The new message goes.
        DropNewest = "drop-newest",
        /// Of each topic only the newest message waits.
        Latest = "latest",
        /// The subscriber is disconnected; its session and what waits are kept.
        Disconnect = "disconnect",
        /// Its publishers are not read from until half of what waits is gone.
        BlockPublisher = "block-publisher",
        /// Messages that find no place wait on disk; where that has none either, the oldest go.
        Spill = "spill",
        /// Messages that find no place wait on disk; where that has none either, the subscriber is disconnected.
        SpillDisconnect = "spill-disconnect",
    }

    /// When large messages start; the numbers of each policy have keys of their own.
    Policy is "policy" {
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

    /// Protocol of an MQTT listener.
    Protocol is "protocol" {
        /// MQTT over TCP.
        Tcp = "tcp",
        /// MQTT over TLS.
        Tls = "tls",
        /// MQTT over WebSocket (MQTT 5, section 6).
        WebSocket = "websocket",
        /// MQTT over WebSocket over TLS.
        SecureWebSocket = "secure-websocket",
    }

    /// Which versions of the header of the PROXY protocol are read.
    ProxyProtocol is "version of the PROXY protocol" {
        /// Version 1, a line of text.
        V1 = "v1",
        /// Version 2, in binary.
        V2 = "v2",
        /// Either.
        Any = "any",
    }

    /// How datagrams are received.
    ReceiveMethod is "way to receive" {
        /// The first of the others that the system has.
        Auto = "auto",
        /// A multishot request of io_uring.
        Uring = "io-uring",
        /// `recvmmsg`.
        Batch = "recvmmsg",
        /// `recvfrom`.
        Plain = "plain",
    }

    /// Which version of MQTT is spoken with the remote of a bridge.
    RemoteVersion is "version of MQTT" {
        /// MQTT 5, or 3.1.1 where the remote does not take that.
        Auto = "auto",
        /// MQTT 3.1.1.
        V4 = "3.1.1",
        /// MQTT 5.
        V5 = "5",
    }

    /// The kind of destination of a sink.
    SinkKind is "kind of sink" {
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

    /// The transport of a link.
    Transport is "transport" {
        /// QUIC, and TCP where QUIC does not get through.
        Auto = "auto",
        /// QUIC over UDP.
        Quic = "quic",
        /// TLS over TCP.
        Tcp = "tcp",
    }

    /// Where a filter in the kernel runs.
    XdpMode is "mode" {
        /// In the driver if that is possible, else in the kernel's stack.
        Auto = "auto",
        /// In the driver.
        Native = "native",
        /// At the begin of the kernel's stack.
        Generic = "generic",
    }
}

impl Protocol {
    /// Whether TLS is below it.
    pub fn is_secure(self) -> bool {
        matches!(self, Self::Tls | Self::SecureWebSocket)
    }
}

impl IngestKind {
    /// Whether its listener takes datagrams.
    pub fn is_of_datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::Coap)
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
