//! Clients of the driver: which are connected here, and which of them have a newer connection at another member.

use tidegate_bus::{ClientChange, ClientList, ClientState, ClientWatch, Watched};
use tidegate_fabric::clients::{Client, ClientEvent};
use tidegate_message::{IdentityKind, Instant, LogLimiter};
use tidegate_wire::{NodeId, OwnerKind};
use tokio::task::{JoinError, JoinSet};

use super::{Driver, IN_A_ROW_MAX};

/// Disputed identifiers that are named at once where problems are shown.
const NAMED_MAX: usize = 20;

/// The parts of the driver for clients that begin empty.
pub(super) struct Clientele {
    /// At most one: the clients that there are, while they are asked for. Changes wait meanwhile.
    pub(super) lists: JoinSet<ClientList>,
    /// Lines about clients whose newer connection is elsewhere.
    taken: LogLimiter,
    /// Lines about identifiers that were, or are, in use at two members.
    named: LogLimiter,
}

impl Default for Clientele {
    fn default() -> Self {
        let (taken, named) = (LogLimiter::of_strangers(), LogLimiter::of_strangers());
        Self { lists: JoinSet::new(), taken, named }
    }
}

impl Driver {
    /// Asks for all clients.
    pub(super) fn list_clients(&mut self) {
        if let Some(bus) = self.bus.clone() {
            self.state.clientele.lists.spawn(async move { bus.clients().await });
        }
    }

    pub(super) fn clients_listed(
        &mut self,
        watch: Option<&mut ClientWatch>,
        listed: Result<ClientList, JoinError>,
    ) {
        match listed {
            Ok(list) => {
                watch.into_iter().for_each(|watch| watch.listed(&list));
                self.clients.set(list.clients.into_iter().filter_map(client_of).collect());
            }
            Err(error) => {
                tracing::error!(%error, "the clients of this node are not known: they are asked for again with the next change that is missed");
            }
        }
    }

    pub(super) fn client_watched(&mut self, watched: Watched) {
        match watched {
            Watched::Missed => self.list_clients(),
            Watched::Change(ClientChange::Connected(state)) => {
                if let Some(client) = client_of(state) {
                    self.clients.connected(client);
                }
            }
            Watched::Change(ClientChange::Left { client_id, began }) => {
                self.clients.left(&client_id, began);
            }
            Watched::Change(ClientChange::Ended { client_id }) => self.clients.ended(&client_id),
        }
    }

    /// Takes changes that have come already, so that members are told of many in one record while many clients connect.
    pub(super) async fn watch_more(&mut self, watch: Option<&mut ClientWatch>) {
        let Some(watch) = watch else { return };
        for _ in 0..IN_A_ROW_MAX {
            if !self.state.clientele.lists.is_empty() {
                return;
            }
            let more = tokio::select! {
                biased;
                more = watch.next() => more,
                () = std::future::ready(()) => None,
            };
            let Some(watched) = more else { return };
            self.client_watched(watched);
        }
    }

    pub(super) fn client_happened(&mut self, now: Instant, event: ClientEvent) {
        match event {
            ClientEvent::Taken { client, began, ends_session, by, is_met } => {
                if let Some(bus) = &self.bus {
                    bus.taken_over(&client, began, ends_session);
                }
                if is_met {
                    let text = "a client identifier was in use at two members that had no link: the newer connection stays";
                    self.name_client(now, &client, by, text);
                } else if let Some(count) = self.state.clientele.taken.add(now, 1) {
                    let (client, member) = (client.escape_debug(), self.name_of(by));
                    tracing::info!(%client, member, ends_session, count,
                        "a client has a newer connection at another member: the one here ends; count since the last such line");
                }
            }
            ClientEvent::Disputed { client, with } => {
                self.state.is_shown_old = true;
                let text = "a client identifier is in use by two identities at two members: both clients stay";
                self.name_client(now, &client, with, text);
            }
        }
    }

    /// Names an identifier that is in use here and at another member.
    fn name_client(&self, now: Instant, client: &str, other: NodeId, text: &'static str) {
        let Some(count) = self.state.clientele.named.add(now, 1) else { return };
        let (client, member) = (client.escape_debug(), self.name_of(other));
        tracing::warn!(%client, member, count, "{text}; count since the last such line");
        (self.audit)(text, format!("{client} here and at {member} {other}"));
    }

    /// Disputed identifiers, for people.
    pub(super) fn disputed_clients(&self) -> Vec<String> {
        let mut disputes = self.clients.disputes();
        let name = |(client, other): (&Client, NodeId)| {
            let whose = match client.kind {
                OwnerKind::Anonymous => "a client that showed no identity".to_owned(),
                OwnerKind::User => format!("user {}", client.owner),
                OwnerKind::Certificate => format!("the certificate of {}", client.owner),
                OwnerKind::Node => format!("node {}", client.owner),
            };
            format!(
                "the client identifier {} is in use here by {whose}, and at member {} by another identity: give one of them another identifier",
                client.client.escape_debug(),
                self.name_of(other)
            )
        };
        let mut named: Vec<String> = disputes.by_ref().take(NAMED_MAX).map(name).collect();
        let more = disputes.count();
        if more > 0 {
            named.push(format!(
                "{more} more client identifiers are in use by two identities at two members"
            ));
        }
        named
    }
}

/// A client for other members; none for what belongs to this node alone.
fn client_of(state: ClientState) -> Option<Client> {
    let ClientState { client_id: client, kind, user: owner, began, is_clean, is_connected } = state;
    let kind = match kind {
        IdentityKind::Anonymous => OwnerKind::Anonymous,
        IdentityKind::User => OwnerKind::User,
        IdentityKind::Certificate => OwnerKind::Certificate,
        IdentityKind::Node => OwnerKind::Node,
        IdentityKind::Internal => return None,
    };
    Some(Client { client, kind, owner, began, is_clean, is_connected })
}

/// The next change of clients; none ever without a broker.
pub(super) async fn next(watch: Option<&mut ClientWatch>) -> Option<Watched> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}
