//! The one wait of tests for something that a process, a thread or the kernel does in its own time: asked again and again, and bounded.

use std::{
    thread,
    time::{Duration, Instant},
};

const EVERY: Duration = Duration::from_millis(5);

/// Asks until there is an answer; none if there was none within that time.
pub(crate) fn poll<T>(at_most: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + at_most;
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() >= end {
            return answer;
        }
        thread::sleep(EVERY);
    }
}
