//! The subscriptions of the batched feed, which follow a set of filters that changes while the uplink runs.
//!
//! ```text
//!  set ─▶ wanted ─┬─ not had ───────────▶ Subscribe ───▶ handle_answered ─▶ held
//!                 └─ had and not wanted ─▶ Unsubscribe ─▶ handle_answered
//! ```
//!
//! Only differences are asked for, some hundred filters at a time, and one request is under way at a time: a connection of a service has
//! room for 64 KiB of packets. New filters go first, so that where wider ones take the place of narrower ones no message is missed.
//!
//! Always true: a generation is held once the broker has granted or refused for want of rights each of its filters; one for which the
//! broker has no room now is asked for again and again until then.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_message::Instant;
use tidegate_topics::Index;
use tidegate_wire::mqtt::ReasonCode;

/// Filters in one request, and bytes of those behind the first.
const REQUEST_FILTERS_MAX: usize = 256;
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// How long after an answer the filters follow again for which the broker had no room then.
const LACKING_AGAIN: Duration = Duration::from_secs(2);
/// How long after an answer those follow again that were refused: rights change by a reload, and each refusal is written to the audit
/// log.
const REFUSED_AGAIN: Duration = Duration::from_secs(300);

/// A set of filters and its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topics {
    /// Its number, from 1 on; a later set has a higher one. 0 for none yet: an uplink then carries what its session has from before.
    pub generation: u64,
    /// The filters, in any order.
    pub filters: Arc<[Arc<str>]>,
}

impl Topics {
    /// A set that does not change.
    pub fn fixed<T: AsRef<str>>(filters: impl IntoIterator<Item = T>) -> Self {
        let filters = filters.into_iter().map(|filter| filter.as_ref().into()).collect();
        Self { generation: 1, filters }
    }
}

/// Filters that the broker did not grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotGranted {
    /// The first of them.
    pub filter: Arc<str>,
    /// Why that one was not granted.
    pub reason: ReasonCode,
    /// How many they are.
    pub count: usize,
}

/// Something to ask the broker for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Subscribe(Vec<Arc<str>>),
    Unsubscribe(Vec<Arc<str>>),
}

/// The state of the subscriptions.
#[derive(Debug)]
pub(crate) struct Following {
    generation: u64,
    /// The last generation that was held; 0 for none.
    held: u64,
    wanted: BTreeSet<Arc<str>>,
    /// As the broker has it once the request under way is answered.
    had: BTreeSet<Arc<str>>,
    /// Wanted and neither had nor waiting below.
    to_ask: BTreeSet<Arc<str>>,
    /// Had and not wanted.
    to_end: BTreeSet<Arc<str>>,
    /// Wanted, and the broker had no room for them.
    lacking: Again,
    /// Wanted, and the other node has no right to them.
    refused: Again,
    under_way: Option<Request>,
    /// Those that are wanted, where topics are to be matched with them.
    index: Option<Index<(), ()>>,
}

/// Filters that are asked for again.
#[derive(Debug, Default)]
struct Again {
    filters: BTreeSet<Arc<str>>,
    /// When, if there are any.
    at: Option<Instant>,
}

impl Again {
    fn add(&mut self, filter: Arc<str>, at: Instant) {
        self.filters.insert(filter);
        self.at.get_or_insert(at);
    }

    /// Those that are due.
    fn take(&mut self, now: Instant) -> BTreeSet<Arc<str>> {
        match self.at {
            Some(at) if at <= now => std::mem::take(self).filters,
            _ => BTreeSet::new(),
        }
    }

    fn remove(&mut self, filter: &str) {
        self.filters.remove(filter);
        self.at = self.at.filter(|_| !self.filters.is_empty());
    }
}

impl Following {
    /// Of a session that has the subscriptions `had`; with `matches` topics can be [matched](Self::matches) with those that are wanted.
    pub(crate) fn new(
        had: impl IntoIterator<Item = Arc<str>>,
        topics: &Topics,
        matches: bool,
    ) -> Self {
        let had: BTreeSet<_> = had.into_iter().collect();
        let mut following = Self {
            generation: 0,
            held: 0,
            wanted: BTreeSet::new(),
            to_end: had.clone(),
            had,
            to_ask: BTreeSet::new(),
            lacking: Again::default(),
            refused: Again::default(),
            under_way: None,
            index: matches.then(Index::new),
        };
        if topics.generation == 0 {
            let filters = following.had.iter().cloned().collect();
            following.set(&Topics { generation: 0, filters });
        } else {
            following.set(topics);
        }
        following
    }

    /// These are wanted from now on, and no others.
    pub(crate) fn set(&mut self, topics: &Topics) {
        let wanted: BTreeSet<Arc<str>> = topics.filters.iter().cloned().collect();
        for filter in self.wanted.difference(&wanted) {
            self.lacking.remove(filter);
            self.refused.remove(filter);
            self.to_ask.remove(filter);
            if self.had.contains(filter) {
                self.to_end.insert(filter.clone());
            }
            self.index.as_mut().map(|index| index.remove(filter, ()));
        }
        for filter in wanted.difference(&self.wanted) {
            if !self.to_end.remove(filter) {
                self.to_ask.insert(filter.clone());
            }
            self.index.as_mut().map(|index| index.insert_shared(filter, (), ()));
        }
        (self.wanted, self.generation) = (wanted, topics.generation);
        self.see_whether_held();
    }

    /// Whether a filter that is wanted matches that topic. False where nothing is to be matched.
    pub(crate) fn matches(&self, topic: &str) -> bool {
        let mut matches = false;
        if let Some(index) = &self.index {
            index.matches(topic, |(), ()| matches = true);
        }
        matches
    }

    /// The last generation whose filters the broker has; 0 for none.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// The next request, if none is under way.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Request> {
        if self.under_way.is_some() {
            return None;
        }
        for again in [&mut self.lacking, &mut self.refused] {
            self.to_ask.append(&mut again.take(now));
        }
        let request = if self.to_ask.is_empty() {
            Request::Unsubscribe(first_of(&mut self.to_end)?)
        } else {
            Request::Subscribe(first_of(&mut self.to_ask)?)
        };
        match &request {
            Request::Subscribe(filters) => self.had.extend(filters.iter().cloned()),
            Request::Unsubscribe(filters) => {
                filters.iter().for_each(|one| _ = self.had.remove(one));
            }
        }
        self.under_way = Some(request.clone());
        Some(request)
    }

    /// The request under way was answered. Gives what was not granted.
    pub(crate) fn answered(&mut self, now: Instant, reasons: &[ReasonCode]) -> Option<NotGranted> {
        let mut not_granted: Option<NotGranted> = None;
        match self.under_way.take()? {
            Request::Subscribe(filters) => {
                for (filter, reason) in filters.into_iter().zip(reasons) {
                    if !reason.is_failure() {
                        continue;
                    }
                    let first = || NotGranted { filter: filter.clone(), reason: *reason, count: 0 };
                    not_granted.get_or_insert_with(first).count += 1;
                    self.had.remove(&filter);
                    if self.to_end.remove(&filter) {
                        // It is wanted no more.
                    } else if *reason == ReasonCode::QUOTA_EXCEEDED {
                        self.lacking.add(filter, now + LACKING_AGAIN);
                    } else {
                        self.refused.add(filter, now + REFUSED_AGAIN);
                    }
                }
            }
            // There may be room now.
            Request::Unsubscribe(_) => self.lacking.at = self.lacking.at.map(|at| at.min(now)),
        }
        self.see_whether_held();
        not_granted
    }

    fn see_whether_held(&mut self) {
        let is_asking = matches!(self.under_way, Some(Request::Subscribe(_)));
        if !is_asking && self.to_ask.is_empty() && self.lacking.filters.is_empty() {
            self.held = self.generation;
        }
    }

    /// When to ask for a request again, if nothing else happens.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self.under_way {
            Some(_) => None,
            None => [self.lacking.at, self.refused.at].into_iter().flatten().min(),
        }
    }
}

/// Takes the filters of one request; none if there are none.
fn first_of(filters: &mut BTreeSet<Arc<str>>) -> Option<Vec<Arc<str>>> {
    let first = filters.pop_first()?;
    let (mut taken, mut bytes) = (vec![first], 0);
    while taken.len() < REQUEST_FILTERS_MAX
        && let Some(next) = filters.first()
        && bytes + next.len() <= REQUEST_BYTES_MAX
    {
        bytes += next.len();
        taken.extend(filters.pop_first());
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    const NOW: Instant = Instant::EPOCH;
    const GRANTED: ReasonCode = ReasonCode::SUCCESS;

    fn topics(generation: u64, filters: impl IntoIterator<Item = String>) -> Topics {
        Topics { generation, ..Topics::fixed(filters) }
    }

    fn numbered(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("site/{number}/#")).collect()
    }

    /// Answers all that is asked for; how many filters each request had, and those of the last.
    fn grant_all(following: &mut Following) -> (Vec<usize>, Option<Request>) {
        let (mut counts, mut last) = (Vec::new(), None);
        while let Some(request) = following.poll(NOW) {
            let (Request::Subscribe(filters) | Request::Unsubscribe(filters)) = &request;
            counts.push(filters.len());
            following.answered(NOW, &vec![GRANTED; filters.len()]);
            last = Some(request);
        }
        (counts, last)
    }

    #[test]
    fn of_ten_thousand_filters_one_that_changes_costs_one_request_of_one_filter() {
        let mut following = Following::new([], &topics(1, numbered(10_000)), true);
        assert_eq!(following.held(), 0);
        let (counts, _) = grant_all(&mut following);
        assert_eq!(counts.iter().sum::<usize>(), 10_000);
        assert!(counts.len() <= 40 && counts.iter().all(|count| *count <= 256), "{counts:?}");
        assert_eq!(following.held(), 1);
        following.set(&topics(2, numbered(10_001)));
        assert_eq!(following.held(), 1);
        let (counts, last) = grant_all(&mut following);
        assert_eq!(counts, [1]);
        assert_eq!(last, Some(Request::Subscribe(vec!["site/10000/#".into()])));
        assert_eq!(following.held(), 2);
        following.set(&topics(3, numbered(10_000)));
        assert_eq!(following.held(), 3, "it has all of them before the one is given up");
        let (counts, last) = grant_all(&mut following);
        assert_eq!(counts, [1]);
        assert_eq!(last, Some(Request::Unsubscribe(vec!["site/10000/#".into()])));
    }

    #[test]
    fn a_session_from_before_is_asked_for_the_differences_alone() {
        let had = ["a", "b", "c"].map(Arc::from);
        let mut following = Following::new(had, &Topics::fixed(["b", "c", "d"]), true);
        assert_eq!(following.poll(NOW), Some(Request::Subscribe(vec!["d".into()])));
        following.answered(NOW, &[GRANTED]);
        assert_eq!(following.held(), 1);
        assert_eq!(following.poll(NOW), Some(Request::Unsubscribe(vec!["a".into()])));
        assert_eq!(following.poll(NOW), None, "one request is under way");
        following.answered(NOW, &[GRANTED]);
        assert_eq!(following.poll(NOW), None);
    }

    #[test]
    fn a_session_from_before_stays_as_it_is_until_there_are_topics() {
        let had = ["a", "b"].map(Arc::from);
        let mut following = Following::new(had, &Topics::default(), true);
        assert_eq!((following.poll(NOW), following.held()), (None, 0));
        assert!(following.matches("a") && !following.matches("c"));
        following.set(&Topics::fixed(["b"]));
        assert_eq!(following.held(), 1);
        assert_eq!(following.poll(NOW), Some(Request::Unsubscribe(vec!["a".into()])));
    }

    #[test]
    fn long_filters_go_alone() {
        let long = |number: u8| format!("{number}/{}", "x".repeat(20_000));
        let mut following = Following::new([], &topics(1, (0..3).map(long)), true);
        assert_eq!(grant_all(&mut following).0, [1, 1, 1]);
    }

    #[test]
    fn a_filter_without_room_is_asked_for_until_it_is_granted_and_held_only_then() {
        let mut following = Following::new(["old".into()], &Topics::fixed(["a", "b"]), true);
        let asked = following.poll(NOW).expect("both are new");
        assert_eq!(asked, Request::Subscribe(vec!["a".into(), "b".into()]));
        let reason = ReasonCode::QUOTA_EXCEEDED;
        let not_granted = following.answered(NOW, &[GRANTED, reason]);
        assert_eq!(not_granted, Some(NotGranted { filter: "b".into(), reason, count: 1 }));
        assert_eq!((following.held(), following.poll_timeout()), (0, Some(NOW + LACKING_AGAIN)));
        // One that is given up makes room.
        assert_eq!(following.poll(NOW), Some(Request::Unsubscribe(vec!["old".into()])));
        assert_eq!(following.poll_timeout(), None);
        following.answered(NOW, &[GRANTED]);
        let again = Some(Request::Subscribe(vec!["b".into()]));
        assert_eq!(following.poll(NOW), again);
        following.answered(NOW, &[reason]);
        assert_eq!(following.poll(NOW), None, "not before a while");
        assert_eq!(following.poll(NOW + LACKING_AGAIN), again);
        following.answered(NOW + LACKING_AGAIN, &[GRANTED]);
        assert_eq!((following.held(), following.poll_timeout()), (1, None));
    }

    #[test]
    fn a_filter_that_is_refused_holds_up_nothing_and_is_asked_for_again_later() {
        let mut following = Following::new([], &Topics::fixed(["a", "secret"]), true);
        following.poll(NOW).expect("both are new");
        let reason = ReasonCode::NOT_AUTHORIZED;
        let not_granted = following.answered(NOW, &[GRANTED, reason]);
        assert_eq!(not_granted.map(|it| it.filter), Some("secret".into()));
        assert_eq!(following.held(), 1);
        assert_eq!(following.poll(NOW + LACKING_AGAIN), None);
        following.set(&topics(2, ["a", "b", "secret"].map(str::to_owned)));
        assert_eq!(following.poll(NOW), Some(Request::Subscribe(vec!["b".into()])));
        following.answered(NOW, &[GRANTED]);
        assert_eq!(following.held(), 2);
        let later = following.poll_timeout().expect("rights may change");
        assert_eq!(following.poll(later), Some(Request::Subscribe(vec!["secret".into()])));
        following.answered(later, &[GRANTED]);
        assert_eq!(following.poll_timeout(), None);
    }

    /// The broker comes to have the filters that are wanted, however often these change and some are refused, and no generation is held before.
    #[test]
    fn the_broker_comes_to_have_what_is_wanted_last() {
        for seed in 0..500 {
            let mut random = StdRng::seed_from_u64(seed);
            let draw = |random: &mut StdRng| {
                (0..12).filter(|_| random.random_bool(0.5)).map(|it: u8| it.to_string()).collect()
            };
            let first: Vec<String> = draw(&mut random);
            let mut broker: BTreeSet<Arc<str>> =
                draw(&mut random).iter().map(|it: &String| (**it).into()).collect();
            let mut wanted = topics(1, first);
            let mut following = Following::new(broker.iter().cloned(), &wanted, true);
            let (mut now, mut is_calm) = (NOW, false);
            for step in 0..200 {
                now = now + Duration::from_secs(1);
                is_calm |= step == 100;
                if !is_calm && random.random_bool(0.3) {
                    wanted = topics(wanted.generation + 1, draw(&mut random));
                    following.set(&wanted);
                }
                if random.random_bool(0.5)
                    && let Some(request) = following.under_way.clone()
                {
                    let reasons: Vec<_> = match request {
                        Request::Subscribe(filters) => filters
                            .into_iter()
                            .map(|filter| {
                                if !is_calm && random.random_bool(0.2) {
                                    return ReasonCode::QUOTA_EXCEEDED;
                                }
                                broker.insert(filter);
                                GRANTED
                            })
                            .collect(),
                        Request::Unsubscribe(filters) => {
                            broker.retain(|had| !filters.contains(had));
                            vec![GRANTED; filters.len()]
                        }
                    };
                    following.answered(now, &reasons);
                }
                following.poll(now);
                let has_all = wanted.filters.iter().all(|filter| broker.contains(filter));
                assert!(following.held() < wanted.generation || has_all, "seed {seed}");
            }
            let wanted_last: BTreeSet<_> = wanted.filters.iter().cloned().collect();
            assert_eq!(broker, wanted_last, "seed {seed}");
            assert_eq!(following.held(), wanted.generation, "seed {seed}");
        }
    }
}
