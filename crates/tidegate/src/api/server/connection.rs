//! Accepted connections: TCP, handshake, identity.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use socket2::SockRef;
use tidegate_message::Code;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::caller::{Peer, refused_login};
use crate::{
    access::{Access, Identity},
    pki::{PeerIdentity, PkiError},
};

/// Handshakes under way; more peers wait in the kernel's backlog. So many that a thousand peers who begin one and say nothing
/// keep others waiting for [`HANDSHAKE_MAX`] once or twice, not for minutes.
const HANDSHAKES_MAX: usize = 512;

/// A peer that has not finished its handshake by then is cut off.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Unsent bytes the kernel may hold. A frame waits in its log, where a newer one can still take its
/// place, instead of in a buffer of megabytes.
const UNSENT_BYTES_MAX: u32 = 256 << 10;

/// A connection of a peer that is known, or will say with each call who it is.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Arc<Peer>,
}

/// What it takes to come in.
#[derive(Clone)]
pub(super) struct Entrance {
    pub(super) tls: Arc<rustls::ServerConfig>,
    pub(super) tls_open: Arc<rustls::ServerConfig>,
    pub(super) access: Access,
}

/// Accepts connections until `stop` and sends those whose peer is known to `connected`.
pub(super) async fn accept(
    listener: TcpListener,
    entrance: Entrance,
    connected: mpsc::Sender<io::Result<Connection>>,
    stop: CancellationToken,
) {
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = handshakes.join_next() => report(ended),
            accepted = listener.accept(), if handshakes.len() < HANDSHAKES_MAX => match accepted {
                Ok((socket, peer)) => {
                    handshakes.spawn(admit(entrance.clone(), socket, peer, connected.clone()));
                }
                Err(error) => {
                    // Most likely out of file descriptors: wait for some to come free.
                    tracing::warn!(%error, "no connection was accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn admit(
    entrance: Entrance,
    socket: TcpStream,
    peer: SocketAddr,
    connected: mpsc::Sender<io::Result<Connection>>,
) {
    match timeout(HANDSHAKE_MAX, handshake(&entrance, socket, peer)).await {
        // The server stopped taking connections: so does this one.
        Ok(Ok(connection)) => drop(connected.send(Ok(connection)).await),
        Ok(Err(error)) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let code = match error {
                Refused::Socket(_) => Code::LINK_DOWN,
                Refused::Tls(_) | Refused::Identity(_) => Code::IDENTITY_REFUSED,
            };
            tracing::warn!(%peer, %code, %error, cause, "a connection to the API was refused");
            if code == Code::IDENTITY_REFUSED {
                entrance
                    .access
                    .audit
                    .tell(|| refused_login("api", peer.ip(), "", error.to_string()));
            }
        }
        Err(_) => tracing::warn!(%peer, max = ?HANDSHAKE_MAX, "a TLS handshake took too long"),
    }
}

async fn handshake(
    entrance: &Entrance,
    socket: TcpStream,
    address: SocketAddr,
) -> Result<Connection, Refused> {
    socket.set_nodelay(true).map_err(Refused::Socket)?;
    SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_BYTES_MAX).map_err(Refused::Socket)?;
    let tls = match entrance.access.doors.takes_proofs() {
        true => &entrance.tls_open,
        false => &entrance.tls,
    };
    let acceptor = TlsAcceptor::from(tls.clone());
    let stream = acceptor.accept(socket).await.map_err(Refused::Tls)?;
    let certificate = match stream.get_ref().1.peer_certificates() {
        // TLS let it in, so that it may show something else.
        None | Some([]) => None,
        Some(chain) => {
            let peer = PeerIdentity::of_chain(chain).map_err(Refused::Identity)?;
            Some(Arc::new(Identity::of_peer(&peer, Some(address.ip()))))
        }
    };
    Ok(Connection { stream, peer: Arc::new(Peer::new(address, certificate)) })
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a handshake broke; this is a bug");
    }
}

/// Why a peer was turned away.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the socket could not be set up")]
    Socket(#[source] io::Error),
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
    #[error("the certificate names nobody")]
    Identity(#[source] PkiError),
}

impl Connected for Connection {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
