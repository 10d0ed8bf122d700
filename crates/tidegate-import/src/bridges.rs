//! `connection` and what stands below it, as a section `[mqtt.bridge.NAME]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use tidegate_config::words::RemoteVersion;
use tidegate_message::host::host_and_port;
use tidegate_server::bridge::{self, BridgeError, BridgeSettings};

use super::{Import, Secret, Setting, quoted, words};

/// A `connection`.
#[derive(Debug)]
pub(super) struct Bridge {
    opened: Setting,
    settings: BTreeMap<&'static str, Setting>,
    topics: Vec<Setting>,
    /// Whether it tells the remote that it is a bridge.
    pub(super) tries_private: bool,
    /// Why it is left out whatever else it says.
    pub(super) shut: Option<String>,
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

impl Bridge {
    pub(super) fn new(opened: Setting) -> Self {
        Self {
            opened,
            settings: BTreeMap::new(),
            topics: Vec::new(),
            tries_private: true,
            shut: None,
        }
    }

    /// Takes a setting that has a counterpart; returns the one that it is in place of.
    pub(super) fn set(&mut self, key: &'static str, setting: Setting) -> Option<Setting> {
        let key = match key {
            "topic" => {
                self.topics.push(setting);
                return None;
            }
            // Two names of one setting.
            "addresses" => "address",
            "clientid" => "remote_clientid",
            "password" => "remote_password",
            "username" => "remote_username",
            _ => key,
        };
        self.settings.insert(key, setting)
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|setting| &*setting.value)
    }

    fn is_true(&self, key: &str) -> bool {
        self.value(key) == Some("true")
    }

    fn lines(&self) -> impl Iterator<Item = &Setting> {
        [&self.opened].into_iter().chain(self.settings.values()).chain(&self.topics)
    }
}

impl Import {
    /// The sections of a connection, one for each pair of prefixes, or nothing if it is left out.
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
        let mut addresses = words(addresses);
        let remote = remote(addresses.next().ok_or("it has no address")?)?;
        if let Some(why) = &bridge.shut {
            return Err(why.clone());
        }
        let (groups, refused) = gather(bridge);
        if groups.is_empty() {
            return Err(match refused.first() {
                None => "it has no topic".to_owned(),
                Some((_, why)) => format!("no topic of it can be translated; the first: {why}"),
            });
        }
        for (setting, why) in refused {
            self.leave(setting, &why);
        }
        if addresses.next().is_some() {
            self.leave(&bridge.settings["address"], "a bridge has one remote: the first is taken");
        }
        let count = groups.len();
        let mut text = String::new();
        let mut secret = None;
        for (number, topics) in groups.iter().enumerate() {
            let name = name(&bridge.opened.value, names);
            let is_first = number == 0;
            if is_first {
                secret = self.keep_password(bridge, &name);
                if count > 1 {
                    self.warnings.push(format!(
                        "bridge {name}: its topics have {count} pairs of prefixes, and a bridge has one: there are {count}, each with \
                         a connection and a session of its own"
                    ));
                }
            }
            let _ = write!(text, "\n[mqtt.bridge.{name}]\nremote = {}\n", quoted(&remote));
            self.write_group(bridge, &name, number, topics, secret.as_deref(), &mut text);
        }
        self.check_rest(bridge, &groups);
        Ok(text)
    }

    /// The file that the password is to be put into; none if there is none.
    fn keep_password(&mut self, bridge: &Bridge, name: &str) -> Option<PathBuf> {
        let setting = bridge.settings.get("remote_password")?;
        if bridge.value("remote_username").is_none() {
            self.leave(setting, "a password without a remote_username is not sent");
            return None;
        }
        let path = self.secrets.join(format!("mqtt-bridge-{name}.password"));
        self.kept.push(Secret { path: path.clone(), text: setting.value.clone() });
        Some(path)
    }

    /// A section, of topics with one pair of prefixes.
    fn write_group(
        &mut self,
        bridge: &Bridge,
        name: &str,
        number: usize,
        topics: &[Topic],
        secret: Option<&Path>,
        text: &mut String,
    ) {
        let patterns = |wanted: fn(&Topic) -> bool| {
            topics.iter().filter(|topic| wanted(topic)).map(|topic| topic.pattern.clone()).collect()
        };
        let settings = BridgeSettings {
            topics_out: patterns(|topic| topic.goes_out),
            topics_in: patterns(|topic| topic.comes_in),
            local_prefix: topics[0].local.clone(),
            remote_prefix: topics[0].remote.clone(),
            ..BridgeSettings::default()
        };
        self.write_version(bridge, settings.clone(), number == 0, text);
        self.write_tls(bridge, number == 0, text);
        if let Some(value) = bridge.value("remote_username") {
            let _ = writeln!(text, "username = {}", quoted(value));
        }
        if let Some(path) = secret {
            let _ = writeln!(text, "password_file = {}", quoted(&path.to_string_lossy()));
        }
        if let Some(value) = bridge.value("remote_clientid") {
            // Two connections with one identifier would end each other.
            let value = match number {
                0 => value.to_owned(),
                _ => format!("{value}-{}", number + 1),
            };
            let _ = writeln!(text, "client_id = {}", quoted(&value));
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
        self.write_times(bridge, number == 0, text);
        if bridge.value("bridge_outgoing_retain") == Some("false") && settings.topics_in.is_empty()
        {
            text.push_str("retain = false\n");
        }
    }

    /// The version, and whether topics that go both ways may overlap where it is 3.1.1.
    fn write_version(
        &mut self,
        bridge: &Bridge,
        mut settings: BridgeSettings,
        is_first: bool,
        text: &mut String,
    ) {
        // Mosquitto's bridges count on the bridge bit unless it is turned off.
        settings.version = bridge::RemoteVersion::V4;
        let overlap = match settings.check() {
            Err(error @ BridgeError::Overlap { .. }) => Some(error),
            _ => None,
        };
        let is_aware = overlap.is_some() && bridge.tries_private;
        if let Some(setting) = bridge.settings.get("bridge_protocol_version") {
            let version = match (&*setting.value, &overlap) {
                ("mqttv50", _) => Ok(RemoteVersion::V5),
                ("mqttv311", Some(error)) if !is_aware => Err(error.to_string()),
                ("mqttv311", _) => Ok(RemoteVersion::V4),
                ("mqttv31", _) => Err("bridges speak MQTT 3.1.1 and 5".to_owned()),
                _ => Err("it is neither mqttv31 nor mqttv311 nor mqttv50".to_owned()),
            };
            match version {
                Ok(version) => {
                    let _ = writeln!(text, "version = \"{}\"", version.word());
                }
                Err(why) if is_first => self.leave(setting, &why),
                Err(_) => {}
            }
        }
        if is_aware {
            text.push_str("bridge_aware = true\n");
        }
    }

    fn write_tls(&mut self, bridge: &Bridge, is_first: bool, text: &mut String) {
        let ca = bridge.value("bridge_cafile").or_else(|| bridge.value("bridge_capath"));
        let is_tls = ca.is_some() || bridge.is_true("bridge_tls_use_os_certs");
        if is_tls {
            text.push_str("tls = true\n");
        }
        if let Some(ca) = ca {
            let _ = writeln!(text, "ca = {}", quoted(ca));
        }
        if is_tls && bridge.is_true("bridge_insecure") {
            text.push_str("insecure = true\n");
        } else if let (true, Some(setting)) = (is_first, bridge.settings.get("bridge_insecure")) {
            self.push(
                setting,
                "there is no TLS, or the name in the certificate is looked at",
                false,
            );
        }
        let both = ["bridge_cafile", "bridge_capath"].map(|key| bridge.settings.get(key));
        if let (true, [Some(_), Some(folder)]) = (is_first, both) {
            self.leave(
                folder,
                "there is one ca, a file or a folder: add what is in the folder to the file",
            );
        }
        let pair = ["bridge_certfile", "bridge_keyfile"].map(|key| bridge.settings.get(key));
        match (is_tls, pair) {
            (true, [Some(certificate), Some(key)]) => {
                let (certificate, key) = (quoted(&certificate.value), quoted(&key.value));
                let _ = writeln!(text, "certificate = {certificate}\nkey = {key}");
            }
            (_, pair) if is_first => {
                let why = match is_tls {
                    true => "bridge_certfile and bridge_keyfile go together",
                    false => "without bridge_cafile there is no TLS",
                };
                pair.into_iter().flatten().for_each(|setting| self.leave(setting, why));
            }
            _ => {}
        }
    }

    /// Keep alive, and waits between tries to connect.
    fn write_times(&mut self, bridge: &Bridge, is_first: bool, text: &mut String) {
        if let Some(setting) = bridge.settings.get("keepalive_interval") {
            match setting.value.parse::<u16>() {
                // Less is not taken.
                Ok(seconds) if seconds > 0 => {
                    let _ = writeln!(text, "keepalive = \"{}s\"", seconds.max(5));
                }
                _ if is_first => {
                    self.leave(setting, "it is not a number of seconds from 1 to 65535");
                }
                _ => {}
            }
        }
        if let Some(setting) = bridge.settings.get("restart_timeout") {
            // The longest wait: the second number, or the one that there is.
            let seconds: Option<Vec<u32>> =
                words(&setting.value).take(2).map(|word| word.parse().ok()).collect();
            match seconds.as_deref().and_then(<[u32]>::last) {
                Some(seconds) => {
                    let _ = writeln!(
                        text,
                        "reconnect_backoff_max = \"{}s\"",
                        (*seconds).clamp(1, 7200)
                    );
                }
                None if is_first => self.leave(setting, "it is not a number of seconds"),
                None => {}
            }
        }
    }

    /// Options that a bridge that fetches as well cannot have.
    fn check_rest(&mut self, bridge: &Bridge, groups: &[Vec<Topic>]) {
        let fetches = groups.iter().flatten().any(|topic| topic.comes_in);
        match bridge.settings.get("bridge_outgoing_retain") {
            Some(setting) if setting.value == "false" && fetches => {
                self.leave(setting, "retain would hold for fetched messages as well");
            }
            _ => {}
        }
    }
}

/// The topics that one bridge can have together, and the others with why they are left.
fn gather(bridge: &Bridge) -> (Vec<Vec<Topic>>, Vec<(&Setting, String)>) {
    let (mut groups, mut refused) = (Vec::<Vec<Topic>>::new(), Vec::new());
    for setting in &bridge.topics {
        match accept(setting) {
            Ok(topic) => {
                let prefixes = |topic: &Topic| (topic.local.clone(), topic.remote.clone());
                match groups.iter_mut().find(|group| prefixes(&group[0]) == prefixes(&topic)) {
                    Some(group) => group.push(topic),
                    None => groups.push(vec![topic]),
                }
            }
            Err(why) => refused.push((setting, why)),
        }
    }
    (groups, refused)
}

fn accept(setting: &Setting) -> Result<Topic, String> {
    let topic = read(setting)?;
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

/// `topic PATTERN [DIRECTION [QOS [LOCAL [REMOTE]]]]`; `""` for a part that is empty, and a comment after the direction.
fn read(setting: &Setting) -> Result<Topic, String> {
    let mut words = setting.value.split(' ').filter(|word| !word.is_empty());
    let pattern = words.next().unwrap_or_default();
    if pattern.starts_with('"') && pattern != "\"\"" {
        return Err(
            "Mosquitto 2.0 and 2.1 read a pattern in quotes otherwise: make the bridge by hand"
                .to_owned(),
        );
    }
    let direction = words.next().map(str::to_ascii_lowercase);
    let (goes_out, comes_in) = match direction.as_deref().unwrap_or("out") {
        "out" => (true, false),
        "in" => (false, true),
        "both" => (true, true),
        _ => return Err("its direction is neither out nor in nor both".to_owned()),
    };
    // Here a comment may begin.
    let mut words = words.take_while(|word| !word.starts_with('#'));
    let qos = qos(words.next().unwrap_or_default()).ok_or("its QoS is not from 0 to 2")?;
    let mut part = || match words.next() {
        None | Some("\"\"") => String::new(),
        Some(word) => word.to_owned(),
    };
    let (local, remote) = (part(), part());
    if words.next().is_some() {
        return Err("it has more than a pattern, a direction, a QoS and two prefixes".to_owned());
    }
    let pattern = if pattern == "\"\"" { "" } else { pattern }.to_owned();
    Ok(Topic { pattern, goes_out, comes_in, qos, local, remote })
}

/// A QoS as Mosquitto reads it: the digits that the word begins with, and 0 where it begins with none, such as `""`.
fn qos(word: &str) -> Option<u8> {
    let end = word.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(word.len());
    match &word[..end] {
        "" if word.starts_with('-') => None,
        "" => Some(0),
        digits => digits.parse().ok().filter(|qos| *qos <= 2),
    }
}

/// With its port, which is 1883 if none is named.
fn remote(address: &str) -> Result<String, String> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !address.ends_with(']') => (host, port),
        _ => (address, "1883"),
    };
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (host.contains(':') && !is_bracketed) {
        return Err(
            "its address is not a host with a port; an IPv6 address has brackets".to_owned()
        );
    }
    let port = port.parse::<u16>().ok().filter(|port| *port > 0);
    let port = port.ok_or("its port is not a number from 1 to 65535")?;
    let remote = format!("{host}:{port}");
    if host_and_port(&remote).is_none() || host.contains('*') {
        return Err("its address is no host".to_owned());
    }
    Ok(remote)
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
