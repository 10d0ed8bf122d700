//! Links of cameras, and those that offer none and measure; and the medium that all of them share.

use std::{fmt, pin::pin, sync::Arc};

use tidegate_api::ApiError;
use tidegate_identity::pki::{Kind, PeerIdentity};
use tidegate_link::{
    carrier::Carrier,
    medium::Medium,
    roles::{Serve, Serving, Visit},
};
use tidegate_message::{Action, Code, Instant, Target};
use tidegate_wire::{CameraAnnounce, Share};
use tokio_util::sync::CancellationToken;

use crate::{NodeState, cameras::Owner, serve};

impl Serve for NodeState {
    fn serve(self: Arc<Self>, visit: Visit) -> Serving {
        Box::pin(welcome(self, visit))
    }
}

impl fmt::Debug for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeState")
    }
}

impl Medium for NodeState {
    fn uplink_came(&self) {
        self.shares().uplink_came();
    }

    fn uplink_left(&self) {
        self.shares().uplink_left();
    }

    fn share_of_uplink(&self, now: Instant) -> Option<Share> {
        self.shares().of_uplink(now)
    }
}

async fn welcome(node: Arc<NodeState>, mut visit: Visit) -> Result<(), ApiError> {
    let announce = visit.hello.camera.take();
    let announce = match introduced(visit.peer(), announce) {
        Ok(Some(announce)) => announce,
        Ok(None) => {
            visit.welcome().await?;
            let (link, stop) = (visit.link.clone(), visit.stop.clone());
            return visit.unless_revoked(probed(Carrier::Link(link), &stop)).await;
        }
        Err(error) => return visit.turn_away(error).await,
    };
    let target = Target::Camera(announce.name.as_str());
    if let Err(error) = node.access.may("link", &visit.identity, Action::Publish, target) {
        return visit.turn_away(error).await;
    }
    let owner = Owner::new(&visit.identity, &announce.name);
    let may = node.own.refuse(&announce.name);
    if let Err(error) = may.and_then(|()| node.cameras.may_attach(&announce.name, owner)) {
        return visit.turn_away(error).await;
    }
    visit.welcome().await?;
    let Visit { hello, identity, carrier, link, stop, .. } = visit;
    let (access, name) = (node.access.clone(), announce.name.clone());
    let target = Target::Camera(name.as_str());
    let over = stop.child_token();
    let mut serving = pin!(serve::serve(node, carrier, announce, owner, hello.epoch, &over));
    let served = tokio::select! {
        served = &mut serving => served,
        error = access.lost("link", &identity, Action::Publish, target) => {
            // To its end: the camera is offline then, and its subscribers hear of it.
            over.cancel();
            serving.await.and(Err(error))
        }
    };
    match &served {
        Err(error) if error.code() == Code::IDENTITY_REVOKED => link.close(1, error.message()),
        _ => link.close(0, "the node stops, or a newer link has taken over"),
    }
    served
}

/// Serves a link that offers no camera until it closes: `characterize --link` measures with frames of no transfer, which the
/// link itself acknowledges.
async fn probed(mut carrier: Carrier, stop: &CancellationToken) -> Result<(), ApiError> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            incoming = carrier.recv() => if incoming.is_err() { return Ok(()) },
        }
    }
}

/// The camera that a peer says it is, if its certificate lets it; none if it offers none.
fn introduced(
    peer: &PeerIdentity,
    announce: Option<CameraAnnounce>,
) -> Result<Option<CameraAnnounce>, ApiError> {
    let refuse = |text: String| Err(ApiError::new(Code::IDENTITY_REFUSED, text));
    if peer.kind != Kind::Camera {
        return refuse(format!("the certificate of {peer} is not a camera's"));
    }
    match announce {
        Some(announce) if announce.name.as_str() == peer.name => Ok(Some(announce)),
        Some(announce) => refuse(format!(
            "the certificate of {peer} does not allow it to be camera {}",
            announce.name
        )),
        None => Ok(None),
    }
}
