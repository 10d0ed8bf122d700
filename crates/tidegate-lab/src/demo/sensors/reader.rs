//! The observers: a client at the core node that takes all that arrives, and one at the edge node that takes the messages of
//! its flows and reads the uplink's reports.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tidegate_api::ApiError;
use tidegate_load::{
    client::{Client, ClientError, Options},
    sensors::Workload,
};
use tidegate_message::topic_matches;
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use super::{Board, Stage, devices::Topics, failed};

/// Arrived messages: by application, those of flows, and all others.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    pub(super) topics: [Topics; 4],
    pub(super) found: Topics,
    pub(super) others: Topics,
}

/// Where flows publish what they find: alarms, and the air of CITY's regions.
const FOUND: [&str; 2] = ["alarm/#", "city/+/airquality"];

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
        if is_found(&message.topic) {
            received.found.entry(message.topic).or_default().add(&message.payload);
            board.found.fetch_add(1, Relaxed);
            continue;
        }
        let application = message.topic.split('/').next().unwrap_or_default();
        let index = Workload::ALL.iter().position(|one| one.level() == application);
        let topics = match index {
            Some(index) => {
                board.received[index].fetch_add(1, Relaxed);
                &mut received.topics[index]
            }
            None => &mut received.others,
        };
        topics.entry(message.topic).or_default().add(&message.payload);
    }
    Ok(received)
}

/// Reads the uplink's reports until all is over; returns the messages of flows until then.
///
/// # Errors
/// The edge node is not there.
pub(super) fn watch(stage: &Stage, board: &Board) -> Result<Topics, ApiError> {
    let [alarms, regions] = FOUND;
    let filters = [alarms, regions, "$SYS/broker/uplink/+/state"];
    let mut client = subscribed(stage.edge_options(), &filters)?;
    let mut found = Topics::new();
    while !board.is_over.load(Relaxed) {
        let Some(message) = client.receive(LOOK).map_err(broken)? else { continue };
        if is_found(&message.topic) {
            found.entry(message.topic).or_default().add(&message.payload);
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
    Ok(found)
}

fn is_found(topic: &str) -> bool {
    FOUND.iter().any(|filter| topic_matches(filter, topic))
}
