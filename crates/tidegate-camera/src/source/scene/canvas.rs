//! A picture to draw on: shapes with soft edges, given by their distance, and planes for the encoder.

/// Red, green, blue, 0 to 255.
pub(super) type Color = [f32; 3];

/// `color` made lighter (above 1) or darker.
pub(super) fn shade(color: Color, factor: f32) -> Color {
    color.map(|c| c * factor)
}

/// Between `a` (0) and `b` (1).
pub(super) fn blend(a: Color, b: Color, t: f32) -> Color {
    [0, 1, 2].map(|i| a[i] + (b[i] - a[i]) * t)
}

/// A rectangle of whole pixels, right and bottom excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) x1: usize,
    pub(super) y1: usize,
    pub(super) x2: usize,
    pub(super) y2: usize,
}

impl Area {
    /// Both, and what lies between.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            x1: self.x1.min(other.x1),
            y1: self.y1.min(other.y1),
            x2: self.x2.max(other.x2),
            y2: self.y2.max(other.y2),
        }
    }
}

/// RGB, row-major, `height * width` pixels.
#[derive(Clone, Debug)]
pub(super) struct Canvas {
    pub(super) width: usize,
    pub(super) height: usize,
    pixels: Vec<[u8; 3]>,
}

/// A shape: its signed distance in pixels, negative inside, and a box that it lies in.
pub(super) struct Shape<F> {
    bounds: [f32; 4],
    distance: F,
}

impl Canvas {
    pub(super) fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![[0; 3]; width * height] }
    }

    /// Paints every pixel of `area` again.
    pub(super) fn texture(&mut self, area: Area, color: impl Fn(f32, f32) -> Color) {
        for y in area.y1..area.y2.min(self.height) {
            for x in area.x1..area.x2.min(self.width) {
                self.pixels[y * self.width + x] = color(x as f32, y as f32).map(to_byte);
            }
        }
    }

    /// Fills a shape with one colour.
    pub(super) fn fill<F: Fn(f32, f32) -> f32>(
        &mut self,
        shape: &Shape<F>,
        color: Color,
    ) -> Option<Area> {
        self.paint(shape, 1.0, |_, _, _| color, |_| {})
    }

    /// Paints a shape; `color` is given the place and what is there, `touched` the index of each pixel that the shape owns.
    /// Returns the area that may have changed, `None` if it lies outside.
    pub(super) fn paint<F: Fn(f32, f32) -> f32>(
        &mut self,
        shape: &Shape<F>,
        opacity: f32,
        color: impl Fn(f32, f32, Color) -> Color,
        mut touched: impl FnMut(usize),
    ) -> Option<Area> {
        let area = self.clip(shape.bounds)?;
        for y in area.y1..area.y2 {
            for x in area.x1..area.x2 {
                let (px, py) = (x as f32 + 0.5, y as f32 + 0.5);
                let cover = (0.5 - (shape.distance)(px, py)).clamp(0.0, 1.0);
                if cover <= 0.0 {
                    continue;
                }
                let index = y * self.width + x;
                let there = self.pixels[index].map(f32::from);
                let mixed = blend(there, color(px, py, there), cover * opacity);
                self.pixels[index] = mixed.map(to_byte);
                if cover >= 0.5 {
                    touched(index);
                }
            }
        }
        Some(area)
    }

    /// The pixels that bounds with a soft edge reach.
    fn clip(&self, [x1, y1, x2, y2]: [f32; 4]) -> Option<Area> {
        let low = |v: f32| (v - 1.0).floor().max(0.0) as usize; // the cast saturates
        let high = |v: f32, side: usize| ((v + 1.0).ceil().max(0.0) as usize).min(side);
        let area =
            Area { x1: low(x1), y1: low(y1), x2: high(x2, self.width), y2: high(y2, self.height) };
        (area.x1 < area.x2 && area.y1 < area.y2).then_some(area)
    }

    /// Softens the picture as a lens does, over a pixel or so.
    pub(super) fn soften(&mut self) {
        const WEIGHTS: [u16; 5] = [1, 4, 6, 4, 1];
        for (step, count, lines, stride) in
            [(1, self.width, self.height, self.width), (self.width, self.height, self.width, 1)]
        {
            let mut line = vec![[0u8; 3]; count];
            for start in (0..lines).map(|line| line * stride) {
                for (index, pixel) in line.iter_mut().enumerate() {
                    *pixel = self.pixels[start + index * step];
                }
                for index in 0..count {
                    let near = |tap: usize| line[(index + tap).saturating_sub(2).min(count - 1)];
                    let channel = |c: usize| -> u16 {
                        (0..5).map(|tap| WEIGHTS[tap] * u16::from(near(tap)[c])).sum()
                    };
                    let soft = [0, 1, 2].map(|c| ((channel(c) + 8) / 16) as u8);
                    self.pixels[start + index * step] = soft;
                }
            }
        }
    }

    /// Copies what `from` shows in `area`.
    pub(super) fn restore(&mut self, from: &Self, area: Area) {
        for y in area.y1..area.y2 {
            let row = y * self.width + area.x1..y * self.width + area.x2;
            self.pixels[row.clone()].copy_from_slice(&from.pixels[row]);
        }
    }

    /// Converts `area`, grown to even corners, into planes of full-range YCbCr (JFIF), chroma halved both ways.
    pub(super) fn to_planes(&self, area: Area, planes: &mut Planes) {
        let (chroma_width, chroma_height) = planes.chroma_size();
        for cy in area.y1 / 2..area.y2.div_ceil(2).min(chroma_height) {
            for cx in area.x1 / 2..area.x2.div_ceil(2).min(chroma_width) {
                let mut sum = [0.0; 3];
                for (dx, dy) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                    let (x, y) =
                        ((2 * cx + dx).min(self.width - 1), (2 * cy + dy).min(self.height - 1));
                    let index = y * self.width + x;
                    let [r, g, b] = self.pixels[index].map(f32::from);
                    planes.y[index] = to_byte(0.299 * r + 0.587 * g + 0.114 * b);
                    sum = [sum[0] + r, sum[1] + g, sum[2] + b];
                }
                let [r, g, b] = sum.map(|s| s / 4.0);
                let index = cy * chroma_width + cx;
                planes.cb[index] = to_byte(128.0 - 0.168_736 * r - 0.331_264 * g + 0.5 * b);
                planes.cr[index] = to_byte(128.0 + 0.5 * r - 0.418_688 * g - 0.081_312 * b);
            }
        }
    }

    /// All of it.
    pub(super) const fn area(&self) -> Area {
        Area { x1: 0, y1: 0, x2: self.width, y2: self.height }
    }
}

/// Full-range YCbCr, each plane row-major; chroma has half the width and height, rounded up.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) y: Vec<u8>,
    pub(super) cb: Vec<u8>,
    pub(super) cr: Vec<u8>,
}

impl Planes {
    pub(super) fn new(width: usize, height: usize) -> Self {
        let chroma = width.div_ceil(2) * height.div_ceil(2);
        Self {
            width,
            height,
            y: vec![0; width * height],
            cb: vec![128; chroma],
            cr: vec![128; chroma],
        }
    }

    /// Width and height of the chroma planes.
    pub(super) const fn chroma_size(&self) -> (usize, usize) {
        (self.width.div_ceil(2), self.height.div_ceil(2))
    }
}

/// A rectangle by its corners.
pub(super) fn rectangle(x1: f32, y1: f32, x2: f32, y2: f32) -> Shape<impl Fn(f32, f32) -> f32> {
    let distance = move |x: f32, y: f32| (x1 - x).max(x - x2).max(y1 - y).max(y - y2);
    Shape { bounds: [x1, y1, x2, y2], distance }
}

/// An ellipse by its centre and half axes. The distance is exact for circles and close for mild ellipses.
pub(super) fn ellipse(x: f32, y: f32, across: f32, down: f32) -> Shape<impl Fn(f32, f32) -> f32> {
    let distance = move |px: f32, py: f32| {
        let reach = ((px - x) / across).hypot((py - y) / down);
        (reach - 1.0) * across.min(down)
    };
    Shape { bounds: [x - across, y - down, x + across, y + down], distance }
}

/// A thick line with round ends whose thickness may change along it.
pub(super) fn limb(
    [x1, y1]: [f32; 2],
    [x2, y2]: [f32; 2],
    radius1: f32,
    radius2: f32,
) -> Shape<impl Fn(f32, f32) -> f32> {
    let (dx, dy) = (x2 - x1, y2 - y1);
    let length = (dx * dx + dy * dy).max(1e-6);
    let distance = move |x: f32, y: f32| {
        let along = (((x - x1) * dx + (y - y1) * dy) / length).clamp(0.0, 1.0);
        let radius = radius1 + (radius2 - radius1) * along;
        (x - x1 - along * dx).hypot(y - y1 - along * dy) - radius
    };
    let reach = radius1.max(radius2);
    let bounds = [x1.min(x2) - reach, y1.min(y2) - reach, x1.max(x2) + reach, y1.max(y2) + reach];
    Shape { bounds, distance }
}

/// A convex polygon, its corners clockwise on the screen, with corners rounded by `round` pixels.
pub(super) fn polygon(corners: Vec<[f32; 2]>, round: f32) -> Shape<impl Fn(f32, f32) -> f32> {
    let fold = |pick: fn(f32, f32) -> f32, axis: usize, start: f32| {
        corners.iter().map(|corner| corner[axis]).fold(start, pick)
    };
    let (low, high) = (f32::INFINITY, f32::NEG_INFINITY);
    let bounds = [
        fold(f32::min, 0, low) - round,
        fold(f32::min, 1, low) - round,
        fold(f32::max, 0, high) + round,
        fold(f32::max, 1, high) + round,
    ];
    let next = corners.iter().cycle().skip(1);
    let edges: Vec<[f32; 3]> = corners
        .iter()
        .zip(next)
        .map(|(&[x1, y1], &[x2, y2])| {
            let (dx, dy) = (x2 - x1, y2 - y1);
            let length = dx.hypot(dy).max(1e-6);
            let normal = [dy / length, -dx / length];
            [normal[0], normal[1], -(normal[0] * x1 + normal[1] * y1)]
        })
        .collect();
    let distance = move |x: f32, y: f32| {
        let reach = edges.iter().map(|[a, b, c]| a * x + b * y + c);
        reach.fold(f32::NEG_INFINITY, f32::max) - round
    };
    Shape { bounds, distance }
}

fn to_byte(value: f32) -> u8 {
    (value + 0.5) as u8 // the cast saturates at both ends
}
