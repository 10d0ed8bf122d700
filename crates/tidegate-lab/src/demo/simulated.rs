//! The demo's scenario in virtual time, where there are no rights to make namespaces.
//!
//! The same medium, transfers, controllers and coordinator run; frames are sizes drawn around the clip's, and
//! encoding follows the table. Accuracy cannot be shown this way: no picture is looked at.

use std::{path::Path, sync::Arc, time::Duration};

use tidegate_api::ApiError;
use tidegate_frame::{
    coordinator::CoordinatorConfig,
    table::{TableSet, Wanted},
    transfer::TransferConfig,
};
use tidegate_message::{AdaptationProfile, Code, Demand};
use tidegate_sim::{
    cameras::{Camera, Site},
    medium::Scenario,
    outcome::{Fate, Outcome},
};

use super::{DELIVERED_MIN, DemoOptions, capacity, clip::Clip};
use crate::report::{CameraRun, Run, Sample};

/// Time from the last byte at the edge node to the application's callback.
const DELIVERY: Duration = Duration::from_millis(1);
/// Time that acknowledgements take.
const FEEDBACK: Duration = Duration::from_millis(2);

/// Runs the scenario in virtual time with the tables of `folder`.
pub(super) fn run(
    options: &DemoOptions,
    clip: &Clip,
    demand: Demand,
    scenario: &Scenario,
    folder: &Path,
    why: &str,
) -> Result<Run, ApiError> {
    let mut tables = TableSet::builtin();
    tables.load_folder(folder).map_err(|error| {
        ApiError::new(Code::TABLE_INVALID, "the demo's table cannot be read")
            .caused_by(tidegate_message::error_chain(&error))
    })?;
    let (bytes, source) = clip.mean_and_size()?;
    let wanted = Wanted { detector: Some("moving".into()), ..Wanted::default() };
    let table = tables.nearest(AdaptationProfile::Jpeg, source, &wanted).ok_or_else(|| {
        ApiError::new(Code::TABLE_MISSING, "no table suits the clip; this program comes with one")
    })?;
    let (period, truth) = (Duration::from_secs_f64(1.0 / clip.frames_per_second), table.clone());
    let tables = Arc::new(tables);
    let cameras = (0..options.cameras).map(|index| Camera {
        period,
        phase: Duration::from_millis(u64::from(index)),
        bytes,
        noise: 0.07,
        mismatch: 0.1,
        source,
        demand,
        then: None,
        config: TransferConfig { wanted: wanted.clone(), ..TransferConfig::default() },
        tables: tables.clone(),
        truth: truth.clone(),
        encode: (Duration::from_micros(2500), Duration::from_millis(8)),
    });
    let site = Site {
        seed: scenario.seed,
        length: options.duration,
        // The cameras' medium alone: the wire to the application adds nothing in virtual time.
        scenario: Scenario { media: vec![scenario.media[0].clone()], ..scenario.clone() },
        feedback: FEEDBACK,
        one_way: scenario.media[0].delay,
        delivery: DELIVERY,
        read_every: Duration::ZERO,
        held_up: (Duration::ZERO, Duration::ZERO),
        cameras: cameras.collect(),
        coordinator: Some(CoordinatorConfig::default()),
    };
    let outcome = site.run();
    let cameras = (0..usize::from(options.cameras)).map(|index| camera_run(index, &outcome));
    Ok(Run {
        title: format!(
            "Tidegate demo in virtual time: {} cameras on one Wi-Fi-like medium, controller {}",
            options.cameras, options.controller
        ),
        latency_bound_ms: options.bounds.latency().as_secs_f64() * 1e3,
        accuracy_bound: options.bounds.accuracy(),
        delivered_min: DELIVERED_MIN,
        cameras: cameras.collect(),
        capacity: capacity(&scenario.media[0], Duration::ZERO, options.duration),
        measured: Err("no picture is looked at in virtual time".into()),
        simulated: true,
        invalid: None,
        notes: vec![
            format!("tidegate {}", env!("CARGO_PKG_VERSION")),
            format!("simulated, because {why}"),
            "accuracy is what the table promises; no picture was looked at".to_owned(),
        ],
    })
}

fn camera_run(index: usize, outcome: &Outcome) -> CameraRun {
    let frames = || outcome.frames.iter().filter(move |frame| frame.camera == index);
    let samples = frames().filter_map(|frame| {
        let (latency, bytes, setting, accuracy, unchanged) = match &frame.fate {
            Fate::Delivered { latency, header } => {
                let setting = header.setting.to_string();
                (latency, u64::from(header.bytes), setting, header.accuracy, false)
            }
            Fate::Unchanged { latency } => (latency, 0, "unchanged".to_owned(), 1.0, true),
            Fate::Dropped { .. } | Fate::Unfinished => return None,
        };
        Some(Sample {
            at_s: frame.captured.as_secs_f64(),
            latency_ms: latency.as_secs_f64() * 1e3,
            bytes,
            setting,
            accuracy,
            unchanged,
        })
    });
    CameraRun {
        name: format!("cam{}", index + 1),
        captured: frames().filter(|frame| frame.fate != Fate::Unfinished).count(),
        samples: samples.collect(),
        alive: true,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::{Bounds, ControllerKind};

    use super::*;
    use crate::demo::scenario_text;

    #[test]
    fn the_same_scenario_runs_without_rights() {
        let folder = tempfile::tempdir().unwrap();
        let clip = Clip::of_test_pictures(folder.path());
        let tables = folder.path().join("tables");
        std::fs::create_dir(&tables).unwrap();
        let options = DemoOptions {
            program: "tidegate".into(),
            clip: None,
            cameras: 3,
            controller: ControllerKind::Budget,
            bounds: Bounds::new(Duration::from_millis(100), 0.95).unwrap(),
            duration: Duration::from_secs(15),
            report: folder.path().join("report.html"),
        };
        let scenario = Scenario::parse(&scenario_text(3), Path::new("")).unwrap();
        let demand = options.demand();
        let run = run(&options, &clip, demand, &scenario, &tables, "of the test").unwrap();
        assert_eq!(run.cameras.len(), 3);
        assert!(run.met(), "{}", run.verdict());
        let fixed = DemoOptions { controller: ControllerKind::Fixed, ..options };
        let run = super::run(&fixed, &clip, fixed.demand(), &scenario, &tables, "of the test");
        let late = run.unwrap();
        assert_eq!(late.cameras[0].samples[0].setting, "original");
    }
}
