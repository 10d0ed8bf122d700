//! A subscription that is relayed: the events of a member as a viewer here is to have them.
//!
//! Always true: the latency bound of the viewer counts to here. The member is asked to keep one that is shorter by the way, and a live frame
//! that is late here is told as missed, as this node's own would be. Capture times and epochs are the camera's; the time at which a frame was
//! handed over is of this node's clock.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt as _, future::BoxFuture};
use tidegate_api::{
    ApiError, Changes, Event, Missed, MissedWhy, Started, SubscriptionId, UnsubscribeStatus,
    Verdict,
};
use tidegate_client::{Feedback, Subscription as Upstream, SubscriptionHandle};
use tidegate_identity::access::Identity;
use tidegate_message::{Bounds, CameraName, Delivery, Demand, Instant};
use tidegate_ports::Subscription;
use tidegate_process::clock;
use tokio::sync::OwnedSemaphorePermit;

use crate::{Member, Relay, refusals, way::Way};

/// Ways are taken in whole steps of this, so that viewers at several nodes ask for the same bound and share an encoding. In one network there
/// is none.
const STEP: Duration = Duration::from_millis(10);

/// A relayed subscription, for the calls about it.
pub(crate) struct Stream {
    pub(crate) identity: Arc<Identity>,
    camera: CameraName,
    member: Member,
    handle: SubscriptionHandle,
    started: Mutex<Started>,
    /// Held while the demand is changed.
    updating: tokio::sync::Mutex<()>,
}

impl Stream {
    /// One that runs at the member as `handle` has it, and here by that name with that demand.
    pub(crate) fn new(
        identity: Arc<Identity>,
        camera: CameraName,
        member: Member,
        handle: SubscriptionHandle,
        started: Started,
    ) -> Self {
        let started = Mutex::new(started);
        Self { identity, camera, member, handle, started, updating: tokio::sync::Mutex::default() }
    }

    fn started(&self) -> MutexGuard<'_, Started> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> SubscriptionId {
        self.started().id
    }

    pub(crate) async fn update(&self, changes: Changes) -> Result<Demand, ApiError> {
        let _updating = self.updating.lock().await;
        let demand = self.started().demand;
        let demand = changes.apply(demand)?;
        let latency = changes.latency.map(|latency| shorter(latency, &self.member));
        let changed = self.handle.update(Changes { latency, ..changes }).await;
        changed.map_err(|error| self.refused(error))?;
        self.started().demand = demand;
        Ok(demand)
    }

    pub(crate) async fn unsubscribe(&self) -> Result<UnsubscribeStatus, ApiError> {
        self.handle.unsubscribe().await.map_err(|error| self.refused(error))
    }

    pub(crate) async fn feedback(&self) -> Result<Feedback, ApiError> {
        self.handle.feedback().await.map_err(|error| self.refused(error))
    }

    /// A verdict of the member with the bound of the viewer.
    pub(crate) fn judged(&self, verdict: Verdict) -> Verdict {
        Verdict { bound: self.started().demand.bounds.latency(), ..verdict }
    }

    fn refused(&self, error: ApiError) -> ApiError {
        refusals::of_member(&self.member, &self.camera, error)
    }
}

/// The demand on a member whose frames are to keep `demand` here.
///
/// # Errors
/// None that a checked demand could have.
pub(crate) fn asked(demand: Demand, member: &Member) -> Result<Demand, ApiError> {
    let latency = shorter(demand.bounds.latency(), member);
    Ok(Demand { bounds: Bounds::new(latency, demand.bounds.accuracy())?, ..demand })
}

/// A latency bound without the way from a member: half a round trip, and never more than half of the bound.
fn shorter(latency: Duration, member: &Member) -> Duration {
    let half = member.round_trip.unwrap_or_default() / 2;
    let steps = (half + STEP / 2).as_millis() / STEP.as_millis();
    let way = STEP * u32::try_from(steps).unwrap_or(u32::MAX);
    (latency - way.min(latency / 2)).max(Bounds::LATENCY_MIN)
}

/// A relayed subscription, as its viewer reads it. Dropping it ends it.
pub(crate) struct Relayed {
    relay: Arc<Relay>,
    stream: Arc<Stream>,
    /// None once it has ended.
    events: Option<Upstream>,
    way: Way,
    /// Completes once the viewer may see no more, or the member is none any more. Never locked: the mutex makes it usable from any thread.
    lost: Mutex<BoxFuture<'static, ApiError>>,
    _place: OwnedSemaphorePermit,
}

impl Relayed {
    pub(crate) fn new(
        relay: Arc<Relay>,
        stream: Arc<Stream>,
        events: Upstream,
        lost: BoxFuture<'static, ApiError>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let way = Way::new(stream.member.round_trip);
        let (events, lost) = (Some(events), Mutex::new(lost));
        Self { relay, stream, events, way, lost, _place: place }
    }

    /// An event of the member, as it is to a viewer here.
    fn here(&mut self, event: Event, now: Instant) -> Event {
        match event {
            Event::Frame(mut frame) => {
                let took = self.way.took(now, frame.handed_at);
                frame.stages.delivery = frame.stages.delivery.saturating_add(took);
                frame.handed_at = now;
                let demand = self.stream.started().demand;
                let is_late = frame.stages.total() > demand.bounds.latency();
                if is_late && demand.delivery == Delivery::Latest && !frame.replayed {
                    let at = frame.captured_at;
                    return Event::Missed(Missed {
                        from: at,
                        to: at,
                        count: 1,
                        why: MissedWhy::Late,
                    });
                }
                Event::Frame(frame)
            }
            Event::Unchanged(mut marker) => {
                let took = self.way.took(now, marker.handed_at);
                marker.stages.delivery = marker.stages.delivery.saturating_add(took);
                marker.handed_at = now;
                Event::Unchanged(marker)
            }
            // The member may have been started again, with another clock.
            Event::CameraOffline(_) => {
                self.way.forget();
                event
            }
            event => event,
        }
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.relay.forget(self.stream.id());
    }
}

#[async_trait]
impl Subscription for Relayed {
    fn started(&self) -> Started {
        *self.stream.started()
    }

    async fn next_event(&mut self) -> Option<Result<Event, ApiError>> {
        let events = self.events.as_mut()?;
        let lost = self.lost.get_mut().unwrap_or_else(PoisonError::into_inner);
        let next = tokio::select! {
            // However many frames there are.
            biased;
            error = lost => Err(error),
            event = events.next() => match event {
                None => {
                    self.events = None;
                    return None;
                }
                Some(event) => event.map_err(|error| self.stream.refused(error)),
            },
        };
        match next {
            Ok(event) => Some(Ok(self.here(event, clock::now()))),
            Err(error) => {
                self.events = None;
                Some(Err(error))
            }
        }
    }

    async fn update(&self, changes: Changes) -> Result<Demand, ApiError> {
        self.stream.update(changes).await
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::NodeId;

    use super::*;

    #[test]
    fn bound_of_the_member_leaves_time_for_the_way() {
        let millis = Duration::from_millis;
        for (latency, round_trip, expected) in [
            (500, None, 500),
            (500, Some(2), 500), // one network: viewers there and here share an encoding
            (500, Some(60), 470),
            (500, Some(71), 460),
            (100, Some(400), 50),
            (1, Some(400), 1),
        ] {
            let member = Member {
                node: NodeId([1; 32]),
                name: "yard".to_owned(),
                addresses: Vec::new(),
                is_doubted: false,
                has_cameras: true,
                round_trip: round_trip.map(millis),
            };
            let found = shorter(millis(latency), &member);
            assert_eq!(found, millis(expected), "{latency} ms, {round_trip:?}");
        }
    }
}
