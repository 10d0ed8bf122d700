use std::time::Duration;

use tidegate_message::{DropReason, Instant, transfer::TransferId};

use super::*;
use crate::{MINOR, Record};

/// The reports of `testdata/reports-1.2.txt`, as they are meant.
fn reports() -> Vec<CameraReport> {
    let infeasible = |latency_at_accuracy, accuracy_at_latency, frames_per_second| {
        Reported::Infeasible { latency_at_accuracy, accuracy_at_latency, frames_per_second }
    };
    let dropped = |why, count, span| Reported::FramesDropped { why: Some(why), count, span };
    let capacity = Some(2_500_000);
    let unkept = "no setting keeps 95 % within 100 ms";
    let latency = Some(Duration::from_millis(143));
    [
        (infeasible(latency, Some(0.9), Some(12.5)), capacity, unkept),
        (infeasible(None, None, None), None, unkept),
        (Reported::Feasible, capacity, "both bounds are kept again"),
        (Reported::KnobsChanged, capacity, "the link has 2.5 MB/s"),
        (dropped(DropReason::Overtaken, 1, Duration::ZERO), None, "overtaken"),
        (dropped(DropReason::LogWrapped, 25, Duration::from_millis(2500)), None, "log wrapped"),
        (dropped(DropReason::Damaged, 0, Duration::ZERO), None, "damaged"),
        (Reported::ControllerFailed, None, "controller budget failed: frames travel as captured"),
        (
            Reported::TableMissing,
            capacity,
            "no table of profile jpeg suits 640x360: frames travel as captured",
        ),
        (Reported::Failed, None, "it went wrong"),
        (Reported::Idle, None, ""),
        (Reported::NoFrames, None, "the source gives no frames"),
        (Reported::CaptureClock, None, "its timestamps leap about"),
        (Reported::Other(900), None, ""),
    ]
    .map(|(what, capacity_bytes_per_second, text)| CameraReport {
        transfer: TransferId(if what == Reported::NoFrames { 0 } else { 0x0102_0304_0506_0708 }),
        at: Instant::from_nanos(1_700_000_000_123_456_789),
        capacity_bytes_per_second,
        text: text.to_owned(),
        what,
    })
    .into()
}

/// The bytes that a node of version 1.2 writes for them.
fn of_version_1_2() -> Vec<Vec<u8>> {
    let golden = include_str!("../../testdata/reports-1.2.txt");
    let bytes = |line: &str| {
        let (_, digits) = line.split_once(' ').expect("a name and bytes");
        let digits = digits.as_bytes().chunks(2);
        digits.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    };
    golden.lines().map(bytes).collect()
}

#[test]
fn an_older_camera_is_understood() {
    let (meant, written) = (reports(), of_version_1_2());
    assert_eq!(meant.len(), written.len());
    for (meant, written) in meant.into_iter().zip(written) {
        assert_eq!(Record::decode(&written), Ok(Some(meant.into())));
    }
}

#[test]
fn an_older_node_is_written_what_it_reads() {
    for (report, golden) in reports().into_iter().zip(of_version_1_2()) {
        for minor in 0..TYPED_SINCE {
            let mut bytes = BytesMut::new();
            Record::from(report.clone()).encode_for(minor, &mut bytes);
            assert_eq!(&bytes[..], golden, "{report:?} to 1.{minor}");
        }
    }
}

#[test]
fn a_newer_node_is_written_typed_fields() {
    for report in reports() {
        for minor in [MINOR, 200] {
            let mut bytes = BytesMut::new();
            Record::from(report.clone()).encode_for(minor, &mut bytes);
            assert_eq!(bytes[0], 34);
            assert_eq!(Record::decode(&bytes), Ok(Some(report.clone().into())));
        }
    }
}

#[test]
fn each_reason_comes_through_both_forms_and_an_unknown_one_is_none() {
    let mut report = reports().swap_remove(4);
    for why in DropReason::ALL.map(Some).into_iter().chain([None]) {
        report.what = Reported::FramesDropped { why, count: 1, span: Duration::ZERO };
        for minor in [0, 2, MINOR] {
            let mut bytes = BytesMut::new();
            Record::from(report.clone()).encode_for(minor, &mut bytes);
            assert_eq!(Record::decode(&bytes), Ok(Some(report.clone().into())), "to 1.{minor}");
        }
    }
    // Of a newer camera.
    let mut bytes = Record::from(report.clone()).to_bytes().to_vec();
    let at = bytes.len() - 17; // before a count and a span
    bytes[at] = 99;
    assert_eq!(Record::decode(&bytes), Ok(Some(report.into())));
}

#[test]
fn numbers_of_older_cameras_that_mean_nothing_are_read_as_before() {
    let numbered = |numbers: &[(&str, f64)]| {
        let mut bytes = BytesMut::from(&of_version_1_2()[4][..]);
        bytes.truncate(bytes.len() - (1 + 2 + WHY_BYTES + 8));
        u8::try_from(numbers.len()).unwrap().put(&mut bytes);
        for (name, value) in numbers {
            crate::code::put_text(name, 64, &mut bytes);
            value.put(&mut bytes);
        }
        match Record::decode(&bytes).unwrap().unwrap() {
            Record::CameraReport(CameraReport {
                what: Reported::FramesDropped { why, count, span },
                ..
            }) => (why, count, span),
            other => panic!("{other:?}"),
        }
    };
    const WHY_BYTES: usize = "why".len();
    for (numbers, expected) in [
        (&[][..], (None, 1, Duration::ZERO)),
        (&[("why", 10.0)], (None, 1, Duration::ZERO)),
        (&[("why", -1.0)], (Some(DropReason::Overtaken), 1, Duration::ZERO)),
        (&[("count", -3.0), ("seconds", -1.0)], (None, 0, Duration::ZERO)),
        (&[("count", 1e300), ("seconds", 1e300)], (None, u64::MAX, Duration::ZERO)),
        (&[("new", 1.0), ("why", 1.0)], (Some(DropReason::Late), 1, Duration::ZERO)),
    ] {
        assert_eq!(numbered(numbers), expected, "{numbers:?}");
    }
}

#[test]
fn more_numbers_than_a_report_may_have_are_refused_by_name() {
    let mut bytes = of_version_1_2()[4].clone();
    let at = bytes.len() - (1 + 2 + "why".len() + 8);
    bytes[at] = 33;
    let refused = Record::decode(&bytes).unwrap_err();
    assert_eq!(refused.to_string(), "numbers of 33 exceeds the limit of 32");
}
