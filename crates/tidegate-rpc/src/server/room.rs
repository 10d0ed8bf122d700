//! Room for messages that have not come whole: of each connection, of each caller and of all.
//!
//! Always true: what bodies hold is at most what their rooms have, and is given back when they are dropped.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tidegate_wire::NodeId;

/// Bytes of messages that have not come whole: of one connection, of one caller over all of them, and of all.
pub(super) const PARTIAL_BYTES_OF_PEER: usize = 64 << 20;
const PARTIAL_BYTES_OF_CALLER: usize = 128 << 20;
const PARTIAL_BYTES: usize = 256 << 20;
/// Callers that are remembered without a look whether they still call.
const CALLERS_SWEPT: usize = 256;

/// Where bytes may be held.
#[derive(Debug)]
pub(super) struct Rooms {
    pub(super) all: Arc<Room>,
    by_caller: Mutex<HashMap<NodeId, Weak<Room>>>,
}

impl Default for Rooms {
    fn default() -> Self {
        Self { all: Arc::new(Room::new(PARTIAL_BYTES)), by_caller: Mutex::default() }
    }
}

impl Rooms {
    /// The room of a caller, over whatever connections it calls.
    pub(super) fn of(&self, caller: NodeId) -> Arc<Room> {
        let mut rooms = self.by_caller.lock().expect("no panic while it is held");
        if let Some(room) = rooms.get(&caller).and_then(Weak::upgrade) {
            return room;
        }
        if rooms.len() >= CALLERS_SWEPT {
            rooms.retain(|_, room| room.strong_count() > 0);
        }
        let room = Arc::new(Room::new(PARTIAL_BYTES_OF_CALLER));
        rooms.insert(caller, Arc::downgrade(&room));
        room
    }
}

/// Bytes that may be held.
#[derive(Debug)]
pub(super) struct Room {
    limit: usize,
    used: AtomicUsize,
    /// How often there was too little for a call.
    refused: AtomicU64,
}

impl Room {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0), refused: AtomicU64::new(0) }
    }

    /// Of one connection.
    pub(super) fn of_peer() -> Self {
        Self::new(PARTIAL_BYTES_OF_PEER)
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// Bytes that a body holds of what all may hold together.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) held: usize,
    /// Of its connection, of its caller, and of all.
    rooms: [Arc<Room>; 3],
}

impl Holding {
    pub(super) fn new(rooms: [Arc<Room>; 3]) -> Self {
        Self { held: 0, rooms }
    }

    /// Holds `bytes` from now on; false if there is no room.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        if bytes <= self.held {
            self.rooms.iter().for_each(|room| room.give(self.held - bytes));
        } else {
            let more = bytes - self.held;
            if let Some(full) = self.rooms.iter().position(|room| !room.take(more)) {
                self.rooms[..full].iter().for_each(|room| room.give(more));
                self.note_refused();
                return false;
            }
            if !self.is_within_share() {
                self.rooms.iter().for_each(|room| room.give(more));
                self.note_refused();
                return false;
            }
        }
        self.held = bytes;
        true
    }

    /// Holds so many more; false if there is no room.
    pub(super) fn hold_more(&mut self, bytes: usize) -> bool {
        self.hold(self.held.saturating_add(bytes))
    }

    /// Whether its caller has at most three quarters of what all others leave: there is something for the next, however many call.
    fn is_within_share(&self) -> bool {
        let [_, caller, all] = &self.rooms;
        let own = caller.used.load(Ordering::Acquire);
        let others = all.used.load(Ordering::Acquire).saturating_sub(own);
        own <= all.limit.saturating_sub(others) / 4 * 3
    }

    fn note_refused(&self) {
        self.rooms[2].refused.fetch_add(1, Ordering::AcqRel);
    }

    /// How often there was no room for others.
    pub(super) fn refused(&self) -> u64 {
        self.rooms[2].refused.load(Ordering::Acquire)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.hold(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_gives_no_more_than_it_has() {
        let rooms = [10, 12, 16].map(|limit| Arc::new(Room::new(limit)));
        let body = Holding::new;
        let (mut one, mut two) = (body(rooms.clone()), body(rooms.clone()));
        assert!(one.hold(8) && !two.hold(3) && two.hold(2));
        assert!(one.hold(3) && two.hold(7) && !two.hold(8));
        // Over another connection, and of another caller.
        let peer = || Arc::new(Room::new(10));
        let mut other = body([peer(), rooms[1].clone(), rooms[2].clone()]);
        assert!(other.hold(2) && !other.hold(3));
        let mut another = body([peer(), Arc::new(Room::new(12)), rooms[2].clone()]);
        assert!(another.hold(3) && !another.hold(4));
        drop((one, two, other, another));
        assert_eq!(rooms.map(|room| room.used.load(Ordering::Relaxed)), [0, 0, 0]);
    }

    #[test]
    fn however_many_callers_there_are_the_next_finds_room() {
        let rooms = Rooms::default();
        let body = |caller: u8| {
            let rooms =
                [Arc::new(Room::of_peer()), rooms.of(NodeId([caller; 32])), rooms.all.clone()];
            Holding::new(rooms)
        };
        let mut greedy = Vec::new();
        for caller in 0..6 {
            for _ in 0..200 {
                let mut body = body(caller);
                if body.hold(1 << 20) {
                    greedy.push(body);
                }
            }
        }
        assert!(greedy.len() > 200 && rooms.all.refused.load(Ordering::Relaxed) > 0);
        let frame = 256 << 10;
        assert!(body(6).hold(frame), "{} MiB are taken", greedy.len());
    }

    #[test]
    fn a_caller_has_one_room_over_all_its_connections() {
        let rooms = Rooms::default();
        let caller = |number: u8| NodeId([number; 32]);
        let first = rooms.of(caller(1));
        assert!(Arc::ptr_eq(&first, &rooms.of(caller(1))));
        assert!(!Arc::ptr_eq(&first, &rooms.of(caller(2))));
        for number in 0..10 * CALLERS_SWEPT {
            let [high, low] = (number as u16).to_be_bytes();
            let mut id = [3; 32];
            id[..2].copy_from_slice(&[high, low]);
            rooms.of(NodeId(id));
        }
        assert!(rooms.by_caller.lock().unwrap().len() <= CALLERS_SWEPT + 1);
        assert!(Arc::ptr_eq(&first, &rooms.of(caller(1))), "it is still there");
    }
}
