//! Both workers, and a client of the protocol.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::{
        fd::AsFd as _,
        unix::{
            fs::FileExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_onnx::{Runtime, SOCKET_VARIABLE, ServeError, serve};
use tidegate_sys::memfile;
use tidegate_workers::locate;

/// Answers are waited for so long.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The library; `None`, with a word, where there is none.
pub(crate) fn runtime() -> Option<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| match Runtime::load(None, &locate::environments()) {
        Ok(runtime) => Some(runtime),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    });
    runtime.as_ref()
}

pub(crate) struct Worker {
    pub(crate) name: &'static str,
    pub(crate) hello: Value,
    stream: UnixStream,
    program: Program,
    folder: TempDir,
    asked: u64,
}

enum Program {
    Native(Option<JoinHandle<Result<(), ServeError>>>),
    Python(Child),
}

/// Ours, and the one in Python where it can be had.
pub(crate) fn both() -> Vec<Worker> {
    let native = runtime().map(Worker::native);
    native.into_iter().flat_map(|native| [Some(native), Worker::python()]).flatten().collect()
}

impl Worker {
    fn native(runtime: &'static Runtime) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let serving = thread::spawn(move || serve(theirs, runtime));
        Self::of("native", ours, Program::Native(Some(serving)), tempfile::tempdir().unwrap())
    }

    fn python() -> Option<Self> {
        let python = match locate::python(None) {
            Ok(python) => python,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/detector");
        let child = Command::new(python)
            .args(["-m", "tidegate_detector", "moving"])
            .env("PYTHONPATH", source)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env(SOCKET_VARIABLE, &socket)
            .stdin(Stdio::null())
            .spawn()
            .expect("Python starts");
        let (stream, _) = listener.accept().expect("the worker connects");
        Some(Self::of("python", stream, Program::Python(child), folder))
    }

    fn of(name: &'static str, stream: UnixStream, program: Program, folder: TempDir) -> Self {
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut worker = Self { name, hello: Value::Null, stream, program, folder, asked: 0 };
        worker.hello = worker.receive();
        worker
    }

    fn receive(&mut self) -> Value {
        let mut lengths = [0; 8];
        self.stream.read_exact(&mut lengths).expect("an answer");
        let bytes = u32::from_be_bytes(lengths[..4].try_into().unwrap());
        assert_eq!(lengths[4..], [0; 4], "an answer has no payload");
        let mut text = vec![0; bytes as usize];
        self.stream.read_exact(&mut text).expect("an answer");
        serde_json::from_slice(&text).expect("JSON")
    }

    fn head(&mut self, mut head: Value, payload: &[u8]) -> Vec<u8> {
        self.asked += 1;
        head["id"] = json!(self.asked);
        let text = head.to_string();
        let lengths = [text.len(), payload.len()].map(|length| (length as u32).to_be_bytes());
        [&lengths.concat()[..], text.as_bytes(), payload].concat()
    }

    /// The answer to a request.
    pub(crate) fn ask(&mut self, head: Value, payload: &[u8]) -> Value {
        let mut answers = self.ask_all(vec![(head, payload)]);
        answers.pop().expect("it is one")
    }

    /// The answers to requests that are sent at once, in the order of the requests.
    pub(crate) fn ask_all(&mut self, requests: Vec<(Value, &[u8])>) -> Vec<Value> {
        let first = self.asked + 1;
        let count = requests.len();
        let sent: Vec<u8> =
            requests.into_iter().flat_map(|(head, payload)| self.head(head, payload)).collect();
        self.stream.write_all(&sent).expect("the worker reads");
        let mut answers: Vec<Value> = (0..count).map(|_| self.receive()).collect();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_u64()).collect();
        assert_eq!(ids, (first..=self.asked).map(Some).collect::<Vec<_>>(), "{}", self.name);
        answers
    }

    /// Shares memory that begins with `content`.
    pub(crate) fn share(&mut self, content: &[u8]) -> Value {
        let bytes = content.len() as u64;
        let (file, reader) = memfile::memory_file("test", bytes).unwrap();
        file.write_all_at(content, 0).unwrap();
        let head = self.head(json!({"type": "memory", "bytes": bytes}), &[]);
        let sent =
            memfile::send_with_descriptor(self.stream.as_fd(), &head, reader.as_fd()).unwrap();
        self.stream.write_all(&head[sent..]).unwrap();
        self.receive()
    }

    pub(crate) fn write(&self, name: &str, model: &[u8], description: &Value) -> PathBuf {
        let path = self.folder.path().join(format!("{name}.onnx"));
        fs::write(&path, model).unwrap();
        fs::write(path.with_extension("json"), description.to_string()).unwrap();
        path
    }

    pub(crate) fn load_file(&mut self, name: &str, path: &Path) -> Value {
        self.ask(json!({"type": "load", "name": name, "path": path}), &[])
    }

    /// Loads a model; the answer.
    pub(crate) fn load(&mut self, name: &str, model: &[u8], description: &Value) -> Value {
        let path = self.write(name, model, description);
        self.load_file(name, &path)
    }

    /// The end of a connection that was closed.
    pub(crate) fn close(mut self) -> Result<(), String> {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
        match &mut self.program {
            Program::Native(serving) => {
                let served = serving.take().expect("it was not taken").join();
                served.expect("no panic").map_err(|error| error.to_string())
            }
            Program::Python(child) => {
                let status = child.wait().unwrap();
                if status.success() { Ok(()) } else { Err(status.to_string()) }
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Program::Python(child) = &mut self.program {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
