//! `tidegate subscribe`: frames within bounds, and how they are kept.
//!
//! ```text
//!  Subscription (one for each camera) ──▶ Sinks (frames, CSV)
//!                 └──────────────────────▶ Board (one line for each camera) ──▶ terminal
//! ```
//!
//! Always true: a camera that fails, or a file that cannot be written, is reported once and stops no other
//! camera; the exit status is that of the first failure, and bounds that could not be kept in the end are one.

mod board;
mod line;
mod silence;
mod sinks;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_recursion::async_recursion as boxed;
use clap::Args;
use futures::{StreamExt, stream};
use tidegate_api::{ApiError, Event, FeedbackOf, SubscribeRequest, Verdict, json};
use tidegate_client::{Client, Feedback, Subscription};
use tidegate_config::Config;
use tidegate_message::{
    AdaptationProfile, Bounds, CameraName, Code, ControllerKind, Delivery, Demand, FrameRate,
    WhenInfeasible, quantity,
};
use tidegate_process::clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::{board::Board, sinks::Sinks};
use crate::{
    program::{Output, plain},
    remote::RemoteArgs,
    time::{self, TimePoint},
};

/// Arguments of `tidegate subscribe`.
#[derive(Args, Debug)]
pub struct SubscribeArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// The cameras
    #[arg(required = true, value_name = "CAMERA")]
    cameras: Vec<CameraName>,
    /// Longest time from capture to here: 1ms to 60s
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    latency: Duration,
    /// Least accuracy of the detector on what arrives, as a fraction of that on the originals: 0 to 1
    #[arg(long, value_name = "FRACTION")]
    accuracy: f64,
    /// The controller of the knobs: budget, mez-pi, aimd or fixed
    #[arg(long, default_value_t)]
    controller: ControllerKind,
    /// Newest frame (latest) or every frame (every)
    #[arg(long, default_value_t)]
    delivery: Delivery,
    /// The bound to give up when both cannot be kept: keep-latency, keep-accuracy or pause
    #[arg(long, default_value_t)]
    when_infeasible: WhenInfeasible,
    /// Family of knobs: jpeg or mez
    #[arg(long, default_value_t)]
    profile: AdaptationProfile,
    /// Most frames a second: 0.01 to 1000 [default: as many as the camera makes]
    #[arg(long, value_name = "RATE")]
    fps: Option<FrameRate>,
    /// Detector whose table is used [default: the node's]
    #[arg(long)]
    detector: Option<String>,
    /// Scene class of the table [default: the node's]
    #[arg(long)]
    scene: Option<String>,
    /// First capture time: -30s, 2026-05-04T13:05:06Z or nanoseconds [default: from now on]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time::parse)]
    from: Option<TimePoint>,
    /// Capture time to end before [default: forever]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time::parse)]
    to: Option<TimePoint>,
    /// Stop after this long
    #[arg(long = "for", value_name = "TIME", value_parser = quantity::duration)]
    run_for: Option<Duration>,
    /// Save each frame as DIR/CAMERA/TIMESTAMP.jpg
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Write one row for each frame
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print what became of each captured frame
    #[arg(long)]
    feedback: bool,
    /// How to print it: live lines for people, or an object a line for each frame and event
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// How often the lines are shown on a terminal, and it is looked everywhere whether a camera has fallen silent.
const SHOWN_EVERY: Duration = Duration::from_millis(250);

/// Receives frames until the last camera has ended, or `stop`.
///
/// # Errors
/// Those of the calls, and of files that cannot be written.
#[boxed(?Send)]
pub async fn run(
    config: &Config,
    args: SubscribeArgs,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let requests = requests(&args)?;
    let sinks = Arc::new(Sinks::open(args.save.as_deref(), args.csv.as_deref(), &args.cameras)?);
    let client = args.remote.connect(config).await?;
    let board = Arc::new(Board::new(&requests, args.output));
    let mut cameras = JoinSet::new();
    for (index, request) in requests.into_iter().enumerate() {
        let watch = Watch {
            index,
            request,
            client: client.clone(),
            board: board.clone(),
            sinks: sinks.clone(),
            feedback: args.feedback,
        };
        cameras.spawn(watch.run(stop.clone()));
    }
    let mut show = tokio::time::interval_at(tokio::time::Instant::now() + SHOWN_EVERY, SHOWN_EVERY);
    let over = tokio::time::sleep(args.run_for.unwrap_or(Duration::MAX));
    tokio::pin!(over);
    let mut first_failure = None;
    loop {
        tokio::select! {
            ended = cameras.join_next() => match ended {
                None => break,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err((camera, error)))) => {
                    board.tell(&format!("{camera}: {}", plain(&error.chain())))?;
                    first_failure.get_or_insert(error);
                }
                Some(Err(broken)) => {
                    let message = "the task of a camera broke";
                    return Err(ApiError::new(Code::INTERNAL, message).caused_by(broken));
                }
            },
            () = &mut over, if !stop.is_cancelled() => stop.cancel(),
            _ = show.tick() => board.show()?,
        }
        for failure in sinks.failures() {
            board.tell(&plain(&failure.chain()))?;
            first_failure.get_or_insert(failure);
        }
    }
    board.show_all()?;
    if let Err(failure) = sinks.close() {
        board.tell(&plain(&failure.chain()))?;
        first_failure.get_or_insert(failure);
    }
    first_failure.map_or(Ok(()), Err)
}

fn requests(args: &SubscribeArgs) -> Result<Vec<SubscribeRequest>, ApiError> {
    let now = clock::now();
    let demand = Demand {
        bounds: Bounds::new(args.latency, args.accuracy)?,
        controller: args.controller,
        delivery: args.delivery,
        when_infeasible: args.when_infeasible,
        profile: args.profile,
        frame_rate: args.fps,
    };
    let request = |camera: &CameraName| {
        let request = SubscribeRequest {
            from: args.from.map(|from| from.resolve(now)),
            to: args.to.map(|to| to.resolve(now)),
            detector: args.detector.clone(),
            scene: args.scene.clone(),
            ..SubscribeRequest::with_demand(camera.clone(), demand)
        };
        request.check().map(|()| request)
    };
    args.cameras.iter().map(request).collect()
}

/// One camera's subscription.
struct Watch {
    index: usize,
    request: SubscribeRequest,
    client: Client,
    board: Arc<Board>,
    sinks: Arc<Sinks>,
    feedback: bool,
}

impl Watch {
    /// Until the range is complete, the subscription fails, or `stop`.
    async fn run(self, stop: CancellationToken) -> Result<(), (CameraName, ApiError)> {
        let camera = self.request.camera.clone();
        let watched =
            self.watch(stop).await.and_then(|()| match self.board.infeasible(self.index) {
                Some(sentence) => Err(ApiError::new(Code::BOUND_INFEASIBLE, sentence)),
                None => Ok(()),
            });
        if watched.is_err() {
            self.board.ended(self.index);
        }
        watched.map_err(|error| (camera, error))
    }

    async fn watch(&self, stop: CancellationToken) -> Result<(), ApiError> {
        let mut subscription = self.client.subscribe(self.request.clone()).await?;
        let mut verdicts = self.verdicts(&subscription).await?;
        let mut events = json::Events::default();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = subscription.next() => match event.transpose()? {
                    None => return Ok(()),
                    Some(event) => {
                        self.board.event(self.index, &event);
                        match self.board.is_json() {
                            true => {
                                let mut object = events.next(&event);
                                object["camera"] = self.request.camera.as_str().into();
                                self.board.object(&object)?;
                            }
                            false => self.tell(&event)?,
                        }
                        self.sinks.write(&self.request.camera, self.request.demand.bounds, &event).await;
                        if matches!(event, Event::CameraOnline) {
                            // After a broken connection the subscription has another name. If it
                            // broke again, the next `CameraOnline` tries again.
                            verdicts = self.verdicts(&subscription).await.unwrap_or(Verdicts::Off);
                        }
                    }
                },
                Some(verdict) = verdicts.next() => match verdict {
                    Ok(verdict) if self.board.is_json() => {
                        self.board.object(&json::verdict(&verdict))?;
                    }
                    Ok(verdict) => self.board.tell(&line::verdict(&verdict))?,
                    // The connection broke: the subscription says so and comes back.
                    Err(_) => verdicts = Verdicts::Off,
                },
            }
        }
        match subscription.unsubscribe().await {
            // It ended by itself in the same moment.
            Err(error) if error.code() != Code::SUBSCRIPTION_UNKNOWN => Err(error),
            _ => Ok(()),
        }
    }

    /// Prints, above the lines, that the bounds cannot be kept, what could be had, and that they can be kept again; and that no frames
    /// come.
    fn tell(&self, event: &Event) -> Result<(), ApiError> {
        let sentence = match event {
            Event::Infeasible(infeasible) => plain(&infeasible.sentence),
            Event::Feasible => "both bounds can be kept again".to_owned(),
            Event::NoFrames(sentence) => format!("no frames: {}", plain(sentence)),
            _ => return Ok(()),
        };
        self.board.tell(&format!("{}: {sentence}", self.request.camera))
    }

    async fn verdicts(&self, subscription: &Subscription) -> Result<Verdicts, ApiError> {
        if !self.feedback {
            return Ok(Verdicts::Off);
        }
        let of = FeedbackOf::Subscription(subscription.id());
        Ok(Verdicts::Of(Box::new(self.client.feedback(of).await?)))
    }
}

/// The verdicts of a subscription, if they are asked for and there are any.
enum Verdicts {
    Off,
    Of(Box<Feedback>),
}

impl stream::Stream for Verdicts {
    type Item = Result<Verdict, ApiError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        match &mut *self {
            Self::Off => std::task::Poll::Ready(None),
            Self::Of(feedback) => feedback.poll_next_unpin(context),
        }
    }
}
