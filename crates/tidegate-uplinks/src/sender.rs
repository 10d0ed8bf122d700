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
    num::NonZeroU16,
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use tidegate_bus::{
    self as bus, Attached, Attachment, Bus, BusError, Deliveries, Publication, PublishError,
    Publisher,
};
use tidegate_identity::pki::Credentials;
use tidegate_link::link::{Link, LinkError, LinkSettings};
use tidegate_message::{Identity, IdentityKind, Instant, LogLimiter};
use tidegate_process::clock;
use tidegate_uplink::{Blocked, Command, Feed, Subscriptions, Taken, UplinkSession};
use tidegate_wire::{
    UplinkReady,
    mqtt::{Publish, PublishProperties, QoS, SubscribeFilter, seconds_left},
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::{
    dial::{Down, dial},
    linked::{Event, Linked, Up, room},
};
use super::{Counters, UplinkReport, UplinkSettings};

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
    /// This node's name among those that a message passed.
    pub(super) node: Arc<str>,
    pub(super) bus: Bus,
    pub(super) credentials: Credentials,
    pub(super) link: LinkSettings,
    pub(super) counters: Arc<Counters>,
    /// Whether its sessions are there: messages published from then on are carried.
    pub(super) subscribed: watch::Sender<bool>,
    pub(super) stop: CancellationToken,
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
    async fn run(self) {
        let mut backoff = self.settings.sender(&self.node).backoff();
        loop {
            let began = clock::now();
            let ended = tokio::select! {
                () = self.stop.cancelled() => return,
                ended = self.session() => ended,
            };
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

    /// One session: as long as it is attached to this node's broker.
    async fn session(&self) -> Result<std::convert::Infallible, Ended> {
        let settings = &self.settings;
        let config = settings.sender(&self.node);
        let [batched_id, critical_id] = UplinkSettings::sessions(&settings.name);
        let had = [self.bus.filters(&batched_id).await, self.bus.filters(&critical_id).await];
        let subscriptions = Subscriptions::new(&config, &had);
        let open = |feed: Feed, id: String| {
            let filters = subscriptions.wanted(feed).iter().map(bus::filter_of).collect();
            self.bus.attach(self.attachment(id, filters))
        };
        let batched = open(Feed::Batched, batched_id).await?;
        // Also where no topic is critical any more: its earlier messages are carried.
        let critical = open(Feed::Critical, critical_id).await?;
        tracing::info!(uplink = %settings.name, "uplink takes messages");
        self.subscribed.send_replace(true);
        let was_there = [batched.was_there, critical.was_there];
        let (number, seed) = (random()?, random()?);
        let now = clock::now();
        let session = UplinkSession::new(now, config, subscriptions, was_there, number, seed);
        let mut driver = Driver {
            sender: self,
            session,
            batched,
            critical: Some(critical),
            linked: Linked::No,
            told: String::new(),
            too_long: LogLimiter::default(),
            looped: LogLimiter::every(LOOPS_EVERY),
            said: None,
        };
        loop {
            driver.turn().await?;
        }
    }

    fn attachment(&self, client_id: String, filters: Vec<SubscribeFilter>) -> Attachment {
        let name = format!("uplink {}", self.settings.name);
        let identity = Identity::new(IdentityKind::Internal, &name, &client_id);
        Attachment {
            name,
            filters,
            session: self.settings.session.clone(),
            session_expiry: u32::MAX,
            receive_maximum: Some(RECEIVE_MAXIMUM),
            ..Attachment::new(identity, client_id)
        }
    }
}

fn random() -> std::io::Result<u64> {
    Ok(u64::from_ne_bytes(tidegate_process::random::random_bytes()?))
}

/// The shell around a session.
struct Driver<'a> {
    sender: &'a Sender,
    session: UplinkSession,
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
}

impl Driver<'_> {
    /// Does what the session wants, then waits for something to happen and gives it to the session.
    async fn turn(&mut self) -> Result<(), BusError> {
        let now = clock::now();
        while let Some(command) = self.session.poll_command(now) {
            self.obey(command)?;
        }
        let blocked = self.linked.send(now, &mut self.session);
        self.acknowledge();
        let says_at = self.say(now)?;
        let wake_at = self.session.poll_timeout(blocked).map_or(says_at, |at| at.min(says_at));
        for attached in self.critical.iter_mut().chain([&mut self.batched]) {
            attached.deliveries.settle();
            attached.publisher.flush();
        }
        let queues = self.linked.queues(blocked);
        let reads = self.session.wants(Feed::Batched);
        let reads_critical = self.session.wants(Feed::Critical);
        tokio::select! {
            biased;
            event = self.linked.next() => self.happened(event),
            came = ready(self.critical.as_mut(), reads_critical) => {
                came?;
                self.take(Feed::Critical)?;
            }
            came = ready(Some(&mut self.batched), reads) => {
                came?;
                self.take(Feed::Batched)?;
            }
            () = room(queues), if blocked != Blocked::default() => {}
            () = clock::sleep_until(Some(wake_at)) => {}
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<(), BusError> {
        let Sender { settings, bus, credentials, link, .. } = self.sender;
        match command {
            Command::Dial(open) => {
                let dialling = dial(settings.clone(), credentials.clone(), link.clone(), open);
                self.linked = Linked::Dialling(AbortOnDropHandle::new(tokio::spawn(dialling)));
            }
            Command::Mark { through, topic, payload } => {
                if let Some(Attached { publisher, deliveries, .. }) = self.attached(through) {
                    pass_answers(publisher, deliveries)?;
                    let (topic, payload, qos) = (&*topic, &payload[..], QoS::AtLeastOnce);
                    // Whether it was taken is seen by whether it comes.
                    publisher.push(&Publication {
                        topic,
                        payload,
                        qos,
                        ..Publication::default()
                    })?;
                }
            }
            Command::Unsubscribe { feed, filters } => {
                if let Some(attached) = self.attached(feed) {
                    attached.deliveries.unsubscribe(filters)?;
                }
            }
            Command::EndCritical => {
                self.critical = None;
                let [_, critical] = UplinkSettings::sessions(&settings.name);
                bus.forget(&critical);
            }
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
        self.session.handle_connected(now, ready, seed)?;
        let path = link.path();
        tracing::info!(uplink = %self.sender.settings.name, to = %link.peer_address(), transport = %path.transport.word(),
            resumed = ready.resume.is_some(), next = ready.next, "uplink up");
        self.told.clear();
        self.sender.counters.connects.fetch_add(1, Relaxed);
        self.linked = Linked::Up(Up::new(link, self.sender.credentials.revocations().clone()));
        Ok(())
    }

    /// Takes the messages that a feed has, as far as the session wants them.
    fn take(&mut self, feed: Feed) -> Result<(), BusError> {
        let now = clock::now();
        let attached = match feed {
            Feed::Batched => Some(&mut self.batched),
            Feed::Critical => self.critical.as_mut(),
        };
        let Some(Attached { publisher, deliveries, .. }) = attached else { return Ok(()) };
        pass_answers(publisher, deliveries)?;
        let Sender { settings, counters, .. } = self.sender;
        for _ in 0..IN_A_ROW_MAX {
            if !self.session.wants(feed) {
                break;
            }
            let Some(message) = deliveries.next_message()? else { break };
            let payload = message.payload();
            let publish = publish_of(now, &message, &payload);
            match self.session.take(now, feed, &publish) {
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

    /// Says what it did if it is time; when it is the next time.
    fn say(&mut self, now: Instant) -> Result<Instant, BusError> {
        let is_up = self.session.is_up();
        if let Some((at, was_up)) = self.said
            && was_up == is_up
            && now.since(at) < SAYS_EVERY
        {
            return Ok(at + SAYS_EVERY);
        }
        self.said = Some((now, is_up));
        let counts = self.session.counts(now);
        let report = UplinkReport::new(is_up, &counts, &self.sender.counters);
        let said = &self.sender.counters.said;
        *said.lock().unwrap_or_else(PoisonError::into_inner) = report;
        let payload = serde_json::to_vec(&report).expect("numbers are JSON");
        let topic = &*super::state_topic(&self.sender.settings.name);
        let Attached { publisher, deliveries, .. } = &mut self.batched;
        pass_answers(publisher, deliveries)?;
        let state = Publication { topic, payload: &payload, retain: true, ..Default::default() };
        match publisher.push(&state) {
            // There is no state where packets may be no longer than that.
            Ok(_) | Err(PublishError::TooLarge { .. }) => Ok(now + SAYS_EVERY),
            Err(error) => Err(error.into()),
        }
    }
}

/// Waits until there are messages; forever where none are wanted.
async fn ready(attached: Option<&mut Attached>, reads: bool) -> Result<(), BusError> {
    match attached.filter(|_| reads) {
        Some(attached) => attached.deliveries.ready().await,
        None => std::future::pending().await,
    }
}

/// Passes over answers that nothing waits for: to its own messages, and to the ends of subscriptions.
fn pass_answers(publisher: &mut Publisher, deliveries: &mut Deliveries) -> Result<(), BusError> {
    while publisher.next_answer()?.is_some() || deliveries.next_answer()?.is_some() {}
    Ok(())
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
