//! The Django server beside which the endpoints are measured, and the client that measures both.

use std::{process::Command, sync::atomic::AtomicBool};

use bench_vision::{
    Plan, images,
    peer::{Detector, Peer},
    root,
    site::Place,
};
use tidegate_load::vision::{Connection, Counting, Image, VisionReport, VisionSpec, run};

/// The exit status of a script for lack of Python or of a network.
const UNAVAILABLE: i32 = 69;

const WAYS: [Connection; 4] =
    [Connection::Rest, Connection::RestBase64, Connection::WebSocket, Connection::Tcp];

/// A peer; none where it cannot be had.
fn start(detector: Detector) -> Option<Peer> {
    let plan = Plan { quick: true, runs: 1, root: root() };
    let script = root().join("scripts/vision-peer");
    let output = Command::new(script).arg("python").output().expect("the script is here");
    if output.status.code() == Some(UNAVAILABLE) {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        return None;
    }
    Some(Peer::start(&plan, Place::Here, detector).expect("it serves"))
}

fn measured(peer: &Peer, way: Connection, images: Vec<Image>, threads: u32) -> VisionReport {
    let spec = VisionSpec {
        target: peer.target("127.0.0.1", way == Connection::Tcp),
        endpoint: "/detector/detect/".to_owned(),
        connection: way,
        connection_per_request: false,
        authorization: None,
        images,
        threads,
        counting: Counting::Repeats(3),
        rate: None,
        warm_up: 1,
        network: true,
        stats_port: None,
        keep_times: false,
    };
    run(&spec, &AtomicBool::new(false), &|_| ()).expect("it is there")
}

#[test]
fn haar_finds_the_portrait_in_every_way_and_refuses_what_is_no_image() {
    let Some(peer) = start(Detector::Haar) else { return };
    let portrait = images::portrait(1);
    let jpeg = Image::new("portrait.jpg", images::jpeg(&portrait, 90).unwrap());
    let png = Image::new("portrait.png", images::png(&portrait).unwrap());
    for way in WAYS {
        let report = measured(&peer, way, vec![jpeg.clone(), png.clone()], 2);
        assert!(report.is_whole(), "{way:?}: {report}");
        assert_eq!((report.found, report.nothing_found), (12, 0), "{way:?}: {report}");
        assert_eq!(report.server_processing.count, 12, "{report}");
        assert!(report.server_processing.avg < report.full_process.avg, "{report}");
        assert_eq!(report.reconnects, 0, "{way:?}: {report}");
        let wrong = Image::new("wrong.jpg", b"%PDF-1.7 and more".to_vec());
        let report = measured(&peer, way, vec![wrong], 1);
        assert_eq!((report.answered(), report.failed.len()), (0, 0), "{way:?}: {report}");
        assert_eq!(report.refused.values().sum::<u64>(), 3, "{way:?}: {report}");
    }
}

#[test]
fn one_detector_that_takes_its_time_serves_one_at_a_time() {
    let Some(peer) = start(Detector::Echo(20.0)) else { return };
    let image = Image::new("portrait.jpg", images::jpeg(&images::portrait(1), 90).unwrap());
    let report = measured(&peer, Connection::WebSocket, vec![image], 4);
    assert!(report.is_whole(), "{report}");
    // Twelve times 20 ms at least, whatever the clients would like.
    assert!(report.seconds >= 0.23, "{report}");
}
