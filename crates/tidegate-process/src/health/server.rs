//! `/healthz` and `/readyz` over HTTP/1.1.

use std::{io, net::SocketAddr, time::Duration};

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Health, HealthReport};

/// Clients that ask at a time; others wait.
const CONNECTIONS_MAX: usize = 256;
/// For a whole connection: an answer takes microseconds, and who asks again may come again.
const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// Lines of a question's head, and its bytes.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 << 10;
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
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(ended) = connections.join_next() => if let Err(error) = ended {
                    tracing::error!(%error, "an answer about the node's health broke; this is a bug");
                },
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((socket, _)) => {
                        connections.spawn(converse(socket, router.clone()));
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
async fn converse(socket: TcpStream, router: Router) {
    let service = TowerToHyperService::new(router);
    let mut http = http1::Builder::new();
    http.max_headers(HEADERS_MAX).max_buf_size(HEAD_BYTES_MAX);
    match timeout(CONNECTION_MAX, http.serve_connection(TokioIo::new(socket), service)).await {
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
