//! The acts of operators on a node: the sessions of its MQTT clients, its configuration, and its fabric.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use tidegate_api::{
    ApiError, EndSessions, ReloadedConfiguration, SessionInfo, SessionOwner, SessionsPage,
};
use tidegate_bus::{Bus, SessionReport};
use tidegate_identity::{access::Access, auth::audit::Outcome};
use tidegate_message::{Action, Code, Identity as Owned, Target};
use tidegate_process::clock;
use tokio::sync::{mpsc, oneshot};

use crate::{Fabric, FabricDesk, Identity};

/// How long a request to reload may wait: less than clients give a call.
const RELOAD_MAX: Duration = Duration::from_secs(20);

/// Asks for the configuration to be read again: the result is sent to the caller. One waits while one is read, and others
/// are refused.
pub type Reloads = mpsc::Sender<oneshot::Sender<Result<ReloadedConfiguration, ApiError>>>;

/// The acts of operators on a node.
///
/// Each method is given the caller and refuses a forbidden action with
/// [`Code::ACTION_DENIED`](tidegate_message::Code::ACTION_DENIED).
#[async_trait]
pub trait Admin: Send + Sync + 'static {
    /// Sessions of MQTT clients, in order of their clients' identifiers; `LIMIT_REACHED` where no MQTT is served.
    async fn sessions(
        &self,
        identity: &Identity,
        page: SessionsPage,
    ) -> Result<Vec<SessionInfo>, ApiError>;

    /// Ends sessions of MQTT clients; how many there were.
    async fn end_sessions(&self, identity: &Identity, which: EndSessions) -> Result<u64, ApiError>;

    /// Reads the configuration again and takes all of it, or nothing.
    async fn reload_configuration(
        &self,
        identity: &Identity,
    ) -> Result<ReloadedConfiguration, ApiError>;

    /// The fabric that the node is a member of; `FABRIC_OFF` where it is in none.
    fn fabric(&self, identity: &Arc<Identity>) -> Result<FabricDesk, ApiError>;
}

/// The acts on a node that has a bus, once it has, and a configuration.
pub struct Administration {
    /// Rights, and the audit log.
    pub access: Access,
    /// The node's broker; none where it serves no MQTT.
    pub bus: Option<Bus>,
    /// Requests to read the configuration again; none where that is not possible.
    pub reloads: Option<Reloads>,
    /// The fabric that it is a member of; none if it is in none.
    pub fabric: Option<Arc<dyn Fabric>>,
}

impl Administration {
    fn broker(&self) -> Result<&Bus, ApiError> {
        self.bus.as_ref().ok_or_else(|| {
            let text = "this node serves no MQTT: it has no sessions";
            ApiError::new(Code::LIMIT_REACHED, text)
        })
    }
}

#[async_trait]
impl Admin for Administration {
    async fn sessions(
        &self,
        identity: &Identity,
        page: SessionsPage,
    ) -> Result<Vec<SessionInfo>, ApiError> {
        self.access.may("api", identity, Action::Admin, Target::Node)?;
        let broker = self.broker()?;
        let owner = page.owner;
        let is_meant =
            move |_: &str, who: &Owned| owner.as_ref().is_none_or(|owner| is_owned_by(who, owner));
        let sessions = broker.sessions(&page.after, page.limit, is_meant).await;
        let info = |report: SessionReport| SessionInfo {
            client_id: report.client_id.to_string(),
            owner: SessionOwner {
                kind: report.kind.word().to_owned(),
                name: report.user.to_string(),
            },
            connected: report.connected,
            subscriptions: report.subscriptions as u64,
            queued: report.queued as u64,
            queued_bytes: report.queued_bytes,
            inflight: report.inflight as u64,
            ends_in_s: report.grace_ends.map(|at| at.since(clock::now()).as_secs()),
        };
        Ok(sessions.into_iter().map(info).collect())
    }

    async fn reload_configuration(
        &self,
        identity: &Identity,
    ) -> Result<ReloadedConfiguration, ApiError> {
        self.access.may("api", identity, Action::Admin, Target::Node)?;
        let busy = |text: &str| ApiError::new(Code::LIMIT_REACHED, text);
        let reloads = self.reloads.as_ref().ok_or_else(|| {
            ApiError::new(Code::CONFIG_INVALID, "this node has no configuration to read again")
        })?;
        let (answer, answered) = oneshot::channel();
        let asked = reloads.try_send(answer);
        asked.map_err(|_| busy("the configuration is being read already; try again later"))?;
        let reloaded = tokio::time::timeout(RELOAD_MAX, answered).await;
        let late =
            || busy("the configuration is still being read; the node's log says what comes of it");
        let reloaded = reloaded.map_err(|_| late())?;
        reloaded.map_err(|_| busy("the node stops"))?
    }

    fn fabric(&self, identity: &Arc<Identity>) -> Result<FabricDesk, ApiError> {
        FabricDesk::open(&self.access, identity, self.fabric.as_ref())
    }

    async fn end_sessions(&self, identity: &Identity, which: EndSessions) -> Result<u64, ApiError> {
        self.access.may("api", identity, Action::Admin, Target::Node)?;
        let broker = self.broker()?;
        let clients: HashSet<String> = which.client_ids.iter().cloned().collect();
        let owner = which.owner.clone();
        let is_meant = move |client: &str, who: &Owned| {
            clients.contains(client) || owner.as_ref().is_some_and(|owner| is_owned_by(who, owner))
        };
        let (bus, access, identity) = (broker.clone(), self.access.clone(), identity.clone());
        // To its end and into the audit log, also where the caller hangs up meanwhile.
        let work = tokio::spawn(async move {
            let ended = bus.end_sessions(is_meant).await as u64;
            let owner = which.owner.map(|owner| format!("all of {} {}", owner.kind, owner.name));
            let what: Vec<String> = which.client_ids.into_iter().chain(owner).collect();
            let rule = format!("{ended} ended: {}", what.join(", "));
            access.tell("api", &identity, Outcome::Done, "end-sessions", Target::Node, &rule);
            ended
        });
        work.await.map_err(|error| ApiError::new(Code::INTERNAL, error.to_string()))
    }
}

/// Whether a session of `who` is meant by `owner`.
fn is_owned_by(who: &Owned, owner: &SessionOwner) -> bool {
    who.kind.word() == owner.kind && *who.name == *owner.name
}
