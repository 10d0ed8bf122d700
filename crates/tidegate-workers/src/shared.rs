//! A pool that all parts of a node share, begun by the first that asks for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate_message::error_chain;
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
};

use tidegate_ports::DetectError;

use crate::{
    MODELS_MAX, Pool, PoolSettings, WorkerError,
    models::{self, ModelsError},
};

/// A pool that begins when it is first asked for, so that a node on which nothing looks at images runs no program for it. The models of
/// [`PoolSettings::models_dir`] are loaded once it has begun, one after another, while it serves already.
///
/// A pool that has ended is replaced when it is next asked for.
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
    /// Why the start before the one that is on its way failed.
    failed: Mutex<Option<Arc<WorkerError>>>,
}

/// A pool from its start on. The start belongs to a task and not to a call: a call that is dropped ends no program, and all calls that wait
/// have one outcome.
#[derive(Debug)]
struct Begun {
    outcome: watch::Receiver<Option<Outcome>>,
    models: watch::Sender<FolderState>,
    /// Starts it, then loads the models of the folder.
    task: JoinHandle<()>,
}

type Outcome = Result<Arc<Pool>, Arc<WorkerError>>;

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
        let inner = Inner { settings, begun: Mutex::default(), failed: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// The settings.
    pub fn settings(&self) -> &PoolSettings {
        &self.inner.settings
    }

    /// The pool, which begins now if it has not yet, or has ended. Calls meanwhile wait for the same start, and have its outcome.
    ///
    /// # Errors
    /// [`WorkerError`] if its programs do not start; a call after that tries again.
    ///
    /// # Cancel safety
    /// Cancel safe: the start is continued without the call.
    pub async fn get(&self) -> Result<Arc<Pool>, Arc<WorkerError>> {
        let mut outcome = self.begin();
        let outcome = outcome.wait_for(Option::is_some).await;
        let outcome = outcome.expect("a start ends with an outcome, unless it panics");
        outcome.clone().expect("it was waited for")
    }

    /// The pool if it has begun; `None` before, while it begins, and once it has ended.
    pub fn running(&self) -> Option<Arc<Pool>> {
        self.with_begun(|begun| match &*begun.as_ref()?.outcome.borrow() {
            Some(Ok(pool)) if !pool.is_closed() => Some(Arc::clone(pool)),
            _ => None,
        })
    }

    /// The start that is on its way, or has led to a pool that runs; if there is none, one begins.
    pub(crate) fn begin(&self) -> watch::Receiver<Option<Outcome>> {
        self.with_begun(|begun| match begun {
            Some(begun) if begun.is_of_use() => begun.outcome.clone(),
            _ => {
                let failed = begun.as_ref().and_then(|begun| begun.outcome.borrow().clone()?.err());
                *self.failed() = failed;
                begun.insert(Begun::new(self.inner.settings.clone())).outcome.clone()
            }
        })
    }

    fn failed(&self) -> MutexGuard<'_, Option<Arc<WorkerError>>> {
        self.inner.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing can be looked at, for people: its programs do not start, or none of them is ready since the last ended. None as long as
    /// nothing was asked for.
    pub fn trouble(&self) -> Option<String> {
        let why = |error: &Arc<WorkerError>| tidegate_message::error_chain(&**error);
        let outcome = self.with_begun(|begun| begun.as_ref().map(|it| it.outcome.borrow().clone()));
        match outcome? {
            Some(Err(error)) => Some(why(&error)),
            None => self.failed().as_ref().map(why),
            Some(Ok(pool)) if pool.is_closed() => Some("its programs have ended".to_owned()),
            Some(Ok(pool)) => {
                let state = pool.state();
                state.last_error.as_ref().filter(|_| state.ready == 0).map(why)
            }
        }
    }

    fn with_begun<T>(&self, look: impl FnOnce(&mut Option<Begun>) -> T) -> T {
        look(&mut self.inner.begun.lock().unwrap_or_else(PoisonError::into_inner))
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
        self.with_begun(|begun| {
            if let Some(begun) = begun {
                begun.models.send_modify(|state| _ = state.refused.remove(name));
            }
        });
        Ok(())
    }

    /// The state of the models of the folder now.
    pub fn folder(&self) -> FolderState {
        self.with_begun(|begun| {
            begun.as_ref().map_or_else(FolderState::default, |begun| begun.models.borrow().clone())
        })
    }

    /// Waits until each model of the folder was tried, if the pool has begun: a name that is unknown then is no name.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn settled(&self) -> FolderState {
        let begun = self.with_begun(|begun| {
            begun.as_ref().map(|begun| (begun.outcome.clone(), begun.models.subscribe()))
        });
        let Some((mut outcome, mut models)) = begun else { return FolderState::default() };
        let has_begun =
            matches!(outcome.wait_for(Option::is_some).await.as_deref(), Ok(Some(Ok(_))));
        if !has_begun {
            return self.folder();
        }
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

impl Begun {
    fn new(settings: PoolSettings) -> Self {
        let (outcome, received) = watch::channel(None);
        let (models, _) = watch::channel(FolderState::default());
        let state = models.clone();
        let task = tokio::spawn(async move {
            let started = Pool::start(settings.clone()).await.map(Arc::new);
            // It is also there for a call that comes later.
            outcome.send_replace(Some(started.clone()));
            if let Ok(pool) = started {
                load_folder(pool, settings, state).await;
            }
        });
        Self { outcome: received, models, task }
    }

    /// Whether a call may wait for it, or has its pool.
    fn is_of_use(&self) -> bool {
        match &*self.outcome.borrow() {
            Some(Ok(pool)) => !pool.is_closed(),
            Some(Err(_)) => false,
            // A task that panicked leaves nothing to wait for.
            None => !self.task.is_finished(),
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // It starts the pool, or holds it.
        self.task.abort();
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
