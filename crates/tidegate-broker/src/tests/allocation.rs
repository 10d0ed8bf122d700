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

#[test]
fn a_subscription_takes_little_more_than_its_filter() {
    const SESSIONS: usize = 2_000;
    const EACH: usize = 100;
    let mut world = World::new(settings(), 1);
    let mut filter_bytes = 0;
    let packets: Vec<(ConnectionKey, Vec<u8>)> = (0..SESSIONS)
        .map(|session| {
            let at = world.join(v5(&format!("s{session}")));
            let number = |each: usize| session * EACH + each;
            let text = |n: usize| format!("site{}/device{n:06}/temperature", n % 100);
            let filters = (0..EACH).map(|each| filter(&text(number(each)), AtLeastOnce)).collect();
            let packet = Subscribe {
                packet_id: id(1),
                subscription_id: None,
                user_properties: Vec::new(),
                filters,
            };
            filter_bytes += packet.filters.iter().map(|f| f.filter.len()).sum::<usize>();
            let mut bytes = Vec::new();
            Packet::Subscribe(packet).encode(Version::V5, &mut bytes).unwrap();
            (world.clients[at.0].key.unwrap(), bytes)
        })
        .collect();
    let (now, broker) = (world.now, &mut world.shards[0]);
    let counted = allocation_counter::measure(|| {
        for (key, bytes) in &packets {
            round(broker, now, *key, bytes);
        }
    });
    let count = SESSIONS * EACH;
    assert_eq!(world.shared.subscriptions(), count);
    let each = counted.bytes_current as f64 / count as f64;
    let allocations = counted.count_current as f64 / count as f64;
    let text = filter_bytes as f64 / count as f64;
    println!("{each:.1} B and {allocations:.2} allocations each, {text:.1} B of them the filter");
    assert!(each < text + 120.0, "{each} B");
}
