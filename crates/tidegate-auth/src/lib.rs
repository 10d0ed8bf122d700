//! Authentication and authorization of clients.
//!
//! ```text
//!  Proof ──▶ attempts ──▶ password, SCRAM, token, certificate ──▶ Identity ──▶ ACL file, roles file ──▶ Decision
//!            (too many?)                                            │          (deny wins)
//!                                                                   └──▶ limits: connections, messages, bytes
//! ```
//!
//! [`Authenticator`] holds all of it for a node. Texts of files and sets of keys are handed in and exchanged as a whole; times are
//! arguments.

pub mod acl;
mod attempts;
pub mod audit;
pub mod authenticator;
pub mod escape;
pub mod heaviest;
pub mod keys;
pub mod limits;
mod listed;
pub mod logins;
pub mod password;
mod pattern;
mod poison;
pub mod roles;
pub mod scram;
mod secret;
pub mod token;
mod verdict;
mod verified;

pub use authenticator::{
    Admitted, Authenticator, AuthenticatorError, Now, Prepared, Rejected, Reloaded, Rules, Source,
    Sources, TokenSource,
};
