//! A run: clients on threads of their own, and beside them the network and the server's use of its machine.

use std::{
    io,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tidegate_message::error_chain;

use super::{
    answer::Answer,
    dialogue::{Dialogue, Reply, get},
    endpoint::{model, opcode},
    images::Image,
    link::LinkError,
    report::{Summary, Tally, Usage, VisionReport},
    spec::{Connection, Counting, VisionSpec},
};

/// Time between two looks at the network alone.
const NETWORK_EVERY: Duration = Duration::from_millis(100);
/// Time before the first look at the server's use of its machine, and between two.
const STATS_DELAY: Duration = Duration::from_secs(2);
const STATS_EVERY: Duration = Duration::from_millis(1500);
/// Where it is, on the paper's server.
const STATS_PATH: &str = "/server/usage/";
/// Longest sleep before a stop is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Pause behind a request that failed: a server that refuses connections is not asked ten thousand times a second.
const FAILED_PAUSE: Duration = Duration::from_millis(20);
/// Most threads.
pub const THREADS_MAX: u32 = 4096;

/// Runs a load; `show` is given a line about each answer.
///
/// # Errors
/// [`VisionError`] if nothing can be sent; requests that fail later are counted in the report.
pub fn run(
    spec: &VisionSpec,
    stop: &AtomicBool,
    show: &(dyn Fn(&str) + Sync),
) -> Result<VisionReport, VisionError> {
    spec.check()?;
    // A server that is not there is one error, not one for each request.
    let network = Mutex::new(Summary::default());
    let began = Instant::now();
    drop(spec.target.reach().map_err(|source| VisionError::Unreachable { source })?);
    if spec.network {
        locked(&network).add(began.elapsed());
    }
    let usage = Mutex::new(Usage::default());
    let is_over = AtomicBool::new(false);
    let gate = Gate::default();
    let next = AtomicU64::new(0);
    let ran = thread::scope(|scope| {
        if spec.network {
            scope.spawn(|| look_at_network(spec, &network, &is_over));
        }
        if let Some(port) = spec.stats_port {
            let (usage, is_over) = (&usage, &is_over);
            scope.spawn(move || look_at_server(spec, port, usage, is_over));
        }
        let mut clients = Vec::new();
        for _ in 0..spec.threads {
            let client = Client { spec, stop, show, gate: &gate, next: &next };
            // A thread holds a connection and an answer, and makes no deep calls.
            let thread = thread::Builder::new().stack_size(512 << 10);
            match thread.spawn_scoped(scope, move || client.run()) {
                Ok(client) => clients.push(client),
                Err(source) => {
                    gate.give_up();
                    is_over.store(true, Ordering::Relaxed);
                    return Err(VisionError::Threads { threads: spec.threads, source });
                }
            }
        }
        let began = gate.open(spec.threads);
        let tallies: Vec<Tally> = clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        is_over.store(true, Ordering::Relaxed);
        Ok((tallies, began.elapsed()))
    });
    let (tallies, elapsed) = ran?;
    let (network, usage) = (locked(&network).clone(), std::mem::take(&mut *locked(&usage)));
    let stopped = stop.load(Ordering::Relaxed);
    Ok(VisionReport::new(spec, &tallies, &network, &usage, elapsed, stopped))
}

/// Nothing that a lock is held for can be left half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where clients wait for each other once they are warm.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    waiting: u32,
    /// When it was opened; without a time if there is no run.
    opened: Option<Option<Instant>>,
}

impl Gate {
    /// Waits until all are here; returns the start of the run, or none if there is none.
    fn pass(&self) -> Option<Instant> {
        let mut state = locked(&self.state);
        state.waiting += 1;
        self.changed.notify_all();
        loop {
            if let Some(opened) = state.opened {
                return opened;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until so many are here, and lets them go.
    fn open(&self, count: u32) -> Instant {
        let mut state = locked(&self.state);
        while state.waiting < count {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let now = Instant::now();
        state.opened = Some(Some(now));
        self.changed.notify_all();
        now
    }

    /// Lets go all who wait or will.
    fn give_up(&self) {
        locked(&self.state).opened = Some(None);
        self.changed.notify_all();
    }
}

/// One client, before it begins.
struct Client<'a> {
    spec: &'a VisionSpec,
    stop: &'a AtomicBool,
    show: &'a (dyn Fn(&str) + Sync),
    gate: &'a Gate,
    /// The number of the next request that is due, of all clients together.
    next: &'a AtomicU64,
}

impl Client<'_> {
    fn run(self) -> Tally {
        let spec = self.spec;
        let mut dialogue = Dialogue::new(spec);
        let mut tally = Tally::default();
        // A failure here shows again in the first request that counts.
        let _ = dialogue.open();
        for turn in 0..spec.warm_up as usize {
            let _ = dialogue.ask(&spec.images[turn % spec.images.len()]);
        }
        dialogue.reconnects = 0;
        let Some(began) = self.gate.pass() else { return tally };
        match spec.rate {
            None => self.in_turn(began, &mut dialogue, &mut tally),
            Some(rate) => self.at_a_rate(began, rate, &mut dialogue, &mut tally),
        }
        tally.reconnects = dialogue.reconnects;
        dialogue.close();
        tally
    }

    /// Sends the next image when there is the answer to the last.
    fn in_turn(&self, began: Instant, dialogue: &mut Dialogue<'_>, tally: &mut Tally) {
        let images = &self.spec.images;
        let mut number = 0_u64;
        loop {
            let is_over = match self.spec.counting {
                Counting::Repeats(repeats) => number >= u64::from(repeats) * images.len() as u64,
                Counting::For(length) => began.elapsed() >= length,
            };
            if is_over || self.stop.load(Ordering::Relaxed) {
                return;
            }
            let image = &images[(number % images.len() as u64) as usize];
            self.request(Instant::now(), image, dialogue, tally);
            number += 1;
        }
    }

    /// Takes the next request that is due, whichever client had the last.
    fn at_a_rate(&self, began: Instant, rate: f64, dialogue: &mut Dialogue<'_>, tally: &mut Tally) {
        // The usual 50 us of the kernel would be part of every latency; where it is not to be had they are.
        let _ = tidegate_sys::sched::timer_slack(Duration::from_micros(1));
        let images = &self.spec.images;
        let threads = u64::from(self.spec.threads);
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let after = Duration::from_secs_f64(number as f64 / rate);
            let is_over = match self.spec.counting {
                Counting::Repeats(repeats) => {
                    number >= u64::from(repeats) * threads * images.len() as u64
                }
                Counting::For(length) => after >= length,
            };
            let due = began + after;
            if is_over || !self.sleep_until(due) {
                return;
            }
            let image = &images[(number % images.len() as u64) as usize];
            self.request(due, image, dialogue, tally);
        }
    }

    /// Whether the time came before the stop.
    fn sleep_until(&self, due: Instant) -> bool {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn request(
        &self,
        since: Instant,
        image: &Image,
        dialogue: &mut Dialogue<'_>,
        tally: &mut Tally,
    ) {
        let asked = dialogue.ask(image);
        let took = since.elapsed();
        match asked {
            Ok(reply) => tally.answered(self.spec, took, &reply, self.show),
            Err(error) => {
                *tally.failed.entry(error_chain(&error)).or_default() += 1;
                if error.is_unreachable() {
                    thread::sleep(FAILED_PAUSE);
                }
            }
        }
    }
}

impl Tally {
    fn answered(
        &mut self,
        spec: &VisionSpec,
        took: Duration,
        reply: &Reply,
        show: &(dyn Fn(&str) + Sync),
    ) {
        let ms = took.as_secs_f64() * 1e3;
        show(&format!("{ms:.3} ms to send and receive: {reply}"));
        match reply.answer() {
            Answer::Seen { found, server_ms } => {
                self.full_process.add(took);
                if let Some(ms) = server_ms
                    && let Ok(time) = Duration::try_from_secs_f64(ms / 1e3)
                {
                    self.server.add(time);
                }
                *(if found { &mut self.found } else { &mut self.nothing_found }) += 1;
                if spec.keep_times {
                    self.times_ms.push(ms);
                }
            }
            Answer::Refused { reason } => *self.refused.entry(reason).or_default() += 1,
            Answer::Unreadable => {
                let reason = "the answer is not that of a detector".to_owned();
                *self.failed.entry(reason).or_default() += 1;
            }
        }
    }
}

fn look_at_network(spec: &VisionSpec, network: &Mutex<Summary>, is_over: &AtomicBool) {
    while rest(NETWORK_EVERY, is_over) {
        let began = Instant::now();
        // A connection that is not made has no time; the requests tell of a server that is gone.
        if spec.target.reach().is_ok() {
            locked(network).add(began.elapsed());
        }
    }
}

fn look_at_server(spec: &VisionSpec, port: u16, usage: &Mutex<Usage>, is_over: &AtomicBool) {
    let mut pause = STATS_DELAY;
    while rest(pause, is_over) {
        pause = STATS_EVERY;
        let Ok(text) = get(spec, port, STATS_PATH) else { continue };
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let of = |name: &str| {
            let value = value.get(name)?;
            value.as_f64().or_else(|| value.as_str()?.parse().ok())
        };
        let mut usage = locked(usage);
        usage.cpu.add_some(of("cpu_util"));
        usage.memory.add_some(of("mem_util"));
    }
}

/// Waits; whether the run still lasts then.
fn rest(time: Duration, is_over: &AtomicBool) -> bool {
    let until = Instant::now() + time;
    loop {
        if is_over.load(Ordering::Relaxed) {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}

impl VisionSpec {
    fn check(&self) -> Result<(), VisionError> {
        let threads = self.threads;
        if threads == 0 || threads > THREADS_MAX {
            return Err(VisionError::ThreadCount { threads });
        }
        if self.images.is_empty() {
            return Err(VisionError::NoImages);
        }
        if let Some(rate) = self.rate
            && !(rate.is_finite() && rate > 0.0 && rate <= 1e6)
        {
            return Err(VisionError::Rate { rate });
        }
        let endpoint = &self.endpoint;
        match self.connection {
            Connection::Tcp if opcode(endpoint).is_none() => {
                return Err(VisionError::NoOperation { endpoint: endpoint.clone() });
            }
            Connection::Tcp if self.authorization.is_some() => {
                return Err(VisionError::NoLogin);
            }
            Connection::Tcp => {}
            Connection::Grpc | Connection::GrpcStream => {
                if model(endpoint).is_none() {
                    return Err(VisionError::NoModel { endpoint: endpoint.clone() });
                }
            }
            _ => {
                let is_path = endpoint.starts_with('/')
                    && endpoint.bytes().all(|byte| byte.is_ascii_graphic());
                if !is_path {
                    return Err(VisionError::Path { endpoint: endpoint.clone() });
                }
            }
        }
        Ok(())
    }
}

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
pub enum VisionError {
    /// No client, or too many.
    #[error("{threads} threads: from 1 to {THREADS_MAX} are allowed")]
    ThreadCount {
        /// How many were asked for.
        threads: u32,
    },
    /// Nothing to send.
    #[error("there is no image to send; name files with -f or a folder with -d")]
    NoImages,
    /// A rate that is none.
    #[error("a rate of {rate}: more than 0 and at most 1000000 requests a second are allowed")]
    Rate {
        /// The rate.
        rate: f64,
    },
    /// A path that stands for no operation.
    #[error(
        "{endpoint:?} stands for no operation of the TCP protocol; write /detector/detect/, /recognizer/predict/, /openpose/detect/,          /object/detect/, or the operation's number"
    )]
    NoOperation {
        /// The path.
        endpoint: String,
    },
    /// A path that stands for no model.
    #[error(
        "{endpoint:?} stands for no model; write its name, such as face, or /v1/detect/NAME, /detector/detect/, /recognizer/predict/, \
         /openpose/detect/ or /object/detect/"
    )]
    NoModel {
        /// The path.
        endpoint: String,
    },
    /// A path that cannot stand in a request.
    #[error("{endpoint:?} is not a path; it begins with a slash and has no blanks")]
    Path {
        /// The path.
        endpoint: String,
    },
    /// TCP has no place for a password.
    #[error(
        "the TCP protocol has no login; leave out --user and --token-file, or take another connection"
    )]
    NoLogin,
    /// The server takes no connection.
    #[error("the server cannot be reached")]
    Unreachable {
        /// The reason.
        source: LinkError,
    },
    /// The system has no room for the threads.
    #[error("{threads} threads cannot be started")]
    Threads {
        /// How many were asked for.
        threads: u32,
        /// The system's reason.
        source: io::Error,
    },
}
