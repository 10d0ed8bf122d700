//! The table that the demonstration prints while it runs: a line a second.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use super::{Board, NODES, links, stage::Stage};

/// The table, as far as it is printed.
pub(super) struct Show {
    lines: u64,
    began: Instant,
    last: (u64, u64),
    used: Duration,
}

impl Show {
    pub(super) fn new(began: Instant) -> Self {
        Self { lines: 0, began, last: (0, 0), used: Duration::ZERO }
    }

    /// Prints a line if one is due.
    pub(super) fn draw(&mut self, board: &Board, stage: &Stage<'_>) {
        let elapsed = self.began.elapsed();
        if elapsed.as_secs() <= self.lines {
            return;
        }
        if self.lines == 0 {
            let names = NODES.map(|node| node.name).join("  ");
            println!("  time  sent/s  arrived/s  links of: {names}  CPU of all");
        }
        self.lines = elapsed.as_secs();
        let now = (board.sent.load(Relaxed), board.arrived.load(Relaxed));
        let used = stage.used();
        let links = |node: usize| {
            board.sight(node).map_or("–".to_owned(), |sight| links(&sight).to_string())
        };
        let shown: Vec<String> =
            (0..NODES.len()).map(|node| format!("{:>2}", links(node))).collect();
        println!(
            "{:>5.0}s{:>8}{:>11}            {}{:>11.0}%",
            elapsed.as_secs_f64(),
            now.0 - self.last.0,
            now.1 - self.last.1,
            shown.join("  "),
            // Of a node that was killed no time is known any more.
            used.saturating_sub(self.used).as_secs_f64() * 100.0,
        );
        (self.last, self.used) = (now, used);
    }
}
