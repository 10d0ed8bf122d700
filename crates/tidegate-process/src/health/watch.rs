//! A running node under watch.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Health, HealthError, Manager, server};

/// The runtime gets to every task within this, or it hangs.
const RUNTIME_PULSE: Duration = Duration::from_secs(20);

/// Reports the health of a node to the service manager and over HTTP, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    manager: Arc<Manager>,
    _tasks: JoinSet<()>,
}

/// Why a node cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Health cannot be served.
    #[error(transparent)]
    Listen(#[from] HealthError),
    /// The service manager cannot be notified.
    #[error("NOTIFY_SOCKET is set, and cannot be used")]
    Manager(#[source] io::Error),
}

impl Watch {
    /// Begins to watch this runtime and all parts of `health`; answers on `listen`, if given, and says so once the node is to
    /// `stop`.
    ///
    /// # Errors
    /// [`WatchError`].
    pub async fn begin(
        health: &Health,
        listen: Option<SocketAddr>,
        stop: &CancellationToken,
    ) -> Result<Self, WatchError> {
        let manager = Arc::new(Manager::from_environment().map_err(WatchError::Manager)?);
        let mut tasks = JoinSet::new();
        tasks.spawn(health.pulse("runtime", RUNTIME_PULSE).keep());
        if let Some(address) = listen {
            let (address, serving) = server::serve(address, health.clone(), stop.clone()).await?;
            tracing::info!(%address, "health served");
            tasks.spawn(async move {
                if let Err(error) = serving.await {
                    tracing::error!(%error, "health is no longer served");
                }
            });
        }
        if let Some(within) = manager.watchdog() {
            tasks.spawn(keep_alive(health.clone(), manager.clone(), within));
        }
        let (stopped, told) = (stop.clone(), manager.clone());
        tasks.spawn(async move {
            stopped.cancelled().await;
            told.stopping();
        });
        Ok(Self { manager, _tasks: tasks })
    }

    /// The service manager.
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }
}

/// Tells the manager that the node is alive, as long as it is.
async fn keep_alive(health: Health, manager: Arc<Manager>, within: Duration) {
    // Half of it, as sd_watchdog_enabled(3) recommends.
    let mut ticks = tokio::time::interval(within / 2);
    let mut was_alive = true;
    loop {
        ticks.tick().await;
        let report = health.report();
        if report.alive {
            manager.alive();
        } else if was_alive {
            let parts = report.parts.iter().filter(|part| part.vital && !part.ok);
            let parts: Vec<&str> = parts.map(|part| &*part.name).collect();
            tracing::error!(
                parts = parts.join(", "),
                "not alive: the service manager will start this node again"
            );
        }
        was_alive = report.alive;
    }
}
