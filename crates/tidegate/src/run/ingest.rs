//! Listeners for ingest as `[ingest.NAME]` describes them.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_broker::{SessionConfig, part_id};
use tidegate_config::{Config, IngestSection, Misplaced, problems::Problems};
use tidegate_identity::access::Access;
use tidegate_ingest::{
    DatagramFormat, Ingest, IngestKind, IngestSettings, Place, ServerTls, Template,
};
use tidegate_message::{Code, Identity, IdentityKind, origins::Origins};
use tidegate_sys::datagram::DATAGRAM_BYTES_MAX;

use super::{
    broker::usual_session,
    certificates::certificate,
    findings::Findings,
    node_name::node_of_paths,
    part::{Exchange, Listen, Part, Ports, Running, Started, dropped},
};

/// The part that has the ways in other than MQTT.
pub(super) struct Listeners;

#[async_trait]
impl Part for Listeners {
    fn name(&self) -> &'static str {
        "ingest"
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        if config.mqtt.enabled {
            let session = usual_session(config).unwrap_or_default();
            found.problems.take(listeners(config, &session));
        }
    }

    fn listens(&self, config: &Config) -> Vec<Listen> {
        if !config.mqtt.enabled {
            return Vec::new();
        }
        let listeners = config.ingest.iter().map(|(name, section)| {
            let key = format!("ingest.{name}.listen");
            match section.kind.is_of_datagrams() {
                true => Listen::udp(&key, section.listen),
                false => Listen::tcp(&key, section.listen),
            }
        });
        listeners.collect()
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let Some(bus) = &ports.bus else { return Ok(None) };
        let planned = listeners(config, &usual_session(config)?)?;
        if planned.is_empty() {
            return Ok(None);
        }
        let node: Arc<str> = node_of_paths(config, true)?.into();
        let mut running = BTreeMap::new();
        for settings in planned {
            let name = settings.name.clone();
            let (access, health) = (ports.access.clone(), &ports.health);
            let listener = Ingest::start(settings, node.clone(), bus, access, health);
            let listener = listener.map_err(|error| {
                let text = format!("ingest.{name} cannot be served");
                ApiError::new(Code::CONFIG_INVALID, text)
                    .caused_by(tidegate_message::error_chain(&error))
            })?;
            running.insert(name, listener);
        }
        ports.ingest = Arc::new(running);
        Ok(Some(Box::new(RunningListeners(ports.ingest.clone()))))
    }
}

struct RunningListeners(Arc<BTreeMap<Arc<str>, Ingest>>);

#[async_trait]
impl Running for RunningListeners {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let planned = listeners(new, &usual_session(new)?)?;
        Ok(Box::new(move |_| {
            for settings in planned {
                let name = settings.name.clone();
                if let Some(listener) = self.0.get(&name)
                    && !listener.exchange(settings)
                {
                    tracing::warn!(ingest = %name, "this listener changes at the next start");
                }
            }
            Ok(())
        }))
    }

    async fn stop(self: Box<Self>) {
        dropped("ingest", self).await;
    }
}

/// Bytes of a packet besides its payload, at most: header, topic, identifier, properties.
const PACKET_OVERHEAD_BYTES: usize = 66_000;

/// The listeners that `config` describes; `session` is what holds for clients of MQTT.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key, the bound and the way out.
pub(super) fn listeners(
    config: &Config,
    session: &SessionConfig,
) -> Result<Vec<IngestSettings>, ApiError> {
    let asks_for_proof = config.mqtt.password_file.is_some();
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
    let (kind, format) = (section.kind, section.format);
    let is_named = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !(1..=64).contains(&name.len()) || !name.chars().all(is_named) {
        let text =
            format!("{name:?} is no name of an ingest listener: 1 to 64 letters, digits, - _ .");
        problems.say(Code::CONFIG_INVALID, text);
    }
    for Misplaced { key, kinds } in section.misplaced() {
        let text = match key {
            "tls" => "is for http and websocket: DTLS is not spoken; leave it out".to_owned(),
            _ => {
                format!("means nothing but for kind = \"{}\"; leave it out", kinds.join("\" or \""))
            }
        };
        problems.note(wrong(key, &text));
    }
    let place = match (kind, format) {
        (IngestKind::Udp, DatagramFormat::Payload) => Some(Place::Datagram),
        (IngestKind::Udp, DatagramFormat::Line) | (IngestKind::Http, _) => Some(Place::Line),
        // The topic comes with the message.
        (IngestKind::Udp, DatagramFormat::TopicPayload)
        | (IngestKind::Coap | IngestKind::WebSocket, _) => None,
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
        (IngestKind::Http | IngestKind::WebSocket, true) => {
            problems.take(tls(config, &|key| format!("ingest.{name}.{key}"), section))
        }
        (IngestKind::Udp | IngestKind::Coap, true) => None,
        (_, false) if section.certificate.is_some() || section.key.is_some() => {
            problems.note(wrong("certificate", "and key need tls = true"));
            None
        }
        (_, false) => None,
    };
    let packet_bytes_max = session.packet_bytes_max as usize;
    let message_bytes = section.message_bytes_max.0 as usize;
    let message_most = match kind {
        IngestKind::Udp => DATAGRAM_BYTES_MAX,
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
    let origins = Origins::parse(section.origins.as_deref(), &format!("ingest.{name}.origins"));
    let origins = problems
        .take(origins.map_err(|error| wrong("origins", &format!("must be origins: {error}"))));
    let ip = section.listen.ip();
    // A site with users wants a login.
    let anonymous = section.allow_anonymous.unwrap_or(ip.is_loopback() && !asks_for_proof);
    let identity = match &section.identity {
        Some(user) => Some(of_listener(IdentityKind::User, user, name, ip)),
        None => anonymous.then(|| of_listener(IdentityKind::Anonymous, "", name, ip)),
    };
    if identity.is_none() && matches!(kind, IngestKind::Udp | IngestKind::Coap) {
        let text = "must name the user whose rights hold for messages that come in here, since their senders cannot authenticate; or set \
                    allow_anonymous = true";
        problems.note(wrong("identity", text));
    }
    if cfg!(not(feature = "xdp"))
        && kind == IngestKind::Udp
        && let Some(key) = xdp_key(section)
    {
        let text = "means nothing, for this build has no filter in the kernel; build with --features xdp, or leave it out";
        problems.note(wrong(key, text));
    }
    #[cfg(feature = "xdp")]
    let xdp = problems
        .take(xdp::settings(section).map_err(|wrong_xdp| wrong(wrong_xdp.key, &wrong_xdp.text)));
    problems.into_result()?;
    Ok(IngestSettings {
        name: name.into(),
        kind,
        listen: section.listen,
        format,
        topic,
        retain: section.retain,
        tls,
        method: section.receive,
        receive_buffer_bytes: section.receive_buffer_bytes.0 as usize,
        joins: section.receive_joined,
        identity,
        origins: origins.unwrap_or_default(),
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

fn tls(
    config: &Config,
    key_of: &dyn Fn(&str) -> String,
    section: &IngestSection,
) -> Result<ServerTls, ApiError> {
    let named = (section.certificate.as_deref(), section.key.as_deref());
    let (chain, key) = certificate(config, key_of, named)?;
    ServerTls::new(chain, key).map_err(|error| {
        let text = format!("{} and key do not go together", key_of("certificate"));
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(&error))
    })
}

/// A setting that only a filter in the kernel has.
fn xdp_key(section: &IngestSection) -> Option<&'static str> {
    section.keys_set().into_iter().find(|key| key.starts_with("xdp_"))
}

fn of_listener(kind: IdentityKind, user: &str, name: &str, ip: IpAddr) -> Identity {
    Identity { address: Some(ip), ..Identity::new(kind, user, &part_id("ingest", name)) }
}

/// Filters in the kernel.
#[cfg(feature = "xdp")]
mod xdp {
    use tidegate_ingest::{IngestKind, XdpSettings};
    use tidegate_xdp::{FilterError, parse_conditions, parse_fields};

    use super::{IngestSection, xdp_key};

    /// Which setting is wrong, and what would be right.
    pub(super) struct Wrong {
        pub(super) key: &'static str,
        pub(super) text: String,
    }

    /// The filter that a section describes, if it does.
    pub(super) fn settings(section: &IngestSection) -> Result<Option<XdpSettings>, Wrong> {
        if section.kind != IngestKind::Udp || xdp_key(section).is_none() {
            return Ok(None);
        }
        let wrong = |key, text: &str| Wrong { key, text: text.to_owned() };
        let interface = section.xdp_interface.as_ref().filter(|name| !name.is_empty());
        let interface = interface.ok_or_else(|| {
            wrong(
                "xdp_interface",
                "must name the network interface that datagrams come in by, as xdp settings are there",
            )
        })?;
        let said = |key, problem: &dyn std::fmt::Display| Wrong {
            key,
            text: format!("is wrong: {problem}"),
        };
        let fields = section.xdp_fields.as_deref().unwrap_or_default();
        let fields = parse_fields(fields).map_err(|error| said("xdp_fields", &error))?;
        let keep = section.xdp_keep.as_deref().unwrap_or_default();
        let (combine, conditions) =
            parse_conditions(keep).map_err(|error| said("xdp_keep", &error))?;
        let settings = XdpSettings {
            interface: interface.clone(),
            mode: section.xdp_mode,
            payload_bytes: section.xdp_payload_bytes,
            fields,
            combine,
            conditions,
        };
        match settings.filter(section.listen) {
            Ok(_) => Ok(Some(settings)),
            Err(error) => {
                let key = match error {
                    FilterError::Fields { .. }
                    | FilterError::Field(_)
                    | FilterError::Twice { .. } => "xdp_fields",
                    FilterError::TooLong { .. } | FilterError::Outside { .. } => {
                        "xdp_payload_bytes"
                    }
                    FilterError::Conditions { .. }
                    | FilterError::Unknown { .. }
                    | FilterError::Never { .. }
                    | FilterError::Always { .. } => "xdp_keep",
                };
                Err(said(key, &error))
            }
        }
    }
}

#[cfg(test)]
mod tests;
