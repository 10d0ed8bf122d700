//! JPEG pictures from packets that leave out all that the sender may take for known (RFC 2435).

use bytes::{Buf, Bytes};

use tidegate_message::FrameSize;

/// The headers before the data of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    offset: usize,
    kind: u8,
    quality: u8,
    width: u16,
    height: u16,
    restart_interval: Option<u16>,
    tables: Bytes,
    /// Whether one of the tables has two bytes for each number.
    precision: u8,
}

/// Quantization tables that a stream gives once and then refers to.
#[derive(Debug, Default)]
pub(super) struct Tables {
    known: Vec<(u8, Bytes, u8)>,
}

impl Header {
    /// Reads what stands before a packet's part of the picture; `None` if it is no such packet.
    pub(super) fn parse(payload: &Bytes) -> Option<(Self, &[u8])> {
        let mut rest = &payload[..];
        if rest.len() < 8 {
            return None;
        }
        let offset = (rest.get_u32() & 0x00ff_ffff) as usize;
        let (kind, quality) = (rest.get_u8(), rest.get_u8());
        let (width, height) = (8 * u16::from(rest.get_u8()), 8 * u16::from(rest.get_u8()));
        let restart_interval = match kind {
            64..=127 if rest.len() >= 4 => {
                let interval = rest.get_u16();
                rest.advance(2);
                Some(interval)
            }
            64..=127 => return None,
            _ => None,
        };
        let (mut tables, mut precision) = (Bytes::new(), 0);
        if quality >= 128 && offset == 0 {
            if rest.len() < 4 {
                return None;
            }
            rest.advance(1);
            precision = rest.get_u8();
            let length = usize::from(rest.get_u16());
            if rest.len() < length {
                return None;
            }
            tables = payload.slice_ref(&rest[..length]);
            rest.advance(length);
        }
        Some((
            Self { offset, kind, quality, width, height, restart_interval, tables, precision },
            rest,
        ))
    }

    /// Where in the picture the packet's part begins.
    pub(super) const fn offset(&self) -> usize {
        self.offset
    }

    /// The whole picture, of which this was the first packet; `None` if it is not known how it is to be read.
    pub(super) fn picture(
        &self,
        tables: &mut Tables,
        size: Option<FrameSize>,
        data: &[u8],
    ) -> Option<Bytes> {
        let FrameSize { width, height } = match (self.width, self.height) {
            (0, _) | (_, 0) => size?,
            (width, height) => FrameSize { width, height },
        };
        let luma = match self.kind & 0x3f {
            0 => 0x21,
            1 => 0x22,
            _ => return None,
        };
        let (quantizers, precision) = tables.of(self)?;
        let mut out = Vec::with_capacity(data.len() + 700);
        out.extend([0xff, 0xd8]);
        let mut rest = &quantizers[..];
        for table in 0..2_u8 {
            let wide = precision >> table & 1;
            let length = if wide == 1 { 128 } else { 64 };
            // One table serves for both if there is no other.
            let (now, behind) =
                rest.split_at_checked(length).or(Some((quantizers.get(..length)?, rest)))?;
            rest = behind;
            segment(&mut out, 0xdb, &[&[wide << 4 | table], now].concat());
        }
        if let Some(interval) = self.restart_interval.filter(|&interval| interval > 0) {
            segment(&mut out, 0xdd, &interval.to_be_bytes());
        }
        let ([h, i], [w, x]) = (height.to_be_bytes(), width.to_be_bytes());
        segment(&mut out, 0xc0, &[8, h, i, w, x, 3, 1, luma, 0, 2, 0x11, 1, 3, 0x11, 1]);
        for (class, counts, symbols) in [
            (0x00, &DC_LUMA_COUNTS, &DC_SYMBOLS[..]),
            (0x10, &AC_LUMA_COUNTS, &AC_LUMA_SYMBOLS[..]),
            (0x01, &DC_CHROMA_COUNTS, &DC_SYMBOLS[..]),
            (0x11, &AC_CHROMA_COUNTS, &AC_CHROMA_SYMBOLS[..]),
        ] {
            segment(&mut out, 0xc4, &[&[class], &counts[..], symbols].concat());
        }
        segment(&mut out, 0xda, &[3, 1, 0x00, 2, 0x11, 3, 0x11, 0, 63, 0]);
        out.extend_from_slice(data);
        if !data.ends_with(&[0xff, 0xd9]) {
            out.extend([0xff, 0xd9]);
        }
        Some(out.into())
    }
}

impl Tables {
    /// The two tables of a picture, and the precision of each as a bit.
    fn of(&mut self, header: &Header) -> Option<(Bytes, u8)> {
        let quality = header.quality;
        match quality {
            1..=99 => Some((from_quality(quality), 0)),
            128..=255 if header.tables.len() >= 64 => {
                let tables = Bytes::copy_from_slice(&header.tables);
                if quality < 255 {
                    self.known.retain(|(known, ..)| *known != quality);
                    self.known.push((quality, tables.clone(), header.precision));
                }
                Some((tables, header.precision))
            }
            128..=254 => {
                let known = self.known.iter().find(|(known, ..)| *known == quality)?;
                Some((known.1.clone(), known.2))
            }
            _ => None,
        }
    }
}

fn segment(out: &mut Vec<u8>, marker: u8, content: &[u8]) {
    let length = u16::try_from(content.len() + 2).unwrap_or(u16::MAX);
    out.extend([0xff, marker]);
    out.extend(length.to_be_bytes());
    out.extend_from_slice(content);
}

/// The tables of libjpeg's quality scale, in zigzag order (RFC 2435, appendix A).
fn from_quality(quality: u8) -> Bytes {
    let quality = u32::from(quality);
    let factor = if quality < 50 { 5000 / quality } else { 200 - 2 * quality };
    let scaled = |&step: &u8| ((u32::from(step) * factor + 50) / 100).clamp(1, 255) as u8;
    LUMA_STEPS.iter().chain(&CHROMA_STEPS).map(scaled).collect()
}

const LUMA_STEPS: [u8; 64] = [
    16, 11, 12, 14, 12, 10, 16, 14, 13, 14, 18, 17, 16, 19, 24, 40, 26, 24, 22, 22, 24, 49, 35, 37,
    29, 40, 58, 51, 61, 60, 57, 51, 56, 55, 64, 72, 92, 78, 64, 68, 87, 69, 55, 56, 80, 109, 81,
    87, 95, 98, 103, 104, 103, 62, 77, 113, 121, 112, 100, 120, 92, 101, 103, 99,
];
const CHROMA_STEPS: [u8; 64] = [
    17, 18, 18, 24, 21, 24, 47, 26, 26, 47, 99, 66, 56, 66, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
];

// ITU-T T.81, annex K.3.
const DC_LUMA_COUNTS: [u8; 16] = [0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0];
const DC_CHROMA_COUNTS: [u8; 16] = [0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0];
const DC_SYMBOLS: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
const AC_LUMA_COUNTS: [u8; 16] = [0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d];
const AC_LUMA_SYMBOLS: [u8; 162] = [
    0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07,
    0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0,
    0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28,
    0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49,
    0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69,
    0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89,
    0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,
    0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5,
    0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2,
    0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8,
    0xf9, 0xfa,
];
const AC_CHROMA_COUNTS: [u8; 16] = [0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77];
const AC_CHROMA_SYMBOLS: [u8; 162] = [
    0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71,
    0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0,
    0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26,
    0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
    0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,
    0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87,
    0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5,
    0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3,
    0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda,
    0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8,
    0xf9, 0xfa,
];
