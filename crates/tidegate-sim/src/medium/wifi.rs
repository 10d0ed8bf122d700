//! One half-duplex channel after the distributed coordination function (DCF) of IEEE 802.11.
//!
//! A station with packets waits until the channel was idle for DIFS, counts down its backoff by one
//! per idle slot, and sends an aggregate of MPDUs under RTS and CTS. Stations that reach zero in the same slot
//! collide and double their contention windows. The receiver answers an aggregate with a block
//! acknowledgement; MPDUs that were not received are sent again, and packets are released in order.
//! Ports marked `wired` are behind the access point, which is one more station with a queue for each
//! radio; it serves them in turn, one aggregate each.
//!
//! It is Wi-Fi-like, not a radio: no hidden stations, no rate adaptation, no access categories, no
//! capture. `WifiConfig::crowd` stands for what a crowded channel costs beyond DCF.

use std::{collections::VecDeque, time::Duration};

use tidegate_message::Instant;

use super::{
    DirectionStats, DropCause, Ingress, PacketRef,
    queue::{Counters, Pipeline, earlier},
    scenario::{MediumConfig, WifiConfig},
    schedule::Setting,
    speed::Speeds,
    unit::Rate,
};
use crate::random::Random;

// Times of the OFDM PHY in a 5 GHz band; control frames at 24 Mbit/s.
pub(super) const SLOT: Duration = Duration::from_micros(9);
pub(super) const SIFS: Duration = Duration::from_micros(16);
pub(super) const DIFS: Duration = Duration::from_micros(34);
pub(super) const RTS: Duration = Duration::from_micros(28);
pub(super) const CTS: Duration = Duration::from_micros(28);
pub(super) const BLOCK_ACK: Duration = Duration::from_micros(32);
pub(super) const PREAMBLE: Duration = Duration::from_micros(40);
/// MAC header, check sequence and delimiter of one MPDU.
pub(super) const MPDU_BYTES: usize = 40;
pub(super) const WINDOW_MIN: u32 = 15;
pub(super) const WINDOW_MAX: u32 = 1023;

/// The channel and its stations.
#[derive(Debug)]
pub(super) struct Wifi<T> {
    config: WifiConfig,
    delay: Duration,
    queue_bytes_max: usize,
    speeds: Speeds,
    /// The ports' stations, then the access point.
    stations: Vec<Station<T>>,
    /// The station of each port, `None` if it is wired.
    radio: Vec<Option<usize>>,
    pipelines: Vec<Pipeline<T>>,
    phase: Phase,
    /// When the channel last became idle.
    idle_since: Option<Instant>,
}

/// A contender for the channel: a port's radio, or the access point.
#[derive(Debug)]
struct Station<T> {
    /// Towards the access point one, from it one for each radio.
    flows: Vec<Flow<T>>,
    /// Where the search for the next flow to serve begins.
    turn: usize,
    /// Idle slots to count down before sending; 0 also when no backoff is pending.
    slots: u32,
    /// When the count continues, if the channel stays idle.
    counting_from: Instant,
    window: u32,
    chance: Random,
}

/// Packets of one direction over the air.
#[derive(Debug)]
struct Flow<T> {
    /// Port whose radio rate it is sent with.
    radio_port: usize,
    packets: VecDeque<Mpdu<T>>,
    queued_bytes: usize,
    chance: Random,
    counters: Counters,
}

#[derive(Debug)]
struct Mpdu<T> {
    packet: PacketRef<T>,
    to: usize,
    /// The number of the packet in its direction.
    number: u64,
    tries: u8,
    received: bool,
}

#[derive(Debug)]
enum Phase {
    Idle,
    Collision {
        until: Instant,
        stations: Vec<usize>,
    },
    /// The first `mpdus` of a flow are on air, those already received left out.
    Sending {
        until: Instant,
        station: usize,
        flow: usize,
        mpdus: usize,
    },
}

impl<T> Wifi<T> {
    pub(super) fn new(config: &MediumConfig, wifi: &WifiConfig, seed: u64, stream: u64) -> Self {
        let flow = |radio_port: usize, stream: u64| Flow {
            radio_port,
            packets: VecDeque::new(),
            queued_bytes: 0,
            chance: Random::new(seed, stream),
            counters: Counters::default(),
        };
        let station = |flows, stream| Station {
            flows,
            turn: 0,
            slots: 0,
            counting_from: Instant::MIN,
            window: WINDOW_MIN,
            chance: Random::new(seed, stream),
        };
        let (mut stations, mut radio, mut down) = (Vec::new(), Vec::new(), Vec::new());
        for (index, port) in config.ports.iter().enumerate() {
            let stream = stream | (index as u64) << 8;
            radio.push((!port.wired).then_some(stations.len()));
            if !port.wired {
                stations.push(station(vec![flow(index, stream | 1)], stream | 2));
                down.push(flow(index, stream | 3));
            }
        }
        stations.push(station(down, stream | 0xFFFF));
        Self {
            config: wifi.clone(),
            delay: config.delay,
            queue_bytes_max: config.queue_bytes,
            speeds: Speeds::new(config),
            stations,
            pipelines: radio.iter().map(|_| Pipeline::new()).collect(),
            radio,
            phase: Phase::Idle,
            idle_since: None,
        }
    }

    pub(super) fn has_radio(&self, port: usize) -> bool {
        self.radio[port].is_some()
    }

    pub(super) fn ingress(
        &mut self,
        now: Instant,
        from: usize,
        to: usize,
        packet: PacketRef<T>,
    ) -> Ingress {
        let (station, flow) = match (self.radio[from], self.radio[to]) {
            (Some(station), _) => (station, 0),
            (None, Some(radio)) => (self.access_point(), radio),
            (None, None) => {
                self.pipelines[to].push(now + self.delay, to, packet);
                return Ingress::Admitted;
            }
        };
        self.enqueue(now, station, flow, to, packet)
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        let channel = match &self.phase {
            Phase::Collision { until, .. } | Phase::Sending { until, .. } => Some(*until),
            Phase::Idle => self.contenders().map(|index| self.stations[index].expiry()).min(),
        };
        let due = self.pipelines.iter().filter_map(Pipeline::next_due).min();
        earlier(channel, due)
    }

    pub(super) fn fire(
        &mut self,
        at: Instant,
        mut deliver: impl FnMut(usize, PacketRef<T>, Instant),
    ) {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => {
                if self.contenders().any(|index| self.stations[index].expiry() <= at) {
                    self.begin(at);
                }
            }
            Phase::Collision { until, stations } if until <= at => {
                self.idle(at);
                for index in stations {
                    self.stations[index].back_off_longer();
                }
            }
            Phase::Sending { until, station, flow, mpdus } if until <= at => {
                self.idle(at);
                self.acknowledge(at, station, flow, mpdus);
            }
            busy => self.phase = busy,
        }
        for pipeline in &mut self.pipelines {
            pipeline.drain(at, &mut deliver);
        }
    }

    pub(super) fn set(&mut self, now: Instant, setting: &Setting) {
        self.speeds.set(setting);
        self.delay = setting.delay.unwrap_or(self.delay);
        self.config.error = setting.error.unwrap_or(self.config.error);
        // Stations that have come back into range contend from now on.
        for index in 0..self.stations.len() {
            self.join(now, index);
        }
    }

    pub(super) fn stats(&self, medium: &str, nodes: &[String], all: &mut Vec<DirectionStats>) {
        for (index, station) in self.stations.iter().enumerate() {
            for flow in &station.flows {
                let (node, ap) = (nodes[flow.radio_port].clone(), "ap".to_owned());
                let (from, to) = if index == self.access_point() { (ap, node) } else { (node, ap) };
                all.push(DirectionStats {
                    medium: medium.into(),
                    from,
                    to,
                    rate: self.speeds.rate(flow.radio_port),
                    queued_packets: flow.packets.len(),
                    queued_bytes: flow.queued_bytes,
                    counters: flow.counters,
                });
            }
        }
    }

    fn access_point(&self) -> usize {
        self.stations.len() - 1
    }

    fn enqueue(
        &mut self,
        now: Instant,
        station: usize,
        flow: usize,
        to: usize,
        packet: PacketRef<T>,
    ) -> Ingress {
        let queue_bytes_max = self.queue_bytes_max;
        let flow = &mut self.stations[station].flows[flow];
        let number = flow.counters.in_packets;
        flow.counters.in_packets += 1;
        flow.counters.in_bytes += packet.len as u64;
        if flow.queued_bytes + packet.len > queue_bytes_max {
            flow.counters.dropped_queue += 1;
            return Ingress::Dropped(DropCause::Queue);
        }
        flow.queued_bytes += packet.len;
        flow.packets.push_back(Mpdu { packet, to, number, tries: 0, received: false });
        self.join(now, station);
        Ingress::Admitted
    }

    /// A station that has packets takes part in contention.
    fn join(&mut self, now: Instant, index: usize) {
        let idle = matches!(self.phase, Phase::Idle);
        let slot = self.slot_from(now);
        let contends = self.contends(index);
        let station = &mut self.stations[index];
        if !contends {
            return;
        }
        if !idle {
            // A station that finds the channel busy has to draw a backoff, unless one is pending.
            if station.slots == 0 {
                station.slots = station.chance.up_to(station.window);
            }
        } else if station.expiry() < now {
            // Its backoff ended while it had nothing to send: it may send in the next slot.
            (station.slots, station.counting_from) = (0, slot);
        }
    }

    /// The first slot boundary at or after `now`, DIFS after the channel became idle.
    fn slot_from(&self, now: Instant) -> Instant {
        let Some(first) = self.idle_since.map(|idle| idle + DIFS) else { return now };
        let slots = now.since(first).as_nanos().div_ceil(SLOT.as_nanos());
        first + Duration::from_nanos(u64::try_from(slots * SLOT.as_nanos()).unwrap_or(u64::MAX))
    }

    fn contends(&self, index: usize) -> bool {
        self.stations[index].flows.iter().any(|flow| self.sendable(flow))
    }

    fn contenders(&self) -> impl Iterator<Item = usize> {
        (0..self.stations.len()).filter(|index| self.contends(*index))
    }

    fn sendable(&self, flow: &Flow<T>) -> bool {
        !flow.packets.is_empty() && self.speeds.rate(flow.radio_port) > Rate(0)
    }

    /// The backoff of one or more stations has ended: they send.
    fn begin(&mut self, at: Instant) {
        let mut senders = Vec::new();
        for index in 0..self.stations.len() {
            let contends = self.contends(index);
            let station = &mut self.stations[index];
            if contends && station.expiry() <= at {
                senders.push(index);
            } else {
                station.freeze(at, contends);
            }
        }
        if let [station] = senders[..] {
            let (flow, mpdus, air) = self.aggregate(station);
            let chosen = &mut self.stations[station];
            chosen.turn = flow + 1;
            let announced = if self.config.rts { RTS + SIFS + CTS + SIFS } else { Duration::ZERO };
            let airtime = announced + PREAMBLE + air + SIFS + BLOCK_ACK;
            chosen.flows[flow].counters.busy += airtime;
            self.phase = Phase::Sending { until: at + airtime, station, flow, mpdus };
            return;
        }
        let mut lost = RTS + SIFS + CTS;
        for &station in &senders {
            let (flow, _, air) = self.aggregate(station);
            self.stations[station].flows[flow].counters.collisions += 1;
            if !self.config.rts {
                lost = lost.max(PREAMBLE + air + SIFS + BLOCK_ACK);
            }
        }
        self.phase = Phase::Collision { until: at + lost, stations: senders };
    }

    /// The next transmission of a station: the flow whose turn it is, how many MPDUs from its front
    /// (those already received count towards the window of the block acknowledgement), their time
    /// on air.
    fn aggregate(&self, index: usize) -> (usize, usize, Duration) {
        let station = &self.stations[index];
        let count = station.flows.len();
        let turns = (0..count).map(|offset| (station.turn + offset) % count);
        let flow = turns.into_iter().find(|flow| self.sendable(&station.flows[*flow]));
        let index = flow.expect("only a station with something to send contends");
        let flow = &station.flows[index];
        let crowd = &self.config.crowd;
        let factor = crowd[self.waiting_stations().clamp(1, crowd.len()) - 1];
        let rate = self.speeds.rate(flow.radio_port).scaled(factor);
        let (mut mpdus, mut air) = (0, Duration::ZERO);
        for mpdu in flow.packets.iter().take(self.config.aggregate) {
            if !mpdu.received {
                // A rate so low that the factor rounds it to nothing sends one packet a day.
                let time = rate.time_of(mpdu.packet.len + MPDU_BYTES);
                let time = time.unwrap_or(Duration::from_secs(86_400));
                if !air.is_zero() && air + time > self.config.txop {
                    break;
                }
                air += time;
            }
            mpdus += 1;
        }
        (index, mpdus, air)
    }

    /// Stations with packets waiting, the access point left out.
    fn waiting_stations(&self) -> usize {
        self.contenders().filter(|index| *index != self.access_point()).count()
    }

    /// The channel has become idle.
    fn idle(&mut self, at: Instant) {
        self.idle_since = Some(at);
        for station in &mut self.stations {
            station.counting_from = at + DIFS;
        }
    }

    /// The block acknowledgement of an aggregate has come, or not.
    fn acknowledge(&mut self, at: Instant, station: usize, flow: usize, mpdus: usize) {
        let error = self.config.error.share();
        let sender = &mut self.stations[station];
        let sent = &mut sender.flows[flow];
        let mut any = false;
        for mpdu in sent.packets.iter_mut().take(mpdus).filter(|mpdu| !mpdu.received) {
            let draw = sent.chance.unit_at(mpdu.number << 8 | u64::from(mpdu.tries));
            mpdu.tries += 1;
            mpdu.received = draw >= error;
            any |= mpdu.received;
            sent.counters.retries += u64::from(!mpdu.received);
        }
        if any {
            sender.window = WINDOW_MIN;
            sender.slots = sender.chance.up_to(sender.window);
        } else {
            sender.back_off_longer();
        }
        while let Some(mpdu) = self.release(station, flow) {
            if station == self.access_point() || self.radio[mpdu.to].is_none() {
                self.pipelines[mpdu.to].push(at + self.delay, mpdu.to, mpdu.packet);
            } else if let Some(radio) = self.radio[mpdu.to] {
                // Over the air again, from the access point; its counters tell of a full queue.
                let _ = self.enqueue(at, self.access_point(), radio, mpdu.to, mpdu.packet);
            }
        }
    }

    /// The packet at the front of a flow, if it was received; those given up are dropped.
    fn release(&mut self, station: usize, flow: usize) -> Option<Mpdu<T>> {
        let flow = &mut self.stations[station].flows[flow];
        loop {
            let front = flow.packets.front()?;
            if !front.received && front.tries <= self.config.retries {
                return None;
            }
            let mpdu = flow.packets.pop_front()?;
            flow.queued_bytes -= mpdu.packet.len;
            if mpdu.received {
                flow.counters.out_packets += 1;
                flow.counters.out_bytes += mpdu.packet.len as u64;
                return Some(mpdu);
            }
            flow.counters.dropped_retry += 1;
        }
    }
}

impl<T> Station<T> {
    /// When it sends if the channel stays idle.
    fn expiry(&self) -> Instant {
        self.counting_from + SLOT * self.slots
    }

    /// Another station begins to send: the count stops.
    fn freeze(&mut self, at: Instant, contends: bool) {
        if contends && self.slots == 0 {
            // It was about to send without a backoff and now finds the channel busy.
            self.slots = self.chance.up_to(self.window);
            return;
        }
        let elapsed = at.since(self.counting_from).as_nanos() / SLOT.as_nanos();
        self.slots = self.slots.saturating_sub(u32::try_from(elapsed).unwrap_or(u32::MAX));
    }

    /// Nothing came through: the contention window doubles.
    fn back_off_longer(&mut self) {
        self.window = (self.window * 2 + 1).min(WINDOW_MAX);
        self.slots = self.chance.up_to(self.window);
    }
}
