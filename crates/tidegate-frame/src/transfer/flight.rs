//! The frames on the way.

use std::{collections::VecDeque, time::Duration};

use tidegate_message::Instant;

/// A frame that was handed to the link and is not known to have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) frame: Instant,
    pub(super) base: Instant,
    pub(super) deadline: Instant,
    pub(super) bytes: u32,
    pub(super) received: u32,
    pub(super) original_bytes: u32,
    pub(super) replayed: bool,
    pub(super) started: Option<Instant>,
    /// Set once it was reset: when it counts as lost, unless its last byte is acknowledged before.
    pub(super) settle_at: Option<Instant>,
    /// Sent whatever was projected.
    pub(super) trial: bool,
    /// Size of an earlier encoding of the same frame that was taken back.
    pub(super) replaced_bytes: Option<u32>,
    pub(super) pace: Pace,
}

/// How fast the bytes of a frame arrive, in windows of time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// When the present window began, and the bytes that had arrived then.
    began: Option<(Instant, u32)>,
    /// Bytes a second in the window before it.
    before: Option<f64>,
    /// Whether the last window that ended was hardly faster than the one before.
    is_steady: bool,
}

/// Part by which a window is faster than the one before while a link opens up.
const OPENING: f64 = 1.2;

impl Pace {
    /// `received` bytes have arrived by `now`; a window is as long as `window`.
    fn learn(&mut self, now: Instant, received: u32, window: Duration) {
        let (began, bytes) = *self.began.get_or_insert((now, received));
        let span = now.since(began);
        if span < window {
            return;
        }
        let pace = f64::from(received.saturating_sub(bytes)) / span.as_secs_f64();
        self.is_steady = self.before.is_some_and(|before| pace <= OPENING * before);
        self.before = Some(pace);
        self.began = Some((now, received));
    }

    /// Whether what was seen so far is the path's pace: a link that was idle opens up with each round trip.
    pub(super) fn is_steady(&self) -> bool {
        self.is_steady
    }
}

/// The frames on the way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flights: VecDeque<Flight>,
}

impl Flights {
    pub(super) fn push(&mut self, flight: Flight) {
        self.flights.push_back(flight);
    }

    pub(super) fn pop_back(&mut self) -> Option<Flight> {
        self.flights.pop_back()
    }

    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }

    /// Whether nothing is on the way that still takes up the link.
    pub(super) fn is_quiet(&self) -> bool {
        self.flights.iter().all(|flight| flight.settle_at.is_some())
    }

    /// Whether nothing is on the way at all, not even a frame that was reset and may have arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Bytes that were handed to the link and neither acknowledged nor reset.
    pub(super) fn outstanding_bytes(&self) -> u64 {
        let live = self.flights.iter().filter(|flight| flight.settle_at.is_none());
        live.map(|flight| u64::from(flight.bytes.saturating_sub(flight.received))).sum()
    }

    /// Notes that a frame's first byte left; says whether it is alone on the way, once.
    pub(super) fn begin(&mut self, now: Instant, frame: Instant) -> Option<bool> {
        let alone = self.len() == 1;
        let flight = self.flights.iter_mut().find(|flight| flight.frame == frame)?;
        flight.started.replace(now).is_none().then_some(alone)
    }

    /// The only frame on the way, if there is exactly one.
    pub(super) fn alone(&self) -> Option<&Flight> {
        self.flights.front().filter(|flight| self.len() == 1 && flight.settle_at.is_none())
    }

    /// Whether a word about a frame of `total` bytes means an encoding that was taken back.
    pub(super) fn replaced(&self, frame: Instant, total: u32) -> bool {
        let flight = self.flights.iter().find(|flight| flight.frame == frame);
        flight.is_some_and(|flight| flight.replaced_bytes == Some(total))
    }

    /// Notes that `received` bytes of a frame have arrived by `now`; its pace is taken over `window`. Gives the frame.
    pub(super) fn received(
        &mut self,
        now: Instant,
        frame: Instant,
        received: u32,
        window: Duration,
    ) -> Option<Flight> {
        let flight = self.flights.iter_mut().find(|flight| flight.frame == frame)?;
        flight.received = flight.received.max(received.min(flight.bytes));
        flight.pace.learn(now, flight.received, window);
        Some(*flight)
    }

    pub(super) fn remove(&mut self, frame: Instant) -> Option<Flight> {
        let index = self.flights.iter().position(|flight| flight.frame == frame)?;
        self.flights.remove(index)
    }

    /// The next frame to reset; each is given once.
    pub(super) fn overdue(&mut self, now: Instant, grace: Duration) -> Option<Instant> {
        let due = |flight: &&mut Flight| flight.settle_at.is_none() && now >= flight.deadline;
        let flight = self.flights.iter_mut().find(due)?;
        flight.settle_at = Some(now + grace);
        Some(flight.frame)
    }

    /// The next frame that was reset and is now lost for certain.
    pub(super) fn settled(&mut self, now: Instant) -> Option<Flight> {
        let lost = |flight: &Flight| flight.settle_at.is_some_and(|at| now >= at);
        let index = self.flights.iter().position(lost)?;
        self.flights.remove(index)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let next = |flight: &Flight| flight.settle_at.unwrap_or(flight.deadline);
        self.flights.iter().map(next).min().filter(|at| *at < Instant::MAX)
    }
}
