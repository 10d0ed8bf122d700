//! Tools that no node runs: demonstrations on emulated links, simulations in virtual time, and loads.
//!
//! ```text
//!  cli ──▶ demo ──▶ program (the `tidegate` that nodes of a demonstration run)
//!   │       └─────▶ report
//!   ├────▶ sim     (tidegate-sim)
//!   └────▶ bench   (tidegate-load)
//! ```
//!
//! The program on every node (`tidegate`) links no emulator, no simulator and no load generator; this one links them all.

pub mod cli;
pub mod demo;
pub mod program;
pub mod report;
