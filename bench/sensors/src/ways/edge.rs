//! The edge: messages come in at their pace, its flows run on them if it has any, and they are sent to the host.

use std::{
    net::UdpSocket,
    os::fd::AsFd as _,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tidegate_flow::Message;
use tidegate_sys::{clock, datagram::set_segment};

use super::{
    Way,
    critical::Critical,
    feed::Feed,
    packer::{DATAGRAM_BYTES_MAX, Packer},
    trial::{BUFFER_BYTES, Pace, Shared, Trial},
};

/// Messages that are looked at together where so many are due.
const GROUP_MAX: u64 = 256;
/// Datagrams of one call; the kernel takes no more.
const SEGMENTS_MAX: usize = 64;
/// Longest wait for the host to have had what warms it.
const WARM_MAX: Duration = Duration::from_secs(2);

/// The edge's counts.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// The number after that of the last message that was published.
    pub end: u64,
    /// Messages that were due while more waited than there is room for.
    pub skipped: u64,
    /// Of its time, the part in which it had something to do.
    pub busy: f64,
    /// Seconds from the first message to the last.
    pub seconds: f64,
    /// Notifications, and their latencies by application.
    pub notified: u64,
    pub(crate) latencies: Vec<Vec<f64>>,
}

/// An edge at work.
pub(super) struct Edge<'a> {
    trial: &'a Trial,
    shared: &'a Shared,
    feed: &'a mut Feed,
    critical: Option<Critical>,
    packer: Packer,
    outlet: Outlet,
    epoch: u16,
}

impl<'a> Edge<'a> {
    /// An edge that sends to the host's address that `socket` is connected to.
    pub(super) fn new(
        trial: &'a Trial,
        shared: &'a Shared,
        feed: &'a mut Feed,
        critical: Option<Critical>,
        socket: UdpSocket,
    ) -> Self {
        let packer = Packer::new(trial.way);
        let outlet = Outlet { socket, segment: 0 };
        Self { trial, shared, feed, critical, packer, outlet, epoch: 0 }
    }

    /// Publishes as the trial says.
    ///
    /// # Errors
    /// A datagram cannot be sent.
    pub(super) fn run(mut self) -> anyhow::Result<Sent> {
        self.warm()?;
        let Trial { pace, time, warm, messages_max, .. } = *self.trial;
        // The content of a socket of as many bytes.
        let backlog_max = (BUFFER_BYTES / self.feed.message_bytes()) as u64;
        let window = window(self.trial.way, self.shared.buffer_bytes);
        let (mut next, mut sent, mut busy) = (warm, Sent::default(), 0);
        let begin = clock::monotonic_nanos();
        self.shared.begin.store(begin, Release);
        let end = begin + time.as_nanos() as i64;
        let last = warm + messages_max;
        loop {
            let now = clock::monotonic_nanos();
            let is_over = now >= end || next == last || self.shared.is_hopeless.load(Relaxed);
            let due = match pace {
                Pace::Even(rate) => warm + ((now.min(end) - begin) as f64 * rate / 1e9) as u64,
                Pace::AsTaken if is_over => next,
                Pace::AsTaken => self.shared.seen.load(Acquire).max(warm) + window,
            };
            let due = due.min(last);
            if due > next + backlog_max && pace != Pace::AsTaken {
                self.packer.close();
                sent.skipped += due - next - backlog_max;
                next = due - backlog_max;
                if sent.skipped > self.trial.lost_max() {
                    self.shared.is_hopeless.store(true, Relaxed);
                }
            }
            let count = due.saturating_sub(next).min(GROUP_MAX);
            if count == 0 || self.shared.is_hopeless.load(Relaxed) {
                if is_over {
                    break;
                }
                self.packer.poll(now);
                self.outlet.send(&mut self.packer)?;
                std::hint::spin_loop();
                continue;
            }
            self.forward(next, count, now, Some(begin))?;
            next += count;
            busy += clock::monotonic_nanos() - now;
        }
        sent.seconds = (clock::monotonic_nanos() - begin) as f64 / 1e9;
        self.packer.finish();
        self.outlet.send(&mut self.packer)?;
        sent.end = next;
        sent.busy = busy as f64 / 1e9 / sent.seconds;
        if let Some(critical) = self.critical {
            sent.notified = critical.notified;
            sent.latencies = critical.into_latencies();
        }
        Ok(sent)
    }

    /// Sends the first messages, which are not measured, as the host takes them: flows get their keys and codecs their topics.
    fn warm(&mut self) -> anyhow::Result<()> {
        let warm = self.trial.warm;
        let window = window(self.trial.way, self.shared.buffer_bytes);
        let began = Instant::now();
        let mut next = 0;
        while self.shared.seen.load(Acquire) < warm {
            if began.elapsed() > WARM_MAX {
                // The last of it was lost.
                break;
            }
            let room = self.shared.seen.load(Acquire) + window;
            let count = room.min(warm).saturating_sub(next).min(GROUP_MAX);
            let now = clock::monotonic_nanos();
            self.forward(next, count, now, None)?;
            next += count;
            if next == warm {
                self.packer.close();
                self.outlet.send(&mut self.packer)?;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// The critical part first, then all of it is sent.
    fn forward(
        &mut self,
        first: u64,
        count: u64,
        now: i64,
        begin: Option<i64>,
    ) -> anyhow::Result<()> {
        let epoch = self.shared.epoch.load(Acquire);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.packer.restart(self.trial.way, epoch);
        }
        self.feed.advance(first..first + count);
        if let Some(critical) = &mut self.critical {
            let mut messages = Vec::with_capacity(count as usize);
            for number in first..first + count {
                let (topic, payload) = self.feed.message(number);
                messages.push(Message { topic, payload });
            }
            let due = |place| self.trial.due(begin?, first + place as u64);
            critical.run(&messages, due)?;
        }
        for number in first..first + count {
            let (topic, payload) = self.feed.message(number);
            self.packer.push(number, topic.as_bytes(), payload, now)?;
        }
        self.packer.poll(now);
        self.outlet.send(&mut self.packer)
    }
}

/// Messages under way at most where the host sets the pace: those that fit its socket, with the kernel's overhead.
fn window(way: Way, buffer_bytes: usize) -> u64 {
    let message_bytes = match way {
        Way::Baseline | Way::Flow => 2048,
        // Of eight, at least, a datagram.
        Way::BaselineBatch | Way::FlowBatch | Way::FlowComprex => 512,
        Way::Ours => 128,
    };
    (buffer_bytes / message_bytes) as u64
}

/// The sender of datagrams: many of one length by one call, which the kernel cuts.
struct Outlet {
    socket: UdpSocket,
    segment: usize,
}

impl Outlet {
    fn send(&mut self, packer: &mut Packer) -> anyhow::Result<()> {
        let datagrams = packer.datagrams();
        if datagrams.is_empty() {
            return Ok(());
        }
        let (whole, length) = datagrams.whole();
        match length.filter(|length| whole.len() > *length && 2 * *length < DATAGRAM_BYTES_MAX) {
            Some(length) => {
                self.cut(length)?;
                for some in whole.chunks((DATAGRAM_BYTES_MAX / length).min(SEGMENTS_MAX) * length) {
                    self.socket.send(some).context("sending to the host")?;
                }
            }
            None => {
                for datagram in datagrams.iter() {
                    // A length from before would cut it.
                    if self.segment != 0 && datagram.len() > self.segment {
                        self.cut(0)?;
                    }
                    self.socket.send(datagram).context("sending to the host")?;
                }
            }
        }
        datagrams.clear();
        Ok(())
    }

    fn cut(&mut self, length: usize) -> anyhow::Result<()> {
        if self.segment != length {
            set_segment(self.socket.as_fd(), length as u16).context("having datagrams cut")?;
            self.segment = length;
        }
        Ok(())
    }
}
