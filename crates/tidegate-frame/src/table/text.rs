//! The file format of tables: lines of words, made to be read and edited by people.
//!
//! ```text
//! tidegate-table 1
//! profile jpeg
//! source 1920x1080
//! detector person
//! detector-input 1280x720
//! scene street
//! origin measured
//! original-bytes 412345.6
//! noise-floor 0.028
//! control 0.972 q90
//! note any text, as many such lines as needed
//! # id bytes accuracy kept precision recall took-ms setting ; label
//! row 0 412345.6 1 1 0.91 0.88 - original
//! row 7 61560 0.968 1 - - 5.1 1/2 q75
//! ```
//!
//! The first line names format and version; a reader refuses a version it does not know. The header lines
//! may stand in any order; `noise-floor`, `control` and `note` may be absent. `-` stands for a number that
//! is not known. A label, after a semicolon, puts foreign knobs into words. Empty lines and lines that
//! start with `#` are skipped.

use std::{collections::HashSet, fmt::Write, time::Duration};

use super::{ContentFault, Control, LineFault, Origin, Row, Table, TableError, TableKey};

const MAGIC: &str = "tidegate-table";
const VERSION: &str = "1";
const WORDS: &str = "profile source detector detector-input scene origin original-bytes noise-floor \
                     control note row";

/// The lines read so far.
#[derive(Default)]
struct Header<'a> {
    profile: Option<tidegate_message::AdaptationProfile>,
    source: Option<tidegate_message::FrameSize>,
    detector: Option<&'a str>,
    detector_input: Option<tidegate_message::FrameSize>,
    scene: Option<&'a str>,
    origin: Option<Origin>,
    original_bytes: Option<f64>,
    noise_floor: Option<f64>,
    control: Option<Control>,
    note: String,
}

pub(super) fn parse(name: &str, text: &str) -> Result<Table, TableError> {
    let at = |line: usize| {
        move |fault: LineFault| TableError::Line { name: name.to_owned(), line, fault }
    };
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let (_, first) = lines.next().unwrap_or((1, ""));
    check_magic(first).map_err(at(1))?;

    let mut header = Header::default();
    let mut rows: Vec<Row> = Vec::new();
    let mut ids = HashSet::new();
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if word == "row" {
            let row = parse_row(rest).map_err(at(number))?;
            if !ids.insert(row.id) {
                return Err(at(number)(LineFault::Duplicate { id: row.id }));
            }
            rows.push(row);
        } else {
            header.line(word, rest.trim()).map_err(at(number))?;
        }
    }

    let content = |fault| TableError::Content { name: name.to_owned(), fault };
    let missing = |word| content(ContentFault::Missing { word });
    let table = Table {
        key: TableKey {
            profile: header.profile.ok_or_else(|| missing("profile"))?,
            source: header.source.ok_or_else(|| missing("source"))?,
            detector: header.detector.ok_or_else(|| missing("detector"))?.to_owned(),
            detector_input: header.detector_input.ok_or_else(|| missing("detector-input"))?,
            scene: header.scene.ok_or_else(|| missing("scene"))?.to_owned(),
        },
        origin: header.origin.ok_or_else(|| missing("origin"))?,
        original_bytes: header.original_bytes.ok_or_else(|| missing("original-bytes"))?,
        rows,
        control: header.control,
        noise_floor: header.noise_floor,
        note: header.note,
    };
    table.check(name)?;
    Ok(table)
}

fn check_magic(line: &str) -> Result<(), LineFault> {
    match line.split_once(' ') {
        Some((MAGIC, VERSION)) => Ok(()),
        Some((MAGIC, version)) => Err(LineFault::Version { found: version.to_owned() }),
        _ => Err(LineFault::Magic { found: line.chars().take(40).collect() }),
    }
}

impl<'a> Header<'a> {
    fn line(&mut self, word: &str, rest: &'a str) -> Result<(), LineFault> {
        match word {
            "profile" => set(&mut self.profile, "profile", rest.parse()?),
            "source" => set(&mut self.source, "source", size("source", rest)?),
            "detector" => set(&mut self.detector, "detector", rest),
            "detector-input" => {
                set(&mut self.detector_input, "detector-input", size("detector-input", rest)?)
            }
            "scene" => set(&mut self.scene, "scene", rest),
            "origin" => set(&mut self.origin, "origin", parse_origin(rest)?),
            "original-bytes" => {
                let bytes = number("original-bytes", Some(rest), 1.0, 1e9)?;
                set(&mut self.original_bytes, "original-bytes", bytes)
            }
            "noise-floor" => {
                let floor = number("noise-floor", Some(rest), 0.0, 1.0)?;
                set(&mut self.noise_floor, "noise-floor", floor)
            }
            "control" => {
                let (accuracy, setting) = rest.split_once(' ').unwrap_or((rest, ""));
                let accuracy = number("control accuracy", Some(accuracy), 0.0, 1.5)?;
                let control = Control { setting: parse_setting(setting)?, accuracy };
                set(&mut self.control, "control", control)
            }
            "note" => {
                if !self.note.is_empty() {
                    self.note.push('\n');
                }
                self.note.push_str(rest);
                Ok(())
            }
            _ => Err(LineFault::Word { word: word.chars().take(40).collect(), allowed: WORDS }),
        }
    }
}

fn set<T>(slot: &mut Option<T>, word: &'static str, value: T) -> Result<(), LineFault> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(LineFault::Twice { word }),
    }
}

fn parse_row(rest: &str) -> Result<Row, LineFault> {
    let (fields, label) = rest.split_once(';').unwrap_or((rest, ""));
    let mut words = fields.split_ascii_whitespace();
    let id = words.next().ok_or(LineFault::Missing { field: "id" })?;
    let id = id.parse().map_err(|_| LineFault::Number { field: "id", text: id.to_owned() })?;
    let bytes = number("bytes", words.next(), 1.0, 1e9)?;
    let accuracy = number("accuracy", words.next(), 0.0, 1.5)?;
    let kept = number("kept", words.next(), 1e-3, 1.0)?;
    let precision = optional("precision", words.next(), 1.0)?;
    let recall = optional("recall", words.next(), 1.0)?;
    let took = optional("took-ms", words.next(), 60_000.0)?;
    let setting = words.collect::<Vec<_>>().join(" ");
    Ok(Row {
        id,
        setting: parse_setting(&setting)?,
        label: label.trim().to_owned(),
        bytes,
        accuracy,
        precision,
        recall,
        kept,
        took: took.map(|ms| Duration::from_secs_f64(ms / 1e3)),
    })
}

fn number(field: &'static str, text: Option<&str>, min: f64, max: f64) -> Result<f64, LineFault> {
    let text = text.filter(|text| !text.is_empty()).ok_or(LineFault::Missing { field })?;
    let value: f64 =
        text.parse().map_err(|_| LineFault::Number { field, text: text.to_owned() })?;
    if !(min..=max).contains(&value) {
        return Err(LineFault::Range { field, value, min, max });
    }
    Ok(value)
}

fn optional(field: &'static str, text: Option<&str>, max: f64) -> Result<Option<f64>, LineFault> {
    if text == Some("-") { Ok(None) } else { number(field, text, 0.0, max).map(Some) }
}

fn size(field: &'static str, text: &str) -> Result<tidegate_message::FrameSize, LineFault> {
    text.parse().map_err(|_| LineFault::Size { field, text: text.to_owned() })
}

fn parse_setting(text: &str) -> Result<crate::knob::KnobSetting, LineFault> {
    text.parse().map_err(|cause| LineFault::Setting { text: text.to_owned(), cause })
}

fn parse_origin(text: &str) -> Result<Origin, LineFault> {
    [Origin::Measured, Origin::Published, Origin::Assumed]
        .into_iter()
        .find(|origin| origin.as_str() == text)
        .ok_or_else(|| {
            LineFault::Choice(tidegate_message::UnknownWord {
                what: "origin",
                word: text.to_owned(),
                allowed: "measured published assumed",
            })
        })
}

pub(super) fn write(table: &Table) -> String {
    let key = &table.key;
    let mut text = format!(
        "{MAGIC} {VERSION}\nprofile {}\nsource {}\ndetector {}\ndetector-input {}\nscene {}\n\
         origin {}\noriginal-bytes {}\n",
        key.profile,
        key.source,
        key.detector,
        key.detector_input,
        key.scene,
        table.origin.as_str(),
        table.original_bytes,
    );
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        text.write_fmt(arguments).expect("writing to a String cannot fail");
        text.push('\n');
    };
    if let Some(floor) = table.noise_floor {
        line(format_args!("noise-floor {floor}"));
    }
    if let Some(control) = &table.control {
        line(format_args!("control {} {}", control.accuracy, control.setting));
    }
    table.note.lines().for_each(|note| line(format_args!("note {note}")));
    line(format_args!("# id bytes accuracy kept precision recall took-ms setting ; label"));
    for row in &table.rows {
        let known = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
        let took_ms = row.took.map(|took| took.as_nanos() as f64 / 1e6);
        let label = if row.label.is_empty() { String::new() } else { format!(" ; {}", row.label) };
        line(format_args!(
            "row {} {} {} {} {} {} {} {}{label}",
            row.id,
            row.bytes,
            row.accuracy,
            row.kept,
            known(row.precision),
            known(row.recall),
            known(took_ms),
            row.setting,
        ));
    }
    text
}
