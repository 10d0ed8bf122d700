//! The Open Inference Protocol.

use axum::http::{Request, header};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use tidegate_ports::Image;

use super::{Echo, Served, assert_stages_sum, client, images};

const JSON: &str = "application/json";

fn tensor(datatype: &str, shape: &[u64], data: Value) -> Value {
    json!({ "id": "7", "inputs": [{ "name": "image", "datatype": datatype, "shape": shape, "data": data }] })
}

#[tokio::test]
async fn an_image_is_a_tensor_and_so_are_its_boxes() {
    let echo = Echo::usual();
    let served = Served::new(echo.clone()).await;
    let png = images::png(64, 96);
    let text = STANDARD.encode(&png);
    let pixels = |bytes: &[u8], shape: [u32; 3]| Image::Pixels {
        shape,
        bytes: Bytes::copy_from_slice(bytes),
    };
    for (request, image) in [
        (tensor("BYTES", &[1], json!([text])), Image::Encoded(png.clone().into())),
        (tensor("BYTES", &[1, 1], json!([[text]])), Image::Encoded(png.clone().into())),
        // Red, green, blue come as blue, green, red to the workers.
        (
            tensor("UINT8", &[1, 1, 2, 3], json!([[[[1, 2, 3], [4, 5, 255]]]])),
            pixels(&[3, 2, 1, 255, 5, 4], [1, 2, 3]),
        ),
        (
            tensor("UINT8", &[2, 1, 3], json!([1, 2, 3, 4, 5, 6])),
            pixels(&[3, 2, 1, 6, 5, 4], [2, 1, 3]),
        ),
        (tensor("UINT8", &[1, 1, 3, 1], json!([1, 2, 3])), pixels(&[1, 2, 3], [1, 3, 1])),
    ] {
        let reply = served.ask("POST", "/v2/models/face/infer", JSON, request.to_string()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(echo.asked.lock().unwrap().pop().unwrap().image, image);
        let answer = reply.json();
        assert_eq!((&answer["model_name"], &answer["id"]), (&json!("face"), &json!("7")));
        assert_stages_sum(&answer["parameters"]);
        // The box lies outside the few pixels.
        let (count, corners, scores, labels) = match image {
            Image::Encoded(_) => {
                (1, json!([10.0, 20.0, 40.0, 60.0]), json!([0.75]), json!(["face"]))
            }
            Image::Pixels { .. } => (0, json!([]), json!([]), json!([])),
        };
        let outputs = json!([
            { "name": "boxes", "datatype": "FP32", "shape": [count, 4], "data": corners },
            { "name": "scores", "datatype": "FP32", "shape": [count], "data": scores },
            { "name": "labels", "datatype": "BYTES", "shape": [count], "data": labels },
            { "name": "class_scores", "datatype": "FP32", "shape": [1], "data": [0.5] },
            { "name": "class_labels", "datatype": "BYTES", "shape": [1], "data": ["cat"] },
            { "name": "poses", "datatype": "FP32", "shape": [1, 1, 3], "data": [1.0, 2.0, 0.25] },
        ]);
        assert_eq!(answer["outputs"], outputs);
    }
    let mut request = tensor("UINT8", &[1, 1, 1, 3], json!([1, 2, 3]));
    request["inputs"][0]["parameters"] = json!({ "colour": "bgr" });
    request["outputs"] = json!([{ "name": "scores" }]);
    let reply = served.ask("POST", "/v2/models/face/infer", JSON, request.to_string()).await;
    assert_eq!(reply.json()["outputs"].as_array().unwrap().len(), 1, "those that are asked for");
    assert_eq!(echo.asked.lock().unwrap().pop().unwrap().image, pixels(&[1, 2, 3], [1, 1, 3]));
}

#[tokio::test]
async fn binary_data_follows_the_json() {
    let echo = Echo::usual();
    let served = Served::new(echo.clone()).await;
    let png = images::png(64, 96);
    let encoded = [&(png.len() as u32).to_le_bytes()[..], &png].concat();
    for (datatype, shape, data, sizes) in [
        ("BYTES", json!([1]), encoded, [16, 4, 8, 4, 7, 12]),
        // The box lies outside the two pixels.
        ("UINT8", json!([1, 1, 2, 3]), vec![1, 2, 3, 4, 5, 6], [0, 0, 0, 4, 7, 12]),
    ] {
        let input = json!({
            "name": "image", "datatype": datatype, "shape": shape,
            "parameters": { "binary_data_size": data.len() },
        });
        let text =
            json!({ "inputs": [input], "parameters": { "binary_data_output": true } }).to_string();
        let body = [text.as_bytes(), &data].concat();
        let request = Request::post("/v2/models/face/infer")
            .header(header::HOST, "x")
            .header("Inference-Header-Content-Length", text.len())
            .body(Full::new(Bytes::from(body)));
        let reply = client::send(served.address, request.unwrap()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let length: usize = reply.header("inference-header-content-length").parse().unwrap();
        let answer: Value = serde_json::from_slice(&reply.body[..length]).unwrap();
        for (output, size) in answer["outputs"].as_array().unwrap().iter().zip(sizes) {
            assert_eq!(output["parameters"]["binary_data_size"], size, "{output}");
        }
        let binary = &reply.body[length..];
        assert_eq!(binary.len(), sizes.iter().sum::<usize>());
        if datatype == "BYTES" {
            assert_eq!(binary[..4], 10.0_f32.to_le_bytes());
            assert_eq!(&binary[20..28], b"\x04\0\0\0face");
        }
    }
    let asked = echo.asked.lock().unwrap();
    let swapped =
        Image::Pixels { shape: [1, 2, 3], bytes: Bytes::from_static(&[3, 2, 1, 6, 5, 4]) };
    assert_eq!((&asked[0].image, &asked[1].image), (&Image::Encoded(png.into()), &swapped));
}

#[tokio::test]
async fn a_wrong_tensor_is_told_what_is_right() {
    let echo = Echo::usual();
    let served = Served::new(echo.clone()).await;
    for (request, status, text) in [
        (json!({ "inputs": [] }), 400, "send one input"),
        (json!({}), 400, "inputs"),
        (tensor("FP32", &[1], json!([1])), 400, "neither BYTES nor UINT8"),
        (tensor("BYTES", &[2], json!(["", ""])), 400, "one element"),
        (tensor("BYTES", &[1], json!([7])), 400, "in base64"),
        (tensor("BYTES", &[1], json!(["%"])), 400, "not base64"),
        (tensor("BYTES", &[1], json!([STANDARD.encode("%PDF")])), 415, "a PDF document"),
        (tensor("UINT8", &[1, 1, 2, 3], json!([1, 2, 3])), 400, "as long as the shape says"),
        (tensor("UINT8", &[1, 1, 1, 3], json!([1, 2, 3, 4])), 400, "as long as the shape says"),
        (tensor("UINT8", &[1, 1, 1, 3], json!([1, 2, 256])), 400, "from 0 to 255"),
        (tensor("UINT8", &[1, 1, 1, 3], json!([1.5, 2, 3])), 400, "from 0 to 255"),
        (tensor("UINT8", &[1, 1, 1, 4], json!([1, 2, 3, 4])), 400, "channels 1 or 3"),
        (tensor("UINT8", &[1, 20_000, 10_000, 3], json!([])), 400, "at most 40 million pixels"),
        (tensor("UINT8", &[2, 1, 1, 3], json!([1, 2, 3, 4, 5, 6])), 400, "of shape"),
        (json!({ "inputs": [{ "datatype": "BYTES", "shape": [1] }] }), 400, "has no data"),
    ] {
        let reply = served.ask("POST", "/v2/models/face/infer", JSON, request.to_string()).await;
        assert_eq!(reply.status, status, "{request}: {reply:?}");
        let error = reply.json()["error"].clone();
        assert!(error.as_str().unwrap().contains(text), "{request}: {error}");
    }
    assert!(echo.asked.lock().unwrap().is_empty(), "no worker is asked");
    let image = tensor("BYTES", &[1], json!([STANDARD.encode(images::png(2, 2))])).to_string();
    for (model, status) in [("nothing", 404), ("busy", 429), ("dead", 502), ("away", 503)] {
        let path = format!("/v2/models/{model}/infer");
        assert_eq!(served.ask("POST", &path, JSON, image.clone()).await.status, status, "{model}");
    }
}

#[tokio::test]
async fn server_and_models_describe_themselves() {
    let served = Served::new(Echo::usual()).await;
    assert_eq!(served.get("/v2").await.json()["name"], "tidegate");
    assert_eq!(served.get("/v2/health/live").await.json(), json!({ "live": true }));
    assert_eq!(served.get("/v2/health/ready").await.json(), json!({ "ready": true }));
    let model = served.get("/v2/models/face").await.json();
    assert_eq!((&model["name"], &model["platform"]), (&json!("face"), &json!("echo")));
    assert_eq!(
        model["outputs"][0],
        json!({ "name": "boxes", "datatype": "FP32", "shape": [-1, 4] })
    );
    assert_eq!(
        served.get("/v2/models/face/ready").await.json(),
        json!({ "name": "face", "ready": true })
    );
    assert_eq!(served.get("/v2/models/nothing").await.status, 404);
    assert_eq!(served.get("/v2/models/nothing/ready").await.status, 404);

    // A path may name the version, as clients do that were given one.
    let version = "/v2/models/face/versions/1";
    assert_eq!(served.get(version).await.json()["versions"], json!(["1"]));
    assert_eq!(served.get(&format!("{version}/ready")).await.json()["ready"], true);
    let image = tensor("BYTES", &[1], json!([STANDARD.encode(images::png(2, 2))])).to_string();
    let reply = served.ask("POST", &format!("{version}/infer"), JSON, image.clone()).await;
    assert_eq!(reply.json()["model_version"], "1");
    for (method, path, status, part) in [
        ("POST", "/v2/models/face/versions/2/infer", 404, "no version \"2\"; it has version 1"),
        ("GET", "/v2/models/face/versions/x", 404, "it has version 1"),
        ("GET", "/v2/models/nothing/versions/1", 404, "there are: face"),
        ("GET", "/v2/models/face/infer", 405, "does not take that method"),
        ("POST", "/v2/health/ready", 405, "does not take that method"),
    ] {
        let reply = served.ask(method, path, JSON, image.clone()).await;
        assert_eq!(reply.status, status, "{method} {path}");
        let error = reply.json()["error"].clone();
        assert!(error.as_str().is_some_and(|text| text.contains(part)), "{method} {path}: {error}");
    }

    // A model that was loaded, and that its program lacks now.
    let served = Served::new(Echo::new(&["face", "lost"])).await;
    assert_eq!(served.get("/v2/models/face/ready").await.status, 200);
    let reply = served.get("/v2/models/lost/ready").await;
    let error = json!({ "error": "the model lost is not ready: its file is gone" });
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json(), error);
    let lost = served.get("/v1/models").await.json()["models"][1].clone();
    assert_eq!((&lost["loaded"], &lost["failed"]), (&json!(false), &json!("its file is gone")));
}
