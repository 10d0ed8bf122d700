//! How soon a new subscription is known to eight nodes: its SUBACK says so, and what is published right then at each of the others comes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target, Tolerance, median};
use tidegate_load::client::{Client, Outgoing};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    site::{Settings, Site, filter},
};

const NODES: usize = 8;
/// One way on each line, so twice that from node to node.
const LINE: Duration = Duration::from_millis(5);
const SUBSCRIPTIONS: usize = 20;
const ARRIVE_MAX: Duration = Duration::from_secs(5);

/// New subscriptions at one node, then two with another node that hangs.
///
/// # Errors
/// Namespaces take root; a node does not start.
pub fn subscribe(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let round_trip = 4.0 * LINE.as_secs_f64() * 1e3;
    report.configuration(
        "subscribe",
        format!("{NODES} nodes, lines of {} ms each way: a round trip between nodes takes {round_trip} ms", LINE.as_millis()),
    );
    let site = Site::start(&Settings { nodes: NODES, line: Some(LINE), ..Settings::default() })?;
    let mut subscriber = site.client(0, "subscriber")?;
    let mut publishers = Vec::new();
    for index in 1..NODES {
        publishers.push(site.client(index, &format!("publisher-{index}"))?);
    }
    let (mut times, mut missing) = (Vec::new(), 0);
    for number in 0..plan.runs * SUBSCRIPTIONS {
        let topic = format!("known/{number}");
        times.push(acknowledged(&mut subscriber, &topic)?.as_secs_f64() * 1e3 / round_trip);
        for publisher in &mut publishers {
            publish(publisher, &topic)?;
        }
        for _ in 0..publishers.len() {
            missing += u64::from(subscriber.receive(ARRIVE_MAX)?.is_none());
        }
    }
    report.samples("subscription known to all, round trips", times.iter().copied());
    report.figure(
        Figure::new(format!("new subscription is known to {NODES} nodes"), "round trips")
            .ours([median(&times)])
            .target(Target::AtMost(2.0))
            .note(format!("median of {} subscriptions", times.len())),
    );
    let figure = Figure::new("published at the others right then, did not come", "");
    report.figure(figure.ours([missing as f64]).target(Target::Exactly(0.0)));

    // Before the others miss it, it is waited for once.
    site.signal(NODES - 1, "STOP")?;
    let first = acknowledged(&mut subscriber, "hung/first")?;
    let second = acknowledged(&mut subscriber, "hung/second")?;
    site.signal(NODES - 1, "CONT")?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let figure = Figure::new("SUBSCRIBE while a node hangs, second time", "ms").ours([ms(second)]);
    report.figure(
        figure
            .target(Target::AtMost(2.0 * round_trip))
            .tolerance(Tolerance::Absolute(10.0))
            .note(format!("the first took {:.0} ms", ms(first))),
    );
    Ok(())
}

fn acknowledged(subscriber: &mut Client, topic: &str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let reasons = subscriber.subscribe(&[filter(topic)]).context("subscribing")?;
    ensure!(reasons.iter().all(|reason| !reason.is_failure()), "a subscription was refused");
    Ok(began.elapsed())
}

fn publish(publisher: &mut Client, topic: &str) -> anyhow::Result<()> {
    let message =
        Outgoing { topic, payload: b"known", qos: QoS::AtLeastOnce, ..Outgoing::default() };
    publisher.publish(&message).context("publishing").map(drop)
}
