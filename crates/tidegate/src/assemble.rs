//! From a checked configuration to running nodes.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tidegate_client::{ApiError, ReloadedConfiguration};
use tidegate_frame::{
    controller::{ControllerConfig, LinkModel, MezPiConfig},
    coordinator::CoordinatorConfig,
    knob::FrameLimits,
    privacy::{Cover, Mask, Regions},
    transfer::TransferConfig,
};
use tidegate_log::{Durability, LogConfig};
use tidegate_message::{CameraName, Code, Identity, IdentityKind};
use tidegate_wire::TransferHints;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    access::Access,
    auth::{
        self,
        audit::{Audit, AuditConfig, Entry, Outcome},
        fetch::{self, Fetcher},
    },
    camera::{self, CameraOptions, DialOptions, Privacy},
    clock,
    config::{Config, ENTRY_META_BYTES_MAX, problems::Problems},
    enrol::{Enrolment, Invitations},
    frame_log::{self, FrameLogConfig, Place},
    health::{Condition, Health, Manager, Watch},
    link::LinkConfig,
    mqtt,
    node::{Node, NodeOptions},
    pki::{self, Credentials, Kind, PkiError, Revocations, revocation::RevocationError},
    source::{self, SourceSpec},
    step,
    uplink::{self, UplinkSettings, Uplinks},
};

/// Settings of node links.
pub fn link_config(config: &Config) -> LinkConfig {
    LinkConfig {
        queue_allowed: config.link.queue_allowed,
        idle_timeout: config.link.idle_timeout,
        // Three signs of life within the time after which a silent peer counts as gone.
        keep_alive: (config.link.idle_timeout / 3).min(Duration::from_secs(1)),
        connect_timeout: config.link.connect_timeout,
        quic_head_start: config.link.quic_head_start,
        tcp_congestion: config.link.tcp_congestion.clone(),
        // Two for each of a camera's transfers: one on the way and the next.
        frames_max: 128,
        ..LinkConfig::default()
    }
}

/// Where the logs of this node are. Keys that cannot be had leave them in memory: nothing is written in clear text that is to be
/// sealed, and a node delivers nevertheless.
fn place(config: &Config, durability: Durability) -> Place {
    if durability == Durability::Memory {
        return Place::Memory;
    }
    match frame_log::node_keys(&config.log) {
        Ok(keys) => Place::Files {
            data_dir: config.node.data_dir.clone(),
            durability,
            keys: keys.map(Arc::new),
        },
        Err(error) => {
            let (code, error) = (error.code(), crate::error_chain(&error));
            tracing::error!(%code, error, "frames are kept in memory only");
            Place::Memory
        }
    }
}

/// What is kept of the camera called `name`.
fn camera_log(config: &Config, name: &CameraName) -> FrameLogConfig {
    let own = config.log_cameras.get(name.as_str());
    let bytes = own.and_then(|own| own.bytes).unwrap_or(config.log.camera_bytes);
    let age = own.and_then(|own| own.age).unwrap_or(config.log.camera_age);
    let durability = own.and_then(|own| own.durability).unwrap_or(config.log.durability);
    FrameLogConfig {
        size: log_config(bytes.0, config.frames.frame_bytes_max.0),
        age: (!age.is_zero()).then_some(age),
        place: place(config, durability),
    }
}

/// A log of at most `bytes_max` bytes whose segments hold the largest frame that is accepted.
fn log_config(bytes_max: u64, frame_bytes_max: u64) -> LogConfig {
    let usual = LogConfig::bounded(bytes_max);
    let segment_bytes = usual.segment_bytes.max(frame_bytes_max + ENTRY_META_BYTES_MAX);
    LogConfig { segment_bytes, ..usual }
}

/// What a camera called `name` is made of.
pub fn camera_options(config: &Config, name: CameraName, source: String) -> CameraOptions {
    CameraOptions {
        log: camera_log(config, &name),
        name,
        size: None,
        frames_per_second: 0.0,
        source,
        limits: limits(config),
        privacy: privacy(config),
        health: Health::default(),
        future_max: config.frames.future_tolerance,
        tables: config.frames.tables_dir.clone(),
        transfer: transfer_config(config),
    }
}

/// What of the cameras' frames nobody is to see.
fn privacy(config: &Config) -> Privacy {
    let section = &config.privacy;
    let masks = |regions: &Regions, cover| -> Vec<Mask> {
        regions.0.iter().map(|region| Mask { region: *region, cover }).collect()
    };
    let masks = [masks(&section.blur, Cover::Blur), masks(&section.fill, Cover::Fill)].concat();
    let found = section.detector().expect("the configuration was checked");
    Privacy {
        masks: masks.into(),
        found: found.map(|spec| (spec, section.detected)),
        originals: section.originals,
    }
}

fn transfer_config(config: &Config) -> TransferConfig {
    let section = &config.mez_pi;
    let mez_pi = MezPiConfig {
        model: LinkModel {
            slope_ms_per_byte: section.slope_ms_per_megabyte / 1e6,
            intercept_ms: section.intercept_ms,
            ..LinkModel::paper()
        },
        k1_bytes_per_ms: section.k1_bytes_per_ms,
        k2_bytes_per_ms_second: section.k2_bytes_per_ms_second,
        threshold: section.threshold,
        interval: section.interval,
    };
    let controllers = ControllerConfig { mez_pi, ..ControllerConfig::default() };
    TransferConfig { controllers, ..TransferConfig::default() }
}

fn limits(config: &Config) -> FrameLimits {
    FrameLimits {
        bytes_max: usize::try_from(config.frames.frame_bytes_max.0).unwrap_or(usize::MAX),
        pixels_max: config.frames.frame_pixels_max,
    }
}

/// The certificate called `name`, with its key.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the file and the command that makes it.
pub(crate) fn credentials(
    config: &Config,
    kind: Kind,
    name: &str,
) -> Result<Credentials, ApiError> {
    let folder = config.pki_dir();
    pki::load(&folder, name).map_err(|error| {
        let key = if kind == Kind::Node { "node.name: " } else { "" };
        let text = format!("{key}no usable certificate for the {kind} {name}");
        let way_out = match &error {
            PkiError::Missing { .. } => format!("; {}", how_to_make(config, kind, name)),
            _ => String::new(),
        };
        ApiError::new(Code::CONFIG_INVALID, text + &way_out).caused_by(crate::error_chain(&error))
    })
}

/// What makes that certificate, for people to type.
pub(crate) fn how_to_make(config: &Config, kind: Kind, name: &str) -> String {
    let init = config.command(&format!("init --{kind} {name}"));
    let kinds = if kind == Kind::Camera { String::new() } else { format!(" --kind {kind}") };
    format!(
        "`{init}` makes it on the machine of the site's authority; on another one `tidegate invite {name}{kinds}` there and `tidegate join` here"
    )
}

/// Runs an edge node until `stop`; says on the standard error where it listens. On SIGHUP it takes from `reload` what can be
/// exchanged while it runs.
///
/// # Errors
/// What keeps it from running, with its code.
pub async fn node(
    config: &Config,
    reload: Arc<Reload>,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    step::begin("reading certificates, users and rules");
    warn_if_clock_is_unset();
    let frames = &config.frames;
    let credentials = credentials(config, Kind::Node, config.node.name.as_str())?;
    let access = access(config, credentials.revocations().clone())?;
    let uplinks = Arc::new(uplink::Receivers::new(config.link.uplink_bytes_max.0));
    // One waits while one is read.
    let (reloads, asked) = mpsc::channel(1);
    let reload = Reloader { reload, asked };
    let upwards = Upwards { credentials: credentials.clone(), receivers: uplinks.clone() };
    let options = NodeOptions {
        api_listen: config.node.api_listen,
        link_listen: config.link.listen,
        credentials,
        link: link_config(config),
        stream_log: log_config(config.log.stream_bytes.0, frames.frame_bytes_max.0).into(),
        // Name, size and rate of a hosted camera come with its registration.
        hosted: camera_options(config, config.node.name.clone(), String::new()),
        hints: TransferHints {
            detector: frames.detector.to_string(),
            detector_input: frames.detector_input.map(|size| size.to_string()).unwrap_or_default(),
            scene: frames.scene.as_ref().map(CameraName::to_string).unwrap_or_default(),
            table: String::new(),
        },
        medium: config.link.shared_medium.then(|| CoordinatorConfig {
            sensors: config.link.sensor_share,
            ..CoordinatorConfig::default()
        }),
        access: access.clone(),
        uplinks: uplinks.clone(),
        reloads: Some(reloads),
    };
    let failed = |error: crate::node::NodeError| {
        let code = error.code();
        ApiError::new(code, "the node cannot run").caused_by(crate::error_chain(&error))
    };
    let health = Health::default();
    step::begin("opening listeners");
    let watch = watch(config, &health, &stop).await?;
    let node = Node::bind(options).await.map_err(failed)?;
    step::begin("starting MQTT, flows, sinks, ways in and uplinks");
    let manager = watch.manager();
    let guarded = Guarded::start(config, reload, access, Some(upwards), &health, manager)?;
    let name = config.node.name.clone();
    let _valid = AbortOnDropHandle::new(tokio::spawn(watch_certificate(
        health.condition("certificate"),
        config.clone(),
        Kind::Node,
        name,
    )));
    let _enrolment = match config.node.enrol_listen {
        Some(address) => Some(enrol(config, address).await?),
        None => None,
    };
    guarded.uplinks_subscribed().await;
    manager.ready();
    tracing::info!(api = %node.api_address(), link = %node.link_address(), "node ready");
    step::begin("ending the calls of applications and the links of cameras");
    let served = node.serve(stop).await.map_err(failed);
    step::begin("writing the logs of frames to the disk");
    finish_logs().await;
    step::begin("ending sinks, uplinks, ways in, flows and MQTT");
    guarded.stop().await;
    step::begin("ending threads");
    served
}

/// Serves MQTT and nothing else until `stop`, as a node does where nothing is configured: on this machine alone, without certificates.
/// On SIGHUP it takes from `reload` what can be exchanged while it runs.
///
/// # Errors
/// What keeps it from running, with its code.
pub async fn mqtt_alone(
    config: &Config,
    reload: Arc<Reload>,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    step::begin("reading users and rules");
    let access = access(config, Access::default().revocations)?;
    let health = Health::default();
    step::begin("starting MQTT, flows, sinks and ways in");
    let watch = watch(config, &health, &stop).await?;
    let manager = watch.manager();
    // Nobody asks but by SIGHUP.
    let (_, asked) = mpsc::channel(1);
    let reloader = Reloader { reload, asked };
    let guarded = Guarded::start(config, reloader, access, None, &health, manager)?;
    manager.ready();
    let begin = config.command("init");
    tracing::info!(
        "nothing is configured: MQTT alone is served, and the API and links of nodes are not; `{begin}` begins a site"
    );
    stop.cancelled().await;
    step::begin("ending sinks, ways in, flows and MQTT");
    guarded.stop().await;
    step::begin("ending threads");
    Ok(())
}

/// The doors of the node, and its audit log.
fn access(config: &Config, revocations: Arc<Revocations>) -> Result<Access, ApiError> {
    let doors = Arc::new(auth::open(config)?);
    let audit = match AuditConfig::of(config) {
        None => Audit::default(),
        Some(audit) => Audit::start(audit).map_err(|error| {
            ApiError::new(Code::INTERNAL, "the audit log cannot be kept").caused_by(error)
        })?,
    };
    revocations.tell_to(audit.clone());
    let access = Access { doors, revocations, audit };
    keep_revocations(config, &access)?;
    Ok(access)
}

/// Goes by the newest revocation list that a former start knew of, and says so where the file has an older one or none.
fn keep_revocations(config: &Config, access: &Access) -> Result<(), ApiError> {
    let kept = access.revocations.keep_in(&config.state_dir());
    let wrong = kept.map_err(|error| revocations_unknown(&error))?;
    for error in wrong {
        let error = crate::error_chain(&error);
        tracing::error!(%error, "the revocation list of the last start stays in use");
        access.audit.tell(|| Entry {
            what: "revocation-lists".to_owned(),
            rule: error,
            ..Entry::of(auth::now().wall, "process", &this_node(), Outcome::Failed)
        });
    }
    Ok(())
}

pub(crate) fn revocations_unknown(error: &RevocationError) -> ApiError {
    let text = "it cannot be known which certificates were revoked; restore the file, or remove it once its authority's newest list is in place";
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(error))
}

/// Redeems invitations until what it returns is dropped.
async fn enrol(config: &Config, address: SocketAddr) -> Result<AbortOnDropHandle<()>, ApiError> {
    let credentials = credentials(config, Kind::Node, config.node.name.as_str())?;
    let invitations = Invitations::in_folder(&config.state_dir());
    let enrolment = Enrolment::bind(address, &credentials, &config.pki_dir(), invitations).await;
    let enrolment = enrolment.map_err(|error| {
        let text = "invitations cannot be redeemed";
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(&error))
    })?;
    tracing::info!(%address, "invitations are redeemed");
    Ok(AbortOnDropHandle::new(tokio::spawn(enrolment.serve())))
}

async fn watch(
    config: &Config,
    health: &Health,
    stop: &CancellationToken,
) -> Result<Watch, ApiError> {
    Watch::begin(health, config.node.health_listen, stop).await.map_err(|error| {
        let text = "the node cannot be watched";
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(&error))
    })
}

/// How often a certificate is looked at: it may expire, or be renewed.
const CERTIFICATE_LOOKED_AT: Duration = Duration::from_secs(60);

/// Says whether the certificate called `name` is one to serve with.
async fn watch_certificate(condition: Condition, config: Config, kind: Kind, name: CameraName) {
    let mut ticks = tokio::time::interval(CERTIFICATE_LOOKED_AT);
    loop {
        ticks.tick().await;
        match credentials(&config, kind, name.as_str()) {
            Ok(_) => condition.holds(),
            Err(error) => condition.fails(crate::error_chain(&error)),
        }
    }
}

/// How often the revocation lists are looked at: they may be written anew.
const LISTS_LOOKED_AT: Duration = Duration::from_secs(5);

/// Goes by the newest revocation lists, and ends connections of MQTT whose certificates are on them; links and calls look for
/// themselves. `again` reads files also that are the same, and so says once more what is wrong with them.
fn refresh_revocations(access: &Access, service: Option<&mqtt::Service>, again: bool) {
    let refresh = |lists: &Revocations| {
        let refreshed = if again { lists.reread() } else { lists.refresh() };
        let (outcome, rule) = match &refreshed {
            Ok(false) => return false,
            Ok(true) => (Outcome::Done, format!("{} certificates revoked", lists.count())),
            Err(error) => {
                let error = crate::error_chain(error);
                tracing::error!(%error, "the revocation lists in use stay");
                (Outcome::Failed, error)
            }
        };
        access.audit.tell(|| Entry {
            what: "revocation-lists".to_owned(),
            rule,
            ..Entry::of(auth::now().wall, "process", &this_node(), outcome)
        });
        refreshed.unwrap_or(false)
    };
    let changed = refresh(&access.revocations);
    if let Some(service) = service {
        service.refresh_revocations(changed, &refresh);
    }
}

/// Looks at the revocation lists from time to time.
async fn watch_revocations(access: Access, served: Option<Weak<Served>>) {
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
            tracing::error!(%error, "the revocation lists were not looked at");
        }
    }
}

/// Reads the configuration of this process again, and checks it.
pub type Reload = dyn Fn() -> Result<Config, ApiError> + Send + Sync;

/// What reads the configuration again, and who asks for it.
struct Reloader {
    reload: Arc<Reload>,
    asked: mpsc::Receiver<oneshot::Sender<Result<ReloadedConfiguration, ApiError>>>,
}

/// What uplinks need of a node.
struct Upwards {
    credentials: Credentials,
    receivers: Arc<uplink::Receivers>,
}

/// What goes by the doors and is exchanged while the node runs: MQTT, what it is connected to, and the keys of tokens.
struct Guarded {
    served: Option<Arc<Served>>,
    reloads: JoinHandle<()>,
    fetches: JoinHandle<()>,
    revocations: JoinHandle<()>,
}

impl Guarded {
    /// Starts MQTT, a task that fetches keys of tokens, and one that reads the configuration anew on SIGHUP.
    fn start(
        config: &Config,
        reloader: Reloader,
        access: Access,
        upwards: Option<Upwards>,
        health: &Health,
        manager: &Arc<Manager>,
    ) -> Result<Self, ApiError> {
        let (fetchers, fetcher) = watch::channel(Fetcher::of(config)?);
        let mut hangups = signal(SignalKind::hangup()).map_err(|error| {
            ApiError::new(Code::INTERNAL, "signals cannot be received").caused_by(error)
        })?;
        let planned = uplink::configure::planned(config)?;
        let served = match config.mqtt.enabled {
            true => {
                let service = mqtt::Service::start(config, access.clone(), health)?;
                let node: Arc<str> = mqtt::node_of_paths(config, planned.is_empty())?.into();
                if let Some(Upwards { receivers, .. }) = &upwards {
                    receivers.serve_by(service.connector(), &node);
                    service.tell_of_uplinks(receivers);
                }
                let credentials = upwards.map(|upwards| upwards.credentials);
                let served = Served::new(service, node, credentials, link_config(config));
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
        let fetches = tokio::spawn(fetch::run(fetcher, access.doors.clone(), withdrawn));
        let revocations = tokio::spawn(watch_revocations(access.clone(), serving.clone()));
        let manager = manager.clone();
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
                let serving = serving.clone().and_then(|served| served.upgrade());
                let reloaded = tokio::task::spawn_blocking(move || {
                    refresh_revocations(&access, serving.as_deref().map(|s| &s.service), true);
                    let result =
                        reload().and_then(|new| exchange(new, serving.as_deref(), &access));
                    let (outcome, rule) = match &result {
                        Ok(_) => (Outcome::Done, String::new()),
                        Err(error) => (Outcome::Failed, crate::error_chain(error)),
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
                        // Nobody fetches any more if it cannot be sent: the node stops.
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
                    // Whoever asked may be gone.
                    let _ = answer.send(reloaded);
                }
                manager.ready();
            }
        });
        Ok(Self { served, reloads, fetches, revocations })
    }

    /// Waits until what is published is carried by all uplinks; not for ever, since a node serves without them as well.
    async fn uplinks_subscribed(&self) {
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

    async fn stop(self) {
        self.reloads.abort();
        self.fetches.abort();
        self.revocations.abort();
        // The last that holds it waits for its threads; a reload may hold it as well for a moment.
        let stopped = tokio::task::spawn_blocking(move || drop(self.served)).await;
        if let Err(error) = stopped {
            tracing::error!(%error, "the MQTT server did not stop as it should");
        }
    }
}

/// MQTT and the uplinks of what is published.
struct Served {
    // In the order in which they end.
    uplinks: Mutex<Uplinks>,
    service: mqtt::Service,
    /// The node's name among those that a message passed.
    node: Arc<str>,
    /// What the node shows; none where it serves MQTT alone.
    credentials: Option<Credentials>,
    link: LinkConfig,
}

impl Served {
    fn new(
        service: mqtt::Service,
        node: Arc<str>,
        credentials: Option<Credentials>,
        link: LinkConfig,
    ) -> Self {
        Self { uplinks: Mutex::default(), service, node, credentials, link }
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
        let (connector, forget) = (self.service.connector(), |id: &str| self.service.forget(id));
        let exchanged =
            uplinks.exchange(planned, &self.node, &connector, credentials, &self.link, forget);
        for name in exchanged {
            tracing::info!(uplink = name, "uplink started, stopped or made anew");
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
        None => crate::error_chain(error),
    };
    tracing::error!(%error, "users, rules and the configuration of MQTT stay as they were");
}

/// The mistakes that an error is made of; none if it is of another kind.
fn problems_of(error: &ApiError) -> Option<&Problems> {
    std::error::Error::source(error).and_then(|source| source.downcast_ref())
}

fn this_node() -> Identity {
    Identity::new(IdentityKind::Internal, "", "")
}

/// Takes from `new` what can be exchanged while the node runs, all of it or nothing.
fn exchange(
    new: Config,
    served: Option<&Served>,
    access: &Access,
) -> Result<(Option<Fetcher>, ReloadedConfiguration), ApiError> {
    let fetcher = Fetcher::of(&new)?;
    let planned = uplink::configure::planned(&new)?;
    let mut exchanged = ReloadedConfiguration::default();
    match served {
        Some(served) => {
            let reloaded = served.service.reload(new)?;
            exchanged.exchanged = reloaded.exchanged;
            exchanged.need_restart = reloaded.need_restart;
            served.exchange_uplinks(planned);
        }
        None => {
            let prepared = access.doors.prepare(auth::sources_again(&new, &access.doors)?);
            let reloaded = access.doors.exchange(prepared.map_err(|error| auth::unread(&error))?);
            tracing::info!(
                users = reloaded.users,
                users_changed = reloaded.users_changed.join(", "),
                roles = reloaded.roles_rules,
                roles_changed = reloaded.roles_changed,
                tokens_changed = reloaded.tokens_changed,
                "users and rules read anew"
            );
        }
    }
    Ok((fetcher, exchanged))
}

/// Runs a camera node until `stop` or until its source ends.
///
/// # Errors
/// What keeps it from running, with its code.
pub async fn camera(
    config: &Config,
    name: CameraName,
    spec: SourceSpec,
    edge: Option<&str>,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    warn_if_clock_is_unset();
    let dial = dial_options(config, &name, edge).await?;
    let health = Health::default();
    let watch = watch(config, &health, &stop).await?;
    let _valid = AbortOnDropHandle::new(tokio::spawn(watch_certificate(
        health.condition("certificate"),
        config.clone(),
        Kind::Camera,
        name.clone(),
    )));
    let revocations = dial.credentials.revocations().clone();
    let access = Access { revocations, ..Access::default() };
    keep_revocations(config, &access)?;
    let _revocations = AbortOnDropHandle::new(tokio::spawn(watch_revocations(access, None)));
    let options = CameraOptions { health, ..camera_options(config, name, spec.to_string()) };
    watch.manager().ready();
    step::begin("the source, its detector and the link to the edge");
    let ended = camera::run(options, &spec, dial, stop).await;
    step::begin("writing the log of frames to the disk");
    finish_logs().await;
    step::begin("ending threads");
    Ok(ended?)
}

/// A machine without a battery for its clock starts in the past, until the network tells it the time.
fn warn_if_clock_is_unset() {
    if clock::is_unset() {
        tracing::warn!(
            "the system clock was never set: until it is, times are wrong and certificates seem not to be valid yet; \
             where certificates are needed, have the node start after time-sync.target"
        );
    }
}

/// Has all logs synced, which is waiting for the disk.
async fn finish_logs() {
    if let Err(error) = tokio::task::spawn_blocking(frame_log::finish).await {
        tracing::error!(%error, "the logs were not closed as they should");
    }
}

/// How the camera called `name` reaches its edge node.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] without a certificate or an address.
pub async fn dial_options(
    config: &Config,
    name: &CameraName,
    edge: Option<&str>,
) -> Result<DialOptions, ApiError> {
    Ok(DialOptions {
        edge: resolve(edge.unwrap_or(&config.link.edge)).await?,
        transport: config.link.transport,
        credentials: credentials(config, Kind::Camera, name.as_str())?,
        link: link_config(config),
        reconnects_max: (config.link.max_reconnects > 0).then_some(config.link.max_reconnects),
        retry_max: config.link.reconnect_backoff_max,
    })
}

/// A source by its description; a path that exists is a folder or a video file.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming what is wrong with the description.
pub fn source_spec(text: &str) -> Result<SourceSpec, ApiError> {
    let path = Path::new(text);
    let described = match (path.is_dir(), path.is_file()) {
        (true, _) => format!("folder:{text}"),
        (_, true) => format!("video:{text}"),
        _ => text.to_owned(),
    };
    described.parse().map_err(|error: crate::source::SourceError| {
        ApiError::new(Code::CONFIG_INVALID, format!("{:?} is no source", source::shown(text)))
            .caused_by(crate::error_chain(&error))
    })
}

pub(crate) async fn resolve(edge: &str) -> Result<SocketAddr, ApiError> {
    let invalid = || format!("no address was found of {edge:?}; write it as host:port");
    let mut found = tokio::net::lookup_host(edge)
        .await
        .map_err(|error| ApiError::new(Code::CONFIG_INVALID, invalid()).caused_by(error))?;
    found.next().ok_or_else(|| ApiError::new(Code::CONFIG_INVALID, invalid()))
}
