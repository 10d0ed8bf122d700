//! Where parts of a node meet over pictures. (Over messages they meet in `tidegate-bus`.)
//!
//! ```text
//!  tidegate-streams (this node's cameras) ─┐
//!  tidegate-client (another node's)       ─┼─▶ dyn Frames ─▶ detect, rpc, web
//!  memory::Cameras (tests)                ─┘
//! ```
//!
//! [`Frames`] is bound to one caller, whose rights its implementer knows. So a service that reads frames needs no identity, and runs in its
//! own tests on [`memory`], without certificates, links or cameras.

mod frames;
pub mod memory;

pub use self::frames::{Frames, Subscription};
