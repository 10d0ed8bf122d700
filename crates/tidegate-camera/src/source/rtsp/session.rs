//! One session with a camera: asking for its pictures, and what it sends on the same connection (RFC 2326, RFC 7826).
//!
//! ```text
//!  OPTIONS ▶ DESCRIBE ▶ SETUP ▶ PLAY ▶ │ $ channel length packet │ $ … │ answers to what keeps the session alive
//! ```
//!
//! Everything travels over the one TCP connection, so that nothing is lost on the way and no port need be open; or packets come by UDP,
//! if that is wished.
//!
//! Always true: no more than [`BUFFER_MAX`] bytes are held of what is read, and [`EARLY_MAX`] of what came early, whatever a camera
//! sends; the login goes to the host that it was given for, in answer to a challenge, and not in clear where it was given for an
//! encrypted connection.

use std::{collections::VecDeque, io, net::IpAddr, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tidegate_identity::pki::servers::AnyServer;
use tidegate_message::confidential::without_secrets;
use tidegate_process::{
    http::{self, Allowed, NotAllowed},
    tls,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, timeout},
};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use super::{
    datagrams::Datagrams,
    packet::Received,
    sdp::{self, Media},
};
use crate::source::{
    address::{CameraAddress, Home},
    login::Challenge,
    spec::RtspTransport,
};

/// Longest wait for a connection, or for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Most bytes of one answer, and of one packet with what came along.
const BUFFER_MAX: usize = 1 << 20;
/// Most bytes of packets that come before the answer to a request; later ones are lost, as on a bad line.
const EARLY_MAX: usize = 4 << 20;
/// Most bytes between two items that belong to neither.
const STRAYS_MAX: usize = 256 << 10;
/// Requests that a camera may send us (RFC 2326, section 10; RFC 7826, section 13).
const REQUESTS: [&str; 7] = [
    "ANNOUNCE ",
    "GET_PARAMETER ",
    "OPTIONS ",
    "PLAY_NOTIFY ",
    "REDIRECT ",
    "SET_PARAMETER ",
    "TEARDOWN ",
];
/// Overhead of a packet in addition to its bytes.
const EARLY_BYTES: usize = 64;
/// Hosts that a camera may send us on to, one after another.
const REDIRECTS_MAX: usize = 3;

/// Why a camera's pictures cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RtspError {
    /// It cannot be reached.
    #[error("the camera cannot be reached")]
    Unreachable(#[source] io::Error),
    /// It does not answer.
    #[error("the camera did not answer {request} within {} s", ANSWER_MAX.as_secs())]
    Silent {
        /// The request.
        request: &'static str,
    },
    /// The connection broke.
    #[error("the connection to the camera broke")]
    Broken(#[source] io::Error),
    /// It closed the connection.
    #[error("the camera closed the connection")]
    Closed,
    /// It wants to know who we are.
    #[error(
        "the camera asks for a user and a password; write rtsp://USER@HOST/PATH and give the password by --password-file"
    )]
    LoginNeeded,
    /// It does not take the login.
    #[error("the camera refuses the user or the password")]
    LoginRefused,
    /// It would have the login in clear.
    #[error(
        "the camera redirects from rtsps:// to {place}, which is not encrypted, so the login is not sent there; give that address if it is meant"
    )]
    Exposed {
        /// Where to.
        place: String,
    },
    /// It redirects to this machine or to its link, and is not there itself.
    #[error(
        "the camera redirects to {place}, an address of this machine or of its link (loopback or link-local), where the camera itself is not, or of a cloud's metadata; give that address if it is meant"
    )]
    Inward {
        /// Where to.
        place: String,
    },
    /// It asks for a login of a kind that we do not know.
    #[error("the camera asks for a login of a kind other than Basic and Digest (MD5, SHA-256)")]
    LoginUnknown,
    /// It refused a request.
    #[error("the camera answered {request} with {status} {reason}")]
    Refused {
        /// The request.
        request: &'static str,
        /// Its status.
        status: u16,
        /// Its words.
        reason: String,
    },
    /// It offers no pictures that can be read.
    #[error("the camera offers no pictures as H.264, H.265, MPEG-4 or JPEG; it offers {offered}")]
    NoPictures {
        /// The offer.
        offered: String,
    },
    /// No ports for packets by UDP can be had, or they fail.
    #[error("packets of the camera cannot be received by UDP")]
    Ports(#[source] io::Error),
    /// It sent something other than RTSP.
    #[error("the camera sent something other than RTSP")]
    NoRtsp,
}

impl RtspError {
    /// Whether the camera is away, and not what it was asked for.
    pub(in crate::source) const fn is_absence(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Silent { .. } | Self::Broken(_) | Self::Closed)
    }
}

/// A stream of bytes, encrypted or not.
trait Wire: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Wire for T {}

/// A running session.
pub(super) struct Session {
    wire: Box<dyn Wire>,
    buffer: BytesMut,
    address: CameraAddress,
    challenge: Option<Challenge>,
    /// How often the challenge was answered.
    answered: u32,
    number: u32,
    id: Option<String>,
    /// How often it is to hear from us.
    alive_every: Duration,
    has_get_parameter: bool,
    base: Zeroizing<String>,
    /// Channels of the packets of pictures and of their reports.
    channels: (u8, u8),
    /// Both ends of the connection.
    ends: (IpAddr, IpAddr),
    /// Where packets come if not over the connection.
    datagrams: Option<Datagrams>,
    /// Packets that came before the answer to PLAY.
    early: Early,
    /// The request that keeps the session alive and was sent a second time, with an answer to another challenge.
    repeated: Option<u32>,
    round_trips: RoundTrips,
    /// Bytes that were skipped since the last item.
    skipped: usize,
}

/// How long a camera takes to answer at the soonest, over a connection that stands: neither the look-up of its name nor the
/// connection's beginning, each with its own repetitions, says anything of the way that packets take.
#[derive(Debug, Default)]
struct RoundTrips {
    /// The number of the newest request, and when it was sent.
    asked: Option<(u32, Instant)>,
    least: Option<Duration>,
}

impl RoundTrips {
    fn asked(&mut self, now: Instant, number: u32) {
        self.asked = Some((number, now));
    }

    /// An answer came to the request of that number; without one, to the newest.
    fn answered(&mut self, now: Instant, number: Option<u32>) {
        let Some((_, at)) = self.asked.take_if(|(asked, _)| number.is_none_or(|to| to == *asked))
        else {
            return;
        };
        let took = now.duration_since(at);
        self.least = Some(self.least.map_or(took, |least| least.min(took)));
    }
}

/// Packets that wait.
#[derive(Debug, Default)]
struct Early {
    packets: VecDeque<Received>,
    bytes: usize,
}

impl Early {
    fn push(&mut self, received: Received) {
        // A copy: the bytes themselves may lie in a buffer of a size that is not theirs.
        let (received, bytes) = match received {
            Received::Pictures(bytes) => {
                (Received::Pictures(Bytes::copy_from_slice(&bytes)), bytes.len())
            }
            Received::Report(bytes) => {
                (Received::Report(Bytes::copy_from_slice(&bytes)), bytes.len())
            }
            Received::Other => return,
        };
        if self.bytes + bytes + EARLY_BYTES <= EARLY_MAX {
            self.bytes += bytes + EARLY_BYTES;
            self.packets.push_back(received);
        }
    }

    fn pop(&mut self) -> Option<Received> {
        let received = self.packets.pop_front();
        if self.packets.is_empty() {
            *self = Self::default();
        }
        received
    }
}

/// An answer.
struct Answer {
    status: u16,
    reason: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

/// The next item in the buffer.
enum Item {
    Packet(u8, Bytes),
    Answer(Answer),
    /// A request of the camera's, by its number.
    Request(Option<String>),
}

impl Answer {
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let of_name = |(known, _): &&(String, String)| known.eq_ignore_ascii_case(name);
        self.headers.iter().filter(of_name).map(|(_, value)| value.as_str())
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The number of the request that it answers.
    fn number(&self) -> Option<u32> {
        self.header("cseq").and_then(|text| text.trim().parse().ok())
    }
}

impl Session {
    /// Connects, logs in where that is asked for, and has the camera play its pictures.
    pub(super) async fn open(
        address: &CameraAddress,
        transport: RtspTransport,
    ) -> Result<(Self, Media), RtspError> {
        let mut address = address.clone();
        let mut home = Home::default();
        for redirects in 0..=REDIRECTS_MAX {
            let allowed = |to| home.allows(to, redirects > 0);
            let mut session = Self::connect(address.clone(), &allowed).await?;
            let (_, peer) = session.ends;
            home.found(peer);
            let described = session.describe().await?;
            if !(300..400).contains(&described.status) {
                let media = session.play(described, transport).await?;
                return Ok((session, media));
            }
            let place = described.header("location").and_then(CameraAddress::parse_rtsp);
            let Some(next) = place else { return Err(refused("DESCRIBE", described)) };
            address = sent_on(&address, next)?;
        }
        Err(RtspError::Refused {
            request: "DESCRIBE",
            status: 302,
            reason: "again and again".to_owned(),
        })
    }

    /// Connects to a camera that is allowed where it is.
    async fn connect(address: CameraAddress, allowed: Allowed<'_>) -> Result<Self, RtspError> {
        let connected = http::connect(address.host(), address.port(), allowed);
        let connected = timeout(ANSWER_MAX, connected).await;
        let tcp = connected.map_err(|_| RtspError::Silent { request: "a connection" })?;
        let tcp = tcp.map_err(|error| match NotAllowed::is_in(&error) {
            true => RtspError::Inward { place: address.to_string() },
            false => RtspError::Unreachable(error),
        })?;
        let peer = tcp.peer_addr().map_err(RtspError::Unreachable)?.ip();
        let own = tcp.local_addr().map_err(RtspError::Unreachable)?.ip();
        tcp.set_nodelay(true).map_err(RtspError::Unreachable)?;
        let wire: Box<dyn Wire> = if address.is_tls() {
            let name = ServerName::try_from(address.host().to_owned()).map_err(|error| {
                RtspError::Unreachable(io::Error::new(io::ErrorKind::InvalidInput, error))
            })?;
            let handshake =
                timeout(ANSWER_MAX, TlsConnector::from(any_certificate()).connect(name, tcp));
            let tls = handshake.await.map_err(|_| RtspError::Silent { request: "TLS" })?;
            Box::new(tls.map_err(RtspError::Unreachable)?)
        } else {
            Box::new(tcp)
        };
        Ok(Self {
            wire,
            buffer: BytesMut::new(),
            base: address.request(),
            address,
            challenge: None,
            answered: 0,
            number: 0,
            id: None,
            alive_every: Duration::from_secs(20),
            has_get_parameter: false,
            channels: (0, 1),
            ends: (own, peer),
            datagrams: None,
            early: Early::default(),
            repeated: None,
            round_trips: RoundTrips::default(),
            skipped: 0,
        })
    }

    async fn describe(&mut self) -> Result<Answer, RtspError> {
        let url = self.base.clone();
        let options = self.ask("OPTIONS", &url, "").await?;
        self.has_get_parameter =
            options.all("public").any(|methods| methods.contains("GET_PARAMETER"));
        let answer = self.ask("DESCRIBE", &url, "Accept: application/sdp\r\n").await?;
        if !(200..400).contains(&answer.status) {
            return Err(refused("DESCRIBE", answer));
        }
        Ok(answer)
    }

    async fn play(
        &mut self,
        described: Answer,
        transport: RtspTransport,
    ) -> Result<Media, RtspError> {
        let text = String::from_utf8_lossy(&described.body);
        let media = sdp::pictures(&text).map_err(|offered| RtspError::NoPictures {
            offered: if offered.is_empty() { "none at all".to_owned() } else { offered.join(", ") },
        })?;
        let base =
            ["content-base", "content-location"].iter().find_map(|name| described.header(name));
        if let Some(base) = base.filter(|base| base.contains("://")) {
            self.base = Zeroizing::new(base.to_owned());
        }
        let url = self.control(&media.control);
        // Pictures of an encrypted connection stay in it.
        let transport = match transport {
            RtspTransport::Udp if !self.address.is_tls() => {
                let (own, peer) = self.ends;
                let datagrams = Datagrams::bind(own, peer).await.map_err(RtspError::Ports)?;
                let (first, second) = datagrams.ports().map_err(RtspError::Ports)?;
                self.datagrams = Some(datagrams);
                format!("Transport: RTP/AVP;unicast;client_port={first}-{second}\r\n")
            }
            _ => "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n".to_owned(),
        };
        let setup = self.ask("SETUP", &url, &transport).await?;
        if setup.status != 200 {
            return Err(refused("SETUP", setup));
        }
        if let Some(session) = setup.header("session") {
            let (id, rest) = session.split_once(';').unwrap_or((session, ""));
            self.id = Some(id.trim().to_owned());
            let seconds =
                rest.split_once("timeout=").and_then(|(_, text)| text.trim().parse::<u64>().ok());
            self.alive_every = alive_every(seconds);
        }
        let granted = setup.header("transport").unwrap_or_default();
        if let Some((first, second)) = pair::<u8>(granted, "interleaved=") {
            self.channels = (first, second.unwrap_or(first.wrapping_add(1)));
            // One that knows no UDP may grant what it knows.
            self.datagrams = None;
        }
        if let (Some(datagrams), Some((first, second))) =
            (&mut self.datagrams, pair::<u16>(granted, "server_port="))
        {
            datagrams.sent_from((first, second.unwrap_or(first.saturating_add(1))));
            datagrams.open_way().await;
        }
        let base = self.base.clone();
        let played = self.ask("PLAY", &base, "Range: npt=0.000-\r\n").await?;
        if played.status != 200 {
            return Err(refused("PLAY", played));
        }
        Ok(media)
    }

    /// The address of a stream, from what its description says of it.
    fn control(&self, control: &str) -> Zeroizing<String> {
        Zeroizing::new(match control {
            "*" | "" => self.base.to_string(),
            absolute if absolute.contains("://") => absolute.to_owned(),
            relative if self.base.ends_with('/') => format!("{}{relative}", self.base.as_str()),
            relative => format!("{}/{relative}", self.base.as_str()),
        })
    }

    /// The least time in which the camera has answered so far.
    pub(super) fn round_trip(&self) -> Duration {
        self.round_trips.least.unwrap_or_default()
    }

    /// How often [`Session::keep_alive`] is to be called.
    pub(super) const fn alive_every(&self) -> Duration {
        self.alive_every
    }

    /// Sends what keeps the session alive, and has the camera show that it is.
    pub(super) async fn keep_alive(&mut self) -> Result<(), RtspError> {
        let url = self.base.clone();
        let method = if self.has_get_parameter { "GET_PARAMETER" } else { "OPTIONS" };
        if let Some(datagrams) = &self.datagrams {
            datagrams.open_way().await;
        }
        self.send(method, &url, "").await
    }

    /// Whether packets come by UDP: then an answer over the connection says nothing of them.
    pub(super) const fn is_by_udp(&self) -> bool {
        self.datagrams.is_some()
    }

    /// The next item.
    ///
    /// # Cancel safety
    /// Cancel safe but for the moments in which a request of the camera's is answered, or one of ours is sent again, which take no
    /// waiting unless the camera does not read.
    pub(super) async fn receive(&mut self) -> Result<Received, RtspError> {
        if let Some(early) = self.early.pop() {
            return Ok(early);
        }
        let Self { datagrams, wire, buffer, channels, skipped, .. } = self;
        let next = next_item_behind(&mut **wire, buffer, *channels, skipped);
        let item = match datagrams {
            None => next.await?,
            Some(datagrams) => tokio::select! {
                received = datagrams.receive() => return received.map_err(RtspError::Ports),
                item = next => item?,
            },
        };
        match item {
            Item::Packet(channel, bytes) => Ok(self.sorted(channel, bytes)),
            Item::Answer(answer) => {
                self.round_trips.answered(Instant::now(), answer.number());
                self.challenged(&answer).await?;
                Ok(Received::Other)
            }
            Item::Request(number) => {
                self.acknowledge(number).await?;
                Ok(Received::Other)
            }
        }
    }

    /// Takes a new challenge out of the answer to what keeps the session alive, and sends that again, once: a nonce may have its time
    /// (RFC 7616, section 3.3).
    async fn challenged(&mut self, answer: &Answer) -> Result<(), RtspError> {
        let number = answer.number();
        let is_repeated = self.repeated.is_some() && self.repeated == number;
        if answer.status != 401
            || number != Some(self.number)
            || is_repeated
            || self.address.login().is_none()
        {
            return Ok(());
        }
        let Some(challenge) = Challenge::choose(answer.all("www-authenticate")) else {
            return Ok(());
        };
        (self.challenge, self.answered) = (Some(challenge), 0);
        self.keep_alive().await?;
        self.repeated = Some(self.number);
        Ok(())
    }

    fn sorted(&self, channel: u8, bytes: Bytes) -> Received {
        match channel {
            channel if channel == self.channels.0 => Received::Pictures(bytes),
            channel if channel == self.channels.1 => Received::Report(bytes),
            _ => Received::Other,
        }
    }

    async fn acknowledge(&mut self, number: Option<String>) -> Result<(), RtspError> {
        let number = number.map_or(String::new(), |number| format!("CSeq: {number}\r\n"));
        let answer = format!("RTSP/1.0 200 OK\r\n{number}\r\n");
        self.wire.write_all(answer.as_bytes()).await.map_err(RtspError::Broken)?;
        self.wire.flush().await.map_err(RtspError::Broken)
    }

    /// Sends a request and waits for its answer; logs in, once, if that is asked for.
    async fn ask(
        &mut self,
        method: &'static str,
        url: &str,
        headers: &str,
    ) -> Result<Answer, RtspError> {
        let silent = |_| RtspError::Silent { request: method };
        let first =
            timeout(ANSWER_MAX, self.exchange(method, url, headers)).await.map_err(silent)??;
        if first.status != 401 {
            return Ok(first);
        }
        if self.address.login().is_none() {
            return Err(RtspError::LoginNeeded);
        }
        let Some(challenge) = Challenge::choose(first.all("www-authenticate")) else {
            return Err(RtspError::LoginUnknown);
        };
        (self.challenge, self.answered) = (Some(challenge), 0);
        let second =
            timeout(ANSWER_MAX, self.exchange(method, url, headers)).await.map_err(silent)??;
        if second.status == 401 { Err(RtspError::LoginRefused) } else { Ok(second) }
    }

    async fn exchange(
        &mut self,
        method: &str,
        url: &str,
        headers: &str,
    ) -> Result<Answer, RtspError> {
        self.send(method, url, headers).await?;
        loop {
            match self.item().await? {
                Item::Packet(channel, bytes) => {
                    let early = self.sorted(channel, bytes);
                    self.early.push(early);
                }
                Item::Request(number) => self.acknowledge(number).await?,
                Item::Answer(answer) if answer.status >= 200 => {
                    let number = answer.number();
                    self.round_trips.answered(Instant::now(), number);
                    // An answer to an earlier request of ours changes nothing.
                    if number.is_none_or(|number| number == self.number) {
                        return Ok(answer);
                    }
                }
                Item::Answer(_) => {}
            }
        }
    }

    async fn send(&mut self, method: &str, url: &str, headers: &str) -> Result<(), RtspError> {
        self.number += 1;
        let mut request = Zeroizing::new(format!(
            "{method} {url} RTSP/1.0\r\nCSeq: {}\r\nUser-Agent: tidegate\r\n{headers}",
            self.number
        ));
        if let Some(id) = &self.id {
            request.push_str(&format!("Session: {id}\r\n"));
        }
        if let (Some(challenge), Some(login)) = (&self.challenge, self.address.login()) {
            self.answered += 1;
            // Unique is enough of a nonce of ours: it keeps no secret.
            let ours = format!("{:016x}", tidegate_sys::clock::monotonic_nanos());
            let answer = challenge.answer(login, method, url, self.answered, &ours);
            request.push_str("Authorization: ");
            request.push_str(&answer);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        self.round_trips.asked(Instant::now(), self.number);
        self.wire.write_all(request.as_bytes()).await.map_err(RtspError::Broken)?;
        self.wire.flush().await.map_err(RtspError::Broken)
    }

    /// The next whole item.
    async fn item(&mut self) -> Result<Item, RtspError> {
        next_item(&mut *self.wire, &mut self.buffer).await
    }
}

/// The next whole item of a connection.
///
/// # Cancel safety
/// Cancel safe: no bytes are lost.
async fn next_item(wire: &mut dyn Wire, buffer: &mut BytesMut) -> Result<Item, RtspError> {
    loop {
        if let Some(item) = parse(buffer)? {
            return Ok(item);
        }
        read_more(wire, buffer).await?;
    }
}

/// The next whole item of a session that plays, behind whatever stands between two: some cameras send a packet that is longer than
/// they say, or bytes of their own.
///
/// # Cancel safety
/// As [`next_item`].
async fn next_item_behind(
    wire: &mut dyn Wire,
    buffer: &mut BytesMut,
    channels: (u8, u8),
    skipped: &mut usize,
) -> Result<Item, RtspError> {
    loop {
        let strays = strays(buffer, channels, *skipped > 0);
        buffer.advance(strays);
        *skipped += strays;
        if *skipped > STRAYS_MAX {
            return Err(RtspError::NoRtsp);
        }
        if strays == 0
            && let Some(item) = parse(buffer)?
        {
            *skipped = 0;
            return Ok(item);
        }
        if strays > 0 && !buffer.is_empty() {
            continue;
        }
        read_more(wire, buffer).await?;
    }
}

/// How many bytes at the begin of a buffer, behind others or not, belong to no item.
fn strays(buffer: &[u8], (pictures, reports): (u8, u8), is_astray: bool) -> usize {
    let begins = |at: usize| {
        let bytes = &buffer[at..];
        let is_text = |word: &str| {
            let length = word.len().min(bytes.len());
            word.as_bytes().starts_with(&bytes[..length])
        };
        match bytes[0] {
            // Where items follow each other, any channel is one. Behind strays only ours with a packet of RTP or RTCP is.
            b'$' if at == 0 && !is_astray => true,
            b'$' => {
                let is_ours = |channel: &u8| [pictures, reports].contains(channel);
                bytes.get(1).is_none_or(is_ours) && bytes.get(4).is_none_or(|first| first >> 6 == 2)
            }
            b'\r' | b'\n' => at == 0,
            _ => REQUESTS.iter().any(|word| is_text(word)) || is_text("RTSP/"),
        }
    };
    (0..buffer.len()).find(|&at| begins(at)).unwrap_or(buffer.len())
}

async fn read_more(wire: &mut dyn Wire, buffer: &mut BytesMut) -> Result<(), RtspError> {
    if buffer.len() > BUFFER_MAX {
        return Err(RtspError::NoRtsp);
    }
    buffer.reserve(64 << 10);
    match wire.read_buf(buffer).await.map_err(RtspError::Broken)? {
        0 => Err(RtspError::Closed),
        _ => Ok(()),
    }
}

/// One or two numbers behind a word of a Transport header, such as `server_port=6970-6971`.
fn pair<T: std::str::FromStr>(text: &str, word: &str) -> Option<(T, Option<T>)> {
    let (_, numbers) = text.split_once(word)?;
    let numbers = numbers.split([';', ',']).next()?;
    let mut numbers = numbers.split('-').map(|text| text.trim().parse());
    let first = numbers.next()?.ok()?;
    Some((first, numbers.next().and_then(Result::ok)))
}

/// Where a camera at `address` sends us on to, with the login if that was given for the same host: for that and no other, and for an
/// encrypted connection only where it was given for one.
fn sent_on(address: &CameraAddress, next: CameraAddress) -> Result<CameraAddress, RtspError> {
    let is_for = next.login().is_none() && address.login().is_some() && next.is_same_host(address);
    match is_for {
        true if address.is_tls() && !next.is_tls() => {
            Err(RtspError::Exposed { place: next.to_string() })
        }
        true => Ok(next.with_login_of(address)),
        false => Ok(next),
    }
}

/// How often a session is kept alive that the camera gives up after so many seconds: twice within them. 0 is no time.
fn alive_every(seconds: Option<u64>) -> Duration {
    let seconds = seconds.filter(|&seconds| seconds > 0).unwrap_or(60).min(40);
    Duration::from_secs(seconds) / 2
}

/// Takes the next whole item out of the buffer; `None` if more bytes are needed.
fn parse(buffer: &mut BytesMut) -> Result<Option<Item>, RtspError> {
    // Some cameras end their answers with lines too many.
    while matches!(buffer.first(), Some(b'\r' | b'\n')) {
        buffer.advance(1);
    }
    match buffer.first() {
        None => return Ok(None),
        Some(b'$') => {
            let Some(&[_, channel, high, low]) = buffer.first_chunk() else { return Ok(None) };
            let length = usize::from(u16::from_be_bytes([high, low]));
            if buffer.len() < 4 + length {
                return Ok(None);
            }
            buffer.advance(4);
            return Ok(Some(Item::Packet(channel, buffer.split_to(length).freeze())));
        }
        Some(first) if !first.is_ascii_alphabetic() => return Err(RtspError::NoRtsp),
        Some(_) => {}
    }
    let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect();
    let value = |name: &str| {
        headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.clone())
    };
    let length = value("content-length").and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    if length > BUFFER_MAX {
        return Err(RtspError::NoRtsp);
    }
    if buffer.len() < end + 4 + length {
        return Ok(None);
    }
    let (number, mut words) = (value("cseq"), first.splitn(3, ' '));
    let item = if first.starts_with("RTSP/") {
        let status = words.nth(1).and_then(|word| word.parse().ok()).ok_or(RtspError::NoRtsp)?;
        let reason = words.next().unwrap_or_default().trim().to_owned();
        buffer.advance(end + 4);
        Item::Answer(Answer { status, reason, headers, body: buffer.split_to(length).freeze() })
    } else {
        buffer.advance(end + 4 + length);
        Item::Request(number)
    };
    Ok(Some(item))
}

fn refused(request: &'static str, answer: Answer) -> RtspError {
    let reason: String =
        without_secrets(&answer.reason).chars().filter(|c| !c.is_control()).take(80).collect();
    RtspError::Refused { request, status: answer.status, reason }
}

/// TLS with any peer: cameras make their certificates themselves, and no authority vouches for them. The content is hidden from
/// listeners; the receiver is not authenticated.
pub(in crate::source) fn any_certificate() -> Arc<ClientConfig> {
    let config = tls::client(tls::VERSIONS)
        .expect("the provider has what both versions need")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer::default()))
        .with_no_client_auth();
    Arc::new(config)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::BufReader,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn a_session_is_kept_alive_twice_within_its_time() {
        for (seconds, expected) in [
            (None, 20_000),
            (Some(0), 20_000),
            (Some(1), 500),
            (Some(5), 2_500),
            (Some(10), 5_000),
            (Some(u64::MAX), 20_000),
        ] {
            assert_eq!(alive_every(seconds), Duration::from_millis(expected), "{seconds:?}");
        }
    }

    #[test]
    fn what_comes_early_is_bounded_by_its_bytes() {
        for bytes in [0, 1, 1_400, 65_535] {
            let mut early = Early::default();
            for _ in 0..100_000 {
                early.push(Received::Pictures(Bytes::from(vec![7; bytes])));
                early.push(Received::Other);
            }
            let held: usize = early.packets.len() * (bytes + EARLY_BYTES);
            assert!((EARLY_MAX / 2..=EARLY_MAX).contains(&held), "{bytes}: {held}");
            while early.pop().is_some() {}
            assert_eq!((early.bytes, early.packets.capacity()), (0, 0));
        }
    }

    /// Reads a request and answers it with what `answer` makes of it.
    async fn serve(wire: &mut BufReader<TcpStream>, answer: impl FnOnce(&str) -> String) {
        use tokio::io::AsyncBufReadExt as _;
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            assert_ne!(wire.read_line(&mut request).await.unwrap(), 0, "it continues: {request}");
        }
        let number = request.lines().find_map(|line| line.strip_prefix("CSeq: ")).unwrap();
        let answer = answer(&request).replacen("\r\n", &format!("\r\nCSeq: {number}\r\n"), 1);
        wire.get_mut().write_all(answer.as_bytes()).await.unwrap();
    }

    const FINE: &str = "RTSP/1.0 200 OK\r\n\r\n";

    fn challenge(nonce: &str) -> String {
        format!(
            "RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"x\", nonce=\"{nonce}\", stale=true\r\n\r\n"
        )
    }

    /// Answers until PLAY was; as a camera that asks for a login with `nonce`.
    async fn plays(listener: &TcpListener, nonce: &str) -> BufReader<TcpStream> {
        let mut wire = BufReader::new(listener.accept().await.unwrap().0);
        serve(&mut wire, |_| FINE.to_owned()).await;
        serve(&mut wire, |_| challenge(nonce)).await;
        let sdp = "v=0\r\nm=video 0 RTP/AVP 26\r\na=control:t\r\n";
        let described = format!("RTSP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{sdp}", sdp.len());
        serve(&mut wire, |_| described).await;
        serve(&mut wire, |_| "RTSP/1.0 200 OK\r\nSession: 7;timeout=1\r\n\r\n".to_owned()).await;
        serve(&mut wire, |_| FINE.to_owned()).await;
        wire
    }

    #[tokio::test]
    async fn a_new_challenge_to_what_keeps_the_session_alive_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = CameraAddress::parse(&format!("rtsp://me:s3cret@127.0.0.1:{port}/")).unwrap();
        let (mut wire, opened) =
            tokio::join!(plays(&listener, "one"), Session::open(&address, RtspTransport::Tcp));
        let (mut session, _) = opened.unwrap();
        assert_eq!(session.alive_every(), Duration::from_millis(500));
        for (nonce, next) in [("one", "two"), ("two", "three")] {
            session.keep_alive().await.unwrap();
            serve(&mut wire, |request| {
                assert!(request.contains(&format!("nonce=\"{nonce}\"")), "{request}");
                challenge(next)
            })
            .await;
            assert!(matches!(session.receive().await.unwrap(), Received::Other));
            // Again with what was asked for; once, however it is answered.
            serve(&mut wire, |request| {
                assert!(request.contains(&format!("nonce=\"{next}\"")), "{request}");
                challenge(next)
            })
            .await;
            wire.get_mut().write_all(b"$\0\0\x01x").await.unwrap();
            assert!(matches!(session.receive().await.unwrap(), Received::Other));
            let picture = session.receive().await.unwrap();
            assert!(matches!(picture, Received::Pictures(_)), "{picture:?}");
        }
    }

    /// An attacker between us and the camera could otherwise redirect us to have the login.
    #[test]
    fn no_redirection_gives_a_login_away() {
        let server = |address: &str| CameraAddress::parse(address).unwrap();
        for (from, to, expected) in [
            ("rtsps://me:s3cret@cam/1", "rtsp://cam:9/2", None),
            ("rtsps://me:s3cret@cam/1", "rtsps://cam:9/2", Some(true)),
            ("rtsp://me:s3cret@cam/1", "rtsps://cam:9/2", Some(true)),
            ("rtsp://me:s3cret@cam/1", "rtsp://cam:9/2", Some(true)),
            ("rtsp://me:s3cret@cam/1", "rtsp://CAM:9/2", Some(true)),
            ("rtsp://me:s3cret@cam/1", "rtsp://other/2", Some(false)),
            ("rtsps://me:s3cret@cam/1", "rtsp://other/2", Some(false)),
            ("rtsps://cam/1", "rtsp://cam/2", Some(false)),
            ("rtsps://me:s3cret@cam/1", "rtsp://own:word@cam/2", Some(true)),
        ] {
            let found = sent_on(&server(from), server(to));
            assert!(!format!("{found:?}").contains("s3cret"));
            let found = found.map(|next| next.login().is_some()).ok();
            assert_eq!(found, expected, "{from} to {to}");
        }
    }

    #[tokio::test]
    async fn camera_of_this_machine_redirects_within_it_and_nowhere_nearer() {
        let loopback = "127.0.0.1".parse().unwrap();
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let within = inner.local_addr().unwrap().to_string();
        for here in crate::source::tests::own_address().into_iter().chain([loopback]) {
            for (to, is_followed) in [(&*within, true), ("169.254.169.254:554", false)] {
                let camera = TcpListener::bind((here, 0)).await.unwrap();
                let place = camera.local_addr().unwrap();
                let redirecting = async {
                    let mut wire = BufReader::new(camera.accept().await.unwrap().0);
                    serve(&mut wire, |_| FINE.to_owned()).await;
                    let moved = format!("RTSP/1.0 302 Moved\r\nLocation: rtsp://{to}/1\r\n\r\n");
                    serve(&mut wire, |_| moved).await;
                };
                let address = CameraAddress::parse(&format!("rtsp://{place}/1")).unwrap();
                let opened =
                    async { Session::open(&address, RtspTransport::Tcp).await.map(|_| ()) };
                let reached = async { inner.accept().await.map(|_| ()).unwrap() };
                let followed = async {
                    tokio::select! {
                        () = reached => None,
                        opened = opened => opened.err(),
                    }
                };
                let ((), error) = tokio::join!(redirecting, followed);
                match is_followed {
                    true => assert!(error.is_none(), "{error:?}"),
                    false => assert!(matches!(error, Some(RtspError::Inward { .. })), "{error:?}"),
                }
            }
        }
    }

    #[test]
    fn the_least_round_trip_counts_and_no_other_answer() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut round_trips = RoundTrips::default();
        for (asked, answered, number, least) in [
            (0, 200, Some(1), 200),
            // A packet was lost.
            (300, 1_500, Some(2), 200),
            (2_000, 2_003, Some(3), 3),
            // To an earlier request, and to one that was answered already.
            (3_000, 3_001, Some(3), 3),
            (4_000, 4_002, None, 2),
            (5_000, 5_050, Some(6), 2),
        ] {
            let sent = asked / 1_000 + 1;
            round_trips.asked(at(asked), if asked == 300 { 2 } else { sent as u32 });
            round_trips.answered(at(answered), number);
            assert_eq!(round_trips.least, Some(Duration::from_millis(least)), "{asked}");
        }
    }

    #[test]
    fn bytes_between_items_are_skipped_however_they_are_cut() {
        let packet = |length: u8| {
            [&[b'$', 0, 0, length, 0x80][..], &vec![7; usize::from(length) - 1][..]].concat()
        };
        let answer = b"RTSP/1.0 200 OK\r\nCSeq: 3\r\n\r\n";
        for strays in [
            &b"\0\0\0\0"[..],
            b"stray",
            b"$\x09\0\x04 of no channel of ours",
            b"\xff$ $$\0\x01",
            b"R RTSX OPTION",
        ] {
            let mut wire = packet(12);
            for item in [&packet(13)[..], answer, &packet(14)] {
                // A channel that is not ours is one, where it follows an item.
                let from = usize::from(strays.starts_with(b"$"));
                wire.extend_from_slice(&strays[from..]);
                wire.extend_from_slice(item);
            }
            for cut in [1, 2, 3, 7, wire.len()] {
                let (mut buffer, mut seen) = (BytesMut::new(), Vec::new());
                let mut is_astray = false;
                for part in wire.chunks(cut) {
                    buffer.extend_from_slice(part);
                    loop {
                        let skipped = super::strays(&buffer, (0, 1), is_astray);
                        buffer.advance(skipped);
                        is_astray |= skipped > 0;
                        match parse(&mut buffer).expect("nothing else is there") {
                            Some(Item::Packet(_, bytes)) => seen.push(bytes.len()),
                            Some(Item::Answer(answer)) => seen.push(usize::from(answer.status)),
                            Some(Item::Request(_)) => panic!("none was sent"),
                            None if skipped == 0 => break,
                            None => continue,
                        }
                        is_astray = false;
                    }
                }
                assert_eq!(seen, [12, 13, 200, 14], "{strays:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn packets_and_answers_share_the_wire_however_they_are_cut() {
        let mut wire =
            b"$\0\0\x03abcRTSP/1.0 200 OK\r\nCSeq: 3\r\nContent-Length: 2\r\n\r\nhi\r\n".to_vec();
        wire.extend_from_slice(b"$\x01\0\x01x");
        wire.extend_from_slice(b"OPTIONS * RTSP/1.0\r\nCSeq: 9\r\n\r\n$\0\0\0");
        for cut in 1..wire.len() {
            let mut buffer = BytesMut::new();
            let mut seen = Vec::new();
            for part in wire.chunks(cut) {
                buffer.extend_from_slice(part);
                while let Some(item) = parse(&mut buffer).unwrap() {
                    seen.push(match item {
                        Item::Packet(channel, bytes) => format!("{channel}:{}", bytes.len()),
                        Item::Answer(answer) => format!("{} {:?}", answer.status, answer.body),
                        Item::Request(number) => format!("{number:?}"),
                    });
                }
            }
            assert_eq!(seen, ["0:3", "200 b\"hi\"", "1:1", "Some(\"9\")", "0:0"], "cut at {cut}");
        }
        for nonsense in [
            &b"\x16\x03\x01"[..],
            b"RTSP/1.0 what\r\n\r\n",
            b"HTTP/1.1 200\r\nContent-Length: 99999999\r\n\r\n",
        ] {
            assert!(parse(&mut BytesMut::from(nonsense)).is_err());
        }
    }
}
