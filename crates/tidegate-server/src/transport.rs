//! Bytes of MQTT to and from a socket: plain, in TLS, in WebSocket frames, or both; and what a load balancer says before them.
//!
//! Always true: bytes handed over are handed on before anything else is taken, so that packets chosen later can still be
//! better ones; at most one write of the broker waits here.

use std::{
    io::{self, IoSlice, Read, Write},
    sync::Arc,
};

use mio::net::TcpStream;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use rustls_pki_types::{CertificateDer, ServerName};
use tidegate_message::{IdentityKind, origins::Origins, words::ProxyProtocol};
use tidegate_wire::{
    proxy::{HEADER_BYTES_MAX, Header, Source},
    websocket::{CloseCode, Decoder, Flow, Handshake, Paths, Step, binary_header, encode_close},
};

use tidegate_bus::pipe::ServerEnd;

/// Plain bytes that one TLS connection takes before they are on their way (MQTT's own writes are no larger).
const TLS_BUFFER_BYTES: usize = 16 << 10;

/// Bytes of a TLS handshake that each connection may have in addition to the memory for unauthenticated clients: an honest one, with a chain of certificates.
const HANDSHAKE_FREE_BYTES: usize = 4 << 10;

/// The carrier of a connection's bytes.
#[derive(Debug)]
enum Wire {
    Socket(TcpStream),
    /// A part of this program.
    Inside(ServerEnd),
}

impl Wire {
    fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.peek(buffer),
            Self::Inside(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        match self {
            Self::Socket(socket) => socket.shutdown(std::net::Shutdown::Write),
            Self::Inside(end) => {
                end.shut_down();
                Ok(())
            }
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.read(buffer),
            Self::Inside(end) => end.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.write_vectored(slices),
            Self::Inside(end) => end.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The way between a socket and MQTT.
#[derive(Debug)]
pub(super) struct Transport {
    wire: Wire,
    /// A header of the PROXY protocol is to come before all else.
    proxy: Option<ProxyProtocol>,
    /// The source of the connection by its header, until it is taken.
    source: Option<Source>,
    tls: Option<Box<Connection>>,
    /// Bytes of TLS that came while it was being opened.
    handshake_bytes: usize,
    websocket: Option<Box<WebSocket>>,
    /// Bytes for the socket that it did not take.
    staged: Vec<u8>,
    staged_sent: usize,
    /// The last read of the socket gave less than there was room for, so that the socket has nothing more until it says so.
    is_drained: bool,
    /// The last has been said.
    has_ended: bool,
    /// Nothing more can be written to the socket. Said once: the kernel answers it with an event that the socket is writable.
    is_shut: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// That many bytes of MQTT, perhaps none; the socket may have more.
    Bytes(usize),
    /// Nothing for now.
    WouldBlock,
    /// The peer sends no more.
    End,
}

impl Transport {
    pub(super) fn new(
        socket: TcpStream,
        tls: Option<Arc<ServerConfig>>,
        websocket: Option<(Paths, Arc<Origins>)>,
    ) -> Result<Self, rustls::Error> {
        let is_tls = tls.is_some();
        let tls = match tls {
            None => None,
            Some(config) => {
                let mut connection = Connection::from(ServerConnection::new(config)?);
                connection.set_buffer_limit(Some(TLS_BUFFER_BYTES));
                Some(Box::new(connection))
            }
        };
        let websocket = websocket.map(|(paths, origins)| {
            let handshake = Handshake::new(paths, origins, is_tls);
            Box::new(WebSocket { stage: WebSocketStage::Opening(handshake), refused: None })
        });
        Ok(Self::on(Wire::Socket(socket), tls, websocket))
    }

    /// The client's end, with TLS if there is whom to trust and the name to look for.
    pub(super) fn client(
        socket: TcpStream,
        tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    ) -> Result<Self, rustls::Error> {
        let tls = match tls {
            None => None,
            Some((config, name)) => {
                let mut connection = Connection::from(ClientConnection::new(config, name)?);
                connection.set_buffer_limit(Some(TLS_BUFFER_BYTES));
                Some(Box::new(connection))
            }
        };
        Ok(Self::on(Wire::Socket(socket), tls, None))
    }

    /// To a part of this program.
    pub(super) fn inside(end: ServerEnd) -> Self {
        Self::on(Wire::Inside(end), None, None)
    }

    fn on(wire: Wire, tls: Option<Box<Connection>>, websocket: Option<Box<WebSocket>>) -> Self {
        Self {
            wire,
            proxy: None,
            source: None,
            tls,
            handshake_bytes: 0,
            websocket,
            staged: Vec::new(),
            staged_sent: 0,
            is_drained: false,
            has_ended: false,
            is_shut: false,
        }
    }

    /// Reads a header of the PROXY protocol before all else.
    pub(super) fn behind_proxy(self, accepted: ProxyProtocol) -> Self {
        Self { proxy: Some(accepted), ..self }
    }

    /// The connection's source by its header of the PROXY protocol; once, when it has come.
    pub(super) fn take_source(&mut self) -> Option<Source> {
        self.source.take()
    }

    /// Why a request was refused and no WebSocket opened; once.
    pub(super) fn take_refusal(&mut self) -> Option<String> {
        self.websocket.as_mut()?.refused.take()
    }

    /// The socket; none to a part of this program.
    pub(super) fn socket(&mut self) -> Option<&mut TcpStream> {
        match &mut self.wire {
            Wire::Socket(socket) => Some(socket),
            Wire::Inside(_) => None,
        }
    }

    /// The end of a connection to a part of this program.
    pub(super) fn as_inside(&self) -> Option<&ServerEnd> {
        match &self.wire {
            Wire::Socket(_) => None,
            Wire::Inside(end) => Some(end),
        }
    }

    /// The identity in the client's certificate, once the handshake is over; `site` are the authorities of this site.
    pub(super) fn certificate(
        &self,
        site: &[CertificateDer<'_>],
    ) -> Option<(IdentityKind, String)> {
        super::certificate::named(self.peer_certificate()?, site)
    }

    /// The peer's certificate, once it was verified.
    pub(super) fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.peer_certificates().first()
    }

    /// The peer's certificate and those that it sent along, once they were verified; none if it showed none.
    pub(super) fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.tls.as_ref().and_then(|tls| tls.peer_certificates()).unwrap_or_default()
    }

    /// Whether nothing stands between MQTT and the socket.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none() && self.websocket.is_none()
    }

    /// Reads bytes of MQTT into `buffer`.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<ReadOutcome> {
        if !self.has_ended && self.websocket.as_ref().is_some_and(|websocket| websocket.is_closed())
        {
            return Ok(ReadOutcome::End);
        }
        if let Some(accepted) = self.proxy {
            return self.read_header(accepted, buffer);
        }
        let outcome = self.read_below(buffer)?;
        let (Some(websocket), ReadOutcome::Bytes(count)) = (&mut self.websocket, outcome) else {
            return Ok(outcome);
        };
        let (mut payload, mut reply) = (Vec::new(), Vec::new());
        let result = websocket.take(&buffer[..count], &mut payload, &mut reply);
        let is_closed = websocket.is_closed();
        self.send_raw(&reply)?;
        result?;
        if payload.is_empty() && is_closed && !self.has_ended {
            return Ok(ReadOutcome::End);
        }
        // Frames only take bytes away.
        buffer[..payload.len()].copy_from_slice(&payload);
        Ok(ReadOutcome::Bytes(payload.len()))
    }

    /// Reads a header of the PROXY protocol, once it is whole. Until then it stays with the kernel, which says when there is more of
    /// it: the bytes after it belong to TLS, and may come in the same segment.
    fn read_header(
        &mut self,
        accepted: ProxyProtocol,
        buffer: &mut [u8],
    ) -> io::Result<ReadOutcome> {
        let room = buffer.len().min(HEADER_BYTES_MAX);
        let count = match self.wire.peek(&mut buffer[..room]) {
            Ok(0) => return Ok(ReadOutcome::End),
            Ok(count) => count,
            Err(error) => return blocked(error).map(|()| ReadOutcome::WouldBlock),
        };
        let header = Header::decode(&buffer[..count], accepted)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let Some(Header { bytes, source }) = header else { return Ok(ReadOutcome::WouldBlock) };
        self.wire.read_exact(&mut buffer[..bytes])?;
        (self.proxy, self.source) = (None, Some(source));
        Ok(ReadOutcome::Bytes(0))
    }

    /// Bytes that its opening may hold: of a TLS handshake that has not ended, beyond what an honest one has, and of a WebSocket's request.
    pub(super) fn opening_bytes(&self) -> usize {
        let tls = self.tls.as_ref().filter(|tls| tls.is_handshaking());
        let tls = tls.map_or(0, |_| self.handshake_bytes.saturating_sub(HANDSHAKE_FREE_BYTES));
        tls + self.websocket.as_ref().map_or(0, |websocket| websocket.opening_bytes())
    }

    /// Whether another read would find nothing: a short read of a stream says so (epoll(7)). With TLS that is not known.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Reads what is in TLS, or on the socket.
    fn read_below(&mut self, buffer: &mut [u8]) -> io::Result<ReadOutcome> {
        let Some(tls) = &mut self.tls else {
            return match self.wire.read(buffer) {
                Ok(0) => Ok(ReadOutcome::End),
                Ok(count) => {
                    // The end of a service may stand behind its packets: one wake-up is for both.
                    let has_edges = matches!(self.wire, Wire::Socket(_));
                    self.is_drained = has_edges && count < buffer.len();
                    Ok(ReadOutcome::Bytes(count))
                }
                Err(error) => blocked(error).map(|()| ReadOutcome::WouldBlock),
            };
        };
        loop {
            match tls.reader().read(buffer) {
                Ok(0) => return Ok(ReadOutcome::End),
                Ok(count) => return Ok(ReadOutcome::Bytes(count)),
                Err(error) => blocked(error)?,
            }
            match tls.read_tls(&mut self.wire) {
                Ok(0) => return Ok(ReadOutcome::End),
                Ok(count) if tls.is_handshaking() => self.handshake_bytes += count,
                Ok(_) => self.handshake_bytes = 0,
                Err(error) => return blocked(error).map(|()| ReadOutcome::WouldBlock),
            }
            let result = tls.process_new_packets();
            // An alert goes out before the connection ends.
            while tls.wants_write() {
                match tls.write_tls(&mut self.wire) {
                    Ok(_) => {}
                    Err(error) => {
                        blocked(error)?;
                        break;
                    }
                }
            }
            result.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Whether the broker may be asked for more: nothing of what it gave waits here.
    pub(super) fn is_clear(&self) -> bool {
        self.staged.is_empty() && self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }

    /// Writes what waits here; true if nothing is left.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                match tls.write_tls(&mut self.wire) {
                    Ok(_) => {}
                    Err(error) => return blocked(error).map(|()| false),
                }
            }
            return Ok(true);
        }
        while self.staged_sent < self.staged.len() {
            match self.wire.write(&self.staged[self.staged_sent..]) {
                Ok(count) => self.staged_sent += count,
                Err(error) => return blocked(error).map(|()| false),
            }
        }
        self.staged = Vec::new();
        self.staged_sent = 0;
        Ok(true)
    }

    /// Takes bytes of MQTT: how many, and whether the socket takes more. Only while [`Transport::is_clear`].
    pub(super) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<(usize, bool)> {
        if self.tls.is_none() && self.websocket.is_none() {
            let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
            return match self.wire.write_vectored(slices) {
                Ok(count) => Ok((count, count == bytes)),
                Err(error) => blocked(error).map(|()| (0, false)),
            };
        }
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut framed = Vec::with_capacity(bytes + 10);
        if let Some(websocket) = &self.websocket {
            websocket.head(bytes, &mut framed);
        }
        for slice in slices {
            framed.extend_from_slice(slice);
        }
        self.send_raw(&framed)?;
        Ok((bytes, self.is_clear()))
    }

    /// Sends bytes that stand above the socket or TLS.
    fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match &mut self.tls {
            None => self.staged.extend_from_slice(bytes),
            Some(tls) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let count = tls.writer().write(rest)?;
                    rest = &rest[count..];
                    if count == 0 {
                        // A frame's head or a reply in addition to a full buffer: bytes that cannot wait are let
                        // through.
                        tls.set_buffer_limit(None);
                    }
                }
                tls.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            }
        }
        self.flush().map(|_| ())
    }

    /// Says on every layer that nothing more is sent, once all before it has left; to be called again when the socket takes
    /// bytes.
    pub(super) fn end(&mut self) {
        if !self.has_ended {
            self.has_ended = true;
            let mut close = Vec::new();
            if let Some(websocket) = &mut self.websocket {
                websocket.close(&mut close);
            }
            // A peer that does not take it any more does not need it.
            let _ = self.send_raw(&close);
            if let Some(tls) = &mut self.tls {
                tls.send_close_notify();
            }
        }
        if !self.is_shut && matches!(self.flush(), Ok(true)) {
            self.is_shut = true;
            let _ = self.wire.shut_down();
        }
    }
}

/// Would block and interrupted are no errors here.
fn blocked(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// The server's end of a WebSocket, from its opening on.
#[derive(Debug)]
struct WebSocket {
    stage: WebSocketStage,
    /// Why its request was refused, until that is taken.
    refused: Option<String>,
}

#[derive(Debug)]
enum WebSocketStage {
    Opening(Handshake),
    Open(Decoder),
    /// The other end closed, or was refused.
    Closed,
}

impl WebSocket {
    /// Bytes of MQTT go to `payload`, what must be sent back to `reply`.
    fn take(&mut self, input: &[u8], payload: &mut Vec<u8>, reply: &mut Vec<u8>) -> io::Result<()> {
        match &mut self.stage {
            WebSocketStage::Opening(handshake) => match handshake.receive(input) {
                Step::More => Ok(()),
                Step::Accept { response, rest } => {
                    reply.extend_from_slice(&response);
                    self.stage = WebSocketStage::Open(Decoder::of_client());
                    if rest.is_empty() { Ok(()) } else { self.take(&rest, payload, reply) }
                }
                Step::Refuse { response, reason } => {
                    reply.extend_from_slice(&response);
                    self.refused = Some(reason);
                    self.stage = WebSocketStage::Closed;
                    Ok(())
                }
            },
            WebSocketStage::Open(decoder) => match decoder.decode(input, payload, reply) {
                Ok(Flow::Open) => Ok(()),
                Ok(Flow::Closed(_)) => {
                    self.stage = WebSocketStage::Closed;
                    Ok(())
                }
                Err(error) => {
                    self.stage = WebSocketStage::Closed;
                    Err(io::Error::new(io::ErrorKind::InvalidData, error))
                }
            },
            WebSocketStage::Closed => Ok(()),
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.stage, WebSocketStage::Closed)
    }

    fn opening_bytes(&self) -> usize {
        match &self.stage {
            WebSocketStage::Opening(handshake) => handshake.held_bytes(),
            WebSocketStage::Open(_) | WebSocketStage::Closed => 0,
        }
    }

    /// Begins a frame of `bytes`.
    fn head(&self, bytes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(binary_header(bytes).as_bytes());
    }

    /// Closes, if the other end has not.
    fn close(&mut self, out: &mut Vec<u8>) {
        if matches!(self.stage, WebSocketStage::Open(_)) {
            encode_close(CloseCode::NORMAL, None, out);
        }
        self.stage = WebSocketStage::Closed;
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net, time::Duration};

    use mio::{Events, Interest, Poll, Token};

    use super::*;

    #[test]
    fn the_memory_of_an_opening_that_does_not_end_is_known() {
        let pair = || {
            let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
            let peer = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, _) = listener.accept().unwrap();
            socket.set_nonblocking(true).unwrap();
            (TcpStream::from_std(socket), peer)
        };
        let mut buffer = vec![0; 64 << 10];
        let mut read_all = |transport: &mut Transport| {
            while let Ok(ReadOutcome::Bytes(_)) = transport.read(&mut buffer) {}
        };

        let (socket, mut peer) = pair();
        let mut transport =
            Transport::new(socket, None, Some((Paths::of(["/mqtt"]), Arc::default()))).unwrap();
        assert_eq!(transport.opening_bytes(), 0);
        let request = format!("GET /mqtt HTTP/1.1\r\nx: {}", "y".repeat(3_000));
        peer.write_all(request.as_bytes()).unwrap();
        read_all(&mut transport);
        assert!(transport.opening_bytes() >= 3_000);

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = key.cert.der().clone();
        let private = rustls::pki_types::PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], private.into())
            .unwrap();
        let (socket, mut peer) = pair();
        let mut transport = Transport::new(socket, Some(Arc::new(config)), None).unwrap();
        // Records of a ClientHello that says to have 60,000 bytes, which do not all come.
        let mut hello = vec![1, 0, 0xea, 0x60];
        hello.resize(40_000, 0);
        for part in hello.chunks(10_000) {
            peer.write_all(&[0x16, 3, 1, 0x27, 0x10]).unwrap();
            peer.write_all(part).unwrap();
        }
        read_all(&mut transport);
        assert!(transport.opening_bytes() >= 30_000, "{}", transport.opening_bytes());
    }

    #[test]
    fn an_ended_transport_rests_until_the_peer_ends_too() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut transport = Transport::new(TcpStream::from_std(socket), None, None).unwrap();
        let mut poll = Poll::new().unwrap();
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(transport.socket().unwrap(), Token(0), interest).unwrap();
        transport.end();
        let mut events = Events::with_capacity(8);
        let mut turns = 0;
        loop {
            poll.poll(&mut events, Some(Duration::from_millis(200))).unwrap();
            if events.is_empty() {
                break;
            }
            // The steps of a shard for a connection that closes and can be written to.
            transport.end();
            turns += 1;
            assert!(turns < 10, "each end calls for the next");
        }
        drop(peer);
        poll.poll(&mut events, Some(Duration::from_secs(5))).unwrap();
        assert!(!events.is_empty(), "the peer's end is seen");
    }
}
