//! Making links: listening and dialling, on UDP and TCP of the same port number.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use quinn::{
    ConnectionError, EndpointConfig, IdleTimeout, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rustls_pki_types::CertificateDer;
use tokio::{sync::mpsc, task::JoinSet, time};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Link, LinkConfig, LinkError, PROTOCOL, Transport,
    congestion::QueueBoundConfig,
    core::{Carrier, Core, Handle},
    quic,
};
use crate::pki::{Credentials, NODE_SERVER_NAME, PeerIdentity};

/// Peers that are being authenticated at once; further ones wait.
const HANDSHAKES_MAX: usize = 64;
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
/// Room for a burst between two turns of the reactor.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Accepts links on one port, over QUIC (UDP) and TCP.
pub struct Listener {
    address: SocketAddr,
    accepted: mpsc::Receiver<Link>,
    endpoint: quinn::Endpoint,
    _accepting: AbortOnDropHandle<()>,
}

impl Listener {
    /// Listens on `address`; port 0 chooses one that is free on both.
    ///
    /// # Errors
    /// [`LinkError::Bind`]; [`LinkError::Credentials`] unless the credentials are a node's.
    pub async fn bind(
        address: SocketAddr,
        credentials: &Credentials,
        config: LinkConfig,
    ) -> Result<Self, LinkError> {
        let tls = Arc::new(credentials.server_tls(PROTOCOL)?);
        let crypto = QuicServerConfig::try_from(tls.clone()).expect("TLS 1.3 is always enabled");
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        server.transport_config(Arc::new(transport(&config)));
        let socket = udp_socket(address)?;
        let endpoint = quinn::Endpoint::new(
            EndpointConfig::default(),
            Some(server),
            socket,
            Arc::new(quinn::TokioRuntime),
        )
        .map_err(LinkError::Socket)?;
        let address = endpoint.local_addr().map_err(LinkError::Socket)?;
        let (links, accepted) = mpsc::channel(ACCEPTED_MAX);
        let accepting = accept_quic(endpoint.clone(), config, links);
        Ok(Self {
            address,
            accepted,
            endpoint,
            _accepting: AbortOnDropHandle::new(tokio::spawn(accepting)),
        })
    }

    /// The address, with the port that was chosen.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// The next authenticated link. Peers that fail to authenticate are logged and disturb nobody.
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

    /// Stops accepting; the links that exist go on.
    pub fn stop(&self) {
        self.endpoint.set_server_config(None);
    }
}

/// Connects to the node at `address`. Returns once each side has accepted the other's certificate.
///
/// # Errors
/// [`LinkError::Unreachable`], [`LinkError::Refused`], [`LinkError::Socket`].
pub async fn dial(
    address: SocketAddr,
    credentials: &Credentials,
    config: LinkConfig,
    transport: Transport,
) -> Result<Link, LinkError> {
    let limit = config.connect_timeout;
    let link = match transport {
        Transport::Quic | Transport::Auto | Transport::Tcp => {
            time::timeout(limit, dial_quic(address, credentials, config)).await
        }
    };
    link.unwrap_or_else(|_| {
        let reason = format!("no answer in {} ms", limit.as_millis());
        Err(LinkError::Unreachable { address, transport, reason })
    })
}

async fn dial_quic(
    address: SocketAddr,
    credentials: &Credentials,
    config: LinkConfig,
) -> Result<Link, LinkError> {
    let tls = Arc::new(credentials.client_tls(PROTOCOL)?);
    let crypto = QuicClientConfig::try_from(tls).expect("TLS 1.3 is always enabled");
    let mut client = quinn::ClientConfig::new(Arc::new(crypto));
    client.transport_config(Arc::new(transport(&config)));
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
    let link = link_over_quic(peer, connection.clone(), endpoint, config);
    tokio::select! {
        () = link.handle.core.heard() => Ok(link),
        error = connection.closed() => Err(dial_error(address, error)),
    }
}

/// Tells a certificate that is not accepted from a peer that is not there.
fn dial_error(address: SocketAddr, error: ConnectionError) -> LinkError {
    // Codes from 0x100 on are TLS alerts (RFC 9001, section 4.8).
    let is_alert = |code: quinn::TransportErrorCode| (0x100..0x200).contains(&u64::from(code));
    let refused = match &error {
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

async fn accept_quic(endpoint: quinn::Endpoint, config: LinkConfig, links: mpsc::Sender<Link>) {
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = handshakes.join_next() => report(ended),
            incoming = endpoint.accept(), if handshakes.len() < HANDSHAKES_MAX => {
                let Some(incoming) = incoming else { return };
                let (endpoint, config, links) = (endpoint.clone(), config.clone(), links.clone());
                handshakes.spawn(async move {
                    let address = incoming.remote_address();
                    let limit = config.connect_timeout;
                    match time::timeout(limit, answer_quic(incoming, endpoint, config)).await {
                        // Waits while nobody accepts; fails only when the listener is gone.
                        Ok(Ok(link)) => drop(links.send(link).await),
                        Ok(Err(error)) => {
                            tracing::warn!(%address, reason = chain(&error), "peer refused");
                        }
                        Err(_) => tracing::warn!(%address, "peer refused: handshake took too long"),
                    }
                });
            }
        }
    }
}

async fn answer_quic(
    incoming: quinn::Incoming,
    endpoint: quinn::Endpoint,
    config: LinkConfig,
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
    config: LinkConfig,
) -> Link {
    let address = connection.remote_address();
    let carrier = Carrier::Quic(quic::Quic::new(connection, endpoint));
    let (handle, queues) = Core::new(peer, address, config, carrier);
    quic::start(&handle.core, queues);
    link(handle)
}

fn link(handle: Handle) -> Link {
    tracing::debug!(peer = %handle.core.peer, address = %handle.core.peer_address, "link up");
    Link { handle: Arc::new(handle) }
}

/// Who the peer is, by the certificate that TLS has verified.
fn identity(connection: &quinn::Connection) -> Result<PeerIdentity, LinkError> {
    let chain =
        connection.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'_>>>().ok());
    Ok(PeerIdentity::of_chain(&chain.unwrap_or_default())?)
}

fn transport(config: &LinkConfig) -> TransportConfig {
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
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::new(QueueBoundConfig {
            queue_allowed: config.queue_allowed,
        }));
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

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended.map_err(|error| error.to_string()) {
        tracing::error!(error, "a handshake failed");
    }
}

/// An error with its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
