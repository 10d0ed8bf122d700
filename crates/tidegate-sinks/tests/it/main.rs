//! Sinks at a node in memory, with destinations of the test's own. Those at real systems are tests of the program.

#[path = "../../../tidegate/tests/shared/poll.rs"]
mod poll;
mod runtime;
mod world;
