//! How evenly members share the data of a place, and which of it moves when one is lost: computed, for members that seeds draw.

use std::collections::{BTreeSet, HashMap};

use bench_harness::{Figure, Report, Target};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tidegate_message::GeoPoint;
use tidegate_place::{Bucket, MemberId, Place, Places, Weight};
use tidegate_sim::seeds::run_all;

use crate::Plan;

/// Members of a site at most.
const MEMBERS_MAX: usize = 1_000;
const REPLICAS: usize = 3;
/// Buckets of one square of place.
const BUCKETS: u64 = 1 << 16;

/// Found for a seed.
struct Found {
    deviation_percent: f64,
    /// Buckets that moved though the lost member did not own them.
    moved: u64,
}

/// All seeds, each with 3 to 1,000 members in one street.
///
/// # Errors
/// None.
pub fn places(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let seeds = if plan.quick { 20 } else { 1_000 };
    report.configuration(
        "places",
        format!("{seeds} seeds, 3 to {MEMBERS_MAX} equal members in one street, {REPLICAS} replicas, all {BUCKETS} buckets of the square; computed"),
    );
    let found = run_all(0..seeds, try_seed);
    let deviations: Vec<f64> = found.iter().map(|one| one.deviation_percent).collect();
    report.samples("standard deviation of shares, %", deviations.iter().copied());
    let most = deviations.iter().copied().fold(0.0, f64::max);
    report.figure(
        Figure::new(format!("{seeds} seeds, standard deviation of shares, at most"), "%")
            .ours([most])
            .target(Target::AtMost(15.0)),
    );
    let moved: u64 = found.iter().map(|one| one.moved).sum();
    report.figure(
        Figure::new(format!("{seeds} seeds, one member lost, buckets of others that moved"), "")
            .ours([moved as f64])
            .target(Target::Exactly(0.0)),
    );
    Ok(())
}

fn try_seed(seed: u64) -> Found {
    let mut random = SmallRng::seed_from_u64(seed);
    let count = random.random_range(REPLICAS..=MEMBERS_MAX);
    let point = GeoPoint::new(52.3731, 4.8922).expect("it is on the earth");
    let members: Vec<Place> = (0..count)
        .map(|_| Place {
            id: MemberId(random.random()),
            position: Some(point),
            is_mobile: false,
            zone: String::new(),
            weight: Weight::default(),
        })
        .collect();
    let lost = members[random.random_range(0..count)].id;
    let left: Vec<Place> = members.iter().filter(|member| member.id != lost).cloned().collect();
    let (before, after) = (Places::of(&members, REPLICAS), Places::of(&left, REPLICAS));
    let mut shares: HashMap<MemberId, u64> = HashMap::new();
    let mut moved = 0;
    for index in 0..BUCKETS {
        let bucket = Bucket::of(Some(point), index << 48);
        let owners = before.owners(bucket);
        owners.iter().for_each(|owner| *shares.entry(*owner).or_default() += 1);
        if count > REPLICAS {
            let was: BTreeSet<_> = owners.into_iter().collect();
            let is: BTreeSet<_> = after.owners(bucket).into_iter().collect();
            moved += u64::from(if was.contains(&lost) {
                !is.is_superset(&was.into_iter().filter(|owner| *owner != lost).collect())
            } else {
                is != was
            });
        }
    }
    let mean = (BUCKETS as usize * REPLICAS) as f64 / count as f64;
    let square = |member: &Place| {
        let share = shares.get(&member.id).copied().unwrap_or_default() as f64;
        (share - mean).powi(2)
    };
    let variance = members.iter().map(square).sum::<f64>() / count as f64;
    Found { deviation_percent: variance.sqrt() / mean * 100.0, moved }
}
