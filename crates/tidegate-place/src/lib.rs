//! Where data belong on the earth, and which nodes own them, as a pure function of the members.
//!
//! ```text
//!  Profile ──▶ Space: a point of the index ─▶ Bucket ──────┐
//!  Interest ─▶ Space: ranges of the index ──▶ Reach        ├─▶ owners, the first one first
//!  Place of each member ─▶ Places: cells ──────────────────┘
//! ```
//!
//! A [`Space`] gives each profile a point of an index by its attributes, and an interest all buckets that may have profiles which it
//! matches.
//!
//! Data lie in [`Bucket`]s: a fixed square of the earth and a fixed part of an index, which no change of the members splits. The members
//! decide who owns a bucket, by the tree of cells and by a weighted rendezvous hash.
//!
//! - **The tree.** The earth is cut in halves, turn about by longitude and by latitude: two cuts make the four children of a quadtree. A
//!   part is cut if one of its halves has at least `replicas` stationary members with a position. A half with fewer is joined to its
//!   neighbour, the other half: its buckets are owned by its own members first, and by as many of the neighbour's as are missing. A part
//!   that is not cut is a cell, and so is a half that was joined.
//! - **The owners.** The members nearest to a bucket, as the tree counts: those in the smaller part around it come before those of a
//!   larger one, until there are `replicas`. Of members that are equally near the rendezvous hash takes the lowest cost, distinct zones
//!   first.
//! - **Members without a position** stay out of the tree. They own buckets without a place like all others, and stand in where fewer
//!   than `replicas` have a position. **Mobile** members own nothing while there is a stationary one: they come and go, each time all
//!   that they own would move, and two copies that stay are worth more than a third that leaves each day.
//!
//! Always true:
//! - Equal sets of members give equal owners on every machine, in whatever order they are listed: there is no floating point in it.
//! - A member that goes moves its own buckets and no others. Of those the other owners stay, in their order, and one member comes in
//!   while one is left (when the last stationary member goes, mobile ones do). That holds for zones and cells as well: each bucket has an
//!   order of all members that depends on no third one, and zones only pass over members of it.
//! - Owners are from distinct zones as far as the part of the earth that the last of them is from allows: nearness comes before zones,
//!   so that data of a region do not leave it for the sake of a zone.
//!
//! # Decisions
//!
//! - *A part is cut if one half has enough, not only if both have.* Were it cut for both alone, a member that goes from a half with just
//!   enough would take the cut back, and deal out the buckets of all the others; and members that all live on one continent would never
//!   be cut at all, since the first halves are half of the earth each. Where a half has enough, its buckets have to be owned by its own
//!   members, whatever the other half has. That in turn is why a half with fewer keeps its own members as first owners.
//! - *No bounded load.* A bound on what a member owns would move buckets of members that stayed. The shares are even because there are
//!   enough buckets: between members that are equally near their standard deviation is within 15 %, up to 1,000 of them, for data in many
//!   squares. Data of one square are in fewer buckets (see [`Bucket`]).
//!   Shares of members at different places follow the data.
//! - *Weights* count between members that are equally near. A weak node that is alone in its part of the earth owns what is there, and
//!   should be given no position.

mod bucket;
mod cells;
mod encoding;
mod hilbert;
mod intervals;
mod member;
mod places;
mod reach;
mod rendezvous;
mod space;

pub use self::{
    bucket::Bucket,
    cells::{Bounds, Cell},
    member::{MemberId, Place, Weight},
    places::Places,
    reach::{Buckets, Reach},
    space::{Dimension, Half, Space, SpaceError},
};

/// The version of the algorithm: nodes of another one compute other owners. [`Places::hash`] covers it.
pub const ALGORITHM: u8 = 1;
