//! MQTT as a node serves it: users and rules, server and bridges, made from one configuration and exchanged for another while
//! they run.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use tidegate_client::ApiError;
use tidegate_message::Code;

use super::{
    bridge::{Bridge, BridgeSettings},
    configure,
    server::Server,
};
use crate::{access::Access, auth, config::Config, health::Health, pki::Revocations};

/// What serves MQTT in a node; it stops when dropped.
#[derive(Debug)]
pub struct Service {
    // In the order in which they end: bridges say farewell to both brokers.
    running: Mutex<Running>,
    server: Server,
    access: Access,
    /// What holds from start to stop.
    started: Config,
}

#[derive(Debug)]
struct Running {
    config: Config,
    bridges: BTreeMap<String, (BridgeSettings, Bridge)>,
}

/// Settings of `[mqtt]` that hold from start to stop.
const FIXED: [&str; 13] = [
    "enabled",
    "durability",
    "shards",
    "payload_bytes_max",
    "spill_bytes",
    "session_expiry_max",
    "keepalive_max",
    "inflight_max",
    "retained_max",
    "sessions_max",
    "subscriptions_max",
    "sys_interval",
    "policy_query_topic",
];

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Settings that were exchanged, as `section.key`.
    pub exchanged: Vec<String>,
    /// Settings that are other than those in use until the next start.
    pub need_restart: Vec<String>,
    /// Bridges that were started, stopped or made anew.
    pub bridges: Vec<String>,
}

impl Service {
    /// Serves what `config` says to those whom `access` lets in.
    ///
    /// # Errors
    /// What keeps it from that, naming the key, the file or the address.
    pub fn start(config: &Config, access: Access, health: &Health) -> Result<Self, ApiError> {
        let settings = configure::settings(config, access.clone())?;
        let planned = configure::bridges(config, &settings, &access)?;
        let server = Server::start(settings, health).map_err(|error| {
            let text = "MQTT cannot be served; mqtt.enabled=false leaves it out";
            ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(&error))
        })?;
        for (listener, address) in server.addresses() {
            tracing::info!(%listener, %address, "MQTT served");
        }
        let mut bridges = BTreeMap::new();
        for settings in planned {
            let bridge = bridge(&server, &settings)?;
            bridges.insert(settings.name.clone(), (settings, bridge));
        }
        let running = Mutex::new(Running { config: config.clone(), bridges });
        Ok(Self { running, server, access, started: config.clone() })
    }

    /// Goes by `new` from now on: users, rules, policies, the settings of listeners, bridges; all of them, or none. Users whose
    /// secret changed, whoever came by a token if other tokens are taken now, and whoever proved nothing where that is no longer
    /// enough, are disconnected; who came by a certificate stays.
    /// Sessions keep the settings with which they connected. What cannot be exchanged stays as it was, and is named.
    ///
    /// # Errors
    /// What of `new` is wrong: then nothing has changed. [`Code::INTERNAL`] if the system gives a bridge no thread: then all
    /// but that bridge has.
    pub fn reload(&self, new: Config) -> Result<Reloaded, ApiError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = configure::settings(&new, self.access.clone())?;
        let rules = auth::sources(&new)?;
        let rules = self.access.doors.prepare(rules).map_err(|error| auth::unread(&error))?;
        let planned = configure::bridges(&new, &settings, &self.access)?;
        // All of it is right.
        let mut reloaded = Reloaded {
            exchanged: running.config.differences(&new),
            need_restart: self.started.differences(&new),
            bridges: Vec::new(),
        };
        reloaded.exchanged.retain(|key| !is_fixed(key));
        reloaded.need_restart.retain(|key| is_fixed(key));
        let users = self.access.doors.exchange(rules);
        self.server.reload(&settings);
        self.server.kick_users(users.users_changed.iter().cloned().collect());
        if users.tokens_changed {
            self.server.kick_tokens();
        }
        tracing::info!(users = users.users, users_changed = ?users.users_changed, rules = users.acl_rules,
            rules_changed = users.acl_changed, roles = users.roles_rules, roles_changed = users.roles_changed,
            tokens_changed = users.tokens_changed, exchanged = ?reloaded.exchanged, "configuration of MQTT read anew");
        for warning in auth::warnings(&new) {
            tracing::warn!("{warning}");
        }
        for key in &reloaded.need_restart {
            tracing::warn!(%key, "this setting is another one from the next start on");
        }
        running.config = new;
        self.exchange_bridges(&mut running.bridges, planned, &mut reloaded.bridges)?;
        Ok(reloaded)
    }

    /// Looks for other revocation lists with `refresh`, which says whether there are any; ends the connections of those who are
    /// on them. `elsewhere`: whether the site's own list is another now.
    pub fn refresh_revocations(&self, elsewhere: bool, refresh: &dyn Fn(&Revocations) -> bool) {
        if self.server.refresh_revocations(refresh) | elsewhere {
            self.server.kick_revoked();
        }
    }

    fn exchange_bridges(
        &self,
        bridges: &mut BTreeMap<String, (BridgeSettings, Bridge)>,
        planned: Vec<BridgeSettings>,
        changed: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let stays = |settings: &BridgeSettings| planned.contains(settings);
        let gone = bridges.extract_if(.., |_, (settings, _)| !stays(settings));
        for (name, (old, bridge)) in gone {
            // Who comes again goes on with the sessions of before, and with what waits there.
            let next = planned.iter().find(|new| new.name == name);
            let (keeps_local, keeps_remote) =
                next.map_or((false, false), |new| old.goes_on_as(new));
            let local_id = bridge.local_id().to_owned();
            let report = bridge.leave(keeps_remote);
            if !keeps_local {
                self.server.forget(&local_id);
            }
            tracing::info!(bridge = %name, ?report, "bridge stopped");
            changed.push(name);
        }
        let mut failed = Ok(());
        for settings in planned {
            if bridges.contains_key(&settings.name) {
                continue;
            }
            match bridge(&self.server, &settings) {
                Ok(bridge) => {
                    tracing::info!(bridge = %settings.name, "bridge started");
                    if !changed.contains(&settings.name) {
                        changed.push(settings.name.clone());
                    }
                    bridges.insert(settings.name.clone(), (settings, bridge));
                }
                Err(error) => failed = Err(error),
            }
        }
        failed
    }
}

fn bridge(server: &Server, settings: &BridgeSettings) -> Result<Bridge, ApiError> {
    Bridge::start(settings.clone(), server.connector()).map_err(|error| {
        let text = format!("mqtt.bridge.{} cannot start", settings.name);
        ApiError::new(Code::INTERNAL, text).caused_by(crate::error_chain(&error))
    })
}

/// Whether a setting, as [`Config::differences`] names it, holds from start to stop.
fn is_fixed(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["mqtt", key] => FIXED.contains(&key),
        // A listener that is new or gone, and what its socket was made with.
        ["mqtt", "listener", _] | ["mqtt", "listener", _, "listen" | "protocol"] => true,
        ["auth", key] => key.starts_with("audit"),
        ["mqtt", ..] => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::Arc};

    use tidegate_log::Durability;

    use super::*;
    use crate::mqtt::journal::MqttDurability;

    #[test]
    fn every_fixed_setting_is_one() {
        let mut config = Config::default();
        let key = |name: &str| format!("mqtt.{name}");
        config.mqtt.enabled = false;
        config.mqtt.shards = 7;
        config.mqtt.durability = MqttDurability(Durability::Disk);
        config.mqtt.payload_bytes_max.0 += 1;
        config.mqtt.spill_bytes.0 += 1;
        config.mqtt.session_expiry_max /= 2;
        config.mqtt.keepalive_max += std::time::Duration::from_secs(1);
        config.mqtt.inflight_max += 1;
        config.mqtt.retained_max += 1;
        config.mqtt.sessions_max += 1;
        config.mqtt.subscriptions_max += 1;
        config.mqtt.sys_interval *= 2;
        config.mqtt.policy_query_topic.push('x');
        config.mqtt.queue_messages_max += 1; // this one is exchanged
        let mut found = Config::default().differences(&config);
        found.retain(|name| is_fixed(name));
        let mut fixed: Vec<String> = FIXED.iter().map(|name| key(name)).collect();
        fixed.sort();
        found.sort();
        assert_eq!(found, fixed);
    }

    #[test]
    fn a_reload_takes_all_or_nothing_and_says_what() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().display().to_string();
        let config = |text: &str| {
            let listener = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
            let text = format!("[node]\ndata_dir = \"{place}\"\n{text}\n{listener}");
            Config::parse(Path::new("site.toml"), &text).expect("a configuration")
        };
        let rules = folder.path().join("rules");
        fs::write(&rules, "topic read a\n").expect("a file");
        let bridge = |name: &str, topics: &str| {
            format!("[mqtt.bridge.{name}]\nremote = \"127.0.0.1:1\"\ntopics_out = \"{topics}\"\n")
        };
        let first = config(&bridge("x", "a"));
        let doors = Arc::new(auth::open(&first).expect("no file is wrong"));
        let access = Access { doors, ..Access::default() };
        let service = Service::start(&first, access, &Health::default()).expect("it serves");

        // The same again.
        let reloaded = service.reload(config(&bridge("x", "a"))).expect("nothing is wrong");
        assert_eq!(reloaded, Reloaded::default());

        // Wrong rules: the policy and the bridge stay, too.
        let text = format!("[mqtt]\npolicy = \"none\"\nacl_file = \"{place}/no-such\"\n");
        let error = service.reload(config(&(text + &bridge("x", "b")))).expect_err("no file");
        assert!(crate::error_chain(&error).contains("no-such"), "{error:?}");
        let bridges = |service: &Service| -> Vec<String> {
            let running = service.running.lock().expect("no panic");
            running.bridges.values().flat_map(|(s, _)| s.topics_out.clone()).collect()
        };
        assert_eq!(bridges(&service), ["a"]);

        // A new file of rules, a bridge exchanged, one more, a limit that stays.
        let text = format!("[mqtt]\nshards = 3\nacl_file = \"{place}/rules\"\n");
        let text = text + &bridge("x", "b") + &bridge("y", "c");
        let reloaded = service.reload(config(&text)).expect("nothing is wrong");
        assert_eq!(
            reloaded.exchanged,
            ["mqtt.acl_file", "mqtt.bridge.x.topics_out", "mqtt.bridge.y"]
        );
        assert_eq!(reloaded.need_restart, ["mqtt.shards"]);
        assert_eq!(reloaded.bridges, ["x", "y"]);
        assert_eq!(bridges(&service), ["b", "c"]);

        // What needs a restart is said each time.
        let reloaded = service.reload(config(&text)).expect("nothing is wrong");
        assert_eq!((&reloaded.exchanged[..], &reloaded.bridges[..]), (&[][..], &[][..]));
        assert_eq!(reloaded.need_restart, ["mqtt.shards"]);
        let reloaded = service.reload(config("")).expect("nothing is wrong");
        assert_eq!((reloaded.bridges, bridges(&service).len()), (vec!["x".into(), "y".into()], 0));
    }
}
