//! Links of the driver: they begin, bring records, are given what they have room for, and end.

use tidegate_fabric::members::{Dial, Presence, Target, TurnedAway};
use tidegate_link::{introduce::Unwelcome, link::LinkError};
use tidegate_message::Instant;
use tidegate_wire::{InterestsHeld, Record};
use tokio::{
    sync::mpsc,
    task::{self, JoinError},
};

use super::{Driver, Held, Peer, REVOKED};
use crate::{
    discover::Heard,
    links::{FromLink, Line, Up},
    topics::Side,
};

impl Driver {
    /// Dials, unless one of the addresses is being dialled already, as where a member is also a seed. A seed is dialled all the same: many
    /// members that are gone may have had its address.
    pub(super) fn dial(&mut self, now: Instant, order: Dial) {
        let Dial { target, addresses, .. } = &order;
        let target = *target;
        let is_dialled = |others: &Vec<String>| addresses.iter().any(|one| others.contains(one));
        let is_seed = matches!(target, Target::Seed(_));
        if !is_seed && self.state.dialling.values().any(is_dialled) {
            return self.members.handle_dial_failed(now, target);
        }
        self.state.dialling.insert(target, addresses.clone());
        let dialler = self.dialler.clone();
        let task = self.state.dials.spawn(dialler.dial(order));
        self.state.targets.insert(task.id(), target);
    }

    /// A local network has named a node. Whether that is news.
    pub(super) fn found(&mut self, now: Instant, (node, at): Heard) -> bool {
        let is_news = self.members.handle_found(now, node, at);
        if is_news {
            self.reach(node);
        }
        is_news
    }

    /// Gives each link what it has room for. A link whose task has ended without a word is over.
    pub(super) fn transmit(&mut self, now: Instant) {
        let mut over = Vec::new();
        for (node, peer) in &mut self.state.peers {
            if peer.outbox.is_closed() {
                over.push(peer.line);
                continue;
            }
            while let Ok(room) = peer.outbox.try_reserve() {
                let held =
                    || Some(Record::from(InterestsHeld { generation: peer.side.poll_held()? }));
                // Answers and filters are small, and a subscription waits for them.
                let mut held = held;
                let record = held()
                    .or_else(|| self.state.audiences.poll_transmit(*node).map(Record::from))
                    .or_else(|| self.members.poll_transmit(peer.link))
                    .or_else(|| self.clients.poll_transmit(now, *node));
                let Some(record) = record else { break };
                room.send(record);
            }
        }
        for line in over {
            self.down(now, line, "its task has ended");
        }
    }

    pub(super) fn news(&mut self, now: Instant, news: FromLink, tell_held: &mpsc::Sender<Held>) {
        match news {
            FromLink::Up(up) => self.up(now, up, tell_held),
            FromLink::Came(line, record) => self.came(now, line, record),
            FromLink::Down(line, why) => self.down(now, line, &why),
        }
    }

    pub(super) fn up(&mut self, now: Instant, up: Up, tell_held: &mpsc::Sender<Held>) {
        let Up { id: line, peer: identity, by, number, link: carrier, outbox, slowed } = up;
        let node = identity.node;
        if !self.join.lets(&identity.name) {
            let text = format!("{identity} is not listed in fabric.members of this node");
            tracing::warn!(peer = %identity, "a node that is not listed is not taken for a member");
            carrier.close(1, &text);
            by.into_iter().for_each(|by| self.members.handle_dial_failed(now, by));
            return;
        }
        let taken = match self.members.handle_linked(now, node, by, number) {
            Ok(taken) => taken,
            Err(turned) => {
                if turned == TurnedAway::Myself && by.is_none() {
                    tracing::debug!(peer = %identity, "this node dialled itself");
                }
                return carrier.close(0, &turned.to_string());
            }
        };
        if let Some(by) = by {
            self.state.unreached.remove(&by);
            self.state.revoked_at.remove(&by);
            self.state.dialling.remove(&by);
        }
        let dialled_at = by.map(|_| carrier.peer_address().to_string());
        tracing::info!(peer = %identity, address = %carrier.peer_address(), dialled = by.is_some(), "linked to a member");
        let side = Side::default();
        let peer = Peer { line, link: taken.link, carrier, outbox, side, slowed, dialled_at };
        if let Some(former) = self.state.peers.insert(node, peer) {
            // Dropped, its writer ends.
            self.state.lines.remove(&former.line);
            former.carrier.close(0, "a newer link of the two nodes is in its place");
        }
        self.state.lines.insert(line, (node, taken.link));
        self.enter(node);
        self.clients.linked(now, node);
        // Of a node whose record has not come it is not known whether it is a member.
        if self.members.member(node).is_some_and(|member| !member.presence.is_gone()) {
            self.open_topic(node, &identity.name, tell_held);
        }
        self.reach(node);
        self.state.is_shown_old = true;
    }

    pub(super) fn came(&mut self, now: Instant, line: Line, record: Record) {
        let Some((node, link)) = self.state.lines.get(&line).copied() else { return };
        let is_slowed = |peer: &Peer| peer.slowed.is_so(now);
        self.state.is_shown_old |= self.state.peers.get(&node).is_some_and(is_slowed);
        let done = match record {
            Record::Interests(record) => {
                self.wants(now, node, record).map_err(|error| error.to_string())
            }
            Record::InterestsHeld(InterestsHeld { generation }) => {
                self.state.audiences.held(node, generation);
                Ok(())
            }
            Record::ClientsHere(here) => {
                self.clients.handle_here(now, node, here);
                Ok(())
            }
            Record::ClientClaims(claims) => {
                self.clients.handle_claims(now, node, claims).map_err(|error| error.to_string())
            }
            record => {
                self.members.handle_record(now, link, record).map_err(|error| error.to_string())
            }
        };
        if let Err(why) = done {
            tracing::warn!(member = %self.name_of(node), why, "a member breaks the protocol");
            self.state.peers.get(&node).into_iter().for_each(|peer| peer.carrier.close(1, &why));
            self.down(now, line, &why);
        }
    }

    pub(super) fn down(&mut self, now: Instant, line: Line, why: &str) {
        let Some((node, link)) = self.state.lines.remove(&line) else { return };
        tracing::info!(member = %self.name_of(node), why, "link to a member is over");
        self.members.handle_unlinked(now, link);
        self.state.peers.remove(&node);
        self.state.audiences.leave(node);
        self.clients.unlinked(node);
        let presence = self.members.member(node).map(|member| member.presence);
        if matches!(presence, Some(Presence::Left | Presence::Forgotten)) {
            self.end_topic(node);
        } else if let Some(topic) = self.state.topics.get_mut(&node) {
            topic.link.reach(Vec::new());
            topic.link.fetch(Vec::new());
        }
        self.state.is_shown_old = true;
    }

    pub(super) fn dialled(
        &mut self,
        now: Instant,
        ended: Result<(task::Id, Result<(), Unwelcome>), JoinError>,
    ) {
        let (task, dialled) = match ended {
            Ok((task, dialled)) => (task, Some(dialled)),
            Err(error) => {
                tracing::error!(%error, "a dial to a member failed");
                (error.id(), None)
            }
        };
        let Some(target) = self.state.targets.remove(&task) else { return };
        self.state.dialling.remove(&target);
        match dialled {
            // The link was carried to its end.
            Some(Ok(())) => return,
            // Anyone may be named, of any site.
            Some(Err(error)) if matches!(target, Target::Found(_)) => {
                let why = tidegate_message::error_chain(&error);
                tracing::debug!(code = %error.code(), why, "a node that the network names is not reached");
            }
            Some(Err(Unwelcome::Link(LinkError::Revoked { ours: true, .. }))) => {
                let was_revoked = self.is_revoked();
                self.state.revoked_at.insert(target);
                if self.is_revoked() && !was_revoked {
                    tracing::error!("{REVOKED}");
                }
                self.state.is_shown_old = true;
                return self.members.handle_dial_refused(now, target);
            }
            Some(Err(error)) => {
                self.state.revoked_at.remove(&target);
                let why = tidegate_message::error_chain(&error);
                if self.state.unreached.insert(target, why.clone()).as_ref() != Some(&why) {
                    let whom = match target {
                        Target::Seed(index) => format!("seed {}", index + 1),
                        Target::Member(node) | Target::Found(node) => {
                            format!("member {}", self.name_of(node))
                        }
                    };
                    tracing::warn!(whom, code = %error.code(), why, "a member is not reached; it is dialled again");
                }
            }
            None => {}
        }
        self.members.handle_dial_failed(now, target);
        self.state.is_shown_old = true;
    }
}
