//! The worker that runs the user's own ONNX models by ONNX Runtime: a program that speaks the detector protocol, as the Python worker does.
//!
//! ```text
//!  request ─▶ server ─▶ image (JPEG, PNG, pixels) ─▶ resample ─▶ model: tensor ─▶ ONNX Runtime ─▶ output: boxes, classes, poses ─▶ answer
//!                          ▲                                        ▲
//!                 shared memory, payload                  description (JSON next to the model)
//! ```
//!
//! ONNX Runtime is a library of C++ that is looked for and loaded when the worker starts ([`Runtime`]), so that a node is built and runs
//! without it. It is loaded by a process of its own, never by a node: whatever it does to its process, the pool starts another.
//!
//! Descriptions, preparation of images and the meaning of outputs are those of `workers/detector/tidegate_detector/onnx.py`; both are
//! tested on the same models and images (`tests/it/golden.rs`).
//!
//! Always true: a model is tried before it is used, and reads no file outside its folder; values that are not finite, and outputs of
//! another shape than the description's, are an error of their request and never become boxes; an image of more than 40 million pixels is
//! refused by its header.

mod description;
mod external;
mod image;
mod library;
mod model;
mod output;
mod providers;
mod resample;
mod server;

pub use library::{LibraryError, NoLibrary, Runtime};
pub use server::{ServeError, serve};

/// The variable that names the socket of the one who started the worker.
pub const SOCKET_VARIABLE: &str = "TIDEGATE_DETECTOR_SOCKET";
