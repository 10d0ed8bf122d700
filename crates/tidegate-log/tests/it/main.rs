//! The log through its public interface.

mod allocation;
mod cadence;
mod durable;
mod faults;
mod faulty;
mod kill;
mod limit;
mod model;
mod overtaken;
mod power;
mod sealed;
mod store;
mod support;
mod survey;
