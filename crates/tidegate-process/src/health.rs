//! Whether this node works, for a service manager, an orchestrator and a person.
//!
//! ```text
//!  threads and tasks ──beat──▶ Pulse ─────┐
//!  links, sources, logs ──set──▶ Condition ┼──▶ Health ──▶ /healthz, /readyz, systemd's watchdog
//! ```
//!
//! *Alive*: every loop that must come round does. A node that is not alive is to be started again. *Ready*: alive, and every
//! condition holds. A node that is not ready is to be left alone and not to be given work.
//!
//! Always true: a part that has not reported that it is ready is not; a part that is dropped no longer counts.

mod server;
mod systemd;
mod watch;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tidegate_sys::clock::monotonic_nanos;

pub use self::{
    server::{HealthError, serve},
    systemd::Manager,
    watch::{Watch, WatchError},
};

/// The parts of a node and how they are. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<Vec<Part>>>);

#[derive(Debug)]
struct Part {
    name: String,
    state: State,
}

enum State {
    Pulse { last: Weak<AtomicI64>, within: Duration, vital: bool },
    Condition(Weak<Mutex<Result<(), String>>>),
    Check(Box<Look>),
}

/// How something is; none once it is gone.
type Look = dyn Fn() -> Option<Result<(), String>> + Send;

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pulse { .. } => "Pulse",
            Self::Condition(_) => "Condition",
            Self::Check(_) => "Check",
        })
    }
}

/// A loop that must come round. Clones beat for the same loop.
#[derive(Clone, Debug)]
pub struct Pulse {
    last: Arc<AtomicI64>,
    within: Duration,
}

/// Something that must hold for the node to be ready. Clones speak of the same.
#[derive(Clone, Debug)]
pub struct Condition(Arc<Mutex<Result<(), String>>>);

/// How one part is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PartReport {
    /// Its name.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Whether the node is not alive without it; else it is not ready.
    pub vital: bool,
    /// The problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HealthReport {
    /// Whether every loop comes round.
    pub alive: bool,
    /// Whether it is alive and every condition holds.
    pub ready: bool,
    /// All parts, in the order in which they came.
    pub parts: Vec<PartReport>,
}

impl Health {
    /// A loop that beats at least once within each `within`. It counts from now on.
    pub fn pulse(&self, name: impl Into<String>, within: Duration) -> Pulse {
        self.add_pulse(name.into(), within, true)
    }

    /// Something from outside that comes at least once within each `within`, or the node is not ready.
    pub fn expected(&self, name: impl Into<String>, within: Duration) -> Pulse {
        self.add_pulse(name.into(), within, false)
    }

    fn add_pulse(&self, name: String, within: Duration, vital: bool) -> Pulse {
        let last = Arc::new(AtomicI64::new(monotonic_nanos()));
        self.add(name, State::Pulse { last: Arc::downgrade(&last), within, vital });
        Pulse { last, within }
    }

    /// Something that does not hold yet, for it has not been said.
    pub fn condition(&self, name: impl Into<String>) -> Condition {
        let state = Arc::new(Mutex::new(Err("has not begun".to_owned())));
        self.add(name.into(), State::Condition(Arc::downgrade(&state)));
        Condition(state)
    }

    /// A part that is looked at on request; none once it is gone.
    pub fn check(
        &self,
        name: impl Into<String>,
        look: impl Fn() -> Option<Result<(), String>> + Send + 'static,
    ) {
        self.add(name.into(), State::Check(Box::new(look)));
    }

    fn add(&self, name: String, state: State) {
        self.parts().push(Part { name, state });
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the node is now.
    pub fn report(&self) -> HealthReport {
        self.report_at(monotonic_nanos())
    }

    fn report_at(&self, now: i64) -> HealthReport {
        let mut parts = Vec::new();
        self.parts().retain(|part| {
            let Some((vital, state)) = part.look(now) else { return false };
            let (ok, why) = (state.is_ok(), state.err());
            parts.push(PartReport { name: part.name.clone(), ok, vital, why });
            true
        });
        let alive = parts.iter().all(|part| part.ok || !part.vital);
        HealthReport { alive, ready: parts.iter().all(|part| part.ok), parts }
    }
}

impl Part {
    /// Whether the node lives by it, and how it is; none if it is gone.
    fn look(&self, now: i64) -> Option<(bool, Result<(), String>)> {
        match &self.state {
            State::Pulse { last, within, vital } => {
                let silent = now.saturating_sub(last.upgrade()?.load(Ordering::Relaxed));
                let silent = Duration::from_nanos(silent.max(0).unsigned_abs());
                let state = if silent <= *within {
                    Ok(())
                } else {
                    let (seconds, within) = (silent.as_secs(), within.as_secs_f64());
                    Err(format!("has not come round for {seconds} s, and must each {within} s"))
                };
                Some((*vital, state))
            }
            State::Condition(state) => {
                let state = state.upgrade()?;
                let state = state.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Some((false, state))
            }
            State::Check(look) => Some((false, look()?)),
        }
    }
}

impl Pulse {
    /// Has come round.
    pub fn beat(&self) {
        self.last.store(monotonic_nanos(), Ordering::Relaxed);
    }

    /// Longest time that a loop may sleep so as to beat often enough.
    pub fn sleep_max(&self) -> Duration {
        self.within / 4
    }

    /// Beats as long as this task gets to run, for the runtime that it runs on.
    pub async fn keep(self) {
        let mut ticks = tokio::time::interval(self.sleep_max());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.beat();
        }
    }
}

impl Condition {
    /// It holds.
    pub fn holds(&self) {
        self.set(Ok(()));
    }

    /// It does not hold, for this reason.
    pub fn fails(&self, why: impl Into<String>) {
        self.set(Err(why.into()));
    }

    fn set(&self, state: Result<(), String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_alive_while_its_loops_come_round_and_ready_once_all_was_said() {
        let health = Health::default();
        assert_eq!(health.report(), HealthReport { alive: true, ready: true, parts: vec![] });
        let pulse = health.pulse("shard 0", Duration::from_secs(4));
        let link = health.condition("link");
        let report = health.report();
        assert!(report.alive && !report.ready);
        assert_eq!(report.parts[1].why.as_deref(), Some("has not begun"));
        link.holds();
        assert!(health.report().ready);
        let later = monotonic_nanos() + 4_900_000_000;
        let report = health.report_at(later);
        assert!(!report.alive && !report.ready);
        let why = report.parts[0].why.clone().unwrap();
        assert_eq!(why, "has not come round for 4 s, and must each 4 s");
        pulse.last.store(later, Ordering::Relaxed);
        assert!(health.report_at(later).alive);
        link.fails("the edge node does not answer");
        let report = health.report_at(later);
        assert!(report.alive && !report.ready);
        drop((pulse, link));
        assert_eq!(health.report().parts, []);
        let disk = Arc::new(Mutex::new(Err("is full".to_owned())));
        let looked_at = Arc::downgrade(&disk);
        health.check("disk", move || Some(looked_at.upgrade()?.lock().unwrap().clone()));
        assert!(!health.report().ready);
        *disk.lock().unwrap() = Ok(());
        assert!(health.report().ready && health.report().parts.len() == 1);
        drop(disk);
        assert_eq!(health.report().parts, []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_gets_to_run_keeps_its_pulse() {
        let health = Health::default();
        let pulse = health.pulse("runtime", Duration::from_secs(1));
        let before = pulse.last.load(Ordering::Relaxed);
        let last = pulse.last.clone();
        let keeping = tokio::spawn(pulse.keep());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(last.load(Ordering::Relaxed) > before);
        keeping.abort();
    }
}
