//! System facilities that need unsafe code: memory regions, clocks, sockets, TUN devices.
//!
//! Always true: every public function is safe to call with any arguments; each unsafe block states why
//! it is sound.

pub mod clock;
pub mod net;
pub mod region;
pub mod sched;
pub mod tun;
