//! The clients: one at each node, which publishes at an even pace and takes all that is published anywhere.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use tidegate_api::ApiError;
use tidegate_load::client::{Client, ClientError, Message, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use super::{Board, NODES};
use crate::demo::failed;

/// Between two messages of a client.
const PACE: Duration = Duration::from_millis(200);
/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest wait for a message that is new to a subscription.
const ARRIVE_MAX: Duration = Duration::from_secs(5);
/// The topic of a node's client ends with the name of the node.
const TOPICS: &str = "demo/";
/// The session of a client outlives its node: so many seconds.
const SESSION_SECONDS: u32 = 3600;

/// The messages of one client and those that it has taken. Times count from the begin of the demonstration.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// By number, when each was published, and whether the node has acknowledged it.
    pub(super) sent: BTreeMap<u64, (Duration, bool)>,
    /// Of the client of each node, by number, how often it came, and how long the first took.
    pub(super) got: [BTreeMap<u64, (u32, Duration)>; NODES.len()],
}

impl Told {
    fn take(&mut self, message: &Message, at: Duration) -> Option<()> {
        let from = message.topic.strip_prefix(TOPICS)?;
        let from = NODES.iter().position(|node| node.name == from)?;
        let (number, sent) = std::str::from_utf8(&message.payload).ok()?.split_once(' ')?;
        let sent = Duration::from_micros(sent.parse().ok()?);
        let first = (0, at.saturating_sub(sent));
        self.got[from].entry(number.parse().ok()?).or_insert(first).0 += 1;
        Some(())
    }
}

/// Publishes and takes until all is over. A node that is away is connected to again and again, and its session is kept.
pub(super) fn talk(at: SocketAddr, index: usize, board: &Board, began: Instant) -> Told {
    let topic = format!("{TOPICS}{}", NODES[index].name);
    let mut told = Told::default();
    let mut client = None;
    let (mut number, mut due) = (0, Duration::ZERO);
    while !board.is_over.load(Relaxed) {
        let Some(connected) = &mut client else {
            client = connected(at, index).ok();
            if client.is_none() {
                thread::sleep(AGAIN);
            } else {
                board.connected[index].store(true, Relaxed);
            }
            continue;
        };
        let mut step = || -> Result<(), ClientError> {
            let now = began.elapsed();
            if board.is_sending.load(Relaxed) && now >= due {
                due = (due + PACE).max(now);
                number += 1;
                told.sent.insert(number, (now, false));
                let payload = format!("{number} {}", now.as_micros());
                let message = Outgoing {
                    topic: &topic,
                    payload: payload.as_bytes(),
                    qos: QoS::AtLeastOnce,
                    ..Outgoing::default()
                };
                connected.publish(&message)?;
                told.sent.insert(number, (now, true));
                board.sent.fetch_add(1, Relaxed);
            }
            if let Some(message) = connected.receive(PACE / 10)? {
                let taken = told.take(&message, began.elapsed());
                board.arrived.fetch_add(u64::from(taken.is_some()), Relaxed);
            }
            Ok(())
        };
        if step().is_err() {
            client = None;
        }
    }
    told
}

fn connected(at: SocketAddr, index: usize) -> Result<Client, ClientError> {
    let options = Options {
        client_id: format!("client-of-{}", NODES[index].name),
        clean_start: false,
        session_expiry: Some(SESSION_SECONDS),
        ..options(at)
    };
    let mut client = Client::connect(options)?;
    if !client.connack().session_present {
        client.subscribe(&[filter(&format!("{TOPICS}#"))])?;
    }
    Ok(client)
}

fn options(at: SocketAddr) -> Options {
    Options { host: at.ip().to_string(), port: at.port(), ..Options::default() }
}

fn filter(filter: &str) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}

/// Connects a client for [`subscribe_late`].
///
/// # Errors
/// The node is not there.
pub(super) fn connect(at: SocketAddr) -> Result<Client, ApiError> {
    Client::connect(options(at)).map_err(|error| failed("a node has no room for a client", error))
}

/// Subscribes at one node to a topic that none has subscribed to, and publishes to it at another as soon as the subscription is acknowledged.
/// Returns how long the acknowledgement took, and how long the message did if it came.
///
/// # Errors
/// A node is not there any more.
pub(super) fn subscribe_late(
    subscriber: &mut Client,
    publisher: &mut Client,
) -> Result<(Duration, Option<Duration>), ApiError> {
    let broken = |error| failed("a new subscription cannot be tried", error);
    let began = Instant::now();
    subscriber.subscribe(&[filter("late/#")]).map_err(broken)?;
    let acknowledged = began.elapsed();
    let message = Outgoing {
        topic: "late/word",
        payload: b"first",
        qos: QoS::AtLeastOnce,
        ..Outgoing::default()
    };
    let began = Instant::now();
    publisher.publish(&message).map_err(broken)?;
    let came = subscriber.receive(ARRIVE_MAX).map_err(broken)?;
    Ok((acknowledged, came.map(|_| began.elapsed())))
}
