//! From the configuration to the settings of a server.

use std::{
    collections::HashMap,
    fs, io,
    io::Write as _,
    num::NonZeroU32,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tidegate_broker::{BrokerConfig, SessionConfig, TopicConfig};
use tidegate_client::ApiError;
use tidegate_message::{Authorize, Code, Identity, Proof, Refusal, check_topic_filter};

use super::settings::{Authenticate, ListenerSettings, Scram, ServerSettings, SessionSettings};
use crate::{
    auth::{self, Doors, DoorsConfig},
    config::{ByteCount, Config, MqttListenerSection},
};

/// The settings of the MQTT server that `config` describes.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key or the file.
pub fn settings(config: &Config, doors: Arc<Doors>) -> Result<ServerSettings, ApiError> {
    let section = &config.mqtt;
    let bytes = |count: ByteCount| u32::try_from(count.0).unwrap_or(u32::MAX);
    let session = SessionConfig {
        queue_bytes_max: section.queue_bytes_max.0,
        queue_messages_max: section.queue_messages_max as usize,
        overflow_qos0: section.overflow_qos0,
        overflow: section.overflow,
        policy: section.policy.clone(),
        large_bytes: bytes(section.large_bytes),
    };
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
    let broker = BrokerConfig {
        payload_bytes_max: section.payload_bytes_max.0,
        packet_bytes_max: bytes(section.packet_bytes_max),
        session_expiry_max: section.session_expiry_max,
        sessions_max: section.sessions_max as usize,
        subscriptions_max: section.subscriptions_max as usize,
        retained_max: section.retained_max as usize,
        inflight_max: section.inflight_max,
        topic_levels_max: section.topic_levels_max as usize,
        keep_alive_max: u16::try_from(section.keepalive_max.as_secs()).unwrap_or(u16::MAX),
        session: session.clone(),
        topics: topics.collect::<Result<_, ApiError>>()?,
        sys_interval: section.sys_interval,
        ..BrokerConfig::default()
    };
    let listeners = config.mqtt_listeners.iter().map(|(name, listener)| {
        let mut session = session.clone();
        session.queue_bytes_max =
            listener.queue_bytes_max.map_or(session.queue_bytes_max, |count| count.0);
        session.overflow_qos0 = listener.overflow_qos0.unwrap_or(session.overflow_qos0);
        session.overflow = listener.overflow.unwrap_or(session.overflow);
        session.policy = listener.policy.clone().unwrap_or(session.policy);
        session.large_bytes = listener.large_bytes.map_or(session.large_bytes, bytes);
        let users = config.mqtt_users.iter().map(|(user, section)| {
            let mut session = session.clone();
            session.queue_bytes_max =
                section.queue_bytes_max.map_or(session.queue_bytes_max, |count| count.0);
            session.overflow_qos0 = section.overflow_qos0.unwrap_or(session.overflow_qos0);
            session.overflow = section.overflow.unwrap_or(session.overflow);
            session.policy = section.policy.clone().unwrap_or(session.policy);
            session.large_bytes = section.large_bytes.map_or(session.large_bytes, bytes);
            (user.clone(), Arc::new(session))
        });
        let users: HashMap<_, _> = users.collect();
        let anonymous = listener.allow_anonymous.or(section.allow_anonymous).unwrap_or_else(|| {
            // Who makes users wants them to be asked for.
            listener.listen.ip().is_loopback() && section.password_file.is_none()
        });
        Ok(ListenerSettings {
            name: name.as_str().into(),
            listen: listener.listen,
            protocol: listener.protocol,
            tls: if listener.protocol.is_secure() {
                Some(tls(config, name, listener)?)
            } else {
                None
            },
            connections_max: listener.connections_max as usize,
            connect_timeout: listener.connect_timeout,
            anonymous,
            identity: None,
            sessions: SessionSettings { usual: Arc::new(session), users: Arc::new(users) },
            tcp_congestion: listener.tcp_congestion.clone(),
            publish_rate_max: NonZeroU32::new(listener.publish_rate_max),
        })
    });
    let processors = thread::available_parallelism().map_or(1, usize::from);
    Ok(ServerSettings {
        broker,
        listeners: listeners.collect::<Result<_, ApiError>>()?,
        shards: if section.shards == 0 { processors.min(255) } else { section.shards as usize },
        authorize: doors.clone() as Arc<dyn Authorize>,
        doors,
    })
}

/// Users and rules as `[mqtt]` names them.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] if a file cannot be read or a line of it is wrong.
pub fn open_doors(config: &Config) -> Result<Arc<Doors>, ApiError> {
    let decoy_key = if config.mqtt.password_file.is_some() {
        decoy_key(&config.node.data_dir.join("state")).map_err(|error| {
            let text = "node.data_dir cannot keep the state of the doors";
            ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
        })?
    } else {
        auth::password::DecoyKey([0; 32]) // there is no user to be told from
    };
    let doors = Doors::open(DoorsConfig {
        password_file: config.mqtt.password_file.clone(),
        acl_file: config.mqtt.acl_file.clone(),
        // Each listener says for itself.
        allow_anonymous: true,
        decoy_key,
    });
    let doors = doors.map_err(|error| {
        ApiError::new(Code::CONFIG_INVALID, "users and rules of MQTT cannot be read")
            .caused_by(crate::error_chain(&error))
    })?;
    for warning in doors.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(Arc::new(doors))
}

/// The key that makes unknown users look like known ones; made at the first start.
fn decoy_key(folder: &Path) -> io::Result<auth::password::DecoyKey> {
    let path = folder.join("doors.key");
    match fs::read(&path) {
        Ok(bytes) => match bytes.try_into() {
            Ok(key) => return Ok(auth::password::DecoyKey(key)),
            Err(_) => tracing::warn!(path = %path.display(), "not a key of ours; it is made anew"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let key: [u8; 32] = auth::password::random().map_err(io::Error::other)?;
    fs::create_dir_all(folder)?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all(&key)?;
    Ok(auth::password::DecoyKey(key))
}

/// TLS 1.2 and 1.3, since devices live long.
fn tls(
    config: &Config,
    name: &str,
    listener: &MqttListenerSection,
) -> Result<Arc<ServerConfig>, ApiError> {
    let key_of = |key: &str| format!("mqtt.listener.{name}.{key}");
    let own = |extension: &str| {
        config.pki_dir().join(format!("{}.{extension}", config.node.name.as_str()))
    };
    let (certificate, key) = match (&listener.certificate, &listener.key) {
        (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
        (None, None) => (own("pem"), own("key")),
        _ => {
            let text = format!("{} and key go together; name both", key_of("certificate"));
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
    };
    let chain = certificates(&key_of("certificate"), &certificate)?;
    let key = PrivateKeyDer::from_pem_file(&key)
        .map_err(|error| unreadable(&key_of("key"), &key, &error))?;
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ClientCertVerifier> = match &listener.client_ca {
        None if listener.require_certificate => {
            let text =
                format!("{} needs client_ca: who signs them?", key_of("require_certificate"));
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        None => Arc::new(NoClientAuth),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&key_of("client_ca"), path)? {
                roots
                    .add(certificate)
                    .map_err(|error| unreadable(&key_of("client_ca"), path, &error))?;
            }
            let builder =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let builder = if listener.require_certificate {
                builder
            } else {
                builder.allow_unauthenticated()
            };
            builder.build().map_err(|error| unreadable(&key_of("client_ca"), path, &error))?
        }
    };
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| invalid(&key_of("protocol"), &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| invalid(&key_of("certificate"), &error))?;
    Ok(Arc::new(config))
}

fn certificates(key: &str, path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, ApiError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unreadable(key, path, &error))?;
    if certificates.is_empty() {
        let text = format!("{key}: {} holds no certificate in PEM", path.display());
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    Ok(certificates)
}

fn unreadable(key: &str, path: &Path, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{key}: {} cannot be used", path.display());
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(error))
}

fn invalid(key: &str, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{key} is wrong");
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(error))
}

impl Authenticate for Doors {
    fn authenticate(&self, proof: &Proof) -> Result<Identity, Refusal> {
        Self::authenticate(self, proof, std::time::Instant::now())
    }

    fn is_slow(&self, proof: &Proof) -> bool {
        proof.password.is_some() || proof.username.is_some()
    }

    fn scram(self: Arc<Self>, proof: Proof, first: &[u8]) -> Result<Scram, Refusal> {
        let (scram, challenge) = self.begin_scram(first)?;
        let finish = Box::new(move |last: &[u8]| {
            self.finish_scram(scram, last, &proof, std::time::Instant::now())
        });
        Ok(Scram { challenge, finish })
    }
}
