//! MQTT as a node serves it: users and rules, server, bridges and sinks, made from one configuration and exchanged for another while
//! they run.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tidegate_api::ApiError;
use tidegate_broker::PART_GRACE;
use tidegate_bus::Bus;
use tidegate_config::{Config, Difference, Purpose};
use tidegate_flow::Stats;
use tidegate_flows::{Flows, Keeper};
use tidegate_identity::{access::Access, auth::departed::Departed, pki::Revocations};
use tidegate_ingest::Ingest;
use tidegate_message::{Code, IdentityKind};
use tidegate_process::{clock, health::Health};
use tidegate_server::{
    bridge::{Bridge, BridgeSettings},
    listen::ListenAddress,
    server::Server,
};
use tidegate_sinks::{Sink, SinkSettings};
use tidegate_uplinks::{Receivers, UplinkSettings};
use tidegate_web::{FlowRow, SinkRow};

use super::{bridges, broker, flows, ingest, node_name::node_of_paths, sinks, users};

/// The MQTT service of a node; it stops when dropped.
#[derive(Debug)]
pub struct Service {
    // In the order in which they end: bridges and sinks say farewell to the broker.
    running: Mutex<Running>,
    /// Ways in other than MQTT, by name.
    ingest: BTreeMap<Arc<str>, Ingest>,
    server: Server,
    /// The flows, and what keeps their state, which has the last word about it when no shard runs any more.
    flows: Arc<Flows>,
    keeper: Option<Keeper>,
    access: Access,
    /// Users whose sessions are still there.
    departed: Mutex<Departed>,
    /// The settings that are fixed from start to stop.
    started: Config,
}

#[derive(Debug)]
struct Running {
    config: Config,
    bridges: BTreeMap<String, (BridgeSettings, Bridge)>,
    sinks: BTreeMap<String, (SinkSettings, Sink)>,
}

/// The changes of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Settings that were exchanged, as `section.key`.
    pub exchanged: Vec<String>,
    /// Settings that are other than those in use until the next start.
    pub need_restart: Vec<String>,
    /// Bridges that were started, stopped or restarted.
    pub bridges: Vec<String>,
    /// Flows that are new, gone or other than they were.
    pub flows: Vec<String>,
    /// Sinks of which the same is true.
    pub sinks: Vec<String>,
}

impl Service {
    /// Serves what `config` says to those whom `access` lets in.
    ///
    /// # Errors
    /// Why it cannot start, naming the key, the file or the address.
    pub fn start(config: &Config, access: Access, health: &Health) -> Result<Self, ApiError> {
        let mut settings = broker::settings(config, access.clone(), Purpose::Run)?;
        let planned = bridges::planned(config, &settings.broker, &access, Purpose::Run)?;
        let flows = flows::none_yet(config, settings.shards)?;
        let folder = flows::folder(config);
        let plan = flows.plan(&flows::settings(config));
        let plan = plan.map_err(|error| flows::unplanned(&error))?;
        flows.commit(plan, folder.as_deref());
        settings.operators = Some(Arc::new(flows::FlowOperators(flows.clone())));
        let sinks = sinks::planned(config, &settings.broker.session, Purpose::Run)?;
        let listeners = ingest::listeners(config, &settings.broker.session)?;
        let server = Server::start(settings, health).map_err(|error| {
            let text = "MQTT cannot be served; mqtt.enabled=false leaves it out";
            ApiError::new(Code::CONFIG_INVALID, text)
                .caused_by(tidegate_message::error_chain(&error))
        })?;
        // Users may have gone while the node was down. Where tokens are taken, others may name them.
        let departed = match access.authenticator.has_users_alone() {
            true => Departed::read(&config.state_dir(), clock::now()).unwrap_or_else(|error| {
                tracing::warn!(%error, "users that are gone since the last start are not noticed");
                Departed::default()
            }),
            false => Departed::default(),
        };
        for (listener, address) in server.addresses() {
            tracing::info!(%listener, %address, "MQTT served");
        }
        for (listener, path) in server.paths() {
            let address = ListenAddress::Unix(path.clone());
            tracing::info!(%listener, %address, "MQTT served");
        }
        // Not before this process alone has the data folder.
        let keeper = folder.map(|folder| Keeper::start(flows.clone(), folder)).transpose();
        let keeper = keeper.map_err(|error| {
            ApiError::new(Code::STORAGE_FAILED, "the state of flows cannot be kept")
                .caused_by(tidegate_message::error_chain(&error))
        })?;
        let mut bridges = BTreeMap::new();
        for settings in planned {
            let bridge = bridge(&server, &settings)?;
            bridges.insert(settings.name.clone(), (settings, bridge));
        }
        let mut ingest = BTreeMap::new();
        let node: Arc<str> = match listeners.is_empty() {
            true => "".into(),
            false => node_of_paths(config, true)?.into(),
        };
        let bus: Bus = server.connector().into();
        for settings in listeners {
            let name = settings.name.clone();
            let listener = Ingest::start(settings, node.clone(), &bus, access.clone(), health);
            let listener = listener.map_err(|error| {
                let text = format!("ingest.{name} cannot be served");
                ApiError::new(Code::CONFIG_INVALID, text)
                    .caused_by(tidegate_message::error_chain(&error))
            })?;
            ingest.insert(name, listener);
        }
        let running = Running { config: config.clone(), bridges, sinks: BTreeMap::new() };
        let running = Mutex::new(running);
        let (departed, started) = (Mutex::new(departed), config.clone());
        let service = Self { running, server, ingest, flows, keeper, access, departed, started };
        service.look_at_users();
        let mut running = service.running.lock().unwrap_or_else(PoisonError::into_inner);
        service.exchange_sinks(&mut running.sinks, sinks, &mut Vec::new())?;
        drop(running);
        service.server.configure_parts(parts(config));
        Ok(service)
    }

    /// This node's broker, for services.
    pub fn bus(&self) -> Bus {
        self.server.connector().into()
    }

    /// Where clients of MQTT connect, by listener.
    pub fn addresses(&self) -> &[(Arc<str>, SocketAddr)] {
        self.server.addresses()
    }

    /// The way in other than MQTT of that name, or `None`.
    pub fn ingest(&self, name: &str) -> Option<&Ingest> {
        self.ingest.get(name)
    }

    /// The sinks, by name, with their counts.
    pub(crate) fn sinks(&self) -> Vec<SinkRow> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(name, (settings, sink)): (&String, &(SinkSettings, Sink))| {
            let report = sink.report();
            SinkRow {
                name: name.clone(),
                kind: settings.destination.kind().word(),
                up: sink.is_up(),
                topics: settings.topics.clone(),
                messages: report.messages,
                bytes: report.bytes,
                refused: report.refused,
                failures: report.failures,
            }
        };
        running.sinks.iter().map(row).collect()
    }

    /// The flows, by name, with their counts.
    pub(crate) fn flows(&self) -> Vec<FlowRow> {
        let row =
            |(name, [passed, replaced, dropped], stats): (Arc<str>, [u64; 3], Stats)| FlowRow {
                name: name.to_string(),
                messages: stats.messages,
                passed,
                replaced,
                dropped,
                emitted: stats.emitted,
                bad: stats.bad.iter().sum(),
                keys: stats.keys,
            };
        let mut rows: Vec<FlowRow> = self.flows.stats().into_iter().map(row).collect();
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        rows
    }

    /// Publishes what became of messages that came over uplinks, in `$SYS/broker/uplinks/`.
    pub(crate) fn tell_of_uplinks(&self, receivers: &Arc<Receivers>) {
        let receivers = Arc::downgrade(receivers);
        self.server.shared().tell_in_sys("uplinks", move || {
            receivers.upgrade().map(|receivers| vec![("looped", receivers.looped())])
        });
    }

    /// Goes by `new` from now on: users, rules, policies, the settings of listeners, bridges; all of them, or none. Users whose
    /// secret changed, clients with a token if other tokens are accepted now, and anonymous clients where that is no longer
    /// enough, are disconnected; clients with a certificate stay.
    /// Sessions keep the settings with which they connected. Settings that cannot be exchanged stay as they were, and are named.
    ///
    /// # Errors
    /// The problem of `new`: then nothing has changed. [`Code::INTERNAL`] if the system gives a bridge no thread: then all
    /// but that bridge has.
    pub fn reload(&self, new: Config) -> Result<Reloaded, ApiError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = broker::settings(&new, self.access.clone(), Purpose::Run)?;
        let rules = users::sources_again(&new, &self.access.authenticator)?;
        let rules =
            self.access.authenticator.prepare(rules).map_err(|error| users::unread(&error))?;
        let planned = bridges::planned(&new, &settings.broker, &self.access, Purpose::Run)?;
        let plan = self.flows.plan(&flows::settings(&new));
        let plan = plan.map_err(|error| flows::unplanned(&error))?;
        let sinks = sinks::planned(&new, &settings.broker.session, Purpose::Run)?;
        let listeners = ingest::listeners(&new, &settings.broker.session)?;
        // All of it is right.
        let settings_of = |differences: Vec<Difference>, is_fixed: bool| {
            let some = differences.into_iter().filter(|it| it.is_fixed == is_fixed);
            some.map(|it| it.setting).collect()
        };
        let mut reloaded = Reloaded {
            exchanged: settings_of(running.config.differences(&new), false),
            need_restart: settings_of(self.started.differences(&new), true),
            bridges: Vec::new(),
            flows: Vec::new(),
            sinks: Vec::new(),
        };
        let users = self.access.authenticator.exchange(rules);
        self.server.reload(&settings);
        reloaded.flows = self.flows.commit(plan, self.keeper.as_ref().map(Keeper::folder));
        for settings in listeners {
            let name = settings.name.clone();
            if let Some(listener) = self.ingest.get(&name)
                && !listener.exchange(settings)
            {
                tracing::warn!(ingest = %name, "this listener changes at the next start");
            }
        }
        self.server.kick_users(users.users_changed.iter().cloned().collect());
        self.look_at_users();
        if users.tokens_changed {
            self.server.kick_tokens();
        }
        tracing::info!(
            users = users.users,
            users_changed = users.users_changed.join(", "),
            rules = users.acl_rules,
            rules_changed = users.acl_changed,
            roles = users.roles_rules,
            roles_changed = users.roles_changed,
            tokens_changed = users.tokens_changed,
            exchanged = reloaded.exchanged.join(", "),
            flows = reloaded.flows.join(", "),
            "configuration of MQTT reloaded"
        );
        for warning in users::warnings(&new) {
            tracing::warn!("{warning}");
        }
        for key in &reloaded.need_restart {
            tracing::warn!(%key, "this setting takes effect at the next start");
        }
        let Running { config, bridges, sinks: running_sinks } = &mut *running;
        *config = new;
        let bridges = self.exchange_bridges(bridges, planned, &mut reloaded.bridges);
        let sinks = self.exchange_sinks(running_sinks, sinks, &mut reloaded.sinks);
        self.server.configure_parts(parts(config));
        bridges.and(sinks)?;
        Ok(reloaded)
    }

    /// Notes which users the password file has now, and says which are gone.
    fn look_at_users(&self) {
        let Some(users) = self.access.authenticator.users() else { return };
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = departed.look(clock::now(), users);
        self.keep_users(&departed);
        let (leaving, others) = (departed.leaving(), departed.has_strangers());
        drop(departed);
        let authenticator = self.access.authenticator.clone();
        let others = others && authenticator.has_users_alone();
        self.server.mark_gone_users(move |owner| {
            // A client with a token may have the name of a user.
            let is_meant = owner.until.is_none() && leaving.contains(&*owner.name);
            (is_meant || others) && !authenticator.has_user(&owner.name)
        });
        let Some(gone) = gone else { return };
        let (users, of, hours) = (gone.users.join(", "), gone.of, gone.grace.as_secs() / 3600);
        match gone.is_many() {
            true => tracing::error!(
                users,
                of,
                hours,
                "more than half of the users are gone from the password file: they are refused, and their sessions wait for so many \
                 hours; if that was not meant, bring the file back and reload; `tidegate sessions end` ends sessions at once"
            ),
            false => tracing::warn!(
                users,
                of,
                hours,
                "users are gone from the password file: they are refused, and their sessions wait for so many hours; \
                 `tidegate sessions end` ends sessions at once"
            ),
        }
    }

    fn keep_users(&self, departed: &Departed) {
        if let Err(error) = departed.write(&self.started.state_dir()) {
            tracing::warn!(%error, "users that are gone at the next start may not be noticed");
        }
    }

    /// Ends the sessions of users that have been gone for long: messages that wait there are dropped, and the client identifiers are free. A
    /// client with a token may have the name of a user.
    pub(super) fn end_departed(&self) {
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(due) = departed.due(clock::now()) else { return };
        self.keep_users(&departed);
        let leaving = departed.leaving();
        drop(departed);
        if !due.users.is_empty() {
            let users: Vec<&str> = due.users.iter().map(String::as_str).collect();
            tracing::warn!(
                users = users.join(", "),
                "the sessions of users that are gone have ended"
            );
        }
        let authenticator = self.access.authenticator.clone();
        let strangers = due.strangers && authenticator.has_users_alone();
        self.server.end_sessions(move |_, owner| {
            let is_due = owner.until.is_none() && due.users.contains(&*owner.name);
            let is_stranger = strangers && !leaving.contains(&*owner.name);
            owner.kind == IdentityKind::User
                && (is_due || is_stranger)
                && !authenticator.has_user(&owner.name)
        });
    }

    /// The sessions of the node's parts, by client identifier, also of those that are gone; none if the broker has ended.
    pub(super) async fn sessions_of_parts(&self) -> Option<HashSet<String>> {
        let connector = self.server.connector();
        connector.client_ids(|owner| owner.kind == IdentityKind::Internal).await
    }

    /// Removes the places in time of sinks that are gone and have none of these sessions.
    pub(super) fn end_sinks(&self, sessions: &HashSet<String>) {
        // Not while sinks are exchanged.
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let has_session = |name: &str| sessions.contains(&SinkSettings::session_of(name));
        if let Err(error) = sinks::remove_places(&running.config, has_session) {
            tracing::warn!(%error, "the places in time of a sink that is gone cannot be removed");
        }
    }

    /// Ends the connections of clients with a token: keys were withdrawn.
    pub fn kick_tokens(&self) {
        self.server.kick_tokens();
    }

    /// Has just the sinks `planned` run.
    fn exchange_sinks(
        &self,
        sinks: &mut BTreeMap<String, (SinkSettings, Sink)>,
        planned: Vec<SinkSettings>,
        changed: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let stays = |old: &SinkSettings| planned.contains(old);
        for (name, (_, sink)) in sinks.extract_if(.., |_, (settings, _)| !stays(settings)) {
            let report = sink.stop();
            tracing::info!(sink = %name, %report, "sink stopped");
            changed.push(name);
        }
        for settings in planned {
            let name = settings.name.clone();
            if sinks.contains_key(&name) {
                continue;
            }
            let sink = Sink::start(settings.clone(), self.bus());
            let sink = sink.map_err(|error| {
                let text = format!("sink.{name} cannot start");
                ApiError::new(Code::INTERNAL, text).caused_by(tidegate_message::error_chain(&error))
            })?;
            tracing::info!(sink = %name, kind = settings.destination.kind().word(), "sink started");
            if !changed.contains(&name) {
                changed.push(name.clone());
            }
            sinks.insert(name, (settings, sink));
        }
        Ok(())
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
            // A bridge of the same name continues with the former sessions, and with the messages that wait there.
            let next = planned.iter().find(|new| new.name == name);
            let report = bridge.leave(match next {
                Some(new) if old.keeps_remote(new) => None,
                // It has subscriptions that are no longer wanted.
                Some(_) => Some(Duration::ZERO),
                // The one here is kept for as long.
                None => Some(PART_GRACE),
            });
            tracing::info!(bridge = %name, %report, "bridge stopped");
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

/// The client identifiers of all parts of the node that `config` describes whose sessions outlast the process.
fn parts(config: &Config) -> HashSet<String> {
    let bridges = config.mqtt_bridges.keys().map(|name| BridgeSettings::local_id(name));
    let sinks = config.sinks.keys().map(|name| SinkSettings::session_of(name));
    let uplinks = config.uplinks.keys().flat_map(|name| UplinkSettings::sessions(name));
    bridges.chain(sinks).chain(uplinks).collect()
}

fn bridge(server: &Server, settings: &BridgeSettings) -> Result<Bridge, ApiError> {
    let started = Bridge::start(settings.clone(), server.connector());
    if let Ok(bridge) = &started {
        let prefix = format!("connection/{}", settings.name);
        server.shared().tell_in_sys(prefix, bridge.counts());
    }
    started.map_err(|error| {
        let text = format!("mqtt.bridge.{} cannot start", settings.name);
        ApiError::new(Code::INTERNAL, text).caused_by(tidegate_message::error_chain(&error))
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

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
        let authenticator = Arc::new(users::open(&first).expect("no file is wrong"));
        let access = Access { authenticator, ..Access::default() };
        let service = Service::start(&first, access, &Health::default()).expect("it serves");

        // The same again.
        let reloaded = service.reload(config(&bridge("x", "a"))).expect("nothing is wrong");
        assert_eq!(reloaded, Reloaded::default());

        // Wrong rules: the policy and the bridge stay, too.
        let text = format!("[mqtt]\npolicy = \"none\"\nacl_file = \"{place}/no-such\"\n");
        let error = service.reload(config(&(text + &bridge("x", "b")))).expect_err("no file");
        assert!(tidegate_message::error_chain(&error).contains("no-such"), "{error:?}");
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

        // Settings that need a restart are named each time.
        let reloaded = service.reload(config(&text)).expect("nothing is wrong");
        assert_eq!((&reloaded.exchanged[..], &reloaded.bridges[..]), (&[][..], &[][..]));
        assert_eq!(reloaded.need_restart, ["mqtt.shards"]);
        let reloaded = service.reload(config("")).expect("nothing is wrong");
        assert_eq!((reloaded.bridges, bridges(&service).len()), (vec!["x".into(), "y".into()], 0));
    }

    #[test]
    fn flows_are_exchanged_with_the_rest_or_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().display().to_string();
        let file = folder.path().join("f.toml");
        let flow = |name: &str| {
            format!(
                "[flow.{name}]\ntopics = [\"t\"]\nparse = {{ format = \"csv\", fields = [\"x\"] }}\n"
            )
        };
        fs::write(&file, flow("a")).expect("a file");
        let config = |text: &str| {
            let listener = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
            let text = format!("[node]\ndata_dir = \"{place}\"\n{text}\n{listener}");
            // Files are looked for next to the one that names them.
            let path = folder.path().join("site.toml");
            Config::parse(&path, &text).expect("a configuration")
        };
        let one = "[flow.one]\nfile = \"f.toml\"\n";
        let first = config(one);
        let authenticator = Arc::new(users::open(&first).expect("no file is wrong"));
        let access = Access { authenticator, ..Access::default() };
        let service = Service::start(&first, access, &Health::default()).expect("it serves");
        let names = || -> Vec<String> {
            service.flows.stats().iter().map(|stats| stats.0.to_string()).collect()
        };
        assert_eq!(names(), ["a"]);
        assert_eq!(service.reload(config(one)).expect("nothing is wrong"), Reloaded::default());

        // A wrong file: neither it nor the files next to it are taken.
        fs::write(&file, flow("b").replace("csv", "xml")).expect("a file");
        let text = format!("[mqtt]\npolicy = \"none\"\n{one}");
        let error = service.reload(config(&text)).expect_err("no such format");
        let chain = tidegate_message::error_chain(&error);
        assert!(chain.contains("flow.one.file") && chain.contains("f.toml:3"), "{chain}");
        assert_eq!(names(), ["a"]);

        // The configuration is the same, the file is another.
        fs::write(&file, flow("b") + &flow("c")).expect("a file");
        let reloaded = service.reload(config(one)).expect("nothing is wrong");
        assert_eq!(
            (&reloaded.flows[..], names()),
            (&["a", "b", "c"].map(String::from)[..], vec!["b".into(), "c".into()])
        );
        assert!(reloaded.need_restart.is_empty());
        let text = format!("{one}enabled = false\n");
        let reloaded = service.reload(config(&text)).expect("nothing is wrong");
        assert_eq!((reloaded.exchanged, names()), (vec!["flow.one.enabled".to_owned()], vec![]));
    }

    #[test]
    fn a_reload_exchanges_sinks() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().display().to_string();
        let config = |text: &str| {
            let listener = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
            let text = format!("[node]\ndata_dir = \"{place}\"\n{text}\n{listener}");
            Config::parse(Path::new("site.toml"), &text).expect("a configuration")
        };
        let sink = |name: &str, topics: &str| format!("[sink.{name}]\ntopics = \"{topics}\"\n");
        let first = config(&(sink("x", "a") + &sink("y", "b")));
        let authenticator = Arc::new(users::open(&first).expect("no file is wrong"));
        let access = Access { authenticator, ..Access::default() };
        let service = Service::start(&first, access, &Health::default()).expect("it serves");
        let running = |service: &Service| -> Vec<String> {
            let running = service.running.lock().expect("no panic");
            running.sinks.values().flat_map(|(settings, _)| settings.topics.clone()).collect()
        };
        assert_eq!(running(&service), ["a", "b"]);

        let reloaded = service.reload(first.clone()).expect("nothing is wrong");
        assert_eq!(reloaded.sinks, [""; 0]);

        // A sink that cannot be: all others stay as they were.
        let wrong = config(&(sink("x", "c") + "[sink.z]\nkind = \"influx\"\ntopics = \"a\"\n"));
        let error = service.reload(wrong).expect_err("it has no url");
        assert!(tidegate_message::error_chain(&error).contains("sink.z"), "{error:?}");
        assert_eq!(running(&service), ["a", "b"]);

        let reloaded = service.reload(config(&sink("x", "a, c"))).expect("nothing is wrong");
        assert_eq!(
            (&reloaded.sinks[..], running(&service)),
            (&["x".to_owned(), "y".to_owned()][..], vec!["a".to_owned(), "c".to_owned()])
        );
        assert!(reloaded.need_restart.is_empty());
    }
}
