//! The findings of a check.

use std::fmt;

use tidegate_config::problems::Problems;

/// The findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Problems that a start refuses.
    pub problems: Problems,
    /// Problems that an operator should look at, and that do not stop a start.
    pub warnings: Problems,
}

impl fmt::Display for Findings {
    /// A line each, warnings behind problems.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter() {
            writeln!(f, "{problem}")?;
        }
        for warning in self.warnings.iter() {
            match &warning.place {
                Some(place) => writeln!(f, "{place}: warning: {}", warning.text)?,
                None => writeln!(f, "warning: {}", warning.text)?,
            }
        }
        Ok(())
    }
}
