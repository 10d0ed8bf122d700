//! Each guarantee of the simulated world, and each fault that it has.

use std::{collections::BTreeSet, time::Duration};

use tidegate_message::Instant;
use tidegate_sim::{
    seeds::{run_all, seeds},
    trail::Trail,
    world::{
        BEGIN, ClockPlan, DiskFull, Harm, Input, Message, Node, Plan, Process, Reported, Trial,
        World, try_seed,
    },
};

const TEST: &str = "tidegate-sim --test it world";
const LOG: &str = "log";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Does what it is asked and reports all that happens to it.
struct Witness {
    wakes_at: Option<Instant>,
}

#[derive(Clone, Debug)]
enum Ask {
    Dial(usize),
    HangUp(usize),
    /// So many numbers, from zero on.
    Send(usize, u32),
    Write(&'static str),
    Sync,
    Wake(Duration),
    Clocks,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Begins(String),
    Linked(usize),
    Unlinked(usize),
    Got(usize, u32),
    Full(DiskFull),
    Synced,
    /// Monotonic and wall.
    Clocks(Instant, Instant),
}

/// A number in a hundred bytes.
#[derive(Clone, Debug)]
struct Number(u32);

impl Message for Number {
    fn bytes(&self) -> usize {
        100
    }
}

impl Process for Witness {
    type Setup = ();
    type Message = Number;
    type Request = Ask;
    type Report = Seen;

    fn begin((): &(), node: &mut Node<'_, Self>) -> Self {
        let log = node.disk().read(LOG).unwrap_or_default();
        let log = String::from_utf8_lossy(log).into_owned();
        node.report(Seen::Begins(log));
        Self { wakes_at: None }
    }

    fn handle(&mut self, node: &mut Node<'_, Self>, input: Input<Number, Ask>) {
        match input {
            Input::Linked(peer) => node.report(Seen::Linked(peer)),
            Input::Unlinked(peer) => node.report(Seen::Unlinked(peer)),
            Input::Message(from, Number(number)) => node.report(Seen::Got(from, number)),
            Input::Synced(_) => node.report(Seen::Synced),
            Input::Timeout => {
                self.wakes_at = None;
                let clocks = Seen::Clocks(node.now(), node.wall());
                node.report(clocks);
            }
            Input::Request(Ask::Dial(peer)) => node.dial(peer),
            Input::Request(Ask::HangUp(peer)) => node.hang_up(peer),
            Input::Request(Ask::Send(peer, count)) => {
                (0..count).for_each(|number| node.send(peer, Number(number)));
            }
            Input::Request(Ask::Write(text)) => {
                if let Err(full) = node.disk().append(LOG, text.as_bytes()) {
                    node.report(Seen::Full(full));
                }
            }
            Input::Request(Ask::Sync) => drop(node.sync()),
            Input::Request(Ask::Wake(time)) => self.wakes_at = Some(node.now() + time),
            Input::Request(Ask::Clocks) => {
                let clocks = Seen::Clocks(node.now(), node.wall());
                node.report(clocks);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.wakes_at
    }
}

/// So many nodes whose disks and ways take 10 ms, without jitter.
fn plan(nodes: usize) -> Plan<Ask> {
    plan_of(7, nodes)
}

fn plan_of(seed: u64, nodes: usize) -> Plan<Ask> {
    let mut plan = Plan::quiet(seed, nodes);
    (plan.path.delay, plan.path.jitter) = (ms(10), Duration::ZERO);
    plan.disk_lag = ms(10);
    plan
}

fn world(plan: &Plan<Ask>) -> World<Witness> {
    let mut world = World::new(plan, (), Trail::new(plan.seed, "node", TEST));
    world.take_reports();
    world
}

/// Two nodes with a connection.
fn linked() -> World<Witness> {
    linked_of(7)
}

fn linked_of(seed: u64) -> World<Witness> {
    let mut world = world(&plan_of(seed, 2));
    world.request(0, Ask::Dial(1));
    assert_eq!(seen(&mut world, ms(50)), [(1, Seen::Linked(0)), (0, Seen::Linked(1))]);
    world
}

/// The reports of a time that goes by.
fn seen(world: &mut World<Witness>, time: Duration) -> Vec<(usize, Seen)> {
    world.run_for(time);
    world.take_reports().into_iter().map(|Reported { node, report, .. }| (node, report)).collect()
}

/// The numbers below `count`, as a node gets them.
fn numbers(to: usize, from: usize, count: u32) -> Vec<(usize, Seen)> {
    (0..count).map(|number| (to, Seen::Got(from, number))).collect()
}

fn clocks(world: &mut World<Witness>) -> (Instant, Instant) {
    world.request(0, Ask::Clocks);
    match seen(world, Duration::ZERO)[..] {
        [(0, Seen::Clocks(monotonic, wall))] => (monotonic, wall),
        ref other => panic!("{other:?}"),
    }
}

// ---- links

#[test]
fn messages_arrive_in_order_at_the_rate_and_after_the_delay() {
    let mut plan = plan(2);
    (plan.path.rate, plan.path.jitter) = (10_000, ms(40));
    let mut world = world(&plan);
    world.request(0, Ask::Dial(1));
    seen(&mut world, ms(100));
    world.request(0, Ask::Send(1, 50));
    let first = seen(&mut world, ms(200));
    assert!((10..20).contains(&first.len()), "10 ms for each message: {}", first.len());
    let rest = seen(&mut world, ms(400));
    assert_eq!([first, rest].concat(), numbers(1, 0, 50));
}

#[test]
fn cut_loses_what_is_on_its_way_and_the_other_direction_works() {
    let mut world = linked();
    world.request(0, Ask::Send(1, 3));
    world.run_for(ms(5));
    world.inflict(Harm::Cut(1).at(0, ms(1_000)));
    world.request(0, Ask::Send(1, 3));
    world.request(1, Ask::Send(0, 3));
    assert_eq!(seen(&mut world, ms(2_000)), numbers(0, 1, 3));
    // The cut is over, but not for a connection that lacks something.
    world.request(0, Ask::Send(1, 3));
    assert_eq!(seen(&mut world, ms(990)), []);
    let over = [(0, Seen::Unlinked(1)), (1, Seen::Unlinked(0))];
    assert_eq!(seen(&mut world, ms(20)), over);
    world.request(1, Ask::Dial(0));
    assert_eq!(seen(&mut world, ms(20)), [(0, Seen::Linked(1)), (1, Seen::Linked(0))]);
    world.request(0, Ask::Send(1, 2));
    assert_eq!(seen(&mut world, ms(20)), numbers(1, 0, 2));
}

#[test]
fn nobody_connects_through_a_cut_in_either_direction() {
    for (dials, from) in [(0, 0), (1, 0)] {
        let mut world = world(&plan(2));
        world.inflict(Harm::Cut(1 - from).at(from, ms(5_000)));
        world.request(dials, Ask::Dial(1 - dials));
        assert_eq!(seen(&mut world, ms(2_990)), []);
        assert_eq!(seen(&mut world, ms(20)), [(dials, Seen::Unlinked(1 - dials))]);
    }
}

#[test]
fn split_parts_the_sides_and_nothing_within_them() {
    let mut world = world(&plan(4));
    world.inflict(Harm::Split(0b0011).at(0, ms(5_000)));
    for (from, to) in [(0, 1), (2, 3), (1, 2)] {
        world.request(from, Ask::Dial(to));
    }
    let mut linked = seen(&mut world, ms(100));
    linked.sort_by_key(|(node, _)| *node);
    let pairs = [(0, 1), (1, 0), (2, 3), (3, 2)];
    assert_eq!(linked, pairs.map(|(node, peer)| (node, Seen::Linked(peer))));
}

#[test]
fn hold_delays_and_keeps_order_and_connection() {
    let mut world = linked();
    world.request(0, Ask::Send(1, 2));
    world.run_for(ms(5));
    world.inflict(Harm::Hold(1).at(0, ms(60_000)));
    world.request(1, Ask::Send(0, 1));
    assert_eq!(seen(&mut world, ms(59_990)), numbers(0, 1, 1), "the other direction works");
    world.request(0, Ask::Send(1, 2));
    assert_eq!(seen(&mut world, ms(15)), [numbers(1, 0, 2), numbers(1, 0, 2)].concat());
}

#[test]
fn connection_that_is_ended_delivers_what_was_sent_on_it_before() {
    let mut world = linked();
    world.request(0, Ask::Send(1, 3));
    world.request(0, Ask::HangUp(1));
    world.request(0, Ask::Send(1, 3));
    let expected = [numbers(1, 0, 3), vec![(1, Seen::Unlinked(0))]].concat();
    assert_eq!(seen(&mut world, ms(5_000)), expected);
}

#[test]
fn two_that_dial_each_other_agree_on_one_connection() {
    let mut world = world(&plan(2));
    world.request(0, Ask::Dial(1));
    world.request(1, Ask::Dial(0));
    let both = seen(&mut world, ms(5_000));
    for node in [0, 1] {
        let of_node: Vec<_> = both.iter().filter(|(of, _)| *of == node).collect();
        let [(_, Seen::Linked(_)), (_, Seen::Unlinked(_)), (_, Seen::Linked(_))] = of_node[..]
        else {
            panic!("{of_node:?}");
        };
    }
    world.request(0, Ask::Send(1, 2));
    world.request(1, Ask::Send(0, 2));
    let mut messages = seen(&mut world, ms(100));
    messages.sort_by_key(|(node, _)| *node);
    assert_eq!(messages, [numbers(0, 1, 2), numbers(1, 0, 2)].concat());
}

// ---- processes and their disks

/// A node that has synced `a` and written `b`, to which that happens.
fn written(seed: u64, harm: Harm) -> World<Witness> {
    let mut world = linked_of(seed);
    for ask in [Ask::Write("a"), Ask::Sync] {
        world.request(0, ask);
    }
    assert_eq!(seen(&mut world, ms(10)), [(0, Seen::Synced)]);
    world.request(0, Ask::Write("bbbbbbbb"));
    world.request(0, Ask::Send(1, 2));
    world.inflict(harm.at(0, ms(4_000)));
    world
}

#[test]
fn killed_process_loses_no_file_and_its_peer_learns_at_once() {
    let mut world = written(7, Harm::Kill);
    let expected = [numbers(1, 0, 2), vec![(1, Seen::Unlinked(0))]].concat();
    assert_eq!(seen(&mut world, ms(11)), expected);
    world.request(1, Ask::Dial(0));
    assert_eq!(seen(&mut world, ms(30)), [(1, Seen::Unlinked(0))], "it is refused");
    assert_eq!(seen(&mut world, ms(4_000)), [(0, Seen::Begins("abbbbbbbb".into()))]);
}

#[test]
fn power_cut_takes_a_suffix_of_what_was_not_synced_and_its_peer_learns_late() {
    let mut left = BTreeSet::new();
    for seed in 0..20 {
        let mut world = written(seed, Harm::PowerCut);
        // The messages had not left the machine whole.
        assert_eq!(seen(&mut world, ms(2_980)), []);
        world.request(1, Ask::Dial(0));
        assert_eq!(seen(&mut world, ms(30)), [(1, Seen::Unlinked(0))]);
        let begun = seen(&mut world, ms(1_000));
        let [(0, Seen::Begins(log))] = &begun[..] else { panic!("{begun:?}") };
        assert!("abbbbbbbb".starts_with(log.as_str()) && log.starts_with('a'), "{log:?}");
        left.insert(log.len());
        let (monotonic, _) = clocks(&mut world);
        assert!(monotonic < Instant::from_millis(100), "the machine has begun again: {monotonic}");
    }
    assert!(left.contains(&9) && left.len() > 3, "all, and torn at several bytes: {left:?}");
}

#[test]
fn stopped_process_gets_all_that_came_and_knows_how_long_it_was() {
    let mut world = linked();
    world.inflict(Harm::Stop.at(0, ms(20_000)));
    let (before, _) = (Instant::EPOCH + world.elapsed(), ());
    world.request(1, Ask::Send(0, 3));
    world.request(0, Ask::Clocks);
    assert_eq!(seen(&mut world, ms(19_990)), []);
    let after = seen(&mut world, ms(20));
    let [(0, Seen::Clocks(monotonic, _)), rest @ ..] = &after[..] else { panic!("{after:?}") };
    assert_eq!(monotonic.since(before), ms(20_000));
    assert_eq!(rest, numbers(0, 1, 3));
}

#[test]
fn sleeping_machine_believes_that_no_time_has_passed() {
    for (time, connection_ends) in [(ms(2_000), false), (ms(20_000), true)] {
        let mut world = linked();
        let (monotonic, wall) = clocks(&mut world);
        world.request(0, Ask::Wake(ms(100)));
        world.inflict(Harm::Sleep.at(0, time));
        world.request(1, Ask::Send(0, 1));
        let during = seen(&mut world, time - ms(1));
        assert_eq!(during == [(1, Seen::Unlinked(0))], connection_ends, "{during:?}");
        let after = seen(&mut world, ms(2));
        let expected =
            if connection_ends { vec![(0, Seen::Unlinked(1))] } else { numbers(0, 1, 1) };
        assert_eq!(after, expected);
        let woken = seen(&mut world, ms(100));
        let [(0, Seen::Clocks(monotonic_now, wall_now))] = woken[..] else { panic!("{woken:?}") };
        assert_eq!(monotonic_now.since(monotonic).as_millis(), 100);
        assert_eq!(wall_now.since(wall).as_millis(), time.as_millis() + 100);
    }
}

#[test]
fn full_disk_refuses_and_works_again() {
    let mut world = linked();
    world.inflict(Harm::FillDisk(3).at(0, ms(1_000)));
    world.request(0, Ask::Write("1234"));
    world.request(0, Ask::Write("123"));
    assert_eq!(seen(&mut world, ms(1_000)), [(0, Seen::Full(DiskFull { wanted: 4, free: 3 }))]);
    world.request(0, Ask::Write("4567"));
    assert_eq!(seen(&mut world, ms(1)), []);
    assert_eq!(world.disk(0).read(LOG), Some(&b"1234567"[..]));
}

#[test]
fn slow_disk_syncs_late_and_in_order() {
    let mut world = linked();
    world.inflict(Harm::SlowDisk(ms(60_000)).at(0, ms(20)));
    world.request(0, Ask::Sync);
    world.run_for(ms(20));
    world.request(0, Ask::Sync);
    assert_eq!(seen(&mut world, ms(980)), [], "the second waits for the first");
    assert_eq!(seen(&mut world, ms(60_000)), [(0, Seen::Synced), (0, Seen::Synced)]);
}

#[test]
fn damage_changes_what_is_read() {
    let mut world = written(7, Harm::Damage);
    let log = world.disk(0).read(LOG).unwrap();
    assert!(log[0] != b'a' && log[1..] == b"bbbbbbbb"[..], "{log:?}");
    world.run_for(ms(1));
}

#[test]
fn restored_node_lives_on_with_what_was_on_its_disk() {
    let mut world = written(7, Harm::Restore);
    world.request(0, Ask::Sync);
    seen(&mut world, ms(1_000));
    world.request(0, Ask::Write("c"));
    let restored = [(0, Seen::Begins("a".into())), (1, Seen::Unlinked(0))];
    assert_eq!(seen(&mut world, ms(3_100)), restored);
}

// ---- clocks

#[test]
fn clock_set_back_moves_the_wall_and_no_timer() {
    let mut plan = plan(1);
    let hours = 5 * 3_600_000_000_000;
    plan.clocks[0] = ClockPlan { ahead_nanos: hours, drift_ppm: 0 };
    let mut world = world(&plan);
    let (before, wall) = clocks(&mut world);
    assert_eq!(wall.nanos_since(BEGIN), hours);
    world.request(0, Ask::Wake(ms(1_000)));
    world.run_for(ms(500));
    world.inflict(Harm::SetClock(-2 * hours).at(0, ms(1)));
    let woken = seen(&mut world, ms(501));
    let [(0, Seen::Clocks(monotonic, wall))] = woken[..] else { panic!("{woken:?}") };
    assert_eq!(monotonic.since(before).as_millis(), 1_000);
    let behind = BEGIN.nanos_since(wall - ms(1_000));
    assert!((hours - behind).abs() < 1_000, "{behind} ns behind");
}

#[test]
fn fast_clock_wakes_its_node_early() {
    let mut world = world(&plan(1));
    world.inflict(Harm::Drift(500).at(0, ms(1)));
    world.request(0, Ask::Wake(ms(100_000)));
    assert_eq!(seen(&mut world, ms(99_949)), []);
    assert_eq!(seen(&mut world, ms(2)).len(), 1, "50 ms in 100 s");
}

// ---- all together

#[test]
fn healed_world_has_no_fault_left() {
    let mut world = world(&plan(3));
    let long = ms(1_000_000);
    for harm in [Harm::Cut(1), Harm::Hold(2), Harm::FillDisk(0), Harm::SlowDisk(long)] {
        world.inflict(harm.at(0, long));
    }
    world.inflict(Harm::Kill.at(1, long));
    world.inflict(Harm::Stop.at(2, long));
    world.run_for(ms(10_000));
    world.heal();
    world.take_reports();
    for ask in [Ask::Dial(1), Ask::Dial(2), Ask::Write("a"), Ask::Sync] {
        world.request(0, ask);
    }
    let mut all = seen(&mut world, ms(50));
    all.sort_by_key(|(node, _)| *node);
    assert_eq!(all.len(), 5, "{all:?}");
    for expected in [(1, Seen::Linked(0)), (2, Seen::Linked(0)), (0, Seen::Synced)] {
        assert!(all.contains(&expected), "{expected:?} is not in {all:?}");
    }
}

/// Says numbers to all that it is linked to, and looks at those that come.
struct Chatter {
    /// By peer, while there is a link: the numbers to be sent and to come next.
    links: Vec<Option<(u32, u32)>>,
    wakes_at: Instant,
    hangs_up: bool,
}

impl Process for Chatter {
    type Setup = ();
    type Message = Number;
    type Request = ();
    type Report = Result<u32, String>;

    fn begin((): &(), node: &mut Node<'_, Self>) -> Self {
        Self { links: vec![None; node.nodes()], wakes_at: node.now(), hangs_up: true }
    }

    fn handle(&mut self, node: &mut Node<'_, Self>, input: Input<Number, ()>) {
        match input {
            Input::Linked(peer) => {
                if self.links[peer].replace((0, 0)).is_some() {
                    node.report(Err(format!("a second connection to {peer}")));
                }
            }
            Input::Unlinked(peer) => self.links[peer] = None,
            Input::Message(from, Number(number)) => match &mut self.links[from] {
                Some((_, expected)) if *expected == number => {
                    *expected += 1;
                    node.report(Ok(number));
                }
                link => {
                    let wrong = format!("{number} from {from} on {link:?}");
                    node.report(Err(wrong));
                }
            },
            Input::Timeout => {
                let gap = node.random().time(ms(200));
                self.wakes_at = node.now() + gap;
                for peer in node.others() {
                    if node.is_linked(peer) != self.links[peer].is_some() {
                        node.report(Err(format!("the link to {peer} is not as was said")));
                    }
                    if self.hangs_up && node.random().ratio(1, 50) {
                        node.hang_up(peer);
                        self.links[peer] = None;
                    }
                    match &mut self.links[peer] {
                        Some((next, _)) => {
                            node.send(peer, Number(*next));
                            *next += 1;
                        }
                        None => node.dial(peer),
                    }
                }
            }
            Input::Request(()) => self.hangs_up = false,
            Input::Synced(_) => {}
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.wakes_at)
    }
}

struct Chat;

impl Trial for Chat {
    type Process = Chatter;
    const TEST: &'static str = TEST;

    fn plan(&self, seed: u64) -> Plan<()> {
        Plan::draw(seed, 2..=5, ms(20_000))
    }

    fn setup(&self) {}

    fn judge(&self, world: &mut World<Chatter>) -> Result<(), String> {
        world.run_for(ms(20_000));
        world.heal();
        (0..world.nodes()).for_each(|node| world.request(node, ()));
        world.run_for(ms(10_000));
        let came: Vec<(usize, u32)> = world
            .take_reports()
            .into_iter()
            .map(|Reported { at, node, report }| {
                let wrong = |wrong| format!("node {node} after {at:?}: {wrong}");
                report.map(|number| (node, number)).map_err(wrong)
            })
            .collect::<Result<_, _>>()?;
        for node in 0..world.nodes() {
            let links = world.process(node).map(|process| &process.links[..]).unwrap_or_default();
            let linked = links.iter().flatten().count();
            if linked + 1 != world.nodes() {
                return Err(format!("{node} has {linked} links though all is well"));
            }
            if came.iter().filter(|(to, _)| *to == node).count() < 50 {
                return Err(format!("{node} gets next to nothing"));
            }
        }
        Ok(())
    }
}

#[test]
fn messages_of_each_connection_are_a_prefix_whatever_happens() {
    for run in run_all(seeds(0..200), |seed| try_seed(&Chat, seed)) {
        run.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn same_seed_gives_the_same_trail_and_another_another() {
    let trail = |seed| {
        let trail = Trail::new(seed, "node", TEST).whole();
        let mut world = World::<Chatter>::new(&Chat.plan(seed), (), trail);
        world.run_for(ms(20_000));
        world.trail().to_string()
    };
    for seed in 0..10 {
        let first = trail(seed);
        assert!(first.lines().count() > 100, "{first}");
        assert_eq!(first, trail(seed), "seed {seed}");
        assert_ne!(first.lines().nth(10), trail(seed + 1).lines().nth(10));
    }
}
