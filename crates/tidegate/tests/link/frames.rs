use tidegate::link::{Outcome, Priority, Transport};

use crate::support::{Site, body, header, next_frame};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_all_sizes_arrive_whole() {
    let site = Site::new();
    for transport in [Transport::Quic] {
        let (camera, edge, _listener) = site.pair(transport).await;
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
