//! The paper's figures: full process, network only and server time over lines of several delays, in each way to send an image.

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, interleave};
use tidegate_load::vision::{self, Connection, Counting, Image, VisionReport, VisionSpec};
use tidegate_netlab::Lab;

use crate::{
    Plan, images,
    node::{ENDPOINT, Node, NodeConfig, Workers},
    peer::{Detector, Peer},
    site::{ADDRESS, CLIENT, Line, Place, SERVER, is_valid},
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
const WARM_UP: u32 = 5;
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
}

impl Way {
    const ALL: [Self; 6] = [
        Self::RestKept,
        Self::RestFresh,
        Self::Base64Fresh,
        Self::WebSocket,
        Self::SecureWebSocket,
        Self::Tcp,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::RestKept => "REST, kept",
            Self::RestFresh => "REST, a connection each",
            Self::Base64Fresh => "REST + base64, a connection each",
            Self::WebSocket => "WebSocket",
            Self::SecureWebSocket => "wss",
            Self::Tcp => "TCP",
        }
    }

    fn connection(self) -> Connection {
        match self {
            Self::RestKept | Self::RestFresh => Connection::Rest,
            Self::Base64Fresh => Connection::RestBase64,
            Self::WebSocket | Self::SecureWebSocket => Connection::WebSocket,
            Self::Tcp => Connection::Tcp,
        }
    }

    fn is_fresh(self) -> bool {
        matches!(self, Self::RestFresh | Self::Base64Fresh)
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
             that count; Haar's cascade on one thread at both servers; lines of 1 Gbit/s, the one like 4G of {} Mbit/s, 40 ms and σ 10; \
             means, as the paper has them",
            jpeg.bytes.len(),
            png.bytes.len(),
            MOBILE.mbit
        ),
    );
    for case in cases() {
        eprintln!("bench-vision: latency, {}", case.name);
        let lab = case.line.up(1)?;
        let place = Place::In(&lab, SERVER);
        let config = NodeConfig { workers: Workers::Own, endpoints: true, ..NodeConfig::default() };
        let node = Node::start(place, &config)?;
        let peer = match Peer::start(plan, place, Detector::Haar) {
            Ok(peer) => Some(peer),
            Err(error) => {
                eprintln!("bench-vision: {error:#}; its rows will have no peer");
                None
            }
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
    // The slow lines take most of the time, and vary least.
    let requests = match (plan.quick, case.line.round_trip_ms >= 160.0) {
        (true, true) => 5,
        (true, false) => 15,
        (false, true) => 20,
        (false, false) => 40,
    };
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
        let mut ours =
            |_: usize| run(way, node.target(ADDRESS, is_tcp, way == Way::SecureWebSocket)?);
        let beside = peer.filter(|_| way != Way::SecureWebSocket);
        let pair = match beside {
            None => [(0..plan.runs).map(&mut ours).collect::<anyhow::Result<_>>()?, Vec::new()],
            Some(peer) => {
                let mut theirs = |_: usize| run(way, peer.target(ADDRESS, is_tcp));
                let both = interleave(plan.runs, &mut [&mut ours, &mut theirs])?;
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
    report.figure(late(
        Figure::new(format!("{line}, {image}, REST, kept, beyond WebSocket"), "ms")
            .ours(beyond(0))
            .peer(beyond(1))
            .target(Target::AtMost(BEYOND_MAX_MS)),
    ));
}
