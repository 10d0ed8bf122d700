//! Connections that speak HTTP/1.1: requests one after another, and WebSockets.
//!
//! Always true: what [`http1`] says of each connection.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::Request;
use tidegate_process::http1::{self, HeadBounds, RequestBody};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    task::{JoinError, JoinSet},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::codegen::Service as _;

use super::connection::{Caller, Connection};

const HEAD: HeadBounds =
    HeadBounds { bytes_max: 32 << 10, lines_max: 64, time_max: Duration::from_secs(60) };

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
                    Ok(connection) => {
                        let caller = connection.caller().clone();
                        connections.spawn(converse(connection, caller, router.clone(), stop.clone()));
                    }
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

/// Answers the requests of one connection, which are of `caller`.
pub(super) async fn converse(
    connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    caller: Arc<Caller>,
    router: Router,
    stop: CancellationToken,
) {
    let peer = caller.peer.address();
    let answer = async |request: Request<RequestBody>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(caller.clone());
        let Ok(answer) = router.clone().call(request).await;
        answer
    };
    if let Err(error) = http1::converse(connection, HEAD, answer, &stop).await {
        tracing::debug!(%error, %peer, "a connection to the API broke off");
    }
}
