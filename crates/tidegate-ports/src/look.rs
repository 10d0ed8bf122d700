//! The port by which images are looked at: an image in, boxes out.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_message::{Detection, FrameSize, Rect};

/// Looks at images, in one caller's turn.
#[async_trait]
pub trait Looker: fmt::Debug + Send + Sync + 'static {
    /// Looks at an image.
    ///
    /// # Errors
    /// [`DetectError`].
    ///
    /// # Cancel safety
    /// A call that is dropped leaves the queue, or wastes its answer.
    async fn look(&self, request: Request) -> Result<Outcome, DetectError>;
}

/// An image to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// An encoded image, JPEG or PNG.
    Encoded(Bytes),
    /// Pixels.
    Pixels {
        /// Height, width and channels (1 gray, 3 BGR).
        shape: [u32; 3],
        /// Row-major, `height * width * channels` bytes.
        bytes: Bytes,
    },
}

impl Image {
    /// Its bytes, encoded or not.
    pub const fn bytes(&self) -> &Bytes {
        match self {
            Self::Encoded(bytes) | Self::Pixels { bytes, .. } => bytes,
        }
    }

    /// Its size, where it need not be decoded for that.
    pub fn size(&self) -> Option<FrameSize> {
        let Self::Pixels { shape: [height, width, _], .. } = self else { return None };
        Some(FrameSize { width: (*width).try_into().ok()?, height: (*height).try_into().ok()? })
    }
}

/// The view of a camera: the size of its frames, and frames to learn from.
#[derive(Debug)]
pub struct Scene {
    id: u64,
    /// The size of the camera's frames as they are seen. Boxes are in its pixels.
    pub source: FrameSize,
    /// Encoded images for a program that learns a background.
    pub background: Vec<Bytes>,
}

impl Scene {
    /// A scene of its own.
    pub fn new(source: FrameSize, background: Vec<Bytes>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), source, background }
    }

    /// Its number, which no other scene of this process has.
    pub const fn id(&self) -> u64 {
        self.id
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The image.
    pub image: Image,
    /// The model, of those that there are; the first if none is named.
    pub model: Option<String>,
    /// The scene that the image shows. Without one, boxes are in pixels of the image; a program of version 1 of the detector protocol
    /// needs one ([`DetectError::NeedsScene`]).
    pub scene: Option<Arc<Scene>>,
    /// Size of the image as it is seen, where the caller knows it: boxes are brought into it where the program says no size. A service that
    /// has images alone makes a scene of it for a program of version 1.
    pub size: Option<FrameSize>,
    /// A stream in which a newer request of the same caller takes the place of one that still waits; none by default. One of a stream
    /// goes to a worker that looks at nothing else: behind others there, it could not be replaced.
    pub stream: Option<u64>,
    /// How long it may wait for a worker; without end by default.
    pub wait_max: Option<Duration>,
}

impl Request {
    /// For an encoded image.
    pub const fn encoded(image: Bytes) -> Self {
        Self::of(Image::Encoded(image))
    }

    /// For an image, with nothing else known.
    pub const fn of(image: Image) -> Self {
        Self { image, model: None, scene: None, size: None, stream: None, wait_max: None }
    }
}

/// The findings in an image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Boxes, in pixels of the scene's source, or of the image as it is seen where there is no scene. They lie within it where its size is
    /// known: by the scene, by the shape of pixels, by the program, or by the request.
    pub boxes: Vec<Detection>,
    /// Classes of the whole image, with their scores, the best first where the program sorts them.
    pub classes: Vec<(f64, String)>,
    /// People, each as its points: x, y, score.
    pub poses: Vec<Vec<[f64; 3]>>,
    /// Size of the image as it is seen, where the program says it.
    pub size: Option<FrameSize>,
    /// Times by stage.
    pub times: Times,
}

impl Outcome {
    /// Brings boxes into a picture of that size, in whose pixels they are: a part outside is cut off, and a box of which nothing is inside
    /// shows nothing and is left out. Detectors that pad a picture, or follow a thing out of it, give such boxes; readers draw and cut them
    /// out without a look at the size.
    pub fn clip(&mut self, size: FrameSize) {
        let (width, height) = (f64::from(size.width), f64::from(size.height));
        self.boxes.retain_mut(|found| {
            let [left, top, right, bottom] = found.rect.corners();
            let inside =
                Rect::new(left.max(0.0), top.max(0.0), right.min(width), bottom.min(height));
            inside.is_ok_and(|inside| {
                found.rect = inside;
                true
            })
        });
    }
}

/// How long each stage of a request took. The first three sum to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Waiting: until it was whole, until a program took it, and there behind those that the program took before.
    pub queue: Duration,
    /// Decoding, by the program's clock.
    pub decode: Duration,
    /// Looking, without decoding, by the program's clock.
    pub infer: Duration,
    /// From the request to its answer, by ours.
    pub total: Duration,
}

impl Times {
    /// Of a request that took `total`: all that its program did not decode or look in is waiting. A program's clock that says more than there
    /// was is not believed.
    pub fn new(total: Duration, decode: Duration, infer: Duration) -> Self {
        let decode = decode.min(total);
        let infer = infer.min(total - decode);
        Self { queue: total - decode - infer, decode, infer, total }
    }
}

/// The failure of a program, or of its answer, in that program's words. [`Error::source`] and `downcast_ref` have more of it.
pub type Failure = Arc<dyn Error + Send + Sync>;

/// Why an image was not looked at.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// As many requests wait as may.
    #[error("{waiting} requests wait already; try again in {} ms", .retry_after.as_millis())]
    Busy {
        /// Requests that wait.
        waiting: usize,
        /// When a place is likely, from the measured times of service.
        retry_after: Duration,
    },
    /// No worker runs.
    #[error("no detector program runs; the next try is in {} ms", .retry_after.as_millis())]
    NoWorker {
        /// When the next is started.
        retry_after: Duration,
        /// Why the last one does not run.
        #[source]
        source: Failure,
    },
    /// A newer request of its stream took its place.
    #[error("a newer image of the same stream took the place of this one")]
    Superseded,
    /// It waited longer than it may.
    #[error("the image waited for a worker for longer than its request allows")]
    Overdue,
    /// The program cannot use the image.
    #[error("the detector refuses: {message}")]
    Refused {
        /// Its words.
        message: String,
    },
    /// The program's answer is not valid.
    #[error("the detector program {program} breaks the protocol")]
    Answer {
        /// Which.
        program: String,
        /// How.
        #[source]
        source: Failure,
    },
    /// The program ended over the request.
    #[error("the detector program failed")]
    Worker {
        /// How.
        #[source]
        source: Failure,
    },
    /// No model of that name.
    #[error("there is no model {name:?}; there are: {}", .known.join(" "))]
    UnknownModel {
        /// The name given.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The model cannot be loaded.
    #[error("the model {name} is not loaded: {message}")]
    ModelRefused {
        /// Its name.
        name: String,
        /// Why.
        message: String,
    },
    /// A program of version 1 is asked about an image alone.
    #[error(
        "the program speaks version 1 of the protocol, in which an image needs a scene; begin one with its size"
    )]
    NeedsScene,
    /// The image is too large.
    #[error("an image of {bytes} bytes is over the limit of 64 MiB")]
    ImageTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Pixels that are not of their shape.
    #[error(
        "{bytes} bytes are not pixels of height, width and channels {shape:?}; sides are 1 to 65535, channels 1 or 3, and the bytes \
         their product"
    )]
    Pixels {
        /// Height, width, channels.
        shape: [u32; 3],
        /// The bytes given.
        bytes: usize,
    },
    /// No program is ready: all of them start.
    #[error("no detector program is ready yet")]
    NoneReady,
    /// The pool has ended.
    #[error("the pool of detectors has ended")]
    Closed,
}
