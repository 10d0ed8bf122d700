//! The paper's server: its strings, its statuses and its habits, as its own code has them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;
use tidegate_wire::websocket::CloseCode;

use super::{
    Echo, Served, access,
    client::{Came, Socket},
    images, user,
};
use crate::VisionSettings;

const FORM: &str = "application/x-www-form-urlencoded";

fn all() -> std::sync::Arc<Echo> {
    Echo::new(&["face", "recognize", "pose", "object"])
}

#[tokio::test]
async fn findings_are_answered_as_the_papers_server_does() {
    let served = Served::new(all()).await;
    let (jpeg, nothing) = (images::jpeg(180, 240), images::png(1, 1));
    for (path, found, none) in [
        (
            "/detector/detect/",
            r#"{"success": "true", "server_processing_time": "0.002", "rects": [[10, 20, 40, 60]]}"#,
            r#"{"success": "false", "server_processing_time": "0.002"}"#,
        ),
        (
            "/recognizer/predict/",
            r#"{"success": "true", "subject": "face", "confidence": "0.750", "server_processing_time": "0.002", "rect": [10, 20, 40, 60]}"#,
            r#"{"success": "false", "server_processing_time": "0.002"}"#,
        ),
        (
            "/openpose/detect/",
            r#"{"success": "true", "server_processing_time": "0.002", "poses": [[[1.0, 2.0, 0.25]]]}"#,
            r#"{"success": "false", "server_processing_time": "0.002"}"#,
        ),
        (
            "/object/detect/",
            r#"{"success": "true", "server_processing_time": "0.002", "gpu_support": false, "objects": [{"rect": [10, 20, 40, 60], "class": "face", "confidence": "0.75"}]}"#,
            r#"{"success": "false", "server_processing_time": "0.002", "gpu_support": false}"#,
        ),
        (
            "/trainer/predict/",
            r#"{"success": "true", "subject": "face", "confidence": "0.750", "server_processing_time": "0.002", "rect": [10, 20, 40, 60]}"#,
            r#"{"success": "false", "server_processing_time": "0.002"}"#,
        ),
    ] {
        let form =
            format!("image={}", STANDARD.encode(&jpeg).replace('+', "%2B").replace('/', "%2F"));
        let part = [
            &b"--b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"Bruce.jpg\"\r\nContent-Type: image/jpeg\r\n\r\n"[..],
            &jpeg,
            b"\r\n--b--\r\n",
        ]
        .concat();
        for (kind, body) in [
            ("image/jpeg", jpeg.clone()),
            (FORM, form.into_bytes()),
            ("multipart/form-data; boundary=b", part),
        ] {
            let reply = served.ask("POST", path, kind, body).await;
            assert_eq!((reply.status.as_u16(), reply.text()), (200, found), "{path} {kind}");
        }
        let reply = served.ask("POST", path, "image/png", nothing.clone()).await;
        assert_eq!((reply.status.as_u16(), reply.text()), (200, none), "{path}");
    }
}

#[tokio::test]
async fn mistakes_are_answered_in_its_words() {
    let served = Served::new(all()).await;
    let jpeg = images::jpeg(9, 9);
    let kinds = "Content-Type must be 'image/png', 'image/jpeg', 'multipart/form-data', or 'application/x-www-urlencoded'";
    for (method, path, kind, body, text) in [
        ("GET", "/detector/detect/", "", "", "Must send frame as a POST"),
        ("PUT", "/object/detect/", "image/jpeg", "", "Must send frame as a POST"),
        ("POST", "/detector/detect/", "image/gif", "", kinds),
        ("POST", "/detector/detect/", "application/json", "{}", kinds),
        ("POST", "/detector/detect/", "", "x", kinds),
        ("POST", "/detector/detect/", "image/png", "", "No image data"),
        ("POST", "/detector/detect/", FORM, "x=1", "Missing 'image' parameter"),
        (
            "POST",
            "/detector/detect/",
            "multipart/form-data; boundary=b",
            "--b--",
            "Image file must be uploaded with key of 'image'",
        ),
        ("POST", "/recognizer/train/", FORM, "x=1", "Missing 'subject' parameter"),
        ("GET", "/recognizer/train/", "", "", "Must send request as a POST"),
        ("GET", "/trainer/remove/", "", "", "Must send request as a POST"),
        ("POST", "/recognizer/add/", FORM, "image=AA", "Missing 'subject' parameter"),
        ("POST", "/server/capabilities/", "", "", "Please send request as a GET"),
        ("POST", "/server/usage/", "", "", "This request must be a GET"),
        ("POST", "/test/", "", "", "Please send request as a GET or HEAD"),
        ("GET", "/getdata/", "", "", "Missing 'numbytes' parameter"),
        ("POST", "/getdata/", "", "", "Please send response as a GET"),
        ("GET", "/uploaddata/", "", "", "Please send response as a POST"),
    ] {
        let reply = served.ask(method, path, kind, body).await;
        assert_eq!((reply.status.as_u16(), reply.text()), (400, text), "{method} {path} {kind}");
    }
    let reply = served.ask("POST", "/detector/detect/", "image/jpeg", "%PDF").await;
    assert_eq!(reply.status, 400, "{reply:?}");
    let reply =
        served.ask("POST", "/detector/detect/", "image/png", images::png(20_000, 10_000)).await;
    assert_eq!(reply.status, 400, "{reply:?}");

    let without = Served::new(Echo::new(&["face"])).await;
    let reply = without.post("/openpose/detect/", jpeg.clone()).await;
    let expected = r#"{"success": "false", "error": "OpenPose not supported on this server"}"#;
    assert_eq!((reply.status.as_u16(), reply.text()), (501, expected));
    without.vision.0.classic.training.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    let reply = without.post("/recognizer/predict/", jpeg).await;
    let expected = r#"{"success": "false", "error": "Training data update in progress"}"#;
    assert_eq!((reply.status.as_u16(), reply.text()), (503, expected));
}

#[tokio::test]
async fn faces_are_added_and_other_questions_answered() {
    let echo = all();
    let served = Served::new(echo.clone()).await;
    let image = STANDARD.encode(images::jpeg(180, 240)).replace('+', "%2B");
    let form = format!("subject=Ann+Lee&owner=Bob&image={image}");
    let reply = served.ask("POST", "/recognizer/add/", FORM, form.clone()).await;
    assert_eq!(reply.text(), r#"{"success": "true", "rects": [[10, 20, 40, 60]]}"#);
    let reply = served.ask("POST", "/trainer/add/", FORM, form.clone()).await;
    assert_eq!(
        reply.text(),
        r#"{"success": "true", "rects": [[10, 20, 40, 60]], "server_processing_time": "0.002"}"#
    );
    assert_eq!(*echo.taught.lock().unwrap(), ["Ann Lee", "Ann Lee"]);
    let none =
        format!("subject=Ann&image={}", STANDARD.encode(images::png(1, 1)).replace('+', "%2B"));
    let reply = served.ask("POST", "/trainer/add/", FORM, none.clone()).await;
    assert_eq!(
        reply.text(),
        r#"{"success": "false", "reason": "No face detected", "server_processing_time": "0.002"}"#
    );
    let reply = served.ask("POST", "/recognizer/add/", FORM, none).await;
    assert_eq!(reply.text(), r#"{"success": "false", "server_processing_time": "0.002"}"#);
    let reply = served.ask("POST", "/recognizer/train/", FORM, "subject=Ann&owner=Bob").await;
    assert_eq!(reply.text(), "OK\n");
    // The steps of the Android client, which may know no name.
    for (path, form) in [("/trainer/train/", "subject=Ann"), ("/recognizer/update/", "owner_id=7")]
    {
        let reply = served.ask("POST", path, FORM, form).await;
        assert_eq!((reply.status.as_u16(), reply.text()), (200, "OK\n"), "{path}");
    }
    let reply = served.ask("POST", "/trainer/remove/", FORM, "subject=Ann").await;
    assert_eq!(reply.status, 501);
    assert_eq!(reply.json()["success"], "false");
    assert!(reply.text().contains("workers/faces"), "{}", reply.text());

    let reply = served.get("/server/capabilities/").await;
    assert_eq!(reply.text(), r#"{"success": "true", "gpu_support": false}"#);
    let usage = served.get("/server/usage/").await.json();
    for name in ["cpu_util", "mem_util"] {
        assert!(
            usage[name].as_f64().is_some_and(|percent| (0.0..=100.0).contains(&percent)),
            "{usage}"
        );
    }
    assert_eq!(served.get("/test/").await.text(), "Valid GET Request to server");
    let head = served.ask("HEAD", "/test/", "", "").await;
    assert_eq!((head.status.as_u16(), head.text()), (200, ""));
    let data = served.get("/getdata/?numbytes=200001").await;
    assert_eq!((data.body.len(), data.header("content-length")), (200_001, "200001"));
    assert!(data.body.iter().all(|byte| *byte == b'Z'));
    assert_eq!(served.get("/getdata/?numbytes=0").await.text(), "");
    for numbytes in ["x", "-1", "1073741825"] {
        assert_eq!(served.get(&format!("/getdata/?numbytes={numbytes}")).await.status, 400);
    }
    let told = served.ask("POST", "/uploaddata/", "text/plain", vec![7; 300_000]).await.json();
    assert_eq!(told["bytes_read"], 300_000);
    assert!(told["mbps"].is_string() && told["elapsed_ms"].is_number(), "{told}");
}

#[tokio::test]
async fn websockets_answer_images_in_order_and_echo_texts() {
    let served = Served::new(all()).await;
    let jpeg = images::jpeg(180, 240);
    for path in ["/ws/detector/detect", "/ws/detector/detect/"] {
        let mut socket = Socket::open(served.connect().await, path).await;
        socket.binary(&jpeg).await;
        socket.text(r#"{"latency_start": 1.5}"#).await;
        socket.binary(&images::png(1, 1)).await;
        socket.binary(b"%PDF").await;
        let found = r#"{"success": "true", "server_processing_time": "0.003", "rects": [[10, 20, 40, 60]]}"#;
        assert_eq!(socket.next().await, Came::Text(found.to_owned()), "with the time of decoding");
        assert_eq!(socket.next().await, Came::Text(r#"{"latency_start": 1.5}"#.to_owned()));
        let none = r#"{"success": "false", "server_processing_time": "0.003"}"#;
        assert_eq!(socket.next().await, Came::Text(none.to_owned()));
        let refused = socket.next().await.json();
        assert_eq!(
            (&refused["success"], &refused["server_processing_time"]),
            (&json!("false"), &json!(0))
        );
        socket.close().await;
        assert_eq!(socket.next().await, Came::Closed(Some(CloseCode::NORMAL)));
    }
    for (path, part) in [
        ("/ws/recognizer/predict/", r#""subject": "face""#),
        ("/ws/openpose/detect/", r#""poses": [[["#),
        ("/ws/object/detect/", r#""class": "face""#),
    ] {
        let mut socket = Socket::open(served.connect().await, path).await;
        socket.binary(&jpeg).await;
        let Came::Text(text) = socket.next().await else { panic!("{path}") };
        assert!(text.contains(part), "{text}");
    }
    let without = Served::new(Echo::new(&["face"])).await;
    let mut socket = Socket::open(without.connect().await, "/ws/openpose/detect/").await;
    socket.binary(&jpeg).await;
    let expected =
        r#"{"success": "false", "error": "OpenPose not supported", "server_processing_time": 0}"#;
    assert_eq!(socket.next().await, Came::Text(expected.to_owned()));
}

#[tokio::test]
async fn faces_are_found_by_the_model_of_the_settings() {
    let settings =
        VisionSettings { face_model: "frontal_face".to_owned(), ..VisionSettings::default() };
    let echo = Echo::new(&["face", "frontal_face"]);
    let served = Served::with(settings, echo.clone(), access(None), Some(user("ada"))).await;
    let reply = served.ask("POST", "/detector/detect/", "image/png", images::png(9, 9)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let asked: Vec<_> = echo.asked.lock().unwrap().iter().map(|it| it.model.clone()).collect();
    assert_eq!(asked, [Some("frontal_face".to_owned())]);
}
