//! System facilities that need unsafe code: memory regions, hints on memory, files in memory, locked folders, clocks, sockets, datagrams, programs at
//! packets, terminals, TUN devices, files that arrive in folders, files that are written whole, the process as a whole.
//!
//! Always true: every public function is safe to call with any arguments; each unsafe block states why
//! it is sound.

pub mod arrivals;
pub mod beneath;
pub mod bpf;
pub mod clock;
pub mod datagram;
pub mod files;
pub mod folder;
mod lock;
pub mod memfile;
pub mod memory;
pub mod net;
mod pool;
pub mod process;
pub mod region;
pub mod regular;
pub mod sched;
pub mod secret;
mod sigbus;
#[cfg(feature = "streams")]
pub mod streams;
pub mod terminal;
pub mod tun;
pub mod vector;
