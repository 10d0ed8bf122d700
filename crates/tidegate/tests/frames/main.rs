//! Frames from a camera to an application, over real sockets.

mod deliver;
mod durable;
mod recover;
mod refuse;
mod world;
