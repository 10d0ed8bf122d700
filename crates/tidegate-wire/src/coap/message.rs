//! Messages (RFC 7252 section 3).
//!
//! ```text
//!  0 1 2 3 4 5 6 7
//!  ver│typ│tok len │ code │ message id (2) │ token (0 to 8) │ options │ 0xff payload
//! ```

use super::{Code, DecodeError, EncodeError, Options, option::PAYLOAD_MARKER};

/// Longest message: the limit of one UDP datagram over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Longest token.
pub const TOKEN_BYTES_MAX: usize = 8;

const VERSION: u8 = 1;

/// One message. A decoded message encodes to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// How it is delivered.
    pub message_type: MessageType,
    /// The code of the request or response.
    pub code: Code,
    /// Pairs it with its acknowledgement or reset, and tells duplicates.
    pub id: u16,
    /// Pairs a response with its request.
    pub token: Token,
    /// In ascending order.
    pub options: Options<'a>,
    /// Empty if there is none.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// A message without a code: an acknowledgement, a reset, or, as confirmable, a ping.
    pub fn empty(message_type: MessageType, id: u16) -> Self {
        Self {
            message_type,
            code: Code::EMPTY,
            id,
            token: Token::default(),
            options: Options::NONE,
            payload: &[],
        }
    }

    /// The message that `datagram` is.
    ///
    /// # Errors
    ///
    /// - `Short` and `Version`, after which nothing is known of it: it is ignored.
    /// - Others, after which [`Header::decode`] knows its type and identifier: a confirmable one is answered with a reset.
    pub fn decode(datagram: &'a [u8]) -> Result<Self, DecodeError> {
        let Header { message_type, code, id, token_bytes } = Header::decode(datagram)?;
        let bytes = datagram.len();
        if bytes > DATAGRAM_BYTES_MAX {
            return Err(DecodeError::TooLarge { bytes, bytes_max: DATAGRAM_BYTES_MAX });
        }
        if code == Code::EMPTY && bytes > Header::BYTES {
            return Err(DecodeError::NotEmpty { count: bytes - Header::BYTES });
        }
        if usize::from(token_bytes) > TOKEN_BYTES_MAX {
            return Err(DecodeError::TokenLength { bytes: token_bytes });
        }
        if !may_carry(message_type, code) {
            return Err(DecodeError::CodeOfType { message_type, code });
        }
        let (token, rest) = datagram[Header::BYTES..]
            .split_at_checked(usize::from(token_bytes))
            .ok_or(DecodeError::Short { field: "token" })?;
        let token = Token::new(token).expect("its length was looked at");
        let (options, rest) = Options::decode(rest)?;
        let payload = match rest {
            [] => rest,
            [PAYLOAD_MARKER] => return Err(DecodeError::NoPayload),
            [_, payload @ ..] => payload,
        };
        Ok(Self { message_type, code, id, token, options, payload })
    }

    /// Appends the message.
    ///
    /// # Errors
    ///
    /// `NotEmpty`, `CodeOfType`, and `TooLarge` beyond [`DATAGRAM_BYTES_MAX`]; nothing is appended then.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let Self { message_type, code, id, token, options, payload } = *self;
        let token = token.as_bytes();
        if code == Code::EMPTY && !(token.is_empty() && options.is_empty() && payload.is_empty()) {
            return Err(EncodeError::NotEmpty);
        }
        if !may_carry(message_type, code) {
            return Err(EncodeError::CodeOfType { message_type, code });
        }
        let options = options.as_bytes();
        let marker = usize::from(!payload.is_empty());
        let bytes = Header::BYTES + token.len() + options.len() + marker + payload.len();
        if bytes > DATAGRAM_BYTES_MAX {
            return Err(EncodeError::TooLarge { bytes, bytes_max: DATAGRAM_BYTES_MAX });
        }
        let [high, low] = id.to_be_bytes();
        let first = VERSION << 6 | (message_type as u8) << 4 | token.len() as u8;
        out.reserve(bytes);
        out.extend_from_slice(&[first, code.0, high, low]);
        out.extend_from_slice(token);
        out.extend_from_slice(options);
        if !payload.is_empty() {
            out.push(PAYLOAD_MARKER);
            out.extend_from_slice(payload);
        }
        Ok(())
    }
}

/// Which codes go with which type (section 4.3, table 1); classes 1, 6 and 7 are reserved.
fn may_carry(message_type: MessageType, code: Code) -> bool {
    let is_response = code.is_response();
    match message_type {
        MessageType::Confirmable => code == Code::EMPTY || code.is_request() || is_response,
        MessageType::NonConfirmable => code.is_request() || is_response,
        MessageType::Acknowledgement => code == Code::EMPTY || is_response,
        MessageType::Reset => code == Code::EMPTY,
    }
}

/// The first four bytes: enough to refuse a message that cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How it is delivered.
    pub message_type: MessageType,
    /// The code of the request or response.
    pub code: Code,
    /// Its identifier.
    pub id: u16,
    /// The length that the token claims, 0 to 15.
    pub token_bytes: u8,
}

impl Header {
    const BYTES: usize = 4;

    /// The header of `datagram`.
    ///
    /// # Errors
    ///
    /// `Short` and `Version`.
    pub fn decode(datagram: &[u8]) -> Result<Self, DecodeError> {
        let [first, code, high, low, ..] = *datagram else {
            return Err(DecodeError::Short { field: "header" });
        };
        if first >> 6 != VERSION {
            return Err(DecodeError::Version { version: first >> 6 });
        }
        let message_type = match first >> 4 & 0b11 {
            0 => MessageType::Confirmable,
            1 => MessageType::NonConfirmable,
            2 => MessageType::Acknowledgement,
            _ => MessageType::Reset,
        };
        let id = u16::from_be_bytes([high, low]);
        Ok(Self { message_type, code: Code(code), id, token_bytes: first & 0x0f })
    }
}

/// How a message is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageType {
    /// Sent again until it is acknowledged.
    Confirmable = 0,
    /// Sent once.
    NonConfirmable = 1,
    /// Says that a confirmable message arrived, and may carry its response.
    Acknowledgement = 2,
    /// Says that a message arrived and means nothing here.
    Reset = 3,
}

/// Pairs a response with its request: up to eight bytes that the client chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Token {
    bytes: [u8; TOKEN_BYTES_MAX],
    count: u8,
}

impl Token {
    /// A token; none beyond [`TOKEN_BYTES_MAX`].
    pub fn new(token: &[u8]) -> Option<Self> {
        let mut bytes = [0; TOKEN_BYTES_MAX];
        bytes.get_mut(..token.len())?.copy_from_slice(token);
        Some(Self { bytes, count: token.len() as u8 })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.count)]
    }
}
