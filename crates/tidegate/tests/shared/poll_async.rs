//! The one wait of tests, as in `poll`, for those that run on tokio.

use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(5);

/// Asks until there is an answer; none if there was none within that time. An answer that does not come at all counts as none.
pub(crate) async fn poll<T>(
    at_most: Duration,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> Option<T> {
    let end = Instant::now() + at_most;
    let asking = async {
        loop {
            let answer = ask().await;
            if answer.is_some() || Instant::now() >= end {
                return answer;
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::time::timeout(at_most, asking).await.ok().flatten()
}
