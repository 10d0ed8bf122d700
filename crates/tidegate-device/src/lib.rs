//! Datagrams, lines, JSON, SenML, paths and queries of devices that speak no MQTT, as topics and payloads.
//!
//! ```text
//!  datagram ─▶ named, Template::of_source ──────────┐
//!  line (tidegate-wire) ─▶ line::messages ──────────┼─▶ topic, payload ─▶ MessageLimits
//!  body ─▶ array::elements, senml::resolve ─────────┤
//!           (senml_cbor::to_json before it)         │
//!  path and query ─▶ query::decode, parameter ──────┘
//! ```
//!
//! Always true: a payload comes out as it was written, a number digit for digit; text from outside stays within its level of a
//! topic; no bytes of a device lead to a panic.

pub mod array;
mod datagram;
mod limits;
pub mod line;
pub mod query;
pub mod senml;
pub mod senml_cbor;
mod template;

pub use datagram::named;
pub use limits::MessageLimits;
pub use template::{NoTag, Place, Template, TemplateError};
