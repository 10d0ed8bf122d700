//! How far the peer's clock is from ours, from pings.
//!
//! The usual four timestamps (RFC 5905, section 8): with a ping sent at `t1`, received at `t2`, answered at
//! `t3` and back at `t4`, the offset is `((t2 - t1) + (t3 - t4)) / 2`, wrong by at most half the round trip
//! `(t4 - t1) - (t3 - t2)`. Queues only lengthen the round trip, so of the last exchanges the one with the
//! shortest is believed, and its error grows with age by what two crystals may drift apart.

use std::{collections::VecDeque, time::Duration};

use tidegate_message::Instant;
use tidegate_wire::Pong;

const EXCHANGES_MAX: usize = 64;
/// Two crystals of 50 parts per million each.
const DRIFT: f64 = 100e-6;

#[derive(Debug, Default)]
pub(super) struct Offset {
    exchanges: VecDeque<Exchange>,
}

#[derive(Clone, Copy, Debug)]
struct Exchange {
    at: Instant,
    offset_nanos: i64,
    error: Duration,
}

impl Exchange {
    fn error_at(&self, now: Instant) -> Duration {
        self.error + now.since(self.at).mul_f64(DRIFT)
    }
}

impl Offset {
    pub(super) fn handle_pong(&mut self, now: Instant, pong: Pong) {
        let away = now.nanos_since(pong.sent);
        let there = pong.replied.nanos_since(pong.received);
        // A peer whose clock runs backwards, or a forged pong.
        if there < 0 || away < there {
            return;
        }
        let out = i128::from(pong.received.nanos_since(pong.sent));
        let back = i128::from(pong.replied.nanos_since(now));
        let Ok(offset_nanos) = i64::try_from((out + back) / 2) else { return };
        let error = Duration::from_nanos((away - there).unsigned_abs() / 2);
        if self.exchanges.len() == EXCHANGES_MAX {
            self.exchanges.pop_front();
        }
        self.exchanges.push_back(Exchange { at: now, offset_nanos, error });
    }

    /// Nanoseconds from our clock to the peer's, and how wrong that may be.
    pub(super) fn estimate(&self, now: Instant) -> Option<(i64, Duration)> {
        let best = self.exchanges.iter().min_by_key(|exchange| exchange.error_at(now))?;
        Some((best.offset_nanos, best.error_at(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pong of a peer whose clock is `offset_nanos` ahead, after `out` and `back` milliseconds.
    fn exchange(offset: &mut Offset, sent_ms: i64, offset_nanos: i64, out: i64, back: i64) {
        let sent = Instant::from_millis(sent_ms);
        let there = Instant::from_nanos(sent.as_nanos() + offset_nanos + out * 1_000_000);
        let pong = Pong { sequence: 0, sent, received: there, replied: there };
        offset.handle_pong(Instant::from_millis(sent_ms + out + back), pong);
    }

    #[test]
    fn the_shortest_round_trip_is_believed() {
        let mut offset = Offset::default();
        assert_eq!(offset.estimate(Instant::EPOCH), None);
        exchange(&mut offset, 0, 7_000_000, 40, 1);
        exchange(&mut offset, 100, 7_000_000, 1, 1);
        exchange(&mut offset, 200, 7_000_000, 1, 90);
        let (nanos, error) = offset.estimate(Instant::from_millis(300)).unwrap();
        assert_eq!(nanos, 7_000_000);
        assert!((1_000_000..1_100_000).contains(&error.as_nanos()), "{error:?}");
    }

    #[test]
    fn the_truth_lies_within_the_error() {
        let mut offset = Offset::default();
        exchange(&mut offset, 0, -3_000_000_000, 30, 2);
        let (nanos, error) = offset.estimate(Instant::from_millis(32)).unwrap();
        assert!(u128::from(nanos.abs_diff(-3_000_000_000)) <= error.as_nanos());
    }

    #[test]
    fn an_old_exchange_gives_way_to_a_fresh_one() {
        let mut offset = Offset::default();
        exchange(&mut offset, 0, 0, 1, 1);
        exchange(&mut offset, 60_000, 5_000_000, 2, 2);
        assert_eq!(offset.estimate(Instant::from_millis(60_004)).unwrap().0, 5_000_000);
    }

    #[test]
    fn hostile_pongs_are_ignored() {
        let mut offset = Offset::default();
        for (sent, received, replied) in
            [(0, 10, 5), (i64::MAX, 0, 0), (0, i64::MIN, i64::MAX), (1_000, 0, 0)]
        {
            let at = Instant::from_nanos;
            let pong =
                Pong { sequence: 0, sent: at(sent), received: at(received), replied: at(replied) };
            offset.handle_pong(at(500), pong);
        }
        assert_eq!(offset.estimate(Instant::EPOCH), None);
    }
}
