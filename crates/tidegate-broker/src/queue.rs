//! Messages that wait for one subscriber: references, in two classes by size.
//!
//! A message on disk keeps its place: only its payload is elsewhere, and it leaves once that is back.
//!
//! Expired messages are taken out on request ([`Queue::lapse`]): their memory and places are then free, at a cost that does not
//! grow with the queue, wherever they lie in it.
//!
//! Always true: messages of one topic leave in the order in which they came. A topic that has a large message waiting is
//! in the large class until that class has none of it left, and a large message does not start before the small ones of
//! its topic that came earlier. Of a class, what begins is in memory.

mod class;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
};

use tidegate_message::Instant;
use tidegate_wire::mqtt::QoS;

use self::class::Class;
use crate::{
    accounts::Account,
    config::Overflow,
    message::Message,
    spill::{SpillError, Spilled},
};

/// Expiries in addition to those of waiting messages, before those of sent ones are cleared away.
const OLD_ENTRIES: usize = 64;

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
    /// The policy of its topic or its subscriber: whether it may be dropped does not depend on later messages.
    pub(crate) overflow: Overflow,
    /// The shared subscription that it came by: another member has it if this session ends before it is sent and acknowledged.
    pub(crate) group: Option<Arc<str>>,
    /// Its number in the shard's journal; 0 if it is not written down.
    pub(crate) number: u64,
    sequence: u64,
    /// Of a large message: the last small one of its topic that was there before it.
    after: u64,
}

/// Where a message is that waits.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    Memory(Arc<Message>),
    Disk(Arc<Spilled>),
    /// It has expired. The mark that is left keeps the order of those around it, and goes with them.
    Gone(Arc<str>),
}

impl Held {
    pub(crate) fn topic(&self) -> &Arc<str> {
        match self {
            Self::Memory(message) => &message.topic,
            Self::Disk(spilled) => &spilled.topic,
            Self::Gone(topic) => topic,
        }
    }

    /// Bytes that it takes from the budget while it is in memory.
    pub(crate) fn charged(&self) -> u64 {
        match self {
            Self::Memory(message) => message.charged(),
            Self::Disk(spilled) => spilled.charged,
            Self::Gone(_) => 0,
        }
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        match self {
            Self::Memory(message) => message.payload.len(),
            Self::Disk(spilled) => spilled.payload_bytes,
            Self::Gone(_) => 0,
        }
    }

    /// When it loses its worth, if ever.
    pub(crate) fn expires(&self) -> Option<Instant> {
        match self {
            Self::Memory(message) => message.expires,
            Self::Disk(spilled) => spilled.expires,
            Self::Gone(_) => None,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }

    /// The message, if it is in memory.
    pub(crate) fn memory(&self) -> Option<&Arc<Message>> {
        match self {
            Self::Memory(message) => Some(message),
            Self::Disk(_) | Self::Gone(_) => None,
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
        Self {
            message,
            qos,
            retain,
            ids,
            since,
            overflow,
            group: None,
            number: 0,
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
        self.message.memory().expect("a message that begins is in memory")
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
    /// When messages expire, and their sequence; also of some that have left.
    expiring: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Of the last that came; counts from 1.
    sequence: u64,
    counts: Counts,
}

/// The size of all waiting messages, each counted whole.
#[derive(Debug, Default)]
struct Counts {
    /// Bytes in memory.
    bytes: u64,
    /// Of those, of messages that may be dropped.
    droppable_bytes: u64,
    /// And of messages that may go to disk.
    spillable_bytes: u64,
    /// And of those of them that may be dropped where they cannot.
    yielding_bytes: u64,
    /// Messages that may be dropped, those among them; marks of what has gone aside.
    yielding: usize,
    /// Messages on disk, and their bytes.
    spilled: usize,
    spilled_bytes: u64,
    /// The account of those that stay in memory.
    account: Option<Arc<Account>>,
    /// The account of those on disk.
    disk_account: Option<Arc<Account>>,
}

impl Queue {
    /// The account that its messages count in from now on.
    pub(crate) fn set_account(&mut self, account: Option<Arc<Account>>) {
        if self.counts.account.as_ref().map(Arc::as_ptr) == account.as_ref().map(Arc::as_ptr) {
            return;
        }
        self.leave_account();
        if let Some(account) = &account {
            self.firm().for_each(|message| message.hold_for(account));
        }
        self.counts.account = account;
    }

    /// The account that its messages on disk count in from now on.
    pub(crate) fn set_disk_account(&mut self, account: Option<Arc<Account>>) {
        let former = self.counts.disk_account.as_ref().map(Arc::as_ptr);
        if former != account.as_ref().map(Arc::as_ptr) {
            self.leave_disk_account();
            if let Some(account) = &account {
                self.on_disk().for_each(|spilled| spilled.hold_for(account));
            }
            self.counts.disk_account = account;
        }
    }

    fn leave_account(&mut self) {
        if let Some(account) = self.counts.account.take() {
            self.firm().for_each(|message| message.release_for(&account));
        }
    }

    fn leave_disk_account(&mut self) {
        if let Some(account) = self.counts.disk_account.take() {
            self.on_disk().for_each(|spilled| spilled.release_for(&account));
        }
    }

    fn on_disk(&self) -> impl Iterator<Item = &Arc<Spilled>> {
        self.iter().filter_map(|queued| match &queued.message {
            Held::Disk(spilled) => Some(spilled),
            Held::Memory(_) | Held::Gone(_) => None,
        })
    }

    /// Messages that stay in memory even if others need it.
    fn firm(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.iter().filter(|queued| queued.overflow.is_firm()).filter_map(|q| q.message.memory())
    }

    /// Bytes of those, each counted whole.
    pub(crate) fn firm_bytes(&self) -> u64 {
        self.counts.bytes - self.counts.droppable_bytes - self.counts.spillable_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.small.waiting.is_empty() && self.large.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.small.len() + self.large.len()
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

    /// Bytes in memory of those of them that may be dropped where they cannot.
    pub(crate) fn yielding_bytes(&self) -> u64 {
        self.counts.yielding_bytes
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
        self.note_expiry(&queued);
        self.counts.add(&queued);
        let topic = queued.message.topic();
        if self.goes_to_large(topic, is_large) {
            if let Some(count) = self.large_topics.get_mut(topic) {
                *count += 1;
            } else {
                let mut smaller = self.small.waiting.iter().rev();
                let before = smaller
                    .find(|small| !small.message.is_gone() && small.message.topic() == topic);
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
        let expires = queued.message.expires().map(|at| Reverse((at, queued.sequence)));
        let former = class.exchange(at, queued);
        self.counts.subtract(&former);
        self.expiring.extend(expires);
        self.clear_expiries(None);
        Ok(former)
    }

    /// All that wait, in the order in which they came.
    pub(crate) fn into_waiting(mut self) -> Vec<Queued> {
        self.leave_account();
        self.leave_disk_account();
        let mut all: Vec<Queued> = std::mem::take(&mut self.small.waiting).into();
        all.extend(std::mem::take(&mut self.large.waiting));
        all.retain(|queued| !queued.message.is_gone());
        all.sort_by_key(|queued| queued.sequence);
        all
    }

    /// Takes out what came by those shared subscriptions, in the order in which it came: all in one pass.
    pub(crate) fn take_groups(&mut self, is_left: impl Fn(&str) -> bool) -> Vec<Queued> {
        let goes = |queued: &Queued| queued.group.as_deref().is_some_and(&is_left);
        let mut taken = self.small.take_if(goes);
        taken.iter().for_each(|queued| self.left(queued));
        let large = self.large.take_if(goes);
        let mut after = HashMap::new();
        for queued in &large {
            if queued.after > 0 {
                after.insert(queued.message.topic().clone(), queued.after);
            }
            self.left_large(queued);
        }
        if !after.is_empty() {
            for next in &mut self.large.waiting {
                if let Some(after) = after.remove(next.message.topic()) {
                    next.after = after;
                }
            }
        }
        taken.extend(large);
        taken.sort_by_key(|queued| queued.sequence);
        taken
    }

    /// All that wait, each class in its order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queued> {
        let all = self.small.waiting.iter().chain(&self.large.waiting);
        all.filter(|queued| !queued.message.is_gone())
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
        // Where none may, it need not be looked for.
        let has_some = self.counts.droppable_bytes > 0;
        has_some.then(|| self.drop_oldest_if(|queued| queued.overflow.drops())).flatten()
    }

    /// Takes out the oldest message that may be dropped once there is no other room, or of those in memory.
    pub(crate) fn drop_yielding(&mut self, in_memory: bool) -> Option<Queued> {
        if self.counts.yielding == 0 {
            return None;
        }
        self.drop_oldest_if(|queued| {
            queued.overflow.yields() && (!in_memory || queued.message.memory().is_some())
        })
    }

    /// Takes out the oldest message that `may_go`.
    pub(crate) fn drop_oldest_if(&mut self, may_go: impl Fn(&Queued) -> bool) -> Option<Queued> {
        let may_go = |queued: &Queued| !queued.message.is_gone() && may_go(queued);
        let position = |class: &Class| class.waiting.iter().position(may_go);
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
        self.pass_on_order(&queued);
        self.left_large(&queued);
        Some(queued)
    }

    /// The next message of its topic now waits for whatever a large message waited for.
    fn pass_on_order(&mut self, queued: &Queued) {
        if queued.after > 0 {
            let topic = queued.message.topic();
            let mut others = self.large.waiting.iter_mut();
            let next = others.find(|next| !next.message.is_gone() && next.message.topic() == topic);
            if let Some(next) = next {
                next.after = queued.after;
            }
        }
    }

    // ---- expiry

    fn note_expiry(&mut self, queued: &Queued) {
        if self.is_empty() {
            self.expiring.clear();
        }
        let Some(at) = queued.message.expires() else { return };
        self.expiring.push(Reverse((at, queued.sequence)));
        self.clear_expiries(Some(queued));
    }

    /// Clears away the expiries of what has left or was replaced, once they are as many as those of what waits; one message may be
    /// about to.
    fn clear_expiries(&mut self, coming: Option<&Queued>) {
        if self.expiring.len() > 2 * self.len() + OLD_ENTRIES {
            let all = self.small.waiting.iter().chain(&self.large.waiting).chain(coming);
            let expiring = all.filter_map(|queued| {
                let at = queued.message.expires()?;
                Some(Reverse((at, queued.sequence)))
            });
            self.expiring = expiring.collect();
        }
    }

    /// When the first of what waits expires, at the earliest.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.expiring.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes out what has expired.
    pub(crate) fn lapse(&mut self, now: Instant) -> Vec<Queued> {
        let mut lapsed = Vec::new();
        while let Some(&Reverse((_, sequence))) =
            self.expiring.peek().filter(|Reverse((at, _))| *at <= now)
        {
            self.expiring.pop();
            let found = [false, true].into_iter().find_map(|is_large| {
                let waiting = &self.class(is_large).waiting;
                let at = waiting.binary_search_by_key(&sequence, |queued| queued.sequence).ok()?;
                // Another may have taken its place since.
                let is_over = waiting[at].message.expires().is_some_and(|at| at <= now);
                is_over.then_some((is_large, at))
            });
            if let Some((is_large, at)) = found {
                lapsed.push(self.lapse_at(is_large, at));
            }
        }
        self.small.tidy();
        self.large.tidy();
        lapsed
    }

    fn lapse_at(&mut self, is_large: bool, at: usize) -> Queued {
        let class = if is_large { &mut self.large } else { &mut self.small };
        let queued = class.lapse(at);
        if is_large {
            self.pass_on_order(&queued);
            self.left_large(&queued);
        } else {
            self.left(&queued);
        }
        queued
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

    /// Takes up the messages that are back in memory, in order, as long as less than `bytes_max` of the class are there, and
    /// advances to the next message on disk. Those on disk for which `is_over` is true are taken out, and given to it.
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

    /// The messages of a class to read from disk next, so that about `bytes_max` of it are in memory: none while a read is
    /// under way, or while half of that is there.
    pub(crate) fn want(
        &mut self,
        is_large: bool,
        bytes_max: u64,
        count_max: usize,
    ) -> Vec<Arc<Spilled>> {
        let class = if is_large { &mut self.large } else { &mut self.small };
        class.want(bytes_max, count_max)
    }

    /// The read of a class has come, or does not come.
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

impl Drop for Queue {
    fn drop(&mut self) {
        self.leave_account();
        self.leave_disk_account();
    }
}

impl Counts {
    fn add(&mut self, queued: &Queued) {
        let bytes = queued.message.charged();
        match &queued.message {
            Held::Memory(message) => {
                self.bytes += bytes;
                if let Some(account) = self.account.as_ref().filter(|_| queued.overflow.is_firm()) {
                    message.hold_for(account);
                }
            }
            Held::Disk(spilled) => {
                self.spilled += 1;
                self.spilled_bytes += bytes;
                self.disk_account.iter().for_each(|account| spilled.hold_for(account));
            }
            Held::Gone(_) => {}
        }
        self.droppable_bytes += droppable_bytes(queued);
        self.spillable_bytes += memory_bytes(queued, Overflow::spills);
        self.yielding += usize::from(is_yielding(queued));
        self.yielding_bytes += memory_bytes(queued, |overflow| overflow == Overflow::Spill);
    }

    fn subtract(&mut self, queued: &Queued) {
        let bytes = queued.message.charged();
        match &queued.message {
            Held::Memory(message) => {
                self.bytes -= bytes;
                if let Some(account) = self.account.as_ref().filter(|_| queued.overflow.is_firm()) {
                    message.release_for(account);
                }
            }
            Held::Disk(spilled) => {
                self.spilled -= 1;
                self.spilled_bytes -= bytes;
                self.disk_account.iter().for_each(|account| spilled.release_for(account));
            }
            Held::Gone(_) => {}
        }
        self.droppable_bytes -= droppable_bytes(queued);
        self.spillable_bytes -= memory_bytes(queued, Overflow::spills);
        self.yielding -= usize::from(is_yielding(queued));
        self.yielding_bytes -= memory_bytes(queued, |overflow| overflow == Overflow::Spill);
    }
}

fn droppable_bytes(queued: &Queued) -> u64 {
    if queued.overflow.drops() { queued.message.charged() } else { 0 }
}

fn is_yielding(queued: &Queued) -> bool {
    !queued.message.is_gone() && queued.overflow.yields()
}

/// Bytes of a message in memory whose policy `is_counted`.
fn memory_bytes(queued: &Queued, is_counted: impl Fn(Overflow) -> bool) -> u64 {
    let is_counted = is_counted(queued.overflow) && queued.message.memory().is_some();
    if is_counted { queued.message.charged() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        budget::Budget,
        message::{Body, MessageRef},
        spill::{Spilling, simulated::SimulatedSpill},
    };

    fn queued(topic: &str, overflow: Overflow, text: &str) -> Queued {
        expiring(topic, overflow, text, None)
    }

    fn expiring(topic: &str, overflow: Overflow, text: &str, expires: Option<Instant>) -> Queued {
        let qos = QoS::AtLeastOnce;
        let (topic, payload) = (topic.into(), Body::Read(text.as_bytes()));
        let message =
            MessageRef { qos, expires, ..MessageRef::new(&topic, payload, Instant::EPOCH) };
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

    /// A message expected in a queue.
    #[derive(Clone)]
    struct Modelled {
        number: u64,
        expires: Option<Instant>,
        is_large: bool,
        overflow: Overflow,
        group: Option<&'static str>,
        is_on_disk: bool,
    }

    /// A queue, its expected content in order, and where it may wait besides memory.
    struct Tried {
        queue: Queue,
        model: Vec<Modelled>,
        spilling: Spilling,
    }

    fn number_of(queued: &Queued) -> u64 {
        let payload = match &queued.message {
            Held::Memory(message) => message.payload.to_contiguous().to_vec(),
            Held::Disk(spilled) => spilled.payload_on_disk(),
            Held::Gone(_) => panic!("a message that is there"),
        };
        String::from_utf8(payload).unwrap().parse().unwrap()
    }

    impl Tried {
        fn new() -> Self {
            let mut spilling = Spilling::new(Budget::new(1 << 20));
            spilling.disk = Some(Arc::new(SimulatedSpill::new(1 << 20)));
            Self { queue: Queue::default(), model: Vec::new(), spilling }
        }

        fn add(&mut self, new: Modelled) {
            let topic = if new.is_large { "large" } else { "small" };
            let topic = format!("{topic}/{}", new.overflow.word());
            let text = new.number.to_string();
            let mut queued = expiring(&topic, new.overflow, &text, new.expires);
            queued.group = new.group.map(Arc::from);
            if new.overflow == Overflow::Latest {
                match self.queue.replace(queued) {
                    Ok(former) => {
                        let former = number_of(&former);
                        let at = self.model.iter().position(|m| m.number == former).unwrap();
                        self.model[at] = new;
                        return;
                    }
                    Err(new) => queued = new,
                }
            }
            self.queue.push(queued, new.is_large);
            self.model.push(new);
        }

        /// One that left, which was the first of those that might have.
        fn left(&mut self, queued: Option<Queued>, might: impl Fn(&Modelled) -> bool) {
            let expected = self.model.iter().position(might);
            let expected = expected.map(|at| self.model.remove(at).number);
            assert_eq!(queued.as_ref().map(number_of), expected);
        }

        fn pop(&mut self, is_large: bool) {
            let first = self.model.iter().find(|m| m.is_large == is_large);
            if first.is_none_or(|first| first.is_on_disk) {
                return;
            }
            let popped = if is_large { self.queue.pop_large() } else { self.queue.pop_small() };
            self.left(popped, |m| m.is_large == is_large);
        }

        fn evict(&mut self, is_large: bool) {
            let before: Vec<bool> = self.on_disk().collect();
            let spilling = &mut self.spilling;
            if let Some(evicted) = self.queue.evict(is_large, |message| spilling.write(message)) {
                assert!(evicted.unwrap() > 0);
                let after: Vec<bool> = self.on_disk().collect();
                let changed: Vec<usize> =
                    (0..after.len()).filter(|at| after[*at] != before[*at]).collect();
                assert_eq!(changed.len(), 1);
            }
            // In the order of the model, which knows no classes.
            for is_large in [false, true] {
                let class: Vec<bool> = self
                    .queue
                    .class(is_large)
                    .waiting
                    .iter()
                    .filter(|q| !q.message.is_gone())
                    .map(|q| matches!(q.message, Held::Disk(_)))
                    .collect();
                let modelled = self.model.iter_mut().filter(|m| m.is_large == is_large);
                modelled.zip(class).for_each(|(m, is_on_disk)| m.is_on_disk = is_on_disk);
            }
        }

        fn on_disk(&self) -> impl Iterator<Item = bool> {
            self.queue.iter().map(|queued| matches!(queued.message, Held::Disk(_)))
        }

        fn check(&self) {
            let Self { queue, model, .. } = self;
            assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
            for is_large in [false, true] {
                let waiting = queue.class(is_large).waiting.iter();
                let got: Vec<u64> =
                    waiting.filter(|q| !q.message.is_gone()).map(number_of).collect();
                let of_class = model.iter().filter(|m| m.is_large == is_large);
                assert_eq!(got, of_class.map(|m| m.number).collect::<Vec<_>>());
            }
            let in_memory = queue.iter().filter(|queued| queued.message.memory().is_some());
            let bytes: u64 = in_memory.map(|queued| queued.message.charged()).sum();
            assert_eq!(queue.bytes(), bytes);
            assert_eq!(queue.spilled(), self.on_disk().filter(|is_on_disk| *is_on_disk).count());
            let droppable = queue.iter().filter(|queued| queued.overflow.drops());
            let droppable: u64 = droppable.map(|queued| queued.message.charged()).sum();
            assert_eq!(queue.droppable_bytes(), droppable);
            let in_memory = queue.iter().filter(|queued| queued.message.memory().is_some());
            let yielding = in_memory.filter(|queued| queued.overflow == Overflow::Spill);
            let yielding: u64 = yielding.map(|queued| queued.message.charged()).sum();
            assert_eq!(queue.yielding_bytes(), yielding);
            let soonest = model.iter().filter_map(|m| m.expires).min();
            assert!(soonest.is_none_or(|at| queue.next_expiry().unwrap() <= at));
            let expiring = queue.expiring.len();
            assert!(expiring <= 2 * queue.len() + OLD_ENTRIES + 60, "{expiring} expiries");
            let places = queue.small.waiting.len() + queue.large.waiting.len();
            assert!(places <= 2 * queue.len() + 124, "{places} places of {}", queue.len());
        }
    }

    #[test]
    fn what_has_left_has_no_place_whatever_the_policy() {
        use rand::{RngExt, SeedableRng, rngs::SmallRng};
        const POLICIES: [Overflow; 7] = [
            Overflow::DropOldest,
            Overflow::DropNewest,
            Overflow::Latest,
            Overflow::Disconnect,
            Overflow::BlockPublisher,
            Overflow::Spill,
            Overflow::SpillDisconnect,
        ];
        for seed in 0..280 {
            println!("seed {seed}");
            let mut random = SmallRng::seed_from_u64(seed);
            // Each policy by itself, and all together.
            let policies =
                POLICIES.get(seed as usize % 8).map_or(&POLICIES[..], std::slice::from_ref);
            let mut tried = Tried::new();
            let mut now = Instant::EPOCH;
            for number in 0..300_u64 {
                now = now + std::time::Duration::from_millis(random.random_range(0..20));
                let most = if seed % 2 == 0 { 2_000 } else { 86_400_000 };
                let life = std::time::Duration::from_millis(random.random_range(0..most));
                tried.add(Modelled {
                    number,
                    expires: random.random_ratio(2, 3).then(|| now + life),
                    is_large: random.random_ratio(1, 3),
                    overflow: policies[random.random_range(0..policies.len())],
                    group: [None, Some("$share/g/#"), Some("$share/h/#")]
                        [random.random_range(0..3)],
                    is_on_disk: false,
                });
                if random.random_ratio(1, 4) {
                    tried.pop(random.random());
                }
                if random.random_ratio(1, 8) {
                    tried.evict(random.random());
                }
                if random.random_ratio(1, 16) {
                    let dropped = tried.queue.drop_oldest();
                    tried.left(dropped, |m| m.overflow.drops());
                }
                if random.random_ratio(1, 16) {
                    let dropped = tried.queue.drop_yielding(false);
                    tried.left(dropped, |m| m.overflow.yields());
                }
                if random.random_ratio(1, 50) {
                    let names = [&["$share/g/#"][..], &["$share/g/#", "$share/h/#"]];
                    let names = names[random.random_range(0..2)];
                    let is_left = |name: &str| names.contains(&name);
                    let taken = tried.queue.take_groups(is_left);
                    let left = |m: &Modelled| m.group.is_some_and(is_left);
                    let expected: Vec<u64> =
                        tried.model.extract_if(.., |m| left(m)).map(|m| m.number).collect();
                    assert_eq!(taken.iter().map(number_of).collect::<Vec<_>>(), expected);
                }
                if random.random_ratio(1, 3) {
                    let before = tried.model.len();
                    tried.model.retain(|m| m.expires.is_none_or(|at| at > now));
                    assert_eq!(tried.queue.lapse(now).len(), before - tried.model.len());
                }
                tried.check();
            }
        }
    }

    #[test]
    fn repeated_replacement_leaves_nothing_behind() {
        let mut queue = Queue::default();
        let day = std::time::Duration::from_secs(86_400);
        for number in 0..10_000 {
            let at = Instant::EPOCH + day + std::time::Duration::from_millis(number);
            let queued = expiring("t", Overflow::Latest, &number.to_string(), Some(at));
            if let Err(queued) = queue.replace(queued) {
                queue.push(queued, false);
            }
            assert!(queue.expiring.len() <= 2 + OLD_ENTRIES + 1);
        }
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn messages_taken_by_a_group_pass_the_order_on() {
        let of = |topic: &str, text: &str, group: Option<&str>| {
            let mut queued = queued(topic, Overflow::Disconnect, text);
            queued.group = group.map(Arc::from);
            queued
        };
        let mut queue = Queue::default();
        queue.push(of("t", "small", None), false);
        queue.push(of("t", "1", Some("g")), true);
        queue.push(of("u", "2", Some("g")), true);
        queue.push(of("t", "3", Some("h")), true);
        queue.push(of("t", "4", None), true);
        let taken = queue.take_groups(|name| name == "g");
        assert_eq!(taken.iter().map(number_of).collect::<Vec<_>>(), [1, 2]);
        assert!(queue.large().is_none(), "the small one came first");
        queue.pop_small();
        assert_eq!(queue.pop_large().as_ref().map(number_of), Some(3));
        assert_eq!(queue.pop_large().as_ref().map(number_of), Some(4));
        assert!(queue.is_empty() && queue.large_topics.is_empty());
    }

    #[test]
    fn messages_without_a_place_are_not_replaced() {
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
