//! Interests: what a consumer wants of profiles, and the rule that selects them (R-Pulsar, section IV-D, "associative selection").

use std::{fmt, iter, ops::RangeInclusive, str::FromStr, sync::Arc};

use crate::{
    Area, GeoPoint,
    attribute::{
        AttributeError, Item, Items, LATITUDE_NAME, Number, PLACE_NAME, VALUE_BYTES_MAX, Word,
        check_count, check_items, check_name, check_size, check_text, is_of_the_place, shown,
        sorted,
    },
    attribute_text::{Scanner, Token},
    profile::Profile,
};

/// A set of conditions, all of which a profile that matches fulfils.
///
/// As text, conditions have a comma between them, and may stand in parentheses:
///
/// | condition | holds for a profile that has |
/// |---|---|
/// | `Drone` | the attribute, with a value or without one |
/// | `Li*` | an attribute whose name begins so |
/// | `*` | an attribute |
/// | `type = Public`, `type:Public` | the attribute with that value |
/// | `type = *` | the attribute with a value |
/// | `type = Pub*`, `quality:72*` | the attribute with a value whose text begins so; that of a number is decimal, with its unit |
/// | `type = [Public, Shared]` | the attribute with one of those values |
/// | `location = [100-105]`, `[100p - 105p]` | the attribute with a number within them, both included |
/// | `location = [100-*]`, `[*-105]` | the same with one end |
/// | `quality >= 720p`, and `>`, `<=`, `<` | the attribute with such a number |
/// | `place = (40.0583, -74.4056)` | that place |
/// | `place = (40.0583, -74.4056) within 500m` | a place at that distance or a smaller one, in whole metres; `km` as well |
/// | `place = [(40, -75) - (41, -74)]` | a place in that box, whose south-western corner comes first; over the date line as well |
/// | `place = *` | a place |
/// | `lat` or `long` as above, with a value | a place with such a latitude or longitude, in degrees without a unit |
/// | `lat:40*`, `long:-74.40*` | the same, with seven decimals, of which the text begins so: `lat:40.0*` takes 40 |
///
/// A longitude is from −180 to less than 180, so that the meridian of 180° is −180 for `long`, and 0 at a pole. Areas go by the earth: a box up to
/// 180 has the points of −180, and one that reaches a pole has the pole.
///
/// Where the profile has a list, a condition holds if it holds for one of the items, and another condition may hold for another item. Case counts, in
/// names, texts and units. Units have to be equal:
/// `>= 720p` is fulfilled by no number with another unit, or without one. Values are numbers or texts, and texts are quoted, as in a [`Profile`];
/// comparisons and ranges take numbers in other forms as well, such as `1e3`. In brackets are a range, if two numbers with a `-` between them are all
/// that is there, or a list. Conditions are kept and shown in one order, each once, and an interest without any matches all profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest {
    conditions: Arc<[Condition]>,
}

/// A condition of an interest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    /// The profile contains such an attribute.
    Name(Keyword),
    /// The profile contains the attribute, with a value that satisfies the wanted one. By [`LATITUDE_NAME`] and [`LONGITUDE_NAME`](crate::attribute::LONGITUDE_NAME) it is of
    /// the place.
    Pair {
        /// The name of the attribute.
        name: Box<str>,
        /// The wanted value.
        wanted: ValueCondition,
    },
    /// The profile has a place in that area.
    Place(Area),
}

/// The attribute that a singleton asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keyword {
    /// Any attribute.
    Any,
    /// The attribute of that name.
    Exactly(Box<str>),
    /// An attribute whose name begins so.
    Prefix(Box<str>),
}

/// The value that a pair asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ValueCondition {
    /// Any value.
    Any,
    /// That value.
    Exactly(Item),
    /// A value whose text begins so.
    Prefix(Box<str>),
    /// One of those values, of which [`Interest::new`] takes up to [`ITEMS_MAX`](crate::attribute::ITEMS_MAX).
    OneOf(Box<[Item]>),
    /// A number that is at least the first one and at most the second one.
    Between(Number, Number),
    /// A number that is as large or larger.
    AtLeast(Number),
    /// A larger number.
    MoreThan(Number),
    /// A number that is as small or smaller.
    AtMost(Number),
    /// A smaller number.
    LessThan(Number),
}

impl Interest {
    /// The interest with those conditions.
    ///
    /// # Errors
    /// [`AttributeError`]: those of [`Profile::new`], [`AttributeError::NoItems`] for an empty list, [`AttributeError::Order`] and
    /// [`AttributeError::Units`] for a range, and [`AttributeError::Degrees`] for a latitude or longitude.
    pub fn new(conditions: Vec<Condition>) -> Result<Self, AttributeError> {
        check_count("conditions", conditions.len())?;
        let checked = conditions.into_iter().map(Condition::checked);
        let mut checked = checked.collect::<Result<Vec<_>, _>>()?;
        checked.sort_unstable();
        checked.dedup();
        check_size(checked.iter().map(Condition::bytes).sum())?;
        Ok(Self { conditions: checked.into() })
    }

    /// The conditions, in one order whatever their order was.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// Whether all conditions hold for the profile.
    ///
    /// The paper: "The singleton attribute evaluates to true with respect to a profile p if and only if p contains the attribute. The
    /// attribute-value pair evaluates to true if and only if p contains an attribute and the corresponding value satisfies" the wanted one. So a
    /// singleton is true of an attribute with a value as well, and a pair is not of one without.
    ///
    /// At most 32 conditions look up a name and ask each of at most 32 values, and one that wants a value of a list compares six times: 6,144
    /// comparisons at the worst. Where the beginning of a number is wanted, its text is made for it.
    pub fn matches(&self, profile: &Profile) -> bool {
        self.conditions.iter().all(|condition| condition.holds(profile))
    }
}

impl Condition {
    fn holds(&self, profile: &Profile) -> bool {
        match self {
            Self::Name(Keyword::Any) => !profile.attributes().is_empty(),
            Self::Name(Keyword::Exactly(name)) => profile.attribute(name).is_some(),
            Self::Name(Keyword::Prefix(prefix)) => profile.has_name_with(prefix),
            Self::Place(area) => profile.place().is_some_and(|place| area.contains(place)),
            Self::Pair { name, wanted } if is_of_the_place(name) => {
                let steps = profile.place().map(|place| match &**name {
                    LATITUDE_NAME => place.latitude_steps(),
                    _ => place.longitude_steps(),
                });
                steps.is_some_and(|steps| wanted.is_satisfied_by_degrees(steps))
            }
            Self::Pair { name, wanted } => {
                let attribute = profile.attribute(name);
                attribute.is_some_and(|it| it.values.iter().any(|it| wanted.is_satisfied_by(it)))
            }
        }
    }

    fn checked(self) -> Result<Self, AttributeError> {
        match self {
            Self::Name(Keyword::Exactly(name)) if is_of_the_place(&name) => {
                return Err(AttributeError::Reserved { name });
            }
            Self::Name(Keyword::Exactly(ref name) | Keyword::Prefix(ref name)) => {
                check_name(name)?;
            }
            Self::Name(Keyword::Any) | Self::Place(_) => {}
            Self::Pair { name, .. } if &*name == PLACE_NAME => {
                return Err(AttributeError::Reserved { name });
            }
            Self::Pair { name, wanted } => {
                check_name(&name)?;
                if is_of_the_place(&name) {
                    wanted.check_degrees(&name)?;
                }
                let wanted = wanted.checked(&name)?;
                return Ok(Self::Pair { name, wanted });
            }
        }
        Ok(self)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Name(Keyword::Any) => 0,
            Self::Name(Keyword::Exactly(name) | Keyword::Prefix(name)) => name.len(),
            Self::Pair { name, wanted } => name.len() + wanted.bytes(),
            Self::Place(_) => size_of::<Area>(),
        }
    }
}

impl ValueCondition {
    /// Whether a value is one that is asked for.
    fn is_satisfied_by(&self, value: &Item) -> bool {
        let compared = |bound: &Number, holds: fn(f64, f64) -> bool| match value {
            Item::Number(number) => {
                number.unit() == bound.unit() && holds(number.value(), bound.value())
            }
            Item::Text(_) => false,
        };
        match self {
            Self::Any => true,
            Self::Exactly(item) => item == value,
            Self::Prefix(prefix) => value.begins_with(prefix),
            Self::OneOf(items) => items.binary_search(value).is_ok(),
            Self::Between(low, high) => {
                compared(low, |it, low| it >= low) && compared(high, |it, high| it <= high)
            }
            Self::AtLeast(low) => compared(low, |it, low| it >= low),
            Self::MoreThan(low) => compared(low, |it, low| it > low),
            Self::AtMost(high) => compared(high, |it, high| it <= high),
            Self::LessThan(high) => compared(high, |it, high| it < high),
        }
    }

    /// Whether the latitude or longitude of a place, in steps, is one that is asked for.
    fn is_satisfied_by_degrees(&self, steps: i32) -> bool {
        match self {
            Self::Prefix(prefix) => {
                // Seven decimals are all that a place has. In the form of a number, 40 would not begin with 40.0, nor 0.000005 with 0.
                let (sign, steps) = (if steps < 0 { "-" } else { "" }, steps.unsigned_abs());
                let text = format!("{sign}{}.{:07}", steps / 10_000_000, steps % 10_000_000);
                text.starts_with(&**prefix)
            }
            _ => Number::new(GeoPoint::degrees(steps), "")
                .is_ok_and(|degrees| self.is_satisfied_by(&Item::Number(degrees))),
        }
    }

    /// Refuses values that are no degrees.
    fn check_degrees(&self, name: &str) -> Result<(), AttributeError> {
        let is_degrees = |number: &Number| number.unit().is_empty();
        let refused = |number: &Number| (!is_degrees(number)).then(|| number.to_string());
        let refused_item = |item: &Item| match item {
            Item::Number(number) => refused(number),
            Item::Text(text) => Some(text.to_string()),
        };
        let found = match self {
            Self::Any => None,
            Self::Exactly(item) => refused_item(item),
            Self::Prefix(prefix) => {
                degrees_that_begin_with(prefix).is_none().then(|| prefix.to_string())
            }
            Self::OneOf(items) => items.iter().find_map(refused_item),
            Self::Between(low, high) => [low, high].into_iter().find_map(refused),
            Self::AtLeast(it) | Self::MoreThan(it) | Self::AtMost(it) | Self::LessThan(it) => {
                refused(it)
            }
        };
        match found {
            Some(found) => Err(AttributeError::Degrees { name: name.into(), found: shown(&found) }),
            None => Ok(()),
        }
    }

    /// Ranges with all degrees that satisfy it as a condition of the latitude or longitude, within a step of 10⁻⁷; others may lie in them as well.
    pub fn degrees(&self) -> Vec<RangeInclusive<f64>> {
        match self {
            Self::Prefix(prefix) => degrees_that_begin_with(prefix).unwrap_or_default(),
            _ => self.numbers(),
        }
    }

    /// Ranges with all numbers that satisfy it, whatever their units; other numbers may lie in them as well.
    pub fn numbers(&self) -> Vec<RangeInclusive<f64>> {
        let exactly = |item: &Item| match item {
            Item::Number(number) => Some(number.value()..=number.value()),
            Item::Text(_) => None,
        };
        match self {
            Self::Any => vec![f64::MIN..=f64::MAX],
            Self::Exactly(item) => exactly(item).into_iter().collect(),
            Self::Prefix(prefix) => numbers_that_begin_with(prefix),
            Self::OneOf(items) => items.iter().filter_map(exactly).collect(),
            Self::Between(low, high) => vec![low.value()..=high.value()],
            Self::AtLeast(low) | Self::MoreThan(low) => vec![low.value()..=f64::MAX],
            Self::AtMost(high) | Self::LessThan(high) => vec![f64::MIN..=high.value()],
        }
    }

    fn checked(self, name: &str) -> Result<Self, AttributeError> {
        match self {
            Self::Exactly(ref item) => item.check()?,
            Self::Prefix(ref prefix) => check_text("value", prefix, VALUE_BYTES_MAX)?,
            Self::OneOf(items) => {
                let items = sorted(name, items)?;
                return match &*items {
                    [] => Err(AttributeError::NoItems { name: shown(name) }),
                    [item] => Ok(Self::Exactly(item.clone())),
                    _ => Ok(Self::OneOf(items)),
                };
            }
            Self::Between(low, high) if low.unit() != high.unit() => {
                return Err(AttributeError::Units { name: shown(name), low, high });
            }
            Self::Between(low, high) if low.value() > high.value() => {
                return Err(AttributeError::Order { name: shown(name), low, high });
            }
            Self::Any
            | Self::Between(..)
            | Self::AtLeast(_)
            | Self::MoreThan(_)
            | Self::AtMost(_)
            | Self::LessThan(_) => {}
        }
        Ok(self)
    }

    fn bytes(&self) -> usize {
        let of = |number: &Number| size_of::<f64>() + number.unit().len();
        match self {
            Self::Any => 0,
            Self::Exactly(item) => item.bytes(),
            Self::Prefix(prefix) => prefix.len(),
            Self::OneOf(items) => items.iter().map(Item::bytes).sum(),
            Self::Between(low, high) => of(low) + of(high),
            Self::AtLeast(it) | Self::MoreThan(it) | Self::AtMost(it) | Self::LessThan(it) => {
                of(it)
            }
        }
    }
}

/// Ranges with all numbers whose text begins so. `40` begins 40 to 41, 400 to 410 and so on, up to where numbers have an exponent; `40.0`
/// begins 40 to 40.1. Numbers with an exponent are taken whatever their digits are.
fn numbers_that_begin_with(prefix: &str) -> Vec<RangeInclusive<f64>> {
    let (is_negative, digits) = match prefix.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, prefix),
    };
    if !digits.is_empty() && !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Vec::new();
    }
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    let plain = digits[..end].trim_end_matches('.');
    let places = plain.split_once('.').map(|(_, fraction)| fraction.len() as i32);
    // A point in the prefix, or anything behind its digits, says how many digits there are before the point.
    let is_whole = places.is_none() && digits == plain;
    let mut ranges = vec![0.0..=Number::PLAIN_MIN, Number::PLAIN_MAX..=f64::MAX];
    match plain.parse::<f64>() {
        // Digits are lost where there are too many for a float: the ranges are wider by more than that.
        Ok(number) if number < Number::PLAIN_MAX * 2.0 => {
            let next = number + 10_f64.powi(-places.unwrap_or(0));
            let scales = iter::successors(Some(1.0), |scale| Some(scale * 10.0));
            let scales = scales.take(if is_whole && number > 0.0 { 17 } else { 1 });
            let wide = |scale: f64| number * scale * (1.0 - 1e-12)..=next * scale * (1.0 + 1e-12);
            ranges.extend(scales.map(wide));
        }
        Ok(_) => {}
        // A lone sign.
        Err(_) => ranges = vec![0.0..=f64::MAX],
    }
    match is_negative {
        true => ranges.into_iter().map(|range| -range.end()..=-range.start()).collect(),
        false => ranges,
    }
}

/// Ranges with all degrees whose text with seven decimals begins so; none if no number has such a text, however large.
fn degrees_that_begin_with(prefix: &str) -> Option<Vec<RangeInclusive<f64>>> {
    let is_of_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let digits = prefix.strip_prefix('-').unwrap_or(prefix);
    let is_negative = digits.len() < prefix.len();
    let (whole, fraction) = match digits.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (digits, None),
    };
    if is_negative && digits.is_empty() {
        return Some(vec![-180.0..=0.0]);
    }
    let is_whole = is_of_digits(whole) && (1..=3).contains(&whole.len());
    let is_fraction = fraction.is_none_or(|it| is_of_digits(it) && it.len() <= 7);
    if !is_whole || !is_fraction || whole.len() > 1 && whole.starts_with('0') {
        return None;
    }
    let number: f64 = digits.trim_end_matches('.').parse().ok()?;
    let next = number + fraction.map_or(1.0, |fraction| 10_f64.powi(-(fraction.len() as i32)));
    // Of 4 there are 4 to 5, 40 to 50 and 400 to 500; behind a point, or a lone 0, no digit moves.
    let scales: &[f64] =
        if fraction.is_none() && number > 0.0 { &[1.0, 10.0, 100.0] } else { &[1.0] };
    let ranges = scales.iter().map(|scale| match is_negative {
        true => -next * scale..=-number * scale,
        false => number * scale..=next * scale,
    });
    Some(ranges.collect())
}

impl FromStr for Interest {
    type Err = AttributeError;

    fn from_str(text: &str) -> Result<Self, AttributeError> {
        let mut conditions = Vec::new();
        Scanner::new(text)?.elements(|scanner| {
            conditions.push(condition(scanner)?);
            check_count("conditions", conditions.len())
        })?;
        Self::new(conditions)
    }
}

type Comparison = (&'static str, fn(Number) -> ValueCondition);

/// Signs of comparisons, those that begin as a shorter one does first.
const COMPARISONS: [Comparison; 4] = [
    (">=", ValueCondition::AtLeast),
    ("<=", ValueCondition::AtMost),
    (">", ValueCondition::MoreThan),
    ("<", ValueCondition::LessThan),
];

fn condition(scanner: &mut Scanner<'_>) -> Result<Condition, AttributeError> {
    if scanner.takes("*") {
        return Ok(Condition::Name(Keyword::Any));
    }
    let at = scanner.at();
    let name = scanner.name()?;
    refuse_sign(scanner, at, &name)?;
    let name = name.text;
    if scanner.takes("*") {
        return Ok(Condition::Name(Keyword::Prefix(name.into())));
    }
    for (sign, wanted) in COMPARISONS {
        if scanner.takes(sign) {
            let wanted = wanted(scanner.value()?.number()?);
            return Ok(Condition::Pair { name: name.into(), wanted });
        }
    }
    if !scanner.takes("=") && !scanner.takes(":") {
        return Ok(Condition::Name(Keyword::Exactly(name.into())));
    }
    if name == PLACE_NAME {
        return Ok(Condition::Place(scanner.area()?));
    }
    let wanted = wanted(scanner, &name)?;
    Ok(Condition::Pair { name: name.into(), wanted })
}

/// Refuses signs of other languages behind a name: with them it would be a long name, which no profile has.
fn refuse_sign(scanner: &Scanner<'_>, at: usize, name: &Token) -> Result<(), AttributeError> {
    const NO_NEGATION: &str =
        "there is no negation: list the values that are wanted, or write < and > in two interests";
    let (at, found, way_out) = match scanner.peek() {
        _ if scanner.is_negation(name) => (at, "!", NO_NEGATION),
        Some('≠') => (scanner.at(), "≠", NO_NEGATION),
        Some('≥') => (scanner.at(), "≥", "write >="),
        Some('≤') => (scanner.at(), "≤", "write <="),
        _ => return Ok(()),
    };
    Err(AttributeError::Sign { at, found, way_out })
}

/// The value behind a `=`.
fn wanted(scanner: &mut Scanner<'_>, name: &str) -> Result<ValueCondition, AttributeError> {
    if scanner.takes("*") {
        return Ok(ValueCondition::Any);
    }
    if scanner.takes("[") {
        return bracketed(scanner, name);
    }
    let word = scanner.value()?;
    match scanner.takes("*") {
        true => Ok(ValueCondition::Prefix(word.text.into())),
        false => Ok(ValueCondition::Exactly(word.item())),
    }
}

/// A range or a list, behind its `[`.
fn bracketed(scanner: &mut Scanner<'_>, name: &str) -> Result<ValueCondition, AttributeError> {
    const END: &str = "a comma or a ]";
    if scanner.takes("]") {
        return Err(AttributeError::NoItems { name: shown(name) });
    }
    if scanner.takes("*") {
        scanner.expect("-", "a - and a number")?;
        let high = scanner.value()?.number()?;
        scanner.expect("]", "a ]")?;
        return Ok(ValueCondition::AtMost(high));
    }
    let first = scanner.value()?;
    if let Some((low, "")) = first.range_begin()
        && scanner.takes("*")
    {
        scanner.expect("]", "a ]")?;
        return Ok(ValueCondition::AtLeast(low?));
    }
    if let Some([low, high]) = first.range()
        && scanner.takes("]")
    {
        return Ok(ValueCondition::Between(low?, high?));
    }
    let mut items = vec![first.item()];
    while scanner.takes(",") {
        items.push(scanner.value()?.item());
        check_items(name, items.len())?;
    }
    scanner.expect("]", END)?;
    match &*items {
        [Item::Text(text)] if is_word_range(&first) => {
            Err(AttributeError::WordRange { text: shown(text) })
        }
        _ => Ok(ValueCondition::OneOf(items.into())),
    }
}

/// Whether a lone word in brackets has a dash between two others, as a range would.
fn is_word_range(word: &Token) -> bool {
    let is_number = Number::scan(&word.text).is_some_and(|(_, rest)| rest.is_empty());
    !word.is_quoted && !is_number && word.text.contains(['-', '–', '−'])
}

/// As [`FromStr`] reads it.
impl fmt::Display for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, condition) in self.conditions.iter().enumerate() {
            write!(f, "{}{condition}", if number == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// As the text of an interest has it.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(Keyword::Any) => f.write_str("*"),
            Self::Name(Keyword::Exactly(name)) => Word(name).fmt(f),
            Self::Name(Keyword::Prefix(prefix)) => write!(f, "{}*", Word(prefix)),
            Self::Place(area) => write!(f, "{PLACE_NAME} = {area}"),
            Self::Pair { name, wanted } => {
                write!(f, "{} ", Word(name))?;
                match wanted {
                    ValueCondition::Any => f.write_str("= *"),
                    ValueCondition::Exactly(item) => write!(f, "= {item}"),
                    ValueCondition::Prefix(prefix) => write!(f, "= {}*", Word(prefix)),
                    ValueCondition::OneOf(items) => write!(f, "= {}", Items(items)),
                    ValueCondition::Between(low, high) => write!(f, "= [{low} - {high}]"),
                    ValueCondition::AtLeast(low) => write!(f, ">= {low}"),
                    ValueCondition::MoreThan(low) => write!(f, "> {low}"),
                    ValueCondition::AtMost(high) => write!(f, "<= {high}"),
                    ValueCondition::LessThan(high) => write!(f, "< {high}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
