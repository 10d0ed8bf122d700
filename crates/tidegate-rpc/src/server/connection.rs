//! Accepted connections: TCP, handshake, identity.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use socket2::SockRef;
use tidegate_identity::{
    access::{Access, Identity},
    callers::{Peer, refused_login},
    pki::{PeerIdentity, PkiError},
};
use tidegate_message::{Code, LogLimiter};
use tidegate_process::{
    arrivals::{Arrivals, TurnedAway},
    clock,
    descriptors::{self, Descriptor, Front},
    places::Place,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::{HTTP2, room::Room, stream::Stream};
use crate::unread;

/// Handshakes under way, and connections without an authenticated call: in all, and of one address. Beyond it the one
/// that takes longest gives way.
const HANDSHAKES_MAX: usize = 512;
const HANDSHAKES_OF_ADDRESS_MAX: usize = 128;
const STRANGERS_MAX: usize = 256;
const STRANGERS_OF_ADDRESS_MAX: usize = 64;

/// A connection without a certificate and without an authenticated call by then is cut off.
const STRANGER_MAX: Duration = Duration::from_secs(15);

/// A peer that has not finished its handshake by then is cut off.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Bytes that are read of a peer without TLS after it was answered, and for how long.
const PLAIN_BYTES_MAX: u64 = 64 << 10;
const PLAIN_MAX: Duration = Duration::from_secs(1);

/// A peer over HTTP/1.1 that acknowledges nothing, or reads nothing, for this long is cut off.
const UNREAD_MAX: Duration = Duration::from_secs(60);

/// Unsent bytes the kernel may hold. A frame waits in its log, where a newer one can still take its
/// place, instead of in a buffer of megabytes.
const UNSENT_BYTES_MAX: u32 = 256 << 10;

/// The other end of a connection, for the calls over it.
pub(super) struct Caller {
    pub(super) peer: Peer,
    /// For messages of its calls that have not come whole.
    pub(super) partial: Arc<Room>,
}

/// A connection of a peer that is known, or will say with each call who it is.
pub(super) struct Connection {
    stream: Stream,
    caller: Arc<Caller>,
    /// Until a call over it authenticates.
    stranger: Option<Stranger>,
    _held: Held,
    /// While it lives, also after it has become a WebSocket.
    _lives: Option<TaskTrackerToken>,
}

/// Things that a connection gives back with its end.
#[derive(Debug)]
enum Held {
    Descriptor {
        _it: Descriptor,
    },
    /// Where connections are counted by their address as well.
    Place {
        _it: Place,
    },
}

impl Connection {
    /// One without TLS, whose caller is known from the beginning.
    ///
    /// # Errors
    /// Those of the system: mostly that the peer is gone.
    pub(super) fn plain(socket: TcpStream, caller: Arc<Caller>, place: Place) -> io::Result<Self> {
        set_up(&socket)?;
        Ok(Self {
            stream: Stream::Plain(socket),
            caller,
            stranger: None,
            _held: Held::Place { _it: place },
            _lives: None,
        })
    }

    pub(super) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Whether its peer chose HTTP/2 in the handshake. One that names no protocol speaks HTTP/1.1 (RFC 9113, section 3.3).
    fn is_http2(&self) -> bool {
        self.stream.protocol() == Some(HTTP2)
    }

    /// Makes it count among those of `tracker` while it lives, and has the kernel end it once its peer is gone or reads nothing.
    pub(super) fn watched(mut self, tracker: &TaskTracker) -> io::Result<Self> {
        unread::limit(self.stream.tcp(), UNREAD_MAX)?;
        self._lives = Some(tracker.token());
        Ok(self)
    }
}

/// Those who take connections up: HTTP/2 of peers with a certificate, HTTP/2 of others, and HTTP/1.1.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) certified: mpsc::Sender<io::Result<Connection>>,
    pub(super) open: mpsc::Sender<io::Result<Connection>>,
    /// Of either, that speak HTTP/1.1.
    pub(super) http1: mpsc::Sender<Connection>,
}

/// Connections without an authenticated call.
type Strangers = Arc<Mutex<Arrivals<CancellationToken>>>;

/// One of them: it ends after a time, or when it has to give way to another.
struct Stranger {
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
    number: u64,
    among: Strangers,
}

impl Stranger {
    fn new(address: SocketAddr, among: &Strangers) -> Self {
        let gives_way = CancellationToken::new();
        let mut all = among.lock().expect("no panic while it is held");
        let number = all.next();
        if let Some(gone) = all.begin(address.ip(), gives_way.clone()) {
            gone.cancel();
        }
        drop(all);
        let over = sleep(STRANGER_MAX);
        // Dropped with the connection, or when a call has authenticated.
        let ends = Box::pin(async move {
            tokio::select! {
                () = gives_way.cancelled() => {}
                () = over => {}
            }
        });
        Self { ends, number, among: among.clone() }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.among.lock().expect("no panic while it is held").end(self.number);
    }
}

/// The parts needed to accept a connection.
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
    connected: Connected,
    stop: CancellationToken,
) {
    let mut handshakes = JoinSet::new();
    let mut arrivals: Arrivals<AbortHandle> =
        Arrivals::new(HANDSHAKES_MAX, HANDSHAKES_OF_ADDRESS_MAX);
    let turned_away = TurnedAway::default();
    let strangers: Strangers =
        Arc::new(Mutex::new(Arrivals::new(STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX)));
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = handshakes.join_next() => arrivals.over(ended),
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    let take = || descriptors::take(Front::Api);
                    let Some(descriptor) = arrivals.take(&mut handshakes, take).await else {
                        turned_away.one(clock::now(), peer, Front::Api);
                        continue;
                    };
                    let (number, strangers) = (arrivals.next(), strangers.clone());
                    let (entrance, connected) = (entrance.clone(), connected.clone());
                    let handle = handshakes.spawn(async move {
                        admit(entrance, socket, peer, descriptor, &strangers, connected).await;
                        number
                    });
                    if let Some(gone) = arrivals.begin(peer.ip(), handle) {
                        tracing::debug!(newcomer = %peer, "the handshake that took longest gives way");
                        gone.abort();
                    }
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

/// Connections that did not come to be: of anyone who reaches the port.
static REFUSED: LogLimiter = LogLimiter::of_strangers();

async fn admit(
    entrance: Entrance,
    socket: TcpStream,
    peer: SocketAddr,
    descriptor: Descriptor,
    strangers: &Strangers,
    connected: Connected,
) {
    let shaken = handshake(&entrance, socket, peer, descriptor, strangers);
    match timeout(HANDSHAKE_MAX, shaken).await {
        Ok(Ok(connection)) => {
            // A server that stopped takes no connection: this one ends as well.
            if !connection.is_http2() {
                drop(connected.http1.send(connection).await);
                return;
            }
            let is_open = connection.stranger.is_some();
            let server = if is_open { connected.open } else { connected.certified };
            drop(server.send(Ok(connection)).await);
        }
        Ok(Err(error)) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let code = match error {
                Refused::Socket(_) => Code::LINK_DOWN,
                Refused::Tls(_) | Refused::Plain | Refused::Identity(_) => Code::IDENTITY_REFUSED,
            };
            if let Some(connections) = REFUSED.add(clock::now(), 1) {
                tracing::warn!(%peer, %code, %error, cause, connections, "a connection to the API was refused");
            }
            if code == Code::IDENTITY_REFUSED {
                entrance
                    .access
                    .audit
                    .tell(|| refused_login("api", peer.ip(), "", error.to_string()));
            }
        }
        Err(_) => {
            if let Some(connections) = REFUSED.add(clock::now(), 1) {
                let max_s = HANDSHAKE_MAX.as_secs();
                tracing::warn!(%peer, max_s, connections, "a TLS handshake took too long");
            }
        }
    }
}

async fn handshake(
    entrance: &Entrance,
    socket: TcpStream,
    address: SocketAddr,
    descriptor: Descriptor,
    strangers: &Strangers,
) -> Result<Connection, Refused> {
    set_up(&socket).map_err(Refused::Socket)?;
    let tls = match entrance.access.authenticator.takes_proofs() {
        true => &entrance.tls_open,
        false => &entrance.tls,
    };
    let acceptor = TlsAcceptor::from(tls.clone());
    if speaks_plainly(&socket).await.map_err(Refused::Tls)? {
        tell_of_tls(socket).await.map_err(Refused::Socket)?;
        return Err(Refused::Plain);
    }
    let stream = acceptor.accept(socket).await.map_err(Refused::Tls)?;
    let certificate = match stream.get_ref().1.peer_certificates() {
        // TLS let it in, so that it may show something else.
        None | Some([]) => None,
        Some(chain) => {
            let peer = PeerIdentity::of_chain(chain).map_err(Refused::Identity)?;
            Some(Arc::new(Identity::of_peer(&peer, Some(address.ip()))))
        }
    };
    let stranger = certificate.is_none().then(|| Stranger::new(address, strangers));
    let caller =
        Caller { peer: Peer::new(address, certificate), partial: Arc::new(Room::of_peer()) };
    let caller = Arc::new(caller);
    Ok(Connection {
        stream: Stream::Tls(Box::new(stream)),
        caller,
        stranger,
        _held: Held::Descriptor { _it: descriptor },
        _lives: None,
    })
}

fn set_up(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)
}

/// Whether the peer begins with a method of HTTP, as browsers do for `http://`, in place of a record of TLS.
async fn speaks_plainly(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(socket.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase())
}

/// Answers a peer without TLS, so that its person sees why nothing else comes.
async fn tell_of_tls(mut socket: TcpStream) -> io::Result<()> {
    const TEXT: &str =
        "This port speaks HTTPS: write https:// in place of http:// in the address.\n";
    let length = TEXT.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{TEXT}"
    );
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await?;
    // A socket that is closed with bytes unread resets its connection, and the answer may be lost by that.
    let (mut unread, mut nowhere) = (socket.take(PLAIN_BYTES_MAX), tokio::io::sink());
    match timeout(PLAIN_MAX, tokio::io::copy(&mut unread, &mut nowhere)).await {
        Ok(read) => read.map(drop),
        // A peer that sends nothing and does not close has the answer by then.
        Err(_) => Ok(()),
    }
}

/// Why a peer was turned away.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the socket could not be set up")]
    Socket(#[source] io::Error),
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
    #[error("the peer speaks HTTP without TLS; its address begins with https://")]
    Plain,
    #[error("the certificate names no identity")]
    Identity(#[source] PkiError),
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Arc<Caller>;

    fn connect_info(&self) -> Arc<Caller> {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.stranger.is_some() && self.caller.peer.has_proved() {
            self.stranger = None;
        }
        if let Some(stranger) = &mut self.stranger
            && stranger.ends.as_mut().poll(context).is_ready()
        {
            tracing::debug!("no call on the connection showed an identity in time: it is cut off");
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_over_which_nobody_shows_anything_ends() {
        let among: Strangers =
            Arc::new(Mutex::new(Arrivals::new(STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX)));
        let address = |last| SocketAddr::from(([192, 0, 2, last], 1));
        let mut first = Stranger::new(address(1), &among);
        assert!(first.ends.as_mut().now_or_never().is_none());
        let mut others: Vec<Stranger> =
            (0..STRANGERS_OF_ADDRESS_MAX).map(|_| Stranger::new(address(1), &among)).collect();
        let mut elsewhere = Stranger::new(address(2), &among);
        assert!(first.ends.as_mut().now_or_never().is_some(), "it gives way to those after it");
        assert!(others[0].ends.as_mut().now_or_never().is_none());
        tokio::time::advance(STRANGER_MAX).await;
        for stranger in others.iter_mut().chain([&mut elsewhere]) {
            assert!(stranger.ends.as_mut().now_or_never().is_some(), "its time is over");
        }
        drop((first, others, elsewhere));
        assert_eq!(among.lock().unwrap().len(), 0);
    }
}
