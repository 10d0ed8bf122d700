//! Peer sessions: messages leave by them for other members of a fabric, and come from there, one hop.

use super::{
    hand_over::{hands_out, publication, through},
    shared::{dropped, forget},
    *,
};
use crate::{Handed, PART_GRACE, Publication};

fn peer() -> SessionConfig {
    SessionConfig { is_peer: true, ..settings().session }
}

/// A peer session that outlives its connection.
fn join_peer(world: &mut World, name: &str) -> At {
    world.join_with(kept(name), peer())
}

#[test]
fn a_message_of_a_peer_goes_to_clients_and_to_no_peer() {
    each(|world| {
        let (client, first) = (world.join(kept("client")), join_peer(world, "first"));
        let second = join_peer(world, "second");
        for at in [client, first, second] {
            world.subscribe(at, "t/#", AtLeastOnce);
        }
        let publisher = world.join(v5("publisher"));
        // In turn, and each more than once: both have routes of the same topic, which are remembered.
        for round in 0..3 {
            for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
                world.publish(publisher, message("t/a", qos, "own"));
                world.publish(first, message("t/a", qos, "from the first"));
                world.publish(second, message("t/a", qos, "from the second"));
                let expected = ["own", "from the first", "from the second"];
                assert_eq!(world.texts(client), expected, "{qos:?} in round {round}");
                for at in [first, second] {
                    assert_eq!(world.texts(at), ["own"], "{qos:?} in round {round}");
                }
            }
        }
    });
}

#[test]
fn a_message_of_a_peer_that_only_peers_subscribe_to_has_no_subscriber() {
    each(|world| {
        let (first, second) = (join_peer(world, "first"), join_peer(world, "second"));
        world.subscribe(second, "t", AtLeastOnce);
        let publisher = world.join(v5("publisher"));
        for _ in 0..2 {
            for (at, expected) in
                [(first, ReasonCode::NO_MATCHING_SUBSCRIBERS), (publisher, ReasonCode::SUCCESS)]
            {
                let id = world.publish(at, message("t", AtLeastOnce, "x")).unwrap();
                assert_eq!(world.accepted(at, id), expected);
            }
        }
        assert_eq!(world.texts(second), ["x"; 2]);
    });
}

#[test]
fn a_full_peer_refuses_what_is_published_here_and_not_what_peers_publish() {
    let config = SessionConfig { queue_messages_max: 1, ..peer() };
    each(|world| {
        let full = world.join_with(kept("full"), config.clone());
        let client = world.join(v5("client"));
        for at in [full, client] {
            world.subscribe(at, "t", AtLeastOnce);
        }
        world.cut(full);
        let (publisher, other) = (world.join(v5("publisher")), join_peer(world, "other"));
        for at in [publisher, publisher, publisher, other] {
            world.publish(at, message("t", AtLeastOnce, "x"));
        }
        let refused = world.publish(publisher, message("t", AtLeastOnce, "more")).unwrap();
        assert_eq!(world.accepted(publisher, refused), ReasonCode::QUOTA_EXCEEDED);
        let taken = world.publish(other, message("t", AtLeastOnce, "from a peer")).unwrap();
        assert_eq!(world.accepted(other, taken), ReasonCode::SUCCESS);
        assert_eq!(world.texts(client).last().map(String::as_str), Some("from a peer"));
    });
}

#[test]
fn a_retained_message_of_a_peer_is_sent_to_clients_and_to_no_peer() {
    for shards in [1, 3] {
        let mut world = World::keeping(settings(), shards, true);
        let from = join_peer(&mut world, "from");
        let publisher = world.join(v5("publisher"));
        world.publish(publisher, retained("t/own", AtLeastOnce, "own"));
        world.publish(from, retained("t/theirs", AtLeastOnce, "theirs"));
        // The last one of a topic counts, whatever was there.
        world.publish(from, retained("t/a", AtLeastOnce, "theirs"));
        world.publish(publisher, retained("t/a", AtLeastOnce, "own, later"));
        world.publish(publisher, retained("t/b", AtLeastOnce, "own"));
        world.publish(from, retained("t/b", AtLeastOnce, "theirs, later"));
        let look = |world: &mut World, name: &str| {
            let config = SessionConfig { is_peer: name == "peer", ..settings().session };
            let at = world.join_with(v5(name), config);
            world.subscribe(at, "t/#", AtLeastOnce);
            let mut texts = world.texts(at);
            texts.sort_unstable();
            world.cut(at);
            texts
        };
        for _ in 0..2 {
            assert_eq!(look(&mut world, "peer"), ["own", "own, later"]);
            let all = ["own", "own, later", "theirs", "theirs, later"];
            assert_eq!(look(&mut world, "client"), all);
            // The mark is in the journal, and in what is written again at the start.
            let shards = world.shards.len() % 3 + 1;
            world.restart(shards);
        }
        let from = join_peer(&mut world, "from");
        for topic in ["t/own", "t/theirs", "t/a", "t/b"] {
            world.publish(from, retained(topic, AtLeastOnce, ""));
        }
        assert_eq!(look(&mut world, "client"), [""; 0], "a peer clears what anyone has published");
        world.end();
    }
}

#[test]
fn a_retained_message_that_changes_while_a_peer_is_sent_others_is_judged_as_it_is_now() {
    each(|world| {
        let (from, publisher) = (join_peer(world, "from"), world.join(v5("publisher")));
        for number in 0..5 {
            world.publish(publisher, retained(&format!("t/{number}"), AtMostOnce, "own"));
        }
        let few = SessionConfig { queue_messages_max: 1, ..peer() };
        let reader = world.join_with(v5("reader"), few);
        world.room(reader, 0);
        // Its SUBACK is not read yet.
        let packet_id = world.fresh_id(reader);
        let filters = vec![filter("t/+", AtMostOnce)];
        let (subscription_id, user_properties) = (None, Vec::new());
        let packet = Subscribe { packet_id, subscription_id, user_properties, filters };
        world.send(reader, Packet::Subscribe(packet));
        world.publish(from, retained("t/4", AtMostOnce, "theirs"));
        world.room(reader, usize::MAX);
        let topics: Vec<String> = world.messages(reader).into_iter().map(|got| got.topic).collect();
        assert!(topics.len() >= 4, "{topics:?}");
        let client = world.join(v5("client"));
        world.subscribe(client, "t/4", AtMostOnce);
        assert_eq!(world.texts(client), ["theirs"]);
    });
}

#[test]
fn what_peers_publish_goes_to_no_peer_after_a_restart_either() {
    for (shards, is_gated) in [(1, false), (3, false), (3, true)] {
        let mut world = World::keeping(settings(), shards, is_gated);
        for (name, is_peer) in [("peer", true), ("client", false)] {
            let config = SessionConfig { is_peer, ..settings().session };
            let at = world.join_with(kept(name), config);
            world.subscribe(at, "t", AtLeastOnce);
            world.cut(at);
        }
        let shards = world.shards.len() % 3 + 1;
        world.restart(shards);
        // Before the session of the peer has a connection again, which would say it.
        let (from, publisher) = (join_peer(&mut world, "from"), world.join(v5("publisher")));
        world.publish(from, message("t", AtLeastOnce, "theirs"));
        world.publish(publisher, message("t", AtLeastOnce, "own"));
        let client = world.join(kept("client"));
        assert_eq!(world.texts(client), ["theirs", "own"]);
        let peer = join_peer(&mut world, "peer");
        assert_eq!(world.texts(peer), ["own"]);
        world.end();
    }
}

#[test]
fn a_message_of_a_peer_that_was_between_shards_goes_to_no_peer_after_a_restart() {
    let mut world = World::keeping(settings(), 3, true);
    let (client, peer) = (world.join(kept("client")), join_peer(&mut world, "peer"));
    let (from, publisher) = (join_peer(&mut world, "from"), world.join(v5("publisher")));
    for at in [client, peer] {
        world.subscribe(at, "t", AtLeastOnce);
        world.cut(at);
    }
    world.hold_peers = true;
    world.publish(from, message("t", AtLeastOnce, "theirs"));
    world.publish(publisher, message("t", AtLeastOnce, "own"));
    world.hold_peers = false;
    world.restart(2);
    let client = world.join(kept("client"));
    let mut got = world.texts(client);
    got.sort_unstable();
    assert_eq!(got, ["own", "theirs"]);
    let peer = join_peer(&mut world, "peer");
    assert_eq!(world.texts(peer), ["own"]);
    world.end();
}

/// A message for which another node has chosen this one, for a member of that shared subscription.
fn for_group<'a>(number: u16, group: &'a str, text: &'a str) -> Publication<'a> {
    Publication { group: group.as_bytes(), ..publication(number, "t", AtLeastOnce, text) }
}

/// A peer session that hands on messages of other members.
fn join_from(world: &mut World, name: &str) -> At {
    world.join_with(kept(name), SessionConfig { is_peer: true, ..through() })
}

/// A peer session that is handed messages as they are.
fn join_to(world: &mut World, name: &str) -> At {
    world.join_with(kept(name), SessionConfig { is_peer: true, ..hands_out() })
}

fn set_away(world: &mut World, at: At, is_away: bool) {
    let (shard, key) = world.key_of(at);
    world.shards[shard].set_away(key, is_away);
}

/// Texts of those messages of a peer, each with the shared subscription that it came by.
fn marked(world: &mut World, at: At) -> Vec<(String, Option<String>)> {
    let of = |handed: &Handed| match handed {
        Handed::One(delivery) => {
            let text = delivery.message.payload.to_contiguous().to_vec();
            let group = delivery.group.as_deref().map(str::to_owned);
            (String::from_utf8(text).expect("a text"), group)
        }
        Handed::Run(run) => panic!("{} messages came as one", run.len()),
    };
    world.all_handed(at).iter().map(of).collect()
}

#[test]
fn a_message_that_this_node_was_chosen_for_goes_to_one_member_of_that_group_and_to_nothing_else() {
    each(|world| {
        let members = ["first", "second"].map(|name| world.join(kept(name)));
        for member in members {
            world.subscribe(member, "$share/g/t", AtLeastOnce);
        }
        let others = ["$share/h/t", "$share/g/+", "t", "#"].map(|text| {
            let other = world.join(v5(text));
            world.subscribe(other, text, AtLeastOnce);
            other
        });
        let peer = join_to(world, "peer");
        world.subscribe(peer, "$share/g/t", AtLeastOnce);
        world.subscribe(peer, "t", AtLeastOnce);
        let from = join_from(world, "from");
        for number in 1..=10 {
            let text = number.to_string();
            let message = Publication { retain: true, ..for_group(number, "$share/g/t", &text) };
            assert_eq!(world.hand_over(from, &[message]), 1);
            assert_eq!(world.pubacks(from), [(number, ReasonCode::SUCCESS)]);
        }
        let mut got = members.map(|member| world.texts(member)).concat();
        got.sort_by_key(|text| text.parse::<u32>().expect("a number"));
        assert_eq!(got, (1..=10).map(|number| number.to_string()).collect::<Vec<_>>());
        for other in others {
            assert_eq!(world.texts(other), [""; 0]);
        }
        assert_eq!(marked(world, peer), []);
        // Where it is to be retained another copy says so.
        assert_eq!(world.shared.retained_count(), 0);
    });
}

#[test]
fn a_message_of_a_peer_for_clients_goes_to_no_group() {
    each(|world| {
        let (member, client) = (world.join(kept("member")), world.join(kept("client")));
        world.subscribe(member, "$share/g/t", AtLeastOnce);
        world.subscribe(client, "t", AtLeastOnce);
        let from = join_from(world, "from");
        for round in 0..2 {
            world.hand_over(from, &[publication(1, "t", AtLeastOnce, "plain")]);
            world.hand_over(from, &[for_group(2, "$share/g/t", "chosen")]);
            assert_eq!(world.texts(client), ["plain"], "round {round}");
            assert_eq!(world.texts(member), ["chosen"], "round {round}");
        }
    });
}

#[test]
fn a_group_is_served_once_and_peers_are_told_which_copies_are_for_it() {
    each(|world| {
        let client = world.join(kept("client"));
        let peers = ["one", "two"].map(|name| join_to(world, name));
        for at in [client, peers[0], peers[1]] {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
        }
        world.subscribe(peers[0], "#", AtLeastOnce);
        let publisher = world.join(v5("publisher"));
        let all: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        for text in &all {
            world.publish(publisher, message("t", AtLeastOnce, text));
        }
        let mut got = world.texts(client);
        assert_eq!(got.len(), 10, "in turn");
        for peer in peers {
            let (of_group, plain): (Vec<_>, Vec<_>) =
                marked(world, peer).into_iter().partition(|(_, group)| group.is_some());
            assert!(of_group.iter().all(|(_, group)| group.as_deref() == Some("$share/g/t")));
            assert_eq!(of_group.len(), 10, "in turn");
            assert_eq!(plain.len(), if peer == peers[0] { 30 } else { 0 });
            got.extend(of_group.into_iter().map(|(text, _)| text));
        }
        got.sort_by_key(|text| text.parse::<u32>().expect("a number"));
        assert_eq!(got, all);
    });
}

#[test]
fn peers_are_told_of_groups_after_a_restart_too() {
    for (shards, is_gated) in [(1, false), (3, true)] {
        let mut world = World::keeping(settings(), shards, is_gated);
        let peer = join_to(&mut world, "peer");
        world.subscribe(peer, "$share/g/t", AtLeastOnce);
        world.subscribe(peer, "t", AtLeastOnce);
        let publisher = world.join(v5("publisher"));
        // Some are in flight, the others wait.
        world.publish(publisher, message("t", AtLeastOnce, "1"));
        world.cut(peer);
        world.publish(publisher, message("t", AtLeastOnce, "2"));
        world.restart(world.shards.len() % 3 + 1);
        let peer = join_to(&mut world, "peer");
        let mut got = marked(&mut world, peer);
        got.sort();
        let group = Some("$share/g/t".to_owned());
        let expected = [("1", None), ("1", group.clone()), ("2", None), ("2", group)];
        assert_eq!(got, expected.map(|(text, group)| (text.to_owned(), group)));
        world.end();
    }
}

#[test]
fn a_peer_that_is_away_is_chosen_where_no_other_member_has_a_connection() {
    each(|world| {
        let (client, peer) = (world.join(kept("client")), join_to(world, "peer"));
        for at in [client, peer] {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
        }
        let publisher = world.join(v5("publisher"));
        let publish = |world: &mut World| {
            for _ in 0..4 {
                world.publish(publisher, message("t", AtLeastOnce, "x"));
            }
        };
        set_away(world, peer, true);
        publish(world);
        assert_eq!((world.texts(client).len(), marked(world, peer).len()), (4, 0));
        set_away(world, peer, false);
        publish(world);
        assert_eq!((world.texts(client).len(), marked(world, peer).len()), (2, 2));
        // Alone it keeps them.
        set_away(world, peer, true);
        forget(world, "client");
        publish(world);
        assert_eq!(marked(world, peer).len(), 4);
        // A new connection reaches it, until it says otherwise.
        world.cut(peer);
        let (peer, client) = (join_to(world, "peer"), world.join(kept("client")));
        world.subscribe(client, "$share/g/t", AtLeastOnce);
        publish(world);
        assert_eq!((world.texts(client).len(), marked(world, peer).len()), (2, 2));
    });
}

#[test]
fn messages_of_a_group_that_a_forgotten_peer_had_go_to_others() {
    each(|world| {
        let peer = join_to(world, "peer");
        world.subscribe(peer, "$share/g/t", AtLeastOnce);
        let publisher = world.join(v5("publisher"));
        let texts = ["1", "2", "3", "4"];
        for (number, text) in texts.into_iter().enumerate() {
            if number == 2 {
                // The first ones are in flight, the others wait.
                world.cut(peer);
            }
            world.publish(publisher, message("t", AtLeastOnce, text));
        }
        let (client, other) = (world.join(kept("client")), join_to(world, "other"));
        for at in [client, other] {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
        }
        forget(world, "peer");
        let mut got = world.texts(client);
        got.extend(marked(world, other).into_iter().map(|(text, _)| text));
        got.sort_unstable();
        assert_eq!(got, texts);
    });
}

#[test]
fn messages_of_a_group_without_a_member_here_go_to_one_at_another_node_or_are_counted() {
    each(|world| {
        let (client, from) = (world.join(kept("client")), join_from(world, "from"));
        world.subscribe(client, "$share/g/t", AtLeastOnce);
        let peer = join_to(world, "peer");
        world.subscribe(peer, "$share/g/t", AtLeastOnce);
        world.subscribe(peer, "t", AtLeastOnce);
        let group = Some("$share/g/t".to_owned());
        let own = |text: &str| (text.to_owned(), group.clone());
        // Those that wait for a member that ends, and one that comes when it has.
        world.cut(client);
        for number in 1..=3 {
            // They have left as many nodes that they look for no other member.
            let forwarded = left(5);
            let text = number.to_string();
            let message = for_group(number, "$share/g/t", &text);
            world.hand_over(from, &[Publication { forwarded: &forwarded, ..message }]);
        }
        assert_eq!(marked(world, peer), []);
        forget(world, "client");
        world.hand_over(from, &[for_group(4, "$share/g/t", "4")]);
        let mut got = marked(world, peer);
        got.sort();
        assert_eq!(got, ["1", "2", "3", "4"].map(own));
        // Without a member anywhere nothing is lost in silence.
        world.unsubscribe(peer, &["$share/g/t"]);
        for (number, group) in [(5, "$share/g/t"), (6, "$share/never/t"), (7, "no group")] {
            world.hand_over(from, &[for_group(number, group, "lost")]);
        }
        assert_eq!(marked(world, peer), []);
        let expected = crate::Dropped { session_ended: 3, ..Default::default() };
        assert_eq!(dropped(world), expected);
    });
}

/// Properties of a message that has left so many nodes.
fn left(nodes: usize) -> Vec<u8> {
    let mut forwarded = Vec::new();
    for node in 0..nodes {
        let stamps = tidegate_wire::mqtt::path::Stamps::new(&node.to_string());
        forwarded.extend_from_slice(stamps.property(tidegate_wire::mqtt::path::Direction::Out));
    }
    forwarded
}

#[test]
fn a_group_whose_members_here_have_no_connection_leaves_messages_to_other_nodes_but_not_for_ever() {
    each(|world| {
        let (client, peer) = (world.join(kept("client")), join_to(world, "peer"));
        for at in [client, peer] {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
        }
        world.cut(client);
        let from = join_from(world, "from");
        let publish = |world: &mut World, nodes| {
            let forwarded = left(nodes);
            let text = nodes.to_string();
            let message = for_group(1, "$share/g/t", &text);
            world.hand_over(from, &[Publication { forwarded: &forwarded, ..message }]);
            marked(world, peer).len()
        };
        assert_eq!([1, 4, 5].map(|nodes| publish(world, nodes)), [1, 1, 0]);
        set_away(world, peer, true);
        assert_eq!(publish(world, 1), 0);
        let client = world.join(kept("client"));
        set_away(world, peer, false);
        assert_eq!(publish(world, 1), 0, "it has a connection");
        assert_eq!(world.texts(client), ["5", "1", "1"]);
    });
}

#[test]
fn a_message_of_a_group_that_was_between_shards_goes_to_its_peer_after_a_restart() {
    let mut world = World::keeping(settings(), 3, true);
    let (peer, from) = (join_to(&mut world, "peer"), join_from(&mut world, "from"));
    world.subscribe(peer, "$share/g/t", AtLeastOnce);
    world.hold_peers = true;
    world.hand_over(from, &[for_group(1, "$share/g/t", "x")]);
    world.hold_peers = false;
    world.restart(2);
    let peer = join_to(&mut world, "peer");
    let group = Some("$share/g/t".to_owned());
    assert_eq!(marked(&mut world, peer), [("x".to_owned(), group)]);
    world.end();
}

#[test]
fn operators_look_at_a_message_of_a_group_where_it_was_published() {
    publish::with_operator(|world| {
        let member = world.join(v5("member"));
        for filter in ["$share/g/t", "elsewhere"] {
            world.subscribe(member, filter, AtLeastOnce);
        }
        let from = join_from(world, "from");
        let messages = [
            publication(1, "t", AtLeastOnce, "replace"),
            for_group(2, "$share/g/t", "drop"),
            publication(3, "t", AtLeastOnce, "replace"),
        ];
        world.hand_over(from, &messages);
        assert_eq!(world.texts(member), ["replaced", "drop", "replaced"]);
        assert_eq!(world.pubacks(from), [(3, ReasonCode::SUCCESS)]);
    });
}

#[test]
fn a_session_that_becomes_a_peer_or_stops_being_one_is_routed_to_as_such() {
    each(|world| {
        let from = join_peer(world, "from");
        for (round, is_peer) in [false, true, false].into_iter().enumerate() {
            let config = SessionConfig { is_peer, ..settings().session };
            let at = world.join_with(kept("s"), config);
            if round == 0 {
                world.subscribe(at, "t", AtLeastOnce);
            }
            world.publish(from, message("t", AtLeastOnce, "x"));
            assert_eq!(world.texts(at).len(), usize::from(!is_peer), "round {round}");
            world.cut(at);
        }
    });
}

#[test]
fn the_will_of_a_peer_goes_to_no_peer() {
    each(|world| {
        let (client, other) = (world.join(v5("client")), join_peer(world, "other"));
        for at in [client, other] {
            world.subscribe(at, "w", AtMostOnce);
        }
        let connect = Connect { will: Some(will("w", "gone")), ..v5("mortal") };
        let mortal = world.join_with(connect, peer());
        world.cut(mortal);
        assert_eq!(world.texts(client), ["gone"]);
        assert_eq!(world.texts(other), [""; 0]);
    });
}

#[test]
fn operators_change_what_a_peer_published_and_it_still_goes_to_no_peer() {
    publish::with_operator(|world| {
        let (client, other) = (world.join(v5("client")), join_peer(world, "other"));
        for at in [client, other] {
            world.subscribe(at, "elsewhere", AtLeastOnce);
        }
        let (from, publisher) = (join_peer(world, "from"), world.join(v5("publisher")));
        for at in [from, publisher] {
            world.publish(at, message("t", AtLeastOnce, "replace"));
        }
        assert_eq!(world.texts(client), ["replaced"; 2]);
        assert_eq!(world.texts(other), ["replaced"]);
    });
}

#[test]
fn subscriptions_of_peers_wait_for_none() {
    each(|world| {
        world.shards.iter_mut().for_each(|shard| shard.hold_subacks(Some(seconds(1))));
        let at = join_peer(world, "peer");
        // Its answer is there at once, or this would panic.
        assert_eq!(world.subscribe(at, "t/#", AtLeastOnce), ReasonCode::GRANTED_QOS_1);
        assert!(world.held.is_empty());
    });
}

#[test]
fn unknown_member_is_waited_for_as_long_as_a_part_that_is_gone() {
    for shards in [1, 3] {
        let mut world = World::keeping(settings(), shards, true);
        let join = |world: &mut World, name: &str| {
            let properties =
                ConnectProperties { session_expiry: Some(u32::MAX), ..Default::default() };
            let connect = Connect { properties, ..kept(name) };
            world.join_with(connect, SessionConfig { is_local: true, ..peer() })
        };
        for name in ["known", "unknown", "comes"] {
            let at = join(&mut world, name);
            world.subscribe(at, "t", AtLeastOnce);
            world.cut(at);
        }
        let mark = |world: &mut World| {
            let (now, known) = (world.now, world.placed("known"));
            for shard in &mut world.shards {
                shard.mark_unknown_members(now, &|client_id, _| client_id != known);
            }
            world.pump();
        };
        mark(&mut world);
        let publisher = world.join(v5("publisher"));
        world.publish(publisher, message("t", AtLeastOnce, "x"));
        world.advance(PART_GRACE / 2);
        // The time that has passed counts over a restart.
        world.restart(shards);
        mark(&mut world);
        let comes = join(&mut world, "comes");
        assert_eq!(world.texts(comes), ["x"]);
        world.cut(comes);
        let left = |world: &World| -> usize {
            let all =
                world.shards.iter().map(|shard| shard.sessions_after("", 9, &|_, _| true).len());
            all.sum()
        };
        assert_eq!(left(&world), 3);
        world.advance(PART_GRACE / 2 + seconds(1));
        assert_eq!(left(&world), 2);
        world.advance(2 * PART_GRACE);
        let known = join(&mut world, "known");
        assert_eq!((left(&world), world.texts(known)), (2, vec!["x".to_owned()]));
    }
}
