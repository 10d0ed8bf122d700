//! Pictures of a real node by HTTP/1.1 and WebSocket.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use tidegate_bus::{Attached, Attachment, Publication};
use tidegate_identity::{
    access::Access,
    auth::{Authenticator, Source, Sources, password::DecoyKey, scram::Credentials},
    pki::{self, NODE_SERVER_NAME, revocation::Reason},
};
use tidegate_message::{Identity, IdentityKind};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpSocket,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{poll_async::poll, world::World};

const HALL: &str = "scene:street?size=320x240&fps=10&people=1&seed=1&seconds=3&loop=1";
const LARGE: &str = "scene:street?size=1280x720&fps=20&people=8&seed=4&seconds=2&loop=1";
const LONGEST: Duration = Duration::from_secs(60);

/// A connection over which a viewer asks.
struct Viewer(BufReader<TlsStream<tokio::net::TcpStream>>);

/// The head of an answer in lower case, and its body if it has a length.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head))
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("it is JSON")
    }
}

impl Viewer {
    async fn connect(world: &World) -> Self {
        Self::connect_as(world, "application").await
    }

    /// With the certificate of that name.
    async fn connect_as(world: &World, name: &str) -> Self {
        let tls = pki::load(world.path(), name).unwrap().client_tls(b"http/1.1").unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        // A viewer that does not read is noticed after some frames, and not after megabytes.
        socket.set_recv_buffer_size(32 << 10).unwrap();
        let stream = socket.connect(world.api).await.unwrap();
        let name = NODE_SERVER_NAME.try_into().unwrap();
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap();
        Self(BufReader::new(stream))
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(LONGEST, self.0.read_line(&mut line)).await.expect("it comes").unwrap();
        line.trim_end().to_owned()
    }

    async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        timeout(LONGEST, self.0.read_exact(&mut bytes)).await.expect("it comes").unwrap();
        bytes
    }

    async fn head(&mut self) -> String {
        let mut head = String::new();
        loop {
            match self.line().await {
                line if line.is_empty() => return head,
                line => head.push_str(&(line.to_ascii_lowercase() + "\n")),
            }
        }
    }

    async fn ask(&mut self, path: &str, headers: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\n{headers}\r\n");
        self.0.write_all(request.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
        let head = self.head().await;
        let status = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let body = self.bytes(length.map_or(0, |length| length.parse().unwrap())).await;
        Answer { status, head, body }
    }

    /// Begins to see a camera as one picture after another.
    async fn mjpeg(world: &World, path: &str) -> Self {
        let mut viewer = Self::connect(world).await;
        let answer = viewer.ask(path, "").await;
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert!(answer.header("content-type").starts_with("multipart/x-mixed-replace; boundary="));
        viewer
    }

    /// The next picture of such: when it was captured. Pieces of the transfer coding are passed over.
    async fn part(&mut self) -> i64 {
        let mut length = 0;
        let mut captured_at = 0;
        loop {
            let line = self.line().await.to_ascii_lowercase();
            if let Some(bytes) = line.strip_prefix("content-length: ") {
                length = bytes.parse().unwrap();
            }
            if let Some(at) = line.strip_prefix("tidegate-captured-at: ") {
                captured_at = at.parse().unwrap();
            }
            // The head ends; the picture is a chunk of its own.
            if line.is_empty() && length > 0 {
                let mut size = String::new();
                while size.is_empty() {
                    size = self.line().await;
                }
                assert_eq!(usize::from_str_radix(&size, 16).unwrap(), length);
                let jpeg = self.bytes(length).await;
                assert!(jpeg.starts_with(&[0xff, 0xd8]) && jpeg.ends_with(&[0xff, 0xd9]));
                return captured_at;
            }
        }
    }

    /// Opens a WebSocket.
    async fn open(world: &World, path: &str) -> Self {
        Self::connect(world).await.upgrade(path, "").await
    }

    /// Has the connection become a WebSocket, asked for with these headers.
    async fn upgrade(mut self, path: &str, headers: &str) -> Self {
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let answer = self.ask(path, &format!("{upgrade}{headers}")).await;
        assert_eq!(answer.status, 101, "{}", String::from_utf8_lossy(&answer.body));
        self
    }

    /// Reads up to the end of the WebSocket: its code and its reason.
    async fn closed(&mut self) -> (u16, String) {
        loop {
            let (opcode, bytes) = self.message().await;
            if opcode == 8 {
                let reason = String::from_utf8_lossy(&bytes[2..]).into_owned();
                return (u16::from_be_bytes([bytes[0], bytes[1]]), reason);
            }
        }
    }

    /// The next message: its opcode and its bytes (RFC 6455, section 5.2). The server does not split them.
    async fn message(&mut self) -> (u8, Vec<u8>) {
        let head = self.bytes(2).await;
        assert!(head[0] & 0x80 != 0 && head[1] & 0x80 == 0, "{head:?}");
        let length = match head[1] {
            126 => u16::from_be_bytes(self.bytes(2).await.try_into().unwrap()).into(),
            127 => u64::from_be_bytes(self.bytes(8).await.try_into().unwrap()),
            length => length.into(),
        };
        (head[0] & 15, self.bytes(usize::try_from(length).unwrap()).await)
    }

    /// The next event of that type; its picture, if it has one.
    async fn event(&mut self, word: &str) -> (Value, Vec<u8>) {
        loop {
            let (opcode, bytes) = self.message().await;
            if opcode != 1 {
                continue;
            }
            let event: Value = serde_json::from_slice(&bytes).expect("it is JSON");
            let jpeg = match event["type"] == "frame" {
                true => self.message().await,
                false => (2, Vec::new()),
            };
            assert_eq!(jpeg.0, 2, "a frame's picture follows it");
            if event["type"] == word {
                return (event, jpeg.1);
            }
        }
    }

    /// Sends a text, masked with zeros.
    async fn say(&mut self, text: &str) {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 126).unwrap();
        self.0
            .write_all(&[&[0x81, 0x80 | length, 0, 0, 0, 0], text.as_bytes()].concat())
            .await
            .unwrap();
        self.0.flush().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_see_live_frames_and_originals_and_share_a_transfer() {
    let world = World::new().await;
    let client = world.client().await;
    world.configure(&[("hall", HALL)]);
    world.wait_for_camera(&client, "hall").await;
    let mut viewer = Viewer::connect(&world).await;

    let cameras = viewer.ask("/cameras", "").await.json();
    let hall = &cameras["cameras"][0];
    assert_eq!((&hall["name"], &hall["online"]), (&"hall".into(), &true.into()), "{cameras}");
    assert_eq!(hall["size"], serde_json::json!([320, 240]));
    assert!(hall["newest_at"].is_i64() && hall["no_frames"].is_null());

    let newest = viewer.ask("/cameras/hall/snapshot.jpg", "").await;
    assert_eq!((newest.status, newest.header("content-type")), (200, "image/jpeg"));
    let at = newest.header("tidegate-captured-at");
    let again = viewer.ask(&format!("/cameras/hall/snapshot.jpg?at={at}"), "").await;
    assert_eq!((again.status, again.header("tidegate-captured-at")), (200, at));
    assert_eq!(again.body, newest.body, "it is the same frame");
    assert!(newest.body.starts_with(&[0xff, 0xd8]));
    for (path, status, code) in [
        ("/cameras/hall/snapshot.jpg?at=1", 404, "frames.frame.missing"),
        ("/cameras/hall/snapshot.jpg?at=now", 400, "request.invalid"),
        ("/cameras/none/snapshot.jpg", 404, "frames.camera.unknown"),
        ("/cameras/none/mjpeg", 404, "frames.camera.unknown"),
        ("/cameras/hall/mjpeg?latency_ms=0", 400, "frames.bound.invalid"),
        ("/cameras/hall/mjpeg?latency=1", 400, "request.invalid"),
        ("/cameras/hall/frames", 426, "request.invalid"),
        ("/cameras/hall/frames?verdicts=yes", 400, "request.invalid"),
        ("/v1/clients", 429, "limit.reached"), // it serves no MQTT
        ("/v1/detections", 426, "request.invalid"),
    ] {
        let refused = viewer.ask(path, "").await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (status, &code.into()),
            "{path}"
        );
    }

    // An administrator, since it asks from the node's own machine.
    assert_eq!(viewer.ask("/v1/sinks", "").await.json(), serde_json::json!({ "sinks": [] }));

    let bounds = "latency_ms=5000&accuracy=0.5";
    let mut one = Viewer::mjpeg(&world, &format!("/cameras/hall/mjpeg?{bounds}")).await;
    let mut other = Viewer::mjpeg(&world, &format!("/cameras/hall/mjpeg?{bounds}")).await;
    let mut socket =
        Viewer::open(&world, &format!("/cameras/hall/frames?{bounds}&verdicts=1")).await;
    for viewer in [&mut one, &mut other] {
        let (first, second) = (viewer.part().await, viewer.part().await);
        assert!(second > first, "frames come in their order");
    }
    let (started, _) = socket.event("started").await;
    assert_eq!((&started["latency_ms"], &started["accuracy"]), (&5000.0.into(), &0.5.into()));
    let (frame, jpeg) = socket.event("frame").await;
    assert_eq!(frame["bytes"], jpeg.len());
    assert_eq!(frame["source_size"], serde_json::json!([320, 240]));
    assert!(jpeg.starts_with(&[0xff, 0xd8]) && frame["latency_ms"].as_f64().unwrap() > 0.0);
    assert!(frame["knobs"].is_string() && frame["stages"]["network_ms"].is_f64(), "{frame}");
    let (verdict, _) = socket.event("verdict").await;
    assert_eq!(verdict["bound_ms"], 5000.0);
    let one_for_all = async || {
        let info = client.camera(&"hall".parse().unwrap()).await.unwrap();
        ((info.transfers, info.subscriptions) == (1, 3)).then_some(())
    };
    poll(LONGEST, one_for_all)
        .await
        .expect("three viewers with the same bounds share one transfer");

    // Other bounds, which are answered before frames come by them; nonsense leaves them as they are.
    socket.say(r#"{"type":"update","latency_ms":3000,"fps":5}"#).await;
    let (updated, _) = socket.event("updated").await;
    assert_eq!((&updated["latency_ms"], &updated["fps"]), (&3000.0.into(), &5.0.into()));
    for nonsense in [
        r#"{"type":"update","fps":-1}"#,
        r#"{"type":"stop"}"#,
        "what",
        r#"{"type":"update","x":1}"#,
    ] {
        socket.say(nonsense).await;
        let (error, _) = socket.event("error").await;
        assert!(error["message"].is_string(), "{error}");
    }
    socket.event("frame").await;

    // All viewers end with the node, and with a word where there is one.
    let mut world = world;
    let ((closed, _), ()) = tokio::join!(socket.closed(), world.stop_node());
    assert!(matches!(closed, 1000 | 1001), "{closed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_that_does_not_read_misses_frames_older_than_its_bound_and_costs_others_nothing() {
    let world = World::new().await;
    let client = world.client().await;
    world.configure(&[("large", LARGE)]);
    world.wait_for_camera(&client, "large").await;
    let path = "/cameras/large/mjpeg?latency_ms=1000&accuracy=1";
    let (mut slow, mut fast) =
        (Viewer::mjpeg(&world, path).await, Viewer::mjpeg(&world, path).await);
    let begun = slow.part().await;
    let mut seen = Vec::new();
    while seen.len() < 120 {
        seen.push(fast.part().await);
    }
    let newest = *seen.last().unwrap();
    // Those that were on their way to the slow one, then those that are not older than its bound.
    let mut count = 0;
    while slow.part().await < newest {
        count += 1;
    }
    let captured = seen.iter().filter(|at| **at > begun).count();
    assert!(
        count < captured / 2,
        "{count} frames were kept for a viewer that did not read {captured}"
    );
}

/// Rights where ada and bob have passwords, if they are users, and applications and bob may see `detections`, if they may.
fn sources(users: &[&str], may_see: bool) -> Sources {
    let line = |user: &&str| {
        let secret = Credentials::derive(b"ebb", user.as_bytes(), 4096).encode();
        format!("{user}:{secret}\n")
    };
    let source = |name: &str, text: String| Some(Source { path: name.into(), text: text.into() });
    let seen = if may_see { "detections/#" } else { "rooms/#" };
    let roles = format!(
        "[role.viewer]\nsubscribe = [\"{seen}\"]\n[role.other]\nsubscribe = [\"detections/#\"]\n\
         [user.bob]\nroles = [\"viewer\"]\n[user.ada]\nroles = [\"other\"]\n\
         [certificate.application]\nroles = [\"other\"]\n[certificate.other]\nroles = [\"other\"]\n"
    );
    Sources {
        passwords: source("passwords", users.iter().map(line).collect()),
        acl: None,
        roles: source("roles", roles),
        tokens: None,
        allow_anonymous: false,
        administrator: None,
        decoy_key: DecoyKey([1; 32]),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_of_detections_whose_proof_or_right_is_gone_gets_no_more_and_others_do() {
    let authenticator = Arc::new(Authenticator::new(sources(&["ada", "bob"], true)).unwrap());
    let access = Access { authenticator: authenticator.clone(), ..Access::default() };
    let world = World::with_broker(access).await;
    let detector = Identity::new(IdentityKind::Internal, "people", "people");
    let attached = world.bus().unwrap().attach(Attachment::new(detector, "people")).await.unwrap();
    let Attached { mut publisher, deliveries: _deliveries, .. } = attached;
    let mut number = 0;
    let mut detect = async || {
        number += 1;
        let payload = format!(r#"{{"type":"detection","number":{number}}}"#);
        let topic = "detections/hall/people";
        let payload = payload.as_bytes();
        let found = Publication { topic, payload, ..Publication::default() };
        publisher.send(&found).await.expect("it is taken");
        number
    };
    let watch = async |certificate: &str, user: &str| {
        let viewer = Viewer::connect_as(&world, certificate).await;
        let header = match user {
            "" => String::new(),
            _ => format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:ebb"))),
        };
        viewer.upgrade("/v1/detections?camera=hall", &header).await
    };
    let exchange = |sources| authenticator.exchange(authenticator.prepare(sources).unwrap());
    let mut kept = watch("application", "").await;
    let mut revoked = watch("other", "").await;
    let mut removed = watch("application", "ada").await;
    let mut refused = watch("application", "bob").await;
    let sent = detect().await;
    for viewer in [&mut kept, &mut revoked, &mut removed, &mut refused] {
        assert_eq!(viewer.event("detection").await.0["number"], sent);
    }

    pki::revoke(world.path(), &["other".to_owned()], Reason::KeyCompromise).unwrap();
    assert!(world.revocations.refresh().expect("a list"));
    let (code, reason) = revoked.closed().await;
    assert_eq!(code, 1008, "{reason}");
    assert!(reason.contains("was revoked"), "{reason}");
    exchange(sources(&["bob"], true));
    let (code, reason) = removed.closed().await;
    assert_eq!(code, 1008, "{reason}");
    assert!(reason.contains("no longer valid"), "{reason}");
    exchange(sources(&["bob"], false));
    let (code, reason) = refused.closed().await;
    assert_eq!(code, 1008, "{reason}");
    assert!(reason.contains("user bob may not subscribe"), "{reason}");
    let sent = detect().await;
    assert_eq!(kept.event("detection").await.0["number"], sent, "no other viewer is disturbed");
}
