//! Which policy decides, and its settings.

use std::{fmt, str::FromStr, time::Duration};

/// When a large message may start.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// First come, first served: one queue in order of arrival.
    None,
    /// Ours: small messages first, large ones unless waiting is likely to help, within a deadline.
    Deadline(DeadlineConfig),
    /// The paper's Eq. 2: while `L_now < threshold_l / 2`, or withheld for longer than `D`.
    Conservative(PaperConfig),
    /// The paper's Eq. 3 to 5: while `L_now < T_Q + L_next`, or withheld for longer than `D`. The number is
    /// lambda, 1 / the mean duration of congestion in seconds; above zero. 1/17.5 fits the paper's trace.
    Probabilistic(PaperConfig, f64),
    /// The paper's Eq. 6: while `L_now < T_Q + L_next + ΔS`.
    Historic(PaperConfig),
}

/// Settings of [`Policy::Deadline`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeadlineConfig {
    /// Longest that a large message may predictably hold up a small one that comes after it, while the path is
    /// congested. Default 100 ms: what a person takes for immediate. Lower withholds more.
    pub small_budget: Duration,
    /// Longest withholding of a large message. Default 5 s. Set it to what a large message is worth late; the
    /// paper's `D` is 20 s.
    pub deadline: Duration,
    /// Part of the bytes that is the large class's while small messages wait all the time, 0 to 1 (taken as
    /// 0.99 at most, so that small ones move too). Default 0.2: a floor against starvation; what small messages
    /// leave goes to large ones anyway. At zero a large message still starts after each `deadline` of small
    /// ones.
    pub large_share: f64,
    /// Bytes of a round of deficit round robin. Default 64 KiB. Shares are exact to one such round and one
    /// message.
    pub quantum_bytes: u64,
}

/// Settings of the paper's policies.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperConfig {
    /// `threshold_l`, the RTT of a query where the network is not congested. Default 0.5 s, as in section
    /// "Empirical performance of the conservative policy".
    pub threshold_l: Threshold,
    /// `T_Q`, the period of queries. Default 5 s.
    pub query_period: Duration,
    /// `D`, the longest withholding. Default 20 s. [`Policy::Historic`] ends by itself; there it says only when
    /// to decide anew if no RTT comes.
    pub withhold_max: Duration,
    /// Bytes of a query. Default 10 KB (10,000).
    pub query_bytes: u64,
    /// How an RTT grows with the size of the message.
    pub profile: SizeProfile,
}

/// `threshold_l` (section "Large message scheduling").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// This RTT, of a query.
    Fixed(Duration),
    /// The mean of the latest `samples` RTTs (at least one is kept), the newest included. Half of all RTTs are
    /// above their mean by nature: with [`Policy::Conservative`] this withholds on a calm path too.
    MovingAverage {
        /// How many.
        samples: usize,
    },
}

/// How an RTT measured at one size scales to another (section "Large message scheduling", last paragraph).
#[derive(Clone, Debug, PartialEq)]
pub enum SizeProfile {
    /// In proportion to the bytes: the path's own delay is nothing.
    Linear,
    /// (bytes, factor) in order of bytes, straight lines between; the first factor below the first, the last
    /// line goes on beyond the last. Factors are above zero.
    Points(Vec<(u64, f64)>),
}

/// A word that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {word:?}: none, deadline, conservative, probabilistic or historic")]
pub struct UnknownPolicyError {
    /// The word.
    pub word: String,
}

impl Policy {
    /// Lambda that fits the paper's trace: congestion lasts 17.5 s in the mean (section "Simulation 1").
    pub const LAMBDA: f64 = 1.0 / 17.5;

    /// The word for it, as in a configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Deadline(_) => "deadline",
            Self::Conservative(_) => "conservative",
            Self::Probabilistic(..) => "probabilistic",
            Self::Historic(_) => "historic",
        }
    }

    /// The settings, if it is one of the paper's.
    pub fn paper(&self) -> Option<&PaperConfig> {
        match self {
            Self::None | Self::Deadline(_) => None,
            Self::Conservative(config)
            | Self::Probabilistic(config, _)
            | Self::Historic(config) => Some(config),
        }
    }

    /// The settings of the paper's policies, to be changed; `None` for the others.
    pub fn paper_mut(&mut self) -> Option<&mut PaperConfig> {
        match self {
            Self::None | Self::Deadline(_) => None,
            Self::Conservative(config)
            | Self::Probabilistic(config, _)
            | Self::Historic(config) => Some(config),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::Deadline(DeadlineConfig::default())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The policy of that word with default settings.
impl FromStr for Policy {
    type Err = UnknownPolicyError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Ok(match word {
            "none" => Self::None,
            "deadline" => Self::Deadline(DeadlineConfig::default()),
            "conservative" => Self::Conservative(PaperConfig::default()),
            "probabilistic" => Self::Probabilistic(PaperConfig::default(), Self::LAMBDA),
            "historic" => Self::Historic(PaperConfig::default()),
            _ => return Err(UnknownPolicyError { word: word.to_owned() }),
        })
    }
}

impl DeadlineConfig {
    /// The share, within what can be kept.
    pub(super) fn share(&self) -> f64 {
        if self.large_share > 0.0 { self.large_share.min(0.99) } else { 0.0 }
    }
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        Self {
            small_budget: Duration::from_millis(100),
            deadline: Duration::from_secs(5),
            large_share: 0.2,
            quantum_bytes: 64 << 10,
        }
    }
}

impl Default for PaperConfig {
    fn default() -> Self {
        Self {
            threshold_l: Threshold::Fixed(Duration::from_millis(500)),
            query_period: Duration::from_secs(5),
            withhold_max: Duration::from_secs(20),
            query_bytes: 10_000,
            profile: SizeProfile::default(),
        }
    }
}

/// The paper's: 1 MB takes ten times as long as 10 KB (section "Analytical performance of all policies").
impl Default for SizeProfile {
    fn default() -> Self {
        Self::Points(vec![(10_000, 1.0), (1_000_000, 10.0)])
    }
}

impl SizeProfile {
    /// What an RTT of `from` bytes is to be multiplied with for one of `to` bytes. Above zero and finite,
    /// one where the profile says nothing.
    pub fn scale(&self, from: u64, to: u64) -> f64 {
        let factor = self.factor(to) / self.factor(from);
        if factor.is_finite() && factor > 0.0 { factor } else { 1.0 }
    }

    fn factor(&self, bytes: u64) -> f64 {
        let points = match self {
            Self::Linear => return bytes.max(1) as f64,
            Self::Points(points) => points.as_slice(),
        };
        let above = points.partition_point(|point| point.0 < bytes);
        let pair = match points {
            [] => return 1.0,
            [only] => return only.1,
            [first, ..] if above == 0 => return first.1,
            points => &points[(above - 1).min(points.len() - 2)..],
        };
        let ((low, from), (high, to)) = (pair[0], pair[1]);
        if low == high {
            return to;
        }
        from + (to - from) * (bytes as f64 - low as f64) / (high as f64 - low as f64)
    }
}
