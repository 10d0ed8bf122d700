//! The pool against small programs of Python's standard library, killed at every stage, and the memory that they share with us.

use std::fs;

use bytes::Bytes;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::SharedPool;

/// A program that speaks version 2; `detect` is the body of a function of `id`, `payload`, `asked` (how often) and `starts`.
struct Fake {
    folder: TempDir,
}

const FOUND: &str = r#"send({"id": id, "boxes": [[1, 2, 3 + len(payload), 9.5, 0.5, "thing"]], "took_ms": 0.015, "decode_ms": 0.005})"#;
const PLAIN: &str = r#"{"protocol": 2, "in_flight": 4, "scenes": 2, "background": True}"#;
const MEMORY: &str = r#"{"protocol": 2, "in_flight": 4, "memory": True}"#;

impl Fake {
    fn new(hello: &str, detect: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let detect = detect.replace('\n', "\n    ");
        let text = format!(
            r#"
import array, json, mmap, os, socket, struct, sys, time
starts = os.path.join(os.path.dirname(__file__), "starts")
with open(starts, "a") as file: file.write("x")
starts = os.path.getsize(starts)
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["TIDEGATE_DETECTOR_SOCKET"])
passed, memory, collected, models = [], None, [], ["built-in"]
def read(count):
    data = b""
    while len(data) < count:
        part, fds, _, _ = socket.recv_fds(connection, min(count - len(data), 1 << 16), 1)
        if not part: sys.exit(0)
        passed.extend(fds); data += part
    return data
def raw(text): connection.sendall(struct.pack(">II", len(text), 0) + text)
def send(message): raw(json.dumps(message).encode())
def detect(id, payload, asked, request):
    {detect}
hello = {{"type": "hello", "detector": "fake", **{hello}}}
send(hello)
asked = 0
while True:
    text, payload = (read(length) for length in struct.unpack(">II", read(8)))
    request = json.loads(text)
    id, kind = request["id"], request["type"]
    if "offset" in request:
        payload = memory[request["offset"]:request["offset"] + request["bytes"]]
    if kind == "memory":
        memory = mmap.mmap(passed.pop(), request["bytes"], prot=mmap.PROT_READ)
        send({{"id": id}})
    elif kind == "scene": send({{"id": id, "input": [64, 48]}})
    elif kind == "background": send({{"id": id, "error": "a bad background"}} if payload == b"bad" else {{"id": id}})
    elif kind == "load":
        if "crash" in request["path"]: sys.exit(5)
        if "later" in request["path"] and starts > 2: sys.exit(5)
        if "slow" in request["path"] or "trial" in request["path"] and starts > 1:
            # Two that load at the same time end.
            alone = os.path.join(os.path.dirname(__file__), "alone")
            os.close(os.open(alone, os.O_CREAT | os.O_EXCL)); time.sleep(1.2); os.remove(alone)
        there = not request["path"].startswith("/tmp/") or os.path.exists(request["path"])
        if not there: send({{"id": id, "error": "there is no such file"}})
        elif "nan" in request["path"]: send({{"id": id, "error": "the model returns NaN"}})
        else: models.append(request["name"]); send({{"id": id}})
    elif kind == "unload": models.remove(request["name"]); send({{"id": id}})
    elif kind == "train": sys.exit(6)
    else:
        asked += 1
        collected.append((id, payload))
        detect(id, payload, asked, request)
"#
        );
        fs::write(folder.path().join("fake.py"), text).unwrap();
        Self { folder }
    }

    fn settings(&self) -> PoolSettings {
        let path = self.folder.path().join("fake.py").display().to_string();
        PoolSettings::new(Program::Command(vec!["python3".into(), path]))
    }

    async fn start(&self) -> Pool {
        Pool::start(self.settings()).await.unwrap()
    }
}

/// The stages of an answer are all of its time.
fn assert_stages_sum(outcome: &Outcome) {
    let Times { queue, decode, infer, total } = outcome.times;
    assert_eq!(queue + decode + infer, total);
}

fn image(length: usize) -> Request {
    Request::encoded(vec![7; length].into())
}

#[tokio::test]
async fn images_go_by_memory_where_it_is_shared_and_by_the_socket_where_not() {
    for (hello, memory_bytes) in [(PLAIN, 1 << 20), (MEMORY, 1 << 20), (MEMORY, 64), (MEMORY, 0)] {
        let offset =
            if hello == MEMORY && memory_bytes > 64 { "assert 'offset' in request\n" } else { "" };
        let fake =
            Fake::new(hello, &format!("{offset}assert payload == b'\\7' * len(payload)\n{FOUND}"));
        let settings = PoolSettings { memory_bytes, ..fake.settings() };
        let pool = Pool::start(settings).await.unwrap();
        let client = pool.client();
        for length in [1, 70, 300_000] {
            let outcome = client.detect(image(length)).await.unwrap();
            assert_eq!(outcome.boxes[0].rect.corners()[2], 3.0 + length as f64);
            assert_eq!(outcome.times.decode, Duration::from_micros(5));
            assert_eq!(outcome.times.infer, Duration::from_micros(10));
            assert_stages_sum(&outcome);
        }
        assert_eq!(pool.state().restarts, 0);
    }
}

#[tokio::test]
async fn a_wait_behind_others_at_the_program_is_one_of_the_queue() {
    // The program takes all four at once, looks at one after another, and says how long it looked at each.
    let body = r#"time.sleep(0.05); send({"id": id, "boxes": [], "took_ms": 50, "decode_ms": 20})"#;
    let fake = Fake::new(PLAIN, body);
    let pool = fake.start().await;
    let client = pool.client();
    let (a, b, c, d) = tokio::join!(
        client.detect(image(1)),
        client.detect(image(1)),
        client.detect(image(1)),
        client.detect(image(1)),
    );
    let answers = [a, b, c, d].map(Result::unwrap);
    answers.iter().for_each(assert_stages_sum);
    let longest = answers.iter().map(|answer| answer.times.queue).max().unwrap();
    assert!(longest >= Duration::from_millis(150), "{longest:?} behind three others");
}

#[test]
fn stages_sum_to_the_total_whatever_a_program_says() {
    let ms = Duration::from_millis;
    for (total, decode, infer, expected) in [
        (100, 20, 30, [50, 20, 30]),
        (100, 0, 0, [100, 0, 0]),
        (100, 40, 80, [0, 40, 60]),
        (100, 400, 80, [0, 100, 0]),
        (0, 1, 1, [0, 0, 0]),
    ] {
        let times = Times::new(ms(total), ms(decode), ms(infer));
        assert_eq!([times.queue, times.decode, times.infer], expected.map(ms));
        assert_eq!(times.queue + times.decode + times.infer, times.total);
    }
}

#[tokio::test]
async fn answers_find_their_requests_in_any_order() {
    // Answers the last first, once all four are there.
    let body = r#"
if asked % 4 == 0:
    for id, payload in reversed(collected):
        send({"id": id, "boxes": [[0, 0, len(payload), 1, 1, "thing"]]})
    collected.clear()"#;
    let fake = Fake::new(MEMORY, body);
    let pool = fake.start().await;
    let client = pool.client();
    for _ in 0..20 {
        let (a, b, c, d) = tokio::join!(
            client.detect(image(1)),
            client.detect(image(2)),
            client.detect(image(3)),
            client.detect(image(4000)),
        );
        let widths = [a, b, c, d].map(|found| found.unwrap().boxes[0].rect.corners()[2]);
        assert_eq!(widths, [1.0, 2.0, 3.0, 4000.0]);
    }
}

#[tokio::test]
async fn a_batch_is_handed_over_together() {
    let hello = r#"{"protocol": 2, "in_flight": 3, "batch": 3}"#;
    // Answers when no more of the batch comes, with how many it had.
    let body = r#"
if not request.get("more"):
    count = len(collected)
    for id, payload in collected:
        send({"id": id, "boxes": [[0, 0, count, 1, 1, "thing"]]})
    collected.clear()"#;
    let fake = Fake::new(hello, body);
    let mut settings = fake.settings();
    settings.schedule.batch_wait = Duration::from_secs(5);
    let pool = Pool::start(settings).await.unwrap();
    let (one, other) = (pool.client(), pool.client());
    let (a, b, c) =
        tokio::join!(one.detect(image(1)), one.detect(image(1)), other.detect(image(1)));
    for found in [a, b, c] {
        assert_eq!(found.unwrap().boxes[0].rect.corners()[2], 3.0);
    }
}

#[tokio::test]
async fn a_program_that_ends_before_hello_is_reported_with_its_last_words() {
    let fake = Fake::new("sys.exit('out of cheese')", FOUND);
    let error = Pool::start(fake.settings()).await.unwrap_err();
    let WorkerError::Ended { status, said, .. } = &*error else { panic!("{error}") };
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("out of cheese"), "{said}");
}

#[tokio::test]
async fn a_worker_that_dies_over_one_request_loses_only_that() {
    // Dies when it has seen the request, or in the middle of its answer.
    for death in [
        "sys.exit(9)",
        "connection.sendall(struct.pack('>II', 90, 0) + b'{\"id\"')\n    sys.exit(9)",
    ] {
        let body = format!("if payload == b'\\7' * 13:\n    {death}\n{FOUND}");
        let fake = Fake::new(PLAIN, &body);
        let pool = fake.start().await;
        let (client, other) = (pool.client(), pool.client());
        let (killed, one, two) =
            tokio::join!(client.detect(image(13)), client.detect(image(1)), other.detect(image(2)));
        let error = killed.unwrap_err();
        let DetectError::Worker { source } = &error else { panic!("{error}") };
        assert!(
            matches!(source.downcast_ref(), Some(WorkerError::Ended { status, .. }) if status.code() == Some(9))
        );
        assert_eq!(one.unwrap().boxes.len(), 1);
        assert_eq!(two.unwrap().boxes.len(), 1);
        client.detect(image(5)).await.expect("it was started again");
        assert_eq!(pool.state().restarts, 2, "{death}");
    }
}

#[tokio::test]
async fn a_worker_that_dies_once_costs_no_request() {
    let fake = Fake::new(PLAIN, &format!("if starts == 1 and asked == 2: sys.exit(9)\n{FOUND}"));
    let pool = fake.start().await;
    let client = pool.client();
    for _ in 0..3 {
        client.detect(image(3)).await.unwrap();
    }
    assert_eq!(pool.state().restarts, 1);
}

#[tokio::test]
async fn a_lesson_that_may_have_been_learned_is_not_repeated() {
    let fake = Fake::new(r#"{"protocol": 2, "models": [{"name": "faces"}]}"#, FOUND);
    let pool = fake.start().await;
    let lesson = Image::Encoded(Bytes::from_static(b"face"));
    let error = pool.client().train("faces", "Ann", lesson).await.unwrap_err();
    assert!(matches!(error, DetectError::Worker { .. }), "{error}");
    pool.client().detect(image(1)).await.unwrap();
    assert_eq!(pool.state().restarts, 1);
}

#[tokio::test]
async fn a_worker_that_hangs_is_ended_and_others_are_served() {
    let fake = Fake::new(PLAIN, &format!("if len(payload) == 13: time.sleep(600)\n{FOUND}"));
    let mut settings = PoolSettings { workers: 2, ..fake.settings() };
    settings.schedule.answer_timeout = Duration::from_millis(1500);
    let pool = Pool::start(settings).await.unwrap();
    let (hangs, works) = (pool.client(), pool.client());
    let stuck = hangs.detect(image(13));
    let served = async {
        for _ in 0..5 {
            works.detect(image(1)).await.unwrap();
        }
    };
    let (stuck, ()) = tokio::join!(stuck, served);
    let error = stuck.unwrap_err();
    let DetectError::Worker { source } = &error else { panic!("{error}") };
    assert!(
        matches!(source.downcast_ref(), Some(WorkerError::TimedOut { wanted: "answer", .. })),
        "{source}"
    );
}

#[tokio::test]
async fn an_answer_that_is_not_valid_costs_its_request_and_no_restart() {
    for (body, part) in [
        ("send({'id': id})", "boxes must be"),
        ("send({'id': id, 'boxes': [[5, 5, 1, 9, 1, 'a']]})", "a box is not valid"),
        ("send({'id': id, 'boxes': [[1, 1, 2, 2, 1, 'a' * 65]]})", "label must be"),
        ("send({'id': id, 'boxes': [[1, 1, 2, 2, 1, 'a']] * 10001})", "at most 10000"),
        ("send({'id': id, 'boxes': [], 'size': [70000, 1]})", "size must be"),
        ("send({'id': id, 'boxes': [[1, 1]]})", "field of another type"),
    ] {
        let fake = Fake::new(PLAIN, &format!("if len(payload) == 13: {body}\nelse: {FOUND}"));
        let pool = fake.start().await;
        let client = pool.client();
        let error = client.detect(image(13)).await.unwrap_err();
        let DetectError::Answer { source, .. } = &error else { panic!("{body}: {error}") };
        assert!(source.to_string().contains(part), "{body}: {source}");
        client.detect(image(1)).await.unwrap();
        assert_eq!(pool.state().restarts, 0, "{body}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_message_end_the_worker() {
    for (body, part) in [
        ("raw(b'no json')", "not the JSON"),
        ("raw(b'{\"id\": 1, \"boxes\": [[NaN, 1, 2, 2, 1, \"a\"]]}')", "not the JSON"),
        ("send({'id': id + 1, 'boxes': []})", "carries the id"),
        ("connection.sendall(b'\\xff' * 8)", "over the limit"),
    ] {
        let fake = Fake::new(PLAIN, body);
        let pool = fake.start().await;
        let error = pool.client().detect(image(13)).await.unwrap_err();
        let DetectError::Worker { source } = &error else { panic!("{body}: {error}") };
        let Some(WorkerError::Answer { source, .. }) = source.downcast_ref() else {
            panic!("{body}: {source}")
        };
        assert!(source.to_string().contains(part), "{body}: {source}");
    }
}

#[tokio::test]
async fn scenes_are_begun_where_they_are_needed_and_their_refusals_are_told() {
    let fake = Fake::new(PLAIN, FOUND);
    let pool = fake.start().await;
    let client = pool.client();
    let source = FrameSize { width: 640, height: 480 };
    let scene = |background: &'static [u8]| Arc::new(Scene::new(source, vec![background.into()]));
    let scenes = [scene(b"one"), scene(b"two"), scene(b"three")];
    for scene in scenes.iter().chain(&scenes) {
        let request = Request { scene: Some(Arc::clone(scene)), ..image(3) };
        client.detect(request).await.unwrap();
    }
    let input = client.prepare(Arc::clone(&scenes[0])).await.unwrap();
    assert_eq!(input, FrameSize { width: 64, height: 48 });
    let bad = scene(b"bad");
    let prepared = client.prepare(Arc::clone(&bad)).await.map(|_| ());
    let detected = client.detect(Request { scene: Some(bad), ..image(3) }).await.map(|_| ());
    for result in [prepared, detected] {
        let error = result.unwrap_err();
        let said =
            matches!(&error, DetectError::Refused { message } if message == "a bad background");
        assert!(said, "{error}");
    }
    client.prepare(Arc::new(Scene::new(source, Vec::new()))).await.unwrap();
}

#[tokio::test]
async fn a_model_goes_live_only_after_a_worker_of_its_own_has_tried_it() {
    let body = r#"send({"id": id, "boxes": [[0, 0, len(models), 1, 1, request.get("model", "none")]]} if
    request.get("model", "built-in") in models else {"id": id, "error": "no such model"})"#;
    let fake = Fake::new(r#"{"protocol": 2, "models": [{"name": "built-in"}]}"#, body);
    let pool = Pool::start(PoolSettings { workers: 2, ..fake.settings() }).await.unwrap();
    let client = pool.client();
    let of = |model: &str| Request { model: Some(model.into()), ..image(1) };
    let error = client.detect(of("mine")).await.unwrap_err();
    assert_eq!(error.to_string(), r#"there is no model "mine"; there are: built-in"#);
    let nan = pool.load("mine", Path::new("/models/nan.onnx")).await.unwrap_err();
    assert!(nan.to_string().contains("returns NaN"), "{nan}");
    let crash = pool.load("mine", Path::new("/models/crash.onnx")).await.unwrap_err();
    assert!(matches!(crash, DetectError::Worker { .. }), "{crash}");
    let taken = pool.load("built-in", Path::new("/models/x.onnx")).await.unwrap_err();
    assert!(matches!(taken, DetectError::ModelRefused { .. }), "{taken}");
    assert!(client.detect(of("mine")).await.is_err(), "none of them went live");
    assert_eq!(pool.state().restarts, 0, "and no worker was lost over them");

    pool.load("mine", Path::new("/models/good.onnx")).await.unwrap();
    for _ in 0..4 {
        let found = client.detect(of("mine")).await.unwrap();
        assert_eq!(&*found.boxes[0].label, "mine");
    }
    assert!(pool.state().models.contains_key("mine"));
    pool.unload("mine").await.unwrap();
    assert!(matches!(client.detect(of("mine")).await, Err(DetectError::UnknownModel { .. })));
    assert!(matches!(pool.unload("mine").await, Err(DetectError::UnknownModel { .. })));
}

#[tokio::test]
async fn a_shared_pool_loads_the_models_of_its_folder_and_says_which_it_does_not() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["good.onnx", "good.json", "nan.onnx", "nan.json", "lone.onnx"] {
        fs::write(folder.path().join(file), file).unwrap();
    }
    let fake = Fake::new(r#"{"protocol": 2, "models": [{"name": "built-in"}]}"#, FOUND);
    let models_dir = Some(folder.path().to_owned());
    let shared = SharedPool::new(PoolSettings { models_dir, ..fake.settings() });
    assert!(!shared.settled().await.is_settled, "it has not begun");
    let pool = shared.get().await.unwrap();
    let state = shared.settled().await;
    assert!(state.is_settled);
    let refused: Vec<_> =
        state.refused.iter().map(|(name, why)| (&**name, why.to_string())).collect();
    assert!(
        matches!(&refused[..], [("lone", lone), ("nan", nan)]
        if lone.contains("lone.json") && nan.contains("returns NaN")),
        "{refused:?}"
    );
    assert_eq!(pool.state().models.keys().collect::<Vec<_>>(), ["good"]);
    let request = Request { model: Some("good".into()), ..image(1) };
    pool.client().detect(request).await.unwrap();
    fs::write(folder.path().join("lone.json"), "{}").unwrap();
    shared.load("lone").await.unwrap();
    for name in ["nan", "../good", "none"] {
        shared.load(name).await.unwrap_err();
    }
    assert_eq!(pool.state().models.keys().collect::<Vec<_>>(), ["good", "lone"]);
    assert_eq!(shared.folder().refused.keys().collect::<Vec<_>>(), ["nan"]);
    assert_eq!(shared.clone(), shared);
    assert_ne!(shared, SharedPool::new(fake.settings()));
}

#[tokio::test]
async fn a_shared_pool_that_has_ended_is_replaced() {
    let fake = Fake::new(r#"{"protocol": 2}"#, FOUND);
    let shared = SharedPool::new(fake.settings());
    assert_eq!(shared.trouble(), None, "nothing was asked for");
    let pool = shared.get().await.unwrap();
    let client = pool.client();
    client.detect(image(1)).await.unwrap();
    assert_eq!(shared.trouble(), None);
    assert!(Arc::ptr_eq(&pool, &shared.running().unwrap()));
    pool.task.abort();
    while !pool.is_closed() {
        tokio::task::yield_now().await;
    }
    assert!(client.is_closed() && shared.running().is_none());
    assert_eq!(shared.trouble().as_deref(), Some("its programs have ended"));
    assert!(matches!(client.detect(image(1)).await, Err(DetectError::Closed)));
    let another = shared.get().await.unwrap();
    another.client().detect(image(1)).await.unwrap();
    assert!(Arc::ptr_eq(&another, &shared.get().await.unwrap()));
    assert!(shared.settled().await.is_settled, "the models are those of the pool that runs");
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_the_start_to_others() {
    let fake = Fake::new(r#"(time.sleep(0.3) or {"protocol": 2})"#, FOUND);
    let shared = SharedPool::new(fake.settings());
    let started = fake.folder.path().join("starts");
    tokio::select! {
        _ = shared.get() => panic!("it takes a while"),
        () = async { while !started.exists() { tokio::task::yield_now().await } } => {}
    }
    shared.get().await.unwrap().client().detect(image(1)).await.unwrap();
    assert_eq!(fs::read(started).unwrap(), b"x", "the program of the first call serves the second");
}

#[tokio::test]
async fn all_calls_that_wait_share_the_outcome_of_one_start() {
    let fake = Fake::new(r#"(time.sleep(0.3) or sys.exit("out of cheese"))"#, FOUND);
    let shared = SharedPool::new(fake.settings());
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let shared = shared.clone();
        calls.spawn(async move { shared.get().await.unwrap_err() });
    }
    let errors = calls.join_all().await;
    assert!(errors.iter().all(|error| Arc::ptr_eq(error, &errors[0])), "{errors:?}");
    let starts = || fs::read(fake.folder.path().join("starts")).unwrap().len();
    assert_eq!(starts(), 1);
    shared.get().await.unwrap_err();
    assert_eq!(starts(), 2, "a later call tries again");
    // The state of a node says so, also while the next start is on its way.
    assert!(shared.trouble().is_some_and(|why| why.contains("out of cheese")));
    drop(shared.begin());
    assert!(shared.trouble().is_some_and(|why| why.contains("out of cheese")));
    shared.get().await.unwrap_err();
}

#[tokio::test]
async fn a_model_that_loads_for_long_stops_no_worker_and_no_request() {
    let fake = Fake::new(r#"{"protocol": 2, "models": [{"name": "built-in"}]}"#, FOUND);
    let mut settings = PoolSettings { workers: 2, ..fake.settings() };
    // Shorter than a load; without the other worker, requests would wait for longer.
    settings.schedule.answer_timeout = Duration::from_millis(700);
    let pool = Pool::start(settings).await.unwrap();
    let mut state = pool.watch();
    state.wait_for(|state| state.ready == 2).await.unwrap();
    let client = pool.client();
    let load = async { pool.load("mine", Path::new("/models/slow.onnx")).await };
    tokio::pin!(load);
    let mut served = 0;
    let loaded = loop {
        tokio::select! {
            loaded = &mut load => break loaded,
            found = client.detect(image(1)) => {
                found.unwrap();
                served += 1;
            }
        }
    };
    loaded.unwrap();
    assert!(served > 0);
    for _ in 0..4 {
        let request = Request { model: Some("mine".into()), ..image(1) };
        client.detect(request).await.unwrap();
    }
    assert_eq!(pool.state().restarts, 0);
}

#[tokio::test]
async fn models_are_tried_one_at_a_time() {
    let fake = Fake::new(r#"{"protocol": 2}"#, FOUND);
    let pool = fake.start().await;
    let path = Path::new("/models/trial.onnx");
    let (one, other) = tokio::join!(pool.load("one", path), pool.load("other", path));
    one.unwrap();
    other.unwrap();
}

#[tokio::test]
async fn one_program_of_several_that_starts_is_enough() {
    let hello =
        r#"(sys.exit("out of cheese") if starts == 1 else time.sleep(0.5) or {"protocol": 2})"#;
    let fake = Fake::new(hello, FOUND);
    let pool = Pool::start(PoolSettings { workers: 2, ..fake.settings() }).await.unwrap();
    pool.client().detect(image(1)).await.unwrap();
    let fake = Fake::new("sys.exit('out of cheese')", FOUND);
    Pool::start(PoolSettings { workers: 2, ..fake.settings() }).await.unwrap_err();
}

#[tokio::test]
async fn a_model_that_ends_programs_is_left_out_when_they_start() {
    let body = format!("if payload == b'\\7' * 13: sys.exit(9)\n{FOUND}");
    let fake = Fake::new(r#"{"protocol": 2, "models": [{"name": "built-in"}]}"#, &body);
    let pool = fake.start().await;
    let client = pool.client();
    // The first start is the worker's, the second the trial's; the third one fails over it.
    pool.load("mine", Path::new("/models/later.onnx")).await.unwrap();
    pool.load("other", Path::new("/models/good.onnx")).await.unwrap();
    client.detect(image(13)).await.unwrap_err();
    client.detect(image(1)).await.expect("the program serves without the model");
    let state = pool.state();
    assert!(state.models.contains_key("mine"), "it stays known, to be loaded again or unloaded");
    let failed: Vec<_> = state.failed.iter().collect();
    let [(name, error)] = &failed[..] else { panic!("{failed:?}") };
    assert_eq!(*name, "mine");
    assert!(matches!(&***error, WorkerError::Ended { status, .. } if status.code() == Some(5)));
    pool.unload("mine").await.unwrap();
    assert!(pool.state().failed.is_empty());
}

#[tokio::test]
async fn a_model_that_a_program_lacks_is_said_to_until_it_has_it() {
    let body = format!(
        "if payload == b'\\7' * 13: sys.exit(9)\nif request['model'] in models: {FOUND}\nelse: send({{'id': id, 'error': 'what model?'}})"
    );
    let fake = Fake::new(r#"{"protocol": 2, "models": [{"name": "built-in"}]}"#, &body);
    let pool = fake.start().await;
    let client = pool.client();
    let folder = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    let path = folder.path().join("mine.onnx");
    let ask = async |length: usize| {
        client.detect(Request { model: Some("mine".to_owned()), ..image(length) }).await
    };
    fs::write(&path, "a model").unwrap();
    pool.load("mine", &path).await.unwrap();
    ask(1).await.unwrap();
    // Its program starts again while the file is gone.
    fs::remove_file(&path).unwrap();
    ask(13).await.unwrap_err();
    pool.watch().wait_for(|state| state.restarts == 2 && state.ready == 1).await.unwrap();
    let state = pool.state();
    assert!(state.models.contains_key("mine"), "it stays known");
    assert!(state.failed["mine"].chain().contains("there is no such file"), "{state:?}");
    let error = ask(1).await.unwrap_err();
    assert!(
        matches!(&error, DetectError::ModelRefused { name, message }
        if name == "mine" && message.contains("there is no such file")),
        "{error}"
    );
    // It is there again: the next start has it, and so does a call.
    fs::write(&path, "a model").unwrap();
    client.detect(Request { model: Some("built-in".to_owned()), ..image(13) }).await.unwrap_err();
    pool.watch().wait_for(|state| state.restarts == 4 && state.ready == 1).await.unwrap();
    ask(1).await.unwrap();
    assert!(pool.state().failed.is_empty());
}

#[tokio::test]
async fn boxes_are_within_the_picture_however_its_size_is_known() {
    let boxes = r#"[[-20, -4.5, 9, 1e5, 0.9, "cut"], [1, 2, 3, 4, 0.8, "whole"],
        [70, 1, 99, 9, 0.7, "beside"], [-9, -9, 0, 0, 0.6, "above"]]"#;
    let body = format!(
        r#"send({{"id": id, "boxes": {boxes}, **({{"size": [64, 48]}} if payload == b"says" else {{}})}})"#
    );
    let fake = Fake::new(PLAIN, &body);
    let pool = fake.start().await;
    let client = pool.client();
    let scene = Arc::new(Scene::new(FrameSize { width: 64, height: 48 }, Vec::new()));
    let pixels = Image::Pixels { shape: [48, 64, 1], bytes: vec![0; 64 * 48].into() };
    for request in [
        Request { scene: Some(scene), ..image(3) },
        Request { image: pixels, ..image(3) },
        Request { size: Some(FrameSize { width: 64, height: 48 }), ..image(3) },
        Request::encoded(Bytes::from_static(b"says")),
    ] {
        let found = client.detect(request).await.unwrap().boxes;
        let found: Vec<_> =
            found.iter().map(|found| (found.rect.corners(), &*found.label)).collect();
        assert_eq!(found, [([0.0, 0.0, 9.0, 48.0], "cut"), ([1.0, 2.0, 3.0, 4.0], "whole")]);
    }
    // The caller knows the size.
    let mut outcome = client.detect(image(3)).await.unwrap();
    assert_eq!(outcome.boxes.len(), 4);
    outcome.clip(FrameSize { width: 80, height: 48 });
    let labels: Vec<_> = outcome.boxes.iter().map(|found| &*found.label).collect();
    assert_eq!(labels, ["cut", "whole", "beside"]);
}

#[tokio::test]
async fn a_program_of_version_1_gets_one_request_at_a_time_and_needs_a_scene() {
    let fake = Fake::new(r#"{"protocol": 1, "in_flight": 9, "memory": True}"#, FOUND);
    let pool = fake.start().await;
    let client = pool.client();
    assert!(matches!(client.detect(image(1)).await, Err(DetectError::NeedsScene)));
    let scene = Arc::new(Scene::new(FrameSize { width: 64, height: 48 }, Vec::new()));
    let request = || Request { scene: Some(Arc::clone(&scene)), ..image(2) };
    let (a, b) = tokio::join!(client.detect(request()), client.detect(request()));
    assert_eq!((a.unwrap().boxes.len(), b.unwrap().boxes.len()), (1, 1));
}

#[tokio::test]
async fn a_full_queue_and_dropped_calls_are_told_apart() {
    // Answers nothing until a file is there.
    let body = r#"
while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")): time.sleep(0.005)
send({'id': id, 'boxes': []})"#;
    let fake = Fake::new(r#"{"protocol": 2}"#, body);
    let mut settings = fake.settings();
    settings.schedule.queue_max = 2;
    let pool = Pool::start(settings).await.unwrap();
    let client = pool.client();
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        calls.spawn(async move { client.detect(image(1)).await });
    }
    // One is at the worker and two wait.
    for _ in 0..5 {
        let error = calls.join_next().await.unwrap().unwrap().unwrap_err();
        let DetectError::Busy { waiting: 2, retry_after } = error else { panic!("{error}") };
        assert!(retry_after > Duration::ZERO);
    }
    fs::write(fake.folder.path().join("go"), "").unwrap();
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    // Calls that are dropped leave their places.
    for _ in 0..20 {
        let call = time::timeout(Duration::from_millis(1), client.detect(image(1)));
        let _ = call.await;
    }
    let mut state = pool.watch();
    let empty = state.wait_for(|state| state.waiting == 0);
    time::timeout(Duration::from_secs(20), empty).await.expect("the queue empties").unwrap();
}

#[tokio::test]
async fn a_call_that_is_dropped_while_commands_queue_leaves_its_place() {
    let fake = Fake::new(r#"{"protocol": 2}"#, "time.sleep(600)");
    let pool = fake.start().await;
    let client = pool.client();
    let at_the_worker = client.detect(image(1));
    tokio::pin!(at_the_worker);
    let mut waits = Box::pin(client.detect(image(1)));
    let mut state = pool.watch();
    tokio::select! {
        biased;
        _ = &mut at_the_worker => panic!("the program answers nothing"),
        _ = &mut waits => panic!("it waits behind the other"),
        waiting = state.wait_for(|state| state.waiting == 1) => drop(waiting.unwrap()),
    }
    // No other task runs between these lines: the channel stays full until the call is dropped.
    let unload = || {
        let (done, _) = oneshot::channel();
        pool.commands.try_send(Command::Unload { name: "none".into(), done }).is_ok()
    };
    while unload() {}
    drop(waits);
    let empty = time::timeout(Duration::from_secs(10), state.wait_for(|state| state.waiting == 0));
    empty.await.expect("its place is free").unwrap();
}

#[tokio::test]
async fn images_are_checked_before_they_wait() {
    let fake = Fake::new(PLAIN, FOUND);
    let pool = fake.start().await;
    let client = pool.client();
    let pixels = |shape, bytes: usize| Image::Pixels { shape, bytes: vec![0; bytes].into() };
    for (shape, bytes) in [
        ([2, 3, 3], 17),
        ([2, 3, 2], 12),
        ([0, 3, 3], 0),
        ([u32::MAX; 3], 3),
        ([70_000, 1, 1], 70_000),
    ] {
        let request = Request { image: pixels(shape, bytes), ..image(0) };
        let error = client.detect(request).await.unwrap_err();
        assert!(matches!(error, DetectError::Pixels { .. }), "{error}");
    }
    let request = Request { image: pixels([2, 3, 3], 18), ..image(0) };
    client.detect(request).await.unwrap();
    let error = client.detect(image(IMAGE_BYTES_MAX + 1)).await.unwrap_err();
    assert!(matches!(error, DetectError::ImageTooLarge { .. }), "{error}");
}

/// Our own worker, from pixels and files to boxes. Skipped, with a word, where its Python is not made.
#[tokio::test]
async fn our_own_worker_looks_at_pixels_and_names_what_is_no_image() {
    let names = ["face", "person"].map(str::to_owned).to_vec();
    let pool = match Pool::start(PoolSettings::new(Program::Own(names, None))).await {
        Err(error)
            if matches!(*error, WorkerError::PythonMissing(_) | WorkerError::Ended { .. }) =>
        {
            eprintln!("skipped: {error}");
            return;
        }
        started => started.unwrap(),
    };
    let client = pool.client();
    let pixels = Image::Pixels { shape: [48, 64, 3], bytes: vec![90; 48 * 64 * 3].into() };
    for model in [None, Some("person".to_owned())] {
        let request = Request { image: pixels.clone(), model, ..image(0) };
        let found = client.detect(request).await.unwrap();
        assert_eq!((found.boxes.len(), found.size), (0, Some(FrameSize { width: 64, height: 48 })));
    }
    for (bytes, words) in [
        (&b"%PDF-1.7 and more"[..], "a PDF document"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x4e\x20\0\0\x27\x10", "20000x10000 pixels"),
        (b"\xff\xd8\xff\xc0\0\x0b\x08\0\x08\0\x08\x01", "cut off"),
        (b"", "not an image"),
    ] {
        let error = client.detect(Request::encoded(bytes.into())).await.unwrap_err();
        let DetectError::Refused { message } = &error else { panic!("{error}") };
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(pool.state().restarts, 0);
}

/// A model that is made here, from its file to boxes in pixels of the image. Skipped, with a word, where libraries are missing.
#[tokio::test]
async fn a_model_of_the_users_is_loaded_checked_and_asked() {
    let folder = tempfile::tempdir().unwrap();
    let make = r#"
import json, sys
import numpy as np
from tests.tiny_onnx import answers
good = np.zeros((1, 5, 2)); good[0, :, 0] = [16, 16, 8, 8, 0.75]
for name, array in [("good", good), ("nan", good * np.nan), ("wide", np.zeros((1, 9, 2)))]:
    open(f"{sys.argv[1]}/{name}.onnx", "wb").write(answers(array, [1, 3, 32, 32]))
    told = {"format": "yolov8", "width": 32, "height": 32, "labels": ["cup"]}
    json.dump(told, open(f"{sys.argv[1]}/{name}.json", "w"))
"#;
    let made = match crate::locate::python(None) {
        Ok(python) => {
            let mut command = tokio::process::Command::new(python);
            command.args(["-c", make]).arg(folder.path());
            command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/detector"));
            command.env("PYTHONDONTWRITEBYTECODE", "1").status().await.unwrap().success()
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    assert!(made, "the worker's Python has NumPy");
    let pool =
        Pool::start(PoolSettings::new(Program::Own(vec!["face".into()], None))).await.unwrap();
    match pool.load("cups", &folder.path().join("good.onnx")).await {
        Err(DetectError::ModelRefused { message, .. }) if message.contains("setup.sh") => {
            eprintln!("skipped: {message}");
            return;
        }
        loaded => loaded.unwrap(),
    }
    let client = pool.client();
    let pixels = Image::Pixels { shape: [320, 320, 3], bytes: vec![90; 320 * 320 * 3].into() };
    let cups = || Request { image: pixels.clone(), model: Some("cups".into()), ..image(0) };
    let found = client.detect(cups()).await.unwrap();
    assert_eq!(found.boxes[0].rect.corners(), [120.0, 120.0, 200.0, 200.0]);
    assert_eq!((&*found.boxes[0].label, found.boxes[0].score), ("cup", 0.75));
    for (file, words) in [("nan", "not finite"), ("wide", "9x2"), ("missing", "missing.json")] {
        let path = folder.path().join(file).with_extension("onnx");
        let error = pool.load("cups", &path).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    client.detect(cups()).await.expect("the one before still serves");
}
