//! The state of a session while a client is connected.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::{Instant, Payload, Position, TopicError};
use tidegate_schedule::{LinkState, Schedule};
use tidegate_wire::mqtt::{PacketId, QoS, ReasonCode, Subscribe, Unsubscribe, Version};

use crate::{
    WRITE_BYTES_MAX,
    budget::{Charge, PartialCharge},
    message::Message,
    outbox::Outbox,
    reach::Reach,
    routes::Route,
    segments::{SEGMENT_BYTES, Segment, Segments},
    slab::Key,
};

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether the client said so; false if it was ended from this side.
    pub is_by_client: bool,
    /// The reason of the DISCONNECT; before MQTT 5, the one that it would have had.
    pub reason: ReasonCode,
    /// More about it.
    pub text: Option<Box<str>>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// Its session; none once another connection has taken that over.
    pub(crate) session: Option<Key>,
    pub(crate) version: Version,
    pub(crate) will: Option<Box<WillMessage>>,
    /// Seconds of silence that are allowed; 0 for any.
    pub(crate) keep_alive: u16,
    pub(crate) last_heard: Instant,
    /// When its silence is looked at.
    pub(crate) silence_at: Option<Instant>,
    /// Largest packet that the client takes.
    pub(crate) packet_bytes_max: u32,
    /// Largest packet that is taken from it.
    pub(crate) received_bytes_max: u32,
    /// Highest QoS that it may publish with, and whether it may have messages retained.
    pub(crate) max_qos: QoS,
    pub(crate) retains: bool,
    /// QoS 1 and 2 messages in flight that the client takes.
    pub(crate) receive_maximum: u16,
    /// Whether acknowledgements may carry a reason string.
    pub(crate) problem_information: bool,
    /// The one it began with, which another exchange must name (MQTT-4.12.1-1).
    pub(crate) authentication_method: Option<String>,
    pub(crate) authentication: Authentication,
    /// A bridge of Mosquitto's kind: messages keep their retain flag.
    pub(crate) keeps_retain: bool,
    /// Topics by the client's alias.
    pub(crate) aliases_in: AliasesIn,
    pub(crate) aliases_out: AliasesOut,
    pub(crate) outbox: Outbox,
    pub(crate) schedule: Schedule,
    pub(crate) link: LinkState,
    /// In the list of connections to be flushed.
    pub(crate) is_dirty: bool,
    /// The kernel takes nothing more for now.
    pub(crate) is_blocked: bool,
    /// Of the node's budget, what its output takes while the kernel takes nothing.
    pub(crate) output_charge: Option<Charge>,
    /// Since when nothing has left of memory that others may need.
    pub(crate) stall: Option<Stall>,
    /// Ends when what waits has left; nothing more is read or delivered.
    pub(crate) is_closing: bool,
    /// Why it ends; none while it does not, and where it was gone without a reason.
    pub(crate) ended: Option<Box<Ended>>,
    /// When its large message or query is to be looked at again.
    pub(crate) wakes_at: Option<Instant>,
    /// The latency query under way.
    pub(crate) query: Option<Query>,
    /// A QoS 1 message under way that is timed as a query is.
    pub(crate) timed: Option<Query>,
    /// Topics that it published to of late, the last first.
    pub(crate) recent: Vec<Recent>,
    /// The subscribers that its messages are for.
    pub(crate) reach: Reach,
    /// A message of its own was not accepted, which it cannot learn: it may take the messages that wait for it, and
    /// ends then.
    pub(crate) drains: bool,
    /// A large PUBLISH that is being received.
    pub(crate) receiving: Option<Box<Receiving>>,
    /// A SUBSCRIBE or UNSUBSCRIBE of many filters that is under way: nothing more is read until it is answered.
    pub(crate) filters: Option<Box<Filters>>,
    /// Exchanges of former connections that are yet to be sent again, and those that wait for the disk to be sent at all.
    pub(crate) resend: VecDeque<Resend>,
    /// Answers to it that wait for the disk.
    pub(crate) owed: u32,
    /// Nothing leaves, CONNACK included, before the journal's records up to this one are durable.
    pub(crate) opens_after: Option<Position>,
    /// QoS 1 and 2 messages sent on this connection and not acknowledged, as bounded by Receive Maximum (section
    /// 4.9).
    pub(crate) unacknowledged: u16,
    /// Bytes of QoS 1 and 2 messages in flight, unless its path holds more.
    pub(crate) inflight_bytes_max: u64,
    /// Whether one PUBACK stands for all before it.
    pub(crate) acknowledges_through: bool,
    /// The last message that is yet to be acknowledged so, and the worst that is to be said of those before it.
    pub(crate) through: Option<(PacketId, ReasonCode)>,
    /// The topic of the first of these that is not allowed.
    pub(crate) denied: Option<Box<str>>,
}

/// The filters of a SUBSCRIBE or UNSUBSCRIBE, and what came of those before.
#[derive(Debug)]
pub(crate) struct Filters {
    pub(crate) asked: Asked,
    pub(crate) reasons: Vec<ReasonCode>,
    /// The first error of a filter that was refused.
    pub(crate) invalid: Option<TopicError>,
    /// Shared subscriptions with other members that were left.
    pub(crate) left_groups: HashSet<String>,
    /// When the next of them are looked at.
    pub(crate) at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) enum Asked {
    Subscribe(Subscribe),
    Unsubscribe(Unsubscribe),
}

/// An exchange that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resend {
    pub(crate) id: PacketId,
    /// Whether an earlier connection began it.
    pub(crate) is_repeated: bool,
    /// Not before the journal's records up to this one are durable.
    pub(crate) after: Option<Position>,
}

/// Where an authentication stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authentication {
    /// None is under way.
    Done,
    /// The shell is to answer.
    Asked,
    /// The client is to answer.
    Challenged,
}

/// A will that is held.
#[derive(Debug)]
pub(crate) struct WillMessage {
    pub(crate) message: Arc<Message>,
    pub(crate) delay: Duration,
    /// Message Expiry Interval in seconds.
    pub(crate) expiry: Option<u32>,
}

/// A topic of a publisher.
#[derive(Debug)]
pub(crate) struct Recent {
    pub(crate) route: Arc<Route>,
    pub(crate) allowed: bool,
}

/// Bytes of a topic that an acknowledgement names.
const DENIED_BYTES_MAX: usize = 1000;

/// Topics that a publisher's connection remembers.
pub(crate) const RECENT_MAX: usize = 8;

/// A query of the paper's policies, or a message in its place: of QoS 1, its acknowledgement gives a round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub(crate) id: PacketId,
    /// Bytes that may still be in this host when its last one is written: no more than one write has.
    pub(crate) bytes: u64,
    /// The position in its output after which the connection has written all.
    pub(crate) ends_at: u64,
    pub(crate) left: Option<Instant>,
}

impl Query {
    /// That was just put into the output.
    pub(crate) fn new(id: PacketId, bytes: usize, outbox: &Outbox) -> Self {
        let bytes = bytes.min(WRITE_BYTES_MAX) as u64;
        Self { id, bytes, ends_at: outbox.written() + outbox.ahead(), left: None }
    }

    /// Whether its last byte left now, `written` bytes being written in all.
    pub(crate) fn leaves(&mut self, now: Instant, written: u64) -> bool {
        let leaves = self.left.is_none() && self.ends_at <= written;
        if leaves {
            self.left = Some(now);
        }
        leaves
    }
}

/// Topics by the client's alias.
#[derive(Debug, Default)]
pub(crate) struct AliasesIn {
    topics: Vec<Option<(Arc<str>, Option<Charge>)>>,
    /// Of all topics, those that are replaced included.
    bytes: u64,
}

/// Bytes of topics that each connection may have under aliases outside the node's budget.
const ALIASES_OWN_BYTES: u64 = 4 << 10;

impl AliasesIn {
    pub(crate) fn get(&self, at: usize) -> Option<&Arc<str>> {
        self.topics.get(at)?.as_ref().map(|(topic, _)| topic)
    }

    /// Whether another topic of so many bytes must be charged.
    pub(crate) fn are_many(&self, bytes: usize) -> bool {
        self.bytes + bytes as u64 > ALIASES_OWN_BYTES
    }

    pub(crate) fn set(&mut self, at: usize, topic: Arc<str>, charge: Option<Charge>) {
        if self.topics.len() <= at {
            self.topics.resize_with(at + 1, || None);
        }
        self.bytes += topic.len() as u64;
        self.topics[at] = Some((topic, charge));
    }
}

/// Aliases that this server defined.
#[derive(Debug, Default)]
pub(crate) struct AliasesOut {
    pub(crate) max: u16,
    known: HashMap<Arc<str>, NonZeroU16>,
}

impl AliasesOut {
    pub(crate) fn new(max: u16) -> Self {
        Self { max, known: HashMap::new() }
    }

    /// The alias for `topic` and whether the client knows it already. The first topics get one each; none are taken back.
    pub(crate) fn of(&mut self, topic: &Arc<str>) -> Option<(NonZeroU16, bool)> {
        if self.max == 0 {
            return None;
        }
        if let Some(alias) = self.known.get(topic) {
            return Some((*alias, true));
        }
        if self.known.len() >= usize::from(self.max) {
            return None;
        }
        let alias = NonZeroU16::new(u16::try_from(self.known.len() + 1).ok()?)?;
        self.known.insert(topic.clone(), alias);
        Some((alias, false))
    }
}

/// A PUBLISH whose payload arrives in segments.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) topic: Arc<str>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) packet_id: Option<PacketId>,
    pub(crate) forwarded: Vec<u8>,
    pub(crate) message_expiry: Option<u32>,
    /// Of what has come, or why the message is passed over: its payload is read and forgotten.
    pub(crate) charge: Result<PartialCharge, PassedOver>,
    /// When it began or was last found stalled, and how often memory had been refused by then.
    pub(crate) looked_at: Instant,
    pub(crate) refusals: u64,
    pub(crate) segments: Vec<Bytes>,
    pub(crate) segment: Option<Segment>,
    /// Bytes of the payload that have not arrived.
    pub(crate) left: usize,
}

/// The kernel takes nothing of what a client is sent, which holds memory meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    /// Bytes that the connection had written by then.
    pub(crate) written: u64,
    pub(crate) looked_at: Instant,
    /// How often memory had been refused by then.
    pub(crate) refusals: u64,
}

/// Why a large PUBLISH is read and forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassedOver {
    /// Its publisher may not send there.
    Denied,
    /// No memory is left for it.
    NoRoom,
    /// Its publisher has its share of the memory.
    OverShare,
}

/// A large PUBLISH of which nothing came for this long has stalled, and so has a client that took nothing. TCP bridges shorter gaps of bad links; a connection
/// that still holds memory then loses it to those that were refused some.
pub(crate) const STALLED: Duration = Duration::from_secs(30);

impl Connection {
    /// Times a message that was just put into the output, if it is acknowledged by PUBACK and its round trip is wanted.
    pub(crate) fn time(&mut self, now: Instant, qos: QoS, id: Option<PacketId>, bytes: usize) {
        if let Some(id) = id
            && qos == QoS::AtLeastOnce
            && self.timed.is_none()
            && self.schedule.times_messages(now)
        {
            self.timed = Some(Query::new(id, bytes, &self.outbox));
        }
    }

    /// Where one PUBACK stands for many messages, it says which of them is not allowed, or can never be held.
    #[cold]
    pub(crate) fn note_denied(&mut self, topic: &str) {
        if self.acknowledges_through {
            let told = &topic[..topic.floor_char_boundary(DENIED_BYTES_MAX)];
            self.denied.get_or_insert_with(|| told.into());
        }
    }

    /// When its silence is to be looked at.
    pub(crate) fn silence_ends(&self) -> Option<Instant> {
        let keep_alive = (self.keep_alive > 0).then(|| self.last_heard + silence(self.keep_alive));
        let stalls =
            self.receiving.as_ref().and_then(|receiving| receiving.stalls(self.last_heard));
        let unread = self.stall.map(|stall| stall.looked_at + STALLED);
        keep_alive.into_iter().chain(stalls).chain(unread).min()
    }
}

/// One and a half times the keep alive (MQTT-3.1.2-22).
pub(crate) fn silence(keep_alive: u16) -> Duration {
    Duration::from_millis(u64::from(keep_alive) * 1500)
}

impl Receiving {
    /// When it is to be looked at whether it has stalled; never if it holds no memory.
    fn stalls(&self, last_heard: Instant) -> Option<Instant> {
        self.charge.is_ok().then(|| last_heard.max(self.looked_at) + STALLED)
    }

    /// Bytes of memory that it needs before it takes more; 0 for none.
    pub(crate) fn wants(&self) -> usize {
        let needs = self.charge.is_ok() && self.segment.is_none();
        if needs { self.left.min(SEGMENT_BYTES) } else { 0 }
    }

    /// As much memory as it wants, which is charged.
    pub(crate) fn extend(&mut self, more: PartialCharge, pool: &Segments) {
        if let Ok(charge) = &mut self.charge {
            charge.absorb(more);
            self.segment = Some(pool.take(self.left));
        }
    }

    /// The rest is read and forgotten, as what has come is.
    pub(crate) fn pass_over(&mut self, why: PassedOver) {
        self.charge = Err(why);
        self.forwarded = Vec::new();
        self.segments = Vec::new();
        self.segment = None;
    }

    /// Takes what it has memory for of `input`; how much that was.
    pub(crate) fn take(&mut self, input: &[u8]) -> usize {
        let most = input.len().min(self.left);
        let taken = match &mut self.segment {
            Some(segment) => segment.fill(&input[..most]),
            None => most,
        };
        self.left -= taken;
        if self.segment.as_ref().is_some_and(Segment::is_full) {
            self.seal();
        }
        taken
    }

    fn seal(&mut self) {
        if let Some(segment) = self.segment.take() {
            self.segments.push(segment.freeze());
        }
    }

    /// The payload, once all of it is there.
    pub(crate) fn payload(&mut self) -> Payload {
        self.seal();
        Payload::from_segments(std::mem::take(&mut self.segments))
    }
}
