//! WebSockets of `/v1/detect/NAME`.

use std::{env, fs, process::Command, sync::atomic::Ordering, time::Duration};

use tidegate_process::descriptors;
use tidegate_wire::websocket::CloseCode;

use super::{
    Echo, Served, access, assert_stages_sum,
    client::{Came, Socket},
    images, until, user,
};
use crate::VisionSettings;

fn with_id(id: u64, image: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes()[..], image].concat()
}

#[tokio::test]
async fn answers_come_with_their_ids_and_wait_for_no_other() {
    let echo = Echo::usual();
    let served = Served::new(echo.clone()).await;
    let jpeg = images::jpeg(180, 240);
    let mut socket = Socket::open(served.connect().await, "/v1/detect/gated?ids=1").await;
    for id in [7, u64::MAX, 9] {
        socket.binary(&with_id(id, &jpeg)).await;
    }
    // An image that is refused at once is answered before the three that wait.
    socket.binary(&with_id(1, b"%PDF-1.7")).await;
    let refused = socket.next().await.json();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&1.into(), &"vision.image.type".into())
    );
    socket.binary(b"short").await;
    let refused = socket.next().await.json();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&4.into(), &"vision.request.invalid".into())
    );
    socket.text("hello").await;
    assert!(socket.next().await.json()["error"]["message"].as_str().unwrap().contains("binary"));
    echo.gate.add_permits(3);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let answer = socket.next().await.json();
        assert_eq!(answer["image"]["width"], 180);
        assert_stages_sum(&answer["times"]);
        ids.push(answer["id"].as_u64().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, [7, 9, u64::MAX]);
    socket.close().await;
    assert_eq!(socket.next().await, Came::Closed(Some(CloseCode::NORMAL)));

    let mut socket = Socket::open(served.connect().await, "/v1/detect/face").await;
    for number in 0..20 {
        socket.binary(&jpeg).await;
        assert_eq!(socket.next().await.json()["id"], number);
    }
}

#[tokio::test]
async fn a_window_of_images_is_under_way_and_no_more() {
    let echo = Echo::usual();
    let settings = VisionSettings { window: 3, ..VisionSettings::default() };
    let served = Served::with(settings, echo.clone(), access(None), Some(user("ada"))).await;
    let mut socket = Socket::open(served.connect().await, "/v1/detect/gated").await;
    // All in one write: some come in one piece with the last of the window.
    let jpeg = images::jpeg(9, 9);
    let mut frames = Vec::new();
    for _ in 0..10 {
        tidegate_wire::websocket::encode_binary(&jpeg, Some([0; 4]), &mut frames);
    }
    socket.raw(&frames).await;
    until("the window is full", || echo.under_way.load(Ordering::SeqCst) == 3).await;
    echo.gate.add_permits(10);
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(socket.next().await.json()["id"].as_u64().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..10).collect::<Vec<_>>());
    assert_eq!(echo.most.load(Ordering::SeqCst), 3);
    drop(socket);
    let all = VisionSettings::default().held_bytes_max / 4 * 3;
    until("nothing is held", || served.has_room_for(all)).await;
}

#[tokio::test]
async fn a_socket_is_closed_with_the_code_of_its_reason() {
    let settings = VisionSettings { image_bytes_max: 1000, ..VisionSettings::default() };
    let echo = Echo::usual();
    let served = Served::with(settings, echo.clone(), access(None), Some(user("ada"))).await;
    let open = async |model: &str| {
        Socket::open(served.connect().await, &format!("/v1/detect/{model}")).await
    };
    let jpeg = images::jpeg(9, 9);

    let mut busy = open("busy").await;
    busy.binary(&jpeg).await;
    assert_eq!(busy.next().await, Came::Closed(Some(CloseCode::TRY_AGAIN_LATER)));

    let mut large = open("face").await;
    large.binary(&[7; 1009]).await;
    assert_eq!(large.next().await, Came::Closed(Some(CloseCode::TOO_LARGE)));

    let mut unmasked = open("face").await;
    unmasked.raw(&[0x82, 1, 7]).await;
    assert_eq!(unmasked.next().await, Came::Closed(Some(CloseCode::PROTOCOL)));

    // A failure of the pool is an answer, and the socket stays.
    let mut dead = open("dead").await;
    for _ in 0..2 {
        dead.binary(&jpeg).await;
        assert_eq!(dead.next().await.json()["error"]["code"], "vision.detector.failed");
    }

    // One that goes away in the middle of a message, or while its image waits, leaves nothing.
    let mut gone = open("gated").await;
    gone.binary(&jpeg).await;
    gone.raw(&[0x82, 0xfe, 3, 0, 0, 0, 0, 0, 1, 2, 3]).await;
    until("it waits", || echo.under_way.load(Ordering::SeqCst) == 1).await;
    drop(gone);
    until("it is forgotten", || echo.under_way.load(Ordering::SeqCst) == 0).await;

    // A stop lets an image that is under way be answered.
    let mut stopped = open("gated").await;
    stopped.binary(&jpeg).await;
    until("it waits", || echo.under_way.load(Ordering::SeqCst) == 1).await;
    served.stop.cancel();
    echo.gate.add_permits(1);
    assert_eq!(stopped.next().await.json()["id"], 0);
    assert_eq!(stopped.next().await, Came::Closed(Some(CloseCode::AWAY)));
    drop((dead, busy, large, unmasked, stopped));
    served.vision.ended().await;
}

#[tokio::test]
async fn a_silent_socket_is_closed_between_images_and_in_one() {
    let settings = VisionSettings {
        idle_timeout: Duration::from_millis(300),
        request_timeout: Duration::from_millis(100),
        ..VisionSettings::default()
    };
    let served = Served::with(settings, Echo::usual(), access(None), Some(user("ada"))).await;
    let mut idle = Socket::open(served.connect().await, "/v1/detect/face").await;
    assert_eq!(idle.next().await, Came::Closed(Some(CloseCode::NORMAL)));
    let mut slow = Socket::open(served.connect().await, "/v1/detect/face").await;
    slow.raw(&[0x82, 0xfe, 3, 0, 0, 0, 0, 0, 1, 2, 3]).await;
    assert_eq!(slow.next().await, Came::Closed(Some(CloseCode::NORMAL)));
}

#[tokio::test]
async fn what_is_no_websocket_is_told_how_to_be_one() {
    let settings = VisionSettings { sockets_max: 1, ..VisionSettings::default() };
    let served = Served::with(settings, Echo::usual(), access(None), Some(user("ada"))).await;
    let reply = served.get("/v1/detect/face").await;
    assert_eq!((reply.status.as_u16(), reply.header("upgrade")), (426, "websocket"));
    assert_eq!(served.get("/v1/detect/face?ids=2").await.status, 400);
    let socket = Socket::open(served.connect().await, "/v1/detect/face").await;
    let mut stream = served.connect().await;
    let request = "GET /v1/detect/face HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let mut line = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 429", "as many as may be are open");
    drop(socket);
}

fn resident_bytes() -> usize {
    let pages: usize =
        fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Set in a process that runs one test alone.
const ALONE: &str = "TIDEGATE_TEST_ALONE";

#[tokio::test]
async fn a_thousand_idle_sockets_cost_little_and_others_are_answered() {
    const SOCKETS: usize = 1000;
    const NAME: &str =
        "tests::sockets::a_thousand_idle_sockets_cost_little_and_others_are_answered";
    // Memory is that of a process: here, the other tests would be measured as well.
    if env::var_os(ALONE).is_none() {
        let mut alone = Command::new(env::current_exe().unwrap());
        let ran = alone.args(["--exact", NAME]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    descriptors::raise_limit().unwrap();
    let served = Served::new(Echo::usual()).await;
    let jpeg = images::jpeg(180, 240);
    let mut sockets = Vec::new();
    for _ in 0..SOCKETS {
        let mut socket = Socket::open(served.connect().await, "/v1/detect/face").await;
        if sockets.is_empty() {
            // Buffers and all that the first request makes.
            socket.binary(&jpeg).await;
            socket.next().await.json();
        }
        sockets.push(socket);
    }
    let before = resident_bytes();
    // Each has had an image, and is idle again.
    for socket in &mut sockets {
        socket.binary(&jpeg).await;
        socket.next().await.json();
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < SOCKETS * (16 << 10), "{grown} bytes");
    let reply = served.post("/v1/detect/face", jpeg).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn an_echo_is_charged_until_it_is_written() {
    let settings = VisionSettings { held_bytes_max: 64 << 20, ..VisionSettings::default() };
    let served = Served::with(settings, Echo::usual(), access(None), Some(user("ada"))).await;
    let mut socket = Socket::open(served.connect().await, "/ws/detector/detect/").await;
    // More than the sockets of a machine hold.
    let text = "x".repeat(14 << 20);
    socket.text(&text).await;
    // A frame of that length has ten bytes before the text.
    socket.skip(10).await;
    let all = (64 << 20) / 4 * 3;
    assert!(!served.has_room_for(all), "most of the echo waits to be written");
    socket.skip(text.len()).await;
    until("nothing is held", || served.has_room_for(all)).await;
}
