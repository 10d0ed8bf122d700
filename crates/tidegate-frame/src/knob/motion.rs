//! Change and motion, judged on the 1/8 image: the mean of every 8x8 block of luma.
//!
//! The 1/8 image comes out of entropy decoding, so with any other knob it is free, and it is the same
//! whatever the setting: a frame can be compared with one that was sent at another scale.

use tidegate_jpeg::Orientation;

/// A pixel changed if its mean differs by more than this from the last frame sent.
pub(super) const CHANGED_ABOVE: u8 = 15;
/// A pixel moves if its mean differs by more than this from the background.
const MOVES_ABOVE: u8 = 12;

/// A 1/8 image.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Eighth {
    pub(super) pixels: Vec<u8>,
    pub(super) width: usize,
    pub(super) height: usize,
    /// How it is turned to be seen.
    pub(super) orientation: Orientation,
}

impl Eighth {
    /// The fraction of pixels that differ by more than `tolerance`; 1 if the sizes differ, or how they are turned.
    pub(super) fn changed(&self, other: &Self, tolerance: u8) -> f32 {
        let shape = |image: &Self| (image.width, image.height, image.orientation);
        if shape(self) != shape(other) || self.pixels.is_empty() {
            return 1.0;
        }
        let differs = |(a, b): (&u8, &u8)| usize::from(a.abs_diff(*b) > tolerance);
        let changed: usize = self.pixels.iter().zip(&other.pixels).map(differs).sum();
        changed as f32 / self.pixels.len() as f32
    }

    fn copy_from(&mut self, other: &Self) {
        self.pixels.clone_from(&other.pixels);
        (self.width, self.height) = (other.width, other.height);
        self.orientation = other.orientation;
    }
}

/// The frames that one transfer has seen and sent: the reference of its differencing and its background.
///
/// A camera with several transfers keeps one of these for each and shares the
/// [`Transcoder`](super::Transcoder).
#[derive(Debug, Default)]
pub struct TransferState {
    /// The last frame sent, unless it was sent without looking.
    reference: Option<Eighth>,
    pending: Pending,
    pending_image: Eighth,
    /// A second buffer, so that `reference` can come and go without allocating.
    spare: Eighth,
    background: Eighth,
    /// The frame that moved the background last.
    seen: Eighth,
}

/// The frame that was encoded last and is not yet known to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Pending {
    #[default]
    Nothing,
    /// Its 1/8 image was not needed for its setting.
    Unseen,
    Seen,
}

impl TransferState {
    /// A transfer that has sent nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that the frame last encoded for this transfer was sent: differencing compares with it from now on.
    /// Does nothing if there is no such frame.
    pub fn sent(&mut self) {
        match std::mem::take(&mut self.pending) {
            Pending::Nothing => {}
            // The receiver now shows a frame that we cannot compare with: the next one counts as changed.
            Pending::Unseen => self.lost(),
            Pending::Seen => {
                let old = self.reference.take().unwrap_or_else(|| std::mem::take(&mut self.spare));
                self.reference = Some(std::mem::replace(&mut self.pending_image, old));
            }
        }
    }

    /// Says that the frame last said to be sent did not arrive: the next one counts as changed.
    pub fn lost(&mut self) {
        if let Some(old) = self.reference.take() {
            self.spare = old;
        }
    }

    /// The fraction of `image` that changed since the last frame sent; `None` if there is nothing to compare with.
    pub(super) fn changed(&self, image: &Eighth, tolerance: u8) -> Option<f32> {
        self.reference.as_ref().map(|reference| image.changed(reference, tolerance))
    }

    /// Takes note of the frame that was encoded, with its 1/8 image if there is one.
    pub(super) fn encoded(&mut self, image: Option<&Eighth>) {
        self.pending = match image {
            Some(image) => {
                self.pending_image.copy_from(image);
                Pending::Seen
            }
            None => Pending::Unseen,
        };
    }

    /// No frame is waiting to be sent.
    pub(super) fn nothing_encoded(&mut self) {
        self.pending = Pending::Nothing;
    }

    /// Marks in `mask` which pixels of `image` move, 1 for those that do, in cells of `cell` pixels across and
    /// down, and lets the background follow by one level. Neighbours of a moving cell count as moving. Without a
    /// background of that size everything moves.
    pub(super) fn moving(
        &mut self,
        image: &Eighth,
        cell: (usize, usize),
        cells: (usize, usize),
        mask: &mut Mask,
    ) {
        mask.reset(cells);
        let known = (self.background.width, self.background.height) == (image.width, image.height);
        if known {
            mask.mark(image, &self.background, cell);
            mask.dilate();
        } else {
            mask.cells.fill(1);
            self.background.copy_from(image);
        }
        // A frame that is encoded again, a rung lower, does not move the background twice.
        if self.seen != *image {
            follow(&mut self.background.pixels, &image.pixels);
            self.seen.copy_from(image);
        }
    }
}

/// Moves every pixel of the background one level towards the image.
fn follow(background: &mut [u8], image: &[u8]) {
    for (b, &i) in background.iter_mut().zip(image) {
        *b = *b + u8::from(*b < i) - u8::from(*b > i);
    }
}

/// One byte per cell, 1 where something moves.
#[derive(Debug, Default)]
pub(super) struct Mask {
    pub(super) cells: Vec<u8>,
    pub(super) width: usize,
    height: usize,
    scratch: Vec<u8>,
}

impl Mask {
    fn reset(&mut self, (width, height): (usize, usize)) {
        (self.width, self.height) = (width, height);
        self.cells.clear();
        self.cells.resize(width * height, 0);
    }

    fn mark(&mut self, image: &Eighth, background: &Eighth, (across, down): (usize, usize)) {
        let rows = image.pixels.chunks(image.width).zip(background.pixels.chunks(image.width));
        for (y, (image, background)) in rows.enumerate() {
            let row = &mut self.cells[y / down * self.width..][..self.width];
            for ((cell, image), background) in
                row.iter_mut().zip(image.chunks(across)).zip(background.chunks(across))
            {
                let moves = image.iter().zip(background).any(|(a, b)| a.abs_diff(*b) > MOVES_ABOVE);
                *cell |= u8::from(moves);
            }
        }
    }

    /// Lets every marked cell mark its eight neighbours.
    fn dilate(&mut self) {
        self.combine(1, |a, b| a | b);
    }

    /// Leaves only the marked cells that have an unmarked neighbour or lie at the border.
    pub(super) fn outline(&mut self) {
        let (width, height) = (self.width, self.height);
        let Self { cells, scratch, .. } = self;
        scratch.clone_from(cells);
        for y in 0..height {
            for x in 0..width {
                let inner = x > 0 && y > 0 && x + 1 < width && y + 1 < height && {
                    let at = y * width + x;
                    scratch[at - 1] & scratch[at + 1] & scratch[at - width] & scratch[at + width]
                        == 1
                };
                if inner {
                    cells[y * width + x] = 0;
                }
            }
        }
    }

    fn combine(&mut self, reach: usize, join: impl Fn(u8, u8) -> u8) {
        let (width, height) = (self.width, self.height);
        let Self { cells, scratch, .. } = self;
        scratch.clone_from(cells);
        for (from, to) in cells.chunks(width).zip(scratch.chunks_mut(width)) {
            for x in 0..width {
                let around = &from[x.saturating_sub(reach)..(x + reach + 1).min(width)];
                to[x] = around.iter().copied().fold(from[x], &join);
            }
        }
        for y in 0..height {
            for x in 0..width {
                let rows = y.saturating_sub(reach)..(y + reach + 1).min(height);
                cells[y * width + x] =
                    rows.map(|row| scratch[row * width + x]).fold(scratch[y * width + x], &join);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eighth(width: usize, height: usize, level: u8) -> Eighth {
        let pixels = vec![level; width * height];
        Eighth { pixels, width, height, orientation: Orientation::UPRIGHT }
    }

    #[test]
    fn only_a_frame_said_to_be_sent_becomes_the_reference() {
        let mut state = TransferState::new();
        let (dark, light) = (eighth(4, 4, 10), eighth(4, 4, 200));
        assert_eq!(state.changed(&dark, 0), None);
        state.encoded(Some(&dark));
        assert_eq!(state.changed(&dark, 0), None, "encoded is not sent");
        state.sent();
        assert_eq!(state.changed(&dark, 0), Some(0.0));
        state.encoded(Some(&light));
        assert_eq!(state.changed(&light, 0), Some(1.0));
        state.encoded(Some(&dark));
        state.sent();
        state.sent();
        assert_eq!(state.changed(&light, 0), Some(1.0), "the light frame was never sent");
        state.encoded(None);
        state.sent();
        assert_eq!(state.changed(&dark, 0), None, "nothing is known of an unseen frame");
    }

    #[test]
    fn blocks_that_differ_from_the_background_move_and_their_neighbours_too() {
        let (mut state, mut mask) = (TransferState::new(), Mask::default());
        let mut image = eighth(12, 8, 100);
        state.moving(&image, (2, 2), (6, 4), &mut mask);
        assert!(mask.cells.iter().all(|&c| c == 1), "without a background everything moves");
        image.pixels[0] = 200;
        state.moving(&image, (2, 2), (6, 4), &mut mask);
        let moving: Vec<usize> = (0..24).filter(|&i| mask.cells[i] == 1).collect();
        assert_eq!(moving, [0, 1, 6, 7]);
    }

    #[test]
    fn the_background_follows_a_level_a_frame_and_once_a_frame() {
        let (mut state, mut mask) = (TransferState::new(), Mask::default());
        state.moving(&eighth(2, 2, 100), (1, 1), (2, 2), &mut mask);
        let brighter = eighth(2, 2, 120);
        for _ in 0..5 {
            state.moving(&brighter, (1, 1), (2, 2), &mut mask);
        }
        assert_eq!(state.background.pixels, [101; 4]);
    }

    #[test]
    fn an_outline_is_hollow() {
        let mut mask = Mask::default();
        mask.reset((5, 5));
        for y in 1..4 {
            mask.cells[y * 5 + 1..y * 5 + 4].fill(1);
        }
        mask.outline();
        assert_eq!(mask.cells[12], 0);
        assert_eq!(mask.cells.iter().map(|&c| u32::from(c)).sum::<u32>(), 8);
    }
}
