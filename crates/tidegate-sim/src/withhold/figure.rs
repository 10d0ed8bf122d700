//! Mean latencies with their confidence, as a table.

use std::fmt;

use super::{Contender, THRESHOLDS_S};

/// A figure. Prints as a table: a line for each policy and `T_Q`, a column for each `threshold_l`.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The comparison.
    pub title: String,
    /// Its points: by policy, then `T_Q`, then `threshold_l`.
    pub rows: Vec<Row>,
}

/// A point of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The contender that decides.
    pub contender: Contender,
    /// `threshold_l` in seconds; nothing where it does not matter.
    pub threshold_l_s: Option<f64>,
    /// `T_Q` in seconds; nothing where it does not matter.
    pub period_s: Option<u32>,
    /// Mean latency of all large messages of all seeds, in seconds.
    pub mean_s: f64,
    /// Half of the 95 % confidence interval in seconds, each message taken as independent: the paper's. Too
    /// narrow, as messages share congestions.
    pub ci95_s: f64,
    /// The same over the means of seeds, which are independent; nothing of a single seed.
    pub ci95_seeds_s: Option<f64>,
}

impl Figure {
    /// Mean latency in seconds of that policy, at that `T_Q` and `threshold_l` if they matter; nothing if it
    /// is not in the figure.
    pub fn mean_s(&self, contender: Contender, period_s: u32, threshold_l_s: f64) -> Option<f64> {
        let found = self.rows.iter().find(|row| {
            row.contender == contender
                && row.period_s.is_none_or(|period| period == period_s)
                && row.threshold_l_s.is_none_or(|threshold| threshold == threshold_l_s)
        });
        found.map(|row| row.mean_s)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: mean latency in s ± 95 %", self.title)?;
        write!(f, "{:<22}{:>5}", "policy", "T_Q")?;
        THRESHOLDS_S.iter().try_for_each(|threshold| write!(f, "{threshold:>14.1}"))?;
        let same = |a: &Row, b: &Row| (a.contender, a.period_s) == (b.contender, b.period_s);
        for line in self.rows.chunk_by(same) {
            let period = line[0].period_s.map_or("-".to_owned(), |period| period.to_string());
            write!(f, "\n{:<22}{period:>5}", line[0].contender)?;
            for row in line {
                let ci95 = row.ci95_seeds_s.unwrap_or(row.ci95_s);
                write!(f, "{:>14}", format!("{:.2} ± {ci95:.2}", row.mean_s))?;
            }
        }
        writeln!(f)
    }
}

impl Row {
    /// The row of these latencies in seconds, by seed.
    pub(super) fn of(
        contender: Contender,
        threshold_l_s: Option<f64>,
        period_s: Option<u32>,
        by_seed: &[Vec<f64>],
    ) -> Self {
        let (mean_s, ci95_s) = mean_and_ci95(&by_seed.concat());
        let means: Vec<f64> = by_seed.iter().map(|seed| mean_and_ci95(seed).0).collect();
        let ci95_seeds_s = (means.len() > 1).then(|| mean_and_ci95(&means).1);
        Self { contender, threshold_l_s, period_s, mean_s, ci95_s, ci95_seeds_s }
    }
}

/// The mean, and half of its 95 % confidence interval; zeros of nothing.
fn mean_and_ci95(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    if values.len() < 2 {
        return (values.iter().sum(), 0.0);
    }
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, student(values.len() - 1) * (variance / count).sqrt())
}

/// Two-sided 95 % quantile of Student's t distribution, to 1 % (Cornish and Fisher's expansion).
fn student(degrees: usize) -> f64 {
    match degrees {
        1 => 12.706,
        2 => 4.303,
        3 => 3.182,
        n => {
            let per = 1.0 / n as f64;
            1.96 + per * (2.3723 + per * (2.8225 + per * 2.5558))
        }
    }
}
