//! The seeds that a random test runs, and the threads that it runs them on.

use std::{
    env,
    ops::Range,
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// The seeds to run: `TIDEGATE_SEED=7` for one, `TIDEGATE_SEEDS=0..20000` for as many as one likes, `usual` if neither is set.
///
/// # Panics
/// If one of the two is set to something else.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    if let Ok(seed) = env::var("TIDEGATE_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    let Ok(range) = env::var("TIDEGATE_SEEDS") else { return usual };
    let (first, end) = range.split_once("..").expect("seeds are FIRST..END");
    number(first)..number(end)
}

/// Runs each seed, on as many threads as the machine has cores, and returns the outcomes in the order of the seeds.
///
/// # Panics
/// If a run does: with its panic, once the runs that had begun have ended.
pub fn run_all<T: Send>(
    seeds: impl IntoIterator<Item = u64>,
    run: impl Fn(u64) -> T + Sync,
) -> Vec<T> {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::with_capacity(seeds.len()));
    let work = || {
        while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run(seed);
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((seed, outcome));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            if let Err(panic) = worker.join() {
                next.store(seeds.len(), Ordering::Relaxed);
                resume_unwind(panic);
            }
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(seed, _)| *seed);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn outcomes_come_in_the_order_of_the_seeds() {
        assert_eq!(run_all(0..100, |seed| seed * 2), (0..100).map(|n| n * 2).collect::<Vec<_>>());
    }

    #[test]
    fn a_run_that_panics_fails_all() {
        let all = catch_unwind(|| run_all(0..10, |seed| assert_ne!(seed, 7, "the seventh")));
        let panic = all.expect_err("one of them panics");
        assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains("the seventh")));
    }
}
