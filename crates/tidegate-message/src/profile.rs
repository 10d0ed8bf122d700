//! Profiles: what the data of a producer, a resource or a function is (R-Pulsar, section IV-D).

use std::{fmt, str::FromStr, sync::Arc};

use crate::{
    GeoPoint,
    attribute::{
        AttributeError, Item, Items, PLACE_NAME, Word, check_count, check_items, check_name,
        check_size, is_of_the_place, shown, sorted,
    },
    attribute_text::{Scanner, Token},
};

/// A set of attributes, and a place or none. An [`Interest`](crate::Interest) selects profiles.
///
/// An attribute is a keyword, or a name with a value or a list of values; a profile has each name once. The order in which attributes and
/// items are written means nothing: they are kept and shown in the order of their bytes. Case counts, in names, texts and units, and no two
/// different texts are the same one.
///
/// As text, attributes have a comma between them: `Drone, room = living room, rate = 30fps, location = [100, 101, 102],
/// place = (40.0583, -74.4056)`. A `:` may stand for the `=`.
///
/// A value is a [`Number`](crate::attribute::Number) if it is written as that number is shown, or with more zeros at the end of its fraction; so
/// `21.50C` is 21.5C. All other values are texts: `007`, `1e10`, `12e4567` and whole numbers beyond 2⁵³ are identifiers, no two of which are
/// equal. A name with a `:`, a name or text with one of `, = < > * [ ] ( ) " ≤ ≥ ≠`, and a text that would be a number (the version `1.10`) stand in
/// quotes, in which `\` comes before a quote or a `\`. Blanks around names and values do not count, and an attribute may stand in parentheses. No text
/// at all is a profile without attributes.
///
/// ```
/// use tidegate_message::{Interest, Profile};
///
/// let drone: Profile = "Drone, LiDAR, place = (40.0583, -74.4056)".parse()?;
/// let interest: Interest = "Drone, Li*, lat:40*, long:-74*".parse()?;
/// assert!(interest.matches(&drone));
/// # Ok::<(), tidegate_message::AttributeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Profile {
    /// By their names.
    attributes: Arc<[Attribute]>,
    place: Option<GeoPoint>,
}

/// One attribute of a profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attribute {
    /// Its name; [`Profile::new`] takes 1 to [`NAME_BYTES_MAX`](crate::attribute::NAME_BYTES_MAX) bytes.
    pub name: Box<str>,
    /// Its value, or those of its list, of which [`Profile::new`] takes up to [`ITEMS_MAX`](crate::attribute::ITEMS_MAX); none of a keyword.
    pub values: Box<[Item]>,
}

impl Attribute {
    /// A keyword: an attribute without a value.
    pub fn keyword(name: &str) -> Self {
        Self { name: name.into(), values: [].into() }
    }

    /// An attribute with a value.
    pub fn pair(name: &str, value: Item) -> Self {
        Self { name: name.into(), values: [value].into() }
    }
}

impl Profile {
    /// The profile with those attributes.
    ///
    /// # Errors
    /// [`AttributeError`]: [`AttributeError::TooMany`], [`AttributeError::Empty`], [`AttributeError::TooLong`],
    /// [`AttributeError::Character`], [`AttributeError::Reserved`], [`AttributeError::Items`], [`AttributeError::Twice`] or
    /// [`AttributeError::TooLarge`].
    pub fn new(
        attributes: Vec<Attribute>,
        place: Option<GeoPoint>,
    ) -> Result<Self, AttributeError> {
        check_count("attributes", attributes.len())?;
        let mut checked = Vec::with_capacity(attributes.len());
        for Attribute { name, values } in attributes {
            check_name(&name)?;
            if is_of_the_place(&name) {
                return Err(AttributeError::Reserved { name });
            }
            let values = sorted(&name, values)?;
            checked.push(Attribute { name, values });
        }
        checked.sort_unstable();
        if let Some([first, _]) =
            checked.array_windows().find(|[one, other]| one.name == other.name)
        {
            return Err(AttributeError::Twice { name: shown(&first.name) });
        }
        check_size(checked.iter().map(Attribute::bytes).sum())?;
        Ok(Self { attributes: checked.into(), place })
    }

    /// The attributes, in the order of their names.
    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    /// The place, if it has one.
    pub fn place(&self) -> Option<GeoPoint> {
        self.place
    }

    /// The attribute of that name, if it is contained.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        let found = self.attributes.binary_search_by(|attribute| (*attribute.name).cmp(name));
        found.ok().map(|at| &self.attributes[at])
    }

    /// Whether an attribute is contained whose name begins with those bytes.
    pub(crate) fn has_name_with(&self, prefix: &str) -> bool {
        let at = self.attributes.partition_point(|attribute| &*attribute.name < prefix);
        self.attributes.get(at).is_some_and(|attribute| attribute.name.starts_with(prefix))
    }
}

impl Attribute {
    fn bytes(&self) -> usize {
        self.name.len() + self.values.iter().map(Item::bytes).sum::<usize>()
    }
}

impl FromStr for Profile {
    type Err = AttributeError;

    fn from_str(text: &str) -> Result<Self, AttributeError> {
        let (mut attributes, mut place) = (Vec::new(), None);
        Scanner::new(text)?.elements(|scanner| {
            refuse_condition(scanner)?;
            let at = scanner.at();
            let name = scanner.name()?;
            refuse_condition(scanner)?;
            if scanner.is_negation(&name) {
                return Err(AttributeError::Condition { at, found: '!' });
            }
            let has_value = scanner.takes("=") || scanner.takes(":");
            if has_value && &*name.text == PLACE_NAME {
                return match place.replace(scanner.point()?) {
                    Some(_) => Err(AttributeError::Places),
                    None => Ok(()),
                };
            }
            let values = if has_value { values(scanner, &name.text)? } else { Box::default() };
            attributes.push(Attribute { name: name.text.into(), values });
            check_count("attributes", attributes.len())
        })?;
        Self::new(attributes, place)
    }
}

/// A value or a list of them.
fn values(scanner: &mut Scanner<'_>, name: &str) -> Result<Box<[Item]>, AttributeError> {
    if !scanner.takes("[") {
        return Ok([value(scanner)?.item()].into());
    }
    if scanner.takes("]") {
        return Err(AttributeError::NoItems { name: shown(name) });
    }
    let first = value(scanner)?;
    if scanner.peek() == Some(']') && first.range().is_some() {
        return Err(AttributeError::ProfileRange { text: shown(&first.text) });
    }
    let mut items = vec![first.item()];
    while scanner.takes(",") {
        items.push(value(scanner)?.item());
        check_items(name, items.len())?;
    }
    scanner.expect("]", "a comma or a ]")?;
    Ok(items.into())
}

fn value(scanner: &mut Scanner<'_>) -> Result<Token, AttributeError> {
    refuse_condition(scanner)?;
    let word = scanner.value()?;
    refuse_condition(scanner)?;
    Ok(word)
}

/// A profile has no partial keywords, wildcards or comparisons.
fn refuse_condition(scanner: &Scanner<'_>) -> Result<(), AttributeError> {
    match scanner.peek() {
        Some(found @ ('*' | '<' | '>' | '≤' | '≥' | '≠')) => {
            Err(AttributeError::Condition { at: scanner.at(), found })
        }
        _ => Ok(()),
    }
}

/// As [`FromStr`] reads it.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, attribute) in self.attributes.iter().enumerate() {
            write!(f, "{}{attribute}", if number == 0 { "" } else { ", " })?;
        }
        let comma = if self.attributes.is_empty() { "" } else { ", " };
        match self.place {
            Some(place) => write!(f, "{comma}{PLACE_NAME} = ({place})"),
            None => Ok(()),
        }
    }
}

/// As the text of a profile has it.
impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Word(&self.name);
        match &*self.values {
            [] => name.fmt(f),
            [value] => write!(f, "{name} = {value}"),
            items => write!(f, "{name} = {}", Items(items)),
        }
    }
}

#[cfg(test)]
mod tests;
