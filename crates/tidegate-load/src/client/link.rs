//! The way to the broker: a socket, and TLS or a WebSocket on it.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream, ToSocketAddrs as _},
    time::{Duration, Instant},
};

use super::{ClientError, Options, Peer};
use crate::{layers::Layers, url::Endpoint};

const READ_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Link {
    peer: Peer,
    socket: TcpStream,
    layers: Option<Box<Layers>>,
    /// For the socket.
    wire: Vec<u8>,
    /// From the socket, if there are layers.
    raw: Vec<u8>,
}

impl Link {
    /// Connects, and opens every layer.
    pub(super) fn open(options: &Options) -> Result<Self, ClientError> {
        let peer = Peer::of(options);
        let endpoint = Endpoint {
            host: options.host.clone(),
            port: options.port,
            websocket: options.websocket.clone(),
        };
        let mut wire = Vec::new();
        let layers = Layers::begin(&endpoint, options.tls.as_ref(), &mut wire)
            .map_err(|error| ClientError::of_layer(peer.clone(), error))?;
        let socket = dial(options, &peer)?;
        let layers = layers.map(Box::new);
        let mut link = Self { peer, socket, layers, wire, raw: Vec::new() };
        link.flush().map_err(|source| link.broke(source))?;
        let until = Instant::now() + options.timeout;
        let mut early = Vec::new(); // who is not asked anything yet says nothing
        while link.layers.as_ref().is_some_and(|layers| !layers.is_open()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let wanted = if options.websocket.is_some() { "a WebSocket" } else { "TLS" };
                let timeout = options.timeout;
                return Err(ClientError::TimedOut { peer: link.peer, wanted, timeout });
            }
            link.read(&mut early, left)?;
        }
        match early.first() {
            None => Ok(link),
            Some(&first) => Err(ClientError::Unexpected { peer: link.peer, first }),
        }
    }

    /// Appends what there is to `input`, after at most `timeout`, which is over 0.
    pub(super) fn read(
        &mut self,
        input: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), ClientError> {
        if self.layers.as_ref().is_some_and(|layers| layers.has_ended()) {
            return Err(ClientError::Closed { peer: self.peer.clone() });
        }
        self.socket.set_read_timeout(Some(timeout)).map_err(|source| self.broke(source))?;
        let Some(layers) = &mut self.layers else {
            let at = input.len();
            input.resize(at + READ_BYTES, 0);
            let read = self.socket.read(&mut input[at..]);
            input.truncate(at + read.as_ref().map_or(0, |&bytes| bytes));
            return self.outcome(read).map(drop);
        };
        self.raw.resize(READ_BYTES, 0);
        let read = self.socket.read(&mut self.raw);
        let bytes = match read {
            Ok(bytes @ 1..) => bytes,
            other => return self.outcome(other).map(drop),
        };
        let received = layers.receive(&self.raw[..bytes], input, &mut self.wire);
        let flushed = self.flush();
        received.map_err(|error| ClientError::of_layer(self.peer.clone(), error))?;
        match flushed {
            Ok(()) => Ok(()),
            // A broker that has gone may have said something before, which counts; the next read tells of the end.
            Err(error) if is_gone(&error) => Ok(()),
            Err(source) => Err(self.broke(source)),
        }
    }

    fn outcome(&self, read: io::Result<usize>) -> Result<usize, ClientError> {
        match read {
            Ok(0) => Err(ClientError::Closed { peer: self.peer.clone() }),
            Ok(bytes) => Ok(bytes),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(0),
                io::ErrorKind::ConnectionReset => {
                    Err(ClientError::Closed { peer: self.peer.clone() })
                }
                _ => Err(self.broke(error)),
            },
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let written = match &mut self.layers {
            None => self.socket.write_all(bytes),
            Some(layers) => {
                layers.send(bytes, &mut self.wire);
                self.flush()
            }
        };
        written.map_err(|source| self.broke(source))
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.socket.write_all(&self.wire);
        self.wire.clear();
        written
    }

    /// Says farewell on each layer.
    pub(super) fn end(mut self) {
        if let Some(layers) = &mut self.layers {
            layers.end(&mut self.wire);
            let _ = self.flush(); // the broker closes at DISCONNECT, and may be faster
        }
    }

    /// Ends without a word.
    pub(super) fn abort(self) {
        let _ = self.socket.shutdown(Shutdown::Both); // it is ending either way
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    fn broke(&self, source: io::Error) -> ClientError {
        ClientError::Io { peer: self.peer.clone(), source }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Connects the socket. Writes wait as long as the options say; a caller that never waits says so itself.
///
/// # Errors
/// `Resolve`, `Connect` and `Io` of [`ClientError`].
pub(crate) fn dial(options: &Options, peer: &Peer) -> Result<TcpStream, ClientError> {
    let unknown = |source| ClientError::Resolve { peer: peer.clone(), source };
    let addresses = (&*options.host, options.port).to_socket_addrs().map_err(unknown)?;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(&address, options.timeout) {
            Ok(socket) => {
                let prepared = socket
                    .set_nodelay(true)
                    .and_then(|()| socket.set_write_timeout(Some(options.timeout)));
                prepared.map_err(|source| ClientError::Io { peer: peer.clone(), source })?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(ClientError::Connect { peer: peer.clone(), source: last })
}
