//! One adapted stream of one camera, seen from the sender: the state machine between camera log, encoder
//! and link.
//!
//! ```text
//!  Captured ─▶ waiting ─▶ Encode ─▶ Encoded ─▶ Send ─▶ in flight ─▶ Ack(complete)
//!                │  newest wins        │ too large?          │ deadline
//!                └─▶ Drop              └─▶ Encode, one       └─▶ Reset, Drop
//!                                          rung down
//! ```
//!
//! The simulator and the camera node drive the same machine: [`Transfer::handle`] tells it what happened,
//! [`Transfer::poll_command`] says what is to be done, [`Transfer::poll_timeout`] when to ask again.
//!
//! A frame on the way that will miss its deadline, because the capacity just fell, is taken back (`Reset`)
//! and sent again smaller, if there is time: the same frame then gets a second `Encode` and `Send`.
//!
//! Always true: at most one frame is being encoded, at most [`TransferConfig::encodes_max`] times and once
//! more if it is taken back; every
//! captured frame ends in exactly one of delivered, `SendUnchanged` and `Drop`; with
//! [`Delivery::Latest`] no frame leaves after a newer one and none is kept on the way past its deadline;
//! with [`Delivery::Every`] none is reset or overtaken. Sending a frame allocates nothing after warm-up.

mod command;
mod config;
mod encode_time;
mod flight;
mod ladder;
mod report;
mod rescue;
mod sizes;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tidegate_message::{
    ControllerKind, Delivery, Demand, DropReason, FrameRate, FrameSize, Instant, WhenInfeasible,
};

use crate::{
    capacity::{Capacity, Estimator, Progress},
    controller::{self, Choice, Controller, Fixed, Infeasible, Observation, Situation},
    knob::KnobSetting,
    table::TableSet,
};

pub use command::{Command, Input, SendHeader};
pub use config::TransferConfig;
use encode_time::EncodeTime;
use flight::{Flight, Flights, Pace};
use ladder::Ladder;
use report::Reasons;
pub use report::Report;
use sizes::Sizes;

/// The state machine.
pub struct Transfer {
    id: u32,
    demand: Demand,
    config: TransferConfig,
    tables: Arc<TableSet>,
    ladder: Ladder,
    /// Counts the ladders there have been.
    ladder_number: u32,
    controller: Box<dyn Controller>,
    capacity: Estimator,
    one_way: Duration,
    rtt: Duration,
    /// Bytes of other transfers on the same link, and until when that is believed.
    foreign: (u64, Instant),
    share: Option<(f64, Instant)>,
    period: Duration,
    sizes: Sizes,
    captured_last: Option<Instant>,
    encode: EncodeTime,
    waiting: VecDeque<Waiting>,
    encoding: Option<Encoding>,
    flights: Flights,
    commands: VecDeque<Command>,
    current: Option<usize>,
    reasons: Reasons,
    link_up: bool,
    sent_last: Option<Instant>,
    /// When a frame was last sent to measure how the path carries longer ones than it was measured with.
    measured_last: Option<Instant>,
    /// Whether a frame was reset before any had measured the path.
    is_cut_off: bool,
    /// The frame last sent or said to be unchanged.
    out_last: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    frame: Instant,
    bytes: u32,
    replayed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Encoding {
    of: Waiting,
    /// When the frame's time began: its capture, or for one from the past the start of its encoding.
    base: Instant,
    rung: usize,
    /// The ladder that `rung` counts in.
    ladder: u32,
    /// Row, setting and accuracy of the rung, which outlive the ladder.
    promised: (u32, KnobSetting, f64),
    bytes_max: f64,
    deadline: Instant,
    accuracy_kept: bool,
    encodes: u8,
    took: Duration,
    /// Sent whatever is projected, to learn what the path carries.
    trial: bool,
    /// Size of the encoding that was taken back for this one.
    replaces_bytes: Option<u32>,
}

/// Time for which the link's word about bytes on the way is believed.
const FOREIGN_VALID: Duration = Duration::from_millis(50);
/// Longest latency a lost frame is thought to have had.
const EXPECTED_MAX: Duration = Duration::from_secs(10);
/// Time that a frame is given which is sent to measure the path, however late it will be: acknowledgements come every 10 ms.
const TRIAL_FLIGHT: Duration = Duration::from_millis(250);
/// Round trips that such a frame is given in addition, in which the window of a link becomes sixteen times as large.
const OPENING_TRIPS: u32 = 4;
/// Samples in a row that are too short to show a faster path, after which a longer frame is sent to see whether it is.
const SHORT_MAX: u32 = 50;
/// Shortest time between two frames that are sent to measure the path with longer frames than keep the latency.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// Least window over which the pace of a frame under way is taken: two acknowledgements.
const PACE_MIN: Duration = Duration::from_millis(20);
/// Pauses longer than this are no frame period.
const PERIOD_MAX: Duration = Duration::from_secs(2);

impl Transfer {
    /// A transfer that serves `demand`, with the controller it names.
    pub fn new(
        now: Instant,
        id: u32,
        demand: Demand,
        config: TransferConfig,
        tables: Arc<TableSet>,
    ) -> Self {
        let controller = controller::new(demand.controller, &config.controllers);
        Self::with_controller(now, id, demand, config, tables, controller)
    }

    /// A transfer with a controller of the caller's own.
    pub fn with_controller(
        now: Instant,
        id: u32,
        demand: Demand,
        config: TransferConfig,
        tables: Arc<TableSet>,
        controller: Box<dyn Controller>,
    ) -> Self {
        Self {
            id,
            demand,
            ladder: Ladder::empty(),
            ladder_number: 0,
            controller,
            capacity: Estimator::new(config.capacity.clone()),
            one_way: Duration::ZERO,
            rtt: Duration::ZERO,
            foreign: (0, now),
            share: None,
            period: config.period_first,
            sizes: Sizes::default(),
            captured_last: None,
            encode: EncodeTime::new(config.encode_first),
            waiting: VecDeque::new(),
            encoding: None,
            flights: Flights::default(),
            commands: VecDeque::new(),
            current: None,
            reasons: Reasons::default(),
            link_up: true,
            sent_last: None,
            measured_last: None,
            is_cut_off: false,
            out_last: None,
            tables,
            config,
        }
    }

    /// The number it was made with.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The demand that it serves now.
    pub fn demand(&self) -> &Demand {
        &self.demand
    }

    /// The estimated capacity of the path.
    pub fn capacity(&self) -> Option<Capacity> {
        self.capacity.capacity()
    }

    /// Time between two live frames, smoothed.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Whether a frame from the past would be encoded next: hand them over one at a time.
    pub fn wants_replay(&self) -> bool {
        self.link_up && self.encoding.is_none() && self.waiting.is_empty()
    }

    /// Tells what happened. Words about frames that are unknown, or long over, change nothing.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Captured { at, bytes, size, replayed } => {
                self.captured(now, Waiting { frame: at, bytes: bytes.max(1), replayed }, size);
            }
            Input::Encoded { frame, bytes, took } => self.encoded(now, frame, bytes, took),
            Input::Unchanged { frame, took, .. } => {
                if let Some(encoding) = self.encoding.take_if(|e| e.of.frame == frame) {
                    self.encode.learn(encoding.took + took);
                    self.out_last = Some(frame);
                    self.commands.push_back(Command::SendUnchanged { frame });
                }
            }
            Input::EncodeFailed { frame, is_damaged } => {
                if let Some(encoding) = self.encoding.take_if(|e| e.of.frame == frame) {
                    let known = encoding.ladder == self.ladder_number;
                    if known && self.ladder.failed(encoding.rung) {
                        self.ladder_number = self.ladder_number.wrapping_add(1);
                        self.current = None;
                    }
                    let why = match is_damaged {
                        true => DropReason::Damaged,
                        false => DropReason::EncodeFailed,
                    };
                    self.drop_frame(frame, why);
                }
            }
            Input::NotSent { frame } => {
                if self.flights.remove(frame).is_some() {
                    self.drop_frame(frame, DropReason::QueueFull);
                }
            }
            Input::Started { frame } => {
                let alone = self.flights.begin(now, frame);
                if let Some(alone) = alone {
                    let alone = alone && self.foreign_bytes(now) == 0;
                    self.capacity.started(now, frame, alone);
                }
            }
            Input::Ack { frame, received, total, first_at, last_at, complete } => {
                if self.is_taken_back(frame, total) {
                    if complete {
                        self.arrived_after_all(now, frame, total);
                    }
                } else {
                    let progress = Progress { received, first_at, last_at, complete };
                    self.capacity.progress(now, frame, progress, self.one_way * 2);
                    self.acknowledged(now, frame, received, total, complete);
                }
            }
            Input::Path { rtt, rtt_min, in_flight } => {
                self.rtt = rtt;
                self.one_way = rtt_min / 2;
                let foreign = in_flight.saturating_sub(self.flights.outstanding_bytes());
                self.foreign = (foreign, now + FOREIGN_VALID);
            }
            Input::Share { bytes_per_second, valid_for } => {
                let usable = bytes_per_second.filter(|share| share.is_finite() && *share > 0.0);
                self.share = usable.map(|share| (share, now + valid_for));
            }
            Input::Demand(demand) => self.demanded(demand),
            Input::LinkDown => self.link_down(),
            Input::LinkUp => self.link_up = true,
        }
        self.advance(now);
    }

    /// The next command, if any.
    pub fn poll_command(&mut self, now: Instant) -> Option<Command> {
        self.expire(now);
        self.advance(now);
        self.commands.pop_front()
    }

    /// When to ask [`Transfer::poll_command`] again although nothing happened.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.commands.is_empty() {
            return Some(Instant::MIN);
        }
        let waiting = self.waiting.iter().find(|_| self.encoding.is_none() && self.link_up);
        let overdue = waiting
            .filter(|waiting| self.droppable() && !waiting.replayed)
            .map(|waiting| self.deadline(waiting.frame));
        let foreign = waiting.filter(|_| self.foreign.0 > 0).map(|_| self.foreign.1);
        overdue.into_iter().chain(foreign).chain(self.flights.next_timeout()).min()
    }

    /// Whether frames may be given up.
    fn droppable(&self) -> bool {
        self.demand.delivery == Delivery::Latest
    }

    /// When the bytes of a frame whose time began at `base` stop being worth sending.
    fn deadline(&self, base: Instant) -> Instant {
        let latency = self.demand.bounds.latency();
        base + latency.saturating_sub(self.config.delivery + self.one_way)
    }

    fn foreign_bytes(&self, now: Instant) -> u64 {
        if now < self.foreign.1 { self.foreign.0 } else { 0 }
    }

    fn captured(&mut self, now: Instant, frame: Waiting, size: FrameSize) {
        if !self.ladder.is_for(size, &self.demand) {
            self.rebuild_ladder(size);
        }
        self.sizes.learn(frame.bytes);
        if !frame.replayed {
            if let Some(last) = self.captured_last.replace(frame.frame) {
                let period = frame.frame.since(last);
                let wanted = self.demand.frame_rate.map_or(Duration::ZERO, FrameRate::interval);
                if !period.is_zero() && period <= PERIOD_MAX.max(2 * wanted) {
                    self.period = if self.period == self.config.period_first {
                        period
                    } else {
                        (self.period * 7 + period) / 8
                    };
                }
            }
            if self.droppable() {
                // Newest wins; frames from the past wait for a gap and are not overtaken.
                while let Some(index) = self.waiting.iter().position(|w| !w.replayed) {
                    if let Some(old) = self.waiting.remove(index) {
                        self.drop_frame(old.frame, DropReason::Overtaken);
                    }
                }
            }
        }
        if !self.link_up && self.droppable() {
            return self.drop_frame(frame.frame, DropReason::LinkDown);
        }
        if self.waiting.len() >= self.config.waiting_max {
            return self.drop_frame(frame.frame, DropReason::QueueFull);
        }
        if self.droppable() && !frame.replayed {
            self.waiting.push_front(frame);
        } else {
            self.waiting.push_back(frame);
        }
        self.advance(now);
    }

    fn rebuild_ladder(&mut self, size: FrameSize) {
        let (ladder, report) = Ladder::find(&self.tables, size, &self.demand, &self.config);
        self.ladder = ladder;
        self.ladder_number = self.ladder_number.wrapping_add(1);
        self.current = None;
        self.commands.extend(report.map(Command::Report));
    }

    fn demanded(&mut self, demand: Demand) {
        let before = std::mem::replace(&mut self.demand, demand);
        if before.controller != demand.controller || self.controller.kind() != demand.controller {
            self.controller = controller::new(demand.controller, &self.config.controllers);
        }
        let other = before.profile != demand.profile || before.controller != demand.controller;
        if let Some(source) = self.ladder.source().filter(|_| other) {
            self.rebuild_ladder(source);
        }
        // Frames left out from now on do not come any more.
        let least = demand.frame_rate.map_or(Duration::ZERO, FrameRate::interval);
        self.period = self.period.max(least);
        self.reasons.demand_changed();
    }

    fn link_down(&mut self) {
        self.link_up = false;
        self.capacity.interrupted();
        let droppable = self.droppable();
        while let Some(flight) = self.flights.pop_back() {
            if droppable {
                self.drop_frame(flight.frame, DropReason::LinkDown);
            } else {
                let Flight { frame, original_bytes, replayed, .. } = flight;
                self.waiting.push_front(Waiting { frame, bytes: original_bytes, replayed });
            }
        }
        if droppable {
            while let Some(waiting) = self.waiting.pop_front() {
                self.drop_frame(waiting.frame, DropReason::LinkDown);
            }
        }
    }

    fn drop_frame(&mut self, frame: Instant, why: DropReason) {
        self.commands.push_back(Command::Drop { frame, why });
    }

    /// Gives the next waiting frame to the encoder, if there is one and it is free.
    fn advance(&mut self, now: Instant) {
        while self.link_up && self.encoding.is_none() {
            let Some(waiting) = self.waiting.front().copied() else { return };
            if self.droppable() && !waiting.replayed && now >= self.deadline(waiting.frame) {
                if let Some(trial) = self.tell_if_hopeless(now, waiting) {
                    self.waiting.pop_front();
                    self.begin(trial);
                    continue;
                }
                self.waiting.pop_front();
                self.drop_frame(waiting.frame, DropReason::Late);
                let waited = now.since(waiting.frame);
                self.observe(now, &Observation::Lost { waited, expected: waited });
                continue;
            }
            match self.decide(now, waiting) {
                Plan::Encode(encoding) => {
                    self.waiting.pop_front();
                    self.begin(encoding);
                }
                Plan::Drop(why) => {
                    self.waiting.pop_front();
                    self.drop_frame(waiting.frame, why);
                }
                Plan::Wait => return,
            }
        }
    }

    /// A bound that the path and the delivery alone use up is reported as infeasible: no frame would ever get as far as the
    /// controller, which reports all others. Now and then such a frame is sent all the same, late as it is: only what was sent
    /// says what could be had.
    fn tell_if_hopeless(&mut self, now: Instant, of: Waiting) -> Option<Encoding> {
        let fixed = self.config.delivery + self.one_way + self.encode.usual_max();
        if self.demand.bounds.latency() > fixed || self.ladder.rungs().is_empty() {
            return None;
        }
        self.ladder.predict(of.bytes);
        self.report_infeasible(now, None);
        let trial = self.trial_due(now) && self.flights.is_quiet();
        let rung = self.smallest_rung(self.demand.bounds.accuracy()).or(self.smallest_rung(0.0));
        let rung = rung.filter(|_| trial)?;
        let accuracy_kept = self.ladder.rungs()[rung].accuracy >= self.demand.bounds.accuracy();
        Some(Encoding {
            rung,
            accuracy_kept,
            deadline: self.trial_end(now),
            trial: true,
            ..self.plan(now, of)
        })
    }

    /// Tells that both bounds cannot be kept, and what could be had; `in_time` is the rung that the frame in hand would get for the
    /// latency.
    fn report_infeasible(&mut self, now: Instant, in_time: Option<usize>) {
        let promise = self.situation(now, Duration::ZERO).promise();
        let (demand, period) = (&self.demand, self.period);
        let report = self.reasons.infeasible(now, demand, promise, period, in_time.is_some());
        self.commands.extend(report.map(Command::Report));
    }

    /// Whether a frame on its way will not be whole within the latency bound, at the pace that its bytes have.
    fn is_late(&self, now: Instant, flight: &Flight) -> bool {
        let (Some(started), Some(capacity)) = (flight.started, self.capacity.capacity()) else {
            return false;
        };
        let bound = flight.base + self.demand.bounds.latency().saturating_sub(self.config.delivery);
        if flight.replayed || !self.is_controlled() {
            return false;
        }
        if now >= bound {
            return true;
        }
        if !flight.pace.is_steady() {
            return false;
        }
        // Of the pace since the frame began and what is thought of the path, the faster.
        let elapsed = now.since(started).saturating_sub(self.one_way * 2).as_secs_f64();
        let pace = f64::from(flight.received) / elapsed.max(1e-3);
        let missing = f64::from(flight.bytes.saturating_sub(flight.received));
        let left = bound.since(now).as_secs_f64();
        missing / pace.max(capacity.bytes_per_second) > left
    }

    /// Tells that both bounds cannot be kept where no frame would be in time that is as accurate as asked for, with nothing else on
    /// the way.
    fn tell_if_not_kept(&mut self, now: Instant) {
        if self.situation(now, Duration::ZERO).can_be_kept() == Some(false) {
            self.report_infeasible(now, None);
        }
    }

    fn begin(&mut self, mut encoding: Encoding) {
        let rung = &self.ladder.rungs()[encoding.rung];
        let setting = rung.setting;
        encoding.promised = (rung.row, setting, rung.accuracy);
        self.encoding = Some(encoding);
        // A second encoding of a frame would be found unchanged against the first.
        let again = encoding.encodes > 1 || encoding.replaces_bytes.is_some();
        let plain = setting.with_difference(None).ok().filter(|_| again);
        self.commands.push_back(Command::Encode {
            frame: encoding.of.frame,
            setting: plain.unwrap_or(setting),
            bytes_max: encoding.bytes_max.clamp(0.0, f64::from(u32::MAX)) as u32,
        });
    }

    fn decide(&mut self, now: Instant, of: Waiting) -> Plan {
        if self.ladder.take_back() {
            self.ladder_number = self.ladder_number.wrapping_add(1);
            self.current = None;
        }
        // Frames that follow too closely leave none the time to measure the path: bytes of those that were reset may be in the link
        // yet.
        let is_unknown = self.is_cut_off && self.capacity.capacity().is_none();
        if is_unknown && self.is_controlled() && self.droppable() && !self.flights.is_empty() {
            return Plan::Wait;
        }
        self.ladder.predict(of.bytes);
        let choice = self.choose(now, of);
        let accuracy = self.demand.bounds.accuracy();
        let rungs = self.ladder.rungs();
        let plan = self.plan(now, of);
        match choice {
            Choice::Rung { rung, bytes_max } => {
                let rung = rung.min(rungs.len() - 1);
                let accuracy_kept = rungs[rung].accuracy >= accuracy;
                if accuracy_kept && let Some(report) = self.reasons.feasible() {
                    self.commands.push_back(Command::Report(report));
                }
                self.explain(now, rung);
                Plan::Encode(Encoding { rung, bytes_max, accuracy_kept, ..plan })
            }
            Choice::Wait if self.flights.is_quiet() && self.foreign_bytes(now) == 0 => {
                // Nothing is on the way that waiting could let through: it is too late for this one.
                if self.droppable() && !of.replayed && !self.trial_due(now) {
                    return Plan::Drop(DropReason::Late);
                }
                let rung = self.smallest_rung(accuracy).or(self.smallest_rung(0.0)).unwrap_or(0);
                let accuracy_kept = self.ladder.rungs()[rung].accuracy >= accuracy;
                Plan::Encode(Encoding { rung, accuracy_kept, trial: true, ..plan })
            }
            Choice::Wait => {
                // Those before it may take so long that nothing else would be decided for a while.
                if self.flights.alone().is_some_and(|flight| self.is_late(now, flight)) {
                    self.tell_if_not_kept(now);
                }
                Plan::Wait
            }
            Choice::Infeasible(infeasible) => self.give_way(now, plan, infeasible),
        }
    }

    /// A frame's encoding before anything was decided about it.
    fn plan(&self, now: Instant, of: Waiting) -> Encoding {
        let base = if of.replayed { now } else { of.frame };
        Encoding {
            of,
            base,
            rung: 0,
            ladder: self.ladder_number,
            promised: (0, KnobSetting::ORIGINAL, 0.0),
            bytes_max: f64::INFINITY,
            deadline: match self.droppable() {
                // One was cut off before it had measured anything.
                true if self.sent_last.is_some() && self.capacity.capacity().is_none() => {
                    self.deadline(base).max(self.trial_end(now))
                }
                true => self.deadline(base),
                false => Instant::MAX,
            },
            accuracy_kept: true,
            encodes: 1,
            took: Duration::ZERO,
            trial: self.capacity.capacity().is_none(),
            replaces_bytes: None,
        }
    }

    /// Obeys the subscriber's choice when no rung keeps both bounds.
    fn give_way(&mut self, now: Instant, plan: Encoding, infeasible: Infeasible) -> Plan {
        let policy = self.demand.when_infeasible;
        self.report_infeasible(now, infeasible.by_latency);
        let rungs = self.ladder.rungs();
        let quiet = self.flights.is_quiet();
        let kept = |rung: usize| rungs[rung].accuracy >= self.demand.bounds.accuracy();
        let trial = self.trial_due(now) && quiet;
        let least = infeasible.by_accuracy.map(|(rung, _)| rung);
        let measure = (quiet || self.is_heard_of_soon()) && self.measure_due(now, plan.of, least);
        let bytes_max = infeasible.bytes_max;
        let encode = |rung: usize| Encoding { rung, accuracy_kept: kept(rung), ..plan };
        match (policy, infeasible.by_latency, infeasible.by_accuracy) {
            // Frames of which none was sent are not promised before one was: the first is late.
            (WhenInfeasible::KeepLatency | WhenInfeasible::Pause, _, Some((rung, _)))
                if measure =>
            {
                let deadline = plan.deadline.max(self.trial_end(now));
                let plan = Encoding { trial: true, deadline, ..encode(rung) };
                self.measured_last = Some(now);
                Plan::Encode(plan)
            }
            (WhenInfeasible::KeepLatency, Some(rung), _) => {
                let plan = Encoding { bytes_max, ..encode(rung) };
                self.explain(now, rung);
                Plan::Encode(plan)
            }
            // One frame at a time, as late as it must be: fewer frames, none coarser.
            (WhenInfeasible::KeepAccuracy, _, Some((rung, latency))) if quiet => {
                let latest = self.deadline(plan.base + latency.mul_f64(0.5));
                let deadline = plan.deadline.max(latest).max(plan.base + latency);
                let plan = Encoding { deadline, trial: true, ..encode(rung) };
                self.explain(now, rung);
                Plan::Encode(plan)
            }
            (WhenInfeasible::KeepAccuracy, _, Some(_)) => Plan::Wait,
            // Something has to travel now and then, or better times would go unnoticed.
            (WhenInfeasible::KeepLatency, None, _) if trial || (!self.droppable() && quiet) => {
                let rung = self.smallest_rung(0.0).unwrap_or(0);
                let deadline = plan.deadline.max(self.trial_end(now));
                Plan::Encode(Encoding { trial: true, deadline, ..encode(rung) })
            }
            (WhenInfeasible::Pause, _, Some((rung, _))) if trial => {
                let deadline = plan.deadline.max(self.trial_end(now));
                Plan::Encode(Encoding { trial: true, deadline, ..encode(rung) })
            }
            _ if !self.droppable() => Plan::Wait,
            (WhenInfeasible::Pause, ..) => Plan::Drop(DropReason::Paused),
            _ => Plan::Drop(DropReason::Infeasible),
        }
    }

    /// Whether anything but the deadline decides about a frame.
    fn is_controlled(&self) -> bool {
        self.controller.kind() != ControllerKind::Fixed
    }

    /// When a frame that is sent now to measure the path has been under way for long enough: the word of its bytes comes a round
    /// trip after them, and a link that was idle opens up with each round trip.
    fn trial_end(&self, now: Instant) -> Instant {
        now + TRIAL_FLIGHT + OPENING_TRIPS * self.rtt.max(self.one_way * 2)
    }

    /// Whether no more is outstanding than the path carries in a round trip: the word of it may be on the way. Where a round trip is
    /// longer than a period, something always is.
    fn is_heard_of_soon(&self) -> bool {
        let round_trip = self.rtt.max(self.one_way * 2).as_secs_f64();
        self.capacity.capacity().is_some_and(|capacity| {
            self.flights.outstanding_bytes() as f64 <= capacity.bytes_per_second * round_trip
        })
    }

    fn trial_due(&self, now: Instant) -> bool {
        self.sent_last.is_none_or(|last| now.since(last) >= self.config.trial)
    }

    /// Whether a frame of that rung, which is as accurate as asked for, is to be sent late to learn how the path carries it.
    fn measure_due(&self, now: Instant, of: Waiting, least: Option<usize>) -> bool {
        if !self.droppable() || of.replayed {
            return false;
        }
        let rungs = self.ladder.rungs();
        let Some(capacity) = self.capacity.capacity() else { return false };
        let is_known = |rung: usize| {
            controller::is_measured(&rungs[rung], capacity.burst_bytes)
                && capacity.short < SHORT_MAX
        };
        least.is_some_and(|rung| !is_known(rung))
            && self.measured_last.is_none_or(|last| now.since(last) >= MEASURE_EVERY)
    }

    fn smallest_rung(&self, accuracy: f64) -> Option<usize> {
        let rungs = self.ladder.rungs().iter().enumerate();
        rungs
            .filter(|(_, rung)| rung.accuracy >= accuracy)
            .min_by(|(_, a), (_, b)| a.bytes.total_cmp(&b.bytes))
            .map(|(index, _)| index)
    }

    /// All that is known at this moment, of a frame that was captured `elapsed` ago.
    fn situation(&self, now: Instant, elapsed: Duration) -> Situation<'_> {
        Situation {
            rungs: self.ladder.rungs(),
            current: self.current,
            bounds: self.demand.bounds,
            elapsed,
            capacity: self.capacity.capacity(),
            at_least: self.capacity.at_least(),
            outstanding_bytes: self.flights.outstanding_bytes() + self.foreign_bytes(now),
            one_way: self.one_way,
            encode: self.encode.usual_max(),
            delivery: self.config.delivery,
            period: self.period,
            share: self.share.filter(|(_, until)| now < *until).map(|(share, _)| share),
            larger: self.sizes.larger_than_last(),
        }
    }

    /// Asks the controller; one that panics is replaced.
    fn choose(&mut self, now: Instant, of: Waiting) -> Choice {
        let behind = of.replayed || (!self.droppable() && self.waiting.len() > 1);
        let elapsed = if behind { Duration::ZERO } else { now.since(of.frame) };
        // Taken out for as long as it looks at the transfer; its stand-in has no size.
        let mut controller = std::mem::replace(&mut self.controller, Box::new(Fixed));
        let situation = self.situation(now, elapsed);
        let chosen = catch_unwind(AssertUnwindSafe(|| controller.choose(now, &situation)));
        if let Ok(choice) = chosen {
            self.controller = controller;
            return choice;
        }
        let choice = Fixed.choose(now, &situation);
        self.replace_controller();
        choice
    }

    fn observe(&mut self, now: Instant, observation: &Observation) {
        let controller = &mut self.controller;
        if catch_unwind(AssertUnwindSafe(|| controller.observe(now, observation))).is_err() {
            self.replace_controller();
        }
    }

    fn replace_controller(&mut self) {
        let failed = self.demand.controller;
        self.controller = Box::new(Fixed);
        self.commands.push_back(Command::Report(Report::ControllerFailed { controller: failed }));
    }

    fn explain(&mut self, now: Instant, rung: usize) {
        let before = self.current.replace(rung);
        let capacity = self.capacity.capacity();
        let waiting = self.flights.outstanding_bytes() + self.foreign_bytes(now);
        let report =
            self.reasons.chosen(&self.demand, &self.ladder, before, rung, capacity, waiting);
        self.commands.extend(report.map(Command::Report));
    }

    fn encoded(&mut self, now: Instant, frame: Instant, bytes: u32, took: Duration) {
        let Some(mut encoding) = self.encoding.take_if(|e| e.of.frame == frame) else { return };
        encoding.took += took;
        self.encode.learn(took);
        let known = encoding.ladder == self.ladder_number;
        if known {
            self.ladder.observe(encoding.rung, encoding.of.bytes, bytes);
        }
        if !self.link_up {
            if self.droppable() {
                return self.drop_frame(frame, DropReason::LinkDown);
            }
            return self.waiting.push_front(encoding.of);
        }
        let bytes_max = encoding.bytes_max;
        if f64::from(bytes) > bytes_max
            && known
            && encoding.encodes < self.config.encodes_max
            && let Some(rung) = self.rung_below(&encoding, bytes)
        {
            self.current = Some(rung);
            let accuracy_kept = self.ladder.rungs()[rung].accuracy >= self.demand.bounds.accuracy();
            let encodes = encoding.encodes + 1;
            return self.begin(Encoding { rung, encodes, accuracy_kept, ..encoding });
        }
        let end = self.projected_end(now, bytes);
        // Without control nothing is foreseen; and under any controller something has to travel now and then, or better times
        // would go unnoticed.
        let sent_anyway = encoding.trial
            || !self.is_controlled()
            || (self.flights.is_quiet() && self.trial_due(now));
        if !sent_anyway && self.droppable() && end > encoding.deadline {
            let waited = now.since(encoding.base);
            self.observe(now, &Observation::Lost { waited, expected: end.since(encoding.base) });
            return self.drop_frame(frame, DropReason::Late);
        }
        self.send(now, encoding, bytes);
    }

    /// The best rung that fits where this one did not; one that keeps the accuracy bound, if this one did.
    fn rung_below(&mut self, encoding: &Encoding, bytes: u32) -> Option<usize> {
        self.ladder.predict(encoding.of.bytes);
        let accuracy =
            if encoding.accuracy_kept { self.demand.bounds.accuracy() } else { f64::MIN };
        let rungs = self.ladder.rungs().iter().enumerate();
        let smaller = rungs.filter(|(index, rung)| {
            *index != encoding.rung && rung.accuracy >= accuracy && rung.bytes < f64::from(bytes)
        });
        let fits = smaller.clone().filter(|(_, rung)| rung.bytes <= encoding.bytes_max);
        fits.max_by(|(_, a), (_, b)| a.accuracy.total_cmp(&b.accuracy))
            .or_else(|| smaller.min_by(|(_, a), (_, b)| a.bytes.total_cmp(&b.bytes)))
            .map(|(index, _)| index)
    }

    /// When the last byte would be handed to the link, at the estimated capacity.
    fn projected_end(&self, now: Instant, bytes: u32) -> Instant {
        let ahead = self.flights.outstanding_bytes() + self.foreign_bytes(now) + u64::from(bytes);
        self.capacity.capacity().map_or(now, |capacity| {
            now + Duration::from_secs_f64((ahead as f64 / capacity.bytes_per_second).min(3600.0))
        })
    }

    fn send(&mut self, now: Instant, encoding: Encoding, bytes: u32) {
        let (row, setting, accuracy) = encoding.promised;
        let header = SendHeader {
            row,
            setting,
            bytes,
            accuracy,
            accuracy_kept: encoding.accuracy_kept,
            replayed: encoding.of.replayed,
            encode: encoding.took,
            encodes: encoding.encodes,
            bytes_per_second: self.capacity.capacity().map(|c| c.bytes_per_second),
            reason: self.reasons.sentence(),
        };
        let frame = encoding.of.frame;
        self.flights.push(Flight {
            frame,
            base: encoding.base,
            deadline: encoding.deadline,
            bytes,
            received: 0,
            original_bytes: encoding.of.bytes,
            replayed: encoding.of.replayed,
            started: None,
            settle_at: None,
            trial: encoding.trial,
            replaced_bytes: encoding.replaces_bytes,
            pace: Pace::default(),
        });
        (self.sent_last, self.out_last) = (Some(now), Some(frame));
        self.commands.push_back(Command::Send { frame, deadline: encoding.deadline, header });
    }

    fn acknowledged(
        &mut self,
        now: Instant,
        frame: Instant,
        received: u32,
        total: u32,
        complete: bool,
    ) {
        if !complete {
            let window = self.rtt.max(self.one_way * 2).max(PACE_MIN);
            let flight = self.flights.received(now, frame, received.min(total), window);
            if flight.is_some_and(|flight| self.is_late(now, &flight)) {
                self.tell_if_not_kept(now);
            }
            return self.rescue(now);
        }
        let Some(flight) = self.flights.remove(frame) else { return };
        self.arrived(now, flight.base, flight.bytes);
    }

    fn arrived(&mut self, now: Instant, base: Instant, bytes: u32) {
        // The acknowledgement took its way back, too.
        let latency = now.since(base).saturating_sub(self.one_way);
        let on_time = latency + self.config.delivery <= self.demand.bounds.latency();
        self.observe(now, &Observation::Delivered { latency, bytes, on_time });
    }

    /// Resets what has reached its deadline, and after one more round trip counts it as lost.
    fn expire(&mut self, now: Instant) {
        if now >= self.foreign.1 {
            self.foreign.0 = 0;
        }
        let grace = self.rtt.max(self.one_way * 2) + self.config.delivery;
        while let Some(frame) = self.flights.overdue(now, grace) {
            self.commands.push_back(Command::Reset { frame });
            self.is_cut_off |= self.capacity.capacity().is_none();
            if self.is_controlled()
                && self.situation(now, Duration::ZERO).can_be_kept() != Some(true)
            {
                self.report_infeasible(now, None);
            }
        }
        while let Some(flight) = self.flights.settled(now) {
            let waited = now.since(flight.base);
            self.capacity.gave_up(flight.deadline, flight.frame, flight.received, self.one_way * 2);
            self.drop_frame(flight.frame, DropReason::Deadline);
            // At the pace so far.
            let part = f64::from(flight.received.max(1)) / f64::from(flight.bytes.max(1));
            let expected = (waited.as_secs_f64() / part).min(EXPECTED_MAX.as_secs_f64());
            let expected = Duration::from_secs_f64(expected);
            self.observe(now, &Observation::Lost { waited, expected });
        }
    }
}

/// The decision for the next waiting frame.
enum Plan {
    Encode(Encoding),
    Wait,
    Drop(DropReason),
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("id", &self.id)
            .field("demand", &self.demand)
            .field("controller", &self.controller.kind())
            .field("capacity", &self.capacity.capacity())
            .field("waiting", &self.waiting.len())
            .field("in_flight", &self.flights.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
