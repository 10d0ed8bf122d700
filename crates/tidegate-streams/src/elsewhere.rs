//! Cameras of this node for other nodes, and those of other nodes for callers of this one.

use std::sync::{Arc, Weak};

use tidegate_api::Place;
use tidegate_message::CameraName;
use tokio::sync::watch;

use super::NodeState;

/// The node at which a camera is, if another one has it.
pub type Elsewhere = dyn Fn(&CameraName) -> Option<Place> + Send + Sync;

/// The cameras that a node reaches, as they come and go.
pub struct Reached {
    node: Weak<NodeState>,
    news: watch::Receiver<()>,
}

impl Reached {
    pub(super) fn new(node: &Arc<NodeState>) -> Self {
        let mut news = node.cameras.reached();
        news.mark_changed();
        Self { node: Arc::downgrade(node), news }
    }

    /// The cameras, in order, once they are others than before; at once the first time. None ever once the node has ended.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Vec<CameraName> {
        let changed = self.news.changed().await;
        match self.node.upgrade().filter(|_| changed.is_ok()) {
            Some(node) => node.cameras.online(),
            None => std::future::pending().await,
        }
    }
}
