use std::net::UdpSocket;

use tidegate_sys::datagram::{Method, set_segment};

use super::*;

const METHODS: [&str; 3] = ["io-uring", "recvmmsg", "plain"];

fn listener(rest: &str) -> String {
    format!("[ingest.x]\nlisten = \"127.0.0.1:0\"\n{rest}\n")
}

/// Whether this machine has the method; a word about it if not.
fn has(method: &str) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (_, method) = Method::WORDS.iter().find(|(word, _)| *word == method).expect("it is known");
    let options = tidegate_sys::datagram::ReceiverOptions {
        method: *method,
        bytes_max: 1500,
        joins: false,
        names_sources: true,
    };
    match tidegate_sys::datagram::Receiver::new(socket, options) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: no {} here: {error}", method.word());
            false
        }
    }
}

fn sender(world: &World) -> UdpSocket {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(world.address()).unwrap();
    sender
}

#[test]
fn a_datagram_becomes_a_message_by_every_method() {
    for method in METHODS.into_iter().filter(|method| has(method)) {
        let world = World::new(&listener(&format!("receive = \"{method}\"")));
        let mut all = world.subscriber("#");
        let sender = sender(&world);
        for payload in ["21.5", "", "7"] {
            sender.send(payload.as_bytes()).unwrap();
            assert_eq!(next(&mut all), pair("udp/127.0.0.1", payload), "{method}");
        }
        let report = world.report_when(|report| report.published == 3);
        assert_eq!((report.received, report.received_bytes, report.invalid), (3, 5, 0));
    }
}

#[test]
fn many_at_once_arrive_in_order() {
    let world = World::new(&listener("topic = \"all\""));
    let mut all = world.subscriber("all");
    let sender = sender(&world);
    set_segment(std::os::fd::AsFd::as_fd(&sender), 4).unwrap();
    let sent: Vec<u8> =
        (1000..1040_u32).flat_map(|number| number.to_string().into_bytes()).collect();
    for _ in 0..50 {
        sender.send(&sent).unwrap();
        for number in 1000..1040_u32 {
            assert_eq!(next(&mut all), pair("all", &number.to_string()));
        }
    }
}

#[test]
fn a_datagram_may_name_its_topic() {
    let world = World::new(&listener("format = \"topic-payload\"\nretain = true"));
    let mut all = world.subscriber("#");
    let sender = sender(&world);
    for bytes in ["no topic", "\nempty", "a/+\nx", "\u{0}\nx"] {
        sender.send(bytes.as_bytes()).unwrap();
    }
    sender.send(b"\xff\nx").unwrap();
    sender.send(b"plant/7\r\nline\nline").unwrap();
    sender.send(b"plant/8\n").unwrap();
    assert_eq!(next(&mut all), pair("plant/7", "line\nline"));
    assert_eq!(next(&mut all), pair("plant/8", ""));
    let report = world.report_when(|report| report.published == 2);
    assert_eq!((report.received, report.invalid), (7, 5));
    let mut later = world.subscriber("plant/7");
    assert!(message(&mut later).retain);
}

#[test]
fn lines_in_a_datagram_become_messages() {
    let world =
        World::new(&listener("format = \"line\"\ntopic = \"i/{measurement}/{tags}/{field}\""));
    let mut all = world.subscriber("i/#");
    sender(&world)
        .send(b"w,site=n t=1.10,open=true 5\nbroken\nw,site=a/b s=\"x y\",n=-3i")
        .unwrap();
    for (topic, payload, time) in [
        ("i/w/n/t", "1.10", Some("5")),
        ("i/w/n/open", "true", Some("5")),
        ("i/w/a%2Fb/s", "x y", None),
        ("i/w/a%2Fb/n", "-3", None),
    ] {
        let found = message(&mut all);
        assert_eq!((&*found.topic, &*found.payload), (topic, payload.as_bytes()));
        let times = time.map(|time| ("tidegate-time".to_owned(), time.to_owned()));
        assert_eq!(found.user_properties, Vec::from_iter(times), "{topic}");
    }
    assert_eq!(world.report_when(|report| report.published == 4).invalid, 1);
}

#[test]
fn datagrams_too_large_or_too_many_are_counted_and_dropped() {
    let world = World::new(&listener("topic = \"all\"\nmessage_bytes_max = \"10B\"\nrate_max = 1"));
    let mut all = world.subscriber("#");
    let sender = sender(&world);
    sender.send(&[b'x'; 11]).unwrap();
    for _ in 0..20 {
        sender.send(b"ten bytes!").unwrap();
    }
    let report = world.report_when(|report| report.published + report.limited == 20);
    assert_eq!((report.received, report.too_large), (21, 1));
    assert!((1..=19).contains(&report.limited), "{report:?}");
    for _ in 0..report.published {
        assert_eq!(next(&mut all), pair("all", "ten bytes!"));
    }
}

#[test]
fn messages_that_an_identity_may_not_publish_go_nowhere() {
    let rules = "user gate\ntopic write plant/#\nuser admin\ntopic read #\n";
    let world = World::with_files(
        &format!(
            "[mqtt]\nacl_file = \"$PLACE/rules\"\n{}",
            listener("format = \"topic-payload\"\nidentity = \"gate\"")
        ),
        &[("rules", &format!("topic read #\n{rules}"))],
    );
    let mut all = world.subscriber("#");
    let sender = sender(&world);
    for topic in ["other", "$SYS/broker/uptime", "plant/7"] {
        sender.send(format!("{topic}\nx").as_bytes()).unwrap();
    }
    assert_eq!(next(&mut all), pair("plant/7", "x"));
}

#[test]
fn a_topic_may_come_to_name_who_sent_a_datagram() {
    // Without joining io_uring is not asked who sent what at first.
    let world = World::new(&listener("topic = \"all\"\nreceive_joined = false"));
    let mut all = world.subscriber("#");
    sender(&world).send(b"before").unwrap();
    assert_eq!(next(&mut all), pair("all", "before"));
    world.reload(&listener("topic = \"from/{ip}\"\nreceive_joined = false"));
    // Those that come while it still waits by the old settings have the old topic, and no other.
    let sender = sender(&world);
    loop {
        sender.send(b"after").unwrap();
        let (topic, _) = next(&mut all);
        if topic == "from/127.0.0.1" {
            break;
        }
        assert_eq!(topic, "all");
    }
}

#[test]
fn what_the_broker_does_not_take_is_waited_for_and_lost_no_more() {
    let blocks = "[mqtt]\nqueue_bytes_max = \"64KiB\"\noverflow_qos0 = \"block-publisher\"\n";
    let world = World::new(&format!("{blocks}{}", listener("topic = \"all\"")));
    let mut all = world.subscriber("all");
    let sender = sender(&world);
    let mut payload = vec![b' '; 1400];
    let mut sent = 0_u64;
    // Until the subscriber's socket, its queue and what may be under way are full, and the listener waits.
    loop {
        payload[..8].copy_from_slice(&sent.to_be_bytes());
        sender.send(&payload).unwrap();
        sent += 1;
        let came = || (world.report().received >= sent).then_some(());
        if poll(Duration::from_secs(1), came).is_none() {
            break;
        }
        assert!(sent < 100_000, "the listener never waited");
    }
    for number in 0..sent {
        let payload = message(&mut all).payload;
        assert_eq!(payload[..8], number.to_be_bytes());
    }
    let report = world.report_when(|report| report.published == sent);
    assert_eq!((report.received, report.refused, report.dropped), (sent, 0, 0));
}

/// Sends numbers, no faster than they are received.
fn send_numbers(world: &World, count: u64) {
    let sender = sender(world);
    let before = world.report().received;
    for number in 0..count {
        sender.send(number.to_string().as_bytes()).unwrap();
        if number % 100 == 99 {
            world.report_when(|report| report.received == before + number + 1);
        }
    }
}

#[test]
fn received_messages_arrive_before_the_node_stops() {
    let world = World::new(&listener("topic = \"all\""));
    let mut all = world.subscriber("all");
    send_numbers(&world, 500);
    drop(world);
    for number in 0..500 {
        assert_eq!(next(&mut all), pair("all", &number.to_string()));
    }
}

#[test]
fn a_connection_that_ends_is_made_anew_and_each_datagram_is_counted_once() {
    let world = World::new(&listener("topic = \"all\""));
    let mut all = world.subscriber("all");
    let mut arrived = 0;
    for _ in 0..3 {
        send_numbers(&world, 300);
        world.node.bus().expect("it serves MQTT").forget("$node/ingest/x");
        let sender = sender(&world);
        let mut is_back = false;
        while !is_back {
            // One that is handed over at the very moment may be lost.
            sender.send(b"after").unwrap();
            while let Some(message) = all.receive(Duration::from_millis(100)).unwrap() {
                is_back |= message.payload == b"after";
                arrived += 1;
            }
        }
        let report =
            world.report_when(|report| report.published + report.refused == report.received);
        // A message that was taken and not acknowledged arrives and does not count as published.
        assert!((report.published..=report.received).contains(&arrived), "{arrived} of {report:?}");
    }
}
