//! The two experiments of the paper on size-aware MQTT (Tseng et al., PeerJ Computer Science 11:e2741), with its tables.
//!
//! The broker's own receive time is not visible to clients: an observer, subscribed to everything over loopback beside the
//! broker, receives each message within a millisecond of the broker, and its time stamp splits the way of a message in two.

use std::{collections::HashMap, fmt::Write as _, iter, time::Duration};

use anyhow::ensure;
use bench_harness::{Figure, Report, Target, percentile};
use tidegate_sim::plot::{Mark, Plot, Series};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    broker::{Kind, Programs, Setup},
    site::{Line, is_valid},
    traffic::{self, Flow, Outcome, Place, Publisher, Subscriber},
};

const MQTT_QOS: [(QoS, &str); 2] = [(QoS::AtMostOnce, "QoS0"), (QoS::AtLeastOnce, "QoS1")];
/// Table 1 with its misprints mended: PUB05 sends 1 MB, PUB1 100 B.
const SIZES: [(usize, &str); 5] =
    [(100, "100B"), (1_000, "1KB"), (10_000, "10KB"), (100_000, "100KB"), (1_000_000, "1MB")];
const TABLE_1_PERIOD: Duration = Duration::from_secs(10);
/// Subscribers to all of one QoS: SUB11 to SUB55 and SUB56 to SUB100.
const TO_ALL: usize = 45;
/// From the edge to the cloud and back.
const DELAY_MS: f64 = 100.0;
/// More than the 82 Mbit/s that Table 1 comes to.
const QUIET_MBIT: f64 = 200.0;
const CONGESTED_MBIT: f64 = 40.0;

/// `paper-1`: Tables 1 and 2, where nothing is scarce and with a downlink that is half of what it takes for a third of the time.
///
/// # Errors
/// There is no lab without root, or ours does not serve.
pub fn first(programs: &Programs, report: &mut Report) -> anyhow::Result<()> {
    report.configuration(
        "paper-1",
        format!(
            "Tables 1 and 2, 60 s; clients across {DELAY_MS} ms each way and {QUIET_MBIT} Mbit/s; congested: {CONGESTED_MBIT} \
             Mbit/s down from second 20 to 40; cubic; split by an observer beside the broker; ours with deadline"
        ),
    );
    for congested in [false, true] {
        let mut made = Vec::new();
        for kind in [Kind::Tidegate, Kind::Mosquitto] {
            match table_1(programs, kind, congested) {
                Ok(outcome) => made.push((kind, outcome)),
                Err(error) if kind == Kind::Tidegate => return Err(error),
                Err(error) => eprintln!("bench-mqtt: paper-1, {}: {error:#}", kind.name()),
            }
        }
        first_rows(report, if congested { "congested" } else { "quiet" }, &made);
    }
    Ok(())
}

fn table_1(programs: &Programs, kind: Kind, congested: bool) -> anyhow::Result<(Outcome, bool)> {
    let steps = if congested {
        format!(
            "step = [\n  {{ at = \"20s\", port = \"broker\", rate = \"{CONGESTED_MBIT}Mbit\" }},\n  {{ at = \"40s\", port = \
             \"broker\", rate = \"{QUIET_MBIT}Mbit\" }},\n]\n"
        )
    } else {
        String::new()
    };
    let line = Line {
        down_mbit: QUIET_MBIT,
        up_mbit: QUIET_MBIT,
        delay_ms: DELAY_MS,
        loss_percent: 0.0,
        queue_bytes: 2 << 20,
        steps,
    };
    let lab = line.up("cubic", 1)?;
    let setup = Setup { raised: false, ..Setup::default() };
    let broker = programs.start_in(kind, &setup, &lab, "broker")?;
    let away = Place::Away(&lab);
    let mut publishers = Vec::new();
    let mut subscribers = vec![observer(&lab, &["QoS0/#", "QoS1/#"])];
    for (size, (bytes, name)) in SIZES.into_iter().enumerate() {
        for (level, (qos, prefix)) in MQTT_QOS.into_iter().enumerate() {
            // The publishers of the paper began whenever they were started.
            let first = TABLE_1_PERIOD / 10 * (size * 2 + level) as u32;
            let topic = format!("{prefix}/{name}");
            subscribers.push(Subscriber::new(away, &[(&topic, qos)]));
            let flow = Flow { topic, bytes, period: TABLE_1_PERIOD, first, qos };
            publishers.push(Publisher { place: away, flows: vec![flow] });
        }
    }
    for (qos, prefix) in MQTT_QOS {
        for _ in 0..TO_ALL {
            subscribers.push(Subscriber::new(away, &[(&format!("{prefix}/#"), qos)]));
        }
    }
    let (length, drain) = (Duration::from_secs(60), Duration::from_secs(40));
    let outcome = traffic::run(&broker, &publishers, &subscribers, length, drain)?;
    drop(broker);
    Ok((outcome, is_valid(&lab.finish()?)))
}

/// One that sees each message as soon as the broker has it.
fn observer<'a>(lab: &'a tidegate_netlab::Lab, filters: &[&str]) -> Subscriber<'a> {
    let filters: Vec<(&str, QoS)> =
        filters.iter().map(|filter| (*filter, QoS::AtMostOnce)).collect();
    Subscriber::new(Place::Beside(Some(lab)), &filters)
}

/// One message's way to one subscriber.
struct Way {
    flow: usize,
    subscriber: usize,
    /// Seconds from the start of the traffic to the broker.
    at_broker_s: f64,
    to_broker_ms: f64,
    to_subscriber_ms: f64,
}

/// Each message's way, split where the broker has it.
fn split(outcome: &Outcome) -> Vec<Way> {
    let observed: HashMap<(usize, u32), i64> = outcome
        .samples
        .iter()
        .filter(|sample| sample.subscriber == OBSERVER)
        .map(|sample| ((sample.flow, sample.number), sample.received))
        .collect();
    let parts = outcome.samples.iter().filter(|sample| sample.subscriber != OBSERVER);
    parts
        .filter_map(|sample| {
            let at = *observed.get(&(sample.flow, sample.number))?;
            let ms = |from: i64, to: i64| (to - from) as f64 / 1e6;
            Some(Way {
                flow: sample.flow,
                subscriber: sample.subscriber,
                at_broker_s: at as f64 / 1e9,
                to_broker_ms: ms(sample.meant, at),
                to_subscriber_ms: ms(at, sample.received),
            })
        })
        .collect()
}

/// The first subscriber of both experiments.
const OBSERVER: usize = 0;

fn first_rows(report: &mut Report, line: &str, made: &[(Kind, (Outcome, bool))]) {
    for (kind, (outcome, _)) in made {
        let mut csv = String::from("flow_bytes,qos,subscriber,to_broker_ms,to_subscriber_ms\n");
        let ways = split(outcome);
        for way in &ways {
            let (bytes, qos) = (SIZES[way.flow / 2].0, way.flow % 2);
            let Way { subscriber, to_broker_ms, to_subscriber_ms, .. } = way;
            let _ =
                writeln!(csv, "{bytes},{qos},{subscriber},{to_broker_ms:.3},{to_subscriber_ms:.3}");
        }
        let name = |what: &str| format!("paper-1-{line}-{}{what}", kind.name());
        report.attach(name(".csv"), csv);
        report.attach(name("-memory.csv"), memory_csv(outcome));
        for (what, plot) in first_plots(&format!("{}, {line}", kind.name()), &ways, outcome) {
            report.attach(name(&format!("-{what}.svg")), plot.to_svg());
        }
    }
    let of = |kind: Kind, pick: &dyn Fn(&Outcome) -> f64| -> Vec<f64> {
        made.iter().filter(|made| made.0 == kind).map(|made| pick(&made.1.0)).collect()
    };
    let late = made.iter().any(|(_, (_, valid))| !valid);
    let mut row = |what: String, unit: &str, pick: &dyn Fn(&Outcome) -> f64| {
        let mut figure = Figure::new(format!("paper-1, {line}, {what}"), unit)
            .ours(of(Kind::Tidegate, pick))
            .peer(of(Kind::Mosquitto, pick))
            .peer_name(Kind::Mosquitto.name());
        if late {
            figure = figure.note("the emulator was late in a run");
        }
        report.figure(figure);
    };
    for (size, (_, name)) in SIZES.into_iter().enumerate() {
        let legs = move |outcome: &Outcome, leg: fn(&Way) -> f64| {
            let all = split(outcome);
            all.iter().filter(|way| way.flow / 2 == size).map(leg).collect::<Vec<f64>>()
        };
        row(format!("{name}, publisher to broker, p50"), "ms", &|o| {
            percentile(&legs(o, |way| way.to_broker_ms), 0.5)
        });
        row(format!("{name}, broker to subscriber, p50"), "ms", &|o| {
            percentile(&legs(o, |way| way.to_subscriber_ms), 0.5)
        });
        row(format!("{name}, broker to subscriber, p99"), "ms", &|o| {
            percentile(&legs(o, |way| way.to_subscriber_ms), 0.99)
        });
    }
    row("not arrived".to_owned(), "", &|outcome| {
        (0..outcome.due.len()).map(|flow| f64::from(outcome.lost(flow))).sum()
    });
    row("memory, most beyond the start".to_owned(), "MB", &growth_mb);
}

/// The paper's figure 2 (latency end to end, by QoS) and figure 3 (broker to subscriber, and the broker's memory) of one run.
fn first_plots(title: &str, ways: &[Way], outcome: &Outcome) -> Vec<(String, Plot)> {
    let plot = |what: &str, x: &str, y: &str, y_log, series| Plot {
        title: format!("{what}: {title}"),
        x: x.to_owned(),
        y: y.to_owned(),
        y_log,
        y_range: None,
        series,
    };
    let mut plots = Vec::new();
    for (level, (_, qos)) in MQTT_QOS.into_iter().enumerate() {
        let ranked = |(size, (_, name)): (usize, (usize, &str))| {
            let own = ways.iter().filter(|way| way.flow == size * 2 + level);
            let all: Vec<f64> = own.map(|way| way.to_broker_ms + way.to_subscriber_ms).collect();
            let ranks = (0..=100_u32).map(f64::from);
            let points = ranks.map(|rank| (rank, percentile(&all, rank / 100.0))).collect();
            Series { name: name.to_owned(), mark: Mark::Line, points }
        };
        let series = SIZES.into_iter().enumerate().map(ranked).collect();
        let (x, y) = ("percentile", "latency (ms)");
        let named = plot(&format!("Publisher to subscriber, {qos}"), x, y, true, series);
        plots.push((format!("figure-2-{}", qos.to_lowercase()), named));
    }
    let over_time = |(size, (_, name)): (usize, (usize, &str))| {
        let own = ways.iter().filter(|way| way.flow / 2 == size);
        let points = own.map(|way| (way.at_broker_s, way.to_subscriber_ms)).collect();
        Series { name: name.to_owned(), mark: Mark::Dots, points }
    };
    let series = SIZES.into_iter().enumerate().map(over_time).collect();
    let (what, x) = ("Broker to subscriber", "time at the broker (s)");
    plots.push(("figure-3-latency".to_owned(), plot(what, x, "latency (ms)", true, series)));
    let memory = outcome.memory.iter().map(|(second, bytes)| (*second, *bytes as f64 / 1e6));
    let memory = Series { name: "resident".to_owned(), mark: Mark::Line, points: memory.collect() };
    let (what, y) = ("Memory of the broker", "resident (MB)");
    plots.push(("figure-3-memory".to_owned(), plot(what, "time (s)", y, false, vec![memory])));
    plots
}

fn memory_csv(outcome: &Outcome) -> String {
    let mut csv = String::from("second,resident_bytes\n");
    for (second, bytes) in &outcome.memory {
        let _ = writeln!(csv, "{second:.2},{bytes}");
    }
    csv
}

/// Most that the broker held beyond what it held at the start, in MB.
fn growth_mb(outcome: &Outcome) -> f64 {
    let first = outcome.memory.first().map_or(0, |(_, bytes)| *bytes);
    outcome.memory_peak().saturating_sub(first) as f64 / 1e6
}

const SMALL: usize = 0;
const LARGE: usize = 1;
/// The clients of Table 3 whose latencies are compared, by index of subscriber.
const CONSERVATIVE: usize = 1;
const DEADLINE: usize = 2;
const FIRST_COME: usize = 3;
const OTHERS: usize = 75;
/// Runs of mosquitto, whose figures have no target here.
const PEER_RUNS: usize = 2;
/// Latencies that differ by less are the same.
const SAME_MS: f64 = 1.0;

/// `paper-2`: Table 3 with 100 ms and 20 % loss towards the subscribers' host for 40 s. SUB1 under the conservative policy, a
/// twin of it under ours, and SUB2 first-come share one run, as in the paper.
///
/// # Errors
/// There is no lab without root, or ours does not serve.
pub fn second(plan: &Plan, programs: &Programs, report: &mut Report) -> anyhow::Result<()> {
    report.configuration(
        "paper-2",
        "Table 3: 100 B and 1 MB each 4 s with QoS 0 from beside the broker, 78 subscribers with QoS 1 (SUB1 conservative with \
         threshold_l 0.5 s and T_Q 5 s, its twin deadline, SUB2 and 75 others first-come); 500 Mbit/s and 5 ms; from second 20 to \
         60 to the subscribers 100 ms and 20 % loss; cubic; 80 s",
    );
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    let mut late = 0;
    for run in 0..plan.runs {
        let peer = (run < PEER_RUNS).then_some(Kind::Mosquitto);
        for kind in iter::once(Kind::Tidegate).chain(peer) {
            let (outcome, valid) = match table_3(programs, kind, run as u64 + 1) {
                Ok(made) => made,
                Err(error) if kind == Kind::Tidegate => return Err(error),
                Err(error) => {
                    eprintln!("bench-mqtt: paper-2, {}: {error:#}", kind.name());
                    continue;
                }
            };
            late += u32::from(!valid);
            let named = |what: &str| format!("paper-2, {}, run {run}, {what}", kind.name());
            for (name, index) in
                [("SUB1", CONSERVATIVE), ("deadline", DEADLINE), ("SUB2", FIRST_COME)]
            {
                let of = |flow| outcome.ms(flow, |subscriber| subscriber == index);
                report.samples(named(&format!("{name}, small, ms")), of(SMALL));
                report.samples(named(&format!("{name}, large, ms")), of(LARGE));
            }
            let memory = outcome.memory.iter().map(|(_, bytes)| *bytes as f64 / 1e6);
            report.samples(named("resident MB each 200 ms"), memory);
            if kind == Kind::Tidegate { ours.push(outcome) } else { theirs.push(outcome) }
        }
    }
    let note = |figure: Figure| match late {
        0 => figure,
        late => figure.note(format!("the emulator was late in {late} runs")),
    };
    for (name, index) in [("conservative", CONSERVATIVE), ("deadline", DEADLINE)] {
        let share = ours.iter().map(|outcome| no_later_percent(outcome, index));
        report.figure(note(
            Figure::new(format!("paper-2, {name}, small no later than first-come"), "%")
                .ours(share)
                .target(Target::AtLeast(80.0)),
        ));
        for (what, flow) in [("small", SMALL), ("large", LARGE)] {
            for (rank, q) in [("p50", 0.5), ("p90", 0.9)] {
                let of = |index: usize| {
                    ours.iter().map(move |o| percentile(&o.ms(flow, |s| s == index), q))
                };
                report.figure(
                    Figure::new(format!("paper-2, {name}, {what} {rank}"), "ms")
                        .ours(of(index))
                        .peer(of(FIRST_COME))
                        .peer_name("first-come"),
                );
            }
        }
    }
    let missing = |outcome: &Outcome| f64::from(outcome.lost(SMALL) + outcome.lost(LARGE));
    let ended = |outcome: &Outcome| outcome.ended.len();
    report.figure(
        Figure::new("paper-2, not arrived, of 78 subscribers and the observer", "")
            .ours(ours.iter().map(missing))
            .peer(theirs.iter().map(missing))
            .peer_name(Kind::Mosquitto.name())
            .note(format!(
                "connections that ended: ours {}, mosquitto's {}",
                ours.iter().map(ended).sum::<usize>(),
                theirs.iter().map(ended).sum::<usize>()
            )),
    );
    let copies: Vec<f64> = ours.iter().map(|outcome| copies_mb(outcome, LARGE)).collect();
    report.figure(note(
        Figure::new("paper-2, memory beside a copy for each subscriber", "MB")
            .ours(ours.iter().map(growth_mb))
            .peer(copies)
            .peer_name("most undelivered at once, each subscriber's counted")
            .target(Target::RatioAtMost(0.25)),
    ));
    report.figure(note(
        Figure::new("paper-2, memory beside mosquitto, which copies QoS 0", "MB")
            .ours(ours.iter().map(growth_mb))
            .peer(theirs.iter().map(growth_mb))
            .peer_name(Kind::Mosquitto.name()),
    ));
    Ok(())
}

fn table_3(programs: &Programs, kind: Kind, seed: u64) -> anyhow::Result<(Outcome, bool)> {
    let line = Line {
        down_mbit: 500.0,
        up_mbit: 500.0,
        delay_ms: 5.0,
        loss_percent: 0.0,
        queue_bytes: 4 << 20,
        steps: "step = [\n  { at = \"20s\", port = \"broker\", loss = \"20%\", delay = \"105ms\" },\n  { at = \"60s\", port = \
                \"broker\", loss = \"0%\", delay = \"5ms\" },\n]\n"
            .to_owned(),
    };
    let lab = line.up("cubic", seed)?;
    let setup = Setup { policy: "none", raised: false, ..Setup::default() };
    let broker = programs.start_in(kind, &setup, &lab, "broker")?;
    let flow = |name: &str, bytes| Flow {
        topic: format!("Msg/{name}"),
        bytes,
        period: Duration::from_secs(4),
        first: Duration::ZERO,
        qos: QoS::AtMostOnce,
    };
    let publishers = [("Small", 100), ("Large", 1_000_000)].map(|(name, bytes)| Publisher {
        place: Place::Beside(Some(&lab)),
        flows: vec![flow(name, bytes)],
    });
    let messages = ("Msg/#", QoS::AtLeastOnce);
    let away = Place::Away(&lab);
    let policy = |name: &str, threshold: &[(&str, &str)]| {
        let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        [("tidegate-policy", name)].into_iter().chain(threshold.iter().copied()).map(own).collect()
    };
    let mut subscribers = vec![
        observer(&lab, &["Msg/#"]),
        Subscriber {
            properties: policy("conservative", &[("tidegate-latency-threshold", "500ms")]),
            ..Subscriber::new(away, &[messages, ("latency", QoS::AtLeastOnce)])
        },
        Subscriber { properties: policy("deadline", &[]), ..Subscriber::new(away, &[messages]) },
    ];
    subscribers.extend((0..=OTHERS).map(|_| Subscriber::new(away, &[messages])));
    let (length, drain) = (Duration::from_secs(80), Duration::from_secs(40));
    let outcome = traffic::run(&broker, &publishers, &subscribers, length, drain)?;
    ensure!(outcome.failed.is_empty(), "a publisher failed: {:?}", outcome.failed);
    drop(broker);
    Ok((outcome, is_valid(&lab.finish()?)))
}

/// Of the small messages that came to either, how many came to that subscriber no later than to the first-come one, in per
/// cent. One that came to one of the two alone counts for it.
fn no_later_percent(outcome: &Outcome, index: usize) -> f64 {
    let by_number = |subscriber: usize| -> HashMap<u32, f64> {
        let own = |s: &&traffic::Sample| s.flow == SMALL && s.subscriber == subscriber;
        outcome.samples.iter().filter(own).map(|sample| (sample.number, sample.ms())).collect()
    };
    let (ours, theirs) = (by_number(index), by_number(FIRST_COME));
    let no_later = |number: u32| {
        let ms = |of: &HashMap<u32, f64>| of.get(&number).copied().unwrap_or(f64::INFINITY);
        ms(&ours) <= ms(&theirs) + SAME_MS
    };
    let came = |number: &u32| ours.contains_key(number) || theirs.contains_key(number);
    let came: Vec<u32> = (0..outcome.sent[SMALL]).filter(came).collect();
    let no_later = came.iter().filter(|number| no_later(**number)).count();
    no_later as f64 / came.len() as f64 * 100.0
}

/// Most bytes that were published and not yet received, each subscriber's counted for itself, in MB; messages that never
/// arrived are left out.
fn copies_mb(outcome: &Outcome, flow: usize) -> f64 {
    let mut changes: Vec<(i64, i64)> = Vec::new();
    for sample in outcome.samples.iter().filter(|s| s.flow == flow && s.subscriber != OBSERVER) {
        changes.push((sample.meant, 1));
        changes.push((sample.received, -1));
    }
    changes.sort_unstable();
    let mut held = 0;
    let most = changes.iter().map(|(_, change)| {
        held += change;
        held
    });
    most.max().unwrap_or_default() as f64
}
