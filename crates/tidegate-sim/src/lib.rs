//! Many nodes in virtual time over modelled media; one seed replays all.
//!
//! A [`world`] joins the live system's transfers and coordinator by a [`medium`]; [`outcome`] says what
//! became of every frame, [`cases`] are the worlds that controllers are judged by, and [`compare`] puts
//! them side by side; [`plot`] draws what came of it. [`broker`] is a world of its own: the MQTT broker, its clients, and what must be true of it.

pub mod broker;
pub mod cases;
pub mod compare;
pub mod medium;
pub mod outcome;
pub mod paper;
pub mod plot;
pub mod withhold;
pub mod world;
