//! Parts that are exchanged while a node runs: MQTT and what is connected to it, cameras, uplinks, users, rules and the keys of tokens.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use tidegate_api::{ApiError, ReloadedConfiguration};
use tidegate_bus::Bus;
use tidegate_config::{Config, problems::Problems};
use tidegate_identity::{
    access::Access,
    auth::{
        self,
        audit::{Entry, Outcome},
        fetch::{self, Fetcher},
    },
    pki::Credentials,
};
use tidegate_link::link::LinkSettings;
use tidegate_message::Code;
use tidegate_process::health::{Health, Manager};
use tidegate_uplinks::{UplinkReport, UplinkSettings, Uplinks};
use tidegate_web::UplinkRow;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::{
    cameras::OwnCameras,
    certificates::refresh_revocations,
    detect::{self, Detectors},
    link_settings,
    node_name::node_of_paths,
    service::Service,
    this_node, uplinks, users,
};

/// Reads the configuration of this process again, and checks it.
pub type Reload = dyn Fn() -> Result<Config, ApiError> + Send + Sync;

/// Reads the configuration again when asked.
pub(super) struct Reloader {
    pub(super) reload: Arc<Reload>,
    pub(super) asked: mpsc::Receiver<oneshot::Sender<Result<ReloadedConfiguration, ApiError>>>,
}

/// The parts of a node that uplinks need.
pub(super) struct Upwards {
    pub(super) credentials: Credentials,
    pub(super) receivers: Arc<tidegate_uplinks::Receivers>,
    /// Where the bus is put once MQTT is served, for those that cannot wait for it.
    pub(super) bus: Arc<OnceLock<Bus>>,
}

/// The parts of a node that are exchanged by themselves.
pub(super) struct Exchanged {
    pub(super) cameras: OwnCameras,
    pub(super) detectors: Detectors,
}

/// The parts that use access control and are exchanged while the node runs: MQTT, its connections, and the keys of
/// tokens.
pub(super) struct Guarded {
    served: Option<Arc<Served>>,
    reloads: JoinHandle<()>,
    fetches: JoinHandle<()>,
    revocations: JoinHandle<()>,
    departures: JoinHandle<()>,
}

impl Guarded {
    /// Starts MQTT, a task that fetches keys of tokens, and one that reads the configuration again on SIGHUP.
    pub(super) fn start(
        config: &Config,
        reloader: Reloader,
        access: Access,
        upwards: Option<Upwards>,
        others: Option<Exchanged>,
        health: &Health,
        manager: &Arc<Manager>,
    ) -> Result<Self, ApiError> {
        let (fetchers, fetcher) = watch::channel(users::fetcher(config)?);
        let mut hangups = signal(SignalKind::hangup()).map_err(|error| {
            ApiError::new(Code::INTERNAL, "signals cannot be received").caused_by(error)
        })?;
        let planned = uplinks::planned(config)?;
        let served = match config.mqtt.enabled {
            true => {
                let service = Service::start(config, access.clone(), health)?;
                let node: Arc<str> = node_of_paths(config, planned.is_empty())?.into();
                if let Some(Upwards { receivers, bus, .. }) = &upwards {
                    receivers.serve_by(service.bus(), &node);
                    let _ = bus.set(service.bus()); // once for each node
                    service.tell_of_uplinks(receivers);
                }
                let credentials = upwards.map(|upwards| upwards.credentials);
                let served = Served::new(service, node, credentials, link_settings(config));
                served.exchange_uplinks(planned);
                Some(Arc::new(served))
            }
            false => None,
        };
        let serving = served.as_ref().map(Arc::downgrade);
        let withdrawn = serving.clone();
        let withdrawn = move || {
            if let Some(served) = withdrawn.as_ref().and_then(Weak::upgrade) {
                served.service.kick_tokens();
            }
        };
        let fetches = tokio::spawn(fetch::run(fetcher, access.authenticator.clone(), withdrawn));
        let revocations = tokio::spawn(watch_revocations(access.clone(), serving.clone()));
        let departures = tokio::spawn(watch_departures(serving.clone()));
        let manager = manager.clone();
        let others = others.map(Arc::new);
        let reloads = tokio::spawn(async move {
            let Reloader { reload, mut asked } = reloader;
            let mut is_asked = true;
            loop {
                let answer = tokio::select! {
                    hangup = hangups.recv() => match hangup {
                        Some(()) => None,
                        None => break,
                    },
                    answer = asked.recv(), if is_asked => match answer {
                        Some(answer) => Some(answer),
                        None => {
                            is_asked = false;
                            continue;
                        }
                    },
                };
                manager.reloading();
                let (reload, access) = (reload.clone(), access.clone());
                let others = others.clone();
                let serving = serving.clone().and_then(|served| served.upgrade());
                let reloaded = tokio::task::spawn_blocking(move || {
                    refresh_revocations(&access, serving.as_deref().map(|s| &s.service), true);
                    let result = reload().and_then(|new| {
                        exchange(new, serving.as_deref(), others.as_deref(), &access)
                    });
                    let (outcome, rule) = match &result {
                        Ok(_) => (Outcome::Done, String::new()),
                        Err(error) => (Outcome::Failed, tidegate_message::error_chain(error)),
                    };
                    access.audit.tell(|| Entry {
                        what: "reload".to_owned(),
                        rule,
                        ..Entry::of(auth::now().wall, "process", &this_node(), outcome)
                    });
                    result
                });
                let reloaded = match reloaded.await {
                    Ok(Ok((fetcher, reloaded))) => {
                        // No task fetches any more if it cannot be sent: the node stops.
                        let _ = fetchers.send(fetcher);
                        Ok(reloaded)
                    }
                    Ok(Err(error)) => {
                        tell_unread(&error);
                        match problems_of(&error) {
                            Some(problems) => Ok(ReloadedConfiguration {
                                problems: problems.iter().map(ToString::to_string).collect(),
                                ..ReloadedConfiguration::default()
                            }),
                            None => Err(error),
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "the reload failed");
                        Err(ApiError::new(Code::INTERNAL, "the reload failed").caused_by(error))
                    }
                };
                if let Some(answer) = answer {
                    // The asking side may be gone.
                    let _ = answer.send(reloaded);
                }
                manager.ready();
            }
        });
        Ok(Self { served, reloads, fetches, revocations, departures })
    }

    /// MQTT and what is connected to it; none where the node serves none.
    pub(super) fn served(&self) -> Option<&Arc<Served>> {
        self.served.as_ref()
    }

    /// The node's broker; none where no MQTT is served.
    pub(super) fn bus(&self) -> Option<Bus> {
        self.served.as_ref().map(|served| served.service.bus())
    }

    /// Waits until what is published is carried by all uplinks; not for ever, since a node serves without them as well.
    pub(super) async fn uplinks_subscribed(&self) {
        const LONGEST: Duration = Duration::from_secs(10);
        let Some(served) = &self.served else { return };
        let uplinks = served.uplinks.lock().unwrap_or_else(PoisonError::into_inner).subscribed();
        for mut subscribed in uplinks {
            let waited = tokio::time::timeout(LONGEST, subscribed.wait_for(|is| *is)).await;
            if !matches!(waited, Ok(Ok(_))) {
                tracing::warn!("an uplink does not take messages yet");
            }
        }
    }

    pub(super) async fn stop(self) {
        self.reloads.abort();
        self.fetches.abort();
        self.revocations.abort();
        self.departures.abort();
        // The last that holds it waits for its threads; a reload may hold it as well for a moment.
        let stopped = tokio::task::spawn_blocking(move || drop(self.served)).await;
        if let Err(error) = stopped {
            tracing::error!(%error, "the MQTT server did not stop as it should");
        }
    }
}

/// MQTT and the uplinks of what is published.
pub(super) struct Served {
    // In the order in which they end.
    uplinks: Mutex<Uplinks>,
    pub(super) service: Service,
    /// The node's name among those that a message passed.
    node: Arc<str>,
    /// The node's credentials; none where it serves MQTT alone.
    credentials: Option<Credentials>,
    link: LinkSettings,
}

impl Served {
    fn new(
        service: Service,
        node: Arc<str>,
        credentials: Option<Credentials>,
        link: LinkSettings,
    ) -> Self {
        Self { uplinks: Mutex::default(), service, node, credentials, link }
    }

    /// The uplinks, by name, with what they said last.
    pub(super) fn uplinks(&self) -> Vec<UplinkRow> {
        let uplinks = self.uplinks.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(name, to, said): (String, String, UplinkReport)| UplinkRow {
            name,
            to,
            up: said.up,
            messages: said.messages,
            message_bytes: said.message_bytes,
            bytes: said.bytes,
            critical: said.critical,
            held_bytes: said.held_bytes,
            refused: said.refused,
        };
        uplinks.reports().into_iter().map(row).collect()
    }

    /// Runs these uplinks and no others from now on.
    fn exchange_uplinks(&self, planned: Vec<UplinkSettings>) {
        let Some(credentials) = &self.credentials else {
            if !planned.is_empty() {
                tracing::warn!(
                    "uplinks need the node's certificate, and begin with its next start"
                );
            }
            return;
        };
        let mut uplinks = self.uplinks.lock().unwrap_or_else(PoisonError::into_inner);
        let bus = self.service.bus();
        let exchanged = uplinks.exchange(planned, &self.node, &bus, credentials, &self.link);
        for name in exchanged {
            tracing::info!(uplink = name, "uplink started, stopped or restarted");
        }
    }
}

/// How often the revocation lists are looked at: they may be rewritten.
const LISTS_LOOKED_AT: Duration = Duration::from_secs(5);

/// Looks at the revocation lists from time to time.
pub(super) async fn watch_revocations(access: Access, served: Option<Weak<Served>>) {
    let mut ticks = tokio::time::interval(LISTS_LOOKED_AT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (access, served) = (access.clone(), served.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let served = served.and_then(|served| served.upgrade());
            refresh_revocations(&access, served.as_deref().map(|s| &s.service), false);
        });
        if let Err(error) = looked.await {
            tracing::error!(%error, "the revocation lists were not checked");
        }
    }
}

/// Ends the sessions of users that have been gone for long.
async fn watch_departures(served: Option<Weak<Served>>) {
    const LOOKED_AT: Duration = Duration::from_secs(60);
    let mut ticks = tokio::time::interval(LOOKED_AT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(served) = served.as_ref().and_then(Weak::upgrade) else { return };
        let sessions = served.service.sessions_of_parts().await;
        let ended = tokio::task::spawn_blocking(move || {
            served.service.end_departed();
            if let Some(sessions) = sessions {
                served.service.end_sinks(&sessions);
            }
        });
        if let Err(error) = ended.await {
            tracing::error!(%error, "the sessions of users that are gone were not ended");
        }
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
        None => tidegate_message::error_chain(error),
    };
    tracing::error!(%error, "users, rules and the configuration of MQTT stay as they were");
}

/// The mistakes that an error is made of; none if it is of another kind.
fn problems_of(error: &ApiError) -> Option<&Problems> {
    std::error::Error::source(error).and_then(|source| source.downcast_ref())
}

/// Takes from `new` what can be exchanged while the node runs, all of it or nothing.
fn exchange(
    new: Config,
    served: Option<&Served>,
    others: Option<&Exchanged>,
    access: &Access,
) -> Result<(Option<Fetcher>, ReloadedConfiguration), ApiError> {
    let fetcher = users::fetcher(&new)?;
    let planned = uplinks::planned(&new)?;
    let wanted = others.map(|others| others.cameras.planned(&new)).transpose()?;
    let detectors = detect::planned(&new)?;
    if others.is_none() && !(new.cameras.is_empty() && detectors.is_empty()) {
        tracing::warn!(
            "cameras and detectors need the node's certificate, and begin with its next start"
        );
    }
    let mut exchanged = ReloadedConfiguration::default();
    match served {
        Some(served) => {
            let reloaded = served.service.reload(new)?;
            exchanged.exchanged = reloaded.exchanged;
            exchanged.need_restart = reloaded.need_restart;
            served.exchange_uplinks(planned);
        }
        None => {
            let prepared =
                access.authenticator.prepare(users::sources_again(&new, &access.authenticator)?);
            let reloaded =
                access.authenticator.exchange(prepared.map_err(|error| users::unread(&error))?);
            tracing::info!(
                users = reloaded.users,
                users_changed = reloaded.users_changed.join(", "),
                roles = reloaded.roles_rules,
                roles_changed = reloaded.roles_changed,
                tokens_changed = reloaded.tokens_changed,
                "users and rules reloaded"
            );
        }
    }
    if let (Some(others), Some(wanted)) = (others, wanted) {
        for (name, section) in others.cameras.exchange(wanted) {
            tracing::info!(camera = %name, "camera started, stopped or restarted");
            let keys = [format!("camera.{section}"), format!("log.camera.{name}")];
            let is_of = |text: &String| {
                keys.iter().any(|key| {
                    text.strip_prefix(key)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                })
            };
            // A log of its own begins with the camera.
            exchanged.need_restart.retain(|text| !is_of(text));
            if !exchanged.exchanged.iter().any(is_of) {
                exchanged.exchanged.push(keys[0].clone());
            }
        }
        for name in others.detectors.exchange(detectors) {
            tracing::info!(detector = name, "detector started, stopped or restarted");
        }
    }
    Ok((fetcher, exchanged))
}
