//! The parts that links of every transport share: queues, frames under way, clock offset, tasks, the end.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidegate_identity::pki::PeerIdentity;
use tidegate_message::Instant;
use tidegate_wire::{
    Ack, Class, FrameHeader, Hello, NodeId, Ping, Pong, Record, Welcome,
    limits::{BULK_BYTES_MAX, FRAME_BYTES_MAX},
};
use tokio::{
    runtime::Handle as Runtime,
    sync::{mpsc, watch},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;

use super::{
    DownReason, FrameSending, Incoming, LinkError, LinkSettings, Outcome, Path, Priority,
    ProtocolError,
    frame::{Outgoing, Sending},
    offset::Offset,
};

/// Records that wait in one lane.
const LANE_RECORDS_MAX: usize = 256;
/// Bulk that waits for its turn.
const BULK_WAITING_MAX: usize = 4;
/// The first pings follow each other fast, so that an offset is known soon.
const PING_FAST: Duration = Duration::from_millis(50);
const PINGS_FAST: u64 = 8;

/// Owned by the handles of a link only: when the last is dropped, the link ends.
pub(super) struct Handle {
    pub(super) core: Arc<Core>,
    incoming: tokio::sync::Mutex<mpsc::Receiver<Incoming>>,
}

impl Handle {
    pub(super) async fn recv(&self) -> Result<Incoming, LinkError> {
        let mut incoming = self.incoming.lock().await;
        tokio::select! {
            biased;
            Some(item) = incoming.recv() => Ok(item),
            reason = self.core.closed() => incoming.try_recv().map_err(|_| LinkError::Down(reason)),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close(0, "no longer needed");
    }
}

/// Owned by the handles and by each task of the link.
pub(super) struct Core {
    pub(super) peer: PeerIdentity,
    pub(super) peer_address: SocketAddr,
    pub(super) config: LinkSettings,
    carrier: Arc<dyn Carrier>,
    pub(super) outgoing: Outgoing,
    /// Where its tasks run.
    pub(super) runtime: Runtime,
    pub(super) stop: CancellationToken,
    control: mpsc::Sender<Bytes>,
    critical: mpsc::Sender<Bytes>,
    bulk: mpsc::Sender<(Bytes, Bytes)>,
    incoming: mpsc::Sender<Incoming>,
    offset: Mutex<Offset>,
    heard: watch::Sender<bool>,
    /// The minor version that the peer speaks, as it introduced itself; 0 before, which every version reads.
    peer_minor: AtomicU8,
    /// When bytes of a frame came last, in nanoseconds of our clock; `i64::MIN` before the first.
    frame_bytes_at: AtomicI64,
    /// From one ping to the next, and the longest silence of the peer, in milliseconds: those of `config`, unless its role has others.
    keep_alive: AtomicU64,
    idle_timeout: AtomicU64,
    down: watch::Sender<Option<DownReason>>,
    /// Bytes that are being put together, of all links of this peer.
    assembling: Arc<AtomicUsize>,
    tasks: Mutex<JoinSet<()>>,
}

/// The transport of a link.
pub(super) trait Carrier: Send + Sync {
    /// Sends a frame whose record is `record`, until the peer has it, it is given up, or the link of `core` goes down.
    fn send_frame(
        self: Arc<Self>,
        core: &Arc<Core>,
        state: Arc<Sending>,
        record: Bytes,
        body: Bytes,
        priority: Priority,
    );

    /// Tells the peer how far a frame of its has come; a newer one follows, so this may get lost.
    fn send_ack(&self, ack: Ack);

    /// Ends the connection, and tells the peer why.
    fn close(&self, code: u32, reason: &str);

    fn path(&self) -> Path;
}

/// The other ends of a core's queues, for the tasks that empty them.
pub(super) struct Queues {
    pub(super) control: mpsc::Receiver<Bytes>,
    pub(super) critical: mpsc::Receiver<Bytes>,
    pub(super) bulk: mpsc::Receiver<(Bytes, Bytes)>,
}

impl Core {
    pub(super) fn begin(
        peer: PeerIdentity,
        peer_address: SocketAddr,
        config: LinkSettings,
        carrier: Arc<dyn Carrier>,
    ) -> (Handle, Queues) {
        let (control, control_end) = mpsc::channel(LANE_RECORDS_MAX);
        let (critical, critical_end) = mpsc::channel(LANE_RECORDS_MAX);
        let (bulk, bulk_end) = mpsc::channel(BULK_WAITING_MAX);
        let (incoming, incoming_end) = mpsc::channel(config.incoming_max);
        let assembling = assembling_of(peer.node);
        let core = Arc::new(Self {
            keep_alive: millis(config.keep_alive).into(),
            idle_timeout: millis(config.idle_timeout).into(),
            peer,
            peer_address,
            config,
            carrier,
            outgoing: Outgoing::default(),
            runtime: Runtime::current(),
            stop: CancellationToken::new(),
            control,
            critical,
            bulk,
            incoming,
            offset: Mutex::default(),
            heard: watch::Sender::new(false),
            peer_minor: AtomicU8::new(0),
            frame_bytes_at: AtomicI64::new(i64::MIN),
            down: watch::Sender::new(None),
            assembling,
            tasks: Mutex::default(),
        });
        core.spawn(ping(core.clone()));
        let queues = Queues { control: control_end, critical: critical_end, bulk: bulk_end };
        (Handle { core, incoming: incoming_end.into() }, queues)
    }

    pub(super) fn now(&self) -> Instant {
        (self.config.clock)()
    }

    /// Runs a task of this link until it ends or the link goes down.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.spawn_to_end(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Runs a task of this link that heeds `stop` by itself.
    pub(super) fn spawn_to_end(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let guard = Guard { core: self.clone(), has_ended: false };
        let mut tasks = self.tasks.lock().expect("no holder of this lock panics");
        while tasks.try_join_next().is_some() {} // frees the slots; panics took the link down already
        tasks.spawn(async move {
            // All of it, not the one field.
            let mut guard = guard;
            task.await;
            guard.has_ended = true;
        });
    }

    pub(super) async fn send(&self, record: &Record) -> Result<(), LinkError> {
        let lane = match record.class() {
            Class::Control => &self.control,
            Class::Critical => &self.critical,
            Class::Frame | Class::Bulk => return Err(LinkError::Class { name: record.name() }),
        };
        let bytes = record.to_bytes_for(self.peer_minor.load(Ordering::Relaxed));
        lane.send(bytes).await.map_err(|_| self.down_error())
    }

    pub(super) async fn send_bulk(&self, record: &Record, body: Bytes) -> Result<(), LinkError> {
        if record.class() != Class::Bulk {
            return Err(LinkError::Class { name: record.name() });
        }
        check_length(body.len() as u64, BULK_BYTES_MAX)?;
        self.bulk.send((record.to_bytes(), body)).await.map_err(|_| self.down_error())
    }

    pub(super) fn send_frame(
        self: &Arc<Self>,
        header: FrameHeader,
        body: Bytes,
        priority: Priority,
        deadline: Option<time::Instant>,
    ) -> Result<FrameSending, LinkError> {
        if header.bytes != body.len() as u64 {
            return Err(LinkError::Length { bytes: body.len() as u64, expected: header.bytes });
        }
        check_length(header.bytes, FRAME_BYTES_MAX)?;
        let state = Sending::new(&header);
        if !self.outgoing.insert(state.clone(), self.config.frames_max) {
            return Err(LinkError::Busy { limit: self.config.frames_max });
        }
        // After it was inserted: a link that goes down from here on settles it.
        if self.down.borrow().is_some() {
            self.outgoing.settle_all(Outcome::Lost);
            return Err(self.down_error());
        }
        if let Some(deadline) = deadline {
            let state = state.clone();
            self.spawn(async move {
                if time::timeout_at(deadline, state.outcome()).await.is_err() {
                    state.reset();
                }
            });
        }
        let record = Record::from(header).to_bytes();
        self.carrier.clone().send_frame(self, state.clone(), record, body, priority);
        Ok(FrameSending { state })
    }

    /// Tells the peer how far a frame of its has come; a newer one follows, so this may get lost.
    pub(super) fn send_progress(&self, ack: Ack) {
        self.carrier.send_ack(ack);
    }

    /// Tells the peer the last about a frame of its.
    pub(super) async fn send_final(&self, ack: Ack) {
        // The end of the link is the only failure, and all parts learn of that.
        let _ = self.control.send(Record::from(ack).to_bytes()).await;
    }

    /// Hands something to the application; waits while it is busy.
    pub(super) async fn deliver(&self, item: Incoming) {
        // The receiver lives as long as the last handle, and with that the link ends.
        let _ = self.incoming.send(item).await;
    }

    /// Takes a record that came in a lane.
    pub(super) async fn handle_record(
        &self,
        record: Record,
        lane: Class,
    ) -> Result<(), ProtocolError> {
        self.heard.send_replace(true);
        if record.class() != lane {
            let on = if lane == Class::Control { "the control lane" } else { "the critical lane" };
            return Err(ProtocolError::Misplaced { name: record.name(), on });
        }
        if let Record::Hello(Hello { minor, .. }) | Record::Welcome(Welcome { minor, .. }) = record
        {
            self.peer_minor.store(minor, Ordering::Relaxed);
        }
        match record {
            Record::Ping(Ping { sequence, sent }) => {
                let now = self.now();
                let pong = Record::from(Pong { sequence, sent, received: now, replied: now });
                // A full lane would make the answer wrong anyway; the next ping comes soon.
                let _ = self.control.try_send(pong.to_bytes());
            }
            Record::Pong(pong) => {
                let mut offset = self.offset.lock().expect("no holder of this lock panics");
                offset.handle_pong(self.now(), pong);
            }
            // The last word about a frame: a transfer of every frame waits for it.
            Record::Ack(ack) if self.outgoing.acked(&ack) => {
                self.deliver(Incoming::Ack(ack)).await;
            }
            Record::Ack(_) => {}
            record => self.deliver(Incoming::Record(record)).await,
        }
        Ok(())
    }

    /// Takes word of how far a frame has come.
    pub(super) fn handle_progress(&self, ack: Ack) {
        if self.outgoing.acked(&ack) {
            // Shed when full: see the module's doc.
            let _ = self.incoming.try_send(Incoming::Ack(ack));
        }
    }

    /// Makes room for a body of `bytes`; gives it back when dropped. `None` beyond the limit of its peer, all links of it together, or of all
    /// peers.
    pub(super) fn assemble(self: &Arc<Self>, bytes: u64) -> Option<Assembling> {
        let bytes = usize::try_from(bytes).ok()?;
        let (all, own) = (&ASSEMBLING, &*self.assembling);
        take_room(all, own, bytes, self.config.assembly_bytes_max)
            .then(|| Assembling { core: self.clone(), bytes })
    }

    /// Takes note of bytes of a frame that came.
    pub(super) fn frame_bytes(&self, now: Instant) {
        self.frame_bytes_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// When bytes of a frame came last.
    pub(super) fn frame_bytes_at(&self) -> Option<Instant> {
        let at = self.frame_bytes_at.load(Ordering::Relaxed);
        (at != i64::MIN).then(|| Instant::from_nanos(at))
    }

    pub(super) fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout.load(Ordering::Relaxed))
    }

    pub(super) fn set_liveness(&self, keep_alive: Duration, idle_timeout: Duration) {
        self.keep_alive.store(millis(keep_alive), Ordering::Relaxed);
        self.idle_timeout.store(millis(idle_timeout), Ordering::Relaxed);
    }

    pub(super) fn path(&self) -> Path {
        self.carrier.path()
    }

    pub(super) fn clock_offset(&self) -> Option<(i64, Duration)> {
        self.offset.lock().expect("no holder of this lock panics").estimate(self.now())
    }

    /// Returns once the peer has said something: it has accepted us.
    pub(super) async fn heard(&self) {
        let mut heard = self.heard.subscribe();
        let _ = heard.wait_for(|&heard| heard).await; // the sender is in `self`
    }

    pub(super) fn close(&self, code: u32, reason: &str) {
        self.carrier.close(code, reason);
        self.go_down(DownReason::ClosedHere { reason: reason.to_owned() });
    }

    /// The peer broke the protocol: it is sent the reason, and the link ends.
    pub(super) fn refuse(&self, error: ProtocolError) {
        self.carrier.close(1, &error.to_string());
        self.go_down(DownReason::Protocol(error));
    }

    /// The first reason stands.
    pub(super) fn go_down(&self, reason: DownReason) {
        let first = self.down.send_if_modified(|down| {
            let first = down.is_none();
            down.get_or_insert(reason);
            first
        });
        if first {
            self.outgoing.settle_all(Outcome::Lost);
            self.stop.cancel();
        }
    }

    pub(super) fn down(&self) -> Option<DownReason> {
        self.down.borrow().clone()
    }

    pub(super) async fn closed(&self) -> DownReason {
        let mut down = self.down.subscribe();
        match down.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().expect("waited for it"),
            Err(_) => unreachable!("the sender is in `self`"),
        }
    }

    fn down_error(&self) -> LinkError {
        let reason = self.down();
        let unknown = || DownReason::Broken { reason: "its tasks have ended".to_owned() };
        LinkError::Down(reason.unwrap_or_else(unknown))
    }
}

/// Bytes being assembled of all peers of the program, which have as much together as this many of them have alone.
static ASSEMBLING: AtomicUsize = AtomicUsize::new(0);
const FULL_PEERS_MAX: usize = 4;

/// Takes room for `bytes` out of what all have and one peer has. A peer has half at most of what the others leave, so that a few which end
/// no body keep none from the rest.
fn take_room(all: &AtomicUsize, own: &AtomicUsize, bytes: usize, own_max: usize) -> bool {
    let fits = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= own_max);
    let Ok(before) = own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) else {
        return false;
    };
    let all_max = own_max.saturating_mul(FULL_PEERS_MAX);
    let fits = |used: usize| {
        let left_by_others = all_max.saturating_sub(used.saturating_sub(before));
        (before + bytes <= left_by_others / 2).then(|| used + bytes)
    };
    let has_room = all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
    if !has_room {
        own.fetch_sub(bytes, Ordering::Relaxed);
    }
    has_room
}

/// Bytes being assembled of all links of a peer: a peer that opens many is given no more for it.
fn assembling_of(peer: NodeId) -> Arc<AtomicUsize> {
    static PEERS: Mutex<BTreeMap<[u8; 32], Weak<AtomicUsize>>> = Mutex::new(BTreeMap::new());
    let mut peers = PEERS.lock().expect("no holder of this lock panics");
    if let Some(known) = peers.get(&peer.0).and_then(Weak::upgrade) {
        return known;
    }
    peers.retain(|_, known| known.strong_count() > 0);
    let new = Arc::new(AtomicUsize::new(0));
    peers.insert(peer.0, Arc::downgrade(&new));
    new
}

/// Bytes of a body that is being put together.
pub(super) struct Assembling {
    core: Arc<Core>,
    bytes: usize,
}

impl Drop for Assembling {
    fn drop(&mut self) {
        self.core.assembling.fetch_sub(self.bytes, Ordering::Relaxed);
        ASSEMBLING.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Takes the link down if its task panics, or is dropped with its runtime.
struct Guard {
    core: Arc<Core>,
    has_ended: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if std::thread::panicking() {
            tracing::error!(peer = %self.core.peer, "a task of the link panicked");
        }
        self.core.close(2, "internal error");
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn check_length(bytes: u64, limit: u64) -> Result<(), LinkError> {
    if bytes > limit { Err(LinkError::Length { bytes, expected: limit }) } else { Ok(()) }
}

/// Asks for the peer's clock, which also shows that both are alive.
async fn ping(core: Arc<Core>) {
    for sequence in 0.. {
        let ping = Record::from(Ping { sequence, sent: core.now() });
        if core.control.send(ping.to_bytes()).await.is_err() {
            return;
        }
        let keep_alive = Duration::from_millis(core.keep_alive.load(Ordering::Relaxed));
        time::sleep(if sequence < PINGS_FAST { PING_FAST } else { keep_alive }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_end_no_body_leave_room_for_others() {
        let all = AtomicUsize::new(0);
        let peers: Vec<AtomicUsize> = (0..15).map(|_| AtomicUsize::new(0)).collect();
        for own in &peers[..14] {
            while take_room(&all, own, 1, 1000) {}
        }
        let held: Vec<usize> = peers.iter().map(|own| own.load(Ordering::Relaxed)).collect();
        assert!(held[0] == 1000 && held[..4].iter().all(|own| *own >= 500), "{held:?}");
        assert_eq!(all.load(Ordering::Relaxed), held.iter().sum::<usize>());
        assert!(all.load(Ordering::Relaxed) <= 4000, "{held:?}");
        // Given back, it is there for the next.
        all.fetch_sub(held[0], Ordering::Relaxed);
        peers[0].store(0, Ordering::Relaxed);
        assert!(take_room(&all, &peers[14], 400, 1000));
        assert!(!take_room(&all, &peers[14], 700, 1000), "more than a peer has");
        assert_eq!(peers[14].load(Ordering::Relaxed), 400, "it holds nothing that was refused");
    }
}
