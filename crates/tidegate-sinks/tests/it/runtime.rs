//! The runtime of a sink, with scripted destinations, at a node in memory.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tidegate_broker::{BrokerConfig, Overflow, SessionConfig, spill::Spill as _};
use tidegate_bus::{Publication, memory::Node};
use tidegate_message::AllowAll;
use tidegate_schedule::Policy;
use tidegate_sinks::{
    Batch, Destination, DestinationSettings, Record, Refusal, RefusedFile, Sink, SinkError,
    SinkSettings, Trouble, memory, refused,
};
use tidegate_wire::mqtt::{ForwardedProperties, QoS};

use crate::world::{publish, ready, receive, settings, until, user_properties};

/// A destination's behaviour for the next batches; by default it takes them.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// There is no server.
    Fail,
    /// It takes the batch and breaks before it says so.
    TakeAndFail,
    /// It never answers.
    Hang,
    /// It takes three times as long as it may, in exchanges that take half of that each.
    Plod,
}

/// How long a destination may take, where it is slow.
const PATIENCE: Duration = Duration::from_millis(400);

/// The records that came to a destination, in order.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<Record>>>);

impl Seen {
    fn records(&self) -> Vec<Record> {
        self.0.lock().unwrap().clone()
    }

    fn texts(&self, topic: &str) -> Vec<String> {
        let records = self.records();
        let of_topic = records.iter().filter(|record| &*record.topic == topic);
        of_topic.map(|record| String::from_utf8(record.payload.to_vec()).unwrap()).collect()
    }
}

#[derive(Debug)]
struct Scripted {
    script: VecDeque<Act>,
    seen: Seen,
    /// Of which payloads it takes none.
    refuses: fn(&[u8]) -> bool,
    largest: Arc<AtomicU64>,
    /// Whether no one is there, whatever the script says next.
    is_down: Arc<AtomicBool>,
}

impl Scripted {
    fn new(script: &[Act], refuses: fn(&[u8]) -> bool) -> (Box<Self>, Seen) {
        let seen = Seen::default();
        let script = script.iter().copied().collect();
        let (largest, is_down) = Default::default();
        (Box::new(Self { script, seen: seen.clone(), refuses, largest, is_down }), seen)
    }
}

#[async_trait]
impl Destination for Scripted {
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble> {
        self.largest.fetch_max(batch.records().len() as u64, Ordering::Relaxed);
        if self.is_down.load(Ordering::Relaxed) {
            return Err(Trouble::new("there is no server"));
        }
        let act = self.script.pop_front();
        match act {
            Some(Act::Fail) => return Err(Trouble::new("there is no server")),
            Some(Act::Hang) => std::future::pending().await,
            Some(Act::Plod) => {
                for _ in 0..6 {
                    tokio::time::sleep(PATIENCE / 2).await;
                    batch.step();
                }
            }
            Some(Act::TakeAndFail) | None => {}
        }
        let mut refusals = Vec::new();
        for (place, record) in batch.records().iter().enumerate() {
            if (self.refuses)(&record.payload) {
                // Characters that no text of MQTT may hold are no reason to lose a letter.
                refusals.push(Refusal::new(place, "is\0odd"));
            } else {
                self.seen.0.lock().unwrap().push(record.clone());
            }
        }
        match act {
            Some(Act::Plod) | None => Ok(refusals),
            Some(_) => Err(Trouble::new("broke off")),
        }
    }
}

fn nothing(_: &[u8]) -> bool {
    false
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn messages_arrive_in_the_order_of_their_topic_with_the_time_at_which_they_were_received() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[], nothing);
    let before = tidegate_process::clock::now();
    let sink = Sink::start_with(settings("a/# b"), destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    for number in 0..1000 {
        publish(&mut publisher, ["a/x", "b", "c"][number % 3], number.to_string().as_bytes());
    }
    until("all was taken", || sink.report().messages == 667);
    for (topic, offset) in [("a/x", 0), ("b", 1)] {
        let expected: Vec<String> =
            (0..1000).filter(|number| number % 3 == offset).map(|n| n.to_string()).collect();
        assert_eq!(seen.texts(topic), expected, "{topic}");
    }
    let times: Vec<_> = seen.records().iter().map(|record| record.time).collect();
    assert!(
        times.is_sorted()
            && times[0] >= before
            && *times.last().unwrap() <= tidegate_process::clock::now()
    );
    let report = sink.stop();
    assert_eq!((report.messages, report.refused, report.failures), (667, 0, 0));
}

#[test]
fn while_the_destination_is_away_nothing_is_lost_and_a_batch_stays_a_batch() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[Act::Fail; 5], nothing);
    let largest = destination.largest.clone();
    let sink = Sink::start_with(settings("a"), destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut watcher = node.client("subscriber", &["$SYS/broker/sink/test/state"]);
    let mut publisher = node.client("publisher", &[]);
    for number in 0..2000 {
        publish(&mut publisher, "a", number.to_string().as_bytes());
    }
    until("all was taken", || sink.report().messages == 2000);
    assert_eq!(seen.texts("a"), numbers(0..2000));
    assert!(largest.load(Ordering::Relaxed) <= 100);
    assert_eq!(sink.report().failures, 5);
    assert!(sink.is_up());
    // Up at first, or down already; then up again at the latest.
    let mut states = String::new();
    while !states.ends_with("01") {
        states.push_str(std::str::from_utf8(&receive(&mut watcher).payload).unwrap());
    }
    sink.stop();
    while receive(&mut watcher).payload != b"0" {}
}

#[test]
fn one_in_a_thousand_is_refused_and_the_others_arrive_as_they_would_have() {
    let node = Node::default();
    let refuses = |payload: &[u8]| payload.ends_with(b"777");
    let (destination, seen) = Scripted::new(&[Act::Fail], refuses);
    let lettered = SinkSettings { dead_letter: Some("dead".to_owned()), ..settings("a") };
    let sink = Sink::start_with(lettered, destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut letters = node.client("subscriber", &["dead"]);
    let mut publisher = node.client("publisher", &[]);
    for number in 0..3000 {
        publish(&mut publisher, "a", number.to_string().as_bytes());
    }
    for expected in ["777", "1777", "2777"] {
        let letter = receive(&mut letters);
        assert_eq!(letter.payload, expected.as_bytes());
        let told: HashMap<String, String> = user_properties(&letter);
        assert_eq!((&*told["tidegate-sink"], &*told["tidegate-topic"]), ("test", "a"));
        assert_eq!(told["tidegate-reason"], "is odd");
    }
    until("all was taken", || sink.report().messages == 2997);
    let mut expected = numbers(0..3000);
    expected.retain(|text| !text.ends_with("777"));
    assert_eq!(seen.texts("a"), expected);
    until("the letters were kept", || sink.report().dead_lettered == 3);
    assert_eq!(sink.stop().refused, 3);
    // None of it comes again.
    let (destination, seen) = Scripted::new(&[], nothing);
    let sink = Sink::start_with(settings("a"), destination, node.bus()).unwrap();
    publish(&mut publisher, "a", b"end");
    until("the next one came", || sink.report().messages == 1);
    assert_eq!(seen.texts("a"), ["end"]);
}

#[test]
fn a_destination_that_was_away_for_long_and_refuses_one_in_a_thousand_has_all_others_in_order() {
    const COUNT: u32 = 10_000;
    const TOPICS: u32 = 7;
    let node = Node::default();
    let refuses = |payload: &[u8]| payload.ends_with(b"000");
    let (destination, seen) = Scripted::new(&[], refuses);
    let is_down = destination.is_down.clone();
    is_down.store(true, Ordering::Relaxed);
    let lettered = SinkSettings { dead_letter: Some("dead".to_owned()), ..settings("a/#") };
    let sink = Sink::start_with(lettered, destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut letters = node.client("subscriber", &["dead"]);
    let mut publisher = node.client("publisher", &[]);
    for number in 1..=COUNT {
        let topic = format!("a/{}", number % TOPICS);
        publish(&mut publisher, &topic, number.to_string().as_bytes());
    }
    until("it was tried again and again", || sink.report().failures >= 10);
    assert_eq!(sink.report().messages, 0);
    is_down.store(false, Ordering::Relaxed);
    for thousand in 1..=COUNT / 1000 {
        let (number, letter) = (thousand * 1000, receive(&mut letters));
        assert_eq!(letter.payload, number.to_string().as_bytes());
        let told: HashMap<String, String> = user_properties(&letter);
        assert_eq!(told["tidegate-topic"], format!("a/{}", number % TOPICS));
        assert_eq!(told["tidegate-reason"], "is odd");
    }
    until("all was settled", || {
        let report = sink.report();
        report.messages == 9_990 && report.dead_lettered == 10
    });
    for topic in 0..TOPICS {
        let of_topic = (1..=COUNT).filter(|number| number % TOPICS == topic);
        let taken = of_topic.filter(|number| number % 1000 != 0);
        let expected: Vec<String> = taken.map(|number| number.to_string()).collect();
        assert_eq!(seen.texts(&format!("a/{topic}")), expected, "a/{topic}");
    }
    // No letter but those.
    publish(&mut publisher, "dead", b"end");
    assert_eq!(receive(&mut letters).payload, b"end");
    let report = sink.stop();
    assert_eq!((report.refused, report.lost), (10, 0));
}

#[test]
fn messages_without_room_in_a_queue_wait_on_disk_and_come_once_and_in_order() {
    const COUNT: usize = 2_000;
    const BYTES: usize = 20_000;
    const TOPICS: usize = 3;
    const QUEUE_BYTES: u64 = 1 << 20;
    // It counts often, so that no one waits for that.
    let often = BrokerConfig { sys_interval: Duration::from_millis(50), ..BrokerConfig::default() };
    let node = Node::new(often, Arc::new(AllowAll));
    let (destination, seen) = Scripted::new(&[], nothing);
    let is_down = destination.is_down.clone();
    is_down.store(true, Ordering::Relaxed);
    let usual = settings("a/#");
    let session = SessionConfig {
        queue_bytes_max: QUEUE_BYTES,
        overflow: Overflow::Spill,
        policy: Policy::None,
        inflight_max: Some(20),
        ..usual.session.clone()
    };
    let small = SinkSettings { batch_messages: 10, session, ..usual };
    let sink = Sink::start_with(small, destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    for number in 0..COUNT {
        let payload = format!("{number:<BYTES$}");
        publish(&mut publisher, &format!("a/{}", number % TOPICS), payload.as_bytes());
    }
    let held = || {
        node.tick();
        let sessions = node.shared().heaviest(10);
        sessions.into_iter().find(|session| &*session.client_id == "sink/test")
    };
    until("all of it waits for the sink", || {
        held().is_some_and(|session| session.queued + session.inflight == COUNT)
    });
    let waits = held().unwrap();
    assert!(waits.spilled > COUNT * 9 / 10, "{waits:?}");
    // The queue and twenty messages in flight, of forty megabytes.
    assert!(waits.held_bytes() < QUEUE_BYTES + 21 * BYTES as u64 * 11 / 10, "{waits:?}");
    assert!(node.shared().statistics().spilled >= waits.spilled as u64);
    assert!(node.disk().bytes() > (COUNT * BYTES) as u64 * 3 / 4, "{}", node.disk().bytes());
    assert_eq!(sink.report().messages, 0);
    is_down.store(false, Ordering::Relaxed);
    until("all was taken", || sink.report().messages == COUNT as u64);
    for topic in 0..TOPICS {
        let texts = seen.texts(&format!("a/{topic}"));
        let got: Vec<usize> = texts.iter().map(|text| text.trim_end().parse().unwrap()).collect();
        let expected: Vec<usize> = (0..COUNT).filter(|number| number % TOPICS == topic).collect();
        assert_eq!(got, expected, "a/{topic}");
    }
    // Neither while it waited nor on its way back: the queue, as much again that was fetched, what is in flight, and a place in
    // memory for each message on disk.
    let peak = node.shared().budget().peak();
    assert!(peak < 8 << 20, "{peak}");
    until("the disk has its room back", || node.disk().bytes() == 0);
    let report = sink.stop();
    assert!(report.failures > 0);
    assert_eq!(report.refused, 0);
    assert_eq!(node.shared().statistics().dropped.total(), 0);
}

#[test]
fn a_destination_is_slow_as_long_as_it_goes_on() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[Act::Plod, Act::Hang], nothing);
    let slow = SinkSettings { timeout: PATIENCE, ..settings("a") };
    let sink = Sink::start_with(slow, destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    publish(&mut publisher, "a", b"1");
    until("it was taken in the end", || sink.report().messages == 1);
    assert_eq!(sink.report().failures, 0);
    publish(&mut publisher, "a", b"2");
    until("it was tried again", || sink.report().messages == 2);
    assert_eq!(sink.report().failures, 1);
    assert_eq!(seen.texts("a"), ["1", "2"]);
}

#[test]
fn dead_letters_that_nobody_keeps_are_counted_as_lost_and_hold_up_nothing() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[], |payload| payload == b"bad");
    let lettered = SinkSettings { dead_letter: Some("dead".to_owned()), ..settings("a") };
    let sink = Sink::start_with(lettered, destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    for text in ["1", "bad", "2", "bad", "3"] {
        publish(&mut publisher, "a", text.as_bytes());
    }
    until("the others were taken", || sink.report().messages == 3);
    until("the letters are lost", || sink.report().lost == 2);
    assert_eq!(seen.texts("a"), ["1", "2", "3"]);
    let report = sink.stop();
    assert_eq!((report.refused, report.dead_lettered, report.lost), (2, 0, 2));
}

/// Settings of a sink that keeps what is refused in a file of that folder.
fn keeping(folder: &Path, bytes_max: u64) -> (SinkSettings, RefusedFile) {
    let file = RefusedFile::new(folder, "test", bytes_max);
    (SinkSettings { refused: Some(file.clone()), ..settings("a") }, file)
}

fn kept(file: &RefusedFile) -> Vec<(String, String)> {
    let Ok(messages) = refused::read(&file.refused()) else { return Vec::new() };
    let text = |message: refused::Refused| {
        (String::from_utf8(message.record.payload.to_vec()).unwrap(), message.reason)
    };
    messages.map(|message| text(message.unwrap())).collect()
}

#[test]
fn refused_messages_are_kept_in_a_file_and_replayed_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::default();
    let mut publisher = node.client("publisher", &[]);
    // Without a dead letter topic, and with one to which no one subscribes.
    for (at, dead_letter) in [None, Some("dead".to_owned())].into_iter().enumerate() {
        let (keeping, file) = keeping(&folder.path().join(at.to_string()), 1 << 20);
        let client_id = format!("sink/{at}");
        let keeping = SinkSettings { dead_letter, client_id, ..keeping };
        let (destination, seen) = Scripted::new(&[], |payload| payload.starts_with(b"bad"));
        let sink = Sink::start_with(keeping.clone(), destination, node.bus()).unwrap();
        ready(&node, "test");
        for text in ["1", "bad 1", "2", "bad 2", "3"] {
            publish(&mut publisher, "a", text.as_bytes());
        }
        until("the refused ones are kept", || sink.report().kept == 2);
        until("the others were taken", || sink.report().messages == 3);
        assert_eq!(seen.texts("a"), ["1", "2", "3"]);
        let odd = |text: &str| (text.to_owned(), "is\0odd".to_owned());
        assert_eq!(kept(&file), [odd("bad 1"), odd("bad 2")]);
        let report = sink.stop();
        assert_eq!((report.refused, report.dead_lettered, report.lost), (2, 0, 0));

        // A command asks for them while the sink does not run; the destination takes one of them by now, and breaks off at first.
        fs::rename(file.refused(), file.replay()).unwrap();
        let (destination, seen) =
            Scripted::new(&[Act::Fail, Act::Fail], |payload| payload == b"bad 2");
        let sink = Sink::start_with(keeping.clone(), destination, node.bus()).unwrap();
        until("all was given to it again", || !file.replay().exists());
        assert_eq!(seen.texts("a"), ["bad 1"]);
        assert_eq!(kept(&file), [odd("bad 2")]);
        // And while it runs, beside new ones.
        fs::rename(file.refused(), file.replay()).unwrap();
        publish(&mut publisher, "a", b"4");
        until("all was given to it again", || !file.replay().exists());
        until("the new one was taken", || seen.texts("a") == ["bad 1", "4"]);
        assert_eq!(kept(&file), [odd("bad 2")]);
        let report = sink.stop();
        assert_eq!((report.refused, report.kept, report.lost), (2, 2, 0));
    }
}

#[test]
fn full_file_of_refused_messages_acknowledges_none() {
    let folder = tempfile::tempdir().unwrap();
    let often = BrokerConfig { sys_interval: Duration::from_millis(50), ..BrokerConfig::default() };
    let node = Node::new(often, Arc::new(AllowAll));
    let (keeping, file) = keeping(folder.path(), 1);
    let (destination, seen) = Scripted::new(&[], |payload| payload.starts_with(b"bad"));
    let sink = Sink::start_with(keeping, destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    publish(&mut publisher, "a", b"bad 1");
    until("the file is full", || sink.report().kept == 1);
    publish(&mut publisher, "a", b"bad 2");
    until("the sink waits", || !sink.is_up());
    publish(&mut publisher, "a", b"3");
    let held = || {
        node.tick();
        let sessions = node.shared().heaviest(10);
        let held = sessions.into_iter().find(|session| &*session.client_id == "sink/test");
        held.map_or(0, |held| held.queued + held.inflight)
    };
    until("both wait", || held() == 2);
    assert_eq!((sink.report().kept, seen.texts("a").len()), (1, 0));
    // Room again: both go on.
    fs::remove_file(file.refused()).unwrap();
    until("the next one was taken", || seen.texts("a") == ["3"]);
    until("nothing waits", || held() == 0);
    assert_eq!((sink.is_up(), sink.report().kept, sink.report().lost), (true, 2, 0));
    assert_eq!(kept(&file).len(), 1);
    sink.stop();
}

#[test]
fn a_dead_letter_that_is_longer_than_a_packet_is_lost_and_holds_up_nothing() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[], |payload| payload.len() > 1);
    let usual = settings("a");
    let session = SessionConfig { packet_bytes_max: 2048, ..usual.session.clone() };
    let dead_letter = Some("dead".to_owned());
    // A full batch must not wait for its age behind letters that are lost.
    let (batch_messages, batch_age) = (1, Duration::from_secs(3600));
    let lettered = SinkSettings { session, dead_letter, batch_messages, batch_age, ..usual };
    let sink = Sink::start_with(lettered, destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut letters = node.client("subscriber", &["dead"]);
    let mut publisher = node.client("publisher", &[]);
    for payload in [&b"1"[..], &[b'x'; 4096], b"2", &[b'x'; 4096], b"bad", b"3"] {
        publish(&mut publisher, "a", payload);
    }
    assert_eq!(receive(&mut letters).payload, b"bad");
    until("the others were taken", || sink.report().messages == 3);
    assert_eq!(seen.texts("a"), ["1", "2", "3"]);
    let report = sink.stop();
    assert_eq!((report.refused, report.dead_lettered, report.lost), (3, 1, 2));
}

#[test]
fn without_a_dead_letter_topic_what_is_refused_is_counted_and_does_not_come_again() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[], |payload| payload == b"bad");
    let sink = Sink::start_with(settings("a"), destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    for text in ["1", "bad", "2"] {
        publish(&mut publisher, "a", text.as_bytes());
    }
    until("all was answered", || sink.report().messages + sink.report().refused == 3);
    sink.stop();
    let (destination, again) = Scripted::new(&[], nothing);
    let sink = Sink::start_with(settings("a"), destination, node.bus()).unwrap();
    publish(&mut publisher, "a", b"3");
    until("the next one came", || sink.report().messages == 1);
    assert_eq!(
        (seen.texts("a"), again.texts("a")),
        (vec!["1".into(), "2".into()], vec!["3".into()])
    );
}

#[test]
fn what_a_destination_took_without_saying_so_comes_again_and_nothing_is_lost() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[Act::TakeAndFail], nothing);
    let slow = SinkSettings { batch_age: Duration::from_secs(3600), ..settings("a") };
    let sink = Sink::start_with(slow, destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    for number in 0..100 {
        publish(&mut publisher, "a", number.to_string().as_bytes());
    }
    until("all was taken", || sink.report().messages == 100);
    let expected: Vec<String> = numbers(0..100).into_iter().chain(numbers(0..100)).collect();
    assert_eq!(seen.texts("a"), expected, "the same batch came twice");
    sink.stop();
}

#[test]
fn what_hangs_when_the_sink_ends_goes_to_the_next_one() {
    let node = Node::default();
    let (destination, _) = Scripted::new(&[Act::Hang], nothing);
    let sink = Sink::start_with(settings("a"), destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    for number in 0..500 {
        publish(&mut publisher, "a", number.to_string().as_bytes());
    }
    let report = sink.stop();
    assert_eq!(report.messages, 0);
    publish(&mut publisher, "a", b"500");
    let (destination, seen) = Scripted::new(&[], nothing);
    let sink = Sink::start_with(settings("a"), destination, node.bus()).unwrap();
    until("all was taken", || sink.report().messages == 501);
    assert_eq!(seen.texts("a"), numbers(0..501));
}

#[test]
fn a_destination_that_does_not_answer_is_asked_again() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[Act::Hang], nothing);
    let hasty = SinkSettings { timeout: Duration::from_millis(100), ..settings("a") };
    let sink = Sink::start_with(hasty, destination, node.bus()).unwrap();
    ready(&node, "test");
    publish(&mut node.client("publisher", &[]), "a", b"1");
    until("it was taken", || sink.report().messages == 1);
    assert_eq!((seen.texts("a"), sink.report().failures), (vec!["1".to_owned()], 1));
}

#[test]
fn a_ring_keeps_the_newest() {
    let node = Node::default();
    let ring = memory::Ring::new(3);
    let destination = DestinationSettings::Memory(ring.clone());
    let sink = Sink::start(SinkSettings { destination, ..settings("a") }, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    for number in 0..10 {
        publish(&mut publisher, "a", &[number]);
    }
    until("all was taken", || sink.report().messages == 10);
    let kept: Vec<u8> = ring.take().iter().map(|record| record.payload[0]).collect();
    assert_eq!((kept, ring.is_empty()), (vec![7, 8, 9], true));
}

#[test]
fn a_message_keeps_the_name_by_which_it_is_known() {
    let node = Node::default();
    let (destination, seen) = Scripted::new(&[], nothing);
    let sink = Sink::start_with(settings("a"), destination, node.bus()).unwrap();
    ready(&node, "test");
    let mut publisher = node.client("publisher", &[]);
    let properties = [("tidegate-id", "edge/1/7"), ("tidegate-received", "12")];
    let properties =
        ForwardedProperties { user_properties: properties.to_vec(), ..Default::default() };
    let mut forwarded = Vec::new();
    properties.encode(&mut forwarded).unwrap();
    let (qos, forwarded) = (QoS::AtLeastOnce, &*forwarded);
    publisher.send(&Publication {
        topic: "a",
        payload: b"x",
        qos,
        forwarded,
        ..Publication::default()
    });
    until("it was taken", || sink.report().messages == 1);
    let record = &seen.records()[0];
    assert_eq!(record.id.as_deref(), Some("edge/1/7"));
    assert!(record.time.as_nanos() > 12, "a publisher does not say when it was received");
}

#[test]
fn impossible_sinks_are_refused_with_the_reason() {
    let good = || settings("a/#");
    let of = |topics: &str| settings(topics).check().unwrap_err().to_string();
    assert_eq!(good().check().ok(), Some(()));
    assert!(of("").contains("no filter"));
    assert!(of("a#").contains("a#"));
    assert!(of("$share/g/a").contains("shared"));
    let dead = |topic: &str| {
        let dead_letter = Some(topic.to_owned());
        SinkSettings { dead_letter, ..good() }.check().unwrap_err().to_string()
    };
    assert!(dead("b/+").contains("b/+"));
    assert!(dead("a/dead").contains("come back"));
    let name = SinkSettings { name: "a/b".to_owned(), ..good() };
    assert!(matches!(name.check(), Err(SinkError::Name { .. })));
    for (settings, key) in [
        (SinkSettings { batch_messages: 0, ..good() }, "batch_messages"),
        (SinkSettings { batch_messages: 60_001, ..good() }, "batch_messages"),
        (SinkSettings { batch_bytes: 1000, ..good() }, "batch_bytes"),
        (SinkSettings { batch_age: Duration::ZERO, ..good() }, "batch_age"),
        (SinkSettings { backoff_max: Duration::ZERO, ..good() }, "backoff_max"),
        (SinkSettings { timeout: Duration::ZERO, ..good() }, "timeout"),
    ] {
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with(key), "{error}");
    }
}
