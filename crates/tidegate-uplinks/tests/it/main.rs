//! Uplinks between nodes whose brokers are in memory, over links on loopback.

mod changes;
mod leaves;
mod members;
#[path = "../../../tidegate/tests/shared/poll_async.rs"]
mod poll_async;
mod world;
