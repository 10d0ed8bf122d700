//! The load of images against servers of a test's own, in each way that they take images. WebSocket is that of tungstenite.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustls::{ServerConnection, StreamOwned};
use tidegate_load::vision::{
    Connection, Counting, Image, Target, VisionError, VisionReport, VisionSpec, run,
};
use tungstenite::{
    Message,
    handshake::server::{Request, Response},
    protocol::{CloseFrame, frame::coding::CloseCode},
};

use crate::server::Certificate;

/// The answer of a server of the paper's shape.
const FOUND: &str =
    r#"{"success": "true", "server_processing_time": "1.500", "rects": [[1, 2, 3, 4]]}"#;
const BUSY: &str = r#"{"error": {"code": "vision.busy", "message": "try again"}}"#;

/// The code of a refusal by gRPC.
const UNKNOWN: &str = "vision.model.unknown";

/// Behaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Answers each request.
    Answers,
    /// Answers one request of each connection and closes without a word.
    AnswersOne,
    /// Refuses each request.
    Refuses,
    /// Answers with a page.
    Babbles,
}

/// A request as the server saw it.
#[derive(Clone, Debug)]
struct Seen {
    connection: usize,
    path: String,
    authorization: Option<String>,
    media_type: Option<String>,
    image: Vec<u8>,
}

/// A server, which lives as long as the test's process.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    fn start(way: Connection, manner: Manner, certificate: Option<&Certificate>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let tls = certificate.map(Certificate::server);
        let kept = seen.clone();
        thread::spawn(move || {
            let connections = AtomicUsize::new(0);
            for tcp in listener.incoming() {
                let tcp = tcp.unwrap();
                tcp.set_nodelay(true).unwrap();
                let number = connections.fetch_add(1, Ordering::Relaxed);
                let seen = kept.clone();
                let tls = tls.clone();
                thread::spawn(move || match tls {
                    None => serve(tcp, way, manner, number, &seen),
                    Some(tls) => {
                        let tls = ServerConnection::new(tls).unwrap();
                        serve(StreamOwned::new(tls, tcp), way, manner, number, &seen);
                    }
                });
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn spec(&self, way: Connection) -> VisionSpec {
        VisionSpec {
            target: Target {
                host: self.address.ip().to_string(),
                port: self.address.port(),
                tls: None,
                server_name: None,
                timeout: Duration::from_secs(20),
            },
            endpoint: "/detector/detect/".to_owned(),
            connection: way,
            connection_per_request: false,
            authorization: None,
            images: images(),
            threads: 1,
            counting: Counting::Repeats(1),
            rate: None,
            warm_up: 0,
            network: false,
            stats_port: None,
            keep_times: true,
        }
    }
}

/// Two images that no form, frame or length leaves as it is by accident.
fn images() -> Vec<Image> {
    let jpeg = [&[0xff, 0xd8, 0xfb, 0xff, b'&', b'='], &[b'\r'; 70_000][..]].concat();
    let png = b"\x89PNG\r\n\x1a\n%2B+/=".to_vec();
    vec![Image::new("one.jpg", jpeg), Image::new("two.png", png)]
}

/// A server of the calls of detection.
mod calls {
    use std::{
        convert::Infallible,
        net::{Ipv4Addr, SocketAddr},
        pin::Pin,
        sync::{Arc, Mutex},
        task::{Context, Poll},
        thread,
    };

    use rustls::ServerConfig;
    use tidegate_client::proto::{
        DetectRequest, DetectResponse, DetectTimes, Detected, DetectedBox, Refusal,
        detect_response::Result as Outcome,
    };
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
    use tonic::{
        Request, Response, Status, Streaming,
        body::Body,
        codegen::{BoxFuture, Service, http},
        metadata::MetadataValue,
        server::{Grpc, NamedService, StreamingService, UnaryService},
    };
    use tonic_prost::ProstCodec;

    use super::Manner;

    pub(super) type Seen = Arc<Mutex<Vec<(DetectRequest, Option<String>)>>>;

    #[derive(Clone)]
    struct Detect {
        manner: Manner,
        seen: Seen,
    }

    /// Serves for as long as the test's process lives.
    pub(super) fn start(manner: Manner, tls: Option<Arc<ServerConfig>>) -> (SocketAddr, Seen) {
        let seen = Seen::default();
        let detect = Detect { manner, seen: seen.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let server = tonic::transport::Server::builder().add_service(detect);
            let incoming = TcpListenerStream::new(listener);
            runtime.block_on(async {
                match tls {
                    None => server.serve_with_incoming(incoming).await.unwrap(),
                    Some(tls) => {
                        let acceptor = TlsAcceptor::from(tls);
                        let shaken = incoming.then(move |tcp| {
                            let acceptor = acceptor.clone();
                            async move { acceptor.accept(tcp?).await }
                        });
                        server.serve_with_incoming(shaken).await.unwrap();
                    }
                }
            });
        });
        (address, seen)
    }

    impl Detect {
        fn answer(&self, request: DetectRequest, authorization: Option<String>) -> DetectResponse {
            let id = request.id;
            self.seen.lock().unwrap().push((request, authorization));
            let result = match self.manner {
                Manner::Refuses => {
                    let message = "there is no such model".to_owned();
                    Outcome::Refused(Refusal { code: super::UNKNOWN.to_owned(), message })
                }
                _ => Outcome::Detected(Detected {
                    boxes: vec![DetectedBox::default()],
                    times: Some(DetectTimes { total_nanos: 1_500_000, ..DetectTimes::default() }),
                    ..Detected::default()
                }),
            };
            DetectResponse { id, result: Some(result) }
        }
    }

    fn shown<T>(request: &Request<T>) -> Option<String> {
        let value = request.metadata().get("authorization")?;
        Some(value.to_str().unwrap().to_owned())
    }

    impl UnaryService<DetectRequest> for Detect {
        type Response = DetectResponse;
        type Future = BoxFuture<Response<DetectResponse>, Status>;

        fn call(&mut self, request: Request<DetectRequest>) -> Self::Future {
            let authorization = shown(&request);
            let answer = self.answer(request.into_inner(), authorization);
            Box::pin(async move {
                match answer.result {
                    Some(Outcome::Refused(refusal)) => {
                        let mut status = Status::not_found(refusal.message);
                        let code = MetadataValue::try_from(&refusal.code).unwrap();
                        status.metadata_mut().insert(tidegate_client::CODE_METADATA, code);
                        Err(status)
                    }
                    _ => Ok(Response::new(answer)),
                }
            })
        }
    }

    type Answers = Pin<Box<dyn Stream<Item = Result<DetectResponse, Status>> + Send>>;

    impl StreamingService<DetectRequest> for Detect {
        type Response = DetectResponse;
        type ResponseStream = Answers;
        type Future = BoxFuture<Response<Answers>, Status>;

        fn call(&mut self, request: Request<Streaming<DetectRequest>>) -> Self::Future {
            let (detect, authorization) = (self.clone(), shown(&request));
            let answers = request
                .into_inner()
                .map(move |request| Ok(detect.answer(request?, authorization.clone())));
            let answers: Answers = match self.manner {
                Manner::AnswersOne => Box::pin(answers.take(1)),
                _ => Box::pin(answers),
            };
            Box::pin(async move { Ok(Response::new(answers)) })
        }
    }

    impl NamedService for Detect {
        const NAME: &'static str = "tidegate.v1.Detect";
    }

    impl Service<http::Request<Body>> for Detect {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<Self::Response, Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let detect = self.clone();
            Box::pin(async move {
                let mut grpc = Grpc::new(ProstCodec::<DetectResponse, DetectRequest>::default());
                Ok(match request.uri().path() {
                    "/tidegate.v1.Detect/Detect" => grpc.unary(detect, request).await,
                    "/tidegate.v1.Detect/DetectStream" => grpc.streaming(detect, request).await,
                    path => panic!("{path} is no call of detection"),
                })
            })
        }
    }
}

#[test]
fn images_arrive_as_they_are_by_calls_and_by_a_stream() {
    let certificate = Certificate::of("localhost");
    for (way, is_tls) in [
        (Connection::Grpc, false),
        (Connection::Grpc, true),
        (Connection::GrpcStream, false),
        (Connection::GrpcStream, true),
    ] {
        let (address, seen) = calls::start(Manner::Answers, is_tls.then(|| certificate.server()));
        let mut spec = Server { address, seen: Arc::default() }.spec(way);
        spec.target.tls = is_tls.then(|| certificate.client());
        spec.target.server_name = Some("localhost".to_owned());
        spec.authorization = Some("Bearer t".to_owned());
        (spec.threads, spec.counting, spec.warm_up) = (2, Counting::Repeats(3), 1);
        let report = measured(&spec);
        assert!(report.is_whole(), "{way:?}: {report}");
        assert_eq!((report.found, report.full_process.count), (12, 12), "{way:?}");
        assert!((report.server_processing.avg - 1.5).abs() < 1e-9, "{report}");
        assert_eq!(report.reconnects, 0, "{way:?}: {report}");
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 14);
        for (request, authorization) in &*seen {
            assert_eq!(request.model, "face"); // for which /detector/detect/ stands
            assert!(images().iter().any(|image| image.bytes == request.image), "{way:?}");
            assert_eq!(authorization.as_deref(), Some("Bearer t"));
        }
    }
}

#[test]
fn calls_and_messages_without_a_result_are_counted_by_reason() {
    for way in [Connection::Grpc, Connection::GrpcStream] {
        let (address, _) = calls::start(Manner::Refuses, None);
        let report = measured(&Server { address, seen: Arc::default() }.spec(way));
        assert_eq!(report.full_process.count, 0, "{report}");
        assert_eq!(report.refused.get(UNKNOWN), Some(&2), "{way:?}: {report}");
        assert!(report.failed.is_empty(), "{report}");
    }
    // A stream that the server ends is opened again, and so is a connection for each request.
    let (address, _) = calls::start(Manner::AnswersOne, None);
    let server = Server { address, seen: Arc::default() };
    let ended =
        VisionSpec { counting: Counting::Repeats(3), ..server.spec(Connection::GrpcStream) };
    let report = measured(&ended);
    assert!(report.is_whole(), "{report}");
    assert_eq!((report.answered(), report.reconnects), (6, 5), "{report}");
    let fresh = VisionSpec { connection_per_request: true, ..ended };
    let report = measured(&fresh);
    assert_eq!((report.answered(), report.reconnects), (6, 0), "{report}");
}

fn measured(spec: &VisionSpec) -> VisionReport {
    run(spec, &AtomicBool::new(false), &|_| ()).expect("the server is there")
}

/// Serves one connection until it is over. A client that is gone is no failure, for each ends so.
fn serve(
    stream: impl Read + Write,
    way: Connection,
    manner: Manner,
    connection: usize,
    seen: &Mutex<Vec<Seen>>,
) {
    let note = |path: &str, headers: &HashMap<String, String>, image: Vec<u8>| {
        seen.lock().unwrap().push(Seen {
            connection,
            path: path.to_owned(),
            authorization: headers.get("authorization").cloned(),
            media_type: headers.get("content-type").cloned(),
            image,
        });
    };
    let _ = match way {
        Connection::Rest | Connection::RestBase64 => serve_http(stream, manner, note),
        Connection::Tcp => serve_tcp(stream, note),
        Connection::WebSocket => {
            serve_websocket(stream, manner, note);
            Ok(())
        }
        Connection::Grpc | Connection::GrpcStream => {
            unreachable!("they have a server of their own")
        }
    };
}

fn serve_http(
    stream: impl Read + Write,
    manner: Manner,
    note: impl Fn(&str, &HashMap<String, String>, Vec<u8>),
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut start = String::new();
        if stream.read_line(&mut start)? == 0 {
            return Ok(());
        }
        let path = start.split(' ').nth(1).unwrap().to_owned();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        if headers.get("content-type").is_some_and(|kind| kind.ends_with("urlencoded")) {
            body = of_form(&body);
        }
        note(&path, &headers, body);
        let (status, text) = match manner {
            Manner::Answers | Manner::AnswersOne => ("200 OK", FOUND),
            Manner::Refuses => ("429 Too Many Requests", BUSY),
            Manner::Babbles => ("200 OK", "<h1>It works!</h1>"),
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        stream.get_mut().write_all(answer.as_bytes())?;
        stream.get_mut().flush()?;
        if manner == Manner::AnswersOne || headers.get("connection").is_some_and(|c| c == "close") {
            return Ok(());
        }
    }
}

/// The image of a form.
fn of_form(form: &[u8]) -> Vec<u8> {
    let value = form.strip_prefix(b"image=").expect("the field is called image");
    let value = String::from_utf8(value.to_vec()).unwrap();
    let mut text = value.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
    assert!(!value.contains(['+', '/', '=', '&']), "they mean something in a form");
    text.retain(|c| c != '=');
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{c} is not of base64"),
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for c in text.bytes() {
        bits = bits << 6 | u32::from(digit(c));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

fn serve_tcp(
    mut stream: impl Read + Write,
    note: impl Fn(&str, &HashMap<String, String>, Vec<u8>),
) -> std::io::Result<()> {
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let mut image = vec![0; number(4) as usize];
        stream.read_exact(&mut image)?;
        note(&number(0).to_string(), &HashMap::new(), image);
        stream.write_all(&(FOUND.len() as u32).to_be_bytes())?;
        stream.write_all(FOUND.as_bytes())?;
        stream.flush()?;
    }
}

fn serve_websocket(
    stream: impl Read + Write,
    manner: Manner,
    note: impl Fn(&str, &HashMap<String, String>, Vec<u8>),
) {
    let (mut path, mut headers) = (String::new(), HashMap::new());
    #[expect(clippy::result_large_err, reason = "tungstenite's callback has this type")]
    let look =
        |request: &Request, response: Response| {
            path = request.uri().path().to_owned();
            let value = request.headers().get("authorization");
            headers.extend(value.map(|value| {
                ("authorization".to_owned(), value.to_str().expect("text").to_owned())
            }));
            Ok(response)
        };
    let Ok(mut socket) = tungstenite::accept_hdr(stream, look) else { return };
    while let Ok(Message::Binary(image)) = socket.read() {
        note(&path, &headers, image.to_vec());
        if manner == Manner::Refuses {
            let frame = CloseFrame { code: CloseCode::Again, reason: "busy".into() };
            let _ = socket.close(Some(frame));
            while socket.read().is_ok() {} // until the client has answered
            return;
        }
        // A ping in between is answered by the client and is no answer.
        let _ = socket.send(Message::Ping(vec![7].into()));
        if socket.send(Message::text(FOUND)).is_err() {
            return;
        }
        let _ = socket.read(); // the pong
    }
}

#[test]
fn images_arrive_as_they_are_in_every_way() {
    let certificate = Certificate::of("localhost");
    for (way, is_tls, path) in [
        (Connection::Rest, false, "/detector/detect/"),
        (Connection::Rest, true, "/detector/detect/"),
        (Connection::RestBase64, false, "/detector/detect/"),
        (Connection::WebSocket, false, "/ws/detector/detect/"),
        (Connection::WebSocket, true, "/ws/detector/detect/"),
        (Connection::Tcp, false, "1"),
    ] {
        let server = Server::start(way, Manner::Answers, is_tls.then_some(&certificate));
        let mut spec = server.spec(way);
        spec.target.tls = is_tls.then(|| certificate.client());
        spec.target.server_name = Some("localhost".to_owned());
        spec.authorization = (way != Connection::Tcp).then(|| "Bearer t".to_owned());
        (spec.threads, spec.counting, spec.warm_up) = (2, Counting::Repeats(3), 1);
        let report = measured(&spec);
        assert!(report.is_whole(), "{way:?}: {report}");
        // Two clients, three times two images; the one of the warm-up is in none of the figures.
        assert_eq!((report.found, report.full_process.count), (12, 12), "{way:?}");
        assert_eq!(report.full_process_ms.len(), 12);
        assert!((report.server_processing.avg - 1.5).abs() < 1e-9, "{report}");
        assert_eq!(report.reconnects, 0, "{way:?}");
        let seen = server.seen();
        assert_eq!(seen.len(), 14);
        for seen in &seen {
            let image = images().into_iter().find(|image| image.bytes == seen.image);
            let image = image.unwrap_or_else(|| panic!("{way:?}: {} bytes", seen.image.len()));
            assert_eq!(seen.path, path);
            assert_eq!(seen.authorization, spec.authorization, "{way:?}");
            if way == Connection::Rest {
                assert_eq!(seen.media_type.as_deref(), Some(image.media_type));
            }
        }
        let kept: std::collections::HashSet<_> = seen.iter().map(|seen| seen.connection).collect();
        assert_eq!(kept.len(), 2, "{way:?}: a connection for each client");
    }
}

#[test]
fn a_connection_for_each_request_is_one() {
    for way in [Connection::Rest, Connection::WebSocket, Connection::Tcp] {
        let server = Server::start(way, Manner::Answers, None);
        let spec = VisionSpec {
            connection_per_request: true,
            counting: Counting::Repeats(4),
            ..server.spec(way)
        };
        let report = measured(&spec);
        assert_eq!((report.answered(), report.reconnects), (8, 0), "{report}");
        let seen = server.seen();
        let made: std::collections::HashSet<_> = seen.iter().map(|seen| seen.connection).collect();
        assert_eq!(made.len(), 8, "{way:?}");
    }
}

#[test]
fn a_kept_connection_that_the_server_closes_is_made_again() {
    let server = Server::start(Connection::Rest, Manner::AnswersOne, None);
    let spec = VisionSpec { counting: Counting::Repeats(3), ..server.spec(Connection::Rest) };
    let report = measured(&spec);
    assert!(report.is_whole(), "{report}");
    assert_eq!((report.answered(), report.reconnects), (6, 5), "{report}");
    assert!(report.to_string().contains("5 connections made again"), "{report}");
}

#[test]
fn requests_without_a_result_are_counted_by_reason_and_have_no_latency() {
    for (way, manner, refused, failed) in [
        (Connection::Rest, Manner::Refuses, Some("429 vision.busy"), None),
        (Connection::Rest, Manner::Babbles, None, Some("the answer is not that of a detector")),
        (
            Connection::WebSocket,
            Manner::Refuses,
            None,
            Some("the server closed the WebSocket with 1013"),
        ),
    ] {
        let server = Server::start(way, manner, None);
        let report = measured(&server.spec(way));
        assert!(!report.is_whole());
        assert_eq!(report.full_process.count, 0, "{report}");
        let count =
            |reason: Option<&str>, all: &std::collections::BTreeMap<String, u64>| match reason {
                Some(reason) => assert_eq!(all.get(reason), Some(&2), "{all:?}"),
                None => assert!(all.is_empty(), "{all:?}"),
            };
        count(refused, &report.refused);
        count(failed, &report.failed);
        assert!(report.to_string().ends_with("TEST_PASS=False"), "{report}");
    }
}

#[test]
fn latencies_at_a_rate_count_from_when_each_request_was_due() {
    let server = Server::start(Connection::Tcp, Manner::Answers, None);
    // All are due within 40 us, and one after the other is answered: each waited for all before it.
    let spec = VisionSpec {
        rate: Some(1e6),
        counting: Counting::Repeats(20),
        ..server.spec(Connection::Tcp)
    };
    let report = measured(&spec);
    assert_eq!(report.answered(), 40, "{report}");
    let times = &report.full_process_ms;
    assert!(times.is_sorted(), "{times:?}");
    let all_ms = report.seconds * 1e3;
    assert!(times[39] > all_ms * 0.5 && times[39] <= all_ms, "{times:?} in {all_ms}");
    // At a rate that it keeps easily, the run takes as long as the rate says.
    let spec = VisionSpec { rate: Some(200.0), threads: 2, ..spec };
    let report = measured(&spec);
    assert_eq!(report.answered(), 80, "{report}");
    assert!(report.seconds >= 79.0 / 200.0, "{report}");
}

#[test]
fn the_network_alone_is_timed_beside() {
    let server = Server::start(Connection::WebSocket, Manner::Answers, None);
    let spec = VisionSpec {
        network: true,
        counting: Counting::For(Duration::from_millis(350)),
        ..server.spec(Connection::WebSocket)
    };
    let report = measured(&spec);
    assert!(report.network_only.count >= 2, "{report}");
    let text = report.to_string();
    for words in [
        "Grand totals for 127.0.0.1:",
        " /detector/detect/ websocket\n1 threads for ",
        "====> Average Latency Full Process=",
        "====> Average Latency Network Only=",
        "====> Average Server Processing Time=1.500 ms (stddev=0.000)\n",
        "Full Process Latency: min/avg/max/stddev = ",
        "\nServer, Full Process, Network Only, Server Time, CPU Util, Mem Util\n127.0.0.1:",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert!(text.ends_with("TEST_PASS=True"), "{text}");
    let json = serde_json::to_value(&report).expect("a report is JSON");
    assert_eq!(json["connection"], "websocket");
    assert_eq!(json["full_process"]["count"], report.found);
}

#[test]
fn a_load_that_cannot_be_run_is_refused() {
    let server = Server::start(Connection::Tcp, Manner::Answers, None);
    let spec = server.spec(Connection::Tcp);
    let refused = |spec: VisionSpec| {
        run(&spec, &AtomicBool::new(false), &|_| ()).expect_err("it cannot be run").to_string()
    };
    for (spec, expected) in [
        (VisionSpec { threads: 0, ..spec.clone() }, "0 threads: from 1 to 4096"),
        (VisionSpec { images: Vec::new(), ..spec.clone() }, "no image to send; name files with -f"),
        (VisionSpec { rate: Some(f64::NAN), ..spec.clone() }, "a rate of NaN"),
        (
            VisionSpec { endpoint: "/v1/detect/face".into(), ..spec.clone() },
            "stands for no operation",
        ),
        (VisionSpec { authorization: Some("Bearer t".into()), ..spec.clone() }, "has no login"),
        (
            VisionSpec { connection: Connection::Rest, endpoint: "a b".into(), ..spec.clone() },
            "is not a path",
        ),
        (
            VisionSpec { connection: Connection::Grpc, endpoint: "/test/".into(), ..spec.clone() },
            "stands for no model",
        ),
    ] {
        let said = refused(spec);
        assert!(said.contains(expected), "{said}");
    }
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut away = spec;
    away.target.port = free.local_addr().unwrap().port();
    drop(free);
    let error = run(&away, &AtomicBool::new(false), &|_| ()).unwrap_err();
    assert!(matches!(error, VisionError::Unreachable { .. }), "{error}");
    // Not even a stop before the first request leaves a client behind.
    let stopped = run(&server.spec(Connection::Tcp), &AtomicBool::new(true), &|_| ()).unwrap();
    assert_eq!((stopped.answered(), stopped.stopped), (0, true));
    drop(TcpStream::connect(server.address).unwrap());
}
