//! The persistent protocol over TCP.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{Echo, access, images};
use crate::{Listener, ListenerSettings, Protocol, Vision, VisionSettings};

struct Node {
    address: std::net::SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Node {
    async fn new(settings: VisionSettings, echo: Arc<Echo>) -> Self {
        // Before the first connection is taken.
        tidegate_process::descriptors::raise_limit().unwrap();
        let stop = CancellationToken::new();
        let vision = Vision::with(settings, echo, access(None), stop.clone());
        let settings = ListenerSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            protocol: Protocol::Tcp,
            tls: None,
            user: "phones".to_owned(),
            origins: tidegate_message::origins::Origins::default(),
            connections_max: 4000,
        };
        let listener = Listener::bind(settings).await.unwrap();
        let address = listener.address();
        let task = tokio::spawn(listener.serve(vision, stop.clone()));
        Self { address, stop, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

async fn send(stream: &mut TcpStream, opcode: u32, image: &[u8]) {
    // As the paper's client sends it: in three pieces.
    stream.write_u32(opcode).await.unwrap();
    stream.write_u32(image.len() as u32).await.unwrap();
    stream.write_all(image).await.unwrap();
}

async fn receive(stream: &mut TcpStream) -> String {
    let length = stream.read_u32().await.unwrap() as usize;
    let mut text = vec![0; length];
    stream.read_exact(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn each_opcode_is_answered_as_the_papers_server_does() {
    let node =
        Node::new(VisionSettings::default(), Echo::new(&["face", "recognize", "pose", "object"]))
            .await;
    let jpeg = images::jpeg(180, 240);
    let mut stream = node.connect().await;
    for (opcode, image, answer) in [
        (
            1,
            &jpeg[..],
            r#"{"success": "true", "server_processing_time": "0.003", "rects": [[10, 20, 40, 60]]}"#,
        ),
        (
            2,
            &jpeg,
            r#"{"success": "true", "subject": "face", "confidence": "0.750", "server_processing_time": "0.003", "rect": [10, 20, 40, 60]}"#,
        ),
        (
            3,
            &jpeg,
            r#"{"success": "true", "server_processing_time": "0.003", "poses": [[[1.0, 2.0, 0.25]]]}"#,
        ),
        (
            4,
            &jpeg,
            r#"{"success": "true", "server_processing_time": "0.003", "gpu_support": false, "objects": [{"rect": [10, 20, 40, 60], "class": "face", "confidence": "0.75"}]}"#,
        ),
        (5, b"", r#"{"success": "pong"}"#),
        (5, b"xyz", r#"{"success": "pong"}"#),
        (
            6,
            &jpeg,
            r#"{"success": "false", "error": "Unsupported opcode: 6", "server_processing_time": 0}"#,
        ),
        (1, &images::png(1, 1), r#"{"success": "false", "server_processing_time": "0.003"}"#),
        (
            4,
            &images::png(1, 1),
            r#"{"success": "false", "server_processing_time": "0.003", "gpu_support": false}"#,
        ),
        (
            1,
            b"%PDF",
            r#"{"success": "false", "error": "4 bytes are a PDF document and not an image that is taken; send JPEG or PNG", "server_processing_time": 0}"#,
        ),
    ] {
        send(&mut stream, opcode, image).await;
        assert_eq!(receive(&mut stream).await, answer, "opcode {opcode}");
    }
    // Several at once are answered in their order.
    send(&mut stream, 1, &jpeg).await;
    send(&mut stream, 5, b"").await;
    assert!(receive(&mut stream).await.contains("rects"));
    assert!(receive(&mut stream).await.contains("pong"));
    node.stop.cancel();
    node.task.await.unwrap();
}

#[tokio::test]
async fn what_is_not_there_is_not_supported() {
    let node = Node::new(VisionSettings::default(), Echo::new(&["face"])).await;
    let mut stream = node.connect().await;
    send(&mut stream, 3, &images::jpeg(9, 9)).await;
    let expected =
        r#"{"success": "false", "error": "OpenPose not supported", "server_processing_time": 0}"#;
    assert_eq!(receive(&mut stream).await, expected);
}

#[tokio::test]
async fn a_length_over_the_bound_is_answered_and_ends_the_connection() {
    let settings = VisionSettings { image_bytes_max: 1000, ..VisionSettings::default() };
    let node = Node::new(settings, Echo::usual()).await;
    let mut stream = node.connect().await;
    stream.write_u32(1).await.unwrap();
    stream.write_u32(u32::MAX).await.unwrap();
    stream.write_all(&[7; 100_000]).await.unwrap();
    assert!(receive(&mut stream).await.contains("at most 1000 bytes"));
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_connection_that_is_silent_ends_between_requests_and_in_one() {
    let settings = VisionSettings {
        idle_timeout: Duration::from_millis(300),
        request_timeout: Duration::from_millis(100),
        ..VisionSettings::default()
    };
    let node = Node::new(settings, Echo::usual()).await;
    let mut idle = node.connect().await;
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
    let mut slow = node.connect().await;
    slow.write_u32(1).await.unwrap();
    assert_eq!(slow.read(&mut [0]).await.unwrap(), 0);
    let mut slow = node.connect().await;
    slow.write_u32(1).await.unwrap();
    slow.write_u32(100).await.unwrap();
    assert!(receive(&mut slow).await.contains("nothing more of the request came"));
}

#[tokio::test]
async fn a_thousand_idle_connections_leave_room_for_others() {
    let node = Node::new(VisionSettings::default(), Echo::usual()).await;
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(node.connect().await);
    }
    let mut stream = node.connect().await;
    send(&mut stream, 1, &images::jpeg(180, 240)).await;
    assert!(receive(&mut stream).await.contains("rects"));
    for stream in &mut idle {
        send(stream, 5, b"").await;
    }
    for stream in &mut idle {
        assert!(receive(stream).await.contains("pong"));
    }
}
