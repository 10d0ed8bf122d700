//! Messages that wait for one subscriber: references, in two classes by size.
//!
//! What is on disk keeps its place: only its payload is elsewhere, and it leaves once that is back.
//!
//! Always true: messages of one topic leave in the order in which they came. A topic that has a large message waiting is
//! in the large class until that class has none of it left, and a large message does not start before the small ones of
//! its topic that came earlier. Of a class, what begins is in memory.

mod class;

use std::{collections::HashMap, sync::Arc};

use tidegate_message::Instant;
use tidegate_wire::mqtt::QoS;

use self::class::Class;
use crate::{
    config::Overflow,
    message::Message,
    spill::{SpillError, Spilled},
};

/// A message and how it goes to this subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) message: Held,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Subscription identifiers, MQTT 5.
    pub(crate) ids: Ids,
    /// When it began to wait.
    pub(crate) since: Instant,
    /// What its topic or its subscriber says: whether it may be dropped does not depend on what comes after it.
    pub(crate) overflow: Overflow,
    /// The shared subscription that it came by: another member has it if this session ends before it is sent and acknowledged.
    pub(crate) group: Option<Arc<str>>,
    /// Its number in the shard's journal; 0 if it is not written down.
    pub(crate) number: u64,
    /// An earlier process may have sent it.
    pub(crate) is_repeated: bool,
    sequence: u64,
    /// Of a large message: the last small one of its topic that was there before it.
    after: u64,
}

/// Where a message is that waits.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    Memory(Arc<Message>),
    Disk(Arc<Spilled>),
}

impl Held {
    pub(crate) fn topic(&self) -> &Arc<str> {
        match self {
            Self::Memory(message) => &message.topic,
            Self::Disk(spilled) => &spilled.topic,
        }
    }

    /// Bytes that it takes from the budget while it is in memory.
    pub(crate) fn charged(&self) -> u64 {
        match self {
            Self::Memory(message) => message.charged(),
            Self::Disk(spilled) => spilled.charged,
        }
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        match self {
            Self::Memory(message) => message.payload.len(),
            Self::Disk(spilled) => spilled.payload_bytes,
        }
    }

    /// The message, if it is in memory.
    pub(crate) fn memory(&self) -> Option<&Arc<Message>> {
        match self {
            Self::Memory(message) => Some(message),
            Self::Disk(_) => None,
        }
    }
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
        message: Held,
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
            group: None,
            number,
            is_repeated,
            sequence: 0,
            after: 0,
        }
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.message.payload_bytes()
    }

    /// The message of one that has begun.
    ///
    /// # Panics
    /// If it is on disk.
    pub(crate) fn begun(&self) -> &Arc<Message> {
        self.message.memory().expect("what begins is in memory")
    }
}

/// The two classes.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    small: Class,
    large: Class,
    /// Topics with messages in the large class, and how many.
    large_topics: HashMap<Arc<str>, usize>,
    /// Where of each topic the newest waits, by sequence; kept once `latest` is asked for.
    latest: HashMap<Arc<str>, u64>,
    /// Of the last that came; counts from 1.
    sequence: u64,
    counts: Counts,
}

/// What all that waits takes, each message counted whole.
#[derive(Debug, Default)]
struct Counts {
    /// Bytes in memory.
    bytes: u64,
    /// Of those, of messages that may be dropped.
    droppable_bytes: u64,
    /// And of messages that may go to disk.
    spillable_bytes: u64,
    /// Messages on disk, and their bytes.
    spilled: usize,
    spilled_bytes: u64,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.small.waiting.is_empty() && self.large.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.small.waiting.len() + self.large.waiting.len()
    }

    /// Bytes of the messages that wait in memory, each counted whole.
    pub(crate) fn bytes(&self) -> u64 {
        self.counts.bytes
    }

    /// Bytes of the messages that may be dropped, each counted whole.
    pub(crate) fn droppable_bytes(&self) -> u64 {
        self.counts.droppable_bytes
    }

    /// Bytes in memory of the messages that may go to disk.
    pub(crate) fn spillable_bytes(&self) -> u64 {
        self.counts.spillable_bytes
    }

    /// Messages on disk.
    pub(crate) fn spilled(&self) -> usize {
        self.counts.spilled
    }

    /// Bytes of those, each counted whole.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.counts.spilled_bytes
    }

    /// Whether a small message of `topic` may go at once, before what waits.
    pub(crate) fn may_pass(&self, topic: &str) -> bool {
        self.small.waiting.is_empty()
            && (self.large.waiting.is_empty() || !self.large_topics.contains_key(topic))
    }

    /// Whether a message of `topic` that is large, or not, comes into the large class.
    pub(crate) fn goes_to_large(&self, topic: &str, is_large: bool) -> bool {
        is_large || (!self.large.waiting.is_empty() && self.large_topics.contains_key(topic))
    }

    /// Appends a message, to which [`Queue::replace`] then applies under [`Overflow::Latest`].
    pub(crate) fn push(&mut self, mut queued: Queued, is_large: bool) {
        self.sequence += 1;
        if queued.overflow == Overflow::Latest {
            self.latest.insert(queued.message.topic().clone(), self.sequence);
        } else if !self.latest.is_empty() {
            // A newer one must not take the place of one before this.
            self.latest.remove(queued.message.topic());
        }
        queued.sequence = self.sequence;
        self.counts.add(&queued);
        let topic = queued.message.topic();
        if self.goes_to_large(topic, is_large) {
            if let Some(count) = self.large_topics.get_mut(topic) {
                *count += 1;
            } else {
                let mut smaller = self.small.waiting.iter().rev();
                let before = smaller.find(|small| small.message.topic() == topic);
                let before = before.map_or(0, |small| small.sequence);
                self.large_topics.insert(topic.clone(), 1);
                queued.after = before;
            }
            self.large.push(queued);
        } else {
            self.small.push(queued);
        }
    }

    /// Puts `queued`, under [`Overflow::Latest`], in the place of the last waiting message of its topic, if that is under it,
    /// too, which it gives.
    ///
    /// # Errors
    /// There is none: `queued` again.
    pub(crate) fn replace(&mut self, queued: Queued) -> Result<Queued, Queued> {
        let found = self.latest.get(queued.message.topic()).and_then(|sequence| {
            [&mut self.small, &mut self.large].into_iter().find_map(|class| {
                let at = class.waiting.binary_search_by_key(sequence, |q| q.sequence).ok()?;
                Some((class, at))
            })
        });
        let Some((class, at)) = found else { return Err(queued) };
        self.counts.add(&queued);
        let waiting = &class.waiting[at];
        let queued = Queued { sequence: waiting.sequence, after: waiting.after, ..queued };
        let former = class.exchange(at, queued);
        self.counts.subtract(&former);
        Ok(former)
    }

    /// All that wait, in the order in which they came.
    pub(crate) fn into_waiting(self) -> Vec<Queued> {
        let mut all: Vec<Queued> = self.small.waiting.into();
        all.extend(self.large.waiting);
        all.sort_by_key(|queued| queued.sequence);
        all
    }

    /// Takes out what came by that shared subscription, in the order in which it came.
    pub(crate) fn take_group(&mut self, name: &str) -> Vec<Queued> {
        let is_its = |queued: &Queued| queued.group.as_deref() == Some(name);
        let mut taken = Vec::new();
        for is_large in [false, true] {
            for at in (0..self.class(is_large).waiting.len()).rev() {
                if is_its(&self.class(is_large).waiting[at]) {
                    taken.extend(self.take(is_large, at));
                }
            }
        }
        taken.sort_by_key(|queued| queued.sequence);
        taken
    }

    /// All that wait, each class in its order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.small.waiting.iter().chain(&self.large.waiting)
    }

    /// The next small message, if it is in memory.
    pub(crate) fn small(&self) -> Option<&Queued> {
        self.small.first()
    }

    /// The next large message, if it is in memory, unless small ones of its topic go before it.
    pub(crate) fn large(&self) -> Option<&Queued> {
        let large = self.large.first()?;
        let first = self.small.waiting.front();
        let waits = first.is_some_and(|small| small.sequence <= large.after);
        (!waits).then_some(large)
    }

    pub(crate) fn has_large(&self) -> bool {
        !self.large.waiting.is_empty()
    }

    pub(crate) fn pop_small(&mut self) -> Option<Queued> {
        let queued = self.small.remove(0)?;
        self.left(&queued);
        Some(queued)
    }

    pub(crate) fn pop_large(&mut self) -> Option<Queued> {
        let queued = self.large.remove(0)?;
        self.left_large(&queued);
        Some(queued)
    }

    fn left(&mut self, queued: &Queued) {
        self.counts.subtract(queued);
        let topic = queued.message.topic();
        if !self.latest.is_empty() && self.latest.get(topic) == Some(&queued.sequence) {
            self.latest.remove(topic);
        }
    }

    fn left_large(&mut self, queued: &Queued) {
        let topic = queued.message.topic();
        let count = self.large_topics.get_mut(topic).expect("counted when pushed");
        *count -= 1;
        if *count == 0 {
            self.large_topics.remove(topic);
        }
        self.left(queued);
    }

    /// Takes out the oldest message that may be dropped.
    pub(crate) fn drop_oldest(&mut self) -> Option<Queued> {
        if self.counts.droppable_bytes == 0 {
            return None;
        }
        let position =
            |class: &Class| class.waiting.iter().position(|queued| queued.overflow.drops());
        let sequence = |class: &Class, at: usize| class.waiting[at].sequence;
        match (position(&self.small), position(&self.large)) {
            (Some(small), Some(large))
                if sequence(&self.small, small) < sequence(&self.large, large) =>
            {
                self.take(false, small)
            }
            (_, Some(large)) => self.take(true, large),
            (Some(small), None) => self.take(false, small),
            (None, None) => None,
        }
    }

    /// Takes a message out of its class, wherever it waits.
    fn take(&mut self, is_large: bool, at: usize) -> Option<Queued> {
        if !is_large {
            let queued = self.small.remove(at)?;
            self.left(&queued);
            return Some(queued);
        }
        let queued = self.large.remove(at)?;
        // What it waited for is waited for by the next of its topic.
        let topic = queued.message.topic();
        let mut others = self.large.waiting.iter_mut();
        let next = others.find(|next| next.message.topic() == topic);
        if let Some(next) = next.filter(|_| queued.after > 0) {
            next.after = queued.after;
        }
        self.left_large(&queued);
        Some(queued)
    }

    // ---- on disk

    /// Whether some of that class is on disk.
    pub(crate) fn has_spilled(&self, is_large: bool) -> bool {
        self.class(is_large).has_spilled()
    }

    /// Sends the newest message of a class that is in memory and may be there to disk; how many bytes that was. None if there is
    /// no such message.
    ///
    /// # Errors
    /// Those of `write`; the message stays.
    pub(crate) fn evict(
        &mut self,
        is_large: bool,
        write: impl FnOnce(&Arc<Message>) -> Result<Arc<Spilled>, SpillError>,
    ) -> Option<Result<u64, SpillError>> {
        let class = if is_large { &mut self.large } else { &mut self.small };
        let (at, message) = class.newest_spillable()?;
        let spilled = match write(message) {
            Ok(spilled) => spilled,
            Err(error) => return Some(Err(error)),
        };
        let queued = &class.waiting[at];
        let bytes = queued.message.charged();
        self.counts.subtract(queued);
        let queued = Queued { message: Held::Disk(spilled), ..queued.clone() };
        self.counts.add(&queued);
        class.exchange(at, queued);
        Some(Ok(bytes))
    }

    /// Takes up what is back in memory, in order, as long as less than `bytes_max` of the class are there, and goes on to the
    /// next message on disk. What of those on disk `is_over` says is taken out, and given.
    pub(crate) fn take_up(
        &mut self,
        is_large: bool,
        bytes_max: u64,
        is_over: impl Fn(&Spilled) -> bool,
    ) -> Vec<Queued> {
        let mut over = Vec::new();
        loop {
            let class = if is_large { &mut self.large } else { &mut self.small };
            let Some((at, spilled)) = class.first_spilled() else { return over };
            if is_over(spilled) {
                over.extend(self.take(is_large, at));
                continue;
            }
            let message = spilled.in_memory().filter(|_| class.near_bytes() < bytes_max);
            let Some(message) = message else { return over };
            let queued = &class.waiting[at];
            self.counts.subtract(queued);
            let queued = Queued { message: Held::Memory(message), ..queued.clone() };
            self.counts.add(&queued);
            class.exchange(at, queued);
        }
    }

    /// What of a class is to be read from disk next, so that about `bytes_max` of it are in memory: nothing while it is asked
    /// for, or while half of that is there.
    pub(crate) fn want(
        &mut self,
        is_large: bool,
        bytes_max: u64,
        count_max: usize,
    ) -> Vec<Arc<Spilled>> {
        let class = if is_large { &mut self.large } else { &mut self.small };
        class.want(bytes_max, count_max)
    }

    /// What was asked for of a class has come, or does not come.
    pub(crate) fn end_fetch(&mut self, is_large: bool) {
        let class = if is_large { &mut self.large } else { &mut self.small };
        class.is_fetching = false;
    }

    /// Whether nothing of a class is in memory that could go before what is on disk.
    pub(crate) fn is_starved(&self, is_large: bool) -> bool {
        let class = self.class(is_large);
        class.has_spilled() && class.near_bytes() == 0
    }

    fn class(&self, is_large: bool) -> &Class {
        if is_large { &self.large } else { &self.small }
    }
}

impl Counts {
    fn add(&mut self, queued: &Queued) {
        let bytes = queued.message.charged();
        match &queued.message {
            Held::Memory(_) => self.bytes += bytes,
            Held::Disk(_) => {
                self.spilled += 1;
                self.spilled_bytes += bytes;
            }
        }
        self.droppable_bytes += droppable_bytes(queued);
        self.spillable_bytes += spillable_bytes(queued);
    }

    fn subtract(&mut self, queued: &Queued) {
        let bytes = queued.message.charged();
        match &queued.message {
            Held::Memory(_) => self.bytes -= bytes,
            Held::Disk(_) => {
                self.spilled -= 1;
                self.spilled_bytes -= bytes;
            }
        }
        self.droppable_bytes -= droppable_bytes(queued);
        self.spillable_bytes -= spillable_bytes(queued);
    }
}

fn droppable_bytes(queued: &Queued) -> u64 {
    if queued.overflow.drops() { queued.message.charged() } else { 0 }
}

fn spillable_bytes(queued: &Queued) -> u64 {
    let is_spillable = queued.overflow == Overflow::Spill && queued.message.memory().is_some();
    if is_spillable { queued.message.charged() } else { 0 }
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
        Queued::new(Held::Memory(message), qos, false, Ids::None, Instant::EPOCH, overflow)
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
        assert_eq!(former.begun().payload.to_contiguous(), "2");
        // After one that must stay, the one before it is not replaced any more.
        queue.push(queued("b", Overflow::Disconnect, "5"), false);
        assert!(queue.replace(queued("b", Overflow::Latest, "6")).is_err());
        assert_eq!(queue.len(), 2);
        let bytes = queue.bytes();
        let left = [queue.pop_small(), queue.pop_small()].map(|queued| queued.unwrap());
        assert_eq!(left.iter().map(|queued| queued.message.charged()).sum::<u64>(), bytes);
        assert_eq!(left[0].begun().payload.to_contiguous(), "4");
    }
}
