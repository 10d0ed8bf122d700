//! The controller against a bottleneck in virtual time.

use super::*;

const MTU: u64 = 1200;

/// A sender that always has something to send, a bottleneck and a path, in virtual time.
struct Bed {
    control: QueueBound,
    now: Instant,
    rate: f64,
    delay: Duration,
    /// Packets in the bottleneck's queue, by when they were sent.
    queue: VecDeque<Instant>,
    /// Acks on their way, with when the packet was sent.
    acks: VecDeque<(Instant, Instant)>,
    served: f64,
    /// Acks come up to this much later than they might, in order.
    jitter: Duration,
    /// Bytes that wait to be sent; `None` for more than can ever be sent.
    waiting: Option<u64>,
    random: u64,
}

impl Bed {
    fn new(rate: f64, delay: Duration) -> Self {
        let now = Instant::now();
        Self {
            control: QueueBound::new(Duration::from_millis(10), now, MTU as u16),
            now,
            rate,
            delay,
            queue: VecDeque::new(),
            acks: VecDeque::new(),
            served: 0.0,
            jitter: Duration::ZERO,
            waiting: None,
            random: 1,
        }
    }

    fn jitter(&mut self) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.jitter.mul_f64((self.random >> 40) as f64 / f64::from(1 << 24))
    }

    fn in_flight(&self) -> u64 {
        (self.queue.len() + self.acks.len()) as u64 * MTU
    }

    /// Runs for that long; returns the part of the capacity used and the longest queue in time. Every
    /// `lose`th packet is lost after the bottleneck.
    fn run(&mut self, time: Duration, lose: Option<u64>) -> (f64, Duration) {
        const STEP: Duration = Duration::from_micros(200);
        let end = self.now + time;
        let (mut carried, mut queue_max, mut count) = (0, 0, 0);
        while self.now < end {
            self.now += STEP;
            self.served = (self.served + self.rate * STEP.as_secs_f64()).min(2.0 * self.rate);
            while self.served >= MTU as f64 && !self.queue.is_empty() {
                self.served -= MTU as f64;
                carried += MTU;
                count += 1;
                let sent = self.queue.pop_front().expect("it is not empty");
                if lose.is_some_and(|every| count % every == 0) {
                    self.control.on_congestion_event(self.now, sent, false, MTU);
                } else {
                    let at = self.now + self.delay + self.jitter();
                    let last = self.acks.back().map_or(at, |&(last, _)| last);
                    self.acks.push_back((at.max(last), sent));
                }
            }
            if self.queue.is_empty() {
                self.served = 0.0;
            }
            let mut acked = false;
            while self.acks.front().is_some_and(|&(at, _)| at <= self.now) {
                let (_, sent) = self.acks.pop_front().expect("it was looked at");
                self.control.handle_ack(sent, MTU);
                acked = true;
            }
            let in_flight = self.in_flight();
            if acked {
                self.control.on_end_acks(self.now, in_flight, false, None);
            }
            let mut room = self.control.window().saturating_sub(in_flight) / MTU;
            if let Some(waiting) = &mut self.waiting {
                room = room.min(waiting.div_ceil(MTU));
                *waiting = waiting.saturating_sub(room * MTU);
            }
            for _ in 0..room {
                self.queue.push_back(self.now);
                self.control.on_sent(self.now, MTU, 0);
            }
            queue_max = queue_max.max(self.queue.len());
        }
        let used = carried as f64 / (self.rate * time.as_secs_f64());
        let queue = queue_max as f64 * MTU as f64 / self.rate;
        (used, Duration::from_secs_f64(queue))
    }
}

#[test]
fn the_path_is_full_and_its_queue_short() {
    for (megabits, delay_ms) in [(2, 2), (20, 2), (20, 40), (200, 2), (200, 20)] {
        let rate = f64::from(megabits) * 125_000.0;
        let mut bed = Bed::new(rate, Duration::from_millis(delay_ms));
        bed.run(Duration::from_secs(2), None);
        let (used, queue) = bed.run(Duration::from_secs(4), None);
        let note = format!("{megabits} Mbit/s, {delay_ms} ms: used {used:.3}, queue {queue:?}");
        assert!(used > 0.9, "{note}");
        // On a slow path a few packets are a long queue.
        let packets = Duration::from_secs_f64((2 * WINDOW_PACKETS_MIN * MTU) as f64 / rate);
        assert!(queue < Duration::from_millis(25) + packets, "{note}");
    }
}

#[test]
fn random_loss_does_not_shrink_the_window() {
    let mut bed = Bed::new(2_500_000.0, Duration::from_millis(10));
    bed.run(Duration::from_secs(2), Some(20));
    let (used, _) = bed.run(Duration::from_secs(4), Some(20));
    assert!(used > 0.9, "{used:.3}");
}

#[test]
fn a_tenfold_drop_is_followed_and_so_is_its_end() {
    let mut bed = Bed::new(25_000_000.0, Duration::from_millis(2));
    bed.run(Duration::from_secs(2), None);
    bed.rate /= 10.0;
    bed.run(Duration::from_millis(300), None);
    let (used, queue) = bed.run(Duration::from_secs(1), None);
    assert!(used > 0.9 && queue < Duration::from_millis(25), "{used:.3} {queue:?}");
    bed.rate *= 10.0;
    bed.run(Duration::from_millis(300), None);
    let (used, _) = bed.run(Duration::from_secs(1), None);
    assert!(used > 0.9, "{used:.3}");
}

/// Frames with pauses between them. The peer's last word about each frame comes after all of it is
/// acknowledged, and is answered with a packet that holds nothing but an ack, which is never
/// acknowledged.
#[test]
fn a_lone_ack_between_frames_does_not_count_as_a_slow_path() {
    let mut bed = Bed::new(2_500_000.0, Duration::from_millis(3));
    bed.waiting = Some(0);
    let pause = Duration::from_millis(60);
    for frame in 0..20 {
        bed.waiting = Some(50_000);
        let mut took = Duration::ZERO;
        let mut rate = f64::MAX;
        while bed.waiting != Some(0) || bed.in_flight() > 0 {
            bed.run(Duration::from_millis(1), None);
            took += Duration::from_millis(1);
            rate = rate.min(bed.control.rate());
        }
        bed.control.on_sent(bed.now, 32, 0);
        bed.run(pause, None);
        let note = format!("frame {frame} took {took:?}, rate {rate:.0}");
        assert!(frame < 3 || (took < Duration::from_millis(27) && rate > 2_000_000.0), "{note}");
    }
}

/// A few small packets, as of a handshake, one of them acknowledged late: then frames that fit the first window.
#[test]
fn an_ack_that_is_late_before_the_first_frame_does_not_slow_it() {
    let mut bed = Bed::new(25_000_000.0, Duration::from_millis(10));
    bed.waiting = Some(3 * MTU);
    bed.run(Duration::from_millis(30), None);
    bed.delay += Duration::from_millis(20);
    bed.waiting = Some(2 * MTU);
    bed.run(Duration::from_millis(60), None);
    bed.delay -= Duration::from_millis(20);
    for frame in 0..3 {
        bed.waiting = Some(20 * MTU);
        let began = bed.now;
        while bed.waiting != Some(0) || bed.in_flight() > 0 {
            bed.run(Duration::from_millis(1), None);
        }
        let took = bed.now - began;
        assert!(took < Duration::from_millis(15), "frame {frame} took {took:?}");
        bed.run(Duration::from_millis(200), None);
    }
}

#[test]
fn a_longer_way_is_told_from_a_longer_queue() {
    for (before_ms, after_ms) in [(3, 30), (3, 60), (20, 45)] {
        let mut bed = Bed::new(2_500_000.0, Duration::from_millis(before_ms));
        bed.run(Duration::from_secs(1), None);
        bed.delay = Duration::from_millis(after_ms);
        bed.run(Duration::from_millis(800), None);
        let (used, queue) = bed.run(Duration::from_secs(1), None);
        let note = format!("{before_ms} to {after_ms} ms: used {used:.3}, queue {queue:?}");
        assert!(used > 0.9 && queue < Duration::from_millis(30), "{note}");
    }
}

#[test]
fn acks_that_come_late_at_random_leave_most_of_the_path_in_use() {
    for (jitter_ms, at_least) in [(5, 0.9), (10, 0.8), (20, 0.6), (40, 0.5)] {
        let mut bed = Bed::new(2_500_000.0, Duration::from_millis(3));
        bed.jitter = Duration::from_millis(jitter_ms);
        bed.run(Duration::from_secs(1), None);
        let (used, queue) = bed.run(Duration::from_secs(4), None);
        assert!(used > at_least, "{jitter_ms} ms of jitter: used {used:.3}, queue {queue:?}");
    }
}
