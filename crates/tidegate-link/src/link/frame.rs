//! One frame on its way out, and the acks of one on its way in.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_message::Instant;
use tidegate_wire::{Ack, FrameHeader, TransferId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// An ack goes out at least this often while bytes arrive.
pub(super) const ACK_INTERVAL: Duration = Duration::from_millis(10);
/// An ack goes out after this many bytes.
pub(super) const ACK_BYTES: u64 = 32 << 10;

/// Which frame goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before every frame in order, and after the live frames that were handed over earlier: the size of
    /// a new frame is budgeted behind the bytes that are under way, so those must leave first. A frame
    /// that is not worth finishing is reset.
    #[default]
    Live,
    /// After every frame that was handed over earlier, and after all live ones: replayed frames, and
    /// transfers that deliver every frame.
    InOrder,
}

/// The outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The peer has all of it.
    Sent,
    /// It was reset, here or by the peer. Its last byte may have left before: then an ack still says
    /// complete.
    Reset,
    /// The link went down first.
    Lost,
}

/// How far a frame has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the body handed to the transport.
    pub written: u64,
    /// Bytes of the body that the peer has acknowledged.
    pub received: u64,
    /// Length of the body.
    pub total: u64,
}

/// A frame under way. Dropping this does not stop it.
#[derive(Clone, Debug)]
pub struct FrameSending {
    pub(super) state: Arc<Sending>,
}

impl FrameSending {
    /// The outcome of the frame, once that is known.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn done(&self) -> Outcome {
        self.state.outcome().await
    }

    /// Gives the frame up: bytes that have not left this node will not leave it, and the peer is notified.
    pub fn reset(&self) {
        self.state.reset();
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress {
            written: self.state.written.load(Ordering::Relaxed),
            received: self.state.received.load(Ordering::Relaxed),
            total: self.state.total,
        }
    }
}

/// Names a frame on its link.
pub(super) type FrameKey = (TransferId, Instant);

/// A frame on its way out.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) key: FrameKey,
    pub(super) total: u64,
    pub(super) written: AtomicU64,
    received: AtomicU64,
    outcome: watch::Sender<Option<Outcome>>,
    given_up: CancellationToken,
}

impl Sending {
    pub(super) fn new(header: &FrameHeader) -> Arc<Self> {
        Arc::new(Self {
            key: (header.transfer, header.at),
            total: header.bytes,
            written: AtomicU64::new(0),
            received: AtomicU64::new(0),
            outcome: watch::Sender::new(None),
            given_up: CancellationToken::new(),
        })
    }

    pub(super) fn reset(&self) {
        self.settle(Outcome::Reset);
        self.given_up.cancel();
    }

    /// Returns once the frame was given up here.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// The first outcome stands.
    pub(super) fn settle(&self, outcome: Outcome) {
        self.outcome.send_if_modified(|settled| {
            let first = settled.is_none();
            settled.get_or_insert(outcome);
            first
        });
    }

    pub(super) fn is_settled(&self) -> bool {
        self.outcome.borrow().is_some()
    }

    pub(super) async fn outcome(&self) -> Outcome {
        let mut outcome = self.outcome.subscribe();
        let settled = outcome.wait_for(Option::is_some).await;
        settled.ok().and_then(|settled| *settled).unwrap_or(Outcome::Lost)
    }

    /// Takes note of an ack; false if it is older than what is known.
    pub(super) fn acked(&self, ack: &Ack) -> bool {
        let before = self.received.fetch_max(ack.received, Ordering::Relaxed);
        if ack.complete {
            self.settle(Outcome::Sent);
        } else if ack.reset_seen {
            self.settle(Outcome::Reset);
        }
        ack.is_final() || ack.received > before || before == 0
    }
}

/// Decides when a frame that arrives is acknowledged.
pub(super) struct Receipt {
    ack: Ack,
    told: Option<(Instant, u64)>,
}

impl Receipt {
    pub(super) fn new(header: &FrameHeader, now: Instant) -> Self {
        let ack = Ack {
            transfer: header.transfer,
            frame: header.at,
            received: 0,
            total: header.bytes,
            first_at: now,
            last_at: now,
            complete: false,
            reset_seen: false,
        };
        Self { ack, told: None }
    }

    pub(super) fn first_at(&self) -> Instant {
        self.ack.first_at
    }

    pub(super) fn last_at(&self) -> Instant {
        self.ack.last_at
    }

    pub(super) fn received(&self) -> u64 {
        self.ack.received
    }

    /// Takes note of `bytes` more; returns the ack to send now, if one is due.
    pub(super) fn arrived(&mut self, now: Instant, bytes: u64) -> Option<Ack> {
        if self.ack.received == 0 {
            self.ack.first_at = now;
        }
        self.ack.received += bytes;
        self.ack.last_at = now;
        let due = match self.told {
            None => true,
            Some((at, told)) => {
                now.since(at) >= ACK_INTERVAL || self.ack.received - told >= ACK_BYTES
            }
        };
        due.then(|| self.tell(now))
    }

    /// The ack that is due because time passed, if bytes came since the last one.
    pub(super) fn due(&mut self, now: Instant) -> Option<Ack> {
        let (at, told) = self.told?;
        (self.ack.received > told && now.since(at) >= ACK_INTERVAL).then(|| self.tell(now))
    }

    /// Whether bytes came that no ack has reported.
    pub(super) fn untold(&self) -> bool {
        self.told.is_some_and(|(_, told)| self.ack.received > told)
    }

    pub(super) fn complete(mut self) -> Ack {
        self.ack.complete = true;
        self.ack
    }

    pub(super) fn reset(mut self) -> Ack {
        self.ack.reset_seen = true;
        self.ack
    }

    fn tell(&mut self, now: Instant) -> Ack {
        self.told = Some((now, self.ack.received));
        self.ack
    }
}

/// Frames under way, by name.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    frames: Mutex<Vec<Arc<Sending>>>,
}

impl Outgoing {
    /// Takes a frame in, unless `limit` are under way.
    pub(super) fn insert(&self, frame: Arc<Sending>, limit: usize) -> bool {
        let mut frames = self.lock();
        let under_way = frames.iter().filter(|frame| !frame.is_settled()).count();
        if under_way >= limit {
            return false;
        }
        // A frame that was reset before the peer saw its header gets no last ack: forget the oldest.
        if frames.len() >= 2 * limit {
            let settled = frames.iter().position(|frame| frame.is_settled());
            frames.remove(settled.expect("fewer than the limit are not settled"));
        }
        frames.push(frame);
        true
    }

    /// Records an ack; false if it is of no use.
    pub(super) fn acked(&self, ack: &Ack) -> bool {
        let mut frames = self.lock();
        // A frame may be sent again, smaller, after a reset: its length tells the two apart.
        let named = |frame: &Arc<Sending>| {
            frame.key == (ack.transfer, ack.frame) && frame.total == ack.total
        };
        let Some(found) = frames.iter().rposition(named) else { return false };
        let news = frames[found].acked(ack);
        if ack.is_final() {
            frames.remove(found);
        }
        news
    }

    pub(super) fn settle_all(&self, outcome: Outcome) {
        for frame in self.lock().drain(..) {
            frame.settle(outcome);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Sending>>> {
        self.frames.lock().expect("no holder of this lock panics")
    }
}
