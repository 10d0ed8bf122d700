//! The rules of the verdict: pure, from what clients and observers have noted.
//!
//! A check is the thing that was looked at, the finding, and whether it holds.

use std::time::Duration;

use super::{NODES, clients::Told};
use crate::report::quantile;

/// A line of the verdict.
pub(super) type Check = (&'static str, String, bool);

/// Messages between nodes that no fault befell are not held up by those of others: 99 of 100 take at most so long.
const UNTOUCHED_MAX: Duration = Duration::from_millis(500);

/// How long it took until each of some nodes saw a thing, by their indexes; none if it did not within its time.
pub(super) type Seen = Vec<(usize, Option<Duration>)>;

/// The last of them and its time in one line, such as "by 7 of 7, after 0.05 to 0.21 s (last e3)".
pub(super) fn seen_text(seen: &Seen) -> String {
    let mut times: Vec<(Duration, usize)> =
        seen.iter().filter_map(|(node, time)| time.map(|time| (time, *node))).collect();
    times.sort();
    let mut text = format!("by {} of {}", times.len(), seen.len());
    if let (Some((first, _)), Some((last, by))) = (times.first(), times.last()) {
        let seconds = |time: &Duration| time.as_secs_f64();
        text += &format!(
            ", after {:.2} to {:.2} s (last {})",
            seconds(first),
            seconds(last),
            NODES[*by].name
        );
    }
    let late = seen.iter().filter(|(_, time)| time.is_none());
    let late: Vec<&str> = late.map(|(node, _)| NODES[*node].name).collect();
    match late.is_empty() {
        true => text,
        false => format!("{text}; not by {}", late.join(", ")),
    }
}

/// Whether all saw it in time.
pub(super) fn are_in_time(seen: &Seen, most: Duration) -> bool {
    !seen.is_empty() && seen.iter().all(|(_, time)| time.is_some_and(|time| time <= most))
}

/// A node whose certificate was revoked: from then on nothing passes between it and the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    pub(super) node: usize,
    /// Messages until then are to have arrived.
    pub(super) before: Duration,
    /// Messages from then on are not to arrive.
    pub(super) after: Duration,
}

/// Acknowledged messages of all nodes at all nodes: none is lost, whichever fault was under way.
pub(super) fn arrived(told: &[Told], out: Option<Out>) -> Check {
    let (mut sent, mut due, mut lost, mut twice) = (0, 0_u64, 0_u64, 0_u64);
    let mut least = None;
    for (from, one) in told.iter().enumerate() {
        let is_out = |node: usize| out.is_some_and(|out| out.node == node);
        let acknowledged = one.sent.iter().filter(|(_, (_, is_acknowledged))| *is_acknowledged);
        for (number, (at, _)) in acknowledged {
            sent += 1;
            for (to, other) in told.iter().enumerate() {
                let is_between = is_out(from) != is_out(to);
                if is_between && out.is_some_and(|out| *at > out.before) {
                    continue;
                }
                due += 1;
                let count = other.got[from].get(number).map_or(0, |(count, _)| *count);
                lost += u64::from(count == 0);
                twice += u64::from(count > 1);
                if count == 0 {
                    least.get_or_insert_with(|| {
                        let (from, to) = (NODES[from].name, NODES[to].name);
                        format!(
                            "; the first is number {number} of {from}, {:.1} s, at {to}",
                            at.as_secs_f64()
                        )
                    });
                }
            }
        }
    }
    let text = format!(
        "{sent} messages were acknowledged, {} of {due} deliveries came, {lost} did not, {twice} came twice{}",
        due - lost,
        least.unwrap_or_default(),
    );
    let all_sent = told.iter().all(|one| one.sent.values().any(|(_, acknowledged)| *acknowledged));
    ("every subscriber sees all", text, lost == 0 && all_sent)
}

/// Messages between a node that is out and the others.
pub(super) fn kept_out(told: &[Told], out: Out) -> Check {
    let late = |from: usize, to: usize| {
        let sent = told[from].sent.iter().filter(|(_, (at, _))| *at >= out.after);
        let passed: Vec<bool> =
            sent.map(|(number, _)| told[to].got[from].contains_key(number)).collect();
        (passed.len(), passed.into_iter().filter(|passed| *passed).count())
    };
    let others = (0..told.len()).filter(|node| *node != out.node);
    let (mut tried, mut passed) = (0, 0);
    for other in others {
        for (from, to) in [(out.node, other), (other, out.node)] {
            let (sent, came) = late(from, to);
            tried += sent;
            passed += came;
        }
    }
    let name = NODES[out.node].name;
    let text =
        format!("{passed} of {tried} messages passed between {name} and the others afterwards");
    ("revoked is out", text, passed == 0 && tried > 0)
}

/// How long messages took between nodes that no fault befell, from one region to the other and within one.
pub(super) fn untouched(told: &[Told], nodes: &[usize]) -> Check {
    let times = |is_far: bool| {
        let mut all = Vec::new();
        for from in nodes {
            for to in nodes.iter().filter(|to| *to != from) {
                if (NODES[*from].is_east != NODES[*to].is_east) == is_far {
                    let times = told[*to].got[*from].values().map(|(_, time)| time.as_secs_f64());
                    all.extend(times);
                }
            }
        }
        all
    };
    let (near, far) = (times(false), times(true));
    let at = |times: &[f64], q: f64| quantile(times.iter().copied(), q);
    let show = |times: &[f64]| {
        let ms = |q| at(times, q).map_or("–".to_owned(), |time| format!("{:.1}", time * 1e3));
        format!("p50 {} p99 {} max {} ms", ms(0.5), ms(0.99), ms(1.0))
    };
    let text = format!("within a region {}; between them {}", show(&near), show(&far));
    let is_short =
        |times: &[f64]| at(times, 0.99).is_some_and(|time| time <= UNTOUCHED_MAX.as_secs_f64());
    ("others go on", text, is_short(&near) && is_short(&far))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Each client has published a message a second for so long, all of which came everywhere in 10 ms.
    fn quiet(seconds: u64) -> Vec<Told> {
        let mut one = Told::default();
        for number in 1..=seconds {
            one.sent.insert(number, (SECOND * u32::try_from(number).expect("few"), true));
            for got in &mut one.got {
                got.insert(number, (1, Duration::from_millis(10)));
            }
        }
        vec![one; NODES.len()]
    }

    #[test]
    fn all_that_was_acknowledged_is_asked_for_at_each_node() {
        let mut told = quiet(3);
        let (_, text, met) = arrived(&told, None);
        assert!(met, "{text}");
        assert_eq!(
            text,
            "24 messages were acknowledged, 192 of 192 deliveries came, 0 did not, 0 came twice"
        );
        // One that its node did not acknowledge may be lost, and one that came twice is only counted.
        told[1].sent.insert(4, (SECOND * 4, false));
        told[2].got[0].insert(2, (2, SECOND));
        let (_, text, met) = arrived(&told, None);
        assert!(met && text.contains("0 did not, 1 came twice"), "{text}");
        told[5].got[1].remove(&2);
        let (_, text, met) = arrived(&told, None);
        assert!(!met, "{text}");
        assert!(
            text.ends_with("1 did not, 1 came twice; the first is number 2 of w2, 2.0 s, at e2"),
            "{text}"
        );
    }

    #[test]
    fn client_that_could_not_publish_is_no_success() {
        let mut told = quiet(3);
        told[3].sent.clear();
        assert!(!arrived(&told, None).2);
        assert!(!arrived(&quiet(0), None).2);
    }

    #[test]
    fn revoked_node_is_asked_for_until_then_and_silent_afterwards() {
        let out = Out { node: 7, before: SECOND * 2, after: SECOND * 4 };
        let mut told = quiet(5);
        assert!(arrived(&told, Some(out)).2);
        let (_, text, met) = kept_out(&told, out);
        assert!(!met && text.starts_with("28 of 28 messages passed between e4"), "{text}");
        for other in 0..7 {
            for number in 3..=5 {
                told[other].got[7].remove(&number);
                told[7].got[other].remove(&number);
            }
        }
        // From the third second on none is asked for, and none came from the fourth on.
        assert!(arrived(&told, Some(out)).2 && kept_out(&told, out).2);
        assert!(!arrived(&told, None).2);
        told[0].got[7].remove(&2);
        assert!(!arrived(&told, Some(out)).2, "the second one was due");
        assert!(!kept_out(&quiet(3), out).2, "none was tried afterwards");
    }

    #[test]
    fn own_messages_of_a_revoked_node_are_asked_for_at_itself() {
        let out = Out { node: 7, before: SECOND * 2, after: SECOND * 4 };
        let mut told = quiet(5);
        told[7].got[7].remove(&5);
        assert!(!arrived(&told, Some(out)).2);
    }

    #[test]
    fn untouched_nodes_are_held_to_their_time_near_and_far() {
        let mut told = quiet(10);
        let nodes = [0, 1, 4];
        let (_, text, met) = untouched(&told, &nodes);
        assert!(met, "{text}");
        assert!(
            text.starts_with("within a region p50 10.0 p99 10.0 max 10.0 ms; between"),
            "{text}"
        );
        told[3].got[0].insert(1, (1, SECOND)); // another node
        assert!(untouched(&told, &nodes).2);
        told[4].got[0].insert(1, (1, SECOND));
        assert!(!untouched(&told, &nodes).2);
        assert!(!untouched(&told, &[0, 1]).2, "none is far");
    }

    #[test]
    fn each_observer_has_to_see_it_in_time() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let seen: Seen = vec![(0, ms(200)), (6, ms(1_500)), (2, ms(50))];
        assert_eq!(seen_text(&seen), "by 3 of 3, after 0.05 to 1.50 s (last e3)");
        assert!(are_in_time(&seen, Duration::from_millis(1_500)));
        assert!(!are_in_time(&seen, Duration::from_millis(1_499)));
        let seen: Seen = vec![(0, ms(200)), (6, None)];
        assert_eq!(seen_text(&seen), "by 1 of 2, after 0.20 to 0.20 s (last w1); not by e3");
        assert!(!are_in_time(&seen, SECOND));
        assert!(!are_in_time(&Vec::new(), SECOND));
        assert_eq!(seen_text(&vec![(1, None)]), "by 0 of 1; not by w2");
    }
}
