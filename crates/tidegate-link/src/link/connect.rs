//! Making links: listening and dialling, on UDP and TCP of the same port number.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use quinn::{
    ConnectionError, EndpointConfig, IdleTimeout, TransportConfig, VarInt,
    congestion::CubicConfig,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rustls::{AlertDescription, CertificateError};
use rustls_pki_types::CertificateDer;
use tidegate_identity::{
    auth::{
        self,
        audit::{Audit, Entry, Outcome},
    },
    pki::{Credentials, Kind, NODE_SERVER_NAME, PeerIdentity},
};
use tidegate_message::{Code, Identity, IdentityKind, LogLimiter, error_chain};
use tidegate_process::{
    arrivals::{Arrivals, TurnedAway},
    clock,
    descriptors::{self, Descriptor, Front},
    threads::TaskThreads,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Handle as Runtime,
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Congestion, DownReason, Link, LinkError, LinkSettings, PROTOCOL, Transport,
    congestion::QueueBoundConfig,
    core::{Core, Handle},
    quic, tcp,
};

/// Peers that are being authenticated at once over each of QUIC and TCP, and of one address; beyond it the one that takes longest
/// gives way.
const HANDSHAKES_MAX: usize = 1024;
const HANDSHAKES_OF_ADDRESS_MAX: usize = 256;
/// Handshakes of QUIC from which on a peer must show first that it is where it says (RFC 9000 section 8.1.2): packets from
/// made-up addresses then take no slot.
const RETRIED_FROM: usize = 32;
/// Bytes of a QUIC connection that is not taken up yet, and of all such: a few packets, since each is looked at at once.
const UNTAKEN_BYTES: u64 = 64 << 10;
const UNTAKEN_BYTES_ALL: u64 = 16 << 20;
/// Such connections.
const UNTAKEN_MAX: usize = 1024;
/// Links that wait to be accepted.
const ACCEPTED_MAX: usize = 16;
/// Streams that a peer may have open at once.
const STREAMS_MAX: u32 = 128;
/// Flow control must never limit before congestion control does; memory is bounded by what is assembled.
const FLOW_WINDOW_BYTES: u32 = 256 << 20;
/// Acks are small and only the newest counts.
const DATAGRAM_BUFFER_BYTES: usize = 16 << 10;
/// The peer acknowledges packets at least this often: the window turns over in little more.
const PACKET_ACK_DELAY_MAX: Duration = Duration::from_millis(5);
/// Ports to try until one is free for both.
const PORT_ATTEMPTS: u32 = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Room for a burst between two turns of the reactor.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Accepts links on one port, over QUIC (UDP) and TCP.
pub struct Listener {
    address: SocketAddr,
    accepted: mpsc::Receiver<Link>,
    endpoint: quinn::Endpoint,
    accepting: JoinSet<()>,
}

impl Listener {
    /// Listens on `address`; port 0 chooses one that is free on both. Refused peers are written to `audit`.
    ///
    /// # Errors
    /// [`LinkError::Bind`]; [`LinkError::Credentials`] unless the credentials are a node's.
    pub async fn bind(
        address: SocketAddr,
        credentials: &Credentials,
        config: LinkSettings,
        audit: Audit,
    ) -> Result<Self, LinkError> {
        Self::bind_with(address, credentials, config, audit, Weak::new()).await
    }

    /// The same; links of other nodes over TCP, which carry messages and not frames, are on `threads` once their peers are authenticated.
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub async fn bind_with(
        address: SocketAddr,
        credentials: &Credentials,
        config: LinkSettings,
        audit: Audit,
        threads: Weak<TaskThreads>,
    ) -> Result<Self, LinkError> {
        let tls = Arc::new(credentials.server_tls(&[PROTOCOL])?);
        let crypto = QuicServerConfig::try_from(tls.clone()).expect("TLS 1.3 is always enabled");
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        server.transport_config(Arc::new(transport(&config)));
        server
            .max_incoming(UNTAKEN_MAX)
            .incoming_buffer_size(UNTAKEN_BYTES)
            .incoming_buffer_size_total(UNTAKEN_BYTES_ALL);
        let (udp, tcp) = bind_both(address)?;
        let runtime = Arc::new(quinn::TokioRuntime);
        let endpoint = quinn::Endpoint::new(EndpointConfig::default(), Some(server), udp, runtime)
            .map_err(LinkError::Socket)?;
        let address = endpoint.local_addr().map_err(LinkError::Socket)?;
        let (links, accepted) = mpsc::channel(ACCEPTED_MAX);
        let mut accepting = JoinSet::new();
        let quic = accept_quic(endpoint.clone(), config.clone(), audit.clone(), links.clone());
        accepting.spawn(quic);
        let tls = TlsAcceptor::from(tls);
        accepting.spawn(accept_tcp(tcp, (tls, threads), config, audit, links));
        Ok(Self { address, accepted, endpoint, accepting })
    }

    /// The address, with the port that was chosen.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// The next authenticated link. Peers that fail to authenticate are logged and disturb no other.
    ///
    /// # Errors
    /// [`LinkError::Socket`] if the sockets have failed.
    ///
    /// # Cancel safety
    /// No link is lost.
    pub async fn accept(&mut self) -> Result<Link, LinkError> {
        let ended = || LinkError::Socket(std::io::Error::other("the listener has ended"));
        self.accepted.recv().await.ok_or_else(ended)
    }

    /// Stops accepting; existing links stay.
    pub fn stop(&mut self) {
        self.endpoint.set_server_config(None);
        self.accepting.abort_all();
    }
}

/// Connects to the node at `address`. Returns once each side has accepted the other's certificate.
///
/// # Errors
/// [`LinkError::Unreachable`], [`LinkError::Refused`], [`LinkError::Socket`].
///
/// # Cancel safety
/// Nothing is left behind but what the peer may have accepted, which finds itself closed.
pub async fn dial(
    address: SocketAddr,
    credentials: &Credentials,
    config: LinkSettings,
    transport: Transport,
) -> Result<Link, LinkError> {
    let (head_start, limit) = (config.quic_head_start, config.connect_timeout);
    let quic = within(limit, address, Transport::Quic, dial_quic(address, credentials, &config));
    let tcp = within(limit, address, Transport::Tcp, dial_tcp(address, credentials, &config));
    match transport {
        Transport::Quic => quic.await,
        Transport::Tcp => tcp.await,
        Transport::Auto => race(head_start, quic, tcp).await,
    }
}

/// The link that is made first; the other dial is dropped, which closes it. `quic` has a head start. A peer
/// that refuses one refuses the other, so only an unreachable peer is worth the second try.
async fn race(
    head_start: Duration,
    quic: impl Future<Output = Result<Link, LinkError>>,
    tcp: impl Future<Output = Result<Link, LinkError>>,
) -> Result<Link, LinkError> {
    let (mut quic, mut tcp) = (pin!(quic), pin!(tcp));
    match time::timeout(head_start, &mut quic).await {
        Ok(Err(error @ LinkError::Unreachable { .. })) => {
            tracing::info!(%error, "falling back to TCP");
            return tcp.await;
        }
        Ok(dialled) => return dialled,
        Err(_) => {}
    }
    tokio::select! {
        biased;
        dialled = &mut quic => match dialled {
            Err(LinkError::Unreachable { .. }) => tcp.await,
            dialled => dialled,
        },
        dialled = &mut tcp => match dialled {
            Err(LinkError::Unreachable { .. }) => quic.await,
            dialled => {
                tracing::info!(head_start_ms = head_start.as_millis(), "TCP was there before QUIC");
                dialled
            }
        },
    }
}

async fn within(
    limit: Duration,
    address: SocketAddr,
    transport: Transport,
    dialled: impl Future<Output = Result<Link, LinkError>>,
) -> Result<Link, LinkError> {
    let reason = || format!("no answer in {} ms", limit.as_millis());
    let timed_out = || LinkError::Unreachable { address, transport, reason: reason() };
    time::timeout(limit, dialled).await.unwrap_or_else(|_| Err(timed_out()))
}

async fn dial_tcp(
    address: SocketAddr,
    credentials: &Credentials,
    config: &LinkSettings,
) -> Result<Link, LinkError> {
    let tls = TlsConnector::from(Arc::new(credentials.client_tls(PROTOCOL)?));
    let failed = |error: io::Error| tcp_error(address, &error);
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let stream = socket.map_err(LinkError::Socket)?.connect(address).await.map_err(failed)?;
    set_options(&stream, config)?;
    let name = NODE_SERVER_NAME.try_into().expect("it is a DNS name");
    let stream = tls.connect(name, stream).await.map_err(failed)?;
    let link = link_over_tcp(address, TlsStream::Client(stream), config.clone(), None)?;
    tokio::select! {
        () = link.handle.core.heard() => Ok(link),
        reason = link.closed() => match reason {
            // The alert comes after our side of the handshake is done (RFC 8446, section 4.4.2.4).
            DownReason::Broken { reason } if reason.contains("alert") => {
                Err(match reason.contains(REVOKED) {
                    true => LinkError::Revoked { address, ours: true },
                    false => LinkError::Refused { address, reason },
                })
            }
            reason => Err(LinkError::Unreachable {
                address,
                transport: Transport::Tcp,
                reason: reason.to_string(),
            }),
        },
    }
}

/// Tells a certificate that is not accepted from a peer that is not there.
fn tcp_error(address: SocketAddr, error: &io::Error) -> LinkError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRevoked)) => {
            LinkError::Revoked { address, ours: true }
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => {
            LinkError::Revoked { address, ours: false }
        }
        Some(tls) => LinkError::Refused { address, reason: tls.to_string() },
        None => {
            LinkError::Unreachable { address, transport: Transport::Tcp, reason: error.to_string() }
        }
    }
}

async fn accept_tcp(
    listener: TcpListener,
    (tls, threads): (TlsAcceptor, Weak<TaskThreads>),
    config: LinkSettings,
    audit: Audit,
    links: mpsc::Sender<Link>,
) {
    let mut handshakes = Handshakes::default();
    let turned_away = TurnedAway::default();
    loop {
        tokio::select! {
            Some(()) = handshakes.ended() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let (parts, limit) = ((tls.clone(), threads.clone()), config.connect_timeout);
                    let taken = handshakes.take(|| descriptors::take(Front::Link)).await;
                    let Some(descriptor) = taken else {
                        turned_away.one(clock::now(), address, Front::Link);
                        continue;
                    };
                    let answer = answer_tcp(stream, address, parts, config.clone(), descriptor);
                    handshakes.begin(address, limit, answer, &audit, &links);
                }
                Err(error) => {
                    // Out of file descriptors, most likely: give others the time to close some.
                    tracing::warn!(%error, "cannot accept a connection");
                    time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn answer_tcp(
    stream: TcpStream,
    address: SocketAddr,
    (tls, threads): (TlsAcceptor, Weak<TaskThreads>),
    config: LinkSettings,
    descriptor: Descriptor,
) -> Result<Link, LinkError> {
    set_options(&stream, &config)?;
    let stream = tls.accept(stream).await.map_err(|error| tcp_error(address, &error))?;
    let mut stream = TlsStream::Server(stream);
    let Some(runtime) = runtime_of(&stream, &threads)? else {
        return link_over_tcp(address, stream, config, Some(descriptor));
    };
    let moved = runtime.spawn(async move {
        // Another descriptor of the socket, which the reactor of this runtime knows.
        let socket = stream.get_mut().0;
        let other = socket.as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
        *socket = other.and_then(TcpStream::from_std).map_err(LinkError::Socket)?;
        link_over_tcp(address, stream, config, Some(descriptor))
    });
    let ended = |error| LinkError::Socket(io::Error::other(error));
    AbortOnDropHandle::new(moved).await.unwrap_or_else(|error| Err(ended(error)))
}

/// The runtime of the threads for links of nodes; none for that of a camera, whose frames are work for all processors.
fn runtime_of(
    stream: &TlsStream<TcpStream>,
    threads: &Weak<TaskThreads>,
) -> Result<Option<Runtime>, LinkError> {
    let Some(threads) = threads.upgrade() else { return Ok(None) };
    let (_, session) = stream.get_ref();
    let peer = PeerIdentity::of_chain(session.peer_certificates().unwrap_or_default())?;
    if peer.kind != Kind::Node {
        return Ok(None);
    }
    let key = u64::from_le_bytes(peer.node.0.first_chunk().copied().unwrap_or_default());
    threads.of(key).map(Some).map_err(LinkError::Socket)
}

fn link_over_tcp(
    address: SocketAddr,
    stream: TlsStream<TcpStream>,
    config: LinkSettings,
    descriptor: Option<Descriptor>,
) -> Result<Link, LinkError> {
    let (socket, session) = stream.get_ref();
    if session.alpn_protocol() != Some(PROTOCOL) {
        let reason = "the peer does not speak tidegate/1".to_owned();
        return Err(LinkError::Unreachable { address, transport: Transport::Tcp, reason });
    }
    let peer = PeerIdentity::of_chain(session.peer_certificates().unwrap_or_default())?;
    let socket = socket.as_fd().try_clone_to_owned().map_err(LinkError::Socket)?;
    let carrier = Arc::new(tcp::Tcp::new(socket, descriptor));
    let (handle, queues) = Core::begin(peer, address, config, carrier.clone());
    tcp::start(&handle.core, carrier, stream, queues);
    Ok(link(handle))
}

/// Bounds what the kernel holds unsent, and sends small chunks at once.
fn set_options(stream: &TcpStream, config: &LinkSettings) -> Result<(), LinkError> {
    let options = socket2::SockRef::from(stream);
    options.set_tcp_nodelay(true).map_err(LinkError::Socket)?;
    options.set_tcp_notsent_lowat(config.tcp_unsent_bytes_max).map_err(LinkError::Socket)?;
    if let Some(name) = &config.tcp_congestion {
        options.set_tcp_congestion(name.as_bytes()).map_err(LinkError::Socket)?;
    }
    Ok(())
}

/// UDP and TCP on one port number.
fn bind_both(address: SocketAddr) -> Result<(UdpSocket, TcpListener), LinkError> {
    for attempt in 1.. {
        let udp = udp_socket(address)?;
        let chosen = udp.local_addr().map_err(LinkError::Socket)?;
        let listening = std::net::TcpListener::bind(chosen).and_then(|tcp| {
            tcp.set_nonblocking(true)?;
            TcpListener::from_std(tcp)
        });
        match listening {
            Ok(tcp) => return Ok((udp, tcp)),
            // A port that the system chose for UDP may be taken for TCP.
            Err(source) if address.port() != 0 || attempt == PORT_ATTEMPTS => {
                return Err(LinkError::Bind { address: chosen, source });
            }
            Err(_) => {}
        }
    }
    unreachable!("the last attempt returns")
}

async fn dial_quic(
    address: SocketAddr,
    credentials: &Credentials,
    config: &LinkSettings,
) -> Result<Link, LinkError> {
    let tls = Arc::new(credentials.client_tls(PROTOCOL)?);
    let crypto = QuicClientConfig::try_from(tls).expect("TLS 1.3 is always enabled");
    let mut client = quinn::ClientConfig::new(Arc::new(crypto));
    client.transport_config(Arc::new(transport(config)));
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = udp_socket((any, 0).into())?;
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new(EndpointConfig::default(), None, socket, runtime)
        .map_err(LinkError::Socket)?;
    let failed = |error: &dyn ToString| LinkError::Unreachable {
        address,
        transport: Transport::Quic,
        reason: error.to_string(),
    };
    let connecting =
        endpoint.connect_with(client, address, NODE_SERVER_NAME).map_err(|error| failed(&error))?;
    let connection = connecting.await.map_err(|error| dial_error(address, error))?;
    let peer = identity(&connection)?;
    let link = link_over_quic(peer, connection.clone(), endpoint, config.clone());
    tokio::select! {
        () = link.handle.core.heard() => Ok(link),
        error = connection.closed() => Err(dial_error(address, error)),
    }
}

/// As a TCP link that is up says that it was ended by this alert.
const REVOKED: &str = "CertificateRevoked";
/// The alert certificate_revoked (RFC 8446 section 6) as QUIC carries it (RFC 9001 section 4.8).
const CERTIFICATE_REVOKED: u64 = 0x100 + 44;

/// Tells a certificate that is not accepted from a peer that is not there.
fn dial_error(address: SocketAddr, error: ConnectionError) -> LinkError {
    // Codes from 0x100 on are TLS alerts (RFC 9001, section 4.8).
    let is_alert = |code: quinn::TransportErrorCode| (0x100..0x200).contains(&u64::from(code));
    let is_revoked = |code| u64::from(code) == CERTIFICATE_REVOKED;
    let refused = match &error {
        ConnectionError::TransportError(error) if is_revoked(error.code) => {
            return LinkError::Revoked { address, ours: false };
        }
        ConnectionError::ConnectionClosed(close) if is_revoked(close.error_code) => {
            return LinkError::Revoked { address, ours: true };
        }
        ConnectionError::TransportError(error) => is_alert(error.code),
        ConnectionError::ConnectionClosed(close) => is_alert(close.error_code),
        _ => false,
    };
    let reason = error.to_string();
    if refused {
        LinkError::Refused { address, reason }
    } else {
        LinkError::Unreachable { address, transport: Transport::Quic, reason }
    }
}

async fn accept_quic(
    endpoint: quinn::Endpoint,
    config: LinkSettings,
    audit: Audit,
    links: mpsc::Sender<Link>,
) {
    let mut handshakes = Handshakes::default();
    loop {
        tokio::select! {
            Some(()) = handshakes.ended() => {}
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let (address, limit) = (incoming.remote_address(), config.connect_timeout);
                if handshakes.len() >= RETRIED_FROM && !incoming.remote_address_validated() {
                    // Costs one packet and no state; a peer that is there comes again with what is in it.
                    if let Err(error) = incoming.retry() {
                        tracing::debug!(%address, %error, "a peer cannot be asked to retry");
                    }
                    continue;
                }
                let answer = answer_quic(incoming, endpoint.clone(), config.clone());
                handshakes.begin(address, limit, answer, &audit, &links);
            }
        }
    }
}

/// Peers that are being authenticated.
struct Handshakes {
    arrivals: Arrivals<AbortHandle>,
    tasks: JoinSet<u64>,
}

impl Default for Handshakes {
    fn default() -> Self {
        let arrivals = Arrivals::new(HANDSHAKES_MAX, HANDSHAKES_OF_ADDRESS_MAX);
        Self { arrivals, tasks: JoinSet::new() }
    }
}

impl Handshakes {
    fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Authenticates one more; a peer that has taken too long for that is cut off.
    fn begin(
        &mut self,
        address: SocketAddr,
        limit: Duration,
        answer: impl Future<Output = Result<Link, LinkError>> + Send + 'static,
        audit: &Audit,
        links: &mpsc::Sender<Link>,
    ) {
        let (number, audit, links) = (self.arrivals.next(), audit.clone(), links.clone());
        let handle = self.tasks.spawn(async move {
            admit(address, limit, answer, audit, links).await;
            number
        });
        if let Some(gone) = self.arrivals.begin(address.ip(), handle) {
            tracing::debug!(newcomer = %address, "the handshake that took longest gives way");
            gone.abort();
        }
    }

    /// Takes what a peer needs to be authenticated, from those that have taken longest if there is no other.
    async fn take<T>(&mut self, take: impl FnMut() -> Option<T>) -> Option<T> {
        self.arrivals.take(&mut self.tasks, take).await
    }

    /// Waits until one is over; none while there are none.
    ///
    /// # Cancel safety
    /// Cancel safe: an end is reported the next time.
    async fn ended(&mut self) -> Option<()> {
        let ended = self.tasks.join_next().await?;
        self.arrivals.over(ended);
        Some(())
    }
}

/// Peers without a certificate of the site: anyone who reaches the port.
static REFUSED: LogLimiter = LogLimiter::of_strangers();

/// Waits for a handshake; a peer that fails it is logged and disturbs no other.
async fn admit(
    address: SocketAddr,
    limit: Duration,
    answer: impl Future<Output = Result<Link, LinkError>>,
    audit: Audit,
    links: mpsc::Sender<Link>,
) {
    match time::timeout(limit, answer).await {
        // Waits until the link is accepted; fails only when the listener is gone.
        Ok(Ok(link)) => drop(links.send(link).await),
        Ok(Err(error)) => {
            let code = error.code();
            // A check that finds a revoked certificate has said whose it is.
            let is_told = code == Code::IDENTITY_REVOKED;
            if let Some(peers) =
                Some(1).filter(|_| !is_told).and_then(|it| REFUSED.add(clock::now(), it))
            {
                tracing::warn!(%address, %code, reason = error_chain(&error), peers, "peer refused");
            }
            if code != Code::LINK_DOWN {
                audit.tell(|| refused(address, error_chain(&error)));
            }
        }
        Err(_) => {
            if let Some(peers) = REFUSED.add(clock::now(), 1) {
                tracing::warn!(%address, peers, "peer refused: handshake took too long");
            }
        }
    }
}

/// A peer that was not let in.
fn refused(address: SocketAddr, rule: String) -> Entry {
    let nobody = Identity {
        address: Some(address.ip()),
        ..Identity::new(IdentityKind::Certificate, "", "")
    };
    Entry {
        what: "login".to_owned(),
        rule,
        ..Entry::of(auth::now().wall, "link", &nobody, Outcome::Refused)
    }
}

async fn answer_quic(
    incoming: quinn::Incoming,
    endpoint: quinn::Endpoint,
    config: LinkSettings,
) -> Result<Link, LinkError> {
    let address = incoming.remote_address();
    let failed = |error| dial_error(address, error);
    let connection = incoming.accept().map_err(failed)?.await.map_err(failed)?;
    let peer = identity(&connection)
        .inspect_err(|_| connection.close(VarInt::from_u32(1), b"identity"))?;
    Ok(link_over_quic(peer, connection, endpoint, config))
}

fn link_over_quic(
    peer: PeerIdentity,
    connection: quinn::Connection,
    endpoint: quinn::Endpoint,
    config: LinkSettings,
) -> Link {
    let address = connection.remote_address();
    let carrier = Arc::new(quic::Quic::new(connection, endpoint));
    let (handle, queues) = Core::begin(peer, address, config, carrier.clone());
    quic::start(&handle.core, &carrier, queues);
    link(handle)
}

fn link(handle: Handle) -> Link {
    tracing::debug!(peer = %handle.core.peer, address = %handle.core.peer_address, "link up");
    Link { handle: Arc::new(handle) }
}

/// The peer's identity, by the certificate that TLS has verified.
fn identity(connection: &quinn::Connection) -> Result<PeerIdentity, LinkError> {
    let chain =
        connection.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'_>>>().ok());
    Ok(PeerIdentity::of_chain(&chain.unwrap_or_default())?)
}

fn transport(config: &LinkSettings) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::try_from(config.idle_timeout);
    let mut acks = quinn::AckFrequencyConfig::default();
    acks.max_ack_delay(Some(PACKET_ACK_DELAY_MAX));
    transport
        .max_idle_timeout(Some(idle.unwrap_or_else(|_| IdleTimeout::from(VarInt::MAX))))
        .keep_alive_interval(Some(config.keep_alive))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(FLOW_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(FLOW_WINDOW_BYTES))
        .send_window(u64::from(FLOW_WINDOW_BYTES))
        .send_fairness(false)
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
        .ack_frequency_config(Some(acks));
    match config.quic_congestion {
        Congestion::QueueBound => {
            let queue_allowed = config.queue_allowed;
            transport.congestion_controller_factory(Arc::new(QueueBoundConfig { queue_allowed }))
        }
        Congestion::Cubic => {
            transport.congestion_controller_factory(Arc::new(CubicConfig::default()))
        }
    };
    transport
}

fn udp_socket(address: SocketAddr) -> Result<UdpSocket, LinkError> {
    let socket = UdpSocket::bind(address).map_err(|source| LinkError::Bind { address, source })?;
    // The system may grant less, which costs throughput only.
    let options = socket2::SockRef::from(&socket);
    let _ = options.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = options.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Mutex};

    use tokio::sync::{OwnedSemaphorePermit, Semaphore};

    use super::*;

    /// A peer that has what it needs, and says nothing. Notes its end.
    struct Silent {
        _permit: OwnedSemaphorePermit,
        number: u8,
        ended: Arc<Mutex<Vec<u8>>>,
    }

    impl Drop for Silent {
        fn drop(&mut self) {
            self.ended.lock().unwrap().push(self.number);
        }
    }

    /// Peers that say nothing hold all descriptors that links may have: one of them gives its back to a newcomer.
    #[tokio::test]
    async fn where_no_descriptor_is_left_the_peer_that_took_longest_gives_way() {
        let descriptors = Arc::new(Semaphore::new(3));
        let take = || Arc::clone(&descriptors).try_acquire_owned().ok();
        let (links, _accepted) = mpsc::channel(1);
        let audit = Audit::default();
        let mut handshakes = Handshakes::default();
        let ended = Arc::new(Mutex::new(Vec::new()));
        for (number, from) in [(1, 9), (2, 1), (3, 1), (4, 1), (5, 2)] {
            let _permit = handshakes.take(take).await.expect("there always is one");
            let silent = Silent { _permit, number, ended: Arc::clone(&ended) };
            let answer = async move {
                let _silent = silent;
                pending().await
            };
            let address = ([192, 0, 2, from], 7000).into();
            handshakes.begin(address, Duration::from_secs(60), answer, &audit, &links);
        }
        // Of the address that had most, the oldest each time.
        assert_eq!(*ended.lock().unwrap(), [2, 3]);
        // Where other links have them all, none is left.
        let mut others = Vec::new();
        while let Some(permit) = handshakes.take(take).await {
            others.push(permit);
        }
        assert_eq!((others.len(), handshakes.len(), ended.lock().unwrap().len()), (3, 0, 5));
    }
}
