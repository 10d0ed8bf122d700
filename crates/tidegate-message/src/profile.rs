//! Profiles: what the data of a producer, a resource or a function is (R-Pulsar, section IV-D).

use std::{fmt, str::FromStr, sync::Arc};

use crate::{
    GeoPoint,
    attribute::{
        AttributeError, Item, Items, PLACE_NAME, Word, check_count, check_items, check_name,
        check_size, is_of_the_place, shown, sorted,
    },
    attribute_text::Scanner,
};

/// A set of attributes, and a place or none. An [`Interest`](crate::Interest) selects profiles.
///
/// An attribute is a keyword, or a name with a value or a list of values; a profile has each name once. The order in which attributes and
/// items are written means nothing: they are kept and shown in the order of their bytes. Case counts, in names, texts and units, and no two
/// different texts are the same one.
///
/// As text, attributes have a comma between them: `Drone, room = living room, rate = 30fps, location = [100, 101, 102],
/// place = (40.0583, -74.4056)`. A `:` may stand for the `=`. A value of which all is a [`Number`](crate::attribute::Number) is one; a name with a `:`,
/// and a text with one of `, = < > * [ ] ( ) "` or that would be a number, stands in quotes, in which `\` comes before a quote or a `\`.
/// Blanks around names and values do not count, and an attribute may stand in parentheses. No text at all is a profile without attributes.
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
    /// Its name, of 1 to [`NAME_BYTES_MAX`](crate::attribute::NAME_BYTES_MAX) bytes.
    pub name: Box<str>,
    /// Its value, or those of its list, at most [`ITEMS_MAX`](crate::attribute::ITEMS_MAX); none of a keyword.
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
    pub fn new(attributes: &[Attribute], place: Option<GeoPoint>) -> Result<Self, AttributeError> {
        check_count("attributes", attributes.len())?;
        let mut checked = Vec::with_capacity(attributes.len());
        for Attribute { name, values } in attributes {
            check_name(name)?;
            if is_of_the_place(name) {
                return Err(AttributeError::Reserved { name: name.clone() });
            }
            checked.push(Attribute { name: name.clone(), values: sorted(name, values)? });
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
        Scanner::new(text).elements(|scanner| {
            refuse_condition(scanner)?;
            let name = scanner.name()?;
            refuse_condition(scanner)?;
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
        Self::new(&attributes, place)
    }
}

/// A value or a list of them.
fn values(scanner: &mut Scanner<'_>, name: &str) -> Result<Box<[Item]>, AttributeError> {
    if !scanner.takes("[") {
        return Ok([value(scanner)?].into());
    }
    if scanner.takes("]") {
        return Err(AttributeError::NoItems { name: shown(name) });
    }
    let mut items = vec![value(scanner)?];
    while scanner.takes(",") {
        items.push(value(scanner)?);
        check_items(name, items.len())?;
    }
    scanner.expect("]", "a comma or a ]")?;
    Ok(items.into())
}

fn value(scanner: &mut Scanner<'_>) -> Result<Item, AttributeError> {
    refuse_condition(scanner)?;
    let word = scanner.value()?;
    refuse_condition(scanner)?;
    if word.is_quoted { Ok(Item::text(&word.text)) } else { Item::of_word(&word.text) }
}

/// A profile has no partial keywords, wildcards or comparisons.
fn refuse_condition(scanner: &Scanner<'_>) -> Result<(), AttributeError> {
    match scanner.peek() {
        Some(found @ ('*' | '<' | '>')) => {
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
mod tests {
    use super::*;
    use crate::attribute::Number;

    fn of(text: &str) -> Result<Profile, AttributeError> {
        text.parse()
    }

    #[test]
    fn texts_are_read_and_shown_in_one_form() {
        for (text, expected) in [
            ("", ""),
            (" Drone ,LiDAR ", "Drone, LiDAR"),
            ("LiDAR, Drone", "Drone, LiDAR"),
            ("(videocamera)(type = Public)", "type = Public, videocamera"),
            ("quality:720p", "quality = 720p"),
            ("location = [102, 100,101, 100]", "location = [100, 101, 102]"),
            ("location = [100]", "location = 100"),
            ("room = living room", "room = living room"),
            ("a = \"720p\"", "a = \"720p\""),
            ("a = 21.50C", "a = 21.5C"),
            ("a = -0", "a = 0"),
            ("a = 1e3m, b = 1e20, c = 0.000001", "a = 1000m, b = 1e20, c = 1e-6"),
            ("a = http://x/y", "a = \"http://x/y\""),
            ("\"urn:x\", post_processing_func", "post_processing_func, \"urn:x\""),
            ("\"a \\\"b\\\" \\\\\"", "\"a \\\"b\\\" \\\\\""),
            ("a = 10.0.0.1", "a = \"10.0.0.1\""),
            ("place = (40.0583, -74.4056), Drone", "Drone, place = (40.0583, -74.4056)"),
            ("place:(40,180)", "place = (40, -180)"),
        ] {
            let profile = of(text).expect(text);
            assert_eq!(profile.to_string(), expected, "{text}");
            assert_eq!(of(expected).as_ref(), Ok(&profile), "{text}");
        }
    }

    #[test]
    fn refusals_name_the_thing_and_the_way_out() {
        let many =
            |count: usize| (0..count).map(|it| format!("a{it}")).collect::<Vec<_>>().join(",");
        let list =
            format!("a = [{}]", (0..50).map(|it| it.to_string()).collect::<Vec<_>>().join(","));
        for (text, expected) in [
            (many(50), "33 attributes are too many: 32 are allowed; leave some out"),
            (list, "the list of \"a\" has 33 items, and 32 are allowed; leave some out"),
            (
                "a, a = 1".into(),
                "the attribute \"a\" is there twice; give it a list: a = [FIRST, SECOND]",
            ),
            (
                "lat = 40".into(),
                "\"lat\" is a name of the place and of no attribute; write place = (LATITUDE, LONGITUDE), and in an \
                interest lat or long with a condition, or place = *",
            ),
            (
                "place".into(),
                "\"place\" is a name of the place and of no attribute; write place = (LATITUDE, LONGITUDE), and in an \
                interest lat or long with a condition, or place = *",
            ),
            (
                "Li*".into(),
                "at byte 2 of a profile stands '*', and a profile has no conditions; write NAME = VALUE, or an interest",
            ),
            (
                "a >= 1".into(),
                "at byte 2 of a profile stands '>', and a profile has no conditions; write NAME = VALUE, or an interest",
            ),
            (
                "a = *".into(),
                "at byte 4 of a profile stands '*', and a profile has no conditions; write NAME = VALUE, or an interest",
            ),
            (
                "a,".into(),
                "at byte 2 stands \"\" where a name should be; texts with signs stand in quotes",
            ),
            (
                ",".into(),
                "at byte 0 stands \",\" where a name should be; texts with signs stand in quotes",
            ),
            (
                "a b = ".into(),
                "at byte 6 stands \"\" where a value should be; texts with signs stand in quotes",
            ),
            (
                "a = [1".into(),
                "at byte 6 stands \"\" where a comma or a ] should be; texts with signs stand in quotes",
            ),
            (
                "a = []".into(),
                "the list of \"a\" is empty; name an item, or leave the attribute out",
            ),
            (
                "a) b".into(),
                "at byte 1 stands \") b\" where a comma should be; texts with signs stand in quotes",
            ),
            ("\"\"".into(), "a name has at least one character, this one is empty; leave it out"),
            (
                "\"a".into(),
                "at byte 0 stands \"\\\"a\" where a text that ends with a \" should be; texts with signs stand in quotes",
            ),
            (
                "a\u{7}b".into(),
                "the name \"a\\u{7}b\" has the control character '\\u{7}'; leave it out",
            ),
            ("a = 1e999".into(), "inf is no finite number; give one within ±1.79e308"),
            (
                "place = (1, 2), place = (1, 2)".into(),
                "a profile has one place, this one has two; leave one out",
            ),
            ("place = (91, 2)".into(), "latitude 91 is not within -90 and 90 degrees"),
            (
                format!("a = 1{}", "x".repeat(17)),
                "the unit \"xxxxxxxxxxxxxxxxx\" has 17 bytes, and 16 are allowed; shorten it",
            ),
            (
                "é".repeat(65),
                &*format!(
                    "the name \"{}…\" has 130 bytes, and 128 are allowed; shorten it",
                    "é".repeat(40)
                ),
            ),
        ] {
            assert_eq!(of(&text).expect_err(&text).to_string(), expected, "{text}");
        }
        let large: Vec<String> =
            (0..17).map(|it| format!("a{it:03} = {}", "x".repeat(256))).collect();
        let error = AttributeError::TooLarge { bytes: 17 * 260, most: 4096 };
        assert_eq!(of(&large.join(",")), Err(error));
        assert!(matches!(Number::new(f64::NAN, ""), Err(AttributeError::NotFinite { .. })));
        assert!(matches!(Number::new(1.0, "m2"), Err(AttributeError::Unit { .. })));
    }
}
