//! A camera of a node: the source of its frames, the log that keeps them, the engine that serves transfers from it, detectors, and
//! tables of what each setting of the encoder costs.

pub mod camera;
pub mod characterize;
pub mod detector;
pub mod discovery;
pub mod frame_log;
pub mod source;
