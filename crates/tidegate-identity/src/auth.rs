//! Identities and rights, as the parts of a node ask for them: the clocks that they go by, the audit log, checks of passwords
//! on threads of their own, and the keys of tokens that are fetched. `tidegate-auth` makes the decisions.

pub mod audit;
pub mod checks;
pub mod departed;
pub mod fetch;

pub use tidegate_auth::{
    Admitted, Authenticator, AuthenticatorError, Now, Rejected, Reloaded, Rules, Source, Sources,
    TokenSource, acl, authenticator, keys, limits, password, roles, scram, token,
};
use tidegate_message::Instant;
use tidegate_process::clock;

/// Both clocks.
pub fn now() -> Now {
    Now { steady: clock::now(), wall: Instant::from_nanos(tidegate_sys::clock::realtime_nanos()) }
}
