//! Entry points of fuzz targets: the handling of a sender's bytes, without sockets and without a broker.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::LazyLock,
};

use tidegate_message::Instant;
use tidegate_wire::line_protocol::{Line, Precision};

use super::{Format, IngestSettings, Kind, Template, http, line, udp};

/// Those of a listener for lines.
static SETTINGS: LazyLock<IngestSettings> = LazyLock::new(|| IngestSettings {
    format: Format::Line,
    ..IngestSettings::new("fuzz", Kind::Udp, (Ipv4Addr::LOCALHOST, 0).into())
});

/// Makes messages of lines, as a listener does.
#[derive(Debug)]
pub struct Mapper {
    settings: IngestSettings,
    topic: String,
}

impl Mapper {
    /// By a template; a payload and a topic may have so many bytes, and a topic so many levels.
    pub fn new(topic: Template, message_bytes_max: usize, topic_max: (usize, usize)) -> Self {
        let settings = IngestSettings { topic, message_bytes_max, topic_max, ..SETTINGS.clone() };
        Self { settings, topic: String::new() }
    }

    /// Gives `take` topic and payload of each message of a line; false if the line becomes none.
    pub fn line(&mut self, line: &Line<'_>, mut take: impl FnMut(&str, &[u8])) -> bool {
        let take = |topic: &str, payload: &[u8], _: Option<Instant>| take(topic, payload);
        line::messages(line, Precision::Nanoseconds, &self.settings, &mut self.topic, take).is_ok()
    }
}

/// The topic of what `source` sent.
pub fn topic_of_source(template: &Template, source: SocketAddr) -> String {
    let mut topic = String::new();
    template.of_source(Some(source), &mut topic);
    topic
}

/// The topic of a datagram, and its payload; none if it names no topic.
pub fn named(datagram: &[u8]) -> Option<(&[u8], &[u8])> {
    udp::named(datagram)
}

/// The elements of the JSON array that `text` is, as they are written; none if it is none, or has more than `max`.
pub fn elements(text: &[u8], max: usize) -> Option<Vec<&[u8]>> {
    http::array::elements(text, max).ok()
}

/// Name and JSON of each record of a SenML pack, resolved; `now` in seconds since 1970. None if it is no pack.
pub fn resolve(pack: &[u8], now: f64) -> Option<Vec<(String, String)>> {
    let now = Instant::from_nanos((now * 1e9) as i64);
    let records = http::senml::resolve(pack, now).ok()?;
    Some(records.into_iter().map(|record| (record.name, record.json)).collect())
}

/// The text of a path with percent signs; none if that is not UTF-8.
pub fn decode(path: &str) -> Option<String> {
    http::decode(path)
}

/// The value of a parameter of a query, decoded.
pub fn parameter(query: &str, name: &str) -> Option<String> {
    http::parameter(Some(query), name)
}
