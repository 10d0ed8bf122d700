//! Whether all sessions that a QoS 1 or 2 message goes to have a place for it, before its publisher is told so.
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
//! reserved is given back, by the shard of the session once the message is there, or here where another session refuses.

use tidegate_message::Authorize;
use tidegate_wire::mqtt::{QoS, Version};

use super::Broker;
use crate::{
    message::Incoming,
    routes::{Route, Target},
    session::{Reserved, SessionKey, may_receive},
};

/// Whether a member of a shared subscription may have messages of a topic, as far as that is known on every shard.
pub(super) fn may_have(authorize: &dyn Authorize, member: &Target, topic: &str) -> bool {
    authorize.receives_all()
        || member.is_allowed(|| {
            let identity = member.state.identity.read().expect("no panic while it is set");
            identity.as_deref().is_none_or(|identity| may_receive(authorize, identity, topic))
        })
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

/// Who has a place for a message.
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
    fn counts(&self, message: &Incoming<'_>) -> bool {
        self.qos_of(message.publisher, message.qos).is_some_and(|qos| qos > QoS::AtMostOnce)
    }

    /// Whether it gets the message.
    fn takes(&self, route: &Route, message: &Incoming<'_>) -> bool {
        let qos = self.qos_of(message.publisher, message.qos).filter(|_| !self.is_denied());
        match qos {
            None => false,
            Some(QoS::AtMostOnce) => self.state.is_connected(),
            Some(_) => !self.state.refuses(route.overflow),
        }
    }
}

impl Broker {
    /// Reserves a place in each session that a message of QoS 1 or 2 goes to. Members of shared subscriptions that it goes to
    /// are in `turns` then, where all accept.
    #[inline]
    pub(super) fn accept(
        &mut self,
        route: &Route,
        message: &Incoming<'_>,
        answer: Answer,
    ) -> Acceptance {
        if self.reserve(route, message) {
            return Acceptance::All;
        }
        let takes = |target: &Target| target.takes(route, message);
        let mut plain = (0..self.shared.shards()).flat_map(|shard| route.on(shard));
        let mut groups = (0..route.group_count()).flat_map(|group| route.members_of(group));
        if answer == Answer::Reason && (plain.any(takes) || groups.any(takes)) {
            Acceptance::Some
        } else {
            Acceptance::None
        }
    }

    fn reserve(&mut self, route: &Route, message: &Incoming<'_>) -> bool {
        self.turns.clear();
        if !route.on(self.shard).iter().all(|target| self.accepts(route, message, target)) {
            self.give_up(route, message, 0);
            return false;
        }
        if !route.leaves(self.shard) {
            return true;
        }
        for group in 0..route.group_count() {
            let authorize = self.shared.authorize();
            let may = |member: &Target| may_have(authorize, member, message.topic);
            let first = route.turn(group, may);
            // Where none may have it, it comes to nothing at the first.
            let is_asked = |at: &usize| *at == first || may(route.member(group, *at));
            let accepts = |at: &usize| self.accepts(route, message, route.member(group, *at));
            match route.members_from(group, first).filter(is_asked).find(accepts) {
                Some(member) => self.turns.push(member),
                None => {
                    self.give_up(route, message, 0);
                    return false;
                }
            }
        }
        let plain = self.plain_elsewhere(route);
        let refusing = plain.enumerate().find(|(_, target)| !self.accepts(route, message, target));
        if let Some((reserved, _)) = refusing {
            self.give_up(route, message, reserved);
        }
        refusing.is_none()
    }

    /// Whether a session takes a message; one of another shard has a place reserved for it then.
    #[inline]
    fn accepts(&self, route: &Route, message: &Incoming<'_>, target: &Target) -> bool {
        if !target.counts(message) {
            return true;
        }
        let is_here = target.session.shard() == self.shard;
        let bytes = message.charge_bytes();
        let reserved = match (is_here, target.is_denied()) {
            (true, true) => Reserved::Place,
            (false, true) => {
                target.state.expect(bytes);
                Reserved::Place
            }
            (true, false) => target.state.admit(route.overflow, bytes),
            (false, false) => target.state.reserve(route.overflow, bytes),
        };
        if reserved == Reserved::Last {
            self.shared.count_full();
        }
        reserved != Reserved::None
    }

    /// Gives back what was reserved: of the members in `turns`, and of the first plain subscribers of other shards.
    pub(super) fn give_up(&self, route: &Route, message: &Incoming<'_>, plain: usize) {
        let members = self.turns.iter().enumerate();
        let members = members
            .map(|(group, member)| route.member(group, *member))
            .filter(|member| member.session.shard() != self.shard);
        let bytes = message.charge_bytes();
        for target in members.chain(self.plain_elsewhere(route).take(plain)) {
            if target.counts(message) {
                target.state.arrived(bytes);
                self.shared.forget_not_full(&target.state);
            }
        }
        for target in route.on(self.shard) {
            self.shared.forget_not_full(&target.state);
        }
    }

    /// Counts a message that goes to another shard whether or not there is room.
    pub(super) fn expect(&self, message: &Incoming<'_>, target: &Target) {
        if target.counts(message) {
            target.state.expect(message.charge_bytes());
        }
    }

    /// A message of another shard has come to its place.
    pub(super) fn note_arrival(&mut self, message: &Incoming<'_>, target: &Target) {
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

    /// How a publisher of MQTT 5, or of a version before it, learns that its message was not accepted.
    pub(super) fn answer_of(&self, publisher: Option<SessionKey>, qos: QoS) -> Answer {
        let session = publisher.filter(|publisher| publisher.shard() == self.shard);
        let session = session.and_then(|session| self.sessions.get(session.key()));
        let Some(session) = session.filter(|_| qos > QoS::AtMostOnce) else { return Answer::None };
        let is_told = session.version == Version::V5
            && !session.config.ends_at_refusal
            && qos == QoS::AtLeastOnce;
        if is_told { Answer::Reason } else { Answer::Again }
    }
}
