//! The link between nodes: records and frames over QUIC, over TLS and TCP, or through memory for a camera that lives in the node.

pub mod carrier;
pub mod introduce;
pub mod link;
pub mod medium;
pub mod roles;
