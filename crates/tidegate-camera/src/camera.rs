//! The camera node: a source, a log, and transfers that leave by a link.
//!
//! ```text
//!  source ─▶ capture ─▶ camera log ─▶ engine (`tidegate-frame`: a Transfer for each stream) ─▶ encoder ─▶ link
//! ```
//!
//! The node dials its edge node, says what camera it is, and sends nothing until it is asked. When the link
//! breaks it dials again with back-off; capturing continues meanwhile, and the log bridges the gap.

mod capture;
mod encoder;
mod frames;
mod frozen;
mod privacy;
mod refusals;
mod runtime;

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use tidegate_api::ApiError;
use tidegate_frame::{
    engine::EngineConfig,
    knob::FrameLimits,
    table::{Loaded, Table, TableError, TableSet},
    transfer::TransferConfig,
};
use tidegate_identity::pki::{Credentials, revocation::Revoked};
use tidegate_link::{
    carrier::{Carrier, Down, Incoming},
    link::{self, Link, LinkError, LinkSettings, Transport},
};
use tidegate_log::{Entry, LogError};
use tidegate_message::{Backoff, CameraName, Code, FrameSize, Instant, Position};
use tidegate_process::{
    clock,
    health::{Condition, Health, Pulse},
};
use tidegate_wire::{BootId, CameraAnnounce, Features, Hello, MINOR, NodeId, Record, Role};
use tokio_util::sync::CancellationToken;

pub use self::{
    capture::CaptureError,
    privacy::{Originals, Privacy},
    runtime::Camera,
};
use self::{
    capture::{Capture, CaptureCounts},
    frames::CameraLog,
    frozen::Frozen,
    refusals::{Refusals, Supply},
};
use crate::{
    frame_log::{FrameLog, FrameLogSettings, Log, LogName},
    source::{Source, SourceControl, SourceError, SourceSpec},
};

/// A source that gives no frame for so long is not as it should be: none is meant to be that slow.
const SOURCE_SILENT_MAX: Duration = Duration::from_secs(30);
/// Longest wait for the edge node's answer to our introduction.
const WELCOME_MAX: Duration = Duration::from_secs(5);

/// The options of a camera.
#[derive(Clone, Debug)]
pub struct CameraSettings {
    /// Its name.
    pub name: CameraName,
    /// Size of its frames, if known before the first.
    pub size: Option<FrameSize>,
    /// Frames a second to expect; 0 if not known.
    pub frames_per_second: f64,
    /// The description of its source.
    pub source: String,
    /// The log of its frames.
    pub log: FrameLogSettings,
    /// Bounds on its frames.
    pub limits: FrameLimits,
    /// The private parts of its frames.
    pub privacy: Privacy,
    /// Where the states of its source and its link are reported.
    pub health: Health,
    /// How far ahead of our clock a given capture time may lie.
    pub future_max: Duration,
    /// Folder of characterization tables in addition to those that come with the program; `NAME.table` there is this camera's own.
    pub tables: Option<PathBuf>,
    /// Settings of its transfers.
    pub transfer: TransferConfig,
    /// After how long the same picture, again and again, counts as none; `None` never.
    pub frozen_after: Option<Duration>,
}

/// How long after a frame, if no other has come, the log is made ready for the next: the frame in hand goes first.
pub const PREPARE_AFTER: Duration = Duration::from_millis(2);

/// How often a source that gives nothing has its log looked after.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);

/// Where a camera's frames go in.
pub struct Intake {
    capture: Capture,
    supply: Supply,
    frozen: Frozen,
    /// The log forgets frames by their age.
    is_aged: bool,
}

impl Intake {
    /// Takes one frame, captured at `at` or now; returns its capture time when the log has it.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing else is disturbed.
    pub fn frame(&mut self, at: Option<Instant>, jpeg: &Bytes) -> Result<Instant, CaptureError> {
        let taken = self.capture.frame(at, jpeg);
        self.note(&taken);
        taken
    }

    /// Takes one frame, captured `age` ago, which the log stores asynchronously.
    ///
    /// # Errors
    /// As [`Intake::frame`].
    fn frame_beside(&mut self, age: Duration, jpeg: &Bytes) -> Result<Instant, CaptureError> {
        let taken = self.capture.frame_beside(age, jpeg);
        self.note(&taken);
        taken
    }

    /// Whether its log is in files.
    pub fn is_in_files(&self) -> bool {
        self.capture.is_in_files()
    }

    fn note(&mut self, taken: &Result<Instant, CaptureError>) {
        match taken {
            Ok(_) => self.supply.took(clock::now()),
            Err(error) => self.supply.refused(clock::now(), error.code(), error),
        }
    }

    /// Gets ready for the next frame, when there is time. Returns false if it has to be tried again.
    fn prepare(&mut self) -> bool {
        self.capture.prepare()
    }
}

/// Why a camera cannot run.
#[derive(Debug, thiserror::Error)]
pub enum CameraError {
    /// The log cannot be made.
    #[error("the camera's log cannot be made")]
    Log(#[from] LogError),
    /// A table cannot be read.
    #[error("a characterization table cannot be read")]
    Table(#[from] TableError),
    /// The source cannot be opened, or ended.
    #[error("the source cannot be used")]
    Source(#[from] SourceError),
    /// The source has no more frames.
    #[error("the source has ended after {frames} frames")]
    SourceEnded {
        /// How many there were.
        frames: u64,
    },
    /// The edge node does not accept this camera.
    #[error("the edge node refuses this camera: {text}")]
    Refused {
        /// The stable code it gave, if this version knows it.
        code: Option<Code>,
        /// Its sentence.
        text: String,
    },
    /// The link cannot be made.
    #[error("the link to the edge node cannot be made")]
    Link(#[from] LinkError),
    /// The edge node could not be reached often enough.
    #[error(
        "the edge node {edge} could not be reached in {tries} tries; the last one failed because {why}"
    )]
    Unreachable {
        /// Its address.
        edge: SocketAddr,
        /// How often it was tried.
        tries: u32,
        /// The error of the last try.
        why: String,
        /// Its code.
        code: Code,
    },
}

impl CameraError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Log(_) => Code::CONFIG_INVALID,
            Self::Table(_) => Code::TABLE_INVALID,
            Self::Source(_) => Code::CONFIG_INVALID,
            Self::SourceEnded { .. } => Code::CAMERA_OFFLINE,
            Self::Refused { code, .. } => code.unwrap_or(Code::IDENTITY_REFUSED),
            Self::Link(error) => error.code(),
            Self::Unreachable { code, .. } => *code,
        }
    }
}

/// A camera with its log, in which there may be frames of an earlier run, and its intake.
///
/// # Errors
/// [`CameraError::Log`] and [`CameraError::Table`].
pub fn build(
    options: CameraSettings,
    source: Option<SourceControl>,
) -> Result<(Camera, Intake), CameraError> {
    let tables = tables_of(options.tables.as_deref(), &options.name)?;
    let name = LogName::Camera(options.name.clone());
    let FrameLog { writer, log, earlier } = FrameLog::open(&options.log, &name)?;
    let last = newest(&log);
    let counts = Arc::new(CaptureCounts::default());
    let (capture, captured) =
        Capture::new(writer, last.as_ref(), options.limits, options.future_max, counts.clone());
    let (supply, supplied) = Supply::new();
    let is_aged = options.log.age.is_some();
    let frozen = Frozen::after(options.frozen_after);
    let camera = Camera {
        epoch: capture.epoch(),
        announce: CameraAnnounce {
            name: options.name,
            size: options.size,
            frames_per_second: options.frames_per_second,
            source: options.source,
        },
        frames: CameraLog { log, earlier: earlier.into() },
        log_bytes_max: options.log.size.bytes_max,
        counts,
        captured,
        supplied,
        tables: Arc::new(tables),
        config: EngineConfig {
            transfer: options.transfer,
            covers: options.privacy.covers(),
            began: capture.began(),
        },
        limits: options.limits,
        privacy: options.privacy,
        source,
    };
    Ok((camera, Intake { capture, supply, frozen, is_aged }))
}

/// The newest entry of a log that can be read.
fn newest(log: &Log) -> Option<Entry> {
    let end = log.end();
    let last = log.last();
    if let Err(error) = &last {
        tracing::warn!(
            error = tidegate_message::error_chain(error),
            "the newest frame cannot be read"
        );
    }
    // Damaged ones are rare: some before it tell as much.
    let before =
        || (1..=DAMAGED_MAX).find_map(|back| log.entry(Position(end.0.checked_sub(back)?)).ok()?);
    last.ok().flatten().or_else(before)
}

/// Damaged frames in a row behind which the newest whole one is looked for.
const DAMAGED_MAX: u64 = 16;

/// The tables that come with the program, and those of `folder` if there is one. A file of it that cannot be used is logged, with
/// its line, and left out: a bad table stops no node.
///
/// # Errors
/// [`TableError`] if the folder cannot be read.
pub fn tables(folder: Option<&Path>) -> Result<TableSet, TableError> {
    let (tables, loaded) = look_at_tables(folder)?;
    for error in &loaded.refused {
        let (code, error) = (Code::TABLE_INVALID, tidegate_message::error_chain(error));
        tracing::error!(%code, error, "characterization table left out");
    }
    if let Some(folder) = folder {
        let count = loaded.count;
        tracing::info!(count, folder = %folder.display(), "characterization tables read");
    }
    Ok(tables)
}

/// The same without a line in the log: with the files that are left out.
///
/// # Errors
/// As for [`tables`].
pub fn look_at_tables(folder: Option<&Path>) -> Result<(TableSet, Loaded), TableError> {
    let mut tables = TableSet::builtin();
    let loaded = folder.map(|folder| tables.load_folder(folder)).transpose()?;
    Ok((tables, loaded.unwrap_or_default()))
}

/// The same for the camera called `name`: the file `NAME.table` is its own, and goes before others that suit as well.
///
/// # Errors
/// As for [`tables`].
fn tables_of(folder: Option<&Path>, name: &CameraName) -> Result<TableSet, TableError> {
    let mut tables = tables(folder)?;
    let own = folder.map(|folder| folder.join(format!("{name}.table")));
    // One that cannot be used was logged with the others.
    if let Some(own) = own.and_then(|path| Table::load(&path).ok()) {
        tables.insert_own(own);
    }
    Ok(tables)
}

/// Where and as whom a camera node dials.
#[derive(Clone)]
pub struct DialSettings {
    /// The edge node's link address.
    pub edge: SocketAddr,
    /// QUIC, TCP, or QUIC first.
    pub transport: Transport,
    /// The camera's certificate.
    pub credentials: Credentials,
    /// Settings of the link.
    pub link: LinkSettings,
    /// How often a lost edge node is dialled in a row before the camera gives up; none for ever.
    pub reconnects_max: Option<u32>,
    /// Longest wait between two tries; the first is a twentieth of it.
    pub retry_max: Duration,
}

/// Runs a camera node until `stop`.
///
/// # Errors
/// [`CameraError`]: a failure that another try cannot mend.
#[boxed]
pub async fn run(
    options: CameraSettings,
    spec: &SourceSpec,
    dial: DialSettings,
    stop: CancellationToken,
) -> Result<(), CameraError> {
    let mut source = Source::open(spec).await?;
    let watched = Watched::of(&options.health);
    let linked = options.health.condition("link to the edge node");
    let (camera, mut intake) = build(options, Some(source.control()))?;
    let capturing = async {
        capture(&mut source, &mut intake, &watched).await;
        camera.counts.captured.load(Ordering::Relaxed)
    };
    tokio::select! {
        frames = capturing => Err(CameraError::SourceEnded { frames }),
        ended = stay_connected(&camera, &dial, &linked, &stop) => ended,
    }
}

/// Whether the frames of a camera come and can be used, for its health.
struct Watched {
    frames: Pulse,
    usable: Condition,
}

impl Watched {
    fn of(health: &Health) -> Self {
        Self {
            frames: health.expected("source", SOURCE_SILENT_MAX),
            usable: health.condition("frames"),
        }
    }
}

/// Runs the source of a camera that lives in a node: frames go in by `intake`, and observers of the camera hear why there are none. It
/// does not end, and the node's health does not depend on it: what is wrong with one camera is no reason to leave a node with many alone.
///
/// # Cancel safety
/// Dropping it ends the source.
#[boxed]
pub async fn run_source(mut source: Source, mut intake: Intake) -> Infallible {
    let watched = Watched::of(&Health::default());
    capture(&mut source, &mut intake, &watched).await;
    intake.supply.ended(intake.capture.captured());
    loop {
        tokio::time::sleep(EXPIRE_EVERY).await;
        intake.prepare();
    }
}

/// Takes the frames of a source until it ends.
async fn capture(source: &mut Source, intake: &mut Intake, watched: &Watched) {
    // Frames grow too old although no other comes.
    let idle = if intake.is_aged { EXPIRE_EVERY } else { Duration::MAX };
    let mut unprepared = false;
    let mut refusals = Refusals::new("frame refused", "the source's frames are taken again");
    let mut faults = Refusals::new("the source has a fault", "the source has no fault any more");
    let mut heard_at = clock::now();
    loop {
        let wait = if unprepared { PREPARE_AFTER } else { idle.min(SOURCE_SILENT_MAX) };
        let Ok(next) = tokio::time::timeout(wait, source.next()).await else {
            let now = clock::now();
            let silent = now.since(heard_at);
            if silent >= SOURCE_SILENT_MAX {
                intake.supply.silent(now, silent);
            }
            unprepared = !intake.prepare();
            continue;
        };
        let now = clock::now();
        heard_at = now;
        match next {
            None => return,
            Some(Ok(frame)) => {
                watched.frames.beat();
                if let Some(since) = intake.frozen.holds(now, &frame.picture.jpeg) {
                    intake.supply.frozen(now, since);
                    if let Some(why) = intake.supply.none() {
                        watched.usable.fails(&*why);
                    }
                    continue;
                }
                // A frame that cannot be carried is one frame less, no reason to stop.
                match intake.frame_beside(source.age(&frame), &frame.picture.jpeg) {
                    Ok(_) => refusals.worked(now),
                    Err(error) => refusals.failed(now, Some(error.code()), &error),
                };
                faults.worked(now);
                unprepared = true;
            }
            Some(Err(error)) => {
                let chain = tidegate_message::error_chain(&error);
                faults.failed(now, None, &chain);
                intake.supply.fault(now, &chain);
            }
        }
        match intake.supply.none() {
            None => watched.usable.holds(),
            Some(why) => watched.usable.fails(&*why),
        }
    }
}

/// Dials, serves, and dials again.
async fn stay_connected(
    camera: &Camera,
    options: &DialSettings,
    linked: &Condition,
    stop: &CancellationToken,
) -> Result<(), CameraError> {
    let mut backoff = Backoff::new(options.retry_max / 20, options.retry_max);
    let mut tries = 0;
    loop {
        let mut connected = None;
        let dialled = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            dialled = connect(camera, options) => dialled,
        };
        let (code, why) = match dialled {
            Ok(link) => {
                let carrier = Carrier::Link(link.clone());
                tracing::info!(edge = %options.edge, transport = carrier.transport(), "connected");
                connected = Some(clock::now());
                linked.holds();
                let revocations = options.credentials.revocations();
                tokio::select! {
                    served = camera.serve(carrier, stop) => match served {
                        Ok(()) => return Ok(()),
                        Err(Down { why }) => (Code::LINK_DOWN, why),
                    },
                    Revoked { reason, .. } = revocations.revoked(&link.peer().serial) => {
                        let why = format!("the edge node's certificate was revoked: {reason}");
                        link.close(1, &why);
                        (Code::IDENTITY_REVOKED, why)
                    }
                }
            }
            Err(
                error
                @ (CameraError::Refused { .. } | CameraError::Link(LinkError::Credentials(_))),
            ) => {
                return Err(error);
            }
            Err(error) => (error.code(), tidegate_message::error_chain(&error)),
        };
        linked.fails(&*why);
        // A link that held for a while has earned a quick second try.
        if connected.is_some_and(|at| clock::now().since(at) > options.retry_max) {
            backoff.reset();
            tries = 0;
        }
        tries += 1;
        if options.reconnects_max.is_some_and(|most| tries > most) {
            return Err(CameraError::Unreachable { edge: options.edge, tries, why, code });
        }
        let wait = backoff.next_wait();
        tracing::warn!(edge = %options.edge, %code, why, wait_ms = wait.as_millis(), "not connected");
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn connect(camera: &Camera, options: &DialSettings) -> Result<Link, CameraError> {
    introduce(Some(camera.announced()), options, camera.epoch).await
}

/// Dials, and says who we are, and which camera we offer, if any.
///
/// # Errors
/// [`CameraError`]: not reached, or not accepted.
pub(crate) async fn introduce(
    announce: Option<CameraAnnounce>,
    options: &DialSettings,
    epoch: u64,
) -> Result<Link, CameraError> {
    let link =
        link::dial(options.edge, &options.credentials, options.link.clone(), options.transport)
            .await?;
    let mut carrier = Carrier::Link(link.clone());
    let hello = hello(announce, options.credentials.identity().node, epoch);
    let (edge, tries, code) = (options.edge, 1, Code::LINK_DOWN);
    let lost = |Down { why }| CameraError::Unreachable { edge, tries, why, code };
    carrier.send(hello.into()).await.map_err(lost)?;
    let silent = || lost(Down { why: "it did not answer our introduction".to_owned() });
    let answer = tokio::time::timeout(WELCOME_MAX, carrier.recv()).await.map_err(|_| silent())?;
    match answer.map_err(lost)? {
        Incoming::Record(Record::Welcome(_)) => Ok(link),
        Incoming::Record(Record::Refused(refused)) => {
            Err(CameraError::Refused { code: refused.code(), text: refused.text })
        }
        _ => Err(lost(Down { why: "it answered our introduction with something else".to_owned() })),
    }
}

/// How a camera introduces itself.
pub(crate) fn hello(camera: Option<CameraAnnounce>, node: NodeId, epoch: u64) -> Hello {
    // Without a boot id every start counts as one of a machine not seen before.
    let boot = BootId(tidegate_sys::clock::boot_id().unwrap_or_default());
    let (role, features) = (Role::Camera, Features::KNOWN);
    Hello { minor: MINOR, node, epoch, boot, role, features, camera }
}

impl From<CameraError> for ApiError {
    fn from(error: CameraError) -> Self {
        let code = error.code();
        Self::new(code, error.to_string()).caused_by(tidegate_message::error_chain(&error))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_frame::table::Wanted;
    use tidegate_message::AdaptationProfile;

    use super::*;

    #[test]
    fn a_camera_uses_the_table_that_has_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = |bytes: u32, scene: &str| {
            format!(
                "tidegate-table 1\nprofile jpeg\nsource 1280x720\ndetector mine\ndetector-input 1280x720\nscene {scene}\norigin measured\n\
                 original-bytes {bytes}\nrow 0 {bytes} 1 1 - - - original\n"
            )
        };
        for (name, text) in [
            ("a.table", made(1_000, "any")),
            ("hall.table", made(2_000, "any")),
            ("yard.table", made(3_000, "any")),
            ("z.table", made(4_000, "night")),
            ("broken.table", "no table".to_owned()),
        ] {
            std::fs::write(folder.path().join(name), text).expect("a file");
        }
        let size = FrameSize { width: 1280, height: 720 };
        let bytes = |camera: &str, scene: Option<&str>| {
            let tables = tables_of(Some(folder.path()), &camera.parse().expect("a name"));
            let wanted = Wanted {
                detector: Some("mine".to_owned()),
                scene: scene.map(str::to_owned),
                ..Wanted::default()
            };
            let tables = tables.expect("the folder can be read");
            let found = tables.nearest(AdaptationProfile::Jpeg, size, &wanted);
            found.expect("one suits").original_bytes
        };
        assert_eq!(bytes("hall", None), 2_000.0);
        assert_eq!(bytes("yard", None), 3_000.0);
        assert_eq!(bytes("yard", Some("night")), 4_000.0, "made for that scene");
        assert_eq!(bytes("broken", Some("any")), 3_000.0, "the last of one key, as before");
        assert!(tables_of(None, &"hall".parse().expect("a name")).is_ok());
    }
}
