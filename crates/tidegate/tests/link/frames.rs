use std::time::Duration;

use bytes::Bytes;
use tidegate_link::link::{Incoming, LinkError, Outcome, Priority, Transport};
use tidegate_message::{Bounds, Code, Demand, DropReason, FrameSize, Instant};
use tidegate_wire::*;
use tokio::time::timeout;

use crate::support::{PATIENCE, Site, body, header, next, next_frame};

const BOTH: [Transport; 2] = [Transport::Quic, Transport::Tcp];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_all_sizes_arrive_whole() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        assert_eq!(camera.path().transport, transport);
        for (millis, bytes) in [(1, 0), (2, 1), (3, 500_000), (4, 9_000_000)] {
            let sent = body(bytes, 1);
            let sending =
                camera.send_frame(header(millis, bytes), sent.clone(), Priority::Live).unwrap();
            let (header, received) = next_frame(&edge).await;
            assert_eq!(header.at.as_nanos(), millis * 1_000_000);
            assert!(received == sent, "{bytes} bytes over {transport:?}");
            assert_eq!(sending.done().await, Outcome::Sent);
            assert_eq!(sending.progress().received, bytes as u64);
        }
    }
}

/// A sender that waits for each acknowledgement relies on this: it has its frames handed over in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_is_acknowledged_only_when_it_was_handed_over() {
    const MANY: i64 = 2000;
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        // The camera reads its acks; the edge node reads nothing, and what it may hold is bounded.
        let reading = async { while camera.recv().await.is_ok() {} };
        let sending = async {
            let mut acknowledged = 0;
            let last = loop {
                assert!(
                    acknowledged < MANY,
                    "all are acknowledged over {transport:?}, none is read"
                );
                let frame = header(acknowledged, 1);
                let sending = camera.send_frame(frame, body(1, 1), Priority::InOrder).unwrap();
                if timeout(Duration::from_millis(500), sending.done()).await.is_err() {
                    break sending;
                }
                acknowledged += 1;
            };
            for millis in 0..=acknowledged {
                assert_eq!(next_frame(&edge).await.0.at.as_nanos(), millis * 1_000_000);
            }
            assert_eq!(timeout(PATIENCE, last.done()).await, Ok(Outcome::Sent));
            acknowledged
        };
        tokio::select! {
            () = reading => panic!("the link ended over {transport:?}"),
            acknowledged = sending => assert!(acknowledged >= 256, "{acknowledged} over {transport:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_frames_back_to_back_arrive_once_each() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        let receive = async {
            let mut missing: std::collections::BTreeSet<i64> = (0..100).collect();
            while !missing.is_empty() {
                let (header, received) = next_frame(&edge).await;
                let millis = header.at.as_nanos() / 1_000_000;
                assert!(missing.remove(&millis), "{millis} came twice over {transport:?}");
                assert!(received == body(20_000, millis as u64));
            }
        };
        let send = async {
            let mut under_way = std::collections::VecDeque::new();
            for millis in 0..100 {
                if under_way.len() == 16 {
                    let oldest: tidegate_link::link::FrameSending = under_way.pop_front().unwrap();
                    assert_eq!(oldest.done().await, Outcome::Sent);
                }
                let body = body(20_000, millis as u64);
                let header = header(millis, body.len());
                under_way.push_back(camera.send_frame(header, body, Priority::InOrder).unwrap());
            }
        };
        tokio::join!(receive, send);
    }
}

/// On one thread all frames are handed over before the first byte of any can leave.
#[tokio::test]
async fn live_frames_go_first_and_among_them_the_oldest() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        let large = body(1_000_000, 9);
        for millis in [1, 2, 3, 4, 5, 6] {
            let priority = if millis <= 2 { Priority::InOrder } else { Priority::Live };
            camera.send_frame(header(millis, large.len()), large.clone(), priority).unwrap();
        }
        let mut arrived = Vec::new();
        while arrived.len() < 6 {
            arrived.push(next_frame(&edge).await.0.at.as_nanos() / 1_000_000);
        }
        assert_eq!(arrived, [3, 4, 5, 6, 1, 2], "over {transport:?}");
    }
}

/// Over loopback a frame is through before it can be reset, unless it is as large as they come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_reset_on_its_way_leaves_the_next_one_intact() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        let large = body(60_000_000, 3);
        let sending =
            camera.send_frame(header(1, large.len()), large.clone(), Priority::Live).unwrap();
        let begun = next(&camera, |item| match item {
            Incoming::Ack(ack) => Some(ack),
            _ => None,
        });
        assert!(!begun.await.complete);
        sending.reset();
        assert_eq!(sending.done().await, Outcome::Reset);
        let small = body(100_000, 4);
        camera.send_frame(header(2, small.len()), small.clone(), Priority::Live).unwrap();

        let (mut reset, mut whole) = (false, false);
        while !(reset && whole) {
            next(&edge, |item| match item {
                Incoming::FrameReset { header, received, .. } => {
                    assert_eq!(header.at, Instant::from_millis(1));
                    assert!(received > 0 && received < large.len() as u64, "{received}");
                    reset = true;
                    Some(())
                }
                Incoming::Frame { header, body, .. } => {
                    assert_eq!(header.at, Instant::from_millis(2), "over {transport:?}");
                    assert!(body == small);
                    whole = true;
                    Some(())
                }
                _ => None,
            })
            .await;
        }
        let told = next(&camera, |item| match item {
            Incoming::Ack(ack) if ack.reset_seen => Some(ack),
            _ => None,
        });
        assert_eq!(told.await.frame, Instant::from_millis(1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_is_reset_at_its_deadline() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, _edge, _listener) = site.pair(transport).await;
        let large = body(60_000_000, 5);
        let now = tokio::time::Instant::now();
        let sending =
            camera.send_frame_until(header(1, large.len()), large, Priority::Live, now).unwrap();
        assert_eq!(sending.done().await, Outcome::Reset, "over {transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_tell_of_progress_in_order_of_time() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        let sent = body(60_000_000, 6);
        camera.send_frame(header(1, sent.len()), sent.clone(), Priority::Live).unwrap();
        let mut acks = Vec::<Ack>::new();
        while acks.last().is_none_or(|ack| !ack.complete) {
            let ack = next(&camera, |item| match item {
                Incoming::Ack(ack) => Some(ack),
                _ => None,
            });
            acks.push(ack.await);
        }
        // Over loopback most are replaced by newer ones before they leave; that of a frame as large as they come is not the only one.
        assert!(acks.len() >= 2, "{} acks over {transport:?}", acks.len());
        for pair in acks.windows(2) {
            assert!(pair[0].received <= pair[1].received, "{pair:?}");
            assert!(pair[0].last_at <= pair[1].last_at, "{pair:?}");
            assert_eq!(pair[0].first_at, pair[1].first_at);
        }
        let last = acks.last().unwrap();
        assert_eq!((last.received, last.total), (60_000_000, 60_000_000));
        drop(edge);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_arrive_as_they_were_sent() {
    let demand = Demand {
        bounds: Bounds::new(std::time::Duration::from_millis(100), 0.95).unwrap(),
        controller: Default::default(),
        delivery: Default::default(),
        when_infeasible: Default::default(),
        profile: Default::default(),
        frame_rate: None,
    };
    let transfer = TransferId(9);
    let at = Instant::from_millis(5);
    let camera_announce = CameraAnnounce {
        name: "cam1".parse().unwrap(),
        size: Some(FrameSize { width: 640, height: 360 }),
        frames_per_second: 15.0,
        source: "a test".to_owned(),
    };
    let control: Vec<Record> = vec![
        Hello {
            minor: MINOR,
            node: NodeId([1; 32]),
            epoch: 2,
            boot: BootId([3; 16]),
            role: Role::Camera,
            features: Features(4),
            camera: Some(camera_announce.clone()),
        }
        .into(),
        Refused::new(Code::CAMERA_TAKEN, "another node has it").into(),
        StartTransfer {
            transfer,
            demand,
            from: Some(at),
            to: None,
            resume_after: None,
            hints: TransferHints { scene: "simple".to_owned(), ..TransferHints::default() },
        }
        .into(),
        UpdateTransfer { transfer, demand }.into(),
        StopTransfer { transfer }.into(),
        FetchOriginal { request: 1, at }.into(),
        CameraInfoRequest { request: 2 }.into(),
    ];
    let critical: Vec<Record> = vec![
        Unchanged { transfer, at }.into(),
        CameraReport {
            transfer,
            at,
            capacity_bytes_per_second: Some(2_000_000),
            text: "too slow".to_owned(),
            what: Reported::Infeasible {
                latency_at_accuracy: Some(std::time::Duration::from_millis(130)),
                accuracy_at_latency: None,
                frames_per_second: None,
            },
        }
        .into(),
    ];
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        for lane in [&control, &critical] {
            for record in lane {
                camera.send(record.clone()).await.unwrap();
            }
            for expected in lane {
                let received = next(&edge, |item| match item {
                    Incoming::Record(record) => Some(record),
                    _ => None,
                });
                assert_eq!(&received.await, expected, "over {transport:?}");
            }
        }
        let original =
            Original { request: 1, at, outcome: OriginalOutcome::Found { bytes: 700_000 } };
        camera.send_bulk(original, body(700_000, 7)).await.unwrap();
        let bulk = next(&edge, |item| match item {
            Incoming::Bulk { record, body } => Some((record, body)),
            _ => None,
        });
        assert!(bulk.await == (original.into(), body(700_000, 7)), "over {transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_cannot_be_sent_are_refused_by_name() {
    let site = Site::new();
    let (camera, _edge, _listener) = site.pair(Transport::Quic).await;
    let wrong = camera.send_frame(header(1, 5), Bytes::from_static(b"four"), Priority::Live);
    assert!(matches!(wrong, Err(LinkError::Length { bytes: 4, expected: 5 })));
    let misplaced = camera.send(header(1, 5)).await;
    assert!(matches!(misplaced, Err(LinkError::Class { name: "FrameHeader" })));
    let large = body(1_000_000, 8);
    let busy = (0..1000).find_map(|millis| {
        camera.send_frame(header(millis, large.len()), large.clone(), Priority::Live).err()
    });
    assert!(matches!(busy, Some(LinkError::Busy { limit: 32 })), "{busy:?}");
}

/// A count that version 1.2, in which it is a number of 53 bits, cannot say exactly.
const EXACT: u64 = (1 << 53) + 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_are_written_in_the_version_that_the_peer_speaks() {
    let report = CameraReport {
        transfer: TransferId(9),
        at: Instant::from_millis(5),
        capacity_bytes_per_second: None,
        text: "log wrapped".to_owned(),
        what: Reported::FramesDropped {
            why: Some(DropReason::LogWrapped),
            count: EXACT,
            span: Duration::from_millis(1500),
        },
    };
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        for (speaks, expected) in [(None, EXACT - 1), (Some(2), EXACT - 1), (Some(MINOR), EXACT)] {
            if let Some(minor) = speaks {
                let (node, boot) = (NodeId([1; 32]), BootId([3; 16]));
                let features = Features(0);
                let now = Instant::from_millis(1);
                edge.send(Welcome { minor, node, epoch: 2, boot, features, now }).await.unwrap();
                next(&camera, |item| match item {
                    Incoming::Record(Record::Welcome(welcome)) => Some(welcome),
                    _ => None,
                })
                .await;
            }
            camera.send(report.clone()).await.unwrap();
            let came = next(&edge, |item| match item {
                Incoming::Record(Record::CameraReport(report)) => Some(report),
                _ => None,
            });
            let Reported::FramesDropped { why, count, span } = came.await.what else {
                panic!("another report came");
            };
            assert_eq!(count, expected, "to {speaks:?} over {transport:?}");
            assert_eq!(why, Some(DropReason::LogWrapped));
            assert_eq!(span, Duration::from_millis(1500));
        }
    }
}
