//! Boxes of live detections, drawn into pictures for viewers that show nothing but pictures.
//!
//! Always true: the same boxes are drawn into the same picture once, however many look at it; at most [`DRAWING_MAX`] pictures are drawn
//! at a time, also once their viewers are gone, and [`DRAWN_MAX`] are kept; a viewer holds [`BOXES_MAX`] boxes of [`DETECTORS_MAX`] detectors,
//! and nothing else of their messages; a picture that nothing is drawn into is passed on as it is.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use serde::Deserialize;
use tidegate_api::{ApiError, Frame};
use tidegate_bus::Bus;
use tidegate_identity::access::{Access, Identity};
use tidegate_jpeg::{Codec, Colours, Header, Limits, Orientation, Packed};
use tidegate_message::CameraName;
use tokio::{
    sync::{OnceCell, Semaphore},
    task::JoinError,
};

use crate::detections::Detections;

/// Pictures that are drawn at a time; others wait.
const DRAWING_MAX: usize = 2;
/// Drawn pictures that are kept: those that viewers with the same bounds are about to take up.
const DRAWN_MAX: usize = 32;
/// A box belongs to a picture that was captured at most so long before or after its own.
const AGE_MAX: Duration = Duration::from_millis(1500);
/// Detectors of one camera whose boxes are drawn, bytes of a detector's name, and boxes of one detection.
const DETECTORS_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 256;
const BOXES_MAX: usize = 200;
const QUALITY: u8 = 80;

/// Blue, green, red: colours that stand out from pictures.
const COLOURS: [[u8; 3]; 6] = [
    [59, 212, 255],
    [247, 171, 77],
    [135, 135, 255],
    [124, 219, 105],
    [242, 119, 218],
    [77, 169, 255],
];

/// The part of a detection that is drawn.
#[derive(Clone, Debug, Deserialize)]
struct Detection {
    #[serde(default)]
    detector: String,
    captured_at: i64,
    source: Size,
    /// Left, top, right and bottom in pixels of the source, the score and the label.
    boxes: Vec<(f64, f64, f64, f64, f64, String)>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Size {
    width: u32,
    height: u32,
}

/// A box in a picture, each side as a part of the picture's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Drawn {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    colour: [u8; 3],
}

/// The newest detections of one camera.
pub(crate) struct Found {
    detections: Detections,
    newest: Newest,
}

/// The boxes of each detector, with the time of their picture and the number of their message. Of too many detectors, the one that was
/// silent for longest gives way.
#[derive(Default)]
struct Newest {
    messages: u64,
    of: BTreeMap<String, (u64, i64, Vec<Drawn>)>,
}

impl Found {
    /// Those that `identity` may see from now on.
    ///
    /// # Errors
    /// As of [`Detections::of`].
    pub(crate) async fn of(
        bus: Option<&Bus>,
        access: &Access,
        identity: &Identity,
        camera: &CameraName,
    ) -> Result<Self, ApiError> {
        let detections = Detections::of(bus, access, identity, Some(camera)).await?;
        Ok(Self { detections, newest: Newest::default() })
    }

    /// Waits until there is more and takes it.
    ///
    /// # Errors
    /// Nothing more comes: as of [`Detections::next`].
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn more(&mut self) -> Result<(), ApiError> {
        if let Some(payload) = self.detections.next().await? {
            self.newest.take(&payload);
        }
        Ok(())
    }

    /// The boxes that belong to a picture of that time.
    pub(crate) fn near(&self, captured_at: i64) -> Vec<Drawn> {
        self.newest.near(captured_at)
    }
}

impl Newest {
    /// Takes a message, if it is a detection: other programs may publish something else there.
    fn take(&mut self, payload: &[u8]) {
        let Ok(detection) = serde_json::from_slice::<Detection>(payload) else { return };
        if detection.detector.len() > NAME_BYTES_MAX {
            return;
        }
        self.messages += 1;
        let boxes = detection.drawn().collect();
        self.of.insert(detection.detector, (self.messages, detection.captured_at, boxes));
        if self.of.len() > DETECTORS_MAX {
            let silent = self.of.iter().min_by_key(|(_, (number, ..))| *number);
            if let Some(silent) = silent.map(|(detector, _)| detector.clone()) {
                self.of.remove(&silent);
            }
        }
    }

    fn near(&self, captured_at: i64) -> Vec<Drawn> {
        let near = self
            .of
            .values()
            .filter(|(_, at, _)| u128::from(at.abs_diff(captured_at)) <= AGE_MAX.as_nanos());
        near.flat_map(|(.., boxes)| boxes).copied().collect()
    }
}

impl Detection {
    fn drawn(&self) -> impl Iterator<Item = Drawn> {
        let (width, height) = (f64::from(self.source.width), f64::from(self.source.height));
        let boxes =
            self.boxes.iter().take(BOXES_MAX).map(move |(left, top, right, bottom, _, label)| {
                let mut hasher = DefaultHasher::new();
                label.hash(&mut hasher);
                let colour = COLOURS[(hasher.finish() % COLOURS.len() as u64) as usize];
                let (left, right) = (left / width, right / width);
                Drawn { left, top: top / height, right, bottom: bottom / height, colour }
            });
        // Neither a size of zero nor a number that is none makes a box, nor do places outside.
        boxes.filter(|drawn| {
            let is_across = drawn.left < drawn.right.min(1.0) && drawn.right > 0.0;
            is_across && drawn.top < drawn.bottom.min(1.0) && drawn.bottom > 0.0
        })
    }
}

/// Draws, and keeps what was drawn for the next viewer.
pub(crate) struct Drawer {
    drawn: Mutex<VecDeque<(Key, Arc<OnceCell<Bytes>>)>>,
    turns: Arc<Semaphore>,
}

/// A picture and the boxes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    camera: CameraName,
    epoch: u64,
    captured_at: i64,
    knobs: Arc<str>,
    bytes: usize,
    boxes: u64,
}

impl Default for Drawer {
    fn default() -> Self {
        Self { drawn: Mutex::default(), turns: Arc::new(Semaphore::new(DRAWING_MAX)) }
    }
}

impl Drawer {
    /// The picture of `frame` with those boxes in it.
    pub(crate) async fn draw(
        &self,
        camera: &CameraName,
        frame: &Frame,
        boxes: Vec<Drawn>,
    ) -> Bytes {
        if boxes.is_empty() {
            return frame.jpeg.clone();
        }
        let mut hasher = DefaultHasher::new();
        for drawn in &boxes {
            [drawn.left, drawn.top, drawn.right, drawn.bottom].map(f64::to_bits).hash(&mut hasher);
            drawn.colour.hash(&mut hasher);
        }
        let cell = self.cell(Key {
            camera: camera.clone(),
            epoch: frame.epoch,
            captured_at: frame.captured_at.as_nanos(),
            knobs: frame.knobs.clone(),
            bytes: frame.jpeg.len(),
            boxes: hasher.finish(),
        });
        let draw = async {
            let jpeg = frame.jpeg.clone();
            let drawn = self.in_turn(move || drawn(&jpeg, &boxes).unwrap_or(jpeg));
            drawn.await.unwrap_or_else(|error| {
                tracing::error!(%error, "boxes could not be drawn; this is a bug");
                frame.jpeg.clone()
            })
        };
        cell.get_or_init(|| draw).await.clone()
    }

    /// Does it on another thread when it is its turn. The turn is over when the work is, whoever still waits for it.
    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let turn = self.turns.clone().acquire_owned().await;
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        })
        .await
    }

    /// Where that picture is, or will be.
    fn cell(&self, key: Key) -> Arc<OnceCell<Bytes>> {
        let mut drawn = self.drawn.lock().expect("no panic while it is held");
        if let Some((_, cell)) = drawn.iter().find(|(known, _)| *known == key) {
            return cell.clone();
        }
        if drawn.len() == DRAWN_MAX {
            drawn.pop_front();
        }
        let cell = Arc::<OnceCell<Bytes>>::default();
        drawn.push_back((key, cell.clone()));
        cell
    }
}

/// The picture with the boxes in it; none for one that cannot be read, or that is turned when it is shown, where boxes would lie elsewhere.
fn drawn(jpeg: &[u8], boxes: &[Drawn]) -> Option<Bytes> {
    let header = Header::read(jpeg, &Limits::default()).ok()?;
    if header.orientation != Orientation::default() {
        return None;
    }
    let (mut codec, mut image, mut out) = (Codec::new(), Packed::default(), Vec::new());
    // A part that is damaged is shown as it is.
    let _ = codec.decode_bgr(jpeg, &header, 8, &mut image, None).ok()?;
    for drawn in boxes {
        outline(&mut image, drawn);
    }
    codec.encode_bgr(&image, QUALITY, &mut out).ok()?;
    codec.carry(jpeg, Colours::Kept, &mut out);
    Some(out.into())
}

/// Draws the four sides of a box, as far as they lie in the picture.
fn outline(image: &mut Packed, drawn: &Drawn) {
    let (width, height) = (usize::from(image.width()), usize::from(image.height()));
    let thick = (width / 320).max(2);
    let within =
        |part: f64, side: usize| ((part.clamp(0.0, 1.0) * side as f64) as usize).min(side - 1);
    let (left, right) = (within(drawn.left, width), within(drawn.right, width));
    let (top, bottom) = (within(drawn.top, height), within(drawn.bottom, height));
    let data = image.data_mut();
    let mut fill = |columns: std::ops::Range<usize>, rows: std::ops::Range<usize>| {
        for row in rows.start..rows.end.min(height) {
            let line = &mut data[row * width * 3..(row + 1) * width * 3];
            for pixel in line[columns.start * 3..columns.end.min(width) * 3].chunks_exact_mut(3) {
                pixel.copy_from_slice(&drawn.colour);
            }
        }
    };
    fill(left..right + 1, top..top + thick);
    fill(left..right + 1, (bottom + 1).saturating_sub(thick)..bottom + 1);
    fill(left..left + thick, top..bottom + 1);
    fill((right + 1).saturating_sub(thick)..right + 1, top..bottom + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: u16, height: u16) -> Vec<u8> {
        let (mut image, mut out) = (Packed::default(), Vec::new());
        image.reset(width, height);
        image.data_mut().fill(40);
        Codec::new().encode_bgr(&image, 90, &mut out).unwrap();
        out
    }

    fn detection(boxes: &str) -> Detection {
        let text = format!(
            r#"{{"captured_at":5,"source":{{"width":640,"height":360}},"boxes":[{boxes}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_box_is_drawn_where_it_was_found() {
        let found = detection(r#"[160, 90, 480, 270, 0.9, "person"]"#);
        let boxes: Vec<Drawn> = found.drawn().collect();
        let jpeg = drawn(&picture(320, 180), &boxes).expect("it is a picture");
        let header = Header::read(&jpeg, &Limits::default()).unwrap();
        let mut image = Packed::default();
        let _ = Codec::new().decode_bgr(&jpeg, &header, 8, &mut image, None).unwrap();
        assert_eq!((image.width(), image.height()), (320, 180));
        let is_drawn = |x: usize, y: usize| {
            let pixel = &image.data()[(y * 320 + x) * 3..][..3];
            pixel.iter().any(|value| *value > 100)
        };
        for (x, y, expected) in [
            (81, 100, true),
            (239, 100, true),
            (160, 46, true),
            (160, 134, true),
            (160, 90, false),
            (20, 20, false),
        ] {
            assert_eq!(is_drawn(x, y), expected, "{x}, {y}");
        }
    }

    #[test]
    fn boxes_that_lie_outside_or_are_none_draw_nothing_beyond_the_picture() {
        for boxes in [
            r#"[-100, -100, 900, 900, 1, "a"]"#,
            r#"[639, 359, 640, 360, 1, "a"]"#,
            r#"[0, 0, 1e300, 1e300, 1, "a"]"#,
        ] {
            let boxes: Vec<Drawn> = detection(boxes).drawn().collect();
            assert!(drawn(&picture(33, 17), &boxes).is_some(), "{boxes:?}");
        }
        assert_eq!(detection(r#"[200, 90, 100, 270, 0.9, "person"]"#).drawn().count(), 0);
        let nothing = Detection {
            source: Size { width: 0, height: 0 },
            ..detection(r#"[0, 0, 1, 1, 1, ""]"#)
        };
        assert_eq!(nothing.drawn().count(), 0);
        assert_eq!(detection(r#"[700, 400, 900, 500, 1, "a"]"#).drawn().count(), 0);
        assert!(drawn(b"no picture", &[]).is_none());
    }

    #[tokio::test]
    async fn a_picture_is_drawn_in_its_turn_to_the_end_though_its_viewer_is_gone() {
        let drawer = Arc::new(Drawer::default());
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let mut ends = Vec::new();
        for _ in 0..DRAWING_MAX {
            let (drawer, begun) = (drawer.clone(), begun.clone());
            let (end, ended) = std::sync::mpsc::channel::<()>();
            ends.push(end);
            let viewer = tokio::spawn(async move {
                let work = move || {
                    begun.send(()).expect("the test waits for it");
                    ended.recv()
                };
                drawer.in_turn(work).await
            });
            begins.recv().await.expect("it is drawn");
            viewer.abort();
            assert!(viewer.await.expect_err("it is gone").is_cancelled());
        }
        assert_eq!(drawer.turns.available_permits(), 0, "both pictures are still drawn");
        drop(ends);
        let turn = drawer.turns.acquire_many(DRAWING_MAX as u32);
        let _turn = turn.await.expect("turns come back with the end of the work");
    }

    #[test]
    fn boxes_of_messages_are_bounded_and_the_silent_detector_gives_way() {
        let payload = |detector: &str, boxes: usize| {
            let one = r#"[0, 0, 10, 10, 1, "a"]"#;
            let boxes = vec![one; boxes].join(",");
            let text = format!(
                r#"{{"detector":"{detector}","captured_at":5,"source":{{"width":640,"height":360}},"boxes":[{boxes}]}}"#
            );
            text.into_bytes()
        };
        let mut newest = Newest::default();
        newest.take(&payload("first", 3000));
        assert_eq!(newest.near(5).len(), BOXES_MAX);
        assert!(newest.near(i64::MAX).is_empty(), "they are of another picture");
        for payload in [&b"null"[..], b"{}", b"\xff", &payload(&"x".repeat(1000), 1)] {
            newest.take(payload);
        }
        assert_eq!(newest.of.len(), 1, "a message that is no detection is not kept");
        for number in 0..100 {
            newest.take(&payload(&format!("other-{number}"), 1));
            newest.take(&payload("second", 1));
        }
        assert_eq!(newest.of.len(), DETECTORS_MAX);
        assert!(!newest.of.contains_key("first"), "the silent one gave way");
        assert!(newest.of.contains_key("second") && newest.of.contains_key("other-99"));
    }

    #[test]
    fn drawn_pictures_are_kept_and_bounded() {
        let drawer = Drawer::default();
        let key = |captured_at| Key {
            camera: "cam1".parse().unwrap(),
            epoch: 1,
            captured_at,
            knobs: "original".into(),
            bytes: 1,
            boxes: 7,
        };
        let first = drawer.cell(key(0));
        assert!(Arc::ptr_eq(&first, &drawer.cell(key(0))));
        for captured_at in 1..=DRAWN_MAX as i64 {
            drawer.cell(key(captured_at));
        }
        assert!(!Arc::ptr_eq(&first, &drawer.cell(key(0))), "the oldest gave way");
        assert_eq!(drawer.drawn.lock().unwrap().len(), DRAWN_MAX);
    }
}
