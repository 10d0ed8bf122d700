//! The time that frames take from the member that has their camera to here.
//!
//! The member says by its clock when it handed a frame over, and its clock and ours may be hours apart. So the shortest difference of late
//! stands for half a round trip of the link to that member, and the rest of a difference is what its frame took in addition.
//!
//! Always true: neither node's clock is compared with the other's but for how differences change; the shortest is forgotten after at most
//! two spans of [`SPAN`], so that clocks that drift apart make no frame late.

use std::time::Duration;

use tidegate_message::Instant;

/// How long a shortest difference stands: clocks drift by some milliseconds in it.
const SPAN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Way {
    /// Half of a round trip.
    shortest: Duration,
    /// The shortest difference of this span and of the one before, in nanoseconds.
    least: Option<(i128, Option<i128>)>,
    since: Instant,
}

impl Way {
    /// Of a member to which a link has that round trip; in one network it is not known, and as good as none.
    pub(crate) fn new(round_trip: Option<Duration>) -> Self {
        let shortest = round_trip.unwrap_or_default() / 2;
        Self { shortest, least: None, since: Instant::EPOCH }
    }

    /// Begins anew: the member may have another clock.
    pub(crate) fn forget(&mut self) {
        self.least = None;
    }

    /// The time that something took which was handed over at `handed_at` by the member's clock, and is here at `now` by this one's.
    pub(crate) fn took(&mut self, now: Instant, handed_at: Instant) -> Duration {
        let difference = i128::from(now.as_nanos()) - i128::from(handed_at.as_nanos());
        let (mut least, mut before) = self.least.unwrap_or((difference, None));
        if self.least.is_none() {
            self.since = now;
        } else if now.since(self.since) >= SPAN {
            (least, before, self.since) = (difference, Some(least), now);
        }
        least = least.min(difference);
        self.least = Some((least, before));
        let more = difference - before.map_or(least, |before| before.min(least));
        let more = Duration::from_nanos(u64::try_from(more).unwrap_or(u64::MAX));
        self.shortest.saturating_add(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Instant {
        Instant::from_millis(millis)
    }

    const HOUR: i64 = 3_600_000;

    #[test]
    fn way_is_reckoned_whatever_the_clocks_say() {
        let millis = Duration::from_millis;
        for apart in [0, 5 * HOUR, -7 * HOUR] {
            let mut way = Way::new(Some(millis(40)));
            let mut took = |sent: i64, on_the_way: i64| {
                way.took(at(10 * HOUR + sent + on_the_way), at(10 * HOUR + apart + sent))
            };
            assert_eq!(took(0, 25), millis(20), "the first stands for half a round trip");
            assert_eq!(took(100, 325), millis(320), "the time that it took in addition");
            assert_eq!(took(200, 20), millis(20), "a shorter one");
            assert_eq!(took(300, 25), millis(25));
        }
    }

    #[test]
    fn clocks_that_drift_apart_make_no_frame_late() {
        let mut way = Way::new(None);
        // A clock that loses a millisecond each second, ten times what a poor one does.
        for second in 0..3600 {
            let took = way.took(at(HOUR + second * 1000), at(second * 999));
            assert!(took <= Duration::from_millis(61), "{took:?} after {second} s");
        }
        way.forget();
        assert_eq!(way.took(at(9 * HOUR), at(0)), Duration::ZERO);
    }
}
