//! Which session of a shard could give most memory back.
//!
//! A heap that is put right when it is asked: an entry has what its session could give when the entry was made, and there is
//! another once that has doubled. So who is found could give at least half of what any other could, and neither a message
//! that waits nor one that finds no memory costs a look at all sessions.

use std::collections::BinaryHeap;

use crate::{
    session::Session,
    slab::{Key, Slab},
};

/// Entries beside those of the sessions that there are, before old ones are cleared away.
const OLD_ENTRIES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Givers {
    heap: BinaryHeap<(u64, Key)>,
}

impl Givers {
    /// Something was put into the session's queue; what it could give, if that is to be known.
    pub(crate) fn note(&mut self, key: Key, session: &mut Session) -> Option<u64> {
        let gives = session.gives();
        if gives / 2 < session.noted_gives || gives == 0 {
            return None;
        }
        session.noted_gives = gives;
        self.heap.push((gives, key));
        Some(gives)
    }

    /// Clears old entries away, if they are many.
    pub(crate) fn tidy(&mut self, sessions: &Slab<Session>) {
        if self.heap.len() > 2 * sessions.len() + OLD_ENTRIES {
            let is_last = |session: &Session, gives| session.noted_gives == gives;
            self.heap.retain(|(gives, key)| sessions.get(*key).is_some_and(|s| is_last(s, *gives)));
        }
    }

    /// Who could give most, and how much.
    pub(crate) fn first(&mut self, sessions: &mut Slab<Session>) -> Option<(u64, Key)> {
        while let Some(&(noted, key)) = self.heap.peek() {
            let session = sessions.get_mut(key).filter(|session| session.noted_gives == noted);
            let gives = session.as_ref().map_or(0, |session| session.gives());
            if gives == noted {
                return Some((gives, key));
            }
            self.heap.pop();
            if let Some(session) = session {
                session.noted_gives = gives;
                if gives > 0 {
                    self.heap.push((gives, key));
                }
            }
        }
        None
    }
}
