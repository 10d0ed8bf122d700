//! The controllers against each other: same cases, tables, links and seeds, in virtual time; and the paper's own experiment.

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, Tolerance, median};
use tidegate_message::ControllerKind;
use tidegate_sim::{cases, compare, paper};

/// `budget` keeps the bound wherever another controller does, and no other that keeps it delivers more or better.
///
/// Virtual time from one seed: every run is the same run, so there is one.
///
/// # Errors
/// A case has no row of `budget`.
pub fn controllers(report: &mut Report) -> anyhow::Result<()> {
    published(report);
    let mut table = compare::HEADING.to_owned() + "\n";
    for case in cases::all() {
        let rows = compare::compare_case(&case);
        let is_budget = |row: &&compare::Row| row.controller == ControllerKind::Budget.as_str();
        let ours = rows.iter().find(is_budget).context("a case ran without budget")?;
        let keepers: Vec<_> = rows.iter().filter(|row| row.kept && !is_budget(row)).collect();
        for row in &rows {
            table += &format!("{row}\n");
        }
        let bound = case.site.cameras[0].demand.bounds.latency().as_secs_f64() * 1e3;
        let figure =
            |what: &str, unit: &str| Figure::new(format!("control, {}, {what}", case.name), unit);
        let best = |of: fn(&compare::Row) -> f64| {
            keepers
                .iter()
                .max_by(|a, b| of(a).total_cmp(&of(b)))
                .map(|row| (of(row), row.controller.as_str()))
        };
        let p95 = figure("p95", "ms").ours([ours.p95.as_secs_f64() * 1e3]);
        let delivered = figure("delivered", "%").ours([ours.delivered * 100.0]);
        let accuracy = figure("accuracy", "").ours([ours.accuracy]);
        match (best(|row| row.delivered), best(|row| row.accuracy)) {
            (Some((most, by)), Some((finest, by_finest))) => {
                report.figure(p95.target(Target::AtMost(bound)));
                // To keep the bound, and to do so for no fewer frames than another that keeps it.
                let least = Target::AtLeast((most * 100.0).max(95.0));
                let half_a_point = Tolerance::Absolute(0.5);
                report.figure(
                    delivered
                        .peer([most * 100.0])
                        .peer_name(by)
                        .target(least)
                        .tolerance(half_a_point),
                );
                report.figure(
                    accuracy
                        .peer([finest])
                        .peer_name(by_finest)
                        .target(Target::AtLeast(finest))
                        .tolerance(Tolerance::Absolute(0.005)),
                );
            }
            _ => {
                report.figure(p95.note("no other controller keeps the bound here"));
                report.figure(delivered);
                report.figure(accuracy);
            }
        }
    }
    report.attach("controllers.txt", table);
    Ok(())
}

/// `mez-pi` on the paper's tables settles on the rows of the paper's Table 3, on every camera.
fn published(report: &mut Report) {
    for published in paper::PUBLISHED {
        let rows = paper::settled_rows(&paper::experiment(published).site.run());
        // A camera that changed rows to the end settled on none, which makes the figure no number, and short.
        let rows: Vec<f64> = rows.iter().map(|row| row.map_or(f64::NAN, f64::from)).collect();
        let expected = f64::from(published.row);
        let stray = rows.iter().copied().find(|row| *row != expected);
        let settled = stray.unwrap_or_else(|| median(&rows));
        report.figure(
            Figure::new(
                format!("mez-pi on {}, row settled on by all cameras", published.scene),
                "",
            )
            .ours([settled])
            .peer([expected])
            .peer_name("paper")
            .target(Target::Exactly(expected)),
        );
    }
}
