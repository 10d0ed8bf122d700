//! A running subscription, kept over broken connections.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::{
    Stream,
    stream::{self, BoxStream, StreamExt},
};
use tidegate_message::{Code, Delivery, Demand, Instant};
use tonic::Streaming;

use crate::{
    ApiError, Changes, Client, EndReason, Event, FeedbackOf, Started, SubscribeRequest,
    SubscriptionId, UnsubscribeStatus, Verdict,
    client::retry,
    failure,
    newest::{Newest, Wanted},
    proto::{self, subscribe_response as wire},
};

/// The events of one subscription, as a stream that ends after [`Event::Ended`] or an error.
///
/// A value that the camera does not serve is known only after the first round trip to it, and is then an
/// error of the stream: [`Code::LIMIT_REACHED`] if it has as many transfers as it serves,
/// [`Code::TABLE_MISSING`] if it cannot make out which table is meant.
///
/// When the connection breaks, the subscription is made again, up to
/// [`max_reconnects`](crate::ConnectOptions::max_reconnects) tries in a row; the application sees
/// [`Event::CameraOffline`] and [`Event::CameraOnline`] around it. A frame or marker that was delivered is
/// never delivered again. A subscription that asked for the past or for `every` frame resumes behind the
/// last one that it had, or with the first one of a camera that has restarted meanwhile; another resumes
/// with the newest. Each time it is made at the node that serves the camera then, see [`Client`].
///
/// An application that is slower than its frames gets the newest that came, and [`Event::Missed`] of those that it replaced; the node
/// counts these as delivered. A task reads them meanwhile: work that takes long belongs on a thread that may block. With
/// [`Delivery::Every`], and of the past, the node waits: no more than the connection's window is under way.
///
/// Dropping it ends the subscription.
pub struct Subscription {
    handle: SubscriptionHandle,
    /// Never locked: the mutex makes a subscription that is only borrowed usable from another thread.
    events: Mutex<BoxStream<'static, Result<Event, ApiError>>>,
}

/// The calls by which a running subscription is changed and ended, for whoever does not read its events. Cloning shares it.
#[derive(Clone)]
pub struct SubscriptionHandle {
    shared: Arc<Mutex<Serving>>,
    /// Whether every frame is wanted now.
    every: Arc<AtomicBool>,
    /// Held while the demand is changed.
    updating: Arc<tokio::sync::Mutex<()>>,
}

impl Subscription {
    pub(crate) async fn open(client: Client, request: SubscribeRequest) -> Result<Self, ApiError> {
        request.check()?;
        let every = Arc::new(AtomicBool::new(request.demand.delivery == Delivery::Every));
        let wanted = Wanted { every: every.clone(), past: request.from.is_some(), last: None };
        let (serving, wire) = start(&client, &request, wanted).await?;
        let shared = Arc::new(Mutex::new(serving));
        let run = Run {
            client,
            request,
            shared: shared.clone(),
            every: every.clone(),
            wire: Some(wire),
            last: None,
            tries: 0,
            ended: false,
        };
        let events = stream::unfold(run, |mut run| async {
            let event = run.next().await?;
            Some((event, run))
        });
        let handle = SubscriptionHandle { shared, every, updating: Arc::default() };
        Ok(Self { handle, events: Mutex::new(events.boxed()) })
    }

    /// The calls that change and end it.
    pub fn handle(&self) -> &SubscriptionHandle {
        &self.handle
    }

    /// Its name on the node; another one after the connection broke.
    pub fn id(&self) -> SubscriptionId {
        self.handle.id()
    }

    /// The current demand on every frame.
    pub fn demand(&self) -> Demand {
        self.handle.demand()
    }

    /// Changes bounds, controller or policy; returns the demand from now on.
    ///
    /// # Errors
    /// [`Code::BOUND_INVALID`] for a bound out of its range, [`Code::SUBSCRIPTION_UNKNOWN`] if it ended.
    pub async fn update(&self, changes: Changes) -> Result<Demand, ApiError> {
        self.handle.update(changes).await
    }

    /// Ends the subscription and tells what it leaves behind.
    ///
    /// # Errors
    /// [`Code::SUBSCRIPTION_UNKNOWN`] if it has ended already, [`Code::LINK_DOWN`].
    pub async fn unsubscribe(self) -> Result<UnsubscribeStatus, ApiError> {
        self.handle.unsubscribe().await
    }

    /// A verdict for each frame of its transfer, from the node that serves it now; it ends where that connection breaks.
    ///
    /// # Errors
    /// [`Code::SUBSCRIPTION_UNKNOWN`] if it has ended, [`Code::LINK_DOWN`].
    pub async fn feedback(&self) -> Result<Feedback, ApiError> {
        self.handle.feedback().await
    }

    /// The node that serves it now.
    pub fn node(&self) -> String {
        self.handle.node()
    }
}

impl SubscriptionHandle {
    /// Its name on the node; another one after the connection broke.
    pub fn id(&self) -> SubscriptionId {
        lock(&self.shared).started.id
    }

    /// The current demand on every frame.
    pub fn demand(&self) -> Demand {
        lock(&self.shared).started.demand
    }

    /// Changes bounds, controller or policy; returns the demand from now on.
    ///
    /// # Errors
    /// [`Code::BOUND_INVALID`] for a bound out of its range, [`Code::SUBSCRIPTION_UNKNOWN`] if it ended.
    pub async fn update(&self, changes: Changes) -> Result<Demand, ApiError> {
        // One after another: the demand is that of the last answer.
        let _updating = self.updating.lock().await;
        changes.apply(self.demand())?;
        if changes.delivery == Some(Delivery::Every) {
            // Before the node sends the first of them.
            self.every.store(true, Ordering::Relaxed);
        }
        let (id, at) = self.served();
        let request = proto::UpdateSubscriptionRequest {
            subscription_id: id.0,
            changes: Some(changes.into()),
        };
        let answer = at.stub().update_subscription(request).await.map_err(failure);
        let lacking = || ApiError::new(Code::LINK_PROTOCOL, "the answer holds no demand");
        let changed = answer
            .and_then(|answer| Demand::try_from(answer.into_inner().demand.ok_or_else(lacking)?));
        let started = &mut lock(&self.shared).started;
        if let Ok(demand) = changed {
            started.demand = demand;
        }
        self.every.store(started.demand.delivery == Delivery::Every, Ordering::Relaxed);
        changed
    }

    /// Ends the subscription and tells what it leaves behind.
    ///
    /// # Errors
    /// [`Code::SUBSCRIPTION_UNKNOWN`] if it has ended already, [`Code::LINK_DOWN`].
    pub async fn unsubscribe(&self) -> Result<UnsubscribeStatus, ApiError> {
        let (id, at) = self.served();
        let request = proto::UnsubscribeRequest { subscription_id: id.0 };
        let answer = at.stub().unsubscribe(request).await.map_err(failure)?;
        answer.into_inner().try_into()
    }

    /// A verdict for each frame of its transfer, from the node that serves it now; it ends where that connection breaks.
    ///
    /// # Errors
    /// [`Code::SUBSCRIPTION_UNKNOWN`] if it has ended, [`Code::LINK_DOWN`].
    pub async fn feedback(&self) -> Result<Feedback, ApiError> {
        let (id, at) = self.served();
        at.feedback(FeedbackOf::Subscription(id)).await
    }

    /// The node that serves it now.
    pub fn node(&self) -> String {
        lock(&self.shared).at.node().to_owned()
    }

    /// Its name, and the node that knows it by that.
    fn served(&self) -> (SubscriptionId, Client) {
        let serving = lock(&self.shared);
        (serving.started.id, serving.at.clone())
    }
}

/// A subscription at the node that serves it now.
struct Serving {
    started: Started,
    at: Client,
}

impl Stream for Subscription {
    type Item = Result<Event, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.get_mut().unwrap_or_else(PoisonError::into_inner).poll_next_unpin(context)
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("started", &lock(&self.handle.shared).started)
            .finish_non_exhaustive()
    }
}

fn lock(shared: &Mutex<Serving>) -> std::sync::MutexGuard<'_, Serving> {
    // Plain values are whole at any time, even if a holder panicked.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the stream between two events.
struct Run {
    client: Client,
    request: SubscribeRequest,
    shared: Arc<Mutex<Serving>>,
    every: Arc<AtomicBool>,
    /// The call; none while the connection is broken.
    wire: Option<Newest>,
    /// The last frame or marker that the application has: its epoch and its capture time.
    last: Option<(u64, Instant)>,
    /// Tries since the last event.
    tries: u32,
    ended: bool,
}

impl Run {
    async fn next(&mut self) -> Option<Result<Event, ApiError>> {
        while !self.ended {
            let Some(wire) = &mut self.wire else {
                match self.resume().await {
                    Ok(()) => return Some(Ok(Event::CameraOnline)),
                    Err(error) => return self.end(Err(error)),
                }
            };
            let event = match wire.message().await {
                Ok(Some(answer)) => answer.event.map(Event::try_from),
                Ok(None) => return self.broken("the node closed the stream".to_owned()),
                Err(status) => {
                    let error = failure(status);
                    if error.code() != Code::LINK_DOWN {
                        return self.end(Err(error));
                    }
                    return self.broken(error.chain());
                }
            };
            match event {
                None => {} // of a newer protocol: not for us
                Some(Err(error)) => return self.end(Err(error)),
                // A node that stops may be about to start again.
                Some(Ok(Event::Ended(EndReason::Shutdown))) => {
                    return self.broken(EndReason::Shutdown.to_string());
                }
                Some(Ok(event @ Event::Ended(_))) => return self.end(Ok(event)),
                Some(Ok(event)) => {
                    self.tries = 0;
                    if let Some(event) = self.once(event) {
                        return Some(Ok(event));
                    }
                }
            }
        }
        None
    }

    /// The event unless it repeats one, with the time until now in its delivery stage.
    fn once(&mut self, mut event: Event) -> Option<Event> {
        let (epoch, captured_at, stages, handed_at) = match &mut event {
            Event::Frame(frame) => {
                (frame.epoch, frame.captured_at, &mut frame.stages, frame.handed_at)
            }
            Event::Unchanged(marker) => {
                (marker.epoch, marker.captured_at, &mut marker.stages, marker.handed_at)
            }
            _ => return Some(event),
        };
        // The times of a camera that has restarted cannot be compared with those before.
        if self.last.is_some_and(|(of, last)| of == epoch && captured_at <= last) {
            return None;
        }
        self.last = Some((epoch, captured_at));
        if !self.client.relays() {
            stages.delivery = stages.delivery.saturating_add(wall_clock().since(handed_at));
        }
        Some(event)
    }

    fn end(&mut self, last: Result<Event, ApiError>) -> Option<Result<Event, ApiError>> {
        self.ended = true;
        self.wire = None;
        Some(last)
    }

    fn broken(&mut self, why: String) -> Option<Result<Event, ApiError>> {
        self.wire = None;
        let max = self.client.options().max_reconnects;
        if self.tries >= max {
            let message = format!("the connection broke and {max} further tries are used up");
            return self.end(Err(ApiError::new(Code::LINK_DOWN, message).caused_by(why)));
        }
        let node = lock(&self.shared).at.node().to_owned();
        let sentence = format!("the connection to node {node} broke ({why}); trying again");
        Some(Ok(Event::CameraOffline(sentence.into())))
    }

    async fn resume(&mut self) -> Result<(), ApiError> {
        let demand = lock(&self.shared).started.demand;
        let behind = self.request.from.is_some() || demand.delivery == Delivery::Every;
        let (from, from_epoch) = match self.last {
            Some((epoch, last)) if behind => (Some(last + Duration::from_nanos(1)), Some(epoch)),
            Some(_) => (None, None),
            None => (self.request.from, self.request.from_epoch),
        };
        if let (Some(from), Some(to)) = (from, self.request.to)
            && to <= from
        {
            self.ended = true; // nothing is left of the range
            return Err(ApiError::new(
                Code::LINK_DOWN,
                "the connection broke behind the last frame of the range",
            ));
        }
        let request = SubscribeRequest { from, from_epoch, demand, ..self.request.clone() };
        let options = self.client.options();
        let tries = self.tries;
        let remaining = crate::ConnectOptions {
            max_reconnects: options.max_reconnects.saturating_sub(tries + 1),
            ..options.clone()
        };
        let wanted = Wanted { every: self.every.clone(), past: from.is_some(), last: self.last };
        let (serving, wire) = retry(&remaining, |attempt| {
            self.tries = tries + attempt + 1;
            let attempt = start(&self.client, &request, wanted.clone());
            async {
                attempt.await.map_err(|error| match error.code() {
                    // A node that has just started may not have met its cameras yet, nor its members.
                    Code::CAMERA_UNKNOWN | Code::CAMERA_OFFLINE | Code::MEMBER_UNKNOWN => {
                        ApiError::new(Code::LINK_DOWN, error.chain())
                    }
                    _ => error,
                })
            }
        })
        .await?;
        *lock(&self.shared) = serving;
        self.wire = Some(wire);
        Ok(())
    }
}

async fn start(
    client: &Client,
    request: &SubscribeRequest,
    wanted: Wanted,
) -> Result<(Serving, Newest), ApiError> {
    let open = |at: Client| start_at(at, request.clone().into(), wanted.clone());
    client.at_camera(&request.camera, open).await
}

async fn start_at(
    at: Client,
    request: proto::SubscribeRequest,
    wanted: Wanted,
) -> Result<(Serving, Newest), ApiError> {
    let call = at.stub().subscribe(request).await.map_err(failure)?.into_inner();
    let mut wire = Newest::new(call, wanted);
    let first = wire.message().await.map_err(failure)?;
    match first.and_then(|answer| answer.event) {
        Some(wire::Event::Started(started)) => {
            Ok((Serving { started: started.try_into()?, at }, wire))
        }
        Some(_) => {
            Err(ApiError::new(Code::LINK_PROTOCOL, "a subscription did not open with `started`"))
        }
        None => Err(ApiError::new(Code::LINK_DOWN, "the node closed the stream")),
    }
}

fn wall_clock() -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::EPOCH + since
}

/// The verdicts of a transfer or a camera, as a stream. Dropping it ends the call.
#[derive(Debug)]
pub struct Feedback {
    wire: Streaming<proto::FeedbackResponse>,
}

impl Feedback {
    pub(crate) fn new(wire: Streaming<proto::FeedbackResponse>) -> Self {
        Self { wire }
    }
}

impl Stream for Feedback {
    type Item = Result<Verdict, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.wire.poll_next_unpin(context).map(|next| {
            next.map(|answer| {
                let lacking = || ApiError::new(Code::LINK_PROTOCOL, "the answer holds no verdict");
                answer.map_err(failure)?.verdict.ok_or_else(lacking)?.try_into()
            })
        })
    }
}
