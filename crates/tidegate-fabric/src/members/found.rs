//! Nodes that a local network has named: where one may be, by a word that anyone there can say.
//!
//! Always true: they are few, and few of one host; one that is not named again is forgotten. Whether it is a member its certificate says.

use std::{collections::BTreeMap, net::SocketAddr};

use tidegate_message::Instant;
use tidegate_wire::NodeId;

use super::limits::{FOUND_FOR, FOUND_MAX, FOUND_OF_HOST_MAX};

#[derive(Debug, Default)]
pub(super) struct Found {
    nodes: BTreeMap<NodeId, (SocketAddr, Instant)>,
}

impl Found {
    /// A node was named there. Whether that is news; none if there is no room for it.
    pub(super) fn name(&mut self, now: Instant, node: NodeId, at: SocketAddr) -> Option<bool> {
        self.nodes.retain(|_, (_, until)| *until > now);
        let is_of_host = |(found, (other, _)): &(&NodeId, &(SocketAddr, Instant))| {
            other.ip() == at.ip() && **found != node
        };
        let of_host = self.nodes.iter().filter(is_of_host).count();
        let is_known = self.nodes.contains_key(&node);
        if of_host >= FOUND_OF_HOST_MAX || (!is_known && self.nodes.len() >= FOUND_MAX) {
            return None;
        }
        let old = self.nodes.insert(node, (at, now + FOUND_FOR));
        Some(old.is_none_or(|(old, _)| old != at))
    }

    /// Where the node may be.
    pub(super) fn at(&self, now: Instant, node: NodeId) -> Option<SocketAddr> {
        self.nodes.get(&node).filter(|(_, until)| *until > now).map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::Duration};

    use super::*;

    fn at(host: u8, port: u16) -> SocketAddr {
        (IpAddr::from([10, 0, 0, host]), port).into()
    }

    #[test]
    fn one_host_names_a_few_and_all_hosts_no_more_than_are_kept() {
        let (mut found, now) = (Found::default(), Instant::from_millis(1));
        let many: Vec<_> =
            (0..20).map(|n| found.name(now, NodeId([n; 32]), at(1, n.into()))).collect();
        assert_eq!(many.iter().flatten().count(), FOUND_OF_HOST_MAX);
        assert_eq!(found.name(now, NodeId([0; 32]), at(1, 0)), Some(false), "it is known");
        assert_eq!(found.name(now, NodeId([0; 32]), at(2, 0)), Some(true), "it has moved");
        assert_eq!(found.at(now, NodeId([0; 32])), Some(at(2, 0)));
        let kept = (100..=255).filter(|n| found.name(now, NodeId([*n; 32]), at(*n, 1)).is_some());
        assert_eq!(kept.count(), FOUND_MAX - FOUND_OF_HOST_MAX);
        let later = now + FOUND_FOR + Duration::from_millis(1);
        assert_eq!(found.at(later, NodeId([0; 32])), None, "it was not named again");
        assert_eq!(
            found.name(later, NodeId([99; 32]), at(9, 1)),
            Some(true),
            "there is room again"
        );
    }
}
