//! The codec against every kind of frame, and against broken ones. Test pictures are made here.

use turbojpeg::{
    Compressor, Decompressor, Image, PixelFormat, ScalingFactor, Transform, Transformer, raw,
};

use super::{header::Coding, *};

/// A small deterministic generator (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

/// Samples across and down.
type Sides = (u8, u8);

/// Sampling of luma and chroma, with a name for messages.
const SAMPLINGS: [(&str, Sides, Sides); 8] = [
    ("4:4:4", (1, 1), (1, 1)),
    ("4:2:2", (2, 1), (1, 1)),
    ("4:2:0", (2, 2), (1, 1)),
    ("4:4:0", (1, 2), (1, 1)),
    ("4:1:1", (4, 1), (1, 1)),
    ("4:1:0", (4, 2), (1, 1)),
    ("3:1", (3, 1), (1, 1)),
    ("4:4:4 in 2x2", (2, 1), (2, 1)),
];

fn sampling(luma: Sides, chroma: Sides) -> [Sampling; 3] {
    let of = |(horizontal, vertical)| Sampling { horizontal, vertical };
    [of(luma), of(chroma), of(chroma)]
}

/// Planes with waves, an edge and some grain.
fn picture(width: u16, height: u16, components: usize, sampling: [Sampling; 3]) -> Planes {
    let mut planes = Planes::default();
    planes.reset(width, height, components, sampling);
    let mut random = Random(u64::from(width) << 20 | u64::from(height) | 1);
    for i in 0..components {
        let (width, _, stride, data) = planes.plane_mut(i);
        for (y, row) in data.chunks_mut(stride).enumerate() {
            for (x, sample) in row[..width].iter_mut().enumerate() {
                let wave = 40.0 * ((x as f32 / 9.0).sin() + (y as f32 / 7.0 + i as f32).cos());
                let edge = if x > y { 20.0 } else { 0.0 };
                *sample = (110.0 + wave + edge + random.below(8) as f32) as u8;
            }
        }
    }
    planes
}

fn encode(planes: &Planes, quality: u8) -> Vec<u8> {
    let mut jpeg = Vec::new();
    Codec::new().encode_planes(&mut planes.clone(), Quality::Scaled(quality), &mut jpeg).unwrap();
    jpeg
}

fn progressive(jpeg: &[u8]) -> Vec<u8> {
    let mut transform = Transform::default();
    transform.progressive = true;
    Transformer::new().unwrap().transform_to_vec(&transform, jpeg).unwrap()
}

/// The same picture with a restart marker after every row of units.
fn with_restarts(jpeg: &[u8]) -> Vec<u8> {
    let (mut out, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the calls follow turbojpeg.h: a handle of the right kind, one transform, an output that the
    // library allocates and that is freed by it after the copy.
    unsafe {
        let handle = raw::tj3Init(raw::TJINIT_TJINIT_TRANSFORM as i32);
        assert!(!handle.is_null());
        assert_eq!(raw::tj3Set(handle, raw::TJPARAM_TJPARAM_RESTARTROWS as i32, 1), 0);
        let transform: raw::tjtransform = std::mem::zeroed();
        let done = raw::tj3Transform(
            handle,
            jpeg.as_ptr(),
            jpeg.len() as _,
            1,
            &mut out,
            &mut bytes,
            &transform,
        );
        assert_eq!(done, 0);
        let copy = std::slice::from_raw_parts(out, bytes as usize).to_vec();
        raw::tj3Free(out.cast());
        raw::tj3Destroy(handle);
        copy
    }
}

fn header(jpeg: &[u8]) -> Header {
    Header::read(jpeg, &Limits::default()).unwrap()
}

fn decode(jpeg: &[u8], eighths: u8, gray: bool) -> Planes {
    let mut planes = Planes::default();
    let mut codec = Codec::new();
    let _ = codec.decode_planes(jpeg, &header(jpeg), eighths, gray, &mut planes, None).unwrap();
    planes
}

/// Peak signal to noise ratio of one plane in dB, 99 if equal.
fn psnr(a: &Planes, b: &Planes, plane: usize) -> f64 {
    let ((width, height, sa, da), (wb, hb, sb, db)) = (a.plane(plane), b.plane(plane));
    assert_eq!((width, height), (wb, hb), "planes of one size");
    let rows = da.chunks(sa).zip(db.chunks(sb));
    let error: f64 = rows
        .flat_map(|(a, b)| a[..width].iter().zip(&b[..width]))
        .map(|(&a, &b)| f64::from(a.abs_diff(b)).powi(2))
        .sum();
    if error == 0.0 { 99.0 } else { 10.0 * (65025.0 * (width * height) as f64 / error).log10() }
}

fn same_samples(a: &Planes, b: &Planes) -> bool {
    a.components() == b.components() && (0..a.components()).all(|i| psnr(a, b, i) == 99.0)
}

/// Every kind of frame: sampling, coding, odd and tiny sizes.
fn frames() -> Vec<(String, Planes, Vec<u8>)> {
    let mut frames = Vec::new();
    for (width, height) in [(1, 1), (7, 9), (61, 43), (64, 64), (131, 77)] {
        let mut add = |name: &str, planes: Planes| {
            let jpeg = encode(&planes, 92);
            let name = format!("{name} {width}x{height}");
            frames.push((format!("{name} progressive"), planes.clone(), progressive(&jpeg)));
            frames.push((format!("{name} restarts"), planes.clone(), with_restarts(&jpeg)));
            frames.push((name, planes, jpeg));
        };
        for (name, luma, chroma) in SAMPLINGS {
            // TurboJPEG's transformer, which makes the other codings, takes named samplings only.
            if ["4:1:0", "3:1", "4:4:4 in 2x2"].contains(&name) {
                continue;
            }
            add(name, picture(width, height, 3, sampling(luma, chroma)));
        }
        add("gray", picture(width, height, 1, sampling((1, 1), (0, 0))));
    }
    for (name, luma, chroma) in SAMPLINGS {
        let planes = picture(61, 43, 3, sampling(luma, chroma));
        let jpeg = encode(&planes, 92);
        frames.push((format!("{name} 61x43"), planes, jpeg));
    }
    frames
}

#[test]
fn headers_say_what_a_frame_is() {
    for (name, planes, jpeg) in frames() {
        let header = header(&jpeg);
        assert_eq!((header.width, header.height), (planes.width(), planes.height()), "{name}");
        assert_eq!(usize::from(header.components), planes.components(), "{name}");
        assert_eq!(header.sampling[0], planes.sampling()[0], "{name}");
        assert_eq!(header.coding == Coding::Progressive, name.ends_with("progressive"), "{name}");
        assert_eq!(header.restart_interval > 0, name.ends_with("restarts"), "{name}");
        assert!(header.ended, "{name}");
    }
}

#[test]
fn headers_refuse_by_name_what_is_not_carried() {
    let good = encode(&picture(64, 48, 3, sampling((2, 2), (1, 1))), 80);
    let frame = good.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    let patched = |at: usize, byte: u8| {
        let mut jpeg = good.clone();
        jpeg[frame + at] = byte;
        Header::read(&jpeg, &Limits::default()).unwrap_err().to_string()
    };
    for (at, byte, message) in [
        (1, 0xc3, "lossless"),
        (1, 0xc5, "hierarchical"),
        (1, 0xc9, "arithmetic"),
        (4, 12, "12-bit"),
        (4, 16, "16-bit"),
        (9, 4, "four components"),
        (9, 2, "number of components"),
        (9, 1, "malformed"),
        (11, 0x50, "sampling factors"),
        (14, 0x44, "sampling factors"), // chroma denser than luma
        (14, 0x32, "sampling factors"),
        (2, 0xff, "cut short"),
    ] {
        let error = patched(at, byte);
        assert!(error.contains(message), "{at} {byte:#x}: {error}");
    }
    let limits = Limits { bytes_max: good.len() - 1, ..Limits::default() };
    assert!(matches!(Header::read(&good, &limits), Err(HeaderError::Bytes { .. })));
    let limits = Limits { pixels_max: 64 * 48 - 1, ..Limits::default() };
    assert!(matches!(Header::read(&good, &limits), Err(HeaderError::Pixels { .. })));
    let mut bomb = good.clone();
    bomb[frame + 5..frame + 9].fill(0xff);
    assert!(matches!(Header::read(&bomb, &Limits::default()), Err(HeaderError::Pixels { .. })));
    bomb[frame + 5..frame + 7].fill(0);
    assert!(matches!(Header::read(&bomb, &Limits::default()), Err(HeaderError::Empty { .. })));
    for (bytes, expected) in [
        (&b""[..], HeaderError::Truncated),
        (b"\xff", HeaderError::Truncated),
        (b"\xff\xd8", HeaderError::Truncated),
        (b"\x89PNG\r\n\x1a\n", HeaderError::NotJpeg),
        (b"\xff\xd8\xff\xd9", HeaderError::Malformed { what: "no scan" }),
    ] {
        assert_eq!(Header::read(bytes, &Limits::default()), Err(expected), "{bytes:x?}");
    }
}

#[test]
fn other_encoders_frames_are_refused_or_read() {
    let pixels = vec![90u8; 64 * 64 * 4];
    let image = |format: PixelFormat| Image {
        pixels: &pixels[..64 * 64 * format.size()],
        width: 64,
        pitch: 64 * format.size(),
        height: 64,
        format,
    };
    let read = |format, set: &dyn Fn(&mut Compressor)| {
        let mut compressor = Compressor::new().unwrap();
        set(&mut compressor);
        let jpeg = compressor.compress_to_vec(image(format)).unwrap();
        Header::read(&jpeg, &Limits::default()).map_err(|e| e.to_string())
    };
    let cmyk = read(PixelFormat::CMYK, &|_| {}).unwrap_err();
    assert!(cmyk.contains("four components"), "{cmyk}");
    let rgb = read(PixelFormat::RGB, &|c| {
        c.set_subsamp(turbojpeg::Subsamp::None).unwrap();
        c.set_colorspace(turbojpeg::Colorspace::RGB).unwrap();
    });
    assert!(rgb.unwrap_err().contains("RGB"));
    let arithmetic = read(PixelFormat::RGB, &|c| c.set_arithmetic(true).unwrap());
    assert!(arithmetic.unwrap_err().contains("arithmetic"));
    let lossless = read(PixelFormat::RGB, &|c| c.set_lossless(true).unwrap());
    assert!(lossless.unwrap_err().contains("lossless"));
    assert!(read(PixelFormat::RGB, &|c| c.set_progressive(true).unwrap()).is_ok());
}

#[test]
fn a_frame_that_is_cut_is_read_as_far_as_it_goes() {
    let sources = [(1, 1), (2, 2)].map(|luma| picture(61, 43, 3, sampling(luma, (1, 1))));
    let plain = sources.each_ref().map(|source| encode(source, 80));
    for (source, jpeg) in sources.iter().zip(&plain) {
        let picture_begins = jpeg.windows(2).position(|w| w == [0xff, 0xda]).unwrap() + 14;
        let (mut codec, mut planes, mut out) = (Codec::new(), Planes::default(), Vec::new());
        let whole = decode(jpeg, 8, false);
        for length in 0..jpeg.len() {
            let cut = &jpeg[..length];
            if length < picture_begins {
                let error = Header::read(cut, &Limits::default()).unwrap_err();
                assert_eq!(error, HeaderError::Truncated, "at {length} of {}", jpeg.len());
                continue;
            }
            let head = header(cut);
            assert!(!head.ended);
            let read = codec.decode_planes(cut, &head, 8, false, &mut planes, None).unwrap();
            // Without its end marker alone, nothing is missing.
            let is_whole = length >= jpeg.len() - 2;
            assert_eq!(read.damages == 0, is_whole, "at {length} of {}: {read:?}", jpeg.len());
            assert_eq!(same_samples(&planes, &whole), is_whole, "at {length}");
            let read = codec.transcode(cut, &head, &Recipe::default(), &mut out).unwrap();
            assert_eq!(read.damages == 0, is_whole, "at {length}");
            // The output is sound, and the same.
            let head = header(&out);
            let mut again = Planes::default();
            let read = codec.decode_planes(&out, &head, 8, false, &mut again, None);
            assert_eq!(read, Ok(Read::default()), "at {length}");
            assert!(same_samples(&planes, &again), "at {length}");
            // The first row of units is there long before the end.
            if length > jpeg.len() * 3 / 4 {
                let ((_, _, stride, a), (.., b)) = (planes.plane(0), whole.plane(0));
                assert_eq!(a[..8 * stride - 8], b[..8 * stride - 8]);
            }
        }
        assert!(psnr(&whole, source, 0) > 25.0);
    }
}

#[test]
fn a_progressive_frame_that_is_cut_is_read_as_far_as_it_goes() {
    let source = picture(61, 43, 3, sampling((2, 2), (1, 1)));
    let jpeg = progressive(&encode(&source, 80));
    let scans: Vec<usize> =
        (0..jpeg.len()).filter(|&at| jpeg[at..].starts_with(&[0xff, 0xda])).collect();
    assert!(scans.len() > 4);
    // Another picture's rows lie in the buffers.
    let (mut codec, mut eighth, mut out) = (Codec::new(), Vec::new(), Vec::new());
    let mut refused = 0;
    for length in (scans[0]..=jpeg.len()).step_by(7).chain(scans[1..].iter().copied()) {
        let _ = codec.load(&jpeg, &header(&jpeg), &mut eighth).unwrap();
        let cut = &jpeg[..length];
        let Ok(head) = Header::read(cut, &Limits::default()) else {
            refused += 1;
            continue;
        };
        let read = codec.transcode(cut, &head, &Recipe::default(), &mut out);
        let mut fresh = Vec::new();
        let alone = Codec::new().transcode(cut, &head, &Recipe::default(), &mut fresh);
        assert_eq!((&read, &out), (&alone, &fresh), "at {length} of {}", jpeg.len());
        assert_eq!(read.is_err(), out.is_empty());
        // Within a segment between two scans libjpeg gives up.
        let is_segment = |at: &usize| matches!(cut[*at..], [0xff, 0xc4 | 0xda, ..]);
        let last = (0..length - 1).rev().find(is_segment).unwrap();
        let bytes = u16::from_be_bytes([jpeg[last + 2], jpeg[last + 3]]);
        assert!(read.is_ok() || length < last + 2 + usize::from(bytes), "at {length}: {read:?}");
    }
    assert!(refused <= 2, "{refused}");
}

#[test]
fn every_frame_decodes_at_every_scale() {
    let (mut codec, mut planes, mut eighth) = (Codec::new(), Planes::default(), Vec::new());
    for (name, source, jpeg) in frames() {
        let header = header(&jpeg);
        for eighths in 1..=8 {
            for gray in [false, true] {
                let context = format!("{name} at {eighths}/8, gray {gray}");
                let _ = codec
                    .decode_planes(&jpeg, &header, eighths, gray, &mut planes, Some(&mut eighth))
                    .unwrap_or_else(|e| panic!("{context}: {e}"));
                let side =
                    |pixels: u16| (u32::from(pixels) * u32::from(eighths)).div_ceil(8) as u16;
                assert_eq!(planes.width(), side(source.width()), "{context}");
                assert_eq!(planes.height(), side(source.height()), "{context}");
                assert_eq!(planes.components(), if gray { 1 } else { source.components() });
                if eighths == 8 && !gray {
                    for i in 0..planes.components() {
                        let psnr = psnr(&planes, &source, i);
                        assert!(psnr > 33.0, "{context}: plane {i} {psnr:.1} dB");
                    }
                }
                assert_eq!(eighth.len(), header.eighth().0 * header.eighth().1, "{context}");
                // The 1/8 image and luma decoded at 1/8 are the same means.
                if eighths == 1 {
                    let (width, _, stride, data) = planes.plane(0);
                    let means = data.chunks(stride).flat_map(|row| &row[..width]);
                    assert!(means.zip(&eighth).all(|(a, b)| a.abs_diff(*b) <= 1), "{context}");
                }
            }
        }
        let mut alone = Vec::new();
        let _ = codec.read_eighth(&jpeg, &header, &mut alone).unwrap();
        assert_eq!(alone, eighth, "{name}");
    }
}

#[test]
fn planes_of_every_kind_encode_at_every_scale() {
    let (mut codec, mut planes, mut out) = (Codec::new(), Planes::default(), Vec::new());
    for (name, _, jpeg) in frames() {
        for eighths in 1..=8 {
            let read =
                codec.decode_planes(&jpeg, &header(&jpeg), eighths, false, &mut planes, None);
            assert_eq!(read, Ok(Read::default()), "{name}");
            for quality in [Quality::Scaled(95), Quality::Kept] {
                codec.encode_planes(&mut planes, quality, &mut out).unwrap();
                let again = decode(&out, 8, false);
                for i in 0..planes.components() {
                    let psnr = psnr(&planes, &again, i);
                    assert!(psnr > 30.0, "{name} at {eighths}/8 {quality:?}: {psnr:.1} dB");
                }
            }
        }
    }
}

#[test]
fn packed_pixels_agree_with_planes() {
    let (mut codec, mut image, mut out) = (Codec::new(), Packed::default(), Vec::new());
    for (name, source, jpeg) in frames() {
        for eighths in [1, 2, 4, 8] {
            let header = header(&jpeg);
            let _ = codec.decode_bgr(&jpeg, &header, eighths, &mut image, None).unwrap();
            codec.encode_bgr(&image, 98, &mut out).unwrap();
            let (again, scaled) = (decode(&out, 8, true), decode(&jpeg, eighths, true));
            // Colours that RGB cannot hold are cut, so only the order of magnitude is compared.
            let psnr = psnr(&again, &scaled, 0);
            assert!(psnr > 22.0, "{name} at {eighths}/8: {psnr:.1} dB");
            assert_eq!(source.components() == 1, header.components == 1);
        }
    }
}

#[test]
fn coefficients_kept_are_the_same_picture() {
    let (mut codec, mut out) = (Codec::new(), Vec::new());
    for (name, _, jpeg) in frames() {
        let header = header(&jpeg);
        let _ = codec.transcode(&jpeg, &header, &Recipe::default(), &mut out).unwrap();
        assert!(same_samples(&decode(&jpeg, 8, false), &decode(&out, 8, false)), "{name}");
        let recipe = Recipe { gray: true, ..Recipe::default() };
        let _ = codec.transcode(&jpeg, &header, &recipe, &mut out).unwrap();
        assert!(same_samples(&decode(&jpeg, 8, true), &decode(&out, 8, false)), "{name} gray");
        assert_eq!(self::header(&out).components, 1, "{name}");
    }
}

#[test]
fn a_row_at_a_time_gives_the_same_bytes_as_the_whole_picture() {
    let (mut codec, mut in_step, mut whole) = (Codec::new(), Vec::new(), Vec::new());
    let mut eighth = Vec::new();
    for (name, _, jpeg) in frames() {
        let header = header(&jpeg);
        let (across, down) = header.units();
        let mask: Vec<u8> = (0..across * down).map(|i| (i % 3 == 0) as u8).collect();
        for gray in [false, true] {
            for background in [None, Some((2, &mask[..]))] {
                let recipe = Recipe {
                    quality: Quality::Scaled(50),
                    dead_zone: true,
                    gray,
                    keep: Some(6),
                    background,
                    cover: background.map(|(_, mask)| mask),
                };
                let _ = codec.transcode(&jpeg, &header, &recipe, &mut in_step).unwrap();
                let loaded = codec.load(&jpeg, &header, &mut eighth).unwrap();
                let _ = loaded.write(&recipe, &mut whole).unwrap();
                assert_eq!(in_step, whole, "{name}");
                let _ = decode(&whole, 8, false);
            }
        }
    }
}

#[test]
fn requantised_frames_shrink_with_quality_and_match_encoded_ones() {
    let source = picture(640, 360, 3, sampling((2, 2), (1, 1)));
    let jpeg = encode(&source, 95);
    let (mut codec, mut out, mut last) = (Codec::new(), Vec::new(), jpeg.len() + 1);
    for quality in [95, 90, 75, 60, 50, 30, 10] {
        let recipe = Recipe { quality: Quality::Scaled(quality), ..Recipe::default() };
        let _ = codec.transcode(&jpeg, &header(&jpeg), &recipe, &mut out).unwrap();
        assert!(out.len() < last, "q{quality}: {} after {last}", out.len());
        last = out.len();
        let (requantised, encoded) =
            (decode(&out, 8, false), decode(&encode(&source, quality), 8, false));
        let (a, b) = (psnr(&requantised, &source, 0), psnr(&encoded, &source, 0));
        // Two quantisations in a row lose most where their steps are close.
        let loss = if quality >= 90 { 4.0 } else { 1.0 };
        assert!(a > b - loss, "q{quality}: {a:.1} dB against {b:.1} dB encoded from pixels");
        let dead = Recipe { dead_zone: quality < 95, ..recipe };
        let _ = codec.transcode(&jpeg, &header(&jpeg), &dead, &mut out).unwrap();
        assert!(out.len() <= last, "q{quality} with a dead zone: {}", out.len());
    }
}

#[test]
fn a_masked_background_is_coarse_and_the_rest_untouched() {
    for (luma, chroma) in [((2, 2), (1, 1)), ((1, 1), (1, 1)), ((4, 1), (1, 1))] {
        let source = picture(128, 96, 3, sampling(luma, chroma));
        let jpeg = encode(&source, 92);
        let head = header(&jpeg);
        let (across, down) = head.units();
        // The left half is kept.
        let mask: Vec<u8> = (0..across * down).map(|i| (i % across < across / 2) as u8).collect();
        let recipe = Recipe { background: Some((1, &mask)), ..Recipe::default() };
        let mut out = Vec::new();
        let _ = Codec::new().transcode(&jpeg, &head, &recipe, &mut out).unwrap();
        let (before, after) = (decode(&jpeg, 8, false), decode(&out, 8, false));
        for i in 0..3 {
            let ((width, _, stride, a), (.., b)) = (before.plane(i), after.plane(i));
            for (a, b) in a.chunks(stride).zip(b.chunks(stride)) {
                assert_eq!(a[..width / 2], b[..width / 2], "{luma:?} plane {i}");
                for block in b[width / 2..width].chunks(8) {
                    assert!(block.iter().all(|&s| s == block[0]), "{luma:?} plane {i}");
                }
            }
        }
    }
}

#[test]
fn covered_units_are_one_gray_each_without_colour_and_the_rest_is_untouched() {
    for (luma, chroma) in [((2, 2), (1, 1)), ((1, 1), (1, 1)), ((4, 1), (1, 1)), ((1, 1), (0, 0))] {
        let components = if chroma.0 == 0 { 1 } else { 3 };
        let source = picture(128, 96, components, sampling(luma, chroma));
        let jpeg = encode(&source, 92);
        let head = header(&jpeg);
        let (across, down) = head.units();
        let grays = [1, 77, 128, 200, 255];
        // The left half is kept.
        let cover: Vec<u8> = (0..across * down)
            .map(|i| if i % across < across / 2 { 0 } else { grays[i % grays.len()] })
            .collect();
        for quality in [Quality::Kept, Quality::Scaled(50)] {
            let recipe = Recipe { cover: Some(&cover), quality, ..Recipe::default() };
            let mut out = Vec::new();
            let _ = Codec::new().transcode(&jpeg, &head, &recipe, &mut out).unwrap();
            let (before, after) = (decode(&jpeg, 8, false), decode(&out, 8, false));
            for i in 0..components {
                let ((width, _, stride, a), (.., b)) = (before.plane(i), after.plane(i));
                let unit = if i == 0 { 8 * head.unit().0 } else { 8 };
                let unit_down = if i == 0 { 8 * head.unit().1 } else { 8 };
                for (y, (a, b)) in a.chunks(stride).zip(b.chunks(stride)).enumerate() {
                    if quality == Quality::Kept {
                        assert_eq!(a[..width / 2], b[..width / 2], "{luma:?} plane {i}");
                    }
                    for (x, &pixel) in b[..width].iter().enumerate().skip(width / 2) {
                        let gray = cover[y / unit_down * across + x / unit];
                        let wanted = if i == 0 { gray } else { 128 };
                        // Half a step of the coarsest DC quantiser here.
                        assert!(
                            pixel.abs_diff(wanted) <= 2,
                            "{luma:?} plane {i}: {pixel} for {wanted}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_fast_requantiser_is_the_plain_one() {
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    for round in 0..20_000 {
        let any = |random: &mut Random| (random.next() >> 40) as u16;
        let mut multiplier: [u16; 64] = std::array::from_fn(|_| any(&mut random));
        let mut bias: [u16; 64] = std::array::from_fn(|_| any(&mut random));
        if round % 4 == 0 {
            (multiplier, bias) = ([65535; 64], [32768; 64]);
        }
        let extremes = [0, 1, -1, 1023, -1023, 1024, 32767, -32767, -32768];
        let mut block: [i16; 64] = std::array::from_fn(|i| match extremes.get(i) {
            Some(&extreme) => extreme,
            None => any(&mut random) as i16 >> random.below(16),
        });
        let (before, mut plain) = (block, block);
        // SAFETY: each points at 64 values.
        unsafe {
            let (m, b) = (multiplier.as_ptr(), bias.as_ptr());
            ffi::tgj_requantise(block.as_mut_ptr(), m, b);
            ffi::tgj_requantise_plain(plain.as_mut_ptr(), m, b);
        }
        assert_eq!(block, plain, "{before:?} by {multiplier:?} and {bias:?}");
        if round % 4 == 0 {
            let same = before.map(|c| c.clamp(-1023, 1023));
            assert_eq!(block, same, "65535 and 32768 keep every coefficient");
        }
    }
}

#[test]
fn frames_without_huffman_tables_are_read_with_the_standard_ones() {
    let jpeg = encode(&picture(61, 43, 3, sampling((2, 1), (1, 1))), 80);
    // Motion JPEG of USB cameras leaves the DHT segments out.
    let mut bare = jpeg[..2].to_vec();
    let mut at = 2;
    while jpeg[at + 1] != 0xda {
        let end = at + 2 + usize::from(u16::from_be_bytes([jpeg[at + 2], jpeg[at + 3]]));
        if jpeg[at + 1] != 0xc4 {
            bare.extend_from_slice(&jpeg[at..end]);
        }
        at = end;
    }
    bare.extend_from_slice(&jpeg[at..]);
    assert!(bare.len() < jpeg.len());
    assert!(same_samples(&decode(&jpeg, 8, false), &decode(&bare, 8, false)));
    let mut out = Vec::new();
    let _ = Codec::new().transcode(&bare, &header(&bare), &Recipe::default(), &mut out).unwrap();
    assert!(same_samples(&decode(&jpeg, 8, false), &decode(&out, 8, false)));
}

/// The luma of a frame as libjpeg-turbo alone decodes it, errors ignored.
fn luma_of_libjpeg(jpeg: &[u8], width: usize, height: usize) -> Vec<u8> {
    let mut image = Image {
        pixels: vec![0; width * height],
        width,
        pitch: width,
        height,
        format: PixelFormat::GRAY,
    };
    // Where data is damaged it warns, which this face of it makes an error, with the picture there all the same.
    let _ = Decompressor::new().unwrap().decompress(jpeg, image.as_deref_mut());
    image.pixels
}

#[test]
fn damaged_picture_data_is_read_as_libjpeg_reads_it() {
    let whole = encode(&picture(160, 120, 3, sampling((2, 2), (1, 1))), 90);
    let restarts = with_restarts(&whole);
    let scan = whole.windows(2).position(|w| w == [0xff, 0xda]).unwrap() + 14;
    let mark =
        (scan..restarts.len()).find(|&at| restarts[at..].starts_with(&[0xff, 0xd2])).unwrap();
    let changed = |jpeg: &[u8], at: usize, to: &[u8]| {
        let mut jpeg = jpeg.to_vec();
        jpeg[at..][..to.len()].copy_from_slice(to);
        jpeg
    };
    let cut = |jpeg: &[u8], from: usize, to: usize| [&jpeg[..from], &jpeg[to..]].concat();
    let end = &[0xff, 0xd9][..];
    let (mut codec, mut planes, mut out) = (Codec::new(), Planes::default(), Vec::new());
    let mut eighth = Vec::new();
    for (what, jpeg) in [
        ("an end too early", [&whole[..whole.len() / 2], end].concat()),
        ("no data", [&whole[..scan], end].concat()),
        ("no data, no end", whole[..scan].to_vec()),
        ("a gap", cut(&whole, whole.len() / 2, whole.len() * 3 / 4)),
        ("bytes of ones", changed(&whole, whole.len() / 2, &[0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0])),
        ("a restart out of order", changed(&restarts, mark, &[0xff, 0xd5])),
        ("a restart that is missing", cut(&restarts, mark, mark + 2)),
        ("a stretch between restarts that is missing", cut(&restarts, mark + 2, mark + 60)),
        ("a start of image inside", changed(&restarts, mark, &[0xff, 0xd8])),
    ] {
        let head = header(&jpeg);
        let read = codec.decode_planes(&jpeg, &head, 8, true, &mut planes, None).unwrap();
        assert!(read.damages > 0, "{what}: {read:?}");
        let (width, height, stride, data) = planes.plane(0);
        let ours: Vec<u8> = data.chunks(stride).flat_map(|row| row[..width].to_vec()).collect();
        assert!(ours == luma_of_libjpeg(&jpeg, width, height), "{what}");
        let reads = [
            codec.transcode(&jpeg, &head, &Recipe::default(), &mut out).unwrap(),
            codec.read_eighth(&jpeg, &head, &mut eighth).unwrap(),
        ];
        assert!(reads.iter().all(|read| read.damages > 0), "{what}: {reads:?}");
        // The output is sound, and so is the next picture.
        assert_eq!(
            codec.decode_planes(&out, &header(&out), 8, true, &mut planes, None),
            Ok(Read::default()),
            "{what}"
        );
        let read = codec.transcode(&whole, &header(&whole), &Recipe::default(), &mut out);
        assert_eq!(read, Ok(Read::default()), "{what}");
        assert!(same_samples(&decode(&whole, 8, false), &decode(&out, 8, false)), "{what}");
    }
}

/// The segments before the picture data, the scan header last, and the rest.
fn take_apart(jpeg: &[u8]) -> (Vec<(u8, Vec<u8>)>, Vec<u8>) {
    let (mut segments, mut at) = (Vec::new(), 2);
    loop {
        let end = at + 2 + usize::from(u16::from_be_bytes([jpeg[at + 2], jpeg[at + 3]]));
        segments.push((jpeg[at + 1], jpeg[at + 4..end].to_vec()));
        if jpeg[at + 1] == 0xda {
            return (segments, jpeg[end..].to_vec());
        }
        at = end;
    }
}

fn put_together(segments: &[(u8, Vec<u8>)], rest: &[u8]) -> Vec<u8> {
    let mut jpeg = vec![0xff, 0xd8];
    for (marker, body) in segments {
        jpeg.extend([0xff, *marker]);
        jpeg.extend(u16::try_from(body.len() + 2).unwrap().to_be_bytes());
        jpeg.extend(body);
    }
    jpeg.extend(rest);
    jpeg
}

fn table_segment(number: u8, wide: bool, table: &[u16; 64]) -> (u8, Vec<u8>) {
    let mut body = vec![u8::from(wide) << 4 | number];
    for step in table {
        if wide {
            body.extend(step.to_be_bytes());
        } else {
            body.push(u8::try_from(*step).unwrap());
        }
    }
    (0xdb, body)
}

/// The frame with its table of that number changed, 8 or 16 bits wide, in the order of the zigzag.
fn with_table(jpeg: &[u8], number: u8, wide: bool, change: impl Fn(&mut [u16; 64])) -> Vec<u8> {
    let (mut segments, rest) = take_apart(jpeg);
    for segment in &mut segments {
        if segment.0 == 0xdb && segment.1[0] == number {
            let mut table: [u16; 64] = std::array::from_fn(|k| u16::from(segment.1[1 + k]));
            change(&mut table);
            *segment = table_segment(number, wide, &table);
        }
    }
    put_together(&segments, &rest)
}

/// Every way through the codec, with the 1/8 image, masks, covers, and every scale. Returns what was written.
fn every_way(codec: &mut Codec, jpeg: &[u8]) -> Vec<Vec<u8>> {
    let head = header(jpeg);
    let (mut planes, mut packed) = (Planes::default(), Packed::default());
    let (mut eighth, mut out, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let units = head.units().0 * head.units().1;
    let cover: Vec<u8> = (0..units).map(|unit| [0, 1, 128, 255][unit % 4]).collect();
    for quality in [Quality::Kept, Quality::Scaled(1), Quality::Scaled(50), Quality::Scaled(95)] {
        for eighths in 1..=8 {
            for gray in [false, true] {
                let look = Some(&mut eighth);
                let _ = codec.decode_planes(jpeg, &head, eighths, gray, &mut planes, look).unwrap();
                codec.encode_planes(&mut planes, quality, &mut out).unwrap();
                all.push(out.clone());
            }
            let _ = codec.decode_bgr(jpeg, &head, eighths, &mut packed, Some(&mut eighth)).unwrap();
        }
        for (gray, dead_zone, keep) in [(false, false, None), (true, true, Some(3))] {
            let recipe = Recipe {
                quality,
                dead_zone,
                gray,
                keep,
                background: Some((1, &cover)),
                cover: Some(&cover),
            };
            let _ = codec.transcode(jpeg, &head, &recipe, &mut out).unwrap();
            all.push(out.clone());
            let loaded = codec.load(jpeg, &head, &mut eighth).unwrap();
            let _ = loaded.write(&recipe, &mut out).unwrap();
            assert_eq!(all.last(), Some(&out));
        }
    }
    let _ = codec.read_eighth(jpeg, &head, &mut eighth).unwrap();
    all
}

#[test]
fn any_quantiser_goes_every_way() {
    let mut codec = Codec::new();
    for (luma, chroma) in [((2, 2), (1, 1)), ((1, 1), (1, 1)), ((1, 1), (0, 0))] {
        let components = if chroma.0 == 0 { 1 } else { 3 };
        let plain = encode(&picture(61, 43, components, sampling(luma, chroma)), 60);
        for jpeg in [plain.clone(), progressive(&plain), with_restarts(&plain)] {
            for number in 0..=u8::from(components == 3) {
                for (wide, step) in [
                    (false, 0),
                    (true, 0),
                    (false, 255),
                    (true, 256),
                    (true, 2047),
                    // Eight times this is 0 in 16 bits.
                    (true, 8192),
                    (true, 16384),
                    (true, 24576),
                    (true, 32768),
                    (true, 65535),
                ] {
                    for places in [0..1, 1..2, 63..64, 0..64] {
                        let jpeg = with_table(&jpeg, number, wide, |table| {
                            table[places.clone()].fill(step)
                        });
                        for out in every_way(&mut codec, &jpeg) {
                            let (segments, _) = take_apart(&out);
                            // T.81, B.2.4.1: a step is at least 1.
                            for (_, table) in segments.iter().filter(|(marker, _)| *marker == 0xdb)
                            {
                                let steps = &table[1..];
                                let zero = match table[0] >> 4 {
                                    0 => steps.contains(&0),
                                    _ => steps.chunks(2).any(|step| step == [0, 0]),
                                };
                                assert!(!zero, "table {number}, {step} at {places:?}");
                            }
                            let _ = decode(&out, 8, false);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_step_of_zero_leaves_the_picture_as_every_reader_sees_it_and_a_cover_its_gray() {
    let (mut codec, mut out) = (Codec::new(), Vec::new());
    let plain = encode(&picture(64, 48, 3, sampling((2, 2), (1, 1))), 70);
    for number in 0..2 {
        for places in [0..1, 1..64, 0..64] {
            let jpeg = with_table(&plain, number, false, |table| table[places.clone()].fill(0));
            let head = header(&jpeg);
            let _ = codec.transcode(&jpeg, &head, &Recipe::default(), &mut out).unwrap();
            assert!(
                same_samples(&decode(&jpeg, 8, false), &decode(&out, 8, false)),
                "{number} {places:?}"
            );
            for gray in [1, 77, 128, 255] {
                let cover = vec![gray; head.units().0 * head.units().1];
                let recipe = Recipe { cover: Some(&cover), ..Recipe::default() };
                let _ = codec.transcode(&jpeg, &head, &recipe, &mut out).unwrap();
                let covered = decode(&out, 8, false);
                let (_, _, stride, data) = covered.plane(0);
                assert!(data[..stride].iter().take(64).all(|pixel| pixel.abs_diff(gray) <= 2));
            }
        }
    }
}

/// Three pictures of one component as one of three, each in a scan of its own, with one number for all tables.
fn scan_by_scan(planes: &[Planes; 3], qualities: [u8; 3]) -> Vec<u8> {
    let parts: Vec<_> = planes
        .iter()
        .zip(qualities)
        .map(|(plane, quality)| take_apart(&encode(plane, quality)))
        .collect();
    let of =
        |marker: u8, part: usize| parts[part].0.iter().filter(move |(m, _)| *m == marker).cloned();
    let mut frame = of(0xc0, 0).next().unwrap();
    frame.1.truncate(5);
    frame.1.extend([3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
    let mut segments: Vec<_> = of(0xe0, 0).chain([frame]).chain(of(0xc4, 0)).collect();
    let mut jpeg = Vec::new();
    for (part, (_, data)) in parts.iter().enumerate() {
        segments.extend(of(0xdb, part));
        segments.push((0xda, vec![1, part as u8 + 1, 0, 0, 63, 0]));
        let piece = put_together(&segments, &data[..data.len() - 2]);
        jpeg.extend_from_slice(if part == 0 { &piece } else { &piece[2..] });
        segments.clear();
    }
    jpeg.extend([0xff, 0xd9]);
    jpeg
}

#[test]
fn a_table_that_is_defined_again_between_scans_is_that_of_its_component() {
    let gray = |width, height| picture(width, height, 1, sampling((1, 1), (0, 0)));
    let planes = [gray(64, 48), gray(64, 48), gray(64, 48)];
    let (mut codec, mut out) = (Codec::new(), Vec::new());
    for qualities in [[90, 40, 20], [20, 90, 90], [50, 50, 50], [10, 20, 10]] {
        let jpeg = scan_by_scan(&planes, qualities);
        let all = decode(&jpeg, 8, false);
        for (i, plane) in planes.iter().enumerate() {
            let alone = decode(&encode(plane, qualities[i]), 8, false);
            let ((width, _, sa, a), (_, _, sb, b)) = (all.plane(i), alone.plane(0));
            assert!(a.chunks(sa).zip(b.chunks(sb)).all(|(a, b)| a[..width] == b[..width]));
        }
        let _ = codec.transcode(&jpeg, &header(&jpeg), &Recipe::default(), &mut out).unwrap();
        assert!(same_samples(&all, &decode(&out, 8, false)), "{qualities:?}");
        every_way(&mut codec, &jpeg);
        // A component whose scan is missing is gray, whatever the buffers held before.
        let scans: Vec<usize> =
            (0..jpeg.len()).filter(|&at| jpeg[at..].starts_with(&[0xff, 0xda])).collect();
        let cut = &jpeg[..scans[1]];
        let mut read = Planes::default();
        let damages = codec.decode_planes(cut, &header(cut), 8, false, &mut read, None).unwrap();
        assert_eq!(damages.damages, 2);
        for i in 1..3 {
            let (width, _, stride, data) = read.plane(i);
            assert!(data.chunks(stride).all(|row| row[..width].iter().all(|&pixel| pixel == 128)));
        }
        every_way(&mut codec, cut);
    }
}

#[test]
fn a_frame_without_its_tables_is_not_read_with_those_of_another() {
    let jpeg = encode(&picture(61, 43, 3, sampling((2, 1), (1, 1))), 80);
    let (segments, rest) = take_apart(&jpeg);
    let bare: Vec<_> = segments.iter().filter(|(marker, _)| *marker != 0xdb).cloned().collect();
    let bare = put_together(&bare, &rest);
    let (mut codec, mut out, mut eighth) = (Codec::new(), Vec::new(), Vec::new());
    let _ = codec.transcode(&jpeg, &header(&jpeg), &Recipe::default(), &mut out).unwrap();
    let head = header(&bare);
    let errors = [
        codec.transcode(&bare, &head, &Recipe::default(), &mut out).unwrap_err(),
        codec.read_eighth(&bare, &head, &mut eighth).unwrap_err(),
        codec.load(&bare, &head, &mut eighth).err().unwrap(),
        codec.decode_planes(&bare, &head, 4, false, &mut Planes::default(), None).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("Quantization table 0x00 was not defined"), "{error}");
    }
    // Huffman tables that are not there are the standard ones, also behind a frame with others.
    let bare: Vec<_> = segments.iter().filter(|(marker, _)| *marker != 0xc4).cloned().collect();
    let bare = put_together(&bare, &rest);
    let mut planes = Planes::default();
    for before in [&jpeg, &progressive(&jpeg)] {
        let _ = codec.load(before, &header(before), &mut eighth).unwrap();
        let read = codec.decode_planes(&bare, &header(&bare), 8, false, &mut planes, None);
        assert_eq!(read, Ok(Read::default()));
        assert!(same_samples(&planes, &decode(&jpeg, 8, false)));
    }
}

#[test]
fn oddities_that_do_not_touch_the_picture_are_tolerated() {
    let source = picture(61, 43, 3, sampling((2, 2), (1, 1)));
    let plain = encode(&source, 80);
    for jpeg in [plain.clone(), progressive(&plain), with_restarts(&plain)] {
        let whole = decode(&jpeg, 8, false);
        let (segments, rest) = take_apart(&jpeg);
        let cut = jpeg.len() - 2;
        let stray = |bytes: &[u8]| {
            let (first, others) = segments.split_at(2);
            let others = put_together(others, &rest);
            [&put_together(first, &[]), bytes, &others[2..]].concat()
        };
        for (what, odd) in [
            ("two start markers", [&[0xff, 0xd8], &jpeg[..]].concat()),
            (
                "three start markers with fill",
                [&[0xff, 0xd8, 0xff, 0xd8, 0xff], &jpeg[..]].concat(),
            ),
            ("no end marker", jpeg[..cut].to_vec()),
            ("half an end marker", jpeg[..cut + 1].to_vec()),
            ("bytes behind the end", [&jpeg[..], &[0; 900], b"trailer \xff\xd8\xff\xdb"].concat()),
            ("stray bytes between segments", stray(b"stray")),
            ("stray bytes with ff 00", stray(&[1, 0xff, 0, 0xff, 0xff, 0, 2])),
            ("a restart marker between segments", stray(&[0xff, 0xd3])),
            ("TEM between segments", stray(&[0xff, 0x01])),
            ("fill bytes", stray(&[0xff; 70])),
        ] {
            let head = header(&odd);
            let (mut codec, mut planes, mut out) = (Codec::new(), Planes::default(), Vec::new());
            let read = codec.decode_planes(&odd, &head, 8, false, &mut planes, None).unwrap();
            assert_eq!(read.damages, 0, "{what}");
            assert!(same_samples(&planes, &whole), "{what}");
            let read = codec.transcode(&odd, &head, &Recipe::default(), &mut out).unwrap();
            assert_eq!(read.damages, 0, "{what}");
            assert!(same_samples(&decode(&out, 8, false), &whole), "{what}");
        }
        for marker in [0x02, 0xbf, 0xc8, 0xde, 0xf0, 0xfd] {
            let error =
                Header::read(&stray(&[0xff, marker, 0, 2]), &Limits::default()).unwrap_err();
            assert!(error.to_string().contains("reserves"), "{marker:#x}: {error}");
        }
        let error = Header::read(&stray(&[0xff, 0xd8]), &Limits::default()).unwrap_err();
        assert_eq!(error, HeaderError::Malformed { what: "marker order" });
    }
}

/// An EXIF segment: directories of entries of tag, type, count and value, in either byte order.
fn exif(big_endian: bool, directories: &[&[(u16, u16, u32, u32)]]) -> (u8, Vec<u8>) {
    let short = |value: u16| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let long = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut body = b"Exif\0\0".to_vec();
    body.extend(if big_endian { b"MM" } else { b"II" });
    body.extend(short(42));
    body.extend(long(8));
    let mut at = 8;
    for (index, entries) in directories.iter().enumerate() {
        at += 2 + 12 * entries.len() as u32 + 4;
        body.extend(short(entries.len() as u16));
        for (tag, kind, count, value) in *entries {
            body.extend(short(*tag));
            body.extend(short(*kind));
            body.extend(long(*count));
            match kind {
                1 => body.extend([*value as u8, 0, 0, 0]),
                3 => body.extend([short(*value as u16), [0, 0]].concat()),
                _ => body.extend(long(*value)),
            }
        }
        body.extend(long(if index + 1 < directories.len() { at } else { 0 }));
    }
    (0xe1, body)
}

fn with_segments(jpeg: &[u8], added: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let (segments, rest) = take_apart(jpeg);
    put_together(&[added, &segments].concat(), &rest)
}

/// The reader, the segments before the picture, and the orientation that a reader sees.
type OrientationCase = (String, Vec<(u8, Vec<u8>)>, u8);

#[test]
fn the_orientation_is_read_where_readers_look_for_it() {
    let jpeg = encode(&picture(64, 48, 3, sampling((2, 2), (1, 1))), 80);
    let tag = |value| (274, 3, 1, value);
    let make = (271, 2, 4, 0x4142_4300);
    let mut cases: Vec<OrientationCase> = Vec::new();
    for big in [false, true] {
        let mut add = |what: &str, directories: &[&[(u16, u16, u32, u32)]], expected: u8| {
            cases.push((format!("{what}, big {big}"), vec![exif(big, directories)], expected));
        };
        for value in 1..=8 {
            add(&format!("{value}"), &[&[make, tag(value)]], value as u8);
        }
        add("in the thumbnail's directory alone", &[&[make], &[tag(6)]], 1);
        add("differs in the thumbnail's directory", &[&[tag(3)], &[tag(6)]], 3);
        add("zero", &[&[tag(0)]], 1);
        add("nine", &[&[tag(9)]], 1);
        add("a long", &[&[(274, 4, 1, 6)]], 6);
        add("a byte", &[&[(274, 1, 1, 6)]], 6);
        add("two shorts", &[&[(274, 3, 2, 6)]], 1);
        add("a text", &[&[(274, 2, 1, 6)]], 1);
        add("no entry", &[&[]], 1);
    }
    let whole = exif(false, &[&[make, tag(8)]]).1;
    for cut in 0..whole.len() {
        // The value is complete with byte 42; the link to the next directory follows.
        let expected = if cut >= 40 { 8 } else { 1 };
        cases.push((format!("cut at {cut}"), vec![(0xe1, whole[..cut].to_vec())], expected));
    }
    let mut far = whole.clone();
    far[10..14].copy_from_slice(&[0xff; 4]);
    cases.push(("a directory beyond the end".into(), vec![(0xe1, far)], 1));
    let mut many = whole.clone();
    many[14..16].copy_from_slice(&[0xff; 2]);
    cases.push(("more entries than there are".into(), vec![(0xe1, many)], 8));
    cases.push((
        "XMP first".into(),
        vec![(0xe1, b"http://ns.adobe.com/xap/1.0/\0".to_vec()), (0xe1, whole.clone())],
        8,
    ));
    cases.push(("two".into(), vec![(0xe1, whole), exif(true, &[&[tag(3)]])], 8));
    for (what, added, expected) in cases {
        let turned = with_segments(&jpeg, &added);
        assert_eq!(header(&turned).orientation.value(), expected, "{what}");
        let mut out = Vec::new();
        let read = Codec::new().transcode(&turned, &header(&turned), &Recipe::default(), &mut out);
        assert_eq!(read, Ok(Read::default()), "{what}");
        assert_eq!(header(&out).orientation.value(), expected, "{what} carried");
        let (segments, _) = take_apart(&out);
        let carried: Vec<_> = segments.iter().filter(|(marker, _)| *marker == 0xe1).collect();
        assert_eq!(carried.len(), usize::from(expected != 1), "{what}");
        assert!(carried.iter().all(|(_, body)| body.len() == 32), "{what}");
    }
}

#[test]
fn a_seen_rectangle_lies_where_the_standard_turns_it_to() {
    let rectangle = [0.1, 0.2, 0.4, 0.9];
    let near = |a: [f32; 4], b: [f32; 4]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
    for (value, expected) in [
        (1, [0.1, 0.2, 0.4, 0.9]),
        (2, [0.6, 0.2, 0.9, 0.9]), // the first row is the top, the first column the right
        (3, [0.6, 0.1, 0.9, 0.8]), // bottom, right
        (4, [0.1, 0.1, 0.4, 0.8]), // bottom, left
        (5, [0.2, 0.1, 0.9, 0.4]), // left, top
        (6, [0.2, 0.6, 0.9, 0.9]), // right, top
        (7, [0.1, 0.6, 0.8, 0.9]), // right, bottom
        (8, [0.1, 0.1, 0.8, 0.4]), // left, bottom
    ] {
        let orientation = Orientation::new(value).unwrap();
        let stored = orientation.stored(rectangle);
        assert!(near(stored, expected), "{value}: {stored:?}");
        let seen = orientation.seen(640, 480);
        assert_eq!(seen, if value >= 5 { (480, 640) } else { (640, 480) }, "{value}");
    }
    assert_eq!(
        (Orientation::new(0), Orientation::new(9), Orientation::new(u32::MAX)),
        (None, None, None)
    );
}

#[test]
fn profile_and_density_go_along_and_nothing_else_does() {
    let profile = |number: u8, bytes: usize| {
        (0xe2, [b"ICC_PROFILE\0", &[number, 2][..], &vec![number; bytes]].concat())
    };
    let profiles = [profile(1, 65_000), profile(2, 700)];
    let place = exif(true, &[&[(0x8825, 4, 1, 26), (274, 3, 1, 6)], &[(0x201, 4, 1, 99)]]);
    let others = [
        place,
        (0xfe, b"taken at home".to_vec()),
        (0xe2, b"MPF\0".to_vec()),
        (0xe1, b"http://ns.adobe.com/xap/1.0/\0<x/>".to_vec()),
        (0xed, b"Photoshop 3.0\0".to_vec()),
        (0xee, b"Adobe\0d\0\0\0\0\x01".to_vec()),
    ];
    for components in [1, 3] {
        let chroma = if components == 1 { (0, 0) } else { (1, 1) };
        let plain = encode(&picture(64, 48, components, sampling((1, 1), chroma)), 80);
        let mut jpeg = with_segments(&plain, &[&profiles[..], &others].concat());
        let density = jpeg.windows(5).position(|w| w == b"JFIF\0").unwrap() + 7;
        jpeg[density..density + 5].copy_from_slice(&[0, 0, 2, 0, 1]);
        let head = header(&jpeg);
        let mut codec = Codec::new();
        let (mut out, mut planes, mut eighth) = (Vec::new(), Planes::default(), Vec::new());
        let mut written = Vec::new();
        for gray in [false, true] {
            let recipe = Recipe { gray, ..Recipe::default() };
            let _ = codec.transcode(&jpeg, &head, &recipe, &mut out).unwrap();
            written.push((gray, out.clone()));
            let loaded = codec.load(&jpeg, &head, &mut eighth).unwrap();
            let _ = loaded.write(&recipe, &mut out).unwrap();
            written.push((gray, out.clone()));
            let _ = codec.decode_planes(&jpeg, &head, 4, gray, &mut planes, None).unwrap();
            codec.encode_planes(&mut planes, Quality::Scaled(50), &mut out).unwrap();
            let before = out.len();
            let gone = gray && components == 3;
            codec.carry(&jpeg, if gone { Colours::Gone } else { Colours::Kept }, &mut out);
            let profile_bytes = if gone { 0 } else { 65_000 + 700 + 2 * (4 + 14) };
            assert_eq!(out.len() - before, 36 + profile_bytes);
            written.push((gray, out.clone()));
        }
        for (gray, out) in written {
            let (segments, _) = take_apart(&out);
            let of = |marker| segments.iter().filter(move |(m, _)| *m == marker).cloned();
            let kept: Vec<_> = of(0xe2).collect();
            let expected = if gray && components == 3 { &[][..] } else { &profiles[..] };
            assert_eq!(kept, expected, "{components} components, gray {gray}");
            assert_eq!(header(&out).orientation.value(), 6);
            assert_eq!(of(0xe0).next().unwrap().1[7..12], [0, 0, 2, 0, 1]);
            let names = |marker: u8| (0xe0..=0xef).contains(&marker) || marker == 0xfe;
            let all = segments.iter().filter(|(marker, _)| names(*marker)).count();
            assert_eq!(all, 2 + kept.len(), "{components} components, gray {gray}");
            let _ = decode(&out, 8, false);
        }
    }
}

/// The result of one decoder for a frame: whether it was damaged, and bytes or samples with the 1/8 image.
type Made = Result<(u32, Vec<u8>), CodecError>;

/// The results of every decoder for a frame.
fn everything(codec: &mut Codec, jpeg: &[u8], head: &Header) -> Vec<Made> {
    let mut all = Vec::new();
    let (mut planes, mut eighth, mut out) = (Planes::default(), Vec::new(), Vec::new());
    for gray in [false, true] {
        let recipe = Recipe { gray, ..Recipe::default() };
        let read = codec.transcode(jpeg, head, &recipe, &mut out);
        all.push(read.map(|read| (read.damages, out.clone())));
        for eighths in 1..=8 {
            let read =
                codec.decode_planes(jpeg, head, eighths, gray, &mut planes, Some(&mut eighth));
            let samples = |planes: &Planes| {
                let of = |i| {
                    let (width, _, stride, data) = planes.plane(i);
                    data.chunks(stride).flat_map(move |row| row[..width].to_vec())
                };
                (0..planes.components()).flat_map(of).chain(eighth.clone()).collect()
            };
            all.push(read.map(|read| (read.damages, samples(&planes))));
        }
    }
    let read = codec.read_eighth(jpeg, head, &mut eighth);
    all.push(read.map(|read| (read.damages, eighth.clone())));
    let loaded = codec.load(jpeg, head, &mut eighth);
    let read = loaded.and_then(|c| c.write(&Recipe::default(), &mut out));
    all.push(read.map(|read| (read.damages, out.clone())));
    all
}

#[test]
fn our_entropy_decoder_reads_what_that_of_libjpeg_reads() {
    let mut random = Random(0x5eed_0002);
    let (mut ours, mut plain) = (Codec::new(), Codec::new());
    plain.prefer_libjpeg(true);
    let mut frames = frames();
    // Grain at every quality: all code lengths, and blocks that end without an end of block.
    for quality in [20, 70, 95, 100] {
        for (name, luma, chroma) in SAMPLINGS {
            let mut planes = picture(75, 53, 3, sampling(luma, chroma));
            for i in 0..3 {
                let strength = 1 + random.below(255);
                for sample in planes.plane_mut(i).3 {
                    *sample = sample.wrapping_add(random.below(strength) as u8);
                }
            }
            let jpeg = encode(&planes, quality);
            frames.push((format!("{name} grain q{quality}"), planes, jpeg));
        }
    }
    for (name, _, jpeg) in frames {
        let head = header(&jpeg);
        assert_eq!(
            everything(&mut ours, &jpeg, &head),
            everything(&mut plain, &jpeg, &head),
            "{name}"
        );
        assert_eq!(ours.was_libjpeg(), name.ends_with("progressive"), "{name}");
        assert!(plain.was_libjpeg());
    }
}

#[test]
fn five_eighths_are_those_of_libjpeg_but_for_rounding() {
    let mut random = Random(0x5eed_0003);
    for quality in [5, 50, 90, 100] {
        let mut planes = picture(203, 77, 1, sampling((1, 1), (1, 1)));
        for sample in planes.plane_mut(0).3 {
            *sample = sample.wrapping_add(random.below(1 + 2 * quality as usize) as u8);
        }
        let jpeg = encode(&planes, quality);
        let ours = decode(&jpeg, 5, true);
        let (width, height, stride, data) = ours.plane(0);
        let mut theirs = Image {
            pixels: vec![0; width * height],
            width,
            pitch: width,
            height,
            format: PixelFormat::GRAY,
        };
        let mut decompressor = Decompressor::new().unwrap();
        decompressor.set_scaling_factor(ScalingFactor::new(5, 8)).unwrap();
        decompressor.decompress(&jpeg, theirs.as_deref_mut()).unwrap();
        let rows = data.chunks(stride).zip(theirs.pixels.chunks(width));
        let off: Vec<u8> = rows
            .flat_map(|(a, b)| a[..width].iter().zip(b).map(|(&a, &b)| a.abs_diff(b)))
            .collect();
        let far = off.iter().filter(|&&off| off > 1).count();
        let apart = off.iter().filter(|&&off| off > 0).count();
        assert!(far == 0 && apart * 10 < off.len(), "q{quality}: {far}, {apart} of {}", off.len());
    }
}

#[test]
fn our_entropy_decoder_judges_damage_as_that_of_libjpeg() {
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut random = Random(seed);
    let limits = Limits { pixels_max: 1 << 16, ..Limits::default() };
    let sources: Vec<Vec<u8>> = frames()
        .into_iter()
        .filter(|(name, ..)| !name.ends_with("progressive"))
        .map(|(.., jpeg)| jpeg)
        .collect();
    let (mut ours, mut plain) = (Codec::new(), Codec::new());
    plain.prefer_libjpeg(true);
    let (mut by_scan, mut damaged) = (0, 0);
    for _ in 0..1_500 {
        let mut jpeg = sources[random.below(sources.len())].clone();
        let scan = jpeg.windows(2).position(|w| w == [0xff, 0xda]).unwrap();
        for _ in 0..=random.below(2) {
            // Mostly in the picture data, else in the tables.
            let from = if random.below(4) > 0 { scan.min(jpeg.len() - 1) } else { 2 };
            let at = from + random.below(jpeg.len() - from);
            match random.below(4) {
                0 => jpeg[at] = random.next() as u8,
                1 => jpeg[at] ^= 1 << random.below(8),
                2 => drop(jpeg.drain(at..(at + random.below(9)).min(jpeg.len() - 1))),
                _ => jpeg.insert(at, [0xff, 0xd0, 0][random.below(3)]),
            }
        }
        let Ok(head) = Header::read(&jpeg, &limits) else { continue };
        let (a, b) = (everything(&mut ours, &jpeg, &head), everything(&mut plain, &jpeg, &head));
        assert!(a == b, "{jpeg:02x?}");
        by_scan += usize::from(!ours.was_libjpeg());
        damaged += usize::from(a[0].as_ref().map_or(true, |(damages, _)| *damages > 0));
    }
    assert!(by_scan > 100 && damaged > 100, "{by_scan} read by ours, {damaged} damaged");
}

#[test]
fn hostile_bytes_lead_to_a_picture_or_an_error() {
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut random = Random(seed);
    let limits = Limits { pixels_max: 1 << 16, ..Limits::default() };
    let sources: Vec<Vec<u8>> = frames().into_iter().map(|(.., jpeg)| jpeg).collect();
    let mut codec = Codec::new();
    let (mut planes, mut packed) = (Planes::default(), Packed::default());
    let (mut out, mut eighth) = (Vec::new(), Vec::new());
    let (mut read, mut written) = (0, 0);
    for _ in 0..6_000 {
        let mut jpeg = sources[random.below(sources.len())].clone();
        for _ in 0..=random.below(6) {
            let at = random.below(jpeg.len());
            match random.below(4) {
                0 => jpeg[at] = random.next() as u8,
                1 => jpeg[at] ^= 1 << random.below(8),
                2 => drop(jpeg.drain(at..(at + random.below(40)).min(jpeg.len()))),
                _ => {
                    let from = random.below(jpeg.len());
                    let piece = jpeg[from..(from + random.below(40)).min(jpeg.len())].to_vec();
                    jpeg.splice(at..at, piece);
                }
            }
        }
        let Ok(head) = Header::read(&jpeg, &limits) else { continue };
        read += 1;
        let (across, down) = head.units();
        let mask = vec![(random.next() & 1) as u8; across * down];
        let recipe = Recipe {
            quality: [Quality::Kept, Quality::Scaled(50)][random.below(2)],
            dead_zone: random.below(2) == 0,
            gray: random.below(2) == 0,
            keep: None,
            background: [None, Some((3, &mask[..]))][random.below(2)],
            cover: [None, Some(&mask[..])][random.below(2)],
        };
        let eighths = 1 + random.below(8) as u8;
        let done = match random.below(4) {
            0 => codec
                .decode_planes(&jpeg, &head, eighths, false, &mut planes, Some(&mut eighth))
                .and_then(|_| codec.encode_planes(&mut planes, recipe.quality, &mut out)),
            1 => codec.transcode(&jpeg, &head, &recipe, &mut out).map(|_| ()),
            2 => codec
                .load(&jpeg, &head, &mut eighth)
                .and_then(|loaded| loaded.write(&recipe, &mut out))
                .map(|_| ()),
            _ => codec
                .decode_bgr(&jpeg, &head, eighths, &mut packed, None)
                .and_then(|_| codec.encode_bgr(&packed, 75, &mut out)),
        };
        if done.is_ok() {
            written += 1;
            let head = header(&out);
            let sound = codec.decode_planes(&out, &head, 8, false, &mut planes, None);
            assert_eq!(sound, Ok(Read::default()), "the output was sound");
        }
    }
    assert!(read > 1000 && written > 500, "{read} read and {written} written of 6000");
}
