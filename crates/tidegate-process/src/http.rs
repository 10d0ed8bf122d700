//! A client of HTTP/1.1: one connection at a time, kept while it is good, over TCP or TLS.
//!
//! Always true: redirections are not followed; no more of an answer is held than the client's limit; TLS is rustls with ring.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Request, Response, Uri,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{self, HeaderValue},
};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tidegate_message::host::without_brackets;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, lookup_host},
    sync::Mutex,
    time::Instant,
};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// Which addresses of a host may be connected to.
pub type Allowed<'a> = &'a (dyn Fn(IpAddr) -> bool + Sync);

/// Makes requests.
#[derive(Debug)]
pub struct HttpClient {
    tls: Arc<ClientConfig>,
    answer_bytes_max: usize,
    is_lenient: bool,
    kept: Mutex<Option<Kept>>,
}

/// A connection that may be used again.
#[derive(Debug)]
struct Kept {
    /// Scheme, host and port.
    to: (bool, String, u16),
    sender: SendRequest<Full<Bytes>>,
    /// The server's address.
    peer: Option<IpAddr>,
    /// When the newest request went out.
    asked_at: Instant,
    /// Moves its bytes.
    _driver: AbortOnDropHandle<()>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address is none.
    #[error("{uri} is not an http:// or https:// address")]
    Address {
        /// As it was given.
        uri: Uri,
    },
    /// There is no server.
    #[error("no connection to {host}:{port}")]
    Connect {
        /// The server.
        host: String,
        /// Its port.
        port: u16,
        /// The system's error, or that of TLS.
        source: io::Error,
    },
    /// It is not HTTP, or breaks off.
    #[error("the exchange with {host} was interrupted")]
    Exchange {
        /// The server.
        host: String,
        /// The fault of the exchange.
        source: hyper::Error,
    },
    /// The answer is too large or not whole.
    #[error("the answer of {host} is not whole, or larger than {bytes_max} bytes")]
    Answer {
        /// The server.
        host: String,
        /// The largest answer that is taken.
        bytes_max: usize,
        /// The fault of the body.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl HttpError {
    /// Whether the server is at an address that is not allowed.
    pub fn is_not_allowed(&self) -> bool {
        matches!(self, Self::Connect { source, .. } if NotAllowed::is_in(source))
    }
}

impl HttpClient {
    /// A client that trusts whom `tls` says, and takes answers of at most that many bytes.
    pub fn new(tls: Arc<ClientConfig>, answer_bytes_max: usize) -> Self {
        Self { tls, answer_bytes_max, is_lenient: false, kept: Mutex::new(None) }
    }

    /// The same client for servers of devices, which take names of headers for other ones if they are not written as usual, write
    /// theirs as they like, and begin an answer with `ICY 200` (SHOUTcast) or `HTTP 200`.
    #[must_use]
    pub fn lenient(self) -> Self {
        Self { is_lenient: true, ..self }
    }

    /// The whole answer to a request whose address is absolute. A kept connection that turns out to be closed is replaced once,
    /// and the request sent again: it must do no harm twice.
    ///
    /// # Errors
    /// [`HttpError`].
    ///
    /// # Cancel safety
    /// Dropping it ends the connection.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, HttpError> {
        let to = target(request.uri())?;
        // Taken out while it is used: a dropped call leaves none behind.
        let kept = self.kept.lock().await.take();
        if let Some(mut kept) = kept.filter(|kept| kept.to == to && !kept.sender.is_closed()) {
            match self.exchange(&mut kept.sender, request.clone(), &to.1).await {
                Err(HttpError::Exchange { .. }) => {}
                answered => return self.keep(kept, answered).await,
            }
        }
        let mut kept = self.connect(to, &|_| true).await?;
        let host = kept.to.1.clone();
        let answered = self.exchange(&mut kept.sender, request, &host).await;
        self.keep(kept, answered).await
    }

    /// The head of the answer to a request, as for [`HttpClient::send`], and its body as it comes, which may be without an end.
    ///
    /// # Errors
    /// [`HttpError`].
    ///
    /// # Cancel safety
    /// Dropping it ends the connection.
    pub async fn open(&self, request: Request<Full<Bytes>>) -> Result<Response<Body>, HttpError> {
        self.open_where(request, &|_| true).await
    }

    /// The same from a server all of whose addresses are allowed; a connection to it that is kept was allowed before.
    ///
    /// # Errors
    /// [`HttpError`]; [`HttpError::is_not_allowed`] for a server that is not.
    ///
    /// # Cancel safety
    /// Dropping it ends the connection.
    pub async fn open_where(
        &self,
        request: Request<Full<Bytes>>,
        allowed: Allowed<'_>,
    ) -> Result<Response<Body>, HttpError> {
        let to = target(request.uri())?;
        let kept = self.kept.lock().await.take();
        if let Some(mut kept) = kept.filter(|kept| kept.to == to && !kept.sender.is_closed()) {
            kept.asked_at = Instant::now();
            match ask(&mut kept.sender, request.clone(), &to.1).await {
                Err(HttpError::Exchange { .. }) => {}
                answered => return answered.map(|answer| Body::of(answer, kept)),
            }
        }
        let mut kept = self.connect(to, allowed).await?;
        let host = kept.to.1.clone();
        kept.asked_at = Instant::now();
        let answer = ask(&mut kept.sender, request, &host).await?;
        Ok(Body::of(answer, kept))
    }

    /// Uses the connection of a body that was read to its end again.
    pub async fn keep_body(&self, body: Body) {
        if body.is_at_end {
            *self.kept.lock().await = Some(body.kept);
        }
    }

    async fn keep(
        &self,
        kept: Kept,
        answered: Result<Response<Bytes>, HttpError>,
    ) -> Result<Response<Bytes>, HttpError> {
        if answered.is_ok() {
            *self.kept.lock().await = Some(kept);
        }
        answered
    }

    async fn exchange(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        request: Request<Full<Bytes>>,
        host: &str,
    ) -> Result<Response<Bytes>, HttpError> {
        let answer = ask(sender, request, host).await?;
        let (head, body) = answer.into_parts();
        let bytes_max = self.answer_bytes_max;
        let body = Limited::new(body, bytes_max).collect().await;
        let body =
            body.map_err(|source| HttpError::Answer { host: host.to_owned(), bytes_max, source })?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    async fn connect(
        &self,
        to: (bool, String, u16),
        allowed: Allowed<'_>,
    ) -> Result<Kept, HttpError> {
        let (is_tls, host, port) = &to;
        let failed = |source| HttpError::Connect { host: host.clone(), port: *port, source };
        let socket = connect(host, *port, allowed).await.map_err(failed)?;
        let peer = socket.peer_addr().ok().map(|address| address.ip());
        let tls = is_tls.then_some(&self.tls);
        let stream = secured(socket, host, tls).await.map_err(failed)?;
        let broken = |source| HttpError::Exchange { host: host.clone(), source };
        let mut protocol = http1::Builder::new();
        if self.is_lenient {
            protocol
                .title_case_headers(true)
                .allow_spaces_after_header_name_in_responses(true)
                .allow_obsolete_multiline_headers_in_responses(true)
                .ignore_invalid_headers_in_responses(true);
        }
        let stream: Box<dyn Stream> = match self.is_lenient {
            true => Box::new(Versioned::new(stream)),
            false => stream,
        };
        let handshake = protocol.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(broken)?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of HTTP ended");
            }
        });
        let asked_at = Instant::now();
        Ok(Kept { sender, peer, asked_at, _driver: AbortOnDropHandle::new(driver), to })
    }
}

/// Sends a request; the head of its answer comes back.
async fn ask(
    sender: &mut SendRequest<Full<Bytes>>,
    mut request: Request<Full<Bytes>>,
    host: &str,
) -> Result<Response<Incoming>, HttpError> {
    // On the wire the address is a path; the host stands in its header.
    let uri = std::mem::take(request.uri_mut());
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let value = HeaderValue::from_str(authority).expect("an authority that was parsed is a value");
    request.headers_mut().entry(header::HOST).or_insert(value);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().expect("the path of an address that was parsed is one");
    let broken = |source| HttpError::Exchange { host: host.to_owned(), source };
    sender.ready().await.map_err(broken)?;
    sender.send_request(request).await.map_err(broken)
}

/// The body of an answer as it comes.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    kept: Kept,
    is_at_end: bool,
}

impl Body {
    fn of(answer: Response<Incoming>, kept: Kept) -> Response<Self> {
        answer.map(|incoming| Self { is_at_end: false, incoming, kept })
    }

    /// The address of the server that it comes from, if the system knows it.
    pub const fn peer(&self) -> Option<IpAddr> {
        self.kept.peer
    }

    /// When its request went out, over a connection that was there.
    pub const fn asked_at(&self) -> Instant {
        self.kept.asked_at
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// [`HttpError::Exchange`]: it breaks off.
    ///
    /// # Cancel safety
    /// Cancel safe: no bytes are lost.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, HttpError>> {
        while let Some(frame) = self.incoming.frame().await {
            let broken = |source| HttpError::Exchange { host: self.kept.to.1.clone(), source };
            match frame.map_err(broken).map(hyper::body::Frame::into_data) {
                Ok(Ok(bytes)) => return Some(Ok(bytes)),
                // Trailers.
                Ok(Err(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        self.is_at_end = true;
        None
    }
}

/// A connection whose first answer gets the version of HTTP that it lacks, if so.
struct Versioned<S> {
    stream: S,
    /// The bytes that are held of the first answer, until its begin is known.
    head: Option<Vec<u8>>,
    /// Bytes to be given before those of the stream, and how many of them were.
    ready: (Vec<u8>, usize),
}

impl<S> Versioned<S> {
    const fn new(stream: S) -> Self {
        Self { stream, head: Some(Vec::new()), ready: (Vec::new(), 0) }
    }
}

/// The first bytes of an answer as HTTP has them; `None` if more are needed.
fn versioned(head: &[u8]) -> Option<Vec<u8>> {
    for word in [&b"ICY "[..], b"HTTP "] {
        if let Some(rest) = head.strip_prefix(word) {
            return Some([b"HTTP/1.0 ", rest].concat());
        }
        if word.starts_with(head) {
            return None;
        }
    }
    Some(head.to_vec())
}

impl<S: AsyncRead + Unpin> AsyncRead for Versioned<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(mut head) = self.head.take() {
            let mut bytes = [0; 64];
            let mut more = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut self.stream).poll_read(context, &mut more);
            if !matches!(read, Poll::Ready(Ok(()))) {
                self.head = Some(head);
                return read;
            }
            head.extend_from_slice(more.filled());
            match versioned(&head) {
                None if !more.filled().is_empty() => self.head = Some(head),
                begun => self.ready = (begun.unwrap_or(head), 0),
            }
        }
        let (bytes, given) = &mut self.ready;
        if *given < bytes.len() {
            let count = (bytes.len() - *given).min(buffer.remaining());
            buffer.put_slice(&bytes[*given..*given + count]);
            *given += count;
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Versioned<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connection by TCP, and by TLS where there is a configuration of it.
///
/// # Errors
/// The system's, or TLS's.
pub async fn dial(
    host: &str,
    port: u16,
    tls: Option<&Arc<ClientConfig>>,
) -> io::Result<Box<dyn Stream>> {
    secured(connect(host, port, &|_| true).await?, host, tls).await
}

/// A connection by TCP to a host all of whose addresses are allowed.
///
/// # Errors
/// The system's; one that holds [`NotAllowed`], before any address is tried.
pub async fn connect(host: &str, port: u16, allowed: Allowed<'_>) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    // All of them: a name may have one that is allowed in front of one that is not.
    if let Some(address) = addresses.iter().find(|address| !allowed(address.ip())) {
        let refused = NotAllowed { address: address.ip() };
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, refused));
    }
    TcpStream::connect(&addresses[..]).await
}

/// An address that may not be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is not allowed here")]
pub struct NotAllowed {
    /// The address.
    pub address: IpAddr,
}

impl NotAllowed {
    /// Whether a failure to connect is one.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|error| error.is::<Self>())
    }
}

async fn secured(
    socket: TcpStream,
    host: &str,
    tls: Option<&Arc<ClientConfig>>,
) -> io::Result<Box<dyn Stream>> {
    socket.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(socket)) };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(Box::new(TlsConnector::from(tls.clone()).connect(name, socket).await?))
}

/// A connection to a server, with TLS or without.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Whether by TLS, the host without brackets, and the port.
///
/// # Errors
/// [`HttpError::Address`].
pub fn target(uri: &Uri) -> Result<(bool, String, u16), HttpError> {
    let wrong = || HttpError::Address { uri: uri.clone() };
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong()),
    };
    let host = uri.host().ok_or_else(wrong)?;
    let host = without_brackets(host).to_owned();
    Ok((is_tls, host, uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 })))
}
