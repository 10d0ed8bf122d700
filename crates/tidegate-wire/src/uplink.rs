//! Records by which one node's messages reach another's broker: in batches, and the urgent ones by themselves.
//!
//! ```text
//!  sender                                                  receiver
//!  UplinkOpen: which uplink, which life ─────────────────▶
//!         ◀─────────────────────────── UplinkReady: what of that life has come
//!  SensorBatch: number of its first message · batch ─────▶   bulk
//!  CriticalPart: number · message, or a part of it ──────▶   critical lane
//!         ◀── UplinkAck: what came, and below which numbers all were published here
//! ```
//!
//! Messages are numbered from 0 in each life of an uplink, those of batches and the critical ones apart. A life ends with the sender's
//! process; connections come and go within it.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    code::{DecodeError, Field, Input, fields},
    limits::CRITICAL_PART_BYTES_MAX,
};

/// Opens an uplink on a link, after the link itself was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkOpen {
    /// Name of the uplink; with the sender's certificate it names what the receiver keeps.
    pub name: String,
    /// Which life of it: never 0, another for each start of the sender.
    pub life: u64,
    /// Most topics that the batches refer to at once.
    pub topics_max: u64,
    /// Most bytes of state that the batches refer to, as `tidegate-compress` counts them.
    pub state_bytes_max: u64,
    /// Whether each message is to be published with its name: node, uplink, life and number.
    pub names_messages: bool,
    /// The sender's name among the nodes that a message passed; empty if it says none, as before minor version 2.
    pub node: String,
}

/// Answers [`UplinkOpen`]: the state that the receiver has of this life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkReady {
    /// The state from which batches can continue; none if the next batch must begin an epoch.
    pub resume: Option<Resume>,
    /// Number of the batched message that is to come next; none if nothing of this life was heard of.
    pub next: Option<u64>,
    /// Number of the critical message that is to come next; none as above.
    pub critical_next: Option<u64>,
    /// Most bytes of state that batches may refer to: the number requested, or less.
    pub state_bytes_max: u64,
}

/// Where batches continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The epoch of the state.
    pub epoch: u64,
    /// The batch that is to come next.
    pub sequence: u64,
}

/// A batch of messages, which is its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SensorBatch {
    /// Number of its first message.
    pub first: u64,
    /// The epoch of the batch; another one than before begins with its batch 0.
    pub epoch: u64,
    /// Its place in the epoch: those of one connection may overtake each other.
    pub sequence: u64,
}

/// A critical message, or a part of one that is longer than a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriticalPart {
    /// Number of the message.
    pub number: u64,
    /// Whether a further part of it follows.
    pub more: bool,
    /// The part, at most [`CRITICAL_PART_BYTES_MAX`] bytes.
    pub bytes: Bytes,
}

/// The messages that reached the end of the uplink, and those published there, as durably as that node does. Numbers never
/// fall on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkAck {
    /// All batched messages with lower numbers were.
    pub next: u64,
    /// All critical messages with lower numbers were.
    pub critical_next: u64,
    /// Batches that came over this link, whether they could be published or wait for that.
    pub batches: u64,
}

fields!(UplinkReady { resume, next, critical_next, state_bytes_max });
fields!(Resume { epoch, sequence });
fields!(SensorBatch { first, epoch, sequence });
fields!(CriticalPart { number, more, bytes });
fields!(UplinkAck { next, critical_next, batches });

impl Field for UplinkOpen {
    fn put(&self, out: &mut BytesMut) {
        self.name.put(out);
        self.life.put(out);
        self.topics_max.put(out);
        self.state_bytes_max.put(out);
        self.names_messages.put(out);
        self.node.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: input.field("name")?,
            life: input.field("life")?,
            topics_max: input.field("topics_max")?,
            state_bytes_max: input.field("state_bytes_max")?,
            names_messages: input.field("names_messages")?,
            node: if input.is_empty() { String::new() } else { input.field("node")? },
        })
    }
}

/// A part of a critical message.
impl Field for Bytes {
    fn put(&self, out: &mut BytesMut) {
        let bytes = &self[..self.len().min(CRITICAL_PART_BYTES_MAX)];
        out.put_u16_le(u16::try_from(bytes.len()).expect("the limit is below 64 KiB"));
        out.put_slice(bytes);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let count = usize::from(u16::take(input)?);
        if count > CRITICAL_PART_BYTES_MAX {
            let (count, limit) = (count as u64, CRITICAL_PART_BYTES_MAX as u64);
            return Err(DecodeError::TooLong { field: input.field, count, limit });
        }
        Ok(Self::copy_from_slice(input.bytes(count)?))
    }
}
