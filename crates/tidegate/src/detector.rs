//! The detector part of the program.
