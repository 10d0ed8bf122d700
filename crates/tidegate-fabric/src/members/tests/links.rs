use bytes::Bytes;
use tidegate_wire::{
    DigestEntry, InterestsHeld, MemberDigest, Record, SharedKey, SharedKind, SharedPart,
};

use super::{
    super::{
        DialNumber, Event, HASH_EVERY, HIGHER_WAITS, LinkId, MEMBER_BYTES_MAX, MemberError,
        Members, RECORDS_AT_ONCE, Seal as _, Target, TurnedAway, mix,
    },
    identity::record,
    mesh::{Mesh, Paper, id, secs, settings},
};

/// Two nodes, the lower first, that know nothing of each other.
fn pair() -> (Mesh, usize, usize) {
    let mut mesh = Mesh::new();
    mesh.start(1, &[]);
    mesh.start(2, &[]);
    if id(1) < id(2) { (mesh, 1, 2) } else { (mesh, 2, 1) }
}

#[test]
fn of_two_links_the_one_that_the_lower_node_dialled_stays() {
    let (mut mesh, lower, higher) = pair();
    let now = mesh.now;
    let seed = Some(Target::Seed(0));
    let take = |mesh: &mut Mesh, at: usize, peer: usize, by| {
        mesh.nodes.get_mut(&at).expect("it runs").handle_linked(
            now,
            id(peer),
            by,
            DialNumber::default(),
        )
    };
    let first = take(&mut mesh, lower, higher, None).expect("it is the only one");
    let second = take(&mut mesh, lower, higher, seed).expect("the lower has dialled");
    assert_eq!(second.ends, Some(first.link));
    assert_eq!(take(&mut mesh, lower, higher, None), Err(TurnedAway::HasLink));
    let third = take(&mut mesh, lower, higher, seed).expect("the newer of two alike");
    assert_eq!(third.ends, Some(second.link));

    let first = take(&mut mesh, higher, lower, seed).expect("it is the only one");
    let second = take(&mut mesh, higher, lower, None).expect("the lower has dialled");
    assert_eq!(second.ends, Some(first.link));
    assert_eq!(take(&mut mesh, higher, lower, seed), Err(TurnedAway::HasLink));
    let myself = take(&mut mesh, lower, lower, seed);
    assert_eq!(myself, Err(TurnedAway::Myself));
}

/// A connection between two nodes, and what has come of it at each of them.
struct Connection {
    by_first: bool,
    number: DialNumber,
    /// At each end: yet to come, taken, or over.
    ends: [End; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Begins,
    Taken(LinkId),
    Over,
}

#[test]
fn of_connections_that_are_made_at_once_both_ends_keep_the_same() {
    for seed in 0..2_000 {
        let mut draws = (0..).map(|step| mix(seed << 16 | step));
        let mut draw = |below: usize| draws.next().expect("endless") as usize % below;
        let mut mesh = Mesh::new();
        mesh.start(1, &[]);
        mesh.start(2, &[]);
        let mut counts = [0, 0];
        let mut connections: Vec<Connection> = Vec::new();
        for _ in 0..2 + draw(4) {
            let by_first = draw(2) == 0;
            let count = &mut counts[usize::from(by_first)];
            *count += 1;
            let number = DialNumber { process: u32::from(by_first), count: *count };
            connections.push(Connection { by_first, number, ends: [End::Begins; 2] });
        }
        // Each end learns of each connection, and of each end of one, in an order of its own.
        loop {
            let open: Vec<(usize, usize)> = (0..connections.len())
                .flat_map(|at| [(at, 0), (at, 1)])
                .filter(|(at, end)| {
                    let Connection { ends, .. } = &connections[*at];
                    let is_hung_up = ends[1 - end] == End::Over && ends[*end] != End::Over;
                    ends[*end] == End::Begins || is_hung_up
                })
                .collect();
            let Some((at, end)) = (!open.is_empty()).then(|| open[draw(open.len())]) else { break };
            let (node, peer) = (1 + end, 2 - end);
            let (now, members) = (mesh.now, mesh.nodes.get_mut(&node).expect("it runs"));
            let Connection { by_first, number, ends } = &connections[at];
            let by = (*by_first == (end == 0)).then_some(Target::Seed(0));
            connections[at].ends[end] = match ends[end] {
                End::Taken(link) => {
                    members.handle_unlinked(now, link);
                    End::Over
                }
                _ => match members.handle_linked(now, id(peer), by, *number) {
                    Ok(taken) => {
                        let is_ended = |it: &&mut Connection| {
                            taken.ends.is_some_and(|ended| it.ends[end] == End::Taken(ended))
                        };
                        let link = End::Taken(taken.link);
                        if let Some(ended) = connections.iter_mut().find(is_ended) {
                            ended.ends[end] = End::Over;
                        }
                        link
                    }
                    Err(TurnedAway::HasLink) => End::Over,
                    Err(other) => panic!("{other}"),
                },
            };
        }
        let kept = |end: usize| connections.iter().position(|it| it.ends[end] != End::Over);
        assert!(kept(0).is_some() && kept(0) == kept(1), "seed {seed}");
    }
}

#[test]
fn end_of_a_link_that_another_replaced_changes_nothing() {
    let (mut mesh, lower, higher) = pair();
    let now = mesh.now;
    let members = mesh.nodes.get_mut(&lower).expect("it runs");
    let old = members
        .handle_linked(now, id(higher), None, DialNumber::default())
        .expect("it is the only one")
        .link;
    let new = members
        .handle_linked(now, id(higher), None, DialNumber::default())
        .expect("it is newer")
        .link;
    members.handle_unlinked(now, old);
    assert_eq!(members.link_to(id(higher)), Some(new));
    let digest = MemberDigest { hash: 0, lists: false, more: false, entries: Vec::new() };
    let late = members.handle_record(now, old, Record::MemberDigest(digest));
    assert_eq!(late, Err(MemberError::NoLink));
    members.handle_unlinked(now, new);
    assert_eq!(members.link_to(id(higher)), None);
}

#[test]
fn seed_that_is_the_node_itself_is_dialled_once() {
    let mut mesh = Mesh::new();
    mesh.start(1, &[1]);
    let members = mesh.nodes.get_mut(&1).expect("it runs");
    // The mesh has linked it to itself, and it was turned away.
    assert_eq!(members.poll_dial(mesh.now + secs(3_600)), None);
    assert_eq!(members.counts().links, 0);
}

#[test]
fn nodes_that_cannot_be_reached_are_dialled_for_ever_and_rarely() {
    let mut members = Mesh::of(2).nodes.remove(&1).expect("it runs");
    let mut now = tidegate_message::Instant::from_millis(10_000);
    let link = members.link_to(id(0)).expect("it is linked");
    members.handle_unlinked(now, link);
    let mut dials = 0;
    for _ in 0..36_000 {
        now = now + std::time::Duration::from_millis(100);
        if members.poll_timeout().is_some_and(|at| at <= now) {
            members.handle_timeout(now);
        }
        while let Some(dial) = members.poll_dial(now) {
            dials += 1;
            members.handle_dial_failed(now, dial.target);
        }
    }
    // A seed and a member, at most every 4 s and at least every 2 s in an hour.
    assert!((1_800..3_800).contains(&dials), "{dials} dials");
}

#[test]
fn node_that_knows_this_one_as_revoked_is_dialled_rarely() {
    let mut mesh = Mesh::new();
    mesh.start_as(0, settings(0, &[1]));
    let mut members = mesh.nodes.remove(&0).expect("it runs");
    let (mut now, mut dials) = (mesh.now, 0);
    for _ in 0..3_600 {
        now = now + secs(1);
        while let Some(dial) = members.poll_dial(now) {
            dials += 1;
            members.handle_dial_refused(now, dial.target);
        }
    }
    assert!((6..=7).contains(&dials), "{dials} dials in an hour");
}

#[test]
fn peer_that_breaks_the_protocol_is_let_go() {
    let key = |node| SharedKey { of: id(node), kind: SharedKind::Member };
    let part = |offset, more, count: usize| {
        Record::SharedPart(SharedPart {
            key: key(9),
            version: 1 << 16,
            offset,
            more,
            bytes: Bytes::from(vec![0; count]),
        })
    };
    let list = |keys: [SharedKey; 2]| {
        let entries = keys.map(|key| DigestEntry { key, version: 1 }).to_vec();
        Record::MemberDigest(MemberDigest { hash: 1, lists: true, more: true, entries })
    };
    let (low, high) = (key(1).min(key(2)), key(1).max(key(2)));
    let long = || (0..7).map(|at| part(at * 12_000, true, 12_000)).collect::<Vec<_>>();
    let held = Record::InterestsHeld(InterestsHeld { generation: 1 });
    let cases: [(&str, Vec<Record>, MemberError); 7] = [
        ("no beginning", vec![part(5, false, 5)], MemberError::Gap { found: 5, expected: 0 }),
        (
            "a gap",
            vec![part(0, true, 5), part(6, false, 5)],
            MemberError::Gap { found: 6, expected: 5 },
        ),
        ("empty", vec![part(0, true, 0)], MemberError::Gap { found: 0, expected: 1 }),
        ("too long", long(), MemberError::TooLong { most: MEMBER_BYTES_MAX }),
        ("list not in order", vec![list([high, low])], MemberError::Unordered),
        ("list that begins again", vec![list([low, high]); 2], MemberError::Unordered),
        ("another's", vec![held], MemberError::Unexpected { found: "InterestsHeld" }),
    ];
    for (note, records, expected) in cases {
        let mut mesh = Mesh::of(1);
        let now = mesh.now;
        let members = mesh.nodes.get_mut(&0).expect("it runs");
        let link =
            members.handle_linked(now, id(9), None, DialNumber::default()).expect("it is new").link;
        let mut errors =
            records.into_iter().filter_map(|one| members.handle_record(now, link, one).err());
        assert_eq!(errors.next(), Some(expected), "{note}");
    }
}

/// All that there is to be sent.
fn drain(members: &mut Members, link: LinkId) -> Vec<Record> {
    std::iter::from_fn(|| members.poll_transmit(link)).collect()
}

#[test]
fn slow_link_holds_no_copies_and_gets_the_newest_alone() {
    let mut mesh = Mesh::of(2);
    let now = mesh.now;
    let members = mesh.nodes.get_mut(&0).expect("it runs");
    let slow =
        members.handle_linked(now, id(20), None, DialNumber::default()).expect("it is new").link;
    drain(members, slow);
    // Fewer than are taken over at once.
    for _ in 0..RECORDS_AT_ONCE / 2 {
        let now = mesh.now;
        mesh.nodes.get_mut(&1).expect("it runs").renew(now);
        // The mesh carries records of the links that it knows, and the slow one takes none of them.
        let one = mesh.nodes.get_mut(&1).expect("it runs");
        let save = one.poll_save().expect("it is to be saved");
        one.handle_saved(now, save.ticket);
        let link = one.link_to(id(0)).expect("they are linked");
        let sent = drain(one, link);
        let members = mesh.nodes.get_mut(&0).expect("it runs");
        let from = members.link_to(id(1)).expect("they are linked");
        sent.into_iter().for_each(|record| {
            members.handle_record(now, from, record).expect("it keeps to the protocol");
        });
    }
    let number = mesh.nodes[&1].number();
    let members = mesh.nodes.get_mut(&0).expect("it runs");
    assert_eq!(members.member(id(1)).expect("known").record.number, number);
    let parts = drain(members, slow);
    assert_eq!(parts.len(), 1, "{parts:?}");
}

#[test]
fn difference_that_stays_costs_a_list_now_and_then() {
    let mut mesh = Mesh::of(3);
    // Node 2 refuses what the others hold.
    let now = mesh.now;
    let list = Paper::list(1, &[9]);
    let one = mesh.nodes.get_mut(&2).expect("it runs");
    one.seal.revoke(id(99), &list).expect("it is right");
    let sealed = Paper::new(id(9), "node-9").seal(&record(9, 1).to_bytes()).to_bytes();
    let key = SharedKey { of: id(9), kind: SharedKind::Member };
    let part = SharedPart { key, version: 1, offset: 0, more: false, bytes: sealed };
    let here = mesh.nodes.get_mut(&0).expect("it runs");
    let link = here.link_to(id(1)).expect("they are linked");
    here.handle_record(now, link, Record::SharedPart(part)).expect("it keeps to the protocol");
    mesh.run_for(secs(60));
    let before: u64 = mesh.nodes.values().map(|members| members.counts().lists).sum();
    mesh.bytes = 0;
    mesh.run_for(secs(3_600));
    let lists = mesh.nodes.values().map(|members| members.counts().lists).sum::<u64>() - before;
    assert!((4..120).contains(&lists), "{lists} lists");
    // 3 links, two directions.
    assert!(mesh.bytes / 6 / 3_600 < 10, "{} bytes", mesh.bytes);
    assert!(mesh.nodes[&2].counts().revoked < 60);
    assert!(!mesh.events.iter().any(|(_, event)| matches!(event, Event::Missed)));
}

#[test]
fn idle_link_costs_a_hash_every_ten_seconds() {
    let mut mesh = Mesh::of(16);
    mesh.run_for(secs(60));
    mesh.assert_equal();
    (mesh.bytes, mesh.records) = (0, 0);
    mesh.run_for(secs(1_000));
    let ways = 16 * 15;
    assert_eq!(mesh.records, ways * 1_000 / HASH_EVERY.as_secs());
    let rate = mesh.bytes as f64 / ways as f64 / 1_000.0;
    println!("an idle link has {rate:.1} bytes a second in each direction");
    assert!(rate < 2.0);
}

#[test]
fn retry_max_is_kept_whatever_it_is() {
    let mut settings = settings(1, &[0]);
    settings.retry_max = secs(600);
    let mut mesh = Mesh::new();
    mesh.start_as(1, settings);
    mesh.run_for(secs(7_200));
    mesh.start(0, &[]);
    mesh.run_for(secs(601));
    mesh.assert_equal();
}

#[test]
fn node_that_the_network_names_is_dialled_as_long_as_it_is_named_and_has_no_link() {
    let mut mesh = Mesh::new();
    mesh.start(1, &[]);
    let (now, there) = (mesh.now, "10.0.0.9:7443".parse().expect("an address"));
    let members = mesh.nodes.get_mut(&1).expect("it runs");
    assert!(!members.handle_found(now, id(1), there), "it is this node itself");
    assert!(members.handle_found(now, id(2), there), "it is news");
    assert!(!members.handle_found(now, id(2), there), "it is none");
    let soon = now + HIGHER_WAITS;
    let dial = members.poll_dial(soon).expect("it is dialled");
    assert_eq!(
        (dial.target, &dial.addresses[..]),
        (Target::Found(id(2)), &[there.to_string()][..])
    );
    members.handle_dial_failed(soon, dial.target);
    let again = members.poll_dial(soon + secs(4)).expect("it is dialled again");
    // Another node answers there, and is a member as any.
    let link = members
        .handle_linked(soon, id(3), Some(again.target), again.number)
        .expect("it is the only one")
        .link;
    assert_eq!(members.poll_dial(soon + secs(20)), None);
    members.handle_found(soon, id(3), there);
    assert_eq!(members.poll_dial(soon + secs(20)), None, "it has a link");
    members.handle_unlinked(soon, link);
    members.handle_found(soon, id(3), there);
    let dial = members.poll_dial(soon + secs(20)).expect("it has none");
    members.handle_dial_failed(soon + secs(20), dial.target);
    assert_eq!(members.poll_dial(soon + secs(3_600)), None, "it was not named again");
    members.leave(soon);
    assert!(!members.handle_found(soon, id(4), there), "this node leaves");
}
