//! The receiving end: messages that come over links are published here, as the node that sent them.
//!
//! ```text
//!  link ─▶ Incoming ─▶ Publisher (a connection to this node's broker for batches, one for critical messages) ─▶ bundles
//!   ▲                        │ PUBACK
//!   └────── UplinkAck ◀──────┘
//! ```
//!
//! Of each uplink of each node an [`Endpoint`] is kept between its links: the codec's state, what has come and what was published. A
//! second link of one uplink takes over from the first.
//!
//! An uplink of another member of the fabric ([`FABRIC`]) publishes as a peer: what it brings goes to no third member. Where it comes
//! again from a later process of its node, or since the state here was given up, messages that were published here are known again by
//! their [`Origin`](tidegate_uplink::Origin) and passed over ([`repeats`]). That of a leaf publishes as a client: for the third ones, too.

pub(crate) mod links;
mod publisher;
mod repeats;
mod word;

use std::{
    collections::HashMap,
    num::NonZeroU64,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use tidegate_api::ApiError;
use tidegate_bus::{Bus, BusError};
use tidegate_identity::access::Identity;
use tidegate_link::link::{self, DownReason, Link, LinkError};
use tidegate_message::Code;
use tidegate_process::clock;
use tidegate_uplink::{
    AttributesError, Budget, FABRIC, Incoming, IncomingError, LIMITS, Reservation,
};
use tidegate_wire::{NodeId, Record, UplinkAck, UplinkOpen, mqtt::path::Stamps};
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    task, time,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::{
    publisher::{Passage, Publisher},
    repeats::Repeats,
    word::Word,
};
use crate::member::{Peer, RESTS};

/// Longest wait for an uplink to say which one it is.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the last word of what was published to be taken, at a stop.
const LAST_WORD_MAX: Duration = Duration::from_millis(200);
/// Uplinks whose state is kept; of those without a link the one that was quiet for longest goes first.
const ENDPOINTS_MAX: usize = 256;
/// Uplinks that one node may claim.
const ENDPOINTS_OF_NODE_MAX: usize = 16;
/// Members of the fabric whose uplinks are kept, in addition to those: each has one. One without state takes some hundred bytes.
const MEMBERS_MAX: usize = 2048;
/// About as many messages of a batch are published before it is seen whether a critical one has come, and fewer than twice as many.
const PIECE: usize = 512;
/// From one word of what was published to the next: each costs a packet on both nodes, and what is published is published in pieces.
const ACK_PAUSE: Duration = Duration::from_millis(2);
/// Records that are taken from the link in a row while a piece could be published.
const IN_A_ROW_MAX: u32 = 64;
/// Batches that wait for their turn after the one at hand; more are taken from the link only while the broker takes none.
const WAITING_MAX: usize = 4;

/// The receivers of uplinks in a node.
#[derive(Debug)]
pub struct Receivers {
    /// Of the broker that messages are published at; not there before it serves, and never where MQTT is not served.
    bus: OnceLock<(Bus, Stamps)>,
    /// Messages that had been here before and were not published again.
    looped: Arc<AtomicU64>,
    /// Messages that had been published here already and came again.
    repeated: Arc<AtomicU64>,
    endpoints: Mutex<HashMap<Key, Entry>>,
    /// Members of the fabric, and whether this node relays for each; none where any is taken for one for which it does not.
    members: watch::Sender<Option<HashMap<NodeId, bool>>>,
    budget: Arc<Budget>,
}

/// Node and name of an uplink.
type Key = (NodeId, String);

#[derive(Debug)]
struct Entry {
    endpoint: Arc<AsyncMutex<Endpoint>>,
    /// Ends the link that serves it.
    serving: CancellationToken,
    /// Counts the links of all uplinks: the one with the lowest number was quiet for longest.
    used: u64,
}

impl Receivers {
    /// The bytes they keep together are at most that many.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bus: OnceLock::new(),
            looped: Arc::default(),
            repeated: Arc::default(),
            endpoints: Mutex::default(),
            members: watch::Sender::new(None),
            budget: Budget::new(bytes_max),
        }
    }

    /// Uplinks are published at that broker from now on. `node` is this node's name among those that a message passed.
    pub fn serve_by(&self, bus: Bus, node: &str) {
        // A second one would be of the same node.
        let _ = self.bus.set((bus, Stamps::new(node)));
    }

    /// Messages that came over uplinks, had been here before and were not published again.
    pub fn looped(&self) -> u64 {
        self.looped.load(Relaxed)
    }

    /// Messages of other members that came again after they had been published here, and were not published again.
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Relaxed)
    }

    /// From now on a member of the fabric brings nothing before [`Receivers::set_leaf`] says for whom it is.
    pub fn await_members(&self) {
        self.members.send_modify(|members| {
            members.get_or_insert_default();
        });
    }

    /// Whether this node relays for a member of the fabric: what it brings goes to other members as well. A link by which it brings something
    /// ends if that changes.
    pub fn set_leaf(&self, node: NodeId, is_leaf: bool) {
        let mut was = None;
        self.members.send_modify(|members| {
            was = members.get_or_insert_default().insert(node, is_leaf);
        });
        if was == Some(!is_leaf)
            && let Some(entry) = self.endpoints().get(&(node, FABRIC.to_owned()))
        {
            entry.serving.cancel();
        }
    }

    fn leaf(&self, node: NodeId, uplink: &str) -> Option<NonZeroU64> {
        let members = self.members.borrow();
        let is_leaf = members.as_ref().and_then(|members| members.get(&node)).copied();
        (uplink == FABRIC && is_leaf == Some(true)).then(|| Peer::leaf(node))
    }

    /// Waits until it is known whether a member of the fabric is a leaf: what it brings before would not go to all.
    async fn known(&self, identity: &Identity, uplink: &str) -> Result<(), ApiError> {
        if uplink != FABRIC {
            return Ok(());
        }
        let mut members = self.members.subscribe();
        let is_known = |members: &Option<HashMap<NodeId, bool>>| {
            members.as_ref().is_none_or(|members| members.contains_key(&identity.key))
        };
        let known = tokio::time::timeout(OPEN_MAX, members.wait_for(is_known)).await;
        known.map(drop).map_err(|_| {
            let text = format!("{identity} is no member that this node knows: it is to come again");
            ApiError::new(Code::IDENTITY_REFUSED, text)
        })
    }

    fn endpoints(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint of an uplink, which its former link no longer serves, and what ends this one; none if there are too many that
    /// have links.
    fn take_over(&self, key: &Key) -> Option<(Arc<AsyncMutex<Endpoint>>, CancellationToken)> {
        let mut endpoints = self.endpoints();
        let used = endpoints.values().map(|entry| entry.used).max().unwrap_or(0) + 1;
        if !endpoints.contains_key(key) {
            let is_alike = |other: &Key| (other.1 == FABRIC) == (key.1 == FABRIC);
            let is_own = |other: &Key| is_alike(other) && other.0 == key.0;
            let of_node = endpoints.keys().filter(|other| is_own(other)).count();
            let alike = endpoints.keys().filter(|other| is_alike(other)).count();
            let max = if key.1 == FABRIC { MEMBERS_MAX } else { ENDPOINTS_MAX };
            if of_node >= ENDPOINTS_OF_NODE_MAX {
                give_up_idle(&mut endpoints, is_own)?;
            } else if alike >= max {
                give_up_idle(&mut endpoints, is_alike)?;
            }
        }
        let entry = endpoints.entry(key.clone()).or_insert_with(|| Entry {
            endpoint: Arc::default(),
            serving: CancellationToken::new(),
            used,
        });
        entry.used = used;
        entry.serving.cancel();
        entry.serving = CancellationToken::new();
        Some((entry.endpoint.clone(), entry.serving.clone()))
    }

    /// Room for the state of an uplink, and be it that of one that has no link.
    fn reserve(&self, open: &UplinkOpen) -> Result<Reservation, Ended> {
        loop {
            if let Some(reservation) = self.budget.reserve(open.state_bytes_max) {
                return Ok(reservation);
            }
            if give_up_idle(&mut self.endpoints(), |_| true).is_none() {
                return Err(Ended::Budget { bytes_max: self.budget.bytes_max() });
            }
        }
    }

    /// Serves a link that has introduced itself as an uplink until it ends or `stop`.
    ///
    /// # Errors
    /// Why it was not served, or no longer is.
    #[boxed]
    pub async fn serve(
        &self,
        link: &Link,
        identity: &Identity,
        stop: &CancellationToken,
    ) -> Result<(), ApiError> {
        let opened = tokio::time::timeout(OPEN_MAX, open(link)).await.map_err(|_| {
            let text = "it did not say which uplink it is in time";
            ApiError::new(Code::LINK_PROTOCOL, text)
        });
        self.serve_opened(link, identity, opened??, stop).await
    }

    /// The same for a link that this node made: the other one begins on it once it has something to send.
    ///
    /// # Errors
    /// As for [`Receivers::serve`].
    #[boxed]
    pub async fn fetch(
        &self,
        link: &Link,
        identity: &Identity,
        stop: &CancellationToken,
    ) -> Result<(), ApiError> {
        let opened = tokio::select! {
            opened = open(link) => opened?,
            () = stop.cancelled() => return Ok(()),
        };
        self.serve_opened(link, identity, opened, stop).await
    }

    async fn serve_opened(
        &self,
        link: &Link,
        identity: &Identity,
        open: UplinkOpen,
        stop: &CancellationToken,
    ) -> Result<(), ApiError> {
        let refuse = |code: Code, text: String| ApiError::new(code, text);
        let Some((bus, stamps)) = self.bus.get() else {
            let text = "this node publishes nothing: it serves no MQTT (mqtt.enabled)";
            return Err(refuse(Code::CONFIG_INVALID, text.to_owned()));
        };
        self.known(identity, &open.name).await?;
        let Some((endpoint, over)) = self.take_over(&(identity.key, open.name.clone())) else {
            let text = format!(
                "this node serves {ENDPOINTS_OF_NODE_MAX} uplinks of one node, {ENDPOINTS_MAX} in all and those of {MEMBERS_MAX} members, and has that many"
            );
            return Err(refuse(Code::LIMIT_REACHED, text));
        };
        let mut endpoint = endpoint.lock().await;
        let mut is_stopped = false;
        let ended = tokio::select! {
            () = stop.cancelled() => {
                is_stopped = true;
                Ok(())
            }
            () = over.cancelled() => {
                tracing::info!(uplink = open.name, node = %identity, "a newer link of the uplink takes over");
                Ok(())
            }
            ended = endpoint.serve(self, (bus, stamps), link, identity, &open) => ended,
        };
        if is_stopped && let Some(state) = &mut endpoint.state {
            // Published messages need not come again.
            let _ = time::timeout(LAST_WORD_MAX, link.send(state.last_word())).await;
        }
        ended.map_err(|error| {
            let code = error.code();
            let text = format!("uplink {} of {identity} ends", open.name);
            ApiError::new(code, text).caused_by(tidegate_message::error_chain(&error))
        })
    }
}

/// The uplink that a link says it is.
async fn open(link: &Link) -> Result<UplinkOpen, ApiError> {
    match link.recv().await {
        Ok(link::Incoming::Record(Record::UplinkOpen(open))) => Ok(open),
        Ok(_) => Err(ApiError::new(Code::LINK_PROTOCOL, "it did not say which uplink it is")),
        Err(error) => Err(ApiError::new(error.code(), tidegate_message::error_chain(&error))),
    }
}

/// Forgets the uplink that has no link and was quiet for longest, of those that `may` be; none if there is none.
fn give_up_idle(endpoints: &mut HashMap<Key, Entry>, may: impl Fn(&Key) -> bool) -> Option<()> {
    let idle =
        endpoints.iter().filter(|(key, entry)| Arc::strong_count(&entry.endpoint) == 1 && may(key));
    let oldest = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone())?;
    tracing::info!(uplink = oldest.1, "state given up for want of room");
    endpoints.remove(&oldest);
    Some(())
}

/// Why an uplink's link ends.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the link is down")]
    Link(#[from] link::LinkError),
    #[error("the sender broke the protocol")]
    Incoming(#[from] IncomingError),
    #[error("the sender broke the protocol: {0} came over an uplink")]
    Misplaced(&'static str),
    #[error("a message cannot be published")]
    Attributes(#[from] AttributesError),
    #[error("the sender is no member of the fabric, and has a message for a shared subscription")]
    Group,
    #[error("the sender's node name is not valid")]
    Name,
    #[error("a message has an invalid topic")]
    Topic,
    #[error("this node's broker is out of reach")]
    Bus(#[from] BusError),
    #[error("this node has no room for a message now; it is to be sent again")]
    NoRoom,
    #[error(
        "the uplinks that this node serves take all {bytes_max} bytes that they may (link.uplink_bytes_max)"
    )]
    Budget { bytes_max: u64 },
}

impl Ended {
    fn code(&self) -> Code {
        match self {
            Self::Link(error) => error.code(),
            Self::Incoming(IncomingError::Room { .. }) | Self::NoRoom | Self::Budget { .. } => {
                Code::LIMIT_REACHED
            }
            Self::Incoming(_)
            | Self::Misplaced(_)
            | Self::Attributes(_)
            | Self::Group
            | Self::Name
            | Self::Topic => Code::LINK_PROTOCOL,
            Self::Bus(_) => Code::INTERNAL,
        }
    }

    /// Whether what came cannot be relied on: the next link begins with nothing, and the sender sends again what it holds.
    fn loses_all(&self) -> bool {
        match self {
            Self::Link(_) => false,
            // The codec has forgotten the topics that the batch named, and no more; a repetition was not even looked
            // at.
            Self::Incoming(error) => {
                !matches!(error, IncomingError::Decode { .. } | IncomingError::Replayed { .. })
            }
            Self::Misplaced(_)
            | Self::Attributes(_)
            | Self::Group
            | Self::Name
            | Self::Topic
            | Self::Bus(_)
            | Self::NoRoom
            | Self::Budget { .. } => true,
        }
    }
}

/// One uplink of one node.
#[derive(Debug, Default)]
struct Endpoint {
    state: Option<State>,
    /// While there is no state, of batched and of critical messages.
    repeats: [Repeats; 2],
}

#[derive(Debug)]
struct State {
    incoming: Incoming,
    /// The leaf as which both publish.
    leaf: Option<NonZeroU64>,
    reservation: Reservation,
    /// Batches that came over this link.
    batches: u64,
    batched: Publisher,
    critical: Publisher,
}

impl Endpoint {
    async fn serve(
        &mut self,
        receivers: &Receivers,
        broker: (&Bus, &Stamps),
        link: &Link,
        identity: &Identity,
        open: &UplinkOpen,
    ) -> Result<(), Ended> {
        let ended = self.serve_state(receivers, broker, link, identity, open).await;
        if let Err(Ended::Link(LinkError::Down(DownReason::ClosedByPeer { code: RESTS, .. }))) =
            ended
            && open.name == FABRIC
        {
            // All was acknowledged, and by now to the session there as well: nothing comes again.
            *self = Self::default();
            return Ok(());
        }
        if ended.as_ref().is_err_and(Ended::loses_all)
            && let Some(state) = self.state.take()
        {
            self.repeats = state.into_repeats();
        }
        ended
    }

    async fn serve_state(
        &mut self,
        receivers: &Receivers,
        (bus, stamps): (&Bus, &Stamps),
        link: &Link,
        identity: &Identity,
        open: &UplinkOpen,
    ) -> Result<(), Ended> {
        let leaf = receivers.leaf(identity.key, &open.name);
        if let Some(state) = self.state.take_if(|state| state.leaf != leaf) {
            self.repeats = state.into_repeats();
        }
        let state = match &mut self.state {
            Some(state) => state,
            none => none.insert(State {
                incoming: Incoming::new(LIMITS),
                leaf,
                reservation: receivers.reserve(open)?,
                batches: 0,
                batched: Publisher::attach(bus, identity, (&open.name, leaf), "batched").await?,
                critical: Publisher::attach(bus, identity, (&open.name, leaf), "critical").await?,
            }),
        };
        for (publisher, repeats) in
            [&mut state.batched, &mut state.critical].into_iter().zip(&mut self.repeats)
        {
            if !repeats.is_empty() {
                publisher.repeats = std::mem::take(repeats);
            }
        }
        for publisher in [&mut state.batched, &mut state.critical] {
            publisher.passage = Some(Passage::new(stamps, &open.node, receivers)?);
        }
        if !state.incoming.knows(open)
            && let Some(other) = receivers.budget.reserve(open.state_bytes_max)
            && other.bytes() > state.reservation.bytes()
        {
            state.reservation = other;
        }
        let ready = state.incoming.open(open, state.reservation.bytes())?;
        if ready.next.is_none() && ready.critical_next.is_none() {
            state.batched.begin(identity.name(), &open.name, open.life, "");
            state.critical.begin(identity.name(), &open.name, open.life, "!");
        }
        state.batches = 0;
        link.send(ready).await?;
        tracing::info!(uplink = open.name, node = %identity, resumed = ready.resume.is_some(), state_bytes_max = ready.state_bytes_max, "uplink served");
        let (acks, mut acknowledged) = watch::channel(state.last_word());
        // Messages published while there was no link are reported at once.
        acknowledged.mark_changed();
        let _acknowledging =
            AbortOnDropHandle::new(tokio::spawn(acknowledge(link.clone(), acknowledged)));
        let ended = state.run(link, &acks).await;
        if ended.is_err() {
            // Messages published until then need not come again; a link that is down gets no report.
            let _ = link.send(state.last_word()).await;
        }
        // An uplink without a link keeps its state and no more.
        state.batched.to_bus.forget_empties();
        state.critical.to_bus.forget_empties();
        let (topics, state_bytes) = state.incoming.state();
        let (batched, critical) = (state.batched.counts, state.critical.counts);
        tracing::info!(uplink = open.name, node = %identity, topics, state_bytes, %batched, %critical, "uplink no longer served");
        ended
    }
}

/// Sends the newest word of what was published: at once where none was for a while, since a timer would wake this node up once more for a
/// message that came by itself.
async fn acknowledge(link: Link, mut acks: watch::Receiver<UplinkAck>) {
    let mut next_at = time::Instant::now();
    while acks.changed().await.is_ok() {
        // Messages that are published until then are one report.
        time::sleep_until(next_at).await;
        next_at = time::Instant::now() + ACK_PAUSE;
        let ack = *acks.borrow_and_update();
        // A link that is down is noticed where it is read.
        if link.send(ack).await.is_err() {
            return;
        }
    }
}

impl State {
    /// The messages that are known to have come, once both connections are over.
    fn into_repeats(self) -> [Repeats; 2] {
        [self.batched, self.critical].map(|publisher| publisher.repeats.disconnected())
    }

    /// The word of what is published, with the answers that the broker has given by now.
    fn last_word(&mut self) -> UplinkAck {
        for publisher in [&mut self.batched, &mut self.critical] {
            // A connection that has ended gives no more.
            let _ = publisher.settle();
        }
        self.published()
    }

    fn published(&self) -> UplinkAck {
        UplinkAck {
            next: self.batched.progress.published(),
            critical_next: self.critical.progress.published(),
            batches: self.batches,
        }
    }

    async fn run(&mut self, link: &Link, acks: &watch::Sender<UplinkAck>) -> Result<(), Ended> {
        let (mut in_a_row, mut word) = (0, Word::default());
        // Answers to messages of an earlier link may be to come.
        word.said(clock::now(), self.batched.to_bus.open() == 0);
        loop {
            let settles = word.has_much() || self.batched.has_many() || !self.batched.has_room();
            let mut is_due = false;
            // Until the broker takes them, and between their pieces, batches wait here, so that critical messages pass them.
            let (waits, waiting_bytes) = self.incoming.waiting();
            self.reservation.wait(waiting_bytes);
            let goes_on = waits && self.batched.has_room();
            let is_full = self.incoming.is_full()
                || waits && self.reservation.is_full()
                || goes_on && (self.incoming.batches() > WAITING_MAX || in_a_row >= IN_A_ROW_MAX);
            let has_room = self.critical.has_room() && !is_full;
            tokio::select! {
                biased;
                _ = self.critical.to_bus.answered() => self.critical.settle()?,
                _ = self.batched.to_bus.answered(), if settles => self.batched.settle()?,
                incoming = link.recv(), if has_room => match incoming {
                    Ok(incoming) => {
                        in_a_row += 1;
                        if let link::Incoming::Bulk { body, .. } = &incoming {
                            word.came(body.len());
                        }
                        self.receive(incoming)?;
                    }
                    Err(down) => {
                        while self.publish_piece()? {
                            task::yield_now().await;
                        }
                        return Err(down.into());
                    }
                },
                () = task::yield_now(), if goes_on => {
                    in_a_row = 0;
                    self.publish_piece()?;
                }
                () = clock::sleep_until(word.due_at()) => is_due = true,
            }
            let (published, said) = (self.published(), *acks.borrow());
            // Urgent messages wait for no others, and neither does what the sender waits for.
            let is_progress = settles && published.next != said.next;
            let is_much = word.has_much() && self.batched.to_bus.open() == 0;
            if is_due || is_progress || is_much || published.critical_next != said.critical_next {
                self.batched.settle()?;
                let published = self.published();
                acks.send_if_modified(|last| std::mem::replace(last, published) != published);
                word.said(clock::now(), self.batched.to_bus.open() == 0);
            } else if published != said || self.batched.to_bus.open() > 0 {
                word.waits(clock::now());
            }
        }
    }

    fn receive(&mut self, incoming: link::Incoming) -> Result<(), Ended> {
        match incoming {
            link::Incoming::Bulk { record: Record::SensorBatch(record), body } => {
                self.incoming.batch(record, body)?;
                self.batches += 1;
                Ok(())
            }
            link::Incoming::Record(Record::CriticalPart(part)) => {
                let names = self.incoming.names_messages();
                let publisher = &mut self.critical;
                let mut published = Ok(());
                self.incoming.critical(&part, |number, message, origin| {
                    publisher.progress.expect(number);
                    published = publisher.publish(message, origin, names);
                    publisher.hand_over();
                })?;
                published
            }
            link::Incoming::Record(record) => Err(Ended::Misplaced(record.name())),
            _ => Err(Ended::Misplaced("a body")),
        }
    }

    /// Publishes some messages of the batches that came; false if there are none, or no room for them.
    fn publish_piece(&mut self) -> Result<bool, Ended> {
        if !self.batched.has_room() {
            return Ok(false);
        }
        // The end of the connection is seen before anything is published that would be lost.
        self.batched.settle()?;
        let names = self.incoming.names_messages();
        let Some(fresh) = self.incoming.poll(PIECE)? else { return Ok(false) };
        self.batched.progress.expect(fresh.first);
        for (message, origin) in fresh.iter().zip(fresh.origins()) {
            self.batched.publish(message, origin, names)?;
        }
        self.batched.hand_over();
        Ok(true)
    }
}
