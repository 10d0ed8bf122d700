//! The node link over real sockets, on loopback and behind a modelled bottleneck.

mod bottleneck;
mod ends;
mod frames;
mod peers;
mod relay;
mod support;
