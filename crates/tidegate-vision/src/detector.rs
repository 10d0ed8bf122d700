//! The detector: a pool of workers, or anything else that answers as one does.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_message::error_chain;
use tidegate_ports::{DetectError, Image, Looker, Outcome, Request, Scene};
use tidegate_wire::NodeId;
use tidegate_workers::{Client, NotLoaded, Pool, SharedPool, WorkerError};
use tokio::time::Instant;

/// Callers whose turns are remembered; one that is forgotten begins a turn of its own again.
const TURNS_MAX: usize = 1024;
/// After a pool that did not start, how long requests are refused before the next try.
const START_RETRY: Duration = Duration::from_secs(5);

/// The detector: it looks at images for callers, and has models.
#[async_trait]
pub trait Detector: fmt::Debug + Send + Sync + 'static {
    /// Looks at images in the turn of that caller.
    fn looker(self: Arc<Self>, caller: NodeId) -> Arc<dyn Looker>;

    /// The models that there are.
    ///
    /// # Errors
    /// [`DetectError::NoWorker`] if no program can be asked.
    async fn models(&self) -> Result<Models, DetectError>;

    /// Loads the model of that name from the folder of models, once a program that serves no request has tried it.
    ///
    /// # Errors
    /// [`NotLoaded`].
    async fn load(&self, name: &str) -> Result<(), NotLoaded>;

    /// Unloads a model that was loaded.
    ///
    /// # Errors
    /// [`DetectError`].
    async fn unload(&self, name: &str) -> Result<(), DetectError>;

    /// Teaches a model whose face is in the image; returns how many images it has learned from, where the program says it.
    ///
    /// # Errors
    /// [`DetectError`].
    async fn train(
        &self,
        caller: NodeId,
        model: &str,
        subject: &str,
        image: Bytes,
    ) -> Result<Option<u64>, DetectError>;
}

/// The models of a detector, and how busy it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Models {
    /// The program's name.
    pub detector: String,
    /// Its models, its own before those that were loaded.
    pub models: Vec<ModelInfo>,
    /// Workers that are ready.
    pub ready: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Mean time of one request at a worker; `None` before the first.
    pub service: Option<Duration>,
}

/// A model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// Its name, by which requests ask for it.
    pub name: String,
    /// Its kind in the program's words: `detection`, `classification`, `pose`, `recognition`; empty if it does not say.
    pub kind: String,
    /// Whether it was loaded, and may be unloaded.
    pub is_loaded: bool,
    /// Why it is not loaded, or why a worker lacks it, by its own words.
    pub failed: Option<String>,
}

/// A pool of workers, which begins with the first request.
#[derive(Debug)]
pub(crate) struct Pooled {
    pool: SharedPool,
    turns: Mutex<HashMap<NodeId, Client>>,
    /// Why the pool did not start, and when that was.
    failed: Mutex<Option<(Instant, Arc<WorkerError>)>>,
}

impl Pooled {
    pub(crate) fn new(pool: SharedPool) -> Self {
        Self { pool, turns: Mutex::default(), failed: Mutex::default() }
    }

    async fn pool(&self) -> Result<Arc<Pool>, DetectError> {
        if let Some(pool) = self.pool.running() {
            return Ok(pool);
        }
        let failed = self.failed.lock().expect("no panic while it is held").clone();
        if let Some((at, source)) = failed
            && let Some(retry_after) = START_RETRY.checked_sub(at.elapsed())
        {
            return Err(DetectError::NoWorker { retry_after, source });
        }
        let started = self.pool.get().await;
        started.map_err(|source| {
            tracing::error!(error = source.chain(), "the pool of detectors does not start");
            let failed = Some((Instant::now(), source.clone()));
            *self.failed.lock().expect("no panic while it is held") = failed;
            DetectError::NoWorker { retry_after: START_RETRY, source }
        })
    }

    /// The pool's client for that caller.
    fn client(&self, pool: &Pool, caller: NodeId) -> Client {
        let mut turns = self.turns.lock().expect("no panic while it is held");
        if turns.len() >= TURNS_MAX && !turns.contains_key(&caller) {
            turns.clear();
        }
        let client = turns.entry(caller).or_insert_with(|| pool.client());
        // One of a pool that has ended is of no more use.
        if client.is_closed() {
            *client = pool.client();
        }
        client.clone()
    }
}

/// The turn of one caller.
#[derive(Debug)]
struct Turn {
    pooled: Arc<Pooled>,
    caller: NodeId,
}

#[async_trait]
impl Looker for Turn {
    async fn look(&self, mut request: Request) -> Result<Outcome, DetectError> {
        let Self { pooled, caller } = self;
        let pool = pooled.pool().await?;
        let hello = pool.hello();
        // A program of version 1 has one model, itself, and wants a scene for each size.
        if hello.protocol == 1 {
            if let Some(name) = request.model.take()
                && name != hello.detector
            {
                let known = vec![hello.detector.clone()];
                return Err(DetectError::UnknownModel { name, known });
            }
            let scene = |size| Arc::new(Scene::new(size, Vec::new()));
            request.scene = request.scene.or_else(|| request.size.map(scene));
        }
        let client = pooled.client(&pool, *caller);
        let again = (!pooled.pool.folder().is_settled).then(|| request.clone());
        match (client.detect(request).await, again) {
            // It may be one of the folder's, which are loaded after the start.
            (Err(DetectError::UnknownModel { .. }), Some(again)) => {
                pooled.pool.settled().await;
                client.detect(again).await
            }
            (answered, _) => answered,
        }
    }
}

#[async_trait]
impl Detector for Pooled {
    fn looker(self: Arc<Self>, caller: NodeId) -> Arc<dyn Looker> {
        Arc::new(Turn { pooled: self, caller })
    }

    async fn models(&self) -> Result<Models, DetectError> {
        let pool = self.pool().await?;
        let (hello, state) = (pool.hello(), pool.state());
        let mut models: Vec<ModelInfo> = match hello.protocol {
            1 => vec![ModelInfo { name: hello.detector.clone(), ..ModelInfo::default() }],
            _ => hello
                .models
                .iter()
                .map(|model| ModelInfo {
                    name: model.name.clone(),
                    kind: model.kind.clone(),
                    ..ModelInfo::default()
                })
                .collect(),
        };
        models.extend(state.models.keys().map(|name| ModelInfo {
            name: name.clone(),
            kind: String::new(),
            is_loaded: true,
            failed: state.failed.get(name).map(|error| error.chain()),
        }));
        models.extend(self.pool.folder().refused.iter().map(|(name, error)| ModelInfo {
            name: name.clone(),
            failed: Some(error_chain(&**error)),
            ..ModelInfo::default()
        }));
        Ok(Models {
            detector: hello.detector.clone(),
            models,
            ready: state.ready,
            waiting: state.waiting,
            service: state.service,
        })
    }

    async fn load(&self, name: &str) -> Result<(), NotLoaded> {
        self.pool.load(name).await
    }

    async fn unload(&self, name: &str) -> Result<(), DetectError> {
        self.pool().await?.unload(name).await
    }

    async fn train(
        &self,
        caller: NodeId,
        model: &str,
        subject: &str,
        image: Bytes,
    ) -> Result<Option<u64>, DetectError> {
        let pool = self.pool().await?;
        self.client(&pool, caller).train(model, subject, Image::Encoded(image)).await
    }
}
