use tidegate_compress::EncoderConfig;
use tidegate_wire::mqtt::{PublishProperties, QoS};

use super::*;

const START: Instant = Instant::EPOCH;

fn after(millis: u64) -> Instant {
    START + Duration::from_millis(millis)
}

fn config(topics: &[&str], critical: &[&str]) -> SenderConfig {
    let filters = |filters: &[&str]| filters.iter().map(|filter| (*filter).to_owned()).collect();
    SenderConfig {
        name: "plant".to_owned(),
        node: "edge".into(),
        topics: filters(topics),
        critical: filters(critical),
        critical_bytes_per_second: 1 << 20,
        outgoing: OutgoingConfig {
            batch_age: Duration::from_millis(20),
            batch_idle: Duration::from_millis(5),
            window_bytes_max: 64 << 10,
            flight_bytes_max: 8 << 10,
            encoder: EncoderConfig::default(),
        },
        names_messages: true,
        retry_max: Duration::from_secs(2),
    }
}

fn filters(filters: &[&str]) -> Vec<Arc<str>> {
    filters.iter().map(|filter| Arc::from(*filter)).collect()
}

fn begin(config: &SenderConfig, had: [Vec<Arc<str>>; 2]) -> UplinkSession {
    let was_there = [0, 1].map(|feed: usize| !had[feed].is_empty());
    let subscriptions = Subscriptions::new(config, &had);
    UplinkSession::new(START, config.clone(), subscriptions, was_there, 7, 1)
}

/// A session whose sessions at the broker are those of the one before.
fn go_on(config: &SenderConfig) -> UplinkSession {
    let had = [&config.topics, &config.critical];
    begin(config, had.map(|all| all.iter().map(|filter| (**filter).into()).collect()))
}

fn publish<'a>(topic: &'a str, id: u16, payload: &'a [u8]) -> Publish<'a> {
    Publish {
        dup: false,
        qos: if id > 0 { QoS::AtLeastOnce } else { QoS::AtMostOnce },
        retain: false,
        topic,
        packet_id: PacketId::new(id),
        properties: PublishProperties::default(),
        payload,
    }
}

fn commands(session: &mut UplinkSession, now: Instant) -> Vec<Command> {
    std::iter::from_fn(|| session.poll_command(now)).collect()
}

fn owed(session: &mut UplinkSession, feed: Feed) -> Vec<u16> {
    let mut owed = Vec::new();
    session.take_acknowledged(feed, |id| owed.push(id.get()));
    owed
}

const NOTHING_KNOWN: UplinkReady =
    UplinkReady { resume: None, next: None, critical_next: None, state_bytes_max: 1 << 20 };

#[test]
fn a_node_that_cannot_be_reached_is_dialled_ever_less_often() {
    let mut session = go_on(&config(&["#"], &["alarm"]));
    let mut now = START;
    let mut waits = Vec::new();
    for _ in 0..7 {
        let dial = commands(&mut session, now);
        let [Command::Dial(open)] = &dial[..] else { panic!("it dials once: {dial:?}") };
        assert_eq!((&*open.name, open.life, &*open.node), ("plant", 7, "edge"));
        assert_eq!(commands(&mut session, now), [], "it waits for the answer");
        session.handle_down(now);
        let next = session.poll_timeout(Blocked::default()).expect("it tries again");
        waits.push(next.since(now).as_millis());
        assert_eq!(commands(&mut session, next - Duration::from_nanos(1)), []);
        now = next;
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 2_000, 2_000]);
    // A link that holds for a while has earned a quick second try.
    assert_eq!(commands(&mut session, now).len(), 1);
    session.handle_connected(now, &NOTHING_KNOWN, 1).expect("it was told nothing");
    assert!(session.is_up() && session.poll_timeout(Blocked::default()).is_none());
    session.handle_down(now + Duration::from_secs(3));
    let next = session.poll_timeout(Blocked::default()).expect("it tries again");
    assert_eq!(next.since(now).as_millis(), 3_100);
}

#[test]
fn each_message_goes_by_one_feed_and_is_acknowledged_when_it_was_published() {
    let mut session = go_on(&config(&["#"], &["alarm/#"]));
    commands(&mut session, START);
    session.handle_connected(START, &NOTHING_KNOWN, 1).expect("it was told nothing");
    for (feed, topic, id, expected) in [
        (Feed::Batched, "a", 1, Taken::Carried),
        (Feed::Batched, "alarm/fire", 2, Taken::Passed),
        (Feed::Batched, "b", 0, Taken::Carried),
        (Feed::Critical, "alarm/fire", 1, Taken::Carried),
    ] {
        assert_eq!(session.take(START, feed, &publish(topic, id, b"x")), expected, "{topic}");
    }
    assert_eq!(owed(&mut session, Feed::Batched), [2], "the other feed has it");
    assert_eq!(owed(&mut session, Feed::Critical), [0_u16; 0]);
    let part = session.poll_part(START).expect("an alarm goes at once");
    assert_eq!((part.number, part.more), (0, false));
    assert!(session.poll_batch(START).is_none());
    let due = session.poll_timeout(Blocked::default()).expect("a batch waits for others");
    assert_eq!(session.poll_timeout(Blocked { bulk: true, lane: false }), None, "or for room");
    let (batch, _) = session.poll_batch(due).expect("no other came");
    assert_eq!(batch.first, 0);
    let ack = |next, critical_next| UplinkAck { next, critical_next, batches: 1 };
    session.handle_acknowledged(due, &ack(0, 1)).expect("it was sent");
    assert_eq!(owed(&mut session, Feed::Critical), [1]);
    assert_eq!(owed(&mut session, Feed::Batched), [0_u16; 0]);
    session.handle_acknowledged(due, &ack(2, 1)).expect("they were sent");
    assert_eq!(owed(&mut session, Feed::Batched), [1]);
    session.handle_acknowledged(due, &ack(3, 1)).expect_err("there was no third message");
    assert_eq!(session.counts(due).held_bytes, 0);
}

#[test]
fn messages_that_came_round_or_are_too_long_are_not_carried_and_are_acknowledged() {
    let mut session = go_on(&config(&["#"], &["alarm"]));
    let stamps = Stamps::new("edge");
    let properties = PublishProperties::decode(stamps.property(Direction::Out)).expect("one");
    let long = vec![0; (16 << 20) + 1];
    for (feed, topic) in [(Feed::Batched, "a"), (Feed::Critical, "alarm")] {
        let looped = Publish { properties, ..publish(topic, 1, b"x") };
        assert_eq!(session.take(START, feed, &looped), Taken::Looped);
        let taken = session.take(START, feed, &publish(topic, 2, &long));
        assert!(matches!(taken, Taken::TooLong(_)), "{taken:?}");
        assert_eq!(owed(&mut session, feed), [1, 2]);
    }
}

#[test]
fn a_first_session_has_nothing_to_hand_over() {
    let config = config(&["#"], &["alarm"]);
    let mut session = begin(&config, Default::default());
    let marks = vec!["$SYS/broker/uplink/plant/mark/+".to_owned()];
    let expected = Feed::ALL.map(|feed| Command::Unsubscribe { feed, filters: marks.clone() });
    let first = commands(&mut session, START);
    assert_eq!(first[..2], expected);
    assert!(matches!(first[2..], [Command::Dial(_)]), "{first:?}");
    assert_eq!(session.take(START, Feed::Batched, &publish("alarm", 1, b"")), Taken::Passed);
}

#[test]
fn subscriptions_of_before_are_given_up_and_their_messages_not_carried() {
    let config = config(&["new/#"], &["alarm"]);
    let mut session = begin(&config, [filters(&["old/#", "new/#"]), filters(&["alarm"])]);
    let given_up = Command::Unsubscribe { feed: Feed::Batched, filters: vec!["old/#".to_owned()] };
    let first = commands(&mut session, START);
    assert!(matches!(&first[..], [one, Command::Dial(_)] if *one == given_up), "{first:?}");
    assert_eq!(session.take(START, Feed::Batched, &publish("old/1", 1, b"")), Taken::Passed);
    assert_eq!(session.take(START, Feed::Batched, &publish("new/1", 2, b"")), Taken::Carried);
    assert_eq!(owed(&mut session, Feed::Batched), [1]);
}

#[test]
fn messages_parted_by_other_filters_are_carried_by_the_feed_that_has_them_until_its_marks_come() {
    let config = config(&["#"], &["new"]);
    let subscriptions = Subscriptions::new(&config, &[filters(&["#"]), filters(&["old"])]);
    let mark = "$SYS/broker/uplink/plant/mark/+".to_owned();
    assert_eq!(subscriptions.wanted(Feed::Batched), [mark.clone(), "#".to_owned()]);
    assert_eq!(subscriptions.wanted(Feed::Critical), [mark.clone(), "new".to_owned()]);
    let mut session = begin(&config, [filters(&["#"]), filters(&["old"])]);
    assert_eq!(commands(&mut session, START).len(), 2, "it unsubscribes and dials");
    session.handle_connected(START, &NOTHING_KNOWN, 1).expect("it was told nothing");
    // Each still has what is the other's now.
    assert_eq!(session.take(START, Feed::Batched, &publish("new", 1, b"")), Taken::Carried);
    assert_eq!(session.take(START, Feed::Critical, &publish("old", 1, b"")), Taken::Carried);
    assert_eq!(session.take(START, Feed::Batched, &publish("new", 0, b"")), Taken::Passed);
    let marks_at = after(1_000);
    let marks = commands(&mut session, marks_at);
    assert_eq!(marks.len(), 4, "of two sizes, for two feeds: {marks:?}");
    for command in &marks {
        let Command::Mark { through, topic, payload } = command else { panic!("{command:?}") };
        let to = if *through == Feed::Critical { Feed::Batched } else { Feed::Critical };
        assert_eq!(session.take(marks_at, to, &publish(topic, 9, payload)), Taken::Passed);
    }
    assert_eq!(session.take(marks_at, Feed::Batched, &publish("new", 2, b"")), Taken::Passed);
    assert_eq!(session.take(marks_at, Feed::Critical, &publish("old", 2, b"")), Taken::Passed);
    // Until they are published, a session after this one must begin in the same way.
    assert_eq!(commands(&mut session, marks_at), []);
    assert!(session.poll_part(marks_at).is_some() && session.poll_batch(marks_at).is_some());
    let ack = UplinkAck { next: 1, critical_next: 1, batches: 1 };
    session.handle_acknowledged(marks_at, &ack).expect("they were sent");
    let over = Feed::ALL.map(|feed| Command::Unsubscribe { feed, filters: vec![mark.clone()] });
    assert_eq!(commands(&mut session, marks_at), over);
    assert_eq!(commands(&mut session, after(500_000)), []);
}

#[test]
fn marks_that_do_not_come_are_sent_again_ever_less_often() {
    let mut session = begin(&config(&["#"], &["new"]), [filters(&["#"]), filters(&["old"])]);
    commands(&mut session, START);
    session.handle_connected(START, &NOTHING_KNOWN, 1).expect("it was told nothing");
    for seconds in [1, 61, 181, 421] {
        let due = session.poll_timeout(Blocked::default());
        assert_eq!(due, Some(after(seconds * 1_000)));
        assert_eq!(commands(&mut session, after(seconds * 1_000)).len(), 4);
    }
}

#[test]
fn the_critical_feed_ends_where_no_topic_is_critical_and_all_it_had_was_carried() {
    let mut session = begin(&config(&["#"], &[]), [filters(&["#"]), filters(&["old"])]);
    assert!(!commands(&mut session, START).contains(&Command::EndCritical));
    session.handle_connected(START, &NOTHING_KNOWN, 1).expect("it was told nothing");
    assert_eq!(session.take(START, Feed::Critical, &publish("old", 1, b"")), Taken::Carried);
    let marks_at = after(1_000);
    for command in commands(&mut session, marks_at) {
        let Command::Mark { through: Feed::Batched, topic, payload } = command else {
            panic!("the batched feed has all that it is to have: {command:?}");
        };
        session.take(marks_at, Feed::Critical, &publish(&topic, 2, &payload));
    }
    assert!(session.poll_part(marks_at).is_some());
    assert_eq!(commands(&mut session, marks_at), []);
    let ack = UplinkAck { next: 0, critical_next: 1, batches: 0 };
    session.handle_acknowledged(marks_at, &ack).expect("it was sent");
    let commands = commands(&mut session, marks_at);
    assert_eq!(commands[0], Command::EndCritical);
    assert!(matches!(&commands[1..], [Command::Unsubscribe { feed: Feed::Batched, .. }]));
}
