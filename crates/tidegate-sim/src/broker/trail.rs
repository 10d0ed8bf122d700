//! The events of a run: a hash of all of them, and the last of them for people.
//!
//! Always true: nothing in it depends on a name or a hash that differs between two runs of a seed.

use std::{collections::VecDeque, thread, time::Duration};

/// Events that are printed.
const TAIL: usize = 60;

#[derive(Debug)]
pub(super) struct Trail {
    seed: u64,
    hash: u64,
    count: u64,
    tail: VecDeque<Event>,
}

#[derive(Debug)]
struct Event {
    at: Duration,
    who: usize,
    what: &'static str,
    values: [u64; 2],
}

impl Trail {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, hash: 0xcbf2_9ce4_8422_2325, count: 0, tail: VecDeque::new() }
    }

    /// Client `who` did, met or received `what`.
    pub(super) fn note(&mut self, at: Duration, who: usize, what: &'static str, values: [u64; 2]) {
        let numbers = [at.as_nanos() as u64, who as u64, values[0], values[1]];
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        // FNV-1a.
        for byte in bytes.chain(what.bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.count += 1;
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(Event { at, who, what, values });
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

/// A run that fails says how to see it again.
impl Drop for Trail {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        eprintln!("seed {} failed; the last of {} events:", self.seed, self.count);
        for Event { at, who, what, values: [a, b] } in &self.tail {
            eprintln!("  {:>12.6}  client {who}  {what} {a} {b}", at.as_secs_f64());
        }
        eprintln!("again: TIDEGATE_SEED={} cargo test -p tidegate-sim --test it broker", self.seed);
    }
}
