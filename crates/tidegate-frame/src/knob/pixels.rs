//! The pixel work of profile `mez`: bilinear resize, box blur and colour conversion on interleaved bytes.
//!
//! `C` is the number of interleaved channels: 1 for a plane, 3 for packed B, G, R. Strides are in bytes.

use std::sync::OnceLock;

/// A picture to read: `height` rows of `width * C` samples, `stride` bytes apart.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) data: &'a [u8],
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) stride: usize,
}

/// Buffers that the kernels reuse.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    taps: Vec<(u32, u32)>,
    row: Vec<u16>,
}

/// Scales `from` to `width` x `height` with pixel centres aligned, each result between its four neighbours.
pub(super) fn resize<const C: usize>(
    from: View<'_>,
    to: &mut [u8],
    (width, height, stride): (usize, usize, usize),
    scratch: &mut Scratch,
) {
    // Weights have 7 bits, so that a weighted row fits u16 and a weighted pair of those u32.
    let tap = |at: usize, own: usize, other: usize| {
        let place =
            ((at as f32 + 0.5) * other as f32 / own as f32 - 0.5).clamp(0.0, (other - 1) as f32);
        let first = (place as usize).min(other.saturating_sub(2));
        (first, ((place - first as f32) * 128.0).round() as u32)
    };
    scratch.taps.clear();
    scratch.taps.extend((0..width).map(|x| {
        let (first, weight) = tap(x, width, from.width);
        (first as u32, weight)
    }));
    scratch.row.resize(from.width * C, 0);
    let last = from.width - 1;
    for (y, out) in to.chunks_mut(stride).take(height).enumerate() {
        let (first, weight) = tap(y, height, from.height);
        let upper = &from.data[first * from.stride..][..from.width * C];
        let lower = &from.data[(first + 1).min(from.height - 1) * from.stride..][..from.width * C];
        let (w0, w1) = (128 - weight as u16, weight as u16);
        for ((r, &a), &b) in scratch.row.iter_mut().zip(upper).zip(lower) {
            *r = u16::from(a) * w0 + u16::from(b) * w1;
        }
        for (out, &(first, weight)) in out.chunks_exact_mut(C).zip(&scratch.taps) {
            let first = first as usize;
            let (a, b) = (&scratch.row[first * C..], &scratch.row[(first + 1).min(last) * C..]);
            for c in 0..C {
                let sum = u32::from(a[c]) * (128 - weight) + u32::from(b[c]) * weight;
                out[c] = ((sum + (1 << 13)) >> 14) as u8;
            }
        }
    }
}

/// Replaces every sample by the mean of the `across` x `down` samples around it; the picture is mirrored at its
/// edges without repeating the edge itself. Sides are 1 to 15.
pub(super) fn box_blur<const C: usize>(
    from: View<'_>,
    to: &mut [u8],
    stride: usize,
    (across, down): (usize, usize),
    scratch: &mut Scratch,
) {
    let (before, after) = (across / 2, across - 1 - across / 2);
    let (above, below) = (down / 2, down - 1 - down / 2);
    let row = |y: isize| &from.data[mirror(y, from.height) * from.stride..][..from.width * C];
    let reciprocal = ((1 << 16) + (across * down) as u32 / 2) / (across * down) as u32;
    // Sums of columns, with the mirrored columns on both sides so that the running sum needs no branches.
    let padded = (before + from.width + after) * C;
    scratch.row.clear();
    scratch.row.resize(padded, 0);
    let columns = &mut scratch.row[..];
    for y in -(above as isize)..=below as isize {
        let inner = &mut columns[before * C..][..from.width * C];
        inner.iter_mut().zip(row(y)).for_each(|(c, &s)| *c += u16::from(s));
    }
    for (y, out) in to.chunks_mut(stride).take(from.height).enumerate() {
        for x in 0..before + after {
            // Left of the picture, then right of it.
            let at = if x < before { x } else { from.width + x };
            let source = before + mirror(at as isize - before as isize, from.width);
            columns.copy_within(source * C..(source + 1) * C, at * C);
        }
        let mut sum = [0u32; C];
        for x in 0..across {
            (0..C).for_each(|c| sum[c] += u32::from(columns[x * C + c]));
        }
        let mut edges = columns[across * C..].chunks_exact(C).zip(columns.chunks_exact(C));
        for out in out.chunks_exact_mut(C).take(from.width) {
            for c in 0..C {
                out[c] = ((sum[c] * reciprocal + (1 << 15)) >> 16).min(255) as u8;
            }
            if let Some((enters, leaves)) = edges.next() {
                (0..C).for_each(|c| sum[c] = sum[c] + u32::from(enters[c]) - u32::from(leaves[c]));
            }
        }
        let (enters, leaves) = (row((y + below + 1) as isize), row(y as isize - above as isize));
        let inner = &mut columns[before * C..][..from.width * C];
        for ((c, &a), &b) in inner.iter_mut().zip(enters).zip(leaves) {
            *c = *c + u16::from(a) - u16::from(b);
        }
    }
}

/// The index that `at` is mirrored to: -1 is 1, `length` is `length - 2`.
fn mirror(at: isize, length: usize) -> usize {
    if length == 1 {
        return 0;
    }
    let period = 2 * (length as isize - 1);
    let at = at.rem_euclid(period);
    at.min(period - at) as usize
}

/// Turns B, G, R into hue (0 to 179), saturation and value.
pub(super) fn to_hsv(pixels: &mut [u8]) {
    let reciprocal = |n: i32| if n == 0 { 0.0 } else { 1.0 / n as f32 };
    let reciprocals: [f32; 256] = std::array::from_fn(|n| reciprocal(n as i32));
    for pixel in pixels.chunks_exact_mut(3) {
        let [b, g, r] = [i32::from(pixel[0]), i32::from(pixel[1]), i32::from(pixel[2])];
        let value = b.max(g).max(r);
        let spread = value - b.min(g).min(r);
        let (base, slope) = if value == r {
            (0.0, g - b)
        } else if value == g {
            (60.0, b - r)
        } else {
            (120.0, r - g)
        };
        let hue = base + 30.0 * slope as f32 * reciprocals[spread as usize];
        let hue = if hue < 0.0 { hue + 180.0 } else { hue };
        let saturation = 255.0 * spread as f32 * reciprocals[value as usize];
        // 179.5 and up is the same colour as 0.
        pixel[0] = (hue + 0.5) as u8 % 180;
        pixel[1] = (saturation + 0.5) as u8;
        pixel[2] = value as u8;
    }
}

/// Turns B, G, R into CIE L*a*b*: L scaled to 0 to 255, a and b moved up by 128.
pub(super) fn to_lab(pixels: &mut [u8]) {
    let tables = Tables::shared();
    for pixel in pixels.chunks_exact_mut(3) {
        let [x, y, z] = tables.xyz(pixel);
        let (fx, fy, fz) = (tables.root(x / WHITE_X), tables.root(y), tables.root(z / WHITE_Z));
        pixel[0] = byte(255.0 / 100.0 * lightness(y, fy));
        pixel[1] = byte(500.0 * (fx - fy) + 128.0);
        pixel[2] = byte(200.0 * (fy - fz) + 128.0);
    }
}

/// Turns B, G, R into CIE L*u*v*: L scaled to 0 to 255, u from -134..220 and v from -140..122 likewise.
pub(super) fn to_luv(pixels: &mut [u8]) {
    const WEIGHT: f32 = WHITE_X + 15.0 + 3.0 * WHITE_Z;
    const U_WHITE: f32 = 4.0 * WHITE_X / WEIGHT;
    const V_WHITE: f32 = 9.0 / WEIGHT;
    let tables = Tables::shared();
    for pixel in pixels.chunks_exact_mut(3) {
        let [x, y, z] = tables.xyz(pixel);
        let light = lightness(y, tables.root(y));
        let weight = (x + 15.0 * y + 3.0 * z).max(f32::EPSILON);
        let u = 13.0 * light * (4.0 * x / weight - U_WHITE);
        let v = 13.0 * light * (9.0 * y / weight - V_WHITE);
        pixel[0] = byte(255.0 / 100.0 * light);
        pixel[1] = byte((u + 134.0) * (255.0 / 354.0));
        pixel[2] = byte((v + 140.0) * (255.0 / 262.0));
    }
}

/// CIE 1931 white D65 with Y = 1.
const WHITE_X: f32 = 0.950_456;
const WHITE_Z: f32 = 1.088_754;

fn byte(value: f32) -> u8 {
    (value + 0.5) as u8 // a cast saturates
}

fn lightness(y: f32, root: f32) -> f32 {
    if y > 0.008_856 { 116.0 * root - 16.0 } else { 903.3 * y }
}

/// Values that would cost a power per pixel.
struct Tables {
    linear: [f32; 256],
    root: Vec<f32>,
}

const ROOT_STEPS: f32 = 8192.0;

impl Tables {
    fn shared() -> &'static Self {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        TABLES.get_or_init(|| Self {
            linear: std::array::from_fn(|level| {
                let level = level as f32 / 255.0;
                if level <= 0.04045 { level / 12.92 } else { ((level + 0.055) / 1.055).powf(2.4) }
            }),
            root: (0..=(1.01 * ROOT_STEPS) as usize)
                .map(|step| {
                    let t = step as f32 / ROOT_STEPS;
                    if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 }
                })
                .collect(),
        })
    }

    /// CIE X, Y, Z of sRGB.
    fn xyz(&self, pixel: &[u8]) -> [f32; 3] {
        let [b, g, r] = [0, 1, 2].map(|c| self.linear[usize::from(pixel[c])]);
        [
            0.412_453 * r + 0.357_580 * g + 0.180_423 * b,
            0.212_671 * r + 0.715_160 * g + 0.072_169 * b,
            0.019_334 * r + 0.119_193 * g + 0.950_227 * b,
        ]
    }

    fn root(&self, t: f32) -> f32 {
        let place = t * ROOT_STEPS;
        let step = (place as usize).min(self.root.len() - 2);
        let (low, high) = (self.root[step], self.root[step + 1]);
        low + (high - low) * (place - step as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(data: &[u8], width: usize, height: usize, channels: usize) -> View<'_> {
        View { data, width, height, stride: width * channels }
    }

    #[test]
    fn resize_to_half_averages_pairs_and_to_itself_changes_nothing() {
        let mut scratch = Scratch::default();
        let from = [0, 100, 200, 40, 10, 30, 60, 80];
        let mut half = [0; 2];
        resize::<1>(view(&from, 4, 2, 1), &mut half, (2, 1, 2), &mut scratch);
        assert_eq!(half, [35, 95]);
        let mut same = [0; 8];
        resize::<1>(view(&from, 4, 2, 1), &mut same, (4, 2, 4), &mut scratch);
        assert_eq!(same, from);
    }

    #[test]
    fn resize_takes_any_size() {
        let mut scratch = Scratch::default();
        for (width, height) in [(1, 1), (1, 7), (5, 1), (3, 3)] {
            let from = vec![77; width * height * 3];
            for (w, h) in [(1, 1), (2, 3), (9, 4)] {
                let mut to = vec![0; w * h * 3];
                resize::<3>(view(&from, width, height, 3), &mut to, (w, h, 3 * w), &mut scratch);
                assert!(to.iter().all(|&s| s == 77), "{width}x{height} to {w}x{h}");
            }
        }
    }

    #[test]
    fn box_blur_is_the_mean_of_the_mirrored_neighbourhood() {
        let mut scratch = Scratch::default();
        for (width, height) in [(1, 1), (2, 3), (23, 17), (40, 4)] {
            let data: Vec<u8> = (0..width * height).map(|i| (i * 7919 % 256) as u8).collect();
            for (across, down) in [(1, 1), (5, 5), (8, 8), (3, 5), (15, 15)] {
                let mut to = vec![0; width * height];
                let side = (across, down);
                box_blur::<1>(view(&data, width, height, 1), &mut to, width, side, &mut scratch);
                for y in 0..height {
                    for x in 0..width {
                        let mut sum = 0;
                        for j in 0..down {
                            for i in 0..across {
                                let at = |p, k: usize, side: usize, n| {
                                    mirror(p as isize + k as isize - (side / 2) as isize, n)
                                };
                                sum += u32::from(
                                    data[at(y, j, down, height) * width + at(x, i, across, width)],
                                );
                            }
                        }
                        let mean = f64::from(sum) / (across * down) as f64;
                        let got = f64::from(to[y * width + x]);
                        assert!(
                            (got - mean).abs() < 0.8,
                            "{width}x{height} {across}x{down}: {got}, {mean}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn colours_convert_as_published() {
        // B, G, R to the 8-bit H, S, V; L, a, b; L, u, v of well-known colours.
        for (bgr, hsv, lab, luv) in [
            ([0, 0, 255], [0, 255, 255], [136, 208, 195], [136, 223, 173]),
            ([0, 255, 0], [60, 255, 255], [224, 42, 211], [224, 37, 241]),
            ([255, 0, 0], [120, 255, 255], [82, 207, 20], [82, 90, 9]),
            ([255, 255, 255], [0, 0, 255], [255, 128, 128], [255, 97, 136]),
            ([0, 0, 0], [0, 0, 0], [0, 128, 128], [0, 97, 136]),
            ([128, 128, 128], [0, 0, 128], [137, 128, 128], [137, 97, 136]),
        ] {
            let near = |convert: fn(&mut [u8]), expected: [u8; 3]| {
                let mut pixel = bgr;
                convert(&mut pixel);
                let close = pixel.iter().zip(expected).all(|(a, b)| a.abs_diff(b) <= 1);
                assert!(close, "{bgr:?} became {pixel:?}, not {expected:?}");
            };
            near(to_hsv, hsv);
            near(to_lab, lab);
            near(to_luv, luv);
        }
    }
}
