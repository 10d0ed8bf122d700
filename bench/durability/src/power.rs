//! Power that goes at any moment, on the simulated disk of `tidegate-log`: writes since the last sync are lost, reordered or torn.

use std::time::Instant as Stopwatch;

use bench_harness::{Figure, Report, Target};
use tidegate_log::simulated::{self, Outcome, Violation};

use crate::Plan;

/// Runs of a log in clear text, and of a sealed one.
const SEEDS: u64 = 10_000;

type Run = fn(u64) -> Result<Outcome, Violation>;

/// Promises kept and broken, over all seeds.
///
/// # Errors
/// None: a broken promise is a row that is short.
pub fn power(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let seeds = if plan.quick { SEEDS / 10 } else { SEEDS };
    report.configuration("power", format!("seeds 0 to {}", seeds - 1));
    for (name, run) in
        [("clear", simulated::lose_power as Run), ("sealed", simulated::lose_power_sealed as Run)]
    {
        let begun = Stopwatch::now();
        let (mut broken, mut losses, mut kills, mut durable) = (Vec::new(), 0, 0, 0);
        for seed in 0..seeds {
            match run(seed) {
                Ok(outcome) => {
                    losses += outcome.power_losses;
                    kills += outcome.kills;
                    durable += outcome.durable;
                }
                Err(violation) => broken.push(format!("seed {seed}: {violation}")),
            }
        }
        let figure =
            Figure::new(format!("power lost, {name} log, {seeds} seeds, promises broken"), "")
                .ours([broken.len() as f64])
                .target(Target::Exactly(0.0));
        let said = format!(
            "{losses} losses of power, {kills} ends of the process, {durable} times durable, {:.0} s",
            begun.elapsed().as_secs_f64()
        );
        report.figure(figure.note(match broken.first() {
            Some(first) => format!("{said}; {first}"),
            None => said,
        }));
    }
    Ok(())
}
