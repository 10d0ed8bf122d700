//! Following a path (RFC 7641), and what a peer is sent before it has shown where it is.

use super::*;

use MessageType::{Acknowledgement, Confirmable, NonConfirmable, Reset};

fn notify(stage: &mut Stage, value: &str) -> Vec<Said> {
    stage.server.notify(stage.now, "a", &representation(value));
    stage.sent()
}

/// A stage on which [`PEER`] follows `a`, and has acknowledged a notification after 100 ms.
fn followed() -> Stage {
    let mut stage = Stage::new();
    let replies = stage.get(1, "a", Some(0), "0");
    assert_eq!(replies[0].payload, b"0");
    assert!(replies[0].option(OptionNumber::OBSERVE).is_some());
    assert_eq!(stage.events(), [Event::Followed { path: "a".to_owned() }]);
    let first = notify(&mut stage, "1");
    assert_eq!(first[0].message_type, Confirmable, "nothing is known of the way yet");
    stage.pass(Duration::from_millis(100));
    stage.acknowledge(PEER, &first[0]);
    stage
}

#[test]
fn an_observer_is_sent_each_new_state() {
    let mut stage = followed();
    stage.pass(seconds(10));
    let mut last = 0;
    for value in ["2", "3", "4"] {
        let told = notify(&mut stage, value);
        let [said] = &told[..] else { panic!("{told:?}") };
        assert_eq!((said.code, &said.payload[..]), (Code::CONTENT, value.as_bytes()));
        assert_eq!(said.token, 1_u16.to_be_bytes());
        assert_eq!(said.message_type, Confirmable, "news are rare");
        let sequence = said.option(OptionNumber::OBSERVE).unwrap();
        assert!(is_newer(last, stage.now, sequence, stage.now) || last == 0);
        last = sequence;
        stage.acknowledge(PEER, said);
        stage.pass(seconds(10));
    }
}

#[test]
fn observers_of_a_topic_at_rest_are_checked_once_a_day() {
    let mut stage = Stage::new();
    stage.get(1, "a", Some(0), "0");
    for _ in 0..3 {
        let sent = stage.pass(seconds(23 * 3600));
        let [(at, said)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(*at, stage.now);
        assert_eq!((said.message_type, &said.payload[..]), (Confirmable, &b"0"[..]));
        stage.acknowledge(PEER, said);
    }
    stage.pass(seconds(24 * 3600));
    assert_eq!(stage.server.statistics().observers, 0, "it was not there any more");
    assert_eq!(stage.server.poll_timeout(), None);
}

#[test]
fn frequent_news_leave_once_a_round_trip_and_end_confirmed() {
    let mut stage = followed();
    let mut told = Vec::new();
    for step in 0..200 {
        told.extend(notify(&mut stage, &step.to_string()));
        let sent = stage.pass(Duration::from_millis(10)).into_iter().map(|(_, said)| said);
        told.extend(sent.collect::<Vec<_>>());
        if told.last().is_some_and(|said: &Said| said.message_type == Confirmable) {
            let last = told.last().unwrap().clone();
            stage.acknowledge(PEER, &last);
        }
    }
    // 2 s at one in 100 ms; every seventeenth is confirmable, and its round trip is shorter here.
    assert!((18..=30).contains(&told.len()), "{}", told.len());
    let confirmable = told.iter().filter(|said| said.message_type == Confirmable).count();
    assert!((1..=3).contains(&confirmable), "{confirmable}");
    let mut last = told[0].option(OptionNumber::OBSERVE).unwrap();
    for said in &told[1..] {
        let sequence = said.option(OptionNumber::OBSERVE).unwrap();
        assert!(is_newer(last, stage.now, sequence, stage.now));
        last = sequence;
    }
    // When nothing newer comes, the last state is sent until it is acknowledged.
    let settled = stage.pass(seconds(5));
    let (_, said) = settled.last().unwrap();
    assert_eq!((said.message_type, &said.payload[..]), (Confirmable, &b"199"[..]));
    stage.acknowledge(PEER, said);
    assert_eq!(stage.pass(seconds(100)), []);
    assert!(stage.server.statistics().superseded > 150);
}

#[test]
fn the_last_state_before_a_pause_is_told_again_and_confirmed() {
    let mut stage = followed();
    let told = notify(&mut stage, "2");
    assert_eq!(told[0].message_type, NonConfirmable, "it may be lost");
    let sent = stage.pass(seconds(3));
    let [(at, said)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(stage.now.since(*at), seconds(1));
    assert_eq!((said.message_type, &said.payload[..]), (Confirmable, &b"2"[..]));
    stage.acknowledge(PEER, said);
    assert_eq!(stage.pass(seconds(1000)), []);
}

#[test]
fn a_newer_state_takes_the_place_of_one_that_got_lost() {
    let mut stage = followed();
    stage.pass(seconds(10));
    let lost = notify(&mut stage, "lost");
    assert_eq!(notify(&mut stage, "new"), [], "one at a time is under way");
    let sent = stage.pass(seconds(4));
    let [(_, again)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(again.payload, b"new");
    assert_ne!(again.id, lost[0].id, "RFC 7641, 4.5.2");
    stage.acknowledge(PEER, again);
    assert_eq!(stage.pass(seconds(100)), []);
}

#[test]
fn a_former_observer_is_sent_nothing() {
    type End = fn(&mut Stage);
    let rows: [(&str, End, usize); 5] = [
        (
            "3.6, Observe 1",
            |stage| {
                let options: &[(OptionNumber, &[u8])] =
                    &[(OptionNumber::OBSERVE, b"\x01"), (OptionNumber::URI_PATH, b"a")];
                let token = 1_u16.to_be_bytes();
                stage.say(PEER, &encode(Confirmable, Code::GET, 9, &token, options, b""));
            },
            1,
        ),
        (
            "3.6, a reset of a confirmable one",
            |stage| {
                stage.pass(seconds(10));
                let told = notify(stage, "x");
                stage.empty(PEER, Reset, told[0].id);
            },
            0,
        ),
        (
            "3.6, a reset of another",
            |stage| {
                let told = notify(stage, "x");
                assert_eq!(told[0].message_type, NonConfirmable);
                stage.empty(PEER, Reset, told[0].id);
            },
            0,
        ),
        (
            "4.5, no acknowledgement",
            |stage| {
                stage.pass(seconds(10));
                notify(stage, "x");
                assert_eq!(stage.pass(seconds(100)).len(), 4);
            },
            0,
        ),
        (
            "4.2, its end",
            |stage| {
                stage.server.end(stage.now, "a");
                let said = stage.one();
                assert_eq!(
                    (said.code, said.option(OptionNumber::OBSERVE)),
                    (Code::NOT_FOUND, None)
                );
                stage.acknowledge(PEER, &said);
            },
            0,
        ),
    ];
    for (note, end, asked) in rows {
        let mut stage = followed();
        end(&mut stage);
        let events = stage.events();
        assert_eq!(events.len(), 1 + asked, "{note}: {events:?}");
        assert_eq!(events[0], Event::Unfollowed { path: "a".to_owned() }, "{note}");
        assert_eq!(notify(&mut stage, "y"), [], "{note}");
        assert_eq!(stage.server.statistics().observers, 0, "{note}");
    }
}

#[test]
fn an_observer_that_observes_again_continues() {
    let mut stage = followed();
    stage.pass(Duration::from_millis(1));
    // The same token takes the place of the one before (4.1).
    let before = notify(&mut stage, "2")[0].option(OptionNumber::OBSERVE).unwrap();
    let reply = stage.get(1, "a", Some(0), "2").remove(0);
    let sequence = reply.option(OptionNumber::OBSERVE).unwrap();
    assert!(is_newer(before, stage.now, sequence, stage.now), "{sequence} after {before}");
    assert_eq!(stage.server.statistics().observers, 1);
    let path = || "a".to_owned();
    let events = [Event::Unfollowed { path: path() }, Event::Followed { path: path() }];
    assert_eq!(stage.events(), events);
}

#[test]
fn a_refused_client_does_not_observe() {
    let mut stage = Stage::new();
    let options: &[(OptionNumber, &[u8])] =
        &[(OptionNumber::OBSERVE, b""), (OptionNumber::URI_PATH, b"a")];
    stage.say(PEER, &encode(Confirmable, Code::GET, 1, b"t", options, b""));
    let read = stage.read();
    assert!(read.follows);
    stage.server.answer(stage.now, read.request, Answer::Refuse);
    assert_eq!(stage.one().code, Code::FORBIDDEN);
    assert_eq!((stage.events(), stage.server.statistics().observers), (vec![], 0));
}

#[test]
fn a_large_state_is_told_by_its_first_block() {
    let mut stage = followed();
    stage.pass(seconds(10));
    let value = "x".repeat(5000);
    let said = notify(&mut stage, &value).remove(0);
    let block = Block::from_value(said.option(OptionNumber::BLOCK2).unwrap()).unwrap();
    assert_eq!(
        (block, said.payload.len()),
        (Block { number: 0, more: true, size_exponent: 6 }, 1024)
    );
    assert_eq!(said.option(OptionNumber::SIZE2), Some(5000));
    assert!(
        said.option(OptionNumber::ETAG).is_some() && said.option(OptionNumber::OBSERVE).is_some()
    );
}

#[test]
fn a_peer_that_is_not_validated_gets_three_times_its_bytes() {
    let value = "x".repeat(800);
    for answers in [false, true] {
        let mut stage = Stage::new();
        let replies = stage.get(1, "a", Some(0), &value);
        let [acknowledgement, ping] = &replies[..] else { panic!("{replies:?}") };
        assert!(acknowledgement.is_empty_of(Acknowledgement, 1));
        assert!(ping.is_empty_of(Confirmable, ping.id));
        if !answers {
            assert_eq!(notify(&mut stage, "news"), []);
            // Nothing but the ping, and then all is forgotten.
            let sent = stage.pass(seconds(200));
            assert!(sent.iter().all(|(_, said)| said == ping) && sent.len() == 4, "{sent:?}");
            assert_eq!(stage.server.statistics().observers, 0);
            assert_eq!(notify(&mut stage, "news"), []);
            continue;
        }
        let replies = stage.empty(PEER, Reset, ping.id);
        let [response] = &replies[..] else { panic!("{replies:?}") };
        assert_eq!((response.message_type, response.payload.len()), (Confirmable, 800));
        assert_eq!(response.token, 1_u16.to_be_bytes());
        stage.acknowledge(PEER, response);
        // From now on it is sent what it asks for.
        assert_eq!(stage.get(2, "a", None, &value)[0].payload.len(), 800);
    }
}

#[test]
fn words_for_people_are_left_out_where_they_are_too_many() {
    let mut stage = Stage::new();
    let short = encode(Confirmable, Code::GET, 1, b"", &[], b"");
    let replies = stage.say(PEER, &short);
    assert_eq!((replies[0].code, replies[0].payload.len()), (Code::BAD_REQUEST, 0));
    let mut stage = Stage::with(|config| config.validates_peers = false);
    let replies = stage.say(PEER, &short);
    let text = "the path is not a topic: a topic has at least one character, this one is empty";
    assert_eq!(String::from_utf8_lossy(&replies[0].payload), text);
}
