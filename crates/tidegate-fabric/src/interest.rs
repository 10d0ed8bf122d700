//! The filters of a node's clients at the other members, which send what matches them.
//!
//! ```text
//!  THIS NODE                                              │ EACH OTHER MEMBER
//!  filters of clients ─▶ Offered ─ Interests ─────────────┼─▶ Wanted ─▶ subscriptions of the session for this node
//!  SUBACK ─▶ Waiting ◀─────────────────────── InterestsHeld ◀──────────┘
//! ```
//!
//! A filter that a wider one covers is not offered, and there are at most [`FILTERS_MAX`]: beyond, filters are cut to their first levels.
//! A member is sent more than it asks for then, never less. A shared subscription is offered as it stands, since a group is served once
//! over all members; those to `$SYS` are of the node that they were made at.
//!
//! Always true: what a member holds matches every topic that a filter of a client does, as far as this node has told it, and but for
//! those that [`Offered::left_out`] counts.

mod covering;
mod few;
mod offered;
mod told;
mod waiting;
mod wanted;

pub use self::{
    offered::Offered,
    waiting::Waiting,
    wanted::{Wanted, WantedError, WantedFilters},
};

/// Most filters that a member offers to others.
pub const FILTERS_MAX: usize = 10_000;

/// Most of them that are shared subscriptions, which cannot be made wider: those beyond are served at their own node alone.
pub const SHARED_MAX: usize = FILTERS_MAX / 2;

#[cfg(test)]
mod tests;
