//! The endpoints' own cost on loopback, with a detector that does nothing: in their process, as the Django server beside has it in its own, and
//! in a worker's.

use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, interleave};
use tidegate_load::vision::{self, Connection, Counting, Image, VisionReport, VisionSpec};

use crate::{
    Plan,
    echo::Endpoints,
    images,
    node::{ENDPOINT, Node, NodeConfig, Workers},
    peer::{Detector, Peer},
    site::{Cpu, Place},
};

/// Bytes of an image, with the most of p50 and p99 in ms.
const SIZES: [(usize, f64, f64); 2] = [(10_000, 0.2, 1.0), (400_000, 1.0, 3.0)];
/// Least requests of HTTP for each second of processor time, as a multiple of the peer's.
const PER_CPU_MIN: f64 = 10.0;
const HOST: &str = "127.0.0.1";
const WARM_UP: u32 = 100;
/// Requests to the peer's TCP server, which waits 40 ms for an acknowledgement between the two parts of an answer.
const PEER_TCP_REQUESTS: u32 = 100;

/// A way to send an image.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    name: &'static str,
    connection: Connection,
    is_tls: bool,
}

const fn way(name: &'static str, connection: Connection, is_tls: bool) -> Way {
    Way { name, connection, is_tls }
}

/// Those that the Django server has, too.
const PLAIN: [Way; 3] = [
    way("REST", Connection::Rest, false),
    way("WebSocket", Connection::WebSocket, false),
    way("TCP", Connection::Tcp, false),
];
const SECURE: [Way; 4] = [
    way("REST, TLS", Connection::Rest, true),
    way("wss", Connection::WebSocket, true),
    way("gRPC, a call each", Connection::Grpc, true),
    way("gRPC, a stream", Connection::GrpcStream, true),
];

/// One run: its times, and the processor time of the server meanwhile.
struct Run {
    report: VisionReport,
    cpu: Cpu,
}

impl Run {
    fn per_cpu_second(&self) -> f64 {
        self.report.answered() as f64 / self.cpu.all()
    }
}

/// p50, p99 and requests per second of processor time.
///
/// # Errors
/// Ours does not serve.
pub fn overhead(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let requests = if plan.quick { 500 } else { 2000 };
    report.configuration(
        "overhead",
        format!(
            "{requests} requests, half as many to the Django server, one client, one at a time, {WARM_UP} before; the detector is a function in \
             the server's process, of ours as of the Django server's; for the rows with a worker it is a process of this bench that reads \
             the header and answers, by the socket of the detector protocol, and its processor time counts"
        ),
    );
    let endpoints = Endpoints::start()?;
    let peer = Peer::start(plan, Place::Here, Detector::Echo(0.0));
    let peer = peer
        .inspect_err(|error| eprintln!("bench-vision: {error:#}; its rows will have no peer"))
        .ok();
    for size in SIZES {
        let image = image(size.0)?;
        for way in PLAIN {
            let is_tcp = way.connection == Connection::Tcp;
            let target = endpoints.target(is_tcp);
            let mut ours =
                |_: usize| run(way, target.clone(), &image, requests, || endpoints.cpu());
            let (ours, theirs) = match &peer {
                None => ((0..plan.runs).map(&mut ours).collect::<anyhow::Result<_>>()?, Vec::new()),
                Some(peer) => {
                    let target = peer.target(HOST, is_tcp);
                    let requests = if is_tcp { PEER_TCP_REQUESTS } else { requests / 2 };
                    let mut theirs =
                        |_: usize| run(way, target.clone(), &image, requests, || peer.cpu());
                    let both = interleave(plan.runs, &mut [&mut ours, &mut theirs])?;
                    let [ours, theirs]: [Vec<Run>; 2] =
                        both.try_into().ok().context("two contenders have two outcomes")?;
                    (ours, theirs)
                }
            };
            let name = format!("overhead, {} KB, {}", size.0 / 1000, way.name);
            rows(report, &name, way, Some([size.1, size.2]), &ours, &theirs);
        }
    }
    drop((endpoints, peer));
    let config =
        NodeConfig { workers: Workers::Bench(0.0), endpoints: true, ..NodeConfig::default() };
    let node = Node::start(Place::Here, &config)?;
    for (bytes, ..) in SIZES {
        let image = image(bytes)?;
        for way in PLAIN.into_iter().chain(SECURE) {
            let target = node.target(HOST, way.connection == Connection::Tcp, way.is_tls)?;
            let ours = (0..plan.runs)
                .map(|_| run(way, target.clone(), &image, requests, || node.cpu()))
                .collect::<anyhow::Result<Vec<Run>>>()?;
            let name = format!("overhead, a worker, {} KB, {}", bytes / 1000, way.name);
            rows(report, &name, way, None, &ours, &[]);
        }
    }
    drop(node);
    python(plan, report)
}

/// An image of some so many bytes.
fn image(bytes: usize) -> anyhow::Result<Image> {
    let picture = match bytes {
        ..100_000 => images::noise(180, 240, 20.0, 1),
        _ => images::noise(1280, 720, 60.0, 1),
    };
    Ok(Image::new(format!("{bytes}.jpg"), images::jpeg_of(&picture, bytes)?))
}

fn run(
    way: Way,
    target: vision::Target,
    image: &Image,
    requests: u32,
    cpu: impl Fn() -> anyhow::Result<Cpu>,
) -> anyhow::Result<Run> {
    let mut spec = VisionSpec {
        target,
        endpoint: ENDPOINT.to_owned(),
        connection: way.connection,
        connection_per_request: false,
        authorization: None,
        images: vec![image.clone()],
        threads: 1,
        counting: Counting::Repeats(WARM_UP),
        rate: None,
        warm_up: 0,
        network: false,
        stats_port: None,
        keep_times: true,
    };
    let asked = |spec: &VisionSpec| {
        let report = vision::run(spec, &AtomicBool::new(false), &|_| ()).context(way.name)?;
        anyhow::ensure!(report.is_whole(), "{}: {report}", way.name);
        Ok(report)
    };
    // A run of its own: the processor time of the warm-up counts nowhere.
    asked(&spec)?;
    spec.counting = Counting::Repeats(requests);
    let before = cpu()?;
    let report = asked(&spec)?;
    let after = cpu()?;
    let cpu = Cpu { own: after.own - before.own, below: after.below - before.below };
    Ok(Run { report, cpu })
}

/// The rows of one way; `at_most_ms` are the targets of p50 and p99.
fn rows(
    report: &mut Report,
    name: &str,
    way: Way,
    at_most_ms: Option<[f64; 2]>,
    ours: &[Run],
    theirs: &[Run],
) {
    for (who, runs) in [("ours", ours), ("peer", theirs)] {
        for (number, run) in runs.iter().enumerate() {
            let times = run.report.full_process_ms.iter().copied();
            report.samples(format!("{name}, {who}, run {number}, ms"), times);
        }
    }
    let p50 = |run: &Run| run.report.full_process.p50;
    let p99 = |run: &Run| run.report.full_process.p99;
    let picks: [&dyn Fn(&Run) -> f64; 2] = [&p50, &p99];
    for (at, (percentile, pick)) in ["p50", "p99"].into_iter().zip(picks).enumerate() {
        let figure = Figure::new(format!("{name}, {percentile}"), "ms")
            .ours(ours.iter().map(pick))
            .peer(theirs.iter().map(pick));
        report.figure(match at_most_ms {
            Some(most) => figure.target(Target::AtMost(most[at])),
            None => figure,
        });
    }
    let own: Vec<f64> =
        ours.iter().map(|run| run.cpu.own / run.report.answered() as f64 * 1e6).collect();
    let figure = Figure::new(format!("{name}, requests per CPU second"), "1/s")
        .ours(ours.iter().map(Run::per_cpu_second))
        .peer(theirs.iter().map(Run::per_cpu_second))
        .note(format!("the server alone takes {:.0} us a request", bench_harness::median(&own)));
    // Requests are those of HTTP; see docs/src/bench.md.
    report.figure(match (at_most_ms, way.connection) {
        (Some(_), Connection::Rest) => figure.target(Target::RatioAtLeast(PER_CPU_MIN)),
        _ => figure,
    });
}

/// The worker that comes with the program, whose time is its own: what a request takes beside it.
fn python(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let config = NodeConfig { workers: Workers::Own, endpoints: true, ..NodeConfig::default() };
    let node = Node::start(Place::Here, &config)?;
    let image = Image::new("portrait.jpg", images::jpeg(&images::portrait(1), 90)?);
    let requests = if plan.quick { 50 } else { 300 };
    let mut beside = Vec::new();
    let mut server = Vec::new();
    for _ in 0..plan.runs {
        let target = node.target(HOST, false, false)?;
        let run = run(PLAIN[1], target, &image, requests, || node.cpu())?.report;
        beside.push(run.full_process.avg - run.server_processing.avg);
        server.push(run.server_processing.avg);
    }
    report.figure(
        Figure::new("overhead, the Python worker, full process less server time", "ms")
            .ours(beside)
            .note(format!("server time {:.2} ms", bench_harness::median(&server))),
    );
    Ok(())
}
