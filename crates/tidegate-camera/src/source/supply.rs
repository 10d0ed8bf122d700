//! Pictures on request, for each kind of source.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tidegate_message::{Instant, error_chain};
use tidegate_sys::regular;

use super::{
    CaptureClock, Picture, Rate, SourceClock, SourceError, SourceSpec, SplitError, Splitter,
    blocking::joined,
    ffmpeg::{self, Decoder, Reader},
    http::HttpCamera,
    rtsp::Camera,
    scene::Street,
    timeline::Timeline,
    video::Video,
    watched::Watched,
};

/// An opened source that gives a picture when asked.
#[derive(Debug)]
pub(super) struct Supply {
    rate: Option<Rate>,
    pictures: Pictures,
}

#[derive(Debug)]
enum Pictures {
    /// All in memory; where a recording has no picture at its time, there is none.
    Kept { all: Arc<[Option<Picture>]>, next: usize, repeat: bool },
    /// Files by name.
    Files { paths: Vec<PathBuf>, next: usize, repeat: bool },
    /// Files as they arrive.
    Watched(Box<Watched>),
    /// A stream of bytes.
    Stream(Box<Reader>),
    /// A video file.
    Video(Box<Video>),
    /// A camera in the network.
    Network(Box<Camera>),
    /// A camera in the network that is asked by HTTP.
    Http(Box<HttpCamera>, SourceClock),
    /// A camera of this machine.
    Local(Box<Local>),
}

/// A camera of this machine, and when its pictures were taken.
#[derive(Debug)]
struct Local {
    decoder: Decoder,
    timeline: Timeline,
    clock: SourceClock,
}

/// A supply's result for one moment.
#[derive(Debug)]
pub(super) enum Next {
    /// A picture, and when it was captured, if its source knows.
    Picture(Picture, Option<Instant>),
    /// A recording has no picture here.
    Nothing,
    /// There is no more.
    End,
}

impl Next {
    fn of(picture: Option<Picture>) -> Self {
        picture.map_or(Self::End, |picture| Self::Picture(picture, None))
    }
}

impl Supply {
    /// Opens it; captures are timed by `clock`.
    pub(super) async fn open(spec: &SourceSpec, clock: &SourceClock) -> Result<Self, SourceError> {
        let (rate, pictures, prepare) = match spec {
            SourceSpec::Folder { path, rate, repeat, prepare } => {
                let paths = jpeg_files(path.clone()).await?;
                (Some(*rate), Pictures::Files { paths, next: 0, repeat: *repeat }, *prepare)
            }
            SourceSpec::Watch { path, delete, old, .. } => {
                let watched = Watched::open(path, (*delete, *old), clock).await?;
                (None, Pictures::Watched(Box::new(watched)), false)
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
                let video = Video::open(path, rate.min(own), *repeat && !*prepare).await?;
                (Some(rate), Pictures::Video(Box::new(video)), *prepare)
            }
            SourceSpec::Rtsp { address, options, .. } => {
                let camera = Camera::open(address, options, clock).await?;
                (None, Pictures::Network(Box::new(camera)), false)
            }
            SourceSpec::Http { address, rate, options } => {
                let camera = HttpCamera::open(address, *rate, options.silent_max).await?;
                (None, Pictures::Http(Box::new(camera), clock.clone()), false)
            }
            SourceSpec::V4l2 { device, size, rate, copy } => {
                let decoder = ffmpeg::play_v4l2(device, *size, *rate, *copy).await?;
                let local = Local { decoder, timeline: Timeline::of_nanos(), clock: clock.clone() };
                (None, Pictures::Local(Box::new(local)), false)
            }
            SourceSpec::Scene { scene, rate, repeat } => {
                let (scene, every) = (*scene, *rate);
                let drawn = tokio::task::spawn_blocking(move || Street::new(scene).film(every));
                let all = joined(drawn.await)?.into_iter().map(Some).collect();
                (Some(*rate), Pictures::Kept { all, next: 0, repeat: *repeat }, false)
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

    /// Its name in messages.
    pub(super) fn place(&self) -> String {
        match &self.pictures {
            Pictures::Watched(watched) => watched.place(),
            Pictures::Stream(reader) => reader.place().to_owned(),
            Pictures::Video(video) => video.place().to_owned(),
            Pictures::Network(camera) => camera.place().to_owned(),
            Pictures::Http(camera, _) => camera.place().to_owned(),
            Pictures::Local(local) => local.decoder.place().to_owned(),
            Pictures::Kept { .. } => "memory".to_owned(),
            Pictures::Files { .. } => "folder".to_owned(),
        }
    }

    /// By which clock its pictures are timed, if not by that of their playing.
    pub(super) fn clock(&self) -> Option<CaptureClock> {
        match &self.pictures {
            Pictures::Network(camera) => Some(camera.clock()),
            Pictures::Local(local) => Some(local.timeline.clock()),
            Pictures::Http(camera, _) => Some(camera.clock()),
            _ => None,
        }
    }

    /// The result for the next moment.
    pub(super) async fn next(&mut self) -> Result<Next, SourceError> {
        match &mut self.pictures {
            Pictures::Kept { all, next, repeat } => Ok(match advance(next, all.len(), *repeat) {
                None => Next::End,
                Some(index) => match &all[index] {
                    Some(picture) => Next::Picture(picture.clone(), None),
                    None => Next::Nothing,
                },
            }),
            Pictures::Files { paths, next, repeat } => {
                let Some(index) = advance(next, paths.len(), *repeat) else { return Ok(Next::End) };
                read_jpeg(&paths[index]).await.map(|picture| Next::Picture(picture, None))
            }
            Pictures::Watched(watched) => {
                let (picture, captured) = watched.next().await?;
                Ok(Next::Picture(picture, Some(captured)))
            }
            Pictures::Stream(reader) => reader.next().await.map(Next::of),
            Pictures::Video(video) => Ok(match video.next().await? {
                None => Next::End,
                Some(None) => Next::Nothing,
                Some(Some(picture)) => Next::Picture(picture, None),
            }),
            Pictures::Network(camera) => Ok(match camera.next().await? {
                None => Next::End,
                Some((picture, captured)) => Next::Picture(picture, Some(captured)),
            }),
            Pictures::Http(camera, clock) => {
                let (jpeg, captured) = camera.next().await?;
                let captured = clock.now() - captured.elapsed();
                Ok(Next::Picture(Picture { jpeg, truth: None }, Some(captured)))
            }
            Pictures::Local(local) => local.next().await,
        }
    }

    /// Leaves pictures out because their time has passed.
    pub(super) async fn skip(&mut self, pictures: u64) {
        if let Pictures::Video(video) = &mut self.pictures {
            return video.skip(pictures).await;
        }
        for _ in 0..pictures {
            match &mut self.pictures {
                Pictures::Kept { all, next, repeat } => {
                    advance(next, all.len(), *repeat);
                }
                Pictures::Files { paths, next, repeat } => {
                    advance(next, paths.len(), *repeat);
                }
                // A problem with a picture that was not asked for does not matter; a final error comes again.
                _ => match self.next().await {
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
        let (mut kept, mut left_out) = (Kept::default(), LeftOut::default());
        loop {
            match left_out.next_of(self).await? {
                Next::Picture(picture, _) => kept.push(spec, Some(picture))?,
                Next::Nothing => kept.push(spec, None)?,
                Next::End => break,
            }
        }
        left_out.sum_up(spec);
        if kept.pictures.iter().all(Option::is_none) {
            let path = spec.to_string().into();
            return Err(SourceError::Empty { path, wanted: "picture that can be read" });
        }
        self.pictures = Pictures::Kept { all: kept.into_vec().into(), next: 0, repeat };
        Ok(())
    }
}

/// Counts the pictures that are left out where all of a source is read at once, and says which.
#[derive(Debug, Default)]
pub(super) struct LeftOut(u64);

impl LeftOut {
    /// So many are named, the others counted.
    const NAMED_MAX: u64 = 16;
    /// After so many, and no end in sight, a source is as bad as its last error says.
    const COUNT_MAX: u64 = 100_000;

    /// The next result of `supply`; a picture that cannot be read is left out. Errors that end the source are errors
    /// here.
    pub(super) async fn next_of(&mut self, supply: &mut Supply) -> Result<Next, SourceError> {
        loop {
            match supply.next().await {
                Err(error) if !error.is_final() && self.0 < Self::COUNT_MAX => {
                    if self.0 < Self::NAMED_MAX {
                        tracing::warn!(error = error_chain(&error), "a picture is left out");
                    }
                    self.0 += 1;
                }
                result => return result,
            }
        }
    }

    /// Says how many there were, if not all were named.
    pub(super) fn sum_up(&self, spec: &SourceSpec) {
        if self.0 > Self::NAMED_MAX {
            tracing::warn!(source = %spec, left_out = self.0, "further pictures were left out; they are only counted");
        }
    }
}

/// Pictures held in memory, bounded.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pictures: Vec<Option<Picture>>,
    bytes: usize,
}

impl Kept {
    /// Most bytes that a prepared recording may take.
    pub(super) const BYTES_MAX: usize = 1 << 30;

    pub(super) fn push(
        &mut self,
        spec: &SourceSpec,
        mut picture: Option<Picture>,
    ) -> Result<(), SourceError> {
        self.bytes +=
            size_of::<Option<Picture>>() + picture.as_ref().map_or(0, |picture| picture.jpeg.len());
        if self.bytes > Self::BYTES_MAX {
            return Err(SourceError::TooLong {
                place: spec.to_string(),
                bytes_max: Self::BYTES_MAX,
            });
        }
        // A picture from a stream shares its read buffer; kept for long, it gets memory of its own size.
        if let Some(picture) = &mut picture {
            picture.jpeg = picture.jpeg.to_vec().into();
        }
        self.pictures.push(picture);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.pictures.len()
    }

    pub(super) fn into_vec(self) -> Vec<Option<Picture>> {
        self.pictures
    }
}

impl Local {
    async fn next(&mut self) -> Result<Next, SourceError> {
        let Some((jpeg, shown)) = self.decoder.next().await? else { return Ok(Next::End) };
        let captured = shown.nanos.map(|nanos| {
            let now = self.clock.now();
            let media = self.timeline.arrived_at(now, nanos, Duration::ZERO);
            self.timeline.captured(media).min(now)
        });
        Ok(Next::Picture(Picture { jpeg, truth: None }, captured))
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

/// Reads a file that must hold one JPEG image. Bytes behind the image are left out; an end that is missing is put there.
async fn read_jpeg(path: &Path) -> Result<Picture, SourceError> {
    let path = path.to_owned();
    // One task for all of it: each step that blocks would wake two threads.
    joined(tokio::task::spawn_blocking(move || read_jpeg_blocking(path)).await)
}

fn read_jpeg_blocking(path: PathBuf) -> Result<Picture, SourceError> {
    let bytes_max = SourceSpec::FRAME_BYTES_MAX;
    let read = (|| {
        let mut file = regular::open(&path)?;
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
    match Splitter::of(bytes, bytes_max).only_image() {
        Ok(jpeg) => Ok(Picture { jpeg, truth: None }),
        Err(reason) => Err(SourceError::NotJpeg { path, reason }),
    }
}
