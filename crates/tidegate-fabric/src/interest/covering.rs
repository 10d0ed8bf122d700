//! Filters, and which of them cover another: a filter covers one of which it matches every topic.

use std::{collections::BTreeMap, sync::Arc};

use tidegate_topics::Index;

/// Filters, each with the generation since which it is offered.
#[derive(Debug)]
pub(super) struct Covering {
    by_text: BTreeMap<Arc<str>, u64>,
    /// Those that are not shared.
    ordinary: Index<(), Offer>,
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    generation: u64,
    ends_with_hash: bool,
}

impl Default for Covering {
    fn default() -> Self {
        Self { by_text: BTreeMap::new(), ordinary: Index::new() }
    }
}

impl Covering {
    /// All of them, with their generations.
    pub(super) fn all(&self) -> &BTreeMap<Arc<str>, u64> {
        &self.by_text
    }

    /// How many are shared.
    pub(super) fn shared(&self) -> usize {
        self.by_text.len() - self.ordinary.len()
    }

    /// The lowest generation of the filters that cover this one. A shared one is covered by itself alone: each is a group of its own.
    pub(super) fn generation_of(&self, filter: &str) -> Option<u64> {
        if filter == "#" || is_shared(filter) {
            return self.by_text.get(filter).copied();
        }
        // `a/#` is covered by filters that end with `#` and match `a`. A `+` is looked up as if it were the text of a level: no filter has
        // such a one, so that only `+` and `#` match it.
        let (topic, is_wide) = match filter.strip_suffix("/#") {
            Some(parent) => (parent, true),
            None => (filter, false),
        };
        let mut least = None;
        self.ordinary.matches(topic, |(), offer| {
            if offer.ends_with_hash || !is_wide {
                least =
                    Some(least.map_or(offer.generation, |least: u64| least.min(offer.generation)));
            }
        });
        least
    }

    /// Adds a filter; those that it covers stay.
    pub(super) fn insert(&mut self, filter: Arc<str>, generation: u64) {
        if !is_shared(&filter) {
            let offer = Offer { generation, ends_with_hash: filter.ends_with('#') };
            self.ordinary.insert_shared(&filter, (), offer);
        }
        self.by_text.insert(filter, generation);
    }

    pub(super) fn remove(&mut self, filter: &str) {
        self.ordinary.remove(filter, ());
        self.by_text.remove(filter);
    }
}

/// Whether it is a shared subscription.
pub(super) fn is_shared(filter: &str) -> bool {
    filter.starts_with("$share/")
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};
    use tidegate_message::topic_matches;

    use super::*;

    fn covers(wide: &str, narrow: &str) -> bool {
        let mut covering = Covering::default();
        covering.insert(wide.into(), 1);
        covering.generation_of(narrow).is_some()
    }

    #[test]
    fn filter_covers_those_whose_topics_it_all_matches() {
        for (wide, narrow) in [
            ("a/b", "a/b"),
            ("#", "#"),
            ("#", "a/b"),
            ("#", "+/#"),
            ("#", "/#"),
            ("a/#", "a"),
            ("a/#", "a/+"),
            ("a/#", "a/#"),
            ("a/#", "a/b/#"),
            ("+/b", "a/b"),
            ("+/#", "a/b/+"),
            ("+/#", "/#"),
            ("+/+", "+/b"),
            ("+/+", "+/+"),
            ("a/+/#", "a/b/#"),
            ("/#", "/"),
            ("/#", "/#"),
            ("$x/#", "$x/y"),
            ("$x/+", "$x/y"),
            ("$share/g/a/#", "$share/g/a/#"),
        ] {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [
            ("a/b", "a/+"),
            ("a/b", "a/#"),
            ("a/+", "a/#"),
            ("a/+/#", "a/#"),
            ("a/+", "a"),
            ("a", "a/#"),
            ("#", "$x"),
            ("#", "$x/#"),
            ("+/y", "$x/y"),
            ("+/#", "$x/#"),
            ("+", "a/b"),
            ("+", "#"),
            ("a/#", "$share/g/a/#"),
            ("#", "$share/g/#"),
            ("$share/g/#", "$share/g/a"),
            ("$share/g/a", "$share/h/a"),
            ("$share/g/a", "a"),
        ] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }

    #[test]
    fn a_filter_is_held_since_the_first_that_covers_it() {
        let mut covering = Covering::default();
        for (filter, generation) in [("a/b", 3), ("a/#", 2), ("+/b", 1), ("$share/g/a", 4)] {
            covering.insert(filter.into(), generation);
        }
        assert_eq!((covering.all().len(), covering.shared()), (4, 1));
        assert_eq!(covering.generation_of("a/b"), Some(1));
        covering.remove("+/b");
        assert_eq!(covering.generation_of("a/b"), Some(2));
        covering.remove("a/#");
        assert_eq!(covering.generation_of("a/b"), Some(3));
        covering.remove("$share/g/a");
        assert_eq!((covering.generation_of("$share/g/a"), covering.shared()), (None, 0));
    }

    fn filter() -> impl Strategy<Value = String> {
        let word = select(vec!["a", "b", "+", "", "$x"]);
        (vec(word, 1..4), any::<bool>()).prop_map(|(mut levels, is_wide)| {
            if is_wide {
                levels.push("#");
            }
            if levels == [""] { "#".to_owned() } else { levels.join("/") }
        })
    }

    /// Every topic of up to five of these levels, and the empty text, which is none; `z` stands for all that are in no filter.
    fn topics() -> Vec<String> {
        let words = ["a", "b", "", "$x", "z"];
        let mut all: Vec<String> = Vec::new();
        let mut longest: Vec<String> = words.map(str::to_owned).to_vec();
        for _ in 0..4 {
            let longer =
                longest.iter().flat_map(|topic| words.map(|word| format!("{topic}/{word}")));
            let longer = longer.collect();
            all.append(&mut std::mem::replace(&mut longest, longer));
        }
        all.into_iter().chain(longest).collect()
    }

    proptest! {
        #[test]
        fn coverage_is_that_of_the_topics((wide, narrow) in (filter(), filter())) {
            let topics = topics();
            let mut of_narrow = topics.iter().filter(|topic| topic_matches(&narrow, topic));
            let expected = of_narrow.all(|topic| topic_matches(&wide, topic));
            // `+/#` matches all that `#` does, as every topic has a level: that both are offered does no harm.
            if narrow != "#" {
                prop_assert_eq!(covers(&wide, &narrow), expected, "{} {}", wide, narrow);
            }
        }
    }
}
