//! Hosted cameras: frames published over the API by programs that run no camera node.
//!
//! A hosted camera is a camera like any other, with its log and its transfers in this process and a carrier
//! in memory instead of a link. It lasts until it is unregistered or a camera node whose certificate carries its
//! name connects.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use tidegate_api::{ApiError, Registration};
use tidegate_camera::{
    camera::{self, CameraSettings, Intake},
    frame_log::{FrameLogSettings, TakenBack},
};
use tidegate_link::carrier;
use tidegate_message::{CameraName, Code, Instant};
use tidegate_rpc::Identity;
use tidegate_wire::NodeId;
use tokio_util::sync::CancellationToken;

use super::{NodeState, cameras::Owner, serve};

/// Cameras that one node hosts.
const HOSTED_MAX: usize = 256;

/// The hosted cameras of a node.
#[derive(Default)]
pub(super) struct Hosted {
    by_name: Mutex<HashMap<CameraName, Arc<HostedCamera>>>,
    /// Logs of cameras that were taken back; none if logs are in memory.
    taken_back: Option<Arc<TakenBack>>,
}

struct HostedCamera {
    owner: NodeId,
    intake: Mutex<Intake>,
    stop: CancellationToken,
}

impl Hosted {
    /// None yet, of a node that keeps their frames so.
    pub(super) fn new(log: &FrameLogSettings) -> Self {
        let taken_back = TakenBack::of(log).map(Arc::new);
        Self { taken_back, ..Self::default() }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<CameraName, Arc<HostedCamera>>> {
        self.by_name.lock().expect("no panic while hosted cameras are looked up")
    }

    /// Makes a camera for `identity` to publish to. Registering again is no error.
    ///
    /// # Errors
    /// [`Code::CAMERA_TAKEN`] if another holds the name, [`Code::LIMIT_REACHED`].
    pub(super) fn register(
        &self,
        node: &NodeState,
        identity: &Identity,
        registration: Registration,
    ) -> Result<(), ApiError> {
        let name = registration.camera.clone();
        node.own.refuse(&name)?;
        let mut map = self.map();
        if let Some(hosted) = map.get(&name) {
            return if hosted.owner == identity.key { Ok(()) } else { Err(taken(&name)) };
        }
        if node.cameras.is_online(&name) {
            return Err(taken(&name));
        }
        if map.len() >= HOSTED_MAX {
            let text = format!("this node hosts its limit of {HOSTED_MAX} cameras; unregister one");
            return Err(ApiError::new(Code::LIMIT_REACHED, text));
        }
        let options = CameraSettings {
            name: name.clone(),
            size: registration.size,
            frames_per_second: registration.frames_per_second.unwrap_or(0.0),
            source: format!("published by {identity}"),
            ..node.hosted_options.clone()
        };
        if let Some(taken_back) = &self.taken_back {
            taken_back.forget(&name);
        }
        let (camera, intake) = camera::build(options, None)?;
        let (camera_end, node_end) = carrier::local();
        let owner = Owner::new(identity, &name);
        // Attached before we answer, so that a name that is another's is refused here and now.
        let transport = node_end.transport().to_owned();
        let (attached, attachment) =
            node.cameras.attach(camera.announced(), owner, camera.epoch, transport)?;
        let stop = node.stop.child_token();
        let hosted =
            HostedCamera { owner: identity.key, intake: Mutex::new(intake), stop: stop.clone() };
        map.insert(name, Arc::new(hosted));
        drop(map);

        let camera_stop = stop.clone();
        node.tasks.spawn("hosted camera", async move {
            if let Err(down) = camera.serve(camera_end, &camera_stop).await {
                tracing::debug!(%down, "hosted camera ended");
            }
        });
        let state = node.this();
        node.tasks.spawn("hosted camera link", async move {
            serve::serve_attached(state, node_end, attached, attachment, &stop).await;
        });
        Ok(())
    }

    /// Whether the camera of that name, if it is hosted here, was registered by `identity`.
    pub(super) fn is_of(&self, identity: &Identity, name: &CameraName) -> Option<bool> {
        self.map().get(name).map(|hosted| hosted.owner == identity.key)
    }

    /// Ends a hosted camera whose name another link has taken over; its publisher is notified that it is gone.
    pub(super) fn displace(&self, name: &CameraName) {
        if let Some(hosted) = self.map().remove(name) {
            tracing::warn!(camera = %name, "the camera's own node replaces the publisher under its name");
            hosted.stop.cancel();
        }
        if let Some(taken_back) = &self.taken_back {
            taken_back.forget(name);
        }
    }

    /// Takes a hosted camera back, if there is one of that name. Its log stays as long as there is room for it.
    pub(super) fn unregister(&self, node: &NodeState, name: &CameraName) {
        let Some(hosted) = self.map().remove(name) else { return };
        hosted.stop.cancel();
        let is_in_files =
            hosted.intake.lock().expect("no panic while a frame is taken in").is_in_files();
        if let Some(taken_back) = self.taken_back.clone().filter(|_| is_in_files) {
            taken_back.add(name);
            node.tasks.spawn("room for logs", async move {
                let made = tokio::task::spawn_blocking(move || taken_back.make_room());
                if let Err(error) = made.await {
                    tracing::error!(%error, "no room was made for logs of cameras");
                }
            });
        }
    }

    /// Appends a frame to a hosted camera's log.
    ///
    /// # Errors
    /// [`Code::CAMERA_UNKNOWN`] if it is not hosted here, [`Code::ACTION_DENIED`] if another registered it, and what the camera
    /// says of the frame.
    pub(super) fn publish(
        &self,
        identity: &Identity,
        name: &CameraName,
        captured_at: Option<Instant>,
        jpeg: &Bytes,
    ) -> Result<Instant, ApiError> {
        let hosted = self.owned(identity, name)?;
        let mut intake = hosted.intake.lock().expect("no panic while a frame is taken in");
        Ok(intake.frame(captured_at, jpeg)?)
    }

    fn owned(&self, identity: &Identity, name: &CameraName) -> Result<Arc<HostedCamera>, ApiError> {
        let hosted = self.map().get(name).cloned().ok_or_else(|| {
            let text =
                format!("camera {name} is not registered for publishing here; call Register");
            ApiError::new(Code::CAMERA_UNKNOWN, text)
        })?;
        if hosted.owner != identity.key {
            let text = format!("camera {name} was registered by another identity");
            return Err(ApiError::new(Code::ACTION_DENIED, text));
        }
        Ok(hosted)
    }
}

fn taken(name: &CameraName) -> ApiError {
    let text = format!("camera name {name} is taken by another node; choose another name");
    ApiError::new(Code::CAMERA_TAKEN, text)
}
