//! Clients that come and go, as a service is told; and newer connections that are at another node.

use super::*;
use crate::part_id;

fn announced(world: &mut World) {
    world.shards.iter_mut().for_each(|shard| shard.announce_clients(true));
}

/// The changes that were told since the last time, in a word each: the name of the client, and what became of it.
fn said(world: &mut World) -> Vec<String> {
    let changes = std::mem::take(&mut world.changes);
    let name = |id: &str| id.split('~').next().expect("its name").to_owned();
    let word = |(_, _, change): (usize, u64, ClientChange)| match change {
        ClientChange::Connected(state) => {
            assert!(state.is_connected);
            let clean = if state.is_clean { ", clean" } else { "" };
            format!("{} connected{clean}", name(&state.client_id))
        }
        ClientChange::Left { client_id, .. } => format!("{} left", name(&client_id)),
        ClientChange::Ended { client_id } => format!("{} ended", name(&client_id)),
    };
    changes.into_iter().map(word).collect()
}

/// Of the client `c`, when it began.
fn began(world: &mut World, name: &str) -> Instant {
    let id = world.placed(name);
    let states = world.shards.iter().flat_map(|shard| shard.clients().1);
    states.into_iter().find(|state| *state.client_id == *id).expect("it has a session").began
}

fn taken_over(world: &mut World, name: &str, began: Instant, ends_session: bool) {
    let (id, now) = (world.placed(name), world.now);
    let shard = &mut world.shards[world.shared.shard_of(&id)];
    shard.taken_over(now, &id, began, ends_session);
    world.pump();
}

#[test]
fn a_service_is_told_of_clients_that_come_and_go() {
    each(|world| {
        let before = world.join(v5("before"));
        announced(world);
        let kept_one = world.join(kept("kept"));
        let one = world.join(v5("one"));
        assert_eq!(said(world), ["kept connected", "one connected, clean"]);
        world.cut(kept_one);
        world.cut(one);
        assert_eq!(said(world), ["kept left", "one ended"]);
        world.join(kept("kept"));
        world.join(kept("kept"));
        world.join(v5("kept"));
        let expected = [
            "kept connected",
            "kept left",
            "kept connected",
            "kept left",
            "kept ended",
            "kept connected, clean",
        ];
        assert_eq!(said(world), expected);
        let all = world.shards.iter().flat_map(|shard| shard.clients().1);
        assert!(all.filter(|state| state.is_connected).count() == 2, "those of before, too");
        world.cut(before);
        assert_eq!(said(world), ["before ended"]);
    });
}

#[test]
fn parts_and_clients_that_were_given_their_identifier_are_not_told_of() {
    each(|world| {
        announced(world);
        world.join(v5(""));
        let local = SessionConfig { is_local: true, ..settings().session };
        world.join_with(v5(&part_id("sink", "archive")), local);
        world.is_own = true;
        world.join(v5("inside"));
        assert_eq!(said(world), [""; 0]);
        assert!(world.shards.iter().all(|shard| shard.clients().1.is_empty()));
    });
}

#[test]
fn a_client_whose_newer_connection_is_elsewhere_is_told_and_its_session_waits() {
    each(|world| {
        let at = world.join(kept("c"));
        world.subscribe(at, "t", AtLeastOnce);
        let began = began(world, "c");
        taken_over(world, "c", began + seconds(1), false);
        assert!(world.is_open(at), "another connection was meant");
        taken_over(world, "c", began, false);
        assert_eq!(world.end_reason(at), Some(ReasonCode::SESSION_TAKEN_OVER));
        let from = world.join(v5("from"));
        world.publish(from, message("t", AtLeastOnce, "waits"));
        let at = world.connect(kept("c"));
        assert!(world.connack(at).session_present);
        assert_eq!(world.texts(at), ["waits"]);
    });
}

#[test]
fn a_session_ends_by_a_newer_connection_elsewhere_that_wants_none() {
    each(|world| {
        for is_there in [true, false] {
            let at = world.join(kept("c"));
            let began = began(world, "c");
            if !is_there {
                world.cut(at);
            }
            taken_over(world, "c", began, true);
            assert!(!world.is_open(at));
            let at = world.connect(kept("c"));
            assert!(!world.connack(at).session_present, "{is_there}");
            world.leave(at);
            world.advance(seconds(3601));
        }
    });
}

#[test]
fn a_will_is_as_where_the_newer_connection_is_at_this_node() {
    for (delay, ends_session, expected) in
        [(0, false, &["gone"][..]), (10, false, &[]), (0, true, &["gone"]), (10, true, &["gone"])]
    {
        each(|world| {
            let watcher = world.join(v5("watcher"));
            world.subscribe(watcher, "w", AtMostOnce);
            let at = world
                .join(Connect { will: Some(Will { delay, ..will("w", "gone") }), ..kept("c") });
            let began = began(world, "c");
            taken_over(world, "c", began, ends_session);
            assert!(!world.is_open(at));
            world.advance(seconds(20));
            assert_eq!(world.texts(watcher), expected, "{delay} {ends_session}");
        });
    }
}
