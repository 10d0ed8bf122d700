//! Datagrams that name their topic: a topic, the end of a line, and a payload of any bytes.

/// The topic of a datagram, and its payload; none without the end of a line.
#[inline]
pub fn named(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(b'\n', bytes)?;
    let (topic, payload) = (&bytes[..end], &bytes[end + 1..]);
    Some((topic.strip_suffix(b"\r").unwrap_or(topic), payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_topic() {
        for (datagram, expected) in [
            (&b"a/b\nx\ny"[..], Some((&b"a/b"[..], &b"x\ny"[..]))),
            (b"a/b\r\n", Some((b"a/b", b""))),
            (b"\nx", Some((b"", b"x"))),
            (b"a/b", None),
            (b"", None),
        ] {
            assert_eq!(named(datagram), expected);
        }
    }
}
