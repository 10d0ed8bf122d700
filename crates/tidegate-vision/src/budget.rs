//! Bytes of requests that are held: of each caller, and of all.
//!
//! Always true: no more than the limit is held in all; a caller holds at most three quarters of what all others leave, so that there is
//! room for the next one; a charge that is dropped is given back.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex},
};

use tidegate_wire::NodeId;

/// The bytes that may be held.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    /// Of each caller that holds something.
    by_caller: HashMap<NodeId, usize>,
}

/// Bytes that are held for a caller.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    caller: NodeId,
    bytes: usize,
}

/// There is no room for more bytes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the requests under way hold all the memory that they may; try again when some are answered"
)]
pub struct NoRoom;

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: Mutex::default() }
    }

    /// Nothing yet, for that caller.
    pub(crate) fn open(self: &Arc<Self>, caller: NodeId) -> Charge {
        Charge { budget: self.clone(), caller, bytes: 0 }
    }
}

impl Charge {
    /// Holds `bytes` from now on.
    pub(crate) fn hold(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes == self.bytes {
            return Ok(());
        }
        let mut used = self.budget.used.lock().expect("no panic while it is held");
        let own = used.by_caller.get(&self.caller).copied().unwrap_or_default();
        let others = used.all - own;
        let own = own - self.bytes + bytes;
        if bytes > self.bytes && own > self.budget.limit.saturating_sub(others) / 4 * 3 {
            return Err(NoRoom);
        }
        used.all = others + own;
        match used.by_caller.entry(self.caller) {
            Entry::Occupied(entry) if own == 0 => drop(entry.remove()),
            Entry::Occupied(mut entry) => *entry.get_mut() = own,
            Entry::Vacant(entry) => drop(entry.insert(own)),
        }
        drop(used);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.hold(0).expect("less is always allowed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_leaves_room_for_the_next_and_gives_all_of_it_back() {
        let budget = Arc::new(Budget::new(1600));
        let of = |caller: u8| budget.open(NodeId([caller; 32]));
        let (mut one, mut more, mut two) = (of(1), of(1), of(2));
        assert_eq!(one.hold(800), Ok(()));
        assert_eq!(more.hold(401), Err(NoRoom), "1201 of 1600 is more than three quarters");
        assert_eq!(more.hold(400), Ok(()));
        assert_eq!(two.hold(301), Err(NoRoom), "400 are left, of which a quarter is for others");
        assert_eq!(two.hold(300), Ok(()));
        assert_eq!(one.hold(10), Ok(()), "less is always allowed");
        assert_eq!(two.hold(500), Ok(()));
        drop((one, more, two));
        let used = budget.used.lock().unwrap();
        assert_eq!((used.all, used.by_caller.len()), (0, 0));
    }
}
