use super::*;

const START: i64 = 1_700_000_000_000;
const WAY: Duration = Duration::from_millis(1);
const NO_TIME: Duration = Duration::ZERO;

fn ms(millis: i64) -> Instant {
    Instant::from_millis(START + millis)
}

/// Frames at 10 fps, captured at 0, 100, …, that come after `delays`; returns by how much the capture of each is misjudged, in
/// milliseconds.
fn errors(timeline: &mut Timeline, from: i64, delays: &[i64]) -> Vec<i64> {
    let frames = (from..).zip(delays);
    frames
        .map(|(frame, delay)| {
            let timestamp = 4_294_960_000_u32.wrapping_add(frame as u32 * 9_000);
            let media = timeline.arrived(ms(frame * 100 + delay), timestamp, NO_TIME);
            let error = timeline.captured(media).nanos_since(ms(frame * 100));
            (error as f64 / 1e6).round() as i64
        })
        .collect()
}

/// The delay of the fastest picture of late: the camera's own and that of the way.
fn delay(timeline: &Timeline) -> Duration {
    let (media, at) = timeline.newest.unwrap();
    let fastest = timeline.arrivals.fastest(at.as_nanos()).unwrap();
    Instant::from_nanos(media + fastest).since(timeline.captured(media))
}

fn report(frame: i64, clock_ahead_ms: i64) -> SenderReport {
    let timestamp = 4_294_960_000_u32.wrapping_add(frame as u32 * 9_000);
    SenderReport { wall: ms(frame * 100 + clock_ahead_ms), timestamp }
}

#[test]
fn a_picture_that_waited_is_as_old_as_it_is() {
    let mut timeline = Timeline::new(90_000, WAY);
    let errors = errors(&mut timeline, 0, &[5, 5, 80, 5, 40, 5, 205, 105, 5]);
    assert_eq!(errors, [4; 9], "but for what the fastest takes, over the wrap of the timestamps");
    assert_eq!(delay(&timeline), WAY);
}

#[test]
fn pictures_that_came_in_one_burst_are_known_to_be_old_once_the_last_has_come() {
    for step in [40, 100, 200, 1_000] {
        let mut timeline = Timeline::new(1_000, WAY);
        for picture in 0..20 {
            timeline.arrived(ms(20 * step), (picture * step) as u32, NO_TIME);
        }
        let media = timeline.arrived(ms(20 * step + 3), (20 * step) as u32, NO_TIME);
        assert_eq!(timeline.captured(media), ms(20 * step + 2), "{step}");
        assert_eq!(timeline.captured(0), ms(2), "the first of them, {step}");
        assert_eq!(timeline.clock(), CaptureClock::Timestamps);
    }
}

#[test]
fn a_camera_that_says_its_time_is_believed_if_its_clock_is_right() {
    let off = |behind_millis| CaptureClock::Unset(NotSet::Off { behind_millis });
    for (clock_ahead_ms, expected, clock) in [
        (0, 0, CaptureClock::Camera),
        (20, 20, CaptureClock::Camera),
        (-30, -30, CaptureClock::Camera),
        (250, 250, CaptureClock::Camera),
        (340, 300, CaptureClock::Camera),
        (3_600_000, 299, off(-3_599_700)),
        (-5_000, 299, off(5_300)),
        (500, 299, off(-200)),
        // No encoder takes that long.
        (-1_200, 299, off(1_500)),
    ] {
        let mut timeline = Timeline::new(90_000, WAY);
        errors(&mut timeline, 0, &[300; 5]);
        timeline.reported(ms(420), ms(420), report(4, clock_ahead_ms));
        let misjudged = errors(&mut timeline, 5, &[300, 450]);
        assert_eq!(misjudged, [expected; 2], "{clock_ahead_ms} ms ahead");
        assert_eq!(timeline.clock(), clock, "{clock_ahead_ms} ms ahead");
    }
}

#[test]
fn data_before_the_first_picture_is_not_lost() {
    let mut timeline = Timeline::new(90_000, WAY);
    timeline.reported(ms(210), ms(210), report(2, 0));
    timeline.reported(ms(310), ms(310), report(3, 0));
    assert_eq!(errors(&mut timeline, 5, &[300, 450, 300]), [0; 3]);
}

#[test]
fn our_clock_of_the_day_may_be_set_meanwhile() {
    let mut timeline = Timeline::new(90_000, WAY);
    errors(&mut timeline, 0, &[300; 5]);
    // Both clocks were set an hour ahead after we started: ours and the camera's.
    let hour = 3_600_000;
    timeline.reported(ms(420), ms(420 + hour), report(4, hour));
    assert_eq!(errors(&mut timeline, 5, &[300]), [0]);
    assert_eq!(delay(&timeline), Duration::from_millis(300));
}

#[test]
fn clocks_that_drift_apart_are_followed() {
    let mut timeline = Timeline::new(90_000, WAY);
    // 200 parts in a million over an hour, which are 720 ms.
    let delays: Vec<i64> = (0..36_000).map(|frame| 5 + frame / 50).collect();
    let errors = errors(&mut timeline, 0, &delays);
    let worst = errors.iter().zip(&delays).map(|(error, delay)| (delay - error).abs()).max();
    assert!(worst <= Some(8), "{worst:?}");
}

#[test]
fn a_count_that_begins_anew_is_followed() {
    let mut timeline = Timeline::new(90_000, WAY);
    errors(&mut timeline, 0, &[5; 5]);
    for (step, expected) in [(1_u32 << 30, 500), (9_000, 600), (3 << 30, 700), (9_000, 800)] {
        let (last, _) = timeline.last.unwrap();
        let media = timeline.arrived(ms(expected + 5), last.wrapping_add(step), NO_TIME);
        let captured = timeline.captured(media).nanos_since(ms(expected));
        assert!((0..=6_000_000).contains(&captured), "{captured}");
    }
}

#[test]
fn the_least_round_trip_is_taken() {
    let mut timeline = Timeline::new(90_000, Duration::from_millis(778));
    timeline.way_is_at_most(WAY);
    timeline.way_is_at_most(Duration::from_millis(200));
    assert_eq!(errors(&mut timeline, 0, &[5; 3]), [4; 3]);
}

/// A camera in virtual time, with a clock of its own.
struct Camera {
    per_second: f64,
    seconds: i64,
    /// The media time that it puts on the picture of that number, which is captured at that time, in nanoseconds.
    stamps: Box<dyn FnMut(i64, i64) -> i64>,
    /// How long a picture of that time takes to come, but for up to [`JITTER`], and how much of that it is on its way in.
    delay: Box<dyn Fn(i64) -> (i64, i64)>,
    /// The time of day by its clock at that time, if it sends reports, once in 5 s.
    clock: Option<Box<dyn Fn(i64) -> i64>>,
}

/// The findings about a camera.
#[derive(Debug)]
struct Seen {
    /// When a picture was captured, and by how much that is misjudged, in nanoseconds: positive for too new.
    errors: Vec<(i64, i64)>,
    /// By which clocks, with the times from which.
    clocks: Vec<(i64, CaptureClock)>,
}

const JITTER: i64 = 20 * MILLI;

impl Camera {
    fn new(stamps: impl FnMut(i64, i64) -> i64 + 'static) -> Self {
        let (stamps, delay) = (Box::new(stamps), Box::new(|_| (5 * MILLI, MILLI)));
        Self { per_second: 25.0, seconds: 90, stamps, delay, clock: None }
    }

    fn with_clock(mut self, clock: impl Fn(i64) -> i64 + 'static) -> Self {
        self.clock = Some(Box::new(clock));
        self
    }

    fn seen(mut self) -> Seen {
        let mut timeline = Timeline::new(90_000, WAY);
        let mut seen = Seen { errors: Vec::new(), clocks: Vec::new() };
        let (mut random, mut came, mut reported) = (7_u64, 0, 0);
        let at = |nanos: i64| Instant::from_nanos(START * MILLI + 123_456_789 + nanos);
        for picture in 0.. {
            let captured = (picture as f64 / self.per_second * 1e9) as i64;
            if captured > self.seconds * SECOND {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let jitter = (random >> 33) as i64 % JITTER;
            let (delay, busy) = (self.delay)(captured);
            came = (captured + delay + jitter).max(came);
            let stamp = (self.stamps)(picture, captured);
            let timestamp = |stamp: i64| (i128::from(stamp) * 90_000 / 1_000_000_000) as u32;
            let busy = Duration::from_nanos(busy as u64);
            let media = timeline.arrived(at(came), timestamp(stamp), busy);
            seen.errors.push((captured, timeline.captured(media).nanos_since(at(captured))));
            if let Some(clock) = &self.clock
                && captured >= reported
            {
                reported = captured + 4_937 * MILLI;
                let wall = at(clock(captured));
                timeline.reported(
                    at(came),
                    at(came),
                    SenderReport { wall, timestamp: timestamp(stamp) },
                );
            }
            if seen.clocks.last().is_none_or(|(_, clock)| *clock != timeline.clock()) {
                seen.clocks.push((captured, timeline.clock()));
            }
        }
        seen
    }
}

impl Seen {
    /// The largest error from that second on, in milliseconds.
    fn worst(&self, from: i64) -> i64 {
        let of_late = self.errors.iter().filter(|(at, _)| *at >= from * SECOND);
        of_late.map(|(_, error)| error.abs() / MILLI).max().expect("there are some")
    }

    fn last(&self) -> CaptureClock {
        self.clocks.last().expect("there is one").1
    }
}

/// The timestamps of a clock that is right.
fn right(_: i64, at: i64) -> i64 {
    at
}

#[test]
fn timestamps_of_a_wrong_rate_are_corrected() {
    for percent in [-20.0, -16.0, -10.0, -4.0, -2.0, -1.0, 1.0, 2.0, 4.0, 10.0, 16.0, 20.0] {
        for per_second in [5.0, 15.0, 25.0] {
            let rate = 1.0 + percent / 100.0;
            let mut camera = Camera::new(move |_, at| (at as f64 * rate) as i64);
            camera.per_second = per_second;
            let seen = camera.seen();
            let case = format!("{percent} % at {per_second} a second: {:?}", seen.clocks);
            assert!(seen.worst(0) <= 900, "{} {case}", seen.worst(0));
            assert!(seen.worst(6) <= 200, "{} {case}", seen.worst(6));
            assert!(seen.worst(35) <= 100, "{} {case}", seen.worst(35));
            let CaptureClock::Rated { permille } = seen.last() else { panic!("{case}") };
            assert!((f64::from(permille) - percent * 10.0).abs() <= 5.0, "{permille} {case}");
        }
    }
    for percent in [-0.3, -0.05, 0.0, 0.05, 0.3] {
        let rate = 1.0 + percent / 100.0;
        let seen = Camera::new(move |_, at| (at as f64 * rate) as i64).seen();
        assert_eq!(seen.clocks.len(), 1, "{percent}: {:?}", seen.clocks);
        assert!(seen.worst(0) <= 120, "{percent}: {}", seen.worst(0));
    }
    // Each picture is stamped as the next of 25 a second, and 21 come.
    let mut camera = Camera::new(|picture, _| picture * 40 * MILLI);
    camera.per_second = 21.0;
    let seen = camera.seen();
    assert!(seen.worst(6) <= 100, "{seen:?}");
    let CaptureClock::Rated { permille } = seen.last() else { panic!("{:?}", seen.clocks) };
    assert!((-165..=-155).contains(&permille), "{permille}");
    // The rate changes, as where a camera takes fewer pictures by night.
    let mut stamp = 0;
    let seen = Camera::new(move |_, at| {
        stamp += if at < 40 * SECOND { 40 * MILLI } else { 36 * MILLI };
        stamp
    })
    .seen();
    assert!(seen.worst(0) <= 600 && seen.worst(50) <= 100, "{:?}", seen.clocks);
    let CaptureClock::Rated { permille } = seen.last() else { panic!("{:?}", seen.clocks) };
    assert!((-105..=-95).contains(&permille), "{permille}");
}

#[test]
fn timestamps_that_are_no_clock_are_not_believed() {
    type Made = Box<dyn Fn() -> Camera>;
    let cases: [(&str, Made, NoClock); 5] = [
        ("they stand still", Box::new(|| Camera::new(|_, _| 0)), NoClock::Rate),
        ("they run twice as fast", Box::new(|| Camera::new(|_, at| 2 * at)), NoClock::Rate),
        ("they run half as fast", Box::new(|| Camera::new(|_, at| at / 2)), NoClock::Rate),
        (
            "they go back again and again",
            Box::new(|| Camera::new(|_, at| at - at / (3 * SECOND) * 2 * SECOND)),
            NoClock::Leaps,
        ),
        (
            "they are any number",
            Box::new(|| {
                let mut random = 1_u64;
                Camera::new(move |_, _| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 24) as i64
                })
            }),
            NoClock::Leaps,
        ),
    ];
    for (name, camera, why) in cases {
        let seen = camera().seen();
        assert_eq!(seen.last(), CaptureClock::Arrival(why), "{name}: {:?}", seen.clocks);
        assert!(seen.worst(20) <= 60, "{name}: {}", seen.worst(20));
        assert!(seen.last().to_string().contains("those of arrival"));
    }
}

#[test]
fn a_step_of_the_timestamps_is_taken_out_and_one_that_is_wrong_moves_no_other() {
    for per_second in [5.0, 25.0] {
        for by in [-20_000, -10_000, -5_000, -2_000, -1_000, 1_000, 5_000, 20_000, 40_000_000] {
            for is_glitch in [false, true] {
                let mut is_over = false;
                let mut camera = Camera::new(move |_, at| {
                    let is_wrong = at >= 30 * SECOND && !(is_glitch && is_over);
                    is_over |= is_wrong;
                    at + 50_000 * SECOND + if is_wrong { by * MILLI } else { 0 }
                });
                camera.per_second = per_second;
                let seen = camera.seen();
                let case = format!("{by} ms, {is_glitch}, {per_second}: {:?}", seen.clocks);
                // One that stays is known by the second picture.
                assert!(seen.worst(0) <= 60, "{} {case}", seen.worst(0));
                assert_eq!(seen.clocks.len(), 1, "{case}");
            }
        }
    }
}

#[test]
fn a_clock_that_returns_is_believed_again() {
    // A count of pictures that are left out for a while, and stamps that stand still for one.
    let seen = Camera::new(|_, at| match at / SECOND {
        0..20 => at,
        20..30 => 20 * SECOND,
        _ => at - 10 * SECOND,
    })
    .seen();
    let clocks: Vec<CaptureClock> = seen.clocks.iter().map(|(_, clock)| *clock).collect();
    assert!(clocks.contains(&CaptureClock::Arrival(NoClock::Rate)), "{clocks:?}");
    assert_eq!(clocks.last(), Some(&CaptureClock::Timestamps), "{clocks:?}");
    assert!(seen.worst(25) <= 100, "{}", seen.worst(25));
}

#[test]
fn a_queue_on_a_full_line_is_no_wrong_rate() {
    let camera = || {
        let mut camera = Camera::new(right);
        // From 20 s on a line is full, and pictures wait longer and longer, up to 2 s, until it is free again at 70 s.
        camera.delay = Box::new(|at| match at / SECOND {
            0..20 => (5 * MILLI, MILLI),
            20..70 => (5 * MILLI + ((at - 20 * SECOND) / 10).min(2 * SECOND), 40 * MILLI),
            _ => (5 * MILLI, MILLI),
        });
        camera
    };
    let seen = camera().seen();
    let clocks: Vec<_> = seen.clocks.iter().map(|(_, clock)| *clock).collect();
    assert_eq!(clocks, [CaptureClock::Timestamps, CaptureClock::Full, CaptureClock::Timestamps]);
    let (full, free) = (seen.clocks[1].0 / SECOND, seen.clocks[2].0 / SECOND);
    assert!((23..30).contains(&full) && (70..90).contains(&free), "{full} {free}");
    let (before, after) = (seen.errors.iter().filter(|(at, _)| *at < 45 * SECOND), seen.worst(75));
    let before = before.map(|(_, error)| error.abs() / MILLI).max();
    assert!(before <= Some(60) && after <= 60, "{before:?} {after}");
    // A clock of the day that agreed before tells how long pictures wait, for as long as they do.
    let mut camera = camera().with_clock(|at| at);
    camera.seconds = 69;
    let seen = camera.seen();
    assert!(seen.worst(0) <= 60 && seen.last() == CaptureClock::Camera, "{:?}", seen.clocks);
    assert!(seen.clocks.iter().all(|(_, clock)| *clock != CaptureClock::Full), "{:?}", seen.clocks);
}

#[test]
fn a_clock_that_is_set_behind_a_full_line_is_not_believed() {
    let mut camera = Camera::new(right).with_clock(|at| at - at / (30 * SECOND) * 5 * SECOND);
    camera.delay = Box::new(|at| (5 * MILLI + (at / 10).min(2 * SECOND), 40 * MILLI));
    let seen = camera.seen();
    assert!(seen.errors.iter().all(|(_, error)| *error > -100 * MILLI), "none is older than it is");
    assert_eq!(seen.last(), CaptureClock::Full);
}

#[test]
fn a_line_that_pauses_makes_pictures_old_and_no_clock_wrong() {
    for pause in [1, 3, 6, 10] {
        let mut camera = Camera::new(right);
        camera.delay = Box::new(move |at| {
            let over = (30 + pause) * SECOND;
            let waits = if (30 * SECOND..over).contains(&at) { over - at } else { 0 };
            (5 * MILLI + waits, MILLI)
        });
        let seen = camera.seen();
        assert_eq!(seen.clocks.len(), 1, "{pause} s: {:?}", seen.clocks);
        assert!(seen.worst(0) <= 60, "{pause} s: {}", seen.worst(0));
    }
}

#[test]
fn pictures_that_refer_to_later_ones_are_no_steps() {
    for per_second in [5, 25] {
        let period = SECOND / per_second;
        // A picture, and then the two before it.
        let mut camera =
            Camera::new(move |picture, _| (picture + [2, -1, -1][picture as usize % 3]) * period);
        camera.per_second = per_second as f64;
        let seen = camera.seen();
        assert_eq!(seen.clocks, [(0, CaptureClock::Timestamps)], "{per_second}");
    }
}

#[test]
fn a_count_that_falls_behind_over_a_free_line_is_not_believed() {
    // Timestamps count pictures, of which those of 1.5 s were left out.
    let seen = Camera::new(|_, at| match at {
        0..20_000_000_000 => at,
        20_000_000_000..21_500_000_000 => 20 * SECOND,
        _ => at - 1_500 * MILLI,
    })
    .seen();
    let clocks: Vec<CaptureClock> = seen.clocks.iter().map(|(_, clock)| *clock).collect();
    let ends = (clocks[0], clocks[clocks.len() - 1]);
    assert_eq!(ends, (CaptureClock::Timestamps, CaptureClock::Timestamps));
    assert!(clocks.contains(&CaptureClock::Arrival(NoClock::Behind)), "{clocks:?}");
    assert!(seen.worst(28) <= 60, "{}", seen.worst(28));
}

#[test]
fn reports_that_cannot_be_true_are_not_believed_and_said() {
    type Clock = Box<dyn Fn(i64) -> i64>;
    let off = |behind_millis| Some(NotSet::Off { behind_millis });
    let cases: [(&str, Clock, Option<NotSet>); 7] = [
        ("right", Box::new(|at| at), None),
        ("400 ms behind, which an encoder may take", Box::new(|at| at - 400 * MILLI), None),
        ("1.2 s slow", Box::new(|at| at - 1_200 * MILLI), off(1_205)),
        ("an hour ahead", Box::new(|at| at + 3_600 * SECOND), off(-3_599_995)),
        (
            "in whole seconds",
            Box::new(|at| (at + 123_456_789) / SECOND * SECOND - 123_456_789),
            Some(NotSet::WholeSeconds),
        ),
        ("in hundredths of a second", Box::new(|at| at / (SECOND / 100) * (SECOND / 100)), None),
        ("wanders", Box::new(|at| at - at / (4 * SECOND) % 4 * 120 * MILLI), Some(NotSet::Wanders)),
    ];
    for (name, clock, why) in cases {
        let seen = Camera::new(right).with_clock(clock).seen();
        match (seen.last(), why) {
            (CaptureClock::Camera, None) => {}
            (
                CaptureClock::Unset(NotSet::Off { behind_millis }),
                Some(NotSet::Off { behind_millis: expected }),
            ) => {
                assert!((behind_millis - expected).abs() <= 20, "{name}: {behind_millis}");
            }
            (CaptureClock::Unset(found), Some(expected)) if found == expected => {}
            other => panic!("{name}: {other:?} {:?}", seen.clocks),
        }
        // One that may be true is off by no more than a camera may take.
        let most = if why.is_none() || why == Some(NotSet::Wanders) { 500 } else { 60 };
        assert!(seen.worst(0) <= most, "{name}: {}", seen.worst(0));
    }
}

proptest::proptest! {
    #[test]
    fn any_timestamps_and_reports_are_taken(
        steps in proptest::collection::vec((0_u32.., 0_i64..3_000, proptest::bool::ANY), 1..200)
    ) {
        let mut timeline = Timeline::new(90_000, WAY);
        let mut now = 0;
        for (timestamp, passed, is_report) in steps {
            now += passed;
            if is_report {
                let wall = Instant::from_nanos(i64::from(timestamp) * SECOND);
                timeline.reported(ms(now), ms(now), SenderReport { wall, timestamp });
            } else {
                let media = timeline.arrived(ms(now), timestamp, NO_TIME);
                // The newest picture is never from the future.
                let ahead = timeline.captured(media).nanos_since(ms(now));
                proptest::prop_assert!(ahead <= 0, "{ahead}");
            }
            let _ = timeline.clock().to_string();
        }
    }
}
