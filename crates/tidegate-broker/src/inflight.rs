//! QoS 1 and 2 messages on their way to one subscriber (MQTT 5, section 4.3 and 4.4).

use std::{
    collections::{HashSet, VecDeque},
    num::NonZeroU16,
};

use tidegate_wire::mqtt::{PacketId, QoS};

use crate::queue::Queued;

/// What a message in flight waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    Puback,
    Pubrec,
    Pubcomp,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: PacketId,
    pub(crate) awaits: Awaits,
    /// The message, where it must be sent again to the next connection.
    pub(crate) kept: Option<Box<Queued>>,
    bytes: u64,
    is_large: bool,
}

/// The exchanges, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Inflight {
    entries: VecDeque<Entry>,
    last_id: u16,
    /// Identifiers after that one that are known to be free.
    free_ahead: u16,
    bytes: u64,
    kept_bytes: u64,
    large: usize,
}

impl Inflight {
    /// Exchanges that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Payload bytes that are on their way.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of messages that are kept for another try.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Large messages among them.
    pub(crate) fn large(&self) -> usize {
        self.large
    }

    /// Begins an exchange.
    pub(crate) fn begin(
        &mut self,
        qos: QoS,
        bytes: usize,
        is_large: bool,
        kept: Option<Box<Queued>>,
    ) -> PacketId {
        let id = self.next_id();
        let bytes = bytes as u64;
        self.bytes += bytes;
        self.kept_bytes += kept.as_ref().map_or(0, |queued| queued.message.charged());
        self.large += usize::from(is_large);
        let awaits = if qos == QoS::AtLeastOnce { Awaits::Puback } else { Awaits::Pubrec };
        self.entries.push_back(Entry { id, awaits, kept, bytes, is_large });
        id
    }

    /// Goes on with an exchange of an earlier process: with its message, or accepted already.
    pub(crate) fn restore(&mut self, id: PacketId, kept: Option<Box<Queued>>) {
        let awaits = if kept.is_some() { Awaits::Pubrec } else { Awaits::Pubcomp };
        let bytes = kept.as_ref().map_or(0, |queued| queued.payload_bytes() as u64);
        self.bytes += bytes;
        self.kept_bytes += kept.as_ref().map_or(0, |queued| queued.message.charged());
        self.entries.push_back(Entry { id, awaits, kept, bytes, is_large: false });
        self.free_ahead = 0;
    }

    /// Goes on with an exchange of QoS 1 whose identifier nobody knows any more: another one, which is not among `used`.
    pub(crate) fn restore_repeated(&mut self, kept: Box<Queued>, used: &HashSet<PacketId>) {
        let id = loop {
            let id = self.next_id();
            if !used.contains(&id) {
                break id;
            }
        };
        let bytes = kept.payload_bytes() as u64;
        self.bytes += bytes;
        self.kept_bytes += kept.message.charged();
        let (awaits, kept) = (Awaits::Puback, Some(kept));
        self.entries.push_back(Entry { id, awaits, kept, bytes, is_large: false });
    }

    fn next_id(&mut self) -> PacketId {
        loop {
            while self.free_ahead == 0 {
                // How far ahead the nearest identifier in use lies: those before it stay free until they are given.
                let last = self.last_id;
                let ahead = self
                    .entries
                    .iter()
                    .map(|entry| entry.id.get().wrapping_sub(last).wrapping_sub(1));
                self.free_ahead = ahead.min().unwrap_or(u16::MAX);
                if self.free_ahead == 0 {
                    self.last_id = last.wrapping_add(1);
                }
            }
            self.last_id = self.last_id.wrapping_add(1);
            self.free_ahead -= 1;
            if let Some(id) = NonZeroU16::new(self.last_id) {
                return id;
            }
        }
    }

    fn position(&self, id: PacketId, awaits: Awaits) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == id && entry.awaits == awaits)
    }

    /// Ends an exchange that awaited this, and gives the message that was kept for it; nothing if there is no such exchange.
    pub(crate) fn end(&mut self, id: PacketId, awaits: Awaits) -> Option<Option<Box<Queued>>> {
        let at = self.position(id, awaits)?;
        let entry = self.entries.remove(at).expect("found");
        self.forget(&entry);
        Some(entry.kept)
    }

    fn forget(&mut self, entry: &Entry) {
        self.bytes -= entry.bytes;
        self.kept_bytes -= entry.kept.as_ref().map_or(0, |queued| queued.message.charged());
        self.large -= usize::from(entry.is_large);
    }

    /// A QoS 2 message was accepted: from here on only its identifier matters. False if there is no such exchange.
    pub(crate) fn release(&mut self, id: PacketId) -> bool {
        if let Some(at) = self.position(id, Awaits::Pubrec) {
            let entry = &mut self.entries[at];
            entry.awaits = Awaits::Pubcomp;
            self.bytes -= entry.bytes;
            self.kept_bytes -= entry.kept.as_ref().map_or(0, |queued| queued.message.charged());
            self.large -= usize::from(entry.is_large);
            (entry.bytes, entry.is_large, entry.kept) = (0, false, None);
            return true;
        }
        // PUBREC may come twice.
        self.position(id, Awaits::Pubcomp).is_some()
    }

    /// What is sent again to a new connection, in order (section 4.4).
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Forgets what cannot be sent again.
    pub(crate) fn keep_resendable(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        for entry in entries {
            if entry.kept.is_some() || entry.awaits == Awaits::Pubcomp {
                self.entries.push_back(entry);
            } else {
                self.forget(&entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_in_use_is_not_given_again() {
        let mut inflight = Inflight::default();
        let first = inflight.begin(QoS::AtLeastOnce, 1, false, None);
        let second = inflight.begin(QoS::AtLeastOnce, 1, false, None);
        for _ in 0..70_000 {
            let id = inflight.begin(QoS::AtLeastOnce, 1, false, None);
            assert!(id != first && id != second);
            assert!(inflight.end(id, Awaits::Puback).is_some());
        }
        assert_eq!((inflight.len(), inflight.bytes()), (2, 2));
        // More than once around, with many in use anywhere.
        let mut used: Vec<_> =
            (0..500).map(|_| inflight.begin(QoS::AtLeastOnce, 0, false, None)).collect();
        for round in 0..200_000 {
            let id = inflight.begin(QoS::AtLeastOnce, 0, false, None);
            assert!(id != first && id != second && !used.contains(&id));
            let ended = std::mem::replace(&mut used[round * 7 % 450], id);
            assert!(inflight.end(ended, Awaits::Puback).is_some());
        }
    }

    #[test]
    fn qos_2_takes_two_steps() {
        let mut inflight = Inflight::default();
        let id = inflight.begin(QoS::ExactlyOnce, 9, true, None);
        assert!(inflight.end(id, Awaits::Puback).is_none());
        assert!(inflight.release(id));
        assert!(inflight.release(id)); // PUBREC again
        assert_eq!((inflight.bytes(), inflight.large(), inflight.len()), (0, 0, 1));
        assert!(inflight.end(id, Awaits::Pubcomp).is_some());
        assert!(inflight.end(id, Awaits::Pubcomp).is_none());
    }
}
