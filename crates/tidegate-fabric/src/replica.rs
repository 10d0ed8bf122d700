//! A bucket at one member: its contents, and whether they are all that was acknowledged.
//!
//! ```text
//!  view changes ─▶ enter ─▶ wanted ─▶ other owners enter the view, then offer ─▶ receive ─▶ try_sync ─▶ in sync: takes changes, answers
//! ```
//!
//! An owner takes changes and answers in the view that it is in sync in, and in no other. So once a quorum of the owners of an earlier view
//! have left it, nothing is acknowledged there; what was is with at least one of them; and each owner that syncs in another view
//! meets one of them too, and learns of this one.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    contents::{Change, Contents},
    rule::{Rule, Sentence},
    view::{Bucket, MemberId, View},
};

/// The state of a bucket at a member, all of which is on its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State<R> {
    /// Records and clock.
    pub contents: Contents<R>,
    /// The last view that it was in sync in, since it last may have lost something.
    pub in_sync: Option<View>,
    /// Earlier views in which something may have been acknowledged that is not among its contents.
    pub history: BTreeSet<View>,
}

impl<R> Default for State<R> {
    fn default() -> Self {
        Self { contents: Contents::default(), in_sync: None, history: BTreeSet::new() }
    }
}

/// The state of an owner after it entered a view.
#[derive(Clone, Debug)]
pub struct Offer<R> {
    /// The owner's start.
    pub start: u64,
    /// Its state.
    pub state: State<R>,
}

/// The member that a replica is at.
#[derive(Clone, Copy, Debug)]
pub struct Me {
    /// Its name.
    pub id: MemberId,
    /// Its start.
    pub start: u64,
}

/// A bucket at a member, which is an owner in some views.
#[derive(Clone, Debug)]
pub struct Replica<R> {
    bucket: Bucket,
    state: State<R>,
    /// Of owners that are in the view that this member is in.
    offers: BTreeMap<MemberId, Offer<R>>,
}

impl<R: Clone> Replica<R> {
    /// With the state of its disk.
    pub fn new(bucket: Bucket, state: State<R>) -> Self {
        Self { bucket, state, offers: BTreeMap::new() }
    }

    /// The state that is to be on its disk.
    pub fn state(&self) -> &State<R> {
        &self.state
    }

    /// Its member has left a view for a later one.
    pub fn enter(&mut self, from: &View) {
        self.offers.clear();
        self.state.history.insert(from.clone());
    }

    /// Its member may have lost something of this bucket.
    pub fn doubt(&mut self) {
        self.state.in_sync = None;
    }

    /// Whether it has all that was acknowledged before that view began, and so may take changes and answer there.
    pub fn is_in_sync(&self, rule: Rule, view: &View) -> bool {
        self.state.in_sync.as_ref().is_some_and(|synced| rule.same(synced, view))
    }

    /// Whether its member is an owner in that view and not in sync yet.
    pub fn wants_sync(&self, rule: Rule, me: Me, view: &View) -> bool {
        view.owners(self.bucket, rule.replicas).contains(&me.id) && !self.is_in_sync(rule, view)
    }

    /// The members that are to enter the view and make their offers, those aside that did: owners in earlier views, and where all of these
    /// did and do not suffice, all others.
    pub fn wanted(&self, rule: Rule, me: Me, view: &View) -> BTreeSet<MemberId> {
        let mut wanted = BTreeSet::new();
        for earlier in self.earlier(rule, me, view) {
            wanted.extend(earlier.owners(self.bucket, rule.replicas));
        }
        wanted.retain(|member| !self.has_offer(me, *member));
        if wanted.is_empty() {
            let others = view.standings().map(|(member, _)| member);
            wanted.extend(others.filter(|member| !self.has_offer(me, *member)));
        }
        wanted
    }

    /// An owner that is in the same view offers its state.
    pub fn receive(&mut self, from: MemberId, offer: Offer<R>) {
        self.offers.insert(from, offer);
    }

    /// Is in sync in the view from now on, if the offers suffice for it.
    pub fn try_sync(&mut self, rule: Rule, me: Me, view: &View) -> bool {
        let is_done =
            self.earlier(rule, me, view).iter().all(|earlier| self.covers(rule, me, view, earlier));
        if is_done {
            for offer in std::mem::take(&mut self.offers).into_values() {
                self.state.contents.merge(&offer.state.contents);
            }
            self.state.in_sync = Some(view.clone());
            self.state.history.clear();
        }
        is_done
    }

    /// Takes a change.
    pub fn apply(&mut self, change: &Change<R>) {
        self.state.contents.apply(change);
    }

    /// Another owner that is in sync in the same view has these contents.
    pub fn merge(&mut self, contents: &Contents<R>) {
        self.state.contents.merge(contents);
    }

    /// The earlier views that count: those that it and the others know of, but those that one of them has had all of.
    fn earlier(&self, rule: Rule, me: Me, view: &View) -> BTreeSet<View> {
        let mut earlier = self.state.history.clone();
        if rule.has(Sentence::LearnsHistory) {
            earlier.extend(self.offers.values().flat_map(|offer| offer.state.history.clone()));
        }
        if view.standing(me.id).map(|standing| standing.start) != Some(me.start) {
            // It is not the member that the view names: that one may have acknowledged something in this very view.
            earlier.insert(view.clone());
        }
        let synced: Vec<&View> = self.states().filter_map(|state| state.in_sync.as_ref()).collect();
        let is_over = |earlier: &View| {
            synced.iter().any(|synced| *synced != earlier && synced.includes(earlier))
        };
        earlier.retain(|earlier| !is_over(earlier));
        earlier
    }

    fn states(&self) -> impl Iterator<Item = &State<R>> {
        self.offers.values().map(|offer| &offer.state).chain([&self.state])
    }

    fn has_offer(&self, me: Me, member: MemberId) -> bool {
        member == me.id || self.offers.contains_key(&member)
    }

    /// Whether nothing is acknowledged in an earlier view any more, and all that was is in the offers.
    fn covers(&self, rule: Rule, me: Me, view: &View, earlier: &View) -> bool {
        let of = if rule.has(Sentence::AsksEarlierOwners) { earlier } else { view };
        let owners = of.owners(self.bucket, rule.replicas);
        let start_of = |owner: MemberId| {
            let mine = (owner == me.id).then_some(me.start);
            mine.or_else(|| self.offers.get(&owner).map(|offer| offer.start))
        };
        let is_whole = |owner: &&MemberId| {
            let known = earlier.standing(**owner).map(|standing| standing.start);
            let start = start_of(**owner);
            start.is_some() && (start == known || !rule.has(Sentence::LossIsCounted))
        };
        let whole = owners.iter().filter(is_whole).count();
        if whole >= if rule.has(Sentence::AsksQuorum) { rule.quorum(owners.len()) } else { 1 } {
            return true;
        }
        // Owners that lost something may have lost that they entered a later view, whose owners none of them knows of. If all members are
        // asked, there are no others.
        let members = view.standings().map(|(member, _)| member);
        let all = if rule.has(Sentence::AllAreMembers) { members.collect() } else { owners };
        rule.has(Sentence::AllSuffice) && all.into_iter().all(|member| self.has_offer(me, member))
    }
}

impl Rule {
    /// Whether two views are the same one.
    pub fn same(self, one: &View, other: &View) -> bool {
        if self.has(Sentence::ViewIsNumbered) {
            one == other
        } else {
            one.present().eq(other.present())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contents::Dot, view::Standing};

    const RULE: fn() -> Rule = || Rule::new(3, 2);
    const BUCKET: Bucket = Bucket(1);

    fn view(members: impl IntoIterator<Item = u64>) -> View {
        let standing =
            |member| (MemberId(member), Standing { number: 1, is_lost: false, start: member });
        members.into_iter().map(standing).collect()
    }

    fn me(member: MemberId) -> Me {
        Me { id: member, start: member.0 }
    }

    /// In sync in that view, with one record.
    fn synced(view: &View, number: u64) -> Replica<&'static str> {
        let dot = Dot { origin: MemberId(9), start: 9, number };
        let contents =
            Contents::new(BTreeMap::from([(dot, "a")]), crate::contents::Clock::default());
        let state = State { contents, in_sync: Some(view.clone()), history: BTreeSet::new() };
        Replica::new(BUCKET, state)
    }

    fn offer(of: MemberId, from: &Replica<&'static str>) -> Offer<&'static str> {
        Offer { start: of.0, state: from.state().clone() }
    }

    #[test]
    fn new_owner_asks_quorum_of_earlier_owners() {
        let old = view(0..4);
        let owners = old.owners(BUCKET, 3);
        let new = (0..4).map(MemberId).find(|member| !owners.contains(member)).expect("a fourth");
        let mut later = old.clone();
        later.lose(owners[0]);
        let mut replica = Replica::new(BUCKET, State::default());
        replica.enter(&old);
        assert!(replica.wants_sync(RULE(), me(new), &later));
        assert_eq!(replica.wanted(RULE(), me(new), &later), owners.iter().copied().collect());
        for (number, owner) in [(1, owners[1]), (2, owners[2])] {
            assert!(!replica.try_sync(RULE(), me(new), &later), "{number} is missing");
            let mut other = synced(&old, number);
            other.enter(&old);
            replica.receive(owner, offer(owner, &other));
        }
        assert!(replica.try_sync(RULE(), me(new), &later));
        assert_eq!(replica.state().contents.records().len(), 2);
        assert!(replica.is_in_sync(RULE(), &later) && !replica.is_in_sync(RULE(), &old));
    }

    #[test]
    fn owner_that_lost_something_counts_for_no_earlier_view() {
        let old = view(0..3);
        let [here, lost, away] = old.owners(BUCKET, 3)[..] else { panic!("three owners") };
        let mut later = old.clone();
        later.learn(lost, Standing { number: 2, is_lost: false, start: 77 });
        let mut replica = synced(&old, 1);
        replica.enter(&old);
        let doubted = Offer { start: 77, state: State::default() };
        replica.receive(lost, doubted);
        assert!(!replica.try_sync(RULE(), me(here), &later), "one of the other two is needed");
        assert_eq!(replica.wanted(RULE(), me(here), &later), BTreeSet::from([away]));
        let mut other = synced(&old, 2);
        other.enter(&old);
        replica.receive(away, offer(away, &other));
        assert!(replica.try_sync(RULE(), me(here), &later));
    }
}
