//! Checks of a configuration, for `tidegate config check`, a start and a reload, before anything is begun.
//!
//! ```text
//!  Config ─▶ node: certificates, users, rules, keys, tables, listeners, flows, sinks, bridges, uplinks ─▶ Findings
//!         ─▶ reach: the servers of those, each within REACH_MAX ──────────────────────────────────────▶ Problems
//! ```
//!
//! Always true: nothing is written, made or opened for others; a mistake hides no other one; a start and a reload refuse what is a
//! problem here, in the same words.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use tidegate_api::ApiError;
use tidegate_camera::camera;
use tidegate_config::{Config, Purpose, problems::Problems};
use tidegate_doctor::node_keys;
use tidegate_flows::{Flows, PlanError};
use tidegate_identity::{
    access::Access,
    pki::{self, Kind},
};
use tidegate_link::link;
use tidegate_message::{Code, error_chain};
use tidegate_process::reach::server;
use tidegate_server::{
    bridge::RemoteTls,
    listen::{self, ListenAddress},
};
use tokio::{task::JoinSet, time::timeout};

use super::{
    bridges, broker,
    cameras::{self, resolve},
    certificates::{credentials, revocations_unknown},
    detect, flows, link_settings, sinks, uplinks, users, vision, web, workers,
};

/// How long a server may take until it counts as not reached.
pub const REACH_MAX: Duration = Duration::from_secs(5);

/// The findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Problems that a start refuses.
    pub problems: Problems,
    /// Problems that an operator should look at, and that do not stop a start.
    pub warnings: Problems,
}

/// The configuration that a node runs by, read and checked.
///
/// # Errors
/// All that is wrong.
pub fn read(path: Option<&Path>, flags: &[String]) -> Result<Config, ApiError> {
    let (config, found) = look(path, flags);
    found.problems.refuse()?;
    Ok(config)
}

/// All problems of the configuration that [`Config::load`] reads, and its valid settings.
pub fn look(path: Option<&Path>, flags: &[String]) -> (Config, Findings) {
    let (config, error) = Config::load_all(path, flags);
    let Some(error) = error else {
        let found = node(&config);
        return (config, found);
    };
    let mut found = Findings { problems: error.problems(), ..Findings::default() };
    // The settings of a file that cannot be read are unknown.
    if !error.hides_settings() {
        let rest = node(&config);
        found.problems.add(rest.problems);
        found.warnings = rest.warnings;
    }
    (config, found)
}

/// Looks at the cameras of a configuration, as a start does.
///
/// # Errors
/// All that is wrong with them.
pub fn cameras(config: &Config) -> Result<(), ApiError> {
    cameras::planned(config).map(drop)
}

/// Looks at all that a start of a node reads.
pub fn node(config: &Config) -> Findings {
    let mut problems = Problems::default();
    let mut warnings = Problems::default();
    // Where MQTT alone is served, no certificate is shown.
    let is_alone = config.is_mqtt_alone();
    let credentials = match is_alone {
        true => None,
        false => {
            let name = config.node.name.as_str();
            problems.take(credentials(config, Kind::Node, name))
        }
    };
    let access = match &credentials {
        Some(credentials) => {
            Access { revocations: credentials.revocations().clone(), ..Access::default() }
        }
        None => Access::default(),
    };
    match access.revocations.look_in(&config.state_dir()) {
        Ok(older) => {
            for error in older {
                warnings.say(Code::CONFIG_INVALID, error_chain(&error));
            }
        }
        Err(error) => problems.note(revocations_unknown(&error)),
    }
    problems.add(users::problems(config));
    let others = web::warning(config).into_iter().chain(users::vanished(config));
    for warning in users::warnings(config).into_iter().chain(others) {
        warnings.say(Code::CONFIG_INVALID, warning);
    }
    problems.take(users::fetcher(config));
    match camera::look_at_tables(config.tables_dir().as_deref()) {
        Ok((_, loaded)) => {
            for error in loaded.refused {
                let text = format!("frames.tables_dir: {}; it is left out", error_chain(&error));
                warnings.say(Code::TABLE_INVALID, text);
            }
        }
        Err(error) => {
            let text = format!("frames.tables_dir: {}", error_chain(&error));
            problems.say(Code::TABLE_INVALID, text);
        }
    }
    if let Err(error) = node_keys(&config.log) {
        let text = format!("{}; frames are kept in memory only", error_chain(&error));
        warnings.say(error.code(), text);
    }
    if config.node.enrol_listen.is_some()
        && let Err(error) = pki::Authority::load(&config.pki_dir())
    {
        let text =
            "node.enrol_listen: only the machine with the authority's key can redeem invitations";
        problems.note(ApiError::new(Code::CONFIG_INVALID, text).caused_by(error_chain(&error)));
    }
    problems.take(uplinks::planned(config));
    problems.take(cameras::planned(config));
    problems.take(workers::check(config));
    for text in workers::warnings(config) {
        warnings.say(Code::CONFIG_INVALID, text);
    }
    problems.take(vision::planned(config));
    problems.take(detect::planned(config));
    if config.mqtt.enabled {
        served(config, &access, &mut problems);
    }
    addresses(config, is_alone, &mut problems);
    Findings { problems: problems.placed(config), warnings: warnings.placed(config) }
}

/// The parts of MQTT, and its connections to others.
fn served(config: &Config, access: &Access, problems: &mut Problems) {
    problems.add(broker::problems(config, access));
    let broker = broker::broker(config).unwrap_or_default();
    problems.take(sinks::planned(config, &broker.session, Purpose::Check));
    let mut wrong = Vec::new();
    Flows::new(1, 0, 0).plan_all(&flows::settings(config), &mut wrong);
    for error in wrong {
        match error {
            // The file and its line lead to the mistake.
            PlanError::File { source, .. } if source.is_at_line() => {
                problems.say(Code::CONFIG_INVALID, error_chain(&source));
            }
            error => problems.say(Code::CONFIG_INVALID, error_chain(&error)),
        }
    }
}

/// The addresses at which a node with this configuration listens, each with its key: those of TCP, and those of UDP.
type Addresses = [Vec<(String, SocketAddr)>; 2];

fn listened_at(config: &Config, is_alone: bool) -> Addresses {
    let node = &config.node;
    let mut tcp: Vec<(String, SocketAddr)> = vec![
        ("node.api_listen".to_owned(), node.api_listen),
        ("link.listen".to_owned(), config.link.listen),
    ];
    let optional = [
        ("node.enrol_listen", node.enrol_listen),
        ("node.health_listen", node.health_listen),
        ("vision.listen", config.vision.listen),
        ("vision.tcp_listen", config.vision.tcp_listen),
        ("web.plain", config.web.plain),
    ];
    tcp.extend(optional.into_iter().filter_map(|(key, at)| Some((key.to_owned(), at?))));
    let mut udp = vec![("link.listen".to_owned(), config.link.listen)];
    if is_alone {
        tcp.clear();
        udp.clear();
    }
    if config.mqtt.enabled {
        for (name, section) in &config.mqtt_listeners {
            let key = format!("mqtt.listener.{name}.listen");
            tcp.extend(section.listen.known().into_iter().map(|address| (key.clone(), address)));
        }
        for (name, section) in &config.ingest {
            let sockets = if section.kind.is_of_datagrams() { &mut udp } else { &mut tcp };
            sockets.push((format!("ingest.{name}.listen"), section.listen));
        }
    }
    [tcp, udp]
}

/// Looks whether a start could listen where this configuration says: names have addresses, addresses are this machine's, and sockets of
/// the file system have their folders. It is no part of a reload, which leaves listeners where they are and must not depend on a resolver.
pub fn places(config: &Config) -> Problems {
    let mut problems = Problems::default();
    let mut look = |key: String, listen: &ListenAddress| {
        if let Err(error) = listen::look(listen) {
            let text = format!("{key}: {listen} cannot be listened on: {error}");
            problems.say(Code::CONFIG_INVALID, text);
        }
    };
    if config.mqtt.enabled {
        for (name, section) in &config.mqtt_listeners {
            look(format!("mqtt.listener.{name}.listen"), &section.listen);
        }
    }
    for (key, address) in listened_at(config, config.is_mqtt_alone()).into_iter().flatten() {
        if !key.starts_with("mqtt.") {
            look(key, &address.into());
        }
    }
    problems.placed(config)
}

/// Two listeners cannot have one address.
fn addresses(config: &Config, is_alone: bool, problems: &mut Problems) {
    if config.mqtt.enabled {
        let mut paths: BTreeMap<&Path, String> = BTreeMap::new();
        for (name, section) in &config.mqtt_listeners {
            let key = format!("mqtt.listener.{name}.listen");
            let ListenAddress::Unix(path) = &section.listen else { continue };
            if let Some(other) = paths.insert(path, key.clone()) {
                let path = path.display();
                let text = format!(
                    "{key}: unix:{path} is where {other} listens already; choose another path"
                );
                problems.say(Code::CONFIG_INVALID, text);
            }
        }
    }
    for sockets in listened_at(config, is_alone) {
        let mut by_port: BTreeMap<u16, Vec<(String, IpAddr)>> = BTreeMap::new();
        for (key, address) in sockets.into_iter().filter(|(_, address)| address.port() != 0) {
            let others = by_port.entry(address.port()).or_default();
            let overlaps = |other: &IpAddr| {
                *other == address.ip()
                    || (other.is_ipv4() == address.is_ipv4()
                        && (other.is_unspecified() || address.ip().is_unspecified()))
            };
            if let Some((other, _)) = others.iter().find(|(_, other)| overlaps(other)) {
                let text = format!(
                    "{key}: {address} is where {other} listens already; choose another port"
                );
                problems.say(Code::CONFIG_INVALID, text);
            }
            others.push((key, address.ip()));
        }
    }
}

/// Tries to reach every server that a node with this configuration would, all of them at once. Nothing is published or stored there.
///
/// # Cancel safety
/// Dropping it ends the tries.
pub async fn reach(config: &Config) -> Problems {
    let mut tries: JoinSet<Option<String>> = JoinSet::new();
    let mut problems = Problems::default();
    if let Ok(Some(fetcher)) = users::fetcher(config) {
        tries.spawn(within("auth.token_keys_url".to_owned(), async move {
            fetcher.fetch().await.map(drop).map_err(|error| error_chain(&error))
        }));
    }
    let credentials = credentials(config, Kind::Node, config.node.name.as_str()).ok();
    if config.mqtt.enabled {
        let broker = broker::broker(config).unwrap_or_default();
        let access = Access::default();
        for bridge in bridges::planned(config, &broker, &access, Purpose::Check).unwrap_or_default()
        {
            tries.spawn(within(format!("mqtt.bridge.{}.remote", bridge.name), async move {
                let tls = bridge.tls.as_ref().map(RemoteTls::config);
                server(&bridge.host, bridge.port, tls).await
            }));
        }
        let sinks = sinks::planned(config, &broker.session, Purpose::Check);
        for sink in sinks.unwrap_or_default() {
            tries.spawn(within(format!("sink.{}.url", sink.name), async move {
                sink.destination.reach().await
            }));
        }
        let uplinks = uplinks::planned(config).unwrap_or_default();
        for (uplink, credentials) in uplinks.into_iter().zip(std::iter::repeat(credentials)) {
            let Some(credentials) = credentials else { continue };
            let settings = link_settings(config);
            tries.spawn(within(format!("uplink.{}.to", uplink.name), async move {
                let address = resolve(&uplink.to).await.map_err(|e| e.chain())?;
                let link = link::dial(address, &credentials, settings, uplink.transport).await;
                let link =
                    link.map_err(|error| format!("{}: {}", uplink.to, error_chain(&error)))?;
                link.close(0, "the configuration was checked");
                Ok(())
            }));
        }
    }
    let mut missed = Vec::new();
    while let Some(tried) = tries.join_next().await {
        match tried {
            Ok(text) => missed.extend(text),
            Err(error) => problems.say(Code::INTERNAL, error_chain(&error)),
        }
    }
    missed.sort();
    for text in missed {
        problems.say(Code::LINK_DOWN, text);
    }
    problems.placed(config)
}

/// The problem with the server of that setting; none if it was reached.
async fn within(key: String, attempt: impl Future<Output = Result<(), String>>) -> Option<String> {
    match timeout(REACH_MAX, attempt).await {
        Ok(Ok(())) => None,
        Ok(Err(text)) => Some(format!("{key}: not reached: {text}")),
        Err(_) => Some(format!("{key}: not reached: no answer within {} s", REACH_MAX.as_secs())),
    }
}

impl fmt::Display for Findings {
    /// A line each, warnings behind problems.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter() {
            writeln!(f, "{problem}")?;
        }
        for warning in self.warnings.iter() {
            match &warning.place {
                Some(place) => writeln!(f, "{place}: warning: {}", warning.text)?,
                None => writeln!(f, "warning: {}", warning.text)?,
            }
        }
        Ok(())
    }
}
