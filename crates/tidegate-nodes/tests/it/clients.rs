//! Clients that connect at two members.

use std::time::Duration;

use tidegate_bus::{Attached, Attachment, BusError};
use tidegate_message::{Identity, IdentityKind};
use tidegate_nodes::Seen;
use tidegate_wire::mqtt::ReasonCode;

use crate::rig::{Rig, Site};

const LONGEST: Duration = Duration::from_secs(60);

async fn attach(rig: &Rig, user: &str) -> Attached {
    attach_as(rig, user, "panel").await
}

async fn attach_as(rig: &Rig, user: &str, client_id: &str) -> Attached {
    let identity = Identity::new(IdentityKind::User, user, client_id);
    rig.broker.bus().attach(Attachment::new(identity, client_id)).await.expect("it is let in")
}

/// Waits until each knows the clients that the other one has now: of two connections that begin before that, either may pass for the newer.
async fn known(rigs: [&mut Rig; 2]) {
    let [one, two] = rigs;
    // Clients come in their order, so that one who is in dispute at both comes last.
    let marks = [attach_as(one, "ada", "mark").await, attach_as(two, "bob", "mark").await];
    let is_seen = |seen: &Seen| seen.problems.iter().any(|it| it.contains("identifier mark"));
    for rig in [&mut *one, &mut *two] {
        rig.until(is_seen).await;
    }
    drop(marks);
    for rig in [one, two] {
        rig.until(|seen| !is_seen(seen)).await;
    }
}

/// Why a connection ended.
async fn end(client: &mut Attached) -> ReasonCode {
    let ended = tokio::time::timeout(LONGEST, client.deliveries.ready()).await.expect("it ends");
    match ended.expect_err("it ends") {
        BusError::Disconnected { reason, .. } => reason,
        error => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_connects_at_another_member_is_taken_over() {
    let site = Site::new(&["one", "two"]);
    let mut one = site.start("one", &[]).await;
    let mut two = site.start("two", std::slice::from_ref(&one.address)).await;
    one.until(|seen| seen.counts.links == 1).await;
    let mut last = attach(&one, "ada").await;
    known([&mut one, &mut two]).await;
    for at in [&two, &one, &two, &one, &two] {
        let next = attach(at, "ada").await;
        assert_eq!(end(&mut last).await, ReasonCode::SESSION_TAKEN_OVER);
        last = next;
    }
    // That of another user is not taken over, and both members name it until one of the two is gone.
    let other = attach(&one, "bob").await;
    for rig in [&mut one, &mut two] {
        let seen = rig.until(|seen| !seen.problems.is_empty()).await;
        let is_named = |problem: &String| problem.contains("identifier panel is in use");
        assert!(seen.problems.iter().any(is_named), "{:?}", seen.problems);
    }
    drop(other);
    for rig in [&mut one, &mut two] {
        rig.until(|seen| seen.problems.is_empty()).await;
    }
    for rig in [one, two] {
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_meet_end_one_of_two_connections_of_a_client() {
    let site = Site::new(&["one", "two", "three"]);
    let (one, mut two) = (site.start("one", &[]).await, site.start("two", &[]).await);
    let (mut first, mut second) = (attach(&two, "ada").await, attach(&one, "ada").await);
    // They have never heard of each other until a third one knows both.
    let three = site.start("three", &[one.address.clone(), two.address.clone()]).await;
    // They began within less time than a record may take: either may pass for the newer one.
    let (reason, other) = tokio::select! {
        reason = end(&mut first) => (reason, &mut second),
        reason = end(&mut second) => (reason, &mut first),
    };
    assert_eq!(reason, ReasonCode::SESSION_TAKEN_OVER);
    two.until(|seen| seen.counts.links == 2).await;
    let lives = tokio::time::timeout(Duration::from_millis(200), other.deliveries.ready()).await;
    assert!(lives.is_err(), "{lives:?}");
    for rig in [one, two, three] {
        rig.stop().await;
    }
}
