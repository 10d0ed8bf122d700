//! A member of the fabric in the simulated world: its links, its files, and the requests of its users.
//!
//! Twice a second a member dials those it has no link to, says its view, loses those it has not heard for a while, asks for what it lacks
//! to be in sync, and sends again what was not answered; once in two seconds it has the other owners of its buckets take what they lack.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tidegate_fabric::{
    Bucket, Change, Contents, Dot, Gathering, Me, MemberId, Offer, Replica, Rule, Sentence,
    Standing, State, View,
};
use tidegate_message::Instant;
use tidegate_sim::world::{Input, Message, Node, Process};

use super::file::{Sequence, read_bucket, read_member, write_bucket, write_member};

const TICK: Duration = Duration::from_millis(500);
/// Owners compare what they hold once in so many ticks.
const REPAIR_TICKS: u64 = 4;
/// A member that was not heard for so long is lost.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// A question is answered with what there is after so long.
const PATIENCE: Duration = Duration::from_secs(6);
const MEMBER_FILE: &str = "member";

#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) rule: Rule,
    pub(super) buckets: u64,
}

/// A user's request. No other has its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) asks: Asks,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Asks {
    /// The record, whose value is the number of the request, is to be in that bucket.
    Put(Bucket),
    /// Some record of that bucket is to go.
    Delete(Bucket),
    /// The records of all buckets whose bits are set.
    Query(u64),
}

#[derive(Clone, Debug)]
pub(super) enum Say {
    View(View),
    Enter(View, Bucket),
    Offer(View, Bucket, Offer<u64>),
    Take(View, Bucket, u64, Change<u64>),
    Took(View, u64),
    Ask(View, Bucket, u64),
    Answer(View, Bucket, u64, Contents<u64>),
    /// The contents of an owner in sync.
    Has(View, Bucket, Contents<u64>),
}

impl Message for Say {
    fn bytes(&self) -> usize {
        64
    }
}

/// Facts for the oracle.
#[derive(Debug)]
pub(super) enum Seen {
    /// A process begins: requests to the one before it are not answered. Whether it may have lost something.
    Begins {
        may_have_lost: bool,
    },
    Asked(Request),
    /// The record of that request is kept.
    Put(u64),
    /// The record with that value may go from now on.
    Deleting(u64),
    /// That record is gone.
    Deleted(u64),
    Answered {
        number: u64,
        is_complete: bool,
        values: BTreeSet<u64>,
    },
}

pub(super) struct Member {
    setup: Setup,
    me: Me,
    view: View,
    replicas: Vec<Replica<u64>>,
    sequence: Sequence,
    /// Of the dots that it gives, and the last number of each bucket.
    dots_start: u64,
    numbers: Vec<u64>,
    starts: u64,
    heard: BTreeMap<usize, Instant>,
    open: BTreeMap<u64, Open>,
    tick_at: Instant,
    ticks: u64,
}

/// A request that is not answered.
struct Open {
    asked_at: Instant,
    /// The one that takers and replies are of.
    view: View,
    step: Step,
}

enum Step {
    Change { bucket: Bucket, change: Change<u64>, took: BTreeSet<usize>, deletes: Option<u64> },
    Gather { gatherings: BTreeMap<Bucket, Gathering<u64>>, deletes: bool },
}

impl Process for Member {
    type Setup = Setup;
    type Message = Say;
    type Request = Request;
    type Report = Seen;

    fn begin(setup: &Setup, node: &mut Node<'_, Self>) -> Self {
        let nodes = node.nodes() as u64;
        let rule = setup.rule;
        let id = MemberId(node.me() as u64);
        let mut is_damaged = false;
        let (mut sequence, mut starts, mut start) = (0, 0, 0);
        let mut view = (0..nodes).map(|peer| (MemberId(peer), Standing::default())).collect();
        if let Some(file) = node.disk().read(MEMBER_FILE) {
            match read_member(file) {
                Some(read) => (sequence, starts, start, view) = read,
                None => is_damaged = true,
            }
        }
        let mut replica = |bucket: u64| {
            let file = node.disk().read(&file_of(Bucket(bucket))).map(read_bucket);
            let read = file.flatten();
            let exists = node.disk().read(&file_of(Bucket(bucket))).is_some();
            is_damaged |= exists && read.as_ref().is_none_or(|file| file.is_damaged);
            let state = read.map_or_else(State::default, |file| {
                sequence = sequence.max(file.sequence);
                file.state(!rule.has(Sentence::ClockIsRebuilt))
            });
            Replica::new(Bucket(bucket), state)
        };
        let replicas: Vec<Replica<u64>> = (0..setup.buckets).map(&mut replica).collect();
        // The files are those that the process before it left: it was killed and nothing else.
        let is_shown = if rule.has(Sentence::KillIsShown) {
            *node.memory() == sequence.to_le_bytes()
        } else {
            !node.memory().is_empty()
        };
        let may_have_lost = is_damaged || !is_shown;
        node.report(Seen::Begins { may_have_lost });
        starts += 1;
        if may_have_lost {
            start = node.random().bits();
        }
        let by_chance = rule.has(Sentence::StartIsChance);
        let dots_start = if by_chance { node.random().bits() } else { starts };
        let now = node.now();
        let mut member = Self {
            setup: *setup,
            me: Me { id, start },
            view,
            replicas,
            sequence,
            dots_start,
            numbers: vec![0; setup.buckets as usize],
            starts,
            heard: node.others().map(|peer| (peer, now)).collect(),
            open: BTreeMap::new(),
            tick_at: now,
            ticks: 0,
        };
        if may_have_lost {
            let old = member.view.clone();
            member.renew();
            for replica in &mut member.replicas {
                replica.doubt();
                replica.enter(&old);
            }
        }
        if !member.save(node, true, 0..setup.buckets) {
            // Nothing that it does is to look as if it were whole.
            node.memory().clear();
        }
        member
    }

    fn handle(&mut self, node: &mut Node<'_, Self>, input: Input<Say, Request>) {
        match input {
            Input::Request(request) => self.asked(node, request),
            Input::Message(from, say) => {
                self.heard.insert(from, node.now());
                self.said(node, from, say);
            }
            Input::Timeout => self.tick(node),
            Input::Linked(peer) => node.send(peer, Say::View(self.view.clone())),
            Input::Unlinked(_) | Input::Synced(_) => {}
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.tick_at)
    }
}

impl Member {
    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// Whether it is in sync in every bucket that it owns.
    pub(super) fn is_in_sync(&self) -> bool {
        let wants = |it: &Replica<u64>| it.wants_sync(self.setup.rule, self.me, &self.view);
        !self.replicas.iter().any(wants)
    }

    /// Its contents of a bucket, if it owns it.
    pub(super) fn contents(&self, bucket: Bucket) -> Option<&Contents<u64>> {
        let owners = self.view.owners(bucket, self.setup.rule.replicas);
        owners.contains(&self.me.id).then(|| &self.replicas[bucket.0 as usize].state().contents)
    }

    /// A request that came so long ago and is not answered.
    pub(super) fn waits(&self, time: Duration) -> Option<u64> {
        let is_late = |open: &Open| open.asked_at + time < self.tick_at;
        self.open.iter().find(|(_, open)| is_late(open)).map(|(number, _)| *number)
    }

    // ---- files

    /// Writes the state down; whether there was room.
    fn save(
        &mut self,
        node: &mut Node<'_, Self>,
        has_view: bool,
        buckets: std::ops::Range<u64>,
    ) -> bool {
        self.sequence += 1;
        if has_view {
            let file = write_member(self.sequence, self.starts, self.me.start, &self.view);
            if node.disk().replace(MEMBER_FILE, &file).is_err() {
                return false;
            }
        }
        for bucket in buckets {
            let file = write_bucket(self.sequence, self.replicas[bucket as usize].state());
            if node.disk().replace(&file_of(Bucket(bucket)), &file).is_err() {
                return false;
            }
        }
        *node.memory() = self.sequence.to_le_bytes().to_vec();
        // Acknowledged is what the page cache has; a loss of power may take it.
        node.sync();
        true
    }

    /// Changes a replica and writes it down, or does neither; whether it did.
    fn change(
        &mut self,
        node: &mut Node<'_, Self>,
        bucket: Bucket,
        change: impl FnOnce(&mut Replica<u64>) -> bool,
    ) -> bool {
        let before = self.replicas[bucket.0 as usize].clone();
        let is_changed = change(&mut self.replicas[bucket.0 as usize]);
        if *before.state() == *self.replicas[bucket.0 as usize].state() {
            return is_changed;
        }
        let is_saved = self.save(node, false, bucket.0..bucket.0 + 1);
        if !is_saved {
            self.replicas[bucket.0 as usize] = before;
        }
        is_changed && is_saved
    }

    // ---- views

    /// Its own record is the newest, and of its start.
    fn renew(&mut self) {
        let Me { id, start } = self.me;
        let number = self.view.standing(id).map_or(0, |known| known.number) + 1;
        self.view.learn(id, Standing { number, is_lost: false, start });
    }

    fn adopt(&mut self, node: &mut Node<'_, Self>, other: &View) {
        let old = self.view.clone();
        self.view.merge(other);
        let is_mine = |known: Standing| !known.is_lost && known.start == self.me.start;
        if !self.view.standing(self.me.id).is_some_and(is_mine) {
            self.renew();
        }
        if self.view == old {
            return;
        }
        let before = self.replicas.clone();
        if !self.setup.rule.same(&self.view, &old) {
            self.replicas.iter_mut().for_each(|replica| replica.enter(&old));
        }
        if !self.save(node, true, 0..self.setup.buckets) {
            (self.view, self.replicas) = (old, before);
            return;
        }
        self.want(node);
    }

    fn tick(&mut self, node: &mut Node<'_, Self>) {
        let now = node.now();
        self.tick_at = now + TICK;
        let mut view = self.view.clone();
        for peer in node.others() {
            node.dial(peer);
            node.send(peer, Say::View(self.view.clone()));
            if self.heard[&peer] + LOST_AFTER < now {
                view.lose(id_of(peer));
            }
        }
        self.adopt(node, &view);
        self.want(node);
        self.ticks += 1;
        if self.ticks.is_multiple_of(REPAIR_TICKS) {
            self.repair(node);
        }
        let open: Vec<u64> = self.open.keys().copied().collect();
        for number in open {
            self.advance(node, number);
            self.give_up(node, number);
        }
    }

    /// Has the other owners of its buckets take what they lack.
    fn repair(&self, node: &mut Node<'_, Self>) {
        for bucket in (0..self.setup.buckets).map(Bucket) {
            let replica = &self.replicas[bucket.0 as usize];
            if replica.is_in_sync(self.setup.rule, &self.view) {
                let has = replica.state().contents.clone();
                for owner in self.view.owners(bucket, self.setup.rule.replicas) {
                    if owner != self.me.id {
                        node.send(node_of(owner), Say::Has(self.view.clone(), bucket, has.clone()));
                    }
                }
            }
        }
    }

    /// Asks for what it lacks to be in sync.
    fn want(&mut self, node: &mut Node<'_, Self>) {
        for bucket in (0..self.setup.buckets).map(Bucket) {
            self.try_sync(node, bucket);
            let (rule, replica) = (self.setup.rule, &self.replicas[bucket.0 as usize]);
            if replica.wants_sync(rule, self.me, &self.view) {
                for member in replica.wanted(rule, self.me, &self.view) {
                    node.send(node_of(member), Say::Enter(self.view.clone(), bucket));
                }
            }
        }
    }

    fn try_sync(&mut self, node: &mut Node<'_, Self>, bucket: Bucket) {
        let (rule, me, view) = (self.setup.rule, self.me, self.view.clone());
        if self.replicas[bucket.0 as usize].wants_sync(rule, me, &view) {
            self.change(node, bucket, |replica| replica.try_sync(rule, me, &view));
        }
    }

    // ---- messages

    fn said(&mut self, node: &mut Node<'_, Self>, from: usize, say: Say) {
        let rule = self.setup.rule;
        match say {
            Say::View(view) => self.adopt(node, &view),
            Say::Enter(view, bucket) => {
                if rule.has(Sentence::ReadsAfterFence) {
                    self.adopt(node, &view);
                    if self.view != view {
                        return node.send(from, Say::View(self.view.clone()));
                    }
                }
                let state = self.replicas[bucket.0 as usize].state().clone();
                let offer = Offer { start: self.me.start, state };
                node.send(from, Say::Offer(view, bucket, offer));
            }
            Say::Offer(view, bucket, offer) => {
                let replica = &mut self.replicas[bucket.0 as usize];
                if rule.same(&view, &self.view) && replica.wants_sync(rule, self.me, &self.view) {
                    replica.receive(id_of(from), offer);
                    self.try_sync(node, bucket);
                }
            }
            Say::Take(view, bucket, number, change) => {
                self.adopt(node, &view);
                if self.takes(node, &view, bucket, &change) {
                    node.send(from, Say::Took(view, number));
                }
            }
            Say::Took(view, number) => self.took(node, from, &view, number),
            Say::Ask(view, bucket, number) => {
                self.adopt(node, &view);
                if let Some(contents) = self.answers(&view, bucket) {
                    node.send(from, Say::Answer(view, bucket, number, contents));
                }
            }
            Say::Answer(view, bucket, number, contents) => {
                self.answered(node, from, (&view, bucket), number, contents);
            }
            Say::Has(view, bucket, contents) => {
                if self.answers(&view, bucket).is_some() {
                    self.change(node, bucket, |replica| {
                        replica.merge(&contents);
                        true
                    });
                }
            }
        }
    }

    /// Takes a change if it may in that view; whether it has it.
    fn takes(
        &mut self,
        node: &mut Node<'_, Self>,
        view: &View,
        bucket: Bucket,
        change: &Change<u64>,
    ) -> bool {
        let apply = |replica: &mut Replica<u64>| {
            replica.apply(change);
            true
        };
        self.answers(view, bucket).is_some() && self.change(node, bucket, apply)
    }

    /// Its contents of the bucket, if it may say so in that view.
    fn answers(&self, view: &View, bucket: Bucket) -> Option<Contents<u64>> {
        let (rule, replica) = (self.setup.rule, &self.replicas[bucket.0 as usize]);
        let may = rule.same(view, &self.view) && replica.is_in_sync(rule, &self.view);
        may.then(|| replica.state().contents.clone())
    }

    // ---- requests

    fn asked(&mut self, node: &mut Node<'_, Self>, request: Request) {
        node.report(Seen::Asked(request));
        let rule = self.setup.rule;
        let gather = |buckets: u64, deletes| {
            let chosen = (0..self.setup.buckets).filter(|bucket| buckets >> bucket & 1 == 1);
            let gathering = |bucket| (bucket, Gathering::new(rule, &self.view, bucket));
            Step::Gather { gatherings: chosen.map(Bucket).map(gathering).collect(), deletes }
        };
        let step = match request.asks {
            Asks::Put(bucket) => {
                let last = &mut self.numbers[bucket.0 as usize];
                *last += 1;
                let dot = Dot { origin: self.me.id, start: self.dots_start, number: *last };
                let change = Change::Put(dot, request.number);
                Step::Change { bucket, change, took: BTreeSet::new(), deletes: None }
            }
            Asks::Delete(bucket) => gather(1 << bucket.0, true),
            Asks::Query(buckets) => gather(buckets, false),
        };
        let open = Open { asked_at: node.now(), view: self.view.clone(), step };
        self.open.insert(request.number, open);
        self.advance(node, request.number);
    }

    /// Asks those that have not answered, in the view of now.
    fn advance(&mut self, node: &mut Node<'_, Self>, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        let (rule, view) = (self.setup.rule, self.view.clone());
        if open.view != view {
            open.view = view.clone();
            match &mut open.step {
                Step::Change { took, .. } if rule.has(Sentence::CopiesOfOneView) => took.clear(),
                Step::Change { .. } => {}
                Step::Gather { gatherings, .. } => {
                    for (bucket, gathering) in gatherings {
                        *gathering = Gathering::new(rule, &view, *bucket);
                    }
                }
            }
        }
        match &open.step {
            Step::Change { bucket, change, took, .. } => {
                let (bucket, change, took) = (*bucket, change.clone(), took.clone());
                let owners = view.owners(bucket, rule.replicas).into_iter().map(node_of);
                for owner in owners.filter(|owner| !took.contains(owner)) {
                    if owner != node.me() {
                        let take = Say::Take(view.clone(), bucket, number, change.clone());
                        node.send(owner, take);
                    } else if self.takes(node, &view, bucket, &change) {
                        self.took(node, owner, &view, number);
                    }
                }
            }
            Step::Gather { gatherings, .. } => {
                let missing = gatherings.iter().flat_map(|(bucket, gathering)| {
                    gathering.missing().map(|owner| (*bucket, node_of(owner)))
                });
                let missing: Vec<(Bucket, usize)> = missing.collect();
                for (bucket, owner) in missing {
                    if owner != node.me() {
                        node.send(owner, Say::Ask(view.clone(), bucket, number));
                    } else if let Some(contents) = self.answers(&view, bucket) {
                        self.answered(node, owner, (&view, bucket), number, contents);
                    }
                }
            }
        }
    }

    fn took(&mut self, node: &mut Node<'_, Self>, from: usize, of: &View, number: u64) {
        let rule = self.setup.rule;
        let Some(open) = self.open.get_mut(&number) else { return };
        let Step::Change { took, deletes, .. } = &mut open.step else { return };
        if *of == open.view || !rule.has(Sentence::CopiesOfOneView) {
            took.insert(from);
            if took.len() >= rule.copies {
                let seen = deletes.map_or(Seen::Put(number), Seen::Deleted);
                self.open.remove(&number);
                node.report(seen);
            }
        }
    }

    fn answered(
        &mut self,
        node: &mut Node<'_, Self>,
        from: usize,
        (view, bucket): (&View, Bucket),
        number: u64,
        contents: Contents<u64>,
    ) {
        let rule = self.setup.rule;
        let Some(open) = self.open.get_mut(&number) else { return };
        let Step::Gather { gatherings, .. } = &mut open.step else { return };
        if *view == open.view
            && let Some(gathering) = gatherings.get_mut(&bucket)
        {
            gathering.receive(id_of(from), contents);
            if gatherings.values().all(|gathering| gathering.is_complete(rule)) {
                self.conclude(node, number, true);
            }
        }
    }

    fn give_up(&mut self, node: &mut Node<'_, Self>, number: u64) {
        let Some(open) = self.open.get(&number) else { return };
        if matches!(open.step, Step::Gather { .. }) && open.asked_at + PATIENCE < node.now() {
            self.conclude(node, number, false);
        }
    }

    /// The records of a question are what has come.
    fn conclude(&mut self, node: &mut Node<'_, Self>, number: u64, is_complete: bool) {
        let Some(open) = self.open.remove(&number) else { return };
        let Step::Gather { gatherings, deletes } = open.step else { return };
        let rule = self.setup.rule;
        if !deletes {
            let records = gatherings.values().flat_map(|gathering| gathering.records(rule));
            let values = records.map(|(_, value)| value).collect();
            return node.report(Seen::Answered { number, is_complete, values });
        }
        for (bucket, gathering) in gatherings {
            let records: Vec<(Dot, u64)> = gathering.records(rule).into_iter().collect();
            if let Some((dot, value)) = records.get(number as usize % records.len().max(1)) {
                node.report(Seen::Deleting(*value));
                let change = Change::Delete(vec![*dot]);
                let took = BTreeSet::new();
                let step = Step::Change { bucket, change, took, deletes: Some(*value) };
                let open = Open { asked_at: node.now(), view: self.view.clone(), step };
                self.open.insert(number, open);
                self.advance(node, number);
            }
        }
    }
}

fn file_of(bucket: Bucket) -> String {
    format!("bucket-{}", bucket.0)
}

fn id_of(node: usize) -> MemberId {
    MemberId(node as u64)
}

fn node_of(member: MemberId) -> usize {
    member.0 as usize
}
