//! Tables that others published, read into ours: the built-in ones are compared with them.

use tidegate_message::{AdaptationProfile, FrameSize};

use super::super::{Origin, Row, Table, TableError, TableKey};
use crate::knob::{KnobError, KnobSetting};

/// Frames of which the paper's tables count those kept.
const MEZ_FRAMES: f64 = 99.0;
/// The paper's row of unmodified frames.
const MEZ_ORIGINAL: u32 = 500;
/// Frame rate of the videos behind the bandwidth profiles.
const PROFILE_FRAMES_PER_SECOND: f64 = 30.0;

impl Table {
    /// A table of the Mez paper, from the lines `id,bytes,F1,precision,recall,frames kept of 99[,...]`.
    ///
    /// F1 is normalized by that of row 500, the unmodified frame. `scene` is a word such as `jaad-simple`.
    ///
    /// # Errors
    /// [`ImportError`] names the line and the field.
    pub(super) fn from_mez_csv(scene: &str, csv: &str) -> Result<Self, ImportError> {
        let mut rows = Vec::new();
        for (line, fields) in records(csv) {
            let number = |index, field| number(line, &fields, index, field);
            let id = number(0, "id")? as u32;
            let setting = format!("mez {id}");
            let setting: KnobSetting =
                setting.parse().map_err(|cause| ImportError::Setting { line, cause })?;
            rows.push(Row {
                id,
                setting,
                label: String::new(),
                bytes: number(1, "bytes")?,
                accuracy: number(2, "F1")?,
                precision: Some(number(3, "precision")?),
                recall: Some(number(4, "recall")?),
                kept: number(5, "frames kept")? / MEZ_FRAMES,
                took: None,
            });
        }
        let original = rows.iter().find(|row| row.id == MEZ_ORIGINAL);
        let (bytes, f1) =
            original.map(|row| (row.bytes, row.accuracy)).ok_or(ImportError::Original)?;
        rows.iter_mut().for_each(|row| row.accuracy /= f1);
        let size = FrameSize { width: 1312, height: 738 };
        let table = Self {
            key: TableKey {
                profile: AdaptationProfile::Mez,
                source: size,
                detector: "openpose".to_owned(),
                detector_input: size,
                scene: scene.to_owned(),
            },
            origin: Origin::Published,
            original_bytes: bytes,
            rows,
            control: None,
            noise_floor: None,
            note: "Facts of the Mez paper's repository (github.com/Ann-Geo/Mez, MIT licence).\n\
                   Made at 1312x738, 960x540, 640x360 and 480x270 with PNG, not JPEG; F1 over that of \
                   row 500."
                .to_owned(),
        };
        table.check(scene)?;
        Ok(table)
    }

    /// A bandwidth profile of AWStream, from the lines `kbit/s,width,frames skipped,CRF,accuracy`.
    ///
    /// Bytes are those of a sent frame at 30 frames per second. The settings are a video codec's, so
    /// they stand in the labels; the accuracy is as published, not normalized.
    ///
    /// # Errors
    /// [`ImportError`] names the line and the field.
    pub(super) fn from_bandwidth_profile(scene: &str, csv: &str) -> Result<Self, ImportError> {
        let mut rows = Vec::new();
        for (line, fields) in records(csv) {
            let number = |index, field| number(line, &fields, index, field);
            let (width, skip, crf) =
                (number(1, "width")?, number(2, "frames skipped")?, number(3, "CRF")?);
            let kept = 1.0 / (skip + 1.0);
            let bytes_per_second = number(0, "kbit/s")? * 1e3 / 8.0;
            rows.push(Row {
                id: u32::try_from(rows.len()).unwrap_or(u32::MAX),
                setting: KnobSetting::ORIGINAL,
                label: format!("width {width} skip {skip} crf {crf}"),
                bytes: bytes_per_second / (PROFILE_FRAMES_PER_SECOND * kept),
                accuracy: number(4, "accuracy")?,
                precision: None,
                recall: None,
                kept,
                took: None,
            });
        }
        let size = FrameSize { width: 1920, height: 1080 };
        let table = Self {
            key: TableKey {
                profile: AdaptationProfile::Jpeg,
                source: size,
                detector: "published".to_owned(),
                detector_input: size,
                scene: scene.to_owned(),
            },
            origin: Origin::Published,
            original_bytes: rows.last().map_or(0.0, |row| row.bytes),
            rows,
            control: None,
            noise_floor: None,
            note:
                "Facts of AWStream (github.com/awstream/data, MIT licence), H.264 at 30 frames/s.\n\
                   Bytes are those of a sent frame; original-bytes are those of the richest row; \
                   accuracy is not normalized."
                    .to_owned(),
        };
        table.check(scene)?;
        Ok(table)
    }
}

fn records(csv: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let lines = csv.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(line, text)| (line, text.split(',').map(str::trim).collect()))
}

fn number(
    line: usize,
    fields: &[&str],
    index: usize,
    field: &'static str,
) -> Result<f64, ImportError> {
    let text = fields.get(index).ok_or(ImportError::Missing { line, field })?;
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(ImportError::Number { line, field, text: (*text).to_owned() }),
    }
}

/// Why a published table could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImportError {
    /// A field that is not there.
    #[error("line {line}: {field} is missing")]
    Missing {
        /// The line, counted from 1.
        line: usize,
        /// The field.
        field: &'static str,
    },
    /// A field that is no number of zero or more.
    #[error("line {line}: {field} is not a number of zero or more: {text:?}")]
    Number {
        /// The line, counted from 1.
        line: usize,
        /// The field.
        field: &'static str,
        /// The text found.
        text: String,
    },
    /// An id that is no knob combination.
    #[error("line {line}: the id is not a combination of knobs")]
    Setting {
        /// The line, counted from 1.
        line: usize,
        /// Why not.
        #[source]
        cause: KnobError,
    },
    /// No row of unmodified frames to normalize by.
    #[error("row 500, the unmodified frame, is missing")]
    Original,
    /// The numbers make no table.
    #[error("the rows do not form a table")]
    Table(#[from] TableError),
}
