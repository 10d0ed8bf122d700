//! A pool that all parts of a node share, begun by the first that asks for it.

use std::{collections::BTreeMap, sync::Arc};

use tidegate_message::error_chain;
use tokio::{
    sync::{Mutex, watch},
    task::{JoinHandle, spawn_blocking},
};

use crate::{
    DetectError, MODELS_MAX, Pool, PoolSettings, WorkerError,
    models::{self, ModelsError},
};

/// A pool that begins when it is first asked for, so that a node on which nothing looks at images runs no program for it. The models of
/// [`PoolSettings::models_dir`] are loaded once it has begun, one after another, while it serves already.
///
/// A clone is the same pool, and equal to it. The programs end with the last clone and the last pool that was handed out.
#[derive(Clone, Debug)]
pub struct SharedPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: PoolSettings,
    begun: Mutex<Option<Begun>>,
    models: watch::Sender<FolderState>,
}

#[derive(Debug)]
struct Begun {
    pool: Arc<Pool>,
    loading: JoinHandle<()>,
}

/// The state of the models of the folder.
#[derive(Clone, Debug, Default)]
pub struct FolderState {
    /// Whether each was tried.
    pub is_settled: bool,
    /// Those that are not loaded, and why.
    pub refused: BTreeMap<String, Arc<NotLoaded>>,
}

/// Why a model of the folder is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum NotLoaded {
    /// There is no folder.
    #[error("the pool has no folder of models; workers.models_dir names one")]
    NoFolder,
    /// No program runs that could load it.
    #[error("no detector program starts")]
    Start {
        /// Why.
        #[source]
        source: Arc<WorkerError>,
    },
    /// Its file cannot be used.
    #[error(transparent)]
    File(#[from] ModelsError),
    /// The program refuses it.
    #[error(transparent)]
    Program(#[from] DetectError),
}

impl SharedPool {
    /// A pool that will be of these settings.
    pub fn new(settings: PoolSettings) -> Self {
        let (models, _) = watch::channel(FolderState::default());
        Self { inner: Arc::new(Inner { settings, begun: Mutex::default(), models }) }
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
        let mut begun = self.inner.begun.lock().await;
        if let Some(begun) = &*begun {
            return Ok(Arc::clone(&begun.pool));
        }
        let pool = Arc::new(Pool::start(self.inner.settings.clone()).await?);
        let (load, models) = (Arc::clone(&pool), self.inner.models.clone());
        let loading = tokio::spawn(load_folder(load, self.inner.settings.clone(), models));
        *begun = Some(Begun { pool: Arc::clone(&pool), loading });
        Ok(pool)
    }

    /// The pool if it has begun; `None` before, and while it begins.
    pub fn running(&self) -> Option<Arc<Pool>> {
        self.inner.begun.try_lock().ok()?.as_ref().map(|begun| Arc::clone(&begun.pool))
    }

    /// Loads the model of that name from the folder, once it was tried; one of that name is replaced.
    ///
    /// # Errors
    /// [`NotLoaded`]; models that are loaded stay.
    pub async fn load(&self, name: &str) -> Result<(), NotLoaded> {
        let folder = self.inner.settings.models_dir.clone().ok_or(NotLoaded::NoFolder)?;
        let pool = self.get().await.map_err(|source| NotLoaded::Start { source })?;
        let of = name.to_owned();
        let path = spawn_blocking(move || models::path_of(&folder, &of)).await;
        // Only a process that ends cuts it short.
        let path = path.map_err(|_| DetectError::Closed)??;
        pool.load(name, &path).await?;
        self.inner.models.send_modify(|state| _ = state.refused.remove(name));
        Ok(())
    }

    /// The state of the models of the folder now.
    pub fn folder(&self) -> FolderState {
        self.inner.models.borrow().clone()
    }

    /// Waits until each model of the folder was tried, if the pool has begun: a name that is unknown then is no name.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn settled(&self) -> FolderState {
        if self.inner.begun.lock().await.is_none() {
            return self.folder();
        }
        let mut models = self.inner.models.subscribe();
        let state = models.wait_for(|state| state.is_settled).await;
        state.map_or_else(|_| self.folder(), |state| state.clone())
    }
}

/// Clones of one pool are equal.
impl PartialEq for SharedPool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for SharedPool {}

impl Drop for Begun {
    fn drop(&mut self) {
        // It holds the pool.
        self.loading.abort();
    }
}

/// Loads the models of the folder, one after another in the order of their names.
async fn load_folder(pool: Arc<Pool>, settings: PoolSettings, state: watch::Sender<FolderState>) {
    let refuse = |name: String, error: NotLoaded| {
        tracing::error!(model = name, error = error_chain(&error), "a model is not loaded");
        state.send_modify(|state| _ = state.refused.insert(name, Arc::new(error)));
    };
    if let Some(folder) = settings.models_dir {
        let shown = folder.display().to_string();
        let listing = spawn_blocking(move || models::list(&folder)).await;
        match listing {
            Err(error) => {
                tracing::error!(folder = shown, %error, "the folder was not read to its end");
            }
            Ok(Err(error)) => refuse(shown, error.into()),
            Ok(Ok(listing)) => {
                for error in listing.refused {
                    refuse(error.model().to_owned(), error.into());
                }
                if listing.models.len() > MODELS_MAX {
                    tracing::error!(
                        folder = shown,
                        models = listing.models.len(),
                        "more models than {MODELS_MAX}: the last by name are not loaded"
                    );
                }
                for (name, path) in listing.models.into_iter().take(MODELS_MAX) {
                    match pool.load(&name, &path).await {
                        Ok(()) => tracing::info!(model = name, "model loaded"),
                        Err(error) => refuse(name, error.into()),
                    }
                }
            }
        }
    }
    state.send_modify(|state| state.is_settled = true);
}
