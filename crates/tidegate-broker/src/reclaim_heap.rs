//! The sessions of a shard by the memory that they could release.
//!
//! A heap that is corrected lazily: an entry has the bytes that its session could release when the entry was made, and another is
//! made once they have doubled. So the first could release at least half as much as any other, and neither a waiting message nor one
//! without memory costs a look at all sessions.

use std::collections::BinaryHeap;

use crate::{
    session::Session,
    slab::{Key, Slab},
};

/// Entries in addition to those of the current sessions, before old ones are cleared away.
const OLD_ENTRIES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct ReclaimHeap {
    heap: BinaryHeap<(u64, Key)>,
}

impl ReclaimHeap {
    /// A message was put into the session's queue; the bytes it could release, if they are to be recorded.
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

    /// The session that could release most, and how much.
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
