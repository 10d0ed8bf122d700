//! Many nodes as one: how members know of each other ([`members`]), which messages they send each other ([`interest`]), which connection of a
//! client stays ([`clients`]), and the rule by which views, owners and replicas behave, and what an answer may claim.
//!
//! ```text
//!  records of members ─▶ View ─▶ owners of each Bucket ─▶ Replica: enters, offers, is in sync ─▶ Gathering: the answer, complete or not
//! ```
//!
//! A bucket has `n` owners in a view, and a write is acknowledged once `k` of them have it. Views differ where nodes know of different
//! events; no node and no time of day decides which is right. The rule has these parts, each a [`Sentence`]:
//!
//! - **Views.** A member's record has a number and a start. A view is the records that a node knows, so that the union of two forks is
//!   later than both, and a set of members that comes again is another view. A node is in one view at a time and leaves it for later ones
//!   alone.
//! - **Loss.** A member that may have lost something of what it held (power, damage, an older folder) takes a new start and the next
//!   number, and so enters a view of its own. In every view before that it counts for nothing, and takes that it promised there are void.
//!   A process that was killed has lost nothing; that its files are the ones that were left is shown by a mark which no backup has.
//! - **In sync.** An owner takes changes and answers in a view once it is in sync there. For each earlier view that it, or an owner that
//!   it asked, knows of it needs a quorum of that view's owners that have lost nothing since, or else all members of the fabric. Each is
//!   asked to enter the new view first and reads its contents afterwards. Views before one that such an owner was in sync in are over.
//! - **Quorum.** `max(n − k + 1, n/2 + 1)`: it has each acknowledged record between its members, and meets every other quorum.
//! - **Contents.** Records by dots, and a clock of all dots ever seen, in intervals. Seen and not there is deleted. A delete leaves no
//!   entry, so there is none to drop too early or to keep for a member that never returns. A clock has only what its contents had: of
//!   those that could be read in part, it is made of the records that are there.
//! - **Answers.** Complete is an answer of a quorum of owners, in sync in one view, merged by their clocks.
//!
//! It holds while fewer than `k` members lose something at a time; pauses, cuts, kills and clocks that are wrong are free. The model in
//! `tidegate-sim` (`tests/it/fabric.rs`) runs it under all of them, and shows for each sentence a run that breaks without it.
//!
//! # What the model decided
//!
//! - *All owners of an earlier view* do not suffice where some of them lost something. All *members* do ([`Sentence::AllAreMembers`];
//!   seed 42 of the model with `n = k = 3`, without the faults that it does not need):
//!
//!   ```text
//!   60.5 s  backups of two of the three owners are made
//!   61.0 s  the third is cut off; the others lose it, enter a view with a new owner, and acknowledge a record there (66.5 s)
//!   69.5 s  the two are restored, and are linked to the third and no longer to the new owner
//!   70.0 s  all three have offered, none has heard of the other view: an answer without the record is complete
//!   ```
//! - The copies of a write have to be made in one view, and a loss has to be one: takes that an owner answered before it lost them are
//!   still on their way, and would be counted with those of others.
//! - "Killed under the same boot" is not enough to have lost nothing: a folder that was restored under the same boot looks alike.
//! - Neither votes on single copies nor deletes that wait for confirmations are needed, and former holders of a bucket need not be
//!   counted in an answer: an honest clock and the views that others tell of cover them.
//! - That an owner has entered a view need not be on its disk before it says so: if it loses that, it has lost something.
//! - With `k = 1` a quorum is all owners: while one is away there is no complete answer, nor a new view in sync.
//!
//! Not a part of it yet: members that a person forgets or lets join, zones and weights, writes that name their own `k`, records with a
//! user's key.

mod answer;
mod contents;
mod replica;
mod rule;
mod view;

pub mod clients;
pub mod interest;
pub mod members;

pub use self::{
    answer::Gathering,
    contents::{Change, Clock, Contents, Dot},
    replica::{Me, Offer, Replica, State},
    rule::{Rule, Sentence},
    view::{Bucket, MemberId, Standing, View},
};
