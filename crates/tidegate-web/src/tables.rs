//! The state of the node as tables, for its administrators.

use std::sync::{Arc, OnceLock};

use axum::{
    Extension, Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_api::{ApiError, SESSIONS_MAX, SessionInfo, SessionsPage};
use tidegate_message::{Action, Code, Target};
use tidegate_rpc::{Admin, Failure, Identity};

use crate::Web;

/// Rows of `/v1/clients` where the query names no other number.
const CLIENTS: usize = 100;

/// The services of a node that are shown, in order of their names.
#[derive(Default)]
pub struct Tables {
    /// Its sinks.
    pub sinks: Table<SinkRow>,
    /// Its uplinks.
    pub uplinks: Table<UplinkRow>,
    /// Its flows.
    pub flows: Table<FlowRow>,
}

/// The rows of one kind of service, which says them itself once it has begun; none before, and of a node without it.
pub struct Table<R>(OnceLock<Box<dyn Fn() -> Vec<R> + Send + Sync>>);

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<R> Table<R> {
    /// The rows are those of `service`, for as long as it lives; of a table that has one already they stay.
    pub fn show<S: Send + Sync + 'static>(&self, service: &Arc<S>, rows: fn(&S) -> Vec<R>)
    where
        R: 'static,
    {
        let service = Arc::downgrade(service);
        let rows = move || service.upgrade().map(|service| rows(&service)).unwrap_or_default();
        // A service begins once in a node.
        let _ = self.0.set(Box::new(rows));
    }

    /// The rows now.
    pub fn rows(&self) -> Vec<R> {
        self.0.get().map(|rows| rows()).unwrap_or_default()
    }
}

/// A sink, with its counts since it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SinkRow {
    /// Its name.
    pub name: String,
    /// The kind of its destination.
    pub kind: &'static str,
    /// Whether the destination took what it was last given.
    pub up: bool,
    /// Filters of what it takes.
    pub topics: Vec<String>,
    /// Messages that the destination took.
    pub messages: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Messages that it refused for good.
    pub refused: u64,
    /// Tries that failed as a whole.
    pub failures: u64,
}

/// An uplink, with its counts as it reported them last, at most seconds ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UplinkRow {
    /// Its name.
    pub name: String,
    /// The other node's host and port.
    pub to: String,
    /// Whether it has a link.
    pub up: bool,
    /// Messages sent.
    pub messages: u64,
    /// Bytes of these messages.
    pub message_bytes: u64,
    /// Bytes of the batches that carried them.
    pub bytes: u64,
    /// Critical messages sent.
    pub critical: u64,
    /// Bytes of messages that are read and not acknowledged.
    pub held_bytes: u64,
    /// Messages that cannot be carried.
    pub refused: u64,
}

/// A flow, with its counts since it was compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowRow {
    /// Its name.
    pub name: String,
    /// Messages that came.
    pub messages: u64,
    /// Messages that it passed on as they were.
    pub passed: u64,
    /// Messages that it replaced.
    pub replaced: u64,
    /// Messages that it dropped.
    pub dropped: u64,
    /// Messages that it published.
    pub emitted: u64,
    /// Messages that could not be read.
    pub bad: u64,
    /// Keys that state is kept of now.
    pub keys: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    /// Those behind this client identifier.
    #[serde(default)]
    after: String,
    /// At most so many.
    limit: Option<usize>,
}

pub(crate) async fn clients(
    Extension(admin): Extension<Arc<dyn Admin>>,
    Extension(identity): Extension<Arc<Identity>>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    let Query(Page { after, limit }) = page.map_err(|rejection| {
        let text = "the query may have `after`, a client identifier, and `limit`, a number";
        Failure::invalid(format!("{text}: {}", rejection.body_text()))
    })?;
    let page = SessionsPage { after, limit: rows(limit)?, ..SessionsPage::default() };
    let sessions = admin.sessions(&identity, page).await?;
    let clients: Vec<Value> = sessions.iter().map(client).collect();
    Ok(Json(json!({ "clients": clients })))
}

/// A row of `/v1/clients`. Only where it is of a part of the node that is no longer configured, it says when it ends.
fn client(session: &SessionInfo) -> Value {
    let mut row = json!({
        "client_id": session.client_id,
        "kind": session.owner.kind,
        "user": session.owner.name,
        "connected": session.connected,
        "subscriptions": session.subscriptions,
        "queued": session.queued,
        "queued_bytes": session.queued_bytes,
        "inflight": session.inflight,
    });
    if let Some(seconds) = session.ends_in_s {
        row["ends_in_s"] = seconds.into();
    }
    row
}

/// So many rows are asked for.
///
/// # Errors
/// [`Code::REQUEST_INVALID`] if there may not be as many in one answer.
fn rows(limit: Option<usize>) -> Result<usize, Failure> {
    let limit = limit.unwrap_or(CLIENTS);
    if (1..=SESSIONS_MAX).contains(&limit) {
        return Ok(limit);
    }
    let text = format!(
        "limit={limit} is outside 1 to {SESSIONS_MAX}; ask for fewer clients, and with `after` for those behind them"
    );
    Err(Failure::invalid(text))
}

pub(crate) async fn sinks(
    State(web): State<Web>,
    Extension(identity): Extension<Arc<Identity>>,
) -> Result<Json<Value>, Failure> {
    let sinks = web.table(&identity, |tables| tables.sinks.rows()).await?;
    Ok(Json(json!({ "sinks": sinks })))
}

pub(crate) async fn uplinks(
    State(web): State<Web>,
    Extension(identity): Extension<Arc<Identity>>,
) -> Result<Json<Value>, Failure> {
    let uplinks = web.table(&identity, |tables| tables.uplinks.rows()).await?;
    Ok(Json(json!({ "uplinks": uplinks })))
}

pub(crate) async fn flows(
    State(web): State<Web>,
    Extension(identity): Extension<Arc<Identity>>,
) -> Result<Json<Value>, Failure> {
    let flows = web.table(&identity, |tables| tables.flows.rows()).await?;
    Ok(Json(json!({ "flows": flows })))
}

impl Web {
    /// Rows of a table for an administrator. A service that is being exchanged has them wait.
    async fn table<T: Send + 'static>(
        &self,
        identity: &Identity,
        rows: impl FnOnce(&Tables) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.access.may("api", identity, Action::Admin, Target::Node)?;
        let tables = self.tables.clone();
        tokio::task::spawn_blocking(move || rows(&tables)).await.map_err(|error| {
            ApiError::new(Code::INTERNAL, "a table could not be read").caused_by(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_the_rows_of_its_service_while_that_lives() {
        let table = Table::default();
        assert_eq!(table.rows(), [0; 0]);
        let service = Arc::new(vec![1, 2]);
        table.show(&service, Vec::clone);
        assert_eq!(table.rows(), [1, 2]);
        drop(service);
        assert_eq!(table.rows(), [0; 0]);
    }

    #[test]
    fn client_says_when_the_session_of_a_gone_part_ends() {
        for (ends_in_s, expected) in
            [(None, Value::Null), (Some(0), json!(0)), (Some(71), json!(71))]
        {
            let row = client(&SessionInfo { ends_in_s, ..SessionInfo::default() });
            assert_eq!(row.get("ends_in_s").is_some(), ends_in_s.is_some());
            assert_eq!(row["ends_in_s"], expected);
        }
    }

    #[test]
    fn as_many_clients_are_listed_as_may_be_in_one_answer() {
        for limit in [1, CLIENTS, SESSIONS_MAX] {
            assert_eq!(rows(Some(limit)).ok(), Some(limit));
        }
        assert_eq!(rows(None).ok(), Some(CLIENTS));
        for limit in [0, SESSIONS_MAX + 1, usize::MAX] {
            let refused = rows(Some(limit)).expect_err("it is out of bounds");
            assert_eq!(refused.status(), 400);
            let text = refused.error().message();
            assert!(text.contains(&format!("limit={limit} is outside 1 to 10000")), "{text}");
        }
    }
}
