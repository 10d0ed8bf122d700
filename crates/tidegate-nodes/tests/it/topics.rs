//! Filters of clients at other members.

use std::{
    fs,
    time::{Duration, Instant},
};

use tidegate_bus::{Attachment, SessionConfig, SessionReport, memory, part_id};
use tidegate_fabric::members::Presence;
use tidegate_identity::pki::{self, revocation::Reason};
use tidegate_message::{Identity, IdentityKind};
use tidegate_rpc::Fabric as _;
use tidegate_wire::NodeId;

use crate::rig::{Rig, Site, names_here};

#[tokio::test(flavor = "multi_thread")]
async fn subscription_is_known_to_all_members_before_its_suback() {
    let site = Site::new(&["one", "two", "three"]);
    let mut one = site.start("one", &[]).await;
    let seeds = [one.address.clone()];
    let (two, three) = (site.start("two", &seeds).await, site.start("three", &seeds).await);
    one.until(|seen| seen.counts.links == 2).await;
    // It returns with the SUBACK.
    let client = tokio::task::block_in_place(|| {
        one.broker.client("reader", &["rooms/+/celsius", "rooms/#", "$share/g/rooms/+"])
    });
    for other in [&two, &three] {
        let asked = other.topics.until("one", |asked| !asked.filters.is_empty()).await;
        for filter in ["rooms/#", "$share/g/rooms/+"] {
            assert!(asked.filters.contains(&filter.to_owned()), "{asked:?}");
        }
        assert_eq!(asked.addresses, [one.address.clone()], "it is dialled where it says");
    }
    // Those of clients that have gone are over, one that others cover too.
    drop(client);
    for other in [&two, &three] {
        other.topics.until("one", |asked| asked.filters.is_empty()).await;
    }
    for rig in [one, two, three] {
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn member_that_does_not_answer_costs_one_wait() {
    let site = Site::new(&["one", "two"]);
    let mut one = site.start("one", &[]).await;
    let two = site.start("two", std::slice::from_ref(&one.address)).await;
    one.until(|seen| seen.counts.links == 1).await;
    two.topics.hold_back();
    let subscribe = |name: &str, filter: &str| {
        let began = Instant::now();
        let client = tokio::task::block_in_place(|| one.broker.client(name, &[filter]));
        (client, began.elapsed())
    };
    let (_first, waited) = subscribe("first", "a");
    assert!(waited > Duration::from_millis(500), "it waits for the other: {waited:?}");
    let mut seen = one.nodes.seen();
    seen.wait_for(|seen| seen.missed == 1).await.expect("it runs");
    // Each that waited would take a second.
    let later = Instant::now();
    let clients: Vec<_> = (0..200)
        .map(|number| subscribe(&format!("later-{number}"), &format!("b/{number}")))
        .collect();
    assert!(
        later.elapsed() < Duration::from_secs(20),
        "{:?} for {}",
        later.elapsed(),
        clients.len()
    );
    assert_eq!(one.seen().missed, 1, "later ones do not wait");
    let problems = one.until(|seen| !seen.problems.is_empty()).await.problems.clone();
    assert!(problems[0].contains("member two does not say"), "{problems:?}");
    for rig in [one, two] {
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_for_a_member_that_is_away_and_not_for_one_that_left() {
    let site = Site::new(&["one", "two", "three"]);
    let mut one = site.start("one", &[]).await;
    let seeds = [one.address.clone()];
    let (mut two, mut three) = (site.start("two", &seeds).await, site.start("three", &seeds).await);
    for rig in [&mut two, &mut three] {
        rig.until(|seen| names_here(seen) == ["one", "three", "two"]).await;
    }
    let reader = tokio::task::block_in_place(|| two.broker.client("reader", &["a/#"]));
    one.topics.until("two", |asked| asked.filters == ["a/#"]).await;
    // The filters of one that is away stay, and nothing is dialled.
    drop(reader);
    two.stop().await;
    let asked = one.topics.until("two", |asked| asked.addresses.is_empty()).await;
    assert!(!asked.is_forgotten);
    one.until_of("two", |two| two.presence == Presence::Doubted).await;
    three.nodes.orders().leave().await.expect("it is a member");
    one.topics.until("three", |asked| asked.is_forgotten).await;
    for rig in [one, three] {
        rig.stop().await;
    }
}

/// Leaves a session for a member behind, as an uplink to it does.
async fn leave_session(broker: &memory::Node, node: NodeId) {
    let identity = Identity::new(IdentityKind::Node, "of before", "");
    let attachment = Attachment {
        session: SessionConfig { is_peer: true, ..SessionConfig::default() },
        session_expiry: u32::MAX,
        ..Attachment::new(identity, part_id("fabric", &format!("{node}/batched")))
    };
    broker.bus().attach(attachment).await.expect("it is let in");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_leaves_first_sends_what_waits_for_members_that_it_reaches() {
    let site = Site::new(&["one", "two", "away"]);
    let mut one = site.start("one", &[]).await;
    let seeds = [one.address.clone()];
    let (mut two, away) = (site.start("two", &seeds).await, site.start("away", &seeds).await);
    one.until(|seen| names_here(seen) == ["away", "one", "two"]).await;
    two.until(|seen| names_here(seen) == ["away", "one", "two"]).await;
    let nodes = [&two, &away].map(|rig| rig.credentials.identity().node);
    let absent = tokio::task::block_in_place(|| away.broker.client("absent", &["c/#"]));
    one.topics.until("away", |asked| asked.filters == ["c/#"]).await;
    away.stop().await;
    drop(absent);
    one.until_of("away", |away| away.presence == Presence::Doubted).await;
    one.until_of("two", |two| two.is_linked).await;
    let _reader = tokio::task::block_in_place(|| two.broker.client("reader", &["b/#"]));
    one.topics.until("two", |asked| asked.filters == ["b/#"]).await;
    for node in nodes {
        session_for(&one, node, "a/#").await;
    }
    tokio::task::block_in_place(|| {
        let mut client = one.broker.client("writer", &[]);
        assert!(!client.publish("a/b", b"1").is_failure());
        assert!(!client.publish("a/b", b"2").is_failure());
    });
    let orders = one.nodes.orders();
    let mut leaving = std::pin::pin!(orders.leave());
    tokio::select! {
        biased;
        left = &mut leaving => panic!("messages wait, and it has left: {left:?}"),
        () = std::future::ready(()) => {}
    }
    // It is a member until they are sent: others learn of its cameras meanwhile.
    let gate: tidegate_message::CameraName = "gate".parse().expect("a name");
    orders.set_cameras(vec![gate.clone()]).await;
    two.until_of("one", |one| one.presence == Presence::Here && one.cameras.contains(&gate)).await;
    let identity = Identity::new(IdentityKind::Node, "other", "");
    let attachment = Attachment {
        session_expiry: u32::MAX,
        ..Attachment::new(identity, part_id("fabric", &format!("{}/batched", nodes[0])))
    };
    let mut attached = one.broker.bus().attach(attachment).await.expect("it is let in");
    for _ in 0..2 {
        let id = loop {
            attached.deliveries.ready().await.expect("the broker is there");
            let message = attached.deliveries.next_message().expect("the broker is there");
            if let Some(message) = message {
                break message.packet_id();
            }
        };
        attached.deliveries.acknowledge(id);
    }
    attached.deliveries.settle();
    let left = leaving.await.expect("it is a member");
    assert_eq!((left.unsent, &left.unsent_to[..]), (2, &["away".to_owned()][..]));
    two.until_of("one", |one| one.presence == Presence::Left).await;
    // No more messages are queued for one that has all. Those of the other still match its filters, by which urgent ones are known.
    one.topics.until("two", |asked| asked.filters.is_empty()).await;
    assert_eq!(one.topics.until("away", |_| true).await.filters, ["c/#"]);
    for rig in [one, two] {
        rig.stop().await;
    }
}

async fn session(broker: &memory::Node, node: NodeId) -> Option<SessionReport> {
    let sessions = broker.bus().sessions("", 100, |_, _| true).await;
    sessions.into_iter().find(|it| it.client_id.contains(&node.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_members_that_are_gone_end_at_the_start_and_unknown_ones_later() {
    let site = Site::new(&["one", "away", "left", "revoked"]);
    let mut one = site.start("one", &[]).await;
    let (address, seeds) = (one.address.clone(), [one.address.clone()]);
    let others = ["away", "left", "revoked"];
    let mut rigs = Vec::new();
    for name in others {
        rigs.push(site.start(name, &seeds).await);
    }
    one.until(|seen| names_here(seen) == ["away", "left", "one", "revoked"]).await;
    let nodes: Vec<NodeId> = rigs.iter().map(|rig| rig.credentials.identity().node).collect();
    rigs[1].nodes.orders().leave().await.expect("it is a member");
    one.until_of("left", |left| left.presence == Presence::Left).await;
    for rig in rigs {
        rig.stop().await;
    }
    one.until_of("revoked", |it| it.presence == Presence::Doubted).await;
    let (broker, folder) = (memory::Node::default(), one.pki());
    one.stop().await;
    // The certificate of one is revoked while this node is down.
    let unknown = NodeId([7; 32]);
    for node in nodes.iter().copied().chain([unknown]) {
        leave_session(&broker, node).await;
    }
    let list =
        pki::revoke(&site.pki(), &["revoked".to_owned()], Reason::KeyCompromise).expect("a list");
    fs::copy(&list.path, folder.join("crl.pem")).expect("a copy");
    let mut one = site.start_on("one", &address, &[], broker).await;
    one.until(|seen| seen.me().is_some()).await;
    let [away, left, revoked] = nodes[..] else { panic!("three") };
    assert!(session(&one.broker, left).await.is_none(), "it had left");
    assert!(session(&one.broker, revoked).await.is_none(), "its certificate is revoked");
    let kept = session(&one.broker, away).await.expect("it is waited for");
    assert_eq!(kept.grace_ends, None);
    let kept = session(&one.broker, unknown).await.expect("it may exist");
    assert!(kept.grace_ends.is_some(), "it is not waited for for ever");
    one.stop().await;
}

/// A session at a relay for another node, as an uplink to it has one.
async fn session_for(relay: &Rig, node: NodeId, filter: &str) {
    let identity = Identity::new(IdentityKind::Node, "other", "");
    let attachment = Attachment {
        session_expiry: u32::MAX,
        ..Attachment::new(identity, part_id("fabric", &format!("{node}/batched")))
    };
    relay.broker.bus().attach(attachment.subscribe(filter)).await.expect("it is let in");
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_asks_each_side_for_what_the_other_wants_and_both_sides_leave_each_other_alone() {
    let site = Site::new(&["core", "far", "leaf"]);
    let mut core = site.start("core", &[]).await;
    let seeds = [core.address.clone()];
    let far = site.start("far", &seeds).await;
    let mut leaf = site.start_via("leaf", &seeds, "core").await;
    core.until(|seen| names_here(seen) == ["core", "far", "leaf"]).await;
    core.topics.until("leaf", |asked| asked.is_leaf).await;
    for (rig, filter) in [(&far, "far/#"), (&leaf, "leaf/#")] {
        session_for(&core, rig.credentials.identity().node, filter).await;
    }
    far.topics.until("core", |asked| asked.filters == ["leaf/#"]).await;
    leaf.topics.until("core", |asked| asked.filters == ["far/#"]).await;
    // Once the SUBACK is there, the client's filter is known beyond the relay, and at no other node.
    let _reader = tokio::task::block_in_place(|| core.broker.client("reader", &["here"]));
    far.topics.until("core", |asked| asked.filters == ["here", "leaf/#"]).await;
    leaf.topics.until("core", |asked| asked.filters == ["far/#", "here"]).await;
    let _own = tokio::task::block_in_place(|| leaf.broker.client("own", &["own"]));
    core.topics.until("leaf", |asked| asked.filters == ["own"]).await;
    for (at, other) in [(&far, "leaf"), (&leaf, "far")] {
        let asked = at.topics.until(other, |_| true).await;
        assert!(asked.filters.is_empty() && !asked.is_leaf, "{asked:?}");
    }
    let members = core.nodes.reports().members().await.expect("it is a member");
    let reason = members.into_iter().find(|it| it.name == "leaf").and_then(|it| it.reason);
    assert_eq!(reason.as_deref(), Some("its messages pass through its relay, core"));
    // The relay is away: its leaf says so, and goes no other way.
    assert_eq!(leaf.seen().problems, [""; 0]);
    core.stop().await;
    leaf.until(|seen| seen.problems.iter().any(|it| it.contains("core, is not reached"))).await;
    let asked = leaf.topics.until("far", |_| true).await;
    assert!(asked.filters.is_empty(), "{asked:?}");
    for rig in [far, leaf] {
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leaf_that_names_another_leaf_is_told_why_it_exchanges_nothing() {
    let site = Site::new(&["core", "one", "two"]);
    let core = site.start("core", &[]).await;
    let seeds = [core.address.clone()];
    let mut one = site.start_via("one", &seeds, "core").await;
    let mut two = site.start_via("two", &seeds, "one").await;
    two.until(|seen| seen.problems.iter().any(|it| it.contains("has core for a relay itself")))
        .await;
    one.until(|seen| seen.problems.iter().any(|it| it.contains("member two names this node")))
        .await;
    // It is released at once, for no member is to send what matches.
    let _reader = tokio::task::block_in_place(|| two.broker.client("reader", &["a"]));
    for rig in [&core, &one] {
        let asked = rig.topics.until("two", |_| true).await;
        assert!(asked.filters.is_empty(), "{asked:?}");
    }
    for rig in [core, one, two] {
        rig.stop().await;
    }
}
