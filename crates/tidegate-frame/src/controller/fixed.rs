//! No control: frames travel as they were captured.

use tidegate_message::{ControllerKind, Instant};

use super::{Choice, Controller, Observation, Situation, most_accurate};

/// Gives every frame the most accurate rung, which is the unmodified frame in every complete table.
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
        let rung = most_accurate(situation.rungs.iter().enumerate()).unwrap_or(0);
        Choice::Rung { rung, bytes_max: f64::INFINITY }
    }
}
