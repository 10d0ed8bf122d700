//! The program on every node: `cli` reads the command line, `run` builds services from the configuration, `doctor` inspects files.

pub mod cli;
pub mod doctor;
pub mod run;
