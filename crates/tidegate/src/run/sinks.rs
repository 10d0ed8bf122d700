//! From `[sink.NAME]` to settings.

mod destinations;

use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use tidegate_api::ApiError;
use tidegate_broker::{Overflow, SessionConfig};
use tidegate_bus::Bus;
use tidegate_config::{Config, Misplaced, Purpose, SinkSection, problems::Problems};
use tidegate_identity::access::Access;
use tidegate_message::{Code, Identity, IdentityKind};
use tidegate_schedule::Policy;
use tidegate_server::server::Server;
use tidegate_sinks::{RefusedFile, Sink, SinkError, SinkSettings};
use tidegate_sys::regular;
use tidegate_web::SinkRow;
use tidegate_wire::mqtt::PACKET_BYTES_MAX;
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

use super::{
    broker::usual_session,
    findings::Findings,
    keys::list,
    part::{Changes, Exchange, Part, Ports, Reach, Running, Started, dropped, gone},
};

/// Bytes of a dead letter in addition to the message: a topic, a reason, names.
const LETTER_BYTES: u32 = 192 << 10;

/// The part that has the sinks.
pub(super) struct Sinks;

/// How often the places in time of sinks that are gone are looked for.
const LEFT_LOOKED_AT: Duration = Duration::from_secs(60);

#[async_trait]
impl Part for Sinks {
    fn name(&self) -> &'static str {
        "sinks"
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        if config.mqtt.enabled {
            let session = usual_session(config).unwrap_or_default();
            found.problems.take(planned(config, &session, Purpose::Check));
        }
    }

    fn reaches(&self, config: &Config) -> Vec<Reach> {
        if !config.mqtt.enabled {
            return Vec::new();
        }
        let session = usual_session(config).unwrap_or_default();
        let sinks = planned(config, &session, Purpose::Check).unwrap_or_default();
        let reach = |sink: SinkSettings| -> Reach {
            let key = format!("sink.{}.url", sink.name);
            (key, Box::pin(async move { sink.destination.reach().await }))
        };
        sinks.into_iter().map(reach).collect()
    }

    fn sessions(&self, config: &Config) -> Vec<String> {
        config.sinks.keys().map(|name| SinkSettings::session_of(name)).collect()
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let (Some(bus), Some(server)) = (&ports.bus, ports.server.get()) else { return Ok(None) };
        let sinks = Arc::new(RunningSinks {
            bus: bus.clone(),
            config: Mutex::new(config.clone()),
            running: Mutex::default(),
        });
        ports.tables.sinks.show(&sinks, RunningSinks::rows);
        let watch = watch(Arc::downgrade(&sinks), server.clone());
        let watch = AbortOnDropHandle::new(tokio::spawn(watch));
        let begun = Begun { sinks, _watch: watch };
        begun.plan(config)?(&mut Changes::default())?;
        Ok(Some(Box::new(begun)))
    }
}

struct Begun {
    sinks: Arc<RunningSinks>,
    _watch: AbortOnDropHandle<()>,
}

struct RunningSinks {
    bus: Bus,
    /// The configuration of those that run.
    config: Mutex<Config>,
    running: Mutex<BTreeMap<String, (SinkSettings, Sink)>>,
}

#[async_trait]
impl Running for Begun {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let planned = planned(new, &usual_session(new)?, Purpose::Run)?;
        Ok(Box::new(move |changes| self.sinks.exchange(new, planned, changes)))
    }

    async fn stop(self: Box<Self>) {
        dropped("sinks", self).await;
    }
}

impl RunningSinks {
    fn exchange(
        &self,
        new: &Config,
        planned: Vec<SinkSettings>,
        changes: &mut Changes,
    ) -> Result<(), ApiError> {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = new.clone();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, (_, sink)) in gone(&mut running, &planned) {
            let report = sink.stop();
            tracing::info!(sink = %name, %report, "sink stopped");
            changes.note("sink", &name);
        }
        for settings in planned {
            let name = settings.name.clone();
            if running.contains_key(&name) {
                continue;
            }
            let sink = Sink::start(settings.clone(), self.bus.clone());
            let sink = sink.map_err(|error| {
                let text = format!("sink.{name} cannot start");
                ApiError::new(Code::INTERNAL, text).caused_by(tidegate_message::error_chain(&error))
            })?;
            tracing::info!(sink = %name, kind = settings.kind, "sink started");
            changes.note("sink", &name);
            running.insert(name, (settings, sink));
        }
        Ok(())
    }

    /// The sinks, by name, with their counts.
    fn rows(&self) -> Vec<SinkRow> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(name, (settings, sink)): (&String, &(SinkSettings, Sink))| {
            let report = sink.report();
            SinkRow {
                name: name.clone(),
                kind: settings.kind,
                up: sink.is_up(),
                topics: settings.topics.clone(),
                messages: report.messages,
                bytes: report.bytes,
                refused: report.refused,
                failures: report.failures,
            }
        };
        running.iter().map(row).collect()
    }

    /// Removes the places in time of sinks that are gone and have none of these sessions.
    fn end_gone(&self, sessions: &HashSet<String>) {
        // Not while sinks are exchanged.
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let has_session = |name: &str| sessions.contains(&SinkSettings::session_of(name));
        if let Err(error) = remove_places(&config, has_session) {
            tracing::warn!(%error, "the places in time of a sink that is gone cannot be removed");
        }
    }
}

/// Has no place in time outlive the session of its sink.
async fn watch(sinks: Weak<RunningSinks>, server: Weak<Server>) {
    let mut ticks = tokio::time::interval(LEFT_LOOKED_AT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(connector) = server.upgrade().map(|server| server.connector()) else { return };
        // Of the node's parts, also of those that are gone.
        let of_parts = |owner: &Identity| owner.kind == IdentityKind::Internal;
        let (Some(sessions), Some(sinks)) = (connector.client_ids(of_parts).await, sinks.upgrade())
        else {
            return;
        };
        let ended = tokio::task::spawn_blocking(move || sinks.end_gone(&sessions)).await;
        if let Err(error) = ended {
            tracing::error!(%error, "the places in time of sinks that are gone were not looked for");
        }
    }
}

/// The sinks that `config` describes; messages that wait for them are bounded like those of `usual` sessions.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key or the file.
fn planned(
    config: &Config,
    usual: &SessionConfig,
    purpose: Purpose,
) -> Result<Vec<SinkSettings>, ApiError> {
    if config.sinks.is_empty() {
        return Ok(Vec::new());
    }
    let mut problems = Problems::default();
    let sinks = problems.take_all(config.sinks.iter().map(|(name, section)| {
        let invalid = |error: SinkError| invalid(name, &error);
        let settings = sink(name, section, config, usual, purpose).map_err(invalid)?;
        settings.check().map_err(invalid)?;
        // A kind that this build does not have, and one that cannot be made, is reported before anything changes.
        match purpose {
            Purpose::Run => settings.destination.open().map(drop).map_err(invalid)?,
            Purpose::Check => settings.destination.look().map_err(invalid)?,
        }
        Ok(settings)
    }));
    problems.into_result()?;
    Ok(sinks)
}

/// Where the node keeps what it knows of its sinks.
pub(crate) fn folder(config: &Config) -> PathBuf {
    config.state_dir().join("sinks")
}

/// Ends the name of a file of places in time.
const PLACES: &str = "places";

/// Removes the places in time of sinks that are neither configured nor have a session: with that, all that may come again is gone. How many
/// there were.
///
/// # Errors
/// The folder or a file in it cannot be read or removed.
fn remove_places(config: &Config, has_session: impl Fn(&str) -> bool) -> io::Result<usize> {
    let entries = match fs::read_dir(folder(config)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().and_then(OsStr::to_str);
        let is_over = |name: &&str| !config.sinks.contains_key(*name) && !has_session(name);
        if path.extension() == Some(OsStr::new(PLACES))
            && let Some(sink) = name.filter(is_over)
        {
            fs::remove_file(&path)?;
            tracing::info!(sink, "the places in time of a sink that is gone are removed");
            removed += 1;
        }
    }
    Ok(removed)
}

fn invalid(name: &str, error: &SinkError) -> ApiError {
    let text = format!("sink.{name} cannot be");
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(error))
}

fn sink(
    name: &str,
    section: &SinkSection,
    config: &Config,
    usual: &SessionConfig,
    purpose: Purpose,
) -> Result<SinkSettings, SinkError> {
    if let Some(Misplaced { key, kinds }) = section.misplaced().into_iter().next() {
        let (kind, kinds) = (section.kind.word(), kinds.join(", "));
        let problem = format!("{key} means nothing for {kind}; it is for {kinds}");
        return Err(SinkError::Destination { problem, source: None });
    }
    let (batch_messages, batch_bytes, batch_age) = section.batch();
    // One batch is under way while the next one grows.
    let under_way_max = u16::try_from(batch_messages.saturating_mul(2)).unwrap_or(u16::MAX);
    let session = SessionConfig {
        queue_bytes_max: section.queue_bytes_max.map_or(usual.queue_bytes_max, |count| count.0),
        queue_messages_max: section.queue_messages_max.unwrap_or(SinkSection::QUEUE_MESSAGES_MAX)
            as usize,
        overflow: section.overflow.unwrap_or(Overflow::Spill),
        overflow_qos0: section.overflow_qos0.unwrap_or(usual.overflow_qos0),
        policy: Policy::None,
        inflight_max: Some(under_way_max),
        inflight_bytes_max: Some(batch_bytes.saturating_mul(2)),
        // A dead letter says more than the message did that may have been as long as any.
        packet_bytes_max: usual.packet_bytes_max.saturating_add(LETTER_BYTES).min(PACKET_BYTES_MAX),
        ..usual.clone()
    };
    let refused_max = section.refused_bytes_max.0;
    Ok(SinkSettings {
        name: name.to_owned(),
        client_id: SinkSettings::session_of(name),
        kind: section.kind.word(),
        topics: list(&section.topics),
        dead_letter: section.dead_letter.clone(),
        refused: (refused_max > 0).then(|| RefusedFile::new(&folder(config), name, refused_max)),
        batch_messages,
        batch_bytes,
        batch_age,
        backoff_max: section.backoff_max,
        timeout: section.timeout,
        sys_interval: config.mqtt.sys_interval,
        session,
        destination: destinations::of(name, section, config, under_way_max, purpose)?,
        trust: section.ca.as_deref().map(trust).transpose()?,
    })
}

/// A digest of the file of authorities.
fn trust(path: &Path) -> Result<[u8; 32], SinkError> {
    let read = regular::read(path).map_err(|error| SinkError::Destination {
        problem: format!("ca {} cannot be read", path.display()),
        source: Some(error.into()),
    })?;
    Ok(Sha256::digest(read).into())
}

#[cfg(test)]
mod tests;
