//! One camera on a line that steps between 200 and 20 Mbit/s every 10 s, under each controller.

use std::time::Duration;

use bench_harness::{Figure, Report, Target, Tolerance, interleave};
use tidegate_message::ControllerKind;
use tidegate_sim::medium::Scenario;

use crate::{
    Plan,
    live::{ACCURACY, BOUND_MS, Remarks, Studio, demand, runs, tries},
    score::{Held, Score, settled},
    watch::{Asked, Length},
};

/// The line, from the root of the checkout.
const SCENARIO: &str = "bench/scenarios/wan-steps-200-20.toml";
/// Least part of the frames in time, in per cent.
const DELIVERED_MIN: f64 = 97.0;
/// Least mean F1 that is measured.
const MEASURED_MIN: f64 = 0.96;

/// One run of one controller.
struct Outcome {
    score: Score,
    /// The longest time to settle after a step, in seconds.
    settled: f64,
    /// F1 by the detector.
    measured: f64,
}

/// p95 ≤ 100 ms over the whole run, settled, ≥ 97 % delivered, accuracy; the other controllers beside `budget`.
///
/// # Errors
/// There is no lab to be had here, or a run failed.
pub fn steps(plan: &Plan, studio: &Studio, report: &mut Report) -> anyhow::Result<()> {
    let scenario = Scenario::load(&plan.root.join(SCENARIO))?;
    // A step down and one up in each run; the quick bench sees `budget` alone.
    let seconds = if plan.quick { 24 } else { 29 };
    let controllers = match plan.quick {
        true => vec![ControllerKind::Budget],
        false => vec![
            ControllerKind::Budget,
            ControllerKind::Fixed,
            ControllerKind::Aimd,
            ControllerKind::MezPi,
        ],
    };
    report.configuration("steps, seconds of schedule", seconds);
    for fps in [5, 15] {
        let mut remarks = Remarks::default();
        let mut outcomes = {
            let remarks = std::cell::RefCell::new(&mut remarks);
            let report = std::cell::RefCell::new(&mut *report);
            let (remarks, report) = (&remarks, &report);
            let mut contenders: Vec<_> = controllers
                .iter()
                .map(|&controller| {
                    let scenario = &scenario;
                    move |run: usize| {
                        let group = Group { plan, studio, scenario, fps, seconds };
                        group.run(
                            controller,
                            run,
                            &mut remarks.borrow_mut(),
                            &mut report.borrow_mut(),
                        )
                    }
                })
                .collect();
            let mut turns: Vec<&mut dyn FnMut(usize) -> anyhow::Result<Outcome>> =
                contenders.iter_mut().map(|contender| contender as _).collect();
            interleave(runs(plan), &mut turns)?
        };
        let budget = outcomes.remove(0);
        ours(report, fps, &budget, &remarks);
        for (controller, theirs) in controllers[1..].iter().zip(&outcomes) {
            beside(report, fps, &budget, *controller, theirs);
        }
    }
    Ok(())
}

struct Group<'a> {
    plan: &'a Plan,
    studio: &'a Studio,
    scenario: &'a Scenario,
    fps: u32,
    seconds: u64,
}

impl Group<'_> {
    fn run(
        &self,
        controller: ControllerKind,
        run: usize,
        remarks: &mut Remarks,
        report: &mut Report,
    ) -> anyhow::Result<Outcome> {
        let clip = self.studio.clip(self.fps);
        let held = Held { fps: self.fps, bound_ms: BOUND_MS };
        let asked = Asked {
            demand: demand(controller)?,
            subscribers: 1,
            length: Length::UntilSchedule(Duration::from_secs(self.seconds)),
            pairs: if self.plan.quick { 24 } else { 40 },
        };
        let site = self.studio.site(clip, 1);
        let made = self.studio.run(&site, Some(self.scenario), &asked, tries(self.plan))?;
        if controller == ControllerKind::Budget {
            made.remark(remarks);
        }
        let watched = &made.watched;
        let arrivals = &watched.cameras[0][0];
        let name = |what: &str| format!("steps, {} fps, {controller}, run {run}, {what}", self.fps);
        let of = |pick: fn(&crate::watch::Arrival) -> f64| arrivals.iter().map(pick);
        report.samples(name("ms"), of(|arrival| arrival.latency_ms));
        report.samples(name("bytes"), of(|arrival| arrival.bytes as f64));
        report.samples(name("accuracy promised"), of(|arrival| arrival.accuracy));
        let since = |at: i64| (at - made.schedule_began) as f64 / 1e9;
        report.samples(name("captured, s"), arrivals.iter().map(|arrival| since(arrival.captured)));
        let step = |index: u64| made.schedule_began + index as i64 * 10_000_000_000;
        let settled = (1..=self.seconds / 10)
            .filter(|index| step(*index) > watched.began)
            .map(|index| settled(arrivals, step(index), step(index + 1).min(watched.ended), held))
            .fold(0.0, f64::max);
        let measured = self.studio.measured(clip, &watched.pairs[0]).unwrap_or_else(|error| {
            remarks.add(format!("accuracy is not measured: {error:#}"));
            f64::NAN
        });
        Ok(Outcome { score: Score::worst_camera(watched, held), settled, measured })
    }
}

fn ours(report: &mut Report, fps: u32, runs: &[Outcome], remarks: &Remarks) {
    let figure = |what: &str, unit: &str, of: fn(&Outcome) -> f64| {
        Figure::new(format!("steps, {fps} fps, {what}"), unit).ours(runs.iter().map(of))
    };
    let p95 = figure("p95 capture to application", "ms", |run| run.score.p95_ms);
    report.figure(remarks.on(p95.target(Target::AtMost(BOUND_MS))));
    let settled_max = if fps == 5 { 0.5 } else { 0.35 };
    let settled = figure("settled after the worst step", "s", |run| run.settled);
    report.figure(settled.target(Target::AtMost(settled_max)));
    let delivered = figure("delivered", "%", |run| run.score.delivered);
    report.figure(
        delivered.target(Target::AtLeast(DELIVERED_MIN)).tolerance(Tolerance::Absolute(0.5)),
    );
    let promised = figure("mean accuracy promised", "", |run| run.score.accuracy);
    report.figure(promised.target(Target::AtLeast(ACCURACY)).tolerance(Tolerance::Absolute(0.005)));
    let measured = figure("mean accuracy measured", "", |run| run.measured);
    report.figure(
        measured.target(Target::AtLeast(MEASURED_MIN)).tolerance(Tolerance::Absolute(0.005)),
    );
    report.figure(figure("mean frame", "KB", |run| run.score.kilobytes));
}

/// The rows of another controller on the same line: shown, for the comparison is judged where chance plays no part.
fn beside(
    report: &mut Report,
    fps: u32,
    budget: &[Outcome],
    controller: ControllerKind,
    theirs: &[Outcome],
) {
    let mut figure = |what: &str, unit: &str, of: fn(&Outcome) -> f64| {
        report.figure(
            Figure::new(format!("steps, {fps} fps, {what}, beside {controller}"), unit)
                .ours(budget.iter().map(of))
                .peer(theirs.iter().map(of))
                .peer_name(controller.as_str()),
        );
    };
    figure("p95", "ms", |run| run.score.p95_ms);
    figure("delivered", "%", |run| run.score.delivered);
    figure("settled", "s", |run| run.settled);
    figure("accuracy promised", "", |run| run.score.accuracy);
    figure("accuracy measured", "", |run| run.measured);
}
