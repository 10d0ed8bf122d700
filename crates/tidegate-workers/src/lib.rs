//! A pool of programs that look at images, run next to this process and watched.
//!
//! ```text
//!  Client::detect ──▶ Pool ──▶ schedule (turns, batches, refusals) ──▶ worker ──socket, memory──▶ program
//!         ▲                                                              │ started, warmed, ended, started again
//!         └──────────────── boxes, checked, with times by stage ◀────────┘
//! ```
//!
//! Native vision libraries stay out of this process: their build, their memory and their crashes are the program's. The protocol is
//! documented in `docs/src/detector-protocol.md`; any program that speaks it is a worker.
//!
//! Always true: a program that dies, hangs or answers nonsense costs at most the requests that it had twice, once in company and once
//! alone; every wait has an end; boxes are in pixels of the picture as it is seen, or of the scene's source.

pub mod locate;
pub mod models;
mod pool;
pub mod protocol;
pub mod schedule;
mod shared;
mod work;
mod worker;

pub use locate::PythonMissing;
pub use pool::{Client, IMAGE_BYTES_MAX, MODELS_MAX, Pool, PoolSettings, PoolState};
pub use protocol::{Hello, MessageError, Model};
pub use shared::{FolderState, NotLoaded, SharedPool};
pub use work::ModelFile;
pub use worker::{Program, WorkerError};
