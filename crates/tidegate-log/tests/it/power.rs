//! Ten thousand runs that end without warning.

use tidegate_log::simulated::{Outcome, lose_power};

/// All seeds, or the one that `TIDEGATE_SEED` names.
fn seeds() -> std::ops::Range<u64> {
    match std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..10_000,
    }
}

#[test]
fn no_loss_of_power_takes_what_was_durable_or_makes_up_what_was_not() {
    let mut sum = Outcome::default();
    for seed in seeds() {
        let outcome = lose_power(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        sum.appended += outcome.appended;
        sum.durable += outcome.durable;
        sum.found += outcome.found;
        sum.lost += outcome.lost;
        sum.power_losses += outcome.power_losses;
        sum.kills += outcome.kills;
        sum.sync_failures += outcome.sync_failures;
    }
    println!("{sum:?}");
    let runs = seeds().end - seeds().start;
    if runs > 1 {
        // The runs have met what they are for.
        assert!(sum.power_losses > runs && sum.kills > runs / 2, "{sum:?}");
        assert!(sum.durable > 10 * runs && sum.lost > runs, "{sum:?}");
        assert!(sum.sync_failures > runs / 20, "{sum:?}");
    }
}
