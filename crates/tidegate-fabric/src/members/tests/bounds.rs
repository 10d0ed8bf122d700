use std::collections::{BTreeMap, BTreeSet};

use tidegate_wire::{
    MemberRecord, Record, SharedKey, SharedKind, SharedPart, limits::ABSENCES_MAX,
};

use super::{
    super::{
        DialNumber, GONE_MAX, HURRIED_FOR, LOST_MAX, LinkId, Members, PRESENT_MAX, Presence,
        RECORDS_AT_ONCE, Save, Seal as _, Target, VAIN_AFTER, mix,
    },
    identity::record,
    mesh::{Mesh, Paper, id, secs, settings},
};

/// Begins a node that dials members which cannot be reached once in a minute or two.
fn start_slow(mesh: &mut Mesh, node: usize) {
    let mut settings = settings(node, &[0]);
    settings.retry_max = secs(120);
    mesh.start_as(node, settings);
}

/// A node is linked to those for a moment, gives its record, and is not seen again.
fn visit(mesh: &mut Mesh, at: &[usize], node: usize, has_left: bool) {
    let now = mesh.now;
    for at in at {
        let members = mesh.nodes.get_mut(at).expect("it runs");
        let link = members
            .handle_linked(now, id(node), None, DialNumber::default())
            .expect("it is new")
            .link;
        let mut record = record(node, 1);
        record.has_left = has_left;
        record.written += node as u64;
        give(mesh, *at, link, &record);
        mesh.nodes.get_mut(at).expect("it runs").handle_unlinked(now, link);
    }
}

fn give(mesh: &mut Mesh, at: usize, link: LinkId, record: &MemberRecord) {
    let bytes = Paper::new(record.node, &record.name).seal(&record.to_bytes()).to_bytes();
    let key = SharedKey { of: record.node, kind: SharedKind::Member };
    let version = record.version;
    let part = SharedPart { key, version, offset: 0, more: false, bytes };
    let (now, members) = (mesh.now, mesh.nodes.get_mut(&at).expect("it runs"));
    members.handle_record(now, link, Record::SharedPart(part)).expect("it keeps to the protocol");
}

#[test]
fn ten_thousand_starts_of_ever_new_nodes_leave_little_behind() {
    const BATCH: usize = 40;
    let mut mesh = Mesh::new();
    [0, 1].into_iter().for_each(|node| start_slow(&mut mesh, node));
    mesh.run_for(secs(5));
    for batch in 0..10_000 / BATCH {
        let nodes = (2 + batch * BATCH)..(2 + (batch + 1) * BATCH);
        nodes.for_each(|node| visit(&mut mesh, &[0, 1], node, false));
        mesh.events.clear();
        mesh.run_for(secs(70));
        let counts = mesh.nodes[&0].counts();
        assert_eq!(counts.present, 2, "after batch {batch}");
        assert!(counts.gone <= LOST_MAX, "{} are remembered", counts.gone);
    }
    mesh.run_for(secs(60));
    mesh.assert_equal();
    for node in [0, 1] {
        let members = mesh.nodes.get_mut(&node).expect("it runs");
        let Save { own, records, .. } = members.last_save();
        assert!(own.len() < 11_000, "{} bytes", own.len());
        let records = records.expect("all are saved").len();
        assert!(records < 100_000, "{records} bytes of records");
        let words = members.member(id(node)).expect("it knows itself").record.absences.len();
        assert!(words <= ABSENCES_MAX);
    }
}

#[test]
fn members_that_left_are_dropped_by_one_rule_and_stay_away() {
    let mut mesh = Mesh::of(3);
    (3..503).for_each(|node| visit(&mut mesh, &[0], node, true));
    mesh.run_for(secs(1));
    // Node 2 is away while as many come and go as are remembered, and knows of those before.
    mesh.kill(2);
    (503..503 + GONE_MAX).for_each(|node| visit(&mut mesh, &[0], node, true));
    mesh.start(2, &[0]);
    mesh.run_for(secs(60));
    mesh.assert_equal();
    for node in 0..3 {
        assert_eq!(mesh.nodes[&node].counts().gone, GONE_MAX);
        assert_eq!(mesh.presence(node, 10), None, "it left first");
        assert_eq!(mesh.presence(node, 1_500), Some(Presence::Left));
    }
    let lists: u64 = mesh.nodes.values().map(|members| members.counts().lists).sum();
    mesh.run_for(secs(600));
    let after: u64 = mesh.nodes.values().map(|members| members.counts().lists).sum();
    assert_eq!(after, lists, "they hold the same");
}

#[test]
fn node_that_was_away_while_members_were_lost_brings_none_of_them_back() {
    let mut mesh = Mesh::of(3);
    let lose = |mesh: &mut Mesh, nodes: std::ops::Range<usize>| {
        nodes.clone().for_each(|node| mesh.start(node, &[0]));
        mesh.run_for(secs(5));
        nodes.for_each(|node| mesh.kill(node));
        mesh.run_for(secs(75));
    };
    lose(&mut mesh, 3..28);
    mesh.kill(2);
    // More than are remembered, and more than there are words for.
    for batch in 1..12 {
        lose(&mut mesh, 3 + batch * 25..28 + batch * 25);
    }
    mesh.start(2, &[0]);
    mesh.run_for(secs(900));
    mesh.assert_equal();
    assert_eq!(mesh.nodes[&2].counts().present, 3);
    assert_eq!(mesh.presence(2, 3), None);
}

#[test]
fn many_that_die_at_once_are_lost_by_two_that_are_left() {
    let mut mesh = Mesh::new();
    [0, 1].into_iter().for_each(|node| start_slow(&mut mesh, node));
    mesh.run_for(secs(5));
    // By records alone: links between so many would take long.
    let now = mesh.now;
    let link = |mesh: &mut Mesh, at: usize| {
        let members = mesh.nodes.get_mut(&at).expect("it runs");
        members.handle_linked(now, id(20_000), None, DialNumber::default()).expect("it is new").link
    };
    let links = [link(&mut mesh, 0), link(&mut mesh, 1)];
    for node in 2..302 {
        feed(mesh.nodes.get_mut(&0).expect("it runs"), links[0], node);
    }
    mesh.pump();
    assert_eq!(mesh.nodes[&1].counts().present, 302);
    // They never had links: after ten minutes they are asked, and one after the other is lost.
    mesh.run_for(secs(1_800));
    mesh.assert_equal();
    for node in [0, 1] {
        let counts = mesh.nodes[&node].counts();
        assert_eq!((counts.present, counts.gone), (2, LOST_MAX));
    }
}

/// Gives a member the record of another.
fn feed(members: &mut Members, link: LinkId, node: usize) {
    let now = tidegate_message::Instant::from_millis(6_000);
    let mut record = record(node, 1);
    record.addresses = vec![format!("node-{node}.site.example:7443")];
    record.api_addresses = vec![format!("node-{node}.site.example:7445")];
    let bytes = Paper::new(id(node), &record.name).seal(&record.to_bytes()).to_bytes();
    let key = SharedKey { of: id(node), kind: SharedKind::Member };
    let part = SharedPart { key, version: 1, offset: 0, more: false, bytes };
    members.handle_record(now, link, Record::SharedPart(part)).expect("it keeps to the protocol");
}

#[test]
fn members_beyond_the_limit_are_refused_and_counted() {
    let mut mesh = Mesh::of(1);
    let now = mesh.now;
    let members = mesh.nodes.get_mut(&0).expect("it runs");
    let link = members
        .handle_linked(now, id(20_000), None, DialNumber::default())
        .expect("it is new")
        .link;
    (1..=PRESENT_MAX).for_each(|node| feed(members, link, node));
    let counts = members.counts();
    assert_eq!((counts.present, counts.no_room, counts.refused), (PRESENT_MAX, 1, 1));
}

#[test]
fn member_that_writes_without_end_is_taken_at_a_pace_and_named() {
    let mut mesh = Mesh::of(2);
    let (now, members) = (mesh.now, mesh.nodes.get_mut(&0).expect("it runs"));
    let link = members.handle_linked(now, id(9), None, DialNumber::default());
    let link = link.expect("it is new").link;
    let taken = |mesh: &Mesh| [0, 1].map(|node| mesh.nodes[&node].counts().taken);
    let (before, mut version) = (taken(&mesh), 0);
    // Twenty thousand in a minute and a half.
    for _ in 0..1_000 {
        mesh.now = mesh.now + std::time::Duration::from_millis(90);
        for _ in 0..20 {
            version += 1;
            give(&mut mesh, 0, link, &record(9, version));
        }
        mesh.pump();
    }
    for (node, (now, before)) in taken(&mesh).into_iter().zip(before).enumerate() {
        let most = u64::from(RECORDS_AT_ONCE) + 2 * 90 + 1;
        // Of several at once the other node is sent the newest alone.
        assert!((150..=most).contains(&(now - before)), "{} at node {node}", now - before);
    }
    let hurried = |mesh: &Mesh| mesh.nodes[&0].hurried(mesh.now).collect::<Vec<_>>();
    assert_eq!(hurried(&mesh), [id(9)]);
    // Of one that is quiet again the newest counts.
    mesh.run_for(HURRIED_FOR);
    give(&mut mesh, 0, link, &record(9, version + 1));
    let held = mesh.nodes[&0].member(id(9)).expect("it is known").record.version;
    assert_eq!((held, hurried(&mesh)), (version + 1, vec![]));
}

#[test]
fn hundreds_of_dead_addresses_hold_up_no_seed_and_no_member_that_was_there() {
    const DEAD: usize = 400;
    let step = std::time::Duration::from_millis(100);
    let mut settings = settings(0, &[1]);
    settings.retry_max = secs(4);
    let mut mesh = Mesh::new();
    mesh.start_as(0, settings);
    let mut members = mesh.nodes.remove(&0).expect("it runs");
    let mut now = mesh.now;
    while let Some(dial) = members.poll_dial(now) {
        members.handle_dial_failed(now, dial.target);
    }
    let link = members.handle_linked(now, id(20_000), None, DialNumber::default());
    let link = link.expect("it is new").link;
    (2..2 + DEAD).for_each(|node| feed(&mut members, link, node));
    // One of them has a link once.
    let known = Target::Member(id(2));
    let once = members.handle_linked(now, id(2), None, DialNumber::default()).expect("it is new");
    members.handle_unlinked(now, once.link);
    let mut ends: Vec<(tidegate_message::Instant, Target)> = Vec::new();
    let (mut seen, mut last) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..6_000 {
        now = now + step;
        if members.poll_timeout().is_some_and(|at| at <= now) {
            members.handle_timeout(now);
        }
        ends.retain(|(end, target)| {
            let is_over = *end <= now;
            if is_over {
                members.handle_dial_failed(now, *target);
                last.insert(*target, now);
            }
            !is_over
        });
        while let Some(dial) = members.poll_dial(now) {
            let target = dial.target;
            let tries: &mut u32 = seen.entry(target).or_default();
            if let Some(last) = last.get(&target)
                && (target == Target::Seed(0) || target == known && *tries < VAIN_AFTER)
            {
                let since = now.since(*last);
                assert!(since <= secs(4) + step, "{target:?} is held up for {since:?}");
            }
            *tries += 1;
            // Nothing answers there.
            ends.push((now + secs(3), dial.target));
        }
        assert!(ends.len() <= 16);
    }
    assert!(seen.len() > DEAD, "{} are dialled in ten minutes", seen.len());
    assert!(
        seen[&Target::Seed(0)] > 600 / 8,
        "the seed is dialled {} times",
        seen[&Target::Seed(0)]
    );
}

/// Members and their links, by node and link the other end. Records are carried in rounds.
struct Rounds {
    nodes: Vec<Members>,
    ends: BTreeMap<(usize, LinkId), (usize, LinkId)>,
}

impl Rounds {
    /// Each is linked to the next and to some by chance.
    fn new(count: usize) -> Self {
        let now = tidegate_message::Instant::from_millis(1_000);
        let member = |node: usize| {
            let seal = Box::new(Paper::new(id(node), &format!("node-{node}")));
            let mut members =
                Members::new(now, settings(node, &[]), seal, None, node as u64, 1_700_000_000);
            let save = members.poll_save().expect("its record");
            members.handle_saved(now, save.ticket);
            members
        };
        let mut rounds = Self { nodes: (0..count).map(member).collect(), ends: BTreeMap::new() };
        let mut pairs = BTreeSet::new();
        for node in 0..count {
            let far = mix(node as u64) as usize % count;
            for other in [(node + 1) % count, far] {
                if other != node && pairs.insert((node.min(other), node.max(other))) {
                    let mut take = |at: usize, peer: usize| {
                        rounds.nodes[at]
                            .handle_linked(now, id(peer), None, DialNumber::default())
                            .expect("new")
                            .link
                    };
                    let ends = [(node, take(node, other)), (other, take(other, node))];
                    rounds.ends.extend([(ends[0], ends[1]), (ends[1], ends[0])]);
                }
            }
        }
        rounds
    }

    /// Whether something was sent.
    fn run(&mut self) -> bool {
        let now = tidegate_message::Instant::from_millis(1_000);
        let mut sent = Vec::new();
        for (end, other) in &self.ends {
            while let Some(record) = self.nodes[end.0].poll_transmit(end.1) {
                sent.push((*other, record));
            }
        }
        let is_some = !sent.is_empty();
        for ((node, link), record) in sent {
            self.nodes[node].handle_record(now, link, record).expect("it keeps to the protocol");
        }
        is_some
    }

    fn run_until_quiet(&mut self) -> u32 {
        let mut rounds = 0;
        while self.run() {
            rounds += 1;
        }
        rounds
    }

    #[track_caller]
    fn assert_equal(&self) {
        let hashes: BTreeSet<u64> = self.nodes.iter().map(Members::view_hash).collect();
        assert_eq!(hashes.len(), 1, "views");
        let all = self.nodes.len();
        assert!(self.nodes.iter().all(|members| members.counts().present == all));
    }

    /// The longest way from the first node.
    fn depth(&self) -> u32 {
        let mut depth = BTreeMap::from([(0, 0)]);
        let mut edge = BTreeSet::from([0]);
        for step in 1.. {
            let next = |node: &usize| {
                let all = self.ends.range((*node, LinkId(0))..(*node + 1, LinkId(0)));
                all.map(|(_, (other, _))| *other).collect::<Vec<_>>()
            };
            edge = edge.iter().flat_map(next).filter(|node| !depth.contains_key(node)).collect();
            if edge.is_empty() {
                return step - 1;
            }
            depth.extend(edge.iter().map(|node| (*node, step)));
        }
        unreachable!("there are finitely many nodes")
    }
}

#[test]
fn thousand_members_come_to_one_view_in_as_many_rounds_as_they_are_apart() {
    let mut rounds = Rounds::new(1_000);
    let depth = rounds.depth();
    let joined = rounds.run_until_quiet();
    rounds.assert_equal();
    // A hash, a list and the records, and then record by record; nothing is sent twice over a link but across.
    assert!(joined <= 2 * depth + 6, "{joined} rounds, {depth} apart");
    let now = tidegate_message::Instant::from_millis(1_000);
    rounds.nodes[0].renew(now);
    let save = rounds.nodes[0].poll_save().expect("its record");
    rounds.nodes[0].handle_saved(now, save.ticket);
    let changed = rounds.run_until_quiet();
    rounds.assert_equal();
    assert!((depth..=depth + 1).contains(&changed), "{changed} rounds, {depth} apart");
    let counts = rounds.nodes[0].counts();
    println!(
        "1,000 members {depth} links apart: joined in {joined} rounds, a change in {changed}; {} bytes of records a member",
        counts.bytes / 1_000
    );
}

#[test]
fn member_costs_little_memory() {
    let mut mesh = Mesh::of(1);
    let now = mesh.now;
    let members = mesh.nodes.get_mut(&0).expect("it runs");
    let link = members
        .handle_linked(now, id(20_000), None, DialNumber::default())
        .expect("it is new")
        .link;
    let measured =
        allocation_counter::measure(|| (1..=1_000).for_each(|node| feed(members, link, node)));
    let bytes = measured.bytes_current / 1_000;
    let shared = members.counts().bytes / 1_001;
    println!("a member takes {bytes} bytes of memory, of them {shared} for its sealed record");
    assert!((500..3_000).contains(&bytes), "{bytes}");
}
