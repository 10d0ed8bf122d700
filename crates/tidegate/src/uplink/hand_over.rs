//! What a session has from before a life of its uplink began, when the uplink may have had other filters.
//!
//! Two sessions part the messages of an uplink: what matches `critical` is the critical one's, all else the batched one's. What waits in
//! them may have been parted by other filters, or not at all. So whatever was there before is carried by the session that has it, and a
//! *mark* is published into the session behind it; once that was read, each session carries its own again. A message that both had is
//! carried twice then, and none is left to a session that never had it.
//!
//! Small and large messages wait in two queues of a session, each in order: there is a mark of each size.

use tidegate_compress::PAYLOAD_BYTES_MAX;

/// One session's part in it.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    /// By which marks of this life are told from those of one before.
    life: u64,
    /// Payloads over this are large.
    large_bytes: usize,
    /// Whether the small mark has not come, and the large one.
    waits: [bool; 2],
}

impl HandOver {
    /// Of a session that was there before; its payloads over `large_bytes` are large.
    pub(super) fn begin(life: u64, large_bytes: u32) -> Self {
        let large_bytes = large_bytes as usize;
        // What is longer than an uplink carries needs no mark.
        Self { life, large_bytes, waits: [true, large_bytes < PAYLOAD_BYTES_MAX] }
    }

    /// Whether all that was there before was read; so it is from the start for a session that was not.
    pub(super) fn is_over(&self) -> bool {
        self.waits == [false; 2]
    }

    /// Payloads of the marks that have not come.
    pub(super) fn marks(&self) -> impl Iterator<Item = Vec<u8>> {
        let lengths = [size_of::<u64>(), self.large_mark_bytes()];
        let life = self.life;
        let waiting = self.waits.iter().zip(lengths).filter(|(waits, _)| **waits);
        waiting.map(move |(_, length)| {
            let mut payload = life.to_le_bytes().to_vec();
            payload.resize(length, 0);
            payload
        })
    }

    /// A mark was read, of this life or of one before.
    pub(super) fn came(&mut self, payload: &[u8]) {
        if payload.starts_with(&self.life.to_le_bytes()) {
            self.waits[usize::from(payload.len() > size_of::<u64>())] = false;
        }
    }

    fn large_mark_bytes(&self) -> usize {
        self.large_bytes.max(size_of::<u64>()) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_both_marks_of_this_life_have_come() {
        assert!(HandOver::default().is_over());
        for large_bytes in [0, 8, 10_000] {
            let mut hand_over = HandOver::begin(7, large_bytes);
            for mark in HandOver::begin(6, large_bytes).marks() {
                hand_over.came(&mark);
            }
            let marks: Vec<_> = hand_over.marks().collect();
            assert!(marks[1].len() > large_bytes as usize && marks.len() == 2);
            hand_over.came(&marks[1]);
            assert!(!hand_over.is_over());
            assert_eq!(hand_over.marks().collect::<Vec<_>>(), marks[..1]);
            hand_over.came(&marks[0]);
            assert!(hand_over.is_over());
        }
        // No message that is carried is large.
        assert_eq!(HandOver::begin(7, u32::MAX).marks().count(), 1);
    }
}
