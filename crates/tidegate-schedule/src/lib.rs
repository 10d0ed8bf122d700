//! Chooses what one subscriber is sent next: a small message, a large one, or nothing yet.
//!
//! ```text
//!  Backlog   (what waits)  ─┐
//!  LinkState (the kernel)  ─┼─> Schedule::next ─> Small | Large | Wait(until)
//!  answered, observed (RTT) ┘         ^                  │
//!                                     └──── started ─────┘ (and small messages that did not wait)
//! ```
//!
//! MQTT cannot interleave inside a packet: once begun, a large message holds up all that comes after it for
//! the time that it takes on the wire. All that can be chosen is *when it starts*. The paper (Tseng et al.,
//! "Cloud-edge MQTT messaging for latency mitigation and broker memory footprint reduction", PeerJ Computer
//! Science 11:e2741, section "Large message scheduling") decides by the RTT of periodic query messages; those
//! three policies are here by their equations. Ours, [`Policy::Deadline`], decides by what the kernel knows
//! of the connection and needs no queries.
//!
//! Always true:
//! - a small message goes at once, unless a large one is entitled to go before it (see [`DeadlineConfig`]);
//! - a large message that waits is started at last, as long as the caller asks when it is asked to and
//!   sends the answer: no policy answers [`Next::Wait`] without an end while a large message waits;
//! - no input makes it panic: times saturate, a rate or RTT of zero means unknown.

mod deadline;
mod paper;
mod policy;
#[cfg(test)]
mod tests;
mod window;

use std::time::Duration;

use tidegate_message::Instant;

pub use self::policy::{
    DeadlineConfig, PaperConfig, Policy, PolicyConfig, PolicyError, SizeProfile, Threshold,
    UnknownPolicyError,
};
use self::{
    deadline::Deadline,
    paper::{Paper, Source},
};

/// Decides for one subscriber. A new connection gets a new one: measurements of the old path are void.
#[derive(Clone, Debug)]
pub struct Schedule {
    policy: Policy,
    deadline: Deadline,
    paper: Paper,
    turns: Turns,
    withholding: Option<Withholding>,
    withheld: Withheld,
}

/// The state of the path to the subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkState {
    /// Smoothed round-trip time of the connection (`tcpi_rtt`); zero if unknown.
    pub rtt: Duration,
    /// Least round-trip time that was seen (`tcpi_min_rtt`); zero if unknown.
    pub rtt_min: Duration,
    /// Bytes a second that the subscriber took of late (`tcpi_delivery_rate`); zero if unknown.
    pub delivery_rate: u64,
    /// Bytes in the kernel that were never sent (`tcpi_notsent_bytes`).
    pub unsent_bytes: u64,
    /// Bytes on the way: sent, not acknowledged, and not taken for lost.
    pub in_flight_bytes: u64,
    /// How long the connection had bytes to send, since it began (`tcpi_busy_time`).
    pub busy: Duration,
    /// How long of that the subscriber's window held it back (`tcpi_rwnd_limited`).
    pub receiver_limited: Duration,
    /// How long of that this host's send buffer did, or what it may hold unsent (`tcpi_sndbuf_limited`).
    pub buffer_limited: Duration,
}

/// The waiting messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backlog {
    /// Bytes of the first small message, zero if none waits.
    pub small_bytes: u64,
    /// The first large message.
    pub large: Option<Waiting>,
}

/// A large message that waits. Its bytes and time together tell it from the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Bytes of the message.
    pub bytes: u64,
    /// When it was queued.
    pub since: Instant,
}

/// The message that starts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The first small message.
    Small,
    /// The first large message.
    Large,
    /// Nothing may start now; ask again at that time, at a new RTT, or when the kernel takes bytes.
    Wait(Option<Instant>),
}

/// Which of the two queues a message is in: large if its bytes are above `threshold_s` (section "Message
/// size classification").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// At most `threshold_s`.
    Small,
    /// Above `threshold_s`.
    Large,
}

/// How many large messages were withheld by choice, and for how long. Waiting for small messages or for the
/// kernel to take bytes does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Withheld {
    /// Messages that were withheld and have started since.
    pub messages: u64,
    /// Sum of their times, from the first decision to withhold to the start.
    pub total: Duration,
    /// The longest of those times.
    pub longest: Duration,
}

impl Schedule {
    /// A schedule that knows nothing of the way yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            deadline: Deadline::default(),
            paper: Paper::default(),
            turns: Turns::default(),
            withholding: None,
            withheld: Withheld::default(),
        }
    }

    /// The policy it was made with.
    #[inline]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The message that starts now.
    ///
    /// With [`Policy::None`] the caller keeps one queue in order of arrival and does not ask; if it does,
    /// small messages go first and nothing is withheld.
    pub fn next(&mut self, now: Instant, backlog: Backlog, link: LinkState) -> Next {
        if let Policy::Deadline(_) = self.policy {
            self.deadline.observe(now, link);
        }
        let small_waits = backlog.small_bytes > 0;
        let Some(large) = backlog.large else {
            self.no_large();
            return if small_waits { Next::Small } else { Next::Wait(None) };
        };
        self.turns.large_waits = true;
        self.turns.small_waits = small_waits;
        if small_waits {
            return if self.overtakes(now, large) { Next::Large } else { Next::Small };
        }
        self.turns.small_since = None;
        let next = match &self.policy {
            Policy::None => Next::Large,
            Policy::Deadline(config) => self.deadline.large(config, now, large, link),
            Policy::Conservative(config)
            | Policy::Probabilistic(config)
            | Policy::Historic(config) => self.paper.large(&self.policy, config, now, large),
        };
        // Until what is before it has left, nothing would be gained by a start: that is not withholding.
        let by_choice =
            !matches!(self.policy, Policy::Deadline(_)) || deadline::excess_bytes(link) == 0;
        if matches!(next, Next::Wait(_)) && by_choice {
            let same = self.withholding.filter(|withholding| withholding.of == large);
            self.withholding = Some(same.unwrap_or(Withholding { of: large, from: now }));
        }
        next
    }

    /// No large message waits, or it may not leave: the same as to ask with a backlog without one.
    #[inline]
    pub fn no_large(&mut self) {
        if self.turns.large_waits {
            self.turns.clear();
            self.withholding = None;
        }
    }

    /// The kernel's state of the path, recorded although no decision is asked for.
    pub fn looked(&mut self, now: Instant, link: LinkState) {
        match &self.policy {
            Policy::None => {}
            Policy::Deadline(_) => self.deadline.observe(now, link),
            Policy::Conservative(config)
            | Policy::Probabilistic(config)
            | Policy::Historic(config) => self.paper.looked(now, link.rtt, config),
        }
    }

    /// Whether to look at what the kernel knows although no large message waits.
    ///
    /// For [`Policy::Deadline`] once a second, from the first large message on: a rate that is first seen when the next
    /// one comes would be taken for news. For the paper's policies once in a period `T_Q` while no PUBACK tells more.
    #[inline]
    pub fn look_due(&self, now: Instant) -> bool {
        match &self.policy {
            Policy::None => false,
            Policy::Deadline(_) => self.deadline.look_due(now),
            Policy::Conservative(config)
            | Policy::Probabilistic(config)
            | Policy::Historic(config) => self.paper.look_due(now, config),
        }
    }

    /// A message of that class and size was begun, or went at once, without waiting.
    #[inline]
    pub fn started(&mut self, now: Instant, class: Class, bytes: u64) {
        match class {
            Class::Small => {
                self.deadline.small_started(now);
                if self.turns.large_waits {
                    let (share, quantum) = match &self.policy {
                        Policy::Deadline(config) => (config.share(), config.quantum_bytes),
                        _ => (0.0, 0),
                    };
                    self.turns.small(now, bytes, share, quantum);
                }
            }
            Class::Large => {
                self.turns.large(bytes);
                self.paper.large_started();
                if let Some(Withholding { from, .. }) = self.withholding.take() {
                    let time = now.since(from);
                    self.withheld.messages += 1;
                    self.withheld.total = self.withheld.total.saturating_add(time);
                    self.withheld.longest = self.withheld.longest.max(time);
                }
            }
        }
    }

    /// Whether a query is to be sent now. Never for a policy that needs none.
    ///
    /// One at a time is on its way: where the paper sends one each `T_Q` regardless, more queries into a
    /// path that does not answer would only feed its congestion.
    #[inline]
    pub fn query_due(&self, now: Instant) -> bool {
        self.query_at().is_some_and(|at| at <= now)
    }

    /// When the next query is due: [`Instant::MIN`] if none was sent yet, nothing while one is on its way
    /// or if the policy needs none.
    #[inline]
    pub fn query_at(&self) -> Option<Instant> {
        self.policy.paper().and_then(|config| self.paper.query_at(config))
    }

    /// A query's last byte was written to the connection.
    pub fn query_sent(&mut self, now: Instant) {
        self.paper.query_sent(now);
    }

    /// The query on its way was acknowledged after `rtt`.
    ///
    /// The caller matches the PUBACK by its own packet identifier and counts from when the query's bytes
    /// left, so that the broker's own backlog is not part of it.
    pub fn answered(&mut self, now: Instant, rtt: Duration) {
        self.paper.answered(now, rtt, self.policy.paper());
    }

    /// Whether the round trip of a QoS 1 message that begins now is wanted. Once in a period `T_Q`, while no query is
    /// answered and for a policy that goes by it.
    #[inline]
    pub fn times_messages(&self, now: Instant) -> bool {
        let paper = self.policy.paper();
        paper.is_some_and(|config| self.paper.takes(now, Source::Message, config))
    }

    /// The RTT of a message: until its PUBACK, from when its last byte was written. `bytes` of it could not have left this
    /// host before.
    ///
    /// It is scaled to the size of a query. Left out where a query was answered within the last two
    /// periods: those are all of one size and comparable.
    pub fn observed(&mut self, now: Instant, rtt: Duration, bytes: u64) {
        if let Some(config) = self.policy.paper() {
            self.paper.observed(now, rtt, bytes, Source::Message, config);
        }
    }

    /// The latest RTT, at the size of a query (`RTT_latest`); nothing before the first.
    #[inline]
    pub fn rtt(&self) -> Option<Duration> {
        self.paper.rtt()
    }

    /// How much was withheld.
    #[inline]
    pub fn withheld(&self) -> Withheld {
        self.withheld
    }

    /// Whether the large message goes although small ones wait.
    fn overtakes(&self, now: Instant, large: Waiting) -> bool {
        let limit = match &self.policy {
            Policy::None => return false,
            Policy::Deadline(config) => {
                if self.turns.deficit >= large.bytes as f64 && config.share() > 0.0 {
                    return true;
                }
                config.deadline
            }
            Policy::Conservative(config)
            | Policy::Probabilistic(config)
            | Policy::Historic(config) => config.withhold_max,
        };
        let Some(small_since) = self.turns.small_since else { return false };
        now.since(large.since) > limit && now.since(small_since) > limit
    }
}

/// The class whose turn it is when both wait: deficit round robin by bytes, from the point of view of the
/// large class. In a round the small one sends `quantum * (1 - share)` bytes, and the large one's deficit
/// grows by `quantum * share`.
///
/// A start while no small message waits takes nothing from anybody: it ends the round, or the many small
/// messages of a quiet hour would add up to a start before a small one that waits already.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    large_waits: bool,
    small_waits: bool,
    /// Bytes of small messages in this round.
    small_bytes: u64,
    /// Bytes that the large class may send before small ones.
    deficit: f64,
    /// The first small message that went since a large one did or the small queue was empty, while a large
    /// message waited.
    small_since: Option<Instant>,
}

impl Turns {
    #[inline]
    fn clear(&mut self) {
        *self = Self::default();
    }

    #[inline]
    fn small(&mut self, now: Instant, bytes: u64, share: f64, quantum: u64) {
        self.small_since.get_or_insert(now);
        self.small_bytes = self.small_bytes.saturating_add(bytes);
        let turn = ((quantum as f64 * (1.0 - share)) as u64).max(1);
        let rounds = self.small_bytes / turn;
        self.small_bytes %= turn;
        self.deficit += rounds as f64 * (turn as f64 / (1.0 - share)) * share;
    }

    #[inline]
    fn large(&mut self, bytes: u64) {
        if !self.small_waits {
            self.deficit = 0.0;
            self.small_bytes = 0;
        }
        self.deficit = (self.deficit - bytes as f64).max(0.0);
        self.small_since = None;
    }
}

#[derive(Clone, Copy, Debug)]
struct Withholding {
    of: Waiting,
    from: Instant,
}
