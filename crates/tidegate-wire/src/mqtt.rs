//! MQTT 3.1, 3.1.1 and 5.0 control packets, to and from bytes.
//!
//! ```text
//!  bytes ──FixedHeader::decode──▶ first byte · body ──Packet::decode──▶ Packet ──encode──▶ bytes
//!                                        └──Publish::decode_head──▶ Publish, while its payload still arrives
//!            PublishHead::encode ▶ all before a payload that stays where it is
//! ```
//!
//! Both sides of a connection are here: every packet is decoded and encoded. Rules that the bytes of one packet show are kept
//! here, and an error knows the [`ReasonCode`] to answer with; rules between packets are the broker's and those of [`client`].
//!
//! Always true: decoding never panics, and allocates at most a small multiple of the packet's length; a decoded packet encodes
//! again, in the same version, to one that decodes to the same.

pub mod client;
pub mod path;
pub mod stamp;

mod ack;
mod codec;
mod connack;
mod connect;
mod disconnect;
mod error;
mod field;
mod header;
mod packet;
mod property;
mod publish;
mod reason;
mod subscribe;

pub use ack::{AckKind, encode_ack};
pub use error::{DecodeError, EncodeError};
pub use header::{FixedHeader, PACKET_BYTES_MAX, encode_variable, variable_bytes};
pub use packet::{
    Ack, Auth, Connack, ConnackProperties, Connect, ConnectProperties, Disconnect, Packet,
    PacketId, Publish, PublishProperties, QoS, RetainHandling, Suback, Subscribe, SubscribeFilter,
    Unsubscribe, UserProperties, Version, Will,
};
pub use property::{ForwardedProperties, put_user_property};
pub use publish::{PublishHead, seconds_left};
pub use reason::ReasonCode;

#[cfg(test)]
mod tests;
