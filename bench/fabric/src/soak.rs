//! Five nodes under traffic that are killed and cut off: what a node has acknowledged arrives at a subscriber of each node, and what comes
//! twice has one name.
//!
//! Each node has a publisher whose messages of QoS 1 go to all, and a subscriber whose session stays. A publisher that loses its connection does not know what
//! became of the messages that were not acknowledged: they may come, once or twice, and are not asked for.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bench_durability::crowd::{Crowd, Event, Message, SessionOptions};
use bench_harness::{Figure, Report, Target};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tidegate_wire::mqtt::{QoS, ReasonCode};

use crate::{
    Plan,
    site::{Settings, Site, filter},
};

const NODES: usize = 5;
/// Between two messages of a publisher.
const PACE: Duration = Duration::from_millis(10);
/// Messages that one publisher has under way at most.
const ROOM: usize = 64;
/// Seconds that a session outlives a connection.
const EXPIRY_S: u32 = 3600;
/// How long a node is cut off at most.
const CUT_MAX: f64 = 4.0;
/// Between two faults at most.
const PAUSE_MAX: f64 = 1.5;
/// Once no publisher sends, all has arrived when nothing came for so long; that is waited for so long.
const SETTLED: Duration = Duration::from_secs(8);
const SETTLE_MAX: Duration = Duration::from_secs(120);

/// A message: the node of its publisher, and its number there.
type Name = (usize, u64);

/// State that the threads share.
#[derive(Default)]
struct Board {
    is_sending: AtomicBool,
    is_over: AtomicBool,
    arrived: AtomicU64,
    subscribed: AtomicU64,
}

/// The two clients of a node.
#[derive(Debug, Default)]
struct Told {
    acknowledged: HashSet<u64>,
    /// Numbers that were not acknowledged when a connection ended: they may have been published again.
    uncertain: HashSet<u64>,
    /// Messages that came to the subscriber, each with its copies.
    came: HashMap<Name, Copies>,
    faults: Vec<String>,
}

#[derive(Debug, Default)]
struct Copies {
    count: u32,
    /// Copies after the first one that neither have the first one's name nor say that they were sent before.
    unnamed: u32,
    name: Option<String>,
}

/// Kills and cuts under traffic.
///
/// # Errors
/// Namespaces take root; a node does not start again, or a client is not let in.
pub fn soak(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (kills, cuts) = if plan.quick { (20, 5) } else { (200, 50) };
    let line = Some(Duration::from_millis(1));
    let settings = Settings { nodes: NODES, durability: "page", line, ..Settings::default() };
    report.configuration(
        "soak",
        format!(
            "{NODES} nodes, each with a publisher (QoS 1, one message each {} ms) and a subscriber to all; {kills} kills, {cuts} cuts; class page",
            PACE.as_millis()
        ),
    );
    let mut site = Site::start(&settings)?;
    let at: Vec<_> = (0..NODES).map(|node| site.mqtt(node)).collect();
    let board = Board::default();
    let told = thread::scope(|scope| {
        let mut talking = Vec::new();
        for (node, at) in at.iter().enumerate() {
            let (board, at, place) = (&board, *at, site.place(node));
            talking.push(scope.spawn(move || place.within(|| talk(at, node, board))?));
        }
        let befallen = befall(&mut site, plan.seed, kills, cuts, &board);
        board.is_over.store(true, Ordering::Relaxed);
        let told: anyhow::Result<Vec<Told>> =
            talking.into_iter().map(|one| one.join().expect("a client does not panic")).collect();
        befallen?;
        told
    })?;
    judge(&told, kills, cuts, report)
}

/// Faults at times that the seed chooses, one node at a time; then all is left to arrive.
fn befall(
    site: &mut Site,
    seed: u64,
    kills: usize,
    cuts: usize,
    board: &Board,
) -> anyhow::Result<()> {
    let began = Instant::now();
    while board.subscribed.load(Ordering::Relaxed) < NODES as u64 {
        ensure!(began.elapsed() < SETTLE_MAX, "subscribers are not let in");
        thread::sleep(Duration::from_millis(10));
    }
    board.is_sending.store(true, Ordering::Relaxed);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut faults: Vec<bool> = (0..kills + cuts).map(|number| number < kills).collect();
    for at in (1..faults.len()).rev() {
        faults.swap(at, random.random_range(0..=at));
    }
    for (number, is_kill) in faults.into_iter().enumerate() {
        let node = random.random_range(0..NODES);
        thread::sleep(Duration::from_secs_f64(random.random_range(0.0..PAUSE_MAX)));
        if is_kill {
            site.kill(node);
            thread::sleep(Duration::from_secs_f64(random.random_range(0.0..PAUSE_MAX / 2.0)));
            site.spawn(node)?;
            if random.random() {
                site.wait_to_serve(node)?;
            }
        } else {
            site.cut(node, true)?;
            thread::sleep(Duration::from_secs_f64(random.random_range(0.0..CUT_MAX)));
            site.cut(node, false)?;
        }
        if number % 50 == 49 {
            eprintln!("bench-fabric: soak: {} faults", number + 1);
        }
    }
    for node in 0..NODES {
        site.wait_to_serve(node)?;
    }
    site.wait_linked()?;
    thread::sleep(Duration::from_secs(2));
    board.is_sending.store(false, Ordering::Relaxed);
    let until = Instant::now() + SETTLE_MAX;
    let (mut arrived, mut since) = (board.arrived.load(Ordering::Relaxed), Instant::now());
    while since.elapsed() < SETTLED && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
        let now = board.arrived.load(Ordering::Relaxed);
        if now != arrived {
            (arrived, since) = (now, Instant::now());
        }
    }
    Ok(())
}

fn talk(at: std::net::SocketAddr, node: usize, board: &Board) -> anyhow::Result<Told> {
    let mut crowd = Crowd::new(at);
    let publisher = crowd.join(SessionOptions {
        client_id: format!("publisher-{node}"),
        ..SessionOptions::default()
    });
    let subscriber = crowd.join(SessionOptions {
        client_id: format!("subscriber-{node}"),
        session_expiry: EXPIRY_S,
        ..SessionOptions::default()
    });
    let topic = format!("soak/{node}");
    let mut told = Told::default();
    let mut events = Vec::new();
    let (mut number, mut due, mut connections) = (0, Instant::now(), 0);
    let mut pending: HashSet<u64> = HashSet::new();
    while !board.is_over.load(Ordering::Relaxed) {
        if crowd.member(publisher).connections != connections {
            connections = crowd.member(publisher).connections;
            told.uncertain.extend(pending.iter().copied());
        }
        let session = crowd.session(publisher);
        if board.is_sending.load(Ordering::Relaxed)
            && session.room() > 0
            && pending.len() < ROOM
            && Instant::now() >= due
        {
            due = Instant::now() + PACE;
            number += 1;
            pending.insert(number);
            session.publish(number, &topic, number.to_string().as_bytes(), QoS::AtLeastOnce, false);
        }
        crowd.turn(Duration::from_millis(2), &mut events)?;
        for (member, event) in events.drain(..) {
            match event {
                Event::Connected { session_present, was_expected } if member == subscriber => {
                    if was_expected && !session_present {
                        told.faults.push(format!("node {node} lost the session of its subscriber"));
                    }
                    if !session_present {
                        crowd.session(subscriber).subscribe(vec![filter("soak/#")])?;
                    }
                }
                Event::Subscribed(_) => {
                    board.subscribed.fetch_add(1, Ordering::Relaxed);
                }
                Event::Acknowledged { number, reason } => {
                    pending.remove(&number);
                    if reason == ReasonCode::SUCCESS {
                        told.acknowledged.insert(number);
                    }
                }
                Event::Message(message) => {
                    told.take(&message)
                        .with_context(|| format!("{} is none of ours", message.topic))?;
                    board.arrived.fetch_add(1, Ordering::Relaxed);
                }
                Event::Connected { .. } | Event::Refused(_) => {}
            }
        }
        told.faults.append(&mut crowd.faults);
    }
    Ok(told)
}

impl Told {
    fn take(&mut self, message: &Message) -> Option<()> {
        let from = message.topic.strip_prefix("soak/")?.parse().ok()?;
        let number = std::str::from_utf8(&message.payload).ok()?.parse().ok()?;
        let copies = self.came.entry((from, number)).or_default();
        if copies.count == 0 {
            copies.name.clone_from(&message.name);
        } else if !message.dup && (message.name.is_none() || message.name != copies.name) {
            copies.unnamed += 1;
        }
        copies.count += 1;
        Some(())
    }
}

fn judge(told: &[Told], kills: usize, cuts: usize, report: &mut Report) -> anyhow::Result<()> {
    let (mut due, mut lost, mut twice, mut unnamed) = (0_u64, 0_u64, 0_u64, 0_u64);
    for (from, one) in told.iter().enumerate() {
        for number in &one.acknowledged {
            for (to, other) in told.iter().enumerate() {
                due += 1;
                let Some(copies) = other.came.get(&(from, *number)) else {
                    lost += 1;
                    eprintln!(
                        "bench-fabric: message {number} of node {from} did not come to node {to}"
                    );
                    continue;
                };
                twice += u64::from(copies.count > 1);
                // A publisher that sent it again may have published it twice.
                if !one.uncertain.contains(number) {
                    unnamed += u64::from(copies.unnamed);
                }
            }
        }
    }
    let faults: Vec<&String> = told.iter().flat_map(|one| &one.faults).collect();
    ensure!(due > 0, "no message was acknowledged");
    let name = format!("{kills} kills and {cuts} cuts of {NODES} nodes");
    let note = format!(
        "{due} deliveries were due, {twice} came more than once{}",
        faults
            .first()
            .map(|fault| format!("; {} faults, the first: {fault}", faults.len()))
            .unwrap_or_default()
    );
    let figure = Figure::new(format!("{name}, acknowledged and lost"), "").ours([lost as f64]);
    report.figure(figure.target(Target::Exactly(0.0)).note(note));
    let figure = Figure::new(format!("{name}, came twice without one name"), "");
    report.figure(figure.ours([unnamed as f64]).target(Target::Exactly(0.0)));
    let figure = Figure::new(format!("{name}, other faults"), "").ours([faults.len() as f64]);
    report.figure(figure.target(Target::Exactly(0.0)));
    Ok(())
}
