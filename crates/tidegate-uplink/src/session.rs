//! A session of the sending end: from the start of an uplink, or the loss of its connections to this node's broker, to the next.
//!
//! ```text
//!  session of `critical` ─▶ take ─▶ Critical ─▶ poll_part ──┐
//!  session of `topics` ───▶ take ─▶ Outgoing ─▶ poll_batch ─┴─▶ link ─▶ the other node
//!        ▲ take_acknowledged           handle_acknowledged ◀───┘
//! ```
//!
//! A message stays in its session at the broker until the other node says that it published it: messages wait there while the link is
//! down or slow, on the terms of this node's broker.
//!
//! The caller gives it each event by a `handle_*` or [`UplinkSession::take`]. Then it takes, in this order, until there are no more:
//! [commands](UplinkSession::poll_command); [parts](UplinkSession::poll_part) and [batches](UplinkSession::poll_batch), as long as the
//! link has room; [acknowledgements](UplinkSession::take_acknowledged). Then it waits for the next event, until
//! [`UplinkSession::poll_timeout`] at the longest.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_compress::Message;
use tidegate_message::{Backoff, Instant, topic_matches};
use tidegate_wire::{
    CriticalPart, SensorBatch, Share, UplinkAck, UplinkOpen, UplinkReady,
    mqtt::{
        PacketId, Publish,
        path::{Direction, Stamps},
    },
};

use crate::{
    critical::Critical,
    hand_over::{self, HandOver},
    message::{self, Attributes},
    outgoing::{Outgoing, OutgoingConfig, ProtocolError, TooLong},
};

/// How long after its sessions were there the marks follow that end a hand-over: messages that were on their way between the
/// broker's threads before then are in front of them. And how long until they follow again, twice as long each time, if they did
/// not come: they may have found no room.
const MARKS_AFTER: Duration = Duration::from_secs(1);
const MARKS_WAIT: Duration = Duration::from_secs(60);

/// The settings of a sender.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The uplink's name.
    pub name: String,
    /// This node's name among those that a message passed.
    pub node: Arc<str>,
    /// Filters of the topics that it carries.
    pub topics: Vec<String>,
    /// Filters of the topics whose messages travel at once.
    pub critical: Vec<String>,
    /// Bytes of critical messages a second at most, and at once.
    pub critical_bytes_per_second: u64,
    /// How batches are made, and how much is under way.
    pub outgoing: OutgoingConfig,
    /// Whether messages are published with their names.
    pub names_messages: bool,
    /// Longest wait between two tries to reach the other node; the first is a twentieth of it.
    pub retry_max: Duration,
}

impl SenderConfig {
    /// The waits between tries to reach the other node.
    pub fn backoff(&self) -> Backoff {
        Backoff::new(self.retry_max / 20, self.retry_max)
    }
}

/// One of the two sessions of this node's broker that a sender reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// That of all topics, whose messages travel in batches.
    Batched,
    /// That of critical topics, whose messages travel at once.
    Critical,
}

impl Feed {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Batched, Self::Critical];
}

/// The subscriptions that a session of an uplink begins with, by what its sessions at the broker had from before.
#[derive(Clone, Debug)]
pub struct Subscriptions {
    wanted: [Vec<String>; 2],
    stale: [Vec<String>; 2],
    /// Whether messages from before were parted between the feeds by other filters.
    is_parted_anew: bool,
}

impl Subscriptions {
    /// `had` are the filters that the two sessions are subscribed to, in the order of [`Feed::ALL`]; none of one that is not there.
    pub fn new(config: &SenderConfig, had: &[Vec<Arc<str>>; 2]) -> Self {
        let mark = format!("{}+", hand_over::prefix(&config.name));
        // A hand-over that was not over when the session before ended starts over.
        let is_marked = had.iter().flatten().any(|filter| **filter == *mark);
        let was_critical: BTreeSet<&str> = had[1].iter().map(|filter| &**filter).collect();
        let is_critical = config.critical.iter().map(|filter| &**filter).collect();
        let is_parted_anew = is_marked || was_critical != is_critical;
        let wanted = [&config.topics, &config.critical];
        let stale = [0, 1].map(|feed: usize| {
            let is_stale = |filter: &&Arc<str>| {
                ***filter != *mark && !wanted[feed].iter().any(|one| **one == ***filter)
            };
            had[feed].iter().filter(is_stale).map(|filter| (**filter).into()).collect()
        });
        let wanted = wanted.map(|filters| {
            let mark = is_parted_anew.then_some(&mark);
            mark.into_iter().chain(filters).cloned().collect()
        });
        Self { wanted, stale, is_parted_anew }
    }

    /// The filters that a feed is to be subscribed to before the session begins.
    pub fn wanted(&self, feed: Feed) -> &[String] {
        &self.wanted[feed as usize]
    }
}

/// Something for the caller to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Reach the other node and open the uplink by this record; answered by [`UplinkSession::handle_connected`] or
    /// [`UplinkSession::handle_down`].
    Dial(UplinkOpen),
    /// Publish a message of QoS 1 through the connection of a feed. Whether it was taken is seen by whether it comes.
    Mark {
        /// The feed.
        through: Feed,
        /// The topic.
        topic: String,
        /// The payload.
        payload: [u8; 8],
    },
    /// Give up subscriptions of a feed.
    Unsubscribe {
        /// The feed.
        feed: Feed,
        /// Their filters.
        filters: Vec<String>,
    },
    /// End the session of critical messages: no topic is critical, and all that it had from before was carried.
    EndCritical,
}

/// The outcome for a message of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is carried, and acknowledged once the other node has published it.
    Carried,
    /// It is not for this feed to carry: the other one has it, its topic is no longer carried, or it is a mark.
    Passed,
    /// It has left this node before, or came to it by way of others: the other node has it already.
    Looped,
    /// It cannot be carried.
    TooLong(TooLong),
}

/// Items that the link has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Parts of critical messages.
    pub lane: bool,
    /// Batches.
    pub bulk: bool,
}

/// Counts of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches sent.
    pub batches: u64,
    /// Messages in them; those that were sent again each time.
    pub messages: u64,
    /// Bytes of these messages: topics, attributes, payloads.
    pub message_bytes: u64,
    /// Bytes of the batches.
    pub bytes: u64,
    /// Critical messages sent.
    pub critical: u64,
    /// Times that the codec's state started over.
    pub epochs: u64,
    /// Messages that were sent in full.
    pub definitions: u64,
    /// Topics that the codec forgot for want of room.
    pub evictions: u64,
    /// Messages whose time was over before they were sent.
    pub expired: u64,
    /// Bytes a second that batches may use in addition to the frames of cameras; 0 without limit.
    pub allowed: u64,
    /// Bytes of messages that are read and not acknowledged.
    pub held_bytes: u64,
}

/// Where an uplink is between two links.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Waiting { until: Instant },
    Dialling,
    Up { since: Instant },
}

/// The sending half of an uplink.
#[derive(Debug)]
pub struct UplinkSession {
    config: SenderConfig,
    /// Names this session: the other node distinguishes a restart from a broken link by it.
    number: u64,
    stamps: Stamps,
    outgoing: Outgoing,
    critical: Critical,
    /// Not where no topic is critical, once all that it had from before was carried.
    has_critical: bool,
    /// By feed.
    hand_overs: [HandOver; 2],
    mark_prefix: String,
    /// Whether the feeds are subscribed to marks.
    is_marked: bool,
    /// The numbers that messages had come to when the last mark was read, by feed.
    handed_over: Option<[u64; 2]>,
    /// When marks follow next, while there is a hand-over, and how long after those the next ones do.
    marks_at: Instant,
    marks_wait: Duration,
    /// Whether a feed is of an earlier start, and may have subscriptions that are no longer wanted.
    checks_topics: bool,
    phase: Phase,
    backoff: Backoff,
    commands: VecDeque<Command>,
    /// To be acknowledged, by feed.
    owed: [Vec<PacketId>; 2],
    attributes: Vec<u8>,
}

impl UplinkSession {
    /// Begins when both feeds are subscribed to as `subscriptions` want; `was_there` says of each whether its session at the broker
    /// was there before. `number` is another for each session, and `seed` should be hard to guess.
    pub fn new(
        now: Instant,
        config: SenderConfig,
        subscriptions: Subscriptions,
        was_there: [bool; 2],
        number: u64,
        seed: u64,
    ) -> Self {
        // 0 stands for none.
        let number = number.max(1);
        let Subscriptions { stale, is_parted_anew, .. } = subscriptions;
        let hand_over = |is_needed: bool| match is_needed {
            true => HandOver::begin(number),
            false => HandOver::default(),
        };
        let stale = Feed::ALL.into_iter().zip(stale).filter(|(_, filters)| !filters.is_empty());
        Self {
            number,
            stamps: Stamps::new(&config.node),
            outgoing: Outgoing::new(config.outgoing.clone(), seed),
            critical: Critical::new(now, config.critical_bytes_per_second.max(1)),
            has_critical: true,
            hand_overs: [
                // Without critical topics the batched feed carries all that it has anyway.
                hand_over(was_there[0] && is_parted_anew && !config.critical.is_empty()),
                hand_over(was_there[1] && is_parted_anew),
            ],
            mark_prefix: hand_over::prefix(&config.name),
            is_marked: is_parted_anew,
            handed_over: None,
            marks_at: now + MARKS_AFTER,
            marks_wait: MARKS_WAIT,
            checks_topics: was_there != [false; 2],
            phase: Phase::Waiting { until: now },
            backoff: config.backoff(),
            commands: stale.map(|(feed, filters)| Command::Unsubscribe { feed, filters }).collect(),
            owed: Default::default(),
            attributes: Vec::new(),
            config,
        }
    }

    /// Whether there is a link that carries.
    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    /// Whether more messages of a feed should be read; until then they wait in the broker.
    pub fn wants(&self, feed: Feed) -> bool {
        match feed {
            Feed::Batched => !self.outgoing.is_full(),
            Feed::Critical => !self.critical.is_full(),
        }
    }

    /// A feed has a message.
    pub fn take(&mut self, now: Instant, feed: Feed, publish: &Publish<'_>) -> Taken {
        let taken = self.consider(now, feed, publish);
        if taken != Taken::Carried {
            self.owed[feed as usize].extend(publish.packet_id);
        }
        taken
    }

    fn consider(&mut self, now: Instant, feed: Feed, publish: &Publish<'_>) -> Taken {
        if let Some(size) = publish.topic.strip_prefix(&*self.mark_prefix) {
            self.hand_overs[feed as usize].came(size, publish.payload);
            return Taken::Passed;
        }
        if !self.carries(feed, publish) {
            return Taken::Passed;
        }
        if !message::passes(&self.stamps, Direction::Out, &publish.properties) {
            return Taken::Looped;
        }
        self.attributes.clear();
        Attributes::put(publish, &mut self.attributes);
        let (topic, attributes) = (publish.topic.as_bytes(), &self.attributes[..]);
        let message = Message { topic, attributes, payload: publish.payload };
        let taken = match feed {
            Feed::Batched => self.outgoing.take(now, message, publish.packet_id),
            Feed::Critical => Outgoing::check(&message)
                .map(|()| self.critical.take(now, message, publish.packet_id)),
        };
        taken.map_or_else(Taken::TooLong, |()| Taken::Carried)
    }

    /// Whether a message is for its feed to carry.
    fn carries(&self, feed: Feed, publish: &Publish<'_>) -> bool {
        let SenderConfig { critical, topics, .. } = &self.config;
        let is_of =
            |filters: &[String]| filters.iter().any(|one| topic_matches(one, publish.topic));
        // Of QoS 0 a session has nothing from before.
        let is_from_before =
            publish.packet_id.is_some() && !self.hand_overs[feed as usize].is_over();
        if is_from_before {
            // The other feed may have left to this one messages that were its own by other filters.
            return is_of(critical) || is_of(topics);
        }
        match feed {
            // The other feed has it, or it is not wanted any more.
            Feed::Batched => !is_of(critical) && (!self.checks_topics || is_of(topics)),
            Feed::Critical => !self.checks_topics || is_of(critical),
        }
    }

    /// The other node was reached, and says what of this session it has. `seed` should be hard to guess.
    ///
    /// # Errors
    /// [`ProtocolError`]: the link must end, and [`UplinkSession::handle_down`] follows.
    pub fn handle_connected(
        &mut self,
        now: Instant,
        ready: &UplinkReady,
        seed: u64,
    ) -> Result<(), ProtocolError> {
        self.outgoing.connected(now, ready, seed)?;
        self.critical.connected(ready.critical_next)?;
        self.phase = Phase::Up { since: now };
        Ok(())
    }

    /// The other node says what it has published.
    ///
    /// # Errors
    /// As [`UplinkSession::handle_connected`].
    pub fn handle_acknowledged(
        &mut self,
        now: Instant,
        ack: &UplinkAck,
    ) -> Result<(), ProtocolError> {
        let [batched, critical] = &mut self.owed;
        let arrived = self.outgoing.arrived(ack.batches)?;
        self.outgoing.acknowledge(ack.next, |id| batched.push(id))?;
        self.critical.acknowledge(ack.critical_next, |id| critical.push(id))?;
        self.critical.batches(arrived, self.outgoing.waits_for_link(now));
        Ok(())
    }

    /// The other node says what batches may use of the medium.
    pub fn handle_share(&mut self, now: Instant, share: Share) {
        self.outgoing.share(now, share);
    }

    /// The other node could not be reached, or the link is gone.
    pub fn handle_down(&mut self, now: Instant) {
        // A link that held for a while has earned a quick second try.
        if let Phase::Up { since } = self.phase
            && now.since(since) > self.config.retry_max
        {
            self.backoff.reset();
        }
        self.outgoing.disconnected();
        self.critical.disconnected();
        self.phase = Phase::Waiting { until: now + self.backoff.next_wait() };
    }

    /// The next command, if there is one.
    pub fn poll_command(&mut self, now: Instant) -> Option<Command> {
        if self.commands.is_empty() {
            self.end_critical();
            self.mark(now);
            self.dial(now);
        }
        self.commands.pop_front()
    }

    fn dial(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Waiting { until } if until <= now) {
            return;
        }
        self.phase = Phase::Dialling;
        let SenderConfig { name, node, outgoing, names_messages, .. } = &self.config;
        self.commands.push_back(Command::Dial(UplinkOpen {
            name: name.clone(),
            life: self.number,
            topics_max: outgoing.encoder.topics_max as u64,
            state_bytes_max: outgoing.encoder.state_bytes_max,
            names_messages: *names_messages,
            node: node.to_string(),
        }));
    }

    /// The next critical message or part of one, if it may go now; to be taken only where the link has room for it.
    pub fn poll_part(&mut self, now: Instant) -> Option<CriticalPart> {
        self.critical.poll_part(now)
    }

    /// The next batch, if it may go now; to be taken only where the link has room for it.
    pub fn poll_batch(&mut self, now: Instant) -> Option<(SensorBatch, Bytes)> {
        self.outgoing.poll_batch(now)
    }

    /// Calls `acknowledge` for each message of a feed that is owed it, in order.
    pub fn take_acknowledged(&mut self, feed: Feed, mut acknowledge: impl FnMut(PacketId)) {
        self.owed[feed as usize].drain(..).for_each(&mut acknowledge);
        match feed {
            Feed::Batched => self.outgoing.expired(acknowledge),
            Feed::Critical => self.critical.expired(acknowledge),
        }
    }

    /// When to be called again if nothing else happens; items for which the link has no room wait for that room, and not for a time.
    pub fn poll_timeout(&self, blocked: Blocked) -> Option<Instant> {
        let batches = self.outgoing.poll_timeout().filter(|_| !blocked.bulk);
        let parts = self.critical.poll_timeout().filter(|_| !blocked.lane);
        let marks = self.waits_for_marks().then_some(self.marks_at);
        let dial = match self.phase {
            Phase::Waiting { until } => Some(until),
            Phase::Dialling | Phase::Up { .. } => None,
        };
        [batches, parts, marks, dial].into_iter().flatten().min()
    }

    /// Counts of what it did.
    pub fn counts(&self, now: Instant) -> Counts {
        let (sent, codec) = (self.outgoing.sent(), self.outgoing.codec());
        Counts {
            batches: sent.batches,
            messages: sent.messages,
            message_bytes: sent.message_bytes,
            bytes: sent.bytes,
            critical: self.critical.sent(),
            epochs: sent.epochs,
            definitions: codec.definitions,
            evictions: codec.evictions,
            expired: sent.expired + self.critical.expired_messages(),
            allowed: self.outgoing.allowed(now).unwrap_or(0),
            held_bytes: (self.outgoing.held_bytes() + self.critical.held_bytes()) as u64,
        }
    }

    fn is_handed_over(&self) -> bool {
        self.hand_overs.iter().all(HandOver::is_over)
    }

    fn waits_for_marks(&self) -> bool {
        self.has_critical && !self.is_handed_over()
    }

    /// Ends the session of critical messages if no topic is critical and all that it had from before was carried.
    fn end_critical(&mut self) {
        if self.has_critical
            && self.config.critical.is_empty()
            && self.hand_overs[1].is_over()
            && self.critical.held_bytes() == 0
        {
            self.has_critical = false;
            self.commands.push_back(Command::EndCritical);
        }
    }

    /// Has marks follow what sessions have from before, if it is time.
    fn mark(&mut self, now: Instant) {
        if self.is_handed_over() {
            return self.end_hand_over();
        }
        if !self.waits_for_marks() || now < self.marks_at {
            return;
        }
        self.marks_at = now + self.marks_wait;
        // Those that came before wait as well.
        self.marks_wait *= 2;
        // Through each other's connection: none is sent what it published itself.
        for (hand_over, through) in self.hand_overs.iter().zip([Feed::Critical, Feed::Batched]) {
            for (size, payload) in hand_over.marks() {
                let topic = format!("{}{size}", self.mark_prefix);
                self.commands.push_back(Command::Mark { through, topic, payload });
            }
        }
    }

    /// Lets a later session see that the hand-over is over, once all that was read by then is acknowledged: the rest comes
    /// again from the feed that has it now.
    fn end_hand_over(&mut self) {
        if !self.is_marked {
            return;
        }
        let ends = || [self.outgoing.end(), self.critical.end()];
        let [batched, critical] = *self.handed_over.get_or_insert_with(ends);
        if self.outgoing.first() < batched || self.critical.first() < critical {
            return;
        }
        self.is_marked = false;
        let feeds =
            Feed::ALL.into_iter().filter(|feed| *feed == Feed::Batched || self.has_critical);
        self.commands.extend(feeds.map(|feed| Command::Unsubscribe {
            feed,
            filters: vec![format!("{}+", self.mark_prefix)],
        }));
    }
}

#[cfg(test)]
mod tests;
