//! Traces played to brokers.

use std::{
    fs,
    io::{Read as _, Write as _},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tidegate_load::{
    client::{ClientError, Options as Broker},
    replay::{OnBad, Options, Pace, Progress, ReplayError, Summary, Trace, play},
};
use tidegate_wire::mqtt::QoS;

use crate::{
    broker::Mosquitto,
    server::{Certificate, Server, Transport},
    transports::{echo, options},
};

const TRACE: &str = "time,a\n0,x\n0.02,y\n0.05,z\n";

fn played(
    text: &str,
    replay: &Options,
    broker: &Broker,
    stop: &AtomicBool,
) -> Result<(Summary, Option<ReplayError>), ReplayError> {
    played_with(text, replay, broker, stop, |_| ())
}

fn played_with(
    text: &str,
    replay: &Options,
    broker: &Broker,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> Result<(Summary, Option<ReplayError>), ReplayError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.csv");
    fs::write(&path, text).expect("a file");
    play(&Trace::File(path), replay, broker, stop, |_| (), progress)
}

#[test]
fn a_trace_goes_over_every_transport_however_answers_are_cut() {
    let certificate = Certificate::of("127.0.0.1");
    for transport in Transport::ALL {
        for bytes_max in [1, 1 << 20] {
            let server = Server::start(transport, &certificate, move |channel| {
                let seen = echo(channel, bytes_max);
                assert_eq!(seen, [0x10, 0x32, 0x32, 0x32, 0xE0], "{transport:?}");
            });
            let broker = options(transport, &server, &certificate);
            let replay = Options { qos: QoS::AtLeastOnce, inflight: 1, ..Options::default() };
            let begun = Instant::now();
            let (summary, failure) =
                played(TRACE, &replay, &broker, &AtomicBool::new(false)).expect("it is played");
            assert!(failure.is_none(), "{failure:?}");
            assert!(begun.elapsed() >= Duration::from_millis(50), "no faster than told");
            let counts = (summary.messages, summary.payload_bytes, summary.refused);
            assert_eq!(counts, (3, 3 + 6 + 6, 0));
            assert!(summary.elapsed >= Duration::from_millis(50) && summary.latest.is_some());
            server.join();
        }
    }
}

#[test]
fn a_trace_ends_when_told() {
    let Some(mosquitto) = Mosquitto::start() else { return };
    let broker = Broker { port: mosquitto.port, ..Broker::default() };
    let rows = "0,x\n".repeat(2000);
    for (qos, pace) in [
        (QoS::AtMostOnce, Pace::Unpaced),
        (QoS::AtLeastOnce, Pace::Unpaced),
        (QoS::ExactlyOnce, Pace::Rate(1e6)),
    ] {
        let replay = Options {
            qos,
            pace,
            repeat: true,
            messages_max: Some(5000),
            inflight: 50,
            ..Options::default()
        };
        let (summary, failure) =
            played(&rows, &replay, &broker, &AtomicBool::new(false)).expect("it is played");
        assert!(failure.is_none(), "{failure:?}");
        assert_eq!((summary.messages, summary.payload_bytes), (5000, 15_000), "{qos:?}");
    }
    let replay = Options {
        pace: Pace::Rate(100.0),
        repeat: true,
        duration: Some(Duration::from_millis(300)),
        ..Options::default()
    };
    let begun = Instant::now();
    let (summary, _) = played(&rows, &replay, &broker, &AtomicBool::new(false)).expect("played");
    // One each 10 ms, from the first moment on; a busy machine is late at the end.
    assert!((10..=30).contains(&summary.messages), "{summary}");
    assert!(begun.elapsed() >= Duration::from_millis(300) && !summary.is_stopped);
    // A stop ends it with what was sent, however long the next row is away.
    let stop = AtomicBool::new(false);
    let (sent, first_sent) = mpsc::channel();
    let progress = |progress: &Progress| {
        if progress.messages > 0 {
            let _ = sent.send(()); // once is enough
        }
    };
    let (summary, failure) = thread::scope(|scope| {
        let replaying = scope.spawn(|| {
            let rows = "0,x\n3600,y\n";
            played_with(rows, &hour(), &broker, &stop, progress).expect("played")
        });
        first_sent.recv_timeout(Duration::from_secs(10)).expect("the first is sent");
        stop.store(true, Ordering::Relaxed);
        replaying.join().expect("it ends")
    });
    assert!(failure.is_none() && summary.is_stopped);
    assert_eq!(summary.messages, 1);
}

fn hour() -> Options {
    Options { time: Some("1".parse().expect("a column")), ..Options::default() }
}

#[test]
fn what_was_played_before_a_bad_row_is_told() {
    let Some(mosquitto) = Mosquitto::start() else { return };
    let broker = Broker { port: mosquitto.port, ..Broker::default() };
    let text = "time,a\n0,x\n0.01,y\nnever,z\n0.02,z\n";
    let replay = Options { qos: QoS::AtLeastOnce, ..Options::default() };
    let run = |replay: &Options| {
        played(text, replay, &broker, &AtomicBool::new(false)).expect("it is begun")
    };
    let (summary, failure) = run(&replay);
    assert_eq!(summary.messages, 2);
    assert!(matches!(failure, Some(ReplayError::Bad { line: 4, .. })), "{failure:?}");
    let (summary, failure) = run(&Options { on_bad: OnBad::Skip, ..replay });
    assert!(failure.is_none());
    assert_eq!((summary.messages, summary.bad_rows), (3, 1));
}

#[test]
fn a_broker_that_goes_away_is_named_with_what_was_played() {
    let server = Server::raw(|mut socket| {
        let mut buffer = [0; 1000];
        let _connect = socket.read(&mut buffer).expect("CONNECT");
        socket.write_all(&[0x20, 3, 0, 0, 0]).expect("it listens");
        let _publish = socket.read(&mut buffer).expect("PUBLISH");
        // DISCONNECT: shut down
        socket.write_all(&[0xE0, 2, 0x8B, 0]).expect("it listens");
    });
    let broker = options(Transport::Tcp, &server, &Certificate::of("127.0.0.1"));
    let played = played("0,x\n3600,y\n", &hour(), &broker, &AtomicBool::new(false));
    let (summary, failure) = played.expect("it was begun");
    assert_eq!(summary.messages, 1);
    let is_it = matches!(failure, Some(ReplayError::Client(ClientError::Disconnected { .. })));
    assert!(is_it, "{failure:?}");
    server.join();
}
