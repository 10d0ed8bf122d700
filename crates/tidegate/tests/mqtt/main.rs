//! The MQTT broker of a node as its users have it: the real program, foreign clients, real sockets.

mod admission;
mod authentication;
mod begin;
mod bus;
mod check;
mod clients;
mod commands;
mod detect;
mod disk;
mod fabric;
mod flows;
mod hostile;
mod import;
mod inside;
mod listeners;
mod log;
mod loops;
mod operators;
mod output;
mod overflow;
mod owners;
mod parts;
mod peers;
#[path = "../shared/poll.rs"]
mod poll;
#[path = "../shared/poll_async.rs"]
mod poll_async;
mod program;
mod relay;
mod replay;
mod restart;
mod rights;
mod secrets;
mod spill;
mod uplink;
