//! `connection` and what stands below it, as a section `[mqtt.bridge.NAME]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{Import, Setting, quoted};
use crate::mqtt::bridge::{BridgeError, BridgeSettings, RemoteVersion};

/// Settings of a connection; they belong to the last one above them, whatever stands between.
const KEYS: &[&str] = &[
    "address",
    "addresses",
    "clientid",
    "cleansession",
    "idle_timeout",
    "keepalive_interval",
    "notification_topic",
    "notifications",
    "notifications_local_only",
    "password",
    "restart_timeout",
    "round_robin",
    "start_type",
    "threshold",
    "topic",
    "try_private",
    "username",
];

/// Why a setting has no counterpart, whatever its value is.
const REASONS: &[(&str, &str)] = &[
    ("bridge_alpn", "no protocol is named to the remote in TLS (ALPN)"),
    (
        "bridge_attempt_unsubscribe",
        "a bridge looks after its subscriptions at the remote by itself",
    ),
    ("bridge_capath", "one file of certificates is read: join them into one and name it in ca"),
    ("bridge_bind_address", "the system chooses the address that a bridge connects from"),
    ("bridge_ciphers", "cipher suites are those of TLS 1.2 and 1.3 that rustls holds safe"),
    ("bridge_insecure", "the name in the remote's certificate is always checked"),
    ("bridge_max_packet_size", "packets are bounded by mqtt.packet_bytes_max"),
    ("bridge_tls_version", "TLS 1.2 and 1.3 are spoken; older versions are not safe"),
    ("idle_timeout", ALWAYS),
    ("local_", "the bridge's session here needs no name and no password"),
    ("notification", "its state stands in $SYS/broker/connection/NAME/state of this node alone"),
    ("remote_password", PASSWORD),
    (
        "restart_timeout",
        "waits grow from a hundredth of reconnect_backoff_max, or 50 ms, to it: set that",
    ),
    ("threshold", ALWAYS),
];
const ALWAYS: &str = "a bridge is connected all the time";
const PASSWORD: &str =
    "it is a secret: put it into a file of its own and name that in password_file";
/// Settings without which a bridge would be less protected than it was.
const PROTECTION: &[&str] = &["bridge_identity", "bridge_psk", "bridge_capath"];

/// A `connection`.
#[derive(Debug)]
pub(super) struct Bridge {
    opened: Setting,
    settings: BTreeMap<&'static str, Setting>,
    topics: Vec<Setting>,
    /// Settings that are not translated, whatever they say.
    others: Vec<(String, Setting)>,
}

/// A `topic` line.
struct Topic {
    pattern: String,
    goes_out: bool,
    comes_in: bool,
    qos: u8,
    local: String,
    remote: String,
}

/// Whether a setting belongs to a connection.
pub(super) fn is_of_bridge(key: &str) -> bool {
    KEYS.contains(&key) || ["bridge_", "local_", "remote_"].iter().any(|name| key.starts_with(name))
}

impl Bridge {
    pub(super) fn new(opened: Setting) -> Self {
        Self { opened, settings: BTreeMap::new(), topics: Vec::new(), others: Vec::new() }
    }

    /// Takes a setting; returns the one that it is in place of.
    pub(super) fn set(&mut self, key: &str, setting: Setting) -> Option<Setting> {
        let key = match key {
            "topic" => {
                self.topics.push(setting);
                return None;
            }
            "address" | "addresses" => "address",
            "bridge_cafile" => "bridge_cafile",
            "bridge_certfile" => "bridge_certfile",
            "bridge_keyfile" => "bridge_keyfile",
            "bridge_outgoing_retain" => "bridge_outgoing_retain",
            "bridge_protocol_version" => "bridge_protocol_version",
            "bridge_require_ocsp" => "bridge_require_ocsp",
            "bridge_tls_use_os_certs" => "bridge_tls_use_os_certs",
            "cleansession" => "cleansession",
            "keepalive_interval" => "keepalive_interval",
            "clientid" | "remote_clientid" => "remote_clientid",
            "remote_username" | "username" => "remote_username",
            "round_robin" => "round_robin",
            "start_type" => "start_type",
            "try_private" => "try_private",
            _ => {
                let key = if key == "password" { "remote_password" } else { key };
                self.others.push((key.to_owned(), setting));
                return None;
            }
        };
        self.settings.insert(key, setting)
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|setting| &*setting.value)
    }

    fn lines(&self) -> impl Iterator<Item = &Setting> {
        let others = self.others.iter().map(|(_, setting)| setting);
        [&self.opened].into_iter().chain(self.settings.values()).chain(&self.topics).chain(others)
    }

    /// Why it is left out, for its protection.
    fn check_protection(&self) -> Result<(), String> {
        if self.value("bridge_require_ocsp") == Some("true") {
            return Err(protects("bridge_require_ocsp"));
        }
        let found = PROTECTION.iter().find(|name| self.others.iter().any(|(key, _)| key == *name));
        match found {
            // Fewer authorities are trusted without it.
            Some(&"bridge_capath") if self.value("bridge_cafile").is_some() => Ok(()),
            Some(name) => Err(protects(name)),
            None => Ok(()),
        }
    }
}

fn protects(key: &str) -> String {
    format!("its {key} protects it and has no counterpart")
}

impl Import {
    /// The section of a bridge, or nothing if it is left out.
    pub(super) fn bridge(&mut self, bridge: &Bridge, names: &mut BTreeSet<String>) -> String {
        match self.try_bridge(bridge, names) {
            Ok(text) => text,
            Err(why) => {
                for setting in bridge.lines() {
                    self.leave(setting, &format!("the bridge is left out: {why}"));
                }
                String::new()
            }
        }
    }

    fn try_bridge(
        &mut self,
        bridge: &Bridge,
        names: &mut BTreeSet<String>,
    ) -> Result<String, String> {
        let addresses = bridge.value("address").ok_or("it has no address")?;
        let mut addresses = addresses.split_whitespace();
        let remote = remote(addresses.next().ok_or("it has no address")?)?;
        bridge.check_protection()?;
        let (topics, refused) = gather(bridge);
        if topics.is_empty() {
            return Err(match refused.first() {
                None => "it has no topic".to_owned(),
                Some((_, why)) => format!("no topic of it can be translated; the first: {why}"),
            });
        }
        for (setting, why) in refused {
            self.leave(setting, &why);
        }
        let patterns = |wanted: fn(&Topic) -> bool| {
            topics.iter().filter(|topic| wanted(topic)).map(|topic| topic.pattern.clone()).collect()
        };
        let mut settings = BridgeSettings {
            topics_out: patterns(|topic| topic.goes_out),
            topics_in: patterns(|topic| topic.comes_in),
            local_prefix: topics[0].local.clone(),
            remote_prefix: topics[0].remote.clone(),
            ..BridgeSettings::default()
        };
        if addresses.next().is_some() {
            self.leave(&bridge.settings["address"], "a bridge has one remote: the first is taken");
        }
        let name = name(&bridge.opened.value, names);
        let mut text = format!("\n[mqtt.bridge.{name}]\nremote = {}\n", quoted(&remote));
        self.write_version(bridge, &mut settings, &mut text);
        self.write_tls(bridge, &mut text);
        for (key, ours) in [("remote_username", "username"), ("remote_clientid", "client_id")] {
            if let Some(value) = bridge.value(key) {
                let _ = writeln!(text, "{ours} = {}", quoted(value));
            }
        }
        for (key, filters) in
            [("topics_out", &settings.topics_out), ("topics_in", &settings.topics_in)]
        {
            if !filters.is_empty() {
                let _ = writeln!(text, "{key} = {}", quoted(&filters.join(", ")));
            }
        }
        for (key, prefix) in
            [("local_prefix", &settings.local_prefix), ("remote_prefix", &settings.remote_prefix)]
        {
            if !prefix.is_empty() {
                let _ = writeln!(text, "{key} = {}", quoted(prefix));
            }
        }
        let qos = topics.iter().map(|topic| topic.qos).max().expect("there is a topic");
        let _ = writeln!(text, "qos = {qos}");
        if topics.iter().any(|topic| topic.qos != qos) {
            self.warnings.push(format!(
                "bridge {name}: its topics differ in QoS, and a bridge has one: the highest is taken"
            ));
        }
        self.write_rest(bridge, &settings, &mut text);
        Ok(text)
    }

    fn write_version(&mut self, bridge: &Bridge, settings: &mut BridgeSettings, text: &mut String) {
        let Some(setting) = bridge.settings.get("bridge_protocol_version") else { return };
        settings.version = match &*setting.value {
            "mqttv50" => RemoteVersion::V5,
            "mqttv311" => RemoteVersion::V4,
            "mqttv31" => return self.leave(setting, "bridges speak MQTT 3.1.1 and 5"),
            _ => return self.leave(setting, "it is neither mqttv31 nor mqttv311 nor mqttv50"),
        };
        match settings.check() {
            Err(error @ BridgeError::Overlap { .. }) => self.leave(setting, &error.to_string()),
            _ => {
                let _ = writeln!(text, "version = \"{}\"", settings.version.word());
            }
        }
    }

    fn write_tls(&mut self, bridge: &Bridge, text: &mut String) {
        let ca = bridge.value("bridge_cafile");
        let is_tls = ca.is_some() || bridge.value("bridge_tls_use_os_certs") == Some("true");
        if is_tls {
            text.push_str("tls = true\n");
        }
        if let Some(ca) = ca {
            let _ = writeln!(text, "ca = {}", quoted(ca));
        }
        let pair = ["bridge_certfile", "bridge_keyfile"].map(|key| bridge.settings.get(key));
        match (is_tls, pair) {
            (true, [Some(certificate), Some(key)]) => {
                let (certificate, key) = (quoted(&certificate.value), quoted(&key.value));
                let _ = writeln!(text, "certificate = {certificate}\nkey = {key}");
            }
            (_, pair) => {
                let why = match is_tls {
                    true => "bridge_certfile and bridge_keyfile go together",
                    false => "without bridge_cafile there is no TLS",
                };
                pair.into_iter().flatten().for_each(|setting| self.leave(setting, why));
            }
        }
    }

    fn write_rest(&mut self, bridge: &Bridge, settings: &BridgeSettings, text: &mut String) {
        if let Some(setting) = bridge.settings.get("keepalive_interval") {
            match setting.value.parse::<u16>() {
                Ok(seconds) if seconds > 0 => {
                    let _ = writeln!(text, "keepalive = \"{seconds}s\"");
                }
                _ => self.leave(setting, "it is no number of seconds from 1 to 65535"),
            }
        }
        for (key, same, why) in [
            ("cleansession", "false", "the session at the remote is kept while the bridge is away"),
            ("round_robin", "false", "a bridge has one remote"),
            ("start_type", "automatic", ALWAYS),
            ("try_private", "true", "the bridge bit is tried wherever MQTT 3.1.1 is spoken"),
        ] {
            match bridge.settings.get(key) {
                Some(setting) if setting.value != same => self.leave(setting, why),
                _ => {}
            }
        }
        match bridge.settings.get("bridge_outgoing_retain") {
            Some(setting) if setting.value == "false" => {
                if settings.topics_in.is_empty() {
                    text.push_str("retain = false\n");
                } else {
                    self.leave(setting, "retain would hold for what is fetched as well");
                }
            }
            _ => {}
        }
        for (key, setting) in &bridge.others {
            let found = REASONS.iter().find(|(name, _)| key.starts_with(name));
            let why = found.map_or("bridges have no such setting", |(_, why)| *why);
            self.leave(setting, why);
        }
    }
}

/// The topics that one bridge can have together, and the others with why they are left.
fn gather(bridge: &Bridge) -> (Vec<Topic>, Vec<(&Setting, String)>) {
    let (mut topics, mut refused) = (Vec::new(), Vec::new());
    for setting in &bridge.topics {
        match accept(setting, topics.first()) {
            Ok(topic) => topics.push(topic),
            Err(why) => refused.push((setting, why)),
        }
    }
    (topics, refused)
}

fn accept(setting: &Setting, first: Option<&Topic>) -> Result<Topic, String> {
    let topic = read(setting)?;
    let prefixes = |topic: &Topic| (topic.local.clone(), topic.remote.clone());
    if first.is_some_and(|first| prefixes(first) != prefixes(&topic)) {
        return Err("its prefixes are others than those above it, and a bridge has one pair: make a bridge of its own \
                    for it"
            .to_owned());
    }
    if topic.pattern.is_empty() || topic.pattern.contains(',') {
        return Err("a filter in topics_out and topics_in is not empty and has no comma".to_owned());
    }
    let alone = BridgeSettings {
        topics_out: vec![topic.pattern.clone()],
        local_prefix: topic.local.clone(),
        remote_prefix: topic.remote.clone(),
        ..BridgeSettings::default()
    };
    alone.check().map_err(|error| error.to_string())?;
    Ok(topic)
}

/// `topic PATTERN [DIRECTION [QOS [LOCAL [REMOTE]]]]`; `""` for a part that is empty.
fn read(setting: &Setting) -> Result<Topic, String> {
    let mut words =
        setting.value.split_whitespace().map(|word| if word == "\"\"" { "" } else { word });
    let pattern = words.next().unwrap_or_default().to_owned();
    let (goes_out, comes_in) = match words.next().unwrap_or("out") {
        "out" => (true, false),
        "in" => (false, true),
        "both" => (true, true),
        _ => return Err("its direction is neither out nor in nor both".to_owned()),
    };
    let qos = words.next().unwrap_or("0").parse().ok().filter(|qos| *qos <= 2);
    let qos = qos.ok_or("its QoS is not from 0 to 2")?;
    let [local, remote] = [words.next(), words.next()].map(|word| word.unwrap_or("").to_owned());
    if words.next().is_some() {
        return Err("it has more than a pattern, a direction, a QoS and two prefixes".to_owned());
    }
    Ok(Topic { pattern, goes_out, comes_in, qos, local, remote })
}

/// With its port, which is 1883 if none is named.
fn remote(address: &str) -> Result<String, String> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !address.ends_with(']') => (host, port),
        _ => (address, "1883"),
    };
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (host.contains(':') && !is_bracketed) {
        return Err("its address is no host with a port; an IPv6 address has brackets".to_owned());
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(format!("{host}:{port}")),
        _ => Err("its port is not a number from 1 to 65535".to_owned()),
    }
}

/// A key of TOML without quotes, which no other bridge has.
fn name(text: &str, names: &mut BTreeSet<String>) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let plain: String =
        text.chars().take(100).map(|letter| if is_plain(letter) { letter } else { '-' }).collect();
    let plain = if plain.is_empty() { "bridge".to_owned() } else { plain };
    let mut name = plain.clone();
    for number in 2.. {
        if names.insert(name.clone()) {
            break;
        }
        name = format!("{plain}-{number}");
    }
    name
}
