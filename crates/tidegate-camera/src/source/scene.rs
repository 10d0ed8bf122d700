//! A generated street with known boxes: a substitute for a camera.
//!
//! ```text
//!  seed ──▶ backdrop (houses, pavement, road: painted once) ─┐
//!       └─▶ people and cars, each on its lane and loop ──────┴─▶ frame ─▶ grain ─▶ JPEG, with its boxes
//! ```
//!
//! The whole loop is drawn and encoded before the first frame, so that at run time the source costs a pointer. A 1080p frame has
//! 300 to 500 KB at quality 95, as real cameras' frames do: brickwork, leaves, asphalt and sensor grain carry the bytes.
//!
//! Always true: the same description gives the same bytes; the last frame leads into the first; a box is known for everything
//! that moves and is more than half visible, and for nothing else.

use std::{num::NonZero, sync::Arc, thread};

use tidegate_jpeg::{Codec, CodecError, Planes as JpegPlanes, Quality, Sampling};
use tidegate_message::{Detection, Rect};

use super::{Picture, Rate, SceneSpec};

mod actor;
mod backdrop;
mod canvas;
mod noise;

use actor::Actor;
use canvas::{Area, Canvas, Planes};
use noise::Draws;

/// A street, painted and peopled, ready to be filmed.
#[derive(Debug)]
pub struct Street {
    spec: SceneSpec,
    backdrop: Canvas,
    planes: Planes,
    actors: Vec<Actor>,
    grain: Vec<i8>,
}

/// Where things stand, as shares of the frame's height. The vanishing point is above the picture's middle: the camera
/// hangs on a house and looks down.
mod place {
    pub(super) const HORIZON: f32 = 0.18;
    pub(super) const FACADE: f32 = 0.40;
    pub(super) const FAR_CURB: f32 = 0.50;
    pub(super) const NEAR_CURB: f32 = 0.80;
    /// Metres to shares of the height, for something that stands at `foot`.
    pub(super) fn metres(foot: f32, metres: f32) -> f32 {
        (foot - HORIZON) * 0.27 * metres
    }
}

/// Standard deviation of the grain, in levels of 256.
const GRAIN: f32 = 0.6;
/// Grain is drawn once and shifted from row to row and frame to frame.
const GRAIN_LENGTH: usize = 1 << 18;

impl Street {
    /// Paints the street.
    pub fn new(spec: SceneSpec) -> Self {
        let (width, height) = (usize::from(spec.size.width), usize::from(spec.size.height));
        let backdrop = backdrop::paint(width, height, spec.seed);
        let mut planes = Planes::new(width, height);
        backdrop.to_planes(backdrop.area(), &mut planes);
        let mut draws = Draws::new(spec.seed, 3);
        let grain =
            (0..GRAIN_LENGTH + width).map(|_| (draws.normal() * GRAIN).round() as i8).collect();
        let aspect = width as f32 / height as f32;
        let actors = actor::cast(&spec, aspect);
        Self { spec, backdrop, planes, actors, grain }
    }

    /// Draws and encodes the whole loop, on all cores.
    ///
    /// # Errors
    /// [`SceneError`] if the encoder refuses.
    pub fn film(&self, rate: Rate) -> Result<Vec<Picture>, SceneError> {
        let count = (u64::from(self.spec.seconds) * u64::from(rate.millihertz())).div_ceil(1000);
        let count = usize::try_from(count).unwrap_or(usize::MAX).max(1);
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(count);
        let films: Vec<Result<Vec<Picture>, SceneError>> = thread::scope(|scope| {
            let film = |first: usize| {
                let mut camera = Camera::new(self);
                (first..count).step_by(threads).map(|index| camera.shoot(index, count)).collect()
            };
            let running: Vec<_> =
                (0..threads).map(|first| scope.spawn(move || film(first))).collect();
            let joined = running.into_iter().map(|thread| thread.join());
            joined
                .map(|film| film.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut films = films.into_iter().collect::<Result<Vec<_>, _>>()?;
        films.iter_mut().for_each(|film| film.reverse());
        Ok((0..count).filter_map(|index| films[index % threads].pop()).collect())
    }
}

/// Draws frames one after another; keeps its buffers.
struct Camera<'a> {
    street: &'a Street,
    canvas: Canvas,
    planes: Planes,
    grained: JpegPlanes,
    owners: Vec<u8>,
    changed: Vec<Area>,
    codec: Codec,
}

impl<'a> Camera<'a> {
    fn new(street: &'a Street) -> Self {
        let full = Sampling { horizontal: 2, vertical: 2 };
        let half = Sampling { horizontal: 1, vertical: 1 };
        let mut grained = JpegPlanes::default();
        grained.reset(street.spec.size.width, street.spec.size.height, 3, [full, half, half]);
        Self {
            street,
            canvas: street.backdrop.clone(),
            planes: street.planes.clone(),
            grained,
            owners: vec![0; street.planes.y.len()],
            changed: Vec::new(),
            codec: Codec::new(),
        }
    }

    /// The frame `index` of a loop of `count`.
    fn shoot(&mut self, index: usize, count: usize) -> Result<Picture, SceneError> {
        let truth = self.draw(index as f32 / count as f32);
        self.add_grain(index as u64);
        let mut jpeg = Vec::new();
        let quality = Quality::Scaled(self.street.spec.quality);
        self.codec.encode_planes(&mut self.grained, quality, &mut jpeg)?;
        Ok(Picture { jpeg: jpeg.into(), truth: Some(truth) })
    }

    /// Draws everything at `time`, 0 to 1 of the loop, and returns what can be seen.
    fn draw(&mut self, time: f32) -> Arc<[Detection]> {
        for area in self.changed.drain(..) {
            self.canvas.restore(&self.street.backdrop, area);
            self.canvas.to_planes(area, &mut self.planes);
        }
        self.owners.fill(0);
        let mut drawn = Vec::new();
        for (number, actor) in (1u8..).zip(&self.street.actors) {
            let seen = actor.draw(&mut self.canvas, &mut self.owners, number, time);
            self.changed.extend(seen.changed);
            drawn.push(seen);
        }
        for &area in &self.changed {
            self.canvas.to_planes(area, &mut self.planes);
        }
        let mut visible = vec![0u32; self.street.actors.len() + 1];
        self.owners.iter().for_each(|&owner| visible[usize::from(owner)] += 1);
        let known = drawn.iter().zip(&self.street.actors).enumerate().filter_map(
            |(index, (seen, actor))| {
                let (body, all) = (seen.body?, seen.pixels_whole);
                let clear = 2 * u64::from(visible[index + 1]) > u64::from(all);
                let [x1, y1, x2, y2] = [body.x1, body.y1, body.x2, body.y2].map(|v| v as f64);
                let rect = Rect::new(x1, y1, x2, y2).ok()?;
                clear.then(|| Detection { rect, score: 1.0, label: actor.label().into() })
            },
        );
        known.collect()
    }

    /// Lays the sensor's grain over the clean picture, into the planes that are encoded. Chroma has none: cameras remove it.
    fn add_grain(&mut self, frame: u64) {
        let width = self.planes.width;
        let (_, _, stride, luma) = self.grained.plane_mut(0);
        let rows = self.planes.y.chunks_exact(width).zip(luma.chunks_exact_mut(stride));
        for (row, (clean, grained)) in (0u64..).zip(rows) {
            let place = noise::mix(self.street.spec.seed ^ (frame << 20) ^ row);
            let start = (place % GRAIN_LENGTH as u64) as usize;
            let grain = &self.street.grain[start..start + width];
            for ((out, &pixel), &noise) in grained.iter_mut().zip(clean).zip(grain) {
                *out = pixel.saturating_add_signed(noise);
            }
        }
        let (chroma_width, _) = self.planes.chroma_size();
        for (index, plane) in [(1, &self.planes.cb), (2, &self.planes.cr)] {
            let (_, _, stride, rows) = self.grained.plane_mut(index);
            let rows = rows.chunks_exact_mut(stride).zip(plane.chunks_exact(chroma_width));
            rows.for_each(|(out, clean)| out[..chroma_width].copy_from_slice(clean));
        }
    }
}

/// Why a scene cannot be filmed.
#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    /// The encoder refuses.
    #[error("the encoder refuses a drawn frame")]
    Encode(#[from] CodecError),
}

#[cfg(test)]
mod tests;
