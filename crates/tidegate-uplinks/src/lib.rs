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
//! - Messages over 16 MiB are not carried. A message larger than all that the other node's broker may hold is refused there for
//!   good.

mod receiver;
mod sender;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_bus::{Bus, SessionConfig, part_id};
use tidegate_compress::EncoderConfig;
use tidegate_identity::pki::Credentials;
use tidegate_link::link::{LinkSettings, Transport};
use tidegate_sys::sched;
use tidegate_uplink::{Counts, OutgoingConfig, SenderConfig};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::sender::Sender;

pub use receiver::{Receivers, links::UplinkLinks};

/// Where an uplink says every five seconds, and when its link comes or goes, what it did: an [`UplinkReport`] as JSON, retained.
pub fn state_topic(uplink: &str) -> String {
    format!("$SYS/broker/uplink/{uplink}/state")
}

/// The settings of an uplink.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkSettings {
    /// Its name; with this node's certificate it names what the other node keeps for it.
    pub name: String,
    /// The other node's link address, as host and port.
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
}

impl UplinkSettings {
    /// Those of the state machine, in a node of that name.
    fn sender(&self, node: &Arc<str>) -> SenderConfig {
        SenderConfig {
            name: self.name.clone(),
            node: node.clone(),
            topics: self.topics.clone(),
            critical: self.critical.clone(),
            critical_bytes_per_second: self.critical_bytes_per_second,
            outgoing: OutgoingConfig {
                batch_age: self.batch_age,
                // A burst is over when a quarter of that time brought nothing more.
                batch_idle: self.batch_age / 4,
                window_bytes_max: self.window_bytes_max,
                flight_bytes_max: self.flight_bytes_max,
                encoder: EncoderConfig { body_bytes: self.batch_bytes, ..self.encoder.clone() },
            },
            names_messages: self.names_messages,
            retry_max: self.retry_max,
        }
    }

    /// The client identifiers of the two sessions here of the uplink called `name`.
    pub fn sessions(name: &str) -> [String; 2] {
        ["batched", "critical"].map(|what| part_id("uplink", &format!("{name}/{what}")))
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

/// An uplink that runs until it is dropped, on a thread of its own: encoding there holds up no alarm here, since the broker's
/// threads, which run in shorter turns, need not wait for its turn to end.
#[derive(Debug)]
pub struct Uplink {
    settings: UplinkSettings,
    counters: Arc<Counters>,
    subscribed: watch::Receiver<bool>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Uplink {
    /// Carries messages of the broker behind `bus` to the other node, to which it introduces itself by `credentials`. `node` is
    /// this node's name among those that a message passed, unique among all nodes that bridges and uplinks join.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        settings: UplinkSettings,
        node: Arc<str>,
        bus: Bus,
        credentials: Credentials,
        link: LinkSettings,
    ) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let (sender_subscribed, subscribed) = watch::channel(false);
        let counters = Arc::<Counters>::default();
        let sender = Sender {
            settings: settings.clone(),
            node,
            bus,
            credentials,
            link,
            counters: counters.clone(),
            subscribed: sender_subscribed,
            stop: stop.clone(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name(format!("up-{}", settings.name));
        let thread = thread.spawn(move || {
            if let Err(error) = sched::usual_turns() {
                tracing::debug!(%error, "an uplink's turns are as short as the broker's");
            }
            runtime.block_on(sender.run_always());
        })?;
        Ok(Self { settings, counters, subscribed, stop, thread: Some(thread) })
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of an uplink panicked");
        }
    }
}

/// The uplinks of a node, by name.
#[derive(Debug, Default)]
pub struct Uplinks {
    running: BTreeMap<String, Uplink>,
}

impl Uplinks {
    /// Runs `planned` and no others from now on; those whose settings are the same are not interrupted. Names those that were
    /// started, stopped or restarted. `node` is as in [`Uplink::start`].
    pub fn exchange(
        &mut self,
        planned: Vec<UplinkSettings>,
        node: &Arc<str>,
        bus: &Bus,
        credentials: &Credentials,
        link: &LinkSettings,
    ) -> Vec<String> {
        let stays = |uplink: &Uplink| planned.contains(&uplink.settings);
        let gone = self.running.extract_if(.., |_, uplink| !stays(uplink));
        let mut changed: Vec<String> = gone.map(|(name, _)| name).collect();
        for settings in planned {
            if self.running.contains_key(&settings.name) {
                continue;
            }
            let name = settings.name.clone();
            let uplink = Uplink::start(
                settings,
                node.clone(),
                bus.clone(),
                credentials.clone(),
                link.clone(),
            );
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
            let said = *uplink.counters.said.lock().unwrap_or_else(PoisonError::into_inner);
            (name.clone(), uplink.settings.to.clone(), said)
        };
        self.running.iter().map(report).collect()
    }

    /// Of each, whether its sessions are there: messages published from then on are carried.
    pub fn subscribed(&self) -> Vec<watch::Receiver<bool>> {
        self.running.values().map(|uplink| uplink.subscribed.clone()).collect()
    }
}
