//! When a medium changes by itself: steps, recorded rates, and fades.

use std::time::Duration;

use tidegate_message::Instant;

use super::{
    queue::earlier,
    scenario::{Fade, MediumConfig, Step},
    trace::Trace,
    unit::{Probability, Rate},
};
use crate::random::Random;

/// A change whose names have been resolved.
#[derive(Clone, Debug, Default)]
pub(super) struct Setting {
    pub(super) port: Option<usize>,
    pub(super) rate: Option<Rate>,
    pub(super) delay: Option<Duration>,
    pub(super) loss: Option<Probability>,
    pub(super) error: Option<Probability>,
    pub(super) factor: Option<f64>,
    pub(super) fade: Option<f64>,
}

/// The changes of one medium in time.
#[derive(Debug)]
pub(super) struct Schedule {
    steps: Sequence,
    rates: Sequence,
    fades: Vec<FadeState>,
}

impl Schedule {
    pub(super) fn new(config: &MediumConfig, seed: u64, stream: u64) -> Self {
        let steps = config.steps.iter().map(|step| (step.at, resolved(config, step))).collect();
        let (mut rates, mut period) = (Vec::new(), None);
        if let Some(traced) = &config.trace
            && let Trace::Rates(trace) = &traced.trace
        {
            let setting = |rate| Setting { port: traced.port, rate, ..Setting::default() };
            let changes = trace.changes.iter().map(|(at, rate)| (*at, setting(Some(*rate))));
            rates = changes.collect();
            period = Some(trace.period);
        }
        let fades = config.fade.iter().flat_map(|fade| {
            let ports = (0..config.ports.len()).map(Some);
            let targets: Vec<Option<usize>> =
                if fade.per_port { ports.collect() } else { vec![None] };
            targets.into_iter().enumerate().map(move |(index, port)| {
                let random = Random::new(seed, stream | 0x4000_0000 | index as u64);
                FadeState { fade: fade.clone(), port, random, next: None }
            })
        });
        Self {
            steps: Sequence::new(steps, config.steps_period),
            rates: Sequence::new(rates, period),
            fades: fades.collect(),
        }
    }

    pub(super) fn start(&mut self, now: Instant) {
        self.steps.lap_start = Some(now);
        self.rates.lap_start = Some(now);
        self.fades.iter_mut().for_each(|fade| fade.next = Some(now));
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        let fades = self.fades.iter().filter_map(|fade| fade.next).min();
        earlier(earlier(self.rates.next_event(), self.steps.next_event()), fades)
    }

    /// The change that comes next; there is one only if [`Schedule::next_event`] is some.
    ///
    /// On a tie recorded rates come first, so that a step at the same time prevails.
    pub(super) fn fire(&mut self) -> Setting {
        let next = self.next_event();
        if self.rates.next_event() == next {
            self.rates.fire()
        } else if self.steps.next_event() == next {
            self.steps.fire()
        } else {
            let due = self.fades.iter_mut().find(|fade| fade.next == next);
            due.expect("the next event is of one of the three").fire()
        }
    }
}

fn resolved(config: &MediumConfig, step: &Step) -> Setting {
    let change = &step.change;
    let port = change.port.as_ref();
    Setting {
        port: port.and_then(|node| config.ports.iter().position(|port| port.node == *node)),
        rate: change.rate,
        delay: change.delay,
        loss: change.loss,
        error: change.error,
        factor: change.factor,
        fade: None,
    }
}

/// Changes at set times, once or again and again.
#[derive(Debug)]
struct Sequence {
    items: Vec<(Duration, Setting)>,
    period: Option<Duration>,
    next: usize,
    lap_start: Option<Instant>,
}

impl Sequence {
    fn new(items: Vec<(Duration, Setting)>, period: Option<Duration>) -> Self {
        Self { items, period, next: 0, lap_start: None }
    }

    fn next_event(&self) -> Option<Instant> {
        Some(self.lap_start? + self.items.get(self.next)?.0)
    }

    fn fire(&mut self) -> Setting {
        let setting = self.items[self.next].1.clone();
        self.next += 1;
        if self.next == self.items.len()
            && let (Some(period), Some(start)) = (self.period, self.lap_start)
        {
            self.next = 0;
            self.lap_start = Some(start + period);
        }
        setting
    }
}

#[derive(Debug)]
struct FadeState {
    fade: Fade,
    port: Option<usize>,
    random: Random,
    next: Option<Instant>,
}

impl FadeState {
    fn fire(&mut self) -> Setting {
        let level = self.random.up_to(self.fade.levels.len() as u32 - 1);
        let dwell = self.random.exponential(self.fade.dwell.as_secs_f64());
        let dwell = Duration::from_secs_f64(dwell.clamp(0.001, 86_400.0));
        self.next = self.next.map(|at| at + dwell);
        let fade = Some(self.fade.levels[level as usize]);
        Setting { port: self.port, fade, ..Setting::default() }
    }
}
