//! Processes that end with the bench, also when it is interrupted.

use std::{
    process::Child,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

/// Processes that run now.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// A process that ends with its owner.
#[derive(Debug)]
pub struct Owned(pub Child);

impl Owned {
    /// Takes care of `child`.
    #[must_use]
    pub fn new(child: Child) -> Self {
        running(|list| list.push(child.id()));
        Self(child)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and need not be.
        let _ = self.0.kill();
        let _ = self.0.wait();
        let id = self.0.id();
        running(|list| list.retain(|running| *running != id));
    }
}

fn running<R>(work: impl FnOnce(&mut Vec<u32>) -> R) -> R {
    work(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// From now on a signal to stop ends all owned processes before this one, which is named `bench` in what it says, and then does
/// what else `cleanup` has to do.
///
/// # Errors
/// Signals cannot be caught.
pub fn end_on_signals(
    bench: &'static str,
    cleanup: impl FnOnce() + Send + 'static,
) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catching signals")?;
    thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        eprintln!("{bench}: stopped by signal {signal}");
        for id in running(std::mem::take) {
            if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL); // it may have ended meanwhile
            }
        }
        cleanup();
        std::process::exit(128 + signal);
    });
    Ok(())
}
