//! The lists of cameras that members gave last, so that the cameras of one that is silent do not vanish, and so that many pages ask it once.
//!
//! Always true: a list is of one member for one caller, whose rights it was made by; there are [`LISTS_MAX`] at most, and the one that was
//! asked for least recently gives way.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidegate_api::CameraInfo;
use tidegate_message::{CameraName, Instant};
use tidegate_wire::NodeId;

const LISTS_MAX: usize = 256;
/// A list is not asked for again before.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Listings(Mutex<VecDeque<Listing>>);

struct Listing {
    of: NodeId,
    /// For whom, as members are told.
    named: Vec<u8>,
    at: Instant,
    cameras: Vec<CameraInfo>,
}

impl Listings {
    /// The cameras of a member for a caller, as it said a moment ago.
    pub(crate) fn fresh(&self, of: NodeId, named: &[u8], now: Instant) -> Option<Vec<CameraInfo>> {
        self.get(of, named, |listing| now.since(listing.at) < FRESH)
    }

    /// The same as it said last, whenever that was.
    pub(crate) fn last(&self, of: NodeId, named: &[u8]) -> Option<Vec<CameraInfo>> {
        self.get(of, named, |_| true)
    }

    /// The member that listed a camera for a caller last.
    pub(crate) fn with_camera(&self, camera: &CameraName, named: &[u8]) -> Option<NodeId> {
        let lists = self.lock();
        let has = |listing: &&Listing| {
            listing.named == named && listing.cameras.iter().any(|one| one.name == *camera)
        };
        lists.iter().filter(has).max_by_key(|listing| listing.at).map(|listing| listing.of)
    }

    pub(crate) fn put(&self, of: NodeId, named: &[u8], now: Instant, cameras: Vec<CameraInfo>) {
        let mut lists = self.lock();
        lists.retain(|listing| listing.of != of || listing.named != named);
        if lists.len() == LISTS_MAX {
            lists.pop_front();
        }
        lists.push_back(Listing { of, named: named.to_vec(), at: now, cameras });
    }

    fn get(
        &self,
        of: NodeId,
        named: &[u8],
        is_good: impl Fn(&Listing) -> bool,
    ) -> Option<Vec<CameraInfo>> {
        let mut lists = self.lock();
        let is_it = |listing: &Listing| listing.of == of && listing.named == named;
        let place = lists.iter().position(|listing| is_it(listing) && is_good(listing))?;
        let listing = lists.remove(place)?;
        let cameras = listing.cameras.clone();
        lists.push_back(listing);
        Some(cameras)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Listing>> {
        // Whole between two of its methods, none of which panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_of_a_member_for_a_caller_and_bounded() {
        let (lists, at) = (Listings::default(), |second: i64| Instant::from_millis(second * 1000));
        let node = |number: u16| {
            let mut key = [0; 32];
            key[..2].copy_from_slice(&number.to_be_bytes());
            NodeId(key)
        };
        lists.put(node(1), b"ada", at(1), Vec::new());
        assert!(lists.fresh(node(1), b"ada", at(1)).is_some());
        assert!(
            lists.fresh(node(1), b"ada", at(2)).is_none() && lists.last(node(1), b"ada").is_some()
        );
        assert!(lists.last(node(1), b"bob").is_none() && lists.last(node(2), b"ada").is_none());
        for number in 2..=LISTS_MAX as u16 {
            lists.put(node(number), b"ada", at(2), Vec::new());
        }
        assert!(lists.last(node(1), b"ada").is_some(), "all have a place");
        lists.put(node(999), b"ada", at(3), Vec::new());
        assert!(lists.last(node(2), b"ada").is_none(), "the one that was asked for least recently");
        assert!(lists.last(node(1), b"ada").is_some());
    }
}
