//! The servers of the bench, as it uses them.

mod peer;
