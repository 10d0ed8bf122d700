//! One run of a detector program, from its start to its end.

use std::{io, process::Stdio, time::Duration};

use bytes::Bytes;
use tempfile::TempDir;
use tokio::{
    net::{UnixListener, UnixStream},
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

use tidegate_message::FrameSize;

use super::{
    Detections, DetectorError, DetectorKind, DetectorSpec, Hello, locate,
    protocol::{self, Ask, MessageError, Reply},
};
use crate::source::last_words;

/// How long a program whose connection broke has to end before it is killed.
const END_GRACE: Duration = Duration::from_secs(2);

/// The variable that names the socket to a program.
const SOCKET_VARIABLE: &str = "TIDEGATE_DETECTOR_SOCKET";

/// A program that said hello.
#[derive(Debug)]
pub(super) struct Worker {
    program: Program,
    stream: UnixStream,
    hello: Hello,
    requests: u64,
}

#[derive(Debug)]
struct Program {
    name: String,
    child: Child,
    said: JoinHandle<String>,
    /// Holds the socket and our own worker's source; only its user can look inside.
    _folder: TempDir,
}

impl Worker {
    /// Starts the program, waits until it connects, and reads its hello.
    pub(super) async fn start(spec: &DetectorSpec) -> Result<Self, DetectorError> {
        let (mut program, listener) = Program::start(spec)?;
        let after = spec.start_timeout;
        let connected = timeout(after, async {
            tokio::select! {
                accepted = listener.accept() => {
                    let (mut stream, _) = accepted.map_err(MessageError::Io)?;
                    let hello = protocol::receive_hello(&mut stream).await?;
                    Ok(Some((stream, hello)))
                }
                // The status is asked for again below, with what the program said.
                _ = program.child.wait() => Ok(None),
            }
        });
        match connected.await {
            Ok(Ok(Some((stream, hello)))) => Ok(Self { program, stream, hello, requests: 0 }),
            Ok(Ok(None)) => Err(program.ended().await),
            Ok(Err(error)) => Err(program.failed(error).await),
            Err(_) => Err(program.timed_out("hello", after)),
        }
    }

    pub(super) const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Begins a scene; returns the size to which the detector brings its frames.
    pub(super) async fn begin_scene(
        &mut self,
        source: FrameSize,
        background: &[Bytes],
        answer_timeout: Duration,
    ) -> Result<FrameSize, DetectorError> {
        let ask = Ask::Scene { source: [source.width, source.height] };
        let reply = self.ask(ask, &[], answer_timeout).await?;
        let input = match reply.input() {
            Ok(input) => input,
            Err(error) => return Err(self.program.failed(error).await),
        };
        for jpeg in background {
            self.ask(Ask::Background, jpeg, answer_timeout).await?;
        }
        Ok(input)
    }

    /// Finds boxes in a JPEG image.
    pub(super) async fn detect(
        &mut self,
        jpeg: &[u8],
        answer_timeout: Duration,
    ) -> Result<Detections, DetectorError> {
        let reply = self.ask(Ask::Detect, jpeg, answer_timeout).await?;
        match reply.detections() {
            Ok(detections) => Ok(detections),
            Err(error) => Err(self.program.failed(error).await),
        }
    }

    async fn ask(
        &mut self,
        ask: Ask,
        payload: &[u8],
        after: Duration,
    ) -> Result<Reply, DetectorError> {
        self.requests += 1;
        let (id, stream) = (self.requests, &mut self.stream);
        let exchanged = timeout(after, async {
            protocol::send(stream, id, ask, payload).await?;
            protocol::receive(stream, id).await
        });
        match exchanged.await {
            Ok(Ok(Reply { error: Some(message), .. })) => Err(DetectorError::Refused { message }),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(self.program.failed(error).await),
            Err(_) => Err(self.program.timed_out("answer", after)),
        }
    }
}

impl Program {
    fn start(spec: &DetectorSpec) -> Result<(Self, UnixListener), DetectorError> {
        let name = spec.kind.to_string();
        let failed = |source: io::Error| DetectorError::Start { program: name.clone(), source };
        let folder =
            tempfile::Builder::new().prefix("tidegate-detector-").tempdir().map_err(failed)?;
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        let mut command = match &spec.kind {
            DetectorKind::Command(words) => {
                let (first, rest) = words
                    .split_first()
                    .ok_or_else(|| DetectorError::Command { command: String::new() })?;
                let mut command = Command::new(first);
                command.args(rest);
                command
            }
            kind => {
                locate::unpack(folder.path()).map_err(failed)?;
                let mut command = Command::new(locate::python(spec.python.as_deref())?);
                command.args(["-m", "tidegate_detector", &kind.to_string()]);
                command.env("PYTHONPATH", folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
        };
        command.env(SOCKET_VARIABLE, &socket).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let stderr = child.stderr.take().expect("stderr was asked for as a pipe");
        let said = tokio::spawn(last_words(stderr));
        Ok((Self { name, child, said, _folder: folder }, listener))
    }

    /// The state of a program after an exchange with it failed.
    async fn failed(&mut self, error: MessageError) -> DetectorError {
        // A broken connection means that the program ended, or is about to.
        match error {
            MessageError::Io(_) if timeout(END_GRACE, self.child.wait()).await.is_ok() => {
                self.ended().await
            }
            source => DetectorError::Answer { program: self.name.clone(), source },
        }
    }

    async fn ended(&mut self) -> DetectorError {
        let program = self.name.clone();
        match self.child.wait().await {
            Ok(status) => {
                // A child of the program may still hold its standard error open: the output by now is enough.
                let said = match timeout(END_GRACE, &mut self.said).await {
                    Ok(Ok(said)) => said.trim().replace('\n', "; "),
                    Ok(Err(_)) | Err(_) => String::new(),
                };
                DetectorError::Ended { program, status, said }
            }
            Err(source) => DetectorError::Start { program, source },
        }
    }

    fn timed_out(&self, wanted: &'static str, after: Duration) -> DetectorError {
        DetectorError::TimedOut { program: self.name.clone(), wanted, after }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.said.abort();
    }
}
