//! How soon another node shows that a member is away: its process was killed, it hangs, its line is cut; and whether one is missed that is not.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;
use bench_harness::{Figure, Report, Target};
use tidegate_api::{Member, Standing};

use crate::{
    Plan,
    site::{Settings, Site, links, signal},
};

/// Longest wait for a fault to be seen.
const SEEN_MAX: Duration = Duration::from_secs(10);
/// Between two looks at the members.
const LOOK: Duration = Duration::from_millis(2);
const NODES: usize = 4;
/// The node that the fault befalls, and the one that is asked.
const AWAY: usize = 3;
const ASKED: usize = 1;

/// Three faults in each run, then an hour with both cores busy; a minute with `--quick`.
///
/// # Errors
/// Namespaces take root; a node does not start.
pub fn faults(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let settings =
        Settings { nodes: NODES, line: Some(Duration::from_millis(1)), ..Settings::default() };
    report.configuration("faults", format!("{NODES} nodes, lines of 1 ms each way to a router"));
    let mut site = Site::start(&settings)?;
    let mut seen = [const { Vec::new() }; 3];
    for _ in 0..plan.runs {
        for (fault, seen) in seen.iter_mut().enumerate() {
            let time = befall(&mut site, fault)?;
            seen.push(time.map_or(f64::NAN, |time| time.as_secs_f64()));
            mend(&mut site, fault)?;
        }
    }
    let names = ["end of a process is seen", "node that hangs is seen", "cut line is seen"];
    for ((name, most), seen) in names.into_iter().zip([0.1, 3.0, 3.0]).zip(seen) {
        report.samples(format!("{name}, s"), seen.iter().copied());
        report.figure(Figure::new(name, "s").ours(seen).target(Target::AtMost(most)));
    }
    drop(site);
    false_losses(plan, report)
}

/// The time from the fault until another node shows it, which is looked at all the while.
fn befall(site: &mut Site, fault: usize) -> anyhow::Result<Option<Duration>> {
    let name = site.name(AWAY).to_owned();
    let is_away = move |members: &[Member]| {
        members.iter().any(|member| member.name == name && !member.is_linked)
    };
    let process = site.process(AWAY)?.to_string();
    let site = &*site;
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let seen = site.look(ASKED, SEEN_MAX, LOOK, is_away)?;
            anyhow::Ok(seen.map(|_| Instant::now()))
        });
        // The state that is shown is at most 100 ms old: the look before the fault is not to hide it.
        thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        match fault {
            0 => signal(&process, "KILL")?,
            1 => signal(&process, "STOP")?,
            _ => site.cut(AWAY, true)?,
        }
        let seen = looking.join().expect("the look does not panic")?;
        Ok(seen.map(|seen| seen - began))
    })
}

fn mend(site: &mut Site, fault: usize) -> anyhow::Result<()> {
    match fault {
        0 => {
            site.kill(AWAY);
            site.spawn(AWAY)?;
            site.wait_to_serve(AWAY)?;
        }
        1 => signal(&site.process(AWAY)?.to_string(), "CONT")?,
        _ => site.cut(AWAY, false)?,
    }
    site.wait_linked()
}

/// Members that are missed though they are there, while both processors are busy.
fn false_losses(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 60 } else { 3600 });
    let site = Site::start(&Settings { nodes: NODES, ..Settings::default() })?;
    let is_over = AtomicBool::new(false);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let missed = thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let watched = watch(&site, length);
        is_over.store(true, Ordering::Relaxed);
        watched
    })?;
    let name = format!("{} min with all processors busy, members missed", length.as_secs() / 60);
    let figure = Figure::new(name, "").ours([missed as f64]);
    report.figure(figure.target(Target::Exactly(0.0)));
    Ok(())
}

/// How often a node showed that another one was away.
fn watch(site: &Site, length: Duration) -> anyhow::Result<u64> {
    let began = Instant::now();
    let mut missed = 0;
    while began.elapsed() < length {
        let is_short = |members: &[Member]| {
            links(members) < NODES - 1 || members.iter().any(|one| one.standing != Standing::Here)
        };
        let left = length.saturating_sub(began.elapsed());
        if site.look(ASKED, left, Duration::from_millis(50), is_short)?.is_some() {
            missed += 1;
            let back = site.look(ASKED, SEEN_MAX, Duration::from_millis(50), move |members| {
                !is_short(members)
            })?;
            ensure!(back.is_some(), "a member that was missed does not come back");
        }
    }
    Ok(missed)
}
