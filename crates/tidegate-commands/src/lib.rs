//! The commands that need neither a node of ours nor its configuration: clients of any MQTT broker, flows that are tried on a file, and the
//! passwords of a file.

pub mod flow;
pub mod mqtt;
pub mod password;
pub mod replay;
