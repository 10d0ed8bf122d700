//! The demonstration: an edge node and cameras on a Wi-Fi-like medium whose capacity swings tenfold.
//!
//! ```text
//!  cam1 … camN ══ wifi0 (TUN, namespaces) ══ edge ══ lan0 ══ app: this process, as an application
//! ```
//!
//! Nodes are the program `tidegate` with its `node` and `camera` commands in network namespaces, configured by files; the
//! application is the client library on a thread inside its namespace. Nothing is special but the medium. The
//! verdict holds every camera to its bounds, and the accuracy is measured: a detector looks at a sample of
//! delivered frames and at their originals, fetched afterwards.
//!
//! Always true: everything that was started is ended, and every namespace removed, however the run ends.

mod clip;
pub mod fabric;
mod network;
mod screen;
pub mod sensors;
mod simulated;
mod stage;
mod watch;
mod watched;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_api::ApiError;
use tidegate_camera::{
    characterize,
    detector::{self, Detector, DetectorKind, DetectorSpec, Pair},
};
use tidegate_message::{AdaptationProfile, Bounds, Code, ControllerKind, Demand};
use tidegate_netlab::{Audit, Lab, LabError, Options};
use tidegate_process::clock;
use tidegate_sim::medium::{Change, MediumConfig, Scenario};
use tokio_util::sync::CancellationToken;

use self::{clip::Clip, stage::Stage, watch::Sampled, watched::Watched};
use crate::report::{CameraRun, Measured, Run};

/// Least part of the captured frames that must be delivered in time.
const DELIVERED_MIN: f64 = 0.97;
/// Frames by which a camera may have captured less than its cadence says: one is due before watching began, one is on its way when it
/// ends, and one is captured later as the edge node spreads the captures of all cameras.
const UNSEEN_FRAMES: usize = 3;
/// Frames of the clip that the knobs are characterized on.
const CHARACTERIZE_FRAMES: usize = 120;
/// Delivered frames of each camera whose accuracy is measured.
const SAMPLES_PER_CAMERA: usize = 60;

/// The demonstration to run.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The program that nodes run.
    pub program: PathBuf,
    /// The clip that cameras show; none for the shared one if it is there, else a generated scene.
    pub clip: Option<PathBuf>,
    /// How many cameras, 1 to 16.
    pub cameras: u16,
    /// The controller that decides the knobs.
    pub controller: ControllerKind,
    /// The bounds that every frame must keep.
    pub bounds: Bounds,
    /// How long frames are watched.
    pub duration: Duration,
    /// Where the report is written.
    pub report: PathBuf,
}

/// Runs the demonstration and returns what came of it; the report is written by then.
///
/// Must be called outside a runtime: the application has one of its own, inside its namespace.
///
/// # Errors
/// Why it cannot run; without the rights for namespaces it runs in virtual time. A verdict that is
/// not met is no error.
pub fn run(options: &DemoOptions, stop: &CancellationToken) -> Result<Run, ApiError> {
    let folder = tempfile::tempdir().map_err(|error| storage("no folder for the demo", error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed("no runtime", error))?;
    let clip = Clip::prepare(options.clip.as_deref(), folder.path())?;
    println!("clip: {}", clip.description);
    let tables = folder.path().join("tables");
    std::fs::create_dir(&tables).map_err(|error| storage("no folder for tables", error))?;
    let (table, accuracy_gap) = runtime.block_on(characterized(&clip, &tables))?;
    println!("table: {table}");

    let scenario = Scenario::parse(&scenario_text(options.cameras), Path::new(""))
        .map_err(|error| failed("the scenario of the demo is not readable", error))?;
    let demand = options.demand();
    let lab = match Lab::up(&scenario, &Options::default()) {
        Ok(lab) => lab,
        Err(error @ LabError::NeedsRoot { .. }) => {
            let why = tidegate_message::error_chain(&error);
            println!("medium: in virtual time, because {why}");
            let run = simulated::run(options, &clip, demand, &scenario, &tables, &why)?;
            return write(options, run);
        }
        Err(error) => return Err(lab_failed(error)),
    };
    let lab_began = clock::now();
    if let Some(warning) = lab.warning() {
        println!("medium: without real-time priority, {warning}");
    }
    let mut stage = Stage::set(&lab, folder.path(), options, &clip)?;
    let names = stage.camera_names();
    let watched = lab
        .within("app", || {
            watch::run(&stage.client_options(), &names, demand, options.duration, stop)
        })
        .map_err(lab_failed)??;
    let began = watched.began.since(lab_began);
    let alive = stage.alive();
    // The swing is over: originals travel at full capacity and disturb no frame under a bound.
    let calm: Change = "wifi0 factor=1".parse().expect("a change in the documented form");
    lab.apply(calm).map_err(lab_failed)?;
    let sampled = lab
        .within("app", || {
            watch::fetch(&stage.client_options(), &watched.cameras, SAMPLES_PER_CAMERA, stop)
        })
        .map_err(lab_failed)??;
    stage.end();
    let audit = lab.finish().map_err(lab_failed)?;
    let (measured, by_setting) = match accuracy_gap {
        None => match runtime.block_on(measure(&clip, &sampled))? {
            (Some(measured), lines) => (Ok(measured), lines),
            (None, lines) => (Err("no original could be fetched".to_owned()), lines),
        },
        Some(why) => (Err(format!("accuracy could not be measured: {why}")), Vec::new()),
    };
    let mut run = assemble(options, &clip, watched.cameras, &alive, measured, &audit, table);
    run.capacity = capacity(&scenario.media[0], began, options.duration);
    run.notes.extend(by_setting);
    write(options, run)
}

impl DemoOptions {
    fn demand(&self) -> Demand {
        Demand {
            bounds: self.bounds,
            controller: self.controller,
            delivery: Default::default(),
            when_infeasible: Default::default(),
            profile: AdaptationProfile::Jpeg,
            frame_rate: None,
        }
    }
}

fn write(options: &DemoOptions, run: Run) -> Result<Run, ApiError> {
    std::fs::write(&options.report, run.to_html()).map_err(|error| {
        storage(&format!("the report {} cannot be written", options.report.display()), error)
    })?;
    Ok(run)
}

/// A table for the clip, made now; without a detector the assumed one, and why.
async fn characterized(clip: &Clip, tables: &Path) -> Result<(String, Option<String>), ApiError> {
    let arguments = characterize::Arguments {
        clip: clip.spec(),
        detector: DetectorSpec::new(DetectorKind::Moving),
        profile: AdaptationProfile::Jpeg,
        frames: CHARACTERIZE_FRAMES,
        scene: "any".into(),
        use_truth: false,
        table_path: tables.join("demo.table"),
    };
    let mut shown = |progress: characterize::Progress<'_>| {
        if let characterize::Progress::Row { done, of, .. } = progress {
            screen::progress("characterizing the knobs", done, of);
        }
    };
    match characterize::run(&arguments, &mut shown).await {
        Ok(report) => {
            let front = report.table.front().len();
            let rows = report.table.rows.len();
            Ok((format!("{rows} settings measured on the clip, {front} on the front"), None))
        }
        Err(error) => {
            let why = tidegate_message::error_chain(&error);
            Ok((format!("the assumed one, for the clip cannot be characterized: {why}"), Some(why)))
        }
    }
}

/// The detector's verdict on delivered frames, and a line for each setting they came with; none if it cannot look.
async fn measure(
    clip: &Clip,
    sampled: &[Sampled],
) -> Result<(Option<Measured>, Vec<String>), ApiError> {
    if sampled.is_empty() {
        return Ok((None, Vec::new()));
    }
    let failed = |error: detector::DetectorError| {
        ApiError::new(error.code(), "the detector cannot look at the delivered frames")
            .caused_by(tidegate_message::error_chain(&error))
    };
    let mut detector =
        Detector::start(DetectorSpec::new(DetectorKind::Moving)).await.map_err(failed)?;
    let background = clip.background()?;
    let all: Vec<Pair> = sampled.iter().map(|sample| sample.pair.clone()).collect();
    let report = detector::compare(&mut detector, &background, &all).await.map_err(failed)?;
    let mut by_setting: BTreeMap<&str, Vec<&Sampled>> = BTreeMap::new();
    for sample in sampled {
        by_setting.entry(&sample.setting).or_default().push(sample);
    }
    let mut lines = Vec::new();
    for (setting, samples) in by_setting {
        let pairs: Vec<Pair> = samples.iter().map(|sample| sample.pair.clone()).collect();
        let report = detector::compare(&mut detector, &background, &pairs).await.map_err(failed)?;
        let measured = report.normalized.map_or("no box".to_owned(), |f1| format!("{f1:.3}"));
        let promised = mean_promise(&samples);
        lines.push(format!(
            "accuracy of {setting}: measured {measured} on {} pairs with {} boxes, promised {promised:.3}",
            pairs.len(),
            report.original.truth(),
        ));
    }
    let boxes = report.original.truth();
    let enough = boxes >= tidegate_frame::score::BOXES_MIN;
    let measured = Measured {
        accuracy: report.normalized.filter(|_| enough),
        pairs: all.len(),
        boxes: usize::try_from(boxes).unwrap_or(usize::MAX),
        promised: mean_promise(&sampled.iter().collect::<Vec<_>>()),
    };
    Ok((Some(measured), lines))
}

fn mean_promise(samples: &[&Sampled]) -> f64 {
    samples.iter().map(|sample| sample.promised).sum::<f64>() / samples.len().max(1) as f64
}

fn assemble(
    options: &DemoOptions,
    clip: &Clip,
    watched: Vec<Watched>,
    alive: &BTreeMap<String, bool>,
    measured: Result<Measured, String>,
    audit: &Audit,
    table: String,
) -> Run {
    let flaws: Vec<String> = audit.flaws().iter().map(ToString::to_string).collect();
    let invalid = (!flaws.is_empty()).then(|| flaws.join("; "));
    // Frames that are neither delivered nor reported count as lost, but for those that a camera may not have captured.
    let due = (options.duration.as_secs_f64() * clip.frames_per_second) as usize;
    let cameras = watched
        .into_iter()
        .map(|watched| CameraRun {
            alive: alive.get(&watched.name).copied().unwrap_or(false),
            captured: (watched.samples.len() + watched.missed as usize)
                .max(due.saturating_sub(UNSEEN_FRAMES)),
            name: watched.name,
            samples: watched.samples,
        })
        .collect();
    Run {
        title: format!(
            "Tidegate demo: {} cameras on one Wi-Fi-like medium, controller {}",
            options.cameras, options.controller
        ),
        latency_bound_ms: options.bounds.latency().as_secs_f64() * 1e3,
        accuracy_bound: options.bounds.accuracy(),
        delivered_min: DELIVERED_MIN,
        cameras,
        capacity: Vec::new(),
        measured,
        simulated: false,
        invalid,
        notes: vec![
            format!("tidegate {}", env!("CARGO_PKG_VERSION")),
            format!("clip: {}", clip.description),
            format!("table: {table}"),
            format!(
                "medium: packets delivered by the emulator at most {:.2} ms late (p99), {:.0} % of a core",
                audit.lateness.p99.as_secs_f64() * 1e3,
                100.0 * audit.cpu_share()
            ),
            format!(
                "captured: frames that were delivered or reported as missed, at least those of the clip's cadence over the time watched \
                 but for {UNSEEN_FRAMES}; a late frame counts as lost"
            ),
        ],
    }
}

/// The medium's rate in Mbit/s over the time watched, which began `began` after the medium's own clock.
fn capacity(medium: &MediumConfig, began: Duration, duration: Duration) -> Vec<(f64, f64)> {
    let rate = medium.rate.0 as f64 / 1e6;
    let period = medium.steps_period.unwrap_or(Duration::MAX).as_secs_f64();
    let factor_at = |seconds: f64| {
        let within = seconds % period;
        let due = medium.steps.iter().filter(|step| step.at.as_secs_f64() <= within);
        due.filter_map(|step| step.change.factor).next_back().unwrap_or(1.0)
    };
    let began = began.as_secs_f64();
    let end = began + duration.as_secs_f64();
    let laps = (end / period).floor() as u32;
    let steps = (0..=laps).flat_map(|lap| {
        medium.steps.iter().map(move |step| f64::from(lap) * period + step.at.as_secs_f64())
    });
    let inside = steps.filter(|&at| at > began && at < end);
    let times = std::iter::once(began).chain(inside).chain([end]);
    times.map(|at| (at - began, rate * factor_at(at))).collect()
}

/// One Wi-Fi-like channel for the cameras, whose rate swings tenfold once a minute, and a wire to the application.
fn scenario_text(cameras: u16) -> String {
    let mut text = String::from(
        "seed = 7\n\
         [[medium]]\nname = \"wifi0\"\nkind = \"wifi\"\nrate = \"200Mbit\"\ndelay = \"1ms\"\nerror = \"5%\"\n\
         queue = \"256KiB\"\ngateway = \"edge\"\nloop = \"60s\"\n\
         step = [\n\
         { at = \"0s\", factor = 1.0 },\n{ at = \"10s\", factor = 0.1 },\n{ at = \"20s\", factor = 1.0 },\n\
         { at = \"30s\", factor = 0.3 },\n{ at = \"40s\", factor = 0.1 },\n{ at = \"50s\", factor = 1.0 },\n]\n\
         port = [\n{ node = \"edge\", address = \"10.77.1.1/24\", wired = true },\n",
    );
    for camera in 1..=cameras {
        text.push_str(&format!(
            "{{ node = \"cam{camera}\", address = \"10.77.1.{}/24\", default_route = true }},\n",
            10 + camera
        ));
    }
    text.push_str(
        "]\n[[medium]]\nname = \"lan0\"\nkind = \"wan\"\nrate = \"1Gbit\"\nqueue = \"4MiB\"\nport = [\n\
         { node = \"edge\", address = \"10.77.2.1/24\" },\n\
         { node = \"app\", address = \"10.77.2.2/24\", default_route = true },\n]\n",
    );
    text
}

fn failed(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> ApiError {
    ApiError::new(Code::INTERNAL, what).caused_by(error)
}

fn storage(what: &str, error: std::io::Error) -> ApiError {
    ApiError::new(Code::STORAGE_FAILED, what).caused_by(error)
}

fn lab_failed(error: LabError) -> ApiError {
    ApiError::new(Code::CONFIG_INVALID, "the medium cannot be emulated here")
        .caused_by(tidegate_message::error_chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_is_readable_for_any_number_of_cameras() {
        for cameras in [1, 5, 16] {
            let scenario = Scenario::parse(&scenario_text(cameras), Path::new("")).unwrap();
            assert_eq!(scenario.nodes().len(), usize::from(cameras) + 2);
        }
    }

    #[test]
    fn capacity_follows_the_steps_within_the_run() {
        let scenario = Scenario::parse(&scenario_text(1), Path::new("")).unwrap();
        let seconds = Duration::from_secs;
        let points = capacity(&scenario.media[0], seconds(1), seconds(15));
        assert_eq!(points, [(0.0, 200.0), (9.0, 20.0), (15.0, 20.0)]);
        let points = capacity(&scenario.media[0], seconds(55), seconds(20));
        assert_eq!(points, [(0.0, 200.0), (5.0, 200.0), (15.0, 20.0), (20.0, 20.0)]);
    }
}
