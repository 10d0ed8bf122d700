//! The program as users run it, with nodes that run `tidegate`.

mod bench;
mod demo;
mod node;
mod output;
