//! Images brought to the size of a model's input, as OpenCV does it for the Python worker.
//!
//! Each method works on one axis after the other: columns of a row of the source once, then rows. Results are those of OpenCV's `resize`
//! and `warpAffine` to one step of 256.

use crate::{
    description::Fit,
    image::{Pixels, Size},
};

/// The value around a letterboxed image.
const BORDER: f32 = 114.0;
/// OpenCV's `warpAffine` knows places between pixels to a 32nd, computed with 10 bits.
const PLACE_BITS: u32 = 5;
const AFFINE_BITS: u32 = 10;

/// `source` brought to `target`, row-major, with the channels of the source.
pub(crate) fn fitted(source: &Pixels, target: Size, fit: Fit) -> Vec<u8> {
    match fit {
        Fit::Stretch => stretched(source, target),
        Fit::Letterbox => letterboxed(source, target),
    }
}

/// By how much an image is scaled to lie in the middle of the target, and where it begins, across and down.
pub(crate) fn letterbox(source: Size, target: Size) -> (f64, f64, f64) {
    let [from_width, from_height] = [source.width, source.height].map(|side| side as f64);
    let [to_width, to_height] = [target.width, target.height].map(|side| side as f64);
    let scale = (to_width / from_width).min(to_height / from_height);
    (scale, (to_width - from_width * scale) / 2.0, (to_height - from_height * scale) / 2.0)
}

/// Two neighbours of the source that make one value, the second of which counts as much as `weight` says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tap {
    first: Option<usize>,
    second: Option<usize>,
    weight: f32,
}

fn stretched(source: &Pixels, target: Size) -> Vec<u8> {
    let taps = |from: usize, to: usize| -> Vec<Tap> {
        let step = from as f64 / to as f64;
        let tap = |at: usize| {
            let place = ((at as f64 + 0.5) * step - 0.5).clamp(0.0, (from - 1) as f64);
            let first = place as usize;
            let second = (first + 1).min(from - 1);
            Tap { first: Some(first), second: Some(second), weight: (place - first as f64) as f32 }
        };
        (0..to).map(tap).collect()
    };
    let columns = taps(source.size.width, target.width);
    linear(source, &columns, &taps(source.size.height, target.height))
}

fn letterboxed(source: &Pixels, target: Size) -> Vec<u8> {
    let (scale, left, top) = letterbox(source.size, target);
    // Shrunk by averaging first where it is much larger, for a warp looks at four pixels alone.
    if scale < 0.5 {
        let side = |pixels: usize| ((pixels as f64 * scale).round_ties_even() as usize).max(1);
        let size = Size { width: side(source.size.width), height: side(source.size.height) };
        let shrunk = averaged(source, size);
        return warped(&shrunk, target, 1.0, left, top);
    }
    warped(source, target, scale, left + scale / 2.0 - 0.5, top + scale / 2.0 - 0.5)
}

/// The source scaled and moved, with [`BORDER`] around it.
fn warped(source: &Pixels, target: Size, scale: f64, left: f64, top: f64) -> Vec<u8> {
    // From places of the target to places of the source.
    let inverse = scale * (1.0 / (scale * scale));
    let taps = |from: usize, to: usize, begin: f64| -> Vec<Tap> {
        let unit = f64::from(1_u32 << AFFINE_BITS);
        let fixed = |value: f64| (value * unit).round_ties_even() as i64;
        let half = 1_i64 << (AFFINE_BITS - PLACE_BITS - 1);
        let start = fixed(-inverse * begin) + half;
        let inside = |at: i64| usize::try_from(at).ok().filter(|at| *at < from);
        let tap = |at: usize| {
            let place = (start + fixed(inverse * at as f64)) >> (AFFINE_BITS - PLACE_BITS);
            let first = place >> PLACE_BITS;
            let parts = place & ((1 << PLACE_BITS) - 1);
            let weight = parts as f32 / (1_u32 << PLACE_BITS) as f32;
            Tap { first: inside(first), second: inside(first + 1), weight }
        };
        (0..to).map(tap).collect()
    };
    let columns = taps(source.size.width, target.width, left);
    linear(source, &columns, &taps(source.size.height, target.height, top))
}

/// Columns, then rows. A neighbour that is `None` is the border.
fn linear(source: &Pixels, columns: &[Tap], rows: &[Tap]) -> Vec<u8> {
    let channels = source.channels;
    let border = vec![BORDER; columns.len() * channels];
    // The lines of two rows of the source; the next row of the target mostly needs one of them again.
    let mut lines = [(None, border.clone()), (None, border.clone())];
    let mut out = Vec::with_capacity(rows.len() * border.len());
    for tap in rows {
        if lines[1].0 == tap.first && lines[0].0 != tap.first {
            lines.swap(0, 1);
        }
        for (line, wanted) in lines.iter_mut().zip([tap.first, tap.second]) {
            if let Some(row) = wanted.filter(|_| line.0 != wanted) {
                interpolate(source, row, columns, &mut line.1);
                line.0 = wanted;
            }
        }
        let line = |at: usize, wanted: Option<usize>| wanted.map_or(&border, |_| &lines[at].1);
        let (first, second) = (line(0, tap.first), line(1, tap.second));
        let between = |(a, b): (&f32, &f32)| (a + (b - a) * tap.weight).round_ties_even() as u8;
        out.extend(first.iter().zip(second).map(between));
    }
    out
}

fn interpolate(source: &Pixels, row: usize, columns: &[Tap], line: &mut [f32]) {
    let channels = source.channels;
    let width = source.size.width * channels;
    let values = &source.data[row * width..][..width];
    for (tap, out) in columns.iter().zip(line.chunks_exact_mut(channels)) {
        for (channel, out) in out.iter_mut().enumerate() {
            let value = |at: Option<usize>| {
                at.map_or(BORDER, |at| f32::from(values[at * channels + channel]))
            };
            let (first, second) = (value(tap.first), value(tap.second));
            *out = first + (second - first) * tap.weight;
        }
    }
}

/// A piece of the source and how much it counts.
struct Share {
    at: usize,
    weight: f32,
}

/// Every pixel the mean of the area that it covers; `size` has no side that is larger than the source's.
fn averaged(source: &Pixels, size: Size) -> Pixels {
    let columns = shares(source.size.width, size.width);
    let rows = shares(source.size.height, size.height);
    let (channels, width) = (source.channels, source.size.width * source.channels);
    let mut sums = vec![0.0_f32; size.width * channels];
    let mut data = Vec::with_capacity(size.height * sums.len());
    for row in &rows {
        sums.fill(0.0);
        for part in row {
            let values = &source.data[part.at * width..][..width];
            for (column, sum) in columns.iter().zip(sums.chunks_exact_mut(channels)) {
                for share in column {
                    let weight = share.weight * part.weight;
                    let pixel = &values[share.at * channels..][..channels];
                    for (sum, value) in sum.iter_mut().zip(pixel) {
                        *sum += f32::from(*value) * weight;
                    }
                }
            }
        }
        data.extend(sums.iter().map(|sum| sum.round_ties_even() as u8));
    }
    Pixels { size, channels, data }
}

/// The pieces of each of `to` places on an axis of `from`.
fn shares(from: usize, to: usize) -> Vec<Vec<Share>> {
    let step = from as f64 / to as f64;
    let shares = |at: usize| {
        let (begin, end) = (at as f64 * step, (at + 1) as f64 * step);
        let whole = step.min(from as f64 - begin);
        let pieces = begin as usize..(end.ceil() as usize).min(from);
        let share = |at: usize| {
            let covered = end.min((at + 1) as f64) - begin.max(at as f64);
            // Less is the error of the multiplications above.
            (covered > 1e-3).then(|| Share { at, weight: (covered / whole) as f32 })
        };
        pieces.filter_map(share).collect()
    };
    (0..to).map(shares).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(width: usize, height: usize, data: &[u8]) -> Pixels {
        Pixels { size: Size { width, height }, channels: 1, data: data.to_vec() }
    }

    #[test]
    fn an_image_of_the_inputs_size_stays_as_it_is() {
        let image = pixels(3, 2, &[1, 2, 3, 250, 128, 7]);
        for fit in [Fit::Stretch, Fit::Letterbox] {
            assert_eq!(fitted(&image, image.size, fit), image.data, "{fit:?}");
        }
    }

    #[test]
    fn a_wide_image_lies_in_the_middle_of_its_letterbox() {
        let image = pixels(4, 2, &[10; 8]);
        let found = fitted(&image, Size { width: 4, height: 4 }, Fit::Letterbox);
        let (around, inside) = ([114; 4], [10; 4]);
        assert_eq!(found, [around, inside, inside, around].concat());
        let shrunk =
            fitted(&pixels(40, 20, &[10; 800]), Size { width: 4, height: 4 }, Fit::Letterbox);
        assert_eq!(shrunk, found);
    }

    #[test]
    fn stretching_keeps_the_edges() {
        let found = fitted(&pixels(2, 1, &[0, 100]), Size { width: 4, height: 1 }, Fit::Stretch);
        assert_eq!(found, [0, 25, 75, 100]);
    }

    #[test]
    fn shares_of_a_place_make_one() {
        for (from, to) in [(7, 3), (640, 213), (60_000, 1), (5, 5), (1000, 333)] {
            for shares in shares(from, to) {
                let sum: f32 = shares.iter().map(|share| share.weight).sum();
                assert!((sum - 1.0).abs() < 1e-2, "{from} to {to}: {sum}");
            }
        }
        assert_eq!(
            averaged(&pixels(4, 1, &[0, 10, 20, 30]), Size { width: 2, height: 1 }).data,
            [5, 25]
        );
    }
}
