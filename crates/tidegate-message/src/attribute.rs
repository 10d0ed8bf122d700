//! Names and values of attributes, of which profiles and interests are made, their limits, and the refusals of both.

use std::{cmp::Ordering, fmt, hash};

use crate::{AreaError, GeoPointError};

/// Attributes of a profile, and conditions of an interest.
pub const ATTRIBUTES_MAX: usize = 32;
/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of a text that is a value, or that values begin with.
pub const VALUE_BYTES_MAX: usize = 256;
/// Bytes of a unit.
pub const UNIT_BYTES_MAX: usize = 16;
/// Items of a list.
pub const ITEMS_MAX: usize = 32;
/// Bytes of all names, texts and units of a profile or an interest, and 8 for each number.
pub const PROFILE_BYTES_MAX: usize = 4096;
/// Bytes of the text of a profile or an interest, which are counted before it is read.
pub const TEXT_BYTES_MAX: usize = 32 << 10;
/// All that is shown can be read back. Of names and values a byte is at most six of a text, as in `"\"", `; an attribute has eight signs more.
const _: () = assert!(TEXT_BYTES_MAX >= 6 * PROFILE_BYTES_MAX + ATTRIBUTES_MAX * 8);

/// The name by which the text of a profile or an interest says a place.
pub const PLACE_NAME: &str = "place";
/// The name of a place's latitude in conditions, as in listing 2 of R-Pulsar.
pub const LATITUDE_NAME: &str = "lat";
/// The name of a place's longitude in conditions, as in listing 2 of R-Pulsar.
pub const LONGITUDE_NAME: &str = "long";

/// Whether a name is the place's, and so no attribute's.
pub fn is_of_the_place(name: &str) -> bool {
    [PLACE_NAME, LATITUDE_NAME, LONGITUDE_NAME].contains(&name)
}

/// A finite number, with a unit or without one: `720p`, `-21.5C`, `3`.
///
/// As text it is a decimal number, in its shortest form, and the unit right behind it; with an exponent below 10⁻⁵ and beyond 2⁵³, up to
/// which all whole numbers are exact. Two numbers are equal if both parts are: nothing is converted, so that `1km` is not `1000m`.
#[derive(Clone, Debug)]
pub struct Number {
    value: f64,
    unit: Box<str>,
}

impl Number {
    /// Numbers that are shown without an exponent, 0 aside, are at least as large, by their magnitude.
    pub(crate) const PLAIN_MIN: f64 = 1e-5;
    /// Numbers that are shown without an exponent are at most as large, by their magnitude: whole numbers up to 2⁵³ have no neighbour that a
    /// float cannot hold.
    pub(crate) const PLAIN_MAX: f64 = 9_007_199_254_740_992.0;

    /// A checked number; the unit is empty if there is none. There is one zero: −0 is 0.
    ///
    /// # Errors
    /// [`AttributeError::NotFinite`]; [`AttributeError::TooLong`] for a unit of more than [`UNIT_BYTES_MAX`] bytes;
    /// [`AttributeError::Unit`] for one that has anything but letters and `% ° / ² ³`.
    pub fn new(value: f64, unit: &str) -> Result<Self, AttributeError> {
        if !value.is_finite() {
            return Err(AttributeError::NotFinite { value });
        }
        check_length("unit", unit, UNIT_BYTES_MAX)?;
        if !unit.chars().all(is_of_a_unit) {
            return Err(AttributeError::Unit { unit: shown(unit) });
        }
        Ok(Self { value: value + 0.0, unit: unit.into() })
    }

    /// The number without its unit.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// The unit; empty if there is none.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The number that a text begins with and the rest of the text; none if it begins with no digit, a `-` before it aside.
    pub(crate) fn scan(text: &str) -> Option<(Result<Self, AttributeError>, &str)> {
        let digits = |from: usize| {
            let end = text[from..].find(|c: char| !c.is_ascii_digit());
            end.map_or(text.len(), |end| from + end)
        };
        let begin = usize::from(text.starts_with('-'));
        let mut end = digits(begin);
        if end == begin {
            return None;
        }
        if text[end..].starts_with('.') && digits(end + 1) > end + 1 {
            end = digits(end + 1);
        }
        if text[end..].starts_with(['e', 'E']) {
            let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
            if digits(end + 1 + sign) > end + 1 + sign {
                end = digits(end + 1 + sign);
            }
        }
        let (number, rest) = text.split_at(end);
        let (unit, rest) = rest.split_at(rest.find(|c| !is_of_a_unit(c)).unwrap_or(rest.len()));
        let number = number.parse().map_or(f64::NAN, |number: f64| number);
        Some((Self::new(number, unit), rest))
    }

    /// Whether a word that was read as this number can be told from all words that are other numbers: it is written as the number is shown, or
    /// with more zeros at the end of its fraction.
    ///
    /// Identifiers often look like numbers: `007`, `00e3`, a commit `12e4567`, twenty digits. Were they numbers, different ones would be equal.
    /// Measured values do not look so, and sensors do print `21.50` and `-0.0`.
    fn keeps_digits_of(&self, word: &str) -> bool {
        let digits = &word[..word.len() - self.unit.len()];
        let (mantissa, exponent) = digits.split_at(digits.find('e').unwrap_or(digits.len()));
        let mantissa = match mantissa.contains('.') {
            true => mantissa.trim_end_matches('0').trim_end_matches('.'),
            false => mantissa,
        };
        let value = self.value;
        match exponent {
            "" if value == 0.0 => mantissa == "0" || mantissa == "-0",
            // A small number may be written without an exponent: 0.000001.
            "" => value.abs() <= Self::PLAIN_MAX && mantissa == value.to_string(),
            _ => !self.is_plain() && [mantissa, exponent].concat() == format!("{value:e}"),
        }
    }

    /// Whether it is shown without an exponent.
    fn is_plain(&self) -> bool {
        matches!(self.value.abs(), 0.0 | Self::PLAIN_MIN..=Self::PLAIN_MAX)
    }
}

fn is_of_a_unit(c: char) -> bool {
    c.is_alphabetic() || "%°/²³".contains(c)
}

impl Ord for Number {
    /// By the unit, and by the number within one.
    fn cmp(&self, other: &Self) -> Ordering {
        self.unit.cmp(&other.unit).then_with(|| self.value.total_cmp(&other.value))
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Number {}

impl hash::Hash for Number {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        (self.value.to_bits(), &self.unit).hash(state);
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, unit } = self;
        match self.is_plain() {
            true => write!(f, "{value}{unit}"),
            false => write!(f, "{value:e}{unit}"),
        }
    }
}

/// One value: a number or a text. They are never equal, not even `720p` and `"720p"`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A number.
    Number(Number),
    /// A text, of 1 to [`VALUE_BYTES_MAX`] bytes, whose case counts.
    Text(Box<str>),
}

impl Item {
    /// A text.
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// Whether the text of the value begins with those bytes: that of a number is the one that it is written with, its unit included.
    pub fn begins_with(&self, prefix: &str) -> bool {
        match self {
            Self::Number(number) => number.to_string().starts_with(prefix),
            Self::Text(text) => text.starts_with(prefix),
        }
    }

    /// A word without quotes: a number if all of it is one and its digits survive, a text otherwise.
    pub(crate) fn of_word(word: &str) -> Self {
        match Number::scan(word) {
            Some((Ok(number), "")) if number.keeps_digits_of(word) => Self::Number(number),
            _ => Self::text(word),
        }
    }

    pub(crate) fn check(&self) -> Result<(), AttributeError> {
        match self {
            Self::Number(_) => Ok(()),
            Self::Text(text) => check_text("value", text, VALUE_BYTES_MAX),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Number(number) => size_of::<f64>() + number.unit.len(),
            Self::Text(text) => text.len(),
        }
    }
}

/// As the texts of profiles and interests have it: in quotes where it would be read as something else.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            // It would be a number, or the beginning of a range.
            Self::Text(text) if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
                write!(f, "\"{}\"", escaped(text))
            }
            Self::Text(text) => Word(text).fmt(f),
        }
    }
}

/// Items as a list is written: `[100, 101]`.
pub(crate) struct Items<'a>(pub(crate) &'a [Item]);

impl fmt::Display for Items<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if number == 0 { "[" } else { ", " })?;
        }
        f.write_str("]")
    }
}

/// Items in their order, each once, if they are not too many.
pub(crate) fn sorted(name: &str, items: Box<[Item]>) -> Result<Box<[Item]>, AttributeError> {
    check_items(name, items.len())?;
    items.iter().try_for_each(Item::check)?;
    let mut items = items.into_vec();
    items.sort_unstable();
    items.dedup();
    Ok(items.into())
}

/// Characters that end a word which is not in quotes; `:` ends a name as well. The last three mean nothing, and are not taken for letters.
pub(crate) const SIGNS: &[char] =
    &[',', '=', '<', '>', '*', '[', ']', '(', ')', '"', '≤', '≥', '≠'];

/// A name, or the beginning of one or of a value, in quotes where it would not be read back as a word.
pub(crate) struct Word<'a>(pub(crate) &'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = *self;
        let is_plain = !text.is_empty() && text.trim() == text && !text.contains(SIGNS);
        // Without quotes a `!` at either end is refused, since it would be a negation.
        let is_negation = text.starts_with('!') || text.ends_with('!');
        match is_plain && !is_negation && !text.contains(':') {
            true => f.write_str(text),
            false => write!(f, "\"{}\"", escaped(text)),
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// Checks the length of a text before it is read.
pub(crate) fn check_text_bytes(text: &str) -> Result<(), AttributeError> {
    check_length("text", text, TEXT_BYTES_MAX)
}

/// Checks a name of an attribute.
pub(crate) fn check_name(name: &str) -> Result<(), AttributeError> {
    check_text("name", name, NAME_BYTES_MAX)
}

/// Checks a text that may not be empty.
pub(crate) fn check_text(
    thing: &'static str,
    text: &str,
    most: usize,
) -> Result<(), AttributeError> {
    if text.is_empty() {
        return Err(AttributeError::Empty { thing });
    }
    check_length(thing, text, most)?;
    match text.chars().find(|c| c.is_control()) {
        Some(character) => Err(AttributeError::Character { thing, text: shown(text), character }),
        None => Ok(()),
    }
}

fn check_length(thing: &'static str, text: &str, most: usize) -> Result<(), AttributeError> {
    match text.len() {
        bytes if bytes > most => {
            Err(AttributeError::TooLong { thing, text: shown(text), bytes, most })
        }
        _ => Ok(()),
    }
}

/// Checks how many attributes or conditions there are.
pub(crate) fn check_count(things: &'static str, count: usize) -> Result<(), AttributeError> {
    match count {
        0..=ATTRIBUTES_MAX => Ok(()),
        _ => Err(AttributeError::TooMany { things, count, most: ATTRIBUTES_MAX }),
    }
}

/// Checks how many items a list has.
pub(crate) fn check_items(name: &str, count: usize) -> Result<(), AttributeError> {
    match count {
        0..=ITEMS_MAX => Ok(()),
        _ => Err(AttributeError::Items { name: shown(name), count, most: ITEMS_MAX }),
    }
}

/// Checks the bytes of all names and values together.
pub(crate) fn check_size(bytes: usize) -> Result<(), AttributeError> {
    match bytes {
        0..=PROFILE_BYTES_MAX => Ok(()),
        _ => Err(AttributeError::TooLarge { bytes, most: PROFILE_BYTES_MAX }),
    }
}

/// A text as an error has it: as much of it as is needed to find it.
pub(crate) fn shown(text: &str) -> Box<str> {
    const CHARACTERS_MAX: usize = 40;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Why attributes are no profile, or conditions no interest. Texts of the caller are cut to 40 characters.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AttributeError {
    /// More attributes or conditions than [`ATTRIBUTES_MAX`].
    #[error("{count} {things} are too many: {most} are allowed; leave some out")]
    TooMany {
        /// Attributes, or conditions.
        things: &'static str,
        /// How many were found.
        count: usize,
        /// How many may be there.
        most: usize,
    },
    /// All names and values together have more bytes than [`PROFILE_BYTES_MAX`].
    #[error(
        "names and values have {bytes} bytes in all, and {most} are allowed; put what is long into the message"
    )]
    TooLarge {
        /// Bytes that they have.
        bytes: usize,
        /// Bytes that they may have.
        most: usize,
    },
    /// A name or a value without a character.
    #[error("a {thing} has at least one character, this one is empty; leave it out")]
    Empty {
        /// A name, or a value.
        thing: &'static str,
    },
    /// A name, value, unit or whole text of too many bytes.
    #[error("the {thing} {text:?} has {bytes} bytes, and {most} are allowed; shorten it")]
    TooLong {
        /// A name, a value, a unit, or the text of a profile or an interest.
        thing: &'static str,
        /// How it begins.
        text: Box<str>,
        /// Bytes that it has.
        bytes: usize,
        /// Bytes that it may have.
        most: usize,
    },
    /// A control character in a name or a value.
    #[error("the {thing} {text:?} has the control character {character:?}; leave it out")]
    Character {
        /// A name, or a value.
        thing: &'static str,
        /// How it begins.
        text: Box<str>,
        /// The first such character.
        character: char,
    },
    /// A name that two attributes of a profile have.
    #[error("the attribute {name:?} is there twice; give it a list: {name} = [FIRST, SECOND]")]
    Twice {
        /// The name.
        name: Box<str>,
    },
    /// A name of the place where an attribute's is expected.
    #[error(
        "{name:?} is a name of the place and of no attribute; write place = (LATITUDE, LONGITUDE), and in an interest lat or long with \
         a condition, or place = *"
    )]
    Reserved {
        /// The name.
        name: Box<str>,
    },
    /// Two places of one profile.
    #[error("a profile has one place, this one has two; leave one out")]
    Places,
    /// A list of too many items.
    #[error("the list of {name:?} has {count} items, and {most} are allowed; leave some out")]
    Items {
        /// The attribute.
        name: Box<str>,
        /// How many were found.
        count: usize,
        /// How many may be there.
        most: usize,
    },
    /// A list without an item.
    #[error("the list of {name:?} is empty; name an item, or leave the attribute out")]
    NoItems {
        /// The attribute.
        name: Box<str>,
    },
    /// A number that is infinite or none.
    #[error("{value} is no finite number; give one within ±1.79e308")]
    NotFinite {
        /// The value found.
        value: f64,
    },
    /// A unit with other characters than units have.
    #[error("{unit:?} is no unit: units have letters and the signs % ° / ² ³, such as km/h")]
    Unit {
        /// The unit.
        unit: Box<str>,
    },
    /// A range that ends before it begins.
    #[error(
        "the range of {name:?} from {low} to {high} has no number; write the lower end first (over the date line: \
         place = [(SOUTH, WEST) - (NORTH, EAST)])"
    )]
    Order {
        /// The attribute.
        name: Box<str>,
        /// Where it begins.
        low: Number,
        /// Where it ends.
        high: Number,
    },
    /// A range whose ends have two units.
    #[error("the range of {name:?} from {low} to {high} has two units; write both ends with one")]
    Units {
        /// The attribute.
        name: Box<str>,
        /// Where it begins.
        low: Number,
        /// Where it ends.
        high: Number,
    },
    /// A comparison with something else than a number.
    #[error("{text:?} cannot be compared, as numbers can; write a number such as 720p")]
    NoNumber {
        /// The value found.
        text: Box<str>,
    },
    /// A condition of the latitude or longitude that no degrees fulfil.
    #[error(
        "{found:?} is no {name} of a place, and none begins so; write degrees without a unit such as 40.5, and a - before those of south and \
         west"
    )]
    Degrees {
        /// The name.
        name: Box<str>,
        /// The number or text found.
        found: Box<str>,
    },
    /// A range in the text of a profile.
    #[error(
        "[{text}] is a range, and a profile has none; list the values that it has, or put a word with a - into quotes"
    )]
    ProfileRange {
        /// The text in the brackets.
        text: Box<str>,
    },
    /// A sign that begins no condition.
    #[error(
        "at byte {at} stands {found:?}, which is no sign of a condition; {way_out}, or put a name with signs into quotes"
    )]
    Sign {
        /// Where it is, from 0.
        at: usize,
        /// The sign.
        found: &'static str,
        /// The way to say it.
        way_out: &'static str,
    },
    /// A range of words.
    #[error(
        "[{text}] is no range, as ranges are of numbers; list the words, or put a word with a - into quotes"
    )]
    WordRange {
        /// The text in the brackets.
        text: Box<str>,
    },
    /// A condition in the text of a profile.
    #[error(
        "at byte {at} of a profile stands {found:?}, and a profile has no conditions; write NAME = VALUE, or an interest"
    )]
    Condition {
        /// Where it is, from 0.
        at: usize,
        /// The sign that begins it.
        found: char,
    },
    /// A text that is no profile or no interest.
    #[error(
        "at byte {at} stands {found:?} where {expected} should be; texts with signs stand in quotes"
    )]
    Form {
        /// Where it is, from 0.
        at: usize,
        /// The rest of the text there, empty at its end.
        found: Box<str>,
        /// The thing that may stand there.
        expected: &'static str,
    },
    /// A place that is no point.
    #[error(transparent)]
    Point(#[from] GeoPointError),
    /// A box or a circle that is none.
    #[error(transparent)]
    Area(#[from] AreaError),
}
