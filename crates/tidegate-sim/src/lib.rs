//! Nodes in virtual time; one seed replays all.
//!
//! [`world`] has many nodes with links, disks, clocks and faults, for protocols between them. [`cameras`] joins the live system's transfers and coordinator by a [`medium`]; [`outcome`] says what
//! became of every frame, [`cases`] are the sites that controllers are judged by, and [`compare`] puts
//! them side by side; [`plot`] draws what came of it. [`broker`] has the MQTT broker, its clients, and what must be true of it.
//! All three run by an [`agenda`] of events; random tests have [`seeds`], draw from [`random`] and leave a [`trail`].

pub mod agenda;
pub mod broker;
pub mod cameras;
pub mod cases;
pub mod compare;
pub mod medium;
pub mod outcome;
pub mod paper;
pub mod plot;
pub mod random;
pub mod seeds;
pub mod trail;
pub mod withhold;
pub mod world;
