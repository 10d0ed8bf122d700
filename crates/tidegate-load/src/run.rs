//! A run: connects everybody, starts them together, waits for what is on the way, and adds up.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tidegate_sys::clock::monotonic_nanos;

use crate::{
    process::ProcessError,
    report::{Failure, Report},
    shared::Shared,
    spec::{Spec, SpecError},
    url::{BrokerUrl, Endpoint, UrlError},
    worker::{Outcome, Targets, Worker},
};

/// How often the caller hears of the progress, and how soon a stop is noticed at the latest.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Its phase.
    pub phase: Phase,
    /// For how long it has been doing this.
    pub elapsed: Duration,
    /// Connections that are ready.
    pub connected: u64,
    /// Messages sent so far.
    pub sent: u64,
    /// Messages received so far.
    pub received: u64,
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Making connections.
    Connect,
    /// Sending, not yet measured.
    WarmUp,
    /// Sending, measured.
    Measure,
    /// Waiting for what is on the way.
    Drain,
}

/// Puts the load of `spec` on its broker, until it is done or `stop` is set, which ends the sending early and counts what there
/// is. `progress` is called twice a second.
///
/// # Errors
/// The load cannot be run as it is asked for, the broker cannot be found, or no connection could be made. Single connections that fail
/// are in the report.
pub fn run(
    spec: &Spec,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Progress),
) -> Result<Report, LoadError> {
    spec.check()?;
    let endpoint = endpoint(spec, &spec.target)?;
    let subscribe_target = spec.subscribe_target.as_deref().unwrap_or(&spec.target);
    let targets = Targets {
        publish: resolve(&endpoint, &spec.target)?,
        subscribe: resolve(&self::endpoint(spec, subscribe_target)?, subscribe_target)?,
    };
    raise_file_limit();
    if let Some(process) = spec.process {
        crate::process::usage(process)?;
    }
    let threads = usize::from(spec.threads.max(1));
    let shared =
        Shared::new(spec, &endpoint, threads).map_err(|source| LoadError::System { source })?;
    let (settled, all_settled) = mpsc::channel();
    let outcomes = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let (shared, settled) = (&shared, settled.clone());
                scope.spawn(move || Worker::new(shared, index, targets)?.run(&settled))
            })
            .collect();
        drop(settled);
        conduct(&shared, &all_settled, stop, &mut progress);
        shared.finish.store(true, Ordering::Release);
        shared.wake_all();
        let join = |worker: thread::ScopedJoinHandle<'_, io::Result<Outcome>>| {
            worker.join().expect("a worker does not panic")
        };
        workers.into_iter().map(join).collect::<io::Result<Vec<Outcome>>>()
    })
    .map_err(|source| LoadError::System { source })?;
    let stopped = stop.load(Ordering::Relaxed);
    if shared.start_at.load(Ordering::Relaxed) == 0 && !stopped {
        return Err(LoadError::NobodyConnected {
            target: spec.target.clone(),
            failures: failures(&outcomes),
        });
    }
    let failures = failures(&outcomes);
    Ok(Report::new(spec, outcomes, failures, stopped))
}

/// Waits for the connections, starts, and ends when everything sent has arrived or no more comes.
fn conduct(
    shared: &Shared<'_>,
    all_settled: &mpsc::Receiver<()>,
    stop: &AtomicBool,
    progress: &mut impl FnMut(&Progress),
) {
    let spec = shared.spec;
    let mut teller = Teller { shared, told_at: 0, progress };
    let begun = monotonic_nanos();
    let mut settled = 0;
    while settled < shared.workers.len() {
        match all_settled.recv_timeout(LOOK_EVERY) {
            Ok(()) => settled += 1,
            Err(mpsc::RecvTimeoutError::Disconnected) => return, // a worker could not begin
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
        teller.tell(Phase::Connect, begun);
    }
    if shared.sum(|worker| &worker.connected) == 0 {
        return;
    }
    let start = monotonic_nanos() + 2_000_000;
    let end = start + (spec.warm_up + spec.duration).as_nanos() as i64;
    let warm = start + spec.warm_up.as_nanos() as i64;
    shared.start_at.store(start, Ordering::Release);
    shared.wake_all();
    while monotonic_nanos() < end && !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK_EVERY);
        if monotonic_nanos() < warm {
            teller.tell(Phase::WarmUp, start);
        } else {
            teller.tell(Phase::Measure, warm);
        }
    }
    shared.stop.store(true, Ordering::Release);
    shared.wake_all();
    let drain_begun = monotonic_nanos();
    let patience = spec.drain.as_nanos() as i64;
    let mut last = (u64::MAX, monotonic_nanos());
    loop {
        thread::sleep(LOOK_EVERY);
        let now = monotonic_nanos();
        let (received, open) = (
            shared.sum(|worker| &worker.received_once),
            shared.sum(|worker| &worker.unacknowledged),
        );
        let unwritten = shared.sum(|worker| &worker.unwritten);
        let missing = shared.sum(|worker| &worker.due).saturating_sub(received);
        if last.0 != received.wrapping_sub(open) {
            last = (received.wrapping_sub(open), now);
        }
        let all_told = shared.workers.iter().all(|worker| worker.stopped.load(Ordering::Acquire));
        if (all_told && missing == 0 && open == 0 && unwritten == 0) || now - last.1 > patience {
            return;
        }
        teller.tell(Phase::Drain, drain_begun);
    }
}

struct Teller<'a, F> {
    shared: &'a Shared<'a>,
    told_at: i64,
    progress: &'a mut F,
}

impl<F: FnMut(&Progress)> Teller<'_, F> {
    fn tell(&mut self, phase: Phase, since: i64) {
        let now = monotonic_nanos();
        if now - self.told_at < PROGRESS_EVERY.as_nanos() as i64 {
            return;
        }
        self.told_at = now;
        (self.progress)(&Progress {
            phase,
            elapsed: Duration::from_nanos((now - since).max(0) as u64),
            connected: self.shared.sum(|worker| &worker.connected),
            sent: self.shared.sum(|worker| &worker.sent),
            received: self.shared.sum(|worker| &worker.received),
        });
    }
}

fn endpoint(spec: &Spec, target: &str) -> Result<Endpoint, LoadError> {
    let url = target.parse::<BrokerUrl>();
    url.and_then(|url| url.endpoint(None, spec.tls.is_some()))
        .map_err(|source| LoadError::Url { target: target.to_owned(), source })
}

fn resolve(endpoint: &Endpoint, target: &str) -> Result<SocketAddr, LoadError> {
    let addresses = (&*endpoint.host, endpoint.port).to_socket_addrs();
    addresses
        .and_then(|mut all| all.next().ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(|source| LoadError::Target { target: target.to_owned(), source })
}

/// Each connection takes a file descriptor. A connection that the system does not allow shows as failed.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

fn failures(outcomes: &[Outcome]) -> Vec<Failure> {
    let mut counts = BTreeMap::<&str, u64>::new();
    for (reason, count) in outcomes.iter().flat_map(|outcome| &outcome.failures) {
        *counts.entry(reason).or_default() += count;
    }
    counts
        .into_iter()
        .map(|(reason, connections)| Failure { reason: reason.to_owned(), connections })
        .collect()
}

/// Why there was no load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be run as it is asked for.
    #[error("this load cannot be run")]
    Spec(#[from] SpecError),
    /// The broker cannot be reached as it is named.
    #[error("the broker {target} cannot be loaded")]
    Url {
        /// The broker as it was named.
        target: String,
        /// Its fault.
        #[source]
        source: UrlError,
    },
    /// The broker's address is none.
    #[error("{target} is not the address of a broker")]
    Target {
        /// The broker as it was named.
        target: String,
        /// The resolver's reason.
        #[source]
        source: io::Error,
    },
    /// No connection came up.
    #[error("no connection could be made to {target}: {}", list(failures))]
    NobodyConnected {
        /// The broker.
        target: String,
        /// Why, and how often.
        failures: Vec<Failure>,
    },
    /// The process whose usage was asked for cannot be looked at.
    #[error("the broker's process cannot be watched")]
    Process(#[from] ProcessError),
    /// The system gave no descriptor for events or time.
    #[error("the system gave no event queue")]
    System {
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

fn list(failures: &[Failure]) -> String {
    let texts: Vec<_> = failures
        .iter()
        .map(|failure| format!("{} ({} connections)", failure.reason, failure.connections))
        .collect();
    texts.join(", ")
}
