//! Datagrams.
//!
//! ```text
//!  socket ─▶ Receiver: all that have come ─▶ topic ─▶ messages of QoS 0, one behind another ─▶ a bundle for the broker
//! ```
//!
//! Senders get no answer, so only the broker is waited for. While it takes no more, datagrams wait in the kernel's buffer, and
//! what finds no room there is dropped and counted.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use tidegate_device::{
    line::{self, Unmapped},
    named,
};
use tidegate_message::Instant;
use tidegate_process::clock;
use tidegate_sys::datagram::{Datagram, Method, Receiver, ReceiverOptions, set_receive_buffer};
use tidegate_wire::line_protocol::{Batch, Precision};
use tokio_util::sync::CancellationToken;

use super::{
    Context, DatagramFormat, IngestError, IngestSettings, Live, Parts,
    counters::add,
    hand_over::{HandOver, Outcome},
    message::put_time,
    spawn,
};

/// Longest wait for datagrams: so often is looked whether to stop.
const WAIT: Duration = Duration::from_millis(100);
/// How often the kernel is asked what it dropped.
const LOOK: Duration = Duration::from_millis(100);
/// Topics and payloads that the lines of one datagram may make.
const LINES_BYTES_MAX: usize = 512 << 10;
/// Senders whose topic is remembered.
const SOURCES: usize = 1024;
/// Pause after a failure.
const RETRY: Duration = Duration::from_millis(100);

pub(super) fn start(
    (context, stop, pulse): Parts,
    socket: UdpSocket,
) -> Result<JoinHandle<()>, IngestError> {
    let settings = context.live().settings.clone();
    let name = settings.name.clone();
    let failed = {
        let (name, method) = (name.clone(), settings.method.word());
        move |source| IngestError::Receive { name: name.clone(), method, source }
    };
    match set_receive_buffer(socket.as_fd(), settings.receive_buffer_bytes) {
        Ok(bytes) if bytes / 2 < settings.receive_buffer_bytes => {
            tracing::warn!(ingest = %name, asked = settings.receive_buffer_bytes, bytes = bytes / 2,
                "the system gives less room for datagrams; net.core.rmem_max is its limit");
        }
        Ok(_) => {}
        Err(source) => return Err(failed(source)),
    }
    let options = ReceiverOptions {
        method: settings.method,
        bytes_max: settings.message_bytes_max,
        joins: settings.joins,
        names_sources: settings.names_sources(),
    };
    // A receiver belongs to the thread that makes it, and whether it can be made is to be known here.
    let (made, is_made) = mpsc::sync_channel(1);
    let thread = spawn(&name, move || {
        let receiver = match Receiver::new(socket, options) {
            Ok(receiver) => receiver,
            Err(error) => return drop(made.send(Err(error))),
        };
        let _ = made.send(Ok(receiver.method()));
        let udp = Udp::new(context);
        udp.run(receiver, &stop, || pulse.beat());
    })?;
    let method = is_made.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
    let method: Method = method.map_err(failed)?;
    tracing::info!(ingest = %name, method = method.word(), "datagrams are received");
    Ok(thread)
}

/// State of the thread.
struct Udp {
    context: Arc<Context>,
    /// Messages for the broker, and what they were made of.
    out: HandOver,
    batch: Tally,
    topic: String,
    /// Topics of senders, by a hash of their address.
    sources: Vec<Option<(Option<SocketAddr>, Box<str>)>>,
    /// A topic that was sent and is one.
    known: Box<str>,
}

/// The parts of a batch.
#[derive(Debug, Default)]
struct Tally {
    received: u64,
    received_bytes: u64,
    invalid: u64,
    too_large: u64,
    limited: u64,
}

impl Udp {
    fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            out: HandOver::default(),
            batch: Tally::default(),
            topic: String::new(),
            sources: vec![None; SOURCES],
            known: Box::default(),
        }
    }

    fn run(mut self, mut receiver: Receiver, stop: &CancellationToken, beat: impl Fn()) {
        let mut live = self.context.live();
        let (mut looked, mut dropped) = (clock::now(), 0);
        let mut told = false;
        while !stop.is_cancelled() {
            beat();
            let newest = self.context.live();
            if newest.settings.names_sources() && !receiver.names_sources() {
                let now = clock::now();
                receiver = receiver.naming_sources(|datagram| self.take(now, &live, &datagram));
            }
            self.exchange(&mut live, newest);
            let names_sources = receiver.names_sources();
            let mut now = clock::now();
            let mut has_waited = true;
            let received = receiver.receive(WAIT, |datagram| {
                // It was waited for: former settings may hold no more.
                if has_waited {
                    has_waited = false;
                    now = clock::now();
                    let newest = self.context.live();
                    if names_sources || !newest.settings.names_sources() {
                        self.exchange(&mut live, newest);
                    }
                }
                self.take(now, &live, &datagram);
                !self.out.is_due()
            });
            match received {
                Ok(_) => told = false,
                Err(error) => {
                    if !told {
                        tracing::warn!(ingest = %live.settings.name, %error, "datagrams cannot be received");
                        told = true;
                    }
                    std::thread::sleep(RETRY);
                }
            }
            if !self.out.is_empty() {
                self.write(&live.settings, stop, &beat);
            }
            self.out.settle();
            self.count();
            if now.since(looked) >= LOOK {
                looked = now;
                if let Ok(count) = receiver.dropped() {
                    add(&self.context.counters.dropped, u64::from(count.wrapping_sub(dropped)));
                    dropped = count;
                }
            }
        }
        self.out.finish();
        self.count();
    }

    /// Goes by the newest settings.
    fn exchange(&mut self, live: &mut Arc<Live>, newest: Arc<Live>) {
        if !Arc::ptr_eq(live, &newest) {
            *live = newest;
            self.sources.fill(None);
            self.known = Box::default();
        }
    }

    /// Appends the messages of a datagram to what is for the broker.
    #[inline]
    fn take(&mut self, now: Instant, live: &Live, datagram: &Datagram<'_>) {
        let settings = &live.settings;
        self.batch.received += 1;
        self.batch.received_bytes += datagram.bytes.len() as u64;
        if datagram.is_cut {
            self.batch.too_large += 1;
            return;
        }
        if settings.rate_max.is_some() {
            // A sender that is behind is not counted: else nothing would ever be taken again.
            if live.meter.spend(now, 0, 0).is_some() {
                self.batch.limited += 1;
                return;
            }
            live.meter.spend(now, 1, 0);
        }
        match settings.format {
            DatagramFormat::Payload => self.take_payload(settings, datagram),
            DatagramFormat::TopicPayload => self.take_named(settings, datagram.bytes),
            DatagramFormat::Line => self.take_lines(settings, datagram.bytes),
        }
    }

    #[inline]
    fn take_payload(&mut self, settings: &IngestSettings, datagram: &Datagram<'_>) {
        // Asked for where topics are made of it.
        let source = datagram.source.filter(|_| settings.topic.names_source());
        let at = source.map_or(0, place_of);
        let is_known = matches!(&self.sources[at], Some((known, _)) if *known == source);
        if !is_known {
            self.topic.clear();
            settings.topic.of_source(source, &mut self.topic);
            if settings.check_topic(&self.topic).is_err() {
                self.batch.invalid += 1;
                return;
            }
            self.sources[at] = Some((source, self.topic.as_str().into()));
        }
        let (_, topic) = self.sources[at].as_ref().expect("it is there, or was set above");
        self.out.push(topic, datagram.bytes, settings.retain, &[]);
    }

    #[inline]
    fn take_named(&mut self, settings: &IngestSettings, bytes: &[u8]) {
        let Some((topic, payload)) = named(bytes) else {
            self.batch.invalid += 1;
            return;
        };
        // Nothing is known at first, which is no topic.
        if topic.is_empty() || *topic != *self.known.as_bytes() {
            match str::from_utf8(topic) {
                Ok(topic) if settings.check_topic(topic).is_ok() => self.known = topic.into(),
                _ => {
                    self.batch.invalid += 1;
                    return;
                }
            }
        }
        self.out.push(&self.known, payload, settings.retain, &[]);
    }

    fn take_lines(&mut self, settings: &IngestSettings, bytes: &[u8]) {
        let Self { topic, out, batch, .. } = self;
        let waiting = out.waiting_bytes();
        let (template, limits) = (&settings.topic, settings.limits());
        let (names_field, mut user) = (template.names_field(), Vec::new());
        for line in Batch::new(bytes, Precision::Nanoseconds) {
            let Ok(line) = line else {
                batch.invalid += 1;
                continue;
            };
            // Of all fields of a line it is the same.
            user.clear();
            if let Some(at) = line.timestamp().filter(|_| names_field) {
                put_time(at, &mut user);
            }
            let taken = line::messages(
                &line,
                Precision::Nanoseconds,
                (template, &limits),
                topic,
                |topic, payload, _| {
                    // Long tags in the topic of each field make much of little.
                    if out.waiting_bytes() - waiting < LINES_BYTES_MAX {
                        out.push(topic, payload, settings.retain, &user);
                    } else {
                        batch.too_large += 1;
                    }
                },
            );
            match taken {
                Ok(()) => {}
                Err(Unmapped::TooLarge { .. }) => batch.too_large += 1,
                Err(Unmapped::NoTag(_) | Unmapped::Topic { .. }) => batch.invalid += 1,
            }
        }
    }

    /// Hands the broker what there is, and waits until it takes it, or until `stop`.
    fn write(&mut self, settings: &IngestSettings, stop: &CancellationToken, beat: &impl Fn()) {
        while !stop.is_cancelled() {
            // Waiting for the broker is not hanging, nor is waiting for datagrams. Datagrams that come meanwhile wait in the
            // kernel.
            beat();
            match self.out.flush(&self.context, settings) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(ingest = %settings.name, %error, "no connection to the broker");
                    return std::thread::sleep(RETRY);
                }
            }
        }
    }

    fn count(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let outcome = self.out.take_outcome();
        if batch.received == 0 && outcome == Outcome::default() {
            return;
        }
        let counters = &self.context.counters;
        for (counter, count) in [
            (&counters.received, batch.received),
            (&counters.received_bytes, batch.received_bytes),
            (&counters.published, outcome.published),
            (&counters.published_bytes, outcome.published_bytes),
            (&counters.refused, outcome.lost),
            (&counters.invalid, batch.invalid),
            (&counters.too_large, batch.too_large),
            (&counters.limited, batch.limited),
        ] {
            add(counter, count);
        }
    }
}

/// Where the topic of a sender is remembered; 0 is for the one topic of all senders.
fn place_of(source: SocketAddr) -> usize {
    let address = match source {
        SocketAddr::V4(source) => u64::from(u32::from(*source.ip())),
        SocketAddr::V6(source) => {
            let bits = u128::from(*source.ip());
            (bits >> 64) as u64 ^ bits as u64
        }
    };
    let mixed = (address ^ u64::from(source.port()) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 + (mixed >> 32) as usize % (SOURCES - 1)
}
