//! `/healthz` and `/readyz` over HTTP/1.1.

use std::{io, net::SocketAddr};

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Health, HealthReport};

/// Why nobody can ask.
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
        axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
    };
    Ok((bound, serving))
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
