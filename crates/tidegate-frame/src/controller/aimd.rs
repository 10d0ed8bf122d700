//! Additive increase, multiplicative decrease of the frame's size: the baseline of congestion control.

use tidegate_message::{ControllerKind, Instant};

use super::{Choice, Controller, Infeasible, Observation, Situation, most_accurate, smallest};

/// Settings of `aimd`.
#[derive(Clone, Debug, PartialEq)]
pub struct AimdConfig {
    /// Bytes the size grows by with each frame that arrived in time. Default 10,000.
    pub increase_bytes: f64,
    /// The factor for the size when one came late or was lost, 0 to 1. Default 0.5.
    pub decrease: f64,
}

impl Default for AimdConfig {
    fn default() -> Self {
        Self { increase_bytes: 10_000.0, decrease: 0.5 }
    }
}

/// The controller itself.
#[derive(Clone, Debug)]
pub struct Aimd {
    config: AimdConfig,
    size_bytes: Option<f64>,
}

impl Aimd {
    /// A controller that starts with the smallest frame that is accurate enough.
    pub fn new(config: AimdConfig) -> Self {
        Self { config, size_bytes: None }
    }
}

impl Controller for Aimd {
    fn kind(&self) -> ControllerKind {
        ControllerKind::Aimd
    }

    fn observe(&mut self, _now: Instant, observation: &Observation) {
        let Some(size) = &mut self.size_bytes else { return };
        match observation {
            Observation::Delivered { on_time: true, .. } => *size += self.config.increase_bytes,
            _ => *size *= self.config.decrease,
        }
    }

    fn choose(&mut self, _now: Instant, s: &Situation<'_>) -> Choice {
        let accurate = |rung: &super::Rung| rung.accuracy >= s.bounds.accuracy();
        let enough = s.rungs.iter().enumerate().filter(|(_, rung)| accurate(rung));
        let all = s.rungs.iter().enumerate();
        let least = smallest(enough.clone());
        let floor = smallest(all.clone()).map_or(1.0, |rung| s.rungs[rung].bytes);
        let ceiling = all.clone().map(|(_, rung)| rung.bytes).fold(floor, f64::max);
        let start = least.map_or(floor, |rung| s.rungs[rung].bytes);
        // Clamped to the rungs there are, lest it wind up while it has no effect.
        let size = self.size_bytes.unwrap_or(start).clamp(floor, ceiling);
        self.size_bytes = Some(size);
        if let Some(rung) = most_accurate(enough.filter(|(_, rung)| rung.bytes <= size)) {
            return Choice::Rung { rung, bytes_max: f64::INFINITY };
        }
        Choice::Infeasible(Infeasible {
            by_latency: most_accurate(all.filter(|(_, rung)| rung.bytes <= size)),
            // The size says what is late, not by how much: the next larger time there is.
            by_accuracy: least.map(|rung| {
                (rung, s.bounds.latency().mul_f64((s.rungs[rung].bytes / size).clamp(1.0, 1000.0)))
            }),
            bytes_max: size,
        })
    }
}
