use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const MEGABYTE: u64 = 1_000_000;

fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9).round() as i64)
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn large(since: f64) -> Backlog {
    Backlog { small_bytes: 0, large: Some(Waiting { bytes: MEGABYTE, since: at(since) }) }
}

fn paper() -> PaperConfig {
    PaperConfig { query_period: secs(1.0), ..PaperConfig::default() }
}

fn ask(schedule: &mut Schedule, now: f64, backlog: Backlog) -> Next {
    schedule.next(at(now), backlog, LinkState::default())
}

#[test]
fn equations_of_the_paper_by_hand() {
    // 1 MB scales by ten: L_now = 5 RTT, threshold_l / 2 = 2.5 s, T_Q = 1 s, D = 20 s.
    let conservative = Policy::Conservative(paper());
    let good = Policy::Probabilistic(paper());
    let bad = Policy::Probabilistic(PaperConfig { lambda: 1.0 / 60.0, ..paper() });
    let historic = Policy::Historic(paper());
    for (policy, rtt, sojourn, sent, why) in [
        (&conservative, 0.499, 0.0, true, "2.495 < 2.5"),
        (&conservative, 0.5, 0.0, false, "2.5 < 2.5 is false"),
        (&conservative, 0.6, 20.0, false, "D must be exceeded"),
        (&conservative, 0.6, 20.000_000_001, true, "by a nanosecond"),
        (&good, 3.0, 0.0, true, "p = 0.9445: 15 < 1 + 14.306"),
        (&good, 4.0, 0.0, true, "20 < 1 + 19.028"),
        (&good, 4.2, 0.0, false, "21 < 1 + 19.972 is false"),
        (&good, 0.92, 10.0, true, "p = 0.5334: 4.6 < 1 + 3.620"),
        (&good, 0.94, 10.0, false, "4.7 < 1 + 3.673 is false"),
        (&good, 9.0, 20.1, true, "D is exceeded"),
        (&bad, 12.5, 0.0, true, "p = 0.9835: 62.5 < 1 + 61.508"),
        (&bad, 12.7, 0.0, false, "63.5 < 1 + 62.492 is false"),
        (&historic, 0.69, 0.0, true, "3.45 < 1 + 2.5"),
        (&historic, 0.71, 0.0, false, "3.55 < 1 + 2.5 is false"),
        (&historic, 3.0, 11.4, false, "15 < 1 + 2.5 + 11.4 is false"),
        (&historic, 3.0, 11.6, true, "15 < 1 + 2.5 + 11.6"),
        (&historic, 9.0, 30.0, false, "45 < 1 + 2.5 + 30 is false: no D here"),
    ] {
        let mut schedule = Schedule::new(policy.clone());
        schedule.answered(at(0.0), secs(rtt));
        let next = ask(&mut schedule, sojourn, large(0.0));
        assert_eq!(next == Next::Large, sent, "{policy}, RTT {rtt}, ΔS {sojourn}: {why}");
    }
}

#[test]
fn decision_stands_until_an_rtt_or_just_after_d() {
    let mut schedule = Schedule::new(Policy::Conservative(paper()));
    assert_eq!(ask(&mut schedule, 0.0, large(0.0)), Next::Large, "no RTT yet: sent");
    schedule.started(at(0.0), Class::Large, MEGABYTE);
    schedule.answered(at(1.0), secs(0.6));
    let due = at(22.0) + Duration::from_nanos(1);
    assert_eq!(ask(&mut schedule, 2.0, large(2.0)), Next::Wait(Some(due)));
    assert_eq!(ask(&mut schedule, 22.0, large(2.0)), Next::Wait(Some(due)));
    assert_eq!(schedule.next(due, large(2.0), LinkState::default()), Next::Large);
    schedule.started(due, Class::Large, MEGABYTE);
    let longest = secs(20.0) + Duration::from_nanos(1);
    assert_eq!(schedule.withheld(), Withheld { messages: 1, total: longest, longest });
    assert!(matches!(ask(&mut schedule, 30.0, large(29.0)), Next::Wait(Some(_))));
    schedule.answered(at(31.0), secs(0.4));
    assert_eq!(ask(&mut schedule, 31.0, large(29.0)), Next::Large);
}

#[test]
fn historic_ends_by_itself_where_answers_stop() {
    let mut schedule = Schedule::new(Policy::Historic(paper()));
    schedule.answered(at(0.0), secs(9.0));
    let mut now = at(0.0);
    let mut asked = 0;
    while let Next::Wait(until) = schedule.next(now, large(0.0), LinkState::default()) {
        now = until.unwrap();
        asked += 1;
    }
    assert!(now.since(at(41.5)) < Duration::from_micros(1), "45 < 1 + 2.5 + ΔS, at {now}");
    assert!(asked < 5, "asked {asked} times");
}

#[test]
fn small_goes_at_once_with_every_policy() {
    for word in ["none", "deadline", "conservative", "probabilistic", "historic"] {
        let policy: Policy = word.parse().unwrap();
        assert_eq!(policy.to_string(), word);
        let mut schedule = Schedule::new(policy);
        schedule.answered(at(0.0), secs(9.0));
        let backlog = Backlog { small_bytes: 100, ..large(0.0) };
        assert_eq!(ask(&mut schedule, 0.0, backlog), Next::Small, "{word}");
        assert_eq!(ask(&mut schedule, 0.0, Backlog::default()), Next::Wait(None), "{word}");
    }
    assert_eq!(Policy::default().to_string(), "deadline");
    assert!("fifo".parse::<Policy>().unwrap_err().to_string().contains("probabilistic"));
}

#[test]
fn settings_have_ranges() {
    let deadline = DeadlineConfig::default;
    let (hour, beyond) = (secs(3600.0), secs(3601.0));
    for (config, expected) in [
        (deadline(), None),
        (
            DeadlineConfig { small_budget: Duration::ZERO, deadline: Duration::ZERO, ..deadline() },
            None,
        ),
        (
            DeadlineConfig { small_budget: beyond, ..deadline() },
            Some(PolicyError::SmallBudget(beyond)),
        ),
        (DeadlineConfig { deadline: hour, large_share: 1.0, ..deadline() }, None),
        (DeadlineConfig { deadline: beyond, ..deadline() }, Some(PolicyError::Deadline(beyond))),
        (DeadlineConfig { large_share: 1.1, ..deadline() }, Some(PolicyError::LargeShare(1.1))),
        (DeadlineConfig { large_share: -0.1, ..deadline() }, Some(PolicyError::LargeShare(-0.1))),
        (DeadlineConfig { quantum_bytes: 0, ..deadline() }, Some(PolicyError::QuantumBytes(0))),
    ] {
        assert_eq!(Policy::Deadline(config.clone()).check().err(), expected, "{config:?}");
    }
    let fixed = |rtt| PaperConfig { threshold_l: Threshold::Fixed(rtt), ..paper() };
    let average =
        |samples| PaperConfig { threshold_l: Threshold::MovingAverage { samples }, ..paper() };
    let period = |query_period| PaperConfig { query_period, ..paper() };
    let profile =
        |points: &[_]| PaperConfig { profile: SizeProfile::Points(points.to_vec()), ..paper() };
    let lambda = |lambda| PaperConfig { lambda, ..paper() };
    for (config, expected) in [
        (paper(), None),
        (fixed(Duration::ZERO), Some(PolicyError::Threshold(Duration::ZERO))),
        (fixed(beyond), Some(PolicyError::Threshold(beyond))),
        (average(1), None),
        (average(0), Some(PolicyError::Samples(0))),
        (average(1025), Some(PolicyError::Samples(1025))),
        (period(Duration::ZERO), Some(PolicyError::QueryPeriod(Duration::ZERO))),
        (period(secs(0.01)), None),
        (period(beyond), Some(PolicyError::QueryPeriod(beyond))),
        (PaperConfig { withhold_max: beyond, ..paper() }, Some(PolicyError::WithholdMax(beyond))),
        (PaperConfig { query_bytes: 2 << 20, ..paper() }, Some(PolicyError::QueryBytes(2 << 20))),
        (lambda(0.0), Some(PolicyError::Lambda(0.0))),
        (lambda(f64::INFINITY), Some(PolicyError::Lambda(f64::INFINITY))),
        (profile(&[]), Some(PolicyError::NoPoints)),
        (profile(&[(9, 0.0)]), Some(PolicyError::Factor { bytes: 9, factor: 0.0 })),
        (profile(&[(1, 1.0), (9, 1.0)]), None),
        (profile(&[(9, 1.0), (9, 2.0)]), Some(PolicyError::Order { bytes: 9 })),
        (profile(&[(1, 2.0), (9, 1.0)]), Some(PolicyError::Order { bytes: 9 })),
    ] {
        for policy in [Policy::Conservative, Policy::Probabilistic, Policy::Historic] {
            assert_eq!(policy(config.clone()).check().err(), expected, "{config:?}");
        }
        let both = PolicyConfig { paper: config, ..PolicyConfig::default() };
        assert_eq!(both.check().err(), expected);
        assert_eq!(both.policy("historic"), Ok(Policy::Historic(both.paper.clone())));
    }
    let nan = DeadlineConfig { large_share: f64::NAN, ..deadline() };
    assert!(matches!(nan.check(), Err(PolicyError::LargeShare(_))));
    assert!(matches!(lambda(f64::NAN).check(), Err(PolicyError::Lambda(_))));
}

#[test]
fn one_query_is_on_its_way_at_a_time() {
    let mut schedule = Schedule::new(Policy::Historic(PaperConfig::default()));
    assert!(schedule.query_due(at(0.0)));
    schedule.query_sent(at(0.0));
    assert_eq!(schedule.query_at(), None);
    assert!(!schedule.query_due(at(60.0)));
    schedule.answered(at(2.0), secs(2.0));
    assert_eq!((schedule.query_at(), schedule.rtt()), (Some(at(5.0)), Some(secs(2.0))));
    schedule.observed(at(3.0), secs(7.0), MEGABYTE);
    assert_eq!(schedule.rtt(), Some(secs(2.0)), "a query was answered of late");
    schedule.observed(at(13.0), secs(7.0), MEGABYTE);
    assert_eq!(schedule.rtt(), Some(secs(0.7)), "scaled from 1 MB to 10 KB");
    assert!(!Schedule::new(Policy::default()).query_due(Instant::MAX));
}

#[test]
fn moving_average_is_of_the_latest_rtts() {
    let threshold_l = Threshold::MovingAverage { samples: 3 };
    let mut schedule = Schedule::new(Policy::Conservative(PaperConfig { threshold_l, ..paper() }));
    for (rtt, sent) in [
        (0.9, false),  // not below itself
        (0.3, true),   // mean 0.6
        (0.5, true),   // mean 0.567
        (0.41, false), // 0.9 is forgotten: mean 0.403
        (0.43, true),
    ] {
        schedule.answered(at(0.0), secs(rtt));
        assert_eq!(ask(&mut schedule, 0.0, large(0.0)) == Next::Large, sent, "RTT {rtt}");
    }
}

#[test]
fn sizes_scale_along_the_profile() {
    let points = SizeProfile::Points(vec![(10_000, 1.0), (110_000, 2.0), (1_010_000, 10.0)]);
    for (profile, from, to, factor) in [
        (&SizeProfile::Linear, 10_000, MEGABYTE, 100.0),
        (&SizeProfile::default(), 10_000, MEGABYTE, 10.0),
        (&SizeProfile::default(), MEGABYTE, 10_000, 0.1),
        (&points, 10_000, 60_000, 1.5),
        (&points, 110_000, 560_000, 3.0),
        (&points, 10_000, 1, 1.0),          // below the first
        (&points, 10_000, 1_910_000, 18.0), // the last line is extended
        (&SizeProfile::Points(vec![]), 1, 2, 1.0),
        (&SizeProfile::Points(vec![(5, 2.0)]), 1, 9, 1.0),
    ] {
        let found = profile.scale(from, to);
        assert!((found - factor).abs() < 1e-9, "{profile:?} {from} to {to}: {found}");
    }
}

/// A schedule of the default policy that has seen `rate` for a minute and a small message just before 60 s.
fn warmed(rate: u64) -> Schedule {
    let mut schedule = Schedule::new(Policy::default());
    for second in 0..60 {
        let link = LinkState { delivery_rate: rate + second % 2, ..LinkState::default() };
        schedule.next(at(second as f64), Backlog::default(), link);
    }
    schedule.started(at(59.9), Class::Small, 100);
    schedule
}

#[test]
fn withholds_only_where_waiting_can_help() {
    let usual = LinkState {
        rtt: secs(0.02),
        rtt_min: secs(0.02),
        delivery_rate: 1_250_000,
        ..LinkState::default()
    };
    let dip = LinkState { delivery_rate: 125_000, ..usual };
    let queue = LinkState { rtt: secs(1.0), ..usual };
    let own = LinkState { in_flight_bytes: 600_000, ..queue };
    let unsent = LinkState { unsent_bytes: 12_500, ..usual };
    let unknown = LinkState::default();
    let wait = |until| Next::Wait(Some(at(until)));
    for (link, since, now, expected, why) in [
        (usual, 60.0, 60.0, Next::Large, "slow, but as always"),
        (unknown, 60.0, 60.0, Next::Large, "nothing is known"),
        (unsent, 60.0, 60.0, wait(60.01), "the kernel has bytes for 10 ms"),
        (unsent, 50.0, 60.0, Next::Large, "the deadline is past"),
        (dip, 60.0, 60.0, wait(61.0), "a dip, believed for a second"),
        (dip, 56.0, 60.0, wait(61.0), "until then or the deadline"),
        (dip, 55.5, 60.0, wait(60.5), "the deadline is nearer"),
        (dip, 55.0, 60.0, Next::Large, "the deadline"),
        (dip, 70.0, 70.0, Next::Large, "no small message in the last 8 s"),
        (queue, 60.0, 60.0, wait(60.7), "others fill the path; until no small one is expected"),
        (own, 60.0, 60.0, wait(60.01), "our own bytes stand in the way"),
        (own, 55.0, 60.0, Next::Large, "the deadline"),
    ] {
        let mut schedule = warmed(1_250_000);
        assert_eq!(schedule.next(at(now), large(since), link), expected, "{why}");
    }
    let mut schedule = warmed(1_250_000);
    assert_ne!(schedule.next(at(60.0), large(60.0), own), Next::Large);
    let next = schedule.next(at(60.4), large(60.0), queue);
    assert_eq!(next, Next::Large, "our own bytes, which have left, explain the RTT");
    assert_eq!(schedule.withheld().messages, 0, "to wait for them is not to withhold");
    let mut schedule = warmed(1_250_000);
    let few = Waiting { bytes: 10_000, since: at(60.0) };
    let backlog = Backlog { small_bytes: 0, large: Some(few) };
    assert_eq!(schedule.next(at(60.0), backlog, dip), Next::Large, "80 ms fit the budget");
    assert!(matches!(schedule.next(at(60.0), large(60.0), dip), Next::Wait(Some(_))));
    assert_eq!(schedule.next(at(61.0), large(60.0), dip), Next::Large, "the start is the probe");
}

#[test]
fn a_rate_at_which_an_end_held_back_is_not_the_paths() {
    let slow = |busy, receiver_limited, buffer_limited| LinkState {
        delivery_rate: 125_000,
        busy: secs(busy),
        receiver_limited: secs(receiver_limited),
        buffer_limited: secs(buffer_limited),
        ..LinkState::default()
    };
    for (link, withheld, why) in [
        (slow(1.0, 0.0, 0.0), true, "the path"),
        (slow(1.0, 0.4, 0.0), true, "the path for most of the time"),
        (slow(1.0, 0.6, 0.0), false, "the subscriber did not read"),
        (slow(1.0, 0.3, 0.3), false, "both ends"),
        (slow(0.04, 0.04, 0.0), true, "too short to be judged"),
    ] {
        let mut schedule = warmed(1_250_000);
        let next = schedule.next(at(60.0), large(60.0), link);
        assert_eq!(matches!(next, Next::Wait(_)), withheld, "{why}");
    }
    // Only what came since the last look counts, and a rate of the ends is not taken for the usual one.
    let mut schedule = warmed(1_250_000);
    for second in 60..120 {
        let time = second as f64 - 59.0;
        let link = LinkState { delivery_rate: 100_000 + second, ..slow(time, time, 0.0) };
        schedule.looked(at(second as f64), link);
    }
    schedule.started(at(120.0), Class::Small, 100);
    let next = schedule.next(at(120.0), large(120.0), slow(61.0, 60.0, 0.0));
    assert!(matches!(next, Next::Wait(_)), "now it is the path");
}

/// Latencies in seconds of small and large messages on a link of 10 Mbit/s, of which headers leave 95 %: 100 B
/// each 50 ms and 1 MB each 0.8 s, 105 % of what it carries, for a minute.
fn overloaded(mut choose: impl FnMut(Instant, Backlog, bool) -> Next) -> (Vec<f64>, Vec<f64>) {
    let rate = 1_190_000.0;
    let mut arrivals: Vec<(f64, Class)> =
        (0..1200).map(|n| (f64::from(n) * 0.05, Class::Small)).collect();
    arrivals.extend((0..75).map(|n| (f64::from(n) * 0.8 + 0.01, Class::Large)));
    arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut arrivals = VecDeque::from(arrivals);
    let (mut small, mut big) = (VecDeque::new(), VecDeque::new());
    let (mut small_times, mut large_times) = (vec![], vec![]);
    let mut now = 0.0;
    loop {
        while arrivals.front().is_some_and(|arrival| arrival.0 <= now) {
            let (time, class) = arrivals.pop_front().unwrap();
            if class == Class::Small { small.push_back(time) } else { big.push_back(time) }
        }
        let backlog = Backlog {
            small_bytes: if small.is_empty() { 0 } else { 100 },
            large: big.front().map(|&since| Waiting { bytes: MEGABYTE, since: at(since) }),
        };
        let oldest_is_large = match (small.front(), big.front()) {
            (Some(small), Some(large)) => large < small,
            (small, _) => small.is_none(),
        };
        match choose(at(now), backlog, oldest_is_large) {
            Next::Small => {
                now += 100.0 / rate;
                small_times.push(now - small.pop_front().unwrap());
            }
            Next::Large => {
                now += MEGABYTE as f64 / rate;
                large_times.push(now - big.pop_front().unwrap());
            }
            Next::Wait(until) => {
                let arrival = arrivals.front().map(|arrival| arrival.0);
                let until = until.map(|until| until.as_nanos() as f64 / 1e9);
                let Some(wake) = arrival.into_iter().chain(until).min_by(f64::total_cmp) else {
                    break;
                };
                now = wake.max(now + 1e-9);
            }
        }
    }
    (small_times, large_times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn overload_costs_the_large_nothing_and_spares_the_small() {
    let (fifo_small, fifo_large) = overloaded(|_, backlog, oldest_is_large| match backlog {
        Backlog { small_bytes: 0, large: None } => Next::Wait(None),
        _ if oldest_is_large => Next::Large,
        _ => Next::Small,
    });
    let mut schedule = Schedule::new(Policy::default());
    let mut asked = 0;
    let (small, large) = overloaded(|now, backlog, _| {
        asked += 1;
        // The first sample is that of a token bucket's burst, the others vary.
        let delivery_rate =
            if asked < 3 { 1_000_000_000 } else { 1_150_000 + asked * 7919 % 200_000 };
        let link = LinkState {
            rtt: secs(0.25),
            rtt_min: secs(0.000_1),
            delivery_rate,
            unsent_bytes: 0,
            // Here a large message takes its time and has left: nothing stands in the way of the next.
            in_flight_bytes: if backlog.small_bytes > 0 { 250_000 } else { 0 },
            ..LinkState::default()
        };
        let next = schedule.next(now, backlog, link);
        match next {
            Next::Small => schedule.started(now, Class::Small, 100),
            Next::Large => schedule.started(now, Class::Large, MEGABYTE),
            Next::Wait(_) => {}
        }
        next
    });
    let (fifo, ours) = (median(fifo_large), median(large));
    assert!(ours <= fifo * 1.05, "large: {ours:.3} s, first come first served {fifo:.3} s");
    let (fifo, ours) = (median(fifo_small), median(small));
    assert!(ours < 0.5 && ours < fifo / 2.0, "small: {ours:.3} s, first come {fifo:.3} s");
}

proptest! {
    #[test]
    fn overload_of_small_leaves_the_large_their_share(
        share in 0.05..0.95f64,
        quantum in 1_000u64..200_000,
        bytes in 10_000u64..2_000_000,
        small in prop::collection::vec(20u64..10_000, 1..20),
    ) {
        let deadline = secs(1e6);
        let small_budget = Duration::ZERO;
        let (large_share, quantum_bytes) = (share, quantum);
        let config = DeadlineConfig { small_budget, deadline, large_share, quantum_bytes };
        let mut schedule = Schedule::new(Policy::Deadline(config));
        let (mut sent_small, mut sent_large) = (0u64, 0u64);
        let waiting = Waiting { bytes, since: at(0.0) };
        for (round, small_bytes) in small.iter().copied().cycle().enumerate().take(20_000) {
            let now = Instant::from_millis(round as i64);
            let backlog = Backlog { small_bytes, large: Some(waiting) };
            match schedule.next(now, backlog, LinkState::default()) {
                Next::Small => {
                    sent_small += small_bytes;
                    schedule.started(now, Class::Small, small_bytes);
                }
                Next::Large => {
                    sent_large += bytes;
                    schedule.started(now, Class::Large, bytes);
                }
                Next::Wait(_) => prop_assert!(false, "something waits"),
            }
            let due = (sent_small + sent_large) as f64 * share;
            let off = (sent_large as f64 - due).abs();
            // A round is rounded down to whole bytes of the small class's turn.
            prop_assert!(off <= (bytes + quantum + 10_000) as f64 * 1.01, "{off} bytes off");
        }
    }

    #[test]
    fn load_of_large_delays_a_small_by_one_at_most(
        bytes in 50_000u64..20_000_000,
        gaps in prop::collection::vec(0.05..3.0f64, 1..60),
    ) {
        let mut schedule = Schedule::new(Policy::default());
        let rate = 1_250_000u64;
        let link = LinkState { delivery_rate: rate, ..LinkState::default() };
        let arrivals: Vec<f64> =
            gaps.iter().scan(0.0, |time, gap| { *time += gap; Some(*time) }).collect();
        let mut arrived = 0;
        let mut waiting: VecDeque<u32> = VecDeque::new();
        let (mut now, mut starts) = (0.0, 0u32);
        while arrived < arrivals.len() || !waiting.is_empty() {
            while arrivals.get(arrived).is_some_and(|&time| time <= now) {
                waiting.push_back(starts);
                arrived += 1;
            }
            let small_bytes = if waiting.is_empty() { 0 } else { 100 };
            let backlog = Backlog { small_bytes, large: Some(Waiting { bytes, since: at(-100.0) }) };
            match schedule.next(at(now), backlog, link) {
                Next::Small => {
                    schedule.started(at(now), Class::Small, 100);
                    // The one on the wire when it arrived is in its count already.
                    prop_assert_eq!(starts - waiting.pop_front().unwrap(), 0);
                    now += 100.0 / rate as f64;
                }
                Next::Large => {
                    schedule.started(at(now), Class::Large, bytes);
                    starts += 1;
                    now += bytes as f64 / rate as f64;
                }
                Next::Wait(_) => prop_assert!(false, "the deadline is past"),
            }
        }
    }

    #[test]
    fn nothing_waits_for_ever(
        policy in policies(),
        small_overload in any::<bool>(),
        links in prop::collection::vec(links(), 1..50),
        rtts in prop::collection::vec(0u64..30_000, 1..50),
    ) {
        let mut schedule = Schedule::new(policy);
        let waiting = Waiting { bytes: MEGABYTE, since: at(0.0) };
        let backlog = Backlog { small_bytes: if small_overload { 1000 } else { 0 }, large: Some(waiting) };
        let mut now = at(0.0);
        for step in 0usize.. {
            prop_assert!(step < 200_000, "asked too often");
            // RTTs of up to 30 s at 10 KB: 150 s for 1 MB, which ends the historic policy.
            prop_assert!(now < at(400.0), "still withheld at {now}");
            if step % 7 == 0 {
                schedule.answered(now, Duration::from_millis(rtts[step % rtts.len()]));
            }
            now = match schedule.next(now, backlog, links[step % links.len()]) {
                Next::Large => break,
                Next::Small => {
                    schedule.started(now, Class::Small, 1000);
                    now + Duration::from_millis(20)
                }
                Next::Wait(until) => {
                    prop_assert!(until.is_some_and(|until| until > now), "{until:?} at {now}");
                    until.unwrap()
                }
            };
        }
    }

    #[test]
    fn hostile_numbers_do_not_panic(
        policy in policies(),
        calls in prop::collection::vec((any::<(i64, i64, u64, u64, u8)>(), links()), 0..60),
    ) {
        let mut schedule = Schedule::new(policy);
        for ((now, since, bytes, small_bytes, call), link) in calls {
            let now = Instant::from_nanos(now);
            let since = Instant::from_nanos(since);
            let large = (call & 8 == 0).then_some(Waiting { bytes, since });
            let _ = schedule.next(now, Backlog { small_bytes, large }, link);
            match call & 7 {
                0 => schedule.started(now, Class::Small, small_bytes),
                1 => schedule.started(now, Class::Large, bytes),
                2 => schedule.query_sent(now),
                3 => schedule.answered(now, link.rtt),
                4 => schedule.observed(now, link.rtt, bytes),
                _ => _ = schedule.query_due(now),
            }
        }
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    let profile = prop_oneof![
        Just(SizeProfile::default()),
        Just(SizeProfile::Linear),
        Just(SizeProfile::Points(vec![]))
    ];
    let threshold = prop_oneof![
        (0u64..5_000).prop_map(|millis| Threshold::Fixed(Duration::from_millis(millis))),
        (0usize..9).prop_map(|samples| Threshold::MovingAverage { samples }),
    ];
    let paper = (profile, threshold, 0u64..20).prop_map(|(profile, threshold_l, period)| {
        let query_period = Duration::from_secs(period);
        // With the linear profile an RTT of 30 s would be one of 3000 s: a query as large as the message.
        let query_bytes = if profile == SizeProfile::Linear { 100_000 } else { 10_000 };
        PaperConfig { threshold_l, query_period, profile, query_bytes, ..PaperConfig::default() }
    });
    let deadline = (0u64..3, 0u64..10, 0.0..=1.0f64, 0u64..200_000).prop_map(
        |(budget, deadline, large_share, quantum_bytes)| DeadlineConfig {
            small_budget: Duration::from_millis(budget * 100),
            deadline: Duration::from_secs(deadline),
            large_share,
            quantum_bytes,
        },
    );
    prop_oneof![
        deadline.prop_map(Policy::Deadline),
        paper.clone().prop_map(Policy::Conservative),
        (paper.clone(), 0.001..10.0f64)
            .prop_map(|(paper, lambda)| Policy::Probabilistic(PaperConfig { lambda, ..paper })),
        paper.prop_map(Policy::Historic),
    ]
}

fn links() -> impl Strategy<Value = LinkState> {
    let any_time = prop_oneof![
        Just(Duration::ZERO),
        any::<u32>().prop_map(|n| Duration::from_micros(n.into())),
        Just(Duration::MAX)
    ];
    let any_bytes = prop_oneof![Just(0), Just(1), 0u64..10_000_000, Just(u64::MAX)];
    let times = prop::collection::vec(any_time, 5);
    let bytes = prop::collection::vec(any_bytes, 3);
    (times, bytes).prop_map(|(times, bytes)| LinkState {
        rtt: times[0],
        rtt_min: times[1],
        busy: times[2],
        receiver_limited: times[3],
        buffer_limited: times[4],
        delivery_rate: bytes[0],
        unsent_bytes: bytes[1],
        in_flight_bytes: bytes[2],
    })
}
