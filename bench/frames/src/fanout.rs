//! One camera with one and with eight subscribers, and NATS for comparison, on loopback: the cost of more subscribers
//! to the others.

use std::time::Duration;

use bench_harness::{Figure, Report, Target, Tolerance, percentile};
use tidegate_message::ControllerKind;

use crate::{
    Plan,
    live::{Remarks, Studio, demand, runs},
    nats::{self, Frames, NatsBench, Place},
    watch::{Asked, Length},
};

/// Few and many.
const SUBSCRIBERS: [usize; 2] = [1, 8];

/// p95 of eight subscribers over that of one ≤ 1.2; NATS beside, with the same frames.
///
/// # Errors
/// A run failed. A NATS server that cannot be had leaves its column empty.
pub fn fanout(plan: &Plan, studio: &Studio, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 4 } else { 10 });
    let mut ours = SUBSCRIBERS.map(|_| Vec::new());
    let mut theirs = SUBSCRIBERS.map(|_| Vec::new());
    let mut remarks = Remarks::default();
    let here = Place::default();
    let server = NatsBench::start(&plan.root, &here, "127.0.0.1");
    match &server {
        Ok(server) => report.version("nats-server", server.server_version()),
        Err(error) => remarks.add(format!("NATS did not run: {error:#}")),
    }
    let clip = &studio.fast;
    for run in 0..runs(plan) {
        for turn in 0..SUBSCRIBERS.len() {
            let which = (run + turn) % SUBSCRIBERS.len();
            let subscribers = SUBSCRIBERS[which];
            let asked = Asked {
                demand: demand(ControllerKind::Budget)?,
                subscribers,
                length: Length::For(length),
                pairs: 0,
            };
            let made = studio.run(&studio.site(clip, 1), None, &asked, 1)?;
            let arrivals = made.watched.cameras[0].iter().flatten();
            let millis: Vec<f64> = arrivals.map(|arrival| arrival.latency_ms).collect();
            ours[which].push(percentile(&millis, 0.95));
            report.samples(format!("fanout, {subscribers} subscribers, run {run}, ms"), millis);
            if let Ok(server) = &server {
                let camera = nats::Camera {
                    place: here.clone(),
                    subject: format!("fanout.{subscribers}.{run}"),
                    frames: Frames::Folder(clip.folder().to_owned()),
                    fps: f64::from(clip.fps()),
                };
                let received = server.run(&here, &[camera], subscribers, length.as_secs_f64())?;
                let millis: Vec<f64> = received.iter().flat_map(|c| c.latencies_ms()).collect();
                theirs[which].push(percentile(&millis, 0.95));
                let name = format!("fanout, {subscribers} subscribers, NATS, run {run}, ms");
                report.samples(name, millis);
            }
        }
    }
    for (index, subscribers) in SUBSCRIBERS.into_iter().enumerate() {
        report.figure(
            Figure::new(format!("fanout, {subscribers} subscribers at 15 fps, p95"), "ms")
                .ours(ours[index].clone())
                .peer(theirs[index].clone())
                .peer_name("NATS"),
        );
    }
    let ratios = |[few, many]: &[Vec<f64>; 2]| {
        few.iter().zip(many).map(|(few, many)| many / few).collect::<Vec<f64>>()
    };
    let ratio = Figure::new("fanout, p95 of 8 subscribers over that of 1", "")
        .ours(ratios(&ours))
        .peer(ratios(&theirs))
        .peer_name("NATS")
        .target(Target::AtMost(1.2))
        .tolerance(Tolerance::None);
    report.figure(remarks.on(ratio));
    Ok(())
}
