//! Line and dot plots as SVG text, for reports that open in any browser without a script.
//!
//! Always true: a plot of no points is still a valid picture that says so; every text is escaped; colour is
//! never the only difference between two series (each has its own dash or mark, and a legend).

use std::fmt::Write;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// One small dot a point.
    Dots,
    /// Straight lines between points.
    Line,
    /// A staircase: each value holds until the next.
    Steps,
    /// A dashed horizontal or stepped bound.
    Bound,
    /// Upright bars around the points of the series before, in its colour and without a place in the legend.
    /// Points come in pairs, low end and high end.
    Interval,
}

/// Points of one kind.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// (x, y) in data units, in order of x for lines and steps. Values that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// A plot with linear x and linear or logarithmic y.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Headline.
    pub title: String,
    /// The label of x, with its unit.
    pub x: String,
    /// The label of y, with its unit.
    pub y: String,
    /// Whether y is logarithmic (base 10); points at or below zero are then left out.
    pub y_log: bool,
    /// Lowest and highest y to show whatever the data, if given.
    pub y_range: Option<(f64, f64)>,
    /// The series to draw, in order.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 66.0;
const LEGEND_LINE: f64 = 16.0;

/// Colours that most colour-blind readers can distinguish (Okabe and Ito), black last.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333"];

impl Plot {
    /// The plot as one `<svg>` element.
    pub fn to_svg(&self) -> String {
        let drawn: Vec<Series> = self.series.iter().map(|s| self.visible(s)).collect();
        let (x_range, y_range) = self.ranges(&drawn);
        let frame = Frame { x_range, y_range, y_log: self.y_log };
        let legend = legend(&drawn);
        let height = HEIGHT + LEGEND_LINE * legend.last().map_or(0.0, |place| place.line as f64);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{title}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"600\">{title}</text>\n",
            title = escape(&self.title)
        );
        self.draw_axes(&mut svg, &frame);
        if drawn.iter().all(|s| s.points.is_empty()) {
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#777\">no data</text>",
                WIDTH / 2.0,
                HEIGHT / 2.0
            );
        }
        let mut colours = COLOURS.iter().cycle();
        let mut colour = COLOURS[0];
        for series in &drawn {
            if series.mark == Mark::Interval {
                draw_intervals(&mut svg, &frame, series, colour);
                continue;
            }
            colour = colours.next().expect("a cycle has no end");
            draw_series(&mut svg, &frame, series, colour);
        }
        legend.iter().for_each(|place| draw_legend(&mut svg, place));
        svg.push_str("</svg>\n");
        svg
    }

    fn visible(&self, series: &Series) -> Series {
        let points = series
            .points
            .iter()
            .copied()
            .filter(|(x, y)| x.is_finite() && y.is_finite() && (!self.y_log || *y > 0.0))
            .collect();
        Series { points, ..series.clone() }
    }

    fn ranges(&self, drawn: &[Series]) -> ((f64, f64), (f64, f64)) {
        let points = || drawn.iter().flat_map(|s| s.points.iter().copied());
        let span = |values: &mut dyn Iterator<Item = f64>| {
            values.fold(None, |span: Option<(f64, f64)>, v| match span {
                None => Some((v, v)),
                Some((low, high)) => Some((low.min(v), high.max(v))),
            })
        };
        let (x_low, x_high) = span(&mut points().map(|p| p.0)).unwrap_or((0.0, 1.0));
        let (mut low, mut high) = span(&mut points().map(|p| p.1)).unwrap_or((0.0, 1.0));
        if let Some((at_least, at_most)) = self.y_range {
            (low, high) = (low.min(at_least), high.max(at_most));
        } else if !self.y_log {
            low = low.min(0.0);
        }
        if self.y_log {
            low = 10f64.powf(low.max(1e-9).log10().floor());
            high = 10f64.powf(high.max(low * 10.0).log10().ceil());
        }
        let wide = |low: f64, high: f64| if high > low { (low, high) } else { (low, low + 1.0) };
        (wide(x_low, x_high), wide(low, high))
    }

    fn draw_axes(&self, svg: &mut String, frame: &Frame) {
        for y in frame.y_ticks() {
            let at = frame.y(y);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e2e2e2\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                tick_text(y)
            );
        }
        for x in ticks(frame.x_range, 10) {
            let at = frame.x(x);
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\" stroke=\"#999\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
                HEIGHT - BOTTOM + 4.0,
                HEIGHT - BOTTOM + 17.0,
                tick_text(x),
                y = HEIGHT - BOTTOM,
            );
        }
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#999\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>\
             <text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT,
            HEIGHT - BOTTOM + 32.0,
            escape(&self.x),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escape(&self.y),
            y = HEIGHT - BOTTOM,
        );
    }
}

struct Frame {
    x_range: (f64, f64),
    y_range: (f64, f64),
    y_log: bool,
}

impl Frame {
    fn x(&self, x: f64) -> f64 {
        LEFT + (x - self.x_range.0) / (self.x_range.1 - self.x_range.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        let (low, high) = self.y_range;
        let part = if self.y_log {
            (y / low).log10() / (high / low).log10()
        } else {
            (y - low) / (high - low)
        };
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn y_ticks(&self) -> Vec<f64> {
        if !self.y_log {
            return ticks(self.y_range, 5);
        }
        let (low, high) = (self.y_range.0.log10().round(), self.y_range.1.log10().round());
        (low as i32..=high as i32).map(|power| 10f64.powi(power)).collect()
    }
}

/// About `wanted` round values within the range: steps of 1, 2 or 5 times a power of ten.
fn ticks((low, high): (f64, f64), wanted: usize) -> Vec<f64> {
    let rough = (high - low) / wanted as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|&s| s >= rough);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last.min(first + 100)).map(|n| n as f64 * step).collect()
}

fn tick_text(value: f64) -> String {
    let text = format!("{value:.3}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn draw_series(svg: &mut String, frame: &Frame, series: &Series, colour: &str) {
    if series.mark == Mark::Dots {
        for &(x, y) in &series.points {
            let (x, y) = (frame.x(x), frame.y(y));
            let _ =
                write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.8\" fill=\"{colour}\"/>");
        }
        svg.push('\n');
        return;
    }
    let mut path = String::new();
    let mut last_y = None;
    for &(x, y) in &series.points {
        let (x, y) = (frame.x(x), frame.y(y));
        match last_y {
            None => _ = write!(path, "M{x:.1} {y:.1}"),
            Some(last) if series.mark != Mark::Line => {
                _ = write!(path, "L{x:.1} {last:.1}L{x:.1} {y:.1}");
            }
            Some(_) => _ = write!(path, "L{x:.1} {y:.1}"),
        }
        last_y = Some(y);
    }
    let dash = if series.mark == Mark::Bound { " stroke-dasharray=\"6 4\"" } else { "" };
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dash}/>"
    );
}

fn draw_intervals(svg: &mut String, frame: &Frame, series: &Series, colour: &str) {
    for pair in series.points.chunks_exact(2) {
        let (x, low, high) = (frame.x(pair[0].0), frame.y(pair[0].1), frame.y(pair[1].1));
        let (left, right) = (x - 3.0, x + 3.0);
        let _ = write!(
            svg,
            "<path d=\"M{left:.1} {low:.1}H{right:.1}M{x:.1} {low:.1}V{high:.1}M{left:.1} {high:.1}H{right:.1}\" \
             fill=\"none\" stroke=\"{colour}\"/>"
        );
    }
    svg.push('\n');
}

/// Where a series stands in the legend.
struct Place<'a> {
    series: &'a Series,
    colour: &'static str,
    x: f64,
    line: usize,
}

/// All series that have a place in the legend, in as many lines as it takes.
fn legend(drawn: &[Series]) -> Vec<Place<'_>> {
    let (mut x, mut line) = (LEFT, 0);
    let named = drawn.iter().filter(|series| series.mark != Mark::Interval);
    let place = |(series, colour): (_, &&'static str)| {
        let series: &Series = series;
        let width = 34.0 + 6.8 * series.name.chars().count() as f64;
        if x > LEFT && x + width > WIDTH {
            (x, line) = (LEFT, line + 1);
        }
        let place = Place { series, colour, x, line };
        x += width;
        place
    };
    named.zip(COLOURS.iter().cycle()).map(place).collect()
}

fn draw_legend(svg: &mut String, place: &Place<'_>) {
    let Place { series, colour, x, line } = *place;
    let y = HEIGHT - 12.0 + LEGEND_LINE * line as f64;
    let mark = match series.mark {
        Mark::Dots => {
            format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x + 9.0,
                y - 4.0
            )
        }
        mark => {
            let dash = if mark == Mark::Bound { " stroke-dasharray=\"6 4\"" } else { "" };
            format!(
                "<line x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{y1:.1}\" y2=\"{y1:.1}\" stroke=\"{colour}\" \
                 stroke-width=\"2\"{dash}/>",
                x + 18.0,
                y1 = y - 4.0
            )
        }
    };
    let _ = writeln!(
        svg,
        "{mark}<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"#333\">{}</text>",
        x + 23.0,
        escape(&series.name)
    );
}

/// The text with the five characters that mean something in HTML and SVG replaced.
pub fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        Plot {
            title: "a < b".into(),
            x: "time (s)".into(),
            y: "latency (ms)".into(),
            y_log: false,
            y_range: None,
            series: vec![Series { name: "cam1".into(), mark: Mark::Line, points }],
        }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks((0.0, 100.0), 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks((0.9, 1.0), 5).len(), 6);
        assert_eq!([0.0, 2.5, 100.0, -0.0].map(tick_text), ["0", "2.5", "100", "0"]);
    }

    #[test]
    fn no_points_and_bad_points_still_make_a_picture() {
        assert!(plot(vec![]).to_svg().contains("no data"));
        let svg = plot(vec![(0.0, f64::NAN), (f64::INFINITY, 1.0)]).to_svg();
        assert!(svg.contains("no data") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn text_is_escaped() {
        assert!(plot(vec![(0.0, 1.0), (1.0, 2.0)]).to_svg().contains("a &lt; b"));
    }

    #[test]
    fn logarithmic_axis_spans_whole_decades() {
        let mut plot = plot(vec![(0.0, 20.0), (1.0, 300.0)]);
        plot.y_log = true;
        let svg = plot.to_svg();
        assert!(svg.contains(">10<") && svg.contains(">1000<"));
    }

    #[test]
    fn intervals_share_the_colour_and_a_long_legend_wraps() {
        let mut plot = plot(vec![(0.0, 2.0), (1.0, 3.0)]);
        let interval = vec![(0.0, 1.5), (0.0, 2.5)];
        plot.series.push(Series { name: "±".into(), mark: Mark::Interval, points: interval });
        let svg = plot.to_svg();
        assert!(!svg.contains('±') && svg.contains(&format!("viewBox=\"0 0 {WIDTH} {HEIGHT}\"")));
        assert_eq!(svg.matches(COLOURS[0]).count(), 3, "line, interval and legend");
        plot.series[0].name = "a long name of a series".repeat(5);
        plot.series.push(Series { mark: Mark::Line, ..plot.series[0].clone() });
        assert!(
            plot.to_svg().contains(&format!("viewBox=\"0 0 {WIDTH} {}\"", HEIGHT + LEGEND_LINE))
        );
    }
}
