//! Locks whose holder panicked: the guarded value is whole all the same, since every change to it is one step.

use std::sync::LockResult;

/// The guarded value, even if its last holder panicked.
pub(crate) fn whole<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}
