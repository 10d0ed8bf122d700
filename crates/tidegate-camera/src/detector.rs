//! Detectors: programs that find objects in frames, run next to this process and watched.
//!
//! ```text
//!  characterize, demo ──▶ Detector ──socket──▶ worker (Python with OpenCV, or a program of the user's)
//!                            │ started, given the scene again after each restart, killed with us
//! ```
//!
//! Native vision libraries stay out of this process: their build, their memory and their crashes are the worker's. The
//! protocol is documented in `docs/src/detector-protocol.md`.
//!
//! Always true: a worker that dies, hangs or answers nonsense costs one request at most one restart; every wait has an end;
//! boxes are in pixels of the scene's source size, of the picture as it is seen, whatever the size of the frame that was looked at.

use std::{fmt, path::PathBuf, process::ExitStatus, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use tidegate_frame::{
    knob,
    score::{Detection, Labels, Pool, Report},
};
use tidegate_message::{Backoff, Code, FrameSize, command};

mod locate;
mod protocol;
mod worker;

pub use protocol::{Hello, MessageError, Reply};
use worker::Worker;

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
}

impl DetectorSpec {
    /// A detector of that kind with the default timeouts.
    pub const fn new(kind: DetectorKind) -> Self {
        Self {
            kind,
            start_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(20),
            python: None,
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
    spec: DetectorSpec,
    worker: Option<Worker>,
    scene: Option<Scene>,
    hello: Hello,
    /// Programs started so far.
    starts: u64,
    /// Since the last answer.
    backoff: Backoff,
    not_before: Instant,
}

#[derive(Clone, Debug)]
struct Scene {
    source: FrameSize,
    background: Vec<Bytes>,
}

/// First wait before a program that failed is started again; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Background frames that are worth learning from.
pub const BACKGROUND_FRAMES: usize = 31;

impl Detector {
    /// Starts the program and waits for its hello.
    ///
    /// # Errors
    /// [`DetectorError`] if there is no such program, if it ends, or if it does not say hello in time.
    pub async fn start(spec: DetectorSpec) -> Result<Self, DetectorError> {
        let worker = Worker::start(&spec).await?;
        let hello = worker.hello().clone();
        let not_before = Instant::now();
        Ok(Self {
            spec,
            worker: Some(worker),
            scene: None,
            hello,
            starts: 1,
            backoff: Backoff::new(BACKOFF_MIN, BACKOFF_MAX),
            not_before,
        })
    }

    /// The detector's own name: `moving`.
    pub fn name(&self) -> &str {
        &self.hello.detector
    }

    /// Whether it learns a background: [`Self::begin_scene`] must then be given some frames.
    pub const fn needs_background(&self) -> bool {
        self.hello.background
    }

    /// How often the program was started again.
    pub const fn restarts(&self) -> u64 {
        self.starts - 1
    }

    /// Forgets the last scene. Frames now show what a camera of `source` size sees, whatever their own size. It is the size of the
    /// picture as it is seen: with its sides swapped where EXIF turns it by a quarter.
    ///
    /// `background` are frames spread over the scene, [`BACKGROUND_FRAMES`] or so; a detector that needs none is given none.
    /// Returns the size to which the detector brings every frame.
    ///
    /// # Errors
    /// As [`Self::detect`].
    pub async fn begin_scene(
        &mut self,
        source: FrameSize,
        background: &[Bytes],
    ) -> Result<FrameSize, DetectorError> {
        let background = if self.needs_background() { background.to_vec() } else { Vec::new() };
        self.scene = Some(Scene { source, background });
        self.exchange(Request::Scene).await.map(|answer| answer.input)
    }

    /// Finds boxes in a frame of the scene, in pixels of the scene's source size.
    ///
    /// A program that fails is started again, after a wait that grows with its failures, and asked once more.
    ///
    /// # Errors
    /// [`DetectorError::Refused`] if the detector cannot use the frame; the others after the second failure.
    ///
    /// # Cancel safety
    /// A call that is dropped kills the program; the next starts it again.
    pub async fn detect(&mut self, jpeg: &[u8]) -> Result<Vec<Detection>, DetectorError> {
        Ok(self.detect_timed(jpeg).await?.boxes)
    }

    /// [`Self::detect`], with the time that the detector took.
    ///
    /// # Errors
    /// As [`Self::detect`].
    pub async fn detect_timed(&mut self, jpeg: &[u8]) -> Result<Detections, DetectorError> {
        self.exchange(Request::Detect(jpeg)).await.map(|answer| answer.detections)
    }

    async fn exchange(&mut self, request: Request<'_>) -> Result<Answer, DetectorError> {
        match self.exchange_once(request).await {
            Err(error) if error.is_of_worker() => self.exchange_once(request).await,
            result => result,
        }
    }

    /// The worker is out of `self` while it is asked: if this future is dropped half way, so is the worker.
    async fn exchange_once(&mut self, request: Request<'_>) -> Result<Answer, DetectorError> {
        let scene = self.scene.clone().ok_or(DetectorError::NoScene)?;
        let (mut worker, fresh) = match self.worker.take() {
            Some(worker) => (worker, false),
            None => (self.restart().await?, true),
        };
        let timeout = self.spec.answer_timeout;
        let answered = async {
            let mut answer = Answer { input: scene.source, detections: Detections::none() };
            if fresh || matches!(request, Request::Scene) {
                answer.input = worker.begin_scene(scene.source, &scene.background, timeout).await?;
            }
            if let Request::Detect(jpeg) = request {
                answer.detections = worker.detect(jpeg, timeout).await?;
            }
            Ok::<_, DetectorError>(answer)
        }
        .await;
        match &answered {
            Err(error) if error.is_of_worker() => self.failed(),
            _ => {
                self.backoff.reset();
                self.worker = Some(worker);
            }
        }
        answered
    }

    async fn restart(&mut self) -> Result<Worker, DetectorError> {
        tokio::time::sleep_until(self.not_before).await;
        self.starts += 1;
        match Worker::start(&self.spec).await {
            Ok(worker) => {
                self.hello = worker.hello().clone();
                Ok(worker)
            }
            Err(error) => {
                self.failed();
                Err(error)
            }
        }
    }

    fn failed(&mut self) {
        self.not_before = Instant::now() + self.backoff.next_wait();
    }
}

#[derive(Clone, Copy)]
enum Request<'a> {
    Scene,
    Detect(&'a [u8]),
}

struct Answer {
    input: FrameSize,
    detections: Detections,
}

impl Detections {
    const fn none() -> Self {
        Self { boxes: Vec::new(), took: Duration::ZERO }
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
    /// The worker's Python environment was not made.
    #[error(
        "the detector worker has no Python environment; run workers/detector/setup.sh, or set TIDEGATE_WORKER_PYTHON to a \
         Python with opencv-python-headless below 5 (looked for: {})",
        .looked_for.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    PythonMissing {
        /// Where it was looked for.
        looked_for: Vec<PathBuf>,
    },
    /// The program cannot be started.
    #[error("the detector program {program} cannot be started")]
    Start {
        /// Which.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The program ended.
    #[error("the detector program {program} ended ({status}){}", after_colon(said))]
    Ended {
        /// Which.
        program: String,
        /// How.
        status: ExitStatus,
        /// Its last words.
        said: String,
    },
    /// The program does not answer.
    #[error("the detector program {program} gave no {wanted} within {} s; is it stuck, or the machine overloaded?", .after.as_secs_f64())]
    TimedOut {
        /// Which.
        program: String,
        /// The expected answer.
        wanted: &'static str,
        /// How long.
        after: Duration,
    },
    /// The program answered something that the protocol does not allow.
    #[error("the detector program {program} breaks the protocol")]
    Answer {
        /// Which.
        program: String,
        /// How.
        #[source]
        source: MessageError,
    },
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
    pub const fn code(&self) -> Code {
        match self {
            Self::Unknown { .. } | Self::Command { .. } | Self::PythonMissing { .. } => {
                Code::CONFIG_INVALID
            }
            Self::Frame { .. } => Code::FRAME_INVALID,
            Self::NoScene => Code::INTERNAL,
            Self::Start { .. }
            | Self::Ended { .. }
            | Self::TimedOut { .. }
            | Self::Answer { .. }
            | Self::Refused { .. }
            | Self::NoPairs => Code::DETECTOR_FAILED,
        }
    }

    /// Whether a new program may do better.
    const fn is_of_worker(&self) -> bool {
        matches!(
            self,
            Self::Start { .. } | Self::Ended { .. } | Self::TimedOut { .. } | Self::Answer { .. }
        )
    }
}

fn after_colon(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
