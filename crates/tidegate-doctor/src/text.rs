//! An examination for people.

use std::fmt;

use super::{Examination, LogSummary, Severity};

impl fmt::Display for Examination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "data folder {}", self.data_dir.display())?;
        if !self.certificates.is_empty() {
            writeln!(f, "\ncertificates")?;
        }
        for certificate in &self.certificates {
            let of = certificate.of.as_deref().unwrap_or("");
            let days = certificate.days_left;
            writeln!(f, "  {:20} {of:30} {days} days left", certificate.name)?;
        }
        if !self.logs.is_empty() {
            writeln!(f, "\nlogs")?;
        }
        for log in &self.logs {
            writeln!(f, "  {:20} {log}", log.name)?;
        }
        for (severity, title) in [(Severity::Problem, "problems"), (Severity::Note, "notes")] {
            let findings = || self.findings.iter().filter(|finding| finding.severity == severity);
            if findings().next().is_some() {
                writeln!(f, "\n{title}")?;
            }
            for finding in findings() {
                writeln!(f, "  {}\n    {}", finding.path.display(), finding.text)?;
            }
        }
        if !self.has_problems() {
            writeln!(f, "\nno problems")?;
        }
        Ok(())
    }
}

impl fmt::Display for LogSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segments, unfinished, frames, bytes, sealed, .. } = self;
        write!(f, "{frames} frames of {:.1} MB in {segments} segments", *bytes as f64 / 1e6)?;
        if let (Some(oldest), Some(newest)) = (self.oldest, self.newest) {
            write!(f, " over {} s", (newest - oldest) / 1_000_000_000)?;
        }
        if *unfinished > 0 {
            write!(f, ", {unfinished} not finished")?;
        }
        match *sealed {
            0 => f.write_str(", clear")?,
            sealed => write!(f, ", {sealed} sealed with {}", self.keys.join(" "))?,
        }
        if self.in_use {
            f.write_str(", in use")?;
        }
        Ok(())
    }
}
