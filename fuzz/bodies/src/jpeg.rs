//! Any bytes as a camera's frame, every way through the codec and the knobs; and as a stream of frames.

use tidegate_camera::source::Splitter;
use tidegate_frame::{
    knob::{Applied, FrameLimits, KnobSetting, Transcoder, inspect},
    privacy::{Cover, Mask, Masker, Region},
};
use tidegate_jpeg::{Codec, Colours, Header, Limits, Packed, Planes, Quality, Read, Recipe};

/// Small enough that a forged header does not turn the run into an allocation benchmark.
const PIXELS_MAX: u32 = 1 << 16;
const BYTES_MAX: usize = 1 << 20;

/// Every knob that takes a way of its own.
const SETTINGS: [&str; 12] = [
    "original",
    "original diff1%",
    "q50 dz",
    "q95",
    "gray",
    "q30 gray roi3 diff2%",
    "roi1",
    "5/8 q50",
    "1/2",
    "1/4 gray diff1%",
    "mez 1246",
    "mez 1320",
];

/// Two bytes that choose, then a frame: read and written in every way, it is refused with an error, or what is written is sound,
/// has the size that was asked for, and is seen as the frame is.
pub fn jpeg(data: &[u8]) {
    let Some((&[first, second], frame)) = data.split_first_chunk() else { return };
    let limits = Limits { bytes_max: BYTES_MAX, pixels_max: PIXELS_MAX };
    let Ok(header) = Header::read(frame, &limits) else { return };
    let mut ways =
        Ways { frame, header, codec: Codec::new(), planes: Planes::default(), out: Vec::new() };
    ways.pixels(1 + first % 8, first & 8 != 0, first >> 4);
    ways.coefficients(second);
    ways.knobs(usize::from(first) % SETTINGS.len(), second);
    ways.regions(first, second);
}

struct Ways<'a> {
    frame: &'a [u8],
    header: Header,
    codec: Codec,
    planes: Planes,
    out: Vec<u8>,
}

impl Ways<'_> {
    /// The output is sound, and turned as the frame is.
    fn check(&mut self) {
        let limits = Limits { bytes_max: usize::MAX, pixels_max: PIXELS_MAX };
        let written = Header::read(&self.out, &limits).expect("the output is a frame");
        assert_eq!(written.orientation, self.header.orientation);
        assert!(written.ended);
        let read = self.codec.decode_planes(&self.out, &written, 8, false, &mut self.planes, None);
        assert_eq!(read, Ok(Read::default()), "the output is sound");
    }

    fn pixels(&mut self, eighths: u8, gray: bool, quality: u8) {
        let quality =
            [Quality::Kept, Quality::Scaled(1), Quality::Scaled(50), Quality::Scaled(100)]
                [usize::from(quality % 4)];
        let mut eighth = Vec::new();
        let Self { frame, header, codec, planes, out } = self;
        let look = Some(&mut eighth);
        if codec.decode_planes(frame, header, eighths, gray, planes, look).is_ok() {
            codec.encode_planes(planes, quality, out).expect("planes are encoded");
            let colours = if gray { Colours::Gone } else { Colours::Kept };
            codec.carry(frame, colours, out);
            assert_eq!(eighth.len(), header.eighth().0 * header.eighth().1);
            self.check();
        }
        let mut packed = Packed::default();
        let Self { frame, header, codec, out, .. } = self;
        if codec.decode_bgr(frame, header, eighths, &mut packed, Some(&mut eighth)).is_ok() {
            codec.encode_bgr(&packed, 75, out).expect("pixels are encoded");
            codec.carry(frame, Colours::Gone, out);
            self.check();
        }
    }

    fn coefficients(&mut self, choice: u8) {
        let units = self.header.units().0 * self.header.units().1;
        let cover: Vec<u8> = (0..units).map(|unit| [0, 1, 128, 255][unit % 4]).collect();
        let recipe = Recipe {
            quality: [Quality::Kept, Quality::Scaled(50)][usize::from(choice & 1)],
            dead_zone: choice & 2 != 0,
            gray: choice & 4 != 0,
            keep: (choice & 8 != 0).then_some(5),
            background: (choice & 16 != 0).then_some((1 + choice % 7, &cover[..])),
            cover: (choice & 32 != 0).then_some(&cover[..]),
        };
        let mut eighth = Vec::new();
        let means = self.codec.read_eighth(self.frame, &self.header, &mut eighth);
        let read = self.codec.transcode(self.frame, &self.header, &recipe, &mut self.out);
        if read.is_ok() {
            // The means alone are read by the same codes.
            assert!(means.is_ok());
            let first = self.out.clone();
            let loaded = self.codec.load(self.frame, &self.header, &mut eighth);
            // To the end of the image there may be more to find fault with.
            if let Ok(loaded) = loaded
                && loaded.write(&recipe, &mut self.out).is_ok_and(|read| read.damages == 0)
            {
                assert_eq!(self.out, first, "a row at a time as all at once");
            }
            self.out = first;
            self.check();
        }
    }

    fn knobs(&mut self, at: usize, again: u8) {
        let limits = FrameLimits { bytes_max: BYTES_MAX, pixels_max: PIXELS_MAX };
        let mut transcoder = Transcoder::new(limits);
        // Twice, so that differencing and what moves have something to compare with.
        for at in [at, usize::from(again) % SETTINGS.len()] {
            let setting: KnobSetting = SETTINGS[at].parse().expect("a setting");
            match transcoder.apply(self.frame, &setting, &mut self.out) {
                Ok(Applied::Encoded { size }) => {
                    transcoder.sent();
                    let limits = FrameLimits { bytes_max: usize::MAX, ..limits };
                    let info = inspect(&self.out, &limits).expect("the knobs' output is a frame");
                    assert_eq!((info.size, info.orientation), (size, self.header.orientation));
                    if self.out != self.frame {
                        self.check();
                    }
                }
                Ok(Applied::Unchanged { .. }) | Err(_) => assert!(self.out.is_empty()),
            }
        }
    }

    fn regions(&mut self, first: u8, second: u8) {
        let limits = FrameLimits { bytes_max: BYTES_MAX, pixels_max: PIXELS_MAX };
        let fraction = |byte: u8| f32::from(byte) / 256.0;
        let (left, top) = (fraction(first), fraction(second));
        let region = Region::new(left, top, (left + 0.3).min(1.0), (top + 0.2).min(1.0));
        let cover = if first & 1 == 0 { Cover::Fill } else { Cover::Blur };
        let masks = [
            Mask { region: region.expect("a region"), cover },
            Mask { region: Region::WHOLE, cover: Cover::Blur },
        ];
        let masks = &masks[..1 + usize::from(second & 1)];
        match Masker::new(limits).apply(self.frame, masks, &mut self.out) {
            Ok(()) => self.check(),
            Err(_) => assert!(self.out.is_empty()),
        }
    }
}

/// A byte for the length of reads, then a stream: the same images however it is read, each with a start and an end, none over the
/// limit; and all of it as one file.
pub fn mjpeg(data: &[u8]) {
    const IMAGE_BYTES_MAX: usize = 1 << 12;
    let Some((&step, stream)) = data.split_first() else { return };
    let images = |step: usize| {
        let mut splitter = Splitter::new(IMAGE_BYTES_MAX);
        let mut found = Vec::new();
        for read in stream.chunks(step.max(1)) {
            splitter.push(read);
            found.extend(std::iter::from_fn(|| splitter.next_image()));
        }
        found.extend(splitter.finish());
        found
    };
    let whole = images(stream.len());
    assert_eq!(images(usize::from(step)), whole);
    let only = Splitter::of(stream.to_vec(), usize::MAX).only_image();
    for image in whole.iter().flatten() {
        assert!(image.len() <= IMAGE_BYTES_MAX);
    }
    for image in whole.iter().chain([&only]).flatten() {
        assert!(image.starts_with(&[0xff, 0xd8]) && image.ends_with(&[0xff, 0xd9]));
    }
}
