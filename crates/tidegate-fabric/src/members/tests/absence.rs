use tidegate_wire::{Absence, AbsenceKind};

use super::{
    super::{ANSWERED_AFTER, Event, ForgetError, LOST_AFTER, Presence, SPREAD},
    mesh::{Mesh, id, secs},
};

/// How many members have such a word about one at its number.
fn words(mesh: &Mesh, about: usize, kind: AbsenceKind) -> usize {
    let observers = mesh.nodes.iter().filter(|(node, members)| {
        let own = members.member(id(**node)).expect("it knows itself");
        let number = members.member(id(about)).expect("it is known").record.number;
        let is_it =
            |word: &&Absence| (word.node, word.number, word.kind) == (id(about), number, kind);
        own.record.absences.iter().any(|word| is_it(&word))
    });
    observers.count()
}

#[test]
fn killed_member_is_doubted_at_once_and_lost_after_a_minute() {
    let mut mesh = Mesh::of(8);
    mesh.kill(7);
    for node in 0..7 {
        assert_eq!(mesh.presence(node, 7), Some(Presence::Doubted));
        assert!(mesh.has_event(node, &Event::Doubted(id(7))));
    }
    mesh.run_for(LOST_AFTER - secs(1));
    for node in 0..7 {
        assert_eq!(mesh.presence(node, 7), Some(Presence::Doubted), "at {node}");
    }
    assert!((2..=4).contains(&words(&mesh, 7, AbsenceKind::Doubted)), "a few say so, not all");
    mesh.run_for(SPREAD + secs(3));
    for node in 0..7 {
        assert_eq!(mesh.presence(node, 7), Some(Presence::Lost), "at {node}");
        assert!(mesh.has_event(node, &Event::Lost(id(7))));
        assert_eq!(mesh.nodes[&node].counts().gone, 1);
    }
    let said = words(&mesh, 7, AbsenceKind::Lost);
    assert!((2..=4).contains(&said), "{said} say so");

    mesh.start(7, &[0]);
    mesh.run_for(secs(8));
    mesh.assert_equal();
    assert_eq!(mesh.nodes[&7].number(), 2, "it answers by the next number");
    assert!(mesh.has_event(0, &Event::Returned(id(7))));
    assert_eq!(words(&mesh, 7, AbsenceKind::Lost), 0, "words about the one before are over");
}

#[test]
fn short_absence_is_no_word_to_others() {
    let mut mesh = Mesh::of(5);
    mesh.run_for(secs(10));
    let versions = |mesh: &Mesh| -> Vec<u64> {
        let version = |node| mesh.nodes[&0].member(id(node)).expect("known").record.version;
        [0, 1, 2, 4].map(version).to_vec()
    };
    let before = versions(&mesh);
    mesh.kill(3);
    mesh.run_for(secs(1));
    mesh.start(3, &[0]);
    mesh.run_for(secs(30));
    mesh.assert_equal();
    assert_eq!(versions(&mesh), before);
}

#[test]
fn only_other_member_is_lost_by_one_word() {
    let mut mesh = Mesh::of(2);
    mesh.kill(1);
    mesh.run_for(LOST_AFTER + SPREAD + secs(2));
    assert_eq!(mesh.presence(0, 1), Some(Presence::Lost));
    assert_eq!(words(&mesh, 1, AbsenceKind::LostByOnly), 1);
    mesh.start(1, &[0]);
    mesh.run_for(secs(8));
    mesh.assert_equal();
}

#[test]
fn isolated_member_loses_no_other_and_is_lost_itself() {
    let mut mesh = Mesh::of(6);
    mesh.split(&[5], &[0, 1, 2, 3, 4]);
    mesh.run_for(secs(300));
    for node in 0..5 {
        assert_eq!(mesh.presence(5, node), Some(Presence::Doubted));
        assert_eq!(mesh.presence(node, 5), Some(Presence::Lost));
    }
    let number = mesh.nodes[&0].number();
    mesh.heal();
    mesh.run_for(secs(10));
    mesh.assert_equal();
    assert_eq!(mesh.nodes[&5].number(), 2);
    assert_eq!(mesh.nodes[&0].number(), number + 1, "a word was there at its number");
}

#[test]
fn members_that_cannot_reach_each_other_are_not_lost_while_another_reaches_both() {
    let mut mesh = Mesh::of(4);
    // All of them reach 0 alone.
    mesh.split(&[1], &[2, 3]);
    mesh.split(&[2], &[3]);
    mesh.run_for(secs(7_200));
    let lost = |(_, event): &&(usize, Event)| matches!(event, Event::Lost(_));
    assert_eq!(mesh.events.iter().find(lost), None);
    assert!((0..4).all(|node| mesh.nodes[&node].number() == 1));
    mesh.heal();
    mesh.run_for(secs(10));
    mesh.assert_equal();
    // The question is asked every ten minutes, and each is answered.
    assert!(ANSWERED_AFTER < secs(10));
}

#[test]
fn member_that_this_node_never_reached_is_lost_too() {
    let mut mesh = Mesh::of(3);
    mesh.split(&[0, 1], &[3]);
    mesh.start(3, &[2]);
    mesh.run_for(secs(20));
    assert_eq!(mesh.presence(0, 3), Some(Presence::Here), "known by way of 2");
    mesh.kill(2);
    mesh.kill(3);
    mesh.run_for(secs(900));
    for node in [0, 1] {
        assert_eq!(mesh.presence(node, 2), Some(Presence::Lost), "2 at {node}");
        assert_eq!(mesh.presence(node, 3), Some(Presence::Lost), "3 at {node}");
    }
}

#[test]
fn time_that_the_observer_hung_does_not_count() {
    let mut mesh = Mesh::of(3);
    mesh.kill(2);
    mesh.run_for(secs(20));
    // Both hang, and find themselves an hour later.
    mesh.now = mesh.now + secs(3_600);
    mesh.run_for(secs(20));
    assert_eq!(mesh.presence(0, 2), Some(Presence::Doubted), "20 s, 5 s and 20 s count");
    mesh.run_for(secs(25));
    assert_eq!(mesh.presence(0, 2), Some(Presence::Lost));
}

#[test]
fn member_that_leaves_is_gone_at_once_and_comes_back_by_the_next_number() {
    let mut mesh = Mesh::of(4);
    let now = mesh.now;
    let leaving = mesh.nodes.get_mut(&3).expect("it runs");
    leaving.leave(now);
    assert!(!leaving.is_leave_spread());
    mesh.pump();
    assert!(mesh.nodes[&3].is_leave_spread());
    mesh.kill(3);
    for node in 0..3 {
        assert_eq!(mesh.presence(node, 3), Some(Presence::Left));
        assert!(mesh.has_event(node, &Event::Left(id(3))));
    }
    mesh.run_for(secs(600));
    assert_eq!(mesh.nodes[&0].counts().present, 3);
    assert_eq!(words(&mesh, 3, AbsenceKind::Lost), 0, "it is not missed");
    mesh.start(3, &[]);
    mesh.run_for(secs(5));
    mesh.assert_equal();
    assert_eq!(mesh.nodes[&3].number(), 2);
    assert!(mesh.has_event(0, &Event::Returned(id(3))));
}

#[test]
fn person_forgets_a_member_that_is_away_and_no_other() {
    let mut mesh = Mesh::of(4);
    let now = mesh.now;
    let forget = |mesh: &mut Mesh, node| {
        let here = mesh.nodes.get_mut(&0).expect("it runs");
        let outcome = here.forget(now, id(node));
        mesh.pump();
        outcome
    };
    assert_eq!(forget(&mut mesh, 0), Err(ForgetError::Myself(id(0))));
    assert_eq!(forget(&mut mesh, 3), Err(ForgetError::Linked(id(3))));
    assert_eq!(forget(&mut mesh, 9), Err(ForgetError::Unknown(id(9))));
    mesh.kill(3);
    assert_eq!(forget(&mut mesh, 3), Ok(()));
    mesh.run_for(secs(2));
    for node in 0..3 {
        assert_eq!(mesh.presence(node, 3), Some(Presence::Forgotten), "one word counts");
    }
    // It is not dialled: neither does it come back by itself.
    mesh.start(3, &[]);
    mesh.saved.remove(&3);
    mesh.kill(3);
    mesh.start(3, &[0]);
    mesh.run_for(secs(5));
    mesh.assert_equal();
}

#[test]
fn word_whose_observer_is_revoked_is_said_again() {
    let mut mesh = Mesh::of(5);
    mesh.kill(4);
    mesh.run_for(LOST_AFTER + SPREAD + secs(2));
    assert_eq!(mesh.presence(0, 4), Some(Presence::Lost));
    let said = |mesh: &Mesh, node: usize| {
        let own = mesh.nodes[&node].member(id(node)).expect("it knows itself").record;
        own.absences.iter().any(|word| word.node == id(4))
    };
    let observers: Vec<usize> = (0..4).filter(|node| said(&mesh, *node)).collect();
    assert!(observers.len() < 4);
    let others: Vec<usize> = (0..4).filter(|node| !observers.contains(node)).collect();
    let now = mesh.now;
    let list = super::mesh::Paper::list(1, &observers);
    let here = mesh.nodes.get_mut(&others[0]).expect("it runs");
    here.set_revocations(now, id(99), list).expect("it is new");
    mesh.pump();
    observers.iter().for_each(|node| mesh.kill(*node));
    mesh.run_for(SPREAD + secs(3));
    assert!(others.iter().any(|node| said(&mesh, *node)));
    for node in others {
        assert_eq!(mesh.presence(node, 4), Some(Presence::Lost), "the view only grows");
    }
}
