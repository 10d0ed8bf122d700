use super::{super::*, at, deliveries, saturate, scenario, send};
use std::time::Duration;

const SEED: u64 = 11;

/// Two ports, `a` and `b`, and a line that sends one packet of 1500 bytes in a millisecond.
fn line(more: &str) -> Scenario {
    scenario(&format!(
        "[[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"12Mbit\"\nqueue = \"4096MiB\"\n{more}\n\
         port = [ {{ node = \"a\" }}, {{ node = \"b\" }} ]\n"
    ))
}

/// Sends `count` packets from `a` to `b`, one each `gap`, and says what became of each.
fn stream(scenario: &Scenario, seed: u64, count: u64, gap: Duration) -> Vec<Ingress> {
    let mut medium = Medium::new(scenario, seed);
    let mut now = Instant::EPOCH;
    let fates = (0..count).map(|number| {
        let fate = send(&mut medium, now, 0, 1, number);
        while medium.poll_deliver(now).is_some() {}
        now = now + gap;
        fate
    });
    fates.collect()
}

#[test]
fn packets_leave_at_the_rate_and_arrive_after_the_delay() {
    let mut medium = Medium::new(&line("delay = \"5ms\""), SEED);
    for number in 0..100 {
        assert_eq!(send(&mut medium, at(0.0), 0, 1, number), Ingress::Admitted);
    }
    let expected: Vec<_> = (0..100).map(|n| (1, n, 6.0 + n as f64)).collect();
    assert_eq!(deliveries(&mut medium, at(1000.0)), expected);
    assert_eq!(medium.poll_timeout(), None, "nothing is left to happen");
}

#[test]
fn directions_are_independent() {
    let mut medium = Medium::new(&line(""), SEED);
    for number in 0..50 {
        let _ = send(&mut medium, at(0.0), 0, 1, number);
    }
    let _ = send(&mut medium, at(0.0), 1, 0, 99);
    assert_eq!(deliveries(&mut medium, at(1.0))[..], [(1, 0, 1.0), (0, 99, 1.0)]);
}

#[test]
fn a_full_queue_drops_what_comes_last() {
    let scenario = line("").media[0].clone();
    let scenario = Scenario {
        seed: 0,
        media: vec![MediumConfig { queue_bytes: 10 * 1500 + 1499, ..scenario }],
    };
    let mut medium = Medium::new(&scenario, SEED);
    for number in 0..20 {
        let expected =
            if number < 10 { Ingress::Admitted } else { Ingress::Dropped(DropCause::Queue) };
        assert_eq!(send(&mut medium, at(0.0), 0, 1, number), expected, "packet {number}");
    }
    // A packet that left makes room for one.
    assert_eq!(send(&mut medium, at(1.0), 0, 1, 20), Ingress::Admitted);
    assert_eq!(deliveries(&mut medium, at(1000.0)).len(), 11);
    let stats = &medium.stats()[0];
    assert_eq!((stats.counters.in_packets, stats.counters.dropped_queue), (21, 10));
    assert_eq!((stats.queued_packets, stats.queued_bytes), (0, 0));
    assert_eq!(stats.counters.busy, Duration::from_millis(11));
}

#[test]
fn losses_are_as_many_as_said() {
    for share in [0.001, 0.01, 0.05, 0.2, 1.0] {
        let count = 40_000;
        let scenario = line(&format!("loss = \"{}%\"", share * 100.0));
        let fates = stream(&scenario, SEED, count, Duration::from_millis(1));
        let lost = fates.iter().filter(|fate| **fate != Ingress::Admitted).count() as f64;
        let deviation = (count as f64 * share * (1.0 - share)).sqrt();
        let expected = count as f64 * share;
        assert!((lost - expected).abs() <= 4.0 * deviation, "{lost} of {expected}, seed {SEED}");
    }
}

#[test]
fn losses_come_in_bursts_of_the_length_said() {
    let scenario = line("loss = \"5%\"\nloss_burst = 4.0");
    let fates = stream(&scenario, SEED, 200_000, Duration::from_millis(1));
    let lost: Vec<bool> = fates.iter().map(|fate| *fate != Ingress::Admitted).collect();
    let losses = lost.iter().filter(|lost| **lost).count() as f64;
    let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
    assert!((losses / 200_000.0 - 0.05).abs() < 0.005, "{losses}, seed {SEED}");
    assert!((losses / bursts - 4.0).abs() < 0.3, "{losses} in {bursts}, seed {SEED}");
}

#[test]
fn the_nth_packet_meets_the_same_fate_whenever_it_comes() {
    let scenario = line("loss = \"20%\"\nloss_burst = 2.0\njitter = \"3ms\"");
    let slow = stream(&scenario, SEED, 2000, Duration::from_millis(7));
    let fast = stream(&scenario, SEED, 2000, Duration::from_micros(3));
    assert_eq!(slow, fast);
    assert_ne!(slow, stream(&scenario, SEED + 1, 2000, Duration::from_millis(7)));
}

#[test]
fn jitter_varies_the_delay_and_keeps_the_order() {
    let scenario = line("delay = \"20ms\"\njitter = \"5ms\"");
    let mut medium = Medium::new(&scenario, SEED);
    for number in 0..2000 {
        let _ = send(&mut medium, at(number as f64 * 2.0), 0, 1, number);
    }
    let arrived = deliveries(&mut medium, at(10_000.0));
    assert!(arrived.iter().map(|a| a.1).eq(0..2000), "in order, seed {SEED}");
    let delays: Vec<f64> = arrived.iter().map(|a| a.2 - a.1 as f64 * 2.0 - 1.0).collect();
    assert!(delays.iter().all(|delay| (15.0..=25.0).contains(delay)), "seed {SEED}");
    assert!(delays.iter().any(|delay| *delay < 16.0) && delays.iter().any(|delay| *delay > 24.0));
}

#[test]
fn steps_change_the_rate_and_start_over() {
    let scenario = line(
        "loop = \"2s\"\nstep = [ { at = \"0s\", factor = 1.0 }, { at = \"1s\", factor = 0.1 } ]",
    );
    let mut medium = Medium::new(&scenario, SEED);
    let mut before = 0;
    let mut per_second = Vec::new();
    medium.start(Instant::EPOCH);
    for _ in 0..8000 {
        let _ = send(&mut medium, at(0.0), 0, 1, 0);
    }
    for second in 1..=6 {
        deliveries(&mut medium, at(f64::from(second) * 1000.0));
        let out = medium.stats()[0].counters.out_packets;
        per_second.push(out - before);
        before = out;
    }
    assert_eq!(per_second, [1000, 100, 1000, 100, 1000, 100]);
}

#[test]
fn a_change_of_rate_counts_what_was_sent_of_the_packet() {
    let mut medium = Medium::new(&line(""), SEED);
    let _ = send(&mut medium, at(0.0), 0, 1, 0);
    let change = |text: &str| text.parse::<Change>().unwrap();
    // Half at 12 Mbit/s, then a quarter at 1.2, nothing while cut, the rest at 12.
    medium.apply(at(0.5), &change("wan0 rate=1200kbit")).unwrap();
    medium.apply(at(3.0), &change("wan0 port=a factor=0")).unwrap();
    assert_eq!(medium.poll_timeout(), None, "a cut line does nothing by itself");
    medium.apply(at(90.0), &change("wan0 port=a factor=10")).unwrap();
    assert_eq!(deliveries(&mut medium, at(1000.0)), [(1, 0, 90.25)]);
}

#[test]
fn a_delivery_trace_sends_at_its_opportunities() {
    let mut scenario = line("");
    let trace = Trace::Opportunities(Opportunities::parse("2\n2\n10\n").unwrap());
    scenario.media[0].trace = Some(TraceConfig { port: Some(0), trace });
    let mut medium = Medium::new(&scenario, SEED);
    medium.start(at(0.0));
    // The opportunities at 2 ms find one packet: the second is gone.
    let _ = send(&mut medium, at(1.0), 0, 1, 0);
    assert_eq!(deliveries(&mut medium, at(3.0)), [(1, 0, 2.0)]);
    // Three packets of half the size share two opportunities; one of 2000 bytes needs two.
    for number in 1..=3 {
        let packet = PacketRef { len: 750, data: number };
        let _ = medium.ingress(at(5.0), PortId(0), PortId(1), packet);
    }
    let _ = medium.ingress(at(5.0), PortId(0), PortId(1), PacketRef { len: 2000, data: 4 });
    assert_eq!(
        deliveries(&mut medium, at(1000.0)),
        [(1, 1, 10.0), (1, 2, 10.0), (1, 3, 12.0), (1, 4, 12.0)],
    );
    let error = medium.apply(at(1000.0), &"wan0 port=a rate=1Mbit".parse().unwrap());
    assert!(matches!(error, Err(ChangeError::Inapplicable { key: "rate", .. })), "{error:?}");
}

#[test]
fn a_rate_trace_sets_the_rate_and_repeats() {
    let mut scenario = line("");
    let trace = Trace::Rates(Rates::parse("0 12\n1 6\n2 0\n").unwrap());
    scenario.media[0].trace = Some(TraceConfig { port: None, trace });
    let mut medium = Medium::new(&scenario, SEED);
    assert_eq!(saturate(&mut medium, &[(0, 1)], Duration::from_secs(4))[1], 3000);
}

#[test]
fn fades_follow_the_seed() {
    let scenario = line("fade = { levels = [1.0, 0.5], dwell = \"50ms\" }");
    let run =
        |seed| saturate(&mut Medium::new(&scenario, seed), &[(0, 1)], Duration::from_secs(60));
    let first = run(SEED);
    assert_eq!(first, run(SEED));
    assert_ne!(first, run(SEED + 1));
    let mean = first[1] as f64 / 60_000.0;
    assert!((mean - 0.75).abs() < 0.05, "{mean}, seed {SEED}");
}

#[test]
fn refused_changes_name_what_is_wrong() {
    let mut medium: Medium<u64> = Medium::new(&line(""), SEED);
    for (text, expected) in [
        ("wan9 rate=1Mbit", "no medium \"wan9\"; there are: wan0"),
        (
            "wan0 port=c loss=1%",
            "medium \"wan0\" has no port \"c\" that can change; there are: a b",
        ),
        ("wan0 error=1%", "medium \"wan0\" has no error (it is of kind wan)"),
    ] {
        let change: Change = text.parse().unwrap();
        let error = medium.apply(at(0.0), &change).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn packets_without_a_path_are_refused() {
    let text = "port = [ { node = \"a\" }, { node = \"b\" } ]\nkind = \"wan\"\nrate = \"1Mbit\"\n";
    let two = format!("[[medium]]\nname = \"x\"\n{text}[[medium]]\nname = \"y\"\n{text}");
    let mut medium = Medium::new(&scenario(&two), SEED);
    for (from, to) in [(0, 0), (0, 2), (0, 9), (9, 0)] {
        let expected = Ingress::Dropped(DropCause::NoPath);
        assert_eq!(send(&mut medium, at(0.0), from, to, 0), expected, "{from} to {to}");
    }
    assert_eq!(send(&mut medium, at(0.0), 3, 2, 0), Ingress::Admitted);
    assert_eq!(deliveries(&mut medium, at(1000.0)), [(2, 0, 12.0)]);
}
