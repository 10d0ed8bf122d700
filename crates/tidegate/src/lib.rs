//! The program on every node: camera, edge and cloud.

pub mod api;
pub mod camera;
pub mod characterize;
pub mod cli;
pub mod config;
pub mod demo;
pub mod detector;
pub mod link;
pub mod node;
pub mod pki;
pub mod source;
