//! The detectors that look at cameras: models of a pool of programs.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_ports::Looker;
use tidegate_workers::{PoolState, SharedPool, WorkerError};
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
    pub client: Arc<dyn Looker>,
    /// The state of its programs.
    pub state: watch::Receiver<PoolState>,
    /// The model that it was asked for by name; none: the program's first.
    pub model: Option<String>,
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
