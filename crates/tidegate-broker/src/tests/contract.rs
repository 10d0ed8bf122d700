//! The order in which a caller may call the broker, as it stands at [`Broker`].

use tidegate_schedule::LinkState;

use super::*;
use crate::{Bundle, BundleReader, Publication, broker::Acknowledged};

/// A client's connection ends, and the next one of its shard takes the slot: the key that has ended, and the other connection.
fn ended_key(world: &mut World) -> (usize, ConnectionKey, At) {
    let first = world.join(kept("first"));
    world.subscribe(first, "t", ExactlyOnce);
    let (shard, key) = world.key_of(first);
    world.cut(first);
    let mut names = (0..).map(|number| format!("next{number}"));
    let next = loop {
        let next = world.join(v5(&names.next().expect("they do not end")));
        if world.key_of(next).0 == shard {
            break next;
        }
    };
    let (_, other) = world.key_of(next);
    assert!(other.slot == key.slot && other != key, "{other:?} has the slot of {key:?}");
    (shard, key, next)
}

#[test]
fn ended_key_changes_nothing() {
    type Call = fn(&mut Broker, Instant, ConnectionKey);
    let calls: [(&str, Call); 16] = [
        ("receive", |broker, now, key| {
            let bytes = publish_bytes(message("t", AtMostOnce, "late"), &[]);
            assert_eq!(broker.receive(now, key, &bytes), bytes.len());
        }),
        ("receive_bundle", |broker, now, key| {
            let mut bundle = Bundle::default();
            bundle.push(&Publication { topic: b"t", ..Publication::NONE }, |_| {});
            let mut reader = BundleReader::new(bundle, Arc::default());
            assert_eq!(broker.receive_bundle(now, key, &mut reader, usize::MAX), None);
        }),
        ("end_publications", |broker, now, key| broker.end_publications(now, key)),
        ("acknowledge_deliveries", |broker, now, key| {
            broker.acknowledge_deliveries(now, key, &[Acknowledged { first: id(1), count: 9 }]);
        }),
        ("authenticated", |broker, _, key| {
            broker.authenticated(key, AuthAnswer::Refuse(ReasonCode::NOT_AUTHORIZED));
        }),
        ("set_link", |broker, now, key| broker.set_link(now, key, LinkState::default())),
        ("writable", |broker, _, key| broker.writable(key)),
        ("rests_until", |broker, now, key| broker.rests_until(key, now + seconds(9))),
        ("hold_up_deliveries", |broker, _, key| broker.hold_up_deliveries(key, false)),
        ("transmit", |broker, now, key| {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            assert_eq!(broker.transmit(now, key, &mut slices), 0);
        }),
        ("transmitted", |broker, now, key| broker.transmitted(now, key, 9, true)),
        ("take_deliveries", |broker, now, key| {
            let mut handed = Vec::new();
            broker.take_deliveries(now, key, &mut handed);
            assert!(handed.is_empty());
        }),
        ("charge_partial", |broker, _, key| drop(broker.charge_partial(key, 100))),
        ("end", |broker, _, key| broker.end(key, ReasonCode::QUOTA_EXCEEDED, "late")),
        ("closed", |broker, now, key| broker.closed(now, key)),
        ("questions", |broker, now, key| {
            assert!(broker.is_flushed(key) && !broker.wants_link(now, key));
            assert_eq!((broker.answer_bytes(key), broker.why_ended(key)), (0, None));
        }),
    ];
    for (name, call) in calls {
        each(|world| {
            let (shard, key, next) = ended_key(world);
            let now = world.now;
            let state = |world: &World| {
                let broker = &world.shards[shard];
                let used = world.shared.budget().used();
                (broker.statistics(), broker.timers(), broker.poll_timeout(), used)
            };
            let before = state(world);
            call(&mut world.shards[shard], now, key);
            assert_eq!(state(world), before, "{name}");
            let broker = &mut world.shards[shard];
            assert!(!broker.has_dirty() && broker.poll_output().is_none(), "{name}");
            // The connection that has the slot now, and the session of the one that had it, are as they were.
            world.publish(next, message("t", AtLeastOnce, "text"));
            assert!(world.is_open(next), "{name}");
            let first = world.join(kept("first"));
            assert_eq!(world.texts(first), ["text"], "{name}");
        });
    }
}

#[test]
fn connection_is_asked_to_close_once() {
    each(|world| {
        let at = world.join(v5("c"));
        let (shard, key) = world.key_of(at);
        let client_id = world.placed("c");
        let (now, broker) = (world.now, &mut world.shards[shard]);
        assert!(broker.kick(&client_id));
        broker.end(key, ReasonCode::QUOTA_EXCEEDED, "no memory");
        assert!(broker.kick(&client_id));
        broker.shut_down();
        // Nothing more is read, and the first reason stands.
        let late = publish_bytes(message("t", AtMostOnce, "late"), &[]);
        let received = broker.received();
        assert_eq!(broker.receive(now, key, &late), late.len());
        assert_eq!(broker.received(), received);
        let why = broker.why_ended(key).map(|ended| ended.reason);
        assert_eq!(why, Some(ReasonCode::ADMINISTRATIVE_ACTION));
        let asked: Vec<Output> = std::iter::from_fn(|| broker.poll_output()).collect();
        assert!(matches!(asked[..], [Output::Close(asked)] if asked == key), "{asked:?}");
        // It is the caller that closes, once what is left has been written.
        assert!(!broker.is_flushed(key));
        world.pump();
        assert!(world.is_open(at) && world.shards[shard].is_flushed(key));
        world.cut(at);
        assert_eq!(world.end_reason(at), Some(ReasonCode::ADMINISTRATIVE_ACTION));
    });
}

#[test]
fn output_may_name_a_key_that_has_ended() {
    each(|world| {
        let at = world.join(v5("c"));
        let (shard, key) = world.key_of(at);
        let broker = &mut world.shards[shard];
        broker.end(key, ReasonCode::QUOTA_EXCEEDED, "no memory");
        // The peer's end is seen before the output is taken.
        broker.closed(world.now, key);
        assert!(broker.poll_dirty().is_none(), "nothing can be sent");
        assert!(matches!(broker.poll_output(), Some(Output::Close(asked)) if asked == key));
        assert!(broker.poll_output().is_none());
    });
}

#[test]
fn early_timeout_changes_nothing() {
    each(|world| {
        let silent = world.join(Connect { keep_alive: 10, ..kept("silent") });
        world.subscribe(silent, "t", AtLeastOnce);
        let away = world.join(kept("away"));
        world.cut(away);
        let due: Vec<_> = world.shards.iter().map(Broker::poll_timeout).collect();
        let first =
            due.iter().flatten().min().copied().expect("a silence and the end of a session");
        let just_before = Instant::from_nanos(first.as_nanos() - 1);
        for now in [world.now, just_before, just_before] {
            for (broker, due) in world.shards.iter_mut().zip(&due) {
                let before = broker.statistics();
                broker.handle_timeout(now);
                assert_eq!((broker.statistics(), broker.poll_timeout()), (before, *due));
                assert!(broker.poll_output().is_none() && !broker.has_dirty());
            }
        }
        world.advance(seconds(20));
        assert_eq!(world.end_reason(silent), Some(ReasonCode::KEEP_ALIVE_TIMEOUT));
    });
}
