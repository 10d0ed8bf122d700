//! A ring in memory as a destination: for tests and benches. It claims no durability at all.
//!
//! Messages are copied one behind another, so that what the broker held of them goes back at once, still warm, and is used for the
//! next ones.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use tidegate_message::Instant;
use tidegate_wire::mqtt::QoS;

use super::{Batch, Destination, Record, Refusal, Trouble};

/// The newest messages, up to a bound. Clones are the same ring.
#[derive(Clone, Debug)]
pub struct Ring {
    held: Arc<Mutex<Held>>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Held {
    heads: VecDeque<Head>,
    /// Of each message its topic, its payload and its name.
    bytes: VecDeque<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    topic_len: usize,
    payload_len: usize,
    id_len: Option<usize>,
    qos: QoS,
    time: Instant,
    is_repeated: bool,
}

/// Two are the same if they are one, or if they cannot be distinguished when they are begun.
impl PartialEq for Ring {
    fn eq(&self, other: &Self) -> bool {
        self.capacity == other.capacity
    }
}

impl Ring {
    /// A ring of at most `capacity` messages.
    pub fn new(capacity: usize) -> Self {
        Self { held: Arc::default(), capacity }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all records, the oldest first.
    pub fn take(&self) -> Vec<Record> {
        let mut held = std::mem::take(&mut *self.held());
        std::iter::from_fn(|| held.pop()).collect()
    }

    /// Messages that it holds.
    pub fn len(&self) -> usize {
        self.held().heads.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Held {
    fn push(&mut self, record: &Record) {
        let Record { topic, payload, qos, time, id, is_repeated, .. } = record;
        self.heads.push_back(Head {
            topic_len: topic.len(),
            payload_len: payload.len(),
            id_len: id.as_ref().map(|id| id.len()),
            qos: *qos,
            time: *time,
            is_repeated: *is_repeated,
        });
        for part in [topic.as_bytes(), payload, id.as_deref().unwrap_or_default().as_bytes()] {
            self.bytes.extend(part);
        }
    }

    fn pop(&mut self) -> Option<Record> {
        let head = self.heads.pop_front()?;
        let mut part = |len: usize| self.bytes.drain(..len).collect::<Vec<u8>>();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it was a text");
        let (topic, payload) = (text(part(head.topic_len)), part(head.payload_len));
        let id = head.id_len.map(|len| text(part(len)).into());
        let Head { qos, is_repeated, time, .. } = head;
        Some(Record { qos, is_repeated, id, ..Record::new(&topic, payload, time) })
    }

    fn forget_oldest(&mut self) {
        if let Some(head) = self.heads.pop_front() {
            self.bytes.drain(..head.topic_len + head.payload_len + head.id_len.unwrap_or(0));
        }
    }
}

#[async_trait]
impl Destination for Ring {
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble> {
        let mut held = self.held();
        for record in batch.records() {
            while held.heads.len() >= self.capacity.max(1) {
                held.forget_oldest();
            }
            held.push(record);
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn kept_frames_come_back_unchanged() {
        let mut ring = Ring::new(3);
        let record = |number: usize| Record {
            qos: if number.is_multiple_of(2) { QoS::AtMostOnce } else { QoS::AtLeastOnce },
            id: (number > 2).then(|| format!("node/up/1/{number}").into()),
            is_repeated: number == 4,
            ..Record::new(&"größe/".repeat(number), vec![7; 3 * number], Instant::from_nanos(9))
        };
        for batch in [0..2, 2..3, 3..6] {
            let taken = ring.deliver(&batch.map(record).collect()).await;
            assert!(taken.expect("it takes all").is_empty());
        }
        assert_eq!(ring.len(), 3);
        assert_eq!(ring.take(), (3..6).map(record).collect::<Vec<_>>());
        assert!(ring.is_empty() && ring.take().is_empty());
    }
}
