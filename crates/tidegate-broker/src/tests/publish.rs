//! Payloads of all sizes, cut anywhere, and operators before routing.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::{Admission, Batch, Draft, Verdict};

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

/// Drops "drop", replaces "replace", and emits a copy of "emit" to `copies`.
#[derive(Debug)]
struct Operator;

impl Admission for Operator {
    fn admit(&mut self, _: Instant, identity: &Identity, batch: &mut Batch) {
        assert!(!identity.client.is_empty());
        for draft in &mut batch.drafts {
            match &*draft.payload.to_contiguous() {
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
fn what_came_before_an_error_passes_the_operators_and_is_answered_before_the_goodbye() {
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
