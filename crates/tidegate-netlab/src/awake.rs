//! Processors that never rest while a lab runs.
//!
//! A processor of a virtual machine that has nothing to do is given back to the host, and is had again when
//! the host finds time: timers and packets then come milliseconds late, at every node of the lab, however idle the
//! machine is. One thread a processor that only spins, at a priority below every other, holds it.
//!
//! Measured on two virtual processors with 1 ms sleeps: 99th percentile of lateness 1.8 to 4.8 ms and up to 33 ms without,
//! 0.1 ms and up to 2.2 ms with them.

use std::{
    hint, io,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use tidegate_sys::sched;

/// Holds every processor until it is dropped.
#[derive(Debug)]
pub(crate) struct Awake {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Starts a thread for each processor of this one. Where the kernel does not say which there are, or refuses their
    /// priority, there are none: they would stand in the way. Nor where a quota grants less than all processors: they would
    /// use it up.
    pub(crate) fn start() -> io::Result<Self> {
        let mut awake = Self { over: Arc::default(), threads: Vec::new() };
        let processors = sched::processors().unwrap_or_default();
        let granted = thread::available_parallelism().map_or(0, NonZero::get);
        if granted < processors.len() {
            return Ok(awake);
        }
        for processor in processors {
            let over = Arc::clone(&awake.over);
            let thread = thread::Builder::new().name(format!("awake-{processor}"));
            awake.threads.push(thread.spawn(move || {
                if sched::background(processor).is_err() {
                    return;
                }
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..100 {
                        hint::spin_loop();
                    }
                }
            })?);
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic, and has nothing to say.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_processor_is_held_and_then_let_go() {
        // No other test of this program starts any.
        let held = || {
            let tasks = std::fs::read_dir("/proc/self/task").expect("proc is mounted");
            let names = tasks
                .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.starts_with("awake-")).count()
        };
        let processors = sched::processors().expect("the kernel says").len();
        let awake = Awake::start().expect("threads start");
        if awake.threads.is_empty() {
            println!("skipped: a quota grants less than all processors");
            return;
        }
        while held() < processors {
            thread::yield_now(); // a thread names itself when it first runs
        }
        drop(awake);
        // A thread is joined when it has let go of its memory, and leaves the list a moment later.
        let until = Instant::now() + Duration::from_secs(10);
        while held() > 0 {
            assert!(Instant::now() < until, "{} threads still spin", held());
            thread::yield_now();
        }
    }
}
