//! `$SYS/broker/#`: the node's counters, under the names that Mosquitto's users know where there is one.
//!
//! Shard 0 publishes for the node, from what each shard reported last.

use std::sync::Arc;

use tidegate_message::Instant;

use super::Broker;
use crate::{
    message::{Body, MessageRef},
    shared::Shared,
    statistics::{SessionReport, Statistics},
};

/// Sessions that are named because they hold most.
pub(super) const HEAVIEST: usize = 10;

/// State that one publication of `$SYS` leaves for the next.
#[derive(Debug)]
pub(super) struct Sys {
    loads: Loads,
    /// Sessions that were named.
    named: usize,
    /// Counts of operators, by name.
    operators: Vec<String>,
}

impl Sys {
    pub(super) fn new(now: Instant) -> Self {
        Self { loads: Loads::new(now), named: 0, operators: Vec::new() }
    }
}

impl Broker {
    pub(super) fn publish_sys(&mut self, now: Instant) {
        let shared = self.shared.clone();
        let statistics = shared.statistics();
        let heaviest = shared.heaviest(HEAVIEST);
        self.sys.loads.update(now, &statistics);
        let budget = shared.budget();
        // Before this publication takes some of it.
        let disk = self.spilling.disk.as_ref();
        let held = [
            ("spill/bytes", disk.map_or(0, |disk| disk.bytes())),
            ("messages/stored", budget.messages()),
            ("store/messages/count", budget.messages()),
            ("store/messages/bytes", budget.used()),
            ("payload/bytes", budget.used()),
            ("payload/bytes/maximum", budget.peak()),
            ("identities/refused", shared.share_refusals()),
            ("subscriptions/count", shared.subscriptions() as u64),
            ("shared_subscriptions/count", shared.shared_subscriptions() as u64),
            ("retained messages/count", shared.retained_count() as u64),
            ("retained messages/marks", shared.mark_count() as u64),
            ("retained messages/marks_dropped", shared.marks_dropped()),
        ];
        let lines: Vec<String> = heaviest
            .iter()
            .map(|s| format!("{} {} {}", s.held_bytes(), s.queued + s.inflight, s.client_id))
            .collect();
        let version = concat!("tidegate version ", env!("CARGO_PKG_VERSION"));
        let uptime = format!("{} seconds", now.since(shared.began()).as_secs());
        self.tell(now, "version", version);
        self.tell(now, "uptime", &uptime);
        self.tell(now, "clients/heaviest", &lines.join("\n"));
        let identities: Vec<String> = shared
            .heaviest_identities(HEAVIEST)
            .into_iter()
            .map(|(name, [bytes, retained, sessions])| {
                format!("{bytes} {retained} {sessions} {name}")
            })
            .collect();
        // Published also if there are none, so that the number of topics does not depend on it.
        let none = || "none".to_owned();
        let identities = Some(identities.join("\n")).filter(|lines| !lines.is_empty());
        self.tell(now, "identities/heaviest", &identities.unwrap_or_else(none));
        for (topic, count) in counts(&statistics) {
            self.tell(now, topic, &count.to_string());
        }
        for (reason, count) in statistics.dropped.by_reason() {
            self.tell(now, &format!("dropped/{reason}"), &count.to_string());
        }
        for (topic, count) in held {
            self.tell(now, topic, &count.to_string());
        }
        for (topic, average) in self.sys.loads.averages() {
            self.tell(now, &topic, &format!("{average:.2}"));
        }
        for (place, report) in heaviest.iter().enumerate() {
            self.tell(now, &format!("clients/heaviest/{}", place + 1), &json(report));
        }
        // The retained messages of ranks that are not in use any more are cleared.
        for place in heaviest.len()..self.sys.named {
            self.tell(now, &format!("clients/heaviest/{}", place + 1), "");
        }
        self.sys.named = heaviest.len();
        let counts =
            self.admission.as_ref().map(|admission| admission.report()).unwrap_or_default();
        for (topic, count) in &counts {
            self.tell(now, topic, &count.to_string());
        }
        let names = counts.into_iter().map(|(topic, _)| topic).collect();
        for gone in std::mem::replace(&mut self.sys.operators, names) {
            if !self.sys.operators.contains(&gone) {
                self.tell(now, &gone, "");
            }
        }
        self.tell_others(now, &shared);
    }

    /// The counts of other parts of the node, by their names.
    fn tell_others(&mut self, now: Instant, shared: &Shared) {
        let mut said = Vec::new();
        shared.told().retain_mut(|told| {
            let counts = told.ask();
            let is_there = counts.is_some();
            // Nothing is retained of a session that is gone.
            let gone = |names: &[&'static str]| names.iter().map(|name| (*name, None)).collect();
            let counts: Vec<(&str, Option<u64>)> = match counts {
                Some(counts) => counts.into_iter().map(|(name, it)| (name, Some(it))).collect(),
                None => gone(&told.names),
            };
            let prefix = &told.prefix;
            said.extend(counts.into_iter().map(|(name, it)| (format!("{prefix}/{name}"), it)));
            is_there
        });
        for (topic, count) in said {
            self.tell(now, &topic, &count.map_or_else(String::new, |count| count.to_string()));
        }
    }

    fn tell(&mut self, now: Instant, topic: &str, value: &str) {
        let topic: Arc<str> = format!("$SYS/broker/{topic}").into();
        let value = Body::Read(value.as_bytes());
        let message = MessageRef { retain: true, ..MessageRef::new(&topic, value, now) };
        if !self.publish_internal(now, message) {
            tracing::debug!(%topic, "no room to retain it");
        }
    }
}

/// Every counter by its topic; a counter added to [`Statistics`] has to be named here.
fn counts(statistics: &Statistics) -> [(&'static str, u64); 25] {
    let &Statistics {
        connections,
        connections_peak,
        sessions,
        connects,
        expired_sessions,
        received,
        received_bytes,
        sent,
        sent_bytes,
        packets_received,
        packets_sent,
        stream_bytes_received,
        stream_bytes_sent,
        refused,
        dropped,
        hops_exceeded,
        overflow_disconnects,
        withheld,
        spilled,
        spill_failures,
        journal_failures,
        journal_refused,
    } = statistics;
    [
        ("bytes/received", stream_bytes_received),
        ("bytes/sent", stream_bytes_sent),
        ("clients/total", sessions),
        ("clients/connected", connections),
        ("clients/active", connections),
        ("clients/disconnected", sessions.saturating_sub(connections)),
        ("clients/inactive", sessions.saturating_sub(connections)),
        ("clients/maximum", connections_peak),
        ("clients/expired", expired_sessions),
        ("connects", connects),
        ("messages/received", packets_received),
        ("messages/sent", packets_sent),
        ("publish/messages/received", received),
        ("publish/messages/sent", sent),
        ("publish/messages/dropped", dropped.total()),
        ("publish/bytes/received", received_bytes),
        ("publish/bytes/sent", sent_bytes),
        ("refused", refused),
        ("withheld", withheld),
        ("overflow_disconnects", overflow_disconnects),
        ("hops_exceeded", hops_exceeded),
        ("spill/messages", spilled),
        ("spill/failures", spill_failures),
        ("journal/failures", journal_failures),
        ("journal/refused", journal_refused),
    ]
}

/// Rates per minute, each an exponential average over 1, 5 and 15 minutes as Mosquitto's are: they begin at 0, and a time `t`
/// after a rate began `1 - e^(-t/minutes)` of it shows.
#[derive(Debug)]
struct Loads {
    at: Instant,
    counts: [u64; LOADS.len()],
    averages: [[f64; MINUTES.len()]; LOADS.len()],
}

/// Minutes that are averaged over.
const MINUTES: [u32; 3] = [1, 5, 15];

type Count = fn(&Statistics) -> u64;

const LOADS: [(&str, Count); 8] = [
    ("bytes/received", |s| s.stream_bytes_received),
    ("bytes/sent", |s| s.stream_bytes_sent),
    ("connections", |s| s.connects),
    ("messages/received", |s| s.packets_received),
    ("messages/sent", |s| s.packets_sent),
    ("publish/dropped", |s| s.dropped.total()),
    ("publish/received", |s| s.received),
    ("publish/sent", |s| s.sent),
];

impl Loads {
    fn new(now: Instant) -> Self {
        Self { at: now, counts: Default::default(), averages: Default::default() }
    }

    fn update(&mut self, now: Instant, statistics: &Statistics) {
        let minutes = now.since(self.at).as_secs_f64() / 60.0;
        if minutes == 0.0 {
            return;
        }
        self.at = now;
        for (place, (_, count)) in LOADS.iter().enumerate() {
            let count = count(statistics);
            let rate = (count - self.counts[place]) as f64 / minutes;
            self.counts[place] = count;
            for (average, over) in self.averages[place].iter_mut().zip(MINUTES) {
                let kept = (-minutes / f64::from(over)).exp();
                *average = rate + kept * (*average - rate);
            }
        }
    }

    fn averages(&self) -> Vec<(String, f64)> {
        let named = LOADS.iter().zip(&self.averages).flat_map(|((name, _), averages)| {
            let over = averages.iter().zip(MINUTES);
            over.map(move |(average, over)| (format!("load/{name}/{over}min"), *average))
        });
        named.collect()
    }
}

/// The state and losses of a session, as JSON.
fn json(report: &SessionReport) -> String {
    let dropped = report.dropped.by_reason().map(|(reason, count)| format!("\"{reason}\":{count}"));
    format!(
        "{{\"client\":{},\"queued\":{},\"bytes\":{},\"bytes_on_disk\":{},\"inflight\":{},\"dropped\":{{{}}}}}",
        json_text(&report.client_id),
        report.queued,
        report.held_bytes(),
        report.spilled_bytes,
        report.inflight,
        dropped.join(","),
    )
}

/// A text in JSON's quotes (RFC 8259, section 7).
fn json_text(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\0'..='\x1f' => quoted.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_json_wants_it() {
        for (text, expected) in [
            ("cam 7", r#""cam 7""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("a\u{1}\nb\u{7f}", "\"a\\u0001\\u000ab\u{7f}\""),
            ("\u{fc}", "\"\u{fc}\""),
        ] {
            assert_eq!(json_text(text), expected);
        }
    }

    #[test]
    fn a_load_is_the_mean_of_a_steady_rate_in_the_end_and_fades_by_its_minutes() {
        let mut now = Instant::from_millis(1);
        let mut loads = Loads::new(now);
        let mut statistics = Statistics::default();
        let mut pass = |loads: &mut Loads, seconds: u64, each: u64| {
            for _ in 0..seconds / 10 {
                now = now + std::time::Duration::from_secs(10);
                statistics.received += 10 * each;
                loads.update(now, &statistics);
            }
        };
        let averages = |loads: &Loads| {
            let of = |name: &str| loads.averages().into_iter().find(|(n, _)| n == name).unwrap().1;
            [1, 5, 15].map(|over| of(&format!("load/publish/received/{over}min")))
        };
        let assert_near = |got: [f64; 3], expected: [f64; 3]| {
            for (got, expected) in got.into_iter().zip(expected) {
                assert!((got - expected).abs() < 0.01, "{got} {expected}");
            }
        };
        assert_near(averages(&loads), [0.0; 3]);
        pass(&mut loads, 60, 2);
        let rising =
            |minutes: f64| [1.0, 5.0, 15.0].map(|over| 120.0 * (1.0 - (-minutes / over).exp()));
        assert_near(averages(&loads), rising(1.0));
        pass(&mut loads, 4 * 3600, 2);
        assert_near(averages(&loads), [120.0; 3]);
        pass(&mut loads, 300, 0);
        assert_near(averages(&loads), [1.0, 5.0, 15.0].map(|over| 120.0 * (-5.0_f64 / over).exp()));
    }
}
