//! The listeners of MQTT as `[mqtt.listener.NAME]` describes them: sessions, certificates, and who may come without a proof.

use std::{
    collections::HashMap,
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    RootCertStore, ServerConfig,
    server::{NoClientAuth, danger::ClientCertVerifier},
};
use rustls_pki_types::CertificateDer;
use tidegate_api::ApiError;
use tidegate_broker::BrokerConfig;
use tidegate_config::{
    Config, ID_PREFIX_BOUND, Misplaced, MqttListenerSection, MqttSection, PACKET_BYTES_LEAST,
    Purpose, is_id_prefix, problems::Problems,
};
use tidegate_identity::{
    access::Access,
    pki::{
        fields::{self, Fields},
        files::{self, unreadable},
        known::{Fingerprint, Known},
        revocation::{Checked, Revocations},
        servers::certified,
    },
};
use tidegate_message::{Code, origins::Origins};
use tidegate_process::tls;
use tidegate_server::{
    listen::ListenAddress,
    settings::{ListenerSettings, SessionSettings},
};
use tidegate_wire::websocket::Paths;

use super::{
    certificates::{certificate, write_shown},
    invalid,
    keys::{bytes_of, qos_of, queued, versions_of},
    policies::policies,
};

/// The settings of each listener.
pub(super) fn all<'c>(
    config: &'c Config,
    broker: &'c BrokerConfig,
    access: &'c Access,
    purpose: Purpose,
) -> impl Iterator<Item = Result<ListenerSettings, ApiError>> + 'c {
    let section = &config.mqtt;
    // Their problems were reported for the whole broker.
    let policies = Arc::new(policies(section).unwrap_or_default());
    config.mqtt_listeners.iter().map(move |(name, listener)| {
        let mut problems = Problems::default();
        check_listener(name, listener, section, &mut problems);
        let mut session = broker.session.clone();
        session.packet_bytes_max =
            listener.packet_bytes_max.map_or(session.packet_bytes_max, bytes_of);
        session.topic_levels_max =
            listener.topic_levels_max.map_or(session.topic_levels_max, |levels| levels as usize);
        session.topic_bytes_max =
            listener.topic_bytes_max.map_or(session.topic_bytes_max, |count| count.0 as usize);
        session.max_qos = listener.max_qos.map_or(session.max_qos, qos_of);
        session.retain_available = listener.retain_available.unwrap_or(session.retain_available);
        session.versions = listener.accept_protocol_versions.map_or(session.versions, versions_of);
        session.allow_zero_length_client_id =
            listener.allow_zero_length_clientid.unwrap_or(session.allow_zero_length_client_id);
        if let Some(prefix) = &listener.auto_id_prefix {
            session.auto_id_prefix = prefix.as_str().into();
        }
        let session = queued!(listener, session, &policies);
        let users = config.mqtt_users.iter().map(|(user, section)| {
            let session = queued!(section, session.clone(), &policies);
            (user.clone(), Arc::new(session))
        });
        let users: HashMap<_, _> = users.collect();
        let anonymous = listener.allow_anonymous.or(section.allow_anonymous).unwrap_or_else(|| {
            // A site with users wants a login.
            // Behind a load balancer, all clients come from its address.
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
        let (tls, known) = tls.unzip();
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
            origins: origins(name, listener)?,
            tls,
            known: known.flatten(),
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

/// The pages that may open a WebSocket.
fn origins(name: &str, listener: &MqttListenerSection) -> Result<Arc<Origins>, ApiError> {
    let key = format!("mqtt.listener.{name}.origins");
    let origins = Origins::parse(listener.origins.as_deref(), &key);
    origins.map(Arc::new).map_err(|error| {
        ApiError::new(Code::CONFIG_INVALID, format!("{key} must be origins: {error}"))
    })
}

/// Checks across the settings of a listener.
fn check_listener(
    name: &str,
    listener: &MqttListenerSection,
    whole: &MqttSection,
    problems: &mut Problems,
) {
    let mut wrong = |key: &str, text: &str| {
        problems.say(Code::CONFIG_INVALID, format!("mqtt.listener.{name}.{key} {text}"));
    };
    for Misplaced { key, kinds } in listener.misplaced() {
        let layer = if key == "origins" { "WebSocket" } else { "TLS" };
        let protocols = kinds.join(" or ");
        wrong(key, &format!("means nothing without {layer}; set protocol to {protocols}"));
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

/// The site's authorities, where a listener takes certificates, and which of its clients' no longer count: those on the site's list and
/// those in the listener's own file. A certificate of the site is that of its node and may be revoked by whatever it is let in: an
/// authority, its own place in `client_ca`, or a pin. A node without certificates of a site has neither authorities nor list.
fn revocations(
    config: &Config,
    name: &str,
    listener: &MqttListenerSection,
    access: &Access,
    purpose: Purpose,
) -> Result<(Vec<CertificateDer<'static>>, Vec<Arc<Revocations>>), ApiError> {
    let key_of = |key: &str| format!("mqtt.listener.{name}.{key}");
    let site = access.revocations.authorities().to_vec();
    let list = (!site.is_empty()).then(|| access.revocations.clone());
    let of_site = (site, list.into_iter().collect());
    let Some(path) = &listener.client_ca else {
        if listener.client_crl.is_some() {
            let text = format!("{} needs client_ca: who signed it?", key_of("client_crl"));
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        return Ok(match listener.client_pins {
            Some(_) => of_site,
            None => (Vec::new(), Vec::new()),
        });
    };
    let (site, mut revocations) = of_site;
    let mut authorities = files::authorities(&key_of("client_ca"), path)?;
    // A client's own certificate is no authority.
    authorities.retain(|certificate| is_authority(certificate));
    if let Some(path) = &listener.client_crl {
        let failed = |error: &dyn std::error::Error| unreadable(&key_of("client_crl"), path, error);
        // A file that was named is there, or no client was meant to be accepted.
        fs::metadata(path).map_err(|error| failed(&error))?;
        let own = Revocations::open(path.clone(), authorities).map_err(|error| failed(&error))?;
        match purpose {
            Purpose::Check => {
                own.look_in(&config.state_dir()).map_err(|error| failed(&error))?;
            }
            Purpose::Run => {
                own.tell_to(write_shown(access.audit.clone()));
                for error in own.keep_in(&config.state_dir()).map_err(|error| failed(&error))? {
                    let error = tidegate_message::error_chain(&error);
                    tracing::error!(%error, listener = name, "the revocation list that was in use before stays in use");
                }
            }
        }
        revocations.push(Arc::new(own));
    }
    Ok((site, revocations))
}

/// TLS 1.2 and 1.3, since devices live long, and whose certificates it takes; none if it asks for none.
fn tls(
    config: &Config,
    name: &str,
    listener: &MqttListenerSection,
    revocations: &[Arc<Revocations>],
) -> Result<(Arc<ServerConfig>, Option<Arc<Known>>), ApiError> {
    let key_of = |key: &str| format!("mqtt.listener.{name}.{key}");
    let files = (listener.certificate.as_deref(), listener.key.as_deref());
    let (chain, key) = certificate(config, &key_of, files)?;
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
    let is_mandatory = listener.require_certificate;
    let known = if authorities.is_empty() && pins.is_empty() {
        if is_mandatory {
            let text = format!(
                "{} needs client_ca or client_pins: whose certificates are taken?",
                key_of("require_certificate")
            );
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        None
    } else {
        let failed = |error: &dyn std::error::Error| {
            let path = listener.client_ca.as_deref().unwrap_or(Path::new("client_ca"));
            unreadable(&key_of("client_ca"), path, error)
        };
        let mut roots = RootCertStore::empty();
        for certificate in &authorities {
            if is_authority(certificate) {
                roots.add(certificate.clone()).map_err(|error| failed(&error))?;
            } else if Fields::of(certificate).is_some_and(|fields| fields.is_self_issued()) {
                // Nothing tells an authority of X.509 version 1 from a client's own certificate.
                tracing::warn!(
                    listener = name,
                    fingerprint = %Fingerprint::of(certificate),
                    "client_ca holds a certificate that signed itself and does not say that it is an authority (CA:TRUE): its owner may come \
                     in by it; certificates that its key signs are refused"
                );
            } else {
                tracing::info!(
                    listener = name,
                    fingerprint = %Fingerprint::of(certificate),
                    "client_ca holds a certificate that is not an authority's: its owner is accepted with it, but no certificate that its key signed"
                );
            }
        }
        let others = match roots.is_empty() {
            true => None,
            false => Some(tls::clients_of(roots, is_mandatory).map_err(|error| failed(&error))?),
        };
        Some(Arc::new(Known::new(authorities, pins, others, is_mandatory)))
    };
    let verifier: Arc<dyn ClientCertVerifier> = match &known {
        None => Arc::new(NoClientAuth),
        Some(known) => {
            let known: Arc<dyn ClientCertVerifier> = known.clone();
            Arc::new(Checked::new(known, revocations.to_vec()))
        }
    };
    let shown = certified(chain, key).map_err(|error| invalid(&key_of("certificate"), &error))?;
    let config = tls::server(tls::VERSIONS)
        .map_err(|error| invalid(&key_of("protocol"), &error))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(shown);
    Ok((Arc::new(config), known))
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

#[cfg(test)]
mod tests {
    use rustls::version::{TLS12, TLS13};
    use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
    use tidegate_identity::pki::{self, files::certificates};

    use super::*;
    use crate::run::{broker::settings, users};

    fn access(config: &Config) -> Result<Access, ApiError> {
        Ok(Access { authenticator: Arc::new(users::open(config)?), ..Access::default() })
    }

    /// Devices' authorities name their devices, and no nodes.
    #[test]
    fn without_a_site_no_authority_says_who_a_node_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let request = pki::InitRequest { nodes: vec!["edge".to_owned()], ..Default::default() };
        pki::init(folder.path(), &request).expect("certificates");
        let own = pki::load(folder.path(), "edge").expect("its certificate");
        // By whatever a certificate of the site is let in, it is that of its node and may be revoked.
        let by_authority = format!("client_ca = {:?}", folder.path().join("ca.pem"));
        let by_itself = format!("client_ca = {:?}", folder.path().join("edge.pem"));
        let by_pin = format!("client_pins = \"{}\"", "ab".repeat(32));
        for (line, counts) in [(by_authority, 1), (by_itself, 1), (by_pin, 1), (String::new(), 0)] {
            let text = format!(
                "[node]\nname = \"edge\"\n[mqtt.listener.main]\nprotocol = \"tls\"\n{line}\n"
            );
            let config = Config::parse(Path::new("site.toml"), &text).expect("a configuration");
            let listener = config.mqtt_listeners.values().next().expect("it is named");
            let of_site = Access { revocations: own.revocations().clone(), ..Access::default() };
            for (access, authorities) in [(Access::default(), 0), (of_site, counts)] {
                let (site, lists) = revocations(&config, "main", listener, &access, Purpose::Run)
                    .expect("it is read");
                assert_eq!((site.len(), lists.len()), (authorities, authorities), "{line}");
            }
        }
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
    const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tidegate-identity/testdata/tls");

    /// Shows one certificate, whatever is wrong with it.
    #[derive(Debug)]
    struct Shows(Arc<rustls::sign::CertifiedKey>);

    impl Shows {
        fn file(name: &str, key: &str) -> Self {
            let chain = certificates("", &Path::new(CLIENTS).join(format!("{name}.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(format!("{CLIENTS}/{key}.key")).unwrap();
            let key = tls::provider().key_provider.load_private_key(key).unwrap();
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

    /// A handshake without sockets; the server's objection, or the certificates that it was shown and sent.
    fn shake_hands(
        server: &Arc<ServerConfig>,
        authority: &CertificateDer<'static>,
        shows: Shows,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> Result<Vec<CertificateDer<'static>>, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).unwrap();
        let client = tls::client(&[version])
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
            // A certificate signed with the key of a client.
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
            let error = tidegate_message::error_chain(&server(lines).unwrap_err());
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
            // Without them the client trusts no server.
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
            let client =
                tls::client(&[&TLS13]).unwrap().with_root_certificates(roots).with_no_client_auth();
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
            let error = tidegate_message::error_chain(&listener(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
