//! The socket of one connection of a load, with what may lie on it, and what it did not take yet. Never blocks.
//!
//! Always true: bytes leave in the order in which they were handed over; with plain TCP a batch costs one branch more than the
//! bare socket.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ClientConfig;

use crate::{
    layers::{LayerError, Layers},
    url::Endpoint,
};

/// Bytes that may wait without their memory being given back.
const KEPT_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Socket {
    tcp: TcpStream,
    /// Bytes of MQTT that are still to leave.
    out: Unsent,
    /// TLS and WebSocket; none with plain TCP.
    layered: Option<Box<Layered>>,
}

/// Layers, and what of theirs is still to leave.
#[derive(Debug)]
struct Layered {
    layers: Layers,
    wire: Unsent,
}

/// Bytes that a socket did not take yet.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    at: usize,
}

impl Socket {
    pub(crate) fn new(tcp: TcpStream) -> Self {
        Self { tcp, out: Unsent::default(), layered: None }
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// TCP has connected, or has failed: begins to open what lies on it.
    pub(crate) fn open(
        &mut self,
        endpoint: &Endpoint,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<(), SocketError> {
        if let Some(error) = self.tcp.take_error()? {
            return Err(error.into());
        }
        let mut wire = Unsent::default();
        if let Some(layers) = Layers::begin(endpoint, tls, &mut wire.bytes)? {
            self.layered = Some(Box::new(Layered { layers, wire }));
        }
        Ok(())
    }

    /// Whether MQTT may be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.layered.as_ref().is_none_or(|layered| layered.layers.is_open())
    }

    /// Whether MQTT's bytes are those of the socket.
    pub(crate) fn is_plain(&self) -> bool {
        self.layered.is_none()
    }

    /// Where bytes of MQTT are appended for the next [`Socket::flush`].
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out.bytes
    }

    /// Whether nothing waits.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty() && self.layered.as_ref().is_none_or(|layered| layered.wire.is_empty())
    }

    /// Writes what waits, as far as the socket takes it; returns whether it took any.
    pub(crate) fn flush(&mut self) -> Result<bool, SocketError> {
        let Some(layered) = &mut self.layered else { return self.out.write_to(&mut self.tcp) };
        if layered.layers.is_open() && !self.out.is_empty() {
            layered.layers.send(&self.out.bytes, &mut layered.wire.bytes);
            self.out.clear();
        }
        layered.wire.write_to(&mut self.tcp)
    }

    /// Writes `bytes` while nothing waits, and keeps what the socket does not take; returns whether it took any.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<bool, SocketError> {
        let Some(layered) = &mut self.layered else {
            let written = write(&mut self.tcp, bytes)?;
            self.out.bytes.extend_from_slice(&bytes[written..]);
            return Ok(written > 0);
        };
        if !bytes.is_empty() {
            layered.layers.send(bytes, &mut layered.wire.bytes);
        }
        layered.wire.write_to(&mut self.tcp)
    }

    /// Reads what is there; none if there is nothing.
    pub(crate) fn read(&mut self, input: &mut [u8]) -> Result<Option<usize>, SocketError> {
        loop {
            match self.tcp.read(input) {
                Ok(0) => return Err(SocketError::Ended),
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Appends the bytes of MQTT that are in `input` to `plain`; returns whether the broker said that no more come. Only if this
    /// is not plain.
    pub(crate) fn unwrap(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<bool, SocketError> {
        let Layered { layers, wire } = self.layered.as_deref_mut().expect("it is not plain");
        if let Err(error) = layers.receive(input, plain, &mut wire.bytes) {
            let _ = wire.write_to(&mut self.tcp); // why it ends, for a broker that still listens
            return Err(error.into());
        }
        Ok(layers.has_ended())
    }

    /// Says `farewell`, and on each layer that nothing more comes, while nothing waits and as far as the socket takes it.
    pub(crate) fn end(&mut self, farewell: &[u8]) {
        if let Some(Layered { layers, wire }) = self.layered.as_deref_mut() {
            layers.send(farewell, &mut wire.bytes);
            layers.end(&mut wire.bytes);
        } else {
            self.out.bytes.extend_from_slice(farewell);
        }
        let _ = self.flush(); // the broker may have gone first
    }

    /// Ends our way, and leaves unread what still comes, until the broker has ended its own or the time is over.
    pub(crate) fn linger(&mut self, at_most: Duration) {
        let _ = self.tcp.shutdown(Shutdown::Write); // it may have ended
        let until = Instant::now() + at_most;
        let mut input = [0; 4096];
        loop {
            match self.read(&mut input) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    let left = until.saturating_duration_since(Instant::now());
                    let time = Timespec {
                        tv_sec: left.as_secs().cast_signed(),
                        tv_nsec: left.subsec_nanos().into(),
                    };
                    let mut socket = [PollFd::new(&self.tcp, PollFlags::IN)];
                    if left.is_zero() || poll(&mut socket, Some(&time)).is_err() {
                        return;
                    }
                }
                Err(_) => return, // ended, in whichever way
            }
            if Instant::now() >= until {
                return;
            }
        }
    }

    /// Ends both ways; the descriptor stays.
    pub(crate) fn shutdown(&self) {
        let _ = self.tcp.shutdown(Shutdown::Both); // it may have ended
    }
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.at = 0;
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
    }

    fn write_to(&mut self, tcp: &mut TcpStream) -> Result<bool, SocketError> {
        let written = write(tcp, &self.bytes[self.at..])?;
        self.at += written;
        if self.at == self.bytes.len() {
            self.clear();
        }
        Ok(written > 0)
    }
}

/// Writes as far as the socket takes it; returns how many bytes it took.
fn write(tcp: &mut TcpStream, bytes: &[u8]) -> Result<usize, SocketError> {
    let mut at = 0;
    while at < bytes.len() {
        match tcp.write(&bytes[at..]) {
            Ok(0) => return Err(SocketError::Ended),
            Ok(written) => at += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(at)
}

/// Why a socket is of no more use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    #[error("closed by the broker")]
    Ended,
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Layer(#[from] LayerError),
}
