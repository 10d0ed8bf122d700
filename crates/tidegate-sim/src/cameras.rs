//! Camera nodes and their edge node, joined by a modelled medium, in virtual time.
//!
//! ```text
//!  capture ─▶ Transfer ─▶ encoder model ─▶ Transfer ─▶ packets ─▶ Medium ─▶ receiver ─▶ outcome
//!                 ▲                                                            │
//!                 └──────────── acknowledgements, after the feedback delay ────┘
//! ```
//!
//! The transfers, the coordinator and the media are the ones of the live system; modelled here are the
//! camera (sizes drawn around a mean), the encoder (sizes after a table that is a little wrong, time by
//! bytes) and the link (packets in order, a bounded number of bytes in the medium, reset at the deadline).
//!
//! Always true: the same [`Site`] and seed give the same outcome; every captured frame has exactly one
//! fate; the receiver's clock is days off and nothing depends on it.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidegate_frame::{
    coordinator::{self, Coordinator, CoordinatorConfig, Quality},
    table::{Table, TableSet},
    transfer::{Command, Input, Report, SendHeader, Transfer, TransferConfig},
};
use tidegate_message::{CameraName, Demand, DropReason, FrameRate, FrameSize, Instant};

use crate::{
    agenda::Agenda,
    medium::{Ingress, Medium, PacketRef, PortId, Scenario},
    outcome::{Fate, FrameOutcome, Outcome},
};

/// Payload of a packet, in bytes.
const PACKET_BYTES: u32 = 1200;
/// Bytes that the link's records, QUIC, UDP and IP add to it.
const HEADER_BYTES: u32 = 60;
/// How often the receiver acknowledges the progress of a frame.
const PROGRESS: Duration = Duration::from_millis(10);
/// When the site begins, by the senders' clock.
const BEGIN: Instant = Instant::from_millis(1_700_000_000_000);
/// How far the receiver's clock is ahead.
const CLOCK_OFFSET: Duration = Duration::from_secs(3 * 86_400);
/// Events at one instant after which the site is stuck.
const STUCK_AFTER: u32 = 1_000_000;

/// A camera and the subscription it serves.
#[derive(Clone, Debug)]
pub struct Camera {
    /// Time between frames.
    pub period: Duration,
    /// Time of the first capture.
    pub phase: Duration,
    /// Mean size of the unmodified frames.
    pub bytes: f64,
    /// Sizes vary uniformly by this part either way.
    pub noise: f64,
    /// How far each row's true ratio is off the table's, drawn once for a row; uniform, either way.
    pub mismatch: f64,
    /// Width and height of the frames.
    pub source: FrameSize,
    /// The demand of the subscription.
    pub demand: Demand,
    /// A demand that takes its place, and when.
    pub then: Option<(Duration, Demand)>,
    /// Settings of the transfer.
    pub config: TransferConfig,
    /// The tables the transfer looks in.
    pub tables: Arc<TableSet>,
    /// The table the encoder really follows.
    pub truth: Table,
    /// Encode time of a frame: a constant and a time per megabyte of the original.
    pub encode: (Duration, Duration),
}

/// A site to run.
#[derive(Clone, Debug)]
pub struct Site {
    /// All chance is drawn from it.
    pub seed: u64,
    /// How long cameras capture.
    pub length: Duration,
    /// One medium with the nodes `edge`, `cam1`, `cam2`, ….
    pub scenario: Scenario,
    /// Time an acknowledgement takes.
    pub feedback: Duration,
    /// Shortest time a byte takes to the edge, as the link knows it.
    pub one_way: Duration,
    /// Time from the last byte to the application's callback.
    pub delivery: Duration,
    /// How often the edge node reads what has come; zero for each packet at once. A busy host, or a network card that gathers
    /// interrupts.
    pub read_every: Duration,
    /// How often the edge node is held up by something else, and for how long: it reads nothing meanwhile.
    pub held_up: (Duration, Duration),
    /// The cameras.
    pub cameras: Vec<Camera>,
    /// Whether the edge node coordinates them, and how.
    pub coordinator: Option<CoordinatorConfig>,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    camera: usize,
    frame: Instant,
    number: u64,
    bytes: u32,
    /// Bytes of the whole frame: tells two encodings of it apart.
    total: u32,
}

enum Event {
    Capture { camera: usize },
    Demand { camera: usize, demand: Demand },
    Encoded { camera: usize, input: Input },
    Feedback { camera: usize, input: Input },
    Share { camera: usize, allotment: coordinator::Allotment },
}

struct Outgoing {
    frame: Instant,
    total: u32,
    bytes: u32,
    sent: u32,
    started: bool,
}

struct Receiving {
    total: u32,
    received: u32,
    first_at: Instant,
    acknowledged_at: Instant,
    header: SendHeader,
}

struct Node {
    camera: Camera,
    name: CameraName,
    transfer: Transfer,
    ports: (PortId, PortId),
    original_bytes: HashMap<Instant, u32>,
    ratios: HashMap<String, (f64, f64)>,
    sent_frames: f64,
    encoded: HashSet<Instant>,
    outgoing: VecDeque<Outgoing>,
    in_medium: VecDeque<Packet>,
    number: u64,
    receiving: HashMap<Instant, Receiving>,
    shift: Duration,
    /// Capture time from which the next frame is wanted, where not all are.
    wanted_at: Instant,
}

struct Run<'a> {
    site: &'a Site,
    rng: SmallRng,
    agenda: Agenda<Event>,
    medium: Medium<Packet>,
    nodes: Vec<Node>,
    coordinator: Option<Coordinator>,
    fates: BTreeMap<(usize, Instant), Option<Fate>>,
    reports: Vec<(usize, Instant, Report)>,
}

impl Site {
    /// Lets the site run to its end.
    ///
    /// # Panics
    /// If the scenario has no path from a camera to `edge`, or if time stops advancing: both are mistakes
    /// of the caller's or ours, and a simulation with either shows nothing.
    pub fn run(&self) -> Outcome {
        let mut run = Run::new(self);
        run.finish();
        let frames = run.fates.into_iter().map(|((camera, captured), fate)| FrameOutcome {
            camera,
            captured: captured.since(BEGIN),
            fate: fate.unwrap_or(Fate::Unfinished),
        });
        let reports =
            run.reports.into_iter().map(|(camera, at, report)| (camera, at.since(BEGIN), report));
        Outcome {
            bounds: self.cameras.iter().map(|camera| camera.demand.bounds).collect(),
            length: self.length,
            frames: frames.collect(),
            reports: reports.collect(),
        }
    }
}

impl<'a> Run<'a> {
    fn new(site: &'a Site) -> Self {
        let mut rng = SmallRng::seed_from_u64(site.seed);
        let node = |(index, camera): (usize, &Camera)| {
            let text = format!("cam{}", index + 1);
            let ports =
                site.scenario.path(&text, "edge").expect("every camera has a path to the edge");
            let id = u32::try_from(index).expect("few cameras");
            let tables = camera.tables.clone();
            let transfer = Transfer::new(BEGIN, id, camera.demand, camera.config.clone(), tables);
            let mut ratio = |row: &tidegate_frame::table::Row| {
                let off = 1.0 + camera.mismatch * rng.random_range(-1.0..=1.0);
                // A frame that passes unchanged cannot be off.
                let off = if row.setting.is_original() { 1.0 } else { off };
                (row.setting.to_string(), (row.bytes / camera.truth.original_bytes * off, row.kept))
            };
            Node {
                camera: camera.clone(),
                name: text.parse().expect("a plain name"),
                transfer,
                ports,
                original_bytes: HashMap::new(),
                ratios: camera.truth.rows.iter().map(&mut ratio).collect(),
                sent_frames: 0.0,
                encoded: HashSet::new(),
                outgoing: VecDeque::new(),
                in_medium: VecDeque::new(),
                number: 0,
                receiving: HashMap::new(),
                shift: Duration::ZERO,
                wanted_at: BEGIN,
            }
        };
        let nodes: Vec<Node> = site.cameras.iter().enumerate().map(node).collect();
        let mut medium = Medium::new(&site.scenario, site.seed);
        medium.start(BEGIN);
        let mut run = Self {
            site,
            rng,
            agenda: Agenda::new(BEGIN),
            medium,
            nodes,
            coordinator: site.coordinator.clone().map(|config| Coordinator::new(BEGIN, config)),
            fates: BTreeMap::new(),
            reports: Vec::new(),
        };
        for (camera, plan) in site.cameras.iter().enumerate() {
            run.agenda.at(BEGIN + plan.phase, Event::Capture { camera });
            if let Some((after, demand)) = plan.then {
                run.agenda.at(BEGIN + after, Event::Demand { camera, demand });
            }
        }
        run.join();
        run
    }

    fn join(&mut self) {
        let Some(coordinator) = &mut self.coordinator else { return };
        for node in &self.nodes {
            coordinator.handle(BEGIN, node.joined());
        }
    }

    fn finish(&mut self) {
        // Frames captured last get time to arrive.
        let end = BEGIN + self.site.length + Duration::from_secs(5);
        loop {
            let events = self.agenda.next().map(|(at, _)| at);
            let timeouts = self.nodes.iter().filter_map(|node| node.transfer.poll_timeout());
            let coordinator = self.coordinator.as_ref().and_then(Coordinator::poll_timeout);
            let others = [events, self.medium.poll_timeout(), coordinator];
            let Some(next) = timeouts.chain(others.into_iter().flatten()).min() else { return };
            if next > end {
                return;
            }
            assert!(
                self.agenda.advance(next) < STUCK_AFTER,
                "time stands still at {next}, seed {}",
                self.site.seed
            );
            while let Some(delivery) = self.medium.poll_deliver(self.agenda.now()) {
                self.deliver(delivery.due, delivery.packet.data);
            }
            while let Some(event) = self.agenda.pop() {
                self.happen(event);
            }
            self.allot();
            for camera in 0..self.nodes.len() {
                self.obey(camera);
                self.pump(camera);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Capture { camera } => self.capture(camera),
            Event::Demand { camera, demand } => {
                self.nodes[camera].transfer.handle(self.agenda.now(), Input::Demand(demand));
            }
            Event::Encoded { camera, input } => {
                self.nodes[camera].transfer.handle(self.agenda.now(), input);
            }
            Event::Feedback { camera, input } => {
                let node = &mut self.nodes[camera];
                let rtt_min = self.site.feedback + self.site.one_way;
                let in_flight = node.in_medium.iter().map(|packet| u64::from(packet.bytes)).sum();
                node.transfer
                    .handle(self.agenda.now(), Input::Path { rtt: rtt_min, rtt_min, in_flight });
                node.transfer.handle(self.agenda.now(), input);
            }
            Event::Share { camera, allotment } => {
                let node = &mut self.nodes[camera];
                node.shift += allotment.shift;
                let coordinator::Allotment { bytes_per_second, valid_for, .. } = allotment;
                node.transfer
                    .handle(self.agenda.now(), Input::Share { bytes_per_second, valid_for });
            }
        }
    }

    /// The coordinator hears of a frame that has come whole, as from an edge node. Once silent for long, a camera joins again.
    fn measure(&mut self, camera: usize, bytes: u32, first_at: Instant, last_at: Instant) {
        let node = &self.nodes[camera];
        let Some(coordinator) = &mut self.coordinator else { return };
        if !coordinator.is_member(&node.name) {
            coordinator.handle(self.agenda.now(), node.joined());
            return;
        }
        let took = last_at.since(first_at);
        let every = node.transfer.demand().frame_rate.map_or(Duration::ZERO, FrameRate::interval);
        let camera = node.name.clone();
        let period = node.camera.period.max(every);
        let input = coordinator::Input::arrival(camera, u64::from(bytes), period, first_at, took);
        coordinator.handle(self.agenda.now(), input);
    }

    fn allot(&mut self) {
        let Some(mut coordinator) = self.coordinator.take() else { return };
        while let Some(allotment) = coordinator.poll(self.agenda.now()) {
            let camera = self.nodes.iter().position(|node| node.name == allotment.camera);
            if let Some(camera) = camera {
                self.agenda.after(self.site.feedback, Event::Share { camera, allotment });
            }
        }
        self.coordinator = Some(coordinator);
    }

    fn capture(&mut self, camera: usize) {
        let node = &mut self.nodes[camera];
        let plan = &node.camera;
        let vary = 1.0 + plan.noise * self.rng.random_range(-1.0..=1.0);
        let bytes = (plan.bytes * vary).max(1.0) as u32;
        let (size, period) = (plan.source, plan.period);
        let next = self.agenda.now() + period + std::mem::take(&mut node.shift);
        let every = node.transfer.demand().frame_rate.map_or(Duration::ZERO, FrameRate::interval);
        // Frames that come faster than they are wanted are left out.
        if self.agenda.now() + every / 8 >= node.wanted_at {
            node.wanted_at = node.wanted_at.max(self.agenda.now() - every) + every;
            node.original_bytes.insert(self.agenda.now(), bytes);
            let captured = Input::Captured { at: self.agenda.now(), bytes, size, replayed: false };
            node.transfer.handle(self.agenda.now(), captured);
            self.fates.insert((camera, self.agenda.now()), None);
        }
        if next < BEGIN + self.site.length {
            self.agenda.at(next, Event::Capture { camera });
        }
    }

    /// Carries out what the transfer commands.
    fn obey(&mut self, camera: usize) {
        while let Some(command) = self.nodes[camera].transfer.poll_command(self.agenda.now()) {
            match command {
                Command::Encode { frame, setting, .. } => {
                    self.encode(camera, frame, &setting.to_string());
                }
                Command::Send { frame, header, .. } => self.send(camera, frame, header),
                Command::SendUnchanged { frame } => {
                    let latency =
                        self.agenda.now().since(frame) + self.site.one_way + self.site.delivery;
                    self.settle(camera, frame, Fate::Unchanged { latency });
                }
                Command::Reset { frame } => {
                    self.nodes[camera].outgoing.retain(|outgoing| outgoing.frame != frame);
                }
                Command::Drop { frame, why } => self.dropped(camera, frame, why),
                Command::Report(report) => self.reports.push((camera, self.agenda.now(), report)),
            }
        }
    }

    fn encode(&mut self, camera: usize, frame: Instant, setting: &str) {
        let node = &mut self.nodes[camera];
        let original = f64::from(node.original_bytes[&frame]);
        let (constant, per_megabyte) = node.camera.encode;
        let took = constant + per_megabyte.mul_f64(original / 1e6);
        let (ratio, kept) = node.ratios.get(setting).copied().unwrap_or((1.0, 1.0));
        // Differencing holds frames back so evenly that the kept part comes out right.
        let again = !node.encoded.insert(frame);
        let before = node.sent_frames;
        node.sent_frames += if again { 0.0 } else { kept };
        let input = if !again && kept < 1.0 && node.sent_frames.floor() <= before.floor() {
            Input::Unchanged { frame, changed: 0.0, took }
        } else {
            let vary = 1.0 + node.camera.noise / 2.0 * self.rng.random_range(-1.0..=1.0);
            let vary = if ratio == 1.0 { 1.0 } else { vary };
            Input::Encoded { frame, bytes: (original * ratio * vary).max(1.0) as u32, took }
        };
        self.agenda.after(took, Event::Encoded { camera, input });
    }

    fn send(&mut self, camera: usize, frame: Instant, header: SendHeader) {
        let node = &mut self.nodes[camera];
        let (total, bytes) = (header.bytes, header.bytes);
        node.outgoing.push_back(Outgoing { frame, total, bytes, sent: 0, started: false });
        let receiving = Receiving {
            total: header.bytes,
            received: 0,
            first_at: Instant::MAX,
            acknowledged_at: Instant::MIN,
            header,
        };
        node.receiving.insert(frame, receiving);
    }

    /// Hands packets to the medium, as many as the link allows on the way.
    fn pump(&mut self, camera: usize) {
        let node = &mut self.nodes[camera];
        let rate = node.transfer.capacity().map_or(0.0, |capacity| capacity.bytes_per_second);
        // The bytes of five milliseconds, and never less than lets the medium work: more would only
        // queue where a reset cannot reach it.
        let window = (rate * 0.005).max(48_000.0) as u64;
        let mut in_medium: u64 = node.in_medium.iter().map(|p| u64::from(p.bytes)).sum();
        while in_medium < window {
            let Some(outgoing) = node.outgoing.front_mut() else { return };
            let bytes = (outgoing.bytes - outgoing.sent).min(PACKET_BYTES);
            let (frame, first) = (outgoing.frame, !std::mem::replace(&mut outgoing.started, true));
            let total = outgoing.total;
            let packet = Packet { camera, frame, number: node.number, bytes, total };
            let len = (bytes + HEADER_BYTES) as usize;
            let (from, to) = node.ports;
            if first {
                node.transfer.handle(self.agenda.now(), Input::Started { frame });
            }
            match self.medium.ingress(self.agenda.now(), from, to, PacketRef { len, data: packet })
            {
                // A full queue is tried again when something was acknowledged.
                Ingress::Dropped(_) => return,
                Ingress::Admitted => {}
            }
            outgoing.sent += bytes;
            if outgoing.sent == outgoing.bytes {
                node.outgoing.pop_front();
            }
            node.number += 1;
            node.in_medium.push_back(packet);
            in_medium += u64::from(bytes);
        }
    }

    fn deliver(&mut self, due: Instant, packet: Packet) {
        let node = &mut self.nodes[packet.camera];
        // The medium keeps order, so what was handed to it before this packet and is not here is lost.
        while let Some(before) = node.in_medium.pop_front() {
            if before.number == packet.number {
                break;
            }
            node.resend(before);
        }
        let Some(receiving) = node.receiving.get_mut(&packet.frame) else { return };
        if receiving.total != packet.total {
            return;
        }
        receiving.received += packet.bytes;
        let first = receiving.first_at == Instant::MAX;
        // Read with the packets that came after it.
        let every = self.site.read_every.as_nanos().max(1);
        let wait = (every - due.since(BEGIN).as_nanos() % every) % every;
        let due = due
            + Duration::from_nanos(
                u64::try_from(wait).expect("less than the time between two reads"),
            );
        let (every, pause) = self.site.held_up;
        let into = due.since(BEGIN).as_nanos() % every.as_nanos().max(1);
        let left = pause.as_nanos().saturating_sub(into);
        let due = due + Duration::from_nanos(u64::try_from(left).expect("less than a pause"));
        receiving.first_at = receiving.first_at.min(due);
        let receiving_first_at = receiving.first_at;
        let complete = receiving.received >= receiving.total;
        if !(first || complete || due.since(receiving.acknowledged_at) >= PROGRESS) {
            return;
        }
        receiving.acknowledged_at = due;
        let input = Input::Ack {
            frame: packet.frame,
            received: receiving.received,
            total: receiving.total,
            first_at: receiving.first_at + CLOCK_OFFSET,
            last_at: due + CLOCK_OFFSET,
            complete,
        };
        if complete && let Some(Receiving { header, .. }) = node.receiving.remove(&packet.frame) {
            let latency = due.since(packet.frame) + self.site.delivery;
            self.measure(packet.camera, header.bytes, receiving_first_at, due);
            self.settle(packet.camera, packet.frame, Fate::Delivered { latency, header });
        }
        self.agenda.at(due + self.site.feedback, Event::Feedback { camera: packet.camera, input });
    }

    fn dropped(&mut self, camera: usize, frame: Instant, why: DropReason) {
        self.nodes[camera].receiving.remove(&frame);
        self.settle(camera, frame, Fate::Dropped { why });
    }

    /// Notes a frame's fate; one that arrived although it was given up has arrived.
    fn settle(&mut self, camera: usize, frame: Instant, fate: Fate) {
        let slot = self.fates.get_mut(&(camera, frame)).expect("only captured frames have a fate");
        match slot {
            // It had arrived when it was given up, or sent again: the word of it was on the way.
            Some(Fate::Delivered { .. }) => {
                let harmless = matches!(
                    fate,
                    Fate::Delivered { .. } | Fate::Dropped { why: DropReason::Deadline }
                );
                assert!(harmless, "frame {frame} has two fates, seed {}", self.site.seed);
            }
            Some(other) => {
                panic!("frame {frame} has two fates, {other:?} first, seed {}", self.site.seed)
            }
            None => *slot = Some(fate),
        }
    }
}

impl Node {
    /// That it joins, with the front of its table.
    fn joined(&self) -> coordinator::Input {
        let camera = &self.camera;
        let scale = camera.bytes / camera.truth.original_bytes;
        let ladder = camera.truth.ladder(&camera.config.cut);
        let enough = ladder.into_iter().filter(|r| r.accuracy >= camera.demand.bounds.accuracy());
        let quality = |row: &tidegate_frame::table::Row| Quality {
            bytes: row.bytes * scale * row.kept,
            accuracy: row.accuracy,
        };
        coordinator::Input::Joined {
            camera: self.name.clone(),
            qualities: enough.map(quality).collect(),
        }
    }

    /// Puts a lost packet's bytes back in front of the queue.
    fn resend(&mut self, lost: Packet) {
        let Packet { frame, bytes, total, .. } = lost;
        let wanted = self.receiving.get(&frame).is_some_and(|receiving| receiving.total == total);
        if wanted {
            self.outgoing.push_front(Outgoing { frame, total, bytes, sent: 0, started: true });
        }
    }
}
