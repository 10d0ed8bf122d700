//! Ensures that all sessions that a QoS 1 or 2 message goes to have a place for it, before it is acknowledged.
//!
//! ```text
//!  PUBLISH ─▶ accept ─▶ sessions here: are they full?
//!               │  └──▶ sessions of other shards: a place reserved in each, given back if one refuses
//!               ▼
//!          PUBACK, PUBREC: success only if each of them has it, or may drop it by its policy
//! ```
//!
//! Always true: a message that was acknowledged as accepted is in the queue, or in flight, of each session that it was for, or
//! on its way there with a place reserved, unless the policy of that session drops messages of its QoS. Each place that is
//! reserved is given back, by the shard of the session once the message is there, or here where another session refuses. An
//! identity that has its share of the memory is refused here, and what it was promised before is kept.

use std::sync::Arc;

use tidegate_message::Authorize;
use tidegate_wire::mqtt::{QoS, Version};

use super::Broker;
use crate::{
    message::MessageRef,
    routes::{Route, Target},
    session::Session,
    session_state::{Reserved, SessionState, may_receive},
    shared::Shared,
};

/// Whether rules let a subscriber have messages of a topic, as far as that is known on every shard.
pub(super) fn may_have(authorize: &dyn Authorize, target: &Target, topic: &str) -> bool {
    authorize.receives_all()
        || target.is_allowed(|| may_receive(authorize, &target.state.identity(), topic))
}

/// How a publisher learns that a session has no place for its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// By the reason of its acknowledgement. It decides what it does then, and sessions that have a place get the message.
    Reason,
    /// By the end of its connection, or of the exchange of QoS 2. It sends the message again, so that no session gets it before
    /// all have a place.
    Again,
    /// Not at all: a session that has no place drops the message and counts that.
    None,
}

impl Answer {
    /// How that client, of MQTT 5 or of a version before it, learns that its message was not accepted.
    #[inline]
    pub(super) fn of(publisher: &Session, qos: QoS) -> Self {
        match qos {
            QoS::AtMostOnce => Self::None,
            QoS::AtLeastOnce
                if publisher.version == Version::V5 && !publisher.config.ends_at_refusal =>
            {
                Self::Reason
            }
            _ => Self::Again,
        }
    }
}

/// The sessions that have a place for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acceptance {
    /// All whose policy keeps it.
    All,
    /// Some sessions, but others have none and must not drop it. No place is reserved.
    Some,
    /// None that it may go to now. No place is reserved.
    None,
}

impl Target {
    /// Whether the message comes to it with QoS 1 or 2, so that its places are counted: the same on every shard.
    #[inline]
    fn counts(&self, message: &MessageRef<'_>) -> bool {
        self.qos_of(message.publisher, message.qos).is_some_and(|qos| qos > QoS::AtMostOnce)
    }

    /// Whether it keeps the message until it is acknowledged, or has a connection that takes it.
    pub(super) fn is_reached(&self, message: &MessageRef<'_>) -> bool {
        match self.qos_of(message.publisher, message.qos) {
            None => false,
            Some(QoS::AtMostOnce) => self.state.is_connected(),
            Some(_) => true,
        }
    }

    /// Whether the message is worth handing to it: rules let it have the message, and it is reached.
    pub(super) fn is_served(&self, authorize: &dyn Authorize, message: &MessageRef<'_>) -> bool {
        self.is_reached(message) && may_have(authorize, self, message.topic)
    }

    /// Whether it gets the message.
    fn takes(&self, shared: &Shared, route: &Route, message: &MessageRef<'_>) -> bool {
        let has_place = !self.counts(message)
            || (!self.state.refuses(route.overflow) && !self.is_over_share(shared, route, message));
        has_place && self.is_served(shared.authorize(), message)
    }

    /// Whether its identity has its share of the memory, so that the message is not to wait for it.
    #[inline]
    fn is_over_share(&self, shared: &Shared, route: &Route, message: &MessageRef<'_>) -> bool {
        let bytes = message.charge_bytes();
        shared.may_be_over_share(bytes) && self.state.is_over_share(shared, route.overflow, bytes)
    }
}

impl Broker {
    /// Reserves a place in each session that a message of QoS 1 or 2 goes to. Members of shared subscriptions that it goes to
    /// are in `turns` then, where all accept.
    #[inline]
    pub(super) fn accept(
        &mut self,
        route: &Route,
        message: &MessageRef<'_>,
        answer: Answer,
    ) -> Acceptance {
        if self.reserve(route, message) {
            return Acceptance::All;
        }
        let takes = |target: &Target| target.takes(&self.shared, route, message);
        let mut plain = (0..self.shared.shards()).flat_map(|shard| route.on(shard));
        let mut groups = (0..route.group_count()).flat_map(|group| route.members_of(group));
        if answer == Answer::Reason && (plain.any(takes) || groups.any(takes)) {
            Acceptance::Some
        } else {
            Acceptance::None
        }
    }

    fn reserve(&mut self, route: &Route, message: &MessageRef<'_>) -> bool {
        self.turns.clear();
        self.marked.clear();
        let mut marked = std::mem::take(&mut self.marked);
        let reserved = self.reserve_in(route, message, &mut marked);
        self.marked = marked;
        if let Err(plain) = reserved {
            self.give_up(route, message, plain);
        }
        reserved.is_ok()
    }

    /// Reserves a place in each session, and notes those for which it is the last. If one refuses, of how many plain subscribers of
    /// other shards places are reserved, and must be given back.
    fn reserve_in(
        &mut self,
        route: &Route,
        message: &MessageRef<'_>,
        marked: &mut Vec<Arc<SessionState>>,
    ) -> Result<(), usize> {
        let here = route.on(self.shard);
        if !here.iter().all(|target| self.accepts(route, message, target, marked)) {
            return Err(0);
        }
        if !route.leaves(self.shard) {
            return Ok(());
        }
        for group in 0..route.group_count() {
            let authorize = self.shared.authorize();
            let is_served = |member: &Target| member.is_served(authorize, message);
            let may_leave = || message.may_leave();
            let Some(first) = route.turn(group, may_leave, is_served) else {
                self.turns.push(None);
                continue;
            };
            let is_asked = |at: &usize| is_served(route.member(group, *at));
            let accepts =
                |at: &usize| self.accepts(route, message, route.member(group, *at), marked);
            match route.members_from(group, first).filter(is_asked).find(accepts) {
                Some(member) => self.turns.push(Some(member)),
                None => return Err(0),
            }
        }
        let mut plain = self.plain_elsewhere(route).enumerate();
        let refusing = plain.find(|(_, target)| !self.accepts(route, message, target, marked));
        refusing.map_or(Ok(()), |(reserved, _)| Err(reserved))
    }

    /// Whether a session takes a message, or must not have it and so has no say; one of another shard has a place reserved for
    /// it then.
    #[inline]
    fn accepts(
        &self,
        route: &Route,
        message: &MessageRef<'_>,
        target: &Target,
        marked: &mut Vec<Arc<SessionState>>,
    ) -> bool {
        if !target.counts(message) {
            return true;
        }
        let is_here = target.session.shard() == self.shard;
        let bytes = message.charge_bytes();
        let is_denied = !may_have(self.shared.authorize(), target, message.topic);
        if !is_denied && target.is_over_share(&self.shared, route, message) {
            target.state.note_over_share(&self.shared);
            return false;
        }
        let reserved = match (is_here, is_denied) {
            (true, true) => Reserved::Place,
            (false, true) => {
                target.state.expect(bytes);
                Reserved::Place
            }
            (true, false) => target.state.admit(route.overflow, bytes),
            (false, false) => target.state.reserve(route.overflow, bytes),
        };
        match reserved {
            Reserved::Place => {}
            Reserved::Last => {
                self.shared.count_full();
                marked.push(target.state.clone());
            }
            // Messages in transit between shards may have kept another shard from seeing that there is room again.
            Reserved::None => self.shared.forget_not_full(&target.state),
        }
        reserved != Reserved::None
    }

    /// Gives back what was reserved: of the members in `turns`, and of the first plain subscribers of other shards. Those that are
    /// full by it are so no longer.
    pub(super) fn give_up(&mut self, route: &Route, message: &MessageRef<'_>, plain: usize) {
        let members = self.turns.iter().enumerate();
        let members = members
            .filter_map(|(group, member)| Some(route.member(group, (*member)?)))
            .filter(|member| member.session.shard() != self.shard);
        for target in members.chain(self.plain_elsewhere(route).take(plain)) {
            self.give_back_place(message, target);
        }
        for state in self.marked.drain(..) {
            self.shared.forget_full(&state);
        }
    }

    /// Gives back what was reserved in a session of another shard.
    pub(super) fn give_back_place(&self, message: &MessageRef<'_>, target: &Target) {
        if target.counts(message) {
            target.state.arrived(message.charge_bytes());
            self.shared.forget_not_full(&target.state);
        }
    }

    /// Counts a message that goes to another shard whether or not there is room.
    pub(super) fn expect(&self, message: &MessageRef<'_>, target: &Target) {
        if target.counts(message) {
            target.state.expect(message.charge_bytes());
        }
    }

    /// A message of another shard has come to its place.
    pub(super) fn note_arrival(&mut self, message: &MessageRef<'_>, target: &Target) {
        if !target.counts(message) {
            return;
        }
        target.state.arrived(message.charge_bytes());
        if target.state.is_full() {
            match self.sessions.get_mut(target.session.key()) {
                Some(session) => _ = session.note_behind(&self.shared),
                None => self.shared.forget_full(&target.state),
            }
        }
    }

    /// Subscribers on other shards, shared subscriptions aside.
    pub(super) fn plain_elsewhere<'r>(&self, route: &'r Route) -> impl Iterator<Item = &'r Target> {
        let own = self.shard;
        let shards = (0..self.shared.shards()).filter(move |shard| *shard != own);
        shards.flat_map(|shard| route.on(shard))
    }
}
