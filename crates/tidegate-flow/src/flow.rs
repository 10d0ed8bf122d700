//! A flow at work.
//!
//! ```text
//!  parse ─▶ bad? ─▶ key ─▶ state ─▶ steps over the rows that are alive ─▶ verdicts
//!            │ skip, dead letter, last good
//! ```
//!
//! Always true: messages are handled as if one after the other, however they are cut into batches, as long as no key is evicted;
//! under eviction the keys of one batch are not evicted for each other.

use std::ops::Range;

use tidegate_message::{Instant, topic_matches};
use tidegate_sys::memory;

use crate::{
    bad::{Bad, Reason},
    batch::{BATCH_MAX, Batch, Column, Place, Rows, TILE, Text},
    dead_letter::bury,
    hash,
    kernel::{Context, Ending, Kernel},
    keys::{Keys, Probes},
    message::{Made, Message, Output},
    number::INTEGER_MAX,
    parse::Parser,
    spec::{BadPolicy, Forward},
    stats::Stats,
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
    /// Whether it is a number that is read only where it is exact.
    pub(crate) key_is_exact: bool,
    pub(crate) key_fingerprint: u64,
    pub(crate) hash_seed: u64,
    pub(crate) sketch_seed: u64,
    /// Longest key that is text.
    pub(crate) key_bytes_max: usize,
    pub(crate) state_bytes: u64,
    /// Columns of times that windows go by, each with the place of its field.
    pub(crate) clocks: Vec<(usize, u16)>,
    /// How far such a time may run ahead of the node's clock, in seconds.
    pub(crate) ahead_max: f64,
    /// None where no operator keeps state.
    pub(crate) keys: Option<Keys>,
    /// The columns whose last good numbers are kept, and their places in the state.
    pub(crate) mended: Vec<(usize, usize)>,
    pub(crate) steps: Vec<Step>,
    /// The first step that needs state; all of them need it where last good numbers are kept.
    pub(crate) stateful_from: usize,
    /// The windows that end because time passes, where what they say can be published without a message.
    pub(crate) endings: Vec<Ending>,
    /// The step of the first of them.
    pub(crate) ending_from: usize,
    /// The block that is looked at next for one that is over.
    pub(crate) ending_next: u32,
    pub(crate) fixed: Vec<u8>,
    pub(crate) batch: Box<Batch>,
    pub(crate) probes: Box<Probes>,
    pub(crate) stats: Stats,
    /// Nanoseconds that the wall clock is ahead of the flow's `now`.
    pub(crate) wall_ahead: i64,
}

/// The key that state is kept by.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Topic,
    /// Levels of the topic, and the column of texts that they are put together in.
    Levels(Vec<u32>, usize),
    Field(Column),
    None,
}

/// The state that a flow keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// None: any instance may run any message.
    None,
    /// By key alone: instances that share its keys out among them do what one does.
    ByKey,
    /// State of the flow itself: one instance runs all messages.
    Whole,
}

/// An operator and what is known of its state.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kernel: Kernel,
    /// For people: its number, from 1, and kernel.
    pub(crate) name: String,
    /// A number of all that its state depends on.
    pub(crate) fingerprint: u64,
    /// Where in a key's state its words are.
    pub(crate) at: usize,
    pub(crate) words: usize,
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

    /// The counts so far.
    pub fn stats(&self) -> Stats {
        let keys = self.keys.as_ref();
        Stats {
            keys: keys.map_or(0, Keys::live),
            evicted: keys.map_or(0, |keys| keys.evicted),
            expired: keys.map_or(0, |keys| keys.expired),
            ..self.stats
        }
    }

    /// Handles messages of its topics, in order; the results are in `output`, whose old contents are gone.
    ///
    /// Topics are taken to be its own: [`Flow::matches`] is for the caller to ask, once for a topic.
    pub fn run(&mut self, now: Instant, messages: &[Message<'_>], output: &mut Output) {
        output.clear();
        for batch in messages.chunks(BATCH_MAX) {
            self.run_batch(now, batch, output);
        }
    }

    /// Sets by how many nanoseconds the wall clock is ahead of the flow's `now`, which never jumps: `{now}` and a device's limit for
    /// the future go by the wall clock, windows and keys by `now`. 0 until it is said.
    pub fn set_wall_ahead(&mut self, nanos: i64) {
        self.wall_ahead = nanos;
    }

    fn wall(&self, now: Instant) -> Instant {
        Instant::from_nanos(now.as_nanos().saturating_add(self.wall_ahead))
    }

    /// Forgets keys that expired, looking at `count` of them; for times without messages. Messages do it as they come.
    pub fn expire(&mut self, now: Instant, count: u32) {
        if let Some(keys) = &mut self.keys {
            keys.expire(seconds(now), count);
        }
    }

    /// Whether [`Flow::tick`] has anything to do as time passes.
    pub fn ticks(&self) -> bool {
        !self.endings.is_empty() || self.keys.as_ref().is_some_and(Keys::expires)
    }

    /// Does what time does without messages, for `count` places of the table: keys that expired are forgotten, and windows of time
    /// that are over say their result. The results are in `output`, whose old contents are gone; they descend from no message:
    /// [`Emission::from`](crate::Emission::from) counts the rows that time made.
    ///
    /// Such a result is a row of its own: its key is there, what operators know of it, and no field of a message.
    pub fn tick(&mut self, now: Instant, count: u32, output: &mut Output) {
        output.clear();
        if !self.endings.is_empty() {
            self.end_windows(now, count, output);
        }
        self.expire(now, count);
    }

    fn end_windows(&mut self, now: Instant, count: u32, output: &mut Output) {
        let Some(used) = self.keys.as_ref().map(Keys::used).filter(|used| *used > 0) else {
            return;
        };
        let wall = self.wall(now);
        let mut looked_at = 0;
        while looked_at < count.min(used) {
            let mut topics: Vec<String> = Vec::new();
            let mut silence = [0_i64; BATCH_MAX];
            self.batch.scratch.clear();
            while looked_at < count.min(used) && topics.len() < BATCH_MAX {
                let block = self.ending_next % used;
                self.ending_next = (block + 1) % used;
                looked_at += 1;
                let row = topics.len();
                if let Some((topic, silent)) = self.row_of(now, block, row) {
                    topics.push(topic);
                    silence[row] = silent;
                }
            }
            if topics.is_empty() {
                continue;
            }
            let messages: Vec<_> =
                topics.iter().map(|topic| Message { topic, payload: b"" }).collect();
            let first = output.begin(messages.len(), Made::DROP);
            self.batch.alive.fill_all(messages.len());
            for index in 0..self.steps.len() {
                let mut context = Context {
                    now,
                    wall,
                    messages: &messages,
                    batch: &mut self.batch,
                    words: self.keys.as_mut().map_or(&mut [][..], Keys::words),
                    fixed: &self.fixed,
                    sketch_seed: self.sketch_seed,
                    dead_letter: None,
                    silence: Some(&silence),
                    output,
                    first,
                    stats: &mut self.stats,
                };
                let is_behind = index >= self.ending_from;
                self.steps[index].kernel.run_silence(is_behind, &mut context);
            }
        }
    }

    /// Makes row `row` of the batch one without a message for the key of a block, if a window of it is over. Its topic, as far as
    /// the key says it, and how long the key was silent.
    fn row_of(&mut self, now: Instant, block: u32, row: usize) -> Option<(String, i64)> {
        let keys = self.keys.as_ref()?;
        let (state, seen) = keys.occupied(block)?;
        let entry = keys.entries(block..block + 1).next()?;
        let silence = now.as_nanos().saturating_sub(i64::from(seen) * 1_000_000_000);
        let is_over = |ending: &Ending| ending.is_over(entry.state, now.as_nanos(), silence);
        if !self.endings.iter().any(is_over) {
            return None;
        }
        let key = entry.key;
        let batch = &mut *self.batch;
        batch.states[row] = state as u32;
        for column in &mut batch.numbers {
            column[row] = f64::NAN;
        }
        for column in &mut batch.texts {
            column[row] = Text::default();
        }
        let topic = match &self.key {
            Key::Topic | Key::Levels(..) => String::from_utf8_lossy(&key).into_owned(),
            Key::Field(Column::Number(column)) => {
                let bits = key.try_into().map(u64::from_le_bytes).unwrap_or_default();
                batch.numbers[*column][row] = f64::from_bits(bits);
                String::new()
            }
            Key::Field(Column::Text(column)) => {
                let start = batch.scratch.len();
                batch.scratch.extend_from_slice(&key);
                batch.texts[*column][row] = Text::new(Place::Scratch, start, key.len());
                String::new()
            }
            Key::Field(Column::Topic) | Key::None => String::new(),
        };
        Some((topic, silence))
    }

    /// Puts into `hashes` the hash of the key that each message's state is kept by, the same in each instance of the flow with the
    /// same seed: where state is parted, it says which part runs the message. None where a message has no key; any may run it.
    pub fn key_hashes(
        &mut self,
        now: Instant,
        messages: &[Message<'_>],
        hashes: &mut Vec<Option<u64>>,
    ) {
        hashes.clear();
        for messages in messages.chunks(BATCH_MAX) {
            self.batch.begin();
            if let Key::Field(_) = self.key {
                for (tile, messages) in messages.chunks(TILE).enumerate() {
                    let first = tile * TILE;
                    self.parser.run(float_seconds(now), messages, first, &mut self.batch);
                }
            }
            let missing = match self.key {
                Key::Field(Column::Number(index)) => Some(index),
                _ => None,
            };
            let batch = &mut *self.batch;
            let (bad, numbers) = (&batch.bad, &batch.numbers);
            batch.alive.fill(messages.len(), |row| {
                let row = usize::from(row);
                // A key may be there though another field is bad.
                bad[row].is_none_or(|bad| bad.reason.can_be_mended())
                    && missing.is_none_or(|index| !numbers[index][row].is_nan())
            });
            self.check_keys(messages, 0);
            self.probe(messages, 0);
            let first = hashes.len();
            hashes.resize(first + messages.len(), None);
            for row in self.batch.alive.iter() {
                hashes[first + usize::from(row)] = Some(self.probes.hashes[usize::from(row)]);
            }
        }
    }

    /// The state that it keeps.
    pub fn state(&self) -> State {
        let is_shared = self.steps.iter().any(|step| !step.kernel.shared_words().is_empty());
        match (&self.keys, &self.key) {
            _ if is_shared => State::Whole,
            (None, _) => State::None,
            (Some(_), Key::None) => State::Whole,
            (Some(_), _) => State::ByKey,
        }
    }

    /// Bytes that its state takes at most, however many keys come.
    pub fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    fn run_batch(&mut self, now: Instant, messages: &[Message<'_>], output: &mut Output) {
        let wall = self.wall(now);
        let made = if self.forward == Forward::None { Made::DROP } else { Made::PASS };
        let first = output.begin(messages.len(), made);
        let emitted = output.emission_count();
        self.stats.messages += messages.len() as u64;
        self.read(now, messages);
        let mends = self.bad == BadPolicy::LastGood;
        if mends {
            self.resolve(now, messages);
            self.mend();
        }
        if self.batch.any_bad {
            self.bury(now, messages, first, output);
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
                wall,
                messages,
                batch: &mut self.batch,
                words,
                fixed: &self.fixed,
                sketch_seed: self.sketch_seed,
                silence: None,
                dead_letter: (self.bad == BadPolicy::DeadLetter).then_some(&self.dead_letter),
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

    /// Reads messages, and asks for the state of those that can be read or mended.
    ///
    /// Tile after tile, each step of one long enough before the next: prefetched memory arrives while another tile is read.
    fn read(&mut self, now: Instant, messages: &[Message<'_>]) {
        let now = float_seconds(self.wall(now));
        let mends = self.bad == BadPolicy::LastGood;
        expect(messages.iter().take(TILE));
        self.batch.begin();
        let mut located = 0;
        for (tile, tile_messages) in messages.chunks(TILE).enumerate() {
            let first = tile * TILE;
            let rows = first..first + tile_messages.len();
            expect(messages.iter().skip(first + TILE).take(TILE));
            self.parser.run(now, tile_messages, first, &mut self.batch);
            self.check_clocks(now, rows.clone());
            let batch = &mut *self.batch;
            let begin = batch.alive.len();
            if batch.any_bad {
                let bad = &batch.bad;
                batch.alive.extend(rows, |row| {
                    bad[usize::from(row)].is_none_or(|bad| mends && bad.reason.can_be_mended())
                });
            } else {
                batch.alive.extend_all(rows);
            }
            if self.keys.is_some() {
                self.check_keys(messages, begin);
                self.probe(messages, begin);
                self.locate(located, begin);
                located = begin;
            }
        }
        self.locate(located, self.batch.alive.len());
    }

    /// A time from the future would end windows that have not begun, and silence its key until it has come.
    fn check_clocks(&mut self, now: f64, rows: Range<usize>) {
        let batch = &mut *self.batch;
        let latest = now + self.ahead_max;
        for (column, field) in &self.clocks {
            for row in rows.clone() {
                if batch.numbers[*column][row] > latest {
                    batch.numbers[*column][row] = f64::NAN;
                    if batch.bad[row].is_none() {
                        batch.spoil(row, Bad { reason: Reason::Future, field: Some(*field) });
                    }
                }
            }
        }
    }

    /// Takes out messages without a key, or with one that is too long, from the rows that are alive without the first `begin`.
    fn check_keys(&mut self, messages: &[Message<'_>], begin: usize) {
        let batch = &mut *self.batch;
        let mut alive = std::mem::replace(&mut batch.alive, Rows::none());
        match &self.key {
            Key::None => {}
            Key::Topic => alive.retain_from(begin, |row| {
                let row = usize::from(row);
                let fits = messages[row].topic.len() <= self.key_bytes_max;
                if !fits {
                    batch.spoil(row, Bad { reason: Reason::Key, field: None });
                }
                fits
            }),
            Key::Levels(levels, column) => alive.retain_from(begin, |row| {
                let row = usize::from(row);
                let text = join_levels(messages[row].topic, levels, &mut batch.scratch);
                let text = text.filter(|text| text.bytes as usize <= self.key_bytes_max);
                batch.texts[*column][row] = text.unwrap_or_default();
                if text.is_none() {
                    batch.spoil(row, Bad { reason: Reason::Key, field: None });
                }
                text.is_some()
            }),
            // A number that is needed is there in each row that is not bad, and those of at most 32 bits are exact.
            Key::Field(Column::Number(_)) if self.key_is_needed && self.key_is_exact => {}
            Key::Field(column) => {
                let field = self.parser.fields.iter().position(|field| field.column == *column);
                let field = field.map(|field| field as u16);
                alive.retain_from(begin, |row| {
                    let row = usize::from(row);
                    let reason = match *column {
                        Column::Number(index) if batch.numbers[index][row].is_nan() => {
                            Some(Reason::Missing)
                        }
                        // From here on neighbours are one float: two devices would share their state.
                        Column::Number(index) if batch.numbers[index][row].abs() >= INTEGER_MAX => {
                            Some(Reason::Key)
                        }
                        Column::Text(index) if batch.texts[index][row].is_missing() => {
                            Some(Reason::Missing)
                        }
                        Column::Text(index)
                            if batch.texts[index][row].bytes as usize > self.key_bytes_max =>
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

    /// Hashes the keys of the rows that are alive, without the first `begin`.
    fn probe(&mut self, messages: &[Message<'_>], begin: usize) {
        let seed = self.hash_seed;
        let (batch, probes) = (&*self.batch, &mut *self.probes);
        let rows = &batch.alive.as_slice()[begin..];
        match self.key {
            Key::Field(Column::Number(index)) => {
                if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
                    // Those between that are not alive as well, so that it is one loop for vectors.
                    let rows = usize::from(*first)..usize::from(*last) + 1;
                    probes.hash_numbers(seed, &batch.numbers[index], rows);
                }
            }
            Key::None => {
                probes.identities = [0; BATCH_MAX];
                probes.hashes = [hash::word(seed, 0); BATCH_MAX];
            }
            Key::Topic | Key::Levels(..) | Key::Field(_) => {
                for row in rows {
                    let text = key_text(&self.key, batch, messages, *row);
                    let row = usize::from(*row);
                    probes.hashes[row] = hash::text(seed, text);
                    probes.identities[row] = probes.hashes[row];
                }
            }
        }
    }

    /// Asks for the slots of the rows that are alive, without the first `end`, and for the state of those from `begin` to `end`, whose
    /// slots were asked for.
    fn locate(&mut self, begin: usize, end: usize) {
        let Some(keys) = &self.keys else { return };
        let batch = &mut *self.batch;
        let (rows, next) = batch.alive.as_slice().split_at(end);
        keys.locate(&rows[begin..], next, &self.probes, &mut batch.states);
    }

    /// Finds or makes the state of the rows that are alive, which was asked for.
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
        let wall = self.wall(now);
        let batch = &mut *self.batch;
        let bad = &batch.bad;
        batch.alive.fill(messages.len(), |row| bad[usize::from(row)].is_none());
        for (row, message) in messages.iter().enumerate() {
            let Some(bad) = batch.bad[row] else { continue };
            self.stats.bad[bad.reason as usize] += 1;
            output.note_bad(first + row, bad);
            if self.bad != BadPolicy::DeadLetter {
                continue;
            }
            let source = Source {
                batch,
                message,
                row: row as u8,
                fixed: &self.fixed,
                now_millis: wall.as_nanos().div_euclid(1_000_000),
            };
            bury(&self.dead_letter, &source, bad, first + row, output, &mut self.stats);
        }
    }
}

/// Asks for payloads that are read soon: for the first line of each, behind which a processor finds the others itself.
fn expect<'a>(messages: impl Iterator<Item = &'a Message<'a>>) {
    for message in messages {
        memory::prefetch_many(message.payload, 0);
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

/// The part after the first `count` levels.
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
