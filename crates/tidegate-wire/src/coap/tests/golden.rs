//! Messages and their bytes: the exchanges of RFC 7252, appendix A, and of RFC 7641 and RFC 7959, written out by hand.

use super::*;

/// `40 01 7d34 | 'text'` as bytes: texts between quotes, all else in hexadecimal.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            bytes.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<char> = part.chars().filter(|c| !c.is_whitespace()).collect();
        for pair in digits.chunks(2) {
            bytes.push(u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap());
        }
    }
    bytes
}

#[test]
fn messages_have_these_bytes() {
    use MessageType::{Acknowledgement as Ack, Confirmable as Con, NonConfirmable as Non, Reset};
    const PATH: OptionNumber = OptionNumber::URI_PATH;
    let path: &[(OptionNumber, &[u8])] = &[(PATH, b"temperature")];
    let none: &[(OptionNumber, &[u8])] = &[];
    let warm = "22.3 C".as_bytes();
    let observe: &[(OptionNumber, &[u8])] = &[(OptionNumber::OBSERVE, b""), (PATH, b"temperature")];
    let notified: &[(OptionNumber, &[u8])] =
        &[(OptionNumber::OBSERVE, &[12]), (OptionNumber::MAX_AGE, &[15])];
    let host: &[(OptionNumber, &[u8])] = &[
        (OptionNumber::URI_HOST, b"example.net"),
        (OptionNumber::URI_PORT, &[0x16, 0x33]),
        (PATH, b".well-known"),
        (PATH, b"core"),
        (OptionNumber::URI_QUERY, b"rt=a"),
    ];
    let block: &[(OptionNumber, &[u8])] = &[
        (PATH, b"options"),
        (OptionNumber::CONTENT_FORMAT, &[110]),
        (OptionNumber::BLOCK1, &[0x1b]),
    ];
    let wide: &[(OptionNumber, &[u8])] = &[
        (OptionNumber::SIZE1, &[1, 0]),
        (OptionNumber::NO_RESPONSE, &[26]),
        (OptionNumber(2000), &[9; 14]),
    ];
    for (note, text, message_type, code, id, token, options, payload) in [
        ("figure 16", "40 01 7d34 bb 'temperature'", Con, Code::GET, 0x7d34, "", path, &b""[..]),
        ("figure 16", "60 45 7d34 ff '22.3 C'", Ack, Code::CONTENT, 0x7d34, "", none, warm),
        ("figure 17", "41 01 7d35 20 bb 'temperature'", Con, Code::GET, 0x7d35, "20", path, b""),
        ("figure 17", "61 45 7d35 20 ff '22.3 C'", Ack, Code::CONTENT, 0x7d35, "20", none, warm),
        ("figure 20", "41 01 7d38 53 bb 'temperature'", Con, Code::GET, 0x7d38, "53", path, b""),
        ("figure 20", "60 00 7d38", Ack, Code::EMPTY, 0x7d38, "", none, b""),
        ("figure 20", "41 45 ad7b 53 ff '22.3 C'", Con, Code::CONTENT, 0xad7b, "53", none, warm),
        ("figure 20", "60 00 ad7b", Ack, Code::EMPTY, 0xad7b, "", none, b""),
        ("figure 22", "51 01 7d40 75 bb 'temperature'", Non, Code::GET, 0x7d40, "75", path, b""),
        ("figure 22", "51 45 ad7c 75 ff '22.3 C'", Non, Code::CONTENT, 0xad7c, "75", none, warm),
        ("4.2, a reset", "70 00 7d34", Reset, Code::EMPTY, 0x7d34, "", none, b""),
        ("4.3, a ping", "40 00 0001", Con, Code::EMPTY, 1, "", none, b""),
        (
            "RFC 7641, figure 1",
            "41 01 0001 4a 60 5b 'temperature'",
            Con,
            Code::GET,
            1,
            "4a",
            observe,
            b"",
        ),
        (
            "RFC 7641, a notification",
            "51 45 0002 4a 61 0c 81 0f ff '22.3 C'",
            Non,
            Code::CONTENT,
            2,
            "4a",
            notified,
            warm,
        ),
        (
            "5.10.1",
            "40 01 0003 3b 'example.net' 42 1633 4b '.well-known' 04 'core' 44 'rt=a'",
            Con,
            Code::GET,
            3,
            "",
            host,
            b"",
        ),
        (
            "RFC 7959, a block of 128 bytes",
            "40 02 0004 b7 'options' 11 6e d1 02 1b ff '{}'",
            Con,
            Code::POST,
            4,
            "",
            block,
            b"{}",
        ),
        (
            "deltas of one and two bytes, a length of one",
            "40 45 0005 d2 2f 0100 d1 b9 1a ed 05c1 01 09090909 09090909 09090909 0909",
            Con,
            Code::CONTENT,
            5,
            "",
            wide,
            b"",
        ),
    ] {
        let golden = bytes(text);
        let token = bytes(token);
        let encoded = encode(message_type, code, id, &token, options, payload);
        assert_eq!(encoded, golden, "{note}: {encoded:02x?}");
        let said = Said::decode(&golden);
        let options = options.iter().map(|(it, value)| (it.0, value.to_vec())).collect();
        let payload = payload.to_vec();
        let expected = Said { message_type, code, id, token, options, payload };
        assert_eq!(said, expected, "{note}");
    }
}
