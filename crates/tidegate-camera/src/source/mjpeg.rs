//! Cuts a stream of bytes into JPEG images.
//!
//! ```text
//!  garbage │ SOI  segment…  SOS  coded data  (segment… SOS coded data)  EOI │ headers │ SOI …
//!          └──────────────────── one image ─────────────────────────────────┘
//! ```
//!
//! Segments are walked by their lengths, so that a thumbnail inside one, or an end marker inside a comment, does not cut
//! the image. Only between a scan header and the next marker are bytes searched. Bytes between images (the headers of a
//! multipart stream, padding) are skipped and counted.
//!
//! As tolerant as libjpeg: bytes between segments are skipped, start markers that follow each other are one, and a missing end
//! marker is put there. In a stream, a start marker inside coded data may also mean that the sender was cut off. Once is such an
//! accident: the rest of the old image is lost, the new one is not. Twice in a row is a sender that writes no end markers: its
//! images end where the next begins, from the first of the two on.
//!
//! Always true: the same bytes give the same images however they are cut into reads; nothing larger than twice the limit is ever
//! held; after damage the next whole image is found; an image begins with one start marker and ends with an end marker.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const SOS: u8 = 0xda;
const TEM: u8 = 0x01;
/// Bytes before an image that are kept: the head of a part of a multipart stream.
const LEAD_BYTES_MAX: usize = 1 << 10;

/// Cuts bytes into JPEG images. Push bytes, then take images until there is none.
#[derive(Debug)]
pub struct Splitter {
    buffer: BytesMut,
    /// Everything before this offset of `buffer` has been looked at.
    looked: usize,
    state: State,
    /// A scan of the image has begun.
    scanned: bool,
    /// The first byte in the image where a marker was due.
    stray: Option<usize>,
    /// The image before, which had no end marker, unless the sender is known to write none.
    unended: Option<Bytes>,
    writes_no_ends: bool,
    /// Found, and to be given before anything else: at most two.
    ready: VecDeque<Result<Bytes, SplitError>>,
    frame_bytes_max: usize,
    skipped_bytes: u64,
    /// The last bytes before the image that was begun last.
    lead: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Looking for a start marker.
    Between,
    /// At a marker of an image that starts at offset 0.
    Marker,
    /// In coded data.
    Coded,
}

/// The result of one look at the buffer.
enum Step {
    /// The state advanced: look again.
    On,
    /// Everything is looked at.
    NeedMore,
    /// The image ends at this offset.
    Image(usize),
    /// The image has no end marker: the next begins at this offset.
    Unended(usize),
    /// The image is damaged; the search for the next starts at this offset.
    Damaged(SplitError, usize),
}

impl Splitter {
    /// A splitter that refuses images larger than `frame_bytes_max`.
    pub fn new(frame_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            looked: 0,
            state: State::Between,
            scanned: false,
            stray: None,
            unended: None,
            writes_no_ends: false,
            ready: VecDeque::new(),
            frame_bytes_max,
            skipped_bytes: 0,
            lead: Vec::new(),
        }
    }

    /// A splitter of bytes that are all there, which are not copied.
    pub fn of(bytes: Vec<u8>, frame_bytes_max: usize) -> Self {
        Self { buffer: Bytes::from(bytes).into(), ..Self::new(frame_bytes_max) }
    }

    /// Adds bytes as they were read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The buffer to read into directly, behind what it holds.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The largest image that is accepted, in bytes.
    pub const fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Bytes that were part of no image so far.
    pub const fn skipped_bytes(&self) -> u64 {
        self.skipped_bytes
    }

    /// The bytes before the image that was given last, or is on its way in, since those were taken: at most 2 KiB.
    pub(super) fn take_lead(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lead)
    }

    /// Whether the begin of an image is there, and not its end.
    pub fn is_within(&self) -> bool {
        self.state != State::Between
    }

    /// The next whole image or damage, `None` if more bytes are needed.
    pub fn next_image(&mut self) -> Option<Result<Bytes, SplitError>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            match self.step() {
                Step::Image(end) if end <= self.frame_bytes_max => {
                    self.give_up_unended();
                    self.writes_no_ends = false;
                    let image = self.take_image(end);
                    self.ready.push_back(Ok(image));
                }
                Step::Unended(end) if end + 2 <= self.frame_bytes_max => {
                    let image = self.take_unended(end);
                    if let Some(before) = self.unended.take() {
                        self.writes_no_ends = true;
                        self.ready.push_back(Ok(before));
                    }
                    if self.writes_no_ends {
                        self.ready.push_back(Ok(image));
                    } else {
                        self.unended = Some(image);
                    }
                }
                Step::Damaged(error, resume) => self.drop_image(error, resume),
                Step::Image(_) | Step::Unended(_) => self.drop_too_large(),
                Step::On | Step::NeedMore
                    if self.state != State::Between && self.looked > self.frame_bytes_max =>
                {
                    self.drop_too_large();
                }
                Step::On => {}
                Step::NeedMore => return None,
            }
        }
    }

    /// Ends the stream, and gives what is left of it: an image that was begun and not finished is an error, unless the sender
    /// writes no end markers.
    pub fn finish(mut self) -> impl Iterator<Item = Result<Bytes, SplitError>> {
        let begun = self.state != State::Between;
        let unended = self.unended.take();
        if begun && self.scanned && (self.writes_no_ends || unended.is_some()) {
            self.ready.extend(unended.map(Ok));
            let image = self.take_unended(self.buffer.len());
            self.ready.push_back(Ok(image));
        } else {
            let torn = unended.map(|image| image.len() - 2);
            let torn = torn.into_iter().chain(begun.then_some(self.buffer.len()));
            self.ready.extend(torn.map(|bytes| Err(SplitError::Truncated { bytes })));
        }
        self.ready.into_iter()
    }

    /// The only image of bytes that are all there: its end marker may be missing, and what is behind it is left out.
    ///
    /// # Errors
    /// [`SplitError`] if there is none, or its picture does not begin before its bytes end.
    pub fn only_image(mut self) -> Result<Bytes, SplitError> {
        let bytes = self.buffer.len();
        let end = loop {
            match self.step() {
                Step::Image(end) => return Ok(self.take_image(end)),
                Step::Unended(end) => break end,
                Step::NeedMore if self.scanned => break self.buffer.len(),
                Step::NeedMore => return Err(SplitError::Truncated { bytes }),
                Step::Damaged(error, _) => return Err(error),
                Step::On => {}
            }
        };
        Ok(self.take_unended(end))
    }

    fn step(&mut self) -> Step {
        match self.state {
            State::Between => self.find_start(),
            State::Marker => self.walk_segment(),
            State::Coded => self.walk_coded(),
        }
    }

    fn take_image(&mut self, end: usize) -> Bytes {
        (self.looked, self.state) = (0, State::Between);
        self.buffer.split_to(end).freeze()
    }

    fn take_unended(&mut self, end: usize) -> Bytes {
        (self.looked, self.state) = (0, State::Between);
        let mut image = self.buffer.split_to(end.min(self.buffer.len()));
        image.extend_from_slice(&[0xff, EOI]);
        image.freeze()
    }

    /// The image that had no end marker was torn: the sender writes them.
    fn give_up_unended(&mut self) {
        if let Some(torn) = self.unended.take() {
            let bytes = torn.len() - 2;
            self.skipped_bytes += bytes as u64;
            self.ready.push_back(Err(SplitError::Truncated { bytes }));
        }
    }

    fn find_start(&mut self) -> Step {
        let start = memchr::memmem::find(&self.buffer, &[0xff, SOI, 0xff]);
        // Without a start, its first two bytes may still be the last two here.
        let skip = start.unwrap_or(self.buffer.len().saturating_sub(2));
        let skipped = self.buffer.split_to(skip);
        self.skipped_bytes += skip as u64;
        self.lead.drain(..self.lead.len().saturating_sub(LEAD_BYTES_MAX));
        self.lead.extend_from_slice(&skipped[skip.saturating_sub(LEAD_BYTES_MAX)..]);
        if start.is_none() {
            return Step::NeedMore;
        }
        (self.looked, self.state) = (2, State::Marker);
        (self.scanned, self.stray) = (false, None);
        Step::On
    }

    fn walk_segment(&mut self) -> Step {
        let at = self.looked;
        let rest = &self.buffer[at.min(self.buffer.len())..];
        let (Some(&prefix), Some(&marker)) = (rest.first(), rest.get(1)) else {
            return Step::NeedMore;
        };
        if prefix != 0xff {
            self.stray.get_or_insert(at);
            self.looked += memchr::memchr(0xff, rest).unwrap_or(rest.len());
            return Step::On;
        }
        match marker {
            0xff => self.looked += 1, // a fill byte
            0x00 => {
                self.stray.get_or_insert(at);
                self.looked += 2;
            }
            EOI if self.scanned => return Step::Image(at + 2),
            SOI if self.scanned => return Step::Unended(at),
            // Two start markers, with fill bytes between them or none: the second one counts.
            SOI if self.buffer[2..at].iter().all(|&byte| byte == 0xff) => {
                let _ = self.buffer.split_to(at);
                self.skipped_bytes += at as u64;
                self.looked = 2;
            }
            SOI | EOI => return self.damaged(SplitError::Truncated { bytes: at }, at),
            TEM | 0xd0..=0xd7 => self.looked += 2,
            0x02..=0xbf => return self.damaged(SplitError::Malformed { offset: at }, 2),
            _ => {
                let Some(length) = rest.get(2..4) else { return Step::NeedMore };
                let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
                if length < 2 {
                    return self.damaged(SplitError::Malformed { offset: at }, 2);
                }
                self.looked += 2 + length;
                if marker == SOS {
                    (self.state, self.scanned) = (State::Coded, true);
                }
            }
        }
        Step::On
    }

    fn walk_coded(&mut self) -> Step {
        while let Some(pair) = self.buffer.get(self.looked..self.looked + 2) {
            match (pair[0], pair[1]) {
                (0xff, 0x00 | 0xd0..=0xd7) => self.looked += 2, // a stuffed byte, a restart
                (0xff, 0xff) => self.looked += 1,
                (0xff, _) => {
                    self.state = State::Marker;
                    return Step::On;
                }
                _ => self.looked += 1 + plain_run(&self.buffer[self.looked + 1..]),
            }
        }
        Step::NeedMore
    }

    /// The image is given up for `error`, or for the bytes between its segments that led there.
    fn damaged(&self, error: SplitError, resume: usize) -> Step {
        Step::Damaged(self.stray.map_or(error, |offset| SplitError::Malformed { offset }), resume)
    }

    fn drop_too_large(&mut self) {
        self.drop_image(SplitError::TooLarge { bytes_max: self.frame_bytes_max }, 2);
    }

    /// Gives the image up and searches on from `resume`, which lies behind its start marker.
    fn drop_image(&mut self, error: SplitError, resume: usize) {
        self.give_up_unended();
        let _ = self.buffer.split_to(resume.min(self.buffer.len()));
        self.skipped_bytes += resume as u64;
        (self.looked, self.state) = (0, State::Between);
        self.ready.push_back(Err(error));
    }
}

/// How many of these bytes of coded data can be passed over at once: none of them starts a marker. It may be fewer than
/// there are.
fn plain_run(bytes: &[u8]) -> usize {
    const BLOCK: usize = 64;
    // Coded data has a stuffed 0xff every 256 bytes or so. Blocks are passed with those in them, which is four times as
    // fast as stopping at each.
    let next = bytes.get(1..).unwrap_or(&[]);
    let blocks = bytes.chunks_exact(BLOCK).zip(next.chunks_exact(BLOCK));
    let plain = blocks.take_while(|(block, next)| {
        let markers = block
            .iter()
            .zip(*next)
            .fold(0, |any, (&byte, &next)| any | (u8::from(byte == 0xff) & u8::from(next != 0)));
        markers == 0
    });
    let passed = plain.count() * BLOCK;
    let rest = &bytes[passed..];
    passed + memchr::memchr(0xff, rest).unwrap_or(rest.len())
}

/// Why bytes that began like an image are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The image ended, or the next began, before its end marker.
    #[error("the image ends early, after {bytes} bytes")]
    Truncated {
        /// How much of it there was.
        bytes: usize,
    },
    /// A byte that must start a marker does not.
    #[error("the image has no marker at byte {offset}, where one must stand")]
    Malformed {
        /// Where in the image.
        offset: usize,
    },
    /// The image exceeds the limit.
    #[error(
        "the image is larger than {bytes_max} bytes; raise the limit with max=BYTES or lower the camera's quality"
    )]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An image of segments and coded data, laid out as any encoder does.
    fn image(segments: &[(u8, Vec<u8>)], coded: &[u8], scans: usize) -> Vec<u8> {
        let mut bytes = vec![0xff, SOI];
        for (marker, body) in segments {
            bytes.extend([0xff, *marker]);
            bytes.extend(u16::try_from(body.len() + 2).unwrap().to_be_bytes());
            bytes.extend(body);
        }
        for _ in 0..scans {
            bytes.extend([0xff, SOS, 0, 8, 1, 1, 0, 0, 63, 0]);
            for &byte in coded {
                bytes.push(byte);
                if byte == 0xff {
                    bytes.push(0);
                }
            }
        }
        bytes.extend([0xff, EOI]);
        bytes
    }

    fn split(bytes: &[u8], max: usize) -> Vec<Result<Vec<u8>, SplitError>> {
        let mut splitter = Splitter::new(max);
        splitter.push(bytes);
        let mut out: Vec<_> = std::iter::from_fn(|| splitter.next_image()).collect();
        out.extend(splitter.finish());
        out.into_iter().map(|image| image.map(|bytes| bytes.to_vec())).collect()
    }

    #[test]
    fn markers_inside_segments_do_not_cut() {
        let thumbnail = image(&[(0xdb, vec![1; 64])], &[1, 2, 3], 1);
        let whole = image(
            &[(0xe1, thumbnail), (0xfe, b"\xff\xd9 end of image \xff\xd8\xff".to_vec())],
            &[0x12, 0xff, 0x34, 0xff],
            2,
        );
        assert_eq!(split(&whole, 1 << 20), [Ok(whole.clone())]);
    }

    #[test]
    fn multipart_headers_between_images_are_skipped_and_counted() {
        let one = image(&[(0xe0, b"JFIF".to_vec())], &[7; 50], 1);
        let header = b"\r\n--frame\r\nContent-Type: image/jpeg\r\n\r\n";
        let bytes = [header, &one[..], header, &one, b"\r\n--frame--"].concat();
        let mut splitter = Splitter::new(1 << 20);
        splitter.push(&bytes);
        assert_eq!(splitter.next_image().unwrap().unwrap(), one);
        assert_eq!(splitter.next_image().unwrap().unwrap(), one);
        assert_eq!(splitter.next_image(), None);
        assert_eq!(splitter.skipped_bytes(), 2 * header.len() as u64 + 9); // two bytes may yet be a start
        assert_eq!(splitter.finish().count(), 0);
    }

    #[test]
    fn the_bytes_before_an_image_are_kept_up_to_a_bound() {
        let heads = ["--f\r\nX-Timestamp: 1.5\r\n\r\n", "\r\n--f\r\nX-Timestamp: 2.5\r\n\r\n"];
        let long = "x".repeat(10 * LEAD_BYTES_MAX);
        let jpeg = image(&[], &[0x12], 1);
        let parts = [heads[0], heads[1], &long, heads[0]];
        let bytes: Vec<u8> =
            parts.iter().flat_map(|head| [head.as_bytes(), &jpeg].concat()).collect();
        for step in [1, 2, 3, 7, 100, bytes.len()] {
            let mut splitter = Splitter::new(1 << 20);
            let mut leads = Vec::new();
            for piece in bytes.chunks(step) {
                splitter.push(piece);
                while let Some(Ok(_)) = splitter.next_image() {
                    leads.push(splitter.take_lead());
                }
            }
            assert_eq!(leads.len(), parts.len(), "{step}");
            for (lead, part) in leads.iter().zip(parts) {
                assert!(part.as_bytes().ends_with(lead) && lead.len() <= 2 * LEAD_BYTES_MAX);
                assert!(lead.len() >= part.len().min(LEAD_BYTES_MAX), "{step}");
            }
        }
    }

    #[test]
    fn restarts_fills_and_further_scans_belong_to_the_image() {
        let mut bytes = vec![0xff, SOI, 0xff, 0xff, 0xff, 0xc4, 0, 3, 9];
        bytes.extend([0xff, SOS, 0, 2, 5, 0xff, 0xd0, 6, 0xff, 0xff, 0xd1, 7]);
        bytes.extend([0xff, 0xc4, 0, 2, 0xff, SOS, 0, 2, 8, 0xff, 0xff, EOI]);
        assert_eq!(split(&bytes, 100), [Ok(bytes.clone())]);
    }

    #[test]
    fn an_image_that_breaks_off_does_not_take_the_next_with_it() {
        let one = image(&[(0xe0, b"JFIF".to_vec())], &[7; 50], 1);
        let torn = &one[..40];
        assert_eq!(
            split(&[torn, &one].concat(), 1 << 20),
            [Err(SplitError::Truncated { bytes: 40 }), Ok(one.clone())]
        );
        assert_eq!(split(torn, 1 << 20), [Err(SplitError::Truncated { bytes: 40 })]);
        let malformed = [&[0xff, SOI, 0xff, 0xe0, 0, 4, 1, 2, 0x33, 0x44], &one[..]].concat();
        assert_eq!(split(&malformed, 1 << 20), [Err(SplitError::Malformed { offset: 8 }), Ok(one)]);
    }

    #[test]
    fn images_of_a_sender_that_writes_no_end_markers_end_where_the_next_begins() {
        let whole: Vec<_> = (1..=4).map(|level| image(&[], &[level; 50], 1)).collect();
        let bare: Vec<&[u8]> = whole.iter().map(|image| &image[..image.len() - 2]).collect();
        let header = &b"\r\n--frame\r\n\r\n"[..];
        let all: Vec<_> = whole.iter().cloned().map(Ok).collect();
        assert_eq!(split(&bare.concat(), 1 << 20), all);
        // With headers between them, these are coded data to every reader.
        let parts: Vec<_> =
            split(&bare.join(header), 1 << 20).into_iter().map(Result::unwrap).collect();
        assert_eq!(parts.len(), 4);
        assert!(parts.iter().zip(&bare).all(|(part, bare)| part.starts_with(bare)));
        // One that is torn among whole ones is lost; the next is not.
        let torn = SplitError::Truncated { bytes: bare[1].len() };
        for (bytes, expected) in [
            (
                [&whole[0], bare[1], &whole[2]].concat(),
                vec![Ok(whole[0].clone()), Err(torn.clone()), Ok(whole[2].clone())],
            ),
            ([bare[1], &whole[2]].concat(), vec![Err(torn.clone()), Ok(whole[2].clone())]),
            ([&whole[0], bare[1]].concat(), vec![Ok(whole[0].clone()), Err(torn.clone())]),
            ([bare[0], bare[1]].concat(), all[..2].to_vec()),
            (
                [bare[0], bare[1], &whole[2], bare[3], &whole[2]].concat(),
                [&all[..3], &[Err(torn.clone()), all[2].clone()]].concat(),
            ),
            ([bare[1], b"\xff\xd8\xff\xbf", &whole[2]].concat(), {
                vec![Err(torn), Err(SplitError::Malformed { offset: 2 }), Ok(whole[2].clone())]
            }),
        ] {
            assert_eq!(split(&bytes, 1 << 20), expected);
        }
    }

    #[test]
    fn an_image_is_found_as_libjpeg_finds_it() {
        let one =
            image(&[(0xe0, b"JFIF".to_vec()), (0xfe, b"\xff\xd9".to_vec())], &[7, 0xff, 9], 2);
        let stray = |bytes: &[u8]| [&one[..10], bytes, &one[10..]].concat();
        let no_end = &one[..one.len() - 2];
        for (odd, expected) in [
            ([&[0xff, SOI], &one[..]].concat(), one.clone()),
            ([&[0xff, SOI, 0xff, SOI, 0xff, 0xff], &one[..]].concat(), one.clone()),
            (stray(b"stray"), stray(b"stray")),
            (stray(&[0xff, 0, 3, 0xff, 0xd3]), stray(&[0xff, 0, 3, 0xff, 0xd3])),
        ] {
            assert_eq!(split(&odd, 1 << 20), [Ok(expected.clone())]);
            assert_eq!(
                split(&[&odd[..], &one].concat(), 1 << 20),
                [Ok(expected.clone()), Ok(one.clone())]
            );
            assert_eq!(Splitter::of(odd, 1 << 20).only_image().unwrap(), expected);
        }
        let only = |bytes: &[u8]| Splitter::of(bytes.to_vec(), 1 << 20).only_image();
        for (odd, expected) in [
            (&[&one[..], b"trailer \xff\xd8\xff\xd9"].concat()[..], &one),
            (&[b"PREFIX", &one[..]].concat(), &one),
            (no_end, &one),
            (&[no_end, &one].concat(), &one),
            (&[no_end, &[0xff]].concat(), &[no_end, &[0xff, 0xff, EOI]].concat()),
        ] {
            assert_eq!(only(odd).unwrap(), expected, "{odd:x?}");
        }
        for bytes in [&b""[..], b"GIF89a", &[0xff, SOI], &one[..12], &[0xff, SOI, 0xff, EOI]] {
            assert!(matches!(only(bytes), Err(SplitError::Truncated { .. })), "{bytes:x?}");
        }
    }

    #[test]
    fn an_image_over_the_limit_is_refused_and_the_next_is_found() {
        let small = image(&[], &[7; 50], 1);
        let large = image(&[], &[7; 500], 1);
        let limit = SplitError::TooLarge { bytes_max: 100 };
        assert_eq!(split(&[large, small.clone()].concat(), 100), [Err(limit.clone()), Ok(small)]);
        // A segment length alone can exceed it, before its bytes are there.
        assert_eq!(split(&[0xff, SOI, 0xff, 0xe1, 0xff, 0xff, 0], 100), [Err(limit)]);
    }

    fn images() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let segment = (0xe0u8..0xef, prop::collection::vec(any::<u8>(), 0..40));
        let one = (
            prop::collection::vec(segment, 0..4),
            prop::collection::vec(prop_oneof![Just(0xffu8), any::<u8>()], 1..200),
            1usize..3,
        );
        let one = one.prop_map(|(segments, coded, scans)| image(&segments, &coded, scans));
        prop::collection::vec(one, 0..6)
    }

    proptest! {
        #[test]
        fn reads_of_any_length_give_the_same_images(
            images in images(),
            filler in prop::collection::vec(0u8..0xff, 0..30), // without 0xff it cannot begin an image
            cuts in prop::collection::vec(1usize..64, 1..100),
        ) {
            let mut bytes = filler.clone();
            for image in &images {
                bytes.extend(image);
                bytes.extend(&filler);
            }
            let mut splitter = Splitter::new(1 << 20);
            let (mut out, mut rest) = (Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (read, after) = rest.split_at((*cut).min(rest.len()));
                splitter.push(read);
                rest = after;
                while let Some(image) = splitter.next_image() {
                    out.push(image.unwrap().to_vec());
                }
            }
            prop_assert_eq!(&out, &images);
            prop_assert_eq!(splitter.finish().count(), 0);
        }

        #[test]
        fn any_bytes_end_and_hold_no_more_than_the_limit(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0xffu8), 2 => Just(SOI), 1 => Just(SOS), 4 => any::<u8>()], 0..3000),
            max in 4usize..400,
        ) {
            let mut splitter = Splitter::new(max);
            for chunk in bytes.chunks(37) {
                splitter.push(chunk);
                while let Some(image) = splitter.next_image() {
                    if let Ok(image) = image {
                        prop_assert!(image.len() <= max);
                        prop_assert!(image.starts_with(&[0xff, SOI]) && image.ends_with(&[0xff, EOI]));
                    }
                }
                prop_assert!(splitter.buffer.len() <= max + 37);
            }
        }

        #[test]
        fn an_image_torn_in_its_coded_data_spares_all_others(
            images in images(),
            coded in prop::collection::vec(any::<u8>(), 1..200),
            at in any::<prop::sample::Index>(),
        ) {
            let torn = image(&[], &coded, 1);
            let keep = 12 + at.index(torn.len() - 13); // behind the scan header, before the end marker
            prop_assume!(!images.is_empty());
            let bytes = [&torn[..keep], &images.concat()].concat();
            let found: Vec<_> = split(&bytes, 1 << 20).into_iter().filter_map(Result::ok).collect();
            prop_assert_eq!(found, images);
        }
    }
}
