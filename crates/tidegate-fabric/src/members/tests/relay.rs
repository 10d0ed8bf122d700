//! Members that name a relay.

use super::mesh::*;
use crate::members::{Passage, RelayError};

/// Members that know each other, of which each names that relay.
fn mesh_via<const N: usize>(via: [&str; N]) -> Mesh {
    let mut mesh = Mesh::of(N);
    for (node, via) in via.into_iter().enumerate() {
        name(&mut mesh, node, via);
    }
    mesh
}

fn name(mesh: &mut Mesh, node: usize, via: &str) {
    let (now, members) = (mesh.now, mesh.nodes.get_mut(&node).expect("it runs"));
    let own = members.own_settings().clone();
    members.set_own(now, crate::members::OwnSettings { via: via.to_owned(), ..own });
    mesh.run_for(secs(2));
}

/// How messages pass between a member and each other one.
fn passages(mesh: &Mesh, node: usize) -> Vec<(usize, Passage)> {
    let found: std::collections::BTreeMap<_, _> = mesh.nodes[&node].passages().collect();
    let others = mesh.nodes.keys().filter(|other| **other != node);
    others.map(|other| (*other, found[&id(*other)])).collect()
}

#[test]
fn messages_of_a_leaf_pass_its_relay_alone() {
    use Passage::{Apart, Direct, Leaf, Relay};
    let mut mesh = mesh_via(["", "", "node-0", "node-0"]);
    for (node, expected) in [
        (0, [(1, Direct), (2, Leaf), (3, Leaf)]),
        (1, [(0, Direct), (2, Apart), (3, Apart)]),
        (2, [(0, Relay), (1, Apart), (3, Apart)]),
        (3, [(0, Relay), (1, Apart), (2, Apart)]),
    ] {
        assert_eq!(passages(&mesh, node), expected, "node {node}");
    }
    assert_eq!(mesh.nodes[&2].relay(), Ok(Some(id(0))));
    name(&mut mesh, 2, "");
    assert_eq!(passages(&mesh, 2), [(0, Direct), (1, Direct), (3, Apart)]);
    assert_eq!(passages(&mesh, 0), [(1, Direct), (2, Direct), (3, Leaf)]);
}

#[test]
fn relay_that_relays_nothing_is_named_with_the_reason() {
    let text = |text: &str| text.to_owned();
    let mut mesh = mesh_via(["", "node-0", "node-1", "node-9", "node-4"]);
    for (node, expected) in [
        (2, RelayError::Behind { name: text("node-1"), via: text("node-0") }),
        (3, RelayError::Unknown { name: text("node-9") }),
        (4, RelayError::Myself { name: text("node-4") }),
    ] {
        assert_eq!(mesh.nodes[&node].relay(), Err(expected), "node {node}");
        let all = passages(&mesh, node);
        assert!(all.iter().all(|(_, passage)| *passage == Passage::Apart), "{node}: {all:?}");
    }
    let in_vain: Vec<_> = mesh.nodes[&1].leaves_in_vain().collect();
    assert_eq!(in_vain, [id(2)]);
    assert_eq!(mesh.nodes[&0].leaves_in_vain().count(), 0);
    // Two that name each other have no relay, either of them.
    name(&mut mesh, 1, "node-2");
    for node in [1, 2] {
        assert!(matches!(mesh.nodes[&node].relay(), Err(RelayError::Behind { .. })));
    }
    let now = mesh.now;
    name(&mut mesh, 1, "node-0");
    mesh.nodes.get_mut(&0).expect("it runs").leave(now);
    mesh.run_for(secs(2));
    assert_eq!(mesh.nodes[&1].relay(), Err(RelayError::Over { name: text("node-0") }));
}
