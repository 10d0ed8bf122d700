//! A register on three to seven nodes of the simulated world: the example of a protocol, its oracle, and mistakes that the oracle finds.
//!
//! Each node takes reads and writes. It asks a majority for the newest value, then has a majority keep that value or a newer one, then
//! answers (Attiya, Bar-Noy, Dolev: Sharing memory robustly in message-passing systems, 1995). A node keeps what is newer than its own and
//! says so once that is on its disk. Twice a second each node dials those it has no link to, sends again what was not answered, and sends
//! its own value to all.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_message::Instant;
use tidegate_sim::{
    seeds::{run_all, seeds},
    world::{Harm, Input, Mark, Message, Node, Plan, Process, Reported, Trial, World, try_seed},
};

/// How long users ask and faults happen.
const LENGTH: Duration = Duration::from_secs(20);
/// After that all is answered, and all nodes hold the same.
const HEALED: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(500);
const FILE: &str = "register";

/// A number that is higher than those of all values seen before, and the write that it is of, which no other has.
type Held = (u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A node says that it keeps a value before that is on the disk.
    SaysTooEarly,
    /// The newer of two writes is the one with the later time of day.
    TrustsClock,
    /// A message that was lost with a link is not sent again.
    ForgetsToResend,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    /// No other has it.
    number: u64,
    writes: bool,
}

#[derive(Clone, Debug)]
enum Say {
    Ask(u64),
    Have(u64, Held),
    Keep(u64, Held),
    Kept(u64),
    /// Without an answer.
    Newest(Held),
}

impl Message for Say {
    fn bytes(&self) -> usize {
        32
    }
}

#[derive(Debug)]
enum Seen {
    /// A process begins: requests to the one before it are not answered.
    Begins,
    Asked(Request),
    Answered(Request, Held),
}

struct Replica {
    mistake: Option<Mistake>,
    held: Held,
    durable: Held,
    syncs: VecDeque<(Mark, Held)>,
    /// Values that are to be on the disk, and the node and request that wait for each.
    waits: BTreeSet<(Held, usize, u64)>,
    open: BTreeMap<u64, Open>,
    retry_at: Instant,
}

/// A request that is not answered.
struct Open {
    request: Request,
    newest: Held,
    /// The value that a majority is to keep, once that is clear.
    keeps: Option<Held>,
    by: BTreeSet<usize>,
}

impl Process for Replica {
    type Setup = Option<Mistake>;
    type Message = Say;
    type Request = Request;
    type Report = Seen;

    fn begin(mistake: &Option<Mistake>, node: &mut Node<'_, Self>) -> Self {
        node.report(Seen::Begins);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let stored = node.disk().read(FILE).map(|file| (number(&file[..8]), number(&file[8..])));
        let held = stored.unwrap_or_default();
        Self {
            mistake: *mistake,
            held,
            durable: Held::default(),
            // After a kill it may be in the page cache alone.
            syncs: VecDeque::from([(node.sync(), held)]),
            waits: BTreeSet::new(),
            open: BTreeMap::new(),
            retry_at: node.now(),
        }
    }

    fn handle(&mut self, node: &mut Node<'_, Self>, input: Input<Say, Request>) {
        match input {
            Input::Request(request) => {
                node.report(Seen::Asked(request));
                let mut open =
                    Open { request, newest: self.held, keeps: None, by: BTreeSet::new() };
                if self.mistake == Some(Mistake::TrustsClock) && request.writes {
                    open.keeps = Some((node.wall().as_nanos() as u64, request.number));
                }
                self.open.insert(request.number, open);
                self.send(node, request.number);
            }
            Input::Message(from, Say::Ask(number)) => node.send(from, Say::Have(number, self.held)),
            Input::Message(from, Say::Have(number, held)) => self.has(node, from, number, held),
            Input::Message(from, Say::Keep(number, held)) => self.asked(node, from, number, held),
            Input::Message(from, Say::Kept(number)) => self.kept(node, from, number),
            Input::Message(_, Say::Newest(held)) => self.keep(node, held),
            Input::Synced(mark) => {
                while let Some((_, held)) = self.syncs.pop_front_if(|(of, _)| *of <= mark) {
                    self.durable = self.durable.max(held);
                }
                self.answer_waiting(node);
            }
            Input::Timeout => {
                self.retry_at = node.now() + RETRY;
                for peer in node.others() {
                    node.dial(peer);
                    node.send(peer, Say::Newest(self.held));
                }
                if self.mistake != Some(Mistake::ForgetsToResend) {
                    let open: Vec<u64> = self.open.keys().copied().collect();
                    open.into_iter().for_each(|number| self.send(node, number));
                }
            }
            Input::Linked(_) | Input::Unlinked(_) => {}
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.retry_at)
    }
}

impl Replica {
    /// Asks all that have not answered, this node among them.
    fn send(&mut self, node: &mut Node<'_, Self>, number: u64) {
        let Some(open) = self.open.get(&number) else { return };
        let (keeps, by) = (open.keeps, open.by.clone());
        for peer in (0..node.nodes()).filter(|peer| !by.contains(peer)) {
            match (peer == node.me(), keeps) {
                (true, None) => self.has(node, peer, number, self.held),
                (true, Some(held)) => self.asked(node, peer, number, held),
                (false, None) => node.send(peer, Say::Ask(number)),
                (false, Some(held)) => node.send(peer, Say::Keep(number, held)),
            }
        }
    }

    fn has(&mut self, node: &mut Node<'_, Self>, from: usize, number: u64, held: Held) {
        let Some(open) = self.open.get_mut(&number).filter(|open| open.keeps.is_none()) else {
            return;
        };
        open.newest = open.newest.max(held);
        open.by.insert(from);
        if open.by.len() > node.nodes() / 2 {
            let (highest, _) = open.newest;
            open.keeps =
                Some(if open.request.writes { (highest + 1, number) } else { open.newest });
            open.by.clear();
            self.send(node, number);
        }
    }

    /// A node is to keep a value and to say so.
    fn asked(&mut self, node: &mut Node<'_, Self>, from: usize, number: u64, held: Held) {
        self.keep(node, held);
        if self.held >= held {
            self.waits.insert((held, from, number));
            self.answer_waiting(node);
        }
    }

    fn keep(&mut self, node: &mut Node<'_, Self>, held: Held) {
        let bytes = [held.0.to_le_bytes(), held.1.to_le_bytes()].concat();
        // On a full disk it stays as it is, and whoever asked asks again.
        if held > self.held && node.disk().replace(FILE, &bytes).is_ok() {
            self.held = held;
            self.syncs.push_back((node.sync(), held));
        }
    }

    fn answer_waiting(&mut self, node: &mut Node<'_, Self>) {
        let says_early = self.mistake == Some(Mistake::SaysTooEarly);
        let kept = if says_early { self.held } else { self.durable };
        while let Some(&(_, peer, number)) = self.waits.first().filter(|(held, ..)| *held <= kept) {
            self.waits.pop_first();
            if peer == node.me() {
                self.kept(node, peer, number);
            } else {
                node.send(peer, Say::Kept(number));
            }
        }
    }

    fn kept(&mut self, node: &mut Node<'_, Self>, from: usize, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        open.by.insert(from);
        if open.by.len() > node.nodes() / 2
            && let Some(held) = open.keeps
        {
            let request = open.request;
            self.open.remove(&number);
            node.report(Seen::Answered(request, held));
        }
    }
}

#[derive(Default)]
struct Register {
    mistake: Option<Mistake>,
    answered: AtomicU64,
}

impl Trial for Register {
    type Process = Replica;
    const TEST: &'static str = "tidegate-sim --test it register";

    fn plan(&self, seed: u64) -> Plan<Request> {
        let mut plan = Plan::draw(seed, 3..=7, LENGTH);
        // It has neither checksums nor a way to find out that it is older than it was.
        plan.faults.retain(|(_, fault)| !matches!(fault.harm, Harm::Damage | Harm::Restore));
        // Disks are slow, and the whole site loses power again and again.
        plan.disk_lag *= 5;
        for at in (0..LENGTH.as_secs()).step_by(2).map(Duration::from_secs) {
            let cut = |node| (at, Harm::PowerCut.at(node, Duration::from_millis(300)));
            plan.faults.extend((0..plan.clocks.len()).map(cut));
        }
        let mut number = 0;
        plan.ask(LENGTH, Duration::from_millis(150), |random| {
            number += 1;
            Request { number, writes: random.ratio(1, 2) }
        });
        plan
    }

    fn setup(&self) -> Option<Mistake> {
        self.mistake
    }

    fn judge(&self, world: &mut World<Replica>) -> Result<(), String> {
        world.run_for(LENGTH);
        world.heal();
        world.run_for(HEALED);
        // By node and request, the newest value that had been answered when the request came.
        let mut open: BTreeMap<(usize, u64), Held> = BTreeMap::new();
        let mut newest = Held::default();
        for Reported { node, report, at } in world.take_reports() {
            match report {
                Seen::Begins => open.retain(|(of, _), _| *of != node),
                Seen::Asked(request) => drop(open.insert((node, request.number), newest)),
                Seen::Answered(request, held) => {
                    let before = open.remove(&(node, request.number)).expect("it was asked");
                    let is_new = held > before && held.1 == request.number;
                    if !(if request.writes { is_new } else { held >= before }) {
                        return Err(format!(
                            "{request:?} is answered with {held:?} after {at:?}, and {before:?} \
                             had been answered before it came"
                        ));
                    }
                    newest = newest.max(held);
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if let Some(((node, number), _)) = open.first_key_value() {
            return Err(format!("node {node} never answers request {number}"));
        }
        let durable = (0..world.nodes()).map(|node| world.process(node).map(|it| it.durable));
        let durable: Vec<Option<Held>> = durable.collect();
        if durable.iter().any(|held| *held != durable[0] || *held < Some(newest)) {
            return Err(format!("the nodes hold {durable:?}, and {newest:?} was answered"));
        }
        Ok(())
    }
}

#[test]
fn a_register_keeps_its_promises_whatever_happens() {
    let register = Register::default();
    let runs = run_all(seeds(0..300), |seed| try_seed(&register, seed));
    let count = runs.len() as u64;
    for run in runs {
        run.unwrap_or_else(|failure| panic!("{failure}"));
    }
    let answered = register.answered.into_inner();
    println!("{answered} requests were answered in {count} runs");
    assert!(answered > 30 * count, "{answered} answers in {count} runs show little");
}

#[test]
fn each_mistake_is_found_and_shown_in_few_faults() {
    for (mistake, faults_max) in
        [(Mistake::SaysTooEarly, 7), (Mistake::TrustsClock, 0), (Mistake::ForgetsToResend, 1)]
    {
        let register = Register { mistake: Some(mistake), ..Register::default() };
        let failure = (0..100).find_map(|seed| try_seed(&register, seed).err());
        let failure = failure.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?} {failure}");
        let (left, drawn) = (failure.plan.faults.len(), failure.drawn.0);
        assert!(left <= faults_max && drawn > 7, "{mistake:?}: {left} of {drawn} faults are left");
        assert!(failure.plan.requests.len() <= 3, "{mistake:?}: {:?}", failure.plan.requests);
    }
}
