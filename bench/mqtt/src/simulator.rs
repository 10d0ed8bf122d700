//! The paper's figure 8 in virtual time, decided by the schedule that is shipped.

use bench_harness::{Figure, Report, Target};
use tidegate_sim::withhold::{Contender, Reading, THRESHOLDS_S, figure8};

/// Seeds of traces.
const SEEDS: u64 = 10;
/// From this `threshold_l` on the order must hold.
const THRESHOLD_L_MIN: f64 = 0.5;
/// The target saving of `historic` over the mean without withholding, in seconds, and its tolerance.
const SAVED_S: (f64, f64) = (3.5, 0.35);

/// Mean latency of large messages by policy, their order, and what historic saves.
pub fn simulator(report: &mut Report) {
    report.configuration(
        "simulator",
        format!("figure 8 of the paper, {SEEDS} seeds, T_Q 1 s, read by its text"),
    );
    let figure = figure8(SEEDS, Reading::TEXT);
    let mean = |contender, threshold| figure.mean_s(contender, 1, threshold).unwrap_or(f64::NAN);
    for threshold in THRESHOLDS_S {
        for contender in Contender::ALL {
            let name = format!("simulator, threshold_l {threshold} s, {contender}, mean");
            report.samples(&name, [mean(contender, threshold)]);
        }
    }
    let order = [
        Contender::Clairvoyant,
        Contender::ProbabilisticGood,
        Contender::Historic,
        Contender::Conservative,
        Contender::None,
    ];
    for threshold in THRESHOLDS_S.into_iter().filter(|threshold| *threshold >= THRESHOLD_L_MIN) {
        let means = order.map(|contender| mean(contender, threshold));
        let holds = means.windows(2).filter(|pair| pair[0] < pair[1]).count();
        let said: Vec<String> = order
            .iter()
            .zip(means)
            .map(|(contender, mean)| format!("{contender} {mean:.2} s"))
            .collect();
        report.figure(
            Figure::new(format!("simulator, threshold_l {threshold} s, pairs in order, of 4"), "")
                .ours([holds as f64])
                .target(Target::AtLeast(4.0))
                .note(said.join(" < ")),
        );
        let saved = means[4] - means[2];
        report.figure(
            Figure::new(format!("simulator, threshold_l {threshold} s, historic saves"), "s")
                .ours([saved])
                .target(Target::Exactly(SAVED_S.0))
                .tolerance(bench_harness::Tolerance::Absolute(SAVED_S.1)),
        );
        let ours = mean(Contender::Deadline, threshold);
        report.figure(
            Figure::new(
                format!("simulator, threshold_l {threshold} s, deadline beside historic"),
                "s",
            )
            .ours([ours])
            .peer([means[2]])
            .peer_name("historic"),
        );
    }
}
