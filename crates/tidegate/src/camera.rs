//! The camera part of the program.
