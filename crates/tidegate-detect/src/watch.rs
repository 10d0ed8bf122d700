//! One camera and one detector.
//!
//! ```text
//!  subscription ─frame─▶ pool (newest of the stream) ─answer─▶ Report
//!       ▲                                               │
//!       └── update(bound of the network) ◀── Budget ◀───┘ time of the detector
//! ```
//!
//! Always true: each frame that comes is looked at, or counted as one for which a newer was there, or answered with the reason; reports are
//! in the order of capture; a camera or a detector that is gone ends no other camera, and is tried again with growing waits, and so is
//! a camera over which we panic.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_recursion::async_recursion as boxed;
use tidegate_api::{
    ApiError, Changes, EndReason, Event, Frame, Infeasible as NetworkInfeasible, Original,
    SubscribeRequest,
};
use tidegate_message::{
    AdaptationProfile, Backoff, Bounds, CameraName, ControllerKind, Delivery, Demand, FrameRate,
    FrameSize, Instant, WhenInfeasible, error_chain,
};
use tidegate_ports::{DetectError, Frames, Looker, Outcome, Request, Scene, Subscription};
use tidegate_workers::PoolState;
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    budget::Budget,
    detector::{Detector, Started},
    report::{Detection, Infeasible, Party, Pending, Report},
};

/// Images of one camera that are with the pool at a time, beyond which the next event waits: one that waits and one at each program.
const LOOKS_MAX: usize = 33;
/// Waits between tries for a camera or a detector that is not there.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// How long a detector that failed over a frame is left alone, if it says nothing of it.
const FAILED_AFTER: Duration = Duration::from_secs(1);
/// How often the budget is looked at between frames.
const BUDGET_EVERY: Duration = Duration::from_millis(500);
/// The stream of a camera at the pool: its client has no other.
const STREAM: u64 = 0;

/// How the frames of a camera are looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchSettings {
    /// Both bounds, of which the latency is that from capture to the detection.
    pub bounds: Bounds,
    /// Most frames a second; none: as many as the camera makes.
    pub frame_rate: Option<FrameRate>,
    /// Boxes and classes below this score are left out.
    pub score_min: f64,
    /// The labels that are reported; none: all.
    pub labels: Option<BTreeSet<String>>,
    /// From one original that is fetched for a detection to the next at least; none: originals are not fetched.
    pub originals_every: Option<Duration>,
}

impl WatchSettings {
    /// All that is found within these bounds, without originals.
    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds, frame_rate: None, score_min: 0.0, labels: None, originals_every: None }
    }

    fn reports(&self, score: f64, label: &str) -> bool {
        score >= self.score_min && self.labels.as_ref().is_none_or(|labels| labels.contains(label))
    }
}

/// Looks at the newest frames of one camera until it is stopped.
#[derive(Clone)]
pub struct Watch {
    /// The camera.
    pub camera: CameraName,
    /// How.
    pub settings: Arc<WatchSettings>,
    /// Where its frames come from.
    pub frames: Arc<dyn Frames>,
    /// The detector.
    pub detector: Arc<dyn Detector>,
    /// Where reports go. While there is no room, frames wait where newer ones replace them.
    pub reports: mpsc::Sender<(CameraName, Pending)>,
}

/// The state that lasts over subscriptions.
struct State {
    started: time::Instant,
    budget: Budget,
    retry: Backoff,
    /// Whether it was said that the camera is away.
    is_offline: bool,
    /// Whether it was said that the detector fails.
    fails: bool,
    /// Whether it was said that the network cannot keep its part.
    is_infeasible: bool,
    is_busy: bool,
    restarts: Option<u64>,
    skipped: u64,
    scene: Option<Arc<Scene>>,
    /// Until when frames are not looked at: the detector has asked for it.
    hold_until: Option<time::Instant>,
    /// The frame of the last report, by its epoch.
    last: Option<(u64, Instant)>,
    original_at: Option<time::Instant>,
    fetches: bool,
}

/// A frame with the answer about it.
struct Looked {
    frame: Frame,
    source: FrameSize,
    took: Duration,
    answered_at: time::Instant,
    outcome: Result<Outcome, DetectError>,
}

/// The result of a task of a camera.
enum Done {
    Looked(Box<Looked>),
    Fetched(Instant, Result<Original, ApiError>),
}

/// Ends a subscription from within.
enum End {
    /// The camera is away, for that reason.
    Camera(Arc<str>),
    /// The detector is not there.
    Detector,
    /// No one takes the reports.
    Gone,
}

impl Watch {
    /// Looks at frames until `stop`. A panic is reported, and the camera is looked at again.
    #[boxed]
    pub async fn run(self, stop: CancellationToken) {
        let mut retry = Backoff::new(RETRY.0, RETRY.1);
        loop {
            // In a task of its own, so that a panic is seen here.
            let looking = tokio::spawn(self.clone().keep_looking(stop.clone()));
            let Err(error) = AbortOnDropHandle::new(looking).await else { return };
            tracing::error!(camera = %self.camera, %error, "looking at a camera ended by a panic, and is started again");
            let retry_after = retry.next_wait();
            let error = "a fault of Tidegate, which the log of the node describes".into();
            let again = async {
                self.tell(Report::DetectorFailed { error, retry_after }).await?;
                time::sleep(retry_after).await;
                Ok::<(), End>(())
            };
            tokio::select! {
                () = stop.cancelled() => return,
                again = again => if again.is_err() { return },
            }
        }
    }

    async fn keep_looking(self, stop: CancellationToken) {
        let mut state = State::new(self.settings.bounds.latency());
        loop {
            let end = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                end = self.follow(&mut state) => end,
            };
            let sent = match end {
                End::Gone => return,
                End::Detector => Ok(()),
                End::Camera(why) => self.offline(&mut state, why).await,
            };
            if sent.is_err() {
                return;
            }
            let wait = state.retry.next_wait();
            tokio::select! {
                () = stop.cancelled() => return,
                () = time::sleep(wait) => {}
            }
        }
    }

    /// One subscription, from its begin to its end.
    async fn follow(&self, state: &mut State) -> End {
        match self.try_follow(state).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn try_follow(&self, state: &mut State) -> Result<std::convert::Infallible, End> {
        let Started { client, state: mut pool, model } = match self.detector.start().await {
            Ok(started) => started,
            Err(error) => {
                let retry_after = RETRY.1;
                self.failed(state, error.chain(), retry_after).await?;
                return Err(End::Detector);
            }
        };
        state.restarts.get_or_insert(pool.borrow_and_update().restarts);
        let request = self.request(state.budget.asked(), model.clone());
        let subscribed = self.frames.subscribe(request).await;
        let mut subscription = subscribed.map_err(|error| End::Camera(error.chain().into()))?;
        let mut work: JoinSet<Done> = JoinSet::new();
        // One that was fetched for an earlier subscription has ended with it.
        state.fetches = false;
        let mut pool_is_there = true;
        loop {
            self.balance(state, &*subscription).await?;
            tokio::select! {
                biased;
                // Answers first: they leave room, and tell the time.
                Some(done) = work.join_next() => self.done(state, &mut work, done).await?,
                changed = pool.changed(), if pool_is_there => match changed {
                    Ok(()) => {
                        let now = pool.borrow_and_update().clone();
                        self.pool_changed(state, &now).await?;
                    }
                    Err(_) => pool_is_there = false,
                },
                event = subscription.next_event(), if work.len() < LOOKS_MAX => match event {
                    None => return Err(End::Camera("the subscription ended".into())),
                    Some(Err(error)) => return Err(End::Camera(error.chain().into())),
                    Some(Ok(event)) => {
                        self.event(state, &mut work, &client, model.as_deref(), event).await?;
                    }
                },
                () = time::sleep(BUDGET_EVERY) => {}
            }
        }
    }

    fn request(&self, network: Duration, model: Option<String>) -> SubscribeRequest {
        let bounds = Bounds::new(network, self.settings.bounds.accuracy())
            .expect("a budget asks for bounds that can be asked for");
        let demand = Demand {
            bounds,
            controller: ControllerKind::default(),
            delivery: Delivery::Latest,
            when_infeasible: WhenInfeasible::default(),
            profile: AdaptationProfile::default(),
            frame_rate: self.settings.frame_rate,
        };
        // The table of the model that looks, if there is one.
        SubscribeRequest {
            detector: model,
            ..SubscribeRequest::with_demand(self.camera.clone(), demand)
        }
    }

    /// Asks the network for what the detector leaves, if that has changed, and says so when it is nothing.
    async fn balance(&self, state: &mut State, subscription: &dyn Subscription) -> Result<(), End> {
        if let Some(bound) = state.budget.poll(state.now()) {
            let changes = Changes { latency: Some(bound), ..Changes::default() };
            match subscription.update(changes).await {
                Ok(_) => {
                    state.budget.ask(state.now(), bound);
                    tracing::debug!(
                        camera = %self.camera,
                        network_ms = bound.as_millis(),
                        detector_ms = state.budget.detector().map(|time| time.as_millis()),
                        "the bound of the network is another"
                    );
                }
                // The node is busy, or the subscription is about to end.
                Err(error) => {
                    state.budget.ask(state.now(), state.budget.asked());
                    tracing::debug!(
                        camera = %self.camera,
                        error = error.chain(),
                        "the bound of the network stays for now"
                    );
                }
            }
        }
        match state.budget.poll_spent() {
            None => Ok(()),
            Some(Some(spent)) => {
                let infeasible = Infeasible::Detector(spent);
                tracing::warn!(camera = %self.camera, "{}", infeasible.sentence());
                self.tell(Report::Infeasible(infeasible)).await
            }
            Some(None) => {
                tracing::info!(camera = %self.camera, "the detector is fast enough for its bound again");
                self.tell(Report::Feasible(Party::Detector)).await
            }
        }
    }

    async fn event(
        &self,
        state: &mut State,
        work: &mut JoinSet<Done>,
        client: &Arc<dyn Looker>,
        model: Option<&str>,
        event: Event,
    ) -> Result<(), End> {
        match event {
            Event::Frame(frame) => {
                self.online(state).await?;
                self.frame(state, work, client, model, frame);
                Ok(())
            }
            Event::Unchanged(same) => {
                self.online(state).await?;
                let (captured_at, epoch, same_as) = (same.captured_at, same.epoch, same.same_as);
                self.tell(Report::Unchanged { captured_at, epoch, same_as }).await
            }
            Event::Missed(missed) => self.tell(Report::Missed(missed)).await,
            Event::Infeasible(NetworkInfeasible { sentence, .. }) => {
                state.is_infeasible = true;
                let bound = state.budget.asked();
                self.tell(Report::Infeasible(Infeasible::Network { bound, sentence })).await
            }
            Event::Feasible if !state.is_infeasible => Ok(()),
            Event::Feasible => {
                state.is_infeasible = false;
                self.tell(Report::Feasible(Party::Network)).await
            }
            Event::CameraOffline(why) => self.offline(state, why).await,
            Event::CameraOnline => self.online(state).await,
            Event::NoFrames(why) => self.tell(Report::NoFrames(why)).await,
            Event::AccuracyAssumed(why) => self.tell(Report::AccuracyAssumed(why)).await,
            Event::ControllerFailed(why) => {
                tracing::warn!(camera = %self.camera, "{why}");
                Ok(())
            }
            // The setting of each frame is in its detection.
            Event::KnobsChanged(_) => Ok(()),
            Event::Ended(EndReason::Shutdown) => Err(End::Camera("the node stops".into())),
            Event::Ended(reason) => Err(End::Camera(reason.to_string().into())),
        }
    }

    fn frame(
        &self,
        state: &mut State,
        work: &mut JoinSet<Done>,
        client: &Arc<dyn Looker>,
        model: Option<&str>,
        mut frame: Frame,
    ) {
        let now = time::Instant::now();
        if state.hold_until.is_some_and(|until| now < until) {
            state.skipped += 1;
            return;
        }
        let source = source_of(&frame);
        let scene = match &state.scene {
            Some(scene) if scene.source == source => scene.clone(),
            _ => state.scene.insert(Arc::new(Scene::new(source, Vec::new()))).clone(),
        };
        let image = std::mem::take(&mut frame.jpeg);
        let request = Request {
            model: model.map(str::to_owned),
            scene: Some(scene),
            stream: Some(STREAM),
            ..Request::encoded(image)
        };
        let client = client.clone();
        work.spawn(async move {
            let outcome = client.look(request).await;
            let answered_at = time::Instant::now();
            let took = answered_at - now;
            Done::Looked(Box::new(Looked { frame, source, took, answered_at, outcome }))
        });
    }

    async fn done(
        &self,
        state: &mut State,
        work: &mut JoinSet<Done>,
        done: Result<Done, JoinError>,
    ) -> Result<(), End> {
        match done {
            Ok(Done::Looked(looked)) => self.looked(state, work, *looked).await,
            Ok(Done::Fetched(captured_at, fetched)) => {
                state.fetches = false;
                let report = match fetched {
                    Ok(Original { captured_at, jpeg }) => Report::Original { captured_at, jpeg },
                    Err(error) => {
                        let error = error.chain().into();
                        Report::OriginalMissing { captured_at, error }
                    }
                };
                self.tell(report).await
            }
            Err(broken) => {
                tracing::error!(camera = %self.camera, error = %broken, "looking at a frame failed");
                Ok(())
            }
        }
    }

    async fn looked(
        &self,
        state: &mut State,
        work: &mut JoinSet<Done>,
        looked: Looked,
    ) -> Result<(), End> {
        let Looked { frame, source, took, answered_at, outcome } = looked;
        match outcome {
            Ok(outcome) => {
                state.budget.took(state.now(), took);
                (state.fails, state.is_busy) = (false, false);
                state.retry.reset();
                // A program that is slow over one frame may answer after another that had a later one.
                let is_newest = state
                    .last
                    .is_none_or(|(epoch, at)| epoch != frame.epoch || frame.captured_at > at);
                if !is_newest {
                    state.skipped += 1;
                    return Ok(());
                }
                state.last = Some((frame.epoch, frame.captured_at));
                let detection = self.detection(state, &frame, source, (took, answered_at), outcome);
                self.fetch(state, work, &detection);
                self.tell(Report::Detection(Box::new(detection))).await
            }
            Err(DetectError::Superseded | DetectError::Overdue) => {
                state.skipped += 1;
                Ok(())
            }
            Err(DetectError::Busy { waiting, retry_after }) => {
                state.skipped += 1;
                state.hold(retry_after);
                match std::mem::replace(&mut state.is_busy, true) {
                    true => Ok(()),
                    false => self.tell(Report::Busy { waiting, retry_after }).await,
                }
            }
            Err(DetectError::Refused { message }) => {
                let error = message.into();
                self.tell(Report::Refused { captured_at: frame.captured_at, error }).await
            }
            Err(error) => {
                let retry_after = match &error {
                    DetectError::NoWorker { retry_after, .. } => *retry_after,
                    _ => FAILED_AFTER,
                };
                state.skipped += 1;
                state.hold(retry_after);
                self.failed(state, error_chain(&error), retry_after).await?;
                // A pool that has ended is started again.
                if matches!(error, DetectError::Closed) { Err(End::Detector) } else { Ok(()) }
            }
        }
    }

    fn detection(
        &self,
        state: &mut State,
        frame: &Frame,
        source: FrameSize,
        (took, answered_at): (Duration, time::Instant),
        outcome: Outcome,
    ) -> Detection {
        let Outcome { mut boxes, mut classes, poses, times, .. } = outcome;
        boxes.retain(|found| self.settings.reports(found.score, &found.label));
        classes.retain(|(score, label)| self.settings.reports(*score, label));
        let bound = state.budget.bound();
        let looked = times.decode + times.infer;
        let mut detection = Detection {
            captured_at: frame.captured_at,
            epoch: frame.epoch,
            frame: frame.size,
            source,
            knobs: frame.knobs.clone(),
            accuracy: frame.accuracy,
            boxes,
            classes,
            poses,
            stages: frame.stages,
            wait: took.saturating_sub(looked),
            decode: times.decode,
            infer: times.infer,
            bound,
            accuracy_kept: frame.accuracy_kept,
            measured_until: answered_at,
            kept: false,
            skipped: std::mem::take(&mut state.skipped),
        };
        detection.leave(time::Instant::now());
        detection
    }

    /// Fetches the original of a detection that has found something, one at a time and not too often.
    fn fetch(&self, state: &mut State, work: &mut JoinSet<Done>, detection: &Detection) {
        let Some(every) = self.settings.originals_every else { return };
        let found = !(detection.boxes.is_empty() && detection.poses.is_empty());
        let is_due = state.original_at.is_none_or(|at| at.elapsed() >= every);
        if !found || !is_due || state.fetches {
            return;
        }
        (state.fetches, state.original_at) = (true, Some(time::Instant::now()));
        let (frames, camera, at) =
            (self.frames.clone(), self.camera.clone(), detection.captured_at);
        work.spawn(async move { Done::Fetched(at, frames.fetch_original(&camera, at).await) });
    }

    async fn pool_changed(&self, state: &mut State, now: &PoolState) -> Result<(), End> {
        let restarts = now.restarts;
        if state.restarts.replace(restarts).is_none_or(|before| restarts <= before) {
            return Ok(());
        }
        let error = now.last_error.as_ref().map(|error| error.chain().into());
        self.tell(Report::WorkerRestarted { restarts, error }).await
    }

    async fn failed(
        &self,
        state: &mut State,
        error: String,
        retry_after: Duration,
    ) -> Result<(), End> {
        if std::mem::replace(&mut state.fails, true) {
            return Ok(());
        }
        tracing::warn!(camera = %self.camera, detector = self.detector.name(), error, "the detector fails");
        self.tell(Report::DetectorFailed { error: error.into(), retry_after }).await
    }

    async fn offline(&self, state: &mut State, why: Arc<str>) -> Result<(), End> {
        if std::mem::replace(&mut state.is_offline, true) {
            return Ok(());
        }
        tracing::info!(camera = %self.camera, why = &*why, "no frames to look at: the camera is away");
        self.tell(Report::CameraOffline(why)).await
    }

    async fn online(&self, state: &mut State) -> Result<(), End> {
        if !std::mem::take(&mut state.is_offline) {
            return Ok(());
        }
        state.retry.reset();
        self.tell(Report::CameraOnline).await
    }

    async fn tell(&self, report: Report) -> Result<(), End> {
        let sent = self.reports.send((self.camera.clone(), report.into())).await;
        sent.map_err(|_| End::Gone)
    }
}

impl State {
    fn new(bound: Duration) -> Self {
        Self {
            started: time::Instant::now(),
            budget: Budget::new(bound),
            retry: Backoff::new(RETRY.0, RETRY.1),
            is_offline: false,
            fails: false,
            is_infeasible: false,
            is_busy: false,
            restarts: None,
            skipped: 0,
            scene: None,
            hold_until: None,
            last: None,
            original_at: None,
            fetches: false,
        }
    }

    fn now(&self) -> Instant {
        Instant::EPOCH + self.started.elapsed()
    }

    fn hold(&mut self, wait: Duration) {
        self.hold_until = Some(time::Instant::now() + wait);
    }
}

/// The size of the original, in whose pixels boxes are. Where a camera's node does not tell it, that of the frame.
fn source_of(frame: &Frame) -> FrameSize {
    frame.source_size.unwrap_or(frame.size)
}

#[cfg(test)]
mod tests;
