//! MQTT at the edge of this program: what carries its packets, and where its settings come from.

pub mod import;
pub mod websocket;
