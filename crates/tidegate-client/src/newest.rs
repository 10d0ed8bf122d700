//! Messages of one subscription between the call that they come by and an application that may be slower.
//!
//! ```text
//! call ── a task reads ──▶ Waiting: the newest frame, events ── Newest::message ──▶ the application
//! ```
//!
//! Always true: of live frames the newest waits, with the latest marker that it still shows the scene; frames that it replaced are
//! reported as missed, directly before it; of events of one kind the latest waits. Where every frame is asked for, and of the past that is
//! asked for, nothing is replaced: the call waits for the application.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tidegate_message::Instant;
use tokio::{sync::Notify, task::AbortHandle};
use tonic::{Status, Streaming};

use crate::proto::{self, SubscribeResponse, missed::Why, subscribe_response::Event};

/// Messages that must not be replaced and wait at most; the node holds up a call that is not read.
const KEPT_MAX: usize = 4;

/// The request of a subscription, as far as it says which messages may be replaced.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Every frame, and not only the newest. It changes with the demand.
    pub(crate) every: Arc<AtomicBool>,
    /// Frames of the past; otherwise those that are marked as replayed are pictures that a marker refers to.
    pub(crate) past: bool,
    /// The last frame or marker that the application has: its epoch and its capture time.
    pub(crate) last: Option<(u64, Instant)>,
}

/// A call that a task reads. Dropping it ends both.
#[derive(Debug)]
pub(crate) struct Newest {
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Newest {
    pub(crate) fn new(mut call: Streaming<SubscribeResponse>, wanted: Wanted) -> Self {
        let waiting = Mutex::new(Waiting::new(wanted));
        let shared = Arc::new(Shared { waiting, came: Notify::new(), taken: Notify::new() });
        let held = shared.clone();
        let task = tokio::spawn(async move {
            let end = loop {
                match call.message().await {
                    Ok(Some(message)) => held.lock().put(message),
                    Ok(None) => break Ok(()),
                    Err(status) => break Err(status),
                }
                held.came.notify_one();
                while held.lock().is_full() {
                    held.taken.notified().await;
                }
            };
            held.lock().end = Some(end);
            held.came.notify_one();
        });
        Self { shared, task: task.abort_handle() }
    }

    /// The next message; none once the call has ended. Nothing is lost where the future is dropped.
    ///
    /// # Errors
    /// The failure that ended the call, once, behind all that came before it.
    pub(crate) async fn message(&mut self) -> Result<Option<SubscribeResponse>, Status> {
        loop {
            {
                let mut waiting = self.shared.lock();
                if let Some(message) = waiting.get() {
                    self.shared.taken.notify_one();
                    return Ok(Some(message));
                }
                match &mut waiting.end {
                    None => {}
                    Some(end) => return std::mem::replace(end, Ok(())).map(|()| None),
                }
            }
            self.shared.came.notified().await;
        }
    }
}

impl Drop for Newest {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    came: Notify,
    taken: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Whole between two calls of its methods, none of which panics.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message, and the frames that it replaced.
#[derive(Debug)]
struct Item {
    missed: Option<proto::Missed>,
    message: SubscribeResponse,
}

#[derive(Debug)]
struct Waiting {
    wanted: Wanted,
    items: VecDeque<Item>,
    end: Option<Result<(), Status>>,
}

/// A frame, or the marker that its picture is unchanged.
struct Shown {
    is_frame: bool,
    replayed: bool,
    epoch: u64,
    captured_at: i64,
}

impl Shown {
    fn of(message: &SubscribeResponse) -> Option<Self> {
        let (is_frame, replayed, epoch, captured_at) = match &message.event {
            Some(Event::Frame(frame)) => (true, frame.replayed, frame.epoch, frame.captured_at),
            Some(Event::Unchanged(marker)) => {
                (false, marker.replayed, marker.epoch, marker.captured_at)
            }
            _ => return None,
        };
        Some(Self { is_frame, replayed, epoch, captured_at })
    }
}

impl Waiting {
    fn new(wanted: Wanted) -> Self {
        Self { wanted, items: VecDeque::new(), end: None }
    }

    fn is_full(&self) -> bool {
        let every = self.wanted.every.load(Ordering::Relaxed);
        let is_kept = |item: &&Item| {
            every || Shown::of(&item.message).is_some_and(|shown| self.is_of_the_past(&shown))
        };
        self.items.len() >= KEPT_MAX && self.items.iter().filter(is_kept).count() >= KEPT_MAX
    }

    fn put(&mut self, message: SubscribeResponse) {
        if message.event.is_none() {
            return; // of a newer protocol: not for us
        }
        let mut item = Item { missed: None, message };
        let replaces = !self.wanted.every.load(Ordering::Relaxed);
        if replaces {
            match Shown::of(&item.message) {
                Some(shown) if self.is_had(&shown) => return,
                Some(shown) if !self.is_of_the_past(&shown) => {
                    self.replace_shown(&shown, &mut item);
                }
                Some(_) => {}
                None => self.replace_event(&mut item.message),
            }
        }
        self.items.push_back(item);
        // A fast application leaves nothing behind.
        if replaces && self.items.len() > 1 {
            self.join_missed();
        }
    }

    fn get(&mut self) -> Option<SubscribeResponse> {
        if let Some(missed) = self.items.front_mut()?.missed.take() {
            return Some(SubscribeResponse { event: Some(Event::Missed(missed)) });
        }
        self.items.pop_front().map(|item| item.message)
    }

    fn is_of_the_past(&self, shown: &Shown) -> bool {
        shown.replayed && self.wanted.past
    }

    fn is_had(&self, shown: &Shown) -> bool {
        self.wanted
            .last
            .is_some_and(|(epoch, at)| epoch == shown.epoch && shown.captured_at <= at.as_nanos())
    }

    /// A frame replaces what is live, a marker the markers.
    fn replace_shown(&mut self, newer: &Shown, item: &mut Item) {
        let past = self.wanted.past;
        self.items.retain(|held| match Shown::of(&held.message) {
            Some(older) if !(older.replayed && past) && (newer.is_frame || !older.is_frame) => {
                if let Some(missed) = &held.missed {
                    add(&mut item.missed, missed);
                }
                // A picture that a marker refers to was reported before, if it was missed.
                if !older.replayed {
                    let at = older.captured_at;
                    let why = Why::SlowSubscriber.into();
                    add(&mut item.missed, &proto::Missed { from: at, to: at, count: 1, why });
                }
                false
            }
            _ => true,
        });
    }

    /// An event replaces the one of its kind. Reports of missed frames stay: [`Self::join_missed`].
    fn replace_event(&mut self, message: &mut SubscribeResponse) {
        let Some(newer) = &mut message.event else { return };
        let kind = std::mem::discriminant(newer);
        self.items.retain(|held| match (&mut *newer, &held.message.event) {
            (Event::Missed(_), _) => true,
            (Event::KnobsChanged(newer), Some(Event::KnobsChanged(older))) => {
                newer.from.clone_from(&older.from);
                false
            }
            (_, older) => older.as_ref().map(std::mem::discriminant) != Some(kind),
        });
    }

    /// Sums up reports of frames that were missed for one reason, as long as no frame lies between.
    fn join_missed(&mut self) {
        let mut joined: Vec<Item> = Vec::with_capacity(self.items.len());
        let mut begin = 0;
        for mut item in self.items.drain(..) {
            match &mut item.message.event {
                Some(Event::Frame(_) | Event::Unchanged(_)) => begin = joined.len() + 1,
                Some(Event::Missed(missed)) => {
                    let is_like = |held: &Item| {
                        matches!(&held.message.event, Some(Event::Missed(older))
                            if older.why == missed.why && (older.count > 0) == (missed.count > 0))
                    };
                    if let Some(place) = joined[begin..].iter().position(is_like)
                        && let Some(Event::Missed(older)) =
                            joined.remove(begin + place).message.event
                    {
                        *missed = sum(&older, missed);
                    }
                }
                _ => {}
            }
            joined.push(item);
        }
        self.items = joined.into();
    }
}

fn add(sum_of: &mut Option<proto::Missed>, missed: &proto::Missed) {
    *sum_of = Some(sum_of.as_ref().map_or(*missed, |before| sum(before, missed)));
}

/// Both, of which neither count is known, or each.
fn sum(one: &proto::Missed, other: &proto::Missed) -> proto::Missed {
    proto::Missed {
        from: one.from.min(other.from),
        to: one.to.max(other.to),
        count: one.count.saturating_add(other.count),
        why: other.why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(past: bool) -> Wanted {
        Wanted { every: Arc::new(AtomicBool::new(false)), past, last: None }
    }

    fn shown(captured_at: i64, replayed: bool) -> SubscribeResponse {
        let frame = proto::Frame { captured_at, replayed, epoch: 1, ..Default::default() };
        SubscribeResponse { event: Some(Event::Frame(frame)) }
    }

    fn frame(captured_at: i64) -> SubscribeResponse {
        shown(captured_at, false)
    }

    fn unchanged(captured_at: i64) -> SubscribeResponse {
        let marker = proto::Unchanged { captured_at, epoch: 1, ..Default::default() };
        SubscribeResponse { event: Some(Event::Unchanged(marker)) }
    }

    fn knobs(from: &str, to: &str) -> SubscribeResponse {
        let changed =
            proto::KnobsChanged { from: from.to_owned(), to: to.to_owned(), ..Default::default() };
        SubscribeResponse { event: Some(Event::KnobsChanged(changed)) }
    }

    fn missed(from: i64, to: i64, count: u64, why: Why) -> SubscribeResponse {
        let missed = proto::Missed { from, to, count, why: why.into() };
        SubscribeResponse { event: Some(Event::Missed(missed)) }
    }

    fn event(event: Event) -> SubscribeResponse {
        SubscribeResponse { event: Some(event) }
    }

    fn all(waiting: &mut Waiting) -> Vec<String> {
        std::iter::from_fn(|| waiting.get())
            .map(|message| match message.event.unwrap() {
                Event::Started(_) => "started".to_owned(),
                Event::Frame(frame) => format!("frame {}", frame.captured_at),
                Event::Unchanged(marker) => format!("unchanged {}", marker.captured_at),
                Event::KnobsChanged(changed) => format!("knobs {} {}", changed.from, changed.to),
                Event::Missed(told) => {
                    format!("missed {}-{} {} {:?}", told.from, told.to, told.count, told.why())
                }
                Event::Infeasible(_) => "infeasible".to_owned(),
                Event::Feasible(_) => "feasible".to_owned(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn held(wanted: Wanted, messages: impl IntoIterator<Item = SubscribeResponse>) -> Vec<String> {
        let mut waiting = Waiting::new(wanted);
        messages.into_iter().for_each(|message| waiting.put(message));
        all(&mut waiting)
    }

    #[test]
    fn of_live_frames_the_newest_waits_and_those_that_it_replaced_are_missed_before_it() {
        let started = event(Event::Started(proto::Started::default()));
        let found = held(wanted(false), [started, frame(10), frame(20), frame(30)]);
        assert_eq!(found, ["started", "missed 10-20 2 SlowSubscriber", "frame 30"]);
    }

    #[test]
    fn a_marker_replaces_markers_and_leaves_its_picture() {
        let found =
            held(wanted(false), [frame(1), frame(2), unchanged(3), unchanged(4), unchanged(5)]);
        let expected = [
            "missed 1-1 1 SlowSubscriber",
            "frame 2",
            "missed 3-4 2 SlowSubscriber",
            "unchanged 5",
        ];
        assert_eq!(found, expected);
        let found = held(wanted(false), [frame(2), unchanged(3), unchanged(4), frame(5)]);
        assert_eq!(found, ["missed 2-4 3 SlowSubscriber", "frame 5"]);
    }

    #[test]
    fn of_events_of_a_kind_the_latest_waits_and_no_count_is_lost() {
        let infeasible = || event(Event::Infeasible(proto::Infeasible::default()));
        let feasible = || event(Event::Feasible(proto::Feasible::default()));
        let mut messages = vec![infeasible(), feasible(), infeasible(), knobs("a", "b")];
        for at in 0..1000 {
            messages.push(missed(at, at, 1, Why::Late));
            messages.push(missed(at, at, 2, Why::Overtaken));
            messages.push(knobs("b", "c"));
        }
        messages.push(frame(2000));
        messages.push(missed(2001, 2001, 5, Why::Late));
        let expected = [
            "feasible",
            "infeasible",
            "missed 0-999 1000 Late",
            "missed 0-999 2000 Overtaken",
            "knobs a c",
            "frame 2000",
            "missed 2001-2001 5 Late",
        ];
        assert_eq!(held(wanted(false), messages), expected);
    }

    #[test]
    fn counts_that_are_not_known_are_apart_from_those_that_are() {
        let wrapped = |at, count| missed(at, at, count, Why::LogWrapped);
        let found =
            held(wanted(false), [wrapped(1, 0), wrapped(2, 3), wrapped(3, 0), wrapped(4, 5)]);
        assert_eq!(found, ["missed 1-3 0 LogWrapped", "missed 2-4 8 LogWrapped"]);
    }

    #[test]
    fn what_waits_is_bounded_however_long_the_application_is_away() {
        let mut waiting = Waiting::new(wanted(false));
        for at in 0..3000 {
            waiting.put(missed(at, at, 1, Why::Late));
            waiting.put(if at % 3 == 0 { unchanged(at) } else { frame(at) });
            waiting.put(knobs("a", "b"));
            waiting.put(SubscribeResponse { event: None });
            assert!(waiting.items.len() <= 8, "{:?}", waiting.items);
        }
        let found = all(&mut waiting);
        assert!(found.contains(&"frame 2999".to_owned()), "{found:?}");
    }

    #[test]
    fn frames_of_the_past_that_was_asked_for_wait_for_the_application() {
        let mut waiting = Waiting::new(wanted(true));
        for captured_at in 1..=4 {
            assert!(!waiting.is_full());
            waiting.put(shown(captured_at, true));
        }
        assert!(waiting.is_full());
        waiting.put(frame(100));
        waiting.put(frame(200));
        let expected = [
            "frame 1",
            "frame 2",
            "frame 3",
            "frame 4",
            "missed 100-100 1 SlowSubscriber",
            "frame 200",
        ];
        assert_eq!(all(&mut waiting), expected);
    }

    #[test]
    fn a_picture_that_a_marker_refers_to_is_replaced_as_a_live_one() {
        let messages = (0..10).flat_map(|at| [shown(3 * at, true), unchanged(3 * at + 1)]);
        let found = held(wanted(false), messages.chain([frame(100)]));
        assert_eq!(found, ["missed 1-28 10 SlowSubscriber", "frame 100"]);
    }

    #[test]
    fn every_frame_waits_once_every_one_is_asked_for() {
        let wanted = wanted(false);
        let every = wanted.every.clone();
        let mut waiting = Waiting::new(wanted);
        waiting.put(frame(1));
        every.store(true, Ordering::Relaxed);
        for captured_at in 2..=4 {
            assert!(!waiting.is_full());
            waiting.put(frame(captured_at));
        }
        assert!(waiting.is_full());
        assert_eq!(all(&mut waiting), ["frame 1", "frame 2", "frame 3", "frame 4"]);
    }

    #[test]
    fn a_frame_that_the_application_has_is_neither_missed_nor_given_again() {
        let last = Some((1, Instant::from_nanos(5)));
        let found = held(Wanted { last, ..wanted(false) }, [frame(4), frame(5), frame(6)]);
        assert_eq!(found, ["frame 6"]);
    }
}
