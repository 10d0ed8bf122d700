//! Timers at a node in memory.

use tidegate_bus::memory::{self, Client};

use super::*;

/// Longer than anything takes.
const LONGEST: Duration = Duration::from_secs(60);

fn timer(name: &str, topic: &str, payload: &str) -> TimerSettings {
    TimerSettings {
        name: name.to_owned(),
        topic: topic.to_owned(),
        payload: payload.into(),
        every: Duration::from_millis(100),
        qos: QoS::AtLeastOnce,
        retain: false,
    }
}

fn next(client: &mut Client) -> (String, String) {
    let message = client.receive(LONGEST).expect("a message comes");
    (message.topic, String::from_utf8(message.payload).expect("it is text"))
}

fn pair(topic: &str, payload: &str) -> (String, String) {
    (topic.to_owned(), payload.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn timer_publishes_again_and_again() {
    let node = memory::Node::default();
    let mut client = node.client("reader", &["poll/#"]);
    let mut timers = Timers::new(node.bus(), Handle::current());
    assert_eq!(timers.exchange(vec![timer("a", "poll/a", "state?")]), ["a"]);
    for _ in 0..3 {
        assert_eq!(next(&mut client), pair("poll/a", "state?"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn newest_message_is_retained_where_asked() {
    let node = memory::Node::default();
    let mut client = node.client("early", &["alive"]);
    let mut timers = Timers::new(node.bus(), Handle::current());
    timers.exchange(vec![TimerSettings { retain: true, ..timer("a", "alive", "yes") }]);
    next(&mut client);
    drop(timers);
    assert_eq!(next(&mut node.client("late", &["alive"])), pair("alive", "yes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn exchange_ends_and_begins_what_is_other_than_it_was() {
    let node = memory::Node::default();
    let mut client = node.client("reader", &["#"]);
    let mut timers = Timers::new(node.bus(), Handle::current());
    let [a, b] = [timer("a", "t/a", "1"), timer("b", "t/b", "1")];
    assert_eq!(timers.exchange(vec![a.clone(), b.clone()]), ["a", "b"]);
    assert_eq!(timers.exchange(vec![b.clone(), a.clone()]), [""; 0], "they are as they were");
    let other = timer("a", "t/a", "2");
    assert_eq!(timers.exchange(vec![other.clone()]), ["a", "b"]);
    // Of each that is gone one may be under way, and no more come, however long the new one publishes.
    let (mut of_new, mut late) = (0, 0);
    while of_new < 10 {
        let (_, payload) = next(&mut client);
        of_new += u32::from(payload == "2");
        late += u32::from(payload == "1" && of_new > 0);
    }
    assert!(late <= 2, "{late} messages of timers that are gone");
    assert_eq!(timers.exchange(Vec::new()), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn timer_connects_again_when_its_connection_ends() {
    let node = memory::Node::default();
    let mut client = node.client("reader", &["alive"]);
    let mut timers = Timers::new(node.bus(), Handle::current());
    timers.exchange(vec![timer("a", "alive", "yes")]);
    next(&mut client);
    // Another connection of the same client takes the session over.
    let id = TimerSettings::session_of("a");
    let identity = Identity::new(IdentityKind::Internal, "a", &id);
    drop(node.bus().attach(Attachment::new(identity, id)).await.expect("it is let in"));
    // All of before is read, and one may be under way; then come those of the new connection.
    while client.receive(Duration::ZERO).is_some() {}
    for _ in 0..4 {
        assert_eq!(next(&mut client), pair("alive", "yes"));
    }
}

#[test]
fn timer_that_cannot_be_is_refused_with_the_way_out() {
    let of = |topic: &str| timer("a", topic, "").check(3).map_err(|error| error.to_string());
    assert_eq!(of("a/b/c"), Ok(()));
    for (topic, expected) in [
        ("a/+", "name one without wildcards"),
        ("", "name one without wildcards"),
        ("a/b/c/d", "name one without wildcards"),
        ("$SYS/x", "which is the node's own"),
    ] {
        let error = of(topic).expect_err("it cannot be");
        assert!(error.contains(expected), "{error}");
    }
}
