//! Messages of applications, made beforehand, which are repeated with times that continue.
//!
//! Their layout is fixed (table I of the paper), as the profile `comprex` needs it. One message in [`ODD_EVERY`] has a value that makes
//! its flow notify: few made-up devices ever would.

use std::{num::NonZeroU64, ops::Range};

use anyhow::Context as _;
use tidegate_load::sensors::{Form, Generator, Workload};

/// Messages of an application of which one notifies.
const ODD_EVERY: Option<NonZeroU64> = NonZeroU64::new(97);
/// Digits of a time in milliseconds.
const TIME_DIGITS: usize = 13;

/// Messages by their number, from 0 without end.
#[derive(Clone, Debug)]
pub struct Feed {
    topics: String,
    payloads: Vec<u8>,
    messages: Vec<Made>,
}

#[derive(Clone, Copy, Debug)]
struct Made {
    topic_end: u32,
    payload_end: u32,
    /// Where in the payload its time stands, and the time itself.
    time_at: u32,
    time_ms: u64,
    /// By how much it is later each time around.
    span_ms: u64,
}

impl Feed {
    /// `devices` devices of each of some applications, `rounds` messages of each on average. The messages of several applications
    /// stand in random order.
    ///
    /// # Errors
    /// A message is not what the generator says.
    pub fn new(
        workloads: &[Workload],
        devices: u64,
        rounds: u64,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut generators: Vec<Generator> = workloads
            .iter()
            .map(|workload| {
                Generator::new(*workload, devices, seed).with_form(Form::Fixed).with_odd(ODD_EVERY)
            })
            .collect();
        let mut feed = Self { topics: String::new(), payloads: Vec::new(), messages: Vec::new() };
        let mut random = seed | 1;
        let (mut topic, mut payload) = (Vec::new(), Vec::new());
        for _ in 0..workloads.len() as u64 * devices * rounds {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let which = (random >> 33) as usize % workloads.len();
            topic.clear();
            payload.clear();
            generators[which].next(&mut topic, &mut payload);
            feed.topics.push_str(std::str::from_utf8(&topic).context("topics are ASCII")?);
            feed.push(&payload, rounds * workloads[which].period_ms())?;
        }
        Ok(feed)
    }

    fn push(&mut self, payload: &[u8], span_ms: u64) -> anyhow::Result<()> {
        let is_time = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
        let time_at = payload
            .windows(TIME_DIGITS)
            .position(is_time)
            .context("a message has a time in milliseconds")?;
        let digits = &payload[time_at..time_at + TIME_DIGITS];
        let time_ms = digits.iter().fold(0, |time, digit| 10 * time + u64::from(digit - b'0'));
        self.payloads.extend_from_slice(payload);
        self.messages.push(Made {
            topic_end: self.topics.len() as u32,
            payload_end: self.payloads.len() as u32,
            time_at: time_at as u32,
            time_ms,
            span_ms,
        });
        Ok(())
    }

    /// Messages after which they come round again.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Mean bytes of a message, topic and payload.
    pub fn message_bytes(&self) -> usize {
        (self.topics.len() + self.payloads.len()) / self.len().max(1)
    }

    /// Brings messages to the times at which they come round with these numbers, at most as many as there are.
    pub fn advance(&mut self, numbers: Range<u64>) {
        for number in numbers {
            let (index, pass) = self.place(number);
            let made = self.messages[index];
            let at = self.start(index).1 + made.time_at as usize;
            let mut time = made.time_ms + pass * made.span_ms;
            for digit in self.payloads[at..at + TIME_DIGITS].iter_mut().rev() {
                *digit = b'0' + (time % 10) as u8;
                time /= 10;
            }
        }
    }

    /// A message, as it was when it was brought forward last.
    pub fn message(&self, number: u64) -> (&str, &[u8]) {
        let index = self.place(number).0;
        let (topic, payload) = self.start(index);
        let made = &self.messages[index];
        (
            &self.topics[topic..made.topic_end as usize],
            &self.payloads[payload..made.payload_end as usize],
        )
    }

    /// A column of each message of the first round, one to a line.
    pub fn column(&self, column: usize) -> String {
        let mut lines = String::new();
        for number in 0..self.len() as u64 {
            let payload = String::from_utf8_lossy(self.message(number).1);
            lines.push_str(payload.split(',').nth(column).unwrap_or_default().trim());
            lines.push('\n');
        }
        lines
    }

    fn place(&self, number: u64) -> (usize, u64) {
        let count = self.len() as u64;
        ((number % count) as usize, number / count)
    }

    fn start(&self, index: usize) -> (usize, usize) {
        let before = index.checked_sub(1).map(|before| self.messages[before]);
        before.map_or((0, 0), |made| (made.topic_end as usize, made.payload_end as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_round_later_and_come_back() {
        for workload in Workload::ALL {
            let mut feed = Feed::new(&[workload], 10, 3, 1).unwrap();
            assert_eq!(feed.len(), 30);
            let first = feed.message(4).1.to_vec();
            feed.advance(30..60);
            let later = feed.message(34).1.to_vec();
            assert_eq!(later.len(), first.len());
            let time = |payload: &[u8]| -> u64 {
                let text = String::from_utf8(payload.to_vec()).unwrap();
                let column = usize::from(workload == Workload::Grid);
                text.split(',').nth(column).unwrap().trim().parse().unwrap()
            };
            assert_eq!(time(&later) - time(&first), 3 * workload.period_ms(), "{workload}");
            feed.advance(0..30);
            assert_eq!(feed.message(4).1, first, "{workload}");
        }
    }

    #[test]
    fn one_in_many_is_odd_and_as_long_as_the_others() {
        for workload in Workload::ALL {
            let feed = Feed::new(&[workload], 50, 4, 1).unwrap();
            let bytes = workload.message_bytes();
            for number in 0..200 {
                let (topic, payload) = feed.message(number);
                assert_eq!(topic.len() + payload.len(), bytes, "{workload}, {number}");
            }
            let odd = String::from_utf8(feed.message(96).1.to_vec()).unwrap();
            let value = match workload {
                Workload::City => "199",
                Workload::Taxi => "99.99",
                Workload::Grid => "30.500",
                Workload::Fit => "9.9999",
            };
            assert!(odd.split(',').any(|field| field.trim() == value), "{odd}");
        }
    }

    #[test]
    fn several_applications_are_mixed() {
        let feed = Feed::new(&Workload::ALL, 20, 10, 1).unwrap();
        for workload in Workload::ALL {
            let count = (0..feed.len() as u64)
                .filter(|number| feed.message(*number).0.starts_with(workload.level()))
                .count();
            assert!((100..300).contains(&count), "{workload}: {count} of {}", feed.len());
        }
    }
}
