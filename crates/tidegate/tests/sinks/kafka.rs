//! The sink to Kafka, at a real one.

use std::{collections::HashMap, future::poll_fn, task::Poll, time::Duration};

use rskafka::client::{
    ClientBuilder,
    partition::{OffsetAt, UnknownTopicHandling},
};
use tidegate_broker::BrokerConfig;
use tidegate_message::Instant;
use tidegate_sinks::{
    Batch, Destination, DestinationSettings, Record, Refusal, Sink, SinkSettings,
    kafka::{Compression, KafkaSettings},
};

use crate::{
    peer::{Peer, signal},
    poll_async::poll,
    world::{client, publish, ready, server, settings, until},
};

fn kafka(brokers: &str, topic: &str, compression: Compression) -> DestinationSettings {
    DestinationSettings::Kafka(KafkaSettings {
        brokers: vec![brokers.to_owned()],
        topic: topic.to_owned(),
        create: true,
        compression,
        login: None,
        tls: None,
        under_way_max: 20_000,
    })
}

/// Key, value and headers of a record.
type Found = (String, Vec<u8>, HashMap<String, String>);

/// The records in the topic, by partition.
async fn read(brokers: &str, topic: &str) -> Vec<Vec<Found>> {
    let client = ClientBuilder::new(vec![brokers.to_owned()]).build().await.unwrap();
    let topics = client.list_topics().await.unwrap();
    let partitions = &topics.iter().find(|found| found.name == topic).unwrap().partitions;
    let mut all = Vec::new();
    for partition in partitions {
        let handling = UnknownTopicHandling::Retry;
        let client = client.partition_client(topic, *partition, handling).await.unwrap();
        let end = client.get_offset(OffsetAt::Latest).await.unwrap();
        let (mut offset, mut found) = (0, Vec::new());
        while offset < end {
            let (records, _) = client.fetch_records(offset, 1..8 << 20, 1000).await.unwrap();
            let begin = offset;
            for record in records.into_iter().filter(|record| record.offset >= begin) {
                offset = record.offset + 1;
                let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
                let record = record.record;
                let headers = record.headers.into_iter().map(|(name, value)| (name, text(value)));
                found.push((text(record.key.unwrap()), record.value.unwrap(), headers.collect()));
            }
        }
        all.push(found);
    }
    all
}

/// Hands a batch over as a sink does: a topic that was just made has no leader yet.
async fn deliver(sink: &mut dyn Destination, batch: &Batch) -> Vec<Refusal> {
    let mut trouble = None;
    let taken = poll(Duration::from_secs(30), async || match sink.deliver(batch).await {
        Ok(refusals) => Some(refusals),
        Err(error) => {
            trouble = Some(error);
            None
        }
    });
    let taken = taken.await;
    taken.unwrap_or_else(|| panic!("{trouble:?}"))
}

fn record(topic: &str, payload: impl Into<Vec<u8>>, nanos: i64) -> Record {
    Record::new(topic, payload.into(), Instant::from_nanos(1_769_903_999_000_000_000 + nanos))
}

#[test]
fn records_have_keys_and_headers_and_none_is_there_twice() {
    let Some(peer) = Peer::start("with-kafka", &["KAFKA_BROKERS"]) else { return };
    let brokers = &*peer.told[0];
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    reactor.block_on(async {
        // Three partitions; Kafka's own producers put these keys there.
        let client = ClientBuilder::new(vec![brokers.to_owned()]).build().await.unwrap();
        let controller = client.controller_client().unwrap();
        controller.create_topic("three", 3, 1, 10_000).await.unwrap();
        let mut sink = kafka(brokers, "three", Compression::Zstd).open().unwrap();
        let mut named = record("sensor/7", "x", 3);
        named.id = Some("edge/1/7".into());
        let batch = Batch::from_iter([
            record("a", "1", 1),
            record("sensor/7", "2", 2),
            named,
            record("a", "3", 4),
        ]);
        assert_eq!(deliver(&mut *sink, &batch).await, []);
        let found = read(brokers, "three").await;
        let of = |key: &str| -> (usize, Vec<Found>) {
            let place =
                found.iter().position(|records| records.iter().any(|r| r.0 == key)).unwrap();
            (place, found[place].iter().filter(|record| record.0 == key).cloned().collect())
        };
        let (place, of_a) = of("a");
        // (murmur2("a") & 0x7fffffff) % 3 = 584102524 % 3
        assert_eq!(place, 1);
        assert_eq!(of_a.iter().map(|r| r.1.clone()).collect::<Vec<_>>(), [b"1", b"3"]);
        let (place, of_sensor) = of("sensor/7");
        // 907558923 % 3
        assert_eq!(place, 0);
        assert_eq!(of_sensor[1].2["tidegate-id"], "edge/1/7");
        assert_eq!(of_sensor[1].2["tidegate-received"], "1769903999000000003");

        // Another one, as after kill -9 behind a batch of which a part was written: only the rest is. A message with a name comes
        // again from an uplink, all others from this node's broker.
        let comes_again = |batch: &Batch| -> Vec<Record> {
            let mut records = batch.records().to_vec();
            records.iter_mut().for_each(|record| record.is_repeated = record.id.is_none());
            records
        };
        let mut again = kafka(brokers, "three", Compression::Zstd).open().unwrap();
        let longer: Batch = comes_again(&batch).into_iter().chain([record("a", "4", 5)]).collect();
        assert_eq!(deliver(&mut *again, &longer).await, []);
        // The same one, after the session broke off.
        again.begin_anew();
        let repeated: Batch = comes_again(&longer).into_iter().collect();
        assert_eq!(deliver(&mut *again, &repeated).await, []);
        let total: usize = read(brokers, "three").await.iter().map(Vec::len).sum();
        assert_eq!(total, 5);

        // Messages that are alike are two, though the second is in another batch, and it is not known what the first try of that
        // wrote. It ends at its first question, with nothing written.
        let mut sink = kafka(brokers, "three", Compression::Zstd).open().unwrap();
        let alike = || record("a", "alike", 6);
        assert_eq!(deliver(&mut *sink, &Batch::from_iter([alike()])).await, []);
        let second = Batch::from_iter([record("sensor/7", "5", 7), alike()]);
        let mut broken = sink.deliver(&second);
        let waits = poll_fn(|context| Poll::Ready(broken.as_mut().poll(context).is_pending()));
        assert!(waits.await);
        drop(broken);
        assert_eq!(deliver(&mut *sink, &second).await, []);
        let found = read(brokers, "three").await;
        let stored = found[1].iter().filter(|record| record.1 == b"alike").count();
        assert_eq!(stored, 2);

        // A record that Kafka refuses is found, each kind of compression is read.
        for compression in [Compression::Snappy, Compression::Gzip, Compression::None] {
            let topic = format!("refuses-{compression:?}");
            let mut sink = kafka(brokers, &topic, compression).open().unwrap();
            let mut state = 1_u64;
            let mut noise = |bytes: usize| -> Vec<u8> {
                std::iter::repeat_with(|| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .take(bytes)
                .collect()
            };
            let batch: Batch = (0..200)
                .map(|number| record("a", noise(if number == 77 { 2 << 20 } else { 10 }), number))
                .collect();
            let refusals = deliver(&mut *sink, &batch).await;
            let places: Vec<usize> = refusals.iter().map(|refusal| refusal.place).collect();
            assert_eq!(places, [77], "{compression:?}: {refusals:?}");
            let found = read(brokers, &topic).await;
            let values: Vec<&[u8]> = found[0].iter().map(|record| &*record.1).collect();
            let expected = batch.records().iter().enumerate().filter(|(place, _)| *place != 77);
            let expected: Vec<&[u8]> = expected.map(|(_, record)| &*record.payload).collect();
            assert_eq!(values, expected, "{compression:?}");
        }
    });
    assert!(peer.stop().success());
}

#[test]
fn messages_whose_time_kafka_refuses_have_the_time_at_which_they_are_sent() {
    let Some(peer) = Peer::start("with-kafka", &["KAFKA_BROKERS"]) else { return };
    let brokers = &*peer.told[0];
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    reactor.block_on(async {
        // Received by a clock that was a day ahead, and is right by now: topics take an hour.
        let now = tidegate_process::clock::now();
        let ahead = now + Duration::from_secs(86_400);
        let batch: Batch = [now, ahead, now]
            .into_iter()
            .enumerate()
            .map(|(number, time)| Record::new("a", number.to_string(), time))
            .collect();
        let mut sink = kafka(brokers, "times", Compression::Zstd).open().unwrap();
        assert_eq!(deliver(&mut *sink, &batch).await, []);
        let found = read(brokers, "times").await;
        let values: Vec<&[u8]> = found[0].iter().map(|record| &*record.1).collect();
        assert_eq!(values, [b"0", b"1", b"2"]);
        let received = &found[0][1].2["tidegate-received"];
        assert_eq!(*received, ahead.as_nanos().to_string());
    });
    assert!(peer.stop().success());
}

#[test]
fn a_kafka_that_stops_answering_gets_everything_once() {
    let Some(peer) = Peer::start("with-kafka", &["KAFKA_BROKERS", "KAFKA_PID"]) else { return };
    let (brokers, pid) = (&*peer.told[0], &*peer.told[1]);
    let server = server(BrokerConfig::default());
    let settings = SinkSettings {
        destination: kafka(brokers, "messages", Compression::Zstd),
        timeout: Duration::from_secs(3),
        ..settings("a/#")
    };
    let sink = Sink::start(settings, server.connector().into()).unwrap();
    ready(&server, "test");
    let mut publisher = client(&server, "publisher");
    for number in 0..300 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("the first part is there", || sink.report().messages == 300);
    // Requests sent to it before it stopped are carried out later, without an answer that is heard.
    signal(pid, "STOP");
    for number in 300..1000 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("the sink saw it", || sink.report().failures >= 1);
    signal(pid, "CONT");
    until("all is there", || sink.report().messages == 1000);
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = reactor.block_on(read(brokers, "messages"));
    let values: Vec<String> =
        found.iter().flatten().map(|record| String::from_utf8(record.1.clone()).unwrap()).collect();
    let expected: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    assert_eq!(values, expected, "in order and once");
    sink.stop();
}
