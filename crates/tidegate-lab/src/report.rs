//! The result of a run of frames under bounds: the verdict, and a page that shows it.
//!
//! Fixed meanings. *Latency*: capture to the application's callback. *Delivered*: frames within the bound
//! plus explicit `unchanged` markers, over all captured; a late frame counts as lost. *Accuracy*: the F1 of
//! a detector on delivered frames, normalized by its F1 on their originals.

use std::fmt::Write;

use tidegate_sim::plot::{Mark, Plot, Series, escape};

/// One frame or marker that reached the application.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Seconds since the run began, at capture.
    pub at_s: f64,
    /// Capture to callback in milliseconds.
    pub latency_ms: f64,
    /// Bytes on the link, 0 for an `unchanged` marker.
    pub bytes: u64,
    /// Knob setting in words.
    pub setting: String,
    /// The accuracy that the table promises for that setting, 0 to 1.
    pub accuracy: f64,
    /// Whether this was an `unchanged` marker.
    pub unchanged: bool,
}

/// Accuracy as measured on a sample of delivered frames and their originals.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Normalized F1, 0 to 1; `None` if there were too few boxes for a verdict.
    pub accuracy: Option<f64>,
    /// Pairs of delivered frame and original that were looked at.
    pub pairs: usize,
    /// Boxes found in the originals.
    pub boxes: usize,
    /// The table's promise, averaged over the same frames.
    pub promised: f64,
}

/// One camera's part of a run.
#[derive(Clone, Debug)]
pub struct CameraRun {
    /// Its name.
    pub name: String,
    /// Frames captured during the run.
    pub captured: usize,
    /// The frames that reached the application, in order of capture.
    pub samples: Vec<Sample>,
    /// Whether its node was running when the run ended.
    pub alive: bool,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The run, in one line.
    pub title: String,
    /// Asked for: latency in milliseconds.
    pub latency_bound_ms: f64,
    /// Asked for: normalized F1.
    pub accuracy_bound: f64,
    /// Least part of the captured frames that must be delivered.
    pub delivered_min: f64,
    /// Each camera.
    pub cameras: Vec<CameraRun>,
    /// Capacity of the medium in Mbit/s over seconds since the run began, as a staircase.
    pub capacity: Vec<(f64, f64)>,
    /// Measured accuracy, or why it was not measured.
    pub measured: Result<Measured, String>,
    /// Whether this ran in virtual time, where there is no picture to measure: the table's promise stands then.
    pub simulated: bool,
    /// Why the medium's timing cannot be trusted, if so.
    pub invalid: Option<String>,
    /// Lines on how the run was made: versions, clip, table.
    pub notes: Vec<String>,
}

/// One line of the verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The checked quantity.
    pub what: String,
    /// The result.
    pub value: String,
    /// The target.
    pub target: String,
    /// Whether it holds.
    pub met: bool,
}

impl CameraRun {
    /// The `q` quantile (0 to 1) of the latencies in milliseconds, `None` without a sample.
    pub fn latency_quantile(&self, q: f64) -> Option<f64> {
        quantile(self.samples.iter().filter(|s| !s.unchanged).map(|s| s.latency_ms), q)
    }

    /// Frames within `bound_ms` plus unchanged markers, over all captured; 0 if nothing was captured.
    pub fn delivered(&self, bound_ms: f64) -> f64 {
        let in_time =
            self.samples.iter().filter(|s| s.unchanged || s.latency_ms <= bound_ms).count();
        in_time as f64 / self.captured.max(1) as f64
    }

    /// Mean bytes of a delivered frame, 0 if there is none.
    pub fn bytes_mean(&self) -> f64 {
        mean(self.samples.iter().filter(|s| !s.unchanged).map(|s| s.bytes as f64)).unwrap_or(0.0)
    }

    /// Mean of what the table promised, `None` without a sample.
    pub fn accuracy_mean(&self) -> Option<f64> {
        mean(self.samples.iter().map(|s| s.accuracy))
    }
}

impl Run {
    /// Every check of the verdict.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for camera in &self.cameras {
            let p95 = camera.latency_quantile(0.95);
            checks.push(Check {
                what: format!("{}: p95 latency", camera.name),
                value: p95.map_or("no frame".into(), |ms| format!("{ms:.1} ms")),
                target: format!("≤ {:.0} ms", self.latency_bound_ms),
                met: p95.is_some_and(|ms| ms <= self.latency_bound_ms),
            });
            let delivered = camera.delivered(self.latency_bound_ms);
            checks.push(Check {
                what: format!("{}: delivered in time", camera.name),
                value: format!("{:.1} %", 100.0 * delivered),
                target: format!("≥ {:.1} %", 100.0 * self.delivered_min),
                met: delivered >= self.delivered_min,
            });
            if !camera.alive {
                checks.push(Check {
                    what: format!("{}: node", camera.name),
                    value: "ended during the run".into(),
                    target: "running".into(),
                    met: false,
                });
            }
        }
        match &self.measured {
            Ok(measured) => checks.push(Check {
                what: format!("accuracy measured on {} pairs", measured.pairs),
                value: match measured.accuracy {
                    Some(f1) => format!("{f1:.3} (promised {:.3})", measured.promised),
                    None => format!("no verdict: {} boxes are too few", measured.boxes),
                },
                target: format!("≥ {:.3}", self.accuracy_bound),
                met: measured.accuracy.is_none_or(|f1| f1 >= self.accuracy_bound),
            }),
            Err(why) => checks.push(Check {
                what: "accuracy measured".into(),
                value: format!("not measured: {why}"),
                target: if self.simulated {
                    "nothing: this ran in virtual time".into()
                } else {
                    format!("≥ {:.3}", self.accuracy_bound)
                },
                met: self.simulated,
            }),
        }
        if let Some(why) = &self.invalid {
            checks.push(Check {
                what: "timing of the medium".into(),
                value: why.clone(),
                target: "trustworthy".into(),
                met: false,
            });
        }
        checks
    }

    /// Whether every check holds; a run without a camera holds none.
    pub fn met(&self) -> bool {
        !self.cameras.is_empty() && self.checks().iter().all(|check| check.met)
    }

    /// The verdict in one line.
    pub fn verdict(&self) -> String {
        let short: Vec<String> = self
            .checks()
            .into_iter()
            .filter(|check| !check.met)
            .map(|check| format!("{} is {}, asked {}", check.what, check.value, check.target))
            .collect();
        match (self.met(), short.is_empty()) {
            (true, _) => {
                let accuracy = match &self.measured {
                    Ok(Measured { accuracy: Some(f1), .. }) => {
                        format!("{:.0} % accuracy (measured {f1:.3})", 100.0 * self.accuracy_bound)
                    }
                    Ok(Measured { accuracy: None, .. }) => {
                        "the table's promise of accuracy (too few boxes for a verdict)".to_owned()
                    }
                    Err(_) => "the table's promise of accuracy (not measured)".to_owned(),
                };
                format!(
                    "VERDICT: met. {} cameras kept {:.0} ms and {accuracy}",
                    self.cameras.len(),
                    self.latency_bound_ms,
                )
            }
            (false, true) => "VERDICT: not met: no camera took part".to_owned(),
            (false, false) => format!("VERDICT: not met: {}", short.join("; ")),
        }
    }

    /// The run as one HTML page without scripts or outside references.
    pub fn to_html(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\n<style>{STYLE}</style>\
             </head><body>\n<h1>{title}</h1>\n<p class=\"{class}\">{verdict}</p>\n",
            title = escape(&self.title),
            class = if self.met() { "met" } else { "short" },
            verdict = escape(&self.verdict()),
        );
        page.push_str(&self.cameras_table());
        for plot in
            [self.latency_plot(), self.accuracy_plot(), self.size_plot(), self.capacity_plot()]
        {
            let _ = writeln!(page, "<figure>{}</figure>", plot.to_svg());
        }
        page.push_str(&self.checks_table());
        page.push_str("<h2>How it was made</h2><ul>\n");
        for note in &self.notes {
            let _ = writeln!(page, "<li>{}</li>", escape(note));
        }
        page.push_str("</ul></body></html>\n");
        page
    }

    fn cameras_table(&self) -> String {
        let mut html = String::from(
            "<table><thead><tr><th>camera</th><th>captured</th><th>delivered</th><th>p50 ms</th>\
             <th>p95 ms</th><th>p99 ms</th><th>mean KB</th><th>promised accuracy</th></tr></thead><tbody>\n",
        );
        let ms = |v: Option<f64>| v.map_or("–".into(), |ms| format!("{ms:.1}"));
        for c in &self.cameras {
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{:.1} %</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{:.0}</td><td>{}</td></tr>",
                escape(&c.name),
                c.captured,
                100.0 * c.delivered(self.latency_bound_ms),
                ms(c.latency_quantile(0.5)),
                ms(c.latency_quantile(0.95)),
                ms(c.latency_quantile(0.99)),
                c.bytes_mean() / 1e3,
                c.accuracy_mean().map_or("–".into(), |a| format!("{a:.3}")),
            );
        }
        html + "</tbody></table>\n"
    }

    fn checks_table(&self) -> String {
        let mut html = String::from(
            "<h2>Verdict, line by line</h2><table><thead><tr><th>what</th><th>value</th><th>asked</th>\
             <th></th></tr></thead><tbody>\n",
        );
        for check in self.checks() {
            let word = if check.met { "met" } else { "short" };
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{word}\">{word}</td></tr>",
                escape(&check.what),
                escape(&check.value),
                escape(&check.target)
            );
        }
        html + "</tbody></table>\n"
    }

    fn per_camera(&self, mark: Mark, y: impl Fn(&Sample) -> f64) -> Vec<Series> {
        self.cameras
            .iter()
            .map(|camera| Series {
                name: camera.name.clone(),
                mark,
                points: camera
                    .samples
                    .iter()
                    .filter(|s| !s.unchanged)
                    .map(|s| (s.at_s, y(s)))
                    .collect(),
            })
            .collect()
    }

    fn bound(&self, name: String, value: f64) -> Series {
        let ends = |run: &Self| {
            let times = || run.cameras.iter().flat_map(|c| c.samples.iter().map(|s| s.at_s));
            (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max))
        };
        let (first, last) = ends(self);
        let points = if first.is_finite() { vec![(first, value), (last, value)] } else { vec![] };
        Series { name, mark: Mark::Bound, points }
    }

    fn latency_plot(&self) -> Plot {
        let mut series = self.per_camera(Mark::Dots, |s| s.latency_ms);
        series.push(self.bound("bound".into(), self.latency_bound_ms));
        Plot {
            title: "Latency of every delivered frame against its bound".into(),
            x: "capture time (s)".into(),
            y: "capture to application (ms)".into(),
            y_log: false,
            y_range: Some((0.0, 1.2 * self.latency_bound_ms)),
            series,
        }
    }

    fn accuracy_plot(&self) -> Plot {
        let mut series = self.per_camera(Mark::Dots, |s| s.accuracy);
        series.push(self.bound("bound".into(), self.accuracy_bound));
        if let Some(accuracy) = self.measured.as_ref().ok().and_then(|m| m.accuracy) {
            series.push(self.bound("measured on the sample".into(), accuracy));
        }
        Plot {
            title: "Accuracy promised by the table against its bound".into(),
            x: "capture time (s)".into(),
            y: "normalized F1".into(),
            y_log: false,
            y_range: Some((self.accuracy_bound - 0.05, 1.0)),
            series,
        }
    }

    fn size_plot(&self) -> Plot {
        Plot {
            title: "Size of every delivered frame".into(),
            x: "capture time (s)".into(),
            y: "KB".into(),
            y_log: true,
            y_range: None,
            series: self.per_camera(Mark::Dots, |s| s.bytes as f64 / 1e3),
        }
    }

    fn capacity_plot(&self) -> Plot {
        Plot {
            title: "Capacity of the medium".into(),
            x: "time (s)".into(),
            y: "Mbit/s".into(),
            y_log: false,
            y_range: Some((0.0, 1.0)),
            series: vec![Series {
                name: "rate of the air".into(),
                mark: Mark::Steps,
                points: self.capacity.clone(),
            }],
        }
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}\
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd}figure{margin:1.2rem 0;overflow-x:auto}\
svg{width:100%;height:auto;min-width:560px}.met{color:#00613f;font-weight:600}.short{color:#a32a00;font-weight:600}";

/// The `q` quantile by nearest rank of the values that are numbers, `None` if there is none.
pub fn quantile(values: impl Iterator<Item = f64>, q: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.filter(|v| !v.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), v| (sum + v, count + 1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_s: f64, latency_ms: f64) -> Sample {
        Sample {
            at_s,
            latency_ms,
            bytes: 40_000,
            setting: "1/2 q75".into(),
            accuracy: 0.97,
            unchanged: false,
        }
    }

    fn measured(accuracy: Option<f64>) -> Measured {
        Measured { accuracy, pairs: 9, boxes: 12, promised: 0.96 }
    }

    fn run(captured: usize, latencies: &[f64]) -> Run {
        let samples = latencies.iter().enumerate().map(|(n, &l)| sample(n as f64, l)).collect();
        Run {
            title: "a run".into(),
            latency_bound_ms: 100.0,
            accuracy_bound: 0.95,
            delivered_min: 0.97,
            cameras: vec![CameraRun { name: "cam1".into(), captured, samples, alive: true }],
            capacity: vec![(0.0, 200.0), (10.0, 20.0)],
            measured: Ok(measured(Some(0.97))),
            simulated: false,
            invalid: None,
            notes: vec!["a <note>".into()],
        }
    }

    #[test]
    fn quantile_is_by_nearest_rank() {
        let values = || (1..=20).map(f64::from);
        assert_eq!(quantile(values(), 0.95), Some(19.0));
        assert_eq!(quantile(values(), 0.0), Some(1.0));
        assert_eq!(quantile([].into_iter(), 0.5), None);
    }

    #[test]
    fn late_frames_count_as_lost_and_markers_as_delivered() {
        let mut run = run(4, &[50.0, 150.0, 60.0]);
        assert_eq!(run.cameras[0].delivered(100.0), 0.5);
        run.cameras[0].samples[1].unchanged = true;
        assert_eq!(run.cameras[0].delivered(100.0), 0.75);
    }

    #[test]
    fn verdict_names_what_is_short() {
        assert!(run(20, &[50.0; 20]).met());
        let late = run(20, &[150.0; 20]);
        assert!(!late.met());
        assert!(late.verdict().contains("cam1: p95 latency is 150.0 ms, asked ≤ 100 ms"));
        let mut dead = run(20, &[50.0; 20]);
        dead.cameras[0].alive = false;
        assert!(!dead.met());
        let mut empty = run(1, &[50.0]);
        empty.cameras.clear();
        assert!(!empty.met());
    }

    #[test]
    fn too_few_boxes_give_no_verdict_on_accuracy() {
        let mut run = run(20, &[50.0; 20]);
        run.measured = Ok(measured(None));
        assert!(run.met() && run.verdict().contains("too few boxes"));
        run.measured = Ok(measured(Some(0.90)));
        assert!(!run.met());
    }

    #[test]
    fn accuracy_that_was_not_measured_is_not_met() {
        let mut run = run(20, &[50.0; 20]);
        run.measured = Err("no detector".into());
        assert!(!run.met() && run.verdict().contains("no detector"));
        run.simulated = true;
        assert!(run.met() && run.verdict().contains("not measured"));
    }

    #[test]
    fn page_is_whole_and_escaped() {
        let html = run(20, &[50.0; 20]).to_html();
        assert_eq!(html.matches("<svg").count(), 4);
        assert!(html.contains("a &lt;note&gt;") && html.contains("class=\"met\">met"));
        assert!(html.ends_with("</html>\n"));
    }
}
