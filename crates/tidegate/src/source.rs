//! The source part of the program.
