//! Members of a fabric on 3 to 30 nodes of the simulated world, and mistakes that the oracle finds.

mod node;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_fabric::members::{Presence, Sabotage};
use tidegate_sim::{
    random::Random,
    seeds::{run_all, seeds},
    trail::Trail,
    world::{Harm, Plan, Trial, World, try_seed},
};

use self::node::{Member, Request, Seen, Setup, id};

/// How long faults begin.
const FAULTS: Duration = Duration::from_secs(200);
/// The longest wait of a node that dials another.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Within this after the last fault nodes dial each other, learn of broken connections, and links on slow ways have carried all.
const DIALLED: Duration = Duration::from_secs(8);
/// So long after that all views are equal.
const QUIET: Duration = Duration::from_secs(5);

/// The faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    /// All that leave a node's files as they were saved.
    Kept,
    /// Those too that damage files, and put older ones in their place.
    Lossy,
    /// Ways between two nodes are cut for minutes, while each node reaches more than half of the others.
    Pairs,
}

struct Trying {
    faults: Faults,
    sabotage: Option<Sabotage>,
    lost: AtomicU64,
    restored: AtomicU64,
}

impl Trying {
    fn new(faults: Faults, sabotage: Option<Sabotage>) -> Self {
        Self { faults, sabotage, lost: AtomicU64::new(0), restored: AtomicU64::new(0) }
    }
}

impl Trial for Trying {
    type Process = Member;
    const TEST: &'static str = "tidegate-sim --test it members";

    fn plan(&self, seed: u64) -> Plan<Request> {
        let most = if seed.is_multiple_of(10) { 30 } else { 9 };
        let mut plan = Plan::draw(seed, 3..=most, FAULTS);
        let random = &mut Random::new(seed, 3);
        if self.faults == Faults::Pairs {
            let nodes = 5 + random.below(5) as usize;
            plan = Plan { faults: pairs(random, nodes), ..Plan::quiet(seed, nodes) };
        }
        if self.faults == Faults::Kept {
            let is_kept = |harm| !matches!(harm, Harm::Damage | Harm::Restore);
            plan.faults.retain(|(_, fault)| is_kept(fault.harm));
        }
        // A member is lost after a minute: some faults last longer.
        for (_, fault) in &mut plan.faults {
            if self.faults != Faults::Pairs && random.ratio(1, 4) {
                fault.time *= 10;
            }
        }
        plan.ask(FAULTS, Duration::from_secs(20), |random| match random.below(2) {
            0 => Request::Cameras(random.below(4) as u8),
            _ => Request::Zone(random.below(3) as u8),
        });
        plan
    }

    fn setup(&self) -> Setup {
        Setup { sabotage: self.sabotage, retry_max: RETRY_MAX }
    }

    fn judge(&self, world: &mut World<Member>) -> Result<(), String> {
        world.run_for(FAULTS);
        self.judge_reports(world)?;
        world.heal();
        world.run_for(DIALLED + QUIET);
        self.judge_reports(world)?;
        settled(world)
    }
}

impl Trying {
    fn judge_reports(&self, world: &mut World<Member>) -> Result<(), String> {
        for reported in world.take_reports() {
            let (at, node) = (reported.at, reported.node);
            match reported.report {
                Seen::Mistake(what) => return Err(format!("node {node} after {at:?}: {what}")),
                Seen::Lost(lost) if self.faults == Faults::Pairs => {
                    return Err(format!(
                        "node {node} lost {lost:?} after {at:?}, which reaches more than half"
                    ));
                }
                Seen::Restored if self.faults == Faults::Kept => {
                    return Err(format!(
                        "node {node} finds itself restored after {at:?}, and was not"
                    ));
                }
                Seen::Lost(_) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
                Seen::Restored => drop(self.restored.fetch_add(1, Ordering::Relaxed)),
            }
        }
        Ok(())
    }
}

/// Cuts of so many nodes, twice: each node reaches more than half of the others at any time.
fn pairs(random: &mut Random, nodes: usize) -> Vec<(Duration, tidegate_sim::world::Fault)> {
    let secs = Duration::from_secs;
    let mut faults = Vec::new();
    for round in [2, 102] {
        let mut cuts = vec![0; nodes];
        for _ in 0..3 * nodes {
            let one = random.below(nodes as u64) as usize;
            let other = (one + 1 + random.below(nodes as u64 - 1) as usize) % nodes;
            if 2 * (cuts[one].max(cuts[other]) + 1) < nodes - 1 {
                cuts[one] += 1;
                cuts[other] += 1;
                let at = secs(round) + random.time(secs(3));
                faults.push((at, Harm::Cut(other).at(one, secs(94))));
            }
        }
    }
    faults
}

/// All nodes run, are linked, and have one view in which all are here.
fn settled(world: &World<Member>) -> Result<(), String> {
    let nodes = world.nodes();
    let first = world.process(0).ok_or("node 0 does not run")?.members();
    for node in 0..nodes {
        let members = world.process(node).ok_or(format!("node {node} does not run"))?.members();
        if members.counts().links != nodes - 1 {
            return Err(format!("node {node} has {} links", members.counts().links));
        }
        for peer in 0..nodes {
            let presence = members.member(id(peer)).map(|view| view.presence);
            if presence != Some(Presence::Here) {
                return Err(format!("node {peer} is {presence:?} at node {node}"));
            }
        }
        if members.view() != first.view() || members.view_hash() != first.view_hash() {
            return Err(format!("node {node} has another view than node 0"));
        }
        for peer in 0..nodes {
            let cameras = |at: &tidegate_fabric::members::Members| {
                at.member(id(peer)).map(|view| view.cameras.to_vec())
            };
            if cameras(members) != cameras(first) {
                return Err(format!("node {node} knows of other cameras at {peer} than node 0"));
            }
        }
    }
    Ok(())
}

fn keeps(faults: Faults, usual: u64) -> Trying {
    let trying = Trying::new(faults, None);
    for run in run_all(seeds(0..usual), |seed| try_seed(&trying, seed)) {
        run.unwrap_or_else(|failure| panic!("{faults:?}: {failure}"));
    }
    trying
}

#[test]
fn members_come_to_one_view_whatever_happens() {
    for (faults, usual) in [(Faults::Kept, 40), (Faults::Lossy, 40)] {
        let trying = keeps(faults, usual);
        let lost = trying.lost.into_inner();
        let restored = trying.restored.into_inner();
        println!("{faults:?}: members were lost {lost} times, and restored {restored} times");
        if seeds(0..usual) == (0..usual) {
            assert!(lost > usual, "the runs have no loss");
            assert!(faults == Faults::Kept || restored > usual / 8, "the runs restore nothing");
        }
    }
}

/// Nodes of a large fabric: 60, or as many as `TIDEGATE_MEMBERS` says.
fn many() -> usize {
    std::env::var("TIDEGATE_MEMBERS").map_or(60, |count| count.parse().expect("a number"))
}

#[test]
fn many_members_come_to_one_view_soon_after_they_start_and_after_a_kill() {
    let trying = Trying::new(Faults::Kept, None);
    // Later than the first look at all, and over well before the second.
    let (later, time) = (Duration::from_secs(1), Duration::from_secs(3));
    for seed in seeds(0..2) {
        let killed = Harm::Kill.at(many() / 2, time);
        let faults = vec![(DIALLED + QUIET + later, killed)];
        let plan = Plan { faults, ..Plan::quiet(seed, many()) };
        let trail = Trail::new(seed, "node", Trying::TEST);
        let mut world = World::new(&plan, trying.setup(), trail);
        for length in [DIALLED + QUIET, later + time + DIALLED + QUIET] {
            world.run_for(length);
            let judged = trying.judge_reports(&mut world).and_then(|()| settled(&world));
            judged.unwrap_or_else(|error| panic!("seed {seed}, {} nodes: {error}", many()));
        }
    }
}

#[test]
fn member_that_reaches_more_than_half_is_never_lost() {
    keeps(Faults::Pairs, 30);
}

/// Mistakes, and the faults under which each of them shows.
const MISTAKES: [(Sabotage, Faults); 4] = [
    (Sabotage::NumberStays, Faults::Kept),
    (Sabotage::WordsAreWithdrawn, Faults::Kept),
    (Sabotage::UnsavedLeave, Faults::Kept),
    (Sabotage::DoubtsAreSilent, Faults::Pairs),
];
const FOUND_WITHIN: u64 = 240;

#[test]
fn each_mistake_of_a_member_is_found() {
    for (sabotage, faults) in MISTAKES {
        let trying = Trying::new(faults, Some(sabotage));
        let refused = |seed| {
            let trail = Trail::new(seed, "node", Trying::TEST);
            let mut world = World::new(&trying.plan(seed), trying.setup(), trail);
            Some((seed, trying.judge(&mut world).err()?))
        };
        let found = (0..FOUND_WITHIN)
            .step_by(4)
            .find_map(|first| run_all(first..first + 4, refused).into_iter().flatten().next());
        let (seed, reason) = found.unwrap_or_else(|| panic!("{sabotage:?} is not found"));
        println!("{sabotage:?}, seed {seed}: {reason}");
    }
}
