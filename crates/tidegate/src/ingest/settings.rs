//! What a listener is made of, and how it comes from the configuration.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ServerConfig,
    version::{TLS12, TLS13},
};
use tidegate_broker::SessionConfig;
use tidegate_client::ApiError;
use tidegate_message::{
    Code, Identity, IdentityKind, TopicError, check_topic_characters, check_topic_name,
};
use tidegate_sys::{
    bpf::Mode,
    datagram::{DATAGRAM_BYTES_MAX, Method},
};

use super::topic::{Place, Template};
use crate::{
    config::{Config, IngestSection, problems::Problems},
    pki::files,
};

/// What of a packet is not its payload, at most: header, topic, identifier, properties.
const PACKET_OVERHEAD_BYTES: usize = 66_000;

/// A listener beside MQTT.
#[derive(Clone, Debug, PartialEq)]
pub struct IngestSettings {
    /// Its name, unique in the node.
    pub name: Arc<str>,
    /// What is spoken there.
    pub kind: Kind,
    /// Its address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What a datagram is, of [`Kind::Udp`].
    pub format: Format,
    /// Where what comes in goes that does not name its topic.
    pub topic: Template,
    /// Whether messages are retained.
    pub retain: bool,
    /// TLS, if it is spoken, of [`Kind::Http`] and [`Kind::WebSocket`].
    pub tls: Option<ServerTls>,
    /// How datagrams are received.
    pub method: Method,
    /// Bytes of datagrams that may wait in the kernel.
    pub receive_buffer_bytes: usize,
    /// Whether the kernel may join datagrams of one sender.
    pub joins: bool,
    /// Who everybody is that shows nothing; none where something must be shown.
    pub identity: Option<Identity>,
    /// Longest payload of a message.
    pub message_bytes_max: usize,
    /// Longest body of a request, unpacked.
    pub body_bytes_max: usize,
    /// Connections at a time.
    pub connections_max: usize,
    /// Messages that are taken a second, and a second's worth at once; none for any.
    pub rate_max: Option<NonZeroU32>,
    /// Longest time that a request may take to arrive, and a connection may be silent.
    pub request_timeout: Duration,
    /// Most levels of a topic, and its most bytes.
    pub topic_max: (usize, usize),
    /// Queue and schedule of what waits for this listener to be sent.
    pub session: SessionConfig,
    /// What the kernel drops of its datagrams.
    #[cfg(feature = "xdp")]
    pub xdp: Option<super::XdpSettings>,
}

/// How TLS is spoken at a listener. Two are the same if they show the same certificate.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    certificate: Vec<u8>,
}

impl PartialEq for ServerTls {
    fn eq(&self, other: &Self) -> bool {
        self.certificate == other.certificate
    }
}

impl ServerTls {
    /// TLS 1.2 and 1.3, since devices live long; clients show no certificate.
    fn open(
        config: &Config,
        key_of: &dyn Fn(&str) -> String,
        section: &IngestSection,
    ) -> Result<Self, ApiError> {
        let files = (section.certificate.as_deref(), section.key.as_deref());
        let (chain, key) = files::certificate(config, key_of, files)?;
        let certificate = chain.iter().flat_map(|part| part.to_vec()).collect();
        let wrong = |error: rustls::Error| {
            let text = format!("{} and key do not go together", key_of("certificate"));
            ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(&error))
        };
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&TLS13, &TLS12])
                .map_err(wrong)?
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .map_err(wrong)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), certificate })
    }
}

/// What is spoken at a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Datagrams.
    #[default]
    Udp,
    /// CoAP over UDP.
    Coap,
    /// HTTP/1.1.
    Http,
    /// WebSocket.
    WebSocket,
}

impl Kind {
    /// Whether its listener takes datagrams.
    pub(crate) fn is_of_datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::Coap)
    }
}

/// What a datagram is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A payload.
    #[default]
    Payload,
    /// A topic, the end of a line, and a payload.
    TopicPayload,
    /// Lines of InfluxDB's line protocol.
    Line,
}

macro_rules! words {
    ($type:ident, $what:literal, $($word:literal => $variant:ident),+) => {
        impl $type {
            const WORDS: &[(&str, Self)] = &[$(($word, Self::$variant)),+];

            /// Its word in configuration.
            pub fn word(self) -> &'static str {
                Self::WORDS.iter().find(|(_, known)| *known == self).expect("each has its word").0
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::WORDS.iter().find(|(word, _)| *word == text);
                found.map(|(_, known)| *known).ok_or_else(|| {
                    let words: Vec<&str> = Self::WORDS.iter().map(|(word, _)| *word).collect();
                    format!("{text:?} is no {}; choose one of: {}", $what, words.join(" "))
                })
            }
        }
    };
}

words!(Kind, "kind of listener", "udp" => Udp, "coap" => Coap, "http" => Http, "websocket" => WebSocket);
words!(Format, "form of a datagram", "payload" => Payload, "topic-payload" => TopicPayload, "line" => Line);

impl IngestSettings {
    /// Whether a message may have that topic, by its form.
    ///
    /// # Errors
    /// [`TopicError`].
    pub fn check_topic(&self, topic: &str) -> Result<(), TopicError> {
        let (levels_max, bytes_max) = self.topic_max;
        if topic.len() > bytes_max {
            return Err(TopicError::TooLong { bytes: topic.len(), limit: bytes_max });
        }
        check_topic_name(topic, levels_max)?;
        if self.session.topic_control_characters { Ok(()) } else { check_topic_characters(topic) }
    }

    /// Whether a topic is made of who sent a datagram.
    pub(super) fn names_sources(&self) -> bool {
        self.kind == Kind::Udp && self.format == Format::Payload && self.topic.names_source()
    }

    /// Whether another one of this name can take its place without its socket being made anew.
    pub(super) fn keeps_socket_of(&self, old: &Self) -> bool {
        let fixed = |it: &Self| {
            (it.kind, it.listen, it.method, it.receive_buffer_bytes, it.joins, it.session.clone())
        };
        let longest = self.kind != Kind::Udp || self.message_bytes_max == old.message_bytes_max;
        fixed(self) == fixed(old) && self.identity == old.identity && longest
    }
}

/// The listeners that `config` describes; `session` is what holds for clients of MQTT.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key, the bound and the way out.
pub(crate) fn all(
    config: &Config,
    session: &SessionConfig,
    asks_for_proof: bool,
) -> Result<Vec<IngestSettings>, ApiError> {
    let mut problems = Problems::default();
    let sections = config.ingest.iter();
    let listeners = problems.take_all(
        sections.map(|(name, section)| one(config, name, section, session, asks_for_proof)),
    );
    problems.into_result()?;
    Ok(listeners)
}

fn one(
    config: &Config,
    name: &str,
    section: &IngestSection,
    session: &SessionConfig,
    asks_for_proof: bool,
) -> Result<IngestSettings, ApiError> {
    let wrong = |key: &str, bound: &str| {
        ApiError::new(Code::CONFIG_INVALID, format!("ingest.{name}.{key} {bound}"))
    };
    let mut problems = Problems::default();
    let kind = section.kind;
    let is_named = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !(1..=64).contains(&name.len()) || !name.chars().all(is_named) {
        let text =
            format!("{name:?} is no name of an ingest listener: 1 to 64 letters, digits, - _ .");
        problems.say(Code::CONFIG_INVALID, text);
    }
    let place = match (kind, section.format) {
        (Kind::Udp, Format::Payload) => Some(Place::Datagram),
        (Kind::Udp, Format::Line) | (Kind::Http, _) => Some(Place::Line),
        // The topic comes with the message.
        (Kind::Udp, Format::TopicPayload) | (Kind::Coap | Kind::WebSocket, _) => None,
    };
    let topic = match (place, &section.topic) {
        (None, Some(_)) => {
            let text = "means nothing here, for each message names its topic; leave it out";
            problems.note(wrong("topic", text));
            Template::default()
        }
        (Some(place), text) => {
            let template = Template::parse(text.as_deref().unwrap_or(place.usual()), place);
            let template = template.map_err(|error| wrong("topic", &format!("is wrong: {error}")));
            problems.take(template).unwrap_or_default()
        }
        (None, None) => Template::default(),
    };
    let tls = match (kind, section.tls) {
        (Kind::Http | Kind::WebSocket, true) => {
            problems.take(ServerTls::open(config, &|key| format!("ingest.{name}.{key}"), section))
        }
        (Kind::Udp | Kind::Coap, true) => {
            let text = "is for http and websocket: DTLS is not spoken; leave it out";
            problems.note(wrong("tls", text));
            None
        }
        (_, false) if section.certificate.is_some() || section.key.is_some() => {
            problems.note(wrong("certificate", "and key need tls = true"));
            None
        }
        (_, false) => None,
    };
    let packet_bytes_max = session.packet_bytes_max as usize;
    let message_bytes = section.message_bytes_max.0 as usize;
    let message_most = match kind {
        Kind::Udp => DATAGRAM_BYTES_MAX,
        _ => packet_bytes_max.saturating_sub(PACKET_OVERHEAD_BYTES),
    };
    for (key, holds, bound) in [
        (
            "message_bytes_max",
            (1..=message_most).contains(&message_bytes),
            "must be at least 1B, and at most mqtt.packet_bytes_max less 66000B; at most 65535B of udp",
        ),
        (
            "body_bytes_max",
            (1 << 10..=64 << 20).contains(&section.body_bytes_max.0),
            "must be from 1KiB to 64MiB",
        ),
        (
            "receive_buffer_bytes",
            (4 << 10..=1 << 30).contains(&section.receive_buffer_bytes.0),
            "must be from 4KiB to 1GiB",
        ),
        (
            "connections_max",
            (1..=65_536).contains(&section.connections_max),
            "must be from 1 to 65536",
        ),
        (
            "request_timeout",
            (Duration::from_millis(100)..=Duration::from_secs(3600))
                .contains(&section.request_timeout),
            "must be from 100ms to 1h",
        ),
    ] {
        if !holds {
            problems.note(wrong(key, bound));
        }
    }
    let ip = section.listen.ip();
    // Who makes users wants them to be asked for.
    let anonymous = section.allow_anonymous.unwrap_or(ip.is_loopback() && !asks_for_proof);
    let identity = match &section.identity {
        Some(user) => Some(of_listener(IdentityKind::User, user, name, ip)),
        None => anonymous.then(|| of_listener(IdentityKind::Anonymous, "", name, ip)),
    };
    if identity.is_none() && matches!(kind, Kind::Udp | Kind::Coap) {
        let text = "must name the user whose rights hold for what comes in here, since nobody can show who it is; or set \
                    allow_anonymous = true";
        problems.note(wrong("identity", text));
    }
    if cfg!(not(feature = "xdp"))
        && let Some(key) = xdp_key(section)
    {
        let text = "means nothing, for this build has no filter in the kernel; build with --features xdp, or leave it out";
        problems.note(wrong(key, text));
    }
    #[cfg(feature = "xdp")]
    let xdp = problems.take(
        super::xdp::settings(section).map_err(|wrong_xdp| wrong(wrong_xdp.key, &wrong_xdp.text)),
    );
    problems.into_result()?;
    Ok(IngestSettings {
        name: name.into(),
        kind,
        listen: section.listen,
        format: section.format,
        topic,
        retain: section.retain,
        tls,
        method: section.receive,
        receive_buffer_bytes: section.receive_buffer_bytes.0 as usize,
        joins: section.receive_joined,
        identity,
        message_bytes_max: message_bytes,
        body_bytes_max: section.body_bytes_max.0 as usize,
        connections_max: section.connections_max as usize,
        rate_max: NonZeroU32::new(section.rate_max),
        request_timeout: section.request_timeout,
        topic_max: (session.topic_levels_max, session.topic_bytes_max),
        session: session.clone(),
        #[cfg(feature = "xdp")]
        xdp: xdp.flatten(),
    })
}

/// A setting that only a filter in the kernel has.
pub(super) fn xdp_key(section: &IngestSection) -> Option<&'static str> {
    let set = [
        ("xdp_interface", section.xdp_interface.is_some()),
        ("xdp_fields", section.xdp_fields.is_some()),
        ("xdp_keep", section.xdp_keep.is_some()),
        ("xdp_payload_bytes", section.xdp_payload_bytes.is_some()),
        ("xdp_mode", section.xdp_mode != Mode::Auto),
    ];
    set.iter().find(|(_, is_set)| *is_set).map(|(key, _)| *key)
}

fn of_listener(kind: IdentityKind, user: &str, name: &str, ip: IpAddr) -> Identity {
    Identity { address: Some(ip), ..Identity::new(kind, user, &format!("ingest/{name}")) }
}
