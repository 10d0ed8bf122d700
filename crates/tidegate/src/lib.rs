//! The program on every node: `cli` reads the command line, `run` builds services from the configuration.

pub mod cli;
pub mod run;
