//! Peers of a node's link that do not speak as an uplink does: the consequences for them, and for no other.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::Value;
use tidegate_compress::{Encoder, EncoderConfig, Message};
use tidegate_identity::{
    auth::audit::Audit,
    pki::{self, Credentials, Kind},
};
use tidegate_link::link::{
    self, DownReason, Incoming, Link, LinkError, LinkSettings, Listener, Transport,
};
use tidegate_load::client::Client;
use tidegate_message::Code;
use tidegate_process::clock;
use tidegate_wire::{
    BootId, CriticalPart, Features, Hello, MINOR, NodeId, Record, Resume, Role, SensorBatch,
    UplinkOpen, UplinkReady, Welcome,
    mqtt::{QoS, RetainHandling, SubscribeFilter},
};
use tokio::time;

use crate::{
    program::{LONGEST, Program},
    uplink::{LISTENER, Site, carrying, message, next, publisher},
};

/// Most topics and bytes of state that a peer asks for.
const TOPICS_MAX: u64 = 1000;
const STATE_BYTES_MAX: u64 = 1 << 20;
/// The attributes of an intact message: QoS 1.
const ATTRIBUTES: &[u8] = b"\x01";

/// An uplink whose records the test makes by itself.
struct Peer {
    link: Link,
    ready: UplinkReady,
}

impl Peer {
    /// Dials, and opens the uplink of that name.
    async fn open(to: SocketAddr, credentials: &Credentials, name: &str) -> Self {
        let link = introduced(to, credentials).await;
        link.send(open(name)).await.expect("the link is up");
        match record(&link).await {
            Record::UplinkReady(ready) => Self { link, ready },
            other => panic!("{other:?} instead of an answer to {name}"),
        }
    }

    async fn send(&self, (record, body): (SensorBatch, Bytes)) {
        self.link.send_bulk(record, body).await.expect("the link is up");
    }
}

fn open(name: &str) -> UplinkOpen {
    UplinkOpen {
        name: name.to_owned(),
        life: 7,
        topics_max: TOPICS_MAX,
        state_bytes_max: STATE_BYTES_MAX,
        names_messages: false,
        node: String::new(),
    }
}

/// A link whose other end knows that an uplink is to come, and not yet which one.
async fn introduced(to: SocketAddr, credentials: &Credentials) -> Link {
    let dialled = link::dial(to, credentials, LinkSettings::default(), Transport::Quic);
    let link = dialled.await.expect("the node is there");
    let hello = Hello {
        minor: MINOR,
        node: credentials.identity().node,
        epoch: 1,
        boot: BootId([7; 16]),
        role: Role::Uplink,
        features: Features::KNOWN,
        camera: None,
    };
    link.send(hello).await.expect("the link is up");
    match record(&link).await {
        Record::Welcome(_) => link,
        other => panic!("{other:?} instead of a welcome"),
    }
}

/// The next record, apart from those about a share.
async fn record(link: &Link) -> Record {
    loop {
        let item = time::timeout(LONGEST, link.recv()).await.expect("something comes");
        match item.expect("the link is up") {
            Incoming::Record(Record::Share(_)) => {}
            Incoming::Record(record) => return record,
            other => panic!("{other:?} instead of a record"),
        }
    }
}

/// Why the node ends a link, which it then does.
async fn refused(link: &Link) -> (Option<Code>, String) {
    loop {
        match record(link).await {
            Record::UplinkAck(_) => {}
            Record::Refused(refused) => {
                let reason = closed(link).await;
                assert!(matches!(reason, DownReason::ClosedByPeer { .. }), "{reason}");
                return (refused.code(), refused.text);
            }
            other => panic!("{other:?} instead of a refusal"),
        }
    }
}

async fn closed(link: &Link) -> DownReason {
    time::timeout(LONGEST, link.closed()).await.expect("the node ends the link")
}

/// Waits until the node says that all messages below `next` were published.
async fn published(link: &Link, next: u64) {
    loop {
        match record(link).await {
            Record::UplinkAck(ack) if ack.next >= next => return,
            Record::UplinkAck(_) => {}
            other => panic!("{other:?} instead of an acknowledgement"),
        }
    }
}

/// The encoder of a peer's batches.
fn codec(epoch: u64) -> Encoder {
    let config = EncoderConfig {
        topics_max: TOPICS_MAX as usize,
        state_bytes_max: STATE_BYTES_MAX,
        ..EncoderConfig::default()
    };
    Encoder::new(config, epoch, 1)
}

/// A batch of one message, which has that number.
fn one(encoder: &mut Encoder, number: u64, payload: &str) -> (SensorBatch, Bytes) {
    let message = Message { topic: b"peer/1", attributes: ATTRIBUTES, payload: payload.as_bytes() };
    encoder.push(message).expect("it is short");
    let mut body = Vec::new();
    let header = encoder.finish(&mut body).expect("it has a message");
    let record = SensorBatch { first: number, epoch: header.epoch, sequence: header.sequence };
    (record, body.into())
}

/// A batch whose header says that there are so many messages, bytes of them and bytes of its body.
fn claiming(numbers: [u32; 3]) -> (SensorBatch, Bytes) {
    // Version 1, compressed with zstd; epoch 1, batch 0.
    let mut body = vec![0x12, 1, 0];
    for mut number in numbers {
        while number >= 0x80 {
            body.push(number as u8 | 0x80);
            number >>= 7;
        }
        body.push(number as u8);
    }
    // A checksum, and a body of no sense.
    body.extend_from_slice(&[0xa5; 64]);
    (SensorBatch { first: 0, epoch: 1, sequence: 0 }, body.into())
}

/// A further node of the site, which is played by the test.
fn certified(site: &Site) -> Credentials {
    let folder = site.core.path().join("data/pki");
    let valid_for = Duration::from_secs(3600);
    pki::add(&folder, Kind::Node, "stranger", &[], valid_for).expect("a certificate");
    pki::load(&folder, "stranger").expect("credentials")
}

/// Once others may dial it.
fn ready(node: Program) -> Program {
    node.line_with("node ready");
    node
}

fn subscribed(at: &Program, filter: &str) -> Client {
    let mut client = publisher(at);
    let filter = SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    client.subscribe(&[filter]).expect("a subscription");
    client
}

/// The next of what an uplink says of itself that is `enough`.
fn said(watcher: &mut Client, enough: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + LONGEST;
    loop {
        let state: Value = serde_json::from_slice(&next(watcher).payload).expect("JSON");
        if enough(&state) {
            return state;
        }
        assert!(Instant::now() < until, "it is still {state}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_batch_costs_its_link_and_nobody_a_message() {
    let site = Site::new();
    let (credentials, to, uplink) = (certified(&site), site.link, site.uplink(""));
    let core = ready(Program::start_in(site.core, LISTENER));
    let edge = carrying(Program::start_in(site.edge, &uplink));
    let mut reader = subscribed(&core, "#");
    let mut honest = publisher(&edge);
    honest.publish(&message("site/1", b"before")).expect("it is taken");
    assert_eq!(next(&mut reader).payload, b"before");

    // Its uplink has the name of the honest one, and is another node's.
    let mut encoder = codec(1);
    let peer = Peer::open(to, &credentials, "plant").await;
    assert_eq!((peer.ready.resume, peer.ready.next), (None, None));
    peer.send(one(&mut encoder, 0, "first")).await;
    assert_eq!(next(&mut reader).payload, b"first");
    let (record, body) = one(&mut encoder, 1, "second");
    let mut damaged = body.to_vec();
    *damaged.last_mut().expect("a batch has bytes") ^= 1;
    peer.send((record, damaged.into())).await;
    let (code, text) = refused(&peer.link).await;
    assert_eq!(code, Some(Code::LINK_PROTOCOL), "{text}");
    assert!(text.contains("batch 1 of epoch 1 cannot be read"), "{text}");

    // The next link continues behind what came whole.
    let peer = Peer::open(to, &credentials, "plant").await;
    let expected = Resume { epoch: 1, sequence: 1 };
    assert_eq!((peer.ready.resume, peer.ready.next), (Some(expected), Some(1)));
    encoder.resume(1, 1).expect("it is of this epoch");
    peer.send(one(&mut encoder, 1, "second")).await;
    assert_eq!(next(&mut reader).payload, b"second");

    honest.publish(&message("site/1", b"after")).expect("it is taken");
    assert_eq!(next(&mut reader).payload, b"after");
    let mut watcher = subscribed(&edge, "$SYS/broker/uplink/plant/state");
    let state = said(&mut watcher, |state| state["messages"].as_u64() >= Some(2));
    assert_eq!(state["connects"], 1, "{state}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_claims_four_gigabytes_is_given_none() {
    const MOST: u32 = u32::MAX;
    let site = Site::new();
    let (credentials, to) = (certified(&site), site.link);
    let core = ready(Program::start_in(site.core, LISTENER));
    let mut reader = subscribed(&core, "#");
    let before = core.resident_bytes();
    for (numbers, what) in [
        ([MOST, 40, 40], "messages"),
        ([1, MOST, 40], "bytes of messages"),
        ([1, 40, MOST], "bytes of body"),
    ] {
        let peer = Peer::open(to, &credentials, "plant").await;
        peer.send(claiming(numbers)).await;
        let (code, text) = refused(&peer.link).await;
        assert_eq!(code, Some(Code::LINK_PROTOCOL), "{text}");
        assert!(text.contains(&format!("{MOST} {what}")), "{text}");
    }
    let grown = core.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    let peer = Peer::open(to, &credentials, "plant").await;
    peer.send(one(&mut codec(1), 0, "whole")).await;
    assert_eq!(next(&mut reader).payload, b"whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_replayed_ends_its_link_and_changes_nothing() {
    let site = Site::new();
    let (credentials, to) = (certified(&site), site.link);
    let core = ready(Program::start_in(site.core, LISTENER));
    let mut reader = subscribed(&core, "#");
    let mut encoder = codec(2);
    let (old, new) = (one(&mut codec(1), 0, "old"), one(&mut encoder, 1, "new"));
    let first = Peer::open(to, &credentials, "plant").await;
    for (batch, payload) in [(&old, "old"), (&new, "new")] {
        first.send(batch.clone()).await;
        assert_eq!(next(&mut reader).payload, payload.as_bytes());
    }
    let expected = (Some(Resume { epoch: 2, sequence: 1 }), Some(2));
    // Of an epoch that is over, and a second time.
    for batch in [old, new] {
        let peer = Peer::open(to, &credentials, "plant").await;
        assert_eq!((peer.ready.resume, peer.ready.next), expected);
        peer.send(batch).await;
        let (code, text) = refused(&peer.link).await;
        assert_eq!(code, Some(Code::LINK_PROTOCOL), "{text}");
        assert!(text.contains("came again"), "{text}");
    }
    let peer = Peer::open(to, &credentials, "plant").await;
    assert_eq!((peer.ready.resume, peer.ready.next), expected);
    peer.send(one(&mut encoder, 2, "last")).await;
    assert_eq!(next(&mut reader).payload, b"last");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_opens_a_seventeenth_uplink_keeps_sixteen() {
    let site = Site::new();
    let (credentials, to) = (certified(&site), site.link);
    let another = pki::load(&site.core.path().join("data/pki"), "edge").expect("credentials");
    let core = ready(Program::start_in(site.core, LISTENER));
    let mut reader = subscribed(&core, "#");
    let mut peers = Vec::new();
    for number in 0..16 {
        peers.push(Peer::open(to, &credentials, &format!("plant-{number}")).await);
    }
    let link = introduced(to, &credentials).await;
    link.send(open("plant-16")).await.expect("the link is up");
    let (code, text) = refused(&link).await;
    assert_eq!(code, Some(Code::LIMIT_REACHED), "{text}");
    assert!(text.contains("16 uplinks of one node"), "{text}");
    // Another node has its own.
    peers.push(Peer::open(to, &another, "plant-16").await);
    for (number, peer) in peers.iter().enumerate() {
        let payload = number.to_string();
        peer.send(one(&mut codec(1), 0, &payload)).await;
        assert_eq!(next(&mut reader).payload, payload.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_link_of_an_uplink_takes_over_from_the_first() {
    let site = Site::new();
    let (credentials, to) = (certified(&site), site.link);
    let core = ready(Program::start_in(site.core, LISTENER));
    let mut reader = subscribed(&core, "#");
    let mut encoder = codec(1);
    let first = Peer::open(to, &credentials, "plant").await;
    first.send(one(&mut encoder, 0, "by the first")).await;
    published(&first.link, 1).await;
    let second = Peer::open(to, &credentials, "plant").await;
    let expected = Resume { epoch: 1, sequence: 1 };
    assert_eq!((second.ready.resume, second.ready.next), (Some(expected), Some(1)));
    match closed(&first.link).await {
        DownReason::ClosedByPeer { code: 0, reason } => {
            assert!(reason.contains("a newer link has taken over"), "{reason}");
        }
        other => panic!("{other}"),
    }
    second.send(one(&mut encoder, 1, "by the second")).await;
    assert_eq!(next(&mut reader).payload, b"by the first");
    assert_eq!(next(&mut reader).payload, b"by the second");
    assert_eq!(reader.receive(Duration::from_millis(200)).expect("a connection"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_say_which_uplink_it_is_is_refused() {
    let site = Site::new();
    let (credentials, to) = (certified(&site), site.link);
    let _core = ready(Program::start_in(site.core, LISTENER));
    let begin = Instant::now();
    let silent = introduced(to, &credentials).await;
    let hasty = introduced(to, &credentials).await;
    let part = CriticalPart { number: 0, more: false, bytes: Bytes::new() };
    hasty.send(part).await.expect("the link is up");
    for (link, expected) in [(hasty, "which uplink it is"), (silent, "which uplink it is in time")]
    {
        let (code, text) = refused(&link).await;
        assert_eq!(code, Some(Code::LINK_PROTOCOL), "{text}");
        assert!(text.ends_with(expected), "{text}");
    }
    assert!((Duration::from_secs(4)..LONGEST).contains(&begin.elapsed()), "{:?}", begin.elapsed());
}

/// Answers an uplink, takes its batches, and says of none that it was published.
async fn take_and_say_nothing(link: &Link, node: NodeId) -> Result<(), LinkError> {
    loop {
        match link.recv().await? {
            Incoming::Record(Record::Hello(_)) => {
                let features = Features::KNOWN;
                let boot = BootId([9; 16]);
                let now = clock::now();
                link.send(Welcome { minor: MINOR, node, epoch: 1, boot, features, now }).await?;
            }
            Incoming::Record(Record::UplinkOpen(open)) => {
                let ready = UplinkReady {
                    resume: None,
                    next: None,
                    critical_next: None,
                    state_bytes_max: open.state_bytes_max,
                };
                link.send(ready).await?;
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn for_an_upper_node_that_acknowledges_nothing_no_more_is_held_than_the_window() {
    const COUNT: u64 = 2_000;
    const BYTES: usize = 8_000;
    const WINDOW: u64 = 1 << 20;
    let site = Site::new();
    let upper = pki::load(&site.core.path().join("data/pki"), "core").expect("credentials");
    let listener =
        Listener::bind(site.link, &upper, LinkSettings::default(), Audit::default()).await;
    let mut listener = listener.expect("the address is free");
    let node = upper.identity().node;
    let upper = tokio::spawn(async move {
        while let Ok(link) = listener.accept().await {
            // How it ends is seen at the other end.
            let _ = take_and_say_nothing(&link, node).await;
        }
    });
    let uplink = site.uplink("transport = \"quic\"\nwindow_bytes = \"1MiB\"");
    let edge = carrying(Program::start_in(site.edge, &uplink));
    edge.line_with("uplink up");
    let mut local = subscribed(&edge, "site/last");
    let mut writer = publisher(&edge);
    for _ in 0..COUNT {
        writer.publish(&message("site/1", &[b'x'; BYTES])).expect("it is taken");
    }
    writer.publish(&message("site/last", b"here")).expect("it is taken");
    assert_eq!(next(&mut local).payload, b"here");

    let mut watcher = subscribed(&edge, "$SYS/broker/uplink/plant/state");
    for _ in 0..2 {
        let state = said(&mut watcher, |state| state["held_bytes"].as_u64() > Some(WINDOW / 2));
        // The last that is read may be over it, and what was read with it.
        assert!(state["held_bytes"].as_u64() < Some(WINDOW + WINDOW / 2), "{state}");
        assert_eq!(state["up"], true, "{state}");
        assert_eq!(state["connects"], 1, "{state}");
    }
    upper.abort();
}
