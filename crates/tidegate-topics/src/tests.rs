use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_message::topic_matches;

use super::*;

fn matches(index: &Index<u64, u64>, topic: &str) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    index.matches(topic, |key, value| found.push((key, value)));
    found.sort_unstable();
    found
}

fn assert_holds_nothing(index: &Index<u64, u64>) {
    assert_eq!((index.len(), index.listed, index.edges.len()), (0, 0, 0));
    assert_eq!(index.nodes_free.len() + 1, index.nodes.len(), "only the root is left");
    assert_eq!((index.exact.len(), index.exact_text_bytes), (0, 0));
    assert_eq!((index.levels.by_text.len(), index.levels.text_bytes), (0, 0));
}

#[test]
fn a_filter_has_one_value_for_each_subscriber() {
    let mut index = Index::new();
    assert_eq!(index.insert("a/+", 1, 10), None);
    assert_eq!(index.insert("a/+", 1, 11), Some(10));
    assert_eq!(index.insert("a/+", 2, 20), None);
    assert_eq!(index.len(), 2);
    assert_eq!(index.get("a/+", 1), Some(11));
    assert_eq!(index.get("a", 1), None, "a node on the way is not a subscription");
    assert_eq!(index.remove("a", 1), None);
    assert_eq!(index.remove("a/+", 3), None);
    assert_eq!(index.remove("a/+", 1), Some(11));
    assert_eq!(matches(&index, "a/b"), [(2, 20)]);
}

#[test]
fn a_subscriber_is_told_once_for_each_filter() {
    let mut index = Index::new();
    for (value, filter) in ["a/b", "a/+", "+/b", "+/+", "a/b/#", "a/#", "#"].iter().enumerate() {
        index.insert(filter, 1, value as u64);
    }
    assert_eq!(matches(&index, "a/b").len(), 7);
    assert_eq!(matches(&index, "$a/b"), []);
}

#[test]
fn a_large_fan_out_grows_and_shrinks() {
    let mut index = Index::new();
    let keys = || (0..1_000).map(|n| n * 7_919 % 1_000);
    for key in keys() {
        assert_eq!(index.insert("news/#", key, key), None);
    }
    let all: Vec<_> = (0..1_000).map(|n| (n, n)).collect();
    assert_eq!(matches(&index, "news"), all);
    for key in keys() {
        assert_eq!(index.get("news/#", key), Some(key));
        assert_eq!(index.remove("news/#", key), Some(key));
        assert_eq!(index.remove("news/#", key), None);
    }
    assert_holds_nothing(&index);
}

#[test]
fn numbers_are_used_again() {
    let mut index = Index::new();
    for round in 0..1_000 {
        let filter = format!("site/{round}/+/door/#");
        index.insert("site/exact", round, 1);
        index.remove("site/exact", round);
        index.insert(&filter, 1, 1);
        assert_eq!(index.remove(&filter, 1), Some(1));
    }
    assert_holds_nothing(&index);
    assert_eq!(index.nodes.len(), 6, "the root and five levels");
    assert_eq!(index.levels.numbers_free.len(), 3);
}

#[test]
fn a_match_visits_no_more_nodes_than_there_are() {
    // Every filter of `a` and `+` over 12 levels, each behind 100 levels of `+` and none of them
    // matching: 2^13 nodes stay alive to the last level. The walk is over when they are seen.
    let mut index = Index::new();
    for bits in 0..1_u32 << 12 {
        let mut filter = "+/".repeat(100);
        for bit in 0..12 {
            filter.push_str(if bits >> bit & 1 == 0 { "a/" } else { "+/" });
        }
        index.insert(&(filter + "x"), u64::from(bits), 0);
    }
    assert_eq!(matches(&index, &("a/".repeat(112) + "y")), []);
    assert_eq!(matches(&index, &("a/".repeat(112) + "x")).len(), 1 << 12);
}

#[test]
fn a_topic_may_be_as_deep_as_mqtt_allows() {
    let mut index = Index::new();
    let deep = "/".repeat(65_535);
    for filter in ["#", &deep, &("+/".repeat(32_767) + "#")] {
        index.insert(filter, 1, 1);
    }
    assert_eq!(matches(&index, &deep).len(), 3);
    for topic in ["a/".repeat(63) + "a", "a/".repeat(64) + "a"] {
        index.insert(&topic, 2, 2);
        assert_eq!(matches(&index, &topic), [(1, 1), (2, 2)], "around the inline levels");
        index.remove(&topic, 2);
    }
}

#[test]
fn a_node_has_48_bytes() {
    assert_eq!(size_of::<Node<u64, u64>>(), 48);
}

#[test]
fn a_match_allocates_nothing() {
    let mut index = Index::new();
    for key in 0..100 {
        index.insert("a/+/c", key, 0);
        index.insert("a/b/#", key, 0);
        index.insert("a/b/c", key, 0);
    }
    let mut found = 0;
    let counted = allocation_counter::measure(|| {
        index.matches("a/b/c", |_, _| found += 1);
    });
    assert_eq!((found, counted.count_total), (300, 0));
}

fn topic() -> impl Strategy<Value = String> {
    texts(&["", "a", "b", "$SYS", "\u{fc}"])
}

fn filter() -> impl Strategy<Value = String> {
    let start = texts(&["", "a", "b", "$SYS", "\u{fc}", "+", "+"]);
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
    fn the_index_agrees_with_a_linear_scan(
        steps in prop::collection::vec((any::<bool>(), filter(), 0..4_u64, any::<u64>()), 1..120),
        topics in prop::collection::vec(topic(), 1..12),
    ) {
        let mut index = Index::new();
        let mut model = BTreeMap::new();
        for (insert, filter, key, value) in steps {
            if insert {
                let former = model.insert((filter.clone(), key), value);
                prop_assert_eq!(index.insert(&filter, key, value), former);
            } else {
                prop_assert_eq!(index.remove(&filter, key), model.remove(&(filter.clone(), key)));
            }
            prop_assert_eq!(index.get(&filter, key), model.get(&(filter, key)).copied());
            prop_assert_eq!(index.len(), model.len());
        }
        for topic in topics {
            let mut expected: Vec<_> = model
                .iter()
                .filter(|((filter, _), _)| topic_matches(filter, &topic))
                .map(|((_, key), &value)| (*key, value))
                .collect();
            expected.sort_unstable();
            prop_assert_eq!(matches(&index, &topic), expected, "{}", topic);
        }
        for (filter, key) in model.into_keys() {
            prop_assert!(index.remove(&filter, key).is_some());
        }
        assert_holds_nothing(&index);
    }
}
