//! Claims about media, in virtual time.

use std::{path::Path, time::Duration};

use tidegate_message::Instant;

use super::{Delivery, Ingress, Medium, PacketRef, PortId, Scenario};

mod wan;
mod wifi;

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, Path::new("")).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn at(millis: f64) -> Instant {
    Instant::from_nanos((millis * 1e6).round() as i64)
}

/// Puts in one packet of 1500 bytes.
fn send(medium: &mut Medium<u64>, now: Instant, from: usize, to: usize, number: u64) -> Ingress {
    medium.ingress(now, PortId(from), PortId(to), PacketRef { len: 1500, data: number })
}

/// Everything that is delivered until `end`, as port, number and milliseconds.
fn deliveries(medium: &mut Medium<u64>, end: Instant) -> Vec<(usize, u64, f64)> {
    let mut all: Vec<(usize, u64, f64)> = Vec::new();
    while let Some(now) = medium.poll_timeout().filter(|next| *next <= end) {
        while let Some(Delivery { port, packet, due }) = medium.poll_deliver(now) {
            all.push((port.0, packet.data, due.as_nanos() as f64 / 1e6));
        }
    }
    assert!(all.is_sorted_by_key(|delivery| delivery.2), "deliveries come in order of time");
    all
}

/// Keeps every pair's queue filled until `end` and counts the packets that arrive at each port.
fn saturate(medium: &mut Medium<u64>, pairs: &[(usize, usize)], end: Duration) -> Vec<u64> {
    const BACKLOG: u64 = 128;
    let end = Instant::EPOCH + end;
    let mut arrived = vec![0; 64];
    let mut now = Instant::EPOCH;
    for (pair, &(from, to)) in pairs.iter().enumerate() {
        for _ in 0..BACKLOG {
            // The number names the pair, so that each arrival is replaced by a new packet.
            let _ = send(medium, now, from, to, pair as u64);
        }
    }
    while let Some(next) = medium.poll_timeout().filter(|next| *next <= end) {
        now = next.max(now);
        while let Some(Delivery { port, packet, .. }) = medium.poll_deliver(now) {
            arrived[port.0] += 1;
            let (from, to) = pairs[packet.data as usize];
            let _ = send(medium, now, from, to, packet.data);
        }
    }
    arrived
}
