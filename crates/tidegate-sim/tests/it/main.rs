//! Claims about transfers, controllers, coordination and the MQTT broker, in virtual time.

mod broker;
mod control;
mod offer;
mod paper;
