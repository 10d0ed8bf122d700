//! A thread for uplinks.

use std::{
    io,
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_sys::sched;
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// For tasks to end that were told to: each closes its link.
const GRACE: Duration = Duration::from_secs(1);

/// A thread for tasks, which end with it, until it is dropped: encoding there holds up no alarm here, since the broker's threads, which run in
/// shorter turns, need not wait for its turn to end.
#[derive(Debug)]
pub struct UplinkThread {
    handle: Handle,
    tasks: TaskTracker,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl UplinkThread {
    /// Begins, under a name of at most 15 bytes.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(name: String) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (waits_for, stopped) = (tasks.clone(), stop.clone());
        let thread = thread::Builder::new().name(name).spawn(move || {
            if let Err(error) = sched::usual_turns() {
                tracing::debug!(%error, "an uplink's turns are as short as the broker's");
            }
            runtime.block_on(async {
                stopped.cancelled().await;
                if tokio::time::timeout(GRACE, waits_for.wait()).await.is_err() {
                    tracing::warn!("an uplink does not end, and is ended");
                }
            });
        })?;
        Ok(Self { handle, tasks, stop, thread: Some(thread) })
    }

    /// Begins a task, which ends once the token that it is given is cancelled. Gives the token.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        task: impl FnOnce(CancellationToken) -> F,
    ) -> CancellationToken {
        let stop = self.stop.child_token();
        self.tasks.spawn_on(task(stop.clone()), &self.handle);
        stop
    }
}

impl Drop for UplinkThread {
    fn drop(&mut self) {
        self.tasks.close();
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of an uplink panicked");
        }
    }
}
