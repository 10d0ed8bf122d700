//! Records and what they come to.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidegate_message::{IdentityKind, Instant, Payload};
use tidegate_wire::mqtt::{PacketId, QoS, Version};

use super::*;

fn encoded(record: &Record) -> Bytes {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    let mut bytes = BytesMut::from(&bytes[..]);
    bytes.put(record.payload().to_contiguous());
    bytes.freeze()
}

struct Draw(SmallRng);

impl Draw {
    fn number(&mut self) -> u64 {
        let bits = self.0.random_range(0..64);
        self.0.random::<u64>() >> bits
    }

    fn text(&mut self) -> String {
        let letters = ['a', '/', '\u{fc}', '\u{1f600}', '+'];
        (0..self.0.random_range(0..6)).map(|_| letters[self.0.random_range(0..5)]).collect()
    }

    fn topic(&mut self) -> Arc<str> {
        format!("t{}", self.text().replace('+', "")).into()
    }

    fn bytes(&mut self) -> Bytes {
        (0..self.0.random_range(0..200)).map(|_| self.0.random::<u8>()).collect()
    }

    fn qos(&mut self) -> QoS {
        [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][self.0.random_range(0..3)]
    }

    fn id(&mut self) -> PacketId {
        PacketId::new(self.0.random_range(1..=u16::MAX)).unwrap()
    }

    fn instant(&mut self) -> Instant {
        Instant::from_nanos(self.0.random())
    }

    fn some<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.0.random::<bool>().then(|| make(self))
    }

    fn list<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.0.random_range(0..4)).map(|_| make(self)).collect()
    }

    fn duration(&mut self) -> Duration {
        Duration::from_nanos(self.number())
    }

    fn will(&mut self) -> StoredWill {
        StoredWill {
            topic: self.topic(),
            payload: self.bytes(),
            forwarded: self.bytes(),
            qos: self.qos(),
            retain: self.0.random(),
            delay: self.duration(),
            expiry: self.some(|draw| draw.0.random()),
        }
    }

    fn waiting(&mut self) -> Waiting {
        Waiting {
            session: self.number(),
            again: self.number(),
            qos: self.qos(),
            retain: self.0.random(),
            ids: self.list(|draw| draw.0.random()),
            begun: self.some(Self::id),
            group: self.some(|draw| draw.text().into()),
        }
    }

    fn retained(&mut self) -> RetainedAs {
        let client = self.some(|draw| draw.text().into());
        let source = match client.is_some() {
            true => self.some(|draw| Source {
                kind: [IdentityKind::User, IdentityKind::Anonymous][draw.0.random_range(0..2)],
                user: draw.text().into(),
                groups: draw.list(|draw| draw.text().into()).into(),
            }),
            false => None,
        };
        RetainedAs { sequence: self.number(), client, source }
    }

    fn sent(&mut self) -> (u8, u64, Sent) {
        let sent = match self.0.random_range(0..3) {
            0 => Sent::Plain,
            1 => Sent::Group(self.text().into()),
            _ => Sent::Retained(self.retained()),
        };
        (self.0.random(), self.number(), sent)
    }

    fn message(&mut self) -> StoredMessage {
        StoredMessage {
            number: self.number(),
            origin: self.some(|draw| (draw.0.random(), draw.number())),
            noted: self.some(|draw| (draw.number(), draw.id())),
            retained: self.some(Self::retained),
            waiting: self.list(Self::waiting),
            sent: self.list(Self::sent),
            qos: self.qos(),
            retain: self.0.random(),
            is_from_peer: self.0.random(),
            expires: self.some(Self::instant),
            received: self.instant(),
            topic: self.topic(),
            forwarded: self.bytes(),
            payload: Payload::from_segments([self.bytes(), self.bytes()]),
        }
    }

    fn record(&mut self, kind: usize) -> Record {
        let (session, number, id) = (self.number(), self.number(), self.id());
        match kind {
            0 => Record::Opened(Opened {
                session,
                client_id: self.text().into(),
                kind: [IdentityKind::Anonymous, IdentityKind::User, IdentityKind::Internal]
                    [self.0.random_range(0..3)],
                user: self.text().into(),
                groups: self.list(|draw| draw.text().into()),
                version: [Version::V3, Version::V4, Version::V5][self.0.random_range(0..3)],
                expiry: self.some(Self::duration),
                will: self.some(Self::will),
                from: match self.0.random_range(0..4) {
                    0 => None,
                    1 => Some(CameFrom::Machine),
                    2 => Some(CameFrom::Address(IpAddr::from(self.0.random::<[u8; 4]>()))),
                    _ => Some(CameFrom::Address(IpAddr::from(self.0.random::<[u8; 16]>()))),
                },
                overflow: self.some(|draw| draw.0.random()),
                is_peer: self.0.random(),
            }),
            1 => Record::Closed {
                session,
                expiry: self.some(Self::duration),
                ends_at: self.some(Self::instant),
                will: self.some(|draw| (draw.will(), draw.instant())),
            },
            2 => Record::Ended { session },
            3 => Record::Subscribed {
                session,
                filter: (&*self.topic()).into(),
                options: Options {
                    qos: self.qos(),
                    no_local: self.0.random(),
                    retain_as_published: self.0.random(),
                    id: self.0.random(),
                },
            },
            4 => Record::Unsubscribed { session, filter: (&*self.topic()).into() },
            5 => Record::Message(self.message()),
            6 => Record::Queued { number, waiting: self.waiting() },
            7 => Record::Begun { session, number, id },
            8 => Record::Accepted { session, id },
            9 => Record::Done { session, number },
            10 => Record::Completed { session, id },
            11 => Record::Noted { session, id },
            12 => Record::Released { session, id },
            13 => Record::Seen { shard: self.0.random(), number, and_before: self.0.random() },
            14 => Record::Confirmed { shard: self.0.random(), number },
            _ => Record::Checkpoint { is_complete: self.0.random() },
        }
    }
}

#[test]
fn records_come_back_as_they_were() {
    let mut draw = Draw(SmallRng::seed_from_u64(1));
    for round in 0..6_000 {
        let record = draw.record(round % 16);
        let bytes = encoded(&record);
        assert_eq!(Record::decode(&bytes).as_ref(), Ok(&record), "round {round}");
    }
}

/// The format of journals that are on disks.
#[test]
fn records_are_these_bytes() {
    let id = PacketId::new(0x0102).unwrap();
    let filter = "a/+".into();
    let options =
        Options { qos: QoS::AtLeastOnce, no_local: true, retain_as_published: false, id: 128 };
    let message = StoredMessage {
        number: 7,
        origin: Some((2, 129)),
        noted: None,
        retained: None,
        waiting: Vec::new(),
        sent: Vec::new(),
        qos: QoS::AtMostOnce,
        retain: false,
        is_from_peer: false,
        expires: None,
        received: Instant::from_nanos(1),
        topic: "t".into(),
        forwarded: Bytes::new(),
        payload: Bytes::from_static(b"p").into(),
    };
    let from_peer = StoredMessage { retain: true, is_from_peer: true, ..message.clone() };
    for (record, expected) in [
        (Record::Done { session: 300, number: 1 }, &b"\x01\x0a\xac\x02\x01"[..]),
        (Record::Accepted { session: 2, id }, &b"\x01\x09\x02\x02\x01"[..]),
        (Record::Subscribed { session: 1, filter, options }, &b"\x01\x04\x01\x03a/+\x01\x01\x00\x80\x01"[..]),
        (
            Record::Seen { shard: 3, number: u64::MAX, and_before: true },
            &b"\x01\x0e\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01"[..],
        ),
        (
            Record::Closed {
                session: 5,
                expiry: Some(Duration::from_nanos(1000)),
                ends_at: Some(Instant::from_nanos(-2)),
                will: None,
            },
            &b"\x01\x02\x05\x01\xe8\x07\x01\xfe\xff\xff\xff\xff\xff\xff\xff\x00"[..],
        ),
        (
            Record::Message(message),
            &b"\x01\x06\x07\x01\x02\x81\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01t\x00p"[..],
        ),
        (
            Record::Message(from_peer),
            &b"\x01\x06\x07\x01\x02\x81\x01\x00\x00\x00\x00\x00\x03\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01t\x00p"[..],
        ),
    ] {
        assert_eq!(encoded(&record), expected, "{record:?}");
        assert_eq!(Record::decode(&Bytes::from_static(expected)), Ok(record));
    }
}

#[test]
fn any_bytes_on_disk_are_read_without_a_panic() {
    let mut draw = Draw(SmallRng::seed_from_u64(2));
    for round in 0..3_000 {
        let mut replay = Replay::default();
        for _ in 0..20 {
            let kind = draw.0.random_range(0..16);
            let bytes = encoded(&draw.record(kind));
            let mut bytes = bytes.to_vec();
            match round % 3 {
                0 => bytes.truncate(draw.0.random_range(0..=bytes.len())),
                1 => {
                    let at = draw.0.random_range(0..bytes.len());
                    bytes[at] ^= 1 << draw.0.random_range(0..8);
                }
                _ => {}
            }
            let _ = replay.read(&Bytes::from(bytes));
        }
        Recovered::join(vec![replay, Replay::default()]);
    }
    let wrong = |bytes: &'static [u8]| Record::decode(&Bytes::from_static(bytes)).unwrap_err();
    assert_eq!(wrong(b""), RecordError::Field { field: "version" });
    assert_eq!(wrong(&[9, 3, 1]), RecordError::Version { version: 9 });
    assert_eq!(wrong(&[1, 99]), RecordError::Kind { kind: 99 });
    assert_eq!(wrong(&[1, 3, 1, 0]), RecordError::Field { field: "end" });
    assert_eq!(wrong(&[1, 9, 1, 0, 0]), RecordError::Field { field: "packet identifier" });
    // A list that says it is longer than what there is.
    assert_eq!(wrong(&[1, 5, 1, 0xff, 0xff, 3]), RecordError::Field { field: "filter" });
    assert_eq!(
        wrong(&[1, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        RecordError::Field { field: "session" }
    );
}

fn opened(session: u64, name: &str) -> Record {
    Record::Opened(Opened {
        session,
        client_id: name.into(),
        kind: IdentityKind::Anonymous,
        user: "".into(),
        groups: Vec::new(),
        version: Version::V5,
        expiry: None,
        will: None,
        from: None,
        overflow: None,
        is_peer: false,
    })
}

#[test]
fn a_session_of_a_version_that_knew_no_addresses_is_read() {
    let before = encoded(&opened(7, "a"));
    assert_eq!(Record::decode(&before).unwrap(), opened(7, "a"));
    let Record::Opened(session) = opened(7, "a") else { unreachable!() };
    let from = Some(CameFrom::Address([192, 0, 2, 1].into()));
    let since = encoded(&Record::Opened(Opened { from, ..session }));
    assert_eq!(since[..before.len()], before);
    assert_eq!(since[before.len()..], [4, 192, 0, 2, 1]);
    // An address follows, or nothing.
    let Record::Opened(session) = opened(7, "a") else { unreachable!() };
    let since = encoded(&Record::Opened(Opened { overflow: Some(6), from, ..session }));
    assert_eq!(since[before.len()..], [4, 192, 0, 2, 1, 8, 6]);
    // That it is a peer's is last, whatever comes before it.
    for (overflow, from, rest) in [
        (Some(6), from, &[4, 192, 0, 2, 1, 8, 6, 9][..]),
        (Some(6), None, &[8, 6, 9]),
        (None, Some(CameFrom::Machine), &[0, 9]),
        (None, None, &[9]),
    ] {
        let Record::Opened(session) = opened(7, "a") else { unreachable!() };
        let peer = Record::Opened(Opened { overflow, from, is_peer: true, ..session });
        let since = encoded(&peer);
        assert_eq!(since[before.len()..], *rest);
        assert_eq!(Record::decode(&since), Ok(peer));
    }
    // An address follows, and a policy, or nothing.
    for (rest, field) in [
        (&[5][..], "address"),
        (&[4, 1], "address"),
        (&[0, 0], "end"),
        (&[8], "overflow"),
        (&[8, 1, 0], "end"),
        (&[9, 9], "end"),
        (&[9, 8, 1], "end"),
    ] {
        let bytes = Bytes::from([&before, rest].concat());
        assert_eq!(Record::decode(&bytes).unwrap_err(), RecordError::Field { field });
    }
}

fn subscribed(session: u64, filter: &str) -> Record {
    let qos = QoS::ExactlyOnce;
    let options = Options { qos, no_local: false, retain_as_published: false, id: 0 };
    Record::Subscribed { session, filter: filter.into(), options }
}

fn text(number: u64, text: &'static str) -> StoredMessage {
    StoredMessage {
        number,
        origin: None,
        noted: None,
        retained: None,
        waiting: Vec::new(),
        sent: Vec::new(),
        qos: QoS::ExactlyOnce,
        retain: false,
        is_from_peer: false,
        expires: None,
        received: Instant::EPOCH,
        topic: "t".into(),
        forwarded: Bytes::new(),
        payload: Payload::from(Bytes::from_static(text.as_bytes())),
    }
}

fn waits(session: u64) -> Waiting {
    let qos = QoS::ExactlyOnce;
    Waiting { session, again: 0, qos, retain: false, ids: Vec::new(), begun: None, group: None }
}

fn texts(queue: &[RecoveredQueued]) -> Vec<Bytes> {
    queue.iter().map(|queued| queued.message.payload.to_contiguous()).collect()
}

#[test]
fn messages_between_shards_arrive_once() {
    let mut sender = Replay::default();
    let sends = |number, to: u8, sent, what| {
        Record::Message(StoredMessage { sent: vec![(to, number, sent)], ..text(0, what) })
    };
    sender.apply(sends(1, 1, Sent::Plain, "one"));
    sender.apply(sends(2, 1, Sent::Plain, "two"));
    sender.apply(sends(3, 1, Sent::Group("$share/g/t".into()), "three"));
    sender.apply(sends(4, 1, Sent::Plain, "four"));
    let retained = RetainedAs { sequence: 9, client: None, source: None };
    sender.apply(sends(5, 1, Sent::Retained(retained.clone()), "kept"));
    sender.apply(sends(6, 1, Sent::Plain, "six"));
    sender.apply(Record::Confirmed { shard: 1, number: 1 });
    let mut taker = Replay::default();
    taker.apply(opened(1, "a"));
    taker.apply(subscribed(1, "t"));
    taker.apply(opened(2, "b"));
    taker.apply(subscribed(2, "$share/g/t"));
    taker.apply(opened(3, "c"));
    taker.apply(subscribed(3, "$share/g/t"));
    // The second has arrived, and was acknowledged since; the last one has no subscriber.
    taker.apply(Record::Message(StoredMessage {
        origin: Some((0, 2)),
        waiting: vec![waits(1)],
        ..text(1, "two")
    }));
    taker.apply(Record::Done { session: 1, number: 1 });
    taker.apply(Record::Seen { shard: 0, number: 6, and_before: false });
    let waiting = vec![waits(1)];
    taker.apply(Record::Message(StoredMessage { waiting, ..text(2, "own") }));
    let recovered = Recovered::join(vec![sender, taker]);
    assert_eq!(recovered.found.handed_over, 3);
    assert_eq!(texts(&recovered.sessions[0].queue), ["own", "four"]);
    assert_eq!(texts(&recovered.sessions[1].queue), ["three"]);
    assert_eq!(texts(&recovered.sessions[2].queue), [""; 0]);
    let kept: Vec<_> = recovered.retained.iter().map(|r| r.message.payload.clone()).collect();
    assert_eq!(kept, [Payload::from(Bytes::from_static(b"kept"))]);
}

#[test]
fn a_message_of_a_peer_between_shards_arrives_at_no_peer() {
    let mut sender = Replay::default();
    for (number, sent, is_from_peer, what) in [
        (1, Sent::Plain, true, "from a peer"),
        (2, Sent::Group("$share/g/t".into()), true, "from a peer, for one"),
        (3, Sent::Plain, false, "own"),
    ] {
        let sent = vec![(1, number, sent)];
        sender.apply(Record::Message(StoredMessage { sent, is_from_peer, ..text(0, what) }));
    }
    let mut taker = Replay::default();
    for (session, name, is_peer) in [(1, "a", true), (2, "b", false)] {
        let Record::Opened(opened) = opened(session, name) else { unreachable!() };
        taker.apply(Record::Opened(Opened { is_peer, ..opened }));
        taker.apply(subscribed(session, "t"));
        taker.apply(subscribed(session, "$share/g/t"));
    }
    let recovered = Recovered::join(vec![sender, taker]);
    assert_eq!(texts(&recovered.sessions[0].queue), ["own"]);
    let expected = ["from a peer", "from a peer, for one", "own"];
    assert_eq!(texts(&recovered.sessions[1].queue), expected);
    assert!(recovered.sessions[0].opened.is_peer);
}

#[test]
fn messages_between_shards_keep_their_place_before_later_ones() {
    let mut sender = Replay::default();
    for (number, what) in [(1, "one"), (2, "two"), (3, "three"), (4, "four"), (5, "five")] {
        sender.apply(Record::Message(StoredMessage {
            sent: vec![(1, number, Sent::Plain)],
            ..text(0, what)
        }));
    }
    let mut taker = Replay::default();
    taker.apply(opened(1, "a"));
    taker.apply(subscribed(1, "t"));
    // The journal found room for two and four, and for some of its own.
    for (number, origin, what) in
        [(1, None, "own"), (2, Some((0, 2)), "two"), (3, Some((0, 4)), "four"), (4, None, "last")]
    {
        let waiting = vec![waits(1)];
        taker.apply(Record::Message(StoredMessage { origin, waiting, ..text(number, what) }));
    }
    let recovered = Recovered::join(vec![sender, taker]);
    assert_eq!(recovered.found.handed_over, 3);
    let expected = ["own", "one", "two", "three", "four", "last", "five"];
    assert_eq!(texts(&recovered.sessions[0].queue), expected);
}

#[test]
fn an_identifier_that_is_given_to_another_message_was_free() {
    // That the exchanges before came to their ends found no room.
    let id = PacketId::new(7).unwrap();
    let mut replay = Replay::default();
    replay.apply(opened(1, "a"));
    for number in 1..=3 {
        let waiting = vec![waits(1)];
        replay.apply(Record::Message(StoredMessage { waiting, ..text(number, "x") }));
    }
    replay.apply(Record::Begun { session: 1, number: 1, id });
    replay.apply(Record::Begun { session: 1, number: 2, id });
    replay.apply(Record::Accepted { session: 1, id });
    replay.apply(Record::Begun { session: 1, number: 3, id });
    let recovered = Recovered::join(vec![replay]);
    let [session] = &recovered.sessions[..] else { panic!("{recovered:?}") };
    assert_eq!((session.queue.len(), session.inflight.len()), (0, 1));
    assert!(session.inflight[0].1.is_some());
}

#[test]
fn what_is_handed_over_keeps_its_place_where_what_came_is_written_anew() {
    let mut sender = Replay::default();
    for (number, what) in [(1, "one"), (2, "two")] {
        sender.apply(Record::Message(StoredMessage {
            sent: vec![(1, number, Sent::Plain)],
            ..text(0, what)
        }));
    }
    let mut taker = Replay::default();
    taker.apply(opened(1, "a"));
    taker.apply(subscribed(1, "t"));
    for origin in [Some((0, 2)), None] {
        let waiting = vec![waits(1)];
        taker.apply(Record::Message(StoredMessage { origin, waiting, ..text(1, "two") }));
    }
    let recovered = Recovered::join(vec![sender, taker]);
    assert_eq!(texts(&recovered.sessions[0].queue), ["one", "two"]);
}

#[test]
fn what_is_written_anew_stands_for_what_was() {
    // A session's records in the middle of which the journal was let go of, then its part of a checkpoint.
    let id = PacketId::new(7).unwrap();
    let mut replay = Replay::default();
    replay.apply(Record::Done { session: 1, number: 3 });
    let waiting = vec![waits(1)];
    replay.apply(Record::Message(StoredMessage { waiting, ..text(9, "meanwhile") }));
    replay.apply(opened(1, "a"));
    replay.apply(subscribed(1, "t"));
    let waiting = vec![Waiting { begun: Some(id), ..waits(1) }];
    replay.apply(Record::Message(StoredMessage { waiting, ..text(4, "begun") }));
    replay.apply(Record::Queued { number: 9, waiting: waits(1) });
    replay.apply(Record::Noted { session: 1, id });
    replay.apply(Record::Noted { session: 1, id });
    replay.apply(Record::Subscribed {
        session: 2,
        filter: "x".into(),
        options: Options {
            qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            id: 0,
        },
    });
    let recovered = Recovered::join(vec![replay]);
    let [session] = &recovered.sessions[..] else { panic!("{recovered:?}") };
    assert_eq!(texts(&session.queue), ["meanwhile"]);
    assert_eq!(session.inflight.len(), 1);
    assert_eq!(session.received, [id]);
    assert_eq!(recovered.found.lost, 1, "nothing says whose the second session was");
    assert_eq!(Arc::strong_count(&session.queue[0].message), 1);
}
