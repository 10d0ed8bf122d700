//! Counts of loads are exact.

use std::{io::Write as _, sync::atomic::AtomicBool, time::Duration};

use tidegate_load::{Flow, LoadError, Pace, Report, Spec, Topology};
use tidegate_wire::mqtt::{QoS, Version};

use crate::{
    broker::Mosquitto,
    relay,
    server::{self, Certificate, Server, Transport},
    transports::{answering, until_it_goes},
};

fn short(target: String) -> Spec {
    Spec {
        target,
        warm_up: Duration::from_millis(100),
        duration: Duration::from_millis(400),
        ..Spec::default()
    }
}

fn run(spec: &Spec) -> Report {
    tidegate_load::run(spec, &AtomicBool::new(false), |_| ()).expect("the load runs")
}

fn assert_exact(report: &Report, copies: u64, note: &str) {
    let total = &report.total;
    assert_eq!(report.failures, [], "{note}");
    assert!(total.sent > 0, "{note}");
    assert_eq!(total.received, total.sent * copies, "{note}: {report}");
    assert_eq!((total.lost, total.duplicated, total.out_of_order), (0, 0, 0), "{note}: {report}");
    assert_eq!(report.foreign, 0, "{note}");
    assert!(total.received_per_second > 0.0 && total.latency.messages > 0, "{note}: {report}");
    assert!(total.latency.p50 <= total.latency.max, "{note}");
}

#[test]
fn a_relay_gets_and_gives_every_message() {
    for (subscribers, payload_bytes, pace) in [
        (1, 16, Pace::Window(1000)),
        (1, 100, Pace::Rate(2000.0)),
        (3, 100, Pace::Window(10)),
        (1, 300_000, Pace::Window(4)), // longer than one read
    ] {
        let topology = Topology::FanOut;
        let flows = vec![Flow { payload_bytes, pace, ..Flow::default() }];
        let spec = Spec { topology, subscribers, flows, ..short(relay::start().to_string()) };
        assert_exact(
            &run(&spec),
            u64::from(subscribers),
            &format!("{subscribers} {payload_bytes}"),
        );
    }
}

#[test]
fn every_message_comes_over_tls_and_websocket() {
    let certificate = Certificate::of("127.0.0.1");
    for transport in Transport::ALL {
        for (subscribers, payload_bytes, pace) in [
            (1, 16, Pace::Window(1000)),
            (2, 100, Pace::Rate(2000.0)),
            (1, 300_000, Pace::Window(4)), // longer than one read, and than a record of TLS
        ] {
            let spec = Spec {
                tls: transport.is_tls().then(|| certificate.client()),
                topology: Topology::FanOut,
                subscribers,
                idle: 1,
                flows: vec![Flow { payload_bytes, pace, ..Flow::default() }],
                ..short(transport.url(server::relay(transport, &certificate)))
            };
            let note = format!("{transport:?} {payload_bytes}");
            assert_exact(&run(&spec), u64::from(subscribers), &note);
        }
    }
}

#[test]
fn a_broker_that_is_none_over_its_transport_is_told() {
    let (certificate, other) = (Certificate::of("127.0.0.1"), Certificate::of("other.example"));
    let http = "HTTP/1.1 404 Not Found\r\n\r\n";
    let untrusted =
        Server::start(Transport::Tls, &certificate, |channel| assert_eq!(channel.receive(), None));
    for (transport, trust, server, expected) in [
        (
            Transport::Tls,
            Some(&other),
            untrusted,
            "TLS failed: invalid peer certificate: UnknownIssuer",
        ),
        (
            Transport::Tls,
            Some(&certificate),
            Server::raw(|mut socket| {
                socket.write_all(http.as_bytes()).expect("the generator reads");
                until_it_goes(socket);
            }),
            "TLS failed: received corrupt message of type InvalidContentType",
        ),
        (
            Transport::WebSocket,
            None,
            answering(http),
            "the WebSocket handshake failed: the server answers 404; check the path",
        ),
        (
            Transport::SecureWebSocket,
            Some(&certificate),
            Server::start(Transport::Tls, &certificate, |channel| {
                let request = channel.receive().expect("a request");
                assert!(request.starts_with(b"GET /mqtt HTTP/1.1\r\n"));
                channel.close();
            }),
            "closed by the broker",
        ),
    ] {
        let spec = Spec {
            tls: trust.map(Certificate::client),
            topology: Topology::FanOut,
            publishers: 0,
            ..short(transport.url(server.address))
        };
        match tidegate_load::run(&spec, &AtomicBool::new(false), |_| ()) {
            Err(LoadError::NobodyConnected { failures, .. }) => {
                assert_eq!(failures[0].reason, expected, "{transport:?}");
            }
            other => panic!("{transport:?}: {other:?}"),
        }
        server.join();
    }
}

#[test]
fn a_target_that_cannot_be_is_an_error() {
    for (target, expected) in [
        ("http://127.0.0.1", "is not a URL scheme of a broker"),
        ("wss://127.0.0.1", "--cafile FILE"),
        ("127.0.0.1:0", "1 to 65535"),
    ] {
        let error = tidegate_load::run(&short(target.to_owned()), &AtomicBool::new(false), |_| ());
        let Err(LoadError::Url { source, .. }) = error else { panic!("{target}: {error:?}") };
        assert!(source.to_string().contains(expected), "{target}: {source}");
    }
}

#[test]
fn a_rate_is_kept() {
    let flows = vec![Flow { pace: Pace::Rate(1000.0), ..Flow::default() }];
    let spec = Spec { flows, ..short(relay::start().to_string()) };
    let total = run(&spec).total;
    // 1000 per second for 0.5 s; on a busy machine the end may come before what was due last.
    assert!((400..=501).contains(&total.sent), "{total:?}");
}

#[test]
fn nobody_there_is_an_error_with_its_reason() {
    let spec = short("127.0.0.1:1".to_owned());
    match tidegate_load::run(&spec, &AtomicBool::new(false), |_| ()) {
        Err(LoadError::NobodyConnected { failures, .. }) => {
            assert_eq!(failures.len(), 1);
            assert_eq!(failures[0].connections, 2);
            assert!(failures[0].reason.contains("refused"), "{failures:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stop_ends_a_run() {
    let spec = Spec { duration: Duration::from_secs(3600), ..short(relay::start().to_string()) };
    let stop = AtomicBool::new(false);
    let report = tidegate_load::run(&spec, &stop, |_| {
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(report.expect("a stopped run has a report").stopped);
}

#[test]
fn mosquitto_delivers_every_message_of_every_qos_and_shape() {
    let Some(broker) = Mosquitto::start() else { return };
    use QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
    for version in [Version::V4, Version::V5] {
        for (topology, publishers, subscribers, qos, threads, copies) in [
            (Topology::Pairs, 1, 1, AtMostOnce, 1, 1),
            (Topology::Pairs, 3, 3, AtLeastOnce, 2, 1),
            (Topology::Pairs, 2, 2, ExactlyOnce, 1, 1),
            (Topology::FanOut, 1, 5, AtMostOnce, 1, 5),
            (Topology::FanOut, 2, 5, AtLeastOnce, 2, 5),
            (Topology::FanIn, 4, 1, ExactlyOnce, 1, 1),
            (Topology::FanIn, 4, 3, AtLeastOnce, 1, 1), // shared
        ] {
            let spec = Spec {
                version,
                topology,
                publishers,
                subscribers,
                threads,
                flows: vec![Flow { qos, pace: Pace::Window(20), ..Flow::default() }],
                process: Some(broker.process()),
                ..short(format!("127.0.0.1:{}", broker.port))
            };
            let note = format!("{version:?} {topology:?} {publishers} {subscribers} {qos:?}");
            let report = run(&spec);
            assert_exact(&report, copies, &note);
            let acknowledged = if qos == AtMostOnce { 0 } else { report.total.sent };
            assert_eq!(report.total.acknowledged, acknowledged, "{note}");
            assert!(report.broker.expect("its process was named").per_cpu_second > 0.0, "{note}");
        }
    }
}

#[test]
fn mosquitto_delivers_mixed_sizes_beside_idle_and_stalled_connections() {
    let Some(broker) = Mosquitto::start() else { return };
    let flow = |name: &str, payload_bytes, millis, qos| Flow {
        name: name.to_owned(),
        payload_bytes,
        qos,
        pace: Pace::Every(Duration::from_millis(millis)),
    };
    let spec = Spec {
        publishers: 2,
        subscribers: 2,
        idle: 3,
        stalled: 1,
        source_addresses: 3,
        flows: vec![
            flow("small", 100, 5, QoS::AtMostOnce),
            flow("large", 1_000_000, 100, QoS::AtLeastOnce),
        ],
        ..short(format!("127.0.0.1:{}", broker.port))
    };
    let report = run(&spec);
    assert_eq!(report.connected, 8, "{report}");
    assert_exact(&report, 1, "mixed");
    assert!(
        report.flows.iter().all(|flow| flow.received > 0 && flow.latency.messages > 0),
        "{report}"
    );
    assert_eq!(report.csv().lines().count(), 3);
    let columns = |line: &str| line.split(',').count();
    assert!(report.csv().lines().all(|line| columns(line) == columns(Report::CSV_HEAD)));
}
