//! `/healthz` and `/readyz` over HTTP/1.1.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::get,
};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tidegate_message::origins::Origins;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Health, HealthReport};
use crate::{
    arrivals::Arrivals,
    http1::{self, HeadBounds},
    pages::Pages,
};

/// Clients that ask at a time, and of one address; beyond them the one that takes longest gives way.
const CONNECTIONS_MAX: usize = 256;
const CONNECTIONS_OF_ADDRESS_MAX: usize = 64;
/// For a whole connection: an answer takes microseconds, and who asks again may come again.
const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// Of a question.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEAD: HeadBounds =
    HeadBounds { bytes_max: HEAD_BYTES_MAX, lines_max: 64, time_max: CONNECTION_MAX };
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why health cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("node.health_listen: {address} cannot be listened on")]
pub struct HealthError {
    address: SocketAddr,
    source: io::Error,
}

/// Answers on `address` until `stop`: `/healthz` with 200 while the node is alive, `/readyz` with 200 while it is ready, else
/// with 503; the body is the [`HealthReport`] as JSON.
///
/// # Errors
/// [`HealthError`], before anything is answered.
pub async fn serve(
    address: SocketAddr,
    health: Health,
    stop: CancellationToken,
) -> Result<(SocketAddr, impl Future<Output = io::Result<()>>), HealthError> {
    let failed = |source| HealthError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let router = Router::new()
        .route(
            "/healthz",
            get(|State(health): State<Health>| answer(health, |report| report.alive)),
        )
        .route("/readyz", get(|State(health): State<Health>| answer(health, |report| report.ready)))
        .with_state(health);
    let serving = async move {
        let pages = Arc::new(Pages::new("health", Origins::default(), false));
        let mut connections = JoinSet::new();
        let mut arrivals: Arrivals<AbortHandle> =
            Arrivals::new(CONNECTIONS_MAX, CONNECTIONS_OF_ADDRESS_MAX);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(ended) = connections.join_next() => arrivals.over(ended),
                accepted = listener.accept() => match accepted {
                    Ok((socket, peer)) => {
                        let number = arrivals.next();
                        let (pages, router, stop) = (pages.clone(), router.clone(), stop.clone());
                        let handle = connections.spawn(async move {
                            converse(socket, peer, &pages, router, &stop).await;
                            number
                        });
                        if let Some(gone) = arrivals.begin(peer.ip(), handle) {
                            gone.abort();
                        }
                    }
                    Err(error) => {
                        // Most likely out of file descriptors: wait for some to come free.
                        tracing::warn!(%error, "the node's health cannot be served");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    };
    Ok((bound, serving))
}

/// Answers one connection. A slow client is cut off: others wait for the place.
async fn converse(
    socket: TcpStream,
    peer: SocketAddr,
    pages: &Pages,
    router: Router,
    stop: &CancellationToken,
) {
    let service = TowerToHyperService::new(router);
    let answer = async |request: hyper::Request<http1::RequestBody>| -> Response {
        if let Err(foreign) = pages.check(&request, peer) {
            let status = StatusCode::from_u16(foreign.status()).unwrap_or(StatusCode::FORBIDDEN);
            return (status, format!("{foreign}\n")).into_response();
        }
        let Ok(answer) = service.call(request.map(Body::new)).await;
        answer
    };
    match timeout(CONNECTION_MAX, http1::converse(socket, HEAD, answer, stop)).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a question about the node's health broke off"),
    }
}

async fn answer(
    health: Health,
    good: fn(&HealthReport) -> bool,
) -> (StatusCode, Json<HealthReport>) {
    let report = health.report();
    let status = if good(&report) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn slow_and_long_requests_are_cut_off() {
        let stop = CancellationToken::new();
        let (address, serving) =
            serve("127.0.0.1:0".parse().unwrap(), Health::default(), stop.clone()).await.unwrap();
        let serving = tokio::spawn(serving);
        let mut slow = tokio::net::TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
        let mut rest = Vec::new();
        slow.read_to_end(&mut rest).await.unwrap();
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
        let mut long = tokio::net::TcpStream::connect(address).await.unwrap();
        let head =
            format!("GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(4 * HEAD_BYTES_MAX));
        // It may be cut off before it is through, and without a word.
        let _ = long.write_all(head.as_bytes()).await;
        let mut rest = Vec::new();
        let _ = long.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
        stop.cancel();
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn silent_connections_and_foreign_pages_get_nothing() {
        let stop = CancellationToken::new();
        let any = "127.0.0.1:0".parse().unwrap();
        let (address, serving) = serve(any, Health::default(), stop.clone()).await.unwrap();
        let serving = tokio::spawn(serving);
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS_OF_ADDRESS_MAX {
            silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"), "it waits for none");
        for (fields, status) in [
            ("Host: node\r\n", 200),
            ("Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n", 403),
            ("Host: evil.example\r\nOrigin: http://evil.example\r\n", 421),
            ("Host: a\r\nHost: b\r\n", 400),
            ("", 400),
        ] {
            let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
            let request = format!("GET /readyz HTTP/1.1\r\n{fields}Connection: close\r\n\r\n");
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{fields}: {answer}");
        }
        drop(silent);
        stop.cancel();
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_node_that_is_alive_and_not_ready_says_so() {
        let health = Health::default();
        let link = health.condition("link to the edge node");
        let stop = CancellationToken::new();
        let any = "127.0.0.1:0".parse().unwrap();
        let (address, serving) = serve(any, health.clone(), stop.clone()).await.unwrap();
        let serving = tokio::spawn(serving);
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let answer = ask(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("has not begun"), "{answer}");
        link.holds();
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/other").await.starts_with("HTTP/1.1 404"));
        let taken = serve(address, health, stop.clone()).await.map(|_| ()).unwrap_err();
        assert!(taken.to_string().contains("node.health_listen"));
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
