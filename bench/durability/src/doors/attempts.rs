//! The attempts, one sort after another, each at an even pace.
//!
//! An attempt is refused if the node said so or hung up; one that got an answer, or none within [`ANSWER_MAX`], is a miss.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant as Stopwatch},
};

use anyhow::{Context as _, bail, ensure};
use rustls::{ClientConnection, StreamOwned};
use tidegate_client::{
    ApiError, Client as ApiClient, Code, Credentials,
    proto::{ListCamerasRequest, RegisterRequest, frames_client::FramesClient},
};
use tidegate_load::client::{Client, ClientError, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::{
    healthy::SUBSCRIBER,
    site::{SERVER_NAME, Site, USERS, tls},
};

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The protocol of a node link.
const LINK_PROTOCOL: &[u8] = b"tidegate/1";
/// By when every client that only trickles is cut off; the longest time that a listener gives is ten seconds.
const TRICKLE_MAX: Duration = Duration::from_secs(60);
/// How often a trickler sends a byte.
const TRICKLE: Duration = Duration::from_secs(1);
/// A head that is longer than any listener takes.
const HEAD_BYTES: usize = 1 << 20;

/// The kind of attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    NoCertificate,
    Expired,
    Stranger,
    Revoked,
    WrongPassword,
    Takeover,
    Retained,
    Traversal,
    Oversized,
    Loris,
}

/// The results of the attempts of one sort.
#[derive(Debug, Default)]
pub(super) struct Tried {
    pub(super) attempts: u32,
    pub(super) refused: u32,
    /// The answer to the first that was not refused.
    pub(super) first_miss: Option<String>,
}

impl Tried {
    fn note(&mut self, attempt: anyhow::Result<()>) {
        self.attempts += 1;
        match attempt {
            Ok(()) => self.refused += 1,
            Err(miss) if self.first_miss.is_none() => self.first_miss = Some(format!("{miss:#}")),
            Err(_) => {}
        }
    }
}

impl Sort {
    pub(super) const ALL: [Self; 10] = [
        Self::NoCertificate,
        Self::Expired,
        Self::Stranger,
        Self::Revoked,
        Self::WrongPassword,
        Self::Takeover,
        Self::Retained,
        Self::Traversal,
        Self::Oversized,
        Self::Loris,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NoCertificate => "no certificate (MQTT, API, link)",
            Self::Expired => "expired certificate (MQTT, API, link)",
            Self::Stranger => "another authority's certificate (MQTT, API, link)",
            Self::Revoked => "revoked certificate (MQTT, API, link)",
            Self::WrongPassword => "wrong password (MQTT, API)",
            Self::Takeover => "another user's session",
            Self::Retained => "another user's retained topic",
            Self::Traversal => "paths that lead elsewhere (HTTP, cameras, topics)",
            Self::Oversized => "oversized heads (MQTT, HTTP, WebSocket, gRPC)",
            Self::Loris => "slow loris (MQTT, TLS, WebSocket, HTTP, API)",
        }
    }

    /// How many, and how many a second.
    fn pace(self, quick: bool) -> (u32, u32) {
        match (self, quick) {
            (Self::WrongPassword, _) => (1_000, 100),
            (Self::Loris, _) => (1_000, 0),
            (_, false) => (300, 60),
            (_, true) => (60, 30),
        }
    }

    /// Tries it.
    pub(super) fn attempt(self, attacker: &Attacker<'_>, quick: bool) -> Tried {
        let (count, per_second) = self.pace(quick);
        if self == Self::Loris {
            return attacker.trickle(count);
        }
        let mut tried = Tried::default();
        let begun = Stopwatch::now();
        for number in 0..count {
            let due = Duration::from_secs(1) * number / per_second;
            thread::sleep(due.saturating_sub(begun.elapsed()));
            tried.note(attacker.once(self, number));
        }
        tried
    }
}

/// The attacker.
pub(super) struct Attacker<'a> {
    site: &'a Site,
    runtime: tokio::runtime::Runtime,
}

impl<'a> Attacker<'a> {
    pub(super) fn new(site: &'a Site) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { site, runtime })
    }

    /// The same attempts by those who may.
    pub(super) fn check_that_the_right_ones_come_in(&self) -> anyhow::Result<()> {
        let own = self.site.pki(true);
        let (user, password) = USERS[2];
        Client::connect(self.site.by_password(user, password, "right")).context("a password")?;
        Client::connect(self.site.by_certificate("application")?).context("MQTT by certificate")?;
        self.call(Some((&own, "application"))).context("the API by certificate")?;
        match self.link(Some((&own, "camera"))) {
            Err(_) => Ok(()),
            Ok(()) => bail!("the link refuses a camera of the site"),
        }
    }

    fn once(&self, sort: Sort, number: u32) -> anyhow::Result<()> {
        let (own, elsewhere) = (self.site.pki(true), self.site.pki(false));
        match sort {
            Sort::NoCertificate => self.by_certificate(number, None, None),
            Sort::Expired => self.by_certificate(
                number,
                Some((&own, "application-expired")),
                Some((&own, "camera-expired")),
            ),
            Sort::Stranger => self.by_certificate(
                number,
                Some((&elsewhere, "application")),
                Some((&elsewhere, "camera")),
            ),
            Sort::Revoked => self.by_certificate(
                number,
                Some((&own, "application-revoked")),
                Some((&own, "camera-revoked")),
            ),
            Sort::WrongPassword => self.wrong_password(number),
            Sort::Takeover => {
                let (user, password) = USERS[2];
                let clean_start = number.is_multiple_of(2);
                let options = self.site.by_password(user, password, SUBSCRIBER);
                refused(Client::connect(Options { clean_start, ..options }))
            }
            Sort::Retained => self.retained(number),
            Sort::Traversal => self.traverse(number),
            Sort::Oversized => self.oversized(number),
            Sort::Loris => unreachable!("all at once"),
        }
    }

    /// At each of three listeners in turn.
    fn by_certificate(
        &self,
        number: u32,
        application: Option<(&std::path::Path, &str)>,
        camera: Option<(&std::path::Path, &str)>,
    ) -> anyhow::Result<()> {
        match number % 3 {
            0 => {
                let tls = tls(&self.site.pki(true), application, &[])?;
                refused(Client::connect(self.site.over_tls(tls)))
            }
            1 => match self.call(application) {
                Ok(()) => bail!("the API answered"),
                Err(error) => is_refusal(&error),
            },
            _ => self.link(camera),
        }
    }

    /// A call of the API.
    fn call(&self, shows: Option<(&std::path::Path, &str)>) -> Result<(), ApiError> {
        let read = |folder: &std::path::Path, file: String| {
            fs::read(folder.join(file)).map_err(|error| {
                ApiError::new(Code::STORAGE_FAILED, "a certificate cannot be read").caused_by(error)
            })
        };
        let authority = read(&self.site.pki(true), "ca.pem".to_owned())?;
        let credentials = match shows {
            None => Credentials::from_authority(authority),
            Some((folder, name)) => Credentials::from_pem(
                authority,
                read(folder, format!("{name}.pem"))?,
                read(folder, format!("{name}.key"))?,
            ),
        };
        self.connect(credentials)
    }

    fn connect(&self, credentials: Credentials) -> Result<(), ApiError> {
        let endpoint = format!("https://{}", self.site.api);
        let connected = ApiClient::connect(&endpoint, credentials.server_name(SERVER_NAME));
        self.runtime.block_on(connected).map(drop)
    }

    /// A link over TCP: refused if TLS says so before the node has said anything.
    fn link(&self, shows: Option<(&std::path::Path, &str)>) -> anyhow::Result<()> {
        let config = tls(&self.site.pki(true), shows, LINK_PROTOCOL)?;
        let socket = connect(self.site.link)?;
        let session = ClientConnection::new(Arc::new(config), SERVER_NAME.try_into()?)?;
        let mut stream = StreamOwned::new(session, socket);
        match stream.read(&mut [0; 64]) {
            Ok(0) => Ok(()),
            Ok(_) => bail!("the link began to talk"),
            Err(error) => hung_up(&error),
        }
    }

    fn wrong_password(&self, number: u32) -> anyhow::Result<()> {
        let (user, _) = USERS[1];
        let password = format!("guess {number}");
        if number.is_multiple_of(10) {
            let authority = fs::read(self.site.pki(true).join("ca.pem"))?;
            let credentials =
                Credentials::from_authority(authority).password(user, password.as_bytes())?;
            return match self.connect(credentials) {
                Ok(()) => bail!("the API answered"),
                Err(error) => is_refusal(&error),
            };
        }
        refused(Client::connect(self.site.by_password(user, &password, "guesser")))
    }

    /// Of bob, by mallory, who may come in.
    fn retained(&self, number: u32) -> anyhow::Result<()> {
        let (user, password) = USERS[2];
        let mut client = Client::connect(self.site.by_password(user, password, "reader"))?;
        let filter = |filter: &str| SubscribeFilter {
            filter: filter.to_owned(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        match number % 3 {
            0 => {
                let reasons = client.subscribe(&[filter("own/bob/secret")])?;
                ensure!(reasons.iter().all(|reason| reason.is_failure()), "{reasons:?}");
            }
            1 => {
                // Let in for what it has in common with what is allowed, its own topics; nothing else comes.
                client.subscribe(&[filter("own/#")])?;
                while let Some(came) = client.receive(Duration::from_millis(20))? {
                    ensure!(came.topic.starts_with("own/mallory/"), "{came:?}");
                }
            }
            _ => not_authorized(publish(&mut client, "own/bob/secret")?)?,
        }
        Ok(())
    }

    fn traverse(&self, number: u32) -> anyhow::Result<()> {
        const PATHS: [&str; 5] = [
            "/../../../../etc/passwd",
            "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
            "/healthz/../../../etc/passwd",
            "//etc/passwd",
            "/mqtt/..%2f..%2f..%2fetc%2fpasswd",
        ];
        const CAMERAS: [&str; 6] =
            ["../camera", "..", "/etc/passwd", "a/../../b", ".hidden", "a\0b"];
        const TOPICS: [&str; 3] =
            ["../../../../tmp/x", "/etc/cron.d/x", "own/mallory/../bob/secret"];
        let turn = (number / 4) as usize;
        match number % 4 {
            0 | 1 => {
                let path = PATHS[turn % PATHS.len()];
                let (door, head) = match number % 4 {
                    0 => (self.site.health, ""),
                    _ => (self.site.web, UPGRADE),
                };
                let request =
                    format!("GET {path} HTTP/1.1\r\nHost: node\r\n{head}Connection: close\r\n\r\n");
                let answer = converse(door, request.as_bytes())?;
                let is_served = answer.starts_with(b"HTTP/1.1 200")
                    || answer.starts_with(b"HTTP/1.1 101")
                    || answer.windows(5).any(|bytes| bytes == b"root:");
                ensure!(!is_served, "{path}: {}", String::from_utf8_lossy(&answer));
            }
            2 => {
                let camera = CAMERAS[turn % CAMERAS.len()];
                let request = RegisterRequest { camera: camera.to_owned(), ..Default::default() };
                let registered: anyhow::Result<_> = self.runtime.block_on(async {
                    Ok(FramesClient::new(self.channel()?).register(request).await?)
                });
                ensure!(registered.is_err(), "a camera may be called {camera:?}");
            }
            _ => {
                let before = self.site.beside()?;
                let (user, password) = USERS[2];
                let mut client = Client::connect(self.site.by_password(user, password, "writer"))?;
                let topic = TOPICS[turn % TOPICS.len()];
                let reason = publish(&mut client, topic)?;
                // To a broker dots are letters: mallory's own topic is none of bob's, who would count it.
                if !topic.starts_with("own/mallory/") {
                    not_authorized(reason)?;
                }
                ensure!(self.site.beside()? == before, "{topic} became a file");
            }
        }
        Ok(())
    }

    /// A channel of the application's, without the client that checks names itself.
    fn channel(&self) -> anyhow::Result<tonic::transport::Channel> {
        let file = |name: &str| fs::read(self.site.pki(true).join(name));
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(file("ca.pem")?))
            .identity(Identity::from_pem(file("application.pem")?, file("application.key")?))
            .domain_name(SERVER_NAME);
        let endpoint = Endpoint::from_shared(format!("https://{}", self.site.api))?;
        Ok(endpoint.tls_config(tls)?.connect_lazy())
    }

    fn oversized(&self, number: u32) -> anyhow::Result<()> {
        let long = "x".repeat(HEAD_BYTES);
        match number % 5 {
            // CONNECT of 256 MiB, and one whose length has no end (MQTT 5, section 1.5.5).
            0 => hangs_up(self.site.users, &[&b"\x10\xff\xff\xff\x7f"[..], &[0; 1 << 16]].concat()),
            1 => hangs_up(self.site.users, b"\x10\xff\xff\xff\xff\x01"),
            2 | 3 => {
                let (door, head) = match number % 5 {
                    2 => (self.site.health, "GET /healthz"),
                    _ => (self.site.web, "GET /mqtt"),
                };
                let upgrade = if door == self.site.web { UPGRADE } else { "" };
                let request =
                    format!("{head} HTTP/1.1\r\nHost: node\r\nX-Long: {long}\r\n{upgrade}\r\n");
                let answer = converse(door, request.as_bytes())?;
                let is_served =
                    answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.1 101");
                ensure!(!is_served, "{}", String::from_utf8_lossy(&answer));
                Ok(())
            }
            _ => {
                let answered: anyhow::Result<_> = self.runtime.block_on(async {
                    let mut request = tonic::Request::new(ListCamerasRequest::default());
                    request.metadata_mut().insert("x-long", long.parse()?);
                    Ok(FramesClient::new(self.channel()?).list_cameras(request).await?)
                });
                ensure!(answered.is_err(), "a call with metadata of 1 MiB was answered");
                Ok(())
            }
        }
    }

    /// Begins `count` connections and sends a byte a second on each, until the node has ended them.
    fn trickle(&self, count: u32) -> Tried {
        let doors: [(SocketAddr, &[u8]); 5] = [
            (self.site.users, b"\x10\x7f"),
            (self.site.certificates, b"\x16\x03\x01\x02\x00"),
            (self.site.web, b"GET /mqtt HTTP/1.1\r\nX: "),
            (self.site.health, b"GET /healthz HTTP/1.1\r\nX: "),
            (self.site.api, b"\x16\x03\x01\x02\x00"),
        ];
        let mut tried = Tried { attempts: count, ..Tried::default() };
        let mut open = Vec::new();
        for number in 0..count {
            let (door, first) = doors[number as usize % doors.len()];
            let begun = connect(door).and_then(|mut socket| {
                socket.write_all(first)?;
                socket.set_nonblocking(true)?;
                Ok((socket, door))
            });
            match begun {
                Ok(begun) => open.push(begun),
                Err(error) => {
                    tried.first_miss.get_or_insert_with(|| format!("not begun: {error:#}"));
                }
            }
        }
        let begun = Stopwatch::now();
        while !open.is_empty() && begun.elapsed() < TRICKLE_MAX {
            thread::sleep(TRICKLE);
            open.retain_mut(|(socket, _)| {
                let is_ended = match socket.read(&mut [0; 256]) {
                    Ok(0) => true,
                    Ok(_) => false,
                    Err(error) => error.kind() != ErrorKind::WouldBlock,
                };
                if is_ended {
                    tried.refused += 1;
                    return false;
                }
                // Whether it was taken is seen the next time.
                let _ = socket.write(b"x");
                true
            });
        }
        if let Some((_, door)) = open.first() {
            let miss = format!("{} are open after {TRICKLE_MAX:?}, such as at {door}", open.len());
            tried.first_miss.get_or_insert(miss);
        }
        tried
    }
}

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n";

fn connect(door: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&door, ANSWER_MAX)?;
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    socket.set_write_timeout(Some(ANSWER_MAX))?;
    Ok(socket)
}

/// The answer until the server hangs up.
fn converse(door: SocketAddr, request: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut socket = connect(door)?;
    // It may hang up in the middle.
    let _ = socket.write_all(request);
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        match socket.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(&part[..count]),
            Err(error) => return hung_up(&error).map(|()| answer),
        }
    }
}

/// Sent that, the listener closes the connection without an answer.
fn hangs_up(door: SocketAddr, bytes: &[u8]) -> anyhow::Result<()> {
    let answer = converse(door, bytes)?;
    // CONNACK with a reason that is a failure is as good.
    ensure!(answer.get(3).is_none_or(|reason| *reason != 0), "{answer:02x?}");
    Ok(())
}

/// An error that is the other end's doing, and not our patience's.
fn hung_up(error: &std::io::Error) -> anyhow::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => bail!("no answer in {ANSWER_MAX:?}"),
        _ => Ok(()),
    }
}

fn refused(connected: Result<Client, ClientError>) -> anyhow::Result<()> {
    match connected {
        Ok(_) => bail!("MQTT let it in"),
        Err(ClientError::Refused { reason, .. }) if !reason.is_failure() => bail!("{reason}"),
        Err(_) => Ok(()),
    }
}

fn is_refusal(error: &ApiError) -> anyhow::Result<()> {
    match error.code() {
        Code::IDENTITY_REFUSED | Code::IDENTITY_REVOKED | Code::LIMIT_REACHED => Ok(()),
        // It hung up, and its alert was lost with what was on its way to it; the healthy clients tell that it is there.
        Code::LINK_DOWN if !error.chain().contains("timed out") => Ok(()),
        _ => bail!("{}", error.chain()),
    }
}

fn publish(client: &mut Client, topic: &str) -> anyhow::Result<ReasonCode> {
    let qos = QoS::AtLeastOnce;
    let message = Outgoing { topic, payload: b"mine", qos, retain: true, ..Outgoing::default() };
    match client.publish(&message) {
        Ok(reason) => Ok(reason),
        Err(ClientError::Publish { reason, .. }) => Ok(reason),
        Err(error) => Err(error.into()),
    }
}

fn not_authorized(reason: ReasonCode) -> anyhow::Result<()> {
    ensure!(reason == ReasonCode::NOT_AUTHORIZED, "{reason}");
    Ok(())
}
