//! No control: frames travel as they were captured.

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
        let size = |rung: &Rung| (rung.setting.is_original(), rung.bytes);
        let rungs = situation.rungs.iter().enumerate();
        let largest = rungs.max_by(|(_, a), (_, b)| {
            let ((a_original, a_bytes), (b_original, b_bytes)) = (size(a), size(b));
            a_original.cmp(&b_original).then(a_bytes.total_cmp(&b_bytes))
        });
        Choice::Rung { rung: largest.map_or(0, |(index, _)| index), bytes_max: f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_message::Bounds;

    use super::*;
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
        let chosen = |rungs: &[Rung]| {
            let situation = Situation {
                rungs,
                current: None,
                bounds: Bounds::new(Duration::from_millis(100), 0.95).unwrap(),
                elapsed: Duration::ZERO,
                capacity: None,
                outstanding_bytes: 0,
                one_way: Duration::ZERO,
                encode: Duration::ZERO,
                delivery: Duration::ZERO,
                period: Duration::from_millis(200),
                share: None,
            };
            Fixed.choose(Instant::from_millis(0), &situation)
        };
        let is = |choice: Choice, wanted: usize| matches!(choice, Choice::Rung { rung, .. } if rung == wanted);
        let [half, whole, large] =
            [rung("1/2 q90", 110e3, 1.001), rung("original", 477e3, 1.0), rung("q90", 600e3, 1.0)];
        assert!(is(chosen(&[half.clone(), whole, large.clone()]), 1));
        assert!(is(chosen(&[half, large]), 1), "without it, the largest");
    }
}
