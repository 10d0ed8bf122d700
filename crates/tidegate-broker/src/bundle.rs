//! Messages of one publisher in one piece of memory: on their way into the broker, and out of it where some in a row are for one
//! client that is handed them as they are.
//!
//! ```text
//!  Bundle ─▶ BundleReader ─▶ Broker::receive_bundle ─┬─▶ message by message, as if each had come in a packet
//!    ▲                                               └─▶ Run ─▶ the client ─┐
//!    └────────────────────── Empties ◀──────────────────────────────────────┘ once nobody has any of it
//! ```

use std::{
    ops::Range,
    slice,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use tidegate_message::Instant;
use tidegate_wire::mqtt::{PacketId, QoS};

use crate::{budget::Charge, message::charge_bytes};

/// Room that is made for messages that may come.
const ROOM_BYTES_MAX: usize = 1 << 20;
const ROOM_HEADS_MAX: usize = 8 << 10;
/// Empty bundles of one publisher that are kept, and their bytes, together.
const EMPTIES_MAX: usize = 64;
const EMPTIES_BYTES_MAX: usize = 1 << 20;
/// And the bytes of each: about what a piece of an uplink's batch takes.
const EMPTY_BYTES_MAX: usize = 256 << 10;
/// Room that is not too much for however few messages.
const FEW_BYTES: usize = 4 << 10;

/// A message of a client of this process, without a packet around it ([`Broker::receive_bundle`](crate::Broker::receive_bundle)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication<'a> {
    /// Topic name. One that there cannot be ends the connection.
    pub topic: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
    /// Properties that are forwarded unaltered, encoded as in PUBLISH without their length; valid.
    pub forwarded: &'a [u8],
    /// Quality of service; 2 is taken as 1.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Message Expiry Interval in seconds.
    pub message_expiry: Option<u32>,
    /// Of a message that another node has chosen this one for, the shared subscription whose members alone it is for, as
    /// `$share/NAME/FILTER`; empty for all subscribers. It is then not retained, and operators do not look at it again.
    pub group: &'a [u8],
    /// The number that it is acknowledged by, whatever its QoS; of those that are not acknowledged, no two have the
    /// same.
    pub id: PacketId,
}

impl Publication<'_> {
    /// In the place of one.
    pub(crate) const NONE: Self = Self {
        topic: &[],
        payload: &[],
        forwarded: &[],
        qos: QoS::AtMostOnce,
        retain: false,
        message_expiry: None,
        group: &[],
        id: PacketId::MIN,
    };

    /// Bytes of its topic, properties and payload.
    pub(crate) fn bytes(&self) -> usize {
        self.topic.len() + self.forwarded.len() + self.group.len() + self.payload.len()
    }
}

/// Messages of one publisher, in order, in one piece of memory.
#[derive(Debug, Default)]
pub struct Bundle {
    /// Of each message its topic, its properties, its shared subscription and its payload.
    bytes: Vec<u8>,
    heads: Vec<Head>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    start: usize,
    topic_len: u16,
    qos: QoS,
    retain: bool,
    group_len: u16,
    forwarded_len: u32,
    payload_len: u32,
    expiry: Option<u32>,
    id: PacketId,
}

impl Head {
    fn end(&self) -> usize {
        self.payload().end
    }

    fn topic(&self) -> Range<usize> {
        self.start..self.start + usize::from(self.topic_len)
    }

    fn forwarded(&self) -> Range<usize> {
        let start = self.topic().end;
        start..start + self.forwarded_len as usize
    }

    fn group(&self) -> Range<usize> {
        let start = self.forwarded().end;
        start..start + usize::from(self.group_len)
    }

    fn payload(&self) -> Range<usize> {
        let start = self.group().end;
        start..start + self.payload_len as usize
    }
}

impl Bundle {
    /// One without messages that has room for as many as this one has, unless that is very much.
    pub fn like(&self) -> Self {
        Self {
            bytes: Vec::with_capacity(self.bytes.len().min(ROOM_BYTES_MAX)),
            heads: Vec::with_capacity(self.heads.len().min(ROOM_HEADS_MAX)),
        }
    }

    /// Takes out all messages, and keeps the room.
    fn clear(&mut self) {
        self.bytes.clear();
        self.heads.clear();
    }

    /// Bytes of memory that it takes.
    fn capacity(&self) -> usize {
        self.bytes.capacity() + self.heads.capacity() * size_of::<Head>()
    }

    /// Puts a message behind the others. `name` appends properties to those that it has.
    ///
    /// # Panics
    /// If topic, properties, filter or payload are longer than MQTT lets them be.
    pub fn push(&mut self, publication: &Publication<'_>, name: impl FnOnce(&mut Vec<u8>)) {
        let Publication { topic, payload, forwarded, qos, retain, message_expiry, group, id } =
            *publication;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(topic);
        let properties = self.bytes.len();
        self.bytes.extend_from_slice(forwarded);
        name(&mut self.bytes);
        let forwarded_len = self.bytes.len() - properties;
        self.bytes.extend_from_slice(group);
        self.bytes.extend_from_slice(payload);
        self.heads.push(Head {
            start,
            topic_len: topic.len().try_into().expect("topics have at most 65,535 bytes"),
            qos,
            retain,
            group_len: group.len().try_into().expect("filters have at most 65,535 bytes"),
            forwarded_len: forwarded_len.try_into().expect("packets have at most 256 MiB"),
            payload_len: payload.len().try_into().expect("packets have at most 256 MiB"),
            expiry: message_expiry,
            id,
        });
    }

    /// Its messages are acknowledged by what `next` gives.
    pub fn number(&mut self, mut next: impl FnMut() -> PacketId) {
        self.heads.iter_mut().for_each(|head| head.id = next());
    }

    /// Whether there is none in it.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Messages in it.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Bytes of the messages in it.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn publication(&self, head: &Head) -> Publication<'_> {
        Publication {
            topic: &self.bytes[head.topic()],
            payload: &self.bytes[head.payload()],
            forwarded: &self.bytes[head.forwarded()],
            qos: head.qos,
            retain: head.retain,
            message_expiry: head.expiry,
            group: &self.bytes[head.group()],
            id: head.id,
        }
    }
}

/// Bundles that are no longer in use, on their way back to be filled again: their memory is already mapped.
#[derive(Debug, Default)]
pub struct Empties(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    bundles: Vec<Bundle>,
    bytes: usize,
    /// Whether its publisher fills none for now.
    is_idle: bool,
}

impl Empties {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One without messages: one that came back, or another with about as much room as `like` has taken.
    pub fn take(&self, like: &Bundle) -> Bundle {
        let mut kept = self.kept();
        kept.is_idle = false;
        let bundle = kept.bundles.pop();
        kept.bytes -= bundle.as_ref().map_or(0, Bundle::capacity);
        drop(kept);
        // Memory grown for many messages is released when few come.
        let room = FEW_BYTES.max(4 * like.bytes());
        bundle.filter(|bundle| bundle.bytes.capacity() <= room).unwrap_or_else(|| like.like())
    }

    /// Lets go of those that are kept, and keeps none until one is taken again.
    pub fn forget(&self) {
        *self.kept() = Kept { is_idle: true, ..Kept::default() };
    }

    fn put(&self, mut bundle: Bundle) {
        let bytes = bundle.capacity();
        let mut kept = self.kept();
        let has_room = kept.bundles.len() < EMPTIES_MAX && kept.bytes + bytes <= EMPTIES_BYTES_MAX;
        if bytes <= EMPTY_BYTES_MAX && has_room && !kept.is_idle {
            bundle.clear();
            kept.bytes += bytes;
            kept.bundles.push(bundle);
        }
    }
}

/// A bundle that is complete; it goes back when no reader has any of it.
#[derive(Debug)]
struct Sealed {
    bundle: Bundle,
    empties: Arc<Empties>,
    /// Of the node's budget, once some of it is held for a client.
    charge: OnceLock<Charge>,
}

impl Drop for Sealed {
    fn drop(&mut self) {
        self.empties.put(std::mem::take(&mut self.bundle));
    }
}

/// A bundle that is published, and how far.
#[derive(Debug)]
pub struct BundleReader {
    sealed: Arc<Sealed>,
    taken: usize,
}

impl BundleReader {
    /// At its first message. Its memory goes back to `empties`.
    pub fn new(bundle: Bundle, empties: Arc<Empties>) -> Self {
        Self { sealed: Arc::new(Sealed { bundle, empties, charge: OnceLock::new() }), taken: 0 }
    }

    /// Whether all its messages were taken.
    pub fn is_empty(&self) -> bool {
        self.taken == self.sealed.bundle.heads.len()
    }

    /// Messages that were not taken.
    pub fn len(&self) -> usize {
        self.sealed.bundle.heads.len() - self.taken
    }

    /// The messages that were not taken, in order.
    pub(crate) fn rest(&self) -> Publications<'_> {
        let bundle = &self.sealed.bundle;
        Publications { bundle, heads: bundle.heads[self.taken..].iter() }
    }

    /// Takes as many messages.
    pub(crate) fn pass(&mut self, count: usize) {
        self.taken += count;
    }

    /// Takes the first `count` messages together, as one subscriber is handed them. If no part of the bundle is held yet, `charge`
    /// takes its memory from the node's budget; none if that has no room.
    pub(crate) fn take_run(
        &mut self,
        count: usize,
        received: Instant,
        qos: QoS,
        charge: impl FnOnce(u64) -> Option<Charge>,
    ) -> Option<Run> {
        let Sealed { bundle, charge: held, .. } = &*self.sealed;
        if held.get().is_none() {
            let charge = charge(bundle.capacity() as u64)?;
            held.set(charge).expect("only its reader sets it");
        }
        let places = self.taken..self.taken + count;
        self.taken = places.end;
        Some(Run { sealed: self.sealed.clone(), places, received, qos, first_id: None })
    }

    /// Bytes of the messages that were not taken.
    pub(crate) fn bytes(&self) -> usize {
        let Bundle { bytes, heads } = &self.sealed.bundle;
        heads.get(self.taken).map_or(0, |head| bytes.len() - head.start)
    }

    /// Bytes of memory that so many messages of so many bytes take in it.
    pub(crate) fn memory(count: usize, bytes: usize) -> usize {
        bytes + count * size_of::<Head>()
    }

    /// Bytes of memory that the whole bundle takes, and whether they are of the node's budget.
    pub(crate) fn capacity(&self) -> (usize, bool) {
        (self.sealed.bundle.capacity(), self.sealed.charge.get().is_some())
    }
}

/// Messages of a bundle, in order.
#[derive(Clone, Debug)]
pub(crate) struct Publications<'a> {
    bundle: &'a Bundle,
    heads: slice::Iter<'a, Head>,
}

impl<'a> Iterator for Publications<'a> {
    type Item = Publication<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.heads.next().map(|head| self.bundle.publication(head))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.heads.size_hint()
    }
}

impl ExactSizeIterator for Publications<'_> {}

/// Messages of one bundle that follow each other, as one client is handed them: no retained ones, and none that expires.
#[derive(Clone, Debug)]
pub struct Run {
    sealed: Arc<Sealed>,
    places: Range<usize>,
    received: Instant,
    qos: QoS,
    first_id: Option<PacketId>,
}

/// A message of a [`Run`]: where in its [memory](Run::memory) it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunMessage {
    /// Its topic, which is text.
    pub topic: Range<usize>,
    /// Its properties that are forwarded unaltered, encoded as in PUBLISH without their length.
    pub forwarded: Range<usize>,
    /// Its payload.
    pub payload: Range<usize>,
    /// The identifier to acknowledge it by; none for QoS 0.
    pub packet_id: Option<PacketId>,
}

impl Run {
    /// Messages in it.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// When this node received them.
    pub fn received(&self) -> Instant {
        self.received
    }

    /// The quality of service of all: the lower one of theirs and the subscription's.
    pub fn qos(&self) -> QoS {
        self.qos
    }

    /// Bytes of their topics, properties and payloads.
    pub fn bytes(&self) -> usize {
        self.heads().last().map_or(0, Head::end) - self.heads().first().map_or(0, |head| head.start)
    }

    /// The memory that they lie in, which is held as long as any part of it is.
    pub fn memory(&self) -> Bytes {
        Bytes::from_owner(Memory(self.sealed.clone()))
    }

    fn heads(&self) -> &[Head] {
        &self.sealed.bundle.heads[self.places.clone()]
    }

    /// Bytes of their payloads.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.heads().iter().map(|head| u64::from(head.payload_len)).sum()
    }

    /// The budget that they would take one by one.
    pub(crate) fn charged(&self) -> u64 {
        let one = |head: &Head| {
            charge_bytes(
                usize::from(head.topic_len),
                head.payload_len as usize,
                head.forwarded_len as usize,
                false,
            )
        };
        self.heads().iter().map(one).sum()
    }

    /// The publications, in order.
    pub(crate) fn publications(&self) -> Publications<'_> {
        Publications { bundle: &self.sealed.bundle, heads: self.heads().iter() }
    }

    /// They are acknowledged by identifiers from that one on.
    pub(crate) fn begin(&mut self, first_id: PacketId) {
        self.first_id = Some(first_id);
    }

    /// The identifier of the first, if they have any.
    pub(crate) fn first_id(&self) -> Option<PacketId> {
        self.first_id
    }

    /// Takes the first message out; none if there is none.
    pub fn pop(&mut self) -> Option<RunMessage> {
        let place = self.places.next()?;
        let head = &self.sealed.bundle.heads[place];
        let id = self.first_id;
        self.first_id = id.and_then(|id| id.checked_add(1));
        Some(RunMessage {
            topic: head.topic(),
            forwarded: head.forwarded(),
            payload: head.payload(),
            packet_id: id,
        })
    }

    /// Those of its messages.
    pub(crate) fn part(&self, part: Range<usize>) -> Self {
        let start = self.places.start;
        let first_id = self.first_id.and_then(|id| id.checked_add(part.start as u16));
        let places = start + part.start..start + part.end;
        Self { sealed: self.sealed.clone(), places, first_id, ..*self }
    }

    /// Takes out the messages from that one on; none if there are none.
    pub(crate) fn split_off(&mut self, at: usize) -> Option<Self> {
        let rest = self.part(at..self.len());
        self.places.end = rest.places.start;
        (!rest.is_empty()).then_some(rest)
    }
}

/// All the bytes of a bundle.
struct Memory(Arc<Sealed>);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0.bundle.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_bundles_come_back_empty() {
        let empties = Arc::<Empties>::default();
        let bundle = |payload: &[u8]| {
            let mut bundle = Bundle::default();
            bundle.push(&Publication { payload, ..Publication::NONE }, |_| {});
            bundle
        };
        let readers: Vec<_> = (0..EMPTIES_MAX + 3)
            .map(|number| vec![1; if number == 0 { EMPTY_BYTES_MAX } else { 100 }])
            .map(|payload| BundleReader::new(bundle(&payload), empties.clone()))
            .collect();
        assert!(empties.kept().bundles.is_empty());
        drop(readers);
        assert_eq!(empties.kept().bundles.len(), EMPTIES_MAX);
        for _ in 0..EMPTIES_MAX {
            let bundle = empties.take(&bundle(b"few"));
            assert_eq!((bundle.len(), bundle.bytes()), (0, 0));
            assert!((100..EMPTY_BYTES_MAX).contains(&bundle.bytes.capacity()));
        }
        assert_eq!(empties.kept().bytes, 0);
        // A bundle much too large for the present load is not taken.
        drop(BundleReader::new(bundle(&[1; FEW_BYTES + 1]), empties.clone()));
        assert!(empties.take(&bundle(b"few")).bytes.capacity() <= FEW_BYTES);
        drop(BundleReader::new(bundle(&[1; FEW_BYTES + 1]), empties.clone()));
        assert!(empties.take(&bundle(&[1; FEW_BYTES])).bytes.capacity() > FEW_BYTES);
        // Many that are not small are fewer.
        let large = || BundleReader::new(bundle(&vec![1; EMPTY_BYTES_MAX - 1000]), empties.clone());
        drop((0..EMPTIES_MAX).map(|_| large()).collect::<Vec<_>>());
        let kept = empties.kept().bytes;
        assert!(kept <= EMPTIES_BYTES_MAX && kept > EMPTIES_BYTES_MAX / 2, "{kept}");
        // A publisher that is away keeps none, until it comes again.
        let late = large();
        empties.forget();
        drop(late);
        assert!(empties.kept().bundles.is_empty());
        empties.take(&Bundle::default());
        drop(large());
        assert_eq!(empties.kept().bundles.len(), 1);
    }

    #[test]
    fn messages_put_in_come_out() {
        let mut bundle = Bundle::default();
        assert!(bundle.is_empty());
        let publication = |number: u16| Publication {
            topic: "größe".as_bytes(),
            payload: b"payload",
            forwarded: b"abc",
            qos: QoS::AtLeastOnce,
            retain: number == 2,
            message_expiry: (number == 1).then_some(9),
            group: if number == 2 { b"$share/g/t" } else { b"" },
            id: PacketId::new(number).expect("not zero"),
        };
        bundle.push(&publication(1), |_| {});
        bundle.push(&publication(2), |forwarded| forwarded.extend_from_slice(b"def"));
        bundle.push(&publication(3), |_| {});
        assert_eq!((bundle.len(), bundle.bytes()), (3, 3 * (7 + 3 + 7) + 3 + 10));
        let mut reader = BundleReader::new(bundle, Arc::default());
        let second = Publication { forwarded: b"abcdef", ..publication(2) };
        let all = [publication(1), second, publication(3)];
        assert_eq!(reader.rest().collect::<Vec<_>>(), all);
        reader.pass(1);
        assert_eq!((reader.len(), reader.bytes()), (2, 2 * (7 + 3 + 7) + 3 + 10));
        let mut run = reader.take_run(2, Instant::from_nanos(5), QoS::AtLeastOnce, |_| {
            crate::Budget::new(1 << 20).charge(1)
        });
        let run = run.as_mut().expect("there is room");
        assert!(reader.is_empty() && reader.bytes() == 0);
        run.begin(PacketId::new(u16::MAX - 1).expect("not zero"));
        assert_eq!((run.len(), run.bytes()), (2, 2 * (7 + 3 + 7) + 3 + 10));
        let rest = run.split_off(1).expect("there are two");
        assert!(run.split_off(1).is_none());
        for (mut run, expected) in [(run.clone(), all[1]), (rest, all[2])] {
            let memory = run.memory();
            let id = run.first_id();
            let message = run.pop().expect("there is one");
            assert_eq!(memory[message.topic], *expected.topic);
            assert_eq!(memory[message.forwarded], *expected.forwarded);
            assert_eq!(memory[message.payload], *expected.payload);
            assert_eq!(message.packet_id, id);
            assert!(run.pop().is_none() && run.is_empty());
        }
    }
}
