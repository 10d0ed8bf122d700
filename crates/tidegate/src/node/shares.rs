//! Shares of a medium that several cameras use: what the coordinator decides, told to each camera in turn.
//!
//! Every camera of a node is taken to be on one medium, which is right for an edge node behind one access
//! point and harmless elsewhere: a camera that sees ten times the capacity gets ten times the bytes for the
//! same airtime.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tidegate_frame::{
    coordinator::{Allotment, Coordinator, CoordinatorConfig, Input, Quality},
    table::{TableSet, Wanted},
};
use tidegate_message::{AdaptationProfile, CameraName, Instant};
use tidegate_wire::{FrameHeader, Share};

use super::entry::Arrival;
use crate::clock;

/// Frames shorter than this say little about the capacity: their burst fits in one turn on the air.
const SAMPLE_BYTES_MIN: u64 = 16 << 10;

pub(super) struct Shares {
    coordinator: Coordinator,
    tables: Arc<TableSet>,
    seen: HashMap<CameraName, Seen>,
    told: HashMap<CameraName, Share>,
}

struct Seen {
    last: Instant,
    period: Duration,
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

    /// A frame of a camera has come whole.
    pub(super) fn frame(&mut self, camera: &CameraName, header: &FrameHeader, arrival: &Arrival) {
        let now = clock::now();
        // Frames from the past come in bursts that say nothing of the camera's cadence.
        if header.replayed {
            return;
        }
        let Some(seen) = self.seen.get_mut(camera) else {
            let qualities = self.qualities(header);
            self.coordinator.handle(now, Input::Joined { camera: camera.clone(), qualities });
            let seen = Seen { last: header.at, period: Duration::ZERO };
            self.seen.insert(camera.clone(), seen);
            return;
        };
        if header.at <= seen.last {
            return; // another stream of the same camera
        }
        let period = header.at.since(seen.last);
        seen.last = header.at;
        // A dropped frame makes one period look like two; the shortest of late is the camera's.
        seen.period = match seen.period {
            Duration::ZERO => period,
            before if period < before * 3 / 2 => (before * 7 + period) / 8,
            before => before,
        };
        let took = arrival.last_at.since(arrival.first_at).as_secs_f64();
        if header.bytes < SAMPLE_BYTES_MIN || took <= 0.0 {
            return;
        }
        self.coordinator.handle(
            now,
            Input::Report {
                camera: camera.clone(),
                bytes_per_second: header.bytes as f64 / took,
                period: seen.period,
                arrived: arrival.first_at,
            },
        );
    }

    /// What its frames could be, by the table that the camera most likely uses, at the size of its originals.
    fn qualities(&self, header: &FrameHeader) -> Vec<Quality> {
        let profile = AdaptationProfile::Jpeg;
        let Some(table) = self.tables.nearest(profile, header.size, &Wanted::default()) else {
            return Vec::new();
        };
        let scale = header.original_bytes as f64 / table.original_bytes;
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
