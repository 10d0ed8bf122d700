//! When a large message starts.
