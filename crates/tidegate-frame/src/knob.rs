//! Knobs: what can be done to a JPEG frame to make it smaller.
