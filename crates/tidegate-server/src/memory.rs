//! Memory that goes back to the system once a backlog has gone: an allocator keeps what many short messages took, for the next ones.
//!
//! Always true: it is asked for only after much has gone, so that a node whose queues fill and empty keeps its memory.

use std::{sync::mpsc, time::Duration};

use tidegate_broker::Budget;
use tidegate_sys::memory;

/// How often the memory of messages is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes of messages that have gone before their memory is worth giving back.
const GONE_BYTES_MIN: u64 = 16 << 20;

/// Gives memory back until `stop` receives a message or is closed.
pub(super) fn run(budget: &Budget, stop: &mpsc::Receiver<()>) {
    let mut watch = Watch::default();
    while let Err(mpsc::RecvTimeoutError::Timeout) = stop.recv_timeout(LOOK) {
        if watch.has_gone(budget.used()) {
            memory::give_back();
        }
    }
}

/// The most bytes that were held since memory was given back last.
#[derive(Debug, Default)]
struct Watch {
    most: u64,
}

impl Watch {
    /// Whether so much has gone since that memory is to be given back; `used` bytes are held now.
    fn has_gone(&mut self, used: u64) -> bool {
        self.most = self.most.max(used);
        let has_gone = self.most - used >= GONE_BYTES_MIN && used <= self.most / 2;
        if has_gone {
            self.most = used;
        }
        has_gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_once_much_has_gone() {
        let mut watch = Watch::default();
        let looks = [(0, false), (100, false), (60, false), (50, true), (40, false), (25, true)];
        for (mebibytes, expected) in looks {
            assert_eq!(watch.has_gone(mebibytes << 20), expected, "{mebibytes} MiB");
        }
        // Little comes and goes all the time.
        for mebibytes in [26, 11, 26, 11] {
            assert!(!watch.has_gone(mebibytes << 20), "{mebibytes} MiB");
        }
    }
}
