//! The node, its connections and its clock: a shell in virtual time.

use std::{collections::BTreeMap, hash::RandomState, sync::Arc, time::Duration};

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidegate_broker::{
    Broker, ConnectionKey, Peer, SessionConfig, Shared, Statistics,
    spill::{SPILLED_BYTES, SpillError, Wanted, simulated::SimulatedSpill},
};
use tidegate_message::{AllowAll, Instant};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter, Version};

use super::{
    client::Client,
    faults::Fault,
    link::{Path, Pipe},
    oracle::{Oracle, number},
    plan::{ClientPlan, Plan},
    tape::Tape,
};
use crate::{agenda::Agenda, trail::Trail};

/// When a site begins.
pub(super) const BEGIN: Instant = Instant::from_millis(1_700_000_000_000);
/// How long a shell waits for the last words of a connection to leave.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// How long after the last fault everything owed must have come: the paper's policies withhold each large message for 20 s.
const HEALED: Duration = Duration::from_secs(3_000);
/// Longest time that the disk takes to answer.
const DISK_LAG: Duration = Duration::from_millis(50);
/// Events at one instant after which time stands still.
const STUCK_AFTER: u32 = 100_000;
/// Times that nothing is owed anywhere, before the end.
const QUIET_LOOKS: u32 = 2;

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Of everything that happened.
    pub hash: u64,
    /// Messages that were published.
    pub published: u64,
    /// Messages that came to clients.
    pub delivered: u64,
    /// Messages that were refused.
    pub refused: u64,
    /// Crashes of the node.
    pub crashes: u64,
    /// Faults.
    pub faults: u64,
    /// Records that journals had no room for.
    pub unwritten: u64,
    /// The broker's counts.
    pub statistics: Statistics,
}

/// Lets the site of a seed run to its end, in which the node may be killed and lose its power if it `crashes`.
///
/// # Panics
/// If something is not as it must be; the last events and how to see them again are printed.
pub fn run(seed: u64, crashes: bool) -> Outcome {
    play(seed, Plan::of(seed, crashes))
}

/// The same where all that finds no room in memory waits on disk; nothing is lost then but for want of the node's memory.
///
/// # Panics
/// As [`run`].
pub fn run_spilling(seed: u64) -> Outcome {
    play(seed, Plan::of(seed, false).spilling())
}

/// The same where sessions have room for few messages each, on many shards and under every policy.
///
/// # Panics
/// As [`run`].
pub fn run_overflowing(seed: u64, crashes: bool) -> Outcome {
    play(seed, Plan::of(seed, crashes).overflowing(seed))
}

/// The same where the journal of each shard has little room at times.
///
/// # Panics
/// As [`run`].
pub fn run_filling(seed: u64) -> Outcome {
    play(seed, Plan::of(seed, true).filling(seed))
}

fn play(seed: u64, plan: Plan) -> Outcome {
    let mut site = Site::new(seed, plan);
    site.live();
    site.heal();
    site.judge();
    site.begin_again();
    site.end()
}

#[derive(Debug)]
pub(super) enum Event {
    /// A direction of a connection moves.
    Pipe(usize, Way),
    Peers(usize, Vec<Peer>),
    Join(usize),
    Act(usize),
    Answer(usize),
    Ping(usize),
    Hear(usize),
    Fault,
    /// The node ends, soon after a client came to its session.
    Crash,
    Linger(usize),
    /// That shard's records are durable up to there.
    Flushed(usize, usize),
    /// The disk's answer to that shard.
    Fetched(usize, Wanted, Vec<Result<Bytes, SpillError>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Up,
    Down,
}

/// A connection, from both sides.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: usize,
    pub(super) path: Path,
    pub(super) up: Pipe,
    pub(super) down: Pipe,
    pub(super) stage: Stage,
    /// Bytes that the broker has not taken.
    pub(super) input: Vec<u8>,
    /// Output of the broker that is no whole packet yet.
    pub(super) written: Vec<u8>,
    pub(super) aliases: BTreeMap<u16, String>,
    pub(super) version: Version,
    pub(super) will: Option<u64>,
    pub(super) said_goodbye: bool,
    pub(super) is_left: bool,
    pub(super) is_cut: bool,
    pub(super) is_kept: bool,
    /// It asked for a session without what was.
    pub(super) is_clean: bool,
    pub(super) is_paused: bool,
    /// Too many answers wait for it.
    pub(super) is_full: bool,
    pub(super) is_blocked: bool,
    pub(super) is_ending: bool,
    /// When each direction is looked at again.
    pub(super) scheduled: [Option<Instant>; 2],
}

/// A connection at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Opening,
    Open(usize, ConnectionKey),
    Closed,
}

pub(super) struct Site {
    pub(super) random: SmallRng,
    pub(super) agenda: Agenda<Event>,
    pub(super) shared: Arc<Shared>,
    pub(super) shards: Vec<Broker>,
    pub(super) seed: u64,
    /// Where messages wait that find no room in memory.
    pub(super) disk: Option<Arc<SimulatedSpill>>,
    /// Which client is of which shard, whichever process it is.
    pub(super) placement: RandomState,
    /// By shard, its journal, and whether it is being flushed.
    pub(super) tapes: Vec<Tape>,
    pub(super) flushing: Vec<bool>,
    pub(super) crashes: u64,
    /// Records that journals of former processes had no room for.
    pub(super) unwritten: u64,
    /// Counts of former processes, and by client, the messages they dropped.
    pub(super) counted: Statistics,
    pub(super) dropped: Vec<u64>,
    /// Bytes that the last restart brought back, whether or not there is room.
    pub(super) restored_bytes: u64,
    pub(super) peers_at: Vec<Instant>,
    pub(super) clients: Vec<Client>,
    pub(super) links: Vec<Link>,
    pub(super) by_key: Vec<BTreeMap<ConnectionKey, usize>>,
    /// By client, the connection that its session has.
    pub(super) current: Vec<Option<usize>>,
    pub(super) plan: Plan,
    pub(super) oracle: Oracle,
    pub(super) trail: Trail,
    pub(super) is_live: bool,
    pub(super) faults: u64,
    /// Connections that ended, and those that ended with something unsent.
    pub(super) ends: u64,
    pub(super) lossy_ends: u64,
    /// Something is on its way between shards.
    pub(super) batches: usize,
}

impl Site {
    fn new(seed: u64, mut plan: Plan) -> Self {
        plan.clients.push(observer());
        let placement = RandomState::new();
        let (config, rules) = (plan.config.clone(), Arc::new(AllowAll));
        let shared = Shared::placed(config, plan.shards, rules, BEGIN, placement.clone());
        // The hash that places clients is another in every process: they get names that it places in turn.
        let name = |number: usize| {
            let mut names = (0..100_000).map(|suffix| format!("c{number}-{suffix:05}"));
            let home = number % plan.shards;
            names.find(|name| shared.shard_of(name) == home).expect("there are names enough")
        };
        let clients = plan.clients.iter().enumerate();
        let mut site = Self {
            seed,
            disk: plan.spills.map(|bytes| Arc::new(SimulatedSpill::new(bytes))),
            placement,
            tapes: Vec::new(),
            flushing: Vec::new(),
            crashes: 0,
            unwritten: 0,
            counted: Statistics::default(),
            dropped: vec![0; plan.clients.len()],
            restored_bytes: 0,
            random: SmallRng::seed_from_u64(!seed),
            agenda: Agenda::new(BEGIN),
            shards: Vec::new(),
            peers_at: vec![BEGIN; plan.shards * plan.shards],
            clients: clients.map(|(at, plan)| Client::new(at, plan.clone(), name(at))).collect(),
            links: Vec::new(),
            by_key: vec![BTreeMap::new(); plan.shards],
            current: vec![None; plan.clients.len()],
            oracle: Oracle::new(&plan),
            trail: Trail::new(seed, "client", "tidegate-sim --test it broker"),
            is_live: true,
            faults: 0,
            ends: 0,
            lossy_ends: 0,
            batches: 0,
            shared,
            plan,
        };
        site.begin_shards();
        site.keep();
        site
    }

    // ---- the clock

    pub(super) fn time(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.random_range(0..=most.as_nanos() as u64))
    }

    pub(super) fn note(&mut self, who: usize, what: &'static str, values: [u64; 2]) {
        self.trail.note(self.agenda.now().since(BEGIN), who, what, values);
    }

    /// The next thing that happens, up to `end`; false if there is none.
    fn happen(&mut self, end: Instant) -> bool {
        let event = self.agenda.next().map(|(at, _)| at);
        let timeouts = self.shards.iter().filter_map(Broker::poll_timeout);
        let next = timeouts.chain(event).min().filter(|at| *at <= end);
        let Some(next) = next else {
            self.agenda.advance(end);
            return false;
        };
        assert!(
            self.agenda.advance(next) < STUCK_AFTER,
            "time stands still: {:?}, timers {:?}",
            self.agenda.next(),
            self.shards.iter().map(Broker::poll_timeout).collect::<Vec<_>>()
        );
        self.oracle.step();
        if let Some(event) = self.agenda.pop() {
            self.handle(event);
        }
        for shard in &mut self.shards {
            shard.handle_timeout(self.agenda.now());
        }
        while (0..self.shards.len()).fold(false, |moved, shard| self.flush_all(shard) | moved) {}
        self.flush_later();
        self.ask_disk();
        let budget = self.shared.budget();
        let most = budget.limit().max(self.restored_bytes) + self.beyond();
        assert!(budget.used() <= most && budget.peak() <= most, "over budget");
        true
    }

    /// Answers of the disk come later.
    fn ask_disk(&mut self) {
        while let Some((shard, wanted, answers)) = self.disk.as_ref().and_then(|disk| disk.answer())
        {
            let time = self.time(DISK_LAG);
            self.agenda.after(time, Event::Fetched(shard, wanted, answers));
        }
    }

    /// Bytes that may be held beyond the budget: a place for each message that was put on disk, and one message for each
    /// client.
    fn beyond(&self) -> u64 {
        let Some(disk) = &self.disk else { return 0 };
        let largest = self.clients.iter().map(|client| client.plan.payload_bytes_max as u64).max();
        disk.writes() * SPILLED_BYTES + self.clients.len() as u64 * (largest.unwrap_or(0) + 1_000)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Pipe(link, way) => self.step(link, way),
            Event::Peers(shard, batch) => {
                self.batches -= 1;
                self.shards[shard].handle_peers(self.agenda.now(), batch);
            }
            Event::Join(client) => self.join(client),
            Event::Act(client) => {
                let at = self.agenda.now().since(BEGIN);
                let Self { clients, oracle, trail, random, .. } = self;
                clients[client].act(oracle, trail, at, random);
                self.speak(client);
                if self.is_live {
                    let gap = self.time(2 * self.plan.clients[client].publish_gap);
                    self.agenda.after(gap, Event::Act(client));
                }
            }
            Event::Answer(client) => {
                self.clients[client].wakes_at.take_if(|at| *at <= self.agenda.now());
                self.speak(client);
            }
            Event::Ping(client) => {
                if self.clients[client].is_connected {
                    self.clients[client].ping();
                    self.speak(client);
                }
                self.watch(client);
            }
            Event::Hear(client) => {
                if let Some(link) = self.clients[client].link {
                    self.step(link, Way::Down);
                }
            }
            Event::Fault => self.fault(),
            Event::Crash => {
                if self.is_live {
                    self.crash();
                }
            }
            Event::Linger(link) => self.drop_link(link),
            Event::Flushed(shard, end) => self.flushed(shard, end),
            Event::Fetched(shard, wanted, answers) => {
                self.shards[shard].handle_fetched(self.agenda.now(), wanted, answers);
            }
        }
    }

    // ---- phases

    /// Clients come, publish and have their faults.
    fn live(&mut self) {
        let observer = self.clients.len() - 1;
        for client in 0..observer {
            let (joins, acts) =
                (self.time(Duration::from_secs(1)), self.time(Duration::from_secs(2)));
            self.agenda.after(joins, Event::Join(client));
            self.agenda.after(acts, Event::Act(client));
            self.watch(client);
        }
        let gap = self.time(2 * self.plan.fault_gap);
        self.agenda.after(gap, Event::Fault);
        let end = BEGIN + self.plan.length;
        while self.happen(end) {}
    }

    /// Faults end, all come back, and everything owed arrives.
    fn heal(&mut self) {
        self.is_live = false;
        self.tapes.iter().for_each(|tape| tape.limit(None));
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            link.path.heal();
            link.up.heal();
            link.down.heal();
            self.schedule(at);
        }
        let observer = self.clients.len() - 1;
        for client in 0..observer {
            self.clients[client].deaf_until = Instant::MIN;
            self.clients[client].plan.answer_lag = Duration::ZERO;
            if self.clients[client].link.is_none() {
                self.agenda.after(Duration::ZERO, Event::Join(client));
            }
            self.agenda.after(Duration::ZERO, Event::Hear(client));
        }
        self.settle(observer);
        self.agenda.after(Duration::ZERO, Event::Join(observer));
        self.settle(observer + 1);
    }

    /// The node is killed once more: acknowledged messages do not come again.
    fn begin_again(&mut self) {
        if self.plan.keeps.is_none() {
            return;
        }
        self.oracle.all_is_done();
        self.crash();
        self.settle(self.clients.len() - 1);
    }

    /// Runs until the first `clients` and the broker owe each other nothing.
    fn settle(&mut self, clients: usize) {
        let end = self.agenda.now() + HEALED;
        let mut quiet = 0;
        while quiet < QUIET_LOOKS {
            assert!(self.agenda.now() < end, "something is owed for ever: {}", self.unrest());
            // Not in step with anybody's pings.
            let look = self.agenda.now() + Duration::from_millis(1_037);
            while self.happen(look) {}
            quiet = if self.is_quiet(clients) { quiet + 1 } else { 0 };
        }
    }

    fn is_quiet(&self, clients: usize) -> bool {
        let sessions = self.shards.iter().flat_map(|shard| shard.sessions(usize::MAX));
        let mut sessions = sessions.filter(|session| session.client_id.starts_with('c'));
        self.clients[..clients].iter().all(Client::is_quiet)
            && self.batches == 0
            && self.unquiet_links().next().is_none()
            && sessions.all(|session| session.queued == 0 && session.inflight == 0)
    }

    /// Connections that something is on its way in, of those that still matter.
    fn unquiet_links(&self) -> impl Iterator<Item = &Link> {
        let holds = |link: &&Link| !link.up.is_empty() || !link.down.is_empty();
        self.links.iter().filter(|link| link.stage != Stage::Closed).filter(holds)
    }

    fn unrest(&self) -> String {
        let clients: Vec<usize> =
            (0..self.clients.len()).filter(|at| !self.clients[*at].is_quiet()).collect();
        let paused = self.links.iter().filter(|link| link.is_paused && link.stage != Stage::Closed);
        format!(
            "clients {clients:?}, {} batches, connections of {:?}, not read from {:?}, sessions {:?}",
            self.batches,
            self.unquiet_links().map(|link| link.client).collect::<Vec<_>>(),
            paused.map(|link| link.client).collect::<Vec<_>>(),
            self.shards.iter().flat_map(|shard| shard.sessions(usize::MAX)).collect::<Vec<_>>(),
        )
    }

    fn judge(&mut self) {
        let mut dropped = self.dropped.clone();
        for session in self.shards.iter().flat_map(|shard| shard.sessions(usize::MAX)) {
            let client = self.clients.iter().position(|client| *client.name == *session.client_id);
            dropped[client.expect("only clients have sessions")] += session.dropped.total();
        }
        let statistics = self.statistics();
        let everywhere = statistics.dropped.total();
        assert!(
            dropped.iter().sum::<u64>() <= everywhere,
            "sessions count more than the node: {dropped:?}, {:?}",
            statistics.dropped
        );
        let session_ended = statistics.dropped.session_ended;
        let refused = statistics.refused;
        self.oracle.judge(&dropped, everywhere, session_ended, refused, self.ends == 0);
        assert!(self.oracle.written <= statistics.sent, "more was written than is counted as sent");
        if self.lossy_ends == 0 {
            assert_eq!(self.oracle.written, statistics.sent, "messages sent");
        }
        let observer = self.clients.last().expect("the observer is there");
        for topic in ["r/0", "r/1"] {
            match observer.retained.get(topic) {
                Some(payload) => {
                    let number = number(payload);
                    assert!(self.oracle.may_be_retained(number, topic), "{number} on {topic}");
                }
                None => assert!(!self.oracle.must_be_retained(topic), "nothing on {topic}"),
            }
        }
    }

    pub(super) fn statistics(&self) -> Statistics {
        // Each shard reports on itself alone; shared counts are reported at intervals.
        let mut sum = Statistics { sessions: 0, connections: 0, ..self.counted };
        for shard in &self.shards {
            let one = shard.statistics();
            sum.sessions += one.sessions;
            sum.connections += one.connections;
            sum.sent += one.sent;
            sum.received += one.received;
            sum.refused += one.refused;
            sum.withheld += one.withheld;
            sum.spilled += one.spilled;
            sum.overflow_disconnects += one.overflow_disconnects;
            sum.dropped.queue_full += one.dropped.queue_full;
            sum.dropped.spill_full += one.dropped.spill_full;
            sum.dropped.spill_lost += one.dropped.spill_lost;
            sum.dropped.conflated += one.dropped.conflated;
            sum.dropped.budget_full += one.dropped.budget_full;
            sum.dropped.expired += one.dropped.expired;
            sum.dropped.too_large += one.dropped.too_large;
            sum.dropped.not_allowed += one.dropped.not_allowed;
            sum.dropped.session_ended += one.dropped.session_ended;
            sum.dropped.members_away += one.dropped.members_away;
        }
        sum
    }

    /// All go, and nothing is left.
    fn end(mut self) -> Outcome {
        let outcome = Outcome {
            hash: self.trail.hash(),
            published: self.oracle.published(),
            delivered: self.oracle.delivered,
            refused: self.oracle.refused,
            crashes: self.crashes,
            unwritten: self.unwritten + self.tapes.iter().map(Tape::failures).sum::<u64>(),
            faults: self.faults,
            statistics: self.statistics(),
        };
        let observer = self.clients.len() - 1;
        for topic in ["r/0", "r/1"] {
            self.clients[observer].clear(topic);
        }
        self.speak(observer);
        let end = self.agenda.now() + Duration::from_secs(10);
        while self.happen(end) {}
        for link in 0..self.links.len() {
            self.drop_link(link);
        }
        self.agenda.retain(|_| false);
        let end = self.agenda.now() + 2 * self.plan.config.session_expiry_max;
        while self.happen(end) && self.statistics().sessions > 0 {}
        let statistics = self.statistics();
        assert_eq!(
            (statistics.sessions, statistics.connections),
            (0, 0),
            "sessions and connections that do not end"
        );
        assert_eq!(self.shared.subscriptions(), 0, "subscriptions without a session");
        if self.plan.config.sys_interval.is_zero() {
            while self.happen(end) {}
            assert!(self.shards.iter().all(|shard| shard.poll_timeout().is_none()), "timers");
            let held = (self.shared.retained_count(), self.shared.budget().used());
            assert_eq!(held, (0, 0), "retained messages, and bytes that were not given back");
        } else {
            // `$SYS` is retained, and short.
            let most = 1_000 * self.shared.retained_count() as u64;
            assert!(self.shared.budget().used() <= most, "bytes that were not given back");
        }
        outcome
    }

    // ---- faults

    fn fault(&mut self) {
        if !self.is_live {
            return;
        }
        let gap = self.time(2 * self.plan.fault_gap);
        self.agenda.after(gap, Event::Fault);
        if self.plan.keeps.is_some() && self.random.random_ratio(1, 8) {
            return self.crash();
        }
        if self.plan.fills && self.random.random_ratio(1, 3) {
            return self.fill();
        }
        let client = self.random.random_range(0..self.clients.len() - 1);
        let fault = match Fault::draw(&mut self.random) {
            // That the former session ended may find no room, and then it is back.
            Fault::CleanStart { learns } if self.plan.fills => Fault::Restart { learns },
            fault => fault,
        };
        let Some(at) = self.clients[client].link else { return };
        self.faults += 1;
        self.note(client, fault.word(), [at as u64, 0]);
        let (now, link) = (self.agenda.now(), &mut self.links[at]);
        match fault {
            Fault::Cut => {
                link.is_cut = true;
                link.up.cut(now, &mut self.random);
                link.down.cut(now, &mut self.random);
            }
            Fault::Restart { learns } | Fault::CleanStart { learns } => {
                link.is_cut = true;
                link.up.cut(now + learns, &mut self.random);
                self.clients[client].starts_clean |= matches!(fault, Fault::CleanStart { .. });
                self.leave_link(client, Duration::from_secs(3));
            }
            Fault::HalfClose => {
                link.up.finish(now);
                self.clients[client].is_leaving = true;
            }
            Fault::TakeOver { learns } => {
                // Its output still arrives; its end comes late.
                if self.clients[client].is_leaving {
                    return;
                }
                let over = now + learns;
                self.leave_link(client, Duration::ZERO);
                self.links[at].up.finish(over);
            }
            Fault::Stall(time) => {
                link.up.stall(now + time);
                link.down.stall(now + time);
            }
            Fault::Deaf(time) => {
                self.clients[client].deaf_until = now + time;
                self.agenda.after(time, Event::Hear(client));
            }
            Fault::Rate(rate) => link.path.rate = rate,
            Fault::Leave { keeps_will } => {
                let client_ = &mut self.clients[client];
                if client_.is_connected && !client_.is_leaving {
                    client_.leave(keeps_will);
                    let disconnect = std::mem::take(&mut client_.output);
                    self.links[at].up.put(&disconnect);
                    self.links[at].is_left = true;
                    self.links[at].said_goodbye = self.clients[client].will.is_none();
                    self.links[at].up.finish(now);
                }
            }
        }
        self.schedule(at);
    }

    /// The client uses its connection no more, and comes back within that time.
    pub(super) fn leave_link(&mut self, client: usize, within: Duration) {
        let link = self.clients[client].link;
        self.clients[client].abandon();
        if let Some(link) = link {
            // It is not read: input is thrown away.
            self.links[link].down.unread.clear();
            self.schedule(link);
        }
        let time = self.time(within);
        self.agenda.after(time, Event::Join(client));
    }

    // ---- a client's side

    fn join(&mut self, client: usize) {
        if self.clients[client].link.is_some() {
            return;
        }
        let at = self.links.len();
        let plan = &self.plan.clients[client];
        let mut path = plan.path.clone();
        if !self.is_live {
            path.heal();
        }
        self.clients[client].connect(at, &mut self.oracle);
        self.links.push(Link {
            client,
            path,
            up: Pipe::new(),
            down: Pipe::new(),
            stage: Stage::Opening,
            input: Vec::new(),
            written: Vec::new(),
            aliases: BTreeMap::new(),
            version: plan.version,
            will: self.clients[client].will,
            said_goodbye: false,
            is_left: false,
            is_cut: false,
            is_kept: false,
            is_clean: false,
            is_paused: false,
            is_full: false,
            is_blocked: false,
            is_ending: false,
            scheduled: [None; 2],
        });
        self.note(client, "connects", [at as u64, u64::from(self.clients[client].starts_clean)]);
        self.speak(client);
    }

    /// Sends what the client has to say.
    pub(super) fn speak(&mut self, client: usize) {
        let Some(at) = self.clients[client].link else { return };
        let due = self.clients[client].answer(self.agenda.now(), &mut self.oracle);
        let wakes_at = &mut self.clients[client].wakes_at;
        if let Some(due) = due.filter(|due| wakes_at.is_none_or(|at| at > *due)) {
            *wakes_at = Some(due);
            self.agenda.at(due, Event::Answer(client));
        }
        let output = std::mem::take(&mut self.clients[client].output);
        if !output.is_empty() {
            self.links[at].up.put(&output);
            self.schedule(at);
        }
    }

    /// Pings in time.
    fn watch(&mut self, client: usize) {
        let keep_alive = self.plan.clients[client].keep_alive;
        if keep_alive > 0 {
            self.agenda
                .after(Duration::from_millis(u64::from(keep_alive) * 500), Event::Ping(client));
        }
    }

    pub(super) fn schedule(&mut self, at: usize) {
        let client = &self.clients[self.links[at].client];
        let is_heard = client.link == Some(at) && client.deaf_until <= self.agenda.now();
        for way in [Way::Up, Way::Down] {
            let link = &mut self.links[at];
            let Some(next) = link.next(way, self.agenda.now(), is_heard) else { continue };
            let scheduled = &mut link.scheduled[way as usize];
            if scheduled.is_none_or(|at| at > next) {
                *scheduled = Some(next);
                self.agenda.at(next, Event::Pipe(at, way));
            }
        }
    }
}

/// The observer of retained messages at the end.
fn observer() -> ClientPlan {
    ClientPlan {
        version: Version::V5,
        path: Path {
            rate: 10_000_000,
            delay: Duration::from_millis(1),
            segment_bytes_max: 60_000,
            window_bytes: 64 << 10,
        },
        expiry: 0,
        keep_alive: 0,
        receive_maximum: None,
        alias_maximum: 0,
        uses_aliases: false,
        session: SessionConfig::default(),
        filters: vec![SubscribeFilter {
            filter: "r/+".to_owned(),
            maximum_qos: QoS::ExactlyOnce,
            no_local: false,
            retain_as_published: true,
            retain_handling: RetainHandling::Send,
        }],
        subscription_id: None,
        publishes: None,
        publish_gap: Duration::from_secs(1),
        payload_bytes_max: 0,
        answer_lag: Duration::ZERO,
        will: None,
        may_be_refused: false,
    }
}
