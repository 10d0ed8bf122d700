//! Payloads under the name of their topic.
//!
//! `POST /ingest/plant/7/temperature` publishes the body to `plant/7/temperature`. With `?each`, a JSON array is a message for each of
//! its elements, byte for byte; with `?resolve`, a SenML pack in JSON or CBOR is a message for each of its records, resolved, in JSON.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use hyper::{Request, StatusCode, header};
use tidegate_device::{
    array::{self, ArrayError},
    query::{decode, parameter},
    senml, senml_cbor,
};
use tidegate_identity::callers::Peer;
use tidegate_process::{clock, http1::RequestBody};

use super::{Answer, Http, MESSAGES_MAX, plain};
use crate::{message::Message, refused::Refused};

/// Longest record of a SenML pack as it is written.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// Longest media type with its parameters.
const CONTENT_TYPE_BYTES_MAX: usize = 1024;
/// The media type of a resolved record.
const SENML_JSON: &str = "application/senml+json";

impl Http {
    pub(super) async fn post(
        &self,
        request: Request<RequestBody>,
        peer: &Peer,
        address: SocketAddr,
    ) -> Result<Answer, Refused> {
        let live = self.context.live();
        let settings = &live.settings;
        let caller = self.caller(&live, &request, peer, address).await?;
        let path = request.uri().path().strip_prefix("/ingest/").unwrap_or_default();
        let topic = decode(path).ok_or_else(|| {
            Refused::Invalid("the path is not UTF-8: write % and two digits of UTF-8".to_owned())
        })?;
        let check = |topic: &str| {
            settings
                .check_topic(topic)
                .map_err(|source| Refused::Topic { topic: topic.to_owned(), source })?;
            self.senders.may_publish(&caller, topic)
        };
        check(&topic)?;
        let query = request.uri().query();
        let asks = |name: &str| parameter(query, name).is_some_and(|value| value != "false");
        let (each, resolve) = (asks("each"), asks("resolve"));
        let retain = if asks("retain") { true } else { settings.retain };
        let (head, body) = request.into_parts();
        let body = self.body(&live, &head.headers, body).await?;
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let content_type: Option<Arc<str>> =
            content_type.and_then(|value| value.to_str().ok()).map(Into::into);
        // It goes with each message.
        if content_type.as_ref().is_some_and(|text| text.len() > CONTENT_TYPE_BYTES_MAX) {
            return Err(Refused::Invalid(format!(
                "the Content-Type has more than {CONTENT_TYPE_BYTES_MAX} bytes, which is not a media type"
            )));
        }
        let is_cbor = resolve && senml_cbor::is_cbor(&body.bytes);
        let content_type = if is_cbor { Some(SENML_JSON.into()) } else { content_type };
        let message = |topic: &str, payload| Message {
            topic: topic.into(),
            payload,
            retain,
            content_type: content_type.clone(),
            passed: Bytes::new(),
            user: Vec::new(),
        };
        let mut messages = Vec::new();
        if resolve {
            let pack: Bytes = match is_cbor {
                true => {
                    let json = senml_cbor::to_json(&body.bytes);
                    json.map_err(|error| Refused::Invalid(error.to_string()))?.into()
                }
                false => body.bytes.clone(),
            };
            // Looked at before it becomes objects, which take many times the room of their text.
            match array::elements(&pack, MESSAGES_MAX) {
                Err(ArrayError::TooMany { max }) => return Err(Refused::TooMany { max }),
                Ok(records) if records.iter().any(|record| record.len() > RECORD_BYTES_MAX) => {
                    let bytes_max = RECORD_BYTES_MAX;
                    return Err(Refused::TooLarge { what: "a record", bytes_max });
                }
                // Other problems are reported in the terms of SenML.
                Ok(_) | Err(_) => {}
            }
            let now = clock::to_wall(clock::now());
            let records = senml::resolve(&pack, now);
            for record in records.map_err(|error| Refused::Invalid(error.to_string()))? {
                let topic = format!("{topic}/{}", record.name);
                check(&topic)?;
                messages.push(message(&topic, record.json.into()));
            }
        } else if each {
            let elements = array::elements(&body.bytes, MESSAGES_MAX);
            let elements = elements.map_err(|error| match error {
                ArrayError::TooMany { max } => Refused::TooMany { max },
                error => Refused::Invalid(error.to_string()),
            });
            for element in elements? {
                messages.push(message(&topic, body.bytes.slice_ref(element)));
            }
        } else {
            messages.push(message(&topic, body.bytes.clone()));
        }
        let bytes_max = settings.message_bytes_max;
        if messages.iter().any(|message| message.payload.len() > bytes_max) {
            return Err(Refused::TooLarge { what: "a message", bytes_max });
        }
        self.publish(&live, &caller, messages).await?;
        Ok(plain(StatusCode::NO_CONTENT))
    }
}
