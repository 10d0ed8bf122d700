//! Description of a load: who connects, what they send, for how long.

use std::{sync::Arc, time::Duration};

use tidegate_wire::mqtt::{QoS, Version};

/// A load. [`Spec::check`] says what is wrong with one; [`crate::run`] checks first.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The broker, as a [`crate::url::BrokerUrl`]: `HOST:PORT`, or a URL such as `wss://HOST`. Default `127.0.0.1:1883`.
    pub target: String,
    /// Another broker that subscribers connect to, in the same form, where messages go from one broker to another. Default none: the same.
    pub subscribe_target: Option<String>,
    /// TLS, with whom to trust; each connection makes a whole handshake if its resumption is off. Default none.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Version of the protocol. Default 3.1.1.
    pub version: Version,
    /// How publishers and subscribers are joined. Default [`Topology::Pairs`].
    pub topology: Topology,
    /// Publishing connections. Default 1.
    pub publishers: u32,
    /// Receiving connections. Default 1; with 0 nothing is received and windows do not apply.
    pub subscribers: u32,
    /// Flows of messages that each publisher sends, all on its one connection. Default one flow of 100 bytes, QoS 0, window 1000.
    pub flows: Vec<Flow>,
    /// Most that messages come with to subscribers. Default QoS 2: as they were sent.
    pub subscribe_qos: QoS,
    /// Unacknowledged messages of one publisher with QoS 1 and 2, if the broker's Receive Maximum allows as many. Default 100.
    pub inflight: u16,
    /// Sending before anything is measured. Default 1 s.
    pub warm_up: Duration,
    /// Measured sending. Default 5 s.
    pub duration: Duration,
    /// After the sending, how long to wait while nothing more arrives. Default 2 s.
    pub drain: Duration,
    /// For all connections together, and for a subscription's answer. Default 30 s.
    pub connect_timeout: Duration,
    /// Further subscribers to everything that never read. Default 0.
    pub stalled: u32,
    /// Receive buffer of a stalled subscriber's socket, in bytes. Default 4096.
    pub stalled_receive_buffer_bytes: u32,
    /// Further connections that only ping. Default 0.
    pub idle: u32,
    /// User name of every connection. Default none.
    pub username: Option<String>,
    /// Password of every connection. Default none.
    pub password: Option<String>,
    /// First level of every topic. Default `load`.
    pub topic_prefix: String,
    /// Beginning of every client identifier. Default `load-` and the process number, so that two generators can run at once.
    pub client_prefix: String,
    /// Keep alive in seconds; 0 for none. Default 60.
    pub keep_alive: u16,
    /// Source addresses from 127.0.0.2 on that connections are spread over: one address has ports for some 28,000 connections to
    /// one target. 0 leaves the choice to the kernel. Default 0.
    pub source_addresses: u8,
    /// Threads. Default 1, which is enough for a broker on one core.
    pub threads: u8,
    /// The broker's process, if it runs on this machine: its processor time and memory are reported. Default none.
    pub process: Option<u32>,
}

/// How publishers and subscribers are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// The i-th publisher sends to the i-th subscriber, on a topic of their own. As many of one as of the other, or no
    /// subscribers.
    #[default]
    Pairs,
    /// All publishers send to one topic. One subscriber gets all; several share them by a shared subscription, so that each
    /// message is received once.
    FanIn,
    /// All publishers send to one topic, and every subscriber gets all.
    FanOut,
}

/// Messages of one kind from each publisher.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Name in the report, and last level of the topic if there are several flows.
    pub name: String,
    /// Bytes of a payload; at least 16, see [`Flow::PAYLOAD_BYTES_MIN`].
    pub payload_bytes: u32,
    /// Quality of service to the broker.
    pub qos: QoS,
    /// When messages leave.
    pub pace: Pace,
}

/// When messages leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Messages per second of all publishers together, evenly spaced, whether or not earlier ones arrived (open loop).
    Rate(f64),
    /// Each publisher sends one message in this time (open loop).
    Every(Duration),
    /// As fast as messages are received: at most so many of each publisher are on the way to each of its subscribers (closed
    /// loop). A publisher that used up its window continues when half of it has arrived.
    Window(u32),
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            target: "127.0.0.1:1883".to_owned(),
            subscribe_target: None,
            tls: None,
            version: Version::V4,
            topology: Topology::Pairs,
            publishers: 1,
            subscribers: 1,
            flows: vec![Flow::default()],
            subscribe_qos: QoS::ExactlyOnce,
            inflight: 100,
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(5),
            drain: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(30),
            stalled: 0,
            stalled_receive_buffer_bytes: 4096,
            idle: 0,
            username: None,
            password: None,
            topic_prefix: "load".to_owned(),
            client_prefix: format!("load-{}", std::process::id()),
            keep_alive: 60,
            source_addresses: 0,
            threads: 1,
            process: None,
        }
    }
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            name: "all".to_owned(),
            payload_bytes: 100,
            qos: QoS::AtMostOnce,
            pace: Pace::Window(1000),
        }
    }
}

impl Flow {
    /// A payload begins with a time stamp (8 bytes), the number of its publisher and flow (4) and of itself (4), all little
    /// endian.
    pub const PAYLOAD_BYTES_MIN: u32 = 16;
}

impl Spec {
    /// Most flows of one publisher: the payload names the flow in a byte.
    pub const FLOWS_MAX: usize = 256;
    /// Most publishers: the payload names the publisher in three bytes.
    pub const PUBLISHERS_MAX: u32 = 1 << 24;
    /// Longest prefix of topics and of client identifiers.
    pub const PREFIX_BYTES_MAX: usize = 1024;
    /// Longest payload: what fits into the largest packet of MQTT with a topic of any length.
    pub const PAYLOAD_BYTES_MAX: u32 = 268_435_455 - (1 << 17);
    /// Longest warm-up and longest measured time.
    pub const DURATION_MAX: Duration = Duration::from_secs(24 * 3600);

    /// All connections.
    pub fn connections(&self) -> u64 {
        [self.publishers, self.subscribers, self.stalled, self.idle].map(u64::from).iter().sum()
    }

    /// # Errors
    /// The first thing that cannot be run.
    pub fn check(&self) -> Result<(), SpecError> {
        let pairs = self.topology == Topology::Pairs && self.subscribers > 0;
        if self.connections() == 0 {
            return Err(SpecError::NoConnections);
        }
        if pairs && self.publishers != self.subscribers {
            return Err(SpecError::UnequalPairs {
                publishers: self.publishers,
                subscribers: self.subscribers,
            });
        }
        if self.publishers >= Self::PUBLISHERS_MAX {
            return Err(SpecError::TooManyPublishers { publishers: self.publishers });
        }
        if self.flows.is_empty() || self.flows.len() > Self::FLOWS_MAX {
            return Err(SpecError::FlowCount { flows: self.flows.len() });
        }
        if self.topic_prefix.len().max(self.client_prefix.len()) > Self::PREFIX_BYTES_MAX {
            return Err(SpecError::LongPrefix);
        }
        if self.inflight == 0 {
            return Err(SpecError::NoInflight);
        }
        if self.duration.is_zero() || self.duration.max(self.warm_up) > Self::DURATION_MAX {
            return Err(SpecError::Duration { maximum: Self::DURATION_MAX });
        }
        self.flows.iter().try_for_each(Flow::check)
    }
}

impl Flow {
    fn check(&self) -> Result<(), SpecError> {
        if !(Self::PAYLOAD_BYTES_MIN..=Spec::PAYLOAD_BYTES_MAX).contains(&self.payload_bytes) {
            return Err(SpecError::Payload {
                flow: self.name.clone(),
                bytes: self.payload_bytes,
                minimum: Self::PAYLOAD_BYTES_MIN,
                maximum: Spec::PAYLOAD_BYTES_MAX,
            });
        }
        let sound = match self.pace {
            Pace::Rate(per_second) => per_second > 0.0 && per_second.is_finite(),
            Pace::Every(period) => !period.is_zero() && period <= Spec::DURATION_MAX,
            Pace::Window(messages) => messages > 0,
        };
        if sound { Ok(()) } else { Err(SpecError::Pace { flow: self.name.clone() }) }
    }
}

/// Reason why a load cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no client.
    #[error("there is no connection to make")]
    NoConnections,
    /// Pairs need two of each.
    #[error("pairs need as many publishers as subscribers, not {publishers} and {subscribers}")]
    UnequalPairs {
        /// Publishers asked for.
        publishers: u32,
        /// Subscribers asked for.
        subscribers: u32,
    },
    /// The payload has no room for their numbers.
    #[error("{publishers} publishers are too many: at most {}", Spec::PUBLISHERS_MAX - 1)]
    TooManyPublishers {
        /// Publishers asked for.
        publishers: u32,
    },
    /// No flow, or more than the payload can name.
    #[error("{flows} flows: there must be 1 to {}", Spec::FLOWS_MAX)]
    FlowCount {
        /// Flows asked for.
        flows: usize,
    },
    /// A prefix of topics or client identifiers that is too long.
    #[error("a prefix is longer than {} bytes", Spec::PREFIX_BYTES_MAX)]
    LongPrefix,
    /// Nothing could ever be sent with QoS 1 or 2.
    #[error("at least one message must be in flight")]
    NoInflight,
    /// Nothing is measured, or for too long.
    #[error("the measured time must be over 0, and it and the warm-up at most {maximum:?}")]
    Duration {
        /// Longest.
        maximum: Duration,
    },
    /// A payload of a size that cannot be sent.
    #[error("flow {flow}: a payload of {bytes} bytes is not within {minimum} to {maximum}")]
    Payload {
        /// Which flow.
        flow: String,
        /// Bytes asked for.
        bytes: u32,
        /// Fewest.
        minimum: u32,
        /// Most.
        maximum: u32,
    },
    /// A rate, period or window of nothing.
    #[error("flow {flow}: its rate, period or window must be over 0")]
    Pace {
        /// Which flow.
        flow: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_run_is_refused() {
        let with = |change: fn(&mut Spec)| {
            let mut spec = Spec::default();
            change(&mut spec);
            spec.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|spec| spec.subscribers = 0), Ok(())); // nobody listens
        assert_eq!(
            with(|spec| spec.publishers = 2),
            Err(SpecError::UnequalPairs { publishers: 2, subscribers: 1 })
        );
        assert_eq!(with(|spec| spec.flows.clear()), Err(SpecError::FlowCount { flows: 0 }));
        for bad in [Pace::Rate(0.0), Pace::Rate(f64::NAN), Pace::Every(Duration::ZERO)] {
            let spec =
                Spec { flows: vec![Flow { pace: bad, ..Flow::default() }], ..Spec::default() };
            assert_eq!(spec.check(), Err(SpecError::Pace { flow: "all".to_owned() }), "{bad:?}");
        }
        assert!(with(|spec| spec.flows[0].payload_bytes = 15).is_err());
        assert!(with(|spec| spec.duration = Duration::ZERO).is_err());
    }
}
