//! Images by gRPC: a call for each, or messages of one stream, over a connection and a runtime of the client's own.
//!
//! The runtime runs while an answer is waited for, on the client's thread: no other thread wakes and takes part in a latency.

use std::{future::Future, io, sync::Arc, time::Duration};

use rustls_pki_types::ServerName;
use tidegate_client::{
    ApiError, Code, DetectConnection, DetectStream,
    proto::{DetectRequest, DetectResponse, Refusal, detect_response::Result as Outcome},
};
use tokio::{
    net::TcpStream,
    runtime::{Builder, Runtime},
};
use tokio_rustls::TlsConnector;

use super::{
    endpoint::model,
    images::Image,
    link::LinkError,
    spec::{Connection, VisionSpec},
};

/// The protocol that TLS agrees on.
const HTTP2: &[u8] = b"h2";

/// An open connection.
pub(super) struct Call {
    runtime: Runtime,
    connection: DetectConnection,
    /// The stream of images, where images travel by one.
    stream: Option<DetectStream>,
    model: String,
    timeout: Duration,
    /// Of the images of a stream.
    next: u64,
}

impl Call {
    /// Connects, and opens the stream.
    pub(super) fn open(spec: &VisionSpec) -> Result<Self, CallError> {
        let target = &spec.target;
        let failed = |source| CallError::Runtime { source };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let tcp = target.reach()?;
        let broke = |source| LinkError::of(source, target.timeout);
        tcp.set_nodelay(true).map_err(broke)?;
        tcp.set_nonblocking(true).map_err(broke)?;
        let (scheme, authorization) =
            (if target.tls.is_some() { "https" } else { "http" }, spec.authorization.as_deref());
        let endpoint = format!("{scheme}://{}", target.authority());
        let (connection, stream) = within(&runtime, target.timeout, async {
            let tcp = TcpStream::from_std(tcp).map_err(broke)?;
            let mut connection = match &target.tls {
                None => DetectConnection::over(tcp, &endpoint, authorization).await?,
                Some(config) => {
                    let name = target.server_name.clone().unwrap_or_else(|| target.host.clone());
                    let name = ServerName::try_from(name).map_err(|_| LinkError::ServerName)?;
                    let mut config = (**config).clone();
                    config.alpn_protocols = vec![HTTP2.to_vec()];
                    let connector = TlsConnector::from(Arc::new(config));
                    let tls = connector.connect(name, tcp).await.map_err(broke)?;
                    DetectConnection::over(tls, &endpoint, authorization).await?
                }
            };
            let stream = match spec.connection {
                Connection::GrpcStream => Some(connection.stream().await?),
                _ => None,
            };
            Ok((connection, stream))
        })?;
        // An endpoint that stands for no model was refused before any thread began.
        let model = model(&spec.endpoint).unwrap_or_default().to_owned();
        Ok(Self { runtime, connection, stream, model, timeout: target.timeout, next: 0 })
    }

    /// Sends an image and reads the answer, which may be a refusal.
    pub(super) fn ask(&mut self, image: &Image) -> Result<DetectResponse, CallError> {
        let (model, image) = (self.model.clone(), image.bytes.clone());
        let request = DetectRequest { model, image, id: self.next };
        self.next += 1;
        let Self { runtime, connection, stream, timeout, .. } = self;
        let asked = within(runtime, *timeout, async {
            Ok(match stream {
                None => connection.detect(request).await?,
                Some(stream) => match stream.send(request).await {
                    Ok(()) => stream.answer().await?,
                    // The answers say why the stream ended.
                    Err(error) => return Err(stream.answer().await.err().unwrap_or(error).into()),
                },
            })
        });
        match asked {
            Err(CallError::Call(error)) if error.code() != Code::LINK_DOWN && stream.is_none() => {
                let (code, message) = (error.code().to_string(), error.to_string());
                let result = Some(Outcome::Refused(Refusal { code, message }));
                Ok(DetectResponse { id: self.next, result })
            }
            asked => asked,
        }
    }
}

fn within<T>(
    runtime: &Runtime,
    timeout: Duration,
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    runtime.block_on(async {
        match tokio::time::timeout(timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(LinkError::TimedOut { timeout }.into()),
        }
    })
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Call(#[from] ApiError),
    #[error("the system has no room for a runtime")]
    Runtime { source: io::Error },
}

impl CallError {
    /// Whether the server may have closed the connection before it saw the request.
    pub(super) fn is_ended(&self) -> bool {
        matches!(self, Self::Call(error) if error.code() == Code::LINK_DOWN)
    }
}
