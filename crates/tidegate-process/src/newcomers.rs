//! Connections that were accepted and have had no answer yet.
//!
//! One that says nothing costs a place, and places are bounded. So half of a listener's places are for newcomers, and where those are all
//! taken, the newcomer that has waited longest gives way to the next, of the address that has most ([`Arrivals`]). A connection is no newcomer
//! any more once it was answered: it has asked something.
//!
//! Always true: a newcomer that gives way, or is dropped, no longer counts; at most so many wait, and of one address.

use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::arrivals::Arrivals;

/// The newcomers of a listener. Clones are the same.
#[derive(Clone, Debug)]
pub struct Newcomers(Arc<Mutex<Arrivals<CancellationToken>>>);

impl Newcomers {
    /// At most `all_max` at a time, half of them of one address.
    pub fn new(all_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Arrivals::new(all_max, all_max.div_ceil(2)))))
    }

    /// Of a listener with so many places for connections: half of them. A listener of few places is full before that says anything: a
    /// client that opens some at once is no stranger for it.
    pub fn of_places(connections_max: usize) -> Self {
        Self::new(connections_max.div_ceil(2).max(32))
    }

    /// One more from `address`; another one may have to give way to it.
    pub fn begin(&self, address: IpAddr) -> Newcomer {
        let gives_way = CancellationToken::new();
        let mut all = self.all();
        let number = all.next();
        if let Some(gone) = all.begin(address, gives_way.clone()) {
            gone.cancel();
        }
        drop(all);
        Newcomer { gives_way, number, among: self.clone() }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn all(&self) -> MutexGuard<'_, Arrivals<CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection without an answer, as long as it is kept.
#[derive(Debug)]
pub struct Newcomer {
    gives_way: CancellationToken,
    number: u64,
    among: Newcomers,
}

impl Newcomer {
    /// Waits until it has to give way to another one.
    ///
    /// # Cancel safety
    /// Cancel safe: it stays so once it has to.
    pub fn gives_way(&self) -> WaitForCancellationFutureOwned {
        self.gives_way.clone().cancelled_owned()
    }

    /// Its connection, whose reads fail once it has to give way, until something was written to it.
    pub fn over<S>(self, stream: S) -> Guest<S> {
        let gives_way = Box::pin(self.gives_way());
        Guest { stream, newcomer: Some((self, gives_way)) }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.among.all().end(self.number);
    }
}

/// The connection of a newcomer.
#[derive(Debug)]
pub struct Guest<S> {
    stream: S,
    newcomer: Option<(Newcomer, Pin<Box<WaitForCancellationFutureOwned>>)>,
}

impl<S> Guest<S> {
    /// Something was written: it has asked for something.
    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(count)) if *count > 0) {
            self.newcomer = None;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guest<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some((_, gives_way)) = &mut self.newcomer
            && gives_way.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guest<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn silent_newcomer_gives_way_and_one_that_was_answered_does_not() {
        let newcomers = Newcomers::new(4);
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let connect = |last| {
            let (ours, theirs) = duplex(64);
            (newcomers.begin(address(last)).over(ours), theirs)
        };
        let (mut silent, _its_peer) = connect(1);
        let (mut answered, mut its_peer) = connect(1);
        answered.write_all(b"hello").await.unwrap();
        assert_eq!(newcomers.len(), 1);
        // Half of them are of one address.
        let more: Vec<_> = [connect(1), connect(1), connect(1)].into();
        let gone = silent.read(&mut [0]).await.expect_err("it has given way");
        assert_eq!(gone.kind(), io::ErrorKind::TimedOut);
        let elsewhere = connect(2);
        assert_eq!(newcomers.len(), 3, "an address has two, and the others their own");
        its_peer.write_all(b"x").await.unwrap();
        assert_eq!(answered.read(&mut [0]).await.unwrap(), 1);
        drop((more, elsewhere, silent));
        assert!(newcomers.is_empty());
    }
}
