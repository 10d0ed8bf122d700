//! The blocking client against mosquitto.

use std::{sync::atomic::AtomicBool, thread, time::Duration};

use clap::Parser;
use tidegate_load::{
    client::{Client, ClientError, Options, Outgoing},
    command::{CommandError, PubArgs, SubArgs},
};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter, Version, Will};

use crate::broker::Mosquitto;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn filter(filter: &str) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}

#[test]
fn messages_of_every_qos_come_back_as_they_went() {
    let Some(broker) = Mosquitto::start() else { return };
    for version in [Version::V3, Version::V4, Version::V5] {
        let client_id = format!("round-{version:?}"); // MQTT 3.1 needs one
        let options = Options { port: broker.port, version, client_id, ..Options::default() };
        let mut client = Client::connect(options).unwrap();
        let granted = client.subscribe(&[filter("a/+"), filter("b")]).unwrap();
        assert_eq!(granted, [ReasonCode::GRANTED_QOS_2; 2]);
        let large = vec![7; 200_000];
        let property = [("k".to_owned(), "v".to_owned())];
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            for payload in [&b""[..], b"text", &large] {
                let user_properties = &property[..];
                let topic = "a/1";
                let message =
                    Outgoing { topic, payload, qos, user_properties, ..Outgoing::default() };
                client.publish(&message).unwrap();
                let got = client.receive(PATIENCE).unwrap().expect("it comes back");
                assert_eq!(
                    (&*got.topic, &*got.payload, got.qos),
                    ("a/1", payload, qos),
                    "{version:?}"
                );
                assert_eq!(got.user_properties.len(), usize::from(version == Version::V5));
            }
        }
        assert_eq!(client.receive(Duration::from_millis(50)).unwrap(), None);
        client.unsubscribe(&["a/+"]).unwrap();
        client
            .publish(&Outgoing { topic: "a/1", payload: b"gone", ..Outgoing::default() })
            .unwrap();
        client.publish(&Outgoing { topic: "b", payload: b"kept", ..Outgoing::default() }).unwrap();
        assert_eq!(client.receive(PATIENCE).unwrap().unwrap().payload, b"kept");
        client.disconnect().unwrap();
    }
}

#[test]
fn a_session_keeps_messages_and_an_aborted_client_leaves_its_will() {
    let Some(broker) = Mosquitto::start() else { return };
    let options = Options {
        port: broker.port,
        client_id: "keeper".to_owned(),
        clean_start: false,
        session_expiry: Some(60),
        ..Options::default()
    };
    let mut keeper = Client::connect(options.clone()).unwrap();
    assert!(!keeper.connack().session_present);
    keeper.subscribe(&[filter("kept"), filter("will")]).unwrap();
    keeper.disconnect().unwrap();
    let will = Will {
        topic: "will".to_owned(),
        payload: b"gone".to_vec(),
        qos: QoS::AtLeastOnce,
        retain: false,
        delay: 0,
        message_expiry: None,
        forwarded: Vec::new(),
    };
    let other = Options { port: broker.port, will: Some(will), ..Options::default() };
    let mut other = Client::connect(other).unwrap();
    assert!(other.connack().properties.assigned_client_id.is_some());
    let qos = QoS::AtLeastOnce;
    for payload in [b"1", b"2"] {
        other.publish(&Outgoing { topic: "kept", payload, qos, ..Outgoing::default() }).unwrap();
    }
    other.abort();
    let mut keeper = Client::connect(options).unwrap();
    assert!(keeper.connack().session_present);
    let payloads: Vec<_> =
        (0..3).map(|_| keeper.receive(PATIENCE).unwrap().expect("kept").payload).collect();
    assert_eq!(payloads, [&b"1"[..], b"2", b"gone"]);
}

#[test]
fn errors_name_the_broker_and_the_reason() {
    let nobody = Client::connect(Options { port: 1, ..Options::default() }).unwrap_err();
    assert_eq!(nobody.to_string(), "127.0.0.1:1: no connection");
    let Some(broker) = Mosquitto::start() else { return };
    let options = Options { port: broker.port, version: Version::V4, ..Options::default() };
    let refused = Client::connect(Options { clean_start: false, ..options.clone() }).unwrap_err();
    assert!(
        matches!(
            refused,
            ClientError::Refused { reason: ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, .. }
        ),
        "{refused}"
    );
    let mut client = Client::connect(options).unwrap();
    let wildcard = client.publish(&Outgoing { topic: "a/#", ..Outgoing::default() });
    assert!(matches!(wildcard, Err(ClientError::Topic { .. })));
}

#[test]
fn a_connection_outlives_its_keep_alive() {
    let Some(broker) = Mosquitto::start() else { return };
    let options = Options { port: broker.port, keep_alive: 1, ..Options::default() };
    let mut client = Client::connect(options).unwrap();
    assert_eq!(client.receive(Duration::from_millis(2500)).unwrap(), None);
    client.publish(&Outgoing { topic: "t", qos: QoS::AtLeastOnce, ..Outgoing::default() }).unwrap();
}

#[derive(Parser)]
pub(crate) enum Program {
    Pub(PubArgs),
    Sub(SubArgs),
}

pub(crate) fn parse(line: &str) -> Program {
    Program::try_parse_from(std::iter::once("tidegate").chain(line.split(' '))).unwrap()
}

fn publish(line: &str, input: &str) -> Result<u64, CommandError> {
    match parse(line) {
        Program::Pub(args) => args.run(input.as_bytes()),
        Program::Sub(_) => panic!("not pub"),
    }
}

fn subscribe(line: &str) -> Result<String, CommandError> {
    let Program::Sub(args) = parse(line) else { panic!("not sub") };
    let mut output = Vec::new();
    args.run(&mut output, &AtomicBool::new(false))?;
    Ok(String::from_utf8(output).expect("text"))
}

#[test]
fn pub_and_sub_do_what_their_flags_say() {
    let Some(broker) = Mosquitto::start() else { return };
    let port = broker.port;
    // Retained, so that the order of the two commands does not matter.
    assert_eq!(publish(&format!("pub -p {port} -t r/1 -m one -r -q 1 -D k=v"), "").unwrap(), 1);
    assert_eq!(subscribe(&format!("sub -p {port} -t r/+ -C 1")).unwrap(), "one\n");
    assert_eq!(subscribe(&format!("sub -p {port} -t r/+ -C 1 -F topic")).unwrap(), "r/1 one\n");
    assert_eq!(
        subscribe(&format!("sub -p {port} -t r/+ -C 1 -q 1 -F json")).unwrap(),
        "{\"topic\":\"r/1\",\"qos\":1,\"retain\":true,\"payload\":\"one\",\"user_properties\":[[\"k\",\"v\"]]}\n"
    );
    assert_eq!(publish(&format!("pub -p {port} -t r/1 -n -r"), "").unwrap(), 1);
    assert_eq!(subscribe(&format!("sub -p {port} -t r/+ -W 1")).unwrap(), "");
    assert!(matches!(publish("pub -t a", ""), Err(CommandError::NoMessage)));

    // A session that is there before the lines are published.
    let sub = format!("sub -p {port} -i lines -c -x 60 -t lines -q 2 -C 3");
    let waiting = Options {
        port,
        client_id: "lines".to_owned(),
        clean_start: false,
        session_expiry: Some(60),
        ..Options::default()
    };
    let mut session = Client::connect(waiting).unwrap();
    session.subscribe(&[filter("lines")]).unwrap();
    session.disconnect().unwrap();
    let reader = thread::spawn(move || subscribe(&sub));
    assert_eq!(publish(&format!("pub -p {port} -t lines -l -q 2"), "a\nb\nc").unwrap(), 3);
    assert_eq!(reader.join().unwrap().unwrap(), "a\nb\nc\n");
}
