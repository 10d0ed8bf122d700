//! Ingest: messages from datagrams, and from bodies and paths of requests.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value as Json};
use tidegate_device::{
    MessageLimits, Place, Template,
    array::elements,
    line, named,
    query::{decode, parameter},
    senml::resolve,
};
use tidegate_message::{Instant, check_topic_characters, check_topic_name};
use tidegate_wire::line_protocol::{Batch, Line, Precision, Value};

/// Templates of topics of lines. Their results are computed a second time in [`expected`].
const TEMPLATES: [&str; 5] = [
    "{measurement}/{tags}",
    "x/{tag:site}/{field}",
    "{field}{measurement}",
    "{tags}/{measurement}",
    "lines",
];
/// Small enough to be exceeded.
const MESSAGE_BYTES_MAX: usize = 100;
const LEVELS_MAX: usize = 5;
const TOPIC_BYTES_MAX: usize = 60;
const LIMITS: MessageLimits = MessageLimits {
    payload_bytes_max: MESSAGE_BYTES_MAX,
    topic_levels_max: LEVELS_MAX,
    topic_bytes_max: TOPIC_BYTES_MAX,
    topic_control_characters: false,
};

/// A datagram, after a byte for what it is: one that names its topic, who sent it, or lines, behind a template or by one of those
/// above. An accepted message has a topic and a size that are allowed; a value of a line stays within its level, from which it can be
/// read; a line becomes all its messages or none.
pub fn ingest_datagram(data: &[u8]) {
    let Some((&what, datagram)) = data.split_first() else { return };
    match what % 8 {
        0 => cut(datagram),
        1 => source(datagram),
        2 => {
            let Some(end) = datagram.iter().position(|byte| *byte == b'\n') else { return };
            let Ok(text) = std::str::from_utf8(&datagram[..end]) else { return };
            let Ok(template) = Template::parse(text, Place::Line) else { return };
            lines(&template, None, &datagram[end + 1..]);
        }
        place => {
            let number = usize::from(place) - 3;
            let template = Template::parse(TEMPLATES[number], Place::Line).expect("a template");
            lines(&template, Some(number), datagram);
        }
    }
}

fn cut(datagram: &[u8]) {
    let Some((topic, payload)) = named(datagram) else {
        return assert!(!datagram.contains(&b'\n'));
    };
    assert!(!topic.contains(&b'\n'));
    let end: &[u8] = if topic.len() + payload.len() + 1 < datagram.len() { b"\r\n" } else { b"\n" };
    assert_eq!([topic, end, payload].concat(), datagram);
}

/// A port of two bytes, then an address.
fn source(datagram: &[u8]) {
    let [high, low, address @ ..] = datagram else { return };
    let ip = match (address.first_chunk::<16>(), address.first_chunk::<4>()) {
        (Some(bytes), _) => IpAddr::from(*bytes),
        (None, Some(bytes)) => IpAddr::from(*bytes),
        (None, None) => return,
    };
    let source = SocketAddr::from((ip, u16::from_be_bytes([*high, *low])));
    let template = Template::parse("udp/{ip}/{port}", Place::Datagram).expect("a template");
    let mut topic = String::new();
    template.of_source(Some(source), &mut topic);
    check_topic_name(&topic, 3).expect("it is a topic");
    let levels: Vec<&str> = topic.split('/').collect();
    let ["udp", ip, port] = levels[..] else { panic!("{topic}") };
    assert_eq!(ip.parse::<IpAddr>(), Ok(source.ip().to_canonical()));
    assert_eq!(port.parse::<u16>(), Ok(source.port()));
}

/// Topics and payloads.
type Messages = Vec<(String, Vec<u8>)>;

/// Lines by a template, which is the one of that number if it is one of [`TEMPLATES`].
fn lines(template: &Template, number: Option<usize>, batch: &[u8]) {
    let mut topic = String::new();
    for line in Batch::new(batch, Precision::Nanoseconds) {
        let Ok(line) = line else { continue };
        let mut came = Messages::new();
        let mapping = (template, &LIMITS);
        let mapped = line::messages(
            &line,
            Precision::Nanoseconds,
            mapping,
            &mut topic,
            |topic, payload, _| {
                came.push((topic.to_owned(), payload.to_vec()));
            },
        );
        let is_taken = mapped.is_ok();
        assert_eq!(is_taken, !came.is_empty());
        let is_allowed = |(topic, payload): &(String, Vec<u8>)| {
            payload.len() <= MESSAGE_BYTES_MAX
                && topic.len() <= TOPIC_BYTES_MAX
                && check_topic_name(topic, LEVELS_MAX).is_ok()
                && check_topic_characters(topic).is_ok()
        };
        assert!(came.iter().all(is_allowed), "{came:?}");
        if let Some(number) = number {
            let expected = expected(number, &line).filter(|all| all.iter().all(is_allowed));
            assert_eq!(came, expected.unwrap_or_default(), "{line:?}");
        }
    }
}

/// The messages of a line by one of [`TEMPLATES`]; none if it lacks a part that the template names.
fn expected(number: usize, line: &Line<'_>) -> Option<Messages> {
    let measurement = level(&line.measurement().unescaped());
    let tags: Vec<String> = line.tags().map(|(_, value)| level(&value.unescaped())).collect();
    let whole = |topic: String| vec![(topic, line.text().as_bytes().to_vec())];
    let each = |topic: &dyn Fn(&str) -> String| {
        line.fields()
            .map(|(name, value)| (topic(&level(&name.unescaped())), told(value)))
            .collect::<Messages>()
    };
    Some(match number {
        0 => {
            let mut levels = vec![measurement];
            levels.extend(tags);
            whole(levels.join("/"))
        }
        1 => {
            let (_, site) = line.tags().find(|(name, _)| name.unescaped() == "site")?;
            let site = level(&site.unescaped());
            each(&|field| format!("x/{site}/{field}"))
        }
        2 => each(&|field| format!("{field}{measurement}")),
        3 => whole(format!("{}/{measurement}", tags.join("/"))),
        _ => whole("lines".to_owned()),
    })
}

/// A value as a level, or a part of one.
fn level(value: &str) -> String {
    let mut out = value.replace('%', "%25");
    for (character, escape) in [('/', "%2F"), ('+', "%2B"), ('#', "%23"), ('\0', "%00")] {
        out = out.replace(character, escape);
    }
    // Nothing is lost.
    assert_eq!(decode(&out).as_deref(), Some(value));
    out
}

fn told(value: Value<'_>) -> Vec<u8> {
    match value {
        Value::Float(text) | Value::Integer(text) | Value::Unsigned(text) => text.into(),
        Value::Boolean("t" | "T" | "true" | "True" | "TRUE") => b"true".to_vec(),
        Value::Boolean(_) => b"false".to_vec(),
        Value::Text(text) => text.unescaped().as_bytes().to_vec(),
    }
}

/// A body, or a path, after a byte for what is asked of it: the elements of an array, of which there are so many at most; the records
/// of a SenML pack, resolved; or what its percent signs stand for.
pub fn ingest_body(data: &[u8]) {
    let Some((&what, body)) = data.split_first() else { return };
    match what % 4 {
        0 | 1 => each(body, usize::from(what >> 2)),
        2 => pack(body),
        _ => path(body),
    }
}

/// A byte order mark before JSON is no part of it, and one only.
fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)
}

/// Elements are all that there are, as they are written, and what they are where the body is read as a whole.
fn each(body: &[u8], max: usize) {
    let all = elements(body, usize::MAX).ok();
    let is_few = all.as_ref().is_some_and(|all| all.len() <= max);
    assert_eq!(elements(body, max).ok(), all.clone().filter(|_| is_few));
    let body = without_mark(body);
    let values = serde_json::from_slice::<Vec<Json>>(body).ok();
    let Some(all) = all else {
        assert_eq!(values, None);
        return;
    };
    let mut rest = body.trim_ascii().strip_prefix(b"[").expect("an array begins");
    for (at, element) in all.iter().enumerate() {
        if at > 0 {
            rest = rest.trim_ascii_start().strip_prefix(b",").expect("another one follows");
        }
        assert!(!element.is_empty());
        rest = rest.trim_ascii_start().strip_prefix(*element).expect("it is the next");
    }
    assert_eq!(rest.trim_ascii(), b"]");
    // A value nested too deeply, or not a number, is passed on as it is.
    if let Some(values) = values {
        let read = all.iter().map(|element| serde_json::from_slice(element));
        assert_eq!(read.collect::<Result<Vec<Json>, _>>().expect("each is a value"), values);
    }
}

/// A record of a pack has a name that can be a part of a topic and a time, stands by itself, and resolves to itself at any time.
fn pack(body: &[u8]) {
    let at = |seconds: i64| Instant::from_millis(seconds * 1_000);
    let Ok(records) = resolve(body, at(2_000_000_000)) else { return };
    // A number in a member that is not known is passed on, also where no float is so large; `Json` has no place for it.
    let Ok(whole) = serde_json::from_slice::<Vec<Json>>(without_mark(body)) else { return };
    assert!(records.len() <= whole.len());
    for record in records {
        let (name, json) = (&record.name, &record.json);
        check_topic_name(&format!("t/{name}"), 2048).expect("it is a topic");
        let alone = serde_json::from_str::<Vec<Map<String, Json>>>(json).expect("it is a pack");
        let [members] = &alone[..] else { panic!("{json}") };
        assert_eq!(members["n"], Json::from(name.as_str()));
        // But for a version that is not the usual one (RFC 8428, section 4.6).
        for label in ["bn", "bt", "bu", "bv", "bs"] {
            assert!(!members.contains_key(label), "{json}");
        }
        // An earlier time is relative to now (RFC 8428, section 4.5.3).
        if members["t"].as_f64().expect("it has a time") >= 268_435_456.0 {
            let again = resolve(json.as_bytes(), at(3_000_000_000)).expect("it is a pack");
            assert_eq!(again, [record]);
        }
    }
}

/// Any text can be written in a path and in a query.
fn path(body: &[u8]) {
    let Ok(text) = std::str::from_utf8(body) else { return };
    assert!(decode(text).is_none_or(|decoded| decoded.len() <= text.len()));
    assert!(parameter(Some(text), "topic").is_none_or(|value| value.len() <= text.len()));
    let written: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    assert_eq!(decode(&written).as_deref(), Some(text));
    let query = format!("each&topic={written}&topic=other");
    assert_eq!(parameter(Some(&query), "topic").as_deref(), Some(text));
}
