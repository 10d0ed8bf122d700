//! Messages that a session has from before a life of its uplink began, when the uplink had other critical topics.
//!
//! Two sessions part the messages of an uplink: those that match `critical` are the critical one's, all others the batched one's.
//! Messages that wait in them when that changes were parted by other filters, or not at all. So whatever was there before is carried by
//! the session that has
//! it, and a *mark* is published into the session behind it; once that was read, each session carries its own again. A message that
//! both had is carried twice then, and none is left to a session that never had it.
//!
//! Small and large messages wait in two queues of a session, each in order: there is a mark of each size.

/// The last levels of the topics of marks.
const SIZES: [&str; 2] = ["small", "large"];

/// The prefix of the topics of its marks.
pub(crate) fn prefix(uplink: &str) -> String {
    format!("$SYS/broker/uplink/{uplink}/mark/")
}

/// The sizes that a broker must know of the marks of all uplinks: filters, and how many bytes of payload make a message
/// there large.
pub fn sizes() -> impl Iterator<Item = (String, u32)> {
    SIZES.iter().zip([u32::MAX, 0]).map(|(size, large)| (prefix("+") + *size, large))
}

/// One session's part in it.
#[derive(Debug, Default)]
pub(crate) struct HandOver {
    /// Distinguishes marks of this life from those of an earlier one.
    life: u64,
    /// Which marks have not come.
    waits: [bool; SIZES.len()],
}

impl HandOver {
    /// Of a session that was there before.
    pub(crate) fn begin(life: u64) -> Self {
        Self { life, waits: [true; SIZES.len()] }
    }

    /// Whether all that was there before was read; so it is from the start for a session that was not.
    pub(crate) fn is_over(&self) -> bool {
        self.waits == [false; SIZES.len()]
    }

    /// The last levels of the topics of the marks that have not come, and their payload.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (&'static str, [u8; 8])> {
        let waiting = SIZES.iter().zip(self.waits).filter(|(_, waits)| *waits);
        waiting.map(move |(size, _)| (*size, self.life.to_le_bytes()))
    }

    /// A mark was read, of this life or of one before.
    pub(crate) fn came(&mut self, size: &str, payload: &[u8]) {
        if payload != self.life.to_le_bytes() {
            return;
        }
        if let Some(place) = SIZES.iter().position(|one| *one == size) {
            self.waits[place] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_both_marks_of_this_life_have_come() {
        assert!(HandOver::default().is_over());
        let mut hand_over = HandOver::begin(7);
        for (size, mark) in HandOver::begin(6).marks() {
            hand_over.came(size, &mark);
        }
        let marks: Vec<_> = hand_over.marks().collect();
        assert_eq!(marks.len(), 2);
        hand_over.came(marks[1].0, &marks[1].1);
        hand_over.came("other", &marks[0].1);
        assert!(!hand_over.is_over());
        assert_eq!(hand_over.marks().collect::<Vec<_>>(), marks[..1]);
        hand_over.came(marks[0].0, &marks[0].1);
        assert!(hand_over.is_over());
    }
}
