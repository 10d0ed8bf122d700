//! Retained messages by topic.
//!
//! One ordered map, in which a topic directly precedes all topics below it: the order of texts in
//! which the separator is the least character. So `a/b/#` is one range, and what `+` passes over is
//! skipped by one look-up: in `a/+/c`, from `a/1/b` straight to `a/1/c`, and from `a/1/d` to what
//! follows everything below `a/1`.
//!
//! The map holds U+0000 for `/`, as no topic contains it (MQTT-4.7.3-2) and texts then compare as
//! plain bytes; this is not visible outside of this module.

use std::{
    collections::{BTreeMap, btree_map},
    ops::{Bound, ControlFlow},
};

/// Retained messages by topic.
///
/// Topics are valid by [`check_topic_name`](tidegate_message::check_topic_name), filters by
/// [`check_topic_filter`](tidegate_message::check_topic_filter) and not shared ones. Nothing
/// expires by itself.
///
/// ```
/// let mut retained = tidegate_topics::Retained::new();
/// retained.insert("site/3/door", "open");
/// retained.matches("site/+/door", |topic, message| {
///     assert_eq!((topic, *message), ("site/3/door", "open"));
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Retained<M> {
    /// By topic, with `SEPARATOR` for `/`.
    messages: BTreeMap<Box<str>, M>,
}

impl<M> Retained<M> {
    /// A store without messages.
    pub fn new() -> Self {
        Self { messages: BTreeMap::new() }
    }

    /// Keeps a message for a topic. Returns the one it takes the place of, or `None`.
    pub fn insert(&mut self, topic: &str, message: M) -> Option<M> {
        self.messages.insert(key_of(topic).into(), message)
    }

    /// Takes the message of a topic out. Returns it, or `None` if there was none.
    pub fn remove(&mut self, topic: &str) -> Option<M> {
        self.messages.remove(key_of(topic).as_str())
    }

    /// The message of a topic, or `None`.
    pub fn get(&self, topic: &str) -> Option<&M> {
        self.messages.get(key_of(topic).as_str())
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Calls `each` with every topic that `filter` matches, and its message, in no promised order.
    ///
    /// A filter that begins with a wildcard matches no topic that begins with `$` (MQTT-4.7.2-1).
    /// A filter without wildcards costs one look-up, others one step for each topic looked at.
    pub fn matches(&self, filter: &str, each: impl FnMut(&str, &M)) {
        self.matches_from(filter, None, usize::MAX, each);
    }

    /// Like [`matches`](Self::matches), in batches: so that one subscription to `#` over a million
    /// topics does not hold up the shard.
    ///
    /// Starts where `cursor` says, or at the beginning for `None`, and looks at no more than
    /// `limit` topics, at least one, whether they match or not. Returns where to continue, or
    /// `None` when the filter is done. The messages may change between two batches: a topic that
    /// stays throughout is seen exactly once, one that comes or goes meanwhile at most once.
    ///
    /// The cursor is one that this method returned for the same filter; with another's, topics are
    /// left out.
    pub fn matches_from(
        &self,
        filter: &str,
        cursor: Option<Cursor>,
        limit: usize,
        mut each: impl FnMut(&str, &M),
    ) -> Option<Cursor> {
        let filter: Vec<&str> = filter.split('/').collect();
        let mut seek = cursor.map_or_else(String::new, |cursor| cursor.from);
        if seek.is_empty() {
            push_literals(&mut seek, &filter);
        }
        let mut topic = String::new();
        let mut range = self.range_from(&seek);
        let mut last = None;
        for _ in 0..limit.max(1) {
            let (key, message) = range.next()?;
            last = Some(key);
            match compare(&filter, key, &mut seek) {
                ControlFlow::Break(()) => return None,
                ControlFlow::Continue(Step::Match) => {
                    write_topic(key, &mut topic);
                    each(&topic, message);
                }
                ControlFlow::Continue(Step::Seek) => {
                    range = self.range_from(&seek);
                    last = None;
                }
            }
        }
        // The least text after the last one seen is that one with the least character appended.
        if let Some(last) = last {
            seek.clear();
            seek.push_str(last);
            seek.push(SEPARATOR);
        }
        // Without a next one there is nothing to come back for.
        range.next().map(|_| Cursor { from: seek })
    }

    /// Keeps only the messages for which `keep` says so, asked in no promised order.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &M) -> bool) {
        let mut topic = String::new();
        self.messages.retain(|key, message| {
            write_topic(key, &mut topic);
            keep(&topic, message)
        });
    }

    /// Calls `each` with the messages of the next `limit` topics after `topic`, whatever they begin with, in the order of the
    /// store. Returns the last of them, or `None` once all were seen.
    pub fn walk(
        &self,
        after: Option<&str>,
        limit: usize,
        mut each: impl FnMut(&M),
    ) -> Option<String> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(key_of(after)));
        let from = from.as_ref().map(String::as_str);
        let mut last = None;
        let range = self.messages.range::<str, _>((from, Bound::Unbounded));
        let mut count = 0;
        for (key, message) in range.take(limit) {
            each(message);
            count += 1;
            last = Some(key);
        }
        let mut topic = String::new();
        write_topic(last.filter(|_| count == limit)?, &mut topic);
        Some(topic)
    }

    fn range_from(&self, key: &str) -> btree_map::Range<'_, Box<str>, M> {
        self.messages.range::<str, _>((Bound::Included(key), Bound::Unbounded))
    }
}

impl<M> Default for Retained<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Where the next batch of [`Retained::matches_from`] begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The least key that was not looked at or passed over; never empty.
    from: String,
}

/// The stand-in for `/` in a key. Less than every character of a topic.
const SEPARATOR: char = '\0';
/// Follows a key and everything below it, and precedes all other keys after it.
const AFTER_BELOW: char = '\u{1}';

fn key_of(topic: &str) -> String {
    debug_assert!(!topic.contains(SEPARATOR), "a valid topic has no U+0000");
    topic.replace('/', "\0")
}

fn write_topic(key: &str, topic: &mut String) {
    topic.clear();
    for (place, level) in key.split(SEPARATOR).enumerate() {
        if place > 0 {
            topic.push('/');
        }
        topic.push_str(level);
    }
}

/// The next step after one key.
enum Step {
    /// The filter matches it: the next key follows.
    Match,
    /// It does not match: continue at the key that was written down.
    Seek,
}

/// Compares one key to a filter. Breaks if no later key matches.
///
/// A key to seek is greater than `key`, and no key between the two matches.
fn compare(filter: &[&str], key: &str, seek: &mut String) -> ControlFlow<(), Step> {
    if key.starts_with('$') && matches!(filter[0], "+" | "#") {
        seek.clear();
        seek.push(char::from(b'$' + 1));
        return ControlFlow::Continue(Step::Seek);
    }
    // End in `key` of the last level that `+` stood for: the level to advance when the rest is past.
    let mut plus_end = None;
    // Where the current level begins, or `None` after the last one.
    let mut start = Some(0);
    for (place, &wanted) in filter.iter().enumerate() {
        if wanted == "#" {
            return ControlFlow::Continue(Step::Match);
        }
        let Some(from) = start else {
            // The key ended before the filter: keys that match below it come next.
            seek.clear();
            seek.push_str(key);
            seek.push(SEPARATOR);
            push_literals(seek, &filter[place..]);
            return ControlFlow::Continue(Step::Seek);
        };
        let end = key[from..].find(SEPARATOR).map_or(key.len(), |length| from + length);
        let level = &key[from..end];
        if wanted == "+" {
            plus_end = Some(end);
        } else if level < wanted {
            seek.clear();
            seek.push_str(&key[..from]);
            push_literals(seek, &filter[place..]);
            return ControlFlow::Continue(Step::Seek);
        } else if level > wanted {
            return seek_after(key, plus_end, seek);
        }
        start = (end < key.len()).then_some(end + 1);
    }
    match start {
        None => ControlFlow::Continue(Step::Match),
        Some(_) => seek_after(key, plus_end, seek),
    }
}

/// Seeks what follows the level that `+` stood for and everything below it.
fn seek_after(key: &str, plus_end: Option<usize>, seek: &mut String) -> ControlFlow<(), Step> {
    let Some(end) = plus_end else { return ControlFlow::Break(()) };
    seek.clear();
    seek.push_str(&key[..end]);
    seek.push(AFTER_BELOW);
    ControlFlow::Continue(Step::Seek)
}

/// Appends the levels of `filter` before its first wildcard: where its matches begin.
fn push_literals(seek: &mut String, filter: &[&str]) {
    for (place, level) in
        filter.iter().take_while(|level| !matches!(**level, "+" | "#")).enumerate()
    {
        if place > 0 {
            seek.push(SEPARATOR);
        }
        seek.push_str(level);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use tidegate_message::topic_matches;

    use super::*;

    fn store(topics: &[&str]) -> Retained<usize> {
        let mut retained = Retained::new();
        for (place, topic) in topics.iter().enumerate() {
            retained.insert(topic, place);
        }
        retained
    }

    fn found<M>(retained: &Retained<M>, filter: &str) -> Vec<String> {
        let mut found = Vec::new();
        retained.matches(filter, |topic, _| found.push(topic.to_owned()));
        found.sort_unstable();
        found
    }

    /// Topics looked at until the filter is done.
    fn looks<M>(retained: &Retained<M>, filter: &str) -> usize {
        let (mut looks, mut cursor) = (1, None);
        while let Some(next) = retained.matches_from(filter, cursor, 1, |_, _| ()) {
            looks += 1;
            cursor = Some(next);
        }
        looks
    }

    #[test]
    fn a_topic_has_one_message() {
        let mut retained = Retained::new();
        assert_eq!(retained.insert("a/b", 1), None);
        assert_eq!(retained.insert("a/b", 2), Some(1));
        assert_eq!((retained.get("a/b"), retained.get("a")), (Some(&2), None));
        assert_eq!(retained.len(), 1);
        assert_eq!(retained.remove("a/b"), Some(2));
        assert_eq!(retained.remove("a/b"), None);
        assert!(retained.is_empty());
    }

    #[test]
    fn filters_find_their_topics() {
        let retained =
            store(&["a", "a/", "a!", "a/b", "a/b/c", "a/b!/c", "a0", "/", "$SYS/up", "$SYS"]);
        for (filter, expected) in [
            ("a", &["a"][..]),
            ("a/#", &["a", "a/", "a/b", "a/b!/c", "a/b/c"]), // `#` also covers its parent level
            ("a/+", &["a/", "a/b"]),
            ("a/+/c", &["a/b!/c", "a/b/c"]), // `!` is less than `/`, yet follows what is below `b`
            ("+", &["a", "a!", "a0"]),
            ("+/+", &["/", "a/", "a/b"]), // MQTT-4.7.2-1: not `$SYS/up`
            ("#", &["/", "a", "a!", "a/", "a/b", "a/b!/c", "a/b/c", "a0"]),
            ("$SYS/#", &["$SYS", "$SYS/up"]),
            ("b/#", &[]),
        ] {
            assert_eq!(found(&retained, filter), expected, "{filter}");
        }
    }

    #[test]
    fn a_match_skips_what_lies_between() {
        let mut retained = Retained::new();
        for n in 0..10_000 {
            retained.insert(&format!("a/{}/{}/x/{}", n % 10, n / 10 % 10, n), n);
            retained.insert(&format!("$SYS/{n}"), n);
        }
        for (filter, looks_max) in [
            ("a/3/7/x/73", 2),
            ("a/3/7/x/#", 102),
            ("a/+/7/x/7", 30), // past 1,000 topics below each of ten levels
            ("a/+/7/z", 30),
            ("+/+/z", 30),
            ("nothing/#", 1),
        ] {
            let looks = looks(&retained, filter);
            assert!(looks <= looks_max, "{filter} looks at {looks} topics");
        }
    }

    #[test]
    fn messages_are_kept_only_if_wanted() {
        let mut retained = store(&["a/b", "a/c", "b"]);
        retained.retain(|topic, &message| topic.starts_with("a/") && message > 0);
        assert_eq!(found(&retained, "#"), ["a/c"]);
    }

    fn topic() -> impl Strategy<Value = String> {
        texts(&["", "a", "a!", "b", "$SYS", "a\u{1}", "\u{fc}"])
    }

    fn filter() -> impl Strategy<Value = String> {
        let start = texts(&["", "a", "b", "$SYS", "a\u{1}", "+", "+"]);
        prop_oneof![
            1 => Just("#".to_owned()),
            8 => start.clone(),
            4 => start.prop_map(|start| start + "/#"),
        ]
    }

    fn texts(levels: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
        // One empty level is an empty text, which is no topic: two of them stand in.
        prop::collection::vec(prop::sample::select(levels), 1..5)
            .prop_map(|levels| if levels == [""] { "/".to_owned() } else { levels.join("/") })
    }

    proptest! {
        #[test]
        fn the_store_agrees_with_a_linear_scan(
            topics in prop::collection::btree_set(topic(), 0..80),
            filters in prop::collection::vec(filter(), 1..10),
        ) {
            let mut retained = Retained::new();
            for topic in &topics {
                retained.insert(topic, ());
            }
            for filter in filters {
                let expected: Vec<_> =
                    topics.iter().filter(|topic| topic_matches(&filter, topic)).cloned().collect();
                prop_assert_eq!(found(&retained, &filter), expected, "{}", filter);
            }
        }

        #[test]
        fn batches_see_each_topic_that_stays_exactly_once(
            before in prop::collection::btree_set(topic(), 0..60),
            changes in prop::collection::vec((any::<bool>(), topic()), 0..60),
            filter in filter(),
            limit in 1..5_usize,
        ) {
            let mut retained = Retained::new();
            for topic in &before {
                retained.insert(topic, ());
            }
            let (mut stays, mut ever) = (before.clone(), before);
            let mut changes = changes.into_iter();
            let (mut seen, mut cursor) = (Vec::new(), None);
            loop {
                let count = seen.len();
                cursor = retained.matches_from(&filter, cursor, limit, |topic, ()| {
                    seen.push(topic.to_owned());
                });
                prop_assert!(seen.len() - count <= limit);
                if cursor.is_none() {
                    break;
                }
                for (insert, topic) in changes.by_ref().take(3) {
                    if insert {
                        retained.insert(&topic, ());
                        ever.insert(topic);
                    } else {
                        retained.remove(&topic);
                        stays.remove(&topic);
                    }
                }
            }
            let seen_once: BTreeSet<_> = seen.iter().cloned().collect();
            prop_assert_eq!(seen_once.len(), seen.len(), "twice in {:?}", seen);
            prop_assert!(seen_once.iter().all(|t| ever.contains(t) && topic_matches(&filter, t)));
            stays.retain(|topic| topic_matches(&filter, topic));
            prop_assert!(seen_once.is_superset(&stays), "{:?} lacks some of {:?}", seen, stays);
        }
    }
}
