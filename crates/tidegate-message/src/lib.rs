//! The nouns of Tidegate, shared by every core and shell.
//!
//! Always true: nothing here does I/O or reads a clock; every type is cheap to clone; every value
//! that entered through a checked constructor keeps its bound.

mod access;
mod area;
pub mod attribute;
mod attribute_text;
mod backoff;
mod binary;
mod bounds;
mod camera;
mod civil;
mod code;
pub mod command;
pub mod confidential;
mod detection;
mod drop_reason;
mod error_chain;
mod geo;
pub mod host;
mod instant;
pub mod interest;
mod listen;
mod log_limiter;
pub mod origins;
mod payload;
mod position;
pub mod profile;
mod property;
pub mod quantity;
mod reader;
mod region;
pub mod suggest;
mod topic;
pub mod transfer;
pub mod varint;
pub mod words;

pub use access::{
    Action, AllowAll, Authorize, Decision, Identity, IdentityKind, Proof, Refusal, Secret, Target,
};
pub use area::{Area, AreaError, Circle, GeoBox};
pub use attribute::AttributeError;
pub use backoff::Backoff;
pub use binary::{BinaryNumber, NumberKind};
pub use bounds::{
    AdaptationProfile, Bounds, BoundsError, ControllerKind, Delivery, Demand, FrameRate,
    UnknownWord, WhenInfeasible,
};
pub use camera::{CameraName, CameraNameError, FrameSize, FrameSizeError};
pub use civil::{CivilDate, CivilTime};
pub use code::Code;
pub use confidential::Confidential;
pub use detection::{Detection, Rect, RectError};
pub use drop_reason::DropReason;
pub use error_chain::error_chain;
pub use geo::{GeoPoint, GeoPointError};
pub use instant::Instant;
pub use interest::Interest;
pub use listen::{ListenAddress, SocketMode, UnknownAddress, UnknownMode};
pub use log_limiter::LogLimiter;
pub use payload::Payload;
pub use position::Position;
pub use profile::Profile;
pub use property::{ID_PROPERTY, RETAINED_PROPERTY, TIME_PROPERTY};
pub use reader::{Reader, Unreadable};
pub use region::{Region, RegionError, Regions};
pub use topic::{
    Shared, TopicError, check_topic_characters, check_topic_filter, check_topic_name, split_shared,
    topic_matches,
};
