//! A node: its ports, and the parts that run, which are exchanged together while it runs.
//!
//! ```text
//!  start   PARTS ─▶ each begins, and opens its ports for those behind it
//!  reload  read and check ─▶ each plans ─▶ all exchange, or none
//!  stop    calls and links end ─▶ logs of frames are on the disk ─▶ parts end, the last first
//! ```

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tidegate_api::{ApiError, ReloadedConfiguration};
use tidegate_bus::Bus;
use tidegate_camera::frame_log;
use tidegate_config::{Config, Difference, problems::Problems};
use tidegate_identity::{
    access::Access,
    auth::{
        self,
        audit::{Entry, Outcome},
    },
    pki::Credentials,
};
use tidegate_ingest::Ingest;
use tidegate_message::{Code, error_chain};
use tidegate_process::{
    health::{Health, Manager},
    step,
};
use tidegate_rpc::Administration;
use tidegate_server::server::Server;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{
    PARTS,
    certificates::refresh_revocations,
    part::{Changes, Part, Ports, Running, Site},
    this_node, workers,
};

/// Reads the configuration of this process again, and checks it.
pub type Reload = dyn Fn() -> Result<Config, ApiError> + Send + Sync;

/// A node whose parts run.
pub struct Node {
    ports: Ports,
    /// Those of [`PARTS`] that have begun, the last first, as they end when dropped, too.
    running: Vec<(&'static dyn Part, Box<dyn Running>)>,
    /// The settings that are fixed from start to stop.
    started: Config,
    /// Those that are in use; who holds it exchanges.
    config: Mutex<Config>,
}

impl Node {
    /// Begins what `config` says for those whom `access` lets in; without `credentials` MQTT alone, and what belongs to it.
    ///
    /// # Errors
    /// Why it cannot start, naming the key, the file or the address; what had begun has ended.
    pub async fn start(
        config: &Config,
        access: Access,
        credentials: Option<Credentials>,
        health: Health,
        stop: CancellationToken,
    ) -> Result<Self, ApiError> {
        let ports = Ports {
            access,
            health,
            pool: workers::pool(config),
            credentials,
            site: None,
            server: Arc::default(),
            bus: None,
            receivers: None,
            ingest: Arc::default(),
            fabric: None,
            tables: Arc::default(),
            begun: CancellationToken::new(),
            stop: stop.child_token(),
        };
        let (started, config) = (config.clone(), Mutex::new(config.clone()));
        let mut node = Self { ports, running: Vec::new(), started, config };
        if let Err(error) = node.begin().await {
            node.stop().await;
            return Err(error);
        }
        Ok(node)
    }

    async fn begin(&mut self) -> Result<(), ApiError> {
        for part in PARTS {
            if !self.has_place_for(*part) {
                continue;
            }
            step::begin(format!("starting {}", part.name()));
            if let Some(running) = part.start(&self.started, &mut self.ports).await? {
                self.running.insert(0, (*part, running));
            }
        }
        self.configure_parts(&self.started);
        step::begin("waiting for the parts of the node");
        // In the order of the list: users that are gone are marked before a wait for uplinks.
        for (_, running) in self.running.iter().rev() {
            running.ready().await;
        }
        Ok(())
    }

    fn has_place_for(&self, part: &dyn Part) -> bool {
        self.ports.credentials.is_some() || !part.needs_certificate()
    }

    /// Sessions that outlast the process are those of `config`, and no others.
    fn configure_parts(&self, config: &Config) {
        if let Some(server) = self.ports.server() {
            server.configure_parts(PARTS.iter().flat_map(|part| part.sessions(config)).collect());
        }
    }

    /// Where the API and links of other nodes are served; none where MQTT alone is.
    pub(super) fn listens(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.ports.site.as_ref().map(|site| (site.api.address(), site.links.local_address()))
    }

    /// The broker, for services; none where no MQTT is served.
    pub fn bus(&self) -> Option<&Bus> {
        self.ports.bus.as_ref()
    }

    /// The MQTT server; none where none is served.
    pub fn server(&self) -> Option<Arc<Server>> {
        self.ports.server()
    }

    /// The way in other than MQTT of that name, or `None`.
    pub fn ingest(&self, name: &str) -> Option<&Ingest> {
        self.ports.ingest.get(name)
    }

    /// Serves until `stop`, then ends. Reads the configuration again by `reload` on a hangup and for operators.
    ///
    /// # Errors
    /// If the API fails as a whole.
    pub(super) async fn run(
        mut self,
        reload: Arc<Reload>,
        hangups: Signal,
        manager: &Manager,
        stop: CancellationToken,
    ) -> Result<(), ApiError> {
        let (reloads, asked) = mpsc::channel(1);
        let site = self.ports.site.take();
        let Ports { access, bus, fabric, .. } = &self.ports;
        let (access, bus, fabric) = (access.clone(), bus.clone(), fabric.clone());
        let admin = Administration { access, bus, reloads: Some(reloads), fabric };
        let node = Arc::new(self);
        node.ports.begun.cancel();
        // An API that fails ends the node: its service manager hears of it, and starts another one.
        let ends = stop.child_token();
        step::begin("ending the calls of applications and the links of cameras");
        let (served, ()) = tokio::join!(
            serve(site, admin, ends.clone()),
            node.reload_when_asked(reload, hangups, asked, manager, ends)
        );
        node.ports.stop.cancel();
        step::begin("writing the logs of frames to the disk");
        finish_logs().await;
        match Arc::into_inner(node) {
            Some(node) => node.stop().await,
            None => tracing::error!("a reload outlives the node; this is a bug"),
        }
        step::begin("ending threads");
        served
    }

    /// Ends all parts, the last first.
    pub async fn stop(self) {
        let Self { ports, running, .. } = self;
        ports.stop.cancel();
        // They hold on to what ends with its part.
        drop(ports);
        for (part, running) in running {
            step::begin(format!("ending {}", part.name()));
            running.stop().await;
        }
    }

    /// Reads the configuration again, whenever a hangup comes or an operator asks for it, until `stop`.
    async fn reload_when_asked(
        self: &Arc<Self>,
        reload: Arc<Reload>,
        mut hangups: Signal,
        mut asked: mpsc::Receiver<oneshot::Sender<Result<ReloadedConfiguration, ApiError>>>,
        manager: &Manager,
        stop: CancellationToken,
    ) {
        let mut is_asked = true;
        loop {
            let answer = tokio::select! {
                () = stop.cancelled() => return,
                hangup = hangups.recv() => match hangup {
                    Some(()) => None,
                    None => return,
                },
                answer = asked.recv(), if is_asked => {
                    is_asked = answer.is_some();
                    let Some(answer) = answer else { continue };
                    Some(answer)
                }
            };
            manager.reloading();
            let (node, reload) = (self.clone(), reload.clone());
            let reloaded = tokio::task::spawn_blocking(move || node.reload_from(&*reload)).await;
            let reloaded = reloaded.unwrap_or_else(|error| {
                tracing::error!(%error, "the reload failed");
                Err(ApiError::new(Code::INTERNAL, "the reload failed").caused_by(error))
            });
            if let Some(answer) = answer {
                // The asking side may be gone.
                let _ = answer.send(reloaded);
            }
            manager.ready();
        }
    }

    fn reload_from(&self, reload: &Reload) -> Result<ReloadedConfiguration, ApiError> {
        let access = &self.ports.access;
        refresh_revocations(access, self.ports.server().as_deref(), true);
        let result = reload().and_then(|new| self.reload(new));
        let (outcome, rule) = match &result {
            Ok(_) => (Outcome::Done, String::new()),
            Err(error) => (Outcome::Failed, error_chain(error)),
        };
        access.audit.tell(|| Entry {
            what: "reload".to_owned(),
            rule,
            ..Entry::of(auth::now().wall, "process", &this_node(), outcome)
        });
        match result {
            Ok(Changes { exchanged, need_restart, .. }) => Ok(ReloadedConfiguration {
                exchanged,
                need_restart,
                ..ReloadedConfiguration::default()
            }),
            Err(error) => {
                tell_unread(&error);
                let Some(problems) = problems_of(&error) else { return Err(error) };
                Ok(ReloadedConfiguration {
                    problems: problems.iter().map(ToString::to_string).collect(),
                    ..ReloadedConfiguration::default()
                })
            }
        }
    }

    /// Goes by `new` from now on, in all that can be exchanged while the node runs, or in nothing. Users whose
    /// secret changed, clients with a token if other tokens are accepted now, and anonymous clients where that is no longer
    /// enough, are disconnected; clients with a certificate stay. Sessions keep the settings with which they connected. Settings that
    /// cannot be exchanged stay as they were, and are named. It waits for parts that end; not for an asynchronous task.
    ///
    /// # Errors
    /// The problem of `new`: then nothing has changed. [`Code::INTERNAL`] if the system gives a part no thread: then all
    /// but that part has.
    pub fn reload(&self, new: Config) -> Result<Changes, ApiError> {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let planned: Result<Vec<_>, _> =
            self.running.iter().rev().map(|(_, running)| running.plan(&new)).collect();
        let planned = planned?;
        // All of it is right.
        for part in PARTS {
            if !self.has_place_for(*part) && part.is_configured(&new) {
                let part = part.name();
                tracing::warn!(
                    "{part}: they need the node's certificate, and begin with its next start"
                );
            }
        }
        let settings_of = |differences: Vec<Difference>, is_fixed: bool| {
            let some = differences.into_iter().filter(|it| it.is_fixed == is_fixed);
            some.map(|it| it.setting).collect()
        };
        let mut changes = Changes {
            exchanged: settings_of(config.differences(&new), false),
            need_restart: settings_of(self.started.differences(&new), true),
            sections: Vec::new(),
        };
        let mut failed = Ok(());
        for exchange in planned {
            failed = failed.and(exchange(&mut changes));
        }
        self.configure_parts(&new);
        let (exchanged, sections) = (changes.exchanged.join(", "), changes.sections.join(", "));
        match self.ports.bus {
            Some(_) => tracing::info!(exchanged, sections, "configuration of MQTT reloaded"),
            None => tracing::info!(exchanged, sections, "configuration reloaded"),
        }
        for key in &changes.need_restart {
            tracing::warn!(%key, "this setting takes effect at the next start");
        }
        *config = new;
        failed.map(|()| changes)
    }
}

/// Hangups from now on: before, one ends the process.
pub(super) fn hangups() -> Result<Signal, ApiError> {
    signal(SignalKind::hangup()).map_err(|error| {
        ApiError::new(Code::INTERNAL, "signals cannot be received").caused_by(error)
    })
}

/// Serves links, streams and calls until `stop`, which it cancels where calls fail as a whole; only waits for it where there are none.
async fn serve(
    site: Option<Site>,
    admin: Administration,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let Some(Site { links, api, streams, cameras }) = site else {
        stop.cancelled().await;
        return Ok(());
    };
    let calls = async {
        let served = api.serve(cameras, Arc::new(admin), stop.clone()).await;
        stop.cancel();
        served
    };
    let (served, (), ()) = tokio::join!(calls, links.run(stop.clone()), streams.run(stop.clone()),);
    served.map_err(|error| {
        ApiError::new(Code::CONFIG_INVALID, "the API cannot be served")
            .caused_by(error_chain(&error))
    })
}

/// Has all logs synced, which is waiting for the disk.
pub(super) async fn finish_logs() {
    if let Err(error) = tokio::task::spawn_blocking(frame_log::finish).await {
        tracing::error!(%error, "the logs were not closed as they should");
    }
}

/// Says why nothing was exchanged: a line for each mistake, in the words of `tidegate config check`.
fn tell_unread(error: &ApiError) {
    let error = match problems_of(error) {
        Some(problems) => {
            for problem in problems.iter() {
                tracing::error!("{problem}");
            }
            error.message().to_owned()
        }
        None => error_chain(error),
    };
    tracing::error!(%error, "users, rules and the configuration of MQTT stay as they were");
}

/// The mistakes that an error is made of; none if it is of another kind.
fn problems_of(error: &ApiError) -> Option<&Problems> {
    std::error::Error::source(error).and_then(|source| source.downcast_ref())
}

#[cfg(test)]
mod tests;
