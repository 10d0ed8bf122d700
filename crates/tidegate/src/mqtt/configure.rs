//! From the configuration to the settings of a server.

use std::{
    collections::HashMap,
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring,
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use tidegate_broker::{
    BrokerConfig, SessionConfig, TopicConfig,
    schedule::{DeadlineConfig, PaperConfig, Policy, PolicyConfig, SizeProfile, Threshold},
};
use tidegate_client::ApiError;
use tidegate_log::Durability;
use tidegate_message::{Authorize, Code, check_topic_filter, check_topic_name};
use tidegate_sys::regular;
use tidegate_wire::{mqtt::QoS, websocket::Paths};

use super::{
    bridge::{BridgeSettings, RemoteTls},
    journal::JournalSettings,
    listen::ListenAddress,
    settings::{ListenerSettings, ServerSettings, SessionSettings},
    spill::SpillSettings,
};
use crate::{
    access::Access,
    auth,
    config::{
        ByteCount, Config, ID_PREFIX_BOUND, MqttBridgeSection, MqttListenerSection, MqttSection,
        PACKET_BYTES_LEAST, Purpose, is_id_prefix, problems::Problems,
    },
    ingest::{self, IngestSettings},
    pki::{
        fields::{self, Fields},
        files::{self, certificates, private_key, unreadable},
        known::{AnyName, Fingerprint, Known},
        revocation::{Checked, Revocations},
    },
    uplink::hand_over,
};

/// The settings of the MQTT server that `config` describes.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the keys or the files.
pub(super) fn settings(
    config: &Config,
    access: Access,
    purpose: Purpose,
) -> Result<ServerSettings, ApiError> {
    let section = &config.mqtt;
    let mut problems = Problems::default();
    let broker = problems.take(broker(config)).unwrap_or_default();
    let listeners = problems.take_all(listeners(config, &broker, &access, purpose));
    problems.into_result()?;
    let processors = thread::available_parallelism().map_or(1, usize::from);
    Ok(ServerSettings {
        broker,
        listeners,
        shards: if section.shards == 0 { processors.min(255) } else { section.shards as usize },
        authorize: Arc::new(access.clone()) as Arc<dyn Authorize>,
        doors: Arc::new(access),
        operators: None,
        journal: (section.durability.0 != Durability::Memory).then(|| JournalSettings {
            folder: config.node.data_dir.join("log/mqtt"),
            is_on_disk: section.durability.0 == Durability::Disk,
            bytes_max: config.log.mqtt_bytes.0,
            commit_delay: config.log.mqtt_commit_delay,
        }),
        spill: (section.spill_bytes.0 > 0).then(|| SpillSettings {
            folder: config.node.data_dir.join("spill"),
            bytes_max: section.spill_bytes.0,
        }),
    })
}

/// What holds for all listeners.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the keys.
pub(crate) fn broker(config: &Config) -> Result<BrokerConfig, ApiError> {
    let section = &config.mqtt;
    let bytes = |count: ByteCount| u32::try_from(count.0).unwrap_or(u32::MAX);
    let mut problems = Problems::default();
    let policies = problems.take(policies(section)).unwrap_or_default();
    let marks = hand_over::sizes().map(|(filter, large_bytes)| {
        Ok(TopicConfig { filter, large_bytes: Some(large_bytes), overflow: None })
    });
    let topics = config.mqtt_topics.iter().map(|(name, topic)| {
        let key = format!("mqtt.topic.{name}.filter");
        check_topic_filter(&topic.filter, section.topic_levels_max as usize)
            .map_err(|error| invalid(&key, &error))?;
        Ok(TopicConfig {
            filter: topic.filter.clone(),
            large_bytes: topic.large_bytes.map(bytes),
            overflow: topic.overflow,
        })
    });
    let topics = problems.take_all(marks.chain(topics));
    problems.into_result()?;
    Ok(BrokerConfig {
        payload_bytes_max: section.payload_bytes_max.0,
        session_expiry_max: section.session_expiry_max,
        identity_share: section.identity_share,
        sessions_max: section.sessions_max as usize,
        subscriptions_max: section.subscriptions_max as usize,
        retained_max: section.retained_max as usize,
        inflight_max: section.inflight_max,
        receive_maximum: section.receive_maximum,
        topic_alias_max: section.topic_alias_max,
        topic_alias_out_max: section.topic_alias_out_max,
        keep_alive_max: u16::try_from(section.keepalive_max.as_secs()).unwrap_or(u16::MAX),
        session: session(section, &policies),
        topics,
        sys_interval: section.sys_interval,
        query_topic: section.policy_query_topic.as_str().into(),
        ..BrokerConfig::default()
    })
}

/// What holds for each listener.
fn listeners<'c>(
    config: &'c Config,
    broker: &'c BrokerConfig,
    access: &'c Access,
    purpose: Purpose,
) -> impl Iterator<Item = Result<ListenerSettings, ApiError>> + 'c {
    let section = &config.mqtt;
    let bytes = |count: ByteCount| u32::try_from(count.0).unwrap_or(u32::MAX);
    // What is wrong with them was said of the whole broker.
    let policies = Arc::new(policies(section).unwrap_or_default());
    config.mqtt_listeners.iter().map(move |(name, listener)| {
        let mut problems = Problems::default();
        check_listener(name, listener, section, &mut problems);
        let mut session = broker.session.clone();
        session.packet_bytes_max =
            listener.packet_bytes_max.map_or(session.packet_bytes_max, bytes);
        session.topic_levels_max =
            listener.topic_levels_max.map_or(session.topic_levels_max, |levels| levels as usize);
        session.topic_bytes_max =
            listener.topic_bytes_max.map_or(session.topic_bytes_max, |count| count.0 as usize);
        session.max_qos = listener.max_qos.map_or(session.max_qos, qos_of);
        session.retain_available = listener.retain_available.unwrap_or(session.retain_available);
        session.versions = listener.accept_protocol_versions.unwrap_or(session.versions);
        session.allow_zero_length_client_id =
            listener.allow_zero_length_clientid.unwrap_or(session.allow_zero_length_client_id);
        if let Some(prefix) = &listener.auto_id_prefix {
            session.auto_id_prefix = prefix.as_str().into();
        }
        session.queue_bytes_max =
            listener.queue_bytes_max.map_or(session.queue_bytes_max, |count| count.0);
        session.overflow_qos0 = listener.overflow_qos0.unwrap_or(session.overflow_qos0);
        session.overflow = listener.overflow.unwrap_or(session.overflow);
        session.policy =
            listener.policy.as_ref().map_or(session.policy, |policy| tuned(&policies, policy));
        session.large_bytes = listener.large_bytes.map_or(session.large_bytes, bytes);
        let users = config.mqtt_users.iter().map(|(user, section)| {
            let mut session = session.clone();
            session.queue_bytes_max =
                section.queue_bytes_max.map_or(session.queue_bytes_max, |count| count.0);
            session.overflow_qos0 = section.overflow_qos0.unwrap_or(session.overflow_qos0);
            session.overflow = section.overflow.unwrap_or(session.overflow);
            session.policy =
                section.policy.as_ref().map_or(session.policy, |policy| tuned(&policies, policy));
            session.large_bytes = section.large_bytes.map_or(session.large_bytes, bytes);
            (user.clone(), Arc::new(session))
        });
        let users: HashMap<_, _> = users.collect();
        let anonymous = listener.allow_anonymous.or(section.allow_anonymous).unwrap_or_else(|| {
            // Who makes users wants them to be asked for.
            // Behind a load balancer, everybody comes from its address.
            listener.listen.is_local()
                && listener.proxy_protocol.is_none()
                && section.password_file.is_none()
        });
        let revoked = problems.take(revocations(config, name, listener, access, purpose));
        let (site, revocations) = revoked.unwrap_or_default();
        let tls = match listener.protocol.is_secure() {
            true => problems.take(tls(config, name, listener, &revocations)),
            false => None,
        };
        problems.into_result()?;
        Ok(ListenerSettings {
            name: name.as_str().into(),
            listen: listener.listen.clone(),
            socket_mode: listener.socket_mode.unwrap_or_default(),
            protocol: listener.protocol,
            proxy_protocol: listener.proxy_protocol,
            paths: paths(&listener.paths).ok_or_else(|| {
                let text = format!(
                    "mqtt.listener.{name}.paths must be paths such as /mqtt, separated by commas, or * for any; it is {:?}",
                    listener.paths
                );
                ApiError::new(Code::CONFIG_INVALID, text)
            })?,
            tls,
            revocations,
            site: site.into(),
            connections_max: listener.connections_max as usize,
            connect_timeout: listener.connect_timeout,
            anonymous,
            identity: None,
            sessions: SessionSettings {
                usual: Arc::new(session),
                users: Arc::new(users),
                policies: policies.clone(),
            },
            tcp_congestion: listener.tcp_congestion.clone(),
            publish_rate_max: NonZeroU32::new(listener.publish_rate_max),
        })
    })
}

/// All that is wrong with what MQTT clients, bridges and other ways in are served by; nothing is written.
pub(crate) fn problems(config: &Config, access: &Access) -> Problems {
    let mut problems = Problems::default();
    let broker = problems.take(broker(config)).unwrap_or_default();
    problems.take_all(listeners(config, &broker, access, Purpose::Check));
    problems.take(bridges(config, &broker, access, Purpose::Check));
    problems.take(ingest(config, &broker));
    problems
}

/// The listeners beside MQTT that `config` describes.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key.
pub(super) fn ingest(
    config: &Config,
    broker: &BrokerConfig,
) -> Result<Vec<IngestSettings>, ApiError> {
    let asks_for_proof = config.mqtt.password_file.is_some();
    ingest::settings_of(config, &broker.session, asks_for_proof)
}

/// That policy with the numbers of this node.
fn tuned(policies: &PolicyConfig, policy: &Policy) -> Policy {
    policies.policy(policy.as_str()).expect("each policy has its word")
}

/// The numbers of the policies, whoever names one.
fn policies(section: &MqttSection) -> Result<PolicyConfig, ApiError> {
    check_topic_name(&section.policy_query_topic, section.topic_levels_max as usize)
        .map_err(|error| invalid("mqtt.policy_query_topic", &error))?;
    let threshold_l = match section.policy_threshold_samples {
        0 => Threshold::Fixed(section.policy_threshold_l),
        samples => Threshold::MovingAverage { samples: samples as usize },
    };
    let policies = PolicyConfig {
        deadline: DeadlineConfig {
            small_budget: section.policy_small_budget,
            deadline: section.policy_deadline,
            large_share: section.policy_large_share,
            ..DeadlineConfig::default()
        },
        paper: PaperConfig {
            threshold_l,
            query_period: section.policy_query_period,
            withhold_max: section.policy_withhold_max,
            query_bytes: section.policy_query_bytes.0,
            profile: size_profile(&section.policy_size_profile).ok_or_else(|| {
                let text = "mqtt.policy_size_profile must be linear, or sizes that grow with factors above 0, such as \
                            10kB:1, 1MB:10";
                ApiError::new(Code::CONFIG_INVALID, text)
            })?,
            lambda: section.policy_lambda,
        },
    };
    policies.check().map_err(|error| invalid("a number of the policies in [mqtt]", &error))?;
    Ok(policies)
}

/// `linear`, or points such as `10kB:1, 1MB:10`.
fn size_profile(text: &str) -> Option<SizeProfile> {
    if text.trim() == "linear" {
        return Some(SizeProfile::Linear);
    }
    let point = |text: &str| {
        let (bytes, factor) = text.split_once(':')?;
        let bytes: ByteCount = bytes.trim().parse().ok()?;
        let factor: f64 = factor.trim().parse().ok()?;
        (factor > 0.0 && factor.is_finite()).then_some((bytes.0, factor))
    };
    let points = text.split(',').map(point).collect::<Option<Vec<_>>>()?;
    points.is_sorted_by(|before, after| before.0 < after.0).then_some(SizeProfile::Points(points))
}

/// The settings of sessions for which nothing else is said.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key.
pub(crate) fn usual_session(config: &Config) -> Result<SessionConfig, ApiError> {
    Ok(session(&config.mqtt, &policies(&config.mqtt)?))
}

fn session(section: &MqttSection, policies: &PolicyConfig) -> SessionConfig {
    let bytes = |count: ByteCount| u32::try_from(count.0).unwrap_or(u32::MAX);
    SessionConfig {
        packet_bytes_max: bytes(section.packet_bytes_max),
        topic_levels_max: section.topic_levels_max as usize,
        topic_bytes_max: section.topic_bytes_max.0 as usize,
        queue_bytes_max: section.queue_bytes_max.0,
        queue_messages_max: section.queue_messages_max as usize,
        queue_idle_max: section.queue_idle_max,
        versions: section.accept_protocol_versions,
        max_qos: qos_of(section.max_qos),
        retain_available: section.retain_available,
        allow_zero_length_client_id: section.allow_zero_length_clientid,
        auto_id_prefix: section.auto_id_prefix.as_str().into(),
        topic_control_characters: section.topic_control_characters,
        overflow_qos0: section.overflow_qos0,
        overflow: section.overflow,
        policy: tuned(policies, &section.policy),
        large_bytes: bytes(section.large_bytes),
        ..SessionConfig::default()
    }
}

/// A checked QoS.
fn qos_of(number: u32) -> QoS {
    u8::try_from(number).ok().and_then(QoS::of_bits).expect("it was checked")
}

/// Where MQTT over WebSocket is.
fn paths(text: &str) -> Option<Paths> {
    if text.trim() == "*" {
        return Some(Paths::ANY);
    }
    let paths: Vec<&str> = text.split(',').map(str::trim).collect();
    // Others are asked for by no client.
    let is_path = |path: &&str| {
        path.starts_with('/')
            && path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte))
    };
    paths.iter().all(is_path).then(|| Paths::of(paths))
}

/// What the types of single settings cannot say.
fn check_listener(
    name: &str,
    listener: &MqttListenerSection,
    whole: &MqttSection,
    problems: &mut Problems,
) {
    let mut wrong = |key: &str, text: &str| {
        problems.say(Code::CONFIG_INVALID, format!("mqtt.listener.{name}.{key} {text}"));
    };
    if !listener.protocol.is_secure() {
        for (key, is_set) in [
            ("certificate", listener.certificate.is_some()),
            ("key", listener.key.is_some()),
            ("client_ca", listener.client_ca.is_some()),
            ("client_crl", listener.client_crl.is_some()),
            ("client_pins", listener.client_pins.is_some()),
            ("chain", listener.chain.is_some()),
            ("require_certificate", listener.require_certificate),
        ] {
            if is_set {
                wrong(key, "means nothing without TLS; set protocol to tls or secure-websocket");
            }
        }
    }
    let is_unix = matches!(listener.listen, ListenAddress::Unix(_));
    if listener.socket_mode.is_some() && !is_unix {
        return wrong(
            "socket_mode",
            "means nothing with an address; it is for listen = \"unix:/PATH\"",
        );
    }
    if listener.tcp_congestion.is_some() && is_unix {
        return wrong("tcp_congestion", "means nothing with a socket of the file system");
    }
    if let Some(name) = &listener.tcp_congestion {
        let kind = socket2::Type::STREAM;
        let set = socket2::Socket::new(socket2::Domain::IPV4, kind, Some(socket2::Protocol::TCP))
            .and_then(|socket| socket.set_tcp_congestion(name.as_bytes()));
        if let Err(error) = set {
            let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            let known = known.unwrap_or_default();
            let text =
                format!("{name:?} cannot be set ({error}); this system has: {}", known.trim());
            wrong("tcp_congestion", &text);
        }
    }
    if listener.connections_max == 0 {
        wrong("connections_max", "must be at least 1");
    }
    let packet = listener.packet_bytes_max.map_or(whole.packet_bytes_max.0, |count| count.0);
    if !(PACKET_BYTES_LEAST..=whole.packet_bytes_max.0).contains(&packet) {
        wrong("packet_bytes_max", "must be from 20B to mqtt.packet_bytes_max");
    }
    if listener.max_qos.is_some_and(|qos| qos > 2) {
        wrong("max_qos", "must be 0, 1 or 2");
    }
    if listener.auto_id_prefix.as_ref().is_some_and(|prefix| !is_id_prefix(prefix)) {
        wrong("auto_id_prefix", &format!("must be {ID_PREFIX_BOUND}"));
    }
    if listener.topic_levels_max.is_some_and(|levels| !(1..=65_535).contains(&levels)) {
        wrong("topic_levels_max", "must be from 1 to 65535");
    }
    if listener.topic_bytes_max.is_some_and(|count| !(1..=65_535).contains(&count.0)) {
        wrong("topic_bytes_max", "must be from 1B to 65535B");
    }
    if listener.connect_timeout < Duration::from_millis(100) {
        wrong("connect_timeout", "must be at least 100ms");
    }
}

/// The bridges that `config` describes, of the broker with these settings.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key or the file.
pub(crate) fn bridges(
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

/// The name of the node among those that a message passed: two nodes may have one name, as those that keep the default do.
///
/// # Errors
/// [`Code::STORAGE_FAILED`].
pub(crate) fn numbered_node(config: &Config, purpose: Purpose) -> Result<String, ApiError> {
    let number = auth::kept_random(&config.state_dir(), "node.id", purpose).map_err(|error| {
        let text = "node.data_dir cannot keep the number of the node";
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
    })?;
    let number: String = number[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{number}", config.node.name.as_str()))
}

/// The name of the node among those that a message passed. Where nothing is sent on it need not outlive the process.
///
/// # Errors
/// [`Code::STORAGE_FAILED`].
pub(crate) fn node_of_paths(config: &Config, only_receives: bool) -> Result<String, ApiError> {
    match numbered_node(config, Purpose::Run) {
        Err(error) if only_receives => {
            let error = crate::error_chain(&error);
            tracing::warn!(%error, "messages that come round after a restart are not known again");
            let number = u64::from_ne_bytes(super::server::random_bytes().map_err(|error| {
                ApiError::new(Code::INTERNAL, "the system gives no random bytes").caused_by(error)
            })?);
            Ok(format!("{}-{number:016x}", config.node.name.as_str()))
        }
        named => named,
    }
}

/// A host, without the brackets of an IPv6 address, and a port from `HOST:PORT`.
pub(crate) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then_some((host, port))
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
    let remote = host_and_port(&section.remote)
        .ok_or_else(|| wrong("remote", "a host and a port, such as mqtt.example:8883"));
    let (host, port) = problems.take(remote).unwrap_or_default();
    // What was meant to protect the password must not be left out without a word.
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
    if section.password_file.is_some() && section.username.is_none() {
        let text = format!("{} needs a username beside it", key_of("password_file"));
        problems.say(Code::CONFIG_INVALID, text);
    }
    let qos = u8::try_from(section.qos).ok().and_then(QoS::of_bits);
    let qos = problems.take(qos.ok_or_else(|| wrong("qos", "0, 1 or 2")));
    let list = |text: &str| {
        let filters = text.split(',').map(str::trim).filter(|filter| !filter.is_empty());
        filters.map(str::to_owned).collect()
    };
    let keep_alive = u16::try_from(section.keepalive.as_secs());
    let keep_alive = problems.take(keep_alive.map_err(|_| wrong("keepalive", "at most 65535s")));
    let password = section.password_file.as_ref().and_then(|path| {
        let read = regular::read(path);
        problems.take(read.map_err(|error| unreadable(&key_of("password_file"), path, &error)))
    });
    let password = password.map(|mut password| {
        while password.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
            password.pop();
        }
        password.into()
    });
    let tls = match section.tls {
        true => problems.take(bridge_tls(&key_of, section, access)),
        false => None,
    };
    let usual = &broker.session;
    let session = SessionConfig {
        queue_bytes_max: section.queue_bytes_max.map_or(usual.queue_bytes_max, |count| count.0),
        overflow_qos0: section.overflow_qos0.unwrap_or(usual.overflow_qos0),
        overflow: section.overflow.unwrap_or(usual.overflow),
        policy: section
            .policy
            .as_ref()
            .map_or_else(|| usual.policy.clone(), |policy| tuned(policies, policy)),
        large_bytes: section
            .large_bytes
            .map_or(usual.large_bytes, |count| u32::try_from(count.0).unwrap_or(u32::MAX)),
        ..usual.clone()
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
        username: section.username.clone(),
        password,
        topics_out: list(&section.topics_out),
        topics_in: list(&section.topics_in),
        local_prefix: section.local_prefix.clone(),
        remote_prefix: section.remote_prefix.clone(),
        qos: qos.unwrap_or(QoS::AtMostOnce),
        retain: section.retain,
        keep_alive: keep_alive.unwrap_or_default(),
        backoff_max: section.reconnect_backoff_max,
        session,
        receive_maximum: broker.receive_maximum,
        packet_bytes_max: broker.session.packet_bytes_max,
        ..BridgeSettings::default()
    };
    let checked = settings.check();
    problems.take(checked.map_err(|error| invalid(&format!("mqtt.bridge.{name}"), &error)));
    problems.into_result()?;
    Ok(settings)
}

/// Where Linux systems keep the authorities that they trust.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Who may vouch for a server: those in the file that `key` names, else those of the system.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key and the file.
pub(crate) fn authorities(key: &str, named: Option<&Path>) -> Result<RootCertStore, ApiError> {
    let path = named.unwrap_or(Path::new(SYSTEM_AUTHORITIES));
    let mut roots = RootCertStore::empty();
    for certificate in files::authorities(key, path)? {
        match roots.add(certificate) {
            Ok(()) => {}
            // One of many of the system's may be odd, one that was named must not.
            Err(error) if named.is_none() => {
                tracing::debug!(%error, path = %path.display(), "an authority is not used");
            }
            Err(error) => return Err(unreadable(key, path, &error)),
        }
    }
    Ok(roots)
}

fn bridge_tls(
    key_of: &dyn Fn(&str) -> String,
    section: &MqttBridgeSection,
    access: &Access,
) -> Result<RemoteTls, ApiError> {
    let key = key_of("ca");
    let path = section.ca.clone().unwrap_or_else(|| SYSTEM_AUTHORITIES.into());
    let roots = authorities(&key, section.ca.as_deref())?;
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| unreadable(&key, &path, &error))?;
    let verifier: Arc<dyn ServerCertVerifier> = match section.insecure {
        true => Arc::new(AnyName::new(verifier)),
        false => verifier,
    };
    // The site's own list: another authority's certificates are on none of ours.
    let verifier = Checked::new(verifier, vec![access.revocations.clone()]);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| invalid(&key_of("tls"), &error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match (&section.certificate, &section.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(path)) => {
            let chain = certificates(&key_of("certificate"), certificate)?;
            let private = private_key(&key_of("key"), path)?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| invalid(&key_of("certificate"), &error))?
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

/// The site's authorities among those of a listener's clients, and which of the clients' certificates no longer count: those
/// on the site's list, if there are such authorities, and those in the listener's own file.
fn revocations(
    config: &Config,
    name: &str,
    listener: &MqttListenerSection,
    access: &Access,
    purpose: Purpose,
) -> Result<(Vec<CertificateDer<'static>>, Vec<Arc<Revocations>>), ApiError> {
    let key_of = |key: &str| format!("mqtt.listener.{name}.{key}");
    let Some(path) = &listener.client_ca else {
        if listener.client_crl.is_some() {
            let text = format!("{} needs client_ca: who signed it?", key_of("client_crl"));
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        return Ok((Vec::new(), Vec::new()));
    };
    let mut authorities = files::authorities(&key_of("client_ca"), path)?;
    // A client's own certificate vouches for nobody.
    authorities.retain(|certificate| is_authority(certificate));
    let mut revocations = Vec::new();
    let of_site = |authority: &&CertificateDer<'_>| access.revocations.is_of(authority);
    // A node without certificates of a site has none: whoever signs its clients' is not asked who the nodes are.
    let site: Vec<_> = authorities.iter().filter(of_site).cloned().collect();
    if !site.is_empty() {
        revocations.push(access.revocations.clone());
    }
    if let Some(path) = &listener.client_crl {
        let failed = |error: &dyn std::error::Error| unreadable(&key_of("client_crl"), path, error);
        // A file that was named is there, or nobody was meant to be let in.
        fs::metadata(path).map_err(|error| failed(&error))?;
        let own = Revocations::open(path.clone(), authorities).map_err(|error| failed(&error))?;
        match purpose {
            Purpose::Check => {
                own.look_in(&config.state_dir()).map_err(|error| failed(&error))?;
            }
            Purpose::Run => {
                own.tell_to(access.audit.clone());
                for error in own.keep_in(&config.state_dir()).map_err(|error| failed(&error))? {
                    let error = crate::error_chain(&error);
                    tracing::error!(%error, listener = name, "the revocation list that was in use before stays in use");
                }
            }
        }
        revocations.push(Arc::new(own));
    }
    Ok((site, revocations))
}

/// TLS 1.2 and 1.3, since devices live long.
fn tls(
    config: &Config,
    name: &str,
    listener: &MqttListenerSection,
    revocations: &[Arc<Revocations>],
) -> Result<Arc<ServerConfig>, ApiError> {
    let key_of = |key: &str| format!("mqtt.listener.{name}.{key}");
    let files = (listener.certificate.as_deref(), listener.key.as_deref());
    let (chain, key) = files::certificate(config, &key_of, files)?;
    let named = |key: &str, path: &Option<PathBuf>| match path {
        Some(path) => files::authorities(&key_of(key), path),
        None => Ok(Vec::new()),
    };
    let authorities = named("client_ca", &listener.client_ca)?;
    let between = named("chain", &listener.chain)?;
    let chain = fields::completed(chain, &[between, authorities.clone()].concat());
    let pins = pins(listener.client_pins.as_deref().unwrap_or_default()).ok_or_else(|| {
        let text = format!(
            "{} must be SHA-256 fingerprints of certificates, of 64 hexadecimal digits each, with or without colons, separated by commas",
            key_of("client_pins")
        );
        ApiError::new(Code::CONFIG_INVALID, text)
    })?;
    let provider = Arc::new(ring::default_provider());
    let is_mandatory = listener.require_certificate;
    let verifier: Arc<dyn ClientCertVerifier> = if authorities.is_empty() && pins.is_empty() {
        if is_mandatory {
            let text = format!(
                "{} needs client_ca or client_pins: whose certificates are taken?",
                key_of("require_certificate")
            );
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        Arc::new(NoClientAuth)
    } else {
        let failed = |error: &dyn std::error::Error| {
            let path = listener.client_ca.as_deref().unwrap_or(Path::new("client_ca"));
            unreadable(&key_of("client_ca"), path, error)
        };
        let mut roots = RootCertStore::empty();
        for certificate in &authorities {
            if is_authority(certificate) {
                roots.add(certificate.clone()).map_err(|error| failed(&error))?;
            } else {
                tracing::info!(
                    listener = name,
                    fingerprint = %Fingerprint::of(certificate),
                    "client_ca holds a certificate that is of no authority: its owner may come in by it, and none that its key signs"
                );
            }
        }
        let others = match roots.is_empty() {
            true => None,
            false => {
                let roots = Arc::new(roots);
                let builder = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
                let builder = if is_mandatory { builder } else { builder.allow_unauthenticated() };
                Some(builder.build().map_err(|error| failed(&error))?)
            }
        };
        let known = Known::new(authorities, pins, others, is_mandatory);
        let known: Arc<dyn ClientCertVerifier> = Arc::new(known);
        Arc::new(Checked::new(known, revocations.to_vec()))
    };
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| invalid(&key_of("protocol"), &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| invalid(&key_of("certificate"), &error))?;
    Ok(Arc::new(config))
}

/// Fingerprints with commas between, perhaps none.
fn pins(text: &str) -> Option<Vec<Fingerprint>> {
    let pins = text.split(',').map(str::trim);
    match text.trim() {
        "" => Some(Vec::new()),
        _ => pins.map(Fingerprint::read).collect(),
    }
}

/// Whether a certificate is of an authority, and not a client's own.
fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    Fields::of(certificate).is_some_and(|fields| fields.is_authority())
}

fn invalid(key: &str, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{key} is wrong");
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(error))
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};

    use super::*;
    use crate::pki;

    fn access(config: &Config) -> Result<Access, ApiError> {
        Ok(Access { doors: Arc::new(auth::open(config)?), ..Access::default() })
    }

    fn read(text: &str) -> Result<Vec<BridgeSettings>, ApiError> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("secret"), "word\n").expect("a file");
        let place = folder.path().display();
        let text = text.replace("FOLDER", &place.to_string());
        let text = format!("[node]\nname = \"north\"\ndata_dir = \"{place}\"\n{text}");
        let config = Config::parse(Path::new("site.toml"), &text)?;
        let access = access(&config)?;
        let broker = settings(&config, access.clone(), Purpose::Run)?.broker;
        let again = bridges(&config, &broker, &access, Purpose::Run)?;
        let found = bridges(&config, &broker, &access, Purpose::Run)?;
        assert_eq!(
            found.first().map(|bridge| &bridge.node),
            again.first().map(|bridge| &bridge.node),
            "the node keeps its number"
        );
        Ok(found)
    }

    /// Devices' authorities say who their devices are, and not who is a node.
    #[test]
    fn without_a_site_no_authority_says_who_a_node_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let request = pki::InitRequest { nodes: vec!["edge".to_owned()], ..Default::default() };
        pki::init(folder.path(), &request).expect("certificates");
        let text = format!(
            "[node]\nname = \"edge\"\n[mqtt.listener.main]\nprotocol = \"tls\"\nclient_ca = {:?}\n",
            folder.path().join("ca.pem")
        );
        let config = Config::parse(Path::new("site.toml"), &text).expect("a configuration");
        let listener = config.mqtt_listeners.values().next().expect("it is named");
        let own = pki::load(folder.path(), "edge").expect("its certificate");
        let of_site = Access { revocations: own.revocations().clone(), ..Access::default() };
        for (access, authorities) in [(Access::default(), 0), (of_site, 1)] {
            let (site, lists) =
                revocations(&config, "main", listener, &access, Purpose::Run).expect("it is read");
            assert_eq!((site.len(), lists.len()), (authorities, authorities));
        }
    }

    #[test]
    fn a_bridge_is_read_from_its_section() {
        let found = read(
            "[mqtt.bridge.cloud]\nremote = \"[::1]:8883\"\nusername = \"me\"\n\
             password_file = \"FOLDER/secret\"\ntopics_out = \"a/#, b\"\ntopics_in = \"c\"\nqos = 1\nkeepalive = \"10s\"\n\
             queue_bytes_max = \"1MiB\"\nversion = \"3.1.1\"\npolicy = \"none\"\n",
        );
        let found = found.unwrap();
        let [bridge] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&*bridge.host, bridge.port), ("::1", 8883));
        assert_eq!(bridge.password.as_deref(), Some(&b"word"[..]));
        assert_eq!(bridge.topics_out, ["a/#", "b"]);
        assert_eq!((bridge.qos, bridge.keep_alive), (QoS::AtLeastOnce, 10));
        assert_eq!(bridge.session.queue_bytes_max, 1 << 20);
        assert_eq!(bridge.client_id, format!("{}.cloud", bridge.node));
        assert!(bridge.node.starts_with("north-"), "{}", bridge.node);
        assert!(read("").unwrap().is_empty());
    }

    #[test]
    fn paths_of_websockets_are_read() {
        assert_eq!(paths("/mqtt, /"), Some(Paths::of(["/mqtt", "/"])));
        assert_eq!(paths(" * "), Some(Paths::ANY));
        for wrong in ["", "mqtt", "/a,", "/a b", "/a?b", "/a#b", "/a, *"] {
            assert_eq!(paths(wrong), None, "{wrong}");
        }
    }

    /// Where the certificates of clients are that tests show.
    const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tls");

    /// Shows one certificate, whatever is wrong with it.
    #[derive(Debug)]
    struct Shows(Arc<rustls::sign::CertifiedKey>);

    impl Shows {
        fn file(name: &str, key: &str) -> Self {
            let chain = certificates("", &Path::new(CLIENTS).join(format!("{name}.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(format!("{CLIENTS}/{key}.key")).unwrap();
            let key = ring::default_provider().key_provider.load_private_key(key).unwrap();
            Self(Arc::new(rustls::sign::CertifiedKey::new(chain, key)))
        }
    }

    impl rustls::client::ResolvesClientCert for Shows {
        fn resolve(
            &self,
            _: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            Some(self.0.clone())
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    /// A handshake without sockets; what the server found wrong, or the certificates that it was shown and sent.
    fn shake_hands(
        server: &Arc<ServerConfig>,
        authority: &CertificateDer<'static>,
        shows: Shows,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> Result<Vec<CertificateDer<'static>>, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(shows));
        let name = "localhost".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = rustls::ServerConnection::new(server.clone()).unwrap();
        while client.wants_write() || server.wants_write() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets()?;
            }
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        assert!(!server.is_handshaking());
        Ok(client.peer_certificates().unwrap().to_vec())
    }

    #[test]
    fn a_known_certificate_is_taken_whatever_it_is_and_nothing_that_its_key_signs() {
        let folder = tempfile::tempdir().unwrap();
        let site = folder.path().join("pki");
        pki::init(&site, &pki::InitRequest::default()).unwrap();
        let authority = certificates("", &site.join("ca.pem")).unwrap().remove(0);
        let read = |name: &str| fs::read_to_string(format!("{CLIENTS}/{name}.pem")).unwrap();
        let all = ["ca", "own", "self", "leaf", "late"].map(read).concat();
        fs::write(folder.path().join("all.pem"), all).unwrap();
        fs::write(folder.path().join("leaf.pem"), read("leaf")).unwrap();
        let server = |lines: &str| {
            let text = format!(
                "[node]\ndata_dir = {:?}\n[mqtt.listener.main]\nprotocol = \"tls\"\ncertificate = {:?}\nkey = {:?}\n{lines}\n",
                folder.path(),
                site.join("edge.pem"),
                site.join("edge.key"),
            );
            let config = Config::parse(&folder.path().join("site.toml"), &text)?;
            let settings = settings(&config, access(&config)?, Purpose::Run)?;
            Ok::<_, ApiError>(settings.listeners[0].tls.clone().expect("it is secure"))
        };
        let fingerprint = |name: &str| {
            let path = Path::new(CLIENTS).join(format!("{name}.pem"));
            Fingerprint::of(&certificates("", &path).unwrap()[0]).to_string()
        };
        let of_ca = format!("client_ca = \"{CLIENTS}/ca.pem\"");
        let of_all = format!("client_ca = {:?}", folder.path().join("all.pem"));
        let of_leaf = format!("client_ca = {:?}", folder.path().join("leaf.pem"));
        let pinned = format!(
            "client_pins = \"{}, {}\"",
            fingerprint("old"),
            fingerprint("self").to_lowercase().replace(':', "")
        );
        let both = format!("{of_ca}\n{pinned}");
        let old = "X.509 version 1";
        for (lines, name, key, expected) in [
            (&of_all, "own", "own", None),
            (&of_all, "self", "self", None),
            (&of_all, "leaf", "leaf", None),
            (&of_leaf, "leaf", "leaf", None),
            (&pinned, "old", "old", None),
            (&both, "old", "old", None),
            (&both, "self", "self", None),
            // With the key of another, too late, or not known.
            (&of_all, "own", "forged", Some("BadSignature")),
            (&of_all, "late", "late", Some("Expired")),
            (&of_all, "old", "old", Some(old)),
            (&of_ca, "old", "old", Some(old)),
            (&of_ca, "own", "own", Some(old)),
            (&of_ca, "self", "self", Some("CA:TRUE")),
            (&of_ca, "leaf", "leaf", Some("signed by itself")),
            (&pinned, "own", "own", Some(old)),
            // What is signed with the key of a client.
            (&of_all, "forged", "forged", Some("UnknownIssuer")),
            (&of_leaf, "forged", "forged", Some("UnknownIssuer")),
            (&of_all, "forged-old", "forged", Some("UnknownIssuer")),
        ] {
            for version in [&TLS12, &TLS13] {
                for is_mandatory in [true, false] {
                    let lines = format!("{lines}\nrequire_certificate = {is_mandatory}");
                    let server = server(&lines).unwrap();
                    let found = shake_hands(&server, &authority, Shows::file(name, key), version);
                    let found = found.err().map(|error| match &error {
                        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(why)) => {
                            why.to_string()
                        }
                        error => error.to_string(),
                    });
                    match (&found, expected) {
                        (None, None) => {}
                        (Some(found), Some(expected)) => {
                            assert!(found.contains(expected), "{lines} {name}: {found}");
                        }
                        _ => panic!("{lines} {name}: {found:?}"),
                    }
                }
            }
        }
        for (lines, expected) in [
            ("client_pins = \"12:34\"", "client_pins must be SHA-256 fingerprints"),
            ("require_certificate = true", "needs client_ca or client_pins"),
        ] {
            let error = crate::error_chain(&server(lines).unwrap_err());
            assert!(error.contains(expected), "{lines}: {error}");
        }
    }

    #[test]
    fn certificates_between_a_listener_s_and_its_authority_are_sent() {
        let folder = tempfile::tempdir().unwrap();
        let is_authority = |name: &str| {
            let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.use_authority_key_identifier_extension = true;
            params
        };
        let key = || rcgen::KeyPair::generate().unwrap();
        let (root_key, upper_key, lower_key, own_key, other_key) =
            (key(), key(), key(), key(), key());
        let root_params = is_authority("root");
        let root = root_params.self_signed(&root_key).unwrap();
        let root_issuer = rcgen::Issuer::from_params(&root_params, &root_key);
        let upper_params = is_authority("upper");
        let upper = upper_params.signed_by(&upper_key, &root_issuer).unwrap();
        let upper_issuer = rcgen::Issuer::from_params(&upper_params, &upper_key);
        // Of the same name, and another key.
        let other = upper_params.signed_by(&other_key, &root_issuer).unwrap();
        let lower_params = is_authority("lower");
        let lower = lower_params.signed_by(&lower_key, &upper_issuer).unwrap();
        let lower_issuer = rcgen::Issuer::from_params(&lower_params, &lower_key);
        let mut own_params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        own_params.use_authority_key_identifier_extension = true;
        let own = own_params.signed_by(&own_key, &lower_issuer).unwrap();
        let write = |name: &str, text: String| {
            fs::write(folder.path().join(name), text).unwrap();
        };
        write("own.pem", own.pem());
        write("own-lower.pem", own.pem() + &lower.pem());
        write("own.key", own_key.serialize_pem());
        write("pool.pem", [other.pem(), root.pem(), upper.pem(), lower.pem()].concat());
        let ders = |all: &[&rcgen::Certificate]| -> Vec<CertificateDer<'static>> {
            all.iter().map(|one| one.der().clone()).collect()
        };
        let whole = ders(&[&own, &lower, &upper]);
        for (lines, expected) in [
            ("certificate = \"own.pem\"\nchain = \"pool.pem\"", Some(&whole)),
            ("certificate = \"own.pem\"\nclient_ca = \"pool.pem\"", Some(&whole)),
            ("certificate = \"own-lower.pem\"\nchain = \"pool.pem\"", Some(&whole)),
            // Without them the client trusts nobody that it is shown.
            ("certificate = \"own-lower.pem\"", None),
        ] {
            let text =
                format!("[mqtt.listener.main]\nprotocol = \"tls\"\nkey = \"own.key\"\n{lines}\n");
            let text = text.replace("= \"", &format!("= \"{}/", folder.path().display()));
            let text = text.replace(&format!("{}/tls", folder.path().display()), "tls");
            let config = Config::parse(&folder.path().join("site.toml"), &text).unwrap();
            let settings = settings(&config, access(&config).unwrap(), Purpose::Run).unwrap();
            let server = settings.listeners[0].tls.clone().unwrap();
            let mut roots = RootCertStore::empty();
            roots.add(root.der().clone()).unwrap();
            let provider = Arc::new(ring::default_provider());
            let client = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&TLS13])
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            let name = "localhost".try_into().unwrap();
            let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
            let mut server = rustls::ServerConnection::new(server).unwrap();
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().unwrap();
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            client.read_tls(&mut &bytes[..]).unwrap();
            let found = client.process_new_packets();
            assert_eq!(found.is_ok(), expected.is_some(), "{lines}: {found:?}");
            if let Some(expected) = expected {
                assert_eq!(client.peer_certificates().unwrap(), &expected[..], "{lines}");
            }
        }
    }

    #[test]
    fn a_listener_lets_in_without_a_proof_only_who_is_on_this_machine() {
        let listener = |text: &str| {
            let text = format!("[mqtt.listener.main]\n{text}\n");
            let config = Config::parse(Path::new("site.toml"), &text)?;
            settings(&config, access(&config)?, Purpose::Run)
        };
        for (text, anonymous) in [
            ("listen = \"127.0.0.1:1883\"", true),
            ("listen = \"localhost:1883\"", true),
            ("listen = \"unix:/run/mqtt.sock\"\nsocket_mode = \"0600\"", true),
            ("listen = \"0.0.0.0:1883\"", false),
            ("listen = \"broker.example:1883\"", false),
            ("listen = \"127.0.0.1:1883\"\nproxy_protocol = \"any\"", false),
            ("listen = \"unix:/run/mqtt.sock\"\nproxy_protocol = \"v2\"", false),
            ("listen = \"127.0.0.1:1883\"\nproxy_protocol = \"v1\"\nallow_anonymous = true", true),
        ] {
            let found = listener(text).unwrap();
            assert_eq!(found.listeners[0].anonymous, anonymous, "{text}");
        }
        for (text, expected) in [
            ("listen = \"localhost\"", "such as 127.0.0.1:1883"),
            ("listen = \"unix:mqtt.sock\"", "an absolute path"),
            ("socket_mode = \"0660\"", "mqtt.listener.main.socket_mode means nothing"),
            ("listen = \"unix:/a\"\nsocket_mode = \"rw\"", "in octal"),
            ("listen = \"unix:/a\"\ntcp_congestion = \"cubic\"", "tcp_congestion means nothing"),
            ("proxy_protocol = \"v3\"", "choose v1, v2 or any"),
            (
                "protocol = \"websocket\"\npaths = \"mqtt\"",
                "mqtt.listener.main.paths must be paths",
            ),
        ] {
            let error = crate::error_chain(&listener(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn policies_have_their_numbers() {
        let settings = |text: &str| {
            let text = format!("[mqtt]\n{text}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n");
            let config = Config::parse(Path::new("site.toml"), &text)?;
            settings(&config, access(&config)?, Purpose::Run)
        };
        let found = settings(
            "policy = \"probabilistic\"\npolicy_lambda = 0.5\npolicy_threshold_samples = 9\npolicy_query_period = \"1s\"\n\
             policy_size_profile = \"1kB:1, 2kB:3\"\npolicy_query_topic = \"rtt\"\npolicy_small_budget = \"7ms\"\n",
        );
        let found = found.unwrap();
        let session = &found.listeners[0].sessions.usual;
        let expected = PaperConfig {
            threshold_l: Threshold::MovingAverage { samples: 9 },
            query_period: Duration::from_secs(1),
            profile: SizeProfile::Points(vec![(1_000, 1.0), (2_000, 3.0)]),
            lambda: 0.5,
            ..PaperConfig::default()
        };
        assert_eq!(session.policy, Policy::Probabilistic(expected));
        assert_eq!(&*found.broker.query_topic, "rtt");
        // A client that names another policy has that one's numbers.
        let deadline = tuned(&found.listeners[0].sessions.policies, &Policy::default());
        let expected =
            DeadlineConfig { small_budget: Duration::from_millis(7), ..DeadlineConfig::default() };
        assert_eq!(deadline, Policy::Deadline(expected));
        assert_eq!(
            settings("").unwrap().broker.session,
            SessionConfig { packet_bytes_max: 64 << 20, ..SessionConfig::default() }
        );
        for (text, expected) in [
            ("policy_size_profile = \"2kB:1, 1kB:3\"", "mqtt.policy_size_profile"),
            ("policy_size_profile = \"2kB:0\"", "mqtt.policy_size_profile"),
            ("policy_query_topic = \"a/#\"", "mqtt.policy_query_topic"),
            ("policy_large_share = 1.0", "from 0 to 0.99"),
            ("policy_lambda = 0.0", "above 0"),
        ] {
            let error = crate::error_chain(&settings(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_bridged_names_its_key() {
        for (text, expected) in [
            ("topics_out = \"a\"", "mqtt.bridge.x.remote must be a host and a port"),
            ("remote = \"h:1\"", "neither topics_out nor topics_in"),
            (
                "remote = \"h:1\"\ntopics_out = \"a\"\nqos = 3",
                "mqtt.bridge.x.qos must be 0, 1 or 2",
            ),
            (
                "remote = \"h:1\"\ntopics_out = \"a\"\ntopics_in = \"+\"\nversion = \"3.1.1\"",
                "bridge_aware = true",
            ),
            ("remote = \"h:1\"\ntopics_out = \"a\"\nversion = \"4\"", "choose auto, 3.1.1 or 5"),
            (
                "remote = \"h:1\"\ntopics_out = \"a\"\nusername = \"u\"\npassword_file = \"/no/such\"",
                "mqtt.bridge.x.password_file",
            ),
            (
                "remote = \"h:1\"\ntopics_out = \"a\"\npassword_file = \"/no/such\"",
                "mqtt.bridge.x.password_file needs a username",
            ),
            (
                "remote = \"h:1\"\ntopics_out = \"a\"\nca = \"ca.pem\"",
                "mqtt.bridge.x.ca means nothing without TLS",
            ),
        ] {
            let error = read(&format!("[mqtt.bridge.x]\n{text}\n")).unwrap_err();
            let error = crate::error_chain(&error);
            assert!(error.contains(expected), "{error}");
        }
    }
}
