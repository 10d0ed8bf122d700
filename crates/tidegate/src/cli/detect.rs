//! `tidegate detect`: a detector on this machine looks at the cameras of a node.

use std::{sync::Arc, time::Duration};

use clap::Args;
use tidegate_api::ApiError;
use tidegate_cli::{
    program::{Output, plain, print},
    remote::RemoteArgs,
};
use tidegate_config::Config;
use tidegate_detect::{About, Detector as _, PoolDetector, Watch, WatchSettings};
use tidegate_message::{Bounds, CameraName, Code, FrameRate, command, error_chain, quantity};
use tidegate_ports::Frames;
use tidegate_workers::{PoolSettings, Program, SharedPool};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::run;

/// Reports on their way to the output; frames wait where newer ones replace them.
const REPORTS_MAX: usize = 64;
/// The shortest bound that two can share.
const LATENCY_MIN: Duration = Duration::from_millis(2);

/// Arguments of `tidegate detect`.
#[derive(Args, Clone, Debug)]
pub struct DetectArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// The cameras
    #[arg(required = true, value_name = "CAMERA")]
    cameras: Vec<CameraName>,
    /// The model that looks: face, person, recognize, or one of workers.models_dir [default: the program's first, face]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// A program that speaks the detector protocol and looks instead, with its arguments
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// Longest time from capture to the detection, of which the frame has what the detector leaves: 2ms to 60s
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    latency: Duration,
    /// Least accuracy of the detector on what arrives, as a fraction of that on the originals: 0 to 1
    #[arg(long, value_name = "FRACTION")]
    accuracy: f64,
    /// Most frames a second: 0.01 to 1000 [default: as many as the camera makes]
    #[arg(long, value_name = "RATE")]
    fps: Option<FrameRate>,
    /// Lowest score that is shown, on the detector's own scale
    #[arg(long, value_name = "SCORE", default_value_t = 0.0)]
    min_score: f64,
    /// The labels that are shown, with commas between [default: all]
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    labels: Vec<String>,
    /// Stop after this long
    #[arg(long = "for", value_name = "TIME", value_parser = quantity::duration)]
    run_for: Option<Duration>,
    /// How to print it: a line for each frame, or an object a line
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Shows detections until `stop`.
///
/// # Errors
/// Those of the calls, and of a detector that does not start.
pub(super) async fn run(
    config: &Config,
    args: DetectArgs,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    if args.latency < LATENCY_MIN {
        let text = "the latency is shared by network and detector, and is 2ms at least";
        return Err(ApiError::new(Code::BOUND_INVALID, text));
    }
    let settings = WatchSettings {
        frame_rate: args.fps,
        score_min: args.min_score,
        labels: (!args.labels.is_empty()).then(|| args.labels.iter().cloned().collect()),
        ..WatchSettings::new(Bounds::new(args.latency, args.accuracy)?)
    };
    let (settings, pool) = (Arc::new(settings), SharedPool::new(program(config, &args)?));
    // A camera that there is not, and a program that does not start, are known before anything is shown.
    let client = args.remote.connect(config).await?;
    for camera in &args.cameras {
        client.camera(camera).await?;
    }
    let detector = Arc::new(PoolDetector::new(pool.clone(), args.model.clone()));
    let started = tokio::select! {
        started = detector.start() => started,
        () = stop.cancelled() => return Ok(()),
    };
    let started = started.map_err(|error| {
        ApiError::new(Code::DETECTOR_FAILED, "the detector does not start").caused_by(error.chain())
    })?;
    if let Some(model) = &args.model {
        let known: Vec<String> = started.state.borrow().model_names().map(str::to_owned).collect();
        if !known.contains(model) {
            let why = pool.folder().refused.get(model).map(|error| error_chain(&**error));
            let text = format!("there is no model {model:?}; there are: {}", known.join(" "));
            let error = ApiError::new(Code::CONFIG_INVALID, text);
            return Err(why.into_iter().fold(error, ApiError::caused_by));
        }
    }
    let frames: Arc<dyn Frames> = Arc::new(client);
    let (reports, mut reported) = mpsc::channel(REPORTS_MAX);
    let mut watches = JoinSet::new();
    for camera in &args.cameras {
        let watch = Watch {
            camera: camera.clone(),
            settings: settings.clone(),
            frames: frames.clone(),
            detector: detector.clone(),
            reports: reports.clone(),
        };
        watches.spawn(watch.run(stop.clone()));
    }
    // Reports come from the watches alone.
    drop(reports);
    let over = tokio::time::sleep(args.run_for.unwrap_or(Duration::MAX));
    tokio::pin!(over);
    loop {
        tokio::select! {
            report = reported.recv() => {
                let Some((camera, report)) = report else { break };
                let report = report.leave(tokio::time::Instant::now());
                let model = detector.name();
                let about = About { detector: &model, model: &model, camera: &camera };
                print(&match args.output {
                    Output::Json => format!("{}\n", report.json(about)),
                    Output::Table => format!("{camera}  {}\n", plain(&report.to_string())),
                })?;
            }
            () = &mut over, if !stop.is_cancelled() => stop.cancel(),
        }
    }
    while let Some(ended) = watches.join_next().await {
        ended.map_err(|error| {
            ApiError::new(Code::INTERNAL, "looking at a camera failed").caused_by(error)
        })?;
    }
    Ok(())
}

/// The program that looks: that of the command line, or of the configuration.
fn program(config: &Config, args: &DetectArgs) -> Result<PoolSettings, ApiError> {
    let settings = run::pool_settings(config);
    let Some(text) = &args.command else { return Ok(settings) };
    let words = command::split(text).ok_or_else(|| {
        let text = format!("the command {text:?} names no program or leaves a quote open");
        ApiError::new(Code::CONFIG_INVALID, text)
    })?;
    Ok(PoolSettings { program: Program::Command(words), ..settings })
}
