//! State that survives `kill -9`.

use std::{
    io::{Read as _, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use tidegate_load::client::{Client, ClientError, Message, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};

use super::{
    poll::poll,
    program::{Program, options_of},
};

const SILENCE: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(60);

fn mqtt(durability: &str, shards: u32) -> String {
    format!(
        "[mqtt]\ndurability = \"{durability}\"\nshards = {shards}\n\
         [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
    )
}

/// A client that comes back to its session.
fn lasting(program: &Program, name: &str) -> Client {
    let options = Options {
        client_id: name.to_owned(),
        clean_start: false,
        session_expiry: Some(3600),
        ..options_of(program.address("main"))
    };
    Client::connect(options).expect("it is let in")
}

fn filter(filter: &str, maximum_qos: QoS) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}

fn publish(client: &mut Client, topic: &str, payload: &[u8], qos: QoS, retain: bool) {
    let message =
        Outgoing { topic, payload, qos, retain, message_expiry: None, user_properties: &[] };
    client.publish(&message).expect("it is accepted");
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    assert!(poll(PATIENCE, || is_so().then_some(())).is_some(), "{what}");
}

fn texts(client: &mut Client, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(Message { payload, .. }) = client
        .receive(if texts.len() < count { PATIENCE } else { SILENCE })
        .expect("it is connected")
    {
        texts.push(String::from_utf8_lossy(&payload[..payload.len().min(20)]).into_owned());
    }
    texts
}

#[test]
fn what_was_acknowledged_survives_a_kill_whatever_shards_there_are() {
    for durability in ["page", "disk"] {
        let mut program = Program::start(&mqtt(durability, 2));
        for name in ["one", "two", "three"] {
            let mut client = lasting(&program, name);
            client.subscribe(&[filter("t/#", QoS::ExactlyOnce)]).expect("it is granted");
            client.disconnect().expect("it leaves");
        }
        let mut publisher = lasting(&program, "publisher");
        let large = format!("large {}", "x".repeat(20_000_000));
        let mut expected = Vec::new();
        for (number, qos) in (0..40).zip([QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().cycle()) {
            let text = format!("message {number}");
            publish(&mut publisher, &format!("t/{}", number % 3), text.as_bytes(), qos, false);
            expected.push(text);
        }
        publish(&mut publisher, "t/0", large.as_bytes(), QoS::AtLeastOnce, false);
        expected.push(large[..20].to_owned());
        for (topic, text) in
            [("kept/a", "old"), ("kept/a", "new"), ("kept/b", "b"), ("kept/c", "c")]
        {
            publish(&mut publisher, topic, text.as_bytes(), QoS::AtLeastOnce, true);
        }
        publish(&mut publisher, "kept/c", b"", QoS::AtLeastOnce, true);
        for shards in [3, 1] {
            program = Program::start_in(program.kill(), &mqtt(durability, shards));
        }
        for name in ["one", "two"] {
            let mut client = lasting(&program, name);
            assert!(client.connack().session_present, "{name}, {durability}");
            assert_eq!(texts(&mut client, expected.len()), expected, "{name}, {durability}");
        }
        let mut watcher =
            Client::connect(options_of(program.address("main"))).expect("it is let in");
        watcher.subscribe(&[filter("kept/#", QoS::AtLeastOnce)]).expect("it is granted");
        let mut kept = texts(&mut watcher, 2);
        kept.sort();
        assert_eq!(kept, ["b", "new"]);
        // Those who had theirs do not get it again; one who has not still does.
        program = Program::start_in(program.kill(), &mqtt(durability, 2));
        for name in ["one", "two"] {
            assert_eq!(texts(&mut lasting(&program, name), 0), [""; 0], "{name}, {durability}");
        }
        assert_eq!(texts(&mut lasting(&program, "three"), expected.len()), expected);
        program.stop();
    }
}

#[test]
fn a_node_starts_whatever_became_of_its_files() {
    let program = Program::start(&mqtt("page", 1));
    let mut client = lasting(&program, "one");
    client.subscribe(&[filter("t", QoS::AtLeastOnce)]).expect("it is granted");
    let folder = program.kill();
    let journals = folder.path().join("data/log/mqtt");
    let generation = std::fs::read_dir(&journals).expect("it is there").flatten().next();
    let generation = generation.expect("there is one").path();
    for file in std::fs::read_dir(generation.join("000")).expect("a journal").flatten() {
        std::fs::write(file.path(), vec![7; 100_000]).expect("it can be written");
    }
    let program = Program::start_in(folder, &mqtt("page", 1));
    assert!(!lasting(&program, "one").connack().session_present);
    let names: Vec<String> = std::fs::read_dir(&journals)
        .expect("it is there")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().any(|name| name.ends_with(".aside")), "{names:?}");
    program.stop();
}

#[test]
fn a_full_disk_refuses_what_is_to_be_kept_until_there_is_room() {
    let settings = format!("[log]\nmqtt_bytes = \"256MiB\"\n{}", mqtt("page", 1));
    let Some(program) = Program::start_on_small_disk(128, &settings) else { return };
    let is_ready = || program.readiness().0 == 200;
    wait_until("it is ready", is_ready);
    // As the node sees it: the disk is mounted for it alone.
    let seen = format!("/proc/{}/root{}", program.id(), program.path("data/log").display());
    let filler = Path::new(&seen).join("filler");
    let mut file = std::fs::File::create(&filler).expect("there is room");
    while file.write_all(&[7; 4096]).is_ok() {}
    drop(file);

    let mut publisher = lasting(&program, "publisher");
    let payload = vec![7; 1 << 20];
    let mut publish = |topic: &str, retain| {
        let (payload, qos) = (&payload[..], QoS::AtLeastOnce);
        let user_properties = &[];
        publisher.publish(&Outgoing {
            topic,
            payload,
            qos,
            retain,
            message_expiry: None,
            user_properties,
        })
    };
    let mut accepted = 0;
    let refused = loop {
        match publish(&format!("kept/{accepted}"), true) {
            Ok(_) => accepted += 1,
            Err(ClientError::Publish { reason, .. }) => break reason,
            Err(error) => panic!("{error}"),
        }
        assert!(accepted < 128, "more than the disk has");
    };
    assert_eq!(refused, ReasonCode::QUOTA_EXCEEDED);
    let (status, report) = program.readiness();
    assert!(status == 503 && report.contains("its disk refuses writes"), "{report}");
    publish("elsewhere", false).expect("it is to be kept for no session");

    std::fs::remove_file(&filler).expect("it is there");
    wait_until("there is room", || publish("kept/again", true).is_ok());
    wait_until("it is ready again", is_ready);
    let mut watcher = Client::connect(options_of(program.address("main"))).expect("it is let in");
    watcher.subscribe(&[filter("kept/#", QoS::AtLeastOnce)]).expect("it is granted");
    assert_eq!(
        texts(&mut watcher, accepted + 1).len(),
        accepted + 1,
        "accepted messages are there"
    );
    program.stop();
}

#[test]
fn a_disk_that_can_only_be_read_is_read() {
    for durability in ["page", "disk"] {
        let settings = mqtt(durability, 2);
        let program = Program::start(&settings);
        let mut one = lasting(&program, "one");
        one.subscribe(&[filter("t", QoS::AtLeastOnce)]).expect("it is granted");
        one.disconnect().expect("it leaves");
        let mut publisher = lasting(&program, "publisher");
        publish(&mut publisher, "t", b"waits", QoS::AtLeastOnce, false);
        publish(&mut publisher, "kept", b"before", QoS::AtLeastOnce, true);
        let Some(program) = Program::start_on_read_only_disk(program.kill(), &settings) else {
            return;
        };
        let (status, report) = program.readiness();
        assert!(status == 503 && report.contains("its disk refuses writes"), "{report}");
        let watch = |program: &Program| {
            let options = options_of(program.address("main"));
            let mut watcher = Client::connect(options).expect("it is let in");
            watcher.subscribe(&[filter("kept", QoS::AtLeastOnce)]).expect("it is granted");
            texts(&mut watcher, 1)
        };
        assert_eq!(watch(&program), ["before"], "{durability}");
        assert_eq!(texts(&mut lasting(&program, "one"), 1), ["waits"], "{durability}");
        let mut publisher = Client::connect(options_of(program.address("main"))).expect("let in");
        let message = Outgoing {
            topic: "kept",
            payload: b"lost",
            qos: QoS::AtLeastOnce,
            retain: true,
            ..Outgoing::default()
        };
        let refused = publisher.publish(&message);
        assert!(
            matches!(refused, Err(ClientError::Publish { reason: ReasonCode::QUOTA_EXCEEDED, .. })),
            "{refused:?}"
        );
        // Nothing was changed meanwhile.
        let program = Program::start_in(program.kill(), &settings);
        wait_until("it is ready", || program.readiness().0 == 200);
        assert_eq!(watch(&program), ["before"], "{durability}");
        assert_eq!(texts(&mut lasting(&program, "one"), 1), ["waits"], "{durability}");
        program.stop();
    }
}

/// A client of MQTT 3.1.1 whose session stays, which answers nothing by itself.
struct Mute(TcpStream);

impl Mute {
    fn connect(program: &Program) -> Self {
        let stream = TcpStream::connect(program.address("main")).expect("a stream");
        stream.set_read_timeout(Some(PATIENCE)).expect("a stream");
        let mut mute = Self(stream);
        mute.send(b"\x10\x10\0\x04MQTT\x04\0\0\0\0\x04mute");
        assert_eq!(mute.packet().0, 0x20, "CONNACK");
        mute
    }

    fn send(&mut self, packet: &[u8]) {
        self.0.write_all(packet).expect("it is connected");
    }

    /// First byte and rest of a packet, which is short.
    fn packet(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).expect("a packet");
        assert!(head[1] < 0x80, "a short packet");
        let mut body = vec![0; usize::from(head[1])];
        self.0.read_exact(&mut body).expect("a packet");
        (head[0], body)
    }

    /// Its next message: the first byte, the identifier, and the text behind a topic of one letter.
    fn message(&mut self) -> (u8, [u8; 2], String) {
        let (first, body) = self.packet();
        assert_eq!(first >> 4, 3, "PUBLISH");
        (first, [body[3], body[4]], String::from_utf8_lossy(&body[5..]).into_owned())
    }
}

#[test]
fn messages_sent_again_after_a_restart_say_so() {
    // MQTT-3.3.1-1, MQTT-3.3.1-3: DUP, and the same identifier as before.
    for (durability, is_killed) in
        [("page", false), ("page", true), ("disk", false), ("disk", true)]
    {
        let name = format!("{durability}, killed: {is_killed}");
        let mut program = Program::start(&mqtt(durability, 2));
        let mut mute = Mute::connect(&program);
        mute.send(b"\x82\x06\0\x01\0\x01t\x02");
        assert_eq!(mute.packet().0, 0x90, "SUBACK");
        let mut publisher = lasting(&program, "publisher");
        for (text, qos) in [
            ("one", QoS::AtLeastOnce),
            ("two", QoS::ExactlyOnce),
            ("three", QoS::ExactlyOnce),
            ("four", QoS::AtLeastOnce),
        ] {
            publish(&mut publisher, "t", text.as_bytes(), qos, false);
        }
        let first: Vec<_> = (0..4).map(|_| mute.message()).collect();
        let flags: Vec<u8> = first.iter().map(|(first, ..)| *first).collect();
        assert_eq!(flags, [0x32, 0x34, 0x34, 0x32], "{name}");
        // For one the exchange has advanced: PUBREL is sent again.
        let [high, low] = first[2].1;
        mute.send(&[0x50, 2, high, low]);
        assert_eq!(mute.packet(), (0x62, vec![high, low]));
        // Twice, since what was sent again is sent again as well.
        for shards in [2, 3] {
            let folder = if is_killed { program.kill() } else { program.stop_and_keep() };
            program = Program::start_in(folder, &mqtt(durability, shards));
            let mut mute = Mute::connect(&program);
            let mut again = Vec::new();
            let mut released = Vec::new();
            while again.len() + released.len() < 4 {
                let (first, body) = mute.packet();
                match first >> 4 {
                    3 => again.push((
                        first,
                        [body[3], body[4]],
                        String::from_utf8_lossy(&body[5..]).into_owned(),
                    )),
                    _ => released.push((first, body)),
                }
            }
            assert_eq!(released, [(0x62, vec![high, low])], "{name}");
            let found: Vec<_> = again.iter().map(|(first, _, text)| (*first, &**text)).collect();
            assert_eq!(found, [(0x3a, "one"), (0x3c, "two"), (0x3a, "four")], "{name}");
            assert_eq!(again[1].1, first[1].1, "an exchange of QoS 2 keeps its identifier");
        }
        program.stop();
    }
}
