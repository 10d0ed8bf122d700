//! A database that takes InfluxDB's line protocol over HTTP: InfluxDB, VictoriaMetrics, QuestDB and others.
//!
//! ```text
//!  number, JSON object, text ─▶ mqtt,topic=a/b value=21.5 1769842800000000123 ─▶ POST, many lines at a time
//!                               (a text is value_text="ON", a truth value value_bool=true)
//!  lines of the protocol ─────▶ as they are, with a time where they have none
//! ```
//!
//! # What is promised
//!
//! A batch is taken when the database has said so (2xx): at least once, and as durable as the database is then. A point that comes
//! twice is one point there, for databases of this kind know points by measurement, tags and time. So that two messages of one
//! topic that were received in the same nanosecond stay two, times are moved by what the message says, less than two microseconds;
//! a time that a message brings ([`TIME_PROPERTY`](tidegate_message::TIME_PROPERTY)) is not moved. A field has one type there, so that
//! each type of value has a field of its own. Of a batch that is refused (400, 413, 422) each half is tried on its own, until the message is found that is refused alone.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::Range,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    header::{self, HeaderValue},
};
use rustls::ClientConfig;
use serde_json::Value as Json;
use tidegate_message::{Confidential, Instant, Secret};
use tidegate_process::http::HttpClient;
use tidegate_wire::{
    line_protocol::{self, FieldValue, LineWriter, Precision},
    mqtt::{
        PublishProperties,
        path::{Direction, NODE_HEADER, PROPERTY, Stamps},
    },
};

use super::{Batch, Destination, HTTP_ANSWER_BYTES_MAX, Record, Refusal, Trouble};

/// Places of one nanosecond among which messages of one topic are spread, of as many nanoseconds.
const SPREAD: i64 = 1024;
/// Longest time that a database is left alone because it said so.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// Bytes of an answer that are quoted.
const QUOTED: usize = 300;

/// Which database, and how messages become lines.
#[derive(Clone)]
pub struct InfluxSettings {
    /// Where lines are posted, with everything that the database wants in its address.
    pub url: Uri,
    /// The value of `Authorization`.
    pub authorization: Option<Secret>,
    /// How messages become lines.
    pub encoding: Encoding,
    /// The trusted authorities, where TLS is used.
    pub tls: Arc<ClientConfig>,
    /// The name of this node among those that a message passed.
    pub node: String,
}

/// InfluxDB 1 takes a password in the query of its address.
impl fmt::Debug for InfluxSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InfluxSettings")
            .field("url", &Confidential::from(&*self.url.to_string()))
            .field("encoding", &self.encoding)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Two are the same by what was configured, whatever files said that were read for it.
impl PartialEq for InfluxSettings {
    fn eq(&self, other: &Self) -> bool {
        (&self.url, &self.authorization, &self.encoding, &self.node)
            == (&other.url, &other.authorization, &other.encoding, &other.node)
    }
}

/// How messages become lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Payloads are lines already.
    Lines,
    /// Payloads are numbers, JSON objects or text, and become fields of one measurement, with the topic as a tag.
    Values {
        /// The measurement.
        measurement: String,
    },
}

/// The destination.
#[derive(Debug)]
pub(super) struct Influx {
    settings: InfluxSettings,
    client: HttpClient,
    stamps: Stamps,
    /// Those of the node that takes the lines, where it is one of this program.
    peer: Option<Stamps>,
}

impl Influx {
    pub(super) fn new(settings: InfluxSettings) -> Self {
        let client = HttpClient::new(settings.tls.clone(), HTTP_ANSWER_BYTES_MAX);
        Self { stamps: Stamps::new(&settings.node), settings, client, peer: None }
    }

    /// The messages of a batch by the nodes that they passed, which a request says of all its lines; those that were at the database before
    /// are left out. A database that is no node gets no such header, and nothing is parted.
    fn parts(&self, batch: &Batch) -> Vec<(Vec<String>, Vec<usize>)> {
        let all = 0..batch.records().len();
        let Some(of_peer) = &self.peer else { return vec![(Vec::new(), all.collect())] };
        let mut parts: BTreeMap<Vec<String>, Vec<usize>> = BTreeMap::new();
        for place in all {
            let forwarded = &batch.records()[place].forwarded;
            let properties = PublishProperties::decode(forwarded).unwrap_or_default();
            let stamps = || properties.user_properties();
            if !self.stamps.passes(Direction::Out, stamps())
                || !of_peer.passes(Direction::In, stamps())
            {
                batch.pass_over(1);
                continue;
            }
            let passed = stamps().filter(|(name, _)| *name == PROPERTY);
            let passed = passed.map(|(_, node)| node.to_owned()).collect();
            parts.entry(passed).or_default().push(place);
        }
        parts.into_iter().collect()
    }

    async fn post(&mut self, lines: Bytes, passed: &[String]) -> Result<Response<Bytes>, Trouble> {
        let mut request = Request::post(self.settings.url.clone())
            .header(header::CONTENT_TYPE, "text/plain; charset=utf-8")
            .header(header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.settings.authorization {
            request = request.header(header::AUTHORIZATION, &**authorization);
        }
        if self.peer.is_some() {
            let left = self.stamps.value(Direction::Out);
            for node in passed.iter().map(String::as_str).chain([left]) {
                // Names of nodes are such texts; made-up ones are left out.
                if let Ok(value) = HeaderValue::from_str(node) {
                    request = request.header(PROPERTY, value);
                }
            }
        }
        let request = request
            .body(Full::new(lines))
            .map_err(|error| Trouble::of("no request can be made of url and password", error))?;
        let answered = self.client.send(request).await;
        let answer = answered.map_err(|error| Trouble::of("the database did not answer", error))?;
        let node = answer.headers().get(NODE_HEADER).and_then(|node| node.to_str().ok());
        self.peer = node.and_then(Stamps::of);
        Ok(answer)
    }
}

#[async_trait]
impl Destination for Influx {
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble> {
        let (mut refusals, mut taken) = (Vec::new(), HashSet::new());
        for (passed, places) in self.parts(batch) {
            refusals.extend(self.deliver_part(batch, &passed, &places, &mut taken).await?);
        }
        refusals.sort_by_key(|refusal: &Refusal| refusal.place);
        Ok(refusals)
    }
}

impl Influx {
    /// Delivers messages that passed the same nodes.
    async fn deliver_part<'a>(
        &mut self,
        batch: &'a Batch,
        passed: &[String],
        places: &[usize],
        taken: &mut HashSet<(&'a str, i64)>,
    ) -> Result<Vec<Refusal>, Trouble> {
        let mut lines = Lines::new(&self.settings.encoding, batch.records(), places, taken);
        // The last is the next one, so that lines keep their order.
        let mut parts: Vec<_> = std::iter::once(0..lines.ends.len()).collect();
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let answer = self.post(lines.bytes(&part), passed).await?;
            batch.step();
            match answer.status() {
                status if status.is_success() => {}
                StatusCode::BAD_REQUEST
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNPROCESSABLE_ENTITY => {
                    let Range { start, end } = part;
                    if part.len() == 1 {
                        let reason = said(&answer);
                        lines.refusals.push(Refusal::new(lines.ends[start].0, reason));
                    } else {
                        let middle = start + (end - start) / 2;
                        parts.extend([middle..end, start..middle]);
                    }
                }
                _ => {
                    let after = retry_after(answer.headers(), SystemTime::now());
                    return Err(Trouble { after, ..Trouble::new(said(&answer)) });
                }
            }
        }
        Ok(lines.refusals)
    }
}

/// How long the database wants to be left alone, if it says so: in seconds, or until a date (RFC 9110, 10.2.3), which is of its own
/// clock where it tells that as well.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let after = text(header::RETRY_AFTER)?;
    if !after.is_empty() && after.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = after.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    }
    let at = httpdate::parse_http_date(after).ok()?;
    let now =
        text(header::DATE).and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
    Some(at.duration_since(now).unwrap_or_default().min(RETRY_AFTER_MAX))
}

/// The database's answer, in short.
fn said(answer: &Response<Bytes>) -> String {
    let text = String::from_utf8_lossy(answer.body());
    let text = text.trim();
    format!(
        "the database answers {}: {}",
        answer.status(),
        &text[..text.floor_char_boundary(QUOTED)]
    )
}

/// The lines of a batch.
struct Lines {
    bytes: Bytes,
    /// Of each message that has lines, its place in the batch and where they end.
    ends: Vec<(usize, usize)>,
    /// Messages that have none.
    refusals: Vec<Refusal>,
}

impl Lines {
    /// Those of the messages at `places`. `taken` are the times that messages of the batch have.
    fn new<'a>(
        encoding: &Encoding,
        records: &'a [Record],
        places: &[usize],
        taken: &mut HashSet<(&'a str, i64)>,
    ) -> Self {
        let mut out = Vec::new();
        let (mut ends, mut refusals) = (Vec::new(), Vec::new());
        let mut writer = LineWriter::new(Precision::Nanoseconds);
        for &place in places {
            let record = &records[place];
            let start = out.len();
            let time = record.measured.unwrap_or_else(|| free_time(record, taken));
            let written = match encoding {
                Encoding::Lines => copy_lines(record, time, &mut out),
                Encoding::Values { measurement } => {
                    write_values(&mut writer, measurement, record, time, &mut out)
                }
            };
            match written {
                Ok(()) => ends.push((place, out.len())),
                Err(reason) => {
                    out.truncate(start);
                    refusals.push(Refusal::new(place, reason));
                }
            }
        }
        Self { bytes: out.into(), ends, refusals }
    }

    /// The lines of those messages.
    fn bytes(&self, part: &Range<usize>) -> Bytes {
        let start = part.start.checked_sub(1).map_or(0, |before| self.ends[before].1);
        self.bytes.slice(start..self.ends[part.end - 1].1)
    }
}

/// A time that no other message of this topic has: near that of its receipt, at a place that what it says decides, so that it has
/// the same when it comes again.
fn free_time<'a>(record: &'a Record, taken: &mut HashSet<(&'a str, i64)>) -> Instant {
    let mut hasher = DefaultHasher::new();
    record.payload.hash(&mut hasher);
    record.id.hash(&mut hasher);
    let offset = (hasher.finish() % SPREAD.unsigned_abs()) as i64;
    let mut nanos = record.time.as_nanos().saturating_add(offset);
    while !taken.insert((&*record.topic, nanos)) {
        nanos = nanos.saturating_add(1);
    }
    Instant::from_nanos(nanos)
}

fn copy_lines(record: &Record, time: Instant, out: &mut Vec<u8>) -> Result<(), String> {
    let start = out.len();
    for line in line_protocol::Batch::new(&record.payload, Precision::Nanoseconds) {
        let line = line.map_err(|error| error.to_string())?;
        out.extend_from_slice(line.text().as_bytes());
        if line.timestamp().is_none() {
            out.extend_from_slice(format!(" {}", time.as_nanos()).as_bytes());
        }
        out.push(b'\n');
    }
    if out.len() == start { Err("the payload has no line".to_owned()) } else { Ok(()) }
}

fn write_values(
    writer: &mut LineWriter,
    measurement: &str,
    record: &Record,
    time: Instant,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let text = std::str::from_utf8(&record.payload)
        .map_err(|_| "the payload is neither a number nor JSON nor text".to_owned())?;
    let text = text.trim_start_matches('\u{feff}');
    let json = serde_json::from_str(text).unwrap_or_else(|_| Json::String(text.to_owned()));
    let mut fields = Fields::default();
    flatten("", &json, &mut fields);
    let fields: Vec<(&str, FieldValue<'_>)> =
        fields.fields.iter().map(|(name, value)| (&**name, *value)).collect();
    let tags = [("topic", &*record.topic)];
    writer.write(out, measurement, &tags, &fields, Some(time)).map_err(|error| error.to_string())
}

/// The suffix of names of fields of one type, so that no field of another type has such a name.
const TEXT: &str = "_text";
const BOOL: &str = "_bool";
const NUMBER: &str = "_number";

/// Fields with names of their own.
#[derive(Default)]
struct Fields<'a> {
    fields: Vec<(String, FieldValue<'a>)>,
    /// With how many more there are whose names begin so.
    names: HashMap<String, u32>,
}

impl<'a> Fields<'a> {
    fn push(&mut self, name: &str, value: FieldValue<'a>) {
        let suffix = match value {
            FieldValue::Text(_) => TEXT,
            FieldValue::Boolean(_) => BOOL,
            // `{"t":"a","t_text":5}`: a field that looks like that of a text, in any message, is never a number.
            _ if name.ends_with(TEXT) || name.ends_with(BOOL) => NUMBER,
            _ => "",
        };
        let wanted = format!("{name}{suffix}");
        let (mut own, mut more) =
            (wanted.clone(), self.names.get(&wanted).copied().unwrap_or_default());
        // `{"a":{"b":1},"a.b":2}`
        while self.names.contains_key(&own) {
            more += 1;
            own = format!("{name}_{}{suffix}", more + 1);
        }
        self.names.insert(own.clone(), 0);
        self.names.insert(wanted, more);
        self.fields.push((own, value));
    }
}

/// The values of a document, each by its path. A database takes one type for a field, and refuses all others from the first on: all
/// numbers are floats, since 21 may be followed by 21.5, and texts and truth values have fields of their own.
fn flatten<'a>(path: &str, json: &'a Json, fields: &mut Fields<'a>) {
    let of = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let value = match json {
        Json::Null => return,
        Json::Object(members) => {
            members.iter().for_each(|(name, value)| flatten(&of(name), value, fields));
            return;
        }
        Json::Array(values) => {
            let values = values.iter().enumerate();
            values.for_each(|(place, value)| flatten(&of(&place.to_string()), value, fields));
            return;
        }
        Json::Bool(value) => FieldValue::Boolean(*value),
        // Every number of JSON that was read has a nearest float.
        Json::Number(number) => FieldValue::Float(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => FieldValue::Text(text),
    };
    fields.push(if path.is_empty() { "value" } else { path }, value);
}

#[cfg(test)]
mod tests;
