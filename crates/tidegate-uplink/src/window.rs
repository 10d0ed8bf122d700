//! Messages that were read from a session and are not acknowledged yet, numbered, in order.

use std::{collections::VecDeque, time::Duration};

use tidegate_compress::Message;
use tidegate_message::Instant;
use tidegate_wire::mqtt::{PacketId, seconds_left};

use crate::{message, origin::Origin};

/// Bytes of messages in one piece of memory; a longer message has a piece of its own.
const CHUNK_BYTES: usize = 256 << 10;
/// Overhead of a message in addition to its bytes.
const ENTRY_BYTES: usize = size_of::<Entry>();

/// Messages from number [`Window::first`] up to [`Window::end`].
#[derive(Debug, Default)]
pub(crate) struct Window {
    entries: VecDeque<Entry>,
    chunks: VecDeque<Chunk>,
    /// The number of `chunks[0]` among all that there were.
    first_chunk: u64,
    /// The number of `entries[0]`.
    first: u64,
    bytes: usize,
    /// A chunk that was given back.
    spare: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Chunk {
    memory: Vec<u8>,
    /// Bytes in it of messages that were taken out.
    gone: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    chunk: u64,
    start: u32,
    topic: u16,
    attributes: u16,
    payload: u32,
    /// By whose identifier it is acknowledged; none for QoS 0.
    origin: Option<Origin>,
    /// The end of time for one that does not expire.
    expires: Instant,
}

impl Entry {
    fn message_bytes(&self) -> usize {
        usize::from(self.topic) + usize::from(self.attributes) + self.payload as usize
    }
}

impl Window {
    /// Number of the oldest message.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Number that the next message gets.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Bytes that all of it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message, whose parts the caller has found to be within the limits of the codec.
    pub(crate) fn push(&mut self, now: Instant, message: Message<'_>, origin: Option<Origin>) {
        let Message { topic, attributes, payload } = message;
        let bytes = topic.len() + attributes.len() + payload.len();
        let has_room = |chunk: &Chunk| chunk.memory.len() + bytes <= chunk.memory.capacity();
        if !self.chunks.back().is_some_and(has_room) {
            let memory = match self.spare.take() {
                Some(spare) if bytes <= spare.capacity() => spare,
                _ => Vec::with_capacity(bytes.max(CHUNK_BYTES)),
            };
            self.chunks.push_back(Chunk { memory, gone: 0 });
        }
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last].memory;
        let start = chunk.len() as u32;
        for part in [topic, attributes, payload] {
            chunk.extend_from_slice(part);
        }
        self.entries.push_back(Entry {
            chunk: self.first_chunk + last as u64,
            start,
            topic: topic.len() as u16,
            attributes: attributes.len() as u16,
            payload: payload.len() as u32,
            origin,
            expires: message::expiry(attributes)
                .map_or(Instant::MAX, |seconds| now + Duration::from_secs(seconds.into())),
        });
        self.bytes += bytes + ENTRY_BYTES;
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// Has the message of that number say how long it is still of worth, for it waited here; false if it no longer is.
    pub(crate) fn age(&mut self, number: u64, now: Instant) -> bool {
        let place = self.place(number);
        let entry = place.and_then(|place| self.entries.get(place)).copied();
        let Some(entry) = entry else { return true };
        if entry.expires == Instant::MAX {
            return true;
        }
        let left = seconds_left(Some(entry.expires), now).unwrap_or(0);
        let chunk = &mut self.chunks[(entry.chunk - self.first_chunk) as usize];
        let start = entry.start as usize + usize::from(entry.topic);
        message::set_expiry(&mut chunk.memory[start..][..usize::from(entry.attributes)], left);
        now <= entry.expires
    }

    /// Takes out all messages from that number on that are of no worth any more, so that those behind them move up, and adds by what
    /// they are to be acknowledged; how many they are. Their bytes are given back with the messages next to them.
    pub(crate) fn remove_expired(
        &mut self,
        from: u64,
        now: Instant,
        owed: &mut Vec<PacketId>,
    ) -> usize {
        let before = self.entries.len();
        let Some(place) = self.place(from).filter(|place| *place < before) else { return 0 };
        for entry in self.entries.split_off(place) {
            if now <= entry.expires {
                self.entries.push_back(entry);
                continue;
            }
            self.chunks[(entry.chunk - self.first_chunk) as usize].gone += entry.message_bytes();
            self.bytes -= ENTRY_BYTES;
            owed.extend(entry.origin.map(|origin| origin.id));
        }
        self.free();
        before - self.entries.len()
    }

    /// The message of that number; none outside of the window.
    pub(crate) fn get(&self, number: u64) -> Option<Message<'_>> {
        let entry = self.entries.get(self.place(number)?)?;
        let chunk = &self.chunks[(entry.chunk - self.first_chunk) as usize];
        let whole = &chunk.memory[entry.start as usize..][..entry.message_bytes()];
        let (topic, rest) = whole.split_at(usize::from(entry.topic));
        let (attributes, payload) = rest.split_at(usize::from(entry.attributes));
        Some(Message { topic, attributes, payload })
    }

    /// By what the message of that number is known again; none for QoS 0, and outside of the window.
    pub(crate) fn origin(&self, number: u64) -> Option<Origin> {
        self.entries.get(self.place(number)?)?.origin
    }

    /// Lets go of memory that is kept for messages to come.
    pub(crate) fn forget_spare(&mut self) {
        self.spare = None;
        self.entries.shrink_to_fit();
    }

    /// Lets go of all messages below `next`, and calls `acknowledge` for those that are owed it, in order.
    pub(crate) fn release(&mut self, next: u64, mut acknowledge: impl FnMut(PacketId)) {
        while self.first < next
            && let Some(entry) = self.entries.pop_front()
        {
            self.first += 1;
            self.bytes -= entry.message_bytes() + ENTRY_BYTES;
            if let Some(origin) = entry.origin {
                acknowledge(origin.id);
            }
        }
        self.free();
    }

    /// Gives back the memory of messages that are gone.
    fn free(&mut self) {
        let oldest = self.entries.front().map_or(u64::MAX, |entry| entry.chunk);
        while self.first_chunk < oldest
            && let Some(Chunk { mut memory, gone }) = self.chunks.pop_front()
        {
            self.first_chunk += 1;
            self.bytes -= gone;
            if memory.capacity() == CHUNK_BYTES {
                memory.clear();
                self.spare = Some(memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(id: u16) -> Option<Origin> {
        PacketId::new(id).map(|id| Origin { received: Instant::EPOCH, id })
    }

    fn message(payload: &[u8]) -> Message<'_> {
        Message { topic: b"a/b", attributes: b"!", payload }
    }

    #[test]
    fn messages_are_found_by_their_numbers_until_they_are_released() {
        let mut window = Window::default();
        let long = vec![7; 3 * CHUNK_BYTES];
        for number in 0..10_000_u32 {
            let id = origin(number as u16).filter(|_| number % 2 == 1);
            match number % 1000 {
                0 => window.push(Instant::EPOCH, message(&long), id),
                _ => window.push(Instant::EPOCH, message(&number.to_le_bytes()), id),
            }
        }
        assert_eq!((window.first(), window.end()), (0, 10_000));
        let mut acknowledged = Vec::new();
        window.release(5_001, |id| acknowledged.push(id.get()));
        assert_eq!(acknowledged.len(), 2_500);
        assert!(acknowledged.is_sorted());
        assert_eq!(window.get(5_000), None);
        assert_eq!(window.get(10_000), None);
        for number in 5_001..10_000_u32 {
            let found = window.get(u64::from(number)).expect("it is within the window");
            match number % 1000 {
                0 => assert_eq!(found.payload, long),
                _ => assert_eq!(found, message(&number.to_le_bytes())),
            }
        }
        window.release(10_000, |_| ());
        assert_eq!((window.bytes(), window.chunks.len(), window.first()), (0, 0, 10_000));
    }

    #[test]
    fn expiring_messages_say_their_remaining_time_and_can_be_taken_out() {
        let mut window = Window::default();
        let at = |millis| Instant::EPOCH + Duration::from_millis(millis);
        // QoS 1, which expires in 10 seconds.
        let attributes = [0b1001_u8, 10, 0, 0, 0];
        let message = |number| Message { topic: b"a/b", attributes: &attributes, payload: number };
        for number in [b"0", b"1", b"2"] {
            window.push(at(0), message(number), origin(7));
        }
        for (millis, left) in [(0, 10), (200, 10), (1_000, 9), (9_500, 1), (10_000, 0)] {
            assert!(window.age(1, at(millis)), "{millis}");
            let found = window.get(1).expect("it is there");
            assert_eq!(found.attributes, [0b1001, left, 0, 0, 0], "{millis}");
            assert_eq!((found.topic, found.payload), (&b"a/b"[..], &b"1"[..]));
        }
        assert!(!window.age(1, at(10_001)));
        assert_eq!(window.get(2).map(|found| found.attributes), Some(&attributes[..]));
        let mut owed = Vec::new();
        window.push(at(5_000), message(b"3"), origin(9));
        assert_eq!(window.remove_expired(1, at(10_001), &mut owed), 2);
        assert_eq!(owed, [PacketId::new(7), PacketId::new(7)].map(|id| id.expect("not zero")));
        assert_eq!(window.get(1).map(|found| found.payload), Some(&b"3"[..]));
        assert_eq!((window.first(), window.end()), (0, 2));
        assert_eq!(window.remove_expired(2, at(60_000), &mut owed), 0, "there is none");
        window.release(2, |_| ());
        assert_eq!((window.bytes(), window.chunks.len()), (0, 0));
        assert!(window.age(2, at(0)), "there is none");
    }

    #[test]
    fn memory_is_used_again() {
        let mut window = Window::default();
        for number in 0..100_000_u64 {
            window.push(Instant::EPOCH, message(&[0; 100]), None);
            window.release(number.saturating_sub(5_000), |_| ());
            assert!(window.chunks.len() <= 4, "{}", window.chunks.len());
        }
    }
}
