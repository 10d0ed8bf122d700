//! Sessions of MQTT clients, as an administrator sees them.

use tidegate_message::Code;

use crate::{ApiError, proto};

/// Most sessions in one answer.
pub const SESSIONS_MAX: usize = 10_000;
/// Sessions in one answer, if nothing is said.
const SESSIONS_USUAL: usize = 1_000;

/// Whose a session is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionOwner {
    /// How the owner proved who it is: `anonymous`, `user`, `certificate`, `node`, or `internal` for a part of the node.
    pub kind: String,
    /// User name, or the name in the certificate; empty for nobody in particular.
    pub name: String,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The client identifier.
    pub client_id: String,
    /// Whose it is.
    pub owner: SessionOwner,
    /// Whether its client is connected.
    pub connected: bool,
    /// How many subscriptions it has.
    pub subscriptions: u64,
    /// Messages that wait.
    pub queued: u64,
    /// Bytes of those in memory.
    pub queued_bytes: u64,
    /// Messages that were sent and not acknowledged.
    pub inflight: u64,
}

/// Which sessions are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionsPage {
    /// Those behind this client identifier; from the first on if it is empty.
    pub after: String,
    /// At most so many, 1 to [`SESSIONS_MAX`]; 0 means 1000.
    pub limit: usize,
    /// Those of this owner alone; of all if none.
    pub owner: Option<SessionOwner>,
}

/// Which sessions are to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndSessions {
    /// Those of these clients.
    pub client_ids: Vec<String>,
    /// And all of this owner.
    pub owner: Option<SessionOwner>,
}

impl From<SessionOwner> for proto::SessionOwner {
    fn from(SessionOwner { kind, name }: SessionOwner) -> Self {
        Self { kind, name }
    }
}

impl From<proto::SessionOwner> for SessionOwner {
    fn from(proto::SessionOwner { kind, name }: proto::SessionOwner) -> Self {
        Self { kind, name }
    }
}

impl From<SessionInfo> for proto::Session {
    fn from(session: SessionInfo) -> Self {
        Self {
            client_id: session.client_id,
            owner: Some(session.owner.into()),
            connected: session.connected,
            subscriptions: session.subscriptions,
            queued: session.queued,
            queued_bytes: session.queued_bytes,
            inflight: session.inflight,
        }
    }
}

impl TryFrom<proto::Session> for SessionInfo {
    type Error = ApiError;

    fn try_from(session: proto::Session) -> Result<Self, ApiError> {
        let lacking = || ApiError::new(Code::LINK_PROTOCOL, "a session in the answer has no owner");
        Ok(Self {
            client_id: session.client_id,
            owner: session.owner.ok_or_else(lacking)?.into(),
            connected: session.connected,
            subscriptions: session.subscriptions,
            queued: session.queued,
            queued_bytes: session.queued_bytes,
            inflight: session.inflight,
        })
    }
}

impl From<SessionsPage> for proto::ListSessionsRequest {
    fn from(page: SessionsPage) -> Self {
        let limit = u32::try_from(page.limit).unwrap_or(u32::MAX);
        Self { after: page.after, limit, owner: page.owner.map(Into::into) }
    }
}

impl From<proto::ListSessionsRequest> for SessionsPage {
    fn from(request: proto::ListSessionsRequest) -> Self {
        let limit = match request.limit {
            0 => SESSIONS_USUAL,
            limit => (limit as usize).min(SESSIONS_MAX),
        };
        Self { after: request.after, limit, owner: request.owner.map(Into::into) }
    }
}

impl From<EndSessions> for proto::EndSessionsRequest {
    fn from(end: EndSessions) -> Self {
        Self { client_ids: end.client_ids, owner: end.owner.map(Into::into) }
    }
}

impl From<proto::EndSessionsRequest> for EndSessions {
    fn from(request: proto::EndSessionsRequest) -> Self {
        Self { client_ids: request.client_ids, owner: request.owner.map(Into::into) }
    }
}
