//! The highest rate that holds.

/// Looks between `low` and `high` for the highest rate that `is_stable`, `tries` times at the geometric middle of what is still open.
/// `None` if no rate that was tried is.
///
/// # Errors
/// Those of `is_stable`.
pub fn highest<E>(
    low: f64,
    high: f64,
    tries: u32,
    mut is_stable: impl FnMut(f64) -> Result<bool, E>,
) -> Result<Option<f64>, E> {
    let (mut low, mut high) = (low, high);
    let mut best = None;
    for _ in 0..tries {
        let rate = (low * high).sqrt();
        if is_stable(rate)? {
            best = Some(rate);
            low = rate;
        } else {
            high = rate;
        }
    }
    Ok(best)
}

/// The first rate that is stable of `first` and those that are each a tenth lower, `tries` in all.
///
/// # Errors
/// Those of `is_stable`.
pub fn lowered<E>(
    first: f64,
    tries: u32,
    mut is_stable: impl FnMut(f64) -> Result<bool, E>,
) -> Result<Option<f64>, E> {
    let mut rate = first;
    for _ in 0..tries {
        if is_stable(rate)? {
            return Ok(Some(rate));
        }
        rate *= 0.9;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn the_edge_is_found_from_below() {
        for edge in [150.0, 400.0, 777.0, 1100.0] {
            let mut tried = 0;
            let found = highest(100.0, 1200.0, 8, |rate| {
                tried += 1;
                Ok::<_, Infallible>(rate <= edge)
            });
            let found = found.unwrap().unwrap();
            assert!(found <= edge && found > 0.97 * edge, "{found} for {edge}");
            assert_eq!(tried, 8);
        }
    }

    #[test]
    fn what_never_holds_has_no_rate() {
        assert_eq!(highest(100.0, 1200.0, 5, |_| Ok::<_, Infallible>(false)), Ok(None));
        assert_eq!(highest(100.0, 1200.0, 5, Err::<bool, _>), Err((100.0f64 * 1200.0).sqrt()));
        assert_eq!(lowered(100.0, 3, |_| Ok::<_, Infallible>(false)), Ok(None));
    }

    #[test]
    fn a_rate_is_lowered_until_it_holds() {
        let found = lowered(100.0, 5, |rate| Ok::<_, Infallible>(rate < 96.0));
        assert_eq!(found, Ok(Some(90.0)));
    }
}
