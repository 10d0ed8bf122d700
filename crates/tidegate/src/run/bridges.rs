//! The bridges as `[mqtt.bridge.NAME]` describes them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rustls::client::danger::ServerCertVerifier;
use sha2::{Digest as _, Sha256};
use tidegate_api::ApiError;
use tidegate_broker::{BrokerConfig, PART_GRACE};
use tidegate_config::{Config, MqttBridgeSection, Purpose, problems::Problems};
use tidegate_identity::{
    access::Access,
    pki::{
        files::{self, certificates, private_key, unreadable},
        revocation::Checked,
        servers::{AnyName, certified, trusted},
    },
};
use tidegate_message::{Code, host::host_and_port};
use tidegate_process::{reach::server, tls};
use tidegate_schedule::PolicyConfig;
use tidegate_server::{
    bridge::{Bridge, BridgeSettings, RemoteTls},
    server::Server,
};
use tidegate_sys::regular;
use tidegate_wire::mqtt::QoS;

use super::{
    broker,
    findings::Findings,
    invalid,
    keys::{list, password, queued, username},
    node_name::numbered_node,
    part::{Changes, Exchange, Part, Ports, Reach, Running, Started, dropped, gone},
    policies::policies,
};

/// The part that has the bridges.
pub(super) struct Bridges;

#[async_trait]
impl Part for Bridges {
    fn name(&self) -> &'static str {
        "bridges"
    }

    fn check(&self, config: &Config, access: &Access, found: &mut Findings) {
        if config.mqtt.enabled {
            let broker = broker::broker(config).unwrap_or_default();
            found.problems.take(planned(config, &broker, access, Purpose::Check));
        }
    }

    fn reaches(&self, config: &Config) -> Vec<Reach> {
        let broker = broker::broker(config).unwrap_or_default();
        let bridges = match config.mqtt.enabled {
            true => planned(config, &broker, &Access::default(), Purpose::Check),
            false => return Vec::new(),
        };
        let reach = |bridge: BridgeSettings| -> Reach {
            let key = format!("mqtt.bridge.{}.remote", bridge.name);
            let reached = async move {
                let tls = bridge.tls.as_ref().map(RemoteTls::config);
                server(&bridge.host, bridge.port, tls).await
            };
            (key, Box::pin(reached))
        };
        bridges.unwrap_or_default().into_iter().map(reach).collect()
    }

    fn sessions(&self, config: &Config) -> Vec<String> {
        config.mqtt_bridges.keys().map(|name| BridgeSettings::local_id(name)).collect()
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let Some(server) = ports.server() else { return Ok(None) };
        let bridges =
            RunningBridges { server, access: ports.access.clone(), running: Mutex::default() };
        bridges.plan(config)?(&mut Changes::default())?;
        Ok(Some(Box::new(bridges)))
    }
}

struct RunningBridges {
    running: Mutex<BTreeMap<String, (BridgeSettings, Bridge)>>,
    access: Access,
    server: Arc<Server>,
}

#[async_trait]
impl Running for RunningBridges {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let planned = planned(new, &broker::broker(new)?, &self.access, Purpose::Run)?;
        Ok(Box::new(move |changes| self.exchange(planned, changes)))
    }

    async fn stop(self: Box<Self>) {
        dropped("bridges", self).await;
    }
}

impl RunningBridges {
    fn exchange(
        &self,
        planned: Vec<BridgeSettings>,
        changes: &mut Changes,
    ) -> Result<(), ApiError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, (old, bridge)) in gone(&mut running, &planned) {
            // A bridge of the same name continues with the former sessions, and with the messages that wait there.
            let next = planned.iter().find(|new| new.name == name);
            let report = bridge.leave(match next {
                Some(new) if old.keeps_remote(new) => None,
                // It has subscriptions that are no longer wanted.
                Some(_) => Some(Duration::ZERO),
                // The one here is kept for as long.
                None => Some(PART_GRACE),
            });
            tracing::info!(bridge = %name, %report, "bridge stopped");
            changes.note("mqtt.bridge", &name);
        }
        let mut failed = Ok(());
        for settings in planned {
            if running.contains_key(&settings.name) {
                continue;
            }
            match self.begin(&settings) {
                Ok(bridge) => {
                    tracing::info!(bridge = %settings.name, "bridge started");
                    changes.note("mqtt.bridge", &settings.name);
                    running.insert(settings.name.clone(), (settings, bridge));
                }
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    fn begin(&self, settings: &BridgeSettings) -> Result<Bridge, ApiError> {
        let bridge = Bridge::start(settings.clone(), self.server.connector()).map_err(|error| {
            let text = format!("mqtt.bridge.{} cannot start", settings.name);
            ApiError::new(Code::INTERNAL, text).caused_by(tidegate_message::error_chain(&error))
        })?;
        let prefix = format!("connection/{}", settings.name);
        self.server.shared().tell_in_sys(prefix, bridge.counts());
        Ok(bridge)
    }
}

/// The bridges that `config` describes, of the broker with these settings.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key or the file.
fn planned(
    config: &Config,
    broker: &BrokerConfig,
    access: &Access,
    purpose: Purpose,
) -> Result<Vec<BridgeSettings>, ApiError> {
    if config.mqtt_bridges.is_empty() {
        return Ok(Vec::new());
    }
    let mut problems = Problems::default();
    let node = problems.take(numbered_node(config, purpose)).unwrap_or_default();
    let policies = problems.take(policies(&config.mqtt)).unwrap_or_default();
    let sections = config.mqtt_bridges.iter();
    let bridges = problems.take_all(
        sections.map(|(name, section)| bridge(name, section, &node, broker, access, &policies)),
    );
    problems.into_result()?;
    Ok(bridges)
}

fn bridge(
    name: &str,
    section: &MqttBridgeSection,
    node: &str,
    broker: &BrokerConfig,
    access: &Access,
    policies: &PolicyConfig,
) -> Result<BridgeSettings, ApiError> {
    let key_of = |key: &str| format!("mqtt.bridge.{name}.{key}");
    let wrong = |key: &str, bound: &str| {
        ApiError::new(Code::CONFIG_INVALID, format!("{} must be {bound}", key_of(key)))
    };
    let mut problems = Problems::default();
    let remote = host_and_port(section.remote.expose())
        .ok_or_else(|| {
            let bound = "a host and a port, such as mqtt.example:8883; a user and a password have keys of their own";
            wrong("remote", bound)
        });
    let (host, port) = problems.take(remote).unwrap_or_default();
    // A setting meant to protect the password must not be dropped silently.
    for (key, is_set) in [
        ("ca", section.ca.is_some()),
        ("certificate", section.certificate.is_some()),
        ("key", section.key.is_some()),
        ("insecure", section.insecure),
    ] {
        if is_set && !section.tls {
            let text = format!("{} means nothing without TLS; set tls to true", key_of(key));
            problems.say(Code::CONFIG_INVALID, text);
        }
    }
    let username = username(section.username.as_ref());
    if section.password_file.is_some() && username.is_none() {
        let text = format!("{} needs a username as well", key_of("password_file"));
        problems.say(Code::CONFIG_INVALID, text);
    }
    let qos = u8::try_from(section.qos).ok().and_then(QoS::of_bits);
    let qos = problems.take(qos.ok_or_else(|| wrong("qos", "0, 1 or 2")));
    let keep_alive = u16::try_from(section.keepalive.as_secs());
    let keep_alive = problems.take(keep_alive.map_err(|_| wrong("keepalive", "at most 65535s")));
    let password = section.password_file.as_ref().and_then(|path| {
        let read = password(path);
        problems.take(read.map_err(|error| unreadable(&key_of("password_file"), path, &error)))
    });
    let tls = match section.tls {
        true => problems.take(bridge_tls(&key_of, section, access)),
        false => None,
    };
    let client_id = section.client_id.clone().unwrap_or_else(|| format!("{node}.{name}"));
    let settings = BridgeSettings {
        name: name.to_owned(),
        node: node.to_owned(),
        client_id,
        host: host.to_owned(),
        port,
        version: section.version,
        bridge_aware: section.bridge_aware,
        tls,
        username,
        password,
        topics_out: list(&section.topics_out),
        topics_in: list(&section.topics_in),
        local_prefix: section.local_prefix.clone(),
        remote_prefix: section.remote_prefix.clone(),
        qos: qos.unwrap_or(QoS::AtMostOnce),
        retain: section.retain,
        keep_alive: keep_alive.unwrap_or_default(),
        backoff_max: section.reconnect_backoff_max,
        session: queued!(section, broker.session.clone(), policies),
        receive_maximum: broker.receive_maximum,
        packet_bytes_max: broker.session.packet_bytes_max,
        ..BridgeSettings::default()
    };
    let checked = settings.check();
    problems.take(checked.map_err(|error| invalid(&format!("mqtt.bridge.{name}"), &error)));
    problems.into_result()?;
    Ok(settings)
}

fn bridge_tls(
    key_of: &dyn Fn(&str) -> String,
    section: &MqttBridgeSection,
    access: &Access,
) -> Result<RemoteTls, ApiError> {
    let key = key_of("ca");
    let path = section.ca.clone().unwrap_or_else(|| files::SYSTEM_AUTHORITIES.into());
    let verifier = trusted(&key, section.ca.as_deref())?;
    let verifier: Arc<dyn ServerCertVerifier> = match section.insecure {
        true => Arc::new(AnyName::new(verifier)),
        false => verifier,
    };
    // The site's own list: another authority's certificates are on none of ours.
    let verifier = Checked::new(verifier, vec![access.revocations.clone()]);
    let builder = tls::client(tls::VERSIONS)
        .map_err(|error| invalid(&key_of("tls"), &error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match (&section.certificate, &section.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(path)) => {
            let chain = certificates(&key_of("certificate"), certificate)?;
            let private = private_key(&key_of("key"), path)?;
            let shown = certified(chain, private)
                .map_err(|error| invalid(&key_of("certificate"), &error))?;
            builder.with_client_cert_resolver(shown)
        }
        _ => {
            let text = format!("{} and key go together; name both", key_of("certificate"));
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
    };
    // Files that are read again may hold something else.
    let mut digest = Sha256::new();
    digest.update([u8::from(section.insecure)]);
    for (key, path) in [("certificate", &section.certificate), ("key", &section.key)] {
        if let Some(path) = path {
            digest.update(&regular::read(path).map_err(|e| unreadable(&key_of(key), path, &e))?);
        }
    }
    for authority in files::authorities(&key, &path)? {
        digest.update(&authority);
    }
    Ok(RemoteTls::new(config, &digest.finalize()))
}

#[cfg(test)]
mod tests;
