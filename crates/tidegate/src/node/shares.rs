//! Shares of a medium that several cameras use: what the coordinator decides, told to each camera in turn.
//!
//! Every camera of a node is taken to be on one medium, which is right for an edge node behind one access
//! point and harmless elsewhere: a camera that sees ten times the capacity gets ten times the bytes for the
//! same airtime.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tidegate_frame::{
    coordinator::{Allotment, Coordinator, CoordinatorConfig, Input, Quality},
    table::{TableSet, Wanted},
};
use tidegate_message::{AdaptationProfile, CameraName, FrameSize, Instant};
use tidegate_wire::{FrameHeader, Share};

use super::entry::Arrival;
use crate::clock;

/// Frames shorter than this say little about the capacity: their burst fits in one turn on the air.
const SAMPLE_BYTES_MIN: u64 = 16 << 10;
/// Bytes of the first packet, which come at the start of the time that a frame takes and not within it.
const PACKET_BYTES: u64 = 1200;
/// Frames of which the shortest period is the camera's: a dropped frame makes one period look like two.
const PERIODS: usize = 8;

pub(super) struct Shares {
    coordinator: Coordinator,
    tables: Arc<TableSet>,
    seen: HashMap<CameraName, Seen>,
    told: HashMap<CameraName, Share>,
}

struct Seen {
    last: Instant,
    /// The newest first.
    periods: VecDeque<Duration>,
}

impl Shares {
    pub(super) fn new(tables: Arc<TableSet>) -> Self {
        Self {
            coordinator: Coordinator::new(clock::now(), CoordinatorConfig::default()),
            tables,
            seen: HashMap::new(),
            told: HashMap::new(),
        }
    }

    /// A frame of a camera has come whole; `source` says the size of its originals.
    pub(super) fn frame(
        &mut self,
        camera: &CameraName,
        header: &FrameHeader,
        arrival: &Arrival,
        source: impl FnOnce() -> Option<FrameSize>,
    ) {
        let now = clock::now();
        // Frames from the past come in bursts that say nothing of the camera's cadence.
        if header.replayed {
            return;
        }
        let Some(seen) = self.seen.get_mut(camera) else {
            let size = source().unwrap_or(header.size);
            let qualities = self.qualities(size, header.original_bytes);
            self.coordinator.handle(now, Input::Joined { camera: camera.clone(), qualities });
            let periods = VecDeque::with_capacity(PERIODS);
            let seen = Seen { last: header.at, periods };
            self.seen.insert(camera.clone(), seen);
            return;
        };
        if header.at <= seen.last {
            return; // another stream of the same camera
        }
        seen.periods.truncate(PERIODS - 1);
        seen.periods.push_front(header.at.since(seen.last));
        seen.last = header.at;
        let period = seen.periods.iter().min().copied().unwrap_or_default();
        let took = arrival.last_at.since(arrival.first_at).as_secs_f64();
        if header.bytes < SAMPLE_BYTES_MIN || took <= 0.0 {
            return;
        }
        self.coordinator.handle(
            now,
            Input::Report {
                camera: camera.clone(),
                bytes_per_second: (header.bytes - PACKET_BYTES) as f64 / took,
                period,
                arrived: arrival.first_at,
            },
        );
    }

    /// What its frames could be, by the table that the camera most likely uses, at the size of its originals.
    fn qualities(&self, size: FrameSize, original_bytes: u64) -> Vec<Quality> {
        let profile = AdaptationProfile::Jpeg;
        let Some(table) = self.tables.nearest(profile, size, &Wanted::default()) else {
            return Vec::new();
        };
        let scale = original_bytes as f64 / table.original_bytes;
        let front = table.front();
        front
            .iter()
            .map(|row| Quality { bytes: row.bytes * scale, accuracy: row.accuracy })
            .collect()
    }

    /// A camera is gone.
    pub(super) fn left(&mut self, camera: &CameraName) {
        self.seen.remove(camera);
        self.told.remove(camera);
        self.coordinator.handle(clock::now(), Input::Left { camera: camera.clone() });
    }

    /// What a camera is to be told now, if anything.
    pub(super) fn take(&mut self, camera: &CameraName) -> Option<Share> {
        while let Some(allotment) = self.coordinator.poll(clock::now()) {
            let Allotment { camera, bytes_per_second, shift, valid_for } = allotment;
            let told = self.told.entry(camera).or_insert(Share {
                bytes_per_second: 0,
                shift: Duration::ZERO,
                valid_for,
            });
            // No limit travels as zero. A shift that was not told yet still counts.
            told.bytes_per_second = bytes_per_second.map_or(0, |bytes| bytes as u64);
            told.shift += shift;
            told.valid_for = valid_for;
        }
        self.told.remove(camera)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::TransferId;

    use super::*;
    use crate::node::entry::Life;

    fn shares_after(frames: impl Iterator<Item = Instant>) -> Shares {
        let mut shares = Shares::new(Arc::new(TableSet::builtin()));
        let camera: CameraName = "cam1".parse().unwrap();
        let size = FrameSize { width: 1920, height: 1080 };
        for at in frames {
            let header = FrameHeader {
                original_bytes: 400_000,
                ..FrameHeader::untouched(TransferId(1), at, size, 50_000)
            };
            let took = Duration::from_millis(20);
            let arrival = Arrival {
                first_at: at,
                last_at: at + took,
                offset_nanos: 0,
                life: Life { ordinal: 1, epoch: 1 },
            };
            shares.frame(&camera, &header, &arrival, || Some(size));
        }
        shares
    }

    #[test]
    fn a_camera_that_slows_down_is_believed_and_a_dropped_frame_changes_nothing() {
        let at = |millis: i64| Instant::from_millis(1_000_000 + millis);
        let camera: CameraName = "cam1".parse().unwrap();
        let shortest = |shares: &Shares| *shares.seen[&camera].periods.iter().min().unwrap();
        let fast = (0..20).map(|n| at(n * 33));
        let one_dropped = fast.clone().filter(|&frame| frame != at(330));
        assert_eq!(shortest(&shares_after(one_dropped)), Duration::from_millis(33));
        let slow = (0..10).map(|n| at(20 * 33 + n * 200));
        assert_eq!(shortest(&shares_after(fast.chain(slow))), Duration::from_millis(200));
    }
}
