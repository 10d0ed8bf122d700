//! Filters made few: those that others cover left out, and the rest cut to their first levels while there are too many.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeSet};

use tidegate_wire::limits::TEXT_BYTES_MAX;

use super::{
    FILTERS_MAX, SHARED_MAX,
    covering::{Covering, is_shared},
};

/// A filter of a client as other members are offered it.
pub(super) enum Offerable<'a> {
    /// By that one, which covers it.
    As(Cow<'a, str>),
    /// Not: it is of this node's own topics.
    Own,
    /// Not: no record has room for it, and no wider one takes its place.
    TooLong,
}

/// A set of filters that is small enough.
pub(super) struct Few<'a> {
    pub(super) filters: BTreeSet<Cow<'a, str>>,
    /// The levels that filters were cut to, if they were.
    pub(super) levels_max: Option<usize>,
    /// Filters that are not among them, nor covered.
    pub(super) left_out: usize,
}

/// The filter that stands for a client's.
pub(super) fn offerable(filter: &str) -> Offerable<'_> {
    let shared = tidegate_message::split_shared(filter);
    let of = shared.ok().flatten().map_or(filter, |shared| shared.filter);
    if of == "$SYS" || of.starts_with("$SYS/") {
        return Offerable::Own;
    }
    if filter.len() <= TEXT_BYTES_MAX {
        return Offerable::As(filter.into());
    }
    // With room for the wildcard.
    let end = filter.as_bytes()[..TEXT_BYTES_MAX - 1].iter().rposition(|byte| *byte == b'/');
    match end {
        _ if is_shared(filter) => Offerable::TooLong,
        Some(end) => Offerable::As(format!("{}/#", &filter[..end]).into()),
        None if filter.starts_with('$') => Offerable::TooLong,
        None => Offerable::As("#".into()),
    }
}

/// The filter of all topics that begin with a filter's first levels; the filter itself if it is shared or has no more.
pub(super) fn cut(filter: &str, levels: usize) -> Cow<'_, str> {
    // A wildcard in front would leave out topics that begin with `$`, so that their first level stays.
    let levels = levels.max(usize::from(filter.starts_with('$')));
    if is_shared(filter) {
        return filter.into();
    }
    let Some(kept) = levels.checked_sub(1) else { return "#".into() };
    match filter.match_indices('/').nth(kept) {
        Some((end, _)) => format!("{}/#", &filter[..end]).into(),
        None => filter.into(),
    }
}

/// Makes filters few. Where they were cut before they are cut alike, until clearly fewer than there may be are left with more levels:
/// otherwise each client that comes and goes at the bound would change all of them.
pub(super) fn few(wanted: BTreeSet<Cow<'_, str>>, was: Option<usize>) -> Few<'_> {
    let (shared, ordinary): (BTreeSet<_>, BTreeSet<_>) =
        wanted.into_iter().partition(|filter| is_shared(filter));
    let mut left_out = shared.len().saturating_sub(SHARED_MAX);
    let mut filters: BTreeSet<Cow<'_, str>> = shared.into_iter().take(SHARED_MAX).collect();
    let room = FILTERS_MAX - filters.len();
    let whole = uncovered(ordinary);
    let Some(levels) = levels_for(&whole, room, was) else {
        filters.extend(whole);
        return Few { filters, levels_max: None, left_out };
    };
    let cut =
        uncovered(whole.iter().map(|filter| cut(filter, levels).into_owned().into()).collect());
    // More only where too many differ in a first level that begins with `$`.
    left_out += cut.len().saturating_sub(room);
    filters.extend(cut.into_iter().take(room));
    Few { filters, levels_max: Some(levels), left_out }
}

/// The most levels that leave few enough filters; none if they may stay whole.
fn levels_for(whole: &BTreeSet<Cow<'_, str>>, room: usize, was: Option<usize>) -> Option<usize> {
    let clearly = room - room / 10;
    if whole.len() <= if was.is_some() { clearly } else { room } {
        return None;
    }
    let deepest = whole.iter().map(|filter| filter.split('/').count()).max().unwrap_or(0);
    let most_within = |most: usize| {
        // Fewer levels never make more filters: the first number of levels that makes too many is found by halving.
        let (mut fits, mut exceeds) = (0, deepest);
        while fits + 1 < exceeds {
            let levels = fits + (exceeds - fits) / 2;
            let count =
                whole.iter().map(|filter| cut(filter, levels)).collect::<BTreeSet<_>>().len();
            if count <= most { fits = levels } else { exceeds = levels }
        }
        fits
    };
    let most = most_within(room);
    Some(match was {
        Some(was) if whole.len() <= room || most > was => most_within(clearly).max(was),
        _ => most,
    })
}

/// The filters that no other covers.
fn uncovered(filters: BTreeSet<Cow<'_, str>>) -> BTreeSet<Cow<'_, str>> {
    let mut by_reach: Vec<Cow<'_, str>> = filters.into_iter().collect();
    // A filter that covers another ends with `#` and has no more levels, or is as long; of two as long it has more wildcards. So all that
    // cover one come before it.
    by_reach.sort_by_cached_key(|filter| {
        let levels = filter.split('/').count();
        let wildcards = filter.split('/').filter(|level| *level == "+").count();
        (!filter.ends_with('#'), levels, Reverse(wildcards))
    });
    let mut covering = Covering::default();
    by_reach.retain(|filter| {
        let is_new = covering.generation_of(filter).is_none();
        if is_new {
            covering.insert((&**filter).into(), 0);
        }
        is_new
    });
    by_reach.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_cut_to_ones_that_cover_them() {
        for (filter, levels, expected) in [
            ("a/b/c", 3, "a/b/c"),
            ("a/b/c", 2, "a/b/#"),
            ("a/b/c", 1, "a/#"),
            ("a/b/c", 0, "#"),
            ("a/b/#", 2, "a/b/#"),
            ("a", 0, "#"),
            ("#", 0, "#"),
            ("/b", 1, "/#"),
            ("+/b", 1, "+/#"),
            ("$x/y", 1, "$x/#"),
            ("$x/y", 0, "$x/#"),
            ("$x", 0, "$x"),
            ("$share/g/a/b", 1, "$share/g/a/b"),
        ] {
            assert_eq!(cut(filter, levels), expected, "{filter} to {levels}");
        }
    }

    #[test]
    fn filters_that_others_cover_are_left_out() {
        let all = ["a", "a/#", "a/b", "a/+/#", "b/+", "b/c", "+/c", "c/+/+", "c/d/+", "$x", "+"];
        let found = few(all.map(Cow::from).into(), None).filters;
        assert_eq!(found, ["a/#", "b/+", "+/c", "c/+/+", "$x", "+"].map(Cow::from).into());
    }

    #[test]
    fn filters_stay_cut_as_they_were_near_the_bound() {
        let many = (0..20_000).map(|number| {
            let (group, part) = (number % 9_500, number % 9_600);
            format!("a/{group}/{}/{number}", part / 9_500)
        });
        let all: BTreeSet<Cow<'_, str>> = many.map(Cow::from).collect();
        for (was, expected) in [(None, 3), (Some(3), 3), (Some(2), 2), (Some(1), 1)] {
            assert_eq!(few(all.clone(), was).levels_max, Some(expected), "{was:?}");
        }
    }

    #[test]
    fn filters_are_cut_no_more_than_needed() {
        // One deep filter must not make each number of levels be tried.
        let deep = format!("deep{}", "/x".repeat(250));
        let of = |count: usize| -> BTreeSet<Cow<'static, str>> {
            let many = (0..count).map(|number| format!("a/{}/b/{number}", number % 2_000).into());
            many.chain([deep.clone().into()]).collect()
        };
        for (count, was, expected, levels, note) in [
            (FILTERS_MAX - 1, None, FILTERS_MAX, None, "all"),
            (FILTERS_MAX, None, 2_001, Some(3), "one too many"),
            (FILTERS_MAX - 1, Some(3), 2_001, Some(3), "as many as may be, and cut before"),
            (
                FILTERS_MAX - 1,
                Some(1),
                2_001,
                Some(3),
                "clearly fewer with more levels than before",
            ),
            (FILTERS_MAX * 9 / 10 - 1, Some(3), 9_000, None, "clearly fewer"),
        ] {
            let few = few(of(count), was);
            assert_eq!(
                (few.filters.len(), few.levels_max, few.left_out),
                (expected, levels, 0),
                "{note}"
            );
        }
    }

    #[test]
    fn filters_that_cannot_be_wider_are_counted() {
        let shared = (0..SHARED_MAX + 7).map(|number| format!("$share/g/{number}").into());
        let roots = (0..FILTERS_MAX).map(|number| format!("${number}").into());
        let others = (0..FILTERS_MAX).map(|number| format!("a/{number}").into());
        let all: BTreeSet<Cow<'_, str>> = shared.chain(others).collect();
        let some = few(all.clone(), None);
        assert_eq!((some.filters.len(), some.left_out), (SHARED_MAX + 1, 7));
        assert!(some.filters.contains("a/#"));
        let most = few(all.into_iter().chain(roots).collect(), None);
        assert_eq!(
            (most.filters.len(), most.left_out),
            (FILTERS_MAX, 7 + FILTERS_MAX - SHARED_MAX + 1)
        );
        assert!(most.filters.contains("#"), "those of ordinary topics are kept");
    }
}
