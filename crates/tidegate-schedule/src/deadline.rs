//! Our policy: start a large message unless waiting is likely to help.
//!
//! The cost: on a link of 10 Mbit/s a message of 1 MB takes 0.84 s, and a small one that comes after its start waits for the rest of that. No order of
//! starts changes this, so on a link that is *always* that slow withholding only idles it: the large one is started as soon as no small one waits, the
//! kernel has sent all it had and no more of that is on the way than the path holds. Only where the link is slower than it was of late can a later start
//! be quicker, and only if small messages do come is anyone helped. So all three must hold for a large message to be withheld:
//!
//! 1. its predicted time, bytes by delivery rate, exceeds the budget;
//! 2. a small message was started within that predicted time: another is to be expected;
//! 3. the path is congested: the rate dipped under half of what is usual, or the RTT is far above what the
//!    path and our own bytes in it explain.
//!
//! A rate at which the subscriber read, or at which this host filled its buffer, is none of the path: while the kernel
//! counts one of those as what held the connection back for most of its busy time, the rate is neither a dip nor usual.
//!
//! Three traps. The best rate of late is no measure of what is usual: a token bucket lets the first bytes
//! through at the speed of the wire, and one such sample would make each later one a dip. The median of one
//! sample a second is; it also takes a link that became slow for good as it is after a quarter of a minute.
//! The kernel does not renew the delivery rate while an application sends less than the path would
//! take, which is so as soon as large messages are withheld: a dip is believed for a second after the value
//! last changed, then the start itself is the probe. And the RTT includes the queue that our own large
//! messages make at the bottleneck: twice the most that we had in flight, at the usual rate, is taken off it,
//! or each large message would withhold the next.

use std::time::Duration;

use tidegate_message::Instant;

use crate::{
    DeadlineConfig, LinkState, Next, Waiting,
    window::{SAMPLE_PERIOD, SlowMedian, WindowedMax},
};

/// Part of the usual rate below which the path counts as congested.
const DIP: f64 = 0.5;
/// How long a rate that does not change any more is taken for that of the path.
const RATE_BELIEVED: Duration = Duration::from_secs(1);
/// Times the least RTT above which the path may be congested.
const RTT_FACTOR: u32 = 4;
/// Busy time after which the cause that held the connection back is judged again: the kernel counts in ticks of up to
/// 10 ms.
const BUSY_SPAN: Duration = Duration::from_millis(50);
/// How far back our bytes in flight are remembered.
const RECENT: Duration = Duration::from_secs(30);
/// How long before the path runs dry a large message is started: timers and threads are late by a
/// millisecond or more, and a path that idles for 2 ms before each of many large messages makes them 3 % later in the end.
const START_AHEAD: Duration = Duration::from_millis(8);
/// Bytes that every path may hold: ten segments, the initial window of TCP.
const HELD_MIN: u64 = 14_600;
/// Least and most time until a look at bytes that the kernel has still to send, or that stand in the way: a rate that is not
/// renewed, or a loss that is mended, makes the time foreseen too long.
const DRAIN_MIN: Duration = Duration::from_millis(1);
const DRAIN_MAX: Duration = Duration::from_millis(10);

/// Measurements of the path and of the small messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadline {
    looked: Option<Instant>,
    rate: u64,
    rate_changed: Option<Instant>,
    rate_usual: SlowMedian,
    ends: Ends,
    in_flight: WindowedMax,
    small_last: Option<Instant>,
}

impl Deadline {
    #[inline]
    pub(crate) fn look_due(&self, now: Instant) -> bool {
        self.looked.is_some_and(|at| now.since(at) >= SAMPLE_PERIOD)
    }

    pub(crate) fn observe(&mut self, now: Instant, link: LinkState) {
        self.looked = Some(now);
        if link.delivery_rate != self.rate {
            self.rate = link.delivery_rate;
            self.rate_changed = Some(now);
        }
        self.ends.observe(link);
        if !self.ends.hold_back {
            self.rate_usual.push(now, link.delivery_rate);
        }
        self.in_flight.push(now, link.in_flight_bytes, RECENT);
    }

    #[inline]
    pub(crate) fn small_started(&mut self, now: Instant) {
        self.small_last = Some(now);
    }

    /// Whether the large message starts, where no small one waits.
    pub(crate) fn large(
        &self,
        config: &DeadlineConfig,
        now: Instant,
        large: Waiting,
        link: LinkState,
    ) -> Next {
        let due = large.since + config.deadline;
        if now >= due {
            return Next::Large;
        }
        let excess = excess_bytes(link);
        if excess > 0 {
            let drained = seconds(excess, link.delivery_rate)
                .map_or(DRAIN_MIN, |time| time.clamp(DRAIN_MIN, DRAIN_MAX));
            return Next::Wait(Some(due.min(now + drained)));
        }
        match self.withheld_until(config, now, large.bytes, link) {
            Some(until) => Next::Wait(Some(due.min(until))),
            None => Next::Large,
        }
    }

    /// Until when it is withheld at most; nothing if it is not.
    fn withheld_until(
        &self,
        config: &DeadlineConfig,
        now: Instant,
        bytes: u64,
        link: LinkState,
    ) -> Option<Instant> {
        let predicted = seconds(bytes, link.delivery_rate)?;
        if predicted <= config.small_budget {
            return None;
        }
        let lonely = self.small_last? + predicted;
        if now >= lonely {
            return None;
        }
        let usual = self.rate_usual.get()?;
        if self.rtt_is_high(config, link, usual) {
            return Some(lonely);
        }
        let stale = self.rate_changed? + RATE_BELIEVED;
        let dipped = !self.ends.hold_back && (link.delivery_rate as f64) < DIP * usual as f64;
        (dipped && now < stale).then_some(lonely.min(stale))
    }

    fn rtt_is_high(&self, config: &DeadlineConfig, link: LinkState, usual: u64) -> bool {
        if link.rtt.is_zero() || link.rtt_min.is_zero() {
            return false;
        }
        let own = seconds(self.in_flight.max().saturating_mul(2), usual).unwrap_or_default();
        let explained = link.rtt_min.saturating_add(own).saturating_add(config.small_budget);
        link.rtt > link.rtt_min.saturating_mul(RTT_FACTOR) && link.rtt > explained
    }
}

/// Whether one of the two ends, and not the path, held the connection back of late.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    hold_back: bool,
    busy: Duration,
    limited: Duration,
}

impl Ends {
    fn observe(&mut self, link: LinkState) {
        let span = link.busy.saturating_sub(self.busy);
        if span < BUSY_SPAN {
            return;
        }
        let limited = link.receiver_limited.saturating_add(link.buffer_limited);
        self.hold_back = limited.saturating_sub(self.limited) > span / 2;
        (self.busy, self.limited) = (link.busy, limited);
    }
}

/// Bytes before a large message that would gain nothing by its start now: those that the kernel has still to send, and those
/// on the way beyond what the path holds, which stand in a queue there. A message that is started behind them is begun no
/// sooner, and a small one that comes meanwhile is late by the whole of it.
pub(crate) fn excess_bytes(link: LinkState) -> u64 {
    let held =
        (link.delivery_rate as f64 * link.rtt_min.saturating_add(START_AHEAD).as_secs_f64()) as u64;
    let known = link.delivery_rate > 0 && !link.rtt_min.is_zero();
    let standing = if known { link.in_flight_bytes.saturating_sub(held.max(HELD_MIN)) } else { 0 };
    link.unsent_bytes.saturating_add(standing)
}

/// The time for `bytes` at `rate` bytes a second; nothing if the rate is not known.
fn seconds(bytes: u64, rate: u64) -> Option<Duration> {
    (rate > 0)
        .then(|| Duration::try_from_secs_f64(bytes as f64 / rate as f64).unwrap_or(Duration::MAX))
}
