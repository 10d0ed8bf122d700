//! Prints how every controller fares in every case.

use tidegate_sim::compare::{HEADING, beaten, compare_case};

fn main() {
    println!("{HEADING}");
    let mut rows = Vec::new();
    for case in tidegate_sim::cases::all() {
        let new = compare_case(&case);
        new.iter().for_each(|row| println!("{row}"));
        rows.extend(new);
    }
    let beaten = beaten(&rows);
    if beaten.is_empty() {
        println!("no controller beats budget");
    }
    beaten.iter().for_each(|row| println!("beats budget: {row}"));
}
