//! The private parts of a camera's frames.
//!
//! ```text
//!  frame ──▶ Coverer: regions of the configuration, boxes of the detector ──▶ Masker ──▶ transcoder, original
//! ```
//!
//! Always true: a frame whose regions cannot be said, for its detector failed, is covered whole.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_frame::{
    knob::{FrameError, FrameLimits},
    privacy::{Cover, Mask, Masker, Region},
};
pub use tidegate_message::words::Originals;
use tidegate_message::{Detection, FrameSize, Instant, error_chain};
use tidegate_workers::SharedPool;
use tokio::runtime::Handle;

use crate::detector::{Detector, DetectorError, DetectorSpec, source_size};

/// How the frames of a camera are covered before they leave its node.
#[derive(Clone, Debug)]
pub struct Privacy {
    /// Where, and how.
    pub masks: Arc<[Mask]>,
    /// Objects that are covered wherever they are found, and how. Detectors overlook: only [`Privacy::masks`] are
    /// certain.
    pub found: Option<(DetectorSpec, Cover)>,
    /// Whether originals are covered, too.
    pub originals: Originals,
}

impl Default for Privacy {
    fn default() -> Self {
        Self { masks: [].into(), found: None, originals: Originals::default() }
    }
}

impl Privacy {
    /// The same, where a detector of ours is a model of that pool, and no program of its own for each camera.
    #[must_use]
    pub fn in_pool(mut self, pool: &SharedPool) -> Self {
        if let Some((spec, _)) = &mut self.found {
            spec.pool = Some(pool.clone());
        }
        self
    }

    /// Whether no frame may leave as it was captured.
    pub(super) fn covers(&self) -> bool {
        !self.masks.is_empty() || self.found.is_some()
    }

    /// Whether an original may not, either.
    pub(super) fn covers_originals(&self) -> bool {
        self.covers() && self.originals == Originals::Covered
    }
}

/// A detection stays covered so long in other frames: a detector overlooks now and then an object that it saw a moment
/// before.
const HELD: Duration = Duration::from_secs(1);
/// Boxes end at the chin: they are covered with so much around them, of their size.
const AROUND: f32 = 0.25;

/// Covers the frames of one camera. Lives on the encoder's thread.
pub(super) struct Coverer {
    privacy: Privacy,
    masker: Masker,
    finder: Option<Finder>,
}

impl Coverer {
    /// For frames within `limits`; its detector's I/O happens on `runtime`.
    pub(super) fn new(limits: FrameLimits, privacy: Privacy, runtime: Handle) -> Self {
        let finder = privacy.found.clone().map(|(spec, cover)| Finder {
            spec,
            cover,
            runtime,
            detector: None,
            source: None,
            held: Vec::new(),
            fails: false,
        });
        Self { privacy, masker: Masker::new(limits), finder }
    }

    /// Whether there is anything to cover.
    pub(super) fn covers(&self) -> bool {
        self.privacy.covers()
    }

    /// Writes the frame captured at `at` into `out`, covered.
    ///
    /// # Errors
    /// [`FrameError`]; `out` is empty then.
    pub(super) fn cover(
        &mut self,
        at: Instant,
        jpeg: &Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        let found = self.finder.as_mut().map(|finder| finder.masks(at, jpeg));
        let masks = [&self.privacy.masks[..], found.as_deref().unwrap_or_default()].concat();
        self.masker.apply(jpeg, &masks, out)
    }
}

/// Asks the detector.
struct Finder {
    spec: DetectorSpec,
    cover: Cover,
    runtime: Handle,
    detector: Option<Detector>,
    source: Option<FrameSize>,
    /// Recent detections, with the frame that each was found in.
    held: Vec<(Instant, Region)>,
    fails: bool,
}

impl Finder {
    fn masks(&mut self, at: Instant, jpeg: &Bytes) -> Vec<Mask> {
        let cover = self.cover;
        let regions = match self.find(jpeg) {
            Ok(found) => {
                if std::mem::take(&mut self.fails) {
                    tracing::info!(detector = %self.spec.kind, "the detector answers again");
                }
                self.held.extend(found.into_iter().map(|region| (at, region)));
                // Frames come in any order: one from the past may follow a live one.
                self.held.retain(|(seen, _)| seen.since(at).max(at.since(*seen)) <= HELD);
                self.held.iter().map(|(_, region)| *region).collect()
            }
            Err(error) => {
                if !std::mem::replace(&mut self.fails, true) {
                    let error = error_chain(&error);
                    tracing::error!(detector = %self.spec.kind, error, "the detector fails: frames are covered whole");
                }
                vec![Region::WHOLE]
            }
        };
        regions.into_iter().map(|region| Mask { region, cover }).collect()
    }

    fn find(&mut self, jpeg: &Bytes) -> Result<Vec<Region>, DetectorError> {
        let size = source_size(jpeg)?;
        let Self { spec, runtime, detector, source, .. } = self;
        let boxes = runtime.block_on(async {
            let detector = match detector {
                Some(detector) => detector,
                None => detector.insert(Detector::start(spec.clone()).await?),
            };
            if *source != Some(size) {
                *source = None;
                detector.begin_scene(size, &[]).await?;
                *source = Some(size);
            }
            detector.detect(jpeg).await
        })?;
        let fraction = |pixels: f64, of: u16| (pixels / f64::from(of)).clamp(0.0, 1.0) as f32;
        let region = |found: &Detection| {
            let [left, top, right, bottom] = found.rect.corners();
            let (across, down) = (size.width, size.height);
            Region::new(
                fraction(left, across),
                fraction(top, down),
                fraction(right, across),
                fraction(bottom, down),
            )
        };
        // A box without area covers nothing.
        Ok(boxes.iter().filter_map(|found| Some(region(found).ok()?.grown(AROUND))).collect())
    }
}

#[cfg(test)]
mod tests {
    use tidegate_jpeg::{Codec, Header, Limits, Planes, Quality, Sampling};

    use super::*;
    use crate::detector::fake::Fake;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_found_in_a_turned_picture_is_covered_where_it_is_seen() {
        // 320 x 240 pixels that are seen as 240 x 320, turned to the right.
        let one = Sampling { horizontal: 1, vertical: 1 };
        let mut planes = Planes::default();
        planes.reset(320, 240, 1, [one, Sampling::default(), Sampling::default()]);
        planes.plane_mut(0).3.fill(200);
        let mut jpeg = Vec::new();
        Codec::new().encode_planes(&mut planes, Quality::Scaled(90), &mut jpeg).unwrap();
        let exif = b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        let jpeg = Bytes::from([&jpeg[..2], exif, &jpeg[2..]].concat());

        // The left quarter of what is seen, which lies at the bottom of what is stored.
        let fake = Fake::new(
            r#"
boxes = [[0, 0, 60, 320, 0.9, "face"]] if detect.source == [240, 320] else []
send({"id": id, "boxes": boxes, "took_ms": 1})"#,
        );
        let privacy = Privacy { found: Some((fake.spec(), Cover::Fill)), ..Privacy::default() };
        let runtime = Handle::current();
        let covered = tokio::task::spawn_blocking(move || {
            let mut out = Vec::new();
            let mut coverer = Coverer::new(FrameLimits::default(), privacy, runtime);
            coverer.cover(Instant::EPOCH, &jpeg, &mut out).unwrap();
            out
        });
        let covered = covered.await.unwrap();
        let header = Header::read(&covered, &Limits::default()).unwrap();
        assert_eq!(header.orientation.value(), 6, "it stays turned");
        let _ = Codec::new().decode_planes(&covered, &header, 8, false, &mut planes, None).unwrap();
        let (width, _, stride, data) = planes.plane(0);
        // A quarter of the box's own size is covered around it.
        for (y, row) in data.chunks(stride).enumerate() {
            let gray = if y < 160 { 200 } else { 128 };
            let edge = (160..165).contains(&y);
            assert!(edge || row[..width].iter().all(|pixel| pixel.abs_diff(gray) <= 2), "row {y}");
        }
    }
}
