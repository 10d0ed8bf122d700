//! The pki part of the program.
