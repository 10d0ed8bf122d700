use std::{net::UdpSocket, time::Duration};

use tidegate_identity::pki::{self, Kind, revocation::Reason};
use tidegate_link::link::{
    DownReason, LinkError, LinkSettings, Outcome, Priority, Transport, dial,
};

use crate::{
    poll_async::poll,
    support::{PATIENCE, Site, body, header, next_frame},
};

const BOTH: [Transport; 2] = [Transport::Quic, Transport::Tcp];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_know_each_other_by_certificate() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        assert_eq!(camera.peer(), site.edge.identity());
        assert_eq!(edge.peer(), site.cam1.identity());
        assert_eq!((edge.peer().kind, &*edge.peer().name), (Kind::Camera, "cam1"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_refused_and_disturbs_nobody() {
    let (site, stranger) = (Site::new(), Site::new());
    for transport in BOTH {
        let (camera, edge, mut listener) = site.pair(transport).await;
        let address = listener.local_address();
        let refused = dial(address, &stranger.cam1, LinkSettings::default(), transport).await;
        let Err(error @ LinkError::Refused { .. }) = refused.map(|_| ()) else {
            panic!("over {transport:?}: {:?}", "not refused")
        };
        assert!(error.to_string().contains("tidegate init"), "{error}");

        let sent = body(1000, 1);
        camera.send_frame(header(1, 1000), sent.clone(), Priority::Live).unwrap();
        assert!(next_frame(&edge).await.1 == sent);
        site.connect(&mut listener, address, transport).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_certificate_is_refused_by_either_side_and_told_so() {
    for transport in BOTH {
        for (name, ours) in [("cam1", true), ("edge", false)] {
            let site = Site::new();
            let mut listener = site.listen(LinkSettings::default()).await;
            let address = listener.local_address();
            // In use before, so that it is the list that makes the difference.
            site.connect(&mut listener, address, transport).await;
            pki::revoke(site.dir.path(), &[name.to_owned()], Reason::Unspecified).unwrap();
            let judge = if ours { &site.edge } else { &site.cam1 };
            assert!(judge.revocations().refresh().unwrap());
            let refused = dial(address, &site.cam1, LinkSettings::default(), transport).await;
            match refused.map(|_| ()) {
                Err(LinkError::Revoked { ours: told, .. }) => assert_eq!(told, ours),
                other => panic!("{name} over {transport:?}: {other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_camera_reconnects_after_its_edge_node_died() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, listener) = site.pair(transport).await;
        let address = listener.local_address();
        edge.close(7, "going down");
        drop((edge, listener));
        let reason = tokio::time::timeout(PATIENCE, camera.closed()).await.unwrap();
        let told = DownReason::ClosedByPeer { code: 7, reason: "going down".to_owned() };
        assert_eq!(reason, told, "over {transport:?}");
        assert!(matches!(camera.recv().await, Err(LinkError::Down(_))));
        let late = camera.send_frame(header(1, 10), body(10, 1), Priority::Live);
        assert!(matches!(late, Err(LinkError::Down(_))));

        let mut listener = site.listen(LinkSettings::default()).await;
        let again = listener.local_address();
        assert_ne!(address, again);
        let (camera, edge) = site.connect(&mut listener, again, transport).await;
        let sent = body(1000, 1);
        let sending = camera.send_frame(header(1, 1000), sent.clone(), Priority::Live).unwrap();
        assert!(next_frame(&edge).await.1 == sent);
        assert_eq!(sending.done().await, Outcome::Sent);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_link_loses_its_frames() {
    let site = Site::new();
    for transport in BOTH {
        let (camera, edge, _listener) = site.pair(transport).await;
        let large = body(60_000_000, 2);
        let sending = camera.send_frame(header(1, large.len()), large, Priority::Live).unwrap();
        drop(edge);
        assert_eq!(sending.done().await, Outcome::Lost, "over {transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_learn_the_clock_offset() {
    let site = Site::new();
    for transport in BOTH {
        let ahead = Duration::from_secs(1000);
        let clock = std::sync::Arc::new(move || tidegate_process::clock::now() + ahead);
        let mut listener = site.listen(LinkSettings { clock, ..LinkSettings::default() }).await;
        let address = listener.local_address();
        let (camera, edge) = site.connect(&mut listener, address, transport).await;
        for (link, expected) in [(&camera, 1_000_000_000_000), (&edge, -1_000_000_000_000)] {
            let known = poll(PATIENCE, async || link.clock_offset()).await;
            let (offset, error) = known.expect("it becomes known");
            let off = u128::from(i64::abs_diff(offset, expected));
            assert!(off <= error.as_nanos() + 1, "{offset} is off by {off}, said {error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_takes_over_where_udp_is_blocked_without_waiting_for_it() {
    let site = Site::new();
    // The port of a listener whose UDP half hears nothing.
    let mut listener = site.listen(LinkSettings::default()).await;
    let address = listener.local_address();
    let (deaf, tcp) = loop {
        let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
        if let Ok(tcp) = tokio::net::TcpListener::bind(deaf.local_addr().unwrap()).await {
            break (deaf, tcp);
        }
    };
    let forward = tokio::spawn(async move {
        let (mut near, _) = tcp.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(address).await.unwrap();
        tokio::io::copy_bidirectional(&mut near, &mut far).await.ok();
    });
    // QUIC would not give up before the test does.
    let never = 100 * PATIENCE;
    let config =
        LinkSettings { connect_timeout: never, idle_timeout: never, ..LinkSettings::default() };
    let dialled = dial(deaf.local_addr().unwrap(), &site.cam1, config, Transport::Auto);
    let both = async { tokio::join!(dialled, listener.accept()) };
    let (camera, edge) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    let (camera, edge) = (camera.unwrap(), edge.unwrap());
    assert_eq!(camera.path().transport, Transport::Tcp);
    let sent = body(1000, 1);
    camera.send_frame(header(1, 1000), sent.clone(), Priority::Live).unwrap();
    assert!(next_frame(&edge).await.1 == sent);
    drop((camera, edge));
    forward.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_is_taken_if_it_is_there_within_its_head_start() {
    let site = Site::new();
    let mut listener = site.listen(LinkSettings::default()).await;
    let config = LinkSettings { quic_head_start: PATIENCE, ..LinkSettings::default() };
    let dialled = dial(listener.local_address(), &site.cam1, config, Transport::Auto);
    let (camera, _edge) = tokio::join!(dialled, listener.accept());
    assert_eq!(camera.unwrap().path().transport, Transport::Quic);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_links_that_race_one_is_left() {
    let site = Site::new();
    let mut listener = site.listen(LinkSettings::default()).await;
    let config = LinkSettings { quic_head_start: Duration::ZERO, ..LinkSettings::default() };
    let dialled = dial(listener.local_address(), &site.cam1, config, Transport::Auto);
    let (camera, first) = tokio::join!(dialled, listener.accept());
    let (camera, mut edge) = (camera.unwrap(), first.unwrap());
    // The edge may have accepted the loser first.
    while edge.path().transport != camera.path().transport {
        tokio::time::timeout(PATIENCE, edge.closed()).await.expect("the loser closes");
        edge = tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    }
    let sent = body(1000, 1);
    camera.send_frame(header(1, 1000), sent.clone(), Priority::Live).unwrap();
    assert!(next_frame(&edge).await.1 == sent);
}

/// Settings by which a peer that says nothing is waited for much longer than anybody dials.
fn patient() -> LinkSettings {
    let long = Duration::from_secs(60);
    LinkSettings { connect_timeout: long, idle_timeout: long, ..LinkSettings::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_shut_nobody_out() {
    let site = Site::new();
    let mut listener = site.listen(patient()).await;
    let address = listener.local_address();
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    for transport in BOTH {
        site.connect(&mut listener, address, transport).await;
    }
    // Those that took longest gave way, and were closed.
    let mut byte = [0];
    let first = silent[0].readable().await.and_then(|()| silent[0].try_read(&mut byte));
    assert!(matches!(first, Ok(0) | Err(_)), "{first:?}");
}

/// The first packet of each of `count` QUIC connections to nowhere.
async fn initials(site: &Site, count: usize) -> Vec<Vec<u8>> {
    let nowhere = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = nowhere.local_addr().unwrap();
    let mut dials = tokio::task::JoinSet::new();
    for _ in 0..count {
        let cam1 = site.cam1.clone();
        dials.spawn(
            async move { dial(address, &cam1, patient(), Transport::Quic).await.map(|_| ()) },
        );
    }
    let mut packets = std::collections::HashMap::new();
    let mut buffer = vec![0; 2048];
    while packets.len() < count {
        let received = tokio::time::timeout(PATIENCE, nowhere.recv_from(&mut buffer)).await;
        let (bytes, from) = received.unwrap().unwrap();
        packets.entry(from).or_insert_with(|| buffer[..bytes].to_vec());
    }
    packets.into_values().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_packets_without_a_second_shut_nobody_out() {
    let site = Site::new();
    let mut listener = site.listen(patient()).await;
    let address = listener.local_address();
    let mut sockets = Vec::new();
    for packet in initials(&site, 200).await {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&packet, address).unwrap();
        sockets.push(socket);
    }
    for transport in BOTH {
        site.connect(&mut listener, address, transport).await;
    }
    // Most are asked to show that they are where they say, which takes no slot: a Retry is a long header of type 3.
    let mut retried = 0;
    for socket in &sockets {
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut buffer = [0; 2048];
        let answer = socket.recv(&mut buffer);
        retried += usize::from(answer.is_ok() && buffer[0] & 0b1111_0000 == 0b1111_0000);
    }
    assert!(retried > 100, "{retried} of {} are retried", sockets.len());
}
