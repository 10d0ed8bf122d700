use super::mesh::{Mesh, id, secs};

#[test]
fn members_that_know_one_come_to_know_all() {
    for nodes in [1, 2, 3, 16] {
        let mesh = Mesh::of(nodes);
        mesh.assert_equal();
        for (node, members) in &mesh.nodes {
            assert_eq!(members.counts().links, nodes - 1, "links of {node} of {nodes}");
        }
    }
}

#[test]
fn restarted_member_is_known_by_its_addresses_and_keeps_start_and_number() {
    let mut mesh = Mesh::of(4);
    mesh.run_for(secs(40));
    let (start, number) = (mesh.nodes[&0].start(), mesh.nodes[&0].number());
    for node in 0..4 {
        mesh.kill(node);
    }
    // No seeds: the addresses are those of the records.
    (0..4).for_each(|node| mesh.start(node, &[]));
    mesh.run_for(secs(5));
    mesh.assert_equal();
    assert_eq!((mesh.nodes[&0].start(), mesh.nodes[&0].number()), (start, number));
    assert_eq!(mesh.nodes[&1].member(id(0)).map(|view| view.record.start), Some(start));
}
