//! Loads and clients against servers of our own and, where it is installed, against mosquitto.

mod broker;
mod client;
mod devices;
mod load;
mod relay;
mod replay;
mod server;
mod transports;
