//! Bridges between brokers: ours, and Debian's mosquitto where it is installed.

mod deliver;
mod foreign;
mod recover;
mod world;
