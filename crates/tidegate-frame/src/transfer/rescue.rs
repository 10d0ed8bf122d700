//! Frames taken back from the link, to be sent again smaller while there is time.

use std::time::Duration;

use tidegate_message::Instant;

use super::{Command, Encoding, Flight, Transfer, Waiting};
use crate::knob::KnobSetting;

/// Part of the time left that the second, smaller encoding of a frame may take to send.
const RESCUE_AIM: f64 = 0.8;

impl Transfer {
    /// Takes back a frame that will miss its deadline while there is still time to send a smaller one.
    ///
    /// This is what a sudden drop of the capacity costs: not the frame, only its quality. One frame is
    /// taken back at most once, and only if nothing else is on the way and nothing newer was sent.
    pub(super) fn rescue(&mut self, now: Instant) {
        let wanted = self.config.rescue && self.is_controlled();
        let rescuable = wanted && self.droppable() && self.encoding.is_none();
        let Some(flight) = self.flights.alone().copied().filter(|_| rescuable) else { return };
        let (Some(capacity), Some(started)) = (self.capacity.capacity(), flight.started) else {
            return;
        };
        let newest = self.out_last == Some(flight.frame);
        if flight.replaced_bytes.is_some() || flight.trial || flight.replayed || !newest {
            return;
        }
        let elapsed = now.since(started).saturating_sub(self.one_way * 2);
        if elapsed < self.config.capacity.span_min {
            return;
        }
        // The frame's own pace knows of a drop before the filtered estimate does.
        let pace = f64::from(flight.received) / elapsed.as_secs_f64();
        let rate = pace.min(capacity.bytes_per_second).max(1.0);
        let left = flight.deadline.since(now).as_secs_f64();
        let missing = f64::from(flight.bytes.saturating_sub(flight.received));
        if missing / rate <= left {
            return;
        }
        let bytes_max = rate * (left - self.encode.usual_max().as_secs_f64()) * RESCUE_AIM;
        self.ladder.predict(flight.original_bytes);
        let bound = self.demand.bounds.accuracy();
        let rungs = self.ladder.rungs().iter().enumerate();
        let fits = rungs.filter(|(_, rung)| rung.accuracy >= bound && rung.bytes <= bytes_max);
        let best = fits.max_by(|(_, a), (_, b)| a.accuracy.total_cmp(&b.accuracy));
        let Some((rung, _)) = best else { return };
        self.flights.remove(flight.frame);
        self.capacity.forget(flight.frame);
        self.commands.push_back(Command::Reset { frame: flight.frame });
        self.explain(now, rung);
        let Flight { frame, base, deadline, original_bytes, .. } = flight;
        self.begin(Encoding {
            of: Waiting { frame, bytes: original_bytes, replayed: false },
            base,
            rung,
            ladder: self.ladder_number,
            promised: (0, KnobSetting::ORIGINAL, 0.0),
            bytes_max,
            deadline,
            accuracy_kept: true,
            encodes: 1,
            took: Duration::ZERO,
            trial: false,
            replaces_bytes: Some(flight.bytes),
        });
    }

    /// Whether a word about a frame of `total` bytes means an encoding that was taken back.
    pub(super) fn is_taken_back(&self, frame: Instant, total: u32) -> bool {
        let encoding = self.encoding.is_some_and(|encoding| {
            encoding.of.frame == frame && encoding.replaces_bytes == Some(total)
        });
        encoding || self.flights.replaced(frame, total)
    }

    /// The encoding that was taken back had arrived whole: the other one is not needed.
    pub(super) fn arrived_after_all(&mut self, now: Instant, frame: Instant, bytes: u32) {
        let encoding = self.encoding.take_if(|encoding| encoding.of.frame == frame);
        let base = match encoding {
            Some(encoding) => encoding.base,
            None => {
                let Some(flight) = self.flights.remove(frame) else { return };
                self.capacity.forget(frame);
                self.commands.push_back(Command::Reset { frame });
                flight.base
            }
        };
        self.arrived(now, base, bytes);
    }
}
