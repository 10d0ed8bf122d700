//! Properties that are forwarded with a message, and its expiry (section 3.3.2.3).

use super::*;

#[test]
fn properties_are_forwarded_unaltered_and_in_order() {
    // MQTT-3.3.2-4, -15, -16, -17, -18, -20
    let mut raw = vec![0x26, 0, 1, b'b', 0, 1, b'2']; // a user property
    raw.extend([3, 0, 1, b'c']); // content type
    raw.extend([0x26, 0, 1, b'a', 0, 1, b'1']);
    raw.extend([8, 0, 1, b'r']); // response topic
    raw.extend([9, 0, 2, 0, 0xff]); // correlation data
    raw.extend([1, 1]); // payload format
    raw.extend([0x26, 0, 1, b'b', 0, 1, b'0']);
    for size in [1, 20_000, 100_000] {
        for (before, after) in [(false, false), (true, false), (false, true)] {
            each(|world| {
                // In addition to those that are the server's: alias and expiry.
                let alias = [0x23, 0, 1];
                let expiry = [2, 0, 0, 0, 9];
                let mut all = Vec::new();
                all.extend(if before { &alias[..] } else { &[] });
                all.extend(&raw);
                all.extend(if after { &expiry[..] } else { &[] });
                let s = world.join(v5("s"));
                let kept_one = world.join(kept("k"));
                let old = world.join(v4("old"));
                for at in [s, kept_one, old] {
                    world.subscribe(at, "t", AtLeastOnce);
                }
                world.cut(kept_one);
                let p = world.join(v5("p"));
                let payload = "x".repeat(size);
                let publish =
                    Publish { packet_id: Some(id(1)), ..retained("t", AtLeastOnce, &payload) };
                world.raw(p, &publish_bytes(publish, &all));
                let late = world.join(v5("late"));
                world.subscribe(late, "t", AtLeastOnce);
                let kept_one = world.join(kept("k"));
                for at in [s, kept_one, late] {
                    let got = world.messages(at);
                    assert_eq!(got.len(), 1);
                    assert_eq!(got[0].forwarded, raw);
                    assert_eq!(got[0].expiry, after.then_some(9));
                    assert_eq!(got[0].text(), payload);
                }
                assert_eq!(world.texts(old), [payload]);
            });
        }
    }
}

fn expiring(text: &str, seconds: u8) -> Vec<u8> {
    let publish = Publish { packet_id: Some(id(50_000)), ..message("t", AtLeastOnce, text) };
    publish_bytes(publish, &[2, 0, 0, 0, seconds])
}

#[test]
fn a_message_expires_while_it_waits_and_is_sent_with_what_is_left() {
    // MQTT-3.3.2-5, MQTT-3.3.2-6
    for (wait, expected) in [(0, Some(10)), (4_000, Some(6)), (9_999, Some(1)), (10_000, None)] {
        each(|world| {
            let s = world.join(kept("s"));
            world.subscribe(s, "t", AtLeastOnce);
            world.cut(s);
            let p = world.join(v5("p"));
            world.raw(p, &expiring("x", 10));
            world.publish(p, message("t", AtLeastOnce, "lasting"));
            world.advance(Duration::from_millis(wait));
            let s = world.join(kept("s"));
            let got = world.messages(s);
            assert_eq!(got.len(), 1 + usize::from(expected.is_some()));
            if expected.is_some() {
                assert_eq!(got[0].expiry, expected);
            }
            assert_eq!(got[got.len() - 1].expiry, None);
        });
    }
}

#[test]
fn begun_messages_are_sent_again_though_they_expired() {
    // MQTT-3.3.2-5 excepts messages whose delivery has begun.
    each(|world| {
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        world.raw(p, &expiring("x", 10));
        world.cut(s);
        world.advance(seconds(20));
        let s = world.join(kept("s"));
        assert_eq!(world.messages(s)[0].expiry, Some(0));
    });
}
