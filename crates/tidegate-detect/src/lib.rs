//! Live detection: the newest frames of cameras within bounds, looked at by a pool of programs, and the findings on the bus.
//!
//! ```text
//!  Frames ──frames within what the detector leaves──▶ Watch ──newest──▶ pool of programs
//!                ▲                                     │ ▲                    │
//!                └────────── update ◀── Budget ◀───────┘ └─── boxes, times ───┘
//!                                                      └──▶ Report ──▶ bus: TOPIC, TOPIC/original, Home Assistant
//! ```
//!
//! An application names one bound, from capture to the detection. The detector's part of it is measured, and the network is asked for the
//! rest, again whenever it changes ([`budget`]). A frame that waits for a program gives its place to a newer one.
//!
//! The crate knows no node: frames come by [`Frames`](tidegate_ports::Frames), the pool is handed in, messages go by the bus.
//!
//! Always true: a detection is of the newest frame that was there when a program was free; whether it keeps the bounds is in it; where there
//! is none, a message of another type says why; a section, a camera and a program that fail end no other.

pub mod budget;
mod detector;
mod home_assistant;
mod left_over;
mod pattern;
mod report;
mod section;
mod store;
mod topic;
mod watch;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use tidegate_bus::Bus;
use tidegate_ports::Frames;
use tidegate_wire::mqtt::QoS;
use tidegate_workers::{PoolSettings, SharedPool};
use tokio::{sync::watch as channel, task::JoinHandle, time};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub use self::{
    detector::{Detector, PoolDetector, Started},
    left_over::Kept,
    pattern::{CameraPattern, PatternError},
    report::{About, Detection, Infeasible, Party, Pending, Report},
    topic::{TopicError, TopicTemplate},
    watch::{Watch, WatchSettings},
};

/// How soon a section that ended by a fault is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// One detector.
#[derive(Clone, Debug, PartialEq)]
pub struct DetectSettings {
    /// Its name, in topics and messages.
    pub name: String,
    /// Its cameras.
    pub cameras: Vec<CameraPattern>,
    /// Model that looks; none: the first of the program.
    pub model: Option<String>,
    /// A program of its own; none: the pool of the node.
    pub program: Option<PoolSettings>,
    /// Bounds, and what of the findings is reported.
    pub watch: WatchSettings,
    /// Topic of its messages.
    pub topic: TopicTemplate,
    /// Quality of service of its messages.
    pub qos: QoS,
    /// Where originals go.
    pub originals: Originals,
    /// Prefix of Home Assistant's discovery; none: there is none.
    pub home_assistant: Option<String>,
}

impl DetectSettings {
    /// Whether Home Assistant has the same entities of both.
    fn has_the_entities_of(&self, other: &Self) -> bool {
        let entities = |it: &Self| {
            let labels = it.watch.labels.clone();
            let (name, prefix) = (it.name.clone(), it.home_assistant.clone());
            (name, prefix, it.topic.clone(), it.cameras.clone(), it.originals.clone(), labels)
        };
        entities(self) == entities(other)
    }

    /// Whether a state for Home Assistant or an original of one may be published where the other publishes, too.
    pub fn mixes_with(&self, other: &Self) -> bool {
        self.topics().any(|mine| {
            other.topics().any(|theirs| {
                let meet = |a: &Option<String>, b: &Option<String>| match (a, b) {
                    (Some(a), Some(b)) => pattern::topics_meet(a, b),
                    _ => false,
                };
                // JSON on one topic says of which section it is.
                let [(mine, below_mine), (theirs, below_theirs)] = [mine.clone(), theirs];
                meet(&below_mine, &below_theirs)
                    || meet(&below_mine, &Some(theirs))
                    || meet(&Some(mine), &below_theirs)
            })
        })
    }

    /// Its topics, by patterns: that of messages of JSON, and those below it, if there are any.
    fn topics(&self) -> impl Iterator<Item = (String, Option<String>)> {
        let below = match (&self.home_assistant, &self.originals) {
            (Some(_), _) => Some("*"),
            (None, Originals::Publish) => Some(topic::ORIGINAL),
            (None, _) => None,
        };
        self.cameras.iter().map(move |cameras| {
            let topic = self.topic.pattern(&self.name, cameras);
            let below = below.map(|level| format!("{topic}/{level}"));
            (topic, below)
        })
    }
}

/// Where the originals of detections go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Originals {
    /// They are not fetched.
    #[default]
    Never,
    /// To the topic of the camera with `/original` behind it.
    Publish,
    /// Into a folder.
    Keep {
        /// The folder.
        folder: PathBuf,
        /// Bytes of its pictures at most.
        bytes_max: u64,
    },
}

impl Originals {
    fn folder(&self) -> Option<(&Path, u64)> {
        match self {
            Self::Keep { folder, bytes_max } => Some((folder, *bytes_max)),
            Self::Never | Self::Publish => None,
        }
    }
}

/// The parts of a node that all sections share.
#[derive(Clone)]
pub struct Shared {
    /// Frames of the node.
    pub frames: Arc<dyn Frames>,
    /// Broker of the node.
    pub bus: Bus,
    /// Programs of the node.
    pub pool: SharedPool,
    /// The memory of what was announced to Home Assistant; none: an earlier start is not known of.
    pub kept: Option<Kept>,
}

/// A running section.
struct Running {
    settings: DetectSettings,
    stop: Stop,
    task: JoinHandle<()>,
}

/// The end of a section.
#[derive(Clone)]
struct Stop {
    now: CancellationToken,
    /// Whether its entities at Home Assistant go with it: no section that has the same follows.
    for_good: CancellationToken,
}

/// Runs the sections that `configured` has, now and after each change, until `stop`. One that stays as it was is not touched.
#[boxed]
pub async fn run(
    shared: Shared,
    mut configured: channel::Receiver<Vec<DetectSettings>>,
    stop: CancellationToken,
) {
    let left_over = shared.kept.clone().map(|kept| {
        let (bus, configured) = (shared.bus.clone(), configured.clone());
        AbortOnDropHandle::new(tokio::spawn(left_over::run(kept, bus, configured, stop.clone())))
    });
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    loop {
        let wanted = configured.borrow_and_update().clone();
        exchange(&shared, &mut running, wanted, &stop).await;
        tokio::select! {
            () = stop.cancelled() => break,
            changed = configured.changed() => if changed.is_err() {
                // They stay as they are.
                stop.cancelled().await;
                break;
            },
        }
    }
    end(running.into_iter().collect()).await;
    if let Some(left_over) = left_over
        && let Err(error) = left_over.await
    {
        tracing::error!(%error, "clearing entities of Home Assistant ended by a panic");
    }
}

async fn exchange(
    shared: &Shared,
    running: &mut BTreeMap<String, Running>,
    wanted: Vec<DetectSettings>,
    stop: &CancellationToken,
) {
    let stays = |section: &Running| wanted.contains(&section.settings);
    let gone: Vec<_> = running.extract_if(.., |_, section| !stays(section)).collect();
    for (_, section) in &gone {
        if !wanted.iter().any(|new| new.has_the_entities_of(&section.settings)) {
            section.stop.for_good.cancel();
        }
    }
    // One that changes has ended whole before it begins again.
    end(gone).await;
    for settings in wanted {
        let name = settings.name.clone();
        if running.contains_key(&name) {
            continue;
        }
        let stop = Stop { now: stop.child_token(), for_good: CancellationToken::new() };
        let task = tokio::spawn(keep(shared.clone(), settings.clone(), stop.clone()));
        tracing::info!(detector = %name, "detector started");
        running.insert(name, Running { settings, stop, task });
    }
}

async fn end(sections: Vec<(String, Running)>) {
    for (_, section) in &sections {
        section.stop.now.cancel();
    }
    for (name, section) in sections {
        match section.task.await {
            Ok(()) => tracing::info!(detector = %name, "detector stopped"),
            Err(error) => tracing::error!(detector = %name, %error, "a detector ended by a panic"),
        }
    }
}

/// Keeps one section running until `stop`.
async fn keep(shared: Shared, settings: DetectSettings, stop: Stop) {
    loop {
        // In a task of its own, so that a panic is seen here.
        let serving = section::run(shared.clone(), settings.clone(), stop.clone());
        let ended = AbortOnDropHandle::new(tokio::spawn(serving)).await;
        if stop.now.is_cancelled() {
            return;
        }
        if let Err(panic) = ended {
            tracing::error!(detector = settings.name, error = %panic, "a detector ended by a panic, and is started again");
        }
        tokio::select! {
            () = stop.now.cancelled() => return,
            () = time::sleep(RETRY_AFTER) => {}
        }
    }
}
