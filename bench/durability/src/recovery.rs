//! How long a node that was killed takes until it serves again, with a large site's sessions and retained messages to bring back.

use std::{
    fs,
    num::NonZeroU16,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use bench_harness::{Figure, Report, Target};
use tidegate_load::client::{Client, Options};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::{
    Plan,
    crowd::{Crowd, Event, SessionOptions},
    node::{Running, Site},
};

const RETAINED: usize = 1_000_000;
const SESSIONS: usize = 10_000;
/// Sessions for which one message of their own waits, beside the one that waits for all.
const QUEUED: usize = 1_000;
const READY_S_MAX: f64 = 5.0;
/// Clients at a time while sessions are made.
const BATCH: usize = 200;
/// Publishers of what is retained.
const PUBLISHERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);

/// Kills a node that keeps a large site's state, and starts it again.
///
/// # Errors
/// The node does not take the state, or does not bring all of it back.
pub fn recovery(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let part = if plan.quick { 10 } else { 1 };
    let (retained, sessions, queued) = (RETAINED / part, SESSIONS / part, QUEUED / part);
    report.configuration(
        "recovery",
        format!(
            "{retained} retained messages of 20 B on topics of 27 B, {sessions} sessions with two subscriptions, one message \
             waiting for all of them and one for each of {queued}; class page; SIGKILL, then the time from the start of the \
             process to the first CONNACK; cold: page cache dropped before"
        ),
    );
    let site = Site::new(
        &plan.folder,
        &[],
        "durability = \"page\"\nretained_max = 2000000\nidentity_share = 1.0\npayload_bytes_max = \"4GiB\"\n\n[log]\nmqtt_bytes = \"4GiB\"\n",
    )?;
    let mut node = site.start(&[])?;
    node.wait_for(site.mqtt)?;
    let begun = Instant::now();
    make_sessions(&site, sessions)?;
    publish(&site, retained, |number| {
        (
            format!("site/{:02}/device/{number:07}/state", number % 100),
            format!("{{\"on\":{number:013}}}"),
            true,
        )
    })?;
    publish(&site, queued + 1, |number| {
        let to = if number == queued { "all".to_owned() } else { number.to_string() };
        (format!("to/{to}"), "hello".to_owned(), false)
    })?;
    let filled = begun.elapsed();
    let resident_before = node.usage()?.resident_bytes;
    let [mut warm, mut cold, mut processor, mut resident, mut disk] = [const { Vec::new() }; 5];
    let mut dropped = true;
    let mut present = 0;
    for run in 0..2 * plan.runs {
        node.kill()?;
        let is_cold = run % 2 == 1;
        if is_cold {
            dropped &= fs::write("/proc/sys/vm/drop_caches", "3").is_ok();
        }
        node = site.start(&[])?;
        let (client, ready) = first_connack(&site, &mut node, run % sessions)?;
        let (of, ready) = if is_cold { (&mut cold, ready) } else { (&mut warm, ready) };
        of.push(ready.as_secs_f64());
        let usage = node.usage()?;
        processor.push(usage.cpu.as_secs_f64());
        resident.push(usage.resident_bytes as f64 / 1e6);
        disk.push(site.disk_bytes() as f64 / 1e6);
        present += usize::from(client.connack().session_present);
        check(&site, client, run, queued, retained)?;
    }
    ensure!(present == 2 * plan.runs, "only {present} of {} sessions came back", 2 * plan.runs);
    let name = format!("{retained} retained, {sessions} sessions");
    let ready = Figure::new(format!("{name}, start to first CONNACK"), "s").ours(warm);
    report.figure(ready.target(Target::AtMost(READY_S_MAX)).note(format!(
        "{:.0} s to make them over MQTT; {:.0} MB resident before the kill",
        filled.as_secs_f64(),
        resident_before as f64 / 1e6
    )));
    let ready = Figure::new(format!("{name}, start to first CONNACK, cold"), "s").ours(cold);
    let ready = ready.target(Target::AtMost(READY_S_MAX));
    report.figure(if dropped { ready } else { ready.note("the page cache could not be dropped") });
    report.figure(Figure::new(format!("{name}, processor until then"), "s").ours(processor));
    report.figure(Figure::new(format!("{name}, resident then"), "MB").ours(resident));
    report.figure(Figure::new(format!("{name}, on the disk"), "MB").ours(disk));
    Ok(())
}

/// Sessions `client-0` and so on that stay, each with a subscription of its own and one of all.
fn make_sessions(site: &Site, count: usize) -> anyhow::Result<()> {
    for first in (0..count).step_by(BATCH) {
        let mut crowd = Crowd::new(site.mqtt);
        let size = BATCH.min(count - first);
        for number in first..first + size {
            crowd.join(SessionOptions {
                client_id: format!("client-{number}"),
                session_expiry: 86_400,
                ..SessionOptions::default()
            });
        }
        let mut subscribed = 0;
        turns(&mut crowd, |crowd, member, event| {
            match event {
                Event::Connected { .. } => {
                    let filters = [format!("to/{}", first + member), "to/all".to_owned()];
                    crowd.session(member).subscribe(filters.map(filter).to_vec())?;
                }
                Event::Subscribed(_) => {
                    subscribed += 1;
                    crowd.leave(member);
                }
                Event::Refused(reason) => bail!("client {member} is told {}", reason.name()),
                Event::Acknowledged { .. } | Event::Message(_) => {}
            }
            Ok(subscribed == size)
        })?;
    }
    Ok(())
}

/// Publishes `count` messages with QoS 1, each as `of` says: topic, payload, whether it is retained.
fn publish(
    site: &Site,
    count: usize,
    of: impl Fn(usize) -> (String, String, bool),
) -> anyhow::Result<()> {
    let mut crowd = Crowd::new(site.mqtt);
    for publisher in 0..PUBLISHERS {
        crowd.join(SessionOptions {
            client_id: format!("publisher-{publisher}"),
            ..SessionOptions::default()
        });
    }
    let (mut next, mut acknowledged) = (0, 0);
    turns(&mut crowd, |crowd, member, event| {
        match event {
            Event::Acknowledged { reason, .. } => {
                ensure!(!reason.is_failure(), "a message is refused: {}", reason.name());
                acknowledged += 1;
            }
            Event::Refused(reason) => bail!("a publisher is told {}", reason.name()),
            Event::Connected { .. } | Event::Subscribed(_) | Event::Message(_) => {}
        }
        let session = crowd.session(member);
        while next < count && session.room() > 0 && session.pending() < 256 {
            let (topic, payload, retain) = of(next);
            session.publish(next as u64, &topic, payload.as_bytes(), QoS::AtLeastOnce, retain);
            next += 1;
        }
        Ok(acknowledged == count)
    })
}

/// Hands events to `handle` until it says that all is done.
fn turns(
    crowd: &mut Crowd,
    mut handle: impl FnMut(&mut Crowd, usize, Event) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut events = Vec::new();
    let mut since = Instant::now();
    loop {
        crowd.turn(Duration::from_millis(5), &mut events)?;
        for (member, event) in events.drain(..) {
            since = Instant::now();
            if handle(crowd, member, event)? {
                crowd.write();
                return Ok(());
            }
        }
        ensure!(since.elapsed() < PATIENCE, "the node answers nothing any more");
    }
}

/// Connects as a client whose session should be there, as soon as the node lets it in; how long after its start that was.
fn first_connack(
    site: &Site,
    node: &mut Running,
    client: usize,
) -> anyhow::Result<(Client, Duration)> {
    loop {
        let options = Options {
            client_id: format!("client-{client}"),
            clean_start: false,
            session_expiry: Some(86_400),
            // Waiting messages come when they are asked for, not with the welcome.
            receive_maximum: NonZeroU16::new(10),
            ..site.options()
        };
        match Client::connect(options) {
            Ok(client) => return Ok((client, node.started.elapsed())),
            Err(error) => {
                node.check()?;
                if node.started.elapsed() > PATIENCE {
                    return Err(error).context("the node does not serve");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Checks the recovered state: the messages of a session, and a hundredth of the retained ones.
fn check(
    site: &Site,
    mut client: Client,
    number: usize,
    queued: usize,
    retained: usize,
) -> anyhow::Result<()> {
    let waiting = if number < queued { 2 } else { 1 };
    for _ in 0..waiting {
        let message =
            client.receive(Duration::from_secs(10))?.context("a waiting message is lost")?;
        ensure!(message.payload == b"hello", "a waiting message is altered");
    }
    client.disconnect()?;
    let mut looker = Client::connect(site.options())?;
    looker.subscribe(&[filter(format!("site/{:02}/#", number % 100))])?;
    for count in 0..retained / 100 {
        let message = looker.receive(Duration::from_secs(10))?;
        message.with_context(|| format!("only {count} of {} are retained", retained / 100))?;
    }
    looker.disconnect()?;
    Ok(())
}

fn filter(filter: String) -> SubscribeFilter {
    SubscribeFilter {
        filter,
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}
