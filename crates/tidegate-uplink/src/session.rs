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
        PacketId, Publish, ReasonCode,
        path::{Direction, Stamps},
    },
};

use crate::{
    critical::Critical,
    hand_over::{self, HandOver},
    message::{self, Attributes},
    origin::Origin,
    outgoing::{Outgoing, OutgoingConfig, ProtocolError, TooLong},
    topics::{Following, NotGranted, Request, Topics},
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
    /// Filters of the topics that it carries at first; [`UplinkSession::set_topics`] changes them.
    pub topics: Topics,
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
    /// How the other node takes part, if it is a member of the same fabric.
    pub member: Option<Member>,
}

/// A member of the fabric as the other node: it says itself which topics it wants, and each message says by what it is known again
/// ([`Origin`]). Messages that wait by topics that it no longer wants are carried as well, critical ones aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// How long a link stays on which nothing is carried. The next message takes another one.
    pub idle_max: Duration,
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
    /// Of the critical feed those that are no longer wanted, of the batched one all but marks.
    had: [Vec<Arc<str>>; 2],
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
        let is_critical: BTreeSet<&str> = config.critical.iter().map(|filter| &**filter).collect();
        // No mark would come to a session of another node. The caller sees to it that nothing waits where other topics are critical.
        let is_parted_anew = config.member.is_none() && (is_marked || was_critical != is_critical);
        let [batched, critical] = had;
        let unmarked = |filter: &&Arc<str>| ***filter != *mark;
        let is_stale = |filter: &&Arc<str>| !is_critical.contains(&***filter);
        let had = [
            batched.iter().filter(unmarked).cloned().collect(),
            critical.iter().filter(unmarked).filter(is_stale).cloned().collect(),
        ];
        // Topics follow once the session has begun, for they may change.
        let wanted = [&[][..], &config.critical].map(|filters| {
            let mark = is_parted_anew.then_some(&mark);
            mark.into_iter().chain(filters).cloned().collect()
        });
        Self { wanted, had, is_parted_anew }
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
    /// Have a feed subscribe; answered by [`UplinkSession::handle_answered`].
    Subscribe {
        /// The feed.
        feed: Feed,
        /// The filters.
        filters: Vec<Arc<str>>,
    },
    /// Give up subscriptions of a feed; answered as [`Command::Subscribe`], in their order.
    Unsubscribe {
        /// The feed.
        feed: Feed,
        /// Their filters.
        filters: Vec<Arc<str>>,
    },
    /// Close the link, for there is nothing to carry: [`Command::Dial`] follows once there is.
    Rest,
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
    topics: Following,
    /// For each request of the batched feed that is not answered, whether it is of `topics`.
    requests: VecDeque<bool>,
    /// Whether a feed may have messages by subscriptions that are no longer wanted.
    checks_topics: bool,
    phase: Phase,
    backoff: Backoff,
    /// Whether the other node can be reached, as far as the caller knows.
    is_reachable: bool,
    /// Whether the last link, or the last try for one, has failed.
    is_failing: bool,
    /// When something was carried last.
    busy_at: Instant,
    commands: VecDeque<Command>,
    /// To be acknowledged, by feed.
    owed: [Vec<PacketId>; 2],
    attributes: Vec<u8>,
}

impl UplinkSession {
    /// Begins when both feeds are subscribed to as `subscriptions` want, and asks for the topics then; `was_there` says of each whether its session at the broker
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
        let Subscriptions { had: [had, stale], is_parted_anew, .. } = subscriptions;
        let had = had.into_iter().filter(|_| was_there[0]);
        let hand_over = |is_needed: bool| match is_needed {
            true => HandOver::begin(number),
            false => HandOver::default(),
        };
        // Of a member's messages only critical ones are looked at.
        let matches_topics = config.member.is_none() || !config.critical.is_empty();
        let feed = Feed::Critical;
        let stale = (!stale.is_empty()).then_some(Command::Unsubscribe { feed, filters: stale });
        Self {
            number,
            stamps: Stamps::new(&config.node),
            outgoing: Outgoing::new(config.outgoing.clone(), seed),
            critical: Critical::new(
                now,
                config.critical_bytes_per_second.max(1),
                config.outgoing.has_origins,
            ),
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
            is_reachable: true,
            is_failing: false,
            busy_at: now,
            commands: stale.into_iter().collect(),
            topics: Following::new(had, &config.topics, matches_topics),
            requests: VecDeque::new(),
            owed: Default::default(),
            attributes: Vec::new(),
            config,
        }
    }

    /// These topics are carried from now on, and no others; those that are critical stay so. Messages that wait by others alone are not
    /// carried.
    pub fn set_topics(&mut self, topics: Topics) {
        self.topics.set(&topics);
        self.config.topics = topics;
        self.checks_topics = true;
    }

    /// The generation of the last topics that this node's broker has subscriptions for: what matches them is carried. 0 before the
    /// first.
    pub fn held_topics(&self) -> u64 {
        self.topics.held()
    }

    /// This node's broker has answered the first of the feed's requests that it had not, each filter by a reason. Gives what it did not
    /// grant: that is asked for again, for as long as it is wanted.
    pub fn handle_answered(
        &mut self,
        now: Instant,
        feed: Feed,
        reasons: &[ReasonCode],
    ) -> Option<NotGranted> {
        // The critical feed only gives up.
        if feed == Feed::Critical || !self.requests.pop_front()? {
            return None;
        }
        self.topics.answered(now, reasons)
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

    /// A feed has a message, which this node's broker `received` then; `group` is the shared subscription that it came by, if it did by one.
    pub fn take(
        &mut self,
        now: Instant,
        feed: Feed,
        publish: &Publish<'_>,
        received: Instant,
        group: Option<&str>,
    ) -> Taken {
        let taken = self.consider(now, feed, publish, received, group);
        if taken != Taken::Carried {
            self.owed[feed as usize].extend(publish.packet_id);
        }
        taken
    }

    fn consider(
        &mut self,
        now: Instant,
        feed: Feed,
        publish: &Publish<'_>,
        received: Instant,
        group: Option<&str>,
    ) -> Taken {
        if let Some(size) = publish.topic.strip_prefix(&*self.mark_prefix) {
            self.hand_overs[feed as usize].came(size, publish.payload);
            return Taken::Passed;
        }
        // Other nodes than members know of no groups; their uplinks have no shared subscriptions.
        let group = group.filter(|_| self.config.member.is_some());
        // The broker has chosen this member for one of a group, and nothing else carries it: critical ones and those that were here before
        // as well.
        if group.is_none() {
            if !self.carries(feed, publish) {
                return Taken::Passed;
            }
            if !message::passes(&self.stamps, Direction::Out, &publish.properties) {
                return Taken::Looped;
            }
        }
        self.attributes.clear();
        Attributes::put(publish, group, &mut self.attributes);
        let (topic, attributes) = (publish.topic.as_bytes(), &self.attributes[..]);
        let message = Message { topic, attributes, payload: publish.payload };
        let origin = publish.packet_id.map(|id| Origin { received, id });
        self.busy_at = now;
        let taken = match feed {
            Feed::Batched => self.outgoing.take(now, message, origin),
            Feed::Critical => {
                Outgoing::check(&message).map(|()| self.critical.take(now, message, origin))
            }
        };
        taken.map_or_else(Taken::TooLong, |()| Taken::Carried)
    }

    /// Whether a message is for its feed to carry.
    fn carries(&self, feed: Feed, publish: &Publish<'_>) -> bool {
        let SenderConfig { critical, member, .. } = &self.config;
        let is_critical = || critical.iter().any(|filter| topic_matches(filter, publish.topic));
        let is_wanted = || self.topics.matches(publish.topic);
        if member.is_some() {
            return match feed {
                // The other feed has it.
                Feed::Batched => !is_critical(),
                Feed::Critical => is_critical() && is_wanted(),
            };
        }
        // Of QoS 0 a session has nothing from before.
        let is_from_before =
            publish.packet_id.is_some() && !self.hand_overs[feed as usize].is_over();
        if is_from_before {
            // The other feed may have left to this one messages that were its own by other filters.
            return is_critical() || is_wanted();
        }
        match feed {
            // The other feed has it, or it is not wanted any more.
            Feed::Batched => !is_critical() && (!self.checks_topics || is_wanted()),
            Feed::Critical => !self.checks_topics || is_critical(),
        }
    }

    /// Whether a node that says this has lost what it knew of this session, of which it had acknowledged messages: it began anew, and may have
    /// lost them as well.
    pub fn is_forgotten(&self, ready: &UplinkReady) -> bool {
        let had = self.outgoing.first() > 0 || self.critical.first() > 0;
        had && ready.next.is_none() && ready.critical_next.is_none()
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
        self.is_failing = false;
        self.busy_at = now;
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
        self.busy_at = now;
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
        self.is_failing = true;
        self.phase = Phase::Waiting { until: now + self.backoff.next_wait() };
    }

    /// Whether messages wait for no one knows how long: the other node cannot be reached, or was not when it was dialled for them last.
    pub fn is_away(&self) -> bool {
        !self.is_up() && (!self.is_reachable || self.is_failing && self.has_work())
    }

    /// Whether the other node can be reached now, as far as the caller knows; from the start it can. It is not dialled while it cannot,
    /// and at once when it can again. A link that there is stays.
    pub fn set_reachable(&mut self, now: Instant, is_reachable: bool) {
        if is_reachable && !self.is_reachable {
            self.backoff.reset();
            if let Phase::Waiting { until } = &mut self.phase {
                *until = now.min(*until);
            }
        }
        self.is_reachable = is_reachable;
    }

    /// The next command, if there is one.
    pub fn poll_command(&mut self, now: Instant) -> Option<Command> {
        if self.commands.is_empty() {
            self.end_critical();
            self.mark(now);
            self.follow_topics(now);
            self.rest(now);
            self.dial(now);
        }
        self.commands.pop_front()
    }

    fn follow_topics(&mut self, now: Instant) {
        let feed = Feed::Batched;
        let Some(request) = self.topics.poll(now) else { return };
        self.requests.push_back(true);
        self.commands.push_back(match request {
            Request::Subscribe(filters) => Command::Subscribe { feed, filters },
            Request::Unsubscribe(filters) => Command::Unsubscribe { feed, filters },
        });
    }

    /// Whether a message is held: there is something for a link.
    fn has_work(&self) -> bool {
        self.outgoing.first() < self.outgoing.end() || self.critical.first() < self.critical.end()
    }

    /// When the link is closed if nothing else happens.
    fn rests_at(&self) -> Option<Instant> {
        let Member { idle_max } = self.config.member?;
        (self.is_up() && !self.has_work()).then_some(self.busy_at + idle_max)
    }

    fn rest(&mut self, now: Instant) {
        if self.rests_at().is_none_or(|at| now < at) {
            return;
        }
        self.outgoing.rest();
        self.critical.rest();
        self.backoff.reset();
        self.phase = Phase::Waiting { until: now };
        self.commands.push_back(Command::Rest);
    }

    /// When the other node is to be dialled, if it is.
    fn dials_at(&self) -> Option<Instant> {
        let Phase::Waiting { until } = self.phase else { return None };
        let is_needed = self.config.member.is_none() || self.has_work();
        (self.is_reachable && is_needed).then_some(until)
    }

    fn dial(&mut self, now: Instant) {
        if self.dials_at().is_none_or(|at| now < at) {
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
        let topics = self.topics.poll_timeout();
        let (dials, rests) = (self.dials_at(), self.rests_at());
        [batches, parts, marks, dials, rests, topics].into_iter().flatten().min()
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
        self.requests.push_back(false);
        let feeds =
            Feed::ALL.into_iter().filter(|feed| *feed == Feed::Batched || self.has_critical);
        self.commands.extend(feeds.map(|feed| Command::Unsubscribe {
            feed,
            filters: vec![format!("{}+", self.mark_prefix).into()],
        }));
    }
}

#[cfg(test)]
mod tests;
