//! The paper's own experiment: five nodes that saturate their channel, the published tables, `mez-pi`.
//!
//! All five send the same kind of frames at 5 a second, captured at the same moment. Frames are of the
//! tables' mean sizes; every frame is delivered, none is reset, and no time is spent encoding, as published
//! latencies are those of the network.
//!
//! The rows are the paper's, its latencies are not: the channel gives five nodes about 85 Mbit/s, where the
//! paper's own tables imply 107 to 122, and captures that coincide make every frame wait for the others.
//! On a faster channel only some of the five reach row 1603 of Duke medium, and so relieve the channel that
//! the rest stay at row 1102.

use std::{sync::Arc, time::Duration};

use tidegate_frame::table::TableSet;
use tidegate_message::{
    AdaptationProfile, Bounds, ControllerKind, Delivery, Demand, WhenInfeasible,
};

use crate::{
    cases::{self, Case},
    outcome::{Fate, Outcome},
};

/// A table and the row that the paper's Table 3 reports for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Scene of the table.
    pub scene: &'static str,
    /// The row.
    pub row: u32,
    /// Accuracy bound, in thousandths: 96 % for JAAD, 95 % for Duke.
    pub accuracy_permille: u16,
}

/// The six.
pub const PUBLISHED: [Published; 6] = [
    Published { scene: "jaad-simple", row: 1623, accuracy_permille: 960 },
    Published { scene: "jaad-medium", row: 1100, accuracy_permille: 960 },
    Published { scene: "jaad-complex", row: 1100, accuracy_permille: 960 },
    Published { scene: "duke-simple", row: 1102, accuracy_permille: 950 },
    Published { scene: "duke-medium", row: 1603, accuracy_permille: 950 },
    Published { scene: "duke-complex", row: 1100, accuracy_permille: 950 },
];

/// PHY rate of the channel in Mbit/s.
const PHY_MBIT: f64 = 105.0;

/// The experiment on one table.
///
/// # Panics
/// If the scene is none of the built-in tables'.
pub fn experiment(published: Published) -> Case {
    let tables = TableSet::builtin();
    let table = tables.iter().find(|table| table.key.scene == published.scene);
    let table = table.expect("the published tables are built in").clone();
    let accuracy = f64::from(published.accuracy_permille) / 1e3;
    let mut only = TableSet::new();
    only.insert(table.clone());
    let mut one = cases::camera(5);
    one.demand = Demand {
        bounds: Bounds::new(Duration::from_millis(100), accuracy).expect("within range"),
        controller: ControllerKind::MezPi,
        delivery: Delivery::Every,
        when_infeasible: WhenInfeasible::KeepLatency,
        profile: AdaptationProfile::Mez,
        frame_rate: None,
    };
    one.source = table.key.source;
    one.bytes = table.original_bytes;
    (one.noise, one.mismatch) = (0.0, 0.0);
    one.encode = (Duration::ZERO, Duration::ZERO);
    one.truth = table;
    // Differencing was not what the published runs changed: every frame travels.
    one.truth.rows.iter_mut().for_each(|row| row.kept = 1.0);
    one.tables = Arc::new(only);
    let mut case = cases::five(5, cases::Sharing::Aligned, false);
    case.name = format!("{} with mez-pi", published.scene);
    case.site.scenario = cases::channel(5, &[(0.0, PHY_MBIT)], &[1.0]);
    case.site.length = Duration::from_secs(60);
    for camera in &mut case.site.cameras {
        *camera = one.clone();
    }
    case
}

/// The row that each camera was at during the last ten seconds; nothing for one that changed rows.
pub fn settled_rows(outcome: &Outcome) -> Vec<Option<u32>> {
    let since = outcome.length.saturating_sub(Duration::from_secs(10));
    let rows = |camera: usize| {
        let late = outcome.frames.iter().filter(move |f| f.camera == camera && f.captured >= since);
        let mut rows: Vec<u32> = late
            .filter_map(|frame| match &frame.fate {
                Fate::Delivered { header, .. } => Some(header.row),
                _ => None,
            })
            .collect();
        rows.dedup();
        if let [row] = rows[..] { Some(row) } else { None }
    };
    (0..outcome.bounds.len()).map(rows).collect()
}
