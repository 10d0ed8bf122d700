//! Messages that a part of this program publishes, handed to its shard many at a time, without packets or a socket between.
//!
//! The connection is that of a [`Local`](super::local::Local): it opens the session, brings the acknowledgements, and tells why
//! it ends. One PUBACK stands for all that was handed over before it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use tidegate_broker::{Publication, Shared};
use tidegate_wire::mqtt::{PacketId, QoS};

use super::{deliveries::Way, inbox::Inbox, shard::Note};

/// Room that is made for messages that may come.
const ROOM_BYTES_MAX: usize = 1 << 20;
const ROOM_HEADS_MAX: usize = 8 << 10;
/// Published bundles of one connection that are kept.
const EMPTIES_MAX: usize = 4;
/// And their bytes, each: about what a piece of a batch takes.
const EMPTY_BYTES_MAX: usize = 256 << 10;

/// Names a connection from inside the program, for as long as the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LocalId(u64);

impl LocalId {
    pub(super) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a connection from inside the program has beside its socket, as its shard sees it.
#[derive(Debug)]
pub(super) struct LocalEnd {
    pub(super) id: LocalId,
    /// Where its messages go, if its session is handed them as they are.
    pub(super) way: Arc<Way>,
    /// Where its bundles go back once they were published.
    pub(super) empties: Arc<Empties>,
}

/// Bundles that were published, on their way back to be filled again: memory that was written once is there.
#[derive(Debug, Default)]
pub(super) struct Empties(Mutex<Vec<Bundle>>);

impl Empties {
    fn bundles(&self) -> MutexGuard<'_, Vec<Bundle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that was published.
    pub(super) fn put(&self, mut bundle: Bundle) {
        let heads_bytes = bundle.heads.capacity() * size_of::<Head>();
        if bundle.bytes.capacity() + heads_bytes > EMPTY_BYTES_MAX {
            return;
        }
        bundle.clear();
        let mut bundles = self.bundles();
        if bundles.len() < EMPTIES_MAX {
            bundles.push(bundle);
        }
    }
}

/// Where bundles for one connection are left.
#[derive(Debug)]
pub struct Bundles {
    id: LocalId,
    inbox: Arc<Inbox<Note>>,
    empties: Arc<Empties>,
}

impl Bundles {
    pub(super) fn new(
        id: LocalId,
        client_id: &str,
        empties: Arc<Empties>,
        shared: &Shared,
        inboxes: &[Arc<Inbox<Note>>],
    ) -> Self {
        Self { id, inbox: inboxes[shared.shard_of(client_id)].clone(), empties }
    }

    /// One without messages: one that was published, or another with about as much room as `like` has taken.
    pub fn empty(&self, like: &Bundle) -> Bundle {
        self.empties.bundles().pop().unwrap_or_else(|| like.like())
    }

    /// Lets go of those that were published.
    pub fn forget_empties(&self) {
        self.empties.bundles().clear();
    }

    /// Has the shard publish them, after all that was left before. After CONNACK only.
    pub fn put(&self, bundle: Bundle) {
        self.inbox.put([Note::Bundle(self.id, bundle)]);
    }
}

/// In the place of a message.
pub(super) const NONE: Publication<'static> = Publication {
    topic: &[],
    payload: &[],
    forwarded: &[],
    qos: QoS::AtMostOnce,
    retain: false,
    message_expiry: None,
    id: PacketId::MIN,
};

/// Messages of one publisher, in order, in one piece of memory.
#[derive(Debug, Default)]
pub struct Bundle {
    /// Of each message its topic, its properties and its payload.
    bytes: Vec<u8>,
    heads: Vec<Head>,
    /// Messages that were taken out, and bytes of them.
    taken: usize,
    taken_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    topic_len: u16,
    qos: QoS,
    retain: bool,
    forwarded_len: u32,
    payload_len: u32,
    expiry: Option<u32>,
    id: PacketId,
}

impl Bundle {
    /// One without messages that has room for as many as this one had, unless that is very much.
    pub fn like(&self) -> Self {
        let bytes = Vec::with_capacity(self.bytes.len().min(ROOM_BYTES_MAX));
        let heads = Vec::with_capacity(self.heads.len().min(ROOM_HEADS_MAX));
        Self { bytes, heads, ..Self::default() }
    }

    /// Takes out all messages, and keeps the room.
    fn clear(&mut self) {
        self.bytes.clear();
        self.heads.clear();
        (self.taken, self.taken_bytes) = (0, 0);
    }

    /// Puts a message behind the others. `name` appends properties to those that it has.
    ///
    /// # Panics
    /// If topic, properties or payload are longer than MQTT lets them be.
    pub fn push(&mut self, publication: &Publication<'_>, name: impl FnOnce(&mut Vec<u8>)) {
        let Publication { topic, payload, forwarded, qos, retain, message_expiry, id } =
            *publication;
        self.bytes.extend_from_slice(topic);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(forwarded);
        name(&mut self.bytes);
        let forwarded_len = self.bytes.len() - start;
        self.bytes.extend_from_slice(payload);
        self.heads.push(Head {
            topic_len: topic.len().try_into().expect("topics have at most 65,535 bytes"),
            qos,
            retain,
            forwarded_len: forwarded_len.try_into().expect("packets have at most 256 MiB"),
            payload_len: payload.len().try_into().expect("packets have at most 256 MiB"),
            expiry: message_expiry,
            id,
        });
    }

    /// Its messages are acknowledged by the next identifiers of `exchanges`.
    pub fn number(&mut self, exchanges: &mut Exchanges) {
        self.heads[self.taken..].iter_mut().for_each(|head| head.id = exchanges.begin());
    }

    /// Whether there is none in it.
    pub fn is_empty(&self) -> bool {
        self.taken == self.heads.len()
    }

    /// Messages in it.
    pub fn len(&self) -> usize {
        self.heads.len() - self.taken
    }

    /// Bytes of the messages in it.
    pub fn bytes(&self) -> usize {
        self.bytes.len() - self.taken_bytes
    }

    /// The next messages, as many as fit into `out`; how many they are.
    pub(super) fn next<'a>(&'a mut self, out: &mut [Publication<'a>]) -> usize {
        let heads = &self.heads[self.taken..];
        let count = heads.len().min(out.len());
        for (head, out) in heads.iter().zip(out) {
            let (forwarded_len, payload_len) =
                (head.forwarded_len as usize, head.payload_len as usize);
            let topic_len = usize::from(head.topic_len);
            let start = self.taken_bytes;
            self.taken_bytes += topic_len + forwarded_len + payload_len;
            let (topic, rest) = self.bytes[start..self.taken_bytes].split_at(topic_len);
            let (forwarded, payload) = rest.split_at(forwarded_len);
            let Head { qos, retain, expiry: message_expiry, id, .. } = *head;
            *out = Publication { topic, payload, forwarded, qos, retain, message_expiry, id };
        }
        self.taken += count;
        count
    }
}

/// Packet identifiers that there are: those of messages handed over go round.
const IDS: u64 = u16::MAX as u64;

/// How far what one connection handed over was acknowledged, where a PUBACK stands for all before it. Fewer messages may be open
/// than there are identifiers.
#[derive(Debug, Default)]
pub struct Exchanges {
    handed: u64,
    acknowledged: u64,
}

/// A PUBACK of what was not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a PUBACK of what was not handed over, {0}")]
pub struct Stray(pub PacketId);

impl Exchanges {
    /// What the next message is acknowledged by.
    pub fn begin(&mut self) -> PacketId {
        let id = self.handed % IDS + 1;
        self.handed += 1;
        debug_assert!(self.open() < IDS, "an identifier is in use twice");
        PacketId::new(id as u16).expect("at least 1")
    }

    /// Messages that were ever handed over.
    pub fn handed(&self) -> u64 {
        self.handed
    }

    /// Those of them that were acknowledged: the first ones.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Messages that are not acknowledged.
    pub fn open(&self) -> u64 {
        self.handed - self.acknowledged
    }

    /// A PUBACK came.
    ///
    /// # Errors
    /// [`Stray`].
    pub fn end(&mut self, id: PacketId) -> Result<(), Stray> {
        let newly = (u64::from(id.get()) + IDS - self.acknowledged % IDS) % IDS;
        if newly > self.open() {
            return Err(Stray(id));
        }
        self.acknowledged += newly;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_stands_for_all_before_it() {
        let mut exchanges = Exchanges::default();
        let id = |number: u16| PacketId::new(number).expect("not zero");
        assert_eq!(exchanges.end(id(1)), Err(Stray(id(1))));
        let mut last = id(1);
        // More than once around.
        for round in 1..=7_u64 {
            for _ in 0..20_000 {
                last = exchanges.begin();
            }
            assert_eq!((exchanges.handed(), exchanges.open()), (round * 20_000, 20_000));
            let middle = (u64::from(last.get()) + IDS - 5_000 - 1) % IDS + 1;
            exchanges.end(id(middle as u16)).expect("it was handed over");
            assert_eq!(exchanges.open(), 5_000);
            exchanges.end(last).expect("it was handed over");
            // Again says nothing new.
            exchanges.end(last).expect("it was handed over");
            assert_eq!((exchanges.acknowledged(), exchanges.open()), (round * 20_000, 0));
        }
        let next = id(last.get() % u16::MAX + 1);
        assert_eq!(exchanges.end(next), Err(Stray(next)));
        for _ in 1..IDS {
            last = exchanges.begin();
        }
        exchanges.end(last).expect("it was handed over");
        assert_eq!(exchanges.open(), 0);
    }

    #[test]
    fn what_was_published_comes_back_without_its_messages() {
        let empties = Empties::default();
        for number in 0..EMPTIES_MAX + 3 {
            let mut bundle = Bundle::default();
            let payload = vec![1; if number == 0 { EMPTY_BYTES_MAX } else { 100 }];
            bundle.push(&Publication { payload: &payload, ..NONE }, |_| {});
            bundle.push(&Publication { topic: b"t", ..NONE }, |_| {});
            assert_eq!(bundle.next(&mut [NONE; 1]), 1);
            empties.put(bundle);
        }
        let mut bundles = empties.bundles();
        assert_eq!(bundles.len(), EMPTIES_MAX);
        for bundle in &mut *bundles {
            assert_eq!((bundle.len(), bundle.bytes()), (0, 0));
            assert!((100..EMPTY_BYTES_MAX).contains(&bundle.bytes.capacity()));
            bundle.push(&Publication { topic: b"u", ..NONE }, |_| {});
            let mut found = [NONE; 2];
            assert_eq!((bundle.next(&mut found), found[0].topic), (1, &b"u"[..]));
        }
    }

    #[test]
    fn what_was_put_in_comes_out() {
        let mut bundle = Bundle::default();
        assert!(bundle.is_empty() && bundle.next(&mut [NONE; 3]) == 0);
        let publication = |number: u16| Publication {
            topic: "größe".as_bytes(),
            payload: b"payload",
            forwarded: b"abc",
            qos: QoS::AtLeastOnce,
            retain: number == 2,
            message_expiry: (number == 1).then_some(9),
            id: PacketId::new(number).expect("not zero"),
        };
        bundle.push(&publication(1), |_| {});
        bundle.push(&publication(2), |forwarded| forwarded.extend_from_slice(b"def"));
        bundle.push(&publication(3), |_| {});
        assert_eq!((bundle.len(), bundle.bytes()), (3, 3 * (7 + 3 + 7) + 3));
        let mut found = [NONE; 2];
        assert_eq!(bundle.next(&mut found), 2);
        assert_eq!(found, [publication(1), Publication { forwarded: b"abcdef", ..publication(2) }]);
        assert_eq!((bundle.len(), bundle.bytes()), (1, 7 + 3 + 7));
        let mut found = [NONE; 2];
        assert_eq!(bundle.next(&mut found), 1);
        assert_eq!(found, [publication(3), NONE]);
        assert!(bundle.is_empty() && bundle.bytes() == 0);
    }
}
