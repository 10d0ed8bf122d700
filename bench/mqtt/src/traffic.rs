//! Few clients whose every message is kept with its times, on loopback or in the nodes of a lab.
//!
//! ```text
//!  Publisher (flows on one connection) ──▶ broker ──▶ Subscriber (a thread each) ──▶ Sample: meant, received
//! ```
//!
//! A message carries when it was meant to leave, its flow and its number; latency counts from when it was meant to leave,
//! however late it did. All clocks are `CLOCK_MONOTONIC`, which namespaces share.
//!
//! Always true: a message that was sent and did not arrive is counted, never left out in silence.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tidegate_load::{
    client::{Client, Options, Outgoing},
    process::usage,
};
use tidegate_netlab::Lab;
use tidegate_sys::clock::monotonic_nanos;
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter, Version};

use crate::{broker::Broker, site};

/// When the message was meant to leave, flow, number.
const STAMP_BYTES: usize = 8 + 2 + 4;
/// How soon a subscriber sees that it is over.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often memory is looked at.
const MEMORY_EVERY: Duration = Duration::from_millis(200);
/// Longer than any run.
const SESSION_EXPIRY_S: u32 = 3600;
/// Time between the last subscription and the first message.
const SETTLE: Duration = Duration::from_millis(300);

/// Where a client is.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Beside the broker, over loopback: here, or in its node of the lab.
    Beside(Option<&'a Lab>),
    /// In the client's node of the lab, over the line.
    Away(&'a Lab),
}

impl Place<'_> {
    fn connect(self, mut options: Options) -> anyhow::Result<Client> {
        let client = match self {
            Self::Beside(None) => Client::connect(options),
            Self::Beside(Some(lab)) => lab.within("broker", || Client::connect(options))?,
            Self::Away(lab) => {
                site::BROKER.clone_into(&mut options.host);
                lab.within("client", || Client::connect(options))?
            }
        };
        client.context("connecting a client")
    }
}

/// Messages of one kind.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Its topic.
    pub topic: String,
    /// Bytes of a payload.
    pub bytes: usize,
    /// Time from one message to the next.
    pub period: Duration,
    /// Time of the first.
    pub first: Duration,
    /// To the broker.
    pub qos: QoS,
}

/// A publishing connection with all that it sends.
#[derive(Clone, Debug)]
pub struct Publisher<'a> {
    /// Where it is.
    pub place: Place<'a>,
    /// Its flows.
    pub flows: Vec<Flow>,
}

/// A receiving connection.
#[derive(Clone, Debug)]
pub struct Subscriber<'a> {
    /// Where it is.
    pub place: Place<'a>,
    /// Filters with the most that messages come with.
    pub filters: Vec<(String, QoS)>,
    /// User properties of CONNECT; with any, MQTT 5 is spoken.
    pub properties: Vec<(String, String)>,
    /// Whether it reads.
    pub reads: bool,
    /// Whether its session stays when its connection ends; MQTT 5 is spoken then, too.
    pub kept: bool,
}

impl<'a> Subscriber<'a> {
    /// One that reads.
    pub fn new(place: Place<'a>, filters: &[(&str, QoS)]) -> Self {
        let filters = filters.iter().map(|(filter, qos)| ((*filter).to_owned(), *qos)).collect();
        Self { place, filters, properties: Vec::new(), reads: true, kept: false }
    }

    /// Whether a message of `topic` comes to it; filters are exact or end in `/#`.
    fn wants(&self, topic: &str) -> bool {
        self.filters.iter().any(|(filter, _)| match filter.strip_suffix("/#") {
            Some(stem) => topic.strip_prefix(stem).is_some_and(|rest| rest.starts_with('/')),
            None => filter == topic,
        })
    }
}

/// One message at one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index of the subscriber.
    pub subscriber: usize,
    /// Index of the flow, over all publishers.
    pub flow: usize,
    /// Number within the flow.
    pub number: u32,
    /// When it was meant to leave, in nanoseconds from the start of the traffic.
    pub meant: i64,
    /// When its last byte was read.
    pub received: i64,
}

impl Sample {
    /// Latency in ms.
    pub fn ms(&self) -> f64 {
        (self.received - self.meant) as f64 / 1e6
    }
}

/// The outcome of a traffic.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Every message received.
    pub samples: Vec<Sample>,
    /// Messages sent, by flow.
    pub sent: Vec<u32>,
    /// Messages that readers were to receive, by flow.
    pub due: Vec<u32>,
    /// The longest that a publisher was held up in handing over one message, in ms: acknowledgement included with QoS 1.
    pub held_up_ms: f64,
    /// Seconds from the start, and the broker's resident bytes.
    pub memory: Vec<(f64, u64)>,
    /// Readers that the broker let go, with its reason.
    pub ended: Vec<(usize, String)>,
    /// Publishers that could not continue, with the reason.
    pub failed: Vec<String>,
}

impl Outcome {
    /// Latencies of a flow in ms, over all subscribers that `of` chooses.
    pub fn ms(&self, flow: usize, of: impl Fn(usize) -> bool) -> Vec<f64> {
        let chosen = self.samples.iter().filter(|s| s.flow == flow && of(s.subscriber));
        chosen.map(Sample::ms).collect()
    }

    /// Messages of a flow that did not arrive.
    pub fn lost(&self, flow: usize) -> u32 {
        let received = self.samples.iter().filter(|sample| sample.flow == flow).count() as u32;
        self.due[flow].saturating_sub(received)
    }

    /// Most that the broker held, in bytes.
    pub fn memory_peak(&self) -> u64 {
        self.memory.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default()
    }
}

/// Lets the publishers send for `length`, then waits until all has arrived, at most for `drain`.
///
/// # Errors
/// A client cannot connect or subscribe. A failure of one later is part of the outcome.
pub fn run(
    broker: &Broker,
    publishers: &[Publisher<'_>],
    subscribers: &[Subscriber<'_>],
    length: Duration,
    drain: Duration,
) -> anyhow::Result<Outcome> {
    let mut stalled = Vec::new();
    let mut readers = Vec::new();
    for (index, subscriber) in subscribers.iter().enumerate() {
        let client = subscribe(broker, subscriber, index)?;
        if subscriber.reads { readers.push((index, client)) } else { stalled.push(client) }
    }
    let mut senders = Vec::new();
    for (index, publisher) in publishers.iter().enumerate() {
        let client = publisher.place.connect(broker.options(&format!("bench-p{index}")))?;
        senders.push((client, publisher));
    }
    let flows: Vec<&Flow> = publishers.iter().flat_map(|publisher| &publisher.flows).collect();
    let start = monotonic_nanos() + SETTLE.as_nanos() as i64;
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut outcome = thread::scope(|scope| {
        let (stop, received) = (&stop, &received);
        let memory = scope.spawn(|| watch_memory(broker.process(), start, stop));
        let reading: Vec<_> = readers
            .into_iter()
            .map(|(index, client)| scope.spawn(move || read(client, index, start, stop, received)))
            .collect();
        let mut first = 0;
        let sending: Vec<_> = senders
            .into_iter()
            .map(|(client, publisher)| {
                let number = first;
                first += publisher.flows.len();
                scope.spawn(move || send(client, &publisher.flows, number, start, length))
            })
            .collect();
        let mut outcome = Outcome::default();
        for sender in sending {
            let (sent, held_up, failed) = sender.join().expect("a publisher does not panic");
            outcome.sent.extend(sent);
            outcome.held_up_ms = outcome.held_up_ms.max(held_up.as_secs_f64() * 1e3);
            outcome.failed.extend(failed);
        }
        let wanting =
            |topic: &str| subscribers.iter().filter(|s| s.reads && s.wants(topic)).count();
        let due = flows.iter().zip(&outcome.sent).map(|(f, sent)| sent * wanting(&f.topic) as u32);
        outcome.due = due.collect();
        let all: u64 = outcome.due.iter().map(|due| u64::from(*due)).sum();
        let until = monotonic_nanos() + drain.as_nanos() as i64;
        while received.load(Ordering::Relaxed) < all && monotonic_nanos() < until {
            thread::sleep(LOOK_EVERY / 4);
        }
        stop.store(true, Ordering::Relaxed);
        for reader in reading {
            let (samples, ended) = reader.join().expect("a subscriber does not panic");
            outcome.samples.extend(samples);
            outcome.ended.extend(ended);
        }
        outcome.memory = memory.join().expect("watching memory does not panic");
        outcome
    });
    drop(stalled);
    outcome.samples.retain(|sample| sample.flow < flows.len());
    Ok(outcome)
}

fn subscribe(broker: &Broker, subscriber: &Subscriber<'_>, index: usize) -> anyhow::Result<Client> {
    let mut options = broker.options(&format!("bench-s{index}"));
    if subscriber.kept || !subscriber.properties.is_empty() {
        options.version = Version::V5;
        options.user_properties.clone_from(&subscriber.properties);
    }
    if subscriber.kept {
        options.session_expiry = Some(SESSION_EXPIRY_S);
    }
    let mut client = subscriber.place.connect(options)?;
    let filters: Vec<SubscribeFilter> = subscriber
        .filters
        .iter()
        .map(|(filter, qos)| SubscribeFilter {
            filter: filter.clone(),
            maximum_qos: *qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        })
        .collect();
    let reasons = client.subscribe(&filters)?;
    ensure!(reasons.iter().all(|reason| !reason.is_failure()), "a subscription was refused");
    Ok(client)
}

/// Reads until it is over; the samples, and why the broker let it go if it did.
fn read(
    mut client: Client,
    subscriber: usize,
    start: i64,
    stop: &AtomicBool,
    received: &AtomicU64,
) -> (Vec<Sample>, Option<(usize, String)>) {
    let mut samples = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let message = match client.receive(LOOK_EVERY) {
            Ok(Some(message)) => message,
            Ok(None) => continue,
            Err(error) => return (samples, Some((subscriber, error.to_string()))),
        };
        let now = monotonic_nanos() - start;
        // The broker's own latency queries are no message of ours.
        let Some((meant, flow, number)) = stamp_of(&message.payload) else { continue };
        samples.push(Sample { subscriber, flow, number, meant, received: now });
        received.fetch_add(1, Ordering::Relaxed);
    }
    (samples, None)
}

/// Sends each flow's messages in the order of their times. Returns how many of each, the longest hold-up, and a failure.
fn send(
    mut client: Client,
    flows: &[Flow],
    first: usize,
    start: i64,
    length: Duration,
) -> (Vec<u32>, Duration, Option<String>) {
    let mut sent = vec![0_u32; flows.len()];
    let mut held_up = Duration::ZERO;
    let mut payloads: Vec<Vec<u8>> =
        flows.iter().map(|flow| vec![b'x'; flow.bytes.max(STAMP_BYTES)]).collect();
    loop {
        let due = |index: usize| flows[index].first + flows[index].period * sent[index];
        let Some(next) = (0..flows.len()).min_by_key(|&index| due(index)) else { break };
        let meant = due(next);
        if meant >= length {
            break;
        }
        let meant = meant.as_nanos() as i64;
        let wait = start + meant - monotonic_nanos();
        if wait > 0 {
            thread::sleep(Duration::from_nanos(wait.unsigned_abs()));
        }
        stamp(&mut payloads[next], meant, first + next, sent[next]);
        let flow = &flows[next];
        let began = monotonic_nanos();
        let message = Outgoing {
            topic: &flow.topic,
            payload: &payloads[next],
            qos: flow.qos,
            ..Outgoing::default()
        };
        if let Err(error) = client.publish(&message) {
            return (sent, held_up, Some(format!("publishing to {}: {error}", flow.topic)));
        }
        held_up = held_up.max(Duration::from_nanos((monotonic_nanos() - began).unsigned_abs()));
        sent[next] += 1;
    }
    // A farewell that the broker does not hear changes nothing any more.
    let _ = client.disconnect();
    (sent, held_up, None)
}

fn watch_memory(process: u32, start: i64, stop: &AtomicBool) -> Vec<(f64, u64)> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok(usage) = usage(process) else { break };
        seen.push(((monotonic_nanos() - start) as f64 / 1e9, usage.resident_bytes));
        thread::sleep(MEMORY_EVERY);
    }
    seen
}

fn stamp(payload: &mut [u8], meant: i64, flow: usize, number: u32) {
    payload[..8].copy_from_slice(&meant.to_le_bytes());
    payload[8..10].copy_from_slice(&(flow as u16 + 1).to_le_bytes());
    payload[10..14].copy_from_slice(&number.to_le_bytes());
}

/// When it was meant to leave, its flow and number; nothing if it was not stamped here.
fn stamp_of(payload: &[u8]) -> Option<(i64, usize, u32)> {
    let meant = i64::from_le_bytes(payload.get(..8)?.try_into().ok()?);
    let flow = u16::from_le_bytes(payload.get(8..10)?.try_into().ok()?);
    let number = u32::from_le_bytes(payload.get(10..14)?.try_into().ok()?);
    Some((meant, usize::from(flow.checked_sub(1)?), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_and_a_query_is_none() {
        let mut payload = vec![0; 100];
        assert_eq!(stamp_of(&payload), None); // queries are zeros
        stamp(&mut payload, -5, 3, 70_000);
        assert_eq!(stamp_of(&payload), Some((-5, 3, 70_000)));
        assert_eq!(stamp_of(&payload[..13]), None);
    }

    #[test]
    fn filters_choose_topics() {
        let of = |filter| Subscriber::new(Place::Beside(None), &[(filter, QoS::AtMostOnce)]);
        for (filter, topic, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/bc", false),
            ("a/#", "a/b", true),
            ("a/#", "ab/c", false),
        ] {
            assert_eq!(of(filter).wants(topic), expected, "{filter} against {topic}");
        }
    }
}
