//! How flows handle malformed messages.

use super::*;
use crate::{BadPolicy, Reason};

const CSV: &str = r##"
topics = ["#"]
bad = "dead-letter"
parse = { format = "csv", fields = ["x", { name = "s", type = "text", optional = true }] }
step = [{ kernel = "notify", topic = "out", fields = ["x", "s"] }]
"##;

const NO_FORMAT: &str = "-: the payload is not in the flow's format";
const EXTENSION: &str = "-: the pack is of a SenML version above 10, or a label of it that is not known ends with _; send it as of RFC 8428";
const NO_INTEGER: &str =
    "x: the field is not a whole number of at most 2^53; larger ones can be read as text";

fn with_format(format: &str) -> String {
    CSV.replace("format = \"csv\"", format)
}

#[test]
fn odd_numbers_are_read_or_named() {
    for (text, expected) in [
        ("1.10", r#"{"x":1.1,"s":null}"#),
        ("007", r#"{"x":7,"s":null}"#),
        ("1e309", "x: the field is too large for a 64-bit float"),
        ("NaN", "x: the field is not a decimal number"),
        ("0x10", "x: the field is not a decimal number"),
        (
            "1234567890123456789012345678901234567890",
            r#"{"x":1234567890123456800000000000000000000000,"s":null}"#,
        ),
        ("", "x: the field is missing"),
        ("null", "x: the field is missing"),
    ] {
        assert_eq!(published(&mut flow(CSV), &[text]), [expected], "{text:?} in csv");
        let mut json = flow(&with_format("format = \"json\""));
        let quoted = format!("{{\"x\":\"{text}\"}}");
        assert_eq!(published(&mut json, &[&quoted]), [expected], "{text:?} in json");
        let mut riot = flow(&with_format("format = \"senml-json\""));
        let pack = format!(r#"{{"e":[{{"u":"far","n":"x","v":"{text}"}}],"bt":1422748800000}}"#);
        assert_eq!(published(&mut riot, &[&pack]), [expected], "{text:?} in senml");
    }
    // As a whole number there is more to refuse.
    let mut integers = flow(&CSV.replacen("[\"x\",", "[\"x:integer\",", 1));
    for (text, expected) in [
        ("9007199254740992", r#"{"x":9007199254740992,"s":null}"#),
        ("9007199254740993", NO_INTEGER),
        ("9007199254740994", NO_INTEGER),
        ("1.5", NO_INTEGER),
        ("1e3", r#"{"x":1000,"s":null}"#),
    ] {
        assert_eq!(published(&mut integers, &[text]), [expected], "{text:?}");
    }
}

/// A map of `x`, `-1 - x` for a negative one, as 8 bytes.
fn cbor_integer(number: i128) -> Vec<u8> {
    let (major, argument) = if number < 0 { (0x3b, -1 - number) } else { (0x1b, number) };
    [b"\xa1\x61x", &[major][..], &u64::try_from(argument).unwrap().to_be_bytes()].concat()
}

#[test]
fn an_integer_is_exact_in_each_format_or_refused() {
    let flow_of =
        |format: &str| flow(&with_format(format).replacen("[\"x\",", "[\"x:integer\",", 1));
    let most = 1_i128 << 53;
    for (number, is_exact) in [
        (most - 1, true),
        (most, true),
        (most + 1, false),
        (most + 2, false),
        (-most, true),
        (-most - 1, false),
        (i128::from(u64::MAX), false),
        (-1 - i128::from(u64::MAX), false),
    ] {
        let expected =
            if is_exact { format!(r#"{{"x":{number},"s":null}}"#) } else { NO_INTEGER.to_owned() };
        let is_in = |format: &str, payload: &[u8]| {
            let outcome = run(&mut flow_of(format), Instant::EPOCH, &[("a", payload)]);
            assert_eq!(outcome.emissions[0].2, expected, "{number}, {format}");
        };
        is_in("format = \"csv\"", number.to_string().as_bytes());
        is_in("format = \"json\"", format!(r#"{{"x":{number}}}"#).as_bytes());
        is_in("format = \"senml-json\"", format!(r#"[{{"n":"x","v":{number}}}]"#).as_bytes());
        is_in("format = \"cbor\"", &cbor_integer(number));
    }
    // A number added to a base is rounded before its sum is.
    for (pack, expected) in [
        (r#"[{"bv":-5,"n":"x","v":9007199254740991}]"#, r#"{"x":9007199254740986,"s":null}"#),
        (r#"[{"bv":-5,"n":"x","v":9007199254740993}]"#, NO_INTEGER),
        (r#"[{"bv":9007199254740991,"n":"x","v":2}]"#, NO_INTEGER),
        (r#"[{"n":"x","s":9007199254740993}]"#, NO_INTEGER),
    ] {
        let found = published(&mut flow_of("format = \"senml-json\""), &[pack]);
        assert_eq!(found, [expected], "{pack}");
    }
    let fixed = r##"
topics = ["#"]
bad = "dead-letter"
parse = { format = "fixed", fields = [{ name = "x", type = "integer", at = 0, as = "i64be" }] }
step = [{ kernel = "notify", topic = "out", fields = ["x"] }]
"##;
    for (number, expected) in
        [(1 << 53, r#"{"x":9007199254740992}"#), ((1 << 53) + 1, NO_INTEGER), (-7, r#"{"x":-7}"#)]
    {
        let payload = i64::to_be_bytes(number);
        let outcome = run(&mut flow(fixed), Instant::EPOCH, &[("a", &payload)]);
        assert_eq!(outcome.emissions[0].2, expected, "{number}, fixed");
    }
}

#[test]
fn a_number_as_text_has_all_its_digits() {
    let json = with_format("format = \"json\"").replacen("[\"x\",", "[\"x:text\",", 1);
    let cbor = json.replace("\"json\"", "\"cbor\"");
    for number in [
        0,
        (1_i128 << 53) + 1,
        i128::from(i64::MAX),
        i128::from(u64::MAX),
        -1 - i128::from(u64::MAX),
    ] {
        let expected = format!(r#"{{"x":"{number}","s":null}}"#);
        let text = format!(r#"{{"x":{number}}}"#);
        assert_eq!(published(&mut flow(&json), &[&text]), [&*expected], "{number} in json");
        let outcome = run(&mut flow(&cbor), Instant::EPOCH, &[("a", &cbor_integer(number))]);
        assert_eq!(outcome.emissions[0].2, expected, "{number} in cbor");
    }
    // So that keys which differ have state of their own.
    let counting = cbor
        .replace("topics", "key = { field = \"x\" }\ntopics")
        .replace("step = [", "step = [{ kernel = \"count\" },")
        .replace("[\"x\", \"s\"]", "[\"message_count\"]");
    let payloads = [1 << 53, (1 << 53) + 1].map(cbor_integer);
    let messages = payloads.each_ref().map(|payload| ("a", &payload[..]));
    let outcome = run(&mut flow(&counting), Instant::EPOCH, &messages);
    for (_, _, payload) in outcome.emissions {
        assert_eq!(payload, r#"{"message_count":1}"#);
    }
}

#[test]
fn columns_are_missing_added_and_reordered() {
    let mut plain = flow(CSV);
    let found =
        published(&mut plain, &["1,a", "2", "3,b,c,\"d,e\"", "4,", "", "5,a\n6,b", "7,\"a"]);
    let expected = [
        r#"{"x":1,"s":"a"}"#,
        r#"{"x":2,"s":null}"#,
        r#"{"x":3,"s":"b"}"#, // what is added is nobody's
        r#"{"x":4,"s":null}"#,
        "x: the field is missing",
        "-: the payload holds more than one row",
        "-: the payload is not in the flow's format",
    ];
    assert_eq!(found, expected);
    let with_header = CSV.replace("format = \"csv\"", "format = \"csv\", header = true").replacen(
        "[\"x\",",
        "[{ name = \"x\", aliases = [\"value\"] },",
        1,
    );
    let mut named = flow(&with_header);
    let found = published(
        &mut named,
        &["s,x\na,1", "x,s\n2,b\n", "x,s\n3,c", "new,value,s\n?,4,d", "s,y\ne,5", "x,s"],
    );
    let expected = [
        r#"{"x":1,"s":"a"}"#,
        r#"{"x":2,"s":"b"}"#,
        r#"{"x":3,"s":"c"}"#,
        r#"{"x":4,"s":"d"}"#,
        "x: the field is missing", // renamed to what nobody said
        "-: the payload is not in the flow's format",
    ];
    assert_eq!(found, expected);
}

#[test]
fn names_in_quotes_are_read_as_values_in_quotes_are() {
    let toml = CSV.replace("format = \"csv\"", "format = \"csv\", header = true").replacen(
        "[\"x\",",
        "[{ name = \"x\", from = \"power, W\", aliases = [\"power \\\"W\\\"\", \"power\\nW\"] },",
        1,
    );
    let mut named = flow(&toml);
    let format = "-: the payload is not in the flow's format";
    for (payload, expected) in [
        ("other,\"power, W\",s\n?,1,a", r#"{"x":1,"s":"a"}"#),
        ("other,\"power, W\",s\n?,2,b", r#"{"x":2,"s":"b"}"#), // the line of before
        ("\"a, b\",s,\"power, W\"\r\n\"?,?\",c,3\r\n", r#"{"x":3,"s":"c"}"#),
        ("\"power \"\"W\"\"\",\"s\"\n4,d", r#"{"x":4,"s":"d"}"#),
        ("s,\"power\nW\"\ne,5", r#"{"x":5,"s":"e"}"#), // a line ends outside of quotes
        (" s ,\"power, W\"\nf,6", r#"{"x":6,"s":"f"}"#),
        ("s,\"power, W\ng,7", format),
        ("s,\"power, W\"x\ng,7", format),
        ("s,\"power, W\"", format),
        // An earlier error is not taken for a line of names.
        ("s,\"power, W\"\nh,8", r#"{"x":8,"s":"h"}"#),
    ] {
        assert_eq!(published(&mut named, &[payload]), [expected], "{payload:?}");
    }
}

#[test]
fn members_are_missing_added_renamed_and_reordered() {
    let mut json = flow(&with_format("format = \"json\"").replacen(
        "[\"x\",",
        "[{ name = \"x\", aliases = [\"value\"] },",
        1,
    ));
    for (payload, expected) in [
        (r#"{"s":"a","x":1}"#, r#"{"x":1,"s":"a"}"#),
        (r#"{"x":1,"more":{"x":[2,{"}":"\"]"}]},"s":null}"#, r#"{"x":1,"s":null}"#),
        (r#"{"value":1}"#, r#"{"x":1,"s":null}"#),
        (r#"{"x":1,"x":2}"#, r#"{"x":2,"s":null}"#), // the last counts
        (r#"{"\u0078":3,"s":"\ud83d\ude00\n"}"#, "{\"x\":3,\"s\":\"\u{1f600}\\u000a\"}"),
        (r#"{"x":true}"#, r#"{"x":1,"s":null}"#),
        (r#"{"x":[1]}"#, "x: the field is not a decimal number"),
        (r#"{"y":1}"#, "x: the field is missing"),
        (r#"{"x":1"#, "-: the payload is not in the flow's format"),
        (r#"{"x":1}}"#, "-: the payload is not in the flow's format"),
        (r#"{"x":1,}"#, "-: the payload is not in the flow's format"),
        (r#"{"x":"\ud83d"}"#, "-: the payload is not in the flow's format"),
        (r#"[1]"#, "-: the payload is not in the flow's format"),
        ("", "-: the payload is not in the flow's format"),
    ] {
        assert_eq!(published(&mut json, &[payload]), [expected], "{payload}");
    }
    let deep = format!("{{\"y\":{}1{},\"x\":1}}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(published(&mut json, &[&deep]), ["-: the payload is not in the flow's format"]);
}

#[test]
fn damaged_cbor_is_refused_and_costs_what_it_is_long() {
    let mut cbor = flow(&with_format("format = \"cbor\""));
    let format = "-: the payload is not in the flow's format";
    for (payload, expected) in [
        (&b"\xa1\x61x\x05"[..], r#"{"x":5,"s":null}"#),
        (b"\xbf\x61x\xf9\x3e\x00\xff", r#"{"x":1.5,"s":null}"#), // of indefinite length
        (b"\xa1\x61x\xc1\x05", r#"{"x":5,"s":null}"#),           // tagged
        (
            b"\xa1\x61x\x1b\xff\xff\xff\xff\xff\xff\xff\xff",
            r#"{"x":18446744073709552000,"s":null}"#,
        ),
        (b"\xa1\x61x\xf9\x7e\x00", "x: the field is not a decimal number"), // NaN
        (b"\xa1\x61x\xf9\x7c\x00", "x: the field is too large for a 64-bit float"),
        (b"\xa2\x61x\x01\x61s\x42\xff\xff", "s: the field is not UTF-8 text"),
        (b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff", format), // says that it is long
        (b"\xa1\x61x\x9b\xff\xff\xff\xff\xff\xff\xff\xff", format),
        (b"\xa1\x61x", format),
        (b"\xa1\x61x\x05\x00", format),
        (b"\xa1\x7f\x61x\xff\x05", format), // text in pieces
        (b"", format),
    ] {
        let outcome = run(&mut cbor, Instant::EPOCH, &[("a", payload)]);
        assert_eq!(outcome.emissions[0].2, expected, "{payload:02x?}");
    }
    let deep = [&b"\xa1\x61y"[..], &[0x81; 60_000]].concat();
    assert_eq!(run(&mut cbor, Instant::EPOCH, &[("a", &deep)]).emissions[0].2, format);
}

#[test]
fn senml_keeps_its_bases() {
    let toml = r##"
topics = ["#"]
bad = "dead-letter"
parse = { format = "senml-json", fields = [
    { name = "x", from = "dev:x", optional = true }, { name = "t", type = "time", from = "@time", optional = true },
    { name = "on", from = "dev:on", optional = true } ] }
step = [{ kernel = "notify", topic = "out", fields = ["x", "t", "on"] }]
"##;
    for (payload, expected) in [
        // Without a time it is now, which is 2^30 here.
        (r#"[{"n":"dev:x","v":1}]"#, r#"{"x":1,"t":1073741824,"on":null}"#),
        (
            r#"[{"bn":"dev:","bt":1e9,"bv":10,"n":"x","v":1},{"n":"on","vb":true,"t":5}]"#,
            r#"{"x":11,"t":1000000005,"on":1}"#,
        ),
        (
            r#"[{"bn":"de"},{"bn":"dev:"},{"n":"x","s":3,"bs":2}]"#,
            r#"{"x":5,"t":1073741824,"on":null}"#,
        ),
        // Less than 2^28 seconds is from now on.
        (r#"[{"bn":"dev:","n":"x","v":1,"t":-5}]"#, r#"{"x":1,"t":1073741819,"on":null}"#),
        (r#"{"bn":"dev:","n":"x","v":7}"#, r#"{"x":7,"t":1073741824,"on":null}"#),
        // A pack that has none of the fields has no time for them.
        (r#"[{"bn":"dev:"},{"n":"z","v":1}]"#, r#"{"x":null,"t":null,"on":null}"#),
        (
            r#"[{"n":"dev:x","v":1,"t":1e9},{"n":"dev:on","vb":true}]"#,
            r#"{"x":1,"t":1073741824,"on":1}"#,
        ),
        ("\u{feff}[{\"n\":\"dev:x\",\"v\":1,\"t\":1e9}]", r#"{"x":1,"t":1000000000,"on":null}"#),
        (
            r#"{"bt":2000000000,"e":[{"n":"dev:x","v":"1.10"}]}"#,
            r#"{"x":1.1,"t":2000000000,"on":null}"#,
        ),
        // Members of an object have no order: bases may stand behind what they hold for.
        (
            r#"{"e":[{"n":"x","v":1},{"n":"on","vb":true,"t":5}],"bv":10,"bn":"dev:","bt":1e9}"#,
            r#"{"x":11,"t":1000000005,"on":1}"#,
        ),
        (
            r#"{"bt":1e9,"bn":"dev:","e":[{"n":"x","v":1,"t":7},{"n":"other","v":2,"t":9}]}"#,
            r#"{"x":1,"t":1000000007,"on":null}"#,
        ),
        (
            r#"{"e":[{"n":"dev:x","v":"?"},{"n":"x","v":3}],"bn":"dev:"}"#,
            r#"{"x":3,"t":1073741824,"on":null}"#,
        ),
        (r#"{"bs":2,"e":[{"n":"dev:x","s":3}]}"#, r#"{"x":5,"t":1073741824,"on":null}"#),
        (r#"{"e":[{"bn":"dev:","n":"x","v":1}]}"#, NO_FORMAT),
        (r#"{"e":[{"bt":5,"n":"dev:x","v":1}]}"#, NO_FORMAT),
        (r#"{"e":[{"n":"dev:x","v":1}],"e":[]}"#, NO_FORMAT),
        ("[]", r#"{"x":null,"t":null,"on":null}"#),
        (r#"[{"n":"dev:x","v":1e999}]"#, "x: the field is too large for a 64-bit float"),
        (r#"[{"n":"dev:x","v":[1]}]"#, "x: the field is not a decimal number"),
        (r#"[{"n":5,"v":1}]"#, "-: the payload is not in the flow's format"),
        (r#"[{"bt":"soon"}]"#, "t: the field is not a time"),
    ] {
        let now = Instant::from_nanos((1 << 30) * 1_000_000_000);
        let outcome = run(&mut flow(toml), now, &[("a", payload.as_bytes())]);
        assert_eq!(outcome.emissions[0].2, expected, "{payload}");
    }
}

#[test]
fn senml_that_must_be_understood_and_is_not_is_refused() {
    let json = r##"
topics = ["#"]
bad = "dead-letter"
parse = { format = "senml-json", fields = ["x"] }
step = [{ kernel = "notify", topic = "out", fields = ["x"] }]
"##;
    let one = r#"{"x":1}"#;
    for (payload, expected) in [
        (r#"[{"n":"x","v":1,"new":[2],"_":3,"new_x":4}]"#, EXTENSION),
        (r#"[{"n":"x","v":1,"new":[2],"new_x":4}]"#, one),
        (r#"[{"n":"x","v":1,"new_":[2]}]"#, EXTENSION),
        (r#"[{"n":"x","v":1,"new\u005f":[2]}]"#, EXTENSION),
        (r#"[{"n":"x","v":1},{"n":"other","v":1,"new_":true}]"#, EXTENSION),
        (r#"{"n":"x","v":1,"new_":2}"#, EXTENSION),
        (r#"{"e":[{"n":"x","v":1,"new_":2}]}"#, EXTENSION),
        (r#"{"e":[{"n":"x","v":1}],"new_":2}"#, EXTENSION),
        (r#"[{"bver":10,"n":"x","v":1}]"#, one),
        (r#"[{"bver":5,"n":"x","v":1}]"#, one),
        // All records of a pack have the version of the first.
        (r#"[{"bver":5,"n":"y","v":2},{"n":"x","v":1},{"bver":5}]"#, one),
        (r#"[{"n":"x","v":1},{"bver":10}]"#, one),
        (r#"[{"bver":5,"n":"x","v":1},{"bver":10}]"#, NO_FORMAT),
        (r#"[{"n":"x","v":1},{"bver":5}]"#, NO_FORMAT),
        (r#"[{"bver":5,"n":"x","v":1,"bver":6}]"#, NO_FORMAT),
        (r#"[{"bver":11,"n":"x","v":1}]"#, EXTENSION),
        (r#"[{"n":"x","v":1,"bver":1e3}]"#, EXTENSION),
        (r#"{"e":[{"n":"x","v":1}],"bver":11}"#, EXTENSION),
        (r#"[{"bver":0,"n":"x","v":1}]"#, NO_FORMAT),
        (r#"[{"bver":9.5,"n":"x","v":1}]"#, NO_FORMAT),
        (r#"[{"bver":"ten","n":"x","v":1}]"#, NO_FORMAT),
    ] {
        assert_eq!(published(&mut flow(json), &[payload]), [expected], "{payload}");
    }
    let cbor = json.replace("senml-json", "senml-cbor");
    for (members, expected) in [
        (&b"\xa2\x00\x61x\x02\x01"[..], one),
        (b"\xa3\x00\x61x\x02\x01\x20\x0a", one),
        // A decimal fraction: 10 tenths.
        (b"\xa2\x00\x61x\x02\xc4\x82\x20\x0a", one),
        (b"\xa2\x00\x61x\x02\x81\x01", "x: the field is not a decimal number"),
        (b"\xa3\x00\x61x\x02\x01\x20\x0b", EXTENSION),
        (b"\xa3\x00\x61x\x02\x01\x20\x00", NO_FORMAT),
        (b"\xa3\x00\x61x\x02\x01\x63new\x05", one),
        (b"\xa3\x00\x61x\x02\x01\x64new_\x05", EXTENSION),
    ] {
        let pack = [b"\x81", members].concat();
        let outcome = run(&mut flow(&cbor), Instant::EPOCH, &[("a", &pack)]);
        assert_eq!(outcome.emissions[0].2, expected, "{members:02x?}");
    }
}

#[test]
fn fixed_places_are_missing_where_a_payload_ends() {
    let toml = r##"
topics = ["#"]
bad = "dead-letter"
parse = { format = "fixed", fields = [{ name = "x", at = 0, length = 6 }, { name = "id", type = "integer", at = 6, as = "u16be" }] }
step = [{ kernel = "notify", topic = "out", fields = ["x", "id"] }]
"##;
    for (payload, expected) in [
        (&b" 98.60\x01\x02"[..], r#"{"x":98.6,"id":258}"#),
        (b"98.6  \x00\x07rest", r#"{"x":98.6,"id":7}"#),
        (b"-1e-05\x00\x07", r#"{"x":-0.00001,"id":7}"#),
        (b"  NaN \x00\x07", "x: the field is not a decimal number"),
        (b"      \x00\x07", "x: the field is missing"),
        (b"98.60\x00\x00\x07", "x: the field is not a decimal number"),
        (b" 98.60\x01", "id: the field is missing"),
        (b"", "x: the field is missing"),
    ] {
        let outcome = run(&mut flow(toml), Instant::EPOCH, &[("a", payload)]);
        assert_eq!(outcome.emissions[0].2, expected, "{payload:02x?}");
    }
}

#[test]
fn a_megabyte_is_read_only_where_it_may_be() {
    let long = format!("1,{}", "x".repeat(1 << 20));
    let expected = "-: the payload is longer than message_bytes_max";
    assert_eq!(published(&mut flow(CSV), &[&long]), [expected]);
    let mut patient = flow(&format!("message_bytes_max = \"2MiB\"\n{CSV}"));
    assert_eq!(published(&mut patient, &[&long])[0].len(), (1 << 20) + r#"{"x":1,"s":""}"#.len());
    // Digits without end, brackets without end.
    for payload in ["9".repeat(1 << 20), format!("\"{}", "\"\"".repeat(1 << 19))] {
        assert_eq!(published(&mut patient, &[&payload]).len(), 1);
    }
}

#[test]
fn each_policy_does_as_it_says() {
    let messages: &[(&str, &[u8])] =
        &[("dev/1", b"1"), ("dev/1", b"x"), ("dev/2", b"y"), ("dev/1", b"3")];
    let out = |from: usize, payload: &str| (from, "out".to_owned(), payload.to_owned());
    let dead = |from: usize, topic: &str| {
        (from, topic.to_owned(), "x: the field is not a decimal number".to_owned())
    };
    for (policy, emissions, bad, mended) in [
        (BadPolicy::Skip, vec![out(0, "1"), out(3, "3")], 2, 0),
        (
            BadPolicy::DeadLetter,
            vec![out(0, "1"), dead(1, "dead/test/dev/1"), dead(2, "dead/test/dev/2"), out(3, "3")],
            2,
            0,
        ),
        // The second device has no last good number.
        (BadPolicy::LastGood, vec![out(0, "1"), out(1, "1"), out(3, "3")], 1, 1),
    ] {
        for (forward, verdicts) in [
            // A dead letter continues as one alone.
            (
                "all",
                if policy == BadPolicy::DeadLetter {
                    ["pass", "drop", "drop", "pass"]
                } else {
                    ["pass"; 4]
                },
            ),
            ("none", ["drop"; 4]),
            (
                "kept",
                if policy == BadPolicy::LastGood {
                    ["pass", "pass", "drop", "pass"]
                } else {
                    ["pass", "drop", "drop", "pass"]
                },
            ),
        ] {
            let mut spec = spec(&format!("forward = \"{forward}\"\n{CSV}"));
            spec.bad = policy;
            let crate::StepSpec::Notify(notify) = &mut spec.steps[0] else { panic!("notify") };
            notify.fields.clear();
            notify.payload = Some("{field:x}".to_owned());
            let mut flow = Flow::compile(&spec, &Models::new()).unwrap();
            let outcome = run(&mut flow, Instant::EPOCH, messages);
            assert_eq!(outcome.verdicts, verdicts, "{policy:?} {forward}");
            assert_eq!(outcome.emissions, emissions, "{policy:?} {forward}");
            let stats = flow.stats();
            assert_eq!(stats.bad[Reason::NotANumber as usize], bad, "{policy:?}");
            assert_eq!((stats.mended, stats.messages), (mended, 4), "{policy:?}");
        }
    }
}

#[test]
fn a_text_has_no_last_good_one() {
    let toml = r##"
topics = ["#"]
bad = "last-good"
parse = { format = "csv", fields = ["x", "s:text"] }
step = [{ kernel = "notify", topic = "out", payload = "{field:x} {field:s}" }]
"##;
    let found = published(&mut flow(toml), &["1,a", ",b", "2,", ",", "x,c"]);
    assert_eq!(found, ["1 a", "1 b", "2 c"]);
}

#[test]
fn keys_that_are_none_are_named() {
    for (key, topic, payload, expected) in [
        (
            "{ levels = [2] }",
            "a/b",
            "1,k",
            "-: the key is longer than key_bytes_max, a number of 2^53 or more, or the topic has too few levels for it",
        ),
        ("{ field = \"s\" }", "a/b", "1,", "s: the field is missing"),
        (
            "{ field = \"s\" }",
            "a/b",
            &*format!("1,{}", "k".repeat(5000)),
            "s: the key is longer than key_bytes_max, a number of 2^53 or more, or the topic has too few levels for it",
        ),
        (
            "\"topic\"",
            &*"t".repeat(5000),
            "1,k",
            "-: the key is longer than key_bytes_max, a number of 2^53 or more, or the topic has too few levels for it",
        ),
    ] {
        let toml = format!("dead_letter_topic = \"dead\"\nkey = {key}\n{CSV}")
            .replace("step = [", "step = [{ kernel = \"kalman\", field = \"x\" },");
        let outcome = run(&mut flow(&toml), Instant::EPOCH, &[(topic, payload.as_bytes())]);
        assert_eq!(outcome.emissions[0].2, expected, "{key}");
    }
}
