//! The log against a plain list, at every key: each stored time, each gap, each seam.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_log::{AppendError, Entry, Log, LogConfig, LogWriter, Memory, ReadError, Reader};
use tidegate_message::{Instant, Position};

use crate::support::{at, bytes_of};

#[derive(Clone, Debug)]
enum Step {
    /// Append an entry so many nanoseconds after the one before.
    Append { gap: i64, meta: usize, body: Body, reserve: bool },
    /// Try to append one that is not later.
    AppendLate { by: i64 },
    /// Reserve room and do not use it.
    Abandon { body: Body },
    /// Get ready for an entry.
    Prepare { body: Body },
    /// Hold the entry at this place among the kept, in thousandths.
    Pin { place: u64 },
    /// Let go of the entry held longest.
    Unpin,
    /// Read on with the reader.
    Read { entries: usize },
    /// Place the reader again, at this place among all times, in thousandths.
    Place { place: u64 },
}

/// Size of a body.
#[derive(Clone, Copy, Debug)]
enum Body {
    Bytes(usize),
    WholeSegment,
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        1 => Just(Body::Bytes(0)),
        2 => Just(Body::Bytes(1)),
        8 => (0..200_usize).prop_map(Body::Bytes),
        1 => Just(Body::WholeSegment),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (1..6_i64, 0..12_usize, body(), any::<bool>())
            .prop_map(|(gap, meta, body, reserve)| Step::Append { gap, meta, body, reserve }),
        1 => (0..5_i64).prop_map(|by| Step::AppendLate { by }),
        1 => body().prop_map(|body| Step::Abandon { body }),
        2 => body().prop_map(|body| Step::Prepare { body }),
        2 => (0..1000_u64).prop_map(|place| Step::Pin { place }),
        2 => Just(Step::Unpin),
        3 => (0..20_usize).prop_map(|entries| Step::Read { entries }),
        1 => (0..1000_u64).prop_map(|place| Step::Place { place }),
    ]
}

/// The appended entries, by position.
struct Appended {
    at: Instant,
    meta_bytes: usize,
    body_bytes: usize,
}

struct Checked {
    writer: LogWriter,
    log: Log,
    config: LogConfig,
    all: Vec<Appended>,
    held: VecDeque<Entry>,
    reader: Reader,
    /// The position that the reader gives next, unless it is dropped before.
    cursor: usize,
    /// Time before which the reader's next entry cannot be.
    from: Instant,
}

impl Checked {
    fn new(segments: u64, segment_bytes: u64) -> Self {
        let config = LogConfig { bytes_max: segments * segment_bytes, segment_bytes };
        let (writer, log) = Log::create(config.clone(), Memory::new()).unwrap();
        let reader = log.reader_from(Instant::MIN);
        Self {
            writer,
            log,
            config,
            all: Vec::new(),
            held: VecDeque::new(),
            reader,
            cursor: 0,
            from: Instant::MIN,
        }
    }

    fn first(&self) -> usize {
        (self.log.end().0 - self.log.entries()) as usize
    }

    fn assert_entry(&self, entry: &Entry, position: usize) {
        let Appended { at, meta_bytes, body_bytes } = self.all[position];
        assert_eq!((entry.position.0, entry.at), (position as u64, at));
        assert_eq!(entry.meta, bytes_of(position as u64, meta_bytes));
        assert_eq!(entry.body, bytes_of(position as u64 + 1, body_bytes));
    }

    fn assert_found(&self, found: Option<Entry>, expected: Option<usize>, what: &str, at: Instant) {
        let position = found.as_ref().map(|entry| entry.position.0 as usize);
        assert_eq!(position, expected, "{what} {at}");
        if let (Some(entry), Some(position)) = (found, expected) {
            self.assert_entry(&entry, position);
        }
    }

    fn step(&mut self, step: &Step) {
        let last = self.all.last().map_or(0, |entry| entry.at.as_nanos());
        match *step {
            Step::Append { gap, meta, body, reserve } => {
                self.append(last + gap, meta, self.body_bytes(body, meta), reserve);
            }
            Step::AppendLate { by } => {
                if !self.all.is_empty() {
                    let late = self.writer.append(at(last - by), b"", b"x");
                    assert!(matches!(late, Err(AppendError::Timestamp { .. })), "{late:?}");
                }
            }
            Step::Abandon { body } => {
                let body_bytes = self.body_bytes(body, 1);
                match self.writer.reserve(b"m", body_bytes) {
                    Ok(mut reservation) => reservation.body().unwrap().fill(0xee),
                    Err(error) => self.assert_pinned(&error),
                }
            }
            Step::Prepare { body } => self.writer.prepare(self.body_bytes(body, 1)),
            Step::Pin { place } => {
                let (first, end) = (self.first(), self.all.len());
                if first < end {
                    let position = first + (end - first) * place as usize / 1000;
                    let entry = self.log.entry(Position(position as u64)).unwrap();
                    self.held.extend(entry);
                }
            }
            Step::Unpin => drop(self.held.pop_front()),
            Step::Read { entries } => (0..entries).for_each(|_| self.read()),
            Step::Place { place } => {
                self.from = at((last + 2) * place as i64 / 1000);
                self.reader = self.log.reader_from(self.from);
                let later = self.all.partition_point(|entry| entry.at < self.from);
                self.cursor = later.max(self.first());
                assert_eq!(self.reader.missing_at_start().is_some(), later < self.first());
            }
        }
    }

    fn body_bytes(&self, body: Body, meta: usize) -> usize {
        let whole = self.config.segment_bytes as usize - meta;
        match body {
            Body::Bytes(bytes) => bytes.min(whole),
            Body::WholeSegment => whole,
        }
    }

    fn append(&mut self, nanos: i64, meta_bytes: usize, body_bytes: usize, reserve: bool) {
        let number = self.all.len() as u64;
        let (meta, body) = (bytes_of(number, meta_bytes), bytes_of(number + 1, body_bytes));
        let appended = match reserve {
            false => self.writer.append(at(nanos), &meta, &body),
            true => self.writer.append_with(at(nanos), &meta, body_bytes, |place| {
                place.copy_from_slice(&body);
            }),
        };
        match appended {
            Ok(position) => {
                assert_eq!(position, Position(number));
                self.all.push(Appended { at: at(nanos), meta_bytes, body_bytes });
            }
            Err(error) => self.assert_pinned(&error),
        }
    }

    /// The only reason to refuse a good entry is that readers hold entries.
    fn assert_pinned(&self, error: &AppendError) {
        assert!(matches!(error, AppendError::Pinned { .. }), "{error:?}");
        assert!(!self.held.is_empty(), "{error:?} with nothing held");
    }

    fn read(&mut self) {
        let first = self.first();
        match self.reader.next() {
            Ok(Some(entry)) => {
                assert!(self.cursor >= first);
                self.assert_entry(&entry, self.cursor);
                self.cursor += 1;
                self.from = at(entry.at.as_nanos() + 1);
            }
            Ok(None) => assert_eq!(self.cursor, self.all.len()),
            Err(ReadError::Overtaken(missed)) => {
                assert!(self.cursor < first);
                let range = (missed.missed_from.0 as usize, missed.missed_to.0 as usize);
                assert_eq!(range, (self.cursor, first));
                let (from, to) = missed.missed_time;
                assert_eq!(from, self.from);
                assert!(from <= self.all[self.cursor].at && self.all[first - 1].at < to);
                if first < self.all.len() {
                    assert_eq!(to, self.all[first].at);
                }
                (self.cursor, self.from) = (first, to);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Every lookup, at every time that was ever stored and at all times between.
    fn assert_every_key(&mut self) {
        assert!(self.writer.bytes_held() <= self.config.bytes_max, "more held than allowed");
        let (first, end) = (self.first(), self.all.len());
        let last = self.all.last().map_or(0, |entry| entry.at.as_nanos());
        let kept = &self.all[first..];
        let bytes = kept.iter().map(|entry| (entry.meta_bytes + entry.body_bytes) as u64).sum();
        assert_eq!(self.log.bytes(), bytes);
        assert_eq!(self.log.end().0 as usize, end);
        let keys = (-1..=last + 2).map(at).chain([Instant::MIN, Instant::MAX]);
        for key in keys {
            let later = self.all.partition_point(|entry| entry.at < key).max(first);
            let after = (later < end).then_some(later);
            let exact = after.filter(|&position| self.all[position].at == key);
            let before = exact.or(later.checked_sub(1).filter(|&position| position >= first));
            let log = &self.log;
            self.assert_found(log.entry_at(key).unwrap(), exact, "at", key);
            self.assert_found(log.nearest_before(key).unwrap(), before, "before", key);
            self.assert_found(log.nearest_after(key).unwrap(), after, "after", key);
            self.assert_found(log.reader_from(key).next().unwrap(), after, "from", key);
            for span in [0, 1, 7] {
                let until = at(key.as_nanos().saturating_add(span));
                let found: Vec<usize> =
                    log.range(key..until).map(|entry| entry.unwrap().position.0 as usize).collect();
                let end = self.all.partition_point(|entry| entry.at < until).max(later);
                assert_eq!(found, (later..end).collect::<Vec<_>>(), "{key} to {until}");
            }
        }
        for position in 0..end + 2 {
            match self.log.entry(Position(position as u64)) {
                Ok(Some(entry)) => self.assert_entry(&entry, position),
                Ok(None) => assert!(position >= end),
                Err(ReadError::Expired { .. }) => assert!(position < first),
                Err(error) => panic!("{error}"),
            }
        }
        let position = |entry: Option<Entry>| entry.map(|entry| entry.position.0 as usize);
        assert_eq!(position(self.log.first().unwrap()), (first < end).then_some(first));
        assert_eq!(position(self.log.last().unwrap()), (first < end).then(|| end - 1));
    }
}

proptest! {
    // A failing case prints its seed and its steps.
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_key_gives_what_a_plain_list_gives(
        segments in 4..12_u64,
        segment_bytes in prop_oneof![Just(16), Just(64), 64..600_u64],
        steps in prop::collection::vec(step(), 1..250),
    ) {
        let mut checked = Checked::new(segments, segment_bytes);
        for (i, step) in steps.iter().enumerate() {
            checked.step(step);
            if i % 16 == 0 {
                checked.assert_every_key();
            }
        }
        checked.assert_every_key();
        for entry in &checked.held {
            checked.assert_entry(entry, entry.position.0 as usize);
        }
    }
}
