//! The program on every node.

pub mod api;
pub mod camera;
pub mod characterize;
pub mod cli;
pub mod config;
pub mod detector;
pub mod doctor;
pub mod flow;
pub mod frame_log;
pub mod import;
pub mod ingest;
pub mod logging;
pub mod mqtt;
pub mod node;
pub mod run;
pub mod sink;
pub mod source;
pub mod tasks;
pub mod uplink;
