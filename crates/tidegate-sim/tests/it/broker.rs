//! The MQTT broker among its clients, whatever happens.

use std::ops::Range;

use tidegate_sim::{
    broker::{Outcome, run, run_filling, run_overflowing, run_spilling},
    seeds::{run_all, seeds},
};

/// Seeds of the ordinary test.
const SEEDS: Range<u64> = 0..400;

/// Others that once found something, in the broker or in what is asked of it.
const FOUND: [u64; 9] = [455, 2_744, 3_872, 4_714, 8_310, 12_118, 15_812, 20_107, 20_161];

#[test]
fn a_broker_keeps_its_promises_whatever_happens() {
    let outcomes: Vec<Outcome> = run_all(seeds(SEEDS), |seed| run(seed, false));
    if outcomes.len() < 100 {
        return; // Some replays, of which nothing is asked but that they end.
    }
    judge(&outcomes);
}

#[test]
fn a_broker_keeps_its_promises_when_its_process_or_its_power_ends() {
    let outcomes: Vec<Outcome> = run_all(seeds(SEEDS), |seed| run(seed, true));
    if outcomes.len() < 100 {
        return;
    }
    assert!(outcomes.iter().map(|outcome| outcome.crashes).sum::<u64>() > 20);
    judge(&outcomes);
}

#[test]
fn a_broker_keeps_its_promises_with_messages_on_disk() {
    let outcomes: Vec<Outcome> = run_all(seeds(SEEDS).step_by(4), run_spilling);
    if outcomes.len() < 100 {
        return;
    }
    let spilled: u64 = outcomes.iter().map(|outcome| outcome.statistics.spilled).sum();
    println!("spilled: {spilled}");
    assert!(spilled > 100 * outcomes.len() as u64, "{spilled}");
}

#[test]
fn what_was_acknowledged_is_kept_by_every_session_that_may_not_drop_it() {
    let outcomes: Vec<Outcome> =
        run_all(seeds(SEEDS).step_by(4), |seed| run_overflowing(seed, seed % 8 == 0));
    if outcomes.len() < 100 {
        return;
    }
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    for (counted, count) in [
        ("refused", sum(|o| o.refused)),
        ("disconnected", sum(|o| o.statistics.overflow_disconnects)),
        ("dropped", sum(|o| o.statistics.dropped.queue_full)),
        ("conflated", sum(|o| o.statistics.dropped.conflated)),
        ("spilled", sum(|o| o.statistics.spilled)),
        ("not spilled", sum(|o| o.statistics.dropped.spill_full)),
        ("crashes", sum(|o| o.crashes)),
    ] {
        println!("{counted}: {count}");
        assert!(count > 20, "{counted}: {count}");
    }
}

#[test]
fn what_was_acknowledged_is_kept_where_journals_have_no_room_for_some_of_it() {
    let outcomes: Vec<Outcome> = run_all(seeds(SEEDS), run_filling);
    if outcomes.len() < 100 {
        return;
    }
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    for (counted, count) in [
        ("refused", sum(|o| o.refused)),
        ("crashes", sum(|o| o.crashes)),
        ("records without room", sum(|o| o.unwritten)),
    ] {
        println!("{counted}: {count}");
        assert!(count > 20, "{counted}: {count}");
    }
    let (published, delivered) = (sum(|o| o.published), sum(|o| o.delivered));
    println!("published: {published}, delivered: {delivered}");
    assert!(delivered > 20 * outcomes.len() as u64);
}

fn judge(outcomes: &[Outcome]) {
    // A case that is never reached is not tested.
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    for (what, count) in [
        ("faults", sum(|o| o.faults)),
        ("refused", sum(|o| o.refused)),
        ("withheld", sum(|o| o.statistics.withheld)),
        ("disconnected", sum(|o| o.statistics.overflow_disconnects)),
        ("dropped for a full queue", sum(|o| o.statistics.dropped.queue_full)),
        ("conflated", sum(|o| o.statistics.dropped.conflated)),
        ("dropped for a full budget", sum(|o| o.statistics.dropped.budget_full)),
    ] {
        println!("{what}: {count}");
        assert!(count > 20, "{what}: {count}");
    }
    let (published, delivered) = (sum(|o| o.published), sum(|o| o.delivered));
    println!("published: {published}, delivered: {delivered}");
    assert!(delivered > published && published > 50 * outcomes.len() as u64);
}

#[test]
fn what_was_found_once_stays_found() {
    run_all(FOUND, |seed| {
        run(seed, false);
        run(seed, true);
    });
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_another() {
    run_all(0..20, |seed| {
        let outcome = run(seed, true);
        assert_eq!(run(seed, true), outcome, "seed {seed}");
        assert_ne!(run(seed + 1, true).hash, outcome.hash);
    });
}
