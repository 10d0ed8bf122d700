//! Messages that are none, by clause; round trips.

use proptest::{collection::vec, prelude::*};

use super::*;

#[test]
fn bytes_that_are_no_message_are_refused() {
    let long = [&[0x40, 1, 0, 1][..], &[0x00; OPTIONS_MAX + 1]].concat();
    for (note, bytes, expected) in [
        ("3, no header", &b"\x40\x01\x00"[..], "message ends within header (RFC 7252, 3)"),
        ("3, version 2", b"\x80\x01\0\x01", "version 2 is not 1 (RFC 7252, 3)"),
        (
            "3, token length 9",
            b"\x49\x01\0\x01123456789",
            "token of 9 bytes exceeds the limit of 8 (RFC 7252, 3)",
        ),
        ("3, token cut", b"\x44\x01\0\x01123", "message ends within token (RFC 7252, 3)"),
        (
            "4.1, empty with a token",
            b"\x41\0\0\x01t",
            "empty message has 1 bytes after its message id (RFC 7252, 4.1)",
        ),
        (
            "4.1, empty with a payload",
            b"\x60\0\0\x01\xffx",
            "empty message has 2 bytes after its message id (RFC 7252, 4.1)",
        ),
        (
            "4.2, class 1",
            b"\x40\x21\0\x01",
            "Confirmable message has code 1.01 (RFC 7252, 4.2 and 4.3, table 1)",
        ),
        (
            "4.2, class 6",
            b"\x50\xc0\0\x01",
            "NonConfirmable message has code 6.00 (RFC 7252, 4.2 and 4.3, table 1)",
        ),
        (
            "4.2, class 7",
            b"\x60\xe1\0\x01",
            "Acknowledgement message has code 7.01 (RFC 7252, 4.2 and 4.3, table 1)",
        ),
        (
            "table 1, a request acknowledges",
            b"\x60\x01\0\x01",
            "Acknowledgement message has code 0.01 (RFC 7252, 4.2 and 4.3, table 1)",
        ),
        (
            "table 1, a reset with a code",
            b"\x70\x45\0\x01",
            "Reset message has code 2.05 (RFC 7252, 4.2 and 4.3, table 1)",
        ),
        (
            "table 1, an empty one without an answer",
            b"\x50\0\0\x01",
            "NonConfirmable message has code 0.00 (RFC 7252, 4.2 and 4.3, table 1)",
        ),
        (
            "3.1, delta 15",
            b"\x40\x01\0\x01\xf0",
            "option delta after option 0 is 15, which is reserved (RFC 7252, 3.1)",
        ),
        (
            "3.1, length 15",
            b"\x40\x01\0\x01\xb1a\x0f",
            "option length after option 11 is 15, which is reserved (RFC 7252, 3.1)",
        ),
        (
            "3.1, delta 13 cut",
            b"\x40\x01\0\x01\xd0",
            "message ends within option delta (RFC 7252, 3)",
        ),
        (
            "3.1, delta 14 cut",
            b"\x40\x01\0\x01\xe0\0",
            "message ends within option delta (RFC 7252, 3)",
        ),
        (
            "3.1, length 13 cut",
            b"\x40\x01\0\x01\xbd",
            "message ends within option length (RFC 7252, 3)",
        ),
        (
            "3.1, value cut",
            b"\x40\x01\0\x01\xb5temp",
            "option 11 of 5 bytes goes beyond the end (RFC 7252, 3.1)",
        ),
        (
            "3.1, number 65804",
            b"\x40\x01\0\x01\xe0\xff\xff",
            "option number 65804 exceeds the limit of 65535 (RFC 7252, 3.1)",
        ),
        (
            "3, marker alone",
            b"\x40\x01\0\x01\xff",
            "payload marker without a payload (RFC 7252, 3)",
        ),
        ("a bound of ours", &long, "message has more than 128 options"),
    ] {
        let error = Message::decode(bytes).expect_err(note);
        assert_eq!(error.to_string(), expected, "{note}");
    }
    let large = vec![0x40; DATAGRAM_BYTES_MAX + 1];
    let error = Message::decode(&large).unwrap_err();
    assert_eq!(error.to_string(), "message of 65508 bytes exceeds the limit of 65507");
}

#[test]
fn bytes_that_look_odd_are_messages() {
    for (note, bytes) in [
        ("the highest option number", &b"\x40\x01\0\x01\xe0\xfe\xf2"[..]),
        ("options of no length", b"\x40\x01\0\x01\0\0\0"),
        ("an unknown option", b"\x40\x01\0\x01\xd1\xff\x01"),
        ("class 3 is of responses", b"\x60\x60\0\x01"),
        ("a payload of markers", b"\x40\x02\0\x01\xff\xff\xff"),
        ("an empty path level", b"\x40\x01\0\x01\xb0"),
    ] {
        let message = Message::decode(bytes).unwrap_or_else(|error| panic!("{note}: {error}"));
        let mut again = Vec::new();
        message.encode(&mut again).unwrap();
        assert_eq!(again, bytes, "{note}");
    }
}

#[test]
fn messages_that_cannot_be_said_are_refused() {
    let mut options = OptionList::new();
    let error = |result: Result<(), EncodeError>| result.unwrap_err().to_string();
    options.push(OptionNumber::URI_PATH, b"a").unwrap();
    assert_eq!(
        error(options.push(OptionNumber::URI_HOST, b"a")),
        "option 3 comes after option 11 (RFC 7252, 3.1)"
    );
    assert_eq!(
        error(options.push(OptionNumber::URI_PATH, &[b'a'; 256])),
        "option 11 of 256 bytes exceeds the limit of 255 (RFC 7252, 5.10)"
    );
    assert_eq!(
        error(options.push(OptionNumber(2049), &[0; 65_805])),
        "option 2049 of 65805 bytes exceeds the limit of 65804 (RFC 7252, 5.10)"
    );
    for _ in 1..OPTIONS_MAX {
        options.push(OptionNumber::URI_PATH, b"").unwrap();
    }
    assert_eq!(
        error(options.push(OptionNumber::URI_PATH, b"")),
        "message has more than 128 options"
    );
    let empty = Message::empty(MessageType::Acknowledgement, 1);
    let mut out = vec![1];
    for (message, expected) in [
        (
            Message { payload: b"x", ..empty },
            "empty message has a token, options or a payload (RFC 7252, 4.1)",
        ),
        (
            Message { code: Code::GET, ..empty },
            "Acknowledgement message cannot have code 0.01 (RFC 7252, 4.2 and 4.3, table 1)",
        ),
        (
            Message { code: Code::CONTENT, payload: &[0; DATAGRAM_BYTES_MAX], ..empty },
            "message of 65512 bytes exceeds the limit of 65507",
        ),
    ] {
        assert_eq!(error(message.encode(&mut out)), expected);
        assert_eq!(out, [1], "nothing is appended");
    }
}

#[test]
fn codes_and_options_say_what_they_are() {
    assert_eq!(Code::CONTENT.to_string(), "2.05");
    assert_eq!(Code::CONTINUE.to_string(), "2.31");
    assert_eq!(Code::new(4, 13), Code::REQUEST_ENTITY_TOO_LARGE);
    for (number, critical, forwarded) in [
        (OptionNumber::URI_PATH, true, false),
        (OptionNumber::OBSERVE, false, false),
        (OptionNumber::CONTENT_FORMAT, false, true),
        (OptionNumber::BLOCK1, true, false),
        (OptionNumber::SIZE1, false, true),
        (OptionNumber::IF_MATCH, true, true),
    ] {
        assert_eq!(number.is_critical(), critical, "{number:?}");
        assert_eq!(!number.is_unsafe(), forwarded, "{number:?}");
    }
    for (value, block) in [
        (0, Block { number: 0, more: false, size_exponent: 0 }),
        (0x1b, Block { number: 1, more: true, size_exponent: 3 }),
        (0xff_fffe, Block { number: Block::NUMBER_MAX, more: true, size_exponent: 6 }),
    ] {
        assert_eq!(Block::from_value(value), Ok(block));
        assert_eq!(block.value(), value);
    }
    assert_eq!(Block::from_value(7), Err(BlockError));
}

fn any_type() -> impl Strategy<Value = MessageType> {
    use MessageType::{Acknowledgement, Confirmable, NonConfirmable, Reset};
    prop::sample::select(vec![Confirmable, NonConfirmable, Acknowledgement, Reset])
}

fn any_options() -> impl Strategy<Value = Vec<(u16, Vec<u8>)>> {
    let number = prop_oneof![4 => 0_u16..64, 1 => 0_u16..600, 1 => any::<u16>()];
    let value = prop_oneof![6 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 250..300)];
    vec((number, value), 0..12).prop_map(|mut options| {
        options.sort();
        options
    })
}

proptest! {
    #[test]
    fn encoded_messages_decode(
        message_type in any_type(),
        code in prop_oneof![Just(0_u8), 1_u8..32, 0x40_u8..0xc0],
        id in any::<u16>(),
        token in vec(any::<u8>(), 0..=8),
        options in any_options(),
        payload in vec(any::<u8>(), 0..40),
    ) {
        let mut list = OptionList::new();
        let mut pushed = Vec::new();
        for (number, value) in options {
            // A definition may be too narrow for the value.
            if list.push(OptionNumber(number), &value).is_ok() {
                pushed.push((OptionNumber(number), value));
            }
        }
        let message = Message {
            message_type,
            code: Code(code),
            id,
            token: Token::new(&token).unwrap(),
            options: list.as_options(),
            payload: &payload,
        };
        let mut bytes = Vec::new();
        if message.encode(&mut bytes).is_ok() {
            let decoded = Message::decode(&bytes).unwrap();
            prop_assert_eq!(decoded, message);
            let found: Vec<_> = decoded.options.iter().map(|(it, value)| (it, value.to_vec())).collect();
            prop_assert_eq!(found, pushed);
        } else {
            prop_assert!(bytes.is_empty());
        }
    }

    #[test]
    fn decoded_messages_encode_to_the_same_bytes(
        head in (any_type(), 0_u8..=8, prop_oneof![0_u8..8, 0x40_u8..0xa6]),
        rest in vec(prop_oneof![Just(0xff_u8), 0_u8..0x60, any::<u8>()], 2..40),
    ) {
        let (message_type, token_bytes, code) = head;
        let first = 1 << 6 | (message_type as u8) << 4 | token_bytes;
        let bytes = [&[first, code][..], &rest].concat();
        if let Ok(message) = Message::decode(&bytes) {
            let mut again = Vec::new();
            message.encode(&mut again).unwrap();
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Message::decode(&bytes);
    }
}
