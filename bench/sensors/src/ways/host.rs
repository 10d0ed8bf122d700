//! The host: takes datagrams, keeps their messages in memory, and does the critical part where the edge does not.

use std::{
    net::UdpSocket,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
    time::Duration,
};

use tidegate_flow::Message;
use tidegate_sys::{
    clock,
    datagram::{Method, Receiver, ReceiverOptions},
};

use super::{
    Way,
    critical::Critical,
    trial::{Shared, Trial},
    unpacker::{Corrections, Taken, Unpacker},
};
use crate::messages::Messages;

/// Datagrams after which the critical part has its turn.
const GROUP_MAX: usize = 256;
const WAIT: Duration = Duration::from_millis(5);

/// The host's counts.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Messages that it took, and that were missing before others that it took.
    pub taken: u64,
    pub(crate) missing: u64,
    /// The number after that of the last message it took.
    pub end: u64,
    /// Processor time of its thread in ns.
    pub cpu: i64,
    /// Notifications, and their latencies by application.
    pub notified: u64,
    pub(crate) latencies: Vec<Vec<f64>>,
    /// The log in memory at the end.
    pub log: Messages,
    /// The corrections of comprex.
    pub corrections: Corrections,
}

/// Takes what comes until the edge is done.
///
/// # Errors
/// The socket's, or a notification cannot be sent.
pub(super) fn serve(
    trial: &Trial,
    shared: &Shared,
    socket: UdpSocket,
    mut critical: Option<Critical>,
) -> anyhow::Result<Received> {
    // Large datagrams are few: a ring of buffers for them would be mostly empty memory.
    let bytes_max = if trial.way == Way::Ours { 65_000 } else { 2000 };
    let method = Method::Auto;
    let mut receiver = Receiver::new(
        socket,
        ReceiverOptions { method, bytes_max, joins: false, names_sources: false },
    )?;
    shared.is_ready.store(true, Release);
    let mut unpacker = Unpacker::new(trial.way);
    let mut received = Received { end: trial.warm, ..Received::default() };
    let (mut log, mut numbers) = (Messages::default(), Vec::new());
    let mut cpu = None;
    loop {
        if log.bytes() > trial.log_bytes_max {
            log.clear();
            unpacker.corrections = Corrections::default();
        }
        let before = log.len();
        numbers.clear();
        let mut seen = 0;
        let mut left = GROUP_MAX;
        let count = receiver.receive(WAIT, |datagram| {
            match unpacker.take(datagram.bytes, &mut log) {
                Taken::Messages { first, count } => {
                    let end = first + u64::from(count);
                    seen = end;
                    if critical.is_some() {
                        numbers.extend(first..end);
                    }
                    if first >= trial.warm {
                        cpu.get_or_insert_with(clock::thread_cpu_nanos);
                        received.missing += first.saturating_sub(received.end);
                        received.taken += u64::from(count);
                        received.end = end;
                    }
                }
                Taken::Part => {}
                Taken::Refused => shared.epoch.store(unpacker.epoch(), Release),
            }
            left -= 1;
            left > 0
        })?;
        if let Some(critical) = &mut critical
            && log.len() > before
        {
            let mut messages = Vec::with_capacity(log.len() - before);
            for index in before..log.len() {
                let message = log.message(index);
                let topic = std::str::from_utf8(message.topic)?;
                messages.push(Message { topic, payload: message.payload });
            }
            let begin = shared.begin.load(Acquire);
            critical.run(&messages, |place| {
                let number = numbers[place];
                if number < trial.warm { None } else { trial.due(begin, number) }
            })?;
        }
        if seen > 0 {
            shared.seen.store(seen, Release);
        }
        if received.missing > trial.lost_max() {
            shared.is_hopeless.store(true, Relaxed);
        }
        if count == 0 && shared.is_over.load(Acquire) {
            break;
        }
    }
    let now = clock::thread_cpu_nanos();
    received.cpu = now - cpu.unwrap_or(now);
    (received.log, received.corrections) = (log, unpacker.corrections);
    if let Some(critical) = critical {
        received.notified = critical.notified;
        received.latencies = critical.into_latencies();
    }
    Ok(received)
}
