//! This node as a member of a fabric, as `[fabric]` describes it.

mod others;
mod topic_links;

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_config::{Config, words};
use tidegate_fabric::members::MemberSettings;
use tidegate_identity::access::Access;
use tidegate_message::{Code, check_topic_filter, error_chain};
use tidegate_nodes::{
    DiscoverSettings, Join, NodePorts, Nodes, NodesSettings, Orders, OwnSettings, TopicLinks,
};
use tidegate_relay::Relay;
use tidegate_uplinks::Peer;
use tidegate_wire::{NodeId, Role};
use tokio_util::task::AbortOnDropHandle;

use self::{others::Others, topic_links::MemberUplinks};
use super::{
    findings::Findings,
    keys::list,
    link_settings,
    part::{Exchange, Part, Ports, Running, Started},
};

/// The part by which this node and others are one.
pub(super) struct Membership;

#[async_trait]
impl Part for Membership {
    fn name(&self) -> &'static str {
        "the fabric"
    }

    fn needs_certificate(&self) -> bool {
        true
    }

    fn is_configured(&self, config: &Config) -> bool {
        config.fabric.enabled
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        if !config.fabric.enabled {
            return;
        }
        found.problems.take(critical(config));
        if config.fabric.discover && config.link.listen.port() == 0 {
            let text =
                "fabric.discover names the port of link.listen to others, which is 0: give one";
            found.problems.say(Code::CONFIG_INVALID, text);
        }
        let own = own_settings(config);
        // Those that the local network names it to dial it where it was named.
        let is_met = config.fabric.discover || config.fabric.via.is_some();
        if own.addresses.is_empty() && config.mqtt.enabled && !is_met {
            let text = "fabric.advertise is not set, and link.listen is no address that others can dial: this node fetches messages from the \
                        members that it dials, and exchanges none with another such node; fabric.via names a member that relays them";
            found.warnings.say(Code::CONFIG_INVALID, text);
        }
        for (key, listen, advertised) in [
            ("advertise", config.link.listen, &own.addresses),
            ("api_advertise", config.node.api_listen, &own.api_addresses),
        ] {
            let at = listen.to_string();
            if listen.ip().is_loopback() && advertised.contains(&at) {
                let text = format!(
                    "fabric.{key} is not set, so that members are told {at}, which they reach on this machine alone"
                );
                found.warnings.say(Code::CONFIG_INVALID, text);
            }
        }
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        if !config.fabric.enabled {
            // Nothing reads them any more, and messages would wait there for good.
            if let Some(bus) = &ports.bus {
                let ended = Peer::end_sessions(bus).await;
                if ended > 0 {
                    tracing::warn!(
                        ended,
                        "sessions of members end with what waits there: fabric.enabled is false"
                    );
                }
            }
            return Ok(None);
        }
        let (Some(site), Some(credentials)) = (&mut ports.site, &ports.credentials) else {
            return Ok(None);
        };
        let identity = credentials.identity();
        let settings = NodesSettings {
            member: member_settings(config, identity.node, identity.name.clone()),
            replicas: config.fabric.replicas as usize,
            join: match config.fabric.join {
                words::Join::Certificate => Join::Certificate,
                words::Join::Listed => Join::Listed(Arc::new(
                    config.fabric.member_names().map(str::to_owned).collect(),
                )),
            },
            folder: config.state_dir().join("fabric"),
            link: link_settings(config),
            discover: discover(config),
        };
        let topics = match (&ports.bus, &ports.receivers) {
            (Some(bus), Some(receivers)) => {
                let uplinks = MemberUplinks::new(config, bus, credentials, receivers.clone())?;
                site.links.serve(Role::Fetch, uplinks.fetches());
                Some(Arc::new(uplinks) as Arc<dyn TopicLinks>)
            }
            _ => None,
        };
        let nodes = Nodes::start(
            settings,
            NodePorts {
                credentials: credentials.clone(),
                bus: ports.bus.clone(),
                topics,
                access: ports.access.clone(),
            },
        )?;
        site.links.serve(Role::Member, nodes.links());
        ports.fabric = Some(Arc::new(nodes.reports()));
        site.streams.look_elsewhere(Arc::new(nodes.elsewhere()));
        let others = Arc::new(Others::new(nodes.seen()));
        let asking = others.clone();
        site.api.let_members_ask(Arc::new(move |node| asking.has(node)));
        let here = site.cameras.clone();
        let relay = Relay::over(here, others, credentials, ports.access.clone());
        let (relay, work) = relay.map_err(|error| {
            let text = "cameras of other members cannot be shown";
            ApiError::new(Code::IDENTITY_REFUSED, text).caused_by(error_chain(&error))
        })?;
        site.cameras = relay;
        let relaying = tokio::spawn(work.run(ports.stop.clone()));
        let seen = nodes.seen();
        ports.health.check("fabric", move || {
            let fault = seen.borrow().fault.clone();
            let has_ended = seen.has_changed().is_err();
            let ended = "the task of the fabric has ended: start this node again".to_owned();
            Some(if has_ended { Err(ended) } else { fault.map_or(Ok(()), Err) })
        });
        let (mut reached, orders) = (site.streams.reached(), nodes.orders());
        let telling = tokio::spawn(async move {
            loop {
                let cameras = reached.next().await;
                orders.set_cameras(cameras).await;
            }
        });
        let orders = nodes.orders();
        let _telling = AbortOnDropHandle::new(telling);
        let _relaying = AbortOnDropHandle::new(relaying);
        Ok(Some(Box::new(Begun { nodes, orders, _telling, _relaying })))
    }
}

struct Begun {
    nodes: Nodes,
    orders: Orders,
    /// Of cameras that come and go.
    _telling: AbortOnDropHandle<()>,
    /// The tasks of the relay.
    _relaying: AbortOnDropHandle<()>,
}

#[async_trait]
impl Running for Begun {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        Ok(Box::new(move |_| {
            // The state machine sees whether something is other than before.
            self.orders.try_set_own(own_settings(new))
        }))
    }

    async fn stop(self: Box<Self>) {
        self.nodes.stop().await;
    }
}

fn member_settings(config: &Config, me: NodeId, name: String) -> MemberSettings {
    MemberSettings {
        me,
        name,
        seeds: config.fabric.seeds().map(str::to_owned).collect(),
        retry_max: config.link.reconnect_backoff_max,
        own: own_settings(config),
    }
}

/// Where it names itself to the local networks.
fn discover(config: &Config) -> Option<DiscoverSettings> {
    match config.fabric.discover_group {
        SocketAddr::V4(group) if config.fabric.discover => {
            Some(DiscoverSettings { group, listen: config.link.listen })
        }
        // The configuration takes groups of IPv4 alone.
        _ => None,
    }
}

/// The part of this node's record that comes from its configuration.
fn own_settings(config: &Config) -> OwnSettings {
    let fabric = &config.fabric;
    OwnSettings {
        addresses: advertised(fabric.advertised(), config.link.listen),
        api_addresses: advertised(fabric.api_advertised(), config.node.api_listen),
        position: fabric.position,
        is_mobile: fabric.mobile,
        zone: fabric.zone.as_ref().map(ToString::to_string).unwrap_or_default(),
        weight: u16::try_from(fabric.weight).unwrap_or(u16::MAX),
        via: fabric.via.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

/// Filters of the topics whose messages travel to other members at once.
///
/// # Errors
/// [`Code::CONFIG_INVALID`]: one of them is no filter, or is shared.
fn critical(config: &Config) -> Result<Vec<String>, ApiError> {
    let levels = config.mqtt.topic_levels_max as usize;
    let checked = list(&config.fabric.critical).into_iter().map(|filter| {
        let wrong = |bound: &str| {
            let text = format!("fabric.critical must be {bound}, and has {filter:?}");
            ApiError::new(Code::CONFIG_INVALID, text)
        };
        match check_topic_filter(&filter, levels) {
            Ok(()) if !filter.starts_with("$share/") => Ok(filter),
            Ok(()) => Err(wrong("of filters that are not shared")),
            Err(error) => Err(wrong("of filters").caused_by(error_chain(&error))),
        }
    });
    checked.collect()
}

/// The addresses of a key; without those the one at which the node listens, unless that stands for all of the machine.
fn advertised<'a>(given: impl Iterator<Item = &'a str>, listen: SocketAddr) -> Vec<String> {
    let given: Vec<String> = given.map(str::to_owned).collect();
    match given.is_empty() && !listen.ip().is_unspecified() && listen.port() != 0 {
        true => vec![listen.to_string()],
        false => given,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn of(text: &str) -> Config {
        Config::parse(Path::new("site.toml"), text).expect("its keys are known")
    }

    #[test]
    fn member_is_told_where_it_is_reached() {
        let own = |text: &str| own_settings(&of(text));
        let bare =
            own("[link]\nlisten = \"10.0.0.7:7443\"\n[node]\napi_listen = \"0.0.0.0:7080\"\n");
        assert_eq!(
            (bare.addresses, bare.api_addresses),
            (vec!["10.0.0.7:7443".to_owned()], vec![])
        );
        let given = own(
            "[link]\nlisten = \"0.0.0.0:7443\"\n[fabric]\nadvertise = \"yard.local:7443, 10.0.0.7:1\"\nposition = \"52.5, 4.25\"\n\
             mobile = true\nzone = \"harbour\"\nweight = 250\n",
        );
        assert_eq!(given.addresses, ["yard.local:7443", "10.0.0.7:1"]);
        assert_eq!(given.position, "52.5, 4.25".parse().ok());
        assert_eq!((given.is_mobile, &*given.zone, given.weight), (true, "harbour", 250));
    }

    #[test]
    fn member_that_cannot_be_met_is_warned_of() {
        let warnings = |text: &str| {
            let mut found = Findings::default();
            Membership.check(&of(text), &Access::default(), &mut found);
            assert!(found.problems.is_empty(), "{found}");
            found.to_string()
        };
        assert_eq!(warnings(""), "");
        let alone = "[fabric]\nenabled = true\n[link]\nlisten = \"0.0.0.0:7443\"\n[node]\napi_listen = \"0.0.0.0:7080\"\n";
        assert!(warnings(alone).contains("no address that others can dial"), "{}", warnings(alone));
        let usual = "[fabric]\nenabled = true\nseeds = \"core:7443\"\n";
        assert!(warnings(usual).contains("fabric.advertise is not set"), "{}", warnings(usual));
        let mut found = Findings::default();
        let wrong = of("[fabric]\nenabled = true\ncritical = \"alarm/#, a/#/b\"\n");
        Membership.check(&wrong, &Access::default(), &mut found);
        let expected = "fabric.critical must be of filters, and has \"a/#/b\"";
        assert!(found.to_string().contains(expected), "{found}");
        let right =
            "[fabric]\nenabled = true\nadvertise = \"yard:7443\"\napi_advertise = \"yard:7080\"\n";
        assert_eq!(warnings(right), "");
    }
}
