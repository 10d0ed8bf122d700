//! The sending end: a task that reads two sessions of this node's broker and writes to a link.
//!
//! ```text
//!  session of `critical` ─▶ Critical ─▶ critical lane ─┐
//!  session of `topics` ──▶ Outgoing ─▶ bulk ───────────┴─▶ link ─▶ the other node
//!        ▲ acknowledged                     UplinkAck ◀─────┘
//! ```
//!
//! A message stays in its session until the other node says that it published it: messages wait there while the link is down or
//! slow, on the terms of this node's broker.

use std::{
    collections::BTreeSet,
    num::NonZeroU16,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use tidegate_compress::Message;
use tidegate_identity::pki::{Credentials, Revocations, revocation::Revoked};
use tidegate_link::link::{self, Incoming, Link, LinkError, LinkSettings};
use tidegate_message::{Backoff, Code, Identity, IdentityKind, Instant, LogLimiter, topic_matches};
use tidegate_process::clock;
use tidegate_server::{
    bridge::{Direction, Stamps},
    local::{Local, LocalError, LocalOptions},
    server::Connector,
};
use tidegate_wire::{
    BootId, CriticalPart, Features, Hello, MINOR, Record, Role, SensorBatch, Share, UplinkAck,
    UplinkOpen, UplinkReady,
    mqtt::{self, PacketId, Publish, PublishHead, QoS},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Sleep,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Counters, UplinkSettings,
    critical::Critical,
    hand_over::{self, HandOver},
    message::{self, Attributes},
    outgoing::{Outgoing, ProtocolError, TooLong},
};

/// Longest wait for the other node's answers when a link begins.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Longest packet that is read, the protocol's: a message too long to be carried is named and counted, which the broker would not
/// do.
const PACKET_BYTES_MAX: u32 = mqtt::PACKET_BYTES_MAX;
/// Messages under way from the broker.
const RECEIVE_MAXIMUM: NonZeroU16 = NonZeroU16::MAX;
/// How often it says what it did, on [`super::state_topic`].
const SAYS_EVERY: Duration = Duration::from_secs(5);
/// How long after its sessions were there the marks follow that end a hand-over: messages that were on their way between the
/// broker's threads before then are in front of them. And how long until they follow again, twice as long each time, if they did
/// not come: they may
/// have found no room.
const MARKS_AFTER: Duration = Duration::from_secs(1);
const MARKS_WAIT: Duration = Duration::from_secs(60);
/// Batches and critical parts that wait for the link.
const BULK_WAITING_MAX: usize = 2;
const LANE_WAITING_MAX: usize = 16;
/// From one line about messages that come round to the next: where two nodes have uplinks to each other it is of all of them.
pub(super) const LOOPS_EVERY: Duration = Duration::from_secs(3600);

/// The parts of the task.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) settings: UplinkSettings,
    /// This node's name among those that a message passed, and the value that carries it.
    pub(super) node: Arc<str>,
    pub(super) stamps: Stamps,
    pub(super) connector: Connector,
    pub(super) credentials: Credentials,
    pub(super) link: LinkSettings,
    pub(super) counters: Arc<Counters>,
    /// Whether its sessions are there: messages published from then on are carried.
    pub(super) subscribed: watch::Sender<bool>,
    pub(super) stop: CancellationToken,
}

/// Why an uplink has no link.
#[derive(Debug, thiserror::Error)]
enum Down {
    #[error("the host of {to} is not known")]
    Resolve {
        to: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the link cannot be made")]
    Link(#[from] LinkError),
    #[error("the other node refuses the uplink ({code}): {text}")]
    Refused { code: String, text: String },
    #[error("the other node did not answer in {} s", GREETING_MAX.as_secs())]
    Silent,
    #[error("the other node answered with {0}, which is not expected here")]
    Unexpected(&'static str),
    #[error("the other node acknowledged or expects messages that were never sent")]
    Protocol(#[from] ProtocolError),
}

/// Where an uplink is between two links.
enum Phase {
    Waiting(Pin<Box<Sleep>>),
    Dialling(AbortOnDropHandle<Result<(Link, UplinkReady), Down>>),
    Up(Up),
}

/// A link that carries.
struct Up {
    link: Link,
    lane: mpsc::Sender<CriticalPart>,
    bulk: mpsc::Sender<(SensorBatch, Bytes)>,
    /// Its writers, and what ends it.
    _tasks: JoinSet<()>,
    since: Instant,
}

/// Items that the link has no room for.
#[derive(Clone, Copy, Default)]
struct Blocked {
    lane: bool,
    bulk: bool,
}

/// An event of a phase.
enum Event {
    Dial,
    Dialled(Result<(Link, UplinkReady), Down>),
    Acknowledged(UplinkAck),
    Shared(Share),
    Down(Down),
}

impl Phase {
    /// Cancel safe: nothing is lost.
    async fn next(&mut self) -> Event {
        match self {
            Self::Waiting(sleep) => {
                sleep.await;
                Event::Dial
            }
            Self::Dialling(dialling) => Event::Dialled(match dialling.await {
                Ok(dialled) => dialled,
                Err(error) => Err(Down::Link(LinkError::Socket(std::io::Error::other(error)))),
            }),
            Self::Up(up) => match up.link.recv().await {
                Ok(Incoming::Record(Record::UplinkAck(ack))) => Event::Acknowledged(ack),
                Ok(Incoming::Record(Record::Share(share))) => Event::Shared(share),
                Ok(Incoming::Record(Record::Refused(refused))) => {
                    Event::Down(Down::Refused { code: refused.code, text: refused.text })
                }
                Ok(Incoming::Record(record)) => Event::Down(Down::Unexpected(record.name())),
                Ok(_) => Event::Down(Down::Unexpected("a body")),
                Err(error) => Event::Down(error.into()),
            },
        }
    }
}

impl Sender {
    /// Carries messages until it is stopped, also after a fault of the program.
    pub(super) async fn run_always(self) {
        loop {
            let task = AbortOnDropHandle::new(tokio::spawn(self.clone().run()));
            let Err(error) = task.await else { return };
            tracing::error!(uplink = %self.settings.name, %error, "the uplink failed and starts over");
            tokio::time::sleep(self.settings.retry_max).await;
        }
    }

    /// Carries messages until it is stopped.
    pub(super) async fn run(self) {
        let mut backoff = self.settings.backoff();
        loop {
            let began = clock::now();
            let ended = tokio::select! {
                () = self.stop.cancelled() => return,
                ended = self.life() => ended,
            };
            self.counters.is_up.store(false, Relaxed);
            let Err(error) = ended;
            let error = tidegate_message::error_chain(&error);
            tracing::error!(uplink = %self.settings.name, error, "the uplink starts over");
            if clock::now().since(began) > self.settings.retry_max {
                backoff.reset();
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_wait()) => {}
            }
        }
    }

    /// One life: as long as the sessions' connections last.
    async fn life(&self) -> Result<std::convert::Infallible, LocalError> {
        let UplinkSettings { name, topics, critical, .. } = &self.settings;
        let mark_prefix = hand_over::prefix(name);
        let mark_filter = format!("{mark_prefix}+");
        let [batched_id, critical_id] = UplinkSettings::sessions(name);
        let had =
            [self.connector.filters(&batched_id).await, self.connector.filters(&critical_id).await];
        // A hand-over that was not over when the life before ended starts over.
        let is_marked = had.iter().flatten().any(|filter| **filter == *mark_filter);
        let was_critical: BTreeSet<&str> = had[1].iter().map(|filter| &**filter).collect();
        let is_parted_anew = is_marked || was_critical != critical.iter().map(|f| &**f).collect();
        let open = |id: String, filters: &[String]| {
            let mark = is_parted_anew.then_some(&mark_filter);
            let filters = mark.into_iter().chain(filters).cloned().collect();
            Local::connect(&self.connector, self.local_options(id, filters))
        };
        let (mut batched, batched_was_there) = open(batched_id, topics).await?;
        // Also where no topic is critical any more: its earlier messages are carried.
        let (mut urgent, critical_was_there) = open(critical_id, critical).await?;
        for (local, had, wanted) in
            [(&mut batched, &had[0], topics), (&mut urgent, &had[1], critical)]
        {
            let is_stale = |filter: &&Arc<str>| {
                ***filter != *mark_filter && !wanted.iter().any(|one| **one == ***filter)
            };
            local.unsubscribe(
                had.iter().filter(is_stale).map(|filter| (**filter).into()).collect(),
            )?;
        }
        tracing::info!(uplink = %self.settings.name, "uplink takes messages");
        self.subscribed.send_replace(true);
        let seed = || -> Result<u64, LocalError> {
            Ok(u64::from_ne_bytes(tidegate_server::server::random_bytes()?))
        };
        let now = clock::now();
        // 0 stands for none.
        let number = seed()?.max(1);
        let hand_over = |is_needed: bool| match is_needed {
            true => HandOver::begin(number),
            false => HandOver::default(),
        };
        let mut session = UplinkSession {
            sender: self,
            number,
            outgoing: Outgoing::new(self.settings.outgoing(), seed()?),
            critical: Critical::new(now, self.settings.critical_bytes_per_second.max(1)),
            batched,
            urgent: Some(urgent),
            // Without critical topics it carries all that it has anyway.
            batched_hand_over: hand_over(
                batched_was_there && is_parted_anew && !critical.is_empty(),
            ),
            urgent_hand_over: hand_over(critical_was_there && is_parted_anew),
            is_marked: is_parted_anew,
            handed_over: None,
            mark_prefix,
            marks_at: now + MARKS_AFTER,
            marks_wait: MARKS_WAIT,
            phase: Phase::Waiting(Box::pin(tokio::time::sleep(Duration::ZERO))),
            backoff: self.settings.backoff(),
            told: String::new(),
            attributes: Vec::new(),
            checks_topics: batched_was_there || critical_was_there,
            too_long: LogLimiter::default(),
            looped: LogLimiter::every(LOOPS_EVERY),
            said: None,
        };
        loop {
            session.turn().await?;
        }
    }

    fn local_options(&self, client_id: String, filters: Vec<String>) -> LocalOptions {
        let name = format!("uplink {}", self.settings.name);
        LocalOptions {
            identity: Identity::new(IdentityKind::Internal, &name, &client_id),
            name,
            client_id,
            session_expiry: u32::MAX,
            receive_maximum: RECEIVE_MAXIMUM,
            packet_bytes_max: PACKET_BYTES_MAX,
            session: self.settings.session.clone(),
            filters,
        }
    }

    /// Dials, and asks what of this life has come.
    async fn dial(
        settings: UplinkSettings,
        node: Arc<str>,
        credentials: Credentials,
        config: LinkSettings,
        life: u64,
    ) -> Result<(Link, UplinkReady), Down> {
        let resolve = |source| Down::Resolve { to: settings.to.clone(), source };
        let addresses: Vec<_> =
            tokio::net::lookup_host(&*settings.to).await.map_err(resolve)?.collect();
        let mut last =
            Down::Resolve { to: settings.to.clone(), source: std::io::ErrorKind::NotFound.into() };
        let mut made = None;
        for address in addresses {
            match link::dial(address, &credentials, config.clone(), settings.transport).await {
                Ok(link) => {
                    made = Some(link);
                    break;
                }
                Err(error) => last = error.into(),
            }
        }
        let Some(link) = made else { return Err(last) };
        let hello = Hello {
            minor: MINOR,
            node: credentials.identity().node,
            epoch: life,
            boot: BootId(tidegate_sys::clock::boot_id().unwrap_or_default()),
            role: Role::Uplink,
            features: Features::KNOWN,
            camera: None,
        };
        link.send(hello).await?;
        match answer(&link).await? {
            Record::Welcome(_) => {}
            other => return Err(Down::Unexpected(other.name())),
        }
        let open = UplinkOpen {
            name: settings.name.clone(),
            life,
            topics_max: settings.encoder.topics_max as u64,
            state_bytes_max: settings.encoder.state_bytes_max,
            names_messages: settings.names_messages,
            node: node.to_string(),
        };
        link.send(open).await?;
        match answer(&link).await? {
            Record::UplinkReady(ready) => Ok((link, ready)),
            other => Err(Down::Unexpected(other.name())),
        }
    }
}

/// The next answer of the other node; its refusal is an error.
async fn answer(link: &Link) -> Result<Record, Down> {
    let answer = async {
        loop {
            return match link.recv().await? {
                // It comes again.
                Incoming::Record(Record::Share(_)) => continue,
                Incoming::Record(Record::Refused(refused)) => {
                    Err(Down::Refused { code: refused.code, text: refused.text })
                }
                Incoming::Record(record) => Ok(record),
                _ => Err(Down::Unexpected("a body")),
            };
        }
    };
    tokio::time::timeout(GREETING_MAX, answer).await.map_err(|_| Down::Silent)?
}

/// One session of an uplink, from the start of its task to its end.
struct UplinkSession<'a> {
    sender: &'a Sender,
    number: u64,
    outgoing: Outgoing,
    critical: Critical,
    batched: Local,
    /// None where no topic is critical, once what it had from before was carried.
    urgent: Option<Local>,
    batched_hand_over: HandOver,
    urgent_hand_over: HandOver,
    /// The prefix of the topics of marks.
    mark_prefix: String,
    /// Whether the sessions subscribe to that.
    is_marked: bool,
    /// The numbers that messages had come to when the last mark was read, of both sessions.
    handed_over: Option<[u64; 2]>,
    /// When marks follow next, while there is a hand-over, and how long after those the next ones do.
    marks_at: Instant,
    marks_wait: Duration,
    phase: Phase,
    /// Before the next try to dial.
    backoff: Backoff,
    /// The last report, so that an unchanged one is not repeated.
    told: String,
    attributes: Vec<u8>,
    /// Whether a session is of an earlier start, and may have subscriptions that are no longer wanted.
    checks_topics: bool,
    too_long: LogLimiter,
    looped: LogLimiter,
    /// When it last said what it did, and whether it had a link.
    said: Option<(Instant, bool)>,
}

impl UplinkSession<'_> {
    /// Sends what may go, then waits for something to happen and deals with it.
    async fn turn(&mut self) -> Result<(), LocalError> {
        let now = clock::now();
        self.end_critical();
        let blocked = self.send(now);
        self.count();
        let says_at = self.say(now)?;
        let marks_at = self.mark(now)?;
        // An item that waits for room in the link is not a matter of time.
        let batches_at = self.outgoing.poll_timeout().filter(|_| !blocked.bulk);
        let parts_at = self.critical.poll_timeout().filter(|_| !blocked.lane);
        let is_blocked = blocked.bulk || blocked.lane;
        let wakes = [batches_at, parts_at, marks_at, Some(says_at)];
        let wake_at = wakes.into_iter().flatten().min();
        let reads = !self.outgoing.is_full();
        let reads_urgent = !self.critical.is_full();
        let bulk = match &self.phase {
            Phase::Up(up) if is_blocked => Some((up.bulk.clone(), up.lane.clone())),
            _ => None,
        };
        tokio::select! {
            biased;
            event = self.phase.next() => self.happened(event),
            turned = turn(self.urgent.as_mut(), reads_urgent) => {
                turned?;
                self.take_urgent()?;
            }
            turned = self.batched.turn(reads) => {
                turned?;
                self.take_batched()?;
            }
            () = room(bulk), if is_blocked => {}
            () = clock::sleep_until(wake_at), if wake_at.is_some() => {}
        }
        Ok(())
    }

    /// Hands the link what may go; of what more would go if the link had room.
    fn send(&mut self, now: Instant) -> Blocked {
        let Phase::Up(up) = &self.phase else { return Blocked::default() };
        let lane = loop {
            let Ok(permit) = up.lane.try_reserve() else { break true };
            let Some(part) = self.critical.poll_part(now) else { break false };
            permit.send(part);
        };
        let bulk = loop {
            let Ok(permit) = up.bulk.try_reserve() else { break true };
            let Some(batch) = self.outgoing.poll_batch(now) else { break false };
            permit.send(batch);
        };
        let batched = &mut self.batched;
        self.outgoing.expired(|id| batched.acknowledge(id));
        if let Some(urgent) = &mut self.urgent {
            self.critical.expired(|id| urgent.acknowledge(id));
        }
        Blocked { lane, bulk }
    }

    fn happened(&mut self, event: Event) {
        let settings = &self.sender.settings;
        let now = clock::now();
        let down = match event {
            Event::Dial => {
                let dialling = Sender::dial(
                    settings.clone(),
                    self.sender.node.clone(),
                    self.sender.credentials.clone(),
                    self.sender.link.clone(),
                    self.number,
                );
                let dialling = AbortOnDropHandle::new(tokio::spawn(dialling));
                self.phase = Phase::Dialling(dialling);
                return;
            }
            Event::Dialled(Ok((link, ready))) => match self.connected(now, link, &ready) {
                Ok(()) => return,
                Err(error) => error,
            },
            Event::Acknowledged(ack) => match self.acknowledged(ack) {
                Ok(()) => return,
                Err(error) => error.into(),
            },
            Event::Shared(share) => return self.outgoing.share(now, share),
            Event::Dialled(Err(down)) | Event::Down(down) => down,
        };
        if let Phase::Up(up) = &self.phase {
            if now.since(up.since) > settings.retry_max {
                self.backoff.reset();
            }
            up.link.close(1, &down.to_string());
        }
        self.outgoing.disconnected();
        self.critical.disconnected();
        self.sender.counters.is_up.store(false, Relaxed);
        let (code, why) = (down.code(), tidegate_message::error_chain(&down));
        if why != self.told {
            tracing::warn!(uplink = %settings.name, to = %settings.to, %code, why, "uplink down");
            self.told = why;
        }
        self.phase = Phase::Waiting(Box::pin(tokio::time::sleep(self.backoff.next_wait())));
    }

    fn connected(&mut self, now: Instant, link: Link, ready: &UplinkReady) -> Result<(), Down> {
        let random = tidegate_server::server::random_bytes();
        let seed = random.map_err(|error| Down::Link(LinkError::Socket(error)))?;
        self.outgoing.connected(now, ready, u64::from_ne_bytes(seed))?;
        self.critical.connected(ready.critical_next)?;
        let (lane, parts) = mpsc::channel(LANE_WAITING_MAX);
        let (bulk, batches) = mpsc::channel(BULK_WAITING_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(write_parts(link.clone(), parts));
        tasks.spawn(write_batches(link.clone(), batches));
        let revocations = self.sender.credentials.revocations().clone();
        tasks.spawn(end_when_revoked(link.clone(), revocations));
        let path = link.path();
        tracing::info!(uplink = %self.sender.settings.name, to = %link.peer_address(), transport = %path.transport,
            resumed = ready.resume.is_some(), next = ready.next, "uplink up");
        self.told.clear();
        self.sender.counters.is_up.store(true, Relaxed);
        self.sender.counters.connects.fetch_add(1, Relaxed);
        self.phase = Phase::Up(Up { link, lane, bulk, _tasks: tasks, since: now });
        Ok(())
    }

    fn acknowledged(&mut self, ack: UplinkAck) -> Result<(), ProtocolError> {
        let batched = &mut self.batched;
        let arrived = self.outgoing.arrived(ack.batches)?;
        self.outgoing.acknowledge(ack.next, |id| batched.acknowledge(id))?;
        if let Some(urgent) = &mut self.urgent {
            self.critical.acknowledge(ack.critical_next, |id| urgent.acknowledge(id))?;
        }
        self.critical.batches(arrived, self.outgoing.waits_for_link(clock::now()));
        Ok(())
    }

    fn take_batched(&mut self) -> Result<(), LocalError> {
        let now = clock::now();
        let UplinkSettings { critical, topics, .. } = &self.sender.settings;
        let mut done = Vec::new();
        while let Some(publish) = self.batched.message()? {
            if let Some(size) = publish.topic.strip_prefix(&*self.mark_prefix) {
                self.batched_hand_over.came(size, publish.payload);
                done.extend(publish.packet_id);
                continue;
            }
            let is_of =
                |filters: &[String]| filters.iter().any(|one| topic_matches(one, publish.topic));
            // Of QoS 0 a session has nothing from before.
            let is_carried = match publish.packet_id {
                Some(_) if !self.batched_hand_over.is_over() => is_of(critical) || is_of(topics),
                // The other session has it, or it is not wanted any more.
                _ => !is_of(critical) && (!self.checks_topics || is_of(topics)),
            };
            if !is_carried {
                done.extend(publish.packet_id);
                continue;
            }
            if !message::passes(&self.sender.stamps, Direction::Out, &publish.properties) {
                done.extend(publish.packet_id);
                looped(self.sender, &self.looped, publish.topic);
                continue;
            }
            let message = message(&publish, &mut self.attributes);
            if let Err(error) = self.outgoing.take(now, message, publish.packet_id) {
                done.extend(publish.packet_id);
                refused(self.sender, &self.too_long, publish.topic, error);
            }
        }
        for id in done {
            self.batched.acknowledge(id);
        }
        Ok(())
    }

    fn take_urgent(&mut self) -> Result<(), LocalError> {
        let now = clock::now();
        let Some(urgent) = &mut self.urgent else { return Ok(()) };
        let UplinkSettings { critical, topics, .. } = &self.sender.settings;
        let mut done = Vec::new();
        while let Some(publish) = urgent.message()? {
            if let Some(size) = publish.topic.strip_prefix(&*self.mark_prefix) {
                self.urgent_hand_over.came(size, publish.payload);
                done.extend(publish.packet_id);
                continue;
            }
            let is_of =
                |filters: &[String]| filters.iter().any(|one| topic_matches(one, publish.topic));
            let is_carried = match publish.packet_id {
                // The other session may have left to this one what is no longer critical.
                Some(_) if !self.urgent_hand_over.is_over() => is_of(critical) || is_of(topics),
                _ => !self.checks_topics || is_of(critical),
            };
            if !is_carried {
                done.extend(publish.packet_id);
                continue;
            }
            if !message::passes(&self.sender.stamps, Direction::Out, &publish.properties) {
                done.extend(publish.packet_id);
                looped(self.sender, &self.looped, publish.topic);
                continue;
            }
            let message = message(&publish, &mut self.attributes);
            match Outgoing::check(&message) {
                Ok(()) => self.critical.take(now, message, publish.packet_id),
                Err(error) => {
                    done.extend(publish.packet_id);
                    refused(self.sender, &self.too_long, publish.topic, error);
                }
            }
        }
        for id in done {
            urgent.acknowledge(id);
        }
        Ok(())
    }

    /// Lets a later life see that the hand-over is over, once all that was read by then is acknowledged: the rest comes
    /// again from the session that has it now.
    fn end_hand_over(&mut self) -> Result<(), LocalError> {
        if !self.is_marked {
            return Ok(());
        }
        let ends = || [self.outgoing.end(), self.critical.end()];
        let [batched, critical] = *self.handed_over.get_or_insert_with(ends);
        if self.outgoing.first() < batched || self.critical.first() < critical {
            return Ok(());
        }
        self.is_marked = false;
        for local in self.urgent.iter_mut().chain([&mut self.batched]) {
            local.unsubscribe(vec![format!("{}+", self.mark_prefix)])?;
        }
        Ok(())
    }

    /// Ends the session of critical messages if no topic is critical and all that it had from before was carried.
    fn end_critical(&mut self) {
        let settings = &self.sender.settings;
        if self.urgent.is_some()
            && settings.critical.is_empty()
            && self.urgent_hand_over.is_over()
            && self.critical.held_bytes() == 0
        {
            self.urgent = None;
            let [_, critical] = UplinkSettings::sessions(&settings.name);
            self.sender.connector.forget(&critical);
        }
    }

    /// Has marks follow what sessions have from before, if it is time; when it is the next time, if ever.
    ///
    /// # Errors
    /// [`LocalError::Encode`].
    fn mark(&mut self, now: Instant) -> Result<Option<Instant>, LocalError> {
        if self.batched_hand_over.is_over() && self.urgent_hand_over.is_over() {
            self.end_hand_over()?;
            return Ok(None);
        }
        let Some(urgent) = &mut self.urgent else { return Ok(None) };
        if now < self.marks_at {
            return Ok(Some(self.marks_at));
        }
        self.marks_at = now + self.marks_wait;
        // Those that came before wait as well.
        self.marks_wait *= 2;
        // Through each other's connection: none is sent what it published itself.
        let ways = [(&self.batched_hand_over, urgent), (&self.urgent_hand_over, &mut self.batched)];
        for (hand_over, through) in ways {
            for (size, payload) in hand_over.marks() {
                let topic = format!("{}{size}", self.mark_prefix);
                let head = PublishHead {
                    dup: false,
                    qos: QoS::AtLeastOnce,
                    retain: false,
                    topic: &topic,
                    // Whether it was taken is seen by whether it comes.
                    packet_id: Some(PacketId::MIN),
                    topic_alias: None,
                    message_expiry: None,
                    subscription_ids: &[],
                    forwarded: &[],
                    payload_bytes: payload.len(),
                };
                through.publish(&head, &payload);
            }
        }
        Ok(Some(self.marks_at))
    }

    /// Says what it did if it is time; when it is the next time.
    fn say(&mut self, now: Instant) -> Result<Instant, LocalError> {
        let is_up = matches!(self.phase, Phase::Up(_));
        if let Some((at, was_up)) = self.said
            && was_up == is_up
            && now.since(at) < SAYS_EVERY
        {
            return Ok(at + SAYS_EVERY);
        }
        self.said = Some((now, is_up));
        let report = self.sender.counters.report();
        let payload = serde_json::to_vec(&report).expect("numbers are JSON");
        let topic = super::state_topic(&self.sender.settings.name);
        let head = PublishHead {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: true,
            topic: &topic,
            packet_id: None,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            forwarded: &[],
            payload_bytes: payload.len(),
        };
        self.batched.publish(&head, &payload);
        Ok(now + SAYS_EVERY)
    }

    fn count(&self) {
        let counters = &self.sender.counters;
        let sent = self.outgoing.sent();
        let codec = self.outgoing.codec();
        for (counter, value) in [
            (&counters.batches, sent.batches),
            (&counters.messages, sent.messages),
            (&counters.message_bytes, sent.message_bytes),
            (&counters.bytes, sent.bytes),
            (&counters.epochs, sent.epochs),
            (&counters.critical, self.critical.sent()),
            (&counters.definitions, codec.definitions),
            (&counters.evictions, codec.evictions),
            (&counters.expired, sent.expired + self.critical.expired_messages()),
            (&counters.allowed, self.outgoing.allowed(clock::now()).unwrap_or(0)),
            (
                &counters.held_bytes,
                (self.outgoing.held_bytes() + self.critical.held_bytes()) as u64,
            ),
        ] {
            counter.store(value, Relaxed);
        }
    }
}

/// Waits until something can be read or written; forever where there is no connection.
async fn turn(local: Option<&mut Local>, reads: bool) -> Result<(), LocalError> {
    match local {
        Some(local) => local.turn(reads).await,
        None => std::future::pending().await,
    }
}

/// The queues of the link: batches, and parts of critical messages.
type Queues = (mpsc::Sender<(SensorBatch, Bytes)>, mpsc::Sender<CriticalPart>);

/// Waits until either queue has room; faults of theirs are noticed elsewhere.
async fn room(queues: Option<Queues>) {
    let Some((bulk, lane)) = queues else { return std::future::pending().await };
    // The one that is not full would be ready at once, and again and again.
    match (bulk.capacity() == 0, lane.capacity() == 0) {
        (true, true) => tokio::select! {
            _ = bulk.reserve() => {}
            _ = lane.reserve() => {}
        },
        (true, false) => _ = bulk.reserve().await,
        (false, _) => _ = lane.reserve().await,
    }
}

fn message<'a>(publish: &Publish<'a>, attributes: &'a mut Vec<u8>) -> Message<'a> {
    attributes.clear();
    Attributes::put(publish, attributes);
    Message { topic: publish.topic.as_bytes(), attributes, payload: publish.payload }
}

/// A message goes no further.
fn refused(sender: &Sender, limiter: &LogLimiter, topic: &str, error: TooLong) {
    sender.counters.refused.fetch_add(1, Relaxed);
    if let Some(count) = limiter.add(clock::now(), 1) {
        tracing::warn!(uplink = %sender.settings.name, topic, %error, count,
            "message not carried; count since the last such line");
    }
}

/// A message has left this node before, or came to it by way of others: the node above has it already.
fn looped(sender: &Sender, limiter: &LogLimiter, topic: &str) {
    sender.counters.looped.fetch_add(1, Relaxed);
    if let Some(count) = limiter.add(clock::now(), 1) {
        tracing::warn!(uplink = %sender.settings.name, topic, count,
            "messages that have been here before are not carried again; count since the last such line");
    }
}

/// Closes a link whose other end may no longer be trusted.
async fn end_when_revoked(link: Link, revocations: Arc<Revocations>) {
    let Revoked { reason, .. } = revocations.revoked(&link.peer().serial).await;
    link.close(1, &format!("the other node's certificate was revoked: {reason}"));
}

async fn write_parts(link: Link, mut parts: mpsc::Receiver<CriticalPart>) {
    while let Some(part) = parts.recv().await {
        // A link that is down is noticed where it is read.
        if link.send(part).await.is_err() {
            return;
        }
    }
}

async fn write_batches(link: Link, mut batches: mpsc::Receiver<(SensorBatch, Bytes)>) {
    while let Some((record, body)) = batches.recv().await {
        if link.send_bulk(record, body).await.is_err() {
            return;
        }
    }
}

impl Down {
    fn code(&self) -> Code {
        match self {
            Self::Link(error) => error.code(),
            Self::Refused { code, .. } => Code::named(code).unwrap_or(Code::IDENTITY_REFUSED),
            Self::Unexpected(_) | Self::Protocol(_) => Code::LINK_PROTOCOL,
            Self::Resolve { .. } | Self::Silent => Code::LINK_DOWN,
        }
    }
}
