//! The deliveries of one camera, as the application of the demo sees them.

use bytes::Bytes;
use tidegate_api::{ApiError, Event};
use tidegate_message::Instant;

use crate::report::Sample;

/// Most frames of a camera whose bytes are kept for the detector: evenly over the run, however long.
const KEPT_MAX: usize = 256;

/// The deliveries of one camera.
pub(super) struct Watched {
    pub(super) name: String,
    pub(super) samples: Vec<Sample>,
    /// Frames that were reported as missed.
    pub(super) missed: u64,
    pub(super) kept: Vec<Kept>,
    /// Of so many frames one is kept.
    keep_every: usize,
}

/// A delivered frame that is kept for the detector.
pub(super) struct Kept {
    pub(super) captured_at: Instant,
    pub(super) promised: f64,
    pub(super) setting: String,
    pub(super) jpeg: Bytes,
}

/// Something that happened at a camera.
pub(super) enum Seen {
    Event(Event, Instant),
    Failed(ApiError),
}

impl Watched {
    pub(super) fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self { name, samples: Vec::new(), missed: 0, kept: Vec::new(), keep_every: 5 }
    }

    fn keep(&mut self, kept: Kept) {
        if self.kept.len() == KEPT_MAX {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.keep_every *= 2;
        }
        self.kept.push(kept);
    }

    pub(super) fn take(&mut self, event: Event, at: Instant, began: Instant) {
        let seconds = |instant: Instant| instant.nanos_since(began) as f64 / 1e9;
        let sample = match event {
            Event::Frame(frame) if frame.captured_at >= began && !frame.replayed => {
                if self.samples.len().is_multiple_of(self.keep_every) {
                    self.keep(Kept {
                        captured_at: frame.captured_at,
                        promised: frame.accuracy,
                        setting: frame.knobs.to_string(),
                        jpeg: frame.jpeg.clone(),
                    });
                }
                Sample {
                    at_s: seconds(frame.captured_at),
                    latency_ms: at.since(frame.captured_at).as_secs_f64() * 1e3,
                    bytes: frame.jpeg.len() as u64,
                    setting: frame.knobs.to_string(),
                    accuracy: frame.accuracy,
                    unchanged: false,
                }
            }
            Event::Unchanged(marker) if marker.captured_at >= began => Sample {
                at_s: seconds(marker.captured_at),
                latency_ms: at.since(marker.captured_at).as_secs_f64() * 1e3,
                bytes: 0,
                setting: "unchanged".into(),
                accuracy: 1.0,
                unchanged: true,
            },
            Event::Missed(missed) => {
                self.missed += if missed.to >= began { missed.count } else { 0 };
                return;
            }
            _ => return,
        };
        self.samples.push(sample);
    }
}
