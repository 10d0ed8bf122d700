//! Link emulation between network namespaces: WAN and Wi-Fi-like media.
//!
//! ```text
//!   namespace of cam1          this process, one thread           namespace of edge
//!   program ─▶ TUN wifi0 ══▶ read ─▶ Medium (tidegate-sim) ─▶ write ══▶ TUN wifi0 ─▶ program
//! ```
//!
//! A [`Lab`] makes one namespace for each node of a scenario and one TUN device for each port, and moves
//! IPv4 packets between them through the same [`Medium`](tidegate_sim::medium::Medium) that simulations use. It runs in real time on
//! a thread of its own and audits itself: how late each packet was against the model. A run that the
//! machine could not keep up with is flagged invalid, so that a busy machine is not taken for a bad
//! link.
//!
//! Traps of emulating links on one machine:
//! - Without real-time priority (`Options::real_time`) a busy machine delays packets by 100 ms and more.
//! - A virtual machine's idle processors wake late, by tens of milliseconds where the host is busy
//!   (also `Options::real_time`).
//! - The kernel sees nothing of the medium's queue, so TCP's own queue limits give no back-pressure:
//!   the queue of a scenario behaves as a router's, and its length is chosen on purpose.
//! - The machine's default TCP congestion control decides what loss does to a TCP flow. Pin it per
//!   socket.
//! - Packets are at most [`MTU`] bytes; no offload is announced, so the kernel segments TCP and UDP before
//!   the device and loss is per packet.
//! - IPv4 only: other packets are counted and dropped.
//!
//! Always true: namespaces and devices vanish with the [`Lab`], also when making it fails half way; those
//! left behind by a killed process are removed by [`sweep`].

mod audit;
mod awake;
pub mod control;
mod emulator;
mod lab;
mod namespace;
pub mod selftest;

pub use audit::{Audit, Flaw, Lateness};
pub use lab::{Lab, LabError, Node, Options};
pub use namespace::{SweepError, sweep, sweep_prefix};

/// Largest packet of every medium, in bytes, the IP header included.
pub const MTU: usize = 1500;
