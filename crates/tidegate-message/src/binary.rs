//! Numbers at fixed places of a binary payload, by the words that describe them: `u16be`, `i8`, `f64le`.

/// How a number is made of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BinaryNumber {
    /// Its type.
    pub kind: NumberKind,
    /// How many bytes it has: 1, 2, 4 or 8; of a float 4 or 8.
    pub bytes: u8,
    /// Whether the most significant byte comes first; of one byte it says nothing.
    pub is_big_endian: bool,
}

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumberKind {
    /// An integer without sign.
    Unsigned,
    /// An integer in two's complement.
    Signed,
    /// IEEE 754.
    Float,
}

impl BinaryNumber {
    /// From a word: the type (`u`, `i`, `f`), its bits, and `le` or `be`, which one byte needs not; none if it is no such word.
    pub fn read(word: &str) -> Option<Self> {
        let kind = match word.as_bytes().first()? {
            b'u' => NumberKind::Unsigned,
            b'i' => NumberKind::Signed,
            b'f' => NumberKind::Float,
            _ => return None,
        };
        let (bytes, is_big_endian) = match &word[1..] {
            "8" | "8le" => (1, false),
            "8be" => (1, true),
            "16le" => (2, false),
            "16be" => (2, true),
            "32le" => (4, false),
            "32be" => (4, true),
            "64le" => (8, false),
            "64be" => (8, true),
            _ => return None,
        };
        let number = Self { kind, bytes, is_big_endian };
        (kind != NumberKind::Float || bytes >= 4).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_numbers_or_none() {
        let number = |kind, bytes, is_big_endian| Some(BinaryNumber { kind, bytes, is_big_endian });
        for (word, expected) in [
            ("u8", number(NumberKind::Unsigned, 1, false)),
            ("i16be", number(NumberKind::Signed, 2, true)),
            ("u32le", number(NumberKind::Unsigned, 4, false)),
            ("i64le", number(NumberKind::Signed, 8, false)),
            ("f32be", number(NumberKind::Float, 4, true)),
            ("f64le", number(NumberKind::Float, 8, false)),
            ("", None),
            ("8", None),
            ("u", None),
            ("u8be", number(NumberKind::Unsigned, 1, true)),
            ("u16", None),
            ("u24be", None),
            ("f8", None),
            ("f16le", None),
            ("U8", None),
            ("é8", None),
        ] {
            assert_eq!(BinaryNumber::read(word), expected, "{word}");
        }
    }
}
