//! RTTs of a path that is congested now and then.

use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Units in which messages come.
pub(super) const UNITS: usize = 5000;
/// Units after those, for messages that are withheld at the end; the last one is repeated forever.
const UNITS_AFTER: usize = 500;
/// RTT of a query of 10 KB without congestion, in seconds.
const BASE_S: std::ops::Range<f64> = 0.15..0.45;
/// Probability that congestion starts in a unit without any.
const CONGESTION: f64 = 0.1;
/// Units that it lasts.
const CONGESTION_UNITS: std::ops::Range<f64> = 10.0..25.0;
/// Rate of the exponential distribution of the RTT that it adds, 1/s: 3.3 s in the mean.
const CONGESTION_RATE: f64 = 0.3;

/// RTT of a query in each unit of one second.
///
/// The paper gives the numbers; that all units of a congestion add the same is its simulator's, as is that
/// durations are whole units, rounded down, the first included. Congestion takes 65 % of the time then (17
/// units of 26 in the mean), which is how the mean without withholding comes to 12 s.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    rtts_s: Vec<f64>,
}

impl Trace {
    /// A trace by the paper's parameters. The same seed gives the same trace.
    pub fn generate(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut congested_units, mut added) = (0u32, 0.0);
        let unit = |_| {
            congested_units = congested_units.saturating_sub(1);
            if congested_units == 0 {
                added = 0.0;
                if rng.random_bool(CONGESTION) {
                    added = -(1.0 - rng.random::<f64>()).ln() / CONGESTION_RATE;
                    congested_units = rng.random_range(CONGESTION_UNITS) as u32;
                }
            }
            rng.random_range(BASE_S) + added
        };
        Self { rtts_s: (0..UNITS + UNITS_AFTER).map(unit).collect() }
    }

    /// The RTT of a query in that unit, in seconds. The last unit is repeated forever.
    pub fn rtt_s(&self, unit: usize) -> f64 {
        self.rtts_s[unit.min(self.rtts_s.len() - 1)]
    }

    /// The time of 1 MB in that unit, in seconds: half the RTT, times ten.
    pub fn latency_s(&self, unit: usize) -> f64 {
        self.rtt_s(unit) / 2.0 * 10.0
    }
}
