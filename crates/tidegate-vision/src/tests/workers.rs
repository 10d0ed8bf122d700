//! Detection by a pool of programs, which are killed, answer nonsense and do not start.

use std::{fs, path::PathBuf, sync::Arc};

use bytes::Bytes;
use serde_json::json;
use tempfile::TempDir;
use tidegate_api::proto;
use tidegate_message::{Code, FrameSize};
use tidegate_ports::Request;
use tidegate_rpc::Detection;
use tidegate_wire::NodeId;
use tidegate_workers::{PoolSettings, Program, SharedPool};
use tokio::{runtime::Runtime, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::{
    Served, access, assert_stages_sum,
    client::{Came, Socket},
    images, user,
};
use crate::{
    Vision, VisionSettings,
    detector::{Detector as _, Pooled},
};

/// The beginning of a program, by which it is connected and sends messages.
const CONNECTED: &str = r#"
import json, os, socket, struct, time
stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["TIDEGATE_DETECTOR_SOCKET"])
stream = stream.makefile("rwb")
def send(message):
    text = json.dumps(message).encode()
    stream.write(struct.pack(">II", len(text), 0) + text)
    stream.flush()
"#;

/// A program that speaks version 2 of the detector protocol; a model does what its name says.
const PROGRAM: &str = r#"
import array, hashlib, json, mmap, os, socket, struct, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["TIDEGATE_DETECTOR_SOCKET"])
passed = []
def read(count):
    data = b""
    while len(data) < count:
        part, fds, _, _ = socket.recv_fds(connection, min(count - len(data), 1 << 16), 1)
        if not part: sys.exit(0)
        passed.extend(fds); data += part
    return data
def raw(text): connection.sendall(struct.pack(">II", len(text), 0) + text)
def send(message): raw(json.dumps(message).encode())
names = ["face", "killed", "nan", "shape", "labels"]
send({"type": "hello", "protocol": 2, "detector": "fake", "memory": True, "in_flight": 4,
      "models": [{"name": name, "kind": "detection"} for name in names]})
memory = None
while True:
    text, payload = (read(length) for length in struct.unpack(">II", read(8)))
    request = json.loads(text)
    id, kind, model = request["id"], request["type"], request.get("model")
    if kind == "memory":
        memory = mmap.mmap(passed.pop(), request["bytes"], prot=mmap.PROT_READ)
        send({"id": id})
        continue
    if "offset" in request:
        payload = memory[request["offset"]:request["offset"] + request["bytes"]]
    if kind == "load": send({"id": id})
    elif kind == "unload": send({"id": id})
    elif kind == "train": send({"id": id, "images": 3})
    elif model == "killed": os.kill(os.getpid(), 9)
    elif model == "nan": raw(b'{"id": %d, "boxes": [[0, 0, 1, 1, NaN, "x"]]}' % id)
    elif model == "shape": send({"id": id, "boxes": [[0, 0, 1]]})
    elif model == "labels": send({"id": id, "boxes": [[0, 0, 1, 1, 1, "x" * 65]]})
    else:
        digest = hashlib.sha1(payload).hexdigest()
        send({"id": id, "boxes": [[1, 2, 3, 4, 0.5, digest]], "size": [180, 240], "took_ms": 0.005, "decode_ms": 0.001})
"#;

struct Fake {
    folder: TempDir,
}

impl Fake {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("fake.py"), text).unwrap();
        Self { folder }
    }

    fn write_model(&self, name: &str) {
        for end in ["onnx", "json"] {
            fs::write(self.folder.path().join(format!("{name}.{end}")), "{}").unwrap();
        }
    }

    fn pooled(&self, models_dir: Option<PathBuf>) -> Pooled {
        let path = self.folder.path().join("fake.py").display().to_string();
        let program = Program::Command(vec!["python3".into(), path]);
        Pooled::new(SharedPool::new(PoolSettings { models_dir, ..PoolSettings::new(program) }))
    }

    async fn serve(&self, models_dir: Option<PathBuf>) -> Served {
        let detector = Arc::new(self.pooled(models_dir));
        let settings = VisionSettings::default();
        Served::with(settings, detector, access(None), Some(user("ada"))).await
    }
}

#[tokio::test]
async fn a_pool_that_has_ended_is_replaced_for_callers_that_it_knew() {
    let fake = Fake::new(PROGRAM);
    let detector = Arc::new(fake.pooled(None));
    let ask = async |detector: &Arc<Pooled>| {
        let size = Some(FrameSize { width: 180, height: 240 });
        let request = Request { size, ..Request::encoded(images::jpeg(180, 240).into()) };
        detector.clone().looker(NodeId([1; 32])).look(request).await
    };
    // The pool's task ends with the runtime in which it began.
    let first = detector.clone();
    let ended = spawn_blocking(move || {
        Runtime::new().unwrap().block_on(ask(&first)).unwrap();
    });
    ended.await.unwrap();
    for _ in 0..2 {
        ask(&detector).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_answers_and_its_failures_are_reported_and_cost_no_other() {
    let fake = Fake::new(PROGRAM);
    fake.write_model("early");
    let served = fake.serve(Some(fake.folder.path().to_owned())).await;
    let jpeg = images::jpeg(180, 240);
    // The worker reads just the bytes that were sent.
    let digest = sha1_of(&jpeg);
    let good = async || {
        let reply = served.post("/v1/detect/face", jpeg.clone()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let answer = reply.json();
        assert_eq!(answer["boxes"], json!([[1.0, 2.0, 3.0, 4.0, 0.5, digest]]));
        assert_stages_sum(&answer["times"]);
    };
    // A model of the folder is there for the first who asks, though it is loaded after the start.
    let reply = served.post("/v1/detect/early", jpeg.clone()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    good().await;
    for (model, status, text) in [
        ("nan", 502, "is not the JSON object"),
        ("shape", 502, "field of another type"),
        ("labels", 502, "at most 64 bytes"),
        ("killed", 502, "signal: 9"),
    ] {
        let path = format!("/v1/detect/{model}");
        let (reply, ()) = tokio::join!(
            served.post(&path, jpeg.clone()),
            // Others are not affected, though their worker may be the one that was killed: they are tried again.
            good(),
        );
        assert_eq!(reply.status, status, "{model}: {reply:?}");
        assert!(reply.text().contains(text), "{model}: {reply:?}");
    }
    let reply = served.post("/v1/detect/nothing", jpeg.clone()).await;
    assert_eq!(reply.status, 404);
    assert!(reply.text().contains("face killed nan shape labels"), "{reply:?}");

    let mut socket = Socket::open(served.connect().await, "/v1/detect/killed").await;
    socket.binary(&jpeg).await;
    let Came::Text(text) = socket.next().await else { panic!("it is answered") };
    assert!(text.contains("vision.detector.failed"), "{text}");

    let reply = served.ask("PUT", "/v1/models/street", "", "").await;
    assert_eq!(reply.status, 422, "{reply:?}");
    fake.write_model("street");
    let reply = served.ask("PUT", "/v1/models/street", "", "").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let models = served.get("/v1/models").await.json();
    let last = json!({ "name": "street", "kind": "", "loaded": true, "failed": null });
    assert_eq!(models["models"].as_array().unwrap().last(), Some(&last));
    assert_eq!(served.ask("DELETE", "/v1/models/street", "", "").await.status, 204);
    let reply = served.post("/v1/models/face/subjects/Ann", jpeg.clone()).await;
    assert_eq!(reply.json()["images"], 3);
    good().await;
}

/// The digest, by the program that the workers are.
fn sha1_of(bytes: &[u8]) -> String {
    use std::io::Write as _;
    let mut child = std::process::Command::new("python3")
        .args([
            "-c",
            "import hashlib, sys; print(hashlib.sha1(sys.stdin.buffer.read()).hexdigest(), end='')",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[tokio::test]
async fn a_pool_that_does_not_start_is_an_answer_at_once() {
    let fake = Fake::new("import sys; sys.exit('no camera here')");
    let served = fake.serve(None).await;
    for _ in 0..2 {
        let reply = served.post("/v1/detect/face", images::jpeg(9, 9)).await;
        assert_eq!(reply.status, 503, "{reply:?}");
        assert_eq!(reply.json()["error"]["code"], "vision.detector.unavailable");
        assert!(reply.text().contains("no camera here"), "{reply:?}");
        assert_eq!(reply.header("retry-after"), "5");
    }
    assert_eq!(served.get("/v2/health/ready").await.status, 503);
}

#[tokio::test]
async fn a_program_of_version_1_is_a_model_of_its_own_name() {
    let program = r#"
send({"type": "hello", "protocol": 1, "detector": "whole", "background": False})
while lengths := stream.read(8):
    text, payload = (stream.read(length) for length in struct.unpack(">II", lengths))
    request = json.loads(text)
    if request["type"] == "scene":
        width, height = request["source"]
        send({"id": request["id"], "input": [width, height]})
    else:
        send({"id": request["id"], "boxes": [[0, 0, width, height, 1.0, "picture"]], "took_ms": 0.0})
"#;
    let fake = Fake::new(&format!("{CONNECTED}{program}"));
    let served = fake.serve(None).await;
    for (width, height) in [(180, 240), (9, 7)] {
        let reply = served.post("/v1/detect/whole", images::jpeg(width, height)).await;
        let expected = json!([[0.0, 0.0, f64::from(width), f64::from(height), 1.0, "picture"]]);
        assert_eq!(reply.json()["boxes"], expected);
    }
    assert_eq!(served.post("/v1/detect/face", images::jpeg(9, 9)).await.status, 404);
    assert_eq!(served.get("/v1/models").await.json()["models"][0]["name"], "whole");
}

#[tokio::test]
async fn calls_of_grpc_are_answered_by_programs_of_the_pool() {
    let program = r#"
send({"type": "hello", "protocol": 2, "detector": "whole", "models": [{"name": "whole"}]})
while lengths := stream.read(8):
    text, payload = (stream.read(length) for length in struct.unpack(">II", lengths))
    # Longer than it says: no stage is longer than all of them.
    time.sleep(0.01)
    send({"id": json.loads(text)["id"], "boxes": [[1, 2, 3, 4, 0.5, "x"]], "classes": [[0.25, "y"]],
          "poses": [[[1, 2, 0.5]]], "size": [64, 48], "took_ms": 3, "decode_ms": 1})
"#;
    let fake = Fake::new(&format!("{CONNECTED}{program}"));
    let detector = Arc::new(fake.pooled(None));
    let stop = CancellationToken::new();
    let vision = Vision::with(VisionSettings::default(), detector, access(None), stop);
    let (calls, ada): (&dyn Detection, _) = (&vision, user("ada"));
    let found = calls.detect(&ada, "whole", images::png(64, 48).into()).await.unwrap();
    assert_eq!(found.image, Some(proto::FrameSize { width: 64, height: 48 }));
    let expected = proto::DetectedBox {
        left: 1.0,
        top: 2.0,
        right: 3.0,
        bottom: 4.0,
        score: 0.5,
        label: "x".to_owned(),
    };
    assert_eq!(found.boxes, [expected]);
    assert_eq!(found.classes[0].label, "y");
    assert_eq!(found.poses[0].points[0], proto::DetectedPoint { x: 1.0, y: 2.0, score: 0.5 });
    let times = found.times.unwrap();
    assert_eq!((times.decode_nanos, times.infer_nanos), (1_000_000, 2_000_000));
    let refused = calls.detect(&ada, "whole", Bytes::from_static(b"%PDF")).await;
    assert_eq!(refused.unwrap_err().code(), Code::IMAGE_TYPE);
    let broken = calls.detect(&ada, "cat", Bytes::from_static(b"\xff\xd8")).await;
    assert_eq!(broken.unwrap_err().code(), Code::IMAGE_INVALID);
}
