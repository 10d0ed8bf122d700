//! The sending end: a task that reads two sessions of this node's broker and writes to a link, around the state machine
//! [`UplinkSession`].
//!
//! ```text
//!  session of `critical` ─▶┐                ┌─▶ critical lane ─┐
//!  session of `topics` ───▶┴ UplinkSession ─┴─▶ bulk ──────────┴─▶ link ─▶ the other node
//!        ▲ acknowledged           ▲                     UplinkAck ◀─────┘
//!        └────────────────────────┴──────────────────────────┘
//! ```

mod dial;
mod linked;

use std::{
    collections::VecDeque,
    convert::Infallible,
    num::NonZeroU16,
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use tidegate_bus::{
    self as bus, Attached, Attachment, BusError, Deliveries, Publication, PublishError,
    RequestAnswer,
};
use tidegate_link::link::{Link, LinkError};
use tidegate_message::{Identity, IdentityKind, Instant, LogLimiter};
use tidegate_process::clock;
use tidegate_uplink::{
    Blocked, Command, Feed, NotGranted, SenderConfig, Subscriptions, Taken, Topics, UplinkSession,
};
use tidegate_wire::{
    UplinkReady,
    mqtt::{Publish, PublishProperties, QoS, seconds_left},
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::{
    dial::{Down, dial},
    linked::{Event, Linked, Up, room},
};
use super::{Counters, Course, Home, Peer, UplinkReport, UplinkSettings};

/// Messages under way from the broker.
const RECEIVE_MAXIMUM: NonZeroU16 = NonZeroU16::MAX;
/// Messages of a session that are read in a row: what is urgent waits for no more.
const IN_A_ROW_MAX: usize = 512;
/// How often it says what it did, on [`super::state_topic`].
const SAYS_EVERY: Duration = Duration::from_secs(5);
/// From one line about messages that come round to the next: where two nodes have uplinks to each other it is of all of them.
pub(super) const LOOPS_EVERY: Duration = Duration::from_secs(3600);

/// Why the sessions of an uplink have no connections.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("the system's random numbers cannot be had")]
    Random(#[from] std::io::Error),
}

/// The parts of the task.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) settings: UplinkSettings,
    pub(super) home: Home,
    pub(super) counters: Arc<Counters>,
    pub(super) course: Course,
    /// The generation of the last topics that its session has: messages published from then on are carried.
    pub(super) held: watch::Sender<u64>,
    pub(super) stop: CancellationToken,
    /// Its sessions end with it.
    pub(super) forgets: CancellationToken,
}

impl Sender {
    /// Carries messages until it is stopped, also after a fault of the program.
    pub(super) async fn run_always(self) {
        loop {
            let task = AbortOnDropHandle::new(tokio::spawn(self.clone().run()));
            let Err(error) = task.await else { break };
            tracing::error!(uplink = %self.settings.name, %error, "the uplink failed and starts over");
            tokio::time::sleep(self.settings.retry_max).await;
        }
        if self.forgets.is_cancelled() {
            self.settings.own_sessions().iter().for_each(|id| self.home.bus.forget(id));
        }
    }

    /// Carries messages until it is stopped.
    async fn run(self) {
        let mut backoff = self.settings.sender(&self.home.node, Topics::default()).backoff();
        loop {
            let began = clock::now();
            let ended = tokio::select! {
                () = self.stop.cancelled() => return,
                ended = self.session() => ended,
            };
            let Err(error) = ended;
            let error = tidegate_message::error_chain(&error);
            tracing::error!(uplink = %self.settings.name, to = %self.settings.to, error, "the uplink starts over");
            if clock::now().since(began) > self.settings.retry_max {
                backoff.reset();
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_wait()) => {}
            }
        }
    }

    /// One session: as long as it is attached to this node's broker.
    async fn session(&self) -> Result<Infallible, Ended> {
        let Sender { settings, home, course, .. } = self;
        let mut course = course.clone();
        let mut config = settings.sender(&home.node, course.topics.borrow_and_update().clone());
        let ids = settings.own_sessions();
        let mut had = [home.bus.filters(&ids[0]).await, home.bus.filters(&ids[1]).await];
        let (subscriptions, [batched, critical]) = if settings.peer.is_some() {
            let mut feeds = [self.attach(&ids[0], &[]).await?, self.attach(&ids[1], &[]).await?];
            self.settle_critical(&mut config, &ids, &mut had[1], &mut feeds[1]).await?;
            (Subscriptions::new(&config, &had), feeds)
        } else {
            let subscriptions = Subscriptions::new(&config, &had);
            let attach = |feed: Feed| self.attach(&ids[feed as usize], subscriptions.wanted(feed));
            let batched = attach(Feed::Batched).await?;
            // Also where no topic is critical any more: its earlier messages are carried.
            let critical = attach(Feed::Critical).await?;
            (subscriptions, [batched, critical])
        };
        let was_there = [batched.was_there, critical.was_there];
        if !batched.was_there {
            self.held.send_replace(0);
        }
        let (number, seed) = (random()?, random()?);
        let now = clock::now();
        let mut session = UplinkSession::new(now, config, subscriptions, was_there, number, seed);
        session.set_reachable(now, course.can_reach());
        let mut driver = Driver {
            sender: self,
            session,
            course,
            requests: VecDeque::new(),
            batched,
            critical: Some(critical),
            linked: Linked::No,
            told: String::new(),
            too_long: LogLimiter::default(),
            looped: LogLimiter::every(LOOPS_EVERY),
            said: None,
            is_away: false,
        };
        loop {
            driver.turn().await?;
        }
    }

    async fn attach(&self, client_id: &str, filters: &[String]) -> Result<Attached, BusError> {
        let (name, identity) = match &self.settings.peer {
            Some(Peer { identity, .. }) => {
                let identity = Identity { client: client_id.into(), ..identity.clone() };
                (format!("member {}", identity.name), identity)
            }
            None => {
                let name = format!("uplink {}", self.settings.name);
                let identity = Identity::new(IdentityKind::Internal, &name, client_id);
                (name, identity)
            }
        };
        let attachment = Attachment {
            name,
            filters: filters.iter().map(bus::filter_of).collect(),
            session: self.settings.session.clone(),
            session_expiry: u32::MAX,
            receive_maximum: Some(RECEIVE_MAXIMUM),
            ..Attachment::new(identity, client_id)
        };
        self.home.bus.attach(attachment).await
    }

    /// Subscribes the critical session of a member to the topics that are critical, as far as the member may have them, and decides which
    /// those are: those that were, as long as messages wait that were parted by them.
    async fn settle_critical(
        &self,
        config: &mut SenderConfig,
        ids: &[String; 2],
        had: &mut Vec<Arc<str>>,
        critical: &mut Attached,
    ) -> Result<(), BusError> {
        let is_had = |filter: &String| had.iter().any(|one| **one == **filter);
        let (kept, new): (Vec<_>, Vec<_>) = config.critical.drain(..).partition(is_had);
        let granted = granted(&mut critical.deliveries, new).await?;
        config.critical = kept.iter().chain(&granted).cloned().collect();
        if granted.is_empty() && kept.len() == had.len() {
            return Ok(());
        }
        // From here on both sessions have what is critical by either.
        let waits = self.waiting(&ids[0]).await + self.waiting(&ids[1]).await;
        if waits > 0 {
            tracing::info!(
                member = self.settings.to,
                waits,
                "topics that are critical for a member stay as they were until the next start: messages wait for it that were parted by them"
            );
            config.critical = had.iter().map(|filter| filter.to_string()).collect();
        }
        had.extend(granted.iter().map(|filter| Arc::from(&**filter)));
        Ok(())
    }

    /// Messages that wait in a session.
    async fn waiting(&self, client_id: &str) -> usize {
        // No other comes between this and itself.
        let before = &client_id[..client_id.len() - 1];
        let sessions = self.home.bus.sessions(before, 1, |_, _| true).await;
        let own = sessions.iter().find(|session| *session.client_id == *client_id);
        own.map_or(0, |session| session.queued + session.inflight)
    }
}

fn random() -> std::io::Result<u64> {
    Ok(u64::from_ne_bytes(tidegate_process::random::random_bytes()?))
}

/// The shell around a session.
struct Driver<'a> {
    sender: &'a Sender,
    session: UplinkSession,
    course: Course,
    /// Numbers of the requests of the batched feed that are not answered.
    requests: VecDeque<u64>,
    batched: Attached,
    /// None where no topic is critical, once what it had from before was carried.
    critical: Option<Attached>,
    linked: Linked,
    /// The last reason of a link's end, so that an unchanged one is not repeated.
    told: String,
    too_long: LogLimiter,
    looped: LogLimiter,
    /// When it last said what it did, and whether it had a link.
    said: Option<(Instant, bool)>,
    /// Whether this node's broker knows that the other node is away.
    is_away: bool,
}

impl Driver<'_> {
    /// Does what the session wants, then waits for something to happen and gives it to the session.
    async fn turn(&mut self) -> Result<(), BusError> {
        let now = clock::now();
        self.take_answers(now)?;
        while let Some(command) = self.session.poll_command(now) {
            self.obey(command)?;
        }
        let blocked = self.linked.send(now, &mut self.session);
        self.acknowledge();
        let is_away = self.session.is_away();
        if std::mem::replace(&mut self.is_away, is_away) != is_away {
            self.batched.deliveries.set_away(is_away);
        }
        let says_at = self.say(now)?;
        let wake_at = [self.session.poll_timeout(blocked), says_at].into_iter().flatten().min();
        for attached in self.critical.iter_mut().chain([&mut self.batched]) {
            attached.deliveries.settle();
            attached.publisher.flush();
        }
        let queues = self.linked.queues(blocked);
        let reads = self.session.wants(Feed::Batched);
        let asks = !self.requests.is_empty();
        let reads_critical = self.session.wants(Feed::Critical);
        tokio::select! {
            biased;
            topics = changed(&mut self.course.topics) => self.session.set_topics(topics),
            _ = changed(&mut self.course.reach) => self.set_reachable(),
            () = self.course.visits.news() => self.set_reachable(),
            event = self.linked.next() => self.happened(event),
            came = ready(self.critical.as_mut(), reads_critical, false) => {
                came?;
                self.take(Feed::Critical)?;
            }
            came = ready(Some(&mut self.batched), reads, asks) => {
                came?;
                self.take(Feed::Batched)?;
            }
            () = room(queues), if blocked != Blocked::default() => {}
            () = clock::sleep_until(wake_at) => {}
        }
        Ok(())
    }

    fn set_reachable(&mut self) {
        let can_reach = self.course.can_reach();
        self.session.set_reachable(clock::now(), can_reach);
    }

    /// Gives the session the answers to its requests, and says which topics it has.
    fn take_answers(&mut self, now: Instant) -> Result<(), BusError> {
        for attached in self.critical.iter_mut().chain([&mut self.batched]) {
            // Whether a mark was taken is seen by whether it comes.
            while attached.publisher.next_answer()?.is_some() {}
        }
        if let Some(Attached { deliveries, .. }) = &mut self.critical {
            while deliveries.next_answer()?.is_some() {}
        }
        let Sender { settings, held, .. } = self.sender;
        while let Some(RequestAnswer { request, reasons }) =
            self.batched.deliveries.next_answer()?
        {
            if self.requests.pop_front_if(|expected| *expected == request).is_none() {
                continue;
            }
            let not_granted = self.session.handle_answered(now, Feed::Batched, &reasons);
            if let Some(NotGranted { filter, reason, count }) = not_granted {
                tracing::warn!(uplink = %settings.name, %filter, %reason, count,
                    "the uplink lacks `count` subscriptions, of which the first is named, and asks for them again");
            }
        }
        let generation = self.session.held_topics();
        let before = *held.borrow();
        if generation != before {
            held.send_replace(generation);
            if before == 0 {
                tracing::info!(uplink = %settings.name, "uplink takes messages");
            }
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<(), BusError> {
        let Sender { settings, home, .. } = self.sender;
        match command {
            Command::Dial(open) => {
                let reach = self.course.reach.borrow().clone();
                let dialling =
                    dial(reach, self.course.visits.clone(), settings.clone(), home.clone(), open);
                self.linked = Linked::Dialling(AbortOnDropHandle::new(tokio::spawn(dialling)));
            }
            Command::Mark { through, topic, payload } => {
                if let Some(Attached { publisher, .. }) = self.attached(through) {
                    let (topic, payload, qos) = (&*topic, &payload[..], QoS::AtLeastOnce);
                    publisher.push(&Publication {
                        topic,
                        payload,
                        qos,
                        ..Publication::default()
                    })?;
                }
            }
            Command::Subscribe { feed, filters } => {
                let filters = filters.iter().map(|filter| bus::filter_of(&**filter)).collect();
                self.ask(feed, |deliveries| deliveries.subscribe(filters))?;
            }
            Command::Unsubscribe { feed, filters } => {
                let filters = filters.iter().map(|filter| filter.to_string()).collect();
                self.ask(feed, |deliveries| deliveries.unsubscribe(filters))?;
            }
            Command::Rest => {
                tracing::debug!(uplink = %settings.name, to = %settings.to, "uplink rests");
                self.linked.rest();
            }
            Command::EndCritical => {
                self.critical = None;
                let [_, critical] = settings.own_sessions();
                home.bus.forget(&critical);
            }
        }
        Ok(())
    }

    /// Asks the broker for something; the answers of the batched feed are the session's.
    fn ask(
        &mut self,
        feed: Feed,
        ask: impl FnOnce(&mut Deliveries) -> Result<u64, BusError>,
    ) -> Result<(), BusError> {
        let Some(attached) = self.attached(feed) else { return Ok(()) };
        let number = ask(&mut attached.deliveries)?;
        if feed == Feed::Batched {
            self.requests.push_back(number);
        }
        Ok(())
    }

    fn attached(&mut self, feed: Feed) -> Option<&mut Attached> {
        match feed {
            Feed::Batched => Some(&mut self.batched),
            Feed::Critical => self.critical.as_mut(),
        }
    }

    fn happened(&mut self, event: Event) {
        let now = clock::now();
        let down = match event {
            Event::Dialled(Ok((link, ready))) => match self.connected(now, link, &ready) {
                Ok(()) => return,
                Err(error) => error,
            },
            Event::Acknowledged(ack) => match self.session.handle_acknowledged(now, &ack) {
                Ok(()) => return,
                Err(error) => error.into(),
            },
            Event::Shared(share) => return self.session.handle_share(now, share),
            Event::Dialled(Err(down)) | Event::Down(down) => down,
        };
        self.linked.close(&down);
        self.session.handle_down(now);
        let UplinkSettings { name, to, .. } = &self.sender.settings;
        let (code, why) = (down.code(), tidegate_message::error_chain(&down));
        if why != self.told {
            tracing::warn!(uplink = %name, %to, %code, why, "uplink down");
            self.told = why;
        }
    }

    fn connected(&mut self, now: Instant, link: Link, ready: &UplinkReady) -> Result<(), Down> {
        let seed = random().map_err(LinkError::Socket)?;
        if self.sender.settings.peer.is_some() && self.session.is_forgotten(ready) {
            for attached in self.critical.iter().chain([&self.batched]) {
                attached.deliveries.repeat_retained();
            }
        }
        self.session.handle_connected(now, ready, seed)?;
        let path = link.path();
        tracing::info!(uplink = %self.sender.settings.name, to = %link.peer_address(), transport = %path.transport.word(),
            resumed = ready.resume.is_some(), next = ready.next, "uplink up");
        self.told.clear();
        self.sender.counters.connects.fetch_add(1, Relaxed);
        let revocations = self.sender.home.credentials.revocations().clone();
        self.linked = Linked::Up(Up::new(link, revocations));
        Ok(())
    }

    /// Takes the messages that a feed has, as far as the session wants them.
    fn take(&mut self, feed: Feed) -> Result<(), BusError> {
        let now = clock::now();
        let attached = match feed {
            Feed::Batched => Some(&mut self.batched),
            Feed::Critical => self.critical.as_mut(),
        };
        let Some(Attached { deliveries, .. }) = attached else { return Ok(()) };
        let Sender { settings, counters, .. } = self.sender;
        for _ in 0..IN_A_ROW_MAX {
            if !self.session.wants(feed) {
                break;
            }
            let Some(message) = deliveries.next_message()? else { break };
            let payload = message.payload();
            let publish = publish_of(now, &message, &payload);
            match self.session.take(now, feed, &publish, message.received(), message.group()) {
                Taken::Carried | Taken::Passed => {}
                Taken::Looped => {
                    counters.looped.fetch_add(1, Relaxed);
                    if let Some(count) = self.looped.add(now, 1) {
                        tracing::warn!(uplink = %settings.name, topic = publish.topic, count,
                            "messages that left this node before are not carried again; `count` is since the last such line");
                    }
                }
                Taken::TooLong(error) => {
                    counters.refused.fetch_add(1, Relaxed);
                    if let Some(count) = self.too_long.add(now, 1) {
                        tracing::warn!(uplink = %settings.name, topic = publish.topic, %error, count,
                            "message not carried; count since the last such line");
                    }
                }
            }
        }
        self.acknowledge();
        Ok(())
    }

    /// Acknowledges what the session owes this node's broker.
    fn acknowledge(&mut self) {
        let batched = &mut self.batched.deliveries;
        self.session.take_acknowledged(Feed::Batched, |id| batched.acknowledge(id));
        if let Some(Attached { deliveries, .. }) = &mut self.critical {
            self.session.take_acknowledged(Feed::Critical, |id| deliveries.acknowledge(id));
        }
    }

    /// Says what it did if it is time; when it is the next time, if there is one.
    fn say(&mut self, now: Instant) -> Result<Option<Instant>, BusError> {
        let is_up = self.session.is_up();
        if self.sender.settings.peer.is_some() {
            // Nothing wakes up to say it.
            self.note(now, is_up);
            return Ok(None);
        }
        if let Some((at, was_up)) = self.said
            && was_up == is_up
            && now.since(at) < SAYS_EVERY
        {
            return Ok(Some(at + SAYS_EVERY));
        }
        self.said = Some((now, is_up));
        let report = self.note(now, is_up);
        let payload = serde_json::to_vec(&report).expect("numbers are JSON");
        let topic = &*super::state_topic(&self.sender.settings.name);
        let Attached { publisher, .. } = &mut self.batched;
        let state = Publication { topic, payload: &payload, retain: true, ..Default::default() };
        match publisher.push(&state) {
            // There is no state where packets may be no longer than that.
            Ok(_) | Err(PublishError::TooLarge { .. }) => Ok(Some(now + SAYS_EVERY)),
            Err(error) => Err(error.into()),
        }
    }

    /// Notes what it did.
    fn note(&self, now: Instant, is_up: bool) -> UplinkReport {
        let counters = &self.sender.counters;
        let report = UplinkReport::new(is_up, &self.session.counts(now), counters);
        *counters.said.lock().unwrap_or_else(PoisonError::into_inner) = report;
        report
    }
}

/// Of those filters, the ones that the broker grants.
async fn granted(
    deliveries: &mut Deliveries,
    filters: Vec<String>,
) -> Result<Vec<String>, BusError> {
    if filters.is_empty() {
        return Ok(filters);
    }
    let asked = deliveries.subscribe(filters.iter().map(bus::filter_of).collect())?;
    loop {
        match deliveries.next_answer()? {
            Some(RequestAnswer { request, reasons }) if request == asked => {
                let granted = filters.into_iter().zip(reasons);
                return Ok(granted
                    .filter(|(_, reason)| !reason.is_failure())
                    .map(|(filter, _)| filter)
                    .collect());
            }
            Some(_) => {}
            None => deliveries.answered().await?,
        }
    }
}

/// Waits for another value; for ever once there is none to come.
async fn changed<T: Clone>(value: &mut watch::Receiver<T>) -> T {
    match value.changed().await {
        Ok(()) => value.borrow_and_update().clone(),
        Err(_) => std::future::pending().await,
    }
}

/// Waits until there are messages, where they are wanted, or answers, where something was asked for.
async fn ready(attached: Option<&mut Attached>, reads: bool, asks: bool) -> Result<(), BusError> {
    match attached {
        Some(attached) if reads => attached.deliveries.ready().await,
        Some(attached) if asks => attached.deliveries.answered().await,
        _ => std::future::pending().await,
    }
}

/// A message as it is carried, with the time that is left to it.
fn publish_of<'a>(now: Instant, message: &bus::Message<'a>, payload: &'a [u8]) -> Publish<'a> {
    // The broker has decoded them where they came in.
    let properties = PublishProperties::decode(message.forwarded()).unwrap_or_default();
    let message_expiry = seconds_left(message.expires(), now);
    Publish {
        dup: message.is_repeated(),
        qos: message.qos(),
        retain: message.retain(),
        topic: message.topic(),
        packet_id: message.packet_id(),
        properties: PublishProperties { message_expiry, ..properties },
        payload,
    }
}
