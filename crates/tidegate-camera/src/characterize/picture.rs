//! A table as a picture: size (logarithmic) against accuracy, with the front drawn and labelled.

use std::fmt::Write;

use tidegate_frame::table::{Row, Table};

use super::Truth;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 930.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 480.0;

/// Least height between two labels, in pixels.
const LABEL_GAP: f64 = 14.0;

/// Where values lie on the picture.
struct Scale {
    bytes: (f64, f64),
    accuracy: (f64, f64),
}

impl Scale {
    fn of(table: &Table) -> Self {
        let fold = |pick: fn(f64, f64) -> f64, start: f64, value: fn(&Row) -> f64| {
            table.rows.iter().map(value).fold(start, pick)
        };
        let low = fold(f64::min, table.original_bytes, |row| row.bytes);
        let high = fold(f64::max, table.original_bytes, |row| row.bytes);
        let worst = fold(f64::min, 0.9, |row| row.accuracy);
        let best = fold(f64::max, 1.0, |row| row.accuracy);
        let floor = ((worst - 0.02) * 20.0).floor() / 20.0;
        Self { bytes: (low * 0.85, high * 1.25), accuracy: (floor.max(0.0), best + 0.02) }
    }

    fn x(&self, bytes: f64) -> f64 {
        let (low, high) = (self.bytes.0.ln(), self.bytes.1.ln());
        LEFT + (bytes.ln() - low) / (high - low) * (RIGHT - LEFT)
    }

    fn y(&self, accuracy: f64) -> f64 {
        let (low, high) = self.accuracy;
        BOTTOM - (accuracy - low) / (high - low) * (BOTTOM - TOP)
    }
}

/// The picture as SVG.
pub(super) fn draw(table: &Table, truth: Truth) -> String {
    let scale = Scale::of(table);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let key = &table.key;
    let title = format!("{} on {} frames, scene {}", key.detector, key.source, key.scene);
    text(&mut svg, LEFT, 26.0, "start", "font-size=\"17\" font-weight=\"600\"", &title);
    let subtitle = format!(
        "profile {}, detector input {}, originals {}",
        key.profile,
        key.detector_input,
        size(table.original_bytes)
    );
    text(&mut svg, LEFT, 45.0, "start", "fill=\"#555\"", &subtitle);
    axes(&mut svg, &scale);
    if let Some(control) = &table.control {
        let y = scale.y(control.accuracy);
        line(&mut svg, [LEFT, y], [RIGHT, y], "stroke=\"#999\" stroke-dasharray=\"2 4\"");
        let label = format!("control ({}) {:.3}", control.setting, control.accuracy);
        text(&mut svg, LEFT + 6.0, y - 4.0, "start", "fill=\"#777\" font-size=\"11\"", &label);
    }
    points(&mut svg, table, &scale);
    text(
        &mut svg,
        LEFT,
        HEIGHT - 14.0,
        "start",
        "fill=\"#555\" font-size=\"11\"",
        truth.sentence(),
    );
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String, scale: &Scale) {
    let ticks = [1.0, 2.0, 5.0];
    let decades = (0..8).flat_map(|power| ticks.map(|tick| tick * 10f64.powi(power)));
    for bytes in decades.filter(|bytes| (scale.bytes.0..scale.bytes.1).contains(bytes)) {
        let x = scale.x(bytes);
        line(svg, [x, TOP], [x, BOTTOM], "stroke=\"#e6e6e6\"");
        text(svg, x, BOTTOM + 18.0, "middle", "fill=\"#333\"", &size(bytes));
    }
    let (low, high) = scale.accuracy;
    let step = if high - low > 0.5 { 0.1 } else { 0.05 };
    let first = (low / step).ceil() as u32;
    for accuracy in (first..).map(|tick| f64::from(tick) * step).take_while(|a| *a <= high) {
        let y = scale.y(accuracy);
        line(svg, [LEFT, y], [RIGHT, y], "stroke=\"#e6e6e6\"");
        text(svg, LEFT - 8.0, y + 4.0, "end", "fill=\"#333\"", &format!("{accuracy:.2}"));
    }
    line(svg, [LEFT, TOP], [LEFT, BOTTOM], "stroke=\"#333\"");
    line(svg, [LEFT, BOTTOM], [RIGHT, BOTTOM], "stroke=\"#333\"");
    let middle = f64::midpoint(LEFT, RIGHT);
    text(svg, middle, BOTTOM + 38.0, "middle", "", "mean size of a sent frame (logarithmic)");
    let (x, y) = (20.0, f64::midpoint(TOP, BOTTOM));
    text(svg, x, y, "middle", &format!("transform=\"rotate(-90 {x} {y})\""), "normalized F1");
}

fn points(svg: &mut String, table: &Table, scale: &Scale) {
    let front = table.front();
    let place = |row: &Row| [scale.x(row.bytes), scale.y(row.accuracy)];
    for row in &table.rows {
        let [x, y] = place(row);
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"#b9b9b9\"><title>{}</title></circle>",
            escape(&describe(row))
        );
    }
    let path: Vec<String> =
        front.iter().map(|row| place(row)).map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    // Below and right of its point, a label lies on the front's empty side; one that would touch the last steps down.
    let mut taken: Vec<[f64; 3]> = Vec::new();
    for row in front.iter().rev() {
        let [x, y] = place(row);
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"#0072b2\"><title>{}</title></circle>",
            escape(&describe(row))
        );
        let label = row.setting.to_string();
        let wide = 7.0 * label.chars().count() as f64;
        let (anchor, start) =
            if x + wide + 10.0 > RIGHT { ("end", x - wide) } else { ("start", x + 8.0) };
        let mut down = y + 16.0;
        while taken.iter().any(|[from, to, at]| {
            start < *to && *from < start + wide && (down - at).abs() < LABEL_GAP
        }) {
            down += LABEL_GAP;
        }
        taken.push([start, start + wide, down]);
        if down > y + 20.0 {
            line(svg, [x, y], [start, down - 4.0], "stroke=\"#0072b2\" stroke-width=\"0.6\"");
        }
        let label_x = if anchor == "end" { x } else { x + 8.0 };
        text(svg, label_x, down, anchor, "fill=\"#004a75\" font-size=\"11\"", &label);
    }
}

fn describe(row: &Row) -> String {
    format!("{}: {}, normalized F1 {:.3}", row.setting, size(row.bytes), row.accuracy)
}

fn size(bytes: f64) -> String {
    match bytes {
        b if b >= 1e6 => format!("{} MB", (b / 1e5).round() / 10.0),
        b if b >= 1e4 => format!("{:.0} KB", b / 1e3),
        b if b >= 1e3 => format!("{} KB", (b / 1e2).round() / 10.0),
        b => format!("{b:.0} B"),
    }
}

fn line(svg: &mut String, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], style: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, style: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{words}</text>"
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
