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
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tidegate_identity::pki::Credentials;
use tidegate_link::link::{Link, LinkError, LinkSettings};
use tidegate_message::{Identity, IdentityKind, Instant, LogLimiter};
use tidegate_process::clock;
use tidegate_server::{
    local::{Local, LocalError, LocalOptions},
    server::Connector,
};
use tidegate_uplink::{Blocked, Command, Feed, Subscriptions, Taken, UplinkSession};
use tidegate_wire::{
    UplinkReady,
    mqtt::{self, PacketId, PublishHead, QoS},
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::{
    dial::{Down, dial},
    linked::{Event, Linked, Up, room},
};
use super::{Counters, UplinkReport, UplinkSettings};

/// Longest packet that is read, the protocol's: a message too long to be carried is named and counted, which the broker would not
/// do.
const PACKET_BYTES_MAX: u32 = mqtt::PACKET_BYTES_MAX;
/// Messages under way from the broker.
const RECEIVE_MAXIMUM: NonZeroU16 = NonZeroU16::MAX;
/// How often it says what it did, on [`super::state_topic`].
const SAYS_EVERY: Duration = Duration::from_secs(5);
/// From one line about messages that come round to the next: where two nodes have uplinks to each other it is of all of them.
pub(super) const LOOPS_EVERY: Duration = Duration::from_secs(3600);

/// The parts of the task.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) settings: UplinkSettings,
    /// This node's name among those that a message passed.
    pub(super) node: Arc<str>,
    pub(super) connector: Connector,
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

    /// One session: as long as the connections to this node's broker last.
    async fn session(&self) -> Result<std::convert::Infallible, LocalError> {
        let settings = &self.settings;
        let config = settings.sender(&self.node);
        let [batched_id, critical_id] = UplinkSettings::sessions(&settings.name);
        let had =
            [self.connector.filters(&batched_id).await, self.connector.filters(&critical_id).await];
        let subscriptions = Subscriptions::new(&config, &had);
        let open = |feed: Feed, id: String| {
            let filters = subscriptions.wanted(feed).to_vec();
            Local::connect(&self.connector, self.local_options(id, filters))
        };
        let (batched, batched_was_there) = open(Feed::Batched, batched_id).await?;
        // Also where no topic is critical any more: its earlier messages are carried.
        let (critical, critical_was_there) = open(Feed::Critical, critical_id).await?;
        tracing::info!(uplink = %settings.name, "uplink takes messages");
        self.subscribed.send_replace(true);
        let was_there = [batched_was_there, critical_was_there];
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
}

fn random() -> std::io::Result<u64> {
    Ok(u64::from_ne_bytes(tidegate_server::server::random_bytes()?))
}

/// The shell around a session.
struct Driver<'a> {
    sender: &'a Sender,
    session: UplinkSession,
    batched: Local,
    /// None where no topic is critical, once what it had from before was carried.
    critical: Option<Local>,
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
    async fn turn(&mut self) -> Result<(), LocalError> {
        let now = clock::now();
        while let Some(command) = self.session.poll_command(now) {
            self.obey(command)?;
        }
        let blocked = self.linked.send(now, &mut self.session);
        self.acknowledge();
        let says_at = self.say(now);
        let wake_at = self.session.poll_timeout(blocked).map_or(says_at, |at| at.min(says_at));
        let queues = self.linked.queues(blocked);
        let reads = self.session.wants(Feed::Batched);
        let reads_critical = self.session.wants(Feed::Critical);
        tokio::select! {
            biased;
            event = self.linked.next() => self.happened(event),
            turned = turn(self.critical.as_mut(), reads_critical) => {
                turned?;
                self.take(Feed::Critical)?;
            }
            turned = self.batched.turn(reads) => {
                turned?;
                self.take(Feed::Batched)?;
            }
            () = room(queues), if blocked != Blocked::default() => {}
            () = clock::sleep_until(Some(wake_at)) => {}
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<(), LocalError> {
        let Sender { settings, connector, credentials, link, .. } = self.sender;
        match command {
            Command::Dial(open) => {
                let dialling = dial(settings.clone(), credentials.clone(), link.clone(), open);
                self.linked = Linked::Dialling(AbortOnDropHandle::new(tokio::spawn(dialling)));
            }
            Command::Mark { through, topic, payload } => {
                let head = PublishHead {
                    qos: QoS::AtLeastOnce,
                    packet_id: Some(PacketId::MIN),
                    ..head(&topic, payload.len())
                };
                if let Some(local) = self.local(through) {
                    local.publish(&head, &payload);
                }
            }
            Command::Unsubscribe { feed, filters } => {
                if let Some(local) = self.local(feed) {
                    local.unsubscribe(filters)?;
                }
            }
            Command::EndCritical => {
                self.critical = None;
                let [_, critical] = UplinkSettings::sessions(&settings.name);
                connector.forget(&critical);
            }
        }
        Ok(())
    }

    fn local(&mut self, feed: Feed) -> Option<&mut Local> {
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
        tracing::info!(uplink = %self.sender.settings.name, to = %link.peer_address(), transport = %path.transport,
            resumed = ready.resume.is_some(), next = ready.next, "uplink up");
        self.told.clear();
        self.sender.counters.connects.fetch_add(1, Relaxed);
        self.linked = Linked::Up(Up::new(link, self.sender.credentials.revocations().clone()));
        Ok(())
    }

    /// Takes the messages that a feed has.
    fn take(&mut self, feed: Feed) -> Result<(), LocalError> {
        let now = clock::now();
        let local = match feed {
            Feed::Batched => Some(&mut self.batched),
            Feed::Critical => self.critical.as_mut(),
        };
        let Some(local) = local else { return Ok(()) };
        let Sender { settings, counters, .. } = self.sender;
        while let Some(publish) = local.message()? {
            match self.session.take(now, feed, &publish) {
                Taken::Carried | Taken::Passed => {}
                Taken::Looped => {
                    counters.looped.fetch_add(1, Relaxed);
                    if let Some(count) = self.looped.add(now, 1) {
                        tracing::warn!(uplink = %settings.name, topic = publish.topic, count,
                            "messages that have been here before are not carried again; count since the last such line");
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
        let batched = &mut self.batched;
        self.session.take_acknowledged(Feed::Batched, |id| batched.acknowledge(id));
        if let Some(critical) = &mut self.critical {
            self.session.take_acknowledged(Feed::Critical, |id| critical.acknowledge(id));
        }
    }

    /// Says what it did if it is time; when it is the next time.
    fn say(&mut self, now: Instant) -> Instant {
        let is_up = self.session.is_up();
        if let Some((at, was_up)) = self.said
            && was_up == is_up
            && now.since(at) < SAYS_EVERY
        {
            return at + SAYS_EVERY;
        }
        self.said = Some((now, is_up));
        let counts = self.session.counts(now);
        let report = UplinkReport::new(is_up, &counts, &self.sender.counters);
        let payload = serde_json::to_vec(&report).expect("numbers are JSON");
        let topic = super::state_topic(&self.sender.settings.name);
        let head = PublishHead { retain: true, ..head(&topic, payload.len()) };
        self.batched.publish(&head, &payload);
        now + SAYS_EVERY
    }
}

/// The head of a message of QoS 0.
fn head(topic: &str, payload_bytes: usize) -> PublishHead<'_> {
    PublishHead {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        packet_id: None,
        topic_alias: None,
        message_expiry: None,
        subscription_ids: &[],
        forwarded: &[],
        payload_bytes,
    }
}

/// Waits until something can be read or written; forever where there is no connection.
async fn turn(local: Option<&mut Local>, reads: bool) -> Result<(), LocalError> {
    match local {
        Some(local) => local.turn(reads).await,
        None => std::future::pending().await,
    }
}
