//! The worker's life against small programs of the standard library, and our own worker where its Python is made.

use super::{
    fake::{Fake, SIZE},
    *,
};

const FOUND: &str = r#"time.sleep(0.01); send({"id": id, "boxes": [[1, 2, 3, 9.5, len(payload), "thing"]], "took_ms": 1.5})"#;

#[tokio::test]
async fn requests_and_boxes_round_trip() {
    let mut detector = Fake::new(FOUND).start().await;
    assert_eq!((detector.name(), detector.needs_background()), ("fake", true));
    for length in [0, 1, 300_000] {
        let found = detector.detect_timed(&vec![7; length]).await.unwrap();
        let rect = tidegate_message::Rect::new(1.0, 2.0, 3.0, 9.5).unwrap();
        let expected = Detection { rect, score: length as f64, label: "thing".into() };
        assert_eq!(found.boxes, [expected]);
        assert_eq!(found.took, Duration::from_micros(1500));
    }
    assert_eq!(detector.restarts(), 0);
}

#[tokio::test]
async fn cameras_share_the_pool_that_has_their_detector() {
    let hello = r#"{"protocol": 2, "scenes": 4, "models": [{"name": "face"}, {"name": "person"}]}"#;
    let body = r#"send({"id": id, "boxes": [[0, 0, 9, 9, 1, request["model"]]]})"#;
    let fake = Fake::with_hello(hello, body);
    let DetectorKind::Command(words) = fake.spec().kind else { panic!("it is a command") };
    let pool = SharedPool::new(PoolSettings::new(Program::Command(words)));
    let spec = |kind| DetectorSpec { pool: Some(pool.clone()), ..DetectorSpec::new(kind) };
    let mut cameras = Vec::new();
    for (kind, name) in [
        (DetectorKind::Face, "face"),
        (DetectorKind::Person, "person"),
        (DetectorKind::Face, "face"),
    ] {
        let mut detector = Detector::start(spec(kind)).await.unwrap();
        assert_eq!((detector.name(), detector.needs_background()), (name, false));
        detector.begin_scene(SIZE, &[]).await.unwrap();
        let found = detector.detect(b"frame").await.unwrap();
        assert_eq!(&*found[0].label, name);
        cameras.push(detector);
    }
    assert_eq!(fake.starts(), 1, "one program serves them all");
    let own = DetectorSpec { pool: Some(pool.clone()), ..fake.spec() };
    Detector::start(own).await.unwrap();
    assert_eq!(fake.starts(), 2, "a program of the user's is a camera's own");
}

#[tokio::test]
async fn a_shared_pool_that_has_ended_is_replaced_under_its_cameras() {
    let hello = r#"{"protocol": 2, "scenes": 4, "models": [{"name": "face"}]}"#;
    let body = r#"send({"id": id, "boxes": [[0, 0, 9, 9, 1, request["model"]]]})"#;
    let fake = Fake::with_hello(hello, body);
    let DetectorKind::Command(words) = fake.spec().kind else { panic!("it is a command") };
    let pool = SharedPool::new(PoolSettings::new(Program::Command(words)));
    let spec = DetectorSpec { pool: Some(pool), ..DetectorSpec::new(DetectorKind::Face) };
    // The pool's task ends with the runtime in which it began.
    let begun = tokio::task::spawn_blocking(move || {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut detector = Detector::start(spec).await.unwrap();
            detector.begin_scene(SIZE, &[]).await.unwrap();
            detector
        })
    });
    let mut detector = begun.await.unwrap();
    let found = detector.detect(b"frame").await.unwrap();
    assert_eq!(&*found[0].label, "face");
    assert_eq!(fake.starts(), 2);
}

#[tokio::test]
async fn a_program_that_dies_is_started_again_with_its_scene() {
    // Dies at the second request of its first run, and tells how many backgrounds it was given.
    let body =
        format!("if starts == 1 and asked == 2: sys.exit(9)\npayload = b'x' * learnt\n{FOUND}");
    let fake = Fake::new(&body);
    let mut detector = fake.start().await;
    for _ in 0..3 {
        let found = detector.detect(b"frame").await.unwrap();
        assert_eq!(found[0].score, 1.0, "one background was learnt, again after the restart");
    }
    assert_eq!(detector.restarts(), 1);
}

#[tokio::test]
async fn a_program_that_always_dies_is_reported_with_its_last_words() {
    let fake = Fake::new("print('out of cheese', file=sys.stderr)\nsys.exit(7)");
    let mut detector = fake.start().await;
    let error = detector.detect(b"frame").await.unwrap_err();
    let DetectorError::Program { source } = &error else { panic!("{error}") };
    let Some(WorkerError::Ended { status, said, .. }) = source.downcast_ref() else {
        panic!("{error}")
    };
    assert_eq!(status.code(), Some(7));
    assert!(said.contains("out of cheese"), "{said}");
    assert_eq!(error.code(), Code::DETECTOR_FAILED);
}

#[tokio::test]
async fn a_program_that_hangs_is_given_up() {
    let fake = Fake::new("time.sleep(600)");
    let spec = DetectorSpec { answer_timeout: Duration::from_millis(300), ..fake.spec() };
    let mut detector = Detector::start(spec).await.unwrap();
    // The first run is loaded by python's start; only the answer is timed.
    detector.begin_scene(SIZE, &[]).await.unwrap();
    let error = detector.detect(b"frame").await.unwrap_err();
    let DetectorError::Program { source } = &error else { panic!("{error}") };
    assert!(
        matches!(source.downcast_ref(), Some(WorkerError::TimedOut { wanted: "answer", .. })),
        "{error}"
    );
}

#[tokio::test]
async fn nonsense_is_refused_by_name() {
    for (body, part) in [
        ("raw(b'no json')", "not the JSON"),
        ("send({'id': id + 1, 'boxes': []})", "carries the id"),
        ("send({'id': id})", "boxes must be"),
        ("send({'id': id, 'boxes': [[5, 5, 1, 9, 1, 'a']]})", "a box is not valid"),
        ("send({'id': id, 'boxes': [[1, 1, 2, 2, 1, 'a' * 65]]})", "label must be"),
        ("send({'id': id, 'boxes': [], 'took_ms': -1})", "took_ms must be"),
        ("stream.write(b'\\xff' * 8); stream.flush()", "over the limit"),
    ] {
        let error = Fake::new(body).start().await.detect(b"frame").await.unwrap_err();
        // An answer of the wrong content is one thing, bytes that are no answer end the program.
        let source = match &error {
            DetectorError::Answer { source, .. } => source.to_string(),
            DetectorError::Program { source } => match source.downcast_ref() {
                Some(WorkerError::Answer { source, .. }) => source.to_string(),
                _ => panic!("{body}: {source}"),
            },
            error => panic!("{body}: {error}"),
        };
        assert!(source.contains(part), "{body}: {source}");
    }
}

#[tokio::test]
async fn a_refused_frame_costs_no_restart() {
    let body =
        format!("if not payload:\n    send({{'id': id, 'error': 'no image'}})\nelse:\n    {FOUND}");
    let mut detector = Fake::new(&body).start().await;
    let error = detector.detect(b"").await.unwrap_err();
    assert!(
        matches!(&error, DetectorError::Refused { message } if message == "no image"),
        "{error}"
    );
    assert_eq!(detector.detect(b"frame").await.unwrap().len(), 1);
    assert_eq!(detector.restarts(), 0);
}

#[tokio::test]
async fn programs_that_cannot_start_are_reported() {
    let failed = |error| match error {
        DetectorError::Program { source } => source,
        error => panic!("{error}"),
    };
    let start = async |words: &[&str]| {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        let spec = DetectorSpec::new(DetectorKind::Command(words));
        Detector::start(spec).await.unwrap_err()
    };
    let missing = failed(start(&["/nonexistent/detector"]).await);
    assert!(matches!(missing.downcast_ref(), Some(WorkerError::Start { .. })), "{missing}");
    let ended = failed(start(&["false"]).await);
    assert!(matches!(ended.downcast_ref(), Some(WorkerError::Ended { .. })), "{ended}");
    let mut spec = DetectorSpec::new(DetectorKind::Moving);
    spec.python = Some("/nonexistent/python".into());
    let error = Detector::start(spec).await.unwrap_err();
    assert_eq!(error.code(), Code::CONFIG_INVALID);
    assert!(matches!(failed(error).downcast_ref(), Some(WorkerError::PythonMissing(_))));
}

#[test]
fn detectors_are_named_and_commands_are_split_without_a_shell() {
    let kind = |name, command| DetectorSpec::parse(name, command).map(|spec| spec.kind);
    assert_eq!(kind("moving", None).unwrap(), DetectorKind::Moving);
    assert_eq!(
        kind("command", Some("py 'a b' --x=\"c d\" $HOME ''")).unwrap(),
        DetectorKind::Command(["py", "a b", "--x=c d", "$HOME", ""].map(str::to_owned).to_vec())
    );
    assert!(matches!(kind("faces", None), Err(DetectorError::Unknown { .. })));
    assert!(matches!(kind("moving", Some("x")), Err(DetectorError::Unknown { .. })));
    for command in [None, Some(" "), Some("py 'open")] {
        assert!(
            matches!(kind("command", command), Err(DetectorError::Command { .. })),
            "{command:?}"
        );
    }
}

#[test]
fn indices_are_spread_over_the_whole() {
    assert_eq!(spread(10, 3).collect::<Vec<_>>(), [0, 3, 6]);
    assert_eq!(spread(2, 31).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(spread(0, 31).count(), 0);
}

#[tokio::test]
async fn a_camera_that_changes_its_size_is_compared_scene_by_scene() {
    // Finds what lies in the scene's far corner, where the scene is of the size that its frames are.
    let fake = Fake::new(
        r#"
width, height = detect.source
boxes = [[width - 16, height - 16, width, height, 0.9, "thing"]] * 2 if learnt == 2 else []
send({"id": id, "boxes": boxes, "took_ms": 1})"#,
    );
    let mut detector = Detector::start(fake.spec()).await.unwrap();
    let mut pairs = Vec::new();
    for size in ["320x240", "640x480", "320x240"] {
        let spec = format!("scene:street?size={size}&fps=1&seconds=2");
        let spec = crate::source::SourceSpec::parse(&spec).unwrap();
        for picture in crate::source::read_pictures(&spec, 2).await.unwrap() {
            pairs.push(Pair { original: picture.jpeg.clone(), delivered: picture.jpeg });
        }
    }
    // Two frames of each stretch; those of the first size are four together.
    let two = &pairs[..4];
    let report = compare(&mut detector, &[], two).await.unwrap();
    assert_eq!(report.normalized, Some(1.0), "each scene learns from its own two frames");
    let background: Vec<Bytes> = [0, 1, 2, 3].map(|index| pairs[index].original.clone()).into();
    let report = compare(&mut detector, &background, &pairs).await.unwrap();
    assert_eq!(report.normalized, Some(1.0));
}

/// Whether this machine lacks what our own worker needs.
fn cannot_run(error: &Failure) -> bool {
    let known = error.downcast_ref();
    matches!(known, Some(WorkerError::PythonMissing(_) | WorkerError::Ended { .. }))
}

/// The generated street against our own worker. Skipped, with a word, where its Python is not made.
#[tokio::test]
async fn moving_finds_what_is_known_to_move() {
    let mut detector = match Detector::start(DetectorSpec::new(DetectorKind::Moving)).await {
        Err(DetectorError::Program { source: error }) if cannot_run(&error) => {
            eprintln!("skipped: {error}");
            return;
        }
        started => started.unwrap(),
    };
    let spec = crate::source::SourceSpec::parse("scene:street?size=960x540&fps=3").unwrap();
    let pictures = crate::source::read_pictures(&spec, 30).await.unwrap();
    let jpegs: Vec<Bytes> = pictures.iter().map(|picture| picture.jpeg.clone()).collect();
    detector.begin_scene(source_size(&jpegs[0]).unwrap(), &jpegs).await.unwrap();
    let mut counts = tidegate_frame::score::Counts::default();
    for picture in &pictures {
        let found = detector.detect(&picture.jpeg).await.unwrap();
        let truth = picture.truth.as_ref().expect("the street knows its boxes");
        counts += tidegate_frame::score::Counts::of(truth, &found, Labels::Any);
    }
    assert!(counts.f1() > 0.6, "F1 {} of {counts:?}", counts.f1());

    // The originals compared with themselves are as good as themselves.
    let same = |jpeg: &Bytes| Pair { original: jpeg.clone(), delivered: jpeg.clone() };
    let report =
        compare(&mut detector, &[], &jpegs.iter().map(same).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(report.normalized, Some(1.0));
}
