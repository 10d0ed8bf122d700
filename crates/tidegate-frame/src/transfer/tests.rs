use proptest::prelude::*;
use tidegate_message::{AdaptationProfile, Bounds, ControllerKind, Delivery, WhenInfeasible};

use super::*;

const MEGABIT: f64 = 125_000.0;
const SIZE: FrameSize = FrameSize { width: 1920, height: 1080 };

fn demand() -> Demand {
    Demand {
        bounds: Bounds::new(Duration::from_millis(100), 0.95).unwrap(),
        controller: ControllerKind::Budget,
        delivery: Delivery::Latest,
        when_infeasible: WhenInfeasible::KeepLatency,
        profile: AdaptationProfile::Jpeg,
        frame_rate: None,
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A transfer with an encoder that takes no time and follows the table, and a line of constant rate.
struct Rig {
    transfer: Transfer,
    now: Instant,
    bytes_per_second: f64,
    original_bytes: u32,
    /// Actual over table size of every changed frame.
    factor: f64,
    reports: Vec<Report>,
}

impl Rig {
    fn new(demand: Demand, megabits: f64) -> Self {
        let now = Instant::from_millis(1_000_000);
        let tables = Arc::new(TableSet::builtin());
        Self {
            transfer: Transfer::new(now, 7, demand, TransferConfig::default(), tables),
            now,
            bytes_per_second: megabits * MEGABIT,
            original_bytes: 400_000,
            factor: 1.0,
            reports: Vec::new(),
        }
    }

    /// The next command that is no report.
    fn next(&mut self) -> Option<Command> {
        loop {
            match self.transfer.poll_command(self.now)? {
                Command::Report(report) => self.reports.push(report),
                command => return Some(command),
            }
        }
    }

    fn capture(&mut self) -> Instant {
        let (at, bytes) = (self.now, self.original_bytes);
        self.transfer.handle(at, Input::Captured { at, bytes, size: SIZE, replayed: false });
        at
    }

    fn encoded_bytes(&self, setting: KnobSetting) -> u32 {
        let tables = TableSet::builtin();
        let table = tables.nearest(AdaptationProfile::Jpeg, SIZE, &Default::default()).unwrap();
        let row = table.rows.iter().find(|row| row.setting == setting).unwrap();
        let factor = if setting.is_original() { 1.0 } else { self.factor };
        (row.bytes / table.original_bytes * f64::from(self.original_bytes) * factor) as u32
    }

    fn encode(&mut self, frame: Instant, setting: KnobSetting) {
        let bytes = self.encoded_bytes(setting);
        self.transfer.handle(self.now, Input::Encoded { frame, bytes, took: ms(1) });
    }

    /// Lets a frame cross the line, acknowledged every 10 ms.
    fn cross(&mut self, frame: Instant, bytes: u32) {
        let begin = self.now;
        self.transfer.handle(begin, Input::Started { frame });
        let mut elapsed = Duration::ZERO;
        loop {
            let received = (elapsed.as_secs_f64() * self.bytes_per_second) as u32 + 1200;
            let complete = received >= bytes;
            let input = Input::Ack {
                frame,
                received: received.min(bytes),
                total: bytes,
                first_at: begin,
                last_at: begin + elapsed,
                complete,
            };
            self.now = begin + elapsed;
            self.transfer.handle(self.now, input);
            if complete {
                return;
            }
            let whole = f64::from(bytes - 1200) / self.bytes_per_second;
            elapsed =
                (elapsed + ms(10)).min(Duration::from_secs_f64(whole) + Duration::from_nanos(1));
        }
    }

    /// Captures a frame, carries it to the end and moves on one period; gives what was sent.
    fn frame(&mut self) -> Option<SendHeader> {
        let captured = self.now;
        let sent = self.capture_and_carry();
        self.now = captured + ms(200);
        sent
    }

    /// Captures a frame and carries it to the end; gives what was sent.
    fn capture_and_carry(&mut self) -> Option<SendHeader> {
        self.capture();
        let mut sent = None;
        while let Some(command) = self.next() {
            match command {
                Command::Encode { frame, setting, .. } => self.encode(frame, setting),
                Command::Send { frame, header, .. } => {
                    let bytes = header.bytes;
                    sent = Some(header);
                    self.cross(frame, bytes);
                }
                Command::Drop { .. } | Command::Reset { .. } => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        sent
    }
}

#[test]
fn frames_grow_to_what_the_path_carries_and_the_reason_is_told() {
    let mut rig = Rig::new(demand(), 200.0);
    let first = rig.frame().unwrap();
    assert_eq!((first.setting.to_string().as_str(), first.accuracy_kept), ("5/8 q50", true));
    let second = rig.frame().unwrap();
    assert!(second.setting.is_original(), "{second:?}");
    assert_eq!(
        &*second.reason,
        "capacity 200.0 Mbit/s: 5/8 q50 → original; accuracy 1.000 (assumed) ≥ 0.95"
    );
    assert!(matches!(rig.reports[0], Report::TableAssumed { .. }));
    let changes = rig.reports.iter().filter(|report| matches!(report, Report::Knobs { .. }));
    assert_eq!(changes.count(), 2);
}

#[test]
fn the_newest_frame_wins() {
    let mut rig = Rig::new(demand(), 200.0);
    let first = rig.capture();
    assert!(matches!(rig.next(), Some(Command::Encode { frame, .. }) if frame == first));
    rig.now = rig.now + ms(33);
    let second = rig.capture();
    rig.now = rig.now + ms(33);
    let third = rig.capture();
    let drop = Command::Drop { frame: second, why: DropReason::Overtaken };
    assert_eq!(rig.next(), Some(drop));
    assert_eq!(rig.next(), None);
    rig.encode(first, "5/8 q50".parse().unwrap());
    assert!(matches!(rig.next(), Some(Command::Send { frame, .. }) if frame == first));
    assert!(matches!(rig.next(), Some(Command::Encode { frame, .. }) if frame == third));
}

#[test]
fn a_frame_is_reset_at_its_deadline_and_lost_a_round_trip_later() {
    let mut rig = Rig::new(demand(), 200.0);
    let (rtt, rtt_min) = (ms(20), ms(10));
    rig.transfer.handle(rig.now, Input::Path { rtt, rtt_min, in_flight: 0 });
    let frame = rig.capture();
    rig.next();
    rig.encode(frame, "5/8 q50".parse().unwrap());
    let Some(Command::Send { deadline, .. }) = rig.next() else { panic!("no frame was sent") };
    // The bound, less 5 ms for delivery and 5 ms on the way.
    assert_eq!(deadline, frame + ms(90));
    assert_eq!(rig.transfer.poll_timeout(), Some(deadline));
    rig.now = deadline;
    assert_eq!(rig.next(), Some(Command::Reset { frame }));
    assert_eq!(rig.next(), None);
    rig.now = rig.transfer.poll_timeout().unwrap();
    assert_eq!(rig.now, deadline + rtt + ms(5));
    assert_eq!(rig.next(), Some(Command::Drop { frame, why: DropReason::Deadline }));
    assert_eq!(rig.transfer.poll_timeout(), None);
}

#[test]
fn a_frame_that_arrived_while_it_was_reset_is_not_dropped() {
    let mut rig = Rig::new(demand(), 200.0);
    let frame = rig.capture();
    rig.next();
    rig.encode(frame, "5/8 q50".parse().unwrap());
    let Some(Command::Send { deadline, header, .. }) = rig.next() else { panic!("nothing sent") };
    rig.now = deadline;
    assert_eq!(rig.next(), Some(Command::Reset { frame }));
    let (received, total) = (header.bytes, header.bytes);
    let (first_at, last_at) = (deadline, deadline);
    let ack = Input::Ack { frame, received, total, first_at, last_at, complete: true };
    rig.transfer.handle(rig.now, ack);
    rig.now = rig.now + ms(1000);
    assert_eq!(rig.next(), None);
}

#[test]
fn an_encoding_over_its_budget_is_done_again_once_and_the_ladder_learns() {
    let mut rig = Rig::new(demand(), 20.0);
    rig.frame();
    rig.factor = 2.0;
    let frame = rig.capture();
    let mut encodes = Vec::new();
    while let Some(command) = rig.next() {
        match command {
            Command::Encode { setting, bytes_max, .. } => {
                encodes.push((rig.encoded_bytes(setting), bytes_max));
                rig.encode(frame, setting);
            }
            Command::Send { header, .. } => {
                assert_eq!((header.encodes, header.encode), (2, ms(2)));
                assert_eq!(header.bytes, encodes[1].0);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(encodes.len(), 2);
    assert!(encodes[0].0 > encodes[0].1 && encodes[1].0 < encodes[0].0, "{encodes:?}");
}

#[test]
fn sizes_are_predicted_from_the_live_stream() {
    let mut rig = Rig::new(demand(), 20.0);
    rig.factor = 1.6;
    let sent: Vec<SendHeader> = (0..20).filter_map(|_| rig.frame()).collect();
    assert!(sent[10..].iter().all(|header| header.encodes == 1), "the table's error was learned");
    rig.original_bytes = 200_000;
    let header = rig.frame().unwrap();
    assert_eq!(header.encodes, 1);
    assert!(header.accuracy >= sent[19].accuracy, "smaller frames leave room for a better row");
}

#[test]
fn a_drop_of_capacity_costs_the_frame_its_quality_and_not_the_frame() {
    let mut rig = Rig::new(demand(), 200.0);
    (0..10).for_each(|_| drop(rig.frame()));
    rig.bytes_per_second = 20.0 * MEGABIT;
    let frame = rig.capture();
    rig.next();
    rig.encode(frame, KnobSetting::ORIGINAL);
    let Some(Command::Send { header, .. }) = rig.next() else { panic!("nothing was sent") };
    rig.transfer.handle(rig.now, Input::Started { frame });
    let begin = rig.now;
    let mut commands = Vec::new();
    for step in 1..=4 {
        rig.now = begin + ms(10 * step);
        let received = (0.01 * step as f64 * rig.bytes_per_second) as u32 + 1200;
        let (first_at, last_at, total) = (begin, rig.now, header.bytes);
        let ack = Input::Ack { frame, received, total, first_at, last_at, complete: false };
        rig.transfer.handle(rig.now, ack);
        commands.extend(std::iter::from_fn(|| rig.next()));
    }
    let [Command::Reset { frame: reset }, Command::Encode { frame: again, setting, .. }] =
        commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!((reset, again), (frame, frame));
    rig.encode(frame, setting);
    let Some(Command::Send { header, deadline, .. }) = rig.next() else { panic!("not sent again") };
    assert!(header.accuracy_kept);
    rig.cross(frame, header.bytes);
    assert!(rig.now <= deadline, "the second encoding is in time");
}

#[test]
fn an_infeasible_bound_is_told_once_with_what_could_be_had_and_obeyed() {
    for (policy, sent) in [
        (WhenInfeasible::KeepLatency, Some(false)),
        (WhenInfeasible::KeepAccuracy, Some(true)),
        (WhenInfeasible::Pause, None),
    ] {
        let mut rig = Rig::new(Demand { when_infeasible: policy, ..demand() }, 4.5);
        // The first frame measures the path, and is late or lost.
        rig.frame();
        let header = rig.frame();
        assert_eq!(header.map(|header| header.accuracy_kept), sent, "{policy}");
        let found: Vec<_> = rig
            .reports
            .iter()
            .filter_map(|report| match report {
                Report::Infeasible { latency_at_accuracy, accuracy_at_latency, .. } => {
                    Some((*latency_at_accuracy, *accuracy_at_latency))
                }
                _ => None,
            })
            .collect();
        let [(Some(latency), Some(accuracy))] = found[..] else { panic!("{policy}: {found:?}") };
        // 55 KB at 4.5 Mbit/s take 98 ms.
        assert!((ms(100)..ms(200)).contains(&latency), "{latency:?}");
        assert!((0.90..0.95).contains(&accuracy), "{accuracy}");
        rig.bytes_per_second = 200.0 * MEGABIT;
        (0..40).for_each(|_| drop(rig.frame()));
        assert_eq!(rig.reports.iter().filter(|r| **r == Report::Feasible).count(), 1, "{policy}");
        assert!(rig.frame().unwrap().accuracy_kept);
    }
}

/// The latency, accuracy and frame rate that could be had, and the sentence.
type Told = (Option<Duration>, Option<f64>, Option<f64>, String);

/// All reports that bounds cannot be kept, in order.
fn told(rig: &Rig) -> Vec<Told> {
    let told = |report: &Report| match report {
        Report::Infeasible {
            latency_at_accuracy,
            accuracy_at_latency,
            frames_per_second,
            reason,
            ..
        } => Some((
            *latency_at_accuracy,
            *accuracy_at_latency,
            *frames_per_second,
            reason.to_string(),
        )),
        _ => None,
    };
    rig.reports.iter().filter_map(told).collect()
}

#[test]
fn a_bound_that_leaves_no_time_at_all_is_told() {
    for latency in [1, 2, 5] {
        let bounds = Bounds::new(ms(latency), 0.95).unwrap();
        let mut rig = Rig::new(Demand { bounds, ..demand() }, 1.5);
        (0..6).for_each(|_| drop(rig.frame()));
        let all = told(&rig);
        let (None, None, None, first) = &all[0] else { panic!("{latency} ms: {all:?}") };
        assert!(first.contains("are being measured"), "nothing was measured before: {first}");
        // 55 KB at 1.5 Mbit/s take 293 ms, which is more than the 200 ms between two frames.
        let (Some(takes), None, Some(frames), sentence) = &all[1] else {
            panic!("{latency} ms: {all:?}")
        };
        assert!((ms(300)..ms(400)).contains(takes) && (2.0..3.0).contains(frames), "{all:?}");
        assert!(
            sentence.contains("at 5.0 frames a second: could be had: this accuracy within 3"),
            "{sentence}"
        );
        assert!(sentence.contains("no frame is delivered (keep-latency)"), "{sentence}");
        assert_eq!(all.len(), 2, "reported once, and once corrected: {all:?}");
    }
}

/// Frames of a camera that captures one every 200 ms, whatever the line does, for 12 s; of the last 4 s, the part that kept both
/// bounds, of all and of those that arrived. The line carries one frame after the other. Where fewer are asked for, the
/// others are left out, and the last 32 s count.
fn kept(rig: &mut Rig, demand: Demand) -> (f64, f64) {
    struct Flight {
        frame: Instant,
        header: SendHeader,
        first_at: Instant,
        received: f64,
    }
    rig.transfer.handle(rig.now, Input::Demand(demand));
    let begin = rig.now;
    let mut line: VecDeque<Flight> = VecDeque::new();
    let (mut captured, mut kept, mut arrived) = (0.0, 0.0, 0.0);
    let every = demand.frame_rate.map_or(Duration::ZERO, FrameRate::interval);
    let mut wanted = begin;
    // Those that are taken at a lower rate are few, and may take longer.
    let (length, counted) = match demand.frame_rate {
        None => (12_000, ms(11_000)),
        Some(_) => (40_000, ms(39_000).saturating_sub(demand.bounds.latency())),
    };
    for tick in 0..length {
        rig.now = begin + ms(tick);
        let counts = |frame: Instant| frame >= begin + ms(7_000) && frame < begin + counted;
        if tick % 200 == 0 && rig.now + every / 8 >= wanted {
            wanted = wanted + every;
            let frame = rig.capture();
            captured += f64::from(u8::from(counts(frame)));
        }
        if let Some(flight) = line.front_mut() {
            flight.received += rig.bytes_per_second / 1e3;
            let (frame, total) = (flight.frame, flight.header.bytes);
            let complete = flight.received >= f64::from(total);
            if complete || tick % 10 == 0 {
                let received = (flight.received as u32).min(total);
                let (first_at, last_at) = (flight.first_at, rig.now);
                let ack = Input::Ack { frame, received, total, first_at, last_at, complete };
                rig.transfer.handle(rig.now, ack);
            }
            if complete {
                let in_time = rig.now.since(frame) + ms(5) <= demand.bounds.latency();
                if counts(frame) {
                    arrived += 1.0;
                    kept += f64::from(u8::from(in_time && flight.header.accuracy_kept));
                }
                line.pop_front();
            }
        }
        while let Some(command) = rig.next() {
            match command {
                Command::Encode { frame, setting, .. } => rig.encode(frame, setting),
                Command::Send { frame, header, .. } => {
                    rig.transfer.handle(rig.now, Input::Started { frame });
                    line.push_back(Flight { frame, header, first_at: rig.now, received: 0.0 });
                }
                Command::Reset { frame } | Command::Drop { frame, .. } => {
                    line.retain(|flight| flight.frame != frame);
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    (kept / captured, if arrived == 0.0 { 0.0 } else { kept / arrived })
}

#[test]
fn what_could_be_had_is_had_by_whoever_asks_for_it() {
    let mut promises = 0;
    for megabits in [1.8, 2.5, 4.5, 8.0, 12.0, 20.0] {
        for (latency, accuracy) in
            [(100, 0.95), (1000, 0.99), (40, 0.95), (5, 0.95), (30, 0.99), (100, 1.0)]
        {
            let bounds = Bounds::new(ms(latency), accuracy).unwrap();
            let asked = Demand { bounds, ..demand() };
            let mut rig = Rig::new(asked, megabits);
            let (all, _) = kept(&mut rig, asked);
            let case = format!("{megabits} Mbit/s, {latency} ms, {accuracy}");
            let is_over = rig.reports.iter().rposition(|report| *report == Report::Feasible)
                > rig.reports.iter().rposition(|r| matches!(r, Report::Infeasible { .. }));
            let told = told(&rig).pop().filter(|_| !is_over);
            let Some((by_latency, by_accuracy, frames, sentence)) = told else {
                assert!(all > 0.9, "{case}: neither kept nor reported, {all}: {:?}", rig.reports);
                continue;
            };
            assert!(all < 0.95, "{case}: all are kept, although: {sentence}");
            for could in [
                by_latency
                    .filter(|_| frames.is_none())
                    .map(|latency| Bounds::new(latency, accuracy).unwrap()),
                by_accuracy.map(|accuracy| Bounds::new(ms(latency), accuracy).unwrap()),
            ] {
                let Some(bounds) = could else { continue };
                promises += 1;
                let (had, _) = kept(&mut rig, Demand { bounds, ..asked });
                assert!(had > 0.9, "{case}: {had} of all at {bounds:?}, although: {sentence}");
            }
            if let Some(frames) = frames {
                promises += 1;
                // A latency belongs together with it.
                let could = match by_latency {
                    None => "a second: could be had: both at",
                    Some(_) => "a second: could be had: this accuracy within",
                };
                assert!(frames < 5.0 && sentence.contains(could), "{sentence}");
                let asked = match by_latency {
                    None => Demand { when_infeasible: WhenInfeasible::KeepAccuracy, ..asked },
                    Some(latency) => Demand {
                        bounds: Bounds::new(latency, accuracy).unwrap(),
                        frame_rate: Some(FrameRate::new(frames).unwrap()),
                        ..asked
                    },
                };
                let (all, had) = kept(&mut rig, asked);
                // Of 20 frames, one more or less may lie within the time that is looked at.
                let enough = match by_latency {
                    None => had > 0.9 && all * 5.0 >= frames - 0.5,
                    Some(_) => all > 0.9,
                };
                assert!(
                    enough,
                    "{case}: {had} of those that came, {all} of all, although: {sentence}"
                );
            }
        }
    }
    assert!(promises >= 20, "{promises} promises were tried");
}

#[test]
fn what_could_be_had_is_corrected_when_it_changes() {
    let mut rig = Rig::new(demand(), 4.5);
    (0..10).for_each(|_| drop(rig.frame()));
    let before = told(&rig);
    rig.bytes_per_second = 3.2 * MEGABIT;
    (0..10).for_each(|_| drop(rig.frame()));
    let after = told(&rig);
    assert!(after.len() > before.len() && after.len() <= before.len() + 3, "{after:?}");
    assert!(
        after.last().unwrap().0 > before.last().unwrap().0.map(|latency| latency * 5 / 4),
        "{after:?}"
    );
}

/// Captures a frame of 1.9 MB, whose bytes have arrived as `received` says by each time in milliseconds, up to 300 ms; gives how long after its
/// capture it was reported that the bounds cannot be kept.
fn told_under_way(rtt: u64, received: impl Fn(u64) -> u32) -> (Rig, Option<u64>) {
    let bounds = Bounds::new(ms(1000), 0.99).unwrap();
    let mut rig = Rig::new(Demand { bounds, ..demand() }, 12.0);
    rig.original_bytes = 1_900_000;
    rig.transfer.handle(rig.now, Input::Path { rtt: ms(rtt), rtt_min: ms(rtt), in_flight: 0 });
    let frame = rig.capture();
    let Some(Command::Encode { setting, .. }) = rig.next() else { panic!("not encoded") };
    rig.encode(frame, setting);
    let Some(Command::Send { header, .. }) = rig.next() else { panic!("not sent") };
    assert_eq!(header.bytes, 1_900_000);
    rig.transfer.handle(rig.now, Input::Started { frame });
    for elapsed in (0..300).step_by(10) {
        rig.now = frame + ms(elapsed);
        let (received, total) = (received(elapsed).min(header.bytes), header.bytes);
        let (first_at, last_at) = (frame, rig.now);
        let complete = received == total;
        let ack = Input::Ack { frame, received, total, first_at, last_at, complete };
        rig.transfer.handle(rig.now, ack);
        while rig.next().is_some() {}
        if !told(&rig).is_empty() {
            return (rig, Some(elapsed));
        }
    }
    (rig, None)
}

#[test]
fn bounds_that_the_first_frame_will_not_keep_are_told_while_it_is_under_way() {
    // 1.9 MB at 12 Mbit/s take 1.27 s.
    let (mut rig, after) = told_under_way(4, |elapsed| 1200 + 1500 * elapsed as u32);
    assert!(after.is_some_and(|after| after <= 100), "{after:?}: {:?}", rig.reports);
    let (_, accuracy, _, sentence) = told(&rig).pop().unwrap();
    assert!(accuracy.is_some_and(|accuracy| accuracy > 0.9), "{sentence}");
    // It cannot be known sooner than there are bytes, and none come: then at the deadline.
    let (mut none, after) = told_under_way(4, |_| 0);
    assert_eq!(after, None);
    none.now = none.transfer.poll_timeout().unwrap();
    while none.next().is_some() {}
    assert_eq!(told(&none).len(), 1, "{:?}", none.reports);
    // A frame that is captured meanwhile changes nothing.
    rig.capture();
    while rig.next().is_some() {}
    assert_eq!(told(&rig).len(), 1, "{:?}", rig.reports);
}

#[test]
fn a_link_that_opens_up_is_waited_for() {
    // 38 KB in the first round trip of 50 ms, twice as much in each that follows.
    let (rig, after) = told_under_way(50, |elapsed| 38_000 * ((1 << (elapsed / 50 + 1)) - 1));
    assert_eq!(after, None, "{:?}", rig.reports);
}

#[test]
fn an_accuracy_that_no_row_has_is_told() {
    let bounds = Bounds::new(Duration::from_millis(100), 1.0).unwrap();
    let mut rig = Rig::new(Demand { bounds, ..demand() }, 20.0);
    rig.frame();
    rig.frame();
    let could = rig.reports.iter().find_map(|report| match report {
        Report::Infeasible { latency_at_accuracy, accuracy_at_latency, .. } => {
            Some((*latency_at_accuracy, *accuracy_at_latency))
        }
        _ => None,
    });
    let (latency, accuracy) = could.expect("infeasible is reported");
    assert!(latency.unwrap() > ms(160) && accuracy.unwrap() > 0.95, "{could:?}");
}

struct Panics;

impl Controller for Panics {
    fn kind(&self) -> ControllerKind {
        ControllerKind::Budget
    }

    fn observe(&mut self, _now: Instant, _observation: &Observation) {}

    fn choose(&mut self, _now: Instant, _situation: &Situation<'_>) -> Choice {
        panic!("a controller of the test fails")
    }
}

#[test]
fn a_controller_that_panics_is_replaced_by_fixed_which_says_so() {
    let mut rig = Rig::new(demand(), 200.0);
    let tables = Arc::new(TableSet::builtin());
    let config = TransferConfig::default();
    rig.transfer =
        Transfer::with_controller(rig.now, 7, demand(), config, tables, Box::new(Panics));
    assert!(rig.frame().unwrap().setting.is_original());
    let failed = Report::ControllerFailed { controller: ControllerKind::Budget };
    assert!(rig.reports.contains(&failed), "{:?}", rig.reports);
    assert!(rig.frame().unwrap().setting.is_original());
    rig.transfer.handle(rig.now, Input::Demand(demand()));
    assert_eq!(rig.reports.iter().filter(|report| **report == failed).count(), 1);
}

#[test]
fn every_controller_and_delivery_can_be_changed_while_running() {
    let mut rig = Rig::new(demand(), 200.0);
    for controller in ControllerKind::ALL {
        for delivery in Delivery::ALL {
            let (controller, delivery) = (*controller, *delivery);
            let changed = Demand { controller, delivery, ..demand() };
            rig.transfer.handle(rig.now, Input::Demand(changed));
            assert!(rig.frame().is_some(), "{controller} {delivery}");
            assert_eq!(rig.transfer.demand(), &changed);
        }
    }
}

#[test]
fn a_share_limits_frames_until_it_expires() {
    let mut rig = Rig::new(demand(), 200.0);
    (0..5).for_each(|_| drop(rig.frame()));
    assert!(rig.frame().unwrap().setting.is_original());
    let share = Input::Share { bytes_per_second: Some(600e3), valid_for: Duration::from_secs(30) };
    rig.transfer.handle(rig.now, share);
    let sizes: Vec<u32> = (0..100).filter_map(|_| rig.frame()).map(|header| header.bytes).collect();
    let mean = f64::from(sizes.iter().sum::<u32>()) / sizes.len() as f64;
    assert!(mean <= 600e3 * 0.8 * 0.2 * 1.1, "{sizes:?}");
    (0..60).for_each(|_| drop(rig.frame()));
    assert!(rig.frame().unwrap().setting.is_original(), "the share has expired");
}

#[test]
fn a_broken_link_drops_latest_and_keeps_every() {
    let mut rig = Rig::new(demand(), 200.0);
    let lost = rig.capture();
    rig.next();
    rig.encode(lost, "5/8 q50".parse().unwrap());
    assert!(matches!(rig.next(), Some(Command::Send { .. })));
    rig.transfer.handle(rig.now, Input::LinkDown);
    assert_eq!(rig.next(), Some(Command::Drop { frame: lost, why: DropReason::LinkDown }));
    rig.now = rig.now + ms(200);
    let missed = rig.capture();
    assert_eq!(rig.next(), Some(Command::Drop { frame: missed, why: DropReason::LinkDown }));

    let mut rig = Rig::new(Demand { delivery: Delivery::Every, ..demand() }, 200.0);
    let sent = rig.capture();
    rig.next();
    rig.encode(sent, "5/8 q50".parse().unwrap());
    let Some(Command::Send { deadline, .. }) = rig.next() else { panic!("nothing was sent") };
    assert_eq!(deadline, Instant::MAX);
    rig.transfer.handle(rig.now, Input::LinkDown);
    rig.now = rig.now + ms(200);
    let waiting = rig.capture();
    assert_eq!(rig.next(), None);
    rig.now = rig.now + Duration::from_secs(5);
    rig.transfer.handle(rig.now, Input::LinkUp);
    let mut order = Vec::new();
    while let Some(command) = rig.next() {
        match command {
            Command::Encode { frame, setting, .. } => rig.encode(frame, setting),
            Command::Send { frame, header, .. } => {
                order.push(frame);
                rig.cross(frame, header.bytes);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(order, [sent, waiting]);
}

#[test]
fn a_frame_from_the_past_counts_from_its_sending() {
    let mut rig = Rig::new(demand(), 200.0);
    assert!(rig.transfer.wants_replay());
    let old = rig.now - Duration::from_secs(60);
    let replay = Input::Captured { at: old, bytes: 400_000, size: SIZE, replayed: true };
    rig.transfer.handle(rig.now, replay);
    assert!(!rig.transfer.wants_replay());
    let Some(Command::Encode { frame, setting, .. }) = rig.next() else { panic!("not encoded") };
    rig.encode(frame, setting);
    let Some(Command::Send { deadline, header, .. }) = rig.next() else { panic!("not sent") };
    assert!(header.replayed);
    assert_eq!(deadline, rig.now + ms(95));
}

#[test]
fn unchanged_frames_are_said_to_be_and_failed_ones_are_dropped() {
    let mut rig = Rig::new(demand(), 200.0);
    let frame = rig.capture();
    rig.next();
    rig.transfer.handle(rig.now, Input::Unchanged { frame, changed: 0.0, took: ms(3) });
    assert_eq!(rig.next(), Some(Command::SendUnchanged { frame }));
    rig.now = rig.now + ms(200);
    let frame = rig.capture();
    rig.next();
    rig.transfer.handle(rig.now, Input::EncodeFailed { frame, is_damaged: true });
    assert_eq!(rig.next(), Some(Command::Drop { frame, why: DropReason::Damaged }));
    rig.now = rig.now + ms(200);
    let frame = rig.capture();
    rig.next();
    rig.transfer.handle(rig.now, Input::EncodeFailed { frame, is_damaged: false });
    assert_eq!(rig.next(), Some(Command::Drop { frame, why: DropReason::EncodeFailed }));
}

#[test]
fn no_controller_stays_silent_after_a_bad_time() {
    use ControllerKind::{Aimd, Budget, Fixed, MezPi};
    for controller in [Budget, MezPi, Aimd, Fixed] {
        let mut rig = Rig::new(Demand { controller, ..demand() }, 200.0);
        let sent = |rig: &mut Rig, frames: usize| (0..frames).filter_map(|_| rig.frame()).count();
        assert!(sent(&mut rig, 20) > 15, "{controller:?}");
        rig.bytes_per_second = 2.0 * MEGABIT;
        sent(&mut rig, 10);
        rig.bytes_per_second = 200.0 * MEGABIT;
        // Half a second until the next is tried, and what it tells.
        sent(&mut rig, 4);
        assert!(sent(&mut rig, 10) > 0, "{controller:?} sends nothing any more");
    }
}

#[test]
fn without_control_a_frame_is_sent_as_captured_although_it_will_be_late() {
    let mut rig = Rig::new(Demand { controller: ControllerKind::Fixed, ..demand() }, 40.0);
    assert!(rig.frame().is_some(), "80 ms: that is known from now on");
    rig.original_bytes *= 2;
    for _ in 0..5 {
        let frame = rig.capture();
        let Some(Command::Encode { setting, .. }) = rig.next() else { panic!("not encoded") };
        rig.encode(frame, setting);
        let Some(Command::Send { header, .. }) = rig.next() else { panic!("not sent") };
        assert!(header.setting.is_original());
        rig.transfer.handle(rig.now, Input::Started { frame });
        rig.now = rig.now + ms(200);
        assert_eq!(rig.next(), Some(Command::Reset { frame }));
        while rig.next().is_some() {}
    }
}

#[test]
fn a_setting_that_keeps_failing_is_given_up() {
    let mut rig = Rig::new(demand(), 200.0);
    let mut tried = Vec::new();
    for _ in 0..6 {
        let frame = rig.capture();
        let Some(Command::Encode { setting, .. }) = rig.next() else { panic!("not encoded") };
        tried.push(setting.to_string());
        rig.transfer.handle(rig.now, Input::EncodeFailed { frame, is_damaged: true });
        rig.next();
        rig.now = rig.now + ms(200);
    }
    assert_eq!(tried[0], tried[2]);
    assert_ne!(tried[2], tried[3]);
}

#[test]
fn sending_a_frame_allocates_nothing_after_warm_up() {
    let mut rig = Rig::new(demand(), 200.0);
    (0..50).for_each(|_| drop(rig.frame()));
    let (now, size) = (rig.now, SIZE);
    let transfer = &mut rig.transfer;
    let mut sent = 0;
    let measured = allocation_counter::measure(|| {
        for index in 0..20u64 {
            let at = now + ms(200) * u32::try_from(index).unwrap();
            transfer.handle(at, Input::Captured { at, bytes: 400_000, size, replayed: false });
            let mut now = at;
            while let Some(command) = transfer.poll_command(now) {
                match command {
                    Command::Encode { frame, .. } => {
                        let took = Duration::from_millis(5);
                        transfer.handle(now, Input::Encoded { frame, bytes: 400_000, took });
                    }
                    Command::Send { frame, .. } => {
                        sent += 1;
                        transfer.handle(now, Input::Started { frame });
                        let first_at = now;
                        now = now + ms(16);
                        let (received, total) = (400_000, 400_000);
                        let ack = Input::Ack {
                            frame,
                            received,
                            total,
                            first_at,
                            last_at: now,
                            complete: true,
                        };
                        transfer.handle(now, ack);
                    }
                    _ => {}
                }
            }
        }
    });
    assert_eq!((sent, measured.count_total), (20, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Capture { replayed: bool, bytes: u32 },
    Encoded { bytes: u32 },
    Unchanged,
    Fail,
    Ack { part: f64, frame: usize },
    Link(bool),
    Demand(Demand),
    Share(f64),
    Path(u64),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let kinds = (
        proptest::sample::select(ControllerKind::ALL),
        proptest::sample::select(Delivery::ALL),
        proptest::sample::select(WhenInfeasible::ALL),
        proptest::sample::select(AdaptationProfile::ALL),
        (1u64..500, 0.0..=1.0f64),
    );
    prop_oneof![
        6 => (any::<bool>(), 0u32..2_000_000)
            .prop_map(|(replayed, bytes)| Step::Capture { replayed, bytes }),
        6 => (0u32..2_000_000).prop_map(|bytes| Step::Encoded { bytes }),
        1 => Just(Step::Unchanged),
        1 => Just(Step::Fail),
        6 => (0.0..=1.2f64, 0usize..4).prop_map(|(part, frame)| Step::Ack { part, frame }),
        1 => any::<bool>().prop_map(Step::Link),
        1 => kinds.prop_map(|(controller, delivery, when_infeasible, profile, (latency, accuracy))| {
            let bounds = Bounds::new(ms(latency), accuracy).unwrap();
            let frame_rate = None;
            Step::Demand(Demand { bounds, controller, delivery, when_infeasible, profile, frame_rate })
        }),
        1 => any::<f64>().prop_map(Step::Share),
        1 => (0u64..1_000_000).prop_map(Step::Path),
        4 => (0u64..300).prop_map(Step::Wait),
    ]
}

proptest! {
    /// For any inputs in any order: nothing panics, no frame has two fates, no command names a frame that
    /// was not captured, and at most one frame is being encoded.
    #[test]
    fn every_frame_has_at_most_one_fate(steps in proptest::collection::vec(any_step(), 1..200)) {
        let mut rig = Rig::new(demand(), 20.0);
        let mut encoding: Option<Instant> = None;
        let mut sent: Vec<(Instant, u32)> = Vec::new();
        let mut over: std::collections::HashMap<Instant, u32> = Default::default();
        for step in steps {
            rig.now = rig.now + Duration::from_micros(10);
            let now = rig.now;
            match step {
                Step::Capture { replayed, bytes } => {
                    over.insert(now, 0);
                    let captured = Input::Captured { at: now, bytes, size: SIZE, replayed };
                    rig.transfer.handle(now, captured);
                }
                Step::Encoded { bytes } => {
                    let frame = encoding.take().unwrap_or(Instant::MIN);
                    rig.transfer.handle(now, Input::Encoded { frame, bytes, took: ms(7) });
                }
                Step::Unchanged => {
                    let frame = encoding.take().unwrap_or(Instant::MAX);
                    rig.transfer.handle(now, Input::Unchanged { frame, changed: 0.0, took: ms(7) });
                }
                Step::Fail => {
                    let frame = encoding.take().unwrap_or(Instant::EPOCH);
                    rig.transfer.handle(now, Input::EncodeFailed { frame, is_damaged: true });
                }
                Step::Ack { part, frame } => {
                    let known = sent.len().checked_sub(frame + 1).map(|index| sent[index]);
                    let (frame, total) = known.unwrap_or((now, 10));
                    rig.transfer.handle(now, Input::Started { frame });
                    let received = (f64::from(total) * part) as u32;
                    let (first_at, complete) = (frame, part >= 1.0);
                    let last_at = now;
                    let ack = Input::Ack { frame, received, total, first_at, last_at, complete };
                    rig.transfer.handle(now, ack);
                }
                Step::Link(true) => rig.transfer.handle(now, Input::LinkUp),
                Step::Link(false) => rig.transfer.handle(now, Input::LinkDown),
                Step::Demand(demand) => rig.transfer.handle(now, Input::Demand(demand)),
                Step::Share(share) => rig.transfer.handle(
                    now,
                    Input::Share { bytes_per_second: Some(share), valid_for: ms(100) },
                ),
                Step::Path(in_flight) => rig.transfer.handle(
                    now,
                    Input::Path { rtt: ms(20), rtt_min: ms(10), in_flight },
                ),
                Step::Wait(millis) => rig.now = now + ms(millis),
            }
            while let Some(command) = rig.transfer.poll_command(rig.now) {
                match command {
                    Command::Encode { frame, .. } => {
                        prop_assert!(over.contains_key(&frame));
                        encoding = Some(frame);
                    }
                    Command::Send { frame, header, .. } => {
                        prop_assert!(over.contains_key(&frame));
                        sent.push((frame, header.bytes));
                    }
                    Command::Reset { frame } => prop_assert!(sent.iter().any(|s| s.0 == frame)),
                    Command::SendUnchanged { frame } | Command::Drop { frame, .. } => {
                        let fates = over.get_mut(&frame);
                        prop_assert!(fates.is_some());
                        *fates.unwrap() += 1;
                    }
                    Command::Report(report) => prop_assert!(!report.to_string().is_empty()),
                }
            }
            prop_assert!(rig.transfer.poll_timeout().is_none_or(|at| at > rig.now));
        }
        prop_assert!(over.values().all(|fates| *fates <= 1));
    }
}
