//! Messages that pass, their names there, and messages that do not.

use std::{sync::Arc, time::Instant};

use tidegate_load::client::{Client, Options, Outgoing};
use tidegate_server::bridge::{Bridge, BridgeSettings, RemoteTls, RemoteVersion};
use tidegate_wire::mqtt::{QoS, Will, path::PROPERTY};

use crate::{
    poll::poll,
    world::{
        PATIENCE, Path, SILENCE, assert_silent, bridge, broker, client, old_fashioned, port,
        publish, receive, subscribe, topics, until, until_up,
    },
};

#[test]
fn messages_pass_both_ways_under_their_names_and_do_not_come_back() {
    for version in [RemoteVersion::V5, RemoteVersion::V4, RemoteVersion::Auto] {
        let (here, there) = (broker(0, None), broker(0, None));
        let settings = BridgeSettings {
            local_prefix: "far/".to_owned(),
            remote_prefix: "near/".to_owned(),
            version,
            bridge_aware: true,
            ..topics("x/#", "x/#")
        };
        let bridge = bridge(&here, "a", port(&there), settings);
        until_up(&bridge, 1);
        let (mut near, mut far) = (client(port(&here), "n"), client(port(&there), "f"));
        subscribe(&mut near, "far/#");
        subscribe(&mut far, "#");
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            publish(&mut near, "far/x/1", b"out", qos, false);
            let message = receive(&mut far);
            assert_eq!((&*message.topic, &*message.payload), ("near/x/1", &b"out"[..]));
            assert_eq!((message.qos, message.retain), (qos, false), "{version:?}");
            assert_eq!(&*receive(&mut near).payload, b"out");

            publish(&mut far, "near/x/2", b"in", qos, false);
            let message = receive(&mut near);
            assert_eq!((&*message.topic, &*message.payload), ("far/x/2", &b"in"[..]));
            assert_eq!((message.qos, message.retain), (qos, false), "{version:?}");
            assert_eq!(&*receive(&mut far).payload, b"in");
        }
        publish(&mut near, "other/x", b"not this", QoS::AtLeastOnce, false);
        publish(&mut far, "far/x/1", b"nor this", QoS::AtLeastOnce, false);
        assert_eq!(receive(&mut far).topic, "far/x/1");
        assert_silent(&mut near);
        assert_silent(&mut far);
        let report = bridge.stop();
        assert_eq!((report.messages_out, report.messages_in), (3, 3), "{version:?} {report:?}");
    }
}

#[test]
fn large_payloads_properties_and_limits_pass_unharmed() {
    let (here, there) = (broker(0, None), broker(0, None));
    let settings = BridgeSettings { qos: QoS::AtLeastOnce, ..topics("#", "") };
    let bridge = bridge(&here, "a", port(&there), settings);
    until_up(&bridge, 1);
    let (mut near, mut far) = (client(port(&here), "n"), client(port(&there), "f"));
    subscribe(&mut far, "#");
    let payload: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let user_properties = [("a".to_owned(), "b".to_owned())];
    let message = Outgoing {
        topic: "t",
        payload: &payload,
        qos: QoS::ExactlyOnce,
        message_expiry: Some(100),
        user_properties: &user_properties,
        ..Outgoing::default()
    };
    near.publish(&message).unwrap();
    let message = receive(&mut far);
    assert!(message.payload == payload);
    assert_eq!(message.qos, QoS::AtLeastOnce, "the bridge's highest");
    assert!(message.message_expiry.is_some_and(|seconds| (95..=100).contains(&seconds)));
    let [own, stamp] = &message.user_properties[..] else {
        panic!("{:?}", message.user_properties)
    };
    assert_eq!(*own, user_properties[0]);
    assert_eq!(*stamp, (PROPERTY.to_owned(), "out/a".to_owned()));
}

#[test]
fn retained_messages_pass_when_the_bridge_comes_and_stay_so() {
    for retain in [true, false] {
        let (here, there) = (broker(0, None), broker(0, None));
        let (mut near, mut far) = (client(port(&here), "n"), client(port(&there), "f"));
        publish(&mut near, "o/1", b"before", QoS::AtMostOnce, true);
        publish(&mut far, "i/1", b"before", QoS::AtMostOnce, true);
        let settings = BridgeSettings { retain, ..topics("o/#", "i/#") };
        let bridge = bridge(&here, "a", port(&there), settings);
        until_up(&bridge, 1);
        publish(&mut near, "o/2", b"after", QoS::AtLeastOnce, true);
        publish(&mut far, "i/2", b"after", QoS::AtLeastOnce, true);
        until("four messages", || {
            let report = bridge.report();
            report.messages_in + report.messages_out >= 4
        });
        // Behind the others, so that they are there when it is.
        subscribe(&mut near, "mark");
        bridge.stop();
        for (client, filter) in [(&mut near, "i/#"), (&mut far, "o/#")] {
            subscribe(client, filter);
            if retain {
                let mut names = [receive(client).topic, receive(client).topic];
                names.sort();
                assert!(names[0].ends_with("/1") && names[1].ends_with("/2"), "{names:?}");
            }
            assert_silent(client);
        }
    }
}

#[test]
fn the_state_of_a_bridge_is_told() {
    let (here, there) = (broker(0, None), broker(0, None));
    let mut watcher = client(port(&here), "w");
    subscribe(&mut watcher, "$SYS/broker/connection/+/state");
    let there_port = port(&there);
    let bridge = bridge(&here, "a", there_port, topics("#", ""));
    let mut told = Vec::new();
    while told.last().is_none_or(|last| last != "1") {
        told.push(String::from_utf8(receive(&mut watcher).payload).unwrap());
    }
    there.stop();
    assert_eq!(&*receive(&mut watcher).payload, b"0");
    let there = broker(there_port, None);
    assert_eq!(&*receive(&mut watcher).payload, b"1");
    bridge.stop();
    assert_eq!(&*receive(&mut watcher).payload, b"0");
    let mut later = client(port(&here), "l");
    subscribe(&mut later, "$SYS/broker/connection/#");
    let message = receive(&mut later);
    assert_eq!(message.topic, format!("$SYS/broker/connection/a-{there_port}/state"));
    assert!(message.retain);
    drop(there);
}

#[test]
fn a_remote_of_plain_mqtt_3_1_1_is_spoken_to_unless_messages_would_come_back() {
    let (here, there) = (broker(0, None), broker(0, None));
    let remote = old_fashioned(port(&there));
    let bridged = bridge(&here, "a", remote, topics("o/#", "i/#"));
    until_up(&bridged, 1);
    let (mut near, mut far) = (client(port(&here), "n"), client(port(&there), "f"));
    subscribe(&mut near, "i/#");
    subscribe(&mut far, "o/#");
    publish(&mut near, "o/1", b"x", QoS::ExactlyOnce, false);
    assert_eq!(receive(&mut far).qos, QoS::ExactlyOnce);
    publish(&mut far, "i/1", b"x", QoS::ExactlyOnce, false);
    assert_eq!(receive(&mut near).qos, QoS::ExactlyOnce);
    let echoing = bridge(&here, "b", remote, topics("o/#", "o/1"));
    let connects = poll(SILENCE, || Some(echoing.report().connects).filter(|&count| count > 0));
    assert_eq!(connects, None);
}

#[test]
fn only_the_node_itself_speaks_of_itself() {
    let (here, there) = (broker(0, None), broker(0, None));
    let mut watcher = client(port(&here), "w");
    subscribe(&mut watcher, "$SYS/broker/connection/+/state");
    // Until the bridge is there, its state is one like others.
    let early = format!("$SYS/broker/connection/a-{}/state", port(&there));
    let mut first = client(port(&here), "first");
    publish(&mut first, &early, b"2", QoS::AtLeastOnce, true);
    let bridge = bridge(&here, "a", port(&there), topics("#", ""));
    let state = loop {
        let message = receive(&mut watcher);
        if message.payload == b"1" {
            break message.topic;
        }
    };
    assert_eq!(state, early);
    let lie =
        Outgoing { topic: &early, payload: b"2", qos: QoS::AtLeastOnce, ..Outgoing::default() };
    assert!(first.publish(&lie).is_err(), "it was allowed to before");
    // The state of its own bridges, and all else of bridges; that of bridges that end here is theirs.
    for topic in [&*state, "$SYS/broker/connection/x/messages_in", "$SYS/broker/version"] {
        let will = Will {
            topic: topic.to_owned(),
            payload: b"0".to_vec(),
            qos: QoS::AtLeastOnce,
            retain: true,
            delay: 0,
            message_expiry: None,
            forwarded: Vec::new(),
        };
        let options = Options { port: port(&here), will: Some(will), ..Options::default() };
        let mut liar = Client::connect(options).unwrap();
        let lie = Outgoing { topic, payload: b"0", qos: QoS::AtLeastOnce, ..Outgoing::default() };
        assert!(liar.publish(&lie).is_err(), "{topic}");
        drop(liar);
    }
    assert_silent(&mut watcher);
    bridge.stop();
}

#[test]
fn a_cycle_of_three_brokers_does_not_loop() {
    let nodes = [broker(0, None), broker(0, None), broker(0, None)];
    let ports = nodes.each_ref().map(port);
    let names = ["a", "b", "c"];
    // Both ways each, by pushing and by fetching.
    let bridges: Vec<Bridge> = (0..3)
        .map(|at| bridge(&nodes[at], names[at], ports[(at + 1) % 3], topics("#", "#")))
        .collect();
    for bridge in &bridges {
        until_up(bridge, 1);
    }
    let mut clients: Vec<_> = ports.iter().map(|port| client(*port, "x")).collect();
    for client in &mut clients {
        subscribe(client, "t");
    }
    publish(&mut clients[0], "t", b"round", QoS::AtLeastOnce, false);
    let carried = |bridges: &[Bridge]| -> u64 {
        bridges
            .iter()
            .map(|bridge| bridge.report().messages_in + bridge.report().messages_out)
            .sum()
    };
    for client in &mut clients {
        let mut count = 0;
        receive(client);
        while client.receive(SILENCE).unwrap().is_some() {
            count += 1;
            assert!(count < 4, "a message goes in circles");
        }
    }
    let settled = carried(&bridges);
    assert!(settled <= 8, "{settled} crossings of three bridges");
    assert_silent(&mut clients[0]);
    assert_eq!(carried(&bridges), settled, "nothing is under way any more");
    assert!(bridges.iter().any(|bridge| bridge.report().looped > 0));
}

#[test]
fn small_messages_overtake_large_ones_that_wait() {
    let (here, there) = (broker(0, None), broker(0, None));
    let path = Path::to(port(&there), Some(4_000_000));
    let bridge = bridge(&here, "a", path.port, topics("#", ""));
    until_up(&bridge, 1);
    let (mut near, mut far) = (client(port(&here), "n"), client(port(&there), "f"));
    subscribe(&mut far, "#");
    let large = vec![0; 1_000_000];
    for _ in 0..8 {
        publish(&mut near, "large", &large, QoS::AtLeastOnce, false);
    }
    let began = Instant::now();
    for _ in 0..20 {
        publish(&mut near, "small", b"alarm", QoS::AtLeastOnce, false);
    }
    let (mut smalls, mut larges_before) = (0, 0);
    while smalls < 20 {
        match &*receive(&mut far).topic {
            "small" => smalls += 1,
            _ => larges_before += 1,
        }
    }
    let waited = began.elapsed();
    // The one that is on its way, and what was chosen before the first small one was there.
    assert!(larges_before <= 3, "{larges_before} of 8 large ones came first, {waited:?}");
    for _ in larges_before..8 {
        assert_eq!(receive(&mut far).topic, "large");
    }
}

#[test]
fn the_remote_is_reached_over_tls() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = key.cert.der().clone();
    let private =
        rustls_pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private)
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let trusting = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (here, there) = (broker(0, None), broker(0, Some(Arc::new(server))));
    let settings = BridgeSettings {
        host: "localhost".to_owned(),
        tls: Some(RemoteTls::new(trusting.clone(), b"")),
        ..topics("#", "#")
    };
    let bridge = bridge(&here, "a", port(&there), settings);
    until_up(&bridge, 1);
    let options = Options {
        host: "localhost".to_owned(),
        port: port(&there),
        tls: Some(Arc::new(trusting)),
        timeout: PATIENCE,
        ..Default::default()
    };
    let mut far = Client::connect(options).unwrap();
    let mut near = client(port(&here), "n");
    subscribe(&mut far, "o");
    subscribe(&mut near, "i");
    let payload = vec![9; 500_000];
    publish(&mut near, "o", &payload, QoS::ExactlyOnce, false);
    assert!(receive(&mut far).payload == payload);
    publish(&mut far, "i", &payload, QoS::ExactlyOnce, false);
    assert!(receive(&mut near).payload == payload);
}
