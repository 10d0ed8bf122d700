//! The record of a run: a hash of all that happened, and the last of it for people.
//!
//! Always true: nothing in it depends on a name or a hash that differs between two runs of a seed.

use std::{collections::VecDeque, fmt, thread, time::Duration};

/// Events that are printed.
const TAIL: usize = 60;

/// The events of one run.
#[derive(Debug)]
pub struct Trail {
    seed: u64,
    who: &'static str,
    test: &'static str,
    hash: u64,
    count: u64,
    tail: VecDeque<Event>,
    tail_max: usize,
}

#[derive(Debug)]
struct Event {
    at: Duration,
    who: usize,
    what: &'static str,
    values: [u64; 2],
    /// Of a whole trail.
    more: String,
}

impl Trail {
    /// Of a run of that seed, in which things happen to so many of `who`. `test` runs it again: the end of a command, after `-p`.
    pub fn new(seed: u64, who: &'static str, test: &'static str) -> Self {
        let (hash, tail) = (0xcbf2_9ce4_8422_2325, VecDeque::new());
        Self { seed, who, test, hash, count: 0, tail, tail_max: TAIL }
    }

    /// Keeps all events and what [`Trail::note_more`] has to say of them, in place of the last.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.tail_max = usize::MAX;
        self
    }

    /// Number `who` did, met or received `what`, at that time since the run began.
    pub fn note(&mut self, at: Duration, who: usize, what: &'static str, values: [u64; 2]) {
        self.note_more(at, who, what, values, String::new);
    }

    /// The same, with more that is written if the whole trail is.
    pub fn note_more(
        &mut self,
        at: Duration,
        who: usize,
        what: &'static str,
        values: [u64; 2],
        more: impl FnOnce() -> String,
    ) {
        let numbers = [at.as_nanos() as u64, who as u64, values[0], values[1]];
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        // FNV-1a.
        for byte in bytes.chain(what.bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.count += 1;
        if self.tail.len() == self.tail_max {
            self.tail.pop_front();
        }
        let more = if self.tail_max == usize::MAX { more() } else { String::new() };
        self.tail.push_back(Event { at, who, what, values, more });
    }

    /// Of all events so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// The events that are kept, one a line, and the command that runs the seed again.
impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, who: name, test, .. } = self;
        writeln!(f, "seed {seed}; the last {} of {} events:", self.tail.len(), self.count)?;
        for Event { at, who, what, values: [a, b], more } in &self.tail {
            writeln!(f, "  {:>12.6}  {name} {who}  {what} {a} {b} {more}", at.as_secs_f64())?;
        }
        write!(f, "again: TIDEGATE_SEED={seed} cargo test -p {test}")
    }
}

/// A run that panics says how to see it again.
impl Drop for Trail {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{self}");
        }
    }
}
