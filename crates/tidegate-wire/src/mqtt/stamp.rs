//! Stamps of retained messages, by which nodes that are one broker decide which value of a topic is the newer.
//!
//! A stamp is a user property of the message, [`RETAINED_PROPERTY`], and so it stays with the message in queues and journals and on the way
//! from node to node.

use std::fmt::{self, Display};

use tidegate_message::RETAINED_PROPERTY;

use super::{PublishProperties, put_user_property};

/// When and where a retained value was published. Of two of one topic the greater one is the newer, and equal ones are of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Milliseconds since 1970, and a counter in the last 16 bits; below 2^63.
    pub time: u64,
    /// The first bytes of the identifier of the node.
    pub node: u64,
}

/// A stamp as a message has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// The stamp.
    pub stamp: Stamp,
    /// Whether a node repeats what it retains, so that nothing is lost where a newer value is known.
    pub is_repeated: bool,
}

/// Stamps of a time from there on, in the year 6429, are not believed: nothing could be newer than the last of them.
const TIME_END: u64 = 1 << 63;
/// Digits of each of the two numbers.
const DIGITS: usize = 16;
/// How the property begins.
const HEAD: &[u8] = b"\x26\x00\x11tidegate-retained\x00\x21";
/// Bytes of the property.
pub const STAMP_BYTES: usize = HEAD.len() + 2 * DIGITS + 1;

impl Stamped {
    /// Of a message with those properties; none if it has none.
    pub fn of(forwarded: &[u8]) -> Option<Self> {
        let properties = PublishProperties { raw: forwarded, ..PublishProperties::NONE };
        let mut found = properties.user_properties().filter(|(name, _)| *name == RETAINED_PROPERTY);
        Self::parse(found.next()?.1)
    }

    fn parse(text: &str) -> Option<Self> {
        let (time, rest) = text.split_at_checked(DIGITS)?;
        let (mark, node) = rest.split_at_checked(1)?;
        let number = |digits: &str| {
            let is_it = digits.len() == DIGITS && digits.bytes().all(|it| it.is_ascii_hexdigit());
            is_it.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        let stamp = Stamp { time: number(time)?, node: number(node)? };
        let is_known = matches!(mark, "-" | "+") && stamp.time < TIME_END;
        is_known.then_some(Self { stamp, is_repeated: mark == "+" })
    }

    /// The properties of a message with this as its only stamp, behind the others.
    pub fn put(self, forwarded: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(forwarded.len() + STAMP_BYTES);
        PublishProperties { raw: forwarded, ..PublishProperties::NONE }
            .without(RETAINED_PROPERTY, &mut out);
        put_user_property(RETAINED_PROPERTY, &self.to_string(), &mut out).expect("a short text");
        out
    }
}

impl Display for Stamped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stamp: Stamp { time, node }, is_repeated } = self;
        let mark = if *is_repeated { '+' } else { '-' };
        write!(f, "{time:016x}{mark}{node:016x}")
    }
}

/// The properties of a retained message as a client is sent them: without the stamp that is the last of them.
#[inline]
pub fn unstamped(forwarded: &[u8]) -> &[u8] {
    let Some(rest) = forwarded.len().checked_sub(STAMP_BYTES) else { return forwarded };
    if !forwarded[rest..].starts_with(HEAD) {
        return forwarded;
    }
    // Those bytes may be within a property of a client.
    let properties = PublishProperties { raw: forwarded, ..PublishProperties::NONE };
    if properties.last().len() == STAMP_BYTES { &forwarded[..rest] } else { forwarded }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(time: u64, node: u64) -> Stamp {
        Stamp { time, node }
    }

    #[test]
    fn a_stamp_comes_back_from_among_other_properties_and_only_one_stays() {
        let mut others = Vec::new();
        put_user_property("a", "b", &mut others).unwrap();
        for is_repeated in [false, true] {
            let stamped = Stamped { stamp: stamp(0x1_2345, 0xff75_5e07), is_repeated };
            let put = stamped.put(&others);
            assert_eq!(put.len(), others.len() + STAMP_BYTES);
            assert_eq!((Stamped::of(&put), unstamped(&put)), (Some(stamped), &others[..]));
            // Another one takes its place, wherever it is.
            let mut more = put.clone();
            put_user_property("c", "d", &mut more).unwrap();
            assert_eq!((Stamped::of(&more), unstamped(&more)), (Some(stamped), &more[..]));
            let newer = Stamped { stamp: stamp(0x1_2346, 1), is_repeated: false };
            let put = newer.put(&more);
            assert_eq!(Stamped::of(&put), Some(newer));
            assert_eq!(put.len(), more.len());
        }
        assert_eq!((Stamped::of(&others), unstamped(&others)), (None, &others[..]));
        assert_eq!((Stamped::of(&[]), unstamped(&[])), (None, &[][..]));
    }

    #[test]
    fn texts_of_others_are_no_stamps() {
        for text in [
            "",
            "0000000000000001",
            "0000000000000001-000000000000000",
            "0000000000000001-00000000000000001",
            "0000000000000001*0000000000000001",
            "+000000000000001-0000000000000001",
            "000000000000000\u{fc}0000000000000000",
            "8000000000000000-0000000000000001", // from there on nothing could be newer
        ] {
            assert_eq!(Stamped::parse(text), None, "{text}");
        }
    }

    #[test]
    fn bytes_of_a_client_that_end_like_a_stamp_are_sent_as_they_are() {
        let stamped = Stamped { stamp: stamp(1, 1), is_repeated: false }.put(&[]);
        let count = stamped.len() as u16;
        let correlation = [&[9][..], &count.to_be_bytes(), &stamped].concat();
        assert_eq!(unstamped(&correlation), correlation);
    }
}
