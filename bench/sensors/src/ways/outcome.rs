//! One run of one way: edge and host in a thread each, with a processor each, and a subscriber that listens.

use std::{
    net::UdpSocket,
    os::fd::AsFd as _,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tidegate_sys::{
    datagram::{Method, Receiver, ReceiverOptions, set_receive_buffer},
    sched,
};

use super::{
    critical::Critical,
    edge::{Edge, Sent},
    feed::Feed,
    host::{self, Received},
    trial::{BUFFER_BYTES, LOSS_MAX, Pace, Shared, Trial},
};

/// How often the subscriber looks into its socket, which holds what comes in between.
const LISTEN_EVERY: Duration = Duration::from_millis(20);

/// The outcome of a trial.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The edge's counts.
    pub sent: Sent,
    /// The host's counts.
    pub received: Received,
    /// Messages that were published.
    pub published: u64,
    /// Those of them that the host did not take.
    pub lost: u64,
    /// Notifications that were sent, those of what came before included.
    pub notified: u64,
    /// Those of them that the subscriber had.
    pub heard: u64,
    /// Whether the edge was far from done when its time was over.
    pub is_late: bool,
    /// Whether it was ended because too much was lost.
    pub is_hopeless: bool,
    /// Latencies in us by application.
    pub latencies: Vec<Vec<f64>>,
}

impl Outcome {
    /// Whether nearly all messages and all notifications got there.
    pub fn is_stable(&self) -> bool {
        let few = |lost: u64, all: u64| lost as f64 <= LOSS_MAX * all as f64;
        !self.is_hopeless
            && !self.is_late
            && self.published > 0
            && few(self.lost, self.published)
            && few(self.notified.saturating_sub(self.heard), self.notified)
    }

    /// Messages a second of the host's processor time.
    pub fn host_rate(&self) -> f64 {
        self.received.taken as f64 * 1e9 / self.received.cpu as f64
    }

    /// Of the time, the part in which the host's thread ran.
    pub fn host_busy(&self) -> f64 {
        self.received.cpu as f64 / 1e9 / self.sent.seconds
    }
}

/// Runs a trial on the messages of `feed`.
///
/// # Errors
/// A thread or a socket cannot be had, or edge and host disagree on what was lost.
pub fn run(trial: &Trial, feed: &mut Feed) -> anyhow::Result<Outcome> {
    let bound = || -> anyhow::Result<(UdpSocket, usize)> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let bytes = set_receive_buffer(socket.as_fd(), BUFFER_BYTES)?;
        Ok((socket, bytes))
    };
    let ((below, buffer_bytes), (subscriber, _)) = (bound()?, bound()?);
    let connected = |to: &UdpSocket| -> anyhow::Result<UdpSocket> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(to.local_addr()?)?;
        Ok(socket)
    };
    let up = connected(&below)?;
    let critical = Critical::new(&trial.workloads, feed, connected(&subscriber)?)?;
    let (at_edge, at_host) =
        if trial.way.runs_at_edge() { (Some(critical), None) } else { (None, Some(critical)) };
    let processors = sched::processors()?;
    let (first, last) = (processors[0], processors[processors.len() - 1]);
    let shared = Shared { buffer_bytes, ..Shared::default() };
    let options = ReceiverOptions {
        method: Method::Batch,
        bytes_max: 2000,
        joins: false,
        names_sources: false,
    };
    let mut subscriber = Receiver::new(subscriber, options)?;
    thread::scope(|scope| {
        let shared = &shared;
        let host = scope.spawn(move || -> anyhow::Result<Received> {
            let _ready = AtEnd(&shared.is_ready);
            sched::keep_to(first)?;
            host::serve(trial, shared, below, at_host)
        });
        let edge = scope.spawn(move || -> anyhow::Result<Sent> {
            let _over = AtEnd(&shared.is_over);
            sched::keep_to(last)?;
            while !shared.is_ready.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
            Edge::new(trial, shared, feed, at_edge, up).run()
        });
        let mut heard = 0;
        let mut is_over = false;
        while !is_over {
            is_over = host.is_finished() && edge.is_finished();
            if !is_over {
                thread::sleep(LISTEN_EVERY);
            }
            loop {
                match subscriber.receive(Duration::ZERO, |_| true)? {
                    0 => break,
                    count => heard += count as u64,
                }
            }
        }
        let panicked = |_| anyhow::anyhow!("a thread of the bench panicked");
        let sent = edge.join().map_err(panicked)?.context("at the edge")?;
        let received = host.join().map_err(panicked)?.context("at the host")?;
        outcome(trial, shared, sent, received, heard)
    })
}

fn outcome(
    trial: &Trial,
    shared: &Shared,
    mut sent: Sent,
    mut received: Received,
    heard: u64,
) -> anyhow::Result<Outcome> {
    let published = sent.end - trial.warm;
    let lost = received.missing + (sent.end - received.end);
    anyhow::ensure!(
        received.taken + lost == published,
        "{} messages taken and {lost} lost of {published}",
        received.taken
    );
    // Else a short trial would count what merely waits.
    let seconds_max = 1.02 * trial.time.as_secs_f64() + 0.005;
    let is_late = matches!(trial.pace, Pace::Even(_)) && sent.seconds > seconds_max;
    let mut latencies = std::mem::take(&mut sent.latencies);
    latencies.append(&mut received.latencies);
    Ok(Outcome {
        published,
        lost,
        notified: sent.notified + received.notified,
        heard,
        is_late,
        is_hopeless: shared.is_hopeless.load(Ordering::Relaxed),
        latencies,
        sent,
        received,
    })
}

/// Says so when a thread ends, however it does.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
