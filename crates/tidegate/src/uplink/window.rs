//! Messages that were read from a session and are not acknowledged yet, numbered, in order.

use std::collections::VecDeque;

use tidegate_compress::Message;
use tidegate_wire::mqtt::PacketId;

/// Bytes of messages in one piece of memory; a longer message has a piece of its own.
const CHUNK_BYTES: usize = 256 << 10;
/// What a message costs beside its bytes.
const ENTRY_BYTES: usize = size_of::<Entry>();

/// Messages from number [`Window::first`] up to [`Window::end`].
#[derive(Debug, Default)]
pub(super) struct Window {
    entries: VecDeque<Entry>,
    chunks: VecDeque<Vec<u8>>,
    /// The number of `chunks[0]` among all that there were.
    first_chunk: u64,
    /// The number of `entries[0]`.
    first: u64,
    bytes: usize,
    /// A chunk that was given back.
    spare: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    chunk: u64,
    start: u32,
    topic: u16,
    attributes: u16,
    payload: u32,
    /// By which it is acknowledged; none for QoS 0.
    packet_id: Option<PacketId>,
}

impl Entry {
    fn message_bytes(&self) -> usize {
        usize::from(self.topic) + usize::from(self.attributes) + self.payload as usize
    }
}

impl Window {
    /// Number of the oldest message.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Number that the next message gets.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Bytes that all of it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message, whose parts the caller has found to be within the limits of the codec.
    pub(super) fn push(&mut self, message: Message<'_>, packet_id: Option<PacketId>) {
        let Message { topic, attributes, payload } = message;
        let bytes = topic.len() + attributes.len() + payload.len();
        let has_room = |chunk: &Vec<u8>| chunk.len() + bytes <= chunk.capacity();
        if !self.chunks.back().is_some_and(has_room) {
            let chunk = match self.spare.take() {
                Some(spare) if bytes <= spare.capacity() => spare,
                _ => Vec::with_capacity(bytes.max(CHUNK_BYTES)),
            };
            self.chunks.push_back(chunk);
        }
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
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
            packet_id,
        });
        self.bytes += bytes + ENTRY_BYTES;
    }

    /// The message of that number; none outside of the window.
    pub(super) fn get(&self, number: u64) -> Option<Message<'_>> {
        let entry = self.entries.get(usize::try_from(number.checked_sub(self.first)?).ok()?)?;
        let chunk = &self.chunks[(entry.chunk - self.first_chunk) as usize];
        let whole = &chunk[entry.start as usize..][..entry.message_bytes()];
        let (topic, rest) = whole.split_at(usize::from(entry.topic));
        let (attributes, payload) = rest.split_at(usize::from(entry.attributes));
        Some(Message { topic, attributes, payload })
    }

    /// Lets go of all messages below `next`, and calls `acknowledge` for those that are owed it, in order.
    pub(super) fn release(&mut self, next: u64, mut acknowledge: impl FnMut(PacketId)) {
        while self.first < next
            && let Some(entry) = self.entries.pop_front()
        {
            self.first += 1;
            self.bytes -= entry.message_bytes() + ENTRY_BYTES;
            if let Some(packet_id) = entry.packet_id {
                acknowledge(packet_id);
            }
        }
        let oldest = self.entries.front().map_or(u64::MAX, |entry| entry.chunk);
        while self.first_chunk < oldest
            && let Some(mut chunk) = self.chunks.pop_front()
        {
            self.first_chunk += 1;
            if chunk.capacity() == CHUNK_BYTES {
                chunk.clear();
                self.spare = Some(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: &[u8]) -> Message<'_> {
        Message { topic: b"a/b", attributes: b"!", payload }
    }

    #[test]
    fn messages_are_found_by_their_numbers_until_they_are_released() {
        let mut window = Window::default();
        let long = vec![7; 3 * CHUNK_BYTES];
        for number in 0..10_000_u32 {
            let id = PacketId::new(number as u16).filter(|_| number % 2 == 1);
            match number % 1000 {
                0 => window.push(message(&long), id),
                _ => window.push(message(&number.to_le_bytes()), id),
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
    fn memory_is_used_again() {
        let mut window = Window::default();
        for number in 0..100_000_u64 {
            window.push(message(&[0; 100]), None);
            window.release(number.saturating_sub(5_000), |_| ());
            assert!(window.chunks.len() <= 4, "{}", window.chunks.len());
        }
    }
}
