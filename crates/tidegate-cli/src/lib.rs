//! Parts that the commands of every program of ours share (how they begin, log, print and end), and the commands that are clients of a
//! node's API, or try sources of frames.

mod arguments;
pub mod cameras;
pub mod fabric;
pub mod fetch;
pub mod logging;
pub mod program;
pub mod remote;
pub mod sessions;
pub mod sources;
mod stop;
pub mod subscribe;
mod time;
