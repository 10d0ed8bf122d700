//! Async client of the Tidegate API.
