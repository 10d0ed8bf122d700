//! The images, scenes and models that a worker is asked about.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidegate_message::FrameSize;

use crate::schedule::JobId;

/// The view of a camera: the size of its frames, and frames to learn from.
#[derive(Debug)]
pub struct Scene {
    pub(crate) id: u64,
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
    pub(crate) const fn bytes(&self) -> &Bytes {
        match self {
            Self::Encoded(bytes) | Self::Pixels { bytes, .. } => bytes,
        }
    }

    /// Its size, where it need not be decoded for that.
    pub(crate) fn size(&self) -> Option<FrameSize> {
        let Self::Pixels { shape: [height, width, _], .. } = self else { return None };
        Some(FrameSize { width: (*width).try_into().ok()?, height: (*height).try_into().ok()? })
    }
}

/// The file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    /// Its file, next to the description of its input and output.
    pub path: PathBuf,
}

pub(crate) enum Work {
    Detect {
        image: Image,
        model: Option<String>,
        scene: Option<Arc<Scene>>,
    },
    /// Only begins the scene.
    Prepare(Arc<Scene>),
    Train {
        image: Image,
        model: String,
        subject: String,
    },
}

pub(crate) enum Task {
    Jobs(Vec<(JobId, Arc<Work>)>),
    Load(String, ModelFile),
    Unload(String),
}

impl Work {
    /// Requests of one group may share a batch; the bytes are those of its images.
    pub(crate) fn group_and_bytes(&self) -> (u64, usize) {
        let mut hasher = DefaultHasher::new();
        let bytes = match self {
            Self::Detect { image, model, .. } => {
                (0_u8, model).hash(&mut hasher);
                image.bytes().len()
            }
            Self::Prepare(scene) => {
                1_u8.hash(&mut hasher);
                scene.background.iter().map(Bytes::len).sum()
            }
            Self::Train { image, .. } => {
                2_u8.hash(&mut hasher);
                image.bytes().len()
            }
        };
        (hasher.finish(), bytes)
    }

    /// The scene that an image shows, or that is begun.
    pub(crate) fn scene(&self) -> Option<&Scene> {
        match self {
            Self::Detect { scene, .. } => scene.as_deref(),
            Self::Prepare(scene) => Some(scene),
            Self::Train { .. } => None,
        }
    }

    /// Whether it does no harm to do it twice.
    pub(crate) const fn is_repeatable(&self) -> bool {
        !matches!(self, Self::Train { .. })
    }
}
