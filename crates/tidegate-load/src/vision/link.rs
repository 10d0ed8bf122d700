//! One connection to a server, TCP or TLS, read through a buffer. Blocks; every wait has an end.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;
use tidegate_message::host::Authority;

/// Bytes asked of the system at once.
const READ_BYTES: usize = 64 << 10;

/// Where a server is, and how it is reached.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// TLS; none for plain TCP.
    pub tls: Option<Arc<ClientConfig>>,
    /// The name in its certificate, where that is not its host.
    pub server_name: Option<String>,
    /// For a connection to be made, and for each piece of an answer.
    pub timeout: Duration,
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    wire: Wire,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken.
    at: usize,
    timeout: Duration,
}

#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Target {
    /// As a URL has it.
    #[must_use]
    pub fn authority(&self) -> String {
        Authority(&self.host, self.port).to_string()
    }

    /// A TCP connection alone.
    ///
    /// # Errors
    /// `Host`, `Connect` and `Broke` of [`LinkError`].
    pub fn reach(&self) -> Result<TcpStream, LinkError> {
        let unknown = |source| LinkError::Host { host: self.host.clone(), source };
        let addresses = (&*self.host, self.port).to_socket_addrs().map_err(unknown)?;
        let mut last = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, self.timeout) {
                Ok(tcp) => return Ok(tcp),
                Err(source) => last = Some(LinkError::Connect { address, source }),
            }
        }
        Err(last.unwrap_or_else(|| unknown(io::ErrorKind::NotFound.into())))
    }

    /// A connection, with the handshake of TLS over.
    ///
    /// # Errors
    /// Any of [`LinkError`].
    pub fn connect(&self) -> Result<Link, LinkError> {
        let mut tcp = self.reach()?;
        let broke = |source| LinkError::of(source, self.timeout);
        tcp.set_nodelay(true).map_err(broke)?;
        tcp.set_read_timeout(Some(self.timeout)).map_err(broke)?;
        tcp.set_write_timeout(Some(self.timeout)).map_err(broke)?;
        let wire = match &self.tls {
            None => Wire::Plain(tcp),
            Some(config) => {
                let name = self.server_name.clone().unwrap_or_else(|| self.host.clone());
                let name = ServerName::try_from(name).map_err(|_| LinkError::ServerName)?;
                let mut tls = ClientConnection::new(Arc::clone(config), name)?;
                while tls.is_handshaking() {
                    tls.complete_io(&mut tcp).map_err(broke)?;
                }
                Wire::Tls(Box::new(StreamOwned::new(tls, tcp)))
            }
        };
        Ok(Link { wire, buffer: Vec::new(), at: 0, timeout: self.timeout })
    }
}

impl Link {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// `TimedOut` and `Broke` of [`LinkError`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        let sent = match &mut self.wire {
            Wire::Plain(tcp) => tcp.write_all(bytes),
            Wire::Tls(tls) => tls.write_all(bytes).and_then(|()| tls.flush()),
        };
        sent.map_err(|source| LinkError::of(source, self.timeout))
    }

    /// Reads some more; returns how many bytes came.
    ///
    /// # Errors
    /// `Ended`, `TimedOut` and `Broke` of [`LinkError`].
    pub fn fill(&mut self) -> Result<usize, LinkError> {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        let start = self.buffer.len();
        self.buffer.resize(start + READ_BYTES, 0);
        let read = loop {
            let read = match &mut self.wire {
                Wire::Plain(tcp) => tcp.read(&mut self.buffer[start..]),
                Wire::Tls(tls) => tls.read(&mut self.buffer[start..]),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(start + read.as_ref().map_or(0, |bytes| *bytes));
        match read {
            Ok(0) => Err(LinkError::Ended),
            Ok(bytes) => Ok(bytes),
            Err(source) => Err(LinkError::of(source, self.timeout)),
        }
    }

    /// Bytes that were read and not taken.
    #[must_use]
    pub fn held(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// Takes the first `bytes` of [`Link::held`], or all of it.
    pub fn skip(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.buffer.len());
    }

    /// The next `bytes` bytes.
    ///
    /// # Errors
    /// Those of [`Link::fill`].
    pub fn take(&mut self, bytes: usize) -> Result<Vec<u8>, LinkError> {
        while self.held().len() < bytes {
            self.fill()?;
        }
        let taken = self.held()[..bytes].to_vec();
        self.skip(bytes);
        Ok(taken)
    }

    /// The bytes up to `end` and with it, at most `bytes_max`.
    ///
    /// # Errors
    /// `TooLong` of [`LinkError`], and those of [`Link::fill`].
    pub fn until(&mut self, end: &[u8], bytes_max: usize) -> Result<Vec<u8>, LinkError> {
        let mut looked_at = 0_usize;
        loop {
            let held = self.held();
            // The end may lie across two reads.
            let from = looked_at.saturating_sub(end.len() - 1);
            if let Some(at) = held[from..].windows(end.len()).position(|bytes| bytes == end) {
                return self.take(from + at + end.len());
            }
            looked_at = held.len();
            if looked_at > bytes_max {
                return Err(LinkError::TooLong { bytes_max });
            }
            self.fill()?;
        }
    }
}

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The name has no address.
    #[error("{host:?} has no address")]
    Host {
        /// The name.
        host: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The server takes no connection.
    #[error("no connection to {address}")]
    Connect {
        /// Where it is.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// TLS needs a name.
    #[error(
        "the host is not allowed as the name of a TLS server: write a DNS name or an IP address"
    )]
    ServerName,
    /// The handshake failed.
    #[error("TLS failed")]
    Tls(#[from] rustls::Error),
    /// Nothing came.
    #[error("no answer within {} s", timeout.as_secs_f64())]
    TimedOut {
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The server closed.
    #[error("closed by the server")]
    Ended,
    /// The connection broke.
    #[error("the connection broke")]
    Broke {
        /// The system's reason.
        source: io::Error,
    },
    /// An answer has no end.
    #[error("the head of an answer is longer than {bytes_max} bytes")]
    TooLong {
        /// Bytes that are allowed.
        bytes_max: usize,
    },
}

impl LinkError {
    pub(super) fn of(source: io::Error, timeout: Duration) -> Self {
        // TLS speaks through the errors of a socket.
        let source = match source.downcast::<rustls::Error>() {
            Ok(error) => return Self::Tls(error),
            Err(source) => source,
        };
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut { timeout },
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Self::Ended,
            _ => Self::Broke { source },
        }
    }

    /// Whether the server may have closed the connection before it saw the request.
    pub(super) fn is_ended(&self) -> bool {
        matches!(self, Self::Ended)
    }
}
