//! Detectors: programs that find objects in the frames of a scene, each a pool of one worker, or a model of the pool that all cameras
//! of a node share (`tidegate-workers`).
//!
//! ```text
//!  characterize, privacy, demo ──▶ Detector ──scene, frame──▶ pool ──▶ worker (Python with OpenCV, or a program of the user's)
//! ```
//!
//! Always true: a worker that dies, hangs or answers nonsense costs one request at most one restart; every wait has an end;
//! boxes are in pixels of the scene's source size, of the picture as it is seen, whatever the size of the frame that was looked at.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;

use tidegate_frame::{
    knob,
    score::{Labels, Pool, Report},
};
use tidegate_message::{Code, Detection, FrameSize, command};
use tidegate_ports::{DetectError, Failure, Request, Scene};
use tidegate_workers::{Client, Hello, PoolSettings, Program, SharedPool, WorkerError};

/// Which program detects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectorKind {
    /// Difference to a background learnt from the scene's frames; for fixed cameras.
    Moving,
    /// OpenCV's people detector; for cameras at eye level.
    Person,
    /// OpenCV's face detector: frontal faces and profiles.
    Face,
    /// A program of the user's that speaks the protocol: the program and its arguments.
    Command(Vec<String>),
}

/// How a detector is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectorSpec {
    /// Which.
    pub kind: DetectorKind,
    /// Longest wait for the program to connect; default 30 s, for imports from a cold disk.
    pub start_timeout: Duration,
    /// Longest wait for one answer; default 20 s.
    pub answer_timeout: Duration,
    /// The Python of our own worker; `None` looks for it: `TIDEGATE_WORKER_PYTHON`, then the environments that
    /// `workers/detector/setup.sh` makes.
    pub python: Option<PathBuf>,
    /// A pool that has the detector as a model, where that is one of ours without a background; the other settings are the pool's then.
    /// `None`: a program of its own.
    pub pool: Option<SharedPool>,
}

impl DetectorSpec {
    /// A detector of that kind with the default timeouts.
    pub const fn new(kind: DetectorKind) -> Self {
        Self {
            kind,
            start_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(20),
            python: None,
            pool: None,
        }
    }

    /// The detector named by `--detector NAME` and `--detector-command COMMAND`.
    ///
    /// The command is split at spaces; quotes keep words together. No shell reads it.
    ///
    /// # Errors
    /// [`DetectorError::Unknown`] for another name, [`DetectorError::Command`] for an empty command or an open quote.
    pub fn parse(name: &str, command: Option<&str>) -> Result<Self, DetectorError> {
        let kind = match (name, command) {
            ("moving", None) => DetectorKind::Moving,
            ("person", None) => DetectorKind::Person,
            ("face", None) => DetectorKind::Face,
            ("command", Some(command)) => DetectorKind::Command(
                command::split(command)
                    .ok_or_else(|| DetectorError::Command { command: command.to_owned() })?,
            ),
            ("command", None) => return Err(DetectorError::Command { command: String::new() }),
            _ => return Err(DetectorError::Unknown { name: name.to_owned() }),
        };
        Ok(Self::new(kind))
    }
}

impl DetectorKind {
    /// The model that a shared pool has for it; none of one that learns a background, or is a program of the user's.
    fn model(&self) -> Option<String> {
        matches!(self, Self::Person | Self::Face).then(|| self.to_string())
    }
}

impl fmt::Display for DetectorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moving => f.write_str("moving"),
            Self::Person => f.write_str("person"),
            Self::Face => f.write_str("face"),
            Self::Command(words) => f.write_str(&words.join(" ")),
        }
    }
}

/// A detector's answer about one frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Detections {
    /// The boxes it found, in pixels of the scene's source size.
    pub boxes: Vec<Detection>,
    /// How long it looked, decoding included, by its own clock.
    pub took: Duration,
}

/// A running detector. Dropping it kills its program.
#[derive(Debug)]
pub struct Detector {
    /// The pool that it is a model of, and shares with others; none: the pool is its own.
    shared: Option<SharedPool>,
    pool: Arc<tidegate_workers::Pool>,
    client: Client,
    /// The model of a pool that has several.
    model: Option<String>,
    scene: Option<Arc<Scene>>,
    hello: Arc<Hello>,
}

/// Background frames that are worth learning from.
pub const BACKGROUND_FRAMES: usize = 31;

impl Detector {
    /// Starts the program and waits for its hello; one that all cameras share may have been started by another.
    ///
    /// # Errors
    /// [`DetectorError`] if there is no such program, if it ends, or if it does not say hello in time.
    pub async fn start(spec: DetectorSpec) -> Result<Self, DetectorError> {
        if let (Some(shared), Some(model)) = (&spec.pool, spec.kind.model()) {
            let pool = shared.get().await.map_err(|source| DetectorError::Program { source })?;
            let (client, hello) = (pool.client(), pool.hello());
            let (shared, model) = (Some(shared.clone()), Some(model));
            return Ok(Self { shared, pool, client, model, scene: None, hello });
        }
        let program = match spec.kind {
            DetectorKind::Command(words) => Program::Command(words),
            kind => Program::Own(vec![kind.to_string()], spec.python),
        };
        let mut settings = PoolSettings::new(program);
        settings.start_timeout = spec.start_timeout;
        settings.schedule.answer_timeout = spec.answer_timeout;
        let pool = tidegate_workers::Pool::start(settings)
            .await
            .map_err(|source| DetectorError::Program { source })?;
        let (client, hello) = (pool.client(), pool.hello());
        let pool = Arc::new(pool);
        Ok(Self { shared: None, pool, client, model: None, scene: None, hello })
    }

    /// Has the pool that is shared now, where the one before has ended.
    async fn renew(&mut self) -> Result<(), DetectorError> {
        let Some(shared) = self.shared.as_ref().filter(|_| self.pool.is_closed()) else {
            return Ok(());
        };
        let pool = shared.get().await.map_err(|source| DetectorError::Program { source })?;
        (self.client, self.hello, self.pool) = (pool.client(), pool.hello(), pool);
        Ok(())
    }

    /// The detector's own name: `moving`.
    pub fn name(&self) -> &str {
        self.model.as_deref().unwrap_or(&self.hello.detector)
    }

    /// Whether it learns a background: [`Self::begin_scene`] must then be given some frames.
    pub fn needs_background(&self) -> bool {
        // Only the first model of a pool can, and none that is asked for by its name does.
        self.model.is_none() && self.hello.background
    }

    /// How often the program was started again.
    pub fn restarts(&self) -> u64 {
        self.pool.state().restarts
    }

    /// Forgets the last scene. Frames now show what a camera of `source` size sees, whatever their own size. It is the size of the
    /// picture as it is seen: with its sides swapped where EXIF turns it by a quarter.
    ///
    /// `background` are frames spread over the scene, [`BACKGROUND_FRAMES`] or so; a detector that needs none is given none.
    /// Returns the size to which the detector brings every frame; of a shared pool, that of its first model.
    ///
    /// # Errors
    /// As [`Self::detect`].
    pub async fn begin_scene(
        &mut self,
        source: FrameSize,
        background: &[Bytes],
    ) -> Result<FrameSize, DetectorError> {
        self.renew().await?;
        let background = if self.needs_background() { background.to_vec() } else { Vec::new() };
        let scene = self.scene.insert(Arc::new(Scene::new(source, background)));
        Ok(self.client.prepare(Arc::clone(scene)).await?)
    }

    /// Finds boxes in a frame of the scene, in pixels of the scene's source size.
    ///
    /// A program that fails is started again, after a wait that grows with its failures, and asked once more.
    ///
    /// # Errors
    /// [`DetectorError::Refused`] if the detector cannot use the frame; the others after the second failure.
    ///
    /// # Cancel safety
    /// A call that is dropped wastes the program's answer.
    pub async fn detect(&mut self, jpeg: &[u8]) -> Result<Vec<Detection>, DetectorError> {
        Ok(self.detect_timed(jpeg).await?.boxes)
    }

    /// [`Self::detect`], with the time that the detector took.
    ///
    /// # Errors
    /// As [`Self::detect`].
    pub async fn detect_timed(&mut self, jpeg: &[u8]) -> Result<Detections, DetectorError> {
        self.renew().await?;
        let scene = Some(Arc::clone(self.scene.as_ref().ok_or(DetectorError::NoScene)?));
        let model = self.model.clone();
        let request = Request { scene, model, ..Request::encoded(Bytes::copy_from_slice(jpeg)) };
        let found = self.client.detect(request).await?;
        Ok(Detections { boxes: found.boxes, took: found.times.decode + found.times.infer })
    }
}

/// A delivered frame and what was captured.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The frame as its camera captured it.
    pub original: Bytes,
    /// The frame as the application received it.
    pub delivered: Bytes,
}

/// How accurate delivered frames are: the detector's F1 on them, with its boxes on their originals for the truth.
///
/// `pairs` are of one camera, in the order of capture. `background` are originals of that camera spread over
/// its scene; if there is none, those of the pairs are taken. Where the size of the originals changes, another scene begins. A delivered frame that the detector refuses counts as
/// one in which it finds nothing.
///
/// # Errors
/// [`DetectorError`] if there is no pair, if an original cannot be used, or if the detector fails.
pub async fn compare(
    detector: &mut Detector,
    background: &[Bytes],
    pairs: &[Pair],
) -> Result<Report, DetectorError> {
    if pairs.is_empty() {
        return Err(DetectorError::NoPairs);
    }
    let sized = |jpegs: &[Bytes]| {
        let size_of = |jpeg: &Bytes| Ok((source_size(jpeg)?, jpeg.clone()));
        jpegs.iter().map(size_of).collect::<Result<Vec<_>, DetectorError>>()
    };
    let originals: Vec<Bytes> = pairs.iter().map(|pair| pair.original.clone()).collect();
    let (originals, background) = (sized(&originals)?, sized(background)?);
    let mut pool = Pool::new(Labels::Same);
    let mut scene = None;
    for (pair, (size, _)) in pairs.iter().zip(&originals) {
        // Frames of another size are another scene, with frames of its own to learn from.
        if scene.replace(*size) != Some(*size) {
            let of_size = |jpegs: &[(FrameSize, Bytes)]| {
                let same = jpegs.iter().filter(|(other, _)| other == size);
                same.map(|(_, jpeg)| jpeg.clone()).collect::<Vec<Bytes>>()
            };
            let mut learnt = of_size(&background);
            if learnt.is_empty() {
                let own = of_size(&originals);
                learnt = spread(own.len(), BACKGROUND_FRAMES).map(|at| own[at].clone()).collect();
            }
            detector.begin_scene(*size, &learnt).await?;
        }
        let original = detector.detect(&pair.original).await?;
        let delivered = match detector.detect(&pair.delivered).await {
            Err(DetectorError::Refused { .. }) => Vec::new(),
            result => result?,
        };
        pool.push_stand_in(&original, &delivered);
    }
    Ok(pool.report(1))
}

/// The size of a frame as it is seen, from its header: a scene is begun with it, and boxes are in its pixels.
pub(crate) fn source_size(jpeg: &[u8]) -> Result<FrameSize, DetectorError> {
    knob::inspect(jpeg, &knob::FrameLimits::default())
        .map(|info| info.seen_size())
        .map_err(|source| DetectorError::Frame { source })
}

/// At most `count` indices spread evenly over `0..len`.
pub(crate) fn spread(len: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(len);
    (0..count).map(move |index| index * len / count)
}

/// Why a detector cannot be had or did not answer.
#[derive(Debug, thiserror::Error)]
pub enum DetectorError {
    /// No detector of that name.
    #[error("there is no detector {name:?}; choose one of: moving person face command")]
    Unknown {
        /// The name given.
        name: String,
    },
    /// A command that names no program.
    #[error(
        "detector command {command:?} names no program or leaves a quote open; write --detector-command 'PROGRAM ARGUMENT…'"
    )]
    Command {
        /// The command given.
        command: String,
    },
    /// The program cannot be had, or has ended.
    #[error(transparent)]
    Program {
        /// How.
        source: Failure,
    },
    /// The program answered something that the protocol does not allow.
    #[error("the detector program {program} breaks the protocol")]
    Answer {
        /// Which.
        program: String,
        /// How.
        #[source]
        source: Failure,
    },
    /// The pool has no answer for another reason.
    #[error(transparent)]
    Pool(DetectError),
    /// The detector cannot use the frame.
    #[error("the detector refuses: {message}")]
    Refused {
        /// Its words.
        message: String,
    },
    /// No scene was begun.
    #[error("no scene was begun; call begin_scene with the camera's frame size first")]
    NoScene,
    /// There is nothing to compare.
    #[error("no delivered frame to compare; accuracy needs at least one frame and its original")]
    NoPairs,
    /// An original is no frame.
    #[error("an original is not a usable JPEG image")]
    Frame {
        /// Why.
        #[source]
        source: knob::FrameError,
    },
}

impl DetectorError {
    /// Its stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Unknown { .. } | Self::Command { .. } => Code::CONFIG_INVALID,
            Self::Program { source }
                if matches!(source.downcast_ref(), Some(WorkerError::PythonMissing(_))) =>
            {
                Code::CONFIG_INVALID
            }
            Self::Frame { .. } => Code::FRAME_INVALID,
            Self::NoScene => Code::INTERNAL,
            Self::Program { .. }
            | Self::Answer { .. }
            | Self::Pool(_)
            | Self::Refused { .. }
            | Self::NoPairs => Code::DETECTOR_FAILED,
        }
    }
}

impl From<DetectError> for DetectorError {
    fn from(error: DetectError) -> Self {
        match error {
            DetectError::Refused { message } => Self::Refused { message },
            DetectError::Answer { program, source } => Self::Answer { program, source },
            DetectError::Worker { source } => Self::Program { source },
            error => Self::Pool(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
