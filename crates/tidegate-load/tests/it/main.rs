//! Loads and clients against a relay of our own and, where it is installed, against mosquitto.

mod broker;
mod client;
mod load;
mod relay;
