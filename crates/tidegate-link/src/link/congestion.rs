//! Congestion control that bounds the queue, not the loss.
//!
//! ```text
//!  window = rate × (base + unsteady + allowed queue)
//!           │       │      │          └ LinkSettings::queue_allowed, shorter while the path drops packets
//!           │       │      └ what round trips take longer than that while we have next to nothing in flight
//!           │       └ shortest round trip of the last seconds, remeasured by a short drain
//!           └ delivery rate: highest recent sample of a busy path
//! ```
//!
//! Frames come in bursts and die at a deadline. Bytes in flight delay a reset, and become stale when the
//! capacity drops; so they are held to the capacity of the path in its base round trip plus the queue that the
//! latency budget allows. The rate is measured, as in BBR (delivery rate samples,
//! draft-cheng-iccrg-delivery-rate-estimation), with three differences: idle time between bursts ages
//! nothing; the first flight of a burst is measured by the spacing of its acks, because its round trip would
//! count as time; and the maximum is taken over two round trips only, so that a tenfold drop is followed at
//! once. Loss alone does not shrink the window: at 5 % of random loss the rate samples still say what the path
//! delivers. Loss of more than [`LOSS_TOLERATED`] means a queue shorter than the one allowed, and shortens
//! that.
//!
//! A delay is our queue only if it goes when our packets do. Where a round trip grows for another reason (a
//! longer way, a medium that waits for its turn, a busy host, the queue of others), holding less in flight
//! shortens nothing: it lowers the rate that is measured, which lowers the window, down to the least. So when
//! round trips stay too long for [`ROUNDS_OVER`] rounds in spite of the smaller window, the base is forgotten
//! and measured again with next to nothing in flight, and the window opens again.
//!
//! Pacing is quinn's: 1.25 windows for each smoothed round trip, which is above the rate whenever the window
//! limits, so a faster path shows itself in the next samples.
//!
//! Always true: the window is at least [`WINDOW_PACKETS_MIN`] packets; a sample that the sender itself limited
//! never lowers the rate.

use std::{
    any::Any,
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::congestion::{Controller, ControllerFactory};

/// With fewer packets in flight loss is noticed by timeouts only.
const WINDOW_PACKETS_MIN: u64 = 4;
const WINDOW_PACKETS_INITIAL: u64 = 32;
/// Packets that a sample must span to be believed against the current rate.
const SAMPLE_PACKETS_MIN: u64 = 10;
/// Shortest memory of rate samples, in time during which something was in flight.
const RATE_MEMORY_MIN: Duration = Duration::from_millis(25);
/// The base round trip is the minimum of this and the period before.
const BASE_PERIOD: Duration = Duration::from_millis(2500);
/// Part of the path's own capacity that is kept in flight while the base is remeasured.
const DRAIN: f64 = 0.75;
/// More loss than this is a full queue, even if its delay is short.
const LOSS_TOLERATED: f64 = 0.15;
/// Packets over which loss is counted.
const LOSS_PACKETS: u64 = 64;
const QUEUE_ALLOWED_MIN: Duration = Duration::from_millis(1);
/// Rounds of round trips that are all too long, after which the delay is suspected not to be our queue.
const ROUNDS_OVER: u32 = 4;
/// Shortest time between two such suspicions.
const SUSPICION_PAUSE: Duration = Duration::from_millis(500);
/// Packets that the window holds while a suspicion is tested; quinn sends one less.
const SUSPICION_PACKETS: u64 = 3;
/// A smaller transmission is not counted as in flight: it may hold nothing but an ack, which is never
/// acknowledged, and would keep the path busy forever. Its kind is known with the next ack.
const IN_FLIGHT_BYTES_MIN: u64 = 128;
/// Batches of packets are forgotten when they can hardly be acknowledged any more.
const DEPARTURE_AGE_MAX: Duration = Duration::from_secs(2);
const DEPARTURES_MAX: usize = 4096;
/// Round trips without a queue after which the window doubles again.
const ROUNDS_TO_RESTART: u32 = 3;

/// Makes a [`QueueBound`] for each connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBoundConfig {
    /// The longest queue at the bottleneck.
    pub(super) queue_allowed: Duration,
}

impl ControllerFactory for QueueBoundConfig {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(QueueBound::new(self.queue_allowed, now, mtu))
    }
}

/// The state of one path.
#[derive(Clone, Debug)]
pub(super) struct QueueBound {
    queue_config: Duration,
    queue_allowed: Duration,
    mtu: u64,
    window: u64,
    in_flight: u64,

    delivered: u64,
    delivered_at: Instant,
    lost: u64,
    /// When the newest acknowledged packet was sent.
    acked_sent: Instant,
    departures: VecDeque<Departure>,
    newest: Option<Departure>,
    burst: Burst,

    /// Time during which something was in flight.
    busy: Duration,
    busy_until: Instant,
    rates: RateFilter,
    base: Base,

    starting: bool,
    rounds_empty: u32,
    rounds_over: u32,
    /// The window when round trips were last short enough.
    window_before: u64,
    round_ends_at: u64,
    /// Round trips of this round.
    round_rtts: Mean,
    drain: Option<Drain>,
    /// The extra time of round trips over the base without a queue of ours, on average.
    unsteady: Duration,
    suspicion_after: Instant,
    loss: LossCount,
}

/// A time with little in flight, in which round trips have no queue of ours in them.
#[derive(Clone, Copy, Debug)]
struct Drain {
    began: Instant,
    until: Instant,
    /// Packets that the window holds; `None` for [`DRAIN`] of the path.
    packets: Option<u64>,
    /// Round trips of packets that left during it.
    rtts: Mean,
}

/// An average that is being taken.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: Duration,
    count: u32,
}

impl Mean {
    fn insert(&mut self, rtt: Duration) {
        self.sum += rtt;
        self.count += 1;
    }

    fn take(&mut self) -> Option<Duration> {
        let Self { sum, count } = std::mem::take(self);
        (count > 0).then(|| sum / count)
    }
}

/// Packets that left together.
#[derive(Clone, Copy, Debug)]
struct Departure {
    at: Instant,
    /// As of then.
    delivered: u64,
    delivered_at: Instant,
    lost: u64,
    acked_sent: Instant,
    /// Whether the window was full.
    full: bool,
}

/// The first flight after nothing was in flight.
#[derive(Clone, Copy, Debug)]
struct Burst {
    started_at: Instant,
    /// Bytes delivered before it.
    delivered: u64,
    /// Bytes delivered with its first acks, and when those came.
    first_ack: Option<(u64, Instant)>,
}

impl QueueBound {
    fn new(queue_allowed: Duration, now: Instant, mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        Self {
            queue_config: queue_allowed,
            queue_allowed,
            mtu,
            window: WINDOW_PACKETS_INITIAL * mtu,
            in_flight: 0,
            delivered: 0,
            delivered_at: now,
            lost: 0,
            acked_sent: now,
            departures: VecDeque::new(),
            newest: None,
            burst: Burst { started_at: now, delivered: 0, first_ack: None },
            busy: Duration::ZERO,
            busy_until: now,
            rates: RateFilter::default(),
            base: Base::new(now),
            starting: true,
            rounds_empty: 0,
            rounds_over: 0,
            window_before: 0,
            round_ends_at: 0,
            round_rtts: Mean::default(),
            drain: None,
            unsteady: Duration::ZERO,
            suspicion_after: now,
            loss: LossCount::default(),
        }
    }

    /// Estimated delivery rate in bytes per second; 0 before the first sample.
    pub(super) fn rate(&self) -> f64 {
        self.rates.max()
    }

    /// Shortest round trip of late.
    pub(super) fn base(&self) -> Option<Duration> {
        self.base.rtt()
    }

    /// Bytes neither acknowledged nor lost.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Takes in that `bytes` sent at `sent` have arrived.
    fn handle_ack(&mut self, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.loss.acked += bytes;
        if self.newest.is_some_and(|newest| newest.at >= sent) {
            return;
        }
        if let Ok(found) = self.departures.binary_search_by_key(&sent, |departure| departure.at) {
            self.newest = Some(self.departures[found]);
        }
    }

    fn window_min(&self) -> u64 {
        WINDOW_PACKETS_MIN * self.mtu
    }

    fn count_busy(&mut self, now: Instant) {
        if self.in_flight > 0 {
            self.busy += now.saturating_duration_since(self.busy_until);
        }
        self.busy_until = now;
    }

    /// Bytes per second over the time to which `departure` belongs.
    fn sample(&self, departure: &Departure, now: Instant, queue: Duration) -> Option<Sample> {
        let first_flight =
            departure.delivered == self.burst.delivered && departure.at >= self.burst.started_at;
        let (from, since) = match self.burst.first_ack {
            Some(first_ack) if first_flight => first_ack,
            None if first_flight => return None,
            _ => (departure.delivered, departure.delivered_at),
        };
        let mut bytes = self.delivered.saturating_sub(from);
        if queue < self.queue_allowed {
            // Packets lost at random used the path as well.
            bytes += (self.lost - departure.lost).min(bytes / 5);
        }
        let acks = now.saturating_duration_since(since);
        let sends = departure.at.saturating_duration_since(departure.acked_sent);
        let took = acks.max(sends).as_secs_f64();
        (took > 0.0).then(|| Sample { bytes, rate: bytes as f64 / took })
    }

    /// A round trip without a queue of ours.
    fn base_and_unsteady(&self) -> Duration {
        self.base.rtt().unwrap_or_default() + self.unsteady
    }

    /// Takes a round trip in: begins and ends drains.
    fn measure(&mut self, now: Instant, departure: &Departure, rtt: Duration) {
        self.round_rtts.insert(rtt);
        if self.base.insert(now, rtt, departure.full) && self.drain.is_none() {
            let lasts = self.queue_allowed + 2 * self.base_and_unsteady();
            self.drain = Some(Drain {
                began: now,
                until: now + lasts,
                packets: None,
                rtts: Mean::default(),
            });
        }
        let Some(drain) = &mut self.drain else { return };
        if departure.at >= drain.began {
            drain.rtts.insert(rtt);
        }
        if now >= drain.until {
            if let Some(mean) = drain.rtts.take() {
                self.unsteady = mean.saturating_sub(self.base.rtt().unwrap_or_default());
            }
            self.drain = None;
        }
    }

    /// Doubles again on a path that stays empty; suspects delays that stay although the window shrank.
    fn end_round(&mut self, now: Instant, departure: &Departure, queue: Duration) {
        self.round_ends_at = self.delivered;
        let empty = departure.full && queue < self.queue_allowed / 4;
        self.rounds_empty = if empty { self.rounds_empty + 1 } else { 0 };
        self.starting |= self.rounds_empty >= ROUNDS_TO_RESTART;

        let Some(usual) = self.round_rtts.take() else { return };
        let over = usual > self.base_and_unsteady() + self.queue_allowed;
        if over {
            self.rounds_over += 1;
        } else {
            self.rounds_over = 0;
            self.window_before = self.window;
        }
        let shrunk = self.window <= (self.window_before / 2).max(2 * self.window_min());
        let suspect = shrunk && self.rounds_over >= ROUNDS_OVER && self.drain.is_none();
        if suspect && now >= self.suspicion_after {
            self.rounds_over = 0;
            self.suspicion_after = now + SUSPICION_PAUSE;
            self.base = Base::new(now);
            self.base.insert(now, usual, false);
            self.unsteady = Duration::ZERO;
            self.starting = true;
            let packets = Some(SUSPICION_PACKETS);
            let until = now + 2 * usual;
            self.drain = Some(Drain { began: now, until, packets, rtts: Mean::default() });
        }
    }

    fn adapt(&mut self, now: Instant, acked: u64, departure: &Departure, queue: Duration) {
        if let Some(sample) = self.sample(departure, now, queue) {
            let busy_path = departure.full || queue > self.queue_allowed;
            let telling = sample.bytes >= SAMPLE_PACKETS_MIN * self.mtu;
            if telling && (busy_path || sample.rate > self.rates.max()) {
                let base = self.base_and_unsteady();
                let memory = RATE_MEMORY_MIN.max(2 * (base + self.queue_allowed));
                self.rates.insert(self.busy, sample.rate, memory);
            }
        }
        if departure.delivered >= self.round_ends_at {
            self.end_round(now, departure, queue);
        }
        let queued = queue > self.queue_allowed / 2 + self.unsteady;
        if queued {
            // A drain that tests a suspicion has the old queue in its first samples.
            self.starting &= self.drain.is_some();
            self.rounds_empty = 0;
        }

        let path = self.rates.max() * self.base_and_unsteady().as_secs_f64();
        if let Some(drain) = self.drain {
            let part = ((path * DRAIN) as u64).max(self.window_min());
            self.window = drain.packets.map_or(part, |packets| packets * self.mtu);
            return;
        }
        let target = (path + self.rates.max() * self.queue_allowed.as_secs_f64()) as u64;
        let probing = departure.full && !queued;
        // Before the first rate, a late ack is no reason to hold less than at the start.
        let unknown = self.rates.max() == 0.0;
        let grown = match (probing, self.starting) {
            (true, true) => self.window + acked,
            (true, false) => self.window + acked / 4,
            (false, starting) if starting || unknown => self.window,
            (false, _) => 0,
        };
        // Upward at most threefold in a round trip, downward at once.
        self.window = grown.max(target.min(self.window + 2 * acked)).max(self.window_min());
    }
}

impl Controller for QueueBound {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.count_busy(now);
        if self.in_flight == 0 {
            self.delivered_at = now;
            self.acked_sent = now;
            self.burst = Burst { started_at: now, delivered: self.delivered, first_ack: None };
        }
        if bytes >= IN_FLIGHT_BYTES_MIN {
            self.in_flight += bytes;
        }
        let full = self.in_flight + 2 * self.mtu >= self.window;
        match self.departures.back_mut().filter(|departure| departure.at == now) {
            Some(together) => together.full |= full,
            None => self.departures.push_back(Departure {
                at: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                lost: self.lost,
                acked_sent: self.acked_sent,
                full,
            }),
        }
        while self.departures.front().is_some_and(|oldest| oldest.at + DEPARTURE_AGE_MAX < now) {
            self.departures.pop_front();
        }
    }

    fn on_ack(
        &mut self,
        _now: Instant,
        sent: Instant,
        bytes: u64,
        _app_limited: bool,
        _rtt: &quinn_proto::RttEstimator,
    ) {
        self.handle_ack(sent, bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        _app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        self.count_busy(now);
        self.in_flight = in_flight;
        let acked = self.loss.acked_since_batch();
        let Some(departure) = self.newest.take() else { return };
        let rtt = now.saturating_duration_since(departure.at);
        self.measure(now, &departure, rtt);
        let queue = rtt.saturating_sub(self.base_and_unsteady());
        self.adapt(now, acked, &departure, queue);
        self.delivered_at = now;
        self.acked_sent = departure.at;
        self.burst.first_ack.get_or_insert((self.delivered, now));
        if let Some(full) = self.loss.count(LOSS_PACKETS * self.mtu) {
            self.queue_allowed = match full {
                true => {
                    self.queue_allowed.mul_f64(0.7).max(QUEUE_ALLOWED_MIN.min(self.queue_config))
                }
                false => self.queue_allowed.mul_f64(1.05).min(self.queue_config),
            };
        }
        while self.departures.front().is_some_and(|oldest| oldest.at < departure.at)
            && self.departures.len() > DEPARTURES_MAX
        {
            self.departures.pop_front();
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        _sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.count_busy(now);
        self.lost += lost_bytes;
        self.in_flight = self.in_flight.saturating_sub(lost_bytes);
        // No bytes: marked by the path (ECN), which is a queue that it finds too long.
        self.loss.lost(lost_bytes);
        if is_persistent_congestion {
            self.rates.clear();
            self.window = self.window_min();
            self.starting = true;
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
        self.window = self.window.max(self.window_min());
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        WINDOW_PACKETS_INITIAL * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Bytes over a time.
struct Sample {
    bytes: u64,
    rate: f64,
}

/// The highest of the recent rates: newer and higher ones push out the others.
#[derive(Clone, Debug, Default)]
struct RateFilter {
    rates: VecDeque<(Duration, f64)>,
}

impl RateFilter {
    fn insert(&mut self, busy: Duration, rate: f64, memory: Duration) {
        while self.rates.back().is_some_and(|&(_, lower)| lower <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((busy, rate));
        while self.rates.front().is_some_and(|&(at, _)| at + memory < busy) {
            self.rates.pop_front();
        }
    }

    fn max(&self) -> f64 {
        self.rates.front().map_or(0.0, |&(_, rate)| rate)
    }

    /// Forgets all but half of what is known.
    fn clear(&mut self) {
        let half = self.max() / 2.0;
        self.rates.clear();
        self.rates.push_back((Duration::ZERO, half));
    }
}

/// The shortest round trip of this period and the one before.
#[derive(Clone, Debug)]
struct Base {
    period_started: Instant,
    before: Option<Duration>,
    current: Option<Duration>,
    full: bool,
}

impl Base {
    fn new(now: Instant) -> Self {
        Self { period_started: now, before: None, current: None, full: false }
    }

    fn rtt(&self) -> Option<Duration> {
        self.before.into_iter().chain(self.current).min()
    }

    /// Takes a sample in; true if the path should be drained, because it was full for a period and every
    /// sample may have had a queue in it.
    fn insert(&mut self, now: Instant, rtt: Duration, full: bool) -> bool {
        self.full |= full;
        let over = now.saturating_duration_since(self.period_started) >= BASE_PERIOD;
        if over {
            self.period_started = now;
            self.before = self.current.take();
        }
        self.current = Some(self.current.map_or(rtt, |current| current.min(rtt)));
        over && std::mem::take(&mut self.full)
    }
}

/// Counts loss over enough packets to tell a full queue from bad luck.
#[derive(Clone, Debug, Default)]
struct LossCount {
    acked: u64,
    lost: u64,
    marked: bool,
    batch: u64,
}

impl LossCount {
    fn lost(&mut self, bytes: u64) {
        self.lost += bytes;
        self.marked |= bytes == 0;
    }

    /// Bytes acknowledged since this was last asked.
    fn acked_since_batch(&mut self) -> u64 {
        let acked = self.acked - self.batch;
        self.batch = self.acked;
        acked
    }

    /// Whether the queue overflowed, once `enough` bytes are counted.
    fn count(&mut self, enough: u64) -> Option<bool> {
        let total = self.acked + self.lost;
        (total >= enough).then(|| {
            let counted = std::mem::take(self);
            counted.marked || counted.lost as f64 > total as f64 * LOSS_TOLERATED
        })
    }
}

#[cfg(test)]
mod tests;
