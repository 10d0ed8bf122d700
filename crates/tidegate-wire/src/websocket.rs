//! WebSocket (RFC 6455) for MQTT (MQTT 5.0, section 6), without I/O: bytes in, bytes out.
//!
//! ```text
//!  socket ──▶ Handshake::receive ──▶ 101 ──▶ Decoder::decode ──▶ out: MQTT's bytes
//!                                                 └────────────▶ reply: pongs and the close
//!  MQTT's bytes ──▶ binary_header or encode_binary ──▶ socket
//! ```
//!
//! Frames have no meaning to MQTT: a packet may span frames and a frame hold many [MQTT-6.0.0-2], so payloads are
//! passed on as they come and no message is put together in memory. Only binary frames carry packets; a text
//! frame closes the connection [MQTT-6.0.0-1]. For other protocols a decoder tells where messages end, and takes text.
//!
//! Always true: however the input is cut, output and replies are the same; after a close or an error the decoder
//! takes nothing more; at most one header and one control frame are kept between calls, 139 bytes.

mod handshake;

use std::collections::VecDeque;

use sha2::{Digest, Sha256};

pub use self::handshake::{
    ClientHandshake, Handshake, HandshakeError, Paths, REQUEST_BYTES_MAX, Step, accept_of,
};

/// Most payload bytes of one data frame, unless a decoder is given another limit: the largest packet of MQTT.
pub const FRAME_BYTES_MAX: u64 = (256 << 20) + 4;
/// Most payload bytes of a ping, pong or close (RFC 6455 section 5.5).
const CONTROL_BYTES_MAX: u64 = 125;

/// Why a connection is closed (RFC 6455 section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode(pub u16);

impl CloseCode {
    /// The work is done.
    pub const NORMAL: Self = Self(1000);
    /// This end goes away, such as at a shutdown.
    pub const AWAY: Self = Self(1001);
    /// The other end broke the protocol.
    pub const PROTOCOL: Self = Self(1002);
    /// The other end sent what is not taken here, such as text.
    pub const UNSUPPORTED: Self = Self(1003);
    /// A text is not UTF-8.
    pub const NOT_UTF8: Self = Self(1007);
    /// The other end may not do this any more.
    pub const POLICY: Self = Self(1008);
    /// A frame is too large.
    pub const TOO_LARGE: Self = Self(1009);
    /// This end cannot take more now; the other end tries again later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);

    /// Whether it may stand in a close frame (RFC 6455 section 7.4, and the registry that it opens).
    fn may_be_sent(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

/// Whether a connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More may come.
    Open,
    /// The other end closed, with its reason if it gave one: send what is in `reply`, then close the socket.
    Closed(Option<CloseCode>),
}

/// Reads the frames of one direction.
#[derive(Debug)]
pub struct Decoder {
    /// The sender of the frames.
    peer: Peer,
    frame_bytes_max: u64,
    state: State,
    /// A data frame without its end was read, and its continuation must follow.
    fragmented: bool,
    messages: Option<Messages>,
}

/// Where messages end, for who wants each by itself.
#[derive(Debug, Default)]
struct Messages {
    bytes_max: u64,
    /// Of the one that is being read, whether it is text and how long it is by now.
    is_text: bool,
    bytes: u64,
    ended: VecDeque<MessageEnd>,
}

/// The end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageEnd {
    /// Bytes of it, which stand in the output behind those of the message before.
    pub bytes: usize,
    /// Whether it came as text. Whether it is UTF-8 is for the caller to see.
    pub is_text: bool,
}

#[derive(Debug)]
enum Peer {
    /// Masks its frames; ours to it are not masked.
    Client,
    /// Does not mask; ours to it are.
    Server(Masks),
}

#[derive(Debug)]
enum State {
    /// The header so far.
    Header {
        bytes: [u8; 14],
        count: usize,
    },
    Data {
        mask: Mask,
        left: u64,
    },
    Control {
        opcode: u8,
        mask: Mask,
        left: u64,
        payload: Vec<u8>,
    },
    Closed(Result<Flow, FrameError>),
}

impl State {
    const START: Self = Self::Header { bytes: [0; 14], count: 0 };
}

impl Decoder {
    /// Of what a client sends: for a server.
    pub fn of_client() -> Self {
        Self::new(Peer::Client)
    }

    /// Of what a server sends: for a client, whose `masks` are for its pongs and its close.
    pub fn of_server(masks: Masks) -> Self {
        Self::new(Peer::Server(masks))
    }

    fn new(peer: Peer) -> Self {
        let frame_bytes_max = FRAME_BYTES_MAX;
        Self { peer, frame_bytes_max, state: State::START, fragmented: false, messages: None }
    }

    /// Takes data frames of at most `bytes` of payload. Default [`FRAME_BYTES_MAX`].
    #[must_use]
    pub fn with_frame_bytes_max(mut self, bytes: u64) -> Self {
        self.frame_bytes_max = bytes;
        self
    }

    /// Takes messages of at most `bytes`, text as well, and tells where each ends ([`poll_message`](Self::poll_message)).
    #[must_use]
    pub fn with_messages(mut self, bytes: u64) -> Self {
        self.messages = Some(Messages { bytes_max: bytes, ..Messages::default() });
        self.with_frame_bytes_max(bytes)
    }

    /// The next message that has ended; its bytes are the next ones of the output.
    pub fn poll_message(&mut self) -> Option<MessageEnd> {
        self.messages.as_mut()?.ended.pop_front()
    }

    /// Reads all of `input`: MQTT's bytes are appended to `out`, and to `reply` what must be sent back, in order:
    /// pongs, and the close frame that answers a close or tells of an error. A server's replies are never longer than
    /// the input that they answer by more than 4 bytes; a client's have a mask of 4 bytes more for each frame.
    ///
    /// # Errors
    /// [`FrameError`], once and for all: send `reply`, then close the socket. Data that came before it is in `out`.
    pub fn decode(
        &mut self,
        mut input: &[u8],
        out: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) -> Result<Flow, FrameError> {
        loop {
            if let State::Closed(end) = self.state {
                return end;
            }
            let step = self.step(&mut input, out, reply);
            match step {
                Ok(Some(Flow::Open)) => {}
                Ok(Some(closed)) => self.state = State::Closed(Ok(closed)),
                Ok(None) => return Ok(Flow::Open),
                Err(error) => {
                    self.send_close(Some(error.close_code()), reply);
                    self.state = State::Closed(Err(error));
                }
            }
        }
    }

    /// Reads a part of a frame; none if more input is needed.
    fn step(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) -> Result<Option<Flow>, FrameError> {
        match &mut self.state {
            State::Header { bytes, count } => {
                let needed = header_bytes(&bytes[..*count]);
                if *count < needed {
                    let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
                    bytes[*count] = byte;
                    *count += 1;
                    *input = rest;
                    if *count == 2 {
                        let [first, second, ..] = *bytes;
                        self.check_start(first, second)?;
                    }
                    return Ok(Some(Flow::Open));
                }
                let header = *bytes;
                self.begin(&header[..needed])?;
            }
            State::Data { mask, left } => {
                if *left == 0 {
                    self.state = State::START;
                    if !self.fragmented
                        && let Some(messages) = &mut self.messages
                    {
                        // The held part of a message is bounded by its longest length.
                        let bytes = usize::try_from(messages.bytes).expect("it is in memory");
                        let is_text = messages.is_text;
                        messages.bytes = 0;
                        messages.ended.push_back(MessageEnd { bytes, is_text });
                    }
                    return Ok(Some(Flow::Open));
                }
                let count = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                if count == 0 {
                    return Ok(None);
                }
                let start = out.len();
                out.extend_from_slice(&input[..count]);
                mask.apply(&mut out[start..]);
                *left -= count as u64;
                *input = &input[count..];
            }
            State::Control { opcode, mask, left, payload } => {
                if *left > 0 {
                    let count = input.len().min(*left as usize); // at most 125
                    if count == 0 {
                        return Ok(None);
                    }
                    let start = payload.len();
                    payload.extend_from_slice(&input[..count]);
                    mask.apply(&mut payload[start..]);
                    *left -= count as u64;
                    *input = &input[count..];
                    return Ok(Some(Flow::Open));
                }
                let (opcode, payload) = (*opcode, std::mem::take(payload));
                self.state = State::START;
                return self.control(opcode, &payload, reply).map(Some);
            }
            State::Closed(end) => return (*end).map(Some),
        }
        Ok(Some(Flow::Open))
    }

    /// Checks the first two bytes of a frame.
    fn check_start(&self, first: u8, second: u8) -> Result<(), FrameError> {
        let (last, opcode, length) = (first & 0x80 != 0, first & 0x0f, second & 0x7f);
        if first & 0x70 != 0 {
            return Err(FrameError::ReservedBits);
        }
        match opcode {
            OPCODE_TEXT if self.messages.is_none() => return Err(FrameError::Text),
            OPCODE_CONTINUATION if !self.fragmented => return Err(FrameError::NothingToContinue),
            OPCODE_BINARY | OPCODE_TEXT if self.fragmented => return Err(FrameError::NotContinued),
            OPCODE_CLOSE | OPCODE_PING | OPCODE_PONG => {
                if !last || u64::from(length) > CONTROL_BYTES_MAX {
                    return Err(FrameError::LargeControl);
                }
            }
            OPCODE_CONTINUATION | OPCODE_BINARY | OPCODE_TEXT => {}
            _ => return Err(FrameError::UnknownOpcode { opcode }),
        }
        match (&self.peer, second & 0x80 != 0) {
            (Peer::Client, false) => Err(FrameError::NotMasked),
            (Peer::Server(_), true) => Err(FrameError::Masked),
            _ => Ok(()),
        }
    }

    /// Begins the frame that a whole header announces.
    fn begin(&mut self, header: &[u8]) -> Result<(), FrameError> {
        let (last, opcode) = (header[0] & 0x80 != 0, header[0] & 0x0f);
        let number =
            |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let left = match header[1] & 0x7f {
            126 => number(&header[2..4]),
            127 => number(&header[2..10]),
            length => u64::from(length),
        };
        let least = match header[1] & 0x7f {
            126 => 126,
            127 => 1 << 16,
            _ => 0,
        };
        if left < least {
            return Err(FrameError::LongLength);
        }
        let mask = match header[1] & 0x80 {
            0 => Mask::NONE,
            _ => Mask::new(header[header.len() - 4..].try_into().expect("the header ends with it")),
        };
        if opcode & 0x08 != 0 {
            self.state = State::Control { opcode, mask, left, payload: Vec::new() };
            return Ok(());
        }
        if left > self.frame_bytes_max {
            return Err(FrameError::TooLarge { bytes: left, bytes_max: self.frame_bytes_max });
        }
        if let Some(messages) = &mut self.messages {
            if opcode != OPCODE_CONTINUATION {
                messages.is_text = opcode == OPCODE_TEXT;
            }
            let (bytes, bytes_max) = (messages.bytes.saturating_add(left), messages.bytes_max);
            if bytes > bytes_max {
                return Err(FrameError::TooLarge { bytes, bytes_max });
            }
            messages.bytes = bytes;
        }
        self.fragmented = !last;
        self.state = State::Data { mask, left };
        Ok(())
    }

    fn control(
        &mut self,
        opcode: u8,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<Flow, FrameError> {
        match opcode {
            OPCODE_PING => self.send(OPCODE_PONG, payload, reply),
            OPCODE_CLOSE => {
                let code = match payload {
                    [] => None,
                    [high, low, reason @ ..] => {
                        let code = CloseCode(u16::from_be_bytes([*high, *low]));
                        if !code.may_be_sent() {
                            return Err(FrameError::Close);
                        }
                        str::from_utf8(reason).map_err(|_| FrameError::CloseReason)?;
                        Some(code)
                    }
                    [_] => return Err(FrameError::Close),
                };
                self.send_close(code, reply);
                return Ok(Flow::Closed(code));
            }
            _ => {} // a pong says that the other end lives, and the caller has seen its bytes
        }
        Ok(Flow::Open)
    }

    fn send_close(&mut self, code: Option<CloseCode>, reply: &mut Vec<u8>) {
        let bytes = code.map(|code| code.0.to_be_bytes());
        self.send(OPCODE_CLOSE, bytes.as_ref().map_or(&[], |bytes| &bytes[..]), reply);
    }

    fn send(&mut self, opcode: u8, payload: &[u8], reply: &mut Vec<u8>) {
        let mask = match &mut self.peer {
            Peer::Client => None,
            Peer::Server(masks) => Some(masks.next_mask()),
        };
        encode(opcode, payload, mask, reply);
    }
}

const OPCODE_CONTINUATION: u8 = 0;
const OPCODE_TEXT: u8 = 1;
const OPCODE_BINARY: u8 = 2;
const OPCODE_CLOSE: u8 = 8;
const OPCODE_PING: u8 = 9;
const OPCODE_PONG: u8 = 10;

/// Length of a header that begins with `bytes`, as far as they tell.
fn header_bytes(bytes: &[u8]) -> usize {
    match bytes {
        [_, second, ..] => {
            let length = match second & 0x7f {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            2 + length + if second & 0x80 == 0 { 0 } else { 4 }
        }
        _ => 2,
    }
}

/// The header of a frame, to be written before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; 14],
    count: usize,
}

impl Header {
    /// Its bytes: 2, 4 or 10, and 4 more with a mask.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }

    fn new(opcode: u8, payload_bytes: usize, mask: Option<[u8; 4]>) -> Self {
        let mut header = Self { bytes: [0; 14], count: 0 };
        let masked = if mask.is_some() { 0x80 } else { 0 };
        header.push(&[0x80 | opcode]);
        match payload_bytes {
            0..=125 => header.push(&[masked | payload_bytes as u8]),
            126..=0xffff => {
                header.push(&[masked | 126]);
                header.push(&(payload_bytes as u16).to_be_bytes());
            }
            _ => {
                header.push(&[masked | 127]);
                header.push(&(payload_bytes as u64).to_be_bytes());
            }
        }
        header.push(mask.as_ref().map_or(&[][..], |mask| &mask[..]));
        header
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.count..self.count + bytes.len()].copy_from_slice(bytes);
        self.count += bytes.len();
    }
}

/// The header of a server's binary frame with `payload_bytes` after it: for a vectored write without a copy.
pub fn binary_header(payload_bytes: usize) -> Header {
    Header::new(OPCODE_BINARY, payload_bytes, None)
}

/// Appends a binary frame: without a mask for a server, with one for a client.
pub fn encode_binary(payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    encode(OPCODE_BINARY, payload, mask, out);
}

/// Appends a text frame. A server sends no `mask`.
pub fn encode_text(text: &str, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    encode(OPCODE_TEXT, text.as_bytes(), mask, out);
}

/// Appends a close frame, which is the last that is sent: without a mask for a server, with one for a client.
pub fn encode_close(code: CloseCode, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    encode(OPCODE_CLOSE, &code.0.to_be_bytes(), mask, out);
}

fn encode(opcode: u8, payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    out.extend_from_slice(Header::new(opcode, payload.len(), mask).as_bytes());
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        Mask::new(mask).apply(&mut out[start..]);
    }
}

/// Appends a server's close frame with a reason for people, of which as many whole characters are sent as a close frame holds.
pub fn encode_close_with(code: CloseCode, reason: &str, out: &mut Vec<u8>) {
    let room = CONTROL_BYTES_MAX as usize - 2;
    let mut payload = code.0.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..reason.floor_char_boundary(room)]);
    encode(OPCODE_CLOSE, &payload, None, out);
}

/// The masks of a client's frames: the author of a payload cannot foresee them (RFC 6455 section 10.3).
pub struct Masks {
    seed: [u8; 32],
    count: u64,
}

impl Masks {
    /// From random bytes, which are used once.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed, count: 0 }
    }

    /// The next mask.
    pub fn next_mask(&mut self) -> [u8; 4] {
        self.count += 1;
        let digest =
            Sha256::new().chain_update(self.seed).chain_update(self.count.to_be_bytes()).finalize();
        digest[..4].try_into().expect("a digest has more than four bytes")
    }
}

/// Says nothing of the seed.
impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Masks")
    }
}

/// A mask, turned so that its first byte is the next one's.
#[derive(Debug)]
struct Mask(Option<[u8; 4]>);

impl Mask {
    const NONE: Self = Self(None);

    fn new(key: [u8; 4]) -> Self {
        Self(Some(key))
    }

    /// Masks or unmasks the next bytes in place, eight at a time.
    fn apply(&mut self, bytes: &mut [u8]) {
        let Some(key) = &mut self.0 else { return };
        let [a, b, c, d] = *key;
        let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
        let turn = bytes.len() % 4;
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
        }
        for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
            *byte ^= key;
        }
        key.rotate_left(turn);
    }
}

/// How the other end broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// MQTT travels in binary frames.
    #[error("a text frame came; MQTT travels in binary frames")]
    Text,
    /// A reserved bit is set, and no extension was agreed on.
    #[error("a frame uses an extension that was not agreed on")]
    ReservedBits,
    /// The opcode has no meaning.
    #[error("a frame has opcode {opcode}, which has no meaning")]
    UnknownOpcode {
        /// Which.
        opcode: u8,
    },
    /// A continuation came without a beginning.
    #[error("a continuation came without a beginning")]
    NothingToContinue,
    /// A message began before the last one ended.
    #[error("a message began before the one before it ended")]
    NotContinued,
    /// A control frame is fragmented or longer than 125 bytes.
    #[error("a control frame is fragmented or longer than {CONTROL_BYTES_MAX} bytes")]
    LargeControl,
    /// A client's frame without a mask.
    #[error("a client's frame is not masked")]
    NotMasked,
    /// A server's frame with a mask.
    #[error("a server's frame is masked")]
    Masked,
    /// A length that fits fewer bytes.
    #[error("a frame's length is written with more bytes than it needs")]
    LongLength,
    /// The frame is too large.
    #[error("a frame of {bytes} bytes came, and {bytes_max} is the most")]
    TooLarge {
        /// Bytes of its payload.
        bytes: u64,
        /// The most.
        bytes_max: u64,
    },
    /// A close frame with a code that may not be sent, or half of one.
    #[error("a close frame has no code that may be sent")]
    Close,
    /// A close frame whose reason is not UTF-8.
    #[error("the reason in a close frame is not UTF-8")]
    CloseReason,
}

impl FrameError {
    /// The code sent to the other end.
    pub fn close_code(self) -> CloseCode {
        match self {
            Self::Text => CloseCode::UNSUPPORTED,
            Self::TooLarge { .. } => CloseCode::TOO_LARGE,
            Self::CloseReason => CloseCode::NOT_UTF8,
            Self::ReservedBits
            | Self::UnknownOpcode { .. }
            | Self::NothingToContinue
            | Self::NotContinued
            | Self::LargeControl
            | Self::NotMasked
            | Self::Masked
            | Self::LongLength
            | Self::Close => CloseCode::PROTOCOL,
        }
    }
}

#[cfg(test)]
mod tests;
