//! Where bounds cannot be kept, the bounds that are offered instead are kept once an application asks for them, and are not much
//! worse than those that could be had: over capacities, kinds of paths, sizes of frames, frame rates and bounds, from a seed each.

use std::{path::Path, time::Duration};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidegate_frame::transfer::Report;
use tidegate_message::{Bounds, Demand, FrameRate};
use tidegate_sim::{
    cases,
    medium::Scenario,
    outcome::{Fate, Outcome},
    world::World,
};

/// How long an application looks at what it is offered, and at what it gets then.
const ASKS: Duration = Duration::from_secs(6);
const TAKES: Duration = Duration::from_secs(20);
/// Time that the sender counts on over what a frame takes here: for the application, and for its turn.
const GIVEN: Duration = Duration::from_millis(6);
/// Time for which a subscription has just begun.
const BEGINS: Duration = Duration::from_secs(2);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The offers of a report that bounds cannot be kept.
#[derive(Clone, Debug, PartialEq)]
struct Offer {
    latency: Option<Duration>,
    accuracy: Option<f64>,
    frames: Option<f64>,
    sentence: String,
}

/// A path and a camera, from a seed.
struct Case {
    name: String,
    world: World,
    /// Bytes of frame data that the path carries in a second.
    rate: f64,
}

fn case(seed: u64) -> Case {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut log = |from: f64, to: f64| (rng.random_range(from.ln()..to.ln())).exp();
    let (megabits, bytes) = (log(2.0, 80.0), log(40e3, 2e6));
    let (latency, bucket) = (log(20.0, 2000.0) as u64, log(1.0, 60.0));
    let (read, delay) = (log(0.2, 2.0), log(0.5, 4.0) as u64);
    let fps = [2, 5, 10, 25][rng.random_range(0..4)];
    let accuracy = [0.9, 0.95, 0.97, 0.99, 1.0][rng.random_range(0..5)];
    // A bucket of some milliseconds: frames that a larger one swallows whole show nothing of the path behind it.
    let bucket = if rng.random_bool(0.5) { (bucket * megabits / 8.192) as u64 } else { 0 };
    let read_every = if rng.random_bool(0.5) { ms(1).mul_f64(read) } else { Duration::ZERO };
    let text = format!(
        "[[medium]]\nname = \"line\"\nkind = \"wan\"\nrate = \"{megabits:.1}Mbit\"\ndelay = \"{delay}ms\"\n\
         queue = \"1MiB\"\nbucket = \"{bucket}KiB\"\n[[medium.port]]\nnode = \"edge\"\n\
         [[medium.port]]\nnode = \"cam1\"\n"
    );
    let mut world = cases::constant(fps, megabits).world;
    world.seed = seed;
    world.scenario = Scenario::parse(&text, Path::new("")).expect("the scenario is spelled right");
    (world.one_way, world.feedback) = (ms(delay), ms(delay + 3));
    world.read_every = read_every;
    let camera = &mut world.cameras[0];
    camera.bytes = bytes;
    camera.demand.bounds = Bounds::new(ms(latency), accuracy).expect("bounds within their ranges");
    let name = format!(
        "seed {seed}: {megabits:.1} Mbit/s, bucket of {bucket} KiB, {delay} ms away, read every {read_every:?}, \
         {:.0} KB at {fps} fps, {latency} ms, {accuracy}",
        bytes / 1e3
    );
    // Of each packet of 1260 bytes, 1200 are the frame's.
    Case { name, world, rate: megabits * 125e3 * 1200.0 / 1260.0 }
}

/// The offer that stands at the end of a run, if one does.
fn standing(outcome: &Outcome, camera: usize, until: Duration) -> Option<Offer> {
    let mut standing = None;
    for (_, _, report) in outcome.reports.iter().filter(|(of, at, _)| *of == camera && *at < until)
    {
        match report {
            Report::Infeasible {
                latency_at_accuracy,
                accuracy_at_latency,
                frames_per_second,
                reason,
                ..
            } => {
                standing = Some(Offer {
                    latency: *latency_at_accuracy,
                    accuracy: *accuracy_at_latency,
                    frames: *frames_per_second,
                    sentence: reason.to_string(),
                });
            }
            Report::Feasible => standing = None,
            _ => {}
        }
    }
    standing
}

/// The part of the frames captured in `within` that kept `bounds`, and how many those were.
fn kept(
    outcome: &Outcome,
    camera: usize,
    bounds: Bounds,
    within: std::ops::Range<Duration>,
) -> (f64, usize) {
    let frames =
        outcome.frames.iter().filter(|f| f.camera == camera && within.contains(&f.captured));
    let (mut all, mut kept) = (0, 0);
    for frame in frames {
        all += 1;
        kept += usize::from(match &frame.fate {
            Fate::Delivered { latency, header } => {
                *latency <= bounds.latency() && header.accuracy >= bounds.accuracy()
            }
            Fate::Unchanged { latency } => *latency <= bounds.latency(),
            Fate::Dropped { .. } | Fate::Unfinished => false,
        });
    }
    (kept as f64 / f64::from(u32::try_from(all.max(1)).unwrap()), all)
}

/// The demands that take up an offer.
fn demands(asked: Demand, offer: &Offer) -> Vec<Demand> {
    let bounds =
        |latency, accuracy| Bounds::new(latency, accuracy).expect("bounds within their ranges");
    let (latency, accuracy) = (asked.bounds.latency(), asked.bounds.accuracy());
    let mut demands = Vec::new();
    demands
        .extend(offer.latency.map(|latency| Demand { bounds: bounds(latency, accuracy), ..asked }));
    demands.extend(
        offer.accuracy.map(|accuracy| Demand { bounds: bounds(latency, accuracy), ..asked }),
    );
    demands.extend(offer.frames.map(|frames| Demand {
        frame_rate: Some(FrameRate::new(frames).expect("a frame rate within its range")),
        ..asked
    }));
    demands
}

/// Says so if half of what the path carries would be enough for more than is offered.
fn less_than_half(world: &World, rate: f64, offer: &Offer) -> Option<String> {
    let camera = &world.cameras[0];
    let scale = camera.bytes / camera.truth.original_bytes;
    let period = camera.period.as_secs_f64();
    let (latency, accuracy) = (camera.demand.bounds.latency(), camera.demand.bounds.accuracy());
    let (constant, per_megabyte) = camera.encode;
    let overhead =
        constant + per_megabyte.mul_f64(camera.bytes / 1e6) + world.one_way + world.delivery;
    let takes = |bytes: f64| 2 * (overhead + Duration::from_secs_f64(bytes / rate)) + GIVEN;
    let carried = |bytes: f64| 2.0 * bytes / rate <= period;
    let rows = camera.truth.ladder(&camera.config.cut);
    let rows: Vec<(f64, f64)> = rows.iter().map(|row| (row.bytes * scale, row.accuracy)).collect();
    let least =
        rows.iter().find(|(_, had)| *had >= accuracy).map_or(camera.bytes, |(bytes, _)| *bytes);
    let best = rows.iter().filter(|(bytes, _)| takes(*bytes) <= latency && carried(*bytes));
    let best = best.map(|(_, accuracy)| *accuracy).fold(0.0, f64::max);
    if offer.accuracy.unwrap_or_default() < best.min(accuracy) - 0.001 {
        return Some(format!(
            "half of the path gives {best:.3} at this latency; {}",
            offer.sentence
        ));
    }
    if carried(least) && offer.latency.is_none_or(|had| had > takes(least)) {
        return Some(format!("half of the path takes {:?}; {}", takes(least), offer.sentence));
    }
    let frames = rate / least / 2.0;
    if takes(least) <= latency
        && offer.latency.is_none()
        && offer.frames.is_none_or(|had| had < frames * 0.99)
    {
        return Some(format!(
            "half of the path carries {frames:.2} frames a second; {}",
            offer.sentence
        ));
    }
    None
}

#[test]
fn what_is_offered_is_kept_once_it_is_asked_for() {
    let (mut taken, mut failed) = (0, Vec::new());
    for seed in 0..150 {
        let Case { name, world, rate } = case(seed);
        let asked = World { length: ASKS, ..world.clone() }.run();
        let Some(offer) = standing(&asked, 0, ASKS) else {
            let (part, all) = kept(&asked, 0, world.cameras[0].demand.bounds, BEGINS..ASKS);
            if part < 0.9 && all as f64 * (1.0 - part) > 1.5 {
                failed.push(format!("{name}: neither kept nor told, {part:.3} of {all}"));
            }
            continue;
        };
        failed.extend(less_than_half(&world, rate, &offer).map(|less| format!("{name}: {less}")));
        for demand in demands(world.cameras[0].demand, &offer) {
            for anew in [true, false] {
                let mut world = world.clone();
                let begin = if anew {
                    world.cameras[0].demand = demand;
                    BEGINS
                } else {
                    world.cameras[0].then = Some((ASKS, demand));
                    ASKS + BEGINS
                };
                let outcome = World { length: begin + TAKES, ..world }.run();
                let (part, all) = kept(&outcome, 0, demand.bounds, begin..begin + TAKES);
                taken += 1;
                if part < 0.95 {
                    let again = standing(&outcome, 0, Duration::MAX).map(|offer| offer.sentence);
                    failed.push(format!(
                        "{name}: {}; {:?} {:?} taken {}: {part:.3} of {all}; then {again:?}",
                        offer.sentence,
                        demand.bounds,
                        demand.frame_rate,
                        if anew { "anew" } else { "in its course" },
                    ));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {taken}:\n{}", failed.len(), failed.join("\n"));
    assert!(taken > 100, "{taken} offers were taken");
}
