//! The opening of a WebSocket: one request of HTTP/1.1 and its answer, for either end.

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1::{Digest, Sha1};
use tidegate_message::origins::{Asked, Foreign, Origins};

/// Longest request or answer, headers and all.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The suffix that RFC 6455 section 1.3 appends to the key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Subprotocols of MQTT: that of 3.1.1 and 5 [MQTT-6.0.0-3], and that of 3.1.
const SUBPROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// The server's end.
///
/// A page of another site opens nothing, unless it is one of `origins`: where clients come in without a proof, its rights would follow from
/// the place of its reader's machine alone.
#[derive(Debug)]
pub struct Handshake {
    paths: Paths,
    origins: Arc<Origins>,
    is_tls: bool,
    buffer: Vec<u8>,
}

/// Where MQTT over WebSocket is: some paths, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths(Option<Arc<[Box<str>]>>);

impl Paths {
    /// Any path.
    pub const ANY: Self = Self(None);

    /// These alone, each such as `/mqtt`; the part after a `?` in a request is not part of its path.
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        Self(Some(paths.into_iter().map(Box::from).collect()))
    }

    fn hold(&self, path: &str) -> bool {
        self.0.as_ref().is_none_or(|paths| paths.iter().any(|known| **known == *path))
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(paths) => f.write_str(&paths.join(" and ")),
            None => f.write_str("any path"),
        }
    }
}

/// The next step after some bytes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more.
    More,
    /// Send `response`; then frames follow, and the first of them may be in `rest`.
    Accept {
        /// The answer 101.
        response: Vec<u8>,
        /// Bytes after the request.
        rest: Vec<u8>,
    },
    /// Send `response`, then close the socket.
    Refuse {
        /// The answer 400, 403, 404, 405, 421, 426 or 431, with a text for people.
        response: Vec<u8>,
        /// The same text.
        reason: String,
    },
}

impl Handshake {
    /// Waits for a request of one of those paths, by a program or by one of those pages, over TLS or not.
    pub fn new(paths: Paths, origins: Arc<Origins>, is_tls: bool) -> Self {
        Self { paths, origins, is_tls, buffer: Vec::new() }
    }

    /// Bytes of the request that are held until it is whole.
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Reads some bytes of the request. Past [`Step::Accept`] and [`Step::Refuse`] it is not called again.
    pub fn receive(&mut self, input: &[u8]) -> Step {
        let Some((head, rest)) = take_head(&mut self.buffer, input) else {
            if self.buffer.len() < REQUEST_BYTES_MAX {
                return Step::More;
            }
            let reason = format!("the request is longer than {REQUEST_BYTES_MAX} bytes");
            return Step::Refuse { response: refusal(Status::TooLong, &reason), reason };
        };
        match self.answer(&head) {
            Ok(response) => Step::Accept { response, rest },
            Err((status, reason)) => Step::Refuse { response: refusal(status, &reason), reason },
        }
    }

    fn answer(&self, head: &[u8]) -> Result<Vec<u8>, (Status, String)> {
        let bad = |problem: &str| (Status::Bad, problem.to_owned());
        let (start, headers) = Headers::parse(head).ok_or(bad("this is not HTTP/1.1"))?;
        let [method, target, version] = start.split(' ').collect::<Vec<_>>()[..] else {
            return Err(bad("this is not HTTP/1.1"));
        };
        if version != "HTTP/1.1" {
            return Err(bad("a WebSocket opens with HTTP/1.1"));
        }
        let asked = Asked {
            method,
            is_http_1_1: true,
            is_tls: self.is_tls,
            authority: None,
            fields: &|name| headers.of(name).map(str::as_bytes).collect(),
        };
        self.origins.check(&asked).map_err(|foreign| {
            let status = match foreign {
                Foreign::Host => Status::Bad,
                Foreign::Page { .. } => Status::Forbidden,
                Foreign::Name { .. } => Status::Misdirected,
            };
            (status, foreign.to_string())
        })?;
        if method != "GET" {
            return Err((Status::Method, "a WebSocket opens with GET".to_owned()));
        }
        if !self.paths.hold(target.split('?').next().unwrap_or_default()) {
            return Err((Status::NotFound, format!("MQTT over WebSocket is at {}", self.paths)));
        }
        if !headers.lists("upgrade", "websocket") || !headers.lists("connection", "upgrade") {
            let problem =
                "here is MQTT over WebSocket; send Upgrade: websocket and Connection: Upgrade";
            return Err((Status::Upgrade, problem.to_owned()));
        }
        if headers.one("sec-websocket-version") != Some("13") {
            return Err((Status::Upgrade, "version 13 of WebSocket is spoken here".to_owned()));
        }
        if headers.of("transfer-encoding").next().is_some()
            || headers.of("content-length").any(|length| length != "0")
        {
            return Err(bad("a WebSocket opens with a request without a body"));
        }
        let key = headers.one("sec-websocket-key").unwrap_or_default();
        let accept = accept_of(key)
            .ok_or(bad("the request needs one Sec-WebSocket-Key of 16 bytes in base64"))?;
        let offered =
            |name: &&str| headers.items("sec-websocket-protocol").any(|item| item == *name);
        let protocol = SUBPROTOCOLS
            .into_iter()
            .find(offered)
            .ok_or(bad("offer the subprotocol mqtt: Sec-WebSocket-Protocol: mqtt"))?;
        Ok(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )
        .into_bytes())
    }
}

/// The client's end.
#[derive(Debug)]
pub struct ClientHandshake {
    expected: String,
    buffer: Vec<u8>,
}

impl ClientHandshake {
    /// A handshake, and the request to send. `host` is as in a URL, with its port if that is not the usual one;
    /// `path` begins with a slash; `key` is fresh random bytes.
    ///
    /// # Errors
    /// [`HandshakeError::Address`] if host or path have blanks or control characters.
    pub fn begin(host: &str, path: &str, key: [u8; 16]) -> Result<(Self, Vec<u8>), HandshakeError> {
        let plain =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !plain(host) || !plain(path) || !path.starts_with('/') {
            return Err(HandshakeError::Address);
        }
        let key = STANDARD.encode(key);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        Ok((Self { expected: accept(&key), buffer: Vec::new() }, request.into_bytes()))
    }

    /// Reads some bytes of the answer; returns what came after it, or none if more of it must be read.
    ///
    /// # Errors
    /// [`HandshakeError`] if the server does not speak MQTT over WebSocket here.
    pub fn receive(&mut self, input: &[u8]) -> Result<Option<Vec<u8>>, HandshakeError> {
        let Some((head, rest)) = take_head(&mut self.buffer, input) else {
            if self.buffer.len() < REQUEST_BYTES_MAX {
                return Ok(None);
            }
            return Err(HandshakeError::NotHttp);
        };
        let (start, headers) = Headers::parse(&head).ok_or(HandshakeError::NotHttp)?;
        let status = start
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse().ok())
            .ok_or(HandshakeError::NotHttp)?;
        if status != 101 {
            return Err(HandshakeError::Refused { status });
        }
        let switched = headers.lists("upgrade", "websocket")
            && headers.lists("connection", "upgrade")
            && headers.one("sec-websocket-accept") == Some(&self.expected)
            && headers.of("sec-websocket-extensions").next().is_none();
        if !switched {
            return Err(HandshakeError::NotWebSocket);
        }
        if headers.one("sec-websocket-protocol") != Some(SUBPROTOCOLS[0]) {
            return Err(HandshakeError::NotMqtt);
        }
        Ok(Some(rest))
    }
}

/// Why a client gets no WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The host or the path cannot stand in a request.
    #[error("host and path have no blanks or control characters, and the path begins with a slash")]
    Address,
    /// The answer is none of HTTP/1.1, or too long.
    #[error("the server does not answer in HTTP/1.1; is the port one for WebSocket?")]
    NotHttp,
    /// The server says no.
    #[error("the server answers {status}; check the path")]
    Refused {
        /// Its status.
        status: u16,
    },
    /// The answer does not fit the request.
    #[error("the server's answer is not that of a WebSocket")]
    NotWebSocket,
    /// The server chose no subprotocol, or another one.
    #[error("the server does not speak the subprotocol mqtt")]
    NotMqtt,
}

/// The value of `Sec-WebSocket-Accept` for that `Sec-WebSocket-Key`; none if it is not 16 bytes in base64 (RFC 6455, section 4.2.1).
pub fn accept_of(key: &str) -> Option<String> {
    STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16).then(|| accept(key))
}

/// The value of `Sec-WebSocket-Accept` for a key.
fn accept(key: &str) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

/// Adds `input` to `buffer` until the empty line; then returns the head without it, and what follows it. The
/// buffer never grows past [`REQUEST_BYTES_MAX`].
fn take_head(buffer: &mut Vec<u8>, input: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let before = buffer.len();
    let taken = input.len().min(REQUEST_BYTES_MAX.saturating_sub(before));
    buffer.extend_from_slice(&input[..taken]);
    // The end may lie across the cut.
    let from = before.saturating_sub(3);
    let at = from + buffer[from..].windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let mut rest = buffer.split_off(at + 4);
    rest.extend_from_slice(&input[taken..]);
    buffer.truncate(at);
    Some((std::mem::take(buffer), rest))
}

/// The header lines of a request or answer.
struct Headers<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Headers<'a> {
    /// The first line, and the headers.
    fn parse(head: &'a [u8]) -> Option<(&'a str, Self)> {
        let text = str::from_utf8(head).ok()?;
        // A lone line end could make two lines of one for a proxy behind us.
        if text.replace("\r\n", "").contains(['\r', '\n', '\0']) {
            return None;
        }
        let mut lines = text.split("\r\n");
        let start = lines.next()?;
        let header = |line: &'a str| {
            let (name, value) = line.split_once(':')?;
            let token = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            token.then_some((name, value.trim_matches([' ', '\t'])))
        };
        Some((start, Self(lines.map(header).collect::<Option<_>>()?)))
    }

    fn of(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }

    /// The value of a header that stands there once.
    fn one(&self, name: &str) -> Option<&'a str> {
        let mut values = self.of(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// The items of a list that may be spread over many lines.
    fn items(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.of(name).flat_map(|value| value.split(',')).map(str::trim)
    }

    fn lists(&self, name: &str, item: &str) -> bool {
        self.items(name).any(|other| other.eq_ignore_ascii_case(item))
    }
}

#[derive(Clone, Copy)]
enum Status {
    Bad,
    Forbidden,
    NotFound,
    Method,
    Misdirected,
    Upgrade,
    TooLong,
}

fn refusal(status: Status, problem: &str) -> Vec<u8> {
    let (line, more) = match status {
        Status::Bad => ("400 Bad Request", ""),
        Status::Forbidden => ("403 Forbidden", ""),
        Status::Misdirected => ("421 Misdirected Request", ""),
        Status::NotFound => ("404 Not Found", ""),
        Status::Method => ("405 Method Not Allowed", "Allow: GET\r\n"),
        Status::Upgrade => {
            ("426 Upgrade Required", "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n")
        }
        Status::TooLong => ("431 Request Header Fields Too Large", ""),
    };
    let connection = if let Status::Upgrade = status { "Upgrade, close" } else { "close" };
    format!(
        "HTTP/1.1 {line}\r\nConnection: {connection}\r\n{more}Content-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {}\r\n\r\n{problem}\n",
        problem.len() + 1
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // The key of RFC 6455 section 1.3.
    const REQUEST: &str = "GET /mqtt HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n\
        Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Origin: http://example.com\r\nSec-WebSocket-Protocol: chat, mqtt\r\nSec-WebSocket-Version: 13\r\n\r\n";

    /// At `/mqtt`, for pages of `http://example.com`, without TLS.
    fn handshake() -> Handshake {
        let origins = Origins::parse(Some("http://example.com"), "origins").expect("an origin");
        Handshake::new(Paths::of(["/mqtt"]), Arc::new(origins), false)
    }

    fn answer(request: &str) -> (String, bool) {
        match handshake().receive(request.as_bytes()) {
            Step::More => panic!("the request is whole: {request}"),
            Step::Accept { response, .. } => (String::from_utf8(response).unwrap(), true),
            Step::Refuse { response, reason } => {
                let response = String::from_utf8(response).unwrap();
                assert!(response.ends_with(&format!("\r\n\r\n{reason}\n")), "{response}");
                (response, false)
            }
        }
    }

    #[test]
    fn foreign_page_gets_no_websocket() {
        let own = "Host: 127.0.0.1:9001\r\nUpgrade";
        for (host, origin, status) in [
            ("127.0.0.1:9001", "http://127.0.0.1:9001", 101),
            // Paho says so without TLS.
            ("127.0.0.1:9001", "https://127.0.0.1:9001", 101),
            ("127.0.0.1:9001", "http://evil.example", 403),
            ("127.0.0.1:9001", "null", 403),
            ("evil.example:9001", "http://evil.example:9001", 421),
            ("example.com:9001", "http://example.com:9001", 101),
        ] {
            let request = REQUEST
                .replacen("Host: server.example.com\r\nUpgrade", own, 1)
                .replacen("Host: 127.0.0.1:9001", &format!("Host: {host}"), 1)
                .replacen("Origin: http://example.com", &format!("Origin: {origin}"), 1);
            let (response, _) = answer(&request);
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{origin}: {response}");
        }
        let (response, accepted) =
            answer(&REQUEST.replacen("Origin: http://example.com\r\n", "", 1));
        assert!(accepted, "a program asks by whatever name: {response}");
    }

    #[test]
    fn a_request_is_of_one_of_the_paths() {
        let both = Paths::of(["/mqtt", "/"]);
        for (paths, target, taken) in [
            (&both, "/mqtt", true),
            (&both, "/", true),
            (&both, "/?token=1", true),
            (&both, "/mqtt/", false),
            (&both, "/MQTT", false),
            (&both, "/other", false),
            (&Paths::ANY, "/other?x", true),
            (&Paths::of([]), "/mqtt", false),
        ] {
            let request = format!(
                "GET {target} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
            );
            let mut handshake = Handshake::new(paths.clone(), Arc::default(), false);
            let step = handshake.receive(request.as_bytes());
            assert_eq!(matches!(step, Step::Accept { .. }), taken, "{paths} {target}");
        }
        assert_eq!(both.to_string(), "/mqtt and /");
    }

    #[test]
    fn request_of_the_rfc_is_accepted() {
        let (response, accepted) = answer(REQUEST);
        assert!(accepted);
        assert_eq!(
            response,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
    }

    #[test]
    fn requests_are_answered_with_what_is_wrong() {
        for (from, to, status, text) in [
            ("/mqtt", "/mqtt?token=1", 101, ""),
            ("Upgrade: websocket", "UPGRADE:WebSocket", 101, ""),
            ("chat, mqtt", "mqttv3.1", 101, "Protocol: mqttv3.1\r\n"),
            ("chat, mqtt", "mqttv3.1\r\nSec-WebSocket-Protocol: mqtt", 101, "Protocol: mqtt\r\n"),
            ("chat, mqtt", "chat", 400, "offer the subprotocol mqtt"),
            ("Sec-WebSocket-Protocol: chat, mqtt\r\n", "", 400, "offer the subprotocol mqtt"),
            ("/mqtt", "/", 404, "MQTT over WebSocket is at /mqtt"),
            ("/mqtt", "/mqtt/", 404, "is at /mqtt"),
            ("GET", "POST", 405, "with GET"),
            ("HTTP/1.1", "HTTP/1.0", 400, "HTTP/1.1"),
            ("GET /mqtt", "GET  /mqtt", 400, "not HTTP/1.1"),
            ("Upgrade: websocket\r\n", "", 426, "send Upgrade: websocket"),
            ("keep-alive, Upgrade", "keep-alive", 426, "Connection: Upgrade"),
            ("Version: 13", "Version: 8", 426, "Sec-WebSocket-Version: 13\r\n"),
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhl", 400, "one Sec-WebSocket-Key"),
            (
                "Origin: http://example.com",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                400,
                "one Sec",
            ),
            ("Host: server.example.com\r\n", "", 400, "one Host"),
            ("Host: server.example.com\r\n", "Host: a\r\nHost: a\r\n", 400, "one Host"),
            ("Origin: http://example.com", "Content-Length: 5", 400, "without a body"),
            ("Origin: http://example.com", " folded", 400, "not HTTP/1.1"),
            ("Origin: http://example.com", "X: a\nY: b", 400, "not HTTP/1.1"),
        ] {
            assert!(REQUEST.contains(from), "{from}");
            let (response, accepted) = answer(&REQUEST.replacen(from, to, 1));
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{to}: {response}");
            assert!(response.contains(text) && accepted == (status == 101), "{to}: {response}");
        }
    }

    #[test]
    fn endless_request_is_refused() {
        let mut handshake = handshake();
        let mut read = 0;
        loop {
            match handshake.receive(&[b'a'; 100]) {
                Step::More => read += 100,
                Step::Refuse { response, .. } => {
                    break assert!(response.starts_with(b"HTTP/1.1 431 "));
                }
                Step::Accept { .. } => panic!("it has no end"),
            }
            assert!(read <= REQUEST_BYTES_MAX);
        }
    }

    #[test]
    fn client_and_server_agree() {
        let (mut client, request) =
            ClientHandshake::begin("edge.local:9001", "/mqtt", [7; 16]).unwrap();
        let Step::Accept { response, rest } =
            handshake().receive(&[&request[..], b"first frame"].concat())
        else {
            panic!("it is accepted");
        };
        assert_eq!(rest, b"first frame");
        let (head, tail) = response.split_at(40);
        assert_eq!(client.receive(head), Ok(None));
        assert_eq!(client.receive(&[tail, b"frame"].concat()), Ok(Some(b"frame".to_vec())));
    }

    #[test]
    fn client_refuses_what_is_no_answer() {
        let begin = || ClientHandshake::begin("h", "/mqtt", [7; 16]).unwrap();
        let Step::Accept { response, .. } = handshake().receive(&begin().1) else {
            panic!("it is accepted");
        };
        let response = String::from_utf8(response).unwrap();
        for (from, to, error) in [
            ("101", "404", HandshakeError::Refused { status: 404 }),
            ("HTTP/1.1", "SSH-2.0", HandshakeError::NotHttp),
            ("Upgrade: websocket", "Upgrade: h2c", HandshakeError::NotWebSocket),
            ("Accept: ", "Accept: x", HandshakeError::NotWebSocket),
            ("Protocol: mqtt", "Protocol: chat", HandshakeError::NotMqtt),
            ("Sec-WebSocket-Protocol: mqtt\r\n", "", HandshakeError::NotMqtt),
        ] {
            let answer = response.replacen(from, to, 1);
            assert_eq!(begin().0.receive(answer.as_bytes()), Err(error), "{answer}");
        }
        for (host, path) in [("a b", "/"), ("a", "/x\r\nEvil: 1"), ("a", "mqtt"), ("", "/")] {
            assert!(ClientHandshake::begin(host, path, [0; 16]).is_err(), "{host} {path}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(cuts in prop::collection::vec(0..REQUEST.len(), 0..6)) {
            let input = [REQUEST.as_bytes(), b"frames"].concat();
            let mut cuts = [cuts, vec![0, input.len()]].concat();
            cuts.sort_unstable();
            let mut handshake = handshake();
            let mut steps = cuts.windows(2).map(|pair| handshake.receive(&input[pair[0]..pair[1]]));
            let step = steps.find(|step| *step != Step::More);
            prop_assert_eq!(step.map(|step| matches!(step, Step::Accept { .. })), Some(true));
        }

        #[test]
        fn any_bytes_end_without_panic(input: Vec<u8>, text in "(GET /mqtt HTTP/1.1\r\n)?[a-z: \r\n]{0,40}\r\n\r\n") {
            let _ = handshake().receive(&input);
            let _ = handshake().receive(text.as_bytes());
            let _ = ClientHandshake::begin("h", "/", [0; 16]).unwrap().0.receive(text.as_bytes());
        }
    }
}
