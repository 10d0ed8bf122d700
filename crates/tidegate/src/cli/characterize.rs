//! `tidegate characterize`: a table of knob settings from one's own footage.

use std::{io::Write, path::PathBuf};

use tidegate_api::ApiError;
use tidegate_camera::{
    characterize::{self, Arguments, CharacterizeError, Probe, Progress, Report},
    detector::DetectorSpec,
};
use tidegate_cli::program::print;
use tidegate_config::Config;
use tidegate_message::{CameraName, Code};

use super::args::{CharacterizeArgs, source_with_password};
use crate::run;

/// Frames of each size that the 95th percentile of the latency is taken over.
const LINK_REPEATS: usize = 20;
/// Where a table is written if nothing is said.
const OUTPUT: &str = "tidegate.table";

pub(super) async fn run(config: &Config, args: CharacterizeArgs) -> Result<(), ApiError> {
    if let Some(camera) = args.link {
        return link(config, camera, args.edge.as_deref()).await;
    }
    let Some(clip) = &args.clip else {
        return Err(ApiError::new(Code::CONFIG_INVALID, "name a clip with --clip"));
    };
    let failed = |error: &dyn std::error::Error, code: Code| {
        ApiError::new(code, "the clip cannot be characterized")
            .caused_by(tidegate_message::error_chain(error))
    };
    let detector = DetectorSpec::parse(&args.detector, args.detector_command.as_deref())
        .map_err(|error| failed(&error, Code::CONFIG_INVALID))?;
    let folder = config.frames.tables_dir.clone().unwrap_or_default();
    let arguments = Arguments {
        clip: source_with_password(clip, args.password_file.as_deref())?,
        detector,
        profile: args.profile,
        frames: args.frames,
        scene: args.scene.map_or_else(|| "any".to_owned(), |scene| scene.to_string()),
        use_truth: !args.no_truth,
        table_path: args.output.unwrap_or_else(|| folder.join(PathBuf::from(OUTPUT))),
    };
    let report = characterize::run(&arguments, progress)
        .await
        .map_err(|error| failed(&error, code(&error)))?;
    print(&summary(&report))
}

/// Measures the link to the edge node and prints the line that `mez-pi` needs, as configuration.
async fn link(config: &Config, camera: CameraName, edge: Option<&str>) -> Result<(), ApiError> {
    let failed = |error: &dyn std::error::Error| {
        ApiError::new(Code::LINK_DOWN, "the link cannot be characterized")
            .caused_by(tidegate_message::error_chain(error))
    };
    let dial = run::dial_settings(config, &camera, edge).await?;
    let probe = Probe::connect(&dial).await.map_err(|error| failed(&error))?;
    let measured = characterize::run_link(LINK_REPEATS, async |bytes| probe.measure(bytes).await);
    let report = measured.await.map_err(|error| failed(&error))?;
    print(&format!(
        "{report}\n\n[mez_pi]\nslope_ms_per_megabyte = {:?}\nintercept_ms = {:?}\n",
        report.model.slope_ms_per_byte * 1e6,
        report.model.intercept_ms
    ))?;
    if report.is_good() {
        return Ok(());
    }
    let text = "latency is not linear in size here (R² below 0.95): something else uses the link";
    Err(ApiError::new(Code::LIMIT_REACHED, text))
}

/// One line a row on the standard error, so that the report can be piped.
fn progress(progress: Progress<'_>) {
    let text = match progress {
        Progress::Originals { frames, boxes } => format!("{boxes} boxes on {frames} originals\n"),
        Progress::Row { done, of, row } => format!(
            "{done:>3} of {of}  {:<24} {:>9.1} KB  accuracy {:.3}\n",
            row.setting.to_string(),
            row.bytes / 1e3,
            row.accuracy
        ),
    };
    // A closed progress output is no reason to stop.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// The front, and how far it can be trusted.
fn summary(report: &Report) -> String {
    let table = &report.table;
    let mut text = format!("{:<24}{:>12}{:>10}\n", "front", "KB", "accuracy");
    for row in table.front() {
        let setting = row.setting.to_string();
        text.push_str(&format!("{setting:<24}{:>12.1}{:>10.3}\n", row.bytes / 1e3, row.accuracy));
    }
    if let Some(floor) = table.noise_floor {
        text.push_str(&format!("differences below {floor:.3} are noise of the detector\n"));
    }
    text.push_str(report.truth.sentence());
    text.push_str(&format!("\npicture: {}\n", report.svg_path.display()));
    text
}

fn code(error: &CharacterizeError) -> Code {
    match error {
        CharacterizeError::Detector(error) => error.code(),
        CharacterizeError::Table(_) | CharacterizeError::Write { .. } => Code::STORAGE_FAILED,
        CharacterizeError::Frame(_) => Code::FRAME_INVALID,
        CharacterizeError::Source(_)
        | CharacterizeError::NoFrames
        | CharacterizeError::Sizes { .. }
        | CharacterizeError::TooFewBoxes { .. }
        | CharacterizeError::Blind => Code::CONFIG_INVALID,
    }
}
