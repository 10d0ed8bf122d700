//! MQTT as a node serves it, with the flows that its shards run, made from one configuration and exchanged for another.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_config::{Config, Purpose};
use tidegate_flow::Stats;
use tidegate_flows::{Flows, Keeper, PlanError};
use tidegate_identity::access::Access;
use tidegate_message::{Code, ListenAddress, error_chain};
use tidegate_server::server::Server;
use tidegate_web::FlowRow;

use super::{
    broker,
    findings::Findings,
    flows,
    part::{Exchange, Listen, Part, Ports, Running, Started, dropped},
};

/// The part that is the broker of all others.
pub(super) struct Mqtt;

#[async_trait]
impl Part for Mqtt {
    fn name(&self) -> &'static str {
        "MQTT and flows"
    }

    fn check(&self, config: &Config, access: &Access, found: &mut Findings) {
        if !config.mqtt.enabled {
            return;
        }
        found.problems.add(broker::problems(config, access));
        let mut wrong = Vec::new();
        Flows::new(1, 0, 0).plan_all(&flows::settings(config), &mut wrong);
        for error in wrong {
            let text = match &error {
                // The file and its line lead to the mistake.
                PlanError::File { source, .. } if source.is_at_line() => error_chain(source),
                error => error_chain(error),
            };
            found.problems.say(Code::CONFIG_INVALID, text);
        }
    }

    fn listens(&self, config: &Config) -> Vec<Listen> {
        if !config.mqtt.enabled {
            return Vec::new();
        }
        let listeners = config.mqtt_listeners.iter().map(|(name, section)| {
            Listen::tcp(&format!("mqtt.listener.{name}.listen"), section.listen.clone())
        });
        listeners.collect()
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        if !config.mqtt.enabled {
            return Ok(None);
        }
        let mut settings = broker::settings(config, ports.access.clone(), Purpose::Run)?;
        if config.fabric.enabled {
            let node = ports.credentials.as_ref().map(|credentials| credentials.identity().node);
            let first = node.and_then(|node| node.0.first_chunk().copied());
            settings.broker.member = first.map(u64::from_be_bytes);
        }
        let flows = flows::none_yet(config, settings.shards)?;
        let folder = flows::folder(config);
        // Before the first message passes.
        let plan = flows.plan(&flows::settings(config));
        flows.commit(plan.map_err(|error| flows::unplanned(&error))?, folder.as_deref());
        settings.operators = Some(Arc::new(flows::FlowOperators(flows.clone())));
        let server = Server::start(settings, &ports.health).map_err(|error| {
            let text = "MQTT cannot be served; mqtt.enabled=false leaves it out";
            ApiError::new(Code::CONFIG_INVALID, text).caused_by(error_chain(&error))
        })?;
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
                .caused_by(error_chain(&error))
        })?;
        let server = Arc::new(server);
        ports.bus = Some(server.connector().into());
        // A node has one.
        let _ = ports.server.set(Arc::downgrade(&server));
        ports.tables.flows.show(&flows, rows);
        Ok(Some(Box::new(Served { server, flows, keeper, access: ports.access.clone() })))
    }
}

/// The broker and its flows. They end in this order: what keeps the state of flows has the last word about it when no shard runs any more.
struct Served {
    server: Arc<Server>,
    flows: Arc<Flows>,
    keeper: Option<Keeper>,
    access: Access,
}

#[async_trait]
impl Running for Served {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let settings = broker::settings(new, self.access.clone(), Purpose::Run)?;
        let plan = self.flows.plan(&flows::settings(new));
        let plan = plan.map_err(|error| flows::unplanned(&error))?;
        Ok(Box::new(move |changes| {
            self.server.reload(&settings);
            for flow in self.flows.commit(plan, self.keeper.as_ref().map(Keeper::folder)) {
                changes.note("flow", &flow);
            }
            Ok(())
        }))
    }

    async fn stop(self: Box<Self>) {
        dropped("MQTT", self).await;
    }
}

/// The flows, by name, with their counts.
fn rows(flows: &Flows) -> Vec<FlowRow> {
    let row = |(name, [passed, replaced, dropped], stats): (Arc<str>, [u64; 3], Stats)| FlowRow {
        name: name.to_string(),
        messages: stats.messages,
        passed,
        replaced,
        dropped,
        emitted: stats.emitted,
        bad: stats.bad.iter().sum(),
        keys: stats.keys,
    };
    let mut rows: Vec<FlowRow> = flows.stats().into_iter().map(row).collect();
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows
}
