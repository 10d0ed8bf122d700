//! Nothing that was promised is lost when something breaks.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use tidegate_load::client::{Client, Outgoing};
use tidegate_wire::mqtt::QoS;

use crate::world::{
    PATIENCE, Path, SILENCE, bridge, broker, client, port, publish, receive, subscribe, topics,
    until_up,
};

/// Retained under names of their own, so that they are found though no one subscribed when they came.
fn publish_numbered(client: &mut Client, numbers: std::ops::Range<u32>) {
    for number in numbers {
        publish(client, &format!("t/{number}"), b"x", QoS::AtLeastOnce, true);
    }
}

pub(crate) fn assert_kept(port: u16, numbers: std::ops::Range<u32>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut reader = client(port, "reader");
        subscribe(&mut reader, "t/#");
        let mut found = Vec::new();
        while let Some(message) = reader.receive(Duration::from_millis(200)).unwrap() {
            found.push(message.topic);
        }
        if numbers.clone().all(|number| found.contains(&format!("t/{number}"))) {
            return;
        }
        assert!(Instant::now() < deadline, "{} of {numbers:?} came", found.len());
    }
}

#[test]
fn what_waits_for_a_remote_that_restarts_is_delivered() {
    let (here, there) = (broker(0, None), broker(0, None));
    let there_port = port(&there);
    let bridge = bridge(&here, "a", there_port, topics("t/#", ""));
    let mut near = client(port(&here), "n");
    // Perhaps before it is connected for the first time, perhaps after.
    publish_numbered(&mut near, 0..100);
    assert_kept(there_port, 0..100);
    there.stop();
    publish_numbered(&mut near, 100..300);
    let there = broker(there_port, None);
    publish_numbered(&mut near, 300..400);
    // The remote lost all it had; it is given again what is retained here.
    assert_kept(there_port, 0..400);
    until_up(&bridge, 2);
    bridge.stop();
    drop(there);
}

#[test]
fn what_is_published_while_no_remote_was_ever_there_waits_for_it() {
    let here = broker(0, None);
    let free = broker(0, None);
    let there_port = port(&free);
    free.stop();
    let bridge = bridge(&here, "a", there_port, topics("t/#", ""));
    let mut watcher = client(port(&here), "w");
    subscribe(&mut watcher, "$SYS/broker/connection/#");
    assert_eq!(&*receive(&mut watcher).payload, b"0", "the session is there");
    let mut near = client(port(&here), "n");
    for number in 0..50 {
        publish(&mut near, &format!("t/{number}"), b"x", QoS::AtLeastOnce, number % 2 == 0);
    }
    let there = broker(there_port, None);
    until_up(&bridge, 1);
    crate::world::until("all of them", || bridge.report().messages_out >= 50);
    assert!(there.addresses()[0].1.port() == there_port);
}

#[test]
fn a_node_that_restarts_gets_what_waited_for_it_at_the_remote() {
    let (here, there) = (broker(0, None), broker(0, None));
    let first = bridge(&here, "a", port(&there), topics("o/#", "t/#"));
    until_up(&first, 1);
    let mut far = client(port(&there), "f");
    subscribe(&mut far, "o/#");
    let mut near = client(port(&here), "n");
    publish(&mut near, "o/1", b"x", QoS::ExactlyOnce, false);
    receive(&mut far);
    first.stop();
    here.stop();
    for number in 0..50 {
        publish(&mut far, "t/x", format!("{number}").as_bytes(), QoS::ExactlyOnce, number == 49);
    }
    let here = broker(0, None);
    let mut near = client(port(&here), "n");
    subscribe(&mut near, "t/#");
    let second = bridge(&here, "a", port(&there), topics("o/#", "t/#"));
    let mut payloads = Vec::new();
    while payloads.len() < 50 {
        let message = receive(&mut near);
        if !payloads.contains(&message.payload) {
            payloads.push(message.payload);
        }
    }
    let expected: Vec<_> = (0..50).map(|number| format!("{number}").into_bytes()).collect();
    assert_eq!(payloads, expected);
    // And the remote takes new messages of QoS 2 though it may know their identifiers.
    for number in 0..20 {
        publish(&mut near, "o/1", format!("{number}").as_bytes(), QoS::ExactlyOnce, false);
        assert_eq!(receive(&mut far).payload, format!("{number}").into_bytes());
    }
    drop(second);
}

#[test]
fn qos_1_comes_at_least_once_and_qos_2_exactly_once_over_a_path_that_is_cut() {
    const COUNT: u32 = 3000;
    let (here, there) = (broker(0, None), broker(0, None));
    let path = Path::to(port(&there), None);
    let bridge = bridge(&here, "a", path.port, topics("o/#", "i/#"));
    until_up(&bridge, 1);
    let ports = [(port(&here), port(&there), "o"), (port(&there), port(&here), "i")];
    let mut workers = Vec::new();
    for (from, to, name) in ports {
        let mut receiver = client(to, &format!("receiver-{name}"));
        subscribe(&mut receiver, &format!("{name}/#"));
        workers.push(thread::spawn(move || {
            let mut sender = client(from, &format!("sender-{name}"));
            for number in 0..COUNT {
                let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
                let topic = format!("{name}/{}", qos as u8);
                let payload = number.to_be_bytes();
                // Some long enough to be cut in their middle.
                let payload = payload.repeat(if number % 50 == 0 { 20_000 } else { 1 });
                let message =
                    Outgoing { topic: &topic, payload: &payload, qos, ..Outgoing::default() };
                sender.publish(&message).unwrap();
            }
        }));
        workers.push(thread::spawn(move || {
            let mut counts = BTreeMap::new();
            let deadline = Instant::now() + 3 * PATIENCE;
            while counts.len() < COUNT as usize {
                assert!(Instant::now() < deadline, "{} of {COUNT} came on {name}", counts.len());
                let Some(message) = receiver.receive(PATIENCE).unwrap() else { continue };
                let number = u32::from_be_bytes(message.payload[..4].try_into().unwrap());
                assert_eq!(message.payload.len(), if number % 50 == 0 { 80_000 } else { 4 });
                *counts.entry(number).or_insert(0) += 1;
            }
            // Messages sent again when the path came back may be behind the last of them.
            while let Some(message) = receiver.receive(SILENCE).unwrap() {
                let number = u32::from_be_bytes(message.payload[..4].try_into().unwrap());
                *counts.entry(number).or_insert(0) += 1;
            }
            for (number, count) in counts {
                assert!(number % 2 == 0 || count == 1, "{number} of QoS 2 came {count} times");
            }
        }));
    }
    let mut connects = 1;
    while workers.iter().any(|worker| !worker.is_finished()) && connects < 15 {
        thread::sleep(Duration::from_millis(60));
        path.cut();
        connects += 1;
        until_up(&bridge, connects);
    }
    for worker in workers {
        worker.join().unwrap();
    }
    assert!(connects > 3, "the path was cut {connects} times");
}
