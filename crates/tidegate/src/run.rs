//! The one composition root: from a checked configuration to running nodes.
//!
//! ```text
//!  Config ─▶ broker, listeners, bridges ─┐
//!         ─▶ ingest, sinks, uplinks ─────┼─▶ Service ─▶ Guarded: reloads, keys, revocation lists ─▶ node, mqtt_alone
//!         ─▶ cameras, certificates ──────┴────────────────────────────────────────────────────────▶ node, camera
//! ```
//!
//! Always true: a service is given settings of its own and never the configuration; no service starts another one. A reader who asks what
//! a key of the configuration does finds the answer here.

mod audited_access;
mod bridges;
mod broker;
mod cameras;
mod certificates;
pub mod check;
mod detect;
mod flows;
mod ingest;
mod kept;
mod listeners;
mod node_name;
mod policies;
mod reload;
pub mod service;
pub(crate) mod sinks;
mod uplinks;
pub mod users;
mod vision;
mod web;
mod words;
mod workers;

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tidegate_api::ApiError;
use tidegate_camera::{
    camera::{self, CameraSettings},
    frame_log,
    source::SourceSpec,
};
use tidegate_config::Config;
use tidegate_frame::coordinator::CoordinatorConfig;
use tidegate_identity::{
    access::Access,
    auth::audit::Audit,
    enrol::{Enrolment, Invitations},
    pki::{Credentials, Kind, Revocations},
};
use tidegate_link::{link::LinkSettings, roles::Links};
use tidegate_message::{CameraName, Code, Identity, IdentityKind};
use tidegate_process::{
    clock,
    health::{Health, Watch},
    step,
};
use tidegate_rpc::{Administration, Router};
use tidegate_streams::{Node, NodeSettings};
use tidegate_uplinks::UplinkLinks;
use tidegate_wire::{Role, TransferHints};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub use self::{
    cameras::{camera_settings, camera_source, dial_settings, source_spec},
    flows::FlowOperators,
    reload::Reload,
    service::Service,
    workers::settings as pool_settings,
};
use self::{
    certificates::{credentials, keep_revocations, watch_certificate, write_shown},
    reload::{Exchanged, Guarded, Reloader, Upwards, watch_revocations},
};

/// Settings of node links.
pub fn link_settings(config: &Config) -> LinkSettings {
    LinkSettings {
        queue_allowed: config.link.queue_allowed,
        idle_timeout: config.link.idle_timeout,
        // Three signs of life within the time after which a silent peer counts as gone.
        keep_alive: (config.link.idle_timeout / 3).min(Duration::from_secs(1)),
        connect_timeout: config.link.connect_timeout,
        quic_head_start: config.link.quic_head_start,
        tcp_congestion: config.link.tcp_congestion.clone(),
        // Two for each of a camera's transfers: one on the way and the next.
        frames_max: 128,
        ..LinkSettings::default()
    }
}

/// Runs an edge node until `stop`; says on the standard error where it listens. On SIGHUP it takes from `reload` what can be
/// exchanged while it runs.
///
/// # Errors
/// Why it cannot run, with the code.
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
    let uplinks = Arc::new(tidegate_uplinks::Receivers::new(config.link.uplink_bytes_max.0));
    // One waits while one is read.
    let (reloads, asked) = mpsc::channel(1);
    let reload = Reloader { reload, asked };
    let bus = Arc::<OnceLock<_>>::default();
    let upwards =
        Upwards { credentials: credentials.clone(), receivers: uplinks.clone(), bus: bus.clone() };
    let link_credentials = credentials.clone();
    let pool = workers::pool(config);
    let (cameras, configured) = cameras::OwnCameras::of(config, workers::own(&pool).cloned())?;
    // Name, size and rate of a hosted camera come with its registration.
    let hosted = camera_settings(config, config.node.name.clone(), String::new());
    let (detectors, detecting) = detect::Detectors::of(config)?;
    let options = NodeSettings {
        api_listen: config.node.api_listen,
        credentials,
        stream_log: cameras::log_config(config.log.stream_bytes.0, frames.frame_bytes_max.0).into(),
        hosted: cameras::in_pool(hosted, workers::own(&pool)),
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
        cameras: configured,
    };
    let web_access = access.clone();
    let admin = Administration { access: access.clone(), bus, reloads: Some(reloads) };
    let failed = |error: tidegate_streams::NodeError| {
        let code = error.code();
        ApiError::new(code, "the node cannot run").caused_by(tidegate_message::error_chain(&error))
    };
    let health = Health::default();
    let looking = pool.clone();
    health.check("detection", move || Some(looking.trouble().map_or(Ok(()), Err)));
    step::begin("opening listeners");
    let watch = watch(config, &health, &stop).await?;
    // Links first: the chapter of the first five minutes says in which order ports that are taken are named.
    let mut links = bind_links(config, link_credentials, &access).await?;
    let node = Node::bind(options).await.map_err(failed)?;
    // Each role of the other end, and the service that serves its links.
    links.serve(Role::Camera, node.links());
    links.serve(Role::Edge, node.links());
    links.serve(Role::Uplink, Arc::new(UplinkLinks::new(uplinks, node.medium())));
    let vision = vision::Served::start(config, pool.clone(), access.clone()).await?;
    let mut node = match &vision {
        Some(vision) => {
            let (detection, image_bytes_max) = vision.calls(config);
            node.with_detection(detection, image_bytes_max).with_web(vision.paths(), Router::new())
        }
        None => node,
    };
    step::begin("starting MQTT, flows, sinks, ways in and uplinks");
    let manager = watch.manager();
    let exchanged = Exchanged { cameras, detectors };
    let guarded =
        Guarded::start(config, reload, access, Some(upwards), Some(exchanged), &health, manager)?;
    let detectors = guarded.bus().map(|bus| {
        detect::start(node.frames(), bus, pool, detecting, detect::kept(config), stop.child_token())
    });
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
    let (known, public) = web::paths(guarded.served(), web_access, stop.clone());
    let node = match web::listen(config, known.clone(), public.clone()).await? {
        Some(plain) => node.with_plain(plain),
        None => node,
    };
    let node = node.with_web(known, public);
    guarded.uplinks_subscribed().await;
    manager.ready();
    tracing::info!(api = %node.api_address(), link = %links.local_address(), "node ready");
    step::begin("ending the calls of applications and the links of cameras");
    let (served, ()) = tokio::join!(node.serve(Arc::new(admin), stop.clone()), links.run(stop));
    let served = served.map_err(failed);
    if let Some(detectors) = detectors {
        step::begin("ending detectors");
        detect::ended(detectors).await;
    }
    step::begin("ending detection for clients");
    if let Some(vision) = vision {
        vision.end().await;
    }
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
/// Why it cannot run, with the code.
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
    // Only SIGHUP asks.
    let (_, asked) = mpsc::channel(1);
    let reloader = Reloader { reload, asked };
    let guarded = Guarded::start(config, reloader, access, None, None, &health, manager)?;
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

/// Access control of the node, and its audit log.
fn access(config: &Config, revocations: Arc<Revocations>) -> Result<Access, ApiError> {
    let authenticator = Arc::new(users::open(config)?);
    let audit = match users::audit(config) {
        None => Audit::default(),
        Some(audit) => Audit::start(audit).map_err(|error| {
            ApiError::new(Code::INTERNAL, "the audit log cannot be kept").caused_by(error)
        })?,
    };
    revocations.tell_to(write_shown(audit.clone()));
    let access = Access { authenticator, revocations, audit };
    keep_revocations(config, &access)?;
    Ok(access)
}

/// Listens for the links of cameras and other nodes.
async fn bind_links(
    config: &Config,
    credentials: Credentials,
    access: &Access,
) -> Result<Links, ApiError> {
    let (settings, audit) = (link_settings(config), access.audit.clone());
    let links = Links::bind(config.link.listen, credentials, settings, audit).await;
    links.map_err(|error| {
        let text = "the node link cannot listen; free its address or set `listen` in [link]";
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(&error))
    })
}

/// Redeems invitations until what it returns is dropped.
async fn enrol(config: &Config, address: SocketAddr) -> Result<AbortOnDropHandle<()>, ApiError> {
    let credentials = credentials(config, Kind::Node, config.node.name.as_str())?;
    let invitations = Invitations::in_folder(&config.state_dir());
    let enrolment = Enrolment::bind(address, &credentials, &config.pki_dir(), invitations).await;
    let enrolment = enrolment.map_err(|error| {
        let text = "invitations cannot be redeemed";
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(&error))
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
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(&error))
    })
}

/// Runs a camera node until `stop` or until its source ends.
///
/// # Errors
/// Why it cannot run, with the code.
pub async fn camera(
    config: &Config,
    name: CameraName,
    spec: SourceSpec,
    edge: Option<&str>,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    warn_if_clock_is_unset();
    let dial = dial_settings(config, &name, edge).await?;
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
    let options = CameraSettings { health, ..camera_settings(config, name, spec.to_string()) };
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

/// The value of that key is no good, for that reason.
fn invalid(key: &str, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{key} is wrong");
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(error))
}

/// The process itself, as the audit log names it where no user acted.
fn this_node() -> Identity {
    Identity::new(IdentityKind::Internal, "", "")
}
