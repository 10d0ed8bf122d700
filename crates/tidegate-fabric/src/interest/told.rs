//! How far a member has been told of the filters.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use tidegate_wire::Interests;

/// The filters that a member is still to be told.
#[derive(Debug)]
pub(super) struct Told {
    /// Whether the next record begins a list of all.
    is_first: bool,
    listing: Listing,
    added: BTreeSet<Arc<str>>,
    removed: BTreeSet<Arc<str>>,
    /// The generation that it has been told whole.
    generation: Option<u64>,
}

/// The list of all filters, in their order. It is not copied for each member: those that hang would have one each.
#[derive(Debug)]
enum Listing {
    /// This one was the last, or none yet.
    Behind(Option<Arc<str>>),
    Ended,
}

impl Told {
    /// It knows of none.
    pub(super) fn none() -> Self {
        let [added, removed] = [BTreeSet::new(), BTreeSet::new()];
        Self { is_first: true, listing: Listing::Behind(None), added, removed, generation: None }
    }

    pub(super) fn add(&mut self, filter: &Arc<str>) {
        // One that it has and was to give up is as it was.
        if !self.is_ahead(filter) && !self.removed.remove(filter) {
            self.added.insert(filter.clone());
        }
    }

    pub(super) fn remove(&mut self, filter: &Arc<str>) {
        if !self.is_ahead(filter) && !self.added.remove(filter) {
            self.removed.insert(filter.clone());
        }
    }

    /// Where it is to be told more than all that there are, all of them are listed instead: so a member that hangs while filters change
    /// costs a bounded memory.
    pub(super) fn bound(&mut self, filters: usize) {
        if self.added.len() + self.removed.len() > filters {
            *self = Self::none();
        }
    }

    /// Whether the list is still to come to a filter.
    fn is_ahead(&self, filter: &Arc<str>) -> bool {
        match &self.listing {
            Listing::Behind(last) => last.as_ref().is_none_or(|last| filter > last),
            Listing::Ended => false,
        }
    }

    /// The next record; none if it has been told all up to a generation.
    pub(super) fn next(
        &mut self,
        filters: &BTreeMap<Arc<str>, u64>,
        generation: u64,
    ) -> Option<Interests> {
        if self.generation == Some(generation) {
            return None;
        }
        let [added, removed] = [Vec::new(), Vec::new()];
        let is_first = std::mem::take(&mut self.is_first);
        let mut record = Interests { generation, is_first, more: true, added, removed };
        // The receiver takes a change when it is whole, so the order makes no gap. In this one it never has more than are offered.
        while let Some(filter) = pop_if_fits(&mut self.removed, &record) {
            record.removed.push(filter);
        }
        while self.removed.is_empty()
            && let Some(filter) = pop_if_fits(&mut self.added, &record)
        {
            record.added.push(filter);
        }
        if self.removed.is_empty() && self.added.is_empty() {
            self.list(filters, &mut record);
            record.more = matches!(self.listing, Listing::Behind(_));
        }
        if !record.more {
            self.generation = Some(generation);
        }
        Some(record)
    }

    fn list(&mut self, filters: &BTreeMap<Arc<str>, u64>, record: &mut Interests) {
        let Listing::Behind(last) = &mut self.listing else { return };
        let from = last.as_ref().map_or(Bound::Unbounded, |last| Bound::Excluded(last.clone()));
        for filter in filters.range((from, Bound::Unbounded)).map(|(filter, _)| filter) {
            if !record.has_room(filter) {
                return;
            }
            record.added.push(filter.to_string());
            *last = Some(filter.clone());
        }
        self.listing = Listing::Ended;
    }
}

fn pop_if_fits(filters: &mut BTreeSet<Arc<str>>, record: &Interests) -> Option<String> {
    let fits = filters.first().is_some_and(|filter| record.has_room(filter));
    if fits { filters.pop_first().map(|filter| filter.to_string()) } else { None }
}
