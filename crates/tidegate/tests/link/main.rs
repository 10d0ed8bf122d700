//! The node link over real sockets, on loopback and behind a modelled bottleneck.

mod frames;
mod support;
