//! Who looks: a client at the core node that takes all that arrives, and one at the edge node that takes the alarms of its flows and
//! reads what the uplink says.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tidegate_client::ApiError;
use tidegate_load::{
    client::{Client, ClientError, Options},
    sensors::Workload,
};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use super::{Board, Stage, devices::Topics, failed};

/// What arrived, by application, alarms, and what is neither.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    pub(super) topics: [Topics; 4],
    pub(super) alarms: Topics,
    pub(super) others: Topics,
}

/// What topics of alarms begin with.
const ALARM: &str = "alarm";

/// How often it is looked whether all is over.
const LOOK: Duration = Duration::from_millis(200);

fn broken(error: ClientError) -> ApiError {
    failed("a node cannot be read from", error)
}

fn subscribed(at: Options, filters: &[&str]) -> Result<Client, ApiError> {
    let mut client = Client::connect(at).map_err(broken)?;
    let filters: Vec<_> = filters
        .iter()
        .map(|filter| SubscribeFilter {
            filter: (*filter).to_owned(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        })
        .collect();
    client.subscribe(&filters).map_err(broken)?;
    Ok(client)
}

/// Takes what arrives above until all is over.
///
/// # Errors
/// The core node is not there.
pub(super) fn read(stage: &Stage, board: &Board) -> Result<Received, ApiError> {
    let mut client = subscribed(stage.core_options(), &["#"])?;
    let mut received = Received::default();
    while !board.is_over.load(Relaxed) {
        let Some(message) = client.receive(LOOK).map_err(broken)? else { continue };
        let application = message.topic.split('/').next().unwrap_or_default();
        let index = Workload::ALL.iter().position(|one| one.name() == application);
        match index {
            Some(index) => {
                received.topics[index].entry(message.topic).or_default().add(&message.payload);
                board.received[index].fetch_add(1, Relaxed);
            }
            None if application == ALARM => {
                received.alarms.entry(message.topic).or_default().add(&message.payload);
                board.alarms.fetch_add(1, Relaxed);
            }
            None => received.others.entry(message.topic).or_default().add(&message.payload),
        }
    }
    Ok(received)
}

/// Reads what the uplink says of itself until all is over; the alarms that were raised until then.
///
/// # Errors
/// The edge node is not there.
pub(super) fn watch(stage: &Stage, board: &Board) -> Result<Topics, ApiError> {
    let filters = ["alarm/#", "$SYS/broker/uplink/+/state"];
    let mut client = subscribed(stage.edge_options(), &filters)?;
    let mut alarms = Topics::new();
    while !board.is_over.load(Relaxed) {
        let Some(message) = client.receive(LOOK).map_err(broken)? else { continue };
        if message.topic.split('/').next() == Some(ALARM) {
            alarms.entry(message.topic).or_default().add(&message.payload);
            board.raised.fetch_add(1, Relaxed);
            continue;
        }
        let Ok(said) = serde_json::from_slice::<serde_json::Value>(&message.payload) else {
            continue;
        };
        let number = |key: &str| said.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
        board.carried_bytes.store(number("message_bytes"), Relaxed);
        board.batch_bytes.store(number("bytes"), Relaxed);
        let is_up = said.get("up").and_then(serde_json::Value::as_bool).unwrap_or(false);
        board.is_up.store(is_up, Relaxed);
    }
    Ok(alarms)
}
