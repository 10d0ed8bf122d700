//! The description of the paths, served by itself.

use axum::{body::Body, http::Response, http::StatusCode};

use crate::refused::bytes_answer;

/// OpenAPI 3.1; a test holds every path and every answer against it.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// `GET /v1/openapi.json`.
pub(crate) async fn serve() -> Response<Body> {
    bytes_answer(StatusCode::OK, "application/json", OPENAPI)
}
