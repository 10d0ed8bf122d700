//! Requests of HTTP beside gRPC: over HTTP/1.1 and HTTP/2, by callers that are known and by others.

use axum::{
    Extension,
    extract::ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    response::IntoResponse as _,
    routing::{any, get, post},
};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
        BufReader,
    },
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{body::Body, codegen::Service as _, codegen::http};

use super::*;
use crate::Failure;

/// The paths that the tests ask for: the caller's name, its body's length, and a WebSocket that sends back what it gets.
pub(super) fn paths() -> Router {
    let name = |Extension(identity): Extension<Arc<Identity>>| async move { identity.to_string() };
    let echo = |body: axum::body::Body| async move {
        match http_body_util::BodyExt::collect(body).await {
            Ok(body) => body.to_bytes().len().to_string().into_response(),
            Err(error) => Failure::of_body(&error).into_response(),
        }
    };
    let talk = |upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>| async move {
        match upgrade {
            Ok(upgrade) => upgrade.on_upgrade(|mut socket| async move {
                while let Some(Ok(message)) = socket.recv().await {
                    if socket.send(message).await.is_err() {
                        break;
                    }
                }
            }),
            Err(rejection) => rejection.into_response(),
        }
    };
    let cameras = |Extension(frames): Extension<Arc<dyn Frames>>| async move {
        let cameras = frames.cameras().await.map_err(Failure::new)?;
        Ok::<_, Failure>(cameras.len().to_string())
    };
    Router::new()
        .route("/name", get(name))
        .route("/echo", post(echo))
        .route("/talk", any(talk))
        .route("/cameras", get(cameras))
}

pub(super) fn public_paths() -> Router {
    let hello = |body: axum::body::Bytes| async move { format!("hello {}", body.len()) };
    Router::new().route("/", any(hello))
}

/// A connection that speaks HTTP/1.1.
struct Http1<S = TlsStream<TcpStream>>(BufReader<S>);

/// An answer: status, head in lower case, body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Http1 {
    /// To `site`, with the certificate of an application if that is asked for.
    async fn connect(site: &Site, with_certificate: bool) -> Self {
        let config = match with_certificate {
            true => pki::load(site.folder.path(), "application")
                .unwrap()
                .client_tls(b"http/1.1")
                .unwrap(),
            false => {
                let mut roots = rustls::RootCertStore::empty();
                let authority = site.folder.path().join("ca.pem");
                roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
                let client = tidegate_process::tls::client(&[&rustls::version::TLS13]).unwrap();
                // As a program of old that names no protocol.
                client.with_root_certificates(roots).with_no_client_auth()
            }
        };
        let socket = TcpStream::connect(site.address).await.unwrap();
        let name = ServerName::try_from(NODE_SERVER_NAME).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap();
        Self(BufReader::new(stream))
    }
}

impl Http1<TcpStream> {
    /// To the listener without TLS.
    async fn plain(site: &Site) -> Self {
        Self(BufReader::new(TcpStream::connect(site.plain).await.unwrap()))
    }

    /// Whether the server ends it.
    async fn is_ended(&mut self) -> bool {
        matches!(self.0.read(&mut [0]).await, Ok(0) | Err(_))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http1<S> {
    async fn send(&mut self, head: &str, body: &str) {
        let lines: String = head.lines().map(|line| format!("{}\r\n", line.trim())).collect();
        let request = format!("{lines}\r\n{body}");
        self.0.write_all(request.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// The next answer.
    async fn answer(&mut self) -> Answer {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            let count = self.0.read_line(&mut line).await.unwrap();
            assert!(count > 0, "the connection ended within {head:?}");
            if line == "\r\n" {
                break;
            }
            head.push_str(&line.to_ascii_lowercase());
        }
        let status = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
        self.0.read_exact(&mut body).await.unwrap();
        Answer { status, head, body: String::from_utf8(body).unwrap() }
    }

    async fn ask(&mut self, head: &str, body: &str) -> Answer {
        self.send(head, body).await;
        self.answer().await
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// Where bob comes in by a password.
async fn open_site() -> (Site, Access) {
    Site::with(sources(&Issuer::new())).await
}

fn get_with(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\nHost: node\n{headers}").trim_end().to_owned()
}

#[tokio::test]
async fn a_peer_that_speaks_http_without_tls_is_pointed_to_https() {
    let (site, _access) = open_site().await;
    // Neither a body that was not read nor a connection that stays open keeps the answer away.
    for body in [0, 40 << 10] {
        let mut peer = TcpStream::connect(site.address).await.unwrap();
        let head = format!("POST /v1/login HTTP/1.1\r\nContent-Length: {body}\r\n\r\n");
        peer.write_all(&[head.as_bytes(), &vec![b'x'; body]].concat()).await.unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        assert!(answer.contains("write https:// in place of http://"), "{answer}");
    }
}

#[tokio::test]
async fn requests_of_http_are_for_callers_that_are_known() {
    let (site, _access) = open_site().await;
    let token = format!("Authorization: Bearer {}", Issuer::new().token("eve", 60));
    for (certificate, headers, expected) in [
        (false, String::new(), Err("no credentials were sent")),
        (false, basic("bob", "ebb"), Ok("user bob")),
        (false, basic("eve", "ebb"), Err("wrong")),
        (false, token, Ok("user eve")),
        (false, "Authorization: Bearer a.b.c".to_owned(), Err("not a JWT")),
        (false, "Cookie: __Host-tidegate=abc".to_owned(), Err("sign in again")),
        (true, String::new(), Ok("application application")),
        (true, "Cookie: __Host-tidegate=abc".to_owned(), Ok("application application")),
        (true, basic("bob", "wrong"), Err("wrong")),
    ] {
        let mut connection = Http1::connect(&site, certificate).await;
        let answer = connection.ask(&get_with("/name", &headers), "").await;
        match expected {
            Ok(name) => assert_eq!((answer.status, &*answer.body), (200, name), "{headers}"),
            Err(text) => {
                assert_eq!(answer.status, 401, "{headers}: {answer:?}");
                let json: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
                assert_eq!(json["error"]["code"], "auth.identity.refused");
                let message = json["error"]["message"].as_str().unwrap();
                assert!(message.contains(text), "{headers}: {message}");
                assert!(answer.head.contains("www-authenticate: basic"), "{}", answer.head);
            }
        }
        // The connection is kept, whatever the answer was; strangers may read what is public.
        let answer = connection.ask(&get_with("/", ""), "").await;
        assert_eq!((answer.status, &*answer.body), (200, "hello 0"));
        assert!(answer.head.contains("content-security-policy: default-src 'none'"));
    }
    // A script's request does not make the browser ask for a password in a window of its own.
    let mut connection = Http1::connect(&site, false).await;
    let answer = connection.ask(&get_with("/name", "Sec-Fetch-Mode: cors"), "").await;
    assert_eq!(answer.status, 401);
    assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
    assert!(!answer.head.contains("basic"), "{}", answer.head);
}

#[tokio::test]
async fn the_node_is_asked_and_unknown_paths_and_methods_are_named() {
    let site = Site::start().await;
    let mut connection = Http1::connect(&site, true).await;
    let cameras = connection.ask(&get_with("/cameras", ""), "").await;
    assert_eq!((cameras.status, &*cameras.body), (200, "1"));
    let me = connection.ask(&get_with("/v1/me", ""), "").await;
    let me: serde_json::Value = serde_json::from_str(&me.body).unwrap();
    assert_eq!(
        (&me["name"], &me["kind"], &me["node"]),
        (&"application".into(), &"certificate".into(), &"edge".into())
    );
    let described = connection.ask(&get_with("/v1/openapi.json", ""), "").await;
    assert_eq!((described.status, &*described.body), (200, crate::openapi::OPENAPI));
    let unknown = connection.ask(&get_with("/no%20such?x=1", ""), "").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("request.path.unknown") && unknown.body.contains("/no%20such"));
    // Clients of the Open Inference Protocol read a text, whoever refuses.
    let inference = async |connection: &mut Http1, headers: &str, status: u16, part: &str| {
        let answer = connection.ask(&get_with("/v2/repository/index", headers), "").await;
        assert_eq!(answer.status, status, "{answer:?}");
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert!(body["error"].as_str().is_some_and(|text| text.contains(part)), "{body}");
    };
    inference(&mut connection, "", 404, "/v2/repository/index").await;
    let foreign = "Origin: https://evil.example\nSec-Fetch-Site: cross-site";
    inference(&mut connection, foreign, 403, "evil.example").await;
    let (anyone, _access) = open_site().await;
    inference(&mut Http1::connect(&anyone, false).await, "", 401, "credentials").await;
    for (method, path) in [("PUT", "/name"), ("GET", "/v1/login"), ("GET", "/echo")] {
        let request = format!("{method} {path} HTTP/1.1\nHost: node\nContent-Length: 0");
        let refused = connection.ask(&request, "").await;
        assert_eq!(refused.status, 405, "{method} {path}: {refused:?}");
        assert!(refused.head.contains("allow: ") && refused.body.contains("request.invalid"));
    }
}

#[tokio::test]
async fn a_browser_signs_in_by_a_cookie_and_a_user_that_is_removed_is_out_at_once() {
    let (site, access) = open_site().await;
    let mut connection = Http1::connect(&site, false).await;
    let login = |headers: &str| {
        format!("POST /v1/login HTTP/1.1\nHost: node\nContent-Length: 0\n{headers}")
    };
    for (headers, status) in [
        (String::from("X: y"), 401),
        (basic("bob", "flood"), 401),
        (format!("{}\nOrigin: https://evil.example", basic("bob", "ebb")), 403),
    ] {
        let refused = connection.ask(&login(&headers), "").await;
        assert_eq!(refused.status, status, "{headers}: {refused:?}");
        assert!(!refused.head.contains("set-cookie"), "{refused:?}");
    }
    let ours = format!("{}\nOrigin: https://node", basic("bob", "ebb"));
    connection.send(&login(&ours), "").await;
    // In the case in which it came: what is base64 has both.
    let mut head = String::new();
    let cookie = loop {
        let mut line = String::new();
        connection.0.read_line(&mut line).await.unwrap();
        head.push_str(&line);
        if let Some(cookie) = line.strip_prefix("set-cookie: ") {
            break cookie.split(';').next().unwrap().to_owned();
        }
        assert_ne!(line, "\r\n", "no cookie within {head}");
    };
    let shown = format!("Cookie: other=1; {cookie}");
    // Another connection of the same browser.
    let mut connection = Http1::connect(&site, false).await;
    let name = connection.ask(&get_with("/name", &shown), "").await;
    assert_eq!((name.status, &*name.body), (200, "user bob"));
    assert!(connection.0.get_ref().get_ref().1.alpn_protocol().is_none());

    let logout = format!("POST /v1/logout HTTP/1.1\nHost: node\nContent-Length: 0\n{shown}");
    let mut second = Http1::connect(&site, false).await;
    let elsewhere = second.ask(&format!("{logout}\nOrigin: https://evil.example"), "").await;
    assert_eq!(elsewhere.status, 403, "another site does not sign out either");

    let without = Sources { passwords: None, ..sources(&Issuer::new()) };
    access.authenticator.exchange(access.authenticator.prepare(without).unwrap());
    let gone = connection.ask(&get_with("/name", &shown), "").await;
    assert_eq!(gone.status, 401, "{gone:?}");
    // Nor does the session come back with the user.
    access.authenticator.exchange(access.authenticator.prepare(sources(&Issuer::new())).unwrap());
    let gone = connection.ask(&get_with("/name", &shown), "").await;
    assert_eq!(gone.status, 401, "{gone:?}");
}

#[tokio::test]
async fn a_session_ends_when_its_browser_signs_out() {
    let (site, _access) = open_site().await;
    let mut channel = channel_of_nobody(&site).await;
    let mut ask = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        let uri = format!("{}{path}", site.endpoint());
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        channel.call(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    let bob = format!("Basic {}", STANDARD.encode("bob:ebb"));
    // Over HTTP/2.
    let login = ask("POST", "/v1/login", &[("authorization", &bob)]).await;
    assert_eq!(login.status(), 200);
    let cookie = login.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap();
    assert_eq!(ask("GET", "/name", &[("cookie", cookie)]).await.status(), 200);
    let logout = ask("POST", "/v1/logout", &[("cookie", cookie)]).await;
    assert_eq!(logout.status(), 204);
    assert!(logout.headers()["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(ask("GET", "/name", &[("cookie", cookie)]).await.status(), 401);
}

/// HTTP/2 without credentials.
pub(super) async fn channel_of_nobody(site: &Site) -> Channel {
    let ca = std::fs::read(site.folder.path().join("ca.pem")).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(NODE_SERVER_NAME);
    let endpoint = Endpoint::from_shared(site.endpoint()).unwrap().tls_config(tls).unwrap();
    endpoint.connect().await.unwrap()
}

#[tokio::test]
async fn http_2_serves_the_same_paths_and_unknown_calls_of_grpc_stay_unimplemented() {
    let site = Site::start().await;
    let mut channel = site.channel();
    for (path, content, status, grpc) in [
        ("/name", "text/plain", 200, None),
        ("/", "text/plain", 200, None),
        ("/none", "text/plain", 404, None),
        ("/tidegate.v1.Nothing/Call", "application/grpc", 200, Some("12")),
    ] {
        let uri = format!("{}{path}", site.endpoint());
        let request = http::Request::get(uri).header("content-type", content);
        std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        let answer = channel.call(request.body(Body::empty()).unwrap()).await.unwrap();
        let found = answer.headers().get("grpc-status").map(|status| status.to_str().unwrap());
        assert_eq!((answer.status().as_u16(), found), (status, grpc), "{path}");
    }
}

#[tokio::test]
async fn early_answer_is_read_behind_a_large_body() {
    let (site, _access) = open_site().await;
    let bob = basic("bob", "ebb");
    for (path, headers, bytes, status) in [
        ("/echo", "X: y", 4 << 20, 401),
        ("/nothing", &*bob, 4 << 20, 404),
        ("/echo", &*bob, 30 << 20, 413),
    ] {
        // As a client does that sends all of its body before it reads.
        let mut connection = Http1::connect(&site, false).await;
        let head = format!("POST {path} HTTP/1.1\nHost: node\nContent-Length: {bytes}\n{headers}");
        connection.send(&head, &"x".repeat(bytes)).await;
        let answer = connection.answer().await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.head.contains("connection: close"), "{answer:?}");
    }
}

#[tokio::test]
async fn requests_have_one_host() {
    let (site, _access) = open_site().await;
    let bob = basic("bob", "ebb");
    for (hosts, status) in
        [("Host: node", 200), ("Host: node\nHost: node", 400), ("Host: a b", 400), ("X: y", 400)]
    {
        let mut connection = Http1::connect(&site, false).await;
        let answer = connection.ask(&format!("GET /name HTTP/1.1\n{hosts}\n{bob}"), "").await;
        assert_eq!(answer.status, status, "{hosts}: {answer:?}");
    }
}

#[tokio::test]
async fn a_body_is_read_only_of_callers_that_are_known_and_within_its_bound() {
    let (site, _access) = open_site().await;
    let mut connection = Http1::connect(&site, false).await;
    let post = |headers: &str| format!("POST /echo HTTP/1.1\nHost: node\n{headers}");
    // Not even asked for: the body never comes.
    let waits = post("Content-Length: 1000\nExpect: 100-continue");
    assert_eq!(connection.ask(&waits, "").await.status, 401);
    let mut connection = Http1::connect(&site, false).await;
    let bob = basic("bob", "ebb");
    let waits = post(&format!("Content-Length: 5\nExpect: 100-continue\n{bob}"));
    assert_eq!(connection.ask(&waits, "").await.status, 100);
    connection.0.write_all(b"12345").await.unwrap();
    connection.0.flush().await.unwrap();
    let answer = connection.answer().await;
    assert_eq!((answer.status, &*answer.body), (200, "5"));
    let long = connection.ask(&post(&format!("Content-Length: 99999999\n{bob}")), "").await;
    assert_eq!(long.status, 413, "{long:?}");
    // Of a public path's request no body is read.
    let mut connection = Http1::connect(&site, false).await;
    let public = "POST / HTTP/1.1\nHost: node\nContent-Length: 3";
    let answer = connection.ask(public, "abc").await;
    assert_eq!((answer.status, &*answer.body), (200, "hello 0"));
}

#[tokio::test]
async fn a_websocket_opens_for_known_callers_of_this_origin_and_ends_with_the_server() {
    let (site, _access) = open_site().await;
    let open = |headers: &str| {
        let upgrade = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
        get_with("/talk", &format!("{upgrade}\n{headers}"))
    };
    let bob = basic("bob", "ebb");
    for (headers, status) in [
        ("", 401),
        (&*format!("{bob}\nOrigin: https://evil.example"), 403),
        (&*format!("{bob}\nOrigin: https://node"), 101),
    ] {
        let mut connection = Http1::connect(&site, false).await;
        let answer = connection.ask(&open(headers), "").await;
        assert_eq!(answer.status, status, "{headers}: {answer:?}");
    }
    let mut connection = Http1::connect(&site, false).await;
    assert_eq!(connection.ask(&open(&bob), "").await.status, 101);
    // "hi", masked with zeros, and back without a mask (RFC 6455, section 5.2).
    connection.0.write_all(&[0x81, 0x82, 0, 0, 0, 0, b'h', b'i']).await.unwrap();
    connection.0.flush().await.unwrap();
    let mut echo = [0; 4];
    connection.0.read_exact(&mut echo).await.unwrap();
    assert_eq!(echo, [0x81, 2, b'h', b'i']);
    site.stop.cancel();
    let served = tokio::time::timeout(2 * GRACE, site.served).await;
    served.expect("a WebSocket does not hold up the stop").unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_sends_half_a_head_is_cut_off_and_others_are_served() {
    let (site, _access) = open_site().await;
    let mut slow = Http1::connect(&site, false).await;
    slow.0.write_all(b"GET /name HTTP/1.1\r\nHost: node\r\n").await.unwrap();
    slow.0.flush().await.unwrap();
    let mut silent = Http1::connect(&site, true).await;
    // Time passes as fast as nothing else happens.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let mut rest = Vec::new();
    let _ = slow.0.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "a stranger has seconds: {:?}",
        began.elapsed()
    );
    // A peer with a certificate has longer, and not for ever.
    let _ = silent.0.read_to_end(&mut rest).await;
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
    tokio::time::resume();
    let mut next = Http1::connect(&site, false).await;
    assert_eq!(next.ask(&get_with("/name", &basic("bob", "ebb")), "").await.status, 200);
    let long = format!("X: {}", "x".repeat(100_000));
    let mut connection = Http1::connect(&site, false).await;
    let mut refused = Vec::new();
    let request = get_with("/name", &long).replace('\n', "\r\n") + "\r\n\r\n";
    // It may be cut off before it is through.
    let _ = connection.0.write_all(request.as_bytes()).await;
    let _ = connection.0.read_to_end(&mut refused).await;
    assert!(!refused.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&refused));
}

#[tokio::test]
async fn without_tls_every_caller_is_the_configured_user_and_no_credentials_are_taken() {
    let (site, _access) = open_site().await;
    let mut connection = Http1::plain(&site).await;
    for headers in [String::new(), basic("bob", "ebb"), basic("bob", "wrong")] {
        let answer =
            connection.ask(&get_with("/name", &headers).replace("node", "localhost"), "").await;
        assert_eq!((answer.status, &*answer.body), (200, "user wall"), "{headers}");
        assert!(answer.head.contains("content-security-policy: default-src 'none'"));
        assert!(!answer.head.contains("set-cookie"), "{}", answer.head);
    }
    let get = |path: &str| format!("GET {path} HTTP/1.1\nHost: {}", site.plain);
    for (path, body) in [("/", "hello 0"), ("/cameras", "1")] {
        let answer = connection.ask(&get(path), "").await;
        assert_eq!((answer.status, &*answer.body), (200, body), "{path}");
    }
    let me = connection.ask(&get("/v1/me"), "").await;
    let me: serde_json::Value = serde_json::from_str(&me.body).unwrap();
    assert_eq!(
        (&me["name"], &me["login"], &me["node"]),
        (&"wall".into(), &false.into(), &"edge".into())
    );
    // There is no login that would take a password in the clear, and no body is read.
    let login = format!(
        "POST /v1/login HTTP/1.1\nHost: {}\nContent-Length: 0\n{}",
        site.plain,
        basic("bob", "ebb")
    );
    assert_eq!(connection.ask(&login, "").await.status, 404);
    let echo = format!("POST /echo HTTP/1.1\nHost: {}\nContent-Length: 3", site.plain);
    let answer = connection.ask(&echo, "abc").await;
    assert_eq!((answer.status, &*answer.body), (200, "0"));
    // The API itself is not to be had without TLS.
    let mut plain = Http1(BufReader::new(TcpStream::connect(site.address).await.unwrap()));
    plain.send(&get("/name"), "").await;
    let mut answered = Vec::new();
    let _ = plain.0.read_to_end(&mut answered).await;
    assert!(!answered.starts_with(b"HTTP/1.1 2"), "{answered:?}");
}

#[tokio::test]
async fn without_tls_a_page_of_another_site_opens_nothing_whatever_name_leads_here() {
    let site = Site::start().await;
    let own = site.plain.to_string();
    let port = site.plain.port();
    for (host, origin, status) in [
        (own.clone(), format!("http://{own}"), 101),
        (format!("localhost:{port}"), format!("http://localhost:{port}"), 101),
        (format!("edge.example:{port}"), format!("http://edge.example:{port}"), 101),
        (own.clone(), String::new(), 101),
        (own.clone(), "http://evil.example".to_owned(), 403),
        // Some programs say so.
        (own.clone(), format!("https://{own}"), 101),
        (own.clone(), "null".to_owned(), 403),
        // A name that was made to lead to this node.
        (format!("evil.example:{port}"), format!("http://evil.example:{port}"), 421),
    ] {
        let origin = match origin.is_empty() {
            true => String::new(),
            false => format!("Origin: {origin}\n"),
        };
        let request = format!(
            "GET /talk HTTP/1.1\nHost: {host}\n{origin}Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        );
        // Those before it are gone, and so are their places, once the server has noticed it.
        let opened = async || {
            let mut connection = Http1::plain(&site).await;
            connection.send(&request, "").await;
            let mut line = String::new();
            let read = connection.0.read_line(&mut line).await;
            read.is_ok_and(|count| count > 0).then_some(line)
        };
        let line = poll(Duration::from_secs(20), opened).await.expect("it has a place");
        assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{host} {origin}: {line}");
    }
    let mut connection = Http1::plain(&site).await;
    let read = format!("GET /name HTTP/1.1\nHost: evil.example:{port}");
    let refused = connection.ask(&read, "").await;
    assert_eq!(refused.status, 421, "nor does it read: {refused:?}");
    assert!(refused.body.contains("evil.example") && refused.body.contains("web.plain_hosts"));
}

#[tokio::test]
async fn without_tls_one_address_has_half_of_the_connections_and_all_end_with_the_server() {
    let site = Site::start().await;
    let request = format!("GET /name HTTP/1.1\nHost: {}", site.plain);
    let (mut first, mut second) = (Http1::plain(&site).await, Http1::plain(&site).await);
    for connection in [&mut first, &mut second] {
        assert_eq!(connection.ask(&request, "").await.status, 200);
    }
    let mut third = Http1::plain(&site).await;
    assert!(third.is_ended().await, "half of four are two");
    drop(first);
    let served = async || {
        let mut connection = Http1::plain(&site).await;
        connection.send(&request, "").await;
        let mut line = String::new();
        let read = connection.0.read_line(&mut line).await;
        read.is_ok_and(|count| count > 0).then_some(line)
    };
    let line = poll(Duration::from_secs(20), served).await.expect("there is room again");
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    site.stop.cancel();
    assert!(second.is_ended().await);
    site.served.await.unwrap().unwrap();
}
