//! Settings for all listeners, as the section `[mqtt]`.

use std::{collections::BTreeSet, fmt::Write as _, ops::RangeInclusive};

use tidegate_config::PACKET_BYTES_LEAST;
use tidegate_message::quantity::ByteCount;

use super::{BY_HAND, Import, by_hand_note, listeners::Section, quoted};

/// Bytes of a packet in addition to its payload: a topic of the greatest length.
const HEAD_BYTES: u64 = 64 << 10;

impl Import {
    /// Bounds of packets, queues, sessions and keep alive, and the interval of `$SYS`, for all listeners.
    pub(super) fn write_limits(&mut self, toml: &mut String) {
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
                "a queue is bounded for QoS 0 as well, and where one of QoS 1 and 2 is full, its oldest messages are dropped; Mosquitto \
                 dropped the new one: see mqtt.overflow"
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
    pub(super) fn write_authentication(
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
            } else if self.has_plugin && key == "acl_file" {
                // A plugin may have refused what a file of rules allows.
                if let Some(setting) = relevant.iter().find_map(|it| it.settings.get(key)) {
                    let why =
                        "a plugin may have refused what it allows: add the plugin's rules to it";
                    self.leave(setting, why);
                }
                self.warnings.push(by_hand_note(key, "is to say what a plugin said"));
                let _ = writeln!(toml, "{key} = {}", quoted(by_hand));
            } else if let Some(Some(value)) = values.first() {
                let _ = writeln!(toml, "{key} = {}", quoted(value));
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
