//! The other flows of `examples/flows` in memory, on one core: how many messages a second of the thread's processor time.
//!
//! ```text
//! cargo run --release -p tidegate-flow --example flows -- [KEYS] [SECONDS] [BATCH]
//! ```
//!
//! Payloads are as the flows describe them, from all keys in a random order, in the usual range; one in a thousand is far out of it.
//! Reported is the median of the rounds, and the best.

use std::env;

use tidegate_flow::{Flow, Message, Model, Models, Output, Specs};
use tidegate_message::Instant;

/// Messages that are made before the clock runs.
const MESSAGES: usize = 1 << 17;

fn main() {
    let mut arguments = env::args().skip(1).map(|text| text.parse::<f64>().expect("a number"));
    let keys = arguments.next().unwrap_or(1e4) as u32;
    let seconds = arguments.next().unwrap_or(3.0);
    let batch = arguments.next().unwrap_or(256.0) as usize;
    let models = models(keys);
    for (text, make) in FLOWS {
        let specs: Specs = toml::from_str(text).expect("the example is a flow");
        let mut spec = specs.into_flows().next().expect("the example has a flow");
        spec.keys_max = keys.next_power_of_two().max(spec.keys_max);
        let mut flow = Flow::compile(&spec, &models).expect("the example compiles");
        measure(&mut flow, &made(keys, make), seconds, batch);
    }
}

/// Each flow, and how a topic and a payload of a key are made.
const FLOWS: [(&str, Make); 4] = [
    (include_str!("../../../examples/flows/city.toml"), city),
    (include_str!("../../../examples/flows/taxi.toml"), taxi),
    (include_str!("../../../examples/flows/grid.toml"), grid),
    (include_str!("../../../examples/flows/fit.toml"), fit),
];

type Make = fn(u32, &mut Random) -> (String, String);

fn measure(flow: &mut Flow, made: &[(String, String)], seconds: f64, batch: usize) {
    let mut output = Output::new();
    let mut rates = Vec::new();
    let mut messages = Vec::with_capacity(batch);
    let mut notified = 0;
    let begin = tidegate_sys::clock::thread_cpu_nanos();
    let mut now = Instant::from_millis(1_422_748_800_000);
    // The first round makes the keys.
    for round in 0.. {
        let before = tidegate_sys::clock::thread_cpu_nanos();
        for made in made.chunks(batch) {
            messages.clear();
            messages.extend(
                made.iter().map(|(topic, payload)| Message { topic, payload: payload.as_bytes() }),
            );
            flow.run(now, &messages, &mut output);
            notified += output.emissions().len();
        }
        let after = tidegate_sys::clock::thread_cpu_nanos();
        now = now + std::time::Duration::from_secs(1);
        if round > 0 {
            rates.push(made.len() as f64 / (after - before) as f64 * 1e9);
        }
        if (after - begin) as f64 / 1e9 > seconds && rates.len() >= 5 {
            break;
        }
    }
    rates.sort_by(f64::total_cmp);
    let stats = flow.stats();
    println!(
        "{}: {:.2} M messages/s (best {:.2}) of thread CPU time; {} keys, {notified} notifications of {} messages, {} bad, {} filtered",
        flow.name(),
        rates[rates.len() / 2] / 1e6,
        rates[rates.len() - 1] / 1e6,
        stats.keys,
        stats.messages,
        stats.bad.iter().sum::<u64>(),
        stats.filtered,
    );
}

fn models(keys: u32) -> Models {
    let mut models = Models::new();
    for (name, json) in [
        ("city-airquality", include_str!("../../../examples/flows/models/city-airquality.json")),
        ("taxi-fare", include_str!("../../../examples/flows/models/taxi-fare.json")),
        ("fit-ecg", include_str!("../../../examples/flows/models/fit-ecg.json")),
    ] {
        models.insert(name, Model::parse(json.as_bytes()).expect("the example is a model"));
    }
    let sources: Vec<String> = (0..keys).map(source).collect();
    models.insert_set("city-sources", &sources.join("\n"));
    models.insert_set(
        "taxi-payments",
        include_str!("../../../examples/flows/models/taxi-payments.txt"),
    );
    models
}

/// Topics and payloads of random keys.
fn made(keys: u32, make: Make) -> Vec<(String, String)> {
    let mut random = Random(1);
    let one = |_| {
        let key = random.between(0.0, f64::from(keys)) as u32;
        make(key, &mut random)
    };
    (0..MESSAGES).map(one).collect()
}

fn source(key: u32) -> String {
    format!("ci4lr75sl{key:08x}ypo4qrcjda")
}

fn city(key: u32, random: &mut Random) -> (String, String) {
    let dust = if random.is_odd() { 4_900.0 } else { random.between(100.0, 900.0) };
    let raw = if dust > 4_000.0 { 190.0 } else { random.between(10.0, 60.0) };
    let payload = format!(
        "1422748800000,{},6.17,46.19,{:.1},{:.1},{:.0},{dust:.2},{raw:.0}",
        source(key),
        random.between(-5.0, 30.0),
        random.between(20.0, 90.0),
        random.between(0.0, 1_000.0),
    );
    (format!("city/{}/{key}/telemetry", key % 16), payload)
}

fn taxi(key: u32, random: &mut Random) -> (String, String) {
    let distance = random.between(0.5, 15.0);
    let seconds = distance * random.between(120.0, 300.0);
    let usual = 2.5 + 1.55 * distance + 0.0045 * seconds;
    let fare = if random.is_odd() { usual + 100.0 } else { usual };
    let payload = format!(
        "1358101800000,{seconds:.0},{distance:.2},-73.956528,40.716976,-73.962440,40.715008,CSH,{fare:.2},0.50,0.50,0.00,{:.2}",
        fare + 1.0
    );
    (format!("taxi/{:08X}/{key:08X}", key.wrapping_mul(2_654_435_761)), payload)
}

fn grid(key: u32, random: &mut Random) -> (String, String) {
    let used = if random.is_odd() { 30.0 } else { random.between(0.1, 3.0) };
    (format!("grid/{key}"), format!("meter-{key},1422748800000,{used:.3}"))
}

fn fit(key: u32, random: &mut Random) -> (String, String) {
    let mut payload = format!("1417890600000,subject{key}");
    let x = random.between(-12.0, -6.0);
    let first = random.between(-1.0, 1.0);
    let fault = if random.is_odd() { 3.0 } else { 0.0 };
    let second = 0.8 * first + 0.01 * x + fault;
    for value in [x, random.between(-2.0, 2.0), random.between(-2.0, 2.0)] {
        payload.push_str(&format!(",{value:.4}"));
    }
    payload.push_str(&format!(",{first:.5},{second:.5}"));
    for _ in 0..9 {
        payload.push_str(&format!(",{:.5}", random.between(-10.0, 10.0)));
    }
    payload.push_str(",0");
    (format!("fit/{key}"), payload)
}

/// Numbers that are the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1_u64 << 24) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }

    /// One in a thousand.
    fn is_odd(&mut self) -> bool {
        self.next() < 0.001
    }
}
