//! Claims about transfers, controllers, coordination, the MQTT broker and the world of many nodes, in virtual time.

mod broker;
mod control;
mod fabric;
mod members;
mod offer;
mod paper;
mod register;
mod world;
