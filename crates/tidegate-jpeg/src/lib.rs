//! A safe face on libjpeg-turbo: planes in and out, and coefficients in place.
mod header;

pub use header::{Coding, Header, HeaderError, Limits, SIDE_MAX, Sampling};
