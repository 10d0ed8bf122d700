//! Lines and what they say, lines that say nothing, and lines that are written.

use proptest::{collection::vec, option, prelude::*};
use tidegate_message::Instant;

use super::*;

fn lines(text: &str) -> Vec<Result<Line<'_>, LineError>> {
    Batch::new(text.as_bytes(), Precision::Nanoseconds).collect()
}

/// A line in a form that is easy to compare: measurement|tags|fields|timestamp.
fn told(line: &Line<'_>) -> String {
    let tags =
        line.tags().map(|(name, value)| format!("{}={}", name.unescaped(), value.unescaped()));
    let fields = line.fields().map(|(name, value)| {
        let kind = match value {
            Value::Float(_) => "f",
            Value::Integer(_) => "i",
            Value::Unsigned(_) => "u",
            Value::Text(_) => "s",
            Value::Boolean(_) => "b",
        };
        format!("{}:{kind}={}", name.unescaped(), value.payload())
    });
    let timestamp = line.timestamp().map_or(String::new(), |at| at.as_nanos().to_string());
    let (tags, fields): (Vec<_>, Vec<_>) = (tags.collect(), fields.collect());
    let measurement = line.measurement();
    format!("{}|{}|{}|{timestamp}", measurement.unescaped(), tags.join(","), fields.join(","))
}

#[test]
fn lines_say_this() {
    for (line, expected) in [
        ("m f=1", "m||f:f=1|"),
        ("m,a=b f=1 7", "m|a=b|f:f=1|7"),
        (
            "m,a=b,c=d f=1,g=2i,h=3u,i=\"x\",j=t 1700000000000000000",
            "m|a=b,c=d|f:f=1,g:i=2,h:u=3,i:s=x,j:b=t|1700000000000000000",
        ),
        ("m f=1 -5", "m||f:f=1|-5"),
        ("m  f=1   7  ", "m||f:f=1|7"), // blanks may be several
        ("  m f=1", "m||f:f=1|"),
        ("m f=1\r\n", "m||f:f=1|"),
        ("m f=1 7\r", "m||f:f=1|7"),
        (
            "wea\\,ther\\ now,lo\\=c\\,a\\ b=us\\,mid\\ w\\=est te\\ mp\\=1\\,2=82",
            "wea,ther now|lo=c,a b=us,mid w=est|te mp=1,2:f=82|",
        ),
        ("a=b f=1", "a=b||f:f=1|"), // = is nothing special in a measurement
        ("a\\=b f=1", "a\\=b||f:f=1|"),
        ("m,a=C:\\dir f=1", "m|a=C:\\dir|f:f=1|"), // a backslash before anything else is itself
        ("m,a=x\\\\,b f=1", "m|a=x\\,b|f:f=1|"),   // itself, then an escaped comma
        ("m f=\"a b,c=d\"", "m||f:s=a b,c=d|"),
        ("m f=\"say \\\"hi\\\" \\\\ \\n\"", "m||f:s=say \"hi\" \\ \\n|"),
        ("m f=\"two\nlines\" 7", "m||f:s=two\nlines|7"),
        ("m f=\"\"", "m||f:s=|"),
        ("m f=\"\\\\\",g=1", "m||f:s=\\,g:f=1|"),
        ("m\"q\" f\"q\"=1", "m\"q\"||f\"q\":f=1|"), // quotes in names are themselves
        (
            "m f=1.10,g=-0.0,h=1e-7,i=+5.,j=.5,k=007",
            "m||f:f=1.10,g:f=-0.0,h:f=1e-7,i:f=+5.,j:f=.5,k:f=007|",
        ),
        (
            "m a=t,b=T,c=true,d=True,e=TRUE,f=f,g=F,h=false,i=False,j=FALSE",
            "m||a:b=t,b:b=T,c:b=true,d:b=True,e:b=TRUE,f:b=f,g:b=F,h:b=false,i:b=False,j:b=FALSE|",
        ),
        (
            "m f=9223372036854775807i,g=-9223372036854775808i,h=18446744073709551615u",
            "m||f:i=9223372036854775807,g:i=-9223372036854775808,h:u=18446744073709551615|",
        ),
        (
            "m f=0.1234567890123456789012345678901234567890",
            "m||f:f=0.1234567890123456789012345678901234567890|",
        ),
        ("größe,ort=köln wärme=1", "größe|ort=köln|wärme:f=1|"),
    ] {
        let found = lines(line);
        let [Ok(found)] = &found[..] else { panic!("{line}: {found:?}") };
        assert_eq!(told(found), expected, "{line}");
    }
}

#[test]
fn lines_that_say_nothing_are_named() {
    for (line, column, problem) in [
        (",a=b f=1", 1, LineProblem::NoMeasurement),
        ("m", 2, LineProblem::NoFields),
        ("m,a=b", 6, LineProblem::NoFields),
        ("m   ", 5, LineProblem::NoFields),
        ("m,=b f=1", 3, LineProblem::NoTagName),
        ("m, f=1", 3, LineProblem::NoTagName),
        ("m,a f=1", 3, LineProblem::NoTagValue),
        ("m,a= f=1", 3, LineProblem::NoTagValue),
        ("m,a=,b=c f=1", 3, LineProblem::NoTagValue),
        ("m,a=b=c f=1", 6, LineProblem::TagEquals),
        ("m,a=b,a=c f=1", 7, LineProblem::TagRepeated),
        ("m =1", 3, LineProblem::NoFieldName),
        ("m f=1,", 7, LineProblem::NoFieldName),
        ("m f", 3, LineProblem::NoFieldValue),
        ("m f=", 3, LineProblem::NoFieldValue),
        ("m f= 7", 3, LineProblem::NoFieldValue),
        ("m f=1,f=2", 7, LineProblem::FieldRepeated),
        ("m f=\"x", 5, LineProblem::TextOpen),
        ("m f=\"x\\\"", 5, LineProblem::TextOpen),
        ("m f=\"x\"y", 8, LineProblem::AfterText),
        ("m f=x", 5, LineProblem::Value),
        ("m f=1,2", 7, LineProblem::NoFieldValue), // a comma in a number
        ("m f=0x10", 5, LineProblem::Value),
        ("m f=NaN", 5, LineProblem::Value),
        ("m f=inf", 5, LineProblem::Value),
        ("m f=1_000", 5, LineProblem::Value),
        ("m f=1e", 5, LineProblem::Value),
        ("m f=.", 5, LineProblem::Value),
        ("m f=1.5i", 5, LineProblem::Value),
        ("m f=-1u", 5, LineProblem::Value),
        ("m f=i", 5, LineProblem::Value),
        ("m f=--1i", 5, LineProblem::Value),
        ("m f=tRUE", 5, LineProblem::Value),
        ("m f='x'", 5, LineProblem::Value),
        ("m f=9223372036854775808i", 5, LineProblem::IntegerRange),
        ("m f=18446744073709551616u", 5, LineProblem::UnsignedRange),
        ("m f=1e309", 5, LineProblem::FloatRange),
        ("m f=1 x", 7, LineProblem::Timestamp),
        ("m f=1 1.5", 7, LineProblem::Timestamp),
        ("m f=1 9223372036854775808", 7, LineProblem::TimestampRange),
        ("m f=1 7 8", 8, LineProblem::AfterTimestamp),
        ("m f=1 ,g=2", 7, LineProblem::AfterTimestamp),
        ("größe f=x", 9, LineProblem::Value), // columns count characters
    ] {
        let found = lines(line);
        assert_eq!(found, [Err(LineError { line: 1, column, problem })], "{line}");
    }
    let text = lines("m f=0x10")[0].unwrap_err().to_string();
    assert_eq!(
        text,
        "line 1, column 5: the value is neither a number (21.5, 21i, 21u) nor true, false or a \"text\""
    );
}

#[test]
fn a_bad_line_costs_no_other() {
    let batch = "# a comment\n\na f=1\r\nbad\n   # another\nb f=\"open\nc f=2\nd,t=1,t=2 f=1\ne f=\"x\ny\"\nf f=x\ng f=3";
    let found: Vec<String> = lines(batch)
        .iter()
        .map(|line| match line {
            Ok(line) => format!("{} {}", line.number(), told(line).replace('\n', "/")),
            Err(error) => format!("{}:{} {:?}", error.line, error.column, error.problem),
        })
        .collect();
    // The quote that b opens is closed in the line of e, where something follows it: b alone is bad.
    let expected = [
        "3 a||f:f=1|",
        "4:4 NoFields",
        "6:5 TextOpen",
        "7 c||f:f=2|",
        "8:7 TagRepeated",
        "9 e||f:s=x/y|",
        "11:5 Value",
        "12 g||f:f=3|",
    ];
    assert_eq!(found, expected);
    let bytes = b"a f=1\n\xff f=2\nb \xff\xff=3\nc f=\"\xff\"\nd f=4";
    let found: Vec<_> = Batch::new(bytes, Precision::Nanoseconds).collect();
    let problems: Vec<_> = found.iter().map(|line| line.err().map(|it| it.problem)).collect();
    let bad = Some(LineProblem::NotUtf8);
    assert_eq!(problems, [None, bad, bad, bad, None]);
}

#[test]
fn a_byte_order_mark_before_a_line_is_no_part_of_it() {
    // Two files that were joined, and marks that stand alone, behind blanks or before a comment.
    let batch = "\u{feff}a f=1\n\u{feff}\u{feff}b f=2\n \u{feff}\tc f=3\n\u{feff}# d f=4\n\u{feff}\ne\u{feff} f=5\n\u{feff}g";
    let found: Vec<String> = lines(batch)
        .iter()
        .map(|line| match line {
            Ok(line) => format!("{} {}", line.number(), line.text()),
            Err(error) => format!("{}:{} {:?}", error.line, error.column, error.problem),
        })
        .collect();
    assert_eq!(found, ["1 a f=1", "2 b f=2", "3 c f=3", "6 e\u{feff} f=5", "7:3 NoFields"]);
}

#[test]
fn timestamps_have_a_precision() {
    for (precision, count, expected) in [
        ("ns", "7", Ok(7)),
        ("us", "-7", Ok(-7_000)),
        ("ms", "1700000000123", Ok(1_700_000_000_123_000_000)),
        ("s", "9223372036", Ok(9_223_372_036_000_000_000)),
        ("s", "9223372037", Err(LineProblem::TimestampRange)),
    ] {
        let text = format!("m f=1 {count}");
        let line = Batch::new(text.as_bytes(), precision.parse().unwrap()).next().unwrap();
        let found = line.map(|line| line.timestamp().unwrap().as_nanos());
        assert_eq!(found.map_err(|error| error.problem), expected, "{count} {precision}");
    }
    assert_eq!("h".parse::<Precision>(), Err(UnknownPrecision));
}

#[test]
fn lines_have_limits() {
    let long = |bytes: usize| format!("m f=\"{}\"", "x".repeat(bytes - 6));
    let many = |count: usize, prefix: &str| -> String {
        let parts: Vec<String> = (0..count).map(|at| format!("{prefix}{at}=1")).collect();
        parts.join(",")
    };
    let tags = |count| format!("m,{} f=1", many(count, "t"));
    let fields = |count| format!("m {}", many(count, "f"));
    for (line, expected) in [
        (long(LINE_BYTES_MAX), None),
        (long(LINE_BYTES_MAX + 1), Some(LineProblem::TooLong)),
        (long(10 * LINE_BYTES_MAX), Some(LineProblem::TooLong)),
        (format!("{} f=1", "m".repeat(LINE_BYTES_MAX)), Some(LineProblem::TooLong)),
        (tags(TAGS_MAX), None),
        (tags(TAGS_MAX + 1), Some(LineProblem::TooManyTags)),
        (fields(FIELDS_MAX), None),
        (fields(FIELDS_MAX + 1), Some(LineProblem::TooManyFields)),
    ] {
        for end in ["", "\n", "\r\n"] {
            let batch = format!("{line}{end}\nlast f=1\n");
            let found = lines(&batch);
            assert_eq!(found.len(), 2);
            assert_eq!(found[0].err().map(|error| error.problem), expected, "{}", &line[..20]);
            assert_eq!(told(&found[1].unwrap()), "last||f:f=1|");
        }
    }
}

#[test]
fn values_are_kept_and_told_as_types() {
    let found = lines("m a=1.10,b=-3i,c=4u,d=F,e=\"5\"");
    let line = found[0].unwrap();
    let value = |name| line.field(name).unwrap();
    assert_eq!((value("a").as_f64(), value("a").as_i64()), (Some(1.1), None));
    assert_eq!((value("b").as_i64(), value("b").as_f64()), (Some(-3), Some(-3.0)));
    assert_eq!((value("c").as_u64(), value("c").as_i64()), (Some(4), None));
    assert_eq!((value("d").as_bool(), value("d").as_f64()), (Some(false), None));
    assert_eq!((value("e").as_f64(), value("e").payload().as_ref()), (None, "5"));
    assert_eq!((line.field("x"), line.tag("x")), (None, None));
}

#[test]
fn reading_allocates_nothing_for_plain_lines() {
    let text =
        "weather,site=north,sensor=7 temperature=21.50,open=true,count=3i 1700000000000000000\n";
    let batch = text.repeat(1000);
    let memory = allocation_counter::measure(|| {
        let batch = Batch::new(batch.as_bytes(), Precision::Nanoseconds);
        let payloads: usize = batch
            .map(|line| {
                let line = line.unwrap();
                line.fields().map(|(_, value)| value.payload().len()).sum::<usize>()
            })
            .sum();
        assert_eq!(payloads, 1000 * "21.50true3".len());
    });
    assert!(memory.count_total <= 3, "{} allocations", memory.count_total);
}

#[test]
fn lines_are_written_with_their_tags_in_order() {
    let mut writer = LineWriter::new(Precision::Milliseconds);
    let mut out = Vec::new();
    let fields = [
        ("t c", FieldValue::Float(21.5)),
        ("n", FieldValue::Integer(-3)),
        ("u", FieldValue::Unsigned(4)),
        ("s", FieldValue::Text("say \"hi\" \\")),
        ("b", FieldValue::Boolean(true)),
    ];
    let at = Some(Instant::from_nanos(-1_500_000));
    writer.write(&mut out, "wea,ther", &[("z", "1"), ("a=", "x y")], &fields, at).unwrap();
    writer.write(&mut out, "m", &[], &[("f", FieldValue::Float(1e300))], None).unwrap();
    let expected = "wea\\,ther,a\\==x\\ y,z=1 t\\ c=21.5,n=-3i,u=4u,s=\"say \\\"hi\\\" \\\\\",b=true -2\nm f=1e300\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn values_that_the_protocol_cannot_express_are_not_written() {
    let one = [("f", FieldValue::Integer(1))];
    let long = "x".repeat(LINE_BYTES_MAX);
    let write = |measurement: &str, tags: &[(&str, &str)], fields: &[(&str, FieldValue<'_>)]| {
        let mut out = b"before\n".to_vec();
        let error = LineWriter::default().write(&mut out, measurement, tags, fields, None);
        assert_eq!(out, b"before\n");
        error.unwrap_err().to_string()
    };
    for (found, expected) in [
        (write("", &[], &one), "the measurement is empty; leave an empty tag out"),
        (write("m", &[("a", "")], &one), "the tag's value is empty; leave an empty tag out"),
        (
            write("m\n", &[], &one),
            "the measurement has a control character, which has no escape; a field's text may have it",
        ),
        (
            write("m", &[("a\\", "b")], &one),
            "the tag's name ends with a backslash, which would escape the character after it",
        ),
        (write("#m", &[], &one), "the measurement begins with #, as comments do"),
        (
            write("\u{feff}m", &[], &one),
            "the measurement begins with a byte order mark (U+FEFF), which readers leave out",
        ),
        (write("m", &[], &[]), "a line has one field at least"),
        (write("m", &[("a", "1"), ("b", "2"), ("a", "3")], &one), "two tags have one name"),
        (write("m", &[], &[one[0], one[0]]), "two fields have one name"),
        (
            write("m", &[], &[("f", FieldValue::Float(f64::NAN))]),
            "a float is infinite or NaN, which the protocol does not have",
        ),
        (write(&long, &[], &one), "line of 65541 bytes exceeds the limit of 65536"),
    ] {
        assert_eq!(found, expected);
    }
}

/// Names that can be written.
fn name() -> impl Strategy<Value = String> {
    let name = prop_oneof!["[a-z]{1,8}", "[a-z,= \\\\\"ä#\u{feff}]{1,8}"];
    name.prop_map(|name| format!("{}x", name.trim_start_matches(['#', '\u{feff}'])))
}

#[derive(Clone, Debug)]
enum Owned {
    Float(f64),
    Integer(i64),
    Unsigned(u64),
    Text(String),
    Boolean(bool),
}

impl Owned {
    fn borrow(&self) -> FieldValue<'_> {
        match self {
            Self::Float(number) => FieldValue::Float(*number),
            Self::Integer(number) => FieldValue::Integer(*number),
            Self::Unsigned(number) => FieldValue::Unsigned(*number),
            Self::Text(text) => FieldValue::Text(text),
            Self::Boolean(value) => FieldValue::Boolean(*value),
        }
    }
}

fn value() -> impl Strategy<Value = Owned> {
    prop_oneof![
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Owned::Float),
        any::<i64>().prop_map(Owned::Integer),
        any::<u64>().prop_map(Owned::Unsigned),
        "[a-z,= \\\\\"ä#\n\r]{0,12}".prop_map(Owned::Text),
        any::<bool>().prop_map(Owned::Boolean),
    ]
}

proptest! {
    #[test]
    fn written_lines_read_as_they_were_given(
        measurement in name(),
        tags in prop::collection::btree_map(name(), name(), 0..5),
        fields in prop::collection::btree_map(name(), value(), 1..5),
        timestamp in option::of(any::<i64>()),
    ) {
        let at = timestamp.map(Instant::from_nanos);
        let tag_list: Vec<_> = tags.iter().rev().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let field_list: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.borrow())).collect();
        let mut out = Vec::new();
        let mut writer = LineWriter::new(Precision::Nanoseconds);
        writer.write(&mut out, &measurement, &tag_list, &field_list, at).unwrap();
        let read: Vec<_> = Batch::new(&out, Precision::Nanoseconds).collect();
        prop_assert_eq!(read.len(), 1);
        let line = read[0].unwrap();
        prop_assert_eq!(line.measurement().unescaped(), measurement.as_str());
        prop_assert_eq!(line.timestamp(), at);
        let found: Vec<_> = line.tags().map(|(n, v)| (n.unescaped().into_owned(), v.unescaped().into_owned())).collect();
        prop_assert_eq!(found, tags.clone().into_iter().collect::<Vec<_>>());
        for ((name, value), (expected_name, expected)) in line.fields().zip(&fields) {
            prop_assert_eq!(&name.unescaped(), expected_name);
            match expected {
                Owned::Float(number) => prop_assert_eq!(value.as_f64(), Some(*number)),
                Owned::Integer(number) => prop_assert_eq!(value.as_i64(), Some(*number)),
                Owned::Unsigned(number) => prop_assert_eq!(value.as_u64(), Some(*number)),
                Owned::Text(text) => prop_assert_eq!(&value.payload(), text),
                Owned::Boolean(value_of) => prop_assert_eq!(value.as_bool(), Some(*value_of)),
            }
        }
        // A line that was read is written to the same bytes.
        let read_tags: Vec<_> = found_tags(&line);
        let read_tags: Vec<_> = read_tags.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let names: Vec<_> = line.fields().map(|(name, _)| name.unescaped().into_owned()).collect();
        let read_fields: Vec<_> = names.iter().zip(line.fields()).map(|(name, (_, value))| (name.as_str(), FieldValue::Read(value))).collect();
        let mut again = Vec::new();
        writer.write(&mut again, &measurement, &read_tags, &read_fields, at).unwrap();
        prop_assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(out.clone()).unwrap());
    }

    #[test]
    fn any_bytes_are_lines_or_errors(
        bytes in vec(prop_oneof![Just(b' '), Just(b','), Just(b'='), Just(b'"'), Just(b'\\'), Just(b'\n'), Just(b'1'), Just(b'i'), Just(b'm'), any::<u8>()], 0..60),
    ) {
        let mut last = 0;
        for line in Batch::new(&bytes, Precision::Seconds) {
            let number = match line {
                Ok(line) => {
                    prop_assert!(line.fields().count() >= 1);
                    prop_assert!(line.text().len() <= bytes.len());
                    let _ = told(&line);
                    line.number()
                }
                Err(error) => {
                    prop_assert!(error.column >= 1);
                    error.line
                }
            };
            prop_assert!(number >= 1 && number <= bytes.len() as u64 + 1);
            last = last.max(number);
        }
    }
}

fn found_tags(line: &Line<'_>) -> Vec<(String, String)> {
    line.tags().map(|(n, v)| (n.unescaped().into_owned(), v.unescaped().into_owned())).collect()
}
