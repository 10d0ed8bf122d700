//! Where the time of a frame goes with five cameras on the Wi-Fi-like medium, and what a detector takes next to it.
//!
//! The application runs on the edge node itself, so that delivery is what the node, the call and the client take, and no wire.

use std::time::Duration;

use anyhow::ensure;
use bench_harness::{Figure, Report, Target, median};
use tidegate_client::Stages;
use tidegate_message::ControllerKind;
use tidegate_sim::medium::Scenario;

use crate::{
    Plan, SCENARIO, calibrate,
    live::{Remarks, Studio, demand, runs, tries},
    site::SiteConfig,
    watch::{Asked, Length},
};

/// Most that controller and copies may take of a frame's latency, in per cent. The paper's take 20.5.
const OVERHEAD_MAX: f64 = 5.0;

/// A stage and what it is of a frame's time.
type Stage = (&'static str, fn(&Stages) -> Duration);

const STAGES: [Stage; 5] = [
    ("capture", |stages| stages.capture),
    ("encode", |stages| stages.encode),
    ("queue", |stages| stages.queue),
    ("network", |stages| stages.network),
    ("delivery", |stages| stages.delivery),
];

/// Controller and copies ≤ 5 % of the latency without encoding; every stage, and the detector over the resolution, shown.
///
/// # Errors
/// There is no lab to be had here, or a run failed.
pub fn stages(plan: &Plan, studio: &Studio, report: &mut Report) -> anyhow::Result<()> {
    let scenario = Scenario::load(&plan.root.join(SCENARIO))?;
    let site = SiteConfig { app_at_edge: true, ..studio.site(&studio.slow, calibrate::CAMERAS) };
    let asked = Asked {
        demand: demand(ControllerKind::Budget)?,
        subscribers: 1,
        length: Length::For(Duration::from_secs(if plan.quick { 5 } else { 20 })),
        pairs: 0,
    };
    let mut means = STAGES.map(|_| Vec::new());
    let (mut shares, mut totals) = (Vec::new(), Vec::new());
    let mut remarks = Remarks::default();
    remarks.add(
        "capture, queue and delivery over the whole latency: the wait of a frame for the link counts as ours",
    );
    for run in 0..runs(plan) {
        let made = studio.run(&site, Some(&scenario), &asked, tries(plan))?;
        made.remark(&mut remarks);
        let arrivals = made.watched.cameras.iter().flatten().flatten();
        let frames: Vec<_> = arrivals.filter(|arrival| arrival.knobs.is_some()).collect();
        ensure!(!frames.is_empty(), "no frame arrived");
        let count = frames.len() as f64;
        let mut mean_of = [0.0; STAGES.len()];
        for ((mean, means), (name, stage)) in mean_of.iter_mut().zip(&mut means).zip(STAGES) {
            let millis = frames.iter().map(|frame| stage(&frame.stages).as_secs_f64() * 1e3);
            report.samples(format!("stages, {name}, run {run}, ms"), millis.clone());
            *mean = millis.sum::<f64>() / count;
            means.push(*mean);
        }
        let total = frames.iter().map(|frame| frame.latency_ms).sum::<f64>() / count;
        let [capture, _, queue, _, delivery] = mean_of;
        totals.push(total);
        shares.push((capture + queue + delivery) / total * 100.0);
    }
    for ((name, _), means) in STAGES.iter().zip(means) {
        report.figure(Figure::new(format!("stages, 5 cameras, mean {name}"), "ms").ours(means));
    }
    report.figure(Figure::new("stages, 5 cameras, mean capture to application", "ms").ours(totals));
    report.figure(
        remarks.on(Figure::new("stages, controller and copies without encoding", "%")
            .ours(shares)
            .target(Target::AtMost(OVERHEAD_MAX))),
    );
    detector(plan, studio, report);
    Ok(())
}

fn detector(plan: &Plan, studio: &Studio, report: &mut Report) {
    match studio.detector_times(if plan.quick { 5 } else { 30 }) {
        Ok(times) => {
            for (size, millis) in times {
                let name = format!("detector moving on {size}, p50");
                report.figure(Figure::new(name, "ms").ours([median(&millis)]));
                report.samples(format!("detector on {size}, ms"), millis);
            }
        }
        Err(error) => report.figure(
            Figure::new("detector moving over the resolution", "ms")
                .target(Target::AtLeast(0.0))
                .note(format!("not measured: {error:#}")),
        ),
    }
}
