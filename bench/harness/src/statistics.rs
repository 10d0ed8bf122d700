//! Medians, percentiles and the order in which contenders run.

/// The middle of `values`, or the mean of the two middle ones. Not a number when empty or when any value is not one.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { sorted[middle - 1].midpoint(sorted[middle]) }
}

/// The nearest-rank percentile: the smallest sample that at least `q` of all samples do not exceed. `q` is in 0..=1 and is
/// clamped to it. Not a number when `samples` is empty or holds one that is not a number.
///
/// No interpolation: a p95 that is quoted is a latency that a frame really had.
#[must_use]
pub fn percentile(samples: &[f64], q: f64) -> f64 {
    if samples.is_empty() || samples.iter().any(|sample| sample.is_nan()) {
        return f64::NAN;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Runs every contender once per run, `runs` times, so that a busy minute of the machine falls on all of them. The order turns
/// by one each run: none is always the one that finds the caches cold.
///
/// Returns the outcomes by contender, then by run.
///
/// # Errors
/// The first error of a contender ends the bench: a median over the runs that happened to work would flatter.
pub fn interleave<T, E>(
    runs: usize,
    contenders: &mut [&mut dyn FnMut(usize) -> Result<T, E>],
) -> Result<Vec<Vec<T>>, E> {
    let mut outcomes: Vec<Vec<T>> = contenders.iter().map(|_| Vec::with_capacity(runs)).collect();
    for run in 0..runs {
        for turn in 0..contenders.len() {
            let which = (run + turn) % contenders.len();
            outcomes[which].push(contenders[which](run)?);
        }
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_and_refuses_what_is_no_number() {
        for (values, expected) in [
            (&[3.0][..], 3.0),
            (&[9.0, 1.0, 5.0], 5.0),
            (&[1.0, 2.0, 4.0, 100.0], 3.0), // an even count: between the two middle ones
        ] {
            assert_eq!(median(values), expected, "{values:?}");
        }
        assert!(median(&[]).is_nan());
        assert!(median(&[1.0, f64::NAN, 2.0]).is_nan());
    }

    #[test]
    fn percentile_is_a_sample_that_occurred() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        for (q, expected) in
            [(0.0, 1.0), (0.5, 50.0), (0.95, 95.0), (0.951, 96.0), (1.0, 100.0), (7.0, 100.0)]
        {
            assert_eq!(percentile(&hundred, q), expected, "q = {q}");
        }
        assert_eq!(percentile(&[4.0], 0.95), 4.0);
        assert!(percentile(&[], 0.5).is_nan());
        assert!(percentile(&[f64::NAN], 0.5).is_nan());
    }

    #[test]
    fn contenders_take_turns_at_going_first() {
        let order = std::cell::RefCell::new(String::new());
        let mut ours = |run: usize| {
            order.borrow_mut().push('o');
            Ok::<_, ()>(run)
        };
        let mut peer = |run: usize| {
            order.borrow_mut().push('p');
            Ok(10 * run)
        };
        let outcomes = interleave(3, &mut [&mut ours, &mut peer]).unwrap();
        assert_eq!(outcomes, [vec![0, 1, 2], vec![0, 10, 20]]);
        assert_eq!(*order.borrow(), "oppoop");
    }

    #[test]
    fn a_contender_that_fails_ends_the_bench() {
        let mut runs_made = 0;
        let mut fails = |run: usize| {
            runs_made += 1;
            if run == 1 { Err("no link") } else { Ok(()) }
        };
        assert_eq!(interleave(5, &mut [&mut fails]), Err("no link"));
        assert_eq!(runs_made, 2);
    }
}
