//! Threads that check passwords, for the whole process.
//!
//! ```text
//!  MQTT ─────┐                     ┌─ thread ─▶ Authenticator::authenticate ─▶ who asked
//!  API ──────┼─▶ Logins (bounded) ─┤
//!  ingest ───┘                     └─ thread
//! ```
//!
//! They are of the process and not of a listener, since what they use up is: processors, and megabytes for each check, which
//! each thread keeps for its next one. Which login is next is for [`Logins`] to say. A login that waits holds a [`Waiting`];
//! when that is dropped, because the socket is closed or the call is cancelled, the login is taken out before anything is
//! computed for it.
//!
//! Always true: as many checks run at a time as there are threads; a job that was pushed is called once, or dropped with its
//! [`Waiting`].

use std::{
    io,
    net::IpAddr,
    sync::{
        Condvar, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tidegate_auth::logins::{Logins, Ticket};
use tidegate_message::Instant;
use tidegate_process::clock;
use tidegate_sys::sched;

/// One continues while another computes; a third would take the processors from authenticated clients.
const THREADS: usize = 2;

/// The work for a login when its turn comes.
type Job = Box<dyn FnOnce(Turn) + Send>;

/// The outcome of a login that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is checked now, on this thread.
    Check,
    /// More came than can be checked; the client is asked to try again.
    Busy,
}

/// The logins that wait for a check, and the threads that check them.
pub struct Checks {
    state: Mutex<State>,
    more: Condvar,
    checked: AtomicU64,
    gave_up: AtomicU64,
    busy: AtomicU64,
}

struct State {
    logins: Logins<Job>,
    threads: usize,
}

/// A login that waits; dropped, it waits no more.
#[derive(Debug)]
pub struct Waiting(Ticket);

/// Those of this process.
pub fn checks() -> &'static Checks {
    static CHECKS: OnceLock<Checks> = OnceLock::new();
    CHECKS.get_or_init(|| Checks {
        state: Mutex::new(State { logins: Logins::default(), threads: 0 }),
        more: Condvar::new(),
        checked: AtomicU64::new(0),
        gave_up: AtomicU64::new(0),
        busy: AtomicU64::new(0),
    })
}

impl Checks {
    /// Has `job` done when the turn of a login of `user` from `address` comes, which is of no use from `until` on.
    ///
    /// # Errors
    /// The system's, if it gives no thread.
    pub fn push(
        &'static self,
        address: Option<IpAddr>,
        user: &str,
        until: Instant,
        job: impl FnOnce(Turn) + Send + 'static,
    ) -> io::Result<Waiting> {
        let mut state = self.state();
        while state.threads < THREADS {
            let name = format!("logins-{}", state.threads);
            thread::Builder::new().name(name).spawn(|| self.run())?;
            state.threads += 1;
        }
        let (ticket, gone) = state.logins.push(clock::now(), address, user, until, Box::new(job));
        drop(state);
        self.more.notify_one();
        if let Some(gone) = gone {
            self.busy.fetch_add(1, Ordering::Relaxed);
            gone(Turn::Busy);
        }
        Ok(Waiting(ticket))
    }

    /// Counts, by name: logins that wait, were were checked, disconnected before that, and were asked to try again.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("waiting", self.state().logins.len() as u64),
            ("checked", self.checked.load(Ordering::Relaxed)),
            ("gave_up", self.gave_up.load(Ordering::Relaxed)),
            ("busy", self.busy.load(Ordering::Relaxed)),
        ]
    }

    fn run(&self) {
        // Authenticated clients go first.
        if let Err(error) = sched::give_way() {
            tracing::debug!(%error, "logins compete with messages");
        }
        loop {
            let mut late = Vec::new();
            let job = {
                let mut state = self.state();
                loop {
                    let job = state.logins.pop(clock::now(), |job| late.push(job));
                    if job.is_some() || !late.is_empty() {
                        break job;
                    }
                    state = self.more.wait(state).expect("no panic while it is held");
                }
            };
            self.busy.fetch_add(late.len() as u64, Ordering::Relaxed);
            for job in late {
                job(Turn::Busy);
            }
            if let Some(job) = job {
                self.checked.fetch_add(1, Ordering::Relaxed);
                job(Turn::Check);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let checks = checks();
        let job = checks.state().logins.cancel(clock::now(), self.0);
        // Its content is dropped after the lock.
        if job.is_some() {
            checks.gave_up.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn a_login_that_is_let_go_is_not_checked_and_others_are() {
        let until = clock::now() + Duration::from_secs(60);
        let push = |name: &str, job: Box<dyn FnOnce(Turn) + Send>| {
            checks().push(Some([192, 0, 2, 77].into()), name, until, job).unwrap()
        };
        // All threads are kept busy, so that what follows waits.
        let (go, gone) = mpsc::channel::<()>();
        let gone = std::sync::Arc::new(Mutex::new(gone));
        let (began, begun) = mpsc::channel();
        let blockers: Vec<_> = (0..THREADS)
            .map(|number| {
                let (gone, began) = (gone.clone(), began.clone());
                let job = move |_| {
                    began.send(()).unwrap();
                    // Ends when the other end is dropped.
                    let _ = gone.lock().unwrap().recv();
                };
                push(&format!("blocker {number}"), Box::new(job))
            })
            .collect();
        for _ in 0..THREADS {
            begun.recv_timeout(Duration::from_secs(60)).expect("a thread takes it up");
        }
        let (told, heard) = mpsc::channel();
        let job = |name: &'static str| {
            let told = told.clone();
            Box::new(move |turn: Turn| told.send((name, turn)).unwrap())
        };
        let leaves = push("leaves", job("leaves"));
        let stays = push("stays", job("stays"));
        drop(leaves);
        drop(go);
        let turn = heard.recv_timeout(Duration::from_secs(60)).expect("it is checked");
        assert_eq!(turn, ("stays", Turn::Check));
        drop(told);
        assert!(heard.recv_timeout(Duration::from_secs(60)).is_err(), "no other login is checked");
        drop((blockers, stays));
    }
}
