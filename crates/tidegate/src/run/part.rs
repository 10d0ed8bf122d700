//! How a service is a part of a node: from its section of the configuration to its end.
//!
//! ```text
//!  Part     check ─▶ Findings      listens, reaches ─▶ for `config check`         one for all nodes, without state
//!             └ start(ports) ─▶ Running     plan(new) ─▶ Exchange ─▶ Changes      one for each node
//!                                  └ stop
//! ```
//!
//! Always true: a part reads its own sections alone, and reaches others by [`Ports`] alone; [`Running::plan`] changes nothing, and an
//! exchange that was planned is right.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, OnceLock, Weak},
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use tidegate_api::ApiError;
use tidegate_bus::Bus;
use tidegate_config::Config;
use tidegate_identity::{access::Access, pki::Credentials};
use tidegate_ingest::Ingest;
use tidegate_link::roles::Links;
use tidegate_message::ListenAddress;
use tidegate_process::health::Health;
use tidegate_server::server::Server;
use tidegate_streams::Streams;
use tidegate_uplinks::Receivers;
use tidegate_web::Tables;
use tidegate_workers::SharedPool;
use tokio_util::sync::CancellationToken;

use super::findings::Findings;

/// A kind of service.
#[async_trait]
pub(super) trait Part: Sync {
    /// Its name in logs.
    fn name(&self) -> &'static str;

    /// Whether it is for those alone whom others know by a certificate: a node that serves MQTT alone is without it.
    fn needs_certificate(&self) -> bool {
        false
    }

    /// Whether the configuration asks for it; of those that need a certificate and begin with a section of their own.
    fn is_configured(&self, _config: &Config) -> bool {
        false
    }

    /// Notes all that is wrong with its sections. Nothing is written, made or opened for others.
    fn check(&self, config: &Config, access: &Access, found: &mut Findings);

    /// The addresses at which it listens.
    fn listens(&self, _config: &Config) -> Vec<Listen> {
        Vec::new()
    }

    /// The servers that it connects to.
    fn reaches(&self, _config: &Config) -> Vec<Reach> {
        Vec::new()
    }

    /// The client identifiers of its sessions that outlast the process.
    fn sessions(&self, _config: &Config) -> Vec<String> {
        Vec::new()
    }

    /// Begins it as `config` says; `None` where there is nothing to exchange or to end.
    ///
    /// # Errors
    /// Why it cannot start, naming the key, the file or the address.
    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError>;
}

/// The service that [`Part::start`] has begun.
pub(super) type Started = Option<Box<dyn Running>>;

/// A service that runs.
#[async_trait]
pub(super) trait Running: Send + Sync {
    /// The way from what runs to `new`, which has not begun.
    ///
    /// # Errors
    /// The problem of `new`, naming the key.
    fn plan<'a>(&'a self, _new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        Ok(Box::new(|_| Ok(())))
    }

    /// All parts have begun: waits until it does what the node is said to be ready for, not for ever.
    async fn ready(&self) {}

    /// Ends it, and waits until it has ended.
    async fn stop(self: Box<Self>);
}

/// Makes what was planned so; it fails where the system gives no thread, and then all else is exchanged.
pub(super) type Exchange<'a> = Box<dyn FnOnce(&mut Changes) -> Result<(), ApiError> + 'a>;

/// The changes of an exchange.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Settings that were exchanged, as `section.key`.
    pub exchanged: Vec<String>,
    /// Settings that are other than those in use until the next start.
    pub need_restart: Vec<String>,
    /// The sections that were begun, ended or begun again, such as `sink.archive`.
    pub sections: Vec<String>,
}

impl Changes {
    /// The names of the sections of that kind that changed.
    pub fn of(&self, section: &str) -> Vec<&str> {
        let names = self.sections.iter().filter_map(|text| text.strip_prefix(section));
        names.filter_map(|rest| rest.strip_prefix('.')).collect()
    }

    pub(super) fn note(&mut self, section: &str, name: &str) {
        let text = format!("{section}.{name}");
        if !self.sections.contains(&text) {
            self.sections.push(text);
        }
    }
}

/// The ports of a node, each there once the part has begun that opens it; parts begin in the order of their list.
pub(super) struct Ports {
    /// Rights, and the audit log.
    pub(super) access: Access,
    pub(super) health: Health,
    /// The programs that look at images.
    pub(super) pool: SharedPool,
    /// How others know this node; none where it serves MQTT alone.
    pub(super) credentials: Option<Credentials>,
    /// The links and calls of others, who know the node by that certificate.
    pub(super) site: Option<Site>,
    /// The MQTT server, for what is more than a client of it. Its part alone ends it.
    pub(super) server: Arc<OnceLock<Weak<Server>>>,
    /// The broker, for all others.
    pub(super) bus: Option<Bus>,
    /// Messages of other nodes come in by them.
    pub(super) receivers: Option<Arc<Receivers>>,
    /// Listeners of ingest, by name.
    pub(super) ingest: Arc<BTreeMap<Arc<str>, Ingest>>,
    /// The fabric that this node is a member of, for operators.
    pub(super) fabric: Option<Arc<dyn tidegate_rpc::Fabric>>,
    /// The rows that the page shows.
    pub(super) tables: Arc<Tables>,
    /// Is cancelled once all parts have begun.
    pub(super) begun: CancellationToken,
    pub(super) stop: CancellationToken,
}

impl Ports {
    /// The MQTT server; none where none is served, or it has ended.
    pub(super) fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }
}

/// The links, calls and streams of those who know a node by its certificate. It serves once all parts have begun.
pub(super) struct Site {
    pub(super) links: Links,
    pub(super) api: tidegate_rpc::Server,
    pub(super) streams: Streams,
    /// The cameras for callers of the API: those of `streams` and, in a fabric, those of others through this node.
    pub(super) cameras: Arc<dyn tidegate_rpc::Cameras>,
}

/// An address at which a part listens.
pub(super) struct Listen {
    /// The key that names it.
    pub(super) key: String,
    pub(super) at: ListenAddress,
    /// Of UDP; else of TCP, or a socket of the file system.
    pub(super) is_of_datagrams: bool,
}

impl Listen {
    pub(super) fn tcp(key: &str, at: impl Into<ListenAddress>) -> Self {
        Self { key: key.to_owned(), at: at.into(), is_of_datagrams: false }
    }

    pub(super) fn udp(key: &str, at: impl Into<ListenAddress>) -> Self {
        Self { is_of_datagrams: true, ..Self::tcp(key, at) }
    }

    /// Its path, of a socket of the file system.
    pub(super) fn path(&self) -> Option<&Path> {
        match &self.at {
            ListenAddress::Unix(path) => Some(path),
            _ => None,
        }
    }
}

/// A server that a part connects to: the key that names it, and a try, whose problem is said in one line.
pub(super) type Reach = (String, BoxFuture<'static, Result<(), String>>);

/// The parts of that kind that are no longer as `planned` says, taken out of `running`.
pub(super) fn gone<S: PartialEq, R>(
    running: &mut BTreeMap<String, (S, R)>,
    planned: &[S],
) -> Vec<(String, (S, R))> {
    running.extract_if(.., |_, (settings, _)| !planned.contains(settings)).collect()
}

/// Drops what waits for its threads when dropped, where nothing else waits for it.
pub(super) async fn dropped(name: &'static str, part: impl Send + 'static) {
    if let Err(error) = tokio::task::spawn_blocking(move || drop(part)).await {
        tracing::error!(%error, part = name, "this part did not stop as it should");
    }
}
