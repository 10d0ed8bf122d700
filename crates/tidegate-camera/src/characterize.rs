//! Characterization: the cost in bytes and the accuracy of each knob setting, on one's own footage.
//!
//! ```text
//!  clip ──▶ frames ──▶ detector ──▶ boxes on the originals (or known boxes) ─┐
//!              └──▶ each setting ──▶ detector ──▶ boxes ─────────────────────┴─▶ F1 ──▶ table, picture, report
//! ```
//!
//! A control row, re-encoded at quality 90 and visually lossless, shows how much the detector's result moves by
//! itself; differences below that are not significant. Rows are fed to the detector one setting at a time, in
//! order of capture, so that differencing sees the frames as a link would.
//!
//! Always true: every row of the table was measured on the same frames; the table says where its truth comes from.

use std::{path::PathBuf, time::Duration};

use async_recursion::async_recursion as boxed;
use bytes::Bytes;

use tidegate_frame::{
    knob::{self, Applied, FrameLimits, KnobSetting, Transcoder},
    score::{BOXES_MIN, Labels, Pool, Report as Score},
    table::{Control, Origin, Row, Table, TableError, TableKey},
};
use tidegate_message::{AdaptationProfile, Detection, FrameSize};
use tidegate_sys::{clock::thread_cpu_nanos, files};

use crate::{
    detector::{BACKGROUND_FRAMES, Detector, DetectorError, DetectorSpec, spread},
    source::{self, Picture, SourceError, SourceSpec},
};

mod link;
mod picture;
mod probe;

pub use link::{LINK_SIZES, LinkError, LinkReport, run_link};
pub use probe::{Probe, ProbeError};

/// The arguments of a characterization.
#[derive(Clone, Debug)]
pub struct Arguments {
    /// The footage: any source description, or a video file or folder by its path.
    pub clip: SourceSpec,
    /// The detector that judges it.
    pub detector: DetectorSpec,
    /// Which family of knobs; default `jpeg`.
    pub profile: AdaptationProfile,
    /// How many frames, spread over the clip; default 120.
    pub frames: usize,
    /// Scene class, one word, for the table's key; default `any`.
    pub scene: String,
    /// Compare with the boxes that the source knows, where it knows them, instead of the originals' detections.
    pub use_truth: bool,
    /// Where the table is written, `NAME.table`; the picture goes next to it as `NAME.svg`.
    pub table_path: PathBuf,
}

/// How far a characterization is.
#[derive(Clone, Debug)]
pub enum Progress<'a> {
    /// The originals were looked at.
    Originals {
        /// How many frames.
        frames: usize,
        /// How many boxes in them.
        boxes: u64,
    },
    /// One setting was measured.
    Row {
        /// Rows measured, this one included.
        done: usize,
        /// Rows in all.
        of: usize,
        /// The measured row.
        row: &'a Row,
    },
}

/// The findings.
#[derive(Clone, Debug)]
pub struct Report {
    /// The table, as it was written.
    pub table: Table,
    /// The score of each row, in the table's order.
    pub scores: Vec<Score>,
    /// Where the truth comes from.
    pub truth: Truth,
    /// Boxes in the truth.
    pub boxes: u64,
    /// Mean time the detector looks at an original.
    pub detector_took: Duration,
    /// Where the picture is.
    pub svg_path: PathBuf,
}

/// The reference of detections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// Boxes that the source knows.
    Known,
    /// The detector's own boxes on the originals.
    Originals,
}

impl Truth {
    /// A sentence for reports.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Known => {
                "Accuracy is F1 against known boxes, divided by the F1 of the originals."
            }
            Self::Originals => {
                "No ground truth: the detections on the originals stand in for it, so accuracy says how far results \
                 change, not how right they are."
            }
        }
    }
}

/// The control: visually lossless.
const CONTROL: &str = "q90";

/// Measures every setting of the profile's ladder, writes the table and its picture, and reports.
///
/// Frames that cannot be read, or that the detector refuses, are left out of all of it; the log names them, and the table's note
/// counts them.
///
/// # Errors
/// [`CharacterizeError`] if the clip or the detector cannot be used, if there are fewer than [`BOXES_MIN`] boxes, or if a
/// file cannot be written.
#[boxed]
pub async fn run(
    arguments: &Arguments,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<Report, CharacterizeError> {
    let pictures = source::read_pictures(&arguments.clip, arguments.frames).await?;
    let mut detector = Detector::start(arguments.detector.clone()).await?;
    let study = Study::begin(arguments, &mut detector, pictures).await?;
    progress(Progress::Originals { frames: study.pictures.len(), boxes: study.boxes });
    if study.boxes < BOXES_MIN {
        let (frames, boxes) = (study.pictures.len(), study.boxes);
        return Err(CharacterizeError::TooFewBoxes { frames, boxes, needed: BOXES_MIN });
    }

    let settings = ladder(arguments.profile);
    let (mut rows, mut scores) = (Vec::new(), Vec::new());
    for setting in &settings {
        let (row, score) = study.measure(&mut detector, *setting, rows.len()).await?;
        progress(Progress::Row { done: rows.len() + 1, of: settings.len(), row: &row });
        rows.push(row);
        scores.push(score);
    }
    let control_setting: KnobSetting = CONTROL.parse().expect("the control is a setting");
    let (control, _) = study.measure(&mut detector, control_setting, settings.len()).await?;
    let table = study.table(arguments, &detector, rows, control.accuracy);
    table.check(&arguments.table_path.display().to_string())?;
    let svg_path = arguments.table_path.with_extension("svg");
    let svg = picture::draw(&table, study.truth);
    for (path, text) in [(&arguments.table_path, table.to_text()), (&svg_path, svg)] {
        files::put(path, text.as_bytes(), files::READABLE)
            .map_err(|source| CharacterizeError::Write { path: path.clone(), source })?;
    }
    Ok(Report {
        table,
        scores,
        truth: study.truth,
        boxes: study.boxes,
        detector_took: study.detector_took,
        svg_path,
    })
}

/// The settings of a profile that are measured.
fn ladder(profile: AdaptationProfile) -> Vec<KnobSetting> {
    match profile {
        AdaptationProfile::Jpeg => KnobSetting::ladder(),
        AdaptationProfile::Mez => KnobSetting::mez_ladder(),
    }
}

/// The footage with what is known and what was found on the originals.
struct Study {
    pictures: Vec<Picture>,
    /// Pictures that cannot be used.
    left_out: usize,
    source: FrameSize,
    input: FrameSize,
    originals: Vec<Vec<Detection>>,
    truth: Truth,
    labels: Labels,
    boxes: u64,
    detector_took: Duration,
}

impl Study {
    async fn begin(
        arguments: &Arguments,
        detector: &mut Detector,
        pictures: Vec<Picture>,
    ) -> Result<Self, CharacterizeError> {
        let (given, limits) = (pictures.len(), FrameLimits::default());
        let pictures: Vec<_> = pictures.into_iter().filter(is_usable).collect();
        let first = pictures.first().ok_or(CharacterizeError::NoFrames)?;
        let first = knob::inspect(&first.jpeg, &limits)?;
        let (source, seen) = (first.size, first.seen_size());
        let background: Vec<Bytes> = spread(pictures.len(), BACKGROUND_FRAMES)
            .map(|index| pictures[index].jpeg.clone())
            .collect();
        let input = detector.begin_scene(seen, &background).await?;
        let (mut looked_at, mut originals, mut took) = (Vec::new(), Vec::new(), Duration::ZERO);
        for picture in pictures {
            let info = knob::inspect(&picture.jpeg, &limits)?;
            if (info.size, info.seen_size()) != (source, seen) {
                return Err(CharacterizeError::Sizes { first: seen, other: info.seen_size() });
            }
            let found = match detector.detect_timed(&picture.jpeg).await {
                Err(error @ DetectorError::Refused { .. }) => {
                    leave_out(&error);
                    continue;
                }
                found => found?,
            };
            took += found.took;
            originals.push(found.boxes);
            looked_at.push(picture);
        }
        let pictures = looked_at;
        let left_out = given - pictures.len();
        if pictures.is_empty() {
            return Err(CharacterizeError::NoFrames);
        }
        let known = arguments.use_truth && pictures.iter().all(|picture| picture.truth.is_some());
        let (truth, labels) =
            if known { (Truth::Known, Labels::Any) } else { (Truth::Originals, Labels::Same) };
        let detector_took = took / u32::try_from(pictures.len()).unwrap_or(u32::MAX);
        let mut study = Self {
            pictures,
            left_out,
            source,
            input,
            originals,
            truth,
            labels,
            boxes: 0,
            detector_took,
        };
        study.boxes =
            (0..study.pictures.len()).map(|index| study.truth_of(index).len() as u64).sum();
        Ok(study)
    }

    fn truth_of(&self, index: usize) -> &[Detection] {
        match (self.truth, &self.pictures[index].truth) {
            (Truth::Known, Some(known)) => known,
            _ => &self.originals[index],
        }
    }

    /// Applies one setting to every frame and lets the detector look. A frame that differencing holds back shows what the last
    /// one that was sent showed.
    async fn measure(
        &self,
        detector: &mut Detector,
        setting: KnobSetting,
        id: usize,
    ) -> Result<(Row, Score), CharacterizeError> {
        let mut transcoder = Transcoder::new(FrameLimits::default());
        let (mut bytes, mut sent, mut times) = (0u64, 0u32, Vec::new());
        let mut last: Vec<Detection> = Vec::new();
        let mut pool = Pool::new(self.labels);
        for (index, picture) in self.pictures.iter().enumerate() {
            let mut out = Vec::new();
            // Processor time, not wall time: other work of the machine is not the knob's cost.
            let started = thread_cpu_nanos();
            let applied = transcoder.apply(&picture.jpeg, &setting, &mut out)?;
            let took = u64::try_from(thread_cpu_nanos() - started).unwrap_or(0);
            times.push(Duration::from_nanos(took));
            if let Applied::Encoded { .. } = applied {
                transcoder.sent();
                bytes += out.len() as u64;
                sent += 1;
                // The same bytes show the same; the originals were looked at before.
                last = if out == picture.jpeg {
                    self.originals[index].clone()
                } else {
                    detector.detect(&out).await?
                };
            }
            pool.push(self.truth_of(index), &self.originals[index], &last);
        }
        let score = pool.report(1);
        times.sort();
        let row = Row {
            id: u32::try_from(id).unwrap_or(u32::MAX),
            setting,
            label: String::new(),
            bytes: bytes as f64 / f64::from(sent.max(1)),
            accuracy: score.normalized.ok_or(CharacterizeError::Blind)?,
            precision: Some(score.adapted.precision()),
            recall: Some(score.adapted.recall()),
            kept: f64::from(sent) / self.pictures.len() as f64,
            // The median: a pause of the machine in one frame is not the knob's.
            took: times.get(times.len() / 2).copied(),
        };
        Ok((row, score))
    }

    fn table(
        &self,
        arguments: &Arguments,
        detector: &Detector,
        rows: Vec<Row>,
        control: f64,
    ) -> Table {
        let total: usize = self.pictures.iter().map(|picture| picture.jpeg.len()).sum();
        let setting = CONTROL.parse().expect("the control is a setting");
        Table {
            key: TableKey {
                profile: arguments.profile,
                source: self.source,
                detector: detector.name().to_owned(),
                detector_input: self.input,
                scene: arguments.scene.clone(),
            },
            origin: Origin::Measured,
            original_bytes: total as f64 / self.pictures.len() as f64,
            rows,
            control: Some(Control { setting, accuracy: control }),
            noise_floor: Some((1.0 - control).abs()),
            note: format!(
                "clip {}\n{} frames, {} boxes{}\n{}",
                arguments.clip,
                self.pictures.len(),
                self.boxes,
                match self.left_out {
                    0 => String::new(),
                    left_out => format!("; {left_out} more frames could not be used"),
                },
                self.truth.sentence()
            ),
        }
    }
}

/// Whether a picture can be read to its end, by its header and its coefficients; one that cannot is said to be left out.
fn is_usable(picture: &Picture) -> bool {
    let look: KnobSetting = LOOK.parse().expect("a difference alone is a setting");
    let read = Transcoder::default().apply(&picture.jpeg, &look, &mut Vec::new());
    read.map_err(|error| leave_out(&error)).is_ok()
}

/// Changes nothing and reads all of a picture.
const LOOK: &str = "original diff1%";

fn leave_out(error: &dyn std::error::Error) {
    let error = tidegate_message::error_chain(error);
    tracing::warn!(error, "a frame of the clip cannot be used and is left out");
}

/// Why a clip cannot be characterized.
#[derive(Debug, thiserror::Error)]
pub enum CharacterizeError {
    /// The clip cannot be read.
    #[error("the clip cannot be read")]
    Source(#[from] SourceError),
    /// The detector failed.
    #[error("the detector failed")]
    Detector(#[from] DetectorError),
    /// A frame of the clip cannot be used.
    #[error("a frame of the clip cannot be used")]
    Frame(#[from] knob::FrameError),
    /// There is no frame that can be used.
    #[error("the clip holds no frame that can be used")]
    NoFrames,
    /// Frames of more than one size.
    #[error("the clip has frames of {first} and of {other}; characterize one size at a time")]
    Sizes {
        /// Of the first frame.
        first: FrameSize,
        /// Of a later one.
        other: FrameSize,
    },
    /// Too little to see.
    #[error(
        "{boxes} boxes in {frames} frames are too few for a table, {needed} are needed; take more frames (--frames), a busier \
         clip, or a detector that fits it"
    )]
    TooFewBoxes {
        /// Frames looked at.
        frames: usize,
        /// Boxes in them.
        boxes: u64,
        /// Fewest boxes.
        needed: u64,
    },
    /// The detector is right nowhere on the originals.
    #[error("the detector finds no true box on the originals; choose one that fits the scene")]
    Blind,
    /// The table cannot be written.
    #[error("the table cannot be written")]
    Table(#[from] TableError),
    /// The picture cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests;
