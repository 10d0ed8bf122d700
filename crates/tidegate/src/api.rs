//! The api part of the program.
