//! The link of an uplink while it is dialled and while it carries, with the tasks that write to it.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_identity::pki::{Revocations, revocation::Revoked};
use tidegate_link::{
    introduce::Unwelcome,
    link::{Incoming, Link, LinkError},
};
use tidegate_message::Instant;
use tidegate_uplink::{Blocked, UplinkSession};
use tidegate_wire::{CriticalPart, Record, SensorBatch, Share, UplinkAck, UplinkReady};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::task::AbortOnDropHandle;

use super::dial::Down;
use crate::member::RESTS;

/// Batches and critical parts that wait for the link.
const BULK_WAITING_MAX: usize = 2;
const LANE_WAITING_MAX: usize = 16;

/// The link, if there is one.
pub(super) enum Linked {
    /// None, until it is to be dialled again.
    No,
    /// It is being dialled.
    Dialling(AbortOnDropHandle<Result<(Link, UplinkReady), Down>>),
    /// It carries.
    Up(Up),
}

/// A link that carries.
pub(super) struct Up {
    link: Link,
    lane: mpsc::Sender<CriticalPart>,
    bulk: mpsc::Sender<(SensorBatch, Bytes)>,
    /// Its writers, and what ends it.
    _tasks: JoinSet<()>,
}

/// An event of a link.
pub(super) enum Event {
    Dialled(Result<(Link, UplinkReady), Down>),
    Acknowledged(UplinkAck),
    Shared(Share),
    Down(Down),
}

impl Linked {
    /// The next event; none ever while there is no link. Cancel safe: nothing is lost.
    pub(super) async fn next(&mut self) -> Event {
        match self {
            Self::No => std::future::pending().await,
            Self::Dialling(dialling) => Event::Dialled(match dialling.await {
                Ok(dialled) => dialled,
                Err(error) => Err(LinkError::Socket(std::io::Error::other(error)).into()),
            }),
            Self::Up(up) => match up.link.recv().await {
                Ok(Incoming::Record(Record::UplinkAck(ack))) => Event::Acknowledged(ack),
                Ok(Incoming::Record(Record::Share(share))) => Event::Shared(share),
                Ok(Incoming::Record(Record::Refused(refused))) => Event::Down(
                    Unwelcome::Refused { code: refused.code, text: refused.text }.into(),
                ),
                Ok(Incoming::Record(record)) => {
                    Event::Down(Unwelcome::Unexpected(record.name()).into())
                }
                Ok(_) => Event::Down(Unwelcome::Unexpected("a body").into()),
                Err(error) => Event::Down(error.into()),
            },
        }
    }

    /// Gives the link what may go; of what more would go if the link had room.
    pub(super) fn send(&self, now: Instant, session: &mut UplinkSession) -> Blocked {
        let Self::Up(up) = self else { return Blocked::default() };
        let lane = loop {
            let Ok(permit) = up.lane.try_reserve() else { break true };
            let Some(part) = session.poll_part(now) else { break false };
            permit.send(part);
        };
        let bulk = loop {
            let Ok(permit) = up.bulk.try_reserve() else { break true };
            let Some(batch) = session.poll_batch(now) else { break false };
            permit.send(batch);
        };
        Blocked { lane, bulk }
    }

    /// The queues to wait for if something is blocked.
    pub(super) fn queues(&self, blocked: Blocked) -> Option<Queues> {
        match self {
            Self::Up(up) if blocked.bulk || blocked.lane => {
                Some((up.bulk.clone(), up.lane.clone()))
            }
            _ => None,
        }
    }

    /// Closes the link for want of anything to carry.
    pub(super) fn rest(&mut self) {
        if let Self::Up(up) = self {
            up.link.close(RESTS, "there is nothing to carry");
        }
        *self = Self::No;
    }

    /// Closes the link for that reason.
    pub(super) fn close(&mut self, why: &Down) {
        if let Self::Up(up) = self {
            up.link.close(1, &why.to_string());
        }
        *self = Self::No;
    }
}

impl Up {
    /// A link begins to carry; it ends when the other node's certificate is revoked.
    pub(super) fn new(link: Link, revocations: Arc<Revocations>) -> Self {
        let (lane, parts) = mpsc::channel(LANE_WAITING_MAX);
        let (bulk, batches) = mpsc::channel(BULK_WAITING_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(write_parts(link.clone(), parts));
        tasks.spawn(write_batches(link.clone(), batches));
        tasks.spawn(end_when_revoked(link.clone(), revocations));
        Self { link, lane, bulk, _tasks: tasks }
    }
}

/// The queues of the link: batches, and parts of critical messages.
type Queues = (mpsc::Sender<(SensorBatch, Bytes)>, mpsc::Sender<CriticalPart>);

/// Waits until either queue has room; faults of theirs are noticed elsewhere.
pub(super) async fn room(queues: Option<Queues>) {
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
