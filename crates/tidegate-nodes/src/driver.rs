//! The task that has the state machines of a member: what happens goes in by its events, and what they want done goes out.
//!
//! ```text
//!  links ─ FromLink ─▶┐                    ┌─▶ outbox of each link
//!  dials, saves ─────▶┤ Members            ├─▶ dials, saves
//!  subscriptions ────▶┤ Audiences · Side   ├─▶ topic links, SUBACKs
//!  clients ──────────▶┤ Clients            ├─▶ connections that end
//!  commands, time ───▶┘                    └─▶ Seen, the audit log
//! ```
//!
//! Always true: nothing is awaited but the next event, so that no peer, disk or broker holds up another; a link is given a record when it has
//! room for it, and none waits in between.

mod clients;
mod events;
mod leave;
mod links;
mod show;
mod topics;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
    time::Duration,
};

use tidegate_api::Left;
use tidegate_bus::{Bus, Subscription, Subscriptions};
use tidegate_fabric::{
    clients::Clients,
    members::{ForgetError, LinkId, Members, OwnSettings, Passage, Save, Target},
};
use tidegate_identity::pki::Credentials;
use tidegate_link::{introduce::Unwelcome, link::Link};
use tidegate_message::{CameraName, Instant};
use tidegate_process::clock;
use tidegate_wire::{NodeId, Record};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::{self, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    audience::{Audiences, Source},
    discover::{Discovery, Heard},
    keep::Kept,
    links::{Dialler, FromLink, Line, Slowed},
    seal::Join,
    seen::Seen,
    topics::{Side, TopicLink, TopicLinks},
};

/// How often the filters of clients are looked at: those that come are told at once, those that go then.
const FILTERS_EVERY: Duration = Duration::from_secs(1);
/// Longest wait of a SUBACK; [`Waiting`](tidegate_fabric::interest::Waiting) has the same.
pub(crate) const HELD_MAX: Duration = Duration::from_secs(1);
/// The fabric is shown anew so often at the most, and round trips are looked at so often at the least.
const SHOWN_EVERY: Duration = Duration::from_millis(100);
const SHOWN_AT_LEAST: Duration = Duration::from_secs(5);
/// Events of links, and changes of clients, that are taken in a row.
const IN_A_ROW_MAX: usize = 64;
/// Name of the problem that makes the node of no use.
const SAME_KEY: &str = "key";
/// Said where members refuse this node, and it reaches none.
const REVOKED: &str = "members refuse this node: its certificate is revoked; `tidegate invite` at the authority gives it another one";
/// A state that could not be written is tried again after this.
const SAVE_AGAIN: Duration = Duration::from_secs(30);

/// Something that this node is to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Forget a member.
    Forget(NodeId, oneshot::Sender<Result<(), ForgetError>>),
    /// Leave, and say once it is done.
    Leave(oneshot::Sender<Left>),
    /// These cameras are reached.
    Cameras(Vec<CameraName>),
    /// This node says otherwise of itself.
    Own(Box<OwnSettings>),
}

/// All that the driver is made of.
pub(crate) struct Driver {
    pub(crate) members: Members,
    pub(crate) clients: Clients,
    pub(crate) join: Join,
    pub(crate) kept: Kept,
    pub(crate) credentials: Credentials,
    pub(crate) dialler: Dialler,
    pub(crate) room: Arc<Notify>,
    pub(crate) bus: Option<Bus>,
    pub(crate) topic_links: Option<Arc<dyn TopicLinks>>,
    pub(crate) shown: watch::Sender<Arc<Seen>>,
    /// Tells of events that an operator may want to know of afterwards.
    pub(crate) audit: Box<dyn Fn(&'static str, String) + Send>,
    pub(crate) state: State,
}

/// The parts of the driver that begin empty.
#[derive(Default)]
pub(crate) struct State {
    peers: BTreeMap<NodeId, Peer>,
    lines: BTreeMap<Line, (NodeId, LinkId)>,
    topics: BTreeMap<NodeId, Topic>,
    /// Counts what topic links are set to.
    generation: u64,
    audiences: Audiences,
    /// How messages pass between this node and those that are known, and whether that is to be looked at again.
    passages: BTreeMap<NodeId, Passage>,
    passages_changed: bool,
    dials: JoinSet<Result<(), Unwelcome>>,
    targets: HashMap<task::Id, Target>,
    /// The addresses of targets that are dialled, or linked by such a dial.
    dialling: BTreeMap<Target, Vec<String>>,
    saves: JoinSet<(u64, io::Result<()>)>,
    helds: JoinSet<()>,
    /// Writes of revocation lists, one at a time, and whether another is to follow.
    list_writes: JoinSet<()>,
    writes_lists: bool,
    looks: JoinSet<topics::Looked>,
    hand_overs: JoinSet<leave::AllWait>,
    clientele: clients::Clientele,
    /// Filters that came since the look under way began.
    came_since: Vec<(Source, Arc<str>)>,
    changes: Option<u64>,
    look_at: Option<Instant>,
    shown_at: Option<Instant>,
    is_shown_old: bool,
    leaving: Option<leave::Leaving>,
    /// When a state that could not be written is tried again.
    save_at: Option<Instant>,
    problems: BTreeMap<String, String>,
    /// The last reason for which a target was not reached, so that an unchanged one is not repeated.
    unreached: BTreeMap<Target, String>,
    /// Targets that said last that the certificate of this node is revoked.
    revoked_at: BTreeSet<Target>,
}

/// A member with a link.
struct Peer {
    line: Line,
    link: LinkId,
    carrier: Link,
    outbox: mpsc::Sender<Record>,
    side: Side,
    slowed: Slowed,
    /// Where this node reached it, if it was this node that dialled.
    dialled_at: Option<String>,
}

struct Topic {
    link: Box<dyn TopicLink>,
}

/// A generation that the broker holds for a member.
type Held = (NodeId, u64);

impl Driver {
    /// Works until `stop`, and then saves.
    pub(crate) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<FromLink>,
        mut commands: mpsc::Receiver<Command>,
        mut discovery: Option<Discovery>,
        stop: CancellationToken,
    ) {
        let mut subscriptions = self.bus.as_ref().map(|bus| bus.hold_subscriptions(HELD_MAX));
        let mut watch = self.bus.as_ref().map(Bus::watch_clients);
        self.list_clients();
        let (tell_held, mut held) = mpsc::channel::<Held>(64);
        let revocations = self.credentials.revocations().clone();
        let mut revoked = Box::pin(revocations.changed());
        self.spread_revocations(clock::now());
        self.state.passages = self.members.passages().collect();
        let gone = self.gone_meanwhile(&tell_held);
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.settle_sessions(&gone) => {}
        }
        self.open_topics(&tell_held);
        loop {
            let now = clock::now();
            self.work(now, &tell_held);
            let wake_at = self.wake_at(now);
            let room = self.room.clone();
            let State { dials, saves, looks, list_writes, clientele, hand_overs, .. } =
                &mut self.state;
            let lists = &mut clientele.lists;
            // In no order: a peer that floods is not to hold up commands and SUBACKs.
            tokio::select! {
                () = stop.cancelled() => break,
                Some(news) = inbox.recv() => {
                    self.news(clock::now(), news, &tell_held);
                    for _ in 0..IN_A_ROW_MAX {
                        let Ok(news) = inbox.try_recv() else { break };
                        self.news(clock::now(), news, &tell_held);
                    }
                }
                Some(ended) = dials.join_next_with_id() => self.dialled(clock::now(), ended),
                Some(saved) = saves.join_next() => self.saved(clock::now(), saved),
                Some((node, generation)) = held.recv() => {
                    if let Some(peer) = self.state.peers.get_mut(&node) {
                        peer.side.handle_held(generation);
                    }
                }
                Some(command) = commands.recv() => self.obey(clock::now(), command),
                Some(subscription) = next(subscriptions.as_mut()) => self.subscribed(clock::now(), subscription),
                Some(found) = looks.join_next() => self.looked(found),
                Some(handed) = hand_overs.join_next() => self.handed_over(clock::now(), handed),
                heard = heard(discovery.as_mut()) => {
                    if self.found(clock::now(), heard) {
                        discovery.iter().for_each(Discovery::announce_soon);
                    }
                }
                // A write that failed is in the log.
                Some(_) = list_writes.join_next() => {}
                // Changes that come while all are asked for wait until the answer has come.
                Some(watched) = clients::next(watch.as_mut()), if lists.is_empty() => {
                    self.client_watched(watched);
                    self.watch_more(watch.as_mut()).await;
                }
                Some(listed) = lists.join_next() => self.clients_listed(watch.as_mut(), listed),
                () = &mut revoked => {
                    revoked = Box::pin(revocations.changed());
                    self.spread_revocations(clock::now());
                }
                () = room.notified() => {}
                () = clock::sleep_until(wake_at) => {}
            }
        }
        drop((subscriptions, watch));
        loop {
            self.write_lists();
            if self.state.list_writes.join_next().await.is_none() {
                break;
            }
        }
        let (save, kept) = (self.members.last_save(), self.kept.clone());
        let saved = tokio::task::spawn_blocking(move || kept.save(&save)).await;
        if let Ok(Err(error)) = saved {
            tracing::warn!(%error, "the state of the fabric is not on the disk: this node comes back as one that was restored");
        }
    }

    /// Has the state machines do all that they want done now.
    fn work(&mut self, now: Instant, tell_held: &mpsc::Sender<Held>) {
        if self.members.poll_timeout().is_some_and(|at| at <= now) {
            self.members.handle_timeout(now);
        }
        self.state.audiences.handle_timeout(now);
        let events: Vec<_> = std::iter::from_fn(|| self.members.poll_event()).collect();
        if !events.is_empty() || std::mem::take(&mut self.state.passages_changed) {
            self.look_at_passages(tell_held);
        }
        events.into_iter().for_each(|event| self.happened(event, tell_held));
        self.look(now);
        while let Some(event) = self.clients.poll_event() {
            self.client_happened(now, event);
        }
        while let Some(order) = self.members.poll_dial(now) {
            self.dial(now, order);
        }
        let again = self.state.save_at.take_if(|at| *at <= now).map(|_| self.members.last_save());
        if self.state.saves.is_empty()
            && let Some(save) = again.or_else(|| self.members.poll_save())
        {
            let kept = self.kept.clone();
            self.state.saves.spawn_blocking(move || {
                let Save { ticket, .. } = save;
                (ticket, kept.save(&save))
            });
        }
        self.write_lists();
        self.transmit(now);
        self.end_leaving(now);
        self.show(now);
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        let State { audiences, look_at, shown_at, is_shown_old, leaving, .. } = &self.state;
        let shows = shown_at
            .map_or(now, |at| at + if *is_shown_old { SHOWN_EVERY } else { SHOWN_AT_LEAST });
        let leaves = leaving.as_ref().and_then(leave::Leaving::poll_timeout);
        let waits = audiences.poll_timeout();
        [self.members.poll_timeout(), waits, *look_at, Some(shows), leaves, self.state.save_at]
            .into_iter()
            .flatten()
            .min()
    }

    fn saved(&mut self, now: Instant, saved: Result<(u64, io::Result<()>), JoinError>) {
        const DISK: &str = "disk";
        match saved {
            Ok((ticket, written)) => {
                match written {
                    Ok(()) => drop(self.state.problems.remove(DISK)),
                    Err(error) => {
                        self.state.save_at = Some(now + SAVE_AGAIN);
                        let text = format!(
                            "the state of the fabric cannot be written ({error}): after a restart this node takes a new start"
                        );
                        if self.state.problems.insert(DISK.to_owned(), text.clone()).is_none() {
                            tracing::error!("{text}");
                        }
                    }
                }
                self.members.handle_saved(now, ticket);
            }
            Err(error) => {
                tracing::error!(%error, "the state of the fabric was not written");
                self.state.save_at = Some(now + SAVE_AGAIN);
            }
        }
    }

    fn name_of(&self, node: NodeId) -> String {
        let known = self.members.member(node).map(|member| member.record.name.clone());
        // One that is revoked is known no more.
        let was = || {
            let shown = self.shown.borrow();
            let was = shown.members.iter().find(|member| member.record.node == node);
            was.map(|member| member.record.name.clone())
        };
        known.or_else(was).unwrap_or_else(|| format!("{node:?}"))
    }

    fn spread_revocations(&mut self, now: Instant) {
        for list in self.credentials.revocations().shared() {
            let bytes = bytes::Bytes::copy_from_slice(&list.der);
            // One that all know already says nothing new.
            if let Err(error) = self.members.set_revocations(now, list.authority, bytes) {
                tracing::debug!(%error, "a list of revoked certificates is not news to the members");
            }
        }
    }

    /// Writes the lists of revoked certificates that members sent: they are in use already, and a disk that hangs holds up no member.
    fn write_lists(&mut self) {
        if self.state.writes_lists && self.state.list_writes.is_empty() {
            self.state.writes_lists = false;
            let revocations = self.credentials.revocations().clone();
            self.state.list_writes.spawn_blocking(move || revocations.keep_adopted());
        }
    }

    /// Whether this node takes its certificate for revoked: by the word of nodes that it dials, while it reaches no member at all. A node on
    /// the way to one could say so as well.
    fn is_revoked(&self) -> bool {
        !self.state.revoked_at.is_empty() && self.state.peers.is_empty()
    }

    fn obey(&mut self, now: Instant, command: Command) {
        match command {
            Command::Forget(node, answer) => {
                let forgotten = self.members.forget(now, node);
                // The asking side may be gone.
                let _ = answer.send(forgotten);
            }
            Command::Leave(answer) => self.leave(now, answer),
            Command::Cameras(cameras) => self.members.set_cameras(now, cameras),
            Command::Own(own) => {
                self.members.set_own(now, *own);
                self.state.passages_changed = true;
                // Where others dial it decides whether it fetches.
                let linked: Vec<NodeId> = self.state.peers.keys().copied().collect();
                linked.into_iter().for_each(|node| self.reach(node));
            }
        }
        self.state.is_shown_old = true;
    }
}

/// The next subscription; none ever without a broker.
async fn next(subscriptions: Option<&mut Subscriptions>) -> Option<Subscription> {
    match subscriptions {
        Some(subscriptions) => subscriptions.next().await,
        None => std::future::pending().await,
    }
}

/// The next node that a local network names; none ever where this node does not listen for them.
async fn heard(discovery: Option<&mut Discovery>) -> Heard {
    match discovery {
        Some(discovery) => discovery.next().await,
        None => std::future::pending().await,
    }
}
