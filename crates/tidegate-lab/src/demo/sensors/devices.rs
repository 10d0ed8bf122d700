//! The devices: a client for each application, which publishes what the generator makes at an even pace.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    num::NonZeroU64,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use tidegate_api::ApiError;
use tidegate_load::{
    client::{Client, Options, Outgoing},
    sensors::{Generator, Workload},
};
use tidegate_wire::mqtt::QoS;
use tokio_util::sync::CancellationToken;

use super::{Board, SensorDemoOptions, Stage, failed};

/// Devices of each application: enough that topics are many, few enough that each sends often, and as many as the example of CITY knows.
const DEVICES: u64 = 200;
/// Messages of an application of which one has a value that its flow notifies of.
const ODD_EVERY: Option<NonZeroU64> = NonZeroU64::new(97);

/// The messages of a topic: how many, and a hash of all in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) count: u64,
    hash: u64,
}

impl Chain {
    pub(super) fn add(&mut self, payload: &[u8]) {
        let mut hasher = DefaultHasher::new();
        (self.hash, payload).hash(&mut hasher);
        *self = Self { count: self.count + 1, hash: hasher.finish() };
    }
}

/// The state of each topic.
pub(super) type Topics = HashMap<String, Chain>;

/// The sent messages, by application.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    pub(super) topics: [Topics; 4],
}

/// Sends until it is time to stop.
///
/// # Errors
/// The edge node is not there.
pub(super) fn send(
    options: &SensorDemoOptions,
    stage: &Stage,
    board: &Board,
    stop: &CancellationToken,
) -> Result<Sent, ApiError> {
    let topics = thread::scope(|scope| {
        let sending = Workload::ALL.map(|workload| {
            scope.spawn(move || send_one(workload, options, stage.edge_options(), board, stop))
        });
        sending.map(|one| super::joined(one.join()))
    });
    let mut sent = Sent::default();
    for (all, one) in sent.topics.iter_mut().zip(topics) {
        *all = one?;
    }
    Ok(sent)
}

fn send_one(
    workload: Workload,
    options: &SensorDemoOptions,
    at: Options,
    board: &Board,
    stop: &CancellationToken,
) -> Result<Topics, ApiError> {
    let index = Workload::ALL.iter().position(|one| *one == workload).expect("it is one of them");
    let broken = |error| failed("the devices cannot publish", error);
    let mut client = Client::connect(at).map_err(broken)?;
    let mut generator = Generator::new(workload, DEVICES, options.seed).with_odd(ODD_EVERY);
    let mut topics = Topics::new();
    let (mut topic, mut payload) = (Vec::new(), Vec::new());
    let began = Instant::now();
    let mut sent = 0_u32;
    while began.elapsed() < options.duration && !stop.is_cancelled() {
        let due = (began.elapsed().as_secs_f64() * f64::from(options.rate)) as u32;
        if sent >= due {
            thread::sleep(Duration::from_millis(2));
            continue;
        }
        topic.clear();
        payload.clear();
        generator.next(&mut topic, &mut payload);
        let name = std::str::from_utf8(&topic).expect("topics are ASCII");
        let message = Outgoing {
            topic: name,
            payload: &payload,
            qos: QoS::AtLeastOnce,
            ..Outgoing::default()
        };
        // Acknowledged: from here on nothing may be lost.
        client.publish(&message).map_err(broken)?;
        match topics.get_mut(name) {
            Some(chain) => chain.add(&payload),
            None => topics.entry(name.to_owned()).or_default().add(&payload),
        }
        board.sent[index].fetch_add(1, Relaxed);
        sent += 1;
    }
    client.disconnect().map_err(broken)?;
    Ok(topics)
}
