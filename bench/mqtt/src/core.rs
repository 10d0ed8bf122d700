//! The broker's core without sockets: a million subscriptions, and a hundred thousand sessions.

use std::{hint::black_box, sync::Arc, time::Instant};

use anyhow::{Context as _, anyhow};
use bench_harness::{Figure, Report, Target, percentile};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tidegate_broker::{
    Broker, BrokerConfig, ConnectRequest, ConnectionKey, SLICES_MAX, SessionConfig, Shared,
};
use tidegate_load::process::usage;
use tidegate_message::{AllowAll, Identity};
use tidegate_sys::clock::monotonic_nanos;
use tidegate_topics::Index;
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, Packet, PacketId, QoS, RetainHandling, Subscribe, SubscribeFilter,
    Version,
};

use crate::Plan;

const SUBSCRIPTIONS: u64 = 1_000_000;
const SUBSCRIBERS: u64 = 10_000;
const FILTERS_EACH: u64 = SUBSCRIPTIONS / SUBSCRIBERS;
const SESSIONS: u64 = 100_000;
const SEED: u64 = 1;
/// Most of a match, in ns, and of a subscription.
const MATCH_NS_MAX: f64 = 2000.0;
const SUBSCRIPTION_BYTES_MAX: f64 = 200.0;

/// Match and memory of a million subscriptions, memory of a hundred thousand sessions.
///
/// # Errors
/// A session is refused, or this process cannot look at itself.
pub fn core(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    // Each stays until all are measured, and the one that needs memory for its measuring comes last: one that takes memory
    // that was given back counts as nothing.
    let _sessions = sessions(plan, report)?;
    let _core = subscriptions_of_sessions(report)?;
    subscriptions(plan, report)
}

/// The filter that the `n`-th device subscribes to, by chance with a wildcard: 98.5 % exact, 1 % with `+`, 0.5 % with `#`.
fn filter(random: &mut SmallRng, n: u64) -> String {
    let (site, device, kind) = parts(n);
    match random.random_range(0..1_000) {
        0..5 => format!("site/{site}/device/+/{kind}"),
        5..10 => format!("site/+/device/{device}/{kind}"),
        10..13 => format!("site/{site}/device/{device}/#"),
        13..15 => format!("site/{site}/#"),
        _ => format!("site/{site}/device/{device}/{kind}"),
    }
}

fn parts(n: u64) -> (u64, String, &'static str) {
    let kinds = ["temperature", "humidity", "door", "battery"];
    let device = format!("{:08x}", ((n / 4) as u32).wrapping_mul(0x9E37_79B1));
    (n / 4 % 1_000, device, kinds[(n % 4) as usize])
}

fn subscriptions(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let matches = if plan.quick { 200_000 } else { 1_000_000 };
    let before = own_resident()?;
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut index = Index::new();
    for key in 0..SUBSCRIPTIONS {
        index.insert(&filter(&mut random, key), key, key);
    }
    let resident = own_resident()?.saturating_sub(before) as f64 / SUBSCRIPTIONS as f64;
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for _ in 0..plan.runs {
        let topics: Vec<String> = (0..matches)
            .map(|_| {
                let (site, device, kind) = parts(random.random_range(0..SUBSCRIPTIONS));
                format!("site/{site}/device/{device}/{kind}")
            })
            .collect();
        let nanos: Vec<f64> = topics
            .iter()
            .map(|topic| {
                let began = Instant::now();
                index.matches(black_box(topic), |key, _| {
                    black_box(key);
                });
                began.elapsed().as_nanos() as f64
            })
            .collect();
        p50.push(percentile(&nanos, 0.5));
        p99.push(percentile(&nanos, 0.99));
    }
    let name = "1 million subscriptions";
    let figure = Figure::new(format!("{name}, match p50"), "ns").ours(p50);
    report
        .figure(figure.target(Target::AtMost(MATCH_NS_MAX)).note("the clock's own time included"));
    report.figure(Figure::new(format!("{name}, match p99"), "ns").ours(p99));
    let reads = (0..plan.runs).map(|_| dependent_read_ns());
    let bytes_mb = CHASED_BYTES >> 20;
    report.figure(
        Figure::new(format!("one read that waits for another, among {bytes_mb} MiB"), "ns")
            .ours(reads)
            .note("the cost of this machine's memory: a match is a handful of them"),
    );
    report.figure(
        Figure::new(format!("{name}, resident each"), "B")
            .ours([resident])
            .target(Target::AtMost(SUBSCRIPTION_BYTES_MAX)),
    );
    let own = index.bytes() as f64 / SUBSCRIPTIONS as f64;
    report.figure(Figure::new(format!("{name}, each by the index's own count"), "B").ours([own]));
    Ok(())
}

/// About what the index takes.
const CHASED_BYTES: usize = 144 << 20;

/// The time of a read at an address that the read before it gave, in ns, at random places of memory.
fn dependent_read_ns() -> f64 {
    const STEPS: usize = 2_000_000;
    let count = CHASED_BYTES / size_of::<u64>();
    let mut random = SmallRng::seed_from_u64(SEED);
    // One circle through all places (Sattolo's shuffle).
    let mut next: Vec<u64> = (0..count as u64).collect();
    for at in (1..count).rev() {
        next.swap(at, random.random_range(0..at));
    }
    let begun = Instant::now();
    let mut at = 0;
    for _ in 0..STEPS {
        at = next[black_box(at)] as usize;
    }
    black_box(at);
    begun.elapsed().as_nanos() as f64 / STEPS as f64
}

/// The same filters as subscriptions of a broker: its own state for each is included.
fn subscriptions_of_sessions(report: &mut Report) -> anyhow::Result<Core> {
    let mut core = Core::new();
    let mut random = SmallRng::seed_from_u64(SEED);
    let keys: Vec<ConnectionKey> =
        (0..SUBSCRIBERS).map(|number| core.connect(number)).collect::<anyhow::Result<_>>()?;
    let before = own_resident()?;
    for (number, key) in (0..).zip(keys) {
        let own = number * FILTERS_EACH..(number + 1) * FILTERS_EACH;
        core.subscribe(key, own.map(|n| filter(&mut random, n)).collect())?;
    }
    // Some wildcards come twice to one session and replace each other.
    let kept = core.shared.subscriptions() as f64;
    let each = own_resident()?.saturating_sub(before) as f64 / kept;
    let name = "1 million subscriptions of a broker's 10,000 sessions";
    report.figure(Figure::new(format!("{name}, kept"), "").ours([kept]));
    report.figure(
        Figure::new(format!("{name}, resident each"), "B")
            .ours([each])
            .target(Target::AtMost(SUBSCRIPTION_BYTES_MAX)),
    );
    Ok(core)
}

/// Sessions with one subscription each: with their connections, then without.
fn sessions(plan: &Plan, report: &mut Report) -> anyhow::Result<Core> {
    let count = if plan.quick { SESSIONS / 5 } else { SESSIONS };
    let mut core = Core::new();
    let before = own_resident()?;
    let mut keys = Vec::new();
    for number in 0..count {
        let key = core.connect(number)?;
        core.subscribe(key, vec![format!("devices/device-{number:08}/commands")])?;
        keys.push(key);
    }
    let each = |bytes: u64| bytes.saturating_sub(before) as f64 / 1000.0 / count as f64;
    let connected = each(own_resident()?);
    for key in keys {
        core.broker.closed(now(), key);
    }
    let alone = each(own_resident()?);
    let kept = core.broker.statistics().sessions;
    let name = format!("{count} sessions in the core, one subscription each");
    let figure = Figure::new(format!("{name}, kept"), "").ours([kept as f64]);
    report.figure(figure.target(Target::AtLeast(count as f64)));
    report.figure(Figure::new(format!("{name}, resident each, connected"), "KB").ours([connected]));
    report.figure(
        Figure::new(format!("{name}, resident each, connections gone"), "KB")
            .ours([alone])
            .note("memory that the allocator keeps of the connections included"),
    );
    Ok(core)
}

/// A broker without sockets.
struct Core {
    shared: Arc<Shared>,
    broker: Broker,
    config: Arc<SessionConfig>,
}

impl Core {
    fn new() -> Self {
        let shared = Shared::new(BrokerConfig::default(), 1, Arc::new(AllowAll), now());
        let broker = Broker::new(shared.clone(), 0, SEED, now());
        Self { shared, broker, config: Arc::default() }
    }

    fn connect(&mut self, number: u64) -> anyhow::Result<ConnectionKey> {
        let client_id = format!("device-{number:08}");
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive: 60,
            client_id: client_id.clone(),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties {
                session_expiry: Some(3600),
                ..ConnectProperties::default()
            },
        };
        let identity = Identity::anonymous(&client_id);
        let config = self.config.clone();
        let request = ConnectRequest { connect, identity, config, authentication_data: None };
        let key = self.broker.connect(now(), request);
        let key = key.map_err(|refused| anyhow!("a session was refused: {:?}", refused.reason))?;
        self.flush();
        Ok(key)
    }

    fn subscribe(&mut self, key: ConnectionKey, filters: Vec<String>) -> anyhow::Result<()> {
        let mut packet = Vec::new();
        let of = |filter| SubscribeFilter {
            filter,
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        Packet::Subscribe(Subscribe {
            packet_id: PacketId::new(1).context("1 is a packet identifier")?,
            subscription_id: None,
            user_properties: Vec::new(),
            filters: filters.into_iter().map(of).collect(),
        })
        .encode(Version::V5, &mut packet)?;
        self.broker.receive(now(), key, &packet);
        self.flush();
        Ok(())
    }

    /// Writes all there is into nothing.
    fn flush(&mut self) {
        while let Some(key) = self.broker.poll_dirty() {
            loop {
                let mut slices = [std::io::IoSlice::new(&[]); SLICES_MAX];
                let count = self.broker.transmit(now(), key, &mut slices);
                let bytes: usize = slices[..count].iter().map(|slice| slice.len()).sum();
                if bytes == 0 {
                    break;
                }
                self.broker.transmitted(now(), key, bytes, false);
            }
        }
        while self.broker.poll_output().is_some() {}
    }
}

fn now() -> tidegate_message::Instant {
    tidegate_message::Instant::from_nanos(monotonic_nanos())
}

fn own_resident() -> anyhow::Result<u64> {
    Ok(usage(std::process::id())?.resident_bytes)
}
