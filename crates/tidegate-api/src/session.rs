//! Sessions of MQTT clients, as an administrator sees them.

use prost::Message as _;
use tidegate_message::Code;

use crate::{ApiError, proto};

/// Most sessions in one answer.
pub const SESSIONS_MAX: usize = 10_000;
/// Bytes of the sessions in one answer, beyond the first: client identifiers and user names may have 65,535 bytes each, and clients of
/// gRPC accept 4 MiB by default.
pub const SESSIONS_BYTES_MAX: usize = 2 << 20;
/// Sessions in one answer, if nothing is said.
const SESSIONS_USUAL: usize = 1_000;

/// The owner of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionOwner {
    /// How the owner proved who it is: `anonymous`, `user`, `certificate`, `node`, or `internal` for a part of the node.
    pub kind: String,
    /// User name, or the name in the certificate; empty for an anonymous client.
    pub name: String,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionInfo {
    /// The client identifier.
    pub client_id: String,
    /// Its owner.
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
    /// Of a part of the node that is no longer configured: in how many seconds it ends.
    pub ends_in_s: Option<u64>,
}

/// Which sessions are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionsPage {
    /// Those behind this client identifier; from the first on if it is empty.
    pub after: String,
    /// At most so many, 1 to [`SESSIONS_MAX`], and about [`SESSIONS_BYTES_MAX`]; 0 means 1000.
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
            ends_in_s: session.ends_in_s,
        }
    }
}

impl From<Vec<SessionInfo>> for proto::ListSessionsResponse {
    /// As many of them as an answer holds, one at the least.
    fn from(sessions: Vec<SessionInfo>) -> Self {
        let mut bytes = 0;
        let fits = |session: &proto::Session| {
            let is_first = bytes == 0;
            // A list adds tag and length to each member.
            bytes += session.encoded_len() + 8;
            is_first || bytes <= SESSIONS_BYTES_MAX
        };
        Self { sessions: sessions.into_iter().map(Into::into).take_while(fits).collect() }
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
            ends_in_s: session.ends_in_s,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_bounded_by_its_bytes_and_has_one_session_at_the_least() {
        for (bytes, count, expected) in [
            (5, 10_000, 10_000..=10_000),
            (65_535, 1_000, 15..=16),
            (3 << 20, 3, 1..=1),
            (0, 0, 0..=0),
        ] {
            let name = "n".repeat(bytes);
            let session = SessionInfo {
                client_id: name.clone(),
                owner: SessionOwner { kind: "user".to_owned(), name },
                connected: true,
                subscriptions: 1,
                queued: u64::MAX,
                queued_bytes: u64::MAX,
                inflight: 1,
                ends_in_s: None,
            };
            let answer = proto::ListSessionsResponse::from(vec![session; count]);
            assert!(
                expected.contains(&answer.sessions.len()),
                "{bytes}: {}",
                answer.sessions.len()
            );
            assert!(bytes > 1 << 20 || answer.encoded_len() <= SESSIONS_BYTES_MAX, "{bytes}");
        }
    }
}
