//! Links of other nodes' uplinks.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tidegate_api::ApiError;
use tidegate_identity::pki::Kind;
use tidegate_link::{
    link::Link,
    medium::Medium,
    roles::{Serve, Serving, Visit},
};
use tidegate_message::Code;
use tidegate_process::clock;

use super::Receivers;

/// How often an uplink is sent its share: a share holds for longer.
const SHARES_TOLD_EVERY: Duration = Duration::from_millis(500);

/// Serves the links of the role `Uplink`.
#[derive(Debug)]
pub struct UplinkLinks {
    receivers: Arc<Receivers>,
    medium: Arc<dyn Medium>,
}

impl UplinkLinks {
    /// Those whose messages `receivers` publish; each is told its share of `medium`.
    pub fn new(receivers: Arc<Receivers>, medium: Arc<dyn Medium>) -> Self {
        Self { receivers, medium }
    }

    async fn visited(&self, visit: Visit) -> Result<(), ApiError> {
        let peer = visit.peer();
        if peer.kind != Kind::Node {
            let text = format!("the certificate of {peer} is not a node's, which an uplink needs");
            return visit.turn_away(ApiError::new(Code::IDENTITY_REFUSED, text)).await;
        }
        visit.welcome().await?;
        let Visit { link, identity, stop, .. } = &visit;
        let serving = async {
            tokio::select! {
                served = self.receivers.serve(link, identity, stop) => match served {
                    Err(error) => visit.turn_away(error).await,
                    Ok(()) => {
                        link.close(0, "the node stops, or a newer link has taken over");
                        Ok(())
                    }
                },
                never = self.tell_share(link) => match never {},
            }
        };
        visit.unless_revoked(serving).await
    }

    /// Sends an uplink its share next to cameras again and again, for as long as it is served.
    async fn tell_share(&self, link: &Link) -> Infallible {
        struct Counted<'a>(&'a dyn Medium);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.uplink_left();
            }
        }
        self.medium.uplink_came();
        let _counted = Counted(&*self.medium);
        let mut ticks = tokio::time::interval(SHARES_TOLD_EVERY);
        loop {
            ticks.tick().await;
            // One that is not renewed expires. A link that is down is noticed where it is read.
            if let Some(share) = self.medium.share_of_uplink(clock::now()) {
                let _ = link.send(share).await;
            }
        }
    }
}

impl Serve for UplinkLinks {
    fn serve(self: Arc<Self>, visit: Visit) -> Serving {
        Box::pin(async move { self.visited(visit).await })
    }
}
