use super::{Contender::*, *};

const SEEDS: u64 = 10;

#[test]
fn figure_8_comes_out_as_published() {
    for reading in [Reading::TEXT, Reading::AUTHORS] {
        let figure = figure8(SEEDS, reading);
        for threshold in [0.5, 0.6, 0.7] {
            let mean = |contender| figure.mean_s(contender, 1, threshold).unwrap();
            let order = [Clairvoyant, ProbabilisticGood, Historic, Conservative, None];
            for pair in order.windows(2) {
                assert!(
                    mean(pair[0]) < mean(pair[1]),
                    "{pair:?} at {threshold}, {reading:?}\n{figure}"
                );
            }
            assert!(mean(ProbabilisticBad) > mean(Conservative), "{figure}");
            let saved = mean(None) - mean(Historic);
            assert!((3.2..3.9).contains(&saved), "historic saves {saved:.2} s\n{figure}");
        }
        let small = figure.mean_s(Conservative, 1, 0.3).unwrap();
        assert!(small > figure.mean_s(None, 1, 0.3).unwrap(), "too small a threshold_l costs");
    }
}

#[test]
fn figure_9_comes_out_as_published() {
    let figure = figure9(SEEDS, Reading::TEXT);
    let mean = |contender, period, threshold| figure.mean_s(contender, period, threshold).unwrap();
    for threshold in THRESHOLDS_S {
        for contender in [Conservative, Historic] {
            for periods in PERIODS_S.windows(2) {
                let (short, long) = (
                    mean(contender, periods[0], threshold),
                    mean(contender, periods[1], threshold),
                );
                assert!(short < long, "{contender} at {threshold}, {periods:?}\n{figure}");
            }
        }
        assert!(mean(Conservative, 5, threshold) > mean(None, 1, threshold), "{figure}");
        assert!(mean(Historic, 5, threshold) < mean(None, 1, threshold), "{figure}");
    }
}

#[test]
fn only_the_rtt_of_the_unit_before_saves_what_the_paper_says() {
    let current = Reading { sample: Sample::Current, ..Reading::TEXT };
    let figure = figure8(SEEDS, current);
    let saved = figure.mean_s(None, 1, 0.5).unwrap() - figure.mean_s(Historic, 1, 0.5).unwrap();
    assert!(saved > 4.2, "historic saves {saved:.2} s\n{figure}");
}

#[test]
fn nobody_beats_the_clairvoyant_nor_waits_beyond_the_limit() {
    let trace = Trace::generate(1);
    let best = replay::clairvoyant(&trace);
    for contender in Contender::ALL {
        let Some(policy) = contender.policy(Duration::from_millis(300), Duration::from_secs(1))
        else {
            continue;
        };
        let latencies = replay::latencies(&trace, &policy, Reading::TEXT);
        assert_eq!(latencies.len(), best.len());
        let network = (0..5500).map(|unit| trace.latency_s(unit)).fold(0.0, f64::max);
        for (latency, best) in latencies.iter().zip(&best) {
            assert!(latency >= best, "{contender}: {latency} under {best}");
            let limit = WITHHOLD_MAX.as_secs_f64() + 1e-6 + network;
            assert!(contender == Historic || *latency <= limit, "{contender}: {latency}");
        }
    }
}

#[test]
fn traces_have_the_parameters_of_the_paper() {
    assert_eq!(Trace::generate(7), Trace::generate(7));
    assert_ne!(Trace::generate(7), Trace::generate(8));
    let rtts: Vec<f64> =
        (0..40).map(Trace::generate).flat_map(|t| (0..5000).map(move |n| t.rtt_s(n))).collect();
    assert!(rtts.iter().all(|rtt| *rtt >= 0.15));
    let mean = rtts.iter().sum::<f64>() / rtts.len() as f64;
    // 0.3 s, and 1 / 0.3 s in 16.5 of 25.5 units.
    assert!((2.25..2.65).contains(&mean), "{mean}");
}
