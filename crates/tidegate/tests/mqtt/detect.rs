//! Live detection by a whole node: a camera of its configuration, a program that looks, and an MQTT client that reads.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, Message, Outgoing};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use super::{
    poll::poll,
    program::{LONGEST, Program, options_of},
};

/// A program of the standard library that speaks version 2: each picture shows a person in its left upper quarter. It ends once, when a
/// file of that name is there.
const LOOKS: &str = r#"
import json, os, socket, struct, sys
folder = os.path.dirname(os.path.abspath(__file__))
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["TIDEGATE_DETECTOR_SOCKET"])
stream = connection.makefile("rwb")
def send(message):
    text = json.dumps(message).encode()
    stream.write(struct.pack(">II", len(text), 0) + text); stream.flush()
send({"type": "hello", "protocol": 2, "detector": "looks", "scenes": 4, "models": [{"name": "person"}]})
scenes = {}
while lengths := stream.read(8):
    text, payload = (stream.read(length) for length in struct.unpack(">II", lengths))
    request = json.loads(text)
    answer = {"id": request["id"]}
    if request["type"] == "scene":
        scenes[request["scene"]] = request["source"]
        answer["input"] = request["source"]
    elif request["type"] == "detect":
        try:
            os.remove(os.path.join(folder, "die"))
            sys.exit("it was asked to")
        except FileNotFoundError:
            pass
        assert payload[:2] == b"\xff\xd8", "a JPEG image"
        width, height = scenes[request["scene"]]
        answer["boxes"] = [[0, 0, width / 2, height / 2, 0.75, "person"]]
        answer["took_ms"] = 1.0
    send(answer)
"#;

const LISTENER: &str = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
const PEOPLE: &str =
    "[detect.people]\ncameras = \"*\"\nmodel = \"person\"\nlatency = \"5s\"\naccuracy = 0.5\n";

/// A folder with certificates and the program.
fn site() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let request =
        InitRequest { applications: vec!["application".to_owned()], ..InitRequest::default() };
    pki::init(&folder.path().join("data/pki"), &request).expect("certificates");
    fs::write(folder.path().join("looks.py"), LOOKS).expect("a file");
    folder
}

fn settings(folder: &Path, detectors: &str) -> String {
    let scene = "source = \"scene:street?size=320x240&fps=10&people=1&seed=1\"\n";
    let program = folder.join("looks.py");
    format!(
        "{LISTENER}[camera.hall]\n{scene}[camera.yard]\n{scene}[workers]\ncount = 1\ncommand = \"python3 '{}'\"\n{detectors}",
        program.display()
    )
}

/// A client that reads all that is published below some topics.
struct Reader(Client);

impl Reader {
    fn connect(program: &Program, filters: &[&str]) -> Self {
        let mut client =
            Client::connect(options_of(program.address("main"))).expect("it is let in");
        let filters: Vec<SubscribeFilter> = filters
            .iter()
            .map(|filter| SubscribeFilter {
                filter: (*filter).to_owned(),
                maximum_qos: QoS::AtMostOnce,
                no_local: false,
                retain_as_published: true,
                retain_handling: RetainHandling::Send,
            })
            .collect();
        client.subscribe(&filters).expect("it may");
        Self(client)
    }

    /// The next message that `is` finds something in.
    fn until<T>(&mut self, is: impl Fn(&Message) -> Option<T>) -> T {
        let mut seen = Vec::new();
        let found = poll(3 * LONGEST, || {
            while let Some(message) =
                self.0.receive(Duration::from_millis(50)).expect("it stays connected")
            {
                if let Some(found) = is(&message) {
                    return Some(found);
                }
                seen.push(format!(
                    "{}: {}",
                    message.topic,
                    String::from_utf8_lossy(&message.payload[..message.payload.len().min(300)])
                ));
                seen.drain(..seen.len().saturating_sub(20));
            }
            None
        });
        found.unwrap_or_else(|| panic!("it did not come, but:\n{}", seen.join("\n")))
    }

    /// The next message of that type on that topic.
    fn json(&mut self, topic: &str, kind: &str) -> Value {
        self.until(|message| {
            let value: Value = serde_json::from_slice(&message.payload).ok()?;
            (message.topic == topic && value["type"] == kind).then_some(value)
        })
    }

    /// The next payload on that topic.
    fn payload(&mut self, topic: &str) -> Vec<u8> {
        self.until(|message| (message.topic == topic).then(|| message.payload.clone()))
    }
}

#[test]
fn live_frames_are_looked_at_and_boxes_are_published_with_their_times() {
    let folder = site();
    let rest = "original = \"on-detection\"\noriginal_every = \"100ms\"\nhome_assistant = true\n";
    let first = settings(folder.path(), &format!("{PEOPLE}{rest}"));
    let program = Program::start_in(folder, &first);
    let mut reader = Reader::connect(&program, &["detections/#", "homeassistant/#"]);
    let topic = "detections/hall/people";
    let found = reader.json(topic, "detection");
    assert_eq!(found["detector"], "people");
    assert_eq!((&found["model"], &found["camera"]), (&json!("person"), &json!("hall")));
    assert_eq!(found["source"], json!({ "width": 320, "height": 240 }));
    // Corners are in pixels of the original, whatever the size of the frame that was looked at.
    assert_eq!(found["boxes"], json!([[0.0, 0.0, 160.0, 120.0, 0.75, "person"]]));
    let prediction = json!({
        "x": 80.0, "y": 60.0, "width": 160.0, "height": 120.0, "confidence": 0.75, "class": "person",
        "class_id": 1_402_450_560,
    });
    assert_eq!(found["predictions"], json!([prediction]));
    let times = found["times"].as_object().expect("it has times");
    let sum: f64 = times
        .iter()
        .filter(|(name, _)| *name != "total_ms")
        .map(|(_, time)| time.as_f64().expect("a number"))
        .sum();
    let total = times["total_ms"].as_f64().expect("a number");
    assert!((sum - total).abs() < 0.1, "{times:?}");
    assert_eq!(found["kept"], total <= 5000.0, "{found}");
    reader.json("detections/yard/people", "detection");
    let original = reader.payload("detections/hall/people/original");
    assert!(original.starts_with(b"\xff\xd8"), "a JPEG image");

    // Home Assistant is told what there is, and how many.
    let mut late = Reader::connect(&program, &["homeassistant/#", "detections/+/people/+"]);
    let config = "homeassistant/binary_sensor/tidegate_hall_people_person/config";
    let config: Value = serde_json::from_slice(&late.payload(config)).expect("JSON");
    assert_eq!(config["state_topic"], "detections/hall/people/person");
    let mut late = Reader::connect(&program, &["detections/hall/people/person"]);
    assert_eq!(late.payload("detections/hall/people/person"), b"1");

    // A program that ends is told, and others look on.
    fs::write(program.path("die"), "").expect("a file");
    let ended = reader.json(topic, "worker_restarted");
    assert_eq!(ended["restarts"], 1, "{ended}");
    assert!(ended["text"].as_str().is_some_and(|text| text.contains("it was asked to")), "{ended}");
    reader.json(topic, "detection");

    // A camera that is taken out is told, and the other is looked at; its detector stays as it was.
    program.reload(&first.replacen("[camera.hall]", "[camera.gate]", 1));
    let away = reader.json(topic, "camera_offline");
    assert!(away["text"].is_string(), "{away}");
    reader.json("detections/gate/people", "detection");
    reader.json("detections/yard/people", "detection");
    program.stop();
}

#[test]
fn a_reload_adds_changes_and_removes_a_detector_and_touches_no_other() {
    let folder = site();
    let path = folder.path().to_owned();
    let of = |detectors: &str| settings(&path, detectors);
    let other = "[detect.other]\ncameras = \"yard\"\nlatency = \"5s\"\naccuracy = 0.5\n";
    let program = Program::start_in(folder, &of(&format!("{PEOPLE}{other}")));
    let mut reader = Reader::connect(&program, &["detections/#", "seen/#"]);
    reader.json("detections/hall/people", "detection");
    reader.json("detections/yard/other", "detection");

    // A mistake changes nothing.
    program.reload(&of(&format!("{PEOPLE}{other}[detect.wrong]\ncameras = \"a b\"\n")));
    program.line_with("detect.wrong.cameras");
    reader.json("detections/yard/other", "detection");

    let moved = "topic = \"seen/{camera}\"\nmin_score = 0.9\n";
    program.reload(&of(&format!("{PEOPLE}{moved}{other}[detect.third]\ncameras = \"ya*\"\nlatency = \"5s\"\naccuracy = 0.5\n")));
    let lines: Vec<String> =
        (0..2).map(|_| program.line_with("detector started, stopped or restarted")).collect();
    assert!(lines[0].contains("people") && lines[1].contains("third"), "{lines:?}");
    let found = reader.json("seen/hall", "detection");
    assert_eq!(found["boxes"], json!([]), "its score is too low now");
    reader.json("detections/yard/third", "detection");
    reader.json("detections/yard/other", "detection");

    program.reload(&of(other));
    program.line_with("detector started, stopped or restarted");
    reader.json("detections/yard/other", "detection");
    program.stop();
}

#[test]
fn entities_of_a_detector_that_was_taken_out_while_the_node_was_down_are_cleared() {
    let folder = site();
    let path = folder.path().to_owned();
    let stays = "[detect.stays]\ncameras = \"hall\"\nlabels = \"person\"\nhome_assistant = true\n";
    let goes =
        "[detect.goes]\ncameras = \"hall\"\nlabels = \"person\"\nhome_assistant = \"site/ha\"\n";
    let program = Program::start_in(folder, &settings(&path, &format!("{stays}{goes}")));
    let config = |prefix: &str, detector: &str| {
        format!("{prefix}/sensor/tidegate_hall_{detector}_person/config")
    };
    let (stayed, gone) = (config("homeassistant", "stays"), config("site/ha", "goes"));
    let foreign = config("site/ha", "foreign");
    Reader::connect(&program, &["homeassistant/#"]).payload(&stayed);
    let mut reader = Reader::connect(&program, &["site/ha/#"]);
    let text = String::from_utf8(reader.payload(&gone)).expect("JSON");
    // Another node, whose announcements come here by a bridge, has a detector of that name, too.
    let node = serde_json::from_str::<Value>(&text).expect("JSON")["tidegate"]["node"].clone();
    let other = text.replace(node.as_str().expect("it says so"), "another-1");
    let qos = QoS::AtLeastOnce;
    let publish = |reader: &mut Reader, topic: &str, payload: &[u8], retain: bool| {
        let message = Outgoing { topic, payload, qos, retain, ..Outgoing::default() };
        reader.0.publish(&message).expect("it may");
    };
    publish(&mut reader, &foreign, other.as_bytes(), true);
    drop(reader);
    let program = Program::start_in(program.stop_and_keep(), &settings(&path, stays));
    program.line_with("entities of Home Assistant were cleared");
    let mut reader = Reader::connect(&program, &["homeassistant/#", "site/ha/#"]);
    publish(&mut reader, "site/ha/end", b"", false);
    let left = std::cell::RefCell::new(std::collections::BTreeSet::new());
    reader.until(|message| {
        left.borrow_mut().insert(message.topic.clone());
        (message.topic == "site/ha/end").then_some(())
    });
    let left = left.into_inner();
    assert!(left.contains(&stayed) && left.contains(&foreign), "{left:?}");
    assert!(!left.contains(&gone), "{left:?}");
    program.stop();
}

#[test]
fn the_command_looks_at_a_nodes_cameras_with_a_program_of_this_machine() {
    let folder = site();
    let first = settings(folder.path(), "");
    let program = Program::start_in(folder, &first);
    let node = program.api().to_string();
    let looks = format!("python3 '{}'", program.path("looks.py").display());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["--config".as_ref(), program.path("tidegate.toml").as_os_str()]);
        command.args(["detect", "--node", &node, "--latency", "5s", "--accuracy", "0.5"]);
        command.args(arguments).stdin(Stdio::null());
        command
    };
    // The camera may be a moment away.
    let mut shown = None;
    let found = poll(3 * LONGEST, || {
        let mut child = run(&["hall", "--command", &looks, "-o", "json", "--for", "20s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program");
        let lines = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
        let messages =
            lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok());
        let found = messages.take(50).find(|message: &Value| message["type"] == "detection");
        child.kill().expect("it runs or has ended");
        child.wait().expect("it is our child");
        shown = found.clone();
        found
    });
    let found = found.unwrap_or_else(|| panic!("no detection came: {shown:?}"));
    assert_eq!((&found["camera"], &found["model"]), (&json!("hall"), &json!("person")));
    assert_eq!(found["boxes"][0][2], 160.0);
    for (arguments, status, text) in [
        (&["none", "--command", &*looks][..], 3, "none"),
        (
            &["hall", "--command", &*looks, "--model", "street"][..],
            2,
            "there is no model \"street\"; there are: person",
        ),
        (&["hall", "--command", "false"][..], 1, "the detector does not start"),
    ] {
        let output = run(arguments).output().expect("the program");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(text), "{said}");
    }
    program.stop();
}
