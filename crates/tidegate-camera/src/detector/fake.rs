//! Detectors for tests: small programs of Python's standard library that speak the protocol.

use std::fs;

use tempfile::TempDir;

use super::*;

pub(super) const SIZE: FrameSize = FrameSize { width: 64, height: 48 };

/// A detector in which `detect` is the body of a function of `id`, `payload`, `asked` (how often) and `starts`; `detect.source` is
/// the size of the scene.
pub(crate) struct Fake {
    folder: TempDir,
}

impl Fake {
    pub(crate) fn new(detect: &str) -> Self {
        Self::with_hello(r#"{"protocol": 1, "background": True}"#, detect)
    }

    /// The same with other fields of its hello.
    pub(crate) fn with_hello(hello: &str, detect: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let detect = detect.replace('\n', "\n    ");
        let text = format!(
            r#"
import json, os, socket, struct, sys, time
starts = os.path.join(os.path.dirname(__file__), "starts")
with open(starts, "a") as file: file.write("x")
starts = os.path.getsize(starts)
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["TIDEGATE_DETECTOR_SOCKET"])
stream = connection.makefile("rwb")
def raw(text):
    stream.write(struct.pack(">II", len(text), 0) + text); stream.flush()
def send(message): raw(json.dumps(message).encode())
def detect(id, payload, asked, learnt):
    {detect}
send({{"type": "hello", "detector": "fake", **{hello}}})
asked = learnt = 0
while lengths := stream.read(8):
    text, payload = (stream.read(length) for length in struct.unpack(">II", lengths))
    request = json.loads(text)
    if request["type"] == "scene":
        detect.source, learnt = request["source"], 0
        send({{"id": request["id"], "input": request["source"]}})
    elif request["type"] == "background": learnt += 1; send({{"id": request["id"]}})
    else: asked += 1; detect(request["id"], payload, asked, learnt)
"#
        );
        fs::write(folder.path().join("fake.py"), text).unwrap();
        Self { folder }
    }

    pub(crate) fn spec(&self) -> DetectorSpec {
        let path = self.folder.path().join("fake.py").display().to_string();
        DetectorSpec::new(DetectorKind::Command(vec!["python3".into(), path]))
    }

    /// How often it was started.
    pub(super) fn starts(&self) -> u64 {
        fs::metadata(self.folder.path().join("starts")).map_or(0, |file| file.len())
    }

    pub(super) async fn start(&self) -> Detector {
        let mut detector = Detector::start(self.spec()).await.unwrap();
        detector.begin_scene(SIZE, &[Bytes::from_static(b"bg")]).await.unwrap();
        detector
    }
}
