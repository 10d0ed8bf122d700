//! Each large message of a trace, on its own, through a schedule.

use std::time::Duration;

use tidegate_message::Instant;
use tidegate_schedule::{Backlog, Class, LinkState, Next, Policy, Schedule, Waiting};

use super::{
    MESSAGE_BYTES, MESSAGE_PERIOD, Reading, Sample, Starvation,
    trace::{Trace, UNITS},
};

/// Bytes of the small messages that our policy sees.
const SMALL_BYTES: u64 = 100;

/// Units in which a large message comes.
fn arrivals() -> impl Iterator<Item = usize> {
    (MESSAGE_PERIOD..UNITS).step_by(MESSAGE_PERIOD)
}

/// Latency of each large message in seconds, the time withheld included.
pub(super) fn latencies(trace: &Trace, policy: &Policy, reading: Reading) -> Vec<f64> {
    match policy {
        Policy::None => arrivals().map(|unit| trace.latency_s(unit)).collect(),
        Policy::Deadline(_) => by_kernel(trace, policy, reading),
        Policy::Conservative(_) | Policy::Probabilistic(_) | Policy::Historic(_) => {
            arrivals().map(|unit| by_query(trace, policy, reading, unit)).collect()
        }
    }
}

/// Latencies with the whole trace known: each unit is tried that could still be better.
pub(super) fn clairvoyant(trace: &Trace) -> Vec<f64> {
    let best = |unit: usize| {
        let at_once = trace.latency_s(unit);
        let later = |waited: usize| waited as f64 + trace.latency_s(unit + waited);
        (1..=at_once as usize).map(later).fold(at_once, f64::min)
    };
    arrivals().map(best).collect()
}

/// A message that comes in `arrival`. Queries go at the multiples of `T_Q`, and are answered at once with
/// what the reading says.
fn by_query(trace: &Trace, policy: &Policy, reading: Reading, arrival: usize) -> f64 {
    let period = policy.paper().map_or(1, |config| config.query_period.as_secs().max(1) as usize);
    let mut schedule = Schedule::new(policy.clone());
    let last_query = arrival - arrival % period;
    query(&mut schedule, trace, reading, at(last_query));
    let since = at(arrival);
    let mut now = since;
    while let Next::Wait(until) = schedule.next(now, backlog(since), LinkState::default()) {
        let query_at = schedule.query_at().expect("a query is answered at once");
        let timer = until.filter(|_| reading.starvation == Starvation::Timer);
        now = timer.map_or(query_at, |timer| timer.min(query_at));
        if schedule.query_due(now) {
            query(&mut schedule, trace, reading, now);
        }
    }
    latency(trace, since, now)
}

fn query(schedule: &mut Schedule, trace: &Trace, reading: Reading, now: Instant) {
    schedule.query_sent(now);
    schedule.answered(now, Duration::from_secs_f64(known_rtt_s(trace, reading, now)));
}

/// All messages by what the kernel knows. One schedule sees the whole trace; each message is decided by a
/// copy of it, as messages do not meet.
fn by_kernel(trace: &Trace, policy: &Policy, reading: Reading) -> Vec<f64> {
    let mut schedule = Schedule::new(policy.clone());
    let mut rtt_min_s = f64::INFINITY;
    let mut latencies = Vec::with_capacity(UNITS / MESSAGE_PERIOD);
    for unit in 1..UNITS {
        rtt_min_s = rtt_min_s.min(known_rtt_s(trace, reading, at(unit)));
        second(&mut schedule, trace, reading, rtt_min_s, at(unit));
        if unit % MESSAGE_PERIOD == 0 {
            let mut own = schedule.clone();
            let mut now = at(unit);
            let link = |now| link(trace, reading, rtt_min_s, now);
            while let Next::Wait(until) = own.next(now, backlog(at(unit)), link(now)) {
                let next_unit = at(unit_of(now) + 1);
                now = until.map_or(next_unit, |until| until.min(next_unit));
                if now == next_unit {
                    own.started(now, Class::Small, SMALL_BYTES);
                }
            }
            latencies.push(latency(trace, at(unit), now));
        }
    }
    latencies
}

/// A broker's input to a schedule in a second in which no large message waits: the kernel's state, and that of a
/// small message that goes at once.
fn second(schedule: &mut Schedule, trace: &Trace, reading: Reading, rtt_min_s: f64, now: Instant) {
    schedule.looked(now, link(trace, reading, rtt_min_s, now));
    schedule.started(now, Class::Small, SMALL_BYTES);
}

fn link(trace: &Trace, reading: Reading, rtt_min_s: f64, now: Instant) -> LinkState {
    let rtt_s = known_rtt_s(trace, reading, now);
    LinkState {
        rtt: Duration::from_secs_f64(rtt_s),
        rtt_min: Duration::from_secs_f64(rtt_min_s.min(rtt_s)),
        delivery_rate: (MESSAGE_BYTES as f64 / (rtt_s / 2.0 * 10.0)) as u64,
        ..LinkState::default()
    }
}

fn known_rtt_s(trace: &Trace, reading: Reading, now: Instant) -> f64 {
    let unit = unit_of(now);
    trace.rtt_s(match reading.sample {
        Sample::Previous => unit.saturating_sub(1),
        Sample::Current => unit,
    })
}

fn latency(trace: &Trace, since: Instant, sent: Instant) -> f64 {
    sent.since(since).as_secs_f64() + trace.latency_s(unit_of(sent))
}

fn backlog(since: Instant) -> Backlog {
    Backlog { small_bytes: 0, large: Some(Waiting { bytes: MESSAGE_BYTES, since }) }
}

fn at(unit: usize) -> Instant {
    Instant::EPOCH + Duration::from_secs(unit as u64)
}

fn unit_of(now: Instant) -> usize {
    now.since(Instant::EPOCH).as_secs() as usize
}
