//! The contract of a node's broker with a service at its bus, whoever implements [`Host`](tidegate_bus::Host): the node in memory and the MQTT server
//! pass the same tests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tidegate_bus::{
    Answer, Attached, Attachment, Bundle, BundledPublication, Bus, BusError, ClientChange,
    Deliveries, Overflow, Publication, RequestAnswer, SessionConfig, Watched, filter_of,
};
use tidegate_message::{Action, AllowAll, Authorize, Decision, Identity, IdentityKind, Target};
use tidegate_wire::mqtt::{PacketId, QoS, ReasonCode, client::SubscribeError};
use tokio::time::timeout;

use crate::poll_async::poll;

/// Longest wait for what must come.
const LONGEST: Duration = Duration::from_secs(60);

/// A node of a test.
pub(crate) trait Node: Send + Sized + 'static {
    /// One whose rights are these.
    fn with(authorize: Arc<dyn Authorize>) -> Self;
    /// Its bus.
    fn bus(&self) -> Bus;
    /// Stops it, as a node that is asked to.
    fn stop(self);
}

/// The tests, for a node.
macro_rules! contract {
    ($node:ty: $($test:ident)+) => {$(
        #[tokio::test]
        async fn $test() {
            contract::$test::<$node>().await;
        }
    )+};
}
pub(crate) use contract;

// ARCHITECTURE.md shows the lines from here to the next such line.
async fn watch(bus: &Bus) -> Result<(), BusError> {
    let identity = Identity::new(IdentityKind::Internal, "watch", "watch");
    let attachment = Attachment::new(identity, "watch").subscribe("rooms/+/celsius");
    let Attached { mut publisher, mut deliveries, .. } = bus.attach(attachment).await?;
    loop {
        deliveries.ready().await?;
        while let Some(reading) = deliveries.next_message()? {
            let (id, payload) = (reading.packet_id(), reading.payload().into_owned());
            if payload > b"30".to_vec() {
                let (topic, qos) = (format!("alarms/{}", reading.topic()), QoS::AtLeastOnce);
                let (topic, payload) = (&*topic, &*payload);
                let alarm = Publication { topic, payload, qos, ..Publication::default() };
                publisher.send(&alarm).await?; // on disk, where the node has a journal
            }
            deliveries.acknowledge(id);
        }
    }
}
// ARCHITECTURE.md shows the lines from here to the next such line.

fn identity(name: &str) -> Identity {
    Identity::new(IdentityKind::User, name, name)
}

async fn attach(bus: &Bus, name: &str, filters: &[&str]) -> Attached {
    let attachment = Attachment::new(identity(name), name);
    let attachment = filters.iter().fold(attachment, |all, filter| all.subscribe(*filter));
    bus.attach(attachment).await.expect("it is let in")
}

fn message<'a>(topic: &'a str, payload: &'a [u8]) -> Publication<'a> {
    Publication { topic, payload, qos: QoS::AtLeastOnce, ..Publication::default() }
}

/// The next message: its topic, its payload, and the identifier to acknowledge it by.
async fn next(deliveries: &mut Deliveries) -> (String, Vec<u8>, Option<PacketId>) {
    let ready = timeout(LONGEST, deliveries.ready()).await;
    ready.expect("a message comes").expect("the broker is there");
    let message = deliveries.next_message().expect("the broker is there").expect("it is ready");
    (message.topic().to_owned(), message.payload().into_owned(), message.packet_id())
}

/// Why a connection ended.
async fn end(deliveries: &mut Deliveries) -> BusError {
    timeout(LONGEST, deliveries.ready()).await.expect("it ends").expect_err("it ends")
}

async fn stop(node: impl Node) {
    tokio::task::spawn_blocking(move || node.stop()).await.expect("it stops");
}

pub(crate) async fn a_service_reads_publishes_and_acknowledges<N: Node>() {
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    let mut alarms = attach(&bus, "alarms", &["alarms/#"]).await;
    let mut rooms = attach(&bus, "rooms", &[]).await;
    let watching = tokio::spawn({
        let bus = bus.clone();
        async move { watch(&bus).await }
    });
    // Until it is there, readings have no subscriber.
    let heard = poll(LONGEST, async || {
        let sent = rooms.publisher.send(&message("rooms/0/celsius", b"20")).await;
        (sent.expect("it is taken").reason == ReasonCode::SUCCESS).then_some(())
    });
    heard.await.expect("the service comes");
    for (topic, payload) in
        [("rooms/1/celsius", "31"), ("rooms/2/celsius", "29"), ("rooms/3/celsius", "40")]
    {
        rooms.publisher.send(&message(topic, payload.as_bytes())).await.expect("it is taken");
    }
    for expected in [("alarms/rooms/1/celsius", "31"), ("alarms/rooms/3/celsius", "40")] {
        let (topic, payload, id) = next(&mut alarms.deliveries).await;
        assert_eq!((&*topic, &*payload), (expected.0, expected.1.as_bytes()));
        alarms.deliveries.acknowledge(id);
    }
    stop(node).await;
    let ended = watching.await.expect("no panic").expect_err("the broker has stopped");
    let expected = ReasonCode::SERVER_SHUTTING_DOWN;
    assert!(
        matches!(ended, BusError::Disconnected { reason, .. } if reason == expected),
        "{ended}"
    );
}

pub(crate) async fn a_service_that_lends_its_thread_is_served_as_any_other<N: Node>() {
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    let mut reader = attach(&bus, "reader", &["a/#"]).await;
    let attachment =
        Attachment { lends_thread: true, ..Attachment::new(identity("lender"), "lender") };
    let mut lender = bus.attach(attachment).await.expect("it is let in");
    // One at a time, where the broker sleeps, and more at once than a thread is lent for.
    for (round, count) in [1, 1, 1, 40, 1, 3].into_iter().enumerate() {
        let texts: Vec<String> = (0..count).map(|number| format!("{round}/{number}")).collect();
        for text in &texts {
            lender.publisher.push(&message("a/b", text.as_bytes())).expect("there is room");
        }
        lender.publisher.flush();
        for text in &texts {
            let (_, payload, id) = next(&mut reader.deliveries).await;
            assert_eq!(payload, text.as_bytes());
            reader.deliveries.acknowledge(id);
        }
        reader.deliveries.settle();
        while lender.publisher.open() > 0 {
            let answered = timeout(LONGEST, lender.publisher.answered()).await;
            answered.expect("it is answered").expect("the broker is there");
            while let Some(answer) = lender.publisher.next_answer().expect("the broker is there") {
                assert_eq!(answer.reason, ReasonCode::SUCCESS);
            }
        }
    }
    stop(node).await;
    timeout(LONGEST, lender.publisher.answered()).await.expect("it ends").expect_err("it ends");
}

/// Rules by which `guest` may do nothing outside `public`, but for asking for everything.
#[derive(Debug)]
struct GuestsArePublic;

impl Authorize for GuestsArePublic {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        let name = target.to_string();
        let may = name.starts_with("public/") || (action, &*name) == (Action::Subscribe, "#");
        let allow = &*identity.name != "guest" || may;
        Decision { allow, rule: "guests are public".into() }
    }

    fn generation(&self) -> u64 {
        0
    }

    fn receives_all(&self) -> bool {
        false
    }
}

pub(crate) async fn a_service_without_rights_is_refused_by_name<N: Node>() {
    let node = N::with(Arc::new(GuestsArePublic));
    let bus = node.bus();
    let asked = Attachment::new(identity("guest"), "g").subscribe("public/a").subscribe("home/#");
    let refused = bus.attach(asked.clone()).await.expect_err("it has no right");
    let reason = ReasonCode::NOT_AUTHORIZED;
    assert_eq!(refused, BusError::Subscription { filter: "home/#".to_owned(), reason });
    assert!(refused.to_string().contains("home/#"), "{refused}");
    // Another identity may, by the same name of a client.
    bus.attach(Attachment { identity: identity("host"), ..asked }).await.expect("it has the right");

    let mut guest = attach(&bus, "guest", &["#"]).await;
    let mut host = attach(&bus, "host", &["#"]).await;
    let refused = guest.publisher.send(&message("home/door", b"open")).await;
    let refused = refused.expect_err("it has no right");
    assert_eq!(refused, BusError::Message { topic: "home/door".to_owned(), reason });
    assert!(refused.to_string().contains("home/door"), "{refused}");

    // Each message of a batch is answered by itself, of whatever QoS.
    let topics = ["public/1", "home/2", "public/3", "home/4"];
    let mut numbers = BTreeMap::new();
    for (topic, qos) in topics.iter().zip([QoS::AtLeastOnce, QoS::AtMostOnce].iter().cycle()) {
        let publication = Publication { qos: *qos, ..message(topic, b"x") };
        numbers.insert(guest.publisher.push(&publication).expect("there is room"), *topic);
    }
    guest.publisher.flush();
    let mut answers = Vec::new();
    while guest.publisher.open() > 0 {
        guest.publisher.answered().await.expect("the broker is there");
        while let Some(Answer { numbers: of, reason, .. }) =
            guest.publisher.next_answer().expect("the broker is there")
        {
            assert_eq!(of.end - of.start, 1);
            answers.push((numbers[&of.start], reason == ReasonCode::NOT_AUTHORIZED));
        }
    }
    answers.sort_unstable();
    let expected = [("home/2", true), ("home/4", true), ("public/1", false), ("public/3", false)];
    assert_eq!(answers, expected);
    for expected in ["public/1", "public/3"] {
        assert_eq!(next(&mut host.deliveries).await.0, expected);
    }
    // And it receives none that it may not, whatever it asked for.
    for topic in ["home/5", "public/6"] {
        host.publisher.send(&message(topic, b"x")).await.expect("it is taken");
    }
    assert_eq!(next(&mut guest.deliveries).await.0, "public/6");
    stop(node).await;
}

pub(crate) async fn one_answer_stands_for_many_and_names_what_was_not_taken<N: Node>() {
    let node = N::with(Arc::new(GuestsArePublic));
    let bus = node.bus();
    let session = SessionConfig {
        ends_at_refusal: true,
        acknowledges_through: true,
        ..SessionConfig::default()
    };
    let attachment = Attachment { session, ..Attachment::new(identity("guest"), "guest") };
    let mut publisher = bus.attach(attachment).await.expect("it is let in").publisher;
    for (count, denied) in [(1_000, None), (3, Some("home/1")), (0, None), (2_000, None)] {
        let mut batch = publisher.empty(&Bundle::default());
        for at in 0..count {
            let topic = match denied {
                Some(denied) if at == 1 => denied,
                _ => "public/a",
            };
            let publication = BundledPublication {
                topic: topic.as_bytes(),
                payload: b"x",
                forwarded: &[],
                qos: QoS::AtMostOnce,
                retain: false,
                message_expiry: None,
                group: &[],
                id: PacketId::MIN,
            };
            batch.push(&publication, |_| {});
        }
        let published = publisher.publish(batch);
        assert_eq!(published.end - published.start, count);
        let mut told = None;
        while publisher.first() < published.end {
            publisher.answered().await.expect("the broker is there");
            while let Some(answer) = publisher.next_answer().expect("the broker is there") {
                told = told.or(answer.text);
            }
        }
        assert_eq!(told.as_deref(), denied);
    }
    stop(node).await;
}

pub(crate) async fn a_kept_session_has_what_came_meanwhile_and_a_newer_connection_takes_it_over<
    N: Node,
>() {
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    let kept = |filters: &[&str]| {
        let kept = Attachment { session_expiry: 3600, ..Attachment::new(identity("k"), "kept") };
        filters.iter().fold(kept, |all, filter| all.subscribe(*filter))
    };
    let mut other = attach(&bus, "other", &[]).await;
    let first = bus.attach(kept(&["a/#"])).await.expect("it is let in");
    assert!(!first.was_there);
    drop(first);
    // Large ones as well, and to sessions without a connection.
    let large = vec![7; 1 << 20];
    for payload in [&b"small"[..], &large] {
        let answer = other.publisher.send(&message("a/b", payload)).await.expect("it is taken");
        assert_eq!(answer.reason, ReasonCode::SUCCESS);
    }
    let mut second = bus.attach(kept(&[])).await.expect("it is let in");
    assert!(second.was_there);
    let (_, payload, id) = next(&mut second.deliveries).await;
    assert_eq!(payload, b"small");
    second.deliveries.acknowledge(id);
    let (_, payload, _) = next(&mut second.deliveries).await;
    assert_eq!(payload, large);
    second.deliveries.settle();

    // The one that was not acknowledged comes again.
    let mut third = bus.attach(kept(&[])).await.expect("it is let in");
    let reason = ReasonCode::SESSION_TAKEN_OVER;
    assert!(
        matches!(end(&mut second.deliveries).await, BusError::Disconnected { reason: why, .. } if why == reason)
    );
    assert!(second.publisher.send(&message("a/b", b"late")).await.is_err());
    let (_, payload, id) = next(&mut third.deliveries).await;
    assert_eq!(payload, large);
    third.deliveries.acknowledge(id);

    // Its own message does not come back.
    third.publisher.send(&message("a/own", b"own")).await.expect("it is taken");
    other.publisher.send(&message("a/other", b"other")).await.expect("it is taken");
    assert_eq!(next(&mut third.deliveries).await.0, "a/other");
    assert_eq!(&*bus.filters("kept").await, ["a/#".into()]);
    bus.forget("kept");
    end(&mut third.deliveries).await;
    stop(node).await;
}

pub(crate) async fn a_service_that_does_not_read_is_bounded<N: Node>() {
    const MESSAGES: usize = 4_000;
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    let session = SessionConfig {
        queue_messages_max: 100,
        overflow_qos0: Overflow::DropNewest,
        overflow: Overflow::DropOldest,
        ..SessionConfig::default()
    };
    let slow = Attachment { session, ..Attachment::new(identity("slow"), "slow") }.subscribe("a");
    let mut slow = bus.attach(slow).await.expect("it is let in");
    let mut fast = attach(&bus, "fast", &[]).await;
    let payload = [7; 1_000];
    for _ in 0..MESSAGES {
        let qos = QoS::AtMostOnce;
        let publication = Publication { qos, ..message("a", &payload) };
        fast.publisher.send(&publication).await.expect("it is taken");
    }
    let mut count = 0;
    while slow.deliveries.next_message().expect("the broker is there").is_some() {
        count += 1;
    }
    // Those that it was handed, and the queue behind them.
    assert!((256..1_000).contains(&count), "{count} of {MESSAGES}");
    fast.publisher.send(&message("a", b"last")).await.expect("it is taken");
    let last = async {
        loop {
            let (_, payload, id) = next(&mut slow.deliveries).await;
            slow.deliveries.acknowledge(id);
            if payload == b"last" {
                return;
            }
        }
    };
    timeout(LONGEST, last).await.expect("the rest comes once there is room");
    stop(node).await;
}

pub(crate) fn thread_attaches_without_tasks<N: Node>() {
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    let attachment = Attachment::new(identity("thread"), "thread");
    let mut publisher = bus.attach_blocking(attachment).expect("it is let in").publisher;
    let number = publisher.push(&message("a", b"x")).expect("there is room");
    publisher.flush();
    publisher.answered_within(LONGEST).expect("the broker is there");
    let answer = publisher.next_answer().expect("the broker is there").expect("it is answered");
    assert_eq!((answer.numbers, publisher.open()), (number..number + 1, 0));
    publisher.detach(ReasonCode::SUCCESS).expect("a farewell is short");
    node.stop();
}

pub(crate) async fn filters_of_clients_are_known_before_their_subacks<N: Node>() {
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    let is_client = |_: &str, identity: &Identity| identity.kind != IdentityKind::Internal;
    let before = bus.filters_of(is_client).await;
    assert_eq!((before.filters.len(), before.changes), (0, bus.filter_changes()));
    let _part = {
        let identity = Identity::new(IdentityKind::Internal, "part", "part");
        bus.attach(Attachment::new(identity, "part").subscribe("part/#"))
            .await
            .expect("it is let in")
    };
    let mut coming = bus.hold_subscriptions(LONGEST);
    let attaching = tokio::spawn({
        let bus = bus.clone();
        async move { attach(&bus, "client", &["a/#", "b"]).await }
    });
    let held = timeout(LONGEST, coming.next()).await.expect("it comes").expect("it is held");
    assert_eq!(held.filters, ["a/#".into(), "b".into()]);
    let all = bus.filters_of(is_client).await;
    assert_eq!(all.filters, ["a/#".into(), "b".into()]);
    assert!(all.changes > before.changes && !attaching.is_finished());
    drop(held);
    let attached = timeout(LONGEST, attaching).await.expect("its SUBACK leaves").expect("no panic");
    // A client that comes when the service is gone waits for nothing.
    drop(coming);
    let other = attach(&bus, "other", &["c"]).await;
    assert_eq!(bus.filters_of(is_client).await.filters, ["a/#".into(), "b".into(), "c".into()]);
    drop((attached, other));
    let gone =
        poll(LONGEST, async || bus.filters_of(is_client).await.filters.is_empty().then_some(()));
    gone.await.expect("filters go with their sessions");
    assert!(bus.filter_changes() > all.changes);
    stop(node).await;
}

pub(crate) async fn clients_that_come_and_go_are_told_and_one_can_be_ended<N: Node>() {
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    let mut watch = bus.watch_clients();
    let mut next = async || timeout(LONGEST, watch.next()).await.expect("it comes");
    let mut attached = attach(&bus, "client", &[]).await;
    let Some(Watched::Change(ClientChange::Connected(state))) = next().await else {
        panic!("it has connected");
    };
    assert_eq!((&*state.client_id, &*state.user), ("client", "client"));
    let list = bus.clients().await;
    assert_eq!(list.clients, std::slice::from_ref(&state));
    bus.taken_over("client", state.began, false);
    let error = end(&mut attached.deliveries).await;
    let BusError::Disconnected { reason, .. } = error else { panic!("{error}") };
    assert_eq!(reason, ReasonCode::SESSION_TAKEN_OVER);
    let ended = ClientChange::Ended { client_id: state.client_id };
    assert_eq!(next().await, Some(Watched::Change(ended)));
    // A change that a list has is not told again, and one that finds no room is said to be missed.
    let _one = attach(&bus, "one", &[]).await;
    watch.listed(&bus.clients().await);
    let _two = attach(&bus, "two", &[]).await;
    let Some(Watched::Change(ClientChange::Connected(state))) =
        timeout(LONGEST, watch.next()).await.expect("it comes")
    else {
        panic!("it has connected");
    };
    assert_eq!(&*state.client_id, "two");
    for _ in 0..3000 {
        drop(attach(&bus, "many", &[]).await);
    }
    let missed = poll(LONGEST, async || {
        let said = timeout(LONGEST, watch.next()).await.expect("it comes");
        (said == Some(Watched::Missed)).then_some(())
    });
    missed.await.expect("it says so");
    drop(watch);
    let _three = attach(&bus, "three", &[]).await;
    stop(node).await;
}

pub(crate) async fn a_service_that_ends_right_behind_a_request_is_gone<N: Node>() {
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    for round in 0..50 {
        let name = format!("short-{round}");
        let mut attached = attach(&bus, &name, &["a/#"]).await;
        attached.deliveries.unsubscribe(vec!["a/#".to_owned()]).expect("there is room");
        drop(attached);
    }
    let ended = poll(LONGEST, async || {
        let left = bus.sessions("", 100, |_, who| who.client.starts_with("short-")).await;
        left.is_empty().then_some(())
    });
    ended.await.expect("no session is left");
    stop(node).await;
}

/// Attaches a session of another member of a fabric, which outlives its connection.
async fn attach_peer(bus: &Bus, name: &str, filters: &[&str]) -> Attached {
    let session = SessionConfig {
        is_peer: true,
        ends_at_refusal: true,
        acknowledges_through: true,
        ..SessionConfig::default()
    };
    let attachment =
        Attachment { session, session_expiry: 3600, ..Attachment::new(identity(name), name) };
    let attachment = filters.iter().fold(attachment, |all, filter| all.subscribe(*filter));
    bus.attach(attachment).await.expect("it is let in")
}

/// Publishes one message of QoS 1 for each text, in one batch, and waits until the broker has taken all.
async fn publish_all(from: &mut Attached, topic: &str, texts: &[&str], retain: bool) {
    let publisher = &mut from.publisher;
    for text in texts {
        let (payload, qos) = (text.as_bytes(), QoS::AtLeastOnce);
        let publication = Publication { topic, payload, qos, retain, ..Publication::default() };
        publisher.push(&publication).expect("there is room");
    }
    publisher.flush();
    while publisher.first() < publisher.begun() {
        timeout(LONGEST, publisher.answered()).await.expect("it answers").expect("it is there");
        while publisher.next_answer().expect("the broker is there").is_some() {}
    }
}

/// The payloads of so many messages, which are acknowledged.
async fn texts(deliveries: &mut Deliveries, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < count {
        let (_, payload, id) = next(deliveries).await;
        deliveries.acknowledge(id);
        texts.push(String::from_utf8(payload).expect("a text"));
    }
    texts
}

pub(crate) async fn what_peers_publish_goes_to_clients_and_to_no_peer<N: Node>() {
    let node = N::with(Arc::new(AllowAll));
    let bus = node.bus();
    let mut one = attach_peer(&bus, "one", &["a/#"]).await;
    let mut other = attach_peer(&bus, "other", &["a/#"]).await;
    let mut client = attach(&bus, "client", &["a/#"]).await;
    let mut publisher = attach(&bus, "publisher", &[]).await;
    let all = bus.filters_of(|_, _| true).await;
    assert_eq!(all.filters, ["a/#".into()], "those of peers are not said");
    let many: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for _ in 0..3 {
        publish_all(&mut one, "a/b", &many, false).await;
        publish_all(&mut publisher, "a/b", &["own"], false).await;
        // Those of one publisher come in their order, whichever shard each publisher is on.
        let (own, theirs): (Vec<_>, Vec<_>) =
            texts(&mut client.deliveries, 201).await.into_iter().partition(|text| text == "own");
        assert_eq!((own.len(), theirs), (1, many.iter().map(|text| (*text).to_owned()).collect()));
        for peer in [&mut one, &mut other] {
            assert_eq!(texts(&mut peer.deliveries, 1).await, ["own"]);
        }
    }
    publish_all(&mut other, "a/kept/theirs", &["theirs"], true).await;
    publish_all(&mut publisher, "a/kept/own", &["own"], true).await;
    let mut third = attach_peer(&bus, "third", &["a/kept/+"]).await;
    let mut reader = attach(&bus, "reader", &["a/kept/+"]).await;
    let mut all = texts(&mut reader.deliveries, 2).await;
    all.sort_unstable();
    assert_eq!(all, ["own", "theirs"]);
    assert_eq!(texts(&mut third.deliveries, 1).await, ["own"]);
    publish_all(&mut publisher, "a/kept/last", &["last"], false).await;
    assert_eq!(texts(&mut third.deliveries, 1).await, ["last"], "nothing came in between");
    stop(node).await;
}

/// The broker's answer to the oldest request.
async fn answer(deliveries: &mut Deliveries) -> RequestAnswer {
    loop {
        if let Some(answer) = deliveries.next_answer().expect("the broker is there") {
            return answer;
        }
        let ready = timeout(LONGEST, deliveries.ready()).await;
        ready.expect("an answer comes").expect("the broker is there");
    }
}

pub(crate) async fn filters_change_while_a_service_is_attached<N: Node>() {
    let node = N::with(Arc::new(GuestsArePublic));
    let bus = node.bus();
    let mut publisher = attach(&bus, "publisher", &[]).await;
    let mut guest = attach(&bus, "guest", &["public/0"]).await;
    // More than there is room for on the way to the broker at once, and some that it may not have.
    let named = |name: &str| {
        let some = (1..=5_000).map(|number| format!("public/{name}/{number}"));
        some.chain([format!("home/{name}")]).collect::<Vec<_>>()
    };
    let (first, second) = (named("first"), named("second"));
    let asked: Vec<u64> = [&first, &second]
        .map(|filters| {
            let filters = filters.iter().map(filter_of).collect();
            guest.deliveries.subscribe(filters).expect("there is room")
        })
        .into();
    for (request, filters) in asked.into_iter().zip([&first, &second]) {
        let answer = answer(&mut guest.deliveries).await;
        assert_eq!((answer.request, answer.reasons.len()), (request, filters.len()));
        let refused: Vec<_> = answer.refused().collect();
        assert_eq!(refused, [(5_000, ReasonCode::NOT_AUTHORIZED)]);
        assert_eq!(answer.reasons[0], ReasonCode::GRANTED_QOS_1);
    }
    let mut is_matched = async |topic: &str| {
        let sent = publisher.publisher.send(&message(topic, topic.as_bytes())).await;
        sent.expect("it is taken").reason == ReasonCode::SUCCESS
    };
    for topic in ["public/0", "public/first/1", "public/first/5000", "public/second/5000"] {
        assert!(is_matched(topic).await, "{topic}");
        assert_eq!(texts(&mut guest.deliveries, 1).await, [topic]);
    }
    // In one go, the end of some and others in their place.
    let request = guest.deliveries.unsubscribe(first).expect("there is room");
    let added = vec![filter_of("public/third")];
    let added = guest.deliveries.subscribe(added).expect("there is room");
    let ended = answer(&mut guest.deliveries).await;
    assert_eq!((ended.request, ended.refused().count()), (request, 0));
    assert_eq!(ended.reasons[5_000], ReasonCode::NO_SUBSCRIPTION_EXISTED, "it never had it");
    assert_eq!(answer(&mut guest.deliveries).await.request, added);
    for (topic, expected) in
        [("public/first/1", false), ("public/second/1", true), ("public/third", true)]
    {
        assert_eq!(is_matched(topic).await, expected, "{topic}");
    }
    assert_eq!(texts(&mut guest.deliveries, 2).await, ["public/second/1", "public/third"]);
    // So many may be under way, and no more.
    let room = guest.deliveries.request_room();
    assert_eq!(room, 64);
    let request = |guest: &mut Attached, number: usize| {
        guest.deliveries.subscribe(vec![filter_of(format!("public/{number}"))])
    };
    // Answers count once they are read, which nothing does here.
    let begun: Vec<u64> =
        (0..room).map(|number| request(&mut guest, number).expect("there is room")).collect();
    let refused = request(&mut guest, room).expect_err("there is none");
    let BusError::Subscribe(SubscribeError::NoRoom { maximum }) = refused else {
        panic!("{refused}");
    };
    assert_eq!((maximum.get(), guest.deliveries.request_room()), (64, 0));
    for number in begun {
        assert_eq!(answer(&mut guest.deliveries).await.request, number);
    }
    stop(node).await;
}
