//! The parts that the live benches share: the clip, its table, the detector that measures accuracy, and runs that a medium's
//! audit accepts.
//!
//! ```text
//!  Studio::open ──▶ clips, table ──▶ run(scenario, cameras, …) ──▶ Watched ──▶ Score ──▶ rows
//!                                       └─ a run whose medium was late is made again
//! ```

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, machine};
use tempfile::TempDir;
use tidegate_camera::{
    characterize,
    detector::{self, Detector, DetectorKind, DetectorSpec, Pair},
};
use tidegate_frame::score::BOXES_MIN;
use tidegate_message::{
    AdaptationProfile, Bounds, ControllerKind, Delivery, Demand, WhenInfeasible,
};
use tidegate_netlab::Flaw;
use tidegate_sim::medium::Scenario;

use crate::{
    Plan,
    clip::Clip,
    site::{self, Site, SiteConfig},
    watch::{Asked, Watched, block_on, watch},
};

/// The street of the live benches: 1080p, textured to 300 to 500 KB a frame.
const SCENE: &str = "scene:street?size=1920x1080&people=10&seconds=10&seed=1";
/// Pictures that a detector learns its background from.
const BACKGROUND: usize = 31;
/// How often a run is made again because its medium was late.
const TRIES: usize = 3;

/// The latency bound of the live benches, in milliseconds.
pub const BOUND_MS: f64 = 100.0;
/// Their accuracy bound.
pub const ACCURACY: f64 = 0.95;

/// Everything that is prepared once, before the first run.
pub struct Studio {
    /// The clip at 15 frames a second.
    pub fast: Clip,
    /// The same at 5, every third picture.
    pub slow: Clip,
    program: PathBuf,
    tables: Option<PathBuf>,
    /// Why accuracy cannot be measured, if it cannot.
    blind: Option<String>,
    folder: TempDir,
}

impl Studio {
    /// Draws the clip, characterizes it, and finds the program.
    ///
    /// # Errors
    /// The scene cannot be drawn, or there is no `tidegate` program beside this one.
    pub fn open(plan: &Plan, report: &mut Report) -> anyhow::Result<Self> {
        let program = site::program()?;
        report.version("tidegate", machine::said(&program.display().to_string(), &["--version"]));
        let folder = tempfile::tempdir().context("making a folder for the clip")?;
        let fast = block_on(Clip::film(&folder.path().join("clip-15"), SCENE, 15))??;
        let slow = fast.thinned(&folder.path().join("clip-5"), 3)?;
        report.configuration("clip", SCENE);
        report.configuration("clip, mean KB of a frame", format!("{:.0}", fast.kilobytes()));
        let tables = folder.path().join("tables");
        std::fs::create_dir(&tables).context("making a folder for the table")?;
        let arguments = characterize::Arguments {
            clip: fast.once()?,
            detector: DetectorSpec::new(DetectorKind::Moving),
            profile: AdaptationProfile::Jpeg,
            frames: if plan.quick { 8 } else { 60 },
            scene: "any".to_owned(),
            use_truth: false,
            table_path: tables.join("clip.table"),
        };
        let (tables, blind) = match block_on(characterize::run(&arguments, &mut |_| {}))? {
            Ok(made) => {
                let rows = made.table.rows.len();
                report.configuration(
                    "table",
                    format!("{rows} settings on {} frames of the clip", arguments.frames),
                );
                (Some(tables), None)
            }
            Err(error) => {
                let why = format!("{:#}", anyhow::Error::from(error));
                report.configuration("table", format!("the built-in one: {why}"));
                (None, Some(why))
            }
        };
        Ok(Self { fast, slow, program, tables, blind, folder })
    }

    /// The clip at `fps`, which is 5 or 15.
    #[must_use]
    pub fn clip(&self, fps: u32) -> &Clip {
        if fps == self.slow.fps() { &self.slow } else { &self.fast }
    }

    /// A folder for what a group prepares.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Nodes for `cameras` that show `clip`.
    #[must_use]
    pub fn site<'a>(&'a self, clip: &Clip, cameras: usize) -> SiteConfig<'a> {
        SiteConfig {
            program: &self.program,
            sources: vec![clip.source(true); cameras],
            tables: self.tables.as_deref(),
            camera_log: if cameras == 1 { "512MiB" } else { "256MiB" },
            frame: "8MB",
            app_at_edge: false,
        }
    }

    /// One run: nodes, an application, and an end. A run whose medium was late or lost packets of its own is made again, and
    /// after the last try kept with what is wrong.
    ///
    /// # Errors
    /// As [`Site::start`] and [`watch`].
    pub fn run(
        &self,
        config: &SiteConfig<'_>,
        scenario: Option<&Scenario>,
        asked: &Asked,
        tries: usize,
    ) -> anyhow::Result<Run> {
        for left in (0..tries.max(1)).rev() {
            let mut site = Site::start(config, scenario)?;
            let watched = watch(&mut site, asked)?;
            let began = site.began();
            let flaws = site.finish()?.map(|audit| audit.flaws()).unwrap_or_default();
            let flaw = flaws.iter().map(Flaw::to_string).collect::<Vec<_>>().join("; ");
            if flaw.is_empty() || left == 0 {
                let flaw = Some(flaw).filter(|flaw| !flaw.is_empty());
                return Ok(Run { watched, schedule_began: began, flaw });
            }
            eprintln!("bench-frames: the run is made again: {flaw}");
        }
        unreachable!("the last try returns")
    }

    /// The detector's F1 on delivered frames with its own boxes on their originals for the truth.
    ///
    /// # Errors
    /// There is no detector on this machine, it fails, or there are too few boxes for a verdict.
    pub fn measured(&self, clip: &Clip, pairs: &[Pair]) -> anyhow::Result<f64> {
        if let Some(why) = &self.blind {
            anyhow::bail!("{why}");
        }
        let background = clip.pictures(BACKGROUND)?;
        let report = block_on(async {
            let mut detector = Detector::start(DetectorSpec::new(DetectorKind::Moving)).await?;
            detector::compare(&mut detector, &background, pairs).await
        })??;
        let boxes = report.original.truth();
        ensure!(boxes >= BOXES_MIN, "{boxes} boxes are too few for a verdict");
        report.normalized.context("the detector finds nothing on the originals")
    }

    /// The detector's time on one picture, over the resolutions that a camera may have.
    ///
    /// # Errors
    /// As [`Studio::measured`].
    pub fn detector_times(&self, pictures: usize) -> anyhow::Result<Vec<(String, Vec<f64>)>> {
        let mut times = Vec::new();
        for (width, height) in [(1920, 1080), (1280, 720), (960, 540), (480, 270)] {
            let scene = format!("scene:street?size={width}x{height}&people=10&seconds=2&seed=1");
            let name = format!("{width}x{height}");
            let taken = block_on(async {
                let clip = Clip::film(&self.folder().join(&name), &scene, 15).await?;
                let size = tidegate_message::FrameSize { width, height };
                let mut detector = Detector::start(DetectorSpec::new(DetectorKind::Moving)).await?;
                detector.begin_scene(size, &clip.pictures(BACKGROUND)?).await?;
                let mut taken = Vec::new();
                for picture in clip.pictures(pictures)? {
                    let found = detector.detect_timed(&picture).await?;
                    taken.push(found.took.as_secs_f64() * 1e3);
                }
                anyhow::Ok(taken)
            })??;
            times.push((name, taken));
        }
        Ok(times)
    }
}

/// A run that was made.
pub struct Run {
    /// The observations of the application.
    pub watched: Watched,
    /// When the medium's schedule began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub schedule_began: i64,
    /// The flaw of the medium, if any.
    pub flaw: Option<String>,
}

impl Run {
    /// Keeps the run's notes: a medium that was late, and how often subscribers got each event.
    pub fn remark(&self, remarks: &mut Remarks) {
        if let Some(flaw) = &self.flaw {
            remarks.add(format!("a run is not valid: {flaw}"));
        }
        let told = self.watched.told.iter().map(|(what, count)| format!("{what} ({count})"));
        let told = told.collect::<Vec<_>>().join(", ");
        if !told.is_empty() {
            remarks.add(format!("a run told: {told}"));
        }
    }
}

/// How often a flawed run is made again.
#[must_use]
pub fn tries(plan: &Plan) -> usize {
    if plan.quick { 1 } else { TRIES }
}

/// Runs of a live figure: one in a quick bench, for each takes its seconds.
#[must_use]
pub fn runs(plan: &Plan) -> usize {
    if plan.quick { 1 } else { plan.runs }
}

/// The demand of the live benches on every camera.
///
/// # Errors
/// None in practice: the bounds are within their ranges.
pub fn demand(controller: ControllerKind) -> anyhow::Result<Demand> {
    Ok(Demand {
        bounds: Bounds::new(Duration::from_secs_f64(BOUND_MS / 1e3), ACCURACY)?,
        controller,
        delivery: Delivery::Latest,
        when_infeasible: WhenInfeasible::KeepLatency,
        profile: AdaptationProfile::Jpeg,
        frame_rate: None,
    })
}

/// Remarks on a group's rows, each once.
#[derive(Debug, Default)]
pub struct Remarks(Vec<String>);

impl Remarks {
    /// Keeps a remark; one that is there already is not kept twice.
    pub fn add(&mut self, remark: impl Into<String>) {
        let remark = remark.into();
        if !self.0.contains(&remark) {
            self.0.push(remark);
        }
    }

    /// `figure` with all remarks below it.
    #[must_use]
    pub fn on(&self, figure: Figure) -> Figure {
        if self.0.is_empty() { figure } else { figure.note(self.0.join("; ")) }
    }
}
