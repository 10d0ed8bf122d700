//! Cameras of the node's own configuration.
//!
//! ```text
//!  configuration ─▶ watch ─▶ exchange ─▶ a task for each: Source ─▶ Intake ─▶ log ─▶ engine ═ memory ═ serve ─▶ sessions
//! ```
//!
//! Such a camera is a camera like any other, with its log and its transfers in this process and a carrier in memory instead of a link.
//! Its name is the node's as long as it is configured: no publisher and no other node can take it.
//!
//! Always true: a camera that stays as it was is not touched by a change of others; one that is changed has ended whole before it begins
//! again, with the same log, and its subscribers wait meanwhile; a source that fails ends no camera.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tidegate_api::ApiError;
use tidegate_camera::{
    camera::{self, CameraSettings},
    frame_log::Place,
    source::{Source, SourceSpec},
};
use tidegate_link::carrier;
use tidegate_log::Durability;
use tidegate_message::{CameraName, Code, error_chain};
use tidegate_wire::NodeId;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::Instrument as _;

use super::{NodeState, cameras::Owner, serve};

/// Cameras that one node runs of its configuration at most.
pub const CAMERAS_MAX: usize = 256;

/// How soon a camera that cannot run is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A camera that the node runs itself.
#[derive(Clone, Debug)]
pub struct OwnCamera {
    /// Its settings; `health` is not used.
    pub settings: CameraSettings,
    /// Its source, with its password.
    pub source: SourceSpec,
    /// The configured camera whose substream it is; none if it is no substream.
    pub substream_of: Option<CameraName>,
}

impl OwnCamera {
    /// Whether it is to run as `other` does. Of the settings, those that may change while a node runs are compared.
    pub fn is_like(&self, other: &Self) -> bool {
        let (log, others) = (&self.settings.log, &other.settings.log);
        let kept = |place: &Place| match place {
            Place::Memory => Durability::Memory,
            Place::Files { durability, .. } => *durability,
        };
        self.settings.name == other.settings.name
            && self.source == other.source
            && self.substream_of == other.substream_of
            && self.settings.frozen_after == other.settings.frozen_after
            && (&log.size, log.age, kept(&log.place))
                == (&others.size, others.age, kept(&others.place))
    }
}

/// The names of the configured cameras, each with that of the camera whose substream it is.
#[derive(Default)]
pub(super) struct OwnNames(Mutex<BTreeMap<CameraName, Option<CameraName>>>);

impl OwnNames {
    fn map(&self) -> MutexGuard<'_, BTreeMap<CameraName, Option<CameraName>>> {
        self.0.lock().expect("no panic while names are looked up")
    }

    /// Keeps the names of these cameras from others.
    pub(super) fn reserve(&self, cameras: &[OwnCamera]) {
        let named =
            |camera: &OwnCamera| (camera.settings.name.clone(), camera.substream_of.clone());
        self.map().extend(cameras.iter().map(named));
    }

    /// The configured camera whose substream has that name.
    pub(super) fn main_of(&self, name: &CameraName) -> Option<CameraName> {
        self.map().get(name).cloned().flatten()
    }

    /// That no camera of that name is configured.
    ///
    /// # Errors
    /// [`Code::CAMERA_TAKEN`].
    pub(super) fn refuse(&self, name: &CameraName) -> Result<(), ApiError> {
        let text = match self.map().get(name) {
            None => return Ok(()),
            Some(None) => format!(
                "camera {name} is in this node's configuration; choose another name, or take [camera.{name}] out of it and reload"
            ),
            Some(Some(main)) => format!(
                "camera {name} is the substream of {main} in this node's configuration; choose another name, or take substream out of [camera.{main}] and reload"
            ),
        };
        Err(ApiError::new(Code::CAMERA_TAKEN, text))
    }
}

/// A running camera.
struct Running {
    camera: OwnCamera,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Runs the cameras that `configured` has, now and after each change, until the node stops. `node_key` is the node's.
pub(super) async fn run(
    node: Arc<NodeState>,
    node_key: NodeId,
    mut configured: watch::Receiver<Vec<OwnCamera>>,
) {
    let mut running: BTreeMap<CameraName, Running> = BTreeMap::new();
    let stop = node.stop.clone();
    loop {
        let wanted = configured.borrow_and_update().clone();
        exchange(&node, node_key, &mut running, wanted).await;
        tokio::select! {
            () = stop.cancelled() => break,
            changed = configured.changed() => if changed.is_err() {
                // They stay as they are.
                stop.cancelled().await;
                break;
            },
        }
    }
    for (name, camera) in running {
        end(&name, camera).await;
    }
}

/// Has just the cameras `wanted` run, of which no two have one name.
async fn exchange(
    node: &Arc<NodeState>,
    node_key: NodeId,
    running: &mut BTreeMap<CameraName, Running>,
    wanted: Vec<OwnCamera>,
) {
    node.own.reserve(&wanted);
    let stays = |camera: &OwnCamera| wanted.iter().any(|new| new.is_like(camera));
    let ending: Vec<_> = running.extract_if(.., |_, running| !stays(&running.camera)).collect();
    for (_, camera) in &ending {
        camera.stop.cancel();
    }
    for (name, camera) in ending {
        end(&name, camera).await;
        if !wanted.iter().any(|camera| camera.settings.name == name) {
            // Its name is free, and its subscriptions end, unless a camera node held the name all the time.
            node.own.map().remove(&name);
            node.cameras.remove_unless_of_another(&name, node_key);
            tracing::info!(camera = %name, "camera taken out of the configuration");
        }
    }
    for camera in wanted {
        let name = camera.settings.name.clone();
        if running.contains_key(&name) {
            continue;
        }
        let stop = node.stop.child_token();
        // On all its lines, whatever is logged.
        let span = tracing::error_span!("camera", camera = %name);
        let task = keep(node.clone(), node_key, camera.clone(), stop.clone()).instrument(span);
        let task = tokio::spawn(task);
        running.insert(name, Running { camera, stop, task });
    }
}

async fn end(name: &CameraName, camera: Running) {
    camera.stop.cancel();
    if let Err(error) = camera.task.await {
        tracing::error!(camera = %name, %error, "a camera ended by a panic; the others continue");
    }
}

/// Keeps one camera running until `stop`.
async fn keep(node: Arc<NodeState>, node_key: NodeId, camera: OwnCamera, stop: CancellationToken) {
    let mut told = None;
    loop {
        // In a task of its own, so that a panic is seen here.
        let serving = serve(node.clone(), node_key, camera.clone(), stop.clone()).in_current_span();
        let ended = AbortOnDropHandle::new(tokio::spawn(serving)).await;
        if stop.is_cancelled() {
            return;
        }
        let why = match ended {
            Ok(Ok(())) => "its carrier ended".to_owned(),
            Ok(Err(error)) => error.chain(),
            Err(panic) => panic.to_string(),
        };
        // A cause that lasts is one line.
        if told.as_ref() != Some(&why) {
            tracing::error!(error = why, "the camera does not run, and is tried again");
            told = Some(why);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY_AFTER) => {}
        }
    }
}

/// Runs one camera until `stop`, or until it cannot.
async fn serve(
    node: Arc<NodeState>,
    node_key: NodeId,
    camera: OwnCamera,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let OwnCamera { settings, source, .. } = camera;
    let owner = Owner { node: node_key, certified: true };
    let name = settings.name.clone();
    // A camera node that was here before and is gone leaves its name to the configuration.
    node.cameras.release_if_offline(&name);
    node.cameras.may_attach(&name, owner)?;
    // It has the log of that name.
    node.hosted.displace(&name);
    let source = Source::start(&source);
    let control = source.control();
    // It opens files.
    let built = tokio::task::spawn_blocking(move || camera::build(settings, Some(control))).await;
    let (camera, intake) = built.map_err(|error| {
        ApiError::new(Code::INTERNAL, "the camera was not made").caused_by(error_chain(&error))
    })??;
    let (camera_end, node_end) = carrier::local();
    let transport = node_end.transport().to_owned();
    let (attached, attachment) =
        node.cameras.attach(camera.announced(), owner, camera.epoch, transport)?;
    // Whichever end of the carrier ends takes the other with it.
    let over = stop.child_token();
    let camera_side = async {
        let served = camera.serve(camera_end, &over).await;
        over.cancel();
        served
    };
    let node_side = async {
        serve::serve_attached(node, node_end, attached, attachment, &over).await;
        over.cancel();
    };
    tokio::select! {
        (served, ()) = async { tokio::join!(camera_side, node_side) } => {
            served.map_err(|down| ApiError::new(Code::LINK_DOWN, down.why))
        }
        never = camera::run_source(source, intake) => match never {},
    }
}
