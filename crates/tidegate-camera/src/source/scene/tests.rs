use tidegate_frame::knob::{FrameLimits, inspect};
use tidegate_message::FrameSize;

use super::*;

fn small(seed: u64) -> SceneSpec {
    let size = FrameSize { width: 480, height: 270 };
    SceneSpec { size, seed, seconds: 2, ..SceneSpec::default() }
}

fn film(spec: SceneSpec) -> Vec<Picture> {
    Street::new(spec).film(Rate::new(3.0).unwrap()).unwrap()
}

#[test]
fn the_same_description_gives_the_same_bytes() {
    let (first, again, other) = (film(small(1)), film(small(1)), film(small(2)));
    assert_eq!(first.len(), 6);
    for (a, b) in first.iter().zip(&again) {
        assert_eq!(a.jpeg, b.jpeg);
        assert_eq!(a.truth, b.truth);
    }
    assert_ne!(first[0].jpeg, other[0].jpeg);
}

#[test]
fn frames_have_the_size_that_was_asked_for_and_boxes_inside_them() {
    let spec = small(3);
    for picture in film(spec) {
        let info = inspect(&picture.jpeg, &FrameLimits::default()).unwrap();
        assert_eq!(info.size, spec.size);
        let truth = picture.truth.unwrap();
        assert!(!truth.is_empty());
        for detection in truth.iter() {
            let [x1, y1, x2, y2] = detection.rect.corners();
            assert!(x1 >= 0.0 && y1 >= 0.0 && x2 <= 480.0 && y2 <= 270.0, "{detection:?}");
            assert!(matches!(&*detection.label, "person" | "car"));
        }
    }
}

#[test]
fn an_empty_street_has_no_boxes_and_only_its_grain_moves() {
    let pictures = film(SceneSpec { people: 0, cars: 0, ..small(1) });
    assert!(pictures.iter().all(|p| p.truth.as_ref().unwrap().is_empty()));
    assert_ne!(pictures[0].jpeg, pictures[1].jpeg);
}

#[test]
fn drawing_a_frame_leaves_nothing_of_the_last_one() {
    let street = Street::new(small(5));
    let mut used = Camera::new(&street);
    for time in [0.1, 0.5, 0.9] {
        used.draw(time);
        used.draw(0.3);
        let mut fresh = Camera::new(&street);
        fresh.draw(0.3);
        assert_eq!(used.planes.y, fresh.planes.y, "after {time}");
        assert_eq!(used.planes.cb, fresh.planes.cb, "after {time}");
    }
}

#[test]
fn the_loop_has_no_seam() {
    let street = Street::new(small(4));
    let mut camera = Camera::new(&street);
    camera.draw(0.0);
    let start = camera.planes.y.clone();
    camera.draw(1.0 - 1e-5);
    let far = start.iter().zip(&camera.planes.y).filter(|(a, b)| a.abs_diff(**b) > 40).count();
    assert!(far < start.len() / 5000, "{far} of {} pixels jump", start.len());
}

/// A 1080p street: textured to 300 to 500 KB a frame.
#[test]
fn a_1080p_frame_has_300_to_500_kilobytes() {
    for seed in [1, 2] {
        let street = Street::new(SceneSpec { seed, ..SceneSpec::default() });
        let jpeg = Camera::new(&street).shoot(0, 10).unwrap().jpeg;
        assert!((300_000..=500_000).contains(&jpeg.len()), "seed {seed}: {} bytes", jpeg.len());
    }
}
