use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use tidegate_wire::websocket::{Decoder, Flow, Masks, encode_text};

use super::*;

fn listener(rest: &str) -> String {
    format!("[ingest.x]\nkind = \"websocket\"\nlisten = \"127.0.0.1:0\"\n{rest}\n")
}

/// The answer to the opening of a WebSocket, and its connection.
fn open(world: &World, target: &str, headers: &str) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(world.address()).unwrap();
    socket.set_read_timeout(Some(LONGEST)).unwrap();
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\n{headers}\r\n"
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    (socket, String::from_utf8(head).unwrap())
}

const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

struct Peer {
    socket: TcpStream,
    decoder: Decoder,
    bytes: Vec<u8>,
}

impl Peer {
    fn new(world: &World, target: &str) -> Self {
        let (socket, head) = open(world, target, KEY);
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        // RFC 6455, section 1.3.
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        let decoder = Decoder::of_server(Masks::new([1; 32])).with_messages(1 << 20);
        Self { socket, decoder, bytes: Vec::new() }
    }

    fn send(&mut self, text: &str) {
        let mut frame = Vec::new();
        encode_text(text, Some([1, 2, 3, 4]), &mut frame);
        self.socket.write_all(&frame).unwrap();
    }

    /// The next message; none if the other end closes.
    fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.decoder.poll_message() {
                let bytes = self.bytes.drain(..end.bytes).collect();
                return Some(String::from_utf8(bytes).unwrap());
            }
            let mut buffer = [0; 1024];
            let count = self.socket.read(&mut buffer).unwrap();
            let flow = self.decoder.decode(&buffer[..count], &mut self.bytes, &mut Vec::new());
            if count == 0 || (flow.unwrap() != Flow::Open && self.bytes.is_empty()) {
                return None;
            }
        }
    }
}

#[test]
fn objects_become_messages_and_are_answered_in_order() {
    let world = World::new(&listener(""));
    let mut all = world.subscriber("#");
    let mut peer = Peer::new(&world, "/ingest");
    for (text, answer) in [
        (r#"{"topic":"a","payload":"21.50","id":1}"#, r#"{"id":1}"#),
        (r#"{"topic":"b","payload":{"v":1},"retain":true,"id":"x"}"#, r#"{"id":"x"}"#),
        (r#"{"topic":"c","payload":null}"#, "{}"),
        // As it is written, and so is what the answer names it by.
        (r#"{"topic":"d","payload":327267367867168100000,"id":1.10}"#, r#"{"id":1.10}"#),
        (r#"{ "payload" : {"v": 1.10 , "payload":1} ,"topic":"d","id":null}"#, "{}"),
        (r#"{"topic":"d","p\u0061yload":[1e2, "ä"],"id":{"a": 1}}"#, r#"{"id":{"a": 1}}"#),
        (r#"{"topic":"d","payload":"1.10\u00e4"}"#, "{}"),
        ("\u{feff}{\"topic\":\"d\",\"payload\":-0.0}", "{}"),
    ] {
        peer.send(text);
        assert_eq!(peer.next().as_deref(), Some(answer), "{text}");
    }
    assert_eq!(next(&mut all), pair("a", "21.50"));
    assert_eq!(next(&mut all), pair("b", r#"{"v":1}"#));
    assert_eq!(next(&mut all), pair("c", "null"));
    for payload in
        ["327267367867168100000", r#"{"v": 1.10 , "payload":1}"#, r#"[1e2, "ä"]"#, "1.10ä", "-0.0"]
    {
        assert_eq!(next(&mut all), pair("d", payload));
    }
    // Many at once.
    for number in 0..1000 {
        peer.send(&format!(r#"{{"topic":"a","payload":"{number}","id":{number}}}"#));
    }
    for number in 0..1000 {
        assert_eq!(peer.next(), Some(format!(r#"{{"id":{number}}}"#)));
        assert_eq!(next(&mut all), pair("a", &number.to_string()));
    }
    assert_eq!(world.report().published, 1008);
}

#[test]
fn a_connection_may_have_one_topic() {
    let world = World::new(&listener(""));
    let mut all = world.subscriber("#");
    let mut peer = Peer::new(&world, "/ingest?topic=plant%2F7");
    peer.send("anything");
    assert_eq!(peer.next().as_deref(), Some("{}"));
    assert_eq!(next(&mut all), pair("plant/7", "anything"));
}

#[test]
fn refused_requests_are_answered_with_their_code() {
    let world = World::new(&listener("message_bytes_max = \"5B\""));
    let mut peer = Peer::new(&world, "/ingest");
    for (text, part) in [
        ("text", "ingest.message.invalid"),
        (r#"{"topic":"a"}"#, "missing field `payload`"),
        (r#"{"topic":"a","payload":1,"qos":2}"#, "unknown field `qos`"),
        (r#"{"topic":"a/+","payload":1,"id":7}"#, r#""id":7"#),
        (r#"{"topic":"a","payload":"123456"}"#, "ingest.message.too_large"),
        (r#"{"topic":"$SYS/a","payload":"1"}"#, "auth.action.denied"),
    ] {
        peer.send(text);
        let answer = peer.next().unwrap();
        assert!(answer.contains(part) && answer.contains("\"code\""), "{text}: {answer}");
    }
    let report = world.report();
    assert_eq!((report.invalid, report.too_large, report.denied, report.published), (4, 1, 1, 0));
    peer.send(&"x".repeat(100_000));
    assert_eq!(peer.next(), None, "a frame longer than any message ends the connection");
    assert_eq!(world.report_when(|report| report.too_large == 2).received, 6);
}

#[test]
fn openings_that_are_none_are_refused() {
    let world = World::new(&listener(""));
    for (target, headers, status) in [
        ("/ingest", "", "400"),
        ("/ingest", "Sec-WebSocket-Key: short\r\n", "400"),
        ("/ingest?topic=a/%23", KEY, "400"),
        ("/ingest?topic=$SYS/a", KEY, "403"),
        ("/other", KEY, "404"),
    ] {
        let (_, head) = open(&world, target, headers);
        assert_eq!(&head[9..12], status, "{target}: {head}");
    }
    // Compression that is offered is not taken.
    let offer = format!("{KEY}Sec-WebSocket-Extensions: permessage-deflate\r\n");
    let (_, head) = open(&world, "/ingest", &offer);
    assert!(head.starts_with("HTTP/1.1 101") && !head.contains("deflate"), "{head}");
    let users = format!("ada:{}\n", tidegate_identity::auth::password::hash(b"pool").unwrap());
    let world = World::with_files(
        &format!("[mqtt]\npassword_file = \"$PLACE/passwords\"\n{}", listener("")),
        &[("passwords", &users)],
    );
    assert_eq!(&open(&world, "/ingest", KEY).1[9..12], "401");
    let shown = format!("{KEY}Authorization: Basic YWRhOnBvb2w=\r\n");
    assert_eq!(&open(&world, "/ingest", &shown).1[9..12], "101");
}

#[test]
fn a_stop_closes_what_is_open() {
    let world = World::new(&listener(""));
    let mut peer = Peer::new(&world, "/ingest");
    peer.send(r#"{"topic":"a","payload":"1"}"#);
    assert_eq!(peer.next().as_deref(), Some("{}"));
    drop(world);
    assert_eq!(peer.next(), None);
}
