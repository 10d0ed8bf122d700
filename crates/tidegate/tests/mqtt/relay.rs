//! Cameras of one node at the HTTP of another one: real processes, a viewer that speaks HTTP/1.1 and WebSocket without TLS.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use serde_json::Value;

use super::{
    fabric::{MQTT, Site, linked},
    poll::poll,
    program::LONGEST,
    uplink::free_address,
};

const CAMERA: &str = "[camera.gate]\nsource = \"scene:street?size=320x240&fps=10&people=1&seed=1&seconds=3&loop=1\"\n";

/// A connection over which a viewer asks.
struct Viewer(BufReader<TcpStream>);

impl Viewer {
    fn connect(at: SocketAddr) -> Self {
        let socket = TcpStream::connect(at).expect("the node listens");
        socket.set_read_timeout(Some(LONGEST)).expect("a socket");
        Self(BufReader::new(socket))
    }

    /// The head of the answer to a request, in lower case.
    fn ask(&mut self, path: &str, headers: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).expect("it is sent");
        let mut head = String::new();
        loop {
            match self.line() {
                line if line.is_empty() => return head,
                line => head.push_str(&(line + "\n")),
            }
        }
    }

    fn line(&mut self) -> String {
        // Between the heads of a film are the bytes of pictures.
        let mut line = Vec::new();
        assert!(self.0.read_until(b'\n', &mut line).expect("it comes") > 0, "the node closed");
        String::from_utf8_lossy(&line).trim_end().to_ascii_lowercase()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).expect("they come");
        bytes
    }

    /// The next message of a WebSocket; none of its signs of life.
    fn message(&mut self) -> (u8, Vec<u8>) {
        loop {
            let head = self.bytes(2);
            let length = match head[1] & 0x7f {
                126 => u16::from_be_bytes(self.bytes(2).try_into().expect("two")).into(),
                127 => u64::from_be_bytes(self.bytes(8).try_into().expect("eight")) as usize,
                length => length.into(),
            };
            let payload = self.bytes(length);
            match head[0] & 0x0f {
                9 | 10 => {}
                kind => return (kind, payload),
            }
        }
    }

    /// The next event of that type.
    fn event(&mut self, kind: &str) -> Value {
        loop {
            let (of, payload) = self.message();
            assert_ne!(of, 8, "the node closed: {}", String::from_utf8_lossy(&payload));
            if of != 1 {
                continue;
            }
            let event: Value = serde_json::from_slice(&payload).expect("JSON");
            if event["type"] == kind {
                return event;
            }
        }
    }
}

/// A picture or a list, and the head of its answer.
fn get(at: SocketAddr, path: &str, headers: &str) -> (String, Vec<u8>) {
    let mut viewer = Viewer::connect(at);
    let head = viewer.ask(path, headers);
    let length = header(&head, "content-length");
    let body = viewer.bytes(length.parse().expect("a number"));
    (head, body)
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let found = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name} in {head}"))
}

fn camera(at: SocketAddr, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let found = poll(LONGEST, || {
        let (_, list) = get(at, "/cameras", "");
        let list: Value = serde_json::from_slice(&list).expect("JSON");
        last = list["cameras"][0].clone();
        is(&last).then(|| last.clone())
    });
    found.unwrap_or_else(|| panic!("{last}"))
}

#[test]
fn camera_of_another_node_is_shown_and_comes_back_after_that_node_was_killed() {
    let mut site = Site::new(&["one", "two"]);
    let page = free_address();
    let web = format!("{MQTT}[web]\nplain = \"{page}\"\nplain_identity = \"user:wall\"\n");
    let one = site.start_with("one", &format!("{MQTT}{CAMERA}"));
    let two = site.start_with("two", &web);
    [&one, &two].into_iter().for_each(|node| linked(node, 1));
    let gate = camera(page, |gate| gate["online"] == true && gate["newest_at"].is_i64());
    assert_eq!((&gate["name"], &gate["node"]), (&"gate".into(), &"one".into()), "{gate}");
    let (head, picture) = get(page, "/cameras/gate/snapshot.jpg", "");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(picture.starts_with(&[0xff, 0xd8]), "a JPEG image");
    let at = header(&head, "tidegate-captured-at");
    let (_, same) = get(page, &format!("/cameras/gate/snapshot.jpg?at={at}"), "");
    assert_eq!(same, picture, "the original by its capture time");
    // A program that goes there itself is told where.
    let (head, why) = get(page, "/cameras/gate/snapshot.jpg", "Tidegate-Relay: 0\r\n");
    assert!(head.starts_with("http/1.1 421"), "{head}");
    assert!(String::from_utf8_lossy(&why).contains("frames.camera.elsewhere"));
    let mut film = Viewer::connect(page);
    let head = film.ask("/cameras/gate/mjpeg?latency_ms=5000", "");
    assert!(header(&head, "content-type").starts_with("multipart/x-mixed-replace"), "{head}");
    let mut times = Vec::new();
    while times.len() < 3 {
        times.extend(film.line().strip_prefix("tidegate-captured-at: ").map(str::to_owned));
    }
    times.dedup();
    assert_eq!(times.len(), 3, "each frame once");
    drop(film);

    let mut live = Viewer::connect(page);
    let head = live.ask(
        "/cameras/gate/frames?latency_ms=5000&verdicts=1",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    );
    assert!(head.starts_with("http/1.1 101"), "{head}");
    let first = live.event("frame");
    assert!(first["latency_ms"].as_f64().is_some_and(|latency| latency < 5000.0), "{first}");
    live.event("verdict");
    let folder = one.kill();
    let said = live.event("camera_offline");
    assert!(said["text"].as_str().is_some_and(|text| text.contains("node one")), "{said}");
    let gate = camera(page, |gate| gate["online"] == false);
    let why = gate["no_frames"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("node one") && why.contains("does not answer"), "{gate}");
    site.folders.insert("one".to_owned(), folder);
    let one = site.start_with("one", &format!("{MQTT}{CAMERA}"));
    live.event("camera_online");
    let again = live.event("frame");
    let at = |frame: &Value| frame["captured_at"].as_i64().expect("nanoseconds");
    assert!(at(&again) > at(&first), "a frame of after the restart: {again}");
    assert_eq!(camera(page, |gate| gate["online"] == true)["node"], "one");
    drop((one, two));
}
