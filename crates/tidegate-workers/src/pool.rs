//! The pool: a task around the schedule, with a task for each worker.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    task::JoinHandle,
    time,
};

use async_trait::async_trait;
use tidegate_message::FrameSize;
use tidegate_ports::{DetectError, Image, Looker, Outcome, Request, Scene, Times};

use crate::{
    protocol::{self, Found, Hello},
    schedule::{ClientId, ScheduleConfig},
    work::{ModelFile, Work},
    worker::{Answer, Launch, Program, Worker, WorkerError},
};

mod manager;

use manager::Manager;

/// Largest image that is handed to a worker, in bytes: 4K in three channels fits.
pub const IMAGE_BYTES_MAX: usize = 64 << 20;
/// Most models that may be loaded.
pub const MODELS_MAX: usize = 64;
/// Commands that may be on their way to the pool's task; a client waits for room.
const COMMANDS: usize = 256;
/// Events of workers on their way to the pool's task; a worker waits for room.
const EVENTS: usize = 256;

/// How a pool is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// Which program its workers are.
    pub program: Program,
    /// How many run, at least one; default 1.
    pub workers: usize,
    /// Longest wait for a program to connect, and for it to load a model; default 30 s, for imports from a cold disk.
    pub start_timeout: Duration,
    /// Memory shared with each worker, for images on their way; default 64 MiB. Images that find no room go by the socket. Zero
    /// shares none.
    pub memory_bytes: u64,
    /// Variables for the programs, beside those of this process: where they keep what they learn, for example.
    pub environment: Vec<(String, PathBuf)>,
    /// The folder whose models a [`SharedPool`](crate::SharedPool) loads when it begins; default none.
    pub models_dir: Option<PathBuf>,
    /// Limits and times of the queue.
    pub schedule: ScheduleConfig,
}

impl PoolSettings {
    /// One worker of that program, with the default limits.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            workers: 1,
            start_timeout: Duration::from_secs(30),
            memory_bytes: 64 << 20,
            environment: Vec::new(),
            models_dir: None,
            schedule: ScheduleConfig::default(),
        }
    }
}

/// A pool's state, as of its last change.
#[derive(Clone, Debug, Default)]
pub struct PoolState {
    /// Workers that are ready.
    pub ready: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// How often workers were started again.
    pub restarts: u64,
    /// Mean time of one request at a worker; `None` before the first.
    pub service: Option<Duration>,
    /// The last hello; `None` before the first.
    pub hello: Option<Arc<Hello>>,
    /// Models that were loaded.
    pub models: Arc<BTreeMap<String, ModelFile>>,
    /// Models of these that a worker lacks, as it has said itself: it refused one, or failed over it when it started. A model that was
    /// refused is tried again when a worker starts; one over which a worker failed is left out until it is loaded again.
    pub failed: Arc<BTreeMap<String, Arc<WorkerError>>>,
    /// Why a worker ended last.
    pub last_error: Option<Arc<WorkerError>>,
    /// Whether each worker has failed since it was ready last, if it ever was.
    none_starts: bool,
}

impl PoolState {
    /// The names by which requests ask for models: those that the program has, and those that were loaded.
    pub fn model_names(&self) -> impl Iterator<Item = &str> {
        let own = self.hello.iter().flat_map(|hello| &hello.models);
        own.map(|model| &*model.name).chain(self.models.keys().map(String::as_str))
    }
}

type Reply = oneshot::Sender<Result<Answer, DetectError>>;

enum Command {
    Submit {
        client: ClientId,
        stream: Option<u64>,
        wait_max: Option<Duration>,
        work: Work,
        reply: Reply,
    },
    /// A call was dropped, as the flag that is shared with the clients says.
    Cancelled,
    Load {
        name: String,
        model: ModelFile,
        done: oneshot::Sender<Result<(), DetectError>>,
    },
    Unload {
        name: String,
        done: oneshot::Sender<Result<(), DetectError>>,
    },
}

/// A running pool. Dropping it kills its programs; clients of it are told so.
#[derive(Debug)]
pub struct Pool {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<PoolState>,
    launch: Launch,
    clients: AtomicU64,
    dropped: Arc<AtomicBool>,
    /// Models are tried one at a time: each trial is a program with its memory.
    trial: Semaphore,
    task: JoinHandle<()>,
}

/// A client of a pool, whose requests have a turn of their own. A clone is the same client.
#[derive(Clone, Debug)]
pub struct Client {
    id: ClientId,
    commands: mpsc::Sender<Command>,
    dropped: Arc<AtomicBool>,
}

impl Pool {
    /// Starts the programs and waits for the first hello.
    ///
    /// # Errors
    /// [`WorkerError`] if there is no such program, if it ends, or if it does not say hello in time, in each of the workers.
    pub async fn start(settings: PoolSettings) -> Result<Self, Arc<WorkerError>> {
        let launch = Launch {
            program: settings.program,
            start_timeout: settings.start_timeout,
            memory_bytes: settings.memory_bytes,
            environment: settings.environment,
        };
        let (commands, received) = mpsc::channel(COMMANDS);
        let (state_sender, mut state) = watch::channel(PoolState::default());
        let dropped = Arc::new(AtomicBool::new(false));
        let manager = Manager::new(
            settings.schedule,
            settings.workers,
            launch.clone(),
            state_sender,
            Arc::clone(&dropped),
        );
        let task = tokio::spawn(manager.run(received));
        let (clients, watched) = (AtomicU64::new(0), state.clone());
        let trial = Semaphore::new(1);
        let pool = Self { commands, state: watched, launch, clients, dropped, trial, task };
        let known = |state: &PoolState| state.hello.is_some() || state.none_starts;
        let state =
            state.wait_for(known).await.expect("the pool's task runs until the pool is dropped");
        match (&state.hello, &state.last_error) {
            (None, Some(error)) => Err(Arc::clone(error)),
            _ => Ok(pool),
        }
    }

    /// A client with a turn of its own.
    pub fn client(&self) -> Client {
        let id = ClientId(self.clients.fetch_add(1, Ordering::Relaxed));
        let (commands, dropped) = (self.commands.clone(), Arc::clone(&self.dropped));
        Client { id, commands, dropped }
    }

    /// Whether its task has ended, so that it looks at nothing any more.
    pub fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    /// The state now.
    pub fn state(&self) -> PoolState {
        self.state.borrow().clone()
    }

    /// Tells of each change of the state.
    pub fn watch(&self) -> watch::Receiver<PoolState> {
        self.state.clone()
    }

    /// The last hello.
    pub fn hello(&self) -> Arc<Hello> {
        self.state.borrow().hello.clone().expect("a pool that was started had a hello")
    }

    /// Loads a model into every worker, once a program that serves no one has loaded and tried it. One of the same name is replaced.
    /// Calls wait for the trials of those before them.
    ///
    /// `path` is read by the programs wherever it leads. A caller that has it from outside canonicalizes it first, and refuses one that is
    /// not below its own folder of models.
    ///
    /// # Errors
    /// [`DetectError::ModelRefused`] if the program cannot use it, [`DetectError::Worker`] if it ends over it; requests are not
    /// affected then.
    pub async fn load(&self, name: &str, path: &Path) -> Result<(), DetectError> {
        let refused = |message: &str| {
            let (name, message) = (name.to_owned(), message.to_owned());
            DetectError::ModelRefused { name, message }
        };
        if !protocol::is_name(name) {
            return Err(refused("a name is 1 to 64 letters, digits, '.', '_' or '-'"));
        }
        let hello = self.hello();
        if hello.protocol < 2 || hello.models.iter().any(|model| model.name == name) {
            return Err(refused("the program loads no models, or has one of that name of its own"));
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let model = ModelFile { path };
        let failed = |error| DetectError::Worker { source: Arc::new(error) };
        let permit = self.trial.acquire().await.expect("it is never closed");
        let mut trial = Worker::start(&self.launch).await.map_err(failed)?;
        if let Err(message) = trial.load(name, &model).await.map_err(failed)? {
            return Err(refused(&message));
        }
        drop((trial, permit));
        let (done, result) = oneshot::channel();
        self.command(Command::Load { name: name.to_owned(), model, done }, result).await
    }

    /// Unloads a model that was loaded.
    ///
    /// # Errors
    /// [`DetectError::UnknownModel`].
    pub async fn unload(&self, name: &str) -> Result<(), DetectError> {
        let (done, result) = oneshot::channel();
        self.command(Command::Unload { name: name.to_owned(), done }, result).await
    }

    async fn command(
        &self,
        command: Command,
        result: oneshot::Receiver<Result<(), DetectError>>,
    ) -> Result<(), DetectError> {
        self.commands.send(command).await.map_err(|_| DetectError::Closed)?;
        result.await.map_err(|_| DetectError::Closed)?
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The set of its workers ends with it.
        self.task.abort();
    }
}

impl Client {
    /// Whether its pool has ended.
    pub fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    /// Looks at an image.
    ///
    /// A request whose worker ends is tried once more.
    ///
    /// # Errors
    /// [`DetectError`].
    ///
    /// # Cancel safety
    /// A call that is dropped leaves the queue, or wastes its worker's answer.
    pub async fn detect(&self, request: Request) -> Result<Outcome, DetectError> {
        let asked = time::Instant::now();
        check(&request.image)?;
        let Request { image, model, scene, size: seen, stream, wait_max } = request;
        let known = scene.as_ref().map(|scene| scene.source).or_else(|| image.size());
        let work = Work::Detect { image, model, scene };
        let answer = self.submit(work, stream, wait_max).await?;
        let Found { boxes, classes, poses, size, decode, took } = answer.found;
        let times = Times::new(asked.elapsed(), decode, took.saturating_sub(decode));
        let mut outcome = Outcome { boxes, classes, poses, size, times };
        if let Some(size) = known.or(size).or(seen) {
            outcome.clip(size);
        }
        Ok(outcome)
    }

    /// Begins a scene at a worker, and says to which size the program brings its frames.
    ///
    /// # Errors
    /// As [`Self::detect`].
    pub async fn prepare(&self, scene: Arc<Scene>) -> Result<FrameSize, DetectError> {
        let source = scene.source;
        let answer = self.submit(Work::Prepare(scene), None, None).await?;
        Ok(answer.input.unwrap_or(source))
    }

    /// Teaches a model whose face is in the image. Returns how many images it has learned from, where the program says it.
    ///
    /// # Errors
    /// As [`Self::detect`]; the request is not tried again, for it may have been learned.
    pub async fn train(
        &self,
        model: &str,
        subject: &str,
        image: Image,
    ) -> Result<Option<u64>, DetectError> {
        check(&image)?;
        let (model, subject) = (model.to_owned(), subject.to_owned());
        let answer = self.submit(Work::Train { image, model, subject }, None, None).await?;
        Ok(answer.images)
    }

    async fn submit(
        &self,
        work: Work,
        stream: Option<u64>,
        wait_max: Option<Duration>,
    ) -> Result<Answer, DetectError> {
        let (reply, answer) = oneshot::channel();
        let client = self.id;
        let command = Command::Submit { client, stream, wait_max, work, reply };
        self.commands.send(command).await.map_err(|_| DetectError::Closed)?;
        let mut gone = Gone(Some(self));
        let answer = answer.await;
        gone.0 = None;
        answer.map_err(|_| DetectError::Closed)?
    }
}

/// Tells the pool that a call was dropped.
struct Gone<'a>(Option<&'a Client>);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.0 {
            client.dropped.store(true, Ordering::Release);
            // Wakes the pool, which looks for dropped calls after each command; a full channel has some.
            let _ = client.commands.try_send(Command::Cancelled);
        }
    }
}

#[async_trait]
impl Looker for Client {
    async fn look(&self, request: Request) -> Result<Outcome, DetectError> {
        self.detect(request).await
    }
}

/// Refuses an image that no worker is asked about.
fn check(image: &Image) -> Result<(), DetectError> {
    let bytes = image.bytes().len();
    if bytes > IMAGE_BYTES_MAX {
        return Err(DetectError::ImageTooLarge { bytes });
    }
    let Image::Pixels { shape, .. } = image else { return Ok(()) };
    let [height, width, channels] = shape.map(u64::from);
    let wanted = height.checked_mul(width).and_then(|pixels| pixels.checked_mul(channels));
    let sides = [height, width].iter().all(|side| (1..=65_535).contains(side));
    if matches!(channels, 1 | 3) && sides && wanted == Some(bytes as u64) {
        Ok(())
    } else {
        Err(DetectError::Pixels { shape: *shape, bytes })
    }
}

#[cfg(test)]
mod tests;
