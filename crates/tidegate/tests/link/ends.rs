//! How links end: in silence, and without a trace.

use std::{process::Command, time::Duration};

use tidegate_link::link::{DownReason, LinkSettings, Priority, Transport, dial};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::oneshot,
    time::timeout,
};

use crate::{
    poll_async::poll,
    relay::{Bottleneck, Relay},
    support::{LOOPBACK, PATIENCE, Site, body, header, next_frame},
};

const BOTH: [Transport; 2] = [Transport::Quic, Transport::Tcp];

fn impatient() -> LinkSettings {
    LinkSettings {
        keep_alive: Duration::from_millis(200),
        idle_timeout: Duration::from_secs(1),
        ..LinkSettings::default()
    }
}

fn silent() -> DownReason {
    DownReason::Silent { after: impatient().idle_timeout }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_peer_takes_a_link_over_quic_down() {
    let site = Site::new();
    let mut listener = site.listen(impatient()).await;
    let free = Bottleneck {
        bytes_per_second: u64::MAX,
        queue_bytes: usize::MAX,
        loss: 0.0,
        delay: Duration::ZERO,
        seed: 1,
    };
    let mut relay = Relay::start(listener.local_address(), free).await;
    let dialled = dial(relay.address, &site.cam1, impatient(), Transport::Quic);
    let (camera, edge) = tokio::join!(dialled, listener.accept());
    let (camera, edge) = (camera.unwrap(), edge.unwrap());
    relay.fall_silent();
    // Idle on one side, full of things to say on the other.
    let large = body(4_000_000, 1);
    camera.send_frame(header(1, large.len()), large, Priority::Live).unwrap();
    for link in [&camera, &edge] {
        assert_eq!(timeout(PATIENCE, link.closed()).await.unwrap(), silent());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_peer_takes_a_link_over_tcp_down() {
    let site = Site::new();
    let mut listener = site.listen(impatient()).await;
    let (server, door) = (listener.local_address(), TcpListener::bind(LOOPBACK).await.unwrap());
    let address = door.local_addr().unwrap();
    let (fall_silent, silence) = oneshot::channel::<()>();
    let relay = tokio::spawn(async move {
        let (mut near, _) = door.accept().await.unwrap();
        let mut far = TcpStream::connect(server).await.unwrap();
        tokio::select! {
            carried = tokio::io::copy_bidirectional(&mut near, &mut far) => drop(carried),
            _ = silence => {}
        }
        (near, far)
    });
    let dialled = dial(address, &site.cam1, impatient(), Transport::Tcp);
    let (camera, edge) = tokio::join!(dialled, listener.accept());
    let (camera, edge) = (camera.unwrap(), edge.unwrap());
    fall_silent.send(()).unwrap();
    let _open_sockets = relay.await.unwrap();
    let large = body(4_000_000, 1);
    camera.send_frame(header(1, large.len()), large, Priority::Live).unwrap();
    for link in [&camera, &edge] {
        assert_eq!(timeout(PATIENCE, link.closed()).await.unwrap(), silent());
    }
}

/// Runs an ignored test in a process of its own: file descriptors and processor time are those of a whole
/// process.
fn alone(name: &str) {
    let this = std::env::current_exe().unwrap();
    let child = Command::new(this).args(["--exact", name, "--ignored", "--nocapture"]).output();
    let child = child.unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
fn fifty_links_leave_neither_task_nor_socket() {
    alone("ends::fifty_links_come_and_go");
}

#[test]
fn idle_links_leave_the_processor_alone() {
    alone("ends::ten_links_idle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run in a process of its own by idle_links_leave_the_processor_alone"]
async fn ten_links_idle() {
    const IDLE: Duration = Duration::from_secs(2);
    let site = Site::new();
    for transport in BOTH {
        let mut listener = site.listen(LinkSettings::default()).await;
        let address = listener.local_address();
        let mut links = Vec::new();
        for _ in 0..10 {
            links.push(site.connect(&mut listener, address, transport).await);
        }
        // Past the first pings, which follow each other fast.
        let know = async || {
            let mut ends = links.iter().flat_map(|(camera, edge)| [camera, edge]);
            ends.all(|link| link.clock_offset().is_some()).then_some(())
        };
        poll(PATIENCE, know).await.expect("offsets are known");
        let before = processor_time();
        tokio::time::sleep(IDLE).await;
        let used = processor_time() - before;
        println!("{transport:?}: {used:?} in {IDLE:?} for both ends of {} links", links.len());
        // A task that spins takes all of a core. Twenty ends that ping each second take a few milliseconds.
        assert!(used < IDLE / 10, "over {transport:?}: {used:?} in {IDLE:?}");
    }
}

/// Time that the threads of this process have run.
fn processor_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let nanos = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(threads.map(|thread| nanos(thread.unwrap())).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run in a process of its own by fifty_links_leave_neither_task_nor_socket"]
async fn fifty_links_come_and_go() {
    let site = Site::new();
    for transport in BOTH {
        let mut listener = site.listen(LinkSettings::default()).await;
        let address = listener.local_address();
        let before = held();
        for round in 0..50 {
            let (camera, edge) = site.connect(&mut listener, address, transport).await;
            if round == 0 {
                let up = held();
                assert!(up.0 > before.0 && up.1 > before.1, "{up:?} after {before:?}");
            }
            camera.send_frame(header(1, 1000), body(1000, 1), Priority::Live).unwrap();
            next_frame(&edge).await;
            match round % 3 {
                0 => camera.close(3, "enough"),
                1 => edge.close(3, "enough"),
                _ => {}
            }
        }
        let is_gone = || held().0 <= before.0 && held().1 <= before.1;
        let ended = poll(PATIENCE, async || is_gone().then_some(())).await;
        assert!(ended.is_some(), "over {transport:?}: {:?} after {before:?}", held());
    }
}

/// Tasks of this runtime, and file descriptors of this process.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (Handle::current().metrics().num_alive_tasks(), descriptors)
}
