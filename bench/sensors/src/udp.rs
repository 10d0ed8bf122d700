//! The cost of receiving datagrams: loopback, a sender whose kernel cuts (GSO), a receiver whose kernel does not
//! join.
//!
//! ```text
//!  a thread: send, 40 datagrams a call ─▶ loopback ─▶ Receiver alone, or a listener of a node ─▶ its broker, no subscriber
//!                                                                                            └▶ the oil flow
//! ```
//!
//! Rates are datagrams per second of processor time of the receiving thread. On loopback the protocol's own work is charged to the
//! sender's call, or to soft interrupts, whose share of all processor time is told; so a NIC's interrupts come on top of these figures.

use std::{
    fs,
    net::UdpSocket,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target};
use tidegate_sys::{
    clock,
    datagram::{Method, Receiver, ReceiverOptions, set_receive_buffer, set_segment},
};

use crate::{
    Plan,
    in_process::{BUFFER_BYTES, InProcess},
    oil,
};

/// Sizes of payloads, up to what fills a frame of Ethernet.
const SIZES: [u16; 5] = [64, 123, 256, 512, 1472];
/// The size that the targets are for: an oil message with its topic.
const SIZE: u16 = 123;
/// Datagrams of one call of the sender.
const SEGMENTS: usize = 40;
const TARGET: f64 = 1e6;
/// Calls after which the sender starts over with readings for the oil flow.
const BURSTS: usize = 10_000;

/// One run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Datagrams per second of the receiving thread's processor time.
    per_cpu_second: f64,
    /// Of all that were sent, those that did not arrive.
    lost: f64,
    /// Of all processor time of the machine that was used, that of soft interrupts.
    softirq: f64,
    /// Processor time of the broker's thread for each, in ns; 0 where there is none.
    shard: f64,
}

/// Datagrams per second of processor time, by method and size.
///
/// # Errors
/// A socket or a thread cannot be had, or nothing arrives.
pub fn udp(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let time = Duration::from_secs(if plan.quick { 1 } else { 5 });
    report.configuration("udp", format!("{time:?} each; loopback; GSO of {SEGMENTS}; no GRO; {BUFFER_BYTES} B of buffer asked for"));
    for method in [Method::Uring, Method::Batch, Method::Plain] {
        let sizes: &[u16] = if method == Method::Uring { &SIZES } else { &[SIZE] };
        for size in sizes {
            let runs = (0..plan.runs).map(|_| alone(method, *size, time));
            let runs = match runs.collect::<anyhow::Result<Vec<_>>>() {
                Ok(runs) => runs,
                Err(error) if method == Method::Uring => {
                    eprintln!("bench-sensors: no io_uring here: {error:#}");
                    break;
                }
                Err(error) => return Err(error),
            };
            let name = format!("UDP, {} B, received by {}", size, method.word());
            report.figure(figure(name, &runs));
        }
    }
    for size in SIZES {
        let bursts = vec![vec![b'7'; usize::from(size) * SEGMENTS]];
        let runs = (0..plan.runs).map(|_| listener("", size, &bursts, time));
        let runs = runs.collect::<anyhow::Result<Vec<_>>>()?;
        let figure = figure(format!("UDP, {size} B, into the broker"), &runs);
        report.figure(if size == SIZE { figure.target(Target::AtLeast(TARGET)) } else { figure });
    }
    let readings = oil::readings(oil::SENSORS_OF_LOAD, BURSTS * SEGMENTS);
    let bursts: Vec<_> =
        readings.chunks(SEGMENTS * oil::MESSAGE_BYTES).map(<[u8]>::to_vec).collect();
    let size = oil::MESSAGE_BYTES as u16;
    let runs = (0..plan.runs).map(|_| listener(oil::FLOW, size, &bursts, time));
    let runs = runs.collect::<anyhow::Result<Vec<_>>>()?;
    let figure = figure(format!("UDP, {size} B, into the oil flow"), &runs);
    report.figure(figure.target(Target::AtLeast(TARGET)));
    Ok(())
}

fn figure(name: String, runs: &[Run]) -> Figure {
    let median = |part: fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(part).collect();
        bench_harness::median(&values)
    };
    let mut note = format!(
        "lost {:.1} %, soft interrupts {:.0} % of processor time",
        100.0 * median(|run| run.lost),
        100.0 * median(|run| run.softirq),
    );
    let shard = median(|run| run.shard);
    if shard > 0.0 {
        note += &format!("; the broker's thread {shard:.0} ns each");
    }
    Figure::new(name, "datagrams/s of CPU")
        .ours(runs.iter().map(|run| run.per_cpu_second))
        .note(note)
}

/// The receiver by itself.
fn alone(method: Method, size: u16, time: Duration) -> anyhow::Result<Run> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    set_receive_buffer(socket.as_fd(), BUFFER_BYTES)?;
    let address = socket.local_addr()?;
    let options = ReceiverOptions { method, bytes_max: 2000, joins: false, names_sources: false };
    let mut receiver = Receiver::new(socket, options)?;
    let mut received = 0_u64;
    let mut cpu = 0;
    let bursts = [vec![b'7'; usize::from(size) * SEGMENTS]];
    let (sent, softirq) = while_sending(address, size, &bursts, time, |is_over| {
        let begin = clock::thread_cpu_nanos();
        loop {
            let count = receiver.receive(Duration::from_millis(50), |_| true)?;
            received += count as u64;
            if count == 0 && is_over() {
                break;
            }
        }
        cpu = clock::thread_cpu_nanos() - begin;
        Ok(())
    })?;
    run(sent, received, cpu, softirq)
}

/// A listener of a node, with its broker and perhaps a flow.
fn listener(flow: &str, size: u16, bursts: &[Vec<u8>], time: Duration) -> anyhow::Result<Run> {
    let node = InProcess::start(flow)?;
    let ingest = node.node.ingest("bench").context("it is configured")?;
    let (receiving, broker) = (task("in-bench")?, task("mqtt-0")?);
    let begin = (cpu_nanos(&receiving)?, cpu_nanos(&broker)?);
    let (sent, softirq) = while_sending(ingest.address(), size, bursts, time, |is_over| {
        let mut before = 0;
        loop {
            thread::sleep(Duration::from_millis(200));
            let published = ingest.report().published;
            if is_over() && published == before {
                return Ok(());
            }
            before = published;
        }
    })?;
    let cpu = cpu_nanos(&receiving)? - begin.0;
    let shard = cpu_nanos(&broker)? - begin.1;
    let published = ingest.report().published;
    let run = run(sent, published, cpu, softirq)?;
    Ok(Run { shard: shard as f64 / published as f64, ..run })
}

fn run(sent: u64, received: u64, cpu_nanos: i64, softirq: f64) -> anyhow::Result<Run> {
    anyhow::ensure!(received > 0 && cpu_nanos > 0, "nothing arrived of {sent} datagrams");
    Ok(Run {
        per_cpu_second: received as f64 * 1e9 / cpu_nanos as f64,
        lost: 1.0 - received as f64 / sent as f64,
        softirq,
        shard: 0.0,
    })
}

/// Sends `bursts`, each as datagrams of `size` bytes, over and over for that long while `receive` runs, which is told when it is over. Returns what was sent, and the share of soft interrupts.
fn while_sending(
    address: std::net::SocketAddr,
    size: u16,
    bursts: &[Vec<u8>],
    time: Duration,
    receive: impl FnOnce(&dyn Fn() -> bool) -> anyhow::Result<()>,
) -> anyhow::Result<(u64, f64)> {
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    sender.connect(address)?;
    set_segment(sender.as_fd(), size)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU64::new(0));
    let sending = {
        let (is_over, sent) = (is_over.clone(), sent.clone());
        let bursts = bursts.to_vec();
        thread::spawn(move || -> std::io::Result<()> {
            let begin = std::time::Instant::now();
            for burst in bursts.iter().cycle().take_while(|_| begin.elapsed() < time) {
                sender.send(burst)?;
                sent.fetch_add((burst.len() / usize::from(size)) as u64, Ordering::Relaxed);
            }
            is_over.store(true, Ordering::Release);
            Ok(())
        })
    };
    let before = processor_times()?;
    let over = || is_over.load(Ordering::Acquire) || sending.is_finished();
    let received = receive(&over);
    let after = processor_times()?;
    sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    received?;
    let busy = (after.0 - before.0).max(1.0);
    Ok((sent.load(Ordering::Relaxed), (after.1 - before.1) / busy))
}

/// Processor time that the machine has used, and that of soft interrupts in it, in ticks.
fn processor_times() -> anyhow::Result<(f64, f64)> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat has a line")?;
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    anyhow::ensure!(ticks.len() >= 8, "/proc/stat says too little");
    // user nice system idle iowait irq softirq steal
    let busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];
    Ok((busy, ticks[6]))
}

/// The folder in /proc of this process's thread of that name.
fn task(name: &str) -> anyhow::Result<PathBuf> {
    // A thread that was begun names itself.
    for _ in 0..100 {
        for entry in fs::read_dir("/proc/self/task")? {
            let path = entry?.path();
            // It may have ended meanwhile.
            if fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name) {
                return Ok(path);
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!("there is no thread called {name}")
}

fn cpu_nanos(task: &Path) -> anyhow::Result<i64> {
    let text = fs::read_to_string(task.join("schedstat"))?;
    let nanos = text.split_whitespace().next().and_then(|word| word.parse().ok());
    nanos.context("schedstat begins with a number")
}
