//! Prints how every controller fares in every case: `compare [SEED]…`, without seeds as the cases come.

use std::process::ExitCode;

use tidegate_sim::{
    cases,
    compare::{HEADING, beaten, compare_case},
};

fn main() -> ExitCode {
    let seeds: Result<Vec<u64>, _> = std::env::args().skip(1).map(|seed| seed.parse()).collect();
    let Ok(seeds) = seeds else {
        eprintln!("usage: compare [SEED]...; a seed is a whole number");
        return ExitCode::from(2);
    };
    if seeds.is_empty() {
        compare(None);
    }
    seeds.into_iter().for_each(|seed| compare(Some(seed)));
    ExitCode::SUCCESS
}

fn compare(seed: Option<u64>) {
    println!("{HEADING}");
    let mut rows = Vec::new();
    for case in cases::all() {
        let case = seed.map_or_else(|| case.clone(), |seed| case.with_seed(seed));
        let new = compare_case(&case);
        new.iter().for_each(|row| println!("{row}"));
        rows.extend(new);
    }
    let which = seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
    let beaten = beaten(&rows);
    if beaten.is_empty() {
        println!("no controller beats budget{which}");
    }
    beaten.iter().for_each(|row| println!("beats budget{which}: {row}"));
}
