//! Requests and replies: immediate answers, by clause; copies; separate replies.

use super::*;

use MessageType::{Acknowledgement, Confirmable, NonConfirmable, Reset};

const PATH: OptionNumber = OptionNumber::URI_PATH;

#[test]
fn requests_that_cannot_be_served_are_answered_by_clause() {
    let long = vec![b'x'; 255];
    let path: (OptionNumber, &[u8]) = (PATH, b"a");
    let deep = [path; 65];
    let longest = [(PATH, &long[..]); 5];
    let get = Code::GET;
    for (note, code, options, expected) in [
        ("5.8, DELETE", Code::DELETE, &[path][..], "4.05"),
        ("RFC 8132, FETCH", Code(5), &[path], "4.05"),
        ("5.8, an unknown method", Code(31), &[path], "4.05"),
        ("5.4.1, unknown and critical", get, &[path, (OptionNumber(2049), b"")], "4.02"),
        (
            "5.4.5, Uri-Host twice",
            get,
            &[(OptionNumber::URI_HOST, b"h"), (OptionNumber::URI_HOST, b"h"), path],
            "4.02",
        ),
        ("5.10.8, If-Match is not kept", get, &[(OptionNumber::IF_MATCH, b""), path], "4.02"),
        (
            "5.10.8, If-None-Match is not kept",
            get,
            &[(OptionNumber::IF_NONE_MATCH, b""), path],
            "4.02",
        ),
        ("5.7.2, Proxy-Uri", get, &[(OptionNumber::PROXY_URI, b"coap://x")], "5.05"),
        ("5.7.2, Proxy-Scheme", get, &[path, (OptionNumber::PROXY_SCHEME, b"coap")], "5.05"),
        ("5.10.1, a level is ..", get, &[path, (PATH, b"..")], "4.00"),
        ("a level has a slash", get, &[(PATH, b"a/b")], "4.00"),
        ("a level is not UTF-8", get, &[(PATH, b"\xff")], "4.00"),
        ("a wildcard is not a topic", Code::POST, &[(PATH, b"+")], "4.00"),
        ("no path is not a topic", Code::PUT, &[], "4.00"),
        ("too many levels", Code::PUT, &deep, "4.00"),
        ("too long a path", Code::PUT, &longest, "4.00"),
        ("a query that is not UTF-8", get, &[path, (OptionNumber::URI_QUERY, b"\xff")], "4.00"),
        ("RFC 7959, 2.2, size exponent 7", get, &[path, (OptionNumber::BLOCK2, &[7])], "4.00"),
        ("RFC 7959, 2.1, Block1 of a GET", get, &[path, (OptionNumber::BLOCK1, &[6])], "4.02"),
        ("below .well-known", get, &[(PATH, b".well-known"), (PATH, b"x")], "4.04"),
        ("RFC 6690, 4", Code::POST, &[(PATH, b".well-known"), (PATH, b"core")], "4.05"),
    ] {
        let mut stage = Stage::new();
        let replies = stage.say(PEER, &encode(Confirmable, code, 9, b"tok", options, b""));
        let [reply] = &replies[..] else { panic!("{note}: {replies:?}") };
        assert_eq!((reply.message_type, reply.id), (Acknowledgement, 9), "{note}");
        assert_eq!(
            (reply.code.to_string().as_str(), &reply.token[..]),
            (expected, &b"tok"[..]),
            "{note}"
        );
        assert_eq!(stage.events(), [], "{note}");
        assert_eq!(
            stage.server.statistics().exchanges,
            usize::from(note == "RFC 6690, 4"),
            "{note}"
        );
    }
}

#[test]
fn requests_that_can_be_served_are_handed_on() {
    let path: (OptionNumber, &[u8]) = (PATH, b"a");
    for (note, code, options, expected) in [
        (
            "a topic of levels",
            Code::PUT,
            &[path, (PATH, b""), (PATH, "ä b".as_bytes())][..],
            "a//ä b ",
        ),
        ("5.4.1, unknown and elective", Code::GET, &[path, (OptionNumber(2048), b"x")], "a "),
        (
            "5.4.5, Observe twice counts once",
            Code::GET,
            &[(OptionNumber::OBSERVE, b""), (OptionNumber::OBSERVE, b"\x01"), path],
            "a ",
        ),
        (
            "5.10.1, host and port",
            Code::GET,
            &[(OptionNumber::URI_HOST, b"h"), (OptionNumber::URI_PORT, b"\x01"), path],
            "a ",
        ),
        (
            "queries",
            Code::POST,
            &[path, (OptionNumber::URI_QUERY, b"retain=1"), (OptionNumber::URI_QUERY, b"qos=1")],
            "a retain=1&qos=1",
        ),
    ] {
        for message_type in [Confirmable, NonConfirmable] {
            let mut stage = Stage::new();
            let replies = stage.say(PEER, &encode(message_type, code, 9, b"tok", options, b"21.5"));
            assert_eq!(replies, [], "{note}");
            let [event] = &stage.events()[..] else { panic!("{note}") };
            let found = match event {
                Event::Publish(publish) => format!("{} {}", publish.path, publish.query),
                Event::Read(read) => format!("{} {}", read.path, read.query),
                other => panic!("{note}: {other:?}"),
            };
            assert_eq!(found, expected, "{note}");
        }
    }
}

#[test]
fn an_option_of_a_wrong_length_counts_as_unknown() {
    let mut stage = Stage::new();
    let critical = b"\x40\x01\0\x01\xb1a\x63\0\0\0"; // Accept of three bytes
    let replies = stage.say(PEER, &Bytes::from_static(critical));
    assert_eq!(replies[0].code, Code::BAD_OPTION, "5.4.3");
    let elective = b"\x40\x01\0\x02\x49123456789\x71a"; // an ETag of nine bytes
    assert_eq!(stage.say(PEER, &Bytes::from_static(elective)), []);
    assert_eq!(stage.read().path, "a", "5.4.3");
}

#[test]
fn answers_have_these_codes_and_options() {
    let busy = Answer::Busy { retry_after: seconds(7) };
    for (answer, code, number, value) in [
        (Answer::Accept, "2.04", OptionNumber::MAX_AGE, None),
        (Answer::Create, "2.01", OptionNumber::MAX_AGE, None),
        (Answer::RefuseBad("no number"), "4.00", OptionNumber::MAX_AGE, None),
        (Answer::Refuse, "4.03", OptionNumber::MAX_AGE, None),
        (Answer::NotFound, "4.04", OptionNumber::MAX_AGE, None),
        (Answer::RefuseLarge { bytes_max: 80 }, "4.13", OptionNumber::SIZE1, Some(80)),
        (Answer::RefuseFormat, "4.15", OptionNumber::MAX_AGE, None),
        (busy, "5.03", OptionNumber::MAX_AGE, Some(7)),
        (Answer::Fail, "5.00", OptionNumber::MAX_AGE, None),
    ] {
        let mut stage = Stage::new();
        assert_eq!(stage.say(PEER, &post(1, "a", b"1")), []);
        let publish = stage.publish();
        assert_eq!((publish.peer, &publish.payload[..]), (PEER, &b"1"[..]));
        stage.server.answer(stage.now, publish.request, answer.clone());
        let reply = stage.one();
        assert_eq!(
            (reply.code.to_string().as_str(), reply.option(number)),
            (code, value),
            "{answer:?}"
        );
        stage.server.answer(stage.now, publish.request, answer);
        assert_eq!(stage.sent(), [], "a second answer is for no request");
    }
}

#[test]
fn a_payload_is_a_slice_of_its_datagram() {
    let mut stage = Stage::new();
    let datagram = post(1, "a", b"twenty degrees");
    stage.say(PEER, &datagram);
    let payload = stage.publish().payload;
    let range = datagram.as_ptr_range();
    assert!(range.contains(&payload.as_ptr()) && payload == "twenty degrees");
}

#[test]
fn a_copy_is_answered_again_and_handed_on_once() {
    let mut stage = Stage::new();
    let datagram = post(1, "a", b"1");
    assert_eq!(stage.say(PEER, &datagram), []);
    assert_eq!(stage.say(PEER, &datagram), [], "it is not answered yet");
    let publish = stage.publish();
    stage.server.answer(stage.now, publish.request, Answer::Create);
    let first = stage.one();
    for _ in 0..3 {
        stage.pass(seconds(60));
        assert_eq!(stage.say(PEER, &datagram), std::slice::from_ref(&first));
    }
    assert_eq!(stage.events(), []);
    assert_eq!(stage.server.statistics().duplicates, 4);
    // Another peer's identifiers are its own, and other bytes are another message.
    assert_eq!(stage.say(peer(5), &datagram), []);
    assert_eq!(stage.say(PEER, &post(1, "a", b"2")), []);
    assert_eq!(stage.events().len(), 2);
    stage.pass(seconds(247));
    assert_eq!(stage.say(PEER, &datagram), []);
    assert_eq!(stage.events().len(), 1, "its lifetime is over");
}

#[test]
fn a_copy_that_needs_no_acknowledgement_is_silent() {
    let mut stage = Stage::new();
    let datagram = encode(NonConfirmable, Code::POST, 1, b"t", &[(PATH, b"a")], b"1");
    stage.say(PEER, &datagram);
    let publish = stage.publish();
    stage.server.answer(stage.now, publish.request, Answer::Accept);
    let reply = stage.one();
    assert_eq!(
        (reply.message_type, reply.code, &reply.token[..]),
        (NonConfirmable, Code::CHANGED, &b"t"[..])
    );
    assert_eq!(stage.say(PEER, &datagram), []);
    assert_eq!(stage.events(), []);
}

#[test]
fn a_slow_answer_travels_by_itself() {
    let mut stage = Stage::new();
    let datagram = post(1, "a", b"1");
    stage.say(PEER, &datagram);
    let publish = stage.publish();
    let sent = stage.pass(seconds(1));
    let [(at, acknowledgement)] = &sent[..] else { panic!("{sent:?}") };
    assert!(acknowledgement.is_empty_of(Acknowledgement, 1));
    assert_eq!(stage.now.since(*at), Duration::from_millis(500));
    assert!(
        stage.say(PEER, &datagram)[0].is_empty_of(Acknowledgement, 1),
        "a copy is acknowledged"
    );

    stage.server.answer(stage.now, publish.request, Answer::Accept);
    let response = stage.one();
    assert_eq!((response.message_type, response.code), (Confirmable, Code::CHANGED));
    assert_eq!(response.token, 1_u16.to_be_bytes());
    assert!(stage.say(PEER, &datagram)[0].is_empty_of(Acknowledgement, 1), "so is one after it");
    // It is sent again, with twice the wait each time, until it is acknowledged (4.2).
    let sent = stage.pass(seconds(10));
    assert!(sent.iter().all(|(_, said)| *said == response), "{sent:?}");
    assert_eq!(sent.len(), 2, "after 2 to 3 s and 4 to 6 s more");
    assert_eq!(stage.acknowledge(PEER, &response), []);
    assert_eq!(stage.pass(seconds(600)), []);
    assert_eq!(stage.server.statistics().retransmitted, 2);
    assert_eq!(stage.server.poll_timeout(), None);
}

#[test]
fn a_response_that_is_never_acknowledged_is_given_up() {
    let mut stage = Stage::new();
    stage.say(PEER, &post(1, "a", b"of eleven bytes and more"));
    let publish = stage.publish();
    stage.pass(seconds(1));
    stage.server.answer(stage.now, publish.request, Answer::Accept);
    let begun = stage.now;
    let first = stage.one();
    let sent = stage.pass(seconds(200));
    assert_eq!(sent.len(), 4, "MAX_RETRANSMIT");
    let waits: Vec<f64> = sent.iter().map(|(at, _)| at.since(begun).as_secs_f64()).collect();
    for (wait, factor) in waits.iter().zip([1.0, 3.0, 7.0, 15.0]) {
        assert!((wait - factor * waits[0]).abs() < 1e-6, "{waits:?}");
    }
    assert!((2.0..=3.0).contains(&waits[0]), "{waits:?}");
    assert_eq!(stage.server.statistics().timed_out, 1);
    assert_eq!(stage.acknowledge(PEER, &first), [], "too late, and no harm");
}

#[test]
fn a_request_without_an_answer_fails() {
    let mut stage = Stage::new();
    stage.say(PEER, &post(1, "a", b"of eleven bytes and more"));
    let sent = stage.pass(seconds(30));
    let codes: Vec<Code> = sent.iter().map(|(_, said)| said.code).collect();
    assert_eq!(codes, [Code::EMPTY, Code::GATEWAY_TIMEOUT]);
    let request = stage.publish().request;
    stage.server.answer(stage.now, request, Answer::Accept);
    assert_eq!(stage.sent(), []);
    let statistics = stage.server.statistics();
    assert_eq!((statistics.unanswered, statistics.open, statistics.held_bytes), (1, 0, 0));
}

#[test]
fn messages_that_mean_nothing_are_rejected_or_ignored() {
    let mut stage = Stage::new();
    let ping = encode(Confirmable, Code::EMPTY, 77, b"", &[], b"");
    assert!(stage.say(PEER, &ping)[0].is_empty_of(Reset, 77), "4.3, a ping");
    let response = encode(Confirmable, Code::CONTENT, 78, b"t", &[], b"x");
    assert!(stage.say(PEER, &response)[0].is_empty_of(Reset, 78), "4.2, a response to nothing");
    for (note, bytes) in [
        ("4.3, a response to nothing", encode(NonConfirmable, Code::CONTENT, 1, b"", &[], b"")),
        (
            "4.2, an acknowledgement of nothing",
            encode(Acknowledgement, Code::EMPTY, 1, b"", &[], b""),
        ),
        ("4.2, a reset of nothing", encode(Reset, Code::EMPTY, 1, b"", &[], b"")),
        ("3, version 2", Bytes::from_static(b"\x80\x01\0\x01")),
        ("3, three bytes", Bytes::from_static(b"\x40\x01\0")),
        ("4.3, malformed", Bytes::from_static(b"\x50\x01\0\x01\xff")),
        ("4.2, a malformed acknowledgement", Bytes::from_static(b"\x60\x45\0\x01\xff")),
    ] {
        assert_eq!(stage.say(PEER, &bytes), [], "{note}");
    }
    let malformed = Bytes::from_static(b"\x40\x01\x12\x34\xff");
    let error = stage.server.handle(stage.now, PEER, &malformed).unwrap_err();
    assert_eq!(error, DecodeError::NoPayload);
    assert!(stage.one().is_empty_of(Reset, 0x1234), "4.2, a malformed confirmable message");
    assert_eq!(stage.events(), []);
    assert_eq!(stage.server.statistics().peers, 0, "nothing is kept of them");
}

#[test]
fn responses_that_are_not_wanted_are_left_out() {
    for (value, answer, expected, note) in [
        (2_u8, Answer::Accept, Code::EMPTY, "RFC 7967, 2.xx"),
        (2, Answer::Refuse, Code::FORBIDDEN, "only 2.xx"),
        (8, Answer::Refuse, Code::EMPTY, "4.xx"),
        (26, Answer::Fail, Code::EMPTY, "all"),
        (0, Answer::Accept, Code::CHANGED, "all are wanted"),
    ] {
        let options: &[(OptionNumber, &[u8])] =
            &[(PATH, b"a"), (OptionNumber::NO_RESPONSE, &[value])];
        for message_type in [Confirmable, NonConfirmable] {
            let mut stage = Stage::new();
            stage.say(PEER, &encode(message_type, Code::POST, 1, b"t", options, b"1"));
            let publish = stage.publish();
            stage.server.answer(stage.now, publish.request, answer.clone());
            let codes: Vec<Code> = stage.sent().iter().map(|said| said.code).collect();
            let expected = match (message_type, expected) {
                (NonConfirmable, Code::EMPTY) => vec![],
                (_, code) => vec![code],
            };
            assert_eq!(codes, expected, "{note}");
        }
    }
}

#[test]
fn a_value_is_given_as_what_is_accepted() {
    let json = ContentFormat::JSON;
    for (format, accept, value, expected, note) in [
        (Some(json), None, "{}", Some(50), "its format"),
        (Some(json), Some(json), "{}", Some(50), "the same"),
        (Some(json), Some(ContentFormat::CBOR), "{}", None, "4.06"),
        (None, None, "x", None, "nobody knows"),
        (None, Some(ContentFormat::TEXT), "x", Some(0), "UTF-8 is text"),
        (None, Some(ContentFormat::OCTET_STREAM), "x", Some(42), "all are bytes"),
        (None, Some(json), "{}", None, "4.06"),
    ] {
        let mut stage = Stage::new();
        let value_of = accept.map(|accept| accept.0.to_be_bytes());
        let mut options: Vec<(OptionNumber, &[u8])> = vec![(PATH, b"a")];
        options.extend(value_of.as_ref().map(|value| (OptionNumber::ACCEPT, &value[..])));
        stage.say(PEER, &encode(Confirmable, Code::GET, 1, b"t", &options, b""));
        let read = stage.read();
        let content = Representation { content_format: format, ..representation(value) };
        stage.server.answer(stage.now, read.request, Answer::Content(content));
        let reply = stage.one();
        assert_eq!(reply.option(OptionNumber::CONTENT_FORMAT), expected, "{note}");
        assert_eq!(reply.code == Code::NOT_ACCEPTABLE, note == "4.06", "{note}");
    }
}

#[test]
fn resources_can_be_discovered() {
    let link = |path: &str, word: &str| Link {
        path: path.to_owned(),
        resource_type: Some(word.to_owned()),
        is_observable: true,
        ..Link::default()
    };
    let links = vec![link("plant/1", "temperature"), link("plant/2", "door")];
    let mut stage = Stage::with(|config| config.links = links);
    let options: &[(OptionNumber, &[u8])] =
        &[(PATH, b".well-known"), (PATH, b"core"), (OptionNumber::URI_QUERY, b"rt=door")];
    let replies = stage.say(PEER, &encode(Confirmable, Code::GET, 1, b"t", options, b""));
    assert_eq!(replies[0].payload, b"</plant/2>;rt=\"door\";obs");
    assert_eq!(replies[0].option(OptionNumber::CONTENT_FORMAT), Some(40));
    assert_eq!(stage.events(), []);
}
