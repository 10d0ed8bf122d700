//! Loads and clients against servers of our own and, where it is installed, against mosquitto.

mod broker;
mod client;
mod devices;
mod load;
#[path = "../../../tidegate/tests/shared/poll.rs"]
mod poll;
mod relay;
mod replay;
mod server;
mod transports;
mod vision;
