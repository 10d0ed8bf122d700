//! Tests of the worker by the protocol, beside the worker in Python.

mod golden;
mod images;
mod onnx;
mod worker;
