//! Append-only circular logs of timed entries, read by position or time.
