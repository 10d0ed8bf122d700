//! Flows as `[flow.NAME]` describes them, and how the MQTT server has them look at messages.

use std::{path::PathBuf, sync::Arc};

use tidegate_api::ApiError;
use tidegate_broker::Admission;
use tidegate_config::{Config, Purpose, words::Durability};
use tidegate_flows::{FlowSettings, Flows, PlanError};
use tidegate_message::Code;
use tidegate_process::random::random_bytes;
use tidegate_server::settings::Operators;

use super::{kept::kept_random, keys::list};

/// The files of flows that are to run.
pub(super) fn settings(config: &Config) -> Vec<FlowSettings> {
    let enabled = config.flows.iter().filter(|(_, flow)| flow.enabled);
    let settings = enabled.map(|(name, section)| FlowSettings {
        section: name.clone(),
        file: section.file.clone(),
        models_dir: section.models_dir.clone(),
        topics: section.topics.as_deref().map(list),
        state_interval: section.state_interval,
    });
    settings.collect()
}

/// The flows of a node, none yet.
pub(super) fn none_yet(config: &Config, shards: usize) -> Result<Arc<Flows>, ApiError> {
    let failed = |error: std::io::Error| {
        let text = "node.data_dir cannot keep the seed of flows' sketches";
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
    };
    let state = config.state_dir();
    // The content of sketches continues after a restart where their state does.
    let kept = match folder(config) {
        Some(_) => kept_random(&state, "flow.seed", Purpose::Run).map_err(failed)?.to_vec(),
        None => random_bytes().map_err(failed)?.to_vec(),
    };
    let part =
        |bytes: &[u8]| bytes.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte));
    let keys = random_bytes().map_err(failed)?;
    Ok(Flows::new(shards, part(&keys), part(&kept)))
}

/// Where the state of flows outlives the process; none if it does not.
pub(super) fn folder(config: &Config) -> Option<PathBuf> {
    (config.mqtt.durability != Durability::Memory).then(|| config.state_dir().join("flows"))
}

pub(super) fn unplanned(error: &PlanError) -> ApiError {
    ApiError::new(Code::CONFIG_INVALID, "the flows cannot be run")
        .caused_by(tidegate_message::error_chain(error))
}

/// The flows of a node, as the MQTT server asks for them.
#[derive(Debug)]
pub struct FlowOperators(pub Arc<Flows>);

impl Operators for FlowOperators {
    fn admission(&self, shard: usize) -> Option<Box<dyn Admission>> {
        Some(Box::new(self.0.hook(shard)))
    }
}
