//! Frames from a camera to an application, over real sockets.

mod clock;
mod configured;
mod deliver;
mod durable;
mod http;
mod native;
#[path = "../shared/poll.rs"]
mod poll;
#[path = "../shared/poll_async.rs"]
mod poll_async;
mod privacy;
mod recover;
mod refuse;
mod secrets;
mod states;
mod web;
mod world;
