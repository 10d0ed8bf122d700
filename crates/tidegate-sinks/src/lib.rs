//! Sinks: messages of the broker are written to other systems.
//!
//! ```text
//!            ┌───────────────────── one thread ──────────────────────┐
//!  broker ─▶ │ session ─▶ batch that grows ─▶ batch under way ─▶ destination: files, database, log, broker
//!  (queue,   │    ▲                                  │
//!   spill)   │    └── settled, dead letters ◀─ taken ┴ refused
//!            └────────────────────────────────────────────────────────┘
//! ```
//!
//! A sink is a client of this node's broker with a session that outlives the process. Messages that its destination has not
//! taken wait in that session, under its budget and its overflow policy, and as durable as `mqtt.durability` says; the sink
//! itself holds two batches at most. So a destination may be away for an hour: the sink tries again, ever more rarely, and
//! memory stays.
//!
//! Always true: a message is acknowledged only when the destination has taken it as durably as it claims, when it lies in the
//! dead letter topic, or when it was refused for good and lies in the sink's [file](refused) (or the sink was told to have none);
//! batches go one after another, so that the order within a topic is kept; no more than two batches and the messages for the dead
//! letter topic are held.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_bus::{Bus, SessionConfig, part_id};
use tidegate_message::{TopicError, check_topic_filter, check_topic_name, topic_matches};
use tidegate_sys::sched;
use tokio_util::sync::CancellationToken;

pub mod destination;
pub mod influx;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod kind;
pub mod memory;
pub mod mqtt;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod record;
pub mod refused;
mod runtime;
mod session;

pub use destination::{Destination, Refusal, Trouble};
pub use kind::DestinationSettings;
pub use record::{Batch, Record};
pub use refused::RefusedFile;

use self::runtime::Runtime;

/// Most messages of a batch: packet identifiers end at 65,535.
pub const BATCH_MESSAGES_MAX: u32 = 60_000;
/// Longest answer of a server that is written to by HTTP, in bytes.
pub(crate) const HTTP_ANSWER_BYTES_MAX: usize = 16 << 20;

/// The settings of a sink.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkSettings {
    /// Its name, unique in the node.
    pub name: String,
    /// The client identifier of its session here: the same in each process.
    pub client_id: String,
    /// The word of its kind, for people.
    pub kind: &'static str,
    /// Filters of what it takes.
    pub topics: Vec<String>,
    /// Where messages go that the destination refuses for good.
    pub dead_letter: Option<String>,
    /// The file of those that it refuses and that cannot lie there; without one they are only counted.
    pub refused: Option<RefusedFile>,
    /// A batch is handed over when it has this many messages, 1 to [`BATCH_MESSAGES_MAX`].
    pub batch_messages: u32,
    /// When it has this many bytes of topics and payloads.
    pub batch_bytes: u64,
    /// When its first message has waited this long.
    pub batch_age: Duration,
    /// Longest wait between two tries; the first is a hundredth of it, and at least 50 ms.
    pub backoff_max: Duration,
    /// Longest time that the destination has for one exchange; a batch may take several.
    pub timeout: Duration,
    /// How often what it did is published under `$SYS`; zero for never.
    pub sys_interval: Duration,
    /// Queue of what waits for the destination.
    pub session: SessionConfig,
    /// Where messages go.
    pub destination: DestinationSettings,
    /// A digest of those whom it trusts there, if a file names them: the file may hold others when it is read again.
    pub trust: Option<[u8; 32]>,
}

impl Default for SinkSettings {
    fn default() -> Self {
        Self {
            name: "sink".to_owned(),
            client_id: SinkSettings::session_of("sink"),
            kind: "memory",
            topics: Vec::new(),
            dead_letter: None,
            refused: None,
            batch_messages: 10_000,
            batch_bytes: 8 << 20,
            batch_age: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            timeout: Duration::from_secs(60),
            sys_interval: Duration::from_secs(10),
            session: SessionConfig::default(),
            destination: DestinationSettings::Memory(memory::Ring::new(1)),
            trust: None,
        }
    }
}

impl SinkSettings {
    /// The client identifier of the session here of the sink called `name`.
    pub fn session_of(name: &str) -> String {
        part_id("sink", name)
    }
}

/// Why a sink cannot be.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// It has nothing to take.
    #[error("topics names no filter")]
    NoTopics,
    /// The filter.
    #[error("{filter:?} is not a topic filter")]
    Filter {
        /// The filter.
        filter: String,
        /// Why not.
        source: TopicError,
    },
    /// A shared subscription: its other members would be other clients, and order would be lost.
    #[error(
        "{filter:?} is a shared subscription, which is not allowed for a sink: leave out $share/ and the group"
    )]
    Shared {
        /// The filter.
        filter: String,
    },
    /// A name that cannot be part of topics.
    #[error(
        "{name:?} is not allowed as a name: write 1 to 200 bytes without /, +, # and control characters"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The topic.
    #[error("{topic:?} is not a topic for dead letters")]
    DeadLetter {
        /// The topic.
        topic: String,
        /// Why not.
        source: TopicError,
    },
    /// Dead letters would come back.
    #[error("{filter:?} matches {topic:?}: dead letters would come back to the sink forever")]
    Loop {
        /// The sink's filter.
        filter: String,
        /// Its dead letter topic.
        topic: String,
    },
    /// A number out of its range.
    #[error("{key} must be {bound}")]
    Bound {
        /// Which.
        key: &'static str,
        /// The range.
        bound: &'static str,
    },
    /// The program was built without it.
    #[error(
        "this build has no {kind} sink; build with --features sink-{kind}, which is among the defaults"
    )]
    LeftOut {
        /// The kind of sink.
        kind: &'static str,
    },
    /// The destination cannot be made.
    #[error("{problem}")]
    Destination {
        /// The problem, with the key.
        problem: String,
        /// The cause, if there is one.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The system gives no threads or descriptors.
    #[error("the thread of the sink cannot be started")]
    Start(#[source] io::Error),
}

impl SinkSettings {
    /// Whether such a sink can be.
    ///
    /// # Errors
    /// [`SinkError`].
    pub fn check(&self) -> Result<(), SinkError> {
        let is_odd = |c: char| c.is_control() || "/+#".contains(c);
        if self.name.is_empty() || self.name.len() > 200 || self.name.contains(is_odd) {
            return Err(SinkError::Name { name: self.name.clone() });
        }
        if self.topics.is_empty() {
            return Err(SinkError::NoTopics);
        }
        for filter in &self.topics {
            let filter = filter.clone();
            if filter.starts_with("$share/") {
                return Err(SinkError::Shared { filter });
            }
            check_topic_filter(&filter, self.session.topic_levels_max)
                .map_err(|source| SinkError::Filter { filter, source })?;
        }
        if let Some(topic) = &self.dead_letter {
            check_topic_name(topic, self.session.topic_levels_max)
                .map_err(|source| SinkError::DeadLetter { topic: topic.clone(), source })?;
            if let Some(filter) = self.topics.iter().find(|filter| topic_matches(filter, topic)) {
                return Err(SinkError::Loop { filter: filter.clone(), topic: topic.clone() });
            }
        }
        let millis = Duration::from_millis;
        for (key, kept, bound) in [
            (
                "batch_messages",
                (1..=BATCH_MESSAGES_MAX).contains(&self.batch_messages),
                "from 1 to 60000",
            ),
            ("batch_bytes", (1 << 10..=1 << 30).contains(&self.batch_bytes), "from 1KiB to 1GiB"),
            (
                "batch_age",
                (millis(1)..=millis(3_600_000)).contains(&self.batch_age),
                "from 1ms to 1h",
            ),
            ("backoff_max", self.backoff_max >= millis(50), "at least 50ms"),
            (
                "timeout",
                (millis(100)..=millis(3_600_000)).contains(&self.timeout),
                "from 100ms to 1h",
            ),
        ] {
            if !kept {
                return Err(SinkError::Bound { key, bound });
            }
        }
        Ok(())
    }
}

/// A running sink; it stops on request, or when dropped.
#[derive(Debug)]
pub struct Sink {
    counters: Arc<Counters>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

/// Counts of a sink since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SinkReport {
    /// Messages that the destination took.
    pub messages: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Batches that it took.
    pub batches: u64,
    /// Messages that it refused for good.
    pub refused: u64,
    /// Of these, those that lie in the dead letter topic.
    pub dead_lettered: u64,
    /// Of these, those that lie in the sink's file: there is no dead letter topic, it has no subscriber, the broker refuses them, or they
    /// are longer than a packet may be.
    pub kept: u64,
    /// The same where the sink has no such file: they are gone.
    pub lost: u64,
    /// Tries that failed as a whole.
    pub failures: u64,
    /// Messages that were at the destination before, came round and were not sent there again; they count as taken.
    pub looped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    messages: AtomicU64,
    bytes: AtomicU64,
    batches: AtomicU64,
    refused: AtomicU64,
    dead_lettered: AtomicU64,
    kept: AtomicU64,
    lost: AtomicU64,
    failures: AtomicU64,
    looped: AtomicU64,
    is_up: AtomicBool,
}

impl Counters {
    fn report(&self) -> SinkReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SinkReport {
            messages: count(&self.messages),
            bytes: count(&self.bytes),
            batches: count(&self.batches),
            refused: count(&self.refused),
            dead_lettered: count(&self.dead_lettered),
            kept: count(&self.kept),
            lost: count(&self.lost),
            failures: count(&self.failures),
            looped: count(&self.looped),
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Sink {
    /// Begins to take messages for the destination that `settings` name. Messages published from then on wait for it.
    ///
    /// # Errors
    /// [`SinkError`].
    pub fn start(settings: SinkSettings, bus: Bus) -> Result<Self, SinkError> {
        let destination = settings.destination.open()?;
        Self::start_with(settings, destination, bus)
    }

    /// The same for a destination of the caller's own; `settings.destination` is not looked at.
    ///
    /// # Errors
    /// [`SinkError`].
    pub fn start_with(
        settings: SinkSettings,
        destination: Box<dyn Destination>,
        bus: Bus,
    ) -> Result<Self, SinkError> {
        settings.check()?;
        let counters = Arc::new(Counters::default());
        let stop = CancellationToken::new();
        let name = format!("sink-{}", settings.name);
        let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let reactor = reactor.map_err(SinkError::Start)?;
        let runtime = Runtime::new(settings, destination, bus, counters.clone(), stop.clone());
        let runtime = runtime.map_err(SinkError::Start)?;
        let thread = thread::Builder::new().name(name).spawn(move || {
            // Stored messages can wait for urgent ones.
            if let Err(error) = sched::usual_turns() {
                tracing::debug!(%error, "a sink's turns are as short as the broker's");
            }
            reactor.block_on(runtime.run());
        });
        Ok(Self { counters, stop, thread: Some(thread.map_err(SinkError::Start)?) })
    }

    /// The counts so far.
    pub fn report(&self) -> SinkReport {
        self.counters.report()
    }

    /// Whether the destination took what it was last given; true before that.
    pub fn is_up(&self) -> bool {
        self.counters.is_up.load(Ordering::Relaxed)
    }

    /// Hands over what it holds, if that goes within a few seconds, and waits for its thread. Messages that were not taken
    /// stay in the session. To be done before this node's broker stops.
    pub fn stop(mut self) -> SinkReport {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a sink panicked");
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Display for SinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, bytes, batches, refused, dead_lettered, kept, lost, failures, looped } =
            self;
        write!(
            f,
            "{messages} messages of {bytes} bytes taken in {batches} batches, {refused} refused, {dead_lettered} of them dead \
             letters, {kept} kept and {lost} lost, {failures} failures, {looped} not sent again that came round"
        )
    }
}
