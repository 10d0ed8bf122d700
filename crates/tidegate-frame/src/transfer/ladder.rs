//! The rungs a transfer can choose from, with sizes predicted from the live stream.
//!
//! A table says what part of a frame's bytes a setting leaves, on the footage it was made with. The size
//! that it leaves of this camera's frames follows from that part, from the size of the very frame, and
//! from how far off the prediction was of late, for that rung or, if it was never used, for any.

use tidegate_message::{AdaptationProfile, ControllerKind, Demand, FrameSize};

use super::{Report, TransferConfig};
use crate::{
    controller::Rung,
    knob::KnobSetting,
    table::{Cut, Origin, Row, Table, TableSet},
};

/// Failures in a row after which a setting is set aside.
const FAILURES_MAX: u8 = 3;
/// Frames after which a setting that was set aside is tried again: it may be that the frames were damaged.
const ASIDE_FRAMES: u32 = 100;
/// Weight of a frame that came out larger than predicted: missing a deadline costs more than caution.
const WEIGHT_LARGER: f64 = 0.6;
/// Weight of a frame that came out smaller than predicted.
const WEIGHT_SMALLER: f64 = 0.2;
/// Bounds of the correction, against frames of a few bytes.
const FACTOR: std::ops::RangeInclusive<f64> = 0.05..=20.0;

pub(super) struct Ladder {
    source: Option<FrameSize>,
    profile: AdaptationProfile,
    /// The least accuracy of the table's rows that it has, and that which is kept for whoever asks for more.
    accuracy_min: f64,
    accuracy_cut: f64,
    /// Set while the sizes and accuracies are a default's.
    pub(super) assumed: bool,
    rungs: Vec<Rung>,
    live: Vec<Live>,
    /// Rungs whose settings failed, and the frames until they are tried again.
    aside: Vec<(Rung, Live, u32)>,
    /// Actual over predicted, of whatever rung.
    factor: f64,
}

struct Live {
    /// Its place among all rungs.
    order: usize,
    /// Part of the original's bytes.
    ratio: f64,
    factor: Option<f64>,
    /// Passes unchanged, so that its size is known and not predicted.
    exact: bool,
    failures: u8,
}

impl Ladder {
    pub(super) fn empty() -> Self {
        Self {
            source: None,
            profile: AdaptationProfile::default(),
            accuracy_min: 0.0,
            accuracy_cut: 0.0,
            assumed: false,
            rungs: Vec::new(),
            live: Vec::new(),
            aside: Vec::new(),
            factor: 1.0,
        }
    }

    /// The ladder of the table that suits best, and a report if it is assumed or there is none.
    pub(super) fn find(
        tables: &TableSet,
        source: FrameSize,
        demand: &Demand,
        config: &TransferConfig,
    ) -> (Self, Option<Report>) {
        // A demand of less has the rows below the cut, too: what leaves them out protects those who asked for more.
        let accuracy_cut = config.cut.accuracy_min;
        let accuracy_min = accuracy_cut.min(demand.bounds.accuracy());
        let mut ladder = Self {
            source: Some(source),
            profile: demand.profile,
            accuracy_min,
            accuracy_cut,
            ..Self::empty()
        };
        let cut = Cut { accuracy_min, ..config.cut };
        let table = tables.nearest(demand.profile, source, &config.wanted);
        if let Some(table) = table {
            ladder.assumed = table.origin == Origin::Assumed;
            let whole = demand.controller == ControllerKind::MezPi
                && demand.profile == AdaptationProfile::Mez;
            let rows = if whole { table.by_bytes() } else { table.ladder(&cut) };
            rows.into_iter().for_each(|row| ladder.push(table, row));
        }
        let foreign = table.is_some_and(|table| table.rows.iter().any(|row| !row.label.is_empty()));
        let mez = demand.profile == AdaptationProfile::Mez && table.is_some();
        if !foreign && !mez && !ladder.live.iter().any(|live| live.exact) {
            ladder.push_original();
        }
        let report = match table {
            None => Some(Report::TableMissing { profile: demand.profile, source }),
            Some(table) if ladder.assumed => {
                Some(Report::TableAssumed { made_for: table.key.source })
            }
            Some(_) => None,
        };
        (ladder, report)
    }

    fn push(&mut self, table: &Table, row: &Row) {
        let exact = row.setting.is_original() && row.label.is_empty();
        self.live.push(Live {
            order: self.live.len(),
            ratio: if exact { 1.0 } else { row.bytes / table.original_bytes },
            factor: None,
            exact,
            failures: 0,
        });
        self.rungs.push(Rung {
            row: row.id,
            setting: row.setting,
            bytes: row.bytes,
            accuracy: row.accuracy,
            kept: row.kept,
        });
    }

    /// The unmodified frame is always to be had, whatever the table left out.
    fn push_original(&mut self) {
        let row = self.rungs.iter().map(|rung| rung.row + 1).max().unwrap_or(0);
        let order = self.live.len();
        self.live.push(Live { order, ratio: 1.0, factor: None, exact: true, failures: 0 });
        let setting = KnobSetting::ORIGINAL;
        self.rungs.push(Rung { row, setting, bytes: 0.0, accuracy: 1.0, kept: 1.0 });
    }

    /// Whether it was made for such frames and such a demand.
    pub(super) fn is_for(&self, source: FrameSize, demand: &Demand) -> bool {
        self.source == Some(source)
            && self.profile == demand.profile
            && self.accuracy_min == self.accuracy_cut.min(demand.bounds.accuracy())
            && !self.rungs.is_empty()
    }

    /// The frames it was made for, once there were any.
    pub(super) fn source(&self) -> Option<FrameSize> {
        self.source
    }

    /// The rungs, with the sizes last predicted.
    pub(super) fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// Predicts the size of every rung for a frame of `original_bytes`.
    pub(super) fn predict(&mut self, original_bytes: u32) {
        for (rung, live) in self.rungs.iter_mut().zip(&self.live) {
            let factor = if live.exact { 1.0 } else { live.factor.unwrap_or(self.factor) };
            rung.bytes = live.ratio * f64::from(original_bytes) * factor;
        }
    }

    /// Learns from a frame of `original_bytes` that came out at `bytes`.
    pub(super) fn observe(&mut self, rung: usize, original_bytes: u32, bytes: u32) {
        let Some(live) = self.live.get_mut(rung) else { return };
        live.failures = 0;
        if live.exact {
            return;
        }
        let actual = f64::from(bytes) / (live.ratio * f64::from(original_bytes));
        let actual = actual.clamp(*FACTOR.start(), *FACTOR.end());
        let towards = |factor: f64| {
            let weight = if actual > factor { WEIGHT_LARGER } else { WEIGHT_SMALLER };
            factor + weight * (actual - factor)
        };
        live.factor = Some(live.factor.map_or(actual, towards));
        self.factor = towards(self.factor);
    }

    /// A frame is about to be changed: takes back the rungs that were aside for long enough. Says whether there were any.
    pub(super) fn take_back(&mut self) -> bool {
        self.aside.iter_mut().for_each(|(_, _, frames)| *frames -= 1);
        let before = self.rungs.len();
        while let Some(index) = self.aside.iter().position(|&(_, _, frames)| frames == 0) {
            let (rung, live, _) = self.aside.swap_remove(index);
            let place = self.live.partition_point(|other| other.order < live.order);
            self.rungs.insert(place, rung);
            self.live.insert(place, Live { failures: 0, ..live });
        }
        self.rungs.len() > before
    }

    /// A rung's setting could not be carried out; says whether it was set aside for that.
    pub(super) fn failed(&mut self, rung: usize) -> bool {
        let Some(live) = self.live.get_mut(rung) else { return false };
        live.failures += 1;
        let set_aside = live.failures >= FAILURES_MAX && self.rungs.len() > 1;
        if set_aside {
            self.aside.push((self.rungs.remove(rung), self.live.remove(rung), ASIDE_FRAMES));
        }
        set_aside
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_message::{Bounds, Delivery, WhenInfeasible};

    use super::*;

    #[test]
    fn a_setting_that_failed_is_tried_again_in_its_old_place() {
        let size = FrameSize { width: 1920, height: 1080 };
        let demand = Demand {
            bounds: Bounds::new(Duration::from_millis(100), 0.95).unwrap(),
            controller: ControllerKind::Budget,
            delivery: Delivery::Latest,
            when_infeasible: WhenInfeasible::KeepLatency,
            profile: AdaptationProfile::Jpeg,
            frame_rate: None,
        };
        let config = TransferConfig::default();
        let (mut ladder, _) = Ladder::find(&TableSet::builtin(), size, &demand, &config);
        let rows = |ladder: &Ladder| ladder.rungs().iter().map(|rung| rung.row).collect::<Vec<_>>();
        let all = rows(&ladder);
        // A burst of damaged frames sets several aside.
        for _ in 0..3 {
            assert!(!ladder.failed(1) && !ladder.failed(1) && ladder.failed(1));
        }
        assert_eq!(ladder.rungs().len(), all.len() - 3);
        let waited = (1..).find(|_| ladder.take_back());
        assert_eq!((waited, rows(&ladder)), (Some(ASIDE_FRAMES), all));
        assert!(!ladder.take_back());
    }

    #[test]
    fn a_demand_of_less_accuracy_has_the_smaller_rows() {
        let size = FrameSize { width: 1920, height: 1080 };
        let demand = |accuracy| Demand {
            bounds: Bounds::new(Duration::from_millis(100), accuracy).unwrap(),
            controller: ControllerKind::Budget,
            delivery: Delivery::Latest,
            when_infeasible: WhenInfeasible::KeepLatency,
            profile: AdaptationProfile::Jpeg,
            frame_rate: None,
        };
        let config = TransferConfig::default();
        let tables = TableSet::builtin();
        let ladder = |accuracy| Ladder::find(&tables, size, &demand(accuracy), &config).0;
        let least = |accuracy| {
            let ladder = ladder(accuracy);
            let accuracies = ladder.rungs().iter().map(|rung| rung.accuracy);
            accuracies.fold(f64::INFINITY, f64::min)
        };
        assert_eq!(least(0.95), least(0.90), "the cut protects both");
        assert!(least(0.90) >= 0.90 && least(0.85) < 0.90 && least(0.0) < least(0.85));
        // A running transfer gets them when its demand changes.
        assert!(ladder(0.95).is_for(size, &demand(0.92)));
        assert!(
            !ladder(0.95).is_for(size, &demand(0.0)) && !ladder(0.0).is_for(size, &demand(0.95))
        );
    }
}
