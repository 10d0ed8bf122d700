//! Observers and their paths (RFC 7641).
//!
//! Of a followed topic no more is kept than a notification carries: its first block, and what names the rest.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hasher as _},
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::Instant;

use super::{
    Block, ContentFormat, Representation, Token,
    slab::{Key, Slab},
};

/// Whether a notification is newer than the one before: `sequence` arrived at `now`, `last` at `last_at` (section 3.4).
pub fn is_newer(last: u32, last_at: Instant, sequence: u32, now: Instant) -> bool {
    is_ahead(last, sequence) || now.since(last_at) > Duration::from_secs(128)
}

fn is_ahead(last: u32, sequence: u32) -> bool {
    let ahead = sequence.wrapping_sub(last) & SEQUENCE_MASK;
    ahead != 0 && ahead < 1 << 23
}

/// A topic is at rest: its observers are sent the same state again, to see whether they are still there. RFC 7641, section 4.5, wants
/// that within 24 hours.
pub(super) const CHECKS_AFTER: Duration = Duration::from_secs(23 * 3600);

const SEQUENCE_MASK: u32 = (1 << 24) - 1;

/// The number of a notification: 24 bits of the time in steps of 33 µs, which come round after nine minutes, and always ahead of the
/// number before (section 4.4). So numbers continue where the observer had them, even if it comes back after all about it was
/// forgotten.
pub(super) fn next_sequence(now: Instant, last: Option<u32>) -> u32 {
    let tick = (now.as_nanos() >> 15) as u32 & SEQUENCE_MASK;
    match last {
        Some(last) if !is_ahead(last, tick) => (last + 1) & SEQUENCE_MASK,
        _ => tick,
    }
}

/// The state that a notification tells.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    pub(super) content_format: Option<ContentFormat>,
    pub(super) max_age: Option<Duration>,
    pub(super) etag: [u8; 8],
    /// The payload's length.
    pub(super) bytes: usize,
    /// As much of the payload as the largest block carries.
    pub(super) first: Bytes,
    pub(super) is_text: bool,
}

impl Notice {
    pub(super) fn new(representation: &Representation, size_exponent: u8) -> Self {
        let Representation { content_format, payload, max_age } = representation;
        let bytes = payload.len();
        let block = 16 << size_exponent;
        // A slice of a large payload would hold all of it.
        let first = match bytes <= block {
            true => payload.clone(),
            false => Bytes::copy_from_slice(&payload[..block]),
        };
        Self {
            content_format: *content_format,
            max_age: *max_age,
            // Looked at only where there are several blocks.
            etag: if bytes <= 16 { [0; 8] } else { etag(payload) },
            bytes,
            first,
            is_text: content_format.is_none() && str::from_utf8(payload).is_ok(),
        }
    }

    /// Whether it tells the same, for however long that holds.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.content_format, self.bytes, self.etag, &self.first)
            == (other.content_format, other.bytes, other.etag, &other.first)
    }
}

/// Tells payloads apart, so that who fetches one in blocks sees when it has become another.
pub(super) fn etag(payload: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish().to_be_bytes()
}

/// An observer of a path.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) peer: Key,
    pub(super) token: Token,
    pub(super) accept: Option<ContentFormat>,
    pub(super) size_exponent: u8,
    pub(super) sequence: u32,
    /// The identifier of the last notification that was not confirmable.
    pub(super) last_id: Option<u16>,
    /// When the last notification was sent.
    pub(super) notified: Instant,
    /// How many were sent since the last one that was acknowledged.
    pub(super) unconfirmed: u32,
    /// When to tell the same state in a confirmable message, unless a newer one comes before.
    pub(super) settles: Instant,
    /// Whether there is a state that it has not been sent.
    pub(super) is_behind: bool,
    resource: Key,
    /// Its place among the observers of the resource.
    at: usize,
}

#[derive(Debug)]
struct Resource {
    path: String,
    observers: Vec<Key>,
    latest: Notice,
}

#[derive(Debug)]
pub(super) struct Observers {
    observers: Slab<Observer>,
    resources: Slab<Resource>,
    by_path: HashMap<String, Key>,
}

/// A new observation.
pub(super) struct Registration {
    pub(super) peer: Key,
    pub(super) token: Token,
    pub(super) accept: Option<ContentFormat>,
    pub(super) size_exponent: u8,
}

impl Observers {
    pub(super) fn new() -> Self {
        Self { observers: Slab::new(), resources: Slab::new(), by_path: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.observers.len()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Observer> {
        self.observers.get_mut(key)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Observer> {
        self.observers.get(key)
    }

    /// Adds an observer of `path`; returns its key, and whether it is the first of that path.
    pub(super) fn add(
        &mut self,
        now: Instant,
        path: &str,
        registration: &Registration,
        sequence: u32,
        notice: impl FnOnce() -> Notice,
    ) -> (Key, bool) {
        let known = self.by_path.get(path).copied();
        let resource = known.unwrap_or_else(|| {
            let resource =
                Resource { path: path.to_owned(), observers: Vec::new(), latest: notice() };
            let key = self.resources.insert(resource);
            self.by_path.insert(path.to_owned(), key);
            key
        });
        let of_resource = &mut self.resources[resource].observers;
        let observer = self.observers.insert(Observer {
            peer: registration.peer,
            token: registration.token,
            accept: registration.accept,
            size_exponent: registration.size_exponent,
            sequence,
            last_id: None,
            notified: now,
            unconfirmed: 0,
            settles: now + CHECKS_AFTER,
            is_behind: false,
            resource,
            at: of_resource.len(),
        });
        of_resource.push(observer);
        (observer, known.is_none())
    }

    /// Takes one away; returns it, and the path if it was the last observer.
    pub(super) fn remove(&mut self, key: Key) -> Option<(Observer, Option<String>)> {
        let observer = self.observers.remove(key)?;
        let resource = &mut self.resources[observer.resource];
        resource.observers.swap_remove(observer.at);
        if let Some(moved) = resource.observers.get(observer.at) {
            self.observers[*moved].at = observer.at;
        }
        if !resource.observers.is_empty() {
            return Some((observer, None));
        }
        let resource = self.resources.remove(observer.resource).expect("it was looked at");
        self.by_path.remove(&resource.path);
        Some((observer, Some(resource.path)))
    }

    /// The resource at a path, if anybody follows it.
    pub(super) fn find(&self, path: &str) -> Option<Key> {
        self.by_path.get(path).copied()
    }

    pub(super) fn latest(&self, observer: &Observer) -> &Notice {
        &self.resources[observer.resource].latest
    }

    /// The state of a path that its observers know, or are about to be sent.
    pub(super) fn latest_of(&self, path: &str) -> Option<&Notice> {
        self.find(path).map(|key| &self.resources[key].latest)
    }

    /// A path has a new state; returns the resource if anybody follows it.
    pub(super) fn set(&mut self, path: &str, notice: impl FnOnce() -> Notice) -> Option<Key> {
        let key = self.find(path)?;
        self.resources[key].latest = notice();
        Some(key)
    }

    /// One of those who follow a resource, by its place.
    pub(super) fn of_resource(&self, resource: Key, at: usize) -> Option<Key> {
        self.resources.get(resource)?.observers.get(at).copied()
    }
}

/// The part of a payload in a block; none if it begins after the end.
pub(super) fn block_of(bytes: usize, wanted: Block, size_exponent: u8) -> Option<(Block, usize)> {
    let offset = wanted.offset();
    if offset >= bytes && offset > 0 {
        return None;
    }
    let size_exponent = wanted.size_exponent.min(size_exponent);
    let block =
        Block { number: (offset >> (size_exponent + 4)) as u32, more: false, size_exponent };
    let end = bytes.min(offset + block.bytes());
    Some((Block { more: end < bytes, ..block }, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ahead_of_those_before() {
        let at = |seconds: i64| Instant::from_millis(1000 * seconds);
        for (last, sequence, seconds, expected, note) in [
            (1, 2, 1, true, "the next"),
            (2, 1, 1, false, "overtaken"),
            (2, 2, 1, false, "a copy"),
            (SEQUENCE_MASK, 0, 1, true, "come round"),
            (0, (1 << 23) - 1, 1, true, "just below half of all"),
            (0, (1 << 23) + 1, 1, false, "just above half of all"),
            (2, 1, 129, true, "128 s later any number is newer"),
        ] {
            assert_eq!(is_newer(last, at(0), sequence, at(seconds)), expected, "{note}");
        }
    }

    #[test]
    fn numbers_follow_the_time_and_never_stand() {
        let start = Instant::from_nanos((1 << 39) - 1); // the last before they come round
        let mut last = next_sequence(start, None);
        assert_eq!(last, SEQUENCE_MASK);
        for step in [0, 0, 1, 40_000, 1_000_000_000, 100_000_000_000] {
            let next = next_sequence(start + Duration::from_nanos(step), Some(last));
            assert!(is_ahead(last, next), "{next} after {last}");
            last = next;
        }
    }

    #[test]
    fn blocks_of_a_payload() {
        let wanted = |number, size_exponent| Block { number, more: false, size_exponent };
        for (bytes, number, exponent, server, expected) in [
            (0, 0, 6, 6, Some((0, false, 6, 0))),
            (0, 1, 0, 6, None),
            (1024, 0, 6, 6, Some((0, false, 6, 1024))),
            (1025, 0, 6, 6, Some((0, true, 6, 1024))),
            (1025, 1, 6, 6, Some((1, false, 6, 1025))),
            (1025, 2, 6, 6, None),
            (100, 1, 1, 6, Some((1, true, 1, 64))),
            (5000, 1, 6, 4, Some((4, true, 4, 1280))), // the server's blocks are smaller
        ] {
            let found = block_of(bytes, wanted(number, exponent), server);
            let found = found.map(|(it, end)| (it.number, it.more, it.size_exponent, end));
            assert_eq!(found, expected, "block {number} of {bytes} bytes");
        }
    }
}
