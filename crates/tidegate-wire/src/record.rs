//! The record: every message that two nodes exchange.

use bytes::{Bytes, BytesMut};
use tidegate_message::{
    Code, Instant,
    transfer::{
        Ack, CameraReport, FetchOriginal, FrameHeader, Original, OriginalOutcome, Share,
        StartTransfer, StopTransfer, TransferEnded, TransferRefused, TransferStarted, Unchanged,
        UpdateTransfer,
    },
};

use crate::{
    clients::{ClientClaims, ClientsHere},
    code::{DecodeError, Field, Input, fields},
    hello::{CameraAnnounce, Hello, MINOR, Welcome},
    limits::{BULK_BYTES_MAX, RECORD_BYTES_MAX},
    member::{Interests, InterestsHeld, MemberDigest, SharedPart},
    report,
    uplink::{CriticalPart, SensorBatch, UplinkAck, UplinkOpen, UplinkReady},
};

/// Kinds from this one on may be skipped by a node that does not know them.
pub const OPTIONAL_KIND: u8 = 128;

/// The order in which records may overtake others: a class goes before those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Steers the link and its transfers; in order.
    Control,
    /// Small and urgent: markers, reports, alarms; in order.
    Critical,
    /// Camera frames; newer live ones overtake older ones, and all overtake replayed ones.
    Frame,
    /// Everything that has time.
    Bulk,
}

/// The answer to a [`Hello`] that is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// A [`Code`] as text; a newer peer may send one that this version does not know.
    pub code: String,
    /// Why, and the way out.
    pub text: String,
}

impl Refused {
    /// A refusal of the given code.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code: code.as_str().to_owned(), text: text.into() }
    }

    /// The code, if this version knows it.
    pub fn code(&self) -> Option<Code> {
        Code::named(&self.code)
    }
}

/// Asks what the camera is and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CameraInfoRequest {
    /// Names the question; the answer repeats it.
    pub request: u64,
}

/// Answer to [`CameraInfoRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct CameraInfo {
    /// The question's name.
    pub request: u64,
    /// The camera.
    pub camera: CameraAnnounce,
    /// Capture time of the oldest frame in its log.
    pub oldest: Option<Instant>,
    /// Capture time of the newest frame in its log.
    pub newest: Option<Instant>,
    /// Frames in its log.
    pub frames: u64,
    /// Bytes in its log.
    pub bytes: u64,
    /// Most bytes that its log holds.
    pub bytes_max: u64,
}

/// Asks for the other node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Counts up.
    pub sequence: u64,
    /// Asker's clock when the ping was written.
    pub sent: Instant,
}

/// Answer to [`Ping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    /// The ping's.
    pub sequence: u64,
    /// The ping's.
    pub sent: Instant,
    /// Answerer's clock when the ping came.
    pub received: Instant,
    /// Answerer's clock when the pong was written.
    pub replied: Instant,
}

macro_rules! records {
    ($($(#[$doc:meta])* $kind:literal $class:ident $name:ident,)+) => {
        /// One message between two nodes.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Record {
            $($(#[$doc])* $name($name),)+
        }

        impl Record {
            /// The class of this record.
            pub const fn class(&self) -> Class {
                match self { $(Self::$name(_) => Class::$class,)+ }
            }

            /// Its name, for logs.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)+ }
            }

            /// The first byte of its encoding.
            pub const fn kind(&self) -> u8 {
                match self { $(Self::$name(_) => $kind,)+ }
            }

            fn put_body(&self, out: &mut BytesMut) {
                match self { $(Self::$name(body) => body.put(out),)+ }
            }

            fn take_body(kind: u8, input: &mut Input<'_>) -> Result<Option<Self>, DecodeError> {
                Ok(Some(match kind {
                    $($kind => Self::$name(Field::take(input)?),)+
                    OPTIONAL_KIND.. => return Ok(None),
                    _ => return Err(DecodeError::Kind { kind }),
                }))
            }
        }

        $(impl From<$name> for Record {
            fn from(body: $name) -> Self {
                Self::$name(body)
            }
        })+
    };
}

records! {
    /// Opens the link: sent by the node that dials.
    1 Control Hello,
    /// Accepts the link: sent by the node that answers.
    2 Control Welcome,
    /// Refuses the link.
    3 Control Refused,
    /// Asks for the peer's clock; the link itself answers.
    4 Control Ping,
    /// Tells the clock; the link itself uses it.
    5 Control Pong,
    /// Starts a stream of frames.
    16 Control StartTransfer,
    /// Changes what a running transfer must keep.
    17 Control UpdateTransfer,
    /// Ends a transfer.
    18 Control StopTransfer,
    /// A transfer runs.
    19 Control TransferStarted,
    /// A transfer is over.
    20 Control TransferEnded,
    /// A part of the medium for the camera.
    21 Control Share,
    /// The received parts of a frame.
    22 Control Ack,
    /// A frame that need not be sent.
    33 Critical Unchanged,
    /// A report of a camera; of kind 32 to and from peers before version 1.3.
    34 Critical CameraReport,
    /// Announces a frame; its body follows.
    48 Frame FrameHeader,
    /// Asks for an untouched frame.
    64 Control FetchOriginal,
    /// Answers with it.
    65 Bulk Original,
    /// Asks what the camera is and has.
    66 Control CameraInfoRequest,
    /// Answers that.
    67 Control CameraInfo,
    /// Opens an uplink of messages.
    80 Control UplinkOpen,
    /// Says what of it has come.
    81 Control UplinkReady,
    /// Announces a batch of messages, its body.
    82 Bulk SensorBatch,
    /// A critical message, or a part of one.
    83 Critical CriticalPart,
    /// Says what was published.
    84 Control UplinkAck,
    /// Says which records of members the sender has.
    96 Control MemberDigest,
    /// A record that all members share, or a part of it.
    97 Control SharedPart,
    /// The filters of the sender's clients.
    98 Control Interests,
    /// Says that messages are sent for them.
    99 Control InterestsHeld,
    /// How many clients are connected to a member, and the time there.
    100 Control ClientsHere,
    /// Clients that are connected to a member.
    101 Control ClientClaims,
    /// Says why a transfer is not served.
    144 Control TransferRefused,
}

impl Record {
    /// Appends the encoding: the kind, then the fields.
    ///
    /// Texts and lists beyond their limit are cut to it, so that what is encoded can be decoded.
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_for(MINOR, out);
    }

    /// Appends the encoding that a peer of version [`MAJOR`](crate::MAJOR).`minor` reads.
    ///
    /// Most records are the same to all: an older peer passes over the fields that it does not know.
    pub fn encode_for(&self, minor: u8, out: &mut BytesMut) {
        let start = out.len();
        match self {
            Self::CameraReport(report) if minor < report::TYPED_SINCE => {
                report::BY_NAME_KIND.put(out);
                report::put_by_name(report, out);
            }
            _ => {
                self.kind().put(out);
                self.put_body(out);
            }
        }
        debug_assert!(out.len() - start <= RECORD_BYTES_MAX, "limits add up to less");
    }

    /// The encoding as bytes of its own.
    pub fn to_bytes(&self) -> Bytes {
        self.to_bytes_for(MINOR)
    }

    /// The encoding that a peer of version [`MAJOR`](crate::MAJOR).`minor` reads, as bytes of its own.
    pub fn to_bytes_for(&self, minor: u8) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        self.encode_for(minor, &mut out);
        out.freeze()
    }

    /// The record that `bytes` encode; `None` if its kind is unknown and may be skipped.
    ///
    /// Bytes after the last known field are ignored: a later minor version appends fields.
    ///
    /// # Errors
    /// [`DecodeError`], which names the field.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        if bytes.len() > RECORD_BYTES_MAX {
            let (count, limit) = (bytes.len() as u64, RECORD_BYTES_MAX as u64);
            return Err(DecodeError::TooLong { field: "record", count, limit });
        }
        let mut input = Input::new(bytes);
        match u8::take(&mut input)? {
            report::BY_NAME_KIND => Ok(Some(report::take_by_name(&mut input)?.into())),
            kind => Self::take_body(kind, &mut input),
        }
    }
}

fields!(Refused { code, text });
fields!(FetchOriginal { request, at });
fields!(Original { request, at, outcome });
fields!(CameraInfoRequest { request });
fields!(CameraInfo { request, camera, oldest, newest, frames, bytes, bytes_max });
fields!(Ping { sequence, sent });
fields!(Pong { sequence, sent, received, replied });

impl Field for OriginalOutcome {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Found { bytes } => {
                1_u8.put(out);
                bytes.put(out);
            }
            Self::Missing { oldest, newest } => {
                2_u8.put(out);
                oldest.put(out);
                newest.put(out);
            }
        }
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        match u8::take(input)? {
            1 => match u64::take(input)? {
                bytes @ 0..=BULK_BYTES_MAX => Ok(Self::Found { bytes }),
                count => {
                    Err(DecodeError::TooLong { field: "original", count, limit: BULK_BYTES_MAX })
                }
            },
            2 => {
                Ok(Self::Missing { oldest: input.field("oldest")?, newest: input.field("newest")? })
            }
            other => Err(DecodeError::invalid(input.field, format!("{other} names no choice"))),
        }
    }
}
