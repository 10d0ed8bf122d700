//! `tidegate sub` and `pub`, as those who know mosquitto_sub and mosquitto_pub use them.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    thread,
};

/// Takes a client of MQTT 3.1.1 and its one subscription, which it grants with that reason.
fn take(listener: &TcpListener, granted: u8) -> TcpStream {
    let (mut stream, _) = listener.accept().expect("a client");
    let mut packet = || {
        let mut head = [0; 2];
        stream.read_exact(&mut head).expect("a packet");
        let mut body = vec![0; head[1].into()];
        stream.read_exact(&mut body).expect("a packet");
        (head[0], body)
    };
    assert_eq!(packet().0, 0x10, "CONNECT");
    stream.write_all(&[0x20, 2, 0, 0]).expect("CONNACK");
    let mut packet = || {
        let mut head = [0; 2];
        stream.read_exact(&mut head).expect("a packet");
        let mut body = vec![0; head[1].into()];
        stream.read_exact(&mut body).expect("a packet");
        (head[0], body)
    };
    let (first, body) = packet();
    assert_eq!(first, 0x82, "SUBSCRIBE");
    stream.write_all(&[0x90, 3, body[0], body[1], granted]).expect("SUBACK");
    stream
}

fn subscribe(port: u16, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["sub", "-h", "127.0.0.1", "-p", &port.to_string(), "-V", "3.1.1", "-t", "a"]);
    command.args(flags);
    command
}

#[test]
fn a_subscriber_connects_again_where_that_may_help() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    let broker = thread::spawn(move || {
        let message = |text: u8| [0x30, 4, 0, 1, b'a', text];
        take(&listener, 0).write_all(&message(b'1')).expect("it takes it");
        // One that breaks on the way in does not count.
        drop(listener.accept().expect("a client"));
        let mut stream = take(&listener, 0);
        stream.write_all(&message(b'2')).expect("it takes it");
        let _ = stream.read(&mut [0; 16]);
    });
    let done = subscribe(port, &["-v", "-C", "2"]).output().expect("the program");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "a 1\na 2\n", "{said}");
    assert!(said.contains("connecting again") && said.contains("connected again"), "{said}");
    broker.join().expect("the broker");
}

#[test]
fn a_subscriber_that_is_refused_does_not_come_again() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    let broker = thread::spawn(move || drop(take(&listener, 0x80)));
    let done = subscribe(port, &["-o", "json"]).output().expect("the program");
    assert!(!done.status.success());
    broker.join().expect("the broker");
    // Nor is the first connection tried over and over.
    let done = subscribe(port, &[]).output().expect("the program");
    assert_eq!(done.status.code(), Some(4), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn help_is_a_long_flag_where_the_short_one_is_the_host() {
    for command in ["pub", "sub", "replay"] {
        let help = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args([command, "--help"])
            .output()
            .expect("the program");
        let text = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.status.success() && text.contains("-h, --host"), "{text}");
    }
}
