//! Tasks that block, on threads of their own.

/// The result of a blocking task; its panic continues here.
pub(super) fn joined<T>(result: Result<T, tokio::task::JoinError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
