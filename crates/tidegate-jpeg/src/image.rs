//! Pixels between decoding and encoding: planes of Y, Cb and Cr, or packed B, G, R.

use crate::header::{Header, Sampling};

/// The samples of one picture, a plane for each component, in one buffer that is reused.
///
/// Rows of a plane stand `stride` bytes apart; the bytes between its width and its stride belong to the
/// codec.
#[derive(Clone, Debug)]
pub struct Planes {
    pub(crate) data: Vec<u8>,
    pub(crate) planes: [Plane; 3],
    pub(crate) components: usize,
    pub(crate) sampling: [Sampling; 3],
    pub(crate) width: u16,
    pub(crate) height: u16,
    /// Quantization tables of the picture that was decoded into these planes, natural order.
    pub(crate) tables: [[u16; 64]; 3],
}

/// Where a plane lies in the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plane {
    pub(crate) offset: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) stride: usize,
    pub(crate) rows: usize,
}

impl Default for Planes {
    fn default() -> Self {
        Self {
            data: Vec::new(),
            planes: Default::default(),
            components: 0,
            sampling: Default::default(),
            width: 0,
            height: 0,
            tables: [[0; 64]; 3],
        }
    }
}

impl Planes {
    /// Lays the planes out for a picture of `width` x `height` with `components` planes sampled as `sampling` says.
    /// Their content is unspecified. The buffer grows and never shrinks.
    pub fn reset(&mut self, width: u16, height: u16, components: usize, sampling: [Sampling; 3]) {
        assert!(width > 0 && height > 0, "a picture has pixels");
        assert!(components == 1 || components == 3, "a picture has one or three planes");
        self.sampling = sampling;
        if components == 1 {
            // The sampling of an only plane means nothing.
            self.sampling =
                [Sampling { horizontal: 1, vertical: 1 }, Default::default(), Default::default()];
        }
        (self.width, self.height, self.components) = (width, height, components);
        let first = self.sampling[0];
        let mut end = 0;
        for (plane, sampling) in self.planes.iter_mut().zip(self.sampling).take(components) {
            let side = |pixels: u16, most: u8, own: u8| {
                assert!((1..=most).contains(&own) && most <= 4, "the first plane is the densest");
                (usize::from(pixels) * usize::from(own)).div_ceil(usize::from(most))
            };
            plane.width = side(width, first.horizontal, sampling.horizontal);
            plane.height = side(height, first.vertical, sampling.vertical);
            // The blocks of the scaled decoder and of the encoder overhang by at most 7 samples to the right
            // and by a unit of at most 4 blocks below.
            plane.stride = (plane.width + 7 + 31) & !31;
            plane.rows = plane.height + 32;
            plane.offset = end;
            end += plane.stride * plane.rows;
        }
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
    }

    /// Lays the planes out for `header` scaled to `eighths`, all of them or luma alone.
    pub(crate) fn reset_for(&mut self, header: &Header, eighths: u8, gray: bool) {
        let side = |pixels: u16| (usize::from(pixels) * usize::from(eighths)).div_ceil(8) as u16;
        let components = if gray { 1 } else { usize::from(header.components) };
        self.reset(side(header.width), side(header.height), components, header.sampling);
    }

    /// Width of the picture in pixels.
    pub fn width(&self) -> u16 {
        self.width
    }

    /// Height of the picture in pixels.
    pub fn height(&self) -> u16 {
        self.height
    }

    /// How many planes there are, 1 or 3.
    pub fn components(&self) -> usize {
        self.components
    }

    /// How the planes are sampled.
    pub fn sampling(&self) -> [Sampling; 3] {
        self.sampling
    }

    /// Width, height and stride of a plane and its rows, `stride` bytes each.
    pub fn plane(&self, index: usize) -> (usize, usize, usize, &[u8]) {
        let p = &self.planes[..self.components][index];
        (p.width, p.height, p.stride, &self.data[p.offset..][..p.stride * p.height])
    }

    /// As [`plane`](Self::plane), to write.
    pub fn plane_mut(&mut self, index: usize) -> (usize, usize, usize, &mut [u8]) {
        let p = &self.planes[..self.components][index];
        (p.width, p.height, p.stride, &mut self.data[p.offset..][..p.stride * p.height])
    }
}

/// B, G and R of each pixel, row-major, `height * width * 3` bytes.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    pub(crate) data: Vec<u8>,
    pub(crate) width: u16,
    pub(crate) height: u16,
}

impl Packed {
    /// Makes room for a picture of that size. Its content is unspecified. The buffer grows and never shrinks.
    pub fn reset(&mut self, width: u16, height: u16) {
        assert!(width > 0 && height > 0, "a picture has pixels");
        (self.width, self.height) = (width, height);
        let bytes = self.bytes();
        if self.data.len() < bytes {
            self.data.resize(bytes, 0);
        }
    }

    fn bytes(&self) -> usize {
        usize::from(self.width) * usize::from(self.height) * 3
    }

    /// Width in pixels.
    pub fn width(&self) -> u16 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u16 {
        self.height
    }

    /// The samples.
    pub fn data(&self) -> &[u8] {
        &self.data[..self.bytes()]
    }

    /// The samples, to write.
    pub fn data_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes();
        &mut self.data[..bytes]
    }
}
