//! The present step of starting or stopping the process, to name it when it hangs.

use std::{
    borrow::Cow,
    sync::{Mutex, PoisonError},
};

static STEP: Mutex<Cow<'static, str>> = Mutex::new(Cow::Borrowed("running the command"));

/// The process is at that step from now on.
pub fn begin(step: impl Into<Cow<'static, str>>) {
    *STEP.lock().unwrap_or_else(PoisonError::into_inner) = step.into();
}

/// The step that was begun last.
pub fn current() -> Cow<'static, str> {
    STEP.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
