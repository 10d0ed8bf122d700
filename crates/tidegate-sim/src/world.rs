//! Many nodes in virtual time: their links, disks, clocks and processes, and what happens to each of them.
//!
//! ```text
//!  seed ─▶ Plan: faults, requests ─▶ World ─── Input ──▶ Process of a node ─▶ its Disk
//!                                      ▲                     │   │
//!                                      └──── connections ◀───┘   └─▶ reports ─▶ oracle of the Trial ─▶ fewer faults, trail
//! ```
//!
//! A [`Process`] is a state machine without I/O and clock, as the cores of the live system are; it is built of one for a test. A
//! [`Trial`] is a plan for each seed and an oracle, and [`try_seed`] runs one: where the oracle refuses, faults and requests are taken
//! out of the plan for as long as it still does, and the trail of what is left is shown with the command that repeats it.
//! `tests/it/register.rs` is an example: a register on three to seven nodes, three mistakes, and the oracle that finds each.
//!
//! Always true: the same plan gives the same run; a process acts at one instant, so that a fault is before it or after it; what a
//! process asks of its disk is done at once, but is on the disk only when it is given [`Input::Synced`].

mod clock;
mod disk;
mod network;
mod plan;
mod trial;

use std::{collections::VecDeque, fmt, time::Duration};

use tidegate_message::Instant;

use self::{
    clock::Clock,
    network::{Arrival, Network},
};
pub use self::{
    disk::{Disk, DiskFull, Mark},
    network::Path,
    plan::{ClockPlan, Fault, Harm, Plan},
    trial::{Failure, Trial, try_seed},
};
use crate::{agenda::Agenda, random::Random, trail::Trail};

/// When a world begins, by a clock that is right.
pub const BEGIN: Instant = Instant::from_millis(1_700_000_000_000);
/// Streams of chance of a seed: those below it are the plan's.
const STREAMS: u64 = 16;
/// Events at one instant after which time stands still.
const STUCK_AFTER: u32 = 1_000_000;

/// One process of a node.
pub trait Process: Sized {
    /// The settings that every process is made with.
    type Setup;
    /// The messages between them.
    type Message: Message;
    /// The requests of their users.
    type Request: Clone + fmt::Debug;
    /// Facts for the oracle: answers to users, and all else that it judges by.
    type Report: fmt::Debug;

    /// Begins with what the disk has.
    fn begin(setup: &Self::Setup, node: &mut Node<'_, Self>) -> Self;

    /// Something happened.
    fn handle(&mut self, node: &mut Node<'_, Self>, input: Input<Self::Message, Self::Request>);

    /// When it is to be given [`Input::Timeout`], by its monotonic clock.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// A message on a link.
pub trait Message: fmt::Debug {
    /// Its size on the wire.
    fn bytes(&self) -> usize;
}

/// An event for a process.
#[derive(Debug)]
pub enum Input<M, R> {
    /// There is a connection to that node, which either has dialled.
    Linked(usize),
    /// The connection is over, or there is none after all. Messages that were sent on it may have arrived.
    Unlinked(usize),
    /// A message of that node.
    Message(usize, M),
    /// A user asks for something.
    Request(R),
    /// All that was written before that call of [`Node::sync`] is on the disk.
    Synced(Mark),
    /// The time of [`Process::poll_timeout`] has come.
    Timeout,
}

/// A report, when and of which node.
#[derive(Debug)]
pub struct Reported<T> {
    /// Since the run began.
    pub at: Duration,
    /// The node.
    pub node: usize,
    /// Its report.
    pub report: T,
}

/// Nodes and all that is between them.
pub struct World<P: Process> {
    setup: P::Setup,
    /// None for a node that is down.
    processes: Vec<Option<P>>,
    ground: Ground<P>,
}

/// All that the processes stand on.
struct Ground<P: Process> {
    seed: u64,
    agenda: Agenda<Event<P::Request>>,
    trail: Trail,
    path: Path,
    disk_lag: Duration,
    network: Network<P::Message>,
    machines: Vec<Machine<P>>,
    reports: Vec<Reported<P::Report>>,
}

struct Machine<P: Process> {
    /// Of its own: a plan with fewer faults or requests elsewhere changes nothing here.
    random: Random,
    clock: Clock,
    disk: Disk,
    memory: Vec<u8>,
    extra_lag: Duration,
    last_sync: Instant,
    state: State,
    /// How often a process has begun.
    life: u64,
    /// Inputs that came while it was stopped.
    inbox: VecDeque<Input<P::Message, P::Request>>,
    wakes_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    Stopped,
    Asleep {
        since: Instant,
    },
    /// Without a process; a machine with power refuses connections at once.
    Down {
        has_power: bool,
    },
}

#[derive(Clone, Debug)]
enum Event<R> {
    /// Something may have arrived.
    Arrive {
        from: usize,
        to: usize,
    },
    /// The node learns that connections up to that one are broken.
    Notice {
        node: usize,
        peer: usize,
        broken: u64,
    },
    /// The node gives up to dial.
    GiveUp {
        node: usize,
        peer: usize,
        connection: u64,
    },
    Synced {
        node: usize,
        life: u64,
        mark: Mark,
    },
    Wake(usize),
    Request(usize, R),
    Fault(Fault),
    Over(Over),
}

/// The end of a fault.
#[derive(Clone, Debug)]
enum Over {
    Cut { from: usize, to: usize },
    Down(usize),
    Pause(usize),
    FullDisk(usize),
    SlowDisk(usize),
    Backup(usize, Box<Disk>),
}

impl<P: Process> World<P> {
    /// The world of a plan, in which every process begins now. The trail is of that plan's seed.
    pub fn new(plan: &Plan<P::Request>, setup: P::Setup, trail: Trail) -> Self {
        let mut agenda = Agenda::new(BEGIN);
        for (at, fault) in &plan.faults {
            agenda.at(BEGIN + *at, Event::Fault(*fault));
        }
        for (at, node, request) in &plan.requests {
            agenda.at(BEGIN + *at, Event::Request(*node, request.clone()));
        }
        let machine = |(node, clock): (usize, &ClockPlan)| Machine {
            random: Random::new(plan.seed, STREAMS + node as u64),
            clock: Clock::new(BEGIN, clock.ahead_nanos, clock.drift_ppm),
            disk: Disk::default(),
            memory: Vec::new(),
            extra_lag: Duration::ZERO,
            last_sync: BEGIN,
            state: State::Down { has_power: true },
            life: 0,
            inbox: VecDeque::new(),
            wakes_at: None,
        };
        let nodes = plan.clocks.len();
        let mut world = Self {
            setup,
            processes: (0..nodes).map(|_| None).collect(),
            ground: Ground {
                seed: plan.seed,
                agenda,
                trail,
                path: plan.path.clone(),
                disk_lag: plan.disk_lag,
                network: Network::new(plan.path.clone(), nodes),
                machines: plan.clocks.iter().enumerate().map(machine).collect(),
                reports: Vec::new(),
            },
        };
        (0..nodes).for_each(|node| world.begin(node));
        world
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.processes.len()
    }

    /// A node's process, if it runs.
    pub fn process(&self, node: usize) -> Option<&P> {
        self.processes[node].as_ref()
    }

    /// A node's disk.
    pub fn disk(&self, node: usize) -> &Disk {
        &self.ground.machines[node].disk
    }

    /// Time since the run began.
    pub fn elapsed(&self) -> Duration {
        self.ground.elapsed()
    }

    /// All reports so far that were not taken, in order.
    pub fn take_reports(&mut self) -> Vec<Reported<P::Report>> {
        std::mem::take(&mut self.ground.reports)
    }

    /// The record of the run.
    pub fn trail(&self) -> &Trail {
        &self.ground.trail
    }

    /// Lets so much time go by.
    ///
    /// # Panics
    /// If time stands still: processes that answer each other without a delay, or ask for a time that has passed.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.ground.agenda.now() + time;
        while let Some(at) = self.ground.agenda.next().map(|(at, _)| at).filter(|at| *at <= end) {
            let still = self.ground.agenda.advance(at);
            assert!(still < STUCK_AFTER, "time stands still: {:?}", self.elapsed());
            if let Some(event) = self.ground.agenda.pop() {
                self.happen(event);
            }
        }
        self.ground.agenda.advance(end);
    }

    /// Lets a fault begin now.
    pub fn inflict(&mut self, fault: Fault) {
        self.fault(fault);
    }

    /// Asks a node for something now.
    pub fn request(&mut self, node: usize, request: P::Request) {
        self.give(node, Input::Request(request));
    }

    /// All faults end, and no others come: links and disks work, and every process runs. Wall clocks stay as wrong as they are.
    pub fn heal(&mut self) {
        self.ground.agenda.retain(|event| !matches!(event, Event::Fault(_) | Event::Over(_)));
        for (from, to) in self.ground.network.heal() {
            self.ground.agenda.after(Duration::ZERO, Event::Arrive { from, to });
        }
        for node in 0..self.nodes() {
            let machine = &mut self.ground.machines[node];
            machine.disk.limit(None);
            machine.extra_lag = Duration::ZERO;
            self.resume(node);
            self.begin(node);
        }
    }

    // ---- events

    fn happen(&mut self, event: Event<P::Request>) {
        match event {
            Event::Arrive { from, to } => self.arrive(from, to),
            Event::Notice { node, peer, broken } => {
                if self.ground.network.notice(node, peer, broken) {
                    self.give(node, Input::Unlinked(peer));
                }
            }
            Event::GiveUp { node, peer, connection } => {
                if self.ground.network.give_up(node, peer, connection) {
                    self.give(node, Input::Unlinked(peer));
                }
            }
            Event::Synced { node, life, mark } => {
                let machine = &mut self.ground.machines[node];
                machine.disk.synced(mark);
                if machine.life == life {
                    self.give(node, Input::Synced(mark));
                }
            }
            Event::Wake(node) => {
                let now = self.ground.agenda.now();
                let machine = &mut self.ground.machines[node];
                machine.wakes_at.take_if(|at| *at <= now);
                let shown = machine.clock.monotonic(now);
                let due = self.processes[node].as_ref().and_then(P::poll_timeout);
                if machine.state == State::Up && due.is_some_and(|due| due <= shown) {
                    self.give(node, Input::Timeout);
                } else {
                    self.watch(node);
                }
            }
            Event::Request(node, request) => self.give(node, Input::Request(request)),
            Event::Fault(fault) => self.fault(fault),
            Event::Over(over) => self.over(over),
        }
    }

    fn arrive(&mut self, from: usize, to: usize) {
        loop {
            let now = self.ground.agenda.now();
            match self.ground.network.arrive(now, from, to) {
                Ok(Arrival::Linked { supersedes }) => {
                    if supersedes {
                        self.give(to, Input::Unlinked(from));
                    }
                    self.give(to, Input::Linked(from));
                }
                Ok(Arrival::Message(message)) => self.give(to, Input::Message(from, message)),
                Ok(Arrival::Unlinked) => self.give(to, Input::Unlinked(from)),
                Err(None) => return,
                Err(Some(at)) => return self.ground.agenda.at(at, Event::Arrive { from, to }),
            }
        }
    }

    /// A process is given something: now, or when it continues.
    fn give(&mut self, node: usize, input: Input<P::Message, P::Request>) {
        let machine = &mut self.ground.machines[node];
        match machine.state {
            State::Up => {}
            State::Stopped | State::Asleep { .. } => return machine.inbox.push_back(input),
            State::Down { .. } => return,
        }
        self.ground.note_input(node, &input);
        let process = self.processes[node].as_mut().expect("a node that is up has a process");
        process.handle(&mut Node { me: node, ground: &mut self.ground }, input);
        self.watch(node);
    }

    /// Wakes the process when it wants to be.
    fn watch(&mut self, node: usize) {
        let Some(due) = self.processes[node].as_ref().and_then(P::poll_timeout) else { return };
        let Ground { agenda, machines, .. } = &mut self.ground;
        let machine = &mut machines[node];
        let at = machine.clock.when(agenda.now(), due);
        if machine.state == State::Up && machine.wakes_at.is_none_or(|wakes| wakes > at) {
            machine.wakes_at = Some(at);
            agenda.at(at, Event::Wake(node));
        }
    }

    // ---- processes

    fn begin(&mut self, node: usize) {
        let now = self.ground.agenda.now();
        let machine = &mut self.ground.machines[node];
        let State::Down { has_power } = machine.state else { return };
        if !has_power {
            machine.clock.boot(now);
        }
        machine.state = State::Up;
        machine.life += 1;
        let life = machine.life;
        self.ground.note(node, "begins", [life, 0]);
        let process = P::begin(&self.setup, &mut Node { me: node, ground: &mut self.ground });
        self.processes[node] = Some(process);
        self.watch(node);
    }

    /// The process ends without a word, and perhaps its machine. One that has ended does not end again.
    fn end(&mut self, node: usize, has_power: bool) {
        let Ground { seed, agenda, network, machines, .. } = &mut self.ground;
        let (now, machine) = (agenda.now(), &mut machines[node]);
        if matches!(machine.state, State::Down { .. }) {
            return;
        }
        if !has_power {
            // Of the node and the time alone, so that it does not change when other events are taken out of a plan.
            let mut random = Random::new(*seed ^ now.as_nanos() as u64, STREAMS + node as u64);
            machine.disk.lose_power(&mut random);
            machine.memory.clear();
        }
        let peers: Vec<usize> = network.peers(node).collect();
        if has_power {
            // The kernel ends its connections behind what was written.
            for peer in peers {
                if let Some(at) = network.hang_up(now, node, peer) {
                    agenda.at(at, Event::Arrive { from: node, to: peer });
                }
            }
        } else {
            network.silence_of(now, node);
        }
        network.forget(node);
        machine.state = State::Down { has_power };
        machine.inbox.clear();
        machine.wakes_at = None;
        self.processes[node] = None;
        self.break_ends(node);
    }

    /// All peers of a node learn in time that their connections of now to it are over.
    fn break_ends(&mut self, node: usize) {
        let Ground { agenda, network, .. } = &mut self.ground;
        let broken = network.count();
        for peer in (0..self.processes.len()).filter(|peer| *peer != node) {
            agenda.after(network.silence(), Event::Notice { node: peer, peer: node, broken });
        }
    }

    fn resume(&mut self, node: usize) {
        let now = self.ground.agenda.now();
        let machine = &mut self.ground.machines[node];
        match machine.state {
            State::Asleep { since } => machine.clock.slept(since, now),
            State::Stopped => {}
            State::Up | State::Down { .. } => return,
        }
        machine.state = State::Up;
        machine.wakes_at = None;
        let inbox = std::mem::take(&mut machine.inbox);
        self.ground.note(node, "continues", [inbox.len() as u64, 0]);
        inbox.into_iter().for_each(|input| self.give(node, input));
        self.watch(node);
    }

    // ---- faults

    fn fault(&mut self, fault: Fault) {
        let now = self.ground.agenda.now();
        let Fault { node, time, harm } = fault;
        self.ground.note_more(node, harm.word(), [0, 0], || format!("{fault:?}"));
        let machine = &mut self.ground.machines[node];
        let over = match harm {
            Harm::Cut(to) => return self.ground.cut(node, to, time),
            Harm::Split(sides) => {
                let side = |node: usize| sides >> (node % 64) & 1;
                for from in 0..self.nodes() {
                    for to in (0..self.nodes()).filter(|to| side(*to) != side(from)) {
                        self.ground.cut(from, to, time);
                    }
                }
                return;
            }
            Harm::Hold(to) => return self.ground.network.hold(node, to, now + time),
            Harm::Kill | Harm::PowerCut => {
                self.end(node, harm == Harm::Kill);
                Over::Down(node)
            }
            Harm::Stop | Harm::Sleep => {
                if machine.state != State::Up {
                    return;
                }
                machine.state = State::Stopped;
                if harm == Harm::Sleep {
                    machine.state = State::Asleep { since: now };
                    if time >= self.ground.network.silence() {
                        self.isolate(node);
                    }
                }
                Over::Pause(node)
            }
            Harm::SetClock(nanos) => return machine.clock.set(now, nanos),
            Harm::Drift(drift_ppm) => {
                machine.clock.drift(now, drift_ppm);
                return self.watch(node);
            }
            Harm::FillDisk(room) => {
                machine.disk.limit(Some(room));
                Over::FullDisk(node)
            }
            Harm::SlowDisk(lag) => {
                machine.extra_lag = lag;
                Over::SlowDisk(node)
            }
            Harm::Damage => {
                let damaged = machine.disk.damage(&mut machine.random);
                let at = damaged.map_or(u64::MAX, |(_, at)| at as u64);
                return self.ground.note(node, "is damaged at", [at, 0]);
            }
            Harm::Restore => Over::Backup(node, Box::new(machine.disk.clone())),
        };
        self.ground.agenda.after(time, Event::Over(over));
    }

    fn over(&mut self, over: Over) {
        match over {
            Over::Cut { from, to } => self.ground.network.mend(from, to),
            Over::Down(node) => self.begin(node),
            Over::Pause(node) => self.resume(node),
            Over::FullDisk(node) => self.ground.machines[node].disk.limit(None),
            Over::SlowDisk(node) => self.ground.machines[node].extra_lag = Duration::ZERO,
            Over::Backup(node, backup) => {
                self.ground.note(node, "is restored", [0, 0]);
                self.end(node, true);
                self.ground.machines[node].disk.restore(&backup);
                self.begin(node);
            }
        }
    }

    /// All connections of a node are broken.
    fn isolate(&mut self, node: usize) {
        for peer in (0..self.nodes()).filter(|peer| *peer != node) {
            self.ground.lose(node, peer);
            self.ground.lose(peer, node);
        }
    }
}

impl<P: Process> Ground<P> {
    fn elapsed(&self) -> Duration {
        self.agenda.now().since(BEGIN)
    }

    fn note(&mut self, node: usize, what: &'static str, values: [u64; 2]) {
        self.trail.note(self.agenda.now().since(BEGIN), node, what, values);
    }

    fn note_more(
        &mut self,
        node: usize,
        what: &'static str,
        values: [u64; 2],
        more: impl FnOnce() -> String,
    ) {
        self.trail.note_more(self.agenda.now().since(BEGIN), node, what, values, more);
    }

    fn note_input(&mut self, node: usize, input: &Input<P::Message, P::Request>) {
        match input {
            Input::Linked(peer) => self.note(node, "is linked to", [*peer as u64, 0]),
            Input::Unlinked(peer) => self.note(node, "has no link to", [*peer as u64, 0]),
            Input::Message(from, message) => {
                let values = [*from as u64, message.bytes() as u64];
                self.note_more(node, "receives", values, || format!("{message:?}"));
            }
            Input::Request(request) => {
                self.note_more(node, "is asked", [0, 0], || format!("{request:?}"));
            }
            Input::Synced(mark) => {
                self.note_more(node, "has synced", [0, 0], || format!("{mark:?}"));
            }
            Input::Timeout => self.note(node, "wakes", [0, 0]),
        }
    }

    fn cut(&mut self, from: usize, to: usize, time: Duration) {
        self.network.cut(from, to);
        self.agenda.after(time, Event::Over(Over::Cut { from, to }));
        self.lose(from, to);
    }

    /// All that is on that way is lost; both ends learn in time that their connection is over.
    fn lose(&mut self, from: usize, to: usize) {
        let broken = self.network.lose(self.agenda.now(), from, to);
        let silence = self.network.silence();
        self.agenda.after(silence, Event::Notice { node: from, peer: to, broken });
        self.agenda.after(silence, Event::Notice { node: to, peer: from, broken });
    }
}

/// The process's view of its node.
pub struct Node<'a, P: Process> {
    me: usize,
    ground: &'a mut Ground<P>,
}

impl<P: Process> Node<'_, P> {
    /// Its number.
    pub fn me(&self) -> usize {
        self.me
    }

    /// How many nodes the world has.
    pub fn nodes(&self) -> usize {
        self.ground.machines.len()
    }

    /// All other nodes.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<P> {
        let me = self.me;
        (0..self.nodes()).filter(move |node| *node != me)
    }

    /// The monotonic clock: time since the machine began, from the epoch on.
    pub fn now(&self) -> Instant {
        self.ground.machines[self.me].clock.monotonic(self.ground.agenda.now())
    }

    /// The wall clock.
    pub fn wall(&self) -> Instant {
        self.ground.machines[self.me].clock.wall(self.ground.agenda.now())
    }

    /// Chance, of the seed.
    pub fn random(&mut self) -> &mut Random {
        &mut self.ground.machines[self.me].random
    }

    /// Its disk.
    pub fn disk(&mut self) -> &mut Disk {
        &mut self.ground.machines[self.me].disk
    }

    /// A file in the memory of its machine, as `/run` has them: it outlives the process, no loss of power, and no backup has it.
    pub fn memory(&mut self) -> &mut Vec<u8> {
        &mut self.ground.machines[self.me].memory
    }

    /// Asks that all that was written is put on the disk; [`Input::Synced`] says when it is, in the order of the calls.
    pub fn sync(&mut self) -> Mark {
        let Ground { agenda, machines, disk_lag, .. } = &mut *self.ground;
        let machine = &mut machines[self.me];
        let at = agenda.now() + machine.random.time(*disk_lag + machine.extra_lag);
        machine.last_sync = machine.last_sync.max(at);
        let mark = machine.disk.mark();
        let event = Event::Synced { node: self.me, life: machine.life, mark };
        agenda.at(machine.last_sync, event);
        mark
    }

    /// Whether there is a connection, as far as the node knows.
    pub fn is_linked(&self, peer: usize) -> bool {
        self.ground.network.is_linked(self.me, peer)
    }

    /// Tries to connect, if it neither has a connection nor tries. [`Input::Linked`] or [`Input::Unlinked`] follows.
    pub fn dial(&mut self, peer: usize) {
        let Ground { agenda, network, machines, path, .. } = &mut *self.ground;
        let jitter = machines[self.me].random.time(path.jitter);
        let (node, now) = (self.me, agenda.now());
        let state = machines[peer].state;
        let answers = matches!(state, State::Up | State::Stopped);
        let Some(dial) = network.dial(now, node, peer, answers, jitter) else { return };
        // A machine without the process says so; of all others nothing is heard.
        let is_refused = state == State::Down { has_power: true } && !dial.is_cut;
        let patience = if is_refused { 2 * path.delay } else { path.silence };
        let connection = dial.connection;
        agenda.after(patience, Event::GiveUp { node, peer, connection });
        if let Some([there, here]) = dial.looks {
            agenda.at(there, Event::Arrive { from: node, to: peer });
            agenda.at(here, Event::Arrive { from: peer, to: node });
        }
    }

    /// Ends a connection behind what was sent on it, or gives up to dial. The peer is given [`Input::Unlinked`], this node is not.
    pub fn hang_up(&mut self, peer: usize) {
        let Ground { agenda, network, .. } = &mut *self.ground;
        if let Some(at) = network.hang_up(agenda.now(), self.me, peer) {
            agenda.at(at, Event::Arrive { from: self.me, to: peer });
        }
    }

    /// Sends a message on the connection that there is. Without one it is lost.
    pub fn send(&mut self, peer: usize, message: P::Message) {
        let Ground { agenda, network, machines, path, .. } = &mut *self.ground;
        let (jitter, bytes) = (machines[self.me].random.time(path.jitter), message.bytes());
        let message = (message, bytes);
        if let Some(at) = network.send(agenda.now(), self.me, peer, message, jitter) {
            agenda.at(at, Event::Arrive { from: self.me, to: peer });
        }
    }

    /// Lets the oracle know.
    pub fn report(&mut self, report: P::Report) {
        self.ground.note_more(self.me, "reports", [0, 0], || format!("{report:?}"));
        let at = self.ground.elapsed();
        self.ground.reports.push(Reported { at, node: self.me, report });
    }

    /// Writes something into the trail.
    pub fn note(&mut self, what: &'static str, values: [u64; 2]) {
        self.ground.note(self.me, what, values);
    }
}
