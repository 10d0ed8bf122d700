//! Pictures of a camera that has stopped without a word: the same one again and again.
//!
//! No sensor gives the same picture twice, for its noise. A picture is the same where all of it is that is decoded: what a camera
//! writes into the segments of applications and comments, such as the time, does not make it another one.

use std::time::Duration;

use bytes::Bytes;
use tidegate_message::Instant;

/// Looks whether pictures change.
#[derive(Debug)]
pub(super) struct Frozen {
    after: Option<Duration>,
    /// The last picture that was another one, and when it came.
    last: Option<(Bytes, Instant)>,
}

impl Frozen {
    /// Pictures that stay the same for so long are those of a frozen camera; none are without a time.
    pub(super) const fn after(after: Option<Duration>) -> Self {
        Self { after, last: None }
    }

    /// Takes the picture that came at `now`. Says for how long it has been the same, if that is too long.
    pub(super) fn holds(&mut self, now: Instant, jpeg: &Bytes) -> Option<Duration> {
        let after = self.after?;
        match &self.last {
            Some((last, since)) if is_same(last, jpeg) => {
                Some(now.since(*since)).filter(|since| *since >= after)
            }
            _ => {
                self.last = Some((jpeg.clone(), now));
                None
            }
        }
    }
}

/// Whether two JPEG images are decoded to the same picture by the same bytes.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one == other || decoded(one).eq(decoded(other))
}

/// The parts of a JPEG image that tell its pixels: all segments but those of applications (APP0 to APP15) and comments, up to the first
/// scan, which ends them with all that follows (ITU-T T.81, section B.1.1).
fn decoded(jpeg: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = jpeg.get(2..).unwrap_or_default();
    std::iter::from_fn(move || {
        loop {
            let &[0xff, marker, high, low, ..] = rest else {
                // Not as it should be: all of it counts.
                return Some(std::mem::take(&mut rest)).filter(|rest| !rest.is_empty());
            };
            let length = 2 + usize::from(u16::from_be_bytes([high, low]));
            if marker == SCAN || length > rest.len() {
                return Some(std::mem::take(&mut rest));
            }
            let (segment, behind) = rest.split_at(length);
            rest = behind;
            if !matches!(marker, 0xe0..=0xef | 0xfe) {
                return Some(segment);
            }
        }
    })
}

/// Begins a scan.
const SCAN: u8 = 0xda;

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with that comment and that scan.
    fn jpeg(comment: &[u8], table: u8, scan: &[u8]) -> Bytes {
        let length = (comment.len() as u16 + 2).to_be_bytes();
        let parts: [&[u8]; 7] = [
            b"\xff\xd8\xff\xfe",
            &length,
            comment,
            &[0xff, 0xdb, 0, 3, table],
            b"\xff\xda\0\x08\x01\x01\0\0\x3f\0",
            scan,
            b"\xff\xd9",
        ];
        parts.concat().into()
    }

    #[test]
    fn the_same_picture_again_and_again_is_that_of_a_frozen_camera() {
        let mut frozen = Frozen::after(Some(Duration::from_secs(5)));
        let mut holds = |second: i64, jpeg: &Bytes| {
            frozen.holds(Instant::from_millis(second * 1_000), jpeg).map(|since| since.as_secs())
        };
        // Its clock runs on in a comment.
        let still = |second: i64| jpeg(second.to_string().as_bytes(), 1, b"\x12\x34");
        for second in 0..5 {
            assert_eq!(holds(second, &still(second)), None, "{second}");
        }
        assert_eq!(holds(5, &still(5)), Some(5));
        assert_eq!(holds(9, &still(9)), Some(9));
        assert_eq!(holds(10, &jpeg(b"10", 1, b"\x12\x35")), None, "another pixel");
        assert_eq!(holds(11, &still(11)), None, "it changes back");
        assert_eq!(holds(30, &jpeg(b"10", 2, b"\x12\x34")), None, "other pixels by another table");
        assert_eq!(holds(34, &jpeg(b"10", 2, b"\x12\x34")), None);
        assert_eq!(holds(35, &jpeg(b"10", 2, b"\x12\x34")), Some(5));
        let mut never = Frozen::after(None);
        for second in 0..1_000 {
            assert_eq!(never.holds(Instant::from_millis(second * 1_000), &still(0)), None);
        }
    }

    #[test]
    fn images_that_are_none_are_compared_whole() {
        for (one, other, same) in [
            (&b""[..], &b""[..], true),
            (b"\xff", b"\xff\xd8", true),
            (b"\xff\xd8abc", b"\xff\xd8abd", false),
            (b"\xff\xd8\xff\xe0\xff\xff1", b"\xff\xd8\xff\xe0\xff\xff2", false),
            (b"\xff\xd8\xff\xe0\0\x031x", b"\xff\xd8\xff\xe0\0\x032x", true),
        ] {
            assert_eq!(is_same(one, other), same, "{one:?} {other:?}");
        }
    }
}
