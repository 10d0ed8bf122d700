//! Word of clients that come and go, so that a service can find those that connect at two nodes.
//!
//! Parts of the node and clients to which it gave their identifiers come to no other node, and are left out.
//!
//! Always true: [`Broker::clients`] and the changes with higher numbers, in their order, give the clients that there are; where no service
//! asks for changes, none is made.

use std::sync::Arc;

use tidegate_message::{IdentityKind, Instant};

use super::{Broker, Output};
use crate::{
    session::{Began, Session},
    slab::Key,
};

/// A client that has a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientState {
    /// Its identifier.
    pub client_id: Arc<str>,
    /// How it showed whose it is.
    pub kind: IdentityKind,
    /// The name of that user or certificate.
    pub user: Arc<str>,
    /// When it connected last; of a session that an earlier process left, when this one began.
    pub began: Instant,
    /// Whether it wanted no session of before.
    pub is_clean: bool,
    /// Whether it is connected.
    pub is_connected: bool,
}

/// A change of the clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientChange {
    /// A client has connected.
    Connected(ClientState),
    /// The connection of a client that began then is over, and its session waits.
    Left {
        /// The client.
        client_id: Arc<str>,
        /// When it began.
        began: Instant,
    },
    /// A session is over.
    Ended {
        /// The client.
        client_id: Arc<str>,
    },
}

/// How far a service has been told.
#[derive(Debug, Default)]
pub(super) struct Announced {
    is_wanted: bool,
    last: u64,
}

impl Broker {
    /// Says of each client from now on that it comes or goes, by [`Output::Client`]; or no longer.
    pub fn announce_clients(&mut self, is_wanted: bool) {
        self.announced.is_wanted = is_wanted;
    }

    /// All clients, and the number of the last change that they include.
    pub fn clients(&self) -> (u64, Vec<ClientState>) {
        let states = self.sessions.iter().filter_map(|(_, session)| state_of(session));
        (self.announced.last, states.collect())
    }

    /// A newer connection of a client is at another node: the one here that began then ends as if it had connected here
    /// (MQTT-3.1.4-3), and its session with it where `ends_session`. Nothing happens where another has begun since.
    pub fn taken_over(
        &mut self,
        now: Instant,
        client_id: &str,
        began: Instant,
        ends_session: bool,
    ) {
        let Some(&key) = self.by_client.get(client_id) else { return };
        let session = self.sessions.get(key);
        if session.and_then(|session| session.began).is_none_or(|its| its.at != began) {
            return;
        }
        self.take_over(
            now,
            key,
            ends_session,
            "a newer connection at another node uses this client identifier",
        );
        // It may have ended with its connection.
        if ends_session && self.by_client.contains_key(client_id) {
            self.end_session(now, key);
        }
    }

    pub(super) fn announce_connected(&mut self, key: Key) {
        let session = self.sessions.get(key).filter(|_| self.announced.is_wanted);
        if let Some(state) = session.and_then(state_of) {
            self.announce(ClientChange::Connected(state));
        }
    }

    pub(super) fn announce_left(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key).filter(|_| self.announced.is_wanted) else {
            return;
        };
        if let Some(Began { at: began, .. }) = session.began {
            let client_id = session.client_id.clone();
            self.announce(ClientChange::Left { client_id, began });
        }
    }

    pub(super) fn announce_ended(&mut self, session: &Session) {
        if self.announced.is_wanted && session.began.is_some() {
            let client_id = session.client_id.clone();
            self.announce(ClientChange::Ended { client_id });
        }
    }

    fn announce(&mut self, change: ClientChange) {
        self.announced.last += 1;
        self.outputs.push_back(Output::Client(self.announced.last, change));
    }
}

fn state_of(session: &Session) -> Option<ClientState> {
    let Began { at: began, is_clean } = session.began?;
    Some(ClientState {
        client_id: session.client_id.clone(),
        kind: session.identity.kind,
        user: session.identity.name.clone(),
        began,
        is_clean,
        is_connected: session.connection.is_some(),
    })
}
