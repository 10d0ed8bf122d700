//! The filters that this node offers to the other members.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidegate_wire::{Interests, NodeId};

use super::{
    FILTERS_MAX, SHARED_MAX,
    covering::{Covering, is_shared},
    few::{Offerable, cut, few, offerable},
    told::Told,
};

/// The filters of this node's clients, made few, and how far each member has been told.
///
/// Generations count from 1, so that 0 is a member that holds nothing.
#[derive(Debug)]
pub struct Offered {
    filters: Covering,
    /// Raised with each change.
    generation: u64,
    /// Levels to which filters are cut, while there would be too many.
    levels_max: Option<usize>,
    left_out: usize,
    peers: BTreeMap<NodeId, Told>,
}

impl Default for Offered {
    fn default() -> Self {
        Self::from_generation(1)
    }
}

impl Offered {
    /// None, in a generation from 1 on: a node that was told of others before takes no word about those for one about these.
    pub fn from_generation(generation: u64) -> Self {
        Self {
            filters: Covering::default(),
            generation,
            levels_max: None,
            left_out: 0,
            peers: BTreeMap::new(),
        }
    }

    /// The generation of the last change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The number of filters that are offered.
    pub fn len(&self) -> usize {
        self.filters.all().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// To how many levels filters are cut since there would be too many; none where they are offered whole.
    pub fn levels_max(&self) -> Option<usize> {
        self.levels_max
    }

    /// Filters that are served at this node alone: shared subscriptions beyond [`SHARED_MAX`], those of more than 1,024 bytes, and ones
    /// whose first level begins with `$` and is too long, or one of too many. All others can be offered by a wider one.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// A member is there, which knows of none.
    pub fn linked(&mut self, peer: NodeId) {
        self.peers.insert(peer, Told::none());
    }

    /// A member is gone.
    pub fn unlinked(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
    }

    /// A client subscribes. Returns the generation with which members hold the filter, that of a wider one if there is one; 0 if they
    /// need not.
    pub fn add(&mut self, filter: &str) -> u64 {
        let filter = match offerable(filter) {
            Offerable::As(filter) => filter,
            Offerable::Own => return 0,
            Offerable::TooLong => {
                self.left_out += 1;
                return 0;
            }
        };
        let filter = self
            .levels_max
            .map_or(filter.clone(), |levels| cut(&filter, levels).into_owned().into());
        if let Some(generation) = self.filters.generation_of(&filter) {
            return generation;
        }
        if is_shared(&filter) && self.filters.shared() >= SHARED_MAX {
            self.left_out += 1;
            return 0;
        }
        let filter: Arc<str> = filter.into();
        if self.len() >= FILTERS_MAX {
            let all: Vec<Arc<str>> = self.filters.all().keys().cloned().collect();
            let left_out = self.left_out;
            self.set(all.iter().chain([&filter]).map(|filter| &**filter));
            self.left_out += left_out;
            return self
                .filters
                .generation_of(&cut(&filter, self.levels_max.unwrap_or(usize::MAX)))
                .unwrap_or(0);
        }
        self.change(&[filter], &[]);
        self.generation
    }

    /// The same for several at once: it looks at all filters once at the most.
    pub fn add_all(&mut self, filters: &[Arc<str>]) -> u64 {
        if self.len() + filters.len() <= FILTERS_MAX {
            return filters.iter().map(|filter| self.add(filter)).max().unwrap_or(0);
        }
        let all: Vec<Arc<str>> = self.filters.all().keys().cloned().collect();
        let left_out = self.left_out;
        self.set(all.iter().chain(filters).map(|filter| &**filter));
        self.left_out += left_out;
        self.generation
    }

    /// The filters of all clients are these: those of clients that have gone are no longer offered.
    ///
    /// It looks at all of them, while [`Offered::add`] looks at one: let some time pass between two calls.
    pub fn set<'a>(&mut self, filters: impl IntoIterator<Item = &'a str>) {
        let mut too_long = 0;
        let mut wanted: BTreeSet<Cow<'_, str>> = BTreeSet::new();
        for filter in filters {
            match offerable(filter) {
                Offerable::As(filter) => drop(wanted.insert(filter)),
                Offerable::TooLong => too_long += 1,
                Offerable::Own => {}
            }
        }
        let few = few(wanted, self.levels_max);
        (self.levels_max, self.left_out) = (few.levels_max, few.left_out + too_long);
        let had = self.filters.all();
        let added: Vec<Arc<str>> = few
            .filters
            .iter()
            .filter(|filter| !had.contains_key(&***filter))
            .map(|filter| (&**filter).into())
            .collect();
        let removed: Vec<Arc<str>> =
            had.keys().filter(|filter| !few.filters.contains(&***filter)).cloned().collect();
        if !(added.is_empty() && removed.is_empty()) {
            self.change(&added, &removed);
        }
    }

    fn change(&mut self, added: &[Arc<str>], removed: &[Arc<str>]) {
        self.generation += 1;
        removed.iter().for_each(|filter| self.filters.remove(filter));
        added.iter().for_each(|filter| self.filters.insert(filter.clone(), self.generation));
        let count = self.filters.all().len();
        for told in self.peers.values_mut() {
            removed.iter().for_each(|filter| told.remove(filter));
            added.iter().for_each(|filter| told.add(filter));
            told.bound(count);
        }
    }

    /// The next record for a member; none if it has been told all.
    pub fn poll_transmit(&mut self, peer: NodeId) -> Option<Interests> {
        self.peers.get_mut(&peer)?.next(self.filters.all(), self.generation)
    }
}
