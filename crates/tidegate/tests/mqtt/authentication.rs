//! SCRAM-SHA-256 by AUTH: before a connection is open, and again on one that is. The user that a site begins with.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    sync::Arc,
};

use tidegate::auth::scram::ScramClient;
use tidegate_load::client::{Client, ClientError, Options};
use tidegate_wire::mqtt::{
    Auth, Connect, ConnectProperties, FixedHeader, Packet, ReasonCode, Version,
};

use crate::{
    clients::passwd,
    doors::shows,
    program::{LONGEST, Program, options_of},
};

const METHOD: &str = "SCRAM-SHA-256";

/// A client on a bare socket.
struct Prover {
    stream: TcpStream,
}

impl Prover {
    fn send(&mut self, packet: Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    fn auth(&mut self, reason: ReasonCode, data: Vec<u8>) {
        let method = Some(METHOD.to_owned());
        self.send(Packet::Auth(Auth { reason, method, data: Some(data), ..Auth::default() }));
    }

    /// The next packet, as bytes.
    fn receive(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            if let Some(header) = FixedHeader::decode(&bytes, 1 << 16).unwrap()
                && bytes.len() == header.packet_bytes()
            {
                return bytes;
            }
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
    }

    /// Connects as `user`, by a first message and an answer to the challenge.
    fn connect(address: SocketAddr, user: &str, password: &str) -> (Self, ReasonCode) {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        let mut prover = Self { stream };
        let (mut scram, first) = ScramClient::begin(user, password.as_bytes(), [7; 18]);
        let properties = ConnectProperties {
            authentication_method: Some(METHOD.to_owned()),
            authentication_data: Some(first),
            ..ConnectProperties::default()
        };
        prover.send(Packet::Connect(Box::new(Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive: 0,
            client_id: "prover".to_owned(),
            will: None,
            username: None,
            password: None,
            properties,
        })));
        let challenge = prover.challenge();
        prover.auth(ReasonCode::CONTINUE_AUTHENTICATION, scram.answer(&challenge).unwrap());
        let bytes = prover.receive();
        let reason = match decode(&bytes) {
            Packet::Connack(connack) => {
                let properties = &connack.properties;
                if connack.reason == ReasonCode::SUCCESS {
                    assert_eq!(properties.authentication_method.as_deref(), Some(METHOD));
                    let data = properties.authentication_data.as_deref().unwrap();
                    assert_eq!(scram.verify(data), Ok(()), "the server knows the password as well");
                }
                connack.reason
            }
            other => panic!("{other:?}"),
        };
        (prover, reason)
    }

    fn challenge(&mut self) -> Vec<u8> {
        let bytes = self.receive();
        match decode(&bytes) {
            Packet::Auth(auth) => {
                assert_eq!(auth.reason, ReasonCode::CONTINUE_AUTHENTICATION);
                auth.data.unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Proves again who it is; other packets pass meanwhile.
    fn reauthenticate(&mut self, user: &str, password: &str) -> Result<(), ReasonCode> {
        let (mut scram, first) = ScramClient::begin(user, password.as_bytes(), [9; 18]);
        self.auth(ReasonCode::REAUTHENTICATE, first);
        let challenge = self.challenge();
        self.send(Packet::Pingreq);
        assert!(matches!(decode(&self.receive()), Packet::Pingresp));
        self.auth(ReasonCode::CONTINUE_AUTHENTICATION, scram.answer(&challenge).unwrap());
        let bytes = self.receive();
        match decode(&bytes) {
            Packet::Auth(auth) => {
                assert_eq!(auth.reason, ReasonCode::SUCCESS);
                assert_eq!(scram.verify(&auth.data.unwrap()), Ok(()));
                Ok(())
            }
            Packet::Disconnect(packet) => Err(packet.reason),
            other => panic!("{other:?}"),
        }
    }
}

fn decode(bytes: &[u8]) -> Packet<'_> {
    let header = FixedHeader::decode(bytes, 1 << 16).unwrap().unwrap();
    Packet::decode(Version::V5, header.first, &bytes[header.header_bytes..]).unwrap()
}

#[test]
fn users_prove_who_they_are_when_they_come_and_again() {
    let folder = tempfile::tempdir().unwrap();
    tidegate::pki::init(&folder.path().join("data/pki"), &Default::default()).unwrap();
    let users = folder.path().join("users");
    passwd(&users, &["--scram", "ada"], "first\n");
    passwd(&users, &["--scram", "bob"], "second\n");
    let text = format!(
        "[mqtt]\npassword_file = {users:?}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
    );
    let program = Program::start_in(folder, &text);
    let address = program.address("main");
    for (user, password) in [("ada", "second"), ("eve", "first")] {
        let (_, reason) = Prover::connect(address, user, password);
        assert_eq!(reason, ReasonCode::BAD_USER_NAME_OR_PASSWORD, "{user}");
    }
    let connect = || {
        let (prover, reason) = Prover::connect(address, "ada", "first");
        assert_eq!(reason, ReasonCode::SUCCESS);
        prover
    };
    let mut ada = connect();
    assert_eq!(ada.reauthenticate("ada", "first"), Ok(()));
    assert_eq!(ada.reauthenticate("ada", "first"), Ok(()));
    assert_eq!(ada.reauthenticate("bob", "second"), Err(ReasonCode::NOT_AUTHORIZED));
    let mut ada = connect();
    assert_eq!(ada.reauthenticate("ada", "wrong"), Err(ReasonCode::NOT_AUTHORIZED));
    program.stop();
}

#[test]
fn a_site_begins_with_an_administrator_whose_password_is_shown_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let tidegate = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .current_dir(folder.path())
            .arg("--set")
            .arg(format!("node.data_dir={}", data.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (made, said, logged) = tidegate(&["init"]);
    assert!(made, "{logged}");
    let line = said.lines().find(|line| line.starts_with("  ")).expect("a password");
    let password = line.trim().to_owned();
    assert!(!logged.contains(&password), "{logged}");
    let users = std::fs::read_to_string(data.join("users")).unwrap();
    assert!(users.starts_with("admin:$argon2id$") && !users.contains(&password), "{users}");

    // Neither a second init nor one without the certificates makes another.
    let (made, _, said) = tidegate(&["init"]);
    assert!(!made && said.contains("tidegate passwd"), "{said}");
    std::fs::rename(data.join("pki"), data.join("kept")).unwrap();
    let (made, _, said) = tidegate(&["init"]);
    assert!(!made && said.contains("has the user admin already"), "{said}");
    assert!(!data.join("pki").exists(), "nothing is made then");
    std::fs::rename(data.join("kept"), data.join("pki")).unwrap();
    assert_eq!(std::fs::read_to_string(data.join("users")).unwrap(), users);
    let (may, _, _) = tidegate(&["acl", "check", "admin", "admin", "node"]);
    assert!(may, "from anywhere");

    let program = Program::start_in(
        folder,
        "[mqtt.listener.inside]\nlisten = \"127.0.0.1:0\"\n\
         [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\nallow_anonymous = false\n",
    );
    let pki = program.path("data/pki");
    let connect = |password: Option<&str>| {
        Client::connect(Options {
            host: "localhost".to_owned(),
            tls: Some(Arc::new(shows(&pki, None))),
            username: password.map(|_| "admin".to_owned()),
            password: password.map(|password| password.as_bytes().to_vec()),
            ..options_of(program.address("main"))
        })
    };
    let mut admin = connect(Some(&password)).expect("the password that was shown");
    assert!(connect(None).is_err());
    assert!(connect(Some("wrong")).is_err());
    Client::connect(options_of(program.address("inside"))).expect("loopback is as open as before");

    passwd(&program.path("data/users"), &["admin"], "another\n");
    program.reload(
        "[mqtt.listener.inside]\nlisten = \"127.0.0.1:0\"\n\
         [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\nallow_anonymous = false\n",
    );
    match admin.receive(LONGEST) {
        Err(ClientError::Disconnected { reason, .. }) => {
            assert_eq!(reason, ReasonCode::ADMINISTRATIVE_ACTION);
        }
        other => panic!("{other:?}"),
    }
    assert!(connect(Some(&password)).is_err());
    connect(Some("another")).expect("the password that was set");
    program.stop();
}
