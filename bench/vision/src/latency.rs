//! The paper's figures: full process, network only and server time over lines of several delays, in each way to send an image.

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, interleave};
use tidegate_load::vision::{self, Connection, Counting, Image, VisionReport, VisionSpec};
use tidegate_netlab::Lab;

use crate::{
    Plan, images,
    node::{ENDPOINT, Node, NodeConfig, Workers},
    peer::{self, Detector, Peer},
    site::{ADDRESS, CLIENT, CONGESTION, Line, Place, SERVER, is_valid},
};

/// Round trips in ms, with the paper's mean full process by REST and by WebSocket.
const PAPER: [(f64, f64, f64); 7] = [
    (5.0, 24.826, 12.196),
    (10.0, 34.835, 17.08),
    (20.0, 55.085, 27.317),
    (40.0, 94.614, 47.304),
    (80.0, 174.706, 87.618),
    (160.0, 335.182, 167.215),
    (320.0, 654.888, 327.8),
];
/// Its first test: REST with base64, and WebSocket.
const PAPER_15: (f64, f64) = (44.963, 22.3);
/// A telephone on 4G: a round trip of 40 ms that deviates by 10, a usual rate; REST with base64, and WebSocket.
const MOBILE: Line = Line { round_trip_ms: 40.0, deviation_ms: 10.0, mbit: 30.0 };
const PAPER_MOBILE: (f64, f64) = (110.0, 53.0);
/// Most that a WebSocket may take beyond the round trip and the server's time, and REST beyond a WebSocket, in ms.
const BEYOND_MAX_MS: f64 = 2.0;
/// Requests that warm a connection up: TCP's window, and the detector.
const WARM_UP: u32 = 3;
/// Round trips in ms from which on a line has two runs, and from which on it has one: slow lines take most of the time and vary least.
const SLOW_MS: f64 = 40.0;
const SLOWEST_MS: f64 = 160.0;
const QUALITY: u8 = 90;

/// A way to send an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    RestKept,
    RestFresh,
    Base64Fresh,
    WebSocket,
    SecureWebSocket,
    Tcp,
    Grpc,
    GrpcStream,
}

impl Way {
    const ALL: [Self; 8] = [
        Self::RestKept,
        Self::RestFresh,
        Self::Base64Fresh,
        Self::WebSocket,
        Self::SecureWebSocket,
        Self::Tcp,
        Self::Grpc,
        Self::GrpcStream,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::RestKept => "REST, kept",
            Self::RestFresh => "REST, a connection each",
            Self::Base64Fresh => "REST + base64, a connection each",
            Self::WebSocket => "WebSocket",
            Self::SecureWebSocket => "wss",
            Self::Tcp => "TCP",
            Self::Grpc => "gRPC, a call each",
            Self::GrpcStream => "gRPC, a stream",
        }
    }

    fn connection(self) -> Connection {
        match self {
            Self::RestKept | Self::RestFresh => Connection::Rest,
            Self::Base64Fresh => Connection::RestBase64,
            Self::WebSocket | Self::SecureWebSocket => Connection::WebSocket,
            Self::Tcp => Connection::Tcp,
            Self::Grpc => Connection::Grpc,
            Self::GrpcStream => Connection::GrpcStream,
        }
    }

    fn is_fresh(self) -> bool {
        matches!(self, Self::RestFresh | Self::Base64Fresh)
    }

    /// Whether it is by TLS, which the Django server has not; nor has it gRPC.
    fn is_tls(self) -> bool {
        matches!(self, Self::SecureWebSocket | Self::Grpc | Self::GrpcStream)
    }
}

/// A line with the paper's figures for it.
struct Case {
    name: String,
    line: Line,
    /// By REST, a connection each, plain or with base64 as the paper did it.
    paper_rest: f64,
    rest: Way,
    paper_websocket: f64,
    with_png: bool,
}

fn cases() -> Vec<Case> {
    let (paper_rest, paper_websocket) = PAPER_15;
    let mut cases = vec![Case {
        name: "15 ms".to_owned(),
        line: Line::of(15.0),
        paper_rest,
        rest: Way::Base64Fresh,
        paper_websocket,
        with_png: true,
    }];
    cases.extend(PAPER.map(|(round_trip, paper_rest, paper_websocket)| Case {
        name: format!("{round_trip} ms"),
        line: Line::of(round_trip),
        paper_rest,
        rest: Way::RestFresh,
        paper_websocket,
        with_png: false,
    }));
    let (paper_rest, paper_websocket) = PAPER_MOBILE;
    cases.push(Case {
        name: "like 4G".to_owned(),
        line: MOBILE,
        paper_rest,
        rest: Way::Base64Fresh,
        paper_websocket,
        with_png: false,
    });
    cases
}

/// Both servers on each line, in each way.
///
/// # Errors
/// There is no lab without root, or ours does not serve.
pub fn latency(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let portrait = images::portrait(1);
    let jpeg = Image::new("portrait.jpg", images::jpeg(&portrait, QUALITY)?);
    let png = Image::new("portrait.png", images::png(&portrait)?);
    report.configuration(
        "latency",
        format!(
            "180 x 240, JPEG of {} B at quality {QUALITY} and PNG of {} B; one client, one request at a time, {WARM_UP} before those \
             that count; the Django server's detector on one thread at both servers, as a worker at ours; lines of 1 Gbit/s, the one like 4G of {} Mbit/s, 40 ms and σ 10, TCP by \
             {CONGESTION}; means, as the paper has them",
            jpeg.bytes.len(),
            png.bytes.len(),
            MOBILE.mbit
        ),
    );
    // Without the Django server's Python, ours has the detector that it comes with.
    let workers = peer::python(plan).map_or(Workers::Own, Workers::Peers);
    for case in cases() {
        eprintln!("bench-vision: latency, {}", case.name);
        let lab = case.line.up(1)?;
        let place = Place::In(&lab, SERVER);
        let config =
            NodeConfig { workers: workers.clone(), endpoints: true, ..NodeConfig::default() };
        let node = Node::start(place, &config)?;
        // A quick run has no time for both servers on slow lines.
        let peer = match plan.quick && case.line.round_trip_ms >= 2.0 * SLOW_MS {
            true => None,
            false => Peer::start(plan, place, Detector::Haar)
                .inspect_err(|error| {
                    eprintln!("bench-vision: {error:#}; its rows will have no peer");
                })
                .ok(),
        };
        let mut all = vec![measure(plan, &lab, &node, peer.as_ref(), &case, &jpeg)?];
        if case.with_png {
            all.push(measure(plan, &lab, &node, peer.as_ref(), &case, &png)?);
        }
        drop((node, peer));
        let is_late = !is_valid(&lab.finish()?);
        for (image, made) in ["JPEG", "PNG"].into_iter().zip(all) {
            rows(report, &case, image, &made, is_late);
        }
    }
    Ok(())
}

/// Runs on a line with that round trip in ms, and requests of each.
fn extent(plan: &Plan, round_trip_ms: f64) -> (usize, u32) {
    let fit = |total_ms: f64, least: f64, most: f64| (total_ms / round_trip_ms).clamp(least, most);
    let (runs, requests) = if plan.quick {
        (1, fit(300.0, 3.0, 12.0))
    } else if round_trip_ms >= SLOWEST_MS {
        (1, fit(2400.0, 8.0, 15.0))
    } else if round_trip_ms >= SLOW_MS {
        (plan.runs.min(2), fit(1600.0, 20.0, 40.0))
    } else {
        (plan.runs, 40.0)
    };
    (runs, requests as u32)
}

/// Runs of both servers by way; the second of a pair is the peer's.
type Made = BTreeMap<Way, [Vec<VisionReport>; 2]>;

fn measure(
    plan: &Plan,
    lab: &Lab,
    node: &Node,
    peer: Option<&Peer>,
    case: &Case,
    image: &Image,
) -> anyhow::Result<Made> {
    let (runs, requests) = extent(plan, case.line.round_trip_ms);
    let client = Place::In(lab, CLIENT);
    let run = |way: Way, target| {
        let spec = VisionSpec {
            target,
            endpoint: ENDPOINT.to_owned(),
            connection: way.connection(),
            connection_per_request: way.is_fresh(),
            authorization: None,
            images: vec![image.clone()],
            threads: 1,
            counting: Counting::Repeats(requests),
            rate: None,
            warm_up: WARM_UP,
            network: true,
            stats_port: None,
            keep_times: true,
        };
        client.within(move || {
            let report = vision::run(&spec, &AtomicBool::new(false), &|_| ());
            let report = report.with_context(|| way.name())?;
            anyhow::ensure!(report.is_whole(), "{}: {report}", way.name());
            Ok(report)
        })
    };
    let mut made = Made::new();
    for way in Way::ALL {
        let is_tcp = way == Way::Tcp;
        let mut ours = |_: usize| run(way, node.target(ADDRESS, is_tcp, way.is_tls())?);
        let pair = match peer.filter(|_| !way.is_tls()) {
            None => [(0..runs).map(&mut ours).collect::<anyhow::Result<_>>()?, Vec::new()],
            Some(peer) => {
                let mut theirs = |_: usize| run(way, peer.target(ADDRESS, is_tcp));
                let both = interleave(runs, &mut [&mut ours, &mut theirs])?;
                both.try_into().expect("two contenders have two outcomes")
            }
        };
        made.insert(way, pair);
    }
    Ok(made)
}

fn rows(report: &mut Report, case: &Case, image: &str, made: &Made, is_late: bool) {
    let line = &case.name;
    let round_trip = case.line.round_trip_ms;
    let mean = |runs: &[VisionReport]| -> Vec<f64> {
        runs.iter().map(|run| run.full_process.avg).collect()
    };
    let late = |figure: Figure| match is_late {
        true => figure.note("the emulator was late in a run"),
        false => figure,
    };
    for (way, [ours, theirs]) in made {
        let name = way.name();
        for (who, runs) in [("ours", ours), ("peer", theirs)] {
            for (number, run) in runs.iter().enumerate() {
                let what = format!("{line}, {image}, {name}, {who}, run {number}, ms");
                report.samples(what, run.full_process_ms.iter().copied());
            }
        }
        let server = |runs: &[VisionReport]| {
            let times: Vec<f64> = runs.iter().map(|run| run.server_processing.avg).collect();
            bench_harness::median(&times)
        };
        let network = |runs: &[VisionReport]| {
            let times: Vec<f64> = runs.iter().map(|run| run.network_only.avg).collect();
            bench_harness::median(&times)
        };
        let mut note = format!("network only {:.2} ms, server {:.2}", network(ours), server(ours));
        if !theirs.is_empty() {
            note += &format!("; peer {:.2} and {:.2}", network(theirs), server(theirs));
        }
        let paper = match *way {
            Way::WebSocket => Some(case.paper_websocket),
            way if way == case.rest => Some(case.paper_rest),
            _ => None,
        };
        if let Some(paper) = paper.filter(|_| image == "JPEG") {
            note += &format!("; the paper {paper} ms");
        }
        if is_late {
            note += "; the emulator was late in a run";
        }
        report.figure(
            Figure::new(format!("{line}, {image}, {name}, full process"), "ms")
                .ours(mean(ours))
                .peer(mean(theirs))
                .note(note),
        );
    }
    let ours = |way: Way| &made[&way][0];
    // Jitter is as much in a request as in the round trip, and no bound can be put on it.
    if case.line.deviation_ms == 0.0 {
        let beyond =
            |run: &VisionReport| run.full_process.avg - round_trip - run.server_processing.avg;
        report.figure(late(
            Figure::new(format!("{line}, {image}, WebSocket beyond round trip and server"), "ms")
                .ours(ours(Way::WebSocket).iter().map(beyond))
                .peer(made[&Way::WebSocket][1].iter().map(beyond))
                .target(Target::AtMost(BEYOND_MAX_MS)),
        ));
    }
    let beyond = |side: usize| {
        let pairs = made[&Way::RestKept][side].iter().zip(&made[&Way::WebSocket][side]);
        pairs.map(|(rest, socket)| rest.full_process.avg - socket.full_process.avg)
    };
    let figure = Figure::new(format!("{line}, {image}, REST, kept, beyond WebSocket"), "ms")
        .ours(beyond(0))
        .peer(beyond(1));
    report.figure(late(match case.line.deviation_ms {
        0.0 => figure.target(Target::AtMost(BEYOND_MAX_MS)),
        // Two means of as many requests differ by more than that on such a line, whatever they are of.
        deviation => figure.note(format!("round trips deviate by {deviation} ms")),
    }));
}
