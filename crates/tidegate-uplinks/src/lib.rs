//! Uplinks: messages published at this node are published at another one as well, compact, urgent ones first, none lost.
//!
//! ```text
//!  NODE AT THE EDGE                                         │ NODE ABOVE
//!  broker ─ session "critical" ─▶┐               ┌ at once ─┼─▶ Incoming ─▶ broker ─▶ any session
//!    └───── session "batched" ──▶┴ UplinkSession ┴ batches ─┤       │
//!                 ▲                                         │       │
//!                 └───────────── acknowledged ◀─────────────┼───────┘
//! ```
//!
//! An uplink is two clients of this node's broker whose link is the node link. Both ends are state machines of `tidegate-uplink`; here
//! are the tasks around them, [`Uplink`] and [`Receivers`]. Messages of `critical` topics travel alone and first,
//! within a cap; all others in batches of the sensor codec (`tidegate-compress`), closed after [`UplinkSettings::batch_age`] or
//! [`UplinkSettings::batch_bytes`], or when no more comes. While both wait, batches keep a tenth of the link.
//!
//! # What is promised
//!
//! - A message of QoS 1 or 2 that this node's broker has taken is published at the other node at least once, as long as the session
//!   lives: `mqtt.durability` says what it survives, its overflow policy where it waits (`spill`: on disk). QoS 0 messages are
//!   lost with their session's connection, or where they find no room.
//! - Messages read and not acknowledged take at most [`UplinkSettings::window_bytes_max`]; the rest waits in the broker. Memory does
//!   not
//!   depend on how slow the link or the other node is.
//! - Across any failures of links, each message comes out once and in order of its session. If the *other node* restarts, messages that
//!   it
//!   had published and not acknowledged come twice, with the same name; if *this one* does, with another. The name is a user
//!   property ([`ID_PROPERTY`](tidegate_message::ID_PROPERTY)), unless [`UplinkSettings::names_messages`] is off.
//!   Topics may become critical, and no longer be, while messages wait: messages that a hand-over finds in both sessions come twice.
//! - Topic, payload, QoS (2 as 1), retain flag, expiry less what it waited, and user properties come out as they went in. They are published in the name of
//!   the sending node, and the rules of the receiving one decide.
//! - A message that has left this node before is not carried again, and one that has been at the other node is not published there
//!   again: each node that it passes is added to its user properties ([`tidegate_wire::mqtt::path::PROPERTY`]), as bridges do.
//! - Between members of a fabric ([`Peer`]) messages always have names, and one keeps its name when this node restarts as well: it is
//!   made of when the message was received here, and of its identifier in the session. A receiver that goes on passes over the second;
//!   one that has restarted too publishes it again, under the same name. A loss of power may take the identifier; another is another name.
//! - Messages over 16 MiB are not carried. A message larger than all that the other node's broker may hold is refused there for
//!   good.

mod member;
mod receiver;
mod sender;
mod visits;

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tidegate_bus::{Bus, SessionConfig, part_id};
use tidegate_compress::EncoderConfig;
use tidegate_identity::pki::Credentials;
use tidegate_link::link::{LinkSettings, Transport};
use tidegate_process::threads::{TaskThread, Turns};
use tidegate_uplink::{Counts, Member, OutgoingConfig, SenderConfig};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::sender::Sender;

pub use member::{Peer, Reach};
pub use receiver::{Receivers, links::UplinkLinks};
pub use tidegate_uplink::Topics;
pub use visits::{FetchLinks, Fetching, Visits};

/// Where an uplink says every five seconds, and when its link comes or goes, what it did: an [`UplinkReport`] as JSON, retained.
pub fn state_topic(uplink: &str) -> String {
    format!("$SYS/broker/uplink/{uplink}/state")
}

/// The settings of an uplink.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkSettings {
    /// Its name; with this node's certificate it names what the other node keeps for it. [`FABRIC`](tidegate_uplink::FABRIC) for a member of the fabric.
    pub name: String,
    /// The other node's link address, as host and port; of a member of the fabric its name, since [`Reach`] has its addresses.
    pub to: String,
    /// Its transport.
    pub transport: Transport,
    /// Filters of the topics that it carries.
    pub topics: Vec<String>,
    /// Filters of the topics whose messages travel at once.
    pub critical: Vec<String>,
    /// Bytes of critical messages a second at most, and at once.
    pub critical_bytes_per_second: u64,
    /// Longest time that a message waits for others.
    pub batch_age: Duration,
    /// Bytes of a batch at most, before zstd.
    pub batch_bytes: usize,
    /// Bytes of messages that are read and not acknowledged, at most.
    pub window_bytes_max: usize,
    /// Bytes of batches under way at most.
    pub flight_bytes_max: usize,
    /// How messages are encoded.
    pub encoder: EncoderConfig,
    /// Whether messages are published with their names.
    pub names_messages: bool,
    /// Queues of its sessions.
    pub session: SessionConfig,
    /// Longest wait between two tries to reach the other node; the first is a twentieth of it.
    pub retry_max: Duration,
    /// The member of the fabric that it goes to, if it does. Default none.
    pub peer: Option<Peer>,
}

impl UplinkSettings {
    /// Those of the state machine, in a node of that name.
    fn sender(&self, node: &Arc<str>, topics: Topics) -> SenderConfig {
        SenderConfig {
            name: self.name.clone(),
            node: node.clone(),
            topics,
            critical: self.critical.clone(),
            critical_bytes_per_second: self.critical_bytes_per_second,
            outgoing: OutgoingConfig {
                batch_age: self.batch_age,
                // A burst is over when a quarter of that time brought nothing more.
                batch_idle: self.batch_age / 4,
                window_bytes_max: self.window_bytes_max,
                flight_bytes_max: self.flight_bytes_max,
                encoder: EncoderConfig { body_bytes: self.batch_bytes, ..self.encoder.clone() },
                has_origins: self.peer.is_some(),
            },
            names_messages: self.names_messages,
            retry_max: self.retry_max,
            member: self.peer.as_ref().map(|peer| Member { idle_max: peer.idle_max }),
        }
    }

    /// The client identifiers of the two sessions here of the uplink called `name`.
    pub fn sessions(name: &str) -> [String; 2] {
        ["batched", "critical"].map(|what| part_id("uplink", &format!("{name}/{what}")))
    }

    /// Those of this one.
    fn own_sessions(&self) -> [String; 2] {
        self.peer
            .as_ref()
            .map_or_else(|| Self::sessions(&self.name), |peer| Peer::sessions(peer.node))
    }
}

/// Counts of an uplink that outlive its sessions.
#[derive(Debug, Default)]
struct Counters {
    connects: AtomicU64,
    refused: AtomicU64,
    looped: AtomicU64,
    /// As it was published last.
    said: Mutex<UplinkReport>,
}

/// Counts of an uplink, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct UplinkReport {
    /// Whether it has a link.
    pub up: bool,
    /// Links so far.
    pub connects: u64,
    /// Batches sent.
    pub batches: u64,
    /// Messages in them; those that were sent again each time.
    pub messages: u64,
    /// Bytes of these messages: topics, attributes, payloads.
    pub message_bytes: u64,
    /// Bytes of the batches.
    pub bytes: u64,
    /// Critical messages sent.
    pub critical: u64,
    /// Times that the codec's state started over.
    pub epochs: u64,
    /// Messages that were sent in full.
    pub definitions: u64,
    /// Topics that the codec forgot for want of room.
    pub evictions: u64,
    /// Messages that cannot be carried.
    pub refused: u64,
    /// Messages that had left this node before, and were not carried again.
    pub looped: u64,
    /// Messages whose time was over before they were sent.
    pub expired: u64,
    /// Bytes a second that batches may use in addition to the frames of cameras; 0 without limit.
    pub allowed: u64,
    /// Bytes of messages that are read and not acknowledged.
    pub held_bytes: u64,
}

impl UplinkReport {
    fn new(up: bool, counts: &Counts, counters: &Counters) -> Self {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        Self {
            up,
            connects: of(&counters.connects),
            batches: counts.batches,
            messages: counts.messages,
            message_bytes: counts.message_bytes,
            bytes: counts.bytes,
            critical: counts.critical,
            epochs: counts.epochs,
            definitions: counts.definitions,
            evictions: counts.evictions,
            refused: of(&counters.refused),
            looped: of(&counters.looped),
            expired: counts.expired,
            allowed: counts.allowed,
            held_bytes: counts.held_bytes,
        }
    }
}

/// The node that uplinks begin at.
#[derive(Clone)]
pub struct Home {
    /// Its name among those that a message passed, unique among all nodes that bridges and uplinks join.
    pub node: Arc<str>,
    /// Its broker, whose messages are carried.
    pub bus: Bus,
    /// By which it introduces itself to other nodes.
    pub credentials: Credentials,
    /// How it links to them.
    pub link: LinkSettings,
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The parts of an uplink that change while it runs. Each stays as it is once its sender is dropped.
#[derive(Clone, Debug)]
pub struct Course {
    /// The topics that are carried.
    pub topics: watch::Receiver<Topics>,
    /// Where the other node is reached.
    pub reach: watch::Receiver<Reach>,
    /// The links that it makes itself, which are used first.
    pub visits: Visits,
}

impl Course {
    /// Whether the other node can be dialled, or has a link here that waits.
    fn can_reach(&mut self) -> bool {
        !self.reach.borrow_and_update().addresses.is_empty() || self.visits.has_waiting()
    }

    /// The one of an uplink to a fixed address, whose topics do not change.
    pub fn fixed(settings: &UplinkSettings) -> Self {
        let (_, topics) = watch::channel(Topics::fixed(&settings.topics));
        let (_, reach) = watch::channel(Reach::at([&*settings.to]));
        Self { topics, reach, visits: Visits::default() }
    }
}

/// An uplink that runs until it is dropped.
#[derive(Debug)]
pub struct Uplink {
    settings: UplinkSettings,
    counters: Arc<Counters>,
    held: watch::Receiver<u64>,
    stop: CancellationToken,
    /// Its sessions here end with it.
    forgets: CancellationToken,
    /// Where it runs, if on a thread of its own.
    _thread: Option<TaskThread>,
}

impl Uplink {
    /// Begins on a thread of its own, which has ended once this is dropped.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(settings: UplinkSettings, home: Home, course: Course) -> io::Result<Self> {
        let thread = TaskThread::start(format!("up-{}", settings.name), Turns::Usual)?;
        let mut uplink = Self::start_on(&thread, settings, home, course);
        uplink._thread = Some(thread);
        Ok(uplink)
    }

    /// Begins on a thread that it shares with others, such as those to all members of a fabric. It ends soon after this is dropped.
    pub fn start_on(
        thread: &TaskThread,
        settings: UplinkSettings,
        home: Home,
        course: Course,
    ) -> Self {
        let (sender_held, held) = watch::channel(0);
        let counters = Arc::<Counters>::default();
        let forgets = CancellationToken::new();
        let stop = thread.spawn(|stop| {
            let sender = Sender {
                settings: settings.clone(),
                home,
                counters: counters.clone(),
                course,
                held: sender_held,
                stop,
                forgets: forgets.clone(),
            };
            sender.run_always()
        });
        Self { settings, counters, held, stop, forgets, _thread: None }
    }

    /// Ends it for good: its sessions here, and messages that wait there, end with it.
    pub fn forget(self) {
        self.forgets.cancel();
    }

    /// The generation of the last topics that this node's broker has subscriptions for, 0 before the first: messages that match them are
    /// carried if they are published from then on.
    pub fn held(&self) -> watch::Receiver<u64> {
        self.held.clone()
    }

    /// The counts that it noted last.
    pub fn report(&self) -> UplinkReport {
        *self.counters.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        // Before its thread, which waits for it.
        self.stop.cancel();
    }
}

/// The uplinks of a node, by name.
#[derive(Debug, Default)]
pub struct Uplinks {
    running: BTreeMap<String, Uplink>,
}

impl Uplinks {
    /// Runs `planned` and no others from now on; those whose settings are the same are not interrupted. Names those that were
    /// started, stopped or restarted.
    pub fn exchange(&mut self, planned: Vec<UplinkSettings>, home: &Home) -> Vec<String> {
        let stays = |uplink: &Uplink| planned.contains(&uplink.settings);
        let gone = self.running.extract_if(.., |_, uplink| !stays(uplink));
        let mut changed: Vec<String> = gone.map(|(name, _)| name).collect();
        for settings in planned {
            if self.running.contains_key(&settings.name) {
                continue;
            }
            let name = settings.name.clone();
            let course = Course::fixed(&settings);
            let uplink = Uplink::start(settings, home.clone(), course);
            if !changed.contains(&name) {
                changed.push(name.clone());
            }
            match uplink {
                Ok(uplink) => _ = self.running.insert(name, uplink),
                Err(error) => {
                    tracing::error!(uplink = name, %error, "the uplink cannot be started; a reload tries again");
                }
            }
        }
        changed
    }

    /// Of each, its name, the other node's host and port, and what it said last.
    pub fn reports(&self) -> Vec<(String, String, UplinkReport)> {
        let report = |(name, uplink): (&String, &Uplink)| {
            (name.clone(), uplink.settings.to.clone(), uplink.report())
        };
        self.running.iter().map(report).collect()
    }

    /// Of each, the [topics that it holds](Uplink::held): 1 once it takes messages.
    pub fn held(&self) -> Vec<watch::Receiver<u64>> {
        self.running.values().map(Uplink::held).collect()
    }
}
