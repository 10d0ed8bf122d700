//! Images that are made here.

use turbojpeg::{Image, PixelFormat, Subsamp};

/// A pattern of `channels` channels without sharp edges, so that a shift by a pixel shows and the rounding of a decoder does not.
pub(crate) fn pattern(width: usize, height: usize, channels: usize) -> Vec<u8> {
    let value = |at: usize| {
        let (pixel, channel) = (at / channels, at % channels);
        let (x, y) = ((pixel % width) as f64, (pixel / width) as f64);
        let wave = (x / 9.0 + channel as f64).sin() * (y / 7.0 - channel as f64).cos();
        (128.0 + 100.0 * wave) as u8
    };
    (0..width * height * channels).map(value).collect()
}

/// One colour: blue, green, red.
pub(crate) fn plain(width: usize, height: usize, bgr: [u8; 3]) -> Vec<u8> {
    bgr.repeat(width * height)
}

pub(crate) fn jpeg(width: usize, height: usize, bgr: &[u8], sampling: Subsamp) -> Vec<u8> {
    let format = if sampling == Subsamp::Gray { PixelFormat::GRAY } else { PixelFormat::BGR };
    let pitch = width * format.size();
    let image = Image { pixels: bgr, width, pitch, height, format };
    turbojpeg::compress(image, 95, sampling).expect("an image").to_vec()
}

/// With the orientation of EXIF.
pub(crate) fn turned(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let entry = [1, 18, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0];
    let exif = [b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01", &entry[..], &[0; 4]].concat();
    let length = u16::try_from(exif.len() + 2).expect("it is short").to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, &exif, &jpeg[2..]].concat()
}

pub(crate) fn png(
    width: usize,
    height: usize,
    colour: png::ColorType,
    depth: png::BitDepth,
    data: &[u8],
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    if colour == png::ColorType::Indexed {
        encoder.set_palette(pattern(16, 1, 3));
    }
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(data).expect("an image");
    writer.finish().expect("an end");
    out
}
