//! Images that are made here.

use tidegate_jpeg::{Codec, Packed};
use turbojpeg::{Transform, Transformer};

/// A JPEG image of that size: of one colour that changes slowly, and of a length whose base64 has padding. Of one that is too large for any
/// decoder only the header says so.
pub(crate) fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let is_drawn = u32::from(width) * u32::from(height) <= 1 << 20;
    let mut pixels = Packed::default();
    let (w, h) = if is_drawn { (width, height) } else { (8, 8) };
    pixels.reset(w, h);
    for (at, value) in pixels.data_mut().iter_mut().enumerate() {
        let (x, y) = ((at / 3) % usize::from(w), at / 3 / usize::from(w));
        *value = (60 + x / 3 + y / 2) as u8;
    }
    let mut image = Vec::new();
    Codec::new().encode_bgr(&pixels, 60, &mut image).unwrap();
    if !is_drawn {
        let frame = image.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
        image[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
        image[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    }
    // A comment, behind the start.
    let comment = [&[0xff, 0xfe, 0, 8][..], b"\xfb\xff\xbe\xfb\xff\xbe"].concat();
    let padding = (7 - (image.len() + comment.len()) % 3) % 3;
    image.splice(2..2, comment.into_iter().chain(std::iter::repeat_n(b'x', padding)));
    image[5] += padding as u8;
    image
}

/// The same picture in several scans.
pub(crate) fn progressive(width: u16, height: u16) -> Vec<u8> {
    let mut transform = Transform::default();
    transform.progressive = true;
    Transformer::new().unwrap().transform_to_vec(&transform, &jpeg(width, height)).unwrap()
}

/// A PNG image of that size, without its picture.
pub(crate) fn png(width: u32, height: u32) -> Vec<u8> {
    let mut image = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    image.extend(width.to_be_bytes());
    image.extend(height.to_be_bytes());
    image.extend([8, 0, 0, 0, 0, 1, 2, 3, 4]);
    image.extend(b"\0\0\0\0IEND\xaeB`\x82");
    image
}
