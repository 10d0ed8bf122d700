//! Messages on their way from a shard to a part of this program, as they are held, without packets or a socket between.
//!
//! Messages that were handed out and not used up are bounded ([`WAITING_BYTES_MAX`], and one turn of the shard beyond it): the
//! rest waits in the broker, under the session's budget and overflow policy.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate_broker::{Acknowledged, Handed, Shared};
use tidegate_wire::mqtt::PacketId;
use tokio::sync::Notify;

use super::{bundle::LocalId, inbox::Inbox, shard::ShardCommand};

/// Bytes of messages that were handed out and not used up, beyond which no more are.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// Messages handed out by the shard, and the acknowledgements on their way back.
#[derive(Debug, Default)]
pub(super) struct DeliveryQueue {
    waiting: Mutex<Waiting>,
    come: Notify,
    /// Messages of QoS 1 that are needed no more, for the shard to take.
    settled: Mutex<Vec<Acknowledged>>,
}

#[derive(Debug, Default)]
struct Waiting {
    handed: VecDeque<Handed>,
    /// Of those and of what was taken and not used up.
    bytes: usize,
    /// The shard knows that there is no room, and is notified when there is some.
    is_full: bool,
}

impl DeliveryQueue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settled(&self) -> MutexGuard<'_, Vec<Acknowledged>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what is needed no more into `settled`, which is empty.
    pub(super) fn take_settled(&self, settled: &mut Vec<Acknowledged>) {
        std::mem::swap(&mut *self.settled(), settled);
    }

    /// Hands messages out; false if no more are to come until a [`ShardCommand::Room`] says so.
    pub(super) fn put(&self, handed: &mut Vec<Handed>) -> bool {
        let bytes = handed.iter().map(Handed::bytes).sum::<usize>();
        let mut waiting = self.waiting();
        let is_first = waiting.handed.is_empty();
        waiting.bytes += bytes;
        waiting.handed.extend(handed.drain(..));
        waiting.is_full = waiting.bytes >= WAITING_BYTES_MAX;
        let has_room = !waiting.is_full;
        drop(waiting);
        if is_first {
            self.come.notify_one();
        }
        has_room
    }
}

/// Where the messages of one session come out.
#[derive(Debug)]
pub struct Deliveries {
    id: LocalId,
    queue: Arc<DeliveryQueue>,
    inbox: Arc<Inbox<ShardCommand>>,
    taken: VecDeque<Handed>,
    /// Of all that was taken last.
    taken_bytes: usize,
    /// The acknowledgements of [`Deliveries::acknowledge`] since [`Deliveries::settle`].
    settled: Vec<Acknowledged>,
}

impl Deliveries {
    pub(super) fn new(
        id: LocalId,
        client_id: &str,
        queue: Arc<DeliveryQueue>,
        shared: &Shared,
        inboxes: &[Arc<Inbox<ShardCommand>>],
    ) -> Self {
        let inbox = inboxes[shared.shard_of(client_id)].clone();
        let (taken, settled) = (VecDeque::new(), Vec::new());
        Self { id, queue, inbox, taken, taken_bytes: 0, settled }
    }

    /// Waits until [`Deliveries::poll`] may have another one, after it had none.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn come(&self) {
        self.queue.come.notified().await;
    }

    /// The next message, or the next ones; none for now.
    pub fn poll(&mut self) -> Option<Handed> {
        if self.taken.is_empty() {
            self.take();
        }
        self.taken.pop_front()
    }

    /// Takes all that waits; messages taken before are used up.
    fn take(&mut self) {
        let mut waiting = self.queue.waiting();
        waiting.bytes -= self.taken_bytes;
        self.taken_bytes = 0;
        if !waiting.handed.is_empty() {
            // The one's room for the other's.
            std::mem::swap(&mut waiting.handed, &mut self.taken);
            self.taken_bytes = waiting.bytes;
        }
        let has_room = waiting.is_full && waiting.bytes < WAITING_BYTES_MAX / 2;
        if has_room {
            waiting.is_full = false;
        }
        drop(waiting);
        if has_room {
            self.inbox.put([ShardCommand::Room(self.id)]);
        }
    }

    /// Notes that a message of QoS 1 is needed no more; [`Deliveries::settle`] tells the broker.
    pub fn acknowledge(&mut self, id: PacketId) {
        Acknowledged::push(&mut self.settled, id);
    }

    /// Tells the broker what was noted since the last time: before anything that is written to the connection's socket after this.
    pub fn settle(&mut self) {
        if self.settled.is_empty() {
            return;
        }
        let mut settled = self.queue.settled();
        let is_first = settled.is_empty();
        settled.append(&mut self.settled);
        drop(settled);
        if is_first {
            self.inbox.put([ShardCommand::Settled(self.id)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_broker::{Body, Budget, Delivery, Incoming};
    use tidegate_message::Instant;
    use tidegate_wire::mqtt::QoS;

    use super::*;
    use crate::inbox::waker;

    fn delivery(payload: &[u8]) -> Handed {
        let incoming = Incoming {
            topic: &"t".into(),
            payload: Body::Read(payload),
            forwarded: &[],
            qos: QoS::AtMostOnce,
            retain: false,
            expires: None,
            received: Instant::from_nanos(0),
            publisher: None,
        };
        let message = incoming.hold(&Budget::new(1 << 30)).expect("there is room");
        let (qos, packet_id, is_repeated) = (QoS::AtMostOnce, None, false);
        Handed::One(Delivery { message, qos, packet_id, is_repeated })
    }

    fn pair() -> (Arc<DeliveryQueue>, Deliveries) {
        let poll = mio::Poll::new().expect("a poll");
        let inbox = Arc::new(Inbox::new(waker(&poll, mio::Token(0)).expect("a waker")));
        let queue = Arc::<DeliveryQueue>::default();
        let deliveries = Deliveries {
            id: LocalId::next(),
            queue: queue.clone(),
            inbox,
            taken: VecDeque::new(),
            taken_bytes: 0,
            settled: Vec::new(),
        };
        (queue, deliveries)
    }

    fn commands(deliveries: &Deliveries) -> Vec<ShardCommand> {
        let mut commands = Vec::new();
        deliveries.inbox.take(&mut commands);
        commands
    }

    fn put(queue: &DeliveryQueue, payload: &[u8]) -> bool {
        queue.put(&mut vec![delivery(payload)])
    }

    #[test]
    fn unused_deliveries_are_bounded_and_the_shard_learns_of_room() {
        let (queue, mut deliveries) = pair();
        let rooms = |deliveries: &Deliveries| {
            commands(deliveries)
                .iter()
                .filter(|command| matches!(command, ShardCommand::Room(_)))
                .count()
        };
        assert!(deliveries.poll().is_none());
        for round in 0..3 {
            let (mut count, mut number) = (0, 0_u32);
            loop {
                count += 1;
                let payload = [&number.to_le_bytes()[..], &[0; 9_995]].concat();
                number += 1;
                if !put(&queue, &payload) {
                    break;
                }
            }
            assert_eq!(count, WAITING_BYTES_MAX.div_ceil(10_000), "round {round}");
            for number in 0..count as u32 {
                assert_eq!(rooms(&deliveries), 0, "all but the last may still be in use");
                let Some(Handed::One(delivery)) = deliveries.poll() else {
                    panic!("message {number} was put");
                };
                let payload = delivery.message.payload.to_contiguous();
                assert_eq!(payload[..4], number.to_le_bytes());
            }
            assert!(deliveries.poll().is_none());
            assert_eq!(rooms(&deliveries), 1);
        }
    }

    #[test]
    fn acknowledgements_are_told_together() {
        let (queue, mut deliveries) = pair();
        deliveries.settle();
        assert!(commands(&deliveries).is_empty());
        let id = |number: u16| PacketId::new(number).expect("not zero");
        [3, 1].into_iter().for_each(|number| deliveries.acknowledge(id(number)));
        deliveries.settle();
        deliveries.settle();
        // The shard need not be woken again before it has looked.
        deliveries.acknowledge(id(2));
        deliveries.settle();
        assert!(matches!(&commands(&deliveries)[..], [ShardCommand::Settled(_)]));
        let mut settled = Vec::new();
        queue.take_settled(&mut settled);
        let said = [(3, 1), (1, 1), (2, 1)];
        assert_eq!(settled, said.map(|(first, count)| Acknowledged { first: id(first), count }));
        settled.clear();
        queue.take_settled(&mut settled);
        assert!(settled.is_empty());
        // Those that follow each other are one.
        [5, 6, 7, 9].into_iter().for_each(|number| deliveries.acknowledge(id(number)));
        deliveries.settle();
        queue.take_settled(&mut settled);
        let said = [(5, 3), (9, 1)];
        assert_eq!(settled, said.map(|(first, count)| Acknowledged { first: id(first), count }));
        assert_eq!(commands(&deliveries).len(), 1);
        deliveries.acknowledge(id(4));
        deliveries.settle();
        assert_eq!(commands(&deliveries).len(), 1);
    }
}
