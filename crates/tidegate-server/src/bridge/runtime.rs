//! The thread of a bridge: two sockets, one poll.

use std::{
    io::{self, IoSlice},
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net::TcpStream};
use rustls_pki_types::ServerName;
use tidegate_broker::WRITE_BYTES_MAX;
use tidegate_message::{Backoff, Identity, IdentityKind};
use tidegate_wire::mqtt::{
    Connack, Connect, ConnectProperties, DecodeError, Disconnect, FixedHeader, Packet, Publish,
    QoS, ReasonCode, RetainHandling, Subscribe, SubscribeFilter, Version, Will,
};

use super::{
    BridgeError, BridgeSettings, Direction, RemoteTls, RemoteVersion, Stamps,
    relay::{Counters, Fault, Relay, SUBSCRIBE_ID, Side, Way},
    topics::Topics,
};
use crate::{
    server::{Connector, random_bytes},
    transport::{ReadOutcome, Transport},
};

/// Bytes read at once, and so what the bridge itself holds of either way.
const READ_BYTES: usize = 16 << 10;
/// Reads and writes before the poll is asked what else is new.
const TURNS_MAX: usize = 4;
/// A connection that lasted this long was a good one: the next try comes soon.
const STEADY: Duration = Duration::from_secs(10);
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(500);

// Token 0 is the waker's.
const LOCAL: Token = Token(1);
const REMOTE: Token = Token(2);

/// How the remote is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    V5,
    /// MQTT 3.1.1 with the bridge bit.
    Bridge,
    V4,
}

impl Mode {
    /// For the log.
    fn word(self) -> &'static str {
        match self {
            Self::V5 => "5",
            Self::Bridge => "3.1.1 with the bridge bit",
            Self::V4 => "3.1.1",
        }
    }
}

/// A socket and what is known of it.
#[derive(Debug)]
struct Line {
    transport: Transport,
    is_readable: bool,
    is_writable: bool,
    wrote_at: Instant,
    /// Bytes of the output that were written.
    sent: usize,
}

/// Why a connection of a bridge ended, or did not begin.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the bridge stops")]
    Stopped,
    #[error("the address of {0} cannot be looked up")]
    Resolve(String, #[source] io::Error),
    #[error("no connection to {0}")]
    Connect(String, #[source] io::Error),
    #[error("{0:?} is not allowed as the name of a TLS server: write a DNS name or an IP address")]
    ServerName(String),
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    #[error("the connection to {0} broke")]
    Io(Side, #[source] io::Error),
    #[error("{0} closed the connection")]
    Closed(Side),
    #[error("{0} does not answer")]
    Silent(Side),
    #[error("{0} refuses the connection: {1}")]
    Refused(Side, ReasonCode),
    #[error("{0} did not answer CONNECT with a valid CONNACK")]
    NoConnack(Side, #[source] Option<DecodeError>),
    #[error(transparent)]
    Overlap(BridgeError),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Broken {
    /// Whether a remote may have said so because it does not know the version.
    fn is_for_version(&self) -> bool {
        match self {
            Self::Closed(_) | Self::NoConnack(..) => true,
            Self::Refused(_, reason) => *reason == ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
            Self::Io(_, error) => error.kind() == io::ErrorKind::ConnectionReset,
            _ => false,
        }
    }
}

/// The state of the thread.
pub(super) struct Runtime {
    settings: BridgeSettings,
    connector: Connector,
    poll: Poll,
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
    relay: Relay,
    /// The name of the session here. No other client can guess it and take the session over.
    local_id: String,
    /// Whether the session at the remote ends with the farewell.
    forgets_remote: Arc<AtomicBool>,
    modes: Vec<Mode>,
    /// Which of them is tried next.
    mode: usize,
    /// Sessions that were new when they were last connected to, while the other side has not been told.
    is_new: [bool; 2],
    /// Whether the remote session has the subscriptions of this process.
    is_subscribed: bool,
    /// Whether it was reported that messages come round.
    told_looped: bool,
    buffer: Vec<u8>,
    backoff: Backoff,
}

/// A number that this process keeps to itself.
fn process_number() -> io::Result<u64> {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    if let Some(number) = NUMBER.get() {
        return Ok(*number);
    }
    let number = u64::from_ne_bytes(random_bytes()?);
    Ok(*NUMBER.get_or_init(|| number))
}

impl Runtime {
    pub(super) fn local_id(&self) -> &str {
        &self.local_id
    }

    pub(super) fn forgets_remote(&self) -> Arc<AtomicBool> {
        self.forgets_remote.clone()
    }

    pub(super) fn new(
        settings: BridgeSettings,
        connector: Connector,
        poll: Poll,
        stop: Arc<AtomicBool>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let first = (settings.backoff_max / 100).max(Duration::from_millis(50));
        let seed = u64::from_ne_bytes(random_bytes()?);
        let backoff = Backoff::with_jitter(first, settings.backoff_max, seed);
        let (local, remote) = (&settings.local_prefix, &settings.remote_prefix);
        let out = Topics::new(&settings.topics_out, local, remote, None);
        let back = Topics::new(&settings.topics_in, remote, local, Some("$SYS/"));
        let mut relay = Relay::new(
            Way::new(out, Direction::Out),
            Way::new(back, Direction::In),
            Stamps::new(&settings.node),
            settings.retain,
        );
        relay.local.packet_bytes_max = settings.packet_bytes_max as usize;
        let modes = match settings.version {
            RemoteVersion::Auto => vec![Mode::V5, Mode::Bridge, Mode::V4],
            RemoteVersion::V4 => vec![Mode::Bridge, Mode::V4],
            RemoteVersion::V5 => vec![Mode::V5],
        };
        Ok(Self {
            local_id: format!("bridge/{}/{:016x}", settings.name, process_number()?),
            forgets_remote: Arc::default(),
            settings,
            connector,
            poll,
            stop,
            counters,
            relay,
            modes,
            mode: 0,
            is_new: [false; 2],
            is_subscribed: false,
            told_looped: false,
            buffer: vec![0; READ_BYTES],
            backoff,
        })
    }

    /// Carries messages until it is stopped.
    pub(super) fn run(mut self) {
        let mut is_prepared = false;
        let mut told = String::new();
        while !self.is_stopped() {
            if !is_prepared {
                match self.prepare() {
                    Ok(()) => is_prepared = true,
                    Err(Broken::Stopped) => break,
                    Err(error) => {
                        let error = tidegate_message::error_chain(&error);
                        tracing::warn!(bridge = %self.settings.name, %error, "no session here");
                    }
                }
            }
            if is_prepared {
                let began = Instant::now();
                let connects = self.counters.connects.load(Ordering::Relaxed);
                let Err(error) = self.carry();
                if matches!(error, Broken::Stopped) {
                    break;
                }
                let was_up = self.counters.connects.load(Ordering::Relaxed) > connects;
                if was_up && began.elapsed() > STEADY {
                    self.backoff.reset();
                }
                let text = tidegate_message::error_chain(&error);
                if error.is_for_version() && !was_up && self.mode > 0 {
                    tracing::info!(bridge = %self.settings.name, error = %text, next = self.modes[self.mode].word(), "another version is tried");
                    continue;
                }
                // An unchanged error is not logged again.
                if was_up || text != told {
                    tracing::warn!(bridge = %self.settings.name, error = %text, report = %self.counters.report(), "bridge down");
                    told = text;
                }
            }
            self.rest();
        }
        tracing::info!(bridge = %self.settings.name, report = %self.counters.report(), "bridge stopped");
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn rest(&mut self) {
        let until = Instant::now() + self.backoff.next_wait();
        let mut events = Events::with_capacity(8);
        while !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.poll.poll(&mut events, Some(left)).is_err() {
                return;
            }
        }
    }

    // ---- connections

    /// Makes the session here before the remote is there, so that messages wait for it from now on.
    fn prepare(&mut self) -> Result<(), Broken> {
        let (mut line, _) = self.connect_local(1, RetainHandling::DoNotSend, QoS::ExactlyOnce)?;
        // The will says that the bridge is not connected.
        let reason = ReasonCode::DISCONNECT_WITH_WILL;
        self.relay
            .send(Side::Local, &Packet::Disconnect(Disconnect { reason, ..Disconnect::default() }));
        self.drain(&mut line, Side::Local)?;
        let deadline = Instant::now() + self.settings.connect_timeout;
        loop {
            match line.transport.read(&mut self.buffer) {
                Ok(ReadOutcome::End) | Err(_) => return Ok(()),
                Ok(ReadOutcome::Bytes(_)) => {}
                Ok(ReadOutcome::WouldBlock) => {
                    self.wait(&mut [&mut line], deadline, Side::Local)?;
                }
            }
        }
    }

    /// The connection to this node's broker, with its subscriptions; whether its session is new.
    fn connect_local(
        &mut self,
        receive_maximum: u16,
        retained: RetainHandling,
        qos_max: QoS,
    ) -> Result<(Line, bool), Broken> {
        let settings = &self.settings;
        let name = format!("bridge {}", settings.name);
        let identity = Identity::new(IdentityKind::Internal, &name, &self.local_id);
        let socket = self.connector.open(&name, identity, settings.session.clone());
        let socket = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        let socket = socket.map_err(|error| Broken::Io(Side::Local, error))?;
        let mut line = self.line(TcpStream::from_std(socket), None, Side::Local)?;
        self.reset(Side::Local, Version::V5);
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: false,
            keep_alive: 0,
            client_id: self.local_id.clone(),
            will: Some(Will {
                topic: self.state_topic(),
                payload: b"0".to_vec(),
                qos: QoS::AtLeastOnce,
                retain: true,
                delay: 0,
                message_expiry: None,
                forwarded: Vec::new(),
            }),
            username: None,
            password: None,
            properties: ConnectProperties {
                session_expiry: Some(u32::MAX),
                receive_maximum: std::num::NonZeroU16::new(receive_maximum),
                ..ConnectProperties::default()
            },
        };
        let connack = self.greet(&mut line, Side::Local, connect)?;
        let is_new = !connack.session_present;
        self.is_new[Side::Local as usize] |= is_new;
        self.subscribe(Side::Local, retained, qos_max.min(self.settings.qos));
        Ok((line, is_new))
    }

    /// The connection to the remote, without subscriptions.
    fn connect_remote(&mut self) -> Result<(Line, Connack), Broken> {
        let mode = self.modes[self.mode];
        let version = if mode == Mode::V5 { Version::V5 } else { Version::V4 };
        let settings = &self.settings;
        let echoes = mode == Mode::V4 || (mode == Mode::Bridge && !settings.bridge_aware);
        if echoes && let Some(overlap) = settings.overlap() {
            // Another version may be taken the next time.
            self.mode = 0;
            return Err(Broken::Overlap(overlap));
        }
        let tls = match &settings.tls {
            None => None,
            Some(RemoteTls { config, .. }) => {
                let name = ServerName::try_from(settings.host.clone())
                    .map_err(|_| Broken::ServerName(settings.host.clone()))?;
                Some((config.clone(), name))
            }
        };
        let connect = Connect {
            version,
            bridge: mode == Mode::Bridge,
            clean_start: false,
            keep_alive: settings.keep_alive,
            client_id: settings.client_id.clone(),
            will: None,
            username: settings.username.clone(),
            password: settings.password.as_deref().map(<[u8]>::to_vec),
            properties: if version == Version::V5 {
                ConnectProperties {
                    session_expiry: Some(u32::MAX),
                    receive_maximum: std::num::NonZeroU16::new(settings.receive_maximum),
                    ..ConnectProperties::default()
                }
            } else {
                ConnectProperties::default()
            },
        };
        let socket = self.dial().inspect_err(|_| self.mode = 0)?;
        let mut line = self.line(socket, tls, Side::Remote)?;
        self.reset(Side::Remote, version);
        let greeted = self.greet(&mut line, Side::Remote, connect);
        if greeted.as_ref().is_err_and(Broken::is_for_version) {
            self.mode = (self.mode + 1) % self.modes.len();
        }
        Ok((line, greeted?))
    }

    fn dial(&mut self) -> Result<TcpStream, Broken> {
        let peer = format!("{}:{}", self.settings.host, self.settings.port);
        let addresses = (&*self.settings.host, self.settings.port).to_socket_addrs();
        let addresses = addresses.map_err(|error| Broken::Resolve(peer.clone(), error))?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match self.dial_one(address) {
                Ok(Some(socket)) => return Ok(socket),
                Ok(None) => return Err(Broken::Stopped),
                Err(error) => last = error,
            }
        }
        Err(Broken::Connect(peer, last))
    }

    /// None if the bridge is to stop.
    fn dial_one(&mut self, address: SocketAddr) -> io::Result<Option<TcpStream>> {
        let mut socket = TcpStream::connect(address)?;
        let registry = self.poll.registry();
        registry.register(&mut socket, REMOTE, Interest::WRITABLE)?;
        let deadline = Instant::now() + self.settings.connect_timeout;
        let mut events = Events::with_capacity(8);
        loop {
            if self.is_stopped() {
                return Ok(None);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.poll.poll(&mut events, Some(left)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
            match socket.peer_addr() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
        self.poll.registry().deregister(&mut socket)?;
        let options = socket2::SockRef::from(&socket);
        options.set_tcp_nodelay(true)?;
        options.set_tcp_notsent_lowat(WRITE_BYTES_MAX as u32)?;
        Ok(Some(socket))
    }

    fn line(
        &mut self,
        mut socket: TcpStream,
        tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
        side: Side,
    ) -> Result<Line, Broken> {
        let token = if side == Side::Local { LOCAL } else { REMOTE };
        let both = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        registry.register(&mut socket, token, both).map_err(|error| Broken::Io(side, error))?;
        let transport = Transport::client(socket, tls).map_err(Broken::Tls)?;
        let wrote_at = Instant::now();
        // Edges tell of changes only: both are tried first.
        Ok(Line { transport, is_readable: true, is_writable: true, wrote_at, sent: 0 })
    }

    /// A connection begins without what the last one left.
    fn reset(&mut self, side: Side, version: Version) {
        let end = self.relay.end(side);
        let mut new = super::relay::End::new(version);
        if side == Side::Local {
            new.packet_bytes_max = end.packet_bytes_max;
        }
        *end = new;
    }

    /// Sends CONNECT and waits for CONNACK.
    fn greet(&mut self, line: &mut Line, side: Side, connect: Connect) -> Result<Connack, Broken> {
        let version = connect.version;
        self.relay.send(side, &Packet::Connect(Box::new(connect)));
        let deadline = Instant::now() + self.settings.connect_timeout;
        loop {
            self.flush(line, side)?;
            let is_more = self.read(line, side)?;
            let input = &mut self.relay.end(side).input;
            let wrong = |error| Broken::NoConnack(side, Some(error));
            let header = FixedHeader::decode(input, 1 << 20).map_err(wrong)?;
            if let Some(header) = header.filter(|header| input.len() >= header.packet_bytes()) {
                let body = &input[header.header_bytes..header.packet_bytes()];
                let packet = Packet::decode(version, header.first, body).map_err(wrong)?;
                let Packet::Connack(connack) = packet else {
                    return Err(Broken::NoConnack(side, None));
                };
                input.drain(..header.packet_bytes());
                if connack.reason.is_failure() {
                    return Err(Broken::Refused(side, connack.reason));
                }
                return Ok(*connack);
            }
            if !is_more {
                self.wait(&mut [line], deadline, side)?;
            }
        }
    }

    fn subscribe(&mut self, side: Side, retain_handling: RetainHandling, maximum_qos: QoS) {
        let end = self.relay.end(side);
        // Options that MQTT 3.1.1 does not have; the bridge bit stands for them there.
        let is_v5 = end.version == Version::V5;
        let retain_as_published = is_v5 && self.settings.retain;
        let filters = self.relay.way(side).topics.filters().iter().map(|filter| SubscribeFilter {
            filter: filter.clone(),
            maximum_qos,
            no_local: is_v5,
            retain_as_published,
            retain_handling: if is_v5 { retain_handling } else { RetainHandling::Send },
        });
        let filters: Vec<_> = filters.collect();
        if !filters.is_empty() {
            let packet = Subscribe {
                packet_id: SUBSCRIBE_ID,
                subscription_id: None,
                user_properties: Vec::new(),
                filters,
            };
            self.relay.send(side, &Packet::Subscribe(packet));
        }
    }

    fn state_topic(&self) -> String {
        format!("$SYS/broker/connection/{}/state", self.settings.name)
    }

    fn say_state(&mut self, payload: &[u8]) {
        let topic = self.state_topic();
        let state = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: true,
            topic: &topic,
            packet_id: None,
            properties: Default::default(),
            payload,
        };
        self.relay.send(Side::Local, &Packet::Publish(state));
    }

    // ---- carrying

    /// Connects to both and carries messages until something breaks.
    fn carry(&mut self) -> Result<std::convert::Infallible, Broken> {
        self.reset(Side::Local, Version::V5);
        let (mut remote, connack) = self.connect_remote()?;
        // The next connection tries the best one again: a remote may be another one after it was away.
        let mode = self.modes[std::mem::take(&mut self.mode)];
        let limits = &connack.properties;
        self.is_new[Side::Remote as usize] |= !connack.session_present;
        let end = &mut self.relay.remote;
        end.packet_bytes_max = limits
            .maximum_packet_size
            .map_or(end.packet_bytes_max, |bytes| end.packet_bytes_max.min(bytes as usize));
        end.retains = limits.retain_available.unwrap_or(true);
        let qos_max = limits.maximum_qos.unwrap_or(QoS::ExactlyOnce);
        let receive_maximum = limits.receive_maximum.map_or(u16::MAX, u16::from);
        let keep_alive = limits.server_keep_alive.unwrap_or(self.settings.keep_alive);
        // A side that lost its retained messages with its session is sent all of them.
        let handling = |other_is_new| {
            if other_is_new { RetainHandling::Send } else { RetainHandling::SendIfNew }
        };
        // A session that is new here is the one that `prepare` made.
        let out = handling(self.is_new.contains(&true));
        let (mut local, _) = self.connect_local(receive_maximum, out, qos_max)?;
        let [local_is_new, remote_is_new] = std::mem::take(&mut self.is_new);
        self.relay.out.begin(local_is_new, remote_is_new);
        self.relay.back.begin(remote_is_new, local_is_new);
        // Before MQTT 5 each subscription brings all retained messages.
        if mode == Mode::V5 || remote_is_new || local_is_new || !self.is_subscribed {
            self.subscribe(Side::Remote, handling(local_is_new), self.settings.qos.min(qos_max));
            self.is_subscribed = true;
        }
        self.say_state(b"1");
        self.counters.connects.fetch_add(1, Ordering::Relaxed);
        tracing::info!(bridge = %self.settings.name, host = %self.settings.host, port = self.settings.port, version = mode.word(),
            session_present = connack.session_present, "bridge up");
        let broken = match self.turn(&mut local, &mut remote, keep_alive) {
            Err(broken) => broken,
            Ok(never) => match never {},
        };
        if matches!(broken, Broken::Stopped) {
            self.farewell(&mut local, &mut remote);
        }
        Err(broken)
    }

    fn turn(
        &mut self,
        local: &mut Line,
        remote: &mut Line,
        keep_alive: u16,
    ) -> Result<std::convert::Infallible, Broken> {
        let keep_alive = Duration::from_secs(u64::from(keep_alive));
        let mut pinged_at: Option<Instant> = None;
        // Packets may have come behind CONNACK.
        self.relay.take(Side::Remote, &self.counters)?;
        self.relay.take(Side::Local, &self.counters)?;
        loop {
            let mut is_busy = false;
            for _ in 0..TURNS_MAX {
                is_busy = self.pass(Side::Local, local, remote)?;
                is_busy |= self.pass(Side::Remote, remote, local)?;
                if !is_busy {
                    break;
                }
            }
            if !self.told_looped
                && let Some(topic) = &self.relay.looped
            {
                tracing::warn!(bridge = %self.settings.name, topic,
                    "a message comes round and is not passed on; from now on such are counted only");
                self.told_looped = true;
            }
            let now = Instant::now();
            let mut wake_at = now + Duration::from_secs(60);
            if !keep_alive.is_zero() {
                if std::mem::take(&mut self.relay.remote.pong) {
                    pinged_at = None;
                }
                let is_reading = self.is_written(local, Side::Local);
                let due = match &mut pinged_at {
                    // An answer cannot be missed while nothing is read.
                    Some(at) if !is_reading => {
                        *at = now;
                        now + keep_alive
                    }
                    // Nor can one to a ping that has not left: a long payload may stand before it.
                    Some(at) => remote.wrote_at.max(*at) + keep_alive,
                    None => remote.wrote_at + keep_alive * 3 / 4,
                };
                if due <= now {
                    if pinged_at.is_some() {
                        return Err(Broken::Silent(Side::Remote));
                    }
                    pinged_at = Some(now);
                    self.relay.send(Side::Remote, &Packet::Pingreq);
                    continue;
                }
                wake_at = wake_at.min(due);
            }
            let wake_at = if is_busy { now } else { wake_at };
            self.watch(&mut [(LOCAL, local), (REMOTE, remote)], wake_at)
                .map_err(|error| Broken::Io(Side::Local, error))?;
            if self.is_stopped() {
                return Err(Broken::Stopped);
            }
        }
    }

    /// Writes what waits for the other side; if nothing is left there, reads once from this one. Whether there is more to do.
    fn pass(&mut self, side: Side, from: &mut Line, to: &mut Line) -> Result<bool, Broken> {
        self.flush(to, side.other())?;
        if !self.is_written(to, side.other()) {
            return Ok(false);
        }
        if self.relay.is_held(side) {
            return Ok(false);
        }
        // Packets that were held before go on, and those that are whole now.
        let is_more = self.read(from, side)?;
        self.relay.take(side, &self.counters)?;
        self.flush(to, side.other())?;
        self.flush(from, side)?;
        Ok(is_more)
    }

    fn is_written(&mut self, line: &Line, side: Side) -> bool {
        line.transport.is_clear() && line.sent == self.relay.end(side).output.len()
    }

    /// Reads once; false if there is nothing to read for now.
    fn read(&mut self, line: &mut Line, side: Side) -> Result<bool, Broken> {
        if !line.is_readable {
            return Ok(false);
        }
        match line.transport.read(&mut self.buffer) {
            Ok(ReadOutcome::Bytes(count)) => {
                self.relay.end(side).input.extend_from_slice(&self.buffer[..count]);
                Ok(true)
            }
            Ok(ReadOutcome::WouldBlock) => {
                line.is_readable = false;
                Ok(false)
            }
            Ok(ReadOutcome::End) => Err(Broken::Closed(side)),
            Err(error) => Err(Broken::Io(side, error)),
        }
    }

    /// Writes what waits, in pieces that the kernel can still be asked not to take.
    fn flush(&mut self, line: &mut Line, side: Side) -> Result<(), Broken> {
        let broken = |error| Broken::Io(side, error);
        let output = &mut self.relay.end(side).output;
        while line.is_writable {
            if !line.transport.is_clear() && !line.transport.flush().map_err(broken)? {
                line.is_writable = false;
                break;
            }
            if line.sent == output.len() {
                break;
            }
            let end = output.len().min(line.sent + WRITE_BYTES_MAX);
            let piece = [IoSlice::new(&output[line.sent..end])];
            let (written, takes_more) = line.transport.write(&piece).map_err(broken)?;
            line.sent += written;
            line.is_writable = takes_more;
            line.wrote_at = Instant::now();
        }
        if line.sent == output.len() && line.sent > 0 {
            output.clear();
            output.shrink_to(4 * READ_BYTES);
            line.sent = 0;
        }
        Ok(())
    }

    /// Writes all that waits for one side.
    fn drain(&mut self, line: &mut Line, side: Side) -> Result<(), Broken> {
        let deadline = Instant::now() + FAREWELL;
        loop {
            self.flush(line, side)?;
            if self.is_written(line, side) {
                return Ok(());
            }
            self.wait(&mut [line], deadline, side)?;
        }
    }

    /// Waits for one connection alone.
    fn wait(
        &mut self,
        lines: &mut [&mut Line; 1],
        deadline: Instant,
        side: Side,
    ) -> Result<(), Broken> {
        if Instant::now() >= deadline {
            return Err(Broken::Silent(side));
        }
        let token = if side == Side::Local { LOCAL } else { REMOTE };
        let [line] = lines;
        let watched = self.watch(&mut [(token, line)], deadline);
        watched.map_err(|error| Broken::Io(side, error))?;
        if self.is_stopped() { Err(Broken::Stopped) } else { Ok(()) }
    }

    /// Asks the kernel which connections can be read and written, until then at most.
    fn watch(&mut self, lines: &mut [(Token, &mut Line)], until: Instant) -> io::Result<()> {
        let mut events = Events::with_capacity(8);
        let timeout = until.saturating_duration_since(Instant::now());
        match self.poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &events {
            let Some((_, line)) = lines.iter_mut().find(|(token, _)| *token == event.token())
            else {
                continue;
            };
            line.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            line.is_writable |= event.is_writable() || event.is_error();
        }
        Ok(())
    }

    /// Leaves both brokers, if that can be said between two packets.
    fn farewell(&mut self, local: &mut Line, remote: &mut Line) {
        if self.relay.is_between(Side::Remote) {
            let is_v5 = self.modes[self.mode] == Mode::V5;
            let ends = is_v5 && self.forgets_remote.load(Ordering::Acquire);
            let session_expiry = ends.then_some(0);
            let farewell = Disconnect { session_expiry, ..Disconnect::default() };
            self.relay.send(Side::Remote, &Packet::Disconnect(farewell));
        }
        if self.relay.is_between(Side::Local) {
            // With the will, which says that the bridge is not connected.
            let reason = ReasonCode::DISCONNECT_WITH_WILL;
            let farewell = Disconnect { reason, ..Disconnect::default() };
            self.relay.send(Side::Local, &Packet::Disconnect(farewell));
        }
        for (line, side) in [(remote, Side::Remote), (local, Side::Local)] {
            let deadline = Instant::now() + FAREWELL;
            while self.flush(line, side).is_ok()
                && !self.is_written(line, side)
                && Instant::now() < deadline
            {
                let token = if side == Side::Local { LOCAL } else { REMOTE };
                if self.watch(&mut [(token, line)], deadline).is_err() {
                    break;
                }
            }
            line.transport.end();
        }
    }
}
