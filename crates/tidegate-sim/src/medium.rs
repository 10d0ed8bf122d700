//! Media: how a WAN link and a Wi-Fi-like channel carry packets, in virtual time.
//!
//! ```text
//!  ingress(now, from, to, packet)                              poll_deliver(now) -> (port, packet)
//!        │      WAN, each direction of its own                        ▲
//!        ├──▶ loss ──▶ drop-tail queue ──▶ line at its rate ──▶ delay ┤
//!        │      Wi-Fi, one channel for all                            │
//!        └──▶ station queue ──▶ DCF: wait, contend, send, retry ──▶ delay
//! ```
//!
//! One [`Medium`] holds all media of a [`Scenario`]. A packet is a length and whatever the caller
//! carries with it: the simulator moves frames without bytes, netlab moves the bytes of TUN devices,
//! and both see the same model.
//!
//! Always true: `now` never goes back; deliveries come in order of their due time and, within one
//! direction, in order of entry; the n-th packet of a direction meets the same loss, jitter and
//! transmission errors in every run with the same seed; nothing happens between two calls.

use std::collections::VecDeque;

use tidegate_message::Instant;

mod change;
mod queue;
mod scenario;
mod schedule;
mod speed;
mod trace;
mod unit;
mod wan;
mod wifi;

#[cfg(test)]
mod tests;

pub use change::{Change, ChangeError};
pub use queue::Counters;
pub use scenario::{
    Fade, Fault, Kind, MediumConfig, PortConfig, PortId, Scenario, ScenarioError, Step,
    TraceConfig, WanConfig, WifiConfig,
};
pub use trace::{OPPORTUNITY_BYTES, Opportunities, Rates, Trace, TraceError};
pub use unit::{FromText, Probability, Rate, UnitError};

use schedule::{Schedule, Setting};
use wan::Wan;
use wifi::Wifi;

/// The media of one scenario, carrying packets of `T`.
#[derive(Debug)]
pub struct Medium<T> {
    channels: Vec<Channel<T>>,
    names: Vec<ChannelNames>,
    schedules: Vec<Schedule>,
    /// Medium and index within it, by port.
    ports: Vec<(usize, usize)>,
    ready: VecDeque<Delivery<T>>,
    started: bool,
}

#[derive(Debug)]
struct ChannelNames {
    medium: String,
    first_port: usize,
    nodes: Vec<String>,
}

#[derive(Debug)]
enum Channel<T> {
    Wan(Wan<T>),
    Wifi(Wifi<T>),
}

/// A packet: how long it is and what the caller carries with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRef<T> {
    /// Length in bytes, the IP header included.
    pub len: usize,
    /// Data that the medium carries along untouched, and drops when it drops the packet.
    pub data: T,
}

/// The fate of a packet at the entry of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ingress {
    /// It is on its way; on Wi-Fi it may still be given up after its retries.
    Admitted,
    /// It is gone.
    Dropped(DropCause),
}

/// Why a packet was dropped at the entry of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// Random loss.
    Loss,
    /// The queue was full.
    Queue,
    /// The two ports are the same, unknown, or on different media.
    NoPath,
}

/// A packet that left a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<T> {
    /// Port that it arrives at.
    pub port: PortId,
    /// The packet.
    pub packet: PacketRef<T>,
    /// When the model delivers it, `now` or earlier: the difference is the caller's lateness.
    pub due: Instant,
}

/// Counters and state of one direction: a WAN port's outgoing line, a Wi-Fi station's uplink, or the
/// access point's queue towards one station.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionStats {
    /// Name of the medium.
    pub medium: String,
    /// Node, or `ap` for the access point.
    pub from: String,
    /// Node, `ap`, or `*` where a WAN line leads to all other ports.
    pub to: String,
    /// Line or PHY rate now, all factors applied; a delivery trace shows its mean.
    pub rate: Rate,
    /// Packets waiting or being sent.
    pub queued_packets: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// Counts so far.
    pub counters: Counters,
}

impl<T> Medium<T> {
    /// The media of a scenario, all chance drawn from `seed`.
    ///
    /// The scenario's clock, by which steps and traces go, starts with [`Medium::start`], or else
    /// with the first call that is given a `now`.
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut ports = Vec::new();
        let mut channels = Vec::new();
        let mut names = Vec::new();
        let mut schedules = Vec::new();
        for (index, config) in scenario.media.iter().enumerate() {
            let first_port = ports.len();
            ports.extend((0..config.ports.len()).map(|port| (index, port)));
            let stream = (index as u64) << 32;
            channels.push(match &config.kind {
                Kind::Wan(wan) => Channel::Wan(Wan::new(config, wan, seed, stream)),
                Kind::Wifi(wifi) => Channel::Wifi(Wifi::new(config, wifi, seed, stream)),
            });
            schedules.push(Schedule::new(config, seed, stream));
            let nodes = config.ports.iter().map(|port| port.node.clone()).collect();
            names.push(ChannelNames { medium: config.name.clone(), first_port, nodes });
        }
        Self { channels, names, schedules, ports, ready: VecDeque::new(), started: false }
    }

    /// Starts the scenario's clock, if it does not run yet.
    pub fn start(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.started, true) {
            self.schedules.iter_mut().for_each(|schedule| schedule.start(now));
            for channel in &mut self.channels {
                if let Channel::Wan(wan) = channel {
                    wan.start(now);
                }
            }
        }
    }

    /// Tells that a packet enters at port `from`, bound for port `to`.
    pub fn ingress(
        &mut self,
        now: Instant,
        from: PortId,
        to: PortId,
        packet: PacketRef<T>,
    ) -> Ingress {
        self.advance(now);
        let (Some(&(medium, from)), Some(&(other, to))) =
            (self.ports.get(from.0), self.ports.get(to.0))
        else {
            return Ingress::Dropped(DropCause::NoPath);
        };
        if medium != other || from == to {
            return Ingress::Dropped(DropCause::NoPath);
        }
        match &mut self.channels[medium] {
            Channel::Wan(wan) => wan.ingress(now, from, to, packet),
            Channel::Wifi(wifi) => wifi.ingress(now, from, to, packet),
        }
    }

    /// Asks for the next packet that is due; call until there is none.
    pub fn poll_deliver(&mut self, now: Instant) -> Option<Delivery<T>> {
        if self.ready.is_empty() {
            self.advance(now);
        }
        self.ready.pop_front()
    }

    /// Asks when to call [`Medium::poll_deliver`] again; `None` if nothing will happen by itself.
    ///
    /// Not every such time brings a delivery: channels and schedules have events of their own.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.ready.front() {
            Some(delivery) => Some(delivery.due),
            None => self.next_event().map(|(at, _)| at),
        }
    }

    /// Changes a medium now.
    ///
    /// # Errors
    /// [`ChangeError`] if it names something that does not exist or that this kind of medium does
    /// not have. Nothing is changed then.
    pub fn apply(&mut self, now: Instant, change: &Change) -> Result<(), ChangeError> {
        self.advance(now);
        let index = self.names.iter().position(|names| names.medium == change.medium);
        let Some(index) = index else {
            let known: Vec<&str> = self.names.iter().map(|names| names.medium.as_str()).collect();
            let (medium, known) = (change.medium.clone(), known.join(" "));
            return Err(ChangeError::Medium { medium, known });
        };
        let setting = self.resolve(index, change)?;
        self.channels[index].set(now, &setting);
        Ok(())
    }

    /// Counters and state of every direction.
    pub fn stats(&self) -> Vec<DirectionStats> {
        let mut all = Vec::new();
        for (channel, names) in self.channels.iter().zip(&self.names) {
            match channel {
                Channel::Wan(wan) => wan.stats(&names.medium, &names.nodes, &mut all),
                Channel::Wifi(wifi) => wifi.stats(&names.medium, &names.nodes, &mut all),
            }
        }
        all
    }

    fn resolve(&self, index: usize, change: &Change) -> Result<Setting, ChangeError> {
        let names = &self.names[index];
        let channel = &self.channels[index];
        let medium = || change.medium.clone();
        let port = match &change.port {
            None => None,
            Some(node) => {
                let can = |port: &usize| match channel {
                    Channel::Wan(_) => true,
                    Channel::Wifi(wifi) => wifi.has_radio(*port),
                };
                let found = names.nodes.iter().position(|name| name == node).filter(can);
                Some(found.ok_or_else(|| {
                    let known = (0..names.nodes.len()).filter(can);
                    let known: Vec<&str> = known.map(|port| names.nodes[port].as_str()).collect();
                    let (port, known) = (node.clone(), known.join(" "));
                    ChangeError::Port { medium: medium(), port, known }
                })?)
            }
        };
        let refused = match channel {
            Channel::Wan(wan) => [
                (change.error.is_some(), "error", "(it is of kind wan)"),
                (change.rate.is_some() && wan.traced(port), "rate", "(a trace sets it)"),
                (false, "", ""),
            ],
            Channel::Wifi(_) => [
                (change.loss.is_some(), "loss", "(it is of kind wifi)"),
                (port.is_some() && change.delay.is_some(), "delay", "of its own for one port"),
                (port.is_some() && change.error.is_some(), "error", "of its own for one port"),
            ],
        };
        if let Some(&(_, key, place)) = refused.iter().find(|(refused, ..)| *refused) {
            return Err(ChangeError::Inapplicable { medium: medium(), key, place });
        }
        let factor = change.factor;
        if factor.is_some_and(|factor| !change::factor_valid(factor)) {
            return Err(ChangeError::Factor);
        }
        let Change { rate, delay, loss, error, .. } = *change;
        Ok(Setting { port, rate, delay, loss, error, factor, fade: None })
    }

    /// Lets everything happen that is due.
    fn advance(&mut self, now: Instant) {
        self.start(now);
        while let Some((at, source)) = self.next_event().filter(|(at, _)| *at <= now) {
            match source {
                Source::Schedule(index) => {
                    let setting = self.schedules[index].fire();
                    self.channels[index].set(at, &setting);
                }
                Source::Channel(index) => {
                    let first = self.names[index].first_port;
                    let ready = &mut self.ready;
                    let deliver = |port: usize, packet, due| {
                        ready.push_back(Delivery { port: PortId(first + port), packet, due });
                    };
                    match &mut self.channels[index] {
                        Channel::Wan(wan) => wan.fire(at, deliver),
                        Channel::Wifi(wifi) => wifi.fire(at, deliver),
                    }
                }
            }
        }
    }

    /// The earliest event. There are a handful of sources, so a scan is as quick as a heap and has no
    /// stale entries to guard against. On a tie a change comes before the packets.
    fn next_event(&self) -> Option<(Instant, Source)> {
        let schedules = self.schedules.iter().enumerate();
        let changes = schedules.filter_map(|(i, s)| Some((s.next_event()?, Source::Schedule(i))));
        let channels = self.channels.iter().enumerate();
        let events = channels.filter_map(|(index, channel)| {
            let at = match channel {
                Channel::Wan(wan) => wan.next_event(),
                Channel::Wifi(wifi) => wifi.next_event(),
            };
            Some((at?, Source::Channel(index)))
        });
        changes.chain(events).min_by_key(|(at, _)| *at)
    }
}

impl<T> Channel<T> {
    fn set(&mut self, now: Instant, setting: &Setting) {
        match self {
            Self::Wan(wan) => wan.set(now, setting),
            Self::Wifi(wifi) => wifi.set(now, setting),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Schedule(usize),
    Channel(usize),
}
