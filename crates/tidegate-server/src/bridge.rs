//! A bridge: what passes between this node's broker and any other MQTT broker.
//!
//! ```text
//!                     ┌────────────── one thread ──────────────┐
//!  broker ◀─ loopback ┤ input ─▶ relay ─▶ output ─▶ TCP or TLS ├─▶ remote broker
//!  (session, queue,   │ output ◀─ relay ◀─ input ◀─────────────│
//!   schedule, policy) └────────────────────────────────────────┘
//! ```
//!
//! A bridge is a client of both brokers. Messages that wait while the remote one is away wait in a session of this broker, under its
//! budget, its overflow policy and its schedule; the bridge itself holds what it read last, at most 16 KiB before topics are
//! exchanged. It reads from one side only while all that it has for the other is written, and the loopback pair between it
//! and the broker is small ([`LOCAL_BYTES`](super::server::LOCAL_BYTES)), and the remote socket holds at most 16 KiB
//! unsent. So the choice of what goes next is made by the broker, late, and small messages overtake large ones that wait.
//!
//! # What is promised
//!
//! Packet identifiers pass unchanged, and an acknowledgement is given on one side when it came from the other; after any break
//! both connections are made again, and the broker that has a message without an acknowledgement sends it again.
//!
//! - QoS 1: at least once, as long as the sending broker keeps the session of the bridge. The one here has the same client identifier in
//!   each process, and lives as long as the bridge is configured: `mqtt.durability` says what it survives.
//! - QoS 2: exactly once, as long as the session of the receiving broker is kept. If the sending one lost its session, it sends
//!   nothing again, and identifiers that the receiver may still hold are freed before they are used. If the receiving one lost its
//!   own, messages whose exchange was under way may come twice.
//! - QoS 0: passed on while both sides are there, else dropped by the broker that it comes from.
//! - A message that a broker refuses for good (not authorized, too large) is dropped, counted and logged. One that it has no
//!   room for now (reason 0x97) ends the connections, and is sent again after a while.
//! - Order is kept within one topic of one publisher.
//! - A retained message stays one, unless configured otherwise; when one side has lost its session it is sent all retained ones again.
//!   A remote of MQTT 3.1.1 without the bridge bit marks as retained only those that are sent on subscription.
//! - Response topics are forwarded as they are, prefixes do not change them.
//!
//! # Loops
//!
//! In MQTT 5 subscriptions are made with No Local, and messages carry the nodes that they passed (the `path` module). In MQTT
//! 3.1.1 the bridge bit of Mosquitto's kind has the same effect as No Local with brokers that know it (Mosquitto, Tidegate); a
//! list of nodes has no place there: cycles of several brokers with a 3.1.1 link in them must be avoided by topics. If
//! topics overlap that go both ways, a 3.1.1 remote is refused unless the configuration says that it knows the bridge bit. In
//! a cycle of MQTT 5 brokers a message comes to a node once for each way to it, and at most once more to where it began.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use mio::{Poll, Token};
use tidegate_broker::{SessionConfig, part_id};
pub use tidegate_message::words::RemoteVersion;
use tidegate_message::{Secret, TopicError, check_topic_filter};
use tidegate_wire::mqtt::QoS;

use self::{relay::Counters, runtime::Runtime, topics::filters_overlap};
use super::server::Connector;

mod connect;
mod line;
mod relay;
mod runtime;
mod topics;

/// As seconds to the end of the remote session: it stays.
const KEEPS_REMOTE: u32 = u32::MAX;

/// Settings of a bridge.
#[derive(Clone, Debug, PartialEq)]
pub struct BridgeSettings {
    /// Its name, unique in the node.
    pub name: String,
    /// The name of this node in the list of nodes that a message passed: unique among all nodes that bridges join.
    pub node: String,
    /// The bridge's name at the remote broker; the session there goes by it.
    pub client_id: String,
    /// The remote broker's host.
    pub host: String,
    /// And port.
    pub port: u16,
    /// Which version is spoken there.
    pub version: RemoteVersion,
    /// Whether the remote knows the bridge bit of MQTT 3.1.1 for sure.
    pub bridge_aware: bool,
    /// Certificates to trust and to show, with TLS.
    pub tls: Option<RemoteTls>,
    /// User name at the remote.
    pub username: Option<String>,
    /// Password at the remote.
    pub password: Option<Secret>,
    /// Patterns of what is published to the remote.
    pub topics_out: Vec<String>,
    /// Patterns of what is fetched from the remote.
    pub topics_in: Vec<String>,
    /// Stands before the patterns here.
    pub local_prefix: String,
    /// Stands before the patterns there.
    pub remote_prefix: String,
    /// The highest QoS of messages that pass.
    pub qos: QoS,
    /// Whether messages keep their retain flag.
    pub retain: bool,
    /// Longest silence towards the remote, in seconds; 0 for any.
    pub keep_alive: u16,
    /// Longest wait between two tries to connect; the first is a hundredth of it, and at least 50 ms.
    pub backoff_max: Duration,
    /// Longest time to connect and be answered.
    pub connect_timeout: Duration,
    /// Queue and schedule of what waits for the remote.
    pub session: SessionConfig,
    /// Messages of QoS 2 that this node's broker takes before it has acknowledged one.
    pub receive_maximum: u16,
    /// Largest packet that this node's broker takes.
    pub packet_bytes_max: u32,
}

impl Default for BridgeSettings {
    fn default() -> Self {
        Self {
            name: "bridge".to_owned(),
            node: "node".to_owned(),
            client_id: "node.bridge".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: 1883,
            version: RemoteVersion::Auto,
            bridge_aware: false,
            tls: None,
            username: None,
            password: None,
            topics_out: Vec::new(),
            topics_in: Vec::new(),
            local_prefix: String::new(),
            remote_prefix: String::new(),
            qos: QoS::ExactlyOnce,
            retain: true,
            keep_alive: 60,
            backoff_max: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            session: SessionConfig::default(),
            receive_maximum: 1024,
            packet_bytes_max: tidegate_wire::mqtt::PACKET_BYTES_MAX,
        }
    }
}

/// Certificates to trust at the remote, and those to show there. Two are the same if they were made of the same files.
#[derive(Clone, Debug)]
pub struct RemoteTls {
    config: Arc<rustls::ClientConfig>,
    digest: Vec<u8>,
}

impl RemoteTls {
    /// TLS by `config`, which was made of files with this digest.
    pub fn new(config: rustls::ClientConfig, digest: &[u8]) -> Self {
        Self { config: Arc::new(config), digest: digest.to_owned() }
    }

    /// The configuration that TLS goes by.
    pub fn config(&self) -> Arc<rustls::ClientConfig> {
        self.config.clone()
    }
}

impl PartialEq for RemoteTls {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// Why a bridge cannot be.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// It has nothing to do.
    #[error("neither topics_out nor topics_in names a topic: write a filter in one of them")]
    NoTopics,
    /// A pattern that is not a topic filter, prefix included.
    #[error("{filter:?} is not a topic filter")]
    Filter {
        /// The filter.
        filter: String,
        /// Why not.
        source: TopicError,
    },
    /// A shared subscription.
    #[error(
        "{filter:?} is a shared subscription, which is not allowed for a bridge: leave out $share/ and the group"
    )]
    Shared {
        /// The filter.
        filter: String,
    },
    /// A name that cannot be part of topics and of the list of nodes.
    #[error(
        "{name:?} is not allowed as a name: write 1 to 200 bytes without /, +, # and control characters"
    )]
    Name {
        /// The name of the bridge, or of the node.
        name: String,
    },
    /// A prefix with a wildcard.
    #[error("the prefix {prefix:?} is not allowed: leave out +, # and U+0000")]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// Messages would come back from the remote.
    #[error(
        "{there:?} is fetched and {here:?} published there: over MQTT 3.1.1 a message would come back for ever. Choose \
         version = \"5\", topics that do not overlap, or bridge_aware = true if the remote knows the bridge bit (Mosquitto and \
         Tidegate do)"
    )]
    Overlap {
        /// Filter of the topics that are published to the remote.
        here: String,
        /// Filter of the subscription at the remote.
        there: String,
    },
    /// The system gives no threads or descriptors.
    #[error("the thread of the bridge cannot be started")]
    Start(#[source] io::Error),
}

impl BridgeSettings {
    /// Whether such a bridge can be.
    ///
    /// # Errors
    /// [`BridgeError`].
    pub fn check(&self) -> Result<(), BridgeError> {
        for name in [&self.name, &self.node] {
            let is_odd = |c: char| c.is_control() || "/+#".contains(c);
            if name.is_empty() || name.len() > 200 || name.contains(is_odd) {
                return Err(BridgeError::Name { name: name.clone() });
            }
        }
        for prefix in [&self.local_prefix, &self.remote_prefix] {
            if prefix.contains(['+', '#', '\0']) {
                return Err(BridgeError::Prefix { prefix: prefix.clone() });
            }
        }
        for pattern in self.topics_out.iter().chain(&self.topics_in) {
            for prefix in [&self.local_prefix, &self.remote_prefix] {
                let filter = format!("{prefix}{pattern}");
                if filter.starts_with("$share/") {
                    return Err(BridgeError::Shared { filter });
                }
                check_topic_filter(&filter, usize::MAX)
                    .map_err(|source| BridgeError::Filter { filter, source })?;
            }
        }
        if self.topics_out.is_empty() && self.topics_in.is_empty() {
            return Err(BridgeError::NoTopics);
        }
        match self.overlap() {
            Some(overlap) if self.version == RemoteVersion::V4 && !self.bridge_aware => {
                Err(overlap)
            }
            _ => Ok(()),
        }
    }

    /// Whether a bridge that is started again as `new` wants all that the session of this one at the remote is subscribed to.
    pub fn keeps_remote(&self, new: &Self) -> bool {
        (&self.host, self.port, &self.client_id, &self.remote_prefix)
            == (&new.host, new.port, &new.client_id, &new.remote_prefix)
            && self.topics_in.iter().all(|pattern| new.topics_in.contains(pattern))
    }

    /// The client identifier of the session here of the bridge called `name`.
    pub fn local_id(name: &str) -> String {
        part_id("bridge", name)
    }

    /// The overlap of two filters by which a remote that does not know the sender would send messages back.
    fn overlap(&self) -> Option<BridgeError> {
        self.topics_out.iter().find_map(|out| {
            let here = format!("{}{out}", self.remote_prefix);
            self.topics_in.iter().find_map(|fetched| {
                let there = format!("{}{fetched}", self.remote_prefix);
                filters_overlap(&here, &there)
                    .then(|| BridgeError::Overlap { here: here.clone(), there })
            })
        })
    }
}

/// A running bridge; it ends by [`Bridge::stop`], or when dropped.
#[derive(Debug)]
pub struct Bridge {
    remote_ends: Arc<AtomicU32>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    waker: Arc<mio::Waker>,
    thread: Option<JoinHandle<()>>,
}

/// Counts of a bridge since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeReport {
    /// Messages sent to the remote, those sent again included.
    pub messages_out: u64,
    /// Bytes of their payloads.
    pub bytes_out: u64,
    /// Messages brought from the remote, those brought again included.
    pub messages_in: u64,
    /// Bytes of their payloads.
    pub bytes_in: u64,
    /// Messages that had been here before and were not passed on.
    pub looped: u64,
    /// Messages that no pattern matches, or whose name on the other side is none.
    pub unmapped: u64,
    /// Messages that the receiving broker refused.
    pub refused: u64,
    /// Messages longer than the receiving broker takes.
    pub too_large: u64,
    /// Connections made to the remote.
    pub connects: u64,
}

/// As in a log.
impl fmt::Display for BridgeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages out ({} bytes), {} in ({} bytes), {} connections",
            self.messages_out, self.bytes_out, self.messages_in, self.bytes_in, self.connects
        )?;
        for (count, what) in [
            (self.looped, "had been here before"),
            (self.unmapped, "without a name on the other side"),
            (self.refused, "refused"),
            (self.too_large, "too large"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

impl BridgeReport {
    /// Each count with its name.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let &Self {
            messages_out,
            bytes_out,
            messages_in,
            bytes_in,
            looped,
            unmapped,
            refused,
            too_large,
            connects,
        } = self;
        vec![
            ("messages_out", messages_out),
            ("bytes_out", bytes_out),
            ("messages_in", messages_in),
            ("bytes_in", bytes_in),
            ("looped", looped),
            ("unmapped", unmapped),
            ("refused", refused),
            ("too_large", too_large),
            ("connects", connects),
        ]
    }
}

impl Bridge {
    /// Begins to carry messages, now and whenever the remote can be reached. Messages that are published here from now on wait for it.
    ///
    /// # Errors
    /// [`BridgeError`].
    pub fn start(settings: BridgeSettings, connector: Connector) -> Result<Self, BridgeError> {
        settings.check()?;
        let poll = Poll::new().map_err(BridgeError::Start)?;
        let waker = super::inbox::waker(&poll, Token(0)).map_err(BridgeError::Start)?;
        let waker = Arc::new(waker);
        let stop = Arc::new(AtomicBool::new(false));
        let counters = Arc::new(Counters::default());
        let name = format!("bridge-{}", settings.name);
        let runtime = Runtime::new(settings, connector, poll, stop.clone(), counters.clone());
        let runtime = runtime.map_err(BridgeError::Start)?;
        let remote_ends = runtime.remote_ends();
        let thread = thread::Builder::new().name(name).spawn(move || runtime.run());
        let thread = Some(thread.map_err(BridgeError::Start)?);
        Ok(Self { remote_ends, counters, stop, waker, thread })
    }

    /// The counts so far.
    pub fn report(&self) -> BridgeReport {
        self.counters.report()
    }

    /// A function that returns each count with its name until the bridge has stopped.
    pub fn counts(&self) -> impl Fn() -> Option<Vec<(&'static str, u64)>> + Send + Sync + 'static {
        let counters = Arc::downgrade(&self.counters);
        move || Some(counters.upgrade()?.report().named())
    }

    /// Stops, and has the session at the remote end after `remote_ends`, where that is of MQTT 5 and connected; none if another bridge
    /// continues it.
    pub fn leave(self, remote_ends: Option<Duration>) -> BridgeReport {
        let seconds = remote_ends
            .map_or(KEEPS_REMOTE, |after| u32::try_from(after.as_secs()).unwrap_or(KEEPS_REMOTE));
        self.remote_ends.store(seconds, Ordering::Release);
        self.stop()
    }

    /// Says farewell to both brokers and waits for the thread. To be done before this node's broker stops.
    pub fn stop(mut self) -> BridgeReport {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            tracing::debug!(%error, "a bridge cannot be woken");
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a bridge panicked");
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.end();
    }
}

impl Counters {
    fn report(&self) -> BridgeReport {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        BridgeReport {
            messages_out: count(&self.messages[0]),
            bytes_out: count(&self.bytes[0]),
            messages_in: count(&self.messages[1]),
            bytes_in: count(&self.bytes[1]),
            looped: count(&self.looped),
            unmapped: count(&self.unmapped),
            refused: count(&self.refused),
            too_large: count(&self.too_large),
            connects: count(&self.connects),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_bridges_are_refused_with_the_reason() {
        let settings = |out: &str, fetched: &str| {
            let list = |text: &str| text.split_whitespace().map(str::to_owned).collect();
            BridgeSettings {
                topics_out: list(out),
                topics_in: list(fetched),
                ..BridgeSettings::default()
            }
        };
        assert!(matches!(settings("", "").check(), Err(BridgeError::NoTopics)));
        assert!(matches!(settings("a#", "").check(), Err(BridgeError::Filter { .. })));
        assert!(matches!(settings("$share/g/a", "").check(), Err(BridgeError::Shared { .. })));
        let prefix = BridgeSettings { local_prefix: "+/".to_owned(), ..settings("a", "") };
        assert!(matches!(prefix.check(), Err(BridgeError::Prefix { .. })));
        let name = BridgeSettings { name: "a/b".to_owned(), ..settings("a", "") };
        assert!(matches!(name.check(), Err(BridgeError::Name { .. })));
        for (version, bridge_aware, fetched, expected) in [
            (RemoteVersion::V4, false, "a/+", false),
            (RemoteVersion::V4, true, "a/+", true),
            (RemoteVersion::V4, false, "b/+", true),
            (RemoteVersion::V5, false, "a/+", true),
            (RemoteVersion::Auto, false, "a/+", true), // looked at again once the version is known
        ] {
            let settings = BridgeSettings { version, bridge_aware, ..settings("a/#", fetched) };
            assert_eq!(settings.check().is_ok(), expected, "{version:?} {bridge_aware} {fetched}");
        }
        let overlap = BridgeSettings { version: RemoteVersion::V4, ..settings("a/#", "+/x") };
        let text = overlap.check().unwrap_err().to_string();
        assert!(text.contains("\"a/#\"") && text.contains("bridge_aware"), "{text}");
    }
}
