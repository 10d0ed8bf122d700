//! Payloads in blocks (RFC 7959).

use super::*;

use MessageType::Confirmable;

fn block(number: u32, more: bool, size_exponent: u8) -> u32 {
    Block { number, more, size_exponent }.value()
}

/// A part of a payload for the path `large`.
fn part(id: u16, block1: u32, size1: Option<u32>, payload: &[u8]) -> Bytes {
    let mut options = OptionList::new();
    options.push(OptionNumber::URI_PATH, b"large").unwrap();
    options.push_number(OptionNumber::CONTENT_FORMAT, 42).unwrap();
    options.push_number(OptionNumber::BLOCK1, block1).unwrap();
    if let Some(size1) = size1 {
        options.push_number(OptionNumber::SIZE1, size1).unwrap();
    }
    let mut out = Vec::new();
    let message = Message {
        message_type: Confirmable,
        code: Code::PUT,
        id,
        token: Token::new(b"t").unwrap(),
        options: options.as_options(),
        payload,
    };
    message.encode(&mut out).unwrap();
    out.into()
}

fn codes(replies: &[Said]) -> Vec<String> {
    replies.iter().map(|said| said.code.to_string()).collect()
}

#[test]
fn a_payload_in_blocks_is_handed_on_whole() {
    let payload: Vec<u8> = (0..100_u8).collect();
    let mut stage = Stage::new();
    for number in 0..3 {
        let bytes = &payload[32 * number..32 * (number + 1)];
        let datagram = part(number as u16, block(number as u32, true, 1), None, bytes);
        let replies = stage.say(PEER, &datagram);
        assert_eq!(codes(&replies), ["2.31"]);
        assert_eq!(replies[0].option(OptionNumber::BLOCK1), Some(block(number as u32, true, 1)));
        assert_eq!(stage.say(PEER, &datagram), replies, "a copy");
    }
    // The last but one again under another identifier, as a client may that has given it up and tries again.
    let again = part(9, block(2, true, 1), None, &payload[64..96]);
    assert_eq!(codes(&stage.say(PEER, &again)), ["2.31"]);
    assert_eq!(stage.say(PEER, &part(10, block(3, false, 1), None, &payload[96..])), []);
    let publish = stage.publish();
    assert_eq!((&publish.payload[..], publish.path.as_str()), (&payload[..], "large"));
    assert_eq!(publish.content_format, Some(ContentFormat::OCTET_STREAM));
    assert_eq!(stage.server.statistics().held_bytes, 100);
    stage.server.answer(stage.now, publish.request, Answer::Accept);
    let reply = stage.one();
    assert_eq!(reply.code, Code::CHANGED);
    assert_eq!(reply.option(OptionNumber::BLOCK1), Some(block(3, false, 1)));
    let statistics = stage.server.statistics();
    assert_eq!((statistics.held_bytes, statistics.abandoned), (0, 0));
    assert_eq!(stage.server.poll_timeout(), None);
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    let small = |config: &mut ServerConfig| config.payload_bytes_max = 100;
    for (note, parts, expected) in [
        ("2.9.2, the first is missing", &[(block(1, true, 1), None, 32)][..], "4.08"),
        (
            "2.9.2, one in between is missing",
            &[(block(0, true, 1), None, 32), (block(2, true, 1), None, 32)],
            "4.08",
        ),
        ("2.2, shorter than it says", &[(block(0, true, 1), None, 31)], "4.00"),
        ("2.2, longer than it says", &[(block(0, false, 1), None, 33)], "4.00"),
        ("2.9.3, too large as announced", &[(block(0, true, 1), Some(101), 32)], "4.13"),
        (
            "2.9.3, too large in the end",
            &[
                (block(0, true, 1), None, 32),
                (block(1, true, 1), None, 32),
                (block(2, true, 1), None, 32),
                (block(3, true, 1), None, 32),
            ],
            "4.13",
        ),
        ("far behind the end", &[(block(0xf_ffff, false, 6), None, 5)], "4.13"),
    ] {
        let mut stage = Stage::with(small);
        let mut last = Vec::new();
        for (id, (block1, size1, bytes)) in parts.iter().enumerate() {
            last = stage.say(PEER, &part(id as u16, *block1, *size1, &vec![id as u8; *bytes]));
        }
        assert_eq!(codes(&last), [expected], "{note}");
        let size1 = last[0].option(OptionNumber::SIZE1);
        assert_eq!(size1, (expected == "4.13").then_some(100), "{note}");
        assert_eq!(stage.events(), [], "{note}");
        assert_eq!(stage.server.statistics().held_bytes, 0, "{note}");
    }
    let mut stage = Stage::with(small);
    let replies = stage.say(PEER, &post(1, "large", &[0; 101]));
    assert_eq!(codes(&replies), ["4.13"]);
    assert_eq!(replies[0].option(OptionNumber::SIZE1), Some(100));
}

#[test]
fn a_first_block_begins_again() {
    let mut stage = Stage::new();
    stage.say(PEER, &part(1, block(0, true, 0), None, &[1; 16]));
    stage.say(PEER, &part(2, block(1, true, 0), None, &[1; 16]));
    stage.say(PEER, &part(3, block(0, true, 0), None, &[2; 16]));
    stage.say(PEER, &part(4, block(1, false, 0), None, &[3; 5]));
    let publish = stage.publish();
    assert_eq!(publish.payload, [&[2; 16][..], &[3; 5]].concat());
    assert_eq!(stage.server.statistics().abandoned, 1);
}

#[test]
fn blocks_are_waited_for_so_long_and_so_many() {
    let mut stage = Stage::with(|config| config.held_bytes_max = 4096);
    stage.say(PEER, &part(1, block(0, true, 6), None, &[1; 1024]));
    assert_eq!(stage.server.statistics().held_bytes, 1024);
    stage.pass(seconds(92));
    assert_eq!(stage.server.statistics().held_bytes, 1024);
    stage.pass(seconds(1));
    let statistics = stage.server.statistics();
    assert_eq!((statistics.held_bytes, statistics.abandoned), (0, 1));

    // All peers together: 4096 bytes, and not a byte more.
    let mut replies = Vec::new();
    for number in 0..6 {
        replies.extend(stage.say(peer(number), &part(1, block(0, true, 6), None, &[1; 1024])));
        assert!(stage.server.statistics().held_bytes <= 4096);
    }
    assert_eq!(codes(&replies), ["2.31", "2.31", "2.31", "2.31", "5.03", "5.03"]);
    assert_eq!(replies[5].option(OptionNumber::MAX_AGE), Some(5));
}

#[test]
fn a_large_value_is_read_in_blocks() {
    let value: String = (0..3000).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
    for (asked, steps) in [(None, 3), (Some(block(0, false, 6)), 3), (Some(block(0, false, 2)), 47)]
    {
        let mut stage = Stage::with(|config| config.validates_peers = false);
        let mut got = Vec::new();
        let mut next = asked;
        let mut etags = Vec::new();
        for step in 0.. {
            let mut options = OptionList::new();
            options.push(OptionNumber::URI_PATH, b"large").unwrap();
            if let Some(block) = next {
                options.push_number(OptionNumber::BLOCK2, block).unwrap();
            }
            let mut out = Vec::new();
            Message {
                message_type: Confirmable,
                code: Code::GET,
                id: step,
                token: Token::new(b"t").unwrap(),
                options: options.as_options(),
                payload: b"",
            }
            .encode(&mut out)
            .unwrap();
            stage.say(PEER, &out.into());
            let read = stage.read();
            let content = Answer::Content(representation(&value));
            stage.server.answer(stage.now, read.request, content);
            let reply = stage.one();
            assert_eq!(reply.code, Code::CONTENT);
            assert_eq!(reply.option(OptionNumber::SIZE2), Some(3000));
            etags.push(reply.option(OptionNumber::ETAG).unwrap());
            let found = Block::from_value(reply.option(OptionNumber::BLOCK2).unwrap()).unwrap();
            assert_eq!(found.offset(), got.len());
            got.extend_from_slice(&reply.payload);
            if !found.more {
                assert_eq!(step + 1, steps);
                break;
            }
            next = Some(block(found.number + 1, false, found.size_exponent));
        }
        assert_eq!(got, value.as_bytes());
        etags.dedup();
        assert_eq!(etags.len(), 1);
    }
}
