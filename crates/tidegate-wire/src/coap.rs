//! The Constrained Application Protocol (RFC 7252), by which small devices publish and follow topics over UDP.
//!
//! ```text
//!  datagram ──Server::handle──▶ message ─▶ duplicate? ─▶ blocks ─▶ Event (Publish, Read) ─▶ shell
//!                                              │                                             │
//!  datagram ◀─poll_transmit── reply, notification, retransmission ◀── Server::answer, notify ┘
//! ```
//!
//! [`Message`] is the codec; [`Server`] keeps the rules between messages: duplicates, retransmission (RFC 7252 section 4), observation
//! (RFC 7641) and block-wise transfer (RFC 7959). [`Client`] is the other end, for tools and tests. Neither knows a socket or a clock.
//!
//! Always true: a message that decodes encodes again to the same bytes; no peer's bytes reach a panic; a server's memory has a
//! bound for each kind ([`ServerConfig`]); a confirmable request is handed on once, however often it arrives within its lifetime; a
//! peer that has not shown that it is where it says receives at most three times the bytes that it has sent.
//!
//! Not here: DTLS and OSCORE, multicast, proxies, DELETE, FETCH and PATCH.

mod assembly;
mod block;
mod client;
mod code;
mod content_format;
mod discovery;
mod error;
mod exchange;
mod message;
mod observe;
mod option;
mod outbox;
mod peer;
mod request;
mod server;
mod slab;
mod transmission;

pub use block::{Block, BlockError};
pub use client::{Client, ClientEvent, ClientRequest, Failure, QueueError, RequestHandle};
pub use code::Code;
pub use content_format::ContentFormat;
pub use discovery::Link;
pub use error::{DecodeError, EncodeError};
pub use message::{DATAGRAM_BYTES_MAX, Header, Message, MessageType, TOKEN_BYTES_MAX, Token};
pub use observe::is_newer;
pub use option::{OPTIONS_MAX, OptionList, OptionNumber, Options};
pub use outbox::Transmit;
pub use request::{Method, RequestError};
pub use server::{
    Answer, Event, Publish, Read, Representation, RequestKey, Server, ServerConfig, Statistics,
};
pub use transmission::{Transmission, TransmissionError};

#[cfg(test)]
mod tests;
