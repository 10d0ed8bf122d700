//! Flows that read the output of flows.

use std::{fs, sync::atomic::Ordering};

use super::*;

const NOW: Instant = Instant::from_millis(1_700_000_000_000);

/// A flow that notifies of each message on these topics, once for each.
fn notifying(name: &str, filter: &str, topics: &[&str]) -> String {
    let step = |topic: &&str| {
        format!("[[flow.{name}.step]]\nkernel = \"notify\"\ntopic = \"{topic}\"\npayload = \"1\"\n")
    };
    let steps: String = topics.iter().map(step).collect();
    format!(
        "[flow.{name}]\ntopics = [\"{filter}\"]\nparse = {{ format = \"csv\", fields = [\"x\"] }}\n{steps}"
    )
}

/// A flow that publishes what has no number as a dead letter.
fn burying(name: &str, filter: &str) -> String {
    format!(
        "[flow.{name}]\ntopics = [\"{filter}\"]\nbad = \"dead-letter\"\nparse = {{ format = \"csv\", fields = [\"x\"] }}\n"
    )
}

fn exchange(flows: &Flows, text: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("flows.toml");
    fs::write(&file, text).expect("a file");
    let plan = flows.plan_file(&file, None).unwrap_or_else(|error| panic!("{error:?}\n{text}"));
    flows.commit(plan, None);
}

/// The hook of a node of so many shards with these flows.
fn running(shards: usize, text: &str) -> (Arc<Flows>, Hook) {
    let flows = Flows::new(shards, 7, 11);
    exchange(&flows, text);
    let hook = flows.hook(0);
    (flows, hook)
}

fn of(topic: &str, payload: impl Into<Payload>) -> Draft {
    Draft { topic: topic.into(), payload: payload.into(), ..nobody() }
}

fn admitted(hook: &mut Hook, drafts: Vec<Draft>) -> Batch {
    let mut batch = Batch { drafts, ..Batch::default() };
    hook.admit(NOW, &Identity::anonymous("c"), &mut batch);
    batch
}

/// The topics of those that continue.
fn topics<'a>(drafts: impl IntoIterator<Item = &'a Draft>) -> Vec<&'a str> {
    let passing = drafts.into_iter().filter(|draft| draft.verdict == Verdict::Pass);
    passing.map(|draft| &*draft.topic).collect()
}

/// Messages that flows did not look at, all together.
fn unseen(flows: &Flows) -> u64 {
    let load = |running: &Arc<Running>| running.counters.unseen.load(Ordering::Relaxed);
    flows.current().flows.iter().map(load).sum()
}

#[test]
fn a_dead_letter_that_its_own_flow_matches_is_published_once() {
    let (flows, mut hook) = running(1, &burying("f", "#"));
    let batch = admitted(&mut hook, vec![of("a", b"1".to_vec()), of("b", b"no number".to_vec())]);
    assert_eq!(topics(&batch.drafts), ["a"]);
    assert!(batch.emitted.is_empty());
    let [(1, letter)] = &batch.letters[..] else { panic!("{:?}", batch.letters) };
    assert_eq!((&*letter.topic, letter.hops, letter.verdict), ("dead/f/b", 1, Verdict::Pass));
    assert_eq!(letter.payload, Payload::from(b"no number".to_vec()));
    assert_eq!(flows.stats()[0].2.messages, 2);
}

#[test]
fn another_flows_dead_letter_of_a_dead_letter_stands_for_the_same_message() {
    let flows = burying("one", "#") + &burying("two", "dead/#");
    let (_flows, mut hook) = running(1, &flows);
    let batch = admitted(&mut hook, vec![of("a", b"1".to_vec()), of("b", b"no number".to_vec())]);
    let letters: Vec<_> = batch.letters.iter().map(|(of, letter)| (*of, &*letter.topic)).collect();
    assert_eq!(letters, [(1, "dead/one/b"), (1, "dead/two/dead/one/b")]);
    assert_eq!(topics(batch.letters.iter().map(|(_, letter)| letter)), ["dead/two/dead/one/b"]);
}

/// A flow makes what another finds bad: no publisher can send that again.
#[test]
fn a_dead_letter_of_what_a_flow_made_stands_for_no_message() {
    let made = notifying("made", "in", &["out"]).replace("\"1\"", "\"no number\"");
    let (_flows, mut hook) = running(1, &(made + &burying("read", "out")));
    let batch = admitted(&mut hook, vec![of("in", b"1".to_vec())]);
    assert!(batch.letters.is_empty());
    assert_eq!(topics(&batch.emitted), ["dead/read/out"]);
}

#[test]
fn flows_read_each_others_notices_and_never_what_came_of_their_own() {
    let flows = notifying("a", "#", &["a/{topic}"]) + &notifying("b", "#", &["b/{topic}"]);
    let (flows, mut hook) = running(1, &flows);
    let batch = admitted(&mut hook, vec![of("t", b"1".to_vec())]);
    assert_eq!(topics(&batch.emitted), ["a/t", "b/t", "b/a/t", "a/b/t"]);
    assert_eq!(unseen(&flows), 0);
}

/// A shard has the old flows when the new ones take their state.
#[test]
fn flows_may_be_exchanged_while_a_batch_is_gone_through() {
    let before = notifying("a", "#", &["a/{topic}"]) + &notifying("b", "#", &["b/{topic}"]);
    let (flows, mut hook) = running(1, &before);
    exchange(&flows, &notifying("b", "#", &["c/{topic}"]));
    let mut batch = Batch { drafts: vec![of("t", b"1".to_vec())], ..Batch::default() };
    hook.look_at(NOW, &mut batch);
    assert_eq!(topics(&batch.emitted), ["c/t"]);
}

#[test]
fn each_message_is_read_once_where_a_parted_flow_is_exchanged_meanwhile() {
    let counting = |name: &str| {
        format!(
            "[flow.f]\ntopics = [\"#\"]\nparse = {{ format = \"csv\", fields = [\"x\"] }}\n\
            [[flow.f.step]]\nkernel = \"count\"\ninto = \"{name}\"\n"
        )
    };
    let (flows, mut hook) = running(2, &counting("n"));
    assert!(flows.current().flows[0].parts() > 1);
    exchange(&flows, &counting("m"));
    let drafts = (0..50).map(|number| of(&format!("t/{number}"), b"1".to_vec())).collect();
    let mut batch = Batch { drafts, ..Batch::default() };
    hook.look_at(NOW, &mut batch);
    let stats = &flows.stats()[0].2;
    assert_eq!((stats.messages, stats.keys), (50, 50));
}

#[test]
fn output_of_a_batch_has_a_bound_and_the_rest_passes_unread() {
    let eight: Vec<_> = (0..8).map(|number| format!("{number}/{{topic}}")).collect();
    let eight: Vec<_> = eight.iter().map(String::as_str).collect();
    let all: String = ["a", "b", "c"].map(|name| notifying(name, "#", &eight)).concat();
    let (flows, mut hook) = running(1, &all);
    let batch = admitted(&mut hook, (0..10).map(|_| of("t", b"1".to_vec())).collect());
    // Each message is read by three flows, what those publish by two, what comes of that by one.
    let (first, second) = (10 * 3 * 8, 10 * 3 * 8 * 2 * 8);
    let unseen = unseen(&flows) as usize;
    assert!(0 < unseen && unseen < second, "{unseen}");
    assert_eq!(batch.emitted.len(), first + second + (second - unseen) * 8);
    assert!(batch.emitted.len() - first < DESCENT_MESSAGES_MAX + DESCENT_AT_ONCE * 8);
    assert_eq!(topics(&batch.emitted).len(), batch.emitted.len());
    // The next batch has a bound of its own.
    assert_eq!(
        admitted(&mut hook, vec![of("t", b"1".to_vec())]).emitted.len(),
        24 * (1 + 16 + 128)
    );
}

#[test]
fn beyond_the_bound_dead_letters_are_published_as_they_are() {
    let flows = ["a", "b", "c"].map(|name| burying(name, "#")).concat();
    let (flows, mut hook) = running(1, &flows);
    let payload = Payload::from(vec![b'x'; 4 << 20]);
    let drafts = (0..5).map(|_| of("t", payload.clone())).collect();
    let batch = admitted(&mut hook, drafts);
    // Three letters of each are buried by the two others, whose six are 120 MiB together.
    let letters = topics(batch.letters.iter().map(|(_, letter)| letter));
    assert_eq!(letters.len(), 5 * 6);
    assert!(letters.iter().all(|topic| topic.matches("dead/").count() == 2), "{letters:?}");
    assert_eq!((batch.letters.len(), batch.emitted.len()), (5 * (3 + 6), 0));
    assert_eq!(unseen(&flows), 5 * 6);
}

#[test]
fn a_dead_letter_that_comes_from_as_many_messages_as_may_be_is_not_lost() {
    // Each finds what the one before it buried.
    let name = |number: usize| format!("f{number}");
    let flows: String = (0..12)
        .map(|number| match number {
            0 => burying("f0", "t"),
            _ => burying(&name(number), &format!("dead/{}/#", name(number - 1))),
        })
        .collect();
    let (flows, mut hook) = running(1, &flows);
    let batch = admitted(&mut hook, vec![of("t", b"no number".to_vec())]);
    let passing: Vec<_> =
        batch.letters.iter().filter(|(_, letter)| letter.verdict == Verdict::Pass).collect();
    let [(0, letter)] = passing[..] else { panic!("{passing:?}") };
    assert_eq!(letter.hops, HOPS_MAX);
    assert_eq!(unseen(&flows), 1);
}
