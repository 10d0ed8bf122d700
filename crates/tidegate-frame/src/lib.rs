//! JPEG knobs, characterization tables, Pareto fronts, latency controllers, and the engine of a camera.
//!
//! [`knob`] changes frames, [`privacy`] covers parts of them, [`table`] says what each change costs and is worth, [`score`] measures that
//! worth, [`capacity`] estimates the link, [`controller`] chooses, [`transfer`] is the sender's state
//! machine that joins them, [`engine`] runs all transfers of a camera from its log, and [`coordinator`] divides a medium among cameras. Nothing here does I/O or
//! reads a clock.

pub mod capacity;
pub mod controller;
pub mod coordinator;
pub mod engine;
pub mod knob;
pub mod privacy;
pub mod score;
pub mod table;
pub mod transfer;
