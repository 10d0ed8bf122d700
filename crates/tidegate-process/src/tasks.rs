//! An owner for tasks that come and go: it waits for each, reports a panic, and ends all that are left.
//!
//! Always true: a panic in one task ends that task alone and is logged with its name; after
//! [`Tasks::finish`] no task of this owner runs.

use std::{future::Future, time::Duration};

use tokio::{sync::mpsc, task::JoinSet};

type Job = (&'static str, std::pin::Pin<Box<dyn Future<Output = ()> + Send>>);

/// Jobs that may wait for the owner to take them up; it does so at once, so this is never reached in practice.
const JOBS_MAX: usize = 1024;

/// A handle for starting tasks; cheap to clone.
#[derive(Clone, Debug)]
pub struct Tasks {
    jobs: mpsc::Sender<Job>,
}

/// The owner, run by [`Owner::run`].
#[derive(Debug)]
pub struct Owner {
    jobs: mpsc::Receiver<Job>,
}

/// A handle and the owner behind it.
pub fn tasks() -> (Tasks, Owner) {
    let (sender, receiver) = mpsc::channel(JOBS_MAX);
    (Tasks { jobs: sender }, Owner { jobs: receiver })
}

impl Tasks {
    /// Starts a task. When the owner has ended, or is that far behind, the task is dropped and that is logged.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        if self.jobs.try_send((name, Box::pin(task))).is_err() {
            tracing::warn!(name, "task not started: the node is stopping or overloaded");
        }
    }
}

impl Owner {
    /// Runs tasks until `stop` completes, then gives those that run `grace` to end, then aborts the rest.
    pub async fn run(mut self, stop: impl Future<Output = ()>, grace: Duration) {
        let mut running = JoinSet::new();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some((name, job)) = self.jobs.recv() => { running.spawn(named(name, job)); }
                Some(ended) = running.join_next() => report(ended),
            }
        }
        self.jobs.close();
        let drain = async {
            while let Some(ended) = running.join_next().await {
                report(ended);
            }
        };
        if tokio::time::timeout(grace, drain).await.is_err() {
            tracing::warn!(left = running.len(), "tasks aborted after the grace period");
        }
    }
}

async fn named(name: &'static str, job: impl Future<Output = ()>) {
    let _guard = NameOnPanic(name);
    job.await;
}

struct NameOnPanic(&'static str);

impl Drop for NameOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(task = self.0, "task panicked");
        }
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a task ended by a panic; the others continue");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_panic_ends_one_task_alone() {
        let (tasks, owner) = tasks();
        let done = Arc::new(AtomicU32::new(0));
        let (stop, stopped) = oneshot::channel::<()>();
        tasks.spawn("broken", async { panic!("on purpose") });
        let counted = done.clone();
        tasks.spawn("whole", async move {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stop.send(());
        });
        owner.run(async { _ = stopped.await }, Duration::from_secs(5)).await;
        assert_eq!(done.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_do_not_end_are_aborted() {
        let (tasks, owner) = tasks();
        tasks.spawn("endless", std::future::pending());
        owner.run(tokio::time::sleep(Duration::from_millis(1)), Duration::from_secs(1)).await;
    }
}
