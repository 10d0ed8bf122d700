//! Connections that the caller makes, each time that a client needs one.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::{BoxFuture, Service, http::Uri};

/// The bytes of a connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Makes a connection to the one node that a client is for.
pub type Dial = Arc<dyn Fn() -> BoxFuture<Box<dyn Io>, io::Error> + Send + Sync>;

/// A [`Dial`] as channels want it.
#[derive(Clone)]
pub(crate) struct Dialled(pub(crate) Dial);

impl Service<Uri> for Dialled {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = io::Error;
    type Future = BoxFuture<Self::Response, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let made = (self.0)();
        Box::pin(async move { Ok(TokioIo::new(made.await?)) })
    }
}
