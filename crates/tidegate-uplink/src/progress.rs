//! Which of the numbered messages of an uplink the receiving node has published.
//!
//! Messages are handed to the node's broker in runs of consecutive numbers, and the broker acknowledges a count of messages, in order.
//! Some numbers are never handed over: their messages go no further, for they had been there before.
//!
//! Always true: a number counts as published only when the broker has acknowledged every message handed over up to it.

use std::collections::VecDeque;

/// The state of one stream of numbers.
#[derive(Debug, Default)]
pub struct Progress {
    /// Handed over and not acknowledged, in order.
    under_way: VecDeque<Run>,
    /// Number of the message that comes next, and of the first since the last hand-over.
    next: u64,
    first: u64,
    published: u64,
}

/// Messages of consecutive numbers that were handed over together.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Messages handed over up to its last.
    handed: u64,
    /// Number of its first, and behind its last. Those that go no further have numbers and are not handed over.
    first: u64,
    next: u64,
    messages: u64,
}

impl Progress {
    /// Numbers start over. Messages still under way are of the session before; their numbers mean nothing now.
    pub fn begin(&mut self) {
        *self = Self::default();
    }

    /// The next message has that number.
    pub fn expect(&mut self, number: u64) {
        if self.under_way.is_empty() {
            self.published = self.published.max(number);
        }
        (self.next, self.first) = (number, number);
    }

    /// The number of the next message, which is thereby counted, whether it is handed over or goes no further.
    pub fn count(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// The messages that were counted since [`Progress::expect`] or the last hand-over are handed over now: `messages` of them, with
    /// which `handed` messages are handed over in all.
    pub fn hand_over(&mut self, handed: u64, messages: u64) {
        if self.first == self.next {
            return;
        }
        let (first, next) = (self.first, self.next);
        self.under_way.push_back(Run { handed, first, next, messages });
        self.first = self.next;
    }

    /// The broker has acknowledged so many messages in all.
    pub fn acknowledged(&mut self, acknowledged: u64) {
        while let Some(run) = self.under_way.pop_front_if(|run| run.handed <= acknowledged) {
            self.published = run.next;
        }
        if let Some(run) = self.under_way.front() {
            // Acknowledgements may still be of messages before it.
            let left = (run.handed - acknowledged).min(run.messages);
            // Where some were not handed over, it is not known which numbers are left.
            if run.messages == run.next - run.first {
                self.published = run.next - left;
            }
        }
    }

    /// All messages with lower numbers were published, or never will be.
    pub fn published(&self) -> u64 {
        self.published
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts `count` messages, of which `handed` go to the broker.
    fn run(progress: &mut Progress, total: &mut u64, count: u64, handed: u64) {
        for _ in 0..count {
            progress.count();
        }
        *total += handed;
        progress.hand_over(*total, handed);
    }

    #[test]
    fn numbers_are_published_as_far_as_the_broker_has_acknowledged() {
        let (mut progress, mut total) = (Progress::default(), 0);
        progress.expect(5);
        assert_eq!(progress.published(), 5, "those before were published on an earlier link");
        run(&mut progress, &mut total, 10, 10);
        run(&mut progress, &mut total, 10, 10);
        for (acknowledged, published) in [(0, 5), (3, 8), (10, 15), (12, 17), (20, 25)] {
            progress.acknowledged(acknowledged);
            assert_eq!(progress.published(), published, "{acknowledged} acknowledged");
        }
    }

    #[test]
    fn of_a_run_with_messages_that_go_no_further_all_or_none_are_published() {
        let (mut progress, mut total) = (Progress::default(), 0);
        progress.expect(0);
        run(&mut progress, &mut total, 10, 7);
        run(&mut progress, &mut total, 4, 0);
        run(&mut progress, &mut total, 2, 2);
        for (acknowledged, published) in [(0, 0), (6, 0), (7, 14), (8, 15), (9, 16)] {
            progress.acknowledged(acknowledged);
            assert_eq!(progress.published(), published, "{acknowledged} acknowledged");
        }
        progress.begin();
        progress.expect(3);
        assert_eq!(progress.published(), 3);
    }
}
