//! The status line of one camera.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tidegate_api::{Event, Frame, SubscribeRequest, Verdict};
use tidegate_message::{CameraName, Demand, WhenInfeasible, quantity};

use super::silence::{Silence, no_picture};
use crate::{cameras::rounded, program::plain};

/// Latencies that percentiles are taken over: some seconds of a camera.
const LATENCIES_MAX: usize = 256;

/// The state of one camera's subscription.
pub(super) struct Line {
    camera: CameraName,
    demand: Demand,
    latencies: VecDeque<Duration>,
    delivered: u64,
    replayed: u64,
    /// Live frames that came after the bound, or not at all.
    lost: u64,
    last: Option<Frame>,
    last_bytes: u64,
    /// No table was made for it.
    assumed: bool,
    /// Why both bounds cannot be kept, for as long as they cannot.
    infeasible: Option<String>,
    /// The most important message for an operator: a fault, or the reason of the last change.
    reason: String,
    silence: Silence,
    /// Whether it was said why no picture comes.
    is_told: bool,
}

impl Line {
    pub(super) fn new(request: &SubscribeRequest) -> Self {
        Self {
            camera: request.camera.clone(),
            demand: request.demand,
            latencies: VecDeque::with_capacity(LATENCIES_MAX),
            delivered: 0,
            replayed: 0,
            lost: 0,
            last: None,
            last_bytes: 0,
            assumed: false,
            infeasible: None,
            reason: "waiting for the first frame".to_owned(),
            silence: Silence::new(Instant::now()),
            is_told: false,
        }
    }

    pub(super) fn camera(&self) -> &CameraName {
        &self.camera
    }

    pub(super) fn failed(&mut self) {
        self.reason = "ended by a failure".to_owned();
        self.is_told = true;
    }

    pub(super) fn event(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Frame(_) | Event::Unchanged(_) => {
                if self.last.is_none() || self.is_told {
                    self.reason.clear();
                }
                self.silence.heard(now);
                self.is_told = false;
            }
            Event::CameraOffline(_) | Event::NoFrames(_) | Event::Ended(_) => self.is_told = true,
            Event::CameraOnline => {
                self.silence.begin(now);
                self.is_told = false;
            }
            _ => {}
        }
        match event {
            Event::Frame(frame) => {
                self.took(frame.replayed, frame.stages.total());
                self.last_bytes = frame.jpeg.len() as u64;
                // Without the picture, whose bytes it would keep in memory.
                self.last = Some(Frame { jpeg: Bytes::new(), ..frame.clone() });
            }
            Event::Unchanged(marker) => self.took(marker.replayed, marker.stages.total()),
            Event::Missed(missed) => {
                self.lost += missed.count.max(1);
                if self.last.is_none() {
                    self.reason = format!("frames are missed: {}", missed.why);
                }
            }
            Event::Infeasible(infeasible) => self.infeasible = Some(plain(&infeasible.sentence)),
            Event::Feasible => {
                self.infeasible = None;
                self.reason = "both bounds can be kept again".to_owned();
            }
            Event::CameraOffline(sentence) => self.reason = format!("offline: {}", plain(sentence)),
            Event::NoFrames(sentence) => self.reason = format!("no frames: {}", plain(sentence)),
            Event::CameraOnline => {
                // It says again if it has no table.
                self.assumed = false;
                self.reason = "back".to_owned();
            }
            Event::KnobsChanged(change) => self.reason = plain(&change.reason),
            Event::ControllerFailed(sentence) => self.reason = plain(sentence),
            Event::AccuracyAssumed(sentence) => {
                self.assumed = true;
                self.reason = plain(sentence);
            }
            Event::Ended(reason) => self.reason = format!("ended: {reason}"),
        }
    }

    fn took(&mut self, replayed: bool, latency: Duration) {
        if replayed {
            // Its bound counts from sending: its age says nothing of the link.
            self.replayed += 1;
            return;
        }
        if latency > self.demand.bounds.latency() {
            self.lost += 1;
        } else {
            self.delivered += 1;
        }
        if self.latencies.len() == LATENCIES_MAX {
            self.latencies.pop_front();
        }
        self.latencies.push_back(latency);
    }

    /// Why both bounds cannot be kept now, if so.
    pub(super) fn infeasible(&self) -> Option<&str> {
        self.infeasible.as_deref()
    }

    /// Seconds without a picture where it was not said why, each number once, and whether it is the first.
    pub(super) fn tell_silence(&mut self, now: Instant) -> Option<(u64, bool)> {
        if self.told().is_some() {
            return None;
        }
        self.silence.tell(now, self.interval())
    }

    #[cfg(test)]
    fn silence_began(&self) -> Instant {
        self.silence.since()
    }

    /// The reason why no picture comes, where it was said.
    fn told(&self) -> Option<&str> {
        let pauses = self.demand.when_infeasible == WhenInfeasible::Pause;
        match &self.infeasible {
            _ if self.is_told => Some(&self.reason),
            Some(sentence) if pauses => Some(sentence),
            _ => None,
        }
    }

    /// The time between two pictures that is asked for, if any.
    fn interval(&self) -> Option<Duration> {
        self.demand.frame_rate.map(|rate| rate.interval())
    }

    /// The line. That no picture comes stands first: a narrow terminal has no room for the end.
    pub(super) fn text(&self, now: Instant) -> String {
        let told = self.told();
        let mut text = format!("{}  ", self.camera);
        if let Some(reason) = told {
            text.push_str(&format!("{reason}  "));
        } else if let Some(seconds) = self.silence.seconds(now, self.interval()) {
            text.push_str(&format!("{}  ", no_picture(seconds)));
        }
        let bound = quantity::show_duration(self.demand.bounds.latency());
        text.push_str(&format!("bound {bound}  "));
        match (percentile(&self.latencies, 50), percentile(&self.latencies, 95)) {
            (Some(p50), Some(p95)) => {
                text.push_str(&format!("p50 {:.1} ms  p95 {:.1} ms  ", millis(p50), millis(p95)));
            }
            _ => text.push_str("p50 -  p95 -  "),
        }
        let live = self.delivered + self.lost;
        if live > 0 {
            let share = 100.0 * self.delivered as f64 / live as f64;
            text.push_str(&format!("delivered {share:.1} % of {live}  "));
        }
        if self.replayed > 0 {
            text.push_str(&format!("replayed {}  ", self.replayed));
        }
        if let Some(frame) = &self.last {
            let assumed = if self.assumed { " assumed" } else { "" };
            let kept = if frame.accuracy_kept { "" } else { " below its bound" };
            text.push_str(&format!(
                "{} of {}  {}  {}  accuracy {:.3}{assumed}{kept}  ",
                rounded(self.last_bytes),
                rounded(frame.original_bytes),
                frame.size,
                plain(&frame.knobs),
                frame.accuracy,
            ));
        }
        if told.is_none() {
            text.push_str(self.infeasible.as_ref().unwrap_or(&self.reason));
        }
        text.trim_end().to_owned()
    }
}

/// The smallest value that `percent` of the values do not exceed.
fn percentile(values: &VecDeque<Duration>, percent: usize) -> Option<Duration> {
    let mut sorted: Vec<Duration> = values.iter().copied().collect();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// One verdict in one line.
pub(super) fn verdict(verdict: &Verdict) -> String {
    let stages = &verdict.stages;
    let mut text = format!(
        "{} {} {}: {} of {}, {}",
        verdict.camera,
        verdict.captured_at,
        verdict.outcome,
        rounded(verdict.sent_bytes),
        rounded(verdict.original_bytes),
        plain(&verdict.knobs),
    );
    if let Some(row) = verdict.row {
        text.push_str(&format!(" (row {row})"));
    }
    text.push_str(&format!(
        ", accuracy {:.3}, capture {:.1} + encode {:.1} + queue {:.1} + network {:.1} + delivery {:.1} = {:.1} of {:.0} ms",
        verdict.accuracy,
        millis(stages.capture),
        millis(stages.encode),
        millis(stages.queue),
        millis(stages.network),
        millis(stages.delivery),
        millis(stages.total()),
        millis(verdict.bound),
    ));
    if verdict.capacity_bytes_per_second > 0 {
        text.push_str(&format!(", {}/s", rounded(verdict.capacity_bytes_per_second)));
    }
    if let Some(reason) = &verdict.reason {
        text.push_str(&format!("; {}", plain(reason)));
    }
    text
}

#[cfg(test)]
mod tests {
    use tidegate_api::{Infeasible, KnobsChanged, Missed, MissedWhy, Outcome, Stages};
    use tidegate_message::Instant;

    use super::*;

    fn line() -> Line {
        Line::new(&SubscribeRequest::new("cam1", Duration::from_millis(100), 0.95).unwrap())
    }

    fn text(line: &Line) -> String {
        line.text(line.silence_began())
    }

    fn event(line: &mut Line, event: &Event) {
        let now = line.silence_began();
        line.event(event, now);
    }

    fn frame(millis: u64, replayed: bool) -> Event {
        Event::Frame(Frame {
            captured_at: Instant::from_millis(1000),
            epoch: 1,
            size: "960x540".parse().unwrap(),
            source_size: "1920x1080".parse().ok(),
            original_bytes: 410_000,
            knobs: "1/2 q60".into(),
            accuracy: 0.9612,
            accuracy_kept: true,
            replayed,
            stages: Stages { network: Duration::from_millis(millis), ..Stages::default() },
            handed_at: Instant::from_millis(1040),
            jpeg: Bytes::from(vec![0; 61_000]),
        })
    }

    #[test]
    fn the_line_is_golden() {
        let mut line = line();
        assert_eq!(text(&line), "cam1  bound 100ms  p50 -  p95 -  waiting for the first frame");
        for millis in [40, 50, 60, 120] {
            event(&mut line, &frame(millis, false));
        }
        event(
            &mut line,
            &Event::Missed(Missed {
                from: Instant::EPOCH,
                to: Instant::EPOCH,
                count: 1,
                why: MissedWhy::Overtaken,
            }),
        );
        event(
            &mut line,
            &Event::KnobsChanged(KnobsChanged {
                captured_at: Instant::EPOCH,
                from: "original".into(),
                to: "1/2 q60".into(),
                reason: "20 Mbit/s\x1b[2J carry 64 kB in time".into(),
            }),
        );
        assert_eq!(
            text(&line),
            "cam1  bound 100ms  p50 50.0 ms  p95 120.0 ms  delivered 60.0 % of 5  61 kB of 410 kB  960x540  \
             1/2 q60  accuracy 0.961  20 Mbit/s\u{fffd}[2J carry 64 kB in time"
        );
    }

    #[test]
    fn that_bounds_cannot_be_kept_stays_on_the_line_until_they_can() {
        let mut line = line();
        let sentence = "accuracy 0.95 within 100 ms cannot be kept";
        event(
            &mut line,
            &Event::Infeasible(Infeasible {
                latency_at_accuracy: None,
                frames_per_second: None,
                accuracy_at_latency: None,
                sentence: sentence.into(),
            }),
        );
        event(
            &mut line,
            &Event::KnobsChanged(KnobsChanged {
                captured_at: Instant::EPOCH,
                from: "original".into(),
                to: "1/2 q60".into(),
                reason: "20 Mbit/s".into(),
            }),
        );
        assert!(text(&line).ends_with(sentence), "{}", text(&line));
        assert_eq!(line.infeasible(), Some(sentence));
        event(&mut line, &Event::Feasible);
        assert!(text(&line).ends_with("both bounds can be kept again"), "{}", text(&line));
        assert_eq!(line.infeasible(), None);
    }

    #[test]
    fn a_node_that_stops_sending_is_on_the_line_until_a_picture_comes() {
        let mut line = line();
        let begin = line.silence_began();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        line.event(&frame(40, false), at(0));
        assert!(!line.text(at(1400)).contains("no picture"));
        assert!(
            line.text(at(1500)).starts_with("cam1  no picture for 2 s  bound 100ms  p50 40.0 ms")
        );
        assert_eq!(line.tell_silence(at(1500)), Some((2, true)));
        assert_eq!(line.tell_silence(at(1700)), None);
        line.event(&frame(40, false), at(60_000));
        assert!(!line.text(at(60_000)).contains("no picture"));
        line.event(&Event::NoFrames("the lens is covered".into()), at(60_000));
        assert!(line.text(at(90_000)).starts_with("cam1  no frames: the lens is covered  bound"));
        assert_eq!(line.tell_silence(at(90_000)), None);
        line.event(&Event::CameraOnline, at(90_000));
        assert!(line.text(at(92_000)).starts_with("cam1  no picture for 2 s  bound"));
        line.event(&Event::NoFrames("the lens is covered".into()), at(93_000));
        line.event(&frame(40, false), at(94_000));
        assert!(!line.text(at(94_000)).contains("the lens"), "{}", line.text(at(94_000)));
    }

    #[test]
    fn an_accuracy_that_was_not_measured_is_marked() {
        let mut line = line();
        event(
            &mut line,
            &Event::AccuracyAssumed("accuracy is assumed from a default table".into()),
        );
        assert!(text(&line).ends_with("  accuracy is assumed from a default table"));
        event(&mut line, &frame(40, false));
        assert!(text(&line).ends_with("  accuracy 0.961 assumed"), "{}", text(&line));
    }

    #[test]
    fn frames_of_the_past_do_not_count_against_the_bound() {
        let mut line = line();
        event(&mut line, &frame(30_000, true));
        let text = text(&line);
        assert!(text.contains("p50 -  p95 -  replayed 1  61 kB"), "{text}");
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values =
            |range: std::ops::RangeInclusive<u64>| range.map(Duration::from_millis).collect();
        assert_eq!(percentile(&values(1..=100), 95), Some(Duration::from_millis(95)));
        assert_eq!(percentile(&values(1..=1), 50), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&VecDeque::new(), 50), None);
    }

    #[test]
    fn the_verdict_is_golden() {
        let text = verdict(&Verdict {
            camera: "cam1".parse().unwrap(),
            transfer: 1,
            captured_at: Instant::from_millis(12_250),
            outcome: Outcome::Kept,
            sent_bytes: 61_000,
            original_bytes: 410_000,
            knobs: "1/2 q60".into(),
            row: Some(14),
            accuracy: 0.962,
            accuracy_kept: true,
            stages: Stages {
                encode: Duration::from_micros(6200),
                network: Duration::from_millis(30),
                ..Stages::default()
            },
            bound: Duration::from_millis(100),
            capacity_bytes_per_second: 2_300_000,
            reason: Some("capacity fell".into()),
        });
        assert_eq!(
            text,
            "cam1 12.250000000 kept: 61 kB of 410 kB, 1/2 q60 (row 14), accuracy 0.962, capture 0.0 \
             + encode 6.2 + queue 0.0 + network 30.0 + delivery 0.0 = 36.2 of 100 ms, 2.30 MB/s; capacity fell"
        );
    }
}
