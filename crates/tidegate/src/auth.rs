//! The doors: who comes in, and what they may do.

pub mod password;
pub mod scram;
