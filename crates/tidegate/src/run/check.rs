//! Checks of a configuration, for `tidegate config check`, a start and a reload, before anything is begun.
//!
//! ```text
//!  Config ─▶ node:   each part looks at its sections ──────────▶ Findings
//!         ─▶ places: the addresses at which parts listen ──────▶ Problems
//!         ─▶ reach:  the servers of parts, each within REACH_MAX ▶ Problems
//! ```
//!
//! Always true: nothing is written, made or opened for others; a mistake hides no other one; a start and a reload refuse what is a
//! problem here, in the same words.

use std::{collections::BTreeMap, net::IpAddr, path::Path, time::Duration};

use tidegate_api::ApiError;
use tidegate_config::{Config, problems::Problems};
use tidegate_identity::{access::Access, pki::Kind};
use tidegate_message::{Code, error_chain};
use tidegate_server::listen;
use tokio::{task::JoinSet, time::timeout};

pub use super::findings::Findings;
use super::{PARTS, cameras, certificates::credentials, part::Listen};

/// How long a server may take until it counts as not reached.
pub const REACH_MAX: Duration = Duration::from_secs(5);

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
    let mut found = Findings::default();
    // Where MQTT alone is served, no certificate is shown.
    let credentials = match config.is_mqtt_alone() {
        true => None,
        false => {
            let name = config.node.name.as_str();
            found.problems.take(credentials(config, Kind::Node, name))
        }
    };
    let mut access = Access::default();
    if let Some(credentials) = credentials {
        access.revocations = credentials.revocations().clone();
    }
    for part in PARTS {
        part.check(config, &access, &mut found);
    }
    addresses(&listened(config), &mut found.problems);
    Findings { problems: found.problems.placed(config), warnings: found.warnings.placed(config) }
}

/// The addresses at which a node with this configuration listens.
fn listened(config: &Config) -> Vec<Listen> {
    let is_alone = config.is_mqtt_alone();
    let health = config.node.health_listen.map(|at| Listen::tcp("node.health_listen", at));
    let parts = PARTS.iter().filter(|part| !(is_alone && part.needs_certificate()));
    parts.flat_map(|part| part.listens(config)).chain(health).collect()
}

/// Looks whether a start could listen where this configuration says: names have addresses, addresses are this machine's, and sockets of
/// the file system have their folders. It is no part of a reload, which leaves listeners where they are and must not depend on a resolver.
pub fn places(config: &Config) -> Problems {
    let mut problems = Problems::default();
    for Listen { key, at, .. } in listened(config) {
        if let Err(error) = listen::look(&at) {
            let text = format!("{key}: {at} cannot be listened on: {error}");
            problems.say(Code::CONFIG_INVALID, text);
        }
    }
    problems.placed(config)
}

/// Two listeners cannot have one address.
fn addresses(listened: &[Listen], problems: &mut Problems) {
    let mut paths: BTreeMap<&Path, &str> = BTreeMap::new();
    for listen in listened {
        let Some(path) = listen.path() else { continue };
        if let Some(other) = paths.insert(path, &listen.key) {
            let (key, path) = (&listen.key, path.display());
            let text =
                format!("{key}: unix:{path} is where {other} listens already; choose another path");
            problems.say(Code::CONFIG_INVALID, text);
        }
    }
    for is_of_datagrams in [false, true] {
        let mut by_port: BTreeMap<u16, Vec<(&str, IpAddr)>> = BTreeMap::new();
        let sockets = listened.iter().filter(|listen| listen.is_of_datagrams == is_of_datagrams);
        let sockets = sockets.flat_map(|listen| {
            listen.at.known().into_iter().map(move |address| (&*listen.key, address))
        });
        for (key, address) in sockets.filter(|(_, address)| address.port() != 0) {
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
    for (key, attempt) in PARTS.iter().flat_map(|part| part.reaches(config)) {
        tries.spawn(within(key, attempt));
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
