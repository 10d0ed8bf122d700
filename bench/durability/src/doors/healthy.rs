//! Clients that do what they may: a publisher and a subscriber of MQTT, and a caller of the API.
//!
//! Latency counts from when something was meant to begin, however late it did.

use std::{
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::ensure;
use tidegate_client::{Client as ApiClient, Credentials};
use tidegate_load::client::{Client, Outgoing};
use tidegate_sys::{clock::monotonic_nanos, sched};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use super::site::{SERVER_NAME, Site, USERS};

/// Messages of the publisher.
pub(super) const MESSAGES_PER_SECOND: u32 = 200;
/// Calls of the caller.
pub(super) const CALLS_PER_SECOND: u32 = 50;
/// How soon a thread sees that it is over.
const LOOK: Duration = Duration::from_millis(100);
/// For messages under way at the end.
const DRAIN: Duration = Duration::from_secs(5);
/// Where the messages go.
const TOPIC: &str = "own/bob/beat";
/// The client identifier of the subscriber, which others would like to have.
pub(super) const SUBSCRIBER: &str = "bob-subscriber";

/// The measurements since the last call.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    pub(super) messages_ms: Vec<f64>,
    pub(super) calls_ms: Vec<f64>,
}

/// The outcome of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    pub(super) sent: u64,
    pub(super) lost: u64,
    /// Messages that were none of the publisher's.
    pub(super) foreign: u64,
    pub(super) failures: Vec<String>,
}

#[derive(Default)]
struct Shared {
    samples: Mutex<Samples>,
    failures: Mutex<Vec<String>>,
    sent: AtomicU64,
    received: AtomicU64,
    foreign: AtomicU64,
    stops: AtomicBool,
    /// The subscriber waits for what is under way.
    ends: AtomicBool,
}

impl Shared {
    fn sample(&self, note: impl FnOnce(&mut Samples)) {
        note(&mut self.samples.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn fail(&self, what: &str, error: &dyn std::fmt::Display) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.push(format!("{what}: {error}"));
    }
}

/// The clients; they run until [`Healthy::stop`].
pub(super) struct Healthy {
    shared: Arc<Shared>,
    senders: Vec<JoinHandle<()>>,
    subscriber: JoinHandle<()>,
}

impl Healthy {
    /// Connects all of them.
    pub(super) fn start(site: &Site) -> anyhow::Result<Self> {
        let (user, password) = USERS[0];
        let mut subscriber = Client::connect(site.by_password(user, password, SUBSCRIBER))?;
        let filter = SubscribeFilter {
            filter: "own/bob/#".to_owned(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::DoNotSend,
        };
        let reasons = subscriber.subscribe(&[filter])?;
        ensure!(reasons.iter().all(|reason| !reason.is_failure()), "{reasons:?}");
        let mut publisher = Client::connect(site.by_password(user, password, "bob-publisher"))?;
        let shared = Arc::new(Shared::default());

        let reading = shared.clone();
        let subscriber = thread::spawn(move || {
            wake_at_once();
            read(&mut subscriber, &reading);
        });
        let sending = shared.clone();
        let publishing = thread::spawn(move || {
            wake_at_once();
            every(MESSAGES_PER_SECOND, &sending.stops, |meant| {
                let message = Outgoing {
                    topic: TOPIC,
                    payload: &meant.to_le_bytes(),
                    qos: QoS::AtLeastOnce,
                    ..Outgoing::default()
                };
                let published = publisher.publish(&message);
                match &published {
                    Ok(reason) if !reason.is_failure() => {
                        sending.sent.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(reason) => sending.fail("a message of bob", reason),
                    Err(error) => sending.fail("the publisher", error),
                }
                published.is_ok()
            });
        });
        let calling = call(site, shared.clone())?;
        Ok(Self { shared, senders: vec![publishing, calling], subscriber })
    }

    /// The measurements since the last call.
    pub(super) fn take(&self) -> Samples {
        let mut taken = Samples::default();
        self.shared.sample(|samples| std::mem::swap(samples, &mut taken));
        taken
    }

    /// Ends all of them, and counts.
    pub(super) fn stop(self) -> Ended {
        let shared = self.shared;
        shared.stops.store(true, Ordering::Relaxed);
        for sender in self.senders {
            if sender.join().is_err() {
                shared.fail("a healthy client", &"it panicked");
            }
        }
        shared.ends.store(true, Ordering::Relaxed);
        if self.subscriber.join().is_err() {
            shared.fail("the subscriber", &"it panicked");
        }
        let sent = shared.sent.load(Ordering::Relaxed);
        let failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ended {
            sent,
            lost: sent.saturating_sub(shared.received.load(Ordering::Relaxed)),
            foreign: shared.foreign.load(Ordering::Relaxed),
            failures,
        }
    }
}

/// Does `work` so often a second, with the time that it was meant to begin, until it says no or all stop.
fn every(per_second: u32, stops: &AtomicBool, mut work: impl FnMut(i64) -> bool) {
    let period = i64::from(1_000_000_000 / per_second);
    let mut meant = monotonic_nanos();
    while !stops.load(Ordering::Relaxed) {
        let wait = meant - monotonic_nanos();
        if wait > 0 {
            thread::sleep(Duration::from_nanos(wait.unsigned_abs()));
        }
        if !work(meant) {
            return;
        }
        meant += period;
    }
}

fn since_ms(meant: i64) -> f64 {
    (monotonic_nanos() - meant) as f64 / 1e6
}

/// Healthy clients stand for other machines: the time that the node takes is to be measured, and not how long they wait for a
/// processor of this one.
fn wake_at_once() {
    if let Err(error) = sched::short_turns() {
        eprintln!("bench-durability: {error}; latencies hold what clients wait for a processor");
    }
}

fn read(client: &mut Client, shared: &Shared) {
    let mut drained_from = None;
    loop {
        if shared.ends.load(Ordering::Relaxed) {
            let from = *drained_from.get_or_insert_with(monotonic_nanos);
            let all = shared.sent.load(Ordering::Relaxed);
            let is_over = monotonic_nanos() - from > DRAIN.as_nanos() as i64;
            if is_over || shared.received.load(Ordering::Relaxed) >= all {
                return;
            }
        }
        match client.receive(LOOK) {
            Ok(None) => {}
            Ok(Some(message)) => match <[u8; 8]>::try_from(&*message.payload) {
                Ok(stamp) if message.topic == TOPIC => {
                    shared.received.fetch_add(1, Ordering::Relaxed);
                    let took = since_ms(i64::from_le_bytes(stamp));
                    shared.sample(|samples| samples.messages_ms.push(took));
                }
                _ => _ = shared.foreign.fetch_add(1, Ordering::Relaxed),
            },
            Err(error) => return shared.fail("the subscriber", &error),
        }
    }
}

fn call(site: &Site, shared: Arc<Shared>) -> anyhow::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let file = |name: &str| fs::read(site.pki(true).join(name));
    let credentials =
        Credentials::from_pem(file("ca.pem")?, file("application.pem")?, file("application.key")?);
    let endpoint = format!("https://{}", site.api);
    let client = ApiClient::connect(&endpoint, credentials.server_name(SERVER_NAME));
    let client = runtime.block_on(client)?;
    Ok(thread::spawn(move || {
        wake_at_once();
        every(CALLS_PER_SECOND, &shared.stops, |meant| match runtime.block_on(client.cameras()) {
            Ok(_) => {
                let took = since_ms(meant);
                shared.sample(|samples| samples.calls_ms.push(took));
                true
            }
            Err(error) => {
                shared.fail("the caller", &error);
                false
            }
        });
    }))
}
