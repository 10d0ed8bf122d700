//! `tidegate characterize`: a table of knob settings from one's own footage.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use tidegate_api::ApiError;
use tidegate_camera::{
    characterize::{self, Arguments, CharacterizeError, Probe, Progress, Report},
    detector::DetectorSpec,
};
use tidegate_cli::program::print;
use tidegate_config::Config;
use tidegate_message::{CameraName, Code};
use tidegate_sys::files;

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
    let clip = match (&args.clip, &args.camera) {
        (Some(clip), _) => source_with_password(clip, args.password_file.as_deref())?,
        (None, Some(camera)) => run::camera_source(config, camera)?,
        (None, None) => {
            return Err(ApiError::new(Code::CONFIG_INVALID, "name a clip with --clip"));
        }
    };
    let failed = |error: &dyn std::error::Error, code: Code| {
        ApiError::new(code, "the clip cannot be characterized")
            .caused_by(tidegate_message::error_chain(error))
    };
    let detector = DetectorSpec::parse(&args.detector, args.detector_command.as_deref())
        .map_err(|error| failed(&error, Code::CONFIG_INVALID))?;
    let arguments = Arguments {
        clip,
        detector,
        profile: args.profile,
        frames: args.frames,
        scene: args.scene.map_or_else(|| "any".to_owned(), |scene| scene.to_string()),
        use_truth: !args.no_truth,
        table_path: table_path(config, args.output, args.camera.as_ref())?,
    };
    let report = characterize::run(&arguments, &mut progress)
        .await
        .map_err(|error| failed(&error, code(&error)))?;
    print(&summary(&report, &arguments.table_path))
}

/// Where a table goes: where cameras look for it, as long as this is the machine of a node.
fn table_path(
    config: &Config,
    output: Option<PathBuf>,
    camera: Option<&CameraName>,
) -> Result<PathBuf, ApiError> {
    if let Some(output) = output {
        return Ok(output);
    }
    let usual = || Some(config.usual_tables_dir()).filter(|_| config.node.data_dir.is_dir());
    let folder = config.frames.tables_dir.clone().or_else(usual).unwrap_or_default();
    if !folder.as_os_str().is_empty() {
        files::folder(&folder, files::READABLE_FOLDER).map_err(|error| {
            let text = format!("the folder {} cannot be made", folder.display());
            ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
        })?;
    }
    let file = camera.map_or_else(|| OUTPUT.to_owned(), |camera| format!("{camera}.table"));
    Ok(folder.join(file))
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
fn summary(report: &Report, path: &Path) -> String {
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
    text.push_str(&format!("\ntable: {}\n", path.display()));
    text.push_str(&format!("picture: {}\n", report.svg_path.display()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_goes_where_its_camera_looks_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        let hall: CameraName = "hall".parse().expect("a name");
        let mut config = Config::default();
        config.node.data_dir = data.clone();
        let path = |config: &Config, camera: Option<&CameraName>| {
            table_path(config, None, camera).expect("a path")
        };
        assert_eq!(path(&config, None), Path::new("tidegate.table"), "this is no node's machine");
        assert_eq!(config.tables_dir(), None);
        std::fs::create_dir(&data).expect("a folder");
        assert_eq!(path(&config, Some(&hall)), data.join("tables/hall.table"));
        assert_eq!(config.tables_dir(), Some(data.join("tables")), "its cameras look there");
        config.frames.tables_dir = Some(folder.path().join("mine"));
        assert_eq!(path(&config, None), folder.path().join("mine/tidegate.table"));
        assert_eq!(config.tables_dir(), Some(folder.path().join("mine")));
        let named = Some(PathBuf::from("x.table"));
        let named = table_path(&config, named, Some(&hall)).expect("a path");
        assert_eq!(named, Path::new("x.table"));
    }
}
