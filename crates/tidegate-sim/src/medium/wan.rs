//! A full-duplex line: loss, queue, rate, delay.

use std::{collections::VecDeque, time::Duration};

use tidegate_message::Instant;

use super::{
    DirectionStats, DropCause, Ingress, PacketRef,
    queue::{Counters, Pipeline, earlier},
    scenario::{MediumConfig, WanConfig},
    schedule::Setting,
    speed::Speeds,
    trace::{OPPORTUNITY_BYTES, Opportunities, Trace},
    unit::{Probability, Rate},
};
use crate::random::Random;

/// Lines of several ports: each port's outgoing direction has one, towards all others.
#[derive(Debug)]
pub(super) struct Wan<T> {
    directions: Vec<Direction<T>>,
    speeds: Speeds,
}

impl<T> Wan<T> {
    pub(super) fn new(config: &MediumConfig, wan: &WanConfig, seed: u64, stream: u64) -> Self {
        let speeds = Speeds::new(config);
        let directions = config.ports.iter().enumerate().map(|(index, port)| {
            let stream = stream | (index as u64) << 8;
            let opportunities = config.trace.as_ref().and_then(|traced| match &traced.trace {
                Trace::Opportunities(trace) if traced.port.is_none_or(|port| port == index) => {
                    Some(trace.clone())
                }
                _ => None,
            });
            Direction {
                queue: VecDeque::new(),
                queued_bytes: 0,
                queue_bytes_max: config.queue_bytes,
                server: match opportunities {
                    Some(trace) => Server::Trace { trace, start: None, next: 0, factor: 1.0 },
                    None => Server::Line { rate: speeds.rate(index), since: Instant::MIN },
                },
                left_bits: 0.0,
                bucket_bits: wan.bucket_bytes as f64 * 8.0,
                tokens_bits: wan.bucket_bytes as f64 * 8.0,
                idle_since: Instant::MIN,
                delay: port.delay.unwrap_or(config.delay),
                jitter: wan.jitter,
                loss: port.loss.unwrap_or(wan.loss),
                loss_burst: wan.loss_burst,
                losing: false,
                loss_chance: Random::new(seed, stream | 1),
                jitter_chance: Random::new(seed, stream | 2),
                pipeline: Pipeline::new(),
                counters: Counters::default(),
            }
        });
        Self { directions: directions.collect(), speeds }
    }

    pub(super) fn start(&mut self, now: Instant) {
        for direction in &mut self.directions {
            if let Server::Trace { start, .. } = &mut direction.server {
                *start = Some(now);
            }
        }
    }

    pub(super) fn ingress(
        &mut self,
        now: Instant,
        from: usize,
        to: usize,
        packet: PacketRef<T>,
    ) -> Ingress {
        self.directions[from].ingress(now, to, packet)
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.directions.iter().filter_map(Direction::next_event).min()
    }

    pub(super) fn fire(
        &mut self,
        at: Instant,
        mut deliver: impl FnMut(usize, PacketRef<T>, Instant),
    ) {
        for direction in &mut self.directions {
            if direction.served_at().is_some_and(|served| served <= at) {
                direction.serve(at);
            }
            direction.pipeline.drain(at, &mut deliver);
        }
    }

    pub(super) fn set(&mut self, now: Instant, setting: &Setting) {
        self.speeds.set(setting);
        for (index, direction) in self.directions.iter_mut().enumerate() {
            direction.set_speed(now, self.speeds.rate(index), self.speeds.factor(index));
            if setting.port.is_none_or(|port| port == index) {
                direction.delay = setting.delay.unwrap_or(direction.delay);
                direction.loss = setting.loss.unwrap_or(direction.loss);
            }
        }
    }

    /// Whether a delivery trace sets the rate of that port, or of any.
    pub(super) fn traced(&self, port: Option<usize>) -> bool {
        let traced = |direction: &Direction<T>| matches!(direction.server, Server::Trace { .. });
        match port {
            Some(port) => traced(&self.directions[port]),
            None => self.directions.iter().any(traced),
        }
    }

    pub(super) fn stats(&self, medium: &str, nodes: &[String], all: &mut Vec<DirectionStats>) {
        for (index, direction) in self.directions.iter().enumerate() {
            let to = if nodes.len() == 2 { &nodes[1 - index] } else { "*" };
            all.push(DirectionStats {
                medium: medium.into(),
                from: nodes[index].clone(),
                to: to.into(),
                rate: match &direction.server {
                    Server::Line { rate, .. } => *rate,
                    Server::Trace { trace, factor, .. } => trace.mean().scaled(*factor),
                },
                queued_packets: direction.queue.len(),
                queued_bytes: direction.queued_bytes,
                counters: direction.counters,
            });
        }
    }
}

/// One port's outgoing line.
#[derive(Debug)]
struct Direction<T> {
    /// The packet being sent stands at the front.
    queue: VecDeque<Queued<T>>,
    queued_bytes: usize,
    queue_bytes_max: usize,
    server: Server,
    /// Bits of the packet at the front that are not sent yet.
    left_bits: f64,
    /// Size of the token bucket, what is in it, and since when it fills: while nothing is sent. Of a line.
    bucket_bits: f64,
    tokens_bits: f64,
    idle_since: Instant,
    delay: Duration,
    jitter: Duration,
    loss: Probability,
    loss_burst: f64,
    /// Whether a burst of losses is on.
    losing: bool,
    loss_chance: Random,
    jitter_chance: Random,
    pipeline: Pipeline<T>,
    counters: Counters,
}

#[derive(Debug)]
struct Queued<T> {
    packet: PacketRef<T>,
    to: usize,
    /// From -1 to 1.
    jitter: f64,
}

/// The service of the packet at the front.
#[derive(Debug)]
enum Server {
    /// A line of that rate; `since` is when `left_bits` was true.
    Line { rate: Rate, since: Instant },
    /// Recorded opportunities; `next` is the first that the front may use.
    Trace { trace: Opportunities, start: Option<Instant>, next: u64, factor: f64 },
}

impl<T> Direction<T> {
    fn ingress(&mut self, now: Instant, to: usize, packet: PacketRef<T>) -> Ingress {
        self.counters.in_packets += 1;
        self.counters.in_bytes += packet.len as u64;
        // Both draws are made for every packet, so that the n-th one meets the same fate whatever
        // happened to those before it.
        let jitter = self.jitter_chance.unit() * 2.0 - 1.0;
        if self.lost() {
            self.counters.dropped_loss += 1;
            return Ingress::Dropped(DropCause::Loss);
        }
        if self.queued_bytes + packet.len > self.queue_bytes_max {
            self.counters.dropped_queue += 1;
            return Ingress::Dropped(DropCause::Queue);
        }
        self.queued_bytes += packet.len;
        self.queue.push_back(Queued { packet, to, jitter });
        if self.queue.len() == 1 {
            if let Server::Line { rate, .. } = &self.server {
                let filled = rate.0 as f64 * now.since(self.idle_since).as_secs_f64();
                self.tokens_bits = (self.tokens_bits + filled).min(self.bucket_bits);
            }
            self.begin(now);
        }
        Ingress::Admitted
    }

    /// Loss as a Gilbert chain: every packet of the bad state is lost, a stay there lasts
    /// `loss_burst` packets on average, and the share of time in it is `loss`.
    fn lost(&mut self) -> bool {
        let (draw, loss) = (self.loss_chance.unit(), self.loss.share());
        if self.loss_burst <= 1.0 || loss >= 1.0 {
            self.losing = false;
            return draw < loss;
        }
        self.losing = if self.losing {
            loss > 0.0 && draw >= 1.0 / self.loss_burst
        } else {
            draw < loss / (self.loss_burst * (1.0 - loss))
        };
        self.losing
    }

    /// The packet at the front begins to be sent.
    fn begin(&mut self, now: Instant) {
        let Some(front) = self.queue.front() else { return };
        self.left_bits = front.packet.len as f64 * 8.0;
        match &mut self.server {
            Server::Line { since, .. } => {
                let at_once = self.tokens_bits.min(self.left_bits);
                self.tokens_bits -= at_once;
                self.left_bits -= at_once;
                *since = now;
            }
            Server::Trace { trace, start: Some(start), next, .. } => {
                // Opportunities that found the queue empty are gone.
                *next = (*next).max(trace.first_from(now.since(*start)));
            }
            Server::Trace { start: None, .. } => {}
        }
    }

    /// When the packet at the front is sent, or an opportunity comes.
    fn served_at(&self) -> Option<Instant> {
        self.queue.front()?;
        match &self.server {
            Server::Line { rate: Rate(0), .. } => None,
            Server::Line { rate, since } => {
                let nanos = (self.left_bits * 1e9 / rate.0 as f64).round();
                Some(*since + Duration::from_nanos(nanos as u64))
            }
            Server::Trace { trace, start, next, .. } => Some((*start)? + trace.offset(*next)),
        }
    }

    fn serve(&mut self, at: Instant) {
        match &mut self.server {
            Server::Line { since, .. } => {
                self.counters.busy += at.since(*since);
                self.depart(at);
            }
            Server::Trace { next, factor, .. } => {
                *next += 1;
                let mut credit_bits = OPPORTUNITY_BYTES as f64 * 8.0 * *factor;
                // The rest of an opportunity after one packet serves the next, and a packet that is
                // longer waits for more; a rest that the queue cannot use is gone.
                while credit_bits > 0.0 && !self.queue.is_empty() {
                    let used = credit_bits.min(self.left_bits);
                    credit_bits -= used;
                    self.left_bits -= used;
                    if self.left_bits > 0.0 {
                        break;
                    }
                    self.depart(at);
                }
            }
        }
    }

    /// The packet at the front leaves the line.
    fn depart(&mut self, at: Instant) {
        let Some(Queued { packet, to, jitter }) = self.queue.pop_front() else { return };
        self.queued_bytes -= packet.len;
        self.idle_since = at;
        self.counters.out_packets += 1;
        self.counters.out_bytes += packet.len as u64;
        let delay = self.delay.as_nanos() as f64 + jitter * self.jitter.as_nanos() as f64;
        self.pipeline.push(at + Duration::from_nanos(delay.max(0.0) as u64), to, packet);
        match &mut self.server {
            Server::Line { .. } => self.begin(at),
            // The opportunity that sent this packet may have credit left for the next one.
            Server::Trace { .. } => {
                self.left_bits = self.queue.front().map_or(0.0, |f| f.packet.len as f64 * 8.0);
            }
        }
    }

    fn set_speed(&mut self, now: Instant, new_rate: Rate, new_factor: f64) {
        match &mut self.server {
            Server::Line { rate, since } => {
                if *rate == new_rate {
                    return;
                }
                if !self.queue.is_empty() {
                    // Bits sent so far at the old rate are sent.
                    let sent = now.since(*since);
                    self.counters.busy += sent;
                    self.left_bits -= sent.as_secs_f64() * rate.0 as f64;
                    self.left_bits = self.left_bits.max(0.0);
                }
                (*rate, *since) = (new_rate, now);
            }
            Server::Trace { factor, .. } => *factor = new_factor,
        }
    }

    fn next_event(&self) -> Option<Instant> {
        earlier(self.served_at(), self.pipeline.next_due())
    }
}
