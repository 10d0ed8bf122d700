//! The fabric as the driver shows it.

use std::{collections::BTreeSet, sync::Arc};

use tidegate_message::Instant;
use tidegate_wire::NodeId;

use super::{Driver, REVOKED, SAME_KEY, SHOWN_AT_LEAST, SHOWN_EVERY, State};
use crate::seen::Seen;

impl Driver {
    pub(super) fn show(&mut self, now: Instant) {
        let State { shown_at, is_shown_old, .. } = &self.state;
        let pause = if *is_shown_old { SHOWN_EVERY } else { SHOWN_AT_LEAST };
        if shown_at.is_some_and(|at| now.since(at) < pause) {
            return;
        }
        (self.state.shown_at, self.state.is_shown_old) = (Some(now), false);
        let State { peers, audiences, problems, .. } = &self.state;
        let filters = |node: NodeId| {
            peers.get(&node).map(|peer| peer.side.filters.clone()).unwrap_or_default()
        };
        let round_trip = |node: NodeId| {
            let path = peers.get(&node).map(|peer| peer.carrier.path());
            path.map(|path| path.rtt).filter(|rtt| !rtt.is_zero())
        };
        let mut problems: Vec<String> = problems.values().cloned().collect();
        problems.extend(audiences.silent().map(|node| {
            format!("member {} does not say that it sends for new subscriptions: SUBACKs do not wait for it", self.name_of(node))
        }));
        problems.extend(self.out_of_reach().into_iter().map(|node| {
            format!(
                "member {} wants messages, names no address at which others reach it (fabric.advertise there) and does not fetch them: they wait here",
                self.name_of(node)
            )
        }));
        problems.extend(self.relay_problems());
        let slowed = peers.iter().filter(|(_, peer)| peer.slowed.is_so(now)).map(|(node, _)| *node);
        let hurried: BTreeSet<NodeId> = self.members.hurried(now).chain(slowed).collect();
        problems.extend(hurried.into_iter().map(|node| {
            format!(
                "member {} sends far more about itself than others do, and less of it is taken: see its log, or stop it",
                self.name_of(node)
            )
        }));
        problems.extend(self.disputed_clients());
        if let Some(levels) = audiences.levels_max() {
            problems.push(format!(
                "clients have more filters than members are told: they are told wider ones, of {levels} levels, and send more than is asked for"
            ));
        }
        if audiences.left_out() > 0 {
            problems.push(format!(
                "{} subscriptions are served by this node alone",
                audiences.left_out()
            ));
        }
        let numbers = (audiences.len(), audiences.missed());
        let revoked = self.is_revoked().then(|| REVOKED.to_owned());
        problems.extend(revoked.clone());
        let fault = self.state.problems.get(SAME_KEY).cloned().or(revoked);
        let seen = Seen::new(&self.members, filters, round_trip, problems, fault, numbers);
        self.shown.send_replace(Arc::new(seen));
    }
}
