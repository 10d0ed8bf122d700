//! The node part of the program.
