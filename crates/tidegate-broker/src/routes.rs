//! The sessions that receive the messages of a topic, on all shards of a node.
//!
//! The table is shared: a subscription that was acknowledged holds for the next message of every publisher, whatever
//! shard reads it. Publishers do not look into the table for each message: they keep the [`Route`] of their topic, which
//! holds until a counter says that a subscription or a rule has changed.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
};

use tidegate_message::{Shared, split_shared};
use tidegate_topics::Index;
use tidegate_wire::mqtt::QoS;

use crate::{
    config::{Overflow, TopicConfig},
    reach::Reach,
    session_state::{SessionKey, SessionState},
    subscription::SubscriptionOptions,
};

/// All subscriptions of a node.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    plain: Index<SessionKey, SubscriptionOptions>,
    /// Of the sessions in `plain`, with how many subscriptions each has there.
    states: HashMap<SessionKey, (Arc<SessionState>, usize)>,
    shared: Index<u32, ()>,
    groups: Vec<Option<Group>>,
    group_ids: HashMap<Box<str>, u32>,
    free_groups: Vec<u32>,
    /// Shared subscriptions that ever were: none has the number of one before.
    numbers: u64,
    members: usize,
}

/// A shared subscription (MQTT 5, section 4.8.2): each message goes to one member.
#[derive(Debug)]
struct Group {
    /// As it is subscribed to, with `$share/NAME/`.
    name: Arc<str>,
    number: u64,
    members: Vec<Member>,
    turn: Arc<AtomicUsize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    session: SessionKey,
    options: SubscriptionOptions,
    state: Arc<SessionState>,
}

/// Where the messages of one topic go, as long as nothing changes.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) topic: Arc<str>,
    /// The messages that it is for.
    pub(crate) reach: Reach,
    /// Of the subscriptions and rules that it was made from.
    pub(crate) generation: u64,
    /// The two parts of that: a subscription that is older is among its targets, and a decision about its topic is by these rules or later
    /// ones.
    pub(crate) made: Generations,
    /// By shard.
    targets: Box<[Box<[Target]>]>,
    groups: Box<[Turns]>,
    is_written: bool,
    /// Whether there is one subscriber and no more.
    is_sole: bool,
    pub(crate) overflow: Option<Overflow>,
    pub(crate) large_bytes: Option<u32>,
}

/// Counters of the changes of subscriptions and routes, and of those of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generations {
    pub(crate) routes: u64,
    pub(crate) rules: u64,
}

impl Generations {
    /// Both in one number.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.routes.wrapping_add(self.rules << 40)
    }
}

/// One subscriber of a topic: all its subscriptions that match, as one.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) session: SessionKey,
    /// Most that messages of others come with; none if there is nothing for it.
    pub(crate) qos: QoS,
    /// The same for messages of its own, none if all of its subscriptions are without its own.
    pub(crate) own: Option<QoS>,
    pub(crate) retain_as_published: bool,
    /// Whether it is of a session that is written down, or was when it subscribed.
    pub(crate) is_written: bool,
    /// The shared subscription that it is a member of, as that is subscribed to.
    pub(crate) group: Option<Arc<str>>,
    ids: Box<[u32]>,
    /// Those that count for messages of its own, if they are not the same.
    own_ids: Option<Box<[u32]>>,
    pub(crate) state: Arc<SessionState>,
    allowed: AtomicU8,
}

/// The members of a shared subscription and whose turn it is.
#[derive(Debug)]
struct Turns {
    /// The shared subscription's, with `$share/NAME/`.
    name: Arc<str>,
    /// Whether those of this node come before peers.
    own_first: bool,
    members: Box<[Target]>,
    turn: Arc<AtomicUsize>,
}

const UNKNOWN: u8 = 0;
const ALLOWED: u8 = 1;
const DENIED: u8 = 2;

impl Routes {
    /// Enters a subscription; true if there was none of that filter.
    pub(crate) fn insert(
        &mut self,
        filter: &Arc<str>,
        session: SessionKey,
        options: SubscriptionOptions,
        state: &Arc<SessionState>,
    ) -> bool {
        let Some(shared) = shared(filter) else {
            let is_new = self.plain.insert_shared(filter, session, options).is_none();
            let (_, count) = self.states.entry(session).or_insert_with(|| (state.clone(), 0));
            *count += usize::from(is_new);
            return is_new;
        };
        let id = match self.group_ids.get(&**filter) {
            Some(id) => *id,
            None => {
                self.numbers += 1;
                let (name, number) = (filter.clone(), self.numbers);
                let group = Group { name, number, members: Vec::new(), turn: Arc::default() };
                let id = self.free_groups.pop().unwrap_or_else(|| {
                    self.groups.push(None);
                    u32::try_from(self.groups.len() - 1).expect("fewer groups than subscriptions")
                });
                self.groups[id as usize] = Some(group);
                self.group_ids.insert((&**filter).into(), id);
                self.shared.insert(shared.filter, id, ());
                id
            }
        };
        let group = self.groups[id as usize].as_mut().expect("entered with its name");
        let member = Member { session, options, state: state.clone() };
        match group.members.iter_mut().find(|member| member.session == session) {
            Some(former) => {
                *former = member;
                false
            }
            None => {
                group.members.push(member);
                self.members += 1;
                true
            }
        }
    }

    /// Takes a subscription out; false if there was none.
    pub(crate) fn remove(&mut self, filter: &str, session: SessionKey) -> bool {
        let Some(shared) = shared(filter) else {
            let removed = self.plain.remove(filter, session).is_some();
            if removed && let Entry::Occupied(mut entry) = self.states.entry(session) {
                entry.get_mut().1 -= 1;
                if entry.get().1 == 0 {
                    entry.remove();
                }
            }
            return removed;
        };
        let Some(&id) = self.group_ids.get(filter) else { return false };
        let group = self.groups[id as usize].as_mut().expect("entered with its name");
        let before = group.members.len();
        group.members.retain(|member| member.session != session);
        let removed = group.members.len() < before;
        self.members -= usize::from(removed);
        if group.members.is_empty() {
            self.groups[id as usize] = None;
            self.group_ids.remove(filter);
            self.free_groups.push(id);
            self.shared.remove(shared.filter, id);
        }
        removed
    }

    /// Whether a shared subscription of that filter, `$share/NAME/` included, has members.
    pub(crate) fn has_group(&self, filter: &str) -> bool {
        self.group_ids.contains_key(filter)
    }

    /// For those messages that a peer published for the members of the shared subscription of that filter, `$share/NAME/` included; none if
    /// it has no members.
    pub(crate) fn reach_of_group(&self, filter: &str) -> Option<Reach> {
        let id = *self.group_ids.get(filter)?;
        let group = self.groups[id as usize].as_ref().expect("entered with its name");
        Some(Reach::Group(group.number))
    }

    /// Subscriptions, each member of a shared one counted.
    pub(crate) fn len(&self) -> usize {
        self.plain.len() + self.members
    }

    /// Members of shared subscriptions.
    pub(crate) fn members(&self) -> usize {
        self.members
    }

    /// Where messages of `topic` go that have that reach.
    pub(crate) fn route(
        &self,
        topic: &Arc<str>,
        reach: Reach,
        shards: usize,
        made: Generations,
        exceptions: &[TopicConfig],
    ) -> Route {
        let mut found: Vec<(SessionKey, SubscriptionOptions)> = Vec::new();
        if reach.group().is_none() {
            self.plain.matches(topic, |session, options| found.push((session, options)));
            found.sort_by_key(|(session, _)| *session);
        }
        let is_source =
            |state: &SessionState| reach.leaf().is_some() && state.leaf() == reach.leaf();
        let is_reached =
            |state: &SessionState| !(reach.is_of_peers() && state.is_peer() || is_source(state));
        let mut targets: Vec<Vec<Target>> = (0..shards).map(|_| Vec::new()).collect();
        for same in found.chunk_by(|a, b| a.0 == b.0) {
            let (state, _) = &self.states[&same[0].0];
            if is_reached(state) {
                targets[same[0].0.shard()].push(Target::of(same, state));
            }
        }
        let mut groups = Vec::new();
        self.shared.matches(topic, |id, ()| {
            let group = self.groups[id as usize].as_ref().expect("in the index while it is");
            let is_meant = match reach.group() {
                Some(number) => number == group.number,
                None => reach == Reach::All,
            };
            if !is_meant {
                return;
            }
            let others = group.members.iter().any(|member| !is_source(&member.state));
            let members: Box<[Target]> = (group.members.iter())
                .filter(|member| !(others && is_source(&member.state)))
                .map(|m| Target {
                    group: Some(group.name.clone()),
                    ..Target::of(&[(m.session, m.options)], &m.state)
                })
                .collect();
            let has_own = members.iter().any(|member| !member.state.is_peer());
            groups.push(Turns {
                name: group.name.clone(),
                own_first: has_own && reach.is_of_peers(),
                members,
                turn: group.turn.clone(),
            });
        });
        let exception = TopicConfig::of(exceptions, topic);
        let plain = targets.iter().flatten();
        let members = groups.iter().flat_map(|group: &Turns| &group.members);
        let is_written = plain.chain(members).any(|target| target.is_written);
        Route {
            is_written,
            is_sole: groups.is_empty() && targets.iter().flatten().count() == 1,
            topic: topic.clone(),
            reach,
            generation: made.number(),
            made,
            targets: targets.into_iter().map(Vec::into_boxed_slice).collect(),
            groups: groups.into(),
            overflow: exception.and_then(|exception| exception.overflow),
            large_bytes: exception.and_then(|exception| exception.large_bytes),
        }
    }
}

impl Route {
    /// Whether its messages are those that peers publish.
    #[inline]
    pub(crate) fn is_of_peers(&self) -> bool {
        self.reach.is_of_peers()
    }

    /// Whether its messages are those that another node publishes: a peer, or a leaf.
    pub(crate) fn is_of_node(&self) -> bool {
        self.is_of_peers() || self.reach.leaf().is_some()
    }

    /// Whether its messages are for the members of one shared subscription alone.
    #[inline]
    pub(crate) fn is_of_group(&self) -> bool {
        self.reach.group().is_some()
    }

    /// Subscribers on one shard, shared subscriptions aside.
    #[inline]
    pub(crate) fn on(&self, shard: usize) -> &[Target] {
        &self.targets[shard]
    }

    /// The only subscriber there is, if it is on that shard and by no shared subscription.
    #[inline]
    pub(crate) fn sole(&self, shard: usize) -> Option<&Target> {
        self.targets[shard].first().filter(|_| self.is_sole)
    }

    /// Whether some subscriber on that shard, shared subscriptions aside, is of a session that is written down.
    pub(crate) fn is_written_on(&self, shard: usize) -> bool {
        self.targets[shard].iter().any(|target| target.is_written)
    }

    /// Whether some subscriber is.
    pub(crate) fn is_written(&self) -> bool {
        self.is_written
    }

    /// A shared subscription's filter, as it is subscribed to.
    pub(crate) fn group_name(&self, group: usize) -> &str {
        &self.groups[group].name
    }

    /// Which of the shared subscriptions that match has that filter, `$share/NAME/` included.
    pub(crate) fn group_named(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| *group.name == *name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.targets.iter().all(|targets| targets.is_empty())
    }

    /// How many shared subscriptions match.
    pub(crate) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The member of a shared subscription whose turn it is: the next that is connected and not behind, or else the next
    /// that is connected and not full, or else the next that is not full, or else the next.
    ///
    /// Where another node chose this one it is a member of this node, as long as there is one. A peer is chosen before those that have no
    /// connection if the message `may_leave`: members at other nodes may have one.
    ///
    /// Members for which `is_served` is false are passed over; none if all are.
    pub(crate) fn turn(
        &self,
        group: usize,
        may_leave: impl FnOnce() -> bool,
        is_served: impl Fn(&Target) -> bool,
    ) -> Option<usize> {
        let group = &self.groups[group];
        let start = group.turn.fetch_add(1, Ordering::Relaxed);
        let count = group.members.len();
        let all = || {
            let members = (0..count).map(|step| start.wrapping_add(step) % count);
            members.filter(|at| is_served(&group.members[*at]))
        };
        let state = |at: &usize| &group.members[*at].state;
        let is_ready = |at: &usize| state(at).is_ready();
        let has_room = |at: &usize| !state(at).is_full();
        let around = || all().filter(|at| !group.own_first || !state(at).is_peer());
        around()
            .find(is_ready)
            .or_else(|| around().filter(|at| state(at).is_there()).find(has_room))
            .or_else(|| (group.own_first && may_leave()).then(|| all().find(is_ready)).flatten())
            .or_else(|| around().find(has_room))
            .or_else(|| around().next())
    }

    /// The members of a shared subscription that a message may go to in the place of one whose turn it is, in turn from that one on.
    pub(crate) fn members_from(&self, group: usize, first: usize) -> impl Iterator<Item = usize> {
        let Turns { members, own_first, .. } = &self.groups[group];
        let own_alone = *own_first && !members[first].state.is_peer();
        let around = (0..members.len()).map(move |step| (first + step) % members.len());
        around.filter(move |at| !own_alone || !members[*at].state.is_peer())
    }

    /// Whether messages of the topic go to other shards than that, or to shared subscriptions, whose members may be there.
    pub(crate) fn leaves(&self, shard: usize) -> bool {
        !self.groups.is_empty()
            || self.targets.iter().enumerate().any(|(at, on)| at != shard && !on.is_empty())
    }

    /// All members of a shared subscription.
    pub(crate) fn members_of(&self, group: usize) -> &[Target] {
        &self.groups[group].members
    }

    pub(crate) fn member(&self, group: usize, member: usize) -> &Target {
        &self.groups[group].members[member]
    }
}

impl Target {
    /// All matching subscriptions of one session (MQTT-3.3.4-2, MQTT-3.3.4-4).
    fn of(same: &[(SessionKey, SubscriptionOptions)], state: &Arc<SessionState>) -> Self {
        let highest = |of: &mut dyn Iterator<Item = &SubscriptionOptions>| of.map(|o| o.qos).max();
        let options = || same.iter().map(|(_, options)| options);
        let ids = |of: &mut dyn Iterator<Item = &SubscriptionOptions>| -> Box<[u32]> {
            of.map(|options| options.id).filter(|id| *id != 0).collect()
        };
        let some_not_local = options().any(|options| options.no_local);
        Self {
            session: same[0].0,
            qos: highest(&mut options()).expect("at least one matched"),
            own: highest(&mut options().filter(|options| !options.no_local)),
            retain_as_published: options().any(|options| options.retain_as_published),
            is_written: options().any(|options| options.is_written),
            group: None,
            ids: ids(&mut options()),
            own_ids: some_not_local.then(|| ids(&mut options().filter(|o| !o.no_local))),
            state: state.clone(),
            allowed: AtomicU8::new(UNKNOWN),
        }
    }

    /// With which QoS a message of that publisher and QoS goes to it; none if it does not (MQTT-3.8.3-3).
    #[inline]
    pub(crate) fn qos_of(&self, publisher: Option<SessionKey>, qos: QoS) -> Option<QoS> {
        let most = if publisher == Some(self.session) { self.own } else { Some(self.qos) };
        most.map(|most| qos.min(most))
    }

    /// Identifiers of the subscriptions that a message is for (MQTT-3.3.4-3 to -5).
    #[inline]
    pub(crate) fn ids(&self, publisher: Option<SessionKey>) -> &[u32] {
        match &self.own_ids {
            Some(own) if publisher == Some(self.session) => own,
            _ => &self.ids,
        }
    }

    /// Whether rules are known to let it have messages of the topic.
    pub(crate) fn is_known_allowed(&self) -> bool {
        self.allowed.load(Ordering::Relaxed) == ALLOWED
    }

    /// Whether rules let it have messages of the topic; `decide` is asked once for each route.
    pub(crate) fn is_allowed(&self, decide: impl FnOnce() -> bool) -> bool {
        match self.allowed.load(Ordering::Relaxed) {
            UNKNOWN => {
                let allowed = decide();
                self.allowed.store(if allowed { ALLOWED } else { DENIED }, Ordering::Relaxed);
                allowed
            }
            known => known == ALLOWED,
        }
    }
}

/// The parts of a valid shared filter.
pub(crate) fn shared(filter: &str) -> Option<Shared<'_>> {
    if !filter.starts_with("$share/") {
        return None;
    }
    split_shared(filter).expect("filters are checked before they are entered")
}
