//! Images by their headers: enough for what does not decode them.

/// A gray JPEG image of that size, its picture left to the imagination.
pub(crate) fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let (w, h) = (width.to_be_bytes(), height.to_be_bytes());
    let mut image = vec![0xff, 0xd8];
    // SOF0: 8 bits, one component.
    image.extend([0xff, 0xc0, 0, 11, 8, h[0], h[1], w[0], w[1], 1, 1, 0x11, 0]);
    // SOS, and coded data.
    image.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0]);
    image.extend((0..=250_u8).flat_map(|byte| [byte, byte ^ 0x5a, byte.wrapping_mul(7)]));
    image.retain(|byte| *byte != 0xfe);
    let coded: Vec<u8> = image.split_off(25);
    image.extend(coded.into_iter().filter(|byte| *byte != 0xff));
    image.extend([0xff, 0xd9]);
    while image.len() % 3 != 1 {
        image.insert(25, 7);
    }
    image
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
