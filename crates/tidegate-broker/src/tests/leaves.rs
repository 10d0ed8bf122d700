//! Sessions of leaves: this node relays for them, and they count among its clients.

use std::num::NonZeroU64;

use super::{
    hand_over::{hands_out, publication, through},
    *,
};
use crate::{Handed, Publication};

fn of_leaf(number: u64, session: SessionConfig) -> SessionConfig {
    SessionConfig { leaf: NonZeroU64::new(number), ..session }
}

/// The session by which a leaf's messages come.
fn join_from(world: &mut World, name: &str, leaf: u64) -> At {
    world.join_with(kept(name), of_leaf(leaf, through()))
}

/// The session by which messages go to a leaf.
fn join_to(world: &mut World, name: &str, leaf: u64) -> At {
    world.join_with(kept(name), of_leaf(leaf, hands_out()))
}

/// The session by which messages go to another member.
fn join_peer(world: &mut World, name: &str) -> At {
    world.join_with(kept(name), SessionConfig { is_peer: true, ..hands_out() })
}

fn texts(world: &mut World, at: At) -> Vec<String> {
    let of = |handed: &Handed| match handed {
        Handed::One(delivery) => {
            String::from_utf8(delivery.message.payload.to_contiguous().to_vec()).expect("a text")
        }
        Handed::Run(run) => panic!("{} messages came as one", run.len()),
    };
    world.all_handed(at).iter().map(of).collect()
}

#[test]
fn a_message_of_a_leaf_goes_to_all_but_the_leaf_and_those_of_all_others_to_it() {
    each(|world| {
        let client = world.join(kept("client"));
        let (own, other) = (join_to(world, "own", 1), join_to(world, "other", 2));
        let peer = join_peer(world, "peer");
        for at in [client, own, other, peer] {
            world.subscribe(at, "t/#", AtLeastOnce);
        }
        let from = join_from(world, "from", 1);
        let config = SessionConfig { is_peer: true, ..through() };
        let from_peer = world.join_with(kept("from-peer"), config);
        let publisher = world.join(v5("publisher"));
        // In turn, and each more than once: all have routes of the same topic, which are remembered.
        for round in 0..3 {
            world.publish(publisher, message("t/a", AtLeastOnce, "here"));
            world.hand_over(from, &[publication(1, "t/a", AtLeastOnce, "leaf")]);
            world.hand_over(from_peer, &[publication(1, "t/a", AtLeastOnce, "peer")]);
            assert_eq!(world.texts(client), ["here", "leaf", "peer"], "round {round}");
            assert_eq!(texts(world, own), ["here", "peer"], "round {round}");
            assert_eq!(texts(world, other), ["here", "leaf", "peer"], "round {round}");
            assert_eq!(texts(world, peer), ["here", "leaf"], "round {round}");
        }
    });
}

#[test]
fn a_group_that_a_leaf_has_chosen_this_node_for_is_served_once_and_not_by_the_leaf() {
    each(|world| {
        let client = world.join(kept("client"));
        let (own, peer) = (join_to(world, "own", 1), join_peer(world, "peer"));
        for at in [client, own, peer] {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
        }
        let from = join_from(world, "from", 1);
        let chosen =
            Publication { group: b"$share/g/t", ..publication(1, "t", AtLeastOnce, "chosen") };
        for _ in 0..4 {
            world.hand_over(from, &[publication(1, "t", AtLeastOnce, "plain")]);
            world.hand_over(from, std::slice::from_ref(&chosen));
        }
        let counts = [world.texts(client), texts(world, peer), texts(world, own)];
        let expected: [&[&str]; 3] = [&["chosen"; 2], &["chosen"; 2], &[]];
        assert_eq!(counts, expected);
        // The leaf has members that are left alone.
        world.unsubscribe(client, &["$share/g/t"]);
        world.unsubscribe(peer, &["$share/g/t"]);
        world.hand_over(from, &[chosen]);
        assert_eq!(texts(world, own), ["chosen"]);
    });
}

#[test]
fn a_group_that_a_peer_has_chosen_this_node_for_is_served_by_clients_and_leaves() {
    each(|world| {
        let (client, leaf) = (world.join(kept("client")), join_to(world, "leaf", 1));
        let peer = join_peer(world, "peer");
        for at in [client, leaf, peer] {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
        }
        let config = SessionConfig { is_peer: true, ..through() };
        let from = world.join_with(kept("from"), config);
        for number in 1..=4 {
            let text = number.to_string();
            let message = publication(number, "t", AtLeastOnce, &text);
            world.hand_over(from, &[Publication { group: b"$share/g/t", ..message }]);
        }
        let [here, there] = [world.texts(client).len(), texts(world, leaf).len()];
        assert!(here > 0 && there > 0 && here + there == 4, "{here} here, {there} at the leaf");
        assert_eq!(texts(world, peer), [""; 0]);
    });
}

#[test]
fn retained_messages_of_a_leaf_are_sent_to_all_but_the_leaf() {
    for shards in [1, 3] {
        let mut world = World::keeping(settings(), shards, true);
        let local = || SessionConfig { is_local: true, ..settings().session };
        let from = world.join_with(kept("$node/fabric/a/from"), of_leaf(1, local()));
        let peer = SessionConfig { is_peer: true, ..local() };
        let from_peer = world.join_with(kept("$node/fabric/b/from"), peer.clone());
        world.publish(from, retained("t/leaf", AtLeastOnce, "leaf"));
        world.publish(from_peer, retained("t/peer", AtLeastOnce, "peer"));
        for _ in 0..2 {
            for (name, config, expected) in [
                ("$node/fabric/a/to", of_leaf(1, local()), &["peer"][..]),
                ("$node/fabric/c/to", of_leaf(2, local()), &["leaf", "peer"][..]),
                ("$node/fabric/b/to", peer.clone(), &["leaf"][..]),
                ("client", settings().session, &["leaf", "peer"][..]),
            ] {
                let at = world.join_with(v5(name), config);
                world.subscribe(at, "t/#", AtLeastOnce);
                let mut texts = world.texts(at);
                texts.sort_unstable();
                assert_eq!(texts, expected, "{name}");
                world.cut(at);
            }
            let shards = world.shards.len() % 3 + 1;
            world.restart(shards);
        }
        world.end();
    }
}

#[test]
fn a_session_that_becomes_one_of_a_leaf_is_routed_to_as_such() {
    each(|world| {
        let from = join_from(world, "from", 1);
        let peer = SessionConfig { is_peer: true, ..hands_out() };
        for (round, (config, expected)) in [
            (peer.clone(), 1),
            (of_leaf(1, hands_out()), 0),
            (of_leaf(2, hands_out()), 1),
            (peer, 1),
        ]
        .into_iter()
        .enumerate()
        {
            let at = world.join_with(kept("to"), config);
            world.subscribe(at, "t", AtLeastOnce);
            world.hand_over(from, &[publication(1, "t", AtLeastOnce, "x")]);
            assert_eq!(texts(world, at).len(), expected, "round {round}");
            world.cut(at);
        }
    });
}
