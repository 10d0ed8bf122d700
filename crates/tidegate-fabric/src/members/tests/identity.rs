use bytes::Bytes;
use tidegate_message::GeoPoint;
use tidegate_wire::{MemberRecord, Record, SharedKey, SharedKind, SharedPart};

use super::{
    super::{
        DialNumber, Event, Members, OwnSettings, Presence, SAME_KEY_WITHIN, SAVED_AFTER, Save,
        Saved, Seal as _,
    },
    mesh::{Mesh, Paper, id, secs, settings},
};

#[test]
fn no_record_leaves_before_it_is_saved() {
    let mut mesh = Mesh::of(2);
    let now = mesh.now;
    let version = |mesh: &Mesh| mesh.nodes[&1].member(id(0)).expect("known").record.version;
    let before = version(&mesh);
    let here = mesh.nodes.get_mut(&0).expect("it runs");
    here.renew(now);
    let Save { ticket, own, .. } = here.poll_save().expect("it is to be saved");
    mesh.pump();
    assert_eq!(version(&mesh), before);
    mesh.saved.insert(0, (own, None));
    mesh.nodes.get_mut(&0).expect("it runs").handle_saved(now, ticket);
    mesh.pump();
    assert!(version(&mesh) > before);
    assert_eq!(mesh.nodes[&1].member(id(0)).expect("known").record.number, 2);
}

#[test]
fn folder_that_is_lost_or_restored_makes_a_new_start_and_the_next_number() {
    for is_lost in [true, false] {
        let mut mesh = Mesh::of(3);
        let backup = mesh.saved[&2].clone();
        let now = mesh.now;
        for _ in 0..3 {
            mesh.nodes.get_mut(&2).expect("it runs").renew(now);
            mesh.pump();
        }
        let (start, number) = (mesh.nodes[&2].start(), mesh.nodes[&2].number());
        mesh.kill(2);
        mesh.saved.remove(&2);
        if !is_lost {
            mesh.saved.insert(2, backup);
        }
        mesh.events.clear();
        mesh.start(2, &[0]);
        mesh.run_for(secs(10));
        mesh.assert_equal();
        assert_eq!(mesh.nodes[&2].number(), number + 1, "lost {is_lost}");
        assert_ne!(mesh.nodes[&2].start(), start);
        let restored = mesh.events.iter().filter(|event| **event == (2, Event::Restored)).count();
        assert_eq!(restored, 1);
        assert!(!mesh.has_event(2, &Event::SameKey));
        assert!(mesh.has_event(0, &Event::Changed(id(2))));
    }
}

#[test]
fn number_goes_before_version_where_a_restored_folder_has_written_more() {
    for is_lost in [true, false] {
        let mut mesh = Mesh::of(4);
        let backup = mesh.saved[&3].clone();
        let renew = |mesh: &mut Mesh| {
            let now = mesh.now;
            mesh.nodes.get_mut(&3).expect("it runs").renew(now);
            mesh.run_for(secs(2));
        };
        renew(&mut mesh);
        mesh.kill(3);
        mesh.saved.remove(&3);
        if !is_lost {
            mesh.saved.insert(3, backup);
        }
        // Alone, it writes more often than before, under lower numbers.
        (0..3).for_each(|node| mesh.cut(node, 3));
        mesh.start(3, &[0]);
        for weight in 1..20 {
            let now = mesh.now;
            let own =
                OwnSettings { api_addresses: vec![format!("a:{weight}")], ..settings(3, &[]).own };
            mesh.nodes.get_mut(&3).expect("it runs").set_own(now, own);
            mesh.run_for(secs(2));
        }
        assert_eq!(mesh.nodes[&3].number(), 1);
        // One that never knew of it before takes its record, and has it when all meet.
        mesh.split(&[5], &[0, 1, 2]);
        mesh.start(5, &[3]);
        mesh.run_for(secs(5));
        mesh.heal();
        mesh.run_for(secs(20));
        mesh.assert_equal();
        assert_eq!(mesh.nodes[&3].number(), 3, "lost {is_lost}");
        assert!(mesh.has_event(3, &Event::Restored));
    }
}

#[test]
fn words_of_a_folder_that_was_lost_are_taken_over() {
    let mut mesh = Mesh::of(3);
    mesh.kill(2);
    mesh.run_for(secs(70));
    let words = |mesh: &Mesh| mesh.nodes[&0].member(id(0)).expect("known").record.absences.clone();
    let before = words(&mesh);
    assert_eq!(before.len(), 1);
    mesh.kill(0);
    mesh.saved.remove(&0);
    mesh.start(0, &[1]);
    mesh.run_for(secs(10));
    assert_eq!(words(&mesh), before);
    assert_eq!(mesh.presence(0, 2), Some(Presence::Lost));
}

#[test]
fn two_processes_with_one_key_are_named_and_do_not_fight_without_bound() {
    let mut mesh = Mesh::of(4);
    mesh.run_for(secs(60));
    // The folder of 3 runs on a second machine as well.
    let copy = mesh.saved[&3].clone();
    mesh.saved.insert(13, copy);
    mesh.start_as(13, settings(3, &[0, 1]));
    mesh.records = 0;
    mesh.run_for(secs(3_600));
    for node in [3, 13] {
        assert!(mesh.has_event(node, &Event::SameKey), "at {node}");
    }
    let number = mesh.nodes[&0].member(id(3)).expect("known").record.number;
    assert!((4..80).contains(&number), "{number} numbers in an hour");
    // 4 nodes, of which 3 have 3 links that compare hashes every 10 s, are 6,480 records an hour.
    assert!(mesh.records < 100_000, "{} records in an hour", mesh.records);
    assert!(!mesh.has_event(3, &Event::SameKeyOver), "the other one lives");
    mesh.kill(13);
    mesh.run_for(SAME_KEY_WITHIN);
    mesh.assert_equal();
    assert!(mesh.has_event(3, &Event::SameKeyOver));
}

#[test]
fn member_that_was_revoked_while_this_node_was_down_is_told_of_once() {
    let mut mesh = Mesh::of(3);
    mesh.run_for(secs(60));
    let begin = |own: &[u8], records: Option<&[u8]>| {
        let mut paper = Paper::new(id(0), "node-0");
        paper.revoked.insert(id(2));
        let saved = Saved::of_bytes(own, records).expect("they are whole");
        Members::new(mesh.now, settings(0, &[]), Box::new(paper), Some(saved), 9, 1_700_000_000)
    };
    let (own, records) = &mesh.saved[&0];
    let mut members = begin(own, records.as_deref());
    assert_eq!(members.poll_event(), Some(Event::Revoked(id(2))));
    assert_eq!(members.poll_event(), None);
    assert!(members.member(id(1)).is_some() && members.member(id(2)).is_none());
    let Save { .. } = members.poll_save().expect("its own record");
    members.handle_timeout(mesh.now + SAVED_AFTER);
    let Save { own, records, .. } = members.poll_save().expect("the records of others");
    assert_eq!(begin(&own, records.as_deref()).poll_event(), None);
}

#[test]
fn two_members_of_one_name_stay_and_are_named() {
    let mut mesh = Mesh::of(3);
    let mut same = settings(3, &[0]);
    same.name = "node-1".to_owned();
    mesh.start_as(3, same);
    mesh.run_for(secs(5));
    mesh.assert_equal();
    let nodes = [id(1).min(id(3)), id(1).max(id(3))];
    for node in 0..4 {
        let event = Event::SameName { name: "node-1".to_owned(), nodes };
        assert!(mesh.has_event(node, &event), "at {node}");
        assert_eq!(mesh.nodes[&node].same_names()["node-1"], nodes);
    }
}

#[test]
fn revoked_member_is_out_wherever_the_list_comes() {
    let mut mesh = Mesh::of(5);
    let now = mesh.now;
    let list = Paper::list(7, &[4]);
    let here = mesh.nodes.get_mut(&0).expect("it runs");
    here.set_revocations(now, id(99), list.clone()).expect("it is new");
    mesh.pump();
    for node in 0..4 {
        assert_eq!(mesh.presence(node, 4), None, "at {node}");
        assert!(mesh.has_event(node, &Event::Revoked(id(4))));
        let event = Event::Revocations { authority: id(99), list: list.clone() };
        assert!(mesh.has_event(node, &event), "at {node}");
    }
    let here = mesh.nodes.get_mut(&0).expect("it runs");
    assert!(here.set_revocations(now, id(99), list).is_err(), "it is held");
    // Its peers end its links, and it goes on to send.
    mesh.nodes.get_mut(&4).expect("it runs").renew(now);
    mesh.pump();
    assert!(mesh.nodes[&0].counts().revoked > 0);
    mesh.kill(4);
    mesh.saved.get_mut(&0).expect("it was saved");
    mesh.run_for(secs(60));
    mesh.assert_equal();
    // A list outlives the process.
    mesh.kill(0);
    mesh.start(0, &[1]);
    mesh.run_for(secs(5));
    mesh.assert_equal();
}

/// Gives a member a record of `node` by way of a link of node 20.
fn inject(mesh: &mut Mesh, to: usize, node: usize, version: u64, sealed: Bytes) {
    let now = mesh.now;
    let members: &mut Members = mesh.nodes.get_mut(&to).expect("it runs");
    let link = match members.link_to(id(20)) {
        Some(link) => link,
        None => {
            members.handle_linked(now, id(20), None, DialNumber::default()).expect("it is new").link
        }
    };
    let key = SharedKey { of: id(node), kind: SharedKind::Member };
    let part = SharedPart { key, version, offset: 0, more: false, bytes: sealed };
    members.handle_record(now, link, Record::SharedPart(part)).expect("it keeps to the protocol");
    mesh.pump();
}

pub(super) fn record(node: usize, version: u64) -> MemberRecord {
    MemberRecord {
        node: id(node),
        version,
        name: format!("node-{node}"),
        start: 1,
        number: 1,
        has_left: false,
        minor: 5,
        algorithm: 1,
        addresses: Vec::new(),
        api_addresses: Vec::new(),
        position: None,
        is_mobile: false,
        zone: String::new(),
        weight: 100,
        written: 1_700_000_000,
        absences: Vec::new(),
        via: String::new(),
    }
}

#[test]
fn record_of_a_newer_peer_passes_byte_for_byte() {
    let mut mesh = Mesh::of(3);
    let mut bytes = record(9, 1).to_bytes().to_vec();
    bytes.extend_from_slice(b"a field of a later version");
    let sealed = Paper::new(id(9), "node-9").seal(&bytes).to_bytes();
    inject(&mut mesh, 0, 9, 1, sealed.clone());
    let key = SharedKey { of: id(9), kind: SharedKind::Member };
    for node in 0..3 {
        let held = mesh.nodes[&node].table.shared(key).expect("it spreads");
        assert_eq!(held.bytes, sealed);
    }
}

#[test]
fn records_that_are_not_right_are_refused_and_counted() {
    let mut mesh = Mesh::of(2);
    let named = |name: &str| Paper::new(id(9), name);
    let own = || named("node-9");
    let with = |change: &dyn Fn(&mut MemberRecord)| {
        let mut record = record(9, 5);
        change(&mut record);
        record.to_bytes()
    };
    let right = with(&|_| {});
    let mut broken = own().seal(&right);
    broken.bytes = with(&|record| record.weight = 10_000);
    let cases = [
        ("foreign key", named("foreign-9").seal(&right)),
        ("another's key", Paper::new(id(8), "node-9").seal(&right)),
        ("another name", named("node-1").seal(&right)),
        ("changed on its way", broken),
        ("no weight", own().seal(&with(&|record| record.weight = 0))),
        ("too much weight", own().seal(&with(&|record| record.weight = 10_001))),
        ("another version than its part", own().seal(&with(&|record| record.version = 6))),
        ("a number without a next one", own().seal(&with(&|record| record.number = u64::MAX))),
        ("of another node", own().seal(&with(&|record| record.node = id(7)))),
        ("cut", own().seal(&right[..right.len() - 3])),
    ];
    for (count, (note, sealed)) in (1..).zip(cases) {
        inject(&mut mesh, 0, 9, 5, sealed.to_bytes());
        assert_eq!(mesh.nodes[&0].counts().refused, count, "{note}");
        assert_eq!(mesh.presence(0, 9), None, "{note}");
    }
    inject(&mut mesh, 0, 9, 5, own().seal(&right).to_bytes());
    assert_eq!(mesh.presence(0, 9), Some(Presence::Here));
    let old = mesh.nodes[&0].counts().old;
    inject(&mut mesh, 0, 9, 5, own().seal(&right).to_bytes());
    inject(&mut mesh, 0, 9, 4, own().seal(&with(&|record| record.version = 4)).to_bytes());
    assert_eq!(mesh.nodes[&0].counts().old, old + 2);
}

#[test]
fn number_rises_if_places_depend_on_what_changed() {
    let point = |latitude| GeoPoint::new(latitude, 4.9).expect("it is on the earth");
    let stationary = || settings(0, &[]).own;
    let at = |latitude| OwnSettings { position: Some(point(latitude)), ..stationary() };
    let mobile = |latitude| OwnSettings { is_mobile: true, ..at(latitude) };
    let mut mesh = Mesh::of(2);
    for (note, own, number) in [
        ("placed", at(52.0), 2),
        ("the same", at(52.0), 2),
        ("moved", at(53.0), 3),
        ("dialled elsewhere", OwnSettings { addresses: vec!["other:1".to_owned()], ..at(53.0) }, 3),
        ("heavier", OwnSettings { weight: 300, ..at(53.0) }, 4),
        ("mobile", mobile(53.0), 5),
        ("on its way", mobile(53.5), 5),
        ("in a zone", OwnSettings { zone: "a".to_owned(), ..mobile(53.5) }, 6),
    ] {
        let now = mesh.now;
        mesh.nodes.get_mut(&0).expect("it runs").set_own(now, own.clone());
        mesh.run_for(secs(2));
        let known = mesh.nodes[&1].member(id(0)).expect("known").record;
        assert_eq!((known.number, known.position), (number, own.position), "{note}");
        assert_eq!(known.addresses, own.addresses, "{note}");
    }
}

#[test]
fn camera_is_found_at_any_node_while_its_member_is_here() {
    let mut mesh = Mesh::of(3);
    let camera = |name: &str| name.parse().expect("a name");
    let now = mesh.now;
    let cameras = vec![camera("yard"), camera("gate"), camera("gate")];
    mesh.nodes.get_mut(&2).expect("it runs").set_cameras(now, cameras);
    mesh.run_for(secs(2));
    let found = |mesh: &Mesh, at: usize, name| {
        mesh.nodes[&at].where_camera(&camera(name)).iter().map(|one| one.node).collect::<Vec<_>>()
    };
    for node in 0..3 {
        assert_eq!(found(&mesh, node, "gate"), [id(2)]);
        assert_eq!(found(&mesh, node, "roof"), []);
    }
    assert!(mesh.has_event(0, &Event::Cameras(id(2))));
    // One that is there again has none until it says so.
    mesh.kill(2);
    mesh.start(2, &[0]);
    mesh.run_for(secs(5));
    mesh.assert_equal();
    assert_eq!(found(&mesh, 0, "gate"), []);
    let now = mesh.now;
    mesh.nodes.get_mut(&2).expect("it runs").set_cameras(now, vec![camera("roof")]);
    mesh.run_for(secs(2));
    assert_eq!(found(&mesh, 1, "roof"), [id(2)]);
    mesh.kill(2);
    mesh.run_for(secs(70));
    assert_eq!(found(&mesh, 1, "roof"), [], "its member is lost");
    mesh.assert_equal();
}
