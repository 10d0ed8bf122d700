//! Traces as files: what is recognised, what is played when, and what is wrong with others.

use std::{error::Error as _, fs, sync::atomic::AtomicBool};

use super::{player::cues, *};

/// Nanoseconds of the trace, topic and payload of each message.
type Played = Vec<(i128, String, String)>;

fn played(text: &[u8], options: &Options) -> Result<(Recognised, Played, Summary), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    fs::write(&path, text).expect("a file");
    let trace = Trace::File(path.clone());
    let failed = |error: ReplayError| {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}").replace(&path.display().to_string(), "trace")
    };
    options.check().map_err(failed)?;
    let (recognised, cues, summary) =
        cues(&trace, options, &AtomicBool::new(false), 1000).map_err(failed)?;
    let one = |(at, topic, payload): (i128, String, Vec<u8>)| {
        (at, topic, String::from_utf8_lossy(&payload).into_owned())
    };
    Ok((recognised, cues.into_iter().map(one).collect(), summary))
}

fn with(topic: &str) -> Options {
    Options { topic: topic.parse().expect("a template"), ..Options::default() }
}

fn message(seconds: f64, topic: &str, payload: &str) -> (i128, String, String) {
    ((seconds * 1e9) as i128, topic.to_owned(), payload.to_owned())
}

#[test]
fn csv_is_played_byte_for_byte_at_its_own_times() {
    let text = "ts,source,\"the name\"\r\n\
                1422748800000,a,\"x, \"\"y\"\"\"\r\n\
                1422748800500, b ,Zürich \u{1f321}\r\n\r\n\
                1422748802000,a/b,";
    let (recognised, messages, summary) =
        played(text.as_bytes(), &with("city/{source}/{the name}")).unwrap();
    assert_eq!(
        messages,
        [
            message(0.0, "city/a/x, \"y\"", "1422748800000,a,\"x, \"\"y\"\"\""),
            message(0.5, "city/ b /Zürich \u{1f321}", "1422748800500, b ,Zürich \u{1f321}"),
            message(2.0, "city/a%2Fb/", "1422748802000,a/b,"),
        ]
    );
    let time = Some(("column \"ts\"".to_owned(), TimeUnit::Ms));
    assert_eq!(recognised, Recognised { format: Format::Csv, has_header: true, time });
    assert_eq!((summary.bad_rows, summary.reordered_rows), (0, 0));
}

#[test]
fn formats_and_times_are_recognised() {
    let riotbench = r#"1417890600000,{"e":[{"u":"string","n":"subjectId","sv":"subject8"}],"bt":"1417890600000"}
1417890600020,{"e":[{"u":"string","n":"subjectId","sv":"subject9"}],"bt":"1417890600020"}"#;
    let form = r#"{"e":[{"n":"source","sv":"s1"}],"bt":1422748800000}
{"e":[{"n":"source","sv":"s2"}],"bt":1422748800250}"#;
    let packs = r#"[{"bn":"dev:1:","bt":1320067464,"n":"t","v":1}]
[{"bn":"dev:2:","bt":1320067464,"t":3,"n":"t","v":2}]"#;
    for (text, topic, format, time, unit, expected) in [
        (
            riotbench,
            "fit/{subjectId}",
            Format::Riotbench,
            "before the comma",
            TimeUnit::Ms,
            [(0.0, "fit/subject8"), (0.02, "fit/subject9")],
        ),
        (
            form,
            "c/{1}",
            Format::Senml,
            "of the records",
            TimeUnit::Ms,
            [(0.0, "c/s1"), (0.25, "c/s2")],
        ),
        (
            packs,
            "p/{t}",
            Format::Senml,
            "of the records",
            TimeUnit::S,
            [(0.0, "p/1"), (3.0, "p/2")],
        ),
        (
            "7,2013-01-13 23:36:00\n8,2013-01-13 23:37:00",
            "g/{1}",
            Format::Csv,
            "column 2",
            TimeUnit::Iso,
            [(0.0, "g/7"), (60.0, "g/8")],
        ),
        (
            "00000001,1422748800\n00000002,1422748801",
            "g/{1}",
            Format::Csv,
            "column 2",
            TimeUnit::S,
            [(0.0, "g/00000001"), (1.0, "g/00000002")],
        ),
        (
            "x,Time\na,0\nb,0.5\n",
            "g/{x}",
            Format::Csv,
            "column \"Time\"",
            TimeUnit::S,
            [(0.0, "g/a"), (0.5, "g/b")],
        ),
    ] {
        let (recognised, messages, _) = played(text.as_bytes(), &with(topic)).unwrap();
        assert_eq!(
            (recognised.format, recognised.time),
            (format, Some((time.to_owned(), unit))),
            "{text}"
        );
        let found: Vec<_> = messages.iter().map(|one| (one.0, &*one.1)).collect();
        assert_eq!(found, expected.map(|(at, topic)| ((at * 1e9) as i128, topic)), "{text}");
        let data: Vec<_> = text.lines().filter(|line| *line != "x,Time").collect();
        let payloads: Vec<_> = messages.iter().map(|one| &*one.2).collect();
        assert_eq!(payloads, data);
    }
    let options = Options { payload: Payload::Message, ..Options::default() };
    let (_, messages, _) = played(riotbench.as_bytes(), &options).unwrap();
    assert!(messages[1].2.starts_with("{\"e\""), "{messages:?}");
}

#[test]
fn what_is_told_overrules_what_it_looks_like() {
    let text = "1422748800,7\n1422748801,9\n";
    let column = |text: &str| Some(text.parse().expect("a column"));
    let options = Options { time: column("2"), time_unit: Some(TimeUnit::Us), ..with("t/{1}") };
    let (recognised, messages, _) = played(text.as_bytes(), &options).unwrap();
    assert_eq!(recognised.time, Some(("column 2".to_owned(), TimeUnit::Us)));
    assert_eq!(messages[1].0, 2000);
    let options = Options { header: Some(true), time: column("7"), ..with("t/{1422748800}") };
    assert!(played(text.as_bytes(), &options).is_err(), "digits are numbers of columns");
    let options = Options { header: Some(false), pace: Pace::Rate(10.0), ..with("t/{1}") };
    let (_, messages, _) = played(b"name\nada\n", &options).unwrap();
    assert_eq!(messages, [message(0.0, "t/name", "name"), message(0.1, "t/ada", "ada")]);
    let options = Options { delimiter: b';', ..with("t/{b}") };
    let (_, messages, _) = played(b"time;b\n1;x,y\n2;z", &options).unwrap();
    assert_eq!(messages[0], message(0.0, "t/x,y", "1;x,y"));
    // SenML in a column of times of its own.
    let taxi = r#"5,{"e":[{"n":"pickup","sv":"2013-01-13 23:36:00"}]}
6,{"e":[{"n":"pickup","sv":"2013-01-13 23:36:30"}]}"#;
    let options = Options { time: column("pickup"), ..Options::default() };
    let (recognised, messages, _) = played(taxi.as_bytes(), &options).unwrap();
    assert_eq!(recognised.time, Some(("column \"pickup\"".to_owned(), TimeUnit::Iso)));
    assert_eq!(messages[1].0, 30_000_000_000);
}

#[test]
fn times_that_go_back_are_played_in_the_order_of_the_file() {
    let (_, messages, summary) = played(b"t,time\na,10\nb,12\nc,11\nd,13\n", &with("{t}")).unwrap();
    let found: Vec<_> = messages.iter().map(|one| (one.0 / 1_000_000_000, &*one.1)).collect();
    assert_eq!(found, [(0, "a"), (2, "b"), (2, "c"), (3, "d")]);
    assert_eq!(summary.reordered_rows, 1);
}

#[test]
fn a_trace_that_repeats_goes_on_in_time() {
    let options = Options { repeat: true, ..with("{1}") };
    let text = b"a,1422748800\nb,1422748810\nc,1422748805\nx,never\n";
    let options = Options { on_bad: OnBad::Skip, ..options };
    let (_, messages, summary) = played(text, &options).unwrap();
    assert_eq!(messages.len(), 1000);
    let found: Vec<_> =
        messages.iter().take(7).map(|one| (one.0 / 1_000_000_000, &*one.1)).collect();
    let expected = [(0, "a"), (10, "b"), (10, "c"), (15, "a"), (25, "b"), (25, "c"), (30, "a")];
    assert_eq!(found, expected);
    assert_eq!((summary.bad_rows, summary.reordered_rows), (1, 1), "of the trace, counted once");
    // A line of names is no row of any lap.
    let (_, messages, _) =
        played(b"n,time\na,1\n", &Options { repeat: true, ..with("{n}") }).unwrap();
    assert!(messages.iter().all(|one| one.2 == "a,1") && messages[999].0 == 999_000_000_000);
}

#[test]
fn devices_have_topics_and_phases_of_their_own() {
    let text: String = (0..100).map(|second| format!("{second},r{second}\n")).collect();
    let options = Options {
        devices: 8,
        time: Some(Column::Number(1)),
        header: Some(false),
        ..with("fleet/{device}/{2}")
    };
    let (_, messages, summary) = played(text.as_bytes(), &options).unwrap();
    assert_eq!(messages.len(), 800);
    assert!(messages.is_sorted_by_key(|one| one.0));
    for device in 1..=8 {
        let start = format!("fleet/{device}/");
        let mine: Vec<_> = messages.iter().filter(|one| one.1.starts_with(&start)).collect();
        assert_eq!(mine.len(), 100);
        let first: i128 = mine[0].2.split(',').next().unwrap().parse().unwrap();
        for (place, one) in mine.iter().enumerate() {
            let second = (first + place as i128) % 100;
            assert_eq!(one.2, format!("{second},r{second}"));
            assert_eq!(one.1, format!("{start}r{second}"));
            assert_eq!(one.0 - mine[0].0, place as i128 * 1_000_000_000);
        }
    }
    let moments: std::collections::BTreeSet<_> = messages.iter().map(|one| one.0).collect();
    assert_eq!(moments.len(), 800, "no two send at one moment");
    assert_eq!(summary.reordered_rows, 0, "the trace itself is in order");
}

#[test]
fn bad_rows_are_named_or_left_out() {
    let time = "time,a\n1,x\n";
    for (text, options, expected) in [
        (
            format!("{time}1e309,x\n"),
            with("{a}"),
            "line 3 of trace cannot be played; mend it, or leave such rows out with --on-bad skip: column \"time\": \"1e309\" lies, in seconds, beyond",
        ),
        (
            format!("{time}NaN,x\n"),
            with("{a}"),
            "column \"time\": \"NaN\" is not a time in seconds",
        ),
        (format!("{time},x\n"), with("{a}"), "column \"time\": \"\" is not a time in seconds"),
        (
            format!("{time}2\n"),
            with("{a}"),
            "line 3 of trace cannot be played; mend it, or leave such rows out with --on-bad skip: column \"a\" is missing: the row has 1",
        ),
        (
            format!("{time}\n\n2,\"x\"y\n"),
            with("{a}"),
            "line 5 of trace cannot be played; mend it, or leave such rows out with --on-bad skip: column 2: text stands behind",
        ),
        (format!("{time}2,\"x\n3,y\n"), with("{a}"), "a quote is not closed"),
        (format!("{time}2,\n"), with("{a}"), "the topic is empty"),
        (
            format!("{time}{}\n", "x".repeat(ROW_BYTES_MAX + 1)),
            with("{a}"),
            "the row has more than 1048576 bytes",
        ),
        (
            "{\"bt\":1}\n{\"bt\":}\n".to_owned(),
            Options::default(),
            "the row is not a SenML pack in JSON",
        ),
        (
            "{\"bt\":1}\n{\"n\":\"x\",\"v\":1}\n".to_owned(),
            Options::default(),
            "no record has a time",
        ),
        (
            "{\"bt\":1}\n{\"bt\":2}\n".to_owned(),
            with("x/{source}"),
            "column \"source\" is missing: the row has 0",
        ),
        (
            "1,{}\n2;{}\n".to_owned(),
            Options::default(),
            "the row is not a time, a comma, and an object",
        ),
    ] {
        let error = played(text.as_bytes(), &options).expect_err(expected);
        assert!(error.contains(expected), "{text:.40}: {error}");
        let skips = Options { on_bad: OnBad::Skip, ..options };
        let (_, messages, summary) = played(text.as_bytes(), &skips).unwrap();
        if text.starts_with("{\"bt\":1}\n{\"bt\":2}") {
            assert_eq!((messages.len(), summary.bad_rows), (0, 2));
        } else {
            assert_eq!(summary.bad_rows, 1, "{text:.40}");
            assert!(summary.first_bad.unwrap().starts_with("line "));
            assert!(!messages.is_empty());
        }
    }
    let (_, messages, summary) = played(b"time,a\n1,\xff\xfe\n", &with("x")).unwrap();
    assert_eq!((messages.len(), summary.bad_rows), (1, 0), "a payload may be anything");
    let error = played(b"time,a\n1,\xff\xfe\n", &with("{a}")).unwrap_err();
    assert!(error.contains("column \"a\" is not UTF-8"), "{error}");
}

#[test]
fn what_cannot_be_played_is_told_with_the_way_out() {
    let devices = |devices, topic| Options { devices, ..with(topic) };
    let pace = |pace| Options { pace, ..Options::default() };
    let time = |name: &str| Options { time: Some(name.parse().unwrap()), ..Options::default() };
    for (text, options, expected) in [
        ("", Options::default(), "trace has no row to play"),
        ("\n\r\n", Options::default(), "trace has no row to play"),
        ("time,a\n", Options::default(), "trace has no row to play"),
        (
            "a,b\nc,d\n",
            Options::default(),
            "no column of trace looks like a time; name it with --time, or give --rate",
        ),
        ("1,2\n", Options::default(), "no column of trace looks like a time"),
        (
            "time,a\nsoon,1\n",
            Options::default(),
            "line 2 of trace: \"soon\" in column \"time\" is not a time; name another column",
        ),
        ("a,b\nc,d\n", time("x"), "trace has no column \"x\"; there are \"a\", \"b\""),
        ("time,b\n1,d\n", with("{A}"), "trace has no column \"A\"; there are \"time\", \"b\""),
        (
            "1422748800,b\n",
            with("{b}"),
            "no line of names, so there is no column \"b\"; name columns by their numbers",
        ),
        ("1,2\n", time("3"), "column 3 is missing: the row has 2"),
        ("time\n1\n", devices(0, "{device}"), "0 devices: there are from 1 to 1000000"),
        ("time\n1\n", devices(2, "x"), "put {device} into --topic"),
        ("time\n1\n", pace(Pace::Own(0.0)), "a rate and a speed are numbers over 0"),
        ("time\n1\n", pace(Pace::Rate(f64::NAN)), "a rate and a speed are numbers over 0"),
        ("time\n1\n", pace(Pace::Rate(f64::INFINITY)), "a rate and a speed are numbers over 0"),
    ] {
        let error = played(text.as_bytes(), &options).expect_err(expected);
        assert!(error.contains(expected), "{text}: {error}");
    }
    let trace = Trace::File("/none/such".into());
    let error = cues(&trace, &Options::default(), &AtomicBool::new(false), 1).unwrap_err();
    assert_eq!(error.to_string(), "/none/such cannot be read");
}

#[test]
fn without_a_pace_no_column_needs_to_be_a_time() {
    let options = Options { pace: Pace::Unpaced, ..with("{1}") };
    let (recognised, messages, _) = played(b"a,x\nb,y\n", &options).unwrap();
    assert_eq!((recognised.time, recognised.has_header), (None, true));
    assert_eq!(messages.len(), 1);
    let many = Options { devices: 50, ..options.clone() };
    let many = Options { header: Some(false), topic: "{device}/{1}".parse().unwrap(), ..many };
    assert_eq!(played(b"a,x\nb,y\n", &many).unwrap().1.len(), 100);
    let rows = "x".repeat(200) + "\n";
    let trace = rows.repeat(5000); // longer than what is read at a time
    let options = Options { pace: Pace::Rate(1e6), repeat: true, ..Options::default() };
    assert_eq!(played(trace.as_bytes(), &options).unwrap().1.len(), 1000);
}

#[test]
fn a_summary_says_what_was_unusual_alone() {
    let mut summary = Summary {
        messages: 30,
        payload_bytes: 900,
        devices: 1,
        elapsed: Duration::from_secs(2),
        latest: Some(Duration::from_micros(1500)),
        ..Summary::default()
    };
    let plain = "30 messages, 900 bytes, in 2.000 s, 15.0 a second\nthe latest left 1.500 ms after its time";
    assert_eq!(summary.to_string(), plain);
    summary.bad_rows = 1;
    summary.first_bad = Some("line 3, a quote is not closed".to_owned());
    summary.reordered_rows = 2;
    summary.devices = 4;
    summary.is_stopped = true;
    let all = "30 messages, 900 bytes, in 2.000 s, 15.0 a second, of 4 devices, stopped before the end\n\
               the latest left 1.500 ms after its time\n\
               2 rows with a time before that of an earlier row, sent in the order of the trace\n\
               1 row left out, the first: line 3, a quote is not closed";
    assert_eq!(summary.to_string(), all);
}
