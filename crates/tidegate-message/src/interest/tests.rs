use proptest::{collection::vec, option, prelude::*, sample::select, test_runner::TestRunner};

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
    let point = GeoPoint::new(40.0583, -74.4056).ok();
    let drone = Profile::new(singles.to_vec(), point).expect("listing 1");
    let singles = ["Drone", "Li*", "lat:40*", "long:-74*"];
    let interest: Interest = singles.join(",").parse().expect("listing 2");
    assert!(interest.matches(&drone));
    assert_eq!(interest.to_string(), "Drone, Li*, lat = 40*, long = -74*");
    let at = |point| Profile::new(drone.attributes().to_vec(), point).expect("a profile");
    assert!(!interest.matches(&at(GeoPoint::new(41.0, -74.4056).ok())));
    assert!(!interest.matches(&at(None)));
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
        ("address = 00e3", "address = 00e7", false, "identifiers are texts"),
        ("address = 00e3", "address = 00e3", true, ""),
        ("commit = 12e4567", "commit = 12e4567", true, "beyond all numbers"),
        ("zip = 01*", "zip = 01234", true, "a text of digits"),
        ("zip = 01234", "zip = 1234", false, ""),
        ("a >= 007, a < 1e1", "a = 7", true, "comparisons take all forms"),
        ("a = [1e3 - 2e3]", "a = 1500", true, "and ranges"),
        ("a = 21.5C", "a = 21.50C", true, "zeros at the end of a fraction do not count"),
        ("a = [3D-printer, x]", "a = 3D-printer", true, "a list, and no range"),
        ("a = [2026-11-28, 2026-11-29]", "a = 2026-11-29", true, "days are texts"),
        ("a = [2026-11, 2026-12]", "a = 2026-12", true, "months as well"),
        ("lat:0*", "place = (0.000005, 1)", true, "degrees have seven decimals and no exponent"),
        ("lat:-0.00000*", "place = (-0.000005, 1)", true, ""),
        ("lat:40.0*", "place = (40, 1)", true, ""),
        ("lat:40.*", "place = (40, 1)", true, ""),
        ("lat:40.0000001*", "place = (40, 1)", false, ""),
        ("lat:4*", "place = (40.5, 1)", true, ""),
        ("lat:4*", "place = (5, 1)", false, ""),
        ("lat:-*", "place = (0, 1)", false, "there is one zero"),
        ("long:-74*", "place = (1, -74.0000001)", true, ""),
        ("long = -180", "place = (1, 180)", true, "one form of the date line"),
        ("long = [170 - 180]", "place = (1, 180)", false, "less than 180"),
        ("place = [(0, 170) - (2, 180)]", "place = (1, 180)", true, "a box goes by the earth"),
        ("long = 0", "place = (90, 12)", true, "a pole"),
        ("place = (1, 2) within 1.001km", "place = (1, 2)", true, ""),
    ] {
        assert_eq!(matches(interest, profile), expected, "{interest} against {profile}: {note}");
    }
}

/// Beginnings that no degrees with seven decimals have.
#[test]
fn degrees_that_cannot_be_are_refused() {
    for prefix in ["+4", "04", "1234", "4.12345678", ".5", "-.5", "4e", "4.5.6", "-04", "--4", "4 "]
    {
        let interest = Interest::new(vec![Condition::Pair {
            name: LATITUDE_NAME.into(),
            wanted: ValueCondition::Prefix(prefix.into()),
        }]);
        let is_refused = matches!(interest, Err(AttributeError::Degrees { .. }));
        assert!(is_refused, "{prefix}: {interest:?}");
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
        ("a = [-5]", "a = -5"),
        ("a = [1e-5]", "a = \"1e-5\""),
        ("a = [10--5, x]", "a = [\"10--5\", x]"),
        ("a > 9007199254740994", "a > 9.007199254740994e15"),
        ("place = (1, 2) within 1.001km", "place = (1, 2) within 1001m"),
        ("place = (1, 2) within 20015.115km", "place = (1, 2) within 20015115m"),
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
        (
            "a = [1-x]",
            "[1-x] is no range, as ranges are of numbers; list the words, or put a word with a - into quotes",
        ),
        (
            "a = [10 – 20]",
            "[10 – 20] is no range, as ranges are of numbers; list the words, or put a word with a - into quotes",
        ),
        (
            "type != Public",
            "at byte 0 stands \"!\", which is no sign of a condition; there is no negation: list the values that are wanted, or write < and > \
            in two interests, or put a name with signs into quotes",
        ),
        (
            "a, !Drone",
            "at byte 3 stands \"!\", which is no sign of a condition; there is no negation: list the values that are wanted, or write < and > \
            in two interests, or put a name with signs into quotes",
        ),
        (
            "rate ≥ 5",
            "at byte 5 stands \"≥\", which is no sign of a condition; write >=, or put a name with signs into quotes",
        ),
        (
            "lat >= 40°",
            "\"40°\" is no lat of a place, and none begins so; write degrees without a unit such as 40.5, and a - before those of south and \
            west",
        ),
        (
            "lat = [40N - 41N]",
            "\"40N\" is no lat of a place, and none begins so; write degrees without a unit such as 40.5, and a - before those of south and \
            west",
        ),
        (
            "long = text",
            "\"text\" is no long of a place, and none begins so; write degrees without a unit such as 40.5, and a - before those of south and \
            west",
        ),
        (
            "long:−74*",
            "\"−74\" is no long of a place, and none begins so; write degrees without a unit such as 40.5, and a - before those of south and \
            west",
        ),
        (
            "long = [1, 2W]",
            "\"2W\" is no long of a place, and none begins so; write degrees without a unit such as 40.5, and a - before those of south and \
            west",
        ),
        ("a > 1e999", "inf is no finite number; give one within ±1.79e308"),
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
    Star,
    Name(&'static str),
    NamePrefix(&'static str),
    Any(&'static str),
    OneOf(&'static str, Vec<Value>),
    Prefix(&'static str, String),
    Compared(&'static str, &'static str, Value),
    Between(&'static str, i32, i32, &'static str),
    /// `[n-*]`, or `[*-n]`.
    From(&'static str, Value, bool),
    Degrees(Box<Self>),
    DegreesPrefix(&'static str, String),
    AnyPlace,
    /// A box: south, north, west and how wide it is, in tenths of a degree.
    Area(i32, i32, i32, i32),
}

/// A profile of the model, and its place in tenths of a degree.
struct Own {
    attributes: Vec<(&'static str, Vec<Value>)>,
    place: Option<(i32, i32)>,
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

/// Tenths as a number of the model has them.
fn tenths(tenths: i32) -> String {
    Value::Tenths(tenths, "").bare()
}

fn list(values: &[Value]) -> String {
    format!("[{}]", values.iter().map(Value::text).collect::<Vec<_>>().join(", "))
}

impl Asked {
    fn text(&self) -> String {
        match self {
            Self::Star => "*".to_owned(),
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
            Self::From(name, value, true) => format!("{name} = [{}-*]", value.bare()),
            Self::From(name, value, false) => format!("{name} = [*-{}]", value.bare()),
            Self::Degrees(asked) => asked.text(),
            Self::DegreesPrefix(name, prefix) => format!("{name}:{prefix}*"),
            Self::AnyPlace => "place = *".to_owned(),
            Self::Area(south, north, west, wide) => {
                let east = (west + wide + 1_800).rem_euclid(3_600) - 1_800;
                let [south, north, west, east] = [*south, *north, *west, east].map(tenths);
                format!("place = [({south}, {west}) - ({north}, {east})]")
            }
        }
    }

    /// The paper's sentence: a singleton is true if and only if p contains the attribute, a pair if and only if p contains the attribute and
    /// the corresponding value satisfies it.
    fn is_true_of(&self, own: &Own) -> bool {
        let corresponding = |name: &str, satisfies: &dyn Fn(&Value) -> bool| {
            own.attributes.iter().any(|(own, values)| *own == name && values.iter().any(satisfies))
        };
        let mut names = own.attributes.iter().map(|(name, _)| *name);
        match self {
            Self::Star => names.next().is_some(),
            Self::Name(name) => names.any(|own| own == *name),
            Self::NamePrefix(prefix) => names.any(|own| own.starts_with(prefix)),
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
            Self::From(name, bound, is_low) => {
                let sign = if *is_low { ">=" } else { "<=" };
                Self::Compared(name, sign, bound.clone()).is_true_of(own)
            }
            // A place has a latitude and a longitude as an attribute has a value.
            Self::Degrees(asked) => own.place.is_some_and(|(latitude, longitude)| {
                let [latitude, longitude] =
                    [latitude, longitude].map(|it| vec![Value::Tenths(it, "")]);
                let attributes = vec![("lat", latitude), ("long", longitude)];
                asked.is_true_of(&Own { attributes, place: None })
            }),
            Self::DegreesPrefix(name, prefix) => own.place.is_some_and(|(latitude, longitude)| {
                let own = if *name == "lat" { latitude } else { longitude };
                let sign = if own < 0 { "-" } else { "" };
                let text = format!("{sign}{}.{}000000", own.abs() / 10, own.abs() % 10);
                text.starts_with(prefix)
            }),
            Self::AnyPlace => own.place.is_some(),
            Self::Area(south, north, west, wide) => own.place.is_some_and(|place| {
                let east_of_west = (place.1 - west).rem_euclid(3_600);
                (south..=north).contains(&&place.0) && east_of_west <= *wide
            }),
        }
    }
}

const NAMES: &[&str] = &["a", "ab", "abc", "b", "Ab", "post_processing_func"];
const UNITS: &[&str] = &["", "p"];

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-25..25, select(UNITS)).prop_map(|(tenths, unit)| Value::Tenths(tenths, unit)),
        select(&["x", "xy", "y", "1p", "-2", "01", "1e1", "2-3"][..]).prop_map(Value::Text),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let name = || select(NAMES);
    let sign = || select(&[">=", "<=", ">", "<"][..]);
    let axis = || select(&["lat", "long"][..]);
    let number = || (-25..25, select(UNITS)).prop_map(|(it, unit)| Value::Tenths(it, unit));
    let prefixes = &["-", "1", "-1.", "2p", "0", "x", "xy"];
    let degrees = &["-", "-1", "-0", "-0.5", "0", "0.0", "1.00", "2.", "1.5000000", "17"];
    prop_oneof![
        1 => Just(Asked::Star),
        2 => name().prop_map(Asked::Name),
        2 => name().prop_map(Asked::NamePrefix),
        2 => name().prop_map(Asked::Any),
        2 => (name(), vec(value(), 1..4)).prop_map(|(name, values)| Asked::OneOf(name, values)),
        2 => (name(), select(&prefixes[..])).prop_map(|(name, text)| Asked::Prefix(name, text.to_owned())),
        2 => (name(), sign(), number()).prop_map(|(name, sign, it)| Asked::Compared(name, sign, it)),
        2 => (name(), -25..25, 0..20, select(UNITS))
            .prop_map(|(name, low, more, unit)| Asked::Between(name, low, low + more, unit)),
        2 => (name(), number(), any::<bool>()).prop_map(|(name, it, is_low)| Asked::From(name, it, is_low)),
        1 => (axis(), sign(), -25..25)
            .prop_map(|(axis, sign, it)| Asked::Compared(axis, sign, Value::Tenths(it, "")))
            .prop_map(|it| Asked::Degrees(Box::new(it))),
        1 => (axis(), -25..25, 0..20)
            .prop_map(|(axis, low, more)| Asked::Between(axis, low, low + more, ""))
            .prop_map(|it| Asked::Degrees(Box::new(it))),
        1 => (axis(), vec(-25..25, 1..4))
            .prop_map(|(axis, values)| {
                let values = values.into_iter().map(|it| Value::Tenths(it, "")).collect();
                Asked::Degrees(Box::new(Asked::OneOf(axis, values)))
            }),
        1 => (axis(), select(&degrees[..]))
            .prop_map(|(axis, prefix)| Asked::DegreesPrefix(axis, prefix.to_owned())),
        1 => Just(Asked::AnyPlace),
        1 => (-25..25, 0..20, prop_oneof![-25..25, 1_780..1_800], 0..40)
            .prop_map(|(south, more, west, wide)| Asked::Area(south, south + more, west, wide)),
    ]
}

/// Places about the equator, in tenths of a degree, near Greenwich and near the date line.
fn place() -> impl Strategy<Value = (i32, i32)> {
    (-25..25, prop_oneof![-25..25, 1_780..1_800, -1_800..-1_780])
}

/// Pieces of which both parsers make something, and others next to them.
const PIECES: &[&str] = &[
    "a",
    "b",
    "place",
    "within ",
    "lat",
    "long",
    "e",
    "E",
    "p",
    "km",
    "m",
    "°",
    "é",
    "0",
    "1",
    "9",
    "17",
    ".",
    "-",
    "+",
    "−",
    "!",
    "≥",
    "≠",
    " ",
    ":",
    ",",
    "=",
    "<",
    ">",
    "*",
    "[",
    "]",
    "(",
    ")",
    "\"",
    "\\",
    " = ",
    "(1, 2)",
    "1e20",
    "12e456",
    "place = (1, 2)",
    "place = [(1, 2) - (3, 4)]",
    "[1 - 2]",
    "\n",
];

#[test]
fn interests_match_as_the_paper_says() {
    let cases = 8_000;
    let mut runner =
        TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..Default::default() });
    let matched = std::cell::Cell::new(0);
    let attributes = vec((select(NAMES), vec(value(), 0..4)), 0..8);
    let given = (attributes, option::of(place()), vec(asked(), 0..4));
    let result = runner.run(&given, |(mut attributes, place, asked)| {
        attributes.sort_by_key(|(name, _)| *name);
        attributes.dedup_by_key(|(name, _)| *name);
        let own = Own { attributes, place };
        let attributes = own.attributes.iter().map(|(name, values)| match &**values {
            [] => (*name).to_owned(),
            values => format!("{name} = {}", list(values)),
        });
        let place = own.place.map(|(latitude, longitude)| {
            format!("place = ({}, {})", tenths(latitude), tenths(longitude))
        });
        let profile: Profile = attributes.chain(place).collect::<Vec<_>>().join(", ").parse()?;
        let texts: Vec<_> = asked.iter().map(Asked::text).collect();
        let interest: Interest = texts.join(", ").parse()?;
        let expected = asked.iter().all(|asked| asked.is_true_of(&own));
        matched.set(matched.get() + u32::from(expected));
        prop_assert_eq!(interest.matches(&profile), expected, "{} against {}", interest, profile);
        prop_assert_eq!(interest.to_string().parse(), Ok(interest));
        prop_assert_eq!(profile.to_string().parse(), Ok(profile));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let matched = matched.get();
    assert!(matched > cases / 4 && matched < cases / 4 * 3, "{matched} of {cases} match");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn every_text_that_is_taken_is_read_back(pieces in vec(select(PIECES), 0..14)) {
        let text = pieces.concat();
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
        let profile = Profile::new(vec![Attribute::pair(&name, value.clone())], None)?;
        prop_assert_eq!(profile.to_string().parse(), Ok(profile.clone()));
        let wanted = |wanted| Condition::Pair { name: (*name).into(), wanted };
        let text = value.to_string();
        let conditions = vec![
            Condition::Name(Keyword::Prefix((*name).into())),
            wanted(ValueCondition::Exactly(value)),
            wanted(ValueCondition::Prefix((*text).into())),
        ];
        let interest = Interest::new(conditions)?;
        prop_assert_eq!(interest.to_string().parse(), Ok(interest));
    }

    /// Of two words that are different numbers are different as well, zeros at the end of a fraction and the sign of a zero aside.
    #[test]
    fn different_words_are_different_values(one in "-?[0-9]{1,20}(\\.[0-9]{1,3})?(e-?[0-9]{1,3})?[a-f]?", other in "-?[0-3]{1,3}(\\.[0-3]{1,2})?(e-?[0-3]{1,2})?") {
        let bare = |word: &str| {
            let (digits, rest) = word.split_at(word.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(word.len()));
            let digits = match digits.contains('.') {
                true => digits.trim_end_matches('0').trim_end_matches('.'),
                false => digits,
            };
            format!("{}{rest}", if digits == "-0" { "0" } else { digits })
        };
        for (one, other) in [(&one, &other), (&one, &one.replacen('0', "", 1))] {
            // One number has two forms below 10⁻⁵: 0.000001 is 1e-6.
            let is_small = [one, other].iter().any(|word| word.contains("e-") || word.starts_with("0.0000"));
            let are_equal = Item::of_word(one) == Item::of_word(other);
            prop_assert!(!are_equal || bare(one) == bare(other) || is_small, "{} {}", one, other);
        }
    }

    #[test]
    fn degrees_that_satisfy_lie_in_its_ranges(steps in prop_oneof![-1_800_000_000..1_800_000_000, -30..30, Just(400_000_000)], end in 1_usize..13) {
        let text = format!("{:.7}", f64::from(steps) / 1e7);
        let prefix = &text[..end.min(text.len())];
        let wanted = ValueCondition::Prefix(prefix.into());
        prop_assert!(wanted.check_degrees("lat").is_ok(), "{}", prefix);
        prop_assert!(wanted.is_satisfied_by_degrees(steps), "{} {}", prefix, text);
        let degrees = GeoPoint::degrees(steps);
        let is_in = wanted.degrees().iter().any(|it| (it.start() - 1e-7..=it.end() + 1e-7).contains(&degrees));
        prop_assert!(is_in, "{} begins with {}: {:?}", text, prefix, wanted.degrees());
    }

    #[test]
    fn numbers_that_satisfy_lie_in_its_ranges(bits: u64, tenths in -100_000_i64..100_000, end in 1_usize..20) {
        for value in [f64::from_bits(bits), tenths as f64 / 10.0, tenths as f64 * 1e-9, tenths as f64 * 1e11] {
            let Ok(number) = Number::new(value, "p") else { continue };
            let text = number.to_string();
            prop_assert_eq!(Item::of_word(&text), Item::Number(number.clone()), "{}", text);
            let prefix = &text[..end.min(text.len())];
            let wanted = ValueCondition::Prefix(prefix.into());
            prop_assert!(wanted.is_satisfied_by(&Item::Number(number)));
            let is_in = wanted.numbers().iter().any(|range| range.contains(&value));
            prop_assert!(is_in, "{} begins with {}: {:?}", text, prefix, wanted.numbers());
        }
    }
}
