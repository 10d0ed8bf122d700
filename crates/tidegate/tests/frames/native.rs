//! The worker without Python: the program itself, asked by a pool.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use tidegate_ports::{Image, Outcome, Request};
use tidegate_workers::{Pool, PoolSettings, Program, WorkerError};

/// A classifier of 2x2 pixels whose values are those of its input.
const MIRROR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tidegate-onnx/testdata/mirror.onnx");

fn command(arguments: &[&str]) -> Program {
    let words =
        [env!("CARGO_BIN_EXE_tidegate"), "worker"].into_iter().chain(arguments.iter().copied());
    Program::Command(words.map(str::to_owned).collect())
}

/// The pool; `None`, with a word, where ONNX Runtime is not there.
async fn pool() -> Option<Pool> {
    match Pool::start(PoolSettings::new(command(&[]))).await {
        Ok(pool) => Some(pool),
        Err(error) if error.chain().contains("no library of ONNX Runtime") => {
            eprintln!("skipped: {}", error.chain());
            None
        }
        Err(error) => panic!("{}", error.chain()),
    }
}

fn request(value: u8) -> Request {
    let image = Image::Pixels { shape: [1, 1, 1], bytes: Bytes::copy_from_slice(&[value]) };
    Request { image, model: Some("mirror".to_owned()), ..Request::encoded(Bytes::new()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_runs_a_model_by_the_worker_without_python() {
    let Some(pool) = pool().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror.onnx");
    std::fs::copy(MIRROR, &path).unwrap();
    let description = r#"{"format": "classification", "width": 2, "height": 2, "colour": "gray", "fit": "stretch", "scale": 1}"#;
    std::fs::write(path.with_extension("json"), description).unwrap();
    pool.load("mirror", &path).await.expect("it is loaded");
    let client = Arc::new(pool.client());
    let mut asked = tokio::task::JoinSet::new();
    for value in 0..40 {
        let client = Arc::clone(&client);
        asked.spawn(async move { (value, client.detect(request(value)).await) });
    }
    while let Some(answered) = asked.join_next().await {
        let (value, outcome) = answered.unwrap();
        let Outcome { classes, .. } = outcome.expect("an answer");
        assert!(classes.iter().all(|(score, _)| *score == f64::from(value)), "{classes:?}");
        assert_eq!(classes.len(), 4);
    }
    let unknown = Request { model: Some("face".to_owned()), ..request(1) };
    let error = client.detect(unknown).await.unwrap_err().to_string();
    assert_eq!(error, "there is no model \"face\"; there are: mirror");
}

#[tokio::test]
async fn a_worker_without_its_library_says_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libonnxruntime.so");
    let text = |error: Arc<WorkerError>| error.chain();
    let start = async |library: &Path| {
        let program = command(&["--library", library.to_str().unwrap()]);
        text(Pool::start(PoolSettings::new(program)).await.map(|_| ()).unwrap_err())
    };
    for present in [false, true] {
        if present {
            std::fs::write(&library, "no library").unwrap();
        }
        let text = start(&library).await;
        for part in
            [library.to_str().unwrap(), "workers.library", "ORT_DYLIB_PATH", "1.17 or later"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
