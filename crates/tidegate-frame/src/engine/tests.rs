use tidegate_log::{Log, LogConfig, LogWriter, Memory, ReadError, Reader};
use tidegate_message::{
    AdaptationProfile, Bounds, ControllerKind, Delivery, Demand, DropReason, FrameSize,
    WhenInfeasible,
};

use super::*;

const TRANSFER: TransferId = TransferId(1);
const SIZE: FrameSize = FrameSize { width: 640, height: 480 };

/// A log in memory, whose frames are all of one size.
#[derive(Clone)]
struct TestLog(Log<Memory>);

struct TestReader(Reader<Memory>);

impl FrameLog for TestLog {
    type Reader = TestReader;

    fn reader_next(&self) -> TestReader {
        TestReader(self.0.reader_next())
    }

    fn reader_from(&self, at: Instant) -> TestReader {
        TestReader(self.0.reader_from(at))
    }

    fn first_at(&self) -> Option<Instant> {
        self.0.first_at()
    }

    fn last_at(&self) -> Option<Instant> {
        self.0.last_at()
    }

    fn original(&self, at: Instant) -> Option<Bytes> {
        self.0.entry_at(at).expect("memory does not fail").map(|entry| entry.body)
    }
}

impl FrameReader for TestReader {
    fn next(&mut self) -> Result<Option<LoggedFrame>, Unread> {
        match self.0.next() {
            Ok(entry) => Ok(entry.map(|entry| LoggedFrame {
                at: entry.at,
                size: Some(SIZE),
                seen: Some(if entry.meta.is_empty() { SIZE } else { SIZE.turned() }),
                body: entry.body,
            })),
            Err(ReadError::Overtaken(overtaken)) => {
                let ((first, until), count) = (overtaken.missed_time, overtaken.missed());
                Err(Unread::Overwritten { first, until, count })
            }
            Err(error) => panic!("memory does not fail: {error}"),
        }
    }

    fn missing_at_start(&self) -> Option<(Instant, Instant)> {
        self.0.missing_at_start()
    }

    fn behind(&self) -> u64 {
        self.0.behind()
    }
}

/// An engine, its log, and a clock that stands where it is put.
struct Rig {
    engine: Engine<TestLog>,
    writer: LogWriter<Memory>,
    now: Instant,
    /// Where transfers end.
    to: Option<Instant>,
}

impl Rig {
    fn new(log_bytes: u64) -> Self {
        let (writer, log) = Log::create(LogConfig::bounded(log_bytes), Memory::new()).unwrap();
        let tables = Arc::new(TableSet::builtin());
        let transfer = TransferConfig::default();
        let config = EngineConfig { transfer, covers: false, began: Instant::EPOCH };
        let engine = Engine::new(TestLog(log), tables, config);
        Self { engine, writer, now: Instant::from_millis(1_000_000), to: None }
    }

    fn start(&mut self, delivery: Delivery, from: Option<Instant>, resume_after: Option<Instant>) {
        self.start_with(ControllerKind::Fixed, delivery, from, resume_after);
    }

    fn start_with(
        &mut self,
        controller: ControllerKind,
        delivery: Delivery,
        from: Option<Instant>,
        resume_after: Option<Instant>,
    ) {
        let demand = Demand {
            bounds: Bounds::new(Duration::from_millis(100), 0.5).unwrap(),
            controller,
            delivery,
            when_infeasible: WhenInfeasible::KeepLatency,
            profile: AdaptationProfile::Jpeg,
            frame_rate: None,
        };
        let (to, hints) = (self.to, TransferHints::default());
        let start = StartTransfer { transfer: TRANSFER, demand, from, to, resume_after, hints };
        self.engine.handle_start(self.now, start);
    }

    /// Captures a frame; the time is then 10 ms later.
    fn capture(&mut self) -> Instant {
        self.capture_seen(b"")
    }

    /// Captures a frame that is seen after a quarter turn, unless `turned` is empty.
    fn capture_seen(&mut self, turned: &[u8]) -> Instant {
        let at = self.now;
        self.writer.append(at, turned, &[7; 10_000]).unwrap();
        self.engine.handle_captured(self.now);
        self.now = self.now + Duration::from_millis(10);
        at
    }

    /// The encoder is done with the job that is asked for.
    fn encoded(&mut self, outcome: Outcome) {
        let actions = self.actions();
        let job = actions.into_iter().find_map(|action| match action {
            Action::Encode(job) => Some(job),
            _ => None,
        });
        let Job { transfer, frame, .. } = job.expect("a frame is to be encoded");
        let (started, ended, outcome) = (self.now, self.now, Ok(outcome));
        self.engine.handle_encoded(self.now, Done { transfer, frame, started, ended, outcome });
    }

    fn ack(&mut self, frame: Instant) {
        let (first_at, last_at) = (self.now, self.now);
        let (received, total) = (10_000, 10_000);
        let (complete, reset_seen) = (true, false);
        let transfer = TRANSFER;
        let ack = Ack { transfer, frame, received, total, first_at, last_at, complete, reset_seen };
        self.engine.handle_ack(self.now, &ack);
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.engine.poll_action()).collect()
    }

    /// The capture times of the frames that are to be sent.
    fn sent(actions: &[Action]) -> Vec<Instant> {
        let sent = actions.iter().filter_map(|action| match action {
            Action::Frame { header, .. } => Some(header.at),
            _ => None,
        });
        sent.collect()
    }

    /// The reports on frames: their markers, and those that are lost, with how many and why.
    fn told(actions: &[Action]) -> Vec<String> {
        let told = actions.iter().filter_map(|action| match action {
            Action::Unchanged(Unchanged { at, .. }) => Some(format!("{at} unchanged")),
            Action::Report(CameraReport {
                at,
                text,
                what: Reported::FramesDropped { why, count, .. },
                ..
            }) => {
                assert_eq!(why.map(|why| why.to_string()).as_ref(), Some(text));
                Some(format!("{at} lost {count} {text}"))
            }
            _ => None,
        });
        told.collect()
    }
}

#[test]
fn a_marker_whose_picture_is_lost_is_lost_with_it() {
    for arrives in [true, false] {
        let mut rig = Rig::new(1 << 20);
        rig.start_with(ControllerKind::Budget, Delivery::Latest, None, None);
        let shown = rig.capture();
        rig.encoded(Outcome::Encoded { body: Bytes::from(vec![7; 10_000]), size: SIZE });
        assert_eq!(Rig::sent(&rig.actions()), [shown]);
        let same = rig.capture();
        rig.encoded(Outcome::Unchanged { changed: 0.0 });
        assert_eq!(Rig::told(&rig.actions()), Vec::<String>::new(), "it waits for its picture");
        if arrives {
            rig.ack(shown);
            assert_eq!(Rig::told(&rig.actions()), [format!("{same} unchanged")]);
        } else {
            for _ in 0..20 {
                rig.now = rig.now + Duration::from_millis(20);
                rig.engine.handle_timeout(rig.now);
            }
            let actions = rig.actions();
            let lost = [shown, same].map(|at| format!("{at} lost 1 {}", DropReason::Deadline));
            assert_eq!(Rig::told(&actions), lost);
            assert!(actions.iter().any(|action| matches!(action, Action::Lost(TRANSFER))));
        }
    }
}

/// Sizes are of pictures as they are seen, whether the frame travels untouched or smaller.
#[test]
fn a_frame_tells_the_size_of_its_original_as_it_is_seen() {
    let half = FrameSize { width: 320, height: 240 };
    for (turned, seen, small) in
        [(&b""[..], SIZE, half), (&b"turned"[..], SIZE.turned(), half.turned())]
    {
        let mut rig = Rig::new(1 << 20);
        rig.start_with(ControllerKind::Budget, Delivery::Latest, None, None);
        rig.capture_seen(turned);
        rig.encoded(Outcome::Encoded { body: Bytes::from(vec![7; 5_000]), size: half });
        let encoded = rig.actions();
        let mut rig = Rig::new(1 << 20);
        rig.start(Delivery::Latest, None, None);
        rig.capture_seen(turned);
        for (actions, size) in [(encoded, small), (rig.actions(), seen)] {
            let sizes = actions.iter().find_map(|action| match action {
                Action::Frame { header, .. } => Some((header.size, header.source_size)),
                _ => None,
            });
            assert_eq!(sizes, Some((size, Some(seen))), "{turned:?}");
        }
    }
}

#[test]
fn what_a_broken_link_cost_the_newest_frames_is_told_when_it_is_back() {
    let mut rig = Rig::new(1 << 20);
    let received = rig.capture();
    let captured: Vec<_> = (0..5).map(|_| rig.capture()).collect();
    rig.start(Delivery::Latest, None, Some(received));
    let actions = rig.actions();
    assert_eq!(Rig::sent(&actions), Vec::<Instant>::new());
    assert_eq!(Rig::told(&actions), [format!("{} lost 5 {}", captured[4], DropReason::LinkDown)]);
    let mut rig = Rig::new(1 << 20);
    let received = rig.capture();
    let captured: Vec<_> = (0..5).map(|_| rig.capture()).collect();
    rig.start(Delivery::Every, None, Some(received));
    let mut sent = Vec::new();
    while let [at] = Rig::sent(&rig.actions())[..] {
        sent.push(at);
        rig.ack(at);
    }
    assert_eq!(sent, captured, "every frame of the gap follows");
}

#[test]
fn what_the_logs_wrap_took_from_a_reader_is_told() {
    let mut rig = Rig::new(256 << 10);
    let first = rig.capture();
    rig.start(Delivery::Every, Some(first), None);
    assert_eq!(Rig::sent(&rig.actions()), [first]);
    let mut captured: Vec<_> = (0..100).map(|_| rig.capture()).collect();
    rig.ack(first);
    let actions = rig.actions();
    let next = Rig::sent(&actions)[0];
    captured.retain(|&at| at < next);
    assert!(!captured.is_empty());
    let told = Rig::told(&actions);
    let count = captured.len();
    assert_eq!(told, [format!("{next} lost {count} {}", DropReason::LogWrapped)]);
    rig.start(Delivery::Every, Some(first), None);
    let told = Rig::told(&rig.actions());
    assert!(told.len() == 1 && told[0].contains("lost 0 log wrapped"), "{told:?}");
}

#[test]
fn a_transfer_ends_at_its_end_also_if_no_later_frame_comes() {
    for delivery in [Delivery::Latest, Delivery::Every] {
        let mut rig = Rig::new(1 << 20);
        let first = rig.capture();
        rig.to = Some(rig.now + Duration::from_secs(5));
        rig.start(delivery, Some(first), None);
        rig.ack(first);
        let ended =
            |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Ended(_)));
        let mut now = rig.now;
        while !ended(&rig.actions()) {
            now = rig.engine.poll_timeout().expect("it looks again").max(now);
            assert!(now <= rig.to.unwrap() + Duration::from_secs(2), "{delivery:?}: it never ends");
            rig.engine.handle_timeout(now);
        }
        assert!(now >= rig.to.unwrap(), "{delivery:?}: it ended early");
    }
}

#[test]
fn a_frame_that_the_link_does_not_take_is_told_and_the_next_one_sent() {
    let mut rig = Rig::new(1 << 20);
    rig.start(Delivery::Every, None, None);
    let first = rig.capture();
    assert_eq!(Rig::sent(&rig.actions()), [first]);
    rig.engine.handle_not_sent(rig.now, TRANSFER, first);
    assert_eq!(Rig::told(&rig.actions()), [format!("{first} lost 1 {}", DropReason::QueueFull)]);
    let second = rig.capture();
    assert_eq!(Rig::sent(&rig.actions()), [second]);
}

#[test]
fn the_least_time_is_the_begin_of_the_epoch_and_the_log_has_more() {
    for (from, resume_after) in [(None, Some(Instant::MIN)), (Some(Instant::MIN), None)] {
        let mut rig = Rig::new(1 << 20);
        let earlier = rig.capture();
        rig.engine.config.began = rig.now;
        let first = rig.capture();
        rig.start(Delivery::Every, from, resume_after);
        assert_eq!(Rig::sent(&rig.actions()), [first], "of this epoch: {from:?} {resume_after:?}");
        rig.engine.end(TRANSFER, EndReason::Stopped);
        rig.actions();
        rig.start(Delivery::Every, Some(earlier), None);
        assert_eq!(Rig::sent(&rig.actions()), [earlier], "a request by time gets what there is");
    }
}

#[test]
fn an_original_is_sent_or_said_to_be_gone() {
    let mut rig = Rig::new(1 << 20);
    let own = rig.capture();
    for (at, expected) in [(own, Some(10_000)), (Instant::EPOCH, None)] {
        rig.engine.handle_fetch(FetchOriginal { request: 1, at });
        let actions = rig.actions();
        let found = actions.iter().find_map(|action| match action {
            Action::Original { original, body } => Some((original.outcome, body.len())),
            _ => None,
        });
        match (found.unwrap(), expected) {
            ((OriginalOutcome::Found { bytes }, len), Some(expected)) => {
                assert_eq!((bytes, len), (expected, expected as usize));
            }
            ((OriginalOutcome::Missing { newest, .. }, 0), None) => assert_eq!(newest, Some(own)),
            (found, _) => panic!("{found:?}"),
        }
    }
}

#[test]
fn it_says_that_it_lives_while_its_source_gives_nothing() {
    let mut rig = Rig::new(1 << 20);
    rig.start(Delivery::Latest, None, None);
    for _ in 0..20 {
        let frame = rig.capture();
        rig.ack(frame);
    }
    rig.actions();
    let mut beats = Vec::new();
    for _ in 0..3 {
        rig.now = rig.engine.poll_timeout().expect("a heartbeat is due");
        rig.engine.handle_timeout(rig.now);
        let actions = rig.actions();
        beats.extend(actions.into_iter().filter_map(|action| match action {
            Action::Report(report) if report.what == Reported::Idle => Some(report.at),
            _ => None,
        }));
    }
    assert_eq!(beats.len(), 3);
    assert_eq!(beats[2].since(beats[1]), HEARTBEAT);
    // A subscription to the past alone does not wait for it.
    let mut past = Rig::new(1 << 20);
    past.to = Some(past.now + Duration::from_millis(15));
    for _ in 0..4 {
        past.capture();
    }
    past.start(Delivery::Every, Some(Instant::from_millis(1_000_000)), None);
    past.actions();
    past.engine.handle_timeout(past.now + Duration::from_secs(5));
    let idle =
        |action: &Action| matches!(action, Action::Report(report) if report.what == Reported::Idle);
    assert!(!past.actions().iter().any(idle));
}
