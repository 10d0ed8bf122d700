//! 75 subscribers of large messages that never read, and two that do.

use std::{collections::BTreeMap, time::Duration};

use bench_harness::{Figure, Report, Target, percentile};
use tidegate_load::process::reset_peak;
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    broker::{Access, Kind, Programs, Setup},
    traffic::{self, Flow, Outcome, Place, Publisher, Subscriber},
};

const STALLED: usize = 75;
const LARGE_BYTES: usize = 1_000_000;
const LARGE_PERIOD: Duration = Duration::from_millis(100);
const SMALL_PERIOD: Duration = Duration::from_millis(50);
/// The default of `payload_bytes_max`, and what is allowed beside.
const BUDGET_MB: f64 = 268.4;
const BESIDE_MB: f64 = 33.6;
const SMALL_P99_MS: f64 = 20.0;
/// A publisher that waits longer than its period for one acknowledgement has been blocked.
const HELD_UP_MS: f64 = 100.0;
/// Index of the small flow.
const SMALL: usize = 0;

/// How the large messages and their subscribers are arranged.
#[derive(Clone, Copy, Debug)]
struct Arrangement {
    name: &'static str,
    /// Whether each stalled subscriber has a topic of its own, to which each 75th message goes: no payload is shared.
    own_topics: bool,
    /// Whether sessions stay when their connection ends.
    kept: bool,
    setup: Setup,
    publisher: Target,
}

impl Arrangement {
    /// One topic for all, as the other brokers are measured.
    const SHARED: Self = Self {
        name: "",
        own_topics: false,
        kept: false,
        setup: Setup {
            policy: "deadline",
            shards: 1,
            raised: false,
            overflow: "spill",
            durability: "memory",
            access: Access::Plain,
        },
        publisher: Target::AtMost(HELD_UP_MS),
    };

    /// Ours alone: all that its budget has to bear, under each policy; with messages that outlive the process, too, where one that waits
    /// on disk is written twice.
    fn own() -> [Self; 9] {
        let of = |name, overflow, durability| Self {
            name,
            own_topics: true,
            kept: true,
            setup: Setup { shards: 2, overflow, durability, ..Self::SHARED.setup },
            publisher: match overflow {
                "block-publisher" => Target::Shown,
                _ => Self::SHARED.publisher,
            },
        };
        [
            of("disconnect", "disconnect", "memory"),
            of("drop-oldest", "drop-oldest", "memory"),
            of("drop-newest", "drop-newest", "memory"),
            of("latest", "latest", "memory"),
            of("block-publisher", "block-publisher", "memory"),
            of("spill", "spill", "memory"),
            of("spill-disconnect", "spill-disconnect", "memory"),
            of("disconnect, durability page", "disconnect", "page"),
            of("spill, durability page", "spill", "page"),
        ]
    }
}

/// Peak memory, the healthy small subscriber's latency, and whether the publisher was held up.
///
/// # Errors
/// Ours does not serve.
pub fn stalled(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    report: &mut Report,
) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 8 } else { 30 });
    beside_others(plan, programs, contenders, length, report)?;
    if plan.quick { Ok(()) } else { by_policy(programs, length, report) }
}

fn beside_others(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    length: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let runs = if plan.quick { 1 } else { plan.runs };
    let contenders: Vec<Kind> = contenders
        .iter()
        .copied()
        .filter(|kind| !plan.quick || matches!(kind, Kind::Tidegate | Kind::Mosquitto))
        .collect();
    report.configuration(
        "stalled",
        format!(
            "{STALLED} subscribers with QoS 1 that never read, 1 MB each 100 ms with QoS 1 for {} s, one healthy subscriber of \
             the large ones, one of 100 B each 50 ms; peers with their default limits",
            length.as_secs()
        ),
    );
    let mut made: BTreeMap<Kind, Vec<Made>> = BTreeMap::new();
    for run in 0..runs {
        for turn in 0..contenders.len() {
            let kind = contenders[(run + turn) % contenders.len()];
            match one(programs, kind, Arrangement::SHARED, length) {
                Ok(outcome) => {
                    let memory = outcome.1.memory.iter();
                    let name =
                        format!("stalled, {}, run {run}, resident MB each 200 ms", kind.name());
                    report.samples(name, memory.map(|(_, bytes)| *bytes as f64 / 1e6));
                    made.entry(kind).or_default().push(outcome);
                }
                Err(error) if kind == Kind::Tidegate => return Err(error),
                Err(error) => eprintln!("bench-mqtt: stalled, {}: {error:#}", kind.name()),
            }
        }
    }
    for (what, unit, pick, target) in picks(Arrangement::SHARED) {
        for peer in contenders.iter().filter(|kind| **kind != Kind::Tidegate) {
            let of = |kind: Kind| -> Vec<f64> {
                made.get(&kind).into_iter().flatten().map(pick).collect()
            };
            let mut figure =
                Figure::new(format!("{STALLED} stalled, {what}, beside {}", peer.name()), unit)
                    .ours(of(Kind::Tidegate))
                    .peer(of(*peer))
                    .peer_name(peer.name());
            if Some(peer) == contenders.iter().find(|kind| **kind != Kind::Tidegate) {
                figure = figure.target(target);
            }
            let said: Vec<&str> = made
                .get(peer)
                .into_iter()
                .flatten()
                .flat_map(|(_, outcome)| &outcome.failed)
                .map(String::as_str)
                .take(1)
                .collect();
            if !said.is_empty() {
                figure = figure.note(format!("{}: {}", peer.name(), said.join("")));
            }
            report.figure(figure);
        }
    }
    Ok(())
}

/// Peak in MB, and what became of the messages.
type Made = (f64, Outcome);
/// A pick of a run: name, unit, value, target.
type Pick = (&'static str, &'static str, fn(&Made) -> f64, Target);

fn picks(arrangement: Arrangement) -> [Pick; 4] {
    [
        ("peak resident", "MB", |made| made.0, Target::AtMost(BUDGET_MB + BESIDE_MB)),
        (
            "healthy small p99",
            "ms",
            |made| percentile(&made.1.ms(SMALL, |_| true), 0.99),
            Target::AtMost(SMALL_P99_MS),
        ),
        ("longest hold-up of a publisher", "ms", |made| made.1.held_up_ms, arrangement.publisher),
        (
            "healthy, messages not arrived",
            "",
            |made| {
                let lost = (0..made.1.due.len()).map(|flow| made.1.lost(flow));
                f64::from(lost.sum::<u32>())
            },
            Target::Shown,
        ),
    ]
}

/// Ours alone, with a topic for each stalled subscriber and sessions that stay, under each policy.
fn by_policy(programs: &Programs, length: Duration, report: &mut Report) -> anyhow::Result<()> {
    report.configuration(
        "stalled, by policy",
        format!(
            "{STALLED} subscribers with QoS 1 that never read, each with a topic of its own that gets each {STALLED}th of the \
             large messages, sessions that stay, two shards; one run"
        ),
    );
    for arrangement in Arrangement::own() {
        let made = one(programs, Kind::Tidegate, arrangement, length)?;
        for (what, unit, pick, target) in picks(arrangement) {
            let figure = Figure::new(
                format!("{STALLED} stalled on own topics, {}, {what}", arrangement.name),
                unit,
            );
            let failed = made.1.failed.first().cloned().unwrap_or_default();
            let figure = figure.ours([pick(&made)]).target(target);
            report.figure(if failed.is_empty() { figure } else { figure.note(failed) });
        }
    }
    Ok(())
}

fn one(
    programs: &Programs,
    kind: Kind,
    arrangement: Arrangement,
    length: Duration,
) -> anyhow::Result<Made> {
    let broker = programs.start(kind, &arrangement.setup)?;
    let place = Place::Beside(None);
    let flow = |topic: String, bytes, period, first| Flow {
        topic,
        bytes,
        period,
        first,
        qos: QoS::AtLeastOnce,
    };
    let topics = if arrangement.own_topics { STALLED as u32 } else { 1 };
    let topic = |number: u32| format!("bench/large/{}", number % topics);
    // Connections of their own: the broker is measured, not a publisher that is busy with a large message.
    let publishers = [
        vec![flow("bench/small".to_owned(), 100, SMALL_PERIOD, Duration::ZERO)],
        (0..topics)
            .map(|number| {
                flow(topic(number), LARGE_BYTES, LARGE_PERIOD * topics, LARGE_PERIOD * number)
            })
            .collect(),
    ]
    .map(|flows| Publisher { place, flows });
    let subscriber = |filter: &str| Subscriber {
        kept: arrangement.kept,
        ..Subscriber::new(place, &[(filter, QoS::AtLeastOnce)])
    };
    let mut subscribers: Vec<Subscriber<'_>> = (0..STALLED as u32)
        .map(|number| Subscriber { reads: false, ..subscriber(&topic(number)) })
        .collect();
    subscribers.extend([subscriber("bench/large/#"), subscriber("bench/small")]);
    reset_peak(broker.process())?;
    let drain = Duration::from_secs(3);
    let outcome = traffic::run(&broker, &publishers, &subscribers, length, drain)?;
    let peak = broker.usage()?.resident_peak_bytes;
    Ok((peak as f64 / 1e6, outcome))
}
