//! Places in time: of two messages of one series that were received at one time each has its own.
//!
//! ```text
//!  received:  7 7 7 7 9        of one read of a connection, or of one of the node's own parts: many messages have one time
//!  placed:    7 8 9 10 11      the next nanosecond that is free in that series
//! ```
//!
//! A database of this kind knows a point by its series and time: a second point there would take the place of the first. Places are
//! remembered beyond a batch, since the messages of one time may be parted by its end. A message that comes again has the place that
//! it had, so that it is the same point there.
//!
//! A file keeps the part of this that a restart needs, and is on the disk before the messages are acknowledged: the places near the time
//! of the newest message, and those of the last batches that are close together, whose acknowledgements may be lost.
//!
//! Always true: no two messages that are remembered have one place in one series; of a batch that is tried again all places are the
//! same; at most [`PLACES_MAX`] places are remembered, the newest.

use std::{
    collections::{HashMap, VecDeque},
    io,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};
use tidegate_sys::{files, regular};

/// Places that are remembered, of about a hundred bytes each.
const PLACES_MAX: usize = 1 << 17;
/// Of these, those that are kept in the file at most.
const KEPT_MAX: usize = 1 << 15;
/// Batches whose acknowledgements may be lost when the sink ends.
const BATCHES_OPEN: usize = 2;
/// Messages of one time come one soon after the other, by whatever connections: within so many nanoseconds of each other.
const NEAR: i64 = 10_000_000;
/// The first bytes of the file.
const HEAD: &[u8; 16] = b"tidegate places1";
/// Bytes of the digest at its end.
const DIGEST_BYTES: usize = 16;
/// Bytes of a place in the file: four numbers.
const PLACE_BYTES: usize = 32;

/// Which series, by a digest of its name.
pub(super) type Series = u64;
/// Which message, by a digest of its content.
pub(super) type Mark = u64;

/// The places that are taken.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Where they are kept; nowhere in tests, and where nothing outlives the process.
    file: Option<PathBuf>,
    is_read: bool,
    /// Whether it was reported that the file cannot be used.
    told: bool,
    taken: HashMap<(Series, i64), Taken>,
    /// Those of batches that were taken, the oldest first.
    order: VecDeque<(Series, i64)>,
    /// Those of the batch under way.
    open: Vec<(Series, i64)>,
    /// Of the batch under way: from where on there may be a place for the next message of that series and time.
    next: HashMap<(Series, i64), i64>,
    /// How many places each of the last batches took.
    batches: VecDeque<usize>,
}

/// By whom a place is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    received: i64,
    mark: Mark,
}

impl Places {
    /// None are taken but those in `file`, which is read when it is needed.
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Self { file, ..Self::default() }
    }

    /// A try to deliver a batch begins; places of one that failed are free again.
    pub(super) fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_read, true) {
            self.read();
        }
        self.next.clear();
        for place in self.open.drain(..) {
            self.taken.remove(&place);
        }
    }

    /// The place of a message of that series: the nanosecond at which it was received, or the next that is free; the one that it had, if
    /// it `is_repeated` and that is remembered.
    pub(super) fn place(
        &mut self,
        series: Series,
        received: i64,
        mark: Mark,
        is_repeated: bool,
    ) -> i64 {
        let mut nanos = self.next.get(&(series, received)).copied().unwrap_or(received);
        let is_kept = loop {
            match self.taken.get(&(series, nanos)) {
                None => break false,
                // A message that was refused is kept with its place as the time at which it was received.
                Some(taken)
                    if is_repeated
                        && taken.mark == mark
                        && (taken.received == received || nanos == received) =>
                {
                    break true;
                }
                Some(_) => nanos = nanos.saturating_add(1),
            }
        };
        if !is_kept {
            self.taken.insert((series, nanos), Taken { received, mark });
            self.open.push((series, nanos));
        }
        self.next.insert((series, received), nanos.saturating_add(1));
        nanos
    }

    /// The batch was taken; its messages are not acknowledged yet.
    pub(super) fn commit(&mut self) {
        self.batches.push_back(self.open.len());
        if self.batches.len() > BATCHES_OPEN {
            self.batches.pop_front();
        }
        self.order.extend(self.open.drain(..));
        while self.order.len() > PLACES_MAX {
            let oldest = self.order.pop_front().expect("there are some");
            self.taken.remove(&oldest);
        }
        if let Some(path) = &self.file
            && let Err(error) = write(path, &self.kept())
        {
            self.tell(&error);
        }
    }

    /// The places that a restart needs, the oldest first.
    fn kept(&self) -> Vec<((Series, i64), Taken)> {
        let open: usize = self.batches.iter().sum();
        let newest = self.order.iter().rev().take(open).map(|place| self.taken[place].received);
        let near = newest.max().unwrap_or(i64::MIN).saturating_sub(NEAR);
        let places = self.order.iter().rev().take(KEPT_MAX.max(open)).enumerate();
        let kept = places.filter(|(back, place)| {
            let taken = self.taken[*place];
            let is_close =
                || place.1 != taken.received || self.taken.contains_key(&(place.0, place.1 + 1));
            taken.received >= near || *back < open && is_close()
        });
        let mut kept: Vec<_> =
            kept.take(KEPT_MAX).map(|(_, place)| (*place, self.taken[place])).collect();
        kept.reverse();
        kept
    }

    fn read(&mut self) {
        let Some(path) = &self.file else { return };
        match read(path) {
            Ok(places) => {
                self.batches.push_back(places.len());
                for (place, taken) in places {
                    self.order.push_back(place);
                    self.taken.insert(place, taken);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.tell(&error),
        }
    }

    fn tell(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.told, true) {
            let file = self.file.as_deref().unwrap_or(Path::new("")).display();
            tracing::warn!(%file, %error,
                "the places in time of a sink cannot be kept: after a restart a point may take the place of another of its nanosecond");
        }
    }
}

fn write(path: &Path, places: &[((Series, i64), Taken)]) -> io::Result<()> {
    let mut bytes = HEAD.to_vec();
    for ((series, nanos), Taken { received, mark }) in places {
        bytes.extend(series.to_le_bytes());
        bytes.extend(nanos.to_le_bytes());
        bytes.extend(received.to_le_bytes());
        bytes.extend(mark.to_le_bytes());
    }
    let digest = Sha256::digest(&bytes);
    bytes.extend(&digest[..DIGEST_BYTES]);
    files::folder(path.parent().unwrap_or(Path::new("")), files::PRIVATE_FOLDER)?;
    files::put(path, &bytes, files::PRIVATE)
}

fn read(path: &Path) -> io::Result<Vec<((Series, i64), Taken)>> {
    let bytes_max = HEAD.len() + KEPT_MAX * PLACE_BYTES + DIGEST_BYTES;
    let bytes = regular::read_at_most(path, bytes_max as u64)?;
    let torn = || io::Error::new(io::ErrorKind::InvalidData, "it is cut off or damaged");
    let (said, digest) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or_else(torn)?;
    if Sha256::digest(said)[..DIGEST_BYTES] != *digest {
        return Err(torn());
    }
    let rest = said.strip_prefix(HEAD).ok_or_else(torn)?;
    let (places, []) = rest.as_chunks::<PLACE_BYTES>() else { return Err(torn()) };
    let number = |place: &[u8; PLACE_BYTES], at: usize| {
        u64::from_le_bytes(place[8 * at..8 * at + 8].try_into().expect("eight bytes"))
    };
    let place = |place: &[u8; PLACE_BYTES]| {
        let taken = Taken { received: number(place, 2) as i64, mark: number(place, 3) };
        ((number(place, 0), number(place, 1) as i64), taken)
    };
    Ok(places.iter().map(place).collect())
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fs};

    use super::*;

    /// A message: series, time of receipt, content.
    type Message = (Series, i64, Mark);

    /// Delivers messages in batches of that size, and returns their places.
    fn deliver(places: &mut Places, messages: &[Message], size: usize, again: bool) -> Vec<i64> {
        let mut found = Vec::new();
        for batch in messages.chunks(size) {
            // A try that fails, and the one that does not.
            let mut tries = [Vec::new(), Vec::new()];
            for placed in &mut tries {
                places.begin();
                placed.extend(batch.iter().map(|(s, r, m)| places.place(*s, *r, *m, again)));
            }
            places.commit();
            assert_eq!(tries[0], tries[1], "a batch that is tried again has the same places");
            found.extend(&tries[1]);
        }
        found
    }

    fn distinct(messages: &[Message], places: &[i64]) -> usize {
        let points = messages.iter().zip(places).map(|((series, ..), nanos)| (*series, *nanos));
        points.collect::<HashSet<_>>().len()
    }

    #[test]
    fn places_differ_within_a_series_whatever_the_batches() {
        // Many of one time, next to others, in three series.
        let messages: Vec<Message> = (0..6_000_u64)
            .map(|number| (number % 3, 1_000 + (number / 900) as i64 * 7, number))
            .collect();
        for size in [1, 10, 1_000, 6_000] {
            let found = deliver(&mut Places::default(), &messages, size, false);
            assert_eq!(distinct(&messages, &found), messages.len(), "batches of {size}");
            let first = &found[..3];
            assert_eq!(
                first, [1_000; 3],
                "where a place is free, a message has the time at which it was received"
            );
            let of_one: Vec<i64> = found.iter().step_by(3).copied().collect();
            assert!(of_one.is_sorted(), "the order of a series is kept");
        }
    }

    #[test]
    fn restart_at_any_message_takes_no_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state/a.places");
        let messages: Vec<Message> =
            (0..240).map(|number| (0, (number / 60) as i64 * 2_000_000, number)).collect();
        for ends in (0..messages.len()).step_by(31) {
            for acknowledged in (ends.saturating_sub(30)..=ends).step_by(7) {
                let _ = fs::remove_file(&file);
                let mut places = Places::new(Some(file.clone()));
                let before = deliver(&mut places, &messages[..ends], 20, false);
                // The messages that were not acknowledged come again, in other batches, and then the others.
                let mut places = Places::new(Some(file.clone()));
                let again = deliver(&mut places, &messages[acknowledged..ends], 7, true);
                assert_eq!(again, before[acknowledged..ends], "{acknowledged} of {ends}");
                let rest = deliver(&mut places, &messages[ends..], 7, false);
                let all = [before, rest].concat();
                assert_eq!(distinct(&messages, &all), messages.len(), "{acknowledged} of {ends}");
            }
        }
    }

    #[test]
    fn memory_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.places");
        let mut places = Places::new(Some(file.clone()));
        let messages: Vec<Message> = (0..150_000).map(|number| (number, 5, number)).collect();
        deliver(&mut places, &messages, 60_000, false);
        assert_eq!((places.taken.len(), places.order.len()), (PLACES_MAX, PLACES_MAX));
        assert_eq!(read(&file).unwrap().len(), KEPT_MAX);
        // A file that a power cut left cut off is no memory.
        fs::write(&file, &fs::read(&file).unwrap()[..1_000]).unwrap();
        let mut places = Places::new(Some(file));
        assert_eq!(deliver(&mut places, &[(1, 5, 1)], 1, true), [5]);
    }
}
