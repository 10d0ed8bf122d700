//! The port by which images are looked at: a pool of programs.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_workers::{Client, DetectError, Outcome, PoolState, Request, SharedPool, WorkerError};
use tokio::sync::watch;

/// A detector that can be started.
#[async_trait]
pub trait Detector: Send + Sync + 'static {
    /// Starts it unless it runs.
    ///
    /// # Errors
    /// Why no program starts.
    async fn start(&self) -> Result<Started, Arc<WorkerError>>;

    /// Its name in messages: that of the model, or of the program.
    fn name(&self) -> String;
}

/// A detector that runs.
pub struct Started {
    /// Looks at images, with a turn of its own.
    pub client: Arc<dyn Look>,
    /// The state of its programs.
    pub state: watch::Receiver<PoolState>,
    /// The model that it was asked for by name; none: the program's first.
    pub model: Option<String>,
}

/// Looks at images.
#[async_trait]
pub trait Look: Send + Sync + 'static {
    /// Looks at one.
    ///
    /// # Errors
    /// [`DetectError`].
    async fn look(&self, request: Request) -> Result<Outcome, DetectError>;
}

#[async_trait]
impl Look for Client {
    async fn look(&self, request: Request) -> Result<Outcome, DetectError> {
        self.detect(request).await
    }
}

/// A model of a pool.
#[derive(Clone, Debug)]
pub struct PoolDetector {
    pool: SharedPool,
    model: Option<String>,
}

impl PoolDetector {
    /// That model; none: the first that the program has.
    pub const fn new(pool: SharedPool, model: Option<String>) -> Self {
        Self { pool, model }
    }
}

#[async_trait]
impl Detector for PoolDetector {
    async fn start(&self) -> Result<Started, Arc<WorkerError>> {
        let pool = self.pool.get().await?;
        if let Some(model) = &self.model {
            // It may be one of the folder that is yet to be loaded.
            if !pool.state().model_names().any(|name| name == model) {
                self.pool.settled().await;
            }
        }
        let (client, state) = (Arc::new(pool.client()), pool.watch());
        Ok(Started { client, state, model: self.model.clone() })
    }

    fn name(&self) -> String {
        match &self.model {
            Some(model) => model.clone(),
            None => match self.pool.running() {
                // The first of its models looks, if it has names for them.
                Some(pool) => {
                    let hello = pool.hello();
                    hello.models.first().map_or(&hello.detector, |model| &model.name).clone()
                }
                None => self.pool.settings().program.name(),
            },
        }
    }
}
