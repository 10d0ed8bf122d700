//! WebSocket: messages of a connection become messages.
//!
//! ```text
//!  GET /ingest               {"topic": "plant/7", "payload": "21.5", "id": 1} ─▶ plant/7
//!  GET /ingest?topic=plant/7  21.5                                            ─▶ plant/7
//!                            ◀─ {"id": 1} once the broker has it, or {"id": 1, "code": …, "message": …}
//! ```
//!
//! Always true: answers come in the order of the messages; while as many wait as may, nothing more is read.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    header::{self, HeaderValue},
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use tidegate_device::{array, query::parameter};
use tidegate_process::{clock, http1::RequestBody, places::Place};
use tidegate_wire::{
    mqtt::ReasonCode,
    websocket::{CloseCode, Decoder, Flow, MessageEnd, accept_of, encode_close, encode_text},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    counters::add,
    http::Http,
    message::Message,
    publisher::{Answered, Unanswered},
    refused::Refused,
    senders::Caller,
};

/// Messages of one connection that wait for the broker.
const WAITING_MAX: usize = 256;
const READ_BYTES: usize = 16 << 10;
/// How long what is left to be said may take at the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// Bytes of a message in addition to its payload: braces, names, the topic, escapes.
const ENVELOPE_BYTES: usize = 64 << 10;

/// Members of an envelope.
const MEMBERS_MAX: usize = 4;

type Socket = TokioIo<Upgraded>;

/// A message that names its topic.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    topic: String,
    /// A text is its characters; anything else is its JSON, as it is written.
    #[expect(dead_code, reason = "it has to be there, and is taken as it is written")]
    payload: IgnoredAny,
    retain: Option<bool>,
    /// Is in the answer, as it is written.
    id: Option<IgnoredAny>,
}

/// Accepts a connection; returns the response, and the topic of its messages if it names one.
///
/// # Errors
/// [`Refused`].
pub(super) fn accept(headers: &HeaderMap) -> Result<Response<Full<Bytes>>, Refused> {
    let lists = |name: header::HeaderName, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|item| item.trim().eq_ignore_ascii_case(word))
    };
    let is_upgrade = lists(header::UPGRADE, "websocket") && lists(header::CONNECTION, "upgrade");
    if !is_upgrade || !lists(header::SEC_WEBSOCKET_VERSION, "13") {
        let text = "here is a WebSocket; send Upgrade: websocket, Connection: Upgrade and Sec-WebSocket-Version: 13";
        return Err(Refused::Upgrade(text));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok());
    let accept = key.and_then(accept_of).ok_or_else(|| {
        Refused::Invalid("the request needs one Sec-WebSocket-Key of 16 bytes in base64".to_owned())
    })?;
    // Extensions are not taken: of permessage-deflate each connection would hold a window, and a message could be a bomb.
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let fields = [
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (
            header::SEC_WEBSOCKET_ACCEPT,
            accept.try_into().expect("base64 is what a header may hold"),
        ),
    ];
    answer.headers_mut().extend(fields);
    Ok(answer)
}

impl Http {
    /// Opens a WebSocket, which a task of its own then serves.
    pub(super) async fn websocket(
        self: &Arc<Self>,
        mut request: Request<RequestBody>,
        caller: Caller,
        address: SocketAddr,
    ) -> Result<Response<Full<Bytes>>, Refused> {
        let answer = accept(request.headers())?;
        let topic = parameter(request.uri().query(), "topic");
        let live = self.context.live();
        if let Some(topic) = &topic {
            live.settings
                .check_topic(topic)
                .map_err(|source| Refused::Topic { topic: topic.clone(), source })?;
            self.senders.may_publish(&caller, topic)?;
        }
        let place = request.extensions().get::<Arc<Place>>().cloned();
        let upgrade = hyper::upgrade::on(&mut request);
        let (http, stop) = (self.clone(), self.stop.clone());
        self.upgraded.spawn(async move {
            match upgrade.await {
                Ok(socket) => {
                    let bytes_max = live.settings.message_bytes_max + ENVELOPE_BYTES;
                    drop(live);
                    let (reading, writing) = tokio::io::split(TokioIo::new(socket));
                    let decoder = Decoder::of_client().with_messages(bytes_max as u64);
                    let waiting = VecDeque::new();
                    let mut open = Open {
                        http,
                        caller,
                        topic,
                        decoder,
                        waiting,
                        bytes: Vec::new(),
                        out: Vec::new(),
                    };
                    open.serve(reading, writing, stop).await;
                    drop(place);
                }
                Err(error) => tracing::debug!(%error, %address, "a WebSocket did not open"),
            }
        });
        Ok(answer)
    }
}

/// A WebSocket that is open.
struct Open {
    http: Arc<Http>,
    caller: Caller,
    topic: Option<String>,
    decoder: Decoder,
    /// The answers to come, the oldest first.
    waiting: VecDeque<(Id, Waiting)>,
    /// Of messages that have not ended.
    bytes: Vec<u8>,
    out: Vec<u8>,
}

/// The identifier of a message in its answer, as it was written.
type Id = Option<String>;

enum Waiting {
    For(Answered, u64),
    Refused(Refused),
}

impl Open {
    async fn serve(
        &mut self,
        mut reading: ReadHalf<Socket>,
        mut writing: WriteHalf<Socket>,
        stop: CancellationToken,
    ) {
        let mut buffer = vec![0; READ_BYTES];
        let silent_max = self.http.context.live().settings.request_timeout;
        let mut is_open = true;
        while is_open || !self.waiting.is_empty() {
            if !self.out.is_empty() {
                // A client that does not read its answers is not waited for.
                let written = timeout(silent_max, writing.write_all(&self.out)).await;
                if !matches!(written, Ok(Ok(()))) {
                    return;
                }
                self.out.clear();
            }
            // Each is cancel safe: an answer that was received is kept, a read that did not happen took nothing.
            tokio::select! {
                () = stop.cancelled(), if is_open => {
                    encode_close(CloseCode::AWAY, None, &mut self.out);
                    is_open = false;
                }
                (id, answer) = first(&mut self.waiting), if !self.waiting.is_empty() => self.answer(id, answer),
                read = timeout(silent_max, reading.read(&mut buffer)), if is_open && self.waiting.len() < WAITING_MAX => {
                    match read {
                        Ok(Ok(0) | Err(_)) => return,
                        Ok(Ok(count)) => is_open = self.receive(&buffer[..count]),
                        Err(_) => {
                            add(&self.http.context.counters.timed_out, 1);
                            encode_close(CloseCode::NORMAL, None, &mut self.out);
                            is_open = false;
                        }
                    }
                }
            }
        }
        // The last words, and what they answered.
        let _ = timeout(FAREWELL, writing.write_all(&self.out)).await;
        let _ = timeout(FAREWELL, writing.shutdown()).await;
    }

    /// Bytes of the other end; returns whether to continue.
    fn receive(&mut self, bytes: &[u8]) -> bool {
        let flow = self.decoder.decode(bytes, &mut self.bytes, &mut self.out);
        while let Some(end) = self.decoder.poll_message() {
            let message: Vec<u8> = self.bytes.drain(..end.bytes).collect();
            self.message(message.into(), end);
        }
        match flow {
            Ok(Flow::Open) => true,
            Ok(Flow::Closed(_)) => false,
            Err(error) => {
                tracing::debug!(%error, "a WebSocket broke the protocol");
                let counters = &self.http.context.counters;
                let is_large = error.close_code() == CloseCode::TOO_LARGE;
                add(if is_large { &counters.too_large } else { &counters.invalid }, 1);
                false
            }
        }
    }

    fn message(&mut self, bytes: Bytes, end: MessageEnd) {
        let counters = &self.http.context.counters;
        add(&counters.received, 1);
        add(&counters.received_bytes, bytes.len() as u64);
        let mut id = None;
        let waiting = match self.publish(bytes, end, &mut id) {
            Ok((answered, bytes)) => Waiting::For(answered, bytes),
            Err(refused) => Waiting::Refused(refused),
        };
        self.waiting.push_back((id, waiting));
    }

    fn publish(
        &self,
        bytes: Bytes,
        end: MessageEnd,
        id: &mut Id,
    ) -> Result<(Answered, u64), Refused> {
        let (http, now) = (&self.http, clock::now());
        let live = http.context.live();
        let settings = &live.settings;
        if end.is_text && str::from_utf8(&bytes).is_err() {
            return Err(Refused::Invalid(
                "the text is not UTF-8; send it as a binary message".to_owned(),
            ));
        }
        let mut message = Message {
            topic: Box::default(),
            payload: bytes,
            retain: settings.retain,
            content_type: None,
            passed: Bytes::new(),
            user: Vec::new(),
        };
        match &self.topic {
            Some(topic) => message.topic = topic.as_str().into(),
            None => {
                let wrong = |error| {
                    Refused::Invalid(format!(
                        "the message is not {{\"topic\": …, \"payload\": …}}: {error}"
                    ))
                };
                let envelope: Envelope =
                    serde_json::from_slice(array::without_mark(&message.payload)).map_err(wrong)?;
                let members = array::members(&message.payload, MEMBERS_MAX);
                let members = members.map_err(|error| Refused::Invalid(error.to_string()))?;
                let written = |name: &str| {
                    members.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
                };
                *id = written("id")
                    .filter(|_| envelope.id.is_some())
                    .map(|id| String::from_utf8_lossy(id).into_owned());
                message.topic = envelope.topic.into();
                message.retain = envelope.retain.unwrap_or(message.retain);
                let written = written("payload").expect("an envelope has a payload");
                message.payload = match written.first() {
                    Some(b'"') => serde_json::from_slice::<String>(written).map_err(wrong)?.into(),
                    _ => message.payload.slice_ref(written),
                };
            }
        }
        let bytes_max = settings.message_bytes_max;
        if message.payload.len() > bytes_max {
            return Err(Refused::TooLarge { what: "the message", bytes_max });
        }
        let topic = &message.topic;
        settings
            .check_topic(topic)
            .map_err(|source| Refused::Topic { topic: topic.to_string(), source })?;
        http.senders.may_publish(&self.caller, topic)?;
        http.senders.may_send(&live, &self.caller, now)?;
        let bytes = message.payload.len() as u64;
        http.senders.spend(&live, &self.caller, now, 1, bytes);
        let answered = http.publisher.try_publish(vec![message]).ok_or(Refused::Full)?;
        Ok((answered, bytes))
    }

    /// Tells what became of a message.
    fn answer(&mut self, id: Id, answer: Result<(ReasonCode, u64), Refused>) {
        let counters = &self.http.context.counters;
        let refused = answer.and_then(|(reason, bytes)| {
            Refused::of_reason(reason)?;
            add(&counters.published, 1);
            add(&counters.published_bytes, bytes);
            Ok(())
        });
        let mut said = serde_json::Map::new();
        if let Err(refused) = refused {
            add(refused.counter(counters), 1);
            said.insert("code".to_owned(), refused.code().as_str().into());
            said.insert("message".to_owned(), tidegate_message::error_chain(&refused).into());
            if let Some(after) = refused.retry_after() {
                said.insert("retry_after".to_owned(), after.as_secs_f64().into());
            }
        }
        let mut said = Value::Object(said).to_string();
        if let Some(id) = id {
            let separator = if said == "{}" { "" } else { "," };
            said.insert_str(1, &format!("\"id\":{id}{separator}"));
        }
        encode_text(&said, None, &mut self.out);
    }
}

/// The outcome of the oldest of them, which is taken out then.
///
/// # Cancel safety
/// Cancel safe: an outcome stays in its place until it is returned.
async fn first(waiting: &mut VecDeque<(Id, Waiting)>) -> (Id, Result<(ReasonCode, u64), Refused>) {
    let answer = match waiting.front_mut() {
        Some((_, Waiting::For(answered, bytes))) => {
            let bytes = *bytes;
            let reasons = answered.await.map_err(|_| Refused::from(Unanswered));
            reasons.map(|reasons| (reasons[0], bytes))
        }
        Some((_, Waiting::Refused(_))) => Ok((ReasonCode::SUCCESS, 0)),
        None => std::future::pending().await,
    };
    match waiting.pop_front() {
        Some((id, Waiting::Refused(refused))) => (id, Err(refused)),
        Some((id, Waiting::For(..))) => (id, answer),
        None => unreachable!("it was looked at above"),
    }
}
