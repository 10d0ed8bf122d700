//! One run of a program, from its start to its end.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fs::File,
    io,
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::{
        UnixListener, UnixStream,
        unix::{ReadHalf, WriteHalf},
    },
    process::{Child, ChildStderr, Command},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use tidegate_message::{Confidential, FrameSize, error_chain};
use tidegate_sys::memfile;

use tidegate_ports::{Image, Scene};

use crate::{
    locate::{self, PythonMissing},
    protocol::{self, Ask, Found, Hello, MessageError, Reply, Where},
    schedule::{JobId, WorkerId},
    work::{ModelFile, Task, Work},
};

/// How long a program whose connection broke has to end before it is killed.
const END_GRACE: Duration = Duration::from_secs(2);
/// The variable that names the socket to a program.
const SOCKET_VARIABLE: &str = "TIDEGATE_DETECTOR_SOCKET";
/// So much of what a program said last is kept.
const SAID_BYTES: usize = 2048;
/// Images in shared memory begin at multiples of this.
const ALIGNMENT: u64 = 64;

/// Which program is a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// Our own, with these arguments, by this Python; `None` looks for it ([`locate::python`]).
    Own(Vec<String>, Option<PathBuf>),
    /// A program of the user's that speaks the protocol: the program and its arguments.
    Command(Vec<String>),
}

impl Program {
    /// Its name in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Own(words, _) | Self::Command(words) => {
                Confidential::from(&*words.join(" ")).to_string()
            }
        }
    }
}

/// How a program is started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) program: Program,
    pub(crate) start_timeout: Duration,
    pub(crate) memory_bytes: u64,
    pub(crate) environment: Vec<(String, PathBuf)>,
}

impl Launch {
    /// The error of a model that its program refuses in these words.
    pub(crate) fn refused(&self, words: String) -> Arc<WorkerError> {
        Arc::new(WorkerError::ModelRefused { program: self.program.name(), words })
    }
}

/// A program that said hello.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Process,
    stream: UnixStream,
    hello: Hello,
    memory: Option<Memory>,
    requests: u64,
    start_timeout: Duration,
}

/// An answer to a job.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) found: Found,
    pub(crate) input: Option<FrameSize>,
    pub(crate) images: Option<u64>,
}

/// A word of a worker to the pool. `run` tells its runs apart.
#[derive(Debug)]
pub(crate) enum Event {
    Started {
        worker: WorkerId,
        run: u64,
        hello: Hello,
        /// Models that it was to have and lacks, and why.
        lacks: Lacks,
    },
    Answered {
        worker: WorkerId,
        run: u64,
        job: JobId,
        answer: Result<Answer, NoAnswer>,
    },
    /// It has loaded a model that it was sent, or refused it, in these words.
    Loaded {
        worker: WorkerId,
        run: u64,
        model: String,
        refused: Option<String>,
    },
    /// The program ended over this model, or was too slow, when it was to start with it; it is started again without it.
    ModelFailed {
        worker: WorkerId,
        run: u64,
        model: String,
        error: Arc<WorkerError>,
    },
    Ended {
        worker: WorkerId,
        run: u64,
        error: Option<WorkerError>,
    },
}

/// Models, each with the reason why a worker does not have it.
pub(crate) type Lacks = BTreeMap<String, Arc<WorkerError>>;

/// Why the answer to a job is none.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    Refused(String),
    Invalid(MessageError),
}

impl Worker {
    /// Starts the program, waits until it connects, reads its hello, and shares memory with it if it wants that.
    pub(crate) async fn start(launch: &Launch) -> Result<Self, WorkerError> {
        let (mut process, listener) = Process::start(launch)?;
        let after = launch.start_timeout;
        let connected = timeout(after, async {
            tokio::select! {
                accepted = listener.accept() => {
                    let (mut stream, _) = accepted.map_err(MessageError::Io)?;
                    let hello = protocol::receive(&mut stream).await?;
                    Ok(Some((stream, protocol::parse_hello(&hello)?)))
                }
                // The status is asked for again below, with the last words.
                _ = process.child.wait() => Ok(None),
            }
        });
        let (stream, hello) = match connected.await {
            Ok(Ok(Some(connected))) => connected,
            Ok(Ok(None)) => return Err(process.ended().await),
            Ok(Err(error)) => return Err(process.failed(error).await),
            Err(_) => return Err(process.timed_out("hello", after)),
        };
        let memory = None;
        let mut worker = Self { process, stream, hello, memory, requests: 0, start_timeout: after };
        if worker.hello.memory && launch.memory_bytes > 0 {
            worker.share(launch.memory_bytes).await?;
        }
        Ok(worker)
    }

    pub(crate) const fn hello(&self) -> &Hello {
        &self.hello
    }

    async fn share(&mut self, bytes: u64) -> Result<(), WorkerError> {
        let (file, reader) = memfile::memory_file("tidegate-images", bytes)
            .map_err(|source| WorkerError::Start { program: self.process.name.clone(), source })?;
        let ask = Ask::Memory { bytes };
        let reply = self.exchange(&ask, Some(&reader)).await?;
        match reply.error {
            // A program that cannot map it is given images in the payload.
            Some(error) => {
                let program = &self.process.name;
                tracing::warn!(
                    program,
                    error,
                    "the program shares no memory: images are sent by its socket"
                );
            }
            None => self.memory = Some(Memory::new(file, bytes)),
        }
        Ok(())
    }

    /// Loads a model; `Err(Ok(words))` is a refusal.
    pub(crate) async fn load(
        &mut self,
        name: &str,
        model: &ModelFile,
    ) -> Result<Result<(), String>, WorkerError> {
        let path = model.path.to_string_lossy();
        let reply = self.exchange(&Ask::Load { name, path: &path }, None).await?;
        Ok(reply.error.map_or(Ok(()), Err))
    }

    /// A request before the worker has any other.
    async fn exchange(
        &mut self,
        ask: &Ask<'_>,
        passed: Option<&File>,
    ) -> Result<Reply, WorkerError> {
        self.requests += 1;
        let (id, after) = (self.requests, self.start_timeout);
        let stream = &mut self.stream;
        let exchanged = timeout(after, async {
            let head = protocol::head(id, ask, 0)?;
            let mut sent = 0;
            if let Some(passed) = passed {
                loop {
                    stream.ready(Interest::WRITABLE).await?;
                    let send =
                        || memfile::send_with_descriptor(stream.as_fd(), &head, passed.as_fd());
                    match stream.try_io(Interest::WRITABLE, send) {
                        Ok(bytes) => break sent = bytes,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            stream.write_all(&head[sent..]).await?;
            let reply = Reply::parse(&protocol::receive(stream).await?)?;
            if reply.id == id { Ok(reply) } else { Err(MessageError::Order { found: reply.id }) }
        });
        match exchanged.await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(self.process.failed(error).await),
            Err(_) => Err(self.process.timed_out("answer", after)),
        }
    }

    /// Carries out tasks until there are no more, or the program ends.
    pub(crate) async fn run(
        &mut self,
        tag: (WorkerId, u64),
        tasks: &mut mpsc::Receiver<Task>,
        events: &mpsc::Sender<Event>,
    ) -> Result<(), WorkerError> {
        let (read, write) = self.stream.split();
        let memory = Mutex::new(self.memory.take());
        let pending = Mutex::new(HashMap::new());
        let mut writer = Writer {
            stream: write,
            memory: &memory,
            pending: &pending,
            hello: &self.hello,
            scenes: VecDeque::new(),
            requests: self.requests,
        };
        let ended = tokio::select! {
            written = writer.run(tasks) => written,
            read = read_answers(read, &memory, &pending, tag, events) => read,
        };
        match ended {
            Ok(()) => Ok(()),
            Err(error) => Err(self.process.failed(error).await),
        }
    }

    /// The program's name, for an error that the pool finds.
    pub(crate) fn timed_out(program: &Program, after: Duration) -> WorkerError {
        WorkerError::TimedOut { program: program.name(), wanted: "answer", after }
    }
}

/// The purpose of a request that was sent.
#[derive(Debug)]
struct Pending {
    job: Option<JobId>,
    /// The place of its image in shared memory.
    offset: Option<u64>,
    expects: Expects,
}

#[derive(Debug)]
enum Expects {
    /// In that scene.
    Found(Option<u64>),
    Learnt,
    Scene(u64),
    /// The last one ends what a call of [`crate::Client::prepare`] waits for.
    Background(u64),
    Loaded(String),
    Unloaded(String),
}

struct Writer<'a> {
    stream: WriteHalf<'a>,
    memory: &'a Mutex<Option<Memory>>,
    pending: &'a Mutex<HashMap<u64, Pending>>,
    hello: &'a Hello,
    /// The scenes that the program keeps, the last used one at the end.
    scenes: VecDeque<u64>,
    requests: u64,
}

impl Writer<'_> {
    async fn run(&mut self, tasks: &mut mpsc::Receiver<Task>) -> Result<(), MessageError> {
        while let Some(task) = tasks.recv().await {
            match task {
                Task::Jobs(jobs) => {
                    for part in self.parts(&jobs) {
                        self.batch(part).await?;
                    }
                }
                Task::Load(name, model) => {
                    let path = model.path.to_string_lossy().into_owned();
                    let ask = Ask::Load { name: &name, path: &path };
                    self.send(&ask, &[], None, None, Expects::Loaded(name.clone())).await?;
                }
                Task::Unload(name) => {
                    let ask = Ask::Unload { name: &name };
                    self.send(&ask, &[], None, None, Expects::Unloaded(name.clone())).await?;
                }
            }
        }
        Ok(())
    }

    /// The batch in pieces of no more scenes than the program keeps: the last one begun would else forget the first one wanted.
    fn parts<'j>(&self, jobs: &'j [(JobId, Arc<Work>)]) -> Vec<&'j [(JobId, Arc<Work>)]> {
        let (mut parts, mut start, mut scenes) = (Vec::new(), 0, BTreeSet::new());
        for (at, (_, work)) in jobs.iter().enumerate() {
            let Some(scene) = work.scene() else { continue };
            if !scenes.contains(&scene.id()) && scenes.len() == self.hello.scenes {
                parts.push(&jobs[start..at]);
                (start, scenes) = (at, BTreeSet::new());
            }
            scenes.insert(scene.id());
        }
        parts.push(&jobs[start..]);
        parts
    }

    /// Sends requests of no more scenes than the program keeps, as one batch. `scenes` follows the order of the messages: beginning
    /// a scene is a use of it, and so is looking at an image of it, and nothing else is.
    async fn batch(&mut self, jobs: &[(JobId, Arc<Work>)]) -> Result<(), MessageError> {
        // Scenes first: a batch is not interrupted.
        for (job, work) in jobs {
            if let Work::Prepare(scene) = &**work {
                self.begin(scene, Some(*job)).await?;
            }
        }
        let wanted = || jobs.iter().filter_map(|(_, work)| work.scene());
        // One that is known may be forgotten for one that is begun, and is begun again; all of them find room.
        while let Some(scene) = wanted().find(|scene| !self.scenes.contains(&scene.id())) {
            self.begin(scene, None).await?;
        }
        let last = jobs.len() - 1;
        for (at, (job, work)) in jobs.iter().enumerate() {
            self.work(*job, work, at < last).await?;
        }
        Ok(())
    }

    /// Makes a scene the last used one of those that the program keeps, and forgets the one that it forgets for it.
    fn used(&mut self, scene: u64) {
        self.scenes.retain(|known| *known != scene);
        self.scenes.push_back(scene);
        if self.scenes.len() > self.hello.scenes {
            self.scenes.pop_front();
        }
    }

    /// Begins a scene; `job` is answered by the last message of it.
    async fn begin(&mut self, scene: &Scene, job: Option<JobId>) -> Result<(), MessageError> {
        self.used(scene.id());
        let source = [scene.source.width, scene.source.height];
        let background: &[_] = if self.hello.background { &scene.background } else { &[] };
        let job_at = |left: usize| job.filter(|_| left == 0);
        let ask = Ask::Scene { scene: scene.id(), source };
        let of = job_at(background.len());
        self.send(&ask, &[], of, None, Expects::Scene(scene.id())).await?;
        for (at, jpeg) in background.iter().enumerate() {
            let (image, payload) = self.place(jpeg, None);
            let ask = Ask::Background { scene: scene.id(), image };
            let of = job_at(background.len() - 1 - at);
            self.send(&ask, payload, of, image.offset, Expects::Background(scene.id())).await?;
        }
        Ok(())
    }

    async fn work(&mut self, job: JobId, work: &Arc<Work>, more: bool) -> Result<(), MessageError> {
        match &**work {
            Work::Prepare(_) => Ok(()),
            Work::Detect { image, model, scene } => {
                let (place, payload) = self.place_image(image);
                let (model, scene) = (model.as_deref(), scene.as_ref().map(|scene| scene.id()));
                scene.into_iter().for_each(|scene| self.used(scene));
                let ask = Ask::Detect { model, scene, image: place, more };
                self.send(&ask, payload, Some(job), place.offset, Expects::Found(scene)).await
            }
            Work::Train { image, model, subject } => {
                let (place, payload) = self.place_image(image);
                let ask = Ask::Train { model, subject, image: place };
                self.send(&ask, payload, Some(job), place.offset, Expects::Learnt).await
            }
        }
    }

    fn place_image<'i>(&self, image: &'i Image) -> (Where, &'i [u8]) {
        match image {
            Image::Encoded(bytes) => self.place(bytes, None),
            Image::Pixels { shape, bytes } => self.place(bytes, Some(*shape)),
        }
    }

    /// Writes the image to shared memory if there is room, and says where; else it is the payload.
    fn place<'i>(&self, image: &'i [u8], shape: Option<[u32; 3]>) -> (Where, &'i [u8]) {
        let mut memory = self.memory.lock().expect("no holder panics");
        match memory.as_mut().and_then(|memory| memory.place(image)) {
            Some(offset) => {
                let bytes = Some(image.len());
                (Where { offset: Some(offset), bytes, shape }, &[])
            }
            None => (Where { shape, ..Where::default() }, image),
        }
    }

    async fn send(
        &mut self,
        ask: &Ask<'_>,
        payload: &[u8],
        job: Option<JobId>,
        offset: Option<u64>,
        expects: Expects,
    ) -> Result<(), MessageError> {
        self.requests += 1;
        let head = protocol::head(self.requests, ask, payload.len())?;
        let waits = Pending { job, offset, expects };
        self.pending.lock().expect("no holder panics").insert(self.requests, waits);
        self.stream.write_all(&head).await?;
        Ok(self.stream.write_all(payload).await?)
    }
}

async fn read_answers(
    mut stream: ReadHalf<'_>,
    memory: &Mutex<Option<Memory>>,
    pending: &Mutex<HashMap<u64, Pending>>,
    (worker, run): (WorkerId, u64),
    events: &mpsc::Sender<Event>,
) -> Result<(), MessageError> {
    let mut scenes: BTreeMap<u64, Begun> = BTreeMap::new();
    loop {
        let (id, reply) = match Reply::parse(&protocol::receive(&mut stream).await?) {
            Ok(reply) => (reply.id, Ok(reply)),
            // One request is lost by it: the next message begins where it should.
            Err(error @ MessageError::Shape { id, .. }) => (id, Err(error)),
            Err(error) => return Err(error),
        };
        let found = pending.lock().expect("no holder panics").remove(&id);
        let Pending { job, offset, expects } = found.ok_or(MessageError::Order { found: id })?;
        if let Some(offset) = offset
            && let Some(memory) = memory.lock().expect("no holder panics").as_mut()
        {
            memory.free(offset);
        }
        let refused = match &reply {
            Ok(reply) => reply.error.clone(),
            Err(error) => Some(error_chain(error)),
        };
        let answer = match reply {
            Ok(reply) => answer_of(reply, &expects, &mut scenes),
            Err(error) => {
                if let Expects::Scene(scene) | Expects::Background(scene) = expects {
                    let begun = scenes.entry(scene).or_default();
                    begun.failed.get_or_insert_with(|| error_chain(&error));
                }
                Some(Err(NoAnswer::Invalid(error)))
            }
        };
        let event = match (job, answer, expects) {
            (Some(job), Some(answer), _) => Event::Answered { worker, run, job, answer },
            (_, _, Expects::Loaded(model)) => Event::Loaded { worker, run, model, refused },
            (_, _, Expects::Unloaded(model)) => {
                if let Some(error) = refused {
                    tracing::error!(model, error, "a worker does not unload the model");
                }
                continue;
            }
            _ => continue,
        };
        // The pool takes each event at once, or is gone.
        if events.send(event).await.is_err() {
            return Ok(());
        }
    }
}

/// The outcome of a job, by the answer to its request; `None` for an answer about a model.
fn answer_of(
    reply: Reply,
    expects: &Expects,
    scenes: &mut BTreeMap<u64, Begun>,
) -> Option<Result<Answer, NoAnswer>> {
    let refused = |error: &String| Err(NoAnswer::Refused(error.clone()));
    Some(match (expects, &reply.error) {
        (Expects::Scene(scene), error) => {
            let input = reply.input();
            let failed = error.clone();
            let begun = Begun { input: input.as_ref().ok().copied(), failed };
            scenes.insert(*scene, begun);
            // Scenes are numbered as they are made: the oldest are no longer of use.
            if scenes.len() > 2 * protocol::SCENES_MAX {
                scenes.pop_first();
            }
            match error {
                Some(error) => refused(error),
                None => input.map_err(NoAnswer::Invalid).map(Answer::of_input),
            }
        }
        (Expects::Background(scene), error) => {
            let begun = scenes.entry(*scene).or_default();
            if let Some(error) = error {
                begun.failed.get_or_insert_with(|| error.clone());
            }
            match (&begun.failed, begun.input) {
                (Some(error), _) => refused(error),
                (None, input) => Ok(Answer { input, ..Answer::default() }),
            }
        }
        (Expects::Loaded(_) | Expects::Unloaded(_), _) => return None,
        (Expects::Found(_) | Expects::Learnt, Some(error)) => refused(error),
        (Expects::Learnt, None) => Ok(Answer { images: reply.images, ..Answer::default() }),
        (Expects::Found(scene), None) => {
            let failed = scene.and_then(|scene| scenes.get(&scene)?.failed.clone());
            match failed {
                // Boxes of a scene that lacks some of its background would be of another detector.
                Some(error) => refused(&error),
                None => reply
                    .found()
                    .map(|found| Answer { found, ..Answer::default() })
                    .map_err(NoAnswer::Invalid),
            }
        }
    })
}

/// A scene that was begun, as far as it is known.
#[derive(Debug, Default)]
struct Begun {
    input: Option<FrameSize>,
    /// Why it could not be begun whole.
    failed: Option<String>,
}

impl Answer {
    fn of_input(input: FrameSize) -> Self {
        Self { input: Some(input), ..Self::default() }
    }
}

/// Memory that the program reads: images that are in flight, each in a piece of its own.
#[derive(Debug)]
struct Memory {
    file: File,
    bytes: u64,
    /// Pieces in use: where each begins and ends.
    used: BTreeMap<u64, u64>,
}

impl Memory {
    const fn new(file: File, bytes: u64) -> Self {
        Self { file, bytes, used: BTreeMap::new() }
    }

    /// Copies `image` to the first gap that it fits, so that few pages are ever touched.
    fn place(&mut self, image: &[u8]) -> Option<u64> {
        let length = (image.len() as u64).max(1);
        let mut offset = 0;
        for (start, end) in &self.used {
            if start - offset >= length {
                break;
            }
            offset = end.next_multiple_of(ALIGNMENT);
        }
        if offset.checked_add(length)? > self.bytes
            || self.file.write_all_at(image, offset).is_err()
        {
            return None;
        }
        self.used.insert(offset, offset + length);
        Some(offset)
    }

    fn free(&mut self, offset: u64) {
        self.used.remove(&offset);
    }
}

#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    said: JoinHandle<String>,
    /// Holds the socket and our own worker's source; only its user can look inside.
    _folder: TempDir,
}

impl Process {
    fn start(launch: &Launch) -> Result<(Self, UnixListener), WorkerError> {
        let name = launch.program.name();
        let failed = |source: io::Error| WorkerError::Start { program: name.clone(), source };
        let folder =
            tempfile::Builder::new().prefix("tidegate-detector-").tempdir().map_err(failed)?;
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        let mut command = match &launch.program {
            Program::Command(words) => {
                let (first, rest) = words.split_first().ok_or(WorkerError::NoProgram)?;
                let mut command = Command::new(first);
                command.args(rest);
                command
            }
            Program::Own(words, python) => {
                locate::unpack(folder.path()).map_err(failed)?;
                let mut command = Command::new(locate::python(python.as_deref())?);
                command.args(["-m", "tidegate_detector"]).args(words);
                command.env("PYTHONPATH", folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
        };
        command.envs(launch.environment.iter().map(|(name, value)| (name, value)));
        command.env(SOCKET_VARIABLE, &socket).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let stderr = child.stderr.take().expect("stderr was asked for as a pipe");
        let said = tokio::spawn(last_words(stderr));
        Ok((Self { name, child, said, _folder: folder }, listener))
    }

    /// The state of a program after an exchange with it failed.
    async fn failed(&mut self, error: MessageError) -> WorkerError {
        // A broken connection means that the program ended, or is about to.
        match error {
            MessageError::Io(_) if timeout(END_GRACE, self.child.wait()).await.is_ok() => {
                self.ended().await
            }
            source => WorkerError::Answer { program: self.name.clone(), source },
        }
    }

    async fn ended(&mut self) -> WorkerError {
        let program = self.name.clone();
        match self.child.wait().await {
            Ok(status) => {
                // A child of the program may still hold its standard error open: the output by now is enough.
                let said = match timeout(END_GRACE, &mut self.said).await {
                    Ok(Ok(said)) => said.trim().replace('\n', "; "),
                    Ok(Err(_)) | Err(_) => String::new(),
                };
                WorkerError::Ended { program, status, said }
            }
            Err(source) => WorkerError::Start { program, source },
        }
    }

    fn timed_out(&self, wanted: &'static str, after: Duration) -> WorkerError {
        WorkerError::TimedOut { program: self.name.clone(), wanted, after }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.said.abort();
    }
}

/// The last of what a program writes to its standard error.
async fn last_words(mut stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut chunk = [0; 1024];
    // A pipe that cannot be read has no more: the kept text stands.
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..count]);
        if kept.len() > 2 * SAID_BYTES {
            kept.drain(..kept.len() - SAID_BYTES);
        }
    }
    let start = kept.len().saturating_sub(SAID_BYTES);
    String::from_utf8_lossy(&kept[start..]).into_owned()
}

/// Why a worker cannot be had, or is no more.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A command without words.
    #[error("the detector command names no program")]
    NoProgram,
    /// The worker's Python environment was not made.
    #[error(transparent)]
    PythonMissing(#[from] PythonMissing),
    /// The program cannot be started.
    #[error("the detector program {program} cannot be started")]
    Start {
        /// Which.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program ended.
    #[error("the detector program {program} ended ({status}){}", after_colon(said))]
    Ended {
        /// Which.
        program: String,
        /// How.
        status: ExitStatus,
        /// Its last words.
        said: String,
    },
    /// The program does not answer.
    #[error("the detector program {program} gave no {wanted} within {} s; is it stuck, or the machine overloaded?", .after.as_secs_f64())]
    TimedOut {
        /// Which.
        program: String,
        /// The expected answer.
        wanted: &'static str,
        /// How long.
        after: Duration,
    },
    /// The program refuses a model.
    #[error("the detector program {program} refuses the model: {words}")]
    ModelRefused {
        /// Which.
        program: String,
        /// Its words.
        words: String,
    },
    /// The program sent something that the protocol does not allow.
    #[error("the detector program {program} breaks the protocol")]
    Answer {
        /// Which.
        program: String,
        /// How.
        #[source]
        source: MessageError,
    },
}

impl WorkerError {
    /// The error with its causes, in one line.
    pub fn chain(&self) -> String {
        error_chain(self)
    }
}

fn after_colon(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_from_its_beginning_and_never_shared() {
        let (file, reader) = memfile::memory_file("test", 1000).unwrap();
        let mut memory = Memory::new(file, 1000);
        let places: Vec<_> = [100, 200, 300].map(|length| memory.place(&vec![7; length])).into();
        assert_eq!(places, [Some(0), Some(128), Some(384)]);
        assert_eq!(memory.place(&[1; 400]), None, "there is no such gap");
        memory.free(128);
        assert_eq!(memory.place(&[8; 201]), Some(128));
        assert_eq!(memory.place(&[9; 20]), Some(704));
        let mut read = [0; 201];
        reader.read_exact_at(&mut read, 128).unwrap();
        assert_eq!(read, [8; 201]);
        for offset in [0, 128, 384, 704] {
            memory.free(offset);
        }
        assert_eq!(memory.place(&[1; 1000]), Some(0));
    }

    /// The program's side of scenes: the ones used last are kept, and a batch is looked at when its last request has come. With one
    /// scene it ignores the number, as it may: the boxes are of the scene that was begun last.
    fn keeps_scenes(count: usize, messages: &[serde_json::Value], note: &str) -> usize {
        let (mut kept, mut batch, mut begun) = (VecDeque::new(), Vec::new(), 0);
        let used = |kept: &mut VecDeque<u64>, scene| {
            kept.retain(|known| *known != scene);
            kept.push_back(scene);
            if kept.len() > count {
                kept.pop_front();
            }
        };
        for message in messages {
            let scene = message["scene"].as_u64().expect("each message here is of a scene");
            if message["type"] == "scene" {
                assert!(batch.is_empty(), "{note}: a batch was interrupted");
                begun += 1;
                used(&mut kept, scene);
                continue;
            }
            batch.push(scene);
            if message["more"] == true {
                continue;
            }
            for scene in batch.drain(..) {
                assert!(
                    kept.contains(&scene),
                    "{note}: no scene {scene} was begun; there are {kept:?}"
                );
                used(&mut kept, scene);
            }
        }
        assert!(batch.is_empty(), "{note}: the last batch has an end");
        begun
    }

    #[tokio::test]
    async fn every_scene_of_a_batch_is_one_that_the_program_keeps() {
        for seed in 0..60 {
            let mut state = seed;
            let mut random = |below: u64| {
                // Knuth's (MMIX): the same seed, the same run.
                state = 6_364_136_223_846_793_005_u64
                    .wrapping_mul(state)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let most = [1, 2, 3, 16][random(4) as usize];
            let source = FrameSize { width: 64, height: 48 };
            let count = most as u64 + random(4);
            let scenes: Vec<_> =
                (0..count).map(|_| Arc::new(Scene::new(source, Vec::new()))).collect();
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let hello = format!(
                r#"{{"protocol":2,"detector":"a","in_flight":16,"batch":8,"scenes":{most}}}"#
            );
            let hello = protocol::parse_hello(hello.as_bytes()).unwrap();
            let (tasks, mut received) = mpsc::channel(64);
            let (mut jobs, mut asked) = (0, 0);
            for _ in 0..40 {
                let prepares = random(5) == 0;
                let batch = (0..1 + random(8)).map(|_| {
                    jobs += 1;
                    let scene = Arc::clone(&scenes[random(count) as usize]);
                    let image = Image::Encoded(bytes::Bytes::from_static(b"x"));
                    let work = if prepares {
                        Work::Prepare(scene)
                    } else {
                        asked += 1;
                        Work::Detect { image, model: None, scene: Some(scene) }
                    };
                    (JobId(jobs), Arc::new(work))
                });
                assert!(tasks.try_send(Task::Jobs(batch.collect())).is_ok());
            }
            drop(tasks);
            let write = async {
                let mut ours = ours;
                let (_, write) = ours.split();
                let (memory, pending) = (Mutex::new(None), Mutex::new(HashMap::new()));
                let (scenes, requests) = (VecDeque::new(), 0);
                let mut writer = Writer {
                    stream: write,
                    memory: &memory,
                    pending: &pending,
                    hello: &hello,
                    scenes,
                    requests,
                };
                writer.run(&mut received).await.unwrap();
            };
            let read = async {
                let mut messages = Vec::new();
                while let Ok(json) = theirs.read_u32().await {
                    let payload = theirs.read_u32().await.unwrap();
                    let mut bytes = vec![0; (json + payload) as usize];
                    theirs.read_exact(&mut bytes).await.unwrap();
                    messages.push(serde_json::from_slice(&bytes[..json as usize]).unwrap());
                }
                messages
            };
            let ((), messages) = tokio::join!(write, read);
            let note = format!("seed {seed}, {most} kept");
            let begun = keeps_scenes(most, &messages, &note);
            assert_eq!(messages.len() - begun, asked, "{note}: each image is sent once");
        }
    }
}
