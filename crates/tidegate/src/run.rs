//! The one composition root: from a checked configuration to running nodes.
//!
//! ```text
//!  Config ─▶ Node ─▶ each of PARTS: check ─▶ start(ports) ─▶ plan ─▶ exchange ─▶ stop
//!                                             └ Bus, Frames, Links, pool of workers, tables of the page
//! ```
//!
//! Always true: a service is given settings of its own and never the configuration, since each new key would build all of them; no service
//! starts another one. A reader who asks what a key of the configuration does finds the answer here.

mod access;
mod audited_access;
mod bridges;
mod broker;
mod cameras;
mod certificates;
pub mod check;
mod detect;
mod enrol;
mod fabric;
mod findings;
mod flows;
mod ingest;
mod kept;
mod keys;
mod listeners;
mod mqtt;
mod node;
mod node_name;
mod part;
mod policies;
pub(crate) mod sinks;
mod streams;
mod timers;
mod uplinks;
pub mod users;
mod vision;
mod web;
mod workers;

use std::{sync::Arc, time::Duration};

use tidegate_api::ApiError;
use tidegate_camera::{
    camera::{self, CameraSettings},
    source::SourceSpec,
};
use tidegate_config::Config;
use tidegate_identity::{
    access::Access,
    auth::audit::Audit,
    pki::{Credentials, Kind, Revocations},
};
use tidegate_link::link::LinkSettings;
use tidegate_message::{CameraName, Code, Identity, IdentityKind};
use tidegate_process::{
    clock,
    health::{Health, Watch},
    step,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::{
    access::watch_revocations,
    certificates::{credentials, keep_revocations, watch_certificate, write_shown},
    node::finish_logs,
    part::Part,
};
pub use self::{
    cameras::{camera_settings, camera_source, dial_settings, source_spec},
    flows::FlowOperators,
    node::{Node, Reload},
    part::Changes,
    workers::settings as pool_settings,
};

/// The parts of a node, in the order in which they begin and are exchanged; they end in the reverse one. So a part finds the ports of those
/// before it, and none loses a port that it still uses. Users are exchanged before MQTT, which asks again who may stay.
const PARTS: &[&dyn Part] = &[
    &access::Users,
    &streams::Frames,
    &mqtt::Mqtt,
    &bridges::Bridges,
    &ingest::Listeners,
    &sinks::Sinks,
    &timers::Ticking,
    &uplinks::Upwards,
    &fabric::Membership,
    &vision::Detection,
    &detect::Watching,
    &web::Page,
    &enrol::Joining,
];

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
    let credentials = credentials(config, Kind::Node, config.node.name.as_str())?;
    let access = access(config, credentials.revocations().clone())?;
    begin(config, access, Some(credentials), reload, stop).await
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
    begin(config, access, None, reload, stop).await
}

async fn begin(
    config: &Config,
    access: Access,
    credentials: Option<Credentials>,
    reload: Arc<Reload>,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let (hangups, health) = (node::hangups()?, Health::default());
    let watch = watch(config, &health, &stop).await?;
    let node = Node::start(config, access, credentials, health, stop.clone()).await?;
    watch.manager().ready();
    match node.listens() {
        Some((api, link)) => tracing::info!(%api, %link, "node ready"),
        None => {
            let begin = config.command("init");
            tracing::info!(
                "nothing is configured: MQTT alone is served, and the API and links of nodes are not; `{begin}` begins a site"
            );
        }
    }
    node.run(reload, hangups, watch.manager(), stop).await
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
    let watched = watch_revocations(access, Arc::default());
    let _revocations = AbortOnDropHandle::new(tokio::spawn(watched));
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

/// The value of that key is no good, for that reason.
fn invalid(key: &str, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{key} is wrong");
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(error))
}

/// The process itself, as the audit log names it where no user acted.
fn this_node() -> Identity {
    Identity::new(IdentityKind::Internal, "", "")
}
