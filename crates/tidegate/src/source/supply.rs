//! Pictures on request: what stands behind each kind of source.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Picture, Rate, SourceError, SourceSpec, SplitError, Splitter,
    ffmpeg::{self, Reader},
    scene::Street,
};

/// An opened source that gives a picture when asked.
#[derive(Debug)]
pub(super) struct Supply {
    rate: Option<Rate>,
    pictures: Pictures,
}

#[derive(Debug)]
enum Pictures {
    /// All in memory.
    Kept { all: Arc<[Picture]>, next: usize, repeat: bool },
    /// Files by name.
    Files { paths: Vec<PathBuf>, next: usize, repeat: bool },
    /// A stream of bytes.
    Stream(Box<Reader>),
}

impl Supply {
    pub(super) async fn open(spec: &SourceSpec) -> Result<Self, SourceError> {
        let (rate, pictures, prepare) = match spec {
            SourceSpec::Folder { path, rate, repeat, prepare } => {
                let paths = jpeg_files(path.clone()).await?;
                (Some(*rate), Pictures::Files { paths, next: 0, repeat: *repeat }, *prepare)
            }
            SourceSpec::Mjpeg { path, rate, repeat, frame_bytes_max } => {
                let reader = Reader::open(path.clone(), *frame_bytes_max, *repeat).await?;
                let rate = rate.or(reader.is_file().then_some(Rate::DEFAULT));
                (rate, Pictures::Stream(Box::new(reader)), false)
            }
            SourceSpec::Video { path, rate, repeat, prepare } => {
                let own = ffmpeg::video_rate(path).await?;
                let rate = rate.unwrap_or(own);
                // A prepared video is converted once and repeated from memory.
                let reader = ffmpeg::play_video(path, rate.min(own), *repeat && !*prepare).await?;
                (Some(rate), Pictures::Stream(Box::new(reader)), *prepare)
            }
            SourceSpec::Rtsp { url } => {
                (None, Pictures::Stream(Box::new(ffmpeg::play_rtsp(url).await?)), false)
            }
            SourceSpec::V4l2 { device, size, rate, copy } => {
                let reader = ffmpeg::play_v4l2(device, *size, *rate, *copy).await?;
                (None, Pictures::Stream(Box::new(reader)), false)
            }
            SourceSpec::Scene { scene, rate, repeat } => {
                let (scene, every) = (*scene, *rate);
                let drawn = tokio::task::spawn_blocking(move || Street::new(scene).film(every));
                let all = joined(drawn.await)?;
                (Some(*rate), Pictures::Kept { all: all.into(), next: 0, repeat: *repeat }, false)
            }
        };
        let mut supply = Self { rate, pictures };
        if prepare {
            supply.keep(spec).await?;
        }
        Ok(supply)
    }

    /// The cadence, `None` if the source sets its own.
    pub(super) const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// What messages call it.
    pub(super) fn place(&self) -> String {
        match &self.pictures {
            Pictures::Stream(reader) => reader.place().to_owned(),
            Pictures::Kept { .. } => "memory".to_owned(),
            Pictures::Files { .. } => "folder".to_owned(),
        }
    }

    /// The next picture, `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Picture>, SourceError> {
        match &mut self.pictures {
            Pictures::Kept { all, next, repeat } => {
                Ok(advance(next, all.len(), *repeat).map(|index| all[index].clone()))
            }
            Pictures::Files { paths, next, repeat } => {
                let Some(index) = advance(next, paths.len(), *repeat) else { return Ok(None) };
                read_jpeg(&paths[index]).await.map(Some)
            }
            Pictures::Stream(reader) => reader.next().await,
        }
    }

    /// Leaves pictures out because their time has passed.
    pub(super) async fn skip(&mut self, pictures: u64) {
        for _ in 0..pictures {
            match &mut self.pictures {
                Pictures::Kept { all, next, repeat } => {
                    advance(next, all.len(), *repeat);
                }
                Pictures::Files { paths, next, repeat } => {
                    advance(next, paths.len(), *repeat);
                }
                // What is wrong with a picture that nobody asked for does not matter; a final error comes again.
                Pictures::Stream(reader) => match reader.next().await {
                    Err(error) if error.is_final() => return,
                    _ => {}
                },
            }
        }
    }

    async fn keep(&mut self, spec: &SourceSpec) -> Result<(), SourceError> {
        let repeat = matches!(
            spec,
            SourceSpec::Folder { repeat: true, .. } | SourceSpec::Video { repeat: true, .. }
        );
        if let Pictures::Files { repeat, .. } = &mut self.pictures {
            *repeat = false;
        }
        let mut kept = Kept::default();
        while let Some(picture) = self.next().await? {
            kept.push(spec, picture)?;
        }
        self.pictures = Pictures::Kept { all: kept.into_vec().into(), next: 0, repeat };
        Ok(())
    }
}

/// Pictures held in memory, bounded.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pictures: Vec<Picture>,
    bytes: usize,
}

impl Kept {
    /// Most bytes that a prepared recording may take.
    pub(super) const BYTES_MAX: usize = 1 << 30;

    pub(super) fn push(
        &mut self,
        spec: &SourceSpec,
        mut picture: Picture,
    ) -> Result<(), SourceError> {
        self.bytes += picture.jpeg.len();
        if self.bytes > Self::BYTES_MAX {
            return Err(SourceError::TooLong {
                place: spec.to_string(),
                bytes_max: Self::BYTES_MAX,
            });
        }
        // A picture from a stream shares its read buffer; kept for long, it gets memory of its own size.
        picture.jpeg = picture.jpeg.to_vec().into();
        self.pictures.push(picture);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.pictures.len()
    }

    pub(super) fn into_vec(self) -> Vec<Picture> {
        self.pictures
    }
}

fn advance(next: &mut usize, len: usize, repeat: bool) -> Option<usize> {
    if *next >= len {
        if !repeat || len == 0 {
            return None;
        }
        *next = 0;
    }
    *next += 1;
    Some(*next - 1)
}

async fn jpeg_files(folder: PathBuf) -> Result<Vec<PathBuf>, SourceError> {
    let read = |source| SourceError::Read { path: folder.clone(), source };
    let mut entries = tokio::fs::read_dir(&folder).await.map_err(read)?;
    let mut paths = Vec::new();
    while let Some(entry) = entries.next_entry().await.map_err(read)? {
        let path = entry.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        if extension.eq_ignore_ascii_case("jpg") || extension.eq_ignore_ascii_case("jpeg") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(SourceError::Empty { path: folder, wanted: "file named *.jpg or *.jpeg" });
    }
    paths.sort();
    Ok(paths)
}

/// Reads a file that must hold one JPEG image. Bytes behind the image are left out.
async fn read_jpeg(path: &Path) -> Result<Picture, SourceError> {
    let path = path.to_owned();
    // One task for all of it: each step that blocks would wake two threads.
    joined(tokio::task::spawn_blocking(move || read_jpeg_blocking(path)).await)
}

fn read_jpeg_blocking(path: PathBuf) -> Result<Picture, SourceError> {
    let bytes_max = SourceSpec::FRAME_BYTES_MAX;
    let read = (|| {
        let mut file = File::open(&path)?;
        // Looked at before it is read: a huge file must not fill the memory.
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if length > bytes_max {
            return Ok(None);
        }
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes)?;
        io::Result::Ok(Some(bytes))
    })();
    let bytes = match read {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return Err(SourceError::NotJpeg { path, reason: SplitError::TooLarge { bytes_max } });
        }
        Err(source) => return Err(SourceError::Picture { path, source }),
    };
    let length = bytes.len();
    let mut splitter = Splitter::of(bytes, bytes_max);
    match splitter.next_image() {
        Some(Ok(jpeg)) => Ok(Picture { jpeg, truth: None }),
        Some(Err(reason)) => Err(SourceError::NotJpeg { path, reason }),
        None => {
            let cut = SplitError::Truncated { bytes: length };
            Err(SourceError::NotJpeg { path, reason: splitter.finish().err().unwrap_or(cut) })
        }
    }
}

/// What a blocking task gave; its panic goes on here.
pub(super) fn joined<T>(result: Result<T, tokio::task::JoinError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
