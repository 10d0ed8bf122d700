//! Where parts of a node meet over pictures. (Over messages they meet in `tidegate-bus`.)
//!
//! ```text
//!  tidegate-streams (this node's cameras) ─┐
//!  tidegate-client (another node's)       ─┼─▶ dyn Frames ─▶ detect, rpc, web
//!  memory::Cameras (tests)                ─┘
//!
//!  tidegate-workers (a pool of programs)  ───▶ dyn Looker ─▶ detect, vision
//! ```
//!
//! [`Frames`] is bound to one caller, whose rights its implementer knows. So a service that reads frames needs no identity, and runs in its
//! own tests on [`memory`], without certificates, links or cameras. A [`Looker`] is one caller's turn at whatever looks at images.

mod frames;
mod look;
pub mod memory;

pub use self::{
    frames::{Frames, Subscription},
    look::{DetectError, Failure, Image, Looker, Outcome, Request, Scene, Times},
};
