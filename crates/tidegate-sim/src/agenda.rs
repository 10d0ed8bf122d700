//! The events of a simulation, in virtual time.
//!
//! Always true: time never goes back; of two events at one time the one that was put in first comes first.

use std::{collections::BTreeMap, time::Duration};

use tidegate_message::Instant;

/// Events that are to happen, and the time that it is.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    now: Instant,
    /// Ordered, and not a heap: a crash takes some of them back.
    events: BTreeMap<(Instant, u64), E>,
    count: u64,
    still: u32,
}

impl<E> Agenda<E> {
    /// No events; it is `begin`.
    pub fn new(begin: Instant) -> Self {
        Self { now: begin, events: BTreeMap::new(), count: 0, still: 0 }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Lets an event happen at that time, or now if that has passed.
    pub fn at(&mut self, at: Instant, event: E) {
        self.count += 1;
        self.events.insert((at.max(self.now), self.count), event);
    }

    /// Lets an event happen after that time.
    pub fn after(&mut self, time: Duration, event: E) {
        self.at(self.now + time, event);
    }

    /// The next event and its time.
    pub fn next(&self) -> Option<(Instant, &E)> {
        self.events.first_key_value().map(|((at, _), event)| (*at, event))
    }

    /// Lets it be `to`, if that is later. Returns how often time has stood still since it went on: a simulation in which that is often
    /// makes no progress.
    pub fn advance(&mut self, to: Instant) -> u32 {
        self.still = if to > self.now { 0 } else { self.still + 1 };
        self.now = self.now.max(to);
        self.still
    }

    /// The next event that is due.
    pub fn pop(&mut self) -> Option<E> {
        let entry = self.events.first_entry().filter(|entry| entry.key().0 <= self.now)?;
        Some(entry.remove())
    }

    /// Takes back the events of which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(&E) -> bool) {
        self.events.retain(|_, event| keep(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: i64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn events_come_by_time_and_then_as_they_were_put_in() {
        let mut agenda = Agenda::new(ms(5));
        for (at, event) in [(9, "last"), (7, "first"), (7, "second"), (1, "overdue")] {
            agenda.at(ms(at), event);
        }
        agenda.after(Duration::from_millis(2), "third");
        assert_eq!(agenda.pop(), Some("overdue"), "an overdue one happens now");
        assert_eq!((agenda.pop(), agenda.next()), (None, Some((ms(7), &"first"))));
        assert_eq!(agenda.advance(ms(8)), 0);
        assert_eq!([agenda.pop(), agenda.pop()], [Some("first"), Some("second")]);
        agenda.retain(|event| *event != "third");
        assert_eq!(agenda.pop(), None);
        assert_eq!(agenda.next(), Some((ms(9), &"last")));
    }

    #[test]
    fn time_never_goes_back_and_its_standing_still_is_counted() {
        let mut agenda = Agenda::<()>::new(ms(5));
        assert_eq!([agenda.advance(ms(4)), agenda.advance(ms(5))], [1, 2]);
        assert_eq!(agenda.now(), ms(5));
        assert_eq!((agenda.advance(ms(6)), agenda.now()), (0, ms(6)));
    }
}
