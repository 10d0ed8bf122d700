use super::*;
use crate::attribute::{Number, TEXT_BYTES_MAX};

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
        ("a = 1e20, b = 0.000001, c = 1.50e-9m", "a = 1e20, b = 1e-6, c = 1.5e-9m"),
        ("a = 21.00C, b = -0.0, c = 0.30", "a = 21C, b = 0, c = 0.3"),
        ("a = Stop!, b = \"!x\", c = !", "a = \"Stop!\", b = \"!x\", c = \"!\""),
        ("a = [3-5, 1e-5]", "a = [\"1e-5\", \"3-5\"]"),
        ("\"type !\" = 1, \"a ≥ b\"", "\"a ≥ b\", \"type !\" = 1"),
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
    let many = |count: usize| (0..count).map(|it| format!("a{it}")).collect::<Vec<_>>().join(",");
    let list = format!("a = [{}]", (0..50).map(|it| it.to_string()).collect::<Vec<_>>().join(","));
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
        ("a = []".into(), "the list of \"a\" is empty; name an item, or leave the attribute out"),
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
        (
            "place = (1, 2), place = (1, 2)".into(),
            "a profile has one place, this one has two; leave one out",
        ),
        ("place = (91, 2)".into(), "latitude 91 is not within -90 and 90 degrees"),
        (
            "location = [100 - 105]".into(),
            "[100 - 105] is a range, and a profile has none; list the values that it has, or put a word with a - into quotes",
        ),
        (
            "rate ≥ 5".into(),
            "at byte 5 of a profile stands '≥', and a profile has no conditions; write NAME = VALUE, or an interest",
        ),
        (
            "type != Public".into(),
            "at byte 0 of a profile stands '!', and a profile has no conditions; write NAME = VALUE, or an interest",
        ),
        (
            "!Drone".into(),
            "at byte 0 of a profile stands '!', and a profile has no conditions; write NAME = VALUE, or an interest",
        ),
        (
            format!("{}a", " ".repeat(TEXT_BYTES_MAX)),
            &*format!(
                "the text \"{}…\" has 32769 bytes, and 32768 are allowed; shorten it",
                " ".repeat(40)
            ),
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
    let large: Vec<String> = (0..17).map(|it| format!("a{it:03} = {}", "x".repeat(256))).collect();
    let error = AttributeError::TooLarge { bytes: 17 * 260, most: 4096 };
    assert_eq!(of(&large.join(",")), Err(error));
    assert!(matches!(Number::new(f64::NAN, ""), Err(AttributeError::NotFinite { .. })));
    assert!(matches!(Number::new(1.0, "m2"), Err(AttributeError::Unit { .. })));
    let unit = Number::new(1.0, &"x".repeat(17)).map_err(|error| error.to_string());
    let expected = "the unit \"xxxxxxxxxxxxxxxxx\" has 17 bytes, and 16 are allowed; shorten it";
    assert_eq!(unit, Err(expected.to_owned()));
}

/// Addresses, commits, postcodes, serial numbers: different ones are different values.
#[test]
fn identifiers_that_look_like_numbers_are_texts() {
    for (one, other) in [
        ("00e3", "00e7"),
        ("1e10", "10e9"),
        ("007", "7"),
        ("01234", "1234"),
        ("12345678901234567891", "12345678901234567892"),
        ("9007199254740993", "9007199254740992"),
        ("0.12345678901234567891", "0.12345678901234567892"),
        ("12e4567", "13e4567"),
        ("1e-999", "0"),
        ("-01", "-1"),
        ("1E20", "1e20"),
        ("10e19", "1e20"),
        ("1e020", "1e20"),
        ("0e0", "0"),
        ("1e5f", "100000f"),
        ("03C", "3C"),
        ("4thfloorconferenceroom", "5thfloorconferenceroom"),
    ] {
        let [first, second] = [one, other].map(|it| of(&format!("a = {it}")).expect(it));
        assert_ne!(first, second, "{one} and {other}");
        let text = of(&format!("a = \"{one}\""));
        assert_eq!(Ok(&first), text.as_ref(), "{one} is a text");
        assert_eq!(of(&first.to_string()), Ok(first), "{one}");
    }
}

#[test]
fn numbers_of_sensors_are_numbers() {
    for (word, expected) in [
        ("0", 0.0),
        ("-0.0", 0.0),
        ("0.00", 0.0),
        ("-21.50", -21.5),
        ("9007199254740992", 9_007_199_254_740_992.0),
        ("0.000001", 1e-6),
        ("1e-6", 1e-6),
        ("1.7976931348623157e308", f64::MAX),
        ("0.30000000000000004", 0.1 + 0.2),
    ] {
        let number = Number::new(expected, "").expect("a number");
        assert_eq!(Item::of_word(word), Item::Number(number), "{word}");
    }
}

#[test]
fn the_longest_texts_that_are_shown_can_be_read() {
    let quotes = |name: usize| Attribute {
        name: format!("{name:02}").into(),
        values: ["\"", ",", "*", "[", "(", "<"].map(Item::text).into(),
    };
    let number = |name: usize| Attribute {
        name: format!("{name:02}").into(),
        values: (0..15)
            .map(|it| Number::new(-1.234_567_890_123_456_7e-300 * f64::from(it), "m"))
            .map(|number| Item::Number(number.expect("a number")))
            .collect(),
    };
    let long = |name: usize| Attribute::pair(&format!("{name:02}"), Item::text(&"\"".repeat(126)));
    for one in [quotes as fn(usize) -> Attribute, number, long] {
        let profile = Profile::new((0..32).map(one).collect(), None);
        let profile = profile.or_else(|_| Profile::new((0..28).map(one).collect(), None));
        let profile = profile.expect("a profile");
        assert_eq!(of(&profile.to_string()), Ok(profile));
    }
}
