//! The lines of all cameras, rewritten in place on a terminal.
//!
//! Always true: a line has no more columns than the terminal, and no number in it is cut; lines that a terminal of another size has
//! moved are left as they are, and the next ones stand below them.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use terminal_size::{Height, Width};
use tidegate_api::{ApiError, Event, SubscribeRequest};

use super::{line::Line, silence::no_picture};
use crate::program::{Output, unprinted};

/// Lines that stay are printed each second: at the fourth look, which may come somewhat early.
const PRINTED_EVERY: Duration = Duration::from_millis(900);
/// Columns and rows of a terminal that does not say how many it has.
const USUAL: Size = Size { columns: 80, rows: 24 };
/// Stands where something was left out.
const MORE: &str = "…";

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    columns: usize,
    rows: usize,
}

impl Size {
    fn of_output() -> Self {
        match terminal_size::terminal_size_of(io::stdout()) {
            Some((Width(columns), Height(rows))) if columns > 0 && rows > 0 => {
                Self { columns: columns.into(), rows: rows.into() }
            }
            _ => USUAL,
        }
    }
}

pub(super) struct Board {
    terminal: bool,
    is_json: bool,
    state: Mutex<State>,
}

struct State {
    lines: Vec<Line>,
    /// Lines on the terminal that are to be overwritten.
    shown: usize,
    /// The terminal's size then.
    size: Size,
    /// Lines that stay are printed again from then on.
    due: Instant,
}

impl Board {
    /// With `output` as JSON there are no lines of cameras, and every sentence is an object.
    pub(super) fn new(requests: &[SubscribeRequest], output: Output) -> Self {
        let lines = requests.iter().map(Line::new).collect();
        let due = Instant::now() + PRINTED_EVERY;
        let state = Mutex::new(State { lines, shown: 0, size: USUAL, due });
        let is_json = output == Output::Json;
        Self { terminal: io::stdout().is_terminal() && !is_json, is_json, state }
    }

    pub(super) fn is_json(&self) -> bool {
        self.is_json
    }

    /// Prints an object in a line of its own.
    pub(super) fn object(&self, object: &serde_json::Value) -> Result<(), ApiError> {
        // One after the other, whichever camera it is of.
        let _state = self.state();
        put(&format!("{object}\n"))
    }

    pub(super) fn event(&self, index: usize, event: &Event) {
        self.state().lines[index].event(event, Instant::now());
    }

    /// Why both bounds of a camera cannot be kept now, if so.
    pub(super) fn infeasible(&self, index: usize) -> Option<String> {
        self.state().lines[index].infeasible().map(str::to_owned)
    }

    /// The camera's subscription failed; its line stays as it was and says so.
    pub(super) fn ended(&self, index: usize) {
        self.state().lines[index].failed();
    }

    /// Prints every line: on a terminal at each call; elsewhere each second, and when a camera falls silent. As JSON, it prints the
    /// cameras of which no picture comes.
    pub(super) fn show(&self) -> Result<(), ApiError> {
        if self.terminal {
            return self.draw("");
        }
        let now = Instant::now();
        let mut state = self.state();
        let told = |line: &mut Line| {
            let (seconds, is_first) = line.tell_silence(now)?;
            Some((silent(line, seconds), is_first))
        };
        let silences: Vec<_> = state.lines.iter_mut().filter_map(told).collect();
        if self.is_json {
            // Before any picture that comes meanwhile.
            return silences.iter().try_for_each(|(object, _)| put(&format!("{object}\n")));
        }
        let is_due = state.due <= now || silences.iter().any(|(_, is_first)| *is_first);
        drop(state);
        if is_due { self.show_all() } else { Ok(()) }
    }

    /// Prints every line; none as JSON.
    pub(super) fn show_all(&self) -> Result<(), ApiError> {
        if self.is_json { Ok(()) } else { self.draw("") }
    }

    /// Prints a sentence above the lines.
    pub(super) fn tell(&self, sentence: &str) -> Result<(), ApiError> {
        if self.is_json {
            self.object(&serde_json::json!({ "type": "note", "text": sentence }))
        } else if self.terminal {
            self.draw(&format!("{sentence}\n"))
        } else {
            put(&format!("{sentence}\n"))
        }
    }

    fn draw(&self, above: &str) -> Result<(), ApiError> {
        let mut state = self.state();
        let now = Instant::now();
        let lines = state.lines.iter().map(|line| line.text(now));
        if !self.terminal {
            let text = lines.map(|line| line + "\n").collect::<String>();
            state.due = now + PRINTED_EVERY;
            return put(&text);
        }
        let size = Size::of_output();
        // Some terminals break lines anew when their size changes and some cut them, so that it is not known where they are.
        let shown = if size == state.size { state.shown } else { 0 };
        let lines = fitted(lines.collect(), size);
        let text = rewritten(shown, above, &lines);
        (state.shown, state.size) = (lines.len(), size);
        put(&text)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The object that says for how long no picture of a camera has come.
fn silent(line: &Line, seconds: u64) -> serde_json::Value {
    let camera = line.camera().as_str();
    serde_json::json!({ "type": "silent", "camera": camera, "seconds": seconds, "text": no_picture(seconds) })
}

/// Text that overwrites the last `shown` lines by `above` and `lines`.
fn rewritten(shown: usize, above: &str, lines: &[String]) -> String {
    let mut text = String::new();
    if shown > 0 {
        text.push_str(&format!("\x1b[{shown}A\r\x1b[J"));
    }
    text.push_str(above);
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// The lines as a terminal of that size shows each in a row of its own, all at once.
fn fitted(mut lines: Vec<String>, size: Size) -> Vec<String> {
    // The row below the last line has the cursor.
    let rows = size.rows.saturating_sub(1).max(1);
    if lines.len() > rows {
        let left_out = lines.len() - rows + 1;
        lines.truncate(rows - 1);
        lines.push(format!("{MORE} {left_out} more cameras; a higher terminal shows them"));
    }
    lines.iter().map(|line| narrowed(line, size.columns)).collect()
}

/// As much of a line as has room: fields, which have two spaces between them, and of the last one words. A number is not parted from
/// its unit, nor its digits from each other.
fn narrowed(line: &str, columns: usize) -> String {
    // A terminal may break a line that ends at its edge.
    let columns = columns.saturating_sub(1);
    if width(line) <= columns {
        return line.to_owned();
    }
    let room = columns.saturating_sub(width(MORE) + 1);
    let mut end = 0;
    for (at, _) in line.match_indices(' ') {
        let (before, behind) = line.split_at(at);
        if width(before) > room {
            break;
        }
        let word = before.rsplit(' ').next().unwrap_or_default();
        // Behind a number may be its unit.
        if !word.starts_with(|c: char| c.is_ascii_digit()) || behind.starts_with("  ") {
            end = at;
        }
    }
    let kept = line[..end].trim_end();
    let gap = if kept.is_empty() { "" } else { " " };
    let text = format!("{kept}{gap}{MORE}");
    if width(&text) <= columns { text } else { String::new() }
}

/// Columns of a text at most: characters beyond ASCII may have two.
fn width(text: &str) -> usize {
    text.chars().map(|c| if c.is_ascii() || MORE.contains(c) { 1 } else { 2 }).sum()
}

fn put(text: &str) -> Result<(), ApiError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unprinted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_overwritten_and_sentences_stay_above() {
        let lines = ["a".to_owned(), "b".to_owned()];
        assert_eq!(rewritten(0, "", &lines), "a\nb\n");
        assert_eq!(rewritten(2, "said\n", &lines), "\x1b[2A\r\x1b[Jsaid\na\nb\n");
    }

    #[test]
    fn no_number_is_cut_at_the_edge_of_a_terminal() {
        let line = "cam1  bound 100ms  p50 50.0 ms  p95 120.0 ms  delivered 60.0 % of 5123  61 kB of 410 kB  960x540  1/2 q60  \
                    accuracy 0.961  20 Mbit/s carry 64 kB in time";
        for (columns, expected) in [
            (200, line),
            (80, "cam1  bound 100ms  p50 50.0 ms  p95 120.0 ms  delivered 60.0 % of 5123  61 kB …"),
            (74, "cam1  bound 100ms  p50 50.0 ms  p95 120.0 ms  delivered 60.0 % of 5123 …"),
            (56, "cam1  bound 100ms  p50 50.0 ms  p95 120.0 ms …"),
            (40, "cam1  bound 100ms  p50 50.0 ms  p95 …"),
            (12, "cam1 …"),
            (7, "cam1 …"),
            (4, "…"),
            (1, ""),
        ] {
            assert_eq!(narrowed(line, columns), expected, "{columns}");
        }
        let words: Vec<&str> = line.split(' ').collect();
        for columns in 0..200 {
            let text = narrowed(line, columns);
            assert!(width(&text) < columns.max(1), "{columns}: {text}");
            let kept = text.trim_end_matches(MORE).trim_end();
            assert!(line.starts_with(kept), "{columns}: {text}");
            let is_whole = kept.split(' ').zip(&words).all(|(word, whole)| word == *whole);
            assert!(is_whole || kept.is_empty(), "{columns}: {text}");
        }
        assert!(width("日本") == 4 && narrowed("日本 日本 x", 8) == "日本 …");
    }

    #[test]
    fn lines_without_a_row_are_counted() {
        let lines = |count: usize| (0..count).map(|number| format!("cam{number}")).collect();
        let size = Size { columns: 80, rows: 4 };
        assert_eq!(fitted(lines(3), size), ["cam0", "cam1", "cam2"]);
        let shown = fitted(lines(9), size);
        assert_eq!(shown[..2], ["cam0", "cam1"]);
        assert!(shown.len() == 3 && shown[2].starts_with("… 7 more cameras"), "{shown:?}");
        assert_eq!(fitted(lines(2), Size { columns: 80, rows: 1 }).len(), 1);
    }
}
