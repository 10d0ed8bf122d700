use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::{GeoPoint, Profile, profile::Attribute};

fn matches(interest: &str, profile: &str) -> bool {
    let interest: Interest = interest.parse().expect(interest);
    interest.matches(&profile.parse().expect(profile))
}

/// Figure 3 of R-Pulsar, letter by letter.
#[test]
fn the_profiles_of_figure_3_match() {
    let sensor = "( videocamera)\n(location = [100, 101, 102])\n(type = Public)\n(quality = 720p)";
    let client = "( videocamera)\n(location = [100 - 105])\n(type = *)\n(quality >= 720p)";
    assert!(matches(client, sensor));
    for (changed, note) in [
        ("videocamera, location = [1, 2], type = Public, quality = 720p", "another location"),
        ("videocamera, location = 100, quality = 720p", "no type"),
        ("videocamera, location = 100, type, quality = 720p", "a type without a value"),
        ("videocamera, location = 100, type = Public, quality = 480p", "a lower quality"),
        ("videocamera, location = 100, type = Public, quality = 1080i", "another unit"),
        ("location = 100, type = Public, quality = 720p", "no videocamera"),
    ] {
        assert!(!matches(client, changed), "{note}");
    }
}

/// Listings 1 to 3: `addSingle` with each text, and the position of the message.
#[test]
fn the_profiles_of_the_listings_match() {
    let singles = ["Drone", "LiDAR"].map(Attribute::keyword);
    let drone = Profile::new(&singles, GeoPoint::new(40.0583, -74.4056).ok()).expect("listing 1");
    let singles = ["Drone", "Li*", "lat:40*", "long:-74*"];
    let interest: Interest = singles.join(",").parse().expect("listing 2");
    assert!(interest.matches(&drone));
    assert_eq!(interest.to_string(), "Drone, Li*, lat = 40*, long = -74*");
    let elsewhere = Profile::new(drone.attributes(), GeoPoint::new(41.0, -74.4056).ok());
    assert!(!interest.matches(&elsewhere.expect("a profile")));
    assert!(!interest.matches(&Profile::new(drone.attributes(), None).expect("a profile")));
    assert!(matches("post_processing_func", "post_processing_func"));
}

#[test]
fn conditions_hold_or_do_not() {
    for (interest, profile, expected, note) in [
        ("", "", true, "nothing is asked for"),
        ("*", "", false, "no attribute"),
        ("*", "place = (1, 2)", false, "a place is no attribute"),
        ("*", "a = 1", true, "a pair is an attribute"),
        ("type", "type = Public", true, "p contains the attribute"),
        ("type = *", "type", false, "there is no value"),
        ("type = *", "type = [1, 2]", true, ""),
        ("drone", "Drone", false, "case counts"),
        ("Li*", "List = 1", true, ""),
        ("Li*", "Lh, Lj", false, "names next to it"),
        ("Li*", "Li", true, "nothing has to follow"),
        ("type = Pub*", "type = Public", true, ""),
        ("type = Pub*", "type = [Private, Public]", true, "one item is enough"),
        ("type = 72*", "type = 720p", true, "the decimal text begins so"),
        ("type = 720p*", "type = 720p", true, "with its unit"),
        ("a:40*", "a = 400", true, "as does 400"),
        ("a:40.0*", "a = 40", false, "40 is written as 40"),
        ("a:40.0*", "a = 40.0583", true, ""),
        ("a:-0*", "a = -0.5", true, ""),
        ("a:1e*", "a = 1e-9", true, "with an exponent"),
        ("a = 720", "a = 720p", false, "units are equal"),
        ("a = 720p", "a = \"720p\"", false, "a text is no number"),
        ("a = 1km", "a = 1000m", false, "nothing is converted"),
        ("a = [x, 720p]", "a = [720p, 480p]", true, "lists have one in common"),
        ("a = [100p - 105p]", "a = 105p", true, "both ends belong to it"),
        ("a = [100-*]", "a = 100", true, "an open range"),
        ("a = [*-105]", "a = -1000000", true, ""),
        ("a = [-10--5]", "a = -7.5", true, ""),
        ("a > 1, a < 2", "a = [0, 3]", true, "each condition by one item"),
        ("a > 720p", "a = 720p", false, ""),
        ("a <= 720p", "a = text", false, "a text is not compared"),
        ("place = (1, 2)", "place = (1, 2)", true, ""),
        ("place = (1, 2) within 1km", "place = (1.005, 2)", true, ""),
        ("place = (1, 2) within 500m", "place = (1.005, 2)", false, ""),
        ("place = [(10, 170) - (20, -170)]", "place = (15, 180)", true, "over the date line"),
        ("place = *", "place = (1, 2)", true, ""),
        ("place = *", "a", false, ""),
        ("lat >= 40, long = [-75 - -74]", "place = (40.0583, -74.4056)", true, ""),
        ("lat = 40", "place = (40, 1)", true, ""),
    ] {
        assert_eq!(matches(interest, profile), expected, "{interest} against {profile}: {note}");
    }
}

#[test]
fn texts_are_shown_in_one_form() {
    for (text, expected) in [
        ("b,a , a", "a, b"),
        ("quality>=720p", "quality >= 720p"),
        ("a = [100-*]", "a >= 100"),
        ("a = [*-100]", "a <= 100"),
        ("a = [100-105]", "a = [100 - 105]"),
        ("a = [x]", "a = x"),
        ("a = [y, x, y]", "a = [x, y]"),
        ("a = [semi-public, x]", "a = [semi-public, x]"),
        ("a:b*", "a = b*"),
        ("\"a:\"*", "\"a:\"*"),
        ("place:(1,2) within 2km", "place = (1, 2) within 2000m"),
        ("place = *", "place = [(-90, -180) - (90, 180)]"),
        ("place = [(1, 170)-(2, -170)]", "place = [(1, 170) - (2, -170)]"),
    ] {
        let interest: Interest = text.parse().expect(text);
        assert_eq!(interest.to_string(), expected, "{text}");
        assert_eq!(expected.parse(), Ok(interest), "{text}");
    }
}

#[test]
fn refusals_name_the_thing_and_the_way_out() {
    let many = vec!["*"; 50].join(",");
    for (text, expected) in [
        (&*many, "33 conditions are too many: 32 are allowed; leave some out"),
        (
            "a = [2-1]",
            "the range of \"a\" from 2 to 1 has no number; write the lower end first (over the date line: place = [(SOUTH, WEST) - \
            (NORTH, EAST)])",
        ),
        ("a = [1p-2q]", "the range of \"a\" from 1p to 2q has two units; write both ends with one"),
        ("a >= x", "\"x\" cannot be compared, as numbers can; write a number such as 720p"),
        ("a = [1-x]", "\"x\" cannot be compared, as numbers can; write a number such as 720p"),
        (
            "a = [a-f]",
            "[a-f] is no range, as ranges are of numbers; list the words, or put a word with a - into quotes",
        ),
        (
            "a = [*-*]",
            "at byte 7 stands \"*]\" where a value should be; texts with signs stand in quotes",
        ),
        ("a = []", "the list of \"a\" is empty; name an item, or leave the attribute out"),
        (
            "lat",
            "\"lat\" is a name of the place and of no attribute; write place = (LATITUDE, LONGITUDE), and in an interest lat or long with a \
            condition, or place = *",
        ),
        (
            "place >= 3",
            "\"place\" is a name of the place and of no attribute; write place = (LATITUDE, LONGITUDE), and in an interest lat or long \
            with a condition, or place = *",
        ),
        ("a > NaN", "\"NaN\" cannot be compared, as numbers can; write a number such as 720p"),
        (
            "a* = 1",
            "at byte 3 stands \"= 1\" where a comma should be; texts with signs stand in quotes",
        ),
        (
            "place = (1, x)",
            "\"x\" is no position: give latitude and longitude in degrees, such as 52.3731, 4.8922",
        ),
        (
            "place = (1, 2) within 5s",
            "at byte 22 stands \"5s\" where a radius such as 500m or 2km should be; texts with signs stand in quotes",
        ),
        (
            "place = (1, 2) within 0.5m",
            "a radius of 0.5 m is not a whole number from 0 to 20015115",
        ),
        (
            "place = [(2, 0) - (1, 0)]",
            "a box from 2 to 1 degrees north is empty; write its southern side first",
        ),
    ] {
        let error = text.parse::<Interest>().expect_err(text);
        assert_eq!(error.to_string(), expected, "{text}");
    }
}

/// A value of the model: tenths with a unit, or a text.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Tenths(i32, &'static str),
    Text(&'static str),
}

/// A condition of the model.
#[derive(Clone, Debug)]
enum Asked {
    Name(&'static str),
    NamePrefix(&'static str),
    Any(&'static str),
    OneOf(&'static str, Vec<Value>),
    Prefix(&'static str, String),
    Compared(&'static str, &'static str, Value),
    Between(&'static str, i32, i32, &'static str),
}

impl Value {
    fn bare(&self) -> String {
        match self {
            Self::Tenths(tenths, unit) => {
                let sign = if *tenths < 0 { "-" } else { "" };
                let (whole, tenth) = (tenths.abs() / 10, tenths.abs() % 10);
                let fraction = if tenth == 0 { String::new() } else { format!(".{tenth}") };
                format!("{sign}{whole}{fraction}{unit}")
            }
            Self::Text(text) => (*text).to_owned(),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Tenths(..) => self.bare(),
            Self::Text(text) => format!("\"{text}\""),
        }
    }
}

fn list(values: &[Value]) -> String {
    format!("[{}]", values.iter().map(Value::text).collect::<Vec<_>>().join(", "))
}

impl Asked {
    fn text(&self) -> String {
        match self {
            Self::Name(name) => (*name).to_owned(),
            Self::NamePrefix(prefix) => format!("{prefix}*"),
            Self::Any(name) => format!("{name} = *"),
            Self::OneOf(name, values) => format!("{name} = {}", list(values)),
            Self::Prefix(name, prefix) => format!("{name} = \"{prefix}\"*"),
            Self::Compared(name, sign, value) => format!("{name} {sign} {}", value.bare()),
            Self::Between(name, low, high, unit) => {
                let [low, high] = [low, high].map(|it| Value::Tenths(*it, unit).bare());
                format!("{name} = [{low} - {high}]")
            }
        }
    }

    /// The paper's sentence: a singleton is true if and only if p contains the attribute, a pair if and only if p contains the attribute and
    /// the corresponding value satisfies it.
    fn is_true_of(&self, profile: &[(&'static str, Vec<Value>)]) -> bool {
        let corresponding = |name: &str, satisfies: &dyn Fn(&Value) -> bool| {
            profile.iter().any(|(own, values)| *own == name && values.iter().any(satisfies))
        };
        match self {
            Self::Name(name) => profile.iter().any(|(own, _)| own == name),
            Self::NamePrefix(prefix) => profile.iter().any(|(own, _)| own.starts_with(prefix)),
            Self::Any(name) => corresponding(name, &|_| true),
            Self::OneOf(name, values) => corresponding(name, &|value| values.contains(value)),
            Self::Prefix(name, prefix) => {
                corresponding(name, &|value| value.bare().starts_with(prefix))
            }
            Self::Compared(name, sign, bound) => {
                corresponding(name, &|value| match (value, bound) {
                    (Value::Tenths(value, unit), Value::Tenths(bound, asked)) => {
                        let holds = match *sign {
                            ">=" => value >= bound,
                            "<=" => value <= bound,
                            ">" => value > bound,
                            _ => value < bound,
                        };
                        unit == asked && holds
                    }
                    _ => false,
                })
            }
            Self::Between(name, low, high, asked) => corresponding(name, &|value| match value {
                Value::Tenths(value, unit) => unit == asked && low <= value && value <= high,
                Value::Text(_) => false,
            }),
        }
    }
}

const NAMES: &[&str] = &["a", "ab", "abc", "b", "Ab", "post_processing_func"];
const UNITS: &[&str] = &["", "p"];

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-25..25, select(UNITS)).prop_map(|(tenths, unit)| Value::Tenths(tenths, unit)),
        select(&["x", "xy", "y", "1p", "-2"][..]).prop_map(Value::Text),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let name = || select(NAMES);
    let prefixes = &["", "-", "1", "-1.", "2p", "x", "xy"][1..];
    prop_oneof![
        name().prop_map(Asked::Name),
        name().prop_map(Asked::NamePrefix),
        name().prop_map(Asked::Any),
        (name(), vec(value(), 1..4)).prop_map(|(name, values)| Asked::OneOf(name, values)),
        (name(), select(prefixes)).prop_map(|(name, text)| Asked::Prefix(name, text.to_owned())),
        (name(), select(&[">=", "<=", ">", "<"][..]), -25..25, select(UNITS)).prop_map(
            |(name, sign, tenths, unit)| Asked::Compared(name, sign, Value::Tenths(tenths, unit))
        ),
        (name(), -25..25, 0..20, select(UNITS)).prop_map(|(name, low, more, unit)| Asked::Between(
            name,
            low,
            low + more,
            unit
        )),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn interests_match_as_the_paper_says(
        own in vec((select(NAMES), vec(value(), 0..4)), 0..8), asked in vec(asked(), 0..4)
    ) {
        let mut own = own;
        own.sort_by_key(|(name, _)| *name);
        own.dedup_by_key(|(name, _)| *name);
        let attributes = own.iter().map(|(name, values)| match &**values {
            [] => (*name).to_owned(),
            values => format!("{name} = {}", list(values)),
        });
        let profile: Profile = attributes.collect::<Vec<_>>().join(", ").parse()?;
        let texts: Vec<_> = asked.iter().map(Asked::text).collect();
        let interest: Interest = texts.join(", ").parse()?;
        let expected = asked.iter().all(|asked| asked.is_true_of(&own));
        prop_assert_eq!(interest.matches(&profile), expected, "{} against {}", interest, profile);
        prop_assert_eq!(interest.to_string().parse(), Ok(interest));
        prop_assert_eq!(profile.to_string().parse(), Ok(profile));
    }

    #[test]
    fn every_text_that_is_taken_is_read_back(text in "[a-c1-3 :,=<>*\\[\\]()\"\\\\.é-]{0,24}") {
        if let Ok(profile) = text.parse::<Profile>() {
            prop_assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        if let Ok(interest) = text.parse::<Interest>() {
            prop_assert_eq!(interest.to_string().parse(), Ok(interest));
        }
    }

    #[test]
    fn all_texts_can_be_names_and_values(name in "[^\\pC]{1,20}", value in "[^\\pC]{1,20}") {
        prop_assume!(!is_of_the_place(&name));
        let value = Item::text(&value);
        let profile = Profile::new(&[Attribute::pair(&name, value.clone())], None)?;
        prop_assert_eq!(profile.to_string().parse(), Ok(profile.clone()));
        let wanted = |wanted| Condition::Pair { name: (*name).into(), wanted };
        let text = value.to_string();
        let conditions = [
            Condition::Name(Keyword::Prefix((*name).into())),
            wanted(ValueCondition::Exactly(value)),
            wanted(ValueCondition::Prefix((*text).into())),
        ];
        let interest = Interest::new(&conditions)?;
        prop_assert_eq!(interest.to_string().parse(), Ok(interest));
    }

    #[test]
    fn numbers_that_satisfy_lie_in_its_ranges(bits: u64, tenths in -100_000_i64..100_000, end in 1_usize..20) {
        for value in [f64::from_bits(bits), tenths as f64 / 10.0, tenths as f64 * 1e-9] {
            let Ok(number) = Number::new(value, "p") else { continue };
            let text = number.to_string();
            prop_assert_eq!(Item::of_word(&text)?, Item::Number(number.clone()), "{}", text);
            let prefix = &text[..end.min(text.len())];
            let wanted = ValueCondition::Prefix(prefix.into());
            prop_assert!(wanted.is_satisfied_by(&Item::Number(number)));
            let is_in = wanted.numbers().iter().any(|range| range.contains(&value));
            prop_assert!(is_in, "{} begins with {}: {:?}", text, prefix, wanted.numbers());
        }
    }
}
