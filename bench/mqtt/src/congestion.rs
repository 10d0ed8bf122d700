//! Small and large messages to one subscriber over a line of 10 Mbit/s.
//!
//! The publisher sits beside the broker, the subscriber across the line, and only the direction to the subscriber is narrow. All
//! contenders of a run go side by side, each on a line of its own with the same seed: a busy minute of the machine falls on all.

use std::{fmt::Write as _, thread, time::Duration};

use bench_harness::{Figure, Report, Target, median, percentile};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    broker::{Kind, Programs, Setup},
    site::{Line, is_valid},
    traffic::{self, Flow, Outcome, Place, Publisher, Subscriber},
};

/// Bytes of a small and of a large message.
pub const SMALL_BYTES: usize = 100;
/// The large ones.
pub const LARGE_BYTES: usize = 1_000_000;
const SMALL: usize = 0;
const LARGE: usize = 1;
const SMALL_PERIOD: Duration = Duration::from_millis(50);
/// 10 Mbit/s of Ethernet, of which the emulator sees the packets: 1,500 of 1,514 bytes.
const RATE_MBIT: f64 = 9.908;
/// At 105 % the queue before the line grows all the time: with this length a broker that sends in order of arrival comes to the
/// 1.4 s and 2.7 s (p50 and p99 of small messages) that the targets were set from.
const LENGTH: Duration = Duration::from_secs(40);
const DELAY_MS: f64 = 5.0;
/// 50 ms at the rate, which is what a token bucket is usually given.
const QUEUE_BYTES: usize = 64 << 10;
/// A run on a line whose emulator was late is made again so often.
const AGAIN: usize = 2;

/// Runs of cells that have no target.
const TABLE_RUNS: usize = 3;
const CONGESTIONS: [&str; 2] = ["cubic", "bbr"];
/// Our policies, for comparison with mosquitto.
const POLICIES: [&str; 5] = ["deadline", "none", "conservative", "probabilistic", "historic"];

/// One line and load.
#[derive(Clone, Copy, Debug)]
struct Cell {
    load_percent: u32,
    large_period: Duration,
    loss_percent: f64,
    congestion: &'static str,
}

impl Cell {
    fn new(load_percent: u32, loss_percent: f64, congestion: &'static str) -> Self {
        let large_period = Duration::from_millis(if load_percent == 105 { 800 } else { 1700 });
        Self { load_percent, large_period, loss_percent, congestion }
    }

    fn name(self) -> String {
        let loss = match self.loss_percent {
            0.0 => String::new(),
            loss => format!(", {loss} % loss"),
        };
        format!("10 Mbit/s, {} % load{loss}, {}", self.load_percent, self.congestion)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contender {
    kind: Kind,
    policy: &'static str,
}

impl Contender {
    const PEER: Self = Self { kind: Kind::Mosquitto, policy: "" };

    fn ours(policy: &'static str) -> Self {
        Self { kind: Kind::Tidegate, policy }
    }

    fn name(self) -> String {
        match self.kind {
            Kind::Tidegate => self.policy.to_owned(),
            kind => kind.name().to_owned(),
        }
    }
}

/// Small p50 and p99, large p50 in ms, messages that did not arrive.
#[derive(Clone, Copy, Debug)]
struct Score {
    small_p50: f64,
    small_p99: f64,
    large_p50: f64,
    lost: f64,
}

impl Score {
    fn of(outcome: &Outcome) -> Self {
        let (small, large) = (outcome.ms(SMALL, |_| true), outcome.ms(LARGE, |_| true));
        Self {
            small_p50: percentile(&small, 0.5),
            small_p99: percentile(&small, 0.99),
            large_p50: percentile(&large, 0.5),
            lost: f64::from(outcome.lost(SMALL) + outcome.lost(LARGE)),
        }
    }
}

/// The row that has targets, and the table around it.
///
/// # Errors
/// There is no lab without root, or ours does not serve.
pub fn congestion(plan: &Plan, programs: &Programs, report: &mut Report) -> anyhow::Result<()> {
    report.configuration(
        "congestion, line",
        format!(
            "10 Mbit/s of Ethernet from broker to subscriber, 1 Gbit/s back, {DELAY_MS} ms each way, queue {QUEUE_BYTES} bytes; \
             publisher beside the broker; QoS 0; 100 B each 50 ms and 1 MB each 0.8 s (105 %) or 1.7 s (50 %) on one connection, for {} s",
            LENGTH.as_secs()
        ),
    );
    let mut table = format!(
        "{:<36} {:<14}{:>12}{:>12}{:>12}{:>12}\n",
        "medians in ms", "who", PICKS[0].0, PICKS[1].0, PICKS[2].0, PICKS[3].0
    );
    let peer = [Contender::PEER];
    if plan.quick {
        let contenders = [Contender::ours("deadline"), Contender::ours("none")];
        let contenders: Vec<Contender> = contenders.into_iter().chain(peer).collect();
        let cells = [Cell::new(105, 0.0, "cubic")];
        table += &measure(programs, report, &cells, &contenders, 1, true)?;
    }
    let contenders: Vec<Contender> =
        POLICIES.into_iter().map(Contender::ours).chain(peer).collect();
    for load in [105, 50].into_iter().filter(|_| !plan.quick) {
        for loss in [0.0, 1.0, 5.0] {
            let targets = load == 105 && loss == 0.0;
            let runs = if targets { plan.runs } else { plan.runs.min(TABLE_RUNS) };
            let cells = CONGESTIONS.map(|congestion| Cell::new(load, loss, congestion));
            table += &measure(programs, report, &cells, &contenders, runs, targets)?;
        }
    }
    println!("{table}");
    report.attach("congestion.txt", table);
    Ok(())
}

/// Runs all contenders of some cells side by side and adds their rows.
fn measure(
    programs: &Programs,
    report: &mut Report,
    cells: &[Cell],
    contenders: &[Contender],
    runs: usize,
    targets: bool,
) -> anyhow::Result<String> {
    let mut table = String::new();
    let both: Vec<(Cell, Contender)> = cells
        .iter()
        .flat_map(|cell| contenders.iter().map(move |contender| (*cell, *contender)))
        .collect();
    let mut scores: Vec<Vec<Score>> = vec![Vec::new(); both.len()];
    let mut late = vec![0; both.len()];
    for run in 0..runs {
        let outcomes: Vec<anyhow::Result<(Outcome, bool)>> = thread::scope(|scope| {
            let started: Vec<_> = both
                .iter()
                .map(|&(cell, contender)| {
                    scope.spawn(move || one(programs, cell, contender, run as u64 + 1))
                })
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().expect("a run does not panic")
            };
            started.into_iter().map(join).collect()
        });
        for (index, ((cell, contender), outcome)) in both.iter().zip(outcomes).enumerate() {
            let (outcome, valid) = match outcome {
                Ok(made) => made,
                Err(error) if contender.kind != Kind::Tidegate => {
                    eprintln!("bench-mqtt: {}: {error:#}", contender.name());
                    continue;
                }
                Err(error) => return Err(error.context(contender.name())),
            };
            late[index] += u32::from(!valid);
            let name = |class: &str| {
                format!("{}, {}, {class}, run {run}, ms", cell.name(), contender.name())
            };
            report.samples(name("small"), outcome.ms(SMALL, |_| true));
            report.samples(name("large"), outcome.ms(LARGE, |_| true));
            scores[index].push(Score::of(&outcome));
        }
    }
    for (index, cell) in cells.iter().enumerate() {
        let of = index * contenders.len()..(index + 1) * contenders.len();
        rows(
            report,
            *cell,
            contenders,
            &scores[of.clone()],
            late[of.clone()].iter().sum(),
            targets,
        );
        table += &lines(*cell, contenders, &scores[of]);
    }
    Ok(table)
}

fn rows(
    report: &mut Report,
    cell: Cell,
    contenders: &[Contender],
    scores: &[Vec<Score>],
    late: u32,
    targets: bool,
) {
    let values = |contender: Contender, pick: fn(&Score) -> f64| -> Vec<f64> {
        let index = contenders.iter().position(|other| *other == contender);
        index.map(|index| scores[index].iter().map(pick).collect()).unwrap_or_default()
    };
    for (what, unit, pick, target) in PICKS {
        let mut figure = Figure::new(format!("{}, {what}", cell.name()), unit)
            .ours(values(Contender::ours("deadline"), pick))
            .peer(values(Contender::PEER, pick))
            .peer_name(Kind::Mosquitto.name());
        if targets {
            figure = figure.target(target);
        }
        if late > 0 {
            figure = figure.note(format!("the emulator was late in {late} runs of this cell"));
        }
        report.figure(figure);
    }
}

type Pick = fn(&Score) -> f64;

/// The picks of a run: name, unit, value, and our target where there is one.
const PICKS: [(&str, &str, Pick, Target); 4] = [
    ("small p50", "ms", |score| score.small_p50, Target::RatioAtMost(1.0 / 3.0)),
    ("small p99", "ms", |score| score.small_p99, Target::RatioAtMost(0.4)),
    ("large p50", "ms", |score| score.large_p50, Target::RatioAtMost(1.05)),
    ("not arrived", "", |score| score.lost, Target::Shown),
];

/// A line for each contender of a cell, with medians.
fn lines(cell: Cell, contenders: &[Contender], scores: &[Vec<Score>]) -> String {
    let mut text = String::new();
    for (contender, scores) in contenders.iter().zip(scores) {
        let _ = write!(text, "{:<36} {:<14}", cell.name(), contender.name());
        for (_, _, pick, _) in PICKS {
            let _ =
                write!(text, "{:>12.0}", median(&scores.iter().map(pick).collect::<Vec<f64>>()));
        }
        text.push('\n');
    }
    text
}

/// One contender on one line; again while the emulator is late. Says whether the last one was not.
fn one(
    programs: &Programs,
    cell: Cell,
    contender: Contender,
    seed: u64,
) -> anyhow::Result<(Outcome, bool)> {
    let mut attempt = 0;
    loop {
        let line = Line {
            down_mbit: RATE_MBIT,
            up_mbit: 1000.0,
            delay_ms: DELAY_MS,
            loss_percent: cell.loss_percent,
            queue_bytes: QUEUE_BYTES,
            steps: String::new(),
        };
        let lab = line.up(cell.congestion, seed)?;
        let setup = Setup { policy: contender.policy, raised: false, ..Setup::default() };
        let broker = programs.start_in(contender.kind, &setup, &lab, "broker")?;
        let flow = |name: &str, bytes, period, first| Flow {
            topic: format!("bench/{name}"),
            bytes,
            period,
            first,
            qos: QoS::AtMostOnce,
        };
        let publisher = Publisher {
            place: Place::Beside(Some(&lab)),
            flows: vec![
                flow("small", SMALL_BYTES, SMALL_PERIOD, Duration::ZERO),
                flow("large", LARGE_BYTES, cell.large_period, Duration::from_millis(500)),
            ],
        };
        // Only the paper's policies send latency queries.
        let subscriber = Subscriber::new(
            Place::Away(&lab),
            &[("bench/#", QoS::AtMostOnce), ("latency", QoS::AtLeastOnce)],
        );
        let drain = Duration::from_secs(20);
        let outcome = traffic::run(&broker, &[publisher], &[subscriber], LENGTH, drain)?;
        drop(broker);
        let valid = is_valid(&lab.finish()?);
        if valid || attempt >= AGAIN {
            return Ok((outcome, valid));
        }
        attempt += 1;
    }
}
