//! Whether what a way brings to the host is what was published, before any of it is timed.

use std::{collections::HashMap, time::Duration};

use anyhow::ensure;
use tidegate_load::sensors::Workload;

use super::{
    Way,
    feed::Feed,
    outcome::{self, Outcome},
    trial::{Pace, Trial},
};

/// Longest time for all messages.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Sends all messages by every way and compares what the host has with them, byte for byte, and the notifications of all ways with
/// each other.
///
/// # Errors
/// Something is lost or other than it was.
pub(super) fn verify(workload: Workload, feed: &mut Feed) -> anyhow::Result<()> {
    let mut notified = None;
    for way in Way::ALL {
        let trial = Trial {
            way,
            workloads: vec![workload],
            pace: Pace::AsTaken,
            time: TIME_MAX,
            warm: 0,
            messages_max: feed.len() as u64,
            log_bytes_max: usize::MAX,
        };
        let outcome = outcome::run(&trial, feed)?;
        let Outcome { lost, published, heard, .. } = outcome;
        ensure!(published == feed.len() as u64, "{workload}, {way:?}: {published} were published");
        ensure!(lost == 0, "{workload}, {way:?}: {lost} of {published} were lost");
        compare(feed, &outcome)
            .map_err(|error| error.context(format!("{workload}, {}", way.name())))?;
        let expected = *notified.get_or_insert(outcome.notified);
        ensure!(
            expected == outcome.notified && heard == expected && heard > 0,
            "{workload}, {}: {heard} notifications came of {}, and {expected} by the first way",
            way.name(),
            outcome.notified,
        );
    }
    Ok(())
}

fn compare(feed: &Feed, outcome: &Outcome) -> anyhow::Result<()> {
    let corrections = &outcome.received.corrections;
    let mut corrected = HashMap::new();
    for (message, number) in corrections.messages.iter().zip(&corrections.numbers) {
        corrected.insert((message.topic, *number), message.payload);
    }
    let mut numbers = HashMap::<&[u8], u64>::new();
    let log = &outcome.received.log;
    ensure!(log.len() == feed.len(), "{} messages of {} are there", log.len(), feed.len());
    for (index, found) in log.iter().enumerate() {
        let (topic, payload) = feed.message(index as u64);
        ensure!(found.topic == topic.as_bytes(), "message {index} has another topic");
        let number = numbers.entry(found.topic).or_default();
        let found = corrected.get(&(found.topic, *number)).copied().unwrap_or(found.payload);
        *number += 1;
        ensure!(
            found == payload,
            "message {index}, {topic}, is {:?} and was {:?}",
            String::from_utf8_lossy(found),
            String::from_utf8_lossy(payload)
        );
    }
    Ok(())
}
