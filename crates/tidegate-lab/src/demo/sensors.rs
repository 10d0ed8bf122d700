//! The demonstration of sensor streams: four applications' devices at an edge node, a narrow link, an archive above.
//!
//! ```text
//!  devices (CITY, TAXI, GRID, FIT) ─▶ edge node: flows ─▶ uplink ══ narrow link, which breaks ══ core node ─▶ archive
//!                                          └─ alarms at once ────────────────────────────────────▶  └─▶ reader
//! ```
//!
//! Nodes are the program `tidegate` with its `node` command in network namespaces, configured by files; devices and the reader are ordinary clients of
//! MQTT. Flows are those of `examples/flows`, and one message in 97 has a value that they notify of. The verdict: the messages above, at the reader
//! and in the archive, are those that the devices sent and that flows made at the edge, in order of each topic, byte for byte, and nothing else,
//! although the link was cut on the way and is narrower than the messages.
//!
//! Always true: everything that was started is ended, and every namespace removed, however the run ends.

mod archive;
mod devices;
mod reader;
mod stage;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use tidegate_api::ApiError;
use tidegate_load::sensors::Workload;
use tidegate_netlab::{Lab, LabError, Options};
use tidegate_sim::medium::{Change, Scenario};
use tokio_util::sync::CancellationToken;

use self::{
    devices::{Sent, Topics},
    reader::Received,
    stage::Stage,
};
use super::{
    failed, lab_failed,
    network::{joined, within},
    storage,
};

/// The link: a tenth of what the messages would need one by one.
const SCENARIO: &str = r#"
seed = 11
[[medium]]
name = "up0"
kind = "wan"
rate = "400kbit"
delay = "25ms"
queue = "64KiB"
port = [
  { node = "edge", address = "10.79.1.1/24" },
  { node = "core", address = "10.79.1.2/24" },
]
"#;

/// Flows at the edge, and what topics of each begin with.
const FLOWS: [(&str, &str); 5] = [
    ("city", "alarm/city/"),
    ("city-region", "city/"),
    ("taxi", "alarm/taxi/"),
    ("grid", "alarm/grid/"),
    ("fit", "alarm/fit/"),
];
/// For the uplink to have a link.
const START_MAX: Duration = Duration::from_secs(20);
/// How long what waits may take to arrive once no device sends.
const SETTLE: Duration = Duration::from_secs(60);
/// The cut: after this part of the run, for this part of it.
const CUT_AT: f64 = 0.4;
const CUT_FOR: f64 = 0.2;

/// The demonstration to run.
#[derive(Clone, Debug)]
pub struct SensorDemoOptions {
    /// The program that nodes run.
    pub program: PathBuf,
    /// Messages a second of each application.
    pub rate: u32,
    /// How long devices send.
    pub duration: Duration,
    /// Seed of the generator.
    pub seed: u64,
}

/// Its result.
#[derive(Clone, Debug)]
pub struct SensorRun {
    /// Each with what it found and whether it is right.
    pub checks: Vec<(&'static str, String, bool)>,
}

/// State that the threads of the demonstration share.
#[derive(Debug, Default)]
struct Board {
    /// Messages sent, by application.
    sent: [AtomicU64; 4],
    /// Messages received above, by application.
    received: [AtomicU64; 4],
    /// Notifications of flows: as seen at the edge, and above.
    raised: AtomicU64,
    found: AtomicU64,
    /// Of the uplink's own word.
    carried_bytes: AtomicU64,
    batch_bytes: AtomicU64,
    is_up: AtomicBool,
    devices_done: AtomicBool,
    is_over: AtomicBool,
}

/// Runs the demonstration and says what came of it. Must be called outside a runtime.
///
/// # Errors
/// Why it cannot run. Without the rights for namespaces it runs on loopback, where the link is neither narrow nor cut.
pub fn run(options: &SensorDemoOptions, stop: &CancellationToken) -> Result<SensorRun, ApiError> {
    let folder = tempfile::tempdir().map_err(|error| storage("no folder for the demo", error))?;
    let scenario = Scenario::parse(SCENARIO, std::path::Path::new(""))
        .map_err(|error| failed("the scenario of the demo is not readable", error))?;
    let lab = match Lab::up(&scenario, &Options::default()) {
        Ok(lab) => Some(lab),
        Err(error @ LabError::NeedsRoot { .. }) => {
            let why = tidegate_message::error_chain(&error);
            println!("link: loopback, neither narrow nor cut, because {why}");
            None
        }
        Err(error) => return Err(lab_failed(error)),
    };
    if lab.is_some() {
        println!("link: 400 kbit/s, 25 ms each way, cut for a fifth of the time");
    }
    let mut stage = Stage::set(&options.program, lab.as_ref(), folder.path())?;
    let board = Board::default();
    let began = Instant::now();
    let (sent, raised, received) = thread::scope(|scope| {
        let reading = scope.spawn(|| within(lab.as_ref(), "core", || reader::read(&stage, &board)));
        let watching =
            scope.spawn(|| within(lab.as_ref(), "edge", || reader::watch(&stage, &board)));
        let sending = scope.spawn(|| {
            // From then on all that is published is carried.
            let until = Instant::now() + START_MAX;
            while !board.is_up.load(Relaxed) && Instant::now() < until && !stop.is_cancelled() {
                thread::sleep(Duration::from_millis(20));
            }
            let sent =
                within(lab.as_ref(), "edge", || devices::send(options, &stage, &board, stop));
            board.devices_done.store(true, Relaxed);
            sent
        });
        let shown = show(options, lab.as_ref(), &stage, &board, began, stop);
        board.is_over.store(true, Relaxed);
        let sent = joined(sending.join());
        let received = joined(reading.join());
        let watched = joined(watching.join());
        shown?;
        Ok::<_, ApiError>((sent?, watched?, received?))
    })?;
    let mut checks = verdict(&sent, &raised, &received);
    checks.push(stage.archive(&sent, &raised)?);
    stage.end();
    if let Some(lab) = lab {
        let audit = lab.finish().map_err(lab_failed)?;
        let late = audit.lateness.p99;
        println!("link: p99 lateness of the emulator {late:?}");
    }
    Ok(SensorRun { checks })
}

/// A line a second until all has arrived or takes too long; cuts the link on the way.
fn show(
    options: &SensorDemoOptions,
    lab: Option<&Lab>,
    stage: &Stage,
    board: &Board,
    began: Instant,
    stop: &CancellationToken,
) -> Result<(), ApiError> {
    const HEAD: &str = "  time  link     sent/s  arrived/s  behind   found   ratio  link kbit/s  edge CPU  core CPU";
    println!("{HEAD}");
    let change = |text: &str| -> Result<(), ApiError> {
        let change: Change = text.parse().expect("a change in the documented form");
        lab.map_or(Ok(()), |lab| lab.apply(change).map_err(lab_failed))
    };
    let total =
        |counts: &[AtomicU64; 4]| counts.iter().map(|count| count.load(Relaxed)).sum::<u64>();
    let mut last = (0, 0, 0);
    let mut used = stage.used();
    let mut is_cut = false;
    let mut done_at = None;
    loop {
        thread::sleep(Duration::from_secs(1));
        let elapsed = began.elapsed();
        let part = elapsed.as_secs_f64() / options.duration.as_secs_f64();
        let cut_now = lab.is_some() && (CUT_AT..CUT_AT + CUT_FOR).contains(&part);
        if cut_now != is_cut {
            change(if cut_now { "up0 factor=0" } else { "up0 factor=1" })?;
            is_cut = cut_now;
        }
        let now = (total(&board.sent), total(&board.received), board.batch_bytes.load(Relaxed));
        let behind = now.0.saturating_sub(now.1);
        let uses = stage.used();
        let percent = |at: usize| (uses[at] - used[at]).as_secs_f64() * 100.0;
        let ratio = board.carried_bytes.load(Relaxed) as f64 / now.2.max(1) as f64;
        println!(
            "{:>5.0}s  {:<7}{:>8}{:>11}{:>8}{:>8}{:>7.1}x{:>13.0}{:>9.0}%{:>9.0}%",
            elapsed.as_secs_f64(),
            match (is_cut, board.is_up.load(Relaxed)) {
                (true, _) => "cut",
                (false, true) => "up",
                (false, false) => "down",
            },
            now.0 - last.0,
            now.1 - last.1,
            behind,
            board.found.load(Relaxed),
            ratio,
            now.2.saturating_sub(last.2) as f64 * 8.0 / 1000.0,
            percent(0),
            percent(1),
        );
        (last, used) = (now, uses);
        if stop.is_cancelled() {
            return Ok(());
        }
        if board.devices_done.load(Relaxed) {
            let done_at = *done_at.get_or_insert(Instant::now());
            let found_behind = board.found.load(Relaxed) < board.raised.load(Relaxed);
            if behind == 0 && !found_behind || done_at.elapsed() > SETTLE {
                // A duplicate would come now.
                thread::sleep(Duration::from_millis(500));
                return Ok(());
            }
        }
    }
}

fn verdict(sent: &Sent, raised: &Topics, received: &Received) -> Vec<(&'static str, String, bool)> {
    let mut checks = Vec::new();
    let count = |topics: &Topics| topics.values().map(|chain| chain.count).sum::<u64>();
    for (at, workload) in Workload::ALL.into_iter().enumerate() {
        let (sent, received) = (&sent.topics[at], &received.topics[at]);
        let same = sent.iter().filter(|(topic, chain)| received.get(*topic) == Some(chain)).count();
        let text = format!(
            "{} messages of {} topics sent, {} of {} arrived, {same} topics byte for byte and in order",
            count(sent),
            sent.len(),
            count(received),
            received.len(),
        );
        let met = same == sent.len() && received.len() == sent.len() && !sent.is_empty();
        checks.push((workload.name(), text, met));
    }
    let same = raised.iter().filter(|(topic, chain)| received.found.get(*topic) == Some(chain));
    let same = same.count();
    let by = FLOWS.iter().filter(|(_, start)| raised.keys().any(|topic| topic.starts_with(start)));
    let by: Vec<_> = by.map(|(flow, _)| *flow).collect();
    let text = format!(
        "{} on {} topics found by {}, {} on {} arrived, {same} topics byte for byte and in order",
        count(raised),
        raised.len(),
        if by.is_empty() { "none".to_owned() } else { by.join(", ") },
        count(&received.found),
        received.found.len(),
    );
    let met = !raised.is_empty() && same == raised.len() && same == received.found.len();
    checks.push(("flows of the edge", text, met));
    let text = format!("{} messages that were never sent", count(&received.others));
    checks.push(("nothing else", text, received.others.is_empty()));
    checks
}
