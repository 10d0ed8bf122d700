//! One to five cameras on the calibrated Wi-Fi-like medium, beside `fixed` and NATS with the same frames; and the frame sizes of
//! the paper's Table 1.

use std::{path::Path, time::Duration};

use bench_harness::{Figure, Report, Target, Tolerance, percentile};
use tidegate_message::ControllerKind;
use tidegate_netlab::{Lab, Options};
use tidegate_sim::medium::Scenario;

use crate::{
    Plan, SCENARIO, calibrate,
    clip::Clip,
    live::{BOUND_MS, Remarks, Studio, demand, runs, tries},
    nats::{self, Frames, NatsBench, Place},
    score::{Held, Score},
    watch::{Asked, Length, block_on},
};

/// Most accuracy that may be lost, in per cent.
const LOSS_MAX: f64 = 3.3;

/// One cell: how many cameras, how many frames a second.
#[derive(Clone, Copy)]
struct Cell {
    cameras: usize,
    fps: u32,
}

/// The figures of one cell, by run.
#[derive(Default)]
struct Runs {
    budget: Vec<Score>,
    loss: Vec<f64>,
    fixed: Vec<Score>,
    nats: Vec<Score>,
}

/// p95 ≤ 100 ms for every camera and accuracy loss ≤ 3.3 %, in every cell; `fixed` and NATS beside.
///
/// # Errors
/// There is no lab to be had here, or a run failed. A NATS server that cannot be had leaves its columns empty.
pub fn wifi(plan: &Plan, studio: &Studio, report: &mut Report) -> anyhow::Result<()> {
    let scenario = Scenario::load(&plan.root.join(SCENARIO))?;
    let seconds = if plan.quick { 5 } else { 10 };
    let (cameras, cadences): (&[usize], &[u32]) = match plan.quick {
        true => (&[1, 5], &[5]),
        false => (&[1, 2, 3, 4, 5], &[5, 15]),
    };
    report.configuration("wifi, seconds a run", seconds);
    let bench = Bench { plan, studio, scenario, length: Duration::from_secs(seconds) };
    for &fps in cadences {
        for &cameras in cameras {
            bench.cell(Cell { cameras, fps }, report)?;
        }
    }
    bench.table_1(report)
}

struct Bench<'a> {
    plan: &'a Plan,
    studio: &'a Studio,
    scenario: Scenario,
    length: Duration,
}

impl Bench<'_> {
    fn cell(&self, cell: Cell, report: &mut Report) -> anyhow::Result<()> {
        let mut made = Runs::default();
        let mut remarks = Remarks::default();
        let clip = self.studio.clip(cell.fps);
        for run in 0..runs(self.plan) {
            // The first contender changes by one each run.
            for turn in 0..3 {
                match (run + turn) % 3 {
                    0 => {
                        let asked = ControllerKind::Budget;
                        let (score, loss) =
                            self.ours(cell, clip, asked, run, true, &mut remarks, report)?;
                        made.budget.push(score);
                        made.loss.push(loss);
                    }
                    1 => {
                        let asked = ControllerKind::Fixed;
                        let (score, _) =
                            self.ours(cell, clip, asked, run, false, &mut remarks, report)?;
                        made.fixed.push(score);
                    }
                    _ => match self.nats(cell, clip, run, report) {
                        Ok(score) => made.nats.push(score),
                        Err(error) => remarks.add(format!("NATS did not run: {error:#}")),
                    },
                }
            }
        }
        rows(cell, &made, &remarks, report);
        Ok(())
    }

    /// One run of ours: the worst camera's figures, and the accuracy lost in per cent where it is asked for.
    #[expect(clippy::too_many_arguments, reason = "one run of one cell, with where its samples go")]
    fn ours(
        &self,
        cell: Cell,
        clip: &Clip,
        controller: ControllerKind,
        run: usize,
        measure: bool,
        remarks: &mut Remarks,
        report: &mut Report,
    ) -> anyhow::Result<(Score, f64)> {
        let pairs = match (measure, self.plan.quick) {
            (false, _) => 0,
            (true, true) => 16,
            // Enough boxes for a verdict even where one camera shows them all.
            (true, false) => 40_usize.div_ceil(cell.cameras).max(16),
        };
        let asked = Asked {
            demand: demand(controller)?,
            subscribers: 1,
            length: Length::For(self.length),
            pairs,
        };
        let site = self.studio.site(clip, cell.cameras);
        let made = self.studio.run(&site, Some(&self.scenario), &asked, tries(self.plan))?;
        if controller == ControllerKind::Budget {
            made.remark(remarks);
        }
        for (camera, subscribers) in (1..).zip(&made.watched.cameras) {
            let name = format!(
                "wifi, {} cameras of {:.0} KB, {} fps, {controller}, run {run}, cam{camera}",
                cell.cameras,
                clip.kilobytes(),
                cell.fps
            );
            let arrivals = || subscribers.iter().flatten();
            report.samples(format!("{name}, ms"), arrivals().map(|arrival| arrival.latency_ms));
            report.samples(format!("{name}, bytes"), arrivals().map(|a| a.bytes as f64));
        }
        let held = Held { fps: cell.fps, bound_ms: BOUND_MS };
        let mut loss = f64::NAN;
        if measure {
            // Cameras show the same clip, each at its own time: their pairs are one sample.
            let pairs = made.watched.pairs.concat();
            match self.studio.measured(clip, &pairs) {
                Ok(accuracy) => loss = (1.0 - accuracy) * 100.0,
                Err(error) => remarks.add(format!("accuracy is not measured: {error:#}")),
            }
        }
        Ok((Score::worst_camera(&made.watched, held), loss))
    }

    /// One run of NATS on the same medium: publishers where the cameras are, the server at the edge, the subscriber where the
    /// application is.
    fn nats(
        &self,
        cell: Cell,
        clip: &Clip,
        run: usize,
        report: &mut Report,
    ) -> anyhow::Result<Score> {
        let lab = Lab::up(&self.scenario, &Options::default())?;
        let place = |node: &str| -> anyhow::Result<Place> {
            let words = ["ip", "netns", "exec", lab.node(node)?.namespace()];
            Ok(Place(words.map(str::to_owned).to_vec()))
        };
        let edge = lab.address("edge")?.to_string();
        let bench = NatsBench::start(&self.plan.root, &place("edge")?, &edge)?;
        report.version("nats-server", bench.server_version());
        let cameras: Vec<nats::Camera> = (1..=cell.cameras)
            .map(|number| {
                Ok(nats::Camera {
                    place: place(&format!("cam{number}"))?,
                    subject: format!("frames.cam{number}"),
                    frames: Frames::Folder(clip.folder().to_owned()),
                    fps: f64::from(cell.fps),
                })
            })
            .collect::<anyhow::Result<_>>()?;
        let received = bench.run(&place("app")?, &cameras, 1, self.length.as_secs_f64())?;
        drop(bench);
        lab.finish()?;
        let scores: Vec<Score> = received
            .iter()
            .zip(1..)
            .map(|(camera, number)| {
                let millis: Vec<f64> = camera.latencies_ms().collect();
                let in_time = millis.iter().filter(|ms| **ms <= BOUND_MS).count();
                let score = Score {
                    p95_ms: percentile(&millis, 0.95),
                    delivered: in_time as f64 / camera.sent.max(1) as f64 * 100.0,
                    accuracy: 1.0,
                    kilobytes: clip.kilobytes(),
                };
                let name = format!(
                    "wifi, {} cameras of {:.0} KB, {} fps, NATS, run {run}, cam{number}, ms",
                    cell.cameras,
                    clip.kilobytes(),
                    cell.fps
                );
                report.samples(name, millis);
                score
            })
            .collect();
        Ok(Score::worst(&scores))
    }

    /// Frames of the sizes of the paper's Table 1, at 5 a second, under control.
    fn table_1(&self, report: &mut Report) -> anyhow::Result<()> {
        let cells = calibrate::TABLE_1
            .iter()
            .filter(|_| !self.plan.quick)
            .flat_map(|row| [(row.0, 1, row.1), (row.0, calibrate::CAMERAS, row.2)]);
        for (kilobytes, cameras, uncontrolled) in cells {
            let folder = self.studio.folder().join(format!("clip-{kilobytes}"));
            if !folder.exists() {
                block_on(film_of_size(&folder, kilobytes))??;
            }
            let clip = Clip::open(&folder, 5)?;
            let (mut scores, mut remarks) = (Vec::new(), Remarks::default());
            for run in 0..runs(self.plan) {
                let cell = Cell { cameras, fps: 5 };
                let asked = ControllerKind::Budget;
                let (score, _) = self.ours(cell, &clip, asked, run, false, &mut remarks, report)?;
                scores.push(score);
            }
            remarks.add(format!("frames of {:.0} KB", clip.kilobytes()));
            let name = format!("wifi, Table 1, {kilobytes} KB, {cameras} cameras");
            let p95 = Figure::new(format!("{name}, worst camera's p95"), "ms")
                .ours(scores.iter().map(|score| score.p95_ms))
                .peer([uncontrolled])
                .peer_name("paper, uncontrolled")
                .target(Target::AtMost(BOUND_MS));
            report.figure(remarks.on(p95));
            let delivered = scores.iter().map(|score| score.delivered);
            report.figure(Figure::new(format!("{name}, delivered"), "%").ours(delivered));
        }
        Ok(())
    }
}

fn rows(cell: Cell, made: &Runs, remarks: &Remarks, report: &mut Report) {
    let name = format!("wifi, {} cameras, {} fps", cell.cameras, cell.fps);
    let of =
        |scores: &[Score], pick: fn(&Score) -> f64| scores.iter().map(pick).collect::<Vec<f64>>();
    let p95 = of(&made.budget, |score| score.p95_ms);
    let delivered = of(&made.budget, |score| score.delivered);
    let first = Figure::new(format!("{name}, worst camera's p95"), "ms").ours(p95.clone());
    report.figure(remarks.on(first.target(Target::AtMost(BOUND_MS))));
    let loss = Figure::new(format!("{name}, accuracy loss measured"), "%").ours(made.loss.clone());
    report.figure(loss.target(Target::AtMost(LOSS_MAX)).tolerance(Tolerance::Absolute(0.5)));
    let accuracy = of(&made.budget, |score| score.accuracy);
    report.figure(Figure::new(format!("{name}, accuracy promised"), "").ours(accuracy));
    for (peer, scores) in [("fixed", &made.fixed), ("NATS", &made.nats)] {
        let beside = |what: &str, unit: &str| {
            Figure::new(format!("{name}, worst camera's {what}, beside {peer}"), unit)
                .peer_name(peer)
        };
        let theirs = of(scores, |score| score.p95_ms);
        report.figure(beside("p95", "ms").ours(p95.clone()).peer(theirs));
        let theirs = of(scores, |score| score.delivered);
        report.figure(beside("delivered", "%").ours(delivered.clone()).peer(theirs));
    }
}

/// A clip whose frames have about `kilobytes`: 1080p in finer quality, and above what that gives, in more pixels.
async fn film_of_size(folder: &Path, kilobytes: usize) -> anyhow::Result<Clip> {
    let wanted = kilobytes as f64;
    let mut best: Option<(f64, String)> = None;
    let sizes = [(1920, 1080), (2560, 1440), (3200, 1800), (3840, 2160)];
    for (width, height) in sizes {
        for quality in 95..=100 {
            let scene = format!(
                "scene:street?size={width}x{height}&people=10&seconds=1&seed=1&quality={quality}"
            );
            let trial = tempfile::tempdir()?;
            let clip = Clip::film(&trial.path().join("trial"), &scene, 1).await?;
            let off = (clip.kilobytes() / wanted - 1.0).abs();
            if best.as_ref().is_none_or(|(least, _)| off < *least) {
                best = Some((off, scene.replace("seconds=1&", "seconds=10&")));
            }
        }
        // Fewer pixels are encoded sooner: more are taken only where they are needed.
        if best.as_ref().is_some_and(|(off, _)| *off <= 0.1) {
            break;
        }
    }
    let (_, scene) = best.ok_or_else(|| anyhow::anyhow!("no scene was tried"))?;
    Clip::film(folder, &scene, 5).await
}
