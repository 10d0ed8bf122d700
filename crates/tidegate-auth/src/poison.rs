//! Locks whose holder panicked: what they guard is whole all the same, since every change to it is one step.

use std::sync::LockResult;

/// What the lock guards, whatever became of its last holder.
pub(crate) fn whole<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}
