//! A camera and a detector that are made here, in virtual time.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_api::{CameraInfo, Missed, MissedWhy, Stages};
use tidegate_message::Rect;
use tidegate_ports::Times;
use tidegate_ports::memory::{self, Feed as Events};
use tidegate_workers::WorkerError;
use tokio::sync::{Semaphore, watch};

use super::*;

const MS: Duration = Duration::from_millis(1);
const SOURCE: FrameSize = FrameSize { width: 1920, height: 1080 };

/// Cameras in memory that have each frame untouched, and may fail.
#[derive(Default)]
struct FakeFrames {
    cameras: memory::Cameras,
    panics: AtomicBool,
}

impl FakeFrames {
    /// The latencies that were asked for instead of the first.
    fn updates(&self) -> Vec<Duration> {
        self.cameras.changes().into_iter().filter_map(|changes| changes.latency).collect()
    }
}

#[async_trait]
impl Frames for FakeFrames {
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError> {
        self.cameras.cameras().await
    }

    async fn camera(&self, name: &CameraName) -> Result<CameraInfo, ApiError> {
        self.cameras.camera(name).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> Result<Box<dyn Subscription>, ApiError> {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "a mistake of ours");
        self.cameras.subscribe(request).await
    }

    async fn fetch_original(&self, camera: &CameraName, at: Instant) -> Result<Original, ApiError> {
        time::sleep(30 * MS).await;
        let jpeg = Bytes::from_static(b"untouched");
        self.cameras.keep(camera.clone(), Original { captured_at: at, jpeg });
        self.cameras.fetch_original(camera, at).await
    }
}

/// One program that looks at one frame at a time; of those that wait, the newest is next.
#[derive(Debug)]
struct FakeDetector {
    takes: Mutex<Duration>,
    free: Semaphore,
    asked: AtomicU64,
    failures: Mutex<VecDeque<DetectError>>,
    state: watch::Sender<PoolState>,
    requests: Mutex<Vec<(Option<String>, FrameSize)>>,
}

#[async_trait]
impl Looker for FakeDetector {
    async fn look(&self, request: Request) -> Result<Outcome, DetectError> {
        if let Some(failure) = self.failures.lock().unwrap().pop_front() {
            return Err(failure);
        }
        assert_eq!(request.stream, Some(STREAM));
        let scene = request.scene.expect("a frame has a scene");
        self.requests.lock().unwrap().push((request.model, scene.source));
        let turn = self.asked.fetch_add(1, Ordering::Relaxed);
        let _free = self.free.acquire().await.unwrap();
        if self.asked.load(Ordering::Relaxed) > turn + 1 {
            return Err(DetectError::Superseded);
        }
        let infer = *self.takes.lock().unwrap();
        time::sleep(infer).await;
        let found = |score, label: &str| tidegate_message::Detection {
            rect: Rect::new(10.0, 20.0, 30.0, 60.0).unwrap(),
            score,
            label: label.into(),
        };
        Ok(Outcome {
            boxes: vec![found(0.9, "person"), found(0.2, "person"), found(0.9, "cat")],
            classes: Vec::new(),
            poses: Vec::new(),
            size: None,
            times: Times { infer, ..Times::default() },
        })
    }
}

#[async_trait]
impl Detector for Arc<FakeDetector> {
    async fn start(&self) -> Result<Started, Arc<WorkerError>> {
        let (client, state) = (self.clone(), self.state.subscribe());
        Ok(Started { client, state, model: Some("person".to_owned()) })
    }

    fn name(&self) -> String {
        "person".to_owned()
    }
}

struct World {
    frames: Arc<FakeFrames>,
    detector: Arc<FakeDetector>,
    reports: mpsc::Receiver<(CameraName, Pending)>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl World {
    /// A watch with a bound of 200 ms, of a camera that has that many subscriptions.
    fn new(
        takes: Duration,
        subscriptions: usize,
        change: impl FnOnce(&mut WatchSettings),
    ) -> (Self, Vec<Events>) {
        let frames = Arc::new(FakeFrames::default());
        let mut ends = Vec::new();
        for _ in 0..subscriptions {
            ends.push(frames.cameras.feed("cam1".parse().unwrap()));
        }
        let detector = Arc::new(FakeDetector {
            takes: Mutex::new(takes),
            free: Semaphore::new(1),
            asked: AtomicU64::new(0),
            failures: Mutex::default(),
            state: watch::channel(PoolState::default()).0,
            requests: Mutex::default(),
        });
        let mut settings = WatchSettings::new(Bounds::new(200 * MS, 0.9).unwrap());
        change(&mut settings);
        let (sender, reports) = mpsc::channel(64);
        let watch = Watch {
            camera: "cam1".parse().unwrap(),
            settings: Arc::new(settings),
            frames: frames.clone(),
            detector: Arc::new(detector.clone()),
            reports: sender,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(watch.run(stop.clone()));
        (Self { frames, detector, reports, stop, task }, ends)
    }

    async fn report(&mut self) -> Report {
        let report = time::timeout(Duration::from_secs(60), self.reports.recv()).await;
        let (camera, report) = report.expect("a report comes").expect("the watch runs");
        assert_eq!(camera.as_str(), "cam1");
        report.leave(time::Instant::now())
    }

    async fn detection(&mut self) -> Detection {
        match self.report().await {
            Report::Detection(found) => *found,
            other => panic!("{other:?}"),
        }
    }

    /// The reports of that time.
    async fn reports_for(&mut self, span: Duration) -> Vec<Report> {
        let mut reports = Vec::new();
        let all = async {
            while let Some((_, report)) = self.reports.recv().await {
                reports.push(report.leave(time::Instant::now()));
            }
        };
        let _ = time::timeout(span, all).await;
        reports
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn frame(at: i64, network: Duration) -> Event {
    Event::Frame(Frame {
        captured_at: Instant::from_millis(at),
        epoch: 1,
        size: FrameSize { width: 960, height: 540 },
        source_size: Some(SOURCE),
        original_bytes: 400_000,
        knobs: "1/2 q60".into(),
        accuracy: 0.97,
        accuracy_kept: true,
        replayed: false,
        stages: Stages { network, ..Stages::default() },
        handed_at: Instant::from_millis(at),
        jpeg: Bytes::from_static(b"picture"),
    })
}

/// Sends frames at that pace; as many as that.
async fn play(events: &Events, from: i64, pace: Duration, count: i64) {
    for step in 0..count {
        let at = from + step * pace.as_millis() as i64;
        events.send(Ok(frame(at, 40 * MS))).await.expect("the watch reads");
        time::sleep(pace).await;
    }
}

fn detections(reports: &[Report]) -> Vec<&Detection> {
    let mut found = Vec::new();
    for report in reports {
        if let Report::Detection(detection) = report {
            found.push(&**detection);
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn the_network_is_asked_for_what_the_detector_leaves() {
    let (mut world, events) = World::new(60 * MS, 1, |_| {});
    let player = {
        let events = events[0].clone();
        tokio::spawn(async move { play(&events, 0, 100 * MS, 30).await })
    };
    let reports = world.reports_for(Duration::from_secs(4)).await;
    player.await.unwrap();
    let request = world.frames.cameras.requests()[0].clone();
    assert_eq!(request.demand.bounds, Bounds::new(100 * MS, 0.9).unwrap(), "half at first");
    assert_eq!(request.detector.as_deref(), Some("person"), "its own table");
    assert_eq!(world.frames.updates(), [140 * MS]);
    let found = detections(&reports);
    assert_eq!((found.len(), reports.len()), (30, 30), "{reports:?}");
    for found in &found {
        assert_eq!((found.total(), found.bound, found.kept), (100 * MS, 200 * MS, true));
        assert_eq!((found.source, found.skipped), (SOURCE, 0));
    }
    // A slow detector leaves nothing: the network keeps a tenth, and it is said once.
    *world.detector.takes.lock().unwrap() = 190 * MS;
    let player = {
        let events = events[0].clone();
        tokio::spawn(async move { play(&events, 10_000, 250 * MS, 40).await })
    };
    let reports = world.reports_for(Duration::from_secs(15)).await;
    player.await.unwrap();
    assert_eq!(world.frames.updates().last(), Some(&(20 * MS)));
    let infeasible: Vec<_> =
        reports.iter().filter(|report| matches!(report, Report::Infeasible(_))).collect();
    assert_eq!(infeasible.len(), 1, "{infeasible:?}");
    assert!(detections(&reports).iter().all(|found| !found.kept), "40 + 190 ms are over 200 ms");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_bound_for_which_every_frame_is_late_is_given_up() {
    let (mut world, events) = World::new(190 * MS, 1, |_| {});
    let player = {
        let events = events[0].clone();
        tokio::spawn(async move { play(&events, 0, 250 * MS, 20).await })
    };
    world.reports_for(Duration::from_secs(6)).await;
    player.await.unwrap();
    assert_eq!(world.frames.updates(), [20 * MS]);
    // The detector recovers; but no frame comes within 20 ms, by which that could be seen.
    *world.detector.takes.lock().unwrap() = 60 * MS;
    for second in 6..18 {
        let at = Instant::from_millis(1000 * second);
        let missed = Missed { from: at, to: at, count: 4, why: MissedWhy::Late };
        events[0].send(Ok(Event::Missed(missed))).await.expect("the watch reads");
        time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.frames.updates(), [20 * MS, 100 * MS], "as at the beginning");
    let player = {
        let events = events[0].clone();
        tokio::spawn(async move { play(&events, 18_000, 100 * MS, 30).await })
    };
    let reports = world.reports_for(Duration::from_secs(4)).await;
    player.await.unwrap();
    assert_eq!(world.frames.updates(), [20 * MS, 100 * MS, 140 * MS]);
    assert!(reports.contains(&Report::Feasible(Party::Detector)), "{reports:?}");
    assert!(detections(&reports).iter().all(|found| found.kept), "{reports:?}");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_newest_frame_is_looked_at_and_the_others_are_counted() {
    let (mut world, events) = World::new(60 * MS, 1, |_| {});
    let player = {
        let events = events[0].clone();
        tokio::spawn(async move { play(&events, 0, 10 * MS, 300).await })
    };
    let reports = world.reports_for(Duration::from_secs(4)).await;
    player.await.unwrap();
    let found = detections(&reports);
    assert!((49..=52).contains(&found.len()), "the detector is never idle: {}", found.len());
    let mut last = Instant::MIN;
    for found in &found {
        assert!(found.captured_at > last, "in the order of capture");
        last = found.captured_at;
        // The newest waited for no more than the pace of the camera.
        assert!(found.wait <= 11 * MS, "{:?}", found.wait);
        assert!(found.kept);
    }
    let counted: u64 = found.iter().map(|found| 1 + found.skipped).sum();
    assert!((295..=300).contains(&counted), "{counted} of 300");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_detection_that_waits_to_be_published_says_so() {
    let (mut world, events) = World::new(60 * MS, 1, |_| {});
    play(&events[0], 0, 100 * MS, 1).await;
    time::sleep(110 * MS).await;
    let found = world.detection().await;
    // 40 ms of network, 60 ms of the detector, and 150 ms that no one took the report.
    assert_eq!((found.wait, found.total(), found.kept), (150 * MS, 250 * MS, false));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_camera_over_which_we_panic_is_reported_and_looked_at_again() {
    let (mut world, events) = World::new(10 * MS, 1, |_| {});
    world.frames.panics.store(true, Ordering::Relaxed);
    let report = world.report().await;
    assert!(matches!(report, Report::DetectorFailed { .. }), "{report:?}");
    play(&events[0], 7, 100 * MS, 1).await;
    assert_eq!(world.detection().await.captured_at, Instant::from_millis(7));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn boxes_are_filtered_and_originals_are_fetched_no_more_often_than_asked() {
    let (mut world, events) = World::new(10 * MS, 1, |settings| {
        settings.score_min = 0.5;
        settings.labels = Some(["person".to_owned()].into());
        settings.originals_every = Some(Duration::from_secs(1));
    });
    let player = {
        let events = events[0].clone();
        tokio::spawn(async move { play(&events, 0, 100 * MS, 25).await })
    };
    let reports = world.reports_for(Duration::from_secs(4)).await;
    player.await.unwrap();
    for found in detections(&reports) {
        let [one] = &found.boxes[..] else { panic!("{:?}", found.boxes) };
        assert_eq!((&*one.label, one.score), ("person", 0.9));
    }
    let fetched: Vec<Instant> =
        world.frames.cameras.fetched().into_iter().map(|(_, at)| at).collect();
    assert_eq!(fetched, [0, 1000, 2000].map(Instant::from_millis));
    let originals: Vec<_> = reports
        .iter()
        .filter_map(|report| match report {
            Report::Original { captured_at, jpeg } => Some((*captured_at, &jpeg[..])),
            _ => None,
        })
        .collect();
    assert_eq!(originals, fetched.iter().map(|at| (*at, &b"untouched"[..])).collect::<Vec<_>>());
    let asked = world.detector.requests.lock().unwrap()[0].clone();
    assert_eq!(asked, (Some("person".to_owned()), SOURCE));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn reasons_for_no_detection_are_said_once_and_by_their_type() {
    let (mut world, mut events) = World::new(10 * MS, 2, |_| {});
    let first = events.remove(0);
    let send = async |event: Event| first.send(Ok(event)).await.expect("the watch reads");

    send(Event::CameraOffline("its link is down".into())).await;
    assert_eq!(world.report().await, Report::CameraOffline("its link is down".into()));
    send(Event::CameraOffline("its link is down".into())).await;
    send(Event::CameraOnline).await;
    assert_eq!(world.report().await, Report::CameraOnline, "said once");

    let why = MissedWhy::Late;
    let at = Instant::from_millis(1);
    let missed = Missed { from: at, to: at, count: 3, why };
    send(Event::Missed(missed.clone())).await;
    assert_eq!(world.report().await, Report::Missed(missed));

    let sentence: Arc<str> = "at this capacity 300 ms".into();
    let infeasible = NetworkInfeasible {
        latency_at_accuracy: None,
        accuracy_at_latency: None,
        frames_per_second: None,
        sentence: sentence.clone(),
    };
    send(Event::Infeasible(infeasible)).await;
    let expected = Infeasible::Network { bound: 100 * MS, sentence };
    assert_eq!(world.report().await, Report::Infeasible(expected));
    send(Event::Feasible).await;
    assert_eq!(world.report().await, Report::Feasible(Party::Network));

    // A full pool: frames until the time that it names are not handed to it.
    let busy = || DetectError::Busy { waiting: 256, retry_after: 500 * MS };
    world.detector.failures.lock().unwrap().extend([busy(), busy()]);
    play(&first, 1000, 100 * MS, 4).await;
    assert_eq!(world.report().await, Report::Busy { waiting: 256, retry_after: 500 * MS });
    time::sleep(200 * MS).await;
    send(frame(2000, MS)).await;
    time::sleep(600 * MS).await;
    send(frame(3000, MS)).await;
    let found = world.detection().await;
    assert_eq!((found.captured_at, found.skipped), (Instant::from_millis(3000), 5));

    let restarted = |state: &mut PoolState| state.restarts = 1;
    world.detector.state.send_modify(restarted);
    assert_eq!(world.report().await, Report::WorkerRestarted { restarts: 1, error: None });

    let refused = DetectError::Refused { message: "it does not decode".to_owned() };
    world.detector.failures.lock().unwrap().push_back(refused);
    send(frame(4000, MS)).await;
    let captured_at = Instant::from_millis(4000);
    let expected = Report::Refused { captured_at, error: "it does not decode".into() };
    assert_eq!(world.report().await, expected);

    let unknown =
        || DetectError::UnknownModel { name: "street".into(), known: vec!["face".into()] };
    world.detector.failures.lock().unwrap().extend([unknown(), unknown()]);
    for at in [5000, 7000] {
        send(frame(at, MS)).await;
        time::sleep(2 * FAILED_AFTER).await;
    }
    let Report::DetectorFailed { error, .. } = world.report().await else { panic!("it fails") };
    assert!(error.contains("street") && error.contains("face"), "{error}");
    send(frame(9000, MS)).await;
    assert_eq!(world.detection().await.captured_at, Instant::from_millis(9000), "said once");

    // The subscription ends: the camera is asked for again, and again.
    drop(first);
    assert_eq!(world.report().await, Report::CameraOffline("the subscription ended".into()));
    let second = events.remove(0);
    second.send(Ok(frame(9500, MS))).await.expect("the watch reads");
    assert_eq!(world.report().await, Report::CameraOnline);
    assert_eq!(world.detection().await.captured_at, Instant::from_millis(9500));
    drop(second);
    assert!(matches!(world.report().await, Report::CameraOffline(_)));
    let quiet = world.reports_for(Duration::from_secs(60)).await;
    assert_eq!(quiet, [], "a camera that is away is not reported again and again");
    world.end().await;
}
