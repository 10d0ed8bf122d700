//! Seeds, an oracle, and what it refuses, made small.

use std::fmt;

use super::{Plan, Process, World};
use crate::trail::Trail;

/// A protocol under plans that its seeds make, and what must be true of it.
pub trait Trial {
    /// One node.
    type Process: Process;

    /// The end of the command that runs one seed again, after `cargo test -p`.
    const TEST: &'static str;

    /// The run of a seed.
    fn plan(&self, seed: u64) -> Plan<<Self::Process as Process>::Request>;

    /// The settings that each process is made with.
    fn setup(&self) -> <Self::Process as Process>::Setup;

    /// Lets the world run and judges it.
    ///
    /// # Errors
    /// Something is not as it must be: what.
    fn judge(&self, world: &mut World<Self::Process>) -> Result<(), String>;
}

/// A run that the oracle refused, with no fault or request that it would be refused without.
#[derive(Debug)]
pub struct Failure<R> {
    /// The reason.
    pub reason: String,
    /// The plan without all that is not needed.
    pub plan: Plan<R>,
    /// How many faults and requests it had.
    pub drawn: (usize, usize),
    /// All that happened in what is left, and the command that runs the seed again.
    pub trail: String,
}

/// Runs one seed. Returns the hash of its trail.
///
/// # Errors
/// The oracle refuses it: the smallest run that was found of those that it still refuses.
pub fn try_seed<T: Trial>(
    trial: &T,
    seed: u64,
) -> Result<u64, Box<Failure<<T::Process as Process>::Request>>> {
    let mut plan = trial.plan(seed);
    let trail = || Trail::new(seed, "node", T::TEST);
    let (hash, verdict) = run(trial, &plan, trail());
    if verdict.is_ok() {
        return Ok(hash);
    }
    let drawn = (plan.faults.len(), plan.requests.len());
    let is_refused = |plan: &Plan<_>| run(trial, plan, trail()).1.is_err();
    let mut left = usize::MAX;
    while plan.faults.len() + plan.requests.len() < left {
        left = plan.faults.len() + plan.requests.len();
        plan.faults = shrink(plan.faults.clone(), |faults| {
            is_refused(&Plan { faults: faults.to_vec(), ..plan.clone() })
        });
        plan.requests = shrink(plan.requests.clone(), |requests| {
            is_refused(&Plan { requests: requests.to_vec(), ..plan.clone() })
        });
    }
    let mut world = World::new(&plan, trial.setup(), trail().whole());
    let reason = trial.judge(&mut world).expect_err("the same plan gives the same run");
    Err(Box::new(Failure { reason, plan, drawn, trail: world.trail().to_string() }))
}

fn run<T: Trial>(
    trial: &T,
    plan: &Plan<<T::Process as Process>::Request>,
    trail: Trail,
) -> (u64, Result<(), String>) {
    let mut world = World::new(plan, trial.setup(), trail);
    let verdict = trial.judge(&mut world);
    (world.trail().hash(), verdict)
}

/// Takes out as many items as it can while the rest is still refused: halves, then quarters, and so on down to single ones.
fn shrink<I: Clone>(mut items: Vec<I>, is_refused: impl Fn(&[I]) -> bool) -> Vec<I> {
    let mut count = items.len();
    while count > 0 {
        let mut at = 0;
        while at < items.len() {
            let mut fewer = items.clone();
            fewer.drain(at..(at + count).min(items.len()));
            if is_refused(&fewer) {
                items = fewer;
            } else {
                at += count;
            }
        }
        count /= 2;
    }
    items
}

impl<R> fmt::Display for Failure<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, plan, drawn: (faults, requests), trail } = self;
        writeln!(f, "refused: {reason}")?;
        let (left, asked) = (plan.faults.len(), plan.requests.len());
        writeln!(
            f,
            "{left} of {faults} faults and {asked} of {requests} requests are left; {trail}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_matters() {
        let needs = |items: &[u32]| items.contains(&3) && items.contains(&41);
        assert_eq!(shrink((0..100).collect(), needs), [3, 41]);
        assert_eq!(shrink((0..100).collect(), |_| true), Vec::<u32>::new());
    }
}
