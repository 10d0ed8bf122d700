//! The header of the PROXY protocol, versions 1 and 2, by which a load balancer says whose connection it hands on
//! (haproxy's `proxy-protocol.txt`, 2020-03-05). It stands before all else, TLS included.
//!
//! Always true: no more than [`HEADER_BYTES_MAX`] bytes are waited for, a header that is not whole is refused as soon as what has
//! come of it cannot become one, and nothing behind it is looked at.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use tidegate_message::words::ProxyProtocol;

/// Longest header that is read: addresses, and what a balancer adds to them (TLVs, such as a certificate of its client).
pub const HEADER_BYTES_MAX: usize = 4 << 10;

/// The first bytes of every header of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The first bytes of every header of version 1.
const WORD: &[u8] = b"PROXY ";
/// Longest header of version 1, line end included (section 2.1).
const LINE_BYTES_MAX: usize = 107;
/// Signature, version and command, family and protocol, length.
const HEAD_BYTES: usize = 16;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes that it takes.
    pub bytes: usize,
    /// The connection's source.
    pub source: Source,
}

/// The source of a connection according to its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Of the balancer itself, such as a check of whether this server lives, or it does not know: the address that the
    /// connection comes from holds (`LOCAL`, `UNKNOWN`, `UNSPEC`).
    Connection,
    /// Of a client with that address.
    Client(SocketAddr),
    /// Of a client of a socket of the balancer's file system.
    Unix,
}

impl Header {
    /// The header at the front of `input`; none if it is not whole yet.
    ///
    /// # Errors
    /// [`HeaderError`] if these bytes begin no header that is accepted, whatever follows.
    pub fn decode(input: &[u8], accepted: ProxyProtocol) -> Result<Option<Self>, HeaderError> {
        let begins = |start: &[u8]| input.iter().zip(start).all(|(byte, known)| byte == known);
        if accepted != ProxyProtocol::V1 && begins(&SIGNATURE) {
            return decode_binary(input);
        }
        if accepted != ProxyProtocol::V2 && begins(WORD) {
            return decode_line(input);
        }
        Err(HeaderError::NoHeader)
    }
}

fn decode_line(input: &[u8]) -> Result<Option<Header>, HeaderError> {
    let line = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = line.windows(2).position(|two| two == b"\r\n") else {
        return if line.len() < LINE_BYTES_MAX { Ok(None) } else { Err(HeaderError::Line) };
    };
    let source = source_of_line(&line[WORD.len()..end]).ok_or(HeaderError::Line)?;
    Ok(Some(Header { bytes: end + 2, source }))
}

/// The text after `PROXY `: the family, both addresses and both ports, each behind one space.
fn source_of_line(line: &[u8]) -> Option<Source> {
    let line = str::from_utf8(line).ok()?;
    // The rest of the line is to be ignored.
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Some(Source::Connection);
    }
    let parts: Vec<&str> = line.split(' ').collect();
    let [family, source, destination, source_port, destination_port] = parts[..] else {
        return None;
    };
    let address = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::from),
            "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::from),
            _ => None,
        }
    };
    // Without signs and leading zeros (section 2.1).
    let port = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'));
        is_plain.then(|| text.parse::<u16>().ok()).flatten()
    };
    address(destination)?;
    port(destination_port)?;
    Some(Source::Client(SocketAddr::new(address(source)?, port(source_port)?)))
}

fn decode_binary(input: &[u8]) -> Result<Option<Header>, HeaderError> {
    // As soon as it is known, so that a client that means something else is not waited for.
    if let Some(version) = input.get(12)
        && !matches!(version, 0x20 | 0x21)
    {
        return Err(HeaderError::Version { found: *version });
    }
    if let Some(family) = input.get(13)
        && (family >> 4 > 3 || family & 0x0f > 2)
    {
        return Err(HeaderError::Family { found: *family });
    }
    let Some((head, rest)) = input.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    let bytes = HEAD_BYTES + length;
    if bytes > HEADER_BYTES_MAX {
        return Err(HeaderError::TooLong { bytes });
    }
    let (command, family) = (head[12] & 0x0f, head[13]);
    let least = match family >> 4 {
        1 => 12,
        2 => 36,
        3 => 216,
        _ => 0,
    };
    // Of a connection of the balancer itself nothing is looked at (section 2.2).
    if command == 1 && length < least {
        return Err(HeaderError::Short { bytes: length, least });
    }
    let Some(addresses) = rest.get(..length) else { return Ok(None) };
    let source = match (command, family) {
        (1, 0x11) => Source::Client(SocketAddr::new(
            <[u8; 4]>::try_from(&addresses[..4]).expect("12 bytes are there").into(),
            u16::from_be_bytes([addresses[8], addresses[9]]),
        )),
        (1, 0x21) => Source::Client(SocketAddr::new(
            <[u8; 16]>::try_from(&addresses[..16]).expect("36 bytes are there").into(),
            u16::from_be_bytes([addresses[32], addresses[33]]),
        )),
        (1, 0x31) => Source::Unix,
        // Its own, one of datagrams, or one that is not known.
        _ => Source::Connection,
    };
    Ok(Some(Header { bytes, source }))
}

/// Why bytes begin no header of the PROXY protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// They begin something else.
    #[error(
        "the connection does not begin with a header of the PROXY protocol of the version that the listener wants"
    )]
    NoHeader,
    /// A line of version 1 that is wrong.
    #[error(
        "the line of the PROXY protocol is not PROXY, then UNKNOWN or TCP4 or TCP6 with two addresses and two ports, in {LINE_BYTES_MAX} bytes"
    )]
    Line,
    /// Another version than 2, or a command that there is not.
    #[error(
        "the binary header of the PROXY protocol has version and command {found:#04x}; 0x20 and 0x21 are known"
    )]
    Version {
        /// That byte.
        found: u8,
    },
    /// A family of addresses or a transport that there is not.
    #[error("the binary header of the PROXY protocol has family and transport {found:#04x}")]
    Family {
        /// That byte.
        found: u8,
    },
    /// It is longer than any that is read.
    #[error(
        "the header of the PROXY protocol has {bytes} bytes; at most {HEADER_BYTES_MAX} are read"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Its addresses need more bytes than it has.
    #[error(
        "the header of the PROXY protocol has {bytes} bytes for addresses; its family needs {least}"
    )]
    Short {
        /// Bytes found.
        bytes: usize,
        /// Bytes needed.
        least: usize,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn binary(command: u8, family: u8, length: u16, addresses: &[u8]) -> Vec<u8> {
        let head = [&SIGNATURE[..], &[command, family], &length.to_be_bytes()].concat();
        [&head, addresses].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x07, 0x5b];

    #[test]
    fn lines_are_read() {
        let client = |text: &str| Ok(Some(Source::Client(text.parse().unwrap())));
        for (line, expected) in [
            ("PROXY TCP4 192.0.2.1 198.51.100.2 56324 1883\r\n", client("192.0.2.1:56324")),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 0 65535\r\nrest", client("192.0.2.1:0")),
            ("PROXY TCP6 2001:db8::1 ::1 56324 1883\r\n", client("[2001:db8::1]:56324")),
            ("PROXY UNKNOWN\r\n", Ok(Some(Source::Connection))),
            ("PROXY UNKNOWN ffff::1 what ever 1\r\n", Ok(Some(Source::Connection))),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 56324 1883", Ok(None)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 56324 1883\r", Ok(None)),
            ("P", Ok(None)),
            ("", Ok(None)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 56324 1883\n\r\n", Err(HeaderError::Line)),
            ("PROXY TCP4  192.0.2.1 198.51.100.2 56324 1883\r\n", Err(HeaderError::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 56324\r\n", Err(HeaderError::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 56324 65536\r\n", Err(HeaderError::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 056324 1883\r\n", Err(HeaderError::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 +5632 1883\r\n", Err(HeaderError::Line)),
            ("PROXY TCP4 192.0.2.1 2001:db8::1 56324 1883\r\n", Err(HeaderError::Line)),
            ("PROXY TCP4 2001:db8::1 2001:db8::1 56324 1883\r\n", Err(HeaderError::Line)),
            ("PROXY TCP6 192.0.2.1 198.51.100.2 56324 1883\r\n", Err(HeaderError::Line)),
            ("PROXY UDP4 192.0.2.1 198.51.100.2 56324 1883\r\n", Err(HeaderError::Line)),
            ("PROXY UNKNOWNX\r\n", Err(HeaderError::Line)),
            ("PROXY \r\n", Err(HeaderError::Line)),
            ("proxy UNKNOWN\r\n", Err(HeaderError::NoHeader)),
            ("PROXX", Err(HeaderError::NoHeader)),
            ("\x10\x10", Err(HeaderError::NoHeader)),
        ] {
            for accepted in [ProxyProtocol::V1, ProxyProtocol::Any] {
                let found = Header::decode(line.as_bytes(), accepted);
                let found = found.map(|header| header.map(|header| header.source));
                assert_eq!(found, expected, "{line:?}");
            }
        }
        let long = format!("PROXY UNKNOWN {}", "x".repeat(LINE_BYTES_MAX));
        assert_eq!(Header::decode(&long.as_bytes()[..106], ProxyProtocol::V1), Ok(None));
        assert_eq!(
            Header::decode(&long.as_bytes()[..107], ProxyProtocol::V1),
            Err(HeaderError::Line)
        );
        let line = b"PROXY UNKNOWN\r\n";
        assert_eq!(Header::decode(line, ProxyProtocol::V2), Err(HeaderError::NoHeader));
        assert_eq!(Header::decode(line, ProxyProtocol::V1).unwrap().unwrap().bytes, line.len());
    }

    #[test]
    fn binary_headers_are_read() {
        let mut v6 = [0; 36];
        v6[..16].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        v6[32..34].copy_from_slice(&7u16.to_be_bytes());
        let client = |text: &str| Ok(Some(Source::Client(text.parse().unwrap())));
        let own = Ok(Some(Source::Connection));
        let with_more = [&V4[..], &[0x04, 0, 1, 0]].concat();
        for (input, expected) in [
            (binary(0x21, 0x11, 12, &V4), client("192.0.2.1:56324")),
            (binary(0x21, 0x11, 16, &with_more), client("192.0.2.1:56324")),
            (binary(0x21, 0x21, 36, &v6), client("[::1]:7")),
            (binary(0x21, 0x31, 216, &[0; 216]), Ok(Some(Source::Unix))),
            (binary(0x20, 0, 0, &[]), own.clone()),
            (binary(0x20, 0x11, 0, &[]), own.clone()),
            (binary(0x20, 0x11, 12, &V4), own.clone()),
            (binary(0x21, 0, 3, &[1, 2, 3]), own.clone()),
            (binary(0x21, 0x12, 12, &V4), own),
            (binary(0x21, 0x11, 12, &V4[..11]), Ok(None)),
            (binary(0x21, 0x11, 11, &V4[..11]), Err(HeaderError::Short { bytes: 11, least: 12 })),
            (binary(0x21, 0x21, 35, &[]), Err(HeaderError::Short { bytes: 35, least: 36 })),
            (binary(0x21, 0x31, 12, &[]), Err(HeaderError::Short { bytes: 12, least: 216 })),
            (binary(0x11, 0x11, 12, &V4), Err(HeaderError::Version { found: 0x11 })),
            (binary(0x22, 0x11, 12, &V4), Err(HeaderError::Version { found: 0x22 })),
            (binary(0x21, 0x41, 12, &V4), Err(HeaderError::Family { found: 0x41 })),
            (binary(0x21, 0x13, 12, &V4), Err(HeaderError::Family { found: 0x13 })),
            (binary(0x21, 0x11, 4081, &[]), Err(HeaderError::TooLong { bytes: 4097 })),
            (binary(0x21, 0x11, 4080, &[]), Ok(None)),
        ] {
            for accepted in [ProxyProtocol::V2, ProxyProtocol::Any] {
                let found = Header::decode(&input, accepted);
                let found = found.map(|header| header.map(|header| header.source));
                assert_eq!(found, expected, "{input:02x?}");
            }
            assert_eq!(Header::decode(&input, ProxyProtocol::V1), Err(HeaderError::NoHeader));
        }
    }

    proptest! {
        #[test]
        fn a_header_is_the_same_however_it_is_cut(
            which in 0..4usize,
            wrong in 0..64usize,
            byte: u8,
            rest in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut input = match which {
                0 => b"PROXY TCP6 2001:db8::1 ::1 56324 1883\r\n".to_vec(),
                1 => b"PROXY UNKNOWN\r\n".to_vec(),
                2 => binary(0x21, 0x11, 12, &V4),
                _ => binary(0x21, 0x21, 40, &[7; 40]),
            };
            if let Some(at) = input.get_mut(wrong) {
                *at = byte;
            }
            input.extend(rest);
            let whole = Header::decode(&input, ProxyProtocol::Any);
            let mut first = None;
            for length in 0..=input.len() {
                match Header::decode(&input[..length], ProxyProtocol::Any) {
                    Ok(None) => {}
                    found => {
                        first = Some(found);
                        break;
                    }
                }
            }
            let found = first.unwrap_or(Ok(None));
            if let (Ok(Some(one)), Ok(Some(other))) = (&found, &whole) {
                prop_assert_eq!(one, other);
                prop_assert!(one.bytes <= input.len());
            } else {
                prop_assert_eq!(found.is_err(), whole.is_err(), "{:?} {:?}", found, whole);
                prop_assert_eq!(found.is_ok_and(|header| header.is_some()), whole.is_ok_and(|header| header.is_some()));
            }
        }
    }
}
