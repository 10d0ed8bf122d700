//! Messages on their way from a shard to a part of this program, as they are held, without packets or a socket between.
//!
//! What was handed out and not used up is bounded ([`WAITING_BYTES_MAX`], and one turn of the shard beyond it): the rest waits in
//! the broker, under the session's budget and overflow policy.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate_broker::{Acknowledged, Handed, Shared};
use tidegate_wire::mqtt::PacketId;
use tokio::sync::Notify;

use super::{bundle::LocalId, inbox::Inbox, shard::Note};

/// Bytes of messages that were handed out and not used up, beyond which no more are.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// From the shard to where messages are used up.
#[derive(Debug, Default)]
pub(super) struct Way {
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
    /// The shard was told that there is no room, and is told when there is some.
    is_full: bool,
}

impl Way {
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

    /// Hands messages out; false if no more are to come until a [`Note::Room`] says so.
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
    way: Arc<Way>,
    inbox: Arc<Inbox<Note>>,
    taken: VecDeque<Handed>,
    /// Of all that was taken last.
    taken_bytes: usize,
    /// What [`Deliveries::acknowledge`] was told since [`Deliveries::settle`].
    settled: Vec<Acknowledged>,
}

impl Deliveries {
    pub(super) fn new(
        id: LocalId,
        client_id: &str,
        way: Arc<Way>,
        shared: &Shared,
        inboxes: &[Arc<Inbox<Note>>],
    ) -> Self {
        let inbox = inboxes[shared.shard_of(client_id)].clone();
        let (taken, settled) = (VecDeque::new(), Vec::new());
        Self { id, way, inbox, taken, taken_bytes: 0, settled }
    }

    /// Waits until [`Deliveries::poll`] may have another one, after it had none.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn come(&self) {
        self.way.come.notified().await;
    }

    /// The next message, or the next ones; none for now.
    pub fn poll(&mut self) -> Option<Handed> {
        if self.taken.is_empty() {
            self.take();
        }
        self.taken.pop_front()
    }

    /// Takes all that waits; what was taken before is used up.
    fn take(&mut self) {
        let mut waiting = self.way.waiting();
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
            self.inbox.put([Note::Room(self.id)]);
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
        let mut settled = self.way.settled();
        let is_first = settled.is_empty();
        settled.append(&mut self.settled);
        drop(settled);
        if is_first {
            self.inbox.put([Note::Settled(self.id)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_broker::{Body, Budget, Delivery, Incoming};
    use tidegate_message::Instant;
    use tidegate_wire::mqtt::QoS;

    use super::*;
    use crate::mqtt::inbox::waker;

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

    fn pair() -> (Arc<Way>, Deliveries) {
        let poll = mio::Poll::new().expect("a poll");
        let inbox = Arc::new(Inbox::new(waker(&poll, mio::Token(0)).expect("a waker")));
        let way = Arc::<Way>::default();
        let deliveries = Deliveries {
            id: LocalId::next(),
            way: way.clone(),
            inbox,
            taken: VecDeque::new(),
            taken_bytes: 0,
            settled: Vec::new(),
        };
        (way, deliveries)
    }

    fn notes(deliveries: &Deliveries) -> Vec<Note> {
        let mut notes = Vec::new();
        deliveries.inbox.take(&mut notes);
        notes
    }

    fn put(way: &Way, payload: &[u8]) -> bool {
        way.put(&mut vec![delivery(payload)])
    }

    #[test]
    fn what_is_not_used_up_is_bounded_and_the_shard_hears_of_room() {
        let (way, mut deliveries) = pair();
        let rooms = |deliveries: &Deliveries| {
            notes(deliveries).iter().filter(|note| matches!(note, Note::Room(_))).count()
        };
        assert!(deliveries.poll().is_none());
        for round in 0..3 {
            let (mut count, mut number) = (0, 0_u32);
            loop {
                count += 1;
                let payload = [&number.to_le_bytes()[..], &[0; 9_995]].concat();
                number += 1;
                if !put(&way, &payload) {
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
        let (way, mut deliveries) = pair();
        deliveries.settle();
        assert!(notes(&deliveries).is_empty());
        let id = |number: u16| PacketId::new(number).expect("not zero");
        [3, 1].into_iter().for_each(|number| deliveries.acknowledge(id(number)));
        deliveries.settle();
        deliveries.settle();
        // The shard need not be woken again before it has looked.
        deliveries.acknowledge(id(2));
        deliveries.settle();
        assert!(matches!(&notes(&deliveries)[..], [Note::Settled(_)]));
        let mut settled = Vec::new();
        way.take_settled(&mut settled);
        let said = [(3, 1), (1, 1), (2, 1)];
        assert_eq!(settled, said.map(|(first, count)| Acknowledged { first: id(first), count }));
        settled.clear();
        way.take_settled(&mut settled);
        assert!(settled.is_empty());
        // Those that follow each other are one.
        [5, 6, 7, 9].into_iter().for_each(|number| deliveries.acknowledge(id(number)));
        deliveries.settle();
        way.take_settled(&mut settled);
        let said = [(5, 3), (9, 1)];
        assert_eq!(settled, said.map(|(first, count)| Acknowledged { first: id(first), count }));
        assert_eq!(notes(&deliveries).len(), 1);
        deliveries.acknowledge(id(4));
        deliveries.settle();
        assert_eq!(notes(&deliveries).len(), 1);
    }
}
