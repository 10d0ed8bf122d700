//! A body that is bounded in time, in length, and in what all bodies together hold.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{BoxError, body::Body};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::super::room::{Holding, Room};
use crate::failure::BodyError;

/// A body has this long, and longer by what has come of it at the slowest rate.
const BEGIN_MAX: Duration = Duration::from_secs(10);
/// The slowest rate, in bytes a second: below it a phone at the edge of its network sends no picture worth waiting for.
const BYTES_PER_SECOND_MIN: u64 = 8 << 10;

/// How long the body of a request may be, and whether its reader keeps it; an extension of each request of a known caller.
#[derive(Debug)]
pub struct BodyBound {
    bytes_max: AtomicU64,
    is_discarded: AtomicBool,
}

impl BodyBound {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max: AtomicU64::new(bytes_max), is_discarded: AtomicBool::new(false) }
    }

    /// For a reader that drops each piece as it comes: the body may have `bytes_max` bytes, and is not charged. To be called before the first
    /// piece is read.
    pub fn discard(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.is_discarded.store(true, Ordering::Relaxed);
    }
}

/// A body whose bytes are charged until it is dropped, and that ends if it comes too slowly or is too long. One that announces that it is
/// too long is not asked for.
pub(super) struct Bounded {
    body: Body,
    holding: Holding,
    bound: Arc<BodyBound>,
    came: u64,
    /// From the first time that it is read.
    pace: Option<Pace>,
}

struct Pace {
    began: Instant,
    late: Pin<Box<Sleep>>,
}

impl Bounded {
    pub(super) fn new(body: Body, rooms: [Arc<Room>; 3], bound: Arc<BodyBound>) -> Self {
        Self { body, holding: Holding::new(rooms), bound, came: 0, pace: None }
    }

    /// Whether less has come than should have by now.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let pace = self.pace.get_or_insert_with(|| Pace {
            began: Instant::now(),
            late: Box::pin(tokio::time::sleep(BEGIN_MAX)),
        });
        let more = Duration::from_secs(self.came / BYTES_PER_SECOND_MIN);
        let until = pace.began + BEGIN_MAX + more;
        if pace.late.deadline() != until {
            pace.late.as_mut().reset(until);
        }
        pace.late.as_mut().poll(context).is_ready()
    }
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let bytes_max = self.bound.bytes_max.load(Ordering::Relaxed);
        if self.came.saturating_add(self.body.size_hint().lower()) > bytes_max {
            return Poll::Ready(Some(Err(BodyError::TooLong { bytes_max }.into())));
        }
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending if self.is_late(context) => {
                return Poll::Ready(Some(Err(BodyError::Slow.into())));
            }
            Poll::Pending => return Poll::Pending,
        };
        if let Some(data) = frame.data_ref() {
            self.came = self.came.saturating_add(data.len() as u64);
            if self.came > bytes_max {
                return Poll::Ready(Some(Err(BodyError::TooLong { bytes_max }.into())));
            }
            let is_kept = !self.bound.is_discarded.load(Ordering::Relaxed);
            if is_kept && !self.holding.hold_more(data.len()) {
                return Poll::Ready(Some(Err(BodyError::Full.into())));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    fn rooms(bytes: usize) -> [Arc<Room>; 3] {
        [bytes; 3].map(|bytes| Arc::new(Room::new(bytes)))
    }

    fn bound(bytes_max: u64) -> Arc<BodyBound> {
        Arc::new(BodyBound::new(bytes_max))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_discarded_is_not_charged_and_has_a_bound_of_its_own() {
        let of = |body, bound: &Arc<BodyBound>| Bounded::new(body, rooms(50), bound.clone());
        let too_long = |error: BoxError| BodyError::of(&*error);
        let kept = bound(60);
        let error = of(drops(30, 3), &kept).collect().await.err().map(too_long);
        assert_eq!(error, Some(BodyError::Full), "the second piece finds no room");
        let discarded = bound(60);
        discarded.discard(100);
        let came = of(drops(30, 3), &discarded).collect().await.expect("it holds nothing");
        assert_eq!(came.to_bytes().len(), 90);
        let error = of(drops(30, 4), &discarded).collect().await.err().map(too_long);
        assert_eq!(error, Some(BodyError::TooLong { bytes_max: 100 }));
        // One that says so itself is not waited for.
        let began = Instant::now();
        let error = of(Body::from(vec![7; 101]), &discarded).collect().await.err().map(too_long);
        assert_eq!(error, Some(BodyError::TooLong { bytes_max: 100 }));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    /// A body of which a piece of so many bytes comes every second, `count` times.
    fn drops(bytes: usize, count: usize) -> Body {
        let second = Duration::from_secs(1);
        let seconds = tokio::time::interval_at(Instant::now() + second, second);
        let pieces =
            futures::stream::unfold((seconds, count), move |(mut seconds, left)| async move {
                seconds.tick().await;
                let piece = Frame::data(Bytes::from(vec![7; bytes]));
                (left > 0).then(|| (Ok::<_, BodyError>(piece), (seconds, left - 1)))
            });
        Body::new(StreamBody::new(pieces))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_ends_when_it_comes_too_slowly() {
        for (bytes, count, expected) in [
            (1, 5, Ok(5)),
            (1, 20, Err("too slowly")),
            (4 << 10, 30, Err("too slowly")), // after 20 s
            (9 << 10, 60, Ok(60 * (9 << 10))),
        ] {
            let body = Bounded::new(drops(bytes, count), rooms(16 << 20), bound(16 << 20));
            match (body.collect().await, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got.to_bytes().len(), expected),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (got, expected) => panic!("{bytes} bytes, {count} times: {got:?}, {expected:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_body_holds_is_bounded_and_given_back() {
        let rooms = rooms(100);
        let held = Bounded::new(drops(30, 3), rooms.clone(), bound(1000)).collect().await;
        let error = held.expect_err("90 of 100 are more than one caller may have");
        assert_eq!(error.downcast_ref(), Some(&BodyError::Full));
        let whole = Bounded::new(drops(30, 2), rooms, bound(1000))
            .collect()
            .await
            .expect("there is room again");
        assert_eq!(whole.to_bytes().len(), 60);
    }
}
