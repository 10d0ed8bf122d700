//! Benches of the frame path.
fn main() {}
