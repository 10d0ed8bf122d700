//! Connections that speak HTTP/1.1: requests one after another, and WebSockets.
//!
//! Always true: a request's head is bounded in bytes, lines and time, and so is the pause between two requests; one request of a connection
//! is under way at a time; after a stop a connection ends with the answer that is under way.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::codegen::Service as _;

use super::connection::{Caller, Connection};

/// Lines of a request's head, and its bytes.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 32 << 10;
/// For a request's head, from the end of the answer before it.
const HEAD_MAX: Duration = Duration::from_secs(60);

/// Serves connections until `stop`, and then until all have ended.
pub(super) async fn serve(
    mut incoming: mpsc::Receiver<Connection>,
    router: Router,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    let living = TaskTracker::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => report(ended),
            connection = incoming.recv() => {
                let Some(connection) = connection else { break };
                match connection.watched(&living) {
                    Ok(connection) => _ = connections.spawn(converse(connection, router.clone(), stop.clone())),
                    Err(error) => tracing::debug!(%error, "a connection was gone before it was served"),
                }
            }
        }
    }
    // Those that wait to be taken up end as well.
    drop(incoming);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
    living.close();
    living.wait().await;
}

/// Says that a connection broke, if it did.
pub(super) fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection to the API broke; this is a bug");
    }
}

/// Answers one connection's requests.
pub(super) async fn converse(connection: Connection, router: Router, stop: CancellationToken) {
    let caller: Arc<Caller> = connection.caller().clone();
    let peer = caller.peer.address();
    let service = service_fn(|request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(caller.clone());
        router.clone().call(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    let served = builder.serve_connection(TokioIo::new(connection), service).with_upgrades();
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection to the API broke off");
    }
}
