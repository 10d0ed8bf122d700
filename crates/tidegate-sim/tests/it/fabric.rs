//! The rule of `tidegate-fabric` on three to seven nodes of the simulated world, and what breaks without each of its sentences.

mod file;
mod member;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_fabric::{Bucket, Rule, Sentence};
use tidegate_sim::{
    seeds::{run_all, seeds},
    trail::Trail,
    world::{Harm, Plan, Reported, Trial, World, try_seed},
};

use self::member::{Asks, Member, Request, Seen, Setup};

/// How long faults begin, twice.
const ROUND: Duration = Duration::from_secs(20);
/// No fault lasts so long.
const FAULT: Duration = Duration::from_secs(15);
/// Some time after the last fault all members agree, owners have all, and answers are complete. This is longer.
const HEALING: Duration = Duration::from_secs(25);
/// A request is answered after so long, in quiet times.
const ANSWERED: Duration = Duration::from_secs(5);
const BUCKETS: u64 = 4;
/// How long users ask.
const LENGTH: Duration = Duration::from_secs(80);
const _: () =
    assert!(LENGTH.as_secs() == 2 * ROUND.as_secs() + FAULT.as_secs() + HEALING.as_secs());

struct Fabric {
    rule: Rule,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    put: AtomicU64,
    deleted: AtomicU64,
    complete: AtomicU64,
    incomplete: AtomicU64,
    forgiven: AtomicU64,
}

impl Fabric {
    fn new(rule: Rule) -> Self {
        Self { rule, counts: Counts::default() }
    }
}

impl Trial for Fabric {
    type Process = Member;
    const TEST: &'static str = "tidegate-sim --test it fabric";

    fn plan(&self, seed: u64) -> Plan<Request> {
        let mut plan = Plan::draw(seed, 3..=7, 2 * ROUND);
        let nodes = plan.clocks.len();
        let copies = self.rule.copies;
        // As many members as may lose something at a time do so, again and again; all others lose nothing. In the second round, which
        // begins when the first is over and healed, they are other members.
        let frail = |round: usize| -> Vec<usize> {
            (1..copies).map(|index| (seed as usize + round * copies + index) % nodes).collect()
        };
        for (index, (at, fault)) in plan.faults.iter_mut().enumerate() {
            let round = usize::from(*at >= ROUND);
            let frail = frail(round);
            if is_loss(fault.harm) && !frail.is_empty() {
                fault.node = frail[index % frail.len()];
            }
            *at += (FAULT + HEALING) * round as u32;
        }
        plan.faults.retain(|(_, fault)| !is_loss(fault.harm) || copies > 1);
        let secs = Duration::from_secs;
        if seed.is_multiple_of(3)
            && let Some(node) = frail(0).first()
        {
            // The folder that it begins with is empty.
            plan.faults.push((Duration::ZERO, Harm::Restore.at(*node, secs(5 + seed % 10))));
        }
        if let [.., last] = frail(1)[..] {
            let (away, ms) = ((last + 1) % nodes, Duration::from_millis);
            let mut inflict = |at: u64, time: u64, node, harm: Harm| {
                plan.faults.push((LENGTH - ROUND + ms(at), harm.at(node, ms(time))));
            };
            if seed % 4 == 1 {
                // Those that may lose something do so at once, while another is away that has what they lost.
                frail(1).into_iter().for_each(|node| inflict(2_000, 4_000, node, Harm::Restore));
                inflict(4_000, 4_500, away, Harm::Split(1 << away));
            }
            if seed % 4 == 2 {
                // They do so after a view that the other never heard of, and are now with the other alone.
                frail(1).into_iter().for_each(|node| inflict(500, 9_000, node, Harm::Restore));
                inflict(1_000, 8_400, away, Harm::Split(1 << away));
                let with_them = frail(1).into_iter().fold(1 << away, |all, node| all | 1 << node);
                inflict(9_400, 8_000, away, Harm::Split(with_them));
            }
        }
        if seed.is_multiple_of(8) {
            // The whole site loses power, and with it more than was promised.
            let cut = |node| (ROUND / 2, Harm::PowerCut.at(node, secs(1)));
            plan.faults.extend((0..nodes).map(cut));
        }
        let mut number = 0;
        plan.ask(LENGTH, Duration::from_millis(150), |random| {
            number += 1;
            let bucket = Bucket(random.below(BUCKETS));
            let asks = match random.below(10) {
                0..5 => Asks::Put(bucket),
                5 | 6 => Asks::Delete(bucket),
                _ => Asks::Query(random.below(1 << BUCKETS).max(1)),
            };
            Request { number, asks }
        });
        plan
    }

    fn setup(&self) -> Setup {
        Setup { rule: self.rule, buckets: BUCKETS }
    }

    fn judge(&self, world: &mut World<Member>) -> Result<(), String> {
        let mut oracle = Oracle::new(self.rule.copies);
        // Every fault ends by itself.
        world.run_for(ROUND + FAULT + HEALING - ANSWERED);
        oracle.judge(world.take_reports())?;
        settled(world)?;
        let incomplete = oracle.incomplete;
        world.run_for(ANSWERED);
        oracle.judge(world.take_reports())?;
        if oracle.incomplete > incomplete {
            return Err("an answer is not complete in quiet times".to_owned());
        }
        oracle.is_healed();
        world.run_for(ROUND);
        world.heal();
        world.run_for(HEALING);
        oracle.judge(world.take_reports())?;
        settled(world)?;
        equal(world)?;
        let last = u64::MAX - world.nodes() as u64;
        for node in 0..world.nodes() {
            let asks = Asks::Query((1 << BUCKETS) - 1);
            world.request(node, Request { number: last + node as u64, asks });
        }
        world.run_for(ANSWERED);
        let complete = oracle.complete;
        oracle.judge(world.take_reports())?;
        let complete = oracle.complete - complete;
        if complete != world.nodes() as u64 {
            return Err(format!("{complete} nodes answer completely once all is well"));
        }
        oracle.count(&self.counts);
        Ok(())
    }
}

/// Whether a member may lose by it what it has acknowledged.
fn is_loss(harm: Harm) -> bool {
    matches!(harm, Harm::PowerCut | Harm::Damage | Harm::Restore)
}

/// All members have one view, all owners are in sync, and all requests are answered.
fn settled(world: &World<Member>) -> Result<(), String> {
    let members: Vec<&Member> = (0..world.nodes()).filter_map(|node| world.process(node)).collect();
    let (view, nodes) = (members[0].view(), world.nodes());
    if members.len() < nodes || view.present().count() < nodes {
        return Err("a member is not back once all is well".to_owned());
    }
    for (node, member) in members.iter().enumerate() {
        if member.view() != view {
            return Err(format!("node {node} has another view than node 0 once all is well"));
        }
        if !member.is_in_sync() {
            return Err(format!("node {node} is not in sync once all is well"));
        }
        if let Some(number) = member.waits(ANSWERED) {
            return Err(format!("node {node} leaves request {number} without an answer"));
        }
    }
    Ok(())
}

/// All owners of a bucket hold the same, once nothing is asked.
fn equal(world: &World<Member>) -> Result<(), String> {
    let members: Vec<&Member> = (0..world.nodes()).filter_map(|node| world.process(node)).collect();
    for bucket in (0..BUCKETS).map(Bucket) {
        let mut owned = members.iter().filter_map(|member| member.contents(bucket));
        let first = owned.next();
        if !owned.all(|contents| Some(contents) == first) {
            return Err(format!("the owners of {bucket:?} hold different records"));
        }
    }
    Ok(())
}

/// All that was promised to users so far.
struct Oracle {
    copies: usize,
    /// By request, its bucket.
    puts: BTreeMap<u64, Bucket>,
    kept: BTreeSet<u64>,
    /// Records whose delete has begun: both outcomes are right.
    deleting: BTreeSet<u64>,
    deleted: BTreeSet<u64>,
    /// Records of which no promise is left: as many members as are to have a copy have lost something.
    forgiven: BTreeSet<u64>,
    begun: BTreeSet<usize>,
    impaired: BTreeSet<usize>,
    /// By request, buckets, and what was kept and deleted when it came.
    queries: BTreeMap<u64, (u64, BTreeSet<u64>, BTreeSet<u64>)>,
    complete: u64,
    incomplete: u64,
}

impl Oracle {
    fn new(copies: usize) -> Self {
        Self {
            copies,
            puts: BTreeMap::new(),
            kept: BTreeSet::new(),
            deleting: BTreeSet::new(),
            deleted: BTreeSet::new(),
            forgiven: BTreeSet::new(),
            begun: BTreeSet::new(),
            impaired: BTreeSet::new(),
            queries: BTreeMap::new(),
            complete: 0,
            incomplete: 0,
        }
    }

    /// All that had lost something have it again.
    fn is_healed(&mut self) {
        self.impaired.clear();
    }

    fn judge(&mut self, reports: Vec<Reported<Seen>>) -> Result<(), String> {
        reports.into_iter().try_for_each(|reported| self.judge_one(reported))
    }

    fn judge_one(&mut self, Reported { at, node, report }: Reported<Seen>) -> Result<(), String> {
        match report {
            Seen::Begins { may_have_lost } => {
                if !self.begun.insert(node) && may_have_lost {
                    self.impaired.insert(node);
                    if self.impaired.len() >= self.copies {
                        self.forgiven.extend(self.puts.keys());
                    }
                }
            }
            Seen::Asked(Request { number, asks: Asks::Put(bucket) }) => {
                self.puts.insert(number, bucket);
            }
            Seen::Asked(Request { number, asks: Asks::Query(buckets) }) => {
                let now = (buckets, self.kept.clone(), self.deleted.clone());
                self.queries.insert(number, now);
            }
            Seen::Asked(Request { asks: Asks::Delete(_), .. }) => {}
            Seen::Put(number) => drop(self.kept.insert(number)),
            Seen::Deleting(value) => drop(self.deleting.insert(value)),
            Seen::Deleted(value) => drop(self.deleted.insert(value)),
            Seen::Answered { is_complete: false, .. } => self.incomplete += 1,
            Seen::Answered { number, is_complete: true, values } => {
                self.complete += 1;
                let (buckets, kept, deleted) =
                    self.queries.remove(&number).expect("a query that was asked");
                let is_asked = |value: &&u64| buckets >> self.puts[value].0 & 1 == 1;
                let promised = |value: &&u64| is_asked(value) && !self.forgiven.contains(value);
                let has_to = |value: &&u64| promised(value) && !self.deleting.contains(value);
                if let Some(lost) = kept.iter().filter(has_to).find(|it| !values.contains(it)) {
                    return Err(format!(
                        "record {lost} is not in the complete answer to request {number} at node {node} after {at:?}"
                    ));
                }
                if let Some(back) = deleted.iter().filter(promised).find(|it| values.contains(it)) {
                    return Err(format!(
                        "record {back} was deleted and is in the complete answer to request {number} at node {node} after {at:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn count(&self, counts: &Counts) {
        let add = |to: &AtomicU64, count: u64| {
            to.fetch_add(count, Ordering::Relaxed);
        };
        add(&counts.put, self.kept.len() as u64);
        add(&counts.deleted, self.deleted.len() as u64);
        add(&counts.complete, self.complete);
        add(&counts.incomplete, self.incomplete);
        add(&counts.forgiven, self.forgiven.len() as u64);
    }
}

#[test]
fn fabric_keeps_its_promises_whatever_happens() {
    for copies in 1..=3 {
        let fabric = Fabric::new(Rule::new(3, copies));
        let runs = run_all(seeds(0..60), |seed| try_seed(&fabric, seed));
        let count = runs.len() as u64;
        for run in runs {
            run.unwrap_or_else(|failure| panic!("copies {copies}: {failure}"));
        }
        let Counts { put, deleted, complete, incomplete, forgiven } = fabric.counts;
        let [put, deleted, complete, incomplete, forgiven] =
            [put, deleted, complete, incomplete, forgiven].map(AtomicU64::into_inner);
        println!(
            "copies {copies}: {count} runs, {put} records, {deleted} deletes, {complete} complete answers, \
             {incomplete} others, {forgiven} records without a promise"
        );
        if count >= 30 {
            assert!(put > 100 * count && deleted > 30 * count && complete > 50 * count);
            assert!(complete > 3 * incomplete && forgiven < put / 10, "it claims too little");
        }
    }
}

/// Each sentence, and the copies of a fabric that is tried without it.
const SENTENCES: [(Sentence, usize); 14] = [
    (Sentence::AsksQuorum, 2),
    (Sentence::AsksEarlierOwners, 2),
    (Sentence::ReadsAfterFence, 1),
    (Sentence::QuorumIsMajority, 3),
    (Sentence::LearnsHistory, 2),
    (Sentence::ViewIsNumbered, 2),
    (Sentence::LossIsCounted, 3),
    (Sentence::KillIsShown, 2),
    (Sentence::StartIsChance, 2),
    (Sentence::ClockIsRebuilt, 2),
    (Sentence::AnswerHasClocks, 2),
    (Sentence::AllSuffice, 2),
    (Sentence::AllAreMembers, 3),
    (Sentence::CopiesOfOneView, 2),
];
/// As many seeds suffice to miss any sentence; a few do for most.
const MISSED_WITHIN: u64 = 160;

#[test]
fn fabric_breaks_without_each_sentence() {
    for (sentence, copies) in SENTENCES {
        let fabric = Fabric::new(Rule::new(3, copies).without(sentence));
        let refused = |seed| {
            let trail = Trail::new(seed, "node", Fabric::TEST);
            let mut world = World::new(&fabric.plan(seed), fabric.setup(), trail);
            Some((seed, fabric.judge(&mut world).err()?))
        };
        let found = (0..MISSED_WITHIN)
            .step_by(8)
            .find_map(|first| run_all(first..first + 8, refused).into_iter().flatten().next());
        let (seed, reason) = found.unwrap_or_else(|| panic!("{sentence:?} is not missed"));
        println!("without {sentence:?}, copies {copies}, seed {seed}: {reason}");
    }
}
