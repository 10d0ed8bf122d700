//! Waiting for a future on a thread that has no tasks.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The output of `future`; none if it has none within `limit`, and then it is dropped.
pub fn on<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let until = Instant::now() + limit;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_thread_waits_for_another_ones_word_and_no_longer_than_it_is_to() {
        let (word, said) = oneshot::channel();
        let speaker = thread::spawn(move || word.send(7).expect("it is waited for"));
        assert_eq!(on(Duration::from_secs(60), said), Some(Ok(7)));
        speaker.join().expect("it spoke");
        assert_eq!(on(Duration::from_millis(1), std::future::pending::<()>()), None);
    }
}
