//! The images, scenes and models that a worker is asked about.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use tidegate_ports::{Image, Scene};

use crate::schedule::JobId;

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
