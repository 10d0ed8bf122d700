//! Threads with tasks of their own, for work that comes in small pieces: a piece wakes up one thread, where a pool of workers wakes up a second
//! one to look for more.

use std::{
    io,
    num::NonZeroUsize,
    sync::{Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_sys::sched;
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// For tasks to end that were told to.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long a thread works before another one has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// As the thread that begins it: for work that others wait for.
    Short,
    /// As usual: for longer work, which holds up no thread of short turns.
    Usual,
}

/// A thread for tasks, which end with it, until it is dropped.
#[derive(Debug)]
pub struct TaskThread {
    handle: Handle,
    tasks: TaskTracker,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl TaskThread {
    /// Begins, under a name of at most 15 bytes.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(name: String, turns: Turns) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (waits_for, stopped) = (tasks.clone(), stop.clone());
        let thread = thread::Builder::new().name(name).spawn(move || {
            if turns == Turns::Usual
                && let Err(error) = sched::usual_turns()
            {
                tracing::debug!(%error, "the turns of a thread of tasks are as short as the broker's");
            }
            runtime.block_on(async {
                stopped.cancelled().await;
                let ended = async {
                    waits_for.wait().await;
                    // Those that tasks began, such as the writer of a link, which has a last word.
                    while Handle::current().metrics().num_alive_tasks() > 0 {
                        tokio::time::sleep(LOOK_EVERY).await;
                    }
                };
                if tokio::time::timeout(GRACE, ended).await.is_err() {
                    tracing::debug!("tasks that do not end are ended");
                }
            });
        })?;
        Ok(Self { handle, tasks, stop, thread: Some(thread) })
    }

    /// Begins a task, which ends once the token that it is given is cancelled. Gives the token.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        task: impl FnOnce(CancellationToken) -> F,
    ) -> CancellationToken {
        let stop = self.stop.child_token();
        self.tasks.spawn_on(task(stop.clone()), &self.handle);
        stop
    }
}

impl Drop for TaskThread {
    fn drop(&mut self) {
        self.tasks.close();
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread of tasks panicked");
        }
    }
}

/// A few such threads under one name, each of which begins with its first task.
#[derive(Debug)]
pub struct TaskThreads {
    name: &'static str,
    threads: Mutex<Vec<Option<TaskThread>>>,
}

impl TaskThreads {
    /// That many, named with at most 12 bytes.
    pub fn new(name: &'static str, count: NonZeroUsize) -> Self {
        let threads = std::iter::repeat_with(|| None).take(count.get()).collect();
        Self { name, threads: Mutex::new(threads) }
    }

    /// One for each two processors: the rest of the work of a link is done by others.
    pub fn for_links(name: &'static str) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::new(name, NonZeroUsize::new(processors / 2).unwrap_or(NonZeroUsize::MIN))
    }

    /// The runtime of one of them, always of the same for a key.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn of(&self, key: u64) -> io::Result<Handle> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let index = (key % threads.len() as u64) as usize;
        let thread = match &mut threads[index] {
            Some(thread) => thread,
            none => none.insert(TaskThread::start(format!("{}-{index}", self.name), Turns::Short)?),
        };
        Ok(thread.handle.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_one_thread_and_tasks_end_with_it() {
        let threads = TaskThreads::new("test", NonZeroUsize::new(2).expect("not zero"));
        let name_at = |key: u64| {
            let (say, said) = std::sync::mpsc::channel();
            let task = async move { say.send(thread::current().name().map(str::to_owned)) };
            drop(threads.of(key).expect("a thread").spawn(task));
            said.recv().expect("it runs").expect("it has a name")
        };
        let names = [4, 7, 4].map(name_at);
        assert_eq!(names, ["test-0", "test-1", "test-0"]);
        let (held, ends) = std::sync::mpsc::channel::<()>();
        drop(threads.of(0).expect("a thread").spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        }));
        drop(threads);
        assert_eq!(ends.recv(), Err(std::sync::mpsc::RecvError));
    }
}
