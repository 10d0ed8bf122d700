use tidegate_compress::EncoderConfig;
use tidegate_wire::mqtt::{PublishProperties, QoS};

use super::*;
use crate::{FABRIC, Incoming, IncomingError, LIMITS};

const START: Instant = Instant::EPOCH;

fn after(millis: u64) -> Instant {
    START + Duration::from_millis(millis)
}

fn config(topics: &[&str], critical: &[&str]) -> SenderConfig {
    let filters = |filters: &[&str]| filters.iter().map(|filter| (*filter).to_owned()).collect();
    SenderConfig {
        name: "plant".to_owned(),
        node: "edge".into(),
        topics: Topics::fixed(topics),
        critical: filters(critical),
        critical_bytes_per_second: 1 << 20,
        outgoing: OutgoingConfig {
            batch_age: Duration::from_millis(20),
            batch_idle: Duration::from_millis(5),
            window_bytes_max: 64 << 10,
            flight_bytes_max: 8 << 10,
            encoder: EncoderConfig::default(),
            has_origins: false,
        },
        names_messages: true,
        retry_max: Duration::from_secs(2),
        member: None,
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
    let critical = config.critical.iter().map(|filter| (**filter).into()).collect();
    begin(config, [config.topics.filters.to_vec(), critical])
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
        assert_eq!(
            session.take(START, feed, &publish(topic, id, b"x"), START, None),
            expected,
            "{topic}"
        );
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
    assert!(!session.is_forgotten(&NOTHING_KNOWN), "nothing was acknowledged");
    session.handle_acknowledged(due, &ack(0, 1)).expect("it was sent");
    let knows = UplinkReady { critical_next: Some(1), ..NOTHING_KNOWN };
    assert!(session.is_forgotten(&NOTHING_KNOWN) && !session.is_forgotten(&knows));
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
        assert_eq!(session.take(START, feed, &looped, START, None), Taken::Looped);
        let taken = session.take(START, feed, &publish(topic, 2, &long), START, None);
        assert!(matches!(taken, Taken::TooLong(_)), "{taken:?}");
        assert_eq!(owed(&mut session, feed), [1, 2]);
    }
}

#[test]
fn a_first_session_has_nothing_to_hand_over() {
    let config = config(&["#"], &["alarm"]);
    let mut session = begin(&config, Default::default());
    let marks = filters(&["$SYS/broker/uplink/plant/mark/+"]);
    let expected = Feed::ALL.map(|feed| Command::Unsubscribe { feed, filters: marks.clone() });
    let first = commands(&mut session, START);
    assert_eq!(first[..2], expected);
    let topics = Command::Subscribe { feed: Feed::Batched, filters: filters(&["#"]) };
    assert!(matches!(&first[2..], [one, Command::Dial(_)] if *one == topics), "{first:?}");
    // The first answer is to the marks.
    for held in [0, 1] {
        session.handle_answered(START, Feed::Batched, &[ReasonCode::SUCCESS]);
        assert_eq!(session.held_topics(), held);
    }
    assert_eq!(
        session.take(START, Feed::Batched, &publish("alarm", 1, b""), START, None),
        Taken::Passed
    );
}

#[test]
fn subscriptions_of_before_are_given_up_and_their_messages_not_carried() {
    let config = config(&["new/#"], &["alarm"]);
    let mut session = begin(&config, [filters(&["old/#", "new/#"]), filters(&["alarm"])]);
    let given_up = Command::Unsubscribe { feed: Feed::Batched, filters: filters(&["old/#"]) };
    let first = commands(&mut session, START);
    assert!(matches!(&first[..], [one, Command::Dial(_)] if *one == given_up), "{first:?}");
    assert_eq!(
        session.take(START, Feed::Batched, &publish("old/1", 1, b""), START, None),
        Taken::Passed
    );
    assert_eq!(
        session.take(START, Feed::Batched, &publish("new/1", 2, b""), START, None),
        Taken::Carried
    );
    assert_eq!(owed(&mut session, Feed::Batched), [1]);
}

#[test]
fn messages_parted_by_other_filters_are_carried_by_the_feed_that_has_them_until_its_marks_come() {
    let config = config(&["#"], &["new"]);
    let subscriptions = Subscriptions::new(&config, &[filters(&["#"]), filters(&["old"])]);
    let mark = "$SYS/broker/uplink/plant/mark/+".to_owned();
    assert_eq!(subscriptions.wanted(Feed::Batched), std::slice::from_ref(&mark));
    assert_eq!(subscriptions.wanted(Feed::Critical), [mark.clone(), "new".to_owned()]);
    let mut session = begin(&config, [filters(&["#"]), filters(&["old"])]);
    assert_eq!(commands(&mut session, START).len(), 2, "it unsubscribes and dials");
    session.handle_connected(START, &NOTHING_KNOWN, 1).expect("it was told nothing");
    // Each still has what is the other's now.
    assert_eq!(
        session.take(START, Feed::Batched, &publish("new", 1, b""), START, None),
        Taken::Carried
    );
    assert_eq!(
        session.take(START, Feed::Critical, &publish("old", 1, b""), START, None),
        Taken::Carried
    );
    assert_eq!(
        session.take(START, Feed::Batched, &publish("new", 0, b""), START, None),
        Taken::Passed
    );
    let marks_at = after(1_000);
    let marks = commands(&mut session, marks_at);
    assert_eq!(marks.len(), 4, "of two sizes, for two feeds: {marks:?}");
    for command in &marks {
        let Command::Mark { through, topic, payload } = command else { panic!("{command:?}") };
        let to = if *through == Feed::Critical { Feed::Batched } else { Feed::Critical };
        assert_eq!(
            session.take(marks_at, to, &publish(topic, 9, payload), START, None),
            Taken::Passed
        );
    }
    assert_eq!(
        session.take(marks_at, Feed::Batched, &publish("new", 2, b""), START, None),
        Taken::Passed
    );
    assert_eq!(
        session.take(marks_at, Feed::Critical, &publish("old", 2, b""), START, None),
        Taken::Passed
    );
    // Until they are published, a session after this one must begin in the same way.
    assert_eq!(commands(&mut session, marks_at), []);
    assert!(session.poll_part(marks_at).is_some() && session.poll_batch(marks_at).is_some());
    let ack = UplinkAck { next: 1, critical_next: 1, batches: 1 };
    session.handle_acknowledged(marks_at, &ack).expect("they were sent");
    let over = Feed::ALL.map(|feed| Command::Unsubscribe { feed, filters: filters(&[&mark]) });
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
    assert_eq!(
        session.take(START, Feed::Critical, &publish("old", 1, b""), START, None),
        Taken::Carried
    );
    let marks_at = after(1_000);
    for command in commands(&mut session, marks_at) {
        let Command::Mark { through: Feed::Batched, topic, payload } = command else {
            panic!("the batched feed has all that it is to have: {command:?}");
        };
        session.take(marks_at, Feed::Critical, &publish(&topic, 2, &payload), START, None);
    }
    assert!(session.poll_part(marks_at).is_some());
    assert_eq!(commands(&mut session, marks_at), []);
    let ack = UplinkAck { next: 0, critical_next: 1, batches: 0 };
    session.handle_acknowledged(marks_at, &ack).expect("it was sent");
    let commands = commands(&mut session, marks_at);
    assert_eq!(commands[0], Command::EndCritical);
    assert!(matches!(&commands[1..], [Command::Unsubscribe { feed: Feed::Batched, .. }]));
}

#[test]
fn topics_change_while_messages_wait() {
    let mut session = go_on(&config(&["a", "b"], &["alarm"]));
    commands(&mut session, START);
    session.handle_connected(START, &NOTHING_KNOWN, 1).expect("it was told nothing");
    assert_eq!(session.held_topics(), 1, "its session has them");
    let carried = |session: &mut UplinkSession, topic| {
        session.take(START, Feed::Batched, &publish(topic, 1, b"x"), START, None) == Taken::Carried
    };
    assert!(carried(&mut session, "a"));
    session.set_topics(Topics { generation: 2, ..Topics::fixed(["b", "c"]) });
    let feed = Feed::Batched;
    let asked = commands(&mut session, START);
    assert_eq!(asked, [Command::Subscribe { feed, filters: filters(&["c"]) }]);
    assert_eq!(session.held_topics(), 1);
    let refused = ReasonCode::QUOTA_EXCEEDED;
    let not_granted = session.handle_answered(START, feed, &[refused]).expect("it was refused");
    assert_eq!((&*not_granted.filter, not_granted.reason), ("c", refused));
    let given_up = commands(&mut session, START);
    assert_eq!(given_up, [Command::Unsubscribe { feed, filters: filters(&["a"]) }]);
    assert!(!carried(&mut session, "a") && carried(&mut session, "b"));
    assert!(carried(&mut session, "c"), "it is wanted, by whichever subscription it came");
    assert_eq!(session.handle_answered(START, feed, &[ReasonCode::SUCCESS]), None);
    let again = commands(&mut session, START);
    assert_eq!(again, [Command::Subscribe { feed, filters: filters(&["c"]) }]);
    session.handle_answered(START, feed, &[ReasonCode::SUCCESS]);
    assert_eq!((session.held_topics(), commands(&mut session, START)), (2, vec![]));
}

/// The config of an uplink to a member of the fabric.
fn to_member(topics: &[&str], critical: &[&str]) -> SenderConfig {
    let usual = config(topics, critical);
    let outgoing = OutgoingConfig { has_origins: true, ..usual.outgoing };
    let member = Some(Member { idle_max: Duration::from_secs(60) });
    SenderConfig { name: FABRIC.to_owned(), outgoing, member, ..usual }
}

#[test]
fn a_member_has_a_link_while_there_is_something_to_carry_and_for_a_while_behind_that() {
    let mut session = go_on(&to_member(&["#"], &["alarm"]));
    assert_eq!(
        (commands(&mut session, START), session.poll_timeout(Blocked::default())),
        (vec![], None)
    );
    session.take(START, Feed::Batched, &publish("a", 1, b"x"), START, None);
    assert!(matches!(&commands(&mut session, START)[..], [Command::Dial(_)]));
    session.handle_connected(after(10), &NOTHING_KNOWN, 1).expect("it was told nothing");
    let (batch, _) = session.poll_batch(after(30)).expect("it is due");
    let ack = UplinkAck { next: 1, critical_next: 0, batches: 1 };
    assert_eq!(commands(&mut session, after(100_000)), [], "a message is not acknowledged");
    session.handle_acknowledged(after(100_000), &ack).expect("it was sent");
    assert_eq!(session.poll_timeout(Blocked::default()), Some(after(160_000)));
    assert_eq!(commands(&mut session, after(159_999)), []);
    assert_eq!(commands(&mut session, after(160_000)), [Command::Rest]);
    assert!(!session.is_up());
    assert_eq!(
        (commands(&mut session, after(900_000)), session.poll_timeout(Blocked::default())),
        (vec![], None)
    );
    // The next message takes another link, in an epoch of its own.
    session.take(after(900_000), Feed::Critical, &publish("alarm", 1, b"x"), START, None);
    session.take(after(900_000), Feed::Batched, &publish("a", 2, b"x"), START, None);
    assert!(matches!(&commands(&mut session, after(900_000))[..], [Command::Dial(_)]));
    session.handle_connected(after(900_000), &NOTHING_KNOWN, 1).expect("it was told nothing");
    assert!(session.poll_part(after(900_000)).is_some());
    let (next, _) = session.poll_batch(after(901_000)).expect("it is due");
    assert_eq!((next.first, next.sequence), (1, 0));
    assert!(next.epoch > batch.epoch);
}

#[test]
fn a_node_that_is_away_is_not_dialled_and_at_once_when_it_is_back() {
    for config in [config(&["#"], &[]), to_member(&["#"], &[])] {
        let mut session = go_on(&config);
        session.take(START, Feed::Batched, &publish("a", 1, b"x"), START, None);
        let mut now = START;
        for _ in 0..6 {
            let dials = |commands: Vec<Command>| matches!(commands.last(), Some(Command::Dial(_)));
            assert!(dials(commands(&mut session, now)));
            session.handle_down(now);
            now = session.poll_timeout(Blocked::default()).expect("it tries again");
        }
        session.set_reachable(now, false);
        let later = now + Duration::from_secs(3600);
        assert_eq!(commands(&mut session, later), []);
        session.set_reachable(later, true);
        assert!(matches!(&commands(&mut session, later)[..], [Command::Dial(_)]));
        session.handle_down(later);
        let next = session.poll_timeout(Blocked::default()).expect("it tries again");
        assert_eq!(next.since(later).as_millis(), 100, "the waits begin from the shortest");
    }
}

#[test]
fn a_member_is_sent_what_waits_and_of_critical_messages_those_that_it_wants() {
    let mut session = go_on(&to_member(&["site/#", "alarm/1"], &["alarm/#"]));
    session.set_topics(Topics { generation: 2, ..Topics::fixed(["alarm/1"]) });
    for (feed, topic, expected) in [
        (Feed::Batched, "site/waited", Taken::Carried),
        (Feed::Batched, "alarm/1", Taken::Passed),
        (Feed::Critical, "alarm/1", Taken::Carried),
        (Feed::Critical, "alarm/2", Taken::Passed),
    ] {
        assert_eq!(
            session.take(START, feed, &publish(topic, 1, b""), START, None),
            expected,
            "{topic}"
        );
    }
}

#[test]
fn messages_to_a_member_say_where_they_come_from() {
    let mut session = go_on(&to_member(&["#"], &["alarm"]));
    let mut incoming = Incoming::new(LIMITS);
    session.take(after(1), Feed::Batched, &publish("a", 7, b"x"), after(1), None);
    session.take(after(2), Feed::Batched, &publish("b", 0, b"y"), after(2), None);
    session.take(after(3), Feed::Batched, &publish("a", 9, b"z"), after(3), None);
    session.take(after(4), Feed::Critical, &publish("alarm", 3, b"!"), after(4), None);
    let dial = commands(&mut session, START);
    let [Command::Dial(open)] = &dial[..] else { panic!("it dials: {dial:?}") };
    let ready = incoming.open(open, 1 << 20).expect("there is room");
    assert!(incoming.names_messages());
    session.handle_connected(START, &ready, 1).expect("it was told nothing");
    let origin = |millis, id| PacketId::new(id).map(|id| Origin { received: after(millis), id });
    let part = session.poll_part(after(100)).expect("it goes");
    let mut found = None;
    incoming
        .critical(&part, |_, message, origin| found = Some((message.payload.to_vec(), origin)))
        .expect("it is whole");
    assert_eq!(found, Some((b"!".to_vec(), origin(4, 3))));
    let (record, body) = session.poll_batch(after(100)).expect("it is due");
    incoming.batch(record, body.clone()).expect("it is expected");
    let fresh = incoming.poll(usize::MAX).expect("it can be read").expect("there are three");
    let found: Vec<_> = fresh.iter().map(|it| it.payload.to_vec()).zip(fresh.origins()).collect();
    let expected = [(b"x", origin(1, 7)), (b"y", None), (b"z", origin(3, 9))];
    assert_eq!(found, expected.map(|(payload, origin)| (payload.to_vec(), origin)));
    // A batch without them ends the link and changes nothing that it brought.
    let mut other = Incoming::new(LIMITS);
    other.open(open, 1 << 20).expect("there is room");
    other.batch(record, body.slice(..body.len() - 1)).expect("it is expected");
    let refused = other.poll(1).err().expect("it says nothing of origins");
    let SensorBatch { epoch, sequence, .. } = record;
    assert_eq!(refused, IncomingError::Origins { epoch, sequence });
}

#[test]
fn a_message_that_came_by_a_group_says_so_to_a_member_and_is_carried_by_whatever_way_it_came() {
    let ours = Stamps::new("edge").property(Direction::Out).to_vec();
    let properties = PublishProperties::decode(&ours).expect("a property");
    for (config, expected) in [
        (to_member(&["a"], &["alarm"]), [Taken::Carried; 3]),
        (config(&["a"], &["alarm"]), [Taken::Carried, Taken::Passed, Taken::Looped]),
    ] {
        let is_member = config.member.is_some();
        let mut session = begin(&config, Default::default());
        let group = Some("$share/g/#");
        let found = ["a", "alarm", "a"].map(|topic| publish(topic, 1, b"x"));
        let [plain, alarm, looped] = found;
        let looped = Publish { properties, ..looped };
        let found = [plain, alarm, looped]
            .map(|one| session.take(START, Feed::Batched, &one, START, group));
        assert_eq!(found, expected, "to a member: {is_member}");
        let message = session.outgoing.get(0).expect("the first is carried");
        let attributes = Attributes::of(message.attributes).expect("attributes");
        assert_eq!(attributes.group, group.filter(|_| is_member));
    }
}

#[test]
fn a_node_is_away_that_is_not_reached_while_messages_wait_for_it() {
    let mut session = go_on(&to_member(&["#"], &[]));
    assert!(!session.is_away());
    session.set_reachable(START, false);
    assert!(session.is_away());
    session.set_reachable(START, true);
    // Without a message it is not tried.
    session.handle_down(START);
    assert!(!session.is_away());
    session.take(START, Feed::Batched, &publish("a", 1, b"x"), START, None);
    assert!(session.is_away(), "the last try failed");
    session.handle_connected(START, &NOTHING_KNOWN, 1).expect("it was told nothing");
    assert!(!session.is_away());
    // A link that it made itself is one as well, though it has no address.
    session.set_reachable(START, false);
    assert!(!session.is_away());
}
