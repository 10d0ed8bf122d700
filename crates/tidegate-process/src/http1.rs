//! One connection of HTTP/1.1, as each endpoint of a node serves it.
//!
//! An answer may come before the body of its request was read: to a stranger, to a body that is too long, to a path that is not there. A
//! socket that is closed with bytes unread resets its connection, and the peer, which still sends, loses the answer by that. So such a
//! connection lingers: the peer learns by the end of the stream that nothing more is sent, and what it sends is dropped until it ends
//! (RFC 9112, section 9.6).
//!
//! Always true: a request's head is bounded in bytes, lines and time; one request of a connection is under way at a time; after a stop a
//! connection ends with the answer that is under way; one lingers for at most [`LINGER_MAX`] and [`LINGER_BYTES_MAX`]; `Date` is what the clock
//! says when the answer begins.

use std::{
    convert::Infallible,
    error::Error,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use axum::http::{HeaderMap, HeaderValue, Request, Response, header};
use bytes::Bytes;
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::CancellationToken;

/// Longest time that a connection lingers, in all and of silence.
pub const LINGER_MAX: Duration = Duration::from_secs(30);
const SILENT_MAX: Duration = Duration::from_secs(5);
/// Most bytes that are dropped of a body whose request was answered: four times those of the longest that is taken anywhere.
pub const LINGER_BYTES_MAX: usize = 256 << 20;
/// The rest of a body that a client sends on without looking whether it was answered.
const SMALL_BYTES: u64 = 64 << 10;

/// Bounds on the head of a request.
#[derive(Clone, Copy, Debug)]
pub struct HeadBounds {
    /// Its bytes.
    pub bytes_max: usize,
    /// Its lines.
    pub lines_max: usize,
    /// The time for it, from the end of the answer before it.
    pub time_max: Duration,
}

/// Answers a connection's requests, one after another, until it ends, or is silent for too long, or `stop`.
///
/// # Errors
/// Those of the connection, among them requests that are none of HTTP/1.1.
pub async fn converse<S, A, F, B>(
    stream: S,
    bounds: HeadBounds,
    answer: A,
    stop: &CancellationToken,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<RequestBody>) -> F,
    F: Future<Output = Response<B>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let is_unread = Arc::new(AtomicBool::new(false));
    let stream = Lingering { stream, is_unread: is_unread.clone(), rest: None };
    let service = service_fn(|request: Request<Incoming>| {
        let is_unread = is_unread.clone();
        is_unread.store(!request.body().is_end_stream(), Ordering::Relaxed);
        let body_bytes = request.body().size_hint().upper();
        let answering =
            answer(request.map(|incoming| RequestBody { incoming, is_unread: is_unread.clone() }));
        async move {
            let mut answer = answering.await;
            if is_unread.load(Ordering::Relaxed) && body_bytes.is_none_or(|it| it > SMALL_BYTES) {
                // The rest would be taken for the next request.
                let close = HeaderValue::from_static("close");
                answer.headers_mut().entry(header::CONNECTION).or_insert(close);
            }
            date(answer.headers_mut());
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.time_max)
        .max_headers(bounds.lines_max)
        .max_buf_size(bounds.bytes_max);
    let served = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut served = std::pin::pin!(served);
    tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    }
}

/// Says when an answer was made, where it does not say so itself. The library's own `Date` is a second old at most, and as much in the
/// future as the clock was set back.
pub fn date(answer: &mut HeaderMap) {
    let now = httpdate::fmt_http_date(SystemTime::now());
    let now = HeaderValue::from_str(&now).expect("a date is plain text");
    answer.entry(header::DATE).or_insert(now);
}

/// The body of a request, of which the connection knows whether it was read.
#[derive(Debug)]
pub struct RequestBody {
    incoming: Incoming,
    is_unread: Arc<AtomicBool>,
}

impl RequestBody {
    fn ended(&self) {
        self.is_unread.store(false, Ordering::Relaxed);
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        if frame.is_none() || self.incoming.is_end_stream() {
            self.ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// A stream that lingers after its end was said, if a body was left unread.
struct Lingering<S> {
    stream: S,
    is_unread: Arc<AtomicBool>,
    /// The rest of an unread body, from the end of the last answer on.
    rest: Option<Rest>,
}

struct Rest {
    over: Pin<Box<Sleep>>,
    silent: Pin<Box<Sleep>>,
    bytes: usize,
}

impl Rest {
    fn new() -> Self {
        Self { over: Box::pin(sleep(LINGER_MAX)), silent: Box::pin(sleep(SILENT_MAX)), bytes: 0 }
    }

    /// Drops what comes until the peer ends, or has sent or taken too much.
    fn poll_drop<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        if self.over.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut bytes = [0; 16 << 10];
        while self.bytes < LINGER_BYTES_MAX {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {
                    self.bytes += buffer.filled().len();
                    self.silent.as_mut().reset(Instant::now() + SILENT_MAX);
                }
                // A peer that has reset the connection reads nothing more either.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return self.silent.as_mut().poll(context),
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.rest.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            if !this.is_unread.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let rest = this.rest.get_or_insert_with(Rest::new);
        rest.poll_drop(&mut this.stream, context).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use http_body_util::{BodyExt as _, Full};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const BOUNDS: HeadBounds =
        HeadBounds { bytes_max: 16 << 10, lines_max: 64, time_max: Duration::from_secs(10) };

    /// The other end of a connection whose requests are refused unread, but for `/read`.
    fn serve(
        stop: &CancellationToken,
    ) -> (DuplexStream, tokio::task::JoinHandle<hyper::Result<()>>) {
        let (ours, theirs) = duplex(4 << 10);
        let stop = stop.clone();
        let served = tokio::spawn(async move {
            let answer = async |request: Request<RequestBody>| {
                let mut answer = Response::new(Full::new(Bytes::from_static(b"no")));
                if request.uri().path() == "/read" {
                    request.into_body().collect().await.expect("a body");
                } else {
                    *answer.status_mut() = axum::http::StatusCode::UNAUTHORIZED;
                }
                answer
            };
            converse(ours, BOUNDS, answer, &stop).await
        });
        (theirs, served)
    }

    #[tokio::test(start_paused = true)]
    async fn answer_before_the_body_reaches_its_sender() {
        for bytes in [0, 10, 100 << 10, 8 << 20] {
            let (mut client, served) = serve(&CancellationToken::new());
            let head = format!("POST / HTTP/1.1\r\nHost: n\r\nContent-Length: {bytes}\r\n\r\n");
            client.write_all(head.as_bytes()).await.unwrap();
            // As a client does that sends all before it reads.
            client.write_all(&vec![7; bytes]).await.expect("nothing breaks while it sends");
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\nno") {
                let count = client.read_buf(&mut answer).await.expect("the answer");
                assert!(count > 0, "{bytes}: it ended within the answer");
            }
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 401 "), "{bytes}: {answer}");
            let closes = answer.to_ascii_lowercase().contains("connection: close");
            assert_eq!(closes, bytes > SMALL_BYTES as usize, "{bytes}: {answer}");
            drop(client);
            served.await.unwrap().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_ends_with_silence_and_after_its_time() {
        for (pause, expected) in
            [(Duration::from_secs(100), SILENT_MAX), (SILENT_MAX / 2, LINGER_MAX)]
        {
            let (mut client, mut served) = serve(&CancellationToken::new());
            let head = "POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 1000000\r\n\r\n";
            client.write_all(head.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            client.read_exact(&mut answer).await.unwrap();
            let began = Instant::now();
            let sent = AtomicUsize::new(0);
            tokio::select! {
                ended = &mut served => ended.unwrap().unwrap(),
                () = async { loop {
                    sleep(pause).await;
                    // The connection may have ended by then.
                    sent.fetch_add(client.write(&[7]).await.unwrap_or(0), Ordering::Relaxed);
                } } => {}
            }
            assert_eq!(began.elapsed().as_secs(), expected.as_secs(), "{sent:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_whose_bodies_were_read_stays_and_stops_at_once() {
        let stop = CancellationToken::new();
        let (mut client, served) = serve(&stop);
        for _ in 0..2 {
            let request = "POST /read HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\n\r\nabc";
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = vec![0; 4 << 10];
            let count = client.read(&mut answer).await.unwrap();
            let answer = String::from_utf8_lossy(&answer[..count]);
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("date: "), "{answer}");
        }
        let began = Instant::now();
        stop.cancel();
        served.await.unwrap().unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[test]
    fn date_is_the_clocks_and_may_be_said_before() {
        let mut answer = HeaderMap::new();
        date(&mut answer);
        let said = httpdate::parse_http_date(answer[header::DATE].to_str().unwrap()).unwrap();
        let apart = SystemTime::now().duration_since(said).expect("it is past");
        assert!(apart.as_secs() < 60, "{apart:?}");
        answer.insert(header::DATE, HeaderValue::from_static("x"));
        date(&mut answer);
        assert_eq!(answer[header::DATE], "x");
    }
}
