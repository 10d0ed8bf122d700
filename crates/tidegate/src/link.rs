//! The link part of the program.
