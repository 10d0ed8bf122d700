//! MQTT sessions, routes, queues and schedules, without I/O.

pub mod index;
pub mod retained;
pub mod schedule;
