//! The program on every node.

pub mod access;
pub mod api;
mod arrivals;
pub mod auth;
pub mod camera;
pub mod carrier;
pub mod characterize;
pub mod cli;
pub mod clock;
mod command;
pub mod config;
mod descriptors;
pub mod detector;
pub mod doctor;
pub mod enrol;
pub mod flow;
pub mod frame_log;
pub mod health;
mod http;
pub mod import;
pub mod ingest;
pub mod link;
pub mod logging;
pub mod mqtt;
pub mod node;
pub mod pki;
mod reach;
pub mod run;
pub mod sink;
pub mod source;
pub(crate) mod step;
pub(crate) mod suggest;
pub mod tasks;
pub mod uplink;

/// An error and what caused it, joined by colons; for logs and for records that carry one sentence.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
