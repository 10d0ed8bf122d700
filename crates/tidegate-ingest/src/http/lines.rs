//! Lines of InfluxDB's protocol.

use std::{net::SocketAddr, sync::atomic::Ordering};

use bytes::Bytes;
use hyper::{HeaderMap, Request, StatusCode};
use tidegate_device::{line, query::parameter};
use tidegate_identity::callers::Peer;
use tidegate_process::http1::RequestBody;
use tidegate_wire::{
    line_protocol::{Batch, Precision},
    mqtt::{
        path::{Direction, PROPERTY, STAMP_BYTES_MAX},
        put_user_property,
    },
};

use super::{Answer, Http, MESSAGES_MAX, plain};
use crate::{
    counters::add,
    message::{Message, user_properties},
    refused::Refused,
};

const NO_NODES: &str = "tidegate-bridge names no nodes; it is for nodes, others leave it out";
/// Lines that are named in an answer.
const NAMED_MAX: usize = 16;

impl Http {
    /// Takes each line that can be taken, and tells of the others.
    pub(super) async fn lines(
        &self,
        request: Request<RequestBody>,
        peer: &Peer,
        address: SocketAddr,
    ) -> Result<Answer, Refused> {
        let live = self.context.live();
        let settings = &live.settings;
        let caller = self.caller(&live, &request, peer, address).await?;
        let precision = parameter(request.uri().query(), "precision");
        let precision = precision_of(precision.as_deref())?;
        let (head, body) = request.into_parts();
        let passed = self.passed(&head.headers)?;
        let body = self.body(&live, &head.headers, body).await?;
        let limits = settings.limits();
        let mapping = (&settings.topic, &limits);
        let (mut messages, mut topic) = (Vec::new(), String::new());
        let (mut allowed, mut wrong) = (String::new(), Vec::new());
        for line in Batch::new(&body.bytes, precision) {
            if messages.len() + wrong.len() > MESSAGES_MAX {
                return Err(Refused::TooMany { max: MESSAGES_MAX });
            }
            let line = match line {
                Ok(line) => line,
                Err(error) => {
                    wrong.push((error.line, Refused::Invalid(error.to_string())));
                    continue;
                }
            };
            let first = messages.len();
            let mut denied = None;
            let mapped =
                line::messages(&line, precision, mapping, &mut topic, |topic, payload, at| {
                    // Lines of one series mostly follow one another.
                    if *allowed != *topic && denied.is_none() {
                        match self.senders.may_publish(&caller, topic) {
                            Ok(()) => topic.clone_into(&mut allowed),
                            Err(refused) => denied = Some(refused),
                        }
                    }
                    let range = body.bytes.as_ptr_range();
                    let payload = match range.contains(&payload.as_ptr()) {
                        true => body.bytes.slice_ref(payload),
                        false => payload.to_vec().into(),
                    };
                    let retain = settings.retain;
                    messages.push(Message {
                        topic: topic.into(),
                        payload,
                        retain,
                        content_type: None,
                        passed: passed.clone().unwrap_or_default(),
                        user: user_properties(at),
                    });
                });
            if let Some(refused) = mapped.err().map(Refused::Line).or(denied) {
                messages.truncate(first);
                wrong.push((line.number(), refused));
            }
        }
        if messages.len() + wrong.len() > MESSAGES_MAX {
            return Err(Refused::TooMany { max: MESSAGES_MAX });
        }
        for (_, refused) in &wrong {
            add(refused.counter(&self.context.counters), 1);
        }
        let taken = messages.len();
        match passed {
            Some(_) => self.publish(&live, &caller, messages).await?,
            None => self.looped(messages.len() as u64),
        }
        Ok(if wrong.is_empty() { plain(StatusCode::NO_CONTENT) } else { self.partly(taken, wrong) })
    }

    /// The nodes that the lines of a request passed, as user properties; none if this one is among them.
    fn passed(&self, headers: &HeaderMap) -> Result<Option<Bytes>, Refused> {
        let mut passed = Vec::new();
        for value in headers.get_all(PROPERTY) {
            let values = value.to_str().map_err(|_| Refused::Invalid(NO_NODES.to_owned()))?;
            passed.extend(values.split(',').map(str::trim).filter(|value| !value.is_empty()));
        }
        // They go with each line.
        if passed.iter().any(|value| value.len() > STAMP_BYTES_MAX) {
            return Err(Refused::Invalid(NO_NODES.to_owned()));
        }
        let stamps = || passed.iter().map(|value| (PROPERTY, *value));
        if !self.context.stamps.passes(Direction::In, stamps()) {
            return Ok(None);
        }
        let mut user = Vec::new();
        for (name, value) in stamps() {
            put_user_property(name, value, &mut user)
                .map_err(|_| Refused::Invalid(NO_NODES.to_owned()))?;
        }
        Ok(Some(user.into()))
    }

    /// Messages came round.
    fn looped(&self, count: u64) {
        let counters = &self.context.counters;
        if counters.looped.fetch_add(count, Ordering::Relaxed) == 0 && count > 0 {
            let name = &self.context.live().settings.name;
            tracing::warn!(ingest = %name, count,
                "messages that were at this node before are not published again; further ones are only counted");
        }
    }

    /// Some lines were not taken: as InfluxDB says it, and with each of them.
    fn partly(&self, taken: usize, wrong: Vec<(u64, Refused)>) -> Answer {
        let dropped = wrong.len();
        let named: Vec<String> = wrong
            .iter()
            .take(NAMED_MAX)
            .map(|(line, refused)| {
                let text = serde_json::Value::from(tidegate_message::error_chain(refused));
                format!(r#"{{"line":{line},"code":"{}","message":{text}}}"#, refused.code())
            })
            .collect();
        let more = format!(r#","dropped":{dropped},"lines":[{}]"#, named.join(","));
        let (_, first) = wrong.into_iter().next().expect("one line was wrong");
        // Only where nothing but rights stood against all of it is that what is said.
        if taken == 0 && dropped == 1 {
            return self.refuse(&first, more);
        }
        let text = tidegate_message::error_chain(&first);
        let text = format!("partial write: {text} dropped={dropped}");
        self.refuse(&Refused::Invalid(text), more)
    }
}

fn precision_of(word: Option<&str>) -> Result<Precision, Refused> {
    match word {
        // The words of InfluxDB's first version.
        Some("n") => Ok(Precision::Nanoseconds),
        Some("u" | "µ") => Ok(Precision::Microseconds),
        Some("") | None => Ok(Precision::Nanoseconds),
        Some(word) => word.parse().map_err(|_| {
            Refused::Invalid(format!("{word:?} is not a precision; there are ns, us, ms and s"))
        }),
    }
}
