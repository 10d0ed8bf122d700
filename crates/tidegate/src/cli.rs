//! The cli part of the program.
