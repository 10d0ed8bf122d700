//! Layers between MQTT and a socket: TLS, a WebSocket (MQTT 5.0 section 6), or one in the other. Without I/O.
//!
//! ```text
//!  socket ─▶ receive ─▶ out: MQTT's bytes        MQTT's bytes ─▶ send ─▶ wire: bytes for the socket
//!               └─────▶ wire: handshakes, pongs, alerts
//! ```
//!
//! Always true: however the input is cut, the output is the same; what is appended to `wire` leaves in that order, also after an
//! error, so that the other end learns of it.

use std::{
    io::{self, Read as _, Write as _},
    sync::Arc,
};

use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;
use tidegate_message::host::Authority;
use tidegate_wire::websocket::{
    ClientHandshake, CloseCode, Decoder, Flow, FrameError, HandshakeError, Masks, encode_binary,
    encode_close,
};

use crate::url::Endpoint;

/// TLS, a WebSocket, or both.
#[derive(Debug)]
pub(crate) struct Layers {
    tls: Option<ClientConnection>,
    websocket: WebSocket,
    has_ended: bool,
    /// Bytes between the two layers.
    between: Vec<u8>,
}

#[derive(Debug)]
enum WebSocket {
    None,
    Opening(ClientHandshake),
    Open { decoder: Decoder, masks: Masks },
}

impl Layers {
    /// Begins to open what `endpoint` asks for, with TLS if there is a configuration of it; none if that is plain TCP.
    ///
    /// # Errors
    /// `ServerName`, `Tls`, `Opening` and `Random` of [`LayerError`].
    pub(crate) fn begin(
        endpoint: &Endpoint,
        tls: Option<&Arc<ClientConfig>>,
        wire: &mut Vec<u8>,
    ) -> Result<Option<Self>, LayerError> {
        if tls.is_none() && endpoint.websocket.is_none() {
            return Ok(None);
        }
        let tls = match tls {
            None => None,
            Some(config) => {
                let name = ServerName::try_from(endpoint.host.clone())
                    .map_err(|_| LayerError::ServerName)?;
                let mut tls = ClientConnection::new(Arc::clone(config), name)?;
                tls.set_buffer_limit(None); // whoever sends waits until `wire` has left
                Some(tls)
            }
        };
        let websocket = WebSocket::None;
        let mut layers = Self { tls, websocket, has_ended: false, between: Vec::new() };
        let mut request = Vec::new();
        if let Some(path) = &endpoint.websocket {
            let authority = Authority(&endpoint.host, endpoint.port).to_string();
            let handshake;
            (handshake, request) = ClientHandshake::begin(&authority, path, random()?)?;
            layers.websocket = WebSocket::Opening(handshake);
        }
        layers.seal(&request, wire); // TLS keeps it until its own handshake is over
        Ok(Some(layers))
    }

    /// Whether MQTT may be sent.
    pub(crate) fn is_open(&self) -> bool {
        match self.websocket {
            WebSocket::None => self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking()),
            WebSocket::Opening(_) => false,
            WebSocket::Open { .. } => true,
        }
    }

    /// Whether the other end said on one of the layers that nothing more comes.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes all of `input`: MQTT's bytes are appended to `out`, what must be sent back to `wire`.
    ///
    /// # Errors
    /// `Tls`, `Records`, `Opening`, `Frame` and `Random` of [`LayerError`], which end the connection.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        wire: &mut Vec<u8>,
    ) -> Result<(), LayerError> {
        if self.tls.is_none() {
            return self.unframe(input, out, wire);
        }
        if let WebSocket::None = self.websocket {
            return self.decrypt(input, out, wire);
        }
        let mut between = std::mem::take(&mut self.between);
        between.clear();
        let decrypted = self.decrypt(input, &mut between, wire);
        let unframed = self.unframe(&between, out, wire);
        self.between = between;
        decrypted.and(unframed)
    }

    fn decrypt(
        &mut self,
        mut input: &[u8],
        out: &mut Vec<u8>,
        wire: &mut Vec<u8>,
    ) -> Result<(), LayerError> {
        let tls = self.tls.as_mut().expect("only TLS is decrypted");
        let mut result = Ok(());
        while !input.is_empty() && result.is_ok() {
            match tls.read_tls(&mut input) {
                Ok(0) => break, // past its end
                Ok(_) => {}
                Err(source) => result = Err(LayerError::Records { source }),
            }
            match tls.process_new_packets() {
                Err(error) => result = Err(error.into()),
                Ok(state) => {
                    let start = out.len();
                    out.resize(start + state.plaintext_bytes_to_read(), 0);
                    tls.reader().read_exact(&mut out[start..]).expect("so many are there");
                    self.has_ended |= state.peer_has_closed();
                }
            }
        }
        self.seal(&[], wire);
        result
    }

    fn unframe(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        wire: &mut Vec<u8>,
    ) -> Result<(), LayerError> {
        let mut reply = Vec::new(); // takes no memory unless there is something to say
        let opened;
        let mut input = input;
        if let WebSocket::Opening(handshake) = &mut self.websocket {
            let Some(rest) = handshake.receive(input)? else { return Ok(()) };
            let decoder = Decoder::of_server(Masks::new(random()?));
            self.websocket = WebSocket::Open { decoder, masks: Masks::new(random()?) };
            opened = rest;
            input = &opened;
        }
        let WebSocket::Open { decoder, .. } = &mut self.websocket else {
            unreachable!("only a WebSocket has frames");
        };
        let result = decoder.decode(input, out, &mut reply);
        self.seal(&reply, wire);
        self.has_ended |= matches!(result?, Flow::Closed(_));
        Ok(())
    }

    /// Sends bytes of MQTT, in one frame if there is a WebSocket. Only while [`Layers::is_open`].
    pub(crate) fn send(&mut self, bytes: &[u8], wire: &mut Vec<u8>) {
        match &mut self.websocket {
            WebSocket::None => self.seal(bytes, wire),
            WebSocket::Opening(_) => unreachable!("it is open"),
            WebSocket::Open { masks, .. } => {
                let mask = Some(masks.next_mask());
                if self.tls.is_none() {
                    return encode_binary(bytes, mask, wire);
                }
                let mut between = std::mem::take(&mut self.between);
                between.clear();
                encode_binary(bytes, mask, &mut between);
                self.seal(&between, wire);
                self.between = between;
            }
        }
    }

    /// Says on each layer that nothing more comes.
    pub(crate) fn end(&mut self, wire: &mut Vec<u8>) {
        if let WebSocket::Open { masks, .. } = &mut self.websocket {
            let mut close = Vec::new();
            encode_close(CloseCode::NORMAL, Some(masks.next_mask()), &mut close);
            self.seal(&close, wire);
        }
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        self.seal(&[], wire);
    }

    /// Puts `bytes`, and whatever TLS has to say itself, on the wire.
    fn seal(&mut self, bytes: &[u8], wire: &mut Vec<u8>) {
        let Some(tls) = &mut self.tls else { return wire.extend_from_slice(bytes) };
        tls.writer().write_all(bytes).expect("its buffer has no limit");
        while tls.wants_write() {
            tls.write_tls(wire).expect("memory takes all bytes");
        }
    }
}

fn random<const N: usize>() -> Result<[u8; N], LayerError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|source| LayerError::Random { source })?;
    Ok(bytes)
}

/// Why a layer does not open, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerError {
    #[error("a TLS record is too long")]
    Records { source: io::Error },
    #[error(
        "the host is not allowed as the name of a TLS server: write a DNS name or an IP address"
    )]
    ServerName,
    #[error("TLS failed")]
    Tls(#[from] rustls::Error),
    #[error("the WebSocket handshake failed")]
    Opening(#[from] HandshakeError),
    #[error("the WebSocket broke")]
    Frame(#[from] FrameError),
    #[error("the system gives no random bytes")]
    Random { source: getrandom::Error },
}
