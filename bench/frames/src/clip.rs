//! The pictures of the cameras in live benches: the generated street, drawn once and played from a folder of JPEG
//! files.
//!
//! ```text
//!  scene ──▶ film ──▶ FOLDER/00000.jpg … ──▶ folder:FOLDER?fps=F&loop=1&prepare=1, by every camera and by NATS
//!                       └─▶ thinned: every third picture, for 5 fps instead of 15
//! ```
//!
//! Always true: all contenders of a bench show the same bytes at the same cadence.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use tidegate_camera::source::{self, SourceSpec};

/// A loop of pictures in a folder.
#[derive(Clone, Debug)]
pub struct Clip {
    folder: PathBuf,
    fps: u32,
    files: Vec<PathBuf>,
    bytes: u64,
}

impl Clip {
    /// Draws a scene, in the words of a `scene:` source, into `folder`, which must not exist.
    ///
    /// # Errors
    /// The scene cannot be drawn or the folder not be written.
    pub async fn film(folder: &Path, scene: &str, fps: u32) -> anyhow::Result<Self> {
        let spec = SourceSpec::parse(&format!("{scene}&fps={fps}")).context("reading the scene")?;
        let pictures =
            source::read_pictures(&spec, usize::MAX).await.context("drawing the scene")?;
        fs::create_dir(folder).with_context(|| format!("making {}", folder.display()))?;
        for (index, picture) in pictures.iter().enumerate() {
            let file = folder.join(format!("{index:05}.jpg"));
            fs::write(&file, &picture.jpeg)
                .with_context(|| format!("writing {}", file.display()))?;
        }
        Self::open(folder, fps)
    }

    /// Every `step`-th picture of this clip at a cadence that is as much slower, as links in `folder`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn thinned(&self, folder: &Path, step: u32) -> anyhow::Result<Self> {
        fs::create_dir(folder).with_context(|| format!("making {}", folder.display()))?;
        for (index, file) in self.files.iter().step_by(step as usize).enumerate() {
            let link = folder.join(format!("{index:05}.jpg"));
            fs::hard_link(file, &link).with_context(|| format!("making {}", link.display()))?;
        }
        Self::open(folder, self.fps / step)
    }

    /// The pictures that are in `folder`.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub fn open(folder: &Path, fps: u32) -> anyhow::Result<Self> {
        let (mut files, mut bytes) = (Vec::new(), 0);
        let reading = || format!("reading {}", folder.display());
        for entry in fs::read_dir(folder).with_context(reading)? {
            let entry = entry.with_context(reading)?;
            bytes += entry.metadata().with_context(reading)?.len();
            files.push(entry.path());
        }
        ensure!(!files.is_empty(), "{} holds no picture", folder.display());
        files.sort();
        Ok(Self { folder: folder.to_owned(), fps, files, bytes })
    }

    /// Pictures a second.
    #[must_use]
    pub fn fps(&self) -> u32 {
        self.fps
    }

    /// The folder of the pictures.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Mean size of a picture in kilobytes.
    #[must_use]
    pub fn kilobytes(&self) -> f64 {
        self.bytes as f64 / self.files.len() as f64 / 1e3
    }

    /// As a camera's source, forever; `prepared` reads all pictures before the first.
    #[must_use]
    pub fn source(&self, prepared: bool) -> String {
        let prepare = u8::from(prepared);
        format!("folder:{}?fps={}&loop=1&prepare={prepare}", self.folder.display(), self.fps)
    }

    /// As a source that is gone through once.
    ///
    /// # Errors
    /// The folder's name cannot stand in a source.
    pub fn once(&self) -> anyhow::Result<SourceSpec> {
        let text = format!("folder:{}?fps={}", self.folder.display(), self.fps);
        SourceSpec::parse(&text).with_context(|| format!("reading {text:?}"))
    }

    /// At most `count` pictures, spread over the clip.
    ///
    /// # Errors
    /// A picture cannot be read.
    pub fn pictures(&self, count: usize) -> anyhow::Result<Vec<Bytes>> {
        let count = count.min(self.files.len());
        (0..count)
            .map(|index| &self.files[index * self.files.len() / count])
            .map(|file| {
                let bytes =
                    fs::read(file).with_context(|| format!("reading {}", file.display()))?;
                Ok(Bytes::from(bytes))
            })
            .collect()
    }
}
