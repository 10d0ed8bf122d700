//! What a listener takes before MQTT is spoken.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use crate::program::{LONGEST, Program};

#[test]
fn websockets_are_at_the_paths_that_a_listener_names() {
    let listener = |name: &str, paths: &str| {
        format!(
            "[mqtt.listener.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"websocket\"\n{paths}\n"
        )
    };
    let program = Program::start(
        &[
            listener("usual", ""),
            listener("named", "paths = \"/ws/mqtt, /other\""),
            listener("any", "paths = \"*\""),
        ]
        .concat(),
    );
    for (name, target, expected) in [
        ("usual", "/mqtt", "101"),
        ("usual", "/", "101"),
        ("usual", "/?x=1", "101"),
        ("usual", "/ws/mqtt", "404"),
        ("named", "/ws/mqtt", "101"),
        ("named", "/other?x=1", "101"),
        ("named", "/mqtt", "404"),
        ("named", "/", "404"),
        ("any", "/", "101"),
        ("any", "/what/ever", "101"),
    ] {
        let mut stream = TcpStream::connect(program.address(name)).expect("a stream");
        stream.set_read_timeout(Some(LONGEST)).expect("a stream");
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: node\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("it takes it");
        stream.shutdown(Shutdown::Write).expect("a stream");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert_eq!(answer.split(' ').nth(1), Some(expected), "{name} {target}: {answer}");
    }
    program.stop();
}
