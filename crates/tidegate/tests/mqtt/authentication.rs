//! SCRAM-SHA-256 by AUTH: before a connection is open, and again on one that is. The user that a site begins with.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tidegate_identity::auth::scram::ScramClient;
use tidegate_load::client::{Client, ClientError, Options};
use tidegate_wire::mqtt::{
    Auth, Connect, ConnectProperties, FixedHeader, Packet, QoS, ReasonCode, RetainHandling,
    SubscribeFilter, Version,
};

use crate::{
    admission::shows,
    clients::passwd,
    poll::poll,
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
    tidegate_identity::pki::init(&folder.path().join("data/pki"), &Default::default()).unwrap();
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

    // Neither a second init nor one without the certificates makes another user.
    let (made, said, _) = tidegate(&["init"]);
    assert!(made && said.contains("tidegate passwd") && !said.contains(&password), "{said}");
    std::fs::rename(data.join("pki"), data.join("kept")).unwrap();
    let (made, said, _) = tidegate(&["init"]);
    assert!(made && said.contains("user admin in") && said.contains("as it was"), "{said}");
    std::fs::remove_dir_all(data.join("pki")).unwrap();
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

/// A CONNECT of a user name with its password.
fn login(user: &str, password: &str) -> Vec<u8> {
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: true,
        keep_alive: 0,
        client_id: format!("client of {user}"),
        will: None,
        username: Some(user.to_owned()),
        password: Some(password.as_bytes().to_vec()),
        properties: ConnectProperties::default(),
    };
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(Version::V5, &mut bytes).unwrap();
    bytes
}

/// Counts of logins in `$SYS`, by name.
type Counts = std::collections::BTreeMap<String, u64>;

/// Those counts, once they are as `wanted` and no one waits.
fn logins(program: &Program, wanted: impl Fn(&Counts) -> bool) -> Counts {
    let (username, password) = (Some("ada".to_owned()), Some(b"tide".to_vec()));
    let options = Options { username, password, ..options_of(program.address("main")) };
    let mut client = Client::connect(options).unwrap();
    let filter = SubscribeFilter {
        filter: "$SYS/broker/logins/+".to_owned(),
        maximum_qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    client.subscribe(&[filter]).unwrap();
    let began = Instant::now();
    let mut counts = Counts::new();
    loop {
        assert!(began.elapsed() < LONGEST, "{counts:?}");
        let Some(message) = client.receive(LONGEST).unwrap() else { continue };
        let name = message.topic.rsplit('/').next().unwrap().to_owned();
        // All of one moment are published together, this one last; before that come those that are retained.
        let is_last = name == "busy" && !message.retain;
        counts.insert(name, String::from_utf8_lossy(&message.payload).parse().unwrap());
        if is_last && counts["waiting"] == 0 && wanted(&counts) {
            break;
        }
    }
    counts
}

/// A node whose users, `ada` first, all have the password `tide`.
fn node_of(users: impl IntoIterator<Item = String>) -> Program {
    let folder = tempfile::tempdir().unwrap();
    tidegate_identity::pki::init(&folder.path().join("data/pki"), &Default::default()).unwrap();
    let file = folder.path().join("users");
    passwd(&file, &["ada"], "tide\n");
    let text = std::fs::read_to_string(&file).unwrap();
    let line = text.lines().find(|line| line.starts_with("ada:")).unwrap();
    let mut lines = format!("{line}\n");
    for user in users {
        lines += &format!("{user}{}\n", line.strip_prefix("ada").unwrap());
    }
    std::fs::write(&file, lines).unwrap();
    let text = format!(
        "[mqtt]\npassword_file = {file:?}\nsys_interval = \"1s\"\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
    );
    Program::start_in(folder, &text)
}

/// Connects as `user`; none if there is no answer in so long.
fn try_login(address: SocketAddr, user: &str, patience: Duration) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(&login(user, "tide")).unwrap();
    let mut connack = [0; 4];
    match stream.read_exact(&mut connack) {
        Ok(()) => {
            assert_eq!((connack[0], connack[3]), (0x20, 0), "{user}: {connack:02x?}");
            Some(stream)
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{user}");
            None
        }
    }
}

#[test]
fn logins_that_hung_up_are_not_hashed_and_a_verified_one_is_hashed_once() {
    let program = node_of([]);
    let address = program.address("main");
    for number in 0..200 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&login(&format!("made up {number}"), "x")).unwrap();
    }
    for _ in 0..10 {
        try_login(address, "ada", LONGEST).expect("she is let in");
    }
    let counts = logins(&program, |counts| counts["checked"] + counts["gave_up"] > 200);
    assert!(counts["checked"] < 60, "most hung up before their turn: {counts:?}");
    assert!(counts["gave_up"] > 140, "{counts:?}");
    program.stop();
}

#[test]
fn a_fleet_that_gives_up_and_comes_again_is_in_after_one_hash_for_each_device() {
    const DEVICES: usize = 120;
    // Far less than it takes to check all of them.
    const PATIENCE: Duration = Duration::from_millis(700);
    let name = |number: usize| format!("device{number}");
    let program = node_of((0..DEVICES).map(name).chain(["newcomer".to_owned()]));
    let address = program.address("main");
    let admitted = Mutex::new(0);
    let come = || {
        let began = Instant::now();
        let device = |number: usize| loop {
            if let Some(stream) = try_login(address, &name(number), PATIENCE) {
                *admitted.lock().unwrap() += 1;
                break stream;
            }
            assert!(began.elapsed() < 2 * LONGEST, "{number} never gets in");
        };
        std::thread::scope(|scope| {
            let devices: Vec<_> =
                (0..DEVICES).map(|number| scope.spawn(move || device(number))).collect();
            // All wait by now, or nearly.
            let some = || Some(*admitted.lock().unwrap()).filter(|&count| count > 0);
            let before = poll(2 * LONGEST, some).expect("the first is let in");
            try_login(address, "newcomer", LONGEST).expect("it is let in");
            let after = *admitted.lock().unwrap();
            let streams: Vec<_> =
                devices.into_iter().map(|device| device.join().unwrap()).collect();
            (streams, after - before)
        })
    };
    let (streams, passed) = come();
    assert!(passed <= DEVICES / 4, "{passed} devices go before a newcomer");
    let counts = logins(&program, |counts| counts["checked"] >= DEVICES as u64 + 2);
    // A check that was under way when its device gave up is remembered, unless the device was back before it ended. How many are depends on
    // the machine; without memory they would be as many as tries.
    let most = 2 * DEVICES as u64;
    assert!(counts["checked"] <= most, "more hashes than devices: {counts:?}");
    // The network was away, and the node was not.
    drop(streams);
    let (streams, _) = come();
    // One more, whose count says that those before it are published.
    TcpStream::connect(address).unwrap().write_all(&login("nobody", "x")).unwrap();
    let sum = |counts: &Counts| counts["checked"] + counts["gave_up"];
    let again = logins(&program, |again| sum(again) > sum(&counts));
    assert_eq!(
        sum(&again),
        sum(&counts) + 1,
        "nothing is hashed again: {again:?} after {counts:?}"
    );
    drop(streams);
    program.stop();
}
