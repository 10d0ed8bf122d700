//! Servers of others: whether they are reached.

use std::{io, sync::Arc};

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tidegate_message::error_chain;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Connects to a server, with TLS if there are settings for it, and leaves again.
///
/// # Errors
/// Why it was not reached.
pub async fn server(host: &str, port: u16, tls: Option<Arc<ClientConfig>>) -> Result<(), String> {
    let failed = |error: io::Error| format!("{host}:{port}: {}", error_chain(&error));
    let socket = TcpStream::connect((host, port)).await.map_err(failed)?;
    let Some(tls) = tls else { return Ok(()) };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| format!("{host:?} is no name that a certificate can have"))?;
    TlsConnector::from(tls).connect(name, socket).await.map(drop).map_err(failed)
}
