//! Which policy decides, and its settings.

use std::{fmt, str::FromStr, time::Duration};

use crate::paper::SAMPLES_MAX;

/// The settings of all policies, for whichever is chosen: by a listener, by a user, or by the client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyConfig {
    /// Of `deadline`.
    pub deadline: DeadlineConfig,
    /// Of `conservative`, `probabilistic` and `historic`.
    pub paper: PaperConfig,
}

/// When a large message may start.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// First come, first served: one queue in order of arrival.
    None,
    /// Ours: small messages first, large ones unless waiting is likely to help, within a deadline.
    Deadline(DeadlineConfig),
    /// The paper's Eq. 2: while `L_now < threshold_l / 2`, or withheld for longer than `D`.
    Conservative(PaperConfig),
    /// The paper's Eq. 3 to 5: while `L_now < T_Q + L_next`, or withheld for longer than `D`.
    Probabilistic(PaperConfig),
    /// The paper's Eq. 6: while `L_now < T_Q + L_next + ΔS`.
    Historic(PaperConfig),
}

/// Settings of [`Policy::Deadline`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeadlineConfig {
    /// Longest that a large message may predictably hold up a small one that comes after it, while the path is
    /// congested; at most an hour. Default 100 ms: people perceive this as immediate. Lower withholds more.
    pub small_budget: Duration,
    /// Longest withholding of a large message; zero for none, at most an hour. Default 5 s. Set it to what a large
    /// message is worth late; the paper's `D` is 20 s.
    pub deadline: Duration,
    /// Part of the bytes that is the large class's while small messages wait all the time, 0 to 1 (taken as
    /// 0.99 at most, so that small ones move too). Default 0.2: a floor against starvation; capacity that small
    /// messages leave goes to large ones anyway. At zero a large message still starts after each `deadline` of
    /// small ones.
    pub large_share: f64,
    /// Bytes of a round of deficit round robin, 1 to 256 MiB. Default 64 KiB. Shares are exact to one such round
    /// and one message.
    pub quantum_bytes: u64,
}

/// Settings of the paper's policies.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperConfig {
    /// `threshold_l`, the RTT of a query where the network is not congested. Default 0.5 s, as in section
    /// "Empirical performance of the conservative policy".
    pub threshold_l: Threshold,
    /// `T_Q`, the period of queries, 10 ms to an hour. Default 5 s.
    pub query_period: Duration,
    /// `D`, the longest withholding; zero for none, at most an hour. Default 20 s. [`Policy::Historic`] ends by
    /// itself; there it says only when to decide again if no RTT comes.
    pub withhold_max: Duration,
    /// Bytes of a query, at most 1 MiB. Default 10 KB (10,000). Their topic is
    /// the broker's (`BrokerConfig::query_topic`).
    pub query_bytes: u64,
    /// How an RTT grows with the size of the message.
    pub profile: SizeProfile,
    /// Lambda of [`Policy::Probabilistic`], 1 / the mean duration of congestion in seconds; above zero. Default
    /// 1/17.5, which fits the paper's trace (section "Simulation 1"). The others do not use it.
    pub lambda: f64,
}

/// `threshold_l` (section "Large message scheduling").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// This RTT, of a query; above zero, at most an hour.
    Fixed(Duration),
    /// The mean of the latest `samples` RTTs (at least one is kept), the newest included. Half of all RTTs are
    /// above their mean by nature: with [`Policy::Conservative`] this withholds on a calm path too.
    MovingAverage {
        /// How many, 1 to 1024.
        samples: usize,
    },
}

/// How an RTT measured at one size scales to another (section "Large message scheduling", last paragraph).
#[derive(Clone, Debug, PartialEq)]
pub enum SizeProfile {
    /// In proportion to the bytes: the path's own delay is nothing.
    Linear,
    /// (bytes, factor) in order of bytes, straight lines between; the first factor below the first, the last
    /// line extended beyond the last. At least one; factors are above zero and do not fall.
    Points(Vec<(u64, f64)>),
}

impl Policy {
    /// The word for it, as in a configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Deadline(_) => "deadline",
            Self::Conservative(_) => "conservative",
            Self::Probabilistic(_) => "probabilistic",
            Self::Historic(_) => "historic",
        }
    }

    /// The settings, if it is one of the paper's.
    #[inline]
    pub fn paper(&self) -> Option<&PaperConfig> {
        match self {
            Self::None | Self::Deadline(_) => None,
            Self::Conservative(config) | Self::Probabilistic(config) | Self::Historic(config) => {
                Some(config)
            }
        }
    }

    /// The settings of the paper's policies, to be changed; `None` for the others.
    pub fn paper_mut(&mut self) -> Option<&mut PaperConfig> {
        match self {
            Self::None | Self::Deadline(_) => None,
            Self::Conservative(config) | Self::Probabilistic(config) | Self::Historic(config) => {
                Some(config)
            }
        }
    }

    /// Whether its settings are within their ranges.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), PolicyError> {
        match self {
            Self::None => Ok(()),
            Self::Deadline(config) => config.check(),
            Self::Conservative(config) | Self::Probabilistic(config) | Self::Historic(config) => {
                config.check()
            }
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
        PolicyConfig::default().policy(word)
    }
}

impl PolicyConfig {
    /// The policy of that word with these settings.
    ///
    /// # Errors
    /// The word names none.
    pub fn policy(&self, word: &str) -> Result<Policy, UnknownPolicyError> {
        let paper = || self.paper.clone();
        Ok(match word {
            "none" => Policy::None,
            "deadline" => Policy::Deadline(self.deadline.clone()),
            "conservative" => Policy::Conservative(paper()),
            "probabilistic" => Policy::Probabilistic(paper()),
            "historic" => Policy::Historic(paper()),
            _ => return Err(UnknownPolicyError { word: word.to_owned() }),
        })
    }

    /// Whether all settings are within their ranges.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.deadline.check()?;
        self.paper.check()
    }
}

/// Longest time that any setting takes.
const LONGEST: Duration = Duration::from_secs(3600);
/// Shortest period of queries.
const QUERY_PERIOD_MIN: Duration = Duration::from_millis(10);
/// Most bytes of a query: it is copied into the output of each subscriber.
const QUERY_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a round: no message of MQTT is larger.
const QUANTUM_BYTES_MAX: u64 = 256 << 20;

impl DeadlineConfig {
    /// Whether all settings are within their ranges.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.small_budget > LONGEST {
            return Err(PolicyError::SmallBudget(self.small_budget));
        }
        if self.deadline > LONGEST {
            return Err(PolicyError::Deadline(self.deadline));
        }
        if !(0.0..=1.0).contains(&self.large_share) {
            return Err(PolicyError::LargeShare(self.large_share));
        }
        if !(1..=QUANTUM_BYTES_MAX).contains(&self.quantum_bytes) {
            return Err(PolicyError::QuantumBytes(self.quantum_bytes));
        }
        Ok(())
    }

    /// The share, within what can be kept.
    pub(crate) fn share(&self) -> f64 {
        if self.large_share > 0.0 { self.large_share.min(0.99) } else { 0.0 }
    }
}

impl PaperConfig {
    /// Whether all settings are within their ranges.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), PolicyError> {
        match self.threshold_l {
            Threshold::Fixed(rtt) if rtt.is_zero() || rtt > LONGEST => {
                return Err(PolicyError::Threshold(rtt));
            }
            Threshold::MovingAverage { samples } if !(1..=SAMPLES_MAX).contains(&samples) => {
                return Err(PolicyError::Samples(samples));
            }
            Threshold::Fixed(_) | Threshold::MovingAverage { .. } => {}
        }
        if !(QUERY_PERIOD_MIN..=LONGEST).contains(&self.query_period) {
            return Err(PolicyError::QueryPeriod(self.query_period));
        }
        if self.withhold_max > LONGEST {
            return Err(PolicyError::WithholdMax(self.withhold_max));
        }
        if self.query_bytes > QUERY_BYTES_MAX {
            return Err(PolicyError::QueryBytes(self.query_bytes));
        }
        if !(self.lambda.is_finite() && self.lambda > 0.0) {
            return Err(PolicyError::Lambda(self.lambda));
        }
        self.profile.check()
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
            lambda: 1.0 / 17.5,
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
    fn check(&self) -> Result<(), PolicyError> {
        let Self::Points(points) = self else { return Ok(()) };
        let good = |point: &(u64, f64)| point.1.is_finite() && point.1 > 0.0;
        if points.is_empty() {
            return Err(PolicyError::NoPoints);
        }
        if let Some(&(bytes, factor)) = points.iter().find(|point| !good(point)) {
            return Err(PolicyError::Factor { bytes, factor });
        }
        let rises = |pair: &[(u64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        match points.windows(2).find(|pair| !rises(pair)) {
            Some(pair) => Err(PolicyError::Order { bytes: pair[1].0 }),
            None => Ok(()),
        }
    }

    /// The factor from an RTT of `from` bytes to one of `to` bytes. Above zero and finite, one where the
    /// profile says nothing.
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

/// A word that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {word:?}; choose none, deadline, conservative, probabilistic or historic")]
pub struct UnknownPolicyError {
    /// The word.
    pub word: String,
}

/// A setting out of its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// [`DeadlineConfig::small_budget`].
    #[error("a budget of small messages of {0:?} is over the limit of an hour")]
    SmallBudget(Duration),
    /// [`DeadlineConfig::deadline`].
    #[error("a deadline of {0:?} is over the limit of an hour")]
    Deadline(Duration),
    /// [`DeadlineConfig::large_share`].
    #[error("a share of large messages of {0} is outside 0 to 1")]
    LargeShare(f64),
    /// [`DeadlineConfig::quantum_bytes`].
    #[error("a round of {0} bytes is outside 1 byte to 256 MiB")]
    QuantumBytes(u64),
    /// [`Threshold::Fixed`].
    #[error("a latency threshold of {0:?} is zero or over the limit of an hour")]
    Threshold(Duration),
    /// [`Threshold::MovingAverage`].
    #[error("a moving average of {0} samples is outside 1 to {SAMPLES_MAX}")]
    Samples(usize),
    /// [`PaperConfig::query_period`].
    #[error("a query period of {0:?} is outside 10 ms to an hour")]
    QueryPeriod(Duration),
    /// [`PaperConfig::withhold_max`].
    #[error("withholding for {0:?} is over the limit of an hour")]
    WithholdMax(Duration),
    /// [`PaperConfig::query_bytes`].
    #[error("queries of {0} bytes are over the limit of 1 MiB")]
    QueryBytes(u64),
    /// [`PaperConfig::lambda`].
    #[error("a lambda of {0} is not above zero; it is 1 / the mean seconds of congestion")]
    Lambda(f64),
    /// [`SizeProfile::Points`] has none.
    #[error(
        "a size profile without points; leave it out, or give bytes and factor of at least one"
    )]
    NoPoints,
    /// A factor of [`SizeProfile::Points`].
    #[error("the size profile's factor at {bytes} bytes is {factor}, which is not above zero")]
    Factor {
        /// At that size.
        bytes: u64,
        /// It is this.
        factor: f64,
    },
    /// [`SizeProfile::Points`] are not in order.
    #[error("the size profile does not rise at {bytes} bytes; bytes rise and factors do not fall")]
    Order {
        /// The size that is out of order.
        bytes: u64,
    },
}
