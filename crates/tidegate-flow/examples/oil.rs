//! The oil-anomaly flow in memory, on one core: how many messages a second of the thread's processor time.
//!
//! ```text
//! cargo run --release -p tidegate-flow --example oil -- [SENSORS] [SECONDS] [BATCH]
//! ```
//!
//! Messages have 64 bytes: the sensor as 4 bytes, little-endian, its oil temperature as 6 ASCII characters at byte 8, and filling.
//! They come from all sensors in a random order. Each is parsed, held against a range, filtered (Kalman), averaged, and compared with
//! its sensor's average; one that is 15 degrees above publishes a notification, as one in ten thousand does. Counted is all from the
//! bytes on, the making of batches included. Reported is the median of the rounds, and the best.

use std::env;

use tidegate_flow::{Flow, Message, Models, Output, Specs};
use tidegate_message::Instant;

const MESSAGE_BYTES: usize = 64;
/// Messages that are made before the clock runs: more than fit the caches.
const MESSAGES: usize = 1 << 21;

fn main() {
    let mut arguments = env::args().skip(1).map(|text| text.parse::<f64>().expect("a number"));
    let sensors = arguments.next().unwrap_or(1e6) as u32;
    let seconds = arguments.next().unwrap_or(5.0);
    let batch = arguments.next().unwrap_or(256.0) as usize;

    let text = include_str!("../../../examples/flows/oil.toml");
    let specs: Specs = toml::from_str(text).expect("the example is a flow");
    let mut spec = specs.into_flows().next().expect("the example has a flow");
    spec.keys_max = sensors.next_power_of_two().max(1024);
    let mut flow = Flow::compile(&spec, &Models::new()).expect("the example compiles");

    let bytes = payloads(sensors);
    let mut output = Output::new();
    let mut rates = Vec::new();
    let mut messages = Vec::with_capacity(batch);
    let mut notified = 0;
    let begin = tidegate_sys::clock::thread_cpu_nanos();
    let mut now = Instant::from_millis(1_700_000_000_000);
    // The first round makes the keys.
    for round in 0.. {
        let before = tidegate_sys::clock::thread_cpu_nanos();
        for payloads in bytes.chunks(batch * MESSAGE_BYTES) {
            let payloads = payloads.chunks_exact(MESSAGE_BYTES);
            messages.clear();
            messages.extend(payloads.map(|payload| Message { topic: "vehicle/oil", payload }));
            flow.run(now, &messages, &mut output);
            notified += output.emissions().len();
        }
        let after = tidegate_sys::clock::thread_cpu_nanos();
        now = now + std::time::Duration::from_secs(1);
        if round > 0 {
            rates.push(MESSAGES as f64 / (after - before) as f64 * 1e9);
        }
        if (after - begin) as f64 / 1e9 > seconds && rates.len() >= 5 {
            break;
        }
    }
    rates.sort_by(f64::total_cmp);
    let stats = flow.stats();
    println!(
        "{sensors} sensors, batches of {batch}: {:.1} M messages/s (best {:.1}) of thread CPU time, {} rounds of {}",
        rates[rates.len() / 2] / 1e6,
        rates[rates.len() - 1] / 1e6,
        rates.len(),
        MESSAGES,
    );
    println!(
        "{} keys, {notified} notifications of {} messages, {} bad, {} filtered",
        stats.keys,
        stats.messages,
        stats.bad.iter().sum::<u64>(),
        stats.filtered,
    );
}

/// Payloads of random sensors, each with a temperature of its own around which it varies.
fn payloads(sensors: u32) -> Vec<u8> {
    let mut state = 1_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut bytes = vec![b' '; MESSAGES * MESSAGE_BYTES];
    for payload in bytes.chunks_exact_mut(MESSAGE_BYTES) {
        let sensor = (random() % u64::from(sensors)) as u32;
        let usual = 90.0 + f64::from(sensor.wrapping_mul(2_654_435_761) >> 24) / 10.0;
        let noise = random() as f64 / f64::from(1_u32 << 31) * 4.0 - 2.0;
        let fault = if random() % 10_000 == 0 { 40.0 } else { 0.0 };
        payload[..4].copy_from_slice(&sensor.to_le_bytes());
        payload[8..14].copy_from_slice(format!("{:6.2}", usual + noise + fault).as_bytes());
    }
    bytes
}
