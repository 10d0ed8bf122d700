//! Which request goes to which worker, and when: a state machine without I/O and clock.
//!
//! ```text
//!  submit ─▶ queue of its client ─▶ the clients in turns ─▶ batch ─▶ worker with the least in flight ─▶ answered
//!     └▶ refused, with a time           └▶ overdue, superseded           └▶ lost with it: once more, alone, or failed
//! ```
//!
//! Always true: no more than [`ScheduleConfig::queue_max`] requests and [`ScheduleConfig::queue_bytes_max`] bytes wait; each accepted
//! request ends exactly once, by [`Action::Fail`] or by [`Schedule::answered`] or [`Schedule::cancel`]; a worker has never more in
//! flight than it said; a request that was lost with a worker is tried again without company, so that it takes no other along; one of a
//! stream goes to a worker that looks at nothing else, so that until it is looked at a newer one can take its place; while these two wait
//! for such a worker one gets nothing new, which therefore is theirs once it has answered, and the others are filled as before.
//!
//! A request waits behind all that its worker has in flight, whatever the order of turns. A client that asks for one image after the other
//! has nothing waiting when a place becomes free; one that always has much waiting would take each place. So clients that have something in
//! flight, or were answered a moment ago, count among those that share a worker: while one of them has nothing waiting, each other has at
//! most its share of what the worker takes. A batch that not all go into has as many requests of each client.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use tidegate_message::{Backoff, Instant};

/// The limits and times of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// Requests that may wait; default 256. More means longer waits before a refusal.
    pub queue_max: usize,
    /// Bytes of images that may wait; default 256 MiB.
    pub queue_bytes_max: usize,
    /// Requests of one client that may wait; default 64.
    pub client_queue_max: usize,
    /// How long a request waits for others of its model to come along; default zero: a batch is what waits when a worker is free.
    pub batch_wait: Duration,
    /// Longest wait for an answer of a worker that has requests; default 20 s. A worker that is slower is ended.
    pub answer_timeout: Duration,
    /// First wait before a worker that ended is started again, and the longest; default 100 ms and 10 s.
    pub backoff: (Duration, Duration),
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            queue_max: 256,
            queue_bytes_max: 256 << 20,
            client_queue_max: 64,
            batch_wait: Duration::ZERO,
            answer_timeout: Duration::from_secs(20),
            backoff: (Duration::from_millis(100), Duration::from_secs(10)),
        }
    }
}

/// A client of the pool: clients are served in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// A request that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// One of the pool's workers, counted from zero. It keeps its number when it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub usize);

/// The scheduler's view of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The client whose turn it uses.
    pub client: ClientId,
    /// A stream of the client's in which a newer request takes the place of one that still waits. It waits until a worker looks at
    /// nothing else.
    pub stream: Option<u64>,
    /// Only requests of one group share a batch.
    pub group: u64,
    /// Size of its image.
    pub bytes: usize,
    /// The latest time at which it may be handed to a worker.
    pub start_by: Option<Instant>,
    /// Whether it may be tried once more if its worker ends.
    pub repeatable: bool,
}

/// How much a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Requests in flight, at least one.
    pub in_flight: usize,
    /// Requests that it answers together, at least one and at most [`Self::in_flight`].
    pub batch: usize,
}

/// A thing that the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start this worker, then call [`Schedule::started`] or [`Schedule::ended`].
    Start(WorkerId),
    /// Hand these requests to this worker, as one batch.
    Send(WorkerId, Vec<JobId>),
    /// End this worker, which does not answer, then call [`Schedule::ended`].
    End(WorkerId),
    /// The request has failed.
    Fail(JobId, Failure),
}

/// Why an accepted request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A newer request of its stream took its place.
    Superseded,
    /// Its time to start passed while it waited.
    Overdue,
    /// It gave its place in a full queue to a client that had none.
    Displaced {
        /// When a place is likely.
        retry_after: Duration,
    },
    /// Its worker ended, and it was not tried again, or that one ended as well; or no worker can be started.
    Lost(WorkerId),
}

/// Why a request is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many requests or bytes as may wait do.
    Full {
        /// Requests that wait.
        waiting: usize,
        /// When a place is likely, from the measured times of service.
        retry_after: Duration,
    },
    /// The client has as many requests waiting as one client may.
    ClientFull {
        /// Its requests that wait.
        waiting: usize,
        /// When a place is likely.
        retry_after: Duration,
    },
    /// No worker runs, and the last one could not be started.
    NoWorker {
        /// The worker that failed last.
        worker: WorkerId,
        /// When it is tried again.
        retry_after: Duration,
    },
}

/// Without a measured time of service, a request is said to take this long.
const SERVICE_UNKNOWN: Duration = Duration::from_millis(100);
/// A shorter wait than this is not worth a client's while.
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The scheduler of one pool.
#[derive(Debug)]
pub struct Schedule {
    config: ScheduleConfig,
    jobs: HashMap<JobId, Entry>,
    queues: HashMap<ClientId, VecDeque<JobId>>,
    /// Clients that have something waiting, in the order of their turns.
    turns: VecDeque<ClientId>,
    newest: HashMap<(ClientId, u64), JobId>,
    /// When each client was answered last, if that was a moment ago.
    answered: HashMap<ClientId, Instant>,
    waiting: usize,
    waiting_bytes: usize,
    workers: Vec<Worker>,
    actions: VecDeque<Action>,
    next_job: u64,
    service: Option<Duration>,
    /// The worker that could not be started, while none runs.
    cannot_start: Option<WorkerId>,
}

#[derive(Debug)]
struct Entry {
    job: Job,
    since: Instant,
    worker: Option<WorkerId>,
    alone: bool,
}

#[derive(Debug)]
struct Worker {
    state: State,
    backoff: Backoff,
    in_flight: Vec<JobId>,
    alone: bool,
    /// Since when it works at what it is to answer next.
    busy_since: Instant,
    /// Models that it loads, and until when it has answered them.
    loading: Option<(usize, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits { until: Instant },
    Starts,
    Ready(Capacity),
    Ends,
}

impl Schedule {
    /// A pool of that many workers, at least one, all of them to be started at once.
    pub fn new(now: Instant, config: ScheduleConfig, workers: usize) -> Self {
        let worker = |index: usize| Worker {
            state: State::Waits { until: now },
            backoff: Backoff::with_jitter(config.backoff.0, config.backoff.1, index as u64),
            in_flight: Vec::new(),
            loading: None,
            alone: false,
            busy_since: now,
        };
        Self {
            config,
            jobs: HashMap::new(),
            queues: HashMap::new(),
            turns: VecDeque::new(),
            newest: HashMap::new(),
            answered: HashMap::new(),
            waiting: 0,
            waiting_bytes: 0,
            workers: (0..workers.max(1)).map(worker).collect(),
            actions: VecDeque::new(),
            next_job: 0,
            service: None,
            cannot_start: None,
        }
    }

    /// Accepts a request, or says when to come again.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn submit(&mut self, now: Instant, job: Job) -> Result<JobId, Refused> {
        if let Some(worker) = self.cannot_start {
            let retry_after = self.until_start(now).max(RETRY_MIN);
            return Err(Refused::NoWorker { worker, retry_after });
        }
        let replaced =
            job.stream.and_then(|stream| self.newest.get(&(job.client, stream)).copied());
        let own = self.queues.get(&job.client).map_or(0, VecDeque::len);
        let freed_bytes = replaced.map_or(0, |old| self.jobs[&old].job.bytes);
        let bytes = self.waiting_bytes - freed_bytes + job.bytes;
        if replaced.is_none() && own >= self.config.client_queue_max {
            return Err(Refused::ClientFull {
                waiting: own,
                retry_after: self.retry_after(now, own),
            });
        }
        let full = (replaced.is_none() && self.waiting >= self.config.queue_max)
            || (bytes > self.config.queue_bytes_max
                && self.waiting > usize::from(replaced.is_some()));
        if full && !(own == 0 && self.displace(now, job.bytes)) {
            let retry_after = self.retry_after(now, self.waiting);
            return Err(Refused::Full { waiting: self.waiting, retry_after });
        }
        let id = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(id, Entry { job, since: now, worker: None, alone: false });
        self.waiting += 1;
        self.waiting_bytes += job.bytes;
        match replaced {
            // The newer one has the place of the older: a stream that is renewed all the time comes to its turn nevertheless.
            Some(old) => {
                let queue = self.queues.get_mut(&job.client).expect("the older one waits in it");
                let place = queue.iter_mut().find(|waiting| **waiting == old);
                *place.expect("the older one waits") = id;
                self.forget_waiting(old);
                self.actions.push_back(Action::Fail(old, Failure::Superseded));
            }
            None => self.enqueue(job.client, id, false),
        }
        if let Some(stream) = job.stream {
            self.newest.insert((job.client, stream), id);
        }
        Ok(id)
    }

    /// The client waits for this request no longer. One that is in flight is still answered by its worker, and ends with it.
    pub fn cancel(&mut self, job: JobId) {
        match self.jobs.get_mut(&job) {
            Some(entry) if entry.worker.is_some() => entry.job.repeatable = false,
            Some(_) => {
                self.leave_queue(job);
                self.forget_waiting(job);
            }
            None => {}
        }
    }

    /// The worker is ready, and takes so much.
    pub fn started(&mut self, now: Instant, worker: WorkerId, capacity: Capacity) {
        let in_flight = capacity.in_flight.max(1);
        let batch = capacity.batch.clamp(1, in_flight);
        let worker = &mut self.workers[worker.0];
        worker.state = State::Ready(Capacity { in_flight, batch });
        worker.loading = None;
        worker.busy_since = now;
        self.cannot_start = None;
    }

    /// The worker, which is ready, is to load a model: it is sent nothing until [`Self::loaded`], and has until then to answer.
    pub fn loads(&mut self, worker: WorkerId, until: Instant) {
        let (count, latest) = self.workers[worker.0].loading.unwrap_or((0, until));
        self.workers[worker.0].loading = Some((count + 1, latest.max(until)));
    }

    /// The worker has loaded a model, or refused it.
    pub fn loaded(&mut self, now: Instant, worker: WorkerId) {
        let worker = &mut self.workers[worker.0];
        worker.loading = match worker.loading {
            Some((count @ 2.., until)) => Some((count - 1, until)),
            _ => None,
        };
        // It looks at the requests that were behind the model only now.
        worker.busy_since = now;
    }

    /// The worker has answered the request, whatever it said.
    pub fn answered(&mut self, now: Instant, worker: WorkerId, job: JobId) {
        let state = &mut self.workers[worker.0];
        let Some(at) = state.in_flight.iter().position(|sent| *sent == job) else { return };
        state.in_flight.remove(at);
        state.backoff.reset();
        if state.in_flight.is_empty() {
            state.alone = false;
        }
        let took = now.since(state.busy_since);
        state.busy_since = now;
        // A batch is answered at once: its first answer has all of its time and the others none, and their mean is right.
        self.service = Some(self.service.map_or(took, |mean| (mean * 15 + took) / 16));
        if let Some(Entry { job: Job { client, stream: None, .. }, .. }) = self.jobs.remove(&job) {
            self.answered.insert(client, now);
        }
    }

    /// The worker has ended, or could not be started.
    pub fn ended(&mut self, now: Instant, id: WorkerId) {
        let worker = &mut self.workers[id.0];
        let started = matches!(worker.state, State::Ready(_) | State::Ends);
        worker.state = State::Waits { until: later(now, worker.backoff.next_wait()) };
        (worker.alone, worker.loading) = (false, None);
        let lost = std::mem::take(&mut worker.in_flight);
        for job in lost.into_iter().rev() {
            let entry = self.jobs.get_mut(&job).expect("it was in flight");
            if entry.alone || !entry.job.repeatable {
                self.jobs.remove(&job);
                self.actions.push_back(Action::Fail(job, Failure::Lost(id)));
                continue;
            }
            (entry.worker, entry.alone) = (None, true);
            let (client, bytes) = (entry.job.client, entry.job.bytes);
            self.waiting += 1;
            self.waiting_bytes += bytes;
            self.enqueue(client, job, true);
        }
        let runs = |worker: &Worker| matches!(worker.state, State::Ready(_) | State::Starts);
        if !started && !self.workers.iter().any(runs) {
            self.cannot_start = Some(id);
            self.turns.clear();
            let queues = std::mem::take(&mut self.queues);
            let mut waiting: Vec<_> = queues.into_values().flatten().collect();
            waiting.sort_unstable();
            for job in waiting {
                self.forget_waiting(job);
                self.actions.push_back(Action::Fail(job, Failure::Lost(id)));
            }
        }
    }

    /// The next thing to do, if there is one now.
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            match worker.state {
                State::Waits { until } if until <= now => {
                    worker.state = State::Starts;
                    // Its start may go well: requests may wait for it again.
                    self.cannot_start = None;
                    return Some(Action::Start(WorkerId(index)));
                }
                State::Ready(_) if worker.answers_by(&self.config).is_some_and(|by| by <= now) => {
                    worker.state = State::Ends;
                    return Some(Action::End(WorkerId(index)));
                }
                _ => {}
            }
        }
        self.drop_overdue(now);
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        self.send(now)
    }

    /// When to call [`Self::poll_action`] again, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let worker = |worker: &Worker| match worker.state {
            State::Waits { until } => Some(until),
            State::Ready(_) => worker.answers_by(&self.config),
            State::Starts | State::Ends => None,
        };
        let waiting = self.queues.values().flatten().map(|job| &self.jobs[job]);
        let overdue = waiting.clone().filter_map(|entry| entry.job.start_by);
        // A batch that is not full goes when its oldest has waited long enough, if a worker could take it.
        let may_send =
            self.workers.iter().any(|worker| worker.in_flight.is_empty() && worker.takes());
        let batch = waiting.map(|entry| later(entry.since, self.config.batch_wait));
        let batch = batch.filter(|_| may_send && !self.config.batch_wait.is_zero());
        self.workers.iter().filter_map(worker).chain(overdue).chain(batch).min()
    }

    /// Requests that wait.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Workers that are ready.
    pub fn ready(&self) -> usize {
        self.workers.iter().filter(|worker| worker.ready()).count()
    }

    /// Mean time of service of one request by one worker, as measured; `None` before the first answer.
    pub const fn service(&self) -> Option<Duration> {
        self.service
    }

    /// How long until `ahead` requests have been served.
    fn retry_after(&self, now: Instant, ahead: usize) -> Duration {
        let service = self.service.unwrap_or(SERVICE_UNKNOWN);
        let (ready, ahead) = (self.ready(), u32::try_from(ahead).unwrap_or(u32::MAX));
        let start = if ready == 0 { self.until_start(now) } else { Duration::ZERO };
        let served =
            service.saturating_mul(ahead.max(1)) / u32::try_from(ready.max(1)).unwrap_or(1);
        start.saturating_add(served).clamp(RETRY_MIN, RETRY_MAX)
    }

    fn until_start(&self, now: Instant) -> Duration {
        let until = |worker: &Worker| match worker.state {
            State::Waits { until } => Some(until.since(now)),
            _ => None,
        };
        self.workers.iter().filter_map(until).min().unwrap_or_default()
    }

    fn enqueue(&mut self, client: ClientId, job: JobId, first: bool) {
        let queue = self.queues.entry(client).or_default();
        if queue.is_empty() {
            self.turns.push_back(client);
        }
        if first { queue.push_front(job) } else { queue.push_back(job) }
    }

    /// Makes room for a client that has nothing waiting: the newest of the client with the most gives its place.
    fn displace(&mut self, now: Instant, bytes: usize) -> bool {
        let most = self.queues.iter().max_by_key(|(client, queue)| (queue.len(), **client));
        let Some((_, queue)) = most.filter(|(_, queue)| queue.len() > 1) else { return false };
        let newest = queue.iter().rev().find(|job| !self.jobs[*job].alone).copied();
        let Some(job) = newest else { return false };
        let freed = self.jobs[&job].job.bytes;
        if self.waiting_bytes - freed + bytes > self.config.queue_bytes_max {
            return false;
        }
        let retry_after = self.retry_after(now, self.waiting);
        self.leave_queue(job);
        self.forget_waiting(job);
        self.actions.push_back(Action::Fail(job, Failure::Displaced { retry_after }));
        true
    }

    fn drop_overdue(&mut self, now: Instant) {
        let late = |job: &&JobId| self.jobs[*job].job.start_by.is_some_and(|by| by < now);
        let mut overdue: Vec<_> = self.queues.values().flatten().filter(late).copied().collect();
        overdue.sort_unstable();
        for job in overdue {
            self.leave_queue(job);
            self.forget_waiting(job);
            self.actions.push_back(Action::Fail(job, Failure::Overdue));
        }
    }

    fn leave_queue(&mut self, job: JobId) {
        let client = self.jobs[&job].job.client;
        let queue = self.queues.get_mut(&client).expect("a request that waits is in its queue");
        queue.retain(|waiting| *waiting != job);
        if queue.is_empty() {
            self.queues.remove(&client);
            self.turns.retain(|turn| *turn != client);
        }
    }

    /// Removes a request that waits and has left its queue.
    fn forget_waiting(&mut self, job: JobId) {
        let entry = self.jobs.remove(&job).expect("it waits");
        self.left(job, &entry.job);
    }

    /// A request waits no longer.
    fn left(&mut self, id: JobId, job: &Job) {
        self.waiting -= 1;
        self.waiting_bytes -= job.bytes;
        if let Some(stream) = job.stream
            && self.newest.get(&(job.client, stream)) == Some(&id)
        {
            self.newest.remove(&(job.client, stream));
        }
    }

    fn send(&mut self, now: Instant) -> Option<Action> {
        if self.waiting == 0 {
            return None;
        }
        let sharing = self.sharing(now);
        let (first, index, capacity) = self.first_that_goes(sharing)?;
        let Entry { job: Job { group, .. }, alone, .. } = self.jobs[&first];
        let worker = &self.workers[index];
        let room = capacity.batch.min(capacity.in_flight - worker.in_flight.len());
        let count = if alone { 1 } else { room };
        let is_idle = worker.in_flight.is_empty();
        let fits = |entry: &Entry| {
            let goes_along = entry.job.group == group && entry.alone == alone;
            goes_along && (is_idle || entry.job.stream.is_none())
        };
        let batch = self.take(count, |client| self.share_left(sharing, index, client), fits);
        let oldest =
            batch.iter().map(|job| self.jobs[job].since).min().expect("the first is in it");
        let waits = now < later(oldest, self.config.batch_wait)
            && batch.len() < count
            && self.queues.values().flatten().filter(|job| fits(&self.jobs[job])).count() < count;
        if waits {
            return None;
        }
        // The turns of those that are served are over.
        for job in &batch {
            let client = self.jobs[job].job.client;
            self.leave_queue(*job);
            if let Some(at) = self.turns.iter().position(|turn| *turn == client) {
                self.turns.remove(at);
                self.turns.push_back(client);
            }
            let entry = self.jobs.get_mut(job).expect("it waits");
            entry.worker = Some(WorkerId(index));
            let job_of = entry.job;
            self.left(*job, &job_of);
        }
        let worker = &mut self.workers[index];
        if worker.in_flight.is_empty() {
            worker.busy_since = now;
        }
        worker.in_flight.extend(&batch);
        worker.alone = alone;
        Some(Action::Send(WorkerId(index), batch))
    }

    /// How many clients share the workers, where one of them has nothing waiting at the moment: it has something in flight, or was answered
    /// less than the time of one full window ago, and will likely ask again. `None` where all have something waiting, whom the turns serve
    /// alike, so that no room is left empty for anyone.
    ///
    /// Streams have no part in it: behind others at a worker there is no place for their images.
    fn sharing(&mut self, now: Instant) -> Option<usize> {
        let in_flight = |worker: &Worker| match worker.state {
            State::Ready(capacity) => Some(capacity.in_flight),
            _ => None,
        };
        let window = self.workers.iter().filter_map(in_flight).max().unwrap_or(1);
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        let recent = self.service.unwrap_or_default().saturating_mul(window);
        self.answered.retain(|_, at| now <= later(*at, recent));
        let in_flight = self.workers.iter().flat_map(|worker| &worker.in_flight);
        let in_flight = in_flight.map(|job| self.jobs[job].job).filter(|job| job.stream.is_none());
        let mut quiet: BTreeSet<_> = in_flight.map(|job| job.client).collect();
        quiet.extend(self.answered.keys());
        quiet.retain(|client| !self.queues.contains_key(client));
        (!quiet.is_empty()).then(|| quiet.len() + self.queues.len())
    }

    /// How many requests more a client may have in flight at a worker.
    fn share_left(&self, sharing: Option<usize>, index: usize, client: ClientId) -> usize {
        let worker = &self.workers[index];
        let (Some(clients), State::Ready(capacity)) = (sharing, worker.state) else {
            return usize::MAX;
        };
        let has =
            worker.in_flight.iter().filter(|job| self.jobs[*job].job.client == client).count();
        (capacity.in_flight / clients).max(1).saturating_sub(has)
    }

    /// The first request in the order of turns that a worker has room for, with that worker and how much it takes.
    ///
    /// Requests that need an idle worker are passed over while there is none. Their wait has a bound: the worker that has the least in
    /// flight gets nothing new meanwhile, and another takes its part only by having less.
    fn first_that_goes(&self, sharing: Option<usize>) -> Option<(JobId, usize, Capacity)> {
        let mut drains = None;
        for client in &self.turns {
            let first = *self.queues.get(client)?.front().expect("no queue is empty");
            let entry = &self.jobs[&first];
            // Behind others at a worker, an image of a stream would grow old where no newer one can take its place.
            let needs_idle = entry.alone || entry.job.stream.is_some();
            if needs_idle && drains.is_some() {
                continue;
            }
            let able = self.workers.iter().enumerate().filter(|(index, _)| Some(*index) != drains);
            let mut able = able
                .filter_map(|(index, worker)| Some((index, worker, worker.room_for(needs_idle)?)))
                .peekable();
            let has_room = able.peek().is_some();
            let least = able
                .filter(|(index, ..)| self.share_left(sharing, *index, *client) > 0)
                .min_by_key(|(_, worker, _)| worker.in_flight.len());
            if let Some((index, _, capacity)) = least {
                return Some((first, index, capacity));
            }
            // The room that there is is kept for others.
            if has_room {
                continue;
            }
            if !needs_idle {
                return None;
            }
            let ready = self.workers.iter().enumerate().filter(|(_, worker)| worker.takes());
            drains = Some(ready.min_by_key(|(_, worker)| worker.in_flight.len())?.0);
        }
        None
    }

    /// At most `count` requests that fit, and of each client as many as it may: one of each in the order of turns, then a second one of each,
    /// and so on. Where not all of them go along, this ends with the first client that has no more: the rest of the others goes in a batch of
    /// its own, behind this one, whose answers come together.
    fn take(
        &self,
        count: usize,
        may: impl Fn(ClientId) -> usize,
        fits: impl Fn(&Entry) -> bool,
    ) -> Vec<JobId> {
        let of = |client: &ClientId| {
            let queue = self.queues[client].iter().copied();
            queue.take_while(|job| fits(&self.jobs[job])).take(may(*client)).collect()
        };
        let fitting = self.turns.iter().map(of).filter(|of: &Vec<JobId>| !of.is_empty());
        let fitting: Vec<Vec<JobId>> = fitting.collect();
        let counts = || fitting.iter().map(Vec::len);
        let rounds = if counts().sum::<usize>() <= count { counts().max() } else { counts().min() };
        let round = |depth: usize| fitting.iter().filter_map(move |of| of.get(depth).copied());
        (0..rounds.unwrap_or(0)).flat_map(round).take(count).collect()
    }
}

impl Worker {
    const fn ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Whether it may be sent requests, if it has room for them.
    const fn takes(&self) -> bool {
        self.ready() && self.loading.is_none()
    }

    /// How much it takes, if it has room for one request more: for one that is to be the only one, if it has nothing.
    fn room_for(&self, needs_idle: bool) -> Option<Capacity> {
        let State::Ready(capacity) = self.state else { return None };
        let limit = if needs_idle { 1 } else { capacity.in_flight };
        let has_room = self.takes() && !self.alone && self.in_flight.len() < limit;
        has_room.then_some(capacity)
    }

    /// When it is ended unless it has answered something.
    fn answers_by(&self, config: &ScheduleConfig) -> Option<Instant> {
        match self.loading {
            Some((_, until)) => Some(until),
            None if self.in_flight.is_empty() => None,
            None => Some(later(self.busy_since, config.answer_timeout)),
        }
    }
}

fn later(at: Instant, wait: Duration) -> Instant {
    let wait = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
    Instant::from_nanos(at.as_nanos().saturating_add(wait))
}

#[cfg(test)]
mod tests;
