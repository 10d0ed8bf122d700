//! A site's day in half an hour: whether a node that runs for weeks keeps its memory, its descriptors and its disk.
//!
//! ```text
//!  200 sensors, 5 readers, visitors ─▶ tidegate node ◀─ camera node
//!         an application that comes and goes ─┘      sampled once a second: resident memory, descriptors, bytes on the disk
//! ```
//!
//! The events of a site in a day are in [`DAY`]; everything but the camera's own frames happens 48 times as often. Sessions that
//! would
//! expire an hour after their connection do so after 75 s.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use bench_harness::{Figure, Report, Target, median};
use futures::StreamExt as _;
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tidegate_client::{Delivery, Event as FrameEvent, SubscribeRequest};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter, Version};
use tokio::time;

use crate::{
    Plan,
    crowd::{Crowd, Event, SessionOptions},
    node::{self, CAMERA, Running, Site},
};

/// The events of a day at an ordinary site.
const DAY: Day = Day {
    small: 576_000.0,
    retained: 28_800.0,
    large: 200.0,
    breaks: 1_000.0,
    visits: 500.0,
    views: 240.0,
};
const DAY_LENGTH: Duration = Duration::from_secs(86_400);
const LENGTH: Duration = Duration::from_secs(30 * 60);
const LENGTH_QUICK: Duration = Duration::from_secs(60);
/// Part of it for what a start leaves to do, among it that each log goes around once.
const WARM_UP: u32 = 6;
const WARM_UP_QUICK: u32 = 2;
/// Times an ordinary site's load.
const HASTE: f64 = 48.0;
const SENSORS: usize = 200;
const READERS: usize = 5;
const VISITORS: usize = 8;
const SMALL_BYTES: usize = 100;
const LARGE_BYTES: usize = 1_000_000;
/// Seconds that a visitor's session outlives its visit.
const EXPIRY_S: u32 = 75;
/// Of the camera's log: it goes around once in about a minute.
const CAMERA_LOG_MIB: f64 = 32.0;
const MQTT_LOG_MIB: f64 = 256.0;
/// A node's certificates, configuration and audit log.
const OTHER_MIB: f64 = 4.0;
const SCENE: &str = "scene:street?size=640x360&fps=15&people=3&cars=1&seed=1";
const GROWTH_PERCENT_MAX: f64 = 5.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// Events a day.
struct Day {
    /// Messages of [`SMALL_BYTES`]: one from each sensor in 30 s; half QoS 0, three in ten QoS 1, two in ten QoS 2.
    small: f64,
    /// States that are retained: one from each sensor in ten minutes.
    retained: f64,
    /// Messages of [`LARGE_BYTES`].
    large: f64,
    /// Ends of a sensor's connection, each five times, half of them without a word.
    breaks: f64,
    /// Clients that come, read everything for a while and go.
    visits: f64,
    /// Applications that look at the camera for a while.
    views: f64,
}

/// Runs it, and compares the end with what was after the warm-up.
///
/// # Errors
/// A node does not start, or ends; or clients are not let in.
pub fn soak(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let length = if plan.quick { LENGTH_QUICK } else { LENGTH };
    report.configuration(
        "soak",
        format!(
            "{} s at {HASTE} times a day's rate: {} small messages of {SMALL_BYTES} B, {} retained, {} of {LARGE_BYTES} B, {} broken \
             connections, {} visits, {} views of the camera a day; {SENSORS} sensors, {READERS} readers of everything; camera at \
             15 fps throughout, not faster; class page; camera log {CAMERA_LOG_MIB} MiB, MQTT's {MQTT_LOG_MIB} MiB",
            length.as_secs(), DAY.small, DAY.retained, DAY.large, DAY.breaks, DAY.visits, DAY.views,
        ),
    );
    let mut soak = Soak::new(plan)?;
    let sampled = soak.run(length, length / if plan.quick { WARM_UP_QUICK } else { WARM_UP })?;
    soak.report(&sampled, length, plan.quick, report);
    Ok(())
}

struct Soak {
    site: Site,
    node: Running,
    camera: Running,
    viewer: Viewer,
    crowd: Crowd,
    sensors: Vec<usize>,
    visitors: Vec<usize>,
    random: SmallRng,
    events: Vec<(usize, Event)>,
    /// Visits so far; each has a name of its own.
    visits: u64,
    received: u64,
    refused: u64,
    /// The number due of each event of a day.
    due: [f64; 5],
    paced: Instant,
}

/// File descriptors by what they are.
type Kinds = BTreeMap<String, usize>;

/// A sample, once a second.
#[derive(Default)]
struct Sampled {
    /// Resident bytes of the edge node and of the camera's.
    resident: [Vec<f64>; 2],
    /// Bytes on the disk.
    disk: Vec<f64>,
    /// File descriptors of both when every sensor and reader is there and no one else is, after the warm-up and at the end.
    descriptors: [[Kinds; 2]; 2],
}

impl Soak {
    fn new(plan: &Plan) -> anyhow::Result<Self> {
        let site = Site::new(
            &plan.folder,
            &[CAMERA.to_owned()],
            &format!(
                "durability = \"page\"\n\n[log]\ncamera_bytes = \"{CAMERA_LOG_MIB}MiB\"\nstream_bytes = \"16MiB\"\n\
                 mqtt_bytes = \"{MQTT_LOG_MIB}MiB\"\n\n[frames]\nframe_bytes_max = \"1MB\"\n"
            ),
        )?;
        let mut node = site.start(&[])?;
        node.wait_for(site.mqtt)?;
        let camera = site.start_camera(CAMERA, SCENE)?;
        let mut crowd = Crowd::new(site.mqtt);
        let sensors = (0..SENSORS)
            .map(|number| {
                crowd.join(SessionOptions {
                    version: if number % 2 == 0 { Version::V5 } else { Version::V4 },
                    client_id: format!("sensor-{number}"),
                    session_expiry: if number % 4 < 2 { 0 } else { 86_400 },
                    ..SessionOptions::default()
                })
            })
            .collect();
        for number in 0..READERS {
            crowd.join(SessionOptions {
                client_id: format!("reader-{number}"),
                session_expiry: 86_400,
                ..SessionOptions::default()
            });
        }
        let visitors: Vec<usize> =
            (0..VISITORS).map(|_| crowd.join(SessionOptions::default())).collect();
        for visitor in &visitors {
            crowd.leave(*visitor);
        }
        let viewer = Viewer::start(site.endpoint(), site.path("data/pki"));
        Ok(Self {
            site,
            node,
            camera,
            viewer,
            crowd,
            sensors,
            visitors,
            random: SmallRng::seed_from_u64(1),
            events: Vec::new(),
            visits: 0,
            received: 0,
            refused: 0,
            due: [0.0; 5],
            paced: Instant::now(),
        })
    }

    fn run(&mut self, length: Duration, warm: Duration) -> anyhow::Result<Sampled> {
        let begun = Instant::now();
        let mut sampled = Sampled::default();
        let mut is_warm = false;
        let mut next = begun;
        self.paced = begun;
        while begun.elapsed() < length {
            self.act();
            self.turn(Duration::from_millis(5))?;
            if Instant::now() >= next {
                next += Duration::from_secs(1);
                self.sample(&mut sampled)?;
            }
            if !is_warm && begun.elapsed() >= warm {
                is_warm = true;
                sampled.descriptors[0] = self.gather()?;
                // The samples of the warm-up are not compared.
                for samples in &mut sampled.resident {
                    samples.clear();
                }
            }
        }
        sampled.descriptors[1] = self.gather()?;
        ensure!(self.viewer.views() > 0, "the camera had no viewer");
        Ok(sampled)
    }

    /// Everything that is due by now.
    fn act(&mut self) {
        let per_day = [DAY.small, DAY.retained, DAY.large, DAY.breaks, DAY.visits];
        let passed = self.paced.elapsed().as_secs_f64();
        self.paced = Instant::now();
        let mut counts = [0; 5];
        for ((due, per_day), count) in self.due.iter_mut().zip(per_day).zip(&mut counts) {
            *due += passed * HASTE * per_day / DAY_LENGTH.as_secs_f64();
            *count = due.floor() as usize;
            *due -= due.floor();
        }
        let [small, retained, large, breaks, visits] = counts;
        for (count, topic, bytes) in [
            (small, "value", SMALL_BYTES),
            (retained, "state", SMALL_BYTES),
            (large, "picture", LARGE_BYTES),
        ] {
            for _ in 0..count {
                let number = self.random.random_range(0..SENSORS);
                let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]
                    [[0, 0, 0, 0, 0, 1, 1, 1, 2, 2][self.random.random_range(0..10)]];
                let session = self.crowd.session(self.sensors[number]);
                if session.room() > 0 {
                    let topic = format!("site/{number}/{topic}");
                    session.publish(0, &topic, &vec![0x5a; bytes], qos, topic.ends_with("state"));
                }
            }
        }
        for _ in 0..breaks {
            let sensor = self.sensors[self.random.random_range(0..SENSORS)];
            if self.random.random() {
                self.crowd.leave(sensor);
            } else {
                self.crowd.abort(sensor);
            }
            self.crowd.come(sensor);
        }
        for _ in 0..visits {
            let visitor = self.visitors[self.visits as usize % VISITORS];
            self.crowd.leave(visitor);
            self.visits += 1;
            self.crowd.replace(
                visitor,
                SessionOptions {
                    client_id: format!("visitor-{}", self.visits),
                    session_expiry: EXPIRY_S,
                    ..SessionOptions::default()
                },
            );
        }
    }

    fn turn(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.crowd.turn(timeout, &mut events)?;
        for (member, event) in events.drain(..) {
            match event {
                Event::Connected { session_present, .. } => {
                    let reads = !self.sensors.contains(&member);
                    if reads && !session_present {
                        self.crowd.session(member).subscribe(vec![filter("site/#")])?;
                    }
                }
                Event::Message(_) => self.received += 1,
                Event::Refused(_) => self.refused += 1,
                Event::Subscribed(_) | Event::Acknowledged { .. } => {}
            }
        }
        self.events = events;
        Ok(())
    }

    fn sample(&mut self, sampled: &mut Sampled) -> anyhow::Result<()> {
        self.node.check()?;
        self.camera.check()?;
        for (resident, process) in sampled.resident.iter_mut().zip([&self.node, &self.camera]) {
            resident.push(process.usage()?.resident_bytes as f64);
        }
        sampled.disk.push(self.site.disk_bytes() as f64);
        Ok(())
    }

    /// File descriptors of both nodes once sensors and readers are there, and no one else is.
    fn gather(&mut self) -> anyhow::Result<[Kinds; 2]> {
        self.viewer.pause(true);
        for visitor in self.visitors.clone() {
            self.crowd.leave(visitor);
        }
        let begun = Instant::now();
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_secs(3) {
            self.turn(Duration::from_millis(20))?;
            if !self.crowd.is_complete() || self.viewer.is_looking() {
                quiet = Instant::now();
            }
            if begun.elapsed() > PATIENCE {
                bail!("clients do not come back");
            }
        }
        let counted = [self.node.descriptors()?, self.camera.descriptors()?];
        self.viewer.pause(false);
        self.paced = Instant::now();
        Ok(counted)
    }

    fn report(&self, sampled: &Sampled, length: Duration, quick: bool, report: &mut Report) {
        let minutes = length.as_secs() / 60;
        let name =
            |what: &str| format!("soak, {minutes} min at {HASTE} times a day's load, {what}");
        for ((who, samples), key) in
            ["edge node", "camera node"].into_iter().zip(&sampled.resident).zip(["edge", "camera"])
        {
            // A tenth of what was sampled: minutes of a whole run, in which no peak of a moment counts.
            let part = (samples.len() / 10).max(1);
            let (before, after) =
                (median(&samples[..part]), median(&samples[samples.len() - part..]));
            let figure = Figure::new(name(&format!("{who}, growth of resident memory")), "%")
                .ours([100.0 * (after - before) / before])
                .note(format!("from {:.1} to {:.1} MB", before / 1e6, after / 1e6));
            // Within a minute queues and journals still grow to what they are in the long run.
            let target = Target::AtMost(GROWTH_PERCENT_MAX);
            report.figure(if quick { figure } else { figure.target(target) });
            report.samples(format!("soak, {key}, resident bytes"), samples.iter().copied());
        }
        let [before, after] = &sampled.descriptors;
        for (at, who) in ["edge node", "camera node"].into_iter().enumerate() {
            let (before, after) = (&before[at], &after[at]);
            // Segments come and go with what a log holds, as many as its bound allows.
            let segments = self.site.path("data/log");
            let is_segment = |kind: &str| Path::new(kind).starts_with(&segments);
            let count = |kinds: &Kinds, segments: bool| -> usize {
                let those = kinds.iter().filter(|(kind, _)| is_segment(kind) == segments);
                those.map(|(_, count)| count).sum()
            };
            let added = count(after, false) as f64 - count(before, false) as f64;
            let figure =
                Figure::new(name(&format!("{who}, descriptors added, logs' own aside")), "");
            let figure = figure.ours([added]).target(Target::AtMost(0.0));
            let of = |kinds: &Kinds, kind: &String| kinds.get(kind).copied().unwrap_or(0);
            let changed: Vec<String> = before
                .keys()
                .chain(after.keys().filter(|kind| !before.contains_key(*kind)))
                .filter(|kind| of(before, kind) != of(after, kind) && !is_segment(kind))
                .map(|kind| format!("{kind} {} to {}", of(before, kind), of(after, kind)))
                .collect();
            let total = format!("{} after the warm-up", count(before, false));
            report.figure(figure.note(match changed.is_empty() {
                true => total,
                false => format!("{total}; {}", changed.join(", ")),
            }));
            let figure = Figure::new(name(&format!("{who}, descriptors of logs' segments")), "");
            let figure = figure.ours([count(after, true) as f64]);
            report.figure(figure.note(format!("{} after the warm-up", count(before, true))));
        }
        let most = sampled.disk.iter().copied().fold(0.0, f64::max);
        let bound = CAMERA_LOG_MIB + MQTT_LOG_MIB + OTHER_MIB;
        let figure = Figure::new(name("most on the disk"), "MiB").ours([most / f64::from(1 << 20)]);
        report.figure(figure.target(Target::AtMost(bound)).note(format!(
            "{} messages received by clients, {} visits, {} views of the camera, {} clients turned away",
            self.received,
            self.visits,
            self.viewer.views(),
            self.refused
        )));
        report.samples("soak, bytes on the disk", sampled.disk.iter().copied());
    }
}

/// An application that comes, looks at the camera and goes, on a thread of its own.
struct Viewer {
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    is_paused: AtomicBool,
    is_looking: AtomicBool,
    views: AtomicU64,
}

impl Viewer {
    fn start(endpoint: String, pki: PathBuf) -> Self {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => runtime.block_on(look(&endpoint, &pki, &shared)),
                    Err(error) => {
                        eprintln!("bench-durability: the camera has no viewer: {error}");
                    }
                }
            }
        });
        Self { thread: Some(thread), shared }
    }

    fn pause(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
    }

    fn is_looking(&self) -> bool {
        self.shared.is_looking.load(Ordering::Relaxed)
    }

    fn views(&self) -> u64 {
        self.shared.views.load(Ordering::Relaxed)
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("bench-durability: the viewer of the camera has panicked");
        }
    }
}

async fn look(endpoint: &str, pki: &Path, shared: &Shared) {
    let every = DAY_LENGTH.div_f64(DAY.views * HASTE);
    while !shared.ends.load(Ordering::Relaxed) {
        let begun = time::Instant::now();
        if !shared.is_paused.load(Ordering::Relaxed) {
            shared.is_looking.store(true, Ordering::Relaxed);
            match time::timeout(every.mul_f64(0.8), view(endpoint, pki, shared)).await {
                // A camera that is not there yet is looked at later.
                Ok(Err(error)) if shared.views.load(Ordering::Relaxed) > 0 => {
                    eprintln!("bench-durability: a view of the camera failed: {error:#}");
                }
                _ => {}
            }
            shared.is_looking.store(false, Ordering::Relaxed);
        }
        let step = Duration::from_millis(100);
        while begun.elapsed() < every && !shared.ends.load(Ordering::Relaxed) {
            time::sleep(step).await;
        }
    }
}

/// Looks until it is cancelled, every other time with every frame.
async fn view(endpoint: &str, pki: &Path, shared: &Shared) -> anyhow::Result<()> {
    let client = node::connect(endpoint, pki).await?;
    let mut request = SubscribeRequest::new(CAMERA, Duration::from_secs(1), 0.5)?;
    if shared.views.load(Ordering::Relaxed) % 2 == 1 {
        request.demand.delivery = Delivery::Every;
    }
    let mut subscription = client.subscribe(request).await?;
    let mut is_counted = false;
    loop {
        let event = subscription.next().await.context("the subscription ended")??;
        if matches!(event, FrameEvent::Frame(_)) && !is_counted {
            is_counted = true;
            shared.views.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn filter(filter: &str) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}
