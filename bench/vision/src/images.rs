//! Images that are made up: a portrait of 180 x 240, and pictures of so many bytes.

use anyhow::{Context as _, ensure};
use flate2::{Compression, Crc, write::ZlibEncoder};
use std::io::Write as _;
use tidegate_jpeg::{Codec, Packed};

/// Sides of the paper's picture.
pub const PORTRAIT: (u16, u16) = (180, 240);

/// A face in front of a wall, drawn so that Haar's cascade finds it, with the noise of a sensor.
#[must_use]
pub fn portrait(seed: u64) -> Packed {
    let (width, height) = PORTRAIT;
    draw(width, height, 3.0, seed, |x, y| {
        let (u, v) = ((x - 90.0) / 52.0, (y - 118.0) / 70.0);
        let disc = |cx: f64, cy: f64, rx: f64, ry: f64| {
            let (a, b) = ((x - cx) / rx, (y - cy) / ry);
            // Edges of a few pixels: a lens has no others.
            (1.0 - (a * a + b * b)).clamp(-0.3, 0.3) / 0.6 + 0.5
        };
        let mut light = 120.0 + 20.0 * (x / 60.0).sin();
        let head = disc(90.0, 118.0, 52.0, 70.0);
        let skin = 190.0 - 25.0 * (u * u + v * v);
        light += (skin - light) * head;
        light += (60.0 - light) * disc(90.0, 52.0, 54.0, 24.0); // hair
        for side in [-1.0, 1.0] {
            let eye = 90.0 + side * 22.0;
            light += (95.0 - light) * 0.7 * disc(eye, 103.0, 17.0, 11.0); // its hollow
            light += (70.0 - light) * disc(eye, 92.0, 15.0, 3.5); // brow
            light += (40.0 - light) * disc(eye, 104.0, 7.5, 5.5);
        }
        light += (215.0 - light) * 0.6 * disc(90.0, 120.0, 6.0, 20.0); // ridge of the nose
        light += (110.0 - light) * disc(90.0, 141.0, 11.0, 4.0);
        light += (85.0 - light) * disc(90.0, 161.0, 20.0, 5.5); // mouth
        [light * 0.8, light * 0.9, light] // blue, green, red
    })
}

/// Noise on a gradient, `width` x `height`; more `noise` takes more bytes.
#[must_use]
pub fn noise(width: u16, height: u16, noise: f64, seed: u64) -> Packed {
    draw(width, height, noise, seed, |x, y| {
        let base = 90.0 + 60.0 * ((x + 2.0 * y) / 160.0).sin();
        [base, base + 20.0, base + 10.0]
    })
}

fn draw(
    width: u16,
    height: u16,
    noise: f64,
    seed: u64,
    colour: impl Fn(f64, f64) -> [f64; 3],
) -> Packed {
    let mut picture = Packed::default();
    picture.reset(width, height);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut chance = move || {
        // xorshift64*; a picture needs no better
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f64 / f64::from(1 << 24) - 0.5
    };
    let samples = picture.data_mut().as_chunks_mut::<3>().0;
    for (at, pixel) in samples.iter_mut().enumerate() {
        let (x, y) = (at % usize::from(width), at / usize::from(width));
        let grain = chance() * 2.0 * noise;
        for (sample, value) in pixel.iter_mut().zip(colour(x as f64, y as f64)) {
            *sample = (value + grain).clamp(0.0, 255.0) as u8;
        }
    }
    picture
}

/// As JPEG.
///
/// # Errors
/// It cannot be encoded.
pub fn jpeg(picture: &Packed, quality: u8) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    Codec::new().encode_bgr(picture, quality, &mut out).context("encoding a picture")?;
    Ok(out)
}

/// As JPEG with a size as near to `bytes` as a quality comes, at most.
///
/// # Errors
/// It cannot be encoded, or no quality comes to within a fifth of that size.
pub fn jpeg_of(picture: &Packed, bytes: usize) -> anyhow::Result<Vec<u8>> {
    let (mut low, mut high) = (1, 101);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if jpeg(picture, middle)?.len() <= bytes { low = middle } else { high = middle }
    }
    let made = jpeg(picture, low)?;
    ensure!(
        made.len() <= bytes && made.len() >= bytes - bytes / 5,
        "a picture of {} x {} comes to {} bytes, not to {bytes}",
        picture.width(),
        picture.height(),
        made.len()
    );
    Ok(made)
}

/// As PNG, eight bits of red, green and blue.
///
/// # Errors
/// There is no memory for it.
pub fn png(picture: &Packed) -> anyhow::Result<Vec<u8>> {
    let (width, height) = (picture.width(), picture.height());
    let mut lines = Vec::new();
    for line in picture.data().chunks_exact(usize::from(width) * 3) {
        lines.push(1); // each sample less that to its left (PNG, 9.2)
        let mut before = [0; 3];
        for pixel in line.as_chunks::<3>().0 {
            for (sample, before) in pixel.iter().rev().zip(&mut before) {
                lines.push(sample.wrapping_sub(*before));
                *before = *sample;
            }
        }
    }
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(&lines)?;
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = Vec::new();
    header.extend_from_slice(&u32::from(width).to_be_bytes());
    header.extend_from_slice(&u32::from(height).to_be_bytes());
    header.extend_from_slice(&[8, 2, 0, 0, 0]);
    for (name, data) in [(b"IHDR", header), (b"IDAT", zlib.finish()?), (b"IEND", Vec::new())] {
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        let mut crc = Crc::new();
        crc.update(name);
        crc.update(&data);
        out.extend_from_slice(name);
        out.extend_from_slice(&data);
        out.extend_from_slice(&crc.sum().to_be_bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_met() {
        for (width, height, grain, bytes) in
            [(180, 240, 20.0, 10_000), (640, 360, 20.0, 50_000), (1280, 720, 60.0, 400_000)]
        {
            let made = jpeg_of(&noise(width, height, grain, 1), bytes).unwrap();
            assert!(made.len() <= bytes && made.len() > bytes * 4 / 5, "{}", made.len());
        }
        assert!(jpeg_of(&noise(16, 16, 0.0, 1), 100_000).is_err());
    }

    #[test]
    fn a_png_is_one_and_pictures_of_two_seeds_differ() {
        let (one, two) = (portrait(1), portrait(2));
        assert_ne!(one.data(), two.data());
        let made = png(&one).unwrap();
        assert!(made.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\xb4\0\0\0\xf0"));
        // The sum of an empty IEND is that of every PNG.
        assert!(made.ends_with(b"\0\0\0\0IEND\xae\x42\x60\x82"));
    }
}
