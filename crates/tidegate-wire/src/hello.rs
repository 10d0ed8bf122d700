//! How two nodes introduce themselves.

use std::fmt;

use bytes::{BufMut, BytesMut};
use tidegate_message::{CameraName, FrameSize, Instant};

use crate::{
    code::{DecodeError, Field, Input, fields},
    limits::FRAMES_PER_SECOND_MAX,
};

/// The first bytes of each side's first record, after its kind.
pub const MAGIC: [u8; 4] = *b"TGLK";
/// Nodes of different major versions refuse each other.
pub const MAJOR: u8 = 1;
/// A higher minor version adds what an older node may ignore, and is spoken with nodes that know it.
pub const MINOR: u8 = 5;

/// First record of the node that dials.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// The minor version of the link that the node speaks; [`MINOR`] of this one.
    pub minor: u8,
    /// The dialling node; must match the certificate.
    pub node: NodeId,
    /// Counts the starts of this node, as far as it remembers them. In the role of a member, which of its dials this link is of.
    pub epoch: u64,
    /// Random, new at each start: tells a reconnect from a restart.
    pub boot: BootId,
    /// The node's role on this link.
    pub role: Role,
    /// Features of the node beyond version [`MAJOR`].[`MINOR`].
    pub features: Features,
    /// The camera that the node offers; `None` unless it is a camera node.
    pub camera: Option<CameraAnnounce>,
}

/// Answer to [`Hello`].
#[derive(Clone, Debug, PartialEq)]
pub struct Welcome {
    /// The minor version of the link that the node speaks; [`MINOR`] of this one.
    pub minor: u8,
    /// The answering node; must match the certificate.
    pub node: NodeId,
    /// Counts the starts of this node, as far as it remembers them.
    pub epoch: u64,
    /// Random, new at each start.
    pub boot: BootId,
    /// Features of the node beyond version [`MAJOR`].[`MINOR`].
    pub features: Features,
    /// The answering node's clock when it wrote this.
    pub now: Instant,
}

/// The SHA-256 of a node's public key (subject public key info, DER).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 32]);

/// One start of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub [u8; 16]);

/// The role of a node on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Offers one camera and sends its frames.
    Camera,
    /// Receives frames and serves applications.
    Edge,
    /// Sends messages of its broker to the other node's.
    Uplink,
    /// Is a member of the fabric, as the other node is.
    Member,
    /// Is a member that the other node does not dial, and takes what is for it over this link: the other node sends an uplink.
    Fetch,
    /// One that this version does not know by name, of that number. A node that has a service for it serves it all the same.
    Other(u8),
}

impl Role {
    const NAMED: [(Self, u8); 5] = [
        (Self::Camera, 1),
        (Self::Edge, 2),
        (Self::Uplink, 3),
        (Self::Member, 4),
        (Self::Fetch, 5),
    ];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Camera => f.write_str("camera"),
            Self::Edge => f.write_str("edge"),
            Self::Uplink => f.write_str("uplink"),
            Self::Member => f.write_str("member"),
            Self::Fetch => f.write_str("fetch"),
            Self::Other(number) => write!(f, "{number}"),
        }
    }
}

impl Field for Role {
    fn put(&self, out: &mut BytesMut) {
        let named = Self::NAMED.iter().find(|(role, _)| role == self);
        let number = match self {
            Self::Other(number) => *number,
            _ => named.expect("all others are named").1,
        };
        number.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let number = u8::take(input)?;
        let named = Self::NAMED.iter().find(|(_, of)| *of == number);
        Ok(named.map_or(Self::Other(number), |(role, _)| *role))
    }
}

/// A camera that a camera node offers.
#[derive(Clone, Debug, PartialEq)]
pub struct CameraAnnounce {
    /// The camera's name; must match the certificate.
    pub name: CameraName,
    /// Pixels of its frames, once one was captured.
    pub size: Option<FrameSize>,
    /// Frames per second, at most [`FRAMES_PER_SECOND_MAX`]; 0 while not known.
    pub frames_per_second: f64,
    /// Where the frames come from, for people: `video file street.mp4`.
    pub source: String,
}

/// Abilities of a node, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u64);

impl Features {
    /// Bits from this one up must be known to the peer; those below may be ignored.
    pub const REQUIRED: u32 = 32;
    /// Every bit that this version knows.
    pub const KNOWN: Self = Self(0);

    /// Bits that we would have to know and do not.
    const fn unknown_required(self) -> u64 {
        (self.0 & !Self::KNOWN.0) >> Self::REQUIRED << Self::REQUIRED
    }
}

/// Magic, major, minor and features, which open a first record.
struct Opening {
    minor: u8,
    features: Features,
}

impl Field for Opening {
    fn put(&self, out: &mut BytesMut) {
        out.put_slice(&MAGIC);
        out.put_slice(&[MAJOR, self.minor]);
        self.features.0.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let magic: [u8; 4] = input.array()?;
        if magic != MAGIC {
            return Err(DecodeError::Magic { magic });
        }
        let [theirs, minor] = input.array()?;
        if theirs != MAJOR {
            return Err(DecodeError::Major { theirs, ours: MAJOR });
        }
        let features = Features(input.field("features")?);
        match features.unknown_required() {
            0 => Ok(Self { minor, features }),
            bits => Err(DecodeError::Features { bits }),
        }
    }
}

impl Field for Hello {
    fn put(&self, out: &mut BytesMut) {
        Opening { minor: self.minor, features: self.features }.put(out);
        self.node.put(out);
        self.epoch.put(out);
        self.boot.put(out);
        self.role.put(out);
        self.camera.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let Opening { minor, features } = input.field("magic")?;
        Ok(Self {
            minor,
            features,
            node: input.field("node")?,
            epoch: input.field("epoch")?,
            boot: input.field("boot")?,
            role: input.field("role")?,
            camera: input.field("camera")?,
        })
    }
}

impl Field for Welcome {
    fn put(&self, out: &mut BytesMut) {
        Opening { minor: self.minor, features: self.features }.put(out);
        self.node.put(out);
        self.epoch.put(out);
        self.boot.put(out);
        self.now.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let Opening { minor, features } = input.field("magic")?;
        Ok(Self {
            minor,
            features,
            node: input.field("node")?,
            epoch: input.field("epoch")?,
            boot: input.field("boot")?,
            now: input.field("now")?,
        })
    }
}

impl Field for NodeId {
    fn put(&self, out: &mut BytesMut) {
        out.put_slice(&self.0);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        input.array().map(Self)
    }
}

impl Field for BootId {
    fn put(&self, out: &mut BytesMut) {
        out.put_slice(&self.0);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        input.array().map(Self)
    }
}

impl Field for CameraName {
    fn put(&self, out: &mut BytesMut) {
        crate::code::put_text(self.as_str(), Self::CHARS_MAX, out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let text = input.text(Self::CHARS_MAX)?;
        text.parse().map_err(|error| DecodeError::invalid(input.field, error))
    }
}

impl Field for FrameSize {
    fn put(&self, out: &mut BytesMut) {
        self.width.put(out);
        self.height.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let size = Self { width: Field::take(input)?, height: Field::take(input)? };
        if size.width == 0 || size.height == 0 {
            return Err(DecodeError::invalid(input.field, size));
        }
        Ok(size)
    }
}

fields!(CameraAnnounce { name, size, frames_per_second, source } if checked_rate);

fn checked_rate(camera: &CameraAnnounce) -> Result<(), DecodeError> {
    match (0.0..=FRAMES_PER_SECOND_MAX).contains(&camera.frames_per_second) {
        true => Ok(()),
        false => Err(DecodeError::invalid("frames_per_second", camera.frames_per_second)),
    }
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

/// The first four bytes are enough to tell nodes apart in a log.
impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..4], f)
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..4], f)
    }
}
