//! `tidegate config import-mosquitto`: the settings of a `mosquitto.conf` (2.0) as sections of `tidegate.toml`.
//!
//! Always true: every line with a setting is translated or listed with the reason why not; what cannot be told is
//! left closed, and a listener or a bridge whose protection cannot be translated is left out; what lets in more than
//! Mosquitto did is a warning; values that may be secret are not repeated.

mod bridges;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

use self::bridges::Bridge;

/// What became of a `mosquitto.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Sections `[mqtt]`, `[mqtt.listener.NAME]` and `[mqtt.bridge.NAME]` for `tidegate.toml`.
    pub toml: String,
    /// Lines without a counterpart, in order.
    pub untranslated: Vec<Untranslated>,
    /// What is other than it was, and what to look at.
    pub warnings: Vec<String>,
}

/// A line without a counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untranslated {
    /// Counted from 1.
    pub line: usize,
    /// As written; a value that may be secret is left out.
    pub text: String,
    /// Why there is none, and what to do.
    pub why: String,
}

/// Translates the text of a `mosquitto.conf`.
pub fn import(text: &str) -> Imported {
    let mut import = Import::default();
    import.read(text);
    import.write()
}

/// What a packet may have beside its payload: a topic of the greatest length.
const HEAD_BYTES: u64 = 64 << 10;

/// Settings of Mosquitto that belong to the listener above them.
const OF_LISTENER: &[&str] = &[
    "bind_address",
    "bind_interface",
    "cafile",
    "capath",
    "certfile",
    "ciphers",
    "ciphers_tls1.3",
    "crlfile",
    "dhparamfile",
    "http_dir",
    "keyfile",
    "max_connections",
    "max_qos",
    "max_topic_alias",
    "mount_point",
    "port",
    "protocol",
    "psk_hint",
    "require_certificate",
    "socket_domain",
    "tls_engine",
    "tls_engine_kpass_sha1",
    "tls_keyform",
    "tls_version",
    "use_identity_as_username",
    "use_subject_as_username",
    "use_username_as_clientid",
];
/// Settings that belong to a listener with `per_listener_settings true`, and to all without.
const OF_DOORS: &[&str] = &["acl_file", "allow_anonymous", "password_file"];

/// Why a setting has no counterpart, by its key or the begin of its key.
const REASONS: &[(&str, &str)] = &[
    ("acl_opt_", PLUGIN),
    ("allow_duplicate_messages", "overlapping subscriptions are served as MQTT 5 says"),
    ("allow_zero_length_clientid", "clients without an identifier are given one, as MQTT says"),
    ("auth_opt_", PLUGIN),
    ("auth_plugin", PLUGIN),
    ("auto_id_prefix", "identifiers that are given to clients have no prefix"),
    ("autosave_", "the log keeps messages as they come; nothing is saved at intervals"),
    ("bind_interface", "a listener is bound to an address: write that of the interface in listen"),
    ("capath", "one file of certificates is read: join them into one and name it in client_ca"),
    ("check_retain_source", "rules are asked when a message is published and when it is sent"),
    ("ciphers", "cipher suites are those of TLS 1.2 and 1.3 that rustls holds safe"),
    ("clientid_prefixes", "write ACL patterns with %c in place of it"),
    ("connection_messages", LOGS),
    ("crlfile", "revoked certificates are not looked up"),
    ("dhparamfile", "keys are exchanged over elliptic curves"),
    ("http_dir", "no files are served over HTTP"),
    ("include_dir", "the files in it were not read: import each of them"),
    ("log_", LOGS),
    ("max_inflight_bytes", "clients are held back by the count that MQTT 5 calls receive maximum"),
    ("max_qos", "every listener takes QoS 0 to 2"),
    ("max_topic_alias", "topic aliases are bounded by the program"),
    ("memory_limit", "memory is bounded by the bounds of queues and connections"),
    ("mount_point", "topics get no prefix: write ACL rules in place of it"),
    ("persistence", "nothing is kept over a restart yet"),
    ("persistent_client_expiration", "sessions end as the client says, as in MQTT 5"),
    ("pid_file", "the program stays in the foreground; its supervisor knows it"),
    ("plugin", PLUGIN),
    ("psk_", "there are no pre-shared keys: use certificates, or passwords over TLS"),
    ("queue_qos0_messages", "messages of QoS 0 are not queued for clients that are away"),
    ("retain_available", "retained messages are always there: write ACL rules in place of it"),
    ("retained_persistence", "nothing is kept over a restart yet"),
    ("set_tcp_nodelay", "sockets are set up by the program"),
    ("socket_domain", "write an IPv4 or IPv6 address in listen"),
    ("store_clean_interval", "nothing has to be cleaned at intervals"),
    ("tls_engine", "keys are read from files"),
    ("tls_keyform", "keys are read from PEM files"),
    ("tls_version", "TLS 1.2 and 1.3 are spoken; older versions are not safe"),
    ("upgrade_outgoing_qos", "messages are sent with the lower of the two QoS, as MQTT says"),
    (
        "use_subject_as_username",
        "the common name in the certificate is taken, not the whole subject",
    ),
    ("use_username_as_clientid", "client identifiers are the client's"),
    ("user", "the program runs as the user that starts it"),
    ("websockets_", "requests of WebSockets are bounded by the program"),
];
const LOGS: &str = "logs are set up where the program is started";
const PLUGIN: &str = "plugins are not run: use a password file, certificates and an ACL file";

#[derive(Debug, Default)]
struct Import {
    per_listener: bool,
    /// The first is the default listener: what stands before any `listener` line.
    listeners: Vec<Section>,
    bridges: Vec<Bridge>,
    general: BTreeMap<&'static str, Setting>,
    untranslated: Vec<Untranslated>,
    warnings: Vec<String>,
}

/// Settings of a listener.
#[derive(Debug, Default)]
struct Section {
    /// None for the default listener.
    opened: Option<Setting>,
    settings: BTreeMap<String, Setting>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    line: usize,
    text: String,
    value: String,
}

impl Section {
    fn value(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|setting| &*setting.value)
    }

    fn is_true(&self, key: &str) -> bool {
        self.value(key) == Some("true")
    }

    /// Whether Mosquitto opens it: the default listener only if something but the doors is set for it.
    fn is_open(&self) -> bool {
        self.opened.is_some() || self.settings.keys().any(|key| OF_LISTENER.contains(&&**key))
    }
}

impl Import {
    fn read(&mut self, text: &str) {
        self.listeners.push(Section::default());
        // It counts for lines before it as well.
        self.per_listener = text.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some("per_listener_settings") && words.next() == Some("true")
        });
        for (number, line) in text.lines().enumerate() {
            let text = line.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (key, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            let value = value.trim();
            let setting =
                Setting { line: number + 1, text: shown(key, text), value: value.to_owned() };
            match key {
                "listener" => {
                    self.listeners.push(Section { opened: Some(setting), ..Section::default() });
                }
                "connection" => self.bridges.push(Bridge::new(setting)),
                _ => self.setting(key, setting),
            }
        }
    }

    fn setting(&mut self, key: &str, setting: Setting) {
        if setting.value.is_empty() {
            return self.leave(&setting, "it has no value");
        }
        if key == "per_listener_settings" {
            return;
        }
        if bridges::is_of_bridge(key) {
            let old = match self.bridges.last_mut() {
                Some(bridge) => bridge.set(key, setting.clone()),
                None => return self.leave(&setting, "it stands under no connection"),
            };
            return self.leave_replaced(old, &setting);
        }
        let section = match OF_DOORS.contains(&key) && !self.per_listener {
            true => self.listeners.first_mut(),
            false => self.listeners.last_mut(),
        };
        let section = section.expect("the default listener is there");
        let old = if OF_DOORS.contains(&key) || OF_LISTENER.contains(&key) {
            section.settings.insert(key.to_owned(), setting.clone())
        } else if let Some(key) = general(key) {
            self.general.insert(key, setting.clone())
        } else {
            let why = reason(key).unwrap_or("Mosquitto 2.0 does not know it; is it spelled right?");
            return self.leave(&setting, why);
        };
        self.leave_replaced(old, &setting);
    }

    fn leave_replaced(&mut self, old: Option<Setting>, new: &Setting) {
        if let Some(old) = old {
            self.leave(&old, &format!("line {} says it again", new.line));
        }
    }

    fn leave(&mut self, setting: &Setting, why: &str) {
        let Setting { line, text, .. } = setting;
        self.untranslated.push(Untranslated {
            line: *line,
            text: text.clone(),
            why: why.to_owned(),
        });
    }

    fn write(mut self) -> Imported {
        let mut sections = std::mem::take(&mut self.listeners);
        let open: Vec<bool> = sections.iter().map(Section::is_open).collect();
        let local_only = !open.contains(&true);
        let mut toml = String::from("[mqtt]\n");
        self.write_doors(&sections, &open, local_only, &mut toml);
        self.write_limits(&mut toml);
        if local_only {
            self.warnings.push(
                "no listener is set up: Mosquitto is then at 127.0.0.1:1883 only, and so is this one"
                    .to_owned(),
            );
            let _ = write!(
                toml,
                "\n[mqtt.listener.tcp-1883]\nlisten = \"127.0.0.1:1883\"\nprotocol = \"tcp\"\n"
            );
        }
        let mut names = BTreeSet::new();
        for (section, open) in sections.iter_mut().zip(open) {
            if open {
                match self.listener(section, &mut names) {
                    Ok(text) => toml.push_str(&text),
                    Err(why) => self.leave_out(section, &why),
                }
            }
        }
        let mut names = BTreeSet::new();
        for bridge in std::mem::take(&mut self.bridges) {
            toml.push_str(&self.bridge(&bridge, &mut names));
        }
        self.untranslated.sort_by_key(|line| line.line);
        Imported { toml, untranslated: self.untranslated, warnings: self.warnings }
    }

    /// Bounds of packets, queues and keep alive, and the interval of `$SYS`, for all listeners.
    fn write_limits(&mut self, toml: &mut String) {
        let packet = 1 << 10..=128 << 20; // half of the default memory for payloads
        let whole = self.number("max_packet_size", packet.clone());
        let payload = self.number("message_size_limit", packet.clone());
        if payload.is_some() {
            self.warnings.push(format!(
                "message_size_limit counts a payload, packet_bytes_max the packet around it: {} were added for its topic and \
                 properties",
                byte_count(HEAD_BYTES)
            ));
        }
        let payload = payload.map(|bytes| (bytes + HEAD_BYTES).min(*packet.end()));
        if let Some(bytes) = whole.into_iter().chain(payload).min() {
            let _ = writeln!(toml, "packet_bytes_max = \"{}\"", byte_count(bytes));
        }
        let queue_bytes = self.number("max_queued_bytes", 1 << 10..=u64::MAX >> 1);
        if let Some(bytes) = queue_bytes {
            let _ = writeln!(toml, "queue_bytes_max = \"{}\"", byte_count(bytes));
        }
        let queue_messages = self.number("max_queued_messages", 1..=u64::from(u32::MAX));
        if let Some(count) = queue_messages {
            let _ = writeln!(toml, "queue_messages_max = {count}");
        }
        if queue_bytes.is_some() || queue_messages.is_some() {
            self.warnings.push(
                "a queue is bounded for QoS 0 as well, and one of QoS 1 and 2 that is full ends its connection; Mosquitto dropped \
                 what came: see mqtt.overflow"
                    .to_owned(),
            );
        }
        if let Some(count) = self.number("max_inflight_messages", 1..=65_535) {
            let _ = writeln!(toml, "inflight_max = {count}");
        }
        if let Some(seconds) = self.number("max_keepalive", 1..=65_535) {
            let _ = writeln!(toml, "keepalive_max = \"{seconds}s\"");
        }
        if let Some(seconds) = self.number("sys_interval", 0..=65_535) {
            let _ = writeln!(toml, "sys_interval = \"{seconds}s\"");
        }
    }

    /// Password file, ACL file, and whether anonymous clients come in: ours are for all listeners.
    fn write_doors(
        &mut self,
        sections: &[Section],
        open: &[bool],
        local_only: bool,
        toml: &mut String,
    ) {
        let opened = || sections.iter().zip(open).filter(|(_, open)| **open).map(|(s, _)| s);
        let relevant: Vec<&Section> = match self.per_listener && !local_only {
            true => opened().collect(),
            false => sections.iter().take(1).collect(),
        };
        let mut agree = true;
        for key in ["password_file", "acl_file"] {
            let values: BTreeSet<Option<&str>> =
                relevant.iter().map(|section| section.value(key)).collect();
            if values.len() > 1 {
                agree = false;
                for section in &relevant {
                    if let Some(setting) = section.settings.get(key) {
                        let why = "listeners differ in it, and here it is for all of them: join the files into one";
                        self.leave(setting, why);
                    }
                }
                self.warnings.push(format!(
                    "{key} differs between listeners: set mqtt.{key} by hand before the node is started"
                ));
                // A file that is not there keeps the node from starting without these rules.
                let _ = writeln!(toml, "{key} = {}", quoted(&format!("set-{key}-by-hand")));
            } else if let Some(Some(value)) = values.first() {
                let _ = writeln!(toml, "{key} = {}", quoted(value));
            }
        }
        for section in sections {
            for key in OF_DOORS {
                let lost = self.per_listener
                    && !local_only
                    && !relevant.iter().any(|r| std::ptr::eq(*r, section));
                if let (true, Some(setting)) = (lost, section.settings.get(*key)) {
                    self.leave(setting, "it stands under no listener that is open");
                }
            }
        }
        // Mosquitto lets strangers in by itself only where it listens to this machine alone.
        let anonymous = |section: &&Section| match section.value("allow_anonymous") {
            Some(value) => value == "true",
            None => local_only,
        };
        let count = relevant.iter().filter(|section| anonymous(section)).count();
        let allow = agree && count == relevant.len();
        if !allow && count > 0 {
            for section in &relevant {
                if let Some(setting) = section.settings.get("allow_anonymous") {
                    self.leave(
                        setting,
                        "listeners differ in it or in their files, and here it is for all of them",
                    );
                }
            }
            self.warnings.push(
                "listeners differ in who may come in without a proof: nobody may now".to_owned(),
            );
        }
        if allow && !local_only && relevant.iter().all(|s| s.value("acl_file").is_none()) {
            self.warnings.push(
                "everybody may come in without a proof and do everything with topics, as in Mosquitto"
                    .to_owned(),
            );
        }
        let _ = writeln!(toml, "allow_anonymous = {allow}");
    }

    /// The section of a listener.
    fn listener(
        &mut self,
        section: &Section,
        names: &mut BTreeSet<String>,
    ) -> Result<String, String> {
        let address = address(section)?;
        let tls = match (section.value("certfile"), section.value("keyfile")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("a listener with TLS has a certfile and a keyfile".to_owned()),
        };
        for key in ["psk_hint", "tls_engine", "crlfile"] {
            if section.settings.contains_key(key) {
                return Err(format!("its {key} protects it and has no counterpart"));
            }
        }
        let protocol = match (section.value("protocol").unwrap_or("mqtt"), tls) {
            ("mqtt", None) => "tcp",
            ("mqtt", Some(_)) => "tls",
            ("websockets", None) => "websocket",
            ("websockets", Some(_)) => "secure-websocket",
            _ => return Err("its protocol is neither mqtt nor websockets".to_owned()),
        };
        let demanded = section.is_true("require_certificate");
        if demanded && tls.is_none() {
            return Err("it wants certificates and has none of its own".to_owned());
        }
        if demanded && section.value("cafile").is_none() {
            return Err("it wants certificates and no cafile says of whom".to_owned());
        }
        let mut name = format!("{protocol}-{}", address.port());
        for number in 2.. {
            if names.insert(name.clone()) {
                break;
            }
            name = format!("{protocol}-{}-{number}", address.port());
        }
        let mut text = format!(
            "\n[mqtt.listener.{name}]\nlisten = \"{address}\"\nprotocol = \"{protocol}\"\n"
        );
        if let Some((certificate, key)) = tls {
            let _ = writeln!(text, "certificate = {}\nkey = {}", quoted(certificate), quoted(key));
        }
        if let (true, Some(ca)) = (demanded, section.value("cafile")) {
            let _ = writeln!(text, "client_ca = {}\nrequire_certificate = true", quoted(ca));
        }
        if let Some(setting) = section.settings.get("max_connections") {
            match setting.value.parse::<i64>() {
                Ok(number) if number > 0 => {
                    let _ = writeln!(text, "connections_max = {number}");
                }
                Ok(-1) => {} // no bound of its own
                _ => self.leave(setting, "it is neither -1 nor a number of connections above 0"),
            }
        }
        self.rest_of_listener(section, &name, tls.is_some(), demanded);
        Ok(text)
    }

    /// Says what of a listener has no counterpart.
    fn rest_of_listener(&mut self, section: &Section, name: &str, tls: bool, demanded: bool) {
        if section.opened.is_none() && section.value("port").is_none() {
            self.warnings.push(format!(
                "{name} is there because settings of a listener stand before the first `listener`, \
                 as in Mosquitto; take it out if it is not meant"
            ));
        }
        for (key, setting) in &section.settings {
            let why = match key.as_str() {
                "bind_address" if section.opened.is_some() => {
                    "the address stands in the `listener` line"
                }
                "port" if section.opened.is_some() => "the port stands in the `listener` line",
                "cafile" if !demanded => "certificates of clients are not asked for there",
                "require_certificate" if !demanded => continue,
                "use_identity_as_username" if !demanded && setting.value == "true" => {
                    "without require_certificate no certificate is asked for"
                }
                "use_identity_as_username" => continue, // told below
                "bind_interface" => {
                    self.warnings.push(format!(
                        "{name} was bound to one interface: write its address in listen, or it is open on all"
                    ));
                    reason(key).unwrap_or_default()
                }
                "ciphers" | "ciphers_tls1.3" | "tls_version" if !tls => {
                    "the listener has no certificate, and so no TLS"
                }
                key => match reason(key) {
                    Some(why) => why,
                    None => continue, // translated
                },
            };
            self.leave(setting, why);
        }
        if demanded {
            self.warnings.push(match section.is_true("use_identity_as_username") {
                true => format!(
                    "{name}: the name in a certificate counts for clients without a user name; Mosquitto took it \
                     for all"
                ),
                false => format!(
                    "{name}: a certificate alone lets a client in, under the name in it; Mosquitto asked for a \
                     password as well, unless anonymous clients were let in"
                ),
            });
        }
    }

    fn leave_out(&mut self, section: &Section, why: &str) {
        let why = format!("the listener is left out: {why}");
        let lines: Vec<&Setting> = section
            .opened
            .iter()
            .chain(
                section
                    .settings
                    .iter()
                    .filter(|(k, _)| OF_LISTENER.contains(&&***k))
                    .map(|(_, s)| s),
            )
            .collect();
        for setting in lines {
            self.leave(setting, &why);
        }
    }

    /// The value of a setting for all, none if it means "no bound".
    fn number(&mut self, key: &str, bounds: RangeInclusive<u64>) -> Option<u64> {
        let setting = self.general.get(key)?.clone();
        match setting.value.parse() {
            Ok(0) if key == "max_keepalive" => {
                self.leave(&setting, "connections that are never checked are not offered");
                None
            }
            Ok(0) if *bounds.start() > 0 => {
                self.leave(&setting, "0 is no bound in Mosquitto; here the default bounds it");
                None
            }
            Ok(number) if !bounds.contains(&number) => {
                let why = format!("here it is from {} to {}", bounds.start(), bounds.end());
                self.leave(&setting, &why);
                None
            }
            Ok(number) => Some(number),
            Err(_) => {
                self.leave(&setting, "it is not a number");
                None
            }
        }
    }
}

/// The settings that are translated and for all listeners, wherever they stand.
fn general(key: &str) -> Option<&'static str> {
    [
        "max_inflight_messages",
        "max_keepalive",
        "max_packet_size",
        "max_queued_bytes",
        "max_queued_messages",
        "message_size_limit",
        "sys_interval",
    ]
    .into_iter()
    .find(|general| *general == key)
}

fn reason(key: &str) -> Option<&'static str> {
    let exact = REASONS.iter().find(|(name, _)| *name == key);
    let begins = |name: &str| {
        key.starts_with(name)
            && (name.ends_with('_')
                || ["persistence", "plugin", "ciphers", "auth_plugin", "tls_engine"]
                    .contains(&name))
    };
    exact.or_else(|| REASONS.iter().find(|(name, _)| begins(name))).map(|(_, why)| *why)
}

/// The line as it may be shown.
fn shown(key: &str, text: &str) -> String {
    let lower = key.to_ascii_lowercase();
    let secret = ["password", "psk", "_opt_", "kpass"].iter().any(|word| lower.contains(word));
    // The name of the file is none.
    if secret && key != "password_file" && key != "psk_file" {
        // Who wrote `key=value` has the secret in what is read as the key.
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "_.".contains(letter);
        let end = key.find(|letter| !is_of_name(letter)).unwrap_or(key.len());
        format!("{} ...", &key[..end])
    } else {
        text.to_owned()
    }
}

/// Where a listener listens.
fn address(section: &Section) -> Result<SocketAddr, String> {
    let (port, host) = match &section.opened {
        Some(setting) => {
            let (port, host) =
                setting.value.split_once(char::is_whitespace).unwrap_or((&setting.value, ""));
            (port, Some(host.trim()).filter(|host| !host.is_empty()))
        }
        None => (section.value("port").unwrap_or("1883"), section.value("bind_address")),
    };
    let port: u16 = port.parse().map_err(|_| "its port is not a number up to 65535".to_owned())?;
    if port == 0 {
        return Err("sockets of the file system are not listened on".to_owned());
    }
    let ip: IpAddr = match (host, section.value("socket_domain")) {
        (None, Some("ipv6")) => Ipv6Addr::UNSPECIFIED.into(),
        (None, _) => Ipv4Addr::UNSPECIFIED.into(),
        (Some("localhost"), Some("ipv6")) => Ipv6Addr::LOCALHOST.into(),
        (Some("localhost"), _) => Ipv4Addr::LOCALHOST.into(),
        (Some(host), _) => host.parse().map_err(|_| {
            format!("{host} is a name, and listen takes an address such as 192.0.2.1")
        })?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// With the largest unit that divides it.
fn byte_count(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes.is_multiple_of(size) {
            return format!("{}{unit}", bytes / size);
        }
    }
    format!("{bytes}B")
}

/// As a string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(letter));
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;
