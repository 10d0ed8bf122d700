//! Sessions over streams that the test fills itself.

use bytes::Bytes;
use tidegate_api::SubscribeRequest;
use tidegate_log::LogConfig;
use tidegate_wire::{TransferHints, TransferId};
use tokio::task::JoinHandle;

use super::*;
use crate::tests::{append as append_captured, ms};

const FIRST: Epoch = Epoch { ordinal: 1, epoch: 71 };
const SECOND: Epoch = Epoch { ordinal: 2, epoch: 72 };

fn late(at: Instant) -> Missed {
    Missed { from: at, to: at, count: 1, why: MissedWhy::Late }
}

fn every() -> Demand {
    let request = SubscribeRequest::new("cam1", Duration::from_secs(60), 0.5).unwrap();
    Demand { delivery: Delivery::Every, ..request.demand }
}

fn stream(range: (Option<Instant>, Option<Instant>)) -> Arc<Stream> {
    let (camera, hints) = ("cam1".parse().unwrap(), TransferHints::default());
    let log = LogConfig { bytes_max: 1 << 16, segment_bytes: 1 << 12 };
    Arc::new(Stream::new(camera, FIRST, TransferId(3), every(), hints, range, log.into()).unwrap())
}

fn append(stream: &Stream, life: Epoch, at: Instant) {
    append_as(stream, life, at, false);
}

fn append_as(stream: &Stream, life: Epoch, at: Instant, replayed: bool) {
    append_captured(stream, life, at, replayed, Duration::ZERO);
}

fn unchanged(stream: &Stream, life: Epoch, at: Instant) {
    let now = clock::now();
    let arrival = Arrival { life, first_at: now, last_at: now, offset_nanos: 0 };
    let marker = tidegate_wire::Unchanged { transfer: stream.transfer, at };
    stream.append(at, arrival, &Meta::Unchanged(marker), &Bytes::new()).unwrap();
}

/// A running session and what it tells.
struct Rig {
    events: mpsc::Receiver<Result<Event, ApiError>>,
    switch: mpsc::Sender<Switch>,
    verdicts: Arc<Verdicts>,
    /// Resolves when it has caught up.
    reached: oneshot::Receiver<Instant>,
    task: JoinHandle<()>,
}

impl Rig {
    fn new(stream: &Arc<Stream>, from: Option<Instant>) -> Self {
        Self::wanting(stream, Wanted { from, to: None, forgotten: None, demand: every() })
    }

    fn wanting(stream: &Arc<Stream>, wanted: Wanted) -> Self {
        let (out, events) = mpsc::channel(1);
        let (switch, switches) = mpsc::channel(1);
        let verdicts = Arc::<Verdicts>::default();
        let (caught_up, reached) = oneshot::channel();
        let session = Session::new(
            stream.clone(),
            wanted,
            (out, Arc::default()),
            verdicts.clone(),
            Arc::default(),
            CancellationToken::new(),
            switches,
        )
        .telling(caught_up);
        Self { events, switch, verdicts, reached, task: tokio::spawn(session.run()) }
    }

    /// The next event; none if the session has nothing to tell.
    async fn next(&mut self) -> Option<Event> {
        self.told().await.map(|told| told.expect("the subscription holds"))
    }

    async fn told(&mut self) -> Option<Result<Event, ApiError>> {
        tokio::time::timeout(Duration::from_secs(5), self.events.recv()).await.ok().flatten()
    }

    /// Epoch and capture time of the next frame or marker.
    async fn taken(&mut self) -> (u64, Instant) {
        match self.next().await {
            Some(Event::Frame(frame)) => (frame.epoch, frame.captured_at),
            Some(Event::Unchanged(marker)) => (marker.epoch, marker.captured_at),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_camera_whose_clock_was_set_back_is_followed_at_once() {
    let stream = stream((Some(ms(500)), None));
    let mut session = Rig::new(&stream, Some(ms(500)));
    append(&stream, FIRST, ms(1000));
    assert_eq!(session.taken().await, (71, ms(1000)));
    // Earlier than `from`, too: that was reached by the old clock.
    append(&stream, SECOND, ms(10));
    assert_eq!(session.taken().await, (72, ms(10)));
    append(&stream, SECOND, ms(20));
    assert_eq!(session.taken().await, (72, ms(20)));
}

#[tokio::test(start_paused = true)]
async fn late_records_of_an_earlier_epoch_are_not_kept() {
    let stream = stream((None, None));
    append(&stream, SECOND, ms(10));
    let now = clock::now();
    let arrival = Arrival { life: FIRST, first_at: now, last_at: now, offset_nanos: 0 };
    let marker = tidegate_wire::Unchanged { transfer: stream.transfer, at: ms(1000) };
    let late = stream.append(ms(1000), arrival, &Meta::Unchanged(marker), &Bytes::new());
    assert!(matches!(late, Err(super::super::stream::AppendFailed::EarlierLife)), "{late:?}");
    assert_eq!(stream.newest(), Some(ms(10)));
}

#[tokio::test(start_paused = true)]
async fn a_marker_refers_to_no_frame_of_an_earlier_life() {
    let stream = stream((None, None));
    let mut session = Rig::new(&stream, Some(ms(0)));
    append(&stream, FIRST, ms(1000));
    assert_eq!(session.taken().await, (71, ms(1000)));
    unchanged(&stream, SECOND, ms(10));
    append(&stream, SECOND, ms(20));
    let wrapped = Missed { why: MissedWhy::LogWrapped, ..late(ms(10)) };
    assert_eq!(session.next().await, Some(Event::Missed(wrapped)), "not the marker at 10");
    assert_eq!(session.taken().await, (72, ms(20)));
    unchanged(&stream, SECOND, ms(30));
    assert_eq!(session.taken().await, (72, ms(30)));
}

#[tokio::test(start_paused = true)]
async fn a_session_moves_to_a_stream_of_a_later_life_without_gap_or_duplicate() {
    let (old, new) = (stream((None, None)), stream((None, None)));
    let mut session = Rig::new(&old, Some(ms(0)));
    append(&old, FIRST, ms(1000));
    assert_eq!(session.taken().await, (71, ms(1000)));
    append(&new, FIRST, ms(1000));
    append(&new, FIRST, ms(1100));
    append(&new, SECOND, ms(1200));
    session.switch.send(Switch::stream(new.clone(), every())).await.unwrap();
    assert_eq!(session.taken().await, (71, ms(1100)));
    assert_eq!(session.taken().await, (72, ms(1200)));
    assert_eq!(session.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn frames_of_the_old_stream_are_handed_over_before_a_session_moves() {
    // Which of the frame and the move it learns of first is chance.
    for _ in 0..20 {
        let (old, new) = (stream((None, None)), stream((None, None)));
        let mut session = Rig::new(&old, Some(ms(0)));
        append(&old, FIRST, ms(1000));
        assert_eq!(session.taken().await, (71, ms(1000)));
        assert_eq!(session.next().await, None, "it waits");
        append(&old, FIRST, ms(1100));
        append(&new, FIRST, ms(1200));
        session.switch.try_send(Switch::stream(new.clone(), every())).unwrap();
        assert_eq!(session.taken().await, (71, ms(1100)));
        assert_eq!(session.taken().await, (71, ms(1200)));
    }
}

#[tokio::test(start_paused = true)]
async fn frames_that_an_ended_epoch_did_not_deliver_are_reported() {
    let stream = stream((Some(Instant::MIN), None));
    append(&stream, SECOND, ms(10));
    let forgotten = Some(ms(1001));
    let wanted = Wanted { from: Some(Instant::MIN), to: None, forgotten, demand: every() };
    let mut session = Rig::wanting(&stream, wanted);
    let missed = Missed { from: ms(1001), to: ms(1001), count: 0, why: MissedWhy::LinkDown };
    assert_eq!(session.next().await, Some(Event::Missed(missed)));
    assert_eq!(session.taken().await, (72, ms(10)));
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_came_after_its_camera_gave_it_up_is_not_missed_as_well() {
    let stream = stream((None, None));
    let mut session = Rig::new(&stream, None);
    assert_eq!(session.next().await, None);
    append(&stream, FIRST, ms(100));
    assert_eq!(session.taken().await, (71, ms(100)));
    stream.tell_missed(late(ms(100)));
    stream.tell_missed(late(ms(200)));
    assert_eq!(session.next().await, Some(Event::Missed(late(ms(200)))));
}

#[tokio::test(start_paused = true)]
async fn that_accuracies_are_assumed_is_told_to_who_comes_later_too() {
    let stream = stream((None, None));
    let mut first = Rig::new(&stream, None);
    assert_eq!(first.next().await, None);
    let assumed = Event::AccuracyAssumed("a default table".into());
    stream.tell(assumed.clone());
    assert_eq!(first.next().await, Some(assumed.clone()));
    assert_eq!(Rig::new(&stream, None).next().await, Some(assumed));
}

#[tokio::test]
async fn that_a_camera_is_away_is_told_to_who_comes_meanwhile() {
    let stream = stream((None, None));
    let (away, none) = (Event::CameraOffline("gone".into()), Event::NoFrames("dark".into()));
    for (events, expected) in [
        (vec![away.clone()], Some(away.clone())),
        (vec![away.clone(), none.clone()], Some(none.clone())),
        (vec![none, away.clone()], Some(away)),
        (vec![Event::CameraOnline], None),
    ] {
        for event in events {
            stream.tell(event);
        }
        assert_eq!(stream.subscribe().standing.first(), expected.as_ref());
        if let Some(expected) = expected {
            assert_eq!(Rig::new(&stream, None).next().await, Some(expected));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_reaches_the_subscriber_with_its_code_and_sentence() {
    let stream = stream((None, None));
    let mut session = Rig::new(&stream, None);
    stream.refuse(Code::LIMIT_REACHED, "this camera serves 64 transfers".into());
    let Some(Err(error)) = session.told().await else { panic!("no failure") };
    assert_eq!(error.code(), Code::LIMIT_REACHED);
    assert_eq!(error.message(), "this camera serves 64 transfers");
    assert!(session.told().await.is_none(), "nothing follows");
}

#[tokio::test(start_paused = true)]
async fn unread_frames_are_still_delivered_when_the_log_starts_over() {
    let stream = stream((None, None));
    let mut session = Rig::new(&stream, Some(ms(0)));
    for at in [1000, 1100, 1200, 1300] {
        append(&stream, FIRST, ms(at));
    }
    append(&stream, SECOND, ms(10));
    for expected in [(71, 1000), (71, 1100), (71, 1200), (71, 1300), (72, 10)] {
        assert_eq!(session.taken().await, (expected.0, ms(expected.1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_came_and_went_unread_is_told_as_missed() {
    let stream = stream((None, None));
    let mut session = Rig::new(&stream, Some(ms(0)));
    append(&stream, FIRST, ms(1000));
    assert_eq!(session.taken().await, (71, ms(1000)));
    // The session runs only while the test waits: it sees nothing of these before the last.
    append(&stream, SECOND, ms(500));
    append(&stream, SECOND, ms(600));
    append(&stream, Epoch { ordinal: 3, epoch: 73 }, ms(10));
    let why = MissedWhy::SlowSubscriber;
    let missed = Missed { from: ms(500), to: ms(600), count: 2, why };
    assert_eq!(session.next().await, Some(Event::Missed(missed)));
    assert_eq!(session.taken().await, (73, ms(10)));
}

#[tokio::test(start_paused = true)]
async fn frames_whose_notices_were_dropped_are_counted() {
    let stream = stream((None, None));
    let mut session = Rig::new(&stream, Some(ms(0)));
    append(&stream, FIRST, ms(1));
    assert_eq!(session.taken().await, (71, ms(1)));
    // Far more than are kept for a session that does not read, with others between.
    for at in 2..=1001 {
        stream.tell_missed(late(ms(at)));
        stream.tell(Event::Feasible);
    }
    let (mut unread, mut read) = (0, 0);
    while let Some(event) = session.next().await {
        match event {
            Event::Missed(missed) if missed.why == MissedWhy::SlowSubscriber => {
                assert_eq!(missed.from, ms(0));
                unread += missed.count;
            }
            Event::Missed(missed) => read += missed.count,
            Event::Feasible => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(unread + read, 1000);
    assert!(unread >= 800 && read >= 100, "{unread} dropped, {read} reported one by one");
    // None is left over for the next one.
    stream.tell_missed(late(ms(2000)));
    let missed = Missed { from: ms(2000), to: ms(2000), count: 1, why: MissedWhy::Late };
    assert_eq!(session.next().await, Some(Event::Missed(missed)));
}

#[tokio::test(start_paused = true)]
async fn dropped_notices_are_counted_although_none_follows() {
    let stream = stream((None, None));
    let mut session = Rig::new(&stream, Some(ms(0)));
    append(&stream, FIRST, ms(1));
    assert_eq!(session.taken().await, (71, ms(1)));
    for at in 2..=11 {
        stream.tell_missed(late(ms(at)));
    }
    for _ in 0..1000 {
        stream.tell(Event::Feasible);
    }
    let mut unread = 0;
    while let Some(event) = session.next().await {
        if let Event::Missed(missed) = event {
            assert_eq!(missed.why, MissedWhy::SlowSubscriber);
            unread += missed.count;
        }
    }
    assert_eq!(unread, 10);
}

#[tokio::test(start_paused = true)]
async fn a_new_subscriber_is_shown_the_picture_first_while_nothing_moves() {
    let stream = stream((None, None));
    append(&stream, FIRST, ms(1));
    unchanged(&stream, FIRST, ms(2));
    let mut session = Rig::new(&stream, None);
    assert_eq!(session.next().await, None);
    for at in [3, 4] {
        unchanged(&stream, FIRST, ms(at));
    }
    let Some(Event::Frame(shown)) = session.next().await else { panic!("no picture") };
    assert_eq!((shown.captured_at, shown.replayed), (ms(1), true));
    assert_eq!(shown.stages.delivery, Duration::ZERO);
    for at in [3, 4] {
        let Some(Event::Unchanged(marker)) = session.next().await else { panic!("no marker") };
        assert_eq!((marker.captured_at, marker.same_as), (ms(at), ms(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_refers_to_a_late_frame_brings_it_first() {
    let stream = stream((None, None));
    let demand = Demand { delivery: Delivery::Latest, ..every() };
    let mut session =
        Rig::wanting(&stream, Wanted { from: None, to: None, forgotten: None, demand });
    assert_eq!(session.next().await, None);
    append(&stream, FIRST, ms(1));
    assert_eq!(session.taken().await, (71, ms(1)));
    append_captured(&stream, FIRST, ms(2), false, Duration::from_secs(100));
    assert_eq!(session.next().await, Some(Event::Missed(late(ms(2)))));
    unchanged(&stream, FIRST, ms(3));
    let Some(Event::Frame(shown)) = session.next().await else { panic!("no picture") };
    assert_eq!((shown.captured_at, shown.replayed), (ms(2), true));
    let Some(Event::Unchanged(marker)) = session.next().await else { panic!("no marker") };
    assert_eq!((marker.captured_at, marker.same_as), (ms(3), ms(2)));
}

#[tokio::test(start_paused = true)]
async fn a_subscriptions_feedback_tells_markers_and_what_never_came() {
    let stream = stream((None, None));
    let mut session = Rig::new(&stream, Some(ms(0)));
    let mut verdicts = session.verdicts.subscribe();
    append(&stream, FIRST, ms(1));
    assert_eq!(session.taken().await, (71, ms(1)));
    unchanged(&stream, FIRST, ms(2));
    assert_eq!(session.taken().await, (71, ms(2)));
    stream.tell_missed(late(ms(3)));
    assert!(matches!(session.next().await, Some(Event::Missed(_))));
    let mut told = || verdicts.try_recv().map(|verdict| (verdict.captured_at, verdict.outcome));
    assert_eq!(told(), Ok((ms(1), Outcome::Kept)));
    assert_eq!(told(), Ok((ms(2), Outcome::Unchanged)));
    assert_eq!(told(), Ok((ms(3), Outcome::Late)));
    assert_eq!(told(), Err(TryRecvError::Empty));
}

#[tokio::test(start_paused = true)]
async fn a_stream_from_the_past_is_open_to_others_once_it_has_caught_up() {
    let stream = stream((Some(ms(0)), None));
    let mut session = Rig::new(&stream, Some(ms(0)));
    append_as(&stream, FIRST, ms(1), true);
    session.taken().await;
    assert!(!stream.is_open());
    assert!(session.reached.try_recv().is_err(), "it is still behind");
    append(&stream, FIRST, ms(2));
    session.taken().await;
    assert!(stream.is_open());
    assert_eq!(session.reached.try_recv(), Ok(ms(2)));
}

#[tokio::test(start_paused = true)]
async fn gap_filling_for_one_session_is_not_reported_to_a_live_one() {
    let stream = stream((Some(ms(0)), None));
    let latest = Demand { delivery: Delivery::Latest, ..every() };
    let wanted = Wanted { from: None, to: None, forgotten: None, demand: latest };
    let mut present = Rig::wanting(&stream, wanted);
    let mut past = Rig::wanting(&stream, Wanted { from: Some(ms(0)), ..wanted });
    assert_eq!(present.next().await, None);
    append_as(&stream, FIRST, ms(1), true);
    append(&stream, FIRST, ms(2));
    assert_eq!(past.taken().await, (71, ms(1)));
    assert_eq!(past.taken().await, (71, ms(2)));
    let missed = Missed { from: ms(1), to: ms(1), count: 1, why: MissedWhy::LinkDown };
    assert_eq!(present.next().await, Some(Event::Missed(missed)));
    assert_eq!(present.taken().await, (71, ms(2)));
}

#[tokio::test(start_paused = true)]
async fn subscribers_that_stand_still_keep_nothing_of_the_log() {
    let stream = stream((None, None));
    let mut stuck = Vec::new();
    // Entries of about 100 bytes in segments of 4 KiB: each comes to a stand in another one.
    for number in 0..40 {
        for frame in 0..50 {
            append(&stream, FIRST, ms(number * 1000 + frame));
            if frame == 0 {
                stuck.push(Rig::new(&stream, Some(ms(number * 1000))));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // The first items in the channel were sent before they were awaited; the rest of the log has wrapped.
    for mut session in stuck.into_iter().take(20) {
        session.taken().await;
        let wrapped = loop {
            match session.next().await {
                Some(Event::Missed(missed)) => break missed,
                Some(Event::Frame(_)) => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(wrapped.why, MissedWhy::LogWrapped);
    }
}
