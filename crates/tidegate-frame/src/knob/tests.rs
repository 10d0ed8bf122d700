//! The transcoder against decoded pixels. Test pictures are made here.

use tidegate_jpeg::{Codec, Header, Limits, Planes, Quality, Sampling};
use tidegate_message::FrameSize;

use super::*;

/// Samples across and down.
type Sides = (u8, u8);

const LUMA_CHROMA: [(&str, Sides, Sides); 6] = [
    ("4:4:4", (1, 1), (1, 1)),
    ("4:2:2", (2, 1), (1, 1)),
    ("4:2:0", (2, 2), (1, 1)),
    ("4:4:0", (1, 2), (1, 1)),
    ("4:1:1", (4, 1), (1, 1)),
    ("gray", (1, 1), (0, 0)),
];

/// A small deterministic generator (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// A textured picture with a bright box at `box_at`, encoded at quality 95.
fn frame(size: (u16, u16), luma: Sides, chroma: Sides, box_at: Option<usize>) -> Vec<u8> {
    let of = |(horizontal, vertical)| Sampling { horizontal, vertical };
    let mut planes = Planes::default();
    let components = if chroma.0 == 0 { 1 } else { 3 };
    planes.reset(size.0, size.1, components, [of(luma), of(chroma), of(chroma)]);
    let mut random = Random(u64::from(size.0) << 16 | u64::from(size.1));
    for i in 0..components {
        let (width, height, stride, data) = planes.plane_mut(i);
        for (y, row) in data.chunks_mut(stride).enumerate() {
            for (x, sample) in row[..width].iter_mut().enumerate() {
                let wave = 35.0 * ((x as f32 / 11.0).sin() + (y as f32 / 8.0 + i as f32).cos());
                *sample = (110.0 + wave + random.below(20) as f32) as u8;
            }
        }
        if let (0, Some(left)) = (i, box_at) {
            for row in data.chunks_mut(stride).take(height * 3 / 4).skip(height / 4) {
                row[left..left + width / 5].fill(230);
            }
        }
    }
    let mut jpeg = Vec::new();
    Codec::new().encode_planes(&mut planes, Quality::Scaled(95), &mut jpeg).unwrap();
    jpeg
}

fn progressive(jpeg: &[u8]) -> Vec<u8> {
    let mut transform = turbojpeg::Transform::default();
    transform.progressive = true;
    turbojpeg::Transformer::new().unwrap().transform_to_vec(&transform, jpeg).unwrap()
}

fn decode(jpeg: &[u8], eighths: u8) -> Planes {
    let header = Header::read(jpeg, &Limits::default()).unwrap();
    let mut planes = Planes::default();
    let _ = Codec::new().decode_planes(jpeg, &header, eighths, false, &mut planes, None).unwrap();
    planes
}

/// Luma PSNR in dB over the columns `columns`, 99 if equal.
fn psnr_of(a: &Planes, b: &Planes, columns: std::ops::Range<usize>) -> f64 {
    let ((_, height, sa, da), (_, hb, sb, db)) = (a.plane(0), b.plane(0));
    assert_eq!((a.width(), height), (b.width(), hb), "pictures of one size");
    let error: f64 = da
        .chunks(sa)
        .zip(db.chunks(sb))
        .flat_map(|(a, b)| a[columns.clone()].iter().zip(&b[columns.clone()]))
        .map(|(&a, &b)| f64::from(a.abs_diff(b)).powi(2))
        .sum();
    let samples = (height * columns.len()) as f64;
    if error == 0.0 { 99.0 } else { 10.0 * (65025.0 * samples / error).log10() }
}

fn psnr(a: &Planes, b: &Planes) -> f64 {
    psnr_of(a, b, 0..usize::from(a.width()))
}

fn setting(text: &str) -> KnobSetting {
    text.parse().unwrap()
}

fn apply(transcoder: &mut Transcoder, jpeg: &[u8], text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let applied = transcoder.apply(jpeg, &setting(text), &mut out).unwrap();
    assert!(matches!(applied, Applied::Encoded { .. }), "{text}: {applied:?}");
    out
}

#[test]
fn every_setting_works_on_every_kind_of_frame() {
    let extra = ["gray", "1/2", "q75 roi3 diff2%", "1/4 gray diff2%", "original diff2%"];
    let mez = [500, 505, 510, 600, 705, 801, 940, 1013, 1180, 1480, 1680, 2100, 2494];
    let mut settings = KnobSetting::ladder();
    settings.extend(extra.map(setting));
    settings.extend(mez.map(|id| KnobSetting::mez(MezKnobs::from_id(id).unwrap())));
    // One transcoder for all, so that sizes and kinds follow each other in the same buffers.
    let mut transcoder = Transcoder::new(FrameLimits::default());
    let mut out = Vec::new();
    for (name, luma, chroma) in LUMA_CHROMA {
        for size in [(1, 1), (97, 61), (767, 431)] {
            let plain = frame(size, luma, chroma, None);
            let mut frames = vec![(format!("{name} {size:?}"), plain.clone())];
            if size.0 == 97 {
                frames.push((format!("{name} {size:?} progressive"), progressive(&plain)));
            }
            for (name, jpeg) in frames {
                for setting in &settings {
                    let context = format!("{name} {setting}");
                    let applied = transcoder
                        .apply(&jpeg, setting, &mut out)
                        .unwrap_or_else(|e| panic!("{context}: {e:?}"));
                    let source = FrameSize { width: size.0, height: size.1 };
                    let size = setting.size_of(source);
                    assert_eq!(applied, Applied::Encoded { size }, "{context}");
                    let info = inspect(&out, &FrameLimits::default()).unwrap();
                    assert_eq!(info.size, size, "{context}");
                    let _ = decode(&out, 8);
                    let gray = match setting.knobs() {
                        Knobs::Jpeg(knobs) => knobs.gray,
                        Knobs::Mez(knobs) => knobs.color == ColorSpace::Gray,
                    };
                    if gray {
                        assert_eq!(info.components, 1, "{context} has chroma");
                    }
                }
            }
        }
    }
}

#[test]
fn pictures_stay_close_and_shrink_with_quality() {
    let jpeg = frame((640, 360), (2, 2), (1, 1), None);
    let mut transcoder = Transcoder::default();
    for (scale, eighths) in [("", 8), ("5/8 ", 5), ("1/2 ", 4), ("3/8 ", 3), ("1/4 ", 2)] {
        let reference = decode(&jpeg, eighths);
        let (mut bytes, mut noise) = (usize::MAX, f64::MAX);
        for (quality, floor) in [(90, 34.5), (75, 32.5), (50, 31.5), (30, 31.0), (10, 29.0)] {
            let text = format!("{scale}q{quality}");
            let out = apply(&mut transcoder, &jpeg, &text);
            let psnr = psnr(&decode(&out, 8), &reference);
            assert!(psnr > floor, "{text}: {psnr:.1} dB");
            assert!(psnr < noise + 0.5, "{text} is closer than a higher quality: {psnr:.1} dB");
            assert!(out.len() < bytes && out.len() < jpeg.len(), "{text}: {} bytes", out.len());
            (bytes, noise) = (out.len(), psnr);
        }
    }
}

#[test]
fn the_ladder_spans_twentyfold_on_a_real_size() {
    let jpeg = frame((1280, 720), (2, 2), (1, 1), None);
    let mut transcoder = Transcoder::default();
    let sizes: Vec<usize> = KnobSetting::ladder()
        .iter()
        .map(|setting| apply(&mut transcoder, &jpeg, &setting.to_string()).len())
        .collect();
    let smallest = sizes.iter().min().unwrap();
    assert!(jpeg.len() >= 20 * smallest, "{} to {smallest} bytes", jpeg.len());
    assert!(sizes.iter().all(|&size| size <= jpeg.len()), "no rung is larger than the original");
}

#[test]
fn a_dead_zone_and_dropped_colour_save_bytes() {
    let jpeg = frame((640, 360), (2, 2), (1, 1), None);
    let mut transcoder = Transcoder::default();
    for quality in [30, 50, 75] {
        let mut last = usize::MAX;
        for knobs in ["", " dz", " gray dz"] {
            let bytes = apply(&mut transcoder, &jpeg, &format!("q{quality}{knobs}")).len();
            assert!(bytes < last, "q{quality}{knobs}: {bytes} bytes after {last}");
            last = bytes;
        }
    }
}

#[test]
fn a_frame_that_would_grow_is_passed_on() {
    let small = apply(&mut Transcoder::default(), &frame((320, 180), (2, 2), (1, 1), None), "q20");
    let coarse = progressive(&small);
    assert_eq!(apply(&mut Transcoder::default(), &coarse, "q90"), coarse);
}

#[test]
fn moving_parts_keep_their_pixels_and_the_rest_becomes_coarse() {
    let size = (640, 360);
    let at = |left| frame(size, (2, 2), (1, 1), Some(left));
    let mut transcoder = Transcoder::default();
    let first = apply(&mut transcoder, &at(64), "roi1");
    assert_eq!(first, at(64), "without a background everything is kept");
    let moved = at(320);
    let whole = apply(&mut Transcoder::default(), &moved, "q75").len();
    for (text, floor) in [("q75 roi1", 33.0), ("q75 roi3", 33.0)] {
        let out = apply(&mut transcoder, &moved, text);
        assert!(out.len() * 10 < whole * 9, "{text}: {} of {whole} bytes", out.len());
        let (before, after) = (decode(&moved, 8), decode(&out, 8));
        let box_psnr = psnr_of(&before, &after, 320..448);
        // Rows above and below the box stand still, so the rest is judged by columns far from both boxes.
        let still = psnr_of(&before, &after, 500..640);
        assert!(still < box_psnr - 3.0, "{text}: {still:.1} dB still, {box_psnr:.1} dB moving");
        let plain = decode(&apply(&mut Transcoder::default(), &moved, "q75"), 8);
        let rows = |p: &Planes| {
            let (_, _, stride, data) = p.plane(0);
            data.chunks(stride).skip(100).take(160).flat_map(|r| r[320..448].to_vec()).collect()
        };
        let (kept, full): (Vec<u8>, Vec<u8>) = (rows(&after), rows(&plain));
        assert_eq!(kept, full, "{text}: the box is as without a region of interest");
        assert!(psnr(&before, &plain) > floor);
    }
}

#[test]
fn differencing_compares_with_the_last_frame_sent() {
    let at = |left| frame((320, 180), (2, 2), (1, 1), Some(left));
    let (here, there) = (at(30), at(200));
    for text in
        ["original diff2%", "q50 diff2%", "1/2 q75 diff2%", "gray diff2%", "mez 501", "mez 2301"]
    {
        let setting = setting(text);
        let mut transcoder = Transcoder::default();
        let mut transfer = TransferState::new();
        let mut out = Vec::new();
        let mut go = |transfer: &mut TransferState, jpeg: &[u8], setting: &KnobSetting| {
            let applied = transcoder.apply_for(transfer, jpeg, setting, &mut out).unwrap();
            assert_eq!(out.is_empty(), matches!(applied, Applied::Unchanged { .. }), "{text}");
            matches!(applied, Applied::Encoded { .. })
        };
        assert!(go(&mut transfer, &here, &setting), "{text}: the first frame is sent");
        assert!(go(&mut transfer, &here, &setting), "{text}: it was dropped on the way");
        transfer.sent();
        assert!(!go(&mut transfer, &here, &setting), "{text}: nothing changed");
        if !text.starts_with("mez") {
            assert!(go(&mut transfer, &there, &setting), "{text}: the box moved");
        }
        assert!(!go(&mut transfer, &here, &setting), "{text}: the moved frame was never sent");
        // Another transfer of the camera has its own memory.
        assert!(go(&mut TransferState::new(), &here, &setting), "{text}");
        assert!(go(&mut transfer, &here, &KnobSetting::ORIGINAL));
        transfer.sent();
        assert!(go(&mut transfer, &here, &setting), "{text}: the last frame was sent unseen");
    }
}

#[test]
fn the_mez_knobs_do_what_they_say() {
    let at = |left| frame((1920, 1080), (2, 2), (1, 1), Some(left));
    let (first, second) = (at(100), at(900));
    let mut transcoder = Transcoder::default();
    let sizes = |transcoder: &mut Transcoder, ids: &[u16]| -> Vec<usize> {
        ids.iter().map(|id| apply(transcoder, &second, &format!("mez {id}")).len()).collect()
    };
    for (what, ids) in [
        ("resolution", &[500, 1000, 1500, 2000][..]),
        ("blur", &[1000, 1020, 1040, 1060, 1080]),
        ("gray", &[1000, 1100]),
    ] {
        let sizes = sizes(&mut transcoder, ids);
        assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]), "{what}: {sizes:?}");
    }
    // R3 on a 1080p frame is the picture at half size.
    let half = apply(&mut transcoder, &second, "mez 1000");
    assert!(psnr(&decode(&half, 8), &decode(&second, 4)) > 36.0);
    // D2 keeps the moving box and blackens the rest, D3 hollows it out.
    for (id, hollow) in [(1005, false), (1010, true), (1205, false)] {
        let mut transcoder = Transcoder::default();
        let _ = apply(&mut transcoder, &first, &format!("mez {id}"));
        let out = decode(&apply(&mut transcoder, &second, &format!("mez {id}")), 8);
        let (_, _, stride, data) = out.plane(0);
        let mean = |x: usize, y: usize| {
            let block = (y..y + 16).flat_map(|y| data[y * stride + x..][..16].to_vec());
            block.map(u32::from).sum::<u32>() / 256
        };
        assert!(mean(900, 40) < 24, "{id}: still parts are black, not {}", mean(900, 40));
        if !hollow && id < 1200 {
            assert!(mean(520, 270) > 200, "{id}: the box is kept, not {}", mean(520, 270));
        }
        if hollow {
            assert!(mean(520, 270) < 24, "{id}: the inside is black, not {}", mean(520, 270));
        }
    }
}

#[test]
fn frames_are_refused_by_name() {
    let good = frame((64, 48), (2, 2), (1, 1), None);
    let mut transcoder = Transcoder::new(FrameLimits { bytes_max: 1 << 20, pixels_max: 64 * 48 });
    let mut refused = |jpeg: &[u8]| {
        let mut out = vec![1, 2, 3];
        let error = transcoder.apply(jpeg, &setting("q50"), &mut out).unwrap_err();
        assert!(out.is_empty());
        error
    };
    assert_eq!(refused(b""), FrameError::Truncated);
    assert_eq!(refused(b"GIF89a"), FrameError::NotJpeg);
    assert_eq!(refused(&good[..good.len() / 8]), FrameError::Truncated);
    let bytes = FrameError::TooLarge { what: "bytes", value: (1 << 20) + 1, limit: 1 << 20 };
    assert_eq!(refused(&vec![0; (1 << 20) + 1]), bytes);
    let pixels = FrameError::TooLarge { what: "pixels", value: 65 * 48, limit: 64 * 48 };
    assert_eq!(refused(&frame((65, 48), (2, 2), (1, 1), None)), pixels);
    let start = good.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    let patched = |at: usize, byte: u8| {
        let mut jpeg = good.clone();
        jpeg[start + at] = byte;
        jpeg
    };
    assert!(refused(&patched(4, 16)).to_string().contains("16-bit"));
    assert!(refused(&patched(9, 4)).to_string().contains("CMYK"));
    let mut empty = good.clone();
    empty[start + 5..start + 7].fill(0);
    assert_eq!(refused(&empty), FrameError::Empty { width: 64, height: 0 });
    let table = good.windows(2).position(|w| w == [0xff, 0xdb]).unwrap();
    let mut bare = good.clone();
    bare.drain(table..table + 69);
    assert!(matches!(refused(&bare), FrameError::Undecodable(_)));
}

#[test]
fn a_damaged_frame_is_sent_as_far_as_it_can_be_read_and_counted() {
    let good = frame((640, 360), (2, 2), (1, 1), None);
    let cut = &good[..good.len() * 2 / 3];
    let ended = [cut, &[0xff, 0xd9]].concat();
    let mut transcoder = Transcoder::default();
    let mut damaged = 0;
    for jpeg in [cut, &ended] {
        for text in ["q50", "1/2", "gray", "q50 roi3 diff1%", "original diff1%", "mez 1006"] {
            let out = apply(&mut transcoder, jpeg, text);
            damaged += 1;
            assert_eq!(transcoder.damaged(), damaged, "{text}");
            if text != "original diff1%" {
                apply(&mut transcoder, &out, text);
                assert_eq!(transcoder.damaged(), damaged, "the result is whole: {text}");
            }
        }
    }
    // Nothing is missing where only the end marker is.
    let bare = &good[..good.len() - 2];
    assert_eq!(decode(&apply(&mut transcoder, bare, "q50"), 8).width(), 640);
    assert_eq!(transcoder.damaged(), damaged);
}

const EXIF: [u8; 36] =
    *b"\xff\xe1\0\x22Exif\0\0II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x01\0\0\0\0\0\0\0";

/// The frame with an EXIF orientation, and with more before what the encoder wrote.
fn turned(jpeg: &[u8], orientation: u8, more: &[u8]) -> Vec<u8> {
    let mut exif = EXIF;
    exif[28] = orientation;
    [&jpeg[..2], &exif, more, &jpeg[2..]].concat()
}

#[test]
fn every_setting_is_seen_as_the_original_is() {
    let profile = [b"\xff\xe2\0\x40ICC_PROFILE\0\x01\x01", &[7u8; 48][..]].concat();
    let comment = b"\xff\xfe\0\x0bat home!!";
    let mut settings = KnobSetting::ladder();
    settings.extend(KnobSetting::mez_ladder());
    settings.extend(["gray", "q50 roi3", "1/2", "original diff1%", "1/4 gray"].map(setting));
    let holds = |jpeg: &[u8], part: &[u8]| jpeg.windows(part.len()).any(|window| window == part);
    for (name, luma, chroma) in LUMA_CHROMA {
        let plain = frame((320, 180), luma, chroma, None);
        for orientation in [1, 6, 8] {
            let more = [&profile[..], comment].concat();
            let mut jpeg = turned(&plain, orientation, &more);
            let density = jpeg.windows(5).position(|w| w == b"JFIF\0").unwrap() + 7;
            jpeg[density..density + 5].copy_from_slice(&[0, 0, 4, 0, 3]);
            for setting in &settings {
                let mut transcoder = Transcoder::default();
                let mut out = Vec::new();
                let applied = transcoder.apply(&jpeg, setting, &mut out).unwrap();
                assert!(matches!(applied, Applied::Encoded { .. }));
                let context = format!("{name} turned {orientation} by {setting}");
                let info = inspect(&out, &FrameLimits::default()).unwrap();
                assert_eq!(info.orientation.value(), orientation, "{context}");
                let colours = match setting.knobs() {
                    Knobs::Jpeg(knobs) => !knobs.gray || chroma.0 == 0,
                    Knobs::Mez(knobs) => match knobs.color {
                        ColorSpace::Bgr => true,
                        ColorSpace::Gray => chroma.0 == 0,
                        _ => false,
                    },
                };
                assert_eq!(holds(&out, &profile), colours, "{context}");
                assert!(
                    holds(&out, &[b'J', b'F', b'I', b'F', 0, 1, 1, 0, 0, 4, 0, 3]),
                    "{context}"
                );
                // Metadata that is not needed to see the picture stays behind, unless these are the bytes of the
                // original.
                assert!(out == jpeg || !holds(&out, b"at home"), "{context}");
            }
        }
    }
}

#[test]
fn a_picture_that_is_turned_otherwise_is_a_change() {
    let plain = frame((320, 180), (2, 2), (1, 1), None);
    let mut transcoder = Transcoder::default();
    let mut out = Vec::new();
    let difference = setting("q50 diff2%");
    for (orientation, sent) in [(1, true), (1, false), (6, true), (6, false), (8, true)] {
        let jpeg = turned(&plain, orientation, &[]);
        let applied = transcoder.apply(&jpeg, &difference, &mut out).unwrap();
        assert_eq!(matches!(applied, Applied::Encoded { .. }), sent, "{orientation}");
        transcoder.sent();
    }
    let info = inspect(&turned(&plain, 6, &[]), &FrameLimits::default()).unwrap();
    assert_eq!(info.size, FrameSize { width: 320, height: 180 });
    assert_eq!(info.seen_size(), FrameSize { width: 180, height: 320 });
}

#[test]
fn any_bytes_give_a_frame_or_an_error() {
    let seed: u64 = std::process::id().into();
    println!("seed {seed}");
    let mut random = Random(seed);
    let sources: Vec<Vec<u8>> = LUMA_CHROMA
        .iter()
        .flat_map(|&(_, luma, chroma)| {
            let plain = frame((90, 70), luma, chroma, None);
            [progressive(&plain), plain]
        })
        .collect();
    let settings = ["q50 roi2 diff1%", "5/8 q50", "gray", "q50 dz", "1/2", "mez 705", "mez 1006"];
    let mut transcoder =
        Transcoder::new(FrameLimits { pixels_max: 1 << 16, ..FrameLimits::default() });
    let (mut out, mut encoded) = (Vec::new(), 0);
    for _ in 0..3000 {
        let mut jpeg = sources[random.below(sources.len())].clone();
        for _ in 0..1 + random.below(5) {
            let at = random.below(jpeg.len());
            match random.below(3) {
                0 => jpeg[at] = random.below(256) as u8,
                1 => jpeg.truncate(at.max(1)),
                _ => jpeg[at] ^= 1 << random.below(8),
            }
        }
        let setting = setting(settings[random.below(settings.len())]);
        if let Ok(Applied::Encoded { size }) = transcoder.apply(&jpeg, &setting, &mut out) {
            transcoder.sent();
            encoded += 1;
            assert_eq!(inspect(&out, &FrameLimits::default()).unwrap().size, size);
            let _ = decode(&out, 8);
        }
    }
    assert!(encoded > 100, "{encoded} of 3000 were frames");
}

#[test]
fn a_warm_transcoder_allocates_nothing() {
    let at = |left| frame((320, 180), (2, 2), (1, 1), Some(left));
    let frames = [at(30), at(60), at(90)];
    let rows = [
        "original",
        "original diff2%",
        "q50 dz",
        "q50 gray roi2 diff1%",
        "5/8 q50",
        "1/4 q30 gray",
    ];
    let mez = ["mez 1000", "mez 1246", "mez 1320", "mez 1110"];
    for row in rows.iter().chain(&mez) {
        let setting = setting(row);
        let mut transcoder = Transcoder::default();
        let mut out = Vec::with_capacity(1 << 20);
        let mut go = |rounds: usize| {
            for frame in frames.iter().cycle().take(3 * rounds) {
                transcoder.apply(frame, &setting, &mut out).unwrap();
                transcoder.sent();
            }
        };
        go(2);
        let count = allocation_counter::measure(|| go(2)).count_total;
        assert_eq!(count, 0, "{row}: {count} allocations in six frames");
    }
}
