//! Packets to whole pictures as they are coded.
//!
//! ```text
//!  packet, packet, packet (marker) ─▶ Unit: one coded picture, its timestamp, when its first packet came
//! ```
//!
//! Always true: a unit is whole, or it is not given; after a loss nothing is given that needs what was lost; no more than
//! [`UNIT_BYTES_MAX`] are held.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};

use tidegate_message::Instant;

use super::{
    jpeg,
    packet::Packet,
    sdp::{Coding, Media},
};

/// Most bytes of one coded picture.
const UNIT_BYTES_MAX: usize = 32 << 20;
/// So many pictures that a marker ended, and of which no packet followed, show that markers end pictures. Until then a picture is ended
/// by the next timestamp, or by [`Assembler::end_marked`].
const MARKERS_RIGHT: u8 = 3;
/// Where a nonsense of a camera may end: so many different parameter sets are kept.
const SETS_MAX: usize = 64;

/// One coded picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Its timestamp, as it came.
    pub(super) timestamp: u32,
    /// When its first packet came.
    pub(super) arrived: Instant,
    /// When its last packet came.
    pub(super) whole: Instant,
    /// Whether a decoder can begin with it.
    pub(super) is_key: bool,
    /// Counts the formats there were; pictures of another size, among others, are another format.
    pub(super) format: u32,
    /// With start codes before each part, and with the parameter sets if it is a key or the first to need them; or one JPEG image.
    pub(super) bytes: Bytes,
    /// Pictures that were left out since the one before, because of what was lost.
    pub(super) left_out: u64,
}

/// Assembles the pictures of one stream.
pub(super) struct Assembler {
    media: Media,
    open: Option<Open>,
    ready: VecDeque<Unit>,
    sequence: Option<u16>,
    /// The sender of the pictures, by its packets.
    source: Option<u32>,
    /// Packets were lost since the last one that had something in it.
    gap: bool,
    /// Something was lost: wait for a key.
    lost: bool,
    /// The next whole picture is to be begun with, though it may be no key.
    begin_next: bool,
    /// A key was whole: the camera sends some.
    has_keys: bool,
    /// A picture was given: a decoder has begun.
    has_given: bool,
    /// Pictures that were left out since.
    left_out: u64,
    /// There are parameter sets that no picture has brought along.
    sets_changed: bool,
    /// The timestamp of the newest marker.
    ended: Option<u32>,
    /// How many of [`MARKERS_RIGHT`] markers ended a picture.
    markers_right: u8,
    /// A camera that puts markers inside its pictures ends them by the next timestamp alone.
    markers_mislead: bool,
    sets: BTreeMap<(u8, u32), Bytes>,
    /// The sequence parameter sets that the last key had, and how often they changed.
    format: (Vec<Bytes>, u32),
    tables: jpeg::Tables,
}

/// A unit that is not whole yet.
struct Open {
    timestamp: u32,
    arrived: Instant,
    whole: Instant,
    bytes: BytesMut,
    is_key: bool,
    has_picture: bool,
    /// Where a part that is in fragments began.
    fragment: Option<usize>,
    damaged: bool,
    jpeg: Option<jpeg::Header>,
}

const START_CODE: [u8; 4] = [0, 0, 0, 1];

impl Assembler {
    pub(super) fn new(media: Media) -> Self {
        let mut assembler = Self {
            open: None,
            ready: VecDeque::new(),
            sequence: None,
            source: None,
            gap: false,
            lost: true,
            begin_next: false,
            has_keys: false,
            has_given: false,
            left_out: 0,
            sets_changed: false,
            ended: None,
            // Those of JPEG do (RFC 2435, section 3.1.8).
            markers_right: if media.coding == Coding::Jpeg { MARKERS_RIGHT } else { 0 },
            markers_mislead: false,
            sets: BTreeMap::new(),
            format: (Vec::new(), 0),
            tables: jpeg::Tables::default(),
            media,
        };
        for set in assembler.media.setup.clone() {
            if matches!(assembler.media.coding, Coding::H264 | Coding::H265) {
                assembler.keep_set(&set);
            }
        }
        assembler
    }

    /// The next whole picture.
    pub(super) fn next(&mut self) -> Option<Unit> {
        self.ready.pop_front()
    }

    /// Lets a stream begin that has no key: some refresh their pictures in stripes, which a decoder of H.264 knows to wait for, if it has
    /// shown nothing else. Says whether it may: where there are keys, a picture that is none refers to what was lost.
    pub(super) fn begin_anyway(&mut self) -> bool {
        if self.has_keys || self.media.coding != Coding::H264 {
            return false;
        }
        let known = !self.sets.is_empty();
        self.begin_next |= self.lost && known;
        self.lost &= !known;
        true
    }

    /// Leaves out all pictures up to the next key: they depend on one that was left out, with so many in all.
    pub(super) fn skip_to_key(&mut self, left_out: u64) {
        self.lost = true;
        self.left_out += left_out;
    }

    /// Whether a picture was given: what is lost since was seen.
    pub(super) const fn has_begun(&self) -> bool {
        self.has_given
    }

    /// Whether a picture is held whose last packet has a marker: others of it may follow.
    pub(super) fn is_marked(&self) -> bool {
        let open = self.open.as_ref();
        !self.markers_mislead && open.is_some_and(|open| self.ended == Some(open.timestamp))
    }

    /// None followed for longer than packets of one picture are apart.
    pub(super) fn end_marked(&mut self) {
        if self.is_marked() {
            self.close();
        }
    }

    /// Whether it waits for a key.
    pub(super) fn waits(&self) -> bool {
        self.lost && self.media.coding != Coding::Jpeg
    }

    /// Takes a packet that came at `now`.
    pub(super) fn take(&mut self, now: Instant, packet: &Packet) {
        let is_picture = packet.payload_type == self.media.payload_type;
        if !is_picture && self.source != Some(packet.source) {
            return;
        }
        // Padding, and what is of another kind but from the same sender, is counted with the pictures (RFC 3550, section 5.1).
        let follows = self.sequence.is_none_or(|last| packet.sequence == last.wrapping_add(1));
        self.sequence = Some(packet.sequence);
        if !follows {
            (self.lost, self.gap) = (true, true);
            if let Some(open) = &mut self.open {
                open.damaged = true;
            }
        }
        if !is_picture || packet.payload.is_empty() {
            return;
        }
        self.source = Some(packet.source);
        if self.open.as_ref().is_some_and(|open| open.timestamp != packet.timestamp) {
            self.close();
        }
        if self.ended == Some(packet.timestamp) && self.media.coding != Coding::Jpeg {
            self.markers_mislead = true;
            if self.open.is_none() {
                // A part of it was given as the whole: the decoder has made up the rest, to which those behind it refer.
                (self.lost, self.gap) = (true, true);
            }
        } else if self.ended.take().is_some() && self.markers_right < MARKERS_RIGHT {
            self.markers_right += 1;
        }
        let gap = std::mem::take(&mut self.gap);
        let open = self.open.get_or_insert_with(|| Open {
            timestamp: packet.timestamp,
            arrived: now,
            whole: now,
            bytes: BytesMut::new(),
            is_key: false,
            has_picture: false,
            fragment: None,
            damaged: gap,
            jpeg: None,
        });
        open.whole = now;
        if open.bytes.len() + packet.payload.len() > UNIT_BYTES_MAX {
            open.damaged = true;
            open.bytes.clear();
            self.lost = true;
        }
        let understood = match self.media.coding {
            Coding::H264 => self.h264(&packet.payload),
            Coding::H265 => self.h265(&packet.payload),
            Coding::Mpeg4 => self.mpeg4(&packet.payload),
            Coding::Jpeg => self.jpeg(&packet.payload),
        };
        if let (None, Some(open)) = (understood, &mut self.open) {
            open.damaged = true;
            self.lost = true;
        }
        let whole = self.open.as_ref().is_some_and(|open| open.has_picture || open.damaged);
        if packet.marker && whole && !self.markers_mislead {
            self.ended = Some(packet.timestamp);
            if self.markers_right == MARKERS_RIGHT {
                self.close();
            }
        }
    }

    /// The open unit is whole, or as whole as it gets.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open { timestamp, arrived, whole, bytes, is_key, has_picture, .. } = open;
        let Open { damaged, fragment, jpeg, .. } = open;
        if self.media.coding == Coding::Jpeg {
            self.left_out += u64::from(damaged);
            let header = jpeg.filter(|_| !damaged);
            let picture =
                header.and_then(|header| header.picture(&mut self.tables, self.media.size, &bytes));
            if let Some(bytes) = picture {
                let (is_key, format) = (true, 0);
                let left_out = std::mem::take(&mut self.left_out);
                let unit = Unit { timestamp, arrived, whole, is_key, format, bytes, left_out };
                self.ready.push_back(unit);
            }
            return;
        }
        // Before the first, nothing was lost: a stream is joined wherever it is.
        let is_missed = u64::from(self.has_given);
        if damaged || fragment.is_some() {
            self.lost = true;
            self.left_out += is_missed;
            return;
        }
        let can_begin = is_key && (self.media.coding == Coding::Mpeg4 || !self.sets.is_empty());
        if !has_picture {
            return;
        }
        if self.lost && !can_begin {
            self.left_out += is_missed;
            return;
        }
        self.lost = false;
        self.has_keys |= is_key;
        let begins_anyway = std::mem::take(&mut self.begin_next);
        if begins_anyway && std::mem::replace(&mut self.has_given, true) {
            // A decoder that has shown pictures would fill in from them; another one waits until all is there.
            self.format.1 = self.format.1.wrapping_add(1);
        }
        self.has_given = true;
        let mut begins = is_key | begins_anyway;
        let format = self.format.1;
        let bytes = match begins | std::mem::take(&mut self.sets_changed) {
            true => self.with_sets(&bytes),
            false => bytes.freeze(),
        };
        // Another decoder begins with it.
        begins |= self.format.1 != format;
        let format = self.format.1;
        let left_out = std::mem::take(&mut self.left_out);
        let is_key = begins;
        self.ready.push_back(Unit { timestamp, arrived, whole, is_key, format, bytes, left_out });
    }

    /// A picture with all parameter sets before it; notes whether they changed.
    fn with_sets(&mut self, unit: &[u8]) -> Bytes {
        let mut whole = BytesMut::with_capacity(unit.len() + 256);
        if self.media.coding == Coding::Mpeg4 {
            // The header says the size; the stream may have it as well.
            self.media.setup.iter().for_each(|setup| whole.put_slice(setup));
        }
        for set in self.sets.values() {
            whole.put_slice(&START_CODE);
            whole.put_slice(set);
        }
        whole.put_slice(unit);
        let sequence_type = if self.media.coding == Coding::H265 { 33 } else { 7 };
        let now: Vec<Bytes> = self
            .sets
            .range((sequence_type, 0)..(sequence_type + 1, 0))
            .map(|(_, set)| set.clone())
            .collect();
        if now != self.format.0 {
            self.format = (now, self.format.1.wrapping_add(1));
        }
        whole.freeze()
    }

    /// Keeps a parameter set, by its kind and number; says whether it is one.
    fn keep_set(&mut self, part: &[u8]) -> bool {
        let key = match self.media.coding {
            Coding::H264 => match part.first().map(|first| first & 0x1f) {
                Some(7) => (7, part.get(4..).map_or(0, exp_golomb)),
                Some(8) => (8, part.get(1..).map_or(0, exp_golomb)),
                _ => return false,
            },
            _ => match part.first().map(|first| first >> 1 & 0x3f) {
                Some(32) => (32, u32::from(part.get(2).copied().unwrap_or(0) >> 4)),
                // The number of a sequence parameter set stands behind much else; cameras have one.
                Some(33) => (33, 0),
                Some(34) => (34, part.get(2..).map_or(0, exp_golomb)),
                _ => return false,
            },
        };
        let known = self.sets.get(&key);
        if known.is_none_or(|known| known != part)
            && (known.is_some() || self.sets.len() < SETS_MAX)
        {
            self.sets.insert(key, Bytes::copy_from_slice(part));
            self.sets_changed = true;
        }
        true
    }

    /// Adds a whole part of a picture.
    fn push(&mut self, part: &[u8]) -> Option<()> {
        if self.keep_set(part) {
            return Some(());
        }
        let first = *part.first()?;
        let (is_picture, is_key, is_delimiter) = match self.media.coding {
            Coding::H264 => (matches!(first & 0x1f, 1..=5), first & 0x1f == 5, first & 0x1f == 9),
            _ => {
                let kind = first >> 1 & 0x3f;
                (kind < 32, (16..=23).contains(&kind), kind == 35)
            }
        };
        let open = self.open.as_mut()?;
        if !is_delimiter {
            open.bytes.put_slice(&START_CODE);
            open.bytes.put_slice(part);
        }
        open.has_picture |= is_picture;
        open.is_key |= is_key;
        Some(())
    }

    /// Adds a fragment of a part whose header, if it is the first, is `header`.
    fn fragment(&mut self, header: &[u8], rest: &[u8], starts: bool, ends: bool) -> Option<()> {
        let open = self.open.as_mut()?;
        if starts {
            open.fragment = Some(open.bytes.len());
            open.bytes.put_slice(header);
        }
        let from = open.fragment?;
        open.bytes.put_slice(rest);
        if ends {
            open.fragment = None;
            let part = open.bytes.split_off(from);
            self.push(&part)?;
        }
        Some(())
    }

    /// RFC 6184, section 5.
    fn h264(&mut self, payload: &Bytes) -> Option<()> {
        let first = payload[0];
        match first & 0x1f {
            1..=23 => self.push(payload),
            24 => self.aggregate(&payload[1..]),
            28 => {
                let (&fragment, rest) = payload[1..].split_first()?;
                let header = [first & 0xe0 | fragment & 0x1f];
                self.fragment(&header, rest, fragment & 0x80 != 0, fragment & 0x40 != 0)
            }
            // Interleaved packets are of other modes than cameras offer; types beyond are to be left out.
            25..=27 | 29 => None,
            _ => Some(()),
        }
    }

    /// RFC 7798, section 4.4.
    fn h265(&mut self, payload: &Bytes) -> Option<()> {
        let (head, rest) = payload.split_first_chunk::<2>()?;
        match head[0] >> 1 & 0x3f {
            48 => self.aggregate(rest),
            49 => {
                let (&fragment, rest) = rest.split_first()?;
                let header = [head[0] & 0x81 | (fragment & 0x3f) << 1, head[1]];
                self.fragment(&header, rest, fragment & 0x80 != 0, fragment & 0x40 != 0)
            }
            0..=47 => self.push(payload),
            _ => Some(()),
        }
    }

    fn aggregate(&mut self, mut rest: &[u8]) -> Option<()> {
        while let Some((length, behind)) = rest.split_first_chunk::<2>() {
            let (part, behind) =
                behind.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
            self.push(part)?;
            rest = behind;
        }
        rest.is_empty().then_some(())
    }

    /// RFC 6416: the stream cut into packets, and nothing else.
    fn mpeg4(&mut self, payload: &Bytes) -> Option<()> {
        let open = self.open.as_mut()?;
        open.bytes.put_slice(payload);
        open.has_picture = true;
        // The coding type behind a picture's start code: 0 is a key.
        let start = memchr::memmem::find(payload, &[0, 0, 1, 0xb6]);
        open.is_key |=
            start.and_then(|at| payload.get(at + 4)).is_some_and(|first| first >> 6 == 0);
        Some(())
    }

    fn jpeg(&mut self, payload: &Bytes) -> Option<()> {
        let (header, data) = jpeg::Header::parse(payload)?;
        let open = self.open.as_mut()?;
        if header.offset() != open.bytes.len() {
            return None;
        }
        open.bytes.put_slice(data);
        open.jpeg.get_or_insert(header);
        open.has_picture = true;
        Some(())
    }
}

/// The unsigned number that bytes begin with (H.264, section 9.1); 0 if there is none.
fn exp_golomb(bytes: &[u8]) -> u32 {
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let zeros = (0..16).take_while(|&at| !bit(at)).count();
    let value = (0..=zeros).fold(0_u32, |value, at| value << 1 | u32::from(bit(zeros + at)));
    value.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(coding: Coding) -> Media {
        Media {
            coding,
            clock_hertz: 90_000,
            payload_type: 96,
            control: String::new(),
            setup: Vec::new(),
            size: None,
        }
    }

    struct Sender {
        assembler: Assembler,
        sequence: u16,
    }

    impl Sender {
        /// A camera whose markers have shown that they end pictures.
        fn new(coding: Coding) -> Self {
            let mut sender = Self::unknown(coding);
            sender.assembler.markers_right = MARKERS_RIGHT;
            sender
        }

        fn unknown(coding: Coding) -> Self {
            Self { assembler: Assembler::new(media(coding)), sequence: 65_530 }
        }

        fn send(&mut self, timestamp: u32, marker: bool, payload: &[u8]) {
            self.sequence = self.sequence.wrapping_add(1);
            let payload = Bytes::copy_from_slice(payload);
            self.take(Packet {
                marker,
                payload_type: 96,
                sequence: self.sequence,
                timestamp,
                source: 9,
                payload,
            });
        }

        fn take(&mut self, packet: Packet) {
            let now = Instant::from_millis(i64::from(packet.timestamp));
            self.assembler.take(now, &packet);
        }

        fn units(&mut self) -> Vec<(u32, bool, u32, Vec<u8>)> {
            std::iter::from_fn(|| self.assembler.next())
                .map(|unit| (unit.timestamp, unit.is_key, unit.format, unit.bytes.to_vec()))
                .collect()
        }
    }

    fn parts(parts: &[&[u8]]) -> Vec<u8> {
        parts.iter().flat_map(|part| [&START_CODE, *part].concat()).collect()
    }

    const SPS: &[u8] = &[0x67, 0x42, 0, 0x29, 0x80];
    const PPS: &[u8] = &[0x68, 0x80];

    #[test]
    fn whole_pictures_of_h264_come_with_their_parameter_sets() {
        let mut sender = Sender::new(Coding::H264);
        sender.send(0, true, &[0x41, 1]);
        assert!(
            sender.units().is_empty() && sender.assembler.waits(),
            "nothing begins without a key"
        );
        sender.send(3, false, &[&[24, 0, 5], SPS, &[0, 2], PPS].concat());
        sender.send(3, false, &[0x7c, 0x85, 10, 11]);
        sender.send(3, false, &[0x7c, 0x05, 12]);
        sender.send(3, true, &[0x7c, 0x45, 13]);
        sender.send(6, false, &[0x41, 2]);
        sender.send(6, true, &[0x41, 3]);
        let key = parts(&[SPS, PPS, &[0x65, 10, 11, 12, 13]]);
        assert_eq!(
            sender.units(),
            [(3, true, 1, key), (6, false, 1, parts(&[&[0x41, 2], &[0x41, 3]]))]
        );
    }

    #[test]
    fn after_a_loss_nothing_comes_before_the_next_key() {
        let mut sender = Sender::new(Coding::H264);
        sender.send(0, false, SPS);
        sender.send(0, true, &[0x65, 1]);
        sender.sequence += 1;
        sender.send(3, true, &[0x41, 2]);
        sender.send(6, true, &[0x41, 3]);
        sender.send(9, true, &[0x65, 4]);
        let units: Vec<_> = std::iter::from_fn(|| sender.assembler.next()).collect();
        let found: Vec<_> = units.iter().map(|unit| (unit.timestamp, unit.left_out)).collect();
        assert_eq!(found, [(0, 0), (9, 2)], "they are counted");
        // A fragment whose begin is missing.
        sender.send(12, true, &[0x7c, 0x45, 13]);
        sender.send(15, true, &[0x65, 4]);
        assert_eq!(sender.units().len(), 1);
    }

    #[test]
    fn a_stream_without_a_key_begins_with_its_parameter_sets() {
        let mut sender = Sender::new(Coding::H264);
        let (picture, body) = (&[0x41, 1][..], parts(&[&[0x41, 1]]));
        [SPS, PPS].iter().for_each(|set| sender.send(0, false, set));
        sender.send(0, true, picture);
        assert!(sender.units().is_empty() && sender.assembler.waits());
        // And again after a loss, for another decoder.
        for (timestamp, lost, format) in [(3, 0, 1), (12, 1, 2)] {
            sender.sequence = sender.sequence.wrapping_add(lost);
            assert!(sender.assembler.begin_anyway());
            if lost > 0 {
                sender.send(timestamp - 3, true, picture);
                assert!(sender.units().is_empty(), "a loss after it was begun");
                assert!(sender.assembler.begin_anyway());
            }
            sender.send(timestamp, true, picture);
            sender.send(timestamp + 3, true, picture);
            let whole = parts(&[SPS, PPS, &[0x41, 1]]);
            let begun =
                [(timestamp, true, format, whole), (timestamp + 3, false, format, body.clone())];
            assert_eq!(sender.units(), begun);
        }
        // Decoders of other codings show what they have.
        for coding in [Coding::H265, Coding::Mpeg4] {
            assert!(!Sender::new(coding).assembler.begin_anyway(), "{coding:?}");
        }
    }

    #[test]
    fn a_stream_with_keys_waits_for_the_next_however_long_it_takes() {
        let mut sender = Sender::new(Coding::H264);
        sender.send(0, false, SPS);
        sender.send(0, true, &[0x65, 1]);
        sender.send(3, true, &[0x41, 2]);
        sender.sequence += 1;
        for timestamp in 2..100 {
            sender.send(3 * timestamp, true, &[0x41, 3]);
            assert!(sender.assembler.waits() && !sender.assembler.begin_anyway());
        }
        sender.send(300, true, &[0x65, 4]);
        let times: Vec<u32> = sender.units().iter().map(|unit| unit.0).collect();
        assert_eq!(times, [0, 3, 300]);
    }

    #[test]
    fn a_parameter_set_that_changes_between_keys_is_given_on() {
        let mut sender = Sender::new(Coding::H264);
        sender.send(0, false, SPS);
        sender.send(0, false, PPS);
        sender.send(0, true, &[0x65, 1]);
        let other = &[0x68, 0x40][..];
        sender.send(3, false, PPS);
        sender.send(3, true, &[0x41, 2]);
        sender.send(6, false, other);
        sender.send(6, true, &[0x41, 3]);
        sender.send(9, true, &[0x41, 4]);
        let units: Vec<_> = sender.units().into_iter().map(|unit| (unit.1, unit.3)).collect();
        assert_eq!(
            units,
            [
                (true, parts(&[SPS, PPS, &[0x65, 1]])),
                (false, parts(&[&[0x41, 2]])),
                (false, parts(&[SPS, PPS, other, &[0x41, 3]])),
                (false, parts(&[&[0x41, 4]])),
            ]
        );
    }

    #[test]
    fn padding_and_packets_of_other_kinds_are_no_loss() {
        let mut sender = Sender::new(Coding::H264);
        sender.send(0, false, SPS);
        sender.send(0, true, &[0x65, 1]);
        let packet = |sender: &mut Sender, timestamp, payload_type, source, counts: u16| {
            sender.sequence = sender.sequence.wrapping_add(counts);
            let (sequence, payload) = (sender.sequence, Bytes::from_static(&[1]));
            let payload = if payload_type == 96 { Bytes::new() } else { payload };
            sender.take(Packet {
                marker: false,
                payload_type,
                sequence,
                timestamp,
                source,
                payload,
            });
        };
        packet(&mut sender, 0, 96, 9, 1);
        sender.send(3, true, &[0x41, 2]);
        packet(&mut sender, 3, 127, 9, 1);
        sender.send(6, true, &[0x41, 3]);
        // Of another sender, with numbers of its own.
        packet(&mut sender, 6, 127, 10, 1);
        sender.sequence = sender.sequence.wrapping_sub(1);
        sender.send(9, true, &[0x41, 4]);
        let times: Vec<u32> = sender.units().iter().map(|unit| unit.0).collect();
        assert_eq!(times, [0, 3, 6, 9]);
        // A gap before padding is a gap of the picture behind it.
        packet(&mut sender, 9, 96, 9, 2);
        sender.send(12, true, &[0x65, 5]);
        sender.send(15, true, &[0x65, 6]);
        let times: Vec<u32> = sender.units().iter().map(|unit| unit.0).collect();
        assert_eq!(times, [15]);
    }

    #[test]
    fn another_size_is_another_format() {
        let mut sender = Sender::new(Coding::H264);
        for (timestamp, level) in [(0, 1), (3, 1), (6, 2)] {
            sender.send(timestamp, false, &[0x67, 0x42, 0, level, 0x80]);
            sender.send(timestamp, true, &[0x65, 1]);
        }
        let formats: Vec<u32> = sender.units().iter().map(|unit| unit.2).collect();
        assert_eq!(formats, [1, 1, 2]);
    }

    #[test]
    fn a_camera_with_a_marker_on_each_slice_gives_whole_pictures_alone() {
        let mut sender = Sender::unknown(Coding::H264);
        sender.send(0, true, SPS);
        for timestamp in [0, 3, 6, 9] {
            sender.send(timestamp, true, &[0x65, 1]);
            sender.send(timestamp, true, &[0x65, 2]);
        }
        let whole = parts(&[SPS, &[0x65, 1], &[0x65, 2]]);
        let expected = [0, 3, 6].map(|timestamp| (timestamp, true, 1, whole.clone()));
        assert_eq!(sender.units(), expected);
        // One that begins to do so later: the picture of which a part was given is not told twice, nor are those behind it.
        let mut sender = Sender::unknown(Coding::H264);
        sender.send(0, false, SPS);
        sender.send(0, true, &[0x65, 1]);
        for timestamp in [3, 6, 9] {
            sender.send(timestamp, true, &[0x41, 1]);
        }
        for timestamp in [12, 15] {
            sender.send(timestamp, true, &[0x41, 1]);
            sender.send(timestamp, true, &[0x41, 2]);
        }
        sender.send(18, true, &[0x65, 1]);
        sender.send(18, true, &[0x65, 2]);
        sender.send(21, true, &[0x41, 1]);
        let times: Vec<u32> = sender.units().iter().map(|unit| unit.0).collect();
        assert_eq!(times, [0, 3, 6, 9, 12, 18]);
    }

    #[test]
    fn markers_that_end_pictures_are_believed_after_three() {
        let mut sender = Sender::unknown(Coding::H264);
        sender.send(0, false, SPS);
        let mut given = Vec::new();
        for timestamp in [0, 3, 6, 9, 12] {
            sender.send(timestamp, true, &[0x65, 1]);
            given.push(sender.units().iter().map(|unit| unit.0).collect::<Vec<_>>());
        }
        assert_eq!(given, [vec![], vec![0], vec![3], vec![6, 9], vec![12]]);
        // Or at once if none follows for a while; one that does was a part, and what refers to it is left out.
        let mut sender = Sender::unknown(Coding::H264);
        sender.send(0, false, SPS);
        sender.send(0, false, &[0x65, 1]);
        sender.assembler.end_marked();
        assert!(sender.units().is_empty(), "it has no marker");
        sender.send(0, true, &[0x65, 2]);
        assert!(sender.assembler.is_marked());
        sender.assembler.end_marked();
        assert!(!sender.assembler.is_marked() && sender.units().len() == 1);
        sender.send(0, true, &[0x65, 3]);
        sender.send(3, true, &[0x41, 1]);
        sender.send(6, true, &[0x65, 1]);
        sender.send(9, true, &[0x41, 1]);
        let times: Vec<u32> = sender.units().iter().map(|unit| unit.0).collect();
        assert_eq!(times, [6]);
    }

    #[test]
    fn whole_pictures_of_h265_come_with_their_parameter_sets() {
        let mut sender = Sender::new(Coding::H265);
        let (vps, sps, pps) = (&[0x40, 1, 0x0c][..], &[0x42, 1, 1][..], &[0x44, 1, 0xc0][..]);
        sender.send(0, false, &[&[0x60, 1, 0, 3], vps, &[0, 3], sps, &[0, 3], pps].concat());
        sender.send(0, false, &[0x62, 1, 0x93, 10]);
        sender.send(0, true, &[0x62, 1, 0x53, 11]);
        sender.send(3, true, &[0x02, 1, 5]);
        let key = parts(&[vps, sps, pps, &[0x26, 1, 10, 11]]);
        assert_eq!(sender.units(), [(0, true, 1, key), (3, false, 1, parts(&[&[0x02, 1, 5]]))]);
    }

    #[test]
    fn nonsense_leads_nowhere() {
        for coding in [Coding::H264, Coding::H265, Coding::Mpeg4, Coding::Jpeg] {
            let mut sender = Sender::new(coding);
            for length in 1..40 {
                for first in 0..=255_u8 {
                    let payload: Vec<u8> =
                        (0..length).map(|at| first.wrapping_mul(at + 1)).collect();
                    sender.send(u32::from(length), first % 3 == 0, &payload);
                }
            }
            sender.units();
        }
    }

    #[test]
    fn numbers_of_parameter_sets_are_read() {
        for (bytes, expected) in
            [(&[0x80][..], 0), (&[0x40], 1), (&[0x60], 2), (&[0x20], 3), (&[0x10], 7), (&[0], 0)]
        {
            assert_eq!(exp_golomb(bytes), expected, "{bytes:?}");
        }
    }
}
