//! The program on every node.

pub mod cli;
pub mod doctor;
pub mod run;
