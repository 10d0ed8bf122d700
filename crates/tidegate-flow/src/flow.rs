//! A flow at work.
//!
//! ```text
//!  parse ─▶ bad? ─▶ key ─▶ state ─▶ steps over the rows that are alive ─▶ verdicts
//!            │ skip, dead letter, last good
//! ```
//!
//! Always true: messages are handled as if one after the other, however they are cut into batches, as long as no key is evicted;
//! under eviction the keys of one batch are not evicted for each other.

use tidegate_message::{Instant, topic_matches};

use crate::{
    bad::{Bad, Reason},
    batch::{BATCH_MAX, Batch, Column, Place, Rows, Text},
    hash,
    kernel::{Context, Kernel},
    keys::{KEY_BYTES_MAX, Keys, Probes},
    message::{Made, Message, Output},
    parse::Parser,
    spec::{BadPolicy, Forward},
    template::{Source, Template},
};

/// A flow, compiled: an instance for each thread that runs it.
#[derive(Debug)]
pub struct Flow {
    pub(crate) name: String,
    pub(crate) topics: Vec<String>,
    pub(crate) parser: Parser,
    pub(crate) bad: BadPolicy,
    pub(crate) dead_letter: Template,
    pub(crate) forward: Forward,
    pub(crate) key: Key,
    /// Whether each message that is not bad has the field that is its key.
    pub(crate) key_is_needed: bool,
    pub(crate) key_fingerprint: u64,
    /// None where no operator keeps state.
    pub(crate) keys: Option<Keys>,
    /// What last good numbers are kept of: columns, and where in the state.
    pub(crate) mended: Vec<(usize, usize)>,
    pub(crate) steps: Vec<Step>,
    /// The first step that needs state; all of them need it where last good numbers are kept.
    pub(crate) stateful_from: usize,
    pub(crate) fixed: Vec<u8>,
    pub(crate) batch: Box<Batch>,
    pub(crate) probes: Box<Probes>,
    pub(crate) stats: Stats,
}

/// What state is kept for.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Topic,
    /// Levels of the topic, and the column of texts that they are put together in.
    Levels(Vec<u32>, usize),
    Field(Column),
    None,
}

/// An operator and what is known of its state.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kernel: Kernel,
    /// For people: its number, from 1, and kernel.
    pub(crate) name: String,
    /// What its state depends on.
    pub(crate) fingerprint: u64,
    /// Where in a key's state its words are.
    pub(crate) at: usize,
    pub(crate) words: usize,
}

/// What a flow has counted since it was compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages that came.
    pub messages: u64,
    /// Messages that could not be read, by [`Reason::ALL`]; those that were mended are not among them.
    pub bad: [u64; Reason::ALL.len()],
    /// Messages in which a last good number stands in.
    pub mended: u64,
    /// Messages that a filter did not keep.
    pub filtered: u64,
    /// Messages that were published, dead letters included.
    pub emitted: u64,
    /// Messages that were not, since their topic came to no valid one or the batch published too much.
    pub unsent: u64,
    /// Values that came after their window.
    pub late: u64,
    /// Values that a Bloom filter did not learn, since it is full.
    pub unlearned: u64,
    /// Keys that state is kept of now.
    pub keys: u32,
    /// Keys that made room for others.
    pub evicted: u64,
    /// Keys that were forgotten for their age.
    pub expired: u64,
}

impl Flow {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its topic filters.
    pub fn topics(&self) -> &[String] {
        &self.topics
    }

    /// Whether messages of this topic are its own.
    pub fn matches(&self, topic: &str) -> bool {
        self.topics.iter().any(|filter| topic_matches(filter, topic))
    }

    /// The name of a field that [`Bad::field`] gives the place of.
    pub fn field_name(&self, field: u16) -> Option<&str> {
        self.parser.fields.get(usize::from(field)).map(|field| field.name.as_str())
    }

    /// What it has counted.
    pub fn stats(&self) -> Stats {
        let keys = self.keys.as_ref();
        Stats {
            keys: keys.map_or(0, Keys::live),
            evicted: keys.map_or(0, |keys| keys.evicted),
            expired: keys.map_or(0, |keys| keys.expired),
            ..self.stats
        }
    }

    /// Handles messages of its topics, in order; what came of them is in `output`, whose old contents are gone.
    ///
    /// Topics are taken to be its own: [`Flow::matches`] is for the caller to ask, once for a topic.
    pub fn run(&mut self, now: Instant, messages: &[Message<'_>], output: &mut Output) {
        output.clear();
        for batch in messages.chunks(BATCH_MAX) {
            self.run_batch(now, batch, output);
        }
    }

    /// Forgets keys that expired, looking at `count` of them; for times without messages. Messages do it as they come.
    pub fn expire(&mut self, now: Instant, count: u32) {
        if let Some(keys) = &mut self.keys {
            keys.expire(seconds(now), count);
        }
    }

    /// The hash of the key that a message's state is kept by, the same in each instance of the flow with the same seed: the shard
    /// that owns it runs the message. None where the message has no key; any shard may run it.
    pub fn key_hash(&mut self, now: Instant, message: &Message<'_>) -> Option<u64> {
        let messages = std::slice::from_ref(message);
        if let Key::Field(_) = self.key {
            self.parser.run(float_seconds(now), messages, &mut self.batch);
        } else {
            self.batch.scratch.clear();
        }
        self.batch.bad[0] = None;
        self.batch.alive.fill_all(1);
        self.check_keys(messages);
        let is_missing = match self.key {
            Key::Field(Column::Number(index)) => self.batch.numbers[index][0].is_nan(),
            _ => false,
        };
        if is_missing || self.batch.alive.is_empty() {
            return None;
        }
        self.probe(messages);
        Some(self.probes.hashes[0])
    }

    fn run_batch(&mut self, now: Instant, messages: &[Message<'_>], output: &mut Output) {
        let made = if self.forward == Forward::None { Made::DROP } else { Made::PASS };
        let first = output.begin(messages.len(), made);
        let emitted = output.emission_count();
        self.stats.messages += messages.len() as u64;
        self.parser.run(float_seconds(now), messages, &mut self.batch);
        let mends = self.bad == BadPolicy::LastGood;
        if self.batch.any_bad {
            let bad = &self.batch.bad;
            self.batch.alive.fill(messages.len(), |row| {
                bad[usize::from(row)].is_none_or(|bad| mends && bad.reason.can_be_mended())
            });
        } else {
            self.batch.alive.fill_all(messages.len());
        }
        if self.keys.is_some() {
            self.check_keys(messages);
        }
        if mends {
            self.probe(messages);
            self.resolve(now, messages);
            self.mend();
        }
        if self.batch.any_bad {
            self.bury(now, messages, first, output);
        }
        // Long before the state is needed, so that what is slow about it goes on beside the filters.
        if self.stateful_from < self.steps.len() && !mends {
            self.probe(messages);
        }
        for index in 0..self.steps.len() {
            if self.batch.alive.is_empty() {
                break;
            }
            if index == self.stateful_from && !mends {
                self.resolve(now, messages);
            }
            let words = self.keys.as_mut().map_or(&mut [][..], Keys::words);
            let mut context = Context {
                now,
                messages,
                batch: &mut self.batch,
                words,
                fixed: &self.fixed,
                output,
                first,
                stats: &mut self.stats,
            };
            self.steps[index].kernel.run(&mut context);
        }
        if self.forward == Forward::Kept {
            let mut kept = [false; BATCH_MAX];
            for row in self.batch.alive.iter() {
                kept[usize::from(row)] = true;
            }
            for (row, _) in kept[..messages.len()].iter().enumerate().filter(|(_, kept)| !**kept) {
                output.decide(first + row, Made::DROP);
            }
        }
        output.sort_from(emitted);
    }

    /// Takes out messages without a key, or with one that is too long.
    fn check_keys(&mut self, messages: &[Message<'_>]) {
        let batch = &mut *self.batch;
        let mut alive = std::mem::replace(&mut batch.alive, Rows::none());
        match &self.key {
            Key::None => {}
            Key::Topic => alive.retain(|row| {
                let row = usize::from(row);
                let fits = messages[row].topic.len() <= KEY_BYTES_MAX;
                if !fits {
                    batch.spoil(row, Bad { reason: Reason::Key, field: None });
                }
                fits
            }),
            Key::Levels(levels, column) => alive.retain(|row| {
                let row = usize::from(row);
                let text = join_levels(messages[row].topic, levels, &mut batch.scratch);
                let text = text.filter(|text| text.bytes as usize <= KEY_BYTES_MAX);
                batch.texts[*column][row] = text.unwrap_or_default();
                if text.is_none() {
                    batch.spoil(row, Bad { reason: Reason::Key, field: None });
                }
                text.is_some()
            }),
            // A number that is needed is there in each row that is not bad.
            Key::Field(Column::Number(_)) if self.key_is_needed => {}
            Key::Field(column) => {
                let field = self.parser.fields.iter().position(|field| field.column == *column);
                let field = field.map(|field| field as u16);
                alive.retain(|row| {
                    let row = usize::from(row);
                    let reason = match *column {
                        Column::Number(index) if batch.numbers[index][row].is_nan() => {
                            Some(Reason::Missing)
                        }
                        Column::Text(index) if batch.texts[index][row].is_missing() => {
                            Some(Reason::Missing)
                        }
                        Column::Text(index)
                            if batch.texts[index][row].bytes as usize > KEY_BYTES_MAX =>
                        {
                            Some(Reason::Key)
                        }
                        _ => None,
                    };
                    if let Some(reason) = reason {
                        batch.spoil(row, Bad { reason, field });
                    }
                    reason.is_none()
                });
            }
        }
        batch.alive = alive;
    }

    /// Hashes the keys of the rows that are alive, and asks for their slots.
    fn probe(&mut self, messages: &[Message<'_>]) {
        let keys = self.keys.as_ref();
        let seed = keys.map_or(0, Keys::seed);
        let (batch, probes) = (&*self.batch, &mut *self.probes);
        match self.key {
            Key::Field(Column::Number(index)) => {
                let numbers = &batch.numbers[index];
                for row in batch.alive.iter() {
                    let row = usize::from(row);
                    // Both zeros are one key.
                    let bits = (numbers[row] + 0.0).to_bits();
                    probes.identities[row] = bits;
                    probes.hashes[row] = hash::word(seed, bits);
                    if let Some(keys) = keys {
                        keys.expect(probes.hashes[row]);
                    }
                }
            }
            Key::None => {
                probes.identities = [0; BATCH_MAX];
                probes.hashes = [hash::word(seed, 0); BATCH_MAX];
            }
            Key::Topic | Key::Levels(..) | Key::Field(_) => {
                for row in batch.alive.iter() {
                    let text = key_text(&self.key, batch, messages, row);
                    let row = usize::from(row);
                    probes.hashes[row] = hash::text(seed, text);
                    probes.identities[row] = probes.hashes[row];
                    if let Some(keys) = keys {
                        keys.expect(probes.hashes[row]);
                    }
                }
            }
        }
    }

    /// Finds or makes the state of the rows that are alive.
    fn resolve(&mut self, now: Instant, messages: &[Message<'_>]) {
        let Some(keys) = &mut self.keys else { return };
        let batch = &mut *self.batch;
        let mut states = batch.states;
        let text = |row| key_text(&self.key, batch, messages, row);
        keys.resolve(seconds(now), &batch.alive, &self.probes, text, &mut states);
        batch.states = states;
    }

    /// Puts the last good numbers of a key where there is none, and keeps those that are there.
    fn mend(&mut self) {
        let Some(keys) = &mut self.keys else { return };
        let words = keys.words();
        let batch = &mut *self.batch;
        for row in batch.alive.iter() {
            let row = usize::from(row);
            let is_bad = batch.bad[row].is_some();
            let mut is_whole = true;
            for (column, at) in &self.mended {
                let value = &mut batch.numbers[*column][row];
                let last = &mut words[batch.states[row] as usize + at];
                if value.is_nan() {
                    *value = f64::from_bits(*last);
                    is_whole &= !value.is_nan();
                } else {
                    *last = value.to_bits();
                }
            }
            // A text has no last good one.
            is_whole &= self.parser.fields.iter().all(|field| match field.column {
                Column::Text(index) => field.optional || !batch.texts[index][row].is_missing(),
                _ => true,
            });
            if is_bad && is_whole {
                batch.bad[row] = None;
                self.stats.mended += 1;
            }
        }
    }

    /// Counts messages that cannot be read, publishes dead letters, and looks at the others from here on.
    fn bury(&mut self, now: Instant, messages: &[Message<'_>], first: usize, output: &mut Output) {
        let batch = &mut *self.batch;
        let bad = &batch.bad;
        batch.alive.fill(messages.len(), |row| bad[usize::from(row)].is_none());
        for (row, message) in messages.iter().enumerate() {
            let Some(bad) = batch.bad[row] else { continue };
            self.stats.bad[bad.reason as usize] += 1;
            if self.bad != BadPolicy::DeadLetter {
                continue;
            }
            let source = Source {
                batch,
                message,
                row: row as u8,
                fixed: &self.fixed,
                now_millis: now.as_nanos().div_euclid(1_000_000),
            };
            let start = output.bytes.len();
            if !output.is_full() && self.dead_letter.render_topic(&source, &mut output.bytes) {
                output.emit_original(first + row, start, bad);
                self.stats.emitted += 1;
            } else {
                self.stats.unsent += 1;
            }
        }
    }
}

/// The bytes of a row's key, where keys are text; the row has one.
fn key_text<'a>(key: &Key, batch: &'a Batch, messages: &'a [Message<'_>], row: u8) -> &'a [u8] {
    let message = &messages[usize::from(row)];
    let column = match key {
        Key::Levels(_, column) => Column::Text(*column),
        Key::Field(column) => *column,
        Key::Topic | Key::None => Column::Topic,
    };
    batch.text_of(column, row, message, &[]).unwrap_or_default()
}

/// The levels of a topic with a `/` between them; none where it has too few.
fn join_levels(topic: &str, levels: &[u32], scratch: &mut Vec<u8>) -> Option<Text> {
    let is_run = levels.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    if let (true, [first, ..]) = (is_run, levels) {
        let rest = after_levels(topic, *first)?;
        let mut end = rest.len();
        let mut slashes = rest.match_indices('/').map(|(at, _)| at);
        for step in 1..=levels.len() {
            match slashes.next() {
                Some(at) => end = at,
                None if step == levels.len() => end = rest.len(),
                None => return None,
            }
        }
        return Some(Text::new(Place::Topic, topic.len() - rest.len(), end));
    }
    let start = scratch.len();
    for (place, level) in levels.iter().enumerate() {
        if place > 0 {
            scratch.push(b'/');
        }
        let rest = after_levels(topic, *level)?;
        let level = rest.split('/').next().unwrap_or_default();
        scratch.extend_from_slice(level.as_bytes());
    }
    Some(Text::new(Place::Scratch, start, scratch.len() - start))
}

/// What stands behind the first `count` levels.
fn after_levels(topic: &str, count: u32) -> Option<&str> {
    let mut rest = topic;
    for _ in 0..count {
        rest = rest.split_once('/')?.1;
    }
    Some(rest)
}

/// Whole seconds, as far as 32 bits go.
fn seconds(now: Instant) -> u32 {
    u32::try_from(now.as_nanos().div_euclid(1_000_000_000).max(0)).unwrap_or(u32::MAX)
}

fn float_seconds(now: Instant) -> f64 {
    now.as_nanos() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_put_together() {
        for (topic, levels, expected) in [
            ("city/north/7", &[0][..], Some("city")),
            ("city/north/7", &[0, 1], Some("city/north")),
            ("city/north/7", &[1, 2], Some("north/7")),
            ("city/north/7", &[2], Some("7")),
            ("city/north/7", &[2, 0], Some("7/city")),
            ("city/north/7", &[3], None),
            ("city/north/7", &[2, 3], None),
            ("city/north/7", &[3, 0], None),
            ("/", &[0, 1], Some("/")),
            ("a", &[0], Some("a")),
        ] {
            let mut scratch = Vec::new();
            let text = join_levels(topic, levels, &mut scratch);
            let message = Message { topic, payload: b"" };
            let found = text.and_then(|text| crate::batch::bytes(text, &message, &scratch, b""));
            assert_eq!(found, expected.map(str::as_bytes), "{topic} {levels:?}");
        }
    }
}
