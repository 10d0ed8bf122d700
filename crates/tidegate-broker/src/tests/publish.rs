//! Payloads of all sizes, cut anywhere, and operators before routing.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::{Admission, Batch, Draft, Overflow, Verdict};

#[test]
fn payloads_arrive_byte_for_byte_wherever_their_packets_are_cut() {
    let seed = 7;
    each(|world| {
        let s = world.join(v5("s"));
        let old = world.join(v4("old"));
        for at in [s, old] {
            world.subscribe(at, "#", ExactlyOnce);
        }
        for connect in [v5("p"), v4("q")] {
            let version = connect.version;
            let p = world.join(connect);
            let mut random = StdRng::seed_from_u64(seed);
            for size in [0, 1, 127, 4_096, 4_097, 10_001, 65_536, 300_000, 1_000_000] {
                for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
                    let payload: Vec<u8> = (0..size).map(|_| random.random()).collect();
                    let packet_id = (qos > AtMostOnce).then(|| world.fresh_id(p));
                    let publish =
                        Publish { packet_id, payload: &payload, ..message("some/topic", qos, "") };
                    let mut bytes = Vec::new();
                    Packet::Publish(publish).encode(version, &mut bytes).unwrap();
                    let mut rest = &bytes[..];
                    while !rest.is_empty() {
                        let most = if rest.len() > 1_000 && bytes.len() - rest.len() > 100 {
                            60_000
                        } else {
                            20
                        };
                        let (part, after) =
                            rest.split_at(random.random_range(1..=most).min(rest.len()));
                        world.raw(p, part);
                        rest = after;
                    }
                    for at in [s, old] {
                        let got = world.messages(at);
                        assert_eq!(got.len(), 1);
                        assert!(got[0].payload == payload && got[0].qos == qos);
                    }
                }
            }
        }
    });
}

#[test]
fn a_connection_that_breaks_within_a_message_publishes_nothing() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        for size in [10, 100_000] {
            let p = world.join(kept("p"));
            let bytes = publish_bytes(message("t", AtMostOnce, &"x".repeat(size)), &[]);
            world.raw(p, &bytes[..bytes.len() - 1]);
            world.cut(p);
            assert!(world.messages(s).is_empty());
            assert_eq!(world.shared.budget().used(), 0);
        }
    });
}

#[test]
fn a_client_that_never_reads_can_go_on_publishing() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "t", AtMostOnce);
        let p = world.join(v5("p"));
        world.room(p, 0);
        for _ in 0..1000 {
            world.publish(p, message("t", AtLeastOnce, "x"));
        }
        assert_eq!(world.messages(s).len(), 1000);
        world.room(p, usize::MAX);
        assert_eq!(world.take(p).len(), 1000);
    });
}

/// Drops "drop", replaces "replace", emits a copy of "emit" to `copies`, and buries what begins with "bury": drops it, with a dead
/// letter for each `!` behind it, and one more.
#[derive(Debug)]
struct Operator;

impl Admission for Operator {
    fn admit(&mut self, _: Instant, identity: &Identity, batch: &mut Batch) {
        assert!(!identity.client.is_empty());
        for (index, draft) in batch.drafts.iter_mut().enumerate() {
            match &*draft.payload.to_contiguous() {
                text if text.starts_with(b"bury") => {
                    let count = 1 + text.iter().filter(|byte| **byte == b'!').count();
                    let letter = Draft { topic: "dead".into(), hops: 1, ..draft.clone() };
                    batch.letters.extend(std::iter::repeat_n((index, letter), count));
                    draft.verdict = Verdict::Drop;
                }
                b"drop" => draft.verdict = Verdict::Drop,
                b"replace" => {
                    draft.payload = b"replaced".to_vec().into();
                    draft.topic = "elsewhere".into();
                }
                b"emit" => {
                    for hops in [0, 1, 8, 9] {
                        let copy = Draft { topic: "copies".into(), hops, ..draft.clone() };
                        batch.emitted.push(copy);
                    }
                }
                _ => {}
            }
        }
    }
}

pub(super) fn with_operator(test: impl Fn(&mut World)) {
    each(|world| {
        operate(world);
        test(world);
    });
}

pub(super) fn operate(world: &mut World) {
    for shard in &mut world.shards {
        shard.set_admission(Some(Box::new(Operator)));
    }
}

#[test]
fn operators_drop_replace_and_emit_and_every_message_is_answered() {
    with_operator(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let p = world.join(v5("p"));
        world.acknowledges(p, false);
        let mut bytes = Vec::new();
        for (number, text) in (1..).zip(["a", "drop", "replace", "emit", "b"]) {
            let publish =
                Publish { packet_id: Some(id(number)), ..message("t", AtLeastOnce, text) };
            bytes.extend(publish_bytes(publish, &[]));
        }
        world.raw(p, &bytes);
        let got: Vec<_> =
            world.messages(s).iter().map(|d| format!("{} {}", d.topic, d.text())).collect();
        let expected = ["t a", "elsewhere replaced", "t emit", "t b", "copies emit", "copies emit"];
        assert_eq!(got, expected);
        let ids: Vec<u16> = world
            .take(p)
            .iter()
            .map(|got| match got {
                Other(Packet::Puback(ack)) => ack.packet_id.get(),
                got => panic!("{got:?}"),
            })
            .collect();
        assert_eq!(ids, [1, 2, 3, 4, 5]); // MQTT-4.6.0-2
        let exceeded: u64 = world.shards.iter().map(|s| s.statistics().hops_exceeded).sum();
        assert_eq!(exceeded, 2);
    });
}

#[test]
fn operators_see_large_messages_and_a_qos_2_message_once() {
    with_operator(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", ExactlyOnce);
        let p = world.join(v5("p"));
        world.acknowledges(p, false);
        let publish = Publish { packet_id: Some(id(1)), ..message("t", ExactlyOnce, "x") };
        let mut bytes = publish_bytes(publish, &[]);
        bytes.extend(publish_bytes(Publish { dup: true, ..publish }, &[])); // in the same batch
        world.raw(p, &bytes);
        assert_eq!(world.messages(s).len(), 1);
        assert_eq!(world.accepted(p, id(1)), ReasonCode::SUCCESS);
        let large = "x".repeat(200_000);
        world.publish(p, message("t", AtLeastOnce, &large));
        assert_eq!(world.texts(s), [large]);
    });
}

#[test]
fn messages_before_an_error_pass_the_operators_and_are_answered_before_the_goodbye() {
    with_operator(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        for end in [&[0x00u8, 0][..], &[0xe0, 0][..]] {
            let p = world.join(v5("p"));
            let publish = Publish { packet_id: Some(id(1)), ..message("t", AtLeastOnce, "x") };
            world.raw(p, &[&publish_bytes(publish, &[])[..], end].concat());
            assert!(!world.is_open(p));
            assert_eq!(world.messages(s).len(), 1);
            assert_eq!(world.accepted(p, id(1)), ReasonCode::SUCCESS);
        }
    });
}

#[test]
fn a_will_passes_the_operators_as_what_its_owner_publishes() {
    for (text, expected) in [
        ("a", &["w a"][..]),
        ("drop", &[]),
        ("replace", &["elsewhere replaced"]),
        ("emit", &["w emit", "copies emit", "copies emit"]),
        ("bury!", &["dead bury!", "dead bury!"]),
    ] {
        for delay in [0, 10] {
            with_operator(|world| {
                let s = world.join(v5("s"));
                world.subscribe(s, "#", AtLeastOnce);
                let will = Will { qos: AtLeastOnce, delay, ..will("w", text) };
                let p = world.join(Connect { will: Some(will), ..kept("p") });
                world.cut(p);
                world.advance(seconds(u64::from(delay)));
                let got: Vec<_> =
                    world.messages(s).iter().map(|d| format!("{} {}", d.topic, d.text())).collect();
                assert_eq!(got, expected, "after {delay} s");
            });
        }
    }
}

#[test]
fn dead_letters_come_in_the_place_of_their_message_and_before_its_answer() {
    with_operator(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let p = world.join(v5("p"));
        world.acknowledges(p, false);
        let mut bytes = Vec::new();
        for (number, text) in (1..).zip(["emit", "bury!", "b", "bury"]) {
            let publish =
                Publish { packet_id: Some(id(number)), ..message("t", AtLeastOnce, text) };
            bytes.extend(publish_bytes(publish, &[]));
        }
        world.raw(p, &bytes);
        let got: Vec<_> =
            world.messages(s).iter().map(|d| format!("{} {}", d.topic, d.text())).collect();
        let letters = ["t emit", "dead bury!", "dead bury!", "t b", "dead bury"];
        assert_eq!(got[..5], letters);
        assert_eq!(got[5..], ["copies emit"; 2]);
        for number in 1..=4 {
            assert_eq!(world.accepted(p, id(number)), ReasonCode::SUCCESS);
        }
    });
}

#[test]
fn a_message_whose_dead_letter_finds_no_room_is_refused_and_may_come_again() {
    for qos in [AtLeastOnce, ExactlyOnce] {
        with_operator(|world| {
            let limits = SessionConfig {
                queue_messages_max: 5,
                overflow: Overflow::Disconnect,
                overflow_qos0: Overflow::Disconnect,
                ..refusing()
            };
            let s = world.join_with(kept("s"), limits.clone());
            world.subscribe(s, "dead", ExactlyOnce);
            world.cut(s);
            let p = world.join(v5("p"));
            let mut taken = Vec::new();
            for number in 0..10 {
                let text = format!("bury {number}");
                let id = world.publish(p, message("t", qos, &text)).unwrap();
                match world.accepted(p, id) {
                    ReasonCode::SUCCESS => taken.push(text),
                    reason => assert_eq!(reason, ReasonCode::QUOTA_EXCEEDED),
                }
            }
            assert_eq!(taken.len(), 6);
            let refused: u64 = world.shards.iter().map(|s| s.statistics().refused).sum();
            assert_eq!(refused, 4);
            // Others of the same batch are answered for themselves, in order.
            world.acknowledges(p, false);
            world.take(p);
            let mut bytes = Vec::new();
            for (number, text) in (101..).zip(["a", "bury", "b"]) {
                let publish = Publish { packet_id: Some(id(number)), ..message("t", qos, text) };
                bytes.extend(publish_bytes(publish, &[]));
            }
            world.raw(p, &bytes);
            let answers: Vec<_> = world
                .take(p)
                .iter()
                .map(|got| match got {
                    Other(Packet::Puback(ack) | Packet::Pubrec(ack)) => {
                        (ack.packet_id.get(), ack.reason.is_failure())
                    }
                    got => panic!("{got:?}"),
                })
                .collect();
            assert_eq!(answers, [(101, false), (102, true), (103, false)]);
            let s = world.join_with(kept("s"), limits);
            assert_eq!(world.texts(s), taken);
            let again = Publish { packet_id: Some(id(102)), ..message("t", qos, "bury") };
            world.send(p, Packet::Publish(again));
            assert_eq!(world.accepted(p, id(102)), ReasonCode::SUCCESS);
            assert_eq!(world.texts(s), ["bury"]);
        });
    }
}

#[test]
fn before_mqtt_5_a_connection_ends_with_a_message_whose_dead_letter_is_refused() {
    with_operator(|world| {
        let limits =
            SessionConfig { queue_messages_max: 1, overflow: Overflow::Disconnect, ..refusing() };
        let s = world.join_with(kept("s"), limits);
        world.subscribe(s, "dead", AtLeastOnce);
        world.cut(s);
        let p = world.join(v4("p"));
        for _ in 0..4 {
            if world.is_open(p) {
                world.publish(p, message("t", AtLeastOnce, "bury"));
            }
        }
        assert!(!world.is_open(p));
        assert!(world.take(p).iter().all(|got| matches!(got, Other(Packet::Puback(_)))));
    });
}
