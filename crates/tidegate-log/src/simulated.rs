//! A disk in memory that loses power, fills up and fails, and the proof that a log on it loses nothing it said it keeps.
//!
//! Data stored and not synced is in the page cache: it survives the end of the process. At a loss of power each sector of it is, by
//! the disk's own dice, as it was, as it should be, or torn in the middle; names that were not synced are there or not; sizes are
//! the old or the new. The kernel also writes back whatever it likes, whenever it likes.
//!
//! Always true: all that happens follows from the seed.

mod disk;
mod power;

pub use disk::{SimulatedDisk, SimulatedFile, SimulatedMap};
pub use power::{MARKER, Outcome, Violation, lose_power, lose_power_sealed};

/// Dice that roll the same for the same seed (SplitMix64).
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// True once in `times`.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
