//! Topics on the two sides of a bridge.
//!
//! As in Mosquitto, the patterns of the configuration are relative to the prefixes: with the local prefix `L/` and the
//! remote prefix `R/`, the pattern `a/#` is `L/a/#` here and `R/a/#` there.

use tidegate_message::topic_matches;

/// Topics that pass one way, and their names on the other side.
#[derive(Clone, Debug)]
pub(super) struct Topics {
    prefix_from: String,
    prefix_to: String,
    filters: Vec<String>,
    /// Topics that begin with this are not made.
    forbidden: Option<&'static str>,
}

impl Topics {
    pub(super) fn new(
        patterns: &[String],
        prefix_from: &str,
        prefix_to: &str,
        forbidden: Option<&'static str>,
    ) -> Self {
        Self {
            prefix_from: prefix_from.to_owned(),
            prefix_to: prefix_to.to_owned(),
            filters: patterns.iter().map(|pattern| format!("{prefix_from}{pattern}")).collect(),
            forbidden,
        }
    }

    /// Filters of the subscriptions where messages come from.
    pub(super) fn filters(&self) -> &[String] {
        &self.filters
    }

    /// Makes `to` the topic's name on the other side; false if it does not pass.
    pub(super) fn map(&self, topic: &str, to: &mut String) -> bool {
        to.clear();
        if !self.filters.iter().any(|filter| topic_matches(filter, topic)) {
            return false;
        }
        // A filter begins with the prefix, and so does what it matches: a prefix has no wildcards.
        let Some(rest) = topic.strip_prefix(&*self.prefix_from) else {
            // `#` also covers its parent level: `L/#` is sent `L`, which has no name below `L/`.
            return false;
        };
        to.push_str(&self.prefix_to);
        to.push_str(rest);
        !to.is_empty()
            && to.len() <= usize::from(u16::MAX)
            && self.forbidden.is_none_or(|forbidden| !to.starts_with(forbidden))
    }
}

/// Whether some topic matches both filters.
pub(super) fn filters_overlap(one: &str, other: &str) -> bool {
    let is_wild = |filter: &str| filter.starts_with(['+', '#']);
    // A wildcard in front matches nothing that begins with `$` (MQTT-4.7.2-1).
    if (one.starts_with('$') && is_wild(other)) || (other.starts_with('$') && is_wild(one)) {
        return false;
    }
    let (mut one, mut other) = (one.split('/'), other.split('/'));
    loop {
        match (one.next(), other.next()) {
            // Which also covers the level above.
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some(a), Some(b)) if a == b || a == "+" || b == "+" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_exchanged() {
        for (pattern, from, to, topic, expected) in [
            ("a/#", "", "", "a/b", Some("a/b")),
            ("a/#", "", "", "b", None),
            ("a/#", "L/", "R/", "L/a/b", Some("R/a/b")),
            ("a/#", "L/", "R/", "a/b", None), // not below the prefix
            ("a/#", "L/", "", "L/a", Some("a")),
            ("#", "L/", "", "L/a", Some("a")),
            ("#", "L/", "", "L", None), // has no name without the prefix
            ("#", "L/", "R/", "L/", Some("R/")),
            ("#", "L/", "", "L/", None), // an empty name
            ("+/x", "", "site/7/", "q/x", Some("site/7/q/x")),
            ("#", "", "", "$SYS/x", None),
            ("a", "", "$SYS/", "a", None), // the server's own
        ] {
            let topics = Topics::new(&[pattern.to_owned()], from, to, Some("$SYS/"));
            let mut mapped = String::new();
            let passes = topics.map(topic, &mut mapped);
            assert_eq!(passes.then_some(&*mapped), expected, "{pattern} {from} {to} {topic}");
        }
    }

    #[test]
    fn filters_overlap_if_a_topic_matches_both() {
        for (one, other, expected) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a/#", "a/b/c", true),
            ("a/#", "a", true),
            ("a/+", "a", false),
            ("a/+", "+/b", true),
            ("a/+/c", "a/b/+", true),
            ("a/+/c", "a/b/d", false),
            ("#", "$SYS/#", false),
            ("+/x", "$SYS/x", false),
            ("$SYS/#", "$SYS/a", true),
            ("out/#", "in/#", false),
        ] {
            assert_eq!(filters_overlap(one, other), expected, "{one} and {other}");
            assert_eq!(filters_overlap(other, one), expected, "{other} and {one}");
        }
    }
}
