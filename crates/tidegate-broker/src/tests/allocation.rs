//! After warm-up, delivering a small message allocates nothing.

use super::*;

/// One message in, and all that leaves, as a shell moves it.
fn round(broker: &mut Broker, now: Instant, publisher: ConnectionKey, bytes: &[u8]) -> usize {
    assert_eq!(broker.receive(now, publisher, bytes), bytes.len());
    let mut written = 0;
    while let Some(key) = broker.poll_dirty() {
        loop {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = broker.transmit(now, key, &mut slices);
            if count == 0 {
                break;
            }
            let bytes = slices[..count].iter().map(|slice| slice.len()).sum();
            broker.transmitted(now, key, bytes, false);
            written += bytes;
        }
    }
    written
}

#[test]
fn fan_out_of_a_small_message_allocates_nothing_after_warm_up() {
    for version in [Version::V4, Version::V5] {
        let mut world = World::new(settings(), 1);
        for number in 0..100 {
            let at = world.join(Connect { version, ..v5(&format!("s{number}")) });
            world.subscribe(at, "a/+", AtMostOnce);
        }
        let p = world.join(Connect { version, ..v5("p") });
        let key = world.clients[p.0].key.unwrap();
        let mut bytes = Vec::new();
        Packet::Publish(message("a/b", AtMostOnce, "a small payload"))
            .encode(version, &mut bytes)
            .unwrap();
        let (now, broker) = (world.now, &mut world.shards[0]);
        for _ in 0..10 {
            round(broker, now, key, &bytes);
        }
        let mut written = 0;
        let counted = allocation_counter::measure(|| written = round(broker, now, key, &bytes));
        assert_eq!(written, 100 * bytes.len());
        assert_eq!(counted.count_total, 0, "{version:?}");
    }
}
