//! The services of an edge node for the clients of its API.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_api::{
    ApiError, CameraInfo, Changes, ClockOffset, Event, FeedbackOf, Original, Registration, Started,
    SubscribeRequest, SubscriptionId, TransferState, UnsubscribeStatus, Verdict,
};
use tidegate_identity::{auth::audit::Outcome, pki::Kind};
use tidegate_message::{Action, CameraName, Code, Delivery, Demand, Instant, Target};
use tidegate_ports::{Frames, Subscription};
use tidegate_rpc::{Cameras, EVENTS_BUFFERED, Identity};
use tidegate_wire::{OriginalOutcome, TransferHints};
use tokio::sync::{
    broadcast,
    mpsc::{self, error::TrySendError},
    oneshot,
};
use tokio_util::sync::CancellationToken;

use super::{
    NodeState,
    cameras::Camera,
    session::{Counts, Session, Switch, Wanted},
    stream::{Begin, Reads, Stream},
    verdict::{VERDICTS_MAX, Verdicts},
};

/// Changes of demand that a session has not taken up yet; one more is refused.
const SWITCHES_MAX: usize = 8;
/// How long a subscriber whose right ended may take to read that it did.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// A running subscription, from the node's side.
pub(super) struct Live {
    identity: Identity,
    camera: Arc<Camera>,
    stream: Arc<Stream>,
    reads: Reads,
    demand: Demand,
    counts: Arc<Counts>,
    verdicts: Arc<Verdicts>,
    /// Takes the session over to another demand and stream.
    switch: mpsc::Sender<Switch>,
    stop: CancellationToken,
}

static NEXT_SUBSCRIPTION: AtomicU64 = AtomicU64::new(1);

#[async_trait]
impl Cameras for NodeState {
    fn frames(self: Arc<Self>, identity: Arc<Identity>) -> Arc<dyn Frames> {
        Arc::new(Seen { node: self, identity })
    }

    async fn register(
        &self,
        identity: &Identity,
        registration: Registration,
    ) -> Result<(), ApiError> {
        self.may(identity, Action::Publish, &registration.camera)?;
        let camera = registration.camera.clone();
        let result = self.hosted.register(self, identity, registration);
        self.done(identity, "register", &camera, &result);
        result
    }

    async fn unregister(&self, identity: &Identity, camera: &CameraName) -> Result<(), ApiError> {
        let result = self.take_back(identity, camera);
        self.done(identity, "unregister", camera, &result);
        result
    }

    async fn publish(
        &self,
        identity: &Identity,
        camera: &CameraName,
        captured_at: Option<Instant>,
        jpeg: Bytes,
    ) -> Result<Instant, ApiError> {
        self.may(identity, Action::Publish, camera)?;
        self.hosted.publish(identity, camera, captured_at, &jpeg)
    }

    async fn update(
        &self,
        identity: &Identity,
        id: SubscriptionId,
        changes: Changes,
    ) -> Result<Demand, ApiError> {
        loop {
            // A subscription that was moved to another stream meanwhile is looked at again.
            if let Some(demand) = self.try_update(identity, id, changes)? {
                return Ok(demand);
            }
        }
    }

    async fn unsubscribe(
        &self,
        identity: &Identity,
        id: SubscriptionId,
    ) -> Result<UnsubscribeStatus, ApiError> {
        self.with_subscription(identity, id, |_| ())?;
        self.forget(id).ok_or_else(|| unknown(id))
    }

    async fn feedback(
        &self,
        identity: &Identity,
        of: FeedbackOf,
    ) -> Result<mpsc::Receiver<Verdict>, ApiError> {
        let (sender, receiver) = mpsc::channel(VERDICTS_MAX);
        let (name, mut verdicts) = match &of {
            FeedbackOf::Subscription(id) => self.with_subscription(identity, *id, |live| {
                (live.camera.name.clone(), live.verdicts.subscribe())
            })?,
            FeedbackOf::Camera(name) => {
                self.may(identity, Action::Frames, name)?;
                (name.clone(), self.reading(identity, name)?.verdicts.subscribe())
            }
        };
        let stop = self.stop.clone();
        let (access, identity) = (self.access.clone(), identity.clone());
        self.tasks.spawn("feedback", async move {
            let lost = access.lost("api", &identity, Action::Frames, Target::Camera(name.as_str()));
            let mut lost = std::pin::pin!(lost);
            loop {
                let verdict = tokio::select! {
                    verdict = verdicts.recv() => verdict,
                    _ = &mut lost => return,
                    () = stop.cancelled() => return,
                    () = sender.closed() => return,
                };
                match verdict {
                    // A reader that is too slow loses verdicts, not frames.
                    Ok(verdict) => _ = sender.try_send((*verdict).clone()),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        Ok(receiver)
    }
}

/// The frames of the node for one caller.
#[derive(Clone)]
struct Seen {
    node: Arc<NodeState>,
    identity: Arc<Identity>,
}

#[async_trait]
impl Frames for Seen {
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError> {
        let Self { node, identity } = self;
        may_watch(identity)?;
        let mut cameras = node.cameras.all();
        // Those that it may not see are as unknown as none.
        cameras.retain(|camera| {
            let camera = Target::Camera(camera.name.as_str());
            node.access.allows(identity, Action::Frames, camera)
        });
        Ok(futures::future::join_all(cameras.iter().map(|camera| node.info(camera))).await)
    }

    async fn camera(&self, name: &CameraName) -> Result<CameraInfo, ApiError> {
        let Self { node, identity } = self;
        node.may(identity, Action::Frames, name)?;
        let camera = node.reading(identity, name)?;
        Ok(node.info(&camera).await)
    }

    async fn subscribe(
        &self,
        mut request: SubscribeRequest,
    ) -> Result<Box<dyn Subscription>, ApiError> {
        let Self { node, identity } = self;
        node.may(identity, Action::Frames, &request.camera)?;
        request.check()?;
        let camera = node.reading(identity, &request.camera)?;
        let forgotten = forget_earlier_epoch(&mut request, camera.life().epoch);
        let or = |asked: &Option<String>, usual: &str| asked.as_deref().unwrap_or(usual).to_owned();
        let hints = TransferHints {
            detector: or(&request.detector, &node.hints.detector),
            scene: or(&request.scene, &node.hints.scene),
            ..node.hints.clone()
        };
        let (reads, to) = match request.from {
            Some(_) => (Reads::Past, request.to),
            None => (Reads::Present, None),
        };
        let begin = Begin { range: (request.from, to), after: None, reads };
        let stream = node.stream_for(&camera, request.demand, hints, begin)?;
        let id = SubscriptionId(NEXT_SUBSCRIPTION.fetch_add(1, Ordering::Relaxed));
        let (events, receiver) = mpsc::channel(EVENTS_BUFFERED);
        let (farewell, name) = (events.clone(), request.camera.to_string());
        let awaited = Arc::<AtomicBool>::default();
        let (switch, switches) = mpsc::channel(SWITCHES_MAX);
        let (caught_up, reached) = oneshot::channel();
        let live = Live {
            identity: Identity::clone(identity),
            camera,
            stream: stream.clone(),
            reads,
            demand: request.demand,
            counts: Arc::default(),
            verdicts: Arc::default(),
            switch,
            stop: node.stop.child_token(),
        };
        let wanted =
            Wanted { from: request.from, to: request.to, forgotten, demand: request.demand };
        let session = Session::new(
            stream,
            wanted,
            (events, awaited.clone()),
            live.verdicts.clone(),
            live.counts.clone(),
            live.stop.clone(),
            switches,
        );
        let session = if reads == Reads::Past { session.telling(caught_up) } else { session };
        node.subscriptions().insert(id, live);
        let (node, identity) = (node.clone(), identity.clone());
        self.node.tasks.spawn("session", async move {
            let mut running = std::pin::pin!(session.run());
            let share = async {
                // It never sends if it begins in the present, or ends in the past.
                if let Ok(at) = reached.await {
                    node.share(id, at);
                }
            };
            // The session runs on while it waits to be moved.
            let run = async {
                tokio::select! {
                    () = &mut running => {}
                    () = share => running.await,
                }
            };
            let lost = node.access.lost("api", &identity, Action::Frames, Target::Camera(&name));
            let lost = tokio::select! {
                () = run => None,
                error = lost => Some(error),
            };
            node.forget(id);
            if let Some(error) = lost {
                // A client that does not read gets no last event: the stream ends all the same.
                let _ = tokio::time::timeout(FAREWELL_MAX, farewell.send(Err(error))).await;
            }
        });
        let started = Mutex::new(Started { id, demand: request.demand });
        Ok(Box::new(Running { seen: self.clone(), started, events: receiver, awaited }))
    }

    async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError> {
        let Self { node, identity } = self;
        node.may(identity, Action::FetchOriginal, camera)?;
        let camera = node.reading(identity, camera)?;
        let (original, jpeg) = camera.ask_original(captured_at)?.answer().await?;
        // The camera may take its time, and the right may be gone meanwhile.
        node.may(identity, Action::FetchOriginal, &camera.name)?;
        match original.outcome {
            OriginalOutcome::Found { .. } => Ok(Original { captured_at: original.at, jpeg }),
            OriginalOutcome::Missing { oldest, newest } => {
                let kept = match (oldest, newest) {
                    (Some(oldest), Some(newest)) => format!("its log holds {oldest} to {newest}"),
                    _ => "its log is empty".to_owned(),
                };
                let text = format!(
                    "camera {} has no frame captured at {captured_at}; {kept}",
                    camera.name
                );
                Err(ApiError::new(Code::FRAME_MISSING, text))
            }
        }
    }
}

/// A subscription of a caller in this process. Dropping it ends it as Unsubscribe would.
struct Running {
    seen: Seen,
    started: Mutex<Started>,
    events: mpsc::Receiver<Result<Event, ApiError>>,
    /// Set while an event is waited for, so that one that is sent then is taken at once.
    awaited: Arc<AtomicBool>,
}

impl Running {
    fn state(&self) -> MutexGuard<'_, Started> {
        self.started.lock().expect("no panic while it is held")
    }
}

#[async_trait]
impl Subscription for Running {
    fn started(&self) -> Started {
        *self.state()
    }

    async fn next_event(&mut self) -> Option<Result<Event, ApiError>> {
        // A hint; the channel itself makes sure of it.
        self.awaited.store(true, Ordering::Relaxed);
        let next = self.events.recv().await;
        self.awaited.store(false, Ordering::Relaxed);
        next
    }

    async fn update(&self, changes: Changes) -> Result<Demand, ApiError> {
        let (Seen { node, identity }, id) = (&self.seen, self.state().id);
        let demand = node.update(identity, id, changes).await?;
        self.state().demand = demand;
        Ok(demand)
    }
}

impl NodeState {
    /// The camera of that name; an error names those that `identity` may see and no others.
    fn named(&self, identity: &Identity, name: &CameraName) -> Result<Arc<Camera>, ApiError> {
        self.cameras.named(name, |known| {
            may_watch(identity).is_ok()
                && self.access.allows(identity, Action::Frames, Target::Camera(known.as_str()))
        })
    }

    /// The same for a call about its frames: of a camera that another node reaches, and this one does not, the error names that node.
    fn reading(&self, identity: &Identity, name: &CameraName) -> Result<Arc<Camera>, ApiError> {
        let here = self.named(identity, name);
        if here.as_ref().is_ok_and(|camera| camera.is_online()) {
            return here;
        }
        match self.elsewhere.get().and_then(|elsewhere| elsewhere(name)) {
            Some(place) => Err(ApiError::elsewhere(name, place)),
            None => here,
        }
    }

    /// Whether an identity may do that to a camera: by what its certificate is for, then by the rules.
    fn may(
        &self,
        identity: &Identity,
        action: Action,
        camera: &CameraName,
    ) -> Result<(), ApiError> {
        let by_certificate = match action {
            Action::Publish | Action::Admin => may_publish(identity, camera),
            _ => may_watch(identity),
        };
        let target = Target::Camera(camera.as_str());
        if let Err(error) = &by_certificate {
            let (outcome, rule) = (Outcome::Refused, error.message());
            self.access.tell("api", identity, outcome, action.word(), target, rule);
        }
        by_certificate?;
        self.access.may("api", identity, action, target)
    }

    /// Takes back a camera that `identity` holds, or, which is for administrators, one that another registered or that is not
    /// served now: its name is free then, and its streams end.
    fn take_back(&self, identity: &Identity, camera: &CameraName) -> Result<(), ApiError> {
        if let Some(is_own) = self.hosted.is_of(identity, camera) {
            let action = if is_own { Action::Publish } else { Action::Admin };
            self.may(identity, action, camera)?;
            self.hosted.unregister(self, camera);
        } else {
            let is_own = identity.certificate == Some(Kind::Camera);
            let action = if is_own { Action::Publish } else { Action::Admin };
            self.may(identity, action, camera)?;
            self.own.refuse(camera)?;
            if self.named(identity, camera)?.is_online() {
                let text =
                    format!("camera {camera} is online; stop its node before it is unregistered");
                return Err(ApiError::new(Code::CAMERA_TAKEN, text));
            }
        }
        self.cameras.remove(camera);
        Ok(())
    }

    /// Writes down what came of an act of administration that was allowed; refusals are written down where they are made.
    fn done<T>(
        &self,
        identity: &Identity,
        what: &str,
        camera: &CameraName,
        result: &Result<T, ApiError>,
    ) {
        let (outcome, why) = match result {
            Ok(_) => (Outcome::Done, ""),
            Err(error) if error.code() == Code::ACTION_DENIED => return,
            Err(error) => (Outcome::Failed, error.message()),
        };
        self.access.tell("api", identity, outcome, what, Target::Camera(camera.as_str()), why);
    }

    async fn info(&self, camera: &Camera) -> CameraInfo {
        let announce = camera.announce();
        let streams = camera.streams();
        let mut info = CameraInfo {
            name: camera.name.clone(),
            online: camera.is_online(),
            size: announce.as_ref().and_then(|announce| announce.size),
            frames_per_second: announce.map_or(0.0, |announce| announce.frames_per_second),
            frame_bytes: 0,
            oldest_at: None,
            newest_at: None,
            log_bytes: 0,
            log_bytes_max: 0,
            transfers: u32::try_from(streams.len()).unwrap_or(u32::MAX),
            subscriptions: streams
                .iter()
                .map(|stream| u32::try_from(stream.sessions()).unwrap_or(u32::MAX))
                .fold(0, u32::saturating_add),
            transport: camera.transport(),
            clock_offset: camera
                .clock_offset()
                .map(|(offset_nanos, uncertainty)| ClockOffset { offset_nanos, uncertainty }),
            no_frames: camera.no_frames().map(|why| why.as_ref().to_owned()),
            capture_clock: camera.capture_clock().map(|said| said.as_ref().to_owned()),
            substream_of: self.own.main_of(&camera.name),
            node: None,
        };
        // A camera that does not answer is still listed, with what is known of it.
        let Ok(asked) = camera.ask_info() else { return info };
        if let Ok(told) = asked.answer().await {
            info.size = told.camera.size.or(info.size);
            info.frames_per_second = told.camera.frames_per_second;
            info.frame_bytes = told.bytes.checked_div(told.frames).unwrap_or(0);
            info.oldest_at = told.oldest;
            info.newest_at = told.newest;
            info.log_bytes = told.bytes;
            info.log_bytes_max = told.bytes_max;
        }
        info
    }

    /// Changes the demand of a subscription; none if it was moved to another stream meanwhile.
    fn try_update(
        &self,
        identity: &Identity,
        id: SubscriptionId,
        changes: Changes,
    ) -> Result<Option<Demand>, ApiError> {
        let (camera, stream, reads, demand, room) =
            self.with_subscription(identity, id, |live| {
                let room = live.switch.clone().try_reserve_owned();
                (live.camera.clone(), live.stream.clone(), live.reads, live.demand, room)
            })?;
        // Before anything changes, so that an update that cannot be taken up has no effect.
        let room = room.map_err(|error| match error {
            TrySendError::Full(_) => {
                let text = format!("{SWITCHES_MAX} updates wait for this subscription to be read");
                ApiError::new(Code::LIMIT_REACHED, text)
            }
            TrySendError::Closed(_) => unknown(id),
        })?;
        let demand = changes.apply(demand)?;
        let next = if camera.update_if_alone(&stream, demand)? {
            stream.clone()
        } else {
            // Others keep what they asked for; this subscription moves to a stream that suits it.
            let complete = demand.delivery == Delivery::Every || reads == Reads::Past;
            // Frames still under way to the old one are for the new one to bring.
            let (life, reached) = stream.reached();
            let after = reached.filter(|_| complete).map(|reached| (life, reached));
            let begin = Begin { range: (None, None), after, reads };
            self.stream_for(&camera, demand, stream.hints.clone(), begin)?
        };
        let moved = !Arc::ptr_eq(&next, &stream);
        // From here on nothing waits, so that no half of a move is left behind by a caller who hangs up.
        let mut subscriptions = self.subscriptions();
        let live = subscriptions.get_mut(&id);
        let overtaken = live.as_ref().is_some_and(|live| !Arc::ptr_eq(&live.stream, &stream));
        let taken_up = live.filter(|_| !overtaken).is_some_and(|live| {
            room.send(match moved {
                true => Switch::stream(next.clone(), demand),
                false => Switch::demand(demand),
            });
            live.demand = demand;
            live.stream = next.clone();
            true
        });
        drop(subscriptions);
        match (taken_up, moved) {
            (true, true) => _ = camera.leave(&stream, reads),
            (false, true) => _ = camera.leave(&next, reads),
            (_, false) => {}
        }
        match (taken_up, overtaken) {
            (true, _) => Ok(Some(demand)),
            (false, true) => Ok(None),
            (false, false) => Err(unknown(id)),
        }
    }

    /// Moves a subscription that has caught up with the present, and has reached the capture time `at`, from
    /// the stream of its own to one that others read, if there is one whose log reaches back to it.
    fn share(&self, id: SubscriptionId, at: Instant) {
        // Held throughout, so that no two subscriptions move to each other's stream.
        let mut subscriptions = self.subscriptions();
        let Some(live) = subscriptions.get_mut(&id) else { return };
        let own = live.stream.clone();
        let shared = live.camera.join(&live.demand, &own.hints, Some(at), live.reads, Some(&own));
        let Some(shared) = shared else { return };
        if live.switch.try_send(Switch::stream(shared.clone(), live.demand)).is_ok() {
            live.stream = shared;
            live.camera.leave(&own, live.reads);
        } else {
            live.camera.leave(&shared, live.reads);
        }
    }

    /// A stream that serves the demand: one that runs, or a new one.
    fn stream_for(
        &self,
        camera: &Camera,
        demand: Demand,
        hints: TransferHints,
        begin: Begin,
    ) -> Result<Arc<Stream>, ApiError> {
        // A shared stream may lack some of the past if its readers want the newest frames alone.
        let whole = begin.reads == Reads::Present || demand.delivery == Delivery::Every;
        let reaches = begin.range.0.or(begin.after.map(|(_, after)| after));
        let join = || camera.join(&demand, &hints, reaches, begin.reads, None);
        match whole.then(join).flatten() {
            Some(stream) => Ok(stream),
            None => camera.start_stream(demand, hints, begin, self.stream_log.clone()),
        }
    }

    fn with_subscription<T>(
        &self,
        identity: &Identity,
        id: SubscriptionId,
        look: impl FnOnce(&Live) -> T,
    ) -> Result<T, ApiError> {
        let subscriptions = self.subscriptions();
        // Another's subscription is as unknown as none.
        let live = subscriptions.get(&id).filter(|live| live.identity.is(identity));
        live.map(look).ok_or_else(|| unknown(id))
    }

    /// Ends a subscription, and its stream with the last one.
    fn forget(&self, id: SubscriptionId) -> Option<UnsubscribeStatus> {
        let live = self.subscriptions().remove(&id)?;
        live.stop.cancel();
        let last = live.camera.leave(&live.stream, live.reads);
        let transfer = if last { TransferState::Stopped } else { TransferState::Continues };
        Some(UnsubscribeStatus {
            transfer,
            delivered: live.counts.delivered.load(Ordering::Relaxed),
            missed: live.counts.missed.load(Ordering::Relaxed),
        })
    }
}

/// Whether an identity may see cameras and their frames.
fn may_watch(identity: &Identity) -> Result<(), ApiError> {
    match identity.certificate {
        Some(Kind::Application | Kind::Node) | None => Ok(()),
        Some(Kind::Camera) => Err(ApiError::new(
            Code::ACTION_DENIED,
            format!(
                "{identity} may only publish its own frames; use an application's certificate \
                 (`tidegate init --add --application NAME`)"
            ),
        )),
    }
}

/// Whether an identity may be, or take back, the camera of that name.
fn may_publish(identity: &Identity, camera: &CameraName) -> Result<(), ApiError> {
    match identity.certificate {
        Some(Kind::Application | Kind::Node) | None => Ok(()),
        Some(Kind::Camera) if identity.name() == camera.as_str() => Ok(()),
        Some(Kind::Camera) => Err(ApiError::new(
            Code::ACTION_DENIED,
            format!("{identity} may only publish as itself, not as {camera}"),
        )),
    }
}

/// Lets a request that resumes after a frame of an earlier epoch begin with the first of the present one.
/// Returns where it would have gone on.
fn forget_earlier_epoch(request: &mut SubscribeRequest, epoch: u64) -> Option<Instant> {
    let from = request.from.filter(|_| request.from_epoch.is_some_and(|of| of != epoch))?;
    request.from = Some(Instant::MIN);
    Some(from)
}

fn unknown(id: SubscriptionId) -> ApiError {
    let text = format!("you have no subscription {id}; it may have ended");
    ApiError::new(Code::SUBSCRIPTION_UNKNOWN, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_in_an_epoch_that_is_over_begins_with_the_present_one() {
        let at = Instant::from_millis(1001);
        for (from_epoch, from, forgotten) in
            [(None, at, None), (Some(72), at, None), (Some(71), Instant::MIN, Some(at))]
        {
            let request = SubscribeRequest::new("cam1", Duration::from_secs(1), 0.5).unwrap();
            let mut request = SubscribeRequest { from: Some(at), from_epoch, ..request };
            assert_eq!(forget_earlier_epoch(&mut request, 72), forgotten, "{from_epoch:?}");
            assert_eq!(request.from, Some(from), "{from_epoch:?}");
        }
    }
}
