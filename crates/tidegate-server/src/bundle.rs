//! Messages that a part of this program publishes, handed to its shard many at a time, without packets or a socket between.
//!
//! The connection is that of a [`Local`](super::local::Local): it opens the session, brings the acknowledgements, and tells why
//! it ends. One PUBACK stands for all that was handed over before it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tidegate_broker::{Bundle, Empties, Shared};
use tidegate_wire::mqtt::PacketId;

use super::{deliveries::DeliveryQueue, inbox::Inbox, shard::ShardCommand};

/// Names a connection from inside the program, for as long as the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LocalId(u64);

impl LocalId {
    pub(super) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// The end of a connection from inside the program, apart from its socket, as its shard sees it.
#[derive(Debug)]
pub(super) struct LocalEnd {
    pub(super) id: LocalId,
    /// Where its messages go, if its session is handed them as they are.
    pub(super) queue: Arc<DeliveryQueue>,
    /// Where its bundles go back once they are no longer in use.
    pub(super) empties: Arc<Empties>,
}

/// Where bundles for one connection are left.
#[derive(Debug)]
pub struct Bundles {
    id: LocalId,
    inbox: Arc<Inbox<ShardCommand>>,
    empties: Arc<Empties>,
}

impl Bundles {
    pub(super) fn new(
        id: LocalId,
        client_id: &str,
        empties: Arc<Empties>,
        shared: &Shared,
        inboxes: &[Arc<Inbox<ShardCommand>>],
    ) -> Self {
        Self { id, inbox: inboxes[shared.shard_of(client_id)].clone(), empties }
    }

    /// One without messages: a returned one, or another with about as much room as `like` has taken.
    pub fn empty(&self, like: &Bundle) -> Bundle {
        self.empties.take(like)
    }

    /// Drops returned bundles, and those to come until one is asked for.
    pub fn forget_empties(&self) {
        self.empties.forget();
    }

    /// Has the shard publish them, after all that was left before. After CONNACK only.
    pub fn put(&self, bundle: Bundle) {
        self.inbox.put([ShardCommand::Bundle(self.id, bundle)]);
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
#[error("a PUBACK for message {0}, which was not handed over")]
pub struct Stray(pub PacketId);

impl Exchanges {
    /// The identifier by which the next message is acknowledged.
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
}
