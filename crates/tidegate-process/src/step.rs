//! The present step of starting or stopping the process, to name it when it hangs.

use std::sync::{Mutex, PoisonError};

static STEP: Mutex<&str> = Mutex::new("running the command");

/// The process is at that step from now on.
pub fn begin(step: &'static str) {
    *STEP.lock().unwrap_or_else(PoisonError::into_inner) = step;
}

/// The step that was begun last.
pub fn current() -> &'static str {
    *STEP.lock().unwrap_or_else(PoisonError::into_inner)
}
