//! Prints where `mez-pi` settles on the paper's tables.

use tidegate_sim::paper::{PUBLISHED, experiment, settled_rows};

fn main() {
    println!(
        "table          published  settled on (five cameras)            p95 ms of the last 10 s"
    );
    for published in PUBLISHED {
        let case = experiment(published);
        let outcome = case.site.run();
        let end = outcome.length.saturating_sub(std::time::Duration::from_secs(10));
        let summary = outcome.summary_where(|frame| frame.captured >= end);
        let rows: Vec<String> = settled_rows(&outcome)
            .into_iter()
            .map(|row| row.map_or("moves".to_owned(), |row| row.to_string()))
            .collect();
        let p95 = summary.p95.as_secs_f64() * 1e3;
        println!("{:<14} {:<10} {:<36} {p95:.1}", published.scene, published.row, rows.join(" "));
    }
}
