//! The transcoder against decoded pixels.
