//! Bridges between brokers: ours, and Debian's mosquitto where it is installed.

mod deliver;
mod foreign;
#[path = "../shared/poll.rs"]
mod poll;
mod recover;
mod world;
