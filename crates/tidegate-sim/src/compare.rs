//! Controllers side by side: the same cases, tables, links and seeds.
//!
//! A controller *keeps the bound* in a case if the 95th percentile over all captured frames, a lost one
//! counted as late, is within it: at least 95 % are delivered.

use std::{fmt, time::Duration};

use tidegate_message::{ControllerKind, Delivery};

use crate::cases::{self, Case};

/// Part of the frames that must be delivered for the bound to be kept.
const KEPT: f64 = 0.95;
/// Differences up to this are a tie: half a point of frames, 0.005 of accuracy.
const TIE: f64 = 0.005;

/// One controller in one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The controller, or how it was run.
    pub controller: String,
    /// Part of the captured frames that was delivered, 0 to 1.
    pub delivered: f64,
    /// 95th percentile of latency over the frames that arrived.
    pub p95: Duration,
    /// Longest time to settle after a step; nothing if it did not, or if there was no step.
    pub settled: Option<Duration>,
    /// Mean normalized F1 of the delivered frames.
    pub accuracy: f64,
    /// Mean size of the delivered frames in bytes.
    pub bytes: f64,
    /// Whether the bound was kept.
    pub kept: bool,
}

/// Runs every case with every controller, and the paper's also as the paper has it: every frame, none
/// reset.
pub fn compare() -> Vec<Row> {
    cases::all().iter().flat_map(compare_case).collect()
}

/// Runs one case with every controller.
pub fn compare_case(case: &Case) -> Vec<Row> {
    let mut rows: Vec<Row> = ControllerKind::ALL
        .iter()
        .map(|kind| run(&case.with_controller(*kind), kind.to_string()))
        .collect();
    let mut every = case.with_controller(ControllerKind::MezPi);
    every.site.cameras.iter_mut().for_each(|camera| camera.demand.delivery = Delivery::Every);
    rows.push(run(&every, "mez-pi, every frame".to_owned()));
    rows
}

fn run(case: &Case, controller: String) -> Row {
    let outcome = case.site.run();
    let summary = outcome.summary();
    let cameras = 0..case.site.cameras.len();
    let settled: Option<Vec<Duration>> = cameras
        .flat_map(|camera| case.steps.iter().map(move |step| (camera, *step)))
        .map(|(camera, step)| outcome.settled(camera, step))
        .collect();
    let bound = case.site.cameras[0].demand.bounds.latency();
    Row {
        case: case.name.clone(),
        controller,
        delivered: summary.delivered,
        p95: summary.p95,
        settled: settled.and_then(|times| times.into_iter().max()),
        accuracy: summary.accuracy,
        bytes: summary.bytes,
        kept: summary.delivered >= KEPT && summary.p95 <= bound,
    }
}

/// The rows in which another controller beats `budget`: keeps a bound that it does not, or keeps it with
/// more frames or higher accuracy.
pub fn beaten(rows: &[Row]) -> Vec<&Row> {
    let ours = |case: &str| {
        rows.iter()
            .find(|row| row.case == case && row.controller == ControllerKind::Budget.as_str())
    };
    let beats = |row: &&Row| {
        let Some(budget) = ours(&row.case) else { return false };
        row.kept
            && (!budget.kept
                || row.delivered > budget.delivered + TIE
                || row.accuracy > budget.accuracy + TIE)
    };
    rows.iter().filter(beats).collect()
}

/// A line of the table.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settled =
            self.settled.map_or("-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()));
        write!(
            f,
            "{:<42} {:<20} {:>6.1} {:>7.1} {:>7} {:>7.4} {:>6.0}  {}",
            self.case,
            self.controller,
            self.delivered * 100.0,
            self.p95.as_secs_f64() * 1e3,
            settled,
            self.accuracy,
            self.bytes / 1e3,
            if self.kept { "kept" } else { "-" },
        )
    }
}

/// The heading of the table.
pub const HEADING: &str = "case                                       controller           deliv %  p95 ms settle s accuracy   KB  bound";
