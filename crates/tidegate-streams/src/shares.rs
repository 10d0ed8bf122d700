//! Shares of a medium that several cameras use, and uplinks next to them: the coordinator's decisions, sent to each in turn.
//!
//! Every camera of a node is taken to be on one medium, which is right for an edge node behind one access
//! point: a camera that sees ten times the capacity gets ten times the bytes for the same airtime. Cameras
//! that have links of their own need no shares: there is none then (`link.shared_medium`).

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

/// Frames of which the shortest period is the camera's: a dropped frame makes one period look like two.
const PERIODS: usize = 8;

pub(super) struct Shares {
    /// None where every camera has a link of its own.
    coordinator: Option<Coordinator>,
    tables: Arc<TableSet>,
    seen: HashMap<CameraName, Seen>,
    told: HashMap<CameraName, Share>,
    /// Uplinks that have a link.
    uplinks: u32,
}

struct Seen {
    last: Instant,
    /// The newest first.
    periods: VecDeque<Duration>,
}

impl Shares {
    /// No `medium` where every camera has a link of its own.
    pub(super) fn new(
        now: Instant,
        tables: Arc<TableSet>,
        medium: Option<CoordinatorConfig>,
    ) -> Self {
        Self {
            coordinator: medium.map(|config| Coordinator::new(now, config)),
            tables,
            seen: HashMap::new(),
            told: HashMap::new(),
            uplinks: 0,
        }
    }

    /// An uplink has a link.
    pub(super) fn uplink_came(&mut self) {
        self.uplinks += 1;
    }

    /// An uplink that came has none any more.
    pub(super) fn uplink_left(&mut self) {
        self.uplinks -= 1;
    }

    /// The share of each uplink of the medium for its batches, the same for all; none where nothing limits them.
    pub(super) fn of_uplink(&self, now: Instant) -> Option<Share> {
        let coordinator = self.coordinator.as_ref()?;
        let each = coordinator.sensors(now)? / f64::from(self.uplinks.max(1));
        Some(Share {
            // 0 would lift the limit.
            bytes_per_second: each.max(1.0) as u64,
            shift: Duration::ZERO,
            valid_for: coordinator.config().valid_for,
        })
    }

    /// A frame of a camera has come whole; `source` says the size of its originals.
    pub(super) fn frame(
        &mut self,
        now: Instant,
        camera: &CameraName,
        header: &FrameHeader,
        arrival: &Arrival,
        source: impl FnOnce() -> Option<FrameSize>,
    ) {
        // Frames from the past come in bursts that say nothing of the camera's cadence.
        let Some(coordinator) = self.coordinator.as_mut().filter(|_| !header.replayed) else {
            return;
        };
        // Once silent for long, it starts over.
        let known = self.seen.get_mut(camera).filter(|_| coordinator.is_member(camera));
        let Some(seen) = known else {
            let size = source().unwrap_or(header.size);
            let qualities = qualities(&self.tables, size, header.original_bytes);
            coordinator.handle(now, Input::Joined { camera: camera.clone(), qualities });
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
        let took = arrival.last_at.since(arrival.first_at);
        let camera = camera.clone();
        coordinator
            .handle(now, Input::arrival(camera, header.bytes, period, arrival.first_at, took));
    }

    /// A camera is gone.
    pub(super) fn left(&mut self, now: Instant, camera: &CameraName) {
        self.seen.remove(camera);
        self.told.remove(camera);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle(now, Input::Left { camera: camera.clone() });
        }
    }

    /// The share to send to a camera now, if any.
    pub(super) fn take(&mut self, now: Instant, camera: &CameraName) -> Option<Share> {
        let coordinator = self.coordinator.as_mut()?;
        while let Some(allotment) = coordinator.poll(now) {
            let Allotment { camera, bytes_per_second, shift, valid_for } = allotment;
            let told = self.told.entry(camera).or_insert(Share {
                bytes_per_second: 0,
                shift: Duration::ZERO,
                valid_for,
            });
            // No limit travels as zero. A shift that was not sent yet still counts.
            told.bytes_per_second = bytes_per_second.map_or(0, |bytes| bytes as u64);
            told.shift += shift;
            told.valid_for = valid_for;
        }
        self.told.remove(camera)
    }
}

/// The possible qualities of a camera's frames, by the table that it most likely uses, at the size of its originals.
fn qualities(tables: &TableSet, size: FrameSize, original_bytes: u64) -> Vec<Quality> {
    let profile = AdaptationProfile::Jpeg;
    let Some(table) = tables.nearest(profile, size, &Wanted::default()) else { return Vec::new() };
    let scale = original_bytes as f64 / table.original_bytes;
    let front = table.front();
    front.iter().map(|row| Quality { bytes: row.bytes * scale, accuracy: row.accuracy }).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_wire::TransferId;

    use super::*;
    use crate::entry::Epoch;

    const SIZE: FrameSize = FrameSize { width: 1920, height: 1080 };

    fn at(millis: i64) -> Instant {
        Instant::from_millis(1_000_000 + millis)
    }

    fn camera(number: usize) -> CameraName {
        format!("cam{number}").parse().unwrap()
    }

    fn none_seen(shared_medium: bool) -> Shares {
        let medium = shared_medium.then(CoordinatorConfig::default);
        Shares::new(at(0), Arc::new(TableSet::builtin()), medium)
    }

    fn frame(shares: &mut Shares, camera: &CameraName, at: Instant) {
        let header = FrameHeader {
            original_bytes: 400_000,
            ..FrameHeader::untouched(TransferId(1), at, SIZE, 50_000)
        };
        let last_at = at + Duration::from_millis(20);
        let life = Epoch { ordinal: 1, epoch: 1 };
        let arrival = Arrival { first_at: at, last_at, offset_nanos: 0, life };
        shares.frame(last_at, camera, &header, &arrival, || Some(SIZE));
    }

    fn shares_after(frames: impl Iterator<Item = Instant>) -> Shares {
        let mut shares = none_seen(true);
        frames.for_each(|at| frame(&mut shares, &camera(1), at));
        shares
    }

    /// Whether each of two cameras is sent a limit that holds, after both sent from `from` to `to`.
    fn limits(shares: &mut Shares, from: i64, to: i64) -> [bool; 2] {
        let mut limited = [false; 2];
        for millis in (from..to).step_by(200) {
            for (limited, number) in limited.iter_mut().zip(1..) {
                frame(shares, &camera(number), at(millis));
                if let Some(share) = shares.take(at(millis + 20), &camera(number)) {
                    *limited = share.bytes_per_second > 0;
                }
            }
        }
        limited
    }

    #[test]
    fn a_camera_that_was_silent_for_long_shares_again() {
        let mut shares = none_seen(true);
        assert_eq!(limits(&mut shares, 0, 4000), [true, true]);
        // The first continues alone, and is notified.
        for millis in (4000..14_000).step_by(200) {
            frame(&mut shares, &camera(1), at(millis));
            shares.take(at(millis + 20), &camera(1));
        }
        assert!(!shares.coordinator.as_ref().unwrap().is_member(&camera(2)));
        assert_eq!(limits(&mut shares, 14_000, 18_000), [true, true]);
    }

    #[test]
    fn uplinks_divide_what_is_theirs_while_cameras_send() {
        let mut shares = none_seen(true);
        shares.uplink_came();
        assert_eq!(shares.of_uplink(at(0)), None, "no camera sends");
        limits(&mut shares, 0, 1000);
        let alone = shares.of_uplink(at(1000)).expect("cameras send");
        // 50 KB less a packet in 20 ms, and a tenth of that.
        assert_eq!(alone.bytes_per_second, 244_000);
        shares.uplink_came();
        let each = shares.of_uplink(at(1000)).expect("cameras send");
        assert_eq!(each.bytes_per_second, 122_000);
        shares.uplink_left();
        assert_eq!(shares.of_uplink(at(1000)), Some(alone));
        assert_eq!(shares.of_uplink(at(1000) + alone.valid_for), None, "they are silent");
        let mut apart = none_seen(false);
        limits(&mut apart, 0, 1000);
        assert_eq!(apart.of_uplink(at(1000)), None);
    }

    #[test]
    fn cameras_with_links_of_their_own_are_not_limited() {
        assert_eq!(limits(&mut none_seen(false), 0, 4000), [false, false]);
    }

    #[test]
    fn a_camera_that_slows_down_is_believed_and_a_dropped_frame_changes_nothing() {
        let shortest = |shares: &Shares| *shares.seen[&camera(1)].periods.iter().min().unwrap();
        let fast = (0..20).map(|n| at(n * 33));
        let one_dropped = fast.clone().filter(|&frame| frame != at(330));
        assert_eq!(shortest(&shares_after(one_dropped)), Duration::from_millis(33));
        let slow = (0..10).map(|n| at(20 * 33 + n * 200));
        assert_eq!(shortest(&shares_after(fast.chain(slow))), Duration::from_millis(200));
    }
}
