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
fn every_frame_cut_anywhere_is_an_error() {
    let jpeg = encode(&picture(61, 43, 3, sampling((2, 2), (1, 1))), 80);
    for length in 0..jpeg.len() {
        let error = Header::read(&jpeg[..length], &Limits::default()).unwrap_err();
        assert_eq!(error, HeaderError::Truncated, "at {length} of {}", jpeg.len());
    }
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
            assert_eq!(read, Ok(Read { warnings: 0 }), "{name}");
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

#[test]
fn damaged_picture_data_is_an_error_and_the_codec_goes_on() {
    let jpeg = encode(&picture(160, 120, 3, sampling((2, 2), (1, 1))), 90);
    let scan = jpeg.windows(2).position(|w| w == [0xff, 0xda]).unwrap() + 14;
    let mut codec = Codec::new();
    let (mut planes, mut out, mut eighth) = (Planes::default(), Vec::new(), Vec::new());
    // A gap in the middle, and an end of image too early.
    let mut early = jpeg[..jpeg.len() / 2].to_vec();
    early.extend_from_slice(&[0xff, 0xd9]);
    let mut empty = jpeg[..scan].to_vec();
    empty.extend_from_slice(&[0xff, 0xd9]);
    for broken in [early, empty] {
        let head = header(&broken);
        let errors = [
            codec.decode_planes(&broken, &head, 4, false, &mut planes, None).unwrap_err(),
            codec.transcode(&broken, &head, &Recipe::default(), &mut out).unwrap_err(),
            codec.read_eighth(&broken, &head, &mut eighth).unwrap_err(),
            codec.load(&broken, &head, &mut eighth).err().unwrap(),
        ];
        for error in errors {
            assert!(matches!(error, CodecError::Damaged { .. }), "{error}");
        }
        assert!(out.is_empty());
        let _ = codec.transcode(&jpeg, &header(&jpeg), &Recipe::default(), &mut out).unwrap();
        assert!(same_samples(&decode(&jpeg, 8, false), &decode(&out, 8, false)));
    }
}

/// What every way of reading makes of a frame: bytes, samples and the 1/8 image, or the error.
fn everything(codec: &mut Codec, jpeg: &[u8], head: &Header) -> Vec<Result<Vec<u8>, CodecError>> {
    let mut all = Vec::new();
    let (mut planes, mut eighth, mut out) = (Planes::default(), Vec::new(), Vec::new());
    for gray in [false, true] {
        let recipe = Recipe { gray, ..Recipe::default() };
        all.push(codec.transcode(jpeg, head, &recipe, &mut out).map(|_| out.clone()));
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
            all.push(read.map(|_| samples(&planes)));
        }
    }
    all.push(codec.read_eighth(jpeg, head, &mut eighth).map(|_| eighth.clone()));
    let loaded = codec.load(jpeg, head, &mut eighth);
    all.push(loaded.and_then(|c| c.write(&Recipe::default(), &mut out)).map(|_| out.clone()));
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
    let (mut by_scan, mut refused) = (0, 0);
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
        refused += usize::from(a[0].is_err());
    }
    assert!(by_scan > 100 && refused > 100, "{by_scan} read by ours, {refused} refused");
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
            let _ = codec.decode_planes(&out, &head, 8, false, &mut planes, None).unwrap();
        }
    }
    assert!(read > 1000 && written > 500, "{read} read and {written} written of 6000");
}
