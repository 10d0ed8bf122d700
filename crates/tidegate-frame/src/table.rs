//! The cost in bytes and the accuracy of each knob setting: characterization tables.
//!
//! ```text
//!  characterize ──▶ Table ──▶ text file ──▶ TableSet ──▶ ladder ──▶ controller
//!                                ▲
//!            published tables ───┘
//! ```
//!
//! A table belongs to one source size, detector and detector input: accuracy depends on the sent size
//! relative to the detector's input, so a table looked up for another pair promises the wrong accuracy.
//!
//! Always true of a table that was parsed or [`Table::check`]ed: at least one row, ids unique, bytes
//! finite and positive, accuracy and kept within their ranges.

mod builtin;
mod text;

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_message::{AdaptationProfile, FrameSize, UnknownWord};

use crate::knob::{KnobError, KnobSetting};

/// A characterization table: one row for each knob setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// For what camera and detector it holds.
    pub key: TableKey,
    /// Where its figures come from.
    pub origin: Origin,
    /// Mean size of the unmodified frames, in bytes; rows are predicted by their ratio to it.
    pub original_bytes: f64,
    /// The rows, in the order of the file.
    pub rows: Vec<Row>,
    /// The score of a visually lossless change.
    pub control: Option<Control>,
    /// Accuracy differences below this are not significant, 0 to 1.
    pub noise_floor: Option<f64>,
    /// Anything a reader should know: clip, licence, sizes. May have several lines.
    pub note: String,
}

/// For what camera, detector and scene a table was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableKey {
    /// The family of knobs.
    pub profile: AdaptationProfile,
    /// Size of the unmodified frames.
    pub source: FrameSize,
    /// Name of the detector, without spaces; `any` for a default table.
    pub detector: String,
    /// Size to which the detector brings every frame.
    pub detector_input: FrameSize,
    /// Scene class, without spaces, such as `jaad-simple` or `any`.
    pub scene: String,
}

/// Where a table's figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Measured on this camera's footage by `characterize`.
    Measured,
    /// Published by others.
    Published,
    /// A default which stands in until something is measured; reports say so.
    Assumed,
}

impl Origin {
    /// The word used in files and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Published => "published",
            Self::Assumed => "assumed",
        }
    }
}

/// One knob setting, what it costs and what it is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Number of the row, unique in its table; sent with each frame.
    pub id: u32,
    /// The setting for the encoder.
    pub setting: KnobSetting,
    /// Words for a setting that is not ours (a video codec's, say); empty otherwise.
    pub label: String,
    /// Mean size of a sent frame, in bytes.
    pub bytes: f64,
    /// Normalized F1: F1 over that of the unmodified frames. May exceed 1 a little.
    pub accuracy: f64,
    /// Precision, 0 to 1, if it was stated.
    pub precision: Option<f64>,
    /// Recall, 0 to 1, if it was stated.
    pub recall: Option<f64>,
    /// Fraction of the frames that are sent; differencing holds back the rest.
    pub kept: f64,
    /// Time one frame takes to change, if it was measured.
    pub took: Option<Duration>,
}

/// The control: a visually lossless change, whose distance from 1 is the detector's own flicker.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// The change, such as a re-encoding at quality 90.
    pub setting: KnobSetting,
    /// Its normalized F1.
    pub accuracy: f64,
}

/// Which rows are left out before a controller sees a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// Rows of lower normalized F1 are left out. Default 0.90.
    pub accuracy_min: f64,
    /// Rows known to take longer are left out. Default 10 ms.
    pub took_max: Duration,
}

impl Default for Cut {
    fn default() -> Self {
        Self { accuracy_min: 0.90, took_max: Duration::from_millis(10) }
    }
}

impl Table {
    /// Parses the text of a table; `name` (a path, say) is only for the error.
    ///
    /// # Errors
    /// [`TableError::Line`] names the line and what is wrong with it, [`TableError::Content`] what is
    /// wrong with the whole.
    pub fn parse(name: &str, text: &str) -> Result<Self, TableError> {
        text::parse(name, text)
    }

    /// Reads and parses a file.
    ///
    /// # Errors
    /// [`TableError::Io`] if it cannot be read, else as [`Table::parse`].
    pub fn load(path: &Path) -> Result<Self, TableError> {
        let io = |source| TableError::Io { path: path.to_owned(), source };
        // Opening a named pipe would wait for its other end.
        if !fs::metadata(path).map_err(io)?.is_file() {
            let text = "it is not a regular file";
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        Self::parse(&path.display().to_string(), &fs::read_to_string(path).map_err(io)?)
    }

    /// The table as text; [`Table::parse`] gives it back.
    pub fn to_text(&self) -> String {
        text::write(self)
    }

    /// Checks what [`Table::parse`] would refuse.
    ///
    /// # Errors
    /// [`TableError::Content`].
    pub fn check(&self, name: &str) -> Result<(), TableError> {
        self.fault()
            .map_or(Ok(()), |fault| Err(TableError::Content { name: name.to_owned(), fault }))
    }

    fn fault(&self) -> Option<ContentFault> {
        let word = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
        if self.rows.is_empty() {
            return Some(ContentFault::NoRows);
        }
        if !(self.original_bytes.is_finite() && self.original_bytes > 0.0) {
            return Some(ContentFault::OriginalBytes { bytes: self.original_bytes });
        }
        if !word(&self.key.detector) || !word(&self.key.scene) {
            return Some(ContentFault::Name);
        }
        let mut seen = HashSet::new();
        self.rows.iter().find_map(|row| {
            let outside = |field, value: f64, min: f64, max: f64| {
                (!(min..=max).contains(&value)).then_some(ContentFault::Row {
                    id: row.id,
                    field,
                    value,
                    min,
                    max,
                })
            };
            (!seen.insert(row.id))
                .then_some(ContentFault::Duplicate { id: row.id })
                .or_else(|| outside("bytes", row.bytes, 1.0, 1e9))
                .or_else(|| outside("accuracy", row.accuracy, 0.0, 1.5))
                .or_else(|| outside("kept", row.kept, 1e-3, 1.0))
                .or_else(|| outside("precision", row.precision.unwrap_or(0.0), 0.0, 1.0))
                .or_else(|| outside("recall", row.recall.unwrap_or(0.0), 0.0, 1.0))
        })
    }

    /// The row of that id.
    pub fn row(&self, id: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// The Pareto front: the rows that no other row matches in accuracy at fewer bytes, smallest first.
    pub fn front(&self) -> Vec<&Row> {
        front(self.rows.iter().collect())
    }

    /// The rows that survive `cut`, and of those the front, smallest first.
    ///
    /// The smallest row is kept if the cut leaves none, so that a controller always has a choice.
    pub fn ladder(&self, cut: &Cut) -> Vec<&Row> {
        let survives = |row: &&Row| {
            row.accuracy >= cut.accuracy_min && row.took.is_none_or(|took| took <= cut.took_max)
        };
        let kept: Vec<&Row> = self.rows.iter().filter(survives).collect();
        if kept.is_empty() {
            return self.by_bytes().into_iter().take(1).collect();
        }
        front(kept)
    }

    /// Every row, smallest first, uncut and unpruned: the search space of the paper's Algorithm 1.
    pub fn by_bytes(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by(|a, b| a.bytes.total_cmp(&b.bytes).then(a.id.cmp(&b.id)));
        rows
    }
}

fn front(mut rows: Vec<&Row>) -> Vec<&Row> {
    rows.sort_by(|a, b| a.bytes.total_cmp(&b.bytes).then(b.accuracy.total_cmp(&a.accuracy)));
    let mut best = f64::NEG_INFINITY;
    rows.retain(|row| {
        let better = row.accuracy > best;
        best = best.max(row.accuracy);
        better
    });
    rows
}

/// The tables a node knows.
#[derive(Clone, Debug, Default)]
pub struct TableSet {
    tables: Vec<Table>,
    /// The table that was made for the camera that uses this set, if one was.
    own: Option<TableKey>,
}

/// Criteria of a transfer for a [`TableSet`]; `None` matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The detector that will see the frames.
    pub detector: Option<String>,
    /// The size to which it brings them.
    pub detector_input: Option<FrameSize>,
    /// The scene class.
    pub scene: Option<String>,
}

impl TableSet {
    /// No tables.
    pub fn new() -> Self {
        Self::default()
    }

    /// The tables that come with the program: an assumed one for `jpeg`, the paper's six for `mez`.
    pub fn builtin() -> Self {
        Self { tables: builtin::tables(), own: None }
    }

    /// Two published profiles of another adaptive system, for simulations: `mot` and `darknet`.
    ///
    /// Their settings are a video codec's (see [`Row::label`]), so no camera can use them.
    pub fn foreign() -> Self {
        Self { tables: builtin::foreign(), own: None }
    }

    /// Adds a table; one of the same key is replaced.
    pub fn insert(&mut self, table: Table) {
        self.tables.retain(|other| other.key != table.key);
        self.tables.push(table);
    }

    /// Adds the table that was made for the camera that uses this set: of those that suit alike, it is taken.
    pub fn insert_own(&mut self, table: Table) {
        self.own = Some(table.key.clone());
        self.insert(table);
    }

    /// Adds every file of a folder that ends in `.table`, in the order of their names. One that cannot be used is left out and
    /// reported.
    ///
    /// # Errors
    /// [`TableError::Io`] if the folder itself cannot be read.
    pub fn load_folder(&mut self, folder: &Path) -> Result<Loaded, TableError> {
        let io = |source| TableError::Io { path: folder.to_owned(), source };
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|extension| extension == "table") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut loaded = Loaded::default();
        for path in paths {
            match Table::load(&path) {
                Ok(table) => {
                    self.insert(table);
                    loaded.count += 1;
                }
                Err(error) => loaded.refused.push(error),
            }
        }
        Ok(loaded)
    }

    /// Every table.
    pub fn iter(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter()
    }

    /// The table of exactly that key.
    pub fn get(&self, key: &TableKey) -> Option<&Table> {
        self.tables.iter().find(|table| table.key == *key)
    }

    /// The table that suits best: of that profile, made for what is wanted before others, measured before
    /// published before assumed, of those the one whose source size is nearest, and of equals the camera's own.
    ///
    /// Where a detector or scene is named, a table for another is never given, one for `any` is; where none is named, all
    /// suit alike.
    pub fn nearest(
        &self,
        profile: AdaptationProfile,
        source: FrameSize,
        wanted: &Wanted,
    ) -> Option<&Table> {
        let suits = |have: &str, want: Option<&str>| match want {
            None => Some(0),
            Some(want) if have == want => Some(0),
            Some(_) => (have == "any").then_some(1),
        };
        let candidates = self.tables.iter().filter(|table| table.key.profile == profile);
        let ranked = candidates.filter_map(|table| {
            let detector = suits(&table.key.detector, wanted.detector.as_deref())?;
            let scene = suits(&table.key.scene, wanted.scene.as_deref())?;
            let input =
                wanted.detector_input.map_or(0.0, |w| distance(w, table.key.detector_input));
            let rank = (detector + scene, table.origin);
            let is_others = self.own.as_ref() != Some(&table.key);
            Some((rank, input + distance(source, table.key.source), is_others, table))
        });
        let best =
            ranked.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        best.map(|(.., table)| table)
    }
}

/// How far apart two sizes are: the ratio of their pixels, as a logarithm.
fn distance(a: FrameSize, b: FrameSize) -> f64 {
    let pixels = |size: FrameSize| f64::from(size.width) * f64::from(size.height);
    (pixels(a).max(1.0) / pixels(b).max(1.0)).ln().abs()
}

/// The result of loading a folder of tables.
#[derive(Debug, Default)]
pub struct Loaded {
    /// How many were added.
    pub count: usize,
    /// Why the others were not, by the names of their files.
    pub refused: Vec<TableError>,
}

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file could not be read or written.
    #[error("table file {path} failed")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// One line is wrong.
    #[error("{name}:{line}: {fault}")]
    Line {
        /// The file's name.
        name: String,
        /// The line, counted from 1.
        line: usize,
        /// The fault.
        fault: LineFault,
    },
    /// The table as a whole is wrong.
    #[error("{name}: {fault}")]
    Content {
        /// The file's name.
        name: String,
        /// The fault.
        fault: ContentFault,
    },
}

/// Faults in a line of a table file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LineFault {
    /// The first line is no table's.
    #[error("the first line of a table is \"tidegate-table 1\", not {found:?}")]
    Magic {
        /// The text found.
        found: String,
    },
    /// A version this program does not know.
    #[error("table version {found} is not known, this program reads version 1")]
    Version {
        /// The version.
        found: String,
    },
    /// A line that starts with no known word.
    #[error("unknown word {word:?}; a line starts with one of {allowed}")]
    Word {
        /// The word.
        word: String,
        /// The words there are.
        allowed: &'static str,
    },
    /// A line given twice.
    #[error("{word:?} is given twice")]
    Twice {
        /// The word.
        word: &'static str,
    },
    /// A field that is not there.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field that is no number.
    #[error("{field} is not a number: {text:?}")]
    Number {
        /// The field.
        field: &'static str,
        /// The text found.
        text: String,
    },
    /// A number outside its range.
    #[error("{field} {value} is outside {min} to {max}")]
    Range {
        /// The field.
        field: &'static str,
        /// The value found.
        value: f64,
        /// Its lowest value.
        min: f64,
        /// Its highest value.
        max: f64,
    },
    /// A setting that is none of the profile's.
    #[error("setting {text:?}: {cause}")]
    Setting {
        /// The text found.
        text: String,
        /// Why it is none.
        cause: KnobError,
    },
    /// A size that is none.
    #[error("{field} is not a size such as 1920x1080: {text:?}")]
    Size {
        /// The field.
        field: &'static str,
        /// The text found.
        text: String,
    },
    /// A word that is none of the choices.
    #[error(transparent)]
    Choice(#[from] UnknownWord),
    /// A row id given before.
    #[error("row {id} is given twice")]
    Duplicate {
        /// The id.
        id: u32,
    },
}

/// Faults of a table as a whole.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ContentFault {
    /// No row at all.
    #[error("a table needs at least one row")]
    NoRows,
    /// A header line that must be there.
    #[error("the line {word:?} is missing")]
    Missing {
        /// Its first word.
        word: &'static str,
    },
    /// The mean size of the originals is no size.
    #[error("original-bytes {bytes} is not positive")]
    OriginalBytes {
        /// The value found.
        bytes: f64,
    },
    /// A detector or scene that is empty or has a space.
    #[error("detector and scene are single words; write `any` for no particular one")]
    Name,
    /// A row id used twice.
    #[error("row {id} is given twice")]
    Duplicate {
        /// The id.
        id: u32,
    },
    /// A number of a row outside its range.
    #[error("row {id}: {field} {value} is outside {min} to {max}")]
    Row {
        /// The row.
        id: u32,
        /// The field.
        field: &'static str,
        /// The value found.
        value: f64,
        /// Its lowest value.
        min: f64,
        /// Its highest value.
        max: f64,
    },
}

#[cfg(test)]
mod tests;
