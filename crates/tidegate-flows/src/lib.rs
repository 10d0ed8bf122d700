//! Flows in a node: operators on messages before they are queued.
//!
//! ```text
//!  tidegate.toml [flow.NAME] ─▶ file::FlowFile ─▶ Plan ──commit──▶ Set ◀── Hook of each shard: admit(batch)
//!                                                                   │        topic ─▶ flows ─▶ part by key ─▶ verdicts, emissions
//!                                                                   └──▶ keep: state on the disk, now and then and at the end
//! ```
//!
//! **Which thread has a key's state.** A key's messages come in at any shard: a parent topic gathers devices, and devices that are
//! fields of a payload connect where they like. So state is parted by the key's hash, and each part is a flow of its own behind a
//! lock. A shard takes a part's lock once for all messages of a read that belong there; there are at least twice as many parts as
//! shards, so that two rarely want one at a time, and handing messages to an owner would cost each a queue and a wake. With one
//! shard there is one part, without contention: its lock is one instruction a read, and no key is hashed twice.
//!
//! Always true: a part is locked by one thread, for as long as one batch runs; a key belongs to one part as long as a set lasts, so
//! that its messages are seen one after the other; a flow's decision depends on the message as it came, not on other flows; a flow
//! reads nothing that it published itself, nor messages derived from that by other flows.

mod engine;
pub mod file;
mod hook;
mod keep;
mod state_file;

pub use self::{
    engine::{FLOWS_MAX, FlowSettings, Flows, Plan, PlanError, Planned},
    hook::Hook,
    keep::Keeper,
    state_file::KeepError,
};
