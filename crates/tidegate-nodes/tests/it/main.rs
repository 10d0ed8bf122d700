//! Members on loopback: real links, real certificates, a broker in memory each.

mod clients;
mod rig;
mod topics;

use std::fs;

use tidegate_fabric::members::Presence;
use tidegate_identity::pki::{self, revocation::Reason};
use tidegate_nodes::Join;

use self::rig::{Site, names_here};

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_know_one_seed_know_each_other_and_come_to_one_view() {
    let site = Site::new(&["one", "two", "three", "four"]);
    let one = site.start("one", &[]).await;
    let seeds = [one.address.clone()];
    let mut rigs = vec![one];
    for name in ["two", "three", "four"] {
        rigs.push(site.start(name, &seeds).await);
    }
    for rig in &mut rigs {
        rig.until(|seen| names_here(seen) == ["four", "one", "three", "two"]).await;
        rig.until(|seen| seen.members.iter().all(|member| member.is_me || member.is_linked)).await;
    }
    let view = rigs[0].seen().view_hash;
    for rig in &mut rigs {
        rig.until(|seen| seen.view_hash == view).await;
    }
    // One that ends is missed at once, by all; and comes back with the next start of its folder.
    let two = rigs.remove(1);
    two.stop().await;
    for rig in &mut rigs {
        let two = rig.until_of("two", |two| two.presence == Presence::Doubted).await;
        assert!(!two.is_linked);
    }
    rigs.push(site.start("two", &seeds).await);
    for rig in &mut rigs {
        rig.until(|seen| names_here(seen) == ["four", "one", "three", "two"]).await;
    }
    for rig in rigs {
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_dials_itself_is_alone_and_without_a_problem() {
    let site = Site::new(&["one"]);
    let address = site.free_address();
    let mut one =
        site.start_at("one", &address, std::slice::from_ref(&address), Join::Certificate).await;
    let seen = one.until(|seen| names_here(seen) == ["one"]).await;
    assert_eq!((seen.counts.links, seen.problems.len()), (0, 0), "{:?}", seen.problems);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_know_no_other_find_each_other_in_their_network() {
    let site = Site::new(&["one", "two", "three"]);
    let mut rigs = Vec::new();
    for name in ["one", "two", "three"] {
        rigs.push(site.start_unknown(name).await);
    }
    let all = ["one", "three", "two"];
    for rig in &mut rigs {
        rig.until(|seen| names_here(seen) == all).await;
        rig.until(|seen| seen.members.iter().all(|member| member.is_me || member.is_linked)).await;
    }
    // None says an address of its own: messages go to where the network has named it.
    for rig in &rigs {
        let others = rigs.iter().filter(|other| other.address != rig.address);
        for other in others {
            let name = other.credentials.identity().name.clone();
            let at = [other.address.clone()];
            rig.topics.until(&name, |asked| asked.addresses == at && asked.fetched_at == at).await;
        }
    }
    // One that stops and starts again, at another port, is found there.
    let two = rigs.remove(1);
    let before = two.address.clone();
    two.stop().await;
    let two = site.start_unknown("two").await;
    assert_ne!(two.address, before);
    rigs.push(two);
    for rig in &mut rigs {
        rig.until(|seen| names_here(seen) == all).await;
    }
    for rig in rigs {
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_not_listed_is_no_member_nor_by_the_word_of_others() {
    let site = Site::new(&["one", "two", "stranger"]);
    let listed = || Join::Listed(std::sync::Arc::new(["one", "two"].map(str::to_owned).into()));
    let address = site.free_address();
    let mut one = site.start_at("one", &address, &[], listed()).await;
    // It takes any node of the site.
    let mut two = site.start("two", std::slice::from_ref(&address)).await;
    let mut stranger = site.start("stranger", &[address.clone(), two.address.clone()]).await;
    two.until(|seen| names_here(seen) == ["one", "stranger", "two"]).await;
    // That one relays the stranger's record, which is refused.
    one.until(|seen| names_here(seen) == ["one", "two"] && seen.counts.refused > 0).await;
    stranger.until(|seen| names_here(seen).contains(&"two")).await;
    for rig in [one, two, stranger] {
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_member_is_out_at_all_once_one_of_them_has_the_list() {
    let site = Site::new(&["one", "two", "three"]);
    let mut one = site.start("one", &[]).await;
    let seeds = [one.address.clone()];
    let mut two = site.start("two", &seeds).await;
    let mut three = site.start("three", &seeds).await;
    for rig in [&mut one, &mut two, &mut three] {
        rig.until(|seen| names_here(seen) == ["one", "three", "two"]).await;
    }
    // The list comes to the folder of one of them alone.
    let list =
        pki::revoke(&site.pki(), &["three".to_owned()], Reason::KeyCompromise).expect("a list");
    fs::copy(&list.path, one.pki().join("crl.pem")).expect("a copy");
    assert!(one.credentials.revocations().refresh().expect("it is right"), "the list is new");
    for rig in [&mut one, &mut two] {
        rig.until(|seen| names_here(seen) == ["one", "two"]).await;
    }
    // It knows why, from the nodes that it dials.
    let seen = three.until(|seen| seen.counts.links == 0 && seen.fault.is_some()).await;
    assert!(seen.fault.as_ref().is_some_and(|fault| fault.contains("is revoked")), "{seen:#?}");
    assert!(seen.problems.contains(seen.fault.as_ref().expect("it is there")));
    // It is let in nowhere, also where a node has heard of the list from others alone.
    let refused = three.dialled_in_vain(&two.address).await;
    assert!(refused.contains("revoked"), "{refused}");
    assert_eq!(names_here(&two.seen()), ["one", "two"]);
    for rig in [one, two, three] {
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn member_leaves_by_its_own_word_and_another_is_forgotten_by_a_persons() {
    let site = Site::new(&["one", "two", "three"]);
    let mut one = site.start("one", &[]).await;
    let seeds = [one.address.clone()];
    let mut two = site.start("two", &seeds).await;
    let mut three = site.start("three", &seeds).await;
    for rig in [&mut one, &mut two, &mut three] {
        rig.until(|seen| names_here(seen) == ["one", "three", "two"]).await;
    }
    three.nodes.orders().leave().await.expect("it is a member");
    for rig in [&mut one, &mut two] {
        rig.until_of("three", |three| three.presence == Presence::Left).await;
    }
    three.stop().await;
    let node = two.credentials.identity().node;
    let error = one.nodes.orders().forget(node).await.expect_err("it is here");
    assert!(error.message().contains("stop it"), "{error}");
    two.stop().await;
    one.until_of("two", |two| two.presence == Presence::Doubted).await;
    one.nodes.orders().forget(node).await.expect("it is away");
    one.until_of("two", |two| two.presence == Presence::Forgotten).await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cameras_of_a_member_are_known_at_all() {
    let site = Site::new(&["one", "two"]);
    let one = site.start("one", &[]).await;
    let two = site.start("two", std::slice::from_ref(&one.address)).await;
    let elsewhere = two.nodes.elsewhere();
    let gate: tidegate_message::CameraName = "gate".parse().expect("a name");
    one.nodes.orders().set_cameras(vec![gate.clone()]).await;
    let mut seen = two.nodes.seen();
    seen.wait_for(|_| elsewhere(&gate).is_some_and(|place| place.node == "one"))
        .await
        .expect("it runs");
    assert_eq!(elsewhere(&gate).expect("it is known").addresses, ["192.0.2.1:7080"]);
    let own = one.nodes.elsewhere();
    assert_eq!(own(&gate), None, "it is here");
    // It goes on to be there while its member is only doubted, and not once it moved.
    two.nodes.orders().set_cameras(vec![gate.clone()]).await;
    one.nodes.orders().set_cameras(Vec::new()).await;
    let mut seen = one.nodes.seen();
    seen.wait_for(|_| own(&gate).is_some_and(|place| place.node == "two")).await.expect("it runs");
    for rig in [one, two] {
        rig.stop().await;
    }
}
