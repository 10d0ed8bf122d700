use super::super::wifi::{
    BLOCK_ACK, CTS, DIFS, MPDU_BYTES, PREAMBLE, RTS, SIFS, SLOT, WINDOW_MAX, WINDOW_MIN,
};
use super::{super::*, at, deliveries, saturate, scenario, send};
use std::time::Duration;

const SEED: u64 = 5;

/// A wired edge (port 0) and `count` stations (ports from 1), at 150 Mbit/s.
fn cell(count: usize, more: &str) -> Scenario {
    let mut text = format!(
        "[[medium]]\nname = \"wifi0\"\nkind = \"wifi\"\nrate = \"150Mbit\"\nqueue = \"4MiB\"\n{more}\n\
         [[medium.port]]\nnode = \"edge\"\nwired = true\n"
    );
    for station in 1..=count {
        text += &format!("[[medium.port]]\nnode = \"cam{station}\"\n");
    }
    scenario(&text)
}

fn uplinks(count: usize) -> Vec<(usize, usize)> {
    (1..=count).map(|station| (station, 0)).collect()
}

/// Time on air of one packet of 1500 bytes at 150 Mbit/s, without what surrounds it.
fn payload_time() -> Duration {
    Rate::mbit(150).time_of(1500 + MPDU_BYTES).unwrap()
}

#[test]
fn an_idle_channel_is_taken_at_once() {
    let mut medium = Medium::new(&cell(1, "delay = \"1ms\""), SEED);
    let _ = send(&mut medium, at(7.0), 1, 0, 0);
    let exchange = RTS + SIFS + CTS + SIFS + PREAMBLE + payload_time() + SIFS + BLOCK_ACK;
    let expected = at(8.0) + exchange;
    assert_eq!(deliveries(&mut medium, at(100.0)), [(0, 0, expected.as_nanos() as f64 / 1e6)]);
}

/// Saturation throughput in packets per second after G. Bianchi, "Performance analysis of the IEEE
/// 802.11 distributed coordination function", JSAC 18(3), 2000, equations 7, 9 and 13, for stations
/// that always have a packet of 1500 bytes, with our times of success and collision.
fn bianchi(stations: u32, rts: bool) -> f64 {
    let w = f64::from(WINDOW_MIN + 1);
    let m = (f64::from(WINDOW_MAX + 1) / w).log2();
    let n = f64::from(stations);
    let tau_of = |p: f64| {
        let doublings: f64 = (0..m as i32).map(|stage| (2.0 * p).powi(stage)).sum();
        2.0 / (1.0 + w + p * w * doublings)
    };
    // tau(p) falls in p and p(tau) rises in tau: their crossing is found by halving.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..100 {
        let tau = (low + high) / 2.0;
        let p: f64 = 1.0 - (1.0_f64 - tau).powf(n - 1.0);
        if tau_of(p) > tau { low = tau } else { high = tau }
    }
    let tau = (low + high) / 2.0;
    let any = 1.0 - (1.0 - tau).powf(n);
    let success = n * tau * (1.0 - tau).powf(n - 1.0);
    let data = PREAMBLE + payload_time() + SIFS + BLOCK_ACK;
    let (good, bad) =
        if rts { (RTS + SIFS + CTS + SIFS + data, RTS + SIFS + CTS) } else { (data, data) };
    let slot = (1.0 - any) * SLOT.as_secs_f64()
        + success * (good + DIFS).as_secs_f64()
        + (any - success) * (bad + DIFS).as_secs_f64();
    success / slot
}

#[test]
fn saturation_throughput_agrees_with_bianchi_within_three_percent() {
    for rts in [true, false] {
        for stations in [1, 2, 3, 5, 10, 20, 40] {
            let scenario = cell(stations, &format!("aggregate = 1\nrts = {rts}"));
            let mut medium = Medium::new(&scenario, SEED);
            let seconds = 10;
            let arrived =
                saturate(&mut medium, &uplinks(stations), Duration::from_secs(seconds))[0];
            let measured = arrived as f64 / seconds as f64;
            let expected = bianchi(stations as u32, rts);
            let off = measured / expected - 1.0;
            println!(
                "{stations} stations, rts {rts}: {measured:.0}/s, formula {expected:.0}/s, {off:+.3}"
            );
            assert!(off.abs() < 0.03, "{stations} stations, rts {rts}: {off:+.3}, seed {SEED}");
        }
    }
}

#[test]
fn mpdus_are_sent_again_until_received() {
    let scenario = cell(1, "error = \"30%\"\nretries = 100");
    let mut medium = Medium::new(&scenario, SEED);
    for number in 0..2000 {
        assert_eq!(send(&mut medium, at(0.0), 1, 0, number), Ingress::Admitted);
    }
    let arrived = deliveries(&mut medium, at(10_000.0));
    assert!(arrived.iter().map(|a| a.1).eq(0..2000), "all, in order, seed {SEED}");
    let retries = medium.stats()[0].counters.retries as f64 / 2000.0;
    assert!((retries - 0.3 / 0.7).abs() < 0.08, "{retries}, seed {SEED}");
}

#[test]
fn mpdus_are_given_up_after_their_retries() {
    let scenario = cell(1, "error = \"50%\"\nretries = 1");
    let mut medium = Medium::new(&scenario, SEED);
    for number in 0..2000 {
        let _ = send(&mut medium, at(0.0), 1, 0, number);
    }
    let arrived = deliveries(&mut medium, at(10_000.0));
    assert!(arrived.is_sorted_by_key(|a| a.1), "in order");
    // Four standard deviations of a binomial with n = 2000 and p = 1/4 are 77.
    assert!((arrived.len() as f64 - 1500.0).abs() < 77.0, "{}, seed {SEED}", arrived.len());
    let counters = medium.stats()[0].counters;
    assert_eq!(counters.dropped_retry + counters.out_packets, 2000);
    assert_eq!(medium.stats()[0].queued_bytes, 0);
}

#[test]
fn the_nth_packet_needs_the_same_tries_whoever_else_sends() {
    // A packet is given up or not by its own draws, not by the order of events on the channel.
    let scenario = cell(5, "error = \"60%\"\nretries = 0");
    let survivors = |others: bool| {
        let mut medium = Medium::new(&scenario, SEED);
        for number in 0..500 {
            let _ = send(&mut medium, at(0.0), 1, 0, number);
            for other in 2..=5 {
                if others {
                    let _ = send(&mut medium, at(0.0), other, 0, 10_000);
                }
            }
        }
        let arrived = deliveries(&mut medium, at(10_000.0));
        arrived.iter().map(|a| a.1).filter(|number| *number < 500).collect::<Vec<_>>()
    };
    assert_eq!(survivors(false), survivors(true));
}

#[test]
fn saturated_stations_share_alike() {
    let mut medium = Medium::new(&cell(5, "aggregate = 4"), SEED);
    saturate(&mut medium, &uplinks(5), Duration::from_secs(20));
    let out: Vec<f64> =
        medium.stats()[..5].iter().map(|stats| stats.counters.out_packets as f64).collect();
    let mean = out.iter().sum::<f64>() / 5.0;
    assert!(out.iter().all(|share| (share / mean - 1.0).abs() < 0.05), "{out:?}, seed {SEED}");
}

#[test]
fn one_slow_station_slows_all() {
    let scenario = cell(3, "aggregate = 1");
    let fast = saturate(&mut Medium::new(&scenario, SEED), &uplinks(3), Duration::from_secs(5));
    let mut medium = Medium::new(&scenario, SEED);
    medium.apply(at(0.0), &"wifi0 port=cam3 factor=0.1".parse().unwrap()).unwrap();
    saturate(&mut medium, &uplinks(3), Duration::from_secs(5));
    let cam1 = medium.stats()[0].counters.out_packets as f64;
    assert!(cam1 < fast[0] as f64 / 3.0 * 0.7, "the airtime of a slow station is lost to all");
}

#[test]
fn a_flooded_station_does_not_delay_anothers_downlink() {
    let mut medium = Medium::new(&cell(2, ""), SEED);
    for number in 0..1000 {
        let _ = send(&mut medium, at(0.0), 0, 1, number);
    }
    let _ = send(&mut medium, at(1.0), 0, 2, 5000);
    let arrived = deliveries(&mut medium, at(10_000.0));
    assert_eq!(arrived.len(), 1001);
    let small = arrived.iter().find(|a| a.0 == 2).unwrap();
    // The aggregate on air and the one after the AP's turn: 32 packets of 82 us each.
    assert!(small.2 < 1.0 + 2.0 * 3.2, "{small:?}, seed {SEED}");
}

#[test]
fn between_stations_packets_cross_the_air_twice() {
    let mut medium = Medium::new(&cell(2, ""), SEED);
    let _ = send(&mut medium, at(0.0), 1, 2, 0);
    assert_eq!(deliveries(&mut medium, at(100.0)).len(), 1);
    let busy: Vec<(String, u64)> =
        medium.stats().iter().map(|s| (s.from.clone(), s.counters.out_packets)).collect();
    let expected = [("cam1", 1), ("cam2", 0), ("ap", 0), ("ap", 1)];
    assert_eq!(busy, expected.map(|(from, out)| (from.to_owned(), out)));
}

#[test]
fn a_station_out_of_range_stops_nobody_and_comes_back() {
    let mut medium = Medium::new(&cell(2, ""), SEED);
    medium.apply(at(0.0), &"wifi0 port=cam1 factor=0".parse().unwrap()).unwrap();
    for number in 0..100 {
        let _ = send(&mut medium, at(0.0), 1, 0, number);
        let _ = send(&mut medium, at(0.0), 2, 0, 1000 + number);
        let _ = send(&mut medium, at(0.0), 0, 1, 2000 + number);
    }
    let arrived = deliveries(&mut medium, at(5000.0));
    assert!(arrived.iter().map(|a| a.1).eq(1000..1100), "only the station in range");
    medium.apply(at(5000.0), &"wifi0 port=cam1 factor=1".parse().unwrap()).unwrap();
    let arrived = deliveries(&mut medium, at(10_000.0));
    assert_eq!(arrived.len(), 200);
    assert!(arrived.iter().all(|a| a.2 > 5000.0 && a.2 < 5100.0));
}

#[test]
fn a_crowd_lowers_the_rate() {
    let through = |stations: usize, crowd: &str| {
        let mut medium = Medium::new(&cell(stations, crowd), SEED);
        saturate(&mut medium, &uplinks(stations), Duration::from_secs(5))[0] as f64
    };
    let crowd = "crowd = [1.0, 1.0, 0.5]";
    assert_eq!(through(2, crowd), through(2, ""));
    let ratio = through(3, crowd) / through(3, "");
    assert!((0.5..0.6).contains(&ratio), "{ratio}: the payload takes twice as long");
}

#[test]
fn equal_seeds_replay_equally() {
    let run = |seed| {
        let mut medium = Medium::new(&cell(4, "error = \"10%\""), seed);
        for number in 0..400 {
            let now = at(number as f64 * 0.05);
            let _ = send(&mut medium, now, 1 + number as usize % 4, 0, number);
        }
        deliveries(&mut medium, at(10_000.0))
    };
    assert_eq!(run(SEED), run(SEED));
    assert_ne!(run(SEED), run(SEED + 1));
}

#[test]
fn wired_ports_speak_past_the_air_and_cannot_fade() {
    let text = "[[medium]]\nname = \"wifi0\"\nkind = \"wifi\"\nrate = \"1Mbit\"\ndelay = \"2ms\"\n\
         port = [ { node = \"edge\", wired = true }, { node = \"app\", wired = true }, \
         { node = \"cam1\" } ]\n";
    let mut medium = Medium::new(&scenario(text), SEED);
    let _ = send(&mut medium, at(0.0), 0, 1, 0);
    assert_eq!(deliveries(&mut medium, at(100.0)), [(1, 0, 2.0)]);
    let error = medium.apply(at(100.0), &"wifi0 port=edge factor=0.1".parse().unwrap());
    assert!(matches!(error, Err(ChangeError::Port { .. })), "{error:?}");
}
