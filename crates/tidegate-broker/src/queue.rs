//! Messages that wait for one subscriber: references, in two classes by size.
//!
//! Always true: messages of one topic leave in the order in which they came. A topic that has a large message waiting is
//! in the large class until that class has none of it left, and a large message does not start before the small ones of
//! its topic that came earlier.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tidegate_message::Instant;
use tidegate_wire::mqtt::QoS;

use crate::{config::Overflow, message::Message};

/// A message and how it goes to this subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) message: Arc<Message>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Subscription identifiers, MQTT 5.
    pub(crate) ids: Ids,
    /// When it began to wait.
    pub(crate) since: Instant,
    /// What its topic or its subscriber says: whether it may be dropped does not depend on what comes after it.
    pub(crate) overflow: Overflow,
    /// Its number in the shard's journal; 0 if it is not written down.
    pub(crate) number: u64,
    /// An earlier process may have sent it.
    pub(crate) is_repeated: bool,
    sequence: u64,
    /// Of a large message: the last small one of its topic that was there before it.
    after: u64,
}

/// Subscription identifiers of one delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ids {
    #[default]
    None,
    One([u32; 1]),
    Many(Arc<[u32]>),
}

impl Ids {
    pub(crate) fn of(ids: &[u32]) -> Self {
        match ids {
            [] => Self::None,
            [one] => Self::One([*one]),
            many => Self::Many(many.into()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        match self {
            Self::None => &[],
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl Queued {
    pub(crate) fn new(
        message: Arc<Message>,
        qos: QoS,
        retain: bool,
        ids: Ids,
        since: Instant,
        overflow: Overflow,
    ) -> Self {
        let (number, is_repeated) = (0, false);
        Self {
            message,
            qos,
            retain,
            ids,
            since,
            overflow,
            number,
            is_repeated,
            sequence: 0,
            after: 0,
        }
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.message.payload.len()
    }
}

/// The two classes.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    small: VecDeque<Queued>,
    large: VecDeque<Queued>,
    /// Topics with messages in the large class, and how many.
    large_topics: HashMap<Arc<str>, usize>,
    /// Where of each topic the newest waits, by sequence; kept once `latest` is asked for.
    latest: HashMap<Arc<str>, u64>,
    bytes: u64,
    /// Of the last that came; counts from 1.
    sequence: u64,
    /// Of `bytes`, those of messages that may be dropped.
    droppable_bytes: u64,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Bytes of all messages that wait, each counted whole.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a small message of `topic` may go at once, before what waits.
    pub(crate) fn may_pass(&self, topic: &str) -> bool {
        self.small.is_empty() && (self.large.is_empty() || !self.large_topics.contains_key(topic))
    }

    /// Appends a message, to which [`Queue::replace`] then applies under [`Overflow::Latest`].
    pub(crate) fn push(&mut self, mut queued: Queued, is_large: bool) {
        self.sequence += 1;
        if queued.overflow == Overflow::Latest {
            self.latest.insert(queued.message.topic.clone(), self.sequence);
        } else if !self.latest.is_empty() {
            // A newer one must not take the place of one before this.
            self.latest.remove(&queued.message.topic);
        }
        queued.sequence = self.sequence;
        self.bytes += queued.message.charged();
        self.droppable_bytes += droppable_bytes(&queued);
        let topic = &queued.message.topic;
        if is_large || (!self.large.is_empty() && self.large_topics.contains_key(topic)) {
            if let Some(count) = self.large_topics.get_mut(topic) {
                *count += 1;
            } else {
                let before = self.small.iter().rev().find(|small| small.message.topic == *topic);
                queued.after = before.map_or(0, |small| small.sequence);
                self.large_topics.insert(topic.clone(), 1);
            }
            self.large.push_back(queued);
        } else {
            self.small.push_back(queued);
        }
    }

    /// Puts `queued`, under [`Overflow::Latest`], in the place of the last waiting message of its topic, if that is under it,
    /// too, which it gives.
    ///
    /// # Errors
    /// There is none: `queued` again.
    pub(crate) fn replace(&mut self, queued: Queued) -> Result<Queued, Queued> {
        let topic = &queued.message.topic;
        let waiting = self.latest.get(topic).and_then(|sequence| {
            [&mut self.small, &mut self.large].into_iter().find_map(|class| {
                let at = class.binary_search_by_key(sequence, |queued| queued.sequence).ok()?;
                Some(&mut class[at])
            })
        });
        let Some(waiting) = waiting else { return Err(queued) };
        self.bytes = self.bytes - waiting.message.charged() + queued.message.charged();
        self.droppable_bytes =
            self.droppable_bytes - droppable_bytes(waiting) + droppable_bytes(&queued);
        let (sequence, after) = (waiting.sequence, waiting.after);
        Ok(std::mem::replace(waiting, Queued { sequence, after, ..queued }))
    }

    /// All that wait, each class in its order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.small.iter().chain(&self.large)
    }

    pub(crate) fn small(&self) -> Option<&Queued> {
        self.small.front()
    }

    /// The next large message, unless small ones of its topic go before it.
    pub(crate) fn large(&self) -> Option<&Queued> {
        let large = self.large.front()?;
        let waits = self.small.front().is_some_and(|small| small.sequence <= large.after);
        (!waits).then_some(large)
    }

    pub(crate) fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    pub(crate) fn pop_small(&mut self) -> Option<Queued> {
        let queued = self.small.pop_front()?;
        self.left(&queued);
        Some(queued)
    }

    pub(crate) fn pop_large(&mut self) -> Option<Queued> {
        let queued = self.large.pop_front()?;
        self.left_large(&queued);
        Some(queued)
    }

    fn left(&mut self, queued: &Queued) {
        self.bytes -= queued.message.charged();
        self.droppable_bytes -= droppable_bytes(queued);
        if !self.latest.is_empty()
            && self.latest.get(&queued.message.topic) == Some(&queued.sequence)
        {
            self.latest.remove(&queued.message.topic);
        }
    }

    fn left_large(&mut self, queued: &Queued) {
        let topic = &queued.message.topic;
        let count = self.large_topics.get_mut(topic).expect("counted when pushed");
        *count -= 1;
        if *count == 0 {
            self.large_topics.remove(topic);
        }
        self.left(queued);
    }

    /// Bytes of the messages that may be dropped, each counted whole.
    pub(crate) fn droppable_bytes(&self) -> u64 {
        self.droppable_bytes
    }

    /// Takes out the oldest message that may be dropped.
    pub(crate) fn drop_oldest(&mut self) -> Option<Queued> {
        if self.droppable_bytes == 0 {
            return None;
        }
        let position =
            |class: &VecDeque<Queued>| class.iter().position(|queued| queued.overflow.drops());
        let small = position(&self.small);
        let large = position(&self.large);
        let from_large = match (small, large) {
            (Some(small), Some(large)) => self.large[large].sequence < self.small[small].sequence,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (None, None) => return None,
        };
        if from_large {
            let queued = self.large.remove(large?)?;
            // What it waited for is waited for by the next of its topic.
            let topic = &queued.message.topic;
            let next = self.large.iter_mut().find(|next| next.message.topic == *topic);
            if let Some(next) = next.filter(|_| queued.after > 0) {
                next.after = queued.after;
            }
            self.left_large(&queued);
            Some(queued)
        } else {
            let queued = self.small.remove(small?)?;
            self.left(&queued);
            Some(queued)
        }
    }
}

fn droppable_bytes(queued: &Queued) -> u64 {
    if queued.overflow.drops() { queued.message.charged() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        budget::Budget,
        message::{Body, Incoming},
    };

    fn queued(topic: &str, overflow: Overflow, text: &str) -> Queued {
        let qos = QoS::AtLeastOnce;
        let message = Incoming {
            topic: &topic.into(),
            payload: Body::Read(text.as_bytes()),
            forwarded: &[],
            qos,
            retain: false,
            expires: None,
            received: Instant::EPOCH,
            publisher: None,
        };
        let message = message.hold(&Budget::new(1 << 20)).unwrap();
        Queued::new(message, qos, false, Ids::None, Instant::EPOCH, overflow)
    }

    #[test]
    fn a_dropped_large_message_leaves_its_place_in_the_order_to_the_next() {
        let mut queue = Queue::default();
        queue.push(queued("t", Overflow::Disconnect, "small"), false);
        queue.push(queued("t", Overflow::DropOldest, "large"), true);
        queue.push(queued("t", Overflow::DropOldest, "larger"), true);
        assert!(queue.large().is_none());
        assert!(queue.drop_oldest().is_some());
        assert!(queue.large().is_none(), "the small one came first");
        queue.pop_small();
        assert!(queue.large().is_some());
    }

    #[test]
    fn what_found_no_place_is_not_replaced() {
        let mut queue = Queue::default();
        assert!(queue.replace(queued("a", Overflow::Latest, "1")).is_err());
        queue.push(queued("b", Overflow::Latest, "2"), false);
        assert!(queue.replace(queued("a", Overflow::Latest, "3")).is_err());
        let former = queue.replace(queued("b", Overflow::Latest, "4")).unwrap();
        assert_eq!(former.message.payload.to_contiguous(), "2");
        // After one that must stay, the one before it is not replaced any more.
        queue.push(queued("b", Overflow::Disconnect, "5"), false);
        assert!(queue.replace(queued("b", Overflow::Latest, "6")).is_err());
        assert_eq!(queue.len(), 2);
        let bytes = queue.bytes();
        let left = [queue.pop_small(), queue.pop_small()].map(|queued| queued.unwrap());
        assert_eq!(left.iter().map(|queued| queued.message.charged()).sum::<u64>(), bytes);
        assert_eq!(left[0].message.payload.to_contiguous(), "4");
    }
}
