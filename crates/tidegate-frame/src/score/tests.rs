use proptest::prelude::*;

use tidegate_message::{FrameSize, Rect};

use super::*;

fn at(x1: f64, y1: f64, x2: f64, y2: f64) -> Detection {
    labelled(x1, y1, x2, y2, "person")
}

fn labelled(x1: f64, y1: f64, x2: f64, y2: f64, label: &str) -> Detection {
    Detection { rect: Rect::new(x1, y1, x2, y2).unwrap(), score: 1.0, label: label.into() }
}

#[test]
fn iou_of_known_pairs() {
    for (a, b, expected) in [
        ([0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 10.0], 1.0),
        ([0.0, 0.0, 10.0, 10.0], [10.0, 0.0, 20.0, 10.0], 0.0), // edges that only touch
        ([0.0, 0.0, 10.0, 10.0], [5.0, 0.0, 15.0, 10.0], 50.0 / 150.0),
        ([0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 5.0], 0.5),
        ([0.0, 0.0, 4.0, 4.0], [1.0, 1.0, 3.0, 3.0], 0.25),
    ] {
        let rect = |c: [f64; 4]| Rect::new(c[0], c[1], c[2], c[3]).unwrap();
        assert_eq!(rect(a).iou(rect(b)), expected, "{a:?} {b:?}");
    }
}

#[test]
fn corners_that_span_nothing_are_refused() {
    for [x1, y1, x2, y2] in [
        [0.0, 0.0, 0.0, 1.0],
        [2.0, 0.0, 1.0, 1.0],
        [0.0, f64::NAN, 1.0, 1.0],
        [0.0, 0.0, f64::INFINITY, 1.0],
        [-2e6, 0.0, 1.0, 1.0],
    ] {
        assert!(Rect::new(x1, y1, x2, y2).is_err(), "{x1} {y1} {x2} {y2}");
    }
    assert!(Rect::new(-5.0, -5.0, 1.0, 1.0).is_ok(), "a box may reach out of its frame");
}

/// Worked by hand: each row is one frame and what it counts.
#[test]
fn counts_of_known_frames() {
    let (a, b) = (at(0.0, 0.0, 10.0, 10.0), at(20.0, 0.0, 30.0, 10.0));
    // Shifted by a fifth: IoU 8/12. Shifted by a third: IoU 0.5 at 10/3, just below at 4.
    let (near, nearer, far) =
        (at(2.0, 0.0, 12.0, 10.0), at(1.0, 0.0, 11.0, 10.0), at(4.0, 0.0, 14.0, 10.0));
    let car = labelled(0.0, 0.0, 10.0, 10.0, "car");
    for (note, truth, found, labels, (tp, fp, fn_)) in [
        ("nothing and nothing", vec![], vec![], Labels::Same, (0, 0, 0)),
        ("all missed", vec![a.clone(), b.clone()], vec![], Labels::Same, (0, 0, 2)),
        ("all invented", vec![], vec![a.clone()], Labels::Same, (0, 1, 0)),
        ("one of two", vec![a.clone(), b.clone()], vec![near.clone()], Labels::Same, (1, 0, 1)),
        ("below the least overlap", vec![a.clone()], vec![far], Labels::Same, (0, 1, 1)),
        (
            "two finds of one thing count once",
            vec![a.clone()],
            vec![near.clone(), nearer.clone()],
            Labels::Same,
            (1, 1, 0),
        ),
        ("labels differ", vec![a.clone()], vec![car.clone()], Labels::Same, (0, 1, 1)),
        ("labels are not looked at", vec![a], vec![car], Labels::Any, (1, 0, 0)),
    ] {
        let counts = Counts::of(&truth, &found, labels);
        let expected = Counts { true_positives: tp, false_positives: fp, false_negatives: fn_ };
        assert_eq!(counts, expected, "{note}");
    }
}

#[test]
fn the_best_pair_is_taken_first() {
    // The first truth overlaps both finds, and the find it overlaps best is the only one the second truth could have.
    let truth = [at(0.0, 0.0, 10.0, 10.0), at(3.0, 0.0, 13.0, 10.0)];
    let found = [at(2.5, 0.0, 12.5, 10.0), at(-1.0, 0.0, 9.0, 10.0)];
    let mut pairs = matches(&truth, &found, Labels::Same);
    pairs.sort_unstable();
    assert_eq!(pairs, [(0, 1), (1, 0)]);
}

#[test]
fn f1_of_known_counts() {
    for (tp, fp, fn_, precision, recall, f1) in [
        (0, 0, 0, 1.0, 1.0, 1.0),
        (0, 0, 3, 1.0, 0.0, 0.0),
        (0, 3, 0, 0.0, 1.0, 0.0),
        (6, 2, 4, 0.75, 0.6, 12.0 / 18.0),
    ] {
        let counts = Counts { true_positives: tp, false_positives: fp, false_negatives: fn_ };
        assert_eq!((counts.precision(), counts.recall(), counts.f1()), (precision, recall, f1));
    }
}

#[test]
fn f1_is_pooled_over_frames_not_averaged() {
    let thing = at(0.0, 0.0, 10.0, 10.0);
    let row: Vec<_> =
        (0..9).map(|i| at(20.0 * f64::from(i), 0.0, 20.0 * f64::from(i) + 10.0, 10.0)).collect();
    let mut pool = Pool::new(Labels::Same);
    pool.push_stand_in(&row, &row);
    pool.push_stand_in(std::slice::from_ref(&thing), &[]);
    let report = pool.report(1);
    // 9 of 10 found, none invented; the mean of the frames' F1 would be 0.5.
    assert_eq!(report.normalized, Some(18.0 / 19.0));
}

#[test]
fn adapted_f1_is_normalized_by_the_originals() {
    let (a, b) = (at(0.0, 0.0, 10.0, 10.0), at(20.0, 0.0, 30.0, 10.0));
    let c = at(40.0, 0.0, 50.0, 10.0);
    let mut pool = Pool::new(Labels::Same);
    for _ in 0..20 {
        pool.push(
            &[a.clone(), b.clone(), c.clone()],
            &[a.clone(), b.clone()],
            std::slice::from_ref(&b),
        );
    }
    let report = pool.report(7);
    assert_eq!(report.original.f1(), 0.8);
    assert_eq!(report.adapted.f1(), 0.5);
    assert_eq!(report.normalized, Some(0.5 / 0.8));
    // Every frame is alike, so resampling cannot move the value.
    let interval = report.interval.unwrap();
    assert!((interval.low - 0.625).abs() < 1e-12 && (interval.high - 0.625).abs() < 1e-12);
}

#[test]
fn too_few_boxes_carry_no_verdict() {
    let thing = [at(0.0, 0.0, 10.0, 10.0)];
    let pool = |frames: usize, found: &[Detection]| {
        let mut pool = Pool::new(Labels::Same);
        (0..frames).for_each(|_| pool.push_stand_in(&thing, found));
        pool.report(1)
    };
    assert_eq!(pool(49, &thing).verdict(0.9), Verdict::TooFewBoxes { boxes: 49, needed: 50 });
    assert_eq!(pool(50, &thing).verdict(0.9), Verdict::Met { normalized: 1.0 });
    assert_eq!(pool(50, &[]).verdict(0.9), Verdict::Missed { normalized: 0.0, bound: 0.9 });

    let mut blind = Pool::new(Labels::Same);
    (0..50).for_each(|_| blind.push(&thing, &[], &[]));
    assert_eq!(blind.report(1).verdict(0.9), Verdict::DetectorFindsNothing);
}

#[test]
fn a_tie_with_the_bound_keeps_it() {
    let thing = [at(0.0, 0.0, 10.0, 10.0)];
    let mut pool = Pool::new(Labels::Same);
    (0..100).for_each(|i| pool.push_stand_in(&thing, if i < 90 { &thing } else { &[] }));
    let report = pool.report(1);
    let normalized = report.normalized.unwrap(); // 180 / 190 = 0.947
    assert_eq!(report.verdict(0.95), Verdict::Met { normalized });
    assert_eq!(report.verdict(0.96), Verdict::Missed { normalized, bound: 0.96 });
}

#[test]
fn the_interval_is_wider_for_frames_that_fail_in_a_row() {
    let thing = [at(0.0, 0.0, 10.0, 10.0)];
    let width = |fails: &dyn Fn(usize) -> bool| {
        let mut pool = Pool::new(Labels::Same);
        (0..200).for_each(|i| pool.push_stand_in(&thing, if fails(i) { &[] } else { &thing }));
        let interval = pool.report(3).interval.unwrap();
        interval.high - interval.low
    };
    let scattered = width(&|i| i % 5 == 0);
    let in_a_row = width(&|i| i < 40);
    assert!(in_a_row > 1.5 * scattered, "{in_a_row} against {scattered}");
}

fn boxes() -> impl Strategy<Value = Vec<Detection>> {
    let one = (0.0..200.0, 0.0..200.0, 1.0..80.0, 1.0..80.0, prop::bool::ANY);
    let one = one.prop_map(|(x, y, w, h, person)| {
        labelled(x, y, x + w, y + h, if person { "person" } else { "car" })
    });
    prop::collection::vec(one, 0..8)
}

proptest! {
    #[test]
    fn matching_is_exclusive_and_never_below_the_least_overlap(truth in boxes(), found in boxes()) {
        let pairs = matches(&truth, &found, Labels::Same);
        for (i, &(t, f)) in pairs.iter().enumerate() {
            prop_assert!(truth[t].rect.iou(found[f].rect) >= IOU_MIN);
            prop_assert_eq!(&truth[t].label, &found[f].label);
            prop_assert!(pairs[..i].iter().all(|&(t2, f2)| t2 != t && f2 != f));
        }
        // Maximal: no pair that is left could still be made.
        for (t, known) in truth.iter().enumerate() {
            for (f, seen) in found.iter().enumerate() {
                let free = pairs.iter().all(|&(t2, f2)| t2 != t && f2 != f);
                let fits = known.rect.iou(seen.rect) >= IOU_MIN && known.label == seen.label;
                prop_assert!(!(free && fits), "pair {} {} was left", t, f);
            }
        }
    }

    #[test]
    fn the_order_of_boxes_changes_no_count(truth in boxes(), found in boxes()) {
        let reversed = |boxes: &[Detection]| boxes.iter().rev().cloned().collect::<Vec<_>>();
        prop_assert_eq!(
            Counts::of(&truth, &found, Labels::Any),
            Counts::of(&reversed(&truth), &reversed(&found), Labels::Any)
        );
    }

    #[test]
    fn a_detector_that_repeats_itself_scores_one(frames in prop::collection::vec(boxes(), 1..6)) {
        let mut pool = Pool::new(Labels::Same);
        frames.iter().for_each(|frame| pool.push_stand_in(frame, frame));
        prop_assert_eq!(pool.report(1).normalized, Some(1.0));
    }

    #[test]
    fn scaling_keeps_every_overlap(a in boxes(), b in boxes(), width in 16u16..4000, height in 16u16..4000) {
        let from = FrameSize { width: 1920, height: 1080 };
        let to = FrameSize { width, height };
        for (a, b) in a.iter().zip(&b) {
            let (before, after) = (a.rect.iou(b.rect), a.scaled(from, to).rect.iou(b.scaled(from, to).rect));
            prop_assert!((before - after).abs() < 1e-6, "{} became {}", before, after);
        }
    }

    #[test]
    fn the_interval_spans_the_value(frames in prop::collection::vec((boxes(), boxes()), 2..12), seed: u64) {
        let mut pool = Pool::new(Labels::Same);
        frames.iter().for_each(|(truth, found)| pool.push_stand_in(truth, found));
        let report = pool.report(seed);
        if let (Some(interval), Some(normalized)) = (report.interval, report.normalized) {
            prop_assert!(0.0 <= interval.low && interval.low <= interval.high);
            prop_assert!(normalized >= 0.0);
            prop_assert_eq!(pool.report(seed), report);
        }
    }
}
