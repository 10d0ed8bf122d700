//! Camera sources: where a camera node's JPEG frames come from.
//!
//! ```text
//!  folder, mjpeg, ffmpeg, scene ──▶ supply ──▶ pace ──▶ slot (one frame, newest wins) ──▶ Source::next
//! ```
//!
//! A *supply* gives the next picture when asked. A recording is asked on an exact cadence ([`Pace`]); a live camera sets its
//! own. One task per source moves pictures into a slot that holds one frame: if the consumer has not taken it
//! when the next arrives, the older is dropped and counted. Errors queue next to the slot and are not dropped for frames.
//!
//! Always true: a source that cannot be opened says so before the first frame; an unreadable frame is one error, not the end;
//! dropping a [`Source`] ends its task and kills its ffmpeg.

use std::{
    collections::VecDeque,
    io,
    path::PathBuf,
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use tidegate_message::{Backoff, Detection, Instant};

mod address;
mod blocking;
mod ffmpeg;
mod http;
mod login;
mod mjpeg;
mod pace;
mod rtsp;
pub mod scene;
mod spec;
mod supply;
mod timeline;
mod video;
mod watched;

pub use address::{CameraAddress, is_address};
pub use http::HttpCameraError;
pub use mjpeg::{SplitError, Splitter};
pub use pace::Pace;
pub use rtsp::RtspError;
pub use spec::{NetworkOptions, Rate, RtspTransport, SceneSpec, SourceSpec, SpecReason, shown};
use supply::{Next, Supply};
pub use timeline::{CaptureClock, NoClock, NotSet};

/// One JPEG image as its source gave it.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The image, from its start marker to its end marker.
    pub jpeg: Bytes,
    /// The known objects in it, in its own pixels; `None` where they are not known.
    pub truth: Option<Arc<[Detection]>>,
}

/// One frame of a running source.
#[derive(Clone, Debug)]
pub struct SourceFrame {
    /// The image.
    pub picture: Picture,
    /// When it was captured, by a monotonic clock anchored to wall time when the source was opened: the camera's time, or when
    /// the source had it where nothing more is known. [`Source::age`] is how long ago that was.
    pub captured: Instant,
    /// How many frames the source had before this one, dropped ones included.
    pub sequence: u64,
}

/// A running source of JPEG frames.
#[derive(Debug)]
pub struct Source {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    clock: SourceClock,
}

/// Changes a running source. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SourceControl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    slot: Mutex<Slot>,
    filled: Notify,
    /// The slot was emptied.
    taken: Notify,
    pace: Mutex<Option<Pace>>,
    pace_changed: Notify,
    /// By which clock frames are timed; none before the first, and for sources whose frames are of the time when they are played.
    clock: watch::Sender<Option<CaptureClock>>,
}

#[derive(Debug, Default)]
struct Slot {
    frame: Option<SourceFrame>,
    errors: VecDeque<SourceError>,
    ended: bool,
    sequence: u64,
    dropped: u64,
}

/// Errors that wait for a consumer that does not read; older ones are dropped.
const ERRORS_MAX: usize = 16;

/// First wait before a live source is opened again; it doubles up to [`REOPEN_MAX`].
const REOPEN_MIN: Duration = Duration::from_millis(500);
const REOPEN_MAX: Duration = Duration::from_secs(30);

impl Source {
    /// Opens a source and starts it. Prepared sources and scenes take seconds to open and then cost nothing.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`SourceError`] if there is no such file, folder, device or program, or nothing in it. A network camera that cannot be reached
    /// is none: it is tried again, and what keeps it away comes from [`Source::next`].
    pub async fn open(spec: &SourceSpec) -> Result<Self, SourceError> {
        let clock = SourceClock::start();
        let (supply, absent) = match Supply::open(spec, &clock).await {
            Ok(supply) => (Some(supply), None),
            // A camera may be slower to start than we are.
            Err(error) if error.is_absence() => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let rate = supply.as_ref().and_then(Supply::rate);
        let pace = rate.map(|rate| Pace::new(rate, clock.now()));
        let shared = Arc::new(Shared::new(pace));
        if let Some(error) = absent {
            shared.fail(error);
        }
        let task = match (rate, supply) {
            (Some(_), Some(supply)) => {
                let (shared, clock) = (shared.clone(), clock.clone());
                tokio::spawn(async move {
                    let _ = play(supply, &shared, &clock).await;
                    shared.end();
                })
            }
            (_, supply) => {
                let (spec, shared, clock) = (spec.clone(), shared.clone(), clock.clone());
                tokio::spawn(async move { run_live(supply, &spec, &shared, &clock).await })
            }
        };
        Ok(Self { shared, task, clock })
    }

    /// Starts a source that need not be there yet: the reason why it cannot be opened comes from [`Source::next`], and it is tried
    /// again, with growing waits. So is one that fails later; only a recording that comes to its end ends.
    ///
    /// Must be called within a tokio runtime.
    pub fn start(spec: &SourceSpec) -> Self {
        let clock = SourceClock::start();
        let shared = Arc::new(Shared::new(None));
        let task = tokio::spawn(run_whenever(spec.clone(), shared.clone(), clock.clone()));
        Self { shared, task, clock }
    }

    /// The next frame, or what kept it from coming; `None` once the source has ended.
    ///
    /// An error does not end the source: call again. A live source is opened again by itself.
    ///
    /// # Cancel safety
    /// Cancel safe: no frame is lost.
    pub async fn next(&mut self) -> Option<Result<SourceFrame, SourceError>> {
        loop {
            let shared = self.shared.clone();
            let filled = shared.filled.notified();
            {
                let mut slot = self.shared.slot();
                if let Some(error) = slot.errors.pop_front() {
                    return Some(Err(error));
                }
                if let Some(frame) = slot.frame.take() {
                    shared.taken.notify_one();
                    return Some(Ok(frame));
                }
                if slot.ended {
                    return None;
                }
            }
            tokio::select! {
                () = filled => {}
                // The task says so before it ends, so that this is not polled again.
                ended = &mut self.task => {
                    shared.slot().ended = true;
                    if let Err(error) = ended && error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    }
                }
            }
        }
    }

    /// How long ago a frame of this source was captured.
    pub fn age(&self, frame: &SourceFrame) -> Duration {
        self.clock.now().since(frame.captured)
    }

    /// By which clock its frames are timed; none before the first, and for sources whose frames are captured when they are played.
    pub fn clock(&self) -> Option<CaptureClock> {
        *self.shared.clock.borrow()
    }

    /// A handle that changes the source while it runs.
    pub fn control(&self) -> SourceControl {
        SourceControl { shared: self.shared.clone() }
    }

    /// Frames that were overtaken by a newer one, or skipped because the source itself was late.
    pub fn dropped(&self) -> u64 {
        self.shared.slot().dropped
    }

    /// Whether the source follows our cadence; a live camera follows its own.
    pub fn is_paced(&self) -> bool {
        self.shared.pace().is_some()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort(); // the supply goes with it, and its ffmpeg is killed on drop
    }
}

impl SourceControl {
    /// Places the frames `phase` after whole periods since the Unix epoch. No effect on a live camera: returns false.
    pub fn set_phase(&self, phase: Duration) -> bool {
        self.change(|pace| pace.set_phase(phase))
    }

    /// Moves all later frames by `shift`. No effect on a live camera: returns false.
    pub fn delay(&self, shift: Duration) -> bool {
        self.change(|pace| pace.delay(shift))
    }

    /// Changes the frame rate. Pictures are not left out for it: a recording plays slower or faster. No effect on a
    /// live camera: returns false.
    pub fn set_rate(&self, rate: Rate) -> bool {
        self.change(|pace| pace.set_rate(rate))
    }

    /// The phase now; `None` for a live camera.
    pub fn phase(&self) -> Option<Duration> {
        self.shared.pace().as_ref().map(Pace::phase)
    }

    /// As [`Source::clock`], and its changes.
    pub fn clocks(&self) -> watch::Receiver<Option<CaptureClock>> {
        self.shared.clock.subscribe()
    }

    /// The rate now; `None` for a live camera.
    pub fn rate(&self) -> Option<Rate> {
        self.shared.pace().as_ref().map(Pace::rate)
    }

    fn change(&self, change: impl FnOnce(&mut Pace)) -> bool {
        let mut pace = self.shared.pace();
        let Some(pace) = pace.as_mut() else { return false };
        change(pace);
        self.shared.pace_changed.notify_one();
        true
    }
}

impl Shared {
    fn new(pace: Option<Pace>) -> Self {
        let (pace, slot) = (Mutex::new(pace), Mutex::default());
        let (filled, taken) = (Notify::new(), Notify::new());
        let (pace_changed, clock) = (Notify::new(), watch::Sender::new(None));
        Self { slot, filled, taken, pace, pace_changed, clock }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pace(&self) -> MutexGuard<'_, Option<Pace>> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, picture: Picture, captured: Instant) {
        let mut slot = self.slot();
        let frame = SourceFrame { picture, captured, sequence: slot.sequence };
        slot.sequence += 1;
        slot.dropped += u64::from(slot.frame.replace(frame).is_some());
        drop(slot);
        self.filled.notify_one();
    }

    /// Frames are timed by that clock.
    fn timed_by(&self, clock: Option<CaptureClock>) {
        self.clock.send_if_modified(|known| {
            // A rate that is measured again is no news by its last digit.
            let is_news = match (*known, clock) {
                (
                    Some(CaptureClock::Rated { permille: before }),
                    Some(CaptureClock::Rated { permille: now }),
                ) => before.abs_diff(now) > 5,
                (
                    Some(CaptureClock::Unset(NotSet::Off { behind_millis: before })),
                    Some(CaptureClock::Unset(NotSet::Off { behind_millis: now })),
                ) => before.abs_diff(now) > 1_000,
                (before, now) => before != now,
            };
            if is_news {
                *known = clock;
            }
            is_news
        });
    }

    /// Waits until the consumer has taken what is in the slot.
    async fn emptied(&self) {
        loop {
            let taken = self.taken.notified();
            if self.slot().frame.is_none() {
                return;
            }
            taken.await;
        }
    }

    fn skip(&self, pictures: u64) {
        let mut slot = self.slot();
        slot.sequence += pictures;
        slot.dropped += pictures;
    }

    fn fail(&self, error: SourceError) {
        let mut slot = self.slot();
        if slot.errors.len() == ERRORS_MAX {
            slot.errors.pop_front();
        }
        slot.errors.push_back(error);
        drop(slot);
        self.filled.notify_one();
    }

    fn end(&self) {
        self.slot().ended = true;
        self.filled.notify_one();
    }

    /// Waits until the next frame is due, whatever happens to the schedule meanwhile.
    async fn wait_due(&self, clock: &SourceClock) {
        loop {
            let changed = self.pace_changed.notified();
            let Some(due) = self.pace().as_ref().map(Pace::due) else { return };
            tokio::select! {
                () = clock.sleep_until(due) => return,
                () = changed => {}
            }
        }
    }
}

/// Every picture of a source or its first `frames_max`, at once: for characterization, which needs no cadence.
///
/// Of a recording with more pictures, `frames_max` are taken evenly over its length; of a live camera, the first. A loop
/// is gone through once.
///
/// A picture that cannot be read is left out, and said to be in the log.
///
/// # Errors
/// As [`Source::open`].
pub async fn read_pictures(
    spec: &SourceSpec,
    frames_max: usize,
) -> Result<Vec<Picture>, SourceError> {
    let mut supply = Supply::open(&spec.once(), &SourceClock::start()).await?;
    let live = supply.rate().is_none();
    let (mut pictures, mut left_out) = (supply::Kept::default(), supply::LeftOut::default());
    loop {
        match left_out.next_of(&mut supply).await? {
            Next::Picture(picture, _) => pictures.push(spec, Some(picture))?,
            Next::Nothing => {}
            Next::End => break,
        }
        if live && pictures.len() == frames_max {
            break;
        }
    }
    left_out.sum_up(spec);
    let all: Vec<Picture> = pictures.into_vec().into_iter().flatten().collect();
    let count = frames_max.min(all.len());
    Ok((0..count).map(|index| all[index * all.len() / count].clone()).collect())
}

/// Opens a source as often as it takes, and gives what it has until it comes to its end.
async fn run_whenever(spec: SourceSpec, shared: Arc<Shared>, clock: SourceClock) {
    let mut backoff = Backoff::new(REOPEN_MIN, REOPEN_MAX);
    loop {
        match Supply::open(&spec, &clock).await {
            Ok(supply) => {
                let Some(rate) = supply.rate() else {
                    return run_live(Some(supply), &spec, &shared, &clock).await;
                };
                let now = clock.now();
                // Pictures of the time without the source are not skipped: a recording continues with the next.
                shared.pace().get_or_insert_with(|| Pace::new(rate, now)).resume(now);
                match play(supply, &shared, &clock).await {
                    Played::ToItsEnd => return shared.end(),
                    // A folder or a file may be another one by now.
                    Played::Failed { pictures } if pictures > 0 => backoff.reset(),
                    Played::Failed { .. } => {}
                }
            }
            Err(error) => shared.fail(error),
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

/// How a recording ended.
enum Played {
    /// There is no more.
    ToItsEnd,
    /// It has failed, after so many pictures.
    Failed { pictures: u64 },
}

async fn play(mut supply: Supply, shared: &Shared, clock: &SourceClock) -> Played {
    let mut pictures = 0;
    loop {
        shared.wait_due(clock).await;
        let skipped = shared.pace().as_mut().map_or(0, |pace| pace.take(clock.now()));
        if skipped > 0 {
            supply.skip(skipped).await;
            shared.skip(skipped);
        }
        match supply.next().await {
            Ok(Next::Picture(picture, _)) => {
                pictures += 1;
                shared.put(picture, clock.now());
            }
            Ok(Next::Nothing) => {}
            Ok(Next::End) => return Played::ToItsEnd,
            Err(error) => {
                let last = error.is_final();
                shared.fail(error);
                if last {
                    return Played::Failed { pictures };
                }
            }
        }
    }
}

/// Gives what a live camera shows, and opens it again whenever it fails; without a supply it was not there at first.
async fn run_live(
    mut supply: Option<Supply>,
    spec: &SourceSpec,
    shared: &Shared,
    clock: &SourceClock,
) {
    let mut thinner = Thinner::new(spec.rate_max());
    let mut backoff = Backoff::new(REOPEN_MIN, REOPEN_MAX);
    let mut last = None;
    loop {
        let Some(open) = &mut supply else {
            tokio::time::sleep(backoff.next_wait()).await;
            match Supply::open(spec, clock).await {
                Ok(opened) => supply = Some(opened),
                Err(error) => shared.fail(error),
            }
            continue;
        };
        let error = match open.next().await {
            Ok(Next::Picture(picture, captured)) => {
                backoff.reset();
                shared.timed_by(open.clock());
                let captured = captured.unwrap_or_else(|| clock.now());
                // A frame that cannot have its own time among the others is not given another.
                if last.is_none_or(|last| captured > last) && thinner.takes(captured) {
                    last = Some(captured);
                    shared.put(picture, captured);
                    if spec.waits_for_consumer() {
                        shared.emptied().await;
                    }
                } else {
                    shared.skip(1);
                }
                continue;
            }
            Ok(Next::Nothing) => continue,
            Ok(Next::End) if spec.can_reopen() => SourceError::Ended { place: open.place() },
            Ok(Next::End) => break,
            Err(error) => error,
        };
        let is_final = error.is_final();
        shared.fail(error);
        if is_final && !spec.can_reopen() {
            break;
        }
        if is_final {
            supply = None;
        }
    }
    shared.end();
}

/// Leaves frames of a live camera out, evenly, so that on average no more come than a rate says.
#[derive(Debug)]
struct Thinner {
    period: Option<Duration>,
    /// When the next is due.
    due: Option<Instant>,
}

impl Thinner {
    /// All are taken where there is no rate.
    fn new(rate: Option<Rate>) -> Self {
        Self { period: rate.map(Rate::period), due: None }
    }

    /// Whether the frame that was captured then is taken.
    fn takes(&mut self, captured: Instant) -> bool {
        let Some(period) = self.period else { return true };
        // Cameras are no clocks: a frame that comes a little early is the one that is due.
        if self.due.is_some_and(|due| captured + period / 4 < due) {
            return false;
        }
        // After a pause, the frames that did not come are not made up for.
        let due = self.due.map(|due| due + period).filter(|&next| captured <= next);
        self.due = Some(due.unwrap_or(captured + period));
        true
    }
}

/// A monotonic clock anchored to wall time when it was started.
#[derive(Clone, Debug)]
struct SourceClock {
    wall: Instant,
    started: tokio::time::Instant,
}

impl SourceClock {
    fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall: Instant::EPOCH + wall, started: tokio::time::Instant::now() }
    }

    fn now(&self) -> Instant {
        self.at(tokio::time::Instant::now())
    }

    /// The time of this clock at a moment since its start.
    fn at(&self, moment: tokio::time::Instant) -> Instant {
        self.wall + moment.saturating_duration_since(self.started)
    }

    /// The present wall clock time, whatever was done to it since the start.
    fn wall() -> Instant {
        Instant::EPOCH + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    async fn sleep_until(&self, due: Instant) {
        tokio::time::sleep_until(self.started + due.since(self.wall)).await;
    }
}

/// Why a source or one of its frames cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The description is wrong.
    #[error("source {spec:?} cannot be used: {reason}")]
    Spec {
        /// The description.
        spec: String,
        /// The problem.
        reason: SpecReason,
    },
    /// A file, folder or device cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// One picture of a folder cannot be read; the others are.
    #[error("cannot read {path}")]
    Picture {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file has a part of a picture, and nothing is added to it.
    #[error(
        "{path} ends in the middle of its picture and has not changed for {} s; it is left there, and is taken once its upload is \
         resumed and whole",
        .after.as_secs()
    )]
    Torn {
        /// Which.
        path: PathBuf,
        /// How long it was waited for.
        after: Duration,
    },
    /// A picture that was taken cannot be deleted.
    #[error(
        "cannot delete {path}, which was taken; make its folder writable, or leave delete=1 out"
    )]
    Delete {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is nothing to play.
    #[error("{path} holds no {wanted}")]
    Empty {
        /// Where.
        path: PathBuf,
        /// The expected mark.
        wanted: &'static str,
    },
    /// A file is no JPEG image.
    #[error("{path} is not a JPEG image: {reason}; it is left out")]
    NotJpeg {
        /// Which.
        path: PathBuf,
        /// The problem.
        reason: SplitError,
    },
    /// A stream holds something that is no JPEG image.
    #[error("{place} gave a damaged image, which is left out")]
    Damaged {
        /// Where.
        place: String,
        /// The problem.
        #[source]
        source: SplitError,
    },
    /// A program that the source needs is not there.
    #[error(
        "the program {program} is not installed; run scripts/setup, or install it with: apt-get install ffmpeg"
    )]
    ProgramMissing {
        /// Its name.
        program: &'static str,
    },
    /// A program could not be started for another reason.
    #[error("the program {program} cannot be started")]
    ProgramStart {
        /// Its name.
        program: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// ffmpeg ended with an error.
    #[error("ffmpeg cannot play {place} ({status}): {said}; try it by hand: {command}")]
    ProgramFailed {
        /// The place that it was to play.
        place: String,
        /// How it ended.
        status: ExitStatus,
        /// Its last words.
        said: String,
        /// How it was called.
        command: String,
    },
    /// A network camera does not play.
    #[error("{place} cannot be played")]
    Rtsp {
        /// Which.
        place: String,
        /// Why.
        #[source]
        source: RtspError,
    },
    /// A network camera that is asked by HTTP gives no pictures.
    #[error("{place} cannot be played")]
    Http {
        /// Which.
        place: String,
        /// Why.
        #[source]
        source: HttpCameraError,
    },
    /// A camera that is asked by HTTP answers with the picture that it gave before.
    #[error(
        "{place} has answered with the same picture for {} s, as its ETag or Last-Modified says; it counts once",
        .after.as_secs()
    )]
    Repeats {
        /// Which.
        place: String,
        /// How long.
        after: Duration,
    },
    /// A live camera gives nothing.
    #[error("{place} gave no image for {} s{said}; check the camera and its network", .after.as_secs())]
    Stalled {
        /// Which.
        place: String,
        /// How long.
        after: Duration,
        /// The last message of its decoder, in parentheses with a blank before them; empty if there is none.
        said: String,
    },
    /// A part of a camera's stream was lost or left out, and no key came soon, to which alone later pictures do not refer.
    #[error(
        "a part of the stream of {place} was lost or came too late, and no key picture within {} s, so that later ones would be damaged; \
         it is opened again. Have the camera send a key (I-frame) each second or two",
        .after.as_secs()
    )]
    KeyMissing {
        /// Which.
        place: String,
        /// How long one was waited for.
        after: Duration,
    },
    /// Pictures of a camera's stream were left out, and others come again.
    #[error(
        "pictures of {place} were left out, {pictures} of late and {all} since it was opened: a part of the stream, to which they refer, was lost or          came too late"
    )]
    LeftOut {
        /// Which.
        place: String,
        /// How many of late.
        pictures: u64,
        /// How many since it was opened.
        all: u64,
    },
    /// A live camera closed its stream.
    #[error("{place} ended its stream; it is opened again")]
    Ended {
        /// Which.
        place: String,
    },
    /// A prepared recording does not fit.
    #[error("{place} needs more than {} MiB once prepared; play it without prepare=1, shorten it, or lower fps", .bytes_max >> 20)]
    TooLong {
        /// Which.
        place: String,
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// The scene could not be drawn or encoded.
    #[error("the scene cannot be encoded")]
    Scene(#[from] scene::SceneError),
}

impl SourceError {
    /// The error of a `place` that gave nothing for `after`; `said` are the last words of its decoder, or nothing.
    fn stalled(place: &str, after: Duration, said: &str) -> Self {
        let said = if said.is_empty() { String::new() } else { format!(" (ffmpeg says: {said})") };
        Self::Stalled { place: place.to_owned(), after, said }
    }

    /// Whether a network camera is away that may come.
    fn is_absence(&self) -> bool {
        match self {
            Self::Http { source, .. } => source.is_absence(),
            Self::Rtsp { source, .. } => source.is_absence(),
            _ => false,
        }
    }

    /// Whether the supply that gave it will give nothing more.
    const fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::NotJpeg { .. }
                | Self::Damaged { .. }
                | Self::Picture { .. }
                | Self::Torn { .. }
                | Self::Repeats { .. }
                | Self::LeftOut { .. }
                | Self::Delete { .. }
        )
    }
}

#[cfg(test)]
mod tests;
