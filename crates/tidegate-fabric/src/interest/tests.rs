use std::{collections::BTreeSet, sync::Arc, time::Duration};

use proptest::prelude::*;
use tidegate_message::{Instant, topic_matches};
use tidegate_wire::{Interests, NodeId, Record, limits::RECORD_BYTES_MAX};

use super::*;

const PEER: NodeId = NodeId([7; 32]);

/// Sends a peer all that it is to be told, by way of bytes; the records, and what it wants then.
fn tell(offered: &mut Offered, wanted: &mut Wanted) -> (usize, Option<WantedFilters>) {
    let (mut count, mut filters) = (0, None);
    while let Some(record) = offered.poll_transmit(PEER) {
        let bytes = Record::from(record).to_bytes();
        assert!(bytes.len() <= RECORD_BYTES_MAX);
        let Ok(Some(Record::Interests(record))) = Record::decode(&bytes) else {
            panic!("it decodes")
        };
        filters = wanted.handle(record).expect("it is right");
        count += 1;
    }
    (count, filters)
}

fn texts(filters: &WantedFilters) -> Vec<&str> {
    filters.filters.iter().map(|filter| &**filter).collect()
}

#[test]
fn change_costs_its_difference() {
    let (mut offered, mut wanted) = (Offered::default(), Wanted::default());
    offered.set(["a/b", "c/#", "c/d", "$share/g/x", "$SYS/#", "$share/g/$SYS/x"]);
    offered.linked(PEER);
    let (_, first) = tell(&mut offered, &mut wanted);
    let first = first.expect("a member is told all");
    assert_eq!(texts(&first), ["$share/g/x", "a/b", "c/#"]);
    assert_eq!(tell(&mut offered, &mut wanted), (0, None), "once");
    // One that is covered costs nothing, and is held as that one is.
    assert_eq!(offered.add("c/d/e"), first.generation);
    assert_eq!(tell(&mut offered, &mut wanted), (0, None));
    let generation = offered.add("e");
    assert_eq!(generation, first.generation + 1);
    let record = offered.poll_transmit(PEER).expect("a change");
    let expected = Interests {
        generation,
        is_first: false,
        more: false,
        added: vec!["e".to_owned()],
        removed: Vec::new(),
    };
    assert_eq!(record, expected);
    wanted.handle(record).expect("it is right");
    offered.set(["c/#", "e"]);
    let (count, now) = tell(&mut offered, &mut wanted);
    assert_eq!((count, texts(&now.expect("a change"))), (1, vec!["c/#", "e"]));
    // A filter that comes and goes before it is sent is not sent; the number is.
    offered.add("f");
    offered.set(["c/#", "e"]);
    let record = offered.poll_transmit(PEER).expect("a number");
    assert_eq!((record.added.len(), record.removed.len(), record.more), (0, 0, false));
    assert_eq!(offered.add("$SYS/#"), 0, "it is of this node");
}

#[test]
fn too_many_filters_become_wider_and_whole_again() {
    let of = |count: usize| -> Vec<String> {
        (0..count).map(|number| format!("plant/{}/{number}/celsius", number % 90)).collect()
    };
    let set = |offered: &mut Offered, filters: &[String]| {
        offered.set(filters.iter().map(|filter| &**filter));
    };
    let (mut offered, mut wanted) = (Offered::default(), Wanted::default());
    offered.linked(PEER);
    set(&mut offered, &of(FILTERS_MAX));
    let (count, all) = tell(&mut offered, &mut wanted);
    assert_eq!(all.expect("all").filters.len(), FILTERS_MAX);
    assert!(count > 10, "in parts");
    assert_eq!(offered.levels_max(), None);
    // One more, by either way.
    offered.add("one/more");
    let (_, wide) = tell(&mut offered, &mut wanted);
    let wide = wide.expect("a change");
    assert_eq!((wide.filters.len(), offered.levels_max()), (91, Some(2)));
    assert!(wide.filters.iter().any(|filter| &**filter == "plant/7/#"), "{wide:?}");
    assert_eq!(offered.add("plant/7/x"), wide.generation, "covered");
    // Slightly fewer are cut as before, clearly fewer are whole.
    set(&mut offered, &of(FILTERS_MAX - 1));
    assert_eq!((offered.len(), offered.levels_max()), (90, Some(2)));
    set(&mut offered, &of(FILTERS_MAX / 2));
    assert_eq!((offered.len(), offered.levels_max()), (FILTERS_MAX / 2, None));
    let (_, whole) = tell(&mut offered, &mut wanted);
    assert_eq!(whole.expect("a change").filters.len(), FILTERS_MAX / 2);
}

#[test]
fn filters_longer_than_a_record_holds_are_wider_or_stay_here() {
    let mut offered = Offered::default();
    let long = "x".repeat(600);
    offered.set([
        &*format!("a/{long}/{long}"),
        &*long.repeat(2),
        &*format!("$share/g/{long}/{long}"),
    ]);
    let (mut wanted, peer) = (Wanted::default(), PEER);
    offered.linked(peer);
    let (_, all) = tell(&mut offered, &mut wanted);
    assert_eq!(texts(&all.expect("all")), ["#"], "the level alone is too long");
    assert_eq!(offered.left_out(), 1);
    offered.set([&*format!("a/{long}/{long}")]);
    let (_, all) = tell(&mut offered, &mut wanted);
    assert_eq!(texts(&all.expect("all")), [&*format!("a/{long}/#")]);
    assert_eq!(offered.left_out(), 0);
}

#[test]
fn more_filters_than_any_member_offers_are_refused() {
    let mut wanted = Wanted::default();
    let record = |filters: Vec<String>, more| Interests {
        generation: 1,
        is_first: false,
        more,
        added: filters,
        removed: Vec::new(),
    };
    let error = wanted.handle(record(vec!["a/#/b".to_owned()], false)).unwrap_err();
    assert!(error.to_string().contains("\"a/#/b\", which is no filter"), "{error}");
    for part in 0..40 {
        let filters = (0..1_000).map(|number| format!("{part}/{number}")).collect();
        match wanted.handle(record(filters, true)) {
            Ok(None) if part < 10 => {}
            Err(WantedError::TooMany) if part == 10 => return,
            other => panic!("{part}: {other:?}"),
        }
    }
}

#[test]
fn filters_that_change_while_they_are_told_are_never_too_many() {
    let of = |name: &str, count: usize| -> Vec<String> {
        (0..count).map(|number| format!("{name}/{number}")).collect()
    };
    let (mut offered, mut wanted) = (Offered::default(), Wanted::default());
    offered.linked(PEER);
    for name in ["a", "b", "c", "d"] {
        offered.set(of(name, FILTERS_MAX).iter().map(|filter| &**filter));
        // Half of what there is to tell.
        for _ in 0..6 {
            let record = offered.poll_transmit(PEER).expect("more than that");
            assert_eq!(wanted.handle(record), Ok(None));
        }
    }
    let (_, all) = tell(&mut offered, &mut wanted);
    let all = all.expect("all");
    assert_eq!(all.filters.len(), FILTERS_MAX);
    assert!(all.filters.iter().all(|filter| filter.starts_with("d/")));
    // A few that change are told alone, and those of a member that hangs become a list of all.
    let mut fewer = of("d", FILTERS_MAX);
    fewer.truncate(FILTERS_MAX - 3);
    offered.set(fewer.iter().map(|filter| &**filter));
    let record = offered.poll_transmit(PEER).expect("a change");
    assert_eq!((record.is_first, record.removed.len(), record.more), (false, 3, false));
    offered.set(["x", "y"]);
    let record = offered.poll_transmit(PEER).expect("a change");
    assert_eq!(
        (record.is_first, record.added, record.removed.len()),
        (true, vec!["x".to_owned(), "y".to_owned()], 0)
    );
}

#[test]
fn shared_subscriptions_beyond_their_number_stay_here() {
    let mut offered = Offered::default();
    for number in 0..SHARED_MAX {
        assert!(offered.add(&format!("$share/g/{number}")) > 0);
    }
    assert_eq!((offered.add("$share/h/x"), offered.left_out()), (0, 1));
    assert!(offered.add("$share/g/7") > 0, "as before");
    assert!(offered.add("a/b") > 0, "others have room");
    assert_eq!((offered.len(), offered.left_out()), (SHARED_MAX + 1, 1));
}

#[test]
fn oldest_subscription_is_released_where_too_many_wait() {
    let mut waiting = Waiting::default();
    waiting.linked(PEER);
    let numbers: Vec<Arc<usize>> = (0..5_000).map(Arc::new).collect();
    for number in &numbers {
        waiting.wait(Instant::EPOCH, 1, number.clone());
    }
    let are_held = numbers.iter().map(|number| Arc::strong_count(number) > 1);
    let are_held: Vec<bool> = are_held.collect();
    assert_eq!(are_held.iter().filter(|is_held| **is_held).count(), 4_096);
    assert!(are_held.is_sorted(), "the oldest were released");
}

#[test]
fn subscription_waits_for_members_that_answer() {
    let at = |millis: u64| Instant::EPOCH + Duration::from_millis(millis);
    let [one, other] = [NodeId([1; 32]), NodeId([2; 32])];
    let mut waiting = Waiting::default();
    let released = |number: &Arc<u32>| Arc::strong_count(number) == 1;
    let wait = |waiting: &mut Waiting<Arc<u32>>, now, generation| {
        let number = Arc::new(0);
        waiting.wait(now, generation, number.clone());
        number
    };
    assert!(released(&wait(&mut waiting, at(0), 5)), "there is no other member");
    waiting.linked(one);
    waiting.linked(other);
    let first = wait(&mut waiting, at(0), 5);
    waiting.held(one, 5);
    assert!(!released(&first));
    waiting.held(other, 5);
    assert!(released(&first));
    assert!(released(&wait(&mut waiting, at(10), 4)), "all have it");
    // One that hangs is waited for once.
    let second = wait(&mut waiting, at(10), 6);
    waiting.held(one, 6);
    assert_eq!(waiting.poll_timeout(), Some(at(1_010)));
    waiting.handle_timeout(at(1_009));
    assert!(!released(&second));
    waiting.handle_timeout(at(1_010));
    assert!(released(&second));
    assert_eq!((waiting.missed(), waiting.silent().collect::<Vec<_>>()), (1, vec![other]));
    let third = wait(&mut waiting, at(2_000), 7);
    waiting.held(one, 7);
    assert!(released(&third), "not for the one that hangs");
    waiting.held(other, 7);
    let fourth = wait(&mut waiting, at(3_000), 8);
    waiting.held(one, 8);
    assert!(!released(&fourth), "it answers again");
    waiting.unlinked(other);
    assert!(released(&fourth), "it is gone");
}

/// A level so long that some twenty filters fill a record.
const A: &str = match std::str::from_utf8(&[b'a'; 200]) {
    Ok(text) => text,
    Err(_) => unreachable!(),
};

/// A filter of few words, so that many cover each other.
fn filter() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![A, "b", "+", "", "$x"]);
    let levels = prop::collection::vec(word, 1..5);
    (levels, any::<bool>(), 0..4_u8).prop_map(|(levels, ends, shared)| {
        let mut text = levels.join("/");
        if ends {
            text.push_str("/#");
        }
        if text.is_empty() {
            text.push('b');
        }
        if shared == 0 { format!("$share/g/{text}") } else { text }
    })
}

fn topic() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![A, "b", "", "$x"]);
    prop::collection::vec(word, 1..6).prop_map(|levels| levels.join("/"))
}

/// A step of clients or members.
#[derive(Clone, Debug)]
enum Step {
    Subscribe(String),
    /// The filters of all clients are these.
    Set(Vec<String>),
    /// A member is sent that many records.
    Tell(usize, usize),
    /// Its link ends, and is there again.
    Relink(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => filter().prop_map(Step::Subscribe),
        2 => prop::collection::vec(filter(), 0..60).prop_map(Step::Set),
        4 => (0..2_usize, 1..4_usize).prop_map(|(peer, records)| Step::Tell(peer, records)),
        1 => (0..2_usize).prop_map(Step::Relink),
    ]
}

/// Some clients' filters, and two members.
struct World {
    offered: Offered,
    clients: BTreeSet<String>,
    members: [Wanted; 2],
    /// The filters that each has been told, and not that they are over.
    told: [BTreeSet<String>; 2],
    topics: Vec<String>,
}

impl World {
    /// Sends at most that many records. A change that is whole has all that clients want, and nothing else.
    fn tell(&mut self, peer: usize, records: usize) -> Result<(), TestCaseError> {
        for _ in 0..records {
            let Some(record) = self.offered.poll_transmit(NodeId([peer as u8; 32])) else { break };
            let (generation, told) = (record.generation, &mut self.told[peer]);
            if record.is_first {
                told.clear();
            }
            prop_assert!(record.removed.iter().all(|filter| told.remove(filter)), "it had them");
            let are_new = record.added.iter().all(|filter| told.insert(filter.clone()));
            prop_assert!(are_new, "none is told twice");
            let held = self.members[peer].handle(record);
            let Some(held) = held.map_err(|error| TestCaseError::fail(error.to_string()))? else {
                continue;
            };
            prop_assert_eq!(held.generation, generation);
            prop_assert_eq!(held.filters.len(), self.offered.len());
            for shared in self.clients.iter().filter(|filter| filter.starts_with("$share/")) {
                prop_assert!(held.filters.iter().any(|filter| **filter == **shared), "{}", shared);
            }
            for topic in &self.topics {
                let matches =
                    |filter: &str| !filter.starts_with("$share/") && topic_matches(filter, topic);
                let is_wanted = self.clients.iter().any(|filter| matches(filter));
                let is_sent = held.filters.iter().any(|filter| matches(filter));
                prop_assert_eq!(is_wanted, is_sent, "{}", topic);
            }
        }
        Ok(())
    }
}

proptest! {
    /// Each change that a member was told whole has what clients want, however much it was told before the next one.
    #[test]
    fn member_wants_what_clients_do(
        steps in prop::collection::vec(step(), 1..40),
        topics in prop::collection::vec(topic(), 1..20),
    ) {
        let mut world = World {
            offered: Offered::default(),
            clients: BTreeSet::new(),
            members: [Wanted::default(), Wanted::default()],
            told: [BTreeSet::new(), BTreeSet::new()],
            topics,
        };
        for peer in 0..2 {
            world.offered.linked(NodeId([peer; 32]));
        }
        for step in steps {
            match step {
                Step::Subscribe(filter) => {
                    world.offered.add(&filter);
                    world.clients.insert(filter);
                }
                Step::Set(filters) => {
                    world.clients = filters.into_iter().collect();
                    world.offered.set(world.clients.iter().map(|filter| &**filter));
                }
                Step::Tell(peer, records) => world.tell(peer, records)?,
                Step::Relink(peer) => {
                    let node = NodeId([peer as u8; 32]);
                    world.offered.unlinked(node);
                    prop_assert_eq!(world.offered.poll_transmit(node), None);
                    world.offered.linked(node);
                }
            }
        }
        for peer in 0..2 {
            world.tell(peer, usize::MAX)?;
            prop_assert_eq!(world.offered.poll_transmit(NodeId([peer as u8; 32])), None);
        }
    }

    /// Members that hold the generation of a subscription have its filter, or a wider one.
    #[test]
    fn generation_of_a_subscription_has_its_filter(
        before in prop::collection::vec(filter(), 0..20),
        filters in prop::collection::vec(filter(), 1..20),
    ) {
        let (mut offered, mut wanted) = (Offered::default(), Wanted::default());
        offered.linked(PEER);
        offered.set(before.iter().map(|filter| &**filter));
        let mut held = tell(&mut offered, &mut wanted).1.expect("the first list is sent in any case");
        for filter in before.iter().chain(&filters) {
            let generation = offered.add(filter);
            prop_assert!(generation > 0);
            if generation > held.generation {
                prop_assert!(!before.contains(filter), "one that they have costs no wait");
                held = tell(&mut offered, &mut wanted).1.expect("a change");
                prop_assert_eq!(generation, held.generation);
            }
            let topics = ["b", "b/b"].map(|rest| filter.replace('+', "b").replace('#', rest));
            for topic in topics {
                let is_sent = held.filters.iter().any(|one| match topic.starts_with("$share/") {
                    true => **one == **filter,
                    false => topic_matches(one, &topic),
                });
                prop_assert!(is_sent, "{} of {:?}", topic, held);
            }
        }
    }
}
