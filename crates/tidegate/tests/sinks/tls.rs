//! Sinks that speak TLS and log in, at a database and a broker that look at both.

use std::{
    error::Error,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::PrivateKeyDer;
use tidegate::run::{Node, users};
use tidegate_broker::BrokerConfig;
use tidegate_config::Config;
use tidegate_identity::access::Access;
use tidegate_message::{AllowAll, Identity, IdentityKind, Instant, Proof, Refusal};
use tidegate_process::health::Health;
use tidegate_server::{
    Server,
    settings::{Authenticate, ListenerSettings, Protocol, Scram, ServerSettings},
};
use tidegate_sinks::{
    Batch, DestinationSettings, Record, Sink, SinkSettings,
    influx::{Encoding, InfluxSettings},
    mqtt::MqttSettings,
};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::world::{
    client, client_at, publish, ready, ready_at, receive, server, server_settings, settings, start,
    subscriber, until,
};

/// Messages of each test.
const COUNT: u32 = 300;

/// A certificate of this machine that is its own authority: to show, to trust alone, and as text.
struct Shown {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    pem: String,
}

impl Shown {
    fn new() -> Self {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = key.cert.der().clone();
        let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], private)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { server: Arc::new(server), client: Arc::new(client), pem: key.cert.pem() }
    }
}

/// The requests that a database got.
#[derive(Debug, Default)]
struct Told {
    /// The values of the lines that it took, in order.
    values: Vec<f64>,
    /// Requests that it refused for what they showed.
    refused: usize,
}

/// A database over TLS that takes lines from who shows just that.
fn database(shown: &Shown, authorization: &'static str) -> (u16, Arc<Mutex<Told>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (told, tls) = (Arc::<Mutex<Told>>::default(), shown.server.clone());
    let telling = told.clone();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(socket) = socket else { return };
            let session = ServerConnection::new(tls.clone()).unwrap();
            let telling = telling.clone();
            thread::spawn(move || {
                answer(StreamOwned::new(session, socket), authorization, &telling);
            });
        }
    });
    (port, told)
}

/// Answers requests until the connection ends, or does not begin: a client that does not like the certificate leaves.
fn answer(
    mut stream: StreamOwned<ServerConnection, TcpStream>,
    authorization: &str,
    told: &Mutex<Told>,
) {
    let (mut input, mut read) = (Vec::new(), [0; 4096]);
    loop {
        let Some((head, body)) = request(&mut input) else {
            match stream.read(&mut read) {
                Ok(count @ 1..) => input.extend_from_slice(&read[..count]),
                _ => return,
            }
            continue;
        };
        assert!(head.starts_with("POST /write?db=x HTTP/1.1\r\n"), "{head}");
        let is_right = header(&head, "authorization") == Some(authorization);
        let text = if is_right {
            "HTTP/1.1 204 No Content\r\n\r\n"
        } else {
            "HTTP/1.1 401 Unauthorized\r\nContent-Length: 11\r\n\r\nno such key"
        };
        {
            let mut told = told.lock().unwrap();
            if is_right {
                told.values.extend(body.lines().map(value));
            } else {
                told.refused += 1;
            }
        }
        if stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

/// Takes the head and the body of a request, once all of it has come.
fn request(input: &mut Vec<u8>) -> Option<(String, String)> {
    let head_bytes = input.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(input[..head_bytes].to_vec()).unwrap();
    let body_bytes: usize = header(&head, "content-length")?.parse().unwrap();
    if input.len() < head_bytes + body_bytes {
        return None;
    }
    let body: Vec<u8> = input.drain(..head_bytes + body_bytes).skip(head_bytes).collect();
    Some((head, String::from_utf8(body).unwrap()))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Of a line as `m,topic=a value=7.0 TIME`.
fn value(line: &str) -> f64 {
    let (_, rest) = line.split_once(" value=").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn influx(port: u16, shown: &Shown, authorization: &str) -> SinkSettings {
    let destination = InfluxSettings {
        url: format!("https://localhost:{port}/write?db=x").parse().unwrap(),
        authorization: Some(authorization.into()),
        encoding: Encoding::Values { measurement: "m".to_owned() },
        tls: shown.client.clone(),
        node: "here".to_owned(),
        places: None,
    };
    SinkSettings { destination: DestinationSettings::Influx(destination), ..settings("a/#") }
}

/// An authenticator for one user, who shows that password.
#[derive(Debug, Default)]
struct OneUser {
    /// Others who came, or the same with another password.
    refused: AtomicUsize,
}

impl OneUser {
    fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Authenticate for OneUser {
    fn authenticate(&self, proof: &Proof) -> Result<Identity, Refusal> {
        let username = proof.username.as_deref();
        if username == Some("ada") && proof.password.as_deref() == Some(&b"word"[..]) {
            return Ok(Identity::new(IdentityKind::User, "ada", &proof.client));
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(Refusal::BadCredentials)
    }

    fn is_slow(&self, _: &Proof) -> bool {
        false
    }

    fn scram(self: Arc<Self>, _: Proof, _: &[u8]) -> Result<Scram, Refusal> {
        Err(Refusal::BadCredentials)
    }
}

/// A broker with a listener for those who read, who are not asked who they are, and one with TLS for that user, whose port it is.
fn broker(shown: &Shown) -> (Server, u16, Arc<OneUser>) {
    let authenticator = Arc::<OneUser>::default();
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let mut settings = server_settings(listen, BrokerConfig::default(), Arc::new(AllowAll));
    settings.listeners[0].identity = Some(Identity::new(IdentityKind::User, "reader", ""));
    settings.listeners.push(ListenerSettings {
        protocol: Protocol::Tls,
        tls: Some(shown.server.clone()),
        ..ListenerSettings::new("secure", listen)
    });
    let server = start(ServerSettings { authenticator: authenticator.clone(), ..settings });
    let port = server.addresses()[1].1.port();
    (server, port, authenticator)
}

fn mqtt(port: u16, shown: &Shown, password: &str) -> SinkSettings {
    let destination = MqttSettings {
        host: "localhost".to_owned(),
        port,
        tls: Some(shown.client.clone()),
        client_id: "here.sink.test".to_owned(),
        username: Some("ada".to_owned()),
        password: Some(password.into()),
        node: "here".to_owned(),
    };
    SinkSettings { destination: DestinationSettings::Mqtt(destination), ..settings("a/#") }
}

/// Why the destination of a sink takes nothing, with all causes, as the log has it.
fn why(settings: &SinkSettings) -> String {
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let batch = Batch::from_iter([Record::new("a/x", "0", Instant::from_nanos(1))]);
    let mut destination = settings.destination.open().unwrap();
    let trouble = reactor.block_on(destination.deliver(&batch)).unwrap_err();
    let mut text = trouble.to_string();
    let mut next = trouble.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn publish_all(port: u16) {
    let mut publisher = client_at(port, "publisher");
    for number in 0..COUNT {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
}

#[test]
fn a_database_is_sent_lines_only_if_its_certificate_is_right_and_takes_them_only_from_who_is() {
    let (shown, other) = (Shown::new(), Shown::new());
    let (port, told) = database(&shown, "Token secret");
    let server = server(BrokerConfig::default());
    let stranger = influx(port, &other, "Token secret");
    let sink = Sink::start(stranger.clone(), server.connector().into()).unwrap();
    ready(&server, "test");
    publish_all(crate::world::port(&server));
    until("it was tried and tried again", || sink.report().failures >= 2);
    assert_eq!(sink.stop().messages, 0);
    let said = why(&stranger);
    assert!(said.contains("invalid peer certificate"), "{said}");
    {
        let told = told.lock().unwrap();
        assert_eq!((told.values.len(), told.refused), (0, 0), "nothing was said to a stranger");
    }

    // The session has kept all of it, and keeps it still.
    let unknown = influx(port, &shown, "Token guessed");
    let sink = Sink::start(unknown.clone(), server.connector().into()).unwrap();
    until("it was refused again and again", || sink.report().failures >= 2);
    assert_eq!(sink.stop().messages, 0);
    let said = why(&unknown);
    assert!(said.contains("401") && said.contains("no such key"), "{said}");
    assert!(told.lock().unwrap().refused >= 3);

    let known = influx(port, &shown, "Token secret");
    let sink = Sink::start(known, server.connector().into()).unwrap();
    until("all was taken", || sink.report().messages == u64::from(COUNT));
    let expected: Vec<f64> = (0..COUNT).map(f64::from).collect();
    assert_eq!(told.lock().unwrap().values, expected, "in order and once");
    assert_eq!(sink.stop().failures, 0);
}

#[test]
fn a_broker_is_sent_messages_only_if_its_certificate_is_right_and_takes_them_only_from_its_user() {
    let (shown, other) = (Shown::new(), Shown::new());
    let (there, port, authenticator) = broker(&shown);
    let mut far = subscriber(&there, "a/#");
    let here = server(BrokerConfig::default());
    let stranger = mqtt(port, &other, "word");
    let sink = Sink::start(stranger.clone(), here.connector().into()).unwrap();
    ready(&here, "test");
    publish_all(crate::world::port(&here));
    until("it was tried and tried again", || sink.report().failures >= 2);
    assert_eq!(sink.stop().messages, 0);
    let said = why(&stranger);
    assert!(said.contains("invalid peer certificate"), "{said}");
    assert_eq!(authenticator.refused(), 0, "no password was shown to a stranger");

    // The session has kept all of it, and keeps it still.
    let unknown = mqtt(port, &shown, "guess");
    let sink = Sink::start(unknown.clone(), here.connector().into()).unwrap();
    until("it was refused again and again", || sink.report().failures >= 2);
    assert_eq!(sink.stop().messages, 0);
    let said = why(&unknown);
    assert!(said.contains("Bad User Name or Password"), "{said}");
    assert!(authenticator.refused() >= 3);

    let known = mqtt(port, &shown, "word");
    let sink = Sink::start(known, here.connector().into()).unwrap();
    until("all was taken", || sink.report().messages == u64::from(COUNT));
    assert_eq!(sink.stop().failures, 0);
    publish(&mut client(&there, "another"), "a/end", b"end");
    for number in 0..COUNT {
        assert_eq!(receive(&mut far).payload, number.to_string().as_bytes(), "in order and once");
    }
    assert_eq!(receive(&mut far).payload, b"end", "nothing came but that");
}

/// A node with that sink, whose password is wrong until its destination has refused it; then its file is mended, and the node reads its
/// configuration again.
fn mended(folder: &Path, shown: &Shown, sink: &str, is_refused: impl FnMut() -> bool) -> Running {
    let (running, config) = started(folder, &shown.pem, "wrong\n", sink);
    until("it was refused", is_refused);
    fs::write(folder.join("word"), "word\n").unwrap();
    assert_eq!(running.node.reload(config).unwrap().of("sink"), ["test"]);
    running
}

/// A node that serves MQTT alone.
struct Running {
    node: Node,
    _reactor: Runtime,
}

/// A node with that sink and these files, to which messages were published; and its configuration.
fn started(folder: &Path, pem: &str, word: &str, sink: &str) -> (Running, Config) {
    let [ca, password] = ["ca.pem", "word"].map(|name| folder.join(name));
    fs::write(&ca, pem).unwrap();
    fs::write(&password, word).unwrap();
    let text = format!(
        "[node]\ndata_dir = {folder:?}\n[mqtt]\ndurability = \"memory\"\nshards = 2\n\
         [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n[sink.test]\ntopics = \"a/#\"\nca = {ca:?}\n\
         password_file = {password:?}\nbatch_age = \"20ms\"\nbackoff_max = \"50ms\"\n{sink}\n"
    );
    let config = Config::parse(Path::new("site.toml"), &text).unwrap();
    let authenticator = Arc::new(users::open(&config).unwrap());
    let access = Access { authenticator, ..Access::default() };
    let reactor = Runtime::new().unwrap();
    let stop = CancellationToken::new();
    let node = Node::start(&config, access, None, Health::default(), stop);
    let node = reactor.block_on(node).unwrap();
    let port = node.server().unwrap().addresses()[0].1.port();
    ready_at(port, "test");
    publish_all(port);
    (Running { node, _reactor: reactor }, config)
}

#[test]
fn authorities_that_are_read_anew_from_the_same_file_are_trusted() {
    let shown = Shown::new();
    let (port, told) = database(&shown, "Token word");
    let folder = tempfile::tempdir().unwrap();
    let sink = format!("kind = \"influx\"\nurl = \"https://localhost:{port}/write?db=x\"\n");
    let (running, config) = started(folder.path(), &Shown::new().pem, "word\n", &sink);
    assert_eq!(
        running.node.reload(config.clone()).unwrap().of("sink"),
        [""; 0],
        "nothing has changed"
    );
    fs::write(folder.path().join("ca.pem"), &shown.pem).unwrap();
    assert_eq!(running.node.reload(config).unwrap().of("sink"), ["test"]);
    let expected: Vec<f64> = (0..COUNT).map(f64::from).collect();
    until("all was taken", || told.lock().unwrap().values.len() >= expected.len());
    assert_eq!(told.lock().unwrap().values, expected);
}

#[test]
fn a_password_file_that_is_mended_and_read_anew_lets_through_what_waited() {
    let shown = Shown::new();
    let expected: Vec<f64> = (0..COUNT).map(f64::from).collect();
    for (username, authorization) in
        [("", "Token word"), ("username = \"ada\"", "Basic YWRhOndvcmQ=")]
    {
        let (port, told) = database(&shown, authorization);
        let folder = tempfile::tempdir().unwrap();
        let sink = format!(
            "kind = \"influx\"\nurl = \"https://localhost:{port}/write?db=x\"\n{username}\n"
        );
        let refused = || told.lock().unwrap().refused >= 2;
        let _service = mended(folder.path(), &shown, &sink, refused);
        until("all was taken", || told.lock().unwrap().values.len() >= expected.len());
        assert_eq!(told.lock().unwrap().values, expected, "{authorization}");
    }
    let (there, port, authenticator) = broker(&shown);
    let mut far = subscriber(&there, "a/#");
    let folder = tempfile::tempdir().unwrap();
    let sink = format!("kind = \"mqtt\"\nurl = \"mqtts://localhost:{port}\"\nusername = \"ada\"\n");
    let _service = mended(folder.path(), &shown, &sink, || authenticator.refused() >= 2);
    for number in 0..COUNT {
        assert_eq!(receive(&mut far).payload, number.to_string().as_bytes());
    }
}
