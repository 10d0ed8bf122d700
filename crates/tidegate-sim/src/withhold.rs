//! Figures 8 and 9 of the paper on large messages of MQTT, decided by the schedule that is shipped.
//!
//! The paper (Tseng et al., PeerJ Computer Science 11:e2741, section "Analytical performance of all policies")
//! replays a series of RTTs in units of one second. A query of 10 KB measures the RTT; 1 MB takes ten times
//! half of that. A large message comes every five units and is sent in the unit in which its policy says so;
//! its latency is the time withheld plus the network's latency in that unit. Messages do not meet: there is no
//! queue, no capacity, and no small message whose gain could be weighed against the large one's wait.
//!
//! ```text
//!  trace ──> RTT each T_Q ──> Schedule (tidegate-broker) ──> unit of sending ──> latency
//! ```
//!
//! # Readings
//!
//! Where the text leaves a choice, both are here ([`Reading`]), and the figures say which was meant:
//!
//! - *The result of a query at a decision.* [`Sample::Previous`]: the RTT of the unit before, as an answer
//!   takes time; the authors' published simulator does so. [`Sample::Current`] knows the very unit of
//!   sending.
//! - *When `ΔS > D` is seen.* [`Starvation::Timer`]: just after `D`, as the text says ("the decision is updated
//!   once ΔS > D or once a new latency estimation is available"). [`Starvation::Query`]: at the first query
//!   after it, as in the authors' simulator, so that a message waits for up to `D + T_Q`.
//!
//! With ten seeds, `T_Q` = 1 s and `threshold_l` = 0.5 s, the mean is 12.1 s without withholding and 6.2 s
//! clairvoyant. Conservative, probabilistic (good, bad) and historic come to 10.2, 8.1, 11.3 and 8.6 s by the
//! text, to 10.1, 8.1, 11.3 and 8.6 s with [`Starvation::Query`], and to 9.0, 7.5, 11.3 and 7.6 s with
//! [`Sample::Current`]. So the figures are of [`Sample::Previous`]: only it has historic save 3.5 s. The timer
//! matters where queries are rare: conservative at 0.3 s and `T_Q` = 5 s takes 20.5 s with it, 21.7 s without.
//!
//! Followed by the text and not the authors' simulator: no 0.08 s for the sender's network card, and the RTT of
//! a decision is that of the query before it also where messages come between queries. Its rule to send first
//! wherever the RTT is within `threshold_l` needs no reading: it follows from the equations.

mod figure;
mod replay;
#[cfg(test)]
mod tests;
mod trace;

use std::{fmt, time::Duration};

use tidegate_schedule::{DeadlineConfig, PaperConfig, Policy, Threshold};

pub use self::{
    figure::{Figure, Row},
    trace::Trace,
};

/// Values of `threshold_l` in the figures, in seconds.
pub const THRESHOLDS_S: [f64; 5] = [0.3, 0.4, 0.5, 0.6, 0.7];
/// Values of `T_Q` in figure 9, in seconds.
pub const PERIODS_S: [u32; 5] = [1, 2, 3, 4, 5];
/// `D`.
pub const WITHHOLD_MAX: Duration = Duration::from_secs(20);
/// Units between large messages.
pub const MESSAGE_PERIOD: usize = 5;
/// Bytes of a large message.
pub const MESSAGE_BYTES: u64 = 1_000_000;

/// A way to decide when a large message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contender {
    /// At once: "without withholding".
    None,
    /// In the unit that proves best, known in advance: "clairvoyant withholding".
    Clairvoyant,
    /// Eq. 2.
    Conservative,
    /// Eq. 3 to 5 with the mean duration of congestion known, 17.5 s.
    ProbabilisticGood,
    /// Eq. 3 to 5 with the mean duration of congestion wrongly taken as 60 s.
    ProbabilisticBad,
    /// Eq. 6.
    Historic,
    /// Ours with the settings that it is shipped with. Not in the paper.
    ///
    /// The kernel's knowledge is made from the trace: the RTT of the query, the least so far, and the rate
    /// at which 1 MB takes its time in that unit; a small message starts in each unit, or there would be
    /// no subscriber to withhold for. `T_Q` does not concern it.
    Deadline,
    /// The same with the paper's `D` of 20 s as its deadline.
    DeadlineOfD,
}

/// Which of two readings of the text (see the module).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The result of a query.
    pub sample: Sample,
    /// When `D` is seen to be over.
    pub starvation: Starvation,
}

/// The RTT that is known at a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// That of the unit before.
    Previous,
    /// That of the same unit.
    Current,
}

/// How the end of `D` is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starvation {
    /// By a timer.
    Timer,
    /// At the next query.
    Query,
}

impl Reading {
    /// By the text.
    pub const TEXT: Self = Self { sample: Sample::Previous, starvation: Starvation::Timer };
    /// As the authors' simulator does it.
    pub const AUTHORS: Self = Self { sample: Sample::Previous, starvation: Starvation::Query };
}

impl Contender {
    /// Those that the paper's figure 8 shows, then ours.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Clairvoyant,
        Self::Conservative,
        Self::ProbabilisticGood,
        Self::ProbabilisticBad,
        Self::Historic,
        Self::Deadline,
        Self::DeadlineOfD,
    ];

    /// The words for it in tables and legends.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "without withholding",
            Self::Clairvoyant => "clairvoyant",
            Self::Conservative => "conservative",
            Self::ProbabilisticGood => "probabilistic, good",
            Self::ProbabilisticBad => "probabilistic, bad",
            Self::Historic => "historic",
            Self::Deadline => "deadline 5 s (ours)",
            Self::DeadlineOfD => "deadline 20 s (ours)",
        }
    }

    /// Whether `threshold_l` and `T_Q` concern it.
    pub const fn is_by_query(self) -> bool {
        matches!(
            self,
            Self::Conservative | Self::ProbabilisticGood | Self::ProbabilisticBad | Self::Historic
        )
    }

    /// The policy to decide by; nothing for the one that no broker can have.
    fn policy(self, threshold_l: Duration, query_period: Duration) -> Option<Policy> {
        let paper = PaperConfig {
            threshold_l: Threshold::Fixed(threshold_l),
            query_period,
            withhold_max: WITHHOLD_MAX,
            ..PaperConfig::default()
        };
        Some(match self {
            Self::Clairvoyant => return None,
            Self::None => Policy::None,
            Self::Conservative => Policy::Conservative(paper),
            Self::ProbabilisticGood => Policy::Probabilistic(paper),
            Self::ProbabilisticBad => {
                Policy::Probabilistic(PaperConfig { lambda: 1.0 / 60.0, ..paper })
            }
            Self::Historic => Policy::Historic(paper),
            Self::Deadline => Policy::Deadline(DeadlineConfig::default()),
            Self::DeadlineOfD => Policy::Deadline(DeadlineConfig {
                deadline: WITHHOLD_MAX,
                ..DeadlineConfig::default()
            }),
        })
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Figure 8: all policies at each `threshold_l`, with `T_Q` = 1 s, over traces of the seeds `0..seeds`.
pub fn figure8(seeds: u64, reading: Reading) -> Figure {
    let traces: Vec<Trace> = (0..seeds).map(Trace::generate).collect();
    let rows = Contender::ALL.iter().flat_map(|&contender| rows(contender, 1, &traces, reading));
    Figure { title: "large messages by policy, T_Q = 1 s".to_owned(), rows: rows.collect() }
}

/// Figure 9: the conservative and the historic policy at each `threshold_l` and `T_Q`, and without
/// withholding and clairvoyant, over traces of the seeds `0..seeds`.
pub fn figure9(seeds: u64, reading: Reading) -> Figure {
    let traces: Vec<Trace> = (0..seeds).map(Trace::generate).collect();
    let mut found = rows(Contender::None, 1, &traces, reading);
    found.extend(rows(Contender::Clairvoyant, 1, &traces, reading));
    for contender in [Contender::Conservative, Contender::Historic] {
        found
            .extend(PERIODS_S.iter().flat_map(|&period| rows(contender, period, &traces, reading)));
    }
    Figure { title: "large messages by RTT query period".to_owned(), rows: found }
}

/// One row for each `threshold_l`, or a single one where it does not matter.
fn rows(contender: Contender, period: u32, traces: &[Trace], reading: Reading) -> Vec<Row> {
    let row = |threshold: Option<f64>| {
        let threshold_l = Duration::from_secs_f64(threshold.unwrap_or_default());
        let run = |trace| match contender.policy(threshold_l, Duration::from_secs(period.into())) {
            Some(policy) => replay::latencies(trace, &policy, reading),
            None => replay::clairvoyant(trace),
        };
        let by_seed: Vec<Vec<f64>> = traces.iter().map(run).collect();
        Row::of(contender, threshold, contender.is_by_query().then_some(period), &by_seed)
    };
    if contender.is_by_query() {
        THRESHOLDS_S.iter().map(|&threshold| row(Some(threshold))).collect()
    } else {
        vec![row(None)]
    }
}
