//! The node's clock: monotonic, anchored to wall time when the program starts.
//!
//! Always true: it never goes backwards and never jumps, whatever is done to the wall clock meanwhile. Two
//! programs on one machine agree on it but for what the wall clock was corrected between their starts.

use std::{sync::OnceLock, time::Duration};

use tidegate_message::Instant;
use tidegate_sys::clock::{monotonic_nanos, realtime_nanos};

/// The current instant.
pub fn now() -> Instant {
    at(monotonic_nanos())
}

/// The instant of a reading of `CLOCK_MONOTONIC`.
pub fn at(monotonic: i64) -> Instant {
    static ANCHOR: OnceLock<i64> = OnceLock::new();
    let offset = *ANCHOR.get_or_init(|| realtime_nanos().saturating_sub(monotonic_nanos()));
    Instant::from_nanos(monotonic.saturating_add(offset))
}

/// Sleeps until that instant; at once if it has passed, for ever without one.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        // A deadline that is due is due: sleeping a whole timer tick would be late already.
        Some(at) => {
            let left = at.since(now());
            if left > Duration::ZERO {
                tokio::time::sleep(left).await;
            }
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_backwards() {
        let mut last = now();
        for _ in 0..1000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }
}
