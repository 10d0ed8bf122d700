//! The demo's output while it runs: a table that is redrawn in place, or a line now and then in a log.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use tidegate_api::Event;
use tidegate_message::Bounds;

use super::watched::{Seen, Watched};
use crate::report::{Sample, quantile};

/// Samples that the figures on the screen are taken over.
const RECENT: usize = 50;
/// Without a terminal, a table this often.
const LOG_EVERY: u64 = 10;

pub(super) struct Screen {
    bounds: Bounds,
    reasons: Vec<String>,
    /// Frames of each camera that never came.
    missed: Vec<u64>,
    names: Vec<String>,
    terminal: bool,
    drawn_lines: usize,
}

impl Screen {
    pub(super) fn new(names: &[String], bounds: Bounds) -> Self {
        Self {
            bounds,
            reasons: vec![String::new(); names.len()],
            missed: vec![0; names.len()],
            names: names.to_vec(),
            terminal: std::io::stdout().is_terminal(),
            drawn_lines: 0,
        }
    }

    /// Counts what is missed and remembers the newest reason of each camera.
    pub(super) fn seen(&mut self, index: usize, seen: &Seen) {
        if let Seen::Event(Event::Missed(missed), _) = seen {
            self.missed[index] += missed.count.max(1);
        }
        let text = match seen {
            Seen::Event(Event::KnobsChanged(change), _) => change.reason.to_string(),
            Seen::Event(Event::Infeasible(infeasible), _) => infeasible.sentence.to_string(),
            Seen::Event(Event::CameraOffline(why), _) => format!("offline: {why}"),
            Seen::Event(Event::ControllerFailed(why) | Event::AccuracyAssumed(why), _) => {
                why.to_string()
            }
            Seen::Failed(error) => error.chain(),
            Seen::Event(..) => return,
        };
        if !text.is_empty() {
            self.reasons[index] = text;
        }
    }

    pub(super) fn draw(&mut self, elapsed: Duration, watched: &[Watched]) {
        let seconds = elapsed.as_secs();
        if !self.terminal && !seconds.is_multiple_of(LOG_EVERY) {
            return;
        }
        let mut text = format!(
            "{seconds:>3} s  bound {:.0} ms, accuracy {:.2}\n{:<8}{:>8}{:>8}{:>11}{:>9}  {:<22}{:>9}  {}\n",
            self.bounds.latency().as_secs_f64() * 1e3,
            self.bounds.accuracy(),
            "camera",
            "p50 ms",
            "p95 ms",
            "delivered",
            "KB",
            "knobs",
            "accuracy",
            "why"
        );
        for (index, camera) in watched.iter().enumerate() {
            text.push_str(&self.line(index, &camera.samples));
        }
        let mut out = std::io::stdout().lock();
        if self.terminal && self.drawn_lines > 0 {
            // Up to where the table began, then clear to the end of the screen.
            let _ = write!(out, "\x1b[{}A\x1b[J", self.drawn_lines);
        }
        self.drawn_lines = text.lines().count();
        // A reader that has gone is no reason to end the run: the report still tells.
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
    }

    fn line(&self, index: usize, samples: &[Sample]) -> String {
        let recent = &samples[samples.len().saturating_sub(RECENT)..];
        let latencies = || recent.iter().filter(|s| !s.unchanged).map(|s| s.latency_ms);
        let ms = |q| quantile(latencies(), q).map_or("–".to_owned(), |ms| format!("{ms:.1}"));
        let bound_ms = self.bounds.latency().as_secs_f64() * 1e3;
        let in_time = samples.iter().filter(|s| s.unchanged || s.latency_ms <= bound_ms).count();
        let all = samples.len() as u64 + self.missed[index];
        let last = recent.iter().rev().find(|s| !s.unchanged);
        let why: String =
            self.reasons[index].chars().take(if self.terminal { 60 } else { 160 }).collect();
        format!(
            "{:<8}{:>8}{:>8}{:>11}{:>9}  {:<22}{:>9}  {}\n",
            self.names[index],
            ms(0.5),
            ms(0.95),
            format!("{in_time}/{all}"),
            last.map_or("–".to_owned(), |s| format!("{:.1}", s.bytes as f64 / 1e3)),
            last.map_or("–", |s| s.setting.as_str()),
            last.map_or("–".to_owned(), |s| format!("{:.3}", s.accuracy)),
            why,
        )
    }

    pub(super) fn end(&mut self) {
        self.drawn_lines = 0;
    }
}

/// Shows how far a step has come, on a terminal only.
pub(super) fn progress(what: &str, done: usize, of: usize) {
    if std::io::stdout().is_terminal() {
        let end = if done == of { "\n" } else { "" };
        print!("\r{what}: {done} of {of}{end}");
        let _ = std::io::stdout().flush();
    }
}
