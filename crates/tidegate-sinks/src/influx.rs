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
//! series that were received in the same nanosecond stay two, the second has the [next nanosecond that is free](places);
//! a time that a message brings ([`TIME_PROPERTY`](tidegate_message::TIME_PROPERTY)) is not moved. A field has one type there, so that
//! each type of value has a field of its own, and none is called as these databases call what is theirs ([`RESERVED`]). Of a batch that is
//! refused (400, 413, 422) each half is tried on its own, until the message is found that is refused alone.

mod places;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::Range,
    path::PathBuf,
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

use self::places::{Places, Series};
use super::{Batch, Destination, HTTP_ANSWER_BYTES_MAX, Record, Refusal, Trouble};

/// Names that a tag or a field cannot have there: InfluxDB refuses such a tag, and leaves such a field out without a word.
const RESERVED: [&str; 3] = ["time", "_field", "_measurement"];
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
    /// The file of the places in time that a restart has to know, where messages outlive the process.
    pub places: Option<PathBuf>,
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
    places: Places,
    stamps: Stamps,
    /// Those of the node that takes the lines, where it is one of this program.
    peer: Option<Stamps>,
}

impl Influx {
    pub(super) fn new(settings: InfluxSettings) -> Self {
        let client = HttpClient::new(settings.tls.clone(), HTTP_ANSWER_BYTES_MAX);
        let places = Places::new(settings.places.clone());
        Self { stamps: Stamps::new(&settings.node), settings, client, places, peer: None }
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
        let mut refusals = Vec::new();
        self.places.begin();
        for (passed, places) in self.parts(batch) {
            refusals.extend(self.deliver_part(batch, &passed, &places).await?);
        }
        self.places.commit();
        refusals.sort_by_key(|refusal: &Refusal| refusal.place);
        Ok(refusals)
    }
}

impl Influx {
    /// Delivers messages that passed the same nodes.
    async fn deliver_part(
        &mut self,
        batch: &Batch,
        passed: &[String],
        places: &[usize],
    ) -> Result<Vec<Refusal>, Trouble> {
        let encoding = &self.settings.encoding;
        let mut lines = Lines::new(encoding, batch.records(), places, &mut self.places);
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
                        let End { place, at, .. } = lines.ends[start];
                        lines.refusals.push(Refusal { at, ..Refusal::new(place, reason) });
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
    /// Of the messages that have lines.
    ends: Vec<End>,
    /// Messages that have none.
    refusals: Vec<Refusal>,
}

/// Where the lines of a message end.
#[derive(Clone, Copy)]
struct End {
    /// The message's place in the batch.
    place: usize,
    bytes: usize,
    /// The time of its first line that has one of this node's.
    at: Option<Instant>,
}

/// The time of a message, from line to line.
struct Clock<'a> {
    record: &'a Record,
    places: &'a mut Places,
    /// Its first time that was asked for.
    first: Option<Instant>,
    /// How often it was asked.
    asked: u32,
}

impl Clock<'_> {
    /// The time of a line of that series.
    fn time(&mut self, series: Series) -> Instant {
        let Record { measured, topic, payload, id, time, is_repeated, .. } = self.record;
        if let Some(measured) = measured {
            return *measured;
        }
        let mut hasher = DefaultHasher::new();
        (topic, payload, id, self.asked).hash(&mut hasher);
        self.asked += 1;
        let nanos = self.places.place(series, time.as_nanos(), hasher.finish(), *is_repeated);
        let at = Instant::from_nanos(nanos);
        self.first.get_or_insert(at);
        at
    }
}

/// By what a database knows a series, whatever the order of its tags.
fn series<'a>(measurement: &str, tags: impl Iterator<Item = (&'a str, &'a str)>) -> Series {
    let mut tags: Vec<_> = tags.collect();
    tags.sort_unstable();
    let mut hasher = DefaultHasher::new();
    (measurement, tags).hash(&mut hasher);
    hasher.finish()
}

impl Lines {
    /// Those of the messages at `chosen`.
    fn new(encoding: &Encoding, records: &[Record], chosen: &[usize], places: &mut Places) -> Self {
        let mut out = Vec::new();
        let (mut ends, mut refusals) = (Vec::new(), Vec::new());
        let mut writer = LineWriter::new(Precision::Nanoseconds);
        for &place in chosen {
            let record = &records[place];
            let start = out.len();
            let mut clock = Clock { record, places: &mut *places, first: None, asked: 0 };
            let written = match encoding {
                Encoding::Lines => copy_lines(&mut writer, &mut clock, &mut out),
                Encoding::Values { measurement } => {
                    write_values(&mut writer, measurement, &mut clock, &mut out)
                }
            };
            let at = clock.first;
            match written {
                Ok(()) => ends.push(End { place, bytes: out.len(), at }),
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
        let start = part.start.checked_sub(1).map_or(0, |before| self.ends[before].bytes);
        self.bytes.slice(start..self.ends[part.end - 1].bytes)
    }
}

fn copy_lines(
    writer: &mut LineWriter,
    clock: &mut Clock<'_>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let start = out.len();
    let payload = &clock.record.payload;
    for line in line_protocol::Batch::new(payload, Precision::Nanoseconds) {
        let line = line.map_err(|error| error.to_string())?;
        let measurement = line.measurement().unescaped();
        let tags: Vec<_> =
            line.tags().map(|(name, value)| (name.unescaped(), value.unescaped())).collect();
        let time = line.timestamp().unwrap_or_else(|| {
            clock.time(series(&measurement, tags.iter().map(|(name, value)| (&**name, &**value))))
        });
        let is_reserved = |name: &str| RESERVED.contains(&name);
        if !tags.iter().any(|(name, _)| is_reserved(name))
            && !line.fields().any(|(name, _)| is_reserved(&name.unescaped()))
        {
            out.extend_from_slice(line.text().as_bytes());
            if line.timestamp().is_none() {
                out.extend_from_slice(format!(" {}", time.as_nanos()).as_bytes());
            }
            out.push(b'\n');
            continue;
        }
        let own = |name: &str, suffix| match is_reserved(name) {
            true => format!("{name}{suffix}"),
            false => name.to_owned(),
        };
        let tags: Vec<_> = tags.iter().map(|(name, value)| (own(name, TAG), value)).collect();
        let fields = line.fields().map(|(name, value)| {
            let suffix = match value {
                line_protocol::Value::Text(_) => TEXT,
                line_protocol::Value::Boolean(_) => BOOL,
                _ => NUMBER,
            };
            (own(&name.unescaped(), suffix), FieldValue::Read(value))
        });
        let fields: Vec<_> = fields.collect();
        let tags: Vec<_> = tags.iter().map(|(name, value)| (&**name, &***value)).collect();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, *value)).collect();
        let written = writer.write(out, &measurement, &tags, &fields, Some(time));
        written.map_err(|error| error.to_string())?;
    }
    if out.len() == start { Err("the payload has no line".to_owned()) } else { Ok(()) }
}

fn write_values(
    writer: &mut LineWriter,
    measurement: &str,
    clock: &mut Clock<'_>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let record = clock.record;
    let text = std::str::from_utf8(&record.payload)
        .map_err(|_| "the payload is neither a number nor JSON nor text".to_owned())?;
    let text = text.trim_start_matches('\u{feff}');
    let json = serde_json::from_str(text).unwrap_or_else(|_| Json::String(text.to_owned()));
    let mut fields = Fields::default();
    flatten("", &json, &mut fields);
    let fields: Vec<(&str, FieldValue<'_>)> =
        fields.fields.iter().map(|(name, value)| (&**name, *value)).collect();
    let tags = [("topic", &*record.topic)];
    let time = clock.time(series(measurement, tags.into_iter()));
    writer.write(out, measurement, &tags, &fields, Some(time)).map_err(|error| error.to_string())
}

/// The suffix of names of fields of one type, so that no field of another type has such a name.
const TEXT: &str = "_text";
const BOOL: &str = "_bool";
const NUMBER: &str = "_number";
/// That of a tag whose name is [`RESERVED`].
const TAG: &str = "_tag";

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
            _ if name.ends_with(TEXT) || name.ends_with(BOOL) || RESERVED.contains(&name) => NUMBER,
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
