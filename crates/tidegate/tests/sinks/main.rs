//! Sinks at a real broker, and at the real things that they write to.

mod commands;
#[cfg(feature = "sink-kafka")]
mod kafka;
mod mqtt;
#[cfg(any(feature = "sink-kafka", feature = "sink-parquet", feature = "sink-postgres"))]
mod peer;
#[path = "../shared/poll.rs"]
mod poll;
#[cfg(feature = "sink-kafka")]
#[path = "../shared/poll_async.rs"]
mod poll_async;
#[cfg(feature = "sink-postgres")]
mod postgres;
#[cfg(feature = "sink-parquet")]
mod s3;
mod tls;
mod world;
