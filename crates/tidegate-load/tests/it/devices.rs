//! Arrivals of devices' messages are counted exactly.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::AtomicBool,
    thread,
    time::Duration,
};

use tidegate_load::{
    client::{ClientError, Options},
    devices::{SensorError, SensorReport, SensorSpec, run},
    sensors::{Arrival, Form, Workload},
    url::PATH,
};
use tidegate_wire::mqtt::{FixedHeader, QoS, ReasonCode, Version};

use crate::{
    broker::Mosquitto,
    relay,
    server::{self, Certificate, Transport},
};

fn options(address: SocketAddr) -> Options {
    let (host, port) = (address.ip().to_string(), address.port());
    Options { host, port, version: Version::V4, ..Options::default() }
}

fn verified(options: Options) -> SensorSpec {
    SensorSpec {
        verify_at: Some((options.clone(), "here".to_owned())),
        broker: options,
        devices: Some(100),
        duration: Duration::from_millis(400),
        drain: Duration::from_millis(400),
        ..SensorSpec::default()
    }
}

fn ran(spec: &SensorSpec) -> SensorReport {
    run(spec, &AtomicBool::new(false), |_| ()).expect("it runs")
}

/// All of it arrived, once and in order.
fn assert_whole(report: &SensorReport, note: &str) {
    let found = report.total.verification.as_ref().expect("it was verified");
    assert!(report.total.sent > 100, "{note}: {report}");
    assert_eq!(found.received, report.total.sent, "{note}: {report}");
    let wrong = [found.lost, found.duplicated, found.out_of_order, found.altered];
    assert_eq!(wrong, [0; 4], "{note}: {report}");
    assert_eq!((report.is_whole(), report.foreign), (Some(true), Some(0)), "{note}");
    assert!(found.latency.p50 > 0.0 && found.latency.p50 <= found.latency.max, "{note}");
    for (workload, share) in report.workloads.iter().zip(0..) {
        let even = report.total.sent / report.workloads.len() as u64;
        assert!(workload.sent.abs_diff(even) <= 1, "{note}, {share}: {report}");
    }
}

#[test]
fn a_relay_gives_every_message_of_every_form() {
    for (form, arrival, rate, workloads) in [
        (Form::Natural, Arrival::Turns, None, Workload::ALL.to_vec()),
        (Form::Fixed, Arrival::Random, Some(5000.0), vec![Workload::Fit]),
    ] {
        let spec = verified(options(relay::start()));
        let report = ran(&SensorSpec { form, arrival, rate, workloads, ..spec });
        assert_whole(&report, &format!("{form:?}"));
        if let Some(rate) = rate {
            assert!(report.total.sent as f64 <= rate * 0.4 + 1.0, "{report}");
            assert!(report.latest_us.is_some_and(|latest| latest > 0.0));
        }
    }
}

#[test]
fn a_seed_says_what_is_sent() {
    let sent = |seed| {
        let (messages, address) = tampering(|_, _| Fate::Pass);
        let broker = options(address);
        let (duration, rate) = (Duration::from_millis(100), Some(2000.0));
        let spec = SensorSpec { broker, seed, duration, rate, ..SensorSpec::default() };
        ran(&SensorSpec { devices: Some(50), ..spec });
        messages.join().expect("it saw them")
    };
    let (one, same, other) = (sent(1), sent(1), sent(2));
    // A busy machine sends less.
    let bytes = one.len().min(same.len()).min(other.len());
    assert!(bytes > 1000, "{bytes}");
    assert_eq!(one[..bytes], same[..bytes]);
    assert_ne!(one[..bytes], other[..bytes]);
}

#[test]
fn devices_are_verified_over_every_transport() {
    let certificate = Certificate::of("127.0.0.1");
    for transport in Transport::ALL {
        let options = Options {
            tls: transport.is_tls().then(|| certificate.client()),
            websocket: transport.is_websocket().then(|| PATH.to_owned()),
            ..options(server::relay(transport, &certificate))
        };
        let spec = verified(options);
        assert_whole(&ran(&SensorSpec { window: 500, ..spec }), &format!("{transport:?}"));
    }
}

#[test]
fn mosquitto_gives_every_message_of_every_quality() {
    let Some(broker) = Mosquitto::start() else { return };
    for version in [Version::V3, Version::V4, Version::V5] {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let options = Options { port: broker.port, version, ..Options::default() };
            // It ends a connection with more than 20 messages of QoS 2 under way, and before MQTT 5 cannot say so.
            let inflight = 20;
            let spec =
                SensorSpec { qos, inflight, connections: 3, window: 200, ..verified(options) };
            let report = ran(&spec);
            assert_whole(&report, &format!("{version:?} {qos:?}"));
            let acknowledged = if qos == QoS::AtMostOnce { 0 } else { report.total.sent };
            assert_eq!((report.acknowledged, report.refused), (acknowledged, 0), "{report}");
        }
    }
}

/// Fate of a message at a broker that cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Lose,
    Repeat,
    Alter,
    /// It comes behind the next one of any topic.
    Delay,
}

/// A broker for QoS 0 and one publisher, which decides by number and topic what becomes of each message. The thread gives what the
/// publisher sent.
fn tampering(
    fate: impl Fn(u64, &str) -> Fate + Send + 'static,
) -> (thread::JoinHandle<Vec<u8>>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a listener has an address");
    let thread = thread::spawn(move || {
        let mut subscriber: Option<TcpStream> = None;
        for mut socket in listener.incoming().map_while(Result::ok) {
            let (mut input, mut sent, mut number) = (Vec::new(), Vec::new(), 0);
            let mut delayed = Vec::new();
            let mut buffer = vec![0; 64 << 10];
            loop {
                let bytes = socket.read(&mut buffer).unwrap_or(0);
                if bytes == 0 {
                    // The publisher has gone; who subscribes goes by itself.
                    if let Some(mut subscriber) = subscriber.take() {
                        while subscriber.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
                    }
                    return sent;
                }
                input.extend_from_slice(&buffer[..bytes]);
                let mut out = Vec::new();
                while let Some(header) = FixedHeader::decode(&input, usize::MAX).expect("MQTT")
                    && input.len() >= header.packet_bytes()
                {
                    let mut packet: Vec<_> = input.drain(..header.packet_bytes()).collect();
                    let body = &packet[header.header_bytes..];
                    match header.packet_type() {
                        1 => socket.write_all(&[0x20, 2, 0, 0]).expect("it listens"),
                        8 => {
                            socket.write_all(&[0x90, 3, body[0], body[1], 0]).expect("it listens");
                        }
                        3 => {
                            sent.extend_from_slice(&packet);
                            let topic_bytes = usize::from(body[0]) << 8 | usize::from(body[1]);
                            let topic = std::str::from_utf8(&body[2..2 + topic_bytes]).unwrap();
                            let fate = fate(number, topic);
                            number += 1;
                            let behind = std::mem::take(&mut delayed);
                            match fate {
                                Fate::Pass => out.extend_from_slice(&packet),
                                Fate::Lose => {}
                                Fate::Repeat => out.extend_from_slice(&packet.repeat(2)),
                                Fate::Alter => {
                                    *packet.last_mut().expect("a payload") ^= 1;
                                    out.extend_from_slice(&packet);
                                }
                                Fate::Delay => delayed = packet,
                            }
                            out.extend_from_slice(&behind);
                        }
                        _ => {}
                    }
                }
                if let Some(subscriber) = &mut subscriber {
                    subscriber.write_all(&out).expect("it listens");
                }
                if subscriber.is_none() && buffer[0] == 0x82 {
                    subscriber = Some(socket);
                    break;
                }
            }
        }
        Vec::new()
    });
    (thread, address)
}

#[test]
fn what_a_broker_does_wrong_is_counted() {
    for (wrong, expected) in [
        (Fate::Pass, [0, 0, 0, 0]),
        (Fate::Lose, [10, 0, 0, 0]),
        (Fate::Repeat, [0, 10, 0, 0]),
        (Fate::Alter, [10, 0, 0, 10]),
        (Fate::Delay, [0, 0, 10, 0]),
    ] {
        // One topic, so that all are in one order.
        let (_, address) =
            tampering(
                move |number, _| {
                    if number % 10 == 3 && number < 100 { wrong } else { Fate::Pass }
                },
            );
        let spec = verified(options(address));
        let (workloads, devices) = (vec![Workload::Grid], Some(1));
        let report = ran(&SensorSpec { workloads, devices, rate: Some(1000.0), ..spec });
        let found = report.total.verification.as_ref().expect("it was verified");
        let counts = [found.lost, found.duplicated, found.out_of_order, found.altered];
        assert_eq!(counts, expected, "{wrong:?}: {report}");
        assert_eq!(report.is_whole(), Some(expected[0] == 0 && expected[3] == 0));
        assert_eq!(found.received + found.lost, report.total.sent);
    }
}

#[test]
fn a_report_is_the_same_in_every_format() {
    let spec = verified(options(relay::start()));
    let report = ran(&SensorSpec { rate: Some(1000.0), ..spec });
    let head: Vec<_> = SensorReport::CSV_HEAD.split(',').collect();
    let csv = report.csv();
    let lines: Vec<Vec<_>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 5, "four workloads and all of them");
    assert!(lines.iter().all(|line| line.len() == head.len()), "{csv}");
    let at = |name: &str| head.iter().position(|column| *column == name).expect("a column");
    assert_eq!(lines[4][at("sent")], report.total.sent.to_string());
    assert_eq!(lines[0][at("workload")], "CITY");
    let json = serde_json::to_value(&report).expect("it is JSON");
    assert_eq!(json["total"]["verification"]["received"], report.total.sent);
    assert_eq!(json["workloads"][3]["name"], "FIT");
    let table = report.to_string();
    assert!(table.contains("received") && table.contains("the latest left"), "{table}");
    // The report says nothing of arrivals that were not verified.
    let plain = ran(&SensorSpec { verify_at: None, ..verified(options(relay::start())) });
    assert!(plain.csv().lines().all(|line| line.split(',').count() == head.len()));
    assert!(!plain.to_string().contains("received") && plain.is_whole().is_none());
}

#[test]
fn failures_name_the_broker() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one");
    for spec in [
        SensorSpec { broker: options(nobody), ..SensorSpec::default() },
        SensorSpec {
            verify_at: Some((options(nobody), "there".to_owned())),
            broker: options(relay::start()),
            ..SensorSpec::default()
        },
    ] {
        let error = run(&spec, &AtomicBool::new(false), |_| ()).expect_err("there is no server");
        let is_it = matches!(&error, SensorError::Client(ClientError::Connect { .. }));
        assert!(is_it && error.to_string().contains(&nobody.to_string()), "{error:?}");
    }
    // A broker that refuses what it could take later: counted, and reported.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one");
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        let mut buffer = vec![0; 64 << 10];
        let _connect = socket.read(&mut buffer).expect("CONNECT");
        socket.write_all(&[0x20, 3, 0, 0, 0]).expect("it listens");
        let mut input = Vec::new();
        while let Ok(bytes @ 1..) = socket.read(&mut buffer) {
            input.extend_from_slice(&buffer[..bytes]);
            while let Some(header) = FixedHeader::decode(&input, usize::MAX).expect("MQTT")
                && input.len() >= header.packet_bytes()
            {
                let packet: Vec<_> = input.drain(..header.packet_bytes()).collect();
                let body = &packet[header.header_bytes..];
                let at = 2 + (usize::from(body[0]) << 8 | usize::from(body[1]));
                if header.packet_type() == 3 {
                    let puback = [0x40, 3, body[at], body[at + 1], ReasonCode::QUOTA_EXCEEDED.0];
                    socket.write_all(&puback).expect("it listens");
                }
            }
        }
    });
    let broker = Options { version: Version::V5, ..options(address) };
    let (duration, qos) = (Duration::from_millis(100), QoS::AtLeastOnce);
    let report = ran(&SensorSpec { broker, duration, qos, ..SensorSpec::default() });
    assert_eq!((report.refused, report.acknowledged), (report.total.sent, 0));
    assert!(report.to_string().contains("refused") && report.refusal.is_some(), "{report}");
}
