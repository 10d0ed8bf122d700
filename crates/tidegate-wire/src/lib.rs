//! Records of the node link, encoded and decoded without I/O; packets of MQTT are in [`mqtt`], what carries
//! them through a WebSocket in [`websocket`], and in [`proxy`] what a load balancer says before them. Devices that speak
//! other protocols come in by [`coap`] and [`line_protocol`].
//!
//! ```text
//!  Record ──encode──▶ kind (u8) · fields, little endian ──carrier──▶ decode ──▶ Record
//! ```
//!
//! A record is one message between two nodes. It has a [`Class`], which says what may overtake it, and a
//! kind, its first byte. Bodies of frames, originals and batches do not travel in records: a [`FrameHeader`],
//! [`Original`] or [`SensorBatch`] announces the body that follows it.
//!
//! Versions: the first record of each side ([`Hello`], [`Welcome`]) opens with magic, major, minor and
//! feature bits. Another major is refused. A later minor may append fields, whose bytes are ignored here, and write a record in another
//! form to peers that know it ([`Record::encode_for`]);
//! kinds from [`OPTIONAL_KIND`] on may be skipped; feature bits from [`Features::REQUIRED`] up must be
//! known, those below may be ignored.
//!
//! Always true: decoding never panics and never allocates more than the record's own length; every text
//! and list has a limit ([`limits`]) that encoding and decoding both keep; a decoded value keeps the
//! bounds of the nouns (`Bounds`, `CameraName`).

mod announcement;
mod clients;
mod code;
mod hello;
mod member;
mod record;
mod report;
mod transfer;
mod uplink;

pub mod coap;
pub mod limits;
pub mod line_protocol;
pub mod mqtt;
pub mod proxy;
pub mod websocket;

pub use announcement::Announcement;
pub use clients::{
    ClientClaim, ClientClaims, ClientOwner, ClientRoom, ClientVerdict, ClientsHere, OwnerKind,
};
pub use code::DecodeError;
pub use hello::{
    BootId, CameraAnnounce, Features, Hello, MAGIC, MAJOR, MINOR, NodeId, Role, Welcome,
};
pub use member::{
    Absence, AbsenceKind, DigestEntry, Interests, InterestsHeld, MemberCameras, MemberDigest,
    MemberRecord, Sealed, SharedKey, SharedKind, SharedPart,
};
pub use record::{
    CameraInfo, CameraInfoRequest, Class, OPTIONAL_KIND, Ping, Pong, Record, Refused,
};
pub use tidegate_message::transfer::{
    Ack, CameraReport, EndReason, FetchOriginal, FrameHeader, Original, OriginalOutcome, Reported,
    Share, StartTransfer, StopTransfer, TransferEnded, TransferHints, TransferId, TransferRefused,
    TransferStarted, Unchanged, UpdateTransfer,
};
pub use uplink::{CriticalPart, Resume, SensorBatch, UplinkAck, UplinkOpen, UplinkReady};

#[cfg(test)]
mod tests;
