//! Bounds that a path does not carry, asked for by the user's own program: how soon that is told, and whether the bounds that are
//! offered instead are kept once they are asked for.
//!
//! ```text
//!  tidegate subscribe, impossible bounds ──▶ infeasible: offers, status 6
//!  tidegate subscribe, each offer in turn ──▶ verdicts: part of the frames that kept it
//! ```
//!
//! Always true: each camera has a subscriber of its own, all at the same time; a frame of which the program says nothing is lost.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target, percentile};
use serde_json::Value;
use tidegate_sim::medium::Scenario;
use tidegate_sys::clock::{monotonic_nanos, realtime_nanos};

use crate::{
    Plan,
    clip::Clip,
    live::runs,
    site::{self, Site, SiteConfig},
    watch::{block_on, ready},
};

/// Frames a second.
const FPS: u32 = 10;
/// The street as `scene:street` draws it.
const SCENE: &str = "scene:street?seconds=5";
/// The same in four times as many pixels: 1.5 MB a frame and more.
const LARGE: &str = "scene:street?seconds=2&size=3840x2160";
/// How long an application looks at what it is offered.
const ASKS: Duration = Duration::from_secs(6);
/// Time for which a subscription has just begun; its frames do not count.
const BEGINS: Duration = Duration::from_secs(2);
/// Time within which a subscription must hear that its bounds cannot be kept.
const TOLD_MAX_MS: f64 = 1000.0;
/// Part of the frames that must keep what was offered, in per cent.
const KEPT_MIN: f64 = 95.0;
/// Status of a subscription that ended with bounds that cannot be kept.
const INFEASIBLE: i32 = 6;

/// A path, and the bounds that are asked for on it.
struct Case {
    name: &'static str,
    megabits: u32,
    delay_ms: u32,
    cameras: usize,
    large: bool,
    latency_ms: f64,
    accuracy: f64,
}

const CASES: [Case; 8] = [
    Case {
        name: "12 Mbit/s, 1000 ms",
        megabits: 12,
        delay_ms: 5,
        cameras: 1,
        large: false,
        latency_ms: 1000.0,
        accuracy: 0.99,
    },
    Case {
        name: "12 Mbit/s, 2 ms",
        megabits: 12,
        delay_ms: 5,
        cameras: 1,
        large: false,
        latency_ms: 2.0,
        accuracy: 0.99,
    },
    Case {
        name: "12 Mbit/s, 5 ms",
        megabits: 12,
        delay_ms: 5,
        cameras: 1,
        large: false,
        latency_ms: 5.0,
        accuracy: 0.99,
    },
    Case {
        name: "two cameras, Wi-Fi of 60 Mbit/s, 150 ms",
        megabits: 60,
        delay_ms: 1,
        cameras: 2,
        large: false,
        latency_ms: 150.0,
        accuracy: 0.99,
    },
    Case {
        name: "three cameras, Wi-Fi of 60 Mbit/s, 150 ms",
        megabits: 60,
        delay_ms: 1,
        cameras: 3,
        large: false,
        latency_ms: 150.0,
        accuracy: 0.99,
    },
    Case {
        name: "12 Mbit/s, 100 ms away, 250 ms",
        megabits: 12,
        delay_ms: 100,
        cameras: 1,
        large: false,
        latency_ms: 250.0,
        accuracy: 0.99,
    },
    Case {
        name: "40 Mbit/s, 100 ms away, 200 ms",
        megabits: 40,
        delay_ms: 100,
        cameras: 1,
        large: false,
        latency_ms: 200.0,
        accuracy: 0.99,
    },
    Case {
        name: "4K frames, 12 Mbit/s, 500 ms",
        megabits: 12,
        delay_ms: 5,
        cameras: 1,
        large: true,
        latency_ms: 500.0,
        accuracy: 0.99,
    },
];

/// The bounds of one subscription, as arguments of the program.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    latency_ms: f64,
    accuracy: f64,
    frames: Option<f64>,
}

/// One of the bounds that may give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gives {
    Latency,
    Accuracy,
    Frames,
}

impl Gives {
    const ALL: [Self; 3] = [Self::Latency, Self::Accuracy, Self::Frames];

    fn word(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Accuracy => "accuracy",
            Self::Frames => "frame rate",
        }
    }
}

/// Bounds that are offered instead.
#[derive(Clone, Debug, PartialEq)]
struct Offer {
    latency_ms: Option<f64>,
    accuracy: Option<f64>,
    frames: Option<f64>,
    sentence: String,
}

impl Offer {
    fn read(event: &Value) -> Self {
        Self {
            latency_ms: event["latency_at_accuracy_ms"].as_f64(),
            accuracy: event["accuracy_at_latency"].as_f64(),
            frames: event["fps"].as_f64(),
            sentence: event["text"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// The bounds of who takes it up that way.
    fn taken(&self, gives: Gives, wanted: Wanted) -> Option<Wanted> {
        Some(match gives {
            // As the sentence says it.
            Gives::Latency if self.frames.is_some() => return None,
            Gives::Latency => Wanted { latency_ms: self.latency_ms?.ceil(), ..wanted },
            Gives::Accuracy => Wanted { accuracy: self.accuracy?, ..wanted },
            // Where there is a latency, too, they belong together.
            Gives::Frames => Wanted {
                frames: Some(self.frames?),
                latency_ms: self.latency_ms.map_or(wanted.latency_ms, f64::ceil),
                ..wanted
            },
        })
    }
}

/// The output of one `tidegate subscribe`.
#[derive(Debug, Default)]
struct Seen {
    status: Option<i32>,
    /// Time from its start to the first event that says anything of frames or bounds, in milliseconds.
    first_ms: f64,
    /// The same to the first word that bounds cannot be kept.
    told_ms: Option<f64>,
    /// The offer that stood at its end.
    standing: Option<Offer>,
    /// Capture time in nanoseconds of each frame that there is a verdict on, and whether it kept the bounds.
    verdicts: Vec<(i64, bool)>,
    /// Age of each frame as it was read here, less the age that is told of it, in milliseconds.
    untold_ms: Vec<f64>,
    offline: usize,
}

impl Seen {
    /// The part of the frames that kept the bounds, in per cent, of all that a camera of that rate captured.
    fn kept(&self, frames_per_second: f64) -> f64 {
        let Some((first, _)) = self.verdicts.first() else { return 0.0 };
        let begin = first + BEGINS.as_nanos() as i64;
        let counted = || self.verdicts.iter().filter(|(at, _)| *at >= begin);
        let end = counted().map(|(at, _)| *at).max().unwrap_or(begin);
        let captured = ((end - begin) as f64 / 1e9 * frames_per_second).floor();
        let kept = counted().filter(|(_, kept)| *kept).count() as f64;
        100.0 * kept / captured.max(counted().count() as f64).max(1.0)
    }
}

/// Tells within a second, ends with status 6, and offers bounds that 95 of 100 frames keep once they are asked for.
///
/// # Errors
/// There is no lab to be had here, or a run failed.
pub fn infeasible(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let program = site::program()?;
    let folder = tempfile::tempdir().context("making a folder for the clips")?;
    let film =
        |name: &str, scene: &str| block_on(Clip::film(&folder.path().join(name), scene, FPS))?;
    let (street, large) = (film("street", SCENE)?, film("street-4k", LARGE)?);
    report.configuration("infeasible, mean KB of a frame", format!("{:.0}", street.kilobytes()));
    report.configuration("infeasible, mean KB of a 4K frame", format!("{:.0}", large.kilobytes()));
    for case in &CASES {
        let clip = if case.large { &large } else { &street };
        measure(plan, &program, clip, case, report)
            .with_context(|| format!("measuring {}", case.name))?;
    }
    Ok(())
}

fn measure(
    plan: &Plan,
    program: &Path,
    clip: &Clip,
    case: &Case,
    report: &mut Report,
) -> anyhow::Result<()> {
    let takes = BEGINS + Duration::from_secs(if plan.quick { 8 } else { 20 });
    let scenario = scenario(case)?;
    let config = SiteConfig {
        program,
        sources: vec![clip.source(true); case.cameras],
        tables: None,
        camera_log: "256MiB",
        frame: "8MB",
        app_at_edge: false,
    };
    let wanted = Wanted { latency_ms: case.latency_ms, accuracy: case.accuracy, frames: None };
    let (mut told, mut status, mut asked, mut offline) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut kept = [Vec::new(), Vec::new(), Vec::new()];
    let (mut untold, mut notes) = (Vec::new(), Vec::new());
    for _ in 0..runs(plan) {
        let site = Site::start(&config, Some(&scenario))?;
        site.within_app(|| {
            block_on(ready(&site.endpoint(), &site.pki(), case.cameras))??;
            Ok(())
        })?;
        let seen = subscribe(&site, &vec![wanted; case.cameras], ASKS)?;
        told.extend(seen.iter().map(|seen| seen.told_ms.unwrap_or(f64::NAN)));
        // The bounds of one of several cameras may be kept again when its subscription ends.
        let fits = |seen: &&Seen| {
            let cannot = seen.standing.is_some();
            seen.status == Some(if cannot { INFEASIBLE } else { 0 })
        };
        status.push((seen.len() - seen.iter().filter(fits).count()) as f64);
        asked.extend(seen.iter().map(|seen| seen.kept(f64::from(FPS))));
        offline.push(seen.iter().map(|seen| seen.offline).sum::<usize>() as f64);
        let offers: Vec<_> = seen.iter().map(|seen| seen.standing.clone()).collect();
        for offer in offers.iter().flatten() {
            notes.push(offer.sentence.clone());
        }
        for (gives, kept) in Gives::ALL.into_iter().zip(&mut kept) {
            let taken: Vec<_> = offers
                .iter()
                .map(|offer| offer.as_ref().and_then(|offer| offer.taken(gives, wanted)))
                .collect();
            if taken.iter().all(Option::is_none) {
                continue;
            }
            // A camera without such an offer keeps its bounds as they are: it uses the medium, too.
            let demands: Vec<_> = taken.iter().map(|taken| taken.unwrap_or(wanted)).collect();
            let seen = subscribe(&site, &demands, takes)?;
            let mut part = f64::INFINITY;
            for ((seen, demand), _) in
                seen.iter().zip(&demands).zip(&taken).filter(|(_, taken)| taken.is_some())
            {
                let rate = demand.frames.unwrap_or(f64::from(FPS)).min(f64::from(FPS));
                let each = seen.kept(rate);
                part = part.min(each);
                if each < KEPT_MIN {
                    let then = seen.standing.as_ref().map(|offer| offer.sentence.as_str());
                    notes.push(format!("{demand:?} taken: {each:.1} % kept; then {then:?}"));
                }
                untold.extend_from_slice(&seen.untold_ms);
            }
            kept.push(part);
        }
        site.finish()?;
    }
    let name = |what: &str| format!("infeasible, {}, {what}", case.name);
    let at_once = Figure::new(name("told after"), "ms").ours(told);
    report.figure(at_once.target(Target::AtMost(TOLD_MAX_MS)).note(notes.join("; ")));
    let status = Figure::new(name("exit statuses that do not say how it ended"), "").ours(status);
    report.figure(status.target(Target::Exactly(0.0)));
    report.figure(Figure::new(name("kept as asked"), "%").ours(asked));
    let offline = Figure::new(name("said to be offline"), "").ours(offline);
    report.figure(offline.target(Target::Exactly(0.0)));
    for (gives, kept) in Gives::ALL.into_iter().zip(kept) {
        if !kept.is_empty() {
            let of = format!("kept of the {} offered", gives.word());
            report.figure(Figure::new(name(&of), "%").ours(kept).target(Target::AtLeast(KEPT_MIN)));
        }
    }
    let untold = percentile(&untold, 0.95);
    report.figure(Figure::new(name("age not told, p95"), "ms").ours([untold]));
    Ok(())
}

/// The line of a case, or the channel of several cameras.
fn scenario(case: &Case) -> anyhow::Result<Scenario> {
    let Case { megabits, delay_ms, cameras, .. } = case;
    let (kind, wired) = if *cameras > 1 { ("wifi", "gateway = \"edge\"\n") } else { ("wan", "") };
    let mut text = format!(
        "seed = 1\n[[medium]]\nname = \"line0\"\nkind = \"{kind}\"\nrate = \"{megabits}Mbit\"\n\
         delay = \"{delay_ms}ms\"\nqueue = \"1MiB\"\n{wired}"
    );
    text += "[[medium.port]]\nnode = \"edge\"\naddress = \"10.77.1.1/24\"\n";
    text += if *cameras > 1 { "wired = true\n" } else { "default_route = true\n" };
    for camera in 1..=*cameras {
        text += &format!(
            "[[medium.port]]\nnode = \"cam{camera}\"\naddress = \"10.77.1.{}/24\"\ndefault_route = true\n",
            10 + camera
        );
    }
    Scenario::parse(&text, Path::new("")).context("reading the scenario")
}

/// Subscribes to each camera for that long, and reads what the program says of it.
fn subscribe(site: &Site, wanted: &[Wanted], length: Duration) -> anyhow::Result<Vec<Seen>> {
    let names = site.names();
    thread::scope(|scope| {
        let subscribers: Vec<_> = names
            .iter()
            .zip(wanted)
            .map(|(name, wanted)| scope.spawn(move || follow(site, name, *wanted, length)))
            .collect();
        subscribers
            .into_iter()
            .map(|subscriber| subscriber.join().expect("a subscriber's thread does not panic"))
            .collect()
    })
}

fn follow(site: &Site, name: &str, wanted: Wanted, length: Duration) -> anyhow::Result<Seen> {
    let Wanted { latency_ms, accuracy, frames } = wanted;
    let mut arguments = vec![
        "subscribe".to_owned(),
        name.to_owned(),
        format!("--latency={latency_ms}ms"),
        format!("--accuracy={accuracy}"),
        format!("--for={}s", length.as_secs_f64()),
        "--feedback".to_owned(),
        "--output=json".to_owned(),
    ];
    arguments.extend(frames.map(|frames| format!("--fps={frames}")));
    let began = monotonic_nanos();
    let since = |at: i64| (at - began) as f64 / 1e6;
    let mut program = site.program(&arguments, Stdio::piped())?;
    let lines = program.stdout.take().context("the program has an output")?;
    let mut seen = Seen { first_ms: f64::NAN, ..Seen::default() };
    for line in BufReader::new(lines).lines() {
        let line = line.context("reading what the program says")?;
        let (now, wall) = (monotonic_nanos(), realtime_nanos());
        let event: Value =
            serde_json::from_str(&line).with_context(|| format!("reading {line:?}"))?;
        if seen.first_ms.is_nan() {
            seen.first_ms = since(now);
        }
        match event["type"].as_str().unwrap_or_default() {
            "infeasible" => {
                seen.told_ms.get_or_insert(since(now));
                seen.standing = Some(Offer::read(&event));
            }
            "feasible" => seen.standing = None,
            "camera_offline" => seen.offline += 1,
            "frame" => {
                let captured = event["captured_at"].as_i64().context("a frame has a time")?;
                let told = event["latency_ms"].as_f64().context("a frame has an age")?;
                seen.untold_ms.push((wall - captured) as f64 / 1e6 - told);
            }
            "verdict" => {
                let captured = event["captured_at"].as_i64().context("a verdict has a time")?;
                let is_kept = match event["outcome"].as_str().unwrap_or_default() {
                    "kept" => event["accuracy_kept"].as_bool().unwrap_or_default(),
                    outcome => outcome == "unchanged",
                };
                seen.verdicts.push((captured, is_kept));
            }
            _ => {}
        }
    }
    seen.status = program.wait().context("waiting for the program")?.code();
    ensure!(!seen.first_ms.is_nan(), "{name}: the program said nothing, {:?}", seen.status);
    Ok(seen)
}
