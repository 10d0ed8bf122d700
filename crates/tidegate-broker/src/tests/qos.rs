//! QoS 1 and 2 in both directions, and what is sent again (sections 4.3 and 4.4).

use super::*;

#[test]
fn every_pair_of_qos_gives_the_lower_one() {
    // MQTT-3.8.4-8: downgraded, never upgraded
    let all = [AtMostOnce, AtLeastOnce, ExactlyOnce];
    each(|world| {
        let p = world.join(v5("p"));
        let s = world.join(v4("s"));
        for granted in all {
            world.subscribe(s, "t", granted);
            for published in all {
                let packet_id = world.publish(p, message("t", published, "x"));
                let got = world.messages(s);
                assert_eq!(got.len(), 1);
                assert_eq!(got[0].qos, published.min(granted));
                assert_eq!((got[0].dup, got[0].retain), (false, false)); // MQTT-3.3.1-2, -9
                if let Some(packet_id) = packet_id {
                    assert_eq!(world.accepted(p, packet_id), ReasonCode::SUCCESS);
                }
                world.take(p);
            }
        }
    });
}

#[test]
fn a_publisher_is_answered_by_its_qos() {
    // MQTT-3.4.4, 3.3.4: none, PUBACK, PUBREC; 0x10 without a subscriber
    each(|world| {
        let p = world.join(v5("p"));
        world.acknowledges(p, false);
        world.publish(p, message("t", AtMostOnce, "x"));
        assert!(world.take(p).is_empty());
        let ack = |id, reason| Ack::new(id, reason);
        let nobody = ReasonCode::NO_MATCHING_SUBSCRIBERS;
        let one = world.publish(p, message("t", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.take(p), [Other(Packet::Puback(ack(one, nobody)))]);
        let two = world.publish(p, message("t", ExactlyOnce, "x")).unwrap();
        assert_eq!(world.take(p), [Other(Packet::Pubrec(ack(two, nobody)))]);
        world.pubrel(p, two);
        assert_eq!(world.take(p), [Other(Packet::Pubcomp(ack(two, ReasonCode::SUCCESS)))]);
        // MQTT 5, 3.7.2.1: not known
        world.pubrel(p, two);
        let unknown = ReasonCode::PACKET_IDENTIFIER_NOT_FOUND;
        assert_eq!(world.take(p), [Other(Packet::Pubcomp(ack(two, unknown)))]);
        // 3.1.1 answers every PUBREL alike
        let q = world.join(v4("q"));
        world.pubrel(q, id(9));
        assert_eq!(world.take(q), [Other(Packet::Pubcomp(ack(id(9), ReasonCode::SUCCESS)))]);
    });
}

#[test]
fn a_qos_2_message_that_comes_again_before_its_release_is_delivered_once() {
    // MQTT-4.3.3-10 (3.1.1: MQTT-4.3.3-2)
    for version in [Version::V4, Version::V5] {
        for size in [1, 100_000] {
            each(|world| {
                let s = world.join(v5("s"));
                world.subscribe(s, "t", ExactlyOnce);
                let connect = Connect { version, ..kept("p") };
                let p = world.mute(connect.clone());
                let payload = "x".repeat(size);
                let publish =
                    Publish { packet_id: Some(id(5)), ..message("t", ExactlyOnce, &payload) };
                let again = Publish { dup: true, ..publish };
                world.send(p, Packet::Publish(publish));
                world.send(p, Packet::Publish(again));
                assert_eq!(world.messages(s).len(), 1);
                // It is remembered with the session.
                world.cut(p);
                let p = world.mute(connect);
                world.send(p, Packet::Publish(again));
                assert_eq!(world.accepted(p, id(5)), ReasonCode::SUCCESS);
                assert!(world.messages(s).is_empty());
                world.pubrel(p, id(5));
                // The identifier names a new message now.
                world.send(p, Packet::Publish(publish));
                assert_eq!(world.messages(s).len(), 1);
            });
        }
    }
}

#[test]
fn a_qos_1_message_that_comes_again_is_delivered_again() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        let publish = Publish { packet_id: Some(id(5)), ..message("t", AtLeastOnce, "x") };
        world.send(p, Packet::Publish(publish));
        world.send(p, Packet::Publish(Publish { dup: true, ..publish }));
        let got = world.messages(s);
        assert_eq!(got.len(), 2);
        assert!(!got[1].dup); // MQTT-3.3.1-3: not propagated
    });
}

#[test]
fn unacknowledged_messages_are_sent_again_in_order_with_dup_and_their_identifier() {
    // MQTT-4.4.0-1, MQTT-3.3.1-1, MQTT-4.6.0-1
    for version in [Version::V4, Version::V5] {
        let connect = Connect { version, ..kept("s") };
        each(|world| {
            let s = world.mute(connect.clone());
            world.subscribe(s, "t", ExactlyOnce);
            let p = world.join(v5("p"));
            let large = "large".repeat(10_000);
            let sent: [(QoS, &str); 5] = [
                (AtLeastOnce, "0"),
                (ExactlyOnce, "1"),
                (AtLeastOnce, "2"),
                (ExactlyOnce, &large),
                (AtMostOnce, "lost"),
            ];
            for (qos, text) in sent {
                world.publish(p, message("t", qos, text));
            }
            let first = world.messages(s);
            assert_eq!(first.len(), 5);
            world.puback(s, first[0].id.unwrap());
            for _ in 0..2 {
                world.cut(s);
                let s = world.mute(connect.clone());
                let again = world.messages(s);
                let expected: Vec<Delivery> = first[1..4]
                    .iter()
                    .map(|delivery| Delivery { dup: true, ..delivery.clone() })
                    .collect();
                assert_eq!(again, expected);
            }
        });
    }
}

#[test]
fn a_release_is_sent_again_instead_of_its_message() {
    // MQTT-4.4.0-1, MQTT-4.3.3-7
    each(|world| {
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        let p = world.join(v5("p"));
        for text in ["0", "1", "2"] {
            world.publish(p, message("t", ExactlyOnce, text));
        }
        let ids: Vec<PacketId> = world.messages(s).iter().map(|d| d.id.unwrap()).collect();
        world.pubrec(s, ids[0]);
        world.pubrec(s, ids[1]);
        let pubrel = |id| Other(Packet::Pubrel(Ack::new(id, ReasonCode::SUCCESS)));
        assert_eq!(world.take(s), [pubrel(ids[0]), pubrel(ids[1])]);
        world.pubrec(s, ids[1]); // twice: answered again
        assert_eq!(world.take(s), [pubrel(ids[1])]);
        world.pubcomp(s, ids[0]);
        world.cut(s);
        let s = world.mute(kept("s"));
        let got = world.take(s);
        assert_eq!(got[0], pubrel(ids[1]));
        let Published(last) = &got[1] else { panic!("no message") };
        assert_eq!((last.text(), last.dup, last.id), ("2".into(), true, Some(ids[2])));
        assert_eq!(got.len(), 2);
        world.pubcomp(s, ids[1]);
        world.pubrec(s, ids[2]);
        world.pubcomp(s, ids[2]);
        world.cut(s);
        let s = world.join(kept("s"));
        assert!(world.take(s).is_empty());
    });
}

#[test]
fn a_pubrec_for_nothing_is_answered_with_not_found() {
    // 3.6.2.1
    each(|world| {
        let s = world.mute(v5("s"));
        world.pubrec(s, id(77));
        let not_found = Ack::new(id(77), ReasonCode::PACKET_IDENTIFIER_NOT_FOUND);
        assert_eq!(world.take(s), [Other(Packet::Pubrel(not_found))]);
        // Neither of these needs an answer.
        world.puback(s, id(78));
        world.pubcomp(s, id(78));
        assert!(world.take(s).is_empty() && world.is_open(s));
    });
}

#[test]
fn a_pubrec_with_an_error_ends_the_exchange() {
    // MQTT-4.4.0-2, section 4.9; MQTT-4.3.3-4: no PUBREL
    each(|world| {
        let mut connect = kept("s");
        connect.properties.receive_maximum = NonZeroU16::new(1);
        let s = world.mute(connect);
        world.subscribe(s, "t", ExactlyOnce);
        let p = world.join(v5("p"));
        for text in ["0", "1", "2"] {
            world.publish(p, message("t", ExactlyOnce, text));
        }
        for expected in ["0", "1", "2"] {
            let got = world.messages(s);
            assert_eq!(got.len(), 1);
            assert_eq!(got[0].text(), expected);
            let refused = Ack::new(got[0].id.unwrap(), ReasonCode::QUOTA_EXCEEDED);
            world.send(s, Packet::Pubrec(refused));
        }
        assert!(world.take(s).is_empty());
        world.cut(s);
        let s = world.join(kept("s"));
        assert!(world.take(s).is_empty());
    });
}

#[test]
fn a_puback_with_an_error_ends_the_exchange() {
    each(|world| {
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtLeastOnce, "x"));
        let id = world.messages(s)[0].id.unwrap();
        world.send(s, Packet::Puback(Ack::new(id, ReasonCode::UNSPECIFIED_ERROR)));
        world.cut(s);
        let s = world.join(kept("s"));
        assert!(world.take(s).is_empty());
    });
}

#[test]
fn begun_messages_that_never_left_are_sent_to_the_next_connection() {
    each(|world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.room(s, 0);
        let p = world.join(v5("p"));
        let texts: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        for text in &texts {
            world.publish(p, message("t", AtLeastOnce, text));
        }
        world.cut(s);
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s), texts);
    });
}

#[test]
fn a_message_larger_than_the_next_connection_takes_is_not_sent_again() {
    // MQTT-3.1.2-24, MQTT-3.1.2-25: as if it had been completed
    each(|world| {
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtLeastOnce, &"x".repeat(200)));
        world.publish(p, message("t", ExactlyOnce, "small"));
        world.cut(s);
        let mut connect = kept("s");
        connect.properties.maximum_packet_size = Some(100);
        let s = world.join(connect);
        assert_eq!(world.texts(s), ["small"]);
        world.cut(s);
        let s = world.join(kept("s"));
        assert!(world.texts(s).is_empty());
    });
}

#[test]
fn resending_keeps_to_the_new_receive_maximum() {
    each(|world| {
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        let texts: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        for text in &texts {
            world.publish(p, message("t", AtLeastOnce, text));
        }
        let ids: Vec<PacketId> = world.messages(s).iter().map(|d| d.id.unwrap()).collect();
        world.cut(s);
        let mut connect = kept("s");
        connect.properties.receive_maximum = NonZeroU16::new(2);
        let s = world.mute(connect);
        world.publish(p, message("t", AtLeastOnce, "new"));
        // One that was not sent again yet is acknowledged: that frees no place.
        world.puback(s, ids[9]);
        let mut seen = Vec::new();
        loop {
            let got = world.messages(s);
            if got.is_empty() {
                break;
            }
            assert!(got.len() <= 2);
            for delivery in got {
                seen.push(delivery.text());
                world.puback(s, delivery.id.unwrap());
            }
        }
        assert_eq!(seen[..9], texts[..9]);
        assert_eq!(seen[9..], ["new"]);
    });
}
