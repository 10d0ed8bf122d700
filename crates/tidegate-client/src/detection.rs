//! Calls of detection, an image in and boxes back, over a connection that the caller has made.
//!
//! Always true: there is one connection, which is never made again; once it is gone, every call fails with [`Code::LINK_DOWN`].

use std::{
    io,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use tidegate_message::Code;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Streaming,
    codegen::{BoxFuture, Service, http::Uri},
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use crate::{
    ApiError, failure,
    proto::{self, detect_client::DetectClient},
};

/// Answers with all boxes of an image are far below this.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A client of `tidegate.v1.Detect` on one connection.
#[derive(Debug)]
pub struct DetectConnection {
    stub: DetectClient<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl DetectConnection {
    /// Opens HTTP/2 over `io`, a TCP connection or one with TLS, to `endpoint`, such as `https://edge:7080`. `authorization` is shown with
    /// each call, as HTTP has it: `Bearer TOKEN`, or `Basic` with a user's name and password in base64.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] for an endpoint or an authorization that cannot stand in a request, [`Code::LINK_DOWN`] if the other end
    /// does not speak HTTP/2.
    pub async fn over<I>(
        io: I,
        endpoint: &str,
        authorization: Option<&str>,
    ) -> Result<Self, ApiError>
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let invalid = |what: &str| ApiError::new(Code::CONFIG_INVALID, what);
        let origin: Uri = endpoint
            .parse()
            .map_err(|_| invalid(&format!("{endpoint:?} is no address of a node")))?;
        let authorization = authorization.map(MetadataValue::try_from).transpose();
        let mut authorization = authorization
            .map_err(|_| invalid("the authorization has characters that no header may have"))?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true); // not in logs, nor in what HTTP/2 keeps to repeat
        }
        // TLS, if there is any, is below: the scheme of the channel is that of a plain one, and of the requests that of `endpoint`.
        let channel = Endpoint::from_static("http://connection")
            .origin(origin)
            .connect_with_connector(Made(Mutex::new(Some(io))))
            .await
            .map_err(|error| {
                ApiError::new(Code::LINK_DOWN, format!("no node answers at {endpoint}"))
                    .caused_by(tidegate_message::error_chain(&error))
            })?;
        let stub = DetectClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self { stub, authorization })
    }

    /// Has one image looked at by a call of its own.
    ///
    /// # Errors
    /// As the node refuses it; [`Code::LINK_DOWN`] if the connection is gone.
    ///
    /// # Cancel safety
    /// Cancel safe: a call that is dropped is reset, and the connection is as it was.
    pub async fn detect(
        &mut self,
        request: proto::DetectRequest,
    ) -> Result<proto::DetectResponse, ApiError> {
        let answer = self.stub.detect(shown(request, self.authorization.as_ref())).await;
        Ok(answer.map_err(failure)?.into_inner())
    }

    /// Opens a stream of images.
    ///
    /// # Errors
    /// As [`DetectConnection::detect`].
    pub async fn stream(&mut self) -> Result<DetectStream, ApiError> {
        let (requests, sent) = mpsc::channel(1); // a second one waits in `send`
        let call = shown(ReceiverStream::new(sent), self.authorization.as_ref());
        let answers = self.stub.detect_stream(call).await.map_err(failure)?.into_inner();
        Ok(DetectStream { requests, answers })
    }
}

fn shown<T>(message: T, authorization: Option<&MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", value.clone());
    }
    request
}

/// An open stream of images; dropping it ends it.
#[derive(Debug)]
pub struct DetectStream {
    requests: mpsc::Sender<proto::DetectRequest>,
    answers: Streaming<proto::DetectResponse>,
}

impl DetectStream {
    /// Sends an image. Answers come in any order, each with the id of its request.
    ///
    /// # Errors
    /// [`Code::LINK_DOWN`] if the stream has ended; [`DetectStream::answer`] says why.
    ///
    /// # Cancel safety
    /// Cancel safe: an image that is not sent is dropped.
    pub async fn send(&mut self, request: proto::DetectRequest) -> Result<(), ApiError> {
        self.requests.send(request).await.map_err(|_| ended())
    }

    /// The next answer, which may be a refusal of its image alone.
    ///
    /// # Errors
    /// As the node ended the stream; [`Code::LINK_DOWN`] if the connection is gone.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn answer(&mut self) -> Result<proto::DetectResponse, ApiError> {
        self.answers.message().await.map_err(failure)?.ok_or_else(ended)
    }
}

fn ended() -> ApiError {
    ApiError::new(Code::LINK_DOWN, "the node ended the stream of images")
}

/// Gives the connection that is there, once.
struct Made<I>(Mutex<Option<I>>);

impl<I: AsyncRead + AsyncWrite + Send + Unpin + 'static> Service<Uri> for Made<I> {
    type Response = TokioIo<I>;
    type Error = io::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let taken = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the connection is gone");
        let made = taken.map(TokioIo::new).ok_or_else(gone);
        Box::pin(async move { made })
    }
}
