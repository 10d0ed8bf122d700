//! A client that has connected, in one look-up: its connection and its session.

use super::Broker;
use crate::{
    connection::Connection,
    session::Session,
    slab::{Key, Slab},
};

/// The connection and the session of a client that has connected.
///
/// A packet after CONNECT comes from such a client alone, so that nearly all that is done with one is done with both.
pub(super) struct Conversation<'a> {
    pub(super) key: Key,
    pub(super) connection: &'a mut Connection,
    pub(super) session_key: Key,
    pub(super) session: &'a mut Session,
}

/// The same to look at.
#[derive(Clone, Copy)]
pub(super) struct ConversationRef<'a> {
    pub(super) connection: &'a Connection,
    pub(super) session_key: Key,
    pub(super) session: &'a Session,
}

/// Why there is a conversation where a packet is handled.
const RECEIVED_FROM: &str = "packets after CONNECT are those of a client that has its session";

impl<'a> Conversation<'a> {
    /// That of the connection `key`, apart from the rest of the broker; none once it has parted from its session.
    #[inline]
    pub(super) fn find(
        connections: &'a mut Slab<Connection>,
        sessions: &'a mut Slab<Session>,
        key: Key,
    ) -> Option<Self> {
        let connection = connections.get_mut(key)?;
        let session_key = connection.session?;
        Some(Self { key, connection, session_key, session: sessions.get_mut(session_key)? })
    }

    /// The same of one whose packet is handled: it has not parted from its session since that was looked at.
    ///
    /// # Panics
    /// There is none.
    #[inline]
    pub(super) fn of(
        connections: &'a mut Slab<Connection>,
        sessions: &'a mut Slab<Session>,
        key: Key,
    ) -> Self {
        Self::find(connections, sessions, key).expect(RECEIVED_FROM)
    }
}

impl Broker {
    /// The client behind `key`; none once it has parted from its session: by DISCONNECT, by a takeover or by the end of either. One that is
    /// merely asked to close still has it.
    #[inline]
    pub(super) fn conversation(&mut self, key: Key) -> Option<Conversation<'_>> {
        Conversation::find(&mut self.connections, &mut self.sessions, key)
    }

    /// The same to look at.
    #[inline]
    pub(super) fn conversation_ref(&self, key: Key) -> Option<ConversationRef<'_>> {
        let connection = self.connections.get(key)?;
        let session_key = connection.session?;
        Some(ConversationRef { connection, session_key, session: self.sessions.get(session_key)? })
    }

    /// The client behind `key`, whose packet is handled: it has not parted from its session since that was looked at.
    ///
    /// # Panics
    /// There is none.
    #[inline]
    pub(super) fn met(&self, key: Key) -> ConversationRef<'_> {
        self.conversation_ref(key).expect(RECEIVED_FROM)
    }

    /// The same to change it.
    ///
    /// # Panics
    /// There is none.
    #[inline]
    pub(super) fn met_mut(&mut self, key: Key) -> Conversation<'_> {
        Conversation::of(&mut self.connections, &mut self.sessions, key)
    }

    /// The session of the connection `key`, if it has one.
    #[inline]
    pub(super) fn session_of(&self, key: Key) -> Option<Key> {
        self.connections.get(key)?.session
    }
}
