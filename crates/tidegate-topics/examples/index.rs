//! Measures the index of subscriptions: `cargo run --release -p tidegate-topics --example index`.
//!
//! Four mixes of a million subscriptions, from a fixed seed: 98.5 % are exact filters, or in the
//! last mix end in `#`; 1 % have a `+` and 0.5 % end in `#`. Topics are those of random devices, so
//! that hardly any of what a match reads is in a cache; one match is timed at a time, the clock's
//! own time included. A fifth index is hostile: all filters of `a` and `+` over 14 levels, for a
//! topic that none of them matches.

use std::{hint::black_box, time::Instant};

use allocation_counter::measure;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidegate_topics::Index;

const SUBSCRIPTIONS: u64 = 1_000_000;
const SITES: u64 = 1_000;
const KINDS: [&str; 4] = ["temperature", "humidity", "door", "battery"];
const MATCHES: usize = 1_000_000;
const SEED: u64 = 1;
/// The mix in which every filter has a wildcard: none is found by its text.
const ALL_HASH: &str = "1 device a filter that ends in #, serial numbers";

fn main() {
    report("4 kinds a device, names by site", |n| {
        (n / 4 % SITES, format!("d{}", n / 4 / SITES), KINDS[(n % 4) as usize])
    });
    report("4 kinds a device, serial numbers", |n| {
        (n / 4 % SITES, serial(n / 4), KINDS[(n % 4) as usize])
    });
    report("1 kind a device, serial numbers", |n| (n % SITES, serial(n), KINDS[0]));
    report(ALL_HASH, |n| (n % SITES, serial(n), KINDS[0]));
    report_hostile();
}

fn serial(device: u64) -> String {
    format!("{:08x}", (device as u32).wrapping_mul(0x9E37_79B1))
}

fn report(name: &str, parts: impl Fn(u64) -> (u64, String, &'static str)) {
    let mut random = SmallRng::seed_from_u64(SEED);
    let filters: Vec<String> = (0..SUBSCRIPTIONS)
        .map(|n| {
            let (site, device, kind) = parts(n);
            match random.random_range(0..1_000) {
                0..5 => format!("site/{site}/device/+/{kind}"),
                5..10 => format!("site/+/device/{device}/{kind}"),
                10..13 => format!("site/{site}/device/{device}/#"),
                13..15 => format!("site/{site}/#"),
                _ if name == ALL_HASH => format!("site/{site}/device/{device}/#"),
                _ => format!("site/{site}/device/{device}/{kind}"),
            }
        })
        .collect();
    let topics: Vec<String> = (0..MATCHES)
        .map(|_| {
            let (site, device, kind) = parts(random.random_range(0..SUBSCRIPTIONS));
            format!("site/{site}/device/{device}/{kind}")
        })
        .collect();

    let mut index = Index::new();
    let mut insert_ns = Vec::with_capacity(filters.len());
    let began = Instant::now();
    let held = measure(|| {
        for (key, filter) in filters.iter().enumerate() {
            let began = Instant::now();
            index.insert(filter, key as u64, key as u64);
            insert_ns.push(began.elapsed().as_nanos() as u64);
        }
    });
    let built = began.elapsed();
    let own_bytes = index.bytes() as u64;
    let mut found = 0_u64;
    let match_ns = time(&index, topics.iter().map(String::as_str), &mut found);
    let began = Instant::now();
    for (key, filter) in filters.iter().enumerate() {
        index.remove(filter, key as u64).expect("it was inserted");
    }
    let removed = began.elapsed();

    println!("{name}: {SUBSCRIPTIONS} subscriptions, {SITES} sites, seed {SEED}");
    println!("  built in {built:.2?}, removed in {removed:.2?}");
    println!("  insert   {}", percentiles(insert_ns));
    println!(
        "  bytes    {} each allocated, {} each by its own count",
        held.bytes_current / SUBSCRIPTIONS as i64,
        own_bytes / SUBSCRIPTIONS,
    );
    println!("  match    {}", percentiles(match_ns));
    println!("  found    {:.2} for each topic", found as f64 / MATCHES as f64);
}

fn report_hostile() {
    let mut index = Index::new();
    for bits in 0..1_u64 << 14 {
        let levels = (0..14).map(|place| if bits >> place & 1 == 0 { "a/" } else { "+/" });
        index.insert(&(levels.collect::<String>() + "x"), bits, bits);
    }
    let topic = "a/".repeat(14) + "y";
    let mut found = 0;
    let match_ns = time(&index, std::iter::repeat_n(topic.as_str(), 100), &mut found);
    println!("hostile: {} filters over {{a,+}}^14, none matches", index.len());
    println!("  match    {}", percentiles(match_ns));
}

fn time<'a>(
    index: &Index<u64, u64>,
    topics: impl Iterator<Item = &'a str>,
    found: &mut u64,
) -> Vec<u64> {
    topics
        .map(|topic| {
            let began = Instant::now();
            index.matches(black_box(topic), |key, _| {
                black_box(key);
                *found += 1;
            });
            began.elapsed().as_nanos() as u64
        })
        .collect()
}

fn percentiles(mut ns: Vec<u64>) -> String {
    ns.sort_unstable();
    let at = |share: f64| ns[((ns.len() - 1) as f64 * share) as usize];
    let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
    format!("p50 {p50} ns, p99 {p99} ns, p99.9 {p999} ns, most {} ns", at(1.0))
}
