//! The demo part of the program.
