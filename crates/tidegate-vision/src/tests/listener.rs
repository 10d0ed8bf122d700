//! Plain listeners among browsers, and clients that do not read.

use std::{net::SocketAddr, time::Duration};

use axum::http::{Request, header};
use bytes::Bytes;
use http_body_util::Full;
use tidegate_message::origins::Origins;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Echo, access, client, images};
use crate::{Listener, ListenerSettings, Protocol, Vision, VisionSettings};

#[path = "../../../tidegate/tests/shared/poll_async.rs"]
mod poll_async;
use poll_async::poll;

/// A listener for HTTP, as long as the guard lives.
async fn listen(settings: VisionSettings, connections_max: usize) -> (SocketAddr, DropGuard) {
    // Before the first connection is taken.
    tidegate_process::descriptors::raise_limit().unwrap();
    let stop = CancellationToken::new();
    let vision = Vision::with(settings, Echo::usual(), access(None), stop.clone());
    let settings = ListenerSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        protocol: Protocol::Http,
        tls: None,
        user: "phones".to_owned(),
        origins: Origins::parse(Some("https://dash.example"), "vision.origins").unwrap(),
        connections_max,
    };
    let listener = Listener::bind(settings).await.unwrap();
    let address = listener.address();
    tokio::spawn(listener.serve(vision, stop.clone()));
    (address, stop.drop_guard())
}

#[tokio::test]
async fn another_sites_page_has_nothing_looked_at_without_a_login_either() {
    let (address, _serves) = listen(VisionSettings::default(), 40).await;
    let own = format!("http://{address}");
    let own_tls = format!("https://{address}");
    // The name of another site that leads here, with pages of that site.
    let led = "http://evil.example:8008";
    let same = ("sec-fetch-site", "same-origin");
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for (method, path, shown, expected) in [
        ("POST", "/v1/detect/face", None, 200),
        ("POST", "/v1/detect/face", Some(("origin", &*own)), 200),
        ("POST", "/v1/detect/face", Some(("origin", &*own_tls)), 200),
        ("POST", "/v1/detect/face", Some(("origin", "http://evil.example")), 403),
        ("POST", "/detector/detect/", Some(("sec-fetch-site", "cross-site")), 403),
        ("GET", "/test/", Some(("origin", "http://evil.example")), 403),
        ("GET", "/test/", None, 200),
        ("POST", "/v1/detect/face", Some(("origin", "https://dash.example")), 200),
        ("GET", "/v1/detect/face", Some(("origin", "https://dash.example")), 101),
        ("GET", "/v1/openapi.json", None, 200),
        ("GET", "/ws/detector/detect/", Some(("origin", "http://evil.example")), 403),
        ("GET", "/v1/detect/face", Some(("origin", "http://evil.example")), 403),
        ("GET", "/v1/detect/face", Some(("origin", &*own)), 101),
        ("POST", "/v1/detect/face", Some(("origin", led)), 421),
        ("GET", "/v1/detect/face", Some(("origin", led)), 421),
        ("POST", "/v1/detect/face", Some(same), 421),
    ] {
        let mut request = Request::builder().method(method).uri(path);
        let is_led = shown.is_some_and(|shown| shown == ("origin", led) || shown == same);
        let host = if is_led { led["http://".len()..].to_owned() } else { address.to_string() };
        request = request.header(header::HOST, host);
        if method == "GET" && (path.starts_with("/ws/") || path == "/v1/detect/face") {
            request = upgrade
                .iter()
                .fold(request, |request, (name, value)| request.header(*name, *value));
        }
        if let Some((name, value)) = shown {
            request = request.header(name, value);
        }
        let body = if method == "POST" { images::jpeg(9, 9) } else { Vec::new() };
        let request = request.header(header::CONTENT_TYPE, "image/jpeg");
        let reply = client::send(address, request.body(Full::new(body.into())).unwrap()).await;
        assert_eq!(reply.status.as_u16(), expected, "{method} {path} {shown:?}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_gives_up_its_place() {
    let settings =
        VisionSettings { request_timeout: Duration::from_secs(1), ..VisionSettings::default() };
    // Of which one is for this address.
    let (address, _serves) = listen(settings, 2).await;
    let mut unread = TcpStream::connect(address).await.unwrap();
    let request = "GET /getdata/?numbytes=1073741824 HTTP/1.1\r\nHost: x\r\n\r\n";
    unread.write_all(request.as_bytes()).await.unwrap();
    let mut begin = [0; 15];
    unread.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    let ask = async || {
        let request = Request::get("/test/").header(header::HOST, "x");
        let reply = client::try_send(address, request.body(Full::new(Bytes::new())).unwrap()).await;
        reply.filter(|reply| reply.status == 200)
    };
    assert!(ask().await.is_none(), "the place is taken");
    poll(Duration::from_secs(30), ask).await.expect("the place is free again");
}

#[tokio::test]
async fn a_websocket_counts_among_the_connections_after_it_has_left_its_task() {
    let (address, _serves) = listen(VisionSettings::default(), 2).await;
    let connect = async |own: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, own], 0).into()).unwrap();
        socket.connect(address).await.unwrap()
    };
    let mut one = client::Socket::open(connect(1).await, "/ws/detector/detect/").await;
    let _another = client::Socket::open(connect(2).await, "/ws/detector/detect/").await;
    let mut third = connect(3).await;
    third.write_all(b"GET /test/ HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut begin = [0; 15];
    let answered = timeout(Duration::from_millis(500), third.read_exact(&mut begin)).await;
    assert!(answered.is_err(), "both places are taken");
    one.close().await;
    timeout(Duration::from_secs(30), third.read_exact(&mut begin)).await.expect("in time").unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
}
