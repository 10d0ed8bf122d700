//! Operators between decoding and routing, behind real sockets and shards.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use tidegate_broker::{Admission, Batch, BrokerConfig, Draft, Verdict};
use tidegate_load::client::{Client, Options, Outgoing};
use tidegate_message::{AllowAll, Identity, Instant, Payload};
use tidegate_process::health::Health;
use tidegate_server::{
    Server,
    settings::{AllAnonymous, ListenerSettings, Operators, ServerSettings},
};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::program::options_of;

const PATIENCE: Duration = Duration::from_secs(60);

/// Decides by the topic: `drop` goes no further, `loud` is replaced, `hot` raises an alarm, what is emitted is looked at again.
#[derive(Debug)]
struct ByTopic;

impl Operators for ByTopic {
    fn admission(&self, _: usize) -> Option<Box<dyn Admission>> {
        Some(Box::new(Self))
    }
}

impl Admission for ByTopic {
    fn admit(&mut self, _: Instant, _: &Identity, batch: &mut Batch) {
        for draft in &mut batch.drafts {
            match &*draft.topic {
                "drop" => draft.verdict = Verdict::Drop,
                "loud" => {
                    let text: Vec<u8> = draft.payload.segments().concat();
                    draft.payload = Payload::from(text.to_ascii_uppercase());
                }
                "hot" => batch.emitted.push(Draft {
                    topic: "alarm".into(),
                    hops: draft.hops + 1,
                    ..draft.clone()
                }),
                _ => {}
            }
        }
    }
}

#[test]
fn messages_pass_are_replaced_dropped_and_emitted() {
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = ListenerSettings { anonymous: true, ..ListenerSettings::new("main", listen) };
    let settings = ServerSettings {
        broker: BrokerConfig::default(),
        listeners: vec![listener],
        shards: 2,
        authenticator: Arc::new(AllAnonymous),
        authorize: Arc::new(AllowAll),
        operators: Some(Arc::new(ByTopic)),
        journal: None,
        spill: None,
    };
    let server = Server::start(settings, &Health::default()).expect("it serves");
    // Of eight names some live on each shard.
    let address = server.addresses()[0].1;
    for name in 0..8 {
        let client = |role: &str| {
            let client_id = format!("{role}-{name}");
            Client::connect(Options { client_id, ..options_of(address) }).expect("it is let in")
        };
        let (mut publisher, mut subscriber) = (client("from"), client("to"));
        let filter = SubscribeFilter {
            filter: "#".to_owned(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        subscriber.subscribe(&[filter]).expect("it may");
        for topic in ["drop", "loud", "hot", "end"] {
            let message =
                Outgoing { topic, payload: b"text", qos: QoS::AtLeastOnce, ..Outgoing::default() };
            let reason = publisher.publish(&message).expect("it is acknowledged");
            assert!(!reason.is_failure(), "{topic}: {reason}");
        }
        let mut received = Vec::new();
        while received.last().is_none_or(|(topic, _)| topic != "end") {
            let message =
                subscriber.receive(PATIENCE).expect("it is connected").expect("a message");
            received.push((message.topic.to_string(), message.payload.to_vec()));
        }
        let expected = [("loud", "TEXT"), ("hot", "text"), ("alarm", "text"), ("end", "text")];
        let expected = expected.map(|(topic, text)| (topic.to_owned(), text.as_bytes().to_owned()));
        assert_eq!(received, expected, "client {name}");
    }
    server.stop();
}
