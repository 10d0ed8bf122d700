//! A message that is held: once, however many subscribers wait for it.

pub mod disk;

use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use tidegate_journal::{RECORD_ADDS, StoredMessage};
use tidegate_message::{Instant, Payload};
pub use tidegate_wire::mqtt::seconds_left;
use tidegate_wire::mqtt::{PublishProperties, QoS, path::PROPERTY};

use self::disk::Spilled;
use crate::{
    accounts::{Account, Holders},
    budget::{Budget, Charge},
    session_state::SessionKey,
};

/// Bytes of a held message besides its topic, payload and properties: itself, its counts, its place in a queue.
pub const MESSAGE_OVERHEAD_BYTES: u64 = 160;

/// Bytes of a retained message in addition to that: its place among the retained, and the text of its topic there.
pub const RETAINED_OVERHEAD_BYTES: u64 = 144;

/// Nodes that a message has left at most, beyond which it looks for no other where no member of a shared subscription has a connection.
const NODES_MAX: usize = 4;

/// A message that is held by reference in queues, in flight or retained.
#[derive(Debug)]
pub struct Message {
    /// Topic name.
    pub topic: Arc<str>,
    /// Payload.
    pub payload: Payload,
    /// Properties that are forwarded unaltered, encoded as in PUBLISH without their length.
    pub forwarded: Bytes,
    /// Quality of service that it was published with.
    pub qos: QoS,
    /// Whether it was published to be retained.
    pub retain: bool,
    /// Whether a peer session published it.
    pub is_from_peer: bool,
    /// When it loses its worth, if ever.
    pub expires: Option<Instant>,
    /// When this node received it.
    pub received: Instant,
    /// Its publisher; none for the node itself.
    pub publisher: Option<SessionKey>,
    /// Where it is on disk, if it waits there for a session.
    pub(crate) spilled: OnceLock<Arc<Spilled>>,
    /// The accounts that it counts in.
    holders: Mutex<Holders>,
    charge: Charge,
}

/// A message that is borrowed: on its way in from the input buffer, so that it is held only if a session has to wait for it, and behind
/// that from where it is held.
#[derive(Clone, Copy, Debug)]
pub struct MessageRef<'a> {
    /// Topic name, shared.
    pub topic: &'a Arc<str>,
    /// Payload.
    pub payload: Body<'a>,
    /// Properties that are forwarded unaltered.
    pub forwarded: &'a [u8],
    /// Quality of service.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Whether a peer session published it.
    pub is_from_peer: bool,
    /// When it loses its worth, if ever.
    pub expires: Option<Instant>,
    /// When it was received.
    pub received: Instant,
    /// Its publisher.
    pub publisher: Option<SessionKey>,
}

/// A payload: bytes that were just read, or a payload that is held already.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// In the read buffer.
    Read(&'a [u8]),
    /// Received into memory of its own, already charged.
    Held(&'a Payload),
}

impl Body<'_> {
    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        match self {
            Self::Read(bytes) => bytes.len(),
            Self::Held(payload) => payload.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The payload, held: copied if it was just read.
    pub(crate) fn to_payload(self) -> Payload {
        match self {
            Self::Read(bytes) => Payload::from(Bytes::copy_from_slice(bytes)),
            Self::Held(payload) => payload.clone(),
        }
    }
}

impl<'a> MessageRef<'a> {
    /// One of the node itself: of QoS 0, without properties, neither to be retained nor to expire.
    pub fn new(topic: &'a Arc<str>, payload: Body<'a>, received: Instant) -> Self {
        Self {
            topic,
            payload,
            forwarded: &[],
            qos: QoS::AtMostOnce,
            retain: false,
            is_from_peer: false,
            expires: None,
            received,
            publisher: None,
        }
    }

    /// A message that was written down, of a publisher that is no longer known.
    pub(crate) fn stored(
        topic: &'a Arc<str>,
        payload: Body<'a>,
        stored: &'a StoredMessage,
    ) -> Self {
        Self {
            forwarded: &stored.forwarded,
            qos: stored.qos,
            retain: stored.retain,
            is_from_peer: stored.is_from_peer,
            expires: stored.expires,
            ..Self::new(topic, payload, stored.received)
        }
    }

    /// Whether a member of a shared subscription at another node may have it though there are some here, which have no connection. Not
    /// for ever: where none has one anywhere it comes to rest.
    pub(crate) fn may_leave(&self) -> bool {
        let properties = PublishProperties::decode(self.forwarded).unwrap_or_default();
        let nodes = properties.user_properties().filter(|(name, _)| *name == PROPERTY);
        nodes.count() <= NODES_MAX
    }

    /// Bytes that holding it takes from the budget.
    pub fn charge_bytes(&self) -> u64 {
        charge_bytes(self.topic.len(), self.payload.len(), self.forwarded.len(), self.retain)
    }

    /// Holds it; `None` if the budget has no room.
    pub fn hold(&self, budget: &Budget) -> Option<Arc<Message>> {
        let charge = budget.charge(self.charge_bytes())?;
        Some(self.hold_charged(charge))
    }

    /// Holds it under a charge taken before.
    pub fn hold_charged(&self, charge: Charge) -> Arc<Message> {
        Arc::new(self.with(
            self.payload.to_payload(),
            Bytes::copy_from_slice(self.forwarded),
            charge,
        ))
    }

    /// The message as it is held, with that memory and under that charge.
    pub(crate) fn with(&self, payload: Payload, forwarded: Bytes, charge: Charge) -> Message {
        Message {
            topic: self.topic.clone(),
            payload,
            forwarded,
            qos: self.qos,
            retain: self.retain,
            is_from_peer: self.is_from_peer,
            expires: self.expires,
            received: self.received,
            publisher: self.publisher,
            spilled: OnceLock::new(),
            holders: Mutex::default(),
            charge: charge.of_message(),
        }
    }
}

/// Bytes that a message takes from the budget whose topic, payload and properties have so many.
pub fn charge_bytes(topic: usize, payload: usize, forwarded: usize, retain: bool) -> u64 {
    let once = (topic + payload + forwarded) as u64 + MESSAGE_OVERHEAD_BYTES;
    // A retained one has its topic in the index of topics as well.
    once + if retain { topic as u64 + RETAINED_OVERHEAD_BYTES } else { 0 }
}

impl Message {
    /// The message, borrowed.
    pub fn borrowed(&self) -> MessageRef<'_> {
        MessageRef {
            topic: &self.topic,
            payload: Body::Held(&self.payload),
            forwarded: &self.forwarded,
            qos: self.qos,
            retain: self.retain,
            is_from_peer: self.is_from_peer,
            expires: self.expires,
            received: self.received,
            publisher: self.publisher,
        }
    }

    /// Bytes of its record in a journal: about, and not less.
    pub(crate) fn record_bytes(&self) -> u64 {
        let bytes = self.payload.len() + self.topic.len() + self.forwarded.len();
        RECORD_ADDS + bytes as u64
    }

    /// Bytes that it takes from the budget.
    pub fn charged(&self) -> u64 {
        self.charge.bytes()
    }

    /// It is retained for that account, or waits for one of its sessions, once more.
    pub(crate) fn hold_for(&self, account: &Arc<Account>) {
        let mut holders = self.holders.lock().expect("no panic while it is held");
        if holders.add(account) {
            account.add(self.charge.bytes());
        }
    }

    /// The same, once less.
    pub(crate) fn release_for(&self, account: &Arc<Account>) {
        let mut holders = self.holders.lock().expect("no panic while it is held");
        if holders.remove(account) {
            account.subtract(self.charge.bytes());
        }
    }

    /// It is no message any more: the budget has what it took, and whatever else waits for it on disk is let go.
    pub(crate) fn give_back(&mut self) {
        self.charge.give_back();
        self.spilled = OnceLock::new();
    }

    /// Whether it has lost its worth.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }
}
