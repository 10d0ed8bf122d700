//! The pool's task: what happens, to the schedule, and what the schedule says, to the workers.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{AbortHandle, JoinSet},
    time,
};

use tidegate_message::Instant;
use tidegate_ports::DetectError;

use super::{Command, EVENTS, MODELS_MAX, PoolState, Reply};
use crate::{
    protocol,
    schedule::{
        Action, Capacity, Failure, Job, JobId, Refused, Schedule, ScheduleConfig, WorkerId,
    },
    work::{ModelFile, Task, Work},
    worker::{Answer, Event, Lacks, Launch, NoAnswer, Worker, WorkerError},
};

struct Waiting {
    work: Arc<Work>,
    reply: Reply,
}

/// A model on its way into the workers, into one after the other: the others serve meanwhile.
struct Load {
    name: String,
    model: ModelFile,
    /// Whether no model of that name was loaded before: requests cannot name it yet.
    is_new: bool,
    left: VecDeque<(WorkerId, u64)>,
    at: Option<(WorkerId, u64)>,
    done: oneshot::Sender<Result<(), DetectError>>,
}

struct Running {
    run: u64,
    /// Models that were sent to it before it was ready.
    early: usize,
    ready: bool,
    tasks: mpsc::Sender<Task>,
    task: AbortHandle,
}

pub(super) struct Manager {
    started: time::Instant,
    schedule: Schedule,
    answer_timeout: Duration,
    launch: Arc<Launch>,
    jobs: HashMap<JobId, Waiting>,
    running: HashMap<WorkerId, Running>,
    loads: VecDeque<Load>,
    /// Set by a client whose call was dropped.
    dropped: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    runs: u64,
    workers: usize,
    state: watch::Sender<PoolState>,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
    errors: HashMap<WorkerId, Arc<WorkerError>>,
    /// Models over which a worker ended when it started: workers start without them until they are loaded again.
    left_out: Lacks,
    /// Models that each worker lacks, by its own words, since its last start.
    lacks: HashMap<WorkerId, Lacks>,
}

impl Manager {
    pub(super) fn new(
        config: ScheduleConfig,
        workers: usize,
        launch: Launch,
        state: watch::Sender<PoolState>,
        dropped: Arc<AtomicBool>,
    ) -> Self {
        let workers = workers.max(1);
        Self {
            started: time::Instant::now(),
            schedule: Schedule::new(Instant::EPOCH, config, workers),
            answer_timeout: config.answer_timeout,
            launch: Arc::new(launch),
            jobs: HashMap::new(),
            running: HashMap::new(),
            loads: VecDeque::new(),
            dropped,
            tasks: JoinSet::new(),
            runs: 0,
            workers,
            state,
            events: mpsc::channel(EVENTS),
            errors: HashMap::new(),
            left_out: Lacks::new(),
            lacks: HashMap::new(),
        }
    }

    fn now(&self) -> Instant {
        let nanos = self.started.elapsed().as_nanos();
        Instant::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX))
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            self.cancel_dropped();
            self.load_next();
            let now = self.now();
            while let Some(action) = self.schedule.poll_action(now) {
                self.act(action);
            }
            self.tell();
            let wait = self.schedule.poll_timeout().map(|at| at.since(now));
            let sleep = time::sleep(wait.unwrap_or(Duration::from_secs(3600)));
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                Some(event) = self.events.1.recv() => self.event(event),
                // A task that panicked said nothing: its worker has ended all the same.
                Some(Err(error)) = self.tasks.join_next() => self.panicked(&error),
                () = sleep => {}
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(worker) => self.start(worker),
            Action::Send(worker, jobs) => {
                let mut batch = Vec::with_capacity(jobs.len());
                for id in jobs {
                    let job =
                        self.jobs.get(&id).expect("an accepted request is kept until it ends");
                    batch.push((id, Arc::clone(&job.work)));
                }
                if let Some(running) = self.running.get(&worker) {
                    // There is room for all that may be in flight; a worker that ended says so itself.
                    let _ = running.tasks.try_send(Task::Jobs(batch));
                }
            }
            Action::End(worker) => self.stuck(worker),
            Action::Fail(id, failure) => {
                let Some(waiting) = self.jobs.remove(&id) else { return };
                let error = match failure {
                    Failure::Superseded => DetectError::Superseded,
                    Failure::Overdue => DetectError::Overdue,
                    Failure::Displaced { retry_after } => {
                        DetectError::Busy { waiting: self.schedule.waiting(), retry_after }
                    }
                    Failure::Lost(worker) => self.lost(worker),
                };
                answer(waiting.reply, Err(error));
            }
        }
    }

    fn start(&mut self, worker: WorkerId) {
        self.runs += 1;
        let (run, launch) = (self.runs, Arc::clone(&self.launch));
        let (tasks, received) = mpsc::channel(protocol::IN_FLIGHT_MAX + 2 * MODELS_MAX);
        let events = self.events.0.clone();
        let models = self.state.borrow().models.clone();
        let left_out = self.left_out.clone();
        let running = run_worker(launch, (worker, run), (models, left_out), received, events);
        let task = self.tasks.spawn(running);
        self.running.insert(worker, Running { run, early: 0, ready: false, tasks, task });
    }

    /// Says which models workers lack, as they have said themselves.
    fn tell_lacks(&self) {
        let mut lacks = self.left_out.clone();
        for (name, error) in self.lacks.values().flatten() {
            lacks.entry(name.clone()).or_insert_with(|| error.clone());
        }
        self.state.send_if_modified(|state| {
            lacks.retain(|name, _| state.models.contains_key(name));
            let same = lacks.len() == state.failed.len()
                && lacks
                    .iter()
                    .zip(state.failed.iter())
                    .all(|(new, old)| new.0 == old.0 && Arc::ptr_eq(new.1, old.1));
            if !same {
                state.failed = Arc::new(lacks);
            }
            !same
        });
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Submit { client, stream, wait_max, work, reply } => {
                if let Err(error) = self.check(&work) {
                    return answer(reply, Err(error));
                }
                let (group, bytes) = work.group_and_bytes();
                let until = |wait: Duration| {
                    let wait = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
                    Instant::from_nanos(now.as_nanos().saturating_add(wait))
                };
                let (start_by, repeatable) = (wait_max.map(until), work.is_repeatable());
                let job = Job { client, stream, group, bytes, start_by, repeatable };
                match self.schedule.submit(now, job) {
                    Ok(id) => {
                        self.jobs.insert(id, Waiting { work: Arc::new(work), reply });
                    }
                    Err(refused) => {
                        let error = match refused {
                            Refused::Full { waiting, retry_after }
                            | Refused::ClientFull { waiting, retry_after } => {
                                DetectError::Busy { waiting, retry_after }
                            }
                            Refused::NoWorker { worker, retry_after } => {
                                match self.errors.get(&worker) {
                                    Some(source) => DetectError::NoWorker {
                                        retry_after,
                                        source: source.clone(),
                                    },
                                    None => DetectError::Closed,
                                }
                            }
                        };
                        answer(reply, Err(error));
                    }
                }
            }
            Command::Cancelled => {}
            Command::Load { name, model, done } => {
                let count = self.state.borrow().models.len();
                if count >= MODELS_MAX && !self.state.borrow().models.contains_key(&name) {
                    let message = format!("{MODELS_MAX} models are loaded; unload one first");
                    let _ = done.send(Err(DetectError::ModelRefused { name, message }));
                    return;
                }
                let is_new = !self.state.borrow().models.contains_key(&name);
                // A worker that starts has the models of its start, and is sent this one behind them.
                let mut left = VecDeque::new();
                for (worker, running) in &mut self.running {
                    if running.ready {
                        left.push_back((*worker, running.run));
                    } else if running
                        .tasks
                        .try_send(Task::Load(name.clone(), model.clone()))
                        .is_ok()
                    {
                        running.early += 1;
                    }
                }
                self.left_out.remove(&name);
                self.state.send_modify(|state| {
                    Arc::make_mut(&mut state.models).insert(name.clone(), model.clone());
                });
                self.tell_lacks();
                self.loads.push_back(Load { name, model, is_new, left, at: None, done });
            }
            Command::Unload { name, done } => {
                let known = self.state.borrow().models.contains_key(&name);
                if known {
                    let (gone, left) =
                        self.loads.drain(..).partition::<Vec<_>, _>(|load| load.name == name);
                    self.loads = left.into();
                    for Load { name, done, .. } in gone {
                        let message = "it was unloaded before all workers had it".to_owned();
                        let _ = done.send(Err(DetectError::ModelRefused { name, message }));
                    }
                    self.left_out.remove(&name);
                    self.lacks.values_mut().for_each(|lacks| _ = lacks.remove(&name));
                    self.state.send_modify(|state| {
                        Arc::make_mut(&mut state.models).remove(&name);
                    });
                    self.tell_lacks();
                    self.tell_workers(|| Task::Unload(name.clone()));
                }
                let unknown = || DetectError::UnknownModel { known: self.models(), name };
                let _ = done.send(if known { Ok(()) } else { Err(unknown()) });
            }
        }
    }

    /// Takes the requests of calls that were dropped out of the queue.
    fn cancel_dropped(&mut self) {
        if !self.dropped.swap(false, Ordering::Acquire) {
            return;
        }
        let gone = self.jobs.iter().filter(|(_, job)| job.reply.is_closed());
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            let before = self.schedule.waiting();
            self.schedule.cancel(id);
            // One that is in flight stays until its worker has answered it.
            if self.schedule.waiting() < before {
                self.jobs.remove(&id);
            }
        }
    }

    /// Sends a model to the next worker that is to have it, once the one before has answered.
    fn load_next(&mut self) {
        while let Some(load) = self.loads.front_mut() {
            let runs = |(worker, run): (WorkerId, u64)| {
                self.running.get(&worker).filter(|running| running.run == run)
            };
            if load.at.is_some_and(|at| runs(at).is_some()) {
                return;
            }
            load.at = load.left.pop_front();
            let Some((worker, _)) = load.at else {
                let load = self.loads.pop_front().expect("it is the first");
                let failed = self.state.borrow().failed.get(&load.name).cloned();
                let result = failed.map_or(Ok(()), |source| Err(DetectError::Worker { source }));
                // A caller that went away has its model loaded nevertheless.
                let _ = load.done.send(result);
                continue;
            };
            // One that was started again meanwhile began with it.
            let Some(running) = load.at.and_then(runs) else { continue };
            if running.tasks.try_send(Task::Load(load.name.clone(), load.model.clone())).is_ok() {
                let until = self.load_until();
                self.schedule.loads(worker, until);
            } else {
                self.stuck(worker);
            }
        }
    }

    /// When a worker has looked at what it has and loaded a model, at the latest.
    fn load_until(&self) -> Instant {
        let wait = self.answer_timeout.saturating_add(self.launch.start_timeout);
        let wait = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
        Instant::from_nanos(self.now().as_nanos().saturating_add(wait))
    }

    /// Tells every worker about a model. One that has no room for it takes nothing: it is begun again, with the models that there are.
    fn tell_workers(&mut self, task: impl Fn() -> Task) {
        let full = |running: &Running| running.tasks.try_send(task()).is_err();
        let stuck: Vec<_> =
            self.running.iter().filter(|(_, running)| full(running)).map(|(id, _)| *id).collect();
        for worker in stuck {
            self.stuck(worker);
        }
    }

    fn stuck(&mut self, worker: WorkerId) {
        if let Some(running) = self.running.remove(&worker) {
            running.task.abort();
        }
        let error = Worker::timed_out(&self.launch.program, self.answer_timeout);
        self.ended(worker, Some(error));
    }

    fn models(&self) -> Vec<String> {
        let state = self.state.borrow();
        let own =
            state.hello.iter().flat_map(|hello| &hello.models).map(|model| model.name.clone());
        let on_its_way =
            |name: &&String| self.loads.iter().any(|load| load.is_new && load.name == **name);
        own.chain(state.models.keys().filter(|name| !on_its_way(name)).cloned()).collect()
    }

    fn check(&self, work: &Work) -> Result<(), DetectError> {
        let (model, scene) = match work {
            Work::Detect { model, scene, .. } => (model.as_deref(), scene.is_some()),
            Work::Train { model, .. } => (Some(model.as_str()), true),
            Work::Prepare(_) => (None, true),
        };
        if let Some(name) = model {
            let known = self.models();
            if !known.iter().any(|known| known == name) {
                return Err(DetectError::UnknownModel { name: name.to_owned(), known });
            }
        }
        if let Some(name) = model {
            // Where any worker has it, that one may be asked.
            let mut ready = self.running.iter().filter(|(_, running)| running.ready).peekable();
            let lacks = |(worker, _): (&WorkerId, &Running)| self.lacks.get(worker)?.get(name);
            if ready.peek().is_some()
                && let Some(errors) = ready.map(lacks).collect::<Option<Vec<_>>>()
            {
                let message = errors[0].chain();
                return Err(DetectError::ModelRefused { name: name.to_owned(), message });
            }
        }
        let state = self.state.borrow();
        let first = state.hello.as_ref().is_some_and(|hello| hello.protocol == 1);
        if first && !scene { Err(DetectError::NeedsScene) } else { Ok(()) }
    }

    fn event(&mut self, event: Event) {
        let now = self.now();
        let (Event::Started { worker, run, .. }
        | Event::Answered { worker, run, .. }
        | Event::Loaded { worker, run, .. }
        | Event::ModelFailed { worker, run, .. }
        | Event::Ended { worker, run, .. }) = event;
        // An event of a run that was ended meanwhile: its requests are elsewhere.
        if self.running.get(&worker).is_none_or(|running| running.run != run) {
            return;
        }
        match event {
            Event::Started { worker, hello, lacks, .. } => {
                let capacity = Capacity { in_flight: hello.in_flight, batch: hello.batch };
                self.schedule.started(now, worker, capacity);
                let until = self.load_until();
                if let Some(running) = self.running.get_mut(&worker) {
                    running.ready = true;
                    (0..running.early).for_each(|_| self.schedule.loads(worker, until));
                }
                self.errors.remove(&worker);
                self.lacks.insert(worker, lacks);
                let hello = Some(Arc::new(hello));
                self.state.send_modify(|state| state.hello = hello);
                self.tell_lacks();
            }
            Event::Answered { worker, job, answer: answered, .. } => {
                self.schedule.answered(now, worker, job);
                let Some(Waiting { reply, .. }) = self.jobs.remove(&job) else { return };
                let program = || self.launch.program.name();
                let result = match answered {
                    Ok(answer) => Ok(answer),
                    Err(NoAnswer::Refused(message)) => Err(DetectError::Refused { message }),
                    Err(NoAnswer::Invalid(source)) => {
                        Err(DetectError::Answer { program: program(), source: Arc::new(source) })
                    }
                };
                answer(reply, result);
            }
            Event::Loaded { worker, run, model, refused } => {
                self.schedule.loaded(now, worker);
                let lacks = self.lacks.entry(worker).or_default();
                lacks.remove(&model);
                if let Some(words) = refused {
                    let error = self.launch.refused(words);
                    tracing::error!(model, error = error.chain(), "a worker lacks the model");
                    lacks.insert(model, error);
                }
                self.tell_lacks();
                if let Some(load) = self.loads.front_mut()
                    && load.at == Some((worker, run))
                {
                    load.at = None;
                }
            }
            Event::ModelFailed { model, error, .. } => {
                let chain = error.chain();
                tracing::error!(
                    model,
                    error = chain,
                    "workers start without the model: one failed over it"
                );
                // One that was unloaded meanwhile is no matter any more.
                if self.state.borrow().models.contains_key(&model) {
                    self.left_out.insert(model, error);
                }
                self.tell_lacks();
            }
            Event::Ended { worker, error, .. } => {
                self.running.remove(&worker);
                self.ended(worker, error);
            }
        }
    }

    fn ended(&mut self, worker: WorkerId, error: Option<WorkerError>) {
        if let Some(error) = error {
            tracing::warn!(worker = worker.0, error = error.chain(), "a detector program ended");
            let error = Arc::new(error);
            self.errors.insert(worker, Arc::clone(&error));
            let none_starts = self.errors.len() == self.workers;
            self.state.send_modify(|state| {
                (state.last_error, state.none_starts) = (Some(error), none_starts);
            });
        }
        self.schedule.ended(self.now(), worker);
    }

    fn panicked(&mut self, error: &tokio::task::JoinError) {
        let of = |running: &Running| running.task.id() == error.id();
        let worker =
            self.running.iter().find(|(_, running)| of(running)).map(|(worker, _)| *worker);
        if let Some(worker) = worker {
            self.running.remove(&worker);
            self.ended(worker, None);
        }
    }

    fn lost(&self, worker: WorkerId) -> DetectError {
        match self.errors.get(&worker) {
            Some(source) => DetectError::Worker { source: source.clone() },
            None => DetectError::Closed,
        }
    }

    /// Publishes the state if it has changed.
    fn tell(&self) {
        let (ready, waiting) = (self.schedule.ready(), self.schedule.waiting());
        let service = self.schedule.service();
        let restarts = self.runs.saturating_sub(self.workers as u64);
        self.state.send_if_modified(|state| {
            let before = (state.ready, state.waiting, state.service, state.restarts);
            (state.ready, state.waiting) = (ready, waiting);
            (state.service, state.restarts) = (service, restarts);
            before != (ready, waiting, service, restarts)
        });
    }
}

/// A caller that dropped its call wants no answer.
fn answer(reply: Reply, result: Result<Answer, DetectError>) {
    let _ = reply.send(result);
}

/// Loads the models but for those that are lacked; one that the program refuses is lacked from then on. Returns one over which the program
/// ended or was too slow, and how; it is of no more use then.
async fn load_all(
    launch: &Launch,
    worker: &mut Worker,
    models: &BTreeMap<String, ModelFile>,
    lacks: &mut Lacks,
) -> Option<(String, WorkerError)> {
    for (name, model) in models {
        if lacks.contains_key(name) {
            continue;
        }
        match worker.load(name, model).await {
            Ok(Ok(())) => {}
            Ok(Err(words)) => {
                let error = launch.refused(words);
                tracing::error!(model = name, error = error.chain(), "a worker lacks the model");
                lacks.insert(name.clone(), error);
            }
            Err(error) => return Some((name.clone(), error)),
        }
    }
    None
}

/// One run of a worker, told to the pool from its start to its end.
async fn run_worker(
    launch: Arc<Launch>,
    (id, run): (WorkerId, u64),
    (models, mut left_out): (Arc<BTreeMap<String, ModelFile>>, Lacks),
    mut tasks: mpsc::Receiver<Task>,
    events: mpsc::Sender<Event>,
) {
    let lived = async {
        let (mut worker, lacks) = loop {
            let mut worker = Worker::start(&launch).await?;
            // A model that it refuses is tried again when it starts again.
            let mut lacks = left_out.clone();
            let loaded = load_all(&launch, &mut worker, &models, &mut lacks).await;
            let Some((name, error)) = loaded else { break (worker, lacks) };
            let error = Arc::new(error);
            left_out.insert(name.clone(), error.clone());
            let failed = Event::ModelFailed { worker: id, run, model: name, error };
            if events.send(failed).await.is_err() {
                return Ok(());
            }
        };
        let hello = worker.hello().clone();
        if events.send(Event::Started { worker: id, run, hello, lacks }).await.is_err() {
            return Ok(());
        }
        worker.run((id, run), &mut tasks, &events).await
    };
    let error = lived.await.err();
    // A pool that is gone needs no word.
    let _ = events.send(Event::Ended { worker: id, run, error }).await;
}
