//! Links to other members: those that they dialled, and those that this node did.
//!
//! ```text
//!  Visit, or a dial ─▶ carry ─┬─ reads ──▶ FromLink ─▶ the driver of this node
//!                             └─ writes ◀─ Outbox ◀──┘
//! ```
//!
//! They go over TCP: the end of a process that was killed comes as the end of its connection, within milliseconds, where QUIC would wait
//! for the silence to last. For a node that hangs or is cut off the silence has to do, so the end that dialled says something every
//! [`KEEP_ALIVE`]; the other one answers, and says little of its own.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tidegate_api::ApiError;
use tidegate_fabric::members::{
    Dial, DialNumber, Pace, Target,
    limits::{HURRIED_FOR, LINK_UNIT_EVERY, LINK_UNITS_AT_ONCE},
};
use tidegate_identity::pki::{Credentials, Kind, PeerIdentity};
use tidegate_link::{
    introduce::{self, Unwelcome},
    link::{Incoming, Link, LinkSettings, Transport},
    roles::{Serve, Serving, Visit},
};
use tidegate_message::{Code, Instant};
use tidegate_process::clock;
use tidegate_wire::{NodeId, Record, Role};
use tokio::sync::{Notify, mpsc};

/// The end that dialled says something so often: twice a second would be more than 200 bytes a second on each idle link.
const KEEP_ALIVE: Duration = Duration::from_millis(600);
/// The other end, in addition to its answers.
const KEEP_ALIVE_OF_ANSWERS: Duration = Duration::from_secs(10);
/// A member that is silent for so long is missed. Four times what it says: a node whose cores are all busy still does.
const IDLE_TIMEOUT: Duration = Duration::from_millis(2_400);
/// Longest time to connect and authenticate.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// For the last records of a link that is let go.
const LAST_WORD: Duration = Duration::from_millis(200);
/// Records on their way to a link's writer. The driver gives it no more until there is room.
const OUTBOX_MAX: usize = 16;
/// The first minor version of the link that knows records of members.
const MINOR_MIN: u8 = 5;

/// Tells a connection from others to the same member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Line(u64);

/// News of a link.
#[derive(Debug)]
pub(crate) enum FromLink {
    /// It begins.
    Up(Up),
    /// The member says something.
    Came(Line, Record),
    /// It is over, and why.
    Down(Line, String),
}

/// A link that begins.
pub(crate) struct Up {
    pub(crate) id: Line,
    pub(crate) peer: PeerIdentity,
    /// Whether this node dialled, at which target.
    pub(crate) by: Option<Target>,
    /// The dial by which it came, as both ends know it.
    pub(crate) number: DialNumber,
    pub(crate) link: Link,
    /// To its writer, which wakes the driver once there is room again.
    pub(crate) outbox: mpsc::Sender<Record>,
    /// When less of it was read than the member had sent.
    pub(crate) slowed: Slowed,
}

impl std::fmt::Debug for Up {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, peer, by, number, .. } = self;
        let mut shown = f.debug_struct("Up");
        shown.field("id", id).field("peer", peer).field("by", by).field("number", number).finish()
    }
}

/// When less of a link was read for the last time than its member had sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slowed(Arc<Mutex<Option<Instant>>>);

impl Slowed {
    fn note(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Whether it was lately.
    pub(crate) fn is_so(&self, now: Instant) -> bool {
        let at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| now.since(at) < HURRIED_FOR)
    }
}

/// The work that a record may be, in units of [`LINK_UNIT_EVERY`].
fn units(record: &Record) -> u32 {
    let some = match record {
        Record::SharedPart(part) => part.bytes.len() / 1024,
        Record::MemberDigest(digest) => digest.entries.len() / 32,
        Record::Interests(interests) => (interests.added.len() + interests.removed.len()) / 32,
        Record::ClientClaims(clients) => (clients.claims.len() + clients.verdicts.len()) / 32,
        _ => 0,
    };
    u32::try_from(some).unwrap_or(u32::MAX).saturating_add(1)
}

/// Where links of members come together.
#[derive(Clone, Debug)]
pub(crate) struct Hub {
    to_driver: mpsc::Sender<FromLink>,
    /// A writer has taken something.
    room: Arc<Notify>,
    next: Arc<AtomicU64>,
}

impl Hub {
    pub(crate) fn new(to_driver: mpsc::Sender<FromLink>, room: Arc<Notify>) -> Self {
        Self { to_driver, room, next: Arc::default() }
    }

    /// Passes what comes to the driver, and what the driver says to the member, until the link is over.
    async fn carry(&self, link: &Link, by: Option<Target>, number: DialNumber) {
        let id = Line(self.next.fetch_add(1, Relaxed));
        let (outbox, mut records) = mpsc::channel(OUTBOX_MAX);
        let (peer, handle) = (link.peer().clone(), link.clone());
        let slowed = Slowed::default();
        let up = Up { id, peer, by, number, link: handle, outbox, slowed: slowed.clone() };
        if self.to_driver.send(FromLink::Up(up)).await.is_err() {
            return link.close(0, "the node stops");
        }
        // However this ends: by its end, or since it is dropped with its visit.
        let mut ending = Ending { hub: self, id, link, why: "this node lets it go".to_owned() };
        let reads = async {
            let mut pace = Pace::new(LINK_UNIT_EVERY, LINK_UNITS_AT_ONCE);
            loop {
                match link.recv().await {
                    Ok(Incoming::Record(record)) => {
                        let now = clock::now();
                        let wait = pace.take(now, units(&record));
                        if !wait.is_zero() {
                            slowed.note(now);
                            tokio::time::sleep(wait).await;
                        }
                        // A driver that has ended stops the node.
                        let _ = self.to_driver.send(FromLink::Came(id, record)).await;
                    }
                    Ok(_) => return "a body came over a link of members".to_owned(),
                    Err(error) => return tidegate_message::error_chain(&error),
                }
            }
        };
        let writes = async {
            while let Some(record) = records.recv().await {
                self.room.notify_one();
                if link.send(record).await.is_err() {
                    // The reader knows why.
                    return std::future::pending().await;
                }
            }
        };
        tokio::select! {
            why = reads => ending.why = why,
            // The records that it was given last leave before the link is closed.
            () = async { writes.await; tokio::time::sleep(LAST_WORD).await } => {}
        }
    }
}

/// Closes a link and says so.
struct Ending<'a> {
    hub: &'a Hub,
    id: Line,
    link: &'a Link,
    why: String,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.link.close(0, &self.why);
        let why = match self.link.down() {
            Some(reason) => reason.to_string(),
            None => std::mem::take(&mut self.why),
        };
        // Without room the driver sees that its outbox is closed.
        let _ = self.hub.to_driver.try_send(FromLink::Down(self.id, why));
    }
}

/// Serves the links of the role `Member`.
#[derive(Debug)]
pub(crate) struct MemberLinks {
    pub(crate) hub: Hub,
    /// This node.
    pub(crate) me: NodeId,
}

impl Serve for MemberLinks {
    fn serve(self: Arc<Self>, visit: Visit) -> Serving {
        Box::pin(async move {
            let peer = visit.peer();
            if peer.kind != Kind::Node {
                let text =
                    format!("the certificate of {peer} is not a node's, which a member needs");
                return visit.turn_away(ApiError::new(Code::IDENTITY_REFUSED, text)).await;
            }
            if visit.hello.minor < MINOR_MIN {
                let text = format!(
                    "{peer} speaks version 1.{} of the link, and members need 1.{MINOR_MIN}: update it",
                    visit.hello.minor
                );
                return visit.turn_away(ApiError::new(Code::LINK_PROTOCOL, text)).await;
            }
            visit.welcome().await?;
            if peer.node == self.me {
                // A seed is this node's own address: the end that dialled learns so, and ends it.
                visit.link.closed().await;
                return Ok(());
            }
            visit.link.set_liveness(KEEP_ALIVE_OF_ANSWERS, IDLE_TIMEOUT);
            let serving = async {
                tokio::select! {
                    () = self.hub.carry(&visit.link, None, visit.hello.epoch.into()) => {}
                    () = visit.stop.cancelled() => visit.link.close(0, "the node stops"),
                }
                Ok(())
            };
            visit.unless_revoked(serving).await
        })
    }
}

/// Dials members.
#[derive(Clone)]
pub(crate) struct Dialler {
    pub(crate) hub: Hub,
    pub(crate) credentials: Credentials,
    pub(crate) settings: LinkSettings,
}

impl Dialler {
    /// Dials the addresses in turn and carries the first link, to its end.
    ///
    /// # Errors
    /// [`Unwelcome`], of the address that was tried last: there was no link.
    pub(crate) async fn dial(self, order: Dial) -> Result<(), Unwelcome> {
        let settings = LinkSettings {
            keep_alive: KEEP_ALIVE,
            idle_timeout: IDLE_TIMEOUT,
            connect_timeout: CONNECT_MAX,
            ..self.settings
        };
        let mut failed = None;
        for address in &order.addresses {
            let role = (Role::Member, order.number.into());
            let visited = introduce::visit(
                address,
                &self.credentials,
                settings.clone(),
                Transport::Tcp,
                role,
            );
            match visited.await {
                Ok((link, _)) => {
                    if let Target::Member(whom) = order.target
                        && link.peer().node != whom
                    {
                        link.close(0, "another member was dialled");
                        failed = Some(Unwelcome::Unexpected("another node's certificate"));
                        continue;
                    }
                    let revocations = self.credentials.revocations();
                    tokio::select! {
                        () = self.hub.carry(&link, Some(order.target), order.number) => {}
                        revoked = revocations.revoked(&link.peer().serial) => {
                            let text = format!("the certificate of the other node was revoked: {}", revoked.reason);
                            link.close(1, &text);
                            let code = Code::IDENTITY_REVOKED.as_str().to_owned();
                            return Err(Unwelcome::Refused { code, text });
                        }
                    }
                    return Ok(());
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or(Unwelcome::Silent))
    }
}
