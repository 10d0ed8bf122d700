//! A pool that all parts of a node share, begun by the first that asks for it.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::{Pool, PoolSettings, WorkerError};

/// A pool that begins when it is first asked for, so that a node on which nothing looks at images runs no program for it.
///
/// A clone is the same pool. The programs end with the last clone and the last pool that was handed out.
#[derive(Clone, Debug)]
pub struct SharedPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: PoolSettings,
    pool: Mutex<Option<Arc<Pool>>>,
}

impl SharedPool {
    /// A pool that will be of these settings.
    pub fn new(settings: PoolSettings) -> Self {
        Self { inner: Arc::new(Inner { settings, pool: Mutex::default() }) }
    }

    /// The settings.
    pub fn settings(&self) -> &PoolSettings {
        &self.inner.settings
    }

    /// The pool, which begins now if it has not yet. Calls meanwhile wait for the same start.
    ///
    /// # Errors
    /// [`WorkerError`] if its programs do not start; the next call tries again.
    pub async fn get(&self) -> Result<Arc<Pool>, Arc<WorkerError>> {
        let mut pool = self.inner.pool.lock().await;
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let started = Arc::new(Pool::start(self.inner.settings.clone()).await?);
        Ok(Arc::clone(pool.insert(started)))
    }

    /// The pool if it has begun; `None` before, and while it begins.
    pub fn running(&self) -> Option<Arc<Pool>> {
        self.inner.pool.try_lock().ok()?.clone()
    }
}
