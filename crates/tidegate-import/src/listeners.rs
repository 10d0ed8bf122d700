//! `listener` and what stands below it, as a section `[mqtt.listener.NAME]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tidegate_config::words::MqttVersions;
use tidegate_message::{ListenAddress, origins::Origins};

use super::{
    Import, Setting,
    keys::{self, Scope},
    quoted, words,
};

/// Settings of a listener.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// None for the default listener.
    pub(super) opened: Option<Setting>,
    pub(super) settings: BTreeMap<&'static str, Setting>,
    /// Why it is not opened.
    pub(super) shut: Option<String>,
}

impl Section {
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|setting| &*setting.value)
    }

    fn is_true(&self, key: &str) -> bool {
        self.value(key) == Some("true")
    }

    /// Whether Mosquitto opens it: the default listener only if an option other than the security options is set for
    /// it.
    pub(super) fn is_open(&self) -> bool {
        let of_listener = |name: &str| {
            keys::find(name)
                .is_some_and(|key| matches!(key.scope, Scope::Listener | Scope::DefaultListener))
        };
        self.opened.is_some()
            || self.shut.is_some()
            || self.settings.keys().any(|key| of_listener(key))
    }

    /// The host that it names.
    fn host(&self) -> Option<&str> {
        match &self.opened {
            Some(setting) => words(&setting.value).nth(1),
            None => self.value("bind_address"),
        }
    }

    /// Whether Mosquitto opens it at all addresses of both families.
    fn is_dual(&self) -> bool {
        self.host().is_none() && self.value("socket_domain").is_none()
    }

    pub(super) fn allows_anonymous(&self) -> Option<bool> {
        let value =
            self.value("listener_allow_anonymous").or_else(|| self.value("allow_anonymous"));
        value.map(|value| value == "true")
    }
}

impl Import {
    /// The section of a listener, in a configuration with that `allow_anonymous`.
    pub(super) fn listener(
        &mut self,
        section: &Section,
        default: bool,
        names: &mut BTreeSet<String>,
    ) -> Result<String, String> {
        let address = address(section)?;
        let tls = match (section.value("certfile"), section.value("keyfile")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("a listener with TLS has a certfile and a keyfile".to_owned()),
        };
        let protocol = match (section.value("protocol").unwrap_or("mqtt"), tls) {
            ("mqtt", None) => "tcp",
            ("mqtt", Some(_)) => "tls",
            ("websockets", None) => "websocket",
            ("websockets", Some(_)) => "secure-websocket",
            _ => return Err("its protocol is neither mqtt nor websockets".to_owned()),
        };
        let demanded = section.is_true("require_certificate");
        let ca = section.value("cafile").or_else(|| section.value("capath"));
        if demanded && tls.is_none() {
            return Err("it wants certificates and has none of its own".to_owned());
        }
        if demanded && ca.is_none() {
            return Err(
                "it wants certificates and neither cafile nor capath says of whom".to_owned()
            );
        }
        let anonymous = match (section.value("listener_allow_anonymous"), self.per_listener) {
            _ if self.has_plugin => false,
            (Some(value), _) => value == "true",
            (None, true) => section.allows_anonymous().unwrap_or(false),
            (None, false) => default,
        };
        let is_named = section.is_true("use_identity_as_username");
        if demanded && !is_named && !anonymous {
            return Err(
                "it wants a password beside the certificate, and here a certificate alone lets a client in: write \
                 use_identity_as_username true if that is enough"
                    .to_owned(),
            );
        }
        if is_named && !demanded && tls.is_some() {
            return Err(
                "it takes names from certificates and asks for none, so that Mosquitto lets nobody in: write \
                 require_certificate true"
                    .to_owned(),
            );
        }
        let is_anywhere =
            matches!(&address, ListenAddress::Socket(address) if address.ip().is_unspecified());
        if section.settings.contains_key("bind_interface") && is_anywhere {
            return Err(
                "it was bound to one interface: write the address of that into its `listener` line"
                    .to_owned(),
            );
        }
        let proxy = match section.value("enable_proxy_protocol") {
            None => None,
            Some("1") => Some("v1"),
            Some("2") => Some("v2"),
            Some(_) => return Err("its enable_proxy_protocol is neither 1 nor 2".to_owned()),
        };
        let origins = origins(section)?;
        let versions = versions(section)?;
        let max_qos = match section.value("max_qos") {
            None | Some("2") => None,
            Some(qos @ ("0" | "1")) => Some(qos),
            Some(_) => return Err("its max_qos is not 0, 1 or 2".to_owned()),
        };
        let place = match &address {
            ListenAddress::Socket(address) => address.port().to_string(),
            ListenAddress::Name(_, port) => port.to_string(),
            ListenAddress::Unix(_) => "unix".to_owned(),
        };
        let mut name = format!("{protocol}-{place}");
        for number in 2.. {
            if names.insert(name.clone()) {
                break;
            }
            name = format!("{protocol}-{place}-{number}");
        }
        let mut text = format!(
            "\n[mqtt.listener.{name}]\nlisten = {}\nprotocol = \"{protocol}\"\n",
            quoted(&address.to_string())
        );
        if let Some(version) = proxy {
            let _ = writeln!(text, "proxy_protocol = \"{version}\"");
        }
        if let Some(versions) = versions {
            let _ = writeln!(text, "accept_protocol_versions = \"{versions}\"");
        }
        if let Some(qos) = max_qos {
            let _ = writeln!(text, "max_qos = {qos}");
        }
        let prefix = section.settings.get("listener_auto_id_prefix");
        match self.per_listener {
            true => {
                let prefix = prefix.or_else(|| section.settings.get("auto_id_prefix"));
                self.write_identifiers(section, prefix, &mut text);
            }
            // Settings for all stand above.
            false => self.write_identifiers(&Section::default(), prefix, &mut text),
        }
        if section.value("protocol") == Some("websockets") {
            // As Mosquitto, which looks at none.
            text.push_str("paths = \"*\"\n");
            if let Some(origins) = &origins {
                let _ = writeln!(text, "origins = {}", quoted(origins));
            }
        }
        if let Some((certificate, key)) = tls {
            let _ = writeln!(text, "certificate = {}\nkey = {}", quoted(certificate), quoted(key));
            if let (false, Some(ca)) = (demanded, ca) {
                // OpenSSL sends what it finds there between the certificate and its authority.
                let _ = writeln!(text, "chain = {}", quoted(ca));
            }
        }
        if let (true, Some(ca)) = (demanded, ca) {
            let _ = writeln!(text, "client_ca = {}\nrequire_certificate = true", quoted(ca));
            if let Some(list) = section.value("crlfile") {
                let _ = writeln!(text, "client_crl = {}", quoted(list));
            }
        }
        if anonymous != default {
            let _ = writeln!(text, "allow_anonymous = {anonymous}");
        }
        if let Some(setting) = section.settings.get("max_connections") {
            match setting.value.parse::<i64>() {
                Ok(number) if (1..=i64::from(u32::MAX)).contains(&number) => {
                    let _ = writeln!(text, "connections_max = {number}");
                }
                Ok(number) if number < 0 => {} // no bound of its own
                _ => self.leave(setting, "here it is from 1 to 4294967295"),
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
        if let Ok(ListenAddress::Socket(address)) = address(section)
            && address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED)
        {
            self.warnings.push(match section.is_dual() {
                true => format!(
                    "{name} is at all addresses of IPv6 and IPv4, as in Mosquitto: on a machine without IPv6 write 0.0.0.0:{}",
                    address.port()
                ),
                false => format!(
                    "{name} takes clients of IPv4 as well, unless another listener has that port for them; Mosquitto took those of \
                     IPv6 alone"
                ),
            });
        }
        if section.value("enable_proxy_protocol").is_some() {
            self.warnings.push(format!(
                "{name}: every client that reaches it may name any address in a header of the PROXY protocol: let only the load balancer reach it"
            ));
        }
        if matches!(address(section), Ok(ListenAddress::Unix(_))) {
            self.warnings.push(format!(
                "{name}: the node's user and group may connect (socket_mode = \"0660\"); in Mosquitto its umask said who"
            ));
        }
        for (key, setting) in &section.settings {
            let unasked = "certificates of clients are not asked for there";
            let (why, is_lost) = match *key {
                // Its content may be sent.
                "cafile" if !demanded && tls => continue,
                "capath" if !demanded && tls && section.value("cafile").is_none() => continue,
                "cafile" | "capath" | "crlfile" if !demanded => (unasked, false),
                "capath" if section.value("cafile").is_some() => (
                    "there is one client_ca, a file or a folder: add what is in the folder to the file",
                    true,
                ),
                // There is no TLS.
                "use_identity_as_username" if !demanded && setting.value == "true" => {
                    (unasked, false)
                }
                "websockets_origin" if section.value("protocol") != Some("websockets") => {
                    ("the listener has no WebSocket", false)
                }
                "bind_interface" => ("a listener is bound to an address", true),
                "ciphers" | "ciphers_tls1.3" | "tls_version" if !tls => {
                    ("the listener has no certificate, and so no TLS", false)
                }
                key => {
                    let fate = keys::find(key).expect("settings are known").fate;
                    match fate.of(&setting.value) {
                        Some(left) => left,
                        None => continue,
                    }
                }
            };
            self.push(setting, why, is_lost);
        }
        if demanded {
            self.warnings.push(match section.is_true("use_identity_as_username") {
                true => format!(
                    "{name}: the name in a certificate counts for clients without a user name; Mosquitto took it \
                     for all"
                ),
                false => format!(
                    "{name}: a certificate lets a client in under the name in it; in Mosquitto it was an anonymous one"
                ),
            });
        }
    }

    pub(super) fn leave_out(&mut self, section: &Section, why: &str) {
        let why = format!("the listener is left out: {why}");
        let protects =
            |name: &str| keys::find(name).is_some_and(|key| key.scope == Scope::Security);
        let settings = section.settings.iter().filter(|(key, _)| !protects(key)).map(|(_, s)| s);
        let lines: Vec<&Setting> = section.opened.iter().chain(settings).collect();
        for setting in lines {
            self.leave(setting, &why);
        }
    }
}

/// The pages that may open a WebSocket, as our configuration has them. Mosquitto compares each line with the `Origin` of a browser, which has
/// a scheme: one without lets no page in.
fn origins(section: &Section) -> Result<Option<String>, String> {
    let Some(value) = section.value("websockets_origin") else { return Ok(None) };
    let lines: Vec<&str> = value.lines().collect();
    let is_one =
        |line: &&&str| !line.contains(['*', ',']) && Origins::parse(Some(**line), "").is_ok();
    match lines.iter().find(|line| !is_one(line)) {
        Some(line) => Err(format!(
            "its websockets_origin {line} is none that a browser sends: write it with its scheme, as https://dash.example"
        )),
        None => Ok(Some(lines.join(", "))),
    }
}

/// Which versions of MQTT a listener takes, as our configuration has them; none for all.
fn versions(section: &Section) -> Result<Option<MqttVersions>, String> {
    let Some(value) = section.value("accept_protocol_versions") else { return Ok(None) };
    let text: String = words(value).collect();
    // Mosquitto has no other words.
    if !text.split(',').all(|word| matches!(word, "3" | "4" | "5")) {
        return Err("its accept_protocol_versions are not some of 3, 4 and 5, with commas between"
            .to_owned());
    }
    let versions: MqttVersions = text.parse()?;
    Ok((versions != MqttVersions::ALL).then_some(versions))
}

/// Where a listener listens.
fn address(section: &Section) -> Result<ListenAddress, String> {
    let host = section.host();
    let port = match &section.opened {
        Some(setting) => words(&setting.value).next().unwrap_or_default(),
        None => section.value("port").unwrap_or("1883"),
    };
    let port: u16 = port.parse().map_err(|_| "its port is not a number up to 65535".to_owned())?;
    if let (0, Some(path)) = (port, host) {
        let address = format!("unix:{path}").parse();
        return address.map_err(|_| "its socket is named by no absolute path".to_owned());
    }
    if port == 0 {
        return Err("its port is 0, and it names no socket of the file system".to_owned());
    }
    let is_v6 = match section.value("socket_domain") {
        None | Some("ipv4") => false,
        Some("ipv6") => true,
        Some(_) => return Err("its socket_domain is neither ipv4 nor ipv6".to_owned()),
    };
    let ip: IpAddr = match (host, is_v6) {
        // One of IPv6 takes clients of IPv4 as well.
        (None, _) if is_v6 || section.is_dual() => Ipv6Addr::UNSPECIFIED.into(),
        (None, _) => Ipv4Addr::UNSPECIFIED.into(),
        (Some("localhost"), true) => Ipv6Addr::LOCALHOST.into(),
        (Some("localhost"), false) if section.value("socket_domain").is_some() => {
            Ipv4Addr::LOCALHOST.into()
        }
        (Some(host), _) => match host.parse() {
            Ok(ip) => ip,
            Err(_) if section.value("socket_domain").is_some() => {
                return Err(format!(
                    "{host} is a name, which is listened on at addresses of both families: write an address in place of it"
                ));
            }
            Err(_) => {
                let address = format!("{host}:{port}").parse();
                return address.map_err(|_| format!("{host} is neither an address nor a name"));
            }
        },
    };
    Ok(SocketAddr::new(ip, port).into())
}
