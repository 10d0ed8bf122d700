//! The lines of all cameras, rewritten in place on a terminal.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tidegate_api::{ApiError, Event, SubscribeRequest};

use super::line::Line;
use crate::program::{Output, unprinted};

/// Long lines are cut at the edge of the terminal while these stand around them, so that one line stays one.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

pub(super) struct Board {
    terminal: bool,
    is_json: bool,
    state: Mutex<State>,
}

struct State {
    lines: Vec<Line>,
    /// Lines on the terminal that are to be overwritten.
    shown: usize,
}

impl Board {
    /// With `output` as JSON there are no lines of cameras, and every sentence is an object.
    pub(super) fn new(requests: &[SubscribeRequest], output: Output) -> Self {
        let lines = requests.iter().map(Line::new).collect();
        let state = Mutex::new(State { lines, shown: 0 });
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

    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub(super) fn event(&self, index: usize, event: &Event) {
        self.state().lines[index].event(event);
    }

    /// Why both bounds of a camera cannot be kept now, if so.
    pub(super) fn infeasible(&self, index: usize) -> Option<String> {
        self.state().lines[index].infeasible().map(str::to_owned)
    }

    /// The camera's subscription failed; its line stays as it was and says so.
    pub(super) fn ended(&self, index: usize) {
        self.state().lines[index].failed();
    }

    /// Prints every line.
    pub(super) fn show(&self) -> Result<(), ApiError> {
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
        let lines = state.lines.iter().map(|line| line.text());
        let text = if self.terminal {
            let text = rewritten(state.shown, above, lines);
            state.shown = state.lines.len();
            text
        } else {
            lines.map(|line| line + "\n").collect()
        };
        put(&text)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Text that overwrites the last `shown` lines by `above` and `lines`.
fn rewritten(shown: usize, above: &str, lines: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    if shown > 0 {
        text.push_str(&format!("\x1b[{shown}A\r\x1b[J"));
    }
    text.push_str(above);
    text.push_str(NO_WRAP);
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(WRAP);
    text
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
        let lines = || ["a".to_owned(), "b".to_owned()].into_iter();
        assert_eq!(rewritten(0, "", lines()), "\x1b[?7la\nb\n\x1b[?7h");
        assert_eq!(rewritten(2, "said\n", lines()), "\x1b[2A\r\x1b[Jsaid\n\x1b[?7la\nb\n\x1b[?7h");
    }
}
