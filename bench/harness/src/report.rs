//! The outcome of one bench: a table for people, a folder for anyone who checks it, and an exit status.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use serde::Serialize;
use tidegate_message::CivilDate;

use crate::{
    figure::{Figure, Target, Verdict},
    machine::{self, Machine},
};

const HEADINGS: [&str; 6] = ["figure", "ours", "peer", "ratio", "target", "met"];

/// Collects the rows of one bench; [`Report::finish`] prints and writes them.
///
/// ```no_run
/// use bench_harness::{Figure, Report, Target};
///
/// # fn main() -> anyhow::Result<std::process::ExitCode> {
/// let mut report = Report::new("log");
/// report.configuration("frame", "1.74 MB");
/// report.samples("append, run 1, ms", vec![0.11, 0.12]);
/// report.figure(Figure::new("append p50", "ms").ours([0.12]).target(Target::AtMost(0.16)));
/// report.finish()
/// # }
/// ```
#[derive(Debug, Serialize)]
pub struct Report {
    name: String,
    command: Vec<String>,
    began_unix_seconds: u64,
    machine: Machine,
    load_after: [f64; 3],
    configuration: BTreeMap<String, String>,
    versions: BTreeMap<String, String>,
    rows: Vec<Row>,
    #[serde(skip)]
    samples: BTreeMap<String, Vec<f64>>,
    #[serde(skip)]
    attachments: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    figure: Figure,
    ours_median: Option<f64>,
    peer_median: Option<f64>,
    ratio: Option<f64>,
    verdict: Verdict,
}

impl Report {
    /// A report named `name`, which also names its folder; reads the machine now.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            command: std::env::args().collect(),
            began_unix_seconds: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            machine: Machine::read(),
            load_after: [0.0; 3],
            configuration: BTreeMap::new(),
            versions: BTreeMap::new(),
            rows: Vec::new(),
            samples: BTreeMap::new(),
            attachments: Vec::new(),
        }
    }

    /// Something that was set and could have been set otherwise.
    pub fn configuration(&mut self, key: impl Into<String>, value: impl ToString) {
        self.configuration.insert(key.into(), value.to_string());
    }

    /// The version of something that took part.
    pub fn version(&mut self, program: impl Into<String>, version: impl Into<String>) {
        self.versions.insert(program.into(), version.into());
    }

    /// Raw samples under a name that says what and of which run; later samples of one name are added to the earlier ones.
    pub fn samples(&mut self, name: impl Into<String>, values: impl IntoIterator<Item = f64>) {
        self.samples.entry(name.into()).or_default().extend(values);
    }

    /// A file to keep beside the samples, such as a plot. `file_name` is one path component.
    pub fn attach(&mut self, file_name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.attachments.push((file_name.into(), bytes.into()));
    }

    /// Adds a short row where a group failed, so that the others are still measured and no one overlooks it.
    pub fn group(&mut self, name: &str, measured: anyhow::Result<()>) {
        if let Err(error) = measured {
            let missing = Figure::new(format!("{name}, all rows"), "");
            let note = format!("not measured: {error:#}");
            self.figure(missing.target(Target::Exactly(0.0)).note(note));
        }
    }

    /// Adds a row.
    pub fn figure(&mut self, figure: Figure) {
        let finite = |value: f64| value.is_finite().then_some(value);
        self.rows.push(Row {
            ours_median: finite(figure.ours_median()),
            peer_median: finite(figure.peer_median()),
            ratio: finite(figure.ratio()),
            verdict: figure.verdict(),
            figure,
        });
    }

    /// Whether the bench itself was built with optimization.
    #[must_use]
    pub fn is_optimized(&self) -> bool {
        self.machine.optimized
    }

    /// Whether no row is short. A report without rows measured nothing and is short.
    #[must_use]
    pub fn is_met(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.verdict != Verdict::Short)
    }

    /// The table as text, one row per figure, remarks below it.
    #[must_use]
    pub fn table(&self) -> String {
        let mut lines = vec![HEADINGS.map(str::to_owned)];
        lines.extend(self.rows.iter().map(|row| row.figure.cells()));
        let mut widths = [0; HEADINGS.len()];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for line in &lines {
            let padded: Vec<String> =
                line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            let _ = writeln!(text, "{}", padded.join(" | ").trim_end());
        }
        for row in &self.rows {
            if let Some(remark) = row.figure.remark() {
                let _ = writeln!(text, "  {}: {remark}", row.figure.name());
            }
        }
        text
    }

    /// Prints the table, writes the folder, and returns success only if no row is short.
    ///
    /// The folder is `bench/results/DATE-NAME` of this checkout, or of the folder in the environment variable
    /// `TIDEGATE_BENCH_RESULTS`; a second run of a day gets `-2` and so on.
    ///
    /// # Errors
    /// The folder or a file in it cannot be written: a figure without its samples is not worth printing as if it had them.
    pub fn finish(self) -> anyhow::Result<ExitCode> {
        print!("{}", self.table());
        let short = self.rows.iter().filter(|row| row.verdict == Verdict::Short).count();
        let results =
            std::env::var_os("TIDEGATE_BENCH_RESULTS").map_or_else(results_folder, PathBuf::from);
        let met = self.is_met();
        let rows = self.rows.len();
        let folder = self.write(&results)?;
        println!("{rows} rows, {short} short; samples in {}", folder.display());
        Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Writes `report.json`, `samples.json`, `table.txt` and the attachments into a new folder below `results`.
    ///
    /// # Errors
    /// The folder or a file in it cannot be written.
    pub fn write(mut self, results: &Path) -> anyhow::Result<PathBuf> {
        self.load_after = machine::load();
        let folder = self.new_folder(results)?;
        let report = serde_json::to_vec_pretty(&self).context("a report is plain data")?;
        let samples = serde_json::to_vec(&self.samples).context("samples are plain data")?;
        let table = self.table().into_bytes();
        let own = [("report.json", report), ("samples.json", samples), ("table.txt", table)];
        let attached = self.attachments.iter().map(|(name, bytes)| (name.as_str(), bytes));
        for (name, bytes) in own.iter().map(|(name, bytes)| (*name, bytes)).chain(attached) {
            let path = folder.join(name);
            fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(folder)
    }

    fn new_folder(&self, results: &Path) -> anyhow::Result<PathBuf> {
        fs::create_dir_all(results).with_context(|| format!("making {}", results.display()))?;
        let stem = format!("{}-{}", date(self.began_unix_seconds), self.name);
        for attempt in 1..1000 {
            let name = if attempt == 1 { stem.clone() } else { format!("{stem}-{attempt}") };
            let folder = results.join(name);
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(folder),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("making {}", folder.display()));
                }
            }
        }
        anyhow::bail!("{} holds 999 runs of {stem}; move some away", results.display())
    }
}

/// The checkout's own results folder, found at run time: the folder above the working directory that holds `bench/results`,
/// else `bench/results` here.
fn results_folder() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let checkout = here.ancestors().find(|folder| folder.join("bench/harness").is_dir());
    checkout.unwrap_or(&here).join("bench/results")
}

/// The UTC day of a Unix time.
fn date(unix_seconds: u64) -> CivilDate {
    CivilDate::of_days((unix_seconds / 86_400) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Target;

    fn figure(ours: f64) -> Figure {
        Figure::new("latency p95", "ms").ours([ours]).target(Target::AtMost(100.0))
    }

    #[test]
    fn one_short_row_makes_the_report_short_and_none_at_all_too() {
        let mut report = Report::new("t");
        assert!(!report.is_met(), "nothing was measured");
        report.figure(figure(90.0));
        report.figure(Figure::new("shown", "").ours([1.0]));
        assert!(report.is_met());
        report.figure(figure(110.0));
        assert!(!report.is_met());
    }

    #[test]
    fn the_table_has_a_line_per_row_and_the_remarks_below() {
        let mut report = Report::new("t");
        report.figure(figure(90.0));
        report.figure(figure(110.0).note("two cores"));
        let table = report.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines,
            [
                "figure      | ours   | peer | ratio | target   | met",
                "latency p95 | 90 ms  | -    | -     | ≤ 100 ms | met",
                "latency p95 | 110 ms | -    | -     | ≤ 100 ms | short",
                "  latency p95: two cores",
            ]
        );
    }

    #[test]
    fn the_folder_holds_what_was_measured_and_a_second_run_does_not_overwrite_it() {
        let results = tempfile::tempdir().unwrap();
        let write = || {
            let mut report = Report::new("log");
            report.began_unix_seconds = 1_795_294_800;
            report.configuration("fps", 15);
            report.version("peer", "1.2.3");
            report.samples("append ms", [0.5]);
            report.samples("append ms", [0.25]);
            report.attach("plot.svg", "<svg/>");
            report.figure(figure(f64::NAN));
            report.write(results.path()).unwrap()
        };
        let first = write();
        let second = write();
        assert_eq!(first.file_name().unwrap(), "2026-11-21-log");
        assert_eq!(second.file_name().unwrap(), "2026-11-21-log-2");
        let read = |name: &str| fs::read_to_string(first.join(name)).unwrap();
        assert_eq!(read("samples.json"), r#"{"append ms":[0.5,0.25]}"#);
        assert_eq!(read("plot.svg"), "<svg/>");
        let report: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!(report["configuration"]["fps"], "15");
        assert_eq!(report["versions"]["peer"], "1.2.3");
        assert_eq!(report["rows"][0]["verdict"], "short");
        assert_eq!(report["rows"][0]["ours_median"], serde_json::Value::Null);
        assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"), // a century that is a leap year
            (951_868_800, "2000-03-01"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_400, "2100-03-01"), // one that is not
        ] {
            assert_eq!(date(seconds).to_string(), expected);
        }
    }
}
