//! Many nodes in virtual time over modelled media; one seed replays all.

pub mod medium;
