//! How a payload is cut into fields: at separators in text, at offsets in binary, or not at all.
//!
//! Nothing is understood beyond that. The bytes between fields, a JSON message's names and braces among them, are the *skeleton*:
//! they are compared byte for byte, so a payload of any shape comes back as it was.

use crate::number::{Format, TEXT_MAX, WORD, word};

/// Most fields of a payload that is cut; one with more is carried as it stands.
pub const FIELDS_MAX: usize = 255;

/// Most bytes of one field of a payload that is cut.
pub const FIELD_BYTES_MAX: usize = 255;

/// How the payloads of a topic are cut into fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Found from the topic's first payload: JSON by its first byte, line protocol and CSV by their separators, else opaque.
    #[default]
    Auto,
    /// Fields with one of this byte between them. Quotes mean nothing: `"a,b"` is two fields.
    Csv(u8),
    /// SenML or other JSON: fields are what stands between braces, brackets, quotes, colons, commas and white space.
    Json,
    /// InfluxDB line protocol: fields are what stands between commas, spaces and equals signs.
    Line,
    /// Fields of fixed widths, without separators. A payload of another length is opaque.
    Binary(Vec<BinaryField>),
    /// One piece: bytes shared with the topic's last payload at its beginning and end are left out.
    Opaque,
}

/// A field of a binary payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BinaryField {
    /// The meaning of its bytes.
    pub kind: BinaryKind,
    /// Bytes: 1 to 8 of an integer, 4 or 8 of a float, 1 to 255 of others.
    pub width: u8,
    /// Whether the most significant byte comes first.
    pub big_endian: bool,
}

/// How the bytes of a binary field are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryKind {
    /// An integer without sign.
    Unsigned,
    /// An integer in two's complement.
    Signed,
    /// IEEE 754, 4 or 8 bytes.
    Float,
    /// Anything else.
    Bytes,
}

/// How payloads of one shape are cut: the result of a [`Layout`] for one payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cut {
    /// One separator between two fields, and none before the first or after the last.
    Csv(u8),
    /// Fields between runs of separators.
    Runs(Runs),
    /// Fields one after the other.
    Binary(Box<[BinaryField]>),
}

/// A set of separators that come in runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Runs {
    Json,
    Line,
}

impl Runs {
    #[inline]
    fn separates(self, byte: u8) -> bool {
        match self {
            Self::Json => matches!(
                byte,
                b'{' | b'}' | b'[' | b']' | b'"' | b':' | b',' | b' ' | b'\t' | b'\r' | b'\n'
            ),
            Self::Line => matches!(byte, b',' | b' ' | b'=' | b'\n'),
        }
    }
}

impl Layout {
    /// How `payload` is cut; `None` for one piece.
    pub(crate) fn cut(&self, payload: &[u8]) -> Option<Cut> {
        match self {
            Self::Auto => found(payload).cut(payload),
            Self::Csv(separator) => Some(Cut::Csv(*separator)),
            Self::Json => Some(Cut::Runs(Runs::Json)),
            Self::Line => Some(Cut::Runs(Runs::Line)),
            Self::Binary(fields) => (fields.len() <= FIELDS_MAX
                && fields.iter().all(|field| field.is_valid())
                && fields.iter().map(|field| usize::from(field.width)).sum::<usize>()
                    == payload.len())
            .then(|| Cut::Binary(fields.as_slice().into())),
            Self::Opaque => None,
        }
    }
}

/// The layout that a payload of which nothing is known seems to have. A wrong guess costs bytes and nothing else.
fn found(payload: &[u8]) -> Layout {
    let has = |byte| payload.contains(&byte);
    match payload.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => return Layout::Opaque,
        Some(b'{' | b'[') => return Layout::Json,
        Some(_) => {}
    }
    // All of them, though the first would do: many are then looked at at once.
    let is_odd =
        |byte: u8| (byte < b' ') & !matches!(byte, b'\t' | b'\n' | 0x0c | b'\r') | (byte == 0x7f);
    if payload.iter().fold(false, |odd, byte| odd | is_odd(*byte)) {
        return Layout::Opaque;
    }
    if has(b'=') && has(b' ') {
        return Layout::Line;
    }
    let separator = [b',', b';', b'\t', b'|', b' '].into_iter().find(|byte| has(*byte));
    Layout::Csv(separator.unwrap_or(b','))
}

impl BinaryField {
    /// Whether its width is one that its kind has.
    pub fn is_valid(&self) -> bool {
        match self.kind {
            BinaryKind::Unsigned | BinaryKind::Signed => (1..=8).contains(&self.width),
            BinaryKind::Float => matches!(self.width, 4 | 8),
            BinaryKind::Bytes => self.width > 0,
        }
    }
}

impl Cut {
    /// Cuts `payload`: the lengths of its fields into `lens`, those of the skeleton before each field and after the last into `gaps`.
    ///
    /// Returns whether it can be cut so, within [`FIELDS_MAX`] and [`FIELD_BYTES_MAX`]; the vectors hold nothing of use if not.
    pub(crate) fn split(&self, payload: &[u8], lens: &mut Vec<u8>, gaps: &mut Vec<u8>) -> bool {
        lens.clear();
        gaps.clear();
        match self {
            Self::Csv(separator) => {
                let separators = u64::from_le_bytes([*separator; WORD]);
                let mut begin = 0;
                while begin <= payload.len() {
                    let len = field_len(payload, begin, word(payload, begin), separators);
                    begin += len + 1;
                    let Ok(len) = u8::try_from(len) else { return false };
                    lens.push(len);
                    if lens.len() > FIELDS_MAX {
                        return false;
                    }
                }
                gaps.push(0);
                gaps.resize(lens.len(), 1);
                gaps.push(0);
                true
            }
            Self::Runs(runs) => {
                let mut at = 0;
                loop {
                    let gap = run(&payload[at..], |byte| runs.separates(byte));
                    at += gap;
                    let field = run(&payload[at..], |byte| !runs.separates(byte));
                    at += field;
                    let (Ok(gap), Ok(field)) = (u8::try_from(gap), u8::try_from(field)) else {
                        return false;
                    };
                    gaps.push(gap);
                    if field == 0 {
                        return !lens.is_empty();
                    }
                    lens.push(field);
                    if lens.len() > FIELDS_MAX {
                        return false;
                    }
                }
            }
            Self::Binary(fields) => {
                lens.extend(fields.iter().map(|field| field.width));
                gaps.resize(fields.len() + 1, 0);
                fields.iter().map(|field| usize::from(field.width)).sum::<usize>() == payload.len()
            }
        }
    }

    /// The end of the field of `payload` that begins at `start` and holds no separator before `at`.
    #[inline]
    pub(crate) fn end(&self, payload: &[u8], start: usize, at: usize, field: usize) -> usize {
        match self {
            Self::Csv(separator) => {
                let separators = u64::from_le_bytes([*separator; WORD]);
                at + field_len(payload, at, word(payload, at), separators)
            }
            Self::Runs(runs) => at + run(&payload[at..], |byte| !runs.separates(byte)),
            Self::Binary(fields) => start + usize::from(fields[field].width),
        }
    }

    /// The format of a field's numbers before any was seen; `None` for text, where two values are needed to know.
    pub(crate) fn numeral(&self, field: usize) -> Option<Numeral> {
        match self {
            Self::Binary(fields) => Some(Numeral::Binary(fields[field])),
            Self::Csv(_) | Self::Runs(_) => None,
        }
    }
}

/// How long the field of a CSV payload is that begins at `begin`, of which `first` is the [`word`] there.
#[inline]
pub(crate) fn field_len(payload: &[u8], begin: usize, first: u64, separators: u64) -> usize {
    let mut len = bytes_before(first, separators);
    if len == WORD {
        let mut at = begin + WORD;
        while at < payload.len() {
            let more = bytes_before(word(payload, at), separators);
            at += more;
            if more < WORD {
                break;
            }
        }
        len = at - begin;
    }
    // Bytes beyond the payload's end may look like a separator.
    len.min(payload.len() - begin)
}

/// How many of a word's lowest bytes stand before the first that is as those of `others`; all of them if there is none.
#[inline]
fn bytes_before(word: u64, others: u64) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; WORD]);
    let differs = word ^ others;
    // The lowest bit that is set is right: a borrow that would make a false one comes from below.
    let found = differs.wrapping_sub(ONES) & !differs & ONES << 7;
    (found.trailing_zeros() / 8) as usize
}

#[inline]
fn run(bytes: &[u8], goes_on: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|byte| !goes_on(*byte)).unwrap_or(bytes.len())
}

/// How the values of a field become numbers of which differences are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numeral {
    /// As decimal text.
    Decimal(Format),
    /// As bytes.
    Binary(BinaryField),
    /// They are no numbers.
    None,
}

impl Numeral {
    /// The value of `bytes`, if it is a number that [`Numeral::print`] would write in the same way.
    #[inline]
    pub(crate) fn parse(self, bytes: &[u8]) -> Option<i64> {
        match self {
            Self::Decimal(format) => format.parse(bytes),
            Self::Binary(field) => field.parse(bytes),
            Self::None => None,
        }
    }

    /// Writes `value` at the beginning of `out`; returns how many bytes it takes. Bytes beyond them have no meaning.
    #[inline]
    pub(crate) fn print(self, value: i64, out: &mut [u8; TEXT_MAX]) -> usize {
        match self {
            Self::Decimal(format) => format.print(value, out),
            Self::Binary(field) => field.print(value, out),
            Self::None => 0,
        }
    }
}

impl BinaryField {
    fn parse(self, bytes: &[u8]) -> Option<i64> {
        let width = usize::from(self.width);
        if self.kind == BinaryKind::Bytes || bytes.len() != width {
            return None;
        }
        let mut whole = [0; 8];
        whole[..width].copy_from_slice(bytes);
        if self.big_endian {
            whole[..width].reverse();
        }
        let unused = 64 - 8 * u32::from(self.width);
        let bits = i64::from_le_bytes(whole);
        Some(match self.kind {
            BinaryKind::Signed => bits << unused >> unused,
            // Floats of one sign are ordered as their bits are; folding the negative ones over makes that hold across zero, so that
            // values close to each other have small differences.
            BinaryKind::Float => {
                let signed = bits << unused >> unused;
                let magnitude = i64::MAX >> unused;
                if signed < 0 { !(signed & magnitude) } else { signed }
            }
            BinaryKind::Unsigned | BinaryKind::Bytes => bits,
        })
    }

    fn print(self, value: i64, out: &mut [u8; TEXT_MAX]) -> usize {
        let width = usize::from(self.width);
        let value = match self.kind {
            BinaryKind::Float if value < 0 => !value | i64::MIN >> (64 - 8 * u32::from(self.width)),
            _ => value,
        };
        out[..width].copy_from_slice(&value.to_le_bytes()[..width]);
        if self.big_endian {
            out[..width].reverse();
        }
        width
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn printed(field: BinaryField, value: i64) -> Vec<u8> {
        let mut out = [0; TEXT_MAX];
        let len = field.print(value, &mut out);
        out[..len].to_vec()
    }

    #[test]
    fn a_layout_is_found_from_the_first_payload() {
        for (payload, expected) in [
            ("{\"v\":1}", Layout::Json),
            (" [1,2]", Layout::Json),
            ("a,b c", Layout::Csv(b',')),
            ("1;2", Layout::Csv(b';')),
            ("21.5", Layout::Csv(b',')),
            ("cpu,host=a load=1 17", Layout::Line),
            ("a b", Layout::Csv(b' ')),
            ("\u{1}\u{2}", Layout::Opaque),
            ("", Layout::Opaque),
            ("  ", Layout::Opaque),
        ] {
            assert_eq!(found(payload.as_bytes()), expected, "{payload:?}");
        }
    }

    #[test]
    fn payloads_are_cut_into_fields_and_skeleton() {
        for (cut, payload, lens, gaps) in [
            (Cut::Csv(b','), "1,,abc", &[1, 0, 3][..], &[0, 1, 1, 0][..]),
            (Cut::Csv(b','), "", &[0], &[0, 0]),
            (
                Cut::Runs(Runs::Json),
                "{\"v\":\"1.5\", \"n\": true}",
                &[1, 3, 1, 4],
                &[2, 3, 4, 3, 1],
            ),
            (
                Cut::Runs(Runs::Line),
                "cpu,host=a load=1 17",
                &[3, 4, 1, 4, 1, 2],
                &[0, 1, 1, 1, 1, 1, 0],
            ),
        ] {
            let (mut found_lens, mut found_gaps) = (Vec::new(), Vec::new());
            assert!(cut.split(payload.as_bytes(), &mut found_lens, &mut found_gaps), "{payload}");
            assert_eq!((found_lens.as_slice(), found_gaps.as_slice()), (lens, gaps), "{payload}");
        }
    }

    #[test]
    fn too_many_fields_or_too_long_ones_are_not_cut() {
        let (mut lens, mut gaps) = (Vec::new(), Vec::new());
        let fields = |count: usize| vec!["x"; count].join(",");
        for (payload, expected) in [
            (fields(FIELDS_MAX), true),
            (fields(FIELDS_MAX + 1), false),
            ("x".repeat(FIELD_BYTES_MAX), true),
            ("x".repeat(FIELD_BYTES_MAX + 1), false),
        ] {
            for cut in [Cut::Csv(b','), Cut::Runs(Runs::Json)] {
                assert_eq!(cut.split(payload.as_bytes(), &mut lens, &mut gaps), expected);
            }
        }
        assert!(!Cut::Runs(Runs::Json).split(b"{}", &mut lens, &mut gaps), "no field at all");
    }

    proptest! {
        #[test]
        fn binary_numbers_come_back(bytes in proptest::collection::vec(any::<u8>(), 8), width in 1u8..=8, big_endian: bool, signed: bool) {
            let kind = if signed { BinaryKind::Signed } else { BinaryKind::Unsigned };
            let field = BinaryField { kind, width, big_endian };
            let bytes = &bytes[..usize::from(width)];
            let value = field.parse(bytes).unwrap();
            prop_assert_eq!(printed(field, value), bytes);
        }

        #[test]
        fn floats_come_back_and_are_ordered(one: f32, other: f64, next: f64, big_endian: bool) {
            let narrow = BinaryField { kind: BinaryKind::Float, width: 4, big_endian };
            let wide = BinaryField { width: 8, ..narrow };
            let bytes = |value: f64| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
            let small = if big_endian { one.to_be_bytes() } else { one.to_le_bytes() };
            prop_assert_eq!(printed(narrow, narrow.parse(&small).unwrap()), small);
            let value = wide.parse(&bytes(other)).unwrap();
            prop_assert_eq!(printed(wide, value), bytes(other));
            if other < next {
                prop_assert!(value < wide.parse(&bytes(next)).unwrap());
            }
        }

        #[test]
        fn any_payload_is_cut_or_not(payload: Vec<u8>, separator: u8) {
            let (mut lens, mut gaps) = (Vec::new(), Vec::new());
            for cut in [Cut::Csv(separator), Cut::Runs(Runs::Json), Cut::Runs(Runs::Line)] {
                if cut.split(&payload, &mut lens, &mut gaps) {
                    let bytes = lens.iter().chain(&gaps).map(|len| usize::from(*len)).sum::<usize>();
                    prop_assert_eq!(bytes, payload.len());
                    prop_assert_eq!(gaps.len(), lens.len() + 1);
                }
            }
        }
    }
}
