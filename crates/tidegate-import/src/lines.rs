//! The lines of a `mosquitto.conf`, read as Mosquitto reads them: each is kept as a setting of what it belongs to, or left with the reason.

use std::path::{Path, PathBuf};

use super::{
    BY_HAND, Import, ReadError, Setting,
    bridges::Bridge,
    by_hand_note,
    keys::{self, Fate, Kind, Scope},
    listeners::Section,
};

/// Lists the files of an `include_dir`.
pub(super) type Include<'a> = &'a dyn Fn(&Path) -> Result<Vec<(PathBuf, String)>, ReadError>;

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

impl Import {
    pub(super) fn read(
        &mut self,
        text: &str,
        include: Option<Include<'_>>,
    ) -> Result<(), ReadError> {
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
                    // As Mosquitto, which opens it where it runs, and does not start without it.
                    let files = include(Path::new(&folder)).map_err(|error| ReadError {
                        named_at: Some((self.files[file].clone(), number + 1)),
                        ..error
                    })?;
                    for (path, text) in files {
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
                    // Of these a listener may have several.
                    if name == "websockets_origin"
                        && let Some(earlier) = section.settings.get_mut(name)
                    {
                        earlier.value = format!("{}\n{value}", earlier.value);
                        return;
                    }
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
            // The settings of its files are missing.
            Scope::General if key.name == "include_dir" => self.shut = shut(),
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

    /// A line that no known Mosquitto accepts. Rules for all may be meant by it wherever it stands, so that no listener is opened; one
    /// with a name as bridges have them is its bridge's alone.
    fn unknown(&mut self, setting: Setting, place: Place) {
        let shut = Some(format!("line {} is not known", setting.line));
        let lower = setting.text.to_ascii_lowercase();
        let is_of_bridge = ["bridge", "remote", "local"].iter().any(|of| lower.starts_with(of));
        match place.bridge.filter(|_| place.in_bridge) {
            Some(bridge) => {
                self.bridges[bridge].shut.clone_from(&shut);
                if !is_of_bridge {
                    self.shut = shut;
                }
            }
            None => self.shut = shut,
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
