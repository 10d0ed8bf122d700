//! MQTT at the edge of this program: what carries its packets.

pub mod websocket;
