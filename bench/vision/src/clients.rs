//! 1 to 64 clients of one detector that takes 20 ms: whether all of it is used, and by all alike.

use std::{sync::atomic::AtomicBool, time::Duration};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target};
use tidegate_load::vision::{self, Connection, Counting, Image, VisionReport, VisionSpec};

use crate::{
    Plan, images,
    node::{ENDPOINT, Node, NodeConfig, Workers},
    peer::{Detector, Peer},
    site::Place,
};

const COUNTS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const COUNTS_QUICK: [u32; 4] = [1, 4, 16, 64];
/// The Django server has one run of so long: it is there to compare with.
const PEER_LENGTH: Duration = Duration::from_secs(3);
const DETECTOR_MS: f64 = 20.0;
/// Least part of the detector's time that is used with two clients and more.
const USED_MIN: f64 = 0.95;
/// Most of the slowest client's p99, as a multiple of the fastest's.
const FAIR_MAX: f64 = 2.0;

/// Throughput and fairness.
///
/// # Errors
/// Ours does not serve.
pub fn clients(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 3 } else { 6 });
    let counts = if plan.quick { &COUNTS_QUICK[..] } else { &COUNTS };
    report.configuration(
        "clients",
        format!(
            "each client sends a JPEG of 180 x 240 by a WebSocket, and the next when it has the answer, for {} s, and for {} s at the \
             Django server; one detector that takes {DETECTOR_MS} ms",
            length.as_secs(),
            PEER_LENGTH.as_secs()
        ),
    );
    let config = NodeConfig {
        workers: Workers::Bench(DETECTOR_MS),
        endpoints: true,
        ..NodeConfig::default()
    };
    let node = Node::start(Place::Here, &config)?;
    let peer = Peer::start(plan, Place::Here, Detector::Echo(DETECTOR_MS));
    let peer = peer.inspect_err(|error| eprintln!("bench-vision: {error:#}")).ok();
    let image = Image::new("portrait.jpg", images::jpeg(&images::portrait(1), 90)?);
    let limit = 1e3 / DETECTOR_MS;
    let (mut lost, mut asked) = (0, 0);
    for &count in counts {
        let target = node.target("127.0.0.1", false, false)?;
        let ours = (0..plan.runs).map(|_| run(target.clone(), &image, count, length));
        let ours = ours.collect::<anyhow::Result<Vec<_>>>()?;
        let theirs = peer.iter().map(|peer| {
            run(peer.target("127.0.0.1", false), &image, count, PEER_LENGTH.min(length))
        });
        let theirs = theirs.collect::<anyhow::Result<Vec<_>>>()?;
        for run in &ours {
            lost += run.refused.values().sum::<u64>() + run.failed.values().sum::<u64>();
            asked += run.answered();
        }
        let used = |run: &VisionReport| run.answers_per_second / limit;
        let figure = Figure::new(format!("clients, {count}, of the detector's limit"), "")
            .ours(ours.iter().map(used))
            .peer(theirs.iter().map(used));
        // One client leaves the detector waiting while its answer travels.
        report.figure(match count {
            1 => figure,
            _ => figure.target(Target::AtLeast(USED_MIN)),
        });
        if count == 1 {
            continue;
        }
        report.figure(
            Figure::new(format!("clients, {count}, slowest p99 over fastest"), "")
                .ours(ours.iter().map(spread))
                .peer(theirs.iter().map(spread))
                .target(Target::AtMost(FAIR_MAX))
                .note(format!("p99 of all {:.0} ms", ours[0].full_process.p99)),
        );
    }
    report.figure(
        Figure::new("clients, requests without an answer", "")
            .ours([lost as f64])
            .target(Target::Exactly(0.0))
            .note(format!("of {}", asked + lost)),
    );
    Ok(())
}

/// The slowest client's p99 over the fastest's; not a number if one has no answer.
fn spread(run: &VisionReport) -> f64 {
    let p99 = run.clients.iter().map(|client| match client.answered {
        0 => f64::NAN,
        _ => client.full_process.p99,
    });
    let all: Vec<f64> = p99.collect();
    if all.iter().any(|p99| p99.is_nan()) {
        return f64::NAN;
    }
    all.iter().copied().fold(0.0, f64::max) / all.iter().copied().fold(f64::INFINITY, f64::min)
}

fn run(
    target: vision::Target,
    image: &Image,
    clients: u32,
    length: Duration,
) -> anyhow::Result<VisionReport> {
    let spec = VisionSpec {
        target,
        endpoint: ENDPOINT.to_owned(),
        connection: Connection::WebSocket,
        connection_per_request: false,
        authorization: None,
        images: vec![image.clone()],
        threads: clients,
        counting: Counting::For(length),
        rate: None,
        warm_up: 2,
        network: false,
        stats_port: None,
        keep_times: false,
    };
    vision::run(&spec, &AtomicBool::new(false), &|_| ())
        .with_context(|| format!("{clients} clients"))
}
