//! Requests over HTTP.

use std::sync::{Arc, atomic::Ordering};

use axum::http::{Request, header};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::Full;
use rustls_pki_types::PrivatePkcs8KeyDer;
use serde_json::json;
use tidegate_ports::Image;
use tidegate_process::tls;
use tidegate_wire::websocket::CloseCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::{
    Echo, Served, access, assert_stages_sum,
    client::{self, Came},
    images, until, user,
};
use crate::{Listener, ListenerSettings, Protocol, Vision, VisionSettings};

#[tokio::test]
async fn an_image_is_answered_with_boxes_its_size_and_times_by_stage() {
    let echo = Echo::usual();
    let served = Served::new(echo.clone()).await;
    let (jpeg, png) = (images::jpeg(180, 240), images::png(64, 96));
    let in_base64 = json!({ "image": STANDARD.encode(&png) }).to_string();
    let form = format!("image={}", STANDARD.encode(&png).replace('+', "%2B"));
    let part =
        [&b"--b\r\nContent-Disposition: form-data; name=\"image\"\r\n\r\n"[..], &png, b"\r\n--b--"]
            .concat();
    for (kind, body, image, size) in [
        ("image/jpeg", jpeg.clone(), &jpeg, (180, 240)),
        ("image/png", png.clone(), &png, (64, 96)),
        ("application/json", in_base64.into_bytes(), &png, (64, 96)),
        ("application/x-www-form-urlencoded", form.into_bytes(), &png, (64, 96)),
        ("multipart/form-data; boundary=b", part, &png, (64, 96)),
    ] {
        let reply = served.ask("POST", "/v1/detect/face", kind, body).await;
        assert_eq!(reply.status, 200, "{kind}: {reply:?}");
        let answer = reply.json();
        assert_eq!(answer["model"], "face");
        assert_eq!(answer["image"], json!({ "width": size.0, "height": size.1 }));
        assert_eq!(answer["boxes"], json!([[10.0, 20.0, 40.0, 60.0, 0.75, "face"]]));
        assert_eq!(answer["predictions"][0]["x"], 25.0);
        let times = &answer["times"];
        assert_stages_sum(times);
        let asked = echo.asked.lock().unwrap().pop().unwrap();
        assert_eq!(asked.image, Image::Encoded(Bytes::from(image.clone())), "{kind}");
    }
}

#[tokio::test]
async fn bad_input_is_answered_with_its_status_and_a_reason() {
    let echo = Echo::usual();
    let settings = VisionSettings { image_bytes_max: 10_000, ..VisionSettings::default() };
    let served = Served::with(settings, echo.clone(), access(None), Some(user("ada"))).await;
    let jpeg = images::jpeg(180, 240);
    for (model, kind, body, status, code, text) in [
        ("face", "image/jpeg", b"%PDF-1.7".to_vec(), 415, "vision.image.type", "a PDF document"),
        (
            "face",
            "application/pdf",
            b"%PDF-1.7".to_vec(),
            415,
            "vision.image.type",
            "application/pdf",
        ),
        ("face", "image/jpeg", vec![], 422, "vision.image.invalid", "it is empty"),
        (
            "face",
            "image/jpeg",
            jpeg[..100].to_vec(),
            422,
            "vision.image.invalid",
            "cut off after 100 bytes",
        ),
        (
            "face",
            "image/jpeg",
            [&jpeg[..jpeg.len() - 40], &[0xff, 0xd9]].concat(),
            422,
            "vision.image.invalid",
            "cut within its picture",
        ),
        (
            "face",
            "image/png",
            images::png(20_000, 10_000),
            413,
            "vision.image.too_large",
            "20000x10000",
        ),
        (
            "face",
            "image/png",
            vec![0; 10_001],
            413,
            "vision.image.too_large",
            "at most 10000 bytes",
        ),
        ("face", "application/json", b"{}".to_vec(), 400, "vision.request.invalid", "has no image"),
        (
            "nothing",
            "image/jpeg",
            jpeg.clone(),
            404,
            "vision.model.unknown",
            "there are: face person",
        ),
        ("a%20b", "image/jpeg", jpeg.clone(), 404, "vision.model.unknown", "a b"),
        ("refuses", "image/jpeg", jpeg.clone(), 422, "vision.image.invalid", "too dark"),
        ("nonsense", "image/jpeg", jpeg.clone(), 502, "vision.detector.failed", "finite numbers"),
        ("dead", "image/jpeg", jpeg.clone(), 502, "vision.detector.failed", "failed"),
        ("busy", "image/jpeg", jpeg.clone(), 429, "limit.reached", "3 requests wait already"),
        (
            "away",
            "image/jpeg",
            jpeg.clone(),
            503,
            "vision.detector.unavailable",
            "no detector program runs",
        ),
    ] {
        let reply = served.ask("POST", &format!("/v1/detect/{model}"), kind, body).await;
        assert_eq!(reply.status, status, "{model}: {reply:?}");
        let error = &reply.json()["error"];
        assert_eq!(error["code"], code);
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
        let retries = matches!(status, 429 | 503);
        assert_eq!(reply.header(header::RETRY_AFTER), if retries { "2" } else { "" }, "{model}");
        assert_eq!(error["retry_after_ms"], if retries { json!(1500) } else { json!(null) });
    }
    // A worker is asked about one pixel, and finds nothing there.
    let reply = served.post("/v1/detect/face", images::jpeg(1, 1)).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["boxes"]), (200, &json!([])));
    let asked: Vec<_> =
        echo.asked.lock().unwrap().iter().map(|asked| asked.model.clone().unwrap()).collect();
    let expected = ["nothing", "a b", "refuses", "nonsense", "dead", "busy", "away", "face"];
    assert_eq!(asked, expected, "images that their headers refuse reach no worker");
    let reply = served.ask("PATCH", "/v1/detect/face", "", "").await;
    assert_eq!(reply.status, 405);
    assert!(
        served.has_room_for(VisionSettings::default().held_bytes_max / 4 * 3),
        "nothing is held"
    );
}

#[tokio::test]
async fn boxes_are_within_the_image() {
    let served = Served::new(Echo::usual()).await;
    let reply = served.post("/v1/detect/beyond", images::jpeg(180, 240)).await;
    let answer = reply.json();
    assert_eq!(answer["boxes"], json!([[0.0, 5.0, 180.0, 9.0, 0.5, "long"]]));
    assert_eq!(answer["predictions"][0]["width"], 180.0);
}

#[tokio::test]
async fn rights_are_asked_before_a_body_is_read() {
    let roles = "[role.r]\ndetect = [\"face\", \"person\"]\n[role.r.deny]\ndetect = [\"person\"]\n[user.ada]\nroles = [\"r\"]\n";
    let served = Served::with(
        VisionSettings::default(),
        Echo::usual(),
        access(Some(roles)),
        Some(user("ada")),
    )
    .await;
    let jpeg = images::jpeg(8, 8);
    for (method, path, status) in [
        ("POST", "/v1/detect/face", 200),
        ("POST", "/v1/detect/person", 403),
        ("POST", "/v1/detect/recognize", 403),
        ("GET", "/v1/detect/person", 403),
        ("PUT", "/v1/models/street", 403),
        ("DELETE", "/v1/models/street", 403),
        ("POST", "/v1/models/recognize/subjects/Ann", 403),
        ("GET", "/v2/models/person", 403),
        ("POST", "/v2/models/person/infer", 403),
        ("POST", "/object/detect/", 403),
        ("POST", "/recognizer/add/", 403),
        ("POST", "/recognizer/train/", 403),
        ("POST", "/trainer/train/", 403),
        ("POST", "/trainer/remove/", 403),
    ] {
        let reply = served.ask(method, path, "image/jpeg", jpeg.clone()).await;
        assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
    }
    let models = served.get("/v1/models").await.json();
    let names: Vec<_> =
        models["models"].as_array().unwrap().iter().map(|model| model["name"].clone()).collect();
    assert_eq!(names, ["face"], "models that it may not use are not shown");

    // The answer is there though the body never comes.
    let mut stream = served.connect().await;
    let head = "POST /v1/detect/person HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 403");

    let strange = Served::with(VisionSettings::default(), Echo::usual(), access(None), None).await;
    for path in ["/v1/models", "/v2", "/v2/health/live", "/v2/models/face", "/v1/detect/face"] {
        let reply = strange.get(path).await;
        assert_eq!(reply.status, 401, "{path}: without an identity");
    }
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_request_along() {
    let echo = Echo::usual();
    let served = Served::new(echo.clone()).await;
    // In the middle of its body.
    let mut stream = served.connect().await;
    let head = "POST /v1/detect/face HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: 900000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![7; 500_000]).await.unwrap();
    let all = VisionSettings::default().held_bytes_max / 4 * 3;
    until("the upload is held", || !served.has_room_for(all)).await;
    drop(stream);
    until("the upload is forgotten", || served.has_room_for(all)).await;
    assert!(echo.asked.lock().unwrap().is_empty());

    // While its image waits.
    let mut stream = served.connect().await;
    let jpeg = images::jpeg(180, 240);
    let head = format!(
        "POST /v1/detect/gated HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n",
        jpeg.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&jpeg).await.unwrap();
    let under_way = || echo.under_way.load(Ordering::SeqCst);
    until("it is asked", || under_way() == 1).await;
    drop(stream);
    until("it is dropped", || under_way() == 0).await;
    assert!(served.has_room_for(all));
}

#[tokio::test]
async fn uploads_beyond_the_memory_are_refused_and_others_have_room() {
    let settings = VisionSettings { held_bytes_max: 200_000, ..VisionSettings::default() };
    let served = Served::with(settings, Echo::usual(), access(None), Some(user("ada"))).await;
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let mut stream = served.connect().await;
        let head = "POST /v1/detect/face HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![7; 70_000]).await.unwrap();
        uploads.push(stream);
    }
    until("they are held", || !served.has_room_for(46_000)).await;
    let reply = served.post("/v1/detect/face", vec![7; 50_000]).await;
    assert_eq!(reply.status, 429, "{reply:?}");
    assert_eq!(
        (reply.header(header::RETRY_AFTER), reply.header(header::CONNECTION)),
        ("1", "close")
    );
    assert!(served.has_room_for(30_000), "another caller has room");
}

#[tokio::test]
async fn models_are_listed_loaded_and_taught() {
    let echo = Echo::usual();
    let served = Served::new(echo.clone()).await;
    let listed = served.get("/v1/models").await.json();
    assert_eq!(listed["detector"], "echo");
    assert_eq!(
        listed["models"][0],
        json!({ "name": "face", "kind": "", "loaded": false, "failed": null })
    );
    assert_eq!(listed["workers"], json!({ "ready": 1, "waiting": 0, "service_ms": 2.0 }));
    for (name, status, text) in [
        ("street", 200, ""),
        ("nan", 422, "the output is NaN"),
        ("folder", 422, "workers.models_dir"),
        ("away", 503, "no detector program starts"),
    ] {
        let reply = served.ask("PUT", &format!("/v1/models/{name}"), "", "").await;
        assert_eq!(reply.status, status, "{name}: {reply:?}");
        if status != 200 {
            let message = reply.json()["error"]["message"].clone();
            assert!(message.as_str().unwrap().contains(text), "{message}");
        }
    }
    assert_eq!(served.ask("DELETE", "/v1/models/street", "", "").await.status, 204);
    assert_eq!(served.ask("DELETE", "/v1/models/face", "", "").await.status, 404);
    let taught = served.post("/v1/models/recognize/subjects/Ann%20Lee", images::jpeg(9, 9)).await;
    assert_eq!(taught.json(), json!({ "model": "recognize", "subject": "Ann Lee", "images": 1 }));
    assert_eq!(*echo.taught.lock().unwrap(), ["Ann Lee"]);
    let refused = served.post("/v1/models/recognize/subjects/Ann", "%PDF").await;
    assert_eq!(refused.status, 415);
    let cut = images::jpeg(90, 90);
    let cut = [&cut[..cut.len() - 20], &[0xff, 0xd9]].concat();
    assert_eq!(served.post("/v1/models/recognize/subjects/Ann", cut).await.status, 422);
    assert_eq!(*echo.taught.lock().unwrap(), ["Ann Lee"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_of_its_own_has_one_user_and_no_login() {
    let roles = "[role.r]\ndetect = [\"face\"]\n[user.phones]\nroles = [\"r\"]\n";
    // Before the first connection is taken.
    tidegate_process::descriptors::raise_limit().unwrap();
    let stop = CancellationToken::new();
    let vision =
        Vision::with(VisionSettings::default(), Echo::usual(), access(Some(roles)), stop.clone());
    let settings = ListenerSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        protocol: Protocol::Http,
        tls: None,
        user: "phones".to_owned(),
        origins: tidegate_message::origins::Origins::default(),
        connections_max: 40,
    };
    let listener = Listener::bind(settings).await.unwrap();
    let address = listener.address();
    let serving = tokio::spawn(listener.serve(vision, stop.clone()));
    let ask = async |path: &str| {
        let reply =
            client::ask(address, "POST", path, "image/jpeg", images::jpeg(9, 9).into()).await;
        reply.status.as_u16()
    };
    assert_eq!(ask("/v1/detect/face").await, 200);
    assert_eq!(ask("/detector/detect/").await, 200);
    assert_eq!(ask("/v1/detect/person").await, 403);
    assert_eq!(ask("/v1/models/recognize/subjects/Ann").await, 403, "it is no administrator");
    assert_eq!(ask("/nowhere").await, 404);
    let unknown = client::ask(address, "POST", "/v2/models/face/stop", "", Bytes::new()).await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.json()["error"].is_string(), "as clients of that protocol read it");

    // Half of its connections are for one address, WebSockets included.
    let mut sockets = Vec::new();
    while let Some(socket) = client::Socket::try_open(address, "/v1/detect/face").await {
        sockets.push(socket);
    }
    assert!((1..=20).contains(&sockets.len()), "{}", sockets.len());
    let mut socket = sockets.pop().unwrap();
    socket.binary(&images::jpeg(9, 9)).await;
    assert_eq!(socket.next().await.json()["id"], 0);
    drop(sockets);
    let mut is_free = false;
    for _ in 0..1000 {
        let request = Request::post("/v1/detect/face").header(header::HOST, "x");
        let request = request.body(Full::new(Bytes::from(images::jpeg(9, 9)))).unwrap();
        is_free |=
            client::try_send(address, request).await.is_some_and(|reply| reply.status == 200);
        if is_free {
            break;
        }
    }
    assert!(is_free, "their places are free again");
    stop.cancel();
    serving.await.unwrap();
    assert_eq!(socket.next().await, Came::Closed(Some(CloseCode::AWAY)));
}

#[tokio::test]
async fn a_listener_with_tls_speaks_https() {
    // Before the first connection is taken.
    tidegate_process::descriptors::raise_limit().unwrap();
    let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = tls::server(tls::VERSIONS).unwrap().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate.clone()], key.into()).unwrap();
    let stop = CancellationToken::new();
    let vision = Vision::with(VisionSettings::default(), Echo::usual(), access(None), stop.clone());
    let settings = ListenerSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        protocol: Protocol::Http,
        tls: Some(Arc::new(server)),
        user: "phones".to_owned(),
        origins: tidegate_message::origins::Origins::default(),
        connections_max: 40,
    };
    let listener = Listener::bind(settings).await.unwrap();
    let address = listener.address();
    let serving = tokio::spawn(listener.serve(vision, stop.clone()));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let connector = tokio_rustls::TlsConnector::from(tls::client_of(roots).unwrap());
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut stream = connector.connect("node".try_into().unwrap(), stream).await.unwrap();
    let jpeg = images::jpeg(180, 240);
    let head = format!(
        "POST /detector/detect/ HTTP/1.1\r\nHost: node\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n",
        jpeg.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&jpeg).await.unwrap();
    let mut line = [0; 15];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 200 OK");

    // One that does not speak TLS gets no answer, and others are served.
    let mut plain = tokio::net::TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /test/ HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    stop.cancel();
    serving.await.unwrap();
}
