//! `tidegate config import-mosquitto`: the settings of a `mosquitto.conf` (2.0, 2.1) as sections of `tidegate.toml`.
//!
//! Always true: a value is read as Mosquitto reads it; every line with a setting is translated or listed with the reason why not;
//! a listener or a bridge whose protection cannot be translated, or has a line with which Mosquitto would not start, is left out;
//! a setting that allows more than Mosquitto did, or works otherwise without an error, is a warning; values that may be secret
//! are not repeated.

mod bridges;
mod keys;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use tidegate_config::{ID_PREFIX_BOUND, PACKET_BYTES_LEAST, is_id_prefix, words::MqttVersions};
use tidegate_message::{ListenAddress, quantity::ByteCount};
use tidegate_sys::regular;

use self::{
    bridges::Bridge,
    keys::{Fate, Kind, Scope},
};

/// The result of importing a `mosquitto.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Sections `[mqtt]`, `[mqtt.listener.NAME]` and `[mqtt.bridge.NAME]` for `tidegate.toml`.
    pub toml: String,
    /// Passwords of bridges, each for a file of its own that only its owner may read.
    pub secrets: Vec<Secret>,
    /// Lines that are not translated, in order.
    pub untranslated: Vec<Untranslated>,
    /// Differences to before, and points to look at.
    pub warnings: Vec<String>,
}

/// A password, and the file that the translation looks for it in.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The file.
    pub path: PathBuf,
    /// The password.
    pub text: String,
}

/// A line that is not translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untranslated {
    /// The file: the one that was named, or one of its `include_dir`.
    pub file: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// As written; a value that may be secret is left out.
    pub text: String,
    /// Why there is none, and what to do.
    pub why: String,
    /// Whether something is lost without it; false where it means nothing here, or where the same holds anyway.
    pub is_lost: bool,
}

/// Without the password.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Imported {
    /// Whether something of the file is neither translated nor needless.
    pub fn is_less(&self) -> bool {
        self.untranslated.iter().any(|line| line.is_lost)
    }
}

/// Translates a `mosquitto.conf` and what its `include_dir` holds. Passwords are to be put into `secrets`, a folder.
///
/// # Errors
/// The file, or one of that folder, cannot be read.
pub fn import_file(path: &Path, secrets: &Path) -> Result<Imported, ReadError> {
    let text = read_file(path)?;
    let mut import = Import::new(path, secrets);
    import.read(&text, Some(&files_of))?;
    Ok(import.write())
}

/// Translates the text of a `mosquitto.conf` that includes no others.
pub fn import(text: &str) -> Imported {
    let mut import = Import::new(Path::new("mosquitto.conf"), Path::new("/etc/tidegate"));
    import.read(text, None).expect("no file is read");
    import.write()
}

/// A file or folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read", .path.display())]
pub struct ReadError {
    /// Which.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// Comments may be in any encoding; a value that is no UTF-8 is seen by the character that stands in for it.
fn read_file(path: &Path) -> Result<String, ReadError> {
    let bytes =
        regular::read(path).map_err(|source| ReadError { path: path.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The files of an `include_dir` that Mosquitto reads: `*.conf`, in its order.
fn files_of(folder: &Path) -> Result<Vec<(PathBuf, String)>, ReadError> {
    let failed = |source| ReadError { path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    names.retain(|name| name.len() > ".conf".len() && name.ends_with(".conf"));
    // Letter by letter: without regard to case first, then with it.
    names.sort_by_cached_key(|name| {
        name.bytes().map(|byte| (byte.to_ascii_uppercase(), byte)).collect::<Vec<_>>()
    });
    names
        .into_iter()
        .map(|name| folder.join(name))
        .map(|path| Ok((path.clone(), read_file(&path)?)))
        .collect()
}

/// Bytes of a packet in addition to its payload: a topic of the greatest length.
const HEAD_BYTES: u64 = 64 << 10;
/// A file that does not exist: the node does not start before it is replaced by hand.
const BY_HAND: [(&str, &str); 2] =
    [("acl_file", "set-acl_file-by-hand"), ("password_file", "set-password_file-by-hand")];

/// Lists the files of an `include_dir`.
type Include<'a> = &'a dyn Fn(&Path) -> Result<Vec<(PathBuf, String)>, ReadError>;

#[derive(Debug, Default)]
struct Import {
    /// Where passwords are to be.
    secrets: PathBuf,
    kept: Vec<Secret>,
    per_listener: bool,
    /// The first is the default listener: the lines before any `listener` line.
    listeners: Vec<Section>,
    bridges: Vec<Bridge>,
    general: BTreeMap<&'static str, Setting>,
    /// Why no listener is opened.
    shut: Option<String>,
    /// Whether plugins decide who may do what.
    has_plugin: bool,
    untranslated: Vec<Untranslated>,
    warnings: Vec<String>,
    /// In the order in which they are read.
    files: Vec<PathBuf>,
}

/// Settings of a listener.
#[derive(Debug, Default)]
struct Section {
    /// None for the default listener.
    opened: Option<Setting>,
    settings: BTreeMap<&'static str, Setting>,
    /// Why it is not opened.
    shut: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// Which of the files.
    file: usize,
    line: usize,
    text: String,
    value: String,
}

/// Where lines of a file belong: each file begins outside of all listeners and connections.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    listener: usize,
    bridge: Option<usize>,
    /// Whether the connection was opened after the listener.
    in_bridge: bool,
}

/// A line that is no comment.
#[derive(Debug)]
struct Line {
    file: usize,
    number: usize,
    key: String,
    rest: String,
}

impl Section {
    fn value(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|setting| &*setting.value)
    }

    fn is_true(&self, key: &str) -> bool {
        self.value(key) == Some("true")
    }

    /// Whether Mosquitto opens it: the default listener only if an option other than the security options is set for
    /// it.
    fn is_open(&self) -> bool {
        let of_listener = |name: &str| {
            keys::find(name)
                .is_some_and(|key| matches!(key.scope, Scope::Listener | Scope::DefaultListener))
        };
        self.opened.is_some()
            || self.shut.is_some()
            || self.settings.keys().any(|key| of_listener(key))
    }

    fn allows_anonymous(&self) -> Option<bool> {
        let value =
            self.value("listener_allow_anonymous").or_else(|| self.value("allow_anonymous"));
        value.map(|value| value == "true")
    }
}

impl Import {
    fn new(path: &Path, secrets: &Path) -> Self {
        Self {
            secrets: secrets.to_owned(),
            listeners: vec![Section::default()],
            files: vec![path.to_owned()],
            ..Self::default()
        }
    }

    fn read(&mut self, text: &str, include: Option<Include<'_>>) -> Result<(), ReadError> {
        let mut lines = Vec::new();
        self.lines(0, text, &mut lines, include)?;
        // It counts for all lines; Mosquitto does not let it be unset.
        self.per_listener = lines.iter().any(|line| {
            line.key == "per_listener_settings"
                && value_of(Kind::Flag, &line.rest).is_ok_and(|value| value == "true")
        });
        let mut places = vec![Place::default(); self.files.len()];
        for line in lines {
            self.line(line, &mut places);
        }
        Ok(())
    }

    /// The lines of a file, and where it names a folder, those of its files in place of that line.
    fn lines(
        &mut self,
        file: usize,
        text: &str,
        lines: &mut Vec<Line>,
        include: Option<Include<'_>>,
    ) -> Result<(), ReadError> {
        for (number, text) in text.split('\n').enumerate() {
            let text = text.trim_end_matches('\r');
            let plain = text.trim();
            // Mosquitto takes a `#` for a comment only where the line begins with it. Nothing is lost by the others.
            if plain.is_empty() || plain.starts_with('#') {
                continue;
            }
            let (key, rest) = text
                .trim_start_matches(' ')
                .split_once(' ')
                .unwrap_or((text.trim_start_matches(' '), ""));
            let line =
                Line { file, number: number + 1, key: key.to_owned(), rest: rest.to_owned() };
            match (key, value_of(Kind::Text, rest), include) {
                ("include_dir", Ok(folder), Some(include)) => {
                    // As Mosquitto, which opens it where it runs.
                    for (path, text) in include(Path::new(&folder))? {
                        self.files.push(path);
                        self.lines(self.files.len() - 1, &text, lines, None)?;
                    }
                }
                _ => lines.push(line),
            }
        }
        Ok(())
    }

    fn line(&mut self, line: Line, places: &mut [Place]) {
        let place = &mut places[line.file];
        let text = format!("{} {}", line.key, line.rest);
        let setting = |value: &str| Setting {
            file: line.file,
            line: line.number,
            text: shown(&line.key, text.trim()),
            value: value.to_owned(),
        };
        match &*line.key {
            "listener" => {
                self.listeners.push(Section {
                    opened: Some(setting(line.rest.trim())),
                    ..Section::default()
                });
                (place.listener, place.in_bridge) = (self.listeners.len() - 1, false);
                return;
            }
            "connection" => {
                let name = value_of(Kind::Word, &line.rest);
                self.bridges.push(Bridge::new(setting(name.as_deref().unwrap_or_default())));
                (place.bridge, place.in_bridge) = (Some(self.bridges.len() - 1), true);
                return;
            }
            _ => {}
        }
        let place = *place;
        let Some(key) = keys::find(&line.key) else {
            // A tab parts no key from its value; the word before it tells where the line belongs.
            let word = line.key.split_whitespace().next().unwrap_or_default();
            let setting = setting("");
            return match (word == line.key, keys::find(word)) {
                (false, Some(key)) => self.refuse(
                    key,
                    setting,
                    place,
                    "a space parts a key from its value, not a tab; Mosquitto would not start with this line",
                ),
                _ => self.unknown(setting, place),
            };
        };
        match value_of(key.kind, &line.rest) {
            Ok(value) => self.setting(key, setting(&value), place),
            Err(why) => self.refuse(key, setting(""), place, why),
        }
    }

    /// Takes a setting that Mosquitto takes.
    fn setting(&mut self, key: &'static keys::Key, setting: Setting, place: Place) {
        let (name, value) = (key.name, setting.value.clone());
        let shuts = key
            .fate
            .shuts(&value)
            .then(|| format!("its {name} protects it and has no counterpart"));
        match key.scope {
            Scope::General => {
                if shuts.is_some() {
                    self.shut = Some(format!("{name} protects it and has no counterpart"));
                }
                match (name, key.fate) {
                    ("per_listener_settings", _) => return,
                    ("include_dir", _) => {
                        return self.leave(&setting, "only the main file may name others; Mosquitto would not start with this line");
                    }
                    (_, Fate::Translated) => {
                        // Two names of one setting.
                        let name =
                            if name == "retained_persistence" { "persistence" } else { name };
                        let old = self.general.insert(name, setting.clone());
                        return self.leave_replaced(old, &setting);
                    }
                    _ => {}
                }
            }
            Scope::Bridge => {
                let Some(bridge) = place.bridge else {
                    return self.leave(&setting, "it stands under no connection");
                };
                let bridge = &mut self.bridges[bridge];
                bridge.shut = bridge.shut.take().or(shuts);
                if matches!(key.fate, Fate::Translated) {
                    let old = bridge.set(name, setting.clone());
                    return self.leave_replaced(old, &setting);
                }
                if name == "try_private" {
                    bridge.tries_private = value == "true";
                }
            }
            Scope::Security | Scope::Listener | Scope::DefaultListener => {
                self.has_plugin |= name.contains("plugin") || name.starts_with("auth_opt");
                let section = self.section(key.scope, place);
                section.shut = section.shut.take().or(shuts);
                if matches!(key.fate, Fate::Translated) || key.scope != Scope::Security {
                    // Two names of one setting.
                    let name = if name == "maximum_qos" { "max_qos" } else { name };
                    let old = section.settings.insert(name, setting.clone());
                    return self.leave_replaced(old, &setting);
                }
            }
        }
        self.leave_by(key.fate, &setting);
    }

    /// A line with which Mosquitto would not start: its listener or bridge is left out.
    fn refuse(&mut self, key: &'static keys::Key, setting: Setting, place: Place, why: &str) {
        let shut = || Some(format!("line {} is wrong", setting.line));
        match key.scope {
            Scope::General if key.name == "per_listener_settings" => self.shut = shut(),
            Scope::General if matches!(key.fate, Fate::Protects(..)) => self.shut = shut(),
            Scope::General => {}
            Scope::Bridge => {
                // A topic protects nothing.
                if let (Some(bridge), false) = (place.bridge, key.name == "topic") {
                    self.bridges[bridge].shut = shut();
                }
            }
            Scope::Listener | Scope::DefaultListener => {
                self.section(key.scope, place).shut = shut();
            }
            Scope::Security => {
                self.has_plugin |= key.name.contains("plugin") || key.name.starts_with("auth_opt");
                let by_hand = BY_HAND.iter().find(|(name, _)| *name == key.name);
                let value = by_hand.map_or("false", |(_, value)| value).to_owned();
                if matches!(key.fate, Fate::Translated) {
                    let section = self.section(key.scope, place);
                    section.settings.insert(key.name, Setting { value, ..setting.clone() });
                }
                if by_hand.is_some() {
                    self.warnings.push(by_hand_note(key.name, "cannot be read"));
                }
            }
        }
        self.leave(&setting, why);
    }

    /// A line that no known Mosquitto accepts: its section is left out.
    fn unknown(&mut self, setting: Setting, place: Place) {
        let shut = Some(format!("line {} is not known", setting.line));
        match (place.in_bridge, place.bridge, place.listener) {
            (true, Some(bridge), _) => self.bridges[bridge].shut = shut,
            (_, _, 0) => {}
            (_, _, listener) => self.listeners[listener].shut = shut,
        }
        self.leave(&setting, "Mosquitto 2.0 and 2.1 do not know it; is it spelled right?");
    }

    fn section(&mut self, scope: Scope, place: Place) -> &mut Section {
        let is_default = match scope {
            Scope::DefaultListener => true,
            Scope::Security => !self.per_listener,
            _ => false,
        };
        &mut self.listeners[if is_default { 0 } else { place.listener }]
    }

    fn leave_replaced(&mut self, old: Option<Setting>, new: &Setting) {
        if let Some(old) = old {
            self.leave(&old, &format!("line {} says it again", new.line));
        }
    }

    /// Says what becomes of a setting that is not translated.
    fn leave_by(&mut self, fate: Fate, setting: &Setting) {
        if let Some((why, is_lost)) = fate.of(&setting.value) {
            self.push(setting, why, is_lost);
        }
    }

    fn leave(&mut self, setting: &Setting, why: &str) {
        self.push(setting, why, true);
    }

    fn push(&mut self, setting: &Setting, why: &str, is_lost: bool) {
        let Setting { file, line, text, .. } = setting;
        self.untranslated.push(Untranslated {
            file: self.files[*file].clone(),
            line: *line,
            text: text.clone(),
            why: why.to_owned(),
            is_lost,
        });
    }

    fn write(mut self) -> Imported {
        let mut sections = std::mem::take(&mut self.listeners);
        let open: Vec<bool> = sections.iter().map(Section::is_open).collect();
        let local_only = !open.contains(&true);
        let mut body = String::new();
        let default = self.write_doors(&sections, &open, local_only, &mut body);
        self.write_limits(&mut body);
        let mut listeners = String::new();
        if local_only && self.shut.is_none() {
            self.warnings.push(
                "no listener is set up: Mosquitto is then at 127.0.0.1:1883 only, and so is this one"
                    .to_owned(),
            );
            let _ = write!(
                listeners,
                "\n[mqtt.listener.tcp-1883]\nlisten = \"127.0.0.1:1883\"\nprotocol = \"tcp\"\n"
            );
        }
        let mut names = BTreeSet::new();
        for (section, open) in sections.iter_mut().zip(open) {
            if open {
                let shut = self.shut.clone().or_else(|| section.shut.clone());
                let written = match shut {
                    Some(why) => Err(why),
                    None => self.listener(section, default, &mut names),
                };
                match written {
                    Ok(text) => listeners.push_str(&text),
                    Err(why) => self.leave_out(section, &why),
                }
            }
        }
        let mut toml = String::from("[mqtt]\n");
        if listeners.is_empty() {
            // A configuration without listeners has one on loopback.
            toml.push_str("enabled = false\n");
            self.warnings.push(
                "no listener could be translated, so MQTT is not served: add one and take `enabled = false` out".to_owned(),
            );
        }
        toml.push_str(&body);
        toml.push_str(&listeners);
        let mut names = BTreeSet::new();
        for bridge in std::mem::take(&mut self.bridges) {
            toml.push_str(&self.bridge(&bridge, &mut names));
        }
        let order: BTreeMap<PathBuf, usize> = self.files.iter().cloned().zip(0..).collect();
        self.untranslated.sort_by_key(|line| (order.get(&line.file).copied(), line.line));
        Imported {
            toml,
            secrets: self.kept,
            untranslated: self.untranslated,
            warnings: self.warnings,
        }
    }

    /// Bounds of packets, queues, sessions and keep alive, and the interval of `$SYS`, for all listeners.
    fn write_limits(&mut self, toml: &mut String) {
        if let Some(setting) = self.general.get("persistence") {
            let durability = if setting.value == "true" { "page" } else { "memory" };
            let _ = writeln!(toml, "durability = \"{durability}\"");
        }
        if self.general.get("retain_available").is_some_and(|setting| setting.value == "false") {
            toml.push_str("retain_available = false\n");
        }
        if self.general.get("check_retain_source").is_some_and(|setting| setting.value == "false") {
            toml.push_str("check_retain_source = false\n");
        }
        let packet = PACKET_BYTES_LEAST..=128 << 20; // half of the default memory for payloads
        let whole = self.number("max_packet_size", packet.clone());
        let payload = self.number("message_size_limit", 1..=*packet.end());
        if payload.is_some() {
            self.warnings.push(format!(
                "message_size_limit counts a payload, packet_bytes_max the packet around it: {} were added for its topic and \
                 properties",
                ByteCount(HEAD_BYTES)
            ));
        }
        let payload = payload.map(|bytes| (bytes + HEAD_BYTES).min(*packet.end()));
        if let Some(bytes) = whole.into_iter().chain(payload).min() {
            let _ = writeln!(toml, "packet_bytes_max = \"{}\"", ByteCount(bytes));
        }
        let queue_bytes = self.number("max_queued_bytes", 1 << 10..=u64::MAX >> 1);
        if let Some(bytes) = queue_bytes {
            let _ = writeln!(toml, "queue_bytes_max = \"{}\"", ByteCount(bytes));
        }
        let queue_messages = self.number("max_queued_messages", 1..=u64::from(u32::MAX));
        if let Some(count) = queue_messages {
            let _ = writeln!(toml, "queue_messages_max = {count}");
        }
        if queue_bytes.is_some() || queue_messages.is_some() {
            self.warnings.push(
                "a queue is bounded for QoS 0 as well, and one of QoS 1 and 2 that is full ends its connection; Mosquitto dropped \
                 the new message: see mqtt.overflow"
                    .to_owned(),
            );
        }
        if let Some(count) = self.number("max_inflight_messages", 1..=65_535) {
            let _ = writeln!(toml, "inflight_max = {count}");
        }
        if let Some(seconds) = self.number("max_keepalive", 1..=65_535) {
            let _ = writeln!(toml, "keepalive_max = \"{seconds}s\"");
        }
        if let Some(count) = self.number("global_max_clients", 1..=u64::from(u32::MAX)) {
            let _ = writeln!(toml, "sessions_max = {count}");
        }
        self.write_expiry(toml);
        if let Some(seconds) = self.number("sys_interval", 0..=65_535) {
            let _ = writeln!(toml, "sys_interval = \"{seconds}s\"");
        }
    }

    /// How long sessions outlive their connections.
    fn write_expiry(&mut self, toml: &mut String) {
        const HOUR: u64 = 3600;
        let Some(setting) = self.general.get("persistent_client_expiration").cloned() else {
            self.warnings.push(
                "a session that no client comes back to ends after 7 days, with what waits for it; in Mosquitto it stayed: see \
                 mqtt.session_expiry_max"
                    .to_owned(),
            );
            return;
        };
        let units = [
            ('s', 1),
            ('h', HOUR),
            ('d', 24 * HOUR),
            ('w', 7 * 24 * HOUR),
            ('m', 30 * 24 * HOUR),
            ('y', 365 * 24 * HOUR),
        ];
        let seconds = units.into_iter().find_map(|(unit, seconds)| {
            let count: u64 = setting.value.strip_suffix(unit)?.parse().ok()?;
            // As much as the protocol can say.
            count.checked_mul(seconds).filter(|seconds| (1..u64::from(u32::MAX)).contains(seconds))
        });
        match seconds {
            Some(seconds) if seconds % HOUR == 0 => {
                let _ = writeln!(toml, "session_expiry_max = \"{}h\"", seconds / HOUR);
            }
            Some(seconds) => {
                let _ = writeln!(toml, "session_expiry_max = \"{seconds}s\"");
            }
            None => self.leave(
                &setting,
                "it is not a number above 0 with s, h, d, w, m or y, of 136 years at most",
            ),
        }
    }

    /// Password file and ACL file, which are for all listeners here, and whether anonymous clients come in where a listener does
    /// not say otherwise.
    fn write_doors(
        &mut self,
        sections: &[Section],
        open: &[bool],
        local_only: bool,
        toml: &mut String,
    ) -> bool {
        let opened = || sections.iter().zip(open).filter(|(_, open)| **open).map(|(s, _)| s);
        let relevant: Vec<&Section> = match self.per_listener && !local_only {
            true => opened().collect(),
            false => sections.iter().take(1).collect(),
        };
        for (key, by_hand) in BY_HAND.into_iter().rev() {
            let values: BTreeSet<Option<&str>> =
                relevant.iter().map(|section| section.value(key)).collect();
            if values.len() > 1 {
                for section in &relevant {
                    if let Some(setting) = section.settings.get(key) {
                        let why = "listeners differ in it, and here it is for all of them: join the files into one";
                        self.leave(setting, why);
                    }
                }
                self.warnings.push(by_hand_note(key, "differs between listeners"));
                let _ = writeln!(toml, "{key} = {}", quoted(by_hand));
            } else if let Some(Some(value)) = values.first() {
                let _ = writeln!(toml, "{key} = {}", quoted(value));
            } else if self.has_plugin && key == "acl_file" {
                self.warnings.push(by_hand_note(key, "may have been in the place of a plugin"));
                let _ = writeln!(toml, "{key} = {}", quoted(by_hand));
            }
        }
        for section in sections {
            for key in [
                "acl_file",
                "allow_anonymous",
                "allow_zero_length_clientid",
                "auto_id_prefix",
                "password_file",
            ] {
                let lost = self.per_listener
                    && !local_only
                    && !relevant.iter().any(|r| std::ptr::eq(*r, section));
                if let (true, Some(setting)) = (lost, section.settings.get(key)) {
                    self.leave(setting, "it stands under no listener that is open");
                }
            }
        }
        // Mosquitto lets strangers in by itself only where it listens to this machine alone.
        let anonymous = |section: &Section| {
            section.allows_anonymous().unwrap_or(local_only) && !self.has_plugin
        };
        let default = relevant.iter().copied().all(anonymous);
        let of = |section: &Section| match self.per_listener {
            true => anonymous(section),
            false => {
                section.value("listener_allow_anonymous").map_or(default, |value| value == "true")
                    && !self.has_plugin
            }
        };
        let is_any = (local_only && default) || opened().any(of);
        if self.has_plugin {
            self.warnings.push(
                "plugins may have decided who comes in: only who has a proof may now".to_owned(),
            );
        } else if is_any && !local_only && relevant.iter().all(|s| s.value("acl_file").is_none()) {
            self.warnings.push(
                "every client is accepted without a proof and may do everything with topics, as in Mosquitto"
                    .to_owned(),
            );
        }
        let _ = writeln!(toml, "allow_anonymous = {default}");
        if let (true, Some(section)) = (!self.per_listener || local_only, sections.first()) {
            self.write_identifiers(section, section.settings.get("auto_id_prefix"), toml);
        }
        default
    }

    /// Which identifiers clients are given that come without one.
    fn write_identifiers(
        &mut self,
        section: &Section,
        prefix: Option<&Setting>,
        toml: &mut String,
    ) {
        if section.value("allow_zero_length_clientid") == Some("false") {
            toml.push_str("allow_zero_length_clientid = false\n");
        }
        match prefix {
            Some(setting) if is_id_prefix(&setting.value) => {
                let _ = writeln!(toml, "auto_id_prefix = {}", quoted(&setting.value));
            }
            Some(setting) => self.leave(setting, &format!("here it is {ID_PREFIX_BOUND}")),
            None => {}
        }
    }

    /// The section of a listener, in a configuration with that `allow_anonymous`.
    fn listener(
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
        let anonymous = match (section.value("listener_allow_anonymous"), self.per_listener) {
            _ if self.has_plugin => false,
            (Some(value), _) => value == "true",
            (None, true) => section.allows_anonymous().unwrap_or(false),
            (None, false) => default,
        };
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
        let host = section.opened.as_ref().and_then(|setting| words(&setting.value).nth(1));
        let host = host.or_else(|| section.value("bind_address"));
        if host.is_none() && !section.settings.contains_key("socket_domain") {
            self.warnings.push(format!(
                "{name} is at an IPv4 address; Mosquitto listened at the one of IPv6 as well"
            ));
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
                "use_identity_as_username" if !demanded && setting.value == "true" => {
                    (unasked, true)
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
                    "{name}: a certificate alone lets a client in, under the name in it; Mosquitto asked for a \
                     password as well, unless anonymous clients were let in"
                ),
            });
        }
    }

    fn leave_out(&mut self, section: &Section, why: &str) {
        let why = format!("the listener is left out: {why}");
        let doors = |name: &str| keys::find(name).is_some_and(|key| key.scope == Scope::Security);
        let settings = section.settings.iter().filter(|(key, _)| !doors(key)).map(|(_, s)| s);
        let lines: Vec<&Setting> = section.opened.iter().chain(settings).collect();
        for setting in lines {
            self.leave(setting, &why);
        }
    }

    /// The value of a setting for all, none if it means "no bound".
    fn number(&mut self, key: &str, bounds: RangeInclusive<u64>) -> Option<u64> {
        let setting = self.general.get(key)?.clone();
        match setting.value.parse::<i64>() {
            Ok(0) if key == "max_keepalive" => {
                self.leave(&setting, "connections that are never checked are not offered");
                None
            }
            // In Mosquitto a number below 0 is none.
            Ok(number) if number <= 0 && *bounds.start() > 0 => {
                self.leave(
                    &setting,
                    "that is not a bound in Mosquitto; here the default bounds it",
                );
                None
            }
            Ok(number) => {
                let number = u64::try_from(number).unwrap_or(0);
                if bounds.contains(&number) {
                    return Some(number);
                }
                let why = format!("here it is from {} to {}", bounds.start(), bounds.end());
                self.leave(&setting, &why);
                None
            }
            Err(_) => unreachable!("the value was read as a number"),
        }
    }
}

/// A value as Mosquitto reads it, with flags as `true` and `false`; or why it would not start with it.
fn value_of(kind: Kind, rest: &str) -> Result<String, &'static str> {
    const EMPTY: &str = "it has no value; Mosquitto would not start with this line";
    let first = || rest.split(' ').find(|word| !word.is_empty()).ok_or(EMPTY);
    if rest.contains(char::REPLACEMENT_CHARACTER) {
        return Err("it is not UTF-8; Mosquitto would not start with this line");
    }
    match kind {
        Kind::Flag => match first()? {
            "true" | "1" => Ok("true".to_owned()),
            "false" | "0" => Ok("false".to_owned()),
            _ => Err(
                "it is neither true nor false, in small letters; Mosquitto would not start with this line",
            ),
        },
        // Mosquitto 2.0 takes the digits that a word begins with, 2.1 no such word.
        Kind::Number => match first()?.parse::<i64>() {
            Ok(number) => Ok(number.to_string()),
            Err(_) => Err("it is not a number"),
        },
        Kind::Word => Ok(first()?.to_owned()),
        Kind::Words | Kind::Text => match rest.trim() {
            "" => Err(EMPTY),
            text => Ok(text.to_owned()),
        },
        Kind::Rest => match rest {
            "" => Err(EMPTY),
            text => Ok(text.to_owned()),
        },
    }
}

/// The words of a value up to a comment.
fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split(' ').filter(|word| !word.is_empty()).take_while(|word| !word.starts_with('#'))
}

fn by_hand_note(key: &str, why: &str) -> String {
    format!(
        "{key} {why}: set mqtt.{key} by hand before the node is started, which does not start before"
    )
}

/// The line as it may be shown.
fn shown(key: &str, text: &str) -> String {
    let lower = key.to_ascii_lowercase();
    let secret = ["password", "psk", "_opt_", "kpass"].iter().any(|word| lower.contains(word));
    // The name of the file is none.
    if secret && key != "password_file" && key != "psk_file" {
        // With `key=value` the text that is read as the key has the secret.
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "_.".contains(letter);
        let end = key.find(|letter| !is_of_name(letter)).unwrap_or(key.len());
        format!("{} ...", &key[..end])
    } else {
        text.to_owned()
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
    let (port, host) = match &section.opened {
        Some(setting) => {
            let mut words = words(&setting.value);
            (words.next().unwrap_or_default(), words.next())
        }
        None => (section.value("port").unwrap_or("1883"), section.value("bind_address")),
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
        (None, true) => Ipv6Addr::UNSPECIFIED.into(),
        (None, false) => Ipv4Addr::UNSPECIFIED.into(),
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
