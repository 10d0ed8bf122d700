use super::*;

const START: i64 = 1_700_000_000_000;

fn ms(millis: i64) -> Instant {
    Instant::from_millis(START + millis)
}

#[test]
fn stamps_are_read_as_cameras_write_them() {
    let stamp = |nanos| Some(Stamp(Instant::from_nanos(nanos)));
    for (lead, expected) in [
        (
            "--b\r\nContent-Length: 5\r\nX-Timestamp: 1700000000.250000\r\n\r\n",
            stamp(1_700_000_000_250_000_000),
        ),
        ("x-timestamp:12.5\n\n", stamp(12_500_000_000)),
        ("X-Timestamp: 12\r\n\r\n", stamp(12_000_000_000)),
        // The head of a part whose picture was damaged is before that of this one.
        ("X-Timestamp: 1.5\r\n\r\n\r\n--b\r\nX-Timestamp: 2.5\r\n\r\n", stamp(2_500_000_000)),
        ("X-Timestamp: 1.1234567891\r\n", stamp(1_123_456_789)),
        ("X-Timestamp: 1700000000250\r\n", None),
        ("X-Timestamp: -1.5\r\n", None),
        ("X-Timestamp: 1.5e3\r\n", None),
        ("X-Timestamp: .\r\n", None),
        ("X-Timestamp: 1.\u{e9}\r\n", None),
        ("X-Timestamp\r\nDate: 1.5\r\n", None),
        ("", None),
    ] {
        assert_eq!(Stamp::of_part(lead.as_bytes()), expected, "{lead:?}");
    }
}

/// A camera in virtual time that gives a picture in 40 ms, over a line that is free for 10 s, then too narrow for 60 s: a queue of up to a
/// second grows at the camera. Returns by how much the age of each picture is said to be too little, in milliseconds, and the clock at the
/// end.
fn too_new(stamps: impl Fn(i64) -> Option<i64>) -> (Vec<i64>, CaptureClock) {
    let mut times = Times::new();
    let errors = (0..1_750).map(|picture| {
        let at = picture * 40;
        let (waited, busy) = match at {
            ..10_000 => (3, 5),
            _ => ((3 + (at - 10_000) / 10).min(1_000), 39),
        };
        let stamp = stamps(at).map(|millis| Stamp(Instant::from_millis(millis)));
        let came = ms(at + waited);
        let age = times.age(came, came, Duration::from_millis(busy), stamp);
        waited - age.as_millis() as i64
    });
    let errors = errors.collect();
    (errors, times.clock())
}

#[test]
fn stamps_of_the_day_tell_how_long_pictures_wait_behind_a_full_line() {
    let (errors, clock) = too_new(|at| Some(START + at + 7));
    assert!(errors.iter().all(|error| error.abs() <= 10), "{errors:?}");
    assert_eq!(clock, CaptureClock::Camera);
    // As well as those of a clock that counts from the start of the camera, until pictures before the queue are forgotten.
    let (errors, clock) = too_new(|at| Some(at + 77_777));
    assert!(errors[..900].iter().all(|error| error.abs() <= 10), "{errors:?}");
    assert_eq!(clock, CaptureClock::Full);
}

#[test]
fn pictures_without_stamps_behind_a_full_line_may_be_older_and_that_is_said() {
    let (errors, clock) = too_new(|_| None);
    assert!(errors[..250].iter().all(|error| *error <= 10) && errors[1_749] >= 1_000);
    assert_eq!(clock, CaptureClock::Full);
    assert!(!clock.is_sound() && clock.to_string().contains("for longer than is said"));
    // Whole seconds are no times of pictures, by 25 of them in each.
    assert_eq!(too_new(|at| Some((START + at) / 1_000 * 1_000)), (errors, clock));
}

#[test]
fn a_camera_whose_line_is_free_is_as_it_should_be() {
    let mut times = Times::new();
    assert_eq!(times.clock(), CaptureClock::Arrival(NoClock::None));
    for picture in 0..1_000 {
        let came = ms(picture * 40);
        assert_eq!(times.age(came, came, Duration::from_millis(20), None), Duration::ZERO);
        assert!(times.clock().is_sound());
    }
}

#[test]
fn a_stamp_makes_no_picture_newer_than_its_arrival() {
    let mut times = Times::new();
    let begun = Moment::now();
    let ahead = SourceClock::wall() + Duration::from_secs(3_600) + Duration::from_nanos(1);
    assert!(times.of_stream(begun, begun, Some(Stamp(ahead))) <= begun);
    let asked = begun.checked_sub(Duration::from_millis(1)).expect("machines run for longer");
    assert!(times.of_answer(asked, begun, Some(Stamp(ahead))) <= asked);
}
