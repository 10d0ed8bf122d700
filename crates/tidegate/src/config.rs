//! The config part of the program.
