//! The pictures that the demo's cameras show: converted once, played from a folder by all.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use bytes::Bytes;
use tidegate_api::ApiError;
use tidegate_camera::source::{Rate, SourceSpec};
use tidegate_frame::knob::{FrameLimits, inspect};
use tidegate_message::{Code, FrameSize};

use super::storage;

/// Where the shared clip lies, seen from the folder that `make demo` runs in.
const SHARED: &str = "../shared/data/video/one-by-one-person-detection.mp4";
/// The variable that names another folder of shared data.
const DATA_VARIABLE: &str = "TIDEGATE_DATA";
/// Frames that are converted: a minute at ten a second.
const FRAMES_MAX: u32 = 600;
/// The cadence that cameras play at.
const FRAMES_PER_SECOND: u32 = 10;
/// Pictures that a detector learns the background from.
const BACKGROUND: usize = 31;
/// Shown when there is no clip.
const SCENE: &str = "scene:street?size=1280x720&fps=10&people=8&seconds=20&seed=1";

/// A clip as a folder of JPEG files.
pub(super) struct Clip {
    folder: PathBuf,
    pub(super) frames_per_second: f64,
    pub(super) description: String,
}

impl Clip {
    /// Converts the clip, the shared one, or the generated scene into a folder below `work`.
    pub(super) fn prepare(asked: Option<&Path>, work: &Path) -> Result<Self, ApiError> {
        let folder = work.join("clip");
        fs::create_dir(&folder).map_err(|error| storage("no folder for the clip", error))?;
        let shared = match std::env::var_os(DATA_VARIABLE) {
            Some(data) => Path::new(&data).join("video/one-by-one-person-detection.mp4"),
            None => PathBuf::from(SHARED),
        };
        let description = match asked {
            Some(file) => convert(file, &folder)?,
            None if shared.is_file() => convert(&shared, &folder)?,
            None => generate(&folder)?,
        };
        Ok(Self { folder, frames_per_second: f64::from(FRAMES_PER_SECOND), description })
    }

    /// The clip as a source that repeats, read whole before the first frame.
    pub(super) fn source(&self) -> String {
        format!("folder:{}?fps={FRAMES_PER_SECOND}&loop=1&prepare=1", self.folder.display())
    }

    /// The clip as a source that is gone through once.
    pub(super) fn spec(&self) -> SourceSpec {
        SourceSpec::Folder {
            path: self.folder.clone(),
            rate: Rate::DEFAULT,
            repeat: false,
            prepare: false,
        }
    }

    /// Mean bytes of a picture, and its size.
    pub(super) fn mean_and_size(&self) -> Result<(f64, FrameSize), ApiError> {
        let read = |error| storage("the clip cannot be read", error);
        let files = files(&self.folder)?;
        let mut bytes = 0;
        for file in &files {
            bytes += fs::metadata(file).map_err(read)?.len();
        }
        let first = files
            .first()
            .ok_or_else(|| ApiError::new(Code::CONFIG_INVALID, "the clip holds no picture"))?;
        let info = inspect(&fs::read(first).map_err(read)?, &FrameLimits::default());
        let info =
            info.map_err(|error| super::failed("the clip's pictures are not readable", error))?;
        Ok((bytes as f64 / files.len() as f64, info.size))
    }

    /// A clip of two small pictures, below `work`.
    #[cfg(test)]
    pub(super) fn of_test_pictures(work: &Path) -> Self {
        let folder = work.join("clip");
        fs::create_dir(&folder).expect("a folder");
        let mut picture = tidegate_jpeg::Packed::default();
        picture.reset(640, 360);
        for (index, sample) in picture.data_mut().iter_mut().enumerate() {
            *sample = u8::try_from((index / 90) % 251).expect("below 251");
        }
        let mut jpeg = Vec::new();
        tidegate_jpeg::Codec::new().encode_bgr(&picture, 90, &mut jpeg).expect("a picture");
        for name in ["1.jpg", "2.jpg"] {
            fs::write(folder.join(name), &jpeg).expect("a file");
        }
        Self { folder, frames_per_second: 10.0, description: "a test".into() }
    }

    /// Pictures spread over the clip, for a detector to learn the background from.
    pub(super) fn background(&self) -> Result<Vec<Bytes>, ApiError> {
        let files = files(&self.folder)?;
        let count = BACKGROUND.min(files.len());
        (0..count)
            .map(|index| &files[index * files.len() / count])
            .map(|file| fs::read(file).map(Bytes::from))
            .collect::<Result<_, _>>()
            .map_err(|error| storage("the clip cannot be read", error))
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, ApiError> {
    let read = |error| storage("the clip cannot be read", error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        files.push(entry.map_err(read)?.path());
    }
    files.sort();
    Ok(files)
}

fn convert(file: &Path, folder: &Path) -> Result<String, ApiError> {
    let invalid = |text: String| ApiError::new(Code::CONFIG_INVALID, text);
    let output = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-i"])
        .arg(file)
        .args(["-vf", &format!("fps={FRAMES_PER_SECOND}")])
        .args(["-frames:v", &FRAMES_MAX.to_string(), "-q:v", "2"])
        .arg(folder.join("%05d.jpg"))
        .output()
        .map_err(|error| {
            invalid("the program ffmpeg cannot be run; scripts/setup installs it".into())
                .caused_by(error)
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().last().unwrap_or("nothing").to_owned();
        return Err(invalid(format!("ffmpeg cannot convert {}: {said}", file.display())));
    }
    let count = files(folder)?.len();
    if count == 0 {
        return Err(invalid(format!("{} holds no picture", file.display())));
    }
    Ok(format!("{} frames of {} at {FRAMES_PER_SECOND} a second", count, file.display()))
}

fn generate(folder: &Path) -> Result<String, ApiError> {
    let unusable = |error: tidegate_camera::source::SourceError| {
        ApiError::new(Code::INTERNAL, "the scene cannot be made")
            .caused_by(tidegate_message::error_chain(&error))
    };
    let spec: SourceSpec = SCENE.parse().map_err(unusable)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| super::failed("no runtime", error))?;
    let pictures = runtime
        .block_on(tidegate_camera::source::read_pictures(&spec, FRAMES_MAX as usize))
        .map_err(unusable)?;
    for (index, picture) in pictures.iter().enumerate() {
        let file = folder.join(format!("{index:05}.jpg"));
        fs::write(file, &picture.jpeg)
            .map_err(|error| storage("the clip cannot be kept", error))?;
    }
    Ok(format!("{} frames of a generated street", pictures.len()))
}
