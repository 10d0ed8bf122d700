//! Claims about transfers, controllers and coordination, in virtual time.

mod control;
mod paper;
