//! Devices of four applications at a broker, made up by [`crate::sensors`]: what they send, and whether all of it arrives.
//!
//! ```text
//!                ┌─ connection ─┐
//!  generators ─▶ ├─ connection ─┤─▶ broker ─▶ (uplink ─▶ broker above) ─▶ verifier, on a thread of its own
//!      │         └─ connection ─┘                                             ▲
//!      └── topic, payload and time of each message, before it is written ─────┘
//! ```
//!
//! [`crate::run`] measures a broker with few topics and stamps in payloads; here topics are as many as devices, and payloads are as
//! sensors send them, so that the verifier compares bytes: nothing in a message tells which one it is.
//!
//! One thread makes up and publishes a message in 1 to 2 µs, most of which is the generator's; messages of one connection leave 64 KiB
//! at a time.
//!
//! Always true: the nth message follows from the seed alone, and with a rate so does when it is due; messages of a device go through
//! one connection, in order; latency is counted from when a message was due.

mod args;
mod report;
mod verify;

use std::{
    num::NonZeroU64,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use tidegate_sys::clock::{monotonic_nanos, thread_cpu_nanos};
use tidegate_wire::mqtt::{QoS, ReasonCode};

use self::verify::{Batch, Ledger, VerifyError};
pub use self::{
    args::SensorArgs,
    report::{SensorReport, Verification, WorkloadReport},
};
use crate::{
    client::{ClientError, Options},
    outlet::{self, Outlet},
    sensors::{Arrival, Form, Generator, Workload},
};

/// Most devices of one workload.
pub const DEVICES_MAX: u64 = 20_000_000;
/// Most connections.
pub const CONNECTIONS_MAX: u16 = 1000;
/// Batches of messages on the way to the verifier; then the devices wait.
const BATCHES_MAX: usize = 256;
/// Messages between two looks at the sockets.
const MESSAGES_AT_ONCE: u32 = 512;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How soon it is noticed that a window has room.
const WINDOW_EVERY: Duration = Duration::from_micros(100);
/// How soon it is noticed that all has arrived.
const DRAIN_EVERY: Duration = Duration::from_millis(10);
const SECOND: i64 = 1_000_000_000;
const PROGRESS_EVERY: i64 = SECOND / 2;

/// Messages of devices, and the broker that they go to.
#[derive(Clone, Debug)]
pub struct SensorSpec {
    /// The broker that they are connected to; without client identifier.
    pub broker: Options,
    /// Its name in reports.
    pub target: String,
    /// Where it is verified what arrives, and its name. Default none: nothing is.
    pub verify_at: Option<(Options, String)>,
    /// Which applications, each once. Default all four.
    pub workloads: Vec<Workload>,
    /// Devices of each. Default none: as many as [`Workload::devices`] says.
    pub devices: Option<u64>,
    /// Messages a second of all together. Default none: as fast as they are taken, or received where that is verified.
    pub rate: Option<f64>,
    /// Without a rate, where it is verified what arrives: messages on the way. Default 10,000.
    pub window: u64,
    /// How long they send. Default 5 s.
    pub duration: Duration,
    /// Seed of the generators. Default 1.
    pub seed: u64,
    /// How numbers are written.
    pub form: Form,
    /// Which device is next.
    pub arrival: Arrival,
    /// Of so many messages of each workload one has an odd value, see [`Generator::with_odd`]. Default none.
    pub odd: Option<NonZeroU64>,
    /// Quality of service, of the verifier's subscription as well.
    pub qos: QoS,
    /// Unacknowledged messages of a connection with QoS 1 and 2. Default 1000.
    pub inflight: u16,
    /// Connections that devices are spread over. Default 1.
    pub connections: u16,
    /// How long is waited for what is on the way while nothing arrives. Default 2 s.
    pub drain: Duration,
}

impl Default for SensorSpec {
    fn default() -> Self {
        Self {
            broker: Options::default(),
            target: "127.0.0.1:1883".to_owned(),
            verify_at: None,
            workloads: Workload::ALL.to_vec(),
            devices: None,
            rate: None,
            window: 10_000,
            duration: Duration::from_secs(5),
            seed: 1,
            form: Form::default(),
            arrival: Arrival::default(),
            odd: None,
            qos: QoS::AtMostOnce,
            inflight: 1000,
            connections: 1,
            drain: Duration::from_secs(2),
        }
    }
}

impl SensorSpec {
    /// Devices of a workload.
    pub fn devices_of(&self, workload: Workload) -> u64 {
        self.devices.unwrap_or(workload.devices())
    }

    /// # Errors
    /// The first thing that cannot be run.
    pub fn check(&self) -> Result<(), SensorError> {
        let is_once = |at: usize| !self.workloads[..at].contains(&self.workloads[at]);
        if self.workloads.is_empty() || !(0..self.workloads.len()).all(is_once) {
            return Err(SensorError::Workloads);
        }
        if let Some(devices) = self.devices
            && !(1..=DEVICES_MAX).contains(&devices)
        {
            return Err(SensorError::Devices { devices });
        }
        if self.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            return Err(SensorError::Rate);
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return Err(SensorError::Connections { connections: self.connections });
        }
        if self.duration.is_zero() || self.duration > crate::Spec::DURATION_MAX {
            return Err(SensorError::Duration);
        }
        if self.window == 0 {
            return Err(SensorError::Window);
        }
        Ok(())
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SensorProgress {
    /// For how long devices have been sending.
    pub elapsed: Duration,
    /// Messages sent so far.
    pub sent: u64,
    /// And those of them that arrived, where that is verified.
    pub received: Option<u64>,
}

/// Why devices did not send, or it is not known whether all arrived.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// None, or one twice.
    #[error("name one to four workloads, each once: city, taxi, grid, fit")]
    Workloads,
    /// None, or too many.
    #[error("{devices} devices: each workload has from 1 to {DEVICES_MAX}")]
    Devices {
        /// How many were asked for.
        devices: u64,
    },
    /// No rate.
    #[error("a rate is a number of messages a second, over 0")]
    Rate,
    /// None, or too many.
    #[error("{connections} connections: there are from 1 to {CONNECTIONS_MAX}")]
    Connections {
        /// How many were asked for.
        connections: u16,
    },
    /// Nothing is sent, or for too long.
    #[error("devices send for over 0 and at most {:?}", crate::Spec::DURATION_MAX)]
    Duration,
    /// Nothing could be on the way.
    #[error("at least one message must be on the way")]
    Window,
    /// A broker, or the way there.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It cannot be said any more whether all arrives.
    #[error("arrivals cannot be verified")]
    Verify(#[from] VerifyError),
}

/// State that the sending and the verifying thread share.
#[derive(Debug, Default)]
struct Board {
    /// Messages that arrived, each once.
    received: AtomicU64,
    /// The verifier has ended: all that arrives has arrived, or there is an error.
    is_over: AtomicBool,
}

/// Has devices send as `spec` says, or until `stop` is set, and waits for what is on the way. `progress` is called twice a second.
///
/// # Errors
/// Any of [`SensorError`].
pub fn run(
    spec: &SensorSpec,
    stop: &AtomicBool,
    progress: impl FnMut(&SensorProgress),
) -> Result<SensorReport, SensorError> {
    spec.check()?;
    let board = Board::default();
    thread::scope(|scope| {
        let mut verifier = None;
        if let Some((options, _)) = &spec.verify_at {
            // A verifier that subscribes before anything is sent misses nothing.
            let client = verify::subscribe(options, spec)?;
            let (sender, batches) = sync_channel(BATCHES_MAX);
            let ledger = Ledger::new(spec.workloads.len());
            let board = &board;
            let thread = scope.spawn(move || {
                let verified = verify::run(client, ledger, &batches, spec.drain, &board.received);
                board.is_over.store(true, Ordering::Relaxed);
                verified
            });
            verifier = Some((sender, thread));
        }
        let (sender, thread) = verifier.unzip();
        let sent = Devices::connect(spec, sender, &board, stop, progress).and_then(Devices::send);
        let verified = thread.map(|thread| thread.join().expect("a verifier does not panic"));
        let verified = verified.transpose();
        // A failure at the verifier's end is the cause where both failed.
        let verified = verified.map_err(|error| match error {
            VerifyError::Client(error) => SensorError::Client(error),
            error => SensorError::Verify(error),
        })?;
        Ok(SensorReport::new(spec, sent?, verified, stop.load(Ordering::Relaxed)))
    })
}

/// Counts of messages that were sent.
#[derive(Debug, Default)]
struct Sent {
    /// Of each workload: messages, and bytes of topics and payloads.
    counts: Vec<(u64, u64)>,
    elapsed: Duration,
    /// How late the latest left; none without a rate.
    latest: Option<Duration>,
    acknowledged: u64,
    refused: u64,
    refusal: Option<ReasonCode>,
    window_timeouts: u64,
    cpu: Duration,
}

/// All devices, and the thread that speaks for them.
struct Devices<'a, F> {
    spec: &'a SensorSpec,
    generators: Vec<Generator>,
    outlets: Vec<Outlet>,
    /// To the verifier.
    batches: Option<SyncSender<Batch>>,
    batch: Batch,
    board: &'a Board,
    stop: &'a AtomicBool,
    progress: F,
    /// The next message, if it has been made.
    made: Option<Made>,
    topic: Vec<u8>,
    payload: Vec<u8>,
    messages: u64,
    start: i64,
    /// Of what waits for sockets.
    oldest_due: Option<i64>,
    window: Window,
    told_at: i64,
    sent: Sent,
}

#[derive(Clone, Copy, Debug)]
struct Made {
    workload: usize,
    connection: usize,
    due: i64,
}

/// Messages on the way, without a rate.
#[derive(Debug, Default)]
struct Window {
    /// Messages that are not waited for any more.
    forgiven: u64,
    received_before: u64,
    looked_at: i64,
}

impl<'a, F: FnMut(&SensorProgress)> Devices<'a, F> {
    fn connect(
        spec: &'a SensorSpec,
        batches: Option<SyncSender<Batch>>,
        board: &'a Board,
        stop: &'a AtomicBool,
        progress: F,
    ) -> Result<Self, SensorError> {
        let connect = |number| {
            let client_id = format!("sensors-{}-{number}", std::process::id());
            Outlet::connect(&Options { client_id, ..spec.broker.clone() }, spec.inflight)
        };
        let outlets = (0..spec.connections).map(connect).collect::<Result<_, _>>()?;
        let generator = |&workload: &Workload| {
            Generator::new(workload, spec.devices_of(workload), spec.seed)
                .with_form(spec.form)
                .with_arrival(spec.arrival)
                .with_odd(spec.odd)
        };
        Ok(Self {
            spec,
            generators: spec.workloads.iter().map(generator).collect(),
            outlets,
            batches,
            batch: Batch::default(),
            board,
            stop,
            progress,
            made: None,
            topic: Vec::new(),
            payload: Vec::new(),
            messages: 0,
            start: 0,
            oldest_due: None,
            window: Window::default(),
            told_at: 0,
            sent: Sent { counts: vec![(0, 0); spec.workloads.len()], ..Sent::default() },
        })
    }

    /// Sends until it is time to stop, and waits for acknowledgements.
    fn send(mut self) -> Result<Sent, SensorError> {
        let cpu_before = thread_cpu_nanos();
        self.start = monotonic_nanos() + 1_000_000;
        self.window.looked_at = self.start;
        let end = self.start + self.spec.duration.as_nanos() as i64;
        loop {
            let now = monotonic_nanos();
            let is_over = now >= end
                || self.stop.load(Ordering::Relaxed)
                || self.board.is_over.load(Ordering::Relaxed);
            if is_over {
                break;
            }
            for _ in 0..MESSAGES_AT_ONCE {
                if !self.send_one(now)? {
                    break;
                }
            }
            self.turn()?;
            self.wait(end)?;
        }
        outlet::settle(&mut self.outlets, || self.board.is_over.load(Ordering::Relaxed))?;
        self.turn()?;
        self.sent.cpu = nanos(thread_cpu_nanos() - cpu_before);
        // All is sent. Devices stay until it has arrived.
        let is_verified = self.batches.take().is_some();
        while is_verified && !self.board.is_over.load(Ordering::Relaxed) {
            let now = monotonic_nanos();
            self.outlets.iter_mut().try_for_each(|outlet| outlet.turn(now))?;
            outlet::wait(&mut self.outlets, DRAIN_EVERY)?;
        }
        for outlet in self.outlets {
            let exchanges = outlet.exchanges();
            self.sent.acknowledged += exchanges.acknowledged;
            self.sent.refused += exchanges.refused;
            self.sent.refusal = self.sent.refusal.or(exchanges.refusal);
            outlet.disconnect();
        }
        Ok(self.sent)
    }

    /// When the next message is due; none while the window has no room.
    fn due(&mut self, now: i64) -> Option<i64> {
        if let Some(made) = self.made {
            return Some(made.due);
        }
        if let Some(rate) = self.spec.rate {
            return Some(self.start + (self.messages as f64 * SECOND as f64 / rate) as i64);
        }
        if self.batches.is_none() {
            return Some(now); // TCP is the only limit
        }
        let received = self.board.received.load(Ordering::Relaxed);
        let outstanding = self.messages.saturating_sub(received + self.window.forgiven);
        if received != self.window.received_before || outstanding < self.spec.window {
            self.window.received_before = received;
            self.window.looked_at = now;
        } else if now - self.window.looked_at > SECOND {
            // A broker that sheds does not stop its load.
            self.window.forgiven += outstanding;
            self.window.looked_at = now;
            self.sent.window_timeouts += 1;
        }
        (outstanding < self.spec.window).then_some(now)
    }

    /// Makes a message up that is due, and gives it to its connection; false if none is due, or there is no room for it.
    fn send_one(&mut self, now: i64) -> Result<bool, SensorError> {
        let Some(due) = self.due(now).filter(|&due| due <= now) else { return Ok(false) };
        let made = match self.made.take() {
            Some(made) => made,
            None => {
                // By turns, so that each has its share.
                let workload = (self.messages % self.generators.len() as u64) as usize;
                self.topic.clear();
                self.payload.clear();
                let (device, _) =
                    self.generators[workload].next(&mut self.topic, &mut self.payload);
                let connection = (device % u64::from(self.spec.connections)) as usize;
                Made { workload, connection, due }
            }
        };
        let topic = std::str::from_utf8(&self.topic).expect("topics of sensors are ASCII");
        if !self.outlets[made.connection].push(topic, &self.payload, self.spec.qos)? {
            self.made = Some(made);
            return Ok(false);
        }
        if self.batches.is_some() {
            self.batch.push(made.workload, made.due, &self.topic, &self.payload);
        }
        self.messages += 1;
        let (messages, bytes) = &mut self.sent.counts[made.workload];
        *messages += 1;
        *bytes += (self.topic.len() + self.payload.len()) as u64;
        self.oldest_due.get_or_insert(made.due);
        Ok(true)
    }

    /// Tells the verifier, then writes, reads, and looks at the clock.
    fn turn(&mut self) -> Result<(), SensorError> {
        if let Some(batches) = &self.batches
            && !self.batch.is_empty()
        {
            // A verifier that does not listen has failed, which is seen soon.
            let _ = batches.send(std::mem::take(&mut self.batch));
        }
        let now = monotonic_nanos();
        self.outlets.iter_mut().try_for_each(|outlet| outlet.turn(now))?;
        let now = monotonic_nanos();
        if self.oldest_due.is_some() && self.outlets.iter().all(Outlet::is_flushed) {
            let late = nanos(now - self.oldest_due.take().unwrap_or(now));
            self.sent.elapsed = nanos(now - self.start);
            if self.spec.rate.is_some() {
                self.sent.latest = self.sent.latest.max(Some(late));
            }
        }
        if now - self.told_at >= PROGRESS_EVERY {
            self.told_at = now;
            let received = || self.board.received.load(Ordering::Relaxed);
            (self.progress)(&SensorProgress {
                elapsed: nanos(now - self.start),
                sent: self.messages,
                received: self.batches.is_some().then(received),
            });
        }
        Ok(())
    }

    fn wait(&mut self, end: i64) -> Result<(), SensorError> {
        let now = monotonic_nanos();
        let timeout = match (self.made, self.due(now)) {
            // It waits for room, or an acknowledgement.
            (Some(made), _) if !self.outlets[made.connection].may_push(self.spec.qos) => LOOK_EVERY,
            (_, Some(due)) => nanos(due.min(end) - now).min(LOOK_EVERY),
            (_, None) => WINDOW_EVERY,
        };
        Ok(outlet::wait(&mut self.outlets, timeout)?)
    }
}

fn nanos(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_run_is_refused_with_the_bound() {
        let with = |change: fn(&mut SensorSpec)| {
            let mut spec = SensorSpec::default();
            change(&mut spec);
            spec.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| ()), Ok(()));
        for (change, expected) in [
            ((|spec| spec.workloads.clear()) as fn(&mut SensorSpec), "one to four workloads"),
            (|spec| spec.workloads.push(Workload::City), "each once"),
            (|spec| spec.devices = Some(0), "0 devices: each workload has from 1 to 20000000"),
            (|spec| spec.devices = Some(u64::MAX), "to 20000000"),
            (|spec| spec.rate = Some(f64::NAN), "over 0"),
            (|spec| spec.rate = Some(0.0), "over 0"),
            (|spec| spec.connections = 0, "from 1 to 1000"),
            (|spec| spec.duration = Duration::ZERO, "at most 86400s"),
            (|spec| spec.window = 0, "at least one message"),
        ] {
            let error = with(change).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
