//! No control: frames travel as they were captured, each until it is whole or its deadline.

use tidegate_message::{ControllerKind, Instant};

use super::{Choice, Controller, Observation, Rung, Situation};

/// Gives every frame the rung of the unmodified frame, however little a smaller one would lose; where a table has none, that
/// of the most bytes.
///
/// It is also what takes over from a controller that failed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed;

impl Controller for Fixed {
    fn kind(&self) -> ControllerKind {
        ControllerKind::Fixed
    }

    fn observe(&mut self, _now: Instant, _observation: &Observation) {}

    fn choose(&mut self, _now: Instant, situation: &Situation<'_>) -> Choice {
        let by_size = |a: &Rung, b: &Rung| {
            let original = a.setting.is_original().cmp(&b.setting.is_original());
            original.then(a.bytes.total_cmp(&b.bytes))
        };
        let rungs = situation.rungs.iter().enumerate();
        let largest = rungs.max_by(|(_, a), (_, b)| by_size(a, b));
        Choice::Rung { rung: largest.map_or(0, |(index, _)| index), bytes_max: f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::quiet, *};
    use crate::knob::KnobSetting;

    #[test]
    fn frames_travel_as_captured_although_smaller_ones_are_as_accurate() {
        let rung = |setting: &str, bytes, accuracy| Rung {
            row: 0,
            setting: setting.parse::<KnobSetting>().unwrap(),
            bytes,
            accuracy,
            kept: 1.0,
        };
        let chosen = |rungs: &[Rung]| Fixed.choose(Instant::from_millis(0), &quiet(rungs));
        let is = |choice: Choice, wanted: usize| matches!(choice, Choice::Rung { rung, .. } if rung == wanted);
        let [half, whole, large] =
            [rung("1/2 q90", 110e3, 1.001), rung("original", 477e3, 1.0), rung("q90", 600e3, 1.0)];
        assert!(is(chosen(&[half.clone(), whole, large.clone()]), 1));
        assert!(is(chosen(&[half, large]), 1), "without it, the largest");
    }
}
