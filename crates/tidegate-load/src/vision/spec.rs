//! A load of images, as it is asked for.

use std::time::Duration;

use super::{images::Image, link::Target};

/// How images are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connection {
    /// `POST` with the image as it is.
    Rest,
    /// `POST` of a form with the image in base64.
    RestBase64,
    /// A binary message of WebSocket.
    #[value(name = "websocket")]
    #[serde(rename = "websocket")]
    WebSocket,
    /// The persistent TCP protocol: operation, length, image.
    #[value(alias = "socket")]
    Tcp,
    /// A call of gRPC for each image, `tidegate.v1.Detect/Detect`.
    Grpc,
    /// Messages of one stream of gRPC, `tidegate.v1.Detect/DetectStream`.
    GrpcStream,
}

impl Connection {
    /// Its name as it is given.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::RestBase64 => "rest-base64",
            Self::WebSocket => "websocket",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
            Self::GrpcStream => "grpc-stream",
        }
    }

    /// Whether images are messages of gRPC.
    #[must_use]
    pub fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::GrpcStream)
    }
}

/// When a run is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Counting {
    /// Each client sends all images that many times.
    Repeats(u32),
    /// No request begins later than that behind the first.
    For(Duration),
}

/// A load.
#[derive(Clone, Debug)]
pub struct VisionSpec {
    /// The server.
    pub target: Target,
    /// The path, or for TCP what stands for the operation; for gRPC such a path or the model's name.
    pub endpoint: String,
    /// How images are sent.
    pub connection: Connection,
    /// Whether each request has a connection of its own.
    pub connection_per_request: bool,
    /// The value of `Authorization`; none without it.
    pub authorization: Option<String>,
    /// Images, sent in turn; at least one.
    pub images: Vec<Image>,
    /// Clients, each with a thread and a connection; 1 to [`THREADS_MAX`](super::THREADS_MAX).
    pub threads: u32,
    /// When it is over.
    pub counting: Counting,
    /// Requests of all clients together per second. Without it a client sends the next image when it has the answer.
    pub rate: Option<f64>,
    /// Requests of each client that come before all others and are not measured.
    pub warm_up: u32,
    /// Whether the network is looked at alone, by a fresh TCP connect each 100 ms.
    pub network: bool,
    /// The port of HTTP where the server tells the use of its machine, if that is asked for.
    pub stats_port: Option<u16>,
    /// Whether [`VisionReport::full_process_ms`](super::VisionReport::full_process_ms) keeps each time, 8 bytes a request.
    pub keep_times: bool,
}
