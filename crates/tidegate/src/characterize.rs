//! The characterize part of the program.
