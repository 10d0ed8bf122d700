//! Pages of other sites at the endpoints of a node that speak HTTP: which may ask, and what the log says of the others.
//!
//! The rules are those of [`Origins`]; the endpoints of MQTT over WebSocket ask them without this module.

use std::net::SocketAddr;

use axum::http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    request::Parts,
};
use tidegate_message::{
    LogLimiter,
    origins::{Asked, Foreign, Origins},
};

use crate::clock;

/// Methods and fields that a page may use which the configuration names.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");
const FIELDS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, content-encoding, accept");
/// Seconds for which a browser need not ask again what it may.
const ALLOWED_FOR: HeaderValue = HeaderValue::from_static("600");

/// The pages that may ask a listener.
#[derive(Debug)]
pub struct Pages {
    origins: Origins,
    is_tls: bool,
    /// The listener, for the log.
    front: Box<str>,
    refused: LogLimiter,
}

impl Pages {
    /// Of the listener that the log calls `front`.
    pub fn new(front: &str, origins: Origins, is_tls: bool) -> Self {
        Self { origins, is_tls, front: front.into(), refused: LogLimiter::of_strangers() }
    }

    /// Lets a request pass that a program made, or a page that may; the log names others.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn check<B>(&self, request: &Request<B>, peer: SocketAddr) -> Result<(), Foreign> {
        let head = (request.method(), request.uri(), request.version(), request.headers());
        self.check_head(head, peer)
    }

    /// The same of a request without its body.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn check_parts(&self, parts: &Parts, peer: SocketAddr) -> Result<(), Foreign> {
        self.check_head((&parts.method, &parts.uri, parts.version, &parts.headers), peer)
    }

    fn check_head(
        &self,
        (method, uri, version, headers): (&Method, &Uri, Version, &HeaderMap),
        peer: SocketAddr,
    ) -> Result<(), Foreign> {
        let fields =
            |name: &'static str| headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        let asked = Asked {
            method: method.as_str(),
            is_http_1_1: version == Version::HTTP_11,
            is_tls: self.is_tls,
            authority: uri.authority().map(|authority| authority.as_str().as_bytes()),
            fields: &fields,
        };
        self.origins.check(&asked).inspect_err(|error| {
            if let Some(requests) = self.refused.add(clock::now(), 1) {
                tracing::warn!(address = %peer, front = &*self.front, requests, %error, "a request was refused");
            }
        })
    }

    /// The page of another site that made a request and may read its answer.
    pub fn reader(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        self.origins.reader(origin.to_str().ok()?)?;
        Some(origin.clone())
    }

    /// The answer to a browser that asks what a page of another site may do (Fetch, section 3.2.2); none if that is not the question.
    pub fn allowed<B, A: Default>(&self, request: &Request<B>) -> Option<Response<A>> {
        let is_question = request.method() == Method::OPTIONS
            && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        let reader = self.reader(request.headers()).filter(|_| is_question)?;
        let mut answer = Response::new(A::default());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        answer.headers_mut().extend([
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, FIELDS),
            (header::ACCESS_CONTROL_MAX_AGE, ALLOWED_FOR),
        ]);
        readable(answer.headers_mut(), reader);
        Some(answer)
    }
}

/// Lets a page of that origin read an answer.
pub fn readable(answer: &mut HeaderMap, reader: HeaderValue) {
    answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, reader);
    answer.append(header::VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_that_is_named_may_ask_and_read() {
        let origins = Origins::parse(Some("https://dash.example"), "ingest.h.origins");
        let pages = Pages::new("ingest h", origins.expect("origins"), false);
        let peer = ([127, 0, 0, 1], 4000).into();
        for (method, origin, passes, is_answered) in [
            (Method::OPTIONS, "https://dash.example", true, true),
            (Method::POST, "https://dash.example", true, false),
            (Method::OPTIONS, "https://evil.example", false, false),
            (Method::OPTIONS, "http://127.0.0.1:7070", true, false),
        ] {
            let request = Request::builder()
                .method(&method)
                .uri("/ingest/a")
                .header("host", "127.0.0.1:7070")
                .header("origin", origin)
                .header("access-control-request-method", "POST")
                .body(())
                .expect("a request");
            assert_eq!(pages.check(&request, peer).is_ok(), passes, "{method} {origin}");
            let answer = pages.allowed::<_, ()>(&request);
            assert_eq!(answer.is_some(), is_answered, "{method} {origin}");
            if let Some(answer) = answer {
                assert_eq!(answer.headers()["access-control-allow-origin"], origin);
            }
        }
    }
}
