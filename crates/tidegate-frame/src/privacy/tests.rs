use tidegate_jpeg::{Orientation, Planes, Quality, Sampling};

use super::*;

/// A colourful, detailed picture, with a pattern that `seed` shifts.
fn picture(width: u16, height: u16, sampling: Sampling, seed: usize) -> Vec<u8> {
    let one = SAMPLINGS[0];
    let mut planes = Planes::default();
    planes.reset(width, height, 3, [sampling, one, one]);
    for component in 0..3 {
        let (_, _, stride, data) = planes.plane_mut(component);
        for (at, pixel) in data.iter_mut().enumerate() {
            let (x, y) = (at % stride, at / stride);
            *pixel = ((x * 7 + y * 13 + (x * y + seed * 31) % 97 * 2 + component * 40) % 256) as u8;
        }
    }
    let mut out = Vec::new();
    Codec::new().encode_planes(&mut planes, Quality::Scaled(90), &mut out).unwrap();
    out
}

fn decode(jpeg: &[u8]) -> (Header, Planes) {
    let header = Header::read(jpeg, &FrameLimits::default().of_jpeg()).unwrap();
    let mut planes = Planes::default();
    let _ = Codec::new().decode_planes(jpeg, &header, 8, false, &mut planes, None).unwrap();
    (header, planes)
}

fn masked(jpeg: &[u8], masks: &[Mask]) -> Vec<u8> {
    let mut out = Vec::new();
    Masker::default().apply(jpeg, masks, &mut out).unwrap();
    out
}

fn mask(region: &str, cover: Cover) -> Mask {
    Mask { region: region.parse().unwrap(), cover }
}

const SAMPLINGS: [Sampling; 3] = [
    Sampling { horizontal: 1, vertical: 1 },
    Sampling { horizontal: 2, vertical: 1 },
    Sampling { horizontal: 2, vertical: 2 },
];

#[test]
fn two_pictures_that_differ_only_under_a_filled_mask_become_the_same_there() {
    for sampling in SAMPLINGS {
        let masks = [mask("0.3,0.2,0.71,0.66", Cover::Fill)];
        let outputs = [0, 5].map(|seed| masked(&picture(203, 117, sampling, seed), &masks));
        let [(header, one), (_, two)] = [decode(&outputs[0]), decode(&outputs[1])];
        let (left, right) =
            ((0.3 * f32::from(header.width)) as usize, (0.71 * f32::from(header.width)) as usize);
        let (top, bottom) =
            ((0.2 * f32::from(header.height)) as usize, (0.66 * f32::from(header.height)) as usize);
        let pixel = |planes: &Planes, x: usize, y: usize| {
            let (_, _, stride, data) = planes.plane(0);
            data[y * stride + x]
        };
        for y in top..bottom {
            for x in left..right {
                assert_eq!(pixel(&one, x, y), FILL_GRAY, "{sampling:?} {x} {y}");
            }
        }
        // Elsewhere the pictures are still two.
        let differ = (0..top.saturating_sub(16)).flat_map(|y| (0..200).map(move |x| (x, y)));
        assert!(differ.clone().any(|(x, y)| pixel(&one, x, y) != pixel(&two, x, y)));
    }
}

#[test]
fn outside_of_its_masks_a_frame_keeps_every_coefficient() {
    for sampling in SAMPLINGS {
        let jpeg = picture(160, 96, sampling, 1);
        let (header, before) = decode(&jpeg);
        let (_, after) = decode(&masked(&jpeg, &[mask("0.5,0.5,0.6,0.6", Cover::Blur)]));
        let unit = (8 * header.unit().0, 8 * header.unit().1);
        let inside = |x: usize, y: usize| {
            (80 / unit.0 * unit.0..96_usize.next_multiple_of(unit.0)).contains(&x)
                && (48 / unit.1 * unit.1..58_usize.next_multiple_of(unit.1)).contains(&y)
        };
        let ((_, _, stride, old), (_, _, _, new)) = (before.plane(0), after.plane(0));
        for y in 0..96 {
            for x in 0..160 {
                let same = old[y * stride + x] == new[y * stride + x];
                assert!(same || inside(x, y), "{sampling:?} {x} {y}");
            }
        }
    }
}

#[test]
fn a_blurred_region_has_at_most_36_grays_and_no_colour() {
    let jpeg = picture(640, 480, SAMPLINGS[2], 3);
    let (_, planes) = decode(&masked(&jpeg, &[mask("0,0,1,1", Cover::Blur)]));
    let (_, _, stride, luma) = planes.plane(0);
    let grays: std::collections::HashSet<u8> =
        (0..480).flat_map(|y| luma[y * stride..][..640].iter().copied()).collect();
    assert!((2..=BLUR_CELLS * BLUR_CELLS).contains(&grays.len()), "{}", grays.len());
    for component in 1..3 {
        let (width, height, stride, chroma) = planes.plane(component);
        let mut rows = chroma.chunks(stride).take(height);
        assert!(rows.all(|row| row[..width].iter().all(|value| *value == 128)));
    }
}

#[test]
fn a_mask_covers_whole_what_it_touches_by_a_pixel_and_reaches_every_edge() {
    let jpeg = picture(65, 33, SAMPLINGS[2], 2);
    let header = Header::read(&jpeg, &FrameLimits::default().of_jpeg()).unwrap();
    let eighth = vec![9; header.eighth().0 * header.eighth().1];
    let covered = |region: &str| {
        let mut grays = Vec::new();
        plan(&header, &eighth, &[mask(region, Cover::Blur)], &mut grays);
        assert!(grays.iter().all(|gray| [0, 9].contains(gray)));
        grays.iter().map(|gray| u8::from(*gray > 0)).collect::<Vec<u8>>()
    };
    // 65 x 33 pixels are 5 x 3 units of 16 x 16; the last ones have one pixel.
    assert_eq!(covered("0,0,1,1"), [1; 15]);
    assert_eq!(covered("0,0,0.001,0.001"), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(covered("0.99,0.98,1,1"), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(covered("0.24,0,0.25,0.1"), [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn filled_wins_over_blurred_in_any_order() {
    let jpeg = picture(64, 64, SAMPLINGS[0], 4);
    let both = [mask("0,0,1,1", Cover::Blur), mask("0,0,1,1", Cover::Fill)];
    let reversed = [both[1], both[0]];
    assert_eq!(masked(&jpeg, &both), masked(&jpeg, &reversed));
    assert_eq!(masked(&jpeg, &both), masked(&jpeg, &both[1..]));
}

#[test]
fn invalid_regions_are_refused_with_the_way_out() {
    for text in
        ["", "0,0,1", "0,0,1,1,1", "0.5,0,0.5,1", "0,0,1.1,1", "-0.1,0,1,1", "NaN,0,1,1", "a,b,c,d"]
    {
        let error = text.parse::<Region>().unwrap_err().to_string();
        assert!(error.contains("LEFT,TOP,RIGHT,BOTTOM"), "{text}: {error}");
    }
    let region: Region = " 0.25, 0 ,0.5,0.4".parse().unwrap();
    assert_eq!(region.to_string(), "0.25,0,0.5,0.4");
    assert_eq!(region.grown(1.0).to_string(), "0,0,0.75,0.8");
}

#[test]
fn a_frame_that_cannot_be_read_whole_is_refused_and_nothing_comes_out() {
    let jpeg = picture(64, 64, SAMPLINGS[0], 4);
    let mut out = vec![1];
    let masks = [mask("0,0,1,1", Cover::Fill)];
    for bytes in [&b"no jpeg"[..], &jpeg[..jpeg.len() / 2]] {
        assert!(Masker::default().apply(bytes, &masks, &mut out).is_err());
        assert!(out.is_empty());
    }
}

#[test]
fn a_frame_with_steps_of_zero_is_covered_like_any_other() {
    for sampling in SAMPLINGS {
        let jpeg = picture(203, 117, sampling, 1);
        let tables: Vec<usize> =
            (0..jpeg.len()).filter(|&at| jpeg[at..].starts_with(&[0xff, 0xdb])).collect();
        assert_eq!(tables.len(), 2);
        for table in tables {
            for steps in [0..1, 1..64, 0..64] {
                let mut jpeg = jpeg.clone();
                jpeg[table + 5..][steps].fill(0);
                for cover in [Cover::Fill, Cover::Blur] {
                    let (_, planes) = decode(&masked(&jpeg, &[mask("0,0,0.5,1", cover)]));
                    let (_, _, stride, luma) = planes.plane(0);
                    if cover == Cover::Fill {
                        assert!(
                            luma.chunks(stride)
                                .all(|row| row[..96].iter().all(|&p| p == FILL_GRAY))
                        );
                    }
                }
            }
        }
    }
}

/// The frame with an EXIF orientation.
fn turned(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let exif =
        b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x01\0\0\0\0\0\0";
    let mut exif = exif.to_vec();
    exif[29] = orientation;
    [&jpeg[..2], &exif, &jpeg[2..]].concat()
}

#[test]
fn regions_are_of_the_picture_as_it_is_seen() {
    // In tenths of the seen picture.
    let region = [1, 6, 4, 9];
    let masks = [mask("0.1,0.6,0.4,0.9", Cover::Fill)];
    for value in 1..=8 {
        let jpeg = turned(&picture(640, 320, SAMPLINGS[2], 3), value);
        let out = masked(&jpeg, &masks);
        let (header, after) = decode(&out);
        assert_eq!(header.orientation, Orientation::new(value.into()).unwrap(), "it stays turned");
        let (_, before) = decode(&jpeg);
        let ((_, _, stride, old), (.., new)) = (before.plane(0), after.plane(0));
        let (width, height) = header.orientation.seen(640, 320);
        // A viewer puts pixel (x, y) of the file there (EXIF 2.32, tag 274).
        let seen = |x: usize, y: usize| match value {
            1 => (x, y),
            2 => (639 - x, y),
            3 => (639 - x, 319 - y),
            4 => (x, 319 - y),
            5 => (y, x),
            6 => (319 - y, x),
            7 => (319 - y, 639 - x),
            _ => (y, 639 - x),
        };
        let edge = |tenths: u16, pixels: u16| usize::from(tenths) * usize::from(pixels) / 10;
        let [left, right] = [region[0], region[2]].map(|tenths| edge(tenths, width));
        let [top, bottom] = [region[1], region[3]].map(|tenths| edge(tenths, height));
        for y in 0..320 {
            for x in 0..640 {
                let (at_x, at_y) = seen(x, y);
                let (old, new) = (old[y * stride + x], new[y * stride + x]);
                if (left..right).contains(&at_x) && (top..bottom).contains(&at_y) {
                    assert_eq!(new, FILL_GRAY, "{value}: {at_x}, {at_y} is in the region");
                }
                // The overhang of a unit that the region touches.
                let near = (left - 16..right + 16).contains(&at_x)
                    && (top - 16..bottom + 16).contains(&at_y);
                assert!(near || old == new, "{value}: {at_x}, {at_y} is not in the region");
            }
        }
    }
}
