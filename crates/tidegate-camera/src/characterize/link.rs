//! Characterization of a link: latency against frame size, and the line through it that `mez-pi` needs.

use std::{fmt, time::Duration};

use tidegate_frame::controller::{LinkModel, LinkModelError};

/// The frame sizes that are measured, in bytes: 10 KB to 1.7 MB, denser at the small end.
pub const LINK_SIZES: [usize; 10] =
    [10_000, 50_000, 100_000, 200_000, 350_000, 500_000, 750_000, 1_000_000, 1_350_000, 1_700_000];

/// A fit below this explains too little to control by.
const R2_MIN: f64 = 0.95;

/// The measurements on a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkReport {
    /// Frame size in bytes and 95th percentile latency, in the order of sizes.
    pub samples: Vec<(usize, Duration)>,
    /// The line through them.
    pub model: LinkModel,
}

impl LinkReport {
    /// Whether the line explains enough of the measurement to control by it.
    pub fn is_good(&self) -> bool {
        self.model.r2 >= R2_MIN
    }
}

impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10}  {:>9}  {:>9}", "bytes", "p95 ms", "line ms")?;
        for (bytes, latency) in &self.samples {
            let line = self.model.latency(*bytes as f64).as_secs_f64() * 1e3;
            writeln!(f, "{bytes:>10}  {:>9.2}  {line:>9.2}", latency.as_secs_f64() * 1e3)?;
        }
        let LinkModel { slope_ms_per_byte, intercept_ms, r2 } = self.model;
        let slope = slope_ms_per_byte * 1e6;
        write!(f, "latency = {slope:.2} ms per MB × size {intercept_ms:+.2} ms, R² {r2:.3}")?;
        if self.is_good() {
            Ok(())
        } else {
            write!(
                f,
                " (below {R2_MIN}: the link changed meanwhile or is not a line; measure again when it is quiet)"
            )
        }
    }
}

/// Measures each of [`LINK_SIZES`] `repeats` times and fits a line to the 95th percentiles.
///
/// `measure` sends one frame of that many bytes and returns its latency. Sizes take turns, so that a link that changes
/// slowly does not look like one that depends on size.
///
/// # Errors
/// [`LinkError::Measure`] with what `measure` returned, [`LinkError::Fit`] if no line can be fitted, [`LinkError::NoRepeats`] if
/// nothing was to be measured.
pub async fn run_link<E: std::error::Error + 'static>(
    repeats: usize,
    mut measure: impl AsyncFnMut(usize) -> Result<Duration, E>,
) -> Result<LinkReport, LinkError<E>> {
    if repeats == 0 {
        return Err(LinkError::NoRepeats);
    }
    let mut latencies = vec![Vec::with_capacity(repeats); LINK_SIZES.len()];
    for _ in 0..repeats {
        for (bytes, measured) in LINK_SIZES.iter().zip(&mut latencies) {
            measured.push(measure(*bytes).await.map_err(LinkError::Measure)?);
        }
    }
    let samples: Vec<(usize, Duration)> = LINK_SIZES
        .iter()
        .copied()
        .zip(latencies.iter_mut().map(|values| percentile_95(values)))
        .collect();
    let points: Vec<(f64, Duration)> =
        samples.iter().map(|&(bytes, p95)| (bytes as f64, p95)).collect();
    let model = LinkModel::fit(&points).map_err(LinkError::Fit)?;
    Ok(LinkReport { samples, model })
}

/// The smallest value that at least 95 % do not exceed.
fn percentile_95(values: &mut [Duration]) -> Duration {
    values.sort();
    values[(values.len() * 95).div_ceil(100) - 1]
}

/// Why a link cannot be characterized.
#[derive(Debug, thiserror::Error)]
pub enum LinkError<E: std::error::Error + 'static> {
    /// A frame could not be measured.
    #[error("a frame could not be measured on the link")]
    Measure(#[source] E),
    /// No line can be fitted.
    #[error("the latencies do not fit a line")]
    Fit(#[source] LinkModelError),
    /// Nothing was to be measured.
    #[error("the link must be measured at least once; give a number of repeats above 0")]
    NoRepeats,
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn a_linear_link_is_fitted_and_a_stepped_one_is_reported() {
        let linear = async |bytes: usize| {
            Ok::<_, Infallible>(Duration::from_micros(5_000 + bytes as u64 / 25))
        };
        let report = run_link(3, linear).await.unwrap();
        assert!(report.is_good());
        assert!((report.model.slope_ms_per_byte * 1e6 - 40.0).abs() < 0.1);
        assert!((report.model.intercept_ms - 5.0).abs() < 0.1);
        assert_eq!(report.samples.len(), 10);

        let stepped = async |bytes: usize| {
            Ok::<_, Infallible>(Duration::from_millis(if bytes > 1_500_000 { 500 } else { 10 }))
        };
        let report = run_link(1, stepped).await.unwrap();
        assert!(!report.is_good());
        assert!(report.to_string().contains("below 0.95"), "{report}");
    }

    #[tokio::test]
    async fn a_link_that_does_not_slow_down_has_no_line() {
        let flat = async |_| Ok::<_, Infallible>(Duration::from_millis(3));
        assert!(matches!(run_link(2, flat).await, Err(LinkError::Fit(_))));
        assert!(matches!(run_link(0, flat).await, Err(LinkError::NoRepeats)));
    }

    #[test]
    fn the_95th_percentile_of_few_values_is_the_largest() {
        let mut values: Vec<_> = (1..=20).map(Duration::from_millis).collect();
        assert_eq!(percentile_95(&mut values), Duration::from_millis(19));
        values.truncate(5);
        assert_eq!(percentile_95(&mut values), Duration::from_millis(5));
    }
}
