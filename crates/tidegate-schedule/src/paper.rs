//! The paper's three policies: a large message is withheld by the RTT of the latest query.
//!
//! Equations of section "Large message scheduling", with the signs that the published text has lost:
//!
//! ```text
//!  (1) L_now  = RTT_latest / 2
//!  (2) conservative   L_now < threshold_l / 2            or ΔS > D
//!  (3) probabilistic  L_now < T_Q + L_next               or ΔS > D
//!  (4)                L_next = p L_now + (1 - p) threshold_l / 2
//!  (5)                p = e^(-λ t),  t = ΔS + T_Q
//!  (6) historic       L_now < T_Q + L_next + ΔS,  L_next = threshold_l / 2
//! ```
//!
//! `L_now` and `threshold_l` are both of a query and are scaled to the size of the message. The authors'
//! simulator first sends whenever `RTT_latest <= threshold_l`; that follows from (3) and (6), as `T_Q > 0`.
//!
//! A decision stands until the next RTT, or until `ΔS > D`. Choices where the paper is silent: a message that
//! reaches the head of the queue between two RTTs is decided at once by the latest (the paper labels "upon each
//! message arrival", and to wait for the next query would add up to `T_Q` on a calm path); with no RTT yet it
//! is sent; [`Policy::Historic`], which has no `D`, is decided again when `ΔS > D` and then when (6) turns true
//! by itself, so that a subscriber whose answers stop does not keep its messages withheld forever.

use std::{cmp::Ordering, collections::VecDeque, time::Duration};

use tidegate_message::Instant;

use crate::{Next, PaperConfig, Policy, Threshold, Waiting};

/// More RTTs than that are not averaged, whatever the configuration says.
pub(crate) const SAMPLES_MAX: usize = 1024;
/// The size that the kernel measures its RTT with.
const SEGMENT_BYTES: u64 = 1_460;
/// `ΔS` must be above the limit, so a timer ends just after it.
const JUST_AFTER: Duration = Duration::from_nanos(1);

/// The queries, their results, and the decision that stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paper {
    query: Query,
    /// When the latest RTT came, and from where.
    latest: Option<(Instant, Source)>,
    /// When the kernel's RTT was last looked at, and the last that was taken: one that was not renewed is not new.
    looked: Option<Instant>,
    kernel: Duration,
    /// Latest RTTs at the size of a query, newest last.
    rtts: VecDeque<Duration>,
    decision: Option<Decision>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Query {
    #[default]
    Never,
    Sent(Instant),
    Answered(Instant),
}

/// The source of an RTT, in ascending order of quality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// The kernel: of a segment, and to a proxy where there is one.
    Kernel,
    /// The PUBACK of a message, of any size.
    Message,
    /// The PUBACK of a query; those are all of one size and comparable.
    Query,
}

#[derive(Clone, Copy, Debug)]
struct Decision {
    of: Waiting,
    /// When it is decided again if no RTT comes; none if the message is to be sent.
    until: Option<Instant>,
}

impl Paper {
    #[inline]
    pub(crate) fn query_at(&self, config: &PaperConfig) -> Option<Instant> {
        match self.query {
            Query::Never => Some(Instant::MIN),
            Query::Sent(_) => None,
            Query::Answered(sent) => Some(sent + config.query_period),
        }
    }

    pub(crate) fn query_sent(&mut self, now: Instant) {
        self.query = Query::Sent(now);
    }

    pub(crate) fn answered(&mut self, now: Instant, rtt: Duration, config: Option<&PaperConfig>) {
        if let Query::Sent(at) = self.query {
            self.query = Query::Answered(at);
        }
        self.latest = Some((now, Source::Query));
        self.push(rtt, config);
    }

    pub(crate) fn observed(
        &mut self,
        now: Instant,
        rtt: Duration,
        bytes: u64,
        source: Source,
        config: &PaperConfig,
    ) {
        if !self.takes(now, source, config) {
            return;
        }
        self.latest = Some((now, source));
        let seconds = rtt.as_secs_f64() * config.profile.scale(bytes, config.query_bytes);
        self.push(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX), Some(config));
    }

    /// Whether an RTT from there counts: each period, as a query's would come, at once after those of a worse source, and
    /// where a better one has been silent for two periods.
    #[inline]
    pub(crate) fn takes(&self, now: Instant, source: Source, config: &PaperConfig) -> bool {
        let Some((at, by)) = self.latest else { return true };
        let age = now.since(at);
        match source.cmp(&by) {
            Ordering::Greater => true,
            Ordering::Equal => age >= config.query_period,
            Ordering::Less => age > config.query_period.saturating_mul(2),
        }
    }

    #[inline]
    pub(crate) fn look_due(&self, now: Instant, config: &PaperConfig) -> bool {
        self.looked.is_none_or(|at| now.since(at) >= config.query_period)
            && self.takes(now, Source::Kernel, config)
    }

    pub(crate) fn looked(&mut self, now: Instant, rtt: Duration, config: &PaperConfig) {
        self.looked = Some(now);
        if !rtt.is_zero() && rtt != self.kernel && self.takes(now, Source::Kernel, config) {
            self.kernel = rtt;
            self.observed(now, rtt, SEGMENT_BYTES, Source::Kernel, config);
        }
    }

    #[inline]
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.rtts.back().copied()
    }

    #[inline]
    pub(crate) fn large_started(&mut self) {
        self.decision = None;
    }

    /// Whether the large message is sent, where no small one waits.
    pub(crate) fn large(
        &mut self,
        policy: &Policy,
        config: &PaperConfig,
        now: Instant,
        large: Waiting,
    ) -> Next {
        let stands = |decision: &Decision| {
            decision.of == large && decision.until.is_none_or(|until| now < until)
        };
        if !self.decision.as_ref().is_some_and(stands) {
            self.decision = Some(Decision {
                of: large,
                until: self.withheld_until(policy, config, now, large),
            });
        }
        match self.decision.and_then(|decision| decision.until) {
            Some(until) => Next::Wait(Some(until)),
            None => Next::Large,
        }
    }

    /// A decision: none if the message is sent now, else when it is decided again at the latest.
    fn withheld_until(
        &self,
        policy: &Policy,
        config: &PaperConfig,
        now: Instant,
        large: Waiting,
    ) -> Option<Instant> {
        let latest = self.rtt()?;
        let scale = config.profile.scale(config.query_bytes, large.bytes);
        let latency_now = latest.as_secs_f64() * scale / 2.0;
        let latency_calm = self.threshold_l(config) * scale / 2.0;
        let period = config.query_period.as_secs_f64();
        let sojourn = now.since(large.since);
        let too_long = large.since + config.withhold_max + JUST_AFTER;
        match policy {
            Policy::None | Policy::Deadline(_) => None,
            Policy::Conservative(_) => {
                (latency_now >= latency_calm && sojourn <= config.withhold_max).then_some(too_long)
            }
            Policy::Probabilistic(_) => {
                let persists = (-config.lambda * (sojourn.as_secs_f64() + period)).exp();
                let latency_next = persists * latency_now + (1.0 - persists) * latency_calm;
                let sends = latency_now < period + latency_next;
                (!sends && sojourn <= config.withhold_max).then_some(too_long)
            }
            Policy::Historic(_) => {
                let sends = latency_now < period + latency_calm + sojourn.as_secs_f64();
                let excess = latency_now - period - latency_calm;
                let turns = Duration::try_from_secs_f64(excess).unwrap_or(Duration::MAX);
                let turns = large.since + turns + JUST_AFTER;
                let again = if now < too_long { too_long } else { turns.max(now + JUST_AFTER) };
                (!sends).then_some(again)
            }
        }
    }

    /// `threshold_l` in seconds, of a query.
    fn threshold_l(&self, config: &PaperConfig) -> f64 {
        match config.threshold_l {
            Threshold::Fixed(threshold) => threshold.as_secs_f64(),
            Threshold::MovingAverage { .. } => {
                let sum: f64 = self.rtts.iter().map(Duration::as_secs_f64).sum();
                sum / self.rtts.len().max(1) as f64
            }
        }
    }

    fn push(&mut self, rtt: Duration, config: Option<&PaperConfig>) {
        let samples = match config.map(|config| config.threshold_l) {
            Some(Threshold::MovingAverage { samples }) => samples.clamp(1, SAMPLES_MAX),
            Some(Threshold::Fixed(_)) | None => 1,
        };
        while self.rtts.len() >= samples {
            self.rtts.pop_front();
        }
        self.rtts.push_back(rtt);
        self.decision = None;
    }
}
